//! Replicas get equal work: hot ranges part, equal loads move nothing, and an operator's move holds.
//!
//! The work are Deployments without pods that are changed in turn; the owner of a key says its range.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::{ControlPlane, Fleet, Replica, run_test, until};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::DeleteParams;
use kube::{Api, Client};

use super::steering::{
    CONTROLLER, Shared, change, done, event, longest, observe, refused, served, steerer,
};
use crate::kubectl::Plugin;
use crate::support::{
    Owners, PATIENCE, POLL, Watcher, all_end_well, alone, create, deployment, judge, judged, loads,
    owners,
};

const REPLICAS: usize = 3;
const RANGES: u32 = 64;
/// A twentieth of the ranges.
const HOT: usize = 3;
/// Two in each range, about.
const KEYS: usize = 160;
/// Of ten changes, this number are of keys in hot ranges.
const HOT_TENTHS: usize = 9;
/// Tasks that change keys, and how often each does.
const TASKS: usize = 6;
const TOUCH: Duration = Duration::from_millis(80);
/// From the first change on.
const EVEN_AFTER: Duration = Duration::from_secs(120);
/// The busiest replica's work over the mean.
const EVEN: f64 = 1.2;
/// Between two moves: 10 s, less what it takes to see a Lease.
const APART: Duration = Duration::from_millis(9500);
/// No key waits longer while ranges move.
const WAIT_MAX: Duration = Duration::from_millis(500);
const QUIET: Duration = Duration::from_secs(10);

/// A fleet of three with keys in its ranges.
struct Bed {
    control_plane: ControlPlane,
    fleet: Fleet,
    client: Client,
    replicas: Vec<Replica>,
    watcher: Watcher,
    api: Api<Deployment>,
    /// The range of each key.
    keys: BTreeMap<String, u32>,
}

impl Bed {
    async fn start(namespace: &str) -> Result<Self> {
        let control_plane = judged().await?;
        let client = control_plane.client().await?;
        let fleet = control_plane
            .fleet()
            .ranges(RANGES)
            .arg("--use-service-account-credentials=true")
            .build()
            .await?;
        let replicas = fleet.start_all(REPLICAS).await?;
        let mut watcher = Watcher::new(client.clone(), RANGES);
        for replica in &replicas {
            watcher.add(replica)?;
        }
        watcher
            .settled("all own ranges", Instant::now(), PATIENCE)
            .await?;
        let namespace = control_plane.namespace(namespace).await?;
        let api: Api<Deployment> = Api::namespaced(client.clone(), &namespace);
        let mut keys = BTreeMap::new();
        for index in 0..KEYS {
            create(&api, deployment(&name(index), 0)).await?;
        }
        for index in 0..KEYS {
            served(&api, &name(index), 1).await?;
            let key = format!("{namespace}/{}", name(index));
            let said = watcher.explain(CONTROLLER, &key).await?;
            let range = said["range"].as_u64().context("no range")?;
            keys.insert(name(index), u32::try_from(range)?);
        }
        Ok(Self {
            control_plane,
            fleet,
            client,
            replicas,
            watcher,
            api,
            keys,
        })
    }

    fn keys_of(&self, is_wanted: impl Fn(u32) -> bool) -> Vec<String> {
        let keys = self.keys.iter().filter(|(_, range)| is_wanted(**range));
        keys.map(|(name, _)| name.clone()).collect()
    }

    async fn end(mut self, what: &str) -> Result<()> {
        all_end_well(&mut self.replicas).await?;
        judge(&self.control_plane, what)?;
        Ok(())
    }
}

fn name(index: usize) -> String {
    format!("key-{index:03}")
}

/// Changes keys for ever: of ten changes `HOT_TENTHS` of the hot ones.
async fn press(
    api: Api<Deployment>,
    stream: Shared,
    hot: Vec<String>,
    cold: Vec<String>,
    task: usize,
) {
    let mut ticks = tokio::time::interval(TOUCH);
    for turn in 0_usize.. {
        ticks.tick().await;
        let keys = match turn % 10 < HOT_TENTHS {
            true => &hot,
            false => &cold,
        };
        let at = (turn / 10 * HOT_TENTHS + turn % 10) * TASKS + task;
        change(&api, &stream, &keys[at % keys.len()], 1 + turn).await;
    }
}

