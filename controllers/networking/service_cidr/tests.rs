use controllers_kit::{Refusal, testing::*};
use kubernetes_proto::{
    Object,
    networking::{IpAddress, ServiceCidr, ServiceCidrSpec},
};

use super::{FINALIZER, ServiceCidrs};

const BLOCKED: &str = "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR";

pub(crate) fn service_cidr(name: &str, cidrs: &[&str]) -> ServiceCidr {
    let mut one = ServiceCidr {
        spec: Some(ServiceCidrSpec {
            cidrs: cidrs.iter().map(|&cidr| cidr.to_owned()).collect(),
        }),
        ..ServiceCidr::default()
    };
    one.metadata_mut().name = name.into();
    one
}

pub(crate) fn address(name: &str) -> IpAddress {
    let mut one = IpAddress::default();
    one.metadata_mut().name = name.into();
    one.label("ipaddress.kubernetes.io/managed-by", "ipallocator.k8s.io")
}

/// Being deleted since an instant.
fn leaving(name: &str, cidrs: &[&str], since: &str) -> ServiceCidr {
    service_cidr(name, cidrs)
        .finalizer(FINALIZER)
        .terminating(since)
}

fn start() -> World {
    World::at("12:00:00")
}

/// What is done: `verbs` of one plan.
fn verbs(world: &World) -> Vec<String> {
    world.plan::<ServiceCidrs>("servicecidrs").verbs()
}

fn ready(world: &World, name: &str) -> (String, String, String) {
    let one = world.get::<ServiceCidr>(name);
    let conditions = &one.status.as_ref().expect("it has a status").conditions;
    assert_eq!(conditions.len(), 1);
    assert_eq!(conditions[0].r#type, "Ready");
    assert!(conditions[0].last_transition_time.is_some());
    let condition = &conditions[0];
    (
        condition.status.clone(),
        condition.reason.clone(),
        condition.message.clone(),
    )
}

#[test]
fn a_service_cidr_is_held_and_then_ready() {
    let mut world = start().with(service_cidr("extra", &["10.1.0.0/24"]).finalizer("other/one"));
    assert_eq!(verbs(&world), ["patch servicecidrs/extra"]);
    world.run::<ServiceCidrs>();
    let one = world.get::<ServiceCidr>("extra");
    assert_eq!(
        Object::metadata(&*one).finalizers,
        ["other/one", FINALIZER],
        "the finalizer of another stays"
    );
    let expected = ("True", "", "Kubernetes Service CIDR is ready");
    let (status, reason, message) = ready(&world, "extra");
    assert_eq!((&*status, &*reason, &*message), expected);
    assert!(verbs(&world).is_empty(), "at rest");
}

#[test]
fn a_condition_that_says_something_else_is_set_and_an_equal_one_left_alone() {
    let mut world = start().with(service_cidr("extra", &["10.1.0.0/24"]).finalizer(FINALIZER));
    assert_eq!(verbs(&world), ["patch servicecidrs/extra/status"]);
    world.run::<ServiceCidrs>();
    let mut other = world.clone();
    other.change::<ServiceCidr>("extra", |one| {
        one.status.as_mut().unwrap().conditions[0].message = "else".to_owned();
    });
    assert_eq!(verbs(&other), ["patch servicecidrs/extra/status"]);
    let later = world.later(60);
    assert!(verbs(&later).is_empty(), "time alone changes nothing");
}

/// Upstream's tables of what may be deleted: the ranges of the one that is being deleted, those of others,
/// addresses of Services, and whether it may go.
#[test]
fn a_deleted_service_cidr_goes_when_no_address_needs_it() {
    type Case<'a> = (
        &'a str,
        &'a [&'a str],
        &'a [&'a [&'a str]],
        &'a [&'a str],
        bool,
    );
    let dual: &[&str] = &["192.168.0.0/24", "2001:db2::/64"];
    let cases: &[Case<'_>] = &[
        ("alone", dual, &[], &[], true),
        (
            "an address of each family",
            dual,
            &[],
            &["192.168.0.1", "2001:db2::1"],
            false,
        ),
        ("an IPv6 address", dual, &[], &["2001:db2::1"], false),
        (
            "addresses of elsewhere",
            dual,
            &[],
            &["192.168.1.1", "2001:db2:1::1"],
            true,
        ),
        ("the network address", dual, &[], &["192.168.0.0"], true),
        ("the broadcast address", dual, &[], &["192.168.0.255"], true),
        (
            "the last of IPv6",
            dual,
            &[],
            &["2001:db2::ffff:ffff:ffff:ffff"],
            false,
        ),
        (
            "an equal one",
            dual,
            &[dual],
            &["192.168.0.23", "2001:db2::47"],
            true,
        ),
        (
            "smaller ones that hold the addresses",
            dual,
            &[&["192.168.0.0/26"], &["2001:db2::/96"]],
            &["192.168.0.23", "2001:db2::47"],
            true,
        ),
        (
            "a smaller one that holds one of two",
            dual,
            &[&["192.168.0.0/26"]],
            &["192.168.0.23", "192.168.0.234"],
            false,
        ),
        (
            "larger ones",
            dual,
            &[&["192.168.0.0/16", "2001:db2::/60"]],
            &["192.168.0.23", "2001:db2::47"],
            true,
        ),
        (
            "a larger one of one family",
            dual,
            &[&["192.168.0.0/16"]],
            &["192.168.0.23", "2001:db2::47"],
            false,
        ),
        (
            "a smaller one whose network address it is",
            &["192.168.0.0/24"],
            &[&["192.168.0.64/26"]],
            &["192.168.0.64"],
            false,
        ),
        (
            "an equal one and a larger one",
            dual,
            &[dual, &["192.168.0.0/16", "2001:db2::/60"]],
            &["192.168.0.23", "2001:db2::47"],
            true,
        ),
        (
            "an equal and a larger one, and the network address of the smaller",
            &["192.168.0.0/24"],
            &[&["192.168.0.0/24"], &["192.168.0.0/16"]],
            &["192.168.0.0"],
            true,
        ),
        (
            "a foreign one",
            dual,
            &[&["10.0.0.0/8"]],
            &["192.168.0.1"],
            false,
        ),
    ];
    for (name, own, others, addresses, goes) in cases {
        let mut world = start().with(leaving("extra", own, "11:59:50"));
        for (number, cidrs) in others.iter().enumerate() {
            world.put(service_cidr(&format!("other-{number}"), cidrs));
        }
        for one in *addresses {
            world.put(address(one));
        }
        world.run::<ServiceCidrs>();
        assert_eq!(
            world.find::<ServiceCidr>("extra").is_none(),
            *goes,
            "{name}"
        );
        if !goes {
            let (status, reason, message) = ready(&world, "extra");
            let expected = ("False", "Terminating", BLOCKED);
            assert_eq!((&*status, &*reason, &*message), expected, "{name}");
        }
    }
}

