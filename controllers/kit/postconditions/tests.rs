use kubernetes_proto::{
    Object, Str,
    apps::ReplicaSet,
    core::{Namespace, Pod},
};
use serde_json::json;

use super::{Breach, allows, check};
use crate::{
    Action, Descriptor, Key, Only, PatchKind, Plan, Propagation, Sharding, StatusWrite,
    selectors::Selector,
    testing::{Common, World, namespace, pod, replica_set},
};

fn descriptor() -> Descriptor {
    Descriptor::new("replicaset-controller", Sharding::ByObject).rule(
        "",
        "pods",
        &["create", "delete", "patch"],
    )
}

fn selector(value: &str) -> Selector {
    let mut labels = Vec::new();
    kubernetes_proto::meta::set(&mut labels, "app", value);
    Selector::of_labels(&labels)
}

/// A ReplicaSet with a child, a pod of another owner and one of none.
fn world() -> World {
    let (set, other) = (replica_set("web"), replica_set("other"));
    World::at("12:00:00")
        .with(pod("child").label("app", "web").owned_by(&set))
        .with(pod("foreign").label("app", "web").owned_by(&other))
        .with(pod("alone").label("app", "web"))
        .with(set)
        .with(other)
}

fn breach(world: &World, plan: &Plan) -> Option<String> {
    let key = Key::new("default", "web");
    let checked = check(
        &descriptor(),
        Some(ReplicaSet::resource()),
        &key,
        plan,
        world,
    );
    checked.err().map(|breach| breach.to_string())
}

#[test]
fn a_child_is_deleted_only_from_a_set_that_was_counted() {
    const NOT_COUNTED: &str =
        "delete pods/child deletes a child that is in no set that the plan has counted";
    type Count = fn(&mut Plan);
    let table: [(&str, &str, Count, Option<&str>); 8] = [
        ("nothing is counted", "child", |_| {}, Some(NOT_COUNTED)),
        (
            "the set that holds it is counted",
            "child",
            |plan| plan.counted::<Pod>(&"default".into(), &selector("web")),
            None,
        ),
        (
            "the pods of all namespaces are counted",
            "child",
            |plan| plan.counted::<Pod>(&Str::default(), &selector("web")),
            None,
        ),
        (
            "a set without it is counted",
            "child",
            |plan| plan.counted::<Pod>(&"default".into(), &selector("api")),
            Some(NOT_COUNTED),
        ),
        (
            "another namespace is counted",
            "child",
            |plan| plan.counted::<Pod>(&"shop".into(), &selector("web")),
            Some(NOT_COUNTED),
        ),
        (
            "another resource is counted",
            "child",
            |plan| plan.counted::<ReplicaSet>(&"default".into(), &selector("web")),
            Some(NOT_COUNTED),
        ),
        ("the owner is another", "foreign", |_| {}, None),
        ("it has no owner", "alone", |_| {}, None),
    ];
    for (case, name, count, expected) in table {
        let world = world();
        let mut plan = Plan::nothing();
        plan.delete(
            &*world.get::<Pod>(name),
            Only::ThisUid,
            Propagation::Background,
        );
        count(&mut plan);
        assert_eq!(breach(&world, &plan).as_deref(), expected, "{case}");
    }
}

#[test]
fn a_child_that_has_changed_since_the_plan_was_made_is_not_judged() {
    let mut world = world();
    let child = world.get::<Pod>("child");
    let mut plan = Plan::nothing();
    plan.delete(&*child, Only::ThisUid, Propagation::Background);
    world.change::<Pod>("child", |pod| pod.metadata_mut().set_label("app", "web-2"));
    assert_eq!(breach(&world, &plan), None);
    world.vanish::<Pod>("child");
    assert_eq!(breach(&world, &plan), None);
}

