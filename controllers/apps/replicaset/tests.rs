use controllers_kit::{
    Controller, Factory, Failure, FlagValue, Only, Outcome, Plan, Requeue, StatusWrite, Verb,
    Written,
    testing::{
        Common, NamespaceBuild, PodBuild, WorkloadBuild, World, at, deployment, namespace, pod,
        replica_set,
    },
};
use kubernetes_proto::{
    Object,
    apps::{ReplicaSet, ReplicaSetCondition},
    core::Pod,
    meta::LabelSelectorRequirement,
};
use serde_json::{Value, json};

use super::{Attempt, Memory, POD_DELETION_COST, ReplicaSets, TERMINATING_REPLICAS};

const REPLICA_SETS: &[Factory] = &[Factory::of::<ReplicaSets>()];

fn world() -> World {
    World::at("12:00:00")
}

fn web(replicas: i32) -> ReplicaSet {
    replica_set("web").replicas(replicas)
}

fn child(name: &str) -> Pod {
    pod(name)
        .label("app", "web")
        .owned_by(&web(0))
        .created("11:00:00")
}

fn with_children(replicas: i32, children: &[Pod]) -> World {
    children
        .iter()
        .cloned()
        .fold(world().with(web(replicas)), World::with)
}

fn creates(plan: &Plan) -> usize {
    plan.verbs()
        .iter()
        .filter(|verb| verb.starts_with("create pods/"))
        .count()
}

fn deletes(plan: &Plan) -> Vec<String> {
    plan.verbs()
        .iter()
        .filter_map(|verb| verb.strip_prefix("delete pods/").map(str::to_owned))
        .collect()
}

fn status(plan: &Plan) -> Value {
    plan.actions()
        .find_map(|action| match &action.verb {
            Verb::Patch {
                subresource: "status",
                patch,
                ..
            } => Some(patch["status"].clone()),
            _ => None,
        })
        .unwrap_or(Value::Null)
}

// ---- how many ----

#[test]
fn as_many_pods_are_made_or_deleted_as_are_missing_or_too_many() {
    let ready = |name: &str| child(name).ready("11:30:00");
    for (what, wanted, children, made, deleted) in [
        ("none there", 3, vec![], 3, 0),
        ("some there", 3, vec![ready("a")], 2, 0),
        ("enough", 1, vec![ready("a")], 0, 0),
        (
            "too many",
            1,
            vec![ready("a"), ready("b"), ready("c")],
            0,
            2,
        ),
        ("none wanted", 0, vec![ready("a")], 0, 1),
        (
            "finished ones don't count",
            1,
            vec![child("a").phase("Failed"), child("b").phase("Succeeded")],
            1,
            0,
        ),
        (
            "those that go don't count",
            1,
            vec![ready("a").terminating("11:59:00")],
            1,
            0,
        ),
        ("pending ones count", 1, vec![child("a")], 0, 0),
    ] {
        let plan = with_children(wanted, &children).plan::<ReplicaSets>("web");
        assert_eq!(creates(&plan), made, "{what}");
        assert_eq!(deletes(&plan).len(), deleted, "{what}");
        let rests_on_count = made + deleted > 0;
        assert_eq!(plan.counted.len(), usize::from(rests_on_count), "{what}");
    }
}

#[test]
fn a_burst_is_bounded_in_both_directions() {
    assert_eq!(
        creates(&world().with(web(1200)).plan::<ReplicaSets>("web")),
        500
    );
    let children: Vec<Pod> = (0..700)
        .map(|number| child(&format!("p{number}")))
        .collect();
    let plan = with_children(0, &children).plan::<ReplicaSets>("web");
    assert_eq!(deletes(&plan).len(), 500);
}

#[test]
fn no_number_means_one_and_a_replica_set_that_goes_makes_nothing() {
    let mut unsaid = web(1);
    unsaid.spec.as_mut().unwrap().replicas = None;
    assert_eq!(creates(&world().with(unsaid).plan::<ReplicaSets>("web")), 1);
    let going = web(3)
        .finalizer("foregroundDeletion")
        .terminating("11:59:00");
    let plan = world().with(going).plan::<ReplicaSets>("web");
    assert_eq!((creates(&plan), deletes(&plan).len()), (0, 0));
    assert!(world().plan::<ReplicaSets>("gone").is_nothing());
}

