//! The configuration file on a real control plane: a replica from a file alone is the one that flags start,
//! what changes in the file takes effect or waits for a restart, and upstream's `/configz` is read and
//! written alike.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Output;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::fleet::{Profile, READY_LIMIT, binary};
use harness::process::WorkDir;
use harness::programs::{Program, Programs};
use harness::{ControlPlane, Fleet, Replica, run_test, until, workspace_root};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use kube::api::ListParams;
use kube::{Api, ResourceExt as _};
use node_options::args::{self, Parsed, Values};
use node_options::config::File;
use node_options::{Options, Surroundings};
use serde::Deserialize as _;
use serde_json::Value;

use crate::alone::steering::{CONTROLLER, done, steerer, workers};
use crate::support::{POLL, beside, complete, create, deployment};

/// A file is read every ten seconds.
const READ_WITHIN: Duration = Duration::from_secs(20);
/// What a process may take for an answer on a busy machine.
const ANSWER: Duration = Duration::from_secs(30);
const GROUP: &str = "kubecontrollermanager.config.k8s.io";

/// Flags of all kinds with values that are not the defaults.
const FLAGS: [&str; 14] = [
    "--controllers=*,-ttl,bootstrapsigner",
    "--concurrent-deployment-syncs=7",
    "--min-resync-period=11h",
    "--horizontal-pod-autoscaler-tolerance=0.2",
    "--large-cluster-size-threshold=51",
    "--feature-gates=MaxUnavailableStatefulSet=false",
    "--node-monitor-grace-period=1m2s",
    "--tls-min-version=VersionTLS13",
    "--vmodule=range=1",
    "--disabled-metrics=process_open_fds",
    "--authorization-always-allow-paths=/healthz,/readyz,/livez",
    "--lease-duration=6s",
    "--expected-replicas=1",
    "--terminated-pod-gc-threshold=0",
];

/// What a replica says of its options, its ports left out.
async fn said(replica: &Replica) -> Result<(Value, Vec<String>)> {
    let port = replica.url();
    let (_, port) = port.rsplit_once(':').context("a port")?;
    let bare = |text: String| {
        text.replace(port, "SECURE")
            .replace(&replica.peer_port().to_string(), "PEER")
    };
    let configz: Value = serde_json::from_str(&replica.text("/configz").await?)?;
    let configz = serde_json::from_str(
        &bare(configz.to_string())
            .replace(":SECURE", ":\"SECURE\"")
            .replace("\"port\":PEER", "\"port\":\"PEER\""),
    )?;
    let flagz = bare(replica.text("/flagz").await?);
    let flags = flagz.lines().filter(|line| !line.starts_with("config="));
    Ok((configz, flags.map(str::to_owned).collect()))
}

async fn fleet(control_plane: &ControlPlane) -> Result<Fleet> {
    let mut builder = control_plane.fleet();
    for flag in FLAGS {
        builder = builder.arg(flag);
    }
    builder.build().await
}

#[test]
fn a_replica_from_a_file_alone_is_the_one_that_flags_start() {
    let _beside = beside();
    run_test(async {
        let control_plane = ControlPlane::builder().nodes(2).start().await?;
        let mut fleet = fleet(&control_plane).await?;
        let mut replica = fleet.start(0)?;
        replica.wait_ready(READY_LIMIT).await?;
        let by_flags = said(&replica).await?;
        ensure!(replica.terminate(ANSWER).await?.success());

        fleet.set_by_file(true);
        let mut replica = fleet.start(0)?;
        replica.wait_ready(READY_LIMIT).await?;
        let by_file = said(&replica).await?;
        ensure!(
            by_flags.0 == by_file.0,
            "{:#}\n\n{:#}",
            by_flags.0,
            by_file.0
        );
        ensure!(
            by_flags.1 == by_file.1,
            "{:?}\n\n{:?}",
            by_flags.1,
            by_file.1
        );
        let written = std::fs::read_to_string(fleet.config_file(replica.name()))?;
        println!(
            "config: {} flags in {} lines of a file, /configz of {} bytes is the same",
            by_flags.1.len(),
            written.lines().count(),
            by_file.0.to_string().len()
        );

        // It works.
        let namespace = control_plane.namespace("config").await?;
        let api: Api<Deployment> = Api::namespaced(control_plane.client().await?, &namespace);
        create(&api, deployment("web", 5)).await?;
        complete(&api, "web", 5).await?;
        ensure!(replica.terminate(ANSWER).await?.success());
        Ok(())
    });
}

