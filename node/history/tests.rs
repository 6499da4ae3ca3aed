use super::*;

const RANGES: u16 = 4;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn owners<'a>(names: &[&'a str]) -> Vec<(u16, Option<&'a str>)> {
    (0..)
        .zip(names)
        .map(|(range, name)| (range, (!name.is_empty()).then_some(*name)))
        .collect()
}

/// Names of the owners in each column, `-` for nobody, from the first one with an owner on.
fn shown(picture: &Picture) -> Vec<String> {
    let names: Vec<&str> = picture.names().collect();
    let owner = |number: &u8| match usize::from(*number).checked_sub(1) {
        None => "-",
        Some(place) => names[place],
    };
    picture
        .since(0)
        .skip_while(|column| column.owner.iter().all(|number| *number == NOTHING))
        .map(|column| column.owner.iter().map(owner).collect::<Vec<_>>().join(" "))
        .collect()
}

#[test]
fn amounts_are_coded_by_their_logarithm() {
    for (amount, expected) in [
        (0.0, IDLE),
        (1e-9, 2),
        (1e-3, 2),
        (2e-3, 15),
        (1.0, 128),
        (1e9, 255),
    ] {
        assert_eq!(code(amount, WAIT_LEAST), expected, "{amount}");
    }
    let back = |code: u8| WAIT_LEAST * ((f64::from(code) - CODE_FIRST) / CODES_EACH).exp2();
    for amount in [0.004, 0.3, 7.0, 600.0] {
        let read = back(code(amount, WAIT_LEAST));
        assert!((read / amount - 1.0).abs() < 0.03, "{amount} {read}");
    }
}

#[test]
fn work_is_summed_and_of_waits_the_longest_is_kept_column_by_column() {
    let tally = Tally::default();
    tally.worked(ms(30));
    tally.worked(ms(20));
    tally.waited(ms(7));
    tally.waited(ms(5));
    assert_eq!(tally.take(), (ms(50), ms(7)));
    assert_eq!(tally.take(), (ms(0), ms(0)));

    let mut history = History::new(RANGES);
    history.note(100, [(1, (ms(50), ms(7))), (2, (ms(0), ms(0)))].into_iter());
    history.note(100, [(1, (ms(50), ms(3)))].into_iter());
    history.note(101, [(1, (ms(0), ms(0)))].into_iter());
    assert_eq!(
        history.last(),
        Whole {
            load: 0.01,
            waited: ms(7)
        }
    );
    let work = code(0.01, WORK_LEAST);
    let wait = code(0.007, WAIT_LEAST);
    let cells = |range, work: &[u8], wait: &[u8], first| Cells {
        range,
        first,
        work: work.to_vec(),
        wait: wait.to_vec(),
    };
    assert_eq!(
        history.cells(0),
        [
            cells(1, &[work, IDLE], &[wait, IDLE], 100),
            cells(2, &[IDLE, NOTHING], &[IDLE, NOTHING], 100),
        ],
        "ranges that were not owned have no row"
    );
    assert_eq!(history.cells(101), [cells(1, &[IDLE], &[IDLE], 101)]);
    // A clock that is set back has what it brings counted in the newest column.
    history.note(90, [(1, (ms(100), ms(0)))].into_iter());
    assert_eq!(history.cells(0)[0].work, [work, work]);
}

#[test]
fn no_more_than_an_hour_is_kept_and_gaps_are_empty() {
    let mut picture = Picture::new(RANGES);
    let all = || owners(&["a", "a", "b", ""]).into_iter();
    picture.owned_by(1000, ["a", "b"].into_iter(), all());
    picture.owned_by(1003, ["a"].into_iter(), all());
    assert_eq!(
        shown(&picture),
        ["a a b -", "- - - -", "- - - -", "a a b -"]
    );
    picture.owned_by(1000 + 359, [].into_iter(), all());
    assert_eq!(picture.since(0).count(), COLUMNS_MAX);
    picture.owned_by(1000 + 360, [].into_iter(), all());
    assert_eq!(picture.since(0).count(), COLUMNS_MAX);
    assert_eq!(picture.since(0).next().map(|column| column.at), Some(1001));
    // After a jump of the clock there is nothing of before.
    picture.owned_by(1_000_000, [].into_iter(), [].into_iter());
    assert_eq!(picture.since(0).count(), COLUMNS_MAX);
    assert_eq!(
        picture.since(0).next().map(|column| column.at),
        Some(999_641)
    );
    assert_eq!(picture.seen().count(), 0);
    for (ranges, kept) in [(1, 360), (256, 360), (1024, 360), (4096, 97)] {
        assert_eq!(Picture::new(ranges).kept(), kept, "{ranges}");
    }
}

#[test]
fn names_are_bounded_and_the_number_of_one_that_no_column_has_is_used_again() {
    let mut picture = Picture::new(1);
    for number in 0..NAMES_MAX + 5 {
        let name = format!("r{number}");
        picture.owned_by(5, [&*name].into_iter(), [(0, Some(&*name))].into_iter());
    }
    assert_eq!(picture.names().count(), NAMES_MAX);
    let owner = |picture: &Picture| picture.since(0).next().unwrap().owner[0];
    assert_eq!(owner(&picture), 0, "there was no room for the last one");
    picture.owned_by(5 + 360, ["new"].into_iter(), [(0, Some("new"))].into_iter());
    assert_eq!(picture.names().next(), Some("new"));
    assert_eq!(picture.seen().collect::<Vec<_>>(), [("new", 365)]);
}

#[test]
fn a_range_continues_with_the_records_of_its_next_owner() {
    let mut own = History::new(2);
    for (at, both) in [(10, ["a", "b"]), (11, ["a", "b"]), (12, ["a", "a"])] {
        own.owned_by(at, both.into_iter(), owners(&both).into_iter());
    }
    let mut all = Picture::new(2);
    own.show(&mut all, 0);
    assert_eq!(shown(&all), ["a b", "a b", "a a"]);
    let of = |range, first, work: &[u8]| Cells {
        range,
        first,
        work: work.to_vec(),
        wait: work.to_vec(),
    };
    all.add("b", &of(1, 9, &[99, 50, 60, 70]));
    all.add("a", &of(1, 12, &[80, 90]));
    all.add("a", &of(7, 12, &[80]));
    let work: Vec<u8> = all.since(9).map(|column| column.work[1]).collect();
    assert_eq!(
        work,
        [99, 50, 60, 80],
        "what lies outside is left out, the greater of two is shown"
    );
    assert_eq!(
        shown(&all),
        ["- b", "a b", "a b", "a a"],
        "Leases go before claims"
    );
    // A replica that has just started has seen no Lease of the columns before: their owner has recorded them.
    let mut fresh = Picture::new(2);
    let mut started = History::new(2);
    started.owned_by(12, ["a", "c"].into_iter(), owners(&["a", "c"]).into_iter());
    started.show(&mut fresh, 0);
    fresh.add("a", &of(0, 11, &[7, 7]));
    assert_eq!(shown(&fresh), ["a -", "a c"]);
    fresh.owned_by(14, ["a"].into_iter(), owners(&["", ""]).into_iter());
    fresh.add("a", &of(0, 13, &[7, IDLE]));
    assert_eq!(shown(&fresh), ["a -", "a c", "a -", "a -"]);
}
