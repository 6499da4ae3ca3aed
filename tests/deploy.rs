//! `deploy/` is accepted by the API server as it stands, and the generated files are fresh.

use std::process::Command;

use anyhow::ensure;
use harness::{ControlPlane, run_test, workspace_root};

use crate::support::beside;

/// What `kubectl apply` is told, relative to `deploy/`.
const APPLIED: &[[&str; 2]] = &[
    ["-k", "rbac"],
    ["-k", "fence"],
    ["-k", "base"],
    ["-k", "overlays/five"],
    ["-f", "static-pod/manifold.yaml"],
];

#[test]
fn the_server_accepts_everything_in_deploy() {
    let _beside = beside();
    run_test(async {
        let control_plane = ControlPlane::builder().nodes(1).start().await?;
        // Admission wants the account of a pod to be there; in a cluster a controller has made it.
        control_plane
            .kubectl(&["-n", "kube-system", "create", "serviceaccount", "default"])
            .await?;
        let deploy = workspace_root().join("deploy");
        for [flag, path] in APPLIED {
            let path = deploy.join(path).display().to_string();
            let said = control_plane
                .kubectl(&["apply", "--dry-run=server", flag, &path])
                .await?;
            let objects = said.lines().count();
            ensure!(
                objects > 0 && said.lines().all(|line| line.contains("(server dry run)")),
                "{said}"
            );
            println!("deploy: {flag} {objects} objects accepted");
        }
        // Every folder of manifests is one of those above.
        for entry in std::fs::read_dir(&deploy)?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let applied = APPLIED
                .iter()
                .any(|[_, path]| path.split('/').next() == Some(&name));
            ensure!(
                applied || !entry.path().is_dir(),
                "nobody applies deploy/{name}"
            );
        }
        Ok(())
    });
}

/// Renew with `UPDATE_GENERATED=1 cargo test -p tests generated`.
#[test]
fn generated_files_are_fresh() {
    let registry = node::registry::all();
    let root = workspace_root();
    let readme = root.join("controllers/README.md");
    let document = std::fs::read_to_string(&readme).expect("controllers/README.md");
    let table = controllers_kit::readme::table(&registry);
    let filled = controllers_kit::readme::fill(&document, &table).expect("the table has its place");
    let files = [
        (readme, filled),
        (
            root.join("deploy/rbac/controllers.yaml"),
            controllers_kit::rbac::manifest(&registry),
        ),
        (
            root.join("deploy/fence/accounts.yaml"),
            controllers_kit::rbac::impersonated(&registry, coordinator::PROBE_ACCOUNT),
        ),
    ];
    for (path, wanted) in files {
        if std::env::var_os("UPDATE_GENERATED").is_some() {
            std::fs::write(&path, &wanted).expect("written");
        }
        assert!(
            std::fs::read_to_string(&path).expect("read") == wanted,
            "{} is stale: UPDATE_GENERATED=1 cargo test -p tests generated",
            path.display()
        );
    }
}

/// The image is built from the workspace as it is: what the Containerfile copies and builds must exist.
#[test]
fn the_containerfile_builds_the_program_there_is() {
    let text = std::fs::read_to_string(workspace_root().join("deploy/Containerfile"))
        .expect("deploy/Containerfile");
    assert!(text.contains("--bin manifold"), "{text}");
    let tracked = Command::new("git")
        .current_dir(workspace_root())
        .args(["ls-files", "Cargo.lock"])
        .output()
        .expect("git");
    assert!(
        !tracked.stdout.is_empty(),
        "--locked needs Cargo.lock in the tree"
    );
}

/// The entries of a list of strings in a TOML file, in order.
fn toml_list(text: &str, name: &str) -> Vec<String> {
    text.split_once(&format!("\n{name} = ["))
        .and_then(|(_, rest)| rest.split_once("\n]"))
        .map(|(list, _)| list)
        .unwrap_or_default()
        .split('"')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

/// `cargo about` must not fail in the image's build for a licence that `cargo verify` lets in.
#[test]
fn the_image_accepts_the_licences_that_cargo_deny_accepts() {
    let read = |path: &str| std::fs::read_to_string(workspace_root().join(path)).expect("readable");
    let allowed = toml_list(&read("deny.toml"), "allow");
    assert!(allowed.contains(&"MIT".to_owned()), "{allowed:?}");
    assert_eq!(toml_list(&read("deploy/about.toml"), "accepted"), allowed);
}

#[test]
fn the_image_carries_the_licences_of_what_is_linked_in() {
    let containerfile = std::fs::read_to_string(workspace_root().join("deploy/Containerfile"))
        .expect("deploy/Containerfile");
    for file in ["LICENSE", "NOTICE", "licenses.txt"] {
        let copied = containerfile
            .lines()
            .any(|line| line.starts_with("COPY --from=build") && line.contains(file));
        assert!(copied, "{file} is not in the image:\n{containerfile}");
    }
    for file in ["LICENSE", "NOTICE", "SECURITY.md"] {
        assert!(workspace_root().join(file).is_file(), "no {file}");
    }
}
