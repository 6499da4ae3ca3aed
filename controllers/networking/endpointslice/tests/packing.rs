//! Which endpoint goes where, by numbers.

use std::{collections::BTreeSet, sync::Arc};

use controllers_kit::{
    FlagValue,
    testing::{Common, ServiceBuild, SliceBuild, endpoint_slice, service},
};
use kubernetes_proto::{Object, discovery::EndpointSlice};

use super::{
    super::packing::{self, Packed, pack},
    *,
};

fn slice(name: &str, pods: impl IntoIterator<Item = usize>) -> Arc<EndpointSlice> {
    let empty = endpoint_slice(name, &service("web"), "endpointslice-controller.k8s.io");
    Arc::new(
        pods.into_iter()
            .fold(empty, |slice, number| slice.endpoint(&backend(number))),
    )
}

fn like() -> EndpointSlice {
    let mut like = EndpointSlice::clone(&slice("", []));
    like.metadata_mut().uid = Default::default();
    like
}

fn wanted(pods: impl IntoIterator<Item = usize>) -> Vec<Endpoint> {
    slice("", pods).endpoints.clone()
}

/// Sizes of the slices that are unchanged, changed, made; how many are deleted.
fn figures(packed: &Packed) -> (Vec<usize>, Vec<usize>, Vec<usize>, usize) {
    let slices = &packed.slices;
    let size = |slice: &EndpointSlice| slice.endpoints.len();
    (
        slices.unchanged.iter().map(|slice| size(slice)).collect(),
        slices
            .update
            .iter()
            .map(|changed| size(&changed.new))
            .collect(),
        slices.create.iter().map(size).collect(),
        slices.delete.len(),
    )
}

/// All wanted endpoints are there once, and no slice is too full.
fn check(packed: &Packed, wanted: &[Endpoint], most: usize) {
    let held: Vec<&str> = packed.slices.endpoints().map(pod_of).collect();
    let distinct: BTreeSet<&str> = held.iter().copied().collect();
    let expected: BTreeSet<&str> = wanted.iter().map(pod_of).collect();
    assert_eq!(held.len(), distinct.len(), "one is there twice");
    assert_eq!(distinct, expected);
    for made in &packed.slices.create {
        assert!(made.endpoints.len() <= most);
    }
}

#[test]
fn few_slices_are_written() {
    type Case = (
        &'static str,
        Vec<std::ops::Range<usize>>,
        std::ops::Range<usize>,
        (Vec<usize>, Vec<usize>, Vec<usize>, usize),
    );
    let table: Vec<Case> = vec![
        (
            "nothing to nothing",
            vec![],
            0..0,
            (vec![], vec![], vec![], 0),
        ),
        ("the first ones", vec![], 0..7, (vec![], vec![], vec![7], 0)),
        (
            "more than one slice holds",
            vec![],
            0..25,
            (vec![], vec![], vec![10, 10, 5], 0),
        ),
        (
            "as they are",
            vec![0..10, 10..15],
            0..15,
            (vec![10, 5], vec![], vec![], 0),
        ),
        (
            "one more fits",
            vec![0..10, 10..15],
            0..16,
            (vec![10], vec![6], vec![], 0),
        ),
        (
            "the one that is filled best",
            vec![0..3, 3..11, 11..15],
            0..17,
            (vec![3, 4], vec![10], vec![], 0),
        ),
        (
            "too many for any one: a new one",
            vec![0..8, 8..16],
            0..20,
            (vec![8, 8], vec![], vec![4], 0),
        ),
        (
            "a full slice more goes apart",
            std::iter::once(0..5).collect(),
            0..20,
            (vec![], vec![10], vec![10], 0),
        ),
        (
            "one goes",
            vec![0..10, 10..15],
            1..15,
            (vec![5], vec![9], vec![], 0),
        ),
        (
            "what is written anyway is filled up",
            vec![0..10, 10..15],
            2..20,
            (vec![], vec![10, 8], vec![], 0),
        ),
        (
            "a slice is left empty",
            vec![0..5, 5..10],
            5..10,
            (vec![5], vec![], vec![], 1),
        ),
        (
            "all go",
            vec![0..5, 5..10],
            0..0,
            (vec![], vec![], vec![], 2),
        ),
    ];
    for (what, before, after, expected) in table {
        let existing: Vec<_> = before
            .into_iter()
            .enumerate()
            .map(|(number, pods)| slice(&format!("web-{number}"), pods))
            .collect();
        let wanted = wanted(after);
        let packed = pack(&existing, &wanted, &like(), 10);
        check(&packed, &wanted, 10);
        assert_eq!(figures(&packed), expected, "{what}");
    }
}

#[test]
fn the_fullest_of_the_written_ones_is_filled_first() {
    let existing = [slice("web-a", 0..4), slice("web-b", 10..19)];
    // One endpoint of each goes; two come.
    let wanted = wanted((1..4).chain(11..19).chain([30, 31]));
    let packed = pack(&existing, &wanted, &like(), 10);
    check(&packed, &wanted, 10);
    assert_eq!(figures(&packed), (vec![], vec![3, 10], vec![], 0));
    assert_eq!((packed.added, packed.removed), (2, 2));
}

