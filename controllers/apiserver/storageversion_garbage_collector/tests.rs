use std::sync::Arc;

use controllers_kit::{
    Answer, AnyObject, Controller as _, FlagValue, Flags, Only, Query, Refusal, Runs, Verb,
    testing::*,
};
use kubernetes_proto::{
    Object,
    apiserverinternal::{ServerStorageVersion, StorageVersion, StorageVersionCondition},
    coordination::Lease,
};
use serde_json::json;

use super::{API_GATE, IDENTITY, IDENTITY_GATE, StorageVersionGarbageCollector};

/// A StorageVersion as these servers report it, each with the version in which it encodes.
pub(crate) fn storage_version(name: &str, servers: &[(&str, &str)]) -> StorageVersion {
    let mut version = StorageVersion::default();
    let meta = version.metadata_mut();
    meta.name = name.into();
    meta.uid = format!("uid-storageversions-{name}").as_str().into();
    meta.generation = 3;
    let status = version.status.get_or_insert_default();
    for (id, encoding) in servers {
        status.storage_versions.push(ServerStorageVersion {
            api_server_id: (*id).to_owned(),
            encoding_version: (*encoding).to_owned(),
            decodable_versions: vec![(*encoding).to_owned()],
            served_versions: vec![(*encoding).to_owned()],
        });
    }
    version
}

/// The Lease of an API server's identity.
pub(crate) fn identity(id: &str) -> Lease {
    bare(id).label(IDENTITY.0, IDENTITY.1)
}

fn bare(id: &str) -> Lease {
    let mut lease = Lease::default();
    lease.metadata_mut().name = id.into();
    lease.in_namespace("kube-system")
}

/// With the condition that the servers agree or not, since an hour.
fn agreeing(mut version: StorageVersion, common: Option<&str>, status: &str) -> StorageVersion {
    let held = version.status.get_or_insert_default();
    held.common_encoding_version = common.map(str::to_owned);
    held.conditions = vec![StorageVersionCondition {
        r#type: "AllEncodingVersionsEqual".to_owned(),
        status: status.to_owned(),
        observed_generation: 1,
        last_transition_time: Some(at("11:00:00").into()),
        reason: "Before".to_owned(),
        message: "before".to_owned(),
    }];
    version
}

fn world() -> World {
    World::at("12:00:00").with(namespace("kube-system"))
}

#[test]
#[expect(clippy::type_complexity, reason = "a table of cases")]
fn servers_whose_identity_has_gone_leave_a_storage_version() {
    const NAME: &str = "apps.deployments";
    let (one, two, three) = (("one", "v1"), ("two", "v1"), ("three", "v2"));
    let table: [(&str, &[(&str, &str)], &[Lease], Option<&[&str]>); 7] = [
        (
            "all are there",
            &[one, two],
            &[identity("one"), identity("two")],
            Some(&["one", "two"]),
        ),
        (
            "one of two has gone",
            &[one, two],
            &[identity("two")],
            Some(&["two"]),
        ),
        (
            "two of three have gone",
            &[one, two, three],
            &[identity("three")],
            Some(&["three"]),
        ),
        ("the last has gone", &[one], &[], None),
        ("all have gone", &[one, two], &[], None),
        (
            "a Lease without the label is no identity",
            &[one, two],
            &[bare("one"), identity("two")],
            Some(&["two"]),
        ),
        ("nobody has reported yet", &[], &[], Some(&[])),
    ];
    for (case, servers, leases, expected) in table {
        let mut world = world().with(storage_version(NAME, servers));
        for lease in leases {
            world.put(lease.clone());
        }
        world.run::<StorageVersionGarbageCollector>();
        let left = world.find::<StorageVersion>(NAME).map(|version| {
            let status = version.status.clone().unwrap_or_default();
            let ids = status.storage_versions.into_iter();
            ids.map(|entry| entry.api_server_id).collect::<Vec<_>>()
        });
        let expected = expected.map(|ids| ids.iter().map(ToString::to_string).collect());
        assert_eq!(left, expected, "{case}");
    }
}

