//! What `/healthz`, `/livez` and `/readyz` check, and what they note beside it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use coordinator::{Handle, HoldState, Holds, InterlockOptions, Pulse};
use node_cache::{Cache, State};
use node_connection::rotation::{self, Followed};
use node_serving::http::{Health, Kind};

use crate::{currency, node::Node, steer};

/// A thread that has not run for so long is taken for dead.
const NO_LIFE_AFTER: Duration = Duration::from_secs(30);
/// The API server may refuse this process for so long before it is restarted.
const REFUSED_MAX: Duration = Duration::from_secs(600);

/// What `/healthz`, `/livez` and `/readyz` say of the caches and controllers.
pub(super) fn check_node(health: &Health, node: &Arc<Node>, draining: &Arc<AtomicBool>) {
    // As upstream: one check a controller, always passed; a controller's trouble is its own.
    for unit in &node.shared.units {
        health.register(unit.name(), Box::new(|| Ok(())), &[Kind::Healthz]);
    }
    health.register(
        "ping",
        Box::new(|| Ok(())),
        &[Kind::Healthz, Kind::Livez, Kind::Readyz],
    );
    let leaving = Arc::clone(draining);
    let shutdown = move || match leaving.load(Ordering::Acquire) {
        true => Err("asked to end: ranges are being handed over".to_owned()),
        false => Ok(()),
    };
    health.register("shutdown", Box::new(shutdown), &[Kind::Readyz]);
    let noted = Arc::clone(node);
    let note = move || noted.discovery.troubles(&noted.cache);
    health.note(Kind::Readyz, Box::new(note));
    for resource in node.cache.resources() {
        let cache = Arc::clone(&node.cache);
        let check = move || caches(&cache, resource);
        health.register(
            format!("watch-{}", resource.id()),
            Box::new(check),
            &[Kind::Readyz],
        );
    }
}

fn caches(cache: &Cache, resource: &'static controllers_kit::Resource) -> Result<(), String> {
    let Some(stats) = cache.stats(resource) else {
        return Ok(());
    };
    match stats.state {
        State::Blocked { verb, reason } => {
            Err(format!("{verb} {} is refused: {reason}", resource.id()))
        }
        _ if stats.listed => Ok(()),
        _ => Err(match stats.trouble {
            Some(trouble) => format!("{} are not listed yet: {trouble}", resource.id()),
            None => format!("{} are not listed yet", resource.id()),
        }),
    }
}

/// `/livez` fails where a thread or an actor has shown no sign of life for long: only a restart helps. The
/// replica ends itself long before, unless it is the thread that hangs which would see to it.
pub(super) fn check_life(health: &Health, pulses: Vec<(String, Pulse)>) {
    for (name, pulse) in pulses {
        let check = move || match pulse.age() {
            age if age > NO_LIFE_AFTER => Err(format!("no sign of life for {}s", age.as_secs())),
            _ => Ok(()),
        };
        health.register(format!("alive-{name}"), Box::new(check), &[Kind::Livez]);
    }
}

/// `/readyz` fails where watches stand still, so that the next replica of a rollout waits for this one.
pub(super) fn check_currency(health: &Health, said: &Arc<currency::Said>) {
    let said = Arc::clone(said);
    let check = move || said.stale().map_or(Ok(()), Err);
    health.register("currency", Box::new(check), &[Kind::Readyz]);
}

/// `/livez` fails where the API server does nothing but refuse the credentials, though they are read again
/// and again.
pub(super) fn check_credentials(health: &Health, followed: &Arc<Followed>) {
    let followed = Arc::clone(followed);
    let check = move || {
        let refusals = followed.refusals(Instant::now());
        rotation::check(refusals.as_ref(), REFUSED_MAX)
    };
    health.register("credentials", Box::new(check), &[Kind::Livez]);
}

/// What [`check_fence`] and [`check_hold`] check fails until they are there: the secure port answers
/// before the replica has joined its fleet, and caches may be complete by then.
pub(super) fn check_before_joining(health: &Health, holds: bool) {
    let lease = holds.then_some("leaderElection");
    for name in ["fence", "membership"].into_iter().chain(lease) {
        let check = || Err("the replica has not joined its fleet yet".to_owned());
        health.register(name, Box::new(check), &[Kind::Readyz]);
    }
}

