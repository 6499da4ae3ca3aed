use controllers_kit::{
    Factory, Failure, FlagValue, Plan, StatusWrite, is_json,
    testing::{
        Common, PodBuild, StatefulSetBuild, WorkloadBuild, World, at, claim, contract,
        controller_revision, owner_reference, pod, pod_spec_bytes, stateful_set,
    },
};
use kubernetes_proto::{
    Object, Shared,
    apps::{ControllerRevision, StatefulSet, StatefulSetUpdateStrategy},
    core::{PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, Pod, Volume, VolumeSource},
    meta::OwnerReference,
};
use prost::Message;

use super::{MAX_UNAVAILABLE, Memory, StatefulSets, pod as of_pod};
use crate::revisions::REVISION_LABEL;

const FACTORY: Factory = Factory::of::<StatefulSets>();

fn world() -> World {
    World::at("12:00:00")
}

fn settled(set: StatefulSet) -> World {
    let mut world = world().with(set);
    world.settle_for(600, &[FACTORY]);
    world
}

fn image(image: &str) -> impl FnOnce(&mut StatefulSet) {
    move |set| {
        set.spec.as_mut().unwrap().template.as_mut().unwrap().spec = pod_spec_bytes(image);
    }
}

fn scaled(count: i32) -> impl FnOnce(&mut StatefulSet) {
    move |set| set.spec.as_mut().unwrap().replicas = Some(count)
}

fn names<T: Object>(world: &World) -> Vec<String> {
    world
        .all::<T>()
        .iter()
        .map(|object| object.metadata().name.to_string())
        .collect()
}

fn revision_of(world: &World, pod: &str) -> String {
    of_pod::revision(&world.get::<Pod>(pod)).to_owned()
}

fn status(world: &World) -> kubernetes_proto::apps::StatefulSetStatus {
    world.get::<StatefulSet>("web").status.clone().unwrap()
}

/// A set with its revision, and the pods that a text describes: `0Rc 1Uo` are web-0, ready and of the present
/// revision, and web-1, not ready and of another.
fn with_pods(set: StatefulSet, pods: &str) -> World {
    let wanted = set.spec.as_ref().unwrap().replicas.unwrap();
    let mut world = world().with(set.replicas(0));
    world.settle(&[FACTORY]);
    world.change("web", scaled(wanted));
    let revision = status(&world).update_revision;
    let set = StatefulSet::clone(&world.get::<StatefulSet>("web"));
    for text in pods.split_whitespace() {
        let ordinal = text.trim_end_matches(char::is_alphabetic);
        let mut letters = text[ordinal.len()..].chars();
        let name = format!("web-{ordinal}");
        let mut child = pod(&name)
            .label("app", "web")
            .label(of_pod::NAME_LABEL, &name)
            .owned_by(&set);
        let templates = &set.spec.as_ref().unwrap().volume_claim_templates;
        child.spec.get_or_insert_default().volumes = templates
            .iter()
            .map(|template| volume(&template.metadata.as_ref().unwrap().name, &name))
            .collect();
        child = match letters.next().unwrap() {
            'R' => child.ready("11:00:00"),
            'r' => child.ready("11:59:55"),
            'U' => child.running(),
            'P' => child,
            'F' => child.phase("Failed"),
            'S' => child.phase("Succeeded"),
            'T' => child.ready("11:00:00").terminating("11:59:00"),
            'f' => child.phase("Failed").terminating("11:59:00"),
            other => panic!("{other} is no state of a pod"),
        };
        let label = match letters.next().unwrap_or('c') {
            'c' => revision.as_str(),
            _ => "web-old",
        };
        world.put(child.label(REVISION_LABEL, label));
    }
    world
}

fn volume(template: &str, pod: &str) -> Volume {
    Volume {
        name: template.into(),
        volume_source: Some(VolumeSource {
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: format!("{template}-{pod}").into(),
                read_only: false,
            }),
            ..VolumeSource::default()
        }),
    }
}

/// What is done to pods.
fn pod_verbs(plan: &Plan) -> Vec<String> {
    plan.verbs()
        .into_iter()
        .filter(|verb| verb.contains(" pods/"))
        .collect()
}

fn check(set: &StatefulSet, pods: &str, expected: &[&str]) {
    let plan = with_pods(set.clone(), pods).plan::<StatefulSets>("web");
    assert_eq!(pod_verbs(&plan), expected, "pods {pods:?}");
}

#[test]
fn stateful_sets_keep_the_contract() {
    let web = stateful_set("web").replicas(3);
    contract::Contract::of(&FACTORY).seeds(8).check([
        world().with(web.clone()),
        world().with(web.clone().parallel().claims("data")),
        world().with(
            web.clone()
                .claims("data")
                .retention("Delete", "Delete")
                .min_ready(20),
        ),
        settled(web.clone()).changed("web", image("app:2")),
        settled(web.clone().parallel()).changed("web", image("app:2")),
        settled(web.clone().partition(2)).changed("web", image("app:2")),
        settled(web.clone().claims("data").retention("Retain", "Delete")).changed("web", scaled(1)),
        settled(web.clone().parallel()).changed("web", scaled(1)),
        settled(web.clone()).with(pod("web-9").label("app", "web").ready("11:00:00")),
        settled(web).with(pod("orphan-a").label("app", "web")),
    ]);
}

