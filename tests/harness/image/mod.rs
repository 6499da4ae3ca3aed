//! The image that is shipped: one static program, in an archive that is made without a registry, a daemon or
//! root.
//!
//! Equal sources give an equal digest: paths of the machine are mapped away, times are those of the commit,
//! and the tar archive is written by [`oci`](crate::oci). `cargo image --reproduce` builds twice, in two
//! places, and compares.

mod sbom;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use jiff::Timestamp;
use pem::{EncodeConfig, LineEnding, Pem};
use serde_json::{Value, json};

use crate::fleet::{Profile, executable};
use crate::oci::{Archive, Layout, Variant, architecture};
use crate::toolchain;

/// What the manifests in `deploy` call it. No registry has a name that begins so: it is imported, or another
/// is named.
pub const NAME: &str = "localhost/manifold";
/// Where `cargo image` leaves it, in the workspace.
pub const ARCHIVE: &str = "manifold.tar";
/// Megabytes that the archive of one architecture may have as it is shipped.
pub const MEGABYTES_MAX: usize = 25;
/// Its user and group: nobody else's, neither on the host nor in other images.
const USER: u32 = 65532;
/// Pinned: another version might write the same licences in other words.
const CARGO_ABOUT: &str = "0.9.3";
/// Between two flags in `CARGO_ENCODED_RUSTFLAGS`.
const SEPARATOR: &str = "\u{1f}";
const PROGRAM: &str = "usr/local/bin/manifold";

/// A processor architecture that images are built for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Architecture {
    /// x86-64.
    Amd64,
    /// AArch64.
    Arm64,
}

impl Architecture {
    /// As Go and OCI call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// This machine's.
    pub fn here() -> Result<Self> {
        let here = architecture();
        [Self::Amd64, Self::Arm64]
            .into_iter()
            .find(|one| one.name() == here)
            .with_context(|| format!("no image is built for {here}: amd64 and arm64 are known"))
    }

    fn target(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-unknown-linux-musl",
            Self::Arm64 => "aarch64-unknown-linux-musl",
        }
    }
}

/// What is built, and from where.
#[derive(Debug, Clone)]
pub struct Options {
    /// Root of the sources.
    pub root: PathBuf,
    /// Where cargo builds.
    pub target: PathBuf,
    /// How the program is compiled.
    pub profile: Profile,
    /// One variant of the image each.
    pub architectures: Vec<Architecture>,
    /// Time of everything in it, in seconds since 1970.
    pub created: i64,
}

impl Options {
    /// Of this workspace, for this machine.
    pub fn new(profile: Profile) -> Result<Self> {
        let root = crate::workspace_root();
        Ok(Self {
            target: target_directory(&root)?,
            created: created(&root)?,
            root,
            profile,
            architectures: vec![Architecture::here()?],
        })
    }
}

/// A finished archive.
#[derive(Debug, Clone)]
pub struct Built {
    /// With the tag.
    pub name: String,
    /// By which a registry would serve it.
    pub digest: String,
    /// The archive.
    pub bytes: Vec<u8>,
}

/// An archive to be used, and where it comes from.
#[derive(Debug, Clone)]
pub struct Obtained {
    /// The archive.
    pub path: PathBuf,
    /// Its image, by which a registry would serve it.
    pub digest: String,
    /// Why this one.
    from: &'static str,
    bytes: u64,
}

impl fmt::Display for Obtained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, {:.1} MB, {}",
            self.digest,
            self.bytes as f64 / 1e6,
            self.from
        )
    }
}

