//! Operators steer a fleet: `kubectl manifold pause`, `resume`, `drain`, `undrain`, `set` and `unset`, with
//! their own rights.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::observe::{Change, follow};
use harness::{ControlPlane, Replica, run_test, until};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::Event;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;

use crate::kubectl::{Plugin, user};
use crate::support::{
    PATIENCE, POLL, Watcher, all_end_well, alone, create, deployment, fleet, fleet_of, judge,
    judged, loads, owners,
};

const REPLICAS: usize = 3;
const RANGES: u32 = 256;
pub const CONTROLLER: &str = "deployment-controller";
/// What was paused is served within this time of its being resumed.
const SERVED_WITHIN: Duration = Duration::from_secs(1);
/// A paused key is observed for so long.
const STILL: Duration = Duration::from_secs(3);
/// Keys that are changed in turn while a replica is drained, and how often one is.
const KEYS: usize = 60;
const TOUCH: Duration = Duration::from_millis(60);
/// No key waits longer while ranges move.
const WAIT_MAX: Duration = Duration::from_millis(500);
/// Without a move, and after each.
const QUIET: Duration = Duration::from_secs(6);

/// Who may steer: bound in the fleet's namespace alone.
pub async fn steerer(control_plane: &ControlPlane) -> Result<Plugin> {
    let args = [
        "create",
        "rolebinding",
        "operator-steers",
        "--clusterrole=manifold:steer",
        "--user=operator",
        "--namespace",
        harness::fleet::NAMESPACE,
    ];
    control_plane.kubectl(&args).await?;
    user(control_plane, "operator", &["view", "manifold:view-debug"]).await
}

/// Runs a command that must succeed; its output.
pub async fn done(plugin: &Plugin, replica: &Replica, words: &[&str]) -> Result<String> {
    let said = plugin.run(replica, words).await?;
    ensure!(said.code == 0, "{words:?}: {}{}", said.out, said.err);
    println!("$ kubectl manifold {}\n{}", words.join(" "), said.out);
    Ok(said.out)
}

/// Runs a command that must be refused, with this in its error.
pub async fn refused(plugin: &Plugin, replica: &Replica, words: &[&str], part: &str) -> Result<()> {
    let said = plugin.run(replica, words).await?;
    ensure!(
        said.code == 2 && said.err.contains(part),
        "{words:?}: {} {}{}",
        said.code,
        said.out,
        said.err
    );
    println!("$ kubectl manifold {}\n{}", words.join(" "), said.err);
    Ok(())
}

/// Waits until each replica says this of the controller; how long that took.
async fn said(
    replicas: &[Replica],
    metric: &str,
    label: (&str, &str),
    value: f64,
) -> Result<Duration> {
    let begun = Instant::now();
    until(
        "each replica knows the order",
        PATIENCE,
        POLL / 5,
        || async {
            for replica in replicas {
                let labels = [("controller", CONTROLLER), label];
                let metrics = replica.metrics().await?;
                let found = metrics.sum(metric, &labels).unwrap_or(0.0);
                if found != value {
                    return Ok(None);
                }
            }
            Ok(Some(()))
        },
    )
    .await?;
    Ok(begun.elapsed())
}

/// Waits until each replica knows this number of pauses.
async fn known(replicas: &[Replica], of: &str, pauses: f64) -> Result<()> {
    let took = said(replicas, "manifold_pauses", ("of", of), pauses).await?;
    println!("steering: each replica knows {pauses} pauses ({of}) after {took:.2?}");
    Ok(())
}

/// The replica that owns a Deployment's key, and what it says of it.
async fn owner(replicas: &[Replica], key: &str) -> Result<(usize, serde_json::Value)> {
    for (index, replica) in replicas.iter().enumerate() {
        let Ok(client) = replica.client() else {
            continue;
        };
        let Ok(said) = harness::fleet::explain(&client, CONTROLLER, key).await else {
            continue;
        };
        if said["owner"] == said["replica"] {
            return Ok((index, said));
        }
    }
    anyhow::bail!("nobody owns {key}")
}

async fn sets(client: &Client, namespace: &str, of: &str) -> Result<usize> {
    let api: Api<ReplicaSet> = Api::namespaced(client.clone(), namespace);
    let params = ListParams::default().labels(&format!("app={of}"));
    Ok(api.list(&params).await?.items.len())
}

