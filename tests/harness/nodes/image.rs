//! Container images without a registry: an archive in OCI's layout, of busybox alone.

use std::path::PathBuf;

use anyhow::{Context, Result};
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};

use crate::process::WorkDir;
use crate::toolchain;

/// What containers of tests run: busybox, whose entry point is its shell.
pub const IMAGE: &str = "localhost/busybox:1";
/// What a pod's sandbox runs.
pub(super) const PAUSE: &str = "localhost/pause:1";
const BLOCK: usize = 512;
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
/// Commands that the image has by their own names.
const COMMANDS: [&str; 8] = ["cat", "echo", "httpd", "ls", "nc", "sh", "sleep", "wget"];

/// Writes the archive of both images, as `ctr images import` reads it.
pub(super) fn write(dir: &WorkDir) -> Result<PathBuf> {
    let busybox = toolchain::on_path("busybox").context("no busybox: install busybox-static")?;
    let program =
        std::fs::read(&busybox).with_context(|| format!("reading {}", busybox.display()))?;
    let layer = layer(&program)?;
    let mut archive = Archive::default();
    archive.file("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#, 0o644)?;
    let mut manifests = Vec::new();
    for (name, entry_point) in [
        (IMAGE, json!(["/bin/sh"])),
        // Sandboxes are killed, not asked.
        (PAUSE, json!(["/bin/sleep", "2147483647"])),
    ] {
        let config = json!({
            "architecture": architecture(),
            "os": "linux",
            "config": {"Entrypoint": entry_point, "Env": ["PATH=/bin"], "WorkingDir": "/"},
            "rootfs": {"type": "layers", "diff_ids": [hash(&layer)]},
        });
        let config = archive.blob(CONFIG, config.to_string().as_bytes())?;
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": config,
            "layers": [archive.blob(LAYER, &layer)?],
        });
        let mut manifest = archive.blob(MANIFEST, manifest.to_string().as_bytes())?;
        manifest["annotations"] = json!({"io.containerd.image.name": name});
        manifests.push(manifest);
    }
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests});
    archive.file("index.json", index.to_string().as_bytes(), 0o644)?;
    dir.write("images.tar", archive.end())
}

/// As Go calls it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn layer(busybox: &[u8]) -> Result<Vec<u8>> {
    let mut layer = Archive::default();
    for directory in ["bin/", "etc/", "tmp/", "var/"] {
        layer.entry(directory, b'5', 0o755, "", &[])?;
    }
    layer.file("etc/passwd", b"root:x:0:0:root:/:/bin/sh\n", 0o644)?;
    layer.file("bin/busybox", busybox, 0o755)?;
    for command in COMMANDS {
        layer.entry(&format!("bin/{command}"), b'2', 0o777, "busybox", &[])?;
    }
    Ok(layer.end())
}

fn hash(bytes: &[u8]) -> String {
    let digest = digest(&SHA256, bytes);
    let hex: String = digest
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("sha256:{hex}")
}

/// A tar archive in the form of POSIX.1-1988.
#[derive(Debug, Default)]
struct Archive {
    bytes: Vec<u8>,
    blobs: Vec<String>,
}

impl Archive {
    /// Adds what others name by its digest, once; gives its descriptor.
    fn blob(&mut self, media_type: &str, bytes: &[u8]) -> Result<Value> {
        let digest = hash(bytes);
        let name = digest.replace("sha256:", "blobs/sha256/");
        if !self.blobs.contains(&name) {
            self.file(&name, bytes, 0o644)?;
            self.blobs.push(name);
        }
        Ok(json!({"mediaType": media_type, "digest": digest, "size": bytes.len()}))
    }

    fn file(&mut self, name: &str, bytes: &[u8], mode: u32) -> Result<()> {
        self.entry(name, b'0', mode, "", bytes)
    }

    fn entry(&mut self, name: &str, kind: u8, mode: u32, link: &str, bytes: &[u8]) -> Result<()> {
        let mut header = [0; BLOCK];
        let mut put = |at: usize, room: usize, text: &str| {
            anyhow::ensure!(text.len() <= room, "{text:?} is too long for a tar header");
            header[at..at + text.len()].copy_from_slice(text.as_bytes());
            Ok(())
        };
        put(0, 100, name)?;
        put(100, 8, &format!("{mode:07o}"))?;
        put(108, 8, "0000000")?;
        put(116, 8, "0000000")?;
        put(124, 12, &format!("{:011o}", bytes.len()))?;
        put(136, 12, "00000000000")?;
        // While the sum is taken, its own field counts as spaces.
        put(148, 8, "        ")?;
        put(157, 100, link)?;
        put(257, 8, "ustar\x0000")?;
        header[156] = kind;
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.bytes.extend_from_slice(&header);
        self.bytes.extend_from_slice(bytes);
        self.bytes
            .resize(self.bytes.len().next_multiple_of(BLOCK), 0);
        Ok(())
    }

    fn end(mut self) -> Vec<u8> {
        self.bytes.resize(self.bytes.len() + 2 * BLOCK, 0);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn an_archive_is_one_that_tar_reads() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("layer.tar");
        std::fs::write(&path, layer(b"a program").unwrap()).unwrap();
        let listed = Command::new("tar").arg("-tvf").arg(&path).output().unwrap();
        assert!(listed.status.success(), "{listed:?}");
        let listed = String::from_utf8(listed.stdout).unwrap();
        for wanted in ["drwxr-xr-x", "bin/busybox\n", "bin/sh -> busybox\n", " 9 "] {
            assert!(listed.contains(wanted), "{wanted:?} in {listed}");
        }
    }

    #[test]
    fn a_name_that_does_not_fit_a_header_is_refused() {
        let error = Archive::default().file(&"x".repeat(101), b"", 0o644);
        assert!(error.unwrap_err().to_string().contains("too long"));
    }
}