/// The archive that `MANIFOLD_IMAGE` names, the one that `cargo image` has left in the workspace if no source
/// is newer, or one that is built now, as it is shipped.
pub fn obtain() -> Result<Obtained> {
    let (path, from) = if let Some(path) = std::env::var_os("MANIFOLD_IMAGE").map(PathBuf::from) {
        ensure!(
            path.is_file(),
            "MANIFOLD_IMAGE names {}, which is no file: unset it to have the image built",
            path.display()
        );
        (path, "named by MANIFOLD_IMAGE")
    } else {
        let root = crate::workspace_root();
        let left = root.join(ARCHIVE);
        if is_fresh(&left, &root)? {
            (left, "left by cargo image, no source is newer")
        } else {
            let options = Options::new(Profile::Dist)?;
            let built = build(&options)?;
            let path = options.target.join(ARCHIVE);
            fs::write(&path, &built.bytes)
                .with_context(|| format!("writing {}", path.display()))?;
            (path, "built from this tree")
        }
    };
    let about = fs::metadata(&path).with_context(|| format!("reading {}", path.display()))?;
    Ok(Obtained {
        digest: digest_of(&path)?,
        bytes: about.len(),
        path,
        from,
    })
}

/// Whether an archive is there and nothing that goes into it was written since.
fn is_fresh(archive: &Path, root: &Path) -> Result<bool> {
    let written = |path: &Path| fs::metadata(path).and_then(|about| about.modified()).ok();
    let Some(made) = written(archive) else {
        return Ok(false);
    };
    let newer = |name: &String| {
        goes_in(name) && written(&root.join(name)).is_some_and(|written| written > made)
    };
    Ok(!sources(root)?.iter().any(newer))
}

/// Whether a file of the sources has a part in the image: not pages, manifests and suites.
fn goes_in(name: &str) -> bool {
    let beside = ["bench/", "deploy/", "docs/", "tests/"];
    let of_deploy = ["deploy/about.toml", "deploy/licenses.hbs"];
    let of_program = !name.ends_with(".md") && !beside.iter().any(|one| name.starts_with(one));
    of_program || of_deploy.contains(&name)
}

/// The digest of the first image in an archive.
fn digest_of(archive: &Path) -> Result<String> {
    let output = Command::new("tar")
        .args(["-xO", "-f"])
        .arg(archive)
        .arg("index.json")
        .output()
        .context("starting tar")?;
    let what = || format!("{} is no archive of an image", archive.display());
    ensure!(output.status.success(), "{}", what());
    let index = serde_json::from_slice(&output.stdout).with_context(what)?;
    text(&index, "/manifests/0/digest").with_context(what)
}

/// Builds the image.
pub fn build(options: &Options) -> Result<Built> {
    let read = |name: &str| {
        let path = options.root.join(name);
        fs::read(&path).with_context(|| format!("reading {}", path.display()))
    };
    let created = Timestamp::from_second(options.created)
        .with_context(|| format!("{} is no time", options.created))?
        .to_string();
    let (licence, notice) = (read("LICENSE")?, read("NOTICE")?);
    let third_party = third_party_licences(options)?;
    let mut version = String::new();
    let mut variants = Vec::new();
    for architecture in &options.architectures {
        let program = program(options, *architecture)?;
        let program =
            fs::read(&program).with_context(|| format!("reading {}", program.display()))?;
        let lock = String::from_utf8(read("Cargo.lock")?).context("Cargo.lock")?;
        let materials = sbom::of(&metadata(options, *architecture)?, &lock, &created)?;
        version = text(&materials, "/metadata/component/version")?;
        let mut layer = Archive::new(options.created.unsigned_abs());
        for directory in [
            "etc",
            "etc/ssl",
            "etc/ssl/certs",
            "licenses",
            "usr",
            "usr/local",
            "usr/local/bin",
        ] {
            layer.directory(directory, 0o755)?;
        }
        layer.directory("tmp", 0o1777)?;
        let user = format!("manifold:x:{USER}:{USER}::/:/sbin/nologin\n");
        layer.file("etc/passwd", user.as_bytes(), 0o644)?;
        layer.file(
            "etc/group",
            format!("manifold:x:{USER}:\n").as_bytes(),
            0o644,
        )?;
        let roots = roots(webpki_root_certs::TLS_SERVER_ROOT_CERTS);
        layer.file("etc/ssl/certs/ca-certificates.crt", roots.as_bytes(), 0o644)?;
        layer.file("licenses/LICENSE", &licence, 0o644)?;
        layer.file("licenses/NOTICE", &notice, 0o644)?;
        layer.file("licenses/THIRD-PARTY.txt", &third_party, 0o644)?;
        layer.file(
            "sbom.cdx.json",
            &serde_json::to_vec_pretty(&materials)?,
            0o644,
        )?;
        layer.file(PROGRAM, &program, 0o755)?;
        // By the name that kubeadm's static pod calls.
        layer.link("usr/local/bin/kube-controller-manager", "manifold")?;
        variants.push(Variant {
            architecture: architecture.name().to_owned(),
            config: config(&version),
            layer: layer.end(),
        });
    }
    let name = format!("{NAME}:{version}");
    let mut layout = Layout::new()?;
    let digest = layout.image(&name, &created, &variants)?;
    let bytes = layout.end()?;
    let most = MEGABYTES_MAX * 1_000_000 * variants.len();
    ensure!(
        bytes.len() <= most || options.profile != Profile::Dist,
        "the archive has {} bytes, more than {MEGABYTES_MAX} MB for each architecture",
        bytes.len()
    );
    Ok(Built {
        name,
        digest,
        bytes,
    })
}

