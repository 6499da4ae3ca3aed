//! What was measured on, and what was measured.

use std::fs;
use std::process::Command;

use serde::{Deserialize, Serialize};

/// The machine and the versions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) processor: String,
    pub(crate) cores: usize,
    pub(crate) memory_gib: u64,
    pub(crate) kernel: String,
    pub(crate) kubernetes: String,
    pub(crate) manifold: String,
    /// Of the tree that the bench was built from; with a `+` where it had changes.
    pub(crate) commit: String,
}

impl Machine {
    pub(crate) fn detect(kubernetes: &str) -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| {
            text.lines()
                .find(|line| line.starts_with(name))
                .and_then(|line| line.split_once(':'))
                .map(|(_, value)| value.trim().to_owned())
        };
        let kib = field(&read("/proc/meminfo"), "MemTotal")
            .and_then(|value| value.split_whitespace().next()?.parse::<u64>().ok());
        Self {
            processor: field(&read("/proc/cpuinfo"), "model name").unwrap_or_default(),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            memory_gib: kib.unwrap_or(0).div_ceil(1 << 20),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            kubernetes: kubernetes.to_owned(),
            manifold: env!("CARGO_PKG_VERSION").to_owned(),
            commit: commit(),
        }
    }
}

fn commit() -> String {
    let git = |args: &[&str]| {
        let output = Command::new("git")
            .current_dir(harness::workspace_root())
            .args(args)
            .output()
            .ok()?;
        output
            .status
            .success()
            .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(head) = git(&["rev-parse", "--short", "HEAD"]) else {
        return "unknown".to_owned();
    };
    match git(&["status", "--porcelain", "--", "*.rs", "*.toml"]) {
        Some(changes) if changes.is_empty() => head,
        _ => format!("{head}+"),
    }
}