#[test]
fn an_unreadable_selector_waits_for_its_change() {
    let mut set = web(1);
    set.spec
        .as_mut()
        .unwrap()
        .selector
        .as_mut()
        .unwrap()
        .match_expressions = vec![LabelSelectorRequirement {
        key: "a".into(),
        operator: "Near".into(),
        values: vec![],
    }];
    let refusal = world().with(set).refusal::<ReplicaSets>("web");
    assert_eq!(
        refusal.to_string(),
        "waits for a change: error converting pod selector to selector for rs default/web: \"Near\" is not a valid \
         label selector operator"
    );
}

// ---- what is made ----

#[test]
fn a_pod_is_created_from_the_template_with_an_event() {
    let plan = world().with(web(1)).plan::<ReplicaSets>("web");
    let action = plan.actions().next().unwrap();
    let Verb::Create { body } = &action.verb else {
        panic!("{action}")
    };
    let made = <Pod as prost::Message>::decode(body.as_slice()).unwrap();
    let meta = made.metadata();
    assert!(meta.name.starts_with("web-") && meta.name.len() == 9);
    assert_eq!(meta.generate_name, "web-");
    assert_eq!(meta.label("app"), Some("web"));
    let owner = meta.controller().unwrap();
    assert_eq!(
        (&*owner.kind, &*owner.name, owner.block_owner_deletion),
        ("ReplicaSet", "web", Some(true))
    );
    let announced = action.announcement.as_ref().unwrap();
    let success = announced.success.as_ref().unwrap();
    assert_eq!(
        (&*success.reason, &*success.message),
        ("SuccessfulCreate", &*format!("Created pod: {}", meta.name))
    );
    let failure = announced.failure.as_ref().unwrap();
    assert_eq!(
        (&*failure.reason, &*failure.message),
        ("FailedCreate", "Error creating: ")
    );
    assert_eq!(plan.counted[0].selector.text().unwrap(), "app=web");
    assert_eq!(
        plan.stages.len(),
        1,
        "the status does not wait for the pods"
    );
}

#[test]
fn names_follow_the_newest_child_even_one_that_goes_and_skip_what_others_have() {
    let names = |world: &World| -> Vec<String> {
        world
            .plan::<ReplicaSets>("web")
            .actions()
            .filter(|action| action.verb.name() == "create")
            .map(|action| action.key.name.to_string())
            .collect()
    };
    let all = names(&world().with(web(4)));
    assert_eq!(
        all,
        names(&world().with(web(4))),
        "two replicas choose the same"
    );
    let first = child(&all[0]).terminating("11:59:00");
    assert_eq!(names(&with_children(2, &[first])), all[1..3]);
    let foreign = world()
        .with(web(2))
        .with(pod(&all[0]).label("app", "other"));
    assert_eq!(names(&foreign), all[1..3]);
}

#[test]
fn a_second_owner_that_sees_the_same_adds_nothing() {
    let mut shared = world().with(web(3));
    let plan = shared.plan::<ReplicaSets>("web");
    let late = shared.plan::<ReplicaSets>("web");
    shared.apply(&plan).expect_success();
    let failures = shared.apply(&late);
    let creations: Vec<_> = failures
        .0
        .iter()
        .filter(|(action, _)| action.verb.name() == "create")
        .collect();
    assert!(creations.iter().all(|(_, result)| result.is_err()));
    assert_eq!(shared.all::<Pod>().len(), 3);
}

#[test]
fn deletions_are_recorded_and_delete_only_the_pod_that_was_seen() {
    let plan = with_children(0, &[child("a")]).plan::<ReplicaSets>("web");
    let action = plan.actions().next().unwrap();
    assert!(matches!(
        action.verb,
        Verb::Delete {
            only: Only::ThisUid,
            ..
        }
    ));
    let announced = action.announcement.as_ref().unwrap();
    assert_eq!(
        announced.success.as_ref().unwrap().message,
        "Deleted pod: a"
    );
    assert_eq!(
        &*announced.success.as_ref().unwrap().reason,
        "SuccessfulDelete"
    );
    assert_eq!(
        announced.failure.as_ref().unwrap().message,
        "Error deleting: "
    );
    assert_eq!(&*announced.failure.as_ref().unwrap().reason, "FailedDelete");
}

#[test]
fn of_too_many_the_least_useful_go() {
    let children = [
        child("ready").ready("09:00:00"),
        child("unready").running(),
        child("pending").on("node-1"),
        child("unassigned"),
    ];
    for (wanted, expected) in [
        (3, vec!["unassigned"]),
        (2, vec!["unassigned", "pending"]),
        (1, vec!["unassigned", "pending", "unready"]),
    ] {
        assert_eq!(
            deletes(&with_children(wanted, &children).plan::<ReplicaSets>("web")),
            expected
        );
    }
}

