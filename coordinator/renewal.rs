//! The thread that renews the replica Lease. It has a runtime and a client of its own: no plan, graph or rate
//! limit of the rest can starve it.

use std::{io, sync::Arc, thread, time::Duration};

use coordinator_core::{
    Ending, EndingStep, NoAnswer, OwnLease, Regained, Renewal, RenewalEffect, RenewalInput, Sign,
    Status, Time, Watchdog, Written,
};
use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use tokio::sync::watch;

use crate::{
    BEATS_EVERY, ClientFactory, Fence, Pulse, RangeHost,
    config::Config,
    fence::EndCause,
    interlock::{self, HoldState},
    lease::Leases,
};

/// How often it reads the clock and the beats of the other threads.
const CHECKS_EVERY: Duration = BEATS_EVERY;

/// The same while this replica ends by itself: whether its last writes have ended.
const ENDING_CHECKS_EVERY: Duration = Duration::from_millis(5);

/// The name of the thread.
pub const THREAD: &str = "manifold-renewal";

/// What the coordinator wants of the renewal. Levels, not events: nothing queues up, nothing is lost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub join: bool,
    pub status: Status,
    pub reopen: Option<Regained>,
    pub release: bool,
}

/// Dropping it ends the thread; the fence then closes by itself.
#[derive(Debug)]
pub(crate) struct RenewalThread {
    pub wanted: watch::Sender<Wanted>,
    pub own: watch::Receiver<OwnLease>,
    /// The fleet's hold of the manager's Lease; `None` where nothing depends on it.
    pub hold: Option<watch::Receiver<HoldState>>,
}

pub(crate) fn spawn(
    config: &Config,
    renewal: Renewal,
    status: Status,
    fence: Arc<Fence>,
    host: Arc<dyn RangeHost>,
    clients: ClientFactory,
) -> io::Result<RenewalThread> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let (thread, task) = prepare(config, renewal, status, fence, host);
    thread::Builder::new()
        .name(THREAD.to_owned())
        .spawn(move || runtime.block_on(async { task(clients()).await }))?;
    Ok(thread)
}

/// The renewal, and what runs it with a client of its own: on a thread, or where a simulation wants it.
pub(crate) fn prepare(
    config: &Config,
    mut renewal: Renewal,
    status: Status,
    fence: Arc<Fence>,
    host: Arc<dyn RangeHost>,
) -> (
    RenewalThread,
    impl FnOnce(kube::Client) -> BoxFuture<'static, ()> + Send + 'static,
) {
    let (wanted, mut wants) = watch::channel(Wanted {
        status,
        ..Wanted::default()
    });
    let (publish, own) = watch::channel(renewal.own());
    let kept = config
        .interlock
        .as_ref()
        .map(|options| interlock::keeper(config, options, &fence, &host, own.clone()));
    let (keeper, hold) = kept.unzip();
    let config = config.clone();
    let task = move |client: kube::Client| {
        async move {
            let _closes = CloseAtEnd(Arc::clone(&fence));
            let leases = Leases::new(
                client.clone(),
                &config.fleet_namespace,
                &config.fleet_name,
                config.lease_duration,
                config.lease_retry_period,
            );
            let holding = async {
                match keeper {
                    Some(keeper) => keeper.run(client, leases.clone()).await,
                    None => std::future::pending().await,
                }
            };
            let mut threads = config.threads.clone();
            threads.push(("coordinator".to_owned(), fence.coordinating.clone()));
            let late = fence.late_write_max();
            let renewing = Renewing {
                config: &config,
                renewal: &mut renewal,
                fence: &fence,
                host: &*host,
                leases: &leases,
                publish: &publish,
                watchdog: Watchdog::new(config.lease_duration, late, threads.len()),
                threads,
                suspected_since: None,
                ending: None,
                end_is_logged: false,
                leaving: None,
                request: None,
                carried: 0,
                acquired: None,
            };
            let renewing = renewing.run(&mut wants);
            tokio::select! {
                biased;
                () = renewing => {}
                () = holding => {}
            }
        }
        .boxed()
    };
    (RenewalThread { wanted, own, hold }, task)
}

/// Whatever ends the thread, a panic too, closes the fence.
struct CloseAtEnd(Arc<Fence>);

impl Drop for CloseAtEnd {
    fn drop(&mut self) {
        // A thread that has ended is not at rest.
        self.0.renewing.beat();
        self.0.set_until(None);
    }
}

/// What the thread runs, and what it has under way.
struct Renewing<'a> {
    config: &'a Config,
    renewal: &'a mut Renewal,
    fence: &'a Fence,
    host: &'a dyn RangeHost,
    leases: &'a Leases,
    publish: &'a watch::Sender<OwnLease>,
    /// The threads that have to run, this one aside.
    threads: Vec<(String, Pulse)>,
    watchdog: Watchdog,
    suspected_since: Option<Time>,
    ending: Option<Ending>,
    end_is_logged: bool,
    leaving: Option<Leaving>,
    request: Option<BoxFuture<'static, RenewalInput>>,
    /// The announcements that the write under way carries.
    carried: u64,
    /// When an incarnation, the last one, first wrote its name.
    acquired: Option<(String, MicroTime)>,
}

