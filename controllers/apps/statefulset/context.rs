//! What a StatefulSet's spec asks for: which ordinals, and by which strategy.

use std::ops::Range;

use kubernetes_proto::apps::StatefulSet;

use super::pod::spec;

pub(super) const ROLLING_UPDATE: &str = "RollingUpdate";

pub(super) const ON_DELETE: &str = "OnDelete";

pub(super) fn replicas(set: &StatefulSet) -> i32 {
    spec(set).replicas.unwrap_or(1)
}

pub(super) fn strategy(set: &StatefulSet) -> &str {
    spec(set)
        .update_strategy
        .as_ref()
        .map_or("", |strategy| &strategy.r#type)
}

pub(super) fn start(set: &StatefulSet) -> i64 {
    spec(set)
        .ordinals
        .as_ref()
        .map_or(0, |ordinals| ordinals.start.max(0).into())
}

/// The ordinals that the set wants pods of, up to the largest `i32`: a pod's name could not be parsed back
/// beyond it.
pub(super) fn ordinals(set: &StatefulSet) -> Range<i64> {
    let start = start(set);
    let end = start + i64::from(replicas(set).max(0));
    start..end.min(i64::from(i32::MAX) + 1)
}

/// Whether the set wants a pod of this ordinal.
pub(super) fn is_in_range(set: &StatefulSet, ordinal: i64) -> bool {
    ordinals(set).contains(&ordinal)
}

/// `None` where no partition was said.
pub(super) fn partition(set: &StatefulSet) -> Option<i32> {
    let rolling = spec(set)
        .update_strategy
        .as_ref()?
        .rolling_update
        .as_ref()?;
    Some(rolling.partition.unwrap_or(0))
}
