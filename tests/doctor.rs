//! `manifold doctor`: a healthy fleet passes; each check is broken for real, found, and repaired by the
//! command that is printed.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use futures::StreamExt as _;
use harness::programs::Program;
use harness::proxy::{serve, server_config};
use harness::{ControlPlane, Fleet, Replica, run_test, until, workspace_root};
use http::header;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Frame;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::support::{PATIENCE, POLL, all_end_well, beside, fleet};

/// Between two writes of what plays a manager here.
const RENEWAL: Duration = Duration::from_millis(250);
/// Namespace of the Leases that keep managers apart, and of the controllers' accounts.
const SYSTEM: &str = "kube-system";
const MEMBERS: usize = 3;
/// Members publish after two rounds of questions who does not answer them.
const PUBLISHED_WITHIN: Duration = Duration::from_secs(20);

/// Namespace of the fleet's Leases.
fn fleet_namespace() -> String {
    coordinator::Config::default().fleet_namespace
}

/// One check of a report.
#[derive(Clone, Debug)]
struct Found {
    result: String,
    detail: String,
    remedy: Vec<String>,
}

/// What the doctor said.
#[derive(Clone, Debug)]
struct Report {
    code: i32,
    checks: BTreeMap<String, Found>,
    text: String,
}

impl Report {
    fn of(&self, id: &str) -> Result<&Found> {
        self.checks
            .get(id)
            .with_context(|| format!("no check {id} in {}", self.text))
    }

    /// The checks with this result.
    fn with(&self, result: &str) -> Vec<String> {
        let all = self.checks.iter();
        all.filter(|(_, found)| found.result == result)
            .map(|(id, found)| format!("{id}: {}", found.detail))
            .collect()
    }
}

/// The program, and the commands that it prints, run as an operator runs them.
struct Doctor {
    binary: PathBuf,
    kubeconfig: PathBuf,
    tools: PathBuf,
    args: Vec<String>,
}

impl Doctor {
    async fn new(control_plane: &ControlPlane) -> Result<Self> {
        let binary = tokio::task::spawn_blocking(|| {
            harness::fleet::binary(harness::fleet::Profile::of_this_build())
        })
        .await??;
        // Where a shell finds kubectl and manifold.
        let tools = control_plane.dir().file("tools");
        std::fs::create_dir_all(&tools)?;
        for (name, file) in [
            ("kubectl", control_plane.program(Program::Kubectl)),
            ("manifold", binary.clone()),
        ] {
            let link = tools.join(name);
            if !link.exists() {
                std::os::unix::fs::symlink(file, link)?;
            }
        }
        Ok(Self {
            binary,
            kubeconfig: control_plane.admin_kubeconfig().to_owned(),
            tools,
            args: vec![format!("--expected-replicas={MEMBERS}")],
        })
    }

    /// The same with other credentials.
    fn with(&self, kubeconfig: &Path) -> Self {
        Self {
            binary: self.binary.clone(),
            kubeconfig: kubeconfig.to_owned(),
            tools: self.tools.clone(),
            args: self.args.clone(),
        }
    }

    async fn examine(&self, more: &[&str]) -> Result<Report> {
        let output = tokio::process::Command::new(&self.binary)
            .arg("doctor")
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .args(["-o", "json"])
            .args(&self.args)
            .args(more)
            .kill_on_drop(true)
            .output()
            .await
            .context("manifold doctor")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let code = output.status.code().unwrap_or(-1);
        let errors = String::from_utf8_lossy(&output.stderr);
        let value: Value = serde_json::from_str(&text)
            .with_context(|| format!("exit code {code}, {errors}, {text}"))?;
        let mut checks = BTreeMap::new();
        for check in value["checks"].as_array().into_iter().flatten() {
            let of = |field: &str| check[field].as_str().unwrap_or_default().to_owned();
            let remedy = check["remedy"].as_array().into_iter().flatten();
            checks.insert(
                of("id"),
                Found {
                    result: of("result"),
                    detail: of("detail"),
                    remedy: remedy
                        .filter_map(Value::as_str)
                        .map(str::to_owned)
                        .collect(),
                },
            );
        }
        Ok(Report { code, checks, text })
    }

    /// Waits until a check has a result; gives it.
    async fn await_result(&self, id: &str, result: &str, more: &[&str]) -> Result<Found> {
        until(&format!("{id} has {result}"), PATIENCE, POLL, || async {
            let report = self.examine(more).await?;
            let found = report.of(id)?.clone();
            ensure!(
                found.result == result,
                "{id}: {}: {}",
                found.result,
                found.detail
            );
            Ok(Some(found))
        })
        .await
    }

    /// Waits until nothing fails.
    async fn await_health(&self) -> Result<()> {
        let report = self.examine(&["--wait", "60s"]).await?;
        ensure!(
            report.code == 0 && report.with("failed").is_empty(),
            "still failing: {:#?}",
            report.with("failed")
        );
        Ok(())
    }

