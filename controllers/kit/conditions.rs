//! Lists of conditions, whatever they are conditions of.

use kubernetes_proto::{
    Shared,
    apps::{DeploymentCondition, ReplicaSetCondition},
    batch::{Job, JobCondition},
    core::PodCondition,
    meta::Time,
};

/// One condition.
pub trait Condition {
    /// Its type, as in `Ready`.
    fn r#type(&self) -> &str;
    /// `True`, `False` or `Unknown`.
    fn status(&self) -> &str;
    /// One word that says why.
    fn reason(&self) -> &str;
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
    PodCondition,
    JobCondition,
    DeploymentCondition,
    ReplicaSetCondition
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

/// Sets a condition; whether the list has changed. One of the same status and reason is left as it is, with
/// whatever message it has; one of the same status keeps the time since when. What is new stands at the end.
pub fn set<C: Condition>(conditions: &mut Vec<C>, mut new: C) -> bool {
    if let Some(old) = find(conditions, new.r#type()) {
        if old.status() == new.status() {
            if old.reason() == new.reason() {
                return false;
            }
            new.set_since(old.since());
        }
        remove(conditions, new.r#type());
    }
    conditions.push(new);
    true
}

/// Takes the conditions of a type away; whether there were any.
pub fn remove<C: Condition>(conditions: &mut Vec<C>, r#type: &str) -> bool {
    let before = conditions.len();
    conditions.retain(|condition| condition.r#type() != r#type);
    conditions.len() != before
}

/// The condition by which a Job is finished: the first that says Complete or Failed; `None` while it runs.
pub fn finished(job: &Job) -> Option<&JobCondition> {
    job.status.as_ref()?.conditions.iter().find(|condition| {
        matches!(condition.r#type.as_str(), "Complete" | "Failed") && condition.status == "True"
    })
}

#[cfg(test)]
mod tests;
