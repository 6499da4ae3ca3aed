//! Faults on the real thing: real replicas on a real control plane, a workload that never rests, and judges
//! that read only what the API server recorded.
//!
//! Each replica reaches the API server and its peers through relays of ours. Faults come one after the other,
//! chosen by a seed; after each the fleet must have come to rest: every range owned, evenly, by those that
//! live, and keys served as promptly as ever, so that no fault is blamed for the one before. At the end the
//! audit log is judged, latencies are compared with what was promised, and what the workload has come to with
//! what the same wishes come to undisturbed.

mod fault;
pub(crate) mod member;
pub(crate) mod probes;
pub(crate) mod relay;
mod rogue;
mod storage;
mod strain;
pub(crate) mod webhook;
mod workload;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum as _;
use harness::observe::Owners;
use harness::programs::Program;
use harness::progress::Steps;
use harness::{ControlPlane, Fleet, PeerTrust, until};
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;

pub use self::fault::Fault;
use self::member::Member;
use self::probes::{Probes, Wait, p99};
use self::relay::Mode;
use self::storage::Storage;
use self::strain::Strain;
use self::webhook::Webhook;
use self::workload::Workload;
use crate::judge::{AUDIT_POLICY, Children, Names, Ownership, UNOWNED, Volumes, stretched};

const FLEET: &str = "manifold";
const RANGES: u16 = 256;
/// Replicas that are always wanted.
const MEMBERS: usize = 4;
/// Replicas that come and go at once.
const GUESTS: usize = 3;
const POLL: Duration = Duration::from_millis(100);
/// For what has no bound of its own.
const PATIENCE: Duration = Duration::from_secs(60);
/// Twice the duration of a Lease.
const STAND: Duration = Duration::from_secs(10);
/// A replica with a hung thread has ended itself by then: a Lease's duration of hanging, two seconds in which
/// a write may still be executed, and two for the release of its Lease.
const HUNG_MAX: Duration = Duration::from_secs(10);
const SIGABRT: i32 = 6;
/// A replica whose watches flow again counts as current within this, however often it was stale.
const RETURNS_WITHIN: Duration = Duration::from_secs(120);
/// Threads that may hang, by the beginnings of their names: of the actors, of the coordinator.
const THREADS: [&str; 2] = ["actix-rt", "manifold-coordi"];
const API_SERVER_AWAY: Duration = Duration::from_secs(20);
const ETCD_AWAY: Duration = Duration::from_secs(10);
const WEBHOOK_TAKES: Duration = Duration::from_secs(8);
/// A fault begins when this many changes in a row were served …
const CALM_KEYS: usize = 32;
/// … within this: what the fault before has left behind (watches that are begun again, a backlog) is not its
/// doing.
const CALM: Duration = Duration::from_millis(150);
/// It begins all the same after this, where the machine is too busy to be calm.
const CALM_LIMIT: Duration = Duration::from_secs(15);
/// A fleet rests when no key waits longer than this.
const AT_REST_WITHIN: Duration = Duration::from_secs(2);
/// After an outage every key is served within this.
const SERVED_WITHIN: Duration = Duration::from_secs(3);

/// What to run.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Chooses the faults and the workload.
    pub seed: u64,
    /// How many faults.
    pub faults: usize,
    /// Of which kinds: of all where none is named.
    pub only: Vec<Fault>,
    /// For all of them; those that do not fit in are left out, and reported.
    pub limit: Duration,
    /// How much longer than promised keys may wait: more than 1 on a machine that is busy with other things.
    pub slack: f64,
    /// For how long watches stand still when they do.
    pub frozen: Duration,
    /// Whether keys that wait too long are an error; else they are only reported. A machine that builds and
    /// tests other things beside is no measure of it.
    pub latencies: bool,
}

