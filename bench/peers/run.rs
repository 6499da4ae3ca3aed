//! One peer goes through all steps on a control plane of its own.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use harness::ControlPlane;
use harness::progress::Steps;
use kube::Client;
use kube::api::PropagationPolicy;

use crate::meter::{self, Cost, Figures, Meter};
use crate::peer::{Managers, Peer, Qps};
use crate::profile::{self, Recording};
use crate::report::{self, Measured};
use crate::stall::Stall;
use crate::step::{PENDING, PODS_PER_NODE, Sizes, Step};
use crate::workload::{self, Namespaces, Pending, Web};

/// No line at all: what the audit log costs the API server is nobody's work here.
pub(crate) const NO_AUDIT: &str =
    "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n- level: None\n";
/// The interval between two checks that the managers still run.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// A change that was on its way when something happened was hit by it too.
const ON_ITS_WAY: Duration = Duration::from_millis(50);

/// Which run of all.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Which {
    pub(crate) round: usize,
    pub(crate) qps: Qps,
    pub(crate) peer: Peer,
}

/// What is the same for all runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct How<'a> {
    pub(crate) sizes: &'a Sizes,
    /// Manifold's.
    pub(crate) binary: &'a Path,
    /// Whether it is drawn where processor time goes.
    pub(crate) profile: bool,
}

/// A control plane and the managers on it, while the steps go over them.
struct Stage<'a> {
    client: Client,
    managers: Managers<'a>,
    which: Which,
    /// Where `perf` keeps what it sees, if the step is profiled.
    profile: Option<PathBuf>,
    measured: &'a mut Vec<Measured>,
    progress: &'a mut Steps,
}

/// Runs these steps, in their order. What is measured by then stays in `measured` where one fails.
pub(crate) async fn run(
    which: Which,
    steps: &[Step],
    how: How<'_>,
    measured: &mut Vec<Measured>,
    progress: &mut Steps,
) -> Result<()> {
    let How { sizes, binary, .. } = how;
    let mut control_plane = ControlPlane::builder()
        .nodes(sizes.nodes(steps))
        .pods_per_node(PODS_PER_NODE)
        .audit_policy(NO_AUDIT);
    if which.peer.is_fenced() {
        control_plane = control_plane.fence();
    }
    if which.peer.has_all() {
        control_plane = control_plane.everything();
    }
    let control_plane = control_plane.start().await?;
    let client = control_plane.client().await?;
    let mut managers = Managers::prepare(&control_plane, which.peer, which.qps, binary).await?;
    managers.start().await?;
    let mut stage = Stage {
        client,
        managers,
        which,
        profile: how.profile.then(|| control_plane.dir().path().to_owned()),
        measured,
        progress,
    };
    let wants = |step: Step| steps.contains(&step);
    if wants(Step::Empty) {
        stage.rest(Step::Empty, sizes.rest).await?;
    }
    if [Step::Create, Step::RollOut, Step::ScaleDown]
        .into_iter()
        .any(wants)
    {
        stage.web(sizes, wants).await?;
    }
    for (step, how) in [
        (Step::DeleteBackground, PropagationPolicy::Background),
        (Step::DeleteForeground, PropagationPolicy::Foreground),
    ] {
        if wants(step) {
            stage.delete(step, how, sizes.gone).await?;
        }
    }
    if wants(Step::Namespaces) {
        stage.namespaces(sizes.namespaces).await?;
    }
    if wants(Step::Job) {
        stage.job(sizes.job).await?;
    }
    if wants(Step::Deployment) {
        stage.deployment(sizes.deployment).await?;
    }
    if steps.iter().any(|step| step.needs_hold()) {
        stage.hold(sizes, wants).await?;
    }
    Ok(())
}