#[test]
fn an_endpoint_that_is_in_two_slices_leaves_the_second() {
    let existing = [slice("web-a", 0..3), slice("web-b", 2..5)];
    let wanted = wanted(0..5);
    let packed = pack(&existing, &wanted, &like(), 10);
    check(&packed, &wanted, 10);
    assert_eq!(figures(&packed), (vec![3], vec![2], vec![], 0));
}

#[test]
fn changed_endpoints_stay_in_their_slice() {
    let existing = [slice("web-a", 0..3), slice("web-b", 3..6)];
    let mut wanted = wanted(0..6);
    wanted[4].conditions.as_mut().unwrap().ready = Some(false);
    let packed = pack(&existing, &wanted, &like(), 10);
    assert_eq!(figures(&packed), (vec![3], vec![3], vec![], 0));
    assert_eq!(
        packed.slices.update[0].new.endpoints[1]
            .conditions
            .unwrap()
            .ready,
        Some(false)
    );
    // A pod of the same name and address under another uid is a change, too.
    let mut wanted = super::packing::wanted(0..6);
    wanted[0].target_ref.as_mut().unwrap().uid = "another".to_owned();
    let packed = pack(&existing, &wanted, &like(), 10);
    assert_eq!(figures(&packed), (vec![3], vec![3], vec![], 0));
    // Which version of a pod it was made from is none.
    let mut wanted = super::packing::wanted(0..6);
    wanted[0].target_ref.as_mut().unwrap().resource_version = "7".to_owned();
    let packed = pack(&existing, &wanted, &like(), 10);
    assert_eq!(figures(&packed), (vec![3, 3], vec![], vec![], 0));
}

#[test]
fn another_address_or_hostname_is_another_endpoint() {
    let existing = [slice("web-a", 0..1)];
    for change in [
        (|one: &mut Endpoint| one.addresses = vec!["10.9.9.9".to_owned()]) as fn(&mut Endpoint),
        |one| one.hostname = Some("first".to_owned()),
    ] {
        let mut wanted = wanted(0..1);
        change(&mut wanted[0]);
        let packed = pack(&existing, &wanted, &like(), 10);
        assert_eq!((packed.added, packed.removed), (1, 1));
        assert_eq!(figures(&packed), (vec![], vec![], vec![1], 1));
    }
}

#[test]
fn other_labels_are_written_with_the_endpoints_as_they_are() {
    let mut existing = EndpointSlice::clone(&slice("web-a", 0..3));
    existing.endpoints[0].hints = Some(Default::default());
    let wanted = wanted(0..3);
    let packed = pack(
        &[Arc::new(existing.clone())],
        &wanted,
        &like().label("team", "blue"),
        10,
    );
    let changed = &packed.slices.update[0].new;
    assert_eq!(changed.endpoints, existing.endpoints);
    assert_eq!(changed.metadata().label("team"), Some("blue"));
}

#[test]
fn five_thousand_pods_are_packed_at_once_and_rolled_with_few_writes() {
    let all = wanted(0..5000);
    let packed = pack(&[], &all, &like(), 100);
    assert_eq!(packed.slices.create.len(), 50);
    assert!(
        packed
            .slices
            .create
            .iter()
            .all(|slice| slice.endpoints.len() == 100)
    );
    let existing: Vec<Arc<EndpointSlice>> = packed
        .slices
        .create
        .into_iter()
        .enumerate()
        .map(|(number, mut slice)| {
            slice.metadata_mut().name = format!("web-{number:02}").into();
            Arc::new(slice)
        })
        .collect();
    // Thirty pods of one slice are replaced: one write.
    let next = wanted((0..30).map(|number| number + 6000).chain(30..5000));
    let packed = pack(&existing, &next, &like(), 100);
    check(&packed, &next, 100);
    assert_eq!(packed.slices.update.len(), 1);
    assert_eq!(packed.slices.create.len() + packed.slices.delete.len(), 0);
}

/// Twenty slices of ten endpoints, each written at a time of its own, the last first.
fn twenty() -> Vec<Arc<EndpointSlice>> {
    let slices = (0..20usize).map(|number| {
        let mut slice = EndpointSlice::clone(&slice(
            &format!("web-{number:02}"),
            number * 10..number * 10 + 10,
        ));
        slice.metadata_mut().resource_version = 100 - number as u64;
        Arc::new(slice)
    });
    slices.collect()
}

/// The names of the slices that are written.
fn written(packed: &Packed) -> Vec<String> {
    let changed = packed.slices.update.iter();
    changed
        .map(|changed| changed.new.metadata().name.to_string())
        .collect()
}

