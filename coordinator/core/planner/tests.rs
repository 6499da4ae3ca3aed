//! Tables of what moves, and random fleets that must come to rest.

use proptest::prelude::*;

use super::*;

/// Loads in percent of a processor.
fn work<'a>(members: usize, owners: &'a [u16], loads: &'a [u64]) -> Work<'a> {
    Work {
        members,
        owners,
        loads,
    }
}

fn percent(loads: &[u64]) -> Vec<u64> {
    loads.iter().map(|load| load * 10_000).collect()
}

/// All moves with loads that do not change, as `range:from>to`.
fn moves(members: usize, owners: &[u16], loads: &[u64]) -> Vec<String> {
    let (mut owners, loads) = (owners.to_vec(), percent(loads));
    let mut moves = Vec::new();
    while let Some(Shift { range, from, to }) =
        next_shift(work(members, &owners, &loads), &|_| true, &|_| true)
    {
        owners[usize::from(range)] = to;
        moves.push(format!("{range}:{from}>{to}"));
        assert!(moves.len() <= 1000, "no end: {moves:?}");
    }
    moves
}

/// What it is, members, owners, loads and the moves.
type Case = (
    &'static str,
    usize,
    &'static [u16],
    &'static [u64],
    &'static [&'static str],
);

#[test]
fn moves_are_few_and_only_those_that_help() {
    let cases: &[Case] = &[
        ("nobody", 0, &[], &[], &[]),
        ("one member", 1, &[0, 0], &[90, 1], &[]),
        ("no load", 3, &[0, 0, 1, 2], &[0, 0, 0, 0], &[]),
        ("equal loads", 3, &[0, 0, 1, 1, 2, 2], &[9; 6], &[]),
        ("within a fifth", 2, &[0, 0, 1, 1], &[60, 58, 50, 50], &[]),
        ("too little to matter", 2, &[0, 0, 1], &[2, 2, 0], &[]),
        (
            "one move is enough",
            2,
            &[0, 0, 0, 1],
            &[30, 30, 30, 20],
            &["0:0>1"],
        ),
        (
            "a hot range that is alone stays",
            2,
            &[0, 1, 1],
            &[90, 5, 5],
            &[],
        ),
        (
            "the owner of a hot range is relieved",
            2,
            &[0, 0, 0, 1],
            &[90, 20, 10, 5],
            &["1:0>1", "2:0>1"],
        ),
        (
            "two hot ranges part once, and the third replica is relieved",
            3,
            &[0, 0, 1, 2],
            &[80, 80, 10, 5],
            &["1:0>2", "3:2>1"],
        ),
        (
            "the replica that gets a hot range is relieved",
            3,
            &[0, 0, 1, 1, 2, 2],
            &[80, 80, 20, 20, 20, 18],
            &["1:0>2", "4:2>1", "5:2>1"],
        ),
        (
            "three of three are on one",
            3,
            &[0, 0, 0],
            &[30, 30, 30],
            &["0:0>1", "1:0>2"],
        ),
    ];
    for (what, members, owners, loads, expected) in cases {
        assert_eq!(moves(*members, owners, loads), *expected, "{what}");
    }
}

fn seconds(count: u64) -> Time {
    Time::from_secs(count)
}

/// Ranges moved by a planner, by second, where `loads` gives the loads of each second.
fn plan(
    planner: &mut Planner,
    until: u64,
    owners: &mut [u16],
    loads: impl Fn(u64) -> Vec<u64>,
) -> Vec<(u64, RangeId)> {
    let members: Vec<String> = ["a", "b"].map(str::to_owned).into();
    let mut moved = Vec::new();
    for second in 0..until {
        let (now, loads) = (seconds(second), percent(&loads(second)));
        let shift = planner.next(now, &members, work(2, owners, &loads), &|_| false);
        if let Some(shift) = shift {
            owners[usize::from(shift.range)] = shift.to;
            planner.saw_moves(now, [shift.range]);
            moved.push((second, shift.range));
        }
    }
    moved
}

#[test]
fn nothing_moves_before_loads_are_uneven_for_a_minute_and_then_every_ten_seconds() {
    let mut planner = Planner::default();
    let moved = plan(&mut planner, 200, &mut [0, 0, 0, 0, 1], |_| {
        vec![20, 20, 20, 20, 1]
    });
    assert_eq!(moved, [(61, 0), (71, 1)]);
}

#[test]
fn what_is_uneven_now_and_then_moves_nothing() {
    let mut planner = Planner::default();
    let loads = |second| match second % 60 {
        0 => vec![10, 10, 20],
        _ => vec![20, 20, 1],
    };
    assert_eq!(plan(&mut planner, 600, &mut [0, 0, 1], loads), []);
}

#[test]
fn a_load_that_goes_to_and_fro_moves_a_range_every_five_minutes_at_most() {
    let mut planner = Planner::default();
    let loads = |second| match (second / 100) % 2 {
        0 => vec![50, 50, 1, 1],
        _ => vec![1, 50, 50, 50],
    };
    let moved = plan(&mut planner, 3600, &mut [0, 0, 1, 1], loads);
    let mut last: BTreeMap<RangeId, u64> = BTreeMap::new();
    for (second, range) in moved {
        if let Some(before) = last.insert(range, second) {
            assert!(
                second - before >= 300,
                "range {range} at {before} and {second}"
            );
        }
    }
}