#[test]
fn in_order_one_pod_is_made_when_all_before_it_are_at_work() {
    let web = stateful_set("web").replicas(3);
    let table: &[(&str, &[&str])] = &[
        ("", &["create pods/web-0"]),
        ("0R", &["create pods/web-1"]),
        ("0r", &["create pods/web-1"]),
        ("0R 1R", &["create pods/web-2"]),
        ("0R 1R 2R", &[]),
        ("0U", &[]),
        ("0P", &[]),
        ("0T", &[]),
        ("0T 1R", &[]),
        ("0R 1U", &[]),
        ("0R 1T 2R", &[]),
        ("1R 2R", &["create pods/web-0"]),
        ("0R 2R", &["create pods/web-1"]),
        ("0U 2R", &[]),
        ("2R", &["create pods/web-0"]),
    ];
    for (pods, expected) in table {
        check(&web, pods, expected);
    }
}

#[test]
fn finished_pods_are_recreated() {
    let web = stateful_set("web").replicas(3);
    let table: &[(&str, &[&str])] = &[
        ("0F", &["delete pods/web-0"]),
        ("0S", &["delete pods/web-0"]),
        ("0f", &[]),
        ("0R 1F 2R", &["delete pods/web-1"]),
        ("0R 1R 2S", &["delete pods/web-2"]),
        ("0F 1F 2F", &["delete pods/web-0"]),
    ];
    for (pods, expected) in table {
        check(&web, pods, expected);
    }
    check(
        &web.parallel(),
        "0F 1S 2f",
        &["delete pods/web-0", "delete pods/web-1"],
    );
}

#[test]
fn min_ready_seconds_hold_the_next_one_back() {
    let web = stateful_set("web").replicas(3).min_ready(30);
    let table: &[(&str, &[&str])] = &[
        ("0R", &["create pods/web-1"]),
        ("0r", &[]),
        ("0R 1r", &[]),
        ("0R 1R 2r", &[]),
    ];
    for (pods, expected) in table {
        check(&web, pods, expected);
    }
    let plan = with_pods(web, "0r").plan::<StatefulSets>("web");
    assert_eq!(plan.requeue, controllers_kit::Requeue::At(at("12:00:25")));
}

#[test]
fn in_order_the_highest_ordinal_goes_first_and_alone() {
    let table: &[(i32, &str, &[&str])] = &[
        (1, "0R 1R 2R", &["delete pods/web-2"]),
        (1, "0R 1R", &["delete pods/web-1"]),
        (1, "0R 1R 2T", &[]),
        (1, "0R 1R 2U", &["delete pods/web-2"]),
        (1, "0R 1U 2U", &[]),
        (1, "0R 1U 2R", &["delete pods/web-2"]),
        (1, "0R 1U", &["delete pods/web-1"]),
        (1, "0U 1R 2R", &[]),
        (1, "0T 1R", &[]),
        (1, "0R 7R", &["delete pods/web-7"]),
        (1, "0R 10R 9R", &["delete pods/web-10"]),
        (0, "0R 1R", &["delete pods/web-1"]),
        (0, "0R", &["delete pods/web-0"]),
        (0, "0U", &["delete pods/web-0"]),
        (0, "0T", &[]),
        (0, "0P 1P", &[]),
        (2, "0R 2R", &["create pods/web-1"]),
    ];
    for (replicas, pods, expected) in table {
        check(&stateful_set("web").replicas(*replicas), pods, expected);
    }
}

#[test]
fn in_parallel_all_are_made_and_removed_at_once() {
    let table: &[(i32, &str, &[&str])] = &[
        (
            3,
            "",
            &[
                "create pods/web-0",
                "create pods/web-1",
                "create pods/web-2",
            ],
        ),
        (3, "0U", &["create pods/web-1", "create pods/web-2"]),
        (3, "0T", &["create pods/web-1", "create pods/web-2"]),
        (3, "1P", &["create pods/web-0", "create pods/web-2"]),
        (3, "0R 1R 2R", &[]),
        (1, "0R 1R 2R", &["delete pods/web-2", "delete pods/web-1"]),
        (1, "0R 1R 2T", &["delete pods/web-1"]),
        (1, "0U 1U 2U", &["delete pods/web-2", "delete pods/web-1"]),
        (0, "0R 1R", &["delete pods/web-1", "delete pods/web-0"]),
        (2, "0R 5R", &["create pods/web-1", "delete pods/web-5"]),
    ];
    for (replicas, pods, expected) in table {
        check(
            &stateful_set("web").replicas(*replicas).parallel(),
            pods,
            expected,
        );
    }
}

#[test]
fn a_rollout_goes_from_the_highest_ordinal_down() {
    let web = stateful_set("web").replicas(3);
    let table: &[(StatefulSet, &str, &[&str])] = &[
        (web.clone(), "0Ro 1Ro 2Ro", &["delete pods/web-2"]),
        (web.clone(), "0Ro 1Ro 2Rc", &["delete pods/web-1"]),
        (web.clone(), "0Ro 1Rc 2Rc", &["delete pods/web-0"]),
        (web.clone(), "0Rc 1Rc 2Rc", &[]),
        (web.clone(), "0Ro 1Ro 2Uc", &[]),
        (web.clone(), "0Ro 1Uo 2Ro", &[]),
        (web.clone(), "0Ro 1Ro 2To", &[]),
        (web.clone(), "0Ro 1Ro", &["create pods/web-2"]),
        (web.clone().min_ready(30), "0Ro 1Ro 2rc", &[]),
        (
            web.clone().parallel(),
            "0Ro 1Uo 2Ro",
            &["delete pods/web-2"],
        ),
        (web.clone().parallel(), "0Ro 1Ro 2Uc", &[]),
        (
            web.clone().parallel(),
            "0Ro 1Uo 2Rc",
            &["delete pods/web-1"],
        ),
        (
            web.clone().partition(2),
            "0Ro 1Ro 2Ro",
            &["delete pods/web-2"],
        ),
        (web.clone().partition(2), "0Ro 1Ro 2Rc", &[]),
        (
            web.clone().partition(1),
            "0Ro 1Ro 2Rc",
            &["delete pods/web-1"],
        ),
        (web.clone().partition(3), "0Ro 1Ro 2Ro", &[]),
        (web.clone().partition(9), "0Ro 1Ro 2Ro", &[]),
        (web.clone().on_delete(), "0Ro 1Ro 2Ro", &[]),
        (web.clone().on_delete(), "0Ro 1Ro", &["create pods/web-2"]),
        (web.replicas(1), "0Ro 1Ro", &["delete pods/web-1"]),
    ];
    for (set, pods, expected) in table {
        check(set, pods, expected);
    }
}

