//! `deploy/` is accepted by the API server as it is, and the generated files are fresh.

use std::collections::BTreeMap;

use anyhow::{Context, ensure};
use harness::programs::{Program, Programs};
use harness::{ControlPlane, run_test, until, workspace_root};
use serde::Deserialize;
use serde_json::Value;

use crate::alerts::rules;
use crate::support::{PATIENCE, POLL, beside};

/// What `kubectl apply` is given, relative to `deploy/`.
const APPLIED: &[[&str; 2]] = &[
    ["-k", "rbac"],
    ["-k", "fence"],
    ["-k", "base"],
    ["-k", "shadow"],
    ["-k", "overlays/autoscaled"],
    ["-k", "overlays/five"],
    ["-k", "overlays/jaeger"],
    ["-k", "overlays/mixed"],
    ["-k", "overlays/from-kube-system"],
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
        // A dry run makes no namespace for what follows it.
        let namespace = deploy.join("shadow/namespace.yaml").display().to_string();
        control_plane.kubectl(&["apply", "-f", &namespace]).await?;
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
        // Every folder of manifests is one of those above; kubeadm's patches and krew's manifest are no
        // objects, and the chart has a test of its own.
        for entry in std::fs::read_dir(&deploy)?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let applied = APPLIED
                .iter()
                .any(|[_, path]| path.split('/').next() == Some(&name));
            ensure!(
                applied
                    || ["helm", "kubeadm", "kubectl"].contains(&name.as_str())
                    || !entry.path().is_dir(),
                "nobody applies deploy/{name}"
            );
        }
        Ok(())
    });
}

/// Folders of `deploy` whose manifests the chart has copies of, for a chart can't read beyond its own folder.
const CHARTED: [(&str, &str); 5] = [
    ("rbac", "rbac"),
    ("base", "base"),
    ("fence", "fence"),
    ("overlays/monitoring", "monitoring"),
    ("overlays/monitoring/dashboards", "monitoring/dashboards"),
];
/// The release's namespace is Helm's to make.
const NOT_CHARTED: [&str; 2] = ["kustomization.yaml", "namespace.yaml"];

/// The chart's copies: where each is, and what it must hold.
fn charted() -> Vec<(std::path::PathBuf, String)> {
    let deploy = workspace_root().join("deploy");
    let mut files = Vec::new();
    for (folder, copy) in CHARTED {
        for entry in std::fs::read_dir(deploy.join(folder)).expect("a folder") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().expect("a name").to_string_lossy();
            let is_charted = name.ends_with(".yaml") || name.ends_with(".json");
            if is_charted && !NOT_CHARTED.contains(&name.as_ref()) {
                let text = match path.ends_with(rules::OBJECT) {
                    true => rules::object(),
                    false => std::fs::read_to_string(&path).expect("a manifest"),
                };
                let copy = format!("helm/manifold/files/{copy}/{name}");
                files.push((deploy.join(copy), text));
            }
        }
    }
    files
}

/// What a program prints; an error with what it complains of.
fn printed(program: &std::path::Path, arguments: &[&str]) -> anyhow::Result<String> {
    let output = std::process::Command::new(program)
        .current_dir(workspace_root().join("deploy"))
        .args(arguments)
        .output()
        .with_context(|| format!("starting {}", program.display()))?;
    ensure!(
        output.status.success(),
        "{} {}: {}{}",
        program.display(),
        arguments.join(" "),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8(output.stdout)?)
}

/// The objects of a text of manifests, by kind, namespace and name.
fn objects(text: &str) -> anyhow::Result<BTreeMap<String, Value>> {
    let mut objects = BTreeMap::new();
    for document in serde_yaml::Deserializer::from_str(text) {
        let object = Value::deserialize(document)?;
        if object.is_null() {
            continue;
        }
        let part = |pointer: &str| {
            object
                .pointer(pointer)
                .and_then(Value::as_str)
                .unwrap_or("")
        };
        let name = ["/kind", "/metadata/namespace", "/metadata/name"]
            .map(part)
            .join(" ");
        ensure!(
            objects.insert(name.clone(), object).is_none(),
            "{name} is there twice"
        );
    }
    Ok(objects)
}

