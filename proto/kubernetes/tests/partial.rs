//! Objects that are known by their metadata alone, and the list of those that are not.

use prost::Message as _;

use crate::{
    kinds,
    meta::{ObjectMeta, PartialObjectMetadata},
    metadata_only,
};

#[test]
fn every_projection_is_listed() {
    let declared = include_str!("../lib.rs")
        .lines()
        .filter(|line| line.starts_with("object!("))
        .count();
    assert_eq!(kinds().len(), declared, "kinds() lists every object! once");
}

#[test]
fn a_resource_is_made_once_and_reads_metadata_without_labels_and_annotations() {
    let made = || metadata_only("example.com", "v1", "Gadget", "gadgets", true).unwrap();
    assert!(std::ptr::eq(made(), made()));
    let other = metadata_only("example.com", "v2", "Gadget", "gadgets", true).unwrap();
    assert!(!std::ptr::eq(made(), other));

    let meta: ObjectMeta = serde_json::from_value(serde_json::json!({
        "name": "one", "namespace": "shop", "uid": "u-1", "resourceVersion": "7",
        "labels": {"a": "b"}, "annotations": {"c": "d"}, "finalizers": ["keep"],
        "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u-0"}],
    }))
    .unwrap();
    let body = PartialObjectMetadata {
        metadata: Some(meta),
    };
    let object = made().read(&body.encode_to_vec()).unwrap();
    assert_eq!(object.resource().id(), "gadgets.example.com");
    let read = object.metadata();
    assert_eq!(
        (&*read.name, &*read.namespace, &*read.uid),
        ("one", "shop", "u-1")
    );
    assert_eq!(read.resource_version, 7);
    assert!(read.labels.is_empty() && read.annotations.is_empty());
    assert_eq!(&*read.owner_references[0].uid, "u-0");
    let again = made().read_json(object.to_json()).unwrap();
    assert_eq!(again.metadata(), object.metadata());
}

#[test]
fn a_selection_is_a_resource_of_its_own() {
    use crate::{Object as _, core::ServiceAccountToken};
    let some = ServiceAccountToken::resource();
    let all = metadata_only("", "v1", "Secret", "secrets", true).unwrap();
    assert_ne!(some, all);
    assert_eq!(
        (some.id().as_str(), some.type_id().as_str()),
        ("secrets:service-account-token", "secrets")
    );
    assert!(some.is(&some.id()) && all.is(&all.id()));
    assert!(!some.is(&all.id()) && !all.is(&some.id()));
    for resource in crate::selections() {
        assert!(resource.selection.is_some() && !kinds().contains(&resource));
    }
}
