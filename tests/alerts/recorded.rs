//! The same over series that a real fleet has served while something real was done to it.
//!
//! A course is scraped each few seconds from shortly before its fault on. What lasts is then held: its last
//! half minute is repeated for as long as alerts wait, and counters grow as they did in it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::{ControlPlane, Fleet, Metrics, Replica, run_test, until};
use kube::Client;
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

use super::promtool::{Case, Promtool};
use super::rules::Rules;
use super::series::Series;
use super::table;
use crate::chaos::member::Member;
use crate::chaos::probes::Probes;
use crate::chaos::relay::Mode;
use crate::interlock::held_by;
use crate::support::{PATIENCE, POLL, alone};

const RANGES: u16 = 256;
const MEMBERS: usize = 3;
const STEP: Duration = Duration::from_secs(5);
/// A scrape that takes longer has failed.
const SCRAPE_MAX: Duration = Duration::from_secs(3);
/// Recorded before anything happens.
const BEFORE: Duration = Duration::from_secs(30);
/// For how long a fault is recorded before its state is held.
const DURING: Duration = Duration::from_secs(45);
/// The state that a course ends in is held for this long, in minutes: longer than any alert waits for.
const HELD_MINUTES: usize = 40;
/// The scrapes that a course is held by. Rules are evaluated at each sixth, which must not be the same one of
/// them each time.
const HELD_BY: usize = 7;
/// Recorded after what is ordinary: what keys have waited for meanwhile is over before what is held begins.
const AFTER: Duration = Duration::from_secs(60);
/// A replica that has died gets its share step by step, and one whose watches were frozen counts as current
/// within two minutes.
const RESTS_WITHIN: Duration = Duration::from_secs(240);
const AWAY: Duration = Duration::from_secs(20);
const CALLS_TAKE: Duration = Duration::from_millis(700);
const HANG_MAX: Duration = Duration::from_secs(30);

/// What is scraped: by the pod's name.
#[derive(Default)]
struct Book {
    targets: BTreeMap<String, Client>,
    series: Series,
}

fn lock(book: &Mutex<Book>) -> MutexGuard<'_, Book> {
    book.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Scrapes every target for ever, as Prometheus would. Dropping it ends it.
struct Recorder {
    book: Arc<Mutex<Book>>,
    task: JoinHandle<()>,
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Recorder {
    fn start(named: BTreeSet<String>) -> Self {
        let book = Arc::<Mutex<Book>>::default();
        let shared = Arc::clone(&book);
        let task = tokio::spawn(async move {
            let mut ticks = tokio::time::interval(STEP);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                let targets = lock(&shared).targets.clone();
                let scrapes = targets
                    .iter()
                    .map(|(pod, client)| scrape(pod, client, &named));
                let scraped = futures::future::join_all(scrapes).await;
                lock(&shared).series.scraped(scraped.into_iter().flatten());
            }
        });
        Self { book, task }
    }

    fn target(&self, replica: &Replica) -> Result<()> {
        let client = replica.client()?;
        lock(&self.book)
            .targets
            .insert(replica.name().to_owned(), client);
        Ok(())
    }

    fn forget(&self, name: &str) {
        lock(&self.book).targets.remove(name);
    }

    /// Begins a course.
    fn begin(&self) {
        lock(&self.book).series = Series::default();
    }

    /// Ends it, and holds the state that it has ended in.
    fn end(&self) -> Series {
        let mut series = std::mem::take(&mut lock(&self.book).series);
        let scrapes = HELD_MINUTES * 60 / STEP.as_secs() as usize;
        series.hold(scrapes, HELD_BY);
        series
    }
}

/// What one target says, with the labels that Prometheus adds.
async fn scrape(pod: &str, client: &Client, named: &BTreeSet<String>) -> Vec<(String, f64)> {
    let target = [
        ("instance", format!("{pod}:10257")),
        ("job", "kube-controller-manager".to_owned()),
        ("namespace", "manifold-system".to_owned()),
        ("pod", pod.to_owned()),
    ];
    let series = |name: &str, labels: &BTreeMap<String, String>| {
        let labels: Vec<String> = labels
            .iter()
            .map(|(label, value)| (label.as_str(), value.as_str()))
            .chain(target.iter().map(|(label, value)| (*label, value.as_str())))
            .map(|(label, value)| format!("{label}={value:?}"))
            .collect();
        format!("{name}{{{}}}", labels.join(","))
    };
    let up = series("up", &BTreeMap::new());
    let request = http::Request::get("/metrics").body(Vec::new());
    let answer = async { client.request_text(request.ok()?).await.ok() };
    let Ok(Some(text)) = tokio::time::timeout(SCRAPE_MAX, answer).await else {
        return vec![(up, 0.0)];
    };
    let metrics = Metrics::parse(&text);
    let ours = metrics
        .samples()
        .iter()
        .filter(|sample| named.contains(&sample.name));
    let samples = ours.map(|sample| (series(&sample.name, &sample.labels), sample.value));
    samples.chain([(up, 1.0)]).collect()
}

