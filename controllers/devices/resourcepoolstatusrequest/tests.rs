use std::sync::Arc;

use controllers_kit::{
    Controller as _, Factory, FlagValue, Flags, Requeue, Runs, SignedDuration, testing::*,
};
use kubernetes_proto::{
    AnyObject, Object,
    meta::Condition,
    resource::{
        ResourceClaim, ResourcePoolStatusRequest, ResourcePoolStatusRequestSpec,
        ResourcePoolStatusRequestStatus, ResourceSlice,
    },
};
use serde_json::{Value, json};

use super::{DURATION, ERRORS, GATE, PROCESSED, PoolStatusRequests};
use crate::device_taint_eviction::tests::{ClaimBuild as _, DRIVER, SliceBuild as _, gpus, slice};

/// A request about all pools of [`DRIVER`].
pub(crate) fn request(name: &str) -> ResourcePoolStatusRequest {
    let mut request = ResourcePoolStatusRequest {
        spec: Some(ResourcePoolStatusRequestSpec {
            driver: DRIVER.to_owned(),
            ..ResourcePoolStatusRequestSpec::default()
        }),
        ..ResourcePoolStatusRequest::default()
    };
    request.metadata_mut().name = name.into();
    request
}

/// A request that was answered with a condition.
pub(crate) fn answered(name: &str, condition: Option<(&str, &str)>) -> ResourcePoolStatusRequest {
    let conditions = condition.map(|(name, since)| Condition {
        r#type: name.to_owned(),
        status: "True".to_owned(),
        last_transition_time: Some(at(since).into()),
        ..Condition::default()
    });
    ResourcePoolStatusRequest {
        status: Some(ResourcePoolStatusRequestStatus {
            conditions: conditions.into_iter().collect(),
            ..ResourcePoolStatusRequestStatus::default()
        }),
        ..request(name)
    }
}

/// A slice with a number of devices.
fn full(name: &str, pool: &str, devices: usize) -> ResourceSlice {
    (0..devices).fold(slice(name, pool), |slice, number| {
        slice.device(&format!("gpu-{number}"), &[])
    })
}

fn on_node(mut slice: ResourceSlice, node: &str) -> ResourceSlice {
    node.clone_into(&mut slice.spec.as_mut().unwrap().node_name);
    slice
}

fn of_driver(mut slice: ResourceSlice, driver: &str) -> ResourceSlice {
    driver.clone_into(&mut slice.spec.as_mut().unwrap().driver);
    slice
}

fn start() -> World {
    World::at("12:00:00")
}

/// The status that a request gets.
fn status(world: World, request: ResourcePoolStatusRequest) -> Value {
    let mut world = world.with(request);
    world.run::<PoolStatusRequests>();
    let request = world.get::<ResourcePoolStatusRequest>("q");
    let mut json = serde_json::to_value(&*request).unwrap();
    let mut status = json["status"].take();
    if let Some(condition) = status["conditions"].get(0) {
        assert_eq!(condition["type"], "Complete");
        assert_eq!(condition["status"], "True");
        assert_eq!(condition["reason"], "CalculationComplete");
        assert_eq!(condition["lastTransitionTime"], at("12:00:00").to_string());
        status["conditions"] = condition["message"].clone();
    }
    status
}

/// A pool in an answer, of generation 1.
fn pool(name: &str, slices: i32, total: i32, allocated: i32) -> Value {
    json!({
        "driver": DRIVER, "poolName": name, "generation": 1, "resourceSliceCount": slices,
        "totalDevices": total, "allocatedDevices": allocated,
        "availableDevices": (total - allocated).max(0), "unavailableDevices": 0,
    })
}

fn expected(pools: &[Value], count: usize) -> Value {
    let mut status = json!({
        "poolCount": count,
        "conditions": format!("Calculated status for {} pools", pools.len()),
    });
    if !pools.is_empty() {
        status["pools"] = pools.into();
    }
    status
}

