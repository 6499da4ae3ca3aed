//! Starting, and not starting: what is wrong is reported in one line, nothing is left half-started, and a
//! process that runs is ended by nothing that happens to the API server.

use std::process::{ExitStatus, Output};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::certificates::Authority;
use harness::fleet::{Profile, binary};
use harness::process::WorkDir;
use harness::{Replica, kubeconfig, ports, run_test, until};
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;

use crate::support::{
    PATIENCE, POLL, Watcher, alone, beside, complete, create, deployment, fleet, judged, log_of,
    owners,
};

const LEASE: Duration = Duration::from_secs(5);
/// What a process may take beside what it waits for, on a busy machine.
const GRACE: Duration = Duration::from_secs(5);
/// An API server that does not answer for so long ends the start.
const NO_ANSWER: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_secs(20);
const AFTER_THE_PAUSE: Duration = Duration::from_secs(3);

/// Runs the program to its end.
async fn run(args: &[&str], limit: Duration) -> Result<Output> {
    let binary = tokio::task::spawn_blocking(|| binary(Profile::of_this_build())).await??;
    let output = tokio::process::Command::new(binary)
        .args(args)
        .env_remove("KUBECONFIG")
        .env_remove("POD_NAME")
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(limit, output).await;
    Ok(output.with_context(|| format!("{args:?} had not ended after {limit:?}"))??)
}

/// The one line on stderr of a start that fails.
async fn refusal(args: &[&str], limit: Duration) -> Result<String> {
    let output = run(args, limit).await?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    println!("start: {}", text.trim());
    ensure!(!output.status.success(), "{args:?} succeeded");
    ensure!(output.stdout.is_empty(), "{args:?} wrote to stdout");
    let errors: Vec<&str> = text.lines().filter(|line| is_error(line)).collect();
    ensure!(errors.len() == 1, "not one line: {text}");
    ensure!(
        text.lines().last() == Some(errors[0]),
        "it continues after the error: {text}"
    );
    Ok(errors[0].to_owned())
}

/// The error that ends the process, beside lines of its log.
fn is_error(line: &str) -> bool {
    line.starts_with("manifold: ")
}

/// Waits for the end of a replica that cannot start; gives its one line.
async fn given_up(replica: &mut Replica, limit: Duration) -> Result<(ExitStatus, String)> {
    let log = replica.log().to_owned();
    let name = replica.name().to_owned();
    let replica = std::sync::Mutex::new(replica);
    let status = until(&format!("{name} gives up"), limit, POLL, || async {
        Ok(replica.lock().ok().and_then(|mut replica| replica.exited()))
    })
    .await?;
    let text = std::fs::read_to_string(log)?;
    let errors: Vec<&str> = text.lines().filter(|line| is_error(line)).collect();
    ensure!(errors.len() == 1, "not one line: {text}");
    println!("start: {}", errors[0]);
    Ok((status, errors[0].to_owned()))
}

fn says(line: &str, words: &[&str]) -> Result<()> {
    for word in words {
        ensure!(line.contains(word), "{word:?} is not in: {line}");
    }
    Ok(())
}

#[test]
fn bad_flags_and_files_are_reported_in_one_line() {
    let _beside = beside();
    run_test(async {
        let limit = GRACE * 2;
        let line = refusal(&["--concurrent-deployment-sync=5"], limit).await?;
        says(
            &line,
            &[
                "--concurrent-deployment-sync",
                "--concurrent-deployment-syncs",
            ],
        )?;
        let line = refusal(&["--lease-duration=banana"], limit).await?;
        says(&line, &["--lease-duration", "banana"])?;
        let line = refusal(&["--ranges=100"], limit).await?;
        says(&line, &["--ranges", "100", "power of two"])?;
        let line = refusal(&["--controllers=*,-deploymentt"], limit).await?;
        says(&line, &["deploymentt"])?;

        let dir = WorkDir::new()?;
        let absent = dir.file("absent.kubeconfig");
        let flag = format!("--kubeconfig={}", absent.display());
        says(&refusal(&[&flag], limit).await?, &["absent.kubeconfig"])?;
        let broken = dir.write("broken.kubeconfig", "clusters: [")?;
        let flag = format!("--kubeconfig={}", broken.display());
        says(&refusal(&[&flag], limit).await?, &["broken.kubeconfig"])?;

        let help = run(&["--help"], limit).await?;
        ensure!(help.status.success());
        let text = String::from_utf8(help.stdout)?;
        for flag in [
            "--kubeconfig",
            "--ranges",
            "--concurrent-deployment-syncs",
            "--lease-duration",
        ] {
            ensure!(text.contains(flag), "--help does not name {flag}");
        }
        let version = run(&["--version"], limit).await?;
        ensure!(version.status.success());
        let text = String::from_utf8(version.stdout)?;
        ensure!(text.contains(env!("CARGO_PKG_VERSION")), "{text}");
        ensure!(text.lines().count() == 1, "{text}");
        Ok(())
    });
}