/// The Lease is to be released, as the coordinator wants it.
struct Leaving {
    since: Time,
    /// Whether the release has begun.
    begun: bool,
}

impl Renewing<'_> {
    /// Until the coordinator is gone or this replica has ended by itself.
    async fn run(mut self, wants: &mut watch::Receiver<Wanted>) {
        let mut has_coordinator = true;
        loop {
            self.fence.renewing.beat();
            let now = self.fence.now();
            let mut inputs = Vec::new();
            self.check_the_process(now, &mut inputs);
            if self.ends(now, &mut inputs) {
                return;
            }
            self.leave(now, &mut inputs);
            let sleep = self.sleep(now, !inputs.is_empty());
            // In this order, so that a run can be repeated.
            let more = tokio::select! {
                biased;
                () = std::future::ready(()), if !inputs.is_empty() => Vec::new(),
                changed = wants.changed(), if has_coordinator => match changed {
                    Ok(()) => self.wanted(now, wants.borrow_and_update().clone()),
                    // The coordinator is gone, and this replica ends by itself because of it.
                    Err(_) if self.fence.ending().is_some() => {
                        has_coordinator = false;
                        Vec::new()
                    }
                    Err(_) => return,
                },
                input = answer(&mut self.request) => {
                    self.request = None;
                    vec![input]
                }
                () = self.fence.announcements.asked() => vec![RenewalInput::Announce],
                () = self.fence.ends() => Vec::new(),
                () = tokio::time::sleep(sleep) => vec![RenewalInput::Tick],
            };
            inputs.extend(more);
            for input in inputs {
                self.step(input);
            }
            self.publish();
        }
    }

    /// Closes the fence where this process or its machine has stood still, and has it end where a thread
    /// hangs.
    fn check_the_process(&mut self, now: Time, inputs: &mut Vec<RenewalInput>) {
        let (fence, renewal) = (self.fence, &*self.renewal);
        let found = self.watchdog.check(now, &signs(&self.threads, renewal));
        if let Some(gap) = found.gap {
            if renewal.own().open_until.is_some() {
                tracing::warn!(
                    stood_still_ms = u64::try_from(gap.as_millis()).unwrap_or(u64::MAX),
                    "this process or its machine has stood still: nothing is written until a renewal has landed"
                );
            }
            fence.set_until(None);
            inputs.push(RenewalInput::Gap);
        }
        self.suspected_since = match found.suspected {
            true => self.suspected_since.or(Some(now)),
            false => None,
        };
        fence.suspect(found.suspected);
        // What must be closed is: from here on time alone may close it.
        fence.watched(now);
        fence.mark_if_still();
        if let Some(hung) = found.hung.filter(|_| fence.ending().is_none()) {
            let (thread, still) = (&self.threads[hung.thread].0, hung.still.as_millis());
            let why = format!("thread {thread} has not run for {still} ms");
            fence.end(EndCause::Hang, why);
            fence.shut();
            let closed = self.suspected_since.unwrap_or(now);
            self.ending = Some(Ending::behind_a_closed_fence(
                closed,
                self.fence.late_write_max(),
            ));
        }
    }

    /// What is due of the end that this replica brings on itself: whether it is over.
    fn ends(&mut self, now: Time, inputs: &mut Vec<RenewalInput>) -> bool {
        let fence = self.fence;
        let Some(end) = fence.ending() else {
            return false;
        };
        if !std::mem::replace(&mut self.end_is_logged, true) {
            let why = end.why.as_str();
            tracing::error!(
                why,
                "this replica ends: it releases its Lease, so that others take its ranges at once"
            );
        }
        let late = fence.late_write_max();
        let last = self.ending.get_or_insert_with(|| Ending::begun(now, late));
        loop {
            let (in_flight, is_still) = (fence.in_flight(), fence.is_still());
            match last.step(now, in_flight, is_still, &self.renewal.own().phase) {
                EndingStep::Waits => return false,
                EndingStep::Closes => fence.shut(),
                EndingStep::Releases => {
                    inputs.push(match end.cause {
                        // The oldest first: what the hung thread is at.
                        EndCause::Hang | EndCause::Panic => {
                            RenewalInput::GiveUp(self.host.working())
                        }
                        EndCause::Other => RenewalInput::Release,
                    });
                    return false;
                }
                EndingStep::Ends => {
                    match end.cause {
                        EndCause::Hang | EndCause::Panic => (self.config.abort)(),
                        EndCause::Other => {}
                    }
                    return true;
                }
            }
        }
    }

    /// Releases the Lease where that is wanted and what was sent is over.
    fn leave(&mut self, now: Time, inputs: &mut Vec<RenewalInput>) {
        if let Some(leaving) = &mut self.leaving
            && !leaving.begun
            && (self.fence.is_still() || now >= leaving.since + self.fence.late_write_max())
        {
            leaving.begun = true;
            inputs.push(RenewalInput::Release);
        }
    }

    /// How long nothing is due.
    fn sleep(&self, now: Time, has_inputs: bool) -> Duration {
        let leaves = self.leaving.as_ref().is_some_and(|leaving| !leaving.begun);
        let checks_every = match self.ending.is_some() || leaves {
            true => ENDING_CHECKS_EVERY,
            false => CHECKS_EVERY,
        };
        let wake = self.renewal.wake_at().filter(|_| !has_inputs);
        wake.map_or(checks_every, |at| at.saturating_sub(now).min(checks_every))
            .max(Duration::from_millis(1))
    }

    fn wanted(&mut self, now: Time, wanted: Wanted) -> Vec<RenewalInput> {
        if wanted.release {
            // Ranges that were dropped may be anybody's with the release: what was sent for them is over by
            // then.
            self.fence.pause();
            self.leaving.get_or_insert(Leaving {
                since: now,
                begun: false,
            });
        }
        inputs_of(wanted)
    }

    /// One step of the renewal; a request that it makes is the one that is waited for.
    fn step(&mut self, input: RenewalInput) {
        let fence = self.fence;
        if let RenewalInput::Written {
            started,
            result: Written::Done(lease),
        } = &input
        {
            fence.landed(lease.version, *started);
            fence.announcements.landed(self.carried);
            self.config
                .server_fence
                .announced(lease.status.server_fenced);
        }
        for mut effect in self.renewal.step(fence.now(), input) {
            if let RenewalEffect::Write { lease, .. } = &mut effect
                && lease.incarnation.is_some()
            {
                // In this order: what is in flight holds all that was announced by then.
                self.carried = fence.announcements.count();
                lease.working = self.host.working();
                lease.loads = self.host.loads();
            }
            let acquired = match &effect {
                RenewalEffect::Write { lease, .. } => {
                    acquired_at(&mut self.acquired, lease.incarnation.as_deref())
                }
                RenewalEffect::Read => None,
            };
            let (name, leases) = (self.config.replica_name.clone(), self.leases.clone());
            self.request = Some(perform(name, leases, fence.now(), effect, acquired).boxed());
        }
    }

    fn publish(&self) {
        let own = self.renewal.own();
        // The fence first: one that hears that a life is over finds it closed.
        self.fence.set_until(own.open_until);
        self.publish.send_if_modified(|before| {
            let changed = *before != own;
            *before = own;
            changed
        });
    }
}

