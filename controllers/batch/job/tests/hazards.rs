//! What many owners endanger, as the inventory of upstream's controllers names it for Jobs.

use controllers_kit::{
    Refusal,
    testing::{JobBuild, View},
};

use super::*;

/// A server on which u1 was counted, and a cache in which its pod is still as it was before.
fn fresh_job_beside_old_pods() -> (World, World) {
    let pi = job("pi").completions(3).started("11:00:00");
    let ended = pod(&pi, "pi-a").exited(0, "11:50:00").uid("u1");
    let old = world().with(pi).with(ended);
    let mut server = old.clone();
    server.run::<Jobs>();
    assert_eq!(numbers(&server.get::<Job>("pi"))[3], 1);
    (server, old)
}

#[test]
fn a_fresh_job_beside_old_pods_counts_no_pod_twice() {
    let (server, old) = fresh_job_beside_old_pods();
    let pod = old.get::<Pod>("pi-a");
    assert!(super::super::orphans::is_tracked(&pod));
    let pods_seen = Mixed {
        pods: &old,
        rest: &server,
    };
    let planned = pods_seen.plan(&mut Memory::default()).unwrap();
    // The next pod is there on the server; in the old view it would collide.
    assert!(
        !planned.verbs().contains(&"patch pods/pi-a".to_owned()),
        "{:?}",
        planned.verbs()
    );
    let uncounted = planned
        .actions()
        .any(|action| format!("{:?}", action.verb).contains("u1"));
    assert!(!uncounted, "{planned:?}");
}

#[test]
fn pods_that_are_truly_uncounted_are_counted_after_a_takeover() {
    let pi = job("pi").completions(3).started("11:00:00").counted(1, 0);
    let world = world()
        .with(pi.clone())
        .with(pod(&pi, "pi-b").exited(0, "11:50:00"));
    // A fresh memory knows nothing of the counters: the pod is read live, and has its finalizer.
    assert!(plan(&world).verbs().contains(&"patch pods/pi-b".to_owned()));
}

#[test]
fn a_key_that_is_handed_over_needs_no_live_reads() {
    let pi = job("pi").completions(3).started("11:00:00").counted(1, 0);
    let world = world()
        .with(pi.clone())
        .with(pod(&pi, "pi-b").exited(0, "11:50:00"));
    let key = controllers_kit::Key::new("default", "pi");
    let reader = world.with_indexes_of::<Jobs>();
    let answers = Default::default();
    let seen = controllers_kit::Snapshot::new(&reader, &answers, world.now());
    use controllers_kit::Controller;
    assert_eq!(
        Jobs::default().ask(&key, &seen, &Memory::default()).len(),
        2,
        "the pod and the Job"
    );
    let known = Memory {
        counters: Some(super::super::context::counters(pi.status.as_ref().unwrap())),
        ..Default::default()
    };
    assert!(Jobs::default().ask(&key, &seen, &known).is_empty());
}

#[test]
fn a_job_that_is_older_than_its_pods_makes_none() {
    let pi = job("pi").completions(2).parallel(2).started("11:00:00");
    // Two were counted, says the lack of finalizers; the Job knows of none yet.
    let old = world()
        .with(pi.clone())
        .with(untracked(pod(&pi, "pi-a").exited(0, "11:50:00")))
        .with(untracked(pod(&pi, "pi-b").exited(0, "11:50:00")));
    let mut server = old.clone();
    server.change::<Job>("pi", |job| job.status.as_mut().unwrap().succeeded = 2);
    let mixed = Mixed {
        pods: &server,
        rest: &old,
    };
    let refused = mixed
        .plan_against(&server, &mut Memory::default())
        .unwrap_err();
    assert_eq!(
        refused,
        Refusal::Wait("the Job in the cache is not the newest".to_owned())
    );
    // Where the Job is the newest after all, somebody took finalizers off by hand: they do not count.
    let planned = plan(&old);
    assert_eq!(
        verbs(&planned)
            .iter()
            .filter(|verb| *verb == "create pi")
            .count(),
        2
    );
}

