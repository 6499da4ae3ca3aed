//! Container images without a registry or a daemon: archives in OCI's image layout, which `ctr images
//! import`, `podman load` and `skopeo copy oci-archive:` read. Equal input gives equal bytes: whatever
//! differs between two builds is an argument.

use std::io::Write as _;

use anyhow::{Result, ensure};
use flate2::{Compression, GzBuilder};
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};

/// A tar header, and the unit that contents are padded to.
const BLOCK: usize = 512;
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// A tar archive in the form of POSIX.1-1988, all of whose entries belong to root and have one time.
#[derive(Debug, Default, Clone)]
pub struct Archive {
    bytes: Vec<u8>,
    names: Vec<String>,
    /// Seconds since 1970.
    modified: u64,
}

impl Archive {
    /// With the time of its entries, in seconds since 1970.
    pub fn new(modified: u64) -> Self {
        Self {
            modified,
            ..Self::default()
        }
    }

    /// Adds a directory.
    pub fn directory(&mut self, name: &str, mode: u32) -> Result<()> {
        self.entry(&format!("{name}/"), b'5', mode, "", &[])
    }

    /// Adds a file.
    pub fn file(&mut self, name: &str, bytes: &[u8], mode: u32) -> Result<()> {
        self.entry(name, b'0', mode, "", bytes)
    }

    /// Adds a symbolic link.
    pub fn link(&mut self, name: &str, to: &str) -> Result<()> {
        self.entry(name, b'2', 0o777, to, &[])
    }

    /// Adds what others name by its digest, once; returns its descriptor.
    fn blob(&mut self, media_type: &str, bytes: &[u8]) -> Result<Value> {
        let digest = sha256(bytes);
        let name = digest.replace("sha256:", "blobs/sha256/");
        if !self.names.contains(&name) {
            self.file(&name, bytes, 0o644)?;
        }
        Ok(json!({"mediaType": media_type, "digest": digest, "size": bytes.len()}))
    }

    fn entry(&mut self, name: &str, kind: u8, mode: u32, link: &str, bytes: &[u8]) -> Result<()> {
        ensure!(
            !self.names.iter().any(|known| known == name),
            "{name:?} is in the archive already"
        );
        let mut header = [0; BLOCK];
        let mut put = |at: usize, room: usize, text: &str| {
            ensure!(text.len() <= room, "{text:?} is too long for a tar header");
            header[at..at + text.len()].copy_from_slice(text.as_bytes());
            Ok(())
        };
        put(0, 100, name)?;
        put(100, 8, &format!("{mode:07o}"))?;
        put(108, 8, "0000000")?;
        put(116, 8, "0000000")?;
        put(124, 12, &format!("{:011o}", bytes.len()))?;
        put(136, 12, &format!("{:011o}", self.modified))?;
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
        self.names.push(name.to_owned());
        Ok(())
    }

    /// The finished archive.
    pub fn end(mut self) -> Vec<u8> {
        self.bytes.resize(self.bytes.len() + 2 * BLOCK, 0);
        self.bytes
    }
}

/// What an image is for one processor architecture.
#[derive(Debug, Clone)]
pub struct Variant {
    /// As Go calls it: `amd64`, `arm64`.
    pub architecture: String,
    /// The `config` of the image's configuration: user, entry point, environment.
    pub config: Value,
    /// A tar archive of its files.
    pub layer: Vec<u8>,
}

/// Images on their way into one archive.
#[derive(Debug)]
pub struct Layout {
    archive: Archive,
    manifests: Vec<Value>,
}

impl Layout {
    /// Without images.
    pub fn new() -> Result<Self> {
        let mut archive = Archive::default();
        archive.file("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#, 0o644)?;
        Ok(Self {
            archive,
            manifests: Vec::new(),
        })
    }

    /// Adds an image, and returns the digest by which a registry would serve it. `created` is a time of RFC
    /// 3339. One variant is an image by itself; several are listed in an index.
    pub fn image(&mut self, name: &str, created: &str, variants: &[Variant]) -> Result<String> {
        ensure!(!variants.is_empty(), "{name} has no variant");
        let mut manifests = Vec::new();
        for variant in variants {
            let config = json!({
                "architecture": variant.architecture,
                "os": "linux",
                "created": created,
                "config": variant.config,
                "rootfs": {"type": "layers", "diff_ids": [sha256(&variant.layer)]},
            });
            let layer = compressed(&variant.layer)?;
            let manifest = json!({
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": self.archive.blob(CONFIG, config.to_string().as_bytes())?,
                "layers": [self.archive.blob(LAYER, &layer)?],
            });
            let mut manifest = self
                .archive
                .blob(MANIFEST, manifest.to_string().as_bytes())?;
            manifest["platform"] = json!({"architecture": variant.architecture, "os": "linux"});
            manifests.push(manifest);
        }
        let mut image = if manifests.len() == 1 {
            manifests.remove(0)
        } else {
            let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests});
            self.archive.blob(INDEX, index.to_string().as_bytes())?
        };
        let digest = image["digest"].as_str().unwrap_or_default().to_owned();
        image["annotations"] = json!({
            // containerd's, and everybody else's.
            "io.containerd.image.name": name,
            "org.opencontainers.image.ref.name": name,
        });
        self.manifests.push(image);
        Ok(digest)
    }

    /// The archive.
    pub fn end(mut self) -> Result<Vec<u8>> {
        let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": self.manifests})
            .to_string();
        self.archive.file("index.json", index.as_bytes(), 0o644)?;
        Ok(self.archive.end())
    }
}