fn config(version: &str) -> Value {
    json!({
        "User": format!("{USER}:{USER}"),
        "Entrypoint": [format!("/{PROGRAM}")],
        "Env": ["PATH=/usr/local/bin"],
        "WorkingDir": "/",
        "ExposedPorts": {"10257/tcp": {}, "10258/tcp": {}},
        "Labels": {
            "org.opencontainers.image.title": "manifold",
            "org.opencontainers.image.description": "Kubernetes controller manager in which every replica works",
            "org.opencontainers.image.licenses": "Apache-2.0",
            "org.opencontainers.image.version": version,
        },
    })
}

/// `SOURCE_DATE_EPOCH`, else the time of the last commit, else 1970.
fn created(root: &Path) -> Result<i64> {
    if let Ok(given) = std::env::var("SOURCE_DATE_EPOCH") {
        let seconds = given.trim().parse().ok().filter(|seconds| *seconds >= 0);
        return seconds.with_context(|| {
            format!("SOURCE_DATE_EPOCH is {given:?}: it must be seconds since 1970")
        });
    }
    let output = Command::new("git")
        .current_dir(root)
        .args(["log", "-1", "--format=%ct"])
        .stderr(Stdio::null())
        .output();
    let seconds = output
        .ok()
        .and_then(|output| String::from_utf8(output.stdout).ok())
        .and_then(|text| text.trim().parse().ok());
    Ok(seconds.unwrap_or(0))
}

/// What keeps the machine out of the program: flags for cargo, rustc and the C compiler.
fn environment(
    root: &Path,
    target: &Path,
    home: &Path,
    architecture: Architecture,
) -> Vec<(String, String)> {
    // Of two that fit, rustc takes the later: cargo builds below the root where nothing else is said.
    let places = [(root, "/src"), (home, "/cargo"), (target, "/target")];
    let map = |flag: &str| {
        let flags = places.map(|(from, to)| format!("{flag}={}={to}", from.display()));
        flags.to_vec()
    };
    let mut rust = map("--remap-path-prefix");
    // The linker would hash what it was given, in an order of its own.
    rust.push("-Clink-arg=-Wl,--build-id=none".to_owned());
    let mut c = map("-ffile-prefix-map");
    c.reverse();
    let triple = architecture.target().replace('-', "_");
    vec![
        ("CARGO_ENCODED_RUSTFLAGS".to_owned(), rust.join(SEPARATOR)),
        ("CARGO_INCREMENTAL".to_owned(), "0".to_owned()),
        ("CARGO_TARGET_DIR".to_owned(), target.display().to_string()),
        (format!("CFLAGS_{triple}"), c.join(" ")),
    ]
}