/// Waits until what a replica serves at a path has this in it.
async fn shows(replica: &Replica, path: &str, part: &str) -> Result<Duration> {
    let since = Instant::now();
    until(
        &format!("{path} shows {part:?}"),
        READ_WITHIN,
        POLL * 4,
        || async {
            let text = replica.text(path).await?;
            ensure!(text.contains(part), "{text}");
            Ok(Some(()))
        },
    )
    .await?;
    Ok(since.elapsed())
}

#[test]
fn what_changes_in_the_file_takes_effect_or_waits_for_a_restart() {
    let _beside = beside();
    run_test(async {
        let control_plane = ControlPlane::builder().start().await?;
        let mut fleet = fleet(&control_plane).await?;
        fleet.set_by_file(true);
        let mut replica = fleet.start(0)?;
        replica.wait_ready(READY_LIMIT).await?;
        let file = fleet.config_file(replica.name());
        let before = std::fs::read_to_string(&file)?;
        let change = |from: &str, to: &str| {
            ensure!(before.contains(from), "no {from:?} in {before}");
            std::fs::write(&file, before.replace(from, to))?;
            Ok(())
        };

        change(
            "ConcurrentDeploymentSyncs: 7",
            "ConcurrentDeploymentSyncs: 9",
        )?;
        let took = shows(&replica, "/flagz", "concurrent-deployment-syncs=9\n").await?;
        println!("config: a number of workers was in force after {took:.1?}");
        ensure!(
            !replica
                .text("/readyz?verbose")
                .await?
                .contains("configuration file")
        );

        change("ranges: 256", "ranges: 128")?;
        shows(
            &replica,
            "/readyz?verbose",
            "these fields need a restart: fleet.ranges",
        )
        .await?;
        let metrics = replica.text("/metrics").await?;
        ensure!(
            metrics.contains("manifold_config_pending_fields 1\n"),
            "{metrics}"
        );
        // What is in force is what the process works with.
        ensure!(replica.text("/flagz").await?.contains("\nranges=256\n"));
        ensure!(
            replica
                .text("/flagz")
                .await?
                .contains("concurrent-deployment-syncs=7\n")
        );

        change("ranges: 256", "ranges: 100")?;
        let refused = format!("{}:", file.display());
        shows(
            &replica,
            "/readyz?verbose",
            "is refused, what was read before stays in force",
        )
        .await?;
        let ready = replica.text("/readyz?verbose").await?;
        ensure!(
            ready.contains(&refused)
                && ready.contains("fleet.ranges: --ranges must be a power of two"),
            "{ready}"
        );

        std::fs::write(&file, &before)?;
        until(
            "nothing is said of the file",
            READ_WITHIN,
            POLL * 4,
            || async {
                ensure!(
                    !replica
                        .text("/readyz?verbose")
                        .await?
                        .contains("configuration file")
                );
                Ok(Some(()))
            },
        )
        .await?;
        let log = std::fs::read_to_string(replica.log())?;
        for (part, count) in [
            (
                "has changed, in force now: DeploymentController.ConcurrentDeploymentSyncs",
                2,
            ),
            ("these fields need a restart: fleet.ranges", 1),
            ("is refused, what was read before stays in force", 1),
        ] {
            let found = log.lines().filter(|line| line.contains(part)).count();
            ensure!(found == count, "{found} times {part:?}: {log}");
        }
        ensure!(replica.terminate(ANSWER).await?.success());
        Ok(())
    });
}

/// The file with other values of these fields, wherever in it they are.
fn with(text: &str, values: &[(&str, &str)]) -> Result<String> {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for (field, value) in values {
        let line = lines
            .iter_mut()
            .find(|line| line.trim_start().starts_with(&format!("{field}: ")));
        let line = line.with_context(|| format!("no {field} in {text}"))?;
        let indent = line.len() - line.trim_start().len();
        *line = format!("{:indent$}{field}: {value}", "");
    }
    Ok(lines.join("\n") + "\n")
}

/// Deployments that are made to see how fast their controller writes.
const MADE: usize = 6;
/// Of a rate that holds nobody up.
const FAST: Duration = Duration::from_secs(10);