    /// Runs a printed command in the tree, as administrator; what people must do is no command.
    async fn run(&self, command: &str) -> Result<String> {
        let path = std::env::var("PATH").unwrap_or_default();
        let output = tokio::process::Command::new("sh")
            .args(["-c", command])
            .env("PATH", format!("{}:{path}", self.tools.display()))
            .env("KUBECONFIG", &self.kubeconfig)
            .current_dir(workspace_root())
            .kill_on_drop(true)
            .output()
            .await?;
        ensure!(
            output.status.success(),
            "{command}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs every command of a remedy.
    async fn repair(&self, found: &Found) -> Result<()> {
        let commands: Vec<&String> = found
            .remedy
            .iter()
            .filter(|command| !command.starts_with('#'))
            .collect();
        ensure!(!commands.is_empty(), "no command in {:?}", found.remedy);
        for command in commands {
            self.run(command).await?;
        }
        Ok(())
    }
}

/// Something that renews a Lease as a foreign manager does, until it is dropped.
struct Impostor(JoinHandle<()>);

impl Impostor {
    /// Keeps a Lease like this: at each step with the time as of then, shifted.
    fn start(client: &Client, namespace: &str, lease: Value, shift: jiff::SignedDuration) -> Self {
        let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
        let name = lease["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        Self(tokio::spawn(async move {
            loop {
                let mut now = lease.clone();
                let time = jiff::Timestamp::now()
                    .checked_add(shift)
                    .unwrap_or_default();
                now["spec"]["renewTime"] = json!(format!("{time:.6}"));
                now["apiVersion"] = json!("coordination.k8s.io/v1");
                now["kind"] = json!("Lease");
                let params = PatchParams::apply("impostor").force();
                let _next_time = leases.patch(&name, &params, &Patch::Apply(&now)).await;
                tokio::time::sleep(RENEWAL).await;
            }
        }))
    }

    /// A replica of a fleet that never becomes ready.
    fn replica(
        client: &Client,
        namespace: &str,
        version: &str,
        shift: jiff::SignedDuration,
    ) -> Self {
        let lease = json!({
            "metadata": {
                "name": "manifold-replica-impostor",
                "labels": {"manifold.dev/fleet": "manifold", "manifold.dev/lease": "replica"},
                "annotations": {
                    "manifold.dev/version": version,
                    "manifold.dev/peer-address": "127.0.0.1:9",
                    "manifold.dev/ready": "false",
                    "manifold.dev/ranges": "256",
                    "manifold.dev/fenced": "true",
                    "manifold.dev/incarnation": "0",
                },
            },
            "spec": {"holderIdentity": "impostor_0", "leaseDurationSeconds": 5},
        });
        Self::start(client, namespace, lease, shift)
    }
}

impl Drop for Impostor {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// An API server that says something else here and there: what `changes` makes of the answers of the real
/// one.
async fn changed_server(
    control_plane: &ControlPlane,
    changes: fn(&str, &mut http::Response<Bytes>),
) -> Result<(JoinHandle<()>, PathBuf)> {
    let identity = control_plane
        .authority()
        .server("kube-apiserver", &["localhost"])?;
    let config = server_config(&identity, &["http/1.1"])?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let port = listener.local_addr()?.port();
    let client = control_plane.client().await?;
    let task = tokio::spawn(serve(
        listener,
        config,
        move |request: http::Request<hyper::body::Incoming>| {
            let client = client.clone();
            async move {
                let path = request
                    .uri()
                    .path_and_query()
                    .map(ToString::to_string)
                    .unwrap_or_default();
                let (mut parts, body) = request.into_parts();
                parts.uri = path.parse().unwrap_or_default();
                parts.headers.remove(header::HOST);
                parts.headers.remove(header::ACCEPT_ENCODING);
                let body = body
                    .collect()
                    .await
                    .map(|body| body.to_bytes())
                    .unwrap_or_default();
                let forwarded =
                    http::Request::from_parts(parts, kube::client::Body::from(body.to_vec()));
                let mut answer = match client.send(forwarded).await {
                    Ok(answer) => {
                        let (parts, body) = answer.into_parts();
                        let body = body
                            .collect()
                            .await
                            .map(|body| body.to_bytes())
                            .unwrap_or_default();
                        http::Response::from_parts(parts, body)
                    }
                    Err(_) => {
                        let mut answer = http::Response::new(Bytes::new());
                        *answer.status_mut() = http::StatusCode::BAD_GATEWAY;
                        answer
                    }
                };
                changes(&path, &mut answer);
                answer.headers_mut().remove(header::CONTENT_LENGTH);
                answer.headers_mut().remove(header::TRANSFER_ENCODING);
                let (parts, body) = answer.into_parts();
                let frames = Full::new(body).into_data_stream().map(|data| match data {
                    Ok(data) => Ok(Frame::data(data)),
                    Err(never) => match never {},
                });
                Ok(http::Response::from_parts(
                    parts,
                    StreamBody::new(frames.boxed()),
                ))
            }
        },
    ));
    let identity = control_plane
        .authority()
        .client("changed", Some("system:masters"))?;
    let kubeconfig = harness::kubeconfig::render(
        &format!("https://127.0.0.1:{port}"),
        control_plane.authority().certificate(),
        "changed",
        &identity,
    )?;
    let path = control_plane
        .dir()
        .write(&format!("changed-{port}.kubeconfig"), kubeconfig)?;
    Ok((task, path))
}

/// The replica starts with more arguments.
async fn start_with(fleet: &Fleet, name: &str, args: &[&str]) -> Result<Replica> {
    let mut replica = fleet.start_named(name, args)?;
    replica.wait_ready(PATIENCE).await?;
    Ok(replica)
}

async fn end(replica: &mut Replica) -> Result<()> {
    replica.terminate(PATIENCE).await?;
    Ok(())
}

/// The fence's list is made by the replicas, and their Leases say that they use it.
async fn healthy(doctor: &Doctor) -> Result<Report> {
    doctor.await_health().await?;
    let report = doctor.examine(&[]).await?;
    let warnings = report.with("warning");
    ensure!(
        warnings.is_empty(),
        "a healthy fleet is warned of: {warnings:#?}"
    );
    Ok(report)
}

/// Counts what was shown.
#[derive(Default)]
struct Shown {
    broken: BTreeMap<String, Duration>,
}

impl Shown {
    /// A check finds what is broken, with this reason and remedy.
    fn found(
        &mut self,
        found: &Found,
        id: &str,
        result: &str,
        why: &str,
        remedy: &str,
    ) -> Result<()> {
        ensure!(
            found.result == result,
            "{id}: {}: {}",
            found.result,
            found.detail
        );
        ensure!(
            found.detail.contains(why),
            "{id}: {:?} has no {why:?}",
            found.detail
        );
        let commands = found.remedy.join("\n");
        ensure!(
            commands.contains(remedy),
            "{id}: {commands:?} has no {remedy:?}"
        );
        self.broken.insert(id.to_owned(), Duration::ZERO);
        Ok(())
    }

