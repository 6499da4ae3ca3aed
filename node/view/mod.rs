//! The cache as the actors see it: what is there, and how new it is. `node_cache::Cache` is the real one.

pub(crate) mod counting;

use std::time::Duration;

use controllers_kit::{AnyObject, Key, Reader, Resource};
use futures::{FutureExt, future::BoxFuture};
use node_cache::Cache;

/// A store that knows how new it is.
pub trait View: Reader {
    /// Whether the watch of a resource has passed a resourceVersion.
    fn passed(&self, resource: &'static Resource, version: u64) -> bool;
    /// Resolves when it has.
    fn wait_passed(&self, resource: &'static Resource, version: u64) -> BoxFuture<'static, ()>;
    /// Resolves when the object with this uid has gone or begins to go. What happened before the call is not
    /// heard of.
    fn wait_departed(&self, resource: &'static Resource, uid: &str) -> BoxFuture<'static, ()>;
    /// The newest version of an object of a resource that has been seen; bookmarks do not count, since
    /// another watch may have its own a minute later.
    fn newest(&self, resource: &'static Resource) -> u64;
    /// The objects of a resource that are newer than a version.
    fn newer(&self, resource: &'static Resource, version: u64) -> Vec<AnyObject> {
        let mut objects = self.list(resource, None);
        objects.retain(|object| object.metadata().resource_version > version);
        objects
    }
    /// Whether everything of a resource has been listed.
    fn complete(&self, resource: &'static Resource) -> bool;
    /// Whether a resource can't be read, and not for a moment only.
    fn is_hopeless(&self, _resource: &'static Resource) -> bool {
        false
    }
    /// The objects that can't be used, with the reason.
    fn set_aside(&self) -> Vec<(&'static Resource, Key, String)> {
        Vec::new()
    }
    /// How long ago the watch of Leases came further, to which something is written each second; none without
    /// such a watch.
    fn lag(&self) -> Option<Duration> {
        None
    }
    /// The newest version that any watch has come to: a list that is asked for from now on is no older.
    fn newest_of_all(&self) -> u64 {
        0
    }
}

impl View for Cache {
    fn passed(&self, resource: &'static Resource, version: u64) -> bool {
        Cache::passed(self, resource, version)
    }

    fn wait_passed(&self, resource: &'static Resource, version: u64) -> BoxFuture<'static, ()> {
        Cache::wait_passed(self, resource, version)
            .map(|_| ())
            .boxed()
    }

    fn wait_departed(&self, resource: &'static Resource, uid: &str) -> BoxFuture<'static, ()> {
        Cache::wait_departed(self, resource, uid).boxed()
    }

    fn newest(&self, resource: &'static Resource) -> u64 {
        Cache::newest(self, resource)
    }

    fn newer(&self, resource: &'static Resource, version: u64) -> Vec<AnyObject> {
        Cache::newer(self, resource, version)
    }

    fn complete(&self, resource: &'static Resource) -> bool {
        self.is_complete(resource)
    }

    fn is_hopeless(&self, resource: &'static Resource) -> bool {
        Cache::is_hopeless(self, resource)
    }

    fn set_aside(&self) -> Vec<(&'static Resource, Key, String)> {
        Cache::set_aside(self)
    }

    fn lag(&self) -> Option<Duration> {
        let stats = self.all_stats().into_iter();
        let leases = stats.filter(|(resource, _)| resource.plural == "leases");
        leases.filter_map(|(_, stats)| stats.age).max()
    }

    fn newest_of_all(&self) -> u64 {
        Cache::newest_of_all(self)
    }
}
