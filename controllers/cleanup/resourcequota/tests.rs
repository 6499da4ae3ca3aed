use std::{collections::BTreeMap, time::Duration};

use controllers_kit::{
    Answers, AnyObject, Controller, DynChange, Entry, FlagValue, Key, Plan, Reader as _, Requeue,
    Snapshot, Standing, Verb, Watches, catalogue::Catalogue, testing::*,
};
use kubernetes_proto::{
    Object, Shared,
    core::{
        Affinity, Amount, ConfigMap, Container, ContainerStatus, InitContainer, ModifyVolumeStatus,
        PersistentVolumeClaim, Pod, PodAffinity, PodAffinityTerm, PodAntiAffinity,
        PodExtendedResourceClaimStatus, PodSpec, ResourceQuota, ResourceRequirements,
        ScopeSelector, ScopedResourceSelectorRequirement, Service, VolumeResourceRequirements,
        WeightedPodAffinityTerm,
    },
    meta::{LabelSelector, ObjectMeta, Quantity, Time},
    metadata_only,
    resource::{
        DeviceClaim, DeviceClass, DeviceClassSpec, DeviceRequest, DeviceSubRequest,
        ExactDeviceRequest, ResourceClaim, ResourceClaimSpec,
    },
};
use serde_json::{Value, json};

use super::{Gates, ResourceQuotas, plan, replenish};

const GATES: Gates = Gates {
    extended_resources: true,
    pod_level_resources: true,
};

/// `cpu=1 memory=64Mi` as a list of amounts.
fn amounts(text: &str) -> Vec<Amount> {
    text.split_whitespace()
        .map(|part| {
            let (name, amount) = part.split_once('=').unwrap();
            Amount {
                key: name.into(),
                value: Some(Quantity::text(amount)),
            }
        })
        .collect()
}

fn quota(name: &str, hard: &str) -> ResourceQuota {
    let mut quota = ResourceQuota::default();
    let meta = quota.metadata_mut();
    meta.name = name.into();
    meta.namespace = "default".into();
    quota.spec.get_or_insert_default().hard = amounts(hard);
    quota
}

/// A quota whose status reports `used` of its limits.
fn reported(name: &str, hard: &str, used: &str) -> ResourceQuota {
    let mut quota = quota(name, hard);
    let status = quota.status.get_or_insert_default();
    status.hard = amounts(hard);
    status.used = amounts(used);
    quota
}

fn selecting(
    mut quota: ResourceQuota,
    scope: &str,
    operator: &str,
    values: &[&str],
) -> ResourceQuota {
    let selector = &mut quota.spec.get_or_insert_default().scope_selector;
    let expressions = &mut selector
        .get_or_insert_with(ScopeSelector::default)
        .match_expressions;
    expressions.push(ScopedResourceSelectorRequirement {
        scope_name: scope.to_owned(),
        operator: operator.to_owned(),
        values: values.iter().map(|value| (*value).to_owned()).collect(),
    });
    quota
}

fn scoped(mut quota: ResourceQuota, scope: &str) -> ResourceQuota {
    quota
        .spec
        .get_or_insert_default()
        .scopes
        .push(scope.to_owned());
    quota
}

fn requirements(requests: &str, limits: &str) -> Option<Shared<ResourceRequirements>> {
    Some(Shared::from(ResourceRequirements {
        requests: amounts(requests),
        limits: amounts(limits),
    }))
}

fn container(name: &str, requests: &str, limits: &str) -> Container {
    Container {
        name: name.into(),
        resources: requirements(requests, limits),
        ..Container::default()
    }
}

fn init(name: &str, requests: &str, limits: &str) -> InitContainer {
    InitContainer {
        name: name.into(),
        resources: requirements(requests, limits),
        ..InitContainer::default()
    }
}

fn sidecar(name: &str, requests: &str, limits: &str) -> InitContainer {
    InitContainer {
        restart_policy: "Always".into(),
        ..init(name, requests, limits)
    }
}

fn with_spec(name: &str, change: impl FnOnce(&mut PodSpec)) -> Pod {
    let mut pod = pod(name).in_namespace("default").phase("Running");
    change(pod.spec.get_or_insert_default());
    pod
}

fn asking(name: &str, requests: &str, limits: &str) -> Pod {
    with_spec(name, |spec| {
        spec.containers = vec![container("main", requests, limits)];
    })
}

/// The usage that is written for the quota `all`, as in `cpu=1 pods=2`; nothing where nothing would be
/// written.
fn used(world: &World) -> String {
    used_with(world, "all")
}

fn used_with(world: &World, name: &str) -> String {
    let mut world = world.clone();
    let plan = world.plan::<ResourceQuotas>(name);
    world.apply(&plan).expect_success();
    let quota = world.get::<ResourceQuota>(name);
    let status = quota.status.clone().unwrap_or_default();
    let mut lines: Vec<String> = status
        .used
        .iter()
        .map(|amount| format!("{}={}", amount.key, amount.value.as_ref().unwrap().string))
        .collect();
    lines.sort();
    lines.join(" ")
}

fn world() -> World {
    World::at("12:00:00").without_kubelets()
}

fn patch(world: &World, name: &str) -> Option<Value> {
    let plan = world.plan::<ResourceQuotas>(name);
    let mut actions = plan.actions();
    let action = actions.next()?;
    assert!(actions.next().is_none(), "{:?}", plan.verbs());
    assert_eq!(
        action.to_string(),
        format!("patch resourcequotas/{name}/status")
    );
    let Verb::Patch { patch, .. } = &action.verb else {
        panic!("{action:?}");
    };
    Some(patch.clone())
}