#[test]
fn an_api_server_that_does_not_answer_ends_the_start_after_ten_seconds() {
    let _beside = beside();
    run_test(async {
        // It takes connections and says nothing.
        let silent = std::net::TcpListener::bind("127.0.0.1:0")?;
        let url = format!("https://{}", silent.local_addr()?);
        let authority = Authority::new("nobody")?;
        let identity = authority.client("somebody", None)?;
        let text = kubeconfig::render(&url, authority.certificate(), "somebody", &identity)?;
        let dir = WorkDir::new()?;
        let file = dir.write("silent.kubeconfig", text)?;
        let flag = format!("--kubeconfig={}", file.display());
        let port = format!("--secure-port={}", ports::free()?);
        let args = [
            flag.as_str(),
            port.as_str(),
            "--replica-name=nobody",
            "--peer-insecure",
            "--peer-bind-address=127.0.0.1",
        ];
        let since = Instant::now();
        let line = refusal(&args, NO_ANSWER + GRACE).await?;
        let took = since.elapsed();
        println!("start: gave up on a silent API server after {took:.2?}");
        ensure!(
            took >= NO_ANSWER - Duration::from_millis(500),
            "after {took:?} already"
        );
        says(&line, &[&url, "10s"])
    });
}

/// Changes a Deployment and waits until that is served; gives how long it took since `since`.
async fn served(
    api: &Api<Deployment>,
    name: &str,
    seconds: u32,
    since: Instant,
    limit: Duration,
) -> Result<Duration> {
    let patch = Patch::Merge(json!({"spec": {"minReadySeconds": seconds}}));
    let written = until("the server takes a change", limit, POLL, || async {
        Ok(Some(
            api.patch(name, &PatchParams::default(), &patch).await?,
        ))
    })
    .await?;
    let left = limit.saturating_sub(since.elapsed());
    until(&format!("{name} is served"), left, POLL / 5, || async {
        let status = api.get(name).await?.status.unwrap_or_default();
        ensure!(status.observed_generation >= written.metadata.generation);
        Ok(Some(()))
    })
    .await?;
    Ok(since.elapsed())
}

async fn all_served(
    client: &Client,
    namespace: &str,
    count: usize,
    seconds: u32,
    limit: Duration,
) -> Result<Duration> {
    let api: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    let since = Instant::now();
    let names: Vec<String> = (0..count).map(|index| format!("key-{index}")).collect();
    let waits = names
        .iter()
        .map(|name| served(&api, name, seconds, since, limit));
    let waits = futures::future::try_join_all(waits).await?;
    waits.into_iter().max().context("no key")
}

