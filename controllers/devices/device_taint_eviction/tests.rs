use controllers_kit::{
    Controller as _, Factory, FlagValue, Flags, Key, Only, PatchKind, Runs, SignedDuration,
    Timestamp, Verb, testing::*,
};
use kubernetes_proto::{
    AnyObject, Object,
    core::{Pod, PodResourceClaim, PodResourceClaimStatus, PodSchedulingGroup},
    meta::{Condition, OwnerReference},
    resource::{
        AllocationResult, Device, DeviceAllocationResult, DeviceRequestAllocationResult,
        DeviceTaint, DeviceTaintRule, DeviceTaintRuleSpec, DeviceTaintRuleStatus,
        DeviceTaintSelector, DeviceToleration, ResourceClaim, ResourceClaimConsumerReference,
        ResourcePool, ResourceSlice, ResourceSliceSpec,
    },
};

use super::*;

pub(crate) const DRIVER: &str = "gpu.example.com";

/// A taint since an instant.
pub(crate) fn taint(key: &str, effect: &str, since: &str) -> DeviceTaint {
    DeviceTaint {
        key: key.to_owned(),
        value: "bad".to_owned(),
        effect: effect.to_owned(),
        time_added: Some(at(since).into()),
    }
}

/// A slice of [`DRIVER`] in a pool, of generation 1 and alone, without devices.
pub(crate) fn slice(name: &str, pool: &str) -> ResourceSlice {
    let mut slice = ResourceSlice {
        spec: Some(ResourceSliceSpec {
            driver: DRIVER.to_owned(),
            pool: Some(ResourcePool {
                name: pool.to_owned(),
                generation: 1,
                resource_slice_count: 1,
            }),
            ..ResourceSliceSpec::default()
        }),
        ..ResourceSlice::default()
    };
    slice.metadata_mut().name = name.into();
    slice
}

pub(crate) trait SliceBuild {
    fn device(self, name: &str, taints: &[DeviceTaint]) -> Self;
    /// Of a generation of its pool, and how many slices the pool has.
    fn of_pool(self, generation: i64, slices: i64) -> Self;
}

impl SliceBuild for ResourceSlice {
    fn device(mut self, name: &str, taints: &[DeviceTaint]) -> Self {
        self.spec.get_or_insert_default().devices.push(Device {
            name: name.to_owned(),
            taints: taints.to_vec(),
        });
        self
    }
    fn of_pool(mut self, generation: i64, slices: i64) -> Self {
        let pool = self
            .spec
            .get_or_insert_default()
            .pool
            .get_or_insert_default();
        pool.generation = generation;
        pool.resource_slice_count = slices;
        self
    }
}

/// A claim that was given some devices of [`DRIVER`], each by pool and name.
pub(crate) fn gpus(name: &str, devices: &[(&str, &str)]) -> ResourceClaim {
    let mut claim = ResourceClaim::default();
    claim.metadata_mut().name = name.into();
    claim.metadata_mut().namespace = "default".into();
    let results = devices
        .iter()
        .map(|(pool, device)| DeviceRequestAllocationResult {
            request: "gpu".to_owned(),
            driver: DRIVER.to_owned(),
            pool: (*pool).to_owned(),
            device: (*device).to_owned(),
            ..DeviceRequestAllocationResult::default()
        });
    claim.status.get_or_insert_default().allocation = Some(AllocationResult {
        devices: Some(DeviceAllocationResult {
            results: results.collect(),
        }),
    });
    claim
}

pub(crate) trait ClaimBuild {
    /// Reserved for a pod.
    fn reserved(self, pod: &Pod) -> Self;
    /// Reserved for a scheduling group.
    fn reserved_for_group(self, group: &str) -> Self;
    /// Tolerates a taint with all its devices, forever or some seconds.
    fn tolerates(self, key: &str, seconds: Option<i64>) -> Self;
    fn tolerating(self, toleration: DeviceToleration) -> Self;
    fn unallocated(self) -> Self;
}

impl ClaimBuild for ResourceClaim {
    fn reserved(mut self, pod: &Pod) -> Self {
        let meta = Object::metadata(pod);
        let consumer = ResourceClaimConsumerReference {
            resource: "pods".to_owned(),
            name: meta.name.to_string(),
            uid: meta.uid.to_string(),
            ..ResourceClaimConsumerReference::default()
        };
        let status = self.status.get_or_insert_default();
        status.reserved_for.push(consumer);
        self
    }
    fn reserved_for_group(mut self, group: &str) -> Self {
        let consumer = ResourceClaimConsumerReference {
            api_group: "scheduling.k8s.io".to_owned(),
            resource: "podgroups".to_owned(),
            name: group.to_owned(),
            uid: format!("uid-{group}"),
        };
        let status = self.status.get_or_insert_default();
        status.reserved_for.push(consumer);
        self
    }
    fn tolerates(self, key: &str, seconds: Option<i64>) -> Self {
        self.tolerating(DeviceToleration {
            key: key.to_owned(),
            operator: "Exists".to_owned(),
            effect: "NoExecute".to_owned(),
            toleration_seconds: seconds,
            ..DeviceToleration::default()
        })
    }
    fn tolerating(mut self, toleration: DeviceToleration) -> Self {
        let allocation = self.status.as_mut().unwrap().allocation.as_mut().unwrap();
        for result in &mut allocation.devices.as_mut().unwrap().results {
            result.tolerations.push(toleration.clone());
        }
        self
    }
    fn unallocated(mut self) -> Self {
        self.status.get_or_insert_default().allocation = None;
        self
    }
}

pub(crate) trait UserBuild {
    /// Names a claim.
    fn uses(self, claim: &str) -> Self;
    /// Names a template of a claim, and the claim that was made from it, if it was.
    fn uses_template(self, made: Option<&str>) -> Self;
    fn in_group(self, group: &str) -> Self;
}

