//! Announces who expands claims that ask for more than they have: the external resizer of a CSI driver.
//!
//! Watches persistentvolumeclaims and persistentvolumes; records the event `ExternalExpanding`, and for
//! volumes of in-tree plugins that CSI has taken over writes the annotation
//! `volume.kubernetes.io/storage-resizer`, by which the driver's resizer knows its claims; a key per claim;
//! remembers which events it has recorded. Nothing inside a manager expands volumes any more.

use std::sync::Arc;

use controllers_kit::{
    Answer, Change, Controller, Descriptor, Event, Flags, Key, PatchKind, Plan, Query, Reader,
    Refusal, Sharding, Snapshot, StatusWrite, Watches,
};
use kubernetes_proto::{
    Object,
    core::{Amount, PersistentVolume, PersistentVolumeClaim},
    quantity::Exact,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::migrated;

/// The annotation with a volume's capacity before its resize: set while the resize is in progress.
const PRE_RESIZE: &str = "volume.alpha.kubernetes.io/pre-resize-capacity";
/// Who is to expand a claim's volume.
const RESIZER: &str = "volume.kubernetes.io/storage-resizer";
/// The reason of all its events.
const EXPANDING: &str = "ExternalExpanding";

/// The controller.
pub struct VolumeExpander;

/// The claim of the last event, with its requested size. Lost memory repeats the event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recorded {
    about: Option<(String, String)>,
}

fn storage(amounts: &[Amount]) -> Option<&Amount> {
    amounts.iter().find(|amount| *amount.key == *"storage")
}

fn exact(amounts: &[Amount]) -> Exact {
    let quantity = storage(amounts).and_then(|amount| amount.value.as_ref());
    quantity
        .and_then(|quantity| quantity.exact())
        .unwrap_or_default()
}

fn requests(claim: &PersistentVolumeClaim) -> &[Amount] {
    let resources = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref());
    resources.map_or(&[], |resources| &resources.requests)
}

/// The size that a claim requests; 0 without one.
fn asked(claim: &PersistentVolumeClaim) -> Exact {
    exact(requests(claim))
}

/// What a claim has.
fn held(claim: &PersistentVolumeClaim) -> Exact {
    let status = claim.status.as_ref();
    exact(status.map_or(&[], |status| &status.capacity))
}

fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    let status = claim.status.as_ref();
    status.is_some_and(|status| status.phase == "Bound")
}

fn volume_name(claim: &PersistentVolumeClaim) -> &str {
    claim.spec.as_ref().map_or("", |spec| &spec.volume_name)
}

/// A bound claim that is seen for the first time, requests more than before, or has got more.
fn grown(change: &Change<'_, PersistentVolumeClaim>, _: &dyn Reader) -> Vec<Key> {
    let Some(new) = change.new.filter(|new| is_bound(new)) else {
        return Vec::new();
    };
    let grown = change.old.is_none_or(|old| {
        old.metadata().uid != new.metadata().uid
            || asked(new).exceeds(asked(old))
            || held(new).exceeds(held(old))
    });
    grown.then(|| Key::of(new)).into_iter().collect()
}

/// Whether a volume is bound to a claim, by the namespace and uid in its claimRef.
fn is_of(claim: &PersistentVolumeClaim, namespace: Option<&str>, uid: Option<&str>) -> bool {
    let meta = claim.metadata();
    namespace == Some(&meta.namespace) && uid == Some(&meta.uid)
}

/// Whether the cache shows for certain that nothing is to be done: the claim has its requested size, and
/// its volume is its own and not being resized.
fn is_content(claim: &PersistentVolumeClaim, volume: Option<&PersistentVolume>) -> bool {
    let Some(volume) = volume else { return false };
    let reference = volume
        .spec
        .as_ref()
        .and_then(|spec| spec.claim_ref.as_ref());
    !asked(claim).exceeds(held(claim))
        && volume.metadata().annotation(PRE_RESIZE).is_none()
        && reference.is_some_and(|of| is_of(claim, Some(&of.namespace), Some(&of.uid)))
}

/// A claim that may need the event, and its volume as the cache has it.
fn in_question(
    key: &Key,
    seen: &Snapshot<'_>,
) -> Option<(Arc<PersistentVolumeClaim>, Option<Arc<PersistentVolume>>)> {
    let claim = seen.get::<PersistentVolumeClaim>(key)?;
    let volume = seen.get::<PersistentVolume>(&Key::cluster(volume_name(&claim)));
    let idle = !is_bound(&claim) || is_content(&claim, volume.as_deref());
    (!idle).then_some((claim, volume))
}

