//! A bound on the memory of a running process, so that the kernel's own OOM killer ends it.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::nodes::cgroups;
use crate::process;

/// A cgroup of version 1 for one process. Dropping it waits until nothing is left in it, and removes it.
#[derive(Debug)]
pub struct Memory {
    path: PathBuf,
}

impl Memory {
    /// Empty, below the cgroup of this process; `None` on a machine where version 1 has no memory.
    pub fn create() -> Result<Option<Self>> {
        let Some(own) = cgroups::own("memory")? else {
            return Ok(None);
        };
        let path = own.join(format!("manifold-memory-{:08x}", rand::random::<u32>()));
        process::watch_directory(&path)?;
        let memory = Self { path };
        fs::create_dir(&memory.path)
            .with_context(|| format!("making {}", memory.path.display()))?;
        Ok(Some(memory))
    }

    /// What a process has stays counted where it is; of what it asks for from now on it gets this many bytes.
    pub fn bound(&self, process: u32, bytes: u64) -> Result<()> {
        self.write("memory.limit_in_bytes", &bytes.to_string())?;
        self.write("cgroup.procs", &process.to_string())
    }

    /// How many processes the OOM killer has ended because of this bound.
    pub fn killed(&self) -> Result<u64> {
        let path = self.path.join("memory.oom_control");
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let count = text
            .lines()
            .find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok());
        count.with_context(|| format!("no oom_kill in {}", path.display()))
    }

    fn write(&self, file: &str, text: &str) -> Result<()> {
        let path = self.path.join(file);
        fs::write(&path, text).with_context(|| format!("writing {text} to {}", path.display()))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        cgroups::remove(std::slice::from_ref(&self.path));
    }
}
