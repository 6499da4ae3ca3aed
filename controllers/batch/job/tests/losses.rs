//! When pods that were deleted are replaced.

use controllers_kit::Requeue;

use super::{super::losses::Losses, counting::carry_out, *};

/// Takes a pod away at once, finalizers and all.
fn take_away(world: &mut World, name: &str) {
    world.change::<Pod>(name, |pod| {
        pod.metadata_mut().finalizers.clear();
        *pod = pod.clone().terminating("12:00:00");
    });
    assert!(world.find::<Pod>(name).is_none(), "nothing holds it");
}

/// A Job of two pods that have been seen. They have not been ready for long, so the back-off of a failure is
/// over as soon as one is deleted.
fn running() -> (World, Memory) {
    let pi = job("pi").parallel(2).completions(4).started("11:00:00");
    let mut world = world().with(pi.clone());
    for name in ["pi-a", "pi-b"] {
        world.put(PodBuild::condition(
            pod(&pi, name),
            "Ready",
            "False",
            "11:50:00",
        ));
    }
    let mut memory = Memory::default();
    let planned = world.plan_with::<Jobs>("pi", &mut memory).unwrap();
    carry_out(&mut world, &planned, &mut memory);
    (world, memory)
}

fn creations(plan: &Plan) -> usize {
    let verbs = verbs(plan);
    verbs.iter().filter(|verb| *verb == "create pi").count()
}

/// Plans and carries out.
fn step(world: &mut World, memory: &mut Memory) -> (usize, Requeue) {
    let planned = world.plan_with::<Jobs>("pi", memory).unwrap();
    carry_out(world, &planned, memory);
    (creations(&planned), planned.requeue)
}

#[test]
fn a_pod_that_is_gone_is_replaced_a_second_later() {
    let (mut world, mut memory) = running();
    take_away(&mut world, "pi-a");
    assert_eq!(
        step(&mut world, &mut memory),
        (0, Requeue::At(at("12:00:01")))
    );
    // Another one in the meantime does not extend the wait.
    let mut world = world.clone();
    world.advance_to(at("12:00:00.900"));
    take_away(&mut world, "pi-b");
    assert_eq!(
        step(&mut world, &mut memory),
        (0, Requeue::At(at("12:00:01")))
    );
    let mut world = world.later(1);
    assert_eq!(step(&mut world, &mut memory).0, 2);
    // The next loss begins a wait of its own.
    let name = Object::metadata(&*world.all::<Pod>()[0]).name.to_string();
    take_away(&mut world, &name);
    assert_eq!(
        step(&mut world, &mut memory),
        (0, Requeue::At(at("12:00:02.900")))
    );
}

#[test]
fn a_pending_pod_that_is_deleted_is_replaced_a_second_later() {
    let (mut world, mut memory) = running();
    world.change::<Pod>("pi-a", |pod| *pod = pod.clone().terminating("12:00:00"));
    assert_eq!(step(&mut world, &mut memory).0, 0);
    let mut world = world.later(1);
    assert_eq!(step(&mut world, &mut memory).0, 1);
}

#[test]
fn a_job_that_is_deleted_after_its_pods_has_no_new_ones() {
    let (mut world, _) = running();
    for name in ["pi-a", "pi-b"] {
        world.change::<Pod>(name, |pod| *pod = pod.clone().terminating("12:00:00"));
    }
    // A fresh owner may replace them at once; this one has seen them before.
    let mut memory = running().1;
    let planned = world.plan_with::<Jobs>("pi", &mut memory).unwrap();
    assert_eq!(creations(&planned), 0);
    carry_out(&mut world, &planned, &mut memory);
    world.delete::<Job>("pi");
    let planned = world.later(1).plan_with::<Jobs>("pi", &mut memory).unwrap();
    assert_eq!(creations(&planned), 0);
}

#[test]
fn a_success_is_followed_by_the_next_pod_at_once() {
    let (mut world, mut memory) = running();
    world.change::<Pod>("pi-a", |pod| *pod = pod.clone().exited(0, "12:00:00"));
    assert_eq!(step(&mut world, &mut memory).0, 1);
}

#[test]
fn a_changed_spec_ends_the_wait() {
    let (mut world, mut memory) = running();
    take_away(&mut world, "pi-a");
    assert_eq!(step(&mut world, &mut memory).0, 0);
    world.change::<Job>("pi", |job| {
        *job = job.clone().parallel(3);
    });
    assert_eq!(step(&mut world, &mut memory).0, 2);
}

#[test]
fn a_memory_of_losses_that_is_new_waits_for_nothing() {
    let pi = job("pi");
    let here = pod(&pi, "pi-a");
    let going = here.clone().terminating("11:59:59");
    let mut losses = Losses::default();
    losses.observe(1, [&here, &going].into_iter(), at("12:00:00"));
    assert_eq!(losses.until(at("12:00:00")), None);
    losses.observe(1, [&here].into_iter(), at("12:00:00"));
    assert_eq!(losses.until(at("12:00:00")), None, "it was deleted before");
    losses.observe(1, [].into_iter(), at("12:00:00"));
    assert_eq!(losses.until(at("12:00:00")), Some(at("12:00:01")));
    losses.observe(1, [].into_iter(), at("12:00:01"));
    assert_eq!(losses.until(at("12:00:01")), None);
}

#[test]
fn the_wait_for_a_replacement_is_as_long_on_a_machine_whose_clock_differs() {
    use controllers_kit::{Controller, SignedDuration};
    let (mut world, mut memory) = running();
    take_away(&mut world, "pi-a");
    step(&mut world, &mut memory);
    for minutes in [-5, 5] {
        let by = SignedDuration::from_mins(minutes);
        let mut shifted = memory.clone();
        Jobs::default().shift(&mut shifted, by);
        let now = world.now() + by;
        let end = now + SignedDuration::from_secs(1);
        assert_eq!(shifted.losses.until(now), Some(end), "{minutes}");
        assert_eq!(memory.losses.until(now), None, "a clock set by {minutes}");
    }
}
