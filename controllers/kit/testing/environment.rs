//! What the rest of a cluster does between two reconciles: the scheduler and kubelets start and stop pods,
//! the garbage collector and the namespace controller clear up.

use std::{collections::BTreeSet, sync::Arc};

use kubernetes_proto::{
    AnyObject, Object, Str,
    core::{Namespace, Node, Pod},
};

use super::{PodBuild, World, builders};
use crate::{Key, Only, Propagation, testing::server};

/// Keeps a pod until its Job has counted it.
const JOB_TRACKING: &str = "batch.kubernetes.io/job-tracking";

/// The exit code of a pod's containers once it has run; `None` for pods that keep running. A list has a
/// code for each completion index.
fn exit_code(pod: &Pod) -> Option<i32> {
    let meta = Object::metadata(pod);
    let codes: Vec<&str> = meta.annotation(builders::EXITS)?.split(',').collect();
    let index = meta
        .annotation("batch.kubernetes.io/job-completion-index")
        .and_then(|index| index.parse().ok())
        .unwrap_or(0);
    codes.get(index).or(codes.first())?.parse().ok()
}

impl World {
    /// One step of all other actors; whether anything changed.
    pub fn step(&mut self) -> bool {
        self.step_where(&mut |_| true)
    }

    /// As [`World::step`], but only for chosen objects: the others wait for a later step.
    pub fn step_where(&mut self, choose: &mut dyn FnMut(&AnyObject) -> bool) -> bool {
        let before = self.resource_version;
        if self.kubelets {
            self.run_kubelets(choose);
        }
        if self.collector {
            self.collect_garbage(choose);
            self.clear_namespaces(choose);
        }
        self.resource_version != before
    }

    fn run_kubelets(&mut self, choose: &mut dyn FnMut(&AnyObject) -> bool) {
        let now = self.now.to_string();
        for pod in self.all::<Pod>() {
            if !choose(&(Arc::clone(&pod) as AnyObject)) {
                continue;
            }
            let phase = pod.status.as_ref().map_or("", |status| &status.phase);
            let finalizers = &Object::metadata(&*pod).finalizers;
            if pod.is_terminating() {
                if finalizers.is_empty() {
                    self.remove(Pod::resource(), &Key::of(&*pod));
                } else if !matches!(phase, "Succeeded" | "Failed")
                    && finalizers.iter().any(|name| **name == *JOB_TRACKING)
                {
                    // Its containers end by a signal; a controller that waits to count it sees it fail.
                    self.replace(&Pod::clone(&pod).exited(137, &now));
                }
            } else if let ("Running", Some(code)) = (phase, exit_code(&pod)) {
                self.replace(&Pod::clone(&pod).exited(code, &now));
            } else if matches!(phase, "Pending" | "") {
                let pinned = pinned_node(&pod);
                if pinned.is_some_and(|node| self.find::<Node>(node).is_none()) {
                    continue;
                }
                let mut started = match pinned {
                    Some(node) => Pod::clone(&pod).on(node),
                    None => Pod::clone(&pod),
                }
                .ready(&now);
                started.status.get_or_insert_default().start_time = Some(self.now.into());
                self.replace(&started);
            }
        }
    }

    /// Upstream's rules: a dependent is deleted when none of its owners exists; an owner that is deleted in
    /// the foreground goes when none of its dependents exists; one that orphans releases them.
    fn collect_garbage(&mut self, choose: &mut dyn FnMut(&AnyObject) -> bool) {
        let uids: BTreeSet<Str> = self
            .objects
            .values()
            .map(|object| object.metadata().uid.clone())
            .collect();
        let all: Vec<AnyObject> = self.objects.values().cloned().collect();
        for object in &all {
            let meta = object.metadata();
            let orphaned = !meta.owner_references.is_empty()
                && meta
                    .owner_references
                    .iter()
                    .all(|owner| !uids.contains(&owner.uid));
            if orphaned && !meta.is_terminating() && choose(object) {
                self.delete_any(object);
            }
            let finalizer = meta
                .finalizers
                .iter()
                .find(|name| **name == *server::FOREGROUND || **name == *server::ORPHAN);
            if let Some(finalizer) = finalizer.filter(|_| meta.is_terminating())
                && choose(object)
            {
                self.finish(object, finalizer, &all);
            }
        }
    }