#[test]
fn limits_and_usage_are_reported_whole() {
    let world = world()
        .with(quota(
            "all",
            "pods=10 cpu=4 requests.memory=1Gi limits.cpu=8",
        ))
        .with(asking("a", "cpu=100m memory=64Mi", "cpu=1"))
        .with(asking("b", "cpu=900m memory=64Mi", "cpu=500m"));
    assert_eq!(
        patch(&world, "all").unwrap(),
        json!({"status": {
            "hard": {"cpu": "4", "limits.cpu": "8", "pods": "10", "requests.memory": "1Gi"},
            "used": {"cpu": "1", "limits.cpu": "1500m", "pods": "2", "requests.memory": "128Mi"},
        }})
    );
}

#[test]
fn every_name_of_a_compute_resource_is_charged() {
    let world = world()
        .with(quota(
            "all",
            "cpu=9 requests.cpu=9 limits.cpu=9 memory=9Gi requests.memory=9Gi limits.memory=9Gi \
             ephemeral-storage=9Gi requests.ephemeral-storage=9Gi limits.ephemeral-storage=9Gi \
             hugepages-2Mi=9Gi requests.hugepages-2Mi=9Gi requests.example.com/gpu=9 \
             requests.requests.example.com/gpu=9 pods=9 count/pods=9",
        ))
        .with(asking(
            "a",
            "cpu=1 memory=1Gi ephemeral-storage=1G hugepages-2Mi=4Mi example.com/gpu=2",
            "cpu=2 memory=2Gi ephemeral-storage=2G hugepages-2Mi=4Mi example.com/gpu=2",
        ));
    assert_eq!(
        used(&world),
        "count/pods=1 cpu=1 ephemeral-storage=1G hugepages-2Mi=4Mi limits.cpu=2 \
         limits.ephemeral-storage=2G limits.memory=2Gi memory=1Gi pods=1 requests.cpu=1 \
         requests.ephemeral-storage=1G requests.example.com/gpu=2 requests.hugepages-2Mi=4Mi \
         requests.memory=1Gi requests.requests.example.com/gpu=0"
    );
}

#[test]
fn limits_that_can_not_be_calculated_are_not_reported() {
    let world = world().with(quota(
        "all",
        "pods=1 limits.example.com/gpu=1 foo=1 count/widgets.example.com=1 count/events=1",
    ));
    assert_eq!(used(&world), "pods=0");
}

#[test]
fn containers_that_run_together_add_up_and_the_largest_that_initializes_counts() {
    type Make = fn(&mut PodSpec);
    let table: &[(&str, Make, &str)] = &[
        (
            "two containers",
            |spec| {
                spec.containers = vec![
                    container("a", "cpu=1", "cpu=2"),
                    container("b", "cpu=500m", ""),
                ];
            },
            "cpu=1500m limits.cpu=2",
        ),
        (
            "a larger init container",
            |spec| {
                spec.containers = vec![container("a", "cpu=1", "cpu=1")];
                spec.init_containers = vec![init("i", "cpu=3", "cpu=4"), init("j", "cpu=2", "")];
            },
            "cpu=3 limits.cpu=4",
        ),
        (
            "a smaller init container",
            |spec| {
                spec.containers = vec![container("a", "cpu=3", "cpu=3")];
                spec.init_containers = vec![init("i", "cpu=1", "cpu=1")];
            },
            "cpu=3 limits.cpu=3",
        ),
        (
            "a sidecar runs beside the containers",
            |spec| {
                spec.containers = vec![container("a", "cpu=1", "cpu=1")];
                spec.init_containers = vec![sidecar("s", "cpu=2", "cpu=3")];
            },
            "cpu=3 limits.cpu=4",
        ),
        (
            "an init container runs beside the sidecars before it",
            |spec| {
                spec.containers = vec![container("a", "cpu=1", "cpu=1")];
                spec.init_containers = vec![
                    init("first", "cpu=4", "cpu=4"),
                    sidecar("s", "cpu=2", "cpu=2"),
                    init("second", "cpu=3", "cpu=3"),
                ];
            },
            "cpu=5 limits.cpu=5",
        ),
        (
            "overhead comes on top, on limits only where there are any",
            |spec| {
                spec.containers = vec![container("a", "cpu=1", "")];
                spec.overhead = amounts("cpu=250m");
            },
            "cpu=1250m limits.cpu=0",
        ),
        (
            "overhead on limits",
            |spec| {
                spec.containers = vec![container("a", "", "cpu=1")];
                spec.overhead = amounts("cpu=250m");
            },
            "cpu=250m limits.cpu=1250m",
        ),
        (
            "what the pod says as a whole replaces what containers say",
            |spec| {
                spec.containers = vec![container("a", "cpu=1", "cpu=1")];
                spec.init_containers = vec![init("i", "cpu=9", "cpu=9")];
                spec.resources = requirements("cpu=2", "cpu=3");
                spec.overhead = amounts("cpu=1");
            },
            "cpu=3 limits.cpu=4",
        ),
        (
            "the pod says requests alone",
            |spec| {
                spec.containers = vec![container("a", "cpu=1", "cpu=1")];
                spec.resources = requirements("cpu=2", "");
            },
            "cpu=2 limits.cpu=1",
        ),
    ];
    for (what, make, expected) in table {
        let world = world()
            .with(quota("all", "cpu=99 limits.cpu=99"))
            .with(with_spec("a", make));
        assert_eq!(used(&world), *expected, "{what}");
    }
    let without = world()
        .flag("PodLevelResources", FlagValue::Bool(false))
        .with(quota("all", "cpu=99"))
        .with(with_spec("a", |spec| {
            spec.containers = vec![container("a", "cpu=1", "")];
            spec.resources = requirements("cpu=2", "");
        }));
    assert_eq!(used(&without), "cpu=1");
}

