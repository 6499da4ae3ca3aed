use std::time::Duration;

use controllers_kit::{
    Controller, FlagValue, Flags, Plan, Requeue, Runs, Verb,
    testing::{
        Common, ConfigMapBuild, World, at, config_map,
        identity::{AccountBuild, service_account_token},
        service_account,
    },
};
use kubernetes_proto::{
    Object,
    core::{ConfigMap, ServiceAccount, ServiceAccountToken},
};
use serde_json::{Value, json};

use super::{
    INVALID_SINCE, LAST_USED, LegacyServiceAccountTokenCleaner, NAMESPACES_AT_ONCE, PERIOD,
    Progress, TRACKING,
};

const DAYS: u64 = 30;
const KEY: &str = "legacy-tokens";

fn tracked_since(day: &str) -> ConfigMap {
    config_map(TRACKING)
        .in_namespace("kube-system")
        .data("since", day)
}

/// On 2 March: what is older than 31 January is old.
fn world() -> World {
    World::at("12:00:00")
        .flag(
            PERIOD,
            FlagValue::Duration(Duration::from_secs(DAYS * 24 * 3600)),
        )
        .with(tracked_since("2025-01-01"))
}

fn account() -> ServiceAccount {
    service_account("robot").lists("old")
}

fn old() -> ServiceAccountToken {
    service_account_token("old", "robot").created("2025-12-01T00:00:00Z")
}

/// Plans until the pass is complete.
fn pass(world: &mut World) -> Vec<Plan> {
    let mut memory = Progress::default();
    let mut plans = Vec::new();
    loop {
        let plan = world
            .plan_with::<LegacyServiceAccountTokenCleaner>(KEY, &mut memory)
            .unwrap();
        world.apply(&plan).expect_success();
        let more = plan.requeue == Requeue::Now;
        plans.push(plan);
        if !more {
            assert_eq!(memory, Progress::default());
            return plans;
        }
    }
}

/// What a pass does: `mark`, `delete`, or nothing.
fn outcome(world: &World) -> &'static str {
    let mut world = world.clone();
    let plans = pass(&mut world);
    assert_eq!(
        plans.last().unwrap().requeue,
        Requeue::At(at("2026-03-03T12:00:00Z"))
    );
    let verbs: Vec<&Verb> = plans
        .iter()
        .flat_map(Plan::actions)
        .map(|action| &action.verb)
        .collect();
    match verbs[..] {
        [] => "",
        [Verb::Patch { patch, .. }] => {
            assert_eq!(
                *patch,
                json!({"metadata": {"labels": {INVALID_SINCE: "2026-03-02"}}})
            );
            "mark"
        }
        [Verb::Delete { .. }] => "delete",
        _ => panic!("{verbs:?}"),
    }
}

#[test]
fn a_token_is_marked_and_a_period_later_deleted() {
    let marked = |day| old().label(INVALID_SINCE, day);
    let used = |day| old().label(LAST_USED, day);
    let uid = Object::metadata(&account()).uid.to_string();
    let of = |uid: &str| old().annotation("kubernetes.io/service-account.uid", uid);
    let table = [
        ("unused", old(), "mark"),
        ("used long ago", used("2026-01-30"), "mark"),
        ("used lately", used("2026-01-31"), ""),
        ("used at no day", used("yesterday"), ""),
        ("used in another form", used("2026-1-1"), ""),
        ("marked long ago", marked("2026-01-30"), "delete"),
        ("marked lately", marked("2026-01-31"), ""),
        ("marked at no day", marked("yesterday"), "mark"),
        (
            "marked long ago and used lately",
            marked("2025-01-01").label(LAST_USED, "2026-03-01"),
            "",
        ),
        ("made lately", old().created("2026-01-31T12:00:00Z"), ""),
        (
            "made long ago",
            old().created("2026-01-31T11:59:59Z"),
            "mark",
        ),
        (
            "being deleted",
            old().finalizer("example.com/hold").terminating("11:00:00"),
            "",
        ),
        ("of the account's uid", of(&uid), "mark"),
        ("of another uid", of("uid-of-one-before"), ""),
        (
            "of no account",
            service_account_token("old", "").created("2025-12-01T00:00:00Z"),
            "",
        ),
        (
            "of an account that is gone",
            service_account_token("old", "gone").created("2025-12-01T00:00:00Z"),
            "",
        ),
    ];
    for (name, secret, expected) in table {
        let world = world().with(account()).with(secret);
        assert_eq!(outcome(&world), expected, "{name}");
    }
}

#[test]
fn a_token_that_its_account_does_not_list_was_made_by_hand() {
    let world = world()
        .with(service_account("robot").lists("other"))
        .with(old());
    assert_eq!(outcome(&world), "");
}

#[test]
fn nothing_is_done_before_use_was_tracked_for_a_period() {
    // It counts from the day after.
    let with = |map: ConfigMap| {
        World::at("00:00:00")
            .flag(
                PERIOD,
                FlagValue::Duration(Duration::from_secs(DAYS * 24 * 3600)),
            )
            .with(map)
            .with(account())
            .with(old())
    };
    let marks = |world: World| {
        let mut world = world;
        pass(&mut world).iter().any(|plan| !plan.is_nothing())
    };
    assert!(marks(with(tracked_since("2026-01-30"))));
    assert!(!marks(with(tracked_since("2026-01-31"))));
}

