//! Which pods a rollout replaces now: within `maxUnavailable`, or, with a surge, after their successors are
//! available.

use std::sync::Arc;

use controllers_kit::{Key, Refusal, pods};
use kubernetes_proto::{Object, apps::DaemonSet, core::Pod, meta::IntOrString};

use super::context::{PodChanges, SyncContext, is_updated, spec};

const ROLLING_UPDATE: &str = "RollingUpdate";

fn bound(
    set: &DaemonSet,
    which: fn(&kubernetes_proto::apps::RollingUpdateDaemonSet) -> Option<&IntOrString>,
    total: i32,
) -> Result<i32, String> {
    let strategy = spec(set).update_strategy.as_ref();
    let rolling = strategy
        .filter(|strategy| strategy.r#type == ROLLING_UPDATE)
        .and_then(|strategy| strategy.rolling_update.as_ref());
    rolling
        .and_then(which)
        .map_or(Ok(0), |bound| bound.scaled(total, true))
}

fn surge(set: &DaemonSet, total: i32) -> Result<i32, String> {
    bound(set, |rolling| rolling.max_surge.as_ref(), total)
}

/// Whether a node may have two pods for a while.
pub(super) fn surges(set: &DaemonSet) -> bool {
    surge(set, 1).is_ok_and(|surge| surge > 0)
}

/// The pods of a node that are not being deleted: of the present template, and of another.
struct Pair<'a> {
    new: Option<&'a Arc<Pod>>,
    old: Option<&'a Arc<Pod>>,
}

/// `None` where there are several of one kind: the rollout does not clear that up.
fn pair<'a>(context: &SyncContext<'_>, pods: &'a [Arc<Pod>]) -> Option<Pair<'a>> {
    let mut pair = Pair {
        new: None,
        old: None,
    };
    for pod in pods.iter().filter(|pod| !pod.is_terminating()) {
        let place = if is_updated(context, pod) {
            &mut pair.new
        } else {
            &mut pair.old
        };
        if place.replace(pod).is_some() {
            return None;
        }
    }
    Some(pair)
}

/// The pods that the rollout creates and deletes now.
///
/// # Errors
/// Where a bound can't be read.
pub(super) fn changes(context: &SyncContext<'_>) -> Result<PodChanges, Refusal> {
    let set = context.set;
    let strategy = spec(set).update_strategy.as_ref();
    if strategy.is_none_or(|strategy| strategy.r#type != ROLLING_UPDATE) {
        return Ok(PodChanges::default());
    }
    let wanted: Vec<&str> = context
        .nodes
        .iter()
        .filter(|node| context.placement.judge(node).runs)
        .map(|node| Object::metadata(node.as_ref()).name.as_str())
        .collect();
    let total = i32::try_from(wanted.len()).unwrap_or(i32::MAX);
    let invalid = |what: &str, error: String| {
        Refusal::Retry(format!(
            "couldn't get unavailable numbers: invalid value for {what} of DaemonSet {}: {error}",
            Key::of(set)
        ))
    };
    let max_surge = surge(set, total).map_err(|error| invalid("MaxSurge", error))?;
    let mut max_unavailable = bound(set, |rolling| rolling.max_unavailable.as_ref(), total)
        .map_err(|error| invalid("MaxUnavailable", error))?;
    // Neither would mean no rollout at all.
    if total > 0 && max_unavailable == 0 && max_surge == 0 {
        max_unavailable = 1;
    }
    let room = |bound: i32| usize::try_from(bound).unwrap_or(0);
    Ok(if max_surge == 0 {
        let empty = wanted
            .iter()
            .filter(|node| !context.pods.contains_key(**node))
            .count();
        replace(context, room(max_unavailable), empty)
    } else {
        surge_on(context, room(max_surge), wanted.len(), &wanted)
    })
}

fn is_available(context: &SyncContext<'_>, pod: &Pod) -> bool {
    pods::is_available(pod, spec(context.set).min_ready_seconds, context.seen.now)
}

/// Deletes old pods within `maxUnavailable`; unavailable ones are always deleted, since nothing is lost by
/// it. `empty` nodes, which have no pod yet, count as unavailable.
fn replace(context: &SyncContext<'_>, max_unavailable: usize, empty: usize) -> PodChanges {
    let (mut unavailable, mut replaceable, mut candidates) = (empty, Vec::new(), Vec::new());
    for pods in context.pods.values() {
        match pair(context, pods) {
            Some(Pair {
                new: Some(new),
                old: None,
            }) => unavailable += usize::from(!is_available(context, new)),
            Some(Pair {
                new: None,
                old: Some(old),
            }) => {
                if is_available(context, old) {
                    candidates.push(Arc::clone(old));
                } else {
                    replaceable.push(Arc::clone(old));
                    unavailable += 1;
                }
            }
            _ => unavailable += 1,
        }
    }
    candidates.truncate(max_unavailable.saturating_sub(unavailable));
    replaceable.extend(candidates);
    PodChanges {
        create: Vec::new(),
        delete: replaceable,
    }
}

/// Creates new pods beside old ones, within `maxSurge`; an old pod is deleted when its successor is
/// available.
fn surge_on(
    context: &SyncContext<'_>,
    max_surge: usize,
    wanted: usize,
    nodes: &[&str],
) -> PodChanges {
    let mut changes = PodChanges::default();
    let (mut surging, mut available) = (0, 0);
    let (mut candidates, mut misplaced) = (Vec::new(), Vec::new());
    for (node, pods) in &context.pods {
        let Some(pair) = pair(context, pods) else {
            surging += 1;
            continue;
        };
        let counted = pair.old.or(pair.new);
        available += usize::from(counted.is_some_and(|pod| is_available(context, pod)));
        let Some(old) = pair.old else { continue };
        let is_wanted = nodes.contains(&node.as_str());
        let exists = context
            .nodes
            .iter()
            .any(|other| *Object::metadata(other.as_ref()).name == **node);
        match pair.new {
            Some(new) if is_available(context, new) => changes.delete.push(Arc::clone(old)),
            Some(_) => surging += 1,
            // Gone with its node.
            None if !exists => {}
            None if !is_available(context, old) && is_wanted => changes.create.push(node.clone()),
            None if !is_available(context, old) => changes.delete.push(Arc::clone(old)),
            None if is_wanted => candidates.push(node.clone()),
            None => misplaced.push(Arc::clone(old)),
        }
    }
    // Where the set has moved to other nodes, an old pod is deleted only when one more than wanted is
    // available.
    misplaced.truncate(available.saturating_sub(wanted));
    changes.delete.extend(misplaced);
    candidates.truncate(max_surge.saturating_sub(surging));
    changes.create.extend(candidates);
    changes
}
