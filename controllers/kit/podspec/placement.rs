//! Where a pod may run: pinned to one node, and the taints that it tolerates.

use kubernetes_proto::core::{
    NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, PodPlacement, Toleration,
};
use prost::Message;

use super::fields::{self, Malformed};

/// The numbers of PodSpec's fields.
const AFFINITY: u32 = 18;
const TOLERATIONS: u32 = 22;
/// Of Affinity and of NodeAffinity: `nodeAffinity` and `requiredDuringSchedulingIgnoredDuringExecution`.
const NODE_AFFINITY: u32 = 1;
const REQUIRED: u32 = 1;

/// The field by which a pod is pinned to its node.
pub const NODE_NAME_FIELD: &str = "metadata.name";

/// A spec's requirements for the placement of its pods.
///
/// # Errors
/// Where the spec can't be read.
pub fn read(spec: &[u8]) -> Result<PodPlacement, Malformed> {
    Ok(PodPlacement::decode(spec)?)
}

/// The spec with a node affinity that requires one node, in place of its former requirements. Preferences,
/// and affinity to other pods, stay.
///
/// # Errors
/// Where the spec can't be read.
pub fn pinned_to(spec: &[u8], node: &str) -> Result<Vec<u8>, Malformed> {
    let required = NodeSelector {
        node_selector_terms: vec![NodeSelectorTerm {
            match_expressions: Vec::new(),
            match_fields: vec![NodeSelectorRequirement {
                key: NODE_NAME_FIELD.to_owned(),
                operator: "In".to_owned(),
                values: vec![node.to_owned()],
            }],
        }],
    };
    let affinity = fields::single(spec, AFFINITY)?;
    let node_affinity = fields::single(&affinity, NODE_AFFINITY)?;
    let node_affinity = fields::replaced(&node_affinity, REQUIRED, &required.encode_to_vec())?;
    let affinity = fields::replaced(&affinity, NODE_AFFINITY, &node_affinity)?;
    fields::replaced(spec, AFFINITY, &affinity)
}

/// The spec with added tolerations. One of the same key, operator, value and effect is replaced in place,
/// for it may be limited in time; others are appended.
///
/// # Errors
/// Where the spec can't be read.
pub fn tolerating(spec: &[u8], tolerations: &[Toleration]) -> Result<Vec<u8>, Malformed> {
    let mut new = Vec::with_capacity(spec.len() + 64 * tolerations.len());
    let mut missing: Vec<&Toleration> = tolerations.iter().collect();
    for field in fields::of(spec)? {
        if field.number != TOLERATIONS {
            new.extend_from_slice(field.whole);
            continue;
        }
        let held = Toleration::decode(field.content)?;
        match tolerations.iter().find(|wanted| is_of(wanted, &held)) {
            Some(wanted) if *wanted != held => {
                fields::put(&mut new, TOLERATIONS, &wanted.encode_to_vec());
            }
            _ => new.extend_from_slice(field.whole),
        }
        missing.retain(|wanted| !is_of(wanted, &held));
    }
    for toleration in missing {
        fields::put(&mut new, TOLERATIONS, &toleration.encode_to_vec());
    }
    Ok(new)
}

/// Whether two tolerations match the same taints, regardless of their durations.
fn is_of(one: &Toleration, other: &Toleration) -> bool {
    one.key == other.key
        && one.operator == other.operator
        && one.value == other.value
        && one.effect == other.effect
}