/// What they say of ownership: a fenced replica is distinguished from a broken one.
pub(super) fn check_fence(health: &Health, handle: &Handle) {
    let fenced = handle.clone();
    let fence = move || match fenced.fence().is_renewed() {
        true => Ok(()),
        false => Err(
            "fenced: the own Lease was not renewed in time; nothing is written until it is"
                .to_owned(),
        ),
    };
    health.register("fence", Box::new(fence), &[Kind::Readyz]);
    let member = handle.clone();
    let membership = move || {
        let view = member.view();
        let own = view.members.iter().find(|one| one.name == view.replica);
        match own {
            Some(own) if own.ready => Ok(()),
            Some(_) => Err("not ready to own ranges: caches are not complete".to_owned()),
            None => Err("not a member of the fleet: no replica Lease".to_owned()),
        }
    };
    health.register("membership", Box::new(membership), &[Kind::Readyz]);
}

/// The members that do not answer this replica, as it publishes them.
pub(super) fn unreachable(handle: &Handle) -> Vec<String> {
    let view = handle.view();
    let own = view.members.iter().find(|one| one.name == view.replica);
    own.map(|own| own.unreachable.split(','))
        .into_iter()
        .flatten()
        .filter(|name| !name.is_empty())
        .map(str::to_owned)
        .collect()
}

/// For `/readyz?verbose`: ranges move to and from them as after a crash.
pub(super) fn unreachable_line(handle: &Handle) -> Vec<String> {
    match unreachable(handle) {
        names if names.is_empty() => Vec::new(),
        names => vec![format!("members do not answer: {}", names.join(", "))],
    }
}

/// What the fleet's orders say of `/readyz`: before they are known a replica owns nothing; a drained one is
/// well.
pub(super) fn check_orders(health: &Health, steering: &Arc<steer::Steering>) {
    steering.wait_for_first();
    let first = Arc::clone(steering);
    let known = move || match first.is_known() {
        true => Ok(()),
        false => Err("it is not known yet what is paused: the fleet's orders are read".to_owned()),
    };
    health.register("orders", Box::new(known), &[Kind::Readyz]);
    let steering = Arc::clone(steering);
    let note = move || {
        let drained = steering.has_stepped_back().then(|| {
            "drained: it hands its ranges over and takes none, see kubectl manifold status"
                .to_owned()
        });
        let unread = steering
            .unread()
            .map(|why| format!("orders can't be read, those that were read before hold: {why}"));
        drained.into_iter().chain(unread).collect()
    };
    health.note(Kind::Readyz, Box::new(note));
}

/// What they say of the manager's Lease. On standby a replica is as healthy as a candidate of
/// upstream is; a note says whom it waits for. One that should work and may not fails `/readyz`.
pub(super) fn check_hold(health: &Health, handle: &Handle, lease: &InterlockOptions) {
    let name = format!("{}/{}", lease.namespace, lease.name);
    let holding = handle.clone();
    let lease = name.clone();
    let check = move || match holding.hold() {
        Some(state) => held(&lease, &state),
        None => Ok(()),
    };
    health.register("leaderElection", Box::new(check), &[Kind::Readyz]);
    // As upstream has it: standing by is well.
    health.register("leaderElection", Box::new(|| Ok(())), &[Kind::Healthz]);
    let waiting = handle.clone();
    let note = move || {
        let state = waiting.hold().unwrap_or_default();
        let standing = match state.hold.holds {
            Holds::Other(holder) => Some(format!(
                "leaderElection: standing by: {holder} holds the Lease {name}; nothing is written until it is released \
                 or expires"
            )),
            Holds::Unknown | Holds::Nobody | Holds::Fleet => None,
        };
        let trouble = state
            .trouble
            .map(|why| format!("leaderElection: the Lease {name}: {why}"));
        standing.into_iter().chain(trouble).collect::<Vec<String>>()
    };
    health.note(Kind::Readyz, Box::new(note));
}

pub(super) fn held(lease: &str, state: &HoldState) -> Result<(), String> {
    let why = match (&state.hold.holds, state.hold.open_until) {
        (Holds::Other(_), _) | (Holds::Fleet, Some(_)) => return Ok(()),
        (Holds::Fleet, None) => "no renewal of it was seen within the deadline",
        (Holds::Nobody, _) => "the fleet does not hold it yet",
        (Holds::Unknown, _) => "it was not read yet",
    };
    Err(format!("the Lease {lease}: {why}; nothing is written"))
}
