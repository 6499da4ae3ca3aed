//! The thread that renews the replica Lease. It has a runtime and a client of its own: no plan, graph or rate
//! limit of the rest can starve it.

use std::{io, sync::Arc, thread, time::Duration};

use coordinator_core::{
    OwnLease, OwnPhase, Regained, Renewal, RenewalEffect, RenewalInput, Sign, Status, Time,
    Watchdog, Written,
};
use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use tokio::sync::watch;

use crate::{
    BEATS_EVERY, ClientFactory, Fence, Pulse, RangeHost, ServerFence,
    config::Config,
    interlock::{self, HoldState},
    lease::Leases,
};

/// How often it reads the clock and the beats of the other threads.
const CHECKS_EVERY: Duration = BEATS_EVERY;

/// Between two checks whether the last writes of a replica with a hung thread have ended.
const GIVING_UP_CHECKS_EVERY: Duration = Duration::from_millis(20);

/// How long such a replica tries to release its Lease. Without, others wait until it expires.
const GIVING_UP_MAX: Duration = Duration::from_secs(2);

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
        .name("manifold-renewal".to_owned())
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
    let late = config.in_hand();
    let mut watchdog = Watchdog::new(config.lease_duration, late, threads.len());
    let mut suspected_since = None;
    let mut giving_up: Option<GivingUp> = None;
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
        if let Some(hung) = found.hung.filter(|_| giving_up.is_none()) {
            let (thread, still) = (&threads[hung.thread].0, hung.still.as_millis());
            tracing::error!(
                thread,
                still_ms = u64::try_from(still).unwrap_or(u64::MAX),
                "a thread hangs: this replica releases its Lease, so that others take its ranges, and aborts"
            );
            fence.hangs(format!("thread {thread} has not run for {still} ms"));
            let closed = suspected_since.unwrap_or(now);
            giving_up = Some(GivingUp::from(closed, now, late));
        }
        if let Some(last) = &mut giving_up {
            match last.step(now, fence.is_still(), &renewal.own().phase) {
                Step::Waits => {}
                // The oldest first: what the hung thread is at.
                Step::Releases => inputs.push(RenewalInput::GiveUp(host.working())),
                Step::Ends => return (config.abort)(),
            }
        }
        let checks_every = match giving_up {
            Some(_) => GIVING_UP_CHECKS_EVERY,
            None => CHECKS_EVERY,
        };
        let wake = renewal.wake_at().filter(|_| inputs.is_empty());
        let sleep = wake
            .map_or(checks_every, |at| at.saturating_sub(now).min(checks_every))
            .max(Duration::from_millis(1));
        // In this order, so that a run can be repeated.
        let more = tokio::select! {
            biased;
            () = std::future::ready(()), if !inputs.is_empty() => Vec::new(),
            changed = wants.changed() => {
                if changed.is_err() {
                    return;
                }
                inputs_of(wants.borrow_and_update().clone())
            }
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
        // The fence first: whoever hears that a life is over finds it closed.
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

/// The end of a replica with a hung thread. Its fence is closed, and stays so.
struct GivingUp {
    /// What was sent is in the server's hands no longer.
    still_at: Time,
    end_at: Time,
    released: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Step {
    Waits,
    Releases,
    Ends,
}

impl GivingUp {
    fn from(closed: Time, now: Time, late: Time) -> Self {
        let still_at = closed + late;
        Self {
            still_at,
            end_at: still_at.max(now) + GIVING_UP_MAX,
            released: false,
        }
    }

    fn step(&mut self, now: Time, is_still: bool, phase: &OwnPhase) -> Step {
        let gone = matches!(phase, OwnPhase::Released | OwnPhase::NameTaken(_));
        if gone || now >= self.end_at {
            return Step::Ends;
        }
        if !self.released && (is_still || now >= self.still_at) {
            self.released = true;
            return Step::Releases;
        }
        Step::Waits
    }
}

fn inputs_of(wanted: Wanted) -> Vec<RenewalInput> {
    let mut inputs = vec![RenewalInput::Status(wanted.status)];
    if wanted.join {
        inputs.push(RenewalInput::Join);
    }
    inputs.extend(wanted.reopen.map(RenewalInput::Reopen));
    if wanted.release {
        inputs.push(RenewalInput::Release);
    }
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
        })),
        RenewalEffect::Write { version, lease } => RenewalInput::Written {
            started,
            result: leases.write_replica(version, &lease, acquired).await,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_given_up_when_nothing_of_it_is_in_the_servers_hands() {
        let ms = Duration::from_millis;
        let held = OwnPhase::Held;
        let begin = || GivingUp::from(ms(10_000), ms(10_000), ms(2_000));
        // Nothing is in flight: at once, and once.
        let mut last = begin();
        assert_eq!(last.step(ms(10_000), true, &held), Step::Releases);
        assert_eq!(last.step(ms(10_020), true, &held), Step::Waits);
        assert_eq!(last.step(ms(10_040), true, &OwnPhase::Released), Step::Ends);
        // What the hung thread has sent is never answered.
        let mut last = begin();
        assert_eq!(last.step(ms(10_000), false, &held), Step::Waits);
        assert_eq!(last.step(ms(11_980), false, &held), Step::Waits);
        assert_eq!(last.step(ms(12_000), false, &held), Step::Releases);
        assert_eq!(last.step(ms(13_980), false, &held), Step::Waits);
        // The API server does not answer either.
        assert_eq!(last.step(ms(14_000), false, &held), Step::Ends);
        // Nothing was sent for two seconds before it was certain.
        let mut last = GivingUp::from(ms(8_000), ms(10_000), ms(2_000));
        assert_eq!(last.step(ms(10_000), false, &held), Step::Releases);
        assert_eq!(last.step(ms(12_000), false, &held), Step::Ends);
        // Somebody has evicted it, or has its name.
        let taken = OwnPhase::NameTaken("b1".to_owned());
        assert_eq!(begin().step(ms(10_000), false, &taken), Step::Ends);
    }
}
