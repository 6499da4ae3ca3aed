//! What thousands of bound claims and attached volumes cost, at rest and while some move.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use harness::{Metrics, run_test};
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::Api;
use kube::api::DeleteParams;

use super::{Bed, UNLIMITED, each, pod_name};
use crate::support::{Cost, all_end_well, alone, cost, fleet_of, metrics_of};

const NODES: usize = 50;
/// Claims, each bound to a volume that is attached.
const HELD: usize = 5_000;
/// After a start: lists are read, and the first pass over everything is done.
const SETTLED: Duration = Duration::from_secs(30);
/// CPU time is counted for so long, at rest and while some move.
const MEASURED: Duration = Duration::from_secs(60);
/// Between two moves: a pod goes to another node, and its volume with it; a claim and a volume come, and two
/// go.
const MOVE: Duration = Duration::from_millis(500);
/// How many moves a claim that comes lives for.
const LIVES: usize = 10;
/// The part of upstream's cost that a fleet may have at rest: processors of all replicas, memory of the
/// largest.
const GOAL: f64 = 0.25;

/// Pods go to the next node, one after the other; claims and volumes come and go. `moved` is how often each
/// pod has moved.
async fn moves(bed: &Bed, turn: usize, moved: &mut [usize]) -> Result<()> {
    let params = DeleteParams::default();
    let volumes: Api<PersistentVolume> = Api::all(bed.client.clone());
    let (began, mut at) = (Instant::now(), 0);
    let extra = |at: usize| (turn + 1) * HELD + at;
    let drop_pair = async |at: usize| -> Result<()> {
        let (claim, volume) = (
            format!("claim-{}", extra(at)),
            format!("volume-{}", extra(at)),
        );
        bed.claims().delete(&claim, &params).await?;
        volumes.delete(&volume, &params).await?;
        Ok(())
    };
    while began.elapsed() < MEASURED {
        let next = tokio::time::Instant::now() + MOVE;
        let pod = pod_name(at, moved[at]);
        bed.pods().delete(&pod, &params).await?;
        moved[at] += 1;
        bed.make_pod(at, moved[at]).await?;
        bed.make_pair(extra(at)).await?;
        if at >= LIVES {
            drop_pair(at - LIVES).await?;
        }
        at += 1;
        tokio::time::sleep_until(next).await;
    }
    for left in at.saturating_sub(LIVES)..at {
        drop_pair(left).await?;
    }
    bed.attached(HELD, None).await
}

/// At rest, and while some move.
async fn costs<R>(
    bed: &Bed,
    (turn, moved): (usize, &mut [usize]),
    metrics: impl Fn() -> R,
) -> Result<(Cost, Cost)>
where
    R: Future<Output = Result<Vec<Metrics>>>,
{
    tokio::time::sleep(SETTLED).await;
    let rest = async {
        tokio::time::sleep(MEASURED).await;
        Ok(())
    };
    let at_rest = cost(&metrics, rest).await?;
    let moving = cost(&metrics, moves(bed, turn, moved)).await?;
    Ok((at_rest, moving))
}

#[test]
#[ignore = "a quarter of an hour: cargo parity"]
fn five_thousand_claims_and_attachments_cost_a_quarter_of_what_they_cost_upstream() {
    let _alone = alone();
    run_test(async {
        let bed = Bed::start(NODES).await?;
        let fleet = fleet_of(&bed.control_plane, &UNLIMITED).await?;
        let mut replicas = fleet.start_all(3).await?;
        let began = Instant::now();
        each(0..HELD, |number| bed.make_pair(number)).await?;
        bed.bound(HELD).await?;
        each(0..HELD, |number| bed.make_pod(number, 0)).await?;
        bed.attached(HELD, None).await?;
        println!(
            "volumes: {HELD} claims are bound and attached after {:.0?}",
            began.elapsed()
        );
        all_end_well(&mut replicas).await?;

        let mut moved = vec![0_usize; HELD];
        let theirs = {
            let mut flags = UNLIMITED.to_vec();
            flags.push("--leader-elect=false");
            let kcm = bed.control_plane.start_kcm(&flags).await?;
            let moved = moved.as_mut_slice();
            costs(&bed, (0, moved), || async {
                Ok(vec![kcm.metrics().await?])
            })
            .await?
        };
        println!("volumes: {HELD} held: upstream: at rest, moving: {theirs:.3?}");
        let mut beyond = Vec::new();
        for (turn, count) in [(1, 1), (2, 3)] {
            let mut replicas = fleet.start_all(count).await?;
            let ours = costs(&bed, (turn, moved.as_mut_slice()), || metrics_of(&replicas)).await?;
            all_end_well(&mut replicas).await?;
            println!("volumes: {HELD} held: Manifold of {count}: at rest, moving: {ours:.3?}");
            for (what, ours, theirs) in
                [("at rest", ours.0, theirs.0), ("moving", ours.1, theirs.1)]
            {
                let (processors, memory) = (
                    ours.processors / theirs.processors,
                    ours.memory / theirs.memory,
                );
                let line = format!(
                    "Manifold of {count}, {what}: processors {processors:.2} ×, memory {memory:.2} ×"
                );
                println!("volumes: {HELD} held: {line}");
                let is_at_rest = what == "at rest";
                if is_at_rest && (processors > GOAL || memory > GOAL) {
                    beyond.push(line);
                }
            }
        }
        println!("volumes: {}", bed.judge()?);
        ensure!(beyond.is_empty(), "{}", beyond.join("\n"));
        Ok(())
    });
}