#[test]
fn with_the_gate_several_may_be_unavailable() {
    let web = stateful_set("web").replicas(3).parallel();
    let table: &[(&str, i32, &str, &[&str])] = &[
        (
            "2",
            0,
            "0Ro 1Ro 2Ro",
            &["delete pods/web-2", "delete pods/web-1"],
        ),
        ("2", 0, "0Ro 1Ro 2Uo", &["delete pods/web-2"]),
        ("2", 0, "0Ro 1Ro 2Uc", &["delete pods/web-1"]),
        ("2", 0, "0Ro 1Uc 2Uc", &[]),
        ("2", 0, "0Ro 1Rc 2Rc", &["delete pods/web-0"]),
        ("2", 2, "0Ro 1Ro 2Ro", &["delete pods/web-2"]),
        ("50%", 0, "0Ro 1Ro 2Ro", &["delete pods/web-2"]),
        ("1%", 0, "0Ro 1Ro 2Ro", &["delete pods/web-2"]),
        (
            "100%",
            0,
            "0Ro 1Ro 2Ro",
            &[
                "delete pods/web-2",
                "delete pods/web-1",
                "delete pods/web-0",
            ],
        ),
        (
            "100%",
            0,
            "0Ro 1To 2Ro",
            &["delete pods/web-2", "delete pods/web-0"],
        ),
    ];
    for (most, partition, pods, expected) in table {
        let set = web.clone().max_unavailable(most).partition(*partition);
        let world = with_pods(set, pods).flag(MAX_UNAVAILABLE, FlagValue::Bool(true));
        let plan = world.plan::<StatefulSets>("web");
        assert_eq!(pod_verbs(&plan), *expected, "{most} of {pods:?}");
        assert_eq!(plan.measures.len(), 2, "both gauges are set");
    }
    // Without it the field means nothing.
    check(
        &web.max_unavailable("2"),
        "0Ro 1Ro 2Ro",
        &["delete pods/web-2"],
    );
}

#[test]
fn ordinals_begin_where_they_should() {
    let web = stateful_set("web").replicas(2).first(5);
    check(&web, "", &["create pods/web-5"]);
    check(&web, "5R", &["create pods/web-6"]);
    check(&web, "5R 6R", &[]);
    check(&web, "0R", &["create pods/web-5"]);
    check(&web, "0R 5R 6R", &["delete pods/web-0"]);
    check(&web, "5R 6R 7R", &["delete pods/web-7"]);
    check(
        &web.parallel(),
        "",
        &["create pods/web-5", "create pods/web-6"],
    );
}

#[test]
fn only_pods_named_after_the_set_are_its_own() {
    let table = [
        ("web-0", true),
        ("web-00", true),
        ("web-99999999999", true),
        ("web-a", false),
        ("web", false),
        ("web-1-2", false),
        ("db-0", false),
        ("xweb-0", false),
    ];
    for (name, is_own) in table {
        let world = settled(stateful_set("web").replicas(0));
        let orphan = pod(name).label("app", "web").ready("11:00:00");
        let plan = world
            .clone()
            .with(orphan.clone())
            .plan::<StatefulSets>("web");
        let adoption = format!("patch pods/{name}");
        assert_eq!(plan.verbs().contains(&adoption), is_own, "orphan {name}");
        let set = StatefulSet::clone(&world.get::<StatefulSet>("web"));
        let plan = world
            .with(orphan.owned_by(&set))
            .plan::<StatefulSets>("web");
        assert_eq!(
            plan.verbs().contains(&adoption),
            !is_own,
            "owned {name} is let go"
        );
    }
}