/// Changes a Deployment; the generation that it has then.
async fn touch(api: &Api<Deployment>, name: &str, seconds: usize) -> Result<i64> {
    let patch = Patch::Merge(json!({"spec": {"minReadySeconds": seconds}}));
    let changed = api.patch(name, &PatchParams::default(), &patch).await?;
    Ok(changed.metadata.generation.unwrap_or_default())
}

async fn observed(api: &Api<Deployment>, name: &str) -> Result<i64> {
    let status = api.get(name).await?.status.unwrap_or_default();
    Ok(status.observed_generation.unwrap_or_default())
}

/// Waits until a Deployment's change is served; how long that took.
pub async fn served(api: &Api<Deployment>, name: &str, generation: i64) -> Result<Duration> {
    let begun = Instant::now();
    let what = format!("{name} is served");
    until(&what, PATIENCE, POLL / 5, || async {
        Ok((observed(api, name).await? >= generation).then_some(()))
    })
    .await?;
    Ok(begun.elapsed())
}

/// Reasons and messages of the events at an object.
async fn events(client: &Client, namespace: &str, name: &str) -> Result<Vec<(String, String)>> {
    let api: Api<Event> = Api::namespaced(client.clone(), namespace);
    let params = ListParams::default().fields(&format!("involvedObject.name={name}"));
    let all = api.list(&params).await?.items.into_iter();
    let found = all.map(|event| {
        let reason = event.reason.unwrap_or_default();
        (reason, event.message.unwrap_or_default())
    });
    Ok(found.collect())
}

/// Waits for an event at an object.
pub async fn event(client: &Client, namespace: &str, name: &str, reason: &str) -> Result<()> {
    let what = format!("{name} has an event {reason}");
    until(&what, PATIENCE, POLL, || async {
        let all = events(client, namespace, name).await?;
        Ok(all.iter().any(|(found, _)| found == reason).then_some(()))
    })
    .await
}

