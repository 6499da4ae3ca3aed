//! Texts that are not UTF-8: an object with one is read like any other.

use prost::Message as _;

use crate::{
    Object, apps, core, envelope, kinds, lossy,
    meta::{Entry, ObjectMeta, PartialObjectMetadata},
    metadata_only,
};

/// A placeholder for bytes that are not UTF-8.
const MARK: &str = "<??>";

/// The same message with bytes that are no text in place of the marks.
fn spoilt(mut bytes: Vec<u8>) -> Vec<u8> {
    let mark = MARK.as_bytes();
    let places: Vec<usize> = bytes
        .windows(mark.len())
        .enumerate()
        .filter(|(_, window)| *window == mark)
        .map(|(place, _)| place)
        .collect();
    assert!(!places.is_empty());
    for place in places {
        bytes[place..place + mark.len()].copy_from_slice(&[b'a', 0xff, 0xe2, 0x82]);
    }
    bytes
}

/// Each byte that is none is one character, as in Go's JSON.
const READ: &str = "a\u{fffd}\u{fffd}\u{fffd}";

fn meta() -> ObjectMeta {
    ObjectMeta {
        name: "web".into(),
        namespace: "shop".into(),
        uid: "u-1".into(),
        resource_version: 7,
        annotations: vec![
            Entry {
                key: "bad".into(),
                value: format!("{MARK}, {}", "long ".repeat(60)).as_str().into(),
            },
            Entry {
                key: "good".into(),
                value: "é".into(),
            },
        ],
        ..ObjectMeta::default()
    }
}

#[test]
fn an_object_of_every_kind_with_an_annotation_that_is_no_text_is_read() {
    let body = PartialObjectMetadata {
        metadata: Some(meta()),
    };
    let bytes = spoilt(body.encode_to_vec());
    let partial = metadata_only("example.com", "v1", "Gadget", "gadgets", true).unwrap();
    for resource in kinds().into_iter().chain([partial]) {
        let object = resource
            .read(&bytes)
            .unwrap_or_else(|error| panic!("{resource:?}: {error}"));
        let read = object.metadata();
        assert_eq!((&*read.name, read.resource_version), ("web", 7));
        if !resource.metadata_only {
            assert!(read.annotation("bad").unwrap().starts_with(READ));
            assert_eq!(read.annotation("good"), Some("é"));
        }
    }
    assert_eq!(PartialObjectMetadata::read(&bytes).unwrap().name, "web");
}

#[test]
fn texts_of_any_depth_are_read_and_what_is_carried_as_bytes_stays_as_it_came() {
    let spec = spoilt(MARK.as_bytes().to_vec());
    let deployment = apps::Deployment {
        metadata: Some(meta()),
        spec: Some(apps::DeploymentSpec {
            replicas: Some(300),
            template: Some(core::PodTemplateSpec {
                metadata: Some(meta()),
                spec: spec.clone(),
            }),
            ..Default::default()
        }),
        ..Default::default()
    };
    let object = apps::Deployment::resource()
        .read(&spoilt(deployment.encode_to_vec()))
        .unwrap();
    let read: &apps::Deployment = object.as_any().downcast_ref().unwrap();
    let read = read.spec.as_ref().unwrap();
    assert_eq!(read.replicas, Some(300));
    let template = read.template.as_ref().unwrap();
    let note = template.metadata.as_ref().unwrap().annotation("bad");
    assert!(note.unwrap().starts_with(READ));
    assert_eq!(template.spec, spec);

    let pod = core::Pod {
        metadata: Some(ObjectMeta {
            annotations: Vec::new(),
            ..meta()
        }),
        status: Some(core::PodStatus {
            reason: MARK.into(),
            ..Default::default()
        }),
        ..Default::default()
    };
    let pod = spoilt(pod.encode_to_vec());
    let object = core::Pod::resource().read(&pod).unwrap();
    assert_eq!(object.to_json()["status"]["reason"], READ);
}

#[test]
fn other_malformed_bytes_are_refused_as_before() {
    let mut bytes = spoilt(
        PartialObjectMetadata {
            metadata: Some(meta()),
        }
        .encode_to_vec(),
    );
    // A status that is a number.
    bytes.extend_from_slice(&[0x18, 1]);
    assert!(core::Pod::resource().read(&bytes).is_err());
    assert_eq!(envelope::glimpse(&bytes).name, "web");
    bytes.truncate(20);
    assert!(core::Pod::resource().read(&bytes).is_err());
}

#[test]
fn every_kind_has_a_table_of_its_texts() {
    for resource in kinds() {
        let name = lossy::of_kind(resource.kind);
        assert!(
            name.starts_with(".k8s.") && name.ends_with(resource.kind),
            "{resource:?}: {name:?}"
        );
    }
}