    /// A check comes to this result, with this reason and remedy.
    async fn finds(
        &mut self,
        doctor: &Doctor,
        (id, result): (&str, &str),
        why: &str,
        remedy: &str,
    ) -> Result<()> {
        let found = doctor.await_result(id, result, &[]).await?;
        self.found(&found, id, result, why, remedy)
    }

    /// A check is broken, finds it, is repaired by what it prints, and passes.
    async fn by_its_remedy(
        &mut self,
        doctor: &Doctor,
        (id, result, why): (&str, &str, &str),
        broken: impl Future<Output = Result<()>>,
    ) -> Result<()> {
        let started = Instant::now();
        broken.await.with_context(|| format!("breaking {id}"))?;
        let found = doctor.await_result(id, result, &[]).await?;
        self.found(&found, id, result, why, "")?;
        doctor
            .repair(&found)
            .await
            .with_context(|| format!("repairing {id}"))?;
        doctor.await_result(id, "passed", &[]).await?;
        doctor.await_health().await?;
        self.broken.insert(id.to_owned(), started.elapsed());
        println!(
            "doctor: {id} broken, found, repaired by its command in {:.1?}",
            started.elapsed()
        );
        Ok(())
    }
}

const INTERLOPER: &str = "node-0_5e1f";

/// A Lease that a kube-controller-manager holds.
fn kcm_lease() -> Value {
    json!({
        "metadata": {"name": "kube-controller-manager"},
        "spec": {"holderIdentity": INTERLOPER, "leaseDurationSeconds": 15},
    })
}

#[test]
fn a_healthy_fleet_passes_and_what_is_broken_is_found_and_repaired() {
    let _beside = beside();
    run_test(async {
        let control_plane = ControlPlane::builder().nodes(1).fence().start().await?;
        let client = control_plane.client().await?;
        let doctor = Doctor::new(&control_plane).await?;

        // Nothing is installed but the rights: what is to come is examined.
        let pre = doctor.examine(&["--pre"]).await?;
        ensure!(
            pre.code == 0 && pre.with("failed").is_empty(),
            "{:#?}",
            pre.with("failed")
        );
        let none = doctor.examine(&[]).await?;
        ensure!(none.code == 1, "exit code {} without a fleet", none.code);
        ensure!(none.of("leases/fleet")?.result == "failed");

        let fleet = fleet(&control_plane).await?;
        let mut replicas = fleet.start_all(MEMBERS).await?;
        let started = Instant::now();
        let report = healthy(&doctor).await?;
        println!(
            "doctor: {} checks pass, {} skipped; two examinations and the wait took {:.1?}",
            report.with("passed").len(),
            report.with("skipped").len(),
            started.elapsed()
        );
        let rights = &report.of("rbac/controllers")?.detail;
        println!("doctor: rbac/controllers: {rights}");

        // Several things at once, each found by its check alone.
        for args in [
            &[
                "delete",
                "clusterrole",
                "manifold:controller:deployment-controller",
            ][..],
            &[
                "delete",
                "validatingadmissionpolicybinding",
                "manifold-fence",
            ],
            &["delete", "flowschema", "manifold-leases"],
            &["-n", SYSTEM, "delete", "role", "manifold:fence-accounts"],
        ] {
            control_plane.kubectl(args).await?;
        }
        control_plane
            .kubectl_with_input(
                &["create"],
                &json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {
                    "name": "old-replica-x", "namespace": "default", "labels": {"manifold.dev/fleet": "old", "manifold.dev/lease": "replica"}}})
                .to_string(),
            )
            .await?;
        let impostor = Impostor::start(&client, SYSTEM, kcm_lease(), jiff::SignedDuration::ZERO);
        doctor
            .await_result("interlock/guard", "failed", &[])
            .await?;
        let report = doctor.examine(&[]).await?;
        ensure!(report.code == 1, "exit code {}", report.code);
        let mut shown = Shown::default();
        for (id, result, why, remedy) in [
            (
                "rbac/controllers",
                "failed",
                "system:serviceaccount:kube-system:deployment-controller may not patch",
                "deploy/rbac",
            ),
            ("fence/binding", "failed", "is missing", "deploy/fence"),
            (
                "fence/rights",
                "failed",
                "may not impersonate serviceaccounts",
                "deploy/fence",
            ),
            (
                "leases/priority",
                "warning",
                "manifold-leases",
                "deploy/rbac",
            ),
            (
                "leases/one-fleet",
                "warning",
                "default/old",
                "kubectl -n default delete lease -l manifold.dev/fleet=old",
            ),
            (
                "interlock/guard",
                "failed",
                INTERLOPER,
                "kube-controller-manager.yaml",
            ),
        ] {
            shown.found(report.of(id)?, id, result, why, remedy)?;
        }
        for id in ["rbac/controllers", "fence/binding", "leases/one-fleet"] {
            doctor.repair(report.of(id)?).await?;
        }
        drop(impostor);
        control_plane
            .kubectl(&["-n", SYSTEM, "delete", "lease", "kube-controller-manager"])
            .await?;
        healthy(&doctor).await?;

        // One member is away, and comes back.
        end(&mut replicas[2]).await?;
        shown
            .finds(
                &doctor,
                ("capacity/members", "failed"),
                "2 of 3 members work",
                "describe pods",
            )
            .await?;
        replicas[2] = start_with(&fleet, "manifold-2", &[]).await?;
        doctor.await_health().await?;

        // The text says the same.
        let text = doctor.run("manifold doctor --expected-replicas=3").await?;
        ensure!(
            text.contains("√ every range has a live owner (256 ranges, 3 members)"),
            "{text}"
        );
        println!(
            "doctor: found and repaired: {}",
            shown.broken.keys().cloned().collect::<Vec<_>>().join(", ")
        );
        all_end_well(&mut replicas).await
    });
}

