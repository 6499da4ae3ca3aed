//! Gives a ClusterRole with an `aggregationRule` the rules of all ClusterRoles that its selectors match.
//!
//! Watches ClusterRoles, any of which may be part of any aggregate; applies `rules` of those that aggregate;
//! a key per ClusterRole; remembers nothing. The rules are those of each selector's roles in order of names,
//! itself left out, each rule once. An aggregate of aggregates settles over several plans.
//!
//! The apply carries the version of the role that was seen. All ClusterRoles come by one watch, so a
//! replica that has seen the last owner's write has seen everything that it was computed from: an outdated
//! view can't grant again what was taken away.

use controllers_kit::{
    Controller, Descriptor, Flags, Key, Plan, Refusal, Sharding, Snapshot, Watches,
    selectors::Selector,
};
use kubernetes_proto::{
    Object, Str,
    rbac::{AggregationRule, ClusterRole, PolicyRule},
};
use serde_json::json;

/// As whom the rules are owned.
const FIELD_MANAGER: &str = "clusterrole-aggregation-controller";
/// The index of the roles that aggregate, and its one value.
const AGGREGATES: &str = "aggregates";
const YES: &str = "yes";

/// The controller.
pub struct ClusterRoleAggregation;

impl Controller for ClusterRoleAggregation {
    type Memory = ();

    fn describe() -> Descriptor {
        Descriptor::new("clusterrole-aggregation-controller", Sharding::ByObject)
            .aliases(&["clusterrole-aggregation"])
            .queue("ClusterRoleAggregator")
            .workers_fixed(5)
            .rule(
                "rbac.authorization.k8s.io",
                "clusterroles",
                &["escalate", "get", "list", "watch", "patch"],
            )
            .differences(include_str!("differences.md"))
    }

    fn new(_: &Flags) -> Self {
        Self
    }

    fn watch(&self, on: &mut Watches) {
        on.kind::<ClusterRole>()
            .indexed_by(AGGREGATES, |role| match role.aggregation_rule {
                Some(_) => vec![Str::interned(YES)],
                None => Vec::new(),
            })
            .wakes(|_, reader| {
                reader
                    .indexed(ClusterRole::resource(), AGGREGATES, YES)
                    .iter()
                    .map(|role| Key::of_meta(role.metadata()))
                    .collect()
            });
    }

    fn plan(&self, key: &Key, seen: &Snapshot<'_>, (): &mut ()) -> Result<Plan, Refusal> {
        let mut plan = Plan::nothing();
        let Some(role) = seen.get::<ClusterRole>(key) else {
            return Ok(plan);
        };
        let Some(aggregation) = &role.aggregation_rule else {
            return Ok(plan);
        };
        let rules = aggregated(&role, aggregation, seen)?;
        if rules != role.rules {
            plan.apply(&*role, FIELD_MANAGER, json!({ "rules": rules }));
        }
        Ok(plan)
    }
}

/// The rules that an aggregate should have.
fn aggregated(
    role: &ClusterRole,
    aggregation: &AggregationRule,
    seen: &Snapshot<'_>,
) -> Result<Vec<PolicyRule>, Refusal> {
    let roles = seen.all::<ClusterRole>();
    let mut rules: Vec<PolicyRule> = Vec::new();
    for selector in &aggregation.cluster_role_selectors {
        let selector =
            Selector::compile(Some(selector)).map_err(|error| Refusal::Retry(error.to_string()))?;
        // They come in order of names.
        let matching = roles.iter().filter(|other| {
            let meta = Object::metadata(&***other);
            meta.name != Object::metadata(role).name && selector.matches(&meta.labels)
        });
        for rule in matching.flat_map(|other| &other.rules) {
            if !rules.contains(rule) {
                rules.push(rule.clone());
            }
        }
    }
    Ok(rules)
}

#[cfg(test)]
mod tests;