impl Settings {
    /// The command that chooses the same faults again.
    fn again(&self) -> String {
        let mut command = format!(
            "cargo chaos --seed {} --faults {} --frozen-seconds {}",
            self.seed,
            self.faults,
            self.frozen.as_secs()
        );
        for fault in self.only.iter().filter_map(Fault::to_possible_value) {
            command.push_str(" --only ");
            command.push_str(fault.get_name());
        }
        command
    }
}

/// Waits by kind of fault: of the keys it hit, and of the others.
#[derive(Debug, Default)]
struct Waits {
    times: usize,
    hit: Vec<Wait>,
    others: Vec<Wait>,
}

struct Chaos {
    control_plane: ControlPlane,
    client: Client,
    fleet: Fleet,
    members: Vec<Member>,
    probes: Probes,
    storage: Option<Storage>,
    namespace: String,
    random: StdRng,
    waits: BTreeMap<Fault, Waits>,
    guests: usize,
    frozen: Duration,
    slack: f64,
}

/// Runs it and prints what was seen.
///
/// # Errors
/// With the first promise that was broken, and the seed.
pub async fn run(settings: &Settings) -> Result<()> {
    println!(
        "chaos: seed {}, {} faults in at most {} s; again: {}",
        settings.seed,
        settings.faults,
        settings.limit.as_secs(),
        settings.again()
    );
    Box::pin(all(settings))
        .await
        .with_context(|| format!("seed {}", settings.seed))
}

async fn all(settings: &Settings) -> Result<()> {
    // Set once for the process, by the one that comes first.
    let _already = rustls::crypto::ring::default_provider().install_default();
    let mut random = StdRng::seed_from_u64(settings.seed);
    let faults = fault::choose(&mut random, settings.faults, &settings.only);
    let control_plane = ControlPlane::builder()
        .audit_policy(AUDIT_POLICY)
        .fence()
        .start()
        .await?;
    let client = control_plane.client().await?;
    // Its certificates are what false peers have; the replicas themselves use the keys that their Leases
    // name.
    let fleet = control_plane.fleet().peer_trust(PeerTrust::Both).locks();
    let fleet = fleet.build().await?;
    let mut members = Vec::new();
    for index in 0..MEMBERS {
        members.push(Member::start(&control_plane, &fleet, index).await?);
    }
    for member in &mut members {
        member.replica.wait_ready(PATIENCE).await?;
    }
    let namespace = control_plane.namespace("chaos").await?;
    let probes = Probes::start(&client, &control_plane.namespace("probes").await?, RANGES).await?;
    let workload = Workload::start(&client, &namespace, settings.seed).await?;
    let storage = Storage::start(&control_plane, settings.seed).await?;
    let mut chaos = Chaos {
        control_plane,
        client,
        fleet,
        members,
        probes,
        storage: Some(storage),
        namespace,
        random,
        waits: BTreeMap::new(),
        guests: 0,
        frozen: settings.frozen,
        slack: settings.slack,
    };
    chaos.settled("the fleet begins").await?;
    chaos.served_once_more().await?;

    let begun = Instant::now();
    let mut steps = Steps::new("chaos", faults.len() as u64);
    let mut done = 0;
    for fault in &faults {
        if begun.elapsed() > settings.limit {
            break;
        }
        steps.begin(&format!("{fault:?}"));
        chaos
            .one(*fault)
            .await
            .with_context(|| format!("fault {}, {fault:?}", done + 1))?;
        done += 1;
    }
    steps.finish(&format!("{done} faults"));
    let took = begun.elapsed();
    let (served, changes) = (chaos.probes.served(), workload.changes());
    // The bed's kubelets forget what they were about when an outage meets them: pods then end for ever.
    chaos.start_the_others_again()?;
    let calm = chaos.control_plane.namespace("calm").await?;
    workload.compare(&calm).await?;
    let storage = chaos.storage.take().context("the volumes' workload")?;
    let moved = storage.changes();
    storage.end().await?;
    chaos.settled("the fleet ends").await?;
    let (waits, too_long) = chaos.compare_waits(settings.slack);
    println!(
        "chaos: {done} of {} faults in {:.0} s, {changes} changes of the workload, {moved} of pods with volumes, {served} keys served\n{waits}",
        faults.len(),
        took.as_secs_f64(),
    );
    println!("{}", judge(&chaos.control_plane, chaos.slack)?);
    ensure!(
        too_long.is_empty() || !settings.latencies,
        "{}",
        too_long.join("\n")
    );
    Ok(())
}