/// The chart with other values than its own, and what must be seen of them.
const VALUES: &[(&[&str], &[&str], &[&str])] = &[
    (&["replicas=5"], &["replicas: 5"], &[]),
    (
        &[
            "image.repository=registry.example.com/manifold",
            "image.tag=1.2.3",
        ],
        &["image: registry.example.com/manifold:1.2.3"],
        &["localhost/"],
    ),
    (
        &["keys.enabled=false", "controllers=*"],
        &["--controllers=*\n"],
        &["/etc/manifold/keys", "manifold-keys"],
    ),
    (
        &["tracing.endpoint=http://collector:4317"],
        &[
            "value: http://collector:4317",
            "value: parentbased_traceidratio",
        ],
        &[],
    ),
    (&["fence.enabled=true"], &["name: fences.manifold.dev"], &[]),
    (
        &["networkPolicy.hosts={10.0.0.0/24}"],
        &["cidr: 10.0.0.0/24"],
        &["0.0.0.0/0"],
    ),
    (
        &[
            "podDisruptionBudget.enabled=false",
            "networkPolicy.enabled=false",
        ],
        &["kind: StatefulSet"],
        &["kind: PodDisruptionBudget", "kind: NetworkPolicy"],
    ),
    (
        &[
            "monitoring.enabled=true",
            "monitoring.prometheus.namespace=watching",
        ],
        &[
            "kind: PrometheusRule",
            "namespace: watching",
            "grafana_dashboard: \"1\"",
            "controllers.json: |",
        ],
        &["namespace: monitoring"],
    ),
];

#[test]
#[ignore = "builds helm: cargo parity"]
fn the_chart_is_the_manifests_until_its_values_say_otherwise() {
    let _beside = beside();
    run_test(async {
        let helm = tokio::task::spawn_blocking(Programs::obtain_helm).await??;
        let helm = helm.path(Program::Helm);
        let control_plane = ControlPlane::builder().nodes(1).start().await?;
        let kubectl = control_plane.program(Program::Kubectl);
        control_plane
            .kubectl(&[
                "-n",
                "manifold-system",
                "create",
                "serviceaccount",
                "default",
            ])
            .await?;
        let chart = "helm/manifold";
        let said = printed(&helm, &["lint", "--strict", chart])?;
        println!("deploy: {}", said.lines().last().unwrap_or_default());
        // Built without the version that its releases are linked with.
        let version = control_plane.version();
        let render_in = |namespace: &str, values: &[&str]| {
            let template = ["template", "manifold", chart, "--kube-version", version];
            let values = values.iter().flat_map(|value| ["--set", *value]);
            let namespace = ["--namespace", namespace];
            let arguments = template.into_iter().chain(namespace).chain(values);
            printed(&helm, &arguments.collect::<Vec<_>>())
        };
        let render = |values: &[&str]| render_in("manifold-system", values);
        let mut wanted = objects(&printed(&kubectl, &["kustomize", "base"])?)?;
        wanted.retain(|name, _| !name.starts_with("Namespace "));
        let text = render(&[])?;
        let rendered = objects(&text)?;
        ensure!(
            rendered.keys().eq(wanted.keys()),
            "the chart has {:?}",
            rendered.keys()
        );
        for (name, object) in &wanted {
            ensure!(rendered[name] == *object, "{name}: {}", rendered[name]);
        }
        let dry_run = ["apply", "--dry-run=server"];
        control_plane.kubectl_with_input(&dry_run, &text).await?;
        for (values, seen, unseen) in VALUES {
            let text = render(values)?;
            for one in *seen {
                ensure!(text.contains(one), "{values:?}: no {one:?} in {text}");
            }
            for one in *unseen {
                ensure!(!text.contains(one), "{values:?}: {one:?} in {text}");
            }
            // Kinds of the Prometheus operator are not served here.
            if !text.contains("monitoring.coreos.com") {
                control_plane.kubectl_with_input(&dry_run, &text).await?;
            }
        }
        // Another namespace has everything of this one's but the controllers' accounts.
        let text = render(&[])?.replace("manifold-system", "elsewhere");
        ensure!(
            objects(&render_in("elsewhere", &[])?)? == objects(&text)?,
            "the namespace is not the release's everywhere"
        );
        for (value, said) in [
            ("replicas=many", "replicas"),
            ("image.pullPolicy=Sometimes", "pullPolicy"),
            ("replica=3", "replica"),
        ] {
            let refused = render(&[value]).expect_err("refused").to_string();
            ensure!(refused.contains(said), "{value}: {refused}");
        }
        Ok(())
    });
}

/// A Lease as a replica has it, or somebody's for leader election.
fn lease(name: &str, of_fleet: bool) -> String {
    let labels = if of_fleet {
        "{manifold.dev/fleet: manifold, manifold.dev/lease: replica}"
    } else {
        "{}"
    };
    format!(
        "{{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {{name: {name}, namespace: manifold-system, \
         labels: {labels}}}, spec: {{holderIdentity: {name}_1}}}}"
    )
}

#[test]
fn only_the_fleet_s_identities_and_administrators_write_the_fleet_s_leases() {
    const MAY_WRITE_LEASES: &str = "
{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: add-on, namespace: manifold-system},
 rules: [{apiGroups: [coordination.k8s.io], resources: [leases], verbs: ['*']}]}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: add-on, namespace: manifold-system},
 roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: add-on},
 subjects: [{kind: ServiceAccount, name: add-on, namespace: default}]}