/// The tasks that change keys and note when they are served.
fn under_load(
    bed: &Bed,
    hot: &[String],
    cold: &[String],
) -> (Shared, Vec<tokio::task::JoinHandle<()>>) {
    let stream = Shared::default();
    let mut tasks = vec![tokio::spawn(observe(bed.api.clone(), Arc::clone(&stream)))];
    for task in 0..TASKS {
        let (hot, cold) = (hot.to_vec(), cold.to_vec());
        let pressing = press(bed.api.clone(), Arc::clone(&stream), hot, cold, task);
        tasks.push(tokio::spawn(pressing));
    }
    (stream, tasks)
}

/// Reads the owners for a while; the ranges that have changed theirs, and when.
async fn moves(client: &Client, from: &Owners, until: Instant) -> Result<Vec<(Instant, u32)>> {
    let (mut before, mut moves) = (from.clone(), Vec::new());
    while Instant::now() < until {
        let after = owners(client).await?;
        let now = Instant::now();
        for (range, (owner, _)) in &after {
            if before.get(range).is_none_or(|(known, _)| known != owner) {
                moves.push((now, *range));
            }
        }
        before = after;
        tokio::time::sleep(POLL).await;
    }
    Ok(moves)
}

/// The work of the busiest replica over the mean, by the changes of each range's keys.
fn busiest(owners: &Owners, work: &BTreeMap<u32, f64>) -> f64 {
    let mut by_owner: BTreeMap<&str, f64> = BTreeMap::new();
    for (range, (owner, _)) in owners {
        *by_owner.entry(owner).or_default() += work.get(range).copied().unwrap_or(0.0);
    }
    let total: f64 = by_owner.values().sum();
    let most = by_owner.values().copied().fold(0.0, f64::max);
    most * REPLICAS as f64 / total
}

async fn plan(client: &Client) -> Result<Option<Lease>> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), harness::fleet::NAMESPACE);
    Ok(leases.get_opt("manifold-plan").await?)
}

/// The sum of a metric over the replicas, or the largest value.
async fn metric(replicas: &[Replica], name: &str) -> Result<Vec<f64>> {
    let mut all = Vec::new();
    for replica in replicas {
        all.push(replica.metrics().await?.sum(name, &[]).unwrap_or(0.0));
    }
    Ok(all)
}

