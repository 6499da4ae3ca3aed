use std::collections::BTreeSet;

use proptest::prelude::*;

use kubernetes_proto::{
    AnyObject, Object, Resource,
    core::Pod,
    meta::{ObjectMeta, OwnerReference},
};

use super::{
    Children, Known, NAME_LENGTH_MAX, SPACE, encode_hash, is_generated, newest, permute, unpermute,
    with_hash,
};
use crate::Reader;

/// What a store knows of names, and nothing else.
#[derive(Default)]
struct Store {
    used: BTreeSet<String>,
    /// Uids that the history covers; `None` for all.
    covers: Option<BTreeSet<String>>,
    since: u64,
}

impl Reader for Store {
    fn get(&self, _: &'static Resource, _: &str, _: &str) -> Option<AnyObject> {
        None
    }
    fn list(&self, _: &'static Resource, _: Option<&str>) -> Vec<AnyObject> {
        Vec::new()
    }
    fn indexed(&self, _: &'static Resource, _: &'static str, _: &str) -> Vec<AnyObject> {
        Vec::new()
    }
    fn name_used(&self, _: &'static Resource, _: &str, name: &str) -> bool {
        self.used.contains(name)
    }
    fn history_covers(&self, uid: &str) -> bool {
        self.covers
            .as_ref()
            .is_none_or(|covers| covers.contains(uid))
    }
    fn history_since(&self) -> u64 {
        self.since
    }
}

/// A store that has followed changes for less than an hour.
fn young(covers: &[&str]) -> Store {
    Store {
        covers: Some(covers.iter().map(|uid| (*uid).to_owned()).collect()),
        ..Store::default()
    }
}

fn owner(resource_version: u64) -> ObjectMeta {
    ObjectMeta {
        uid: "owner".into(),
        resource_version,
        ..ObjectMeta::default()
    }
}

fn metas<S: AsRef<str>>(names: &[S]) -> Vec<ObjectMeta> {
    let metas = names.iter().map(|name| ObjectMeta {
        name: name.as_ref().into(),
        uid: format!("uid of {}", name.as_ref()).as_str().into(),
        ..ObjectMeta::default()
    });
    metas.collect()
}

/// What is chosen on a store, at a version of the owner.
fn choice<S: AsRef<str>>(
    store: &Store,
    version: u64,
    first: u64,
    existing: &[S],
    count: usize,
) -> Vec<String> {
    let owner = owner(version);
    let known = Known::of(store, Pod::resource(), &owner);
    children().next(first, &metas(existing), &known, count)
}

/// What is chosen by who has seen everything.
fn next<S: AsRef<str>>(first: u64, existing: &[S], count: usize) -> Vec<String> {
    choice(&Store::default(), 1, first, existing, count)
}

const NONE: [&str; 0] = [];

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
        let next = next(0, &existing, count);
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
    let store = Store {
        used: BTreeSet::from([taken]),
        ..Store::default()
    };
    let next = choice(&store, 1, 0, &existing, 2);
    assert_eq!(next, [children.name(5), children.name(7)]);
}

#[test]
fn two_replicas_that_see_the_same_choose_the_same() {
    let seen = [children().name(9)];
    let plan = || next(0, &seen, 5);
    assert_eq!(plan(), plan());
}

#[test]
fn a_burst_that_another_replica_has_begun_is_completed() {
    let all = next(0, &NONE, 10);
    let seen = &all[..4];
    let rest = next(0, seen, 6);
    assert_eq!(
        rest,
        all[4..],
        "the rest collides with what is still on its way"
    );
}