#[test]
fn a_pod_that_is_seen_before_its_job_keeps_its_finalizer() {
    let pi = job("pi");
    let server = world()
        .with(pi.clone())
        .with(pod(&pi, "pi-a").ready("11:50:00"));
    let empty = world();
    let mixed = Mixed {
        pods: &server,
        rest: &empty,
    };
    let refused = mixed
        .plan_against(&server, &mut Memory::default())
        .unwrap_err();
    assert_eq!(
        refused,
        Refusal::Wait("Job default/pi is not in the cache yet".to_owned())
    );
}

#[test]
fn the_back_off_survives_a_handoff_and_a_takeover() {
    let pi = job("pi").started("11:00:00").counted(0, 3);
    let mut world = world().with(pi.clone());
    for (name, time) in [
        ("pi-a", "11:56:00"),
        ("pi-b", "11:58:00"),
        ("pi-c", "11:59:50"),
    ] {
        world.put(untracked(pod(&pi, name).exited(1, time)));
    }
    let wait = controllers_kit::Requeue::At(at("12:00:30"));
    // Nothing is remembered: the remaining pods decide.
    assert_eq!(plan(&world).requeue, wait);
    // It came along: the pods need not be there any more.
    let bare = super::world().with(pi.clone());
    let text = serde_json::json!({
        "counters": super::super::context::counters(pi.status.as_ref().unwrap()),
        "backoff": {"failures": 3, "last": at("11:59:50")},
    });
    let mut carried: Memory = serde_json::from_value(text).unwrap();
    assert_eq!(
        bare.plan_with::<Jobs>("pi", &mut carried).unwrap().requeue,
        wait
    );
    assert!(verbs(&plan(&bare)).contains(&"create pi".to_owned()));
}

#[test]
fn two_owners_choose_the_same_names() {
    let world = world().with(job("pi").parallel(3).completions(3));
    let (one, other) = (plan(&world), plan(&world));
    assert_eq!(one.verbs(), other.verbs());
    let mut server = world;
    server.apply(&one).expect_success();
    assert!(
        server
            .apply(&other)
            .failures()
            .iter()
            .all(|(verb, _)| !verb.starts_with("delete"))
    );
    assert_eq!(server.all::<Pod>().len(), 3);
}

#[test]
fn a_status_of_an_older_view_is_refused() {
    let pi = job("pi").started("11:00:00");
    let mut world = world()
        .with(pi.clone())
        .with(pod(&pi, "pi-a").exited(0, "11:50:00"));
    let stale = plan(&world);
    world.change::<Job>("pi", |job| {
        job.spec.as_mut().unwrap().backoff_limit = Some(9);
    });
    let applied = world.apply(&stale);
    assert_eq!(
        applied.failures().len(),
        2,
        "the status, and the finalizer that waits for it"
    );
    assert!(super::super::orphans::is_tracked(&world.get::<Pod>("pi-a")));
}

/// A Job whose owner ended between listing the uid of a finished pod and counting it.
fn listed_and_not_counted() -> Job {
    job("pi")
        .completions(3)
        .started("11:00:00")
        .counted(1, 0)
        .status(|status| {
            let uncounted = status.uncounted_terminated_pods.get_or_insert_default();
            uncounted.succeeded = vec!["u9".to_owned()];
        })
}

#[test]
fn a_uid_whose_pod_is_gone_is_counted_once_the_pods_are_seen_as_of_its_job_s_version() {
    let world = world().with(listed_and_not_counted());
    let job = world.get::<Job>("pi");
    let planned = plan(&world);
    let proof = planned.counted.iter().find(|counted| counted.since > 0);
    let proof = proof.expect("nobody knows whether the pod is still to come");
    assert_eq!(proof.resource, Pod::resource());
    assert_eq!(proof.since, Object::metadata(&*job).resource_version);
    assert!(proof.selector.matches(&[]), "of all pods");
    let mut after = world.clone();
    after.apply(&planned).expect_success();
    assert_eq!(numbers(&after.get::<Job>("pi"))[3], 2, "no wait");
    // Counters that this owner has written itself prove the view: its cache has reached its own writes.
    let mut memory = Memory {
        counters: Some(super::super::context::counters(
            job.status.as_ref().unwrap(),
        )),
        ..Default::default()
    };
    let planned = world.plan_with::<Jobs>("pi", &mut memory).unwrap();
    assert!(planned.counted.iter().all(|counted| counted.since == 0));
    // So does a pod that is there.
    let here = world.with(pod(&job, "pi-a").exited(0, "11:50:00").uid("u9"));
    assert!(plan(&here).counted.iter().all(|counted| counted.since == 0));
}

