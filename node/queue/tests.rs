use std::time::Duration;

use controllers_kit::{Backoff, Flags, Key};

use super::{KEPT, Place, Priority, Queue, Taken};

fn key(name: &str) -> Key {
    Key::new("shop", name)
}

fn at(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn names(queue: &mut Queue, now: Duration) -> Vec<String> {
    std::iter::from_fn(|| queue.take(now))
        .map(|taken| taken.key.name.to_string())
        .collect()
}

#[test]
fn a_key_waits_once_however_often_it_is_added() {
    let mut queue = Queue::default();
    assert!(queue.add(&key("a"), Priority::High, at(0)));
    assert!(!queue.add(&key("a"), Priority::High, at(1)));
    assert_eq!(queue.depth(), 1);
    let taken = queue.take(at(5)).unwrap();
    assert_eq!(
        taken,
        Taken {
            key: key("a"),
            waited: at(5),
            priority: Priority::High
        }
    );
    assert_eq!(queue.take(at(5)), None);
}

#[test]
fn what_is_added_during_the_work_waits_again_afterwards_and_not_before() {
    let mut queue = Queue::default();
    queue.add(&key("a"), Priority::High, at(0));
    queue.take(at(0)).unwrap();
    assert!(queue.add(&key("a"), Priority::Low, at(3)));
    assert!(!queue.add(&key("a"), Priority::High, at(4)));
    assert_eq!(queue.take(at(5)), None, "it is being worked on");
    queue.done(&key("a"));
    assert_eq!(
        queue.take(at(6)),
        Some(Taken {
            key: key("a"),
            waited: at(3),
            priority: Priority::High
        })
    );
}

#[test]
fn a_user_s_change_goes_ahead_of_gained_keys() {
    let mut queue = Queue::default();
    for name in ["a", "b", "c"] {
        queue.add(&key(name), Priority::Low, at(0));
    }
    queue.add(&key("d"), Priority::High, at(1));
    queue.add(&key("b"), Priority::High, at(2));
    assert_eq!(queue.depth(), 4);
    assert_eq!(names(&mut queue, at(3)), ["d", "b", "a", "c"]);
    assert_eq!(queue.depth(), 0);
}

#[test]
fn a_key_that_is_added_while_it_is_worked_on_is_pending_once() {
    let mut queue = Queue::default();
    queue.add(&key("a"), Priority::High, at(0));
    queue.take(at(1));
    for _ in 0..2 {
        queue.add(&key("a"), Priority::High, at(2));
        assert_eq!((queue.depth(), queue.pending()), (0, 1));
    }
    queue.done(&key("a"));
    assert_eq!((queue.depth(), queue.pending()), (1, 1));
    queue.take(at(3));
    queue.done(&key("a"));
    assert_eq!((queue.depth(), queue.pending()), (0, 0));
}

#[test]
fn failures_back_off_as_in_client_go() {
    let table = [(1, 5), (2, 10), (3, 20), (10, 2560), (18, 655_360)];
    for (failures, millis) in table {
        let delay = Backoff::DEFAULT.after(failures);
        assert_eq!(delay, at(millis), "after {failures} failures");
    }
    assert_eq!(Backoff::DEFAULT.after(19), Backoff::DEFAULT.max);
    assert_eq!(Backoff::DEFAULT.after(u32::MAX), Backoff::DEFAULT.max);
    let mut queue = Queue::default();
    queue.add(&key("a"), Priority::High, at(0));
    queue.take(at(0)).unwrap();
    assert_eq!(queue.add_after_failure(&key("a"), at(0)), at(5));
    queue.done(&key("a"));
    assert_eq!(queue.take(at(4)), None);
    assert_eq!(queue.next_due(), Some(at(5)));
    assert!(queue.take(at(5)).is_some());
    assert_eq!(queue.add_after_failure(&key("a"), at(5)), at(10));
    queue.forget(&key("a"));
    assert_eq!(queue.failures(&key("a")), 0);
}

#[test]
fn a_queue_backs_off_between_its_controller_s_bounds_and_after_a_conflict_by_the_server_s_pace() {
    let mut queue = Queue::new(Backoff {
        first: at(1_000),
        max: at(60_000),
    });
    let delays: Vec<u64> = (0..8)
        .map(|_| queue.add_after_failure(&key("a"), at(0)).as_secs())
        .collect();
    assert_eq!(delays, [1, 2, 4, 8, 16, 32, 60, 60]);
    let delays: Vec<u128> = (0..3)
        .map(|_| {
            queue
                .add_after_conflict(&key("b"), at(1), at(0))
                .as_millis()
        })
        .collect();
    assert_eq!(delays, [5, 10, 20]);
    for (took, first) in [(5, 5), (170, 170), (60_000, 1_000)] {
        queue.forget(&key("c"));
        let delay = queue.add_after_conflict(&key("c"), at(took), at(0));
        assert_eq!(delay, at(first), "an attempt of {took} ms");
    }
    let slow: Vec<u64> = (0..10)
        .map(|_| queue.add_after_conflict(&key("d"), at(1_000), at(0)))
        .map(|delay| u64::try_from(delay.as_millis()).unwrap())
        .collect();
    assert_eq!(
        slow,
        [
            1_000, 1_000, 1_000, 1_000, 1_000, 1_000, 1_000, 1_000, 1_280, 2_560
        ],
        "a slow attempt is waited for, not doubled"
    );
    assert_eq!(
        queue.add_after_failure(&key("b"), at(0)),
        at(8_000),
        "conflicts and failures are counted together"
    );
}

/// What upstream's rate limiter of each controller is, first and longest delay in milliseconds. Those that
/// are not named have client-go's default.
#[test]
fn each_registered_controller_backs_off_as_upstream_s_queue_does() {
    let named = [
        (
            "certificatesigningrequest-approving-controller",
            200,
            1_000_000,
        ),
        (
            "certificatesigningrequest-signing-controller",
            200,
            1_000_000,
        ),
        // Upstream asks for each node once a period, whatever failed.
        ("cloud-node-lifecycle-controller", 1_000, 5_000),
        ("endpointslice-controller", 1_000, 1_000_000),
        ("endpointslice-mirroring-controller", 1_000, 100_000),
        // Upstream checks again each sync period whatever happened; here only the bound is that.
        ("horizontal-pod-autoscaler-controller", 5, 15_000),
        ("job-controller", 1_000, 60_000),
        ("namespace-controller", 5, 60_000),
        // Upstream examines each node once a period, whatever failed.
        ("node-lifecycle-controller", 5, 5_000),
        // Upstream has no queue but a period.
        ("node-route-controller", 1_000, 10_000),
        // Upstream backs off each operation of a volume so, whatever woke it.
        ("persistentvolume-attach-detach-controller", 500, 122_000),
        // Upstream has no queue but a period.
        ("pod-garbage-collector-controller", 5, 20_000),
        ("service-lb-controller", 5_000, 300_000),
    ];
    let descriptors = node_registry::descriptors();
    let flags = Flags::defaults(&descriptors);
    for (name, ..) in named {
        assert!(descriptors.iter().any(|one| one.name == name), "{name}");
    }
    for descriptor in &descriptors {
        let (first, max) = named
            .iter()
            .find(|(name, ..)| *name == descriptor.name)
            .map_or((5, 1_000_000), |(_, first, max)| (*first, *max));
        let wanted = Backoff {
            first: at(first),
            max: at(max),
        };
        assert_eq!(
            descriptor.backoff_with(&flags),
            wanted,
            "{}",
            descriptor.name
        );
    }
}

#[test]
fn the_earlier_of_two_timers_counts() {
    let mut queue = Queue::default();
    queue.add_at(&key("a"), at(100));
    queue.add_at(&key("a"), at(50));
    queue.add_at(&key("a"), at(80));
    assert_eq!(queue.next_due(), Some(at(50)));
    assert_eq!(names(&mut queue, at(50)), ["a"]);
    queue.done(&key("a"));
    assert_eq!(queue.next_due(), None, "the later timers are gone");
    assert!(!queue.knows(&key("a")), "a key at rest leaves no entry");
}

#[test]
fn a_queue_handed_over_loses_nothing() {
    let mut old = Queue::default();
    old.add(&key("low"), Priority::Low, at(0));
    old.add(&key("high"), Priority::High, at(5));
    old.add_after_failure(&key("failed"), at(0));
    old.add(&key("working"), Priority::High, at(1));
    let taken = [old.take(at(5)).unwrap().key, old.take(at(5)).unwrap().key];
    assert!(taken.contains(&key("working")));
    for key in &taken {
        old.add(key, Priority::High, at(7));
        old.done(key);
    }
    let places = old.places(at(10));
    assert_eq!(places.len(), 4);
    let mut new = Queue::default();
    for place in &places {
        new.restore(place, at(1000));
    }
    let sorted = |mut places: Vec<Place>| {
        places.sort_by(|one, other| one.key.cmp(&other.key));
        places
    };
    assert_eq!(sorted(new.places(at(1000))), sorted(places));
}

#[test]
fn a_queue_gives_back_the_room_of_what_waited_once() {
    let mut queue = Queue::default();
    let keys: Vec<Key> = (0..1_000)
        .map(|number| key(&format!("key-{number}")))
        .collect();
    for key in &keys {
        queue.add(key, Priority::Low, at(0));
    }
    queue.add_at(&keys[0], at(10_000));
    assert!(queue.entries.capacity() >= 1_000 && queue.low.capacity() >= 1_000);
    for key in &keys {
        assert_eq!(&queue.take(at(1)).unwrap().key, key);
        queue.done(key);
    }
    assert!(
        queue.entries.capacity() <= 8 * KEPT,
        "{}",
        queue.entries.capacity()
    );
    assert!(queue.low.capacity() <= 8 * KEPT, "{}", queue.low.capacity());
    assert_eq!(queue.next_due(), Some(at(10_000)));
    assert!(queue.knows(&keys[0]) && !queue.knows(&keys[1]));
}
