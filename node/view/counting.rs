//! How many objects a plan examines: what it costs grows with them.

use std::sync::atomic::{AtomicUsize, Ordering};

use controllers_kit::{Reader, Resource};
use kubernetes_proto::AnyObject;

/// A reader that counts what it hands out.
pub(crate) struct Counting<'a> {
    reader: &'a dyn Reader,
    objects: AtomicUsize,
}

impl<'a> Counting<'a> {
    pub(crate) fn new(reader: &'a dyn Reader) -> Self {
        Self {
            reader,
            objects: AtomicUsize::new(0),
        }
    }

    /// The objects handed out so far, each as often as it was.
    pub(crate) fn objects(&self) -> usize {
        self.objects.load(Ordering::Relaxed)
    }

    fn counted(&self, objects: Vec<AnyObject>) -> Vec<AnyObject> {
        self.objects.fetch_add(objects.len(), Ordering::Relaxed);
        objects
    }
}

impl Reader for Counting<'_> {
    fn below(&self) -> Option<&dyn Reader> {
        Some(self.reader)
    }

    fn get(&self, resource: &'static Resource, namespace: &str, name: &str) -> Option<AnyObject> {
        self.objects.fetch_add(1, Ordering::Relaxed);
        self.reader.get(resource, namespace, name)
    }

    fn list(&self, resource: &'static Resource, namespace: Option<&str>) -> Vec<AnyObject> {
        self.counted(self.reader.list(resource, namespace))
    }

    fn indexed(
        &self,
        resource: &'static Resource,
        index: &'static str,
        value: &str,
    ) -> Vec<AnyObject> {
        self.counted(self.reader.indexed(resource, index, value))
    }

    fn count(&self, resource: &'static Resource) -> usize {
        self.reader.count(resource)
    }
}
