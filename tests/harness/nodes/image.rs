//! The images that every real node has: busybox, and a pod's sandbox of it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::json;

use crate::oci::{Archive, Layout, Variant, architecture};
use crate::process::WorkDir;
use crate::toolchain;

/// What containers of tests run: busybox, whose entry point is its shell.
pub const IMAGE: &str = "localhost/busybox:1";
/// What a pod's sandbox runs.
pub(super) const PAUSE: &str = "localhost/pause:1";
/// Commands that the image has by their own names.
const COMMANDS: [&str; 8] = ["cat", "echo", "httpd", "ls", "nc", "sh", "sleep", "wget"];
const CREATED: &str = "1970-01-01T00:00:00Z";

/// Writes an archive of images that have one static program each: the name, the program's name in it, the
/// program.
pub(super) fn of_programs(
    dir: &WorkDir,
    archive: &str,
    images: &[(&str, &str, &Path)],
) -> Result<PathBuf> {
    let mut layout = Layout::new()?;
    for (name, program, from) in images {
        let bytes = std::fs::read(from).with_context(|| format!("reading {}", from.display()))?;
        let mut layer = Archive::default();
        for directory in ["etc", "tmp", "usr", "usr/local", "usr/local/bin"] {
            layer.directory(directory, 0o755)?;
        }
        layer.file(&format!("usr/local/bin/{program}"), &bytes, 0o755)?;
        let config = json!({
            "Entrypoint": [format!("/usr/local/bin/{program}")],
            "Env": ["PATH=/usr/local/bin"],
            "WorkingDir": "/",
        });
        let variant = Variant {
            architecture: architecture().to_owned(),
            config,
            layer: layer.end(),
        };
        layout.image(name, CREATED, &[variant])?;
    }
    dir.write(archive, layout.end()?)
}

/// Writes the archive of both images, as `ctr images import` reads it.
pub(super) fn write(dir: &WorkDir) -> Result<PathBuf> {
    let busybox = toolchain::on_path("busybox").context("no busybox: install busybox-static")?;
    let program =
        std::fs::read(&busybox).with_context(|| format!("reading {}", busybox.display()))?;
    let layer = layer(&program)?;
    let mut layout = Layout::new()?;
    for (name, entry_point) in [
        (IMAGE, json!(["/bin/sh"])),
        // Sandboxes are killed, not asked.
        (PAUSE, json!(["/bin/sleep", "2147483647"])),
    ] {
        let variant = Variant {
            architecture: architecture().to_owned(),
            config: json!({"Entrypoint": entry_point, "Env": ["PATH=/bin"], "WorkingDir": "/"}),
            layer: layer.clone(),
        };
        layout.image(name, CREATED, &[variant])?;
    }
    dir.write("images.tar", layout.end()?)
}

fn layer(busybox: &[u8]) -> Result<Vec<u8>> {
    let mut layer = Archive::default();
    for directory in ["bin", "etc", "tmp", "var"] {
        layer.directory(directory, 0o755)?;
    }
    layer.file("etc/passwd", b"root:x:0:0:root:/:/bin/sh\n", 0o644)?;
    layer.file("bin/busybox", busybox, 0o755)?;
    for command in COMMANDS {
        layer.link(&format!("bin/{command}"), "busybox")?;
    }
    Ok(layer.end())
}
