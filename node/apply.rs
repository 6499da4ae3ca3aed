//! The one writer: sends what a plan names, stage by stage, each request only after the gate has let it pass.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex},
    time::Duration,
};

use controllers_kit::{
    Action, Event, Failure, Landed, Plan, StatusWrite, Timestamp, Verb, Written,
};
use futures::{StreamExt, stream, stream::FuturesUnordered};
use node_telemetry::metrics::{ClientMetrics, Metrics};
use tokio::sync::mpsc;

use crate::{
    ask::Proofs,
    clock::Clock,
    events::{Correlator, Send as SendEvent, outbox, outbox::Outbox},
    gate::{EventGuard, Stopped},
    limit::{self, Limiter, Limiters, Whose},
    server::{Refused, Sender, Server},
    write,
};

/// Requests of one plan that are under way at once.
pub const WRITES_AT_ONCE: usize = 100;
/// Events that are under way at once.
const EVENTS_AT_ONCE: usize = 16;
/// An answer that has not come by then will not come: above the API server's own limit of a minute.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// What became of a plan.
#[derive(Debug, Default)]
pub struct Applied {
    /// Of each action, in the plan's order. What was not sent, or refused by the API server's fence, is
    /// [`Failure::Skipped`], what was given up on its way [`Failure::Fenced`].
    pub outcomes: Vec<Result<Written, Failure>>,
    /// Whether the range was frozen or lost before all was sent.
    pub stopped: Option<Stopped>,
    /// Whether a report was left out because the last one is too fresh.
    pub postponed: bool,
    /// Whether a report was written.
    pub reported: bool,
    /// Whether all was done: what the plan measures holds.
    pub whole: bool,
    /// How long the server asked to be left alone.
    pub retry_after: Option<Duration>,
}

/// The one writer.
pub struct Writer {
    server: Arc<dyn Server>,
    client: Arc<ClientMetrics>,
    limiters: Arc<Limiters>,
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
    events: mpsc::Sender<(SendEvent, Beside)>,
    correlators: Mutex<HashMap<&'static str, Correlator>>,
    proofs: Proofs,
    /// Nothing is sent at all: a shadow's.
    is_silent: bool,
}

/// What the sending of an event needs beside it.
struct Beside {
    sender: Sender,
    guard: EventGuard,
}

impl Writer {
    /// The writer, and the task that sends its events, which the caller runs. `host` is the server's, for
    /// metrics.
    pub fn new(
        server: Arc<dyn Server>,
        host: &str,
        rate: (f64, u32),
        clock: Arc<dyn Clock>,
        metrics: Arc<Metrics>,
        is_silent: bool,
    ) -> (Arc<Self>, impl Future<Output = ()> + Send + 'static) {
        let (events, waiting) = mpsc::channel(outbox::WAITING_MAX);
        let writer = Arc::new(Self {
            server,
            client: metrics.client(host),
            limiters: Arc::new(Limiters::new(rate)),
            clock: Arc::clone(&clock),
            metrics: Arc::clone(&metrics),
            events,
            correlators: Mutex::default(),
            proofs: Proofs::default(),
            is_silent,
        });
        let task = send_events(
            waiting,
            Arc::clone(&writer.server),
            Arc::clone(&writer.limiters),
            clock,
            metrics,
        );
        (writer, task)
    }

    /// Applies a plan. `report` is false where the key's last report is too fresh for another one.
    pub async fn apply(&self, sender: &Sender, plan: &Plan, report: bool) -> Applied {
        let mut applied = Applied::default();
        for event in &plan.events {
            self.record(sender, event);
        }
        let mut going = true;
        for stage in &plan.stages {
            if !going {
                applied
                    .outcomes
                    .extend(stage.iter().map(|_| Err(Failure::Skipped)));
                continue;
            }
            let outcomes = self.stage(sender, stage, report, &mut applied).await;
            going = outcomes.iter().all(Result::is_ok);
            applied.outcomes.extend(outcomes);
        }
        applied.whole = going && !applied.postponed;
        if applied.whole && plan.failure.is_none() {
            for measure in &plan.measures {
                sender.metrics.measure(measure);
            }
        }
        applied
    }