#[test]
fn a_paused_controller_stays_paused_through_a_kill_until_it_is_resumed() {
    let _alone = alone();
    run_test(async {
        let control_plane = judged().await?;
        let client = control_plane.client().await?;
        let operator = steerer(&control_plane).await?;
        let stranger = user(&control_plane, "stranger", &["manifold:view-debug"]).await?;
        let fleet = fleet(&control_plane).await?;
        let mut replicas = fleet.start_all(REPLICAS).await?;
        let namespace = control_plane.namespace("paused").await?;
        let api: Api<Deployment> = Api::namespaced(client.clone(), &namespace);
        create(&api, deployment("free", 0)).await?;
        served(&api, "free", 1).await?;

        // RBAC alone decides, and says so beforehand.
        let pause = ["pause", CONTROLLER, "--for", "10m", "--reason", "a trial"];
        refused(&stranger, &replicas[0], &pause, "manifold:steer").await?;
        // Replicas remove what has expired.
        let account = "system:serviceaccount:manifold-system:manifold";
        for (who, may) in [("stranger", false), ("operator", true), (account, true)] {
            let args = [
                "auth",
                "can-i",
                "patch",
                "configmaps/manifold-steering",
                "--namespace",
                harness::fleet::NAMESPACE,
                "--as",
                who,
            ];
            // It fails for no.
            let answer = control_plane.kubectl(&args).await;
            ensure!(answer.is_ok() == may, "{who}: {answer:?}");
        }
        for (words, part) in [
            (
                &["pause", "deploymet-controller"][..],
                "did you mean \"deployment-controller\"?",
            ),
            (&["pause", "deployment/a/b/c"], "is no key"),
            (&["pause", CONTROLLER, "--for", "200h"], "at most 168h"),
            (&["drain", "manifold-9"], "did you mean"),
        ] {
            refused(&operator, &replicas[0], words, part).await?;
        }

        done(&operator, &replicas[0], &pause).await?;
        known(&replicas, "controller", 1.0).await?;
        create(&api, deployment("held", 2)).await?;
        let key = format!("{namespace}/held");
        let (its_owner, said) = until("it waits", PATIENCE, POLL, || async {
            let (index, said) = owner(&replicas, &key).await?;
            Ok((said["state"] == "paused").then_some((index, said)))
        })
        .await?;
        ensure!(said["blocker"]["kind"] == "paused", "{said}");
        replicas[its_owner].kill();
        let after_a_kill = until("another owns it", PATIENCE, POLL, || async {
            let (index, said) = owner(&replicas, &key).await?;
            Ok((index != its_owner && said["state"] == "paused").then_some(index))
        })
        .await?;
        replicas[its_owner] = fleet.start(its_owner)?;
        known(&replicas, "controller", 1.0).await?;
        tokio::time::sleep(STILL).await;
        ensure!(
            sets(&client, &namespace, "held").await? == 0,
            "it was reconciled"
        );
        let status = operator.run(&replicas[after_a_kill], &["status"]).await?;
        ensure!(
            status.out.contains("a trial") && status.out.contains("operator"),
            "{}",
            status.out
        );
        println!("$ kubectl manifold status\n{}", status.out);
        let explained = done(
            &operator,
            &replicas[after_a_kill],
            &["explain", "deployment/held", "-n", &namespace],
        )
        .await?;
        ensure!(
            explained.contains("kubectl manifold resume deployment-controller"),
            "{explained}"
        );

        done(&operator, &replicas[0], &["resume", CONTROLLER]).await?;
        let begun = Instant::now();
        until("it has a ReplicaSet", PATIENCE, POLL / 5, || async {
            Ok((sets(&client, &namespace, "held").await? == 1).then_some(()))
        })
        .await?;
        let took = begun.elapsed();
        println!("steering: resumed, it has a ReplicaSet after {took:.2?}");
        ensure!(took <= SERVED_WITHIN, "{took:?}");
        let again = operator.json(&replicas[0], &["resume", CONTROLLER]).await?;
        ensure!(again["changed"] == false, "{again}");
        for reason in ["Paused", "Resumed"] {
            event(
                &client,
                harness::fleet::NAMESPACE,
                "manifold-steering",
                reason,
            )
            .await?;
        }

        // One key, while its neighbour works; it ends by time.
        let key = format!("{CONTROLLER}/{namespace}/held");
        let ordered = operator
            .json(&replicas[0], &["pause", &key, "--for", "6s"])
            .await?;
        let end: jiff::Timestamp = ordered["orders"][0]["until"]
            .as_str()
            .with_context(|| ordered.to_string())?
            .parse()?;
        let paused = Instant::now();
        known(&replicas, "key", 1.0).await?;
        let held = touch(&api, "held", 1).await?;
        let free = touch(&api, "free", 1).await?;
        let took = served(&api, "free", free).await?;
        println!("steering: the neighbour of a paused key is served after {took:.2?}");
        tokio::time::sleep(STILL.saturating_sub(paused.elapsed())).await;
        ensure!(observed(&api, "held").await? < held, "it was reconciled");
        served(&api, "held", held).await?;
        let took = jiff::Timestamp::now().duration_since(end);
        let took = Duration::try_from(took).context("before the end of its pause")?;
        println!("steering: served {took:.2?} after the end of its pause");
        ensure!(took <= SERVED_WITHIN, "{took:?}");
        for reason in ["Paused", "Resumed"] {
            event(&client, &namespace, "held", reason).await?;
        }

        // What is no order pauses nothing, and is named.
        let broken = json!({"data": {
            "pause.by-hand": format!(r#"{{"controller":"{CONTROLLER}","keey":"a/b","since":"2026-01-01T00:00:00Z","until":"2026-01-01T01:00:00Z"}}"#),
            "note": "hello",
        }});
        let args = [
            "patch",
            "configmap",
            "manifold-steering",
            "--namespace",
            harness::fleet::NAMESPACE,
            "--type=merge",
            "--patch",
            &broken.to_string(),
        ];
        control_plane.kubectl(&args).await?;
        until("the fault is named", PATIENCE, POLL, || async {
            let said = operator.run(&replicas[0], &["status"]).await?;
            let named =
                said.out.contains("pause.by-hand") && said.out.contains("unknown field `keey`");
            Ok((named && said.code == 1).then_some(()))
        })
        .await?;
        let free = touch(&api, "free", 2).await?;
        let took = served(&api, "free", free).await?;
        ensure!(
            took <= SERVED_WITHIN,
            "a malformed order held it for {took:?}"
        );

        all_end_well(&mut replicas).await?;
        judge(&control_plane, "steering, paused")?;
        Ok(())
    });
}

/// Changes of keys: what waits, and how long what was served has waited.
#[derive(Debug, Default)]
pub struct Stream {
    waiting: BTreeMap<String, (i64, Instant)>,
    waits: Vec<(Instant, Duration)>,
}

pub type Shared = Arc<Mutex<Stream>>;

fn lock(stream: &Shared) -> std::sync::MutexGuard<'_, Stream> {
    stream.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes what is served, for ever.
pub async fn observe(api: Api<Deployment>, stream: Shared) {
    follow(api, String::new(), |change| {
        let Change::Seen(deployment) = change else {
            return;
        };
        let name = deployment.metadata.name.unwrap_or_default();
        let seen = deployment.status.unwrap_or_default().observed_generation;
        let mut stream = lock(&stream);
        if let Some((wanted, since)) = stream.waiting.get(&name).copied()
            && seen.is_some_and(|seen| seen >= wanted)
        {
            stream.waiting.remove(&name);
            stream.waits.push((since, since.elapsed()));
        }
    })
    .await;
}

/// Changes one key after the other; one that still waits is left alone.
async fn load(api: Api<Deployment>, stream: Shared) {
    let mut ticks = tokio::time::interval(TOUCH);
    for turn in 0_usize.. {
        ticks.tick().await;
        let name = format!("key-{:02}", turn % KEYS);
        change(&api, &stream, &name, 1 + turn / KEYS).await;
    }
}

/// Changes a key, unless it still waits.
pub async fn change(api: &Api<Deployment>, stream: &Shared, name: &str, seconds: usize) {
    if lock(stream).waiting.contains_key(name) {
        return;
    }
    let since = Instant::now();
    // Below progressDeadlineSeconds, as the API server asks.
    let seconds = seconds % 599;
    let generation = touch(api, name, seconds).await.expect("it is taken");
    lock(stream)
        .waiting
        .insert(name.to_owned(), (generation, since));
    // It may have been served before this answer, of which the watch says nothing more.
    let seen = observed(api, name).await.expect("it is there");
    let mut stream = lock(stream);
    if seen >= generation && stream.waiting.remove(name).is_some() {
        stream.waits.push((since, since.elapsed()));
    }
}

/// How many changes began in a time, and the longest wait.
pub fn longest(stream: &Shared, from: Instant, to: Instant) -> (usize, Duration) {
    let stream = lock(stream);
    let began = |since: &Instant| *since >= from && *since < to;
    let served = stream.waits.iter().filter(|(since, _)| began(since));
    let open = stream.waiting.values().filter(|(_, since)| began(since));
    let waits: Vec<Duration> = served
        .map(|(_, wait)| *wait)
        .chain(open.map(|(_, since)| since.elapsed()))
        .collect();
    (waits.len(), waits.into_iter().max().unwrap_or_default())
}

#[test]
fn a_drained_replica_gives_its_ranges_away_under_load_and_gets_them_back() {
    let _alone = alone();
    run_test(async {
        let control_plane = judged().await?;
        let client = control_plane.client().await?;
        let operator = steerer(&control_plane).await?;
        let fleet = fleet(&control_plane).await?;
        let mut replicas = fleet.start_all(REPLICAS).await?;
        let mut watcher = Watcher::new(client.clone(), RANGES);
        for replica in &replicas {
            watcher.add(replica)?;
        }
        watcher
            .settled("all own ranges", Instant::now(), PATIENCE)
            .await?;
        let namespace = control_plane.namespace("drained").await?;
        let api: Api<Deployment> = Api::namespaced(client.clone(), &namespace);
        for index in 0..KEYS {
            create(&api, deployment(&format!("key-{index:02}"), 0)).await?;
        }
        for index in 0..KEYS {
            served(&api, &format!("key-{index:02}"), 1).await?;
        }
        let stream = Shared::default();
        let tasks = [
            tokio::spawn(observe(api.clone(), Arc::clone(&stream))),
            tokio::spawn(load(api.clone(), Arc::clone(&stream))),
        ];
        tokio::time::sleep(QUIET).await;
        let drained = Instant::now();
        let name = replicas[0].name().to_owned();
        done(
            &operator,
            &replicas[1],
            &["drain", &name, "--wait", "60s", "--reason", "a trial"],
        )
        .await?;
        let loads = loads(&owners(&client).await?);
        ensure!(
            !loads.contains_key(&name) && loads.len() == REPLICAS - 1,
            "{loads:?}"
        );
        let names: BTreeSet<&String> = loads.keys().collect();
        println!(
            "steering: {name} is drained, {names:?} own {:?}",
            loads.values()
        );
        ensure!(replicas[0].exited().is_none(), "its process has ended");
        let status = operator.run(&replicas[0], &["status"]).await?;
        ensure!(
            status.code == 0 && status.out.contains("drained"),
            "{}{}",
            status.out,
            status.err
        );
        println!("$ kubectl manifold status\n{}", status.out);
        tokio::time::sleep(QUIET).await;
        ensure!(
            !self::loads(&owners(&client).await?).contains_key(&name),
            "it has taken ranges"
        );

        // Somebody must own the ranges.
        let second = replicas[1].name().to_owned();
        done(
            &operator,
            &replicas[2],
            &["drain", &second, "--wait", "60s"],
        )
        .await?;
        let last = replicas[2].name().to_owned();
        refused(
            &operator,
            &replicas[2],
            &["drain", &last],
            "nothing would move",
        )
        .await?;

        let undrained = Instant::now();
        for name in [&name, &second] {
            done(&operator, &replicas[2], &["undrain", name]).await?;
        }
        let (_, took) = watcher
            .settled("all own ranges again", undrained, PATIENCE)
            .await?;
        println!("steering: undrained, loads are even after {took:.1?}");
        let ended = Instant::now();
        tokio::time::sleep(QUIET).await;
        for task in tasks {
            task.abort();
        }
        let (count, quiet) = longest(
            &stream,
            drained.checked_sub(QUIET).unwrap_or(drained),
            drained,
        );
        println!("steering: at rest {count} changes, the longest wait {quiet:.0?}");
        let (count, moving) = longest(&stream, drained, ended);
        println!("steering: while ranges move {count} changes, the longest wait {moving:.0?}");
        ensure!(count > 50, "{count} changes alone");
        // A machine that is busy with something else shows that at rest too.
        ensure!(
            moving <= WAIT_MAX.max(quiet * 2),
            "a key waited {moving:?}, at rest {quiet:?}"
        );

        all_end_well(&mut replicas).await?;
        judge(&control_plane, "steering, drained")?;
        Ok(())
    });
}

#[test]
fn a_drain_towards_members_that_do_not_answer_says_so_in_time_and_ends_by_leases() {
    /// Nobody listens there.
    const NOBODY: &str = "--peer-advertise-address=127.0.0.1:1";
    let _alone = alone();
    run_test(async {
        let control_plane = judged().await?;
        let client = control_plane.client().await?;
        let operator = steerer(&control_plane).await?;
        let fleet = fleet_of(&control_plane, &[NOBODY]).await?;
        let mut replicas = fleet.start_all(2).await?;
        let mut watcher = Watcher::new(client.clone(), RANGES);
        for replica in &replicas {
            watcher.add(replica)?;
        }
        watcher
            .settled("both own ranges", Instant::now(), PATIENCE)
            .await?;
        let name = replicas[0].name().to_owned();
        // A stale replica waits two retry periods before it moves anything.
        let words = ["drain", &name, "--wait", "1s"];
        refused(
            &operator,
            &replicas[1],
            &words,
            "still owns 128 ranges after 1s",
        )
        .await?;
        let drained = Instant::now();
        let words = ["drain", &name, "--wait", "60s"];
        done(&operator, &replicas[1], &words).await?;
        println!(
            "steering: drained without peers after {:.1?}",
            drained.elapsed()
        );
        let status = operator.run(&replicas[1], &["status"]).await?;
        ensure!(
            status.code == 1 && status.out.contains("does not"),
            "{}",
            status.out
        );
        let undrained = Instant::now();
        done(&operator, &replicas[1], &["undrain", &name]).await?;
        let (_, took) = watcher
            .settled("both own ranges again", undrained, PATIENCE)
            .await?;
        println!("steering: undrained without peers, loads are even after {took:.1?}");
        all_end_well(&mut replicas).await?;
        judge(&control_plane, "steering, drained without peers")?;
        Ok(())
    });
}

/// The workers of the controller in each replica, by `status`.
pub async fn workers(plugin: &Plugin, replica: &Replica) -> Result<BTreeSet<u64>> {
    let status = plugin.json(replica, &["status"]).await?;
    let replicas = status["fleet"]["replicas"].as_array().into_iter().flatten();
    let all = replicas.flat_map(|one| one["controllers"].as_array().into_iter().flatten());
    let its = all.filter(|one| one["name"] == CONTROLLER);
    Ok(its.filter_map(|one| one["workers"].as_u64()).collect())
}

/// Deployments that are made while their controller may write little.
const SLOWED: usize = 40;
/// Writes that each replica may send at once with the rate that is set, and in a second.
const BURST: usize = 2;
const RATE: usize = 1;

#[test]
fn a_rate_and_workers_that_are_set_hold_through_a_kill_until_they_are_taken_back() {
    let _alone = alone();
    run_test(async {
        let control_plane = judged().await?;
        let client = control_plane.client().await?;
        let operator = steerer(&control_plane).await?;
        let fleet = fleet_of(&control_plane, &["--adaptive-workers=false"]).await?;
        let mut replicas = fleet.start_all(REPLICAS).await?;
        let namespace = control_plane.namespace("slowed").await?;
        let api: Api<Deployment> = Api::namespaced(client.clone(), &namespace);
        create(&api, deployment("first", 0)).await?;
        served(&api, "first", 1).await?;
        for (words, part) in [
            (&["set", "workers", CONTROLLER, "0"][..], "from 1 to 1000"),
            (&["set", "qps", CONTROLLER, "fast"], "\"fast\" is no number"),
            (
                &["set", "qps", "deploymet-controller", "1"],
                "did you mean \"deployment-controller\"?",
            ),
            (
                &["set", "qps", CONTROLLER, "1", "--for", "200h"],
                "at most 168h",
            ),
        ] {
            refused(&operator, &replicas[0], words, part).await?;
        }

        let rate = RATE.to_string();
        let words = ["set", "qps", CONTROLLER, &rate, "--reason", "a trial"];
        done(&operator, &replicas[0], &words).await?;
        let took = said(
            &replicas,
            "manifold_settings",
            ("setting", "qps"),
            RATE as f64,
        )
        .await?;
        println!("steering: each replica knows the rate after {took:.2?}");
        replicas[1].kill();
        replicas[1] = fleet.start(1)?;
        said(
            &replicas,
            "manifold_settings",
            ("setting", "qps"),
            RATE as f64,
        )
        .await?;
        let status = operator.run(&replicas[2], &["status"]).await?;
        ensure!(status.out.contains("a trial"), "{}", status.out);
        println!("$ kubectl manifold status\n{}", status.out);

        let begun = Instant::now();
        for index in 0..SLOWED {
            create(&api, deployment(&format!("slow-{index:02}"), 0)).await?;
        }
        tokio::time::sleep(QUIET).await;
        let sets: Api<ReplicaSet> = Api::namespaced(client.clone(), &namespace);
        let made = || async { Ok(sets.list(&ListParams::default()).await?.items.len() - 1) };
        let found: Result<usize> = made().await;
        let (found, waited) = (found?, begun.elapsed());
        let most = REPLICAS * (BURST + RATE * (waited.as_secs() as usize + 1));
        println!(
            "steering: {found} of {SLOWED} ReplicaSets after {waited:.1?}, {most} writes were allowed"
        );
        ensure!(found <= most && found < SLOWED, "{found} of {most}");
        done(&operator, &replicas[0], &["unset", "qps", CONTROLLER]).await?;
        let begun = Instant::now();
        until("all have a ReplicaSet", PATIENCE, POLL / 5, || async {
            let made: Result<usize> = made().await;
            Ok((made? == SLOWED).then_some(()))
        })
        .await?;
        println!(
            "steering: all of them {:.2?} after it was taken back",
            begun.elapsed()
        );

        let configured = workers(&operator, &replicas[0]).await?;
        let words = ["set", "workers", CONTROLLER, "1", "--for", "5s"];
        done(&operator, &replicas[0], &words).await?;
        until("each replica has one worker", PATIENCE, POLL, || async {
            let found = workers(&operator, &replicas[0]).await?;
            Ok((found == BTreeSet::from([1])).then_some(()))
        })
        .await?;
        let changed = touch(&api, "first", 1).await?;
        let took = served(&api, "first", changed).await?;
        println!("steering: with one worker a key is served after {took:.2?}");
        until("the order has expired", PATIENCE, POLL, || async {
            let found = workers(&operator, &replicas[0]).await?;
            Ok((found == configured).then_some(()))
        })
        .await?;
        for reason in ["SettingChanged", "SettingRestored"] {
            let namespace = harness::fleet::NAMESPACE;
            event(&client, namespace, "manifold-steering", reason).await?;
        }

        all_end_well(&mut replicas).await?;
        judge(&control_plane, "steering, set")?;
        Ok(())
    });
}
