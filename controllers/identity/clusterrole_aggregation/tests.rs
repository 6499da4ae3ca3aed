use controllers_kit::{
    PatchKind, Plan, Refusal, Verb,
    testing::{
        Common, World,
        identity::{ClusterRoleBuild, cluster_role},
    },
};
use kubernetes_proto::{meta::LabelSelectorRequirement, rbac::ClusterRole};
use serde_json::{Value, json};

use super::{ClusterRoleAggregation, FIELD_MANAGER};

fn world() -> World {
    World::at("12:00:00")
}

fn rule(verb: &str, resource: &str) -> Value {
    json!({"verbs": [verb], "apiGroups": [""], "resources": [resource]})
}

/// The rules that a plan applies; none where it does nothing.
fn applied(plan: &Plan) -> Option<Value> {
    let mut actions = plan.actions();
    let action = actions.next()?;
    assert!(actions.next().is_none(), "{:?}", plan.verbs());
    match &action.verb {
        Verb::Patch {
            kind: PatchKind::Apply { manager },
            patch,
            subresource: "",
            ..
        } => {
            assert_eq!(*manager, FIELD_MANAGER);
            assert_ne!(
                action.resource_version, 0,
                "the version seen is a precondition"
            );
            assert!(!action.uid.is_empty());
            Some(patch["rules"].clone())
        }
        other => panic!("no apply but {other:?}"),
    }
}

#[test]
fn an_aggregate_has_the_rules_of_the_roles_that_its_selectors_match() {
    let hammer = || {
        cluster_role("hammer")
            .label("foo", "bar")
            .may("get", "hammers")
    };
    let chisel = || {
        cluster_role("chisel")
            .label("foo", "bar")
            .may("get", "chisels")
            .may("list", "chisels")
    };
    let saw = || cluster_role("saw").label("foo", "other").may("get", "saws");
    let combined = || cluster_role("combined").aggregates("foo", "bar");
    let all = [
        rule("get", "chisels"),
        rule("list", "chisels"),
        rule("get", "hammers"),
    ];
    let table: Vec<(&str, World, Option<Value>)> = vec![
        (
            "combine, in order of names",
            world().with(combined()).with(hammer()).with(chisel()),
            Some(json!(all)),
        ),
        (
            "what nobody grants any more goes",
            world().with(combined().may("get", "nails")).with(hammer()),
            Some(json!([rule("get", "hammers")])),
        ),
        (
            "others are left out",
            world().with(combined()).with(saw()).with(hammer()),
            Some(json!([rule("get", "hammers")])),
        ),
        (
            "several selectors, in their order",
            world()
                .with(combined().aggregates("foo", "other"))
                .with(saw())
                .with(hammer()),
            Some(json!([rule("get", "hammers"), rule("get", "saws")])),
        ),
        (
            "each rule once",
            world()
                .with(combined().aggregates("foo", "other"))
                .with(hammer())
                .with(
                    cluster_role("twin")
                        .label("foo", "other")
                        .may("get", "hammers"),
                ),
            Some(json!([rule("get", "hammers")])),
        ),
        (
            "itself does not count",
            world()
                .with(combined().label("foo", "bar").may("get", "nails"))
                .with(hammer()),
            Some(json!([rule("get", "hammers")])),
        ),
        (
            "no difference, no write",
            world()
                .with(combined().may("get", "hammers"))
                .with(hammer()),
            None,
        ),
        (
            "another order is a difference",
            world()
                .with(
                    combined()
                        .may("get", "hammers")
                        .may("get", "chisels")
                        .may("list", "chisels"),
                )
                .with(hammer())
                .with(chisel()),
            Some(json!(all)),
        ),
        (
            "where nothing matches, all rules go",
            world().with(combined().may("get", "nails")),
            Some(json!([])),
        ),
        ("nothing of nothing", world().with(combined()), None),
    ];
    for (name, world, expected) in table {
        let plan = world.plan::<ClusterRoleAggregation>("combined");
        assert_eq!(applied(&plan), expected, "{name}");
    }
}

#[test]
fn roles_that_do_not_aggregate_are_left_alone() {
    let world = world().with(cluster_role("plain").may("get", "pods"));
    for name in ["plain", "missing"] {
        assert!(
            world.plan::<ClusterRoleAggregation>(name).is_nothing(),
            "{name}"
        );
    }
}

#[test]
fn an_empty_selector_matches_every_role() {
    let mut all = cluster_role("all").aggregates("a", "b");
    all.aggregation_rule
        .as_mut()
        .unwrap()
        .cluster_role_selectors[0]
        .match_labels
        .clear();
    let world = world().with(all).with(cluster_role("x").may("get", "pods"));
    let plan = world.plan::<ClusterRoleAggregation>("all");
    assert_eq!(applied(&plan), Some(json!([rule("get", "pods")])));
}

#[test]
fn a_selector_that_can_t_be_read_is_an_error_that_is_tried_again() {
    let mut wrong = cluster_role("wrong").aggregates("a", "b");
    wrong
        .aggregation_rule
        .as_mut()
        .unwrap()
        .cluster_role_selectors[0]
        .match_expressions
        .push(LabelSelectorRequirement {
            key: "a".into(),
            operator: "Like".into(),
            ..LabelSelectorRequirement::default()
        });
    let refusal = world()
        .with(wrong)
        .refusal::<ClusterRoleAggregation>("wrong");
    assert_eq!(
        refusal,
        Refusal::Retry("\"Like\" is not a valid label selector operator".to_owned())
    );
}

#[test]
fn any_role_s_change_reaches_every_aggregate_of_aggregates() {
    let mut world = world()
        .with(cluster_role("outer").aggregates("level", "inner"))
        .with(
            cluster_role("inner")
                .label("level", "inner")
                .aggregates("level", "leaf"),
        )
        .with(
            cluster_role("leaf")
                .label("level", "leaf")
                .may("get", "pods"),
        );
    world.run::<ClusterRoleAggregation>();
    let rules = |world: &World, name| world.get::<ClusterRole>(name).rules.clone();
    assert_eq!(rules(&world, "outer"), rules(&world, "leaf"));
    world.delete::<ClusterRole>("leaf");
    world.run::<ClusterRoleAggregation>();
    assert!(rules(&world, "inner").is_empty());
    assert!(rules(&world, "outer").is_empty());
}

#[test]
fn an_aged_view_can_t_grant_again_what_was_taken_away() {
    let mut world = world()
        .with(cluster_role("combined").aggregates("foo", "bar"))
        .with(
            cluster_role("part")
                .label("foo", "bar")
                .may("get", "secrets"),
        );
    world.run::<ClusterRoleAggregation>();
    // Planned by an owner before …
    let stale = world
        .clone()
        .changed::<ClusterRole>("combined", |role| role.rules.clear())
        .plan::<ClusterRoleAggregation>("combined");
    // … the rule was taken away and that was applied by the next.
    world.change::<ClusterRole>("part", |role| role.rules.clear());
    world.run::<ClusterRoleAggregation>();
    let applied = world.apply(&stale);
    assert_eq!(applied.failures().len(), 1, "{applied:?}");
    assert!(world.get::<ClusterRole>("combined").rules.is_empty());
}
