//! A week in the life of a cluster, shortened: the same deeds from one seed under kube-controller-manager and
//! under three replicas of Manifold, two of which are killed in turn each minute. What is there at the end is
//! the same, the replica that is never killed takes no more memory in the second half than new objects
//! explain, and no process ends by itself.
//!
//! Both are played at once, each on a control plane of its own.
//!
//! `MANIFOLD_WEEK_MINUTES` says how long a week is (35), `MANIFOLD_WEEK_SEED` what happens in it (1). A week
//! below a quarter of an hour is a trial: memory is reported, and not judged.

mod last;
mod memory;
mod plan;
mod world;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use harness::fleet::READY_LIMIT;
use harness::{ControlPlane, Fleet, Metrics, MetricsApi, Replica, everything, run_test};
use tokio::sync::Mutex;

use crate::parity::{self, Outcome};
use crate::support::{all_end_well, alone, from_environment};
use memory::{Memory, Sample};
use plan::{Deed, List};
use world::World;

const MINUTES: f64 = 35.0;
const SEED: u64 = 1;
const REPLICAS: usize = 3;
const KILLED_EVERY: Duration = Duration::from_secs(60);
const SAMPLED_EVERY: Duration = Duration::from_secs(5);
/// Shorter weeks say nothing of memory: what a start leaves behind is not worn off by their middle.
const JUDGED: Duration = Duration::from_secs(15 * 60);
/// A busy machine may take this many times as long as the week lasts, and this besides.
const SLOWER: u32 = 2;
const SLACK: Duration = Duration::from_secs(300);
/// Of both managers: windows that a short week has time for, and no limits of requests.
const FLAGS: [&str; 8] = [
    "--node-monitor-grace-period=75s",
    "--node-startup-grace-period=90s",
    "--node-monitor-period=1s",
    "--node-eviction-rate=2",
    "--horizontal-pod-autoscaler-sync-period=2s",
    "--horizontal-pod-autoscaler-downscale-stabilization=12s",
    "--kube-api-qps=5000",
    "--kube-api-burst=5000",
];

/// Who manages the cluster.
#[allow(clippy::large_enum_variant, reason = "one of a test")]
enum Manager {
    Upstream(harness::Kcm),
    Manifold(Fleet, Vec<Replica>),
}

impl Manager {
    async fn start(control_plane: &ControlPlane, manifold: bool) -> Result<Self> {
        let flags = [&everything::FLAGS[..], &FLAGS].concat();
        if !manifold {
            // It has the cluster alone, and an outage would end it otherwise.
            let flags = [&flags[..], &["--leader-elect=false"]].concat();
            return Ok(Self::Upstream(control_plane.start_kcm(&flags).await?));
        }
        let mut fleet = control_plane.fleet();
        for flag in flags {
            fleet = fleet.arg(flag);
        }
        let fleet = fleet.build().await?;
        let replicas = fleet.start_all(REPLICAS).await?;
        Ok(Self::Manifold(fleet, replicas))
    }

    /// What is measured: upstream's manager, or the replica that is never killed.
    async fn metrics(&self) -> Result<Metrics> {
        match self {
            Self::Upstream(kcm) => kcm.metrics().await,
            Self::Manifold(_, replicas) => replicas[0].metrics().await,
        }
    }

    /// An error where one has ended by itself.
    fn check(&mut self) -> Result<()> {
        match self {
            Self::Upstream(kcm) => kcm.process().check(),
            Self::Manifold(_, replicas) => replicas.iter_mut().try_for_each(Replica::check),
        }
    }

    /// Kills one of the replicas but the first, in turn, and waits until it is back; upstream's manager is
    /// left alone.
    async fn kill(&mut self, number: usize) -> Result<()> {
        let Self::Manifold(fleet, replicas) = self else {
            return Ok(());
        };
        let index = 1 + number % (REPLICAS - 1);
        replicas[index].kill();
        replicas[index] = fleet.start(index)?;
        replicas[index].wait_ready(READY_LIMIT).await
    }

    async fn end(mut self) -> Result<()> {
        match &mut self {
            Self::Upstream(kcm) => {
                kcm.process().kill();
                Ok(())
            }
            Self::Manifold(_, replicas) => all_end_well(replicas).await,
        }
    }
}

/// Snapshots after the manager until the week is over: samples, checks, and kills.
async fn supervise(
    manager: &mut Manager,
    began: Instant,
    memory: &mut Memory,
    mut kills: Option<(&mut usize, &Mutex<()>)>,
) -> Result<Infallible> {
    loop {
        tokio::time::sleep(SAMPLED_EVERY).await;
        manager.check()?;
        // Who is before an API server that is away may not say who asks.
        if let Ok(metrics) = manager.metrics().await
            && let Some(sample) = Sample::of(began.elapsed(), &metrics)
        {
            memory.add(sample);
        }
        if let Some((kills, turn)) = &mut kills
            && began.elapsed() >= KILLED_EVERY.mul_f64(**kills as f64 + 1.0)
        {
            let _turn = turn.lock().await;
            manager.kill(**kills).await?;
            **kills += 1;
        }
    }
}

/// One list, from its beginning to its end.
async fn play(world: &World, list: &List, began: Instant, length: Duration) -> Result<()> {
    for (number, deed) in list.deeds.iter().enumerate() {
        if list.spread {
            let after = length.mul_f64(number as f64 / list.deeds.len() as f64);
            tokio::time::sleep_until((began + after).into()).await;
        }
        let what = || format!("{}, deed {number} ({deed:?})", list.name);
        world.does(deed).await.with_context(what)?;
    }
    Ok(())
}

