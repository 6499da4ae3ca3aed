use std::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicUsize},
};

use controllers_kit::testing::{
    Common as _, PodBuild as _, World, deployment, job, node, pod, replica_set, service,
};
use controllers_kit::{Factory, Flags, Object as _};
use inspect::{BlockerKind, BusyController, BusyKey, BusyRange};
use kubernetes_proto::{apps::Deployment, core::Pod};
use node_telemetry::metrics::Metrics;

use super::*;

use crate::workers::Workers;

/// The controllers of these names, as a process has them.
fn units(names: &[&str]) -> Vec<Unit> {
    let factories: Vec<Factory> = node_registry::all()
        .into_iter()
        .filter(|factory| names.contains(&(factory.describe)().name))
        .collect();
    let descriptors: Vec<_> = factories.iter().map(|one| (one.describe)()).collect();
    let metrics = Metrics::new(&descriptors);
    let flags = Flags::defaults(&descriptors);
    let units = factories.iter().enumerate().map(|(index, factory)| {
        let controller = (factory.build)(&flags);
        let watches = controller.watches();
        Unit {
            index: u16::try_from(index).unwrap(),
            subscriptions: watches.subscriptions,
            discovered: watches.discovered,
            workers: Arc::new(Workers::new(1, false)),
            backoff: controller.descriptor().backoff,
            queue_metrics: metrics.queue(controller.descriptor().queue),
            metrics: metrics.controller(controller.descriptor().name),
            ready: AtomicBool::new(true),
            working: AtomicUsize::new(0),
            reconciles: Default::default(),
            paused: Default::default(),
            controller,
        }
    });
    units.collect()
}

const APPS: &[&str] = &[
    "deployment-controller",
    "replicaset-controller",
    "job-controller",
];

/// A paused Deployment with a ReplicaSet and its pod, as `default/web`, `default/web-1`, `default/web-1-x`.
fn world() -> World {
    let mut owner = deployment("web");
    owner.spec.get_or_insert_default().paused = true;
    let set = replica_set("web-1").owned_by(&owner);
    let child = pod("web-1-x").owned_by(&set).on("node-1");
    World::at("12:00:00")
        .with(owner)
        .with(set)
        .with(child)
        .with(node("node-1"))
}

/// What is resolved: `controller key via` of each.
fn resolved(
    units: &[Unit],
    world: &World,
    kind: &str,
    name: &str,
) -> (Vec<String>, resolve::Resolved) {
    let known = resolve::resources(units, world);
    let forms = resolve::forms_of(kind, &known).unwrap();
    let key = resolve::key_of(forms[0], "default", name);
    let resolved = resolve::resolve(units, world, &forms, &key);
    let concerns = resolved.concerns.iter().map(|concern| {
        let unit = units[usize::from(concern.unit)].name();
        let line = format!("{unit} {} {}", concern.key, concern.via);
        line.trim_end().to_owned()
    });
    (concerns.collect(), resolved)
}

#[test]
fn an_object_is_resolved_to_its_own_its_owners_and_its_dependents_keys() {
    let (units, world) = (units(APPS), world());
    let (of_pod, at_pod) = resolved(&units, &world, "po", "web-1-x");
    for expected in [
        "replicaset-controller default/web-1",
        "deployment-controller default/web its owner deployments.apps default/web",
    ] {
        assert!(
            of_pod.iter().any(|line| line == expected),
            "{expected}: {of_pod:?}"
        );
    }
    let owners: Vec<&str> = at_pod.report.owners.iter().map(|one| &*one.name).collect();
    assert_eq!(owners, ["default/web-1", "default/web"]);
    assert_eq!(at_pod.report.holds.len(), 1, "the Deployment is paused");
    assert_eq!(at_pod.report.holds[0].kind, BlockerKind::Paused);

    let (of_deployment, report) = resolved(&units, &world, "Deployment", "web");
    assert_eq!(
        of_deployment,
        [
            "deployment-controller default/web",
            "replicaset-controller default/web-1 its dependent replicasets.apps default/web-1",
        ]
    );
    assert_eq!(report.report.dependents_total, 1);

    let (of_none, none) = resolved(&units, &world, "deployments.apps", "gone");
    assert_eq!(of_none, ["deployment-controller default/gone"]);
    assert!(!none.report.exists);
}

#[test]
fn what_holds_an_object_is_read_from_it() {
    let mut suspended = job("pi");
    suspended.spec.get_or_insert_default().suspend = Some(true);
    let ending = deployment("ending")
        .terminating("11:59:00")
        .finalizer("example.com/keep");
    let world = World::at("12:00:00")
        .with(suspended)
        .with(ending)
        .with(deployment("well"));
    let units = units(APPS);
    for (kind, name, expected) in [
        ("job", "pi", Some((BlockerKind::Paused, "no pods"))),
        (
            "deploy",
            "ending",
            Some((BlockerKind::Finalizers, "example.com/keep")),
        ),
        ("deploy", "well", None),
    ] {
        let holds = resolved(&units, &world, kind, name).1.report.holds;
        let found = holds.first().map(|hold| (hold.kind, &*hold.detail));
        match (found, expected) {
            (Some((kind, detail)), Some((wanted, part))) => {
                assert!(kind == wanted && detail.contains(part), "{name}: {detail}");
            }
            (found, expected) => assert_eq!(found, expected, "{name}"),
        }
    }
}

