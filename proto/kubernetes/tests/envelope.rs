use prost::Message as _;

use crate::{
    apps,
    envelope::{self, Envelope, Glimpse, WatchEvent},
    meta::{self, NOT_COMPARABLE, ObjectMeta},
};

#[test]
fn an_envelope_returns_its_content() {
    let body = envelope::wrap("apps/v1", "Deployment", vec![1, 2, 3]);
    assert!(body.starts_with(b"k8s\0"));
    let opened = envelope::open(&body).unwrap();
    let expected = Envelope {
        api_version: "apps/v1",
        kind: "Deployment",
        raw: &[1, 2, 3],
    };
    assert_eq!(opened, expected);
    let frame = envelope::watch_frame("ADDED", body.clone());
    let event = WatchEvent {
        r#type: "ADDED",
        object: &body,
    };
    assert_eq!(envelope::watch_event(&frame).unwrap(), event);
}

#[test]
fn each_reason_why_bytes_are_no_envelope_is_named() {
    let encoded = meta::Unknown {
        content_encoding: "gzip".into(),
        ..meta::Unknown::default()
    };
    let encoded = [b"k8s\0".as_slice(), &encoded.encode_to_vec()].concat();
    let table: [(&[u8], &str); 4] = [
        (b"", "does not begin"),
        (b"{\"kind\":\"Pod\"}", "does not begin"),
        (b"k8s\0\x12\x09ab", "does not end"),
        (&encoded, "is encoded"),
    ];
    for (body, reason) in table {
        let error = envelope::open(body).unwrap_err().to_string();
        assert!(error.contains(reason), "{error} for {body:?}");
    }
}

#[test]
fn a_list_gives_its_items_in_place() {
    let list = meta::List {
        metadata: Some(meta::ListMeta {
            resource_version: "77".into(),
            r#continue: "more".into(),
            remaining_item_count: Some(2),
        }),
        items: vec![vec![1], Vec::new(), vec![2, 3]],
    };
    let bytes = list.encode_to_vec();
    let read = envelope::list(&bytes).unwrap();
    assert_eq!((read.resource_version, read.continue_token), (77, "more"));
    assert_eq!(read.items, [&[1][..], &[], &[2, 3]]);
    assert!(envelope::list(&bytes[..bytes.len() - 1]).is_err());
}

#[test]
fn the_key_of_what_does_not_decode_is_found_as_far_as_it_can_be() {
    let replica_set = apps::ReplicaSet {
        metadata: Some(ObjectMeta {
            name: "web".into(),
            namespace: "shop".into(),
            resource_version: 12,
            ..ObjectMeta::default()
        }),
        ..apps::ReplicaSet::default()
    };
    let mut bytes = replica_set.encode_to_vec();
    let expected = Glimpse {
        namespace: "shop",
        name: "web",
        resource_version: 12,
    };
    bytes.extend_from_slice(&[0x12, 200, 1]);
    assert!(
        <apps::ReplicaSet as crate::Object>::resource()
            .read(&bytes)
            .is_err()
    );
    assert_eq!(envelope::glimpse(&bytes), expected);
    assert_eq!(envelope::glimpse(&[0xff, 0xff]), Glimpse::default());
}

#[test]
fn versions_are_numbers_or_can_t_be_compared() {
    for (text, version) in [
        ("", 0),
        ("0", 0),
        ("4711", 4711),
        ("abc", NOT_COMPARABLE),
        ("-1", NOT_COMPARABLE),
    ] {
        assert_eq!(meta::parse_version(text), version, "{text:?}");
    }
}