#[test]
fn the_newest_child_precedes_the_widest_gap_of_the_circle() {
    for (ordinals, expected) in [
        (vec![], None),
        (vec![0], Some(0)),
        (vec![5, 3, 4], Some(5)),
        (vec![SPACE - 2, SPACE - 1, 0, 1], Some(1)),
        (vec![0, SPACE / 2], Some(SPACE / 2)),
        (vec![7, 7], Some(7)),
    ] {
        let newest = newest(ordinals.clone()).map(|(ordinal, _)| ordinal);
        assert_eq!(newest, expected, "{ordinals:?}");
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
fn hashes_have_upstreams_form() {
    assert_eq!(encode_hash(0), "4");
    assert_eq!(encode_hash(1_234_567_890), "56789bcdf4");
    assert_eq!(with_hash("web", "bcd"), "web-bcd");
    let name = with_hash(&"a".repeat(300), "bcdfg");
    assert_eq!(name.len(), NAME_LENGTH_MAX);
    assert!(name.ends_with("a-bcdfg"));
}

#[test]
fn the_first_name_of_an_owner_follows_from_its_starting_ordinal() {
    let begin = |first| next(first, &NONE, 3);
    assert_eq!(
        begin(0),
        begin(u64::from(SPACE)),
        "beyond the space it goes round"
    );
    assert!(begin(0).iter().all(|name| !begin(1009).contains(name)));
    let first = begin(1009);
    let more = next(5, &first, 1);
    assert!(!first.contains(&more[0]), "with children they decide");
}

#[test]
fn the_name_of_a_child_that_was_newest_is_not_given_to_the_next() {
    let children = children();
    let existing = [children.name(3)];
    let store = Store {
        used: BTreeSet::from([children.name(4), children.name(5)]),
        ..Store::default()
    };
    assert_eq!(choice(&store, 1, 0, &existing, 1), [children.name(6)]);
}

#[test]
fn names_start_by_the_owner_s_version_where_earlier_removals_are_unknown() {
    let (children, store) = (children(), young(&[]));
    let existing = [children.name(3), children.name(4)];
    let at = |version| choice(&store, version, 0, &existing, 2);
    assert_eq!(
        at(7),
        at(7),
        "a second creation from the same view collides"
    );
    assert!(at(7).iter().all(|name| !at(8).contains(name)));
    assert!(!at(7).contains(&children.name(5)));
    let none = |version| choice(&store, version, 0, &NONE, 1);
    assert_ne!(none(7), none(8));
    assert_ne!(none(7), [children.name(0)]);
}

#[test]
fn names_continue_in_order_after_the_first_child_where_earlier_removals_are_unknown() {
    let children = children();
    for version in 0..200 {
        let old = [children.name(SPACE - 2), children.name(3)];
        let made = choice(&young(&[]), version, 0, &old, 1).remove(0);
        let ordinal = children.ordinal(&made).unwrap();
        let all = [old[0].clone(), old[1].clone(), made.clone()];
        let store = young(&[&format!("uid of {made}")]);
        assert_eq!(
            choice(&store, version + 1000, 0, &all, 1),
            [children.name(ordinal + 1)],
            "the newest child precedes the widest gap"
        );
    }
}

#[test]
fn an_owner_that_was_seen_to_be_made_has_no_unseen_names() {
    let store = young(&["owner"]);
    assert_eq!(choice(&store, 7, 0, &NONE, 3), next(0, &NONE, 3));
}

#[test]
fn children_of_an_owner_that_has_not_changed_since_begin_elsewhere_at_each_start() {
    let begun = |since, version| {
        let store = Store {
            since,
            ..young(&[])
        };
        choice(&store, version, 0, &NONE, 1)
    };
    assert_eq!(begun(10, 7), begun(10, 7));
    assert_ne!(begun(10, 7), begun(11, 7));
    assert_ne!(
        begun(10, 7),
        begun(0, 7),
        "a replica that created one from that version"
    );
    assert_eq!(begun(10, 20), begun(11, 20), "both see the same change");
}

#[test]
fn generated_names_are_distinguished_from_those_that_the_api_fixes() {
    let child = |kind: &str, generate_name: &str, name: &str| ObjectMeta {
        name: name.into(),
        generate_name: generate_name.into(),
        owner_references: vec![
            OwnerReference {
                kind: kind.into(),
                controller: Some(true),
                ..OwnerReference::default()
            }
            .into(),
        ],
        ..ObjectMeta::default()
    };
    let made = children().name(4);
    for (meta, expected) in [
        (child("ReplicaSet", "web-", &made), true),
        (child("StatefulSet", "web-", &made), false),
        (child("StatefulSet", "web-", "web-0"), false),
        (child("Job", "", &made), false),
        (child("ReplicaSet", "web-", "web-by-hand"), false),
        (
            ObjectMeta {
                name: made.as_str().into(),
                ..ObjectMeta::default()
            },
            false,
        ),
    ] {
        assert_eq!(is_generated(&meta), expected, "{meta:?}");
    }
}

#[test]
fn series_of_one_owner_have_names_of_their_own() {
    let series = |entry: &str| Children::of_series("web-gpu-".to_owned(), &format!("u/{entry}"));
    let (one, other) = (series("gpu"), series("nic"));
    assert_ne!(one.name(0), other.name(0));
    assert_eq!(one.generate_name(), "web-gpu-");
    assert_eq!(one.ordinal(&one.name(7)), Some(7));
    assert!(one.name(0).starts_with("web-gpu-") && one.name(0).len() == 13);
}