#[test]
fn a_planner_that_begins_with_a_plan_waits_five_minutes() {
    let mut planner = Planner::default();
    planner.begins_with_a_plan(seconds(10));
    let moved = plan(&mut planner, 400, &mut [0, 0, 1], |_| vec![50, 50, 1]);
    assert_eq!(moved, [(310, 0)]);
}

#[test]
fn other_members_begin_the_wait_again_and_pins_stay() {
    let (two, other) = (["a", "b"].map(str::to_owned), ["a", "c"].map(str::to_owned));
    let (owners, loads) = ([0, 0, 1], percent(&[50, 50, 1]));
    let at = work(2, &owners, &loads);
    let mut planner = Planner::default();
    for second in 0..60 {
        assert_eq!(planner.next(seconds(second), &two, at, &|_| false), None);
    }
    for second in 60..121 {
        assert_eq!(planner.next(seconds(second), &other, at, &|_| false), None);
    }
    let shift = planner.next(seconds(121), &other, at, &|range| range == 0);
    assert_eq!(
        shift,
        Some(Shift {
            range: 1,
            from: 0,
            to: 1
        })
    );
    let none = planner.next(seconds(140), &other, at, &|range| range < 2);
    assert_eq!(none, None);
}

#[test]
fn a_range_that_has_moved_is_as_much_work_as_before_until_its_new_owner_knows() {
    let mut planner = Planner::default();
    let reported = |load: u64| move |_: RangeId, _: u16| load;
    assert_eq!(planner.loads(seconds(0), &[0], reported(500)), [500]);
    assert_eq!(planner.loads(seconds(1), &[0], reported(600)), [600]);
    assert_eq!(planner.loads(seconds(2), &[1], reported(0)), [600]);
    assert_eq!(planner.loads(seconds(61), &[1], reported(300)), [600]);
    assert_eq!(planner.loads(seconds(62), &[1], reported(550)), [550]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    /// With loads that stay, moves come to an end, each range that is hot moves once at most, none comes
    /// back, and at the end no member has more than a fifth too much that could be taken from it.
    #[test]
    fn random_loads_come_to_rest(
        members in 1_usize..8,
        owners in prop::collection::vec(0_u16..8, 1..64),
        loads in prop::collection::vec(prop_oneof![3 => 0_u64..3_000, 2 => 0_u64..200_000, 1 => 0_u64..9_000_000], 64),
    ) {
        let mut owners: Vec<u16> = owners.iter().map(|owner| owner % members as u16).collect();
        let loads = &loads[..owners.len()];
        let begun = Shares::of(work(members, &owners, loads));
        let hot: Vec<usize> = begun.hot.iter().flatten().chain(&begun.surplus).copied().collect();
        let mut been: Vec<Vec<u16>> = owners.iter().map(|owner| vec![*owner]).collect();
        let mut count = 0;
        while let Some(Shift { range, from, to }) =
            next_shift(work(members, &owners, loads), &|_| true, &|_| true)
        {
            let at = usize::from(range);
            prop_assert_eq!((owners[at], from != to), (from, true));
            owners[at] = to;
            prop_assert!(!hot.contains(&at) || been[at].len() == 1, "hot range {} moved twice", range);
            prop_assert!(!been[at].contains(&to), "range {} came back", range);
            been[at].push(to);
            count += 1;
            prop_assert!(count <= owners.len() * 2, "{} moves of {} ranges", count, owners.len());
        }
        // What is left uneven has no range that would help.
        let shares = Shares::of(work(members, &owners, loads));
        let largest = |member: usize| {
            let own = (0..owners.len()).filter(|range| usize::from(owners[*range]) == member);
            let others = own.filter(|range| shares.hot[member] != Some(*range) && loads[*range] > 0);
            others.map(|range| loads[range]).min().unwrap_or(0)
        };
        for member in 0..members {
            let excess = shares.excess(member, work(members, &owners, loads));
            if excess > shares.fair / UNEVEN_PARTS && excess >= UNEVEN_LEAST {
                let to = shares.idlest(member, &|_| true).map_or(u64::MAX, |to| shares.load[to]);
                let gain = shares.fair / 20;
                prop_assert!(
                    to.saturating_add(largest(member)) + gain + 1 >= shares.fair + excess || largest(member) < gain.max(1),
                    "member {} has {} too much", member, excess
                );
            }
        }
    }

    /// However loads change, the pauses are kept, and equal loads move nothing.
    #[test]
    fn random_changes_keep_the_pauses(
        seeds in prop::collection::vec(0_u64..100, 40),
        equal in 1_u64..100,
    ) {
        let loads = |second: u64| (0..8).map(|at| seeds[((second / 90 + at * 7) % 40) as usize]).collect::<Vec<_>>();
        let mut owners = [0, 0, 0, 0, 1, 1, 1, 1];
        let moved = plan(&mut Planner::default(), 1800, &mut owners, loads);
        prop_assert!(moved.windows(2).all(|pair| pair[1].0 - pair[0].0 >= 10), "{:?}", moved);
        for (at, (second, range)) in moved.iter().enumerate() {
            let again = moved[at + 1..].iter().find(|(_, other)| other == range);
            prop_assert!(again.is_none_or(|(later, _)| later - second >= 300), "{:?}", moved);
        }
        let none = plan(&mut Planner::default(), 600, &mut [0, 0, 0, 0, 1, 1, 1, 1], |_| vec![equal; 8]);
        prop_assert_eq!(none, []);
    }
}
