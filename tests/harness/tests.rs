//! The harness under test: programs are built, a control plane comes up whole and goes away whole.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::Api;
use kube::api::{ListParams, PostParams};
use serde_json::json;

use crate::audit::{Agent, AuditLog, AuditRecord, Proof};
use crate::metrics::Metrics;
use crate::process::{Process, Spec, WorkDir, deciding_later};
use crate::programs::{Program, Source};
use crate::wait::until;
use crate::{ControlPlane, ports, run_test, toolchain};

const SOON: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(50);

/// Whether a process of this id runs; a dead one that nobody has waited for does not.
fn runs(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        !stat
            .rsplit(") ")
            .next()
            .is_some_and(|rest| rest.starts_with('Z'))
    })
}

fn sleeper(dir: &WorkDir, name: &str, script: &str) -> Result<Process> {
    Process::spawn(&Spec {
        name: name.to_owned(),
        program: "/bin/sh".into(),
        args: vec!["-c".to_owned(), script.to_owned()],
        env: Vec::new(),
        log: dir.file(&format!("{name}.log")),
    })
}

#[test]
fn a_control_plane_runs_a_pod_and_goes_away_without_a_trace() {
    run_test(runs_a_pod_and_goes_away());
}

async fn runs_a_pod_and_goes_away() -> Result<()> {
    let control_plane = ControlPlane::builder().nodes(3).start().await?;
    let mut second = ControlPlane::builder().nodes(1).start().await?;
    assert_ne!(control_plane.url(), second.url(), "two run side by side");
    second.check()?;

    let client = control_plane.client().await?;
    let version = client.apiserver_version().await?;
    assert_eq!(version.git_version, control_plane.version());

    // Nobody makes service accounts here, so the test does; admission asks for one.
    let namespace = control_plane.namespace("harness").await?;
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), &namespace);
    let account = serde_json::from_value(json!({"metadata": {"name": "default"}}))?;
    accounts.create(&PostParams::default(), &account).await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let pod = serde_json::from_value(json!({
        "metadata": {"name": "one"},
        "spec": {"containers": [{"name": "main", "image": "none"}]},
    }))?;
    pods.create(&PostParams::default(), &pod).await?;
    let running = until("the pod runs", SOON, POLL, || async {
        let pod = pods.get("one").await?;
        let phase = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        Ok((phase == Some("Running")).then_some(pod))
    })
    .await?;
    let node = running
        .spec
        .context("a spec")?
        .node_name
        .context("a node")?;
    assert!(node.starts_with("node-"), "bound to {node}");

    let names = control_plane
        .kubectl(&["get", "pods", "-n", &namespace, "-o", "name"])
        .await?;
    assert_eq!(names.trim(), "pod/one");
    let refused = control_plane
        .kubectl(&["get", "pods", "-n", &namespace, "two"])
        .await;
    assert!(format!("{:#}", refused.unwrap_err()).contains("NotFound"));

    let mut log = control_plane.audit();
    let created: Vec<_> = log
        .records()?
        .into_iter()
        .filter(|record| {
            record.verb == "create"
                && record.resource() == "pods"
                && record.object().namespace == namespace
        })
        .collect();
    assert_eq!(created.len(), 1, "{created:?}");
    assert_eq!(created[0].code(), Some(201));
    assert_eq!(created[0].user.username, "manifold-test-admin");
    assert!(created[0].is_write() && created[0].agent().is_none());

    // RBAC is on: a stranger reads nothing, the manager's user reads what upstream's may.
    let pods_as = |client| Api::<Pod>::namespaced(client, &namespace);
    let stranger = control_plane.client_as("nobody-knows-me", None).await?;
    assert!(pods_as(stranger).get("one").await.is_err());
    let manager = crate::kubeconfig::client(control_plane.manager_kubeconfig()).await?;
    let seen = pods_as(manager.clone())
        .list(&ListParams::default())
        .await?;
    assert_eq!(seen.items.len(), 1);
    assert!(
        pods_as(manager).get("one").await.is_err(),
        "single reads are its controllers' accounts'"
    );

    // Upstream's manager knows none of Manifold's flags, so as a replica it ends at once.
    let not_manifold = control_plane.program(Program::ControllerManager);
    let fleet = control_plane.fleet().binary(not_manifold).build().await?;
    let mut replica = fleet.start(0)?;
    let error = format!("{:#}", replica.wait_ready(SOON).await.unwrap_err());
    assert!(
        error.contains("manifold-0 ended early") && error.contains("unknown flag: --replica-name"),
        "{error}"
    );
    drop((fleet, replica));

    let children = control_plane.process_ids();
    assert!(children.len() == 4 && children.iter().all(|pid| runs(*pid)));
    drop(control_plane);
    assert!(!children.iter().any(|pid| runs(*pid)), "all parts are gone");
    second.check()?;
    Ok(())
}