impl Chaos {
    /// A new process under the name of the one before.
    async fn again(&mut self, victim: usize) -> Result<()> {
        let member = &mut self.members[victim];
        member.again(&self.fleet, &[])?;
        member.replica.wait_ready(PATIENCE).await
    }

    /// One fault, and the rest after it.
    async fn one(&mut self, fault: Fault) -> Result<()> {
        self.calm().await;
        let victim = self.random.random_range(0..self.members.len());
        let before = self.owners().await?;
        let ranges: BTreeSet<u16> = match fault {
            Fault::ApiServerAway | Fault::EtcdAway => (0..RANGES).collect(),
            _ => before.of(&self.members[victim].name),
        };
        let (since, strain) = (Instant::now(), Strain::begin());
        self.perform(fault, victim).await?;
        for member in 0..self.members.len() {
            self.returned(member).await?;
        }
        self.settled("the fleet rests again").await?;
        for member in &mut self.members {
            member.replica.check()?;
        }
        if matches!(
            fault,
            Fault::ApiServerAway | Fault::EtcdAway | Fault::SlowWebhook
        ) {
            let moved = self.owners().await?.moved_since(&before);
            ensure!(
                moved == 0 || fault == Fault::SlowWebhook,
                "{moved} ranges have moved, though every replica lived"
            );
        }
        let (hit, others) = self.probes.waits(since, &ranges);
        let slowest = |waits: &[Wait]| match waits.iter().max_by_key(|wait| wait.whole) {
            Some(wait) => format!("{:.0?} (answer {:.0?})", wait.whole, wait.answer),
            None => "nothing".to_owned(),
        };
        println!(
            "chaos: {fault:?}: at most {} of {} keys hit, {} of {} others; {}",
            slowest(&hit),
            hit.len(),
            slowest(&others),
            others.len(),
            strain.end()
        );
        let waits = self.waits.entry(fault).or_default();
        waits.times += 1;
        waits.hit.extend(hit);
        waits.others.extend(others);
        Ok(())
    }