#[test]
fn kinds_are_named_as_in_kubectl() {
    let units = units(APPS);
    let world = world();
    let known = resolve::resources(&units, &world);
    for (kind, expected) in [
        ("deploy", "deployments.apps"),
        ("Deployment", "deployments.apps"),
        ("deployments", "deployments.apps"),
        ("deployment.apps", "deployments.apps"),
        ("RS", "replicasets.apps"),
        ("pod", "pods"),
    ] {
        let forms = resolve::forms_of(kind, &known);
        let found = forms.map(|forms| forms[0].type_id());
        assert_eq!(found.as_deref(), Ok(expected), "{kind}");
    }
    let wrong = resolve::forms_of("deploymnet", &known).unwrap_err();
    assert!(wrong.contains("did you mean deployments?"), "{wrong}");
    assert!(resolve::forms_of("pods.apps", &known).is_err());
    assert!(resolve::forms_of("x", &known).is_err());
}

#[test]
fn a_key_needs_the_right_to_get_its_object_or_to_list_what_it_is_made_of() {
    let units = units(&["deployment-controller", "node-lifecycle-controller"]);
    let of = |name: &str| units.iter().find(|unit| unit.name() == name).unwrap();
    for (controller, key, expected) in [
        (
            "deployment-controller",
            "shop/web",
            "get deployments.apps in namespace shop",
        ),
        (
            "deployment-controller",
            "shop/claim:web",
            "list deployments.apps in namespace shop",
        ),
        ("node-lifecycle-controller", "node-1", "get nodes"),
        ("node-lifecycle-controller", "zone/a", "list nodes"),
    ] {
        let (verb, target) = needed(of(controller), &Key::parse(key)).unwrap();
        assert_eq!(needs(verb, &target), expected, "{controller} {key}");
    }
}

/// Somebody who may list in one namespace; what was asked is noted.
#[derive(Default)]
struct OfShop(Mutex<Vec<String>>);

impl Rights for OfShop {
    fn may<'a>(
        &'a self,
        verb: &'static str,
        target: &'a Target,
    ) -> BoxFuture<'a, Result<(), Refused>> {
        let asked = needs(verb, target);
        self.0.lock().unwrap().push(asked.clone());
        async move {
            match asked.ends_with("in namespace shop") {
                true => Ok(()),
                false => Err(Refused::Forbidden(asked)),
            }
        }
        .boxed()
    }
}

#[tokio::test]
async fn a_list_is_filtered_by_rights_that_are_asked_for_once() {
    let rights = OfShop::default();
    let mut may_list = MayList::new(&rights);
    for (namespace, expected) in [("shop", true), ("bank", false), ("shop", true), ("", false)] {
        let may = may_list.allows(Pod::resource(), namespace).await;
        assert_eq!(may.ok(), Some(expected), "{namespace}");
    }
    assert!(
        may_list
            .allows(Deployment::resource(), "shop")
            .await
            .unwrap()
    );
    let asked = rights.0.lock().unwrap().clone();
    assert_eq!(
        asked,
        [
            "list pods",
            "list pods in namespace shop",
            "list pods in namespace bank",
            "list deployments.apps",
            "list deployments.apps in namespace shop",
        ]
    );
}

#[test]
fn what_is_busy_is_summed_over_replicas() {
    let of = |owner: &str, rate: f64| Top {
        controllers: vec![BusyController {
            controller: "job-controller".to_owned(),
            keys: 2,
            rate,
            ..BusyController::default()
        }],
        ranges: vec![BusyRange {
            owner: owner.to_owned(),
            rate,
            ..BusyRange::default()
        }],
        keys: (0..TOP_KEYS_MAX)
            .map(|_| BusyKey {
                owner: owner.to_owned(),
                rate,
                ..BusyKey::default()
            })
            .collect(),
        ..Top::default()
    };
    let whole = merged([of("a", 1.0), of("b", 3.0)].into_iter());
    assert_eq!(whole.controllers.len(), 1);
    assert_eq!(
        (whole.controllers[0].keys, whole.controllers[0].rate),
        (4, 4.0)
    );
    assert_eq!(whole.ranges[0].owner, "b");
    assert_eq!(whole.keys.len(), TOP_KEYS_MAX);
    assert!(whole.keys.iter().all(|key| key.owner == "b"));
}

#[test]
fn a_service_concerns_the_keys_that_are_named_after_it() {
    let units = units(&["endpoints-controller", "endpointslice-controller"]);
    let world = World::at("12:00:00").with(service("web"));
    let (concerns, _) = resolved(&units, &world, "svc", "web");
    assert_eq!(
        concerns,
        [
            "endpoints-controller default/web",
            "endpointslice-controller default/web"
        ]
    );
}
