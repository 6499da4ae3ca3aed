//! Never two managers: upstream's, or another fleet, beside a fleet on one control plane. Judged by the audit
//! log: writes of one and of the other never alternate but where the Lease has changed hands.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use harness::{AuditLog, AuditRecord, ControlPlane, Kcm, Replica, run_test, until};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::Event;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::task::JoinHandle;

use crate::support::{
    PATIENCE, POLL, all_end_well, alone, beside, complete, create, deployment, ended_well, fleet,
};

pub(crate) const LEASE: &str = "kube-controller-manager";
pub(crate) const FLEET: &str = "manifold:manifold-system/manifold";
const REPLICAS: usize = 3;
/// Upstream's own, on both sides.
pub(crate) const DURATION: Duration = Duration::from_secs(15);
/// A candidate of upstream reads every 2 s and up to 1.2 times as long more.
pub(crate) const READ_MAX: Duration = Duration::from_millis(4_400);
/// What a busy machine adds.
pub(crate) const SLACK: Duration = Duration::from_secs(3);
/// Upstream's manager releases its Lease at its end only with this gate.
const RELEASES: &str = "--feature-gates=ControllerManagerReleaseLeaderElectionLockOnExit=true";

fn leases(client: &Client) -> Api<Lease> {
    Api::namespaced(client.clone(), "kube-system")
}

async fn spec(client: &Client) -> Result<LeaseSpec> {
    let lease = leases(client).get_opt(LEASE).await?;
    Ok(lease.and_then(|lease| lease.spec).unwrap_or_default())
}

pub(crate) async fn holder(client: &Client) -> Result<String> {
    Ok(spec(client).await?.holder_identity.unwrap_or_default())
}

/// Waits until the Lease is the fleet's, or somebody else's; gives how long it took.
pub(crate) async fn held_by(client: &Client, fleet: bool, limit: Duration) -> Result<Duration> {
    let began = Instant::now();
    let who = if fleet { "the fleet" } else { "upstream" };
    until(
        &format!("{who} holds the Lease"),
        limit,
        POLL / 2,
        || async {
            let holder = holder(client).await?;
            let right = !holder.is_empty() && (holder == FLEET) == fleet;
            Ok(right.then_some(()))
        },
    )
    .await?;
    Ok(began.elapsed())
}

/// Who asked, where it is one of the two and asks for a change that no candidate may make.
fn writer(record: &AuditRecord) -> Option<&'static str> {
    let own = matches!(
        record.resource().as_str(),
        "leases"
            | "events"
            | "serviceaccounts/token"
            | "tokenreviews"
            | "subjectaccessreviews"
            | "selfsubjectaccessreviews"
    );
    if record.stage != "ResponseComplete" || !record.is_write() || own {
        return None;
    }
    if record.user_agent.starts_with("manifold/") {
        Some("manifold")
    } else if record.user_agent.starts_with("kube-controller-manager/") {
        Some("upstream")
    } else {
        None
    }
}

/// One writer's turn: who, how many writes, from when to when.
#[derive(Debug)]
struct Turn {
    who: &'static str,
    writes: usize,
    from: Timestamp,
    to: Timestamp,
}