#[test]
fn a_wrong_command_line_or_kubeconfig_ends_with_one_line() {
    let binary =
        harness::fleet::binary(harness::fleet::Profile::of_this_build()).expect("manifold");
    let table: [(&[&str], i32, &str); 8] = [
        (&["witness"], 1, "--lock-dir is required"),
        (
            &[
                "witness",
                "--lock-dir=/nowhere",
                "--kubeconfig=/nowhere/config",
            ],
            1,
            "--kubeconfig /nowhere/config",
        ),
        (&["witness", "--unknown"], 1, "see manifold witness --help"),
        (
            &["doctor", "--kubeconfig=/nowhere/config"],
            2,
            "--kubeconfig /nowhere/config",
        ),
        (&["doctor", "--wait=soon"], 2, "give one as 90s or 5m"),
        (&["doctor", "--unknown"], 2, "--unknown"),
        (&["companion"], 2, "--controllers"),
        (
            &["companion", "--controllers=deploymnt"],
            1,
            "did you mean deployment",
        ),
    ];
    for (args, code, expected) in table {
        let output = std::process::Command::new(&binary)
            .args(args)
            .env_remove("KUBECONFIG")
            .output()
            .expect("started");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {said}");
        assert!(said.contains(expected), "{args:?}: {said}");
    }
    // The flags' parser refuses words as before.
    let output = std::process::Command::new(&binary)
        .args(["--v=2", "doctor"])
        .output()
        .expect("started");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("no arguments are taken but flags"), "{said}");
}

#[test]
#[ignore = "minutes: cargo parity"]
fn every_check_is_broken_once_and_repaired() {
    let _beside = beside();
    run_test(async {
        let control_plane = ControlPlane::builder().nodes(2).fence().start().await?;
        let client = control_plane.client().await?;
        let doctor = Doctor::new(&control_plane).await?;
        let mut shown = Shown::default();

        let none = doctor.examine(&[]).await?;
        shown.found(
            none.of("leases/fleet")?,
            "leases/fleet",
            "failed",
            "no replica Leases",
            "deploy/base",
        )?;
        let fleet = fleet(&control_plane).await?;
        let mut replicas = fleet.start_all(MEMBERS).await?;
        healthy(&doctor).await?;

        // A part that fails does not hide what the others would show.
        let (plane, replicas) = (&control_plane, &mut replicas);
        let parts = [
            of_the_server(plane, &doctor, &mut shown).await,
            of_rights(plane, &doctor, &mut shown).await,
            of_the_fence(plane, &doctor, &fleet, replicas, &mut shown).await,
            of_leases(plane, &client, &doctor, replicas, &mut shown).await,
            of_members(plane, &client, &doctor, &fleet, replicas, &mut shown).await,
            of_managers(plane, &client, &doctor, &fleet, replicas, &mut shown).await,
            of_capacity(plane, &doctor, &fleet, replicas, &mut shown).await,
        ];
        let failed: Vec<String> = parts
            .into_iter()
            .filter_map(|part| Some(format!("{:#}", part.err()?)))
            .collect();
        ensure!(failed.is_empty(), "{}", failed.join("\n"));

        let missing: Vec<String> = none
            .checks
            .keys()
            .filter(|id| !shown.broken.contains_key(*id))
            .cloned()
            .collect();
        println!(
            "doctor: {} checks broken, found and repaired",
            shown.broken.len()
        );
        ensure!(missing.is_empty(), "never broken: {missing:?}");
        all_end_well(replicas).await
    });
}

