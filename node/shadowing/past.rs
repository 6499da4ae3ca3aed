//! The cache as it was at a moment before.

use std::{collections::BTreeMap, sync::Arc};

use controllers_kit::{Answer, Answers, AnyObject, Index, Key, Query, Reader, Resource};
use kubernetes_proto::Partial;
use serde_json::Value;
use shadow::Objects;

/// A reader that shows some objects as they were.
pub struct Past<'a> {
    view: &'a dyn Reader,
    objects: &'a Objects,
    /// What the controllers' indexes say of an object.
    indexes: &'a [Index],
}

impl<'a> Past<'a> {
    /// Over a cache that shows the present.
    pub fn new(view: &'a dyn Reader, objects: &'a Objects, indexes: &'a [Index]) -> Self {
        Self {
            view,
            objects,
            indexes,
        }
    }

    /// What there was under a name, as a store of this resource has it; `None` where that is as it is now.
    fn before(
        &self,
        resource: &'static Resource,
        namespace: &str,
        name: &str,
    ) -> Option<Option<AnyObject>> {
        let key = Key::new(namespace, name);
        let before = self.objects.get(&(resource.group, resource.plural, key))?;
        as_held(resource, before.as_ref())
    }

    /// All that was different of a resource, as a store of it has it.
    fn changed(
        &self,
        resource: &'static Resource,
    ) -> impl Iterator<Item = (&Key, Option<AnyObject>)> {
        let of = (resource.group, resource.plural);
        self.objects
            .iter()
            .filter(move |((group, plural, _), _)| (*group, *plural) == of)
            .filter_map(move |((_, _, key), before)| {
                Some((key, as_held(resource, before.as_ref())?))
            })
    }

    fn corrected(
        &self,
        resource: &'static Resource,
        mut all: Vec<AnyObject>,
        belongs: impl Fn(&AnyObject) -> bool,
    ) -> Vec<AnyObject> {
        let changed: BTreeMap<&Key, Option<AnyObject>> = self.changed(resource).collect();
        if changed.is_empty() {
            return all;
        }
        all.retain(|object| !changed.contains_key(&Key::of_meta(object.metadata())));
        let before = changed.into_values().flatten();
        all.extend(before.filter(belongs));
        all.sort_by_key(|object| Key::of_meta(object.metadata()));
        all
    }

    /// Whether an index lists an object under a value.
    fn is_listed(&self, object: &AnyObject, index: &str, value: &str) -> bool {
        let meta = object.metadata();
        match index {
            Index::OWNER => meta.controller().is_some_and(|owner| &*owner.uid == value),
            Index::DEPENDENTS => meta
                .owner_references
                .iter()
                .any(|owner| &*owner.uid == value),
            _ => self
                .indexes
                .iter()
                .filter(|one| one.name == index && std::ptr::eq(one.resource, object.resource()))
                .any(|one| {
                    (one.values)(&**object)
                        .iter()
                        .any(|found| &**found == value)
                }),
        }
    }
}

/// An object of the past as a store of a resource holds it; `None` where that can't be known.
fn as_held(resource: &'static Resource, before: Option<&AnyObject>) -> Option<Option<AnyObject>> {
    match before {
        None => Some(None),
        Some(object) if std::ptr::eq(object.resource(), resource) => Some(Some(Arc::clone(object))),
        Some(object) if resource.metadata_only => {
            let partial = Partial::new(resource, object.metadata().clone());
            Some(Some(Arc::new(partial)))
        }
        Some(_) => None,
    }
}

impl Reader for Past<'_> {
    fn below(&self) -> Option<&dyn Reader> {
        Some(self.view)
    }

    fn get(&self, resource: &'static Resource, namespace: &str, name: &str) -> Option<AnyObject> {
        self.before(resource, namespace, name)
            .unwrap_or_else(|| self.view.get(resource, namespace, name))
    }

    fn list(&self, resource: &'static Resource, namespace: Option<&str>) -> Vec<AnyObject> {
        let all = self.view.list(resource, namespace);
        self.corrected(resource, all, |object| {
            namespace.is_none_or(|namespace| &*object.metadata().namespace == namespace)
        })
    }

    fn indexed(
        &self,
        resource: &'static Resource,
        index: &'static str,
        value: &str,
    ) -> Vec<AnyObject> {
        let all = self.view.indexed(resource, index, value);
        self.corrected(resource, all, |object| self.is_listed(object, index, value))
    }

    fn gone(&self, uid: &str) -> bool {
        let mut there = self.objects.values().flatten();
        let is_back = there.any(|before| &*before.metadata().uid == uid);
        !is_back && self.view.gone(uid)
    }

    fn name_used(&self, resource: &'static Resource, namespace: &str, name: &str) -> bool {
        match self.before(resource, namespace, name) {
            Some(before) => before.is_some(),
            None => self.view.name_used(resource, namespace, name),
        }
    }
}

/// The answers to queries at a moment: live reads find its objects as they were.
pub fn answers(mut answers: Answers, objects: &Objects) -> Answers {
    for (query, answer) in &mut answers {
        let Query::Live { resource, key } = query else {
            continue;
        };
        let Some(before) = objects.get(&(resource.group, resource.plural, key.clone())) else {
            continue;
        };
        *answer = match before {
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

    /// One change undone.
    fn undone(old: Option<&AnyObject>, new: Option<&AnyObject>) -> Objects {
        let object = new.or(old).unwrap();
        let key = Key::of_meta(object.metadata());
        let resource = object.resource();
        Objects::from([((resource.group, resource.plural, key), old.cloned())])
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
            let objects = undone(old.as_ref(), new.as_ref());
            let past = Past::new(&world, &objects, &[]);
            assert_eq!(shown(&past), expected);
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
            let objects = undone(old, new);
            let read = Answers::from([(query("a"), read), (query("b"), Answer::Missing)]);
            let found = answers(read, &objects);
            assert_eq!(found[&query("a")], expected);
            assert_eq!(found[&query("b")], Answer::Missing);
        }
    }
}