/// Turns in the order of the writes' arrival; a write that ends after the next turn has begun is an error.
fn turns(mut log: AuditLog) -> Result<Vec<Turn>> {
    let mut writes: Vec<(Timestamp, Timestamp, &'static str)> = Vec::new();
    log.read(|record| {
        if let Some(who) = writer(&record) {
            writes.push((
                record.request_received_timestamp,
                record.stage_timestamp,
                who,
            ));
        }
    })?;
    writes.sort();
    let mut turns: Vec<Turn> = Vec::new();
    for (from, to, who) in writes {
        match turns.last_mut().filter(|turn| turn.who == who) {
            Some(turn) => {
                turn.writes += 1;
                turn.to = turn.to.max(to);
            }
            None => {
                if let Some(before) = turns.last() {
                    ensure!(
                        before.to <= from,
                        "two writers at once: {before:?}, then {who} at {from}"
                    );
                }
                turns.push(Turn {
                    who,
                    writes: 1,
                    from,
                    to,
                });
            }
        }
    }
    Ok(turns)
}

/// Exactly these took turns, in this order; prints what lay between.
pub(crate) fn took_turns(log: AuditLog, story: &str, wanted: &[&str]) -> Result<()> {
    let turns = turns(log)?;
    for pair in turns.windows(2) {
        let gap = pair[1].from.duration_since(pair[0].to);
        println!(
            "interlock: {story}: {} ({} writes) → {} ({} writes): {:.2} s without a write",
            pair[0].who,
            pair[0].writes,
            pair[1].who,
            pair[1].writes,
            gap.as_secs_f64()
        );
    }
    let took: Vec<&str> = turns.iter().map(|turn| turn.who).collect();
    ensure!(took == wanted, "{story}: {turns:#?}");
    Ok(())
}

/// Scales a Deployment up and down without end, so that the manager at work writes all the time. Ends with
/// the handle.
struct Load(JoinHandle<()>);

impl Load {
    async fn start(control_plane: &ControlPlane) -> Result<Self> {
        let client = control_plane.client().await?;
        let namespace = control_plane.namespace("interlock").await?;
        let api: Api<Deployment> = Api::namespaced(client, &namespace);
        create(&api, deployment("load", 1)).await?;
        Ok(Self(tokio::spawn(async move {
            for turn in 0_u32.. {
                let patch = Patch::Merge(json!({"spec": {"replicas": turn % 3}}));
                // The API server may be away: that is part of the story.
                let _ = api.patch("load", &PatchParams::default(), &patch).await;
                tokio::time::sleep(Duration::from_millis(150)).await;
            }
        })))
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Works: a Deployment comes to its end.
async fn works(control_plane: &ControlPlane, name: &str) -> Result<()> {
    let client = control_plane.client().await?;
    let namespace = control_plane.namespace(name).await?;
    let api: Api<Deployment> = Api::namespaced(client, &namespace);
    create(&api, deployment(name, 2)).await?;
    complete(&api, name, 2).await
}

async fn plane() -> Result<(ControlPlane, Client)> {
    let control_plane = ControlPlane::builder().start().await?;
    let client = control_plane.client().await?;
    Ok((control_plane, client))
}

/// All replicas of a fleet that is at work.
async fn at_work(control_plane: &ControlPlane, client: &Client) -> Result<Vec<Replica>> {
    let replicas = fleet(control_plane).await?.start_all(REPLICAS).await?;
    held_by(client, true, PATIENCE).await?;
    works(control_plane, "first").await?;
    Ok(replicas)
}

async fn stand_by(replicas: &[Replica], holder: &str) -> Result<()> {
    for replica in replicas {
        let ready = replica.text("/readyz?verbose").await?;
        let line = format!("standing by: {holder} holds the Lease kube-system/{LEASE}");
        ensure!(ready.contains(&line), "no {line:?} in\n{ready}");
        ensure!(ready.contains("[+]leaderElection ok"), "{ready}");
        let log = std::fs::read_to_string(replica.log())?;
        ensure!(
            log.contains("standing by: another manager holds the Lease"),
            "{} does not say so in its log",
            replica.name()
        );
        let shards = replica.shards().await?;
        ensure!(shards.owned.is_empty(), "{} owns ranges", replica.name());
        let metrics = replica.metrics().await?;
        let leads = metrics.sum("leader_election_master_status", &[]);
        ensure!(leads == Some(0.0), "{leads:?}");
    }
    Ok(())
}

async fn all_lead(replicas: &[Replica]) -> Result<()> {
    until("all replicas lead", PATIENCE, POLL, || async {
        for replica in replicas {
            let metrics = replica.metrics().await?;
            let leads = metrics.sum("leader_election_master_status", &[("name", LEASE)]);
            ensure!(leads == Some(1.0), "{}: {leads:?}", replica.name());
        }
        Ok(Some(()))
    })
    .await
}

async fn events_of_the_lease(client: &Client) -> Result<Vec<String>> {
    let events: Api<Event> = Api::namespaced(client.clone(), "kube-system");
    let fields = format!("involvedObject.kind=Lease,involvedObject.name={LEASE}");
    let list = events.list(&ListParams::default().fields(&fields)).await?;
    Ok(list
        .items
        .into_iter()
        .filter(|event| event.reason.as_deref() == Some("LeaderElection"))
        .filter_map(|event| event.message)
        .collect())
}

async fn terminate(kcm: &mut Kcm) -> Result<()> {
    kcm.process().terminate(PATIENCE).await.map(drop)
}

#[test]
fn upstream_and_a_fleet_hand_the_cluster_to_each_other_and_never_write_at_once() {
    let _beside = beside();
    run_test(async {
        let (control_plane, client) = plane().await?;
        let mut kcm = control_plane.start_kcm(&[RELEASES]).await?;
        held_by(&client, false, PATIENCE).await?;
        let theirs = holder(&client).await?;
        works(&control_plane, "upstream").await?;
        let mut replicas = fleet(&control_plane).await?.start_all(REPLICAS).await?;
        stand_by(&replicas, &theirs).await?;

        // From upstream to the fleet.
        let load = Load::start(&control_plane).await?;
        terminate(&mut kcm).await?;
        let took = held_by(&client, true, PATIENCE).await?;
        works(&control_plane, "fleet").await?;
        all_lead(&replicas).await?;
        println!(
            "interlock: released by upstream: the fleet holds the Lease {:.2} s after its end",
            took.as_secs_f64()
        );
        ensure!(took <= Duration::from_secs(2) + SLACK, "{took:?}");
        let said = events_of_the_lease(&client).await?;
        let became = format!("{FLEET} became leader");
        ensure!(said.contains(&became), "{said:?}");

        // And back, by upstream's rules: it waits, the fleet drains.
        let mut kcm = control_plane.start_kcm(&[]).await?;
        tokio::time::sleep(Duration::from_secs(3)).await;
        ensure!(holder(&client).await? == FLEET, "upstream has not waited");
        let transitions = spec(&client).await?.lease_transitions;
        all_end_well(&mut replicas).await?;
        let took = held_by(&client, false, PATIENCE).await?;
        println!(
            "interlock: released by the fleet: upstream holds the Lease {:.2} s after the last replica's end",
            took.as_secs_f64()
        );
        ensure!(took <= READ_MAX + SLACK, "{took:?}");
        let after = spec(&client).await?.lease_transitions;
        ensure!(
            after == transitions.map(|count| count + 1),
            "{transitions:?}, {after:?}"
        );
        let said = events_of_the_lease(&client).await?;
        let stopped = format!("{FLEET} stopped leading");
        ensure!(said.contains(&stopped), "{said:?}");
        drop(load);
        works(&control_plane, "again").await?;
        took_turns(
            control_plane.audit(),
            "handed over",
            &["upstream", "manifold", "upstream"],
        )?;
        kcm.process().check()
    });
}

#[test]
#[ignore = "minutes: cargo parity"]
fn a_fleet_takes_over_from_upstream_that_was_killed_when_its_lease_has_expired() {
    let _alone = alone();
    run_test(async {
        let (control_plane, client) = plane().await?;
        let mut kcm = control_plane.start_kcm(&[]).await?;
        held_by(&client, false, PATIENCE).await?;
        works(&control_plane, "upstream").await?;
        let mut replicas = fleet(&control_plane).await?.start_all(REPLICAS).await?;
        let load = Load::start(&control_plane).await?;
        kcm.process().kill();
        let took = held_by(&client, true, PATIENCE).await?;
        println!(
            "interlock: upstream killed: the fleet holds the Lease {:.2} s later",
            took.as_secs_f64()
        );
        // Its last renewal was up to a retry period before its end.
        ensure!(took + Duration::from_secs(3) >= DURATION, "{took:?}");
        ensure!(took <= DURATION + SLACK, "{took:?}");
        works(&control_plane, "fleet").await?;
        drop(load);
        took_turns(
            control_plane.audit(),
            "upstream killed",
            &["upstream", "manifold"],
        )?;
        all_end_well(&mut replicas).await
    });
}

#[test]
#[ignore = "minutes: cargo parity"]
fn upstream_takes_over_from_a_fleet_that_was_killed_within_its_lease() {
    let _alone = alone();
    run_test(async {
        let (control_plane, client) = plane().await?;
        let mut replicas = at_work(&control_plane, &client).await?;
        let mut kcm = control_plane.start_kcm(&[]).await?;
        let load = Load::start(&control_plane).await?;
        tokio::time::sleep(DURATION * 2).await;
        ensure!(holder(&client).await? == FLEET, "upstream has not waited");
        for replica in &mut replicas {
            replica.kill();
        }
        let took = held_by(&client, false, PATIENCE).await?;
        println!(
            "interlock: fleet killed: upstream holds the Lease {:.2} s later",
            took.as_secs_f64()
        );
        ensure!(took <= DURATION + READ_MAX + SLACK, "{took:?}");
        works(&control_plane, "upstream").await?;
        drop(load);
        took_turns(
            control_plane.audit(),
            "fleet killed",
            &["manifold", "upstream"],
        )?;
        kcm.process().check()
    });
}

#[test]
#[ignore = "minutes: cargo parity"]
fn an_outage_of_the_api_server_leaves_one_manager_at_work() {
    let _alone = alone();
    run_test(async {
        let (mut control_plane, client) = plane().await?;
        let mut replicas = at_work(&control_plane, &client).await?;
        let _kcm = control_plane.start_kcm(&[]).await?;
        tokio::time::sleep(Duration::from_secs(6)).await;
        let load = Load::start(&control_plane).await?;
        for outage in [Duration::from_secs(20), Duration::from_secs(40)] {
            control_plane.pause_api_server()?;
            tokio::time::sleep(outage).await;
            control_plane.resume_api_server()?;
            // The one that was first.
            until("somebody holds the Lease", PATIENCE, POLL, || async {
                let renewed = spec(&client).await?.renew_time;
                let age = renewed.map(|at| Timestamp::now().duration_since(at.0).as_secs());
                Ok(age.is_some_and(|age| age < 3).then_some(()))
            })
            .await?;
            println!(
                "interlock: the API server stood still for {outage:?}: then {} led",
                holder(&client).await?
            );
            works(&control_plane, &format!("after-{}", outage.as_secs())).await?;
        }
        drop(load);
        let turns = turns(control_plane.audit())?;
        // Two outages: two changes at most, and nobody wrote into the other's turn.
        ensure!(turns.len() <= 3, "{turns:#?}");
        println!("interlock: outages: {turns:?}");
        all_end_well(&mut replicas).await
    });
}

#[test]
#[ignore = "minutes: cargo parity"]
fn a_rolling_restart_of_the_fleet_keeps_the_lease_from_upstream_that_waits() {
    let _alone = alone();
    run_test(async {
        let (control_plane, client) = plane().await?;
        let fleet = fleet(&control_plane).await?;
        let mut replicas = fleet.start_all(REPLICAS).await?;
        held_by(&client, true, PATIENCE).await?;
        let _kcm = control_plane.start_kcm(&[]).await?;
        let load = Load::start(&control_plane).await?;
        let before = spec(&client).await?;
        for round in 0..2 {
            for (index, replica) in replicas.iter_mut().enumerate() {
                if round == 0 {
                    replica.ask_to_end()?;
                    ended_well(replica).await?;
                } else {
                    replica.kill();
                }
                *replica = fleet.start(index)?;
                replica.wait_ready(PATIENCE).await?;
                tokio::time::sleep(Duration::from_secs(2)).await;
                let now = spec(&client).await?;
                ensure!(
                    now.holder_identity.as_deref() == Some(FLEET)
                        && now.lease_transitions == before.lease_transitions
                        && now.acquire_time == before.acquire_time,
                    "round {round}, replica {index}: {now:?}"
                );
            }
        }
        works(&control_plane, "after").await?;
        drop(load);
        took_turns(control_plane.audit(), "restarts", &["manifold"])?;
        all_end_well(&mut replicas).await
    });
}

#[test]
#[ignore = "minutes: cargo parity"]
fn a_fleet_of_another_name_waits() {
    let _alone = alone();
    run_test(async {
        let (control_plane, client) = plane().await?;
        let mut first = at_work(&control_plane, &client).await?;
        let other = control_plane
            .fleet()
            .name_prefix("other")
            .arg("--use-service-account-credentials=true")
            .arg("--fleet-name=other")
            .build()
            .await?;
        let mut second = other.start_all(2).await?;
        stand_by(&second, FLEET).await?;
        tokio::time::sleep(DURATION * 2).await;
        stand_by(&second, FLEET).await?;
        works(&control_plane, "both").await?;
        all_end_well(&mut first).await?;
        let took = until(
            "the second fleet holds the Lease",
            PATIENCE,
            POLL / 2,
            || async {
                let holder = holder(&client).await?;
                Ok((holder == "manifold:manifold-system/other").then(Instant::now))
            },
        );
        let began = Instant::now();
        let took = took.await?.duration_since(began);
        println!(
            "interlock: the second fleet holds the Lease {took:.2?} after the first one's end"
        );
        ensure!(took <= Duration::from_secs(2) + SLACK, "{took:?}");
        works(&control_plane, "second").await?;
        all_end_well(&mut second).await?;
        ensure!(holder(&client).await?.is_empty(), "released");
        Ok(())
    });
}

#[test]
#[ignore = "minutes: cargo parity"]
fn a_lease_edited_by_hand_stops_the_fleet_until_it_expires_and_a_deleted_one_is_made_again() {
    let _alone = alone();
    run_test(async {
        let (control_plane, client) = plane().await?;
        let mut replicas = at_work(&control_plane, &client).await?;
        let leases = leases(&client);
        let edit = |spec: serde_json::Value| {
            let leases = leases.clone();
            async move {
                let patch = Patch::Merge(json!({ "spec": spec }));
                leases.patch(LEASE, &PatchParams::default(), &patch).await
            }
        };
        // A name of nobody, for a while.
        edit(json!({"holderIdentity": "somebody", "leaseDurationSeconds": 6})).await?;
        until("all stand by", PATIENCE, POLL, || async {
            stand_by(&replicas, "somebody").await.map(Some)
        })
        .await?;
        let took = held_by(&client, true, PATIENCE).await?;
        ensure!(took <= Duration::from_secs(6) + SLACK, "{took:?}");
        works(&control_plane, "edited").await?;

        leases.delete(LEASE, &DeleteParams::default()).await?;
        let took = held_by(&client, true, PATIENCE).await?;
        ensure!(took <= Duration::from_secs(3) + SLACK, "{took:?}");
        works(&control_plane, "deleted").await?;

        // Nonsense that the API accepts.
        edit(
            json!({"holderIdentity": null, "leaseDurationSeconds": null, "renewTime": null,
            "acquireTime": null, "leaseTransitions": null}),
        )
        .await?;
        let took = held_by(&client, true, PATIENCE).await?;
        ensure!(took <= Duration::from_secs(3) + SLACK, "{took:?}");
        works(&control_plane, "garbage").await?;
        all_lead(&replicas).await?;
        all_end_well(&mut replicas).await
    });
}

#[test]
#[ignore = "minutes: cargo parity"]
fn upstream_continues_beside_a_fleet_with_a_lease_of_its_own() {
    let _alone = alone();
    run_test(async {
        let (control_plane, client) = plane().await?;
        let mut kcm = control_plane
            .start_kcm(&["--controllers=*,-deployment-controller"])
            .await?;
        held_by(&client, false, PATIENCE).await?;
        let fleet = control_plane
            .fleet()
            .arg("--use-service-account-credentials=true")
            .arg("--controllers=deployment-controller")
            .arg("--leader-elect-resource-name=manifold-companion")
            .build()
            .await?;
        let mut replicas = fleet.start_all(2).await?;
        works(&control_plane, "both").await?;
        let companion = leases(&client).get("manifold-companion").await?;
        let companion = companion.spec.and_then(|spec| spec.holder_identity);
        ensure!(companion.as_deref() == Some(FLEET), "{companion:?}");
        let theirs = holder(&client).await?;
        if theirs.is_empty() || theirs == FLEET {
            bail!("upstream's Lease is {theirs:?}'s");
        }
        all_end_well(&mut replicas).await?;
        kcm.process().check().context("upstream")
    });
}
