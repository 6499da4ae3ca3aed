mod containers;

use kubernetes_proto::core::{Toleration, Volume};
use prost::Message;
use serde_json::json;

use super::{
    fields, placement,
    volumes::{self, ClaimVolume},
};

/// A spec with a field that no build knows (99), a text (restartPolicy, 3) and a number
/// (terminationGracePeriodSeconds, 4).
fn spec() -> Vec<u8> {
    let mut spec = Vec::new();
    fields::put(&mut spec, 99, b"unheard of");
    fields::put(&mut spec, 3, b"Always");
    spec.extend_from_slice(&[4 << 3, 30]);
    spec
}

fn volume(name: &str, more: &[u8]) -> Vec<u8> {
    let mut volume = Vec::new();
    fields::put(&mut volume, 1, name.as_bytes());
    volume.extend_from_slice(more);
    let mut field = Vec::new();
    fields::put(&mut field, 1, &volume);
    field
}

fn numbers(spec: &[u8]) -> Vec<u32> {
    fields::of(spec)
        .unwrap()
        .iter()
        .map(|field| field.number)
        .collect()
}

#[test]
fn an_identity_is_set_once_and_all_else_stays_byte_for_byte() {
    let once = volumes::with_identity(&spec(), "web-0", "web").unwrap();
    assert!(once.starts_with(&spec()));
    assert_eq!(numbers(&once), [99, 3, 4, 16, 17]);
    assert_eq!(volumes::with_identity(&once, "web-0", "web").unwrap(), once);
    let without = volumes::with_identity(&once, "web-1", "").unwrap();
    assert_eq!(numbers(&without), [99, 3, 4, 16]);
    assert!(without.ends_with(b"web-1"));
}

#[test]
fn a_claim_s_volume_takes_the_place_of_one_of_its_name() {
    let other = volume("cache", b"\x12\x02\x12\x00");
    let spec = [spec(), volume("data", b"\x12\x02\x12\x00"), other.clone()].concat();
    let claims = [ClaimVolume {
        volume: "data".into(),
        claim: "data-web-0".into(),
    }];
    let new = volumes::with_claims(&spec, &claims).unwrap();
    assert_eq!(numbers(&new), [1, 99, 3, 4, 1]);
    assert!(
        new.ends_with(&other),
        "a volume of the pod's own keeps its bytes"
    );
    let first = Volume::decode(fields::of(&new).unwrap()[0].content).unwrap();
    let source = first
        .volume_source
        .unwrap()
        .persistent_volume_claim
        .unwrap();
    assert_eq!(
        (
            first.name.as_str(),
            source.claim_name.as_str(),
            source.read_only
        ),
        ("data", "data-web-0", false)
    );
    assert_eq!(volumes::with_claims(&new, &claims).unwrap(), new);
}

#[test]
fn json_is_edited_to_the_same_effect() {
    let mut spec = json!({
        "restartPolicy": "Always",
        "subdomain": "old",
        "volumes": [{"name": "data", "emptyDir": {}}, {"name": "cache", "emptyDir": {}}]
    });
    let fields = spec.as_object_mut().unwrap();
    volumes::set_identity(fields, "web-0", "");
    let claims = [ClaimVolume {
        volume: "data".into(),
        claim: "data-web-0".into(),
    }];
    volumes::set_claims(fields, &claims);
    assert_eq!(
        spec,
        json!({
            "restartPolicy": "Always",
            "hostname": "web-0",
            "volumes": [
                {"name": "data", "persistentVolumeClaim": {"claimName": "data-web-0"}},
                {"name": "cache", "emptyDir": {}}
            ]
        })
    );
    let mut none = serde_json::Map::new();
    volumes::set_claims(&mut none, &[]);
    assert!(none.is_empty());
}

#[test]
fn a_pod_is_pinned_and_keeps_what_it_prefers() {
    let plain = placement::pinned_to(&spec(), "node-1").unwrap();
    assert!(plain.starts_with(&spec()));
    // Affinity {nodeAffinity {required {…}, preferred …}, podAffinity …}.
    let mut node_affinity = Vec::new();
    fields::put(&mut node_affinity, 1, b"\x0a\x00");
    fields::put(&mut node_affinity, 2, b"\x08\x05");
    let mut affinity = Vec::new();
    fields::put(&mut affinity, 1, &node_affinity);
    fields::put(&mut affinity, 2, b"\x0a\x00");
    let mut with = spec();
    fields::put(&mut with, 18, &affinity);
    let pinned = placement::pinned_to(&with, "node-2").unwrap();
    let affinity = fields::single(&pinned, 18).unwrap();
    assert_eq!(numbers(&affinity), [2, 1]);
    let node_affinity = fields::single(&affinity, 1).unwrap();
    assert_eq!(numbers(&node_affinity), [2, 1]);
    let read = placement::read(&pinned).unwrap().affinity.unwrap();
    let terms = read
        .node_affinity
        .unwrap()
        .required_during_scheduling_ignored_during_execution
        .unwrap()
        .node_selector_terms;
    assert_eq!(terms.len(), 1);
    assert_eq!(terms[0].match_fields[0].values, ["node-2"]);
}

#[test]
fn tolerations_are_added_or_made_to_last() {
    let exists = |key: &str, seconds: Option<i64>| Toleration {
        key: key.into(),
        operator: "Exists".into(),
        effect: "NoExecute".into(),
        toleration_seconds: seconds,
        ..Default::default()
    };
    let mut with = spec();
    fields::put(&mut with, 22, &exists("own", None).encode_to_vec());
    fields::put(&mut with, 22, &exists("lasts", Some(300)).encode_to_vec());
    let new = placement::tolerating(&with, &[exists("lasts", None), exists("new", None)]).unwrap();
    let read = placement::read(&new).unwrap().tolerations;
    assert_eq!(
        read,
        [
            exists("own", None),
            exists("lasts", None),
            exists("new", None)
        ]
    );
    assert!(new.starts_with(&spec()));
    assert_eq!(
        placement::tolerating(&new, &[exists("lasts", None), exists("new", None)]).unwrap(),
        new
    );
}

#[test]
fn a_spec_that_can_t_be_read_is_refused_in_words() {
    let table: [&[u8]; 3] = [&[0x0a], &[0x0a, 9, 1], &[0x07]];
    for bytes in table {
        let error = volumes::with_identity(bytes, "web-0", "").unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("the pod spec can't be read: "),
            "{error}"
        );
    }
}
