//! What of the options takes effect where, at the start and when the configuration file has changed.

use std::{sync::Arc, time::Duration};

use node_options::Options;
use node_telemetry::Verbosity;

use crate::{config_file, node::Node};

/// Has options take effect that have changed while the process runs.
pub(super) fn changes(node: &Arc<Node>, verbosity: &Arc<Verbosity>) -> Box<config_file::Apply> {
    let (node, verbosity) = (Arc::clone(node), Arc::clone(verbosity));
    Box::new(move |before, now| {
        let mut without = Vec::new();
        if before.logging.verbosity != now.logging.verbosity
            && let Err(why) = verbosity.set(now.logging.verbosity)
        {
            without.push(format!("logging.verbosity has no effect: {why}"));
        }
        if before.logging.modules != now.logging.modules
            && let Err(why) = verbosity.set_modules(now.logging.modules.clone())
        {
            without.push(format!("logging.vmodule has no effect: {why}"));
        }
        if rate(before) != rate(now) {
            node.shared.writer.configure_rate(rate(now));
        }
        for unit in &node.shared.units {
            if let Some((flag, _)) = unit.controller.descriptor().workers {
                let count =
                    |options: &Options| usize::try_from(options.flags.int(flag)).unwrap_or(0);
                let is_default = now.adapts(flag);
                if count(before) != count(now)
                    && let Some(ordered) = unit.workers.configure(count(now), is_default)
                {
                    without.push(format!(
                        "the workers of {} stay {ordered} while an order says so; afterwards they are {}",
                        unit.name(),
                        count(now)
                    ));
                }
            }
        }
        without
    })
}

/// Requests to the API server, a second and at once; 0 a second where there is no limit.
pub(super) fn rate(options: &Options) -> (f64, u32) {
    (options.client.qps.unwrap_or(0.0), options.client.burst)
}

/// How the API server is watched. Where nodes' heartbeats are judged, the watch of Leases rests only a little
/// between two catch-ups, and never for a notable part of the grace period.
pub(super) fn watching(options: &Options) -> node_cache::Settings {
    /// Between two catch-ups where heartbeats are judged.
    const REST_MAX: Duration = Duration::from_secs(2);
    /// Renewals of this replica's own Lease without which the watch of Leases does not count as live.
    const RENEWALS: u32 = 3;
    let default = node_cache::Settings::default();
    if !options.controllers.contains(&"node-lifecycle-controller") {
        return default;
    }
    let grace = options.values().duration("node-monitor-grace-period");
    let rest = (grace / 20).min(REST_MAX);
    let renewals = options.values().duration("lease-retry-period") * RENEWALS;
    node_cache::Settings {
        heartbeat_rest: rest,
        pulse_max: rest + renewals.max(Duration::from_secs(3)),
        ..default
    }
}