#[test]
#[ignore = "minutes: cargo parity"]
fn hot_ranges_part_one_after_the_other_and_no_key_waits() {
    let _alone = alone();
    run_test(async {
        let bed = Bed::start("hot").await?;
        let before = owners(&bed.client).await?;
        // All hot ranges are one replica's.
        let ranges: BTreeSet<u32> = bed.keys.values().copied().collect();
        let victim = &before
            .get(ranges.first().context("no key")?)
            .context("no owner")?
            .0;
        let own = ranges.iter().filter(|range| before[*range].0 == *victim);
        let hot: BTreeSet<u32> = own.copied().take(HOT).collect();
        ensure!(hot.len() == HOT, "{victim} has keys in {hot:?} alone");
        // Each hot range is as hot as the others, however many keys it has.
        let first = |range: &u32| bed.keys_of(|one| one == *range).into_iter().take(1);
        let (mut hot_keys, cold_keys): (Vec<String>, Vec<String>) = (
            hot.iter().flat_map(first).collect(),
            bed.keys_of(|range| !hot.contains(&range)),
        );
        for range in &hot {
            hot_keys.extend(bed.keys_of(|one| one == *range).into_iter().skip(1).take(1));
        }
        let begun = Instant::now();
        let (stream, tasks) = under_load(&bed, &hot_keys, &cold_keys);
        let moved = moves(&bed.client, &before, begun + EVEN_AFTER).await?;
        let after = owners(&bed.client).await?;
        let ended = Instant::now();
        let imbalance = metric(&bed.replicas, "manifold_placement_imbalance").await?;
        for (at, range) in &moved {
            println!(
                "loads: range {range} moved after {:.1?}",
                at.duration_since(begun)
            );
        }
        let mut work: BTreeMap<u32, f64> = BTreeMap::new();
        for (keys, share) in [(&hot_keys, 0.9), (&cold_keys, 0.1)] {
            for key in keys {
                *work.entry(bed.keys[key]).or_default() += share / keys.len() as f64;
            }
        }
        let (at_first, at_last) = (busiest(&before, &work), busiest(&after, &work));
        println!(
            "loads: the busiest replica has {at_first:.2} times the mean at first and {at_last:.2} after {:.0?}; by the \
             planner {imbalance:?}",
            ended.duration_since(begun)
        );
        ensure!(at_first > 2.0, "it was even from the start");
        ensure!(at_last <= EVEN, "it is not even");
        ensure!(
            moved.windows(2).all(|pair| pair[1].0 - pair[0].0 >= APART),
            "moves are too close"
        );
        ensure!(moved.len() <= 2 * HOT, "{} moves", moved.len());
        let twice: BTreeSet<u32> = moved.iter().map(|(_, range)| *range).collect();
        ensure!(twice.len() == moved.len(), "a range has moved twice");
        let (count, wait) = longest(&stream, begun, ended);
        println!("loads: {count} changes, the longest wait {wait:.0?}");
        ensure!(count > 1000 && wait <= WAIT_MAX, "a key waited {wait:?}");

        // It is even and stays as it is.
        let rest = moves(&bed.client, &after, Instant::now() + QUIET * 3).await?;
        ensure!(rest.is_empty(), "ranges move again: {rest:?}");
        let number = metric(&bed.replicas, "manifold_placement_plan").await?;
        let in_force = metric(&bed.replicas, "manifold_placement_plan_in_force").await?;
        ensure!(
            number == [moved.len() as f64; REPLICAS] && in_force == [1.0; REPLICAS],
            "{number:?} {in_force:?}"
        );
        for task in tasks {
            task.abort();
        }

        // A plan that is gone is as none.
        let lease = plan(&bed.client).await?.context("no plan")?;
        println!("loads: {:?}", lease.metadata.annotations);
        let leases: Api<Lease> = Api::namespaced(bed.client.clone(), harness::fleet::NAMESPACE);
        leases
            .delete("manifold-plan", &DeleteParams::default())
            .await?;
        let deleted = Instant::now();
        let (_, took) = bed
            .watcher
            .settled("equal numbers again", deleted, PATIENCE)
            .await?;
        println!("loads: deleted by hand, numbers are equal after {took:.1?}");
        bed.end("loads, hot").await
    });
}

#[test]
#[ignore = "minutes: cargo parity"]
fn equal_loads_move_nothing() {
    let _alone = alone();
    run_test(async {
        let bed = Bed::start("equal").await?;
        // One key of each range that has any.
        let ranges: BTreeSet<u32> = bed.keys.values().copied().collect();
        let one_each = ranges
            .iter()
            .filter_map(|range| bed.keys_of(|one| one == *range).pop());
        let keys: Vec<String> = one_each.collect();
        ensure!(keys.len() > 50, "keys in {} ranges alone", keys.len());
        let before = owners(&bed.client).await?;
        let begun = Instant::now();
        let (stream, tasks) = under_load(&bed, &keys, &keys);
        let moved = moves(&bed.client, &before, begun + EVEN_AFTER).await?;
        let imbalance = metric(&bed.replicas, "manifold_placement_imbalance").await?;
        let (count, wait) = longest(&stream, begun, Instant::now());
        println!(
            "loads: equal: {count} changes, the longest wait {wait:.0?}, imbalance {imbalance:?}"
        );
        ensure!(imbalance.iter().any(|one| *one >= 1.0), "nobody plans");
        ensure!(
            moved.is_empty() && plan(&bed.client).await?.is_none(),
            "{moved:?}"
        );
        for task in tasks {
            task.abort();
        }
        bed.end("loads, equal").await
    });
}

/// Waits until a replica owns a range.
async fn owned_by(client: &Client, range: u32, wanted: &str) -> Result<Owners> {
    let what = format!("{wanted} owns range {range}");
    until(&what, PATIENCE, POLL, || async {
        let owners = owners(client).await?;
        Ok((owners[&range].0 == wanted).then_some(owners))
    })
    .await
}