fn resized(wanted: &str, running: &str, set_aside: &str, infeasible: bool) -> Pod {
    let mut pod = asking("a", wanted, wanted);
    let status = pod.status.get_or_insert_default();
    status.container_statuses = vec![ContainerStatus {
        name: "main".into(),
        allocated_resources: amounts(set_aside),
        resources: requirements(running, running),
        ..ContainerStatus::default()
    }];
    if infeasible {
        pod = PodBuild::condition(pod, "PodResizePending", "True", "11:00:00");
        pod.status.as_mut().unwrap().conditions[0].reason = "Infeasible".into();
    }
    pod
}

#[test]
fn while_a_pod_is_resized_the_larger_size_counts() {
    for (wanted, running, set_aside, infeasible, expected) in [
        ("cpu=2", "cpu=1", "cpu=1", false, "cpu=2 limits.cpu=2"),
        ("cpu=1", "cpu=2", "cpu=1", false, "cpu=2 limits.cpu=2"),
        ("cpu=1", "cpu=1", "cpu=3", false, "cpu=3 limits.cpu=1"),
        ("cpu=9", "cpu=1", "cpu=2", true, "cpu=2 limits.cpu=1"),
        ("cpu=1", "cpu=1", "cpu=1", false, "cpu=1 limits.cpu=1"),
    ] {
        let world = world()
            .with(quota("all", "cpu=99 limits.cpu=99"))
            .with(resized(wanted, running, set_aside, infeasible));
        assert_eq!(used(&world), expected, "{wanted} {running} {set_aside}");
    }
}

#[test]
fn a_pod_that_has_ended_is_charged_for_being_stored_alone() {
    let world = world()
        .with(quota("all", "pods=9 count/pods=9 cpu=9"))
        .with(asking("runs", "cpu=1", ""))
        .with(asking("done", "cpu=1", "").phase("Succeeded"))
        .with(asking("failed", "cpu=1", "").phase("Failed"))
        .with(asking("waits", "cpu=1", "").phase("Pending"));
    assert_eq!(used(&world), "count/pods=4 cpu=2 pods=2");
}

#[test]
fn a_pod_that_outstays_its_grace_period_is_charged_for_until_then() {
    let mut going = asking("a", "cpu=1", "").terminating("11:59:50");
    going.metadata_mut().deletion_grace_period_seconds = Some(30);
    let world = world()
        .with(reported("all", "pods=9", "pods=1"))
        .with(going);
    let plan = world.plan::<ResourceQuotas>("all");
    assert!(plan.is_nothing(), "{:?}", plan.verbs());
    let Requeue::At(until) = plan.requeue else {
        panic!("{plan:?}");
    };
    assert!(until > at("12:00:20") && until <= at("12:00:21"), "{until}");
    assert_eq!(used(&world.later(20)), "pods=1");
    assert_eq!(used(&world.later(21)), "pods=0");
}

fn of_class(name: &str, class: &str) -> Pod {
    let mut pod = asking(name, "cpu=1", "");
    pod.spec.as_mut().unwrap().priority_class_name = class.into();
    pod
}

fn near(name: &str, affinity: Affinity) -> Pod {
    with_spec(name, |spec| spec.affinity = Some(affinity.into()))
}

#[test]
fn scopes_choose_pods() {
    let elsewhere = PodAffinityTerm {
        namespaces: vec!["other".to_owned()],
        ..Default::default()
    };
    let anywhere = PodAffinityTerm {
        namespace_selector: Some(LabelSelector::default()),
        ..Default::default()
    };
    let mut bounded = asking("bounded", "", "");
    bounded.spec.as_mut().unwrap().active_deadline_seconds = Some(0);
    let mut negative = asking("negative", "", "");
    negative.spec.as_mut().unwrap().active_deadline_seconds = Some(-1);
    let mut classed = asking("classed", "cpu=1", "");
    classed.status.as_mut().unwrap().qos_class = "BestEffort".into();
    let pods = world()
        .with(asking("plain", "", ""))
        .with(bounded)
        .with(negative)
        .with(classed)
        .with(asking("limited", "", "memory=1"))
        .with(asking("zero", "cpu=0", ""))
        .with(of_class("low", "low"))
        .with(of_class("high", "high"))
        .with(near(
            "here",
            Affinity {
                pod_affinity: Some(Box::new(PodAffinity {
                    required_during_scheduling_ignored_during_execution: vec![
                        PodAffinityTerm::default(),
                    ],
                    ..Default::default()
                })),
                ..Default::default()
            },
        ))
        .with(near(
            "elsewhere",
            Affinity {
                pod_affinity: Some(Box::new(PodAffinity {
                    required_during_scheduling_ignored_during_execution: vec![elsewhere],
                    ..Default::default()
                })),
                ..Default::default()
            },
        ))
        .with(near(
            "anywhere",
            Affinity {
                pod_anti_affinity: Some(Box::new(PodAntiAffinity {
                    preferred_during_scheduling_ignored_during_execution: vec![
                        WeightedPodAffinityTerm {
                            pod_affinity_term: Some(anywhere),
                        },
                    ],
                    ..Default::default()
                })),
                ..Default::default()
            },
        ));
    let all = 11;
    let count = |quota: ResourceQuota| {
        let text = used(&pods.clone().with(quota));
        text.strip_prefix("count/pods=")
            .unwrap()
            .parse::<i32>()
            .unwrap()
    };
    let empty = || quota("all", "count/pods=99");
    assert_eq!(count(empty()), all);
    assert_eq!(count(scoped(empty(), "Terminating")), 1);
    assert_eq!(count(scoped(empty(), "NotTerminating")), all - 1);
    // plain, bounded, negative, classed, zero, and the three of affinity.
    assert_eq!(count(scoped(empty(), "BestEffort")), 8);
    assert_eq!(count(scoped(empty(), "NotBestEffort")), 3);
    assert_eq!(
        count(scoped(scoped(empty(), "NotBestEffort"), "Terminating")),
        0
    );
    assert_eq!(count(scoped(empty(), "PriorityClass")), 2);
    assert_eq!(count(scoped(empty(), "CrossNamespacePodAffinity")), 2);
    assert_eq!(count(scoped(empty(), "VolumeAttributesClass")), 0);
    let class =
        |operator, values: &[&str]| count(selecting(empty(), "PriorityClass", operator, values));
    assert_eq!(class("Exists", &[]), 2);
    assert_eq!(class("DoesNotExist", &[]), all - 2);
    assert_eq!(class("In", &["high", "higher"]), 1);
    assert_eq!(class("NotIn", &["high"]), all - 1);
    assert_eq!(class("Sideways", &[]), 0);
    let both = selecting(
        scoped(empty(), "NotTerminating"),
        "PriorityClass",
        "In",
        &["low"],
    );
    assert_eq!(count(both), 1);
}