#[test]
fn an_order_goes_before_the_file_and_a_flag_too() {
    let _beside = beside();
    run_test(async {
        let control_plane = ControlPlane::builder().start().await?;
        let operator = steerer(&control_plane).await?;
        let mut fleet = fleet(&control_plane).await?;
        fleet.set_by_file(true);
        fleet.set_beside_file(&["--concurrent-job-syncs=6"]);
        let mut replica = fleet.start(0)?;
        replica.wait_ready(READY_LIMIT).await?;
        let file = fleet.config_file(replica.name());
        let before = std::fs::read_to_string(&file)?;
        let write = |values: &[(&str, &str)]| -> Result<()> {
            Ok(std::fs::write(&file, with(&before, values)?)?)
        };
        let has_workers = async |number: u64| {
            until("the number of workers", READ_WITHIN, POLL, || async {
                let found = workers(&operator, &replica).await?;
                Ok((found == BTreeSet::from([number])).then_some(()))
            })
            .await
            .with_context(|| format!("{number} workers"))
        };
        let log = || std::fs::read_to_string(replica.log());

        // A flag.
        let job = format!("{before}JobController:\n  ConcurrentJobSyncs: 4\n");
        std::fs::write(&file, job)?;
        until("the log names the flag", READ_WITHIN, POLL, || async {
            let part = "these flags go before it: --concurrent-job-syncs";
            Ok(log()?.contains(part).then_some(()))
        })
        .await?;
        let flagz = replica.text("/flagz").await?;
        ensure!(flagz.contains("\nconcurrent-job-syncs=6\n"), "{flagz}");

        // Workers: the file changes while an order holds.
        has_workers(7).await?;
        done(&operator, &replica, &["set", "workers", CONTROLLER, "3"]).await?;
        has_workers(3).await?;
        write(&[("ConcurrentDeploymentSyncs", "9")])?;
        shows(&replica, "/flagz", "concurrent-deployment-syncs=9\n").await?;
        has_workers(3).await?;
        let part = format!(
            "the workers of {CONTROLLER} stay 3 while an order says so; afterwards they are 9"
        );
        ensure!(log()?.contains(&part), "{part}");
        done(&operator, &replica, &["unset", "workers", CONTROLLER]).await?;
        has_workers(9).await?;
        // An order's end by time, over a file that has changed before it.
        write(&[("ConcurrentDeploymentSyncs", "8")])?;
        has_workers(8).await?;
        let words = ["set", "workers", CONTROLLER, "2", "--for", "5s"];
        done(&operator, &replica, &words).await?;
        has_workers(2).await?;
        has_workers(8).await?;

        // The rate: all may send one request a second, this controller as much as it wants.
        let namespace = control_plane.namespace("rate").await?;
        let client = control_plane.client().await?;
        let api: Api<Deployment> = Api::namespaced(client.clone(), &namespace);
        let sets: Api<ReplicaSet> = Api::namespaced(client, &namespace);
        let make = async |of: &str| {
            for index in 0..MADE {
                create(&api, deployment(&format!("{of}-{index}"), 0)).await?;
            }
            let since = Instant::now();
            until("each has a ReplicaSet", READY_LIMIT, POLL / 5, || async {
                let found = sets.list(&ListParams::default()).await?.items;
                let its = found.iter().filter(|set| set.name_any().starts_with(of));
                Ok((its.count() == MADE).then_some(()))
            })
            .await?;
            Ok::<_, anyhow::Error>(since.elapsed())
        };
        done(&operator, &replica, &["set", "qps", CONTROLLER, "1000"]).await?;
        until("the rate is set", READ_WITHIN, POLL, || async {
            let metrics = replica.text("/metrics").await?;
            Ok(metrics.contains("setting=\"qps\"} 1000").then_some(()))
        })
        .await?;
        write(&[("qps", "1"), ("burst", "1")])?;
        shows(&replica, "/flagz", "\nkube-api-qps=1\n").await?;
        let ordered = make("ordered").await?;
        ensure!(ordered < FAST, "{ordered:?}");
        done(&operator, &replica, &["unset", "qps", CONTROLLER]).await?;
        until("the order is over", READ_WITHIN, POLL, || async {
            let metrics = replica.text("/metrics").await?;
            Ok((!metrics.contains("setting=\"qps\"} 1000")).then_some(()))
        })
        .await?;
        let filed = make("filed").await?;
        ensure!(filed >= Duration::from_secs(MADE as u64 - 2), "{filed:?}");
        // What waits at the old rate goes at the new one.
        let since = Instant::now();
        std::fs::write(&file, &before)?;
        let last = make("last").await?;
        ensure!(since.elapsed() < READ_WITHIN + FAST, "{last:?}");
        println!(
            "config: {MADE} Deployments served by an order's rate after {ordered:.1?}, by the file's after {filed:.1?}"
        );
        ensure!(replica.terminate(ANSWER).await?.success());
        Ok(())
    });
}