#[test]
fn a_running_fleet_outlives_namesakes_strangers_and_a_silent_api_server() {
    const KEYS: usize = 20;
    let _alone = alone();
    run_test(async {
        let mut control_plane = judged().await?;
        let client = control_plane.client().await?;
        let fleet = fleet(&control_plane).await?;
        let mut replicas = fleet.start_all(2).await?;
        let mut watcher = Watcher::new(client.clone(), fleet.ranges());
        for replica in &replicas {
            watcher.add(replica)?;
        }
        watcher
            .settled("two share", Instant::now(), PATIENCE)
            .await?;
        let before = replicas[0].shards().await?.incarnation;

        // A second of the same name waits one lease duration, then gives up.
        let since = Instant::now();
        let mut namesake = fleet.start_named("manifold-0", &[])?;
        let (status, line) = given_up(&mut namesake, LEASE + GRACE * 2).await?;
        println!("start: a namesake gave up after {:.2?}", since.elapsed());
        ensure!(!status.success() && since.elapsed() >= LEASE);
        says(&line, &["manifold-0", "--replica-name"])?;

        // So does one that divides the work otherwise, at once.
        let mut stranger = fleet.start_named("manifold-9", &["--ranges=128"])?;
        let (status, line) = given_up(&mut stranger, GRACE * 2).await?;
        ensure!(!status.success());
        says(&line, &["--ranges", "128", "256"])?;

        let (owners_before, _) = watcher
            .settled("two share still", Instant::now(), PATIENCE)
            .await?;
        let shards = replicas[0].shards().await?;
        ensure!(
            shards.incarnation == before && shards.fence.open,
            "the first was disturbed"
        );

        // The API server hangs for four lease durations.
        let namespace = control_plane.namespace("start").await?;
        let api: Api<Deployment> = Api::namespaced(client.clone(), &namespace);
        for index in 0..KEYS {
            create(&api, deployment(&format!("key-{index}"), 0)).await?;
        }
        all_served(&client, &namespace, KEYS, 1, PATIENCE).await?;
        control_plane.pause_api_server()?;
        tokio::time::sleep(PAUSE).await;
        control_plane.resume_api_server()?;
        let took = all_served(&client, &namespace, KEYS, 2, AFTER_THE_PAUSE).await;
        for replica in &mut replicas {
            replica.check()?;
        }
        println!(
            "start: all of {KEYS} keys served {:.2?} after a pause of {PAUSE:?}",
            took?
        );
        let (owners_after, _) = watcher
            .settled("two share as before", Instant::now(), PATIENCE)
            .await?;
        ensure!(owners_before == owners_after, "ranges moved");
        ensure!(owners(&client).await? == owners_before);
        Ok(())
    });
}

#[test]
fn a_forbidden_resource_is_named_and_holds_back_only_who_needs_it() {
    let _beside = beside();
    run_test(async {
        let control_plane = judged().await?;
        let client = control_plane.client().await?;
        // All that the manager needs, but for jobs.
        let role = json!({
            "apiVersion": "v1", "kind": "List", "items": [
                {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
                 "metadata": {"name": "without-jobs"},
                 "rules": [{
                    "apiGroups": ["", "apps", "coordination.k8s.io", "manifold.dev", "events.k8s.io", "authentication.k8s.io", "authorization.k8s.io"],
                    "resources": ["*"], "verbs": ["*"]},
                    {"apiGroups": ["batch"], "resources": ["cronjobs", "cronjobs/*"], "verbs": ["*"]}]},
                {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
                 "metadata": {"name": "without-jobs"},
                 "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "without-jobs"},
                 "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "without-jobs"}]},
            ],
        });
        control_plane.apply_text(&role.to_string()).await?;
        let authority = control_plane.authority();
        let identity = authority.client("without-jobs", None)?;
        let text = kubeconfig::render(
            &control_plane.url(),
            authority.certificate(),
            "without-jobs",
            &identity,
        )?;
        let file = control_plane.dir().write("without-jobs.kubeconfig", text)?;
        let flag = format!("--kubeconfig={}", file.display());
        let fleet = control_plane.fleet().build().await?;
        let mut replica = fleet.start_named("manifold-0", &[&flag])?;

        let namespace = control_plane.namespace("forbidden").await?;
        let api: Api<Deployment> = Api::namespaced(client.clone(), &namespace);
        create(&api, deployment("web", 2)).await?;
        complete(&api, "web", 2)
            .await
            .with_context(|| log_of(&replica))?;

        // It says so for as long as it is so; the answer of an unready path comes as an error.
        let said = until(
            "the forbidden resource is named",
            PATIENCE,
            POLL,
            || async {
                let said = match replica.text("/readyz?verbose").await {
                    Ok(text) => text,
                    Err(error) => format!("{error:#}"),
                };
                ensure!(said.contains("watch-jobs.batch failed"), "{said}");
                Ok(Some(said))
            },
        )
        .await?;
        let line = said
            .lines()
            .find(|line| line.contains("watch-jobs.batch"))
            .unwrap_or_default();
        println!("start: {line}");
        // A streaming list is a watch, so that is the verb that was refused.
        says(line, &["watch jobs.batch", "forbidden"])?;
        let metrics = replica.metrics().await?;
        println!(
            "start: reconciles while jobs are forbidden: {:?}",
            metrics.sum("workqueue_work_duration_seconds_count", &[])
        );
        replica.check()
    });
}