#[test]
fn the_common_version_and_its_condition_follow_from_the_servers_that_are_left() {
    const SET: (&str, &str) = ("CommonEncodingVersionSet", "Common encoding version set");
    const UNSET: (&str, &str) = (
        "CommonEncodingVersionUnset",
        "Common encoding version unset",
    );
    // Before, the encodings that are left; after: common version, status, since.
    let table = [
        (
            (None, "False"),
            &["v2", "v2"][..],
            (Some("v2"), "True", "12:00:00", SET),
        ),
        (
            (Some("v2"), "True"),
            &["v2"],
            (Some("v2"), "True", "11:00:00", SET),
        ),
        // Another common version is a transition though the status is the same.
        (
            (Some("v1"), "True"),
            &["v2"],
            (Some("v2"), "True", "12:00:00", SET),
        ),
        (
            (None, "False"),
            &["v1", "v2"],
            (None, "False", "11:00:00", UNSET),
        ),
        (
            (Some("v1"), "True"),
            &["v1", "v2"],
            (None, "False", "12:00:00", UNSET),
        ),
    ];
    for ((common, held), left, (wanted, status, since, (reason, message))) in table {
        let names = ["a", "b"];
        let mut servers = vec![("gone", "v0")];
        servers.extend(names.into_iter().zip(left.iter().copied()));
        let mut world = world()
            .with(agreeing(storage_version("x", &servers), common, held))
            .with(identity("a"))
            .with(identity("b"));
        world.run::<StorageVersionGarbageCollector>();
        let after = world.get::<StorageVersion>("x").status.clone().unwrap();
        let case = format!("{common:?} {held} {left:?}");
        assert_eq!(after.common_encoding_version.as_deref(), wanted, "{case}");
        let [condition] = &after.conditions[..] else {
            panic!("{case}: {:?}", after.conditions);
        };
        assert_eq!(
            (&*condition.status, &*condition.reason, &*condition.message),
            (status, reason, message),
            "{case}"
        );
        assert_eq!(condition.observed_generation, 3, "{case}");
        assert_eq!(
            condition.last_transition_time,
            Some(at(since).into()),
            "{case}"
        );
    }
}

#[test]
fn a_storage_version_without_condition_gets_one() {
    let mut world = world()
        .with(storage_version("x", &[("gone", "v1"), ("a", "v1")]))
        .with(identity("a"));
    world.run::<StorageVersionGarbageCollector>();
    let status = world.get::<StorageVersion>("x").status.clone().unwrap();
    assert_eq!(status.conditions.len(), 1);
    assert_eq!(status.common_encoding_version.as_deref(), Some("v1"));
}

#[test]
fn a_storage_version_is_deleted_only_as_it_was_seen() {
    let plan = world()
        .with(storage_version("x", &[("gone", "v1")]))
        .plan::<StorageVersionGarbageCollector>("x");
    let [action] = plan.actions().collect::<Vec<_>>()[..] else {
        panic!("{:?}", plan.verbs());
    };
    assert!(matches!(
        action.verb,
        Verb::Delete {
            only: Only::ThisVersion,
            ..
        }
    ));
}

#[test]
fn a_lease_that_the_cache_lacks_is_read_live_and_one_that_cant_be_read_keeps_its_server() {
    let stale = || world().with(storage_version("x", &[("one", "v1")]));
    let present = |_: &Query| {
        let lease = json!({"metadata": {"labels": {IDENTITY.0: IDENTITY.1}}});
        Some(Answer::Object(Arc::new(lease)))
    };
    let plan = stale()
        .answering(present)
        .plan::<StorageVersionGarbageCollector>("x");
    assert!(plan.is_nothing(), "{:?}", plan.verbs());
    let failing = |_: &Query| Some(Answer::Failed("the server is on fire".to_owned()));
    let refusal = stale()
        .answering(failing)
        .refusal::<StorageVersionGarbageCollector>("x");
    let why = "the Lease kube-system/one can't be read: the server is on fire";
    assert_eq!(refusal, Refusal::Retry(why.to_owned()));
}

#[test]
fn a_lease_wakes_the_storage_versions_that_name_it_when_it_ceases_to_be_an_identity() {
    let any = |lease: Lease| Arc::new(lease) as AnyObject;
    let world = world()
        .with(storage_version("a", &[("one", "v1"), ("two", "v1")]))
        .with(storage_version("b", &[("two", "v1")]));
    let woken = |old: Option<Lease>, new: Option<Lease>| {
        let (old, new) = (old.map(any), new.map(any));
        world.woken::<StorageVersionGarbageCollector>(old.as_ref(), new.as_ref())
    };
    let one = || Some(identity("one"));
    assert_eq!(woken(one(), None), ["a"]);
    assert_eq!(woken(Some(identity("two")), None), ["a", "b"]);
    assert_eq!(woken(one(), Some(bare("one"))), ["a"]);
    assert_eq!(woken(one(), one()), [""; 0], "a renewal");
    assert_eq!(woken(None, one()), [""; 0], "a new server");
    assert_eq!(woken(Some(bare("one")), None), [""; 0], "no identity");
    let elsewhere = identity("one").in_namespace("default");
    assert_eq!(
        woken(Some(elsewhere), None),
        [""; 0],
        "of another namespace"
    );
}

#[test]
fn the_controller_runs_where_both_gates_are_on() {
    let descriptor = StorageVersionGarbageCollector::describe();
    for (identity, api, runs) in [
        (true, true, true),
        (true, false, false),
        (false, true, false),
        (false, false, false),
    ] {
        let mut flags = Flags::defaults([&descriptor]);
        flags.set(IDENTITY_GATE, FlagValue::Bool(identity));
        flags.set(API_GATE, FlagValue::Bool(api));
        assert_eq!((descriptor.runs)(&flags) == Runs::Yes, runs);
    }
    let defaults = Flags::defaults([&descriptor]);
    let off = "the feature gate StorageVersionAPI is off";
    assert_eq!((descriptor.runs)(&defaults), Runs::No(off));
}
