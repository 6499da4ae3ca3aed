//! Devices that get taints, by their drivers and by rules, while pods use them.

use std::time::Duration;

use controllers_kit::testing::{Common, PodBuild, World, pod};
use kubernetes_proto::{
    Object,
    core::{Pod, PodSchedulingGroup},
    meta::Time,
    resource::{
        AllocationResult, Device, DeviceAllocationResult, DeviceRequestAllocationResult,
        DeviceTaint, DeviceTaintRule, DeviceTaintRuleSpec, DeviceTaintSelector, DeviceToleration,
        ResourceClaim, ResourcePool, ResourceSlice, ResourceSliceSpec,
    },
    scheduling::PodGroup,
};

use super::{
    Making,
    claims::{entry, reserve},
};
use crate::{claims::FINALIZER, devices::GROUP_FINALIZER};

const GPUS: &str = "gpu.example.com";
const KEY: &str = "gpu.example.com/unhealthy";
/// Devices of each pool.
const DEVICES: usize = 4;

fn taint(effect: &str, since: Time) -> DeviceTaint {
    DeviceTaint {
        key: KEY.to_owned(),
        value: "bad".to_owned(),
        effect: effect.to_owned(),
        time_added: Some(since),
    }
}

/// A pool of healthy devices.
fn pool(name: &str) -> ResourceSlice {
    let device = |number| Device {
        name: format!("gpu-{number}"),
        taints: Vec::new(),
    };
    let mut slice = ResourceSlice {
        spec: Some(ResourceSliceSpec {
            driver: GPUS.to_owned(),
            pool: Some(ResourcePool {
                name: name.to_owned(),
                generation: 1,
                resource_slice_count: 1,
            }),
            devices: (0..DEVICES).map(device).collect(),
            ..ResourceSliceSpec::default()
        }),
        ..ResourceSlice::default()
    };
    slice.metadata_mut().name = name.into();
    slice
}

/// A claim that has a device, with a toleration of some seconds; of 0 for none, `None` for ever.
fn given(name: &str, pool: &str, device: usize, seconds: Option<i64>) -> ResourceClaim {
    let toleration = DeviceToleration {
        operator: "Exists".to_owned(),
        effect: "NoExecute".to_owned(),
        toleration_seconds: seconds,
        ..DeviceToleration::default()
    };
    let result = DeviceRequestAllocationResult {
        driver: GPUS.to_owned(),
        pool: pool.to_owned(),
        device: format!("gpu-{device}"),
        tolerations: match seconds {
            Some(0) => Vec::new(),
            _ => vec![toleration],
        },
        ..DeviceRequestAllocationResult::default()
    };
    let mut claim = ResourceClaim::default();
    claim.metadata_mut().name = name.into();
    claim.status.get_or_insert_default().allocation = Some(AllocationResult {
        devices: Some(DeviceAllocationResult {
            results: vec![result],
        }),
    });
    claim.in_namespace("default").finalizer(FINALIZER)
}

/// A pod with its claim, reserved for it as the scheduler does.
fn user(making: &mut Making, name: &str, pool: &str, device: usize, seconds: Option<i64>) {
    let user: Pod = entry(pod(name), "gpu", name, "").on("node-1").running();
    making.put(reserve(given(name, pool, device, seconds), &user));
    making.put(user);
}

fn rule(name: &str, pool: &str, effect: &str, since: Time) -> DeviceTaintRule {
    let mut rule = DeviceTaintRule {
        spec: Some(DeviceTaintRuleSpec {
            device_selector: Some(DeviceTaintSelector {
                pool: Some(pool.to_owned()),
                ..DeviceTaintSelector::default()
            }),
            taint: Some(taint(effect, since)),
        }),
        ..DeviceTaintRule::default()
    };
    rule.metadata_mut().name = name.into();
    rule.metadata_mut().uid = format!("uid-rule-{name}").as_str().into();
    rule
}

fn change_taints(world: &mut World, pool: &str, device: usize, taints: Vec<DeviceTaint>) {
    world.change::<ResourceSlice>(pool, |slice| {
        let spec = slice.spec.get_or_insert_default();
        spec.devices[device].taints = taints;
    });
}

/// Taints of devices come and go before some pods' time is over; rules evict whole pools, and one reports
/// only what it would do.
pub(super) fn tainted(making: &mut Making) {
    making.workload.pods_may_go = false;
    making.workload.faults = Duration::from_secs(45);
    // A rule's status follows ten seconds after what it counts.
    making.workload.quiet = Duration::from_secs(12);
    for name in ["by-driver", "by-rule", "spared"] {
        making.put(pool(name));
    }
    let seconds = [Some(0), Some(8), Some(500), None];
    for (device, seconds) in seconds.into_iter().enumerate() {
        for pool in ["by-driver", "by-rule", "spared"] {
            user(making, &format!("{pool}-{device}"), pool, device, seconds);
        }
    }
    for device in 0..DEVICES {
        making.then_soon(move |world| {
            let since = world.now().into();
            change_taints(world, "by-driver", device, vec![taint("NoExecute", since)]);
        });
        making.then_soon(move |world| {
            let since = world.now().into();
            change_taints(world, "spared", device, vec![taint("NoSchedule", since)]);
        });
    }
    making.then(|world| {
        let since = world.now().into();
        world.put(rule("whole-pool", "by-rule", "NoExecute", since));
    });
    making.then(|world| {
        let since = world.now().into();
        world.put(rule("would-be", "spared", "None", since));
    });
    // The taint that two of them still bear goes long before they have to.
    making.at += Duration::from_secs(45);
    making.then(|world| {
        for device in [2, 3] {
            change_taints(world, "by-driver", device, Vec::new());
        }
    });
}

/// A pod of a group.
fn member(name: &str, group: &str) -> Pod {
    let mut pod = pod(name).on("node-1").running();
    pod.spec.get_or_insert_default().scheduling_group = Some(
        PodSchedulingGroup {
            pod_group_name: group.into(),
        }
        .into(),
    );
    pod
}

fn remove<T: Object>(world: &mut World, name: &str) {
    if world
        .find::<T>(name)
        .is_some_and(|one| !one.is_terminating())
    {
        world.delete::<T>(name);
    }
}

/// Groups that are deleted just when pods of theirs come, and while some run and finish.
pub(super) fn grouped(making: &mut Making) {
    making.workload.pods_may_go = false;
    for number in 0..5 {
        let (group, first, second) = (
            format!("group-{number}"),
            format!("first-{number}"),
            format!("second-{number}"),
        );
        let mut made = PodGroup::default();
        made.metadata_mut().name = group.as_str().into();
        making.put(made.in_namespace("default").finalizer(GROUP_FINALIZER));
        let (pod, of) = (first.clone(), group.clone());
        making.then(move |world| world.put(member(&pod, &of)));
        let of = group.clone();
        making.then_soon(move |world| remove::<PodGroup>(world, &of));
        let pod = second.clone();
        making.then_soon(move |world| world.put(member(&pod, &group)));
        if number == 0 {
            // It stays as long as they run.
            continue;
        }
        making.then(move |world| {
            remove::<Pod>(world, &first);
            world.change::<Pod>(&second, |pod| {
                pod.status.get_or_insert_default().phase = "Succeeded".into();
            });
        });
    }
}
