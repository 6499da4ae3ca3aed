//! Several evaluations in a row: what is asked, written and reported.

use controllers_kit::{
    Answer, FlagValue, Object,
    testing::{WorkloadBuild, World, deployment},
};
use kubernetes_proto::autoscaling::HorizontalPodAutoscaler;
use serde_json::json;

use super::parts::{Life, QUEUE, USAGE, asked, autoscaler, cpu, queue, usage, values, world};

#[test]
fn an_autoscaler_is_evaluated_once_a_period_and_first_within_one() {
    let world = world(2)
        .with(autoscaler(json!([cpu()])))
        .serving(USAGE, usage(&[1000, 1000]));
    let mut life = Life::of(world);
    assert!(life.step().is_empty());
    assert!(
        asked(&life.world, &life.memory).len() >= 2,
        "scale and live"
    );
    let mut turns = Vec::new();
    for second in 1..=60 {
        let before = life.memory.clone();
        life.pass(1);
        if life.memory.turn_number() != before.turn_number() {
            turns.push(second);
        }
    }
    assert_eq!(turns.len(), 4, "{turns:?}");
    assert!(turns[0] <= 15);
    assert!(
        turns.windows(2).all(|two| two[1] - two[0] == 15),
        "{turns:?}"
    );
    // A new owner, after a handoff or a crash, keeps to the same instants.
    for handoff in [true, false] {
        let mut other = Life::of(life.world.clone());
        if handoff {
            other.memory = life.memory.clone();
            other.hand_over();
        }
        let before = other.world.now();
        other.step();
        let mut taken = None;
        for second in 1..=15 {
            let turn = other.memory.turn_number();
            other.pass(1);
            if taken.is_none() && other.memory.turn_number() != turn {
                taken = Some(second);
            }
        }
        let phase = turns[0] % 15;
        let passed = (before.as_second() - world_start()) % 15;
        assert_eq!(
            (passed + taken.unwrap()) % 15,
            i64::from(phase),
            "handoff: {handoff}"
        );
    }
}

fn world_start() -> i64 {
    controllers_kit::testing::at("12:00:00").as_second()
}

#[test]
fn an_overloaded_target_grows_with_event_and_conditions() {
    let world = world(2)
        .with(autoscaler(json!([cpu()])))
        .serving(USAGE, usage(&[2000, 2000]));
    let mut life = Life::of(world);
    life.pass(16);
    assert_eq!(life.size(), 4);
    assert_eq!(
        life.world.events(),
        [
            "Normal SuccessfulRescale New size: 4; reason: cpu resource utilization (percentage of request) above target"
        ]
    );
    assert_eq!(
        life.conditions(),
        [
            "AbleToScale=True SucceededRescale",
            "ScalingActive=True ValidMetricFound",
            "ScalingLimited=False DesiredWithinRange"
        ]
    );
    assert_eq!(
        life.message("ScalingActive"),
        "the HPA was able to successfully calculate a replica count from cpu resource utilization (percentage of request)"
    );
    let status = life.hpa().status.clone().unwrap();
    assert_eq!((status.current_replicas, status.desired_replicas), (2, 4));
    assert!(status.last_scale_time.is_some());
    assert_eq!(
        serde_json::to_value(&status.current_metrics).unwrap(),
        json!([{"type": "Resource", "resource": {
            "name": "cpu", "current": {"averageUtilization": 200, "averageValue": "2"}
        }}])
    );
    life.follow();
    life.world
        .serve(USAGE, Answer::Object(usage(&[1000; 4]).into()));
    life.pass(15);
    assert_eq!(life.size(), 4);
    assert_eq!(life.conditions()[0], "AbleToScale=True ReadyForNewScale");
    let status = life.hpa().status.clone().unwrap();
    assert_eq!((status.current_replicas, status.desired_replicas), (4, 4));
}

