//! What must be installed: Rust, Go and a C compiler. Whatever is missing is named in one line.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Oldest Go that builds the control plane: its modules ask for it.
pub const GO: (u32, u32) = (1, 26);
/// Oldest rustc that builds the workspace: the root manifest asks for it.
pub const RUST: (u32, u32) = (1, 95);

/// Checks Go, and gives its version as `go env GOVERSION` prints it.
pub fn go() -> Result<String> {
    let remedy = format!(
        "install Go {}.{} or newer (go.dev/doc/install) and put it on PATH: the real control plane is built with it",
        GO.0, GO.1
    );
    // A go.mod that asks for a newer toolchain would make `go` fetch one; the installed one counts.
    let output = Command::new("go")
        .args(["env", "GOVERSION"])
        .env("GOTOOLCHAIN", "local")
        .output();
    let Ok(output) = output else {
        bail!("go is not on PATH: {remedy}");
    };
    let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    match parse(version.trim_start_matches("go")) {
        Some(found) if found >= GO => Ok(version),
        Some(_) => bail!("go is too old ({version}): {remedy}"),
        None => {
            bail!(
                "go does not print its version (`go env GOVERSION` printed {version:?}): {remedy}"
            )
        }
    }
}

/// Checks rustc, and gives its version.
pub fn rust() -> Result<String> {
    let remedy = format!(
        "install Rust {}.{} or newer (`rustup update stable`)",
        RUST.0, RUST.1
    );
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let Ok(output) = Command::new(&rustc).arg("--version").output() else {
        bail!("rustc is not on PATH: {remedy}");
    };
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let version = text.split_whitespace().nth(1).unwrap_or_default();
    match parse(version) {
        Some(found) if found >= RUST => Ok(text),
        _ => bail!("rustc is too old ({text}): {remedy}"),
    }
}

/// What cargo reports of the package that it runs. Build scripts read the same names, and count as stale when
/// one of them changes: a cargo that is started with them would build ring and all above it again, and so
/// would the next one without.
const OF_A_PACKAGE: [&str; 5] = [
    "CARGO_BIN_NAME",
    "CARGO_CRATE_NAME",
    "CARGO_MANIFEST_",
    "CARGO_PKG_",
    "CARGO_PRIMARY_PACKAGE",
];

/// cargo in the workspace, as if it were called from a shell.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(crate::workspace_root());
    for (name, _) in std::env::vars_os() {
        let reported = name
            .to_str()
            .is_some_and(|name| OF_A_PACKAGE.iter().any(|known| name.starts_with(known)));
        if reported {
            command.env_remove(name);
        }
    }
    command
}

/// Where cargo keeps what it fetches.
pub fn cargo_home() -> Result<PathBuf> {
    if let Some(home) = std::env::var_os("CARGO_HOME") {
        return Ok(PathBuf::from(home));
    }
    match std::env::var_os("HOME") {
        Some(home) => Ok(PathBuf::from(home).join(".cargo")),
        None => bail!(
            "neither CARGO_HOME nor HOME names a directory: set one, cargo keeps its sources there"
        ),
    }
}

/// A tool of cargo in just this version, installed into the cache if need be; its program.
pub fn installed(name: &str, version: &str, more: &[&str]) -> Result<PathBuf> {
    let root = crate::cache_dir()?
        .join("tools")
        .join(format!("{name}-{version}"));
    let program = root.join("bin").join(name);
    if !program.is_file() {
        eprintln!("installing {name} {version}, once");
        let status = cargo()
            .args(["install", name, "--locked", "--version", version])
            .args(more)
            .arg("--root")
            .arg(&root)
            // Its objects are of no use afterwards; the workspace's target directory stays clean.
            .env_remove("CARGO_TARGET_DIR")
            .status()
            .context("starting cargo install")?;
        if !status.success() {
            bail!("{name} {version} could not be installed ({status})");
        }
    }
    Ok(program)
}

/// Checks that there is a C compiler: the linker of every Rust program, and the compiler of ring's
/// and jemalloc's C parts.
pub fn c_compiler() -> Result<PathBuf> {
    let candidates: Vec<String> = std::env::var("CC")
        .ok()
        .and_then(|value| value.split_whitespace().next().map(str::to_owned))
        .into_iter()
        .chain(["cc", "gcc", "clang"].map(String::from))
        .collect();
    for candidate in &candidates {
        if let Some(found) = on_path(candidate) {
            return Ok(found);
        }
    }
    bail!(
        "no C compiler (tried {}): install one (Debian: `apt-get install build-essential`, Fedora: `dnf install gcc`), ring and jemalloc need it",
        candidates.join(", ")
    )
}

/// All three, the first missing one as the error.
pub fn check() -> Result<()> {
    rust()?;
    c_compiler()?;
    go()?;
    Ok(())
}

/// Where a program is that a shell would find.
pub fn on_path(program: &str) -> Option<PathBuf> {
    if program.contains('/') {
        return Some(PathBuf::from(program)).filter(|path| path.is_file());
    }
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|directory| directory.join(program))
        .find(|path| is_executable(path))
}

/// A command that takes only the processor time that others leave: what computes for minutes does not disturb
/// the suites that measure time. Without `nice` it runs like any other.
pub fn at_lowest_priority(program: &Path) -> Command {
    match on_path("nice") {
        Some(nice) => {
            let mut command = Command::new(nice);
            command.args(["-n", "19"]).arg(program);
            command
        }
        None => Command::new(program),
    }
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path)
        .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// Major and minor of `1.26.8`, `1.26rc1`, `1.95.0-nightly`.
pub(crate) fn parse(version: &str) -> Option<(u32, u32)> {
    let digits = |text: &str| -> Option<u32> {
        let end = text
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(text.len());
        text[..end].parse().ok()
    };
    let mut parts = version.split('.');
    Some((digits(parts.next()?)?, digits(parts.next()?)?))
}
