//! Objects of which only the metadata is known: what the API shows but no projection exists for.

use std::{
    any::Any,
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use prost::Message as _;

use crate::{
    AnyObject, DynObject, Resource,
    meta::{ObjectMeta, PartialObjectMetadata},
};

/// Maximum number of resources without a projection that one process knows. A cluster has a few hundred; a
/// client that creates and deletes custom resources forever would otherwise fill the memory.
pub const RESOURCES_MAX: usize = 10_000;

/// An object's metadata, without labels and annotations: nobody who reads objects in this way needs them,
/// and they are the largest part.
#[derive(Clone, Debug, PartialEq)]
pub struct Partial {
    resource: &'static Resource,
    metadata: ObjectMeta,
}

impl Partial {
    /// Decodes an object of a resource that [`metadata_only`] has created.
    pub fn new(resource: &'static Resource, mut metadata: ObjectMeta) -> Self {
        metadata.labels = Vec::new();
        metadata.annotations = Vec::new();
        metadata.trim();
        Self { resource, metadata }
    }
}

impl DynObject for Partial {
    fn resource(&self) -> &'static Resource {
        self.resource
    }
    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn encode(&self) -> Vec<u8> {
        PartialObjectMetadata {
            metadata: Some(self.metadata.clone()),
        }
        .encode_to_vec()
    }
    fn to_json(&self) -> serde_json::Value {
        let metadata = serde_json::to_value(&self.metadata).expect("metadata has only string keys");
        serde_json::json!({ "metadata": metadata })
    }
    fn approximate_bytes(&self) -> usize {
        size_of::<Self>() + 2 * self.metadata.encoded_len()
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn into_any(self: Arc<Self>) -> Arc<dyn Any + Send + Sync> {
        self
    }
}

type Identity = (String, String, String, String, bool);

/// The resource by group, version, kind and plural, read as metadata alone; created once for each. `None`
/// beyond [`RESOURCES_MAX`].
pub fn metadata_only(
    group: &str,
    version: &str,
    kind: &str,
    plural: &str,
    namespaced: bool,
) -> Option<&'static Resource> {
    static KNOWN: Mutex<Option<HashMap<Identity, &'static Resource>>> = Mutex::new(None);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let known = known.get_or_insert_default();
    let identity = (
        group.to_owned(),
        version.to_owned(),
        kind.to_owned(),
        plural.to_owned(),
        namespaced,
    );
    if let Some(resource) = known.get(&identity) {
        return Some(resource);
    }
    if known.len() >= RESOURCES_MAX {
        return None;
    }
    let text = |text: &str| -> &'static str { Box::leak(text.to_owned().into_boxed_str()) };
    let resource: &'static Resource = Box::leak(Box::new(Resource {
        group: text(group),
        version: text(version),
        kind: text(kind),
        plural: text(plural),
        namespaced,
        metadata_only: true,
        selection: None,
        decode: |resource, bytes| {
            let object = PartialObjectMetadata::decode(bytes)?;
            let metadata = object.metadata.unwrap_or_default();
            Ok(Arc::new(Partial::new(resource, metadata)) as AnyObject)
        },
        from_json: |resource, mut json| {
            let metadata: ObjectMeta = serde_json::from_value(json["metadata"].take())?;
            Ok(Arc::new(Partial::new(resource, metadata)) as AnyObject)
        },
    }));
    known.insert(identity, resource);
    Some(resource)
}