    async fn perform(&mut self, fault: Fault, victim: usize) -> Result<()> {
        let other = (victim + 1) % self.members.len();
        match fault {
            Fault::Kill => {
                self.members[victim].replica.kill();
                self.settled_without(victim).await?;
                self.again(victim).await
            }
            Fault::KillBesideWitness => {
                let _witness = self.fleet.start_witness(&self.members[victim].name).await?;
                self.members[victim].replica.kill();
                self.settled_without(victim).await?;
                self.again(victim).await
            }
            Fault::End => {
                self.members[victim].replica.terminate(PATIENCE).await?;
                self.settled_without(victim).await?;
                self.again(victim).await
            }
            Fault::Stand => {
                self.members[victim].replica.pause()?;
                tokio::time::sleep(STAND).await;
                self.members[victim].replica.resume()
            }
            Fault::Hang => {
                self.hang(victim).await?;
                self.settled_without(victim).await?;
                self.again(victim).await
            }
            Fault::Delay => {
                let by = Duration::from_millis(self.random.random_range(20..200));
                self.relayed(victim, Mode::Delay(by), Duration::from_secs(4))
                    .await;
                Ok(())
            }
            Fault::Swallow => {
                let seconds = self.random.random_range(1..9);
                self.relayed(victim, Mode::Swallow, Duration::from_secs(seconds))
                    .await;
                Ok(())
            }
            Fault::FreezeWatches => {
                let member = &self.members[victim];
                member.proxy.freeze_watches(true);
                tokio::time::sleep(self.frozen).await;
                member.proxy.freeze_watches(false);
                Ok(())
            }
            Fault::Cut => {
                for _ in 0..3 {
                    self.members[victim].api.cut();
                    tokio::time::sleep(Duration::from_millis(700)).await;
                }
                Ok(())
            }
            Fault::PartPeers => self.part_peers(victim).await,
            Fault::ApiServerAway => self.api_server_away().await,
            Fault::EtcdAway => {
                self.control_plane.pause(Program::Etcd)?;
                tokio::time::sleep(ETCD_AWAY).await;
                self.control_plane.resume(Program::Etcd)?;
                self.all_served().await?;
                self.start_the_others_again()
            }
            Fault::SlowWebhook => self.slow_webhook(victim).await,
            Fault::WrongCertificate => {
                rogue::wrong_certificate(&self.fleet, &self.members[victim].replica).await
            }
            Fault::Garbage => rogue::garbage(&mut self.random, &self.members[victim].replica).await,
            Fault::FalseHandoffs => {
                let (liar, to) = (&self.members[victim].replica, &self.members[other].replica);
                rogue::false_handoffs(&self.fleet, liar, to).await
            }
            Fault::DeleteReplicaLease => {
                let name = format!("{FLEET}-replica-{}", self.members[victim].name);
                let leases = self.leases();
                let holder = |lease: Option<Lease>| lease?.spec?.holder_identity;
                let before = holder(leases.get_opt(&name).await?);
                leases.delete(&name, &DeleteParams::default()).await?;
                // It learns of it with its next renewal.
                until("the replica lives again", PATIENCE, POLL, || async {
                    let now = holder(leases.get_opt(&name).await?);
                    Ok((now.is_some() && now != before).then_some(()))
                })
                .await
            }
            Fault::DeleteRangeLeases => {
                for range in self.some_ranges() {
                    let name = format!("{FLEET}-range-{range:03}");
                    self.leases()
                        .delete(&name, &DeleteParams::default())
                        .await?;
                }
                Ok(())
            }
            Fault::EditRangeLeases => {
                for (at, range) in self.some_ranges().into_iter().enumerate() {
                    let name = format!("{FLEET}-range-{range:03}");
                    let edit = match at % 4 {
                        0 => json!({"spec": {"holderIdentity": ""}}),
                        1 => json!({"spec": {"leaseTransitions": 0}}),
                        2 => json!({"spec": {"leaseTransitions": i32::MAX}}),
                        // No selector finds it any more.
                        _ => json!({"metadata": {"labels": null}}),
                    };
                    let patch = Patch::Merge(edit);
                    self.leases()
                        .patch(&name, &PatchParams::default(), &patch)
                        .await?;
                }
                Ok(())
            }
            Fault::JoinAndLeave => self.join_and_leave().await,
        }
    }

    /// Ends when the replica has ended itself because of it.
    async fn hang(&mut self, victim: usize) -> Result<()> {
        let thread = THREADS[self.random.random_range(0..THREADS.len())];
        let replica = &mut self.members[victim].replica;
        let (hang, begun) = (replica.hang(thread)?, Instant::now());
        let status = loop {
            if let Some(status) = replica.exited() {
                break status;
            }
            ensure!(
                begun.elapsed() < HUNG_MAX.mul_f64(self.slack),
                "{} still runs {:.1?} after its thread {} hangs",
                replica.name(),
                begun.elapsed(),
                hang.thread
            );
            tokio::time::sleep(POLL).await;
        };
        println!(
            "chaos: {} ended itself {:.1?} after its thread {} hung",
            replica.name(),
            begun.elapsed(),
            hang.thread
        );
        let signal = std::os::unix::process::ExitStatusExt::signal(&status);
        ensure!(
            signal == Some(SIGABRT),
            "{} ended with {status}",
            replica.name()
        );
        Ok(())
    }