struct Bed {
    control_plane: ControlPlane,
    fleet: Fleet,
    members: Vec<Member>,
    recorder: Recorder,
    cases: Vec<Case<'static>>,
}

impl Bed {
    /// Before each course the fleet is as it should be.
    async fn rest(&self) -> Result<()> {
        until("the fleet rests", RESTS_WITHIN, POLL, || async {
            let mut owned = 0;
            for member in &self.members {
                let metrics = member.replica.metrics().await?;
                let gauge = |name: &str, labels: &[(&str, &str)]| {
                    metrics.sum(name, labels).unwrap_or(f64::NAN)
                };
                let is = |name: &str, labels: &[(&str, &str)], wanted: f64| -> Result<()> {
                    let value = gauge(name, labels);
                    ensure!(value == wanted, "{}: {name} is {value}", member.name);
                    Ok(())
                };
                let members = self.members.len() as f64;
                is("manifold_members", &[("state", "ready")], members)?;
                is("manifold_members", &[], members)?;
                is("manifold_members_unreachable", &[], 0.0)?;
                is("manifold_ranges_unowned", &[], 0.0)?;
                is("manifold_current", &[], 1.0)?;
                is("manifold_fence_open", &[], 1.0)?;
                let mine = gauge("manifold_ranges_owned", &[]) as u16;
                let equal = RANGES / u16::try_from(self.members.len())?;
                // Of uneven loads in a course the planner makes uneven shares, which stay.
                let share = match gauge("manifold_placement_plan_in_force", &[]) == 1.0 {
                    true => equal * 9 / 10,
                    false => equal,
                };
                ensure!(mine >= share, "{} owns {mine}", member.name);
                owned += mine;
            }
            ensure!(owned == RANGES, "{owned} ranges are owned");
            Ok(Some(()))
        })
        .await
    }

    /// A fleet at rest, recorded from now on.
    async fn begin(&self) -> Result<()> {
        self.rest().await?;
        self.recorder.begin();
        tokio::time::sleep(BEFORE).await;
        Ok(())
    }

    /// A course that has come to its end, or whose state is held.
    fn end(&mut self, name: &'static str, fires: Option<&'static str>) {
        let series = self.recorder.end();
        println!(
            "alerts: recorded {name}: {} scrapes, held included",
            series.scrapes()
        );
        // What is held continues; restarts are over, and forgotten after half an hour.
        let still = fires.filter(|alert| *alert != "ManifoldReplicaRestarts");
        self.cases.push(Case {
            name,
            series,
            step_seconds: STEP.as_secs() as u32,
            fired: fires.into_iter().collect(),
            fires_still: still.into_iter().collect(),
        });
    }

    /// What is ordinary, once the fleet rests again.
    async fn over(&mut self, name: &'static str) -> Result<()> {
        self.rest().await?;
        tokio::time::sleep(AFTER).await;
        self.end(name, None);
        Ok(())
    }

    /// A fault that is held.
    async fn held(&mut self, name: &'static str, fires: &'static str) {
        tokio::time::sleep(DURING).await;
        self.end(name, Some(fires));
    }

    async fn again(&mut self, at: usize, more: &[&str]) -> Result<()> {
        let member = &mut self.members[at];
        member.again(&self.fleet, more)?;
        self.recorder.target(&member.replica)?;
        member.replica.wait_ready(PATIENCE).await
    }

    async fn join(&mut self) -> Result<()> {
        let index = self.members.len();
        let mut member = Member::start(&self.control_plane, &self.fleet, index).await?;
        self.recorder.target(&member.replica)?;
        member.replica.wait_ready(PATIENCE).await?;
        self.members.push(member);
        Ok(())
    }

    async fn leave(&mut self) -> Result<()> {
        let mut member = self.members.pop().context("a member")?;
        member.replica.terminate(PATIENCE).await?;
        self.recorder.forget(&member.name);
        Ok(())
    }

