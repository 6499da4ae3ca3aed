//! Keeps this replica's part of the fleet's allowance of requests: publishes in the own Lease what it would
//! send, and takes the part that follows from what all members publish ([`crate::limit::budget`]). Adapts the
//! controllers' workers to what waits and to what the API server bears ([`crate::workers`]).

use std::{sync::Arc, time::Duration};

use coordinator::Handle;

use crate::{
    limit::budget::{Demand, Published, part},
    shared::Shared,
};

/// Between two computations of the part.
const PERIOD: Duration = Duration::from_secs(1);

/// Weight of the newest second in the average of what was sent.
const NEWEST: f64 = 0.3;

/// What [`follow`] works with.
pub struct Parts {
    /// Whose requests and workers.
    pub shared: Arc<Shared>,
    /// Where members publish.
    pub handle: Handle,
    /// Whether the allowance is the fleet's; else each replica has all of it, and only back-pressure counts.
    pub divides: bool,
}

/// Computes the part again and again, for as long as the process lives.
pub async fn follow(parts: Parts) {
    let Parts {
        shared,
        handle,
        divides,
    } = parts;
    let limiters = Arc::clone(shared.writer.limiters());
    let (mut published, mut average, mut before) = (Published::default(), 0.0, 0);
    if divides {
        handle.demands(Demand::default().class()).await;
    }
    loop {
        tokio::time::sleep(PERIOD).await;
        let now = shared.clock.monotonic();
        let (taken, waiting) = limiters.counts();
        let throttled = limiters.was_throttled();
        for unit in &shared.units {
            unit.workers.adapt(throttled, waiting > 0);
        }
        if divides {
            average += NEWEST * ((taken - before) as f64 - average);
            before = taken;
            // What waits would have been sent, had it been allowed; nobody can send more than all of it.
            let wanted = (average + waiting as f64).min(limiters.configured());
            if let Some(demand) = published.next(now, wanted) {
                handle.demands(demand.class()).await;
            }
        }
        let own = match divides {
            true => {
                let view = handle.view();
                let members = view.members.iter();
                let members: Vec<(&str, Option<Demand>)> = members
                    .map(|member| (&*member.name, member.demand.map(Demand::from_class)))
                    .collect();
                part(&view.replica, &members)
            }
            false => 1.0,
        };
        limiters.divide(now, own);
        let (scale, pressure) = limiters.scale(now);
        shared.metrics.api_budget(scale, pressure);
    }
}
