//! Which pods a rollout replaces now: at most so many at once, or, with a surge, the new one first.

use std::sync::Arc;

use controllers_kit::{Key, Refusal, pods};
use kubernetes_proto::{Object, apps::DaemonSet, core::Pod, meta::IntOrString};

use super::context::{Changes, Look, is_updated, spec};

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

/// `None` where there are several of one kind: not for the rollout to clear up.
fn pair<'a>(look: &Look<'_>, pods: &'a [Arc<Pod>]) -> Option<Pair<'a>> {
    let mut pair = Pair {
        new: None,
        old: None,
    };
    for pod in pods.iter().filter(|pod| !pod.is_terminating()) {
        let place = if is_updated(look, pod) {
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

/// What the rollout does now.
///
/// # Errors
/// Where a bound can't be read.
pub(super) fn changes(look: &Look<'_>) -> Result<Changes, Refusal> {
    let set = look.set;
    let strategy = spec(set).update_strategy.as_ref();
    if strategy.is_none_or(|strategy| strategy.r#type != ROLLING_UPDATE) {
        return Ok(Changes::default());
    }
    let wanted: Vec<&str> = look
        .nodes
        .iter()
        .filter(|node| look.placement.judge(node).runs)
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
            .filter(|node| !look.pods.contains_key(**node))
            .count();
        replace(look, room(max_unavailable), empty)
    } else {
        surge_on(look, room(max_surge), wanted.len(), &wanted)
    })
}

fn is_available(look: &Look<'_>, pod: &Pod) -> bool {
    pods::is_available(pod, spec(look.set).min_ready_seconds, look.seen.now)
}

/// Old pods go, as many as may be missing; what is not available goes in any case, for nothing is lost by it.
/// `empty` nodes, which have no pod yet, count as missing.
fn replace(look: &Look<'_>, max_unavailable: usize, empty: usize) -> Changes {
    let (mut unavailable, mut replaceable, mut candidates) = (empty, Vec::new(), Vec::new());
    for pods in look.pods.values() {
        match pair(look, pods) {
            Some(Pair {
                new: Some(new),
                old: None,
            }) => unavailable += usize::from(!is_available(look, new)),
            Some(Pair {
                new: None,
                old: Some(old),
            }) => {
                if is_available(look, old) {
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
    Changes {
        create: Vec::new(),
        delete: replaceable,
    }
}

/// New pods come beside old ones, so many at once; an old one goes when the new one is available.
fn surge_on(look: &Look<'_>, max_surge: usize, wanted: usize, nodes: &[&str]) -> Changes {
    let mut changes = Changes::default();
    let (mut surging, mut available) = (0, 0);
    let (mut candidates, mut misplaced) = (Vec::new(), Vec::new());
    for (node, pods) in &look.pods {
        let Some(pair) = pair(look, pods) else {
            surging += 1;
            continue;
        };
        let counted = pair.old.or(pair.new);
        available += usize::from(counted.is_some_and(|pod| is_available(look, pod)));
        let Some(old) = pair.old else { continue };
        let is_wanted = nodes.contains(&node.as_str());
        let exists = look
            .nodes
            .iter()
            .any(|other| *Object::metadata(other.as_ref()).name == **node);
        match pair.new {
            Some(new) if is_available(look, new) => changes.delete.push(Arc::clone(old)),
            Some(_) => surging += 1,
            // Gone with its node.
            None if !exists => {}
            None if !is_available(look, old) && is_wanted => changes.create.push(node.clone()),
            None if !is_available(look, old) => changes.delete.push(Arc::clone(old)),
            None if is_wanted => candidates.push(node.clone()),
            None => misplaced.push(Arc::clone(old)),
        }
    }
    // Where the set has moved to other nodes, an old pod goes only when one more than wanted is available.
    misplaced.truncate(available.saturating_sub(wanted));
    changes.delete.extend(misplaced);
    candidates.truncate(max_surge.saturating_sub(surging));
    changes.create.extend(candidates);
    changes
}
