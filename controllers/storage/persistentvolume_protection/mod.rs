//! Keeps a PersistentVolume that is being deleted as long as it is bound to a claim, by a finalizer.
//!
//! Watches persistentvolumes; patches the finalizer `kubernetes.io/pv-protection`; a key per volume;
//! remembers nothing. Invariant: the finalizer of a volume is removed only from the very version that was
//! seen not to be bound, so that a binding that comes in between makes the write fail.

use controllers_kit::{
    Controller, Descriptor, Flags, Key, Plan, Refusal, Seen, Sharding, Watches, finalizers,
};
use kubernetes_proto::core::PersistentVolume;

/// The finalizer.
const FINALIZER: &str = "kubernetes.io/pv-protection";

/// The controller.
pub struct VolumeProtection;

/// Whether a claim has the volume, as the binder has written it.
fn is_bound(volume: &PersistentVolume) -> bool {
    let status = volume.status.as_ref();
    status.is_some_and(|status| status.phase == "Bound")
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

    fn plan(&self, key: &Key, seen: &Seen<'_>, (): &mut ()) -> Result<Plan, Refusal> {
        let mut plan = Plan::nothing();
        let Some(volume) = seen.get::<PersistentVolume>(key) else {
            return Ok(plan);
        };
        if finalizers::is_missing(&*volume, FINALIZER) {
            finalizers::add(&mut plan, &*volume, FINALIZER);
        } else if finalizers::is_candidate(&*volume, FINALIZER) && !is_bound(&volume) {
            // Irreversible. Verified right before: this version of the volume is not bound. All that decides
            // is in the volume itself, and the patch insists on its uid and version, so a binding since then
            // makes it a conflict.
            finalizers::remove(&mut plan, &*volume, FINALIZER);
        }
        Ok(plan)
    }
}

#[cfg(test)]
pub(crate) mod tests;