#[test]
fn an_idle_target_shrinks_after_the_window_and_not_before() {
    let world = world(6)
        .flag(
            "horizontal-pod-autoscaler-downscale-stabilization",
            FlagValue::Duration(std::time::Duration::from_secs(60)),
        )
        .with(autoscaler(json!([queue()])))
        .serving(QUEUE, values(&["60"]));
    let mut life = Life::of(world);
    life.pass(60);
    assert_eq!(life.size(), 6);
    life.world
        .serve(QUEUE, Answer::Object(values(&["12"]).into()));
    life.pass(58);
    assert_eq!(life.size(), 6);
    assert_eq!(life.conditions()[0], "AbleToScale=True ScaleDownStabilized");
    life.pass(20);
    assert_eq!(life.size(), 2);
    assert!(life.world.events().contains(
        &"Normal SuccessfulRescale New size: 2; reason: All metrics below target".to_owned()
    ));
}

#[test]
fn sizes_beyond_the_bounds_are_corrected_without_metrics() {
    for (size, wanted, reason) in [
        (12, 10, "Current number of replicas above Spec.MaxReplicas"),
        (1, 3, "Current number of replicas below Spec.MinReplicas"),
    ] {
        let mut hpa = autoscaler(json!([cpu()]));
        hpa.spec.as_mut().unwrap().min_replicas = Some(3);
        let mut life = Life::of(world(size).with(hpa));
        life.pass(16);
        assert_eq!(life.size(), wanted);
        assert_eq!(
            life.world.events(),
            [format!(
                "Normal SuccessfulRescale New size: {wanted}; reason: {reason}"
            )]
        );
        assert!(
            life.hpa()
                .status
                .as_ref()
                .unwrap()
                .current_metrics
                .is_empty()
        );
    }
}

#[test]
fn a_target_of_size_zero_is_left_alone() {
    let mut life = Life::of(world(0).with(autoscaler(json!([cpu()]))));
    life.pass(16);
    assert_eq!(life.size(), 0);
    assert_eq!(
        life.conditions(),
        [
            "AbleToScale=True SucceededGetScale",
            "ScalingActive=False ScalingDisabled"
        ]
    );
    assert!(life.world.events().is_empty());
}

#[test]
fn a_target_that_it_has_scaled_to_zero_comes_back() {
    let mut hpa = autoscaler(json!([queue()]));
    hpa.spec.as_mut().unwrap().min_replicas = Some(0);
    let world = world(1)
        .flag("HPAScaleToZero", FlagValue::Bool(true))
        .flag(
            "horizontal-pod-autoscaler-downscale-stabilization",
            FlagValue::Duration(std::time::Duration::ZERO),
        )
        .with(hpa)
        .serving(QUEUE, values(&["0"]));
    let mut life = Life::of(world);
    life.pass(31);
    assert_eq!(life.size(), 0);
    assert!(
        life.conditions()
            .contains(&"ScaledToZero=True ScaledToZero".to_owned())
    );
    life.follow();
    life.world
        .serve(QUEUE, Answer::Object(values(&["25"]).into()));
    life.pass(15);
    assert_eq!(life.size(), 3);
    assert!(
        life.conditions()
            .contains(&"ScaledToZero=False NotScaledToZero".to_owned())
    );
}

#[test]
fn a_missing_target_is_reported() {
    let mut hpa = autoscaler(json!([cpu()]));
    let target = hpa
        .spec
        .as_mut()
        .unwrap()
        .scale_target_ref
        .as_mut()
        .unwrap();
    target.name = "gone".into();
    let mut life = Life::of(World::at("12:00:00").with(hpa));
    life.pass(16);
    assert_eq!(
        life.world.events(),
        ["Warning FailedGetScale deployments.apps \"gone\" not found"]
    );
    assert_eq!(life.conditions(), ["AbleToScale=False FailedGetScale"]);
    assert_eq!(
        life.message("AbleToScale"),
        "the HPA controller was unable to get the target's current scale: deployments.apps \"gone\" not found"
    );
}