    async fn stage(
        &self,
        sender: &Sender,
        stage: &[Action],
        report: bool,
        applied: &mut Applied,
    ) -> Vec<Result<Written, Failure>> {
        let mut outcomes: Vec<Result<Written, Failure>> =
            stage.iter().map(|_| Err(Failure::Skipped)).collect();
        let is_create = |action: &Action| matches!(action.verb, Verb::Create { .. });
        let creates: Vec<usize> = (0..stage.len())
            .filter(|index| is_create(&stage[*index]))
            .collect();
        let mut others = Vec::new();
        for (index, action) in stage.iter().enumerate() {
            match &action.verb {
                Verb::Create { .. } => {}
                _ if is_report(action) && !report => {
                    applied.postponed = true;
                    outcomes[index] = Ok(Written::default());
                }
                _ => others.push(index),
            }
        }
        let (created, done) = futures::join!(
            self.slow_start(sender, stage, &creates),
            self.side_by_side(sender, stage, &others)
        );
        for (index, sent) in created.into_iter().chain(done) {
            outcomes[index] = match sent {
                Ok(written) => {
                    applied.reported |= is_report(&stage[index]);
                    Ok(written)
                }
                Err(NotDone::Refused(refused)) => {
                    applied.retry_after = applied.retry_after.max(refused.retry_after);
                    Err(refused.failure)
                }
                Err(NotDone::Stopped(stopped)) => {
                    applied.stopped = Some(stopped);
                    Err(Failure::Skipped)
                }
                Err(NotDone::GivenUp) => {
                    applied.stopped = Some(Stopped::Fenced);
                    Err(Failure::Fenced)
                }
            };
        }
        outcomes
    }

    async fn slow_start(
        &self,
        sender: &Sender,
        stage: &[Action],
        creates: &[usize],
    ) -> Vec<(usize, Sent)> {
        let mut all = Vec::with_capacity(creates.len());
        for batch in write::slow_start(creates.len()) {
            let sent = self.side_by_side(sender, stage, &creates[batch]).await;
            // A child that exists already was made by this key's last owner or lost answer: no reason to
            // stop.
            let failed = sent.iter().any(|(_, sent)| match sent {
                Ok(_) => false,
                Err(NotDone::Refused(refused)) => {
                    !matches!(refused.failure, Failure::AlreadyExists(_))
                }
                Err(NotDone::Stopped(_) | NotDone::GivenUp) => true,
            });
            all.extend(sent);
            if failed {
                break;
            }
        }
        all
    }

    async fn side_by_side(
        &self,
        sender: &Sender,
        stage: &[Action],
        which: &[usize],
    ) -> Vec<(usize, Sent)> {
        stream::iter(
            which
                .iter()
                .map(|index| async move { (*index, self.send(sender, &stage[*index]).await) }),
        )
        .buffer_unordered(WRITES_AT_ONCE)
        .collect()
        .await
    }

    /// From now on these controllers may send this number of writes a second, and take none from the
    /// allowance of all; the others as configured.
    pub fn order_rates(&self, rates: &BTreeMap<&'static str, f64>) {
        self.limiters.order(rates);
    }

    /// From now on all may send this number of requests a second and at once; what an order has set stays
    /// set.
    pub fn configure_rate(&self, rate: (f64, u32)) {
        self.limiters.configure(self.clock.monotonic(), rate);
    }

    /// The limiters of this process.
    pub fn limiters(&self) -> &Arc<Limiters> {
        &self.limiters
    }