#[test]
fn a_node_crowded_by_siblings_gives_up_a_pod_first() {
    let owner = deployment("shop");
    let mine = web(1).owned_by(&owner);
    let sibling = replica_set("old").owned_by(&owner);
    let pods = [
        pod("lone")
            .label("app", "web")
            .owned_by(&mine)
            .on("empty")
            .ready("11:59:00"),
        pod("crowded")
            .label("app", "web")
            .owned_by(&mine)
            .on("full")
            .ready("09:00:00"),
        pod("of-sibling")
            .label("app", "old")
            .owned_by(&sibling)
            .on("full")
            .ready("11:00:00"),
    ];
    let world = |set: ReplicaSet| {
        pods.iter()
            .cloned()
            .fold(world().with(set).with(sibling.clone()), World::with)
    };
    assert_eq!(
        deletes(&world(mine).plan::<ReplicaSets>("web")),
        ["crowded"]
    );
    // Without a common owner there are no siblings, and the youngest goes.
    assert_eq!(deletes(&world(web(1)).plan::<ReplicaSets>("web")), ["lone"]);
}

// ---- adoption ----

#[test]
fn orphans_are_adopted_and_strays_let_go_before_pods_are_counted() {
    let world = world()
        .with(web(2))
        .with(pod("orphan").label("app", "web"))
        .with(child("stray").label("app", "db"))
        .with(
            pod("foreign")
                .label("app", "web")
                .owned_by(&replica_set("other")),
        )
        .with(pod("ended").label("app", "web").phase("Failed"))
        .with(pod("going").label("app", "web").terminating("11:59:00"));
    let plan = world.plan::<ReplicaSets>("web");
    let mut verbs = plan.verbs();
    verbs.sort();
    assert_eq!(verbs, ["patch pods/orphan", "patch pods/stray"]);
    let mut world = world;
    world.settle(REPLICA_SETS);
    assert_eq!(
        world
            .get::<Pod>("orphan")
            .metadata()
            .controller()
            .unwrap()
            .name,
        "web"
    );
    assert!(world.get::<Pod>("stray").metadata().controller().is_none());
    let own = world
        .all::<Pod>()
        .iter()
        .filter(|pod| {
            pod.metadata()
                .controller()
                .is_some_and(|owner| owner.name == *"web")
        })
        .count();
    assert_eq!(own, 2);
}

#[test]
fn an_orphan_wakes_those_that_select_it_and_only_on_news() {
    let world = world().with(web(1)).with(replica_set("other"));
    let orphan = pod("orphan").label("app", "web");
    let relabelled = pod("orphan").label("app", "other");
    let going = orphan.clone().terminating("11:59:00");
    let owned = child("orphan");
    for (what, old, new, expected) in [
        ("new", None, Some(&orphan), 1),
        ("only its status changed", Some(&orphan), Some(&orphan), 0),
        ("its labels changed", Some(&relabelled), Some(&orphan), 1),
        ("its controller let go", Some(&owned), Some(&orphan), 1),
        ("it has a controller", None, Some(&owned), 0),
        ("it goes", None, Some(&going), 0),
        ("it is gone", Some(&orphan), None, 0),
    ] {
        let keys = controllers_kit::owners::adopters::<ReplicaSet, Pod>(
            &controllers_kit::Change { old, new },
            &world,
            |set| set.spec.as_ref()?.selector.as_ref(),
        );
        assert_eq!(keys.len(), expected, "{what}: {keys:?}");
    }
}

// ---- status ----

#[test]
fn the_status_counts_what_there_is() {
    let children = [
        child("a").ready("11:00:00").label("more", "1"),
        child("b").ready("11:59:50"),
        child("c").running(),
        child("d").terminating("11:59:00"),
        child("e").terminating("11:59:00").phase("Failed"),
    ];
    let mut set = web(3).min_ready(30).generation(4);
    set.spec
        .as_mut()
        .unwrap()
        .template
        .as_mut()
        .unwrap()
        .metadata
        .as_mut()
        .unwrap()
        .set_label("more", "1");
    let world = children
        .iter()
        .cloned()
        .fold(world().with(set), World::with);
    let plan = world.plan::<ReplicaSets>("web");
    assert_eq!(
        status(&plan),
        json!({
            "replicas": 3,
            "fullyLabeledReplicas": 1,
            "readyReplicas": 2,
            "availableReplicas": 1,
            "terminatingReplicas": 1,
            "observedGeneration": 4,
        })
    );
    assert_eq!(
        plan.requeue,
        Requeue::At(at("12:00:20")),
        "then b is available"
    );
}