#[test]
fn a_write_names_the_very_object_that_was_seen() {
    let seen = world().get::<Pod>("alone");
    let mut unseen = Pod::clone(&seen);
    unseen.metadata_mut().uid = Str::default();
    let mut nameless = Pod::clone(&seen);
    nameless.metadata_mut().name = Str::default();
    let mut versionless = Pod::clone(&seen);
    versionless.metadata_mut().resource_version = 0;
    let delete = |pod: &Pod, only| {
        let mut plan = Plan::nothing();
        plan.delete(pod, only, Propagation::Background);
        plan
    };
    let mut create = Plan::nothing();
    create.create(&nameless);
    let mut patch = Plan::nothing();
    patch.patch(&unseen, "", PatchKind::Merge, json!({}), StatusWrite::No);
    for (plan, expected) in [
        (create, Some("create pods/ has no name")),
        (patch, Some("patch pods/alone carries no uid")),
        (
            delete(&unseen, Only::ThisUid),
            Some("delete pods/alone carries no uid"),
        ),
        (
            delete(&versionless, Only::ThisVersion),
            Some("delete pods/alone carries no version"),
        ),
        (delete(&versionless, Only::ThisUid), None),
        (delete(&seen, Only::ThisVersion), None),
    ] {
        assert_eq!(breach(&world(), &plan).as_deref(), expected, "{plan:?}");
    }
}

fn action(make: impl FnOnce(&mut Plan)) -> Action {
    let mut plan = Plan::nothing();
    make(&mut plan);
    plan.actions().next().cloned().unwrap()
}

#[test]
fn an_action_needs_a_rule_of_its_verb_resource_subresource_name_and_namespace() {
    let pod = world().get::<Pod>("alone");
    let delete = action(|plan| {
        plan.delete(&*pod, Only::ThisUid, Propagation::Background);
    });
    let patch = |subresource| {
        action(|plan| {
            plan.patch(
                &*pod,
                subresource,
                PatchKind::Merge,
                json!({}),
                StatusWrite::No,
            );
        })
    };
    let finalize = action(|plan| {
        let namespace: Namespace = namespace("shop");
        plan.replace(&namespace, "finalize", json!({}));
    });
    let rules = |describe: fn(Descriptor) -> Descriptor| {
        let empty = Descriptor::new("test", Sharding::ByObject);
        describe(empty).rules.remove(0)
    };
    let pods = rules(|it| it.rule("", "pods", &["delete", "patch"]));
    let status = rules(|it| it.rule("", "pods/status", &["patch"]));
    let scales = rules(|it| it.rule("*", "*/status", &["patch"]));
    let all = rules(|it| it.rule("*", "*", &["delete", "patch", "update"]));
    let apps = rules(|it| it.rule("apps", "pods", &["delete"]));
    let named = rules(|it| it.rule_for("", "pods", &["alone"], &["delete"]));
    let of_others = rules(|it| it.rule_for("", "pods", &["other"], &["delete"]));
    let here = rules(|it| it.rule_in("default", "", "pods", &[], &["delete"]));
    let elsewhere = rules(|it| it.rule_in("kube-system", "", "pods", &[], &["delete"]));
    let table = [
        (&pods, &delete, true),
        (&pods, &patch(""), true),
        (&pods, &patch("status"), false),
        (&pods, &finalize, false),
        (&status, &patch("status"), true),
        (&status, &patch("scale"), false),
        (&status, &patch(""), false),
        (&scales, &patch("status"), true),
        (&scales, &patch(""), false),
        (&all, &patch("status"), true),
        (&all, &finalize, true),
        (&apps, &delete, false),
        (&named, &delete, true),
        (&of_others, &delete, false),
        (&here, &delete, true),
        (&elsewhere, &delete, false),
    ];
    for (rule, action, expected) in table {
        assert_eq!(allows(rule, action), expected, "{action} by {rule:?}");
    }
}

#[test]
fn an_action_beyond_the_rules_is_named_with_what_is_missing() {
    let mut plan = Plan::nothing();
    plan.update_status(&replica_set("web"), &{
        let mut set = replica_set("web");
        set.status.get_or_insert_default().replicas = 1;
        set
    });
    assert_eq!(
        check(
            &descriptor(),
            None,
            &Key::new("default", "web"),
            &plan,
            &world()
        ),
        Err(Breach::NotAllowed {
            action: "patch replicasets/web/status".to_owned(),
            verb: "patch",
            resource: "replicasets/status".to_owned(),
            group: "apps",
        })
    );
}
