//! Who owns the ranges, through every change of the fleet.
//!
//! After each change all ranges have exactly one owner, evenly, and every replica says so too: within
//! 3 s of the change being possible. A join is possible when the newcomer's Lease says that it is
//! ready; an orderly stop at once; a crash when a whole lease duration has passed, which is why it has
//! 2 s more than that.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use harness::{Replica, run_test, until};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};

use crate::support::{
    FLEET, PATIENCE, POLL, Watcher, alone, complete, create, deployment, ended_well, fleet,
    fleet_of, judge, judged, loads, moved, owners,
};

const RANGES: u32 = 256;
const AFTER_A_CHANGE: Duration = Duration::from_secs(3);
/// `--lease-duration`'s default.
const LEASE: Duration = Duration::from_secs(5);
const AFTER_A_CRASH: Duration = Duration::from_secs(2).saturating_add(LEASE);

/// Waits until the replica's own Lease says that it is ready, which is when others may count it.
async fn ready(client: &Client, replica: &Replica) -> Result<Instant> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), harness::fleet::NAMESPACE);
    let name = format!("{FLEET}-replica-{}", replica.name());
    until(&format!("{name} is ready"), PATIENCE, POLL / 5, || async {
        let lease = leases.get(&name).await?;
        let annotations = lease.metadata.annotations.unwrap_or_default();
        let ready = annotations.get("manifold.dev/ready");
        Ok((ready.map(String::as_str) == Some("true")).then(Instant::now))
    })
    .await
}

#[test]
fn every_range_has_one_owner_through_joins_stops_and_crashes() {
    let _alone = alone();
    run_test(async {
        let control_plane = judged().await?;
        let client = control_plane.client().await?;
        let fleet = fleet(&control_plane).await?;
        let mut watcher = Watcher::new(client.clone(), RANGES);

        let mut first = fleet.start(0)?;
        let since = ready(&client, &first).await?;
        watcher.add(&first)?;
        let (alone, took) = watcher
            .settled("one replica owns everything", since, AFTER_A_CHANGE)
            .await?;
        println!("fleet: 1 replica owns {:?} after {took:.2?}", loads(&alone));
        ensure!(loads(&alone).values().eq([&256]));

        let namespace = control_plane.namespace("fleet").await?;
        let deployments: Api<Deployment> = Api::namespaced(client.clone(), &namespace);
        let names: Vec<String> = (0..6).map(|index| format!("web-{index}")).collect();
        for name in &names {
            create(&deployments, deployment(name, 2)).await?;
        }

        let mut second = fleet.start(1)?;
        let mut third = fleet.start(2)?;
        ready(&client, &second).await?;
        let since = ready(&client, &third).await?;
        watcher.add(&second)?;
        watcher.add(&third)?;
        let (three, took) = watcher
            .settled("three replicas share", since, AFTER_A_CHANGE)
            .await?;
        println!("fleet: 3 replicas own {:?} after {took:.2?}", loads(&three));
        let mut shares: Vec<usize> = loads(&three).into_values().collect();
        shares.sort_unstable();
        ensure!(shares == [85, 85, 86], "{shares:?}");
        for name in &names {
            complete(&deployments, name, 2).await?;
        }

        let since = Instant::now();
        second.ask_to_end()?;
        watcher.remove(second.name());
        let (two, took) = watcher
            .settled("two replicas share after a SIGTERM", since, AFTER_A_CHANGE)
            .await?;
        ended_well(&mut second).await?;
        println!(
            "fleet: SIGTERM, {:?} after {took:.2?}, the process ended after {:.2?} at most",
            loads(&two),
            since.elapsed()
        );
        let gone = three.values().filter(|(owner, _)| owner == second.name());
        ensure!(
            moved(&three, &two)?.len() == gone.count(),
            "more moved than had to"
        );

        let mut again = fleet.start(1)?;
        let since = ready(&client, &again).await?;
        watcher.add(&again)?;
        let (three, took) = watcher
            .settled("three replicas share again", since, AFTER_A_CHANGE)
            .await?;
        println!("fleet: joined again, {:?} after {took:.2?}", loads(&three));

        let since = Instant::now();
        third.kill();
        watcher.remove(third.name());
        for name in &names {
            let patch = kube::api::Patch::Merge(serde_json::json!({"spec": {"replicas": 4}}));
            deployments.patch(name, &Default::default(), &patch).await?;
        }
        let (left, took) = watcher
            .settled("two replicas share after a SIGKILL", since, AFTER_A_CRASH)
            .await?;
        println!("fleet: SIGKILL, {:?} after {took:.2?}", loads(&left));
        let gone = three.values().filter(|(owner, _)| owner == third.name());
        ensure!(
            moved(&three, &left)?.len() == gone.count(),
            "more moved than had to"
        );
        for name in &names {
            complete(&deployments, name, 4).await?;
        }
        first.check()?;
        again.check()?;

        let verdict = judge(&control_plane, "fleet")?;
        ensure!(verdict.only_grown == names.len() && verdict.pods == 4 * names.len());
        ensure!(
            verdict.changes > 0,
            "no write before and after a move: nothing was shown"
        );
        // A replica asks once for each account's token, and keeps it: no more than there were starts.
        const STARTS: usize = 4;
        for (account, count) in &verdict.tokens {
            ensure!(
                *count <= STARTS,
                "{count} tokens of {account} for {STARTS} starts"
            );
        }
        ensure!(
            !verdict.tokens.is_empty(),
            "nobody used an account of its own"
        );
        Ok(())
    });
}