/// Compiles and links the static program.
fn program(options: &Options, architecture: Architecture) -> Result<PathBuf> {
    toolchain::rust()?;
    let target = architecture.target();
    let mut command = toolchain::cargo();
    command.current_dir(&options.root).envs(environment(
        &options.root,
        &options.target,
        &toolchain::cargo_home()?,
        architecture,
    ));
    if architecture == Architecture::here()? {
        ensure!(
            toolchain::on_path("musl-gcc").is_some(),
            "no program `musl-gcc`, which compiles ring's and jemalloc's C for a static program: install it (Debian: \
             `apt-get install musl-tools`)"
        );
        let compiler = format!("CC_{}", target.replace('-', "_"));
        command.env(compiler, "musl-gcc").arg("build");
    } else {
        // zig brings C headers and a linker for every architecture.
        ensure!(
            toolchain::on_path("cargo-zigbuild").is_some(),
            "no program `cargo-zigbuild`, which links for {}: install it (`pip install ziglang cargo-zigbuild`)",
            architecture.name()
        );
        command.arg("zigbuild");
    }
    command
        .args(["--locked", "--bin", "manifold", "--target", target])
        .args(["--message-format", "json-render-diagnostics"])
        .args(options.profile.flags());
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .context("starting cargo to build manifold")?;
    ensure!(
        output.status.success(),
        "cargo could not build manifold for {target} ({}); where the target is missing: `rustup target add {target}`",
        output.status
    );
    executable("manifold", &String::from_utf8_lossy(&output.stdout))
        .context("cargo built manifold but did not say where it lies")
}

fn metadata(options: &Options, architecture: Architecture) -> Result<Value> {
    let output = toolchain::cargo()
        .current_dir(&options.root)
        .args(["metadata", "--locked", "--format-version", "1"])
        .args(["--filter-platform", architecture.target()])
        .stderr(Stdio::inherit())
        .output()
        .context("starting cargo metadata")?;
    ensure!(
        output.status.success(),
        "cargo metadata failed ({})",
        output.status
    );
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// The licences of what is linked in, by cargo-about.
fn third_party_licences(options: &Options) -> Result<Vec<u8>> {
    let program = toolchain::installed("cargo-about", CARGO_ABOUT, &["--features", "cli"])?;
    let output = Command::new(program)
        .current_dir(&options.root)
        .args(["about", "generate", "--locked", "--offline"])
        .args(["--config", "deploy/about.toml"])
        .args(["--manifest-path", "node/Cargo.toml"])
        .arg("deploy/licenses.hbs")
        .stderr(Stdio::inherit())
        .output()
        .context("starting cargo about")?;
    ensure!(
        output.status.success(),
        "cargo about failed ({}): see deploy/about.toml",
        output.status
    );
    ensure!(!output.stdout.is_empty(), "cargo about wrote no licences");
    Ok(output.stdout)
}

fn target_directory(root: &Path) -> Result<PathBuf> {
    let output = toolchain::cargo()
        .current_dir(root)
        .args(["metadata", "--locked", "--no-deps", "--format-version", "1"])
        .stderr(Stdio::inherit())
        .output()
        .context("starting cargo metadata")?;
    let metadata: Value = serde_json::from_slice(&output.stdout).context("cargo metadata")?;
    Ok(PathBuf::from(text(&metadata, "/target_directory")?))
}

/// What git knows or would take, by its place below the root.
fn sources(root: &Path) -> Result<Vec<String>> {
    let output = Command::new("git")
        .current_dir(root)
        .args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ])
        .output()
        .context("starting git")?;
    ensure!(
        output.status.success(),
        "git ls-files failed ({})",
        output.status
    );
    let names = String::from_utf8(output.stdout)?;
    Ok(names.split_terminator('\0').map(str::to_owned).collect())
}

/// Copies the sources to another place, for a build that shares nothing with this one.
pub fn copy_sources(to: &Path) -> Result<()> {
    let root = crate::workspace_root();
    for name in sources(&root)? {
        let (from, to) = (root.join(&name), to.join(&name));
        if !from.is_file() {
            continue;
        }
        let directory = to.parent().context("a file's directory")?;
        fs::create_dir_all(directory)
            .and_then(|()| fs::copy(&from, &to))
            .with_context(|| format!("copying {}", from.display()))?;
    }
    Ok(())
}