#[test]
fn a_kind_that_is_not_served_or_has_no_scale_is_reported() {
    for (version, kind, why) in [
        (
            "example.com/v1",
            "Widget",
            "no matches for kind \"Widget\" in group \"example.com\"",
        ),
        (
            "apps/v1",
            "DaemonSet",
            "the server could not find the requested resource",
        ),
        ("a/b/c", "Widget", "unexpected GroupVersion string: a/b/c"),
    ] {
        let mut hpa = autoscaler(json!([cpu()]));
        let target = hpa
            .spec
            .as_mut()
            .unwrap()
            .scale_target_ref
            .as_mut()
            .unwrap();
        target.api_version = version.into();
        target.kind = kind.into();
        let mut life = Life::of(World::at("12:00:00").with(hpa));
        life.pass(16);
        assert_eq!(
            life.world.events(),
            [format!("Warning FailedGetScale {why}")]
        );
    }
    // An older version of a kind that is served in another.
    let mut hpa = autoscaler(json!([queue()]));
    let target = hpa
        .spec
        .as_mut()
        .unwrap()
        .scale_target_ref
        .as_mut()
        .unwrap();
    target.api_version = "apps/v1beta2".into();
    let mut life = Life::of(world(1).with(hpa).serving(QUEUE, values(&["40"])));
    life.pass(16);
    assert_eq!(life.size(), 4);
}

#[test]
fn a_failing_metric_forbids_shrinking_but_not_growth() {
    let both = json!([cpu(), queue()]);
    let start = world(3).with(autoscaler(both));
    let mut life = Life::of(start.clone().serving(QUEUE, values(&["5"])));
    life.pass(16);
    assert_eq!(life.size(), 3);
    let why = "failed to get cpu utilization: unable to get metrics for resource cpu: unable to fetch metrics from \
               resource metrics API: the server could not find the requested resource (get pods.metrics.k8s.io)";
    assert_eq!(
        life.world.events(),
        [
            format!("Warning FailedGetResourceMetric {why}"),
            format!(
                "Warning FailedComputeMetricsReplicas invalid metrics (1 invalid out of 2), first error is: failed to \
                 get cpu resource metric value: {why}"
            ),
        ]
    );
    assert_eq!(
        life.conditions(),
        [
            "AbleToScale=True SucceededGetScale",
            "ScalingActive=False FailedGetResourceMetric"
        ]
    );
    assert_eq!(
        life.message("ScalingActive"),
        format!("the HPA was unable to compute the replica count: {why}")
    );
    assert_eq!(
        serde_json::to_value(&life.hpa().status.as_ref().unwrap().current_metrics).unwrap()[1]["type"],
        "External"
    );

    let mut life = Life::of(start.serving(QUEUE, values(&["50"])));
    life.pass(16);
    assert_eq!(life.size(), 5);
    assert!(
        life.conditions()
            .contains(&"ScalingActive=True ValidMetricFound".to_owned())
    );
    assert_eq!(life.world.events().len(), 2, "{:?}", life.world.events());
}

#[test]
fn the_largest_of_several_metrics_counts() {
    let world = world(2)
        .with(autoscaler(json!([cpu(), queue()])))
        .serving(USAGE, usage(&[1500, 1500]))
        .serving(QUEUE, values(&["30", "9"]));
    let mut life = Life::of(world);
    life.pass(16);
    assert_eq!(life.size(), 4);
    assert_eq!(
        life.world.events(),
        ["Normal SuccessfulRescale New size: 4; reason: external metric queue(nil) above target"]
    );
}

#[test]
fn two_autoscalers_of_the_same_pods_stand_still_and_say_so() {
    let mut other = autoscaler(json!([queue()]));
    other.metadata.as_mut().unwrap().name = "also".into();
    other.metadata.as_mut().unwrap().uid = "uid-hpa-also".into();
    let world = world(2)
        .with(autoscaler(json!([queue()])))
        .with(other)
        .serving(QUEUE, values(&["90"]));
    let mut life = Life::of(world);
    life.pass(16);
    assert_eq!(life.size(), 2);
    let why =
        "pods by selector app=web are controlled by multiple HPAs: [{also default} {web default}]";
    assert_eq!(
        life.world.events(),
        [
            format!("Warning AmbiguousSelector {why}"),
            format!("Warning FailedComputeMetricsReplicas {why}"),
        ]
    );
    assert!(
        life.conditions()
            .contains(&"ScalingActive=False AmbiguousSelector".to_owned())
    );
    // Two workloads whose selectors overlap are the same.
    let mut other = autoscaler(json!([queue()]));
    other.metadata.as_mut().unwrap().name = "also".into();
    other.metadata.as_mut().unwrap().uid = "uid-hpa-also".into();
    let target = other
        .spec
        .as_mut()
        .unwrap()
        .scale_target_ref
        .as_mut()
        .unwrap();
    target.name = "all".into();
    let wide = deployment("all").selects(&[("app", "web")]);
    let mut life = Life::of(
        super::parts::world(2)
            .with(wide)
            .with(autoscaler(json!([queue()])))
            .with(other.clone())
            .serving(QUEUE, values(&["90"])),
    );
    life.pass(16);
    assert_eq!(life.size(), 2);
    // And one that selects others is none of it.
    let apart = deployment("all");
    let mut life = Life::of(
        super::parts::world(2)
            .with(apart)
            .with(autoscaler(json!([queue()])))
            .with(other)
            .serving(QUEUE, values(&["90"])),
    );
    life.pass(16);
    assert_eq!(life.size(), 4);
}