fn no_flags() -> Result<Values> {
    match args::parse(args::flags(&node_registry::descriptors()), [""; 0])? {
        Parsed::Run(values) => Ok(values),
        Parsed::Print(text) => anyhow::bail!("prints {text}"),
    }
}

#[test]
fn what_upstream_answers_at_configz_is_read_and_answered_again() {
    let _beside = beside();
    run_test(async {
        let control_plane = ControlPlane::builder().start().await?;
        let flags = [
            "--controllers=*,bootstrapsigner,tokencleaner,-ttl-controller",
            "--service-cluster-ip-range=10.96.0.0/16,fd00::/108",
            "--kube-api-qps=20.5",
            "--concurrent-gc-syncs=21",
            "--node-eviction-rate=0.3",
            "--cluster-signing-duration=8h",
        ];
        let kcm = control_plane.start_kcm(&flags).await?;
        let configz: Value = serde_json::from_str(&kcm.text("/configz").await?)?;
        let mut theirs = configz[GROUP].clone();
        println!(
            "config: upstream's /configz has {} fields at its root, kind {} apiVersion {}",
            theirs.as_object().map_or(0, |map| map.len()),
            theirs["kind"],
            theirs["apiVersion"]
        );
        let file = File::parse("kcm", theirs.to_string().into_bytes(), no_flags()?.specs())?;
        let mut values = no_flags()?;
        values.beneath(file.settings().iter().cloned());
        let surroundings = Surroundings {
            host_name: "host".to_owned(),
            ..Surroundings::default()
        };
        let options = Options::new(values, &node_registry::descriptors(), &surroundings)?;
        let mut ours = options.configz()[GROUP].clone();
        // Theirs has another order after each start.
        for one in [&mut theirs, &mut ours] {
            let list = one.pointer_mut("/GarbageCollectorController/GCIgnoredResources");
            let list = list.and_then(Value::as_array_mut).context("a list")?;
            list.sort_by_key(Value::to_string);
        }
        ensure!(theirs == ours, "theirs: {theirs:#}\nours: {ours:#}");
        Ok(())
    });
}

/// What `docs/config.md` shows, block by block.
fn shown(language: &str) -> Result<Vec<String>> {
    let text = std::fs::read_to_string(workspace_root().join("docs/config.md"))?;
    let fence = format!("```{language}\n");
    let blocks = text.split(&fence).skip(1);
    Ok(blocks
        .filter_map(|rest| rest.split("```").next())
        .map(str::to_owned)
        .collect())
}

#[test]
fn the_overlay_that_the_docs_show_gives_each_pod_the_file() {
    let _beside = beside();
    run_test(async {
        let dir = WorkDir::new()?;
        let blocks = shown("yaml")?;
        let [file, overlay] = blocks.as_slice() else {
            anyhow::bail!("{} examples", blocks.len());
        };
        // kustomize takes relative folders alone.
        let up = "../".repeat(dir.path().components().count() - 1);
        let base = workspace_root().join("deploy/base");
        let base = format!("{up}{}", base.display().to_string().trim_start_matches('/'));
        dir.write("kustomization.yaml", overlay.replace("../base", &base))?;
        dir.write("manifold.yaml", file)?;
        let kubectl = Programs::obtain()?.path(Program::Kubectl);
        let output = tokio::process::Command::new(kubectl)
            .arg("kustomize")
            .arg(dir.path())
            .output()
            .await?;
        ensure!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let text = String::from_utf8(output.stdout)?;
        let mut objects = Vec::new();
        for document in serde_yaml::Deserializer::from_str(&text) {
            objects.push(Value::deserialize(document)?);
        }
        let of_kind = |kind: &str| {
            let found = objects.iter().find(|object| object["kind"] == kind);
            found.with_context(|| format!("a {kind}"))
        };
        let container = &of_kind("StatefulSet")?["spec"]["template"]["spec"]["containers"][0];
        let texts = |list: &Value, field: Option<&str>| -> Vec<String> {
            let items = list.as_array().into_iter().flatten();
            items
                .filter_map(|item| field.map_or(item, |field| &item[field]).as_str())
                .map(str::to_owned)
                .collect()
        };
        let flags = texts(&container["args"], None);
        let config = flags.iter().find_map(|flag| flag.strip_prefix("--config="));
        let config = config.context("--config")?;
        let mounts = texts(&container["volumeMounts"], Some("mountPath"));
        let folder = Path::new(config).parent().context("a folder")?;
        ensure!(
            mounts.iter().any(|mount| Path::new(mount) == folder),
            "{mounts:?}"
        );
        // A kubelet can't mount one volume within another that is read-only.
        for mount in &mounts {
            let inner = mounts
                .iter()
                .filter(|other| Path::new(other).starts_with(mount))
                .count();
            ensure!(inner == 1, "{mount} holds another of {mounts:?}");
        }
        let data = &of_kind("ConfigMap")?["data"]["manifold.yaml"];
        let data = data.as_str().context("the file")?.as_bytes().to_vec();
        File::parse("data", data, no_flags()?.specs())?;
        // What the pod is given beside goes with it.
        let manifest = serde_json::json!({"kind": "Pod", "spec": {"containers": [container]}});
        let manifest = dir.write("pod.json", manifest.to_string())?;
        let said = run(&["config", "validate", &manifest.display().to_string()]).await?;
        ensure!(said.status.success(), "{:?}", lines(&said.stderr));
        Ok(())
    });
}

