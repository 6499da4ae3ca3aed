//! Changes of owner, crashes, conflicts: nothing shrinks early, nothing moves faster than policies allow, no
//! newer decision is overwritten.

use controllers_kit::{
    Answer, Controller as _, Factory, Failure, FlagValue, Outcome,
    testing::{World, contract},
};
use kubernetes_proto::{apps::Deployment, autoscaling::HorizontalPodAutoscaler};
use serde_json::{Value, json};

use super::{
    super::{HorizontalPodAutoscalers, Memory, history::ANNOTATION},
    parts::{Life, QUEUE, USAGE, autoscaler, cpu, queue, usage, values, world},
};
use crate::REGISTRY;

const FACTORY: Factory = Factory::of::<HorizontalPodAutoscalers>();

fn window(world: World, seconds: u64) -> World {
    world.flag(
        "horizontal-pod-autoscaler-downscale-stabilization",
        FlagValue::Duration(std::time::Duration::from_secs(seconds)),
    )
}

fn with_behavior(behavior: Value) -> HorizontalPodAutoscaler {
    let mut hpa = autoscaler(json!([queue()]));
    hpa.spec.as_mut().unwrap().behavior = Some(serde_json::from_value(behavior).unwrap());
    hpa
}

/// xorshift, as the contract's dice.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

#[test]
fn a_scaling_given_up_when_the_fence_closed_counts_if_it_has_happened() {
    for happened in [true, false] {
        let start = world(8)
            .with(with_behavior(json!({"scaleDown": {
                "stabilizationWindowSeconds": 0,
                "policies": [{"type": "Pods", "value": 2, "periodSeconds": 60}],
            }})))
            .serving(QUEUE, values(&["20"]));
        let mut life = Life::of(start);
        let mut scale = None;
        for _ in 0..120 {
            let plan = life
                .world
                .plan_with::<HorizontalPodAutoscalers>("web", &mut life.memory)
                .unwrap();
            scale = plan
                .actions()
                .find(|action| action.rbac_resource() == "deployments/scale")
                .cloned();
            if scale.is_some() {
                break;
            }
            life.apply(&plan);
            if plan.requeue != controllers_kit::Requeue::Now {
                life.world = life.world.later(1);
            }
        }
        let scale = scale.expect("it shrinks within its first two periods");
        if happened {
            let mut sent = controllers_kit::Plan::nothing();
            sent.act(scale.clone());
            life.world.apply(&sent).expect_success();
        }
        let flags = life.world.flags([&HorizontalPodAutoscalers::describe()]);
        let outcome = Outcome {
            action: &scale,
            result: Err(&Failure::Fenced),
        };
        HorizontalPodAutoscalers::new(&flags).learn(&outcome, &mut life.memory);
        life.pass(40);
        assert_eq!(life.size(), 6, "happened: {happened}");
    }
}

#[test]
fn nothing_shrinks_before_the_window_is_over_under_any_owner() {
    // A falling load; the owner changes at random, with a handoff or without, in 100 runs.
    for seed in 1..=100u64 {
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let start = window(world(8), 60)
            .with(autoscaler(json!([queue()])))
            .serving(QUEUE, values(&["80"]));
        let mut life = Life::of(start);
        life.pass(40);
        assert_eq!(life.size(), 8);
        life.world
            .serve(QUEUE, Answer::Object(values(&["20"]).into()));
        // The last evaluation before this instant may still have recommended 8.
        let (mut crashes, mut since_crash) = (0, 0);
        for second in 1..=45 {
            if dice.below(3) == 0 {
                life.hand_over();
            }
            if dice.below(20) == 0 {
                life.crash();
                (crashes, since_crash) = (crashes + 1, second);
            }
            life.pass(1);
            assert_eq!(
                life.size(),
                8,
                "seed {seed}, second {second}, {crashes} crashes"
            );
        }
        // A crash puts it off by one window at most; moves alone by nothing.
        let bound = if crashes == 0 {
            45
        } else {
            since_crash + 60 + 16
        };
        life.pass(bound.max(16));
        assert_eq!(life.size(), 2, "seed {seed}, {crashes} crashes");
    }
}

