//! Placement and ring by property, the two machines by table.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use proptest::prelude::*;

use crate::{
    Care, Config, Core, Crashes, Death, Deaths, EPOCH_END, Effect, Epoch, Fatal, Gone, Happening,
    Holder, Input, NoAnswer, NotSent, Offer, OwnLease, OwnPhase, Question, REPLICAS_MAX, RangeId,
    RangeLease, Refused, Regained, Renewal, RenewalConfig, RenewalEffect, RenewalInput,
    ReplicaLease, Replies, Ring, Status, Time, Version, Weights, Work, Written,
    mutation::{self, Mutation},
    place, place_within, range_of,
};

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

// ---- ring ----

#[test]
fn the_range_of_a_key_is_protocol() {
    // A change here moves every key of every fleet: it needs a new protocol version, not a new figure.
    let golden = [
        ("default/web", 256, 205),
        ("default/web", 4096, 3295),
        ("default/web", 1, 0),
        ("default/web", 2, 1),
        ("kube-system/coredns", 256, 213),
        ("shop/cart-0", 256, 19),
        ("shop/cart-1", 256, 64),
        ("", 256, 45),
        ("node-ipam-controller", 256, 30),
    ];
    let seen: Vec<_> = golden
        .iter()
        .map(|(text, ranges, _)| (*text, *ranges, range_of(text, *ranges)))
        .collect();
    assert_eq!(seen, golden);
}

#[test]
fn keys_spread_evenly_over_ranges() {
    let mut count = [0u32; 64];
    for n in 0..64_000 {
        count[usize::from(range_of(format!("ns-{}/fill-{n}", n % 7), 64))] += 1;
    }
    assert!(
        count.iter().all(|count| (850..1150).contains(count)),
        "{count:?}"
    );
}

#[test]
fn the_order_of_preference_is_protocol() {
    let ring = Ring::new(["manifold-2", "manifold-0", "manifold-1", "manifold-0"], 8);
    assert_eq!(ring.members(), ["manifold-0", "manifold-1", "manifold-2"]);
    let orders: Vec<&[u16]> = (0..8).map(|range| ring.order(range)).collect();
    let golden: [[u16; 3]; 8] = [
        [0, 2, 1],
        [1, 0, 2],
        [0, 2, 1],
        [0, 2, 1],
        [0, 1, 2],
        [2, 0, 1],
        [2, 1, 0],
        [0, 2, 1],
    ];
    assert_eq!(orders, golden.each_ref().map(|order| order.as_slice()));
}

#[test]
fn who_joins_does_not_change_the_order_of_the_others() {
    let three = Ring::new(["a", "b", "c"], 256);
    let four = Ring::new(["a", "b", "bb", "c"], 256);
    for range in 0..256 {
        let names = |ring: &Ring| -> Vec<String> {
            ring.order(range)
                .iter()
                .map(|at| ring.members()[usize::from(*at)].clone())
                .collect()
        };
        let without: Vec<String> = names(&four)
            .into_iter()
            .filter(|name| name != "bb")
            .collect();
        assert_eq!(names(&three), without);
    }
}

// ---- placement ----

fn names(count: usize) -> Vec<String> {
    (0..count).map(|at| format!("manifold-{at:02}")).collect()
}

fn owners_by(ring: &Ring, owner_names: &[Option<String>]) -> Vec<Option<u16>> {
    owner_names
        .iter()
        .map(|name| {
            let name = name.as_ref()?;
            ring.members()
                .binary_search(name)
                .ok()
                .and_then(|at| u16::try_from(at).ok())
        })
        .collect()
}

fn named(ring: &Ring, placed: &[u16]) -> Vec<Option<String>> {
    placed
        .iter()
        .map(|at| Some(ring.members()[usize::from(*at)].clone()))
        .collect()
}

fn loads(ring: &Ring, placed: &[u16]) -> Vec<usize> {
    let mut load = vec![0; ring.members().len()];
    for at in placed {
        load[usize::from(*at)] += 1;
    }
    load
}

fn assert_even(ring: &Ring, placed: &[u16]) {
    let load = loads(ring, placed);
    assert!(
        load.iter()
            .max()
            .zip(load.iter().min())
            .is_some_and(|(most, least)| most - least <= 1),
        "{load:?}"
    );
}

/// The least number of ranges that must change hands to come to even loads.
fn least_moves(owners: &[Option<u16>], members: usize) -> usize {
    let mut load = vec![0usize; members];
    for owner in owners.iter().flatten() {
        load[usize::from(*owner)] += 1;
    }
    let (floor, mut odd) = (owners.len() / members, owners.len() % members);
    load.sort_unstable_by(|a, b| b.cmp(a));
    let kept: usize = load
        .into_iter()
        .map(|load| {
            if load > floor && odd > 0 {
                odd -= 1;
                floor + 1
            } else {
                load.min(floor)
            }
        })
        .sum();
    owners.len() - kept
}

fn moves(owners: &[Option<u16>], placed: &[u16]) -> usize {
    owners
        .iter()
        .zip(placed)
        .filter(|(owner, placed)| **owner != Some(**placed))
        .count()
}

#[test]
fn a_fleet_of_256_ranges_moves_exactly_what_it_must() {
    let three = Ring::new(names(3), 256);
    let at_three = place(&three, &vec![None; 256], Weights::Equal);
    assert_eq!(loads(&three, &at_three), [86, 85, 85]);
    let four = Ring::new(names(4), 256);
    let before = owners_by(&four, &named(&three, &at_three));
    let at_four = place(&four, &before, Weights::Equal);
    assert_eq!(loads(&four, &at_four), [64, 64, 64, 64]);
    assert_eq!(moves(&before, &at_four), 64);
    let before = owners_by(&three, &named(&four, &at_four));
    let again = place(&three, &before, Weights::Equal);
    assert_eq!(loads(&three, &again), [86, 85, 85]);
    assert_eq!(moves(&before, &again), 64);
}

#[test]
fn without_members_nothing_is_placed() {
    assert!(
        place(
            &Ring::new(Vec::<String>::new(), 4),
            &[None; 4],
            Weights::Equal
        )
        .is_empty()
    );
}

#[test]
fn more_members_than_ranges_leave_some_idle() {
    let ring = Ring::new(names(8), 4);
    assert_even(&ring, &place(&ring, &[None; 4], Weights::Equal));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any fleet, any owners: even at once, moved least, and at rest afterwards.
    #[test]
    fn placement_is_even_moves_least_and_rests(
        members in 1usize..=64,
        bits in 6u32..=12,
        seed in prop::collection::vec(0usize..80, 64),
    ) {
        let ranges = 1u16 << bits;
        let ring = Ring::new(names(members), ranges);
        let owners: Vec<Option<u16>> = (0..usize::from(ranges))
            .map(|range| {
                let pick = seed[(range * 31 + range / 64) % 64];
                (pick < members).then(|| u16::try_from(pick).unwrap_or(0))
            })
            .collect();
        let placed = place(&ring, &owners, Weights::Equal);
        assert_even(&ring, &placed);
        prop_assert_eq!(moves(&owners, &placed), least_moves(&owners, members));
        let now: Vec<Option<u16>> = placed.iter().copied().map(Some).collect();
        prop_assert_eq!(place(&ring, &now, Weights::Equal), placed);
    }

    /// Joins and leaves in any order, each begun while the one before is half done: it ends even, and what
    /// has moved as it should stays where it is.
    #[test]
    fn half_done_moves_continue_and_end(
        steps in prop::collection::vec((0usize..12, 0usize..100), 1..10),
        bits in 6u32..=9,
    ) {
        let ranges = 1u16 << bits;
        let all = names(12);
        let mut live = [true; 12];
        let mut owners: Vec<Option<String>> = vec![None; usize::from(ranges)];
        for (who, share) in steps {
            live[who] = !live[who];
            if !live.contains(&true) {
                live[who] = true;
            }
            let ring = Ring::new((0..12).filter(|at| live[*at]).map(|at| all[at].clone()), ranges);
            let target = place(&ring, &owners_by(&ring, &owners), Weights::Equal);
            // A part of the moves happens, then the next change comes.
            for (range, placed) in target.iter().enumerate() {
                if range % 100 < share {
                    owners[range] = Some(ring.members()[usize::from(*placed)].clone());
                }
            }
        }
        let ring = Ring::new((0..12).filter(|at| live[*at]).map(|at| all[at].clone()), ranges);
        // One move at a time, by a plan made again each time: never more than the least in all.
        let start = owners_by(&ring, &owners);
        let least = least_moves(&start, ring.members().len());
        let mut now = start;
        let mut moved = 0;
        loop {
            let target = place(&ring, &now, Weights::Equal);
            // The last difference rather than the first: the order of moves must not matter.
            let Some(range) = (0..now.len()).rev().find(|range| now[*range] != Some(target[*range])) else { break };
            now[range] = Some(target[range]);
            moved += 1;
            prop_assert!(moved <= least, "more moves than {least}");
        }
        prop_assert_eq!(moved, least);
        let end: Vec<u16> = now.into_iter().flatten().collect();
        assert_even(&ring, &end);
    }

    /// Two replicas that see different owners and members: each moves what it owns by its own view, and it
    /// ends even.
    #[test]
    fn different_views_come_to_rest(
        lag in prop::collection::vec(any::<bool>(), 64),
        joined in 2usize..8,
    ) {
        let ring = Ring::new(names(joined + 1), 64);
        let before = Ring::new(names(joined), 64);
        let mut owners = owners_by(&ring, &named(&before, &place(&before, &[None; 64], Weights::Equal)));
        let mut stale = owners.clone();
        let mut rounds = 0;
        loop {
            // Each owner sees a mixture of the present and of a round ago.
            let mut next = owners.clone();
            for member in 0..u16::try_from(joined + 1).unwrap_or(0) {
                let view: Vec<Option<u16>> = (0..64)
                    .map(|range| {
                        let own = owners[range] == Some(member) || stale[range] == Some(member);
                        if own || lag[(range + usize::from(member) + rounds) % 64] { owners[range] } else { stale[range] }
                    })
                    .collect();
                for (range, target) in place(&ring, &view, Weights::Equal).into_iter().enumerate() {
                    if owners[range] == Some(member) {
                        next[range] = Some(target);
                    }
                }
            }
            let rests = next == owners && stale == owners;
            stale = std::mem::replace(&mut owners, next);
            if rests {
                break;
            }
            rounds += 1;
            prop_assert!(rounds < 40, "no rest");
        }
        let end: Vec<u16> = owners.into_iter().flatten().collect();
        assert_even(&ring, &end);
    }
}

#[test]
fn members_that_take_little_get_no_more_and_the_rest_is_shared_evenly() {
    let names = ["a", "b", "c", "d"].map(str::to_owned);
    let ring = Ring::new(names.to_vec(), 64);
    let nobody = vec![None; 64];
    let loads = |owners: &[Option<u16>], most: &[Option<u16>]| {
        let mut loads = [0; 4];
        for owner in place_within(&ring, owners, most) {
            loads[usize::from(owner)] += 1;
        }
        loads
    };
    assert_eq!(loads(&nobody, &[]), [16; 4]);
    assert_eq!(
        loads(&nobody, &[Some(1), None, None, None]),
        [1, 21, 21, 21]
    );
    assert_eq!(loads(&nobody, &[Some(1), Some(17), None, None])[0], 1);
    assert_eq!(loads(&nobody, &[Some(40), None, None, None]), [16; 4]);
    assert_eq!(
        loads(&nobody, &[Some(2), Some(4), None, None]),
        [2, 4, 29, 29]
    );
    let all = [Some(1), Some(1), Some(1), Some(1)];
    assert_eq!(loads(&nobody, &all), [16; 4], "somebody must have them");
    // It gives up what it has beyond, and what it keeps stays where it is.
    let hers: Vec<Option<u16>> = vec![Some(0); 64];
    let placed = place_within(&ring, &hers, &[Some(3), None, None, None]);
    assert_eq!(placed.iter().filter(|owner| **owner == 0).count(), 3);
    let owners: Vec<Option<u16>> = placed.iter().copied().map(Some).collect();
    assert_eq!(
        place_within(&ring, &owners, &[Some(3), None, None, None]),
        placed
    );
}

// ---- renewal ----

