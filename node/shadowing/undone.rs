//! The cache as it would be had one change not been made.

use std::{sync::Arc, time::Duration};

use controllers_kit::{
    Answer, Answers, AnyObject, Catalogue, Index, Key, Query, Reader, Resource, Standing,
};
use kubernetes_proto::Partial;
use serde_json::Value;

use shadow::Change;

/// A reader that shows the object of a change as it was before.
pub struct Undone<'a> {
    view: &'a dyn Reader,
    change: &'a Change,
    /// What the controllers' indexes say of an object.
    indexes: &'a [Index],
}

impl<'a> Undone<'a> {
    /// Over a cache that may show the change.
    pub fn new(view: &'a dyn Reader, change: &'a Change, indexes: &'a [Index]) -> Self {
        Self {
            view,
            change,
            indexes,
        }
    }

    fn newest(&self) -> Option<&AnyObject> {
        self.change.newest()
    }

    /// Whether a store may hold the object.
    fn holds(&self, resource: &'static Resource) -> bool {
        self.newest().is_some_and(|object| {
            let of = object.resource();
            (of.group, of.plural) == (resource.group, resource.plural)
                && (std::ptr::eq(of, resource) || resource.metadata_only)
        })
    }

    fn is_it(&self, namespace: &str, name: &str) -> bool {
        self.newest().is_some_and(|object| {
            let meta = object.metadata();
            &*meta.namespace == namespace && &*meta.name == name
        })
    }

    /// The object before, as a store of this resource has it.
    fn before(&self, resource: &'static Resource) -> Option<AnyObject> {
        let old = self.change.old.as_ref()?;
        Some(match std::ptr::eq(old.resource(), resource) {
            true => Arc::clone(old),
            false => Arc::new(Partial::new(resource, old.metadata().clone())),
        })
    }

    fn corrected(
        &self,
        resource: &'static Resource,
        mut all: Vec<AnyObject>,
        belongs: bool,
    ) -> Vec<AnyObject> {
        if !self.holds(resource) {
            return all;
        }
        all.retain(|object| {
            let meta = object.metadata();
            !self.is_it(&meta.namespace, &meta.name)
        });
        if belongs && let Some(before) = self.before(resource) {
            let place = |object: &AnyObject| Key::of_meta(object.metadata());
            let at = all.partition_point(|one| place(one) < place(&before));
            all.insert(at, before);
        }
        all
    }

    /// Whether an index lists the object before under a value.
    fn is_listed(&self, resource: &'static Resource, index: &str, value: &str) -> bool {
        let Some(before) = self.before(resource) else {
            return false;
        };
        let meta = before.metadata();
        match index {
            Index::OWNER => meta.controller().is_some_and(|owner| &*owner.uid == value),
            Index::DEPENDENTS => meta
                .owner_references
                .iter()
                .any(|owner| &*owner.uid == value),
            _ => self
                .indexes
                .iter()
                .filter(|one| one.name == index && std::ptr::eq(one.resource, resource))
                .any(|one| (one.values)(&*before).iter().any(|found| &**found == value)),
        }
    }
}

impl Reader for Undone<'_> {
    fn get(&self, resource: &'static Resource, namespace: &str, name: &str) -> Option<AnyObject> {
        match self.holds(resource) && self.is_it(namespace, name) {
            true => self.before(resource),
            false => self.view.get(resource, namespace, name),
        }
    }

    fn list(&self, resource: &'static Resource, namespace: Option<&str>) -> Vec<AnyObject> {
        let belongs = self.newest().is_some_and(|object| {
            namespace.is_none_or(|namespace| &*object.metadata().namespace == namespace)
        });
        self.corrected(resource, self.view.list(resource, namespace), belongs)
    }

    fn indexed(
        &self,
        resource: &'static Resource,
        index: &'static str,
        value: &str,
    ) -> Vec<AnyObject> {
        let all = self.view.indexed(resource, index, value);
        let belongs = self.holds(resource) && self.is_listed(resource, index, value);
        self.corrected(resource, all, belongs)
    }

    fn catalogue(&self) -> Arc<Catalogue> {
        self.view.catalogue()
    }

    fn gone(&self, uid: &str) -> bool {
        let is_back = self
            .change
            .old
            .as_ref()
            .is_some_and(|old| &*old.metadata().uid == uid);
        !is_back && self.view.gone(uid)
    }

    fn name_used(&self, resource: &'static Resource, namespace: &str, name: &str) -> bool {
        match self.holds(resource) && self.is_it(namespace, name) {
            true => self.change.old.is_some(),
            false => self.view.name_used(resource, namespace, name),
        }
    }

    fn history_covers(&self, uid: &str) -> bool {
        self.view.history_covers(uid)
    }

    fn history_since(&self) -> u64 {
        self.view.history_since()
    }

    fn heartbeat_age(
        &self,
        resource: &'static Resource,
        namespace: &str,
        name: &str,
    ) -> Option<Duration> {
        self.view.heartbeat_age(resource, namespace, name)
    }

    fn exposure_age(&self, node: &str, taint: &str, pod: &Key) -> Option<Duration> {
        self.view.exposure_age(node, taint, pod)
    }

    fn standing(&self, resource: &'static Resource) -> Standing {
        self.view.standing(resource)
    }
}