#[test]
fn a_tracking_that_can_t_be_read_is_tried_again() {
    let base = || World::at("12:00:00").with(account()).with(old());
    let refused = |world: World| {
        world
            .refusal::<LegacyServiceAccountTokenCleaner>(KEY)
            .to_string()
    };
    // Where nothing tracks use at all there is nothing to be sure of.
    assert_eq!(outcome(&base()), "");
    let map = config_map(TRACKING).in_namespace("kube-system");
    assert_eq!(
        refused(base().with(map)),
        "configMap does not have since label"
    );
    assert_eq!(
        refused(base().with(tracked_since("soon"))),
        "error parsing trackedSince time: \"soon\""
    );
}

#[test]
fn a_token_that_a_pod_names_is_kept_however_it_is_named() {
    let name = json!({"name": "old"});
    let container = |more: Value| {
        let mut container = json!({"name": "c"});
        container
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        json!([container])
    };
    let env = || {
        container(
            json!({"env": [{"name": "T", "valueFrom": {"secretKeyRef": {"name": "old", "key": "k"}}}]}),
        )
    };
    let volume = |source: Value| json!({"volumes": [source]});
    let table = [
        (json!({"imagePullSecrets": [name]}), true),
        (json!({"containers": env()}), true),
        (json!({"initContainers": env()}), true),
        (json!({"ephemeralContainers": env()}), true),
        (
            json!({"containers": container(json!({"envFrom": [{"secretRef": name}]}))}),
            true,
        ),
        (volume(json!({"secret": {"secretName": "old"}})), true),
        (volume(json!({"azureFile": {"secretName": "old"}})), true),
        (volume(json!({"cephfs": {"secretRef": name}})), true),
        (volume(json!({"cinder": {"secretRef": name}})), true),
        (volume(json!({"flexVolume": {"secretRef": name}})), true),
        (volume(json!({"rbd": {"secretRef": name}})), true),
        (volume(json!({"scaleIO": {"secretRef": name}})), true),
        (volume(json!({"iscsi": {"secretRef": name}})), true),
        (volume(json!({"storageos": {"secretRef": name}})), true),
        (volume(json!({"csi": {"nodePublishSecretRef": name}})), true),
        (
            volume(json!({"projected": {"sources": [{"configMap": name}, {"secret": name}]}})),
            true,
        ),
        (volume(json!({"configMap": name})), false),
        (volume(json!({"secret": {"secretName": "other"}})), false),
        (json!({}), false),
    ];
    for (spec, kept) in table {
        let world = world().with(account()).with(old()).serving(
            "/api/v1/namespaces/default/pods",
            json!({"items": [{"spec": {}}, {"spec": spec}]}),
        );
        assert_eq!(outcome(&world), if kept { "" } else { "mark" }, "{spec}");
    }
}

#[test]
fn pods_that_can_t_be_read_leave_their_namespace_s_tokens_alone() {
    let mut memory = Progress {
        tracked: true,
        ..Progress::default()
    };
    let world = world()
        .with(account())
        .with(old())
        .answering(|query| match query {
            controllers_kit::Query::Picked { .. } => {
                Some(controllers_kit::Answer::Failed("forbidden".to_owned()))
            }
            _ => None,
        });
    let refused = world.plan_with::<LegacyServiceAccountTokenCleaner>(KEY, &mut memory);
    assert_eq!(refused.unwrap_err().to_string(), "forbidden");
}

#[test]
fn many_namespaces_are_read_a_few_at_a_time() {
    let count = 2 * NAMESPACES_AT_ONCE + 1;
    let mut world = world();
    for number in 0..count {
        let namespace = format!("ns-{number:03}");
        world = world
            .with(account().in_namespace(&namespace))
            .with(old().in_namespace(&namespace));
    }
    let sizes: Vec<usize> = pass(&mut world)
        .iter()
        .map(|plan| plan.actions().count())
        .collect();
    assert_eq!(sizes, [0, NAMESPACES_AT_ONCE, NAMESPACES_AT_ONCE, 1]);
    let marked = world
        .all::<ServiceAccountToken>()
        .iter()
        .filter(|secret| super::label(Object::metadata(&***secret), INVALID_SINCE).is_some())
        .count();
    assert_eq!(marked, count);
}

#[test]
fn a_token_that_is_used_meanwhile_is_not_deleted() {
    let mut world = world()
        .with(account())
        .with(old().label(INVALID_SINCE, "2025-01-01"));
    let mut memory = Progress {
        tracked: true,
        ..Progress::default()
    };
    let plan = world
        .plan_with::<LegacyServiceAccountTokenCleaner>(KEY, &mut memory)
        .unwrap();
    world.change::<ServiceAccountToken>("old", |secret| {
        *secret = secret.clone().label(LAST_USED, "2026-03-02");
    });
    assert_eq!(world.apply(&plan).failures().len(), 1);
    assert!(world.find::<ServiceAccountToken>("old").is_some());
}

#[test]
fn a_period_is_required() {
    let descriptor = LegacyServiceAccountTokenCleaner::describe();
    let mut flags = Flags::defaults([&descriptor]);
    assert_eq!((descriptor.runs)(&flags), Runs::Yes);
    assert_eq!(
        flags.duration(PERIOD),
        Duration::from_secs(8760 * 3600),
        "upstream's default"
    );
    flags.set(PERIOD, FlagValue::Duration(Duration::ZERO));
    assert!(matches!((descriptor.runs)(&flags), Runs::Wrong(_)));
}