impl UserBuild for Pod {
    fn uses(mut self, claim: &str) -> Self {
        let claims = &mut self.spec.get_or_insert_default().resource_claims;
        let entry = PodResourceClaim {
            name: claim.into(),
            resource_claim_name: claim.into(),
            ..PodResourceClaim::default()
        };
        claims.get_or_insert_default().push(entry.into());
        self
    }
    fn uses_template(mut self, made: Option<&str>) -> Self {
        let claims = &mut self.spec.get_or_insert_default().resource_claims;
        let entry = PodResourceClaim {
            name: "made".into(),
            resource_claim_template_name: "template".into(),
            ..PodResourceClaim::default()
        };
        claims.get_or_insert_default().push(entry.into());
        if let Some(claim) = made {
            let made = &mut self.status.get_or_insert_default().resource_claim_statuses;
            made.get_or_insert_default().push(PodResourceClaimStatus {
                name: "made".into(),
                resource_claim_name: claim.into(),
            });
        }
        self
    }
    fn in_group(mut self, group: &str) -> Self {
        let group = PodSchedulingGroup {
            pod_group_name: group.into(),
        };
        self.spec.get_or_insert_default().scheduling_group = Some(group.into());
        self
    }
}

/// A rule with an effect since an instant, for all devices of [`DRIVER`] or for one by its name.
pub(crate) fn rule(name: &str, effect: &str, device: Option<&str>, since: &str) -> DeviceTaintRule {
    let mut rule = DeviceTaintRule {
        spec: Some(DeviceTaintRuleSpec {
            device_selector: Some(DeviceTaintSelector {
                driver: Some(DRIVER.to_owned()),
                device: device.map(str::to_owned),
                ..DeviceTaintSelector::default()
            }),
            taint: Some(taint("broken", effect, since)),
        }),
        ..DeviceTaintRule::default()
    };
    rule.metadata_mut().name = name.into();
    rule
}

/// With the gate of rules on.
pub(crate) fn with_rules(world: World) -> World {
    world.flag(RULES, FlagValue::Bool(true))
}

fn start() -> World {
    World::at("12:00:00").without_kubelets()
}

/// A pod on a node, which uses the claim `gpu`.
fn user(name: &str) -> Pod {
    pod(name).on("n1").uses("gpu")
}

/// The claim `gpu`, for the device gpu-0 of pool n1, reserved for the pod `web`.
fn gpu() -> ResourceClaim {
    gpus("gpu", &[("n1", "gpu-0")]).reserved(&user("web"))
}

fn broken(since: &str) -> DeviceTaint {
    taint("broken", "NoExecute", since)
}

/// The pool n1 with a broken device gpu-0 and a good one gpu-1.
fn tainted() -> ResourceSlice {
    slice("s1", "n1")
        .device("gpu-0", &[broken("12:00:00")])
        .device("gpu-1", &[])
}

fn run(world: &mut World, seconds: i64) {
    world.settle_for(seconds, &[Factory::of::<DeviceTaintEviction>()]);
}

/// Pods that are there and not being deleted.
fn staying(world: &World) -> Vec<String> {
    let pods = world.all::<Pod>();
    pods.iter()
        .filter(|pod| !pod.is_terminating())
        .map(|pod| Object::metadata(&**pod).name.to_string())
        .collect()
}

const MARKING: &str = "Normal DeviceTaintManagerEviction Marking for deletion";
const CANCELLING: &str = "Normal DeviceTaintManagerEviction Cancelling deletion";

