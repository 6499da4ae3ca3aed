use controllers_kit::{
    Controller as _, Factory, Failure, FlagValue, Flags, Outcome, Plan, Requeue, SignedDuration,
    Written, testing::*,
};
use kubernetes_proto::{
    Object,
    core::{Node, Pod, Taint, Toleration},
};

use super::{Memory, TaintEviction};

const TAINT: &str = "down";

fn tainted(name: &str) -> Node {
    node(name).taint(TAINT, "", "NoExecute")
}

/// A toleration of all values of a taint, forever or for some seconds.
pub(crate) fn bearing(mut pod: Pod, key: &str, seconds: Option<i64>) -> Pod {
    let toleration = Toleration {
        key: key.to_owned(),
        operator: "Exists".to_owned(),
        value: String::new(),
        effect: "NoExecute".to_owned(),
        toleration_seconds: seconds,
    };
    pod.spec
        .get_or_insert_default()
        .tolerations
        .push(toleration.into());
    pod
}

fn on_node(name: &str) -> Pod {
    pod(name).on("n1").ready("11:00:00")
}

fn start() -> World {
    World::at("12:00:00").without_kubelets()
}

fn run(world: &mut World, seconds: i64) {
    world.settle_for(seconds, &[Factory::of::<TaintEviction>()]);
}

/// Pods that are there and not being deleted.
fn staying(world: &World) -> Vec<String> {
    let pods = world.all::<Pod>();
    pods.iter()
        .filter(|pod| !pod.is_terminating())
        .map(|pod| Object::metadata(&**pod).name.to_string())
        .collect()
}

fn marking(pod: &str) -> String {
    format!("Normal TaintManagerEviction Marking for deletion Pod default/{pod}")
}

fn cancelling(pod: &str) -> String {
    format!("Normal TaintManagerEviction Cancelling deletion of Pod default/{pod}")
}

#[test]
fn the_time_that_pods_stay_on_a_tainted_node() {
    for (name, pod, until) in [
        ("not bound", bearing(pod("web"), "other", None), None),
        ("on another node", pod("web").on("n2"), None),
        ("bears nothing", on_node("web"), Some(0)),
        (
            "bears another taint",
            bearing(on_node("web"), "other", None),
            Some(0),
        ),
        (
            "bears it forever",
            bearing(on_node("web"), TAINT, None),
            None,
        ),
        (
            "bears it for a minute",
            bearing(on_node("web"), TAINT, Some(60)),
            Some(60),
        ),
        (
            "bears it for no time",
            bearing(on_node("web"), TAINT, Some(0)),
            Some(0),
        ),
        (
            "bears it for less than no time",
            bearing(on_node("web"), TAINT, Some(-5)),
            Some(0),
        ),
        ("bears all taints", bearing(on_node("web"), "", None), None),
        (
            "is judged by the first that fits",
            bearing(bearing(on_node("web"), TAINT, Some(20)), "", None),
            Some(20),
        ),
        ("has ended", on_node("web").phase("Succeeded"), Some(0)),
    ] {
        let mut world = start().with(tainted("n1")).with(node("n2")).with(pod);
        match until {
            None => {
                run(&mut world, 1000);
                assert_eq!(staying(&world), ["web"], "{name}");
                assert!(world.events().is_empty(), "{name}");
            }
            Some(seconds) => {
                if seconds > 0 {
                    run(&mut world, seconds - 1);
                    assert_eq!(staying(&world), ["web"], "{name}");
                }
                run(&mut world, 1);
                assert!(staying(&world).is_empty(), "{name}");
                assert_eq!(world.events(), [marking("web")], "{name}");
            }
        }
    }
}

#[test]
fn taints_of_other_effects_drive_nobody_away() {
    for effect in ["NoSchedule", "PreferNoSchedule"] {
        let mut world = start()
            .with(node("n1").taint(TAINT, "", effect))
            .with(on_node("web"));
        run(&mut world, 100);
        assert_eq!(staying(&world), ["web"]);
    }
}