#[test]
fn a_scale_with_an_empty_or_invalid_selector_is_reported() {
    let path = "/apis/apps/v1/namespaces/default/deployments/web/scale";
    for (selector, event, condition) in [
        (
            "",
            "SelectorRequired selector is required",
            "InvalidSelector",
        ),
        (
            "a b",
            "InvalidSelector couldn't convert selector into a corresponding internal selector object: unable to parse \
             requirement: \"a b\"",
            "InvalidSelector",
        ),
    ] {
        let world = world(2).with(autoscaler(json!([cpu()]))).serving(
            path,
            json!({"metadata": {"uid": "u", "resourceVersion": "1"}, "spec": {"replicas": 2},
                   "status": {"replicas": 2, "selector": selector}}),
        );
        let mut life = Life::of(world);
        life.pass(16);
        assert_eq!(life.world.events()[0], format!("Warning {event}"));
        assert_eq!(
            life.conditions()[1],
            format!("ScalingActive=False {condition}")
        );
    }
}

#[test]
fn at_rest_nothing_is_written() {
    let world = world(2)
        .with(autoscaler(json!([cpu()])))
        .serving(USAGE, usage(&[1000, 1000]));
    let mut life = Life::of(world);
    life.pass(20);
    let before = life.hpa();
    life.pass(120);
    assert_eq!(*life.hpa(), *before);
    assert_eq!(life.world.events(), Vec::<String>::new());
}

#[test]
fn tolerance_is_the_flag_s_or_the_autoscaler_s_own() {
    let hpa = |tolerance: Option<&str>| {
        let mut hpa = autoscaler(json!([queue()]));
        hpa.spec.as_mut().unwrap().behavior = tolerance.map(|tolerance| {
            serde_json::from_value(json!({"scaleUp": {"tolerance": tolerance}})).unwrap()
        });
        hpa
    };
    for (gate, tolerance, wanted) in [
        (true, None, 5),
        (true, Some("0.5"), 4),
        (false, Some("0.5"), 5),
        (true, Some("50m"), 5),
    ] {
        let world = world(4)
            .flag("HPAConfigurableTolerance", FlagValue::Bool(gate))
            .with(hpa(tolerance))
            .serving(QUEUE, values(&["48"]));
        let mut life = Life::of(world);
        life.pass(16);
        assert_eq!(life.size(), wanted, "{gate} {tolerance:?}");
    }
}

#[test]
fn an_autoscaler_that_is_gone_is_forgotten() {
    let mut life = Life::of(world(2).with(autoscaler(json!([cpu()]))));
    life.pass(16);
    life.world.vanish::<HorizontalPodAutoscaler>("web");
    assert!(life.step().is_empty());
    assert_eq!(life.memory, super::super::Memory::default());
}

#[test]
fn a_terminating_autoscaler_keeps_scaling_while_a_finalizer_holds_it() {
    let mut held = autoscaler(json!([cpu()]));
    let meta = held.metadata_mut();
    meta.finalizers.push("foregroundDeletion".into());
    meta.deletion_timestamp = Some(controllers_kit::testing::at("11:59:00").into());
    let world = world(2).with(held).serving(USAGE, usage(&[2000, 2000]));
    let mut life = Life::of(world);
    life.pass(16);
    assert_eq!(life.size(), 4);
}