/// Makes an answer's clock and version another one.
fn as_an_old_server_with_another_clock(path: &str, answer: &mut http::Response<Bytes>) {
    let date = jiff::Timestamp::now()
        .checked_sub(jiff::SignedDuration::from_mins(5))
        .map(|time| time.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string());
    if let Some(value) = date
        .ok()
        .and_then(|date| header::HeaderValue::try_from(date).ok())
    {
        answer.headers_mut().insert(header::DATE, value);
    }
    let text = String::from_utf8_lossy(answer.body()).into_owned();
    match path {
        "/version" => {
            *answer.body_mut() = text
                .replace("\"36\"", "\"35\"")
                .replace("v1.36", "v1.35")
                .into();
        }
        "/apis" => {
            let mut groups: Value = serde_json::from_str(&text).unwrap_or_default();
            if let Some(groups) = groups["items"].as_array_mut() {
                groups.retain(|group| group["metadata"]["name"] != "policy");
            }
            *answer.body_mut() = groups.to_string().into();
        }
        _ => {}
    }
}

async fn of_the_server(
    control_plane: &ControlPlane,
    doctor: &Doctor,
    shown: &mut Shown,
) -> Result<()> {
    // Nobody listens there; the printed command corrects the address.
    let admin = control_plane
        .authority()
        .client("someone", Some("system:masters"))?;
    let lost = harness::kubeconfig::render(
        "https://127.0.0.1:9",
        control_plane.authority().certificate(),
        "someone",
        &admin,
    )?;
    let lost = doctor.with(&control_plane.dir().write("lost.kubeconfig", lost)?);
    let report = lost.examine(&[]).await?;
    ensure!(report.code == 1);
    let found = report.of("kubernetes-api/reachable")?;
    shown.found(
        found,
        "kubernetes-api/reachable",
        "failed",
        "does not answer",
        "--server=https://HOST:6443",
    )?;
    let command = found.remedy[0].replace("https://HOST:6443", &control_plane.url());
    lost.run(&command).await?;
    lost.await_health().await?;

    let (task, path) = changed_server(control_plane, as_an_old_server_with_another_clock).await?;
    let report = doctor.with(&path).examine(&[]).await?;
    task.abort();
    for (id, why, remedy) in [
        (
            "kubernetes-api/version",
            "is older than 1.36",
            "kubeadm upgrade apply",
        ),
        (
            "kubernetes-api/served",
            "policy/v1",
            "--runtime-config=policy/v1=true",
        ),
        ("clocks/local", "ahead of", "chronyc makestep"),
    ] {
        shown.found(report.of(id)?, id, "failed", why, remedy)?;
    }

    // A certificate that has expired, and one that will soon.
    let expired =
        control_plane
            .authority()
            .client_for("someone", Some("system:masters"), Duration::ZERO)?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let path = control_plane.kubeconfig_of("someone", &expired)?;
    let found = doctor.with(&path).examine(&[]).await?;
    shown.found(
        found.of("certificates/client")?,
        "certificates/client",
        "failed",
        "expired",
        "kubeadm certs renew",
    )?;
    ensure!(
        found
            .of("kubernetes-api/reachable")?
            .detail
            .contains("does not accept your credentials"),
        "{}",
        found.text
    );
    let soon = Duration::from_secs(3600);
    let soon = control_plane
        .authority()
        .client_for("someone", Some("system:masters"), soon)?;
    let path = control_plane.kubeconfig_of("someone", &soon)?;
    let found = doctor.with(&path).examine(&[]).await?;
    ensure!(
        found.of("certificates/client")?.result == "warning",
        "{}",
        found.text
    );
    let path = control_plane.kubeconfig_of("someone", &admin)?;
    doctor.with(&path).await_health().await?;

    // Another authority; the printed command puts the right one in its place.
    let other = harness::certificates::Authority::new("another-ca")?;
    let untrusted =
        harness::kubeconfig::render(&control_plane.url(), other.certificate(), "someone", &admin)?;
    let untrusted = doctor.with(
        &control_plane
            .dir()
            .write("untrusted.kubeconfig", untrusted)?,
    );
    let report = untrusted.examine(&[]).await?;
    let found = report.of("certificates/authority")?;
    shown.found(
        found,
        "certificates/authority",
        "failed",
        "not accepted",
        "--certificate-authority=",
    )?;
    let ca = control_plane.ca_file().display().to_string();
    untrusted
        .run(&found.remedy[0].replace("/etc/kubernetes/pki/ca.crt", &ca))
        .await?;
    untrusted.await_health().await?;

    // A peer's certificate of another authority.
    let peer = other.peer("manifold-0")?;
    let file = |name: &str, text: &str| control_plane.dir().write(name, text);
    let (certificate, key) = (file("p.crt", &peer.certificate)?, file("p.key", &peer.key)?);
    let wrong = control_plane.ca_file();
    let right = file("p-ca.crt", other.certificate())?;
    let args = |authority: &Path| {
        [
            format!("--peer-tls-cert-file={}", certificate.display()),
            format!("--peer-tls-private-key-file={}", key.display()),
            format!("--peer-ca-file={}", authority.display()),
        ]
    };
    let examined = |args: [String; 3]| async move {
        let words: Vec<&str> = args.iter().map(String::as_str).collect();
        anyhow::Ok(
            doctor
                .examine(&words)
                .await?
                .of("certificates/peers")?
                .clone(),
        )
    };
    let found = examined(args(&wrong)).await?;
    shown.found(
        &found,
        "certificates/peers",
        "failed",
        "is not signed by an authority",
        "deploy/README.md",
    )?;
    ensure!(examined(args(&right)).await?.result == "passed");
    Ok(())
}