#[test]
fn slices_that_only_lose_endpoints_are_written_in_turn_those_first_that_were_written_longest_ago() {
    let mut existing = twenty();
    let wanted = wanted((0..200).filter(|pod| pod % 10 != 3));
    let mut turns = Vec::new();
    for turn in 0..5 {
        let packed = pack(&existing, &wanted, &like(), 10);
        let names = written(&packed);
        assert_eq!(packed.removed, names.len());
        assert_eq!(packed.waiting, 20 - turns.len() - names.len());
        for slice in &mut existing {
            let changes = packed.slices.update.iter();
            if let Some(changed) = changes.into_iter().find(|one| Arc::ptr_eq(&one.old, slice)) {
                let mut new = changed.new.clone();
                new.metadata_mut().resource_version = 200 + turn;
                *slice = Arc::new(new);
            }
        }
        turns.extend(names);
    }
    // Each turn in the order of names.
    let last_first = (0..20usize).rev().collect::<Vec<_>>();
    let expected: Vec<String> = last_first
        .chunks(packing::IN_TURN)
        .flat_map(|turn| turn.iter().rev())
        .map(|number| format!("web-{number:02}"))
        .collect();
    assert_eq!(turns, expected);
    let packed = pack(&existing, &wanted, &like(), 10);
    check(&packed, &wanted, 10);
    assert!(!packed.slices.are_changed() && packed.waiting == 0);
}

#[test]
fn endpoints_that_become_ready_do_not_wait_for_a_turn() {
    let mut existing = twenty();
    let mut slice = EndpointSlice::clone(&existing[0]);
    slice.endpoints[5].conditions.as_mut().unwrap().ready = Some(false);
    existing[0] = Arc::new(slice);
    // All lose one; in the first one becomes ready, and one is new.
    let wanted = wanted((0..200).filter(|pod| pod % 10 != 3).chain([300]));
    let packed = pack(&existing, &wanted, &like(), 10);
    assert_eq!(written(&packed).len(), 1 + packing::IN_TURN);
    assert_eq!(
        packed.slices.update[0].new.endpoints[4]
            .conditions
            .unwrap()
            .ready,
        Some(true)
    );
    assert_eq!((packed.added, packed.waiting), (1, 19 - packing::IN_TURN));
    assert!(
        packed.slices.update[0]
            .new
            .endpoints
            .iter()
            .any(|one| pod_of(one) == "web-300")
    );
}

#[test]
fn a_slice_that_waits_takes_up_what_is_new_before_one_that_is_as_it_should_be() {
    let mut existing = twenty();
    existing.push(slice("web-20", 200..205));
    // The ones whose turn it is are full again with what they get; the rest fits where two are lost.
    let lost = |pod: &usize| *pod < 200 && matches!(pod % 10, 3 | 4);
    let fresh = 300..300 + 2 * packing::IN_TURN + 2;
    let wanted = wanted((0..205).filter(|pod| !lost(pod)).chain(fresh));
    let packed = pack(&existing, &wanted, &like(), 10);
    assert_eq!(written(&packed).len(), packing::IN_TURN + 1);
    assert!(packed.slices.create.is_empty());
    assert!(!written(&packed).contains(&"web-20".to_owned()));
    assert_eq!(packed.waiting, 20 - packing::IN_TURN - 1);
}

#[test]
fn no_pod_is_in_two_slices_while_one_waits() {
    let existing = twenty();
    // All lose one, and a pod of the last slice, which was written longest ago, and one of the first have
    // other addresses.
    let mut wanted = wanted((0..200).filter(|pod| pod % 10 != 3));
    for moved in ["web-1", "web-195"] {
        let one = wanted.iter_mut().find(|one| pod_of(one) == moved).unwrap();
        one.addresses = vec![format!("10.99.0.{}", moved.len())];
    }
    let packed = pack(&existing, &wanted, &like(), 10);
    assert!(packed.waiting > 0);
    for pod in ["web-1", "web-195"] {
        let held = packed.slices.endpoints().filter(|one| pod_of(one) == pod);
        assert_eq!(held.count(), 1, "{pod}");
    }
}

#[test]
fn the_flag_bounds_slices_and_rows_of_them_have_other_names() {
    let mut world = cluster(service("web").families(&["IPv4"]), 7)
        .flag("max-endpoints-per-slice", FlagValue::Int(3));
    run(&mut world);
    assert_eq!(sizes(&world), [3, 3, 1]);
    let names: BTreeSet<String> = slices(&world)
        .iter()
        .map(|slice| name(slice).to_owned())
        .collect();
    assert_eq!(names.len(), 3);
    world.put(backend(7));
    world.put(backend(8));
    let plans = run(&mut world);
    assert_eq!(sizes(&world), [3, 3, 3]);
    assert!(
        plans
            .iter()
            .flat_map(Plan::verbs)
            .all(|verb| verb.starts_with("patch "))
    );
    world.put(backend(9));
    run(&mut world);
    assert_eq!(sizes(&world), [3, 3, 3, 1]);
}
