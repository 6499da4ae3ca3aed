use controllers_kit::{
    Answer, Entry, Factory, Object, StatusWrite, Str,
    testing::{
        Common, PodBuild, WorkloadBuild, World, at, contract, deployment, job, pod, replica_set,
        replication_controller, stateful_set,
    },
};
use kubernetes_proto::{core::Pod, meta::Time, policy::PodDisruptionBudget};
use serde_json::{Value, json};

use super::Disruptions;

const FACTORY: Factory = Factory::of::<Disruptions>();

/// A budget `web` over `app=web`.
#[allow(
    clippy::needless_pass_by_value,
    reason = "cases read better with their JSON inline"
)]
fn budget(spec: Value) -> PodDisruptionBudget {
    let mut json = json!({
        "metadata": {"name": "web", "namespace": "default", "uid": "uid-pdb", "generation": 1},
        "spec": {"selector": {"matchLabels": {"app": "web"}}}
    });
    for (name, value) in spec.as_object().unwrap() {
        json["spec"][name] = value.clone();
    }
    serde_json::from_value(json).unwrap()
}

/// A Deployment of `wanted` pods, the first `ready` of which are ready.
fn world(wanted: i32, ready: usize) -> World {
    let web = deployment("web").replicas(wanted);
    let set = replica_set("web-1").replicas(wanted).owned_by(&web);
    let mut world = World::at("12:00:00")
        .without_kubelets()
        .with(web)
        .with(set.clone());
    for number in 0..wanted {
        let pod = pod(&format!("web-{number}"))
            .label("app", "web")
            .owned_by(&set);
        let is_ready = usize::try_from(number).unwrap() < ready;
        world.put(if is_ready {
            pod.ready("11:00:00")
        } else {
            pod.running()
        });
    }
    world
}

/// allowed, healthy of desired, expected, and the condition.
fn reported(world: &World) -> String {
    let status = world
        .get::<PodDisruptionBudget>("web")
        .status
        .clone()
        .unwrap_or_default();
    let condition = status.conditions.first().cloned().unwrap_or_default();
    format!(
        "{} allowed, {} of {}, {} expected, {} {}",
        status.disruptions_allowed,
        status.current_healthy,
        status.desired_healthy,
        status.expected_pods,
        condition.status,
        condition.reason
    )
}

#[rustfmt::skip]
#[test]
fn the_disruptions_that_a_budget_allows() {
    let table = [
        (json!({"minAvailable": 2}),        5, 5, "3 allowed, 5 of 2, 5 expected, True SufficientPods"),
        (json!({"minAvailable": 2}),        5, 2, "0 allowed, 2 of 2, 5 expected, False InsufficientPods"),
        (json!({"minAvailable": 9}),        5, 5, "0 allowed, 5 of 9, 5 expected, False InsufficientPods"),
        (json!({"minAvailable": 0}),        3, 3, "3 allowed, 3 of 0, 3 expected, True SufficientPods"),
        (json!({"minAvailable": "50%"}),    5, 5, "2 allowed, 5 of 3, 5 expected, True SufficientPods"),
        (json!({"minAvailable": "100%"}),   5, 5, "0 allowed, 5 of 5, 5 expected, False InsufficientPods"),
        (json!({"maxUnavailable": 1}),      5, 5, "1 allowed, 5 of 4, 5 expected, True SufficientPods"),
        (json!({"maxUnavailable": 1}),      5, 4, "0 allowed, 4 of 4, 5 expected, False InsufficientPods"),
        (json!({"maxUnavailable": 1}),      5, 3, "0 allowed, 3 of 4, 5 expected, False InsufficientPods"),
        (json!({"maxUnavailable": 0}),      5, 5, "0 allowed, 5 of 5, 5 expected, False InsufficientPods"),
        (json!({"maxUnavailable": 9}),      5, 5, "5 allowed, 5 of 0, 5 expected, True SufficientPods"),
        (json!({"maxUnavailable": "30%"}),  5, 5, "2 allowed, 5 of 3, 5 expected, True SufficientPods"),
        (json!({"maxUnavailable": "100%"}), 5, 0, "0 allowed, 0 of 0, 5 expected, False InsufficientPods"),
        (json!({}),                         5, 5, "0 allowed, 5 of 0, 0 expected, False InsufficientPods"),
    ];
    for (spec, wanted, ready, text) in table {
        let mut world = world(wanted, ready).with(budget(spec.clone()));
        world.run::<Disruptions>();
        assert_eq!(reported(&world), text, "{spec}");
        assert!(world.run::<Disruptions>().is_empty(), "{spec}: at rest");
    }
}

