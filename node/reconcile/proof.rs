//! Whether a plan rests on what is there by now.

use controllers_kit::{Counted, Key, Plan, Resource, Verb};

use super::{Job, Next};
use crate::{
    apply::is_report,
    ask::{self, Proof},
    queue::Monotonic,
    shared::Shared,
};

/// The object that a key is about, as a plan found it.
pub(super) struct Head {
    pub(super) resource: &'static Resource,
    pub(super) version: Option<u64>,
}

/// The object that a key is about where its watch has not come as far as what has happened to the key.
/// Watches run beside each other: after one that stood still, a ReplicaSet's pods may be seen to go before
/// the ReplicaSet itself is.
pub(super) fn lagging_head(shared: &Shared, job: &Job) -> Option<Head> {
    let resource = shared.units[usize::from(job.unit)]
        .primary()
        .filter(|primary| is_object(primary, &job.key))?;
    let lags = job.evidence > 0 && !shared.view.passed(resource, job.evidence);
    lags.then(|| Head {
        resource,
        version: version_of(&*shared.view, resource, &job.key),
    })
}

/// Whether a key can be an object of a resource: composite keys ([`Key::composite`], [`Key::within`]) are
/// not, nor those of cluster-scoped objects where the resource has namespaces.
pub(crate) fn is_object(resource: &Resource, key: &Key) -> bool {
    match resource.namespaced {
        true => !key.namespace.is_empty() && !key.name.contains(':'),
        false => key.namespace.is_empty(),
    }
}

fn version_of(
    view: &dyn controllers_kit::Reader,
    resource: &'static Resource,
    key: &Key,
) -> Option<u64> {
    let object = view.get(resource, &key.namespace, &key.name)?;
    Some(object.metadata().resource_version)
}

/// What is proven for good.
#[derive(Default)]
pub(super) struct Proven {
    /// The object that the key is about.
    pub(super) head: bool,
    /// What was counted.
    pub(super) counted: bool,
    /// Whether any of it was compared with the server, after the plan was made.
    pub(super) compared: bool,
}

/// Why a plan is not carried out.
pub(super) struct Unproven {
    /// What comes next.
    pub(super) next: Next,
    /// The status of the refused read, where one was refused.
    pub(super) code: Option<u16>,
}

impl From<Next> for Unproven {
    fn from(next: Next) -> Self {
        Self { next, code: None }
    }
}

/// Whether a plan rests on what is there by now: after a takeover, where its object's watch lags, and where
/// it counted what must be known whole. What was proven for good, or when the key is examined again. The
/// plan was made from the cache as it was at `by` or later.
pub(super) async fn proof(
    shared: &Shared,
    job: &Job,
    plan: &Plan,
    lagging: Option<Head>,
    by: Monotonic,
) -> Result<Proven, Unproven> {
    let unit = &shared.units[usize::from(job.unit)];
    let grounds = ask::Grounds {
        server: shared.writer.server(),
        view: &*shared.view,
        proofs: shared.writer.proofs(),
        clock: &*shared.clock,
    };
    let holds = |resource| {
        job.settled
            .is_some_and(|settled| grounds.holds(resource, settled, by))
    };
    let mut proven = Proven::default();
    let head = unit
        .primary()
        .filter(|primary| is_object(primary, &job.key))
        .filter(|_| job.head_unproven && plan.actions().any(|action| !is_report(action)));
    proven.head = head.is_some();
    if let Some(primary) = head.filter(|primary| !holds(primary)) {
        judged(ask::prove_head(grounds, &job.sender, primary, &job.key).await)?;
        proven.compared = true;
    } else if let Some(found) = lagging
        && makes_or_deletes(plan)
    {
        judged(ask::prove_head(grounds, &job.sender, found.resource, &job.key).await)?;
        if found.version != version_of(&*shared.view, found.resource, &job.key) {
            return Err(Next::Replan.into());
        }
    }
    proven.counted = job.unproven && makes_or_deletes(plan);
    let doubted = |set: &Counted| proven.counted && !holds(set.resource);
    let unsure = ask::unsure(grounds.view, &plan.counted, doubted);
    proven.compared |= unsure.iter().any(|set| set.since == 0);
    judged(ask::prove(grounds, &job.sender, unsure).await)?;
    Ok(proven)
}

fn judged(proof: Result<Proof, crate::server::Refused>) -> Result<(), Unproven> {
    match proof {
        Ok(Proof::Fresh) => Ok(()),
        // The change that is missing wakes the key; the back-off is for one that was seen meanwhile.
        Ok(Proof::Stale { why }) => Err(Next::Backoff {
            why: format!("the cache is behind: {why}"),
            error: false,
        }
        .into()),
        Err(refused) => Err(Unproven {
            code: Some(refused.failure.class().code),
            next: Next::Backoff {
                why: format!("freshness could not be proven: {}", refused.failure),
                error: true,
            },
        }),
    }
}

fn makes_or_deletes(plan: &Plan) -> bool {
    plan.actions()
        .any(|action| !matches!(action.verb, Verb::Patch { .. }))
}
