//! `kubectl manifold` as an operator uses it: what blocks a workload is found with `explain` alone, through
//! any replica, and with the operator's own rights.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::{ControlPlane, Replica, run_test, until, workspace_root};
use serde_json::{Value, json};

use crate::support::{PATIENCE, POLL, beside, fleet};

const REPLICAS: usize = 2;
/// A planted fault is found within this time.
const FOUND_WITHIN: Duration = Duration::from_secs(60);
/// What must be in no archive.
const PLANTED: &str = "c2VjcmV0LW9mLXRoZS1wbGFudA";

/// What a command has printed.
pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// The plugin, with somebody's credentials.
pub(crate) struct Plugin {
    binary: PathBuf,
    kubeconfig: PathBuf,
    authority: PathBuf,
}

impl Plugin {
    async fn new(control_plane: &ControlPlane, kubeconfig: &Path) -> Result<Self> {
        let binary = tokio::task::spawn_blocking(|| {
            let profile = harness::fleet::Profile::of_this_build();
            harness::fleet::program("kubectl-manifold", profile)
        });
        Ok(Self {
            binary: binary.await??,
            kubeconfig: kubeconfig.to_owned(),
            authority: control_plane.ca_file(),
        })
    }

    /// The program with what it needs to reach a server; it ends with what is made of it.
    pub(crate) fn command(&self, server: &str) -> tokio::process::Command {
        let mut command = tokio::process::Command::new(&self.binary);
        command
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .args(["--server", server])
            .arg("--certificate-authority")
            .arg(&self.authority)
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    pub(crate) async fn run(&self, replica: &Replica, words: &[&str]) -> Result<Said> {
        let output = self
            .command(&replica.url())
            .args(words)
            .output()
            .await
            .context("kubectl manifold")?;
        Ok(Said {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }

    pub(crate) async fn json(&self, replica: &Replica, words: &[&str]) -> Result<Value> {
        let words = [words, &["-o", "json"]].concat();
        let said = self.run(replica, &words).await?;
        serde_json::from_str(&said.out)
            .with_context(|| format!("{words:?}: {} {}", said.out, said.err))
    }

    /// Runs `explain` until it names what blocks; prints it as it was found, and how long that took.
    async fn finds(
        &self,
        replica: &Replica,
        object: &str,
        namespace: &str,
        parts: &[&str],
    ) -> Result<()> {
        let begun = Instant::now();
        let words = ["explain", object, "-n", namespace];
        let what = format!("{object} is explained");
        let found = until(&what, FOUND_WITHIN, POLL, || async {
            let said = self.run(replica, &words).await?;
            let missing = parts.iter().find(|part| !said.out.contains(**part));
            ensure!(
                missing.is_none(),
                "no {missing:?} in {}{}",
                said.out,
                said.err
            );
            Ok(Some(said))
        });
        let said = found.await?;
        ensure!(said.code == 0, "exit code {}", said.code);
        println!(
            "$ kubectl manifold {}   # asked of {}, found after {:.1?}\n{}",
            words.join(" "),
            replica.name(),
            begun.elapsed(),
            said.out
        );
        Ok(())
    }
}

fn deployment(replicas: u32) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "app", "image": "example/app:1"}]},
            },
        },
    })
}

async fn apply(control_plane: &ControlPlane, namespace: &str, object: &Value) -> Result<()> {
    let args = ["apply", "-n", namespace];
    control_plane
        .kubectl_with_input(&args, &object.to_string())
        .await?;
    Ok(())
}

/// A namespace in which pods can be made.
async fn namespace(control_plane: &ControlPlane, prefix: &str) -> Result<String> {
    let namespace = control_plane.namespace(prefix).await?;
    let args = ["-n", &namespace, "get", "serviceaccount", "default"];
    until("there is an account", PATIENCE, POLL, || async {
        Ok(control_plane.kubectl(&args).await.ok())
    })
    .await?;
    Ok(namespace)
}

/// A quota that lets one pod in.
async fn exhaust_a_quota(control_plane: &ControlPlane) -> Result<String> {
    let namespace = namespace(control_plane, "quota").await?;
    let quota = json!({
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "few"},
        "spec": {"hard": {"pods": "1"}},
    });
    apply(control_plane, &namespace, &quota).await?;
    let args = [
        "-n",
        &namespace,
        "get",
        "quota",
        "few",
        "-o",
        "jsonpath={.status.hard.pods}",
    ];
    until("the quota is in force", PATIENCE, POLL, || async {
        let answer = control_plane.kubectl(&args).await?;
        Ok((answer == "1").then_some(()))
    })
    .await?;
    apply(control_plane, &namespace, &deployment(3)).await?;
    Ok(namespace)
}