#[test]
fn of_several_taints_each_must_be_borne_and_the_shortest_time_counts() {
    let both = || tainted("n1").taint("slow", "", "NoExecute");
    for (one, other, until) in [
        (Some(None), None, Some(0)),
        (Some(None), Some(None), None),
        (Some(Some(30)), Some(None), Some(30)),
        (Some(Some(30)), Some(Some(10)), Some(10)),
    ] {
        let mut web = on_node("web");
        for (key, seconds) in [(TAINT, one), ("slow", other)] {
            if let Some(seconds) = seconds {
                web = bearing(web, key, seconds);
            }
        }
        let mut world = start().with(both()).with(web);
        let mut stayed = 0;
        while stayed < 60 && !staying(&world).is_empty() {
            run(&mut world, 1);
            stayed += 1;
        }
        // The first second is over at its first reconcile.
        let expected = until.map_or(60, |seconds: i64| seconds.max(1));
        assert_eq!(stayed, expected, "{one:?} {other:?}");
    }
}

#[test]
fn a_pod_gets_an_event_and_a_condition_and_is_then_deleted_by_its_uid() {
    let mut world = start().with(tainted("n1")).with(on_node("web"));
    let mut memory = Memory::default();
    let plan = world.plan_with::<TaintEviction>("n1", &mut memory).unwrap();
    assert_eq!(plan.verbs(), ["patch pods/web/status"]);
    world.apply(&plan).expect_success();
    let pod = world.get::<Pod>("web");
    let conditions = &pod.status.as_ref().unwrap().conditions;
    let last = conditions.last().unwrap();
    assert_eq!(last.r#type, "DisruptionTarget");
    assert_eq!(last.status, "True");
    assert_eq!(last.reason, "DeletionByTaintManager");
    assert_eq!(
        *last.message,
        *"Taint manager: deleting due to NoExecute taint"
    );
    let plan = world.plan_with::<TaintEviction>("n1", &mut memory).unwrap();
    assert_eq!(plan.verbs(), ["delete pods/web"]);
    assert!(plan.events.is_empty(), "it was recorded once");
    let action = plan.actions().next().unwrap();
    assert_eq!(action.uid, Object::metadata(&*pod).uid);
    let controllers_kit::Verb::Delete {
        grace_period_seconds,
        ..
    } = action.verb
    else {
        panic!("{action}");
    };
    assert_eq!(grace_period_seconds, None, "its own grace period");
    let measured: Vec<_> = action
        .announcement
        .as_ref()
        .unwrap()
        .measures
        .iter()
        .collect();
    assert_eq!(measured[0].name, super::DELETIONS);
    assert_eq!((measured[1].name, measured[1].value), (super::LATENCY, 0.0));
}

#[test]
fn a_pod_that_does_not_bear_the_taint_is_marked_at_once_whatever_its_timer() {
    let mut world = start()
        .with(tainted("n1"))
        .with(bearing(on_node("web"), TAINT, Some(300)));
    let mut memory = Memory::default();
    let plan = world.plan_with::<TaintEviction>("n1", &mut memory).unwrap();
    assert_eq!(plan.requeue, Requeue::At(at("12:05:00")));
    world.change::<Node>("n1", |node| {
        node.spec.as_mut().unwrap().taints.push(Taint {
            key: "worse".to_owned(),
            effect: "NoExecute".to_owned(),
            ..Taint::default()
        });
    });
    let plan = world.plan_with::<TaintEviction>("n1", &mut memory).unwrap();
    world.apply(&plan).expect_success();
    assert_eq!(world.events(), [cancelling("web"), marking("web")]);
}

#[test]
fn a_deletion_is_cancelled_when_the_taint_or_the_pod_goes() {
    let waiting = || {
        let world = start()
            .with(tainted("n1"))
            .with(bearing(on_node("web"), TAINT, Some(60)));
        let mut memory = Memory::default();
        world.plan_with::<TaintEviction>("n1", &mut memory).unwrap();
        (world.later(10), memory)
    };
    type Change = fn(&mut World);
    let changes: [(&str, Change); 3] = [
        ("untainted", |world| {
            world.change::<Node>("n1", |node| node.spec.as_mut().unwrap().taints.clear());
        }),
        ("gone", |world| world.vanish::<Pod>("web")),
        ("being deleted", |world| world.delete::<Pod>("web")),
    ];
    for (name, change) in changes {
        let (mut world, mut memory) = waiting();
        change(&mut world);
        let plan = world.plan_with::<TaintEviction>("n1", &mut memory).unwrap();
        assert!(plan.verbs().is_empty(), "{name}");
        world.apply(&plan).expect_success();
        assert_eq!(world.events(), [cancelling("web")], "{name}");
        assert_eq!(memory, Memory::default(), "{name}");
    }
    // A deletion that was recorded is not cancelled when the pod is gone.
    let (world, mut memory) = waiting();
    let mut world = world.later(60);
    let plan = world.plan_with::<TaintEviction>("n1", &mut memory).unwrap();
    world.apply(&plan).expect_success();
    world.vanish::<Pod>("web");
    let plan = world.plan_with::<TaintEviction>("n1", &mut memory).unwrap();
    assert!(plan.events.is_empty());
}

#[test]
fn a_longer_toleration_does_not_help_and_the_timer_of_a_node_that_is_gone_runs_on() {
    let mut world = start()
        .with(tainted("n1"))
        .with(bearing(on_node("web"), TAINT, Some(60)));
    let mut memory = Memory::default();
    let again = |world: &World, memory: &mut Memory| {
        let plan = world.plan_with::<TaintEviction>("n1", memory).unwrap();
        plan.requeue
    };
    assert_eq!(again(&world, &mut memory), Requeue::At(at("12:01:00")));
    world.change::<Pod>("web", |pod| {
        pod.spec.as_mut().unwrap().tolerations[0].toleration_seconds = Some(600);
    });
    assert_eq!(again(&world, &mut memory), Requeue::At(at("12:01:00")));
    world.change::<Pod>("web", |pod| {
        pod.spec.as_mut().unwrap().tolerations[0].toleration_seconds = Some(30);
    });
    assert_eq!(again(&world, &mut memory), Requeue::At(at("12:00:30")));
    world.vanish::<Node>("n1");
    assert_eq!(again(&world, &mut memory), Requeue::At(at("12:00:30")));
    let then = world.later(30);
    let plan = then.plan_with::<TaintEviction>("n1", &mut memory).unwrap();
    assert_eq!(plan.verbs(), ["patch pods/web/status"]);
}

#[test]
fn a_timer_is_not_moved_by_how_exactly_an_age_is_measured() {
    let world = start()
        .with(tainted("n1"))
        .with(bearing(on_node("web"), TAINT, Some(60)));
    for (millis, moved) in [(1, false), (500, false), (999, false), (1000, true)] {
        let mut memory = Memory::default();
        world.plan_with::<TaintEviction>("n1", &mut memory).unwrap();
        let later = at("12:01:00") + SignedDuration::from_millis(millis);
        memory.timers.values_mut().next().unwrap().at = later;
        let plan = world.plan_with::<TaintEviction>("n1", &mut memory).unwrap();
        let expected = if moved { at("12:01:00") } else { later };
        assert_eq!(plan.requeue, Requeue::At(expected), "{millis} ms");
    }
}

#[test]
fn a_timer_survives_the_loss_of_its_memory() {
    let world = start()
        .with(tainted("n1"))
        .with(bearing(on_node("old"), TAINT, Some(60)));
    let mut world = world.later(20);
    // This one was scheduled to the tainted node later, so its time begins later.
    world.put(bearing(on_node("new"), TAINT, Some(60)));
    let world = world.later(10);
    let plan = world.plan::<TaintEviction>("n1");
    assert_eq!(plan.requeue, Requeue::At(at("12:01:00")));
    let then = world.later(30);
    let plan = then.plan::<TaintEviction>("n1");
    assert_eq!(plan.verbs(), ["patch pods/old/status"]);
    assert_eq!(plan.requeue, Requeue::At(at("12:01:20")));
}

#[test]
fn a_handed_over_timer_is_moved_with_the_clocks() {
    use controllers_kit::{Controller, Flags, SignedDuration};
    let world = start()
        .with(tainted("n1"))
        .with(bearing(on_node("web"), TAINT, Some(60)));
    let mut memory = Memory::default();
    world.plan_with::<TaintEviction>("n1", &mut memory).unwrap();
    let flags = Flags::defaults([&TaintEviction::describe()]);
    TaintEviction::new(&flags).shift(&mut memory, SignedDuration::from_secs(-30));
    assert_eq!(memory.timers.values().next().unwrap().at, at("12:00:30"));
}

#[test]
fn a_pod_that_moves_onto_or_comes_to_a_tainted_node_and_a_node_that_comes_late() {
    let mut world = start().with(tainted("n1")).with(pod("web"));
    run(&mut world, 10);
    assert_eq!(staying(&world), ["web"]);
    world.change::<Pod>("web", |pod| {
        pod.spec.get_or_insert_default().node_name = "n1".into();
    });
    run(&mut world, 1);
    assert!(staying(&world).is_empty());
    // The pod was seen before its node.
    let mut world = start().with(on_node("web"));
    run(&mut world, 10);
    assert_eq!(staying(&world), ["web"]);
    world.put(tainted("n1"));
    run(&mut world, 1);
    assert!(staying(&world).is_empty());
}

/// What the controller learns of a plan whose writes to some pods are refused, by a webhook say.
fn refuse(world: &mut World, plan: &Plan, memory: &mut Memory, refused: &str) {
    let controller = TaintEviction::new(&Flags::defaults([&TaintEviction::describe()]));
    let failure = Failure::Forbidden("a webhook says no".to_owned());
    for action in plan.actions() {
        let result = match *action.key.name == *refused {
            true => Err(&failure),
            false => Ok(Written::default()),
        };
        controller.learn(&Outcome { action, result }, memory);
    }
    let mut allowed = plan.clone();
    for stage in &mut allowed.stages {
        stage.retain(|action| *action.key.name != *refused);
    }
    world.apply(&allowed).expect_success();
}

#[test]
fn a_pod_whose_eviction_is_refused_delays_no_other_and_is_tried_again() {
    let mut world = start()
        .with(tainted("n1"))
        .with(on_node("stuck"))
        .with(bearing(on_node("later"), TAINT, Some(60)));
    let mut memory = Memory::default();
    let mut tries = Vec::new();
    let mut deleted = None;
    // Each millisecond of the first second, then each second: when the key would be planned at the latest.
    let mut millis = 0;
    while millis < 400_000 {
        let mut now = world.clone();
        now.advance_to(at("12:00:00") + SignedDuration::from_millis(millis));
        let plan = now.plan_with::<TaintEviction>("n1", &mut memory).unwrap();
        let verbs = plan.verbs();
        if verbs.contains(&"patch pods/stuck/status".to_owned()) {
            tries.push(millis);
        }
        if verbs.contains(&"delete pods/later".to_owned()) {
            deleted.get_or_insert(millis);
        }
        refuse(&mut world, &plan, &mut memory, "stuck");
        millis += if millis < 1000 { 1 } else { 500 };
    }
    let deleted = deleted.expect("it goes when its time is over");
    assert!((60_000..=61_000).contains(&deleted), "{deleted}");
    // 5 ms, doubled each time.
    assert!((12..=20).contains(&tries.len()), "{tries:?}");
    assert!(
        tries.last().is_some_and(|last| *last > 100_000),
        "{tries:?}"
    );
    assert_eq!(
        world
            .events()
            .iter()
            .filter(|one| **one == marking("stuck"))
            .count(),
        1
    );
}

#[test]
fn tolerations_that_compare_numbers_need_their_gate() {
    let mut web = on_node("web");
    let toleration = Toleration {
        key: "load".to_owned(),
        operator: "Lt".to_owned(),
        value: "50".to_owned(),
        effect: "NoExecute".to_owned(),
        toleration_seconds: None,
    };
    web.spec
        .get_or_insert_default()
        .tolerations
        .push(toleration.into());
    for (gate, stays) in [(false, false), (true, true)] {
        let mut world = start()
            .flag("TaintTolerationComparisonOperators", FlagValue::Bool(gate))
            .with(node("n1").taint("load", "40", "NoExecute"))
            .with(web.clone());
        run(&mut world, 10);
        assert_eq!(!staying(&world).is_empty(), stays, "gate {gate}");
    }
}

#[test]
fn pods_that_are_being_deleted_already_are_left_alone() {
    let world = start()
        .with(tainted("n1"))
        .with(on_node("web").terminating("11:59:00"));
    assert!(world.plan::<TaintEviction>("n1").is_nothing());
}