#[test]
fn each_owner_counts_once_by_what_it_wants() {
    let rc = {
        let mut rc = replication_controller("rc");
        rc.spec.as_mut().unwrap().replicas = Some(3);
        rc
    };
    let sts = stateful_set("db").replicas(4);
    let set = replica_set("bare").replicas(2);
    let child = |name: &str| pod(name).label("app", "web").ready("11:00:00");
    let mut world = world(5, 5)
        .with(rc.clone())
        .with(sts.clone())
        .with(set.clone())
        .with(child("rc-1").owned_by(&rc))
        .with(child("db-0").owned_by(&sts))
        .with(child("db-1").owned_by(&sts))
        .with(child("bare-1").owned_by(&set))
        .with(budget(json!({"maxUnavailable": "50%"})));
    world.run::<Disruptions>();
    assert_eq!(
        reported(&world),
        "2 allowed, 9 of 7, 14 expected, True SufficientPods"
    );
}

#[test]
fn without_pods_nothing_is_allowed_and_the_status_says_so() {
    let mut world = World::at("12:00:00").with(budget(json!({"maxUnavailable": 1})));
    world.run::<Disruptions>();
    assert_eq!(
        reported(&world),
        "0 allowed, 0 of 0, 0 expected, False InsufficientPods"
    );
    assert!(
        world
            .events()
            .contains(&"Normal NoPods No matching pods found".to_owned())
    );
}

#[test]
fn pods_without_an_owner_are_reported_where_owners_count() {
    let lone = || pod("lone").label("app", "web").ready("11:00:00");
    let mut counted = world(2, 2)
        .with(lone())
        .with(budget(json!({"maxUnavailable": 1})));
    counted.run::<Disruptions>();
    assert_eq!(
        reported(&counted),
        "2 allowed, 3 of 1, 2 expected, True SufficientPods"
    );
    assert!(counted.events()[0].starts_with(
        "Warning UnmanagedPods Pods selected by this PodDisruptionBudget (selector: \
         &LabelSelector{MatchLabels:map[string]string{app: web,},MatchExpressions:[]LabelSelectorRequirement{},}) \
         were found to be unmanaged."
    ));
    let mut world = world(2, 2)
        .with(lone())
        .with(budget(json!({"minAvailable": 1})));
    world.run::<Disruptions>();
    assert_eq!(
        reported(&world),
        "2 allowed, 3 of 1, 3 expected, True SufficientPods"
    );
    assert!(world.events().is_empty());
}

#[test]
fn an_owner_that_can_t_be_counted_forbids_all() {
    let job = job("pi");
    for (owner_kind, why) in [
        ("Job", "jobs.batch does not implement the scale subresource"),
        (
            "Widget",
            "no matches for kind \"Widget\" in version \"batch/v1\"",
        ),
    ] {
        let mut child = pod("pi-1")
            .label("app", "web")
            .owned_by(&job)
            .ready("11:00:00");
        child.metadata_mut().owner_references[0].kind = owner_kind.into();
        let mut world = World::at("12:00:00")
            .without_kubelets()
            .with(job.clone())
            .with(child)
            .with(budget(json!({"maxUnavailable": 1})));
        world.run::<Disruptions>();
        assert!(
            reported(&world).starts_with("0 allowed"),
            "{}",
            reported(&world)
        );
        assert!(reported(&world).ends_with("False SyncFailed"));
        assert_eq!(
            world
                .get::<PodDisruptionBudget>("web")
                .status
                .as_ref()
                .unwrap()
                .conditions[0]
                .message,
            why
        );
        assert!(world.events().contains(&format!(
            "Warning CalculateExpectedPodCountFailed Failed to calculate the number of expected pods: {why}"
        )));
        // A number of pods needs no owners.
        let mut world = world.changed("web", |pdb: &mut PodDisruptionBudget| {
            let spec = pdb.spec.as_mut().unwrap();
            spec.max_unavailable = None;
            spec.min_available = Some(kubernetes_proto::meta::IntOrString::number(0));
        });
        world.run::<Disruptions>();
        assert!(reported(&world).starts_with("1 allowed"));
    }
}

