//! Every controller that this build has: one line a group.

use controllers_kit::{Descriptor, Factory};

/// All of them, in the order of their groups.
pub fn all() -> Vec<Factory> {
    [
        controllers_apps::REGISTRY,
        controllers_batch::REGISTRY,
        controllers_autoscaling::REGISTRY,
        controllers_cleanup::REGISTRY,
        controllers_identity::REGISTRY,
        controllers_networking::REGISTRY,
        controllers_nodes::REGISTRY,
        controllers_storage::REGISTRY,
        controllers_devices::REGISTRY,
        controllers_apiserver::REGISTRY,
        controllers_clouds::REGISTRY,
    ]
    .concat()
}

/// Their descriptors.
pub fn descriptors() -> Vec<Descriptor> {
    all().iter().map(|factory| (factory.describe)()).collect()
}
