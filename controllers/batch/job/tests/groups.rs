//! Jobs whose pods are scheduled all or none.

use controllers_kit::{FlagValue, owners};
use kubernetes_proto::{
    core::PodFromTemplate,
    scheduling::{PodGroup, Workload},
};
use prost::Message as _;

use super::super::workload;
use super::*;

fn gated() -> World {
    world().flag(workload::GATE, FlagValue::Bool(true))
}

/// The group that each created pod is scheduled with.
fn groups(plan: &Plan) -> Vec<Option<String>> {
    let created = plan.actions().filter_map(|action| match &action.verb {
        controllers_kit::Verb::Create { body } => PodFromTemplate::decode(&body[..]).ok(),
        _ => None,
    });
    created
        .map(|pod| {
            let spec = kubernetes_proto::core::PodSpec::decode(&pod.spec[..]).expect("a spec");
            spec.scheduling_group
                .map(|group| group.pod_group_name.to_string())
        })
        .collect()
}

/// Carries out one plan and gives what it did.
fn step(world: &mut World) -> Vec<String> {
    let planned = plan(world);
    world.apply(&planned).expect_success();
    planned.verbs()
}

fn workload_name() -> String {
    format!("pi-{}", {
        let hash = controllers_kit::names::fnv32a([
            b"(types.UID)".as_slice(),
            job("pi").metadata().uid.as_bytes(),
        ]);
        controllers_kit::names::encode_hash(hash)
    })
}

#[test]
fn a_workload_and_a_group_come_before_the_pods() {
    let mut world = gated().with(job("pi").indexed(3));
    let name = workload_name();
    assert_eq!(step(&mut world), [format!("create workloads/{name}")]);
    let made = world.get::<Workload>(&name);
    let spec = made.spec.clone().unwrap();
    let template = &spec.pod_group_templates[0];
    let named = spec.controller_ref.as_ref().unwrap();
    assert_eq!(
        (&*named.api_group, &*named.kind, &*named.name),
        ("batch", "Job", "pi")
    );
    assert_eq!(template.name, "pi-pgt-0");
    let gang = template.scheduling_policy.as_ref().unwrap().gang.as_ref();
    assert_eq!(gang.map(|gang| gang.min_count), Some(3));
    assert!(owners::is_controlled_by(
        made.metadata(),
        &job("pi").metadata().uid
    ));

    let planned = step(&mut world);
    let group = planned[0]
        .strip_prefix("create podgroups/")
        .unwrap()
        .to_owned();
    assert!(group.starts_with(&format!("{name}-pi-pgt-0-")), "{group}");
    assert_eq!(planned.len(), 1);
    let made = world.get::<PodGroup>(&group);
    let kinds: Vec<&str> = (made.metadata().owner_references.iter())
        .map(|owner| owner.kind.as_str())
        .collect();
    assert_eq!(kinds, ["Job", "Workload"]);

    let third = plan(&world);
    assert_eq!(groups(&third), vec![Some(group); 3]);
    let [event] = &world.events()[..] else {
        panic!("{:?}", world.events());
    };
    assert!(
        event.ends_with(&format!(
            "WorkloadCreated Created Workload {name} for Job pi"
        )),
        "{event}"
    );
}

#[test]
fn jobs_of_another_shape_or_from_before_have_none() {
    let grouped = |job: Job| {
        job.spec(|spec| {
            let template = spec.template.get_or_insert_default();
            template.spec =
                controllers_kit::podspec::containers::with_group(&template.spec, "own").unwrap();
        })
    };
    let pi = || job("pi").indexed(3);
    for (what, world) in [
        (
            "not indexed",
            gated().with(job("pi").parallel(3).completions(3)),
        ),
        ("one pod", gated().with(job("pi").indexed(1))),
        ("fewer at once", gated().with(pi().parallel(2))),
        ("a group of its own", gated().with(grouped(pi()))),
        ("started before", gated().with(pi().started("11:00:00"))),
        ("has succeeded", gated().with(pi().counted(1, 0))),
        ("has failed", gated().with(pi().counted(0, 1))),
        (
            "has pods",
            gated()
                .with(pi())
                .with(indexed(&pi(), "pi-0-a", 0).ready("11:59:00")),
        ),
        ("the gate is off", super::world().with(pi())),
    ] {
        let planned = plan(&world);
        let verbs = planned.verbs();
        assert!(
            verbs.iter().all(|verb| !verb.contains("workloads/")),
            "{what}: {verbs:?}"
        );
        assert!(
            verbs.iter().any(|verb| verb.contains("pods/")),
            "{what}: {verbs:?}"
        );
    }
}

#[test]
fn a_suspended_job_has_a_workload_before_it_runs() {
    let mut world = gated().with(job("pi").indexed(2).suspended());
    assert_eq!(
        step(&mut world),
        [format!("create workloads/{}", workload_name())]
    );
    assert!(step(&mut world)[0].starts_with("create podgroups/"));
    assert!(groups(&plan(&world)).is_empty());
}

#[test]
fn what_is_ambiguous_or_of_somebody_else_is_left_alone() {
    let pi = || job("pi").indexed(2);
    let mut begun = gated().with(pi());
    step(&mut begun);
    let name = workload_name();
    let altered = |change: &dyn Fn(&mut Workload)| {
        let mut world = begun.clone();
        world.change::<Workload>(&name, change);
        world
    };
    let mut twice = begun.clone();
    let mut second = Workload::clone(&twice.get::<Workload>(&name));
    second.metadata_mut().name = "second".into();
    second.metadata_mut().uid = "uid-second".into();
    twice.put(second);
    for (what, world) in [
        (
            "of somebody else",
            altered(&|workload| workload.metadata_mut().owner_references.clear()),
        ),
        (
            "several templates",
            altered(&|workload| {
                let spec = workload.spec.as_mut().unwrap();
                let template = spec.pod_group_templates[0].clone();
                spec.pod_group_templates.push(template);
            }),
        ),
        ("two of them", twice),
    ] {
        assert_eq!(groups(&plan(&world)), [None, None], "{what}");
    }
    step(&mut begun);
    let group = begun.all::<PodGroup>()[0].metadata().name.to_string();
    begun.change::<PodGroup>(&group, |group| {
        group.metadata_mut().owner_references.clear();
    });
    assert_eq!(
        groups(&plan(&begun)),
        [None, None],
        "a group of somebody else"
    );
}

#[test]
fn the_contract_holds_with_groups() {
    contract::Contract::of(&JOBS).seeds(6).seconds(600).check([
        gated().with(job("pi").indexed(3).exits("0")),
        gated().with(job("pi").indexed(2).suspended()),
    ]);
}
