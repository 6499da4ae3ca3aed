//! What a controller reconciles.

use std::fmt;

use kubernetes_proto::{Object, Str, meta::ObjectMeta};
use serde::{Deserialize, Serialize};

/// One key of a controller: an object by namespace and name, a namespace, or one fixed name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Key {
    /// Empty for what is cluster-scoped.
    pub namespace: Str,
    /// The object's name.
    pub name: Str,
}

impl Key {
    /// The key of an object in a namespace.
    pub fn new(namespace: impl Into<Str>, name: impl Into<Str>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    /// The key of a cluster-scoped object.
    pub fn cluster(name: impl Into<Str>) -> Self {
        Self::new("", name)
    }

    /// The key of the object that this metadata belongs to.
    pub fn of_meta(meta: &ObjectMeta) -> Self {
        Self {
            namespace: meta.namespace.clone(),
            name: meta.name.clone(),
        }
    }

    /// An object's key.
    pub fn of<T: Object>(object: &T) -> Self {
        Self::of_meta(object.metadata())
    }

    /// A key of another kind in a controller whose other keys are cluster-scoped objects: the kind takes
    /// the place of the namespace, so the key is placed and shown as `kind/name`.
    pub fn composite(kind: &'static str, name: impl Into<Str>) -> Self {
        Self::new(Str::interned(kind), name)
    }

    /// The name of a key that [`Key::composite`] made with this kind; `None` for any other key.
    pub fn of_kind(&self, kind: &str) -> Option<&Str> {
        (self.namespace == *kind).then_some(&self.name)
    }

    /// A key of another kind in a controller of namespaced objects: the kind precedes the name, as
    /// `kind:name`, which no such object is named. The namespace stays, and with it the placement by
    /// namespace.
    pub fn within(namespace: impl Into<Str>, kind: &'static str, name: &str) -> Self {
        Self::new(namespace, format!("{kind}:{name}"))
    }

    /// The key of the object of a key that [`Key::within`] made with this kind; `None` for any other key.
    pub fn within_kind(&self, kind: &str) -> Option<Self> {
        let name = self.name.strip_prefix(kind)?.strip_prefix(':')?;
        Some(Self::new(self.namespace.clone(), name))
    }

    /// `namespace/name`, or the name alone; the inverse of `Display`.
    pub fn parse(text: &str) -> Self {
        match text.split_once('/') {
            Some((namespace, name)) => Self::new(namespace, name),
            None => Self::cluster(text),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            f.pad(&self.name)
        } else {
            write!(f, "{}/{}", self.namespace, self.name)
        }
    }
}
