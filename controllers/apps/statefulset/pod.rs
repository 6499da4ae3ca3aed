//! One pod: its ordinal, whether it is what it should be, and how it is made.

use controllers_kit::{
    Action, Key, Plan, Refusal,
    names::Children,
    owners, pods,
    podspec::volumes::{self, ClaimVolume},
};
use kubernetes_proto::{
    Object,
    apps::{ControllerRevision, StatefulSet, StatefulSetSpec},
    core::{PersistentVolumeClaimTemplate, Pod},
};
use serde_json::{Value, json};

use crate::revisions::{self, REVISION_LABEL};

pub(super) const NAME_LABEL: &str = "statefulset.kubernetes.io/pod-name";
pub(super) const INDEX_LABEL: &str = "apps.kubernetes.io/pod-index";

pub(super) fn spec(set: &StatefulSet) -> &StatefulSetSpec {
    static NONE: std::sync::OnceLock<StatefulSetSpec> = std::sync::OnceLock::new();
    set.spec
        .as_ref()
        .unwrap_or_else(|| NONE.get_or_init(Default::default))
}

/// The name of the set that a pod's name refers to, and its ordinal.
pub(super) fn parent_and_ordinal(name: &str) -> Option<(&str, i64)> {
    let (parent, digits) = name.rsplit_once('-')?;
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    // A number that does not fit is no ordinal, but the parent is still known.
    Some((parent, digits.parse::<i32>().map_or(-1, i64::from)))
}

/// A pod's ordinal; negative where its name has none.
pub(super) fn ordinal(pod: &Pod) -> i64 {
    parent_and_ordinal(&pod.metadata().name).map_or(-1, |(_, ordinal)| ordinal)
}

pub(super) fn is_member(set: &StatefulSet, pod: &Pod) -> bool {
    parent_and_ordinal(&pod.metadata().name)
        .is_some_and(|(parent, _)| *parent == *set.metadata().name)
}

pub(super) fn name(set: &StatefulSet, ordinal: i64) -> String {
    format!("{}-{ordinal}", set.metadata().name)
}

pub(super) fn revision(pod: &Pod) -> &str {
    pod.metadata().label(REVISION_LABEL).unwrap_or_default()
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().map_or("", |status| &status.phase)
}

pub(super) fn is_created(pod: &Pod) -> bool {
    !phase(pod).is_empty()
}

pub(super) fn is_pending(pod: &Pod) -> bool {
    phase(pod) == "Pending"
}

pub(super) fn is_running_and_ready(pod: &Pod) -> bool {
    phase(pod) == "Running" && pods::is_ready(pod)
}

pub(super) fn claim_name(
    set: &StatefulSet,
    template: &PersistentVolumeClaimTemplate,
    ordinal: i64,
) -> String {
    let template = template.metadata.as_ref().map_or("", |meta| &meta.name);
    format!("{template}-{}-{ordinal}", set.metadata().name)
}

fn claim_volumes(set: &StatefulSet, ordinal: i64) -> Vec<ClaimVolume> {
    spec(set)
        .volume_claim_templates
        .iter()
        .map(|template| ClaimVolume {
            volume: template
                .metadata
                .as_ref()
                .map_or(String::new(), |meta| meta.name.to_string()),
            claim: claim_name(set, template, ordinal),
        })
        .collect()
}

/// Whether its label matches its name. A name like web-01 has an ordinal but is not that ordinal's name,
/// and can't be mended: a pod has its name forever.
pub(super) fn has_identity(pod: &Pod) -> bool {
    let meta = pod.metadata();
    let is_canonical = parent_and_ordinal(&meta.name).is_some_and(|(parent, ordinal)| {
        ordinal >= 0 && *meta.name == *format!("{parent}-{ordinal}")
    });
    !is_canonical || meta.label(NAME_LABEL) == Some(meta.name.as_str())
}

/// The volumes of claims that a pod lacks, or that name another claim.
pub(super) fn wrong_volumes(set: &StatefulSet, pod: &Pod) -> Vec<ClaimVolume> {
    let held = pod.spec.as_ref().map_or(&[][..], |spec| &spec.volumes);
    claim_volumes(set, ordinal(pod))
        .into_iter()
        .filter(|wanted| {
            !held.iter().any(|volume| {
                let source = volume.volume_source.as_ref();
                volume.name == wanted.volume
                    && source
                        .and_then(|source| source.persistent_volume_claim.as_ref())
                        .is_some_and(|source| source.claim_name == wanted.claim)
            })
        })
        .collect()
}

/// Plans the creation of the pod of an ordinal from the set's own template, byte for byte.
pub(super) fn create<'a>(
    plan: &'a mut Plan,
    set: &StatefulSet,
    revision: &str,
    ordinal: i64,
) -> Result<&'a mut Action, Refusal> {
    let meta = set.metadata();
    let name = name(set, ordinal);
    let mut pod = pods::from_template(
        spec(set).template.as_ref(),
        owners::reference(set),
        &Children::of(&meta.name, &meta.uid),
        &meta.namespace,
        &name,
    );
    let labels = pod.metadata.get_or_insert_default();
    labels.set_label(NAME_LABEL, &name);
    labels.set_label(INDEX_LABEL, &ordinal.to_string());
    labels.set_label(REVISION_LABEL, revision);
    let malformed =
        |error| Refusal::Wait(format!("template of StatefulSet {}: {error}", Key::of(set)));
    pod.spec = volumes::with_identity(&pod.spec, &name, &spec(set).service_name)
        .and_then(|spec| volumes::with_claims(&spec, &claim_volumes(set, ordinal)))
        .map_err(malformed)?;
    Ok(pods::create(plan, &pod))
}

/// Plans the creation of the pod of an ordinal from an older revision.
pub(super) fn create_of_revision<'a>(
    plan: &'a mut Plan,
    set: &StatefulSet,
    revision: &ControllerRevision,
    ordinal: i64,
) -> Result<&'a mut Action, Refusal> {
    let meta = set.metadata();
    let name = name(set, ordinal);
    let mut template = revisions::template(revision).ok_or_else(|| {
        Refusal::Wait(format!(
            "ControllerRevision {} holds no template",
            Key::of(revision)
        ))
    })?;
    let wanted = template.remove("metadata").unwrap_or_default();
    let mut metadata = json!({
        "name": name,
        "generateName": Children::of(&meta.name, &meta.uid).generate_name(),
        "namespace": meta.namespace,
        "ownerReferences": [owners::reference(set)],
        "labels": wanted["labels"].as_object().cloned().unwrap_or_default(),
    });
    for field in ["annotations", "finalizers"] {
        if !wanted[field].is_null() {
            metadata[field] = wanted[field].clone();
        }
    }
    metadata["labels"][NAME_LABEL] = name.as_str().into();
    metadata["labels"][INDEX_LABEL] = ordinal.to_string().into();
    metadata["labels"][REVISION_LABEL] = revision.metadata().name.as_str().into();
    let mut spec_json = match template.remove("spec") {
        Some(Value::Object(spec)) => spec,
        _ => Default::default(),
    };
    volumes::set_identity(&mut spec_json, &name, &spec(set).service_name);
    volumes::set_claims(&mut spec_json, &claim_volumes(set, ordinal));
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": spec_json,
    });
    Ok(plan.create_json::<Pod>(Key::new(meta.namespace.clone(), name), &pod))
}