#[test]
fn an_answer_counts_the_devices_of_each_pool_in_its_newest_generation() {
    let limited = |limit: i32| {
        let mut request = request("q");
        request.spec.as_mut().unwrap().limit = Some(limit);
        request
    };
    let about = |pool: &str| {
        let mut request = request("q");
        request.spec.as_mut().unwrap().pool_name = Some(pool.to_owned());
        request
    };
    let on = |mut pool: Value, node: &str| {
        pool["nodeName"] = node.into();
        pool
    };
    let newer = |mut pool: Value, generation: i64| {
        pool["generation"] = generation.into();
        pool
    };
    let two = || start().with(full("s1", "b", 4)).with(full("s2", "a", 8));
    let many = (0..101).fold(start(), |world, number| {
        world.with(full(&format!("s{number}"), &format!("p{number:03}"), 1))
    });
    let hundred: Vec<Value> = (0..100)
        .map(|number| pool(&format!("p{number:03}"), 1, 1, 0))
        .collect();
    for (name, world, request, answer) in [
        (
            "one pool",
            start().with(full("s1", "a", 4)),
            request("q"),
            expected(&[pool("a", 1, 4, 0)], 1),
        ),
        (
            "allocated devices",
            start()
                .with(full("s1", "a", 4))
                .with(gpus("one", &[("a", "gpu-0"), ("a", "gpu-1")]))
                .with(gpus("two", &[("b", "gpu-0")]))
                .with(gpus("three", &[("a", "gpu-2")]).unallocated()),
            request("q"),
            expected(&[pool("a", 1, 4, 2)], 1),
        ),
        (
            "more allocations than devices",
            start()
                .with(full("s1", "a", 1))
                .with(gpus("one", &[("a", "gpu-0"), ("a", "gpu-0")])),
            request("q"),
            expected(&[pool("a", 1, 1, 2)], 1),
        ),
        (
            "pools in order",
            two(),
            request("q"),
            expected(&[pool("a", 1, 8, 0), pool("b", 1, 4, 0)], 2),
        ),
        (
            "another driver",
            start()
                .with(full("s1", "a", 4))
                .with(of_driver(full("s2", "a", 8), "nic.example.com")),
            request("q"),
            expected(&[pool("a", 1, 4, 0)], 1),
        ),
        (
            "one pool of two",
            two(),
            about("b"),
            expected(&[pool("b", 1, 4, 0)], 1),
        ),
        (
            "a pool name that is empty",
            two(),
            about(""),
            expected(&[pool("a", 1, 8, 0), pool("b", 1, 4, 0)], 2),
        ),
        (
            "two slices",
            start()
                .with(full("s1", "a", 4).of_pool(1, 2))
                .with(full("s2", "a", 4).of_pool(1, 2)),
            request("q"),
            expected(&[pool("a", 2, 8, 0)], 1),
        ),
        (
            "limited",
            two(),
            limited(1),
            expected(&[pool("a", 1, 8, 0)], 2),
        ),
        (
            "limited by default",
            many,
            request("q"),
            expected(&hundred, 101),
        ),
        ("no pool", two(), about("c"), expected(&[], 0)),
        (
            "older generations are ignored",
            start()
                .with(full("s1", "a", 8).of_pool(1, 1))
                .with(full("s2", "a", 4).of_pool(2, 2))
                .with(full("s3", "a", 4).of_pool(2, 2))
                .with(full("s4", "a", 16).of_pool(0, 1)),
            request("q"),
            expected(&[newer(pool("a", 2, 8, 0), 2)], 1),
        ),
        (
            "of one node",
            start()
                .with(on_node(full("s1", "a", 4), "n1"))
                .with(on_node(full("s2", "a", 4), "n1")),
            request("q"),
            expected(&[on(pool("a", 2, 8, 0), "n1")], 1),
        ),
        (
            "of two nodes",
            start()
                .with(on_node(full("s1", "a", 4), "n1"))
                .with(on_node(full("s2", "a", 4), "n2")),
            request("q"),
            expected(&[pool("a", 2, 8, 0)], 1),
        ),
        (
            "of a node and none",
            start()
                .with(full("s1", "a", 4))
                .with(on_node(full("s2", "a", 4), "n2")),
            request("q"),
            expected(&[pool("a", 2, 8, 0)], 1),
        ),
    ] {
        assert_eq!(status(world, request), answer, "{name}");
    }
}

#[test]
fn a_request_about_an_incomplete_pool_waits_for_its_slices() {
    let first = full("s1", "a", 4).of_pool(1, 2);
    let mut world = start()
        .with(first)
        .with(full("s9", "b", 1))
        .with(request("q"));
    let plan = world.plan::<PoolStatusRequests>("q");
    assert!(plan.is_nothing());
    assert_eq!(
        plan.requeue,
        Requeue::At(world.now() + SignedDuration::from_hours(24))
    );
    // A pool that is not asked about does not matter.
    let mut other = request("other");
    other.spec.as_mut().unwrap().pool_name = Some("b".to_owned());
    let plan = world
        .clone()
        .with(other)
        .plan::<PoolStatusRequests>("other");
    assert_eq!(
        plan.verbs(),
        ["patch resourcepoolstatusrequests/other/status"]
    );
    let second = full("s2", "a", 4).of_pool(1, 2);
    world.put(second);
    let slice = world.get::<ResourceSlice>("s2") as AnyObject;
    assert_eq!(world.woken::<PoolStatusRequests>(None, Some(&slice)), ["q"]);
    let foreign = Arc::new(of_driver(full("s3", "a", 1), "nic.example.com")) as AnyObject;
    assert!(
        world
            .woken::<PoolStatusRequests>(None, Some(&foreign))
            .is_empty()
    );
    world.run::<PoolStatusRequests>();
    let done = world.get::<ResourcePoolStatusRequest>("q");
    assert_eq!(done.status.as_ref().unwrap().pool_count, Some(2));
    assert!(
        world
            .woken::<PoolStatusRequests>(None, Some(&slice))
            .is_empty()
    );
}