#[test]
fn nothing_but_pods_and_claims_fulfils_a_scope() {
    let world = world()
        .with(scoped(
            quota(
                "all",
                "services=9 count/configmaps=9 count/resourceclaims.resource.k8s.io=9",
            ),
            "NotTerminating",
        ))
        .with(service("web").in_namespace("default"))
        .with(config_map("one").in_namespace("default"))
        .with(claiming("gpus", vec![]));
    assert_eq!(
        used(&world),
        "count/configmaps=0 count/resourceclaims.resource.k8s.io=0 services=0"
    );
}

fn typed(name: &str, r#type: &str, node_ports: &[i32], allocates: Option<bool>) -> Service {
    let mut service = service(name).in_namespace("default").no_ports();
    for port in node_ports {
        service = service.port(&format!("p{port}"), 80);
        let ports = &mut service.spec.as_mut().unwrap().ports;
        ports.last_mut().unwrap().node_port = if *port < 10 { 0 } else { *port };
    }
    let spec = service.spec.as_mut().unwrap();
    spec.r#type = r#type.to_owned();
    spec.allocate_load_balancer_node_ports = allocates;
    service
}

#[test]
fn services_are_charged_by_type() {
    const HARD: &str = "services=9 count/services=9 services.nodeports=9 services.loadbalancers=9";
    for (service, ports, balancers) in [
        (typed("a", "ClusterIP", &[1, 2], None), 0, 0),
        (typed("a", "NodePort", &[1, 2], None), 2, 0),
        (typed("a", "LoadBalancer", &[1, 2], None), 2, 1),
        (typed("a", "LoadBalancer", &[1, 2], Some(true)), 2, 1),
        (typed("a", "LoadBalancer", &[1, 30001], Some(false)), 1, 1),
        (typed("a", "ExternalName", &[], None), 0, 0),
    ] {
        let what = format!("{service:?}");
        let world = world().with(quota("all", HARD)).with(service);
        assert_eq!(
            used(&world),
            format!(
                "count/services=1 services.loadbalancers={balancers} services.nodeports={ports} \
                 services=1"
            ),
            "{what}"
        );
    }
}

fn volume(name: &str, class: Option<&str>, bytes: &str) -> PersistentVolumeClaim {
    let mut claim = claim(name).in_namespace("default");
    let spec = claim.spec.get_or_insert_default();
    spec.storage_class_name = class.map(str::to_owned);
    spec.resources = Some(VolumeResourceRequirements {
        requests: amounts(&format!("storage={bytes}")),
    });
    claim
}

#[test]
fn claims_to_volumes_are_charged_by_class() {
    let mut annotated = volume("c", Some("gold"), "4Gi");
    annotated
        .metadata_mut()
        .set_annotation("volume.beta.kubernetes.io/storage-class", "silver");
    let world = world()
        .with(quota(
            "all",
            "persistentvolumeclaims=9 count/persistentvolumeclaims=9 requests.storage=99Gi \
             gold.storageclass.storage.k8s.io/requests.storage=99Gi \
             gold.storageclass.storage.k8s.io/persistentvolumeclaims=9 \
             silver.storageclass.storage.k8s.io/requests.storage=99Gi \
             lead.storageclass.storage.k8s.io/persistentvolumeclaims=9",
        ))
        .with(volume("a", Some("gold"), "1Gi"))
        .with(volume("b", None, "2Gi"))
        .with(annotated);
    assert_eq!(
        used(&world),
        "count/persistentvolumeclaims=3 gold.storageclass.storage.k8s.io/persistentvolumeclaims=1 \
         gold.storageclass.storage.k8s.io/requests.storage=1Gi \
         lead.storageclass.storage.k8s.io/persistentvolumeclaims=0 persistentvolumeclaims=3 \
         requests.storage=7Gi silver.storageclass.storage.k8s.io/requests.storage=4Gi"
    );
}

#[test]
fn bytes_are_whole_and_those_that_were_set_aside_count_where_they_are_more() {
    for (asked, set_aside, expected) in [
        ("1500m", "", "2"),
        ("1Gi", "storage=2Gi", "2Gi"),
        ("3Gi", "storage=2Gi", "3Gi"),
        ("1Gi", "cpu=2Gi", "1Gi"),
        ("1", "storage=2500m", "3"),
    ] {
        let mut claim = volume("a", None, asked);
        claim.status.get_or_insert_default().allocated_resources = amounts(set_aside);
        let world = world()
            .with(quota("all", "requests.storage=99Gi"))
            .with(claim);
        assert_eq!(
            used(&world),
            format!("requests.storage={expected}"),
            "{asked} {set_aside}"
        );
    }
}