#[test]
fn at_rest_nothing_is_planned_or_requeued() {
    let mut world = world().with(web(3).min_ready(10));
    world.settle_for(60, REPLICA_SETS);
    let plan = world.plan::<ReplicaSets>("web");
    assert_eq!(plan, Plan::nothing());
    assert_eq!(world.all::<Pod>().len(), 3);
    let status = world.get::<ReplicaSet>("web").status.clone().unwrap();
    assert_eq!((status.replicas, status.available_replicas), (3, 3));
}

#[test]
fn a_size_that_stays_still_reports_its_new_generation() {
    let mut world = world().with(web(1));
    world.settle(REPLICA_SETS);
    for replicas in [2, 1] {
        world.change("web", |set: &mut ReplicaSet| {
            set.spec.as_mut().unwrap().replicas = Some(replicas);
        });
    }
    let generation = world.get::<ReplicaSet>("web").metadata().generation;
    assert_eq!(
        status(&world.plan::<ReplicaSets>("web")),
        json!({"observedGeneration": generation})
    );
}

// ---- failure ----

fn learn(plan: &Plan, results: &[Result<Written, Failure>], memory: &mut Memory) {
    for (action, result) in plan.actions().zip(results) {
        let result = result.as_ref().cloned();
        memory.learn(&Outcome { action, result });
    }
}

#[test]
fn a_failure_is_reported_until_an_attempt_succeeds() {
    let mut world = world().with(web(2));
    let mut memory = Memory::default();
    let plan = world.plan_with::<ReplicaSets>("web", &mut memory).unwrap();
    let quota = || {
        Err(Failure::Forbidden(
            "pods \"x\" is forbidden: exceeded quota".into(),
        ))
    };
    learn(&plan, &[quota(), Ok(Written::default())], &mut memory);
    let plan = world.plan_with::<ReplicaSets>("web", &mut memory).unwrap();
    assert_eq!(
        creates(&plan),
        2,
        "it is tried again at once; back-off is the node's"
    );
    let conditions = status(&plan)["conditions"].clone();
    assert_eq!(
        conditions,
        json!([{
            "type": "ReplicaFailure", "status": "True", "reason": "FailedCreate",
            "message": "pods \"x\" is forbidden: exceeded quota", "lastTransitionTime": "2026-03-02T12:00:00Z",
        }])
    );
    world.change("web", |set: &mut ReplicaSet| {
        set.status.as_mut().unwrap().conditions = serde_json::from_value(conditions).unwrap();
    });
    // A new owner has not tried yet: the condition stays.
    let plan = world.plan::<ReplicaSets>("web");
    assert!(
        status(&plan).get("conditions").is_none(),
        "{}",
        status(&plan)
    );
    learn(
        &plan,
        &[Ok(Written::default()), Ok(Written::default())],
        &mut memory,
    );
    // Another failure reports nothing new.
    let mut failing = memory.clone();
    failing.attempt = Attempt::Failed {
        reason: "FailedCreate".into(),
        message: "another".into(),
    };
    let plan = world.plan_with::<ReplicaSets>("web", &mut failing).unwrap();
    assert!(status(&plan).get("conditions").is_none());
    // One that succeeded takes it back.
    let mut succeeded = Memory {
        attempt: Attempt::Succeeded,
        has_failed: false,
    };
    let plan = world
        .plan_with::<ReplicaSets>("web", &mut succeeded)
        .unwrap();
    assert_eq!(status(&plan)["conditions"], Value::Null);
    assert!(
        status(&plan)
            .as_object()
            .unwrap()
            .contains_key("conditions")
    );
}