#[test]
fn addresses_that_no_service_has_hold_nothing() {
    let mut foreign = IpAddress::default();
    foreign.metadata_mut().name = "192.168.0.1".into();
    for other in [
        foreign.clone(),
        foreign.label("ipaddress.kubernetes.io/managed-by", "me"),
    ] {
        let mut world = start()
            .with(leaving("extra", &["192.168.0.0/24"], "11:59:50"))
            .with(other);
        world.run::<ServiceCidrs>();
        assert!(world.find::<ServiceCidr>("extra").is_none());
    }
}

#[test]
fn a_deleted_service_cidr_stays_for_ten_seconds_and_is_requeued_for_then() {
    let mut world = start().with(leaving("extra", &["192.168.0.0/24"], "12:00:00"));
    let plan = world.plan::<ServiceCidrs>("servicecidrs");
    assert!(plan.is_nothing());
    assert_eq!(plan.requeue, controllers_kit::Requeue::At(at("12:00:10")));
    assert!(verbs(&world.later(9)).is_empty());
    world.settle_for(11, &[controllers_kit::Factory::of::<ServiceCidrs>()]);
    assert!(world.find::<ServiceCidr>("extra").is_none());
}

/// Being deleted, and held by somebody else alone.
fn released(name: &str, cidrs: &[&str]) -> ServiceCidr {
    service_cidr(name, cidrs)
        .finalizer("other/one")
        .terminating("11:00:00")
}

