//! The tree checks itself: dependencies between crates, features, the shape of a controller's folder,
//! the language of code and pages, and that nothing is left over. Each rule is a pure function from the
//! files to a list of complaints; here they run on the tree, beside them on inputs that break them.

mod circles;
mod controllers;
mod dependencies;
mod language;
mod leftovers;
mod lines;
mod manifests;
mod modules;
mod pages;
mod ratchets;
mod routes;
mod unused;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use cargo_metadata::{Metadata, MetadataCommand};

/// Every tracked or new file that is text, by its path from the root.
pub(crate) type Files = BTreeMap<String, String>;

fn root() -> PathBuf {
    harness::workspace_root()
}

fn metadata() -> Metadata {
    MetadataCommand::new()
        .manifest_path(root().join("Cargo.toml"))
        .other_options(vec!["--locked".to_owned()])
        .exec()
        .expect("cargo metadata")
}

/// The names of what git tracks or would track, with files deleted but not yet committed as such.
fn names() -> Vec<String> {
    let output = Command::new("git")
        .current_dir(root())
        .args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ])
        .output()
        .expect("git lists the files of the tree");
    assert!(
        output.status.success(),
        "git ls-files: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let names = String::from_utf8(output.stdout).expect("file names are UTF-8");
    names.split_terminator('\0').map(str::to_owned).collect()
}

/// The files of the tree by name; pictures are empty, and other binary files are left out.
fn files() -> Files {
    let files: Files = names()
        .into_iter()
        .filter_map(|name| match std::fs::read_to_string(root().join(&name)) {
            Ok(text) => Some((name, text)),
            Err(_) if name.ends_with(".png") => Some((name, String::new())),
            Err(_) => None,
        })
        .collect();
    assert!(
        files.contains_key("Cargo.toml"),
        "git lists no file of this workspace"
    );
    files
}

fn assert_none(complaints: &[String]) {
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

#[test]
fn crates_depend_on_nothing_but_what_the_table_allows() {
    assert_none(&dependencies::complaints(&dependencies::Crates::read(
        &metadata(),
    )));
}

#[test]
fn no_shipped_arithmetic_on_the_integers_of_others_overflows_in_silence() {
    let members: Vec<String> = metadata()
        .workspace_packages()
        .iter()
        .map(|package| package.name.to_string())
        .collect();
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).expect("a manifest");
    assert_none(&manifests::unchecked(&manifest, &members));
}

#[test]
fn versions_and_features_stand_in_the_root_manifest_alone() {
    let metadata = metadata();
    let members = metadata.workspace_packages().len();
    let manifests: Files = files()
        .into_iter()
        .filter(|(name, _)| name.ends_with("/Cargo.toml"))
        .collect();
    assert_eq!(
        manifests.len(),
        members,
        "every crate of the tree is a member"
    );
    assert_none(&manifests::complaints(&manifests));
}

#[test]
fn every_controller_has_its_shape_and_is_registered() {
    assert_none(&controllers::complaints(&files()));
}

#[test]
fn no_files_of_a_controller_use_each_other() {
    assert_none(&circles::complaints(&files()));
}

#[test]
fn every_public_item_is_named_somewhere() {
    assert_none(&unused::complaints(&files()));
}

#[test]
fn nothing_is_left_over() {
    assert_none(&leftovers::complaints(&files()));
}

#[test]
fn no_shipped_file_is_longer_than_what_somebody_reads() {
    assert_none(&lines::complaints(&files()));
}

#[test]
fn no_file_is_larger_than_what_somebody_reads() {
    // A package that was fetched beside the sources was committed with them once.
    const BYTES_MAX: u64 = 1 << 20;
    let large: Vec<String> = names()
        .into_iter()
        .filter(|name| {
            std::fs::metadata(root().join(name)).is_ok_and(|file| file.len() > BYTES_MAX)
        })
        .map(|name| {
            format!("{name} has more than {BYTES_MAX} bytes: what is fetched is not committed")
        })
        .collect();
    assert_none(&large);
}

#[test]
fn no_source_file_is_dead() {
    let metadata = metadata();
    let roots: Vec<String> = metadata
        .workspace_packages()
        .iter()
        .flat_map(|package| &package.targets)
        .filter_map(|target| {
            let path = Path::new(target.src_path.as_str());
            Some(
                path.strip_prefix(root())
                    .ok()?
                    .to_string_lossy()
                    .into_owned(),
            )
        })
        .collect();
    assert!(roots.iter().any(|path| path == "tests/lib.rs"), "{roots:?}");
    assert_none(&modules::complaints(&roots, &files()));
}

#[test]
fn the_private_dialect_and_wide_comments_only_shrink() {
    let files = files();
    let path = root().join(ratchets::FILE);
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    let counts = [
        (&language::WORDS, &language::dialect(&files)),
        (&language::WIDE, &language::wide_comments(&files)),
    ];
    let kept = match std::env::var_os("UPDATE_GENERATED") {
        Some(_) => {
            let renewed = ratchets::renewed(&kept, &counts);
            std::fs::write(&path, &renewed).expect("the ratchets are written");
            renewed
        }
        None => kept,
    };
    let complaints: Vec<String> = counts
        .iter()
        .flat_map(|(ratchet, found)| ratchet.complaints(&kept, found))
        .collect();
    assert_none(&complaints);
}

#[test]
fn pages_are_short_and_decisions_have_one_form() {
    assert_none(&pages::sizes(&files()));
}

#[test]
fn links_between_pages_lead_somewhere() {
    assert_none(&pages::links(&files()));
}

#[test]
fn code_that_pages_name_exists() {
    assert_none(&pages::names(&files()));
}

#[test]
fn the_routes_of_an_event_and_of_a_handoff_are_those_of_the_source() {
    assert_none(&routes::broken(&files()));
}