/// What one week leaves behind.
struct Week {
    outcome: Outcome,
    memory: Memory,
}

async fn week(seed: u64, length: Duration, manifold: bool) -> Result<Week> {
    let who = if manifold { "Manifold" } else { "upstream" };
    let mut control_plane = ControlPlane::builder()
        .nodes(plan::NODES)
        .kubelets_may_end()
        .everything()
        // The server of metrics is found by an ExternalName.
        .api_server_arg("--enable-aggregator-routing=false")
        .start()
        .await?;
    let metrics = MetricsApi::start(&control_plane).await?;
    let mut manager = Manager::start(&control_plane, manifold).await?;
    let client = control_plane.client().await?;
    let world = World::new(client, metrics);
    world.prepare().await?;

    let (outages, lists): (Vec<List>, Vec<List>) = plan::lists(seed, length)
        .into_iter()
        .partition(|list| list.name == "api-server");
    let began = Instant::now();
    let (mut memory, mut kills, mut gone) = (Memory::default(), 0, 0);
    // A start that meets no API server ends after ten seconds, as upstream's, and nobody would start it
    // again.
    let turn = Mutex::new(());
    {
        let lives = try_join_all(lists.iter().map(|list| play(&world, list, began, length)));
        let outages = async {
            for deed in outages.iter().flat_map(|list| &list.deeds) {
                match deed {
                    Deed::Outage(lasts) => {
                        let _turn = turn.lock().await;
                        control_plane.stop_api_server().await?;
                        tokio::time::sleep(*lasts).await;
                        control_plane.start_api_server().await?;
                        control_plane.start_the_others_again()?;
                        gone += 1;
                    }
                    Deed::Pause(lasts) => {
                        let end = Instant::now() + *lasts;
                        while Instant::now() < end {
                            let left = end.saturating_duration_since(Instant::now());
                            tokio::time::sleep(SAMPLED_EVERY.min(left)).await;
                            control_plane.start_the_others_that_ended()?;
                        }
                    }
                    other => world.does(other).await?,
                }
            }
            anyhow::Ok(())
        };
        let all = async { tokio::try_join!(lives, outages).map(drop) };
        let kubelets = world.play_kubelets();
        let limit = length * SLOWER + SLACK;
        tokio::select! {
            done = tokio::time::timeout(limit, all) => {
                done.with_context(|| format!("{who}: the week is not over after {limit:?}"))?
                    .context(who)?;
            }
            failed = supervise(&mut manager, began, &mut memory, Some((&mut kills, &turn))) => match failed? {},
            never = kubelets => match never {},
        }
    }
    let lasted = began.elapsed();
    world.ends().await?;
    let mut after = Memory::default();
    let snapshot = tokio::select! {
        snapshot = last::at_rest(&control_plane) => snapshot?,
        failed = supervise(&mut manager, began, &mut after, None) => match failed? {},
        never = world.play_kubelets() => match never {},
    };
    let deeds: usize = lists.iter().map(|list| list.deeds.len()).sum();
    if !manifold {
        kills = 0;
    }
    println!(
        "week: {who}: {deeds} deeds in {lasted:.1?}, at rest {:.1?} later; {gone} outages of the API server, {kills} \
         replicas killed; {}",
        began.elapsed() - lasted,
        memory.summary()
    );
    control_plane.check()?;
    manager.check()?;
    manager.end().await?;
    Ok(Week {
        outcome: Outcome {
            snapshots: vec![snapshot],
            failed: None,
        },
        memory,
    })
}

#[test]
#[ignore = "three quarters of an hour: cargo parity"]
fn a_week_ends_under_manifold_as_under_upstream_and_takes_no_more_memory_in_its_second_half() {
    let _alone = alone();
    let minutes: f64 = from_environment("MANIFOLD_WEEK_MINUTES", MINUTES).unwrap();
    let seed = from_environment("MANIFOLD_WEEK_SEED", SEED).unwrap();
    let length = Duration::from_secs_f64(minutes * 60.0);
    run_test(async {
        println!("week: {minutes} minutes, seed {seed}");
        // At once: nothing is compared that depends on time, and the second costs no second hour.
        let (ours, theirs) = tokio::try_join!(
            Box::pin(week(seed, length, true)),
            Box::pin(week(seed, length, false)),
        )?;
        let objects = ours.outcome.snapshots[0].objects.values().map(Vec::len);
        let objects = objects.sum::<usize>();
        let mut unexplained = 0;
        let mut meant = BTreeMap::<&str, usize>::new();
        for one in parity::outcomes("week", &theirs.outcome, &ours.outcome) {
            match parity::reason(&one) {
                Some(known) => *meant.entry(known.reason).or_default() += 1,
                None => {
                    unexplained += 1;
                    println!("week: {one}");
                }
            }
        }
        for (reason, count) in &meant {
            println!("week: meant, {count} times: {reason}");
        }
        println!(
            "week: {objects} objects, {} meant differences, {unexplained} unexplained",
            meant.values().sum::<usize>()
        );
        ensure!(unexplained == 0, "{unexplained} differences");
        if length >= JUDGED {
            ours.memory.judge()?;
        }
        Ok(())
    });
}
