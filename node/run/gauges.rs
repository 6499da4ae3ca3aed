//! The gauges that are read when somebody scrapes.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError, Weak},
    time::{Duration, Instant},
};

use coordinator::{Handle, Holds, ServerFence, View};
use node_connection::rotation::Followed;
use node_telemetry::metrics::Metrics;

use super::checks::unreachable;

use crate::{currency, node::Node};

/// What is held is measured at most so often: one that scrapes must not pay for a check of hundreds of
/// objects each time.
const SIZES_EVERY: Duration = Duration::from_secs(15);

/// The gauges that nobody pushes.
pub(super) struct Gauges {
    pub(super) handle: Handle,
    pub(super) node: Weak<Node>,
    pub(super) fence: Arc<coordinator::Fence>,
    /// The name of the Lease that the fleet holds while it works.
    pub(super) leads: Option<String>,
    pub(super) server_fence: Arc<ServerFence>,
    pub(super) followed: Vec<Arc<Followed>>,
    pub(super) sees: Arc<currency::Said>,
    pub(super) measured: Mutex<Measured>,
}

/// As of the last time.
#[derive(Default)]
pub(super) struct Measured {
    /// When what is held was measured.
    sizes: Option<Instant>,
    /// Decode errors that are counted already. Bound: as many as there are resources.
    errors: HashMap<String, u64>,
}

impl Gauges {
    /// Brings them up to date.
    pub(super) fn refresh(&self, metrics: &Metrics) {
        let Some(node) = self.node.upgrade() else {
            return;
        };
        let mut measured = self.measured.lock().unwrap_or_else(PoisonError::into_inner);
        let remaining = self.fence.remaining();
        metrics.fence(remaining, self.fence.margin());
        if let Some(lease) = &self.leads {
            metrics.leads(lease, !remaining.is_zero());
            let hold = self.handle.hold().unwrap_or_default().hold;
            metrics.slow_renewals(lease, hold.slow_renewals);
            metrics.standby(matches!(hold.holds, Holds::Other(_)));
        }
        let view = self.handle.view();
        let all = usize::from(node.shared.ranges);
        metrics.ranges(all, unowned(all, &view));
        metrics.members(&states(&view));
        for followed in &self.followed {
            let ends = followed.certificate().map(|certificate| certificate.ends);
            metrics.client_certificate_ends(followed.flag(), ends);
        }
        metrics.server_fence(self.server_fence.is_on(), self.server_fence.proofs());
        metrics.members_unreachable(unreachable(&self.handle).len());
        metrics.current(self.sees.stale().is_none());
        metrics.drained(node.shared.steering.has_stepped_back());
        metrics.placement(&view.planned);
        metrics.peer_refusals(&self.handle.peer_refusals());
        metrics.discovery_failing(&node.discovery.failing(&node.cache));
        let measures = measured.sizes.is_none_or(|at| at.elapsed() >= SIZES_EVERY);
        if measures {
            measured.sizes = Some(Instant::now());
        }
        let mut stats = node.cache.all_stats();
        stats.extend(node.cache.found_stats());
        for (resource, stats) in stats {
            let cache = metrics.cache(&resource.id());
            cache.objects(stats.objects);
            if measures {
                cache.bytes(node.cache.approximate_bytes(resource));
            }
            if let Some(age) = stats.age {
                cache.lag(age);
            }
            let known = measured.errors.entry(resource.id()).or_default();
            for _ in *known..stats.decode_errors {
                cache.decode_error();
            }
            *known = stats.decode_errors;
        }
        if let Some(traces) = &node.shared.traces {
            let (exported, dropped) = traces.new_counts();
            metrics.trace_spans(exported, &dropped);
        }
    }
}

/// How many of all ranges no member owns by their Leases.
pub(super) fn unowned(all: usize, view: &View) -> usize {
    let live: HashSet<&str> = view.members.iter().map(|member| &*member.name).collect();
    let owned = view.ranges.iter().filter(|range| {
        let owner = range.owner.as_deref();
        owner.is_some_and(|owner| live.contains(owner))
    });
    all.saturating_sub(owned.count())
}

/// How many members are in which state.
pub(super) fn states(view: &View) -> [(&'static str, usize); 3] {
    let mut states = [("ready", 0), ("not_ready", 0), ("draining", 0)];
    for member in &view.members {
        let at = match (member.draining, member.ready) {
            (true, _) => 2,
            (false, false) => 1,
            (false, true) => 0,
        };
        states[at].1 += 1;
    }
    states
}