#[test]
fn scopes_choose_claims_by_their_classes_of_attributes() {
    let mut changing = volume("changing", None, "1Gi");
    changing.spec.as_mut().unwrap().volume_attributes_class_name = Some("fast".to_owned());
    let status = changing.status.get_or_insert_default();
    status.current_volume_attributes_class_name = Some("slow".to_owned());
    status.modify_volume_status = Some(ModifyVolumeStatus {
        target_volume_attributes_class_name: "faster".to_owned(),
        ..Default::default()
    });
    let mut plain = volume("plain", None, "1Gi");
    plain.spec.as_mut().unwrap().volume_attributes_class_name = Some(String::new());
    let claims = world().with(changing).with(plain);
    for (operator, values, expected) in [
        ("Exists", &[][..], 1),
        ("DoesNotExist", &[], 1),
        ("In", &["slow"], 1),
        ("In", &["fast"], 1),
        ("In", &["faster"], 1),
        ("In", &["other"], 0),
        ("NotIn", &["other"], 2),
        ("NotIn", &["slow"], 2),
        ("NotIn", &["slow", "fast", "faster"], 1),
    ] {
        let quota = selecting(
            quota("all", "count/persistentvolumeclaims=9"),
            "VolumeAttributesClass",
            operator,
            values,
        );
        assert_eq!(
            used(&claims.clone().with(quota)),
            format!("count/persistentvolumeclaims={expected}"),
            "{operator} {values:?}"
        );
    }
}

fn claiming(name: &str, requests: Vec<DeviceRequest>) -> ResourceClaim {
    let mut claim = ResourceClaim {
        spec: Some(ResourceClaimSpec {
            devices: Some(DeviceClaim { requests }),
        }),
        ..Default::default()
    };
    let meta = claim.metadata_mut();
    meta.name = name.into();
    meta.namespace = "default".into();
    claim
}

