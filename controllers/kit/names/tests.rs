use std::collections::BTreeSet;

use proptest::prelude::*;

use super::{Children, NAME_LENGTH_MAX, SPACE, encode_hash, newest, permute, unpermute, with_hash};

fn children() -> Children {
    Children::of("web", "6a1b9a3e-0001")
}

#[test]
fn golden_names_since_a_change_of_names_is_a_change_of_protocol() {
    let names: Vec<String> = (0..4).map(|ordinal| children().name(ordinal)).collect();
    assert_eq!(names, GOLDEN);
    assert_eq!(children().name(SPACE), names[0], "ordinals go round");
    assert_ne!(
        Children::of("web", "6a1b9a3e-0002").name(0),
        names[0],
        "another uid has other names"
    );
}

const GOLDEN: [&str; 4] = ["web-fmrwq", "web-5zqhs", "web-qhhdd", "web-wjtkl"];

#[test]
fn the_first_hundred_thousand_names_are_all_different() {
    let names: BTreeSet<String> = (0..100_000)
        .map(|ordinal| children().name(ordinal))
        .collect();
    assert_eq!(names.len(), 100_000);
}

proptest! {
    #[test]
    fn an_ordinal_survives_its_name(key: u64, ordinal in 0..SPACE) {
        let value = permute(key, ordinal);
        prop_assert!(value < SPACE);
        prop_assert_eq!(unpermute(key, value), ordinal);
    }

    #[test]
    fn a_value_survives_its_ordinal(key: u64, value in 0..SPACE) {
        prop_assert_eq!(permute(key, unpermute(key, value)), value);
    }

    #[test]
    fn the_next_names_are_new_and_follow_in_order(start in 0..SPACE, present in 1_u32..40, count in 0_usize..40) {
        let children = children();
        let existing: Vec<String> = (0..present).map(|step| children.name((start + step) % SPACE)).collect();
        let next = children.next(0, existing.iter().map(String::as_str), |_| false, count);
        prop_assert_eq!(next.len(), count);
        for (step, name) in (present..).zip(&next) {
            prop_assert_eq!(name, &children.name((start + step) % SPACE), "also round the end of the circle");
            prop_assert!(!existing.contains(name));
        }
    }
}

#[test]
fn the_next_name_follows_the_newest_child_and_skips_what_is_taken() {
    let children = children();
    let existing = [children.name(3), children.name(4), "foreign".to_owned()];
    let taken = children.name(6);
    let next = children.next(
        0,
        existing.iter().map(String::as_str),
        |name| name == taken,
        2,
    );
    assert_eq!(next, [children.name(5), children.name(7)]);
}

#[test]
fn two_replicas_that_see_the_same_choose_the_same() {
    let seen = [children().name(9)];
    let plan = || children().next(0, seen.iter().map(String::as_str), |_| false, 5);
    assert_eq!(plan(), plan());
}

#[test]
fn what_another_replica_has_made_of_a_burst_is_only_completed() {
    let all = children().next(0, [], |_| false, 10);
    let seen = &all[..4];
    let rest = children().next(0, seen.iter().map(String::as_str), |_| false, 6);
    assert_eq!(
        rest,
        all[4..],
        "the rest collides with what is still on its way"
    );
}

#[test]
fn the_newest_of_a_circle_stands_before_the_widest_gap() {
    for (ordinals, expected) in [
        (vec![], None),
        (vec![0], Some(0)),
        (vec![5, 3, 4], Some(5)),
        (vec![SPACE - 2, SPACE - 1, 0, 1], Some(1)),
        (vec![0, SPACE / 2], Some(SPACE / 2)),
        (vec![7, 7], Some(7)),
    ] {
        assert_eq!(newest(ordinals.clone()), expected, "{ordinals:?}");
    }
}

#[test]
fn prefixes_are_cut_as_the_server_cuts_them() {
    let long = "a".repeat(100);
    let children = Children::of(&long, "u");
    let name = children.name(1);
    assert_eq!(name.len(), 63);
    assert_eq!(children.ordinal(&name), Some(1));
    assert_eq!(children.generate_name(), format!("{long}-"));
    let longest = "a".repeat(NAME_LENGTH_MAX);
    assert_eq!(Children::of(&longest, "u").generate_name(), longest);
}

#[test]
fn a_foreign_name_has_no_ordinal() {
    for name in [
        "web",
        "web-",
        "web-aaaaa",
        "web-bcdf",
        "web-bcdfgh",
        "other-bcdfg",
    ] {
        assert_eq!(children().ordinal(name), None, "{name}");
    }
}

#[test]
fn hashes_look_like_upstreams() {
    assert_eq!(encode_hash(0), "4");
    assert_eq!(encode_hash(1_234_567_890), "56789bcdf4");
    assert_eq!(with_hash("web", "bcd"), "web-bcd");
    let name = with_hash(&"a".repeat(300), "bcdfg");
    assert_eq!(name.len(), NAME_LENGTH_MAX);
    assert!(name.ends_with("a-bcdfg"));
}

#[test]
fn an_owner_without_children_begins_where_it_is_told() {
    let children = children();
    let begin = |first| children.next(first, [], |_| false, 3);
    assert_eq!(
        begin(0),
        begin(u64::from(SPACE)),
        "beyond the space it goes round"
    );
    assert!(begin(0).iter().all(|name| !begin(1009).contains(name)));
    let first = begin(1009);
    let more = children.next(5, first.iter().map(String::as_str), |_| false, 1);
    assert!(!first.contains(&more[0]), "with children they decide");
}