fn text(value: &Value, pointer: &str) -> Result<String> {
    let found = value.pointer(pointer).and_then(Value::as_str);
    let Some(found) = found else {
        bail!("no text at {pointer}");
    };
    Ok(found.to_owned())
}

/// In PEM, as programs read them.
fn roots(certificates: &[impl AsRef<[u8]>]) -> String {
    let lines = EncodeConfig::new().set_line_ending(LineEnding::LF);
    let blocks = certificates
        .iter()
        .map(|certificate| Pem::new("CERTIFICATE", certificate.as_ref()));
    blocks
        .map(|block| pem::encode_config(&block, lines))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_the_machine_are_mapped_and_the_narrower_one_counts() {
        let environment = environment(
            Path::new("/a/manifold"),
            Path::new("/a/manifold/target"),
            Path::new("/a/.cargo"),
            Architecture::Arm64,
        );
        let value = |name: &str| {
            let found = environment.iter().find(|(known, _)| known == name);
            found.unwrap().1.as_str()
        };
        assert_eq!(
            value("CARGO_ENCODED_RUSTFLAGS"),
            "--remap-path-prefix=/a/manifold=/src\u{1f}--remap-path-prefix=/a/.cargo=/cargo\u{1f}\
             --remap-path-prefix=/a/manifold/target=/target\u{1f}-Clink-arg=-Wl,--build-id=none"
        );
        assert_eq!(
            value("CFLAGS_aarch64_unknown_linux_musl"),
            "-ffile-prefix-map=/a/manifold/target=/target -ffile-prefix-map=/a/.cargo=/cargo \
             -ffile-prefix-map=/a/manifold=/src"
        );
    }

    #[test]
    fn an_archive_is_used_while_nothing_that_goes_into_it_is_newer() {
        for (name, goes) in [
            ("node/run.rs", true),
            ("Cargo.lock", true),
            ("NOTICE", true),
            ("deploy/about.toml", true),
            ("deploy/base/stateful-set.yaml", false),
            ("tests/image.rs", false),
            ("node/doctor/README.md", false),
        ] {
            assert_eq!(goes_in(name), goes, "{name}");
        }
        let place = tempfile::tempdir().unwrap();
        let write = |name: &str, age: u64| {
            let path = place.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let file = fs::File::create(path).unwrap();
            let at = std::time::SystemTime::now() - std::time::Duration::from_secs(age);
            file.set_modified(at).unwrap();
        };
        let git = Command::new("git")
            .args(["init", "-q"])
            .current_dir(place.path())
            .status();
        assert!(git.unwrap().success());
        let archive = place.path().join(ARCHIVE);
        write("node/run.rs", 100);
        write(".gitignore", 100);
        assert!(!is_fresh(&archive, place.path()).unwrap(), "there is none");
        write(ARCHIVE, 50);
        write("tests/image.rs", 10);
        assert!(is_fresh(&archive, place.path()).unwrap());
        write("node/new.rs", 10);
        assert!(!is_fresh(&archive, place.path()).unwrap());
    }

    #[test]
    fn roots_are_certificates_that_parse() {
        let pem = roots(webpki_root_certs::TLS_SERVER_ROOT_CERTS);
        let parsed = x509_parser::pem::Pem::iter_from_buffer(pem.as_bytes());
        let count = parsed
            .map(|pem| pem.unwrap().parse_x509().unwrap().is_ca())
            .filter(|is_ca| *is_ca)
            .count();
        assert!(count > 100, "{count}");
    }

    #[test]
    fn the_image_runs_as_nobody_of_the_host() {
        let config = config("1.2.3");
        assert_eq!(config["User"], "65532:65532");
        assert_eq!(config["Entrypoint"], json!(["/usr/local/bin/manifold"]));
        assert_eq!(
            config["Labels"]["org.opencontainers.image.version"],
            "1.2.3"
        );
    }
}