/// A webhook behind which nobody listens.
async fn take_a_webhook_down(control_plane: &ControlPlane) -> Result<String> {
    let namespace = namespace(control_plane, "webhook").await?;
    let webhook = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "guard"},
        "webhooks": [{
            "name": "guard.example.com",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Fail",
            "timeoutSeconds": 2,
            "clientConfig": {"url": "https://127.0.0.1:1/"},
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
            "rules": [{
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "operations": ["CREATE"],
                "resources": ["pods"],
            }],
        }],
    });
    apply(control_plane, &namespace, &webhook).await?;
    apply(control_plane, &namespace, &deployment(2)).await?;
    Ok(namespace)
}

/// The job controller's account loses its rights.
async fn take_a_right_away(control_plane: &ControlPlane) -> Result<String> {
    let namespace = namespace(control_plane, "right").await?;
    let bindings = [
        "system:controller:job-controller",
        "manifold:controller:job-controller",
    ];
    for binding in bindings {
        let args = ["delete", "clusterrolebinding", binding];
        control_plane.kubectl(&args).await?;
    }
    let job = json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "pi"},
        "spec": {"template": {"spec": {
            "restartPolicy": "Never",
            "containers": [{"name": "app", "image": "example/app:1"}],
        }}},
    });
    apply(control_plane, &namespace, &job).await?;
    Ok(namespace)
}

/// The plugin of a user who has these ClusterRoles.
pub(crate) async fn user(
    control_plane: &ControlPlane,
    name: &str,
    roles: &[&str],
) -> Result<Plugin> {
    for role in roles {
        let args = [
            "create",
            "clusterrolebinding",
            &format!("{name}-{}", role.replace(':', "-")),
            &format!("--clusterrole={role}"),
            &format!("--user={name}"),
        ];
        control_plane.kubectl(&args).await?;
    }
    let identity = control_plane.authority().client(name, None)?;
    let kubeconfig = control_plane.kubeconfig_of(name, &identity)?;
    Plugin::new(control_plane, &kubeconfig).await
}

/// The archive is whole, and no secret is in it.
async fn dumps(plugin: &Plugin, replica: &Replica, dir: &Path) -> Result<()> {
    let file = dir.join("dump.tar.gz");
    let name = file.display().to_string();
    std::fs::create_dir_all(dir)?;
    let said = plugin.run(replica, &["dump", "--file", &name]).await?;
    ensure!(said.code == 0, "{}", said.err);
    let unpacked = dir.join("unpacked");
    std::fs::create_dir_all(&unpacked)?;
    let tar = tokio::process::Command::new("tar")
        .arg("-xzf")
        .arg(&file)
        .arg("-C")
        .arg(&unpacked)
        .status();
    ensure!(tar.await?.success(), "tar");
    let (mut files, mut bytes) = (0, 0);
    for folder in [
        unpacked.join("manifold-dump"),
        unpacked.join("manifold-dump/replica"),
    ] {
        for entry in std::fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() {
                continue;
            }
            let text = String::from_utf8_lossy(&std::fs::read(&path)?).into_owned();
            for secret in [PLANTED, "PRIVATE KEY", "Bearer ", "secret-of-the-plant"] {
                ensure!(!text.contains(secret), "{} has {secret}", path.display());
            }
            files += 1;
            bytes += text.len();
        }
    }
    ensure!(files >= 9, "{files} files");
    println!("$ kubectl manifold dump   # {files} files, {bytes} bytes, none with a secret");
    Ok(())
}