";
    const ADD_ON: &str = "--as=system:serviceaccount:default:add-on";
    let _beside = beside();
    run_test(async {
        let control_plane = ControlPlane::builder().nodes(1).start().await?;
        control_plane.apply_text(MAY_WRITE_LEASES).await?;
        let create = async |name: &str, of_fleet: bool, who: &str| {
            control_plane
                .kubectl_with_input(&["create", who], &lease(name, of_fleet))
                .await
        };
        let kubectl = async |who: &str, args: &[&str]| {
            let args = [&["-n", "manifold-system", who][..], args].concat();
            control_plane.kubectl(&args).await
        };
        let refused = |what: &str, answer: anyhow::Result<String>| {
            let said = answer.unwrap_or_else(|error| format!("{error:#}"));
            ensure!(
                said.contains("belongs to a Manifold fleet"),
                "{what}: {said}"
            );
            anyhow::Ok(())
        };
        // The policy counts once the API server has read it.
        until("the guard is there", PATIENCE, POLL, || async {
            refused("create", create("taken", true, ADD_ON).await)?;
            Ok(Some(()))
        })
        .await?;
        for who in [
            "--as=system:kube-controller-manager",
            "--as=system:serviceaccount:manifold-system:manifold",
            "--as-group=system:masters",
        ] {
            let who: &[&str] = if who.starts_with("--as-group") {
                &["--as=somebody", who]
            } else {
                &[who]
            };
            let args = [&["create"][..], who].concat();
            control_plane
                .kubectl_with_input(&args, &lease("manifold-replica-a", true))
                .await?;
            let args = [
                who,
                &[
                    "-n",
                    "manifold-system",
                    "patch",
                    "lease",
                    "manifold-replica-a",
                ],
            ]
            .concat();
            let patch = [
                "--type=merge",
                "-p",
                r#"{"spec": {"holderIdentity": "b_2"}}"#,
            ];
            control_plane.kubectl(&[&args[..], &patch].concat()).await?;
            let args = [
                who,
                &[
                    "-n",
                    "manifold-system",
                    "delete",
                    "lease",
                    "manifold-replica-a",
                ],
            ]
            .concat();
            control_plane.kubectl(&args).await?;
        }
        control_plane
            .kubectl_with_input(&["create"], &lease("manifold-range-000", true))
            .await?;
        let take = r#"{"spec": {"holderIdentity": "me_1"}}"#;
        let unlabel = r#"{"metadata": {"labels": {"manifold.dev/fleet": null}}}"#;
        for patch in [take, unlabel] {
            let args = [
                "patch",
                "lease",
                "manifold-range-000",
                "--type=merge",
                "-p",
                patch,
            ];
            refused(patch, kubectl(ADD_ON, &args).await)?;
        }
        let delete = ["delete", "lease", "manifold-range-000"];
        refused("delete", kubectl(ADD_ON, &delete).await)?;
        // Others' Leases are others' business, until they get the fleet's label.
        create("election", false, ADD_ON).await?;
        let args = ["label", "lease", "election", "manifold.dev/fleet=manifold"];
        refused("label", kubectl(ADD_ON, &args).await)?;
        kubectl(ADD_ON, &["delete", "lease", "election"]).await?;
        // The namespace controller of either manager can end a namespace with a fleet in it.
        let controller = "--as=system:serviceaccount:kube-system:namespace-controller";
        kubectl(controller, &delete).await?;
        Ok(())
    });
}

/// Renew with `UPDATE_GENERATED=1 cargo test -p tests generated`.
#[test]
fn generated_files_are_fresh() {
    let registry = node_registry::all();
    let root = workspace_root();
    let readme = root.join("controllers/README.md");
    let document = std::fs::read_to_string(&readme).expect("controllers/README.md");
    let table = controllers_kit::readme::table(&registry);
    let filled = controllers_kit::readme::fill(&document, &table).expect("the table has its place");
    let mut files = vec![
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
    files.push((root.join(rules::OBJECT), rules::object()));
    files.extend(charted());
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

/// `cargo image` must not fail for a licence that `cargo verify` lets in.
#[test]
fn the_image_accepts_the_licences_that_cargo_deny_accepts() {
    let read = |path: &str| std::fs::read_to_string(workspace_root().join(path)).expect("readable");
    let allowed = toml_list(&read("deny.toml"), "allow");
    assert!(allowed.contains(&"MIT".to_owned()), "{allowed:?}");
    assert_eq!(toml_list(&read("deploy/about.toml"), "accepted"), allowed);
}