    /// Watches flow again: the replica may own ranges again when that has been so for a while, the longer the
    /// more often it was stale.
    async fn returned(&self, victim: usize) -> Result<()> {
        let lease = format!("{FLEET}-replica-{}", self.members[victim].name);
        until(
            "the replica is current again",
            RETURNS_WITHIN,
            POLL,
            || async {
                let lease = self.leases().get(&lease).await?;
                let annotations = lease.metadata.annotations.unwrap_or_default();
                let stale = annotations.get("manifold.dev/stale");
                Ok((stale.is_none_or(|stale| stale == "false")).then_some(()))
            },
        )
        .await
    }

    async fn relayed(&self, victim: usize, mode: Mode, lasts: Duration) {
        let api = &self.members[victim].api;
        api.set(mode);
        tokio::time::sleep(lasts).await;
        api.set(Mode::Pass);
    }

    /// Somebody joins and leaves meanwhile, so that ranges would have to pass.
    async fn part_peers(&mut self, victim: usize) -> Result<()> {
        self.members[victim].peers.set(Mode::Swallow);
        self.guests += 1;
        let mut guest = self
            .fleet
            .start_named(&format!("guest-{}", self.guests), &[])?;
        guest.wait_ready(PATIENCE).await?;
        tokio::time::sleep(Duration::from_secs(3)).await;
        self.members[victim].peers.set(Mode::Pass);
        guest.terminate(PATIENCE).await?;
        Ok(())
    }

    async fn join_and_leave(&mut self) -> Result<()> {
        let mut guests = Vec::new();
        for _ in 0..GUESTS {
            self.guests += 1;
            guests.push(
                self.fleet
                    .start_named(&format!("guest-{}", self.guests), &[])?,
            );
        }
        // Some leave before they are ready, some while ranges are on their way to them.
        for (at, guest) in guests.iter_mut().enumerate() {
            if at > 0 {
                guest.wait_ready(PATIENCE).await?;
            }
        }
        for guest in &mut guests {
            let status = guest.terminate(PATIENCE).await?;
            // Asked to end before it listened to signals: any end will do for that one.
            ensure!(
                status.success()
                    || std::os::unix::process::ExitStatusExt::signal(&status).is_some(),
                "{} ended with {status}",
                guest.name()
            );
        }
        Ok(())
    }

    async fn api_server_away(&mut self) -> Result<()> {
        self.control_plane.stop_api_server().await?;
        tokio::time::sleep(API_SERVER_AWAY).await;
        self.control_plane.start_api_server().await?;
        self.all_served().await?;
        self.start_the_others_again()
    }

    /// Whatever an outage has ended or confused.
    fn start_the_others_again(&mut self) -> Result<()> {
        if let Some(storage) = &mut self.storage {
            storage.start_the_ended_again()?;
        }
        self.control_plane.start_the_others_again()
    }

    /// All keys have been served after what was before: the fleet's first check of everything is no fault's
    /// doing.
    async fn served_once_more(&self) -> Result<()> {
        let before = self.probes.served();
        until("every key is served", PATIENCE, POLL, || async {
            let served = self.probes.served() - before;
            ensure!(served >= probes::KEYS, "{served} of {} are", probes::KEYS);
            Ok(Some(()))
        })
        .await
    }

    /// Nothing is left of the fault before that keys would wait for.
    async fn calm(&self) {
        let (begun, most) = (Instant::now(), CALM.mul_f64(self.slack));
        let mut from = begun;
        while begun.elapsed() < CALM_LIMIT {
            tokio::time::sleep(POLL).await;
            let (_, waits) = self.probes.waits(from, &BTreeSet::new());
            if waits.iter().any(|wait| wait.whole > most) {
                from = Instant::now();
            } else if waits.len() >= CALM_KEYS {
                return;
            }
        }
        println!("chaos: not calm within {CALM_LIMIT:?}; the next fault begins all the same");
    }

    /// Whatever waited during an outage is served soon after it.
    async fn all_served(&self) -> Result<()> {
        let end = Instant::now();
        tokio::time::sleep(SERVED_WITHIN.mul_f64(self.slack)).await;
        let stuck = self.probes.stuck(end.elapsed());
        ensure!(
            stuck.is_empty(),
            "{} keys are not served {:.1?} after the outage: {}",
            stuck.len(),
            end.elapsed(),
            stuck.join(", ")
        );
        Ok(())
    }