async fn of_rights(control_plane: &ControlPlane, doctor: &Doctor, shown: &mut Shown) -> Result<()> {
    let somebody = control_plane.authority().client("somebody", None)?;
    let somebody = doctor.with(&control_plane.kubeconfig_of("somebody", &somebody)?);
    let report = somebody.examine(&[]).await?;
    let found = report.of("access/read")?;
    shown.found(
        found,
        "access/read",
        "warning",
        "list leases.coordination.k8s.io",
        "--clusterrole=manifold:doctor",
    )?;
    doctor.repair(found).await?;
    somebody.await_result("access/read", "passed", &[]).await?;
    somebody.await_health().await?;
    let report = somebody.examine(&["--pre"]).await?;
    let found = report.of("access/install")?;
    shown.found(
        found,
        "access/install",
        "failed",
        "somebody may not bind clusterroles",
        "cluster-admin",
    )?;
    doctor.repair(found).await?;
    somebody
        .await_result("access/install", "passed", &["--pre"])
        .await?;

    shown
        .by_its_remedy(
            doctor,
            (
                "rbac/controllers",
                "failed",
                "deployment-controller may not",
            ),
            async {
                control_plane
                    .kubectl(&[
                        "delete",
                        "clusterrole",
                        "manifold:controller:deployment-controller",
                    ])
                    .await?;
                Ok(())
            },
        )
        .await?;
    // Without it nobody may renew: the fleet stops, and comes back with the right.
    shown
        .by_its_remedy(
            doctor,
            (
                "rbac/manager",
                "failed",
                "system:kube-controller-manager may not",
            ),
            async {
                control_plane
                    .kubectl(&[
                        "-n",
                        &fleet_namespace(),
                        "delete",
                        "rolebinding",
                        "manifold:fleet",
                    ])
                    .await?;
                Ok(())
            },
        )
        .await?;
    shown
        .by_its_remedy(
            doctor,
            ("leases/priority", "warning", "manifold-leases"),
            async {
                control_plane
                    .kubectl(&["delete", "flowschema", "manifold-leases"])
                    .await?;
                Ok(())
            },
        )
        .await?;
    for kind in [
        "validatingadmissionpolicy",
        "validatingadmissionpolicybinding",
    ] {
        shown
            .by_its_remedy(
                doctor,
                (
                    "leases/guard",
                    "warning",
                    "may take ranges from their owners",
                ),
                async {
                    control_plane
                        .kubectl(&["delete", kind, "manifold-guard"])
                        .await?;
                    Ok(())
                },
            )
            .await?;
    }
    // The right to write Leases is left, the one that the guard asks for is not: every renewal is refused.
    shown
        .by_its_remedy(
            doctor,
            (
                "leases/guard-rights",
                "failed",
                "system:kube-controller-manager may not create fleetleases.manifold.dev",
            ),
            async {
                let second = r#"[{"op":"remove","path":"/rules/1"}]"#;
                control_plane
                    .kubectl(&[
                        "-n",
                        &fleet_namespace(),
                        "patch",
                        "role",
                        "manifold:fleet",
                        "--type=json",
                        "-p",
                        second,
                    ])
                    .await?;
                Ok(())
            },
        )
        .await
}

async fn of_the_fence(
    control_plane: &ControlPlane,
    doctor: &Doctor,
    fleet: &Fleet,
    replicas: &mut [Replica],
    shown: &mut Shown,
) -> Result<()> {
    for (id, why, kind, name) in [
        (
            "fence/policy",
            "is missing",
            "validatingadmissionpolicy",
            "manifold-fence",
        ),
        (
            "fence/binding",
            "is missing",
            "validatingadmissionpolicybinding",
            "manifold-fence",
        ),
        (
            "fence/kind",
            "fences.manifold.dev",
            "crd",
            "fences.manifold.dev",
        ),
    ] {
        shown
            .by_its_remedy(doctor, (id, "failed", why), async {
                control_plane.kubectl(&["delete", kind, name]).await?;
                Ok(())
            })
            .await?;
    }
    shown
        .by_its_remedy(
            doctor,
            ("fence/rights", "failed", "may not impersonate"),
            async {
                control_plane
                    .kubectl(&["-n", SYSTEM, "delete", "role", "manifold:fence-accounts"])
                    .await?;
                Ok(())
            },
        )
        .await?;
    end(&mut replicas[2]).await?;
    replicas[2] = start_with(fleet, "manifold-2", &["--server-fence=off"]).await?;
    shown
        .finds(
            doctor,
            ("fence/members", "failed"),
            "manifold-2 write without",
            "--server-fence=auto",
        )
        .await?;
    end(&mut replicas[2]).await?;
    replicas[2] = start_with(fleet, "manifold-2", &[]).await?;
    doctor.await_health().await
}