#[test]
fn files_go_with_a_success_and_stay_with_a_failure() -> Result<()> {
    let after = |outcome: Result<()>| -> Result<(PathBuf, bool)> {
        let mut path = PathBuf::new();
        let result = deciding_later(|| {
            let dir = WorkDir::new()?;
            path = dir.path().to_owned();
            drop(dir);
            assert!(path.exists(), "not decided yet");
            outcome
        });
        Ok((path, result.is_ok()))
    };
    let (gone, passed) = after(Ok(()))?;
    assert!(passed && !gone.exists());
    let (kept, passed) = after(Err(anyhow!("a failure")))?;
    assert!(!passed && kept.join("KEPT").exists());
    std::fs::remove_dir_all(kept)?;

    let mut kept = PathBuf::new();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        deciding_later(|| -> Result<()> {
            kept = WorkDir::new()?.path().to_owned();
            panic!("on purpose");
        })
    }));
    assert!(panicked.is_err() && kept.join("KEPT").exists());
    std::fs::remove_dir_all(kept)?;
    Ok(())
}

/// Not a test by itself: the next one starts it in a process of its own and kills that.
#[test]
#[ignore = "runs until it is killed; started by another test"]
fn starts_children_and_waits_to_be_killed() -> Result<()> {
    let dir = WorkDir::new()?;
    let plain = sleeper(&dir, "plain", "sleep 600")?;
    let mut paused = sleeper(&dir, "paused", "sleep 600 & sleep 600")?;
    paused.pause()?;
    println!(
        "\nCHILDREN {} {} {}",
        plain.id(),
        paused.id(),
        dir.path().display()
    );
    std::thread::sleep(Duration::from_secs(600));
    Ok(())
}

