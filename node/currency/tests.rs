use node_cache::Digest;

use super::{others::is_odd, *};

const EVERY: u64 = 500;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// What happens in a world with one connection and two resources.
struct Scene {
    /// No watch brings anything; a new connection helps where `helps`.
    frozen: fn(u64) -> bool,
    /// A new connection heals it.
    helps: bool,
    /// The first resource brings nothing, though others do; a list heals it where `lists_help`.
    one_frozen: fn(u64) -> bool,
    lists_help: bool,
    /// Nothing is written and no renewal lands.
    stalled: fn(u64) -> bool,
    /// The process does not run.
    stopped: fn(u64) -> bool,
    others_are_current: bool,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    connects: Vec<u64>,
    lists: Vec<(u64, usize)>,
    stale: Vec<u64>,
    current: Vec<u64>,
}

fn never(_: u64) -> bool {
    false
}

impl Scene {
    fn quiet() -> Self {
        Self {
            frozen: never,
            one_frozen: never,
            stalled: never,
            stopped: never,
            helps: false,
            lists_help: false,
            others_are_current: true,
        }
    }

    fn run(&self, until: u64) -> Seen {
        let mut currency = Currency::new(2);
        let mut seen = Seen::default();
        // One write a second to each: the version is the second in which it happened.
        let (mut exists, mut canary, mut resources) = (1, 1, [1; 2]);
        let mut current = true;
        let (mut connected_at, mut listed_at) = (None, None);
        for now in (0..until).step_by(EVERY as usize) {
            if !(self.stalled)(now) {
                exists = 1 + now / 1_000;
            }
            let froze = |begun: Option<u64>, frozen: fn(u64) -> bool, helps: bool| {
                frozen(now) && !(helps && begun.is_some_and(|at| now > at))
            };
            let frozen = froze(connected_at, self.frozen, self.helps);
            let one = froze(listed_at, self.one_frozen, self.lists_help);
            if !frozen {
                canary = exists;
                resources[1] = exists;
                if !one {
                    resources[0] = exists;
                }
            }
            if (self.stopped)(now) {
                continue;
            }
            let progress = |reached| Progress {
                reached,
                wanted: Some(exists),
            };
            let view = View {
                canary: progress(canary),
                resources: &resources.map(progress),
                others_are_current: self.others_are_current,
            };
            let verdict = currency.check(ms(now), view);
            for repair in verdict.repairs {
                match repair {
                    Repair::Connect => {
                        connected_at = Some(now);
                        seen.connects.push(now);
                    }
                    Repair::List(at) => {
                        listed_at = Some(now);
                        seen.lists.push((now, at));
                    }
                }
            }
            match (current, verdict.current) {
                (true, false) => seen.stale.push(now),
                (false, true) => seen.current.push(now),
                _ => {}
            }
            current = verdict.current;
        }
        seen
    }
}

#[test]
fn while_all_is_well_nothing_is_done() {
    assert_eq!(Scene::quiet().run(120_000), Seen::default());
}

#[test]
fn a_connection_that_is_stuck_is_replaced_and_that_may_be_all() {
    let scene = Scene {
        frozen: |now| now >= 10_000,
        helps: true,
        ..Scene::quiet()
    };
    let seen = scene.run(120_000);
    assert_eq!(seen.connects, [13_000]);
    assert_eq!(seen.stale, [0; 0]);
}

#[test]
fn where_a_new_connection_does_not_help_the_replica_is_stale_until_it_has_been_well_for_a_while() {
    let scene = Scene {
        frozen: |now| (10_000..130_000).contains(&now),
        ..Scene::quiet()
    };
    let seen = scene.run(300_000);
    assert_eq!(seen.stale, [14_500]);
    assert_eq!(seen.current, [140_000]);
    assert_eq!(seen.connects, [13_000, 28_000, 58_000, 118_000]);
    assert_eq!(
        seen.lists,
        [(0, 0); 0],
        "they would come by the same connection"
    );
}

#[test]
fn each_time_within_ten_minutes_it_waits_twice_as_long() {
    let scene = Scene {
        frozen: |now| {
            now % 200_000 >= 190_000 && now < 600_000 || (1_990_000..2_000_000).contains(&now)
        },
        ..Scene::quiet()
    };
    let seen = scene.run(2_100_000);
    assert_eq!(seen.stale, [194_500, 394_500, 594_500, 1_994_500]);
    assert_eq!(seen.current, [210_000, 420_000, 640_000, 2_010_000]);
}

