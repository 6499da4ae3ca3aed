//! The thread that renews the replica Lease. It has a runtime and a client of its own: no plan, graph or rate
//! limit of the rest can starve it.

use std::{io, sync::Arc, thread, time::Duration};

use coordinator_core::{OwnLease, Regained, Renewal, RenewalEffect, RenewalInput, Status, Written};
use futures::{FutureExt, future::BoxFuture};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use tokio::sync::watch;

use crate::{
    ClientFactory, Fence, RangeHost, ServerFence,
    config::Config,
    interlock::{self, HoldState},
    lease::Leases,
};

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
                &config.replica_name,
                &mut renewal,
                &fence,
                &*host,
                &config.server_fence,
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
    name: &str,
    renewal: &mut Renewal,
    fence: &Fence,
    host: &dyn RangeHost,
    server_fence: &ServerFence,
    leases: &Leases,
    wants: &mut watch::Receiver<Wanted>,
    publish: &watch::Sender<OwnLease>,
) {
    let mut request = None;
    // The announcements that the write under way carries.
    let mut carried = 0;
    let mut acquired: Option<(String, MicroTime)> = None;
    loop {
        let wake = renewal.wake_at();
        match (wake, &request) {
            (None, None) => fence.renewing.rest(),
            _ => fence.renewing.beat(),
        }
        let sleep = async {
            match wake {
                Some(at) => {
                    tokio::time::sleep(
                        at.saturating_sub(fence.now()).max(Duration::from_millis(1)),
                    )
                    .await;
                }
                None => std::future::pending().await,
            }
        };
        // In this order, so that a run can be repeated.
        let inputs = tokio::select! {
            biased;
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
            () = sleep => vec![RenewalInput::Tick],
        };
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
                    name.to_owned(),
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