    /// Waits for the turn of a write, or until nothing may be sent any more; the limiter whose token it has.
    async fn turn(&self, sender: &Sender) -> Result<Arc<Limiter>, NotDone> {
        if self.is_silent {
            return Err(NotDone::Stopped(Stopped::Fenced));
        }
        sender.gate.admit().map_err(NotDone::Stopped)?;
        let whose = Whose::Controller(sender.controller, sender.client_rate);
        let turn = self
            .limiters
            .turn(whose, &*self.clock, sender.gate.stopped());
        turn.await.map_err(NotDone::Stopped)
    }

    async fn send(&self, sender: &Sender, action: &Action) -> Sent {
        let asked = self.clock.monotonic();
        let limiter = self.turn(sender).await?;
        let waited = self.clock.monotonic().saturating_sub(asked);
        self.client.limited(http_method(action), waited);
        // Asked again, last thing before the request goes out.
        let sending = match sender.gate.send() {
            Ok(sending) => sending,
            Err(stopped) => {
                limiter.with(limit::Bucket::give_back);
                sender.metrics.fenced();
                return Err(NotDone::Stopped(stopped));
            }
        };
        let sent = tokio::select! {
            biased;
            () = sender.gate.closed() => {
                sender.metrics.fenced();
                return Err(NotDone::GivenUp);
            }
            sent = tokio::time::timeout(WRITE_TIMEOUT, self.server.write(sender, action)) => sent,
        };
        let sent = sent.unwrap_or_else(|_| {
            Err(Refused::from(Failure::Timeout(format!(
                "no answer within {} s",
                WRITE_TIMEOUT.as_secs()
            ))))
        });
        if let Some(sending) = sending
            && sent.as_ref().err().is_none_or(is_answer)
        {
            sending.answered();
        }
        sender.metrics.wrote(
            action.verb.name(),
            action.resource.plural,
            sent.as_ref()
                .err()
                .map_or("success", |refused| refused.failure.class().label),
        );
        if let Err(Refused {
            retry_after: Some(pause),
            ..
        }) = &sent
        {
            let now = self.clock.monotonic();
            limiter.with(|bucket| bucket.pause(now, *pause));
            self.limiters.throttled(now);
        }
        if matches!(&sent, Err(refused) if refused.failure == Failure::Fenced) {
            // The API server knows this life as over; the own Lease will say so in a moment.
            sender.metrics.fenced();
            return Err(NotDone::Stopped(Stopped::Fenced));
        }
        let sent = sent.map_err(|refused| Refused {
            failure: action.reported(refused.failure),
            ..refused
        });
        let sent = match sent {
            Err(refused) if action.is_superseded(&refused.failure) => Ok(Written::default()),
            sent => sent,
        };
        self.announce(sender, action, &sent);
        sent.map_err(NotDone::Refused)
    }

    fn announce(&self, sender: &Sender, action: &Action, sent: &Result<Written, Refused>) {
        let Some(announcement) = &action.announcement else {
            return;
        };
        let measures = match sent {
            Ok(_) => &announcement.measures[..],
            Err(refused) if action.reports_failure(&refused.failure) => {
                &announcement.failure_measures
            }
            Err(_) => &[],
        };
        for measure in measures {
            sender.metrics.measure(measure);
        }
        match (sent, &announcement.success, &announcement.failure) {
            (Ok(_), Some(event), _) => self.record(sender, event),
            (Err(refused), _, Some(event)) if action.reports_failure(&refused.failure) => {
                match announcement.failure_as_is {
                    true => self.record(sender, event),
                    false => self.record(sender, &write::failure_event(event, &refused.failure)),
                }
            }
            _ => {}
        }
    }

    /// Records an event. It is sent by a task of its own; one too many is dropped and counted.
    pub fn record(&self, sender: &Sender, event: &Event) {
        if self.is_silent {
            return;
        }
        let send = {
            let mut correlators = self
                .correlators
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            correlators
                .entry(sender.event_source)
                .or_insert_with(|| Correlator::new(sender.event_source))
                .correlate(event, self.clock.now(), self.clock.monotonic())
        };
        let Some(send) = send else { return };
        let beside = Beside {
            sender: sender.clone(),
            guard: sender.gate.event(),
        };
        if self.events.try_send((send, beside)).is_err() {
            self.metrics.event_dropped();
        }
    }

