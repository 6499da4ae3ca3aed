//! Which autoscalers scale a pod: two of them would undo each other's work, so neither may act.
//!
//! Upstream learns each autoscaler's selector by reconciling it, and asks all of them for each pod. Here
//! the selectors are those of the workloads in the cache, found through an index by a label that they want:
//! the cost depends on a pod's labels and not on the number of autoscalers, and autoscalers of other
//! replicas count from the first moment.

use std::{collections::BTreeSet, sync::Arc};

use controllers_kit::{
    Key, Object, Resource, Snapshot, Str,
    selectors::{Error, Selector},
};
use kubernetes_proto::{
    apps::{Deployment, ReplicaSet, StatefulSet},
    autoscaling::HorizontalPodAutoscaler,
    core::{Pod, ReplicationController},
    meta::Entry,
};

use super::sources::group;

/// The index of autoscalers by their target.
pub const TARGET: &str = "hpa-target";
/// The index of workloads by a label that they select by.
pub const WANTED: &str = "wanted-label";

/// The values of [`TARGET`].
pub fn target(hpa: &HorizontalPodAutoscaler) -> Vec<Str> {
    let namespace = &Object::metadata(hpa).namespace;
    hpa.spec
        .as_ref()
        .and_then(|spec| spec.scale_target_ref.as_ref())
        .map(|target| {
            let group = group(&target.api_version);
            Str::from(format!(
                "{namespace}/{group}/{}/{}",
                target.kind, target.name
            ))
        })
        .into_iter()
        .collect()
}

/// A workload that selects pods.
pub trait Selects: Object {
    /// The selector of its pods.
    ///
    /// # Errors
    /// Where the selector can't be read.
    fn selector(&self) -> Result<Selector, Error>;
}

macro_rules! selects {
    ($($type:ty),*) => {$(
        impl Selects for $type {
            fn selector(&self) -> Result<Selector, Error> {
                let spec = self.spec.as_ref();
                Selector::compile(spec.and_then(|spec| spec.selector.as_ref()))
            }
        }
    )*};
}
selects!(Deployment, ReplicaSet, StatefulSet);

impl Selects for ReplicationController {
    fn selector(&self) -> Result<Selector, Error> {
        Ok(match &self.spec {
            Some(spec) if !spec.selector.is_empty() => Selector::of_labels(&spec.selector),
            _ => Selector::nothing(),
        })
    }
}

fn wanted_label(namespace: &str, label: Option<(&str, &str)>) -> Str {
    match label {
        Some((key, value)) => Str::interned(&format!("{namespace}/{key}={value}")),
        None => Str::interned(&format!("{namespace}/")),
    }
}

/// The values of [`WANTED`].
pub fn wanted<T: Selects>(workload: &T) -> Vec<Str> {
    let Ok(selector) = workload.selector() else {
        return Vec::new();
    };
    vec![wanted_label(
        &workload.metadata().namespace,
        selector.labels().next(),
    )]
}

/// The autoscalers that scale one of these pods, in order of names.
pub fn scaling(
    hpa: &HorizontalPodAutoscaler,
    pods: &[Arc<Pod>],
    seen: &Snapshot<'_>,
) -> BTreeSet<Key> {
    let mut keys = BTreeSet::new();
    if pods.is_empty() {
        return keys;
    }
    for target in target(hpa) {
        aiming_at(&target, seen, &mut keys);
    }
    // The pods of one workload mostly have the same labels.
    let labels: BTreeSet<&[Entry]> = pods
        .iter()
        .map(|pod| Object::metadata(&**pod).labels.as_slice())
        .collect();
    let namespace = &Object::metadata(hpa).namespace;
    for labels in labels {
        selecting::<Deployment>(namespace, labels, seen, &mut keys);
        selecting::<ReplicaSet>(namespace, labels, seen, &mut keys);
        selecting::<StatefulSet>(namespace, labels, seen, &mut keys);
        selecting::<ReplicationController>(namespace, labels, seen, &mut keys);
    }
    keys
}

fn aiming_at(target: &str, seen: &Snapshot<'_>, keys: &mut BTreeSet<Key>) {
    for hpa in seen.indexed::<HorizontalPodAutoscaler>(TARGET, target) {
        keys.insert(Key::of(&*hpa));
    }
}

fn selecting<T: Selects>(
    namespace: &str,
    labels: &[Entry],
    seen: &Snapshot<'_>,
    keys: &mut BTreeSet<Key>,
) {
    let resource: &Resource = T::resource();
    let by_label = labels
        .iter()
        .map(|label| wanted_label(namespace, Some((&label.key, &label.value))));
    for value in by_label.chain([wanted_label(namespace, None)]) {
        for workload in seen.indexed::<T>(WANTED, &value) {
            let selects = workload
                .selector()
                .is_ok_and(|selector| selector.matches(labels));
            if selects {
                let name = &workload.metadata().name;
                let target = format!("{namespace}/{}/{}/{name}", resource.group, resource.kind);
                aiming_at(&target, seen, keys);
            }
        }
    }
}

/// As upstream lists them.
pub fn listed(keys: &BTreeSet<Key>) -> String {
    let words: Vec<String> = keys
        .iter()
        .map(|key| format!("{{{} {}}}", key.name, key.namespace))
        .collect();
    format!("[{}]", words.join(" "))
}