/// The condition of a rule.
fn said(world: &World, rule: &str) -> (String, String, String) {
    let rule = world.get::<DeviceTaintRule>(rule);
    let status = rule.status.as_ref().expect("it has a status");
    let [condition] = &status.conditions[..] else {
        panic!("{:?}", status.conditions);
    };
    assert_eq!(condition.r#type, "EvictionInProgress");
    assert_eq!(
        condition.observed_generation,
        Object::metadata(&*rule).generation
    );
    (
        condition.status.clone(),
        condition.reason.clone(),
        condition.message.clone(),
    )
}

fn says(world: &World, rule: &str, status: &str, reason: &str, message: &str) {
    let (found_status, found_reason, found_message) = said(world, rule);
    assert_eq!(
        (&*found_status, &*found_reason, &*found_message),
        (status, reason, message)
    );
}

fn since(world: &World, rule: &str) -> Timestamp {
    let rule = world.get::<DeviceTaintRule>(rule);
    let conditions = &rule.status.as_ref().unwrap().conditions;
    conditions[0].last_transition_time.unwrap().timestamp()
}

/// Which pods are evicted, and after how many seconds; `None` for never.
#[test]
fn a_pod_goes_when_the_taints_of_its_devices_are_tolerated_no_longer() {
    let web = || user("web");
    let toleration = |operator: &str, value: &str, effect: &str| DeviceToleration {
        key: "broken".to_owned(),
        operator: operator.to_owned(),
        value: value.to_owned(),
        effect: effect.to_owned(),
        toleration_seconds: None,
    };
    let two =
        |one: DeviceTaint, other: DeviceTaint| slice("s1", "n1").device("gpu-0", &[one, other]);
    let world = |slice: ResourceSlice, claim: ResourceClaim, pod: Pod| {
        start().with(slice).with(claim).with(pod)
    };
    let owned = |claim: ResourceClaim| claim.owned_by(&web());
    let made = pod("web").on("n1").uses_template(Some("gpu"));
    for (name, world, until) in [
        ("tolerates nothing", world(tainted(), gpu(), web()), Some(0)),
        (
            "its device is good",
            world(
                tainted(),
                gpus("gpu", &[("n1", "gpu-1")]).reserved(&web()),
                web(),
            ),
            None,
        ),
        (
            "a device of that name in another pool is broken",
            world(
                tainted(),
                gpus("gpu", &[("n2", "gpu-0")]).reserved(&web()),
                web(),
            ),
            None,
        ),
        (
            "one of two devices is broken",
            world(
                tainted(),
                gpus("gpu", &[("n1", "gpu-1"), ("n1", "gpu-0")]).reserved(&web()),
                web(),
            ),
            Some(0),
        ),
        (
            "is not bound",
            world(tainted(), gpu(), pod("web").uses("gpu")),
            None,
        ),
        (
            "its claim is not allocated",
            world(tainted(), gpu().unallocated(), web()),
            None,
        ),
        (
            "the claim is reserved for another pod of its name",
            world(tainted(), gpu(), web().uid("other")),
            None,
        ),
        (
            "the claim is reserved for nobody",
            world(tainted(), gpus("gpu", &[("n1", "gpu-0")]), web()),
            None,
        ),
        (
            "does not name the claim",
            world(tainted(), gpu(), pod("web").on("n1")),
            None,
        ),
        (
            "has ended",
            world(tainted(), gpu(), web().phase("Succeeded")),
            Some(0),
        ),
        (
            "its claim was made from a template",
            world(tainted(), owned(gpu()), made.clone()),
            Some(0),
        ),
        (
            "a claim of the name of its made one is another's",
            world(tainted(), gpu(), made),
            None,
        ),
        (
            "its claim is not made yet",
            world(
                tainted(),
                owned(gpu()),
                pod("web").on("n1").uses_template(None),
            ),
            None,
        ),
        (
            "its entry needs no claim",
            world(
                tainted(),
                owned(gpu()),
                pod("web").on("n1").uses_template(Some("")),
            ),
            None,
        ),
        (
            "tolerates all forever",
            world(tainted(), gpu().tolerates("", None), web()),
            None,
        ),
        (
            "tolerates it for a minute",
            world(tainted(), gpu().tolerates("broken", Some(60)), web()),
            Some(60),
        ),
        (
            "tolerates it for less than no time",
            world(tainted(), gpu().tolerates("broken", Some(-5)), web()),
            Some(0),
        ),
        (
            "of several tolerations the shortest that fits counts",
            world(
                tainted(),
                gpu()
                    .tolerates("other", Some(20))
                    .tolerates("", Some(60))
                    .tolerates("", Some(30)),
                web(),
            ),
            Some(30),
        ),
        (
            "one toleration forever outdoes those for a time",
            world(
                tainted(),
                gpu().tolerates("", Some(60)).tolerates("", None),
                web(),
            ),
            None,
        ),
        (
            "tolerates another key",
            world(tainted(), gpu().tolerates("other", Some(60)), web()),
            Some(0),
        ),
        (
            "tolerates the value",
            world(
                tainted(),
                gpu().tolerating(toleration("Equal", "bad", "NoExecute")),
                web(),
            ),
            None,
        ),
        (
            "an operator that is empty compares values",
            world(
                tainted(),
                gpu().tolerating(toleration("", "bad", "NoExecute")),
                web(),
            ),
            None,
        ),
        (
            "tolerates another value",
            world(
                tainted(),
                gpu().tolerating(toleration("Equal", "worse", "NoExecute")),
                web(),
            ),
            Some(0),
        ),
        (
            "an operator that nobody knows tolerates nothing",
            world(
                tainted(),
                gpu().tolerating(toleration("Like", "bad", "NoExecute")),
                web(),
            ),
            Some(0),
        ),
        (
            "tolerates another effect",
            world(
                tainted(),
                gpu().tolerating(toleration("Exists", "", "NoSchedule")),
                web(),
            ),
            Some(0),
        ),
        (
            "a toleration without an effect does not count",
            world(
                tainted(),
                gpu().tolerating(toleration("Exists", "", "")),
                web(),
            ),
            Some(0),
        ),
        (
            "tolerates one of two taints",
            world(
                two(broken("12:00:00"), taint("other", "NoExecute", "12:00:00")),
                gpu().tolerates("broken", None),
                web(),
            ),
            Some(0),
        ),
        (
            "of two taints the one that ends first counts",
            world(
                two(broken("12:00:00"), taint("other", "NoExecute", "12:00:00")),
                gpu()
                    .tolerates("broken", Some(60))
                    .tolerates("other", Some(30)),
                web(),
            ),
            Some(30),
        ),
        (
            "its device has a taint that begins later",
            world(
                slice("s1", "n1").device("gpu-0", &[broken("12:00:40")]),
                gpu(),
                web(),
            ),
            Some(40),
        ),
        (
            "time runs from when the taint has come",
            world(
                slice("s1", "n1").device("gpu-0", &[broken("11:59:30")]),
                gpu().tolerates("broken", Some(50)),
                web(),
            ),
            Some(20),
        ),
        (
            "effects besides NoExecute evict nobody",
            world(
                slice("s1", "n1").device(
                    "gpu-0",
                    &["None", "NoSchedule", "Unknown"]
                        .map(|effect| taint("broken", effect, "12:00:00")),
                ),
                gpu(),
                web(),
            ),
            None,
        ),
        (
            "a taint without a time evicts nobody",
            world(
                slice("s1", "n1").device(
                    "gpu-0",
                    &[DeviceTaint {
                        time_added: None,
                        ..broken("12:00:00")
                    }],
                ),
                gpu().tolerates("broken", Some(5)),
                web(),
            ),
            None,
        ),
        (
            "a slice of an older generation is out of date",
            world(tainted(), gpu(), web())
                .with(slice("s2", "n1").device("gpu-0", &[]).of_pool(2, 1)),
            None,
        ),
        (
            "a newer slice has the taint",
            world(slice("s1", "n1").device("gpu-0", &[]), gpu(), web())
                .with(tainted().of_pool(2, 1).named("s2")),
            Some(0),
        ),
        (
            "the older slice of another pool counts",
            world(tainted(), gpu(), web())
                .with(slice("s2", "n2").device("gpu-0", &[]).of_pool(2, 1)),
            Some(0),
        ),
    ] {
        let mut world = world;
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
                assert_eq!(world.events(), [MARKING], "{name}");
            }
        }
    }
}

trait Named {
    fn named(self, name: &str) -> Self;
}

impl Named for ResourceSlice {
    fn named(mut self, name: &str) -> Self {
        self.metadata_mut().name = name.into();
        self
    }
}