    /// Writes a field of the fleet's orders by hand, as JSON.
    async fn order(&self, value: &str) -> Result<()> {
        let patch = format!(r#"{{"data":{{"pause.by-hand":{value}}}}}"#);
        let namespace = harness::fleet::NAMESPACE;
        let words = ["patch", "configmap", "manifold-steering", "-n", namespace];
        let words = [&words[..], &["--type=merge", "--patch", &patch]].concat();
        self.control_plane.kubectl(&words).await?;
        Ok(())
    }

    async fn ordinary(&mut self) -> Result<()> {
        self.begin().await?;
        self.over("nothing").await?;

        self.begin().await?;
        for at in 0..MEMBERS {
            self.members[at].replica.terminate(PATIENCE).await?;
            self.again(at, &[]).await?;
        }
        self.over("roll-out").await?;

        self.begin().await?;
        self.join().await?;
        self.join().await?;
        self.rest().await?;
        for _ in 0..3 {
            self.leave().await?;
        }
        self.over("scale from three to five and to two").await?;
        self.join().await?;

        self.begin().await?;
        self.again(1, &[]).await?;
        self.over("a replica is killed and comes back").await?;

        self.begin().await?;
        let (hang, begun) = (self.members[1].replica.hang("actix-rt")?, Instant::now());
        while self.members[1].replica.exited().is_none() {
            ensure!(
                begun.elapsed() < HANG_MAX,
                "a replica with a hung thread lives"
            );
            tokio::time::sleep(POLL).await;
        }
        drop(hang);
        self.again(1, &[]).await?;
        self.over("a thread hangs, and its replica ends").await?;

        self.begin().await?;
        self.control_plane.pause_api_server()?;
        tokio::time::sleep(AWAY).await;
        self.control_plane.resume_api_server()?;
        self.over("the API server is away for twenty seconds").await
    }

    async fn faults(&mut self) -> Result<()> {
        self.begin().await?;
        self.control_plane.pause_api_server()?;
        self.held("the API server is away", "ManifoldAllFenced")
            .await;
        self.control_plane.resume_api_server()?;

        self.begin().await?;
        self.members[1].api.set(Mode::Swallow);
        self.held(
            "one replica is cut off from the API server",
            "ManifoldFenceClosed",
        )
        .await;
        self.members[1].api.set(Mode::Pass);

        self.begin().await?;
        self.members[1].proxy.delay_calls(CALLS_TAKE);
        self.held("calls of one replica take 0.7 s", "ManifoldRenewalsSlow")
            .await;
        self.members[1].proxy.delay_calls(Duration::ZERO);

        self.begin().await?;
        self.members[1].proxy.freeze_watches(true);
        self.held("one replica's watches bring nothing", "ManifoldStale")
            .await;
        self.members[1].proxy.freeze_watches(false);

        self.begin().await?;
        for member in &self.members {
            member.proxy.freeze_watches(true);
        }
        self.held("nobody's watches bring anything", "ManifoldNobodyCurrent")
            .await;
        for member in &self.members {
            member.proxy.freeze_watches(false);
        }

        self.begin().await?;
        self.members[1].peers.set(Mode::Swallow);
        self.held("peers do not reach a replica", "ManifoldMembersUnreachable")
            .await;
        self.members[1].peers.set(Mode::Pass);

        self.begin().await?;
        self.again(1, &["--controllers=*,-job-controller"]).await?;
        self.held(
            "replicas run different controllers",
            "ManifoldReplicasDiffer",
        )
        .await;
        self.again(1, &[]).await?;

        self.begin().await?;
        self.order(r#""{""#).await?;
        self.held("an order is mistyped", "ManifoldOrdersInvalid")
            .await;
        self.order("null").await?;

        self.begin().await?;
        for _ in 0..4 {
            self.again(1, &[]).await?;
            tokio::time::sleep(STEP * 2).await;
        }
        self.held(
            "a replica crashes again and again",
            "ManifoldReplicaRestarts",
        )
        .await;

        self.begin().await?;
        self.members[1].replica.kill();
        self.held("a node is lost", "ManifoldReplicaDown").await;
        self.again(1, &[]).await?;

        self.begin().await?;
        for member in &mut self.members {
            member.replica.terminate(PATIENCE).await?;
        }
        let kcm = self.control_plane.start_kcm(&[]).await?;
        let client = self.control_plane.client().await?;
        held_by(&client, false, PATIENCE).await?;
        for at in 0..MEMBERS {
            self.again(at, &[]).await?;
        }
        self.held("kube-controller-manager holds the Lease", "ManifoldStandby")
            .await;
        drop(kcm);

        self.begin().await?;
        for member in &mut self.members {
            member.replica.kill();
        }
        self.held("no replica answers", "ManifoldAbsent").await;
        Ok(())
    }
}

#[test]
#[ignore = "minutes: cargo parity"]
fn each_alert_fires_for_its_fault_alone_over_what_a_real_fleet_has_served() {
    let rules = Rules::read();
    let promtool = Promtool::obtain().expect("promtool");
    let _alone = alone();
    run_test(async {
        let control_plane = ControlPlane::builder().nodes(1).start().await?;
        let client = control_plane.client().await?;
        let fleet = control_plane.fleet().build().await?;
        let recorder = Recorder::start(rules.metrics());
        let mut bed = Bed {
            control_plane,
            fleet,
            members: Vec::new(),
            recorder,
            cases: Vec::new(),
        };
        for _ in 0..MEMBERS {
            bed.join().await?;
        }
        let namespace = bed.control_plane.namespace("probes").await?;
        let _probes = Probes::start(&client, &namespace, RANGES).await?;
        Box::pin(bed.ordinary()).await?;
        Box::pin(bed.faults()).await?;
        let took = promtool.test(&rules, &bed.cases)?;
        let alerts: Vec<&str> = rules.alerts().map(|alert| &*alert.alert).collect();
        println!("{}", table(&alerts, &bed.cases));
        println!(
            "alerts: {} recorded courses: promtool took {:.1} s",
            bed.cases.len(),
            took.as_secs_f64()
        );
        Ok(())
    });
}
