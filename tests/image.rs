//! What `cargo image` makes: a static program with licences, roots and a bill of materials, of which a second
//! build has the same digest.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use harness::fleet::Profile;
use harness::image::{self, MEGABYTES_MAX, Options};
use harness::process::WorkDir;
use harness::{oci, workspace_root};
use serde_json::Value;

fn tar(arguments: &[&str], archive: &Path) -> Result<Vec<u8>> {
    let output = Command::new("tar")
        .args(arguments)
        .arg("-f")
        .arg(archive)
        .output()
        .context("starting tar")?;
    ensure!(
        output.status.success(),
        "tar {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(output.stdout)
}

/// A blob that a descriptor names; it must be what its digest says.
fn blob(archive: &Path, descriptor: &Value) -> Result<Vec<u8>> {
    let digest = descriptor["digest"].as_str().context("a digest")?;
    let name = digest.replace("sha256:", "blobs/sha256/");
    let bytes = tar(&["-xO", "--wildcards", &name], archive)?;
    ensure!(oci::sha256(&bytes) == digest, "{digest} is something else");
    Ok(bytes)
}

/// Files of the image with their sizes; links with zero.
fn listed(layer: &Path) -> Result<BTreeMap<String, u64>> {
    let text = String::from_utf8(tar(&["-tv"], layer)?)?;
    let entries = text.lines().map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (size, name) = (
            words.get(2).context("a size")?,
            words.get(5).context("a name")?,
        );
        Ok(((*name).to_owned(), size.parse()?))
    });
    entries.collect()
}

/// Whether a 64-bit little-endian ELF file names an interpreter, which a static program does without.
fn names_an_interpreter(program: &[u8]) -> Option<bool> {
    const INTERPRETER: usize = 3;
    let number = |at: usize, length: usize| {
        let bytes = program.get(at..at + length)?;
        let fold = |sum: usize, byte: &u8| (sum << 8) | usize::from(*byte);
        Some(bytes.iter().rev().fold(0, fold))
    };
    program.starts_with(b"\x7fELF\x02\x01").then_some(())?;
    let (headers, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    let mut kinds = (0..count).map(|index| number(headers + index * size, 4));
    Some(kinds.any(|kind| kind == Some(INTERPRETER)))
}

#[test]
#[ignore = "minutes: cargo parity"]
fn the_image_has_one_static_program_and_all_that_must_go_with_it() {
    let check = || -> Result<()> {
        let obtained = image::obtain()?;
        println!("image: {obtained}");
        let archive = obtained.path;
        let index: Value =
            serde_json::from_slice(&tar(&["-xO", "--wildcards", "index.json"], &archive)?)?;
        let manifest: Value = serde_json::from_slice(&blob(&archive, &index["manifests"][0])?)?;
        let config: Value = serde_json::from_slice(&blob(&archive, &manifest["config"])?)?;
        ensure!(config["config"]["User"] == "65532:65532", "{config}");

        let place = WorkDir::new()?;
        let layer = place.write("layer.tar.gz", blob(&archive, &manifest["layers"][0])?)?;
        let listed = listed(&layer)?;
        for (file, bytes) in [
            ("etc/passwd", 10),
            ("etc/ssl/certs/ca-certificates.crt", 100_000),
            ("licenses/LICENSE", 1_000),
            ("licenses/NOTICE", 10),
            ("licenses/THIRD-PARTY.txt", 10_000),
            ("sbom.cdx.json", 10_000),
            ("usr/local/bin/manifold", 1_000_000),
            ("usr/local/bin/kube-controller-manager", 0),
        ] {
            let size = listed.get(file).with_context(|| format!("no {file}"))?;
            ensure!(*size >= bytes, "{file} has {size} bytes");
        }
        let program = tar(&["-xO", "usr/local/bin/manifold"], &layer)?;
        ensure!(
            names_an_interpreter(&program) == Some(false),
            "the program is not static"
        );
        let root = workspace_root().display().to_string();
        for place in [root.as_str(), "/.cargo/registry"] {
            let found = program
                .windows(place.len())
                .any(|window| window == place.as_bytes());
            ensure!(!found, "the program says {place}");
        }
        let materials: Value = serde_json::from_slice(&tar(&["-xO", "sbom.cdx.json"], &layer)?)?;
        let components = materials["components"].as_array().context("components")?;
        for wanted in ["kube", "tonic", "rustls", "actix", "consistent_hash"] {
            let known = components.iter().any(|one| one["name"] == wanted);
            ensure!(known, "{wanted} is not in the bill of materials");
        }
        let size = std::fs::read(&archive)?.len();
        println!(
            "image: {:.1} MB, the program {:.1} MB, {} crates",
            size as f64 / 1e6,
            program.len() as f64 / 1e6,
            components.len()
        );
        ensure!(size <= MEGABYTES_MAX * 1_000_000, "{size} bytes");
        Ok(())
    };
    check().expect("an image that is complete");
}

#[test]
#[ignore = "half an hour: cargo image --reproduce"]
fn two_builds_of_the_tree_have_one_digest() {
    let check = || -> Result<()> {
        let options = Options::new(Profile::Dist)?;
        let place = WorkDir::new()?;
        let root = place.file("elsewhere");
        image::copy_sources(&root)?;
        let other = Options {
            target: place.file("built"),
            root,
            ..options.clone()
        };
        let (one, two) = (image::build(&options)?, image::build(&other)?);
        ensure!(
            one.digest == two.digest && one.bytes == two.bytes,
            "{} and {}",
            one.digest,
            two.digest
        );
        Ok(())
    };
    check().expect("equal digests");
}

#[test]
fn a_dynamic_program_is_known_by_its_interpreter() {
    let mut program = vec![0_u8; 64 + 2 * 56];
    program[..6].copy_from_slice(b"\x7fELF\x02\x01");
    program[32] = 64;
    program[54] = 56;
    program[56] = 2;
    assert_eq!(names_an_interpreter(&program), Some(false));
    program[64 + 56] = 3;
    assert_eq!(names_an_interpreter(&program), Some(true));
    assert_eq!(names_an_interpreter(b"#!/bin/sh"), None);
}