#[test]
fn a_status_write_knows_whether_another_will_follow() {
    let ready = |name: &str| child(name).ready("11:30:00");
    let unready = |name: &str| child(name);
    for (what, wanted, children, report) in [
        (
            "as many as wanted",
            2,
            vec![ready("a"), ready("b")],
            StatusWrite::Observed,
        ),
        (
            "one not available",
            2,
            vec![ready("a"), unready("b")],
            StatusWrite::Progress,
        ),
        (
            "one missing",
            3,
            vec![ready("a"), ready("b")],
            StatusWrite::Progress,
        ),
        (
            "one too many",
            1,
            vec![ready("a"), ready("b")],
            StatusWrite::Progress,
        ),
    ] {
        let plan = with_children(wanted, &children).plan::<ReplicaSets>("web");
        let written = plan
            .actions()
            .find(|action| action.rbac_resource() == "replicasets/status")
            .map(controllers_kit::Action::report);
        assert_eq!(written, Some(report), "{what}");
    }
}

#[test]
fn a_failure_is_taken_back_when_nothing_is_left_to_do() {
    let failure = ReplicaSetCondition {
        r#type: "ReplicaFailure".into(),
        status: "True".into(),
        reason: "FailedCreate".into(),
        ..Default::default()
    };
    for (what, set) in [
        ("enough pods", web(1)),
        (
            "it goes",
            web(3).finalizer("orphan").terminating("11:59:00"),
        ),
    ] {
        let mut set = set;
        set.status.as_mut().unwrap().conditions = vec![failure.clone()];
        let mut memory = Memory {
            attempt: Attempt::Failed {
                reason: "FailedCreate".into(),
                message: "x".into(),
            },
            has_failed: true,
        };
        let plan = world()
            .with(set)
            .with(child("a"))
            .plan_with::<ReplicaSets>("web", &mut memory)
            .unwrap();
        assert!(
            status(&plan).as_object().unwrap()["conditions"].is_null(),
            "{what}"
        );
    }
}

#[test]
fn only_what_failed_in_truth_counts_as_a_failure() {
    let plan = with_children(0, &[child("a")]).plan::<ReplicaSets>("web");
    let creation = world().with(web(1)).plan::<ReplicaSets>("web");
    let failed = |reason: &str, message: &str| Attempt::Failed {
        reason: reason.into(),
        message: message.into(),
    };
    let text = || "boom".to_owned();
    for (what, plan, result, expected) in [
        (
            "a create that worked",
            &creation,
            Ok(Written::default()),
            Attempt::Succeeded,
        ),
        (
            "a create without permission",
            &creation,
            Err(Failure::Forbidden(text())),
            failed("FailedCreate", "boom"),
        ),
        (
            "an invalid one",
            &creation,
            Err(Failure::Invalid(text())),
            failed("FailedCreate", "boom"),
        ),
        (
            "one without an answer",
            &creation,
            Err(Failure::Timeout(text())),
            failed("FailedCreate", "boom"),
        ),
        (
            "one without a namespace",
            &creation,
            Err(Failure::NotFound(text())),
            failed("FailedCreate", "boom"),
        ),
        (
            "one in a namespace that goes",
            &creation,
            Err(Failure::NamespaceTerminating(text())),
            Attempt::Succeeded,
        ),
        (
            "one that is there already",
            &creation,
            Err(Failure::AlreadyExists(text())),
            Attempt::Unknown,
        ),
        (
            "one that was not sent",
            &creation,
            Err(Failure::Fenced),
            Attempt::Unknown,
        ),
        (
            "one that was not tried",
            &creation,
            Err(Failure::Skipped),
            Attempt::Unknown,
        ),
        (
            "a delete without permission",
            &plan,
            Err(Failure::Forbidden(text())),
            failed("FailedDelete", "unable to delete pods: boom"),
        ),
        (
            "a delete of what is gone",
            &plan,
            Err(Failure::NotFound(text())),
            Attempt::Succeeded,
        ),
        (
            "a delete of another pod",
            &plan,
            Err(Failure::Conflict(text())),
            Attempt::Unknown,
        ),
    ] {
        let mut memory = Memory::default();
        learn(plan, &[result], &mut memory);
        assert_eq!(memory.attempt, expected, "{what}");
    }
}

#[test]
fn a_namespace_that_goes_gets_no_pods_and_no_condition() {
    let mut world = world()
        .with(namespace("default").ending("11:59:00"))
        .with(web(2));
    let mut memory = Memory::default();
    let plan = world.plan_with::<ReplicaSets>("web", &mut memory).unwrap();
    let applied = world.apply(&plan);
    for (action, result) in &applied.0 {
        let result = result.as_ref().cloned();
        memory.learn(&Outcome { action, result });
    }
    let plan = world.plan_with::<ReplicaSets>("web", &mut memory).unwrap();
    assert!(status(&plan).get("conditions").is_none());
    assert!(world.all::<Pod>().is_empty());
}