impl Stage<'_> {
    fn announce(&mut self, what: &str) {
        let Which { round, qps, peer } = self.which;
        self.progress
            .begin(&format!("round {round}, {qps}, {peer}: {what}"));
    }

    async fn begin(&mut self, step: Step) -> Result<Meter> {
        self.announce(step.name());
        meter::rest(&mut self.managers).await?;
        Meter::begin(&self.client, &mut self.managers).await
    }

    /// The step's work; an error at once where a manager ends by itself.
    async fn work(&mut self, work: impl Future<Output = Result<()>>) -> Result<()> {
        let managers = &mut self.managers;
        let ends = async {
            loop {
                tokio::time::sleep(CHECK_INTERVAL).await;
                if let Err(error) = managers.check() {
                    return error;
                }
            }
        };
        tokio::select! {
            done = work => done,
            error = ends => Err(error),
        }
    }

    async fn end(&mut self, step: Step, meter: Meter) -> Result<()> {
        let seconds = meter.began().elapsed().as_secs_f64();
        let cost = meter.end(&self.client, &mut self.managers, seconds).await?;
        self.keep(step, cost);
        Ok(())
    }

    fn keep(&mut self, step: Step, cost: Cost) {
        let Which { round, qps, peer } = self.which;
        self.measured.push(Measured {
            round,
            qps: qps.to_string(),
            peer: peer.to_string(),
            step,
            figures: cost.figures,
            requests: cost.requests,
        });
    }

    async fn measure(&mut self, step: Step, work: impl Future<Output = Result<()>>) -> Result<()> {
        let peer = self.which.peer;
        let meter = self.begin(step).await?;
        let pids = self.managers.ids();
        let recording = self
            .profile
            .as_deref()
            .map(|directory| Recording::begin(&pids, directory))
            .transpose()?;
        self.work(work)
            .await
            .with_context(|| format!("{step} under {peer}"))?;
        self.end(step, meter).await?;
        if let Some(recording) = recording {
            self.announce(&format!("{step}, drawn"));
            let svg = recording.end(&format!("{step}, {peer}")).await?;
            report::draw(&profile::file_name(step.name(), &peer.to_string()), &svg)?;
        }
        Ok(())
    }

    /// As a step or, where it is not wanted, only because others continue from it.
    async fn measure_if(
        &mut self,
        wanted: bool,
        step: Step,
        work: impl Future<Output = Result<()>>,
    ) -> Result<()> {
        if wanted {
            self.measure(step, work).await
        } else {
            self.work(work).await
        }
    }

    async fn web(&mut self, sizes: &Sizes, wants: impl Fn(Step) -> bool) -> Result<()> {
        let (count, pods) = sizes.web;
        let mut web = Web::empty(&self.client, "web").await?;
        let create = async {
            web.create(count, pods).await?;
            web.converged().await
        };
        self.measure_if(wants(Step::Create), Step::Create, create)
            .await?;
        if wants(Step::RollOut) {
            let roll_out = async {
                web.roll_out().await?;
                web.converged().await
            };
            self.measure(Step::RollOut, roll_out).await?;
        }
        if wants(Step::ScaleDown) {
            let scale_down = async {
                web.scale(pods / 5).await?;
                web.converged().await
            };
            self.measure(Step::ScaleDown, scale_down).await?;
        }
        self.work(web.clear()).await
    }

    async fn delete(
        &mut self,
        step: Step,
        how: PropagationPolicy,
        (count, pods): (usize, usize),
    ) -> Result<()> {
        let mut web = Web::empty(&self.client, step.name()).await?;
        let make = async {
            web.create(count, pods).await?;
            web.converged().await
        };
        self.work(make).await?;
        let delete = async {
            web.delete(how).await?;
            web.gone().await
        };
        self.measure(step, delete).await
    }

    async fn namespaces(&mut self, (count, objects): (usize, usize)) -> Result<()> {
        let client = self.client.clone();
        let mut full = None;
        self.work(async {
            full = Some(Namespaces::fill(&client, count, objects).await?);
            Ok(())
        })
        .await?;
        let full = full.context("no namespaces")?;
        self.measure(Step::Namespaces, full.delete()).await
    }

    async fn job(&mut self, pods: usize) -> Result<()> {
        let client = self.client.clone();
        workload::create_namespace(&client, "job").await?;
        let complete = Box::pin(workload::job_to_completion(&client, "job", pods));
        self.measure(Step::Job, complete).await?;
        self.work(workload::clear_job(&client, "job")).await
    }

    async fn deployment(&mut self, pods: usize) -> Result<()> {
        let mut web = Web::empty(&self.client, "large").await?;
        let create = async {
            web.create(1, pods).await?;
            web.converged().await
        };
        self.measure(Step::Deployment, create).await?;
        self.work(web.clear()).await
    }

    async fn hold(&mut self, sizes: &Sizes, wants: impl Fn(Step) -> bool) -> Result<()> {
        let (count, pods) = sizes.hold;
        let mut web = Web::empty(&self.client, "hold").await?;
        let create = async {
            web.create(count, pods).await?;
            web.converged().await
        };
        self.measure_if(wants(Step::Hold), Step::Hold, create)
            .await?;
        if wants(Step::Rest) {
            self.rest(Step::Rest, sizes.rest).await?;
        }
        if wants(Step::Start) {
            self.start().await?;
        }
        let peer = self.which.peer;
        let stalls: Vec<Step> = [Step::Killed, Step::Stopped, Step::Added]
            .into_iter()
            .filter(|step| wants(*step) && step.unfit(peer).is_none())
            .collect();
        if !stalls.is_empty() {
            self.stalls(&stalls).await?;
        }
        Ok(())
    }

    /// Processor time of the busiest process, and every write that reached the API server.
    async fn rest(&mut self, step: Step, lasts: Duration) -> Result<()> {
        self.announce(step.name());
        meter::rest(&mut self.managers).await?;
        let pids = self.managers.ids();
        let before = meter::server(&self.client).await?;
        // The scrape has cost the managers nothing, but the API server may ask them something.
        let cpu: Vec<f64> = pids
            .iter()
            .map(|pid| meter::cpu_seconds(*pid))
            .collect::<Result<_>>()?;
        let began = Instant::now();
        self.work(async {
            tokio::time::sleep(lasts).await;
            Ok(())
        })
        .await?;
        let seconds = began.elapsed().as_secs_f64();
        let mut figures = Figures::new();
        let (mut busiest, mut largest) = (0.0_f64, 0.0_f64);
        for (pid, before) in pids.iter().zip(cpu) {
            busiest = busiest.max(meter::cpu_seconds(*pid)? - before);
            largest = largest.max(meter::memory_mib(*pid, "VmRSS")?);
        }
        figures.insert("cpu_per_s_of_the_busiest".to_owned(), busiest / seconds);
        figures.insert("rss_rest_mib".to_owned(), largest);
        let after = meter::server(&self.client).await?;
        let writes = meter::writes_since(&before, &after);
        let count = writes.values().fold(0.0, |sum, more| sum + more);
        figures.insert("writes".to_owned(), count);
        let requests = meter::requests_since(&before, &after);
        self.keep(step, Cost { figures, requests });
        Ok(())
    }

    /// From nothing: no process, no Lease. The processes' whole processor time is the step's.
    async fn start(&mut self) -> Result<()> {
        self.announce(Step::Start.name());
        workload::create_namespace(&self.client, "pending").await?;
        self.managers.vanish().await?;
        let pending = Pending::create(&self.client, "pending", PENDING).await?;
        let began = Instant::now();
        let ready = self.managers.start().await?;
        let (first, last) = pending.served().await?;
        let mut figures = Figures::new();
        let after = |instant: Instant| instant.saturating_duration_since(began).as_secs_f64();
        figures.insert("first_served_s".to_owned(), after(first));
        figures.insert("all_served_s".to_owned(), after(last));
        if let Peer::Manifold { .. } = self.which.peer {
            figures.insert("ready_s".to_owned(), after(ready));
        }
        if !meter::rest(&mut self.managers).await? {
            figures.insert("not_at_rest".to_owned(), 1.0);
        }
        let pids = self.managers.ids();
        let (mut peak, mut resting) = (0.0_f64, 0.0_f64);
        for pid in &pids {
            peak = peak.max(meter::memory_mib(*pid, "VmHWM")?);
            resting = resting.max(meter::memory_mib(*pid, "VmRSS")?);
        }
        figures.insert("cpu_s".to_owned(), meter::cpu_of_all(&pids)?);
        figures.insert("rss_peak_mib".to_owned(), peak);
        figures.insert("rss_rest_mib".to_owned(), resting);
        self.keep(Step::Start, figures.into());
        Ok(())
    }

    async fn stalls(&mut self, steps: &[Step]) -> Result<()> {
        workload::create_namespace(&self.client, "probes").await?;
        let stall = Stall::start(&self.client, "probes").await?;
        for step in steps {
            self.announce(step.name());
            // The leader's standby; a fleet has its replicas.
            if self.which.peer.is_kcm() && *step != Step::Added {
                self.managers.add().await?;
            }
            let undisturbed = stall.figures(stall.quiet().await?, None);
            let mut figures = match step {
                Step::Killed => self.killed(&stall).await?,
                Step::Stopped => self.stopped(&stall).await?,
                _ => self.added(&stall).await?,
            };
            if let Some(p99) = undisturbed.get("stall_p99_hit_s") {
                figures.insert("stall_p99_undisturbed_s".to_owned(), *p99);
            }
            self.keep(*step, figures.into());
            // As many as before.
            if !self.which.peer.is_kcm() && *step != Step::Added {
                self.managers.await_shared().await?;
                self.managers.add().await?;
            }
        }
        Ok(())
    }

    async fn killed(&mut self, stall: &Stall) -> Result<Figures> {
        let ranges = self.managers.first_ranges().await?;
        let from = Instant::now();
        self.managers.kill_first()?;
        stall.served_since(from).await?;
        Ok(stall.figures(from - ON_ITS_WAY, ranges.as_deref()))
    }

    async fn stopped(&mut self, stall: &Stall) -> Result<Figures> {
        let ranges = self.managers.first_ranges().await?;
        let from = Instant::now();
        let mut ending = self.managers.stop_first()?;
        ending.awaited().await?;
        let took = from.elapsed().as_secs_f64();
        stall.served_since(Instant::now()).await?;
        let mut figures = stall.figures(from - ON_ITS_WAY, ranges.as_deref());
        figures.insert("ended_after_s".to_owned(), took);
        Ok(figures)
    }

    async fn added(&mut self, stall: &Stall) -> Result<Figures> {
        let before = meter::cpu_of_all(&self.managers.ids())?;
        let from = Instant::now();
        self.managers.add().await?;
        let took = from.elapsed().as_secs_f64();
        stall.served_since(Instant::now()).await?;
        let mut figures = stall.figures(from - ON_ITS_WAY, None);
        figures.insert("joined_after_s".to_owned(), took);
        // The same touches continue in each run, so it is what joining costs, and what is at rest takes
        // besides.
        let after = meter::cpu_of_all(&self.managers.ids())?;
        figures.insert("cpu_s".to_owned(), after - before);
        Ok(figures)
    }
}