#[test]
fn without_peers_a_fleet_starts_moves_and_takes_over_by_leases_alone() {
    /// Nobody listens there: a blocked port, or a certificate that nobody accepts, comes to the same.
    const NOBODY: &str = "--peer-advertise-address=127.0.0.1:1";
    /// Silence is certain after a lease duration, and the answers of all have come within another.
    const BY_LEASES: Duration = Duration::from_secs(3).saturating_add(LEASE.saturating_mul(2));
    let _alone = alone();
    run_test(async {
        let control_plane = judged().await?;
        let client = control_plane.client().await?;
        let fleet = fleet_of(&control_plane, &[NOBODY]).await?;
        let mut watcher = Watcher::new(client.clone(), RANGES);
        let mut replicas = [fleet.start(0)?, fleet.start(1)?, fleet.start(2)?];
        let mut since = Instant::now();
        for replica in &replicas {
            since = ready(&client, replica).await?;
            watcher.add(replica)?;
        }
        let (three, took) = watcher
            .settled("three replicas share by Leases", since, BY_LEASES)
            .await?;
        println!("fleet: without peers {:?} after {took:.2?}", loads(&three));

        let namespace = control_plane.namespace("fleet-apart").await?;
        let deployments: Api<Deployment> = Api::namespaced(client.clone(), &namespace);
        let names: Vec<String> = (0..6).map(|index| format!("web-{index}")).collect();
        for name in &names {
            create(&deployments, deployment(name, 2)).await?;
        }
        for name in &names {
            complete(&deployments, name, 2).await?;
        }

        let fourth = fleet.start(3)?;
        let since = ready(&client, &fourth).await?;
        watcher.add(&fourth)?;
        let (four, took) = watcher
            .settled("a fourth has its share by Leases", since, BY_LEASES)
            .await?;
        println!(
            "fleet: a fourth joined without peers, {:?} after {took:.2?}",
            loads(&four)
        );

        let since = Instant::now();
        replicas[2].kill();
        watcher.remove(replicas[2].name());
        for name in &names {
            let patch = kube::api::Patch::Merge(serde_json::json!({"spec": {"replicas": 4}}));
            deployments.patch(name, &Default::default(), &patch).await?;
        }
        let (left, took) = watcher
            .settled("three share after a SIGKILL", since, BY_LEASES)
            .await?;
        println!(
            "fleet: SIGKILL without peers, {:?} after {took:.2?}",
            loads(&left)
        );
        for name in &names {
            complete(&deployments, name, 4).await?;
        }
        let verdict = judge(&control_plane, "fleet without peers")?;
        ensure!(verdict.only_grown == names.len() && verdict.pods == 4 * names.len());
        Ok(())
    });
}

#[test]
fn a_replica_that_was_killed_gets_its_share_back_step_by_step() {
    const STEP: Duration = Duration::from_secs(2);
    let _alone = alone();
    run_test(async {
        let control_plane = judged().await?;
        let client = control_plane.client().await?;
        let period = format!("--slow-start-period={}s", STEP.as_secs());
        let fleet = fleet_of(&control_plane, &[&period]).await?;
        let mut replicas = fleet.start_all(2).await?;
        let load = async |name: &str| -> Result<usize> {
            let owners = owners(&client).await?;
            Ok(loads(&owners).get(name).copied().unwrap_or(0))
        };
        let name = replicas[1].name().to_owned();
        until("two replicas share", PATIENCE, POLL, || async {
            Ok((load(&name).await? == 128).then_some(()))
        })
        .await?;

        replicas[1].kill();
        let mut again = fleet.start(1)?;
        // Its ranges are named by the life before until somebody takes them.
        let since = until("what it had is taken", PATIENCE, POLL / 5, || async {
            Ok((load(&name).await? <= 2).then(Instant::now))
        })
        .await?;
        until("it has a range again", PATIENCE, POLL / 5, || async {
            Ok((load(&name).await? > 0).then_some(()))
        })
        .await?;
        let first = load(&name).await?;
        ensure!(first <= 4, "it begins with {first} ranges");
        tokio::time::sleep(STEP).await;
        let second = load(&name).await?;
        ensure!(
            second <= 8,
            "it has {second} ranges after {:?}",
            since.elapsed()
        );
        until("it has its share", PATIENCE, POLL, || async {
            Ok((load(&name).await? == 128).then_some(()))
        })
        .await?;
        let took = since.elapsed();
        println!("fleet: killed and started again, its share after {took:.1?}");
        ensure!(took > 4 * STEP, "it had its share after {took:?}");
        again.check()?;
        Ok(())
    });
}