/// A resource with a scale that has no projection.
fn widgets() -> controllers_kit::Catalogue {
    let resource = kubernetes_proto::kinds()
        .into_iter()
        .find(|resource| resource.kind == "Job")
        .unwrap();
    let entry = Entry {
        resource,
        verbs: Vec::new(),
        subresources: vec![Str::from("scale")],
        preferred: true,
    };
    controllers_kit::Catalogue::new(vec![entry], Default::default(), 1)
}

#[test]
fn any_owner_with_a_scale_is_asked_for_it() {
    let owner = job("pi");
    let path = "/apis/batch/v1/namespaces/default/jobs/pi/scale";
    let scale = |uid: &str| json!({"metadata": {"uid": uid}, "spec": {"replicas": 4}});
    let start = || {
        World::at("12:00:00")
            .without_kubelets()
            .with_catalogue(widgets())
            .with(
                pod("pi-1")
                    .label("app", "web")
                    .owned_by(&owner)
                    .ready("11:00:00"),
            )
            .with(budget(json!({"maxUnavailable": "75%"})))
    };
    let mut world = start().serving(path, scale(&Object::metadata(&owner).uid));
    world.run::<Disruptions>();
    assert_eq!(
        reported(&world),
        "0 allowed, 1 of 1, 4 expected, False InsufficientPods"
    );
    // Another object of the name, and none.
    for answer in [Some(scale("another")), None] {
        let mut world = start();
        if let Some(answer) = answer {
            world = world.serving(path, answer);
        }
        world.run::<Disruptions>();
        assert!(world.events().contains(
            &"Warning CalculateExpectedPodCountFailed Failed to calculate the number of expected pods: found no \
              controllers for pod \"pi-1\""
                .to_owned()
        ));
    }
    // An API that fails is asked again.
    let mut world = start();
    world.serve(path, Answer::Failed("the API server is busy".into()));
    let plan = world.plan::<Disruptions>("web");
    assert_eq!(plan.requeue, controllers_kit::Requeue::At(at("12:00:30")));
    world.settle_for(10, &[FACTORY]);
    world.serve(
        path,
        Answer::Object(scale(&Object::metadata(&owner).uid).into()),
    );
    world.settle_for(60, &[FACTORY]);
    assert!(reported(&world).ends_with("False InsufficientPods"));
}

#[test]
fn a_granted_eviction_counts_until_the_pod_is_gone_or_its_time_is_over() {
    let mut world = world(3, 3).with(budget(json!({"minAvailable": 1})));
    world.run::<Disruptions>();
    assert!(reported(&world).starts_with("2 allowed"));
    world.change::<PodDisruptionBudget>("web", |pdb| {
        let status = pdb.status.as_mut().unwrap();
        status.disruptions_allowed = 1;
        status
            .disrupted_pods
            .insert("web-0".into(), Time::from(at("12:00:00")));
        status
            .disrupted_pods
            .insert("gone".into(), Time::from(at("12:00:00")));
    });
    world.run::<Disruptions>();
    assert_eq!(
        reported(&world),
        "1 allowed, 2 of 1, 3 expected, True SufficientPods"
    );
    let names = |world: &World| -> Vec<String> {
        let budget = world.get::<PodDisruptionBudget>("web");
        budget
            .status
            .as_ref()
            .unwrap()
            .disrupted_pods
            .keys()
            .cloned()
            .collect()
    };
    assert_eq!(names(&world), ["web-0"], "what is not there is forgotten");
    world.settle_for(119, &[FACTORY]);
    assert!(reported(&world).starts_with("1 allowed"));
    world.settle_for(2, &[FACTORY]);
    assert_eq!(
        reported(&world),
        "2 allowed, 3 of 1, 3 expected, True SufficientPods"
    );
    assert!(names(&world).is_empty());
    assert!(world.events().contains(
        &"Warning NotDeleted Pod was expected by PDB default/default to be deleted but it wasn't".to_owned()
    ));
}