#[test]
fn memory_travels() {
    let memory = Memory {
        attempt: Attempt::Failed {
            reason: "FailedCreate".into(),
            message: "quota".into(),
        },
        has_failed: true,
    };
    let bytes = serde_json::to_vec(&memory).unwrap();
    assert_eq!(serde_json::from_slice::<Memory>(&bytes).unwrap(), memory);
}

#[test]
fn the_descriptor_names_what_upstream_names() {
    let descriptor = ReplicaSets::describe();
    assert_eq!(descriptor.name, "replicaset-controller");
    assert_eq!(descriptor.aliases, ["replicaset"]);
    assert_eq!(descriptor.queue, "replicaset");
    assert_eq!(descriptor.workers, Some(("concurrent-replicaset-syncs", 5)));
}

#[test]
fn a_scale_down_measures_how_old_those_are_that_go() {
    let set = replica_set("web").replicas(1);
    let child = |name: &str, created: &str| {
        pod(name)
            .label("app", "web")
            .owned_by(&set)
            .created(created)
            .ready(created)
    };
    let world = World::at("12:00:00")
        .with(set.clone())
        .with(child("web-a", "11:59:00"))
        .with(child("web-b", "11:59:30"))
        .with(child("web-c", "11:30:00"));
    let plan = world.plan::<ReplicaSets>("web");
    assert_eq!(plan.verbs().len(), 3, "{:?}", plan.verbs());
    let ratios: Vec<f64> = plan.measures.iter().map(|measure| measure.value).collect();
    assert_eq!(ratios, [1.0, 2.0]);
    // Where all go there is nothing to choose.
    let none = World::at("12:00:00")
        .with(replica_set("web").replicas(0))
        .with(child("web-a", "11:59:00"));
    assert!(none.plan::<ReplicaSets>("web").measures.is_empty());
}

#[test]
fn a_lost_ready_pod_is_reported_at_once() {
    let ready = |name: &str| child(name).ready("11:30:00");
    let mut world = with_children(3, &[ready("a"), ready("b"), ready("c")]);
    world.settle(REPLICA_SETS);
    for (what, state, report) in [
        (
            "one is not ready any more",
            child("a").running(),
            StatusWrite::No,
        ),
        (
            "nothing but the generation",
            ready("a"),
            StatusWrite::Observed,
        ),
    ] {
        let mut world = world.clone();
        world.change("a", |pod: &mut Pod| pod.status = state.status);
        world.change("web", |set: &mut ReplicaSet| {
            set.spec.as_mut().unwrap().min_ready_seconds = 1;
        });
        let plan = world.plan::<ReplicaSets>("web");
        let written = plan
            .actions()
            .find(|action| action.rbac_resource() == "replicasets/status")
            .map(controllers_kit::Action::report);
        assert_eq!(written, Some(report), "{what}");
    }
}

// ---- feature gates ----

#[test]
fn terminating_pods_are_counted_where_the_gate_is_on() {
    let going = child("b").terminating("11:59:50");
    let world = with_children(1, &[child("a").ready("11:30:00"), going]).without_kubelets();
    for (on, counted) in [(true, json!(1)), (false, Value::Null)] {
        let world = world
            .clone()
            .flag(TERMINATING_REPLICAS, FlagValue::Bool(on));
        let status = status(&world.plan::<ReplicaSets>("web"));
        assert_eq!(status["terminatingReplicas"], counted, "gate {on}");
    }
    // What was counted while it was on is taken away.
    let mut world = world;
    world.run::<ReplicaSets>();
    let world = world.flag(TERMINATING_REPLICAS, FlagValue::Bool(false));
    assert_eq!(
        status(&world.plan::<ReplicaSets>("web")),
        json!({"terminatingReplicas": null})
    );
}

#[test]
fn the_cost_of_a_deletion_counts_where_the_gate_is_on() {
    let ready = |name: &str, since: &str| child(name).ready(since);
    let mut costly = ready("costly", "11:59:00");
    costly
        .metadata_mut()
        .set_annotation("controller.kubernetes.io/pod-deletion-cost", "100");
    let world = with_children(1, &[costly, ready("old", "11:00:00")]);
    for (on, goes) in [(true, "old"), (false, "costly")] {
        let world = world.clone().flag(POD_DELETION_COST, FlagValue::Bool(on));
        assert_eq!(
            deletes(&world.plan::<ReplicaSets>("web")),
            [goes],
            "gate {on}"
        );
    }
}
