//! Events about nodes, as upstream's controllers of nodes record them: by a reference of name and uid alone,
//! since the node may be gone.

use controllers_kit::{Event, EventType, Key, ObjectRef};
use kubernetes_proto::{Object, Str, core::Node};

/// A normal event about a node.
pub(crate) fn about(name: &Str, uid: &str, reason: &'static str, message: String) -> Event {
    Event {
        about: ObjectRef {
            api_version: Str::interned("v1"),
            kind: Str::interned("Node"),
            key: Key::cluster(name.clone()),
            uid: Str::from(uid),
            resource_version: 0,
        },
        r#type: EventType::Normal,
        reason: Str::interned(reason),
        message,
    }
}

/// The event of an action on a node: `Node <name> event: <what>`.
pub(crate) fn happened(name: &Str, uid: &str, reason: &'static str, what: &str) -> Event {
    about(name, uid, reason, format!("Node {name} event: {what}"))
}

/// The event `Node <name> status is now: <status>`, with the status as its reason.
pub(crate) fn status(node: &Node, status: &'static str) -> Event {
    let meta = Object::metadata(node);
    let message = format!("Node {} status is now: {status}", meta.name);
    about(&meta.name, &meta.uid, status, message)
}
