//! What comes from the network may be anything: it decodes or it does not, but nothing panics.

use proptest::prelude::*;
use prost::{Message as _, bytes::Buf as _};

use crate::{
    MAGIC, Object, Resource, Shared, apps, batch, core, envelope,
    meta::{Entry, ObjectMeta, OwnerReference, Time},
};

fn resources() -> [&'static Resource; 7] {
    [
        core::Pod::resource(),
        core::Namespace::resource(),
        core::ServiceAccount::resource(),
        core::ConfigMap::resource(),
        apps::Deployment::resource(),
        apps::ReplicaSet::resource(),
        batch::Job::resource(),
    ]
}

fn read_as_everything(bytes: &[u8]) {
    for resource in resources() {
        if let Ok(object) = resource.read(bytes) {
            // What decodes can be written and read again.
            let again = resource.read(&object.encode()).unwrap();
            assert_eq!(again.metadata(), object.metadata());
            let _ = (object.to_json(), object.approximate_bytes());
        }
    }
    let _ = envelope::open(bytes);
    let _ = envelope::open(&[MAGIC.as_slice(), bytes].concat());
    let _ = envelope::watch_event(bytes);
    let _ = envelope::list(bytes);
    let _ = envelope::glimpse(bytes);
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z./-]{0,12}", "\\PC{0,200}"]
}

fn entries() -> impl Strategy<Value = Vec<Entry>> {
    prop::collection::vec(
        (text(), text()).prop_map(|(key, value)| Entry {
            key: key.into(),
            value: value.into(),
        }),
        0..5,
    )
}

fn time() -> impl Strategy<Value = Option<Time>> {
    prop::option::of(
        (any::<i64>(), any::<i32>()).prop_map(|(seconds, nanos)| Time { seconds, nanos }),
    )
}

prop_compose! {
    fn owner()(
        api_version in text(), kind in text(), name in text(), uid in text(),
        controller in any::<Option<bool>>(), block_owner_deletion in any::<Option<bool>>(),
    ) -> Shared<OwnerReference> {
        Shared::from(OwnerReference {
            api_version: api_version.into(), kind: kind.into(), name: name.into(), uid: uid.into(),
            controller, block_owner_deletion,
        })
    }
}

prop_compose! {
    fn metadata()(
        texts in prop::array::uniform4(text()),
        (resource_version, generation, deletion_grace_period_seconds)
            in (any::<u64>(), any::<i64>(), any::<Option<i64>>()),
        (creation_timestamp, deletion_timestamp) in (time(), time()),
        (labels, annotations) in (entries(), entries()),
        owner_references in prop::collection::vec(owner(), 0..3),
        finalizers in prop::collection::vec(text(), 0..3),
    ) -> ObjectMeta {
        let [name, generate_name, namespace, uid] = texts.map(Into::into);
        ObjectMeta {
            name, generate_name, namespace, uid, resource_version, generation, creation_timestamp,
            deletion_timestamp, deletion_grace_period_seconds, labels, annotations, owner_references,
            finalizers: finalizers.into_iter().map(Into::into).collect(),
        }
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        read_as_everything(&bytes);
    }

    #[test]
    fn a_pod_with_a_few_bytes_changed_or_cut_off_does_no_harm(
        meta in metadata(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut pod = core::Pod { metadata: Some(meta), ..core::Pod::default() };
        pod.status.get_or_insert_default().conditions.push(core::PodCondition {
            r#type: "Ready".into(), last_transition_time: Some(Time::default()), ..Default::default()
        }.into());
        let mut bytes = pod.encode_to_vec();
        for (place, byte) in changes {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        read_as_everything(&bytes);
        bytes.truncate(cut.index(bytes.len() + 1));
        read_as_everything(&bytes);
    }

    /// Also where the bytes lie in two pieces, so that a text may begin in one and end in the other.
    #[test]
    fn metadata_comes_back_as_it_was_sent(meta in metadata(), cut in any::<prop::sample::Index>()) {
        let bytes = meta.encode_to_vec();
        prop_assert_eq!(bytes.len(), meta.encoded_len());
        prop_assert_eq!(&ObjectMeta::decode(bytes.as_slice()).unwrap(), &meta);
        let (head, tail) = bytes.split_at(cut.index(bytes.len() + 1));
        prop_assert_eq!(&ObjectMeta::decode(head.chain(tail)).unwrap(), &meta);
    }
}