async fn of_leases(
    control_plane: &ControlPlane,
    client: &Client,
    doctor: &Doctor,
    replicas: &mut [Replica],
    shown: &mut Shown,
) -> Result<()> {
    // All stand still: nobody evicts the others, and no Lease is renewed.
    for replica in replicas.iter_mut() {
        replica.pause()?;
    }
    let report = doctor.examine(&[]).await?;
    for replica in replicas.iter_mut() {
        replica.resume()?;
    }
    shown.found(
        report.of("leases/replicas")?,
        "leases/replicas",
        "failed",
        "manifold-0, manifold-1, manifold-2",
        "start the replica manifold-0 again",
    )?;
    doctor.await_health().await?;

    let namespace = fleet_namespace();
    let garbage = [
        "-n",
        &namespace,
        "patch",
        "configmap",
        "manifold-steering",
        "--type=merge",
        "--patch",
        r#"{"data":{"pause.x":"{"}}"#,
    ];
    shown
        .by_its_remedy(
            doctor,
            ("steering/orders", "warning", "pause.x: it is no order"),
            async {
                control_plane.kubectl(&garbage).await?;
                Ok(())
            },
        )
        .await?;

    // A range that is said to be nobody's. Members would repair it by themselves after a lease duration.
    control_plane
        .kubectl(&[
            "-n",
            &fleet_namespace(),
            "patch",
            "lease",
            "manifold-range-003",
            "--type=merge",
            "-p",
            r#"{"spec":{"holderIdentity":"nobody_0"}}"#,
        ])
        .await?;
    let report = doctor.examine(&[]).await?;
    shown.found(
        report.of("leases/ranges")?,
        "leases/ranges",
        "failed",
        "without live owner: 3",
        "delete lease manifold-range-003",
    )?;
    doctor.repair(report.of("leases/ranges")?).await?;
    doctor.await_health().await?;

    // Another fleet, and what it leaves behind.
    let impostor = Impostor::replica(client, "default", "0.1.0", jiff::SignedDuration::ZERO);
    shown
        .finds(
            doctor,
            ("leases/one-fleet", "failed"),
            "default/manifold works on the same objects",
            "kubectl -n default scale",
        )
        .await?;
    drop(impostor);
    let found = doctor
        .await_result("leases/one-fleet", "warning", &[])
        .await?;
    doctor.repair(&found).await?;
    doctor
        .await_result("leases/one-fleet", "passed", &[])
        .await?;
    Ok(())
}

async fn of_members(
    control_plane: &ControlPlane,
    client: &Client,
    doctor: &Doctor,
    fleet: &Fleet,
    replicas: &mut [Replica],
    shown: &mut Shown,
) -> Result<()> {
    let impostor = Impostor::replica(
        client,
        &fleet_namespace(),
        "0.9.0",
        jiff::SignedDuration::from_secs(3_665),
    );
    doctor
        .await_result("versions/members", "failed", &[])
        .await?;
    let report = doctor.examine(&[]).await?;
    shown.found(
        report.of("versions/members")?,
        "versions/members",
        "failed",
        "0.9.0 at impostor",
        "set image",
    )?;
    shown.found(
        report.of("clocks/members")?,
        "clocks/members",
        "warning",
        "impostor 366",
        "chronyc makestep",
    )?;
    drop(impostor);
    control_plane
        .kubectl(&[
            "-n",
            &fleet_namespace(),
            "delete",
            "lease",
            "manifold-replica-impostor",
        ])
        .await?;
    doctor.await_health().await?;

    // Where nobody answers; at the address of another one; with other controllers; with another root.
    let taken = format!(
        "--peer-advertise-address=127.0.0.1:{}",
        replicas[0].peer_port()
    );
    let other_root = harness::certificates::Authority::new("another-root")?;
    let other_root = control_plane
        .dir()
        .write("another-root.crt", other_root.certificate())?;
    let other_root = format!("--root-ca-file={}", other_root.display());
    for (args, id, why, remedy) in [
        (
            "--peer-advertise-address=127.0.0.1:9",
            "peers/reachable",
            "does not reach manifold-2",
            "network-policy",
        ),
        (
            taken.as_str(),
            "peers/addresses",
            "all advertise",
            "--peer-advertise-address",
        ),
        (
            "--controllers=*,-ttl-controller",
            "coverage/agree",
            "-ttl-controller at manifold-2",
            "same --controllers",
        ),
        (
            other_root.as_str(),
            "certificates/agree",
            "root-ca",
            "same files",
        ),
    ] {
        end(&mut replicas[2]).await?;
        replicas[2] = start_with(fleet, "manifold-2", &[args]).await?;
        let found = until(id, PUBLISHED_WITHIN + PATIENCE, POLL, || async {
            let report = doctor.examine(&[]).await?;
            let found = report.of(id)?.clone();
            ensure!(found.result == "failed", "{}", found.detail);
            Ok(Some(found))
        })
        .await?;
        let remedy = if id == "peers/reachable" {
            "deploy/base"
        } else {
            remedy
        };
        shown.found(&found, id, "failed", why, remedy)?;
        if id == "coverage/agree" {
            let report = doctor.examine(&[]).await?;
            let found = report.of("coverage/complete")?;
            shown.found(
                found,
                "coverage/complete",
                "warning",
                "ttl-controller",
                "--controllers=*",
            )?;
        }
        println!("doctor: {id}: {}", found.detail);
    }
    end(&mut replicas[2]).await?;
    replicas[2] = start_with(fleet, "manifold-2", &[]).await?;
    doctor.await_health().await
}