/// Runs the program to its end.
async fn run(args: &[&str]) -> Result<Output> {
    let binary = tokio::task::spawn_blocking(|| binary(Profile::of_this_build())).await??;
    let output = tokio::process::Command::new(binary)
        .args(args)
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(ANSWER, output).await;
    Ok(output.with_context(|| format!("{args:?} had not ended after {ANSWER:?}"))??)
}

fn lines(bytes: &[u8]) -> Vec<String> {
    String::from_utf8_lossy(bytes)
        .lines()
        .map(str::to_owned)
        .collect()
}

#[test]
fn a_file_that_is_wrong_is_refused_at_the_start_and_by_the_command() {
    let _beside = beside();
    run_test(async {
        let dir = WorkDir::new()?;
        let head = format!("apiVersion: {}\nkind: {}\n", args::API_VERSION, args::KIND);
        let path = |path: &Path| path.display().to_string();
        let wrong = path(&dir.write("wrong.yaml", format!("{head}fleet:\n  ranges: 100\n"))?);
        let unknown = path(&dir.write("unknown.yaml", format!("{head}fleet:\n  rangs: 64\n"))?);
        let bomb: String = std::iter::once("a0: &a0 [x]\n".to_owned())
            .chain((1..60).map(|n| format!("a{n}: &a{n} [*a{0}, *a{0}]\n", n - 1)))
            .collect();
        let bomb = path(&dir.write("bomb.yaml", bomb)?);
        let bytes = path(&dir.write("bytes.yaml", b"a: \xff\n")?);
        let fine = path(&dir.write("fine.yaml", format!("{head}fleet: {{ranges: 64}}\n"))?);
        for (file, wanted) in [
            (
                &wrong,
                format!(
                    "{wrong}:4: fleet.ranges: --ranges must be a power of two from 1 to 4096, but is 100"
                ),
            ),
            (
                &unknown,
                format!("{unknown}:4: fleet.rangs: there is no such field (did you mean ranges?)"),
            ),
            (&bomb, format!("{bomb}:")),
            (&bytes, format!("{bytes}:1: is not UTF-8")),
        ] {
            let config = format!("--config={file}");
            let started = run(&[&config]).await?;
            let said = lines(&started.stderr);
            println!("config: {said:?}");
            ensure!(!started.status.success() && said.len() == 1, "{said:?}");
            ensure!(
                said[0].starts_with(&format!("manifold: {wanted}")),
                "{said:?}"
            );
            let checked = run(&["config", "validate", file]).await?;
            ensure!(checked.status.code() == Some(1), "{}", checked.status);
            let said = lines(&checked.stderr);
            ensure!(
                said[0].starts_with(&format!("manifold config: {wanted}")),
                "{said:?}"
            );
        }
        let checked = run(&["config", "validate", &fine]).await?;
        ensure!(checked.status.success());
        ensure!(lines(&checked.stdout) == [format!("{fine}: valid, fields given: 1")]);
        let differs = run(&["config", "diff", &fine]).await?;
        ensure!(differs.status.code() == Some(1), "{}", differs.status);
        ensure!(lines(&differs.stdout)[1].starts_with("fleet.ranges"));
        let schema = run(&["config", "schema"]).await?;
        let schema: Value = serde_json::from_slice(&schema.stdout)?;
        ensure!(schema["properties"]["fleet"]["properties"]["ranges"]["default"] == 256);
        for words in [
            &["config"][..],
            &["config", "frobnicate"],
            &["config", "validate", "/absent"],
        ] {
            let output = run(words).await?;
            ensure!(
                output.status.code() == Some(2),
                "{words:?}: {}",
                output.status
            );
        }
        let help = run(&["config", "--help"]).await?;
        ensure!(help.status.success() && lines(&help.stdout).len() > 5);
        Ok(())
    });
}