#[test]
fn claims_of_a_scheduling_group_count_where_the_gate_is_on() {
    let member = || user("web").in_group("workers");
    let mut made = gpus("made", &[("n1", "gpu-0")]).reserved_for_group("workers");
    let owner = |kind: &str, version: &str| OwnerReference {
        kind: kind.into(),
        name: "workers".into(),
        uid: "uid-workers".into(),
        api_version: version.into(),
        controller: Some(true),
        block_owner_deletion: None,
    };
    made.metadata_mut().owner_references =
        vec![owner("PodGroup", "scheduling.k8s.io/v1alpha3").into()];
    let mut foreign = made.clone();
    foreign.metadata_mut().owner_references = vec![owner("PodGroup", "other.io/v1").into()];
    let shared = gpus("gpu", &[("n1", "gpu-0")]).reserved_for_group("workers");
    let of_template = || {
        pod("web")
            .on("n1")
            .in_group("workers")
            .uses_template(Some("made"))
    };
    for (name, claim, pod, evicts) in [
        ("a shared claim", shared.clone(), member(), true),
        (
            "of another group",
            shared.clone(),
            user("web").in_group("others"),
            false,
        ),
        ("of no group", shared.clone(), user("web"), false),
        (
            "without the claim",
            shared,
            pod("web").on("n1").in_group("workers"),
            false,
        ),
        ("made for the group", made, of_template(), true),
        ("made for another kind", foreign, of_template(), false),
    ] {
        for on in [true, false] {
            let mut world = start()
                .without_collector()
                .flag(GROUPS, FlagValue::Bool(on))
                .with(tainted())
                .with(claim.clone())
                .with(pod.clone());
            run(&mut world, 100);
            let left = if on && evicts { 0 } else { 1 };
            assert_eq!(staying(&world).len(), left, "{name}, gate {on}");
        }
    }
    // The taint comes when the pod is there already.
    let mut world = start()
        .flag(GROUPS, FlagValue::Bool(true))
        .with(slice("s1", "n1").device("gpu-0", &[]))
        .with(gpus("gpu", &[("n1", "gpu-0")]).reserved_for_group("workers"))
        .with(member());
    let old = world.get::<ResourceSlice>("s1") as AnyObject;
    world.put(tainted());
    let new = world.get::<ResourceSlice>("s1") as AnyObject;
    assert_eq!(
        world.woken::<DeviceTaintEviction>(Some(&old), Some(&new)),
        ["default/web"]
    );
}

