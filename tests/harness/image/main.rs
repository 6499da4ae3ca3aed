//! `cargo image`: the container image, as an archive that containerd, podman and skopeo import.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};
use harness::fleet::Profile;
use harness::image::{self, Architecture, Built, Options};

/// Builds the container image of Manifold without a registry or a daemon.
#[derive(Debug, Parser)]
#[command(name = "cargo image", bin_name = "cargo image")]
struct Args {
    /// Where the archive is written
    #[arg(long, default_value = image::ARCHIVE)]
    output: PathBuf,
    /// Architectures of the image (may be given several times); this machine's where not given
    #[arg(long)]
    arch: Vec<Architecture>,
    /// How the program is compiled: `dist` is what is shipped, `dev` is built fastest
    #[arg(long, default_value = "dist")]
    profile: BuiltAs,
    /// Build a second time, from a copy of the sources in another place, and compare the digests
    #[arg(long)]
    reproduce: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum BuiltAs {
    Dev,
    Release,
    Dist,
}

impl From<BuiltAs> for Profile {
    fn from(built: BuiltAs) -> Self {
        match built {
            BuiltAs::Dev => Self::Dev,
            BuiltAs::Release => Self::Release,
            BuiltAs::Dist => Self::Dist,
        }
    }
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cargo image: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    let mut options = Options::new(args.profile.into())?;
    if !args.arch.is_empty() {
        options.architectures.clone_from(&args.arch);
    }
    let began = Instant::now();
    let built = image::build(&options)?;
    fs::write(&args.output, &built.bytes)
        .with_context(|| format!("writing {}", args.output.display()))?;
    println!(
        "{} {} {:.1} MB in {} ({:.0} s)",
        built.name,
        built.digest,
        built.bytes.len() as f64 / 1e6,
        args.output.display(),
        began.elapsed().as_secs_f64()
    );
    if args.reproduce {
        let again = again(&options)?;
        ensure!(
            built.digest == again.digest,
            "a second build of the same sources has the digest {}",
            again.digest
        );
        println!("a second build in another place has the same digest");
    }
    Ok(())
}

fn again(options: &Options) -> Result<Built> {
    let place = tempfile::tempdir().context("making a directory")?;
    let root = place.path().join("a-longer-name-for-the-sources");
    image::copy_sources(&root)?;
    image::build(&Options {
        target: place.path().join("built"),
        root,
        ..options.clone()
    })
}
