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
    BEATS_EVERY, ClientFactory, Fence, Pulse, RangeHost, ServerFence,
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
            let renewing = run(
                &config,
                &mut renewal,
                &fence,
                &*host,
                &leases,
                &mut wants,
                &publish,
            );
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

#[allow(clippy::too_many_arguments)]
async fn run(
    config: &Config,
    renewal: &mut Renewal,
    fence: &Fence,
    host: &dyn RangeHost,
    leases: &Leases,
    wants: &mut watch::Receiver<Wanted>,
    publish: &watch::Sender<OwnLease>,
) {
    let server_fence: &ServerFence = &config.server_fence;
    let mut threads = config.threads.clone();
    threads.push(("coordinator".to_owned(), fence.coordinating.clone()));
    let late = config.late_write_max();
    let mut watchdog = Watchdog::new(config.lease_duration, late, threads.len());
    let mut suspected_since = None;
    let mut ending: Option<Ending> = None;
    let (mut logged, mut wanted) = (false, true);
    // Since when the Lease is to be released, and whether that has begun.
    let mut leaves: Option<(Time, bool)> = None;
    let mut request = None;
    // The announcements that the write under way carries.
    let mut carried = 0;
    let mut acquired: Option<(String, MicroTime)> = None;
    loop {
        fence.renewing.beat();
        let now = fence.now();
        let mut inputs = Vec::new();
        let found = watchdog.check(now, &signs(&threads, renewal));
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
        suspected_since = match found.suspected {
            true => suspected_since.or(Some(now)),
            false => None,
        };
        fence.suspect(found.suspected);
        // What must be closed is: from here on time alone may close it.
        fence.watched(now);
        fence.mark_if_still();
        if let Some(hung) = found.hung.filter(|_| fence.ending().is_none()) {
            let (thread, still) = (&threads[hung.thread].0, hung.still.as_millis());
            let why = format!("thread {thread} has not run for {still} ms");
            fence.end(EndCause::Hang, why);
            fence.shut();
            let closed = suspected_since.unwrap_or(now);
            ending = Some(Ending::behind_a_closed_fence(closed, late));
        }
        if let Some(end) = fence.ending() {
            if !std::mem::replace(&mut logged, true) {
                let why = end.why.as_str();
                tracing::error!(
                    why,
                    "this replica ends: it releases its Lease, so that others take its ranges at once"
                );
            }
            let last = ending.get_or_insert_with(|| Ending::begun(now, late));
            loop {
                let (in_flight, is_still) = (fence.in_flight(), fence.is_still());
                match last.step(now, in_flight, is_still, &renewal.own().phase) {
                    EndingStep::Waits => break,
                    EndingStep::Closes => fence.shut(),
                    EndingStep::Releases => {
                        inputs.push(match end.cause {
                            // The oldest first: what the hung thread is at.
                            EndCause::Hang | EndCause::Panic => {
                                RenewalInput::GiveUp(host.working())
                            }
                            EndCause::Other => RenewalInput::Release,
                        });
                        break;
                    }
                    EndingStep::Ends => {
                        return match end.cause {
                            EndCause::Hang | EndCause::Panic => (config.abort)(),
                            EndCause::Other => {}
                        };
                    }
                }
            }
        }
        if let Some((since, begun)) = &mut leaves
            && !*begun
            && (fence.is_still() || now >= *since + late)
        {
            *begun = true;
            inputs.push(RenewalInput::Release);
        }
        let waits = matches!(leaves, Some((_, false)));
        let checks_every = match ending.is_some() || waits {
            true => ENDING_CHECKS_EVERY,
            false => CHECKS_EVERY,
        };
        let wake = renewal.wake_at().filter(|_| inputs.is_empty());
        let sleep = wake
            .map_or(checks_every, |at| at.saturating_sub(now).min(checks_every))
            .max(Duration::from_millis(1));
        // In this order, so that a run can be repeated.
        let more = tokio::select! {
            biased;
            () = std::future::ready(()), if !inputs.is_empty() => Vec::new(),
            changed = wants.changed(), if wanted => match changed {
                Ok(()) => {
                    let wanted = wants.borrow_and_update().clone();
                    if wanted.release {
                        // Ranges that were dropped may be anybody's with the release: what was sent for them
                        // is over by then.
                        fence.pause();
                        leaves.get_or_insert((now, false));
                    }
                    inputs_of(wanted)
                }
                // The coordinator is gone, and this replica ends by itself because of it.
                Err(_) if fence.ending().is_some() => {
                    wanted = false;
                    Vec::new()
                }
                Err(_) => return,
            },
            input = async {
                match request.as_mut() {
                    Some(request) => std::pin::Pin::new(request).await,
                    None => std::future::pending().await,
                }
            } => {
                request = None;
                vec![input]
            }
            () = fence.announcements.asked() => vec![RenewalInput::Announce],
            () = fence.ends() => Vec::new(),
            () = tokio::time::sleep(sleep) => vec![RenewalInput::Tick],
        };
        inputs.extend(more);
        for input in inputs {
            if let RenewalInput::Written {
                started,
                result: Written::Done(lease),
            } = &input
            {
                fence.landed(lease.version, *started);
                fence.announcements.landed(carried);
                server_fence.announced(lease.status.server_fenced);
            }
            for mut effect in renewal.step(fence.now(), input) {
                if let RenewalEffect::Write { lease, .. } = &mut effect
                    && lease.incarnation.is_some()
                {
                    // In this order: what is in flight holds all that was announced by then.
                    carried = fence.announcements.count();
                    lease.working = host.working();
                    lease.loads = host.loads();
                }
                let acquired = match &effect {
                    RenewalEffect::Write { lease, .. } => {
                        acquired_at(&mut acquired, lease.incarnation.as_deref())
                    }
                    RenewalEffect::Read => None,
                };
                request = Some(Box::pin(perform(
                    config.replica_name.clone(),
                    leases.clone(),
                    fence.now(),
                    effect,
                    acquired,
                )));
            }
        }
        let own = renewal.own();
        // The fence first: one that hears that a life is over finds it closed.
        fence.set_until(own.open_until);
        publish.send_if_modified(|before| {
            let changed = *before != own;
            *before = own;
            changed
        });
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
