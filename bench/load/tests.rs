use kubernetes_proto::{Object as _, core::Pod};
use prost::Message as _;

use super::*;

#[test]
fn pods_differ_where_those_of_a_fleet_do_and_agree_in_both_encodings() {
    for number in [0, 49, 50, 19_999] {
        let bytes = pod(number);
        let decoded = Pod::decode(bytes.as_slice()).unwrap();
        let meta = decoded.metadata();
        assert!(meta.name.ends_with(&format!("-{number:05}")), "{meta:?}");
        let owner = meta.controller().unwrap();
        assert_eq!(owner.uid, owner_uid(number).as_str());
        assert!(meta.name.starts_with(&*owner.name));
        let json: serde_json::Value = serde_json::from_str(&pod_json(number)).unwrap();
        assert_eq!(json["metadata"]["name"], meta.name.as_str());
        assert_eq!(json["metadata"]["uid"], meta.uid.as_str());
        assert_eq!(
            json["metadata"]["ownerReferences"][0]["uid"],
            owner.uid.as_str()
        );
        assert_eq!(
            json["status"]["conditions"].as_array().unwrap().len(),
            decoded.status.unwrap().conditions.len()
        );
    }
}

/// Whether every field of `ours` occurs in `theirs` with the same value.
fn is_part(ours: &serde_json::Value, theirs: &serde_json::Value) -> bool {
    use serde_json::Value::{Array, Object};
    match (ours, theirs) {
        (Object(ours), Object(theirs)) => ours
            .iter()
            .all(|(key, ours)| theirs.get(key).is_some_and(|theirs| is_part(ours, theirs))),
        (Array(ours), Array(theirs)) => {
            ours.len() == theirs.len()
                && ours
                    .iter()
                    .zip(theirs)
                    .all(|(ours, theirs)| is_part(ours, theirs))
        }
        _ => ours == theirs,
    }
}

#[test]
fn the_projection_says_what_the_api_server_says_in_json() {
    // As the store keeps it: with the claims' volumes alone.
    let ours = Pod::resource().read(POD).unwrap().to_json();
    let theirs: serde_json::Value = serde_json::from_str(POD_JSON).unwrap();
    assert!(is_part(&ours, &theirs), "{ours:#} is no part of {theirs:#}");
    for field in [
        "/metadata/labels/pod-template-hash",
        "/spec/nodeName",
        "/status/conditions/4/type",
        "/status/containerStatuses/1/ready",
        "/metadata/ownerReferences/0/controller",
    ] {
        assert!(ours.pointer(field).is_some(), "{field}");
    }
}