#[test]
fn a_pod_is_marked_and_deleted_by_its_uid_in_one_plan() {
    let mut world = start()
        .with(tainted())
        .with(gpu())
        .with(user("web").condition("Ready", "True", "11:00:00"))
        .later(7);
    let mut memory = Memory::default();
    let plan = world
        .plan_with::<DeviceTaintEviction>("web", &mut memory)
        .unwrap();
    assert_eq!(plan.verbs(), ["patch pods/web/status", "delete pods/web"]);
    assert_eq!(plan.stages.len(), 2, "the condition first");
    let [event] = &plan.events[..] else {
        panic!("{:?}", plan.events);
    };
    assert_eq!(event.about.resource_version, 0);
    assert_eq!(event.message, "Marking for deletion");
    let counted: Vec<String> = plan
        .counted
        .iter()
        .map(|set| format!("{} {}", set.resource.plural, set.namespace))
        .collect();
    assert_eq!(counted, ["resourceclaims default", "resourceslices "]);
    let ruled = with_rules(start())
        .with(gpu())
        .with(user("web"))
        .with(rule("bad", "NoExecute", None, "11:00:00"))
        .later(3);
    let counted = ruled.plan::<DeviceTaintEviction>("web").counted;
    assert_eq!(counted.last().unwrap().resource.plural, "devicetaintrules");
    let delete = plan.actions().last().unwrap();
    let pod = world.get::<Pod>("web");
    assert_eq!(delete.uid, Object::metadata(&*pod).uid);
    assert!(matches!(
        delete.verb,
        Verb::Delete {
            only: Only::ThisUid,
            grace_period_seconds: None,
            ..
        }
    ));
    let measured = &delete.announcement.as_ref().unwrap().measures;
    assert_eq!((measured[0].name, measured[0].value), (DELETIONS, 1.0));
    assert_eq!((measured[1].name, measured[1].value), (LATENCY, 7.0));
    world.apply(&plan).expect_success();
    let pod = world.get::<Pod>("web");
    let last = pod.status.as_ref().unwrap().conditions.last().unwrap();
    assert_eq!(
        (&*last.r#type, &*last.status, &*last.reason, &*last.message),
        (
            "DisruptionTarget",
            "True",
            "DeletionByDeviceTaintManager",
            "Device Taint manager: deleting due to NoExecute taint"
        )
    );
    let plan = world
        .plan_with::<DeviceTaintEviction>("web", &mut memory)
        .unwrap();
    assert!(plan.is_nothing(), "{:?}", plan.verbs());
    assert_eq!(memory, Memory::default());
}

#[test]
fn a_pod_that_has_the_condition_is_deleted_without_another_event() {
    let mut marked = user("web").condition("DisruptionTarget", "True", "11:00:00");
    let conditions = &mut marked.status.as_mut().unwrap().conditions;
    let mut condition = (*conditions[0]).clone();
    condition.reason = REASON.into();
    condition.message = MESSAGE.into();
    conditions[0] = condition.into();
    let world = start().with(tainted()).with(gpu()).with(marked);
    let plan = world.plan::<DeviceTaintEviction>("web");
    assert_eq!(plan.verbs(), ["delete pods/web"]);
    assert!(plan.events.is_empty());
}

#[test]
fn a_pod_that_is_being_deleted_is_left_alone() {
    let world = start()
        .with(tainted())
        .with(gpu())
        .with(user("web").terminating("11:59:59"));
    let mut memory = Memory {
        pending: Some("uid-pods-default-web".to_owned()),
        rule: None,
    };
    let plan = world
        .plan_with::<DeviceTaintEviction>("web", &mut memory)
        .unwrap();
    assert!(plan.is_nothing());
    assert_eq!(memory, Memory::default());
}

/// What happens while a pod's eviction is planned, and the result.
#[test]
fn a_planned_eviction_is_cancelled_where_its_reason_is_gone() {
    type Step = fn(&mut World);
    let table: [(&str, Step, &[&str]); 11] = [
        (
            "untainted",
            |world| {
                world.change::<ResourceSlice>("s1", |slice| {
                    slice.spec.as_mut().unwrap().devices[0].taints.clear();
                });
            },
            &[CANCELLING],
        ),
        (
            "of another effect now",
            |world| {
                world.change::<ResourceSlice>("s1", |slice| {
                    "NoSchedule"
                        .clone_into(&mut slice.spec.as_mut().unwrap().devices[0].taints[0].effect);
                });
            },
            &[CANCELLING],
        ),
        (
            "slice removed",
            |world| world.vanish::<ResourceSlice>("s1"),
            &[CANCELLING],
        ),
        (
            "replaced by a slice without the taint",
            |world| {
                world.vanish::<ResourceSlice>("s1");
                world.put(slice("s2", "n1").device("gpu-0", &[]).of_pool(2, 1));
            },
            &[CANCELLING],
        ),
        (
            "out of date beside a newer slice",
            |world| world.put(slice("s2", "n1").device("gpu-0", &[]).of_pool(2, 1)),
            &[CANCELLING],
        ),
        (
            "deallocated",
            |world| {
                world.change::<ResourceClaim>("gpu", |claim| {
                    claim.status.as_mut().unwrap().allocation = None;
                });
            },
            &[CANCELLING],
        ),
        (
            "no longer reserved",
            |world| {
                world.change::<ResourceClaim>("gpu", |claim| {
                    claim.status.as_mut().unwrap().reserved_for.clear();
                });
            },
            &[CANCELLING],
        ),
        (
            "claim removed",
            |world| world.vanish::<ResourceClaim>("gpu"),
            &[CANCELLING],
        ),
        ("pod removed", |world| world.vanish::<Pod>("web"), &[]),
        ("pod deleted", |world| world.delete::<Pod>("web"), &[]),
        (
            "another taint that is not tolerated",
            |world| {
                world.change::<ResourceSlice>("s1", |slice| {
                    "worse".clone_into(&mut slice.spec.as_mut().unwrap().devices[0].taints[0].key);
                });
            },
            &[MARKING],
        ),
    ];
    for (name, step, events) in table {
        let factories = [Factory::of::<DeviceTaintEviction>()];
        let mut world = start()
            .with(tainted())
            .with(gpu().tolerates("broken", Some(60)))
            .with(user("web"));
        let mut memory = Memory::default();
        let plan = world
            .plan_with::<DeviceTaintEviction>("web", &mut memory)
            .unwrap();
        assert!(plan.is_nothing());
        assert_eq!(plan.requeue, controllers_kit::Requeue::At(at("12:01:00")));
        let before = world.clone();
        step(&mut world);
        let woken = woken_between(&before, &world);
        assert!(
            woken.contains(&"default/web".to_owned()),
            "{name}: {woken:?}"
        );
        let plan = world
            .plan_with::<DeviceTaintEviction>("web", &mut memory)
            .unwrap();
        let found: Vec<&str> = plan.events.iter().map(|event| &*event.message).collect();
        let expected: Vec<&str> = events
            .iter()
            .map(|event| event.rsplit_once("Eviction ").unwrap().1)
            .collect();
        assert_eq!(found, expected, "{name}");
        world.apply(&plan).expect_success();
        // Nothing is left for later.
        world.settle_for(600, &factories);
        assert_eq!(world.events(), events, "{name}");
    }
}

/// The keys that the changes of slices, claims, rules and pods between two worlds wake.
fn woken_between(before: &World, after: &World) -> Vec<String> {
    let mut keys = Vec::new();
    let place = |object: &AnyObject| (object.resource(), Key::of_meta(object.metadata()));
    let olds: Vec<&AnyObject> = before.objects().collect();
    let news: Vec<&AnyObject> = after.objects().collect();
    let find = |among: &[&AnyObject], one: &AnyObject| {
        let same = |other: &&&AnyObject| place(other) == place(one);
        among.iter().find(same).map(|found| (*found).clone())
    };
    for old in &olds {
        let new = find(&news, old);
        let same = new
            .as_ref()
            .is_some_and(|new| new.metadata().resource_version == old.metadata().resource_version);
        if !same {
            keys.extend(after.woken::<DeviceTaintEviction>(Some(old), new.as_ref()));
        }
    }
    for new in &news {
        if find(&olds, new).is_none() {
            keys.extend(after.woken::<DeviceTaintEviction>(None, Some(new)));
        }
    }
    keys
}

#[test]
fn a_pod_wakes_its_key_where_something_of_its_devices_changes() {
    let world = with_rules(start())
        .with(tainted())
        .with(gpu())
        .with(user("web"));
    let woken = |old: Option<AnyObject>, new: Option<AnyObject>| {
        world.woken::<DeviceTaintEviction>(old.as_ref(), new.as_ref())
    };
    let any = |pod: Pod| Some(std::sync::Arc::new(pod) as AnyObject);
    let web = || user("web");
    assert_eq!(woken(None, any(web())), ["default/web"]);
    assert_eq!(woken(any(web()), None), ["default/web"]);
    assert_eq!(
        woken(any(pod("web").uses("gpu")), any(web())),
        ["default/web"],
        "bound"
    );
    assert!(woken(any(web()), any(web().running())).is_empty());
    let marked = web().condition("DisruptionTarget", "True", "12:00:00");
    assert!(woken(any(web()), any(marked)).is_empty());
    assert!(
        woken(None, any(pod("other").on("n1"))).is_empty(),
        "no claims"
    );
    let replaced = woken(any(web()), any(pod("web").uid("next").on("n1")));
    assert_eq!(replaced, ["default/web"], "another pod without claims");
    let old = web().uses_template(None);
    let made = web().uses_template(Some("gpu"));
    assert_eq!(woken(any(old), any(made)), ["default/web"]);

    let claim = |claim: ResourceClaim| Some(std::sync::Arc::new(claim) as AnyObject);
    assert_eq!(woken(None, claim(gpu())), ["default/web"]);
    assert!(woken(claim(gpu()), claim(gpu())).is_empty());
    let labelled = gpu().label("a", "b");
    assert!(woken(claim(gpu()), claim(labelled)).is_empty());
    let other = gpu().reserved(&user("next"));
    assert_eq!(
        woken(claim(gpu()), claim(other)),
        ["default/next", "default/web"]
    );
    assert!(woken(None, claim(gpu().unallocated())).is_empty());

    let one = |slice: ResourceSlice| Some(std::sync::Arc::new(slice) as AnyObject);
    let more = tainted().device("gpu-2", &[broken("12:00:00")]);
    assert!(
        woken(one(tainted()), one(more)).is_empty(),
        "another device"
    );
    let good = slice("s1", "n1").device("gpu-0", &[]);
    assert_eq!(woken(one(good.clone()), one(tainted())), ["default/web"]);
    assert!(woken(None, one(slice("s9", "n9").device("gpu-0", &[]))).is_empty());
    assert_eq!(
        woken(None, one(good.named("s2").of_pool(2, 1))),
        ["default/web"],
        "an older slice counts no more"
    );
}

/// Rules, claims by their devices, and what the condition of the rule says before and after.
#[test]
fn a_rule_s_condition_counts_the_pods_that_it_evicts_and_has_evicted() {
    let far = || {
        let mut far = user("web");
        far.metadata_mut().namespace = "shop".into();
        far.uid("far")
    };
    let mut elsewhere = gpus("gpu", &[("n1", "gpu-1")]).reserved(&far());
    elsewhere.metadata_mut().namespace = "shop".into();
    let next = || pod("next").on("n1").uses("more");
    let more = gpus("more", &[("n1", "gpu-1"), ("n2", "gpu-0")]).reserved(&next());
    for (name, world, pending, evicted) in [
        ("nobody", start().with(gpu()), None, None),
        (
            "one",
            start().with(gpu()).with(user("web")),
            Some("1 pod needs to be evicted in 1 namespace."),
            Some("1 pod evicted since starting the controller."),
        ),
        (
            "two in one namespace",
            start()
                .with(gpu())
                .with(user("web"))
                .with(more)
                .with(next()),
            Some("2 pods need to be evicted in 1 namespace."),
            Some("2 pods evicted since starting the controller."),
        ),
        (
            "two in two namespaces",
            start()
                .with(gpu())
                .with(user("web"))
                .with(elsewhere)
                .with(far()),
            Some("2 pods need to be evicted in 2 different namespaces."),
            Some("2 pods evicted since starting the controller."),
        ),
        (
            "one with two claims",
            start()
                .with(gpu())
                .with(gpus("more", &[("n1", "gpu-1")]).reserved(&user("web")))
                .with(user("web").uses("more")),
            Some("1 pod needs to be evicted in 1 namespace."),
            Some("1 pod evicted since starting the controller."),
        ),
    ] {
        let mut world = with_rules(world).with(rule("bad", "NoExecute", None, "12:00:00"));
        run(&mut world, 5);
        match pending {
            Some(message) => says(&world, "bad", "True", "PodsPendingEviction", message),
            None => says(&world, "bad", "False", "NotStarted", ""),
        }
        assert_eq!(since(&world, "bad"), at("12:00:00"), "{name}");
        assert!(staying(&world).is_empty(), "{name}");
        run(&mut world, 20);
        match evicted {
            Some(message) => {
                says(&world, "bad", "False", "Completed", message);
                let apart = since(&world, "bad").duration_since(at("12:00:00"));
                assert!(apart >= SignedDuration::from_secs(10), "{name}: {apart:?}");
            }
            None => {
                says(&world, "bad", "False", "NotStarted", "");
                assert_eq!(since(&world, "bad"), at("12:00:00"), "written once");
            }
        }
    }
}

#[test]
fn a_rule_without_effect_counts_what_it_would_evict() {
    let tail = "if the effect was NoExecute. This information will not be updated again. Recreate the DeviceTaintRule to trigger an update.";
    let next = || pod("next").on("n1").uses("more");
    let more = gpus("more", &[("n1", "gpu-1"), ("n2", "gpu-0")]).reserved(&next());
    for (world, head) in [
        (
            start().with(tainted()).with(gpu()).with(user("web")),
            "2 published devices selected. 1 allocated device selected. 1 pod would be evicted in 1 namespace",
        ),
        (
            start()
                .with(gpu())
                .with(user("web"))
                .with(more)
                .with(next()),
            "0 published devices selected. 3 allocated devices selected. 2 pods would be evicted in 1 namespace",
        ),
        (
            start()
                .with(slice("s1", "n1").device("gpu-0", &[]))
                .with(slice("s0", "n1").device("gpu-7", &[]).of_pool(0, 1)),
            "1 published device selected. 0 allocated devices selected. 0 pods would be evicted in 0 different namespaces",
        ),
    ] {
        let mut world = with_rules(world).with(rule("bad", "None", None, "12:00:00"));
        // Taints of slices evict as ever.
        world.change::<DeviceTaintRule>("bad", |rule| {
            "other".clone_into(&mut rule.spec.as_mut().unwrap().taint.as_mut().unwrap().key);
        });
        if let Some(slice) = world.find::<ResourceSlice>("s1") {
            let mut slice = (*slice).clone();
            for device in &mut slice.spec.as_mut().unwrap().devices {
                device.taints.clear();
            }
            world.put(slice);
        }
        run(&mut world, 60);
        says(
            &world,
            "bad",
            "False",
            "NoEffect",
            &format!("{head} {tail}"),
        );
        assert!(world.events().is_empty());
        let before = since(&world, "bad");
        world.put(slice("s5", "n5").device("gpu-0", &[]));
        run(&mut world, 60);
        assert_eq!(since(&world, "bad"), before, "it is not updated again");
    }
}

#[test]
fn a_rule_of_another_effect_says_that_it_evicts_nobody() {
    let mut world = with_rules(start()).with(gpu()).with(user("web")).with(rule(
        "bad",
        "NoSchedule",
        None,
        "12:00:00",
    ));
    run(&mut world, 60);
    let message = "Eviction only happens for the NoExecute effect.";
    says(&world, "bad", "False", "OtherEffect", message);
    assert_eq!(staying(&world), ["web"]);
    // It begins to evict.
    world.change::<DeviceTaintRule>("bad", |rule| {
        NO_EXECUTE.clone_into(&mut rule.spec.as_mut().unwrap().taint.as_mut().unwrap().effect);
    });
    run(&mut world, 60);
    assert!(staying(&world).is_empty());
    let evicted = "1 pod evicted since starting the controller.";
    says(&world, "bad", "False", "Completed", evicted);
}

#[test]
fn rules_select_devices_by_what_their_selector_names() {
    let all = Some(DeviceTaintSelector::default());
    let only = |driver: Option<&str>, pool: Option<&str>, device: Option<&str>| {
        Some(DeviceTaintSelector {
            driver: driver.map(str::to_owned),
            pool: pool.map(str::to_owned),
            device: device.map(str::to_owned),
        })
    };
    for (selector, selects) in [
        (None, false),
        (all, true),
        (only(Some(DRIVER), None, None), true),
        (only(Some("other"), None, None), false),
        (only(None, Some("n1"), None), true),
        (only(None, Some("n2"), None), false),
        (only(Some(DRIVER), Some("n1"), Some("gpu-0")), true),
        (only(Some(DRIVER), Some("n1"), Some("gpu-1")), false),
    ] {
        let mut bad = rule("bad", "NoExecute", None, "12:00:00");
        bad.spec
            .as_mut()
            .unwrap()
            .device_selector
            .clone_from(&selector);
        let mut world = with_rules(start()).with(gpu()).with(user("web")).with(bad);
        run(&mut world, 60);
        assert_eq!(staying(&world).is_empty(), selects, "{selector:?}");
    }
}

#[test]
fn a_pod_is_counted_by_every_rule_among_its_reasons() {
    // The second taint is in the future, and the pod has gone by then.
    let mut world = with_rules(start())
        .with(gpu())
        .with(gpus("more", &[("n1", "gpu-1")]).reserved(&user("web")))
        .with(user("web").uses("more"))
        .with(rule("first", "NoExecute", Some("gpu-0"), "12:00:00"))
        .with(rule("later", "NoExecute", Some("gpu-1"), "12:00:40"));
    run(&mut world, 30);
    assert_eq!(world.events(), [MARKING]);
    for rule in ["first", "later"] {
        let message = "1 pod evicted since starting the controller.";
        says(&world, rule, "False", "Completed", message);
    }
}

#[test]
fn a_toleration_delays_what_a_rule_evicts() {
    let mut world = with_rules(start())
        .with(gpu().tolerates("broken", Some(60)))
        .with(user("web"))
        .with(rule("bad", "NoExecute", None, "12:00:00"));
    let pending = "1 pod needs to be evicted in 1 namespace.";
    run(&mut world, 59);
    says(&world, "bad", "True", "PodsPendingEviction", pending);
    assert_eq!(
        since(&world, "bad"),
        at("12:00:00"),
        "nothing new to publish"
    );
    assert_eq!(staying(&world), ["web"]);
    run(&mut world, 1);
    assert!(staying(&world).is_empty());
    run(&mut world, 30);
    let message = "1 pod evicted since starting the controller.";
    says(&world, "bad", "False", "Completed", message);
}

#[test]
fn without_the_gate_rules_are_neither_watched_nor_obeyed() {
    let mut world =
        start()
            .with(gpu())
            .with(user("web"))
            .with(rule("bad", "NoExecute", None, "12:00:00"));
    run(&mut world, 60);
    assert_eq!(staying(&world), ["web"]);
    assert!(world.get::<DeviceTaintRule>("bad").status.is_none());
    let bad = world.get::<DeviceTaintRule>("bad") as AnyObject;
    assert!(
        world
            .woken::<DeviceTaintEviction>(None, Some(&bad))
            .is_empty()
    );
}

#[test]
fn pods_of_a_rule_wait_for_its_status_but_not_for_long() {
    let current = |generation| DeviceTaintRuleStatus {
        conditions: vec![Condition {
            r#type: "EvictionInProgress".to_owned(),
            status: "True".to_owned(),
            observed_generation: generation,
            ..Condition::default()
        }],
    };
    let world = |status: Option<DeviceTaintRuleStatus>| {
        let mut bad = rule("bad", "NoExecute", None, "12:00:00").generation(2);
        bad.status = status;
        with_rules(start()).with(gpu()).with(user("web")).with(bad)
    };
    let waits = |world: &World| world.plan::<DeviceTaintEviction>("web").is_nothing();
    assert!(waits(&world(None)));
    assert!(
        waits(&world(Some(current(1)))),
        "of the rule before it was changed"
    );
    assert!(!waits(&world(Some(current(2)))));
    assert_eq!(
        world(None).plan::<DeviceTaintEviction>("web").requeue,
        controllers_kit::Requeue::At(at("12:00:03"))
    );
    assert!(!waits(&world(None).later(3)));
    // A taint of a slice is not the rule's to publish, but the pod is counted by the rule, too.
    assert!(waits(&world(None).with(tainted())));
    // What is published wakes the pods.
    let (before, after) = (world(None), world(Some(current(2))));
    let old = before.get::<DeviceTaintRule>("bad") as AnyObject;
    let new = after.get::<DeviceTaintRule>("bad") as AnyObject;
    let woken = after.woken::<DeviceTaintEviction>(Some(&old), Some(&new));
    assert_eq!(woken, ["bad", "default/web"]);
    let woken = after.woken::<DeviceTaintEviction>(Some(&new), Some(&new));
    assert_eq!(woken, ["bad"]);
    let woken = after.woken::<DeviceTaintEviction>(Some(&new), None);
    assert_eq!(woken, ["bad", "default/web"]);
}

/// Plans the status of a rule, with a memory; what it says, where it writes.
fn publish(world: &mut World, memory: &mut Memory) -> Option<String> {
    let bad = world.get::<DeviceTaintRule>("bad");
    let plan = world
        .plan_with::<DeviceTaintEviction>("/bad", memory)
        .unwrap();
    let wrote = !plan.is_nothing();
    if wrote {
        let [action] = &plan.actions().collect::<Vec<_>>()[..] else {
            panic!("{:?}", plan.verbs());
        };
        assert!(matches!(
            action.verb,
            Verb::Patch {
                subresource: "status",
                kind: PatchKind::Apply { manager: NAME },
                ..
            }
        ));
        assert_eq!(action.uid, Object::metadata(&*bad).uid);
        assert_eq!(
            action.resource_version,
            Object::metadata(&*bad).resource_version
        );
    }
    world.apply(&plan).expect_success();
    wrote.then(|| said(world, "bad").2)
}

#[test]
fn an_eviction_is_counted_once_across_owners_of_the_rule_s_key() {
    let names = ["at-once", "gracefully", "by-others", "untouched"];
    let mut world = with_rules(start()).with(rule("bad", "NoExecute", None, "12:00:00"));
    for name in names {
        let pod = pod(name).on("n1").uses(name);
        world.put(
            gpus(name, &[("n1", name)])
                .reserved(&pod)
                .tolerates("broken", Some(30)),
        );
        world.put(pod);
    }
    let mut memory = Memory::default();
    assert_eq!(
        publish(&mut world, &mut memory).as_deref(),
        Some("4 pods need to be evicted in 1 namespace.")
    );
    // A pod that somebody else removes before its time is not counted.
    world = world.later(5);
    world.vanish::<Pod>("by-others");
    assert_eq!(publish(&mut world, &mut memory), None, "not yet");
    // Handed over: the memory travels.
    let packed = serde_json::to_vec(&memory).unwrap();
    let mut memory: Memory = serde_json::from_slice(&packed).unwrap();
    world = world.later(25);
    world.vanish::<Pod>("at-once");
    let plan = world.plan::<DeviceTaintEviction>("gracefully");
    world.apply(&plan).expect_success();
    assert!(world.get::<Pod>("gracefully").is_terminating());
    assert_eq!(
        publish(&mut world, &mut memory).as_deref(),
        Some(
            "1 pod needs to be evicted in 1 namespace. 2 pods evicted since starting the controller."
        )
    );
    world = world.later(60);
    world.vanish::<Pod>("gracefully");
    assert_eq!(publish(&mut world, &mut memory), None, "counted once");
    // Lost in a crash: what is being deleted is still seen.
    let plan = world.plan::<DeviceTaintEviction>("untouched");
    world.apply(&plan).expect_success();
    let mut fresh = Memory::default();
    assert_eq!(publish(&mut world, &mut fresh), None, "collected for 10 s");
    world = world.later(10);
    assert_eq!(
        publish(&mut world, &mut fresh).as_deref(),
        Some("1 pod evicted since starting the controller.")
    );
    // Another rule of the same name begins again.
    world.vanish::<DeviceTaintRule>("bad");
    world.put(rule("bad", "NoExecute", None, "12:00:00").uid("second"));
    world.vanish::<Pod>("untouched");
    assert_eq!(publish(&mut world, &mut fresh).as_deref(), Some(""));
}

#[test]
fn a_rule_s_status_is_written_ten_seconds_apart_however_much_happens() {
    let mut world = with_rules(start()).with(rule("bad", "NoExecute", None, "12:00:00"));
    let mut memory = Memory::default();
    let mut written = Vec::new();
    for second in 0..60 {
        let name = format!("pod-{second}");
        let pod = pod(&name).on("n1").uses(&name);
        world.put(
            gpus(&name, &[("n1", &name)])
                .reserved(&pod)
                .tolerates("broken", Some(3600)),
        );
        world.put(pod);
        if publish(&mut world, &mut memory).is_some() {
            written.push(second);
        }
        if second == 29 {
            // A clock that is ahead by five seconds: the age of what is waited for stays.
            let by = SignedDuration::from_secs(5);
            DeviceTaintEviction {
                rules: true,
                groups: false,
            }
            .shift(&mut memory, by);
            world = world.later(5);
        }
        world = world.later(1);
    }
    assert_eq!(written, [0, 11, 22, 33, 44, 55]);
}

#[test]
fn the_status_of_a_changed_rule_is_written_at_once() {
    let mut world = with_rules(start())
        .with(gpu().tolerates("broken", Some(3600)))
        .with(user("web"))
        .with(rule("bad", "NoExecute", None, "12:00:00"));
    let mut memory = Memory::default();
    assert!(publish(&mut world, &mut memory).is_some());
    world.change::<DeviceTaintRule>("bad", |rule| {
        "None".clone_into(&mut rule.spec.as_mut().unwrap().taint.as_mut().unwrap().effect);
    });
    let said = publish(&mut world, &mut memory).expect("the generation is another");
    assert!(
        said.starts_with("0 published devices selected. 1 allocated device"),
        "{said}"
    );
}

#[test]
fn a_rule_with_many_pods_is_not_counted_at_every_change() {
    let mut world = with_rules(start()).with(rule("bad", "NoExecute", None, "12:00:00"));
    let pods: Vec<Pod> = (0..1001)
        .map(|number| pod(&format!("pod-{number}")).on("n1").uses("gpu"))
        .collect();
    let claim = pods
        .iter()
        .fold(gpus("gpu", &[("n1", "gpu-0")]), |claim, pod| {
            claim.reserved(pod)
        });
    world.put(claim.tolerates("broken", Some(3600)));
    for pod in pods {
        world.put(pod);
    }
    let mut memory = Memory::default();
    assert_eq!(
        publish(&mut world, &mut memory).as_deref(),
        Some("1001 pods need to be evicted in 1 namespace.")
    );
    let plan = world
        .plan_with::<DeviceTaintEviction>("/bad", &mut memory)
        .unwrap();
    assert_eq!(plan.requeue, controllers_kit::Requeue::At(at("12:00:01")));
    let plan = world
        .later(1)
        .plan_with::<DeviceTaintEviction>("/bad", &mut memory)
        .unwrap();
    assert_eq!(plan.requeue, controllers_kit::Requeue::Never);
}

#[test]
fn flags_gates_and_names_are_upstream_s() {
    let descriptor = DeviceTaintEviction::describe();
    assert!(descriptor.aliases.is_empty());
    assert!(descriptor.on_by_default);
    assert_eq!(descriptor.workers, Some((WORKERS, 8)));
    assert_eq!(descriptor.bounds, [(WORKERS, 1, i64::from(i32::MAX))]);
    assert_eq!(
        descriptor.service_account,
        "device-taint-eviction-controller"
    );
    assert_eq!(descriptor.queue, "device-taint-eviction-controller");
    let mut flags = Flags::defaults([&descriptor]);
    assert_eq!((descriptor.runs)(&flags), Runs::Yes);
    flags.set(TAINTS, FlagValue::Bool(false));
    assert!(matches!((descriptor.runs)(&flags), Runs::No(_)));
    let watched = |rules: bool| {
        let mut flags = Flags::defaults([&descriptor]);
        flags.set(RULES, FlagValue::Bool(rules));
        let mut watches = controllers_kit::Watches::default();
        DeviceTaintEviction::new(&flags).watch(&mut watches);
        let names = watches.subscriptions.iter().map(|one| one.resource.plural);
        names.collect::<Vec<_>>()
    };
    assert_eq!(watched(false), ["pods", "resourceclaims", "resourceslices"]);
    assert_eq!(watched(true).last(), Some(&"devicetaintrules"));
}