#[tokio::test]
async fn children_and_files_go_when_this_process_is_killed() -> Result<()> {
    let mut victim = Command::new(std::env::current_exe()?)
        .args([
            "--ignored",
            "--exact",
            "--nocapture",
            "tests::starts_children_and_waits_to_be_killed",
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let lines = BufReader::new(victim.stdout.take().context("its output")?).lines();
    let reported = lines
        .map_while(Result::ok)
        .find_map(|line| line.strip_prefix("CHILDREN ").map(str::to_owned))
        .context("the process did not name its children")?;
    let mut words = reported.split(' ');
    let mut pid = || -> Result<u32> { Ok(words.next().context("a process id")?.parse()?) };
    let children = [pid()?, pid()?];
    let directory = Path::new(words.next().context("a directory")?);
    assert!(children.iter().all(|pid| runs(*pid)) && directory.exists());

    victim.kill()?;
    victim.wait()?;
    until("the children are gone", SOON, POLL, || async {
        Ok((!children.iter().any(|pid| runs(*pid)) && !directory.exists()).then_some(()))
    })
    .await
}

#[tokio::test]
async fn a_child_that_dies_early_is_reported_with_the_end_of_its_log() -> Result<()> {
    let dir = WorkDir::new()?;
    let script = "i=0; while [ $i -lt 100 ]; do i=$((i+1)); echo line $i; done; exit 3";
    let mut process = sleeper(&dir, "talker", script)?;
    until("it ends", SOON, POLL, || {
        std::future::ready(Ok(process.exited()))
    })
    .await?;
    let error = format!("{:#}", process.check().unwrap_err());
    assert!(
        error.contains("talker ended early (exit status: 3)"),
        "{error}"
    );
    assert!(
        error.contains("line 71\n") && error.ends_with("line 100"),
        "{error}"
    );
    assert!(!error.contains("line 70\n"), "30 lines are enough: {error}");
    Ok(())
}

#[tokio::test]
async fn terminate_waits_for_an_orderly_end_and_says_so_when_there_is_none() -> Result<()> {
    let dir = WorkDir::new()?;
    let orderly = "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done";
    let mut process = sleeper(&dir, "orderly", orderly)?;
    until("its trap is set", SOON, POLL, || {
        std::future::ready(Ok(process.log_says("up").then_some(())))
    })
    .await?;
    assert!(process.terminate(SOON).await?.success());
    assert!(process.log_says("bye"));

    let deaf = "trap '' TERM; echo up; while :; do sleep 0.05; done";
    let mut process = sleeper(&dir, "deaf", deaf)?;
    until("its trap is set", SOON, POLL, || {
        std::future::ready(Ok(process.log_says("up").then_some(())))
    })
    .await?;
    let error = process
        .terminate(Duration::from_millis(200))
        .await
        .unwrap_err();
    assert!(error.to_string().contains("deaf still runs"), "{error}");
    process.kill();
    assert!(!runs(process.id()));
    Ok(())
}

/// The smallest of the six is built for real, into a cache of its own: about 13 s when Go has
/// compiled its packages never before, 2 s after that.
#[test]
fn programs_are_built_from_go_mod_once() -> Result<()> {
    let dir = WorkDir::new()?;
    let source = Source::of_the_control_plane()?;
    let first = source.obtain(dir.path(), &[Program::Kwok])?;
    let output = Command::new(first.path(Program::Kwok))
        .arg("--version")
        .output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("v0.8.0"), "kwok says {said:?}");
    let stages = first.stages()?;
    let names: Vec<_> = stages
        .iter()
        .filter_map(|path| path.file_name()?.to_str())
        .collect();
    let expected = [
        "node-heartbeat-with-lease.yaml",
        "node-initialize.yaml",
        "pod-complete.yaml",
        "pod-delete.yaml",
        "pod-ready.yaml",
    ];
    assert_eq!(names, expected);

    let built = first.path(Program::Kwok).metadata()?.modified()?;
    let again = source.obtain(dir.path(), &[Program::Kwok])?;
    assert_eq!(
        again.path(Program::Kwok).metadata()?.modified()?,
        built,
        "nothing is built twice"
    );
    Ok(())
}

#[test]
fn versions_are_compared_as_numbers() {
    let cases = [
        ("1.26.8", Some((1, 26))),
        ("1.26rc1", Some((1, 26))),
        ("1.95.0-nightly", Some((1, 95))),
        ("1.9", Some((1, 9))),
        ("devel", None),
        ("", None),
    ];
    for (text, expected) in cases {
        assert_eq!(toolchain::parse(text), expected, "{text}");
    }
    assert!(
        toolchain::parse("1.9") < Some(toolchain::GO),
        "not compared as text"
    );
}

#[test]
fn no_port_is_given_twice() -> Result<()> {
    let mut ports = (0..100)
        .map(|_| ports::free())
        .collect::<Result<Vec<_>>>()?;
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 100);
    Ok(())
}

#[test]
fn a_replica_is_known_by_its_user_agent() {
    let text =
        "manifold/0.1.0 (replica=manifold-2; range=17; epoch=4; controller=deployment-controller)";
    let expected = Agent {
        version: "0.1.0".to_owned(),
        replica: "manifold-2".to_owned(),
        range: Some(17),
        epoch: Some(4),
        controller: Some("deployment-controller".to_owned()),
    };
    assert_eq!(Agent::parse(text), Some(expected));
    let without_range = Agent::parse("manifold/0.1.0 (replica=manifold-2)").unwrap();
    assert_eq!((without_range.range, without_range.epoch), (None, None));
    assert_eq!(Agent::parse("kubectl/v1.36.3 (linux/amd64)"), None);
    assert_eq!(Agent::parse(""), None);
}