#[test]
fn an_answer_rests_on_all_slices_and_claims_and_is_given_once() {
    let mut world = start().with(full("s1", "a", 4)).with(request("q"));
    let plan = world.plan::<PoolStatusRequests>("q");
    let rests: Vec<&str> = plan.counted.iter().map(|set| set.resource.plural).collect();
    assert_eq!(rests, ["resourceslices", "resourceclaims"]);
    assert!(plan.counted.iter().all(|set| set.since == world.version()));
    let action = plan.actions().next().unwrap();
    assert_ne!(action.resource_version, 0);
    let names = |measures: &[controllers_kit::Measure]| {
        let names = measures
            .iter()
            .map(|one| (one.name, one.labels[0].to_string()));
        names.collect::<Vec<_>>()
    };
    let driver = || DRIVER.to_owned();
    assert_eq!(names(&plan.measures), [(PROCESSED, driver())]);
    assert_eq!(names(&plan.timings), [(DURATION, driver())]);
    assert_eq!(
        names(&plan.on_failure.measures),
        [(PROCESSED, driver()), (ERRORS, driver())]
    );
    assert_eq!(names(&plan.on_failure.timings), [(DURATION, driver())]);
    world.apply(&plan).expect_success();
    world.put(full("s2", "b", 4));
    assert!(world.plan::<PoolStatusRequests>("q").is_nothing());
    // One that was answered by somebody else is not answered again.
    let other = start().with(full("s1", "a", 4)).with(answered("q", None));
    assert!(other.plan::<PoolStatusRequests>("q").is_nothing());
}

/// Requests, and when each is deleted, in seconds from 12:00.
#[test]
fn a_request_is_deleted_an_hour_after_its_answer_or_a_day_after_its_creation() {
    let waiting = || {
        let mut waiting = request("q");
        "unknown.example.com".clone_into(&mut waiting.spec.as_mut().unwrap().driver);
        waiting
    };
    for (name, request, at_second) in [
        (
            "answered",
            answered("q", Some(("Complete", "11:30:00"))).created("10:00:00"),
            1800,
        ),
        (
            "answered just now",
            answered("q", Some(("Complete", "12:00:00"))).created("10:00:00"),
            3600,
        ),
        (
            "failed",
            answered("q", Some(("Failed", "11:10:00"))).created("10:00:00"),
            600,
        ),
        (
            "answered long ago",
            answered("q", Some(("Complete", "10:30:00"))).created("10:00:00"),
            0,
        ),
        (
            "with a foreign condition alone",
            answered("q", Some(("Other", "12:00:00"))).created("11:30:00"),
            1800,
        ),
        (
            "without a condition",
            answered("q", None).created("11:30:00"),
            1800,
        ),
    ] {
        let mut world = start().with(request);
        if at_second > 0 {
            world.settle_for(at_second - 1, &[Factory::of::<PoolStatusRequests>()]);
            assert!(
                world.find::<ResourcePoolStatusRequest>("q").is_some(),
                "{name}"
            );
        }
        world.settle_for(2, &[Factory::of::<PoolStatusRequests>()]);
        assert!(
            world.find::<ResourcePoolStatusRequest>("q").is_none(),
            "{name}"
        );
    }
    // One that waits for slices.
    let mut world = start().with(waiting()).with(of_driver(
        full("s1", "a", 1).of_pool(1, 2),
        "unknown.example.com",
    ));
    let day = 24 * 3600;
    world.settle_for(day - 1, &[Factory::of::<PoolStatusRequests>()]);
    assert!(world.find::<ResourcePoolStatusRequest>("q").is_some());
    let plan = world.later(1).plan::<PoolStatusRequests>("q");
    assert_eq!(plan.verbs(), ["delete resourcepoolstatusrequests/q"]);
    // A time that is missing is no age; one that is being deleted is left alone.
    let timeless = answered("q", Some(("Complete", "10:00:00")));
    let mut timeless = timeless.created("01:00:00");
    timeless.status.as_mut().unwrap().conditions[0].last_transition_time = None;
    assert!(
        start()
            .with(timeless)
            .plan::<PoolStatusRequests>("q")
            .is_nothing()
    );
    let leaving = answered("q", Some(("Complete", "10:00:00")))
        .finalizer("other/one")
        .terminating("11:00:00");
    assert!(
        start()
            .with(leaving)
            .plan::<PoolStatusRequests>("q")
            .is_nothing()
    );
}

#[test]
fn the_controller_runs_where_the_gate_is_on() {
    let descriptor = PoolStatusRequests::describe();
    assert!(descriptor.aliases.is_empty());
    assert_eq!(descriptor.workers, None);
    let mut flags = Flags::defaults([&descriptor]);
    assert!(matches!((descriptor.runs)(&flags), Runs::No(_)));
    flags.set(GATE, FlagValue::Bool(true));
    assert_eq!((descriptor.runs)(&flags), Runs::Yes);
    assert_eq!(ResourceClaim::resource().version, "v1");
    assert_eq!(ResourcePoolStatusRequest::resource().version, "v1alpha3");
}
