//! Keeps a PodGroup that is being deleted as long as a pod of it may still run, by a finalizer.
//!
//! Watches podgroups and pods; patches the finalizer `scheduling.k8s.io/podgroup-protection`, which the API
//! server's admission adds to every PodGroup that is created; a key per PodGroup; remembers nothing.
//! Invariant: the finalizer is removed only when the cache is proven to hold every pod of the namespace that
//! there was when the PodGroup was already being deleted, and none that has not finished belongs to it.

use controllers_kit::{
    Change, Controller, Descriptor, Flags, Key, Plan, Reader, Refusal, Resource, Runs, Sharding,
    Snapshot, Str, Watches, finalizers, pods,
};
use kubernetes_proto::{Object, core::Pod, scheduling::PodGroup};

/// The finalizer.
const FINALIZER: &str = "scheduling.k8s.io/podgroup-protection";
/// The gate without which nobody has PodGroups.
const GATE: &str = "GenericWorkload";
/// The index of pods that have not finished, by the `namespace/name` of their group.
const ACTIVE: &str = "unfinished pods of a group";

/// The controller.
pub struct PodGroupProtection;

/// The key of a pod's group.
fn group_of(pod: &Pod) -> Option<Key> {
    let group = &pod.spec.as_ref()?.scheduling_group.as_ref()?.pod_group_name;
    let namespace = &pod.metadata().namespace;
    (!group.is_empty()).then(|| Key::new(namespace.clone(), group.clone()))
}

/// The values of [`ACTIVE`].
fn active(pod: &Pod) -> Vec<Str> {
    let group = group_of(pod).filter(|_| !pods::has_finished(pod));
    group
        .map(|key| key.to_string().into())
        .into_iter()
        .collect()
}

/// The groups that a pod may have protected until now: it has finished, was deleted, or another has its
/// name.
fn freed(change: &Change<'_, Pod>) -> Vec<Key> {
    let replaced = |old: &&Pod| {
        let uid = &old.metadata().uid;
        change.new.is_none_or(|new| new.metadata().uid != *uid)
    };
    let gone = change.old.filter(replaced);
    let finished = change.new.filter(|new| pods::has_finished(new));
    let mut keys: Vec<Key> = gone
        .into_iter()
        .chain(finished)
        .filter_map(group_of)
        .collect();
    keys.sort();
    keys.dedup();
    keys
}

/// What the removal of a finalizer rests on.
fn barriers() -> [&'static Resource; 1] {
    [Pod::resource()]
}

/// Whether a group waits for this controller alone: it is being deleted, and no unfinished pod belongs to
/// it.
fn may_go(group: &PodGroup, seen: &Snapshot<'_>) -> bool {
    let key = Key::of(group).to_string();
    finalizers::is_candidate(group, FINALIZER) && seen.indexed::<Pod>(ACTIVE, &key).is_empty()
}

impl Controller for PodGroupProtection {
    type Memory = ();

    fn describe() -> Descriptor {
        Descriptor::new("podgroup-protection-controller", Sharding::ByObject)
            .queue("podgroupprotection")
            .gate(GATE, false)
            .runs_where(|flags| match flags.bool(GATE) {
                true => Runs::Yes,
                false => Runs::No("the feature gate GenericWorkload is off"),
            })
            .rule(
                "scheduling.k8s.io",
                "podgroups",
                &["list", "watch", "patch"],
            )
            .rule("", "pods", &["list", "watch"])
            .differences(include_str!("differences.md"))
    }

    fn new(_: &Flags) -> Self {
        Self
    }

    fn watch(&self, on: &mut Watches) {
        on.kind::<PodGroup>().wakes(|change, _: &dyn Reader| {
            let due = |group: &&PodGroup| finalizers::is_candidate(*group, FINALIZER);
            change.new.filter(due).map(Key::of).into_iter().collect()
        });
        on.kind::<Pod>()
            .indexed_by(ACTIVE, active)
            .wakes(|change, _| freed(change));
    }

    fn ask(&self, key: &Key, seen: &Snapshot<'_>, (): &()) -> Vec<controllers_kit::Query> {
        match seen.get::<PodGroup>(key) {
            Some(group) if may_go(&group, seen) => finalizers::barriers(&barriers()),
            _ => Vec::new(),
        }
    }

    fn plan(&self, key: &Key, seen: &Snapshot<'_>, (): &mut ()) -> Result<Plan, Refusal> {
        let mut plan = Plan::nothing();
        if let Some(group) = seen.get::<PodGroup>(key)
            && may_go(&group, seen)
        {
            // Irreversible. The group was seen to be terminating before the version of pods was asked for;
            // the cache holds all pods of the namespace up to it (a strict proof), and none that may run is
            // of the group. The group's uid and version are the patch's preconditions.
            if !finalizers::rest_on(&mut plan, seen, &barriers(), &key.namespace)? {
                return Ok(Plan::nothing().requeued_at(seen.now));
            }
            finalizers::remove(&mut plan, &*group, FINALIZER);
        }
        Ok(plan)
    }
}

#[cfg(test)]
pub(crate) mod tests;
