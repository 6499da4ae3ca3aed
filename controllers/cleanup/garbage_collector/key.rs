//! The key of an object: its namespace, and `resource:uid:name`. The uid spreads the work evenly, and sets an
//! object apart from a later one of the same name; resource and name are what it is found by.

use controllers_kit::{AnyObject, DynObject, Entry, Key, Reader, Str};

/// An object's key.
pub(super) fn of(object: &dyn DynObject) -> Key {
    let meta = object.metadata();
    let name = format!("{}:{}:{}", object.resource().id(), meta.uid, meta.name);
    Key::new(meta.namespace.clone(), Str::from(name))
}

/// The object of a key, if it is still there.
pub(super) fn object(key: &Key, reader: &dyn Reader) -> Option<AnyObject> {
    let mut parts = key.name.splitn(3, ':');
    let (resource, uid, name) = (parts.next()?, parts.next()?, parts.next()?);
    let (plural, group) = resource.split_once('.').unwrap_or((resource, ""));
    let catalogue = reader.catalogue();
    let entry: &Entry = catalogue.find(group, plural)?;
    reader
        .get(entry.resource, &key.namespace, name)
        .filter(|object| object.metadata().uid == *uid)
}