    /// What is known of the cache's freshness besides its watches.
    pub fn proofs(&self) -> &Proofs {
        &self.proofs
    }

    /// The server, for reads.
    pub fn server(&self) -> &dyn Server {
        &*self.server
    }

    /// The present.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }
}

fn http_method(action: &Action) -> &'static str {
    match action.verb {
        Verb::Create { .. } => "POST",
        Verb::Patch { .. } => "PATCH",
        Verb::Delete { .. } | Verb::DeleteCollection { .. } => "DELETE",
        Verb::Replace { .. } => "PUT",
    }
}

/// Whether an action only reports what was seen.
pub fn is_report(action: &Action) -> bool {
    action.report() != StatusWrite::No
}

/// Whether a failure says that nothing of the write is in flight any more. The API server's own fence answers
/// too.
fn is_answer(refused: &Refused) -> bool {
    refused.failure == Failure::Fenced || refused.failure.class().landed != Landed::InFlight
}

type Sent = Result<Written, NotDone>;

enum NotDone {
    Refused(Refused),
    /// Nothing was done: it was not sent, or the API server's fence has refused it.
    Stopped(Stopped),
    /// The fence closed while it was under way.
    GivenUp,
}

async fn send_events(
    mut coming: mpsc::Receiver<(SendEvent, Beside)>,
    server: Arc<dyn Server>,
    limiters: Arc<Limiters>,
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
) {
    let mut outbox = Outbox::default();
    let mut under_way = FuturesUnordered::new();
    let send = async |(name, send, beside): (outbox::Name, SendEvent, Beside)| {
        let recorded = send_event(&send, &beside, &*server, &limiters, &*clock).await;
        (name, recorded)
    };
    let mut ended = false;
    loop {
        while under_way.len() < EVENTS_AT_ONCE
            && let Some(next) = outbox.take()
        {
            under_way.push(send(next));
        }
        if ended && under_way.is_empty() {
            return;
        }
        tokio::select! {
            biased;
            came = coming.recv(), if !ended => {
                ended = came.is_none();
                // All that has come together, so that of one Event only the newest count goes.
                let together = came.into_iter().chain(std::iter::from_fn(|| coming.try_recv().ok()));
                for (send, beside) in together {
                    if !outbox.push(send, beside) {
                        metrics.event_dropped();
                    }
                }
            }
            Some((name, recorded)) = under_way.next() => {
                if !recorded {
                    metrics.event_dropped();
                }
                outbox.done(&name);
            }
        }
    }
}

/// Whether the event was recorded. One try, a second one where the event that it continues is not there, and
/// a third where that one's creation was only under way.
async fn send_event(
    send: &SendEvent,
    beside: &Beside,
    server: &dyn Server,
    limiters: &Limiters,
    clock: &dyn Clock,
) -> bool {
    let gate = beside.guard.gate();
    for create in [false, true, false] {
        let turn = limiters.turn(Whose::Events, clock, gate.closed());
        if turn.await.is_err() || gate.admit_while_frozen().is_err() {
            return false;
        }
        let sent = tokio::select! {
            biased;
            () = gate.closed() => return false,
            sent = tokio::time::timeout(WRITE_TIMEOUT, server.record(&beside.sender, send, create)) => sent,
        };
        if matches!(&sent, Ok(Err(refused)) if refused.retry_after.is_some()) {
            limiters.throttled(clock.monotonic());
        }
        match sent {
            Ok(Ok(_)) => return true,
            Ok(Err(refused)) => match refused.failure {
                Failure::NotFound(_) if send.patch.is_some() && !create => {}
                Failure::AlreadyExists(_) if create => {}
                failure => {
                    if !matches!(failure, Failure::NamespaceTerminating(_)) {
                        tracing::warn!(event = %send.name, error = %failure, "event not recorded");
                    }
                    return false;
                }
            },
            Err(_) => return false,
        }
    }
    false
}