#[test]
fn an_operator_finds_three_planted_faults_by_explain_alone() {
    let _beside = beside();
    run_test(async {
        let control_plane = ControlPlane::builder().nodes(1).start().await?;
        let roles = workspace_root().join("deploy/rbac/operators.yaml");
        let roles = roles.display().to_string();
        control_plane.kubectl(&["apply", "-f", &roles]).await?;
        let operator = user(&control_plane, "operator", &["view", "manifold:view-debug"]).await?;
        let stranger = user(&control_plane, "stranger", &["manifold:view-debug"]).await?;
        let nobody = user(&control_plane, "nobody", &[]).await?;
        let fleet = fleet(&control_plane).await?;
        let replicas = fleet.start_all(REPLICAS).await?;

        let said = operator
            .run(&replicas[0], &["status", "--wait", "60s"])
            .await?;
        ensure!(
            said.code == 0 && said.out.contains("√ the fleet is well"),
            "{}{}",
            said.out,
            said.err
        );

        let quota = exhaust_a_quota(&control_plane).await?;
        let webhook = take_a_webhook_down(&control_plane).await?;
        let right = take_a_right_away(&control_plane).await?;
        let secret = json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "plant"},
            "stringData": {"password": "secret-of-the-plant"},
        });
        apply(&control_plane, &quota, &secret).await?;

        // Whichever replica owns the keys: each answers for all.
        for replica in &replicas {
            let parts = [
                "quota: resourcequotas",
                "/few",
                "remedy:   kubectl describe quota few",
            ];
            operator
                .finds(replica, "deployment/web", &quota, &parts)
                .await?;
            let parts = ["webhook-down: guard.example.com", "connect", "remedy:"];
            operator
                .finds(replica, "deploy/web", &webhook, &parts)
                .await?;
            let parts = [
                "missing-right: system:serviceaccount:kube-system:job-controller",
                "system:controller:job-controller",
            ];
            operator.finds(replica, "job/pi", &right, &parts).await?;
        }
        let answer = operator
            .json(&replicas[0], &["explain", "job/pi", "-n", &right])
            .await?;
        ensure!(answer["schema"] == "manifold.dev/explain/v1", "{answer}");
        let key = &answer["keys"][0];
        ensure!(
            key["blocker"]["kind"] == "missing-right" && key["attempts"][0]["code"] == 403,
            "{key}"
        );

        for (words, part) in [
            (
                &["history", "job/pi", "-n", &right][..],
                "resource \"pods\" in API group",
            ),
            (&["history"], "webhook-down guard.example.com"),
            (&["top"], "replicaset-controller"),
            (&["shards"], "manifold-1"),
            (&["shards", "-o", "wide"], "active"),
            (&["status", "-o", "yaml"], "well: true"),
        ] {
            let said = operator.run(&replicas[1], words).await?;
            ensure!(
                said.code == 0 && said.out.contains(part),
                "{words:?}: {}{}",
                said.out,
                said.err
            );
            if !words.contains(&"-o") {
                println!("$ kubectl manifold {}\n{}", words.join(" "), said.out);
            }
        }
        // A range on its way from one to the other is nobody's for a moment.
        until("all ranges are in it", PATIENCE, POLL, || async {
            let top = operator.json(&replicas[0], &["top"]).await?;
            let ranges = top["ranges"].as_array();
            Ok(ranges.filter(|all| all.len() == 256).map(|_| ()))
        })
        .await?;
        dumps(&operator, &replicas[0], &control_plane.dir().file("dumped")).await?;

        // Never more than the caller's own rights.
        let said = stranger
            .run(&replicas[0], &["explain", "job/pi", "-n", &right])
            .await?;
        ensure!(
            said.code == 2 && said.err.contains("cannot get resource \"jobs\""),
            "{}{}",
            said.out,
            said.err
        );
        let top = stranger.json(&replicas[0], &["top"]).await?;
        ensure!(
            top["keys"] == json!([]) && top["hidden"].as_u64() > Some(0),
            "{top}"
        );
        let failing = stranger.json(&replicas[1], &["history"]).await?;
        ensure!(
            failing["keys"] == json!([]) && failing["hidden"].as_u64() > Some(0),
            "{failing}"
        );
        let said = nobody.run(&replicas[0], &["status"]).await?;
        ensure!(
            said.code == 2 && said.err.contains("manifold:view-debug"),
            "{}{}",
            said.out,
            said.err
        );

        // Repaired, the key recovers, and its history says so.
        control_plane
            .kubectl(&["delete", "quota", "few", "-n", &quota])
            .await?;
        until("the history has the recovery", PATIENCE, POLL, || async {
            let said = operator
                .run(&replicas[0], &["history", "-n", &quota])
                .await?;
            ensure!(
                said.out.contains("it has recovered"),
                "{}{}",
                said.out,
                said.err
            );
            Ok(Some(()))
        })
        .await?;
        Ok(())
    });
}