#[test]
fn a_pod_has_its_identity_and_the_template_s_bytes() {
    let mut set = stateful_set("web").claims("data");
    let template = set.spec.as_mut().unwrap().template.as_mut().unwrap();
    template.spec.extend_from_slice(b"\x9a\x06\x03new");
    template
        .metadata
        .as_mut()
        .unwrap()
        .set_annotation("note", "kept");
    let bytes = template.spec.clone();
    let mut world = world().without_kubelets().with(set);
    let plans = world.run::<StatefulSets>();
    let body = plans
        .iter()
        .flat_map(Plan::actions)
        .find(|action| action.resource == Pod::resource())
        .map(|action| match &action.verb {
            controllers_kit::Verb::Create { body } => body.clone(),
            other => panic!("{other:?}"),
        })
        .unwrap();
    assert!(!is_json(&body));
    let made = kubernetes_proto::core::PodFromTemplate::decode(body.as_slice()).unwrap();
    let start = made
        .spec
        .windows(bytes.len())
        .position(|window| window == bytes);
    assert!(start.is_some(), "the template's bytes stand in the pod's");
    let pod = world.get::<Pod>("web-0");
    let meta = pod.metadata();
    let revision = names::<ControllerRevision>(&world).remove(0);
    let labels = [
        ("app", "web"),
        (of_pod::INDEX_LABEL, "0"),
        (REVISION_LABEL, revision.as_str()),
        (of_pod::NAME_LABEL, "web-0"),
    ];
    for (key, value) in labels {
        assert_eq!(meta.label(key), Some(value), "{key}");
    }
    assert_eq!(meta.annotation("note"), Some("kept"));
    assert_eq!(meta.generate_name, "web-");
    let spec = pod.spec.as_ref().unwrap();
    assert_eq!(
        (spec.hostname.as_str(), spec.subdomain.as_str()),
        ("web-0", "web")
    );
    let source = spec.volumes[0].volume_source.as_ref().unwrap();
    let claim = source.persistent_volume_claim.as_ref().unwrap();
    assert_eq!(
        (spec.volumes[0].name.as_str(), claim.claim_name.as_str()),
        ("data", "data-web-0")
    );
    assert_eq!(
        world.events(),
        [
            "Normal SuccessfulCreate Create Claim data-web-0 Pod web-0 in StatefulSet web success",
            "Normal SuccessfulCreate Create Pod web-0 in StatefulSet web successful",
        ]
    );
}

#[test]
fn below_the_partition_pods_are_made_of_the_older_revision() {
    let mut world = settled(stateful_set("web").replicas(3).partition(2));
    let old = status(&world).update_revision;
    world.change("web", image("app:2"));
    world.settle_for(60, &[FACTORY]);
    let new = status(&world).update_revision;
    assert_ne!(old, new);
    world.delete::<Pod>("web-0");
    world.settle_for(60, &[FACTORY]);
    for (pod, revision) in [("web-0", &old), ("web-1", &old), ("web-2", &new)] {
        assert_eq!(&revision_of(&world, pod), revision, "{pod}");
    }
    let pod = world.get::<Pod>("web-0");
    let spec = pod.spec.as_ref().unwrap();
    assert_eq!(
        (spec.hostname.as_str(), spec.subdomain.as_str()),
        ("web-0", "web")
    );
    assert_eq!(pod.metadata().label(of_pod::INDEX_LABEL), Some("0"));
    assert_eq!(status(&world).current_revision, old);
    // The partition falls, and the rollout continues to its end.
    world.change("web", |set: &mut StatefulSet| {
        *set = set.clone().partition(0);
    });
    world.settle_for(60, &[FACTORY]);
    assert_eq!(status(&world).current_revision, new);
    assert_eq!(revision_of(&world, "web-0"), new);
}

#[test]
fn a_rollback_takes_the_older_revision_up_again() {
    let mut world = settled(stateful_set("web").replicas(2));
    let first = status(&world).update_revision;
    world.change("web", image("app:2"));
    world.settle_for(60, &[FACTORY]);
    world.change("web", image("app:1"));
    world.settle_for(60, &[FACTORY]);
    assert_eq!(status(&world).update_revision, first);
    assert_eq!(world.get::<ControllerRevision>(&first).revision, 3);
    assert_eq!(names::<ControllerRevision>(&world).len(), 2);
    assert_eq!(revision_of(&world, "web-0"), first);
}

#[test]
fn a_change_outside_the_template_makes_no_revision() {
    let mut world = settled(stateful_set("web").replicas(1));
    let before = names::<ControllerRevision>(&world);
    world.change("web", scaled(3));
    world.settle_for(60, &[FACTORY]);
    assert_eq!(names::<ControllerRevision>(&world), before);
    assert_eq!(status(&world).replicas, 3);
}

#[test]
fn the_set_is_read_live_only_where_nothing_else_determines_the_revision() {
    let world = settled(stateful_set("web"));
    let key = controllers_kit::Key::new("default", "web");
    let asks = |world: &World, memory: &Memory| {
        let of = StatefulSets {
            max_unavailable: false,
            semantic: true,
        };
        let none = Default::default();
        let reader = world.with_indexes_of::<StatefulSets>();
        let seen = controllers_kit::Snapshot::new(&reader, &none, world.now());
        super::plan::ask(&of, &key, &seen, memory).len()
    };
    let mut memory = Memory::default();
    assert_eq!(asks(&world, &memory), 0, "the status decides");
    let scaled_up = world.clone().changed("web", scaled(2));
    assert_eq!(
        asks(&scaled_up, &memory),
        1,
        "another generation, and no memory"
    );
    world.plan_with::<StatefulSets>("web", &mut memory).unwrap();
    assert_eq!(asks(&scaled_up, &memory), 0, "the memory decides");
    let changed = world.changed("web", image("app:2"));
    assert_eq!(asks(&changed, &memory), 1, "another template");
}

#[test]
fn a_revision_made_by_upstream_is_found_equal() {
    // All that we have made is taken away but the revision, as if another manager had made it.
    let mut world = settled(stateful_set("web").replicas(2));
    let before = names::<ControllerRevision>(&world);
    world.change("web", |set: &mut StatefulSet| {
        set.status.as_mut().unwrap().observed_generation = 0;
    });
    let plans = world.run::<StatefulSets>();
    assert_eq!(names::<ControllerRevision>(&world), before);
    assert!(plans.iter().all(|plan| pod_verbs(plan).is_empty()));
}