/// A replica that comes upon such a Lease, and what it writes there.
fn upon(lease: &ReplicaLease, waits: bool) -> Status {
    let mut renewal = Renewal::new(
        RenewalConfig {
            name: "a".to_owned(),
            incarnation: "a2".to_owned(),
            lease_duration: secs(5),
            renew_deadline: secs(3),
            retry_period: secs(1),
            epoch_second: Some(1000),
            deaths_from: Some(1000),
            gone: None,
        },
        status(),
    );
    renewal.step(secs(10), RenewalInput::Join);
    let seconds = if waits { 10..=15 } else { 10..=10 };
    let mut effects = Vec::new();
    for second in seconds {
        renewal.step(secs(second), RenewalInput::Tick);
        effects = renewal.step(secs(second), RenewalInput::Read(Ok(Some(lease.clone()))));
    }
    match effects.pop() {
        Some(RenewalEffect::Write { lease, .. }) => lease.status,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_life_that_ended_without_leaving_is_noted_and_the_next_begins_with_one_range() {
    let crashed = |lease: ReplicaLease, waits| {
        let status = upon(&lease, waits);
        (status.crashes.to_string(), status.share)
    };
    // Its holder has been evicted, or is waited for until it has been silent for long enough.
    let evicted = replica("a", 3, None);
    assert_eq!(crashed(evicted, false), ("1010".to_owned(), Some(1)));
    let silent = replica("a", 3, Some("a1"));
    assert_eq!(crashed(silent, true), ("1015".to_owned(), Some(1)));
    let mut again = replica("a", 3, None);
    again.status.crashes = Crashes::parse("400,900");
    assert_eq!(crashed(again, false).0, "400,900,1010");
    let mut left = replica("a", 3, None);
    left.status.draining = true;
    left.status.crashes = Crashes::parse("400");
    assert_eq!(crashed(left, false), ("400".to_owned(), None));
}

#[test]
fn a_replica_that_crashed_is_given_its_share_step_by_step() {
    let mut bench = Bench::new(&["b"], &[0, 1, 2, 3].map(|range| (range, "a", "a1", 1)));
    bench.step(Input::HostReady(true));
    bench.own(true);
    for range in 0..4 {
        bench.core = seeded(bench.core.clone(), range, 1);
    }
    if let Some(lease) = bench.replicas.get_mut("b") {
        lease.status.share = Some(1);
    }
    assert_eq!(
        freezes(&bench.read()).len(),
        1,
        "one of the two that are due"
    );
    let mut all = Bench::new(&["b"], &[0, 1, 2, 3].map(|range| (range, "a", "a1", 1)));
    all.step(Input::HostReady(true));
    all.own(true);
    for range in 0..4 {
        all.core = seeded(all.core.clone(), range, 1);
    }
    assert_eq!(freezes(&all.read()).len(), 2);
}

#[test]
fn a_replica_says_how_much_it_takes_as_it_lives() {
    let mut bench = Bench::new(&[], &[]);
    bench.core.set_slow_start(secs(10));
    let mut published = Vec::new();
    let since = bench.now;
    for second in [0, 9, 10, 20, 30] {
        bench.now = since + secs(second);
        let mut effects = bench.step(Input::Own(OwnLease {
            incarnation: "a1".to_owned(),
            phase: OwnPhase::Held,
            open_until: Some(bench.now + secs(3)),
            regained: None,
            landed: None,
            evictions: 0,
            crashes: Crashes::default().and(0),
        }));
        effects.extend(bench.step(Input::HostReady(true)));
        let mut shares = effects.iter().filter_map(|effect| match effect {
            Effect::Status(status) => Some(status.share),
            _ => None,
        });
        published.extend(shares.next_back());
    }
    published.dedup();
    assert_eq!(published, [Some(1), Some(2), None], "of four");
}

#[test]
fn a_renewal_of_another_member_runs_no_rule_and_whatever_else_it_says_does() {
    let mut bench = half_and_half();
    let renewed = |bench: &Bench, version: Version| ReplicaLease {
        version,
        ..bench.replicas["b"].clone()
    };
    // The first is what says that it renews.
    let first = renewed(&bench, 1001);
    bench.step(Input::Replica(first));
    let quiet = |bench: &Bench, lease: ReplicaLease| {
        bench
            .core
            .changes_nothing(&[Input::Replica(lease), Input::WatchedTo(1002)])
    };
    let next = renewed(&bench, 1002);
    assert!(quiet(&bench, next.clone()));
    let effects = bench.step(Input::Replica(next.clone()));
    assert_eq!(effects, []);
    let draining = Status {
        draining: true,
        ..next.status.clone()
    };
    for (what, lease) in [
        (
            "a new life",
            ReplicaLease {
                incarnation: Some("b2".to_owned()),
                ..next.clone()
            },
        ),
        (
            "released",
            ReplicaLease {
                incarnation: None,
                ..next.clone()
            },
        ),
        (
            "draining",
            ReplicaLease {
                status: draining,
                ..next.clone()
            },
        ),
        (
            "an end",
            ReplicaLease {
                ended: vec!["b0".to_owned()],
                ..next.clone()
            },
        ),
        (
            "a newcomer",
            ReplicaLease {
                name: "d".to_owned(),
                ..next.clone()
            },
        ),
    ] {
        assert!(!quiet(&bench, lease), "{what}");
    }
    assert!(
        !bench
            .core
            .changes_nothing(&[Input::Replica(next), Input::Tick])
    );
    assert!(!bench.core.changes_nothing(&[]));
    // While somebody is going, what the watch has passed decides.
    let gone = Input::ReplicaGone {
        name: "b".to_owned(),
        version: 1003,
    };
    bench.step(gone);
    assert!(!quiet(&bench, renewed(&bench, 1004)));
}

/// Seconds in which a list of the replica Leases is asked for, of 20 that pass. In each of them a renewal
/// that took `slow` lands and the watch brings it, but for seconds from `stuck` on; `silent` do not renew.
fn lists_in_twenty_seconds(slow: Duration, stuck: u64, silent: &[&str]) -> Vec<u64> {
    let mut bench = half_and_half();
    let mut lists = Vec::new();
    for second in 1..=20 {
        bench.now += secs(1);
        let mut effects = Vec::new();
        for name in ["a", "b"] {
            if silent.contains(&name) {
                continue;
            }
            bench.version += 1;
            let version = bench.version;
            if let Some(lease) = bench.replicas.get_mut(name) {
                lease.version = version;
                let lease = lease.clone();
                if second < stuck {
                    effects.extend(bench.step(Input::Replica(lease)));
                }
            }
            if second < stuck {
                effects.extend(bench.step(Input::WatchedTo(version)));
            }
        }
        let landed = Some((bench.now.saturating_sub(slow), bench.version - 1));
        effects.extend(bench.own_landed(landed));
        effects.extend(bench.step(Input::Tick));
        if effects.contains(&Effect::ReadReplicas) {
            lists.push(second);
            bench.read();
        }
    }
    lists
}

#[test]
fn the_own_renewal_seen_by_the_watch_is_as_good_as_a_list_while_all_renew() {
    let fast = Duration::from_millis(20);
    let from = |second: u64| -> Vec<u64> { (second..=20).collect() };
    assert_eq!(lists_in_twenty_seconds(fast, 99, &[]), [1, 16]);
    // A watch that is stuck shows nothing from then on.
    let stuck = lists_in_twenty_seconds(fast, 10, &[]);
    assert_eq!((stuck[0], &stuck[1..]), (1, &from(11)[..]));
    // A renewal that took longer than a read may proves nothing.
    assert_eq!(lists_in_twenty_seconds(secs(2), 99, &[]), from(1));
    // What follows from silence rests on lists.
    assert_eq!(lists_in_twenty_seconds(fast, 99, &["b"]), from(1));
}

fn status() -> Status {
    Status {
        address: "a:1".to_owned(),
        pin: None,
        build: "0.1.0".to_owned(),
        ready: true,
        draining: false,
        stale: false,
        ranges: 4,
        server_fenced: false,
        ..Status::default()
    }
}

fn replica(name: &str, version: Version, incarnation: Option<&str>) -> ReplicaLease {
    ReplicaLease {
        name: name.to_owned(),
        version,
        incarnation: incarnation.map(str::to_owned),
        status: status(),
        ended: Vec::new(),
        working: Vec::new(),
        loads: Arc::default(),
        deaths: Deaths::default(),
    }
}

fn renewal() -> Renewal {
    Renewal::new(
        RenewalConfig {
            name: "a".to_owned(),
            incarnation: "a1".to_owned(),
            lease_duration: secs(5),
            renew_deadline: secs(3),
            retry_period: secs(1),
            epoch_second: None,
            deaths_from: None,
            gone: None,
        },
        status(),
    )
}

/// A replica that holds its Lease since 10 s, with an open fence.
fn renewing() -> Renewal {
    let mut renewal = renewal();
    assert_eq!(
        renewal.step(secs(10), RenewalInput::Join),
        [RenewalEffect::Read]
    );
    let effects = renewal.step(secs(10), RenewalInput::Read(Ok(None)));
    assert!(
        matches!(&effects[..], [RenewalEffect::Write { version: None, lease }] if lease.incarnation.as_deref() == Some("a1"))
    );
    let started = secs(10);
    renewal.step(
        secs(10),
        RenewalInput::Written {
            started,
            result: Written::Done(replica("a", 1, Some("a1"))),
        },
    );
    assert_eq!(
        renewal.own().open_until,
        None,
        "closed until the range Leases are read"
    );
    let regained = renewal.own().regained.unwrap_or(Regained {
        started: Time::ZERO,
        seen: Time::ZERO,
    });
    renewal.step(secs(10), RenewalInput::Reopen(regained));
    assert_eq!(renewal.own().open_until, Some(secs(13)));
    renewal
}

/// What a first life writes that has come upon a Lease, once it may.
fn acquired(found: &ReplicaLease, incarnation: &str) -> ReplicaLease {
    let config = RenewalConfig {
        name: "a".to_owned(),
        incarnation: incarnation.to_owned(),
        lease_duration: secs(5),
        renew_deadline: secs(3),
        retry_period: secs(1),
        epoch_second: None,
        deaths_from: Some(1000),
        gone: None,
    };
    let mut renewal = Renewal::new(config, status());
    renewal.step(secs(10), RenewalInput::Join);
    for second in 10..=15 {
        renewal.step(secs(second), RenewalInput::Tick);
        let read = RenewalInput::Read(Ok(Some(found.clone())));
        if let Some(RenewalEffect::Write { lease, .. }) = renewal.step(secs(second), read).pop() {
            return lease;
        }
    }
    panic!("the Lease was not taken");
}

#[test]
fn an_evictor_files_the_death_with_what_was_in_flight() {
    let working = vec![Work::new("job-controller", "a/x", Care::None)];
    let silent = ReplicaLease {
        working,
        deaths: Deaths::parse("@900 a0"),
        ..replica("a", 3, Some("a1"))
    };
    let died = Deaths::parse("@900 a0\n@1015 a1\n-job-controller a/x");
    // The next life of the replica, which has waited for it, or another replica.
    let next = acquired(&silent, "a2");
    assert_eq!((next.deaths, next.working), (died.clone(), Vec::new()));
    let evicted = silent.evicted(Some(1015));
    assert_eq!((&evicted.deaths, &evicted.working), (&died, &Vec::new()));
    assert_eq!(evicted.incarnation, None);
    // Once is enough.
    assert_eq!(acquired(&evicted, "a2").deaths, died);
    // One that released its Lease has not died.
    assert_eq!(silent.vacated().deaths, Deaths::parse("@900 a0"));
    assert_eq!(silent.evicted(None).deaths, Deaths::parse("@900 a0"));
    // Nor has a process that comes back under a later incarnation: the network was at fault.
    let survivor = acquired(&evicted, "a1-1");
    assert_eq!(survivor.deaths, Deaths::parse("@900 a0"));
}

#[test]
fn an_announcement_is_written_at_once_and_more_are_collected_meanwhile() {
    let mut renewal = renewing();
    let written = |renewal: &mut Renewal, at, version| {
        let result = Written::Done(replica("a", version, Some("a1")));
        let started = at;
        renewal.step(at, RenewalInput::Written { started, result })
    };
    let writes = |effects: &[RenewalEffect]| {
        let is_write = |effect: &&RenewalEffect| matches!(effect, RenewalEffect::Write { .. });
        effects.iter().filter(is_write).count()
    };
    let at = millis(10_300);
    assert_eq!(writes(&renewal.step(at, RenewalInput::Tick)), 0);
    assert_eq!(writes(&renewal.step(at, RenewalInput::Announce)), 1);
    // One write is under way at a time; it does not carry what comes now.
    let later = millis(10_310);
    assert_eq!(writes(&renewal.step(later, RenewalInput::Announce)), 0);
    assert_eq!(writes(&renewal.step(later, RenewalInput::Announce)), 0);
    assert_eq!(writes(&written(&mut renewal, at, 2)), 0);
    assert_eq!(renewal.wake_at(), Some(millis(10_320)));
    let at = millis(10_320);
    assert_eq!(writes(&renewal.step(at, RenewalInput::Tick)), 1);
    assert_eq!(writes(&written(&mut renewal, at, 3)), 0);
    assert_eq!(renewal.wake_at(), Some(millis(11_320)), "none is left");
}

#[test]
fn each_renewal_moves_the_fence_on_from_its_start() {
    let mut renewal = renewing();
    assert!(matches!(
        renewal.step(secs(11), RenewalInput::Tick)[..],
        [RenewalEffect::Write {
            version: Some(1),
            ..
        }]
    ));
    let result = Written::Done(replica("a", 2, Some("a1")));
    renewal.step(
        millis(11_900),
        RenewalInput::Written {
            started: secs(11),
            result,
        },
    );
    assert_eq!(renewal.own().open_until, Some(secs(14)));
}

#[test]
fn a_renewal_that_lands_after_the_deadline_does_not_open_the_fence() {
    let mut renewal = renewing();
    renewal.step(secs(11), RenewalInput::Tick);
    let result = Written::Done(replica("a", 2, Some("a1")));
    renewal.step(
        secs(13),
        RenewalInput::Written {
            started: secs(12),
            result,
        },
    );
    assert_eq!(renewal.own().open_until, None);
    assert_eq!(renewal.own().phase, OwnPhase::Held);
    let regained = renewal.own().regained;
    assert_eq!(
        regained,
        Some(Regained {
            started: secs(12),
            seen: secs(13)
        }),
        "ranges are to be read first"
    );
}

/// Whether the fence is open after a gap at 11.5 s, with a renewal answered then that was started at
/// `started`, and the permission that follows from it.
fn opens_after_a_gap(started: Time) -> bool {
    let mut renewal = renewing();
    renewal.step(secs(11), RenewalInput::Tick);
    let at = millis(11_500);
    renewal.step(at, RenewalInput::Gap);
    assert_eq!(renewal.own().open_until, None);
    let result = Written::Done(replica("a", 2, Some("a1")));
    let next = renewal.step(at, RenewalInput::Written { started, result });
    let regained = renewal.own().regained;
    assert_eq!(
        regained.is_none(),
        next.iter()
            .any(|effect| matches!(effect, RenewalEffect::Write { .. })),
        "where it does not count, the next goes out at once"
    );
    let seen = at;
    let permission = regained.unwrap_or(Regained { started, seen });
    renewal.step(at, RenewalInput::Reopen(permission));
    renewal.own().open_until.is_some()
}

#[test]
fn after_a_gap_the_fence_opens_with_a_renewal_that_was_started_after_it() {
    assert!(!opens_after_a_gap(secs(11)));
    assert!(opens_after_a_gap(millis(11_500)));
    mutation::set(Some(Mutation::GapIsForgotten));
    let opens = opens_after_a_gap(secs(11));
    mutation::set(None);
    assert!(opens, "the mutant is not noticed");
}

/// The Lease that a replica writes which gives up, with this key in flight.
fn given_up(working: &Work) -> ReplicaLease {
    let config = RenewalConfig {
        name: "a".to_owned(),
        incarnation: "a1".to_owned(),
        lease_duration: secs(5),
        renew_deadline: secs(3),
        retry_period: secs(1),
        epoch_second: None,
        deaths_from: Some(1000),
        gone: None,
    };
    let mut renewal = Renewal::new(config, status());
    renewal.step(secs(10), RenewalInput::Join);
    renewal.step(secs(10), RenewalInput::Read(Ok(None)));
    let result = Written::Done(replica("a", 1, Some("a1")));
    let started = secs(10);
    renewal.step(secs(10), RenewalInput::Written { started, result });
    let effects = renewal.step(secs(11), RenewalInput::GiveUp(vec![working.clone()]));
    assert_eq!(renewal.own().open_until, None);
    match &effects[..] {
        [
            RenewalEffect::Write {
                version: Some(1),
                lease,
            },
        ] => lease.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_replica_that_gives_up_is_filed_as_dead_with_what_it_had_in_flight() {
    let work = Work::new("deployment-controller", "shop/web", Care::None);
    let lease = given_up(&work);
    assert_eq!(lease.incarnation, None);
    assert_eq!(lease.ended, ["a1"]);
    let death = Death {
        second: 1011,
        incarnation: "a1".to_owned(),
        working: vec![work.clone()],
    };
    let mut deaths = Deaths::default();
    deaths.push(death);
    assert_eq!(lease.deaths, deaths, "its keys are suspected");
    mutation::set(Some(Mutation::HangsWithoutATrace));
    let silent = given_up(&work);
    mutation::set(None);
    assert_ne!(silent.deaths, deaths, "the mutant is not noticed");
}

#[test]
fn a_stale_permission_does_not_open_the_fence() {
    let mut renewal = renewing();
    renewal.step(secs(11), RenewalInput::Tick);
    renewal.step(secs(14), RenewalInput::Tick);
    renewal.step(
        secs(14),
        RenewalInput::Reopen(Regained {
            started: secs(10),
            seen: secs(10),
        }),
    );
    assert_eq!(renewal.own().open_until, None);
}

#[test]
fn an_unclear_renewal_is_cleared_up_before_the_next() {
    let mut renewal = renewing();
    renewal.step(secs(11), RenewalInput::Tick);
    renewal.step(
        secs(12),
        RenewalInput::Written {
            started: secs(11),
            result: Written::Unknown,
        },
    );
    // It had landed: the version is another, the holder is not.
    let mut effects = renewal.step(secs(12), RenewalInput::Tick);
    if effects.is_empty() {
        effects = renewal.step(secs(13), RenewalInput::Tick);
    }
    assert!(effects.is_empty() || effects == [RenewalEffect::Read]);
    let effects = renewal.step(
        millis(12_100),
        RenewalInput::Read(Ok(Some(replica("a", 2, Some("a1"))))),
    );
    assert!(matches!(
        effects[..],
        [RenewalEffect::Write {
            version: Some(2),
            ..
        }]
    ));
}

#[test]
fn an_evicted_replica_closes_its_fence_and_comes_back_as_another() {
    for lost in [
        Some(replica("a", 7, None)),
        Some(replica("a", 7, Some("other"))),
    ] {
        let mut renewal = renewing();
        renewal.step(secs(11), RenewalInput::Tick);
        let effects = renewal.step(
            secs(11),
            RenewalInput::Written {
                started: secs(11),
                result: Written::Conflict(lost),
            },
        );
        assert_eq!(renewal.own().open_until, None);
        assert_eq!(renewal.own().incarnation, "a1-1");
        assert_eq!(effects, [RenewalEffect::Read]);
    }
}

#[test]
fn a_second_process_of_one_name_waits_and_gives_up_if_the_first_renews() {
    let mut renewal = renewal();
    renewal.step(secs(1), RenewalInput::Join);
    renewal.step(
        secs(1),
        RenewalInput::Read(Ok(Some(replica("a", 3, Some("other"))))),
    );
    for at in 2..=6 {
        assert_eq!(renewal.own().phase, OwnPhase::Joining, "at {at}");
        renewal.step(secs(at), RenewalInput::Tick);
        let effects = renewal.step(
            secs(at),
            RenewalInput::Read(Ok(Some(replica("a", 2 + at, Some("other"))))),
        );
        assert_eq!(effects, []);
    }
    assert_eq!(renewal.own().phase, OwnPhase::NameTaken("other".to_owned()));
}

#[test]
fn a_renewal_that_a_dead_process_had_under_way_is_no_sign_of_life() {
    let mut renewal = renewal();
    renewal.step(secs(1), RenewalInput::Join);
    let mut effects = Vec::new();
    for at in 1..=8 {
        let version = if at < 3 { 3 } else { 4 };
        renewal.step(secs(at), RenewalInput::Tick);
        effects = renewal.step(
            secs(at),
            RenewalInput::Read(Ok(Some(replica("a", version, Some("old"))))),
        );
        assert_eq!(effects.is_empty(), at < 8, "at {at}: {effects:?}");
    }
    assert!(matches!(
        effects[..],
        [RenewalEffect::Write {
            version: Some(4),
            ..
        }]
    ));
}

#[test]
fn a_second_process_of_one_name_takes_the_lease_of_one_that_is_silent() {
    let mut renewal = renewal();
    renewal.step(secs(1), RenewalInput::Join);
    let read = || RenewalInput::Read(Ok(Some(replica("a", 3, Some("old")))));
    renewal.step(secs(1), read());
    for at in 2..6 {
        assert_eq!(
            renewal.step(secs(at), RenewalInput::Tick),
            [RenewalEffect::Read],
            "at {at}"
        );
        assert_eq!(renewal.step(secs(at), read()), [], "at {at}");
    }
    renewal.step(secs(6), RenewalInput::Tick);
    let effects = renewal.step(secs(6), read());
    assert!(
        matches!(&effects[..], [RenewalEffect::Write { version: Some(3), lease }]
            if lease.ended == ["old"] && lease.incarnation.as_deref() == Some("a1")),
        "{effects:?}"
    );
}

#[test]
fn a_failed_read_starts_the_wait_for_the_name_again() {
    let mut renewal = renewal();
    renewal.step(secs(1), RenewalInput::Join);
    let read = || RenewalInput::Read(Ok(Some(replica("a", 3, Some("old")))));
    renewal.step(secs(1), read());
    renewal.step(secs(2), RenewalInput::Tick);
    renewal.step(secs(3), RenewalInput::Read(Err(NoAnswer)));
    renewal.step(secs(4), RenewalInput::Tick);
    renewal.step(secs(4), read());
    renewal.step(secs(6), RenewalInput::Tick);
    assert_eq!(
        renewal.step(secs(6), read()),
        [],
        "3 s of good reads are not 5"
    );
}

#[test]
fn a_life_that_others_have_ended_is_never_lived_again() {
    let mut renewal = renewal();
    renewal.step(secs(1), RenewalInput::Join);
    renewal.step(secs(1), RenewalInput::Read(Ok(None)));
    // The acquisition lands unseen, and is evicted before it is read.
    renewal.step(
        secs(2),
        RenewalInput::Written {
            started: secs(1),
            result: Written::Unknown,
        },
    );
    renewal.step(secs(8), RenewalInput::Tick);
    let evicted = ReplicaLease {
        ended: vec!["a1".to_owned()],
        ..replica("a", 3, None)
    };
    let effects = renewal.step(secs(8), RenewalInput::Read(Ok(Some(evicted))));
    assert!(
        matches!(&effects[..], [RenewalEffect::Write { lease, .. }] if lease.incarnation.as_deref() == Some("a1-1")),
        "{effects:?}"
    );
}

#[test]
fn a_release_names_nobody_and_lists_the_one_that_ended() {
    let mut renewal = renewing();
    let effects = renewal.step(millis(10_500), RenewalInput::Release);
    assert!(
        matches!(&effects[..], [RenewalEffect::Write { version: Some(1), lease }]
            if lease.incarnation.is_none() && lease.ended == ["a1"]),
        "{effects:?}"
    );
    assert_eq!(
        renewal.own().open_until,
        None,
        "closed before the release is sent"
    );
    let result = Written::Done(ReplicaLease {
        ended: vec!["a1".to_owned()],
        ..replica("a", 2, None)
    });
    renewal.step(
        millis(10_600),
        RenewalInput::Written {
            started: millis(10_500),
            result,
        },
    );
    assert_eq!(renewal.own().phase, OwnPhase::Released);
}

#[test]
fn a_life_whose_lease_was_deleted_is_listed_as_ended_by_the_next_one_of_the_process() {
    let mut renewal = renewing();
    let now = secs(11);
    renewal.step(now, RenewalInput::Tick);
    let result = Written::Conflict(None);
    let started = now;
    let effects = renewal.step(now, RenewalInput::Written { started, result });
    let over = renewal.own();
    assert_eq!((over.open_until, over.evictions), (None, 1));
    // What the old life had sent is in the server's hands for the duration less the deadline.
    assert_eq!((effects, renewal.wake_at()), (vec![], Some(now + secs(2))));
    let now = now + secs(2);
    assert_eq!(renewal.step(now, RenewalInput::Tick), [RenewalEffect::Read]);
    let effects = renewal.step(now, RenewalInput::Read(Ok(None)));
    let [
        RenewalEffect::Write {
            version: None,
            lease,
        },
    ] = &effects[..]
    else {
        panic!("{effects:?}")
    };
    let me = renewal.incarnation();
    assert_eq!(lease.incarnation.as_ref(), Some(&me));
    assert_eq!(lease.ended.len(), 1);
    assert!(!lease.ended.contains(&me), "{lease:?}");
}

#[test]
fn a_release_waits_for_the_renewal_under_way() {
    let mut renewal = renewing();
    renewal.step(secs(11), RenewalInput::Tick);
    assert_eq!(renewal.step(secs(11), RenewalInput::Release), []);
    let result = Written::Done(replica("a", 2, Some("a1")));
    let effects = renewal.step(
        secs(11),
        RenewalInput::Written {
            started: secs(11),
            result,
        },
    );
    assert!(
        matches!(&effects[..], [RenewalEffect::Write { version: Some(2), lease }] if lease.incarnation.is_none())
    );
}

// ---- core ----

/// A core "a" among others, with what the world would answer given by hand.
struct Bench {
    core: Core,
    now: Time,
    version: Version,
    replicas: BTreeMap<String, ReplicaLease>,
    ranges: BTreeMap<RangeId, RangeLease>,
    /// Whether members answer when they are only asked for an answer.
    reachable: bool,
}

impl Bench {
    /// "a" holds its Lease; `others` live beside it; `ranges` have owners.
    fn new(others: &[&str], ranges: &[(RangeId, &str, &str, Epoch)]) -> Self {
        let core = Core::new(Config {
            name: "a".to_owned(),
            address: "a:1".to_owned(),
            pin: None,
            pod: "system/a".into(),
            build: "0.1.0".to_owned(),
            ranges: 4,
            lease_duration: secs(5),
            late_write_max: secs(2),
            retry_period: secs(1),
            settle_time: secs(1),
            expected_replicas: None,
            moves_at_once: 2,
            freeze_budget: secs(2),
            drain_budget: Duration::from_millis(500),
            bars: false,
            slow_start: Duration::ZERO,
            epoch_second: 0,
            records_deaths: true,
            plans: true,
        });
        let mut bench = Self {
            core,
            now: secs(100),
            version: 100,
            replicas: BTreeMap::new(),
            ranges: BTreeMap::new(),
            reachable: true,
        };
        bench
            .replicas
            .insert("a".to_owned(), replica("a", 1, Some("a1")));
        for (at, name) in (2..).zip(others) {
            bench.replicas.insert(
                (*name).to_owned(),
                replica(name, at, Some(&format!("{name}1"))),
            );
        }
        for (range, name, incarnation, epoch) in ranges {
            let holder = Some(Holder::new(*name, *incarnation));
            let version = 50 + u64::from(*range);
            bench.ranges.insert(
                *range,
                RangeLease {
                    range: *range,
                    version,
                    holder,
                    epoch: *epoch,
                    dead: Vec::new(),
                },
            );
        }
        bench
    }

    fn step(&mut self, input: Input) -> Vec<Effect> {
        let mut effects = Vec::new();
        for effect in self.core.step(self.now, input) {
            match effect {
                Effect::AskHolds { inquiry: 0, to, .. } if self.reachable => {
                    effects.extend(self.contacted(&to.name, true));
                }
                effect => effects.push(effect),
            }
        }
        effects
    }

    /// A member answers that it is there, or does not.
    fn contacted(&mut self, name: &str, answers: bool) -> Vec<Effect> {
        let from = Holder::new(name, format!("{name}1"));
        self.step(Input::HoldsAnswered {
            inquiry: 0,
            from,
            result: answers.then(BTreeMap::new).ok_or(NoAnswer),
        })
    }

    fn own(&mut self, open: bool) -> Vec<Effect> {
        self.own_as(open, None)
    }

    /// Its renewal was started then and has landed as this version.
    fn own_landed(&mut self, landed: Option<(Time, Version)>) -> Vec<Effect> {
        self.own_as(true, landed)
    }

    fn own_as(&mut self, open: bool, landed: Option<(Time, Version)>) -> Vec<Effect> {
        let open_until = open.then(|| self.now + secs(3));
        self.step(Input::Own(OwnLease {
            incarnation: "a1".to_owned(),
            phase: OwnPhase::Held,
            open_until,
            regained: (!open).then_some(Regained {
                started: self.now,
                seen: self.now,
            }),
            landed,
            evictions: 0,
            crashes: Crashes::default(),
        }))
    }

    fn read(&mut self) -> Vec<Effect> {
        self.version += 1;
        let (started, version) = (self.now, self.version);
        let mut effects = self.step(Input::Replicas {
            started,
            version,
            leases: self.replicas.values().cloned().collect(),
        });
        effects.extend(self.step(Input::Ranges {
            started,
            version,
            leases: self.ranges.values().cloned().collect(),
        }));
        effects
    }

    /// Everything read, the fence open; gives the effects of the last step.
    fn begin(&mut self) -> Vec<Effect> {
        self.step(Input::HostReady(true));
        self.own(true);
        self.read()
    }

    /// Time passes with a good read and a renewal of everybody but `silent` each second.
    fn pass(&mut self, seconds: u64, silent: &[&str]) -> Vec<Effect> {
        let mut effects = Vec::new();
        for _ in 0..seconds {
            self.now += secs(1);
            for lease in self.replicas.values_mut() {
                if lease.incarnation.is_some() && !silent.contains(&lease.name.as_str()) {
                    self.version += 1;
                    lease.version = self.version;
                }
            }
            effects.extend(self.own(true));
            effects.extend(self.read());
        }
        effects
    }

    fn landed(
        &mut self,
        range: RangeId,
        name: &str,
        incarnation: &str,
        epoch: Epoch,
    ) -> RangeLease {
        self.version += 1;
        let lease = RangeLease {
            range,
            version: self.version,
            holder: Some(Holder::new(name, incarnation)),
            epoch,
            dead: Vec::new(),
        };
        self.ranges.insert(range, lease.clone());
        lease
    }
}

fn claims(effects: &[Effect]) -> Vec<(RangeId, Epoch)> {
    let claim = |effect: &Effect| match effect {
        Effect::Claim { lease, .. } => Some((lease.range, lease.epoch)),
        _ => None,
    };
    effects.iter().filter_map(claim).collect()
}

fn evictions(effects: &[Effect]) -> Vec<String> {
    let evicted = |effect: &Effect| match effect {
        Effect::Evict(lease) => Some(lease.name.clone()),
        _ => None,
    };
    effects.iter().filter_map(evicted).collect()
}

fn freezes(effects: &[Effect]) -> Vec<RangeId> {
    let frozen = |effect: &Effect| match effect {
        Effect::Freeze { range, .. } => Some(*range),
        _ => None,
    };
    effects.iter().filter_map(frozen).collect()
}

#[test]
fn alone_it_waits_for_the_settle_time_and_takes_everything() {
    let mut bench = Bench::new(&[], &[]);
    assert_eq!(claims(&bench.begin()), []);
    bench.now += millis(999);
    assert_eq!(claims(&bench.step(Input::Tick)), []);
    bench.now += millis(1);
    assert_eq!(
        claims(&bench.step(Input::Tick)),
        [(0, 1), (1, 1), (2, 1), (3, 1)]
    );
}

#[test]
fn with_a_closed_fence_it_takes_nothing_and_asks_to_open_after_reading() {
    let mut bench = Bench::new(&[], &[]);
    bench.step(Input::HostReady(true));
    bench.own(false);
    bench.now += secs(2);
    let effects = bench.read();
    assert_eq!(claims(&effects), []);
    assert!(
        effects
            .iter()
            .any(|effect| matches!(effect, Effect::Reopen(_)))
    );
}

#[test]
fn missing_leases_are_made_only_when_every_live_member_has_said_that_it_holds_none() {
    let mut bench = Bench::new(&["b"], &[]);
    bench.begin();
    let effects = bench.pass(1, &[]);
    assert_eq!(claims(&effects), []);
    let asked: Vec<_> = effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::AskHolds {
                inquiry,
                to,
                ranges,
                ..
            } => Some((*inquiry, to.clone(), ranges.clone())),
            _ => None,
        })
        .collect();
    let [(inquiry, to, ranges)] = &asked[..] else {
        panic!("{asked:?}")
    };
    assert_eq!((to, ranges.len()), (&Holder::new("b", "b1"), 2));
    // One is held there; of the other it knows an epoch.
    let answer = BTreeMap::from([(ranges[0], (true, 4)), (ranges[1], (false, 7))]);
    let effects = bench.step(Input::HoldsAnswered {
        inquiry: *inquiry,
        from: to.clone(),
        result: Ok(answer),
    });
    assert_eq!(claims(&effects), [(ranges[1], 8)]);
}

#[test]
fn an_unanswered_question_makes_nothing() {
    let mut bench = Bench::new(&["b"], &[]);
    bench.begin();
    bench.pass(1, &[]);
    let failed = Input::HoldsAnswered {
        inquiry: 1,
        from: Holder::new("b", "b1"),
        result: Err(NoAnswer),
    };
    assert_eq!(claims(&bench.step(failed)), []);
}

fn half_and_half() -> Bench {
    let mut bench = Bench::new(
        &["b"],
        &[
            (0, "a", "a1", 1),
            (1, "a", "a1", 1),
            (2, "b", "b1", 1),
            (3, "b", "b1", 1),
        ],
    );
    bench.step(Input::HostReady(true));
    bench.own(true);
    // It holds 0 and 1 by claims of its own that had no answer: as after a start.
    for range in [0, 1] {
        let epoch = 1;
        bench.core = seeded(bench.core.clone(), range, epoch);
    }
    bench.read();
    bench
}

/// As if this replica had claimed the range.
fn seeded(mut core: Core, range: RangeId, epoch: Epoch) -> Core {
    core.seed_claim(range, epoch);
    core
}

#[test]
fn a_silent_replica_is_evicted_after_a_lease_duration_and_only_then_its_ranges_are_taken() {
    let mut bench = half_and_half();
    let effects = bench.pass(4, &["b"]);
    assert_eq!((evictions(&effects), claims(&effects)), (vec![], vec![]));
    let effects = bench.pass(1, &["b"]);
    assert_eq!(
        (evictions(&effects), claims(&effects)),
        (vec!["b".to_owned()], vec![])
    );
    // The compare-and-swap decides.
    bench.version += 1;
    let evicted = ReplicaLease {
        version: bench.version,
        ..bench.replicas["b"].vacated()
    };
    bench.replicas.insert("b".to_owned(), evicted.clone());
    let effects = bench.step(Input::Evicted {
        name: "b".to_owned(),
        result: Written::Done(evicted),
    });
    assert_eq!(
        claims(&effects),
        [],
        "its last handoffs may be on their way: the watch has to pass its end"
    );
    let effects = bench.step(Input::WatchedTo(bench.version));
    assert_eq!(claims(&effects), [(2, 2), (3, 2)]);
}

#[test]
fn a_silent_replica_is_evicted_when_the_wait_ends_and_not_with_the_next_read() {
    let mut bench = half_and_half();
    bench.pass(4, &["b"]);
    bench.now += millis(600);
    bench.own(true);
    bench.read();
    bench.now = millis(104_999);
    assert_eq!(evictions(&bench.step(Input::Tick)), Vec::<String>::new());
    assert_eq!(bench.core.wake_at(bench.now), millis(105_000));
    bench.now = millis(105_000);
    assert_eq!(evictions(&bench.step(Input::Tick)), ["b"]);
}

/// Evicts `b`, which has fallen silent; what its ranges' claims list as dead owners.
fn dead_owners_listed(bench: &mut Bench, files_deaths: bool) -> Vec<(RangeId, Vec<Holder>)> {
    let effects = bench.pass(5, &["b"]);
    let evicted = effects.iter().find_map(|effect| match effect {
        Effect::Evict(lease) => Some(lease.clone()),
        _ => None,
    });
    let mut evicted = evicted.expect("it was silent for a lease duration");
    if !files_deaths {
        evicted.deaths = Deaths::default();
    }
    bench.version += 1;
    evicted.version = bench.version;
    bench.replicas.insert("b".to_owned(), evicted.clone());
    bench.step(Input::Evicted {
        name: "b".to_owned(),
        result: Written::Done(evicted),
    });
    let effects = bench.step(Input::WatchedTo(bench.version));
    let mut listed = Vec::new();
    for effect in effects {
        if let Effect::Claim { lease, .. } = effect {
            listed.push((lease.range, lease.dead.clone()));
            bench.version += 1;
            let lease = RangeLease {
                version: bench.version,
                ..lease
            };
            bench.ranges.insert(lease.range, lease.clone());
            let range = lease.range;
            let result = Written::Done(lease);
            bench.step(Input::Claimed { range, result });
        }
    }
    listed
}

#[test]
fn a_range_lists_its_owners_that_died_and_wants_care_after_two() {
    let (c1, b1) = (Holder::new("c", "c1"), Holder::new("b", "b1"));
    let mut bench = half_and_half();
    for range in [2, 3] {
        bench.version += 1;
        let lease = bench.ranges.get_mut(&range).unwrap();
        lease.version = bench.version;
        // Range 2 had another one before.
        lease.dead = if range == 2 {
            vec![c1.clone()]
        } else {
            Vec::new()
        };
    }
    bench.version += 1;
    let died = ReplicaLease {
        // Within ten minutes, by the bench's clock.
        deaths: Deaths::parse("@90 c1\n-job-controller a/x"),
        ..replica("c", bench.version, None)
    };
    bench.replicas.insert("c".to_owned(), died);
    let work = Work::new("job-controller", "a/x", Care::None);
    bench.version += 1;
    let busy = bench.replicas.get_mut("b").unwrap();
    (busy.version, busy.working) = (bench.version, vec![work.clone()]);
    bench.read();
    assert!(bench.core.quarantine(bench.now).is_empty());

    let listed = dead_owners_listed(&mut bench, true);
    assert_eq!(listed, [(2, vec![c1, b1.clone()]), (3, vec![b1])]);
    let quarantine = bench.core.quarantine(bench.now);
    assert_eq!(quarantine.careful, [2].into());
    let suspected: Vec<&String> = quarantine.keys.keys().collect();
    assert_eq!(suspected, [&work.name], "both had it in flight");
    assert!(bench.core.quarantine(bench.now + secs(600)).is_empty());
}

#[test]
fn one_evicted_by_a_build_that_files_no_deaths_is_not_listed_as_dead() {
    let listed = dead_owners_listed(&mut half_and_half(), false);
    assert_eq!(listed, [(2, vec![]), (3, vec![])]);
}

#[test]
fn who_renews_in_the_last_moment_keeps_everything() {
    let mut bench = half_and_half();
    assert_eq!(evictions(&bench.pass(5, &["b"])), ["b"]);
    bench.version += 1;
    let alive = replica("b", bench.version, Some("b1"));
    let effects = bench.step(Input::Evicted {
        name: "b".to_owned(),
        result: Written::Conflict(Some(alive)),
    });
    assert_eq!((evictions(&effects), claims(&effects)), (vec![], vec![]));
}

#[test]
fn reads_that_fail_or_are_slow_start_every_wait_again() {
    let mut bench = half_and_half();
    bench.pass(4, &["b"]);
    bench.step(Input::ReplicasFailed);
    assert_eq!(evictions(&bench.pass(5, &["b"])), Vec::<String>::new());
    let mut bench = half_and_half();
    bench.pass(4, &["b"]);
    bench.now += millis(1500);
    bench.version += 1;
    let (started, version) = (bench.now - millis(1400), bench.version);
    bench.own(true);
    let leases = bench.replicas.values().cloned().collect();
    assert_eq!(
        evictions(&bench.step(Input::Replicas {
            started,
            version,
            leases
        })),
        Vec::<String>::new()
    );
    assert_eq!(evictions(&bench.pass(4, &["b"])), Vec::<String>::new());
}

#[test]
fn a_released_lease_needs_no_waiting() {
    let mut bench = half_and_half();
    bench.version += 1;
    let released = ReplicaLease {
        version: bench.version,
        ..bench.replicas["b"].vacated()
    };
    bench.step(Input::Replica(released));
    assert_eq!(
        claims(&bench.step(Input::WatchedTo(bench.version))),
        [(2, 2), (3, 2)]
    );
}

#[test]
fn nothing_of_the_dead_is_taken_before_the_server_has_been_asked_to_refuse_them() {
    let mut bench = half_and_half();
    bench.core.set_bars();
    bench.version += 1;
    let released = ReplicaLease {
        version: bench.version,
        ..bench.replicas["b"].vacated()
    };
    let dead = Holder::new("b", "b1");
    let effects = bench.step(Input::Replica(released.clone()));
    assert!(
        effects.contains(&Effect::Bar {
            holder: dead.clone(),
            fenced: false
        }),
        "{effects:?}"
    );
    bench.replicas.insert("b".to_owned(), released);
    assert_eq!(claims(&bench.step(Input::WatchedTo(bench.version))), []);
    let effects = bench.pass(1, &[]);
    assert_eq!(claims(&effects), []);
    assert!(
        !effects.contains(&Effect::Bar {
            holder: dead.clone(),
            fenced: false
        }),
        "asked for once"
    );
    assert_eq!(claims(&bench.step(Input::Barred(dead))), [(2, 2), (3, 2)]);
}

#[test]
fn an_eviction_is_reported_though_the_watch_was_quicker_than_its_answer() {
    let mut bench = half_and_half();
    assert_eq!(evictions(&bench.pass(5, &["b"])), ["b"]);
    bench.version += 1;
    let evicted = ReplicaLease {
        version: bench.version,
        ..bench.replicas["b"].vacated()
    };
    bench.step(Input::Replica(evicted.clone()));
    let effects = bench.step(Input::Evicted {
        name: "b".to_owned(),
        result: Written::Done(evicted),
    });
    let evicted = |effect: &Effect| {
        matches!(effect, Effect::Happened(Happening::Evicted { holder, silent, .. })
            if *holder == Holder::new("b", "b1") && *silent >= secs(5))
    };
    assert!(effects.iter().any(evicted), "{effects:?}");
}

#[test]
fn behind_a_closed_fence_a_claim_waits() {
    let mut bench = half_and_half();
    bench.version += 1;
    let released = ReplicaLease {
        version: bench.version,
        ..bench.replicas["b"].vacated()
    };
    bench.replicas.insert("b".to_owned(), released.clone());
    bench.step(Input::Replica(released));
    let mut claimed = bench.step(Input::WatchedTo(bench.version));
    assert_eq!(claims(&claimed), [(2, 2), (3, 2)]);
    for range in [2, 3] {
        bench.step(Input::Claimed {
            range,
            result: Written::Unknown,
        });
    }
    bench.own(false);
    bench.now += secs(2);
    claimed = bench.step(Input::Tick);
    assert_eq!(claims(&claimed), [], "the fence is closed");
    claimed = bench.own(true);
    assert_eq!(claims(&claimed), [(2, 2), (3, 2)]);
}

/// `b` runs in a pod, as of its Lease; it was seen to renew 100 s after the start.
fn half_in_a_pod(others: &[&str]) -> Bench {
    let mut bench = half_and_half();
    for name in others {
        bench.version += 1;
        let lease = replica(name, bench.version, Some(&format!("{name}1")));
        bench.replicas.insert((*name).to_owned(), lease);
    }
    bench.version += 1;
    let mut lease = bench.replicas["b"].clone();
    lease.version = bench.version;
    lease.status.pod = "system/b".into();
    bench.replicas.insert("b".to_owned(), lease);
    bench.read();
    bench
}

fn at(bench: &mut Bench, at: u64) -> Vec<Effect> {
    bench.now = millis(at);
    let mut effects = bench.own(true);
    effects.extend(bench.step(Input::Tick));
    effects
}

fn pods_asked(effects: &[Effect]) -> Vec<&str> {
    let mut asked = Vec::new();
    for effect in effects {
        if let Effect::AskPod { pod, .. } = effect {
            asked.push(&**pod);
        }
    }
    asked
}

#[test]
fn the_pod_of_a_replica_is_asked_for_while_that_is_late_and_nothing_is_proven() {
    let b = Holder::new("b", "b1");
    let mut bench = half_in_a_pod(&[]);
    assert_eq!(pods_asked(&at(&mut bench, 101_300)), Vec::<&str>::new());
    assert_eq!(pods_asked(&at(&mut bench, 101_334)), ["system/b"]);
    assert_eq!(
        pods_asked(&at(&mut bench, 101_700)),
        Vec::<&str>::new(),
        "one question at a time"
    );
    bench.step(Input::NotProven(b.clone()));
    assert_eq!(pods_asked(&at(&mut bench, 101_949)), Vec::<&str>::new());
    assert_eq!(pods_asked(&at(&mut bench, 101_950)), ["system/b"]);
    bench.step(Input::ProvenDead(b.clone()));
    assert_eq!(pods_asked(&at(&mut bench, 103_000)), Vec::<&str>::new());

    // It renews.
    let mut bench = half_in_a_pod(&[]);
    assert_eq!(pods_asked(&at(&mut bench, 101_400)), ["system/b"]);
    bench.pass(1, &[]);
    bench.step(Input::NotProven(b));
    assert_eq!(pods_asked(&at(&mut bench, 103_600)), Vec::<&str>::new());
    assert_eq!(pods_asked(&at(&mut bench, 103_734)), ["system/b"]);

    // Others ask, as long as there are as many as is needed.
    let mut bench = half_in_a_pod(&["0", "1", "2"]);
    bench.pass(2, &["b"]);
    assert_eq!(pods_asked(&at(&mut bench, 102_001)), Vec::<&str>::new());
    let mut bench = half_in_a_pod(&["0", "1", "2"]);
    let effects = bench.pass(2, &["b", "1"]);
    assert_eq!(pods_asked(&effects), ["system/b"]);

    // Many are late at once.
    let many: Vec<String> = (10..30).map(|number| format!("c{number}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let mut bench = half_in_a_pod(&many);
    for name in &many {
        let lease = bench.replicas.get_mut(*name).unwrap();
        lease.status.pod = format!("system/{name}").into();
    }
    bench.pass(1, &["b"]);
    let effects = bench.pass(2, &[&["b"][..], many.as_slice()].concat());
    let asked = pods_asked(&effects);
    assert_eq!(
        (asked.len(), asked[..2].to_vec()),
        (8, vec!["system/b", "system/c10"])
    );
    let effects = bench.step(Input::ProvenDead(Holder::new("c10", "c101")));
    assert_eq!(pods_asked(&effects), ["system/c17"], "the next one");

    // What one's own reads do not show is nobody's silence.
    let mut bench = half_in_a_pod(&[]);
    bench.step(Input::ReplicasFailed);
    assert_eq!(pods_asked(&at(&mut bench, 102_000)), Vec::<&str>::new());
}

#[test]
fn a_proof_of_death_shortens_the_wait_to_what_may_still_be_executed() {
    let proof = || Input::ProvenDead(Holder::new("b", "b1"));
    let none = Vec::<String>::new();
    let mut bench = half_in_a_pod(&[]);
    assert_eq!(pods_asked(&at(&mut bench, 101_400)), ["system/b"]);
    assert_eq!(evictions(&bench.step(proof())), none);
    assert_eq!(evictions(&at(&mut bench, 102_000)), none);
    // Said again, it is no later.
    bench.step(proof());
    assert_eq!(evictions(&at(&mut bench, 103_399)), none);
    assert_eq!(bench.core.wake_at(bench.now), millis(103_400));
    assert_eq!(evictions(&at(&mut bench, 103_400)), ["b"]);

    // A life of before, or somebody else's.
    let mut bench = half_in_a_pod(&[]);
    at(&mut bench, 101_400);
    bench.step(Input::ProvenDead(Holder::new("b", "b0")));
    bench.step(Input::ProvenDead(Holder::new("c", "b1")));
    assert_eq!(evictions(&at(&mut bench, 104_999)), none);

    // It has renewed since it was asked for.
    let mut bench = half_in_a_pod(&[]);
    bench.pass(1, &["b"]);
    assert_eq!(pods_asked(&at(&mut bench, 101_400)), ["system/b"]);
    bench.pass(1, &[]);
    bench.step(proof());
    assert_eq!(evictions(&at(&mut bench, 104_400)), none);

    // A renewal was on its way when the process ended: the pod is asked for again.
    let mut bench = half_in_a_pod(&[]);
    at(&mut bench, 101_400);
    bench.step(proof());
    bench.now = millis(101_000);
    bench.pass(1, &[]);
    let effects = at(&mut bench, 103_400);
    assert_eq!(evictions(&effects), none);
    assert_eq!(pods_asked(&effects), ["system/b"]);
    bench.step(proof());
    assert_eq!(evictions(&at(&mut bench, 105_399)), none);
    assert_eq!(evictions(&at(&mut bench, 105_400)), ["b"]);
}

#[test]
fn who_renews_after_it_was_said_to_be_dead_lives() {
    let b = Holder::new("b", "b1");
    let run = || {
        let mut bench = half_in_a_pod(&[]);
        let mut effects = Vec::new();
        for _ in 0..5 {
            effects.extend(bench.pass(2, &["b"]));
            effects.extend(bench.step(Input::ProvenDead(b.clone())));
            effects.extend(bench.pass(2, &[]));
        }
        effects
    };
    let effects = run();
    assert_eq!(evictions(&effects), Vec::<String>::new());
    let said = |effect: &&Effect| matches!(effect, Effect::Happened(Happening::FalseProof { holder }) if *holder == b);
    assert_eq!(effects.iter().filter(said).count(), 1);
    mutation::set(Some(Mutation::RenewalsDisproveNothing));
    let effects = run();
    mutation::set(None);
    assert_ne!(evictions(&effects), Vec::<String>::new());
}

/// When a process that comes upon a silent Lease of a process before takes it over, in milliseconds from its
/// start; it sees the Lease first 300 ms after that, and later changes of it.
fn takes_over(holder: &str, changes: &[u64], gone: Option<Gone>) -> Option<u64> {
    let config = RenewalConfig {
        name: "a".to_owned(),
        incarnation: "a9".to_owned(),
        lease_duration: secs(5),
        renew_deadline: secs(3),
        retry_period: secs(1),
        epoch_second: None,
        deaths_from: Some(1000),
        gone,
    };
    let mut renewal = Renewal::new(config, status());
    let mut effects = renewal.step(millis(300), RenewalInput::Join);
    for now in 300..12_000 {
        effects.extend(renewal.step(millis(now), RenewalInput::Tick));
        while let Some(effect) = effects.pop() {
            match effect {
                RenewalEffect::Read => {
                    let changed = changes.iter().filter(|change| **change <= now).count();
                    let version = 10 + u64::try_from(changed).unwrap();
                    let found = replica("a", version, Some(holder));
                    effects.extend(renewal.step(millis(now), RenewalInput::Read(Ok(Some(found)))));
                }
                RenewalEffect::Write { lease, .. } => {
                    assert_eq!(lease.ended, [holder]);
                    assert!(lease.deaths.names(holder), "its death is filed");
                    return Some(now);
                }
            }
        }
        if matches!(renewal.own().phase, OwnPhase::NameTaken(_)) {
            return None;
        }
    }
    panic!("it waits for ever");
}

#[test]
fn a_restarted_process_takes_over_at_once_from_one_that_has_ended_for_certain() {
    let gone = |processes: &[&str]| {
        Some(Gone {
            processes: processes.iter().map(|one| (*one).to_owned()).collect(),
            by: Time::ZERO,
            still: false,
            late: secs(2),
        })
    };
    let still = |processes: &[&str]| {
        gone(processes).map(|gone| Gone {
            still: true,
            ..gone
        })
    };
    // Who holds the Lease, when it changes, whose end is known, when it is taken.
    type Case = (&'static str, &'static [u64], Option<Gone>, Option<u64>);
    let cases: [Case; 10] = [
        // Nothing of it was in flight.
        ("a1-2", &[], still(&["a0", "a1"]), Some(300)),
        // One has ended since that never had the Lease: of this one nothing is known.
        ("a1", &[], still(&["a1", "a2"]), Some(2_000)),
        ("a1", &[], None, Some(5_300)),
        ("a1", &[], gone(&["a0", "a1"]), Some(2_000)),
        ("a1-2", &[], gone(&["a1"]), Some(2_000)),
        ("a1", &[], gone(&["a0", "a11"]), Some(5_300)),
        // A renewal was on its way when the process ended: seen a second after the first read.
        ("a1", &[500], gone(&["a1"]), Some(4_634)),
        // It renews: the lock was none.
        (
            "a1",
            &[500, 1_500, 2_500, 3_500, 4_500, 5_500],
            gone(&["a1"]),
            None,
        ),
        ("b7", &[], gone(&["b7"]), Some(2_000)),
        ("a1", &[500, 1_500, 2_500, 3_500, 4_500, 5_500], None, None),
    ];
    for (holder, changes, gone, expected) in cases {
        let case = format!("{holder} {changes:?} {gone:?}");
        assert_eq!(takes_over(holder, changes, gone), expected, "{case}");
    }
    mutation::set(Some(Mutation::PredecessorIsTakenAtOnce));
    let taken = takes_over("a1", &[], gone(&["a1"]));
    mutation::set(None);
    assert_eq!(taken, Some(300), "this is how it would be");
}

#[test]
fn a_replica_lease_that_was_deleted_proves_nothing() {
    let mut bench = half_and_half();
    bench.version += 1;
    bench.replicas.remove("b");
    let gone = Input::ReplicaGone {
        name: "b".to_owned(),
        version: bench.version,
    };
    assert_eq!(claims(&bench.step(gone)), []);
    assert_eq!(claims(&bench.pass(4, &[])), []);
    assert_eq!(claims(&bench.pass(1, &[])), [(2, 2), (3, 2)]);
}

#[test]
fn a_lease_recreated_by_another_process_proves_nothing_either() {
    let mut bench = half_and_half();
    bench.version += 1;
    let created = replica("b", bench.version, Some("b2"));
    bench.replicas.insert("b".to_owned(), created.clone());
    bench.step(Input::Replica(created));
    assert_eq!(claims(&bench.step(Input::WatchedTo(bench.version))), []);
    assert_eq!(claims(&bench.pass(4, &[])), []);
}

#[test]
fn a_holder_recreates_its_missing_lease_one_epoch_on() {
    let mut bench = half_and_half();
    bench.version += 1;
    bench.ranges.remove(&0);
    let effects = bench.step(Input::RangeGone {
        range: 0,
        version: bench.version,
    });
    assert_eq!(claims(&effects), [(0, 2)]);
    let lease = bench.landed(0, "a", "a1", 2);
    let effects = bench.step(Input::Claimed {
        range: 0,
        result: Written::Done(lease),
    });
    assert!(effects.contains(&Effect::Lost(0)));
    assert!(effects.contains(&Effect::Gained {
        range: 0,
        epoch: 2,
        kept: false
    }));
}

#[test]
fn an_epoch_lowered_by_hand_is_raised_above_all_seen() {
    let mut bench = half_and_half();
    let lease = bench.landed(0, "a", "a1", 0);
    assert_eq!(claims(&bench.step(Input::Range(lease))), [(0, 2)]);
}

#[test]
fn a_range_named_ours_by_nobody_we_know_is_asked_for_first() {
    let mut bench = half_and_half();
    let lease = bench.landed(2, "a", "a1", 5);
    let effects = bench.step(Input::Range(lease));
    assert!(
        !effects
            .iter()
            .any(|effect| matches!(effect, Effect::Gained { .. }))
    );
    assert!(
        effects
            .iter()
            .any(|effect| matches!(effect, Effect::AskHolds { ranges, .. } if ranges == &[2]))
    );
    let answer = BTreeMap::from([(2, (false, 5))]);
    let effects = bench.step(Input::HoldsAnswered {
        inquiry: 1,
        from: Holder::new("b", "b1"),
        result: Ok(answer),
    });
    assert_eq!(claims(&effects), [(2, 6)]);
}

#[test]
fn nothing_is_owned_without_the_managers_lease_and_nothing_continues_in_another_term() {
    let mut bench = Bench::new(&[], &[0, 1, 2, 3].map(|range| (range, "a", "a1", 1)));
    bench.step(Input::HostReady(true));
    bench.own(true);
    for range in 0..4 {
        bench.core = seeded(bench.core.clone(), range, 1);
    }
    bench.read();
    assert_eq!(bench.core.held().count(), 4);
    let hold = |term: Option<u64>, other: Option<&str>| Input::Hold {
        term,
        fresh: term.is_some(),
        other: other.map(str::to_owned),
    };
    // Not seen renewed for a while, and nobody else's: all stays.
    let stale = Input::Hold {
        term: Some(0),
        fresh: false,
        other: None,
    };
    assert_eq!(bench.step(stale), []);
    let effects = bench.step(hold(None, Some("kcm")));
    let mut lost: Vec<Effect> = (0..4).map(Effect::Lost).collect();
    lost.push(Effect::Happened(Happening::Standby {
        holder: Some("kcm".to_owned()),
        ranges: vec![0, 1, 2, 3],
    }));
    assert_eq!(effects, lost);
    let effects = bench.pass(10, &[]);
    assert_eq!(claims(&effects), []);
    assert_eq!(bench.core.held().count(), 0);
    let effects = bench.step(hold(Some(1), None));
    assert!(effects.contains(&Effect::Happened(Happening::Holds)));
    let mut claimed = claims(&effects);
    claimed.extend(claims(&bench.step(Input::Tick)));
    assert_eq!(
        claimed,
        [(0, 2), (1, 2), (2, 2), (3, 2)],
        "taken as after a crash"
    );
    // Another has held it in between, unseen.
    for (range, epoch) in claimed {
        let lease = bench.landed(range, "a", "a1", epoch);
        bench.step(Input::Claimed {
            range,
            result: Written::Done(lease),
        });
    }
    assert_eq!(bench.core.held().count(), 4);
    let effects = bench.step(hold(Some(2), None));
    assert!(effects.contains(&Effect::Lost(0)) && effects.contains(&Effect::Lost(3)));
    // And while standing by, nothing is taken from a peer.
    bench.step(hold(None, Some("kcm")));
    let effects = bench.step(Input::Offered(offer(0, 2, 1)));
    let refusal = refused(&effects);
    assert!(refusal.is_some(), "{refusal:?}");
}

/// "a" owns all four and "b" has come: two must go.
fn joined() -> (Bench, Vec<Effect>) {
    let mut bench = Bench::new(&["b"], &[0, 1, 2, 3].map(|range| (range, "a", "a1", 1)));
    bench.step(Input::HostReady(true));
    bench.own(true);
    for range in 0..4 {
        bench.core = seeded(bench.core.clone(), range, 1);
    }
    let effects = bench.read();
    (bench, effects)
}

#[test]
fn a_handoff_freezes_sends_swaps_and_lets_go_in_this_order() {
    let (mut bench, effects) = joined();
    let moving = freezes(&effects);
    assert_eq!(moving.len(), 2, "two at once, two in all: {effects:?}");
    let range = moving[0];
    let effects = bench.step(Input::Frozen {
        range,
        epoch: 1,
        busy: false,
    });
    let [Effect::CloseRange(closed), Effect::Send { attempt, to, .. }] = &effects[..] else {
        panic!("{effects:?}")
    };
    assert_eq!((*closed, to), (range, &Holder::new("b", "b1")));
    let effects = bench.step(Input::Sent {
        range,
        attempt: *attempt,
        result: Ok(()),
    });
    let [Effect::Swap { lease, .. }] = &effects[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(
        (lease.epoch, &lease.holder),
        (2, &Some(Holder::new("b", "b1")))
    );
    let lease = bench.landed(range, "b", "b1", 2);
    let effects = bench.step(Input::Swapped {
        range,
        result: Written::Done(lease),
    });
    assert!(effects.contains(&Effect::Lost(range)));
    assert!(
        effects
            .iter()
            .any(|effect| matches!(effect, Effect::AnnounceSwap { epoch: 2, .. }))
    );
}

#[test]
fn whatever_stops_a_handoff_the_range_is_served_on() {
    for result in [
        Err(NotSent::Refused("no".to_owned())),
        Err(NotSent::Unreachable("gone".to_owned())),
    ] {
        let (mut bench, effects) = joined();
        let range = freezes(&effects)[0];
        bench.step(Input::Frozen {
            range,
            epoch: 1,
            busy: false,
        });
        let effects = bench.step(Input::Sent {
            range,
            attempt: 1,
            result,
        });
        assert!(effects.contains(&Effect::Resume { range, epoch: 1 }));
        assert!(freezes(&effects).is_empty(), "not at once again");
    }
    let (mut bench, effects) = joined();
    let range = freezes(&effects)[0];
    let effects = bench.step(Input::Frozen {
        range,
        epoch: 1,
        busy: true,
    });
    assert!(
        !effects
            .iter()
            .any(|effect| matches!(effect, Effect::CloseRange(_) | Effect::Resume { .. }))
    );
}

#[test]
fn a_swap_without_an_answer_stays_frozen_and_is_tried_again() {
    let (mut bench, effects) = joined();
    let range = freezes(&effects)[0];
    bench.step(Input::Frozen {
        range,
        epoch: 1,
        busy: false,
    });
    bench.step(Input::Sent {
        range,
        attempt: 1,
        result: Ok(()),
    });
    assert_eq!(
        bench.step(Input::Swapped {
            range,
            result: Written::Unknown
        }),
        []
    );
    bench.now += millis(200);
    let effects = bench.step(Input::Tick);
    assert!(
        matches!(&effects[..], [Effect::Swap { lease, .. }] if lease.range == range),
        "{effects:?}"
    );
    // It had landed.
    let lease = bench.landed(range, "b", "b1", 2);
    let effects = bench.step(Input::Swapped {
        range,
        result: Written::Conflict(Some(lease)),
    });
    assert!(effects.contains(&Effect::Lost(range)));
}

#[test]
fn an_old_acknowledgement_swaps_nothing() {
    let (mut bench, effects) = joined();
    let range = freezes(&effects)[0];
    bench.step(Input::Frozen {
        range,
        epoch: 1,
        busy: false,
    });
    let result = Err(NotSent::Refused("no".to_owned()));
    bench.step(Input::Sent {
        range,
        attempt: 1,
        result,
    });
    bench.pass(2, &[]);
    bench.step(Input::Frozen {
        range,
        epoch: 1,
        busy: false,
    });
    assert_eq!(
        bench.step(Input::Sent {
            range,
            attempt: 1,
            result: Ok(())
        }),
        []
    );
}

/// How many of its two ranges a stale replica begins to hand over within some seconds, where the other one
/// is seen as stale a second later, or never.
fn moved_while_stale(seconds: u64, other: bool) -> usize {
    let mut bench = half_and_half();
    let mut effects = bench.step(Input::HostCurrent(false));
    if let Some(lease) = bench.replicas.get_mut("b") {
        lease.status.stale = other;
    }
    effects.extend(bench.pass(seconds, &[]));
    freezes(&effects).len()
}

#[test]
fn a_stale_replica_hands_over_when_others_have_been_current_for_a_while() {
    assert_eq!(moved_while_stale(1, false), 0);
    assert_eq!(moved_while_stale(2, false), 2);
    assert_eq!(
        moved_while_stale(30, true),
        0,
        "the other noticed it a second later"
    );
    // After a standstill of all, whichever is current first is not given everything.
    let mut bench = half_and_half();
    bench.replicas.get_mut("b").unwrap().status.stale = true;
    bench.pass(1, &[]);
    bench.step(Input::HostCurrent(false));
    bench.pass(5, &[]);
    bench.replicas.get_mut("b").unwrap().status.stale = false;
    assert!(freezes(&bench.pass(10, &[])).is_empty());
    assert_eq!(freezes(&bench.pass(1, &[])).len(), 2);
    let mut bench = half_and_half();
    bench.step(Input::HostCurrent(false));
    bench.step(Input::HostCurrent(true));
    assert!(freezes(&bench.pass(10, &[])).is_empty(), "current again");
}

#[test]
fn a_stale_replica_takes_nothing_while_another_is_current() {
    let offered = |other_is_stale: bool| {
        let mut bench = half_and_half();
        if let Some(other) = bench.replicas.get_mut("b") {
            other.status.stale = other_is_stale;
        }
        bench.pass(1, &[]);
        bench.step(Input::HostCurrent(false));
        refused(&bench.step(Input::Offered(offer(2, 1, 1))))
    };
    assert_eq!(offered(false), Some(Refused::NotTaking));
    assert_eq!(offered(true), None);
    mutation::set(Some(Mutation::StaleTakes));
    let taken = offered(false);
    mutation::set(None);
    assert_eq!(taken, None, "the mutant is not noticed");
}

fn offer(range: RangeId, epoch: Epoch, attempt: u64) -> Offer {
    Offer {
        id: 9,
        from: Holder::new("b", "b1"),
        to_incarnation: "a1".to_owned(),
        range,
        epoch,
        attempt,
        build: "0.1.0".to_owned(),
    }
}

fn refused(effects: &[Effect]) -> Option<Refused> {
    effects.iter().find_map(|effect| match effect {
        Effect::Answer { refused, .. } => refused.clone(),
        _ => None,
    })
}

#[test]
fn an_offer_is_taken_only_from_the_owner_that_the_lease_names() {
    let cases: [(Offer, bool); 7] = [
        (offer(2, 1, 1), true),
        (offer(2, 2, 1), false),
        (offer(0, 1, 1), false),
        (
            Offer {
                from: Holder::new("b", "b0"),
                ..offer(2, 1, 1)
            },
            false,
        ),
        (
            Offer {
                from: Holder::new("c", "c1"),
                ..offer(2, 1, 1)
            },
            false,
        ),
        (
            Offer {
                to_incarnation: "a0".to_owned(),
                ..offer(2, 1, 1)
            },
            false,
        ),
        (
            Offer {
                build: "0.3.0".to_owned(),
                ..offer(2, 1, 1)
            },
            false,
        ),
    ];
    for (offer, taken) in cases {
        let mut bench = half_and_half();
        let effects = bench.step(Input::Offered(offer.clone()));
        assert_eq!(refused(&effects).is_none(), taken, "{offer:?}: {effects:?}");
    }
}

#[test]
fn what_was_offered_becomes_ours_by_the_lease_alone() {
    let mut bench = half_and_half();
    bench.step(Input::Offered(offer(2, 1, 1)));
    let announced = Input::SwapAnnounced {
        from: Holder::new("b", "b1"),
        range: 2,
        epoch: 2,
    };
    assert_eq!(
        bench.step(announced),
        [Effect::ReadRange(2)],
        "a word is no Lease"
    );
    let lease = bench.landed(2, "a", "a1", 2);
    let effects = bench.step(Input::Range(lease));
    assert!(effects.contains(&Effect::Gained {
        range: 2,
        epoch: 2,
        kept: true
    }));
}

#[test]
fn an_older_attempt_that_comes_late_is_refused() {
    let mut bench = half_and_half();
    bench.step(Input::Offered(offer(2, 1, 2)));
    assert_eq!(
        refused(&bench.step(Input::Offered(offer(2, 1, 1)))),
        Some(Refused::Superseded)
    );
    assert_eq!(refused(&bench.step(Input::Offered(offer(2, 1, 3)))), None);
}

#[test]
fn what_a_dead_owner_had_offered_is_void() {
    let mut bench = half_and_half();
    bench.step(Input::Offered(offer(2, 1, 1)));
    bench.version += 1;
    let ended = ReplicaLease {
        version: bench.version,
        ..bench.replicas["b"].vacated()
    };
    bench.step(Input::Replica(ended));
    let effects = bench.step(Input::WatchedTo(bench.version));
    assert!(effects.contains(&Effect::Forget(2)));
    assert_eq!(claims(&effects), [(2, 2), (3, 2)]);
}

#[test]
fn a_range_that_an_operator_wants_elsewhere_is_handed_over_as_any_other() {
    let wish = |range, to: &str| Input::Move {
        range,
        to: to.to_owned(),
    };
    for (input, frozen) in [
        (wish(1, "b"), vec![1]),
        // To itself, to a stranger, and what is not held here: nothing.
        (wish(1, "a"), vec![]),
        (wish(1, "z"), vec![]),
        (wish(2, "b"), vec![]),
    ] {
        let mut bench = half_and_half();
        let effects = bench.step(input.clone());
        assert_eq!(freezes(&effects), frozen, "{input:?}");
        let kindly = |effect: &Effect| match effect {
            Effect::Freeze { force, budget, .. } => !force && *budget == secs(2),
            _ => true,
        };
        assert!(effects.iter().all(kindly), "{effects:?}");
        // It is tried once: writes under way put it off for good.
        let range = 1;
        if !frozen.is_empty() {
            bench.step(Input::Frozen {
                range,
                epoch: 1,
                busy: true,
            });
            bench.now += secs(10);
            bench.read();
            assert_eq!(freezes(&bench.step(Input::Tick)), Vec::<RangeId>::new());
        }
    }
}

#[test]
fn a_drain_hands_everything_over_with_force_and_then_releases() {
    let mut bench = half_and_half();
    let effects = bench.step(Input::Drain(bench.now + secs(10)));
    assert_eq!(freezes(&effects), [0, 1]);
    // A write that is slow holds up the others less than where the range could stay.
    assert!(effects.iter().all(|effect| match effect {
        Effect::Freeze { force, budget, .. } => *force && *budget == Duration::from_millis(500),
        effect => !matches!(effect, Effect::Release),
    }));
    let mut last = Vec::new();
    for (attempt, range) in [(1, 0), (2, 1)] {
        bench.step(Input::Frozen {
            range,
            epoch: 1,
            busy: false,
        });
        bench.step(Input::Sent {
            range,
            attempt,
            result: Ok(()),
        });
        let lease = bench.landed(range, "b", "b1", 2);
        last = bench.step(Input::Swapped {
            range,
            result: Written::Done(lease),
        });
    }
    assert!(last.contains(&Effect::Release));
}

#[test]
fn a_drain_drops_what_is_left_when_its_time_is_over_or_nobody_is_there() {
    let mut bench = half_and_half();
    bench.step(Input::Drain(bench.now + secs(10)));
    bench.now += secs(10);
    let effects = bench.step(Input::Tick);
    let at = |wanted: &Effect| effects.iter().position(|effect| effect == wanted);
    assert!(at(&Effect::Lost(0)).is_some() && at(&Effect::Lost(0)) < at(&Effect::Release));
    let mut alone = Bench::new(&[], &[(0, "a", "a1", 1)]);
    alone.step(Input::HostReady(true));
    alone.own(true);
    alone.core = seeded(alone.core.clone(), 0, 1);
    alone.read();
    let until = alone.now + secs(10);
    assert!(alone.step(Input::Drain(until)).contains(&Effect::Release));
}

#[test]
fn an_evicted_replica_drops_everything_at_once() {
    let mut bench = half_and_half();
    let effects = bench.step(Input::Own(OwnLease {
        incarnation: "a1-1".to_owned(),
        phase: OwnPhase::Joining,
        open_until: None,
        regained: None,
        landed: None,
        evictions: 1,
        crashes: Crashes::default(),
    }));
    assert!(effects.contains(&Effect::Lost(0)) && effects.contains(&Effect::Lost(1)));
    assert_eq!(bench.core.held().count(), 0);
}

#[test]
fn members_that_are_not_ready_draining_or_of_a_distant_build_get_nothing() {
    let spoil: [fn(&mut Status); 4] = [
        |status| status.ready = false,
        |status| status.draining = true,
        |status| status.build = "0.3.0".to_owned(),
        |status| status.build = "1.1.0".to_owned(),
    ];
    for spoil in spoil {
        let mut bench = Bench::new(&["b"], &[0, 1, 2, 3].map(|range| (range, "a", "a1", 1)));
        if let Some(lease) = bench.replicas.get_mut("b") {
            spoil(&mut lease.status);
        }
        bench.step(Input::HostReady(true));
        bench.own(true);
        for range in 0..4 {
            bench.core = seeded(bench.core.clone(), range, 1);
        }
        assert!(freezes(&bench.read()).is_empty());
    }
}

#[test]
fn nobody_joins_a_live_fleet_with_another_number_of_ranges() {
    let mut bench = Bench::new(&["b"], &[]);
    bench.replicas.remove("a");
    if let Some(lease) = bench.replicas.get_mut("b") {
        lease.status.ranges = 64;
    }
    assert!(
        !bench.read().contains(&Effect::Join),
        "first it checks whether that one lives"
    );
    bench.now += secs(1);
    bench.version += 1;
    bench.replicas.insert(
        "b".to_owned(),
        ReplicaLease {
            status: Status {
                ranges: 64,
                ..status()
            },
            ..replica("b", bench.version, Some("b1"))
        },
    );
    let effects = bench.read();
    let fatal = Fatal::OtherRanges {
        name: "b".to_owned(),
        theirs: 64,
        ours: 4,
    };
    assert!(effects.contains(&Effect::Fatal(fatal)), "{effects:?}");
}

#[test]
fn a_dead_fleet_with_another_number_of_ranges_is_waited_out() {
    let mut bench = Bench::new(&["b"], &[]);
    bench.replicas.remove("a");
    if let Some(lease) = bench.replicas.get_mut("b") {
        lease.status.ranges = 64;
    }
    let mut joined_at = None;
    for second in 0..8 {
        if bench.read().contains(&Effect::Join) {
            joined_at = Some(second);
        }
        bench.now += secs(1);
    }
    assert_eq!(joined_at, Some(5));
}

// ---- damage by hand ----

const EPOCH_MAX: Epoch = i32::MAX as Epoch;

fn deletions(effects: &[Effect]) -> Vec<(RangeId, Version)> {
    let deleted = |effect: &Effect| match effect {
        Effect::DeleteRange { range, version } => Some((*range, *version)),
        _ => None,
    };
    effects.iter().filter_map(deleted).collect()
}

/// The API server has deleted the range's Lease.
fn deleted(bench: &mut Bench, range: RangeId, version: Version) -> Vec<Effect> {
    bench.ranges.remove(&range);
    bench.step(Input::RangeDeleted {
        range,
        version,
        result: Ok(true),
    })
}

#[test]
fn a_lease_with_an_epoch_at_the_end_of_its_type_is_deleted_and_recreated_by_its_holder() {
    for epoch in [EPOCH_END, EPOCH_MAX - 1, EPOCH_MAX, Epoch::MAX] {
        let mut bench = half_and_half();
        let lease = bench.landed(0, "a", "a1", epoch);
        let version = lease.version;
        let effects = bench.step(Input::Range(lease.clone()));
        assert_eq!(deletions(&effects), [(0, version)], "{epoch}");
        assert_eq!(claims(&effects), [], "{epoch}: not while it is there");
        assert!(
            !effects.contains(&Effect::Lost(0)),
            "it is held all the time"
        );
        // Reported twice, it is not deleted twice.
        assert_eq!(deletions(&bench.step(Input::Range(lease))), []);
        let effects = deleted(&mut bench, 0, version);
        assert_eq!(
            claims(&effects),
            [(0, 2)],
            "{epoch}: one epoch on, as if nothing had been"
        );
    }
    let mut bench = half_and_half();
    let lease = bench.landed(0, "a", "a1", EPOCH_END - 1);
    let effects = bench.step(Input::Range(lease));
    assert_eq!(deletions(&effects), [], "the last that counts");
}

#[test]
fn a_damaged_lease_of_nobody_alive_is_recreated_by_the_inquiry() {
    let mut bench = Bench::new(&["b"], &[(0, "z", "z1", EPOCH_MAX)]);
    bench.begin();
    let effects = bench.pass(1, &[]);
    let doomed = deletions(&effects);
    if doomed.is_empty() {
        // It is placed with "b", who sees to it.
        return assert_eq!(claims(&effects), []);
    }
    assert_eq!(doomed, [(0, 50)]);
    let effects = deleted(&mut bench, 0, 50);
    assert_eq!(claims(&effects), [], "first everybody is asked");
}

#[test]
fn an_unanswered_deletion_is_repeated_and_one_that_was_overtaken_is_read() {
    let mut bench = half_and_half();
    let lease = bench.landed(0, "a", "a1", EPOCH_MAX);
    let version = lease.version;
    bench.step(Input::Range(lease));
    let no_answer = Input::RangeDeleted {
        range: 0,
        version,
        result: Err(NoAnswer),
    };
    assert_eq!(deletions(&bench.step(no_answer)), [], "not at once");
    bench.now += secs(1);
    assert_eq!(deletions(&bench.step(Input::Tick)), [(0, version)]);
    // Somebody has repaired it by hand.
    let lease = bench.landed(0, "a", "a1", 1);
    bench.step(Input::RangeDeleted {
        range: 0,
        version,
        result: Ok(false),
    });
    let effects = bench.step(Input::Range(lease));
    assert_eq!((deletions(&effects), claims(&effects)), (vec![], vec![]));
}

#[test]
fn an_impossible_epoch_from_a_peer_counts_for_nothing() {
    let mut bench = half_and_half();
    let lease = bench.landed(2, "a", "a1", 5);
    bench.step(Input::Range(lease));
    let effects = bench.step(Input::HoldsAnswered {
        inquiry: 1,
        from: Holder::new("b", "b1"),
        result: Ok(BTreeMap::from([(2, (false, Epoch::MAX))])),
    });
    assert_eq!(claims(&effects), [(2, 6)]);
}

#[test]
fn a_claim_that_was_lost_is_not_repeated_at_once() {
    let mut bench = half_and_half();
    bench.version += 1;
    bench.ranges.remove(&0);
    let version = bench.version;
    let effects = bench.step(Input::RangeGone { range: 0, version });
    assert_eq!(claims(&effects), [(0, 2)]);
    // The epoch is another than was written: the write was not ours.
    let lease = bench.landed(0, "a", "a1", 1);
    let result = Written::Done(lease);
    bench.step(Input::Claimed { range: 0, result });
    bench.version += 1;
    let version = bench.version;
    let effects = bench.step(Input::RangeGone { range: 0, version });
    assert_eq!(
        claims(&effects),
        [],
        "a retry period lies between two claims"
    );
    bench.now += secs(1);
    assert_eq!(claims(&bench.own(true)), [(0, 2)]);
}

#[test]
fn a_lease_whose_labels_were_taken_away_is_claimed_by_its_name() {
    claimed_by_its_name(|bench| {
        let version = bench.version;
        bench.step(Input::RangeGone { range: 0, version })
    });
}

/// The watch stood still meanwhile, and a list passes over the Lease.
#[test]
fn a_lease_that_a_list_passes_over_is_claimed_by_its_name() {
    claimed_by_its_name(Bench::read);
}

fn claimed_by_its_name(found_missing: fn(&mut Bench) -> Vec<Effect>) {
    let mut bench = half_and_half();
    bench.version += 1;
    let hidden = RangeLease {
        version: bench.version,
        ..bench.ranges[&0].clone()
    };
    bench.ranges.remove(&0);
    let version = bench.version;
    let effects = found_missing(&mut bench);
    assert_eq!(claims(&effects), [(0, 2)], "to be made");
    let result = Written::Conflict(Some(hidden));
    assert_eq!(claims(&bench.step(Input::Claimed { range: 0, result })), []);
    bench.now += secs(1);
    let effects = bench.own(true);
    let on_its_version = |effect: &Effect| matches!(effect, Effect::Claim { version: Some(at), lease } if *at == version && lease.epoch == 2);
    assert!(effects.iter().any(on_its_version), "{effects:?}");
    let lease = bench.landed(0, "a", "a1", 2);
    let result = Written::Done(lease);
    let effects = bench.step(Input::Claimed { range: 0, result });
    let kept = false;
    assert!(
        effects.contains(&Effect::Gained {
            range: 0,
            epoch: 2,
            kept
        }),
        "{effects:?}"
    );
}

/// The first range on its way to "b", with a swap that has been sent.
fn swapping() -> (Bench, RangeId) {
    let (mut bench, effects) = joined();
    let range = freezes(&effects)[0];
    let (epoch, busy) = (1, false);
    bench.step(Input::Frozen { range, epoch, busy });
    bench.step(Input::Sent {
        range,
        attempt: 1,
        result: Ok(()),
    });
    (bench, range)
}

#[test]
fn a_range_is_not_resumed_where_its_swap_may_have_landed_before_its_lease_was_deleted() {
    // The only swap was refused since the Lease was gone: it has not landed.
    let (mut bench, range) = swapping();
    let gone = Input::Swapped {
        range,
        result: Written::Conflict(None),
    };
    let effects = bench.step(gone.clone());
    assert!(
        effects.contains(&Effect::Resume { range, epoch: 1 }),
        "{effects:?}"
    );
    // One before had no answer.
    let (mut bench, range) = swapping();
    let result = Written::Unknown;
    bench.step(Input::Swapped { range, result });
    let effects = bench.step(gone);
    assert!(effects.contains(&Effect::Lost(range)), "{effects:?}");
    assert_eq!(claims(&effects), []);
    // The watch was quicker than any answer.
    let (mut bench, range) = swapping();
    bench.version += 1;
    let version = bench.version;
    bench.ranges.remove(&range);
    let effects = bench.step(Input::RangeGone { range, version });
    assert!(effects.contains(&Effect::Lost(range)), "{effects:?}");
    assert_eq!(claims(&effects), []);
}

// ---- members that can't be reached ----

fn questions(effects: &[Effect]) -> usize {
    let asked = |effect: &&Effect| matches!(effect, Effect::AskHolds { inquiry: 0, ranges, .. } if ranges.is_empty());
    effects.iter().filter(asked).count()
}

/// "a" owns all four, and "b" has come, whom nobody has reached yet.
fn unreached() -> (Bench, Vec<Effect>) {
    let mut bench = Bench::new(&["b"], &[0, 1, 2, 3].map(|range| (range, "a", "a1", 1)));
    bench.reachable = false;
    bench.step(Input::HostReady(true));
    bench.own(true);
    for range in 0..4 {
        bench.core = seeded(bench.core.clone(), range, 1);
    }
    let effects = bench.read();
    (bench, effects)
}

#[test]
fn a_range_is_frozen_only_for_a_member_that_has_answered() {
    let (mut bench, effects) = unreached();
    assert_eq!((questions(&effects), freezes(&effects)), (1, vec![]));
    let effects = bench.contacted("b", true);
    assert_eq!((questions(&effects), freezes(&effects).len()), (0, 2));
    // An answer counts for five retry periods.
    for (seconds, asks, frozen) in [(5, 0, 2), (6, 1, 0)] {
        let (mut bench, _) = unreached();
        // All writes are under way, so that it is tried again later.
        for range in freezes(&bench.contacted("b", true)) {
            let (epoch, busy) = (1, true);
            bench.step(Input::Frozen { range, epoch, busy });
        }
        bench.now += secs(seconds);
        let effects = bench.own(true);
        let seen = (questions(&effects), freezes(&effects).len());
        assert_eq!(seen, (asks, frozen), "after {seconds} s");
    }
}

/// Seconds from one question to the next while "b" never answers, or `react` says otherwise.
fn spacing(count: usize, draining: bool) -> Vec<u64> {
    let (mut bench, effects) = unreached();
    if draining {
        bench.step(Input::Drain(bench.now + secs(3600)));
    }
    let mut asked = questions(&effects) == 1;
    let (mut spacing, mut since) = (Vec::new(), 0);
    while spacing.len() < count {
        if std::mem::take(&mut asked) {
            let effects = bench.contacted("b", false);
            assert_eq!((questions(&effects), freezes(&effects)), (0, vec![]));
        }
        bench.now += secs(1);
        since += 1;
        let mut effects = bench.own(true);
        effects.extend(bench.step(Input::Tick));
        assert_eq!(
            freezes(&effects),
            Vec::<RangeId>::new(),
            "nothing is frozen for it"
        );
        asked = questions(&effects) == 1;
        if asked {
            spacing.push(std::mem::take(&mut since));
        }
    }
    spacing
}

#[test]
fn a_member_that_does_not_answer_is_asked_ever_less_often_and_nothing_is_frozen_for_it() {
    assert_eq!(spacing(9, false), [1, 2, 4, 8, 16, 32, 60, 60, 60]);
    assert_eq!(
        spacing(4, true),
        [1, 1, 1, 1],
        "a replica that leaves has no such patience"
    );
}

#[test]
fn an_answer_ends_the_back_off() {
    let (mut bench, _) = unreached();
    for _ in 0..6 {
        bench.contacted("b", false);
        bench.now += secs(70);
        bench.own(true);
        bench.step(Input::Tick);
    }
    assert_eq!(freezes(&bench.contacted("b", true)).len(), 2);
    assert_eq!(bench.core.wake_at(bench.now), bench.now + secs(1));
}

#[test]
fn a_member_that_refuses_is_offered_ranges_ever_less_often() {
    let (mut bench, effects) = joined();
    let mut frozen = freezes(&effects);
    let mut attempt = 0;
    let mut spacing = Vec::new();
    while spacing.len() < 6 {
        for range in std::mem::take(&mut frozen) {
            let (epoch, busy) = (1, false);
            bench.step(Input::Frozen { range, epoch, busy });
            attempt += 1;
            let result = Err(NotSent::Refused("not now".to_owned()));
            bench.step(Input::Sent {
                range,
                attempt,
                result,
            });
        }
        let mut seconds = 0;
        while frozen.is_empty() {
            bench.now += secs(1);
            seconds += 1;
            frozen.extend(freezes(&bench.own(true)));
            frozen.extend(freezes(&bench.step(Input::Tick)));
        }
        spacing.push(seconds);
    }
    assert_eq!(spacing, [1, 2, 4, 8, 16, 32]);
}

#[test]
fn a_range_whose_state_is_too_large_stays_and_does_not_hold_up_the_drain() {
    let (mut bench, effects) = joined();
    let moving = freezes(&effects);
    let refuse = |bench: &mut Bench, ranges: &[RangeId], first: u64| {
        let mut last = Vec::new();
        for (attempt, range) in (first..).zip(ranges.iter().copied()) {
            let (epoch, busy) = (1, false);
            bench.step(Input::Frozen { range, epoch, busy });
            let result = Err(NotSent::TooLarge("it is over the limit".to_owned()));
            last = bench.step(Input::Sent {
                range,
                attempt,
                result,
            });
            assert!(last.contains(&Effect::Resume { range, epoch: 1 }));
        }
        last
    };
    refuse(&mut bench, &moving, 1);
    // The others may go instead; these two are left alone for five minutes.
    for _ in 0..290 {
        bench.now += secs(1);
        let effects = bench.own(true);
        assert!(
            freezes(&effects)
                .iter()
                .all(|range| !moving.contains(range)),
            "{effects:?}"
        );
    }
    let (mut bench, _) = joined();
    refuse(&mut bench, &moving, 1);
    let effects = bench.step(Input::Drain(bench.now + secs(600)));
    let others = freezes(&effects);
    assert!(!effects.contains(&Effect::Release));
    let last = refuse(&mut bench, &others, 3);
    assert!(
        last.contains(&Effect::Release),
        "others take them over: {last:?}"
    );
}

// ---- what ends a replica ----

fn fatal(effects: &[Effect]) -> Option<Fatal> {
    effects.iter().find_map(|effect| match effect {
        Effect::Fatal(fatal) => Some(fatal.clone()),
        _ => None,
    })
}

#[test]
fn versions_that_go_back_end_the_process() {
    let mut bench = half_and_half();
    bench.pass(2, &[]);
    let seen = bench.version;
    // A list that was asked for before something newer was heard of proves nothing.
    let started = bench.now.saturating_sub(secs(30));
    let leases: Vec<ReplicaLease> = bench.replicas.values().cloned().collect();
    let list = |started, version| Input::Replicas {
        started,
        version,
        leases: leases.clone(),
    };
    assert_eq!(fatal(&bench.step(list(started, 40))), None);
    // One whose version can't be read proves nothing either.
    assert_eq!(fatal(&bench.step(list(bench.now, 0))), None);
    bench.now += secs(15);
    let asked = bench.own(true);
    assert!(asked.contains(&Effect::ReadReplicas));
    let effects = bench.step(list(bench.now, 40));
    let went_back = Fatal::WentBack { seen, listed: 40 };
    assert_eq!(fatal(&effects), Some(went_back));
    assert!(effects.contains(&Effect::Lost(0)) && effects.contains(&Effect::Lost(1)));
}

#[test]
fn a_replica_does_not_join_a_fleet_that_is_full() {
    for (others, joins) in [(REPLICAS_MAX - 1, true), (REPLICAS_MAX, false)] {
        let names: Vec<String> = (0..others).map(|at| format!("r-{at}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut bench = Bench::new(&names, &[]);
        let effects = bench.read();
        assert_eq!(effects.contains(&Effect::Join), joins);
        let most = REPLICAS_MAX;
        let full = (!joins).then_some(Fatal::FleetIsFull { most });
        assert_eq!(fatal(&effects), full);
    }
}

#[test]
fn an_offer_before_the_own_lease_is_known_is_refused() {
    let mut bench = Bench::new(&["b"], &[(2, "b", "b1", 1)]);
    let effects = bench.step(Input::Offered(offer(2, 1, 1)));
    assert_eq!(refused(&effects), Some(Refused::NotTaking));
}

#[test]
fn only_a_lease_that_says_so_promises_that_writes_carry_their_incarnation() {
    for (fenced, replaced, promised) in [
        (true, false, true),
        (false, false, false),
        (true, true, false),
    ] {
        let mut bench = half_and_half();
        bench.core.set_bars();
        bench.version += 1;
        let mut lease = bench.replicas["b"].clone();
        lease.status.server_fenced = fenced;
        let mut ended = ReplicaLease {
            version: bench.version,
            ..lease.vacated()
        };
        if replaced {
            // Another life has the name by now: what it says is not of the one before.
            ended.incarnation = Some("b2".to_owned());
        }
        let effects = bench.step(Input::Replica(ended));
        let bar = Effect::Bar {
            holder: Holder::new("b", "b1"),
            fenced: promised,
        };
        assert!(effects.contains(&bar), "{effects:?}");
    }
}

#[test]
fn fingerprints_are_said_in_the_own_lease_and_seen_in_those_of_members() {
    let mut bench = Bench::new(&["b"], &[]);
    let effects = bench.step(Input::Fingerprints("root-ca=1".to_owned()));
    let said: Vec<&str> = effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Status(status) => Some(&*status.fingerprints),
            _ => None,
        })
        .collect();
    assert_eq!(said, ["root-ca=1"]);
    // The same again changes nothing.
    let again = bench.step(Input::Fingerprints("root-ca=1".to_owned()));
    assert!(
        !again
            .iter()
            .any(|effect| matches!(effect, Effect::Status(_)))
    );
    let effects = bench.step(Input::Unreachable("b".to_owned()));
    assert!(
        effects
            .iter()
            .any(|effect| matches!(effect, Effect::Status(status) if &*status.unreachable == "b"))
    );
    let mut lease = bench.replicas["b"].clone();
    lease.version += 100;
    lease.status.fingerprints = "root-ca=2".into();
    lease.status.unreachable = "a".into();
    bench.step(Input::Replica(lease));
    let view = bench.core.view(bench.now, &crate::View::default());
    let member = view.members.iter().find(|member| member.name == "b");
    let member = member.unwrap();
    assert_eq!(member.fingerprints, "root-ca=2");
    assert_eq!(member.unreachable, "a");
}

#[test]
fn a_pin_is_read_as_it_was_written_and_nothing_else_is_one() {
    let pin = crate::Pin(std::array::from_fn(|at| u8::try_from(at * 8).unwrap()));
    assert_eq!(pin.to_string().parse(), Ok(pin));
    let digits = "ab".repeat(32);
    for text in [
        String::new(),
        digits.clone(),
        format!("sha1:{digits}"),
        format!("sha256:{digits}00"),
        format!("sha256:{}+b", &digits[2..]),
        format!("sha256:{}é", &digits[2..]),
    ] {
        assert!(text.parse::<crate::Pin>().is_err(), "{text}");
    }
}

// ---- questions and replies in Leases ----

/// The status that is to be said from now on, if it changes.
fn said(effects: &[Effect]) -> Option<Status> {
    let status = |effect: &Effect| match effect {
        Effect::Status(status) => Some(status.clone()),
        _ => None,
    };
    effects.iter().rev().find_map(status)
}

/// Whom an inquiry asks.
fn asked(effects: &[Effect]) -> Vec<(u64, String)> {
    let asks = |effect: &Effect| match effect {
        Effect::AskHolds { inquiry, to, .. } if *inquiry > 0 => Some((*inquiry, to.name.clone())),
        _ => None,
    };
    effects.iter().filter_map(asks).collect()
}

fn question_of(by: &str, number: u64, ranges: &[RangeId]) -> Option<Arc<Question>> {
    let by = by.to_owned();
    let ranges = ranges.iter().copied().collect();
    Some(Arc::new(Question { by, number, ranges }))
}

fn replies_of(by: &str, to: &[(&str, &str, u64)]) -> Replies {
    let question = |(name, incarnation, number): &(&str, &str, u64)| {
        (Holder::new(*name, *incarnation), *number)
    };
    Replies {
        by: by.to_owned(),
        to: to.iter().map(question).collect(),
        held: BTreeSet::new(),
        epochs: BTreeMap::new(),
    }
}

impl Bench {
    /// "a" asks for the ranges that it is to have and that have no Lease.
    fn asking(others: &[&str]) -> (Self, BTreeSet<RangeId>) {
        let mut bench = Self::new(others, &[]);
        bench.begin();
        let effects = bench.pass(1, &[]);
        let expected: Vec<_> = others.iter().map(|name| (1, (*name).to_owned())).collect();
        assert_eq!((claims(&effects), asked(&effects)), (vec![], expected));
        let ranges = effects.iter().find_map(|effect| match effect {
            Effect::AskHolds { ranges, .. } => Some(ranges.iter().copied().collect()),
            _ => None,
        });
        (bench, ranges.unwrap_or_default())
    }

    fn unanswered(&mut self, name: &str) -> Vec<Effect> {
        self.step(Input::HoldsAnswered {
            inquiry: 1,
            from: Holder::new(name, format!("{name}1")),
            result: Err(NoAnswer),
        })
    }

    /// A member writes this into its Lease, as far as the watch has brought it.
    fn replies(&mut self, name: &str, replies: Replies) -> Vec<Effect> {
        self.version += 1;
        let version = self.version;
        let lease = self.replicas.get_mut(name).expect("a member");
        lease.version = version;
        lease.status.replies = Some(Arc::new(replies));
        let lease = lease.clone();
        let mut effects = self.step(Input::Replica(lease));
        assert_eq!(
            claims(&effects),
            [],
            "what was before it may not be seen yet"
        );
        effects.extend(self.step(Input::WatchedTo(version)));
        effects
    }
}

#[test]
fn who_does_not_answer_by_grpc_is_asked_in_the_own_lease_and_answers_in_its_own() {
    let (mut bench, ranges) = Bench::asking(&["b"]);
    let status = said(&bench.unanswered("b")).expect("a question");
    let question = status.question.expect("a question");
    assert_eq!((&*question.by, question.number), ("a1", 1));
    assert_eq!(question.ranges, ranges);
    let effects = bench.replies("b", replies_of("b1", &[("a", "a1", 1)]));
    let taken: Vec<RangeId> = claims(&effects)
        .into_iter()
        .map(|(range, _)| range)
        .collect();
    assert_eq!(taken, Vec::from_iter(ranges));
    let after = said(&bench.step(Input::Tick)).expect("nothing is asked any more");
    assert_eq!(after.question, None);
}

#[test]
fn a_question_is_in_the_lease_once_an_answer_takes_a_retry_period() {
    let (mut bench, _) = Bench::asking(&["b"]);
    bench.now += millis(999);
    assert_eq!(said(&bench.step(Input::Tick)), None);
    bench.now += millis(1);
    let status = said(&bench.step(Input::Tick)).expect("a question");
    assert_eq!(status.question.map(|question| question.number), Some(1));
}

#[test]
fn answers_come_either_way_and_only_who_is_missing_is_asked_again() {
    let (mut bench, ranges) = Bench::asking(&["b", "c"]);
    bench.unanswered("c");
    let answer = ranges.iter().map(|range| (*range, (false, 0))).collect();
    bench.step(Input::HoldsAnswered {
        inquiry: 1,
        from: Holder::new("b", "b1"),
        result: Ok(answer),
    });
    let effects = bench.pass(1, &[]);
    assert_eq!(asked(&effects), [(1, "c".to_owned())]);
    let effects = bench.replies("c", replies_of("c1", &[("a", "a1", 1), ("b", "b1", 1)]));
    assert_eq!(claims(&effects).len(), ranges.len());
}

#[test]
fn without_any_peer_all_answer_in_their_leases() {
    let (mut bench, ranges) = Bench::asking(&["b", "c"]);
    bench.unanswered("b");
    bench.unanswered("c");
    let effects = bench.replies("b", replies_of("b1", &[("a", "a1", 1)]));
    assert_eq!(claims(&effects), []);
    let effects = bench.replies("c", replies_of("c1", &[("a", "a1", 1)]));
    assert_eq!(claims(&effects).len(), ranges.len());
}

#[test]
fn a_reply_keeps_what_is_held_from_being_taken_and_raises_epochs() {
    let (mut bench, ranges) = Bench::asking(&["b"]);
    bench.unanswered("b");
    let [held, free] = Vec::from_iter(ranges)[..] else {
        panic!("two of four")
    };
    let replies = Replies {
        held: BTreeSet::from([held]),
        epochs: BTreeMap::from([(held, 4), (free, 7)]),
        ..replies_of("b1", &[("a", "a1", 1)])
    };
    assert_eq!(claims(&bench.replies("b", replies)), [(free, 8)]);
}

#[test]
fn a_reply_counts_for_its_question_its_asker_and_its_writer_alone() {
    for replies in [
        replies_of("b1", &[]),
        replies_of("b1", &[("a", "a1", 0)]),
        replies_of("b1", &[("a", "a1", 2)]),
        replies_of("b1", &[("a", "a0", 1)]),
        replies_of("b1", &[("c", "a1", 1)]),
        replies_of("b0", &[("a", "a1", 1)]),
    ] {
        let (mut bench, _) = Bench::asking(&["b"]);
        bench.unanswered("b");
        assert_eq!(claims(&bench.replies("b", replies)), []);
    }
    mutation::set(Some(Mutation::AnyReplyCounts));
    let (mut bench, _) = Bench::asking(&["b"]);
    bench.unanswered("b");
    let effects = bench.replies("b", replies_of("b1", &[("a", "a1", 0)]));
    mutation::set(None);
    assert_eq!(claims(&effects).len(), 2, "this is how it would be");
}

#[test]
fn a_member_that_ends_has_answered_and_one_whose_lease_is_deleted_is_waited_for() {
    let (mut bench, ranges) = Bench::asking(&["b"]);
    bench.unanswered("b");
    bench.version += 1;
    let ended = ReplicaLease {
        version: bench.version,
        ..bench.replicas["b"].vacated()
    };
    bench.replicas.insert("b".to_owned(), ended.clone());
    assert_eq!(claims(&bench.step(Input::Replica(ended))), []);
    let effects = bench.step(Input::WatchedTo(bench.version));
    assert_eq!(claims(&effects), [], "membership has to settle");
    bench.now += secs(1);
    let effects = bench.step(Input::Tick);
    assert_eq!(claims(&effects).len(), ranges.len(), "{effects:?}");

    let (mut bench, ranges) = Bench::asking(&["b"]);
    bench.unanswered("b");
    bench.replicas.remove("b");
    bench.version += 1;
    let version = bench.version;
    let name = "b".to_owned();
    assert_eq!(
        claims(&bench.step(Input::ReplicaGone { name, version })),
        []
    );
    assert_eq!(claims(&bench.pass(4, &[])), []);
    assert!(claims(&bench.pass(2, &[])).len() >= ranges.len());
}

#[test]
fn a_range_whose_lease_was_written_meanwhile_is_asked_for_again() {
    let (mut bench, ranges) = Bench::asking(&["b"]);
    bench.unanswered("b");
    let [touched, other] = Vec::from_iter(ranges)[..] else {
        panic!("two of four")
    };
    // "b" takes it and its Lease is deleted by hand: nothing is left to be seen of it.
    let lease = bench.landed(touched, "b", "b1", 1);
    bench.ranges.remove(&touched);
    let version = bench.version;
    bench.core.steps(
        bench.now,
        [
            Input::Range(lease),
            Input::RangeGone {
                range: touched,
                version,
            },
        ],
    );
    let effects = bench.replies("b", replies_of("b1", &[("a", "a1", 1)]));
    assert_eq!(claims(&effects), [(other, 1)]);
    assert_eq!(asked(&bench.step(Input::Tick)), [(2, "b".to_owned())]);
}

/// What "a" replies to "b", which asks for all ranges: it holds 0 and claims 1.
fn replied(mutant: Option<Mutation>) -> Replies {
    mutation::set(mutant);
    let mut bench = Bench::new(&["b"], &[(0, "a", "a1", 3), (2, "b", "b1", 5)]);
    bench.core = seeded(bench.core.clone(), 0, 3);
    bench.begin();
    bench.core = seeded(bench.core.clone(), 1, 9);
    bench.version += 1;
    let lease = bench.replicas.get_mut("b").expect("a member");
    lease.version = bench.version;
    lease.status.question = question_of("b1", 4, &[0, 1, 2, 3]);
    let lease = lease.clone();
    let status = said(&bench.step(Input::Replica(lease))).expect("a reply");
    mutation::set(None);
    let replies = status.replies.expect("a reply");
    Replies::clone(&replies)
}

#[test]
fn a_question_is_answered_with_what_is_held_and_claimed() {
    let replies = replied(None);
    assert_eq!(
        (&*replies.by, replies.to),
        ("a1", BTreeMap::from([(Holder::new("b", "b1"), 4)]))
    );
    assert_eq!(replies.held, BTreeSet::from([0, 1]));
    assert_eq!(replies.epochs, BTreeMap::from([(0, 3), (2, 5)]));
    let forgetful = replied(Some(Mutation::ForgetsItsClaims));
    assert_eq!(
        forgetful.held,
        BTreeSet::from([0]),
        "this is how it would be"
    );
}

#[test]
fn a_reply_is_written_once_for_each_question_and_nothing_at_rest() {
    let mut bench = half_and_half();
    let ask = |bench: &mut Bench, question| {
        bench.version += 1;
        let lease = bench.replicas.get_mut("b").expect("a member");
        lease.version = bench.version;
        lease.status.question = question;
        let lease = lease.clone();
        let status = said(&bench.step(Input::Replica(lease)))?;
        status
            .replies
            .map(|replies| (replies.to.len(), replies.held.clone()))
    };
    let nothing = BTreeSet::new();
    assert_eq!(ask(&mut bench, None), None, "nobody asks");
    let question = question_of("b0", 1, &[0]);
    assert_eq!(ask(&mut bench, question), None, "of another incarnation");
    let question = question_of("b1", 1, &[0, 2]);
    let expected = Some((1, BTreeSet::from([0])));
    assert_eq!(ask(&mut bench, question.clone()), expected);
    assert_eq!(ask(&mut bench, question), None, "the same question");
    // What is lost meanwhile does not change the reply.
    let lease = bench.landed(0, "b", "b1", 2);
    assert_eq!(said(&bench.step(Input::Range(lease))), None);
    assert_eq!(
        ask(&mut bench, question_of("b1", 2, &[0])),
        Some((1, nothing.clone()))
    );
    assert_eq!(ask(&mut bench, None), Some((0, nothing)));
    let effects = bench.pass(10, &[]);
    assert_eq!(said(&effects), None);
}

#[test]
fn what_stays_doubtful_is_reported_with_those_who_are_waited_for() {
    let (mut bench, ranges) = Bench::asking(&["b"]);
    bench.unanswered("b");
    let reports = |effects: &[Effect]| -> Vec<Happening> {
        let report = |effect: &Effect| match effect {
            Effect::Happened(happening @ Happening::Doubtful { .. }) => Some(happening.clone()),
            _ => None,
        };
        effects.iter().filter_map(report).collect()
    };
    assert_eq!(reports(&bench.pass(4, &[])), []);
    let waiting = vec![Holder::new("b", "b1")];
    let expected = Happening::Doubtful {
        ranges,
        asked: secs(5),
        waiting,
    };
    let seen = reports(&bench.pass(1, &[]));
    assert_eq!(seen, std::slice::from_ref(&expected));
    let text = expected.to_string();
    assert!(
        text.ends_with("said whether they hold them: b_b1"),
        "{text}"
    );
    assert_eq!(reports(&bench.pass(59, &[])), []);
    assert_eq!(reports(&bench.pass(1, &[])).len(), 1);
}

/// "a" owns all four, "b" has come and never answers; what is frozen for it after these seconds.
fn frozen_for_the_silent(
    reads_questions: bool,
    draining: bool,
    seconds: u64,
) -> (Bench, Vec<RangeId>) {
    let (mut bench, effects) = unreached();
    assert_eq!(questions(&effects), 1);
    if reads_questions {
        for (name, by) in [("a", "a1"), ("b", "b1")] {
            let lease = bench.replicas.get_mut(name).expect("a member");
            lease.status.replies = Some(Arc::new(replies_of(by, &[])));
        }
    }
    if draining {
        bench.step(Input::Drain(bench.now + secs(3600)));
    }
    let mut frozen = freezes(&bench.contacted("b", false));
    for _ in 0..seconds {
        let effects = bench.pass(1, &[]);
        frozen.extend(freezes(&effects));
        if questions(&effects) > 0 {
            frozen.extend(freezes(&bench.contacted("b", false)));
        }
    }
    (bench, frozen)
}

#[test]
fn what_a_member_is_to_have_that_never_answers_is_given_by_the_lease_alone() {
    let nothing: Vec<RangeId> = Vec::new();
    assert_eq!(frozen_for_the_silent(true, false, 4).1, nothing);
    assert_eq!(
        frozen_for_the_silent(false, false, 60).1,
        nothing,
        "a build from before"
    );
    assert_eq!(
        frozen_for_the_silent(true, true, 60).1,
        nothing,
        "it is about to leave"
    );
    let (mut bench, frozen) = frozen_for_the_silent(true, false, 5);
    let [range, _] = frozen[..] else {
        panic!("{frozen:?}")
    };
    let (epoch, busy) = (1, false);
    let effects = bench.step(Input::Frozen { range, epoch, busy });
    assert!(effects.contains(&Effect::CloseRange(range)), "{effects:?}");
    let swapped = |effect: &Effect| match effect {
        Effect::Swap {
            lease, with_state, ..
        } => Some((lease.holder.clone(), lease.epoch, *with_state)),
        _ => None,
    };
    let swapped: Vec<_> = effects.iter().filter_map(swapped).collect();
    assert_eq!(
        swapped,
        [(Some(Holder::new("b", "b1")), 3, false)],
        "a state that was acknowledged before fits epoch 2 alone"
    );
    let lease = bench.landed(range, "b", "b1", 3);
    let result = Written::Done(lease);
    let effects = bench.step(Input::Swapped { range, result });
    assert!(effects.contains(&Effect::Lost(range)), "{effects:?}");
    let said = effects.iter().any(|effect| {
        matches!(effect, Effect::Happened(Happening::Relinquished { range: of, .. }) if *of == range)
    });
    assert!(said, "{effects:?}");
}