#[test]
fn a_status_that_forbids_evictions_is_written_at_once() {
    let report = |world: &World| {
        let plan = world.plan::<Disruptions>("web");
        let status = plan
            .actions()
            .find(|action| action.rbac_resource() == "poddisruptionbudgets/status");
        status.map(controllers_kit::Action::report)
    };
    let counted = |ready: usize| {
        let mut world = world(5, ready).with(budget(json!({"minAvailable": 3})));
        world.run::<Disruptions>();
        world
    };
    let unready = |world: &World, name: &str| {
        world.clone().changed(name, |pod: &mut Pod| {
            pod.status.as_mut().unwrap().conditions.clear();
        })
    };
    let healthy = counted(5);
    assert_eq!(report(&healthy), None);
    let one_less = unready(&healthy, "web-0");
    assert_eq!(
        report(&one_less),
        Some(StatusWrite::No),
        "fewer are allowed"
    );
    // The next one, a moment later, is not held back by that.
    let mut one_less = one_less;
    one_less.run::<Disruptions>();
    assert_eq!(report(&unready(&one_less, "web-1")), Some(StatusWrite::No));
    let none_left = counted(3);
    assert_eq!(
        report(&unready(&none_left, "web-0")),
        Some(StatusWrite::No),
        "unhealthy pods are evicted by the number of healthy ones"
    );
    let more = none_left.clone().changed("web-4", |pod: &mut Pod| {
        pod.status = pod.clone().ready("11:00:00").status;
    });
    assert_eq!(
        report(&more),
        Some(StatusWrite::Observed),
        "more are allowed"
    );
    let stricter = none_left.changed("web", |pdb: &mut PodDisruptionBudget| {
        let least = kubernetes_proto::meta::IntOrString::number(4);
        pdb.spec.as_mut().unwrap().min_available = Some(least);
    });
    assert_eq!(
        report(&stricter),
        Some(StatusWrite::No),
        "more must be healthy"
    );
    // Where the count can't be made any more.
    let unreadable = healthy.changed("web", |pdb: &mut PodDisruptionBudget| {
        let spec = pdb.spec.as_mut().unwrap();
        spec.min_available = None;
        spec.max_unavailable = Some(kubernetes_proto::meta::IntOrString::text("many"));
    });
    assert_eq!(report(&unreadable), Some(StatusWrite::No), "the fail-safe");
}

#[test]
fn a_pod_that_is_going_is_not_healthy() {
    let mut world = world(3, 3).with(budget(json!({"minAvailable": 1})));
    world.put(T::<Pod>::with(&world, "web-2").terminating("11:59:59"));
    world.run::<Disruptions>();
    assert!(reported(&world).starts_with("1 allowed, 2 of 1"));
}

/// A stored object, to be stored again.
struct T<O>(std::marker::PhantomData<O>);
impl<O: Object> T<O> {
    fn with(world: &World, name: &str) -> O {
        O::clone(&world.get::<O>(name))
    }
}