#[test]
fn an_older_form_of_the_newest_revision_starts_no_rollout() {
    let mut world = settled(stateful_set("web").replicas(2));
    let name = names::<ControllerRevision>(&world).remove(0);
    // As managers before 1.34 wrote it.
    world.change(&name, |revision: &mut ControllerRevision| {
        let raw = &mut revision.data.as_mut().unwrap().raw;
        let text = String::from_utf8(raw.clone()).unwrap();
        *raw = text
            .replace(
                "\"metadata\":{",
                "\"metadata\":{\"creationTimestamp\":null,",
            )
            .into_bytes();
    });
    let mut unseen = world.clone();
    unseen.change("web", scaled(3));
    unseen.settle_for(60, &[FACTORY]);
    assert_eq!(names::<ControllerRevision>(&unseen), [name.as_str()]);
    let mut without = world.flag(super::SEMANTIC, FlagValue::Bool(false));
    without.change("web", scaled(3));
    without.settle_for(60, &[FACTORY]);
    assert_eq!(names::<ControllerRevision>(&without).len(), 2);
}

#[test]
fn another_s_revision_of_the_same_name_is_a_collision() {
    let fresh = settled(stateful_set("web").replicas(0));
    let name = names::<ControllerRevision>(&fresh).remove(0);
    let mut world = world().with(controller_revision(&name, 1, "{}"));
    world.put(stateful_set("web").replicas(0));
    world.settle(&[FACTORY]);
    assert_eq!(names::<ControllerRevision>(&world).len(), 2);
    assert_eq!(status(&world).collision_count, Some(1));
    assert_ne!(status(&world).update_revision, name);
}

#[test]
fn the_history_keeps_living_revisions_and_those_within_the_limit() {
    for (limit, kept) in [(0, 1), (1, 2), (2, 3), (10, 4)] {
        let mut world = settled(stateful_set("web").history(limit));
        for number in 2..=4 {
            world.change("web", image(&format!("app:{number}")));
            world.settle_for(60, &[FACTORY]);
        }
        assert_eq!(
            names::<ControllerRevision>(&world).len(),
            kept,
            "limit {limit}"
        );
        let present = status(&world).update_revision;
        assert_eq!(world.get::<ControllerRevision>(&present).revision, 4);
    }
}

#[test]
fn an_orphan_revision_is_adopted() {
    let mut world = settled(stateful_set("web"));
    let name = names::<ControllerRevision>(&world).remove(0);
    world.change(&name, |revision: &mut ControllerRevision| {
        revision.metadata_mut().owner_references.clear();
    });
    world.settle(&[FACTORY]);
    assert!(
        world
            .get::<ControllerRevision>(&name)
            .metadata()
            .controller()
            .is_some()
    );
}

#[test]
fn labels_of_identity_are_given_back() {
    let mut world = settled(stateful_set("web"));
    world.change("web-0", |pod: &mut Pod| {
        pod.metadata_mut().set_label(of_pod::NAME_LABEL, "other");
    });
    world.settle(&[FACTORY]);
    let pod = world.get::<Pod>("web-0");
    assert_eq!(pod.metadata().label(of_pod::NAME_LABEL), Some("web-0"));
    let event = "Normal SuccessfulUpdate Update Pod web-0 in StatefulSet web successful";
    assert!(world.events().iter().any(|one| one == event));
}

#[test]
fn claims_belong_to_whom_the_policy_says() {
    // When deleted, when scaled, whether the pod is one too many; owned by the set, by the pod.
    let table = [
        ("Retain", "Retain", false, false, false),
        ("Retain", "Retain", true, false, false),
        ("Delete", "Retain", false, true, false),
        ("Delete", "Retain", true, true, false),
        ("Retain", "Delete", false, false, false),
        ("Retain", "Delete", true, false, true),
        ("Delete", "Delete", false, true, false),
        ("Delete", "Delete", true, false, true),
        ("Odd", "Delete", true, false, false),
    ];
    for (deleted, scaled_down, too_many, by_set, by_pod) in table {
        for before in ["nobody", "set", "pod", "both"] {
            let set = stateful_set("web")
                .claims("data")
                .retention(deleted, scaled_down);
            let mut world = with_pods(set.replicas(1), if too_many { "0R 1R" } else { "0R" });
            let name = if too_many { "web-1" } else { "web-0" };
            let set = StatefulSet::clone(&world.get::<StatefulSet>("web"));
            let pod = Pod::clone(&world.get::<Pod>(name));
            let mut one = claim(&format!("data-{name}"));
            let mut refer = |mut reference: Shared<OwnerReference>, alone: bool| {
                reference.controller = alone.then_some(true);
                one.metadata_mut().owner_references.push(reference);
            };
            if matches!(before, "set" | "both") {
                refer(owner_reference(&set), true);
            }
            if matches!(before, "pod" | "both") {
                refer(owner_reference(&pod), before == "pod");
            }
            world.put(one);
            if too_many {
                world.put(claim("data-web-0"));
            }
            let plan = world.plan::<StatefulSets>("web");
            world.apply(&plan);
            let after = world.get::<PersistentVolumeClaim>(&format!("data-{name}"));
            let has = |uid: &str| {
                after
                    .metadata()
                    .owner_references
                    .iter()
                    .any(|reference| *reference.uid == *uid)
            };
            assert_eq!(
                (has(&set.metadata().uid), has(&pod.metadata().uid)),
                (by_set, by_pod),
                "{deleted}/{scaled_down}, too many: {too_many}, before: {before}"
            );
        }
    }
}