fn live(name: &str) -> Query {
    Query::Live {
        resource: PersistentVolume::resource(),
        key: Key::cluster(name),
    }
}

/// The volume as the API server has it.
fn read<'a>(seen: &Snapshot<'a>, name: &str) -> Result<Option<&'a Value>, Refusal> {
    let failed = |why: &str| {
        let what = format!("failed to get PV {name:?}: {why}");
        Err(Refusal::Retry(what))
    };
    if name.is_empty() {
        return failed("resource name may not be empty");
    }
    match seen.answer(&live(name)) {
        Some(Answer::Object(volume)) => Ok(Some(&**volume)),
        Some(Answer::Missing) => failed(&format!("persistentvolumes {name:?} not found")),
        Some(Answer::NotFound(why) | Answer::Failed(why)) => failed(why),
        None => Ok(None),
    }
}

impl Controller for VolumeExpander {
    type Memory = Recorded;

    fn describe() -> Descriptor {
        Descriptor::new("persistentvolume-expander-controller", Sharding::ByObject)
            .aliases(&["persistentvolume-expander"])
            .service_account("expand-controller")
            .event_source("volume_expand")
            .queue("volume_expand")
            .workers_fixed(10)
            .rule("", "persistentvolumes", &["get", "list", "watch"])
            .rule("", "persistentvolumeclaims", &["list", "watch"])
            .rule("", "persistentvolumeclaims/status", &["patch"])
            .differences(include_str!("differences.md"))
    }

    fn new(_: &Flags) -> Self {
        Self
    }

    fn watch(&self, on: &mut Watches) {
        on.kind::<PersistentVolumeClaim>().wakes(grown);
        on.kind::<PersistentVolume>();
    }

    fn ask(&self, key: &Key, seen: &Snapshot<'_>, _: &Recorded) -> Vec<Query> {
        let question = in_question(key, seen);
        let name = question
            .as_ref()
            .map_or("", |(claim, _)| volume_name(claim));
        let named = (!name.is_empty()).then(|| live(name));
        named.into_iter().collect()
    }

    fn plan(
        &self,
        key: &Key,
        seen: &Snapshot<'_>,
        recorded: &mut Recorded,
    ) -> Result<Plan, Refusal> {
        let mut plan = Plan::nothing();
        let Some((claim, cached)) = in_question(key, seen) else {
            recorded.about = None;
            return Ok(plan);
        };
        let name = volume_name(&claim);
        let Some(volume) = read(seen, name)? else {
            return Ok(plan.requeued_at(seen.now));
        };
        let reference = &volume["spec"]["claimRef"];
        if !is_of(
            &claim,
            reference["namespace"].as_str(),
            reference["uid"].as_str(),
        ) {
            return Err(Refusal::Retry(format!(
                "persistent Volume is not bound to PVC being updated : {key}"
            )));
        }
        let is_resized = volume["metadata"]["annotations"].get(PRE_RESIZE).is_some();
        if !asked(&claim).exceeds(held(&claim)) && !is_resized {
            recorded.about = None;
            return Ok(plan);
        }
        // A volume's source never changes, so the cache is as good as a live read.
        let uid = volume["metadata"]["uid"].as_str().unwrap_or_default();
        let Some(cached) = cached.filter(|cached| *cached.metadata().uid == *uid) else {
            let why = format!("persistentvolumes {name:?} is not in the cache yet");
            return Err(Refusal::Retry(why));
        };
        let plugin = migrated::plugin_of(&cached);
        let size = storage(requests(&claim)).and_then(|amount| amount.value.as_ref());
        let size = size.map_or(String::new(), |size| size.string.to_string());
        let about = Some((claim.metadata().uid.to_string(), size));
        if recorded.about != about {
            recorded.about = about;
            let what = match plugin {
                Some(plugin) => format!(
                    "CSI migration enabled for {}; waiting for external resizer to expand the pvc",
                    plugin.in_tree
                ),
                None => "waiting for an external controller to expand this PVC".to_owned(),
            };
            plan.event(Event::normal(&*claim, EXPANDING, what));
        }
        if let Some(plugin) = plugin
            && claim.metadata().annotation(RESIZER) != Some(plugin.driver)
        {
            let patch = json!({"metadata": {"annotations": {RESIZER: plugin.driver}}});
            let name = &claim.metadata().name;
            let failure = format!(
                "error setting resizer annotation to pvc {key}, with error patchPVCStatus failed to patch PVC {name:?}: "
            );
            plan.patch(&*claim, "status", PatchKind::Merge, patch, StatusWrite::No)
                .announce_failure(Event::warning(&*claim, EXPANDING, failure));
        }
        Ok(plan)
    }
}

#[cfg(test)]
pub(crate) mod tests;