    /// It slows creations, does not stop them, and does not hold up a replica that leaves.
    async fn slow_webhook(&mut self, victim: usize) -> Result<()> {
        let webhook = Webhook::start(&self.control_plane, WEBHOOK_TAKES).await?;
        let api: Api<ValidatingWebhookConfiguration> = Api::all(self.client.clone());
        let configuration =
            webhook.configuration(self.control_plane.authority().certificate(), "pods", "Fail");
        api.create(
            &PostParams::default(),
            &serde_json::from_value(configuration)?,
        )
        .await?;
        let deployments: Api<Deployment> = Api::namespaced(self.client.clone(), &self.namespace);
        let slow = workload::deployment("probe-slow", "slow", 3, 1);
        deployments
            .create(&PostParams::default(), &serde_json::from_value(slow)?)
            .await?;
        tokio::time::sleep(Duration::from_secs(2)).await;
        let leaving = Instant::now();
        self.members[victim].replica.terminate(PATIENCE).await?;
        let left = leaving.elapsed();
        self.again(victim).await?;
        let made = until("three pods are made, slowly", PATIENCE, POLL, || async {
            let status = deployments
                .get("probe-slow")
                .await?
                .status
                .unwrap_or_default();
            let replicas = status.replicas.unwrap_or(0);
            ensure!(replicas <= 3, "{replicas} pods");
            Ok((replicas == 3).then_some(()))
        })
        .await;
        api.delete(Webhook::NAME, &DeleteParams::default()).await?;
        deployments
            .delete("probe-slow", &DeleteParams::default())
            .await?;
        workload::sweep(&self.client, &self.namespace, "slow").await?;
        made?;
        // Half a second for writes in flight, then the keys are named and go all the same.
        ensure!(
            left < Duration::from_secs(10),
            "it took {left:.1?} to leave"
        );
        // What it still holds up is its own doing, not the next fault's.
        tokio::time::sleep(WEBHOOK_TAKES).await;
        Ok(())
    }

    fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.client.clone(), harness::fleet::NAMESPACE)
    }

    fn some_ranges(&mut self) -> Vec<u16> {
        (0..4)
            .map(|_| self.random.random_range(0..RANGES))
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect()
    }

    async fn owners(&self) -> Result<Owners> {
        let of_fleet = ListParams::default().labels(&format!("manifold.dev/fleet={FLEET}"));
        let mut owners = Owners::default();
        for lease in self.leases().list(&of_fleet).await?.items {
            owners.lease(FLEET, &lease);
        }
        Ok(owners)
    }

    async fn settled(&self, what: &str) -> Result<()> {
        let members = self
            .members
            .iter()
            .map(|member| member.name.clone())
            .collect();
        self.spread(what, &members).await
    }

    async fn settled_without(&self, victim: usize) -> Result<()> {
        let others = self
            .members
            .iter()
            .enumerate()
            .filter(|(at, _)| *at != victim);
        let members = others.map(|(_, member)| member.name.clone()).collect();
        self.spread("the others have everything", &members).await
    }

    async fn spread(&self, what: &str, members: &BTreeSet<String>) -> Result<()> {
        until(what, PATIENCE, POLL, || async {
            let owners = self.owners().await?;
            ensure!(
                owners.are_spread_over(u32::from(RANGES), members),
                "owners are {:?}",
                owners.loads()
            );
            // A Lease may name a life of a replica that is over: its present one takes the range when that is
            // certain.
            for member in self
                .members
                .iter()
                .filter(|one| members.contains(&one.name))
            {
                let owned = member.replica.shards().await?.owned.len();
                let named = owners.of(&member.name).len();
                ensure!(
                    owned == named,
                    "{} owns {owned} of the {named} ranges that name it",
                    member.name
                );
            }
            let waiting = self.probes.stuck(AT_REST_WITHIN);
            ensure!(waiting.is_empty(), "keys wait: {}", waiting.join(", "));
            Ok(Some(()))
        })
        .await
    }

    /// A line for each kind of fault, and what took longer than promised.
    fn compare_waits(&self, slack: f64) -> (String, Vec<String>) {
        let (mut lines, mut broken) = (Vec::new(), Vec::new());
        for (fault, waits) in &self.waits {
            let whole = |waits: &[Wait]| p99(waits, |wait| wait.whole).unwrap_or_default();
            let (hit, others) = (whole(&waits.hit), whole(&waits.others));
            let all = waits.hit.iter().chain(&waits.others);
            let answers = p99(all, |wait| wait.answer).unwrap_or_default();
            lines.push(format!(
                "{fault:?} × {}: p99 {hit:.0?} of {} keys hit, {others:.0?} of {} others, of it {answers:.0?} until the API server has answered a touch",
                waits.times,
                waits.hit.len(),
                waits.others.len()
            ));
            let (most_hit, most_others) = promised(*fault);
            for (whose, is, most) in [("keys hit", hit, most_hit), ("others", others, most_others)]
            {
                if let Some(most) = most.filter(|most| is > most.mul_f64(slack)) {
                    broken.push(format!(
                        "{fault:?}: {whose} waited {is:.1?} at p99, promised are {most:.1?}"
                    ));
                }
            }
        }
        (lines.join("\n"), broken)
    }
}

