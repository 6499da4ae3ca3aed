//! Which claims a pod uses, and which pods use a claim.

use controllers_kit::{Key, Str};
use kubernetes_proto::{
    Object,
    core::{ContainerStatus, EphemeralVolumeSource, PersistentVolumeClaim, Pod, Volume},
};

/// The index of pods by `namespace/name` of each claim that they name, those of generic ephemeral volumes
/// included.
pub(crate) const BY_CLAIM: &str = "claim";

/// The values of [`BY_CLAIM`].
pub(crate) fn keys(pod: &Pod) -> Vec<Str> {
    let namespace = &pod.metadata().namespace;
    let mut keys: Vec<Str> = names(pod).map(|name| key(namespace, &name)).collect();
    keys.sort();
    keys.dedup();
    keys
}

/// A value of [`BY_CLAIM`].
pub(crate) fn key(namespace: &str, name: &str) -> Str {
    Str::from(format!("{namespace}/{name}"))
}

/// The names of all claims that a pod names, those of generic ephemeral volumes included.
pub(crate) fn names(pod: &Pod) -> impl Iterator<Item = Str> {
    volumes(pod).filter_map(|volume| match ephemeral(volume) {
        Some(_) => Some(ephemeral_name(pod, volume)),
        None => named(volume).cloned(),
    })
}

/// The keys of all claims that a pod names ([`names`]).
pub(crate) fn of(pod: &Pod) -> impl Iterator<Item = Key> {
    let namespace = &pod.metadata().namespace;
    names(pod).map(|name| Key::new(namespace.clone(), name))
}

/// A pod's volumes that are claims or storage.
pub(crate) fn volumes(pod: &Pod) -> impl Iterator<Item = &Volume> {
    pod.spec.iter().flat_map(|spec| spec.volumes.iter())
}

/// The claim that a volume names.
pub(crate) fn named(volume: &Volume) -> Option<&Str> {
    let source = volume.volume_source.as_ref()?;
    let claim = source.persistent_volume_claim.as_ref()?;
    Some(&claim.claim_name).filter(|name| !name.is_empty())
}

/// What a generic ephemeral volume is made from.
pub(crate) fn ephemeral(volume: &Volume) -> Option<&EphemeralVolumeSource> {
    let inline = volume.volume_source.as_ref()?.inline.as_ref()?;
    inline.ephemeral.as_deref()
}

/// The name of the claim of a pod's generic ephemeral volume. The claim is the pod's own only if [`made_for`]
/// says so.
pub(crate) fn ephemeral_name(pod: &Pod, volume: &Volume) -> Str {
    Str::from(format!("{}-{}", pod.metadata().name, volume.name))
}

/// Whether a claim was made for a pod: the pod is its controller.
///
/// # Errors
/// Where it was not; upstream's sentence, which events repeat.
pub(crate) fn made_for(pod: &Pod, claim: &PersistentVolumeClaim) -> Result<(), String> {
    let (pod, claim) = (pod.metadata(), claim.metadata());
    let owner = claim.controller();
    if claim.namespace == pod.namespace && owner.is_some_and(|owner| owner.uid == pod.uid) {
        return Ok(());
    }
    Err(format!(
        "PVC {}/{} was not created for pod {}/{} (pod is not owner)",
        claim.namespace, claim.name, pod.namespace, pod.name
    ))
}

/// Whether none of a pod's containers runs any more: it has finished, or is terminating and the kubelet has
/// stopped them all.
pub(crate) fn is_terminated(pod: &Pod) -> bool {
    let Some(status) = &pod.status else {
        return pod.is_terminating();
    };
    let is_stopped = |container: &ContainerStatus| {
        let state = container.state.as_ref();
        state.is_some_and(|state| state.terminated.is_some() || state.waiting.is_some())
    };
    controllers_kit::pods::has_finished(pod)
        || pod.is_terminating()
            && status.init_container_statuses.iter().all(is_stopped)
            && status.container_statuses.iter().all(is_stopped)
            && status
                .ephemeral_container_statuses
                .iter()
                .flat_map(|all| all.iter())
                .all(is_stopped)
}