#[test]
fn a_claim_of_another_controller_is_left_alone_and_reported() {
    let set = stateful_set("web")
        .claims("data")
        .retention("Delete", "Delete");
    let mut world = with_pods(set, "0R");
    let set = StatefulSet::clone(&world.get::<StatefulSet>("web"));
    let mut foreign = claim("data-web-0").owned_by(&stateful_set("other"));
    world.put(foreign.clone());
    assert!(
        world
            .plan::<StatefulSets>("web")
            .actions()
            .all(|action| action.resource != PersistentVolumeClaim::resource())
    );
    let mut idle = owner_reference(&set);
    idle.controller = None;
    foreign.metadata_mut().owner_references.push(idle);
    world.put(foreign);
    world.run::<StatefulSets>();
    let after = world.get::<PersistentVolumeClaim>("data-web-0");
    assert_eq!(after.metadata().owner_references.len(), 1);
    assert!(
        world
            .events()
            .iter()
            .any(|event| event.starts_with("Warning ConflictingController"))
    );
}

#[test]
fn a_terminating_claim_holds_its_pod_back_with_one_event() {
    let set = stateful_set("web").claims("data");
    let going = claim("data-web-0")
        .finalizer("example.com/hold")
        .terminating("11:59:00");
    let mut world = with_pods(set, "").with(going);
    world.settle(&[FACTORY]);
    assert!(names::<Pod>(&world).is_empty());
    let expected = "Warning FailedCreate Create Pod web-0 in StatefulSet web failed error: pvc data-web-0 is being deleted";
    assert_eq!(
        world
            .events()
            .iter()
            .filter(|event| *event == expected)
            .count(),
        1
    );
    world.vanish::<PersistentVolumeClaim>("data-web-0");
    world.settle(&[FACTORY]);
    assert_eq!(names::<Pod>(&world), ["web-0"]);
}

#[test]
fn a_claim_of_the_pod_before_is_not_taken_over() {
    let set = stateful_set("web")
        .claims("data")
        .retention("Retain", "Delete");
    let stale = claim("data-web-0").owned_by(&pod("web-0").uid("uid-of-the-one-before"));
    let plan = with_pods(set, "").with(stale).plan::<StatefulSets>("web");
    assert!(pod_verbs(&plan).is_empty());
}

#[test]
fn volumes_that_can_not_be_mended_are_reported() {
    let mut world = with_pods(stateful_set("web").claims("data"), "0R");
    world.change("web-0", |pod: &mut Pod| {
        pod.spec.as_mut().unwrap().volumes.clear();
    });
    let plan = world.plan::<StatefulSets>("web");
    assert_eq!(pod_verbs(&plan), ["patch pods/web-0"]);
    assert!(
        plan.verbs()
            .contains(&"create persistentvolumeclaims/data-web-0".to_owned())
    );
    world.apply(&plan);
    let expected = "Warning FailedUpdate Update Pod web-0 in StatefulSet web failed error: ";
    assert!(
        world
            .events()
            .iter()
            .any(|event| event.starts_with(expected)),
        "{:?}",
        world.events()
    );
}

#[test]
fn a_pending_pod_gets_the_claim_that_it_lost() {
    let set = stateful_set("web").claims("data");
    let plan = with_pods(set, "0P").plan::<StatefulSets>("web");
    assert!(
        plan.verbs()
            .contains(&"create persistentvolumeclaims/data-web-0".to_owned())
    );
}

#[test]
fn a_claim_has_the_template_s_labels_and_the_selector_s() {
    let mut set = stateful_set("web").claims("data");
    let template = &mut set.spec.as_mut().unwrap().volume_claim_templates[0];
    template
        .metadata
        .as_mut()
        .unwrap()
        .set_label("tier", "gold");
    let world = settled(set);
    let claim = world.get::<PersistentVolumeClaim>("data-web-0");
    assert_eq!(claim.metadata().label("tier"), Some("gold"));
    assert_eq!(claim.metadata().label("app"), Some("web"));
}

#[test]
fn a_set_that_is_being_deleted_only_reports() {
    let set = stateful_set("web").replicas(3);
    let mut world = with_pods(set, "0R 1F");
    world.change("web", |set: &mut StatefulSet| {
        *set = set
            .clone()
            .finalizer("example.com/hold")
            .terminating("11:59:00");
    });
    let plan = world.plan::<StatefulSets>("web");
    assert_eq!(plan.verbs(), ["patch statefulsets/web/status"]);
}

#[test]
fn the_status_counts_what_there_is() {
    // Pods; replicas, ready, available, current, updated. The last two are of one revision here.
    let table = [
        ("", [0, 0, 0, 0, 0]),
        ("0R", [1, 1, 1, 1, 1]),
        ("0R 1U", [2, 1, 1, 2, 2]),
        ("0R 1P", [2, 1, 1, 2, 2]),
        ("0R 1T", [2, 2, 2, 1, 1]),
        ("0R 1Ro", [2, 2, 2, 1, 1]),
        ("0R 1R 2R", [3, 3, 3, 3, 3]),
        // None is of the current revision: another rollout begins before the end of one was recorded.
        ("0Ro 1Ro 2Ro", [3, 3, 3, 0, 0]),
    ];
    for (pods, expected) in table {
        let mut world = with_pods(stateful_set("web").replicas(3), pods).without_kubelets();
        let plan = world.plan::<StatefulSets>("web");
        world.apply(&plan);
        let status = status(&world);
        let counted = [
            status.replicas,
            status.ready_replicas,
            status.available_replicas,
            status.current_replicas,
            status.updated_replicas,
        ];
        assert_eq!(counted, expected, "pods {pods:?}");
        assert_eq!(
            status.observed_generation,
            world.get::<StatefulSet>("web").metadata().generation
        );
        assert_eq!(status.collision_count, Some(0));
    }
}