async fn of_managers(
    control_plane: &ControlPlane,
    client: &Client,
    doctor: &Doctor,
    fleet: &Fleet,
    replicas: &mut [Replica],
    shown: &mut Shown,
) -> Result<()> {
    // A fleet at work, and the Lease nobody's. Processes, which no pod says so of.
    all_end_well(replicas).await?;
    for (index, replica) in replicas.iter_mut().enumerate() {
        let name = format!("manifold-{index}");
        *replica = start_with(fleet, &name, &["--leader-elect=false"]).await?;
    }
    shown
        .finds(
            doctor,
            ("interlock/guard", "failed"),
            "nobody holds the Lease kube-system/kube-controller-manager",
            "without --leader-elect=false",
        )
        .await?;
    all_end_well(replicas).await?;
    for (index, replica) in replicas.iter_mut().enumerate() {
        *replica = start_with(fleet, &format!("manifold-{index}"), &[]).await?;
    }
    doctor.await_health().await?;

    let impostor = Impostor::start(client, SYSTEM, kcm_lease(), jiff::SignedDuration::ZERO);
    shown
        .finds(
            doctor,
            ("interlock/guard", "failed"),
            INTERLOPER,
            "kube-controller-manager.yaml",
        )
        .await?;
    // Its pod says what it runs: everything.
    let pod = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "kube-controller-manager-node-0", "namespace": SYSTEM, "labels": {"component": "kube-controller-manager"}},
        "spec": {"nodeName": "node-0", "containers": [{"name": "kube-controller-manager", "image": "example/kcm:1.36",
            "command": ["kube-controller-manager", "--leader-elect=true", "--controllers=*,bootstrapsigner,tokencleaner"]}]}});
    control_plane
        .kubectl_with_input(&["create"], &pod.to_string())
        .await?;
    shown
        .finds(
            doctor,
            ("coverage/disjoint", "failed"),
            "two writers",
            "manifold companion --controllers=",
        )
        .await?;
    let report = doctor.examine(&[]).await?;
    shown.found(
        report.of("interlock/standbys")?,
        "interlock/standbys",
        "warning",
        "kube-controller-manager-node-0",
        "kube-controller-manager.yaml",
    )?;
    drop(impostor);
    control_plane
        .kubectl(&[
            "-n",
            SYSTEM,
            "delete",
            "pod",
            "kube-controller-manager-node-0",
            "--force",
        ])
        .await?;
    control_plane
        .kubectl(&["-n", SYSTEM, "delete", "lease", "kube-controller-manager"])
        .await?;
    doctor
        .await_result("interlock/standbys", "passed", &[])
        .await?;
    doctor.await_health().await
}

async fn of_capacity(
    control_plane: &ControlPlane,
    doctor: &Doctor,
    fleet: &Fleet,
    replicas: &mut [Replica],
    shown: &mut Shown,
) -> Result<()> {
    end(&mut replicas[1]).await?;
    shown
        .finds(
            doctor,
            ("capacity/members", "failed"),
            "2 of 3 members work",
            "describe pods",
        )
        .await?;
    replicas[1] = start_with(fleet, "manifold-1", &[]).await?;
    doctor.await_health().await?;

    // A StatefulSet as of deploy/base with too little memory; kwok runs its pod.
    let labels = json!({"app.kubernetes.io/name": "manifold"});
    let set = json!({"apiVersion": "apps/v1", "kind": "StatefulSet",
        "metadata": {"name": "manifold", "namespace": fleet_namespace()},
        "spec": {"replicas": 1, "serviceName": "manifold", "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"serviceAccountName": "manifold",
                "tolerations": [{"operator": "Exists"}],
                "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
                "containers": [{"name": "manifold", "image": "localhost/manifold:0.1.0",
                    // The namespace lets nothing else in.
                    "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
                    "resources": {"limits": {"memory": "16Mi"}}}]}}}});
    shown
        .by_its_remedy(doctor, ("capacity/memory", "failed", "is 16 MiB"), async {
            control_plane
                .kubectl_with_input(&["create"], &set.to_string())
                .await?;
            Ok(())
        })
        .await?;
    control_plane
        .kubectl(&[
            "-n",
            &fleet_namespace(),
            "delete",
            "statefulset",
            "manifold",
        ])
        .await?;
    Ok(())
}