#[test]
fn a_job_whose_owner_was_killed_before_counting_does_not_wait_for_a_pod_that_is_gone() {
    let mut world = World::at("12:00:00").with(listed_and_not_counted());
    world.settle_for(3, &[JOBS]);
    assert_eq!(numbers(&world.get::<Job>("pi"))[3], 2);
}

#[test]
fn a_job_deleted_while_nobody_owned_its_key_is_found_by_its_pods() {
    // No watch event names the Job: the pod alone wakes the key.
    let mut world = world().with(pod(&job("gone"), "gone-a").exited(0, "11:30:00"));
    assert!(!world.run::<Jobs>().is_empty());
    assert!(!super::super::orphans::is_tracked(
        &world.get::<Pod>("gone-a")
    ));
    let finished = job("pi").finished("11:00:00");
    let mut world = super::world()
        .with(finished.clone())
        .with(pod(&finished, "pi-a").exited(0, "11:30:00"));
    assert!(!world.run::<Jobs>().is_empty());
}

/// What is planned for `pi` where no query has an answer.
pub(super) fn plan_unanswered(world: &World) -> Plan {
    use controllers_kit::{Controller, Key, Snapshot};
    let (reader, none) = (world.with_indexes_of::<Jobs>(), Default::default());
    let seen = Snapshot::new(&reader, &none, world.now());
    let key = Key::new("default", "pi");
    Jobs::default()
        .plan(&key, &seen, &mut Memory::default())
        .unwrap()
}

/// A cache whose pods are of another time than all else.
struct Mixed<'a> {
    pods: &'a World,
    rest: &'a World,
}

impl controllers_kit::Reader for Mixed<'_> {
    fn get(
        &self,
        resource: &'static controllers_kit::Resource,
        namespace: &str,
        name: &str,
    ) -> Option<controllers_kit::AnyObject> {
        self.of(resource).get(resource, namespace, name)
    }
    fn list(
        &self,
        resource: &'static controllers_kit::Resource,
        namespace: Option<&str>,
    ) -> Vec<controllers_kit::AnyObject> {
        self.of(resource).list(resource, namespace)
    }
    fn indexed(
        &self,
        resource: &'static controllers_kit::Resource,
        index: &'static str,
        value: &str,
    ) -> Vec<controllers_kit::AnyObject> {
        self.of(resource).indexed(resource, index, value)
    }
}

impl Mixed<'_> {
    fn of(&self, resource: &'static controllers_kit::Resource) -> View<'_> {
        let world = if *resource == *Pod::resource() {
            self.pods
        } else {
            self.rest
        };
        world.with_indexes_of::<Jobs>()
    }

    /// What is planned on this view, live reads answered by the server, on which all but the pods is new.
    fn plan(&self, memory: &mut Memory) -> Result<Plan, Refusal> {
        self.plan_against(self.rest, memory)
    }

    fn plan_against(&self, server: &World, memory: &mut Memory) -> Result<Plan, Refusal> {
        use controllers_kit::{Controller, Key, Snapshot};
        let key = Key::new("default", "pi");
        let none = Default::default();
        let queries = Jobs::default().ask(&key, &Snapshot::new(self, &none, server.now()), memory);
        let answers = server.answer(queries);
        Jobs::default().plan(&key, &Snapshot::new(self, &answers, server.now()), memory)
    }
}