    fn finish(&mut self, owner: &AnyObject, finalizer: &Str, all: &[AnyObject]) {
        let uid = &owner.metadata().uid;
        let dependents: Vec<&AnyObject> = all
            .iter()
            .filter(|object| {
                let owners = &object.metadata().owner_references;
                owners.iter().any(|reference| reference.uid == *uid)
            })
            .filter(|object| self.place_of(object).is_some())
            .collect();
        if *finalizer == *server::ORPHAN {
            for dependent in dependents {
                self.edit(dependent, |meta| {
                    meta.owner_references
                        .retain(|reference| reference.uid != *uid);
                });
            }
        } else if !dependents.is_empty() {
            for dependent in dependents {
                if !dependent.metadata().is_terminating() {
                    self.delete_any(dependent);
                }
            }
            return;
        }
        self.edit(owner, |meta| {
            meta.finalizers.retain(|name| name != finalizer);
        });
    }

    fn clear_namespaces(&mut self, choose: &mut dyn FnMut(&AnyObject) -> bool) {
        for namespace in self.all::<Namespace>() {
            if !namespace.is_terminating() || !choose(&(Arc::clone(&namespace) as AnyObject)) {
                continue;
            }
            let name = &Object::metadata(&*namespace).name;
            let content: Vec<AnyObject> = self
                .objects
                .iter()
                .filter(|((_, key), _)| key.namespace == *name)
                .map(|(_, object)| Arc::clone(object))
                .collect();
            if content.is_empty() {
                self.remove(Namespace::resource(), &Key::of(&*namespace));
            }
            for object in content {
                if !object.metadata().is_terminating() {
                    self.delete_any(&object);
                }
            }
        }
    }

    /// The fates of a child, as the states that follow one another: removed at once, deleted with its grace
    /// period, ended with an error, evicted, its node lost (which comes back).
    pub(super) fn harmed(&self, child: &AnyObject, how: usize) -> Vec<Self> {
        let mut world = self.clone();
        let (resource, key) = (child.resource(), Key::of_meta(child.metadata()));
        let pod = child.as_any().downcast_ref::<Pod>();
        let now = self.now.to_string();
        match (how, pod) {
            (1, _) => world.delete_any(child),
            (2, Some(pod)) => world.replace(&pod.clone().exited(1, &now)),
            (3, Some(pod)) => {
                let mut evicted = pod.clone().exited(1, &now);
                evicted.status.get_or_insert_default().reason = "Evicted".into();
                world.replace(&evicted);
                let between = world.clone();
                world.remove(resource, &key);
                return vec![between, world];
            }
            (4, Some(pod)) => {
                let node = pod.spec.as_ref().map(|spec| spec.node_name.to_string());
                let Some(node) = node.and_then(|node| world.find::<Node>(&node)) else {
                    world.remove(resource, &key);
                    return vec![world];
                };
                world.remove(Node::resource(), &Key::of(&*node));
                world.remove(resource, &key);
                let between = world.clone();
                world.put(Node::clone(&node));
                return vec![between, world];
            }
            _ => world.remove(resource, &key),
        }
        vec![world]
    }

    fn delete_any(&mut self, object: &AnyObject) {
        let action = crate::Action {
            verb: crate::Verb::Delete {
                only: Only::ThisUid,
                propagation: Propagation::Background,
                grace_period_seconds: None,
            },
            resource: object.resource(),
            key: Key::of_meta(object.metadata()),
            uid: object.metadata().uid.clone(),
            resource_version: 0,
            announcement: None,
        };
        // It may be gone already, through another owner.
        let _ = self.write(&action);
    }
}

/// The one node that a pod's affinity requires, if any.
fn pinned_node(pod: &Pod) -> Option<&str> {
    let affinity = pod.spec.as_ref()?.affinity.as_ref()?;
    let required = affinity
        .node_affinity
        .as_ref()?
        .required_during_scheduling_ignored_during_execution
        .as_ref()?;
    let fields = required
        .node_selector_terms
        .iter()
        .flat_map(|term| &term.match_fields);
    let field = fields
        .into_iter()
        .find(|field| field.key == "metadata.name")?;
    field.values.first().map(String::as_str)
}
