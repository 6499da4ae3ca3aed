//! Conditions of any kind: how they are found, and the policies by which upstream's controllers set them.

use kubernetes_proto::{
    Shared,
    apps::{DeploymentCondition, ReplicaSetCondition},
    autoscaling::HorizontalPodAutoscalerCondition,
    batch::{Job, JobCondition},
    certificates::CertificateSigningRequestCondition,
    core::{NamespaceCondition, NodeCondition, PodCondition},
    meta::{self, Time},
};

/// One condition.
pub trait Condition {
    /// Its type, as in `Ready`.
    fn r#type(&self) -> &str;
    /// `True`, `False` or `Unknown`.
    fn status(&self) -> &str;
    /// One word that says why.
    fn reason(&self) -> &str;
    /// A sentence that says why.
    fn message(&self) -> &str;
    /// Since when the status is what it is.
    fn since(&self) -> Option<Time>;
    /// Sets since when.
    fn set_since(&mut self, since: Option<Time>);
}

macro_rules! condition {
    ($($type:ty),*) => {$(
        impl Condition for $type {
            fn r#type(&self) -> &str {
                &self.r#type
            }
            fn status(&self) -> &str {
                &self.status
            }
            fn reason(&self) -> &str {
                &self.reason
            }
            fn message(&self) -> &str {
                &self.message
            }
            fn since(&self) -> Option<Time> {
                self.last_transition_time
            }
            fn set_since(&mut self, since: Option<Time>) {
                self.last_transition_time = since;
            }
        }
    )*};
}
condition!(
    CertificateSigningRequestCondition,
    DeploymentCondition,
    HorizontalPodAutoscalerCondition,
    JobCondition,
    NamespaceCondition,
    NodeCondition,
    PodCondition,
    ReplicaSetCondition,
    meta::Condition
);

impl<C: Condition + Clone> Condition for Shared<C> {
    fn r#type(&self) -> &str {
        (**self).r#type()
    }
    fn status(&self) -> &str {
        (**self).status()
    }
    fn reason(&self) -> &str {
        (**self).reason()
    }
    fn message(&self) -> &str {
        (**self).message()
    }
    fn since(&self) -> Option<Time> {
        (**self).since()
    }
    fn set_since(&mut self, since: Option<Time>) {
        (**self).set_since(since);
    }
}

/// The first condition of a type.
pub fn find<'a, C: Condition>(conditions: &'a [C], r#type: &str) -> Option<&'a C> {
    conditions
        .iter()
        .find(|condition| condition.r#type() == r#type)
}

/// Whether a condition is there and true.
pub fn is_true<C: Condition>(conditions: &[C], r#type: &str) -> bool {
    find(conditions, r#type).is_some_and(|condition| condition.status() == "True")
}

/// How a condition replaces one of its type. In each policy the first of a type counts, and a condition of
/// a new type is appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Deployments' and ReplicaSets' (upstream `SetDeploymentCondition`): a condition of the same status
    /// and reason is kept, message included; otherwise the new one is appended and the old one removed. The
    /// transition time changes with the status alone.
    Replace,
    /// API machinery's (upstream `meta.SetStatusCondition`): changed in place, reason and message included.
    /// The transition time changes with the status alone.
    InPlace,
    /// Jobs' (upstream `ensureJobConditionStatus`): changed in place where status, reason or message
    /// differ. The transition time changes with any of the three.
    Restamp,
}

/// Sets a condition; whether the list has changed. The new condition brings the present time as its
/// transition time.
pub fn set<C: Condition + PartialEq>(conditions: &mut Vec<C>, mut new: C, policy: Policy) -> bool {
    let same_type = |condition: &C| condition.r#type() == new.r#type();
    let Some(place) = conditions.iter().position(same_type) else {
        conditions.push(new);
        return true;
    };
    let old = &conditions[place];
    let same_status = old.status() == new.status();
    let same_reason = same_status && old.reason() == new.reason();
    if same_status && policy != Policy::Restamp {
        new.set_since(old.since());
    }
    let is_kept = match policy {
        Policy::Replace => same_reason,
        Policy::InPlace => *old == new,
        Policy::Restamp => same_reason && old.message() == new.message(),
    };
    if is_kept {
        return false;
    }
    match policy {
        Policy::Replace => {
            remove(conditions, new.r#type());
            conditions.push(new);
        }
        Policy::InPlace | Policy::Restamp => conditions[place] = new,
    }
    true
}

/// Removes the conditions of a type; whether there were any.
pub fn remove<C: Condition>(conditions: &mut Vec<C>, r#type: &str) -> bool {
    let before = conditions.len();
    conditions.retain(|condition| condition.r#type() != r#type);
    conditions.len() != before
}

/// The condition by which a Job is finished: the first of Complete and Failed that is true; `None` while it
/// runs.
pub fn finished(job: &Job) -> Option<&JobCondition> {
    job.status.as_ref()?.conditions.iter().find(|condition| {
        matches!(condition.r#type.as_str(), "Complete" | "Failed") && condition.status == "True"
    })
}

#[cfg(test)]
mod tests;
