//! What must hold of every plan, whatever it was made from. The node checks it before it applies a plan: a
//! breach is a fault of the controller, so nothing of the plan is written, the key backs off, and
//! `manifold_plan_breaches_total` counts it. The contract of `testing` checks the same on every plan of its
//! runs.
//!
//! 1. Every action lies within the descriptor's rules: verb, resource, subresource, name and namespace.
//! 2. A creation has a name; a patch or deletion has the uid of the object that was seen; a deletion with
//!    the version as precondition has that version.
//! 3. A child of the key's own object is deleted only as a member of a set that the plan has counted
//!    ([`Plan::counted`]): those sets alone are compared with the API server after a takeover.

use kubernetes_proto::{AnyObject, Resource, meta::ObjectMeta};

use crate::{Action, Descriptor, Key, Only, Plan, Reader, Rule, Verb, owners::is_controlled_by};

/// A plan that its controller must not make.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Breach {
    /// No rule of the descriptor allows an action.
    #[error("{action} is beyond its rules; it declares no {verb} of {resource} in group {group:?}")]
    NotAllowed {
        /// The action, as in `create pods/web-1`.
        action: String,
        /// Its verb, as RBAC names it.
        verb: &'static str,
        /// Its resource and subresource, as RBAC names them.
        resource: String,
        /// The resource's group; empty for the core group.
        group: &'static str,
    },
    /// A creation has no name, so that a second one would not collide.
    #[error("{0} has no name")]
    NoName(String),
    /// A patch or deletion has no uid, so that it would also hit a successor of the same name.
    #[error("{0} carries no uid")]
    NoUid(String),
    /// A deletion with the version as precondition has no version.
    #[error("{0} carries no version")]
    NoVersion(String),
    /// A deleted child belongs to no set that was counted.
    #[error("{0} deletes a child that is in no set that the plan has counted")]
    NotCounted(String),
}

/// Checks a plan for a key. `primary` is the resource whose objects are the controller's keys; `reader` is
/// the store that the plan was made from. The store may have moved on since: an object that has changed
/// since the plan was made is not judged.
///
/// # Errors
/// The first breach.
pub fn check(
    descriptor: &Descriptor,
    primary: Option<&'static Resource>,
    key: &Key,
    plan: &Plan,
    reader: &dyn Reader,
) -> Result<(), Breach> {
    let mut owner: Option<Option<AnyObject>> = None;
    for action in plan.actions() {
        if !descriptor.rules.iter().any(|rule| allows(rule, action)) {
            return Err(Breach::NotAllowed {
                action: action.to_string(),
                verb: action.verb.name(),
                resource: action.rbac_resource(),
                group: action.resource.group,
            });
        }
        match &action.verb {
            Verb::Create { .. } if action.key.name.is_empty() => {
                return Err(Breach::NoName(action.to_string()));
            }
            Verb::Patch { .. } | Verb::Delete { .. } if action.uid.is_empty() => {
                return Err(Breach::NoUid(action.to_string()));
            }
            Verb::Delete {
                only: Only::ThisVersion,
                ..
            } if action.resource_version == 0 => {
                return Err(Breach::NoVersion(action.to_string()));
            }
            Verb::Delete { .. } => {
                let owner = owner.get_or_insert_with(|| {
                    primary.and_then(|primary| reader.get(primary, &key.namespace, &key.name))
                });
                if let Some(owner) = owner
                    && is_uncounted(owner.metadata(), action, plan, reader)
                {
                    return Err(Breach::NotCounted(action.to_string()));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Whether a rule allows an action.
pub fn allows(rule: &Rule, action: &Action) -> bool {
    let subresource = match &action.verb {
        Verb::Patch { subresource, .. } | Verb::Replace { subresource, .. } => *subresource,
        _ => "",
    };
    let (resource, part) = rule.resource.split_once('/').unwrap_or((rule.resource, ""));
    let is_resource = rule.resource == "*"
        || ((resource == "*" || resource == action.resource.plural) && part == subresource);
    is_resource
        && (rule.group == "*" || rule.group == action.resource.group)
        && rule.verbs.contains(&action.verb.name())
        && (rule.names.is_empty() || rule.names.contains(&action.key.name.as_str()))
        && (rule.namespace.is_empty() || *rule.namespace == *action.key.namespace)
}

/// Whether a deletion is of a child of `owner`, as it was when the plan was made, that no counted set holds.
fn is_uncounted(owner: &ObjectMeta, action: &Action, plan: &Plan, reader: &dyn Reader) -> bool {
    let Some(child) = reader.get(action.resource, &action.key.namespace, &action.key.name) else {
        return false;
    };
    let child = child.metadata();
    child.uid == action.uid
        && child.resource_version == action.resource_version
        && is_controlled_by(child, &owner.uid)
        && !plan.counted.iter().any(|counted| {
            counted.resource == action.resource
                && (counted.namespace.is_empty() || counted.namespace == action.key.namespace)
                && counted.selector.matches(&child.labels)
        })
}

#[cfg(test)]
mod tests;