#[test]
fn the_audit_log_proves_who_wrote_when_and_that_nothing_was_made_twice() {
    let record = |second: u32,
                  verb: &str,
                  name: &str,
                  replica: &str,
                  epoch: u64,
                  code: u16|
     -> AuditRecord {
        serde_json::from_value(json!({
            "auditID": "x", "stage": "ResponseComplete", "verb": verb, "requestURI": "/",
            "userAgent": format!("manifold/0.1.0 (replica={replica}; range=7; epoch={epoch}; controller=c)"),
            "objectRef": {"resource": "pods", "namespace": "n", "name": name},
            "responseStatus": {"code": code},
            "requestReceivedTimestamp": format!("2026-01-02T03:04:{second:02}.000000Z"),
            "stageTimestamp": "2026-01-02T03:05:00.000000Z",
        }))
        .unwrap()
    };
    let complaints = |records: &[AuditRecord]| {
        let mut proof = Proof::default();
        records.iter().for_each(|record| proof.read(record));
        assert_eq!(proof.writes(), records.len());
        proof.complaints()
    };
    // A slow request of the old epoch may end, and so be logged, after the first of the new one.
    let good = [
        record(2, "create", "a", "two", 2, 201),
        record(1, "create", "b", "one", 1, 201),
        record(3, "create", "a", "two", 2, 409),
        record(4, "delete", "a", "two", 2, 200),
        record(5, "create", "a", "two", 2, 201),
    ];
    assert_eq!(complaints(&good), Vec::<String>::new());

    let late = complaints(&[
        record(1, "patch", "a", "two", 2, 200),
        record(2, "patch", "a", "one", 1, 409),
    ]);
    assert!(
        late.len() == 1 && late[0].contains("one wrote with epoch 1"),
        "{late:?}"
    );
    let both = complaints(&[
        record(1, "patch", "a", "one", 2, 200),
        record(2, "patch", "a", "two", 2, 200),
    ]);
    assert!(
        both.len() == 1 && both[0].contains("one and two both wrote with epoch 2"),
        "{both:?}"
    );
    let twice = complaints(&[
        record(1, "create", "a", "one", 1, 201),
        record(2, "create", "a", "one", 1, 201),
    ]);
    assert_eq!(twice, ["pods n/a was created 2 times"]);
}

#[test]
fn the_audit_log_is_read_as_it_grows() -> Result<()> {
    use std::io::Write;
    let dir = WorkDir::new()?;
    let mut log = AuditLog::open(&dir.file("audit.log"));
    assert!(
        log.records()?.is_empty(),
        "a file that is not there yet is empty"
    );

    let line = |id: &str| {
        json!({
            "auditID": id, "stage": "ResponseComplete", "verb": "patch", "requestURI": "/",
            "user": {"username": "u", "groups": ["g"]}, "userAgent": "a",
            "objectRef": {"resource": "deployments", "subresource": "status", "namespace": "n", "name": "d"},
            "responseStatus": {"metadata": {}, "code": 200},
            "requestReceivedTimestamp": "2026-01-02T03:04:05.678901Z",
            "stageTimestamp": "2026-01-02T03:04:05.700000Z",
        })
        .to_string()
    };
    let mut file = std::fs::File::create(dir.file("audit.log"))?;
    let second = line("two");
    let (begin, end) = second.split_at(40);
    writeln!(file, "{}", line("one"))?;
    write!(file, "{begin}")?;
    let records = log.records()?;
    assert_eq!(records.len(), 1, "a line that is still being written waits");
    assert_eq!(records[0].resource(), "deployments/status");
    assert_eq!(records[0].code(), Some(200));
    writeln!(file, "{end}")?;
    assert_eq!(log.records()?[0].audit_id, "two");
    assert!(log.records()?.is_empty());

    writeln!(file, "no json")?;
    assert!(format!("{:#}", log.records().unwrap_err()).contains("no json"));
    Ok(())
}

#[test]
fn metrics_are_read_with_labels_in_any_order() {
    let text = r#"# HELP workqueue_adds_total adds
# TYPE workqueue_adds_total counter
workqueue_adds_total{name="deployment",shard="a"} 3
workqueue_adds_total{name="replicaset"} 4.5e1
process_cpu_seconds_total 0.25
odd{text="a\"b,c}d\\"} 1
up NaN
"#;
    let metrics = Metrics::parse(text);
    assert_eq!(metrics.sum("workqueue_adds_total", &[]), Some(48.0));
    assert_eq!(
        metrics.sum("workqueue_adds_total", &[("name", "deployment")]),
        Some(3.0)
    );
    assert_eq!(
        metrics.sum("workqueue_adds_total", &[("name", "job")]),
        None
    );
    assert_eq!(metrics.sum("process_cpu_seconds_total", &[]), Some(0.25));
    assert_eq!(metrics.samples()[3].labels["text"], "a\"b,c}d\\");
}