#[test]
fn a_whole_rollout_is_recorded_as_upstream_records_it() {
    let mut world = settled(stateful_set("web").replicas(2));
    let before = world.events().len();
    world.change("web", image("app:2"));
    world.settle_for(60, &[FACTORY]);
    let expected = [
        "Normal SuccessfulDelete Delete Pod web-1 in StatefulSet web successful",
        "Normal SuccessfulCreate Create Pod web-1 in StatefulSet web successful",
        "Normal SuccessfulDelete Delete Pod web-0 in StatefulSet web successful",
        "Normal SuccessfulCreate Create Pod web-0 in StatefulSet web successful",
    ];
    assert_eq!(world.events()[before..], expected);
    let status = status(&world);
    assert_eq!(status.current_revision, status.update_revision);
}

#[test]
fn hazard_a_stale_owner_never_kills_the_next_pod_of_an_ordinal() {
    let mut world = with_pods(stateful_set("web").replicas(0), "0R");
    let stale = world.plan::<StatefulSets>("web");
    assert_eq!(pod_verbs(&stale), ["delete pods/web-0"]);
    world.vanish::<Pod>("web-0");
    world.put(pod("web-0").uid("uid-of-the-next").label("app", "web"));
    let applied = world.apply(&stale);
    let (action, failure) = &applied.failures()[0];
    assert_eq!(action, "delete pods/web-0");
    assert!(matches!(failure, Failure::Conflict(_)), "{failure}");
    assert!(world.find::<Pod>("web-0").is_some());
}

#[test]
fn hazard_two_owners_with_one_view_add_nothing_to_each_other() {
    let mut world = world().with(stateful_set("web").replicas(3).parallel());
    let first = world.plan::<StatefulSets>("web");
    let second = world.plan::<StatefulSets>("web");
    world.apply(&first).expect_success();
    let applied = world.apply(&second);
    assert!(!applied.failures().is_empty());
    assert_eq!(names::<Pod>(&world).len(), 3);
    assert_eq!(names::<ControllerRevision>(&world).len(), 1);
}

#[test]
fn hazard_order_holds_through_any_change_of_owner() {
    // Each plan by another owner, with nothing remembered: never is an ordinal made before the one below it
    // is at work.
    let mut world = world().with(stateful_set("web").replicas(4));
    for _ in 0..40 {
        let plan = world.plan::<StatefulSets>("web");
        world.apply(&plan).expect_success();
        let ready: Vec<bool> = (0..4)
            .map(|ordinal| {
                world
                    .find::<Pod>(&format!("web-{ordinal}"))
                    .is_some_and(|pod| of_pod::is_running_and_ready(&pod))
            })
            .collect();
        for ordinal in 1..4 {
            let is_there = world.find::<Pod>(&format!("web-{ordinal}")).is_some();
            assert!(
                !is_there || ready[ordinal - 1],
                "web-{ordinal} came too early"
            );
        }
        world.step();
    }
    assert_eq!(names::<Pod>(&world).len(), 4);
}

#[test]
fn a_selector_that_can_not_be_read_waits_for_a_change() {
    let mut set = stateful_set("web");
    let selector = set.spec.as_mut().unwrap().selector.as_mut().unwrap();
    selector
        .match_expressions
        .push(kubernetes_proto::meta::LabelSelectorRequirement {
            key: "a".to_owned(),
            operator: "Near".to_owned(),
            values: Vec::new(),
        });
    let refusal = world().with(set).refusal::<StatefulSets>("web");
    assert!(matches!(refusal, controllers_kit::Refusal::Wait(why) if why.contains("Near")));
}

#[test]
fn a_set_that_is_gone_needs_nothing() {
    assert!(world().plan::<StatefulSets>("web").is_nothing());
}

#[test]
fn a_claim_wakes_the_set_that_its_name_speaks_of() {
    let world = world()
        .with(stateful_set("web").claims("data"))
        .with(stateful_set("db").claims("data"));
    let table = [
        ("data-web-0", vec!["default/web"]),
        ("data-web-12", vec!["default/web"]),
        ("data-web-", vec!["default/web"]),
        ("data-web-x", vec![]),
        ("data-db-0", vec!["default/db"]),
        ("other-web-0", vec![]),
    ];
    for (name, woken) in table {
        let claim = claim(name);
        let change = controllers_kit::Change {
            old: None,
            new: Some(&claim),
        };
        let keys: Vec<String> = super::of_claim(&change, &world)
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(keys, woken, "{name}");
    }
}

#[test]
fn the_status_is_the_api_s_own() {
    let world = settled(stateful_set("web").replicas(2));
    let json = kubernetes_proto::DynObject::to_json(&*world.get::<StatefulSet>("web"));
    let revision = status(&world).update_revision;
    assert_eq!(
        json["status"],
        serde_json::json!({
            "observedGeneration": 1, "replicas": 2, "readyReplicas": 2, "currentReplicas": 2,
            "updatedReplicas": 2, "availableReplicas": 2, "collisionCount": 0,
            "currentRevision": revision, "updateRevision": revision
        })
    );
}

// ---- sizes at their extremes ----