#[test]
fn where_nobody_is_current_it_does_not_wait_longer_than_the_others() {
    let scene = Scene {
        frozen: |now| now % 200_000 >= 190_000,
        others_are_current: false,
        ..Scene::quiet()
    };
    let seen = scene.run(700_000);
    assert_eq!(seen.stale, [194_500, 394_500, 594_500]);
    assert_eq!(seen.current, [210_000, 410_000, 610_000]);
}

#[test]
fn an_outage_is_no_standstill() {
    // The last renewal before it has not come back any more.
    let scene = Scene {
        frozen: |now| (9_500..41_000).contains(&now),
        stalled: |now| (10_500..40_000).contains(&now),
        ..Scene::quiet()
    };
    let seen = scene.run(100_000);
    assert_eq!(seen, Seen::default());
}

#[test]
fn a_resource_that_is_stuck_alone_is_listed() {
    let scene = Scene {
        one_frozen: |now| now >= 10_000,
        lists_help: true,
        ..Scene::quiet()
    };
    let seen = scene.run(60_000);
    assert_eq!(seen.connects, [13_000]);
    assert_eq!(seen.lists, [(15_000, 0)]);
    assert_eq!(seen.stale, [0; 0]);
}

#[test]
fn a_resource_that_no_list_mends_makes_the_replica_stale() {
    let scene = Scene {
        one_frozen: |now| now >= 10_000,
        ..Scene::quiet()
    };
    let seen = scene.run(100_000);
    assert_eq!(seen.stale, [18_000]);
    assert_eq!(seen.lists, [(15_000, 0), (75_000, 0)]);
    assert_eq!(seen.current, [0; 0]);
}

#[test]
fn a_server_that_is_stuck_and_a_process_that_was_stopped_prove_nothing() {
    let scene = Scene {
        stalled: |now| (10_000..100_000).contains(&now),
        frozen: |now| (10_000..100_000).contains(&now),
        ..Scene::quiet()
    };
    assert_eq!(scene.run(200_000), Seen::default());
    let scene = Scene {
        // The watches are as late as the process.
        frozen: |now| (10_000..101_000).contains(&now),
        stopped: |now| (10_000..100_000).contains(&now),
        ..Scene::quiet()
    };
    assert_eq!(scene.run(200_000), Seen::default());
}

#[test]
fn what_nobody_waits_for_any_more_is_not_missing() {
    let mut currency = Currency::new(1);
    let mut renewals = 0;
    let mut check = |now, resource: Progress| {
        renewals += 1;
        let canary = Progress {
            reached: renewals,
            wanted: Some(renewals),
        };
        let view = View {
            canary,
            resources: &[resource],
            others_are_current: true,
        };
        currency.check(ms(now), view)
    };
    let well = Progress {
        reached: 7,
        wanted: None,
    };
    let missing = Progress {
        reached: 7,
        wanted: Some(9),
    };
    for now in [0, 1_000, 2_000] {
        assert_eq!(check(now, missing).repairs, []);
    }
    let verdict = check(2_500, missing);
    assert_eq!(verdict.worst, Some((Standstill::Resource(0), ms(2_500))));
    assert_eq!(check(3_000, well).worst, None);
    assert_eq!(check(3_500, missing).worst, None);
}

#[test]
fn who_holds_what_nobody_else_holds_is_odd() {
    let digest = |from, to, sum| Digest {
        from,
        to,
        count: 1,
        sum,
    };
    let own = digest(10, 20, 1);
    let (same, another, later) = (digest(5, 15, 1), digest(12, 12, 2), digest(21, 30, 2));
    for (others, odd) in [
        (vec![], false),
        (vec![same], false),
        (vec![another], true),
        (vec![later], false),
        (vec![same, another], false),
        (vec![another, another, same], true),
        (vec![another, later, same], false),
    ] {
        assert_eq!(is_odd(&own, others.iter().copied()), odd, "{others:?}");
    }
}

#[test]
fn what_another_has_seen_is_known_to_exist_unless_it_is_no_version_of_the_cluster() {
    let others = Others::default();
    let sees = |newest| {
        let resource = "pods".to_owned();
        vec![peer_proto::Sight {
            resource,
            newest,
            ..peer_proto::Sight::default()
        }]
    };
    assert_eq!(others.further("pods", 7, 100), None);
    others.said("b", sees(20));
    others.said("c", sees(15));
    assert_eq!(others.further("pods", 7, 100), Some(15));
    assert_eq!(others.further("pods", 15, 100), Some(20));
    assert_eq!(others.further("pods", 20, 100), None);
    assert_eq!(others.further("nodes", 7, 100), None);
    others.said("b", sees(u64::MAX - 1));
    assert_eq!(others.further("pods", 15, 100), None);
}