/// Moves a range, which must be the only one that moves.
async fn moved_to(bed: &Bed, operator: &Plugin, range: u32, to: &str) -> Result<()> {
    let (number, replica) = (range.to_string(), &bed.replicas[0]);
    for (words, part) in [
        (["move", &number, "--to", "nobody"], "there is no replica"),
        (["move", "64", "--to", to], "0 to 63"),
        (["move", "x/y/z", "--to", to], "names no object"),
    ] {
        refused(operator, replica, &words, part).await?;
    }
    let before = owners(&bed.client).await?;
    let home = &before[&range].0;
    let begun = Instant::now();
    let words = [
        "move", &number, "--to", to, "--for", "10m", "--reason", "a trial",
    ];
    done(operator, replica, &words).await?;
    let mut now = owned_by(&bed.client, range, to).await?;
    println!("loads: moved after {:.2?}", begun.elapsed());
    now.insert(range, before[&range].clone());
    ensure!(now == before, "others have moved");
    for words in [&["status"][..], &["shards", "-o", "wide"]] {
        let shown = operator.run(replica, words).await?;
        println!("$ kubectl manifold {}\n{}", words.join(" "), shown.out);
        ensure!(
            shown.code == 0 && shown.out.contains(home),
            "{}{}",
            shown.out,
            shown.err
        );
    }
    let held = metric(&bed.replicas, "manifold_moves").await?;
    ensure!(held == [1.0; REPLICAS], "{held:?}");
    let (namespace, object) = (harness::fleet::NAMESPACE, "manifold-steering");
    event(&bed.client, namespace, object, "Moved").await
}

/// While the replica is gone to which a range was moved, the order has no effect, and says so.
async fn without_it(bed: &mut Bed, operator: &Plugin, range: u32, index: usize) -> Result<()> {
    let to = bed.replicas[index].name().to_owned();
    bed.replicas[index].kill();
    let other = &bed.replicas[(index + 1) % REPLICAS];
    until("the order has no effect", PATIENCE, POLL, || async {
        let metrics = other.metrics().await?;
        let idle = metrics.sum("manifold_moves_without_effect", &[]);
        let owner = owners(&bed.client).await?[&range].0.clone();
        Ok((idle == Some(1.0) && owner != to).then_some(()))
    })
    .await?;
    let status = operator.run(other, &["status"]).await?;
    let remedy = format!("kubectl manifold unmove {range}");
    ensure!(
        status.code == 1 && status.out.contains(&remedy),
        "{}",
        status.out
    );
    bed.replicas[index] = bed.fleet.start(index)?;
    bed.replicas[index].wait_ready(PATIENCE).await?;
    bed.watcher.add(&bed.replicas[index])?;
    owned_by(&bed.client, range, &to).await?;
    Ok(())
}

#[test]
fn a_range_that_an_operator_moves_stays_there_through_a_kill_and_goes_home() {
    let _alone = alone();
    run_test(async {
        let mut bed = Bed::start("moved").await?;
        let operator = steerer(&bed.control_plane).await?;
        let range = bed.keys[&name(0)];
        let home = owners(&bed.client).await?[&range].0.clone();
        let to = bed.replicas.iter().position(|one| one.name() != home);
        let to = to.context("nobody else")?;
        let its_name = bed.replicas[to].name().to_owned();
        moved_to(&bed, &operator, range, &its_name).await?;
        without_it(&mut bed, &operator, range, to).await?;

        let shown = operator.json(&bed.replicas[to], &["shards"]).await?;
        let home = shown["steering"]["moves"][0]["home"].as_str();
        let home = home.with_context(|| shown["steering"].to_string())?;
        let unmoved = Instant::now();
        let words = ["unmove", &range.to_string()];
        done(&operator, &bed.replicas[to], &words).await?;
        let (after, took) = bed.watcher.settled("it is home", unmoved, PATIENCE).await?;
        let (owner, loads) = (&after[&range].0, loads(&after));
        println!("loads: home after {took:.2?}: {owner}, {loads:?}");
        ensure!(*owner == home, "{home} does not own it");
        let again = operator.json(&bed.replicas[to], &words).await?;
        ensure!(again["changed"] == false, "{again}");
        bed.end("loads, moved").await
    });
}