/// Without a name or a time.
fn compressed(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut writer = GzBuilder::new().write(Vec::new(), Compression::best());
    writer.write_all(bytes)?;
    Ok(writer.finish()?)
}

/// This machine's architecture, as Go calls it.
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// As OCI writes a digest.
pub fn sha256(bytes: &[u8]) -> String {
    let digest = digest(&SHA256, bytes);
    let hex: String = digest
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("sha256:{hex}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn layer() -> Vec<u8> {
        let mut layer = Archive::new(86_400);
        layer.directory("bin", 0o755).unwrap();
        layer.file("bin/busybox", b"a program", 0o755).unwrap();
        layer.link("bin/sh", "busybox").unwrap();
        layer.end()
    }

    fn archive(architectures: &[&str]) -> Vec<u8> {
        let variants: Vec<Variant> = architectures
            .iter()
            .map(|one| Variant {
                architecture: (*one).to_owned(),
                config: json!({"User": "1:1"}),
                layer: layer(),
            })
            .collect();
        let mut layout = Layout::new().unwrap();
        layout
            .image("localhost/one:1", "1970-01-02T00:00:00Z", &variants)
            .unwrap();
        layout.end().unwrap()
    }

    fn tar(arguments: &[&str], archive: &[u8]) -> String {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("archive.tar");
        std::fs::write(&path, archive).unwrap();
        let output = Command::new("tar")
            .env("TZ", "UTC")
            .args(arguments)
            .arg("-f")
            .arg(&path)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    #[test]
    fn an_archive_is_one_that_tar_reads() {
        let listed = tar(&["-tv"], &layer());
        for wanted in [
            "drwxr-xr-x",
            "bin/busybox\n",
            "bin/sh -> busybox\n",
            " 9 1970-01-02 00:00 ",
        ] {
            assert!(listed.contains(wanted), "{wanted:?} in {listed}");
        }
    }

    #[test]
    fn a_layout_names_each_blob_by_what_it_holds() {
        let one = archive(&["amd64"]);
        let index: Value =
            serde_json::from_str(&tar(&["-xO", "--wildcards", "index.json"], &one)).unwrap();
        let manifest = index["manifests"][0].clone();
        assert_eq!(manifest["mediaType"], MANIFEST);
        assert_eq!(manifest["platform"]["architecture"], "amd64");
        assert_eq!(
            manifest["annotations"]["io.containerd.image.name"],
            "localhost/one:1"
        );
        let digest = manifest["digest"].as_str().unwrap();
        let blob = digest.replace("sha256:", "blobs/sha256/");
        let manifest = tar(&["-xO", "--wildcards", &blob], &one);
        assert_eq!(sha256(manifest.as_bytes()), digest);
        let manifest: Value = serde_json::from_str(&manifest).unwrap();
        assert_eq!(
            manifest["layers"][0]["digest"],
            sha256(&compressed(&layer()).unwrap())
        );
    }

    #[test]
    fn several_architectures_are_listed_in_an_index_and_share_equal_layers() {
        let both = archive(&["amd64", "arm64"]);
        let index: Value =
            serde_json::from_str(&tar(&["-xO", "--wildcards", "index.json"], &both)).unwrap();
        assert_eq!(index["manifests"][0]["mediaType"], INDEX);
        let listed = tar(&["-t"], &both);
        // Both configurations and manifests, their index, and one layer.
        assert_eq!(listed.matches("blobs/sha256/").count(), 6, "{listed}");
    }

    #[test]
    fn equal_input_gives_equal_bytes() {
        assert_eq!(archive(&["amd64"]), archive(&["amd64"]));
    }

    #[test]
    fn a_name_that_does_not_fit_a_header_or_comes_twice_is_refused() {
        let mut archive = Archive::default();
        let error = archive.file(&"x".repeat(101), b"", 0o644).unwrap_err();
        assert!(error.to_string().contains("too long"), "{error}");
        archive.file("once", b"", 0o644).unwrap();
        let error = archive.file("once", b"", 0o644).unwrap_err();
        assert!(error.to_string().contains("already"), "{error}");
    }
}