/// What came of the request under way; never, where there is none.
async fn answer(request: &mut Option<BoxFuture<'static, RenewalInput>>) -> RenewalInput {
    match request {
        Some(request) => request.await,
        None => std::future::pending().await,
    }
}

/// What the watchdog sees: nothing before the Lease is held, when much is done once, and nothing when the
/// replica leaves.
fn signs(threads: &[(String, Pulse)], renewal: &Renewal) -> Vec<Sign> {
    let held = renewal.holds();
    let sign = |(_, pulse): &(String, Pulse)| match held {
        true => pulse.sign(),
        false => Sign::default(),
    };
    threads.iter().map(sign).collect()
}

fn inputs_of(wanted: Wanted) -> Vec<RenewalInput> {
    let mut inputs = vec![RenewalInput::Status(wanted.status)];
    if wanted.join {
        inputs.push(RenewalInput::Join);
    }
    inputs.extend(wanted.reopen.map(RenewalInput::Reopen));
    inputs
}

/// When this incarnation first wrote its name; for people to read.
fn acquired_at(
    acquired: &mut Option<(String, MicroTime)>,
    incarnation: Option<&str>,
) -> Option<MicroTime> {
    let incarnation = incarnation?;
    if acquired
        .as_ref()
        .is_none_or(|(before, _)| before != incarnation)
    {
        *acquired = Some((incarnation.to_owned(), MicroTime(jiff::Timestamp::now())));
    }
    acquired.as_ref().map(|(_, at)| at.clone())
}

async fn perform(
    name: String,
    leases: Leases,
    started: Duration,
    effect: RenewalEffect,
    acquired: Option<MicroTime>,
) -> RenewalInput {
    match effect {
        RenewalEffect::Read => RenewalInput::Read(leases.replica(&name).await.map_err(|error| {
            tracing::warn!(%error, "reading the own replica Lease failed");
            NoAnswer
        })),
        RenewalEffect::Write { version, lease } => RenewalInput::Written {
            started,
            result: leases.write_replica(version, &lease, acquired).await,
        },
    }
}