/// The answers to queries had a change not been made: live reads of its object find it as it was before.
pub fn answers(mut answers: Answers, change: &Change) -> Answers {
    let Some(newest) = change.newest() else {
        return answers;
    };
    let (of, at) = (newest.resource(), Key::of_meta(newest.metadata()));
    for (query, answer) in &mut answers {
        match query {
            Query::Live { resource, key }
                if *key == at && (resource.group, resource.plural) == (of.group, of.plural) => {}
            _ => continue,
        }
        *answer = match &change.old {
            None => Answer::Missing,
            Some(old) => {
                let old = old.to_json();
                match answer {
                    // What the cache does not hold of the object is as it is.
                    Answer::Object(live) if live["metadata"]["uid"] == old["metadata"]["uid"] => {
                        let mut live = Value::clone(live);
                        live["metadata"] = old["metadata"].clone();
                        Answer::Object(Arc::new(live))
                    }
                    _ => Answer::Object(Arc::new(old)),
                }
            }
        };
    }
    answers
}

#[cfg(test)]
mod tests {
    use controllers_kit::{
        Object,
        testing::{World, pod},
    };
    use kubernetes_proto::core::Pod;

    use super::*;

    fn shown(reader: &dyn Reader) -> Vec<String> {
        let all = reader.list(Pod::resource(), None).into_iter();
        all.map(|object| {
            format!(
                "{} {}",
                object.metadata().name,
                object.metadata().resource_version
            )
        })
        .collect()
    }

    #[test]
    fn the_object_of_a_change_is_as_it_was_and_all_else_as_it_is() {
        let version = |name: &str, version: u64| {
            let mut pod: Pod = pod(name);
            pod.metadata_mut().resource_version = version;
            Arc::new(pod) as AnyObject
        };
        let world = World::at("12:00:00").with(pod("a")).with(pod("c"));
        let before = shown(&world);
        assert_eq!(before.len(), 2);
        for (old, new, expected) in [
            // Made: it is not there.
            (None, Some(version("a", 9)), vec![before[1].clone()]),
            // Deleted: it is there again, in its place.
            (
                Some(version("b", 5)),
                None,
                vec![before[0].clone(), "b 5".to_owned(), before[1].clone()],
            ),
            // Changed: it is the one before.
            (
                Some(version("c", 5)),
                Some(version("c", 9)),
                vec![before[0].clone(), "c 5".to_owned()],
            ),
        ] {
            let change = Change { old, new };
            let undone = Undone::new(&world, &change, &[]);
            assert_eq!(shown(&undone), expected);
        }
    }

    #[test]
    fn a_live_read_of_the_object_of_a_change_finds_it_as_it_was() {
        let live = |object: &AnyObject| Answer::Object(Arc::new(object.to_json()));
        let labelled = |label: &str| {
            let mut pod: Pod = pod("a");
            pod.metadata_mut().set_label("app", label);
            Arc::new(pod) as AnyObject
        };
        let query = |name: &str| Query::Live {
            resource: Pod::resource(),
            key: Key::of_meta(pod(name).metadata()),
        };
        let (before, after) = (labelled("before"), labelled("after"));
        for (old, new, read, expected) in [
            (None, Some(&after), live(&after), Answer::Missing),
            (Some(&before), None, Answer::Missing, live(&before)),
            (Some(&before), Some(&after), live(&after), live(&before)),
        ] {
            let change = Change {
                old: old.cloned(),
                new: new.cloned(),
            };
            let read = Answers::from([(query("a"), read), (query("b"), Answer::Missing)]);
            let found = answers(read, &change);
            assert_eq!(found[&query("a")], expected);
            assert_eq!(found[&query("b")], Answer::Missing);
        }
    }
}