#[test]
fn nothing_moves_faster_than_policies_allow_under_any_owner() {
    let behavior = json!({"scaleDown": {
        "stabilizationWindowSeconds": 0, "selectPolicy": "Max",
        "policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}]
    }, "scaleUp": {
        "stabilizationWindowSeconds": 0, "selectPolicy": "Max",
        "policies": [{"type": "Pods", "value": 2, "periodSeconds": 60}]
    }});
    for seed in 1..=60u64 {
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let start = world(5)
            .with(with_behavior(behavior.clone()))
            .serving(QUEUE, values(&["10"]));
        let mut life = Life::of(start);
        let mut sizes = vec![life.size()];
        for second in 1..=240usize {
            if second == 121 {
                life.world
                    .serve(QUEUE, Answer::Object(values(&["100"]).into()));
            }
            match dice.below(12) {
                0 => life.crash(),
                1 | 2 => life.hand_over(),
                _ => {}
            }
            life.pass(1);
            sizes.push(life.size());
            // At each change, a policy compares with the size a period ago.
            let changed = sizes[second] != sizes[second - 1];
            let moved = sizes[second] - sizes[second.saturating_sub(60)];
            assert!(
                !changed || (-1..=2).contains(&moved),
                "seed {seed}: {moved} in the minute to {second}"
            );
        }
        assert!(
            sizes[120] < 5 && sizes[240] > sizes[120],
            "seed {seed}: it moves at all"
        );
    }
}

#[test]
fn a_crash_between_the_scaling_and_its_status_is_counted() {
    let behavior = json!({"scaleDown": {
        "stabilizationWindowSeconds": 0,
        "policies": [{"type": "Pods", "value": 1, "periodSeconds": 60}]
    }});
    let start = world(5)
        .with(with_behavior(behavior))
        .serving(QUEUE, values(&["10"]));
    let mut life = Life::of(start);
    life.pass(16);
    assert_eq!(life.size(), 4);
    let kept = life.hpa();
    let note = kept
        .metadata
        .as_ref()
        .unwrap()
        .annotation(ANNOTATION)
        .unwrap()
        .to_owned();
    assert!(note.starts_with("-1@"), "{note}");
    life.pass(60);
    assert_eq!(life.size(), 3);
    // As if the last status had never been written.
    life.world.change::<HorizontalPodAutoscaler>("web", |hpa| {
        hpa.status.clone_from(&kept.status);
        hpa.metadata
            .as_mut()
            .unwrap()
            .set_annotation(ANNOTATION, &note);
    });
    life.crash();
    life.pass(60);
    assert_eq!(life.size(), 3, "counted from when it was found");
    life.pass(31);
    assert_eq!(life.size(), 2);
}

#[test]
fn without_a_behavior_no_annotation_is_kept() {
    let mut life = Life::of(
        world(2)
            .with(autoscaler(json!([queue()])))
            .serving(QUEUE, values(&["90"])),
    );
    life.pass(16);
    assert_eq!(life.size(), 4);
    assert!(life.hpa().metadata.as_ref().unwrap().annotations.is_empty());
}

/// Plans until something is written; the plan, not yet applied.
fn next_writing(life: &mut Life) -> controllers_kit::Plan {
    for _ in 0..200 {
        let plan = life
            .world
            .plan_with::<HorizontalPodAutoscalers>("web", &mut life.memory)
            .unwrap();
        if plan.verbs().len() == 2 {
            return plan;
        }
        life.apply(&plan);
        if plan.requeue != controllers_kit::Requeue::Now {
            life.world = life.world.later(1);
        }
    }
    panic!("it never scales");
}

