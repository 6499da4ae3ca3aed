//! Keeps a PersistentVolume that is being deleted as long as it is bound to a claim, or is being bound to
//! one, by a finalizer.
//!
//! Watches persistentvolumes; patches the finalizer `kubernetes.io/pv-protection`; a key per volume;
//! remembers nothing. Invariant: the finalizer of a volume is removed only from the very version that was
//! seen not to be bound, so that a binding in between makes the write conflict.

use controllers_kit::{
    Controller, Descriptor, Flags, Key, Plan, Refusal, Sharding, Snapshot, Watches, finalizers,
};
use kubernetes_proto::core::PersistentVolume;

/// The finalizer.
const FINALIZER: &str = "kubernetes.io/pv-protection";

/// The controller.
pub struct VolumeProtection;

/// Whether a claim has the volume, or is about to have it: the volume points at the claim by uid, and the
/// binder has not yet written what came of it. The claim names the volume before the volume's phase is Bound.
fn is_bound(volume: &PersistentVolume) -> bool {
    let phase = volume.status.as_ref().map_or("", |status| &status.phase);
    let claim = volume
        .spec
        .as_ref()
        .and_then(|spec| spec.claim_ref.as_ref());
    let points = claim.is_some_and(|claim| !claim.uid.is_empty());
    phase == "Bound" || (points && !matches!(phase, "Released" | "Failed"))
}

impl Controller for VolumeProtection {
    type Memory = ();

    fn describe() -> Descriptor {
        Descriptor::new("persistentvolume-protection-controller", Sharding::ByObject)
            .aliases(&["pv-protection"])
            .service_account("pv-protection-controller")
            .queue("pvprotection")
            .one_by_one()
            .rule("", "persistentvolumes", &["list", "watch", "patch"])
            .differences(include_str!("differences.md"))
    }

    fn new(_: &Flags) -> Self {
        Self
    }

    fn watch(&self, on: &mut Watches) {
        on.kind::<PersistentVolume>()
            .wakes(|change, _| finalizers::wakes(change.new, FINALIZER));
    }

    fn plan(&self, key: &Key, seen: &Snapshot<'_>, (): &mut ()) -> Result<Plan, Refusal> {
        let mut plan = Plan::nothing();
        let Some(volume) = seen.get::<PersistentVolume>(key) else {
            return Ok(plan);
        };
        if finalizers::is_missing(&*volume, FINALIZER) {
            finalizers::add(&mut plan, &*volume, FINALIZER);
        } else if finalizers::is_candidate(&*volume, FINALIZER) && !is_bound(&volume) {
            // Irreversible. Verified immediately before: this version of the volume is not bound. All that
            // decides is in the volume itself, and its uid and version are the patch's preconditions, so a
            // binding since then makes it a conflict.
            finalizers::remove(&mut plan, &*volume, FINALIZER);
        }
        Ok(plan)
    }
}

#[cfg(test)]
pub(crate) mod tests;