#[test]
fn a_pod_of_several_budgets_wakes_all_of_them() {
    let mut other = budget(json!({"minAvailable": 1}));
    other.metadata_mut().name = "also".into();
    other.metadata_mut().uid = "uid-also".into();
    let mut world = world(3, 3)
        .with(budget(json!({"minAvailable": 1})))
        .with(other);
    world.run::<Disruptions>();
    world.change::<Pod>("web-0", |pod| {
        for condition in &mut pod.status.as_mut().unwrap().conditions {
            condition.status = "False".into();
        }
    });
    let plans = world.run::<Disruptions>();
    let verbs: Vec<String> = plans.iter().flat_map(|plan| plan.verbs()).collect();
    assert_eq!(verbs.len(), 2, "{verbs:?}");
    // One whose labels change wakes those that it leaves.
    world.change::<Pod>("web-1", |pod| pod.metadata_mut().set_label("app", "db"));
    world.run::<Disruptions>();
    assert!(reported(&world).starts_with("0 allowed, 1 of 1, 2 expected"));
}

#[test]
fn a_changed_size_or_budget_is_counted_at_once() {
    let mut world = world(3, 3).with(budget(json!({"maxUnavailable": 1})));
    world.run::<Disruptions>();
    world.change::<kubernetes_proto::apps::Deployment>("web", |web| {
        web.spec.as_mut().unwrap().replicas = Some(4);
    });
    world.run::<Disruptions>();
    assert_eq!(
        reported(&world),
        "0 allowed, 3 of 3, 4 expected, False InsufficientPods"
    );
    world.change::<PodDisruptionBudget>("web", |pdb| {
        pdb.spec.as_mut().unwrap().max_unavailable =
            Some(kubernetes_proto::meta::IntOrString::number(2));
    });
    world.run::<Disruptions>();
    assert!(reported(&world).starts_with("1 allowed"));
    let budget = world.get::<PodDisruptionBudget>("web");
    let status = budget.status.as_ref().unwrap();
    assert_eq!(
        status.observed_generation,
        Object::metadata(&*budget).generation
    );
    assert_eq!(
        status.conditions[0].observed_generation,
        status.observed_generation
    );
}

#[test]
fn a_stale_disruption_target_is_taken_back_after_two_minutes() {
    let marked = |reason: &str, since: &str| {
        let mut pod = pod("lone")
            .phase("Running")
            .condition("DisruptionTarget", "True", since);
        pod.status.as_mut().unwrap().conditions[0].reason = reason.into();
        pod
    };
    let start = |pod: Pod| World::at("12:00:00").without_kubelets().with(pod);
    let mut world = start(marked("EvictionByEvictionAPI", "11:59:00"));
    let plan = world.plan::<Disruptions>("lone");
    assert_eq!(
        plan,
        controllers_kit::Plan::nothing().requeued_at(at("12:01:00"))
    );
    world.settle_for(59, &[FACTORY]);
    let condition = |world: &World| {
        let pod = world.get::<Pod>("lone");
        let condition = &pod.status.as_ref().unwrap().conditions[0];
        format!("{} {:?}", condition.status, condition.reason.as_str())
    };
    assert_eq!(condition(&world), "True \"EvictionByEvictionAPI\"");
    world.settle_for(1, &[FACTORY]);
    assert_eq!(condition(&world), "False \"\"");

    for kept in [
        marked("TerminationByKubelet", "11:00:00"),
        marked("EvictionByEvictionAPI", "11:00:00").phase("Failed"),
        marked("EvictionByEvictionAPI", "11:00:00").terminating("11:59:00"),
    ] {
        let mut world = start(kept);
        world.run::<Disruptions>();
        assert!(condition(&world).starts_with("True"));
    }
}

#[test]
fn the_contract_holds() {
    contract::Contract::of(&FACTORY).seeds(8).check([
        world(3, 2).with(budget(json!({"maxUnavailable": 1}))),
        world(3, 3).with(budget(json!({"minAvailable": "50%"}))),
        World::at("12:00:00")
            .with(job("pi"))
            .with(pod("pi-1").label("app", "web").owned_by(&job("pi")))
            .with(budget(json!({"maxUnavailable": 1}))),
        World::at("12:00:00")
            .without_kubelets()
            .with(
                pod("web")
                    .phase("Running")
                    .condition("DisruptionTarget", "True", "11:59:00"),
            ),
    ]);
}