#[test]
fn a_deleted_service_cidr_without_our_finalizer_only_reports_what_needs_it() {
    let world = start().with(released("extra", &["192.168.0.0/24"]));
    assert!(world.plan::<ServiceCidrs>("servicecidrs").is_nothing());
    let mut world = world.with(address("192.168.0.7"));
    world.run::<ServiceCidrs>();
    let (status, reason, message) = ready(&world, "extra");
    let expected = ("False", "Terminating", BLOCKED);
    assert_eq!((&*status, &*reason, &*message), expected);
    assert_eq!(
        Object::metadata(&*world.get::<ServiceCidr>("extra")).finalizers,
        ["other/one"]
    );
}

/// Upstream lets it go, and the addresses are nobody's once the foreign finalizer is gone.
#[test]
fn a_service_cidr_that_was_released_already_is_no_parent_of_a_deleted_one() {
    let mut world = start()
        .with(released("a", &["192.168.0.0/16"]))
        .with(leaving("b", &["192.168.0.0/24"], "11:59:00"))
        .with(address("192.168.0.7"));
    world.run::<ServiceCidrs>();
    assert_eq!(ready(&world, "b").0, "False");
    world.delete::<IpAddress>("192.168.0.7");
    world.run::<ServiceCidrs>();
    assert!(world.find::<ServiceCidr>("b").is_none());
}

/// Upstream lets both go: each sees the other as its parent.
#[test]
fn of_two_equal_ranges_that_are_deleted_together_one_stays_for_the_addresses() {
    let mut world = start()
        .with(leaving("a", &["192.168.0.0/24"], "11:59:00"))
        .with(leaving("b", &["192.168.0.0/24"], "11:59:00"))
        .with(address("192.168.0.7"));
    world.run::<ServiceCidrs>();
    assert!(world.find::<ServiceCidr>("a").is_none());
    assert_eq!(ready(&world, "b").0, "False");
    world.delete::<IpAddress>("192.168.0.7");
    world.run::<ServiceCidrs>();
    assert!(world.find::<ServiceCidr>("b").is_none());
}

#[test]
fn a_change_of_a_blocking_object_wakes_the_deletion() {
    let mut world = start()
        .with(leaving("extra", &["192.168.0.0/24"], "11:59:00"))
        .with(address("192.168.0.7"));
    world.run::<ServiceCidrs>();
    assert_eq!(ready(&world, "extra").0, "False");
    let factories = [controllers_kit::Factory::of::<ServiceCidrs>()];
    world.put(service_cidr("wider", &["192.168.0.0/16"]));
    world.settle_for(20, &factories);
    assert!(world.find::<ServiceCidr>("extra").is_none());
}

#[test]
fn a_finalizer_is_removed_only_on_proven_caches() {
    let world = start().with(leaving("extra", &["192.168.0.0/24"], "11:59:00"));
    let plan = world.plan::<ServiceCidrs>("servicecidrs");
    let sets: Vec<_> = plan
        .counted
        .iter()
        .map(|set| (set.resource.plural, set.since))
        .collect();
    let version = world.version();
    assert_eq!(sets, [("ipaddresses", version), ("servicecidrs", version)]);
    // Nothing is asked for where nothing goes.
    let calm = start().with(service_cidr("extra", &["192.168.0.0/24"]));
    assert!(calm.plan::<ServiceCidrs>("servicecidrs").counted.is_empty());
}

#[test]
fn a_finalizer_stays_while_it_is_not_known_what_there_is() {
    use controllers_kit::{Answer, Answers, Controller, Flags, Query, Snapshot};
    let world = start().with(leaving("extra", &["192.168.0.0/24"], "11:59:00"));
    let failed = Answer::Failed("no answer".to_owned());
    let answers: Answers = super::barriers()
        .map(|resource| (Query::Present { resource }, failed.clone()))
        .into();
    let seen = Snapshot::new(&world, &answers, world.now());
    let planned = ServiceCidrs::new(&Flags::default()).plan(&super::only_key(), &seen, &mut ());
    let expected = "ipaddresses.networking.k8s.io could not be asked: no answer";
    assert_eq!(planned, Err(Refusal::Retry(expected.to_owned())));
}
