//! What the cache must have come to before a key is planned.

use std::sync::Arc;
use std::time::Duration;

use actix::{ActorFutureExt, AsyncContext, Context, WrapFuture};
use controllers_kit::{Key, Standing};
use futures::FutureExt;
use futures::future;
use futures::future::BoxFuture;

use super::Range;
use crate::queue::Priority;
use crate::reconcile::Mark;
use crate::shared::{Shared, Unit};

/// A mark of another replica may be ahead of what this one has seen by this much: at a thousand writes a
/// second of the whole cluster that is a quarter of an hour. One further ahead is a fault of its sender, and
/// would hold its key up for as long as the object lives.
const MARK_MARGIN: u64 = 1_000_000;

/// A key that waits for its marks longer than this is reported, once.
const MARKS_PATIENCE: Duration = Duration::from_secs(60);

/// What the owner before had seen for one controller.
pub(super) struct Horizon {
    /// What the cache has not reached yet.
    pub(super) marks: Vec<Mark>,
    /// Resolves when it has reached all of it: one wait, for however many keys.
    pub(super) reached: future::Shared<BoxFuture<'static, ()>>,
}

impl Horizon {
    pub(super) fn new(shared: &Arc<Shared>, controller: &'static str, marks: Vec<Mark>) -> Self {
        let (shared, awaited) = (Arc::clone(shared), marks.clone());
        let reached = async move {
            wait_for(&shared, &awaited, |mark| {
                tracing::warn!(
                    controller,
                    ?mark,
                    "the cache has not come as far as that of a range's owner before for a minute; the range's keys wait"
                );
            })
            .await;
        };
        Self {
            marks,
            reached: reached.boxed().shared(),
        }
    }
}

/// By what it shows that somebody has changed the object under a controller's key: its generation, or its
/// resourceVersion where it has none.
pub(super) fn version_of(shared: &Shared, unit: &Unit, key: &Key) -> Option<u64> {
    let primary = unit.primary()?;
    let object = shared.view.get(primary, &key.namespace, &key.name)?;
    let meta = object.metadata();
    match u64::try_from(meta.generation) {
        Ok(generation) if generation > 0 => Some(generation),
        _ => Some(meta.resource_version),
    }
}

/// Whether the cache has no object under a controller's key.
pub(super) fn is_gone(shared: &Shared, unit: &Unit, key: &Key) -> bool {
    let object = |primary| shared.view.get(primary, &key.namespace, &key.name);
    unit.primary().and_then(object).is_none()
}

/// Waits until the cache has reached all of these. `late` is called once, when that has taken a minute.
async fn wait_for(shared: &Shared, marks: &[Mark], late: impl Fn(&Mark)) {
    let since = shared.clock.monotonic();
    let mut warned = false;
    for mark in marks {
        while !reached(shared, mark) {
            let wait = match mark {
                Mark::Version(resource, version) => shared.view.wait_passed(resource, *version),
                Mark::Gone(resource, _, uid) | Mark::Removed(resource, _, uid) => {
                    shared.view.wait_departed(resource, uid)
                }
            };
            // After the call, so that nothing that happens in between is missed.
            if reached(shared, mark) {
                break;
            }
            // A timer beside it: a resource may be watched no more, and a watch that is stuck is worth a
            // line.
            let _late = tokio::time::timeout(MARKS_PATIENCE, wait).await;
            let waited = shared.clock.monotonic().saturating_sub(since);
            if !warned && waited >= MARKS_PATIENCE {
                warned = true;
                late(mark);
            }
        }
    }
}

/// Whether a mark of another replica can be true. One that can't is counted and left out.
pub(super) fn is_plausible(shared: &Shared, unit: &Unit, mark: &Mark) -> bool {
    let Mark::Version(resource, version) = mark else {
        return true;
    };
    let newest = shared.view.newest_of_all().max(shared.fence.settled());
    if *version <= newest.saturating_add(MARK_MARGIN) {
        return true;
    }
    shared.metrics.mark_dropped();
    tracing::warn!(
        controller = unit.name(),
        resource = %resource.id(),
        version,
        newest,
        "a range came with a resourceVersion far beyond all that was seen here; it is left out and its key checked"
    );
    false
}

pub(super) fn reached(shared: &Shared, mark: &Mark) -> bool {
    match mark {
        Mark::Version(resource, version) => {
            // What is watched no more shows nothing of what is waited for.
            shared.view.passed(resource, *version)
                || shared.view.standing(resource) == Standing::Unwatched
        }
        Mark::Gone(resource, key, uid) => shared
            .view
            .get(resource, &key.namespace, &key.name)
            .is_none_or(|object| {
                object.metadata().uid != *uid || object.metadata().is_terminating()
            }),
        Mark::Removed(resource, key, uid) => shared
            .view
            .get(resource, &key.namespace, &key.name)
            .is_none_or(|object| object.metadata().uid != *uid),
    }
}

impl Range {
    /// Leaves a key alone until the cache has reached its marks and the horizon of its controller.
    pub(super) fn park(
        &mut self,
        lane: u16,
        key: Key,
        marks: Vec<Mark>,
        horizon: Option<future::Shared<BoxFuture<'static, ()>>>,
        priority: Priority,
        ctx: &mut Context<Self>,
    ) {
        let shared = Arc::clone(&self.shared);
        ctx.spawn(
            async move {
                wait_for(&shared, &marks, |mark| {
                    tracing::warn!(
                        controller = shared.units[usize::from(lane)].name(),
                        %key,
                        ?mark,
                        "the cache has not seen this replica's own write for a minute; the key waits"
                    );
                })
                .await;
                if let Some(horizon) = horizon {
                    horizon.await;
                }
                key
            }
            .into_actor(self)
            .map(move |key, range, ctx| {
                if let Some(known) = range.lanes.at(lane).known.get_mut(&key) {
                    known.parked = false;
                    if let Some(woken) = &mut known.woken {
                        woken.unpark();
                    }
                }
                range.add(lane, &key, priority);
                range.proceed(ctx);
            }),
        );
    }
}