fn exactly(class: &str, mode: &str, count: i64) -> DeviceRequest {
    DeviceRequest {
        exactly: Some(ExactDeviceRequest {
            device_class_name: class.to_owned(),
            allocation_mode: mode.to_owned(),
            count,
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn first_of(alternatives: &[(&str, &str, i64)]) -> DeviceRequest {
    DeviceRequest {
        first_available: alternatives
            .iter()
            .map(|(class, mode, count)| DeviceSubRequest {
                device_class_name: (*class).to_owned(),
                allocation_mode: (*mode).to_owned(),
                count: *count,
                ..Default::default()
            })
            .collect(),
        ..Default::default()
    }
}

fn device_class(name: &str, resource: Option<&str>) -> DeviceClass {
    let mut class = DeviceClass {
        spec: Some(DeviceClassSpec {
            extended_resource_name: resource.map(str::to_owned),
        }),
        ..Default::default()
    };
    class.metadata_mut().name = name.into();
    class
}

#[test]
fn claims_to_devices_are_charged_by_class() {
    let world = world()
        .with(quota(
            "all",
            "count/resourceclaims.resource.k8s.io=9 gpu.deviceclass.resource.k8s.io/devices=99 \
             nic.deviceclass.resource.k8s.io/devices=99 other.deviceclass.resource.k8s.io/devices=99",
        ))
        .with(claiming(
            "a",
            vec![
                exactly("gpu", "ExactCount", 2),
                exactly("gpu", "ExactCount", 1),
                exactly("nic", "All", 0),
                exactly("other", "Unheard", 7),
            ],
        ))
        .with(claiming(
            "b",
            vec![first_of(&[
                ("gpu", "ExactCount", 4),
                ("gpu", "ExactCount", 3),
                ("nic", "All", 0),
                ("other", "Unheard", 7),
            ])],
        ));
    assert_eq!(
        used(&world),
        "count/resourceclaims.resource.k8s.io=2 gpu.deviceclass.resource.k8s.io/devices=7 \
         nic.deviceclass.resource.k8s.io/devices=64 other.deviceclass.resource.k8s.io/devices=0"
    );
}

/// A claim that was made for a pod's extended resources.
fn of_extended(name: &str, owner: &Pod, count: i64) -> ResourceClaim {
    let mut claim = claiming(name, vec![exactly("gpu", "ExactCount", count)]);
    let meta = claim.metadata_mut();
    meta.set_annotation("resource.kubernetes.io/extended-resource-claim", "true");
    meta.owner_references = vec![owner_reference(owner)];
    claim
}

#[test]
fn devices_count_as_the_extended_resource_that_they_stand_for_but_not_twice() {
    const HARD: &str = "requests.example.com/gpu=99 \
        requests.deviceclass.resource.kubernetes.io/gpu=99";
    let world = world()
        .with(device_class("gpu", Some("example.com/gpu")))
        .with(quota("all", HARD));
    let free = claiming("free", vec![exactly("gpu", "ExactCount", 3)]);
    assert_eq!(
        used(&world.clone().with(free.clone())),
        "requests.deviceclass.resource.kubernetes.io/gpu=3 requests.example.com/gpu=3"
    );
    // Without the gate, and of a class that does not stand for it.
    let off = world
        .clone()
        .flag("DRAExtendedResource", FlagValue::Bool(false));
    assert_eq!(
        used(&off.with(free)),
        "requests.deviceclass.resource.kubernetes.io/gpu=0 requests.example.com/gpu=0"
    );
    let mut asks = asking("asks", "example.com/gpu=2", "example.com/gpu=2");
    asks.metadata_mut().uid = "uid-asks".into();
    let pod_alone = world.clone().with(asks.clone());
    assert_eq!(
        used(&pod_alone),
        "requests.deviceclass.resource.kubernetes.io/gpu=0 requests.example.com/gpu=2"
    );
    let with_claim = pod_alone.clone().with(of_extended("asks-claim", &asks, 2));
    assert_eq!(
        used(&with_claim),
        "requests.deviceclass.resource.kubernetes.io/gpu=2 requests.example.com/gpu=2"
    );
    // More than the pod asked for.
    let more = pod_alone.clone().with(of_extended("asks-claim", &asks, 5));
    assert_eq!(
        used(&more),
        "requests.deviceclass.resource.kubernetes.io/gpu=5 requests.example.com/gpu=5"
    );
    // A second claim of the pod is charged for whole, and so is one that the pod names another instead of.
    let second = with_claim.with(of_extended("asks-second", &asks, 2));
    assert_eq!(
        used(&second),
        "requests.deviceclass.resource.kubernetes.io/gpu=4 requests.example.com/gpu=4"
    );
    let mut with_status = asks.clone();
    with_status
        .status
        .as_mut()
        .unwrap()
        .extended_resource_claim_status = Some(Shared::from(PodExtendedResourceClaimStatus {
        resource_claim_name: "asks-other".into(),
    }));
    let other = world
        .with(with_status)
        .with(of_extended("asks-claim", &asks, 2));
    assert_eq!(
        used(&other),
        "requests.deviceclass.resource.kubernetes.io/gpu=2 requests.example.com/gpu=4"
    );
    // Who names the pod without the annotation, or a pod of another uid, is charged for.
    let mut stranger = asks.clone();
    stranger.metadata_mut().uid = "uid-before".into();
    let before = pod_alone.with(of_extended("asks-claim", &stranger, 2));
    assert_eq!(
        used(&before),
        "requests.deviceclass.resource.kubernetes.io/gpu=2 requests.example.com/gpu=4"
    );
}

#[test]
fn objects_of_any_resource_are_counted_in_their_namespace() {
    let widgets = metadata_only("example.com", "v1", "Widget", "widgets", true).unwrap();
    let entries: Vec<_> = World::at("12:00:00")
        .catalogue()
        .all()
        .iter()
        .cloned()
        .chain([Entry {
            resource: widgets,
            verbs: ["create", "delete", "list", "watch"]
                .map(Into::into)
                .to_vec(),
            subresources: Vec::new(),
            preferred: true,
        }])
        .collect();
    let widget = |name: &str, namespace: &str| ObjectMeta {
        name: name.into(),
        namespace: namespace.into(),
        ..Default::default()
    };
    let bare = world()
        .with(quota(
            "all",
            "count/widgets.example.com=9 configmaps=9 count/configmaps=9 resourcequotas=9 \
             count/deployments.apps=9 replicationcontrollers=9",
        ))
        .with(config_map("one").in_namespace("default"))
        .with(config_map("two").in_namespace("default"))
        .with(config_map("three").in_namespace("other"))
        .with(deployment("web").in_namespace("default"));
    let counted = "configmaps=2 count/configmaps=2 count/deployments.apps=1";
    assert_eq!(
        used(&bare),
        format!("{counted} replicationcontrollers=0 resourcequotas=1")
    );
    let served = bare
        .with_catalogue(Catalogue::new(entries, BTreeMap::new(), 2))
        .with_partial(widgets, widget("one", "default"))
        .with_partial(widgets, widget("two", "other"));
    assert_eq!(
        used(&served),
        format!("{counted} count/widgets.example.com=1 replicationcontrollers=0 resourcequotas=1")
    );
}

#[test]
fn a_resource_that_is_not_listed_keeps_its_reported_usage_and_holds_back_no_other() {
    for (standing, again) in [
        (Standing::Listing, Requeue::Never),
        (Standing::Failing, Requeue::At(at("12:00:10"))),
        (Standing::Unwatched, Requeue::At(at("12:00:10"))),
    ] {
        let world = world()
            .with(reported(
                "all",
                "configmaps=9 pods=9 secrets=9",
                "configmaps=5 pods=0 secrets=3",
            ))
            .with(config_map("one").in_namespace("default"))
            .with(asking("a", "", ""));
        let world = world.standing_at(ConfigMap::resource(), standing);
        let quota = world.get::<ResourceQuota>("all");
        let answers = Answers::new();
        let seen = Snapshot::new(&world, &answers, world.now());
        let plan = plan::plan(&quota, &seen, GATES);
        let action = plan.actions().next().unwrap();
        let Verb::Patch { patch, .. } = &action.verb else {
            panic!("{action:?}");
        };
        // Secrets have no projection here: discovery does not show them, which it should.
        assert_eq!(
            *patch,
            json!({"status": {"used": {"pods": "1"}}}),
            "{standing:?}"
        );
        if standing != Standing::Listing {
            assert_eq!(plan.requeue, again, "{standing:?}");
        }
    }
}

#[test]
fn a_status_that_is_true_is_not_written_however_it_is_put() {
    let pods = world().with(asking("a", "cpu=1", ""));
    for (hard, used) in [
        ("cpu=2 pods=2", "cpu=1 pods=1"),
        ("pods=2 cpu=2", "pods=1 cpu=1000m"),
    ] {
        let mut quota = reported("all", hard, used);
        quota.spec.as_mut().unwrap().hard = amounts("cpu=2000m pods=2");
        assert_eq!(
            patch(&pods.clone().with(quota), "all"),
            None,
            "{hard} {used}"
        );
    }
    assert_eq!(patch(&world().with(quota("all", "")), "all"), None);
}

#[test]
fn changed_limits_are_reported_and_removed_ones_forgotten() {
    let mut changed = reported("all", "pods=2 cpu=2", "pods=1 cpu=1");
    changed.spec.as_mut().unwrap().hard = amounts("pods=3 memory=1Gi");
    let world = world()
        .with(changed)
        .with(asking("a", "cpu=1 memory=1Mi", ""));
    assert_eq!(
        patch(&world, "all").unwrap(),
        json!({"status": {
            "hard": {"cpu": null, "memory": "1Gi", "pods": "3"},
            "used": {"cpu": null, "memory": "1Mi"},
        }})
    );
}

#[test]
fn usage_is_lowered_only_from_caches_that_are_as_new_as_the_quota() {
    let less = world()
        .with(asking("a", "", ""))
        .with(config_map("one").in_namespace("default"))
        .with(reported(
            "all",
            "pods=9 configmaps=9",
            "pods=2 configmaps=1",
        ));
    let version = Object::metadata(&*less.get::<ResourceQuota>("all")).resource_version;
    let plan = less.plan::<ResourceQuotas>("all");
    let rests = rests_of(&plan);
    assert_eq!(rests, [("pods", version)]);
    // What was being made meanwhile is there a second later.
    assert_eq!(plan.requeue, Requeue::At(at("12:00:01")));
    let more = less.with(reported(
        "all",
        "pods=9 configmaps=9",
        "pods=0 configmaps=1",
    ));
    assert!(more.plan::<ResourceQuotas>("all").counted.is_empty());
}

#[test]
fn a_new_limit_begins_with_caches_that_are_as_new_as_the_quota() {
    // What is older than the limit was charged by nobody, and wakes no quota once it is in the cache.
    let mut widened = reported("all", "pods=9", "pods=0");
    widened.spec.as_mut().unwrap().hard = amounts("pods=9 configmaps=9");
    for (quota, begun) in [
        (quota("all", "pods=9 configmaps=9"), "configmaps pods"),
        (widened, "configmaps"),
    ] {
        let world = world()
            .with(config_map("one").in_namespace("default"))
            .with(quota);
        let version = Object::metadata(&*world.get::<ResourceQuota>("all")).resource_version;
        let plan = world.plan::<ResourceQuotas>("all");
        let mut rests = rests_of(&plan);
        rests.sort_unstable();
        let wanted: Vec<(&str, u64)> = begun.split(' ').map(|name| (name, version)).collect();
        assert_eq!(rests, wanted);
        assert_eq!(plan.requeue, Requeue::At(at("12:00:01")), "{begun}");
    }
}

/// The resources that a plan rests on, and since which version.
fn rests_of(plan: &Plan) -> Vec<(&'static str, u64)> {
    plan.counted
        .iter()
        .map(|set| (set.resource.plural, set.since))
        .collect()
}

#[test]
fn everything_is_recalculated_every_period_unless_that_is_zero() {
    let quota = world().with(reported("all", "pods=9", "pods=0"));
    let again = |world: &World| world.plan::<ResourceQuotas>("all").requeue;
    assert_eq!(again(&quota), Requeue::At(at("12:05:00")));
    let often = FlagValue::Duration(Duration::from_secs(7));
    let often = quota.clone().flag("resource-quota-sync-period", often);
    assert_eq!(again(&often), Requeue::At(at("12:00:07")));
    let never = FlagValue::Duration(Duration::ZERO);
    let never = quota.flag("resource-quota-sync-period", never);
    assert_eq!(again(&never), Requeue::Never);
    assert!(world().plan::<ResourceQuotas>("gone").is_nothing());
}

/// The keys that a change of an object wakes, by whatever is watched.
fn woken(world: &World, old: Option<&AnyObject>, new: Option<&AnyObject>) -> Vec<String> {
    let controller = ResourceQuotas::new(&world.flags([&ResourceQuotas::describe()]));
    let mut watches = Watches::default();
    controller.watch(&mut watches);
    let resource = old.or(new).unwrap().resource();
    let mut keys = Vec::new();
    let change = DynChange {
        old,
        new,
        version: 0,
    };
    let mut name = |key: Key| keys.push(key.name.to_string());
    for subscription in &watches.subscriptions {
        if subscription.resource == resource {
            (subscription.wake)(change, world, &mut name);
        }
    }
    let verbs = ["create", "delete", "list", "watch"]
        .map(Into::into)
        .to_vec();
    let entry = Entry {
        resource,
        verbs,
        subresources: Vec::new(),
        preferred: true,
    };
    for discovered in &watches.discovered {
        if (discovered.wanted)(&entry) {
            (discovered.wake)(change, world, &mut name);
        }
    }
    keys
}

#[test]
fn a_deletion_wakes_the_quotas_of_its_namespace_that_limit_it() {
    let mut elsewhere = reported("elsewhere", "pods=9", "pods=0");
    elsewhere.metadata_mut().namespace = "other".into();
    let widgets = metadata_only("example.com", "v1", "Widget", "widgets", true).unwrap();
    let world = world()
        .with(reported("compute", "requests.cpu=9", "requests.cpu=0"))
        .with(reported(
            "devices",
            "requests.example.com/gpu=9",
            "requests.example.com/gpu=0",
        ))
        .with(reported("maps", "configmaps=9", "configmaps=0"))
        .with(reported(
            "maps-too",
            "count/configmaps=9",
            "count/configmaps=0",
        ))
        .with(reported("pods", "pods=9", "pods=0"))
        .with(reported(
            "services",
            "services.nodeports=9",
            "services.nodeports=0",
        ))
        .with(reported(
            "volumes",
            "gold.storageclass.storage.k8s.io/requests.storage=9",
            "",
        ))
        .with(reported("widgets", "count/widgets.example.com=9", ""))
        .with(elsewhere)
        .with(quota("untold", "pods=9"))
        .with(asking("a", "", ""))
        .with(config_map("one").in_namespace("default"))
        .with(service("web").in_namespace("default"))
        .with(volume("data", None, "1Gi"))
        .with(claiming("gpus", Vec::new()))
        .with_partial(
            widgets,
            ObjectMeta {
                name: "one".into(),
                namespace: "default".into(),
                ..Default::default()
            },
        );
    let gone = |object: Option<AnyObject>| {
        assert!(object.is_some());
        woken(&world, object.as_ref(), None)
    };
    assert_eq!(
        gone(world.find_any(Pod::resource(), "default/a")),
        ["compute", "devices", "pods", "untold"]
    );
    assert_eq!(
        gone(world.find_any(ConfigMap::resource(), "default/one")),
        ["maps", "maps-too"]
    );
    assert_eq!(
        gone(world.find_any(Service::resource(), "default/web")),
        ["services"]
    );
    assert_eq!(
        gone(world.find_any(PersistentVolumeClaim::resource(), "default/data")),
        ["volumes"]
    );
    assert_eq!(
        gone(world.find_any(ResourceClaim::resource(), "default/gpus")),
        ["devices"]
    );
    assert_eq!(gone(world.find_any(widgets, "default/one")), ["widgets"]);
    let made = world.find_any(Pod::resource(), "default/a");
    assert!(woken(&world, None, made.as_ref()).is_empty());
}

#[test]
fn a_change_wakes_where_it_lowers_the_charge() {
    type Change = Box<dyn Fn(&mut Pod)>;
    let world = world().with(reported("pods", "pods=9", "pods=0"));
    let table: Vec<(&str, Change, bool)> = vec![
        (
            "a label",
            Box::new(|pod| pod.metadata_mut().set_label("a", "b")),
            false,
        ),
        (
            "its end",
            Box::new(|pod| *pod = pod.clone().phase("Succeeded")),
            true,
        ),
        (
            "its failure",
            Box::new(|pod| *pod = pod.clone().phase("Failed")),
            true,
        ),
        (
            "its start",
            Box::new(|pod| *pod = pod.clone().phase("Running")),
            false,
        ),
        (
            "a deadline",
            Box::new(|pod| pod.spec.as_mut().unwrap().active_deadline_seconds = Some(5)),
            true,
        ),
        (
            "its deletion",
            Box::new(|pod| {
                let meta = pod.metadata_mut();
                meta.deletion_timestamp = Some(Time::from(at("12:00:30")));
                meta.deletion_grace_period_seconds = Some(30);
            }),
            true,
        ),
        (
            "a resize",
            Box::new(|pod| {
                let status = pod.status.as_mut().unwrap();
                status.container_statuses = vec![ContainerStatus {
                    name: "main".into(),
                    resources: requirements("cpu=1", ""),
                    ..Default::default()
                }];
            }),
            true,
        ),
    ];
    let old = asking("a", "cpu=2", "").phase("Pending");
    let any = |pod: &Pod| Some(std::sync::Arc::new(pod.clone()) as AnyObject);
    for (what, change, wakes) in table {
        let mut new = old.clone();
        change(&mut new);
        let woken = woken(&world, any(&old).as_ref(), any(&new).as_ref());
        assert_eq!(!woken.is_empty(), wakes, "{what}: {woken:?}");
    }
}

#[test]
fn a_service_or_claim_that_takes_less_wakes() {
    let world = world()
        .with(reported("services", "services.nodeports=9", ""))
        .with(reported("volumes", "requests.storage=9", ""));
    let service_of =
        |kind: &str, ports: &[i32]| std::sync::Arc::new(typed("a", kind, ports, None)) as AnyObject;
    let changed =
        |old: &AnyObject, new: &AnyObject| !woken(&world, Some(old), Some(new)).is_empty();
    let balanced = service_of("LoadBalancer", &[1, 2]);
    assert!(changed(&balanced, &service_of("ClusterIP", &[1, 2])));
    assert!(changed(&balanced, &service_of("NodePort", &[1, 2])));
    assert!(changed(&balanced, &service_of("LoadBalancer", &[1])));
    assert!(!changed(&balanced, &balanced.clone()));
    let claim_of = |change: &dyn Fn(&mut PersistentVolumeClaim)| {
        let mut claim = volume("a", Some("gold"), "2Gi");
        change(&mut claim);
        std::sync::Arc::new(claim) as AnyObject
    };
    let claim = claim_of(&|_| {});
    let smaller = claim_of(&|claim| *claim = volume("a", Some("gold"), "1Gi"));
    let taken_back = claim_of(&|claim| {
        claim.status.get_or_insert_default().allocated_resources = amounts("storage=3Gi");
    });
    let attributes = claim_of(&|claim| {
        let status = claim.status.get_or_insert_default();
        status.current_volume_attributes_class_name = Some("fast".to_owned());
    });
    let labelled = claim_of(&|claim| claim.metadata_mut().set_label("a", "b"));
    assert!(changed(&claim, &smaller));
    assert!(changed(&claim, &taken_back));
    assert!(changed(&claim, &attributes));
    assert!(!changed(&claim, &labelled));
}

#[test]
fn a_quota_is_reckoned_when_it_is_made_and_when_its_limits_change() {
    let first = reported("all", "cpu=1", "cpu=0");
    let mut reports_more = first.clone();
    reports_more.status.as_mut().unwrap().used = amounts("cpu=1");
    let rewritten = reported("all", "cpu=1000m", "cpu=0");
    let raised = reported("all", "cpu=2", "cpu=0");
    let more = reported("all", "cpu=1 pods=1", "cpu=0");
    let keys = |old: Option<&ResourceQuota>, new: Option<&ResourceQuota>| {
        replenish::limits_changed(&controllers_kit::Change { old, new }, &world()).len()
    };
    assert_eq!(keys(None, Some(&first)), 1);
    assert_eq!(keys(Some(&first), Some(&reports_more)), 0);
    assert_eq!(keys(Some(&first), Some(&rewritten)), 0);
    assert_eq!(keys(Some(&first), Some(&raised)), 1);
    assert_eq!(keys(Some(&first), Some(&more)), 1);
    assert_eq!(keys(Some(&first), None), 0);
}