/// What the API server has recorded of a fleet, and whether that is as promised, times this factor.
pub(crate) fn judge(control_plane: &ControlPlane, slack: f64) -> Result<String> {
    let (mut ownership, mut children) = (Ownership::of(FLEET), Children::default());
    let (mut names, mut volumes) = (Names::default(), Volumes::default());
    control_plane.audit().read(|record| {
        ownership.read(&record);
        children.read(&record);
        names.read(&record);
        volumes.read(&record);
    })?;
    let (owned, counted, kept) = (
        ownership.verdict(stretched(UNOWNED, slack)),
        children.verdict(slack),
        volumes.verdict(),
    );
    let said = format!(
        "ownership: {}\nchildren: {} pods of {} ReplicaSets, {} complaints\nnames: {} generated\nvolumes: {}",
        owned.summary(),
        counted.pods,
        counted.owners,
        counted.complaints.len(),
        names.count(),
        kept.summary()
    );
    let complaints = [
        owned.complaints,
        counted.complaints,
        names.complaints(),
        kept.complaints,
    ]
    .concat();
    if !complaints.is_empty() {
        bail!("{said}\n{}", complaints.join("\n"));
    }
    Ok(said)
}

/// How long keys may wait at p99: those of the replica that was hit, and the others.
fn promised(fault: Fault) -> (Option<Duration>, Option<Duration>) {
    let ms = |ms| Some(Duration::from_millis(ms));
    match fault {
        Fault::Kill => (ms(6_000), ms(500)),
        // What was in flight may be executed for two seconds.
        Fault::KillBesideWitness => (ms(3_000), ms(500)),
        Fault::Hang => (ms(8_000), ms(500)),
        Fault::End => (ms(300), ms(500)),
        Fault::JoinAndLeave | Fault::WrongCertificate | Fault::Garbage | Fault::FalseHandoffs => {
            (ms(500), ms(500))
        }
        // Up to one until the next renewal is missed, three until a new connection is made, one and a half
        // for that to help, two until it is certain that others see more, and the move.
        Fault::FreezeWatches => (ms(8_000), ms(500)),
        Fault::Stand | Fault::Delay | Fault::Swallow | Fault::Cut => (None, ms(500)),
        Fault::DeleteReplicaLease
        | Fault::DeleteRangeLeases
        | Fault::EditRangeLeases
        | Fault::PartPeers
        | Fault::SlowWebhook
        | Fault::ApiServerAway
        | Fault::EtcdAway => (None, None),
    }
}