#[test]
fn as_many_replicas_as_a_number_holds_cost_no_more_than_the_pods_there_are() {
    let most = i32::MAX;
    let web = || stateful_set("web").replicas(most);
    let check = |what: &str, world: &World, count: usize, first: &str| {
        let verbs = pod_verbs(&world.plan::<StatefulSets>("web"));
        assert_eq!(verbs.len(), count, "{what}");
        assert_eq!(verbs[0], format!("create pods/{first}"), "{what}");
    };
    check("in order", &world().with(web()), 1, "web-0");
    check(
        "side by side",
        &world().with(web().parallel()),
        500,
        "web-0",
    );
    let highest = format!("web-{most}");
    let world_of = |set: StatefulSet| world().with(set);
    // Ordinals beyond the largest number have no names that are understood.
    check(
        "from the last ordinal on",
        &world_of(web().first(most)),
        1,
        &highest,
    );
    check(
        "the same side by side",
        &world_of(web().first(most).parallel()),
        1,
        &highest,
    );
    check(
        "all below the partition",
        &world_of(web().partition(most)),
        1,
        "web-0",
    );
    let gated = |set: StatefulSet| world_of(set).flag(MAX_UNAVAILABLE, FlagValue::Bool(true));
    check(
        "several at a time",
        &gated(web().parallel().max_unavailable("100%")),
        500,
        "web-0",
    );
    // A rollout of what is there, and gaps among them.
    let old = with_pods(stateful_set("web").replicas(3).parallel(), "0Rc 2Rc")
        .changed("web", scaled(most));
    check("the first gap", &old, 500, "web-1");
    assert_eq!(status_after(&old).ready_replicas, 2);
}

fn status_after(world: &World) -> kubernetes_proto::apps::StatefulSetStatus {
    let mut world = world.clone();
    world
        .apply(&world.plan::<StatefulSets>("web"))
        .expect_success();
    status(&world)
}

// ---- what the next pod's revision rests on ----

/// A set whose strategy says its type alone: the API server then leaves `rollingUpdate` out.
fn type_alone(mut set: StatefulSet) -> StatefulSet {
    set.spec.as_mut().unwrap().update_strategy = Some(StatefulSetUpdateStrategy {
        r#type: "RollingUpdate".to_owned(),
        rolling_update: None,
    });
    set
}

/// The plan as the node carries it out where the key has just reported: without its reports.
fn without_reports(mut plan: Plan) -> Plan {
    for stage in &mut plan.stages {
        stage.retain(|action| action.report() == StatusWrite::No);
    }
    plan
}

#[test]
fn in_a_rollout_a_pod_is_never_made_of_the_old_revision_because_a_report_waits() {
    let mut world = settled(type_alone(stateful_set("web").replicas(3)))
        .without_kubelets()
        .changed("web", image("app:2"));
    let mut memory = Memory::default();
    for pod in ["web-2", "web-1"] {
        let plan = world.plan_with::<StatefulSets>("web", &mut memory).unwrap();
        assert_eq!(pod_verbs(&plan), [format!("delete pods/{pod}")]);
        world.apply(&without_reports(plan)).expect_success();
        if world.find::<Pod>(pod).is_some() {
            world.vanish::<Pod>(pod);
        }
        let plan = world.plan_with::<StatefulSets>("web", &mut memory).unwrap();
        assert_eq!(pod_verbs(&plan), [format!("create pods/{pod}")]);
        world.apply(&without_reports(plan)).expect_success();
        let update = status(&world).update_revision;
        assert_eq!(revision_of(&world, pod), update, "{pod}");
        world.change(pod, |pod: &mut Pod| *pod = pod.clone().ready("11:00:00"));
    }
}

#[test]
fn a_status_that_changes_revisions_or_loses_pods_is_written_at_once() {
    let report = |world: &World| {
        let plan = world.plan::<StatefulSets>("web");
        let status = plan
            .actions()
            .find(|action| action.rbac_resource() == "statefulsets/status");
        status.map(controllers_kit::Action::report)
    };
    let world = settled(stateful_set("web").replicas(2));
    let with = |change: fn(&mut kubernetes_proto::apps::StatefulSetStatus)| {
        world.clone().changed("web", |set: &mut StatefulSet| {
            change(set.status.as_mut().unwrap());
        })
    };
    assert_eq!(report(&world), None);
    // As somebody else left it; the plan sets it right again.
    assert_eq!(
        report(&with(|old| old.ready_replicas = 1)),
        Some(StatusWrite::Observed)
    );
    assert_eq!(
        report(&with(|old| old.ready_replicas = 3)),
        Some(StatusWrite::No)
    );
    assert_eq!(
        report(&with(|old| old.current_replicas = 1)),
        Some(StatusWrite::No)
    );
    let another = |old: &mut kubernetes_proto::apps::StatefulSetStatus| {
        old.current_revision = "web-old".to_owned();
    };
    assert_eq!(report(&with(another)), Some(StatusWrite::No));
    let mut unready = world;
    unready.change("web-0", |pod: &mut Pod| {
        pod.status.as_mut().unwrap().conditions.clear();
    });
    assert_eq!(report(&unready), Some(StatusWrite::No));
}

#[test]
fn side_by_side_a_pending_pod_gets_its_label_back() {
    let set = stateful_set("web").replicas(1).parallel().claims("data");
    let mut world = with_pods(set, "0Pc").with(claim("data-web-0"));
    world.change("web-0", |pod: &mut Pod| {
        pod.metadata_mut().set_label(of_pod::NAME_LABEL, "other");
    });
    let plan = world.plan::<StatefulSets>("web");
    assert_eq!(pod_verbs(&plan), ["patch pods/web-0"]);
    world.apply(&plan).expect_success();
    let pod = world.get::<Pod>("web-0");
    assert_eq!(pod.metadata().label(of_pod::NAME_LABEL), Some("web-0"));
}