#[test]
fn a_newer_decision_is_not_overwritten() {
    let start = world(2)
        .with(autoscaler(json!([queue()])))
        .serving(QUEUE, values(&["40"]));
    let mut life = Life::of(start);
    let plan = next_writing(&mut life);
    assert_eq!(
        plan.verbs(),
        [
            "patch deployments/web/scale",
            "patch horizontalpodautoscalers/web/status"
        ]
    );
    // A user has scaled meanwhile.
    life.world.change::<Deployment>("web", |web| {
        web.spec.as_mut().unwrap().replicas = Some(9);
    });
    let applied = life.world.apply(&plan);
    assert!(matches!(applied.0[0].1, Err(Failure::Conflict(_))));
    assert!(matches!(applied.0[1].1, Err(Failure::Skipped)));
    let controller =
        HorizontalPodAutoscalers::new(&life.world.flags([&HorizontalPodAutoscalers::describe()]));
    for (action, result) in &applied.0 {
        let result = result.as_ref().cloned();
        controller.learn(&Outcome { action, result }, &mut life.memory);
    }
    assert_eq!(life.size(), 9);
    // It is decided again at once, on what is there.
    let verbs = life.step();
    assert_eq!(verbs.len(), 2);
    assert_eq!(life.size(), 4);
    assert_eq!(
        life.hpa().status.as_ref().unwrap().current_replicas,
        9,
        "the decision rests on the user's size"
    );
    let events = life.world.events();
    assert!(!events.iter().any(|event| event.contains("FailedRescale")));
}

#[test]
fn a_failed_scaling_is_reported_and_retried_with_the_next_turn() {
    let start = world(2)
        .with(autoscaler(json!([queue()])))
        .serving(QUEUE, values(&["40"]));
    let mut life = Life::of(start);
    let plan = next_writing(&mut life);
    let controller =
        HorizontalPodAutoscalers::new(&life.world.flags([&HorizontalPodAutoscalers::describe()]));
    let failure = Failure::Forbidden("no".into());
    let action = plan.actions().next().unwrap();
    let failed = &action
        .announcement
        .as_ref()
        .unwrap()
        .failure
        .as_ref()
        .unwrap();
    assert_eq!(
        (&*failed.reason, failed.message.as_str()),
        (
            "FailedRescale",
            "New size: 4; reason: external metric queue(nil) above target; error: "
        )
    );
    controller.learn(
        &Outcome {
            action,
            result: Err(&failure),
        },
        &mut life.memory,
    );
    assert_eq!(life.step(), ["patch horizontalpodautoscalers/web/status"]);
    assert_eq!(life.conditions()[0], "AbleToScale=False FailedUpdateScale");
    assert_eq!(
        life.message("AbleToScale"),
        "the HPA controller was unable to update the target scale: no"
    );
    assert_eq!(life.size(), 2);
    life.pass(15);
    assert_eq!(life.size(), 4);
}

#[test]
fn another_autoscaler_of_the_name_starts_over() {
    let start = window(world(4), 3600)
        .with(autoscaler(json!([queue()])))
        .serving(QUEUE, values(&["90"]));
    let mut life = Life::of(start);
    life.pass(16);
    let mut other = autoscaler(json!([queue()]));
    other.metadata.as_mut().unwrap().uid = "uid-another".into();
    life.world.vanish::<HorizontalPodAutoscaler>("web");
    life.world.put(other);
    life.step();
    assert_eq!(life.memory.past(), Memory::default().past());
}

#[test]
fn the_contract_holds() {
    contract::covers(REGISTRY, &["horizontal-pod-autoscaler-controller"]);
    let behavior = json!({
        "scaleUp": {"policies": [{"type": "Pods", "value": 1, "periodSeconds": 15}]},
        "scaleDown": {"stabilizationWindowSeconds": 30}
    });
    contract::Contract::of(&FACTORY)
        .seeds(4)
        .seconds(600)
        .check([
            world(2)
                .with(autoscaler(json!([queue()])))
                .serving(QUEUE, values(&["40"])),
            // Without a window: an owner that forgets delays a scale-down.
            window(world(5), 0)
                .with(autoscaler(json!([queue()])))
                .serving(QUEUE, values(&["20"])),
            world(4)
                .with(with_behavior(behavior))
                .serving(QUEUE, values(&["80"])),
            world(3).with(autoscaler(json!([cpu()]))),
            world(2)
                .with(autoscaler(json!([cpu()])))
                .serving(USAGE, usage(&[1000, 1000])),
        ]);
}
