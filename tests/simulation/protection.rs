//! What must hold of protected claims: none is let go while a pod has it that had a node before the claim was
//! deleted.
//!
//! None of this allows for late watches: a claim that is let go takes its data along. A pod that got its node
//! after the claim was being deleted does not count, since no kubelet starts it.

use std::{collections::BTreeMap, sync::Arc};

use controllers_kit::Reader;
use kubernetes_proto::{
    AnyObject, Object, Str, cast,
    core::{PersistentVolumeClaim, Pod},
};

use crate::server::{Change, Server};

/// Who protects claims.
pub const CONTROLLER: &str = "persistentvolumeclaim-protection-controller";
/// By which finalizer.
pub const FINALIZER: &str = "kubernetes.io/pvc-protection";

/// All that is remembered, by uid.
#[derive(Default)]
pub struct Protection {
    /// At which version a claim was deleted.
    doomed: BTreeMap<Str, u64>,
    /// At which version a pod had a node first.
    placed: BTreeMap<Str, u64>,
}

fn is_held(claim: &AnyObject) -> bool {
    let held = &claim.metadata().finalizers;
    held.iter().any(|name| **name == *FINALIZER)
}

fn names(pod: &Pod, claim: &str) -> bool {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter());
    let mut sources = volumes.filter_map(|volume| volume.volume_source.as_ref());
    sources.any(|source| {
        let named = source.persistent_volume_claim.as_ref();
        named.is_some_and(|named| *named.claim_name == *claim)
    })
}

impl Protection {
    /// Of a cluster as it is.
    pub fn new(server: &Server) -> Self {
        let mut protection = Self::default();
        server
            .world
            .objects()
            .for_each(|object| protection.note(object));
        protection
    }

    fn note(&mut self, object: &AnyObject) {
        let meta = object.metadata();
        let since = || (meta.uid.clone(), meta.resource_version);
        if object.resource() == PersistentVolumeClaim::resource() && meta.is_terminating() {
            let (uid, version) = since();
            self.doomed.entry(uid).or_insert(version);
        } else if let Some(pod) = cast::<Pod>(Arc::clone(object))
            && !controllers_kit::pods::node_name(&pod).is_empty()
        {
            let (uid, version) = since();
            self.placed.entry(uid).or_insert(version);
        }
    }

    /// Judges a change, made by a controller if one is named.
    pub fn after(
        &mut self,
        server: &Server,
        change: &Change,
        controller: Option<&str>,
    ) -> Option<String> {
        if let Some(new) = &change.new {
            self.note(new);
        }
        let old = change.old.as_ref()?;
        let let_go = controller == Some(CONTROLLER)
            && old.resource() == PersistentVolumeClaim::resource()
            && is_held(old)
            && !change.new.as_ref().is_some_and(is_held);
        let wrong = let_go.then(|| self.user(server, old)).flatten();
        if change.new.is_none() {
            let uid = &old.metadata().uid;
            self.doomed.remove(uid);
            self.placed.remove(uid);
        }
        wrong
    }

    /// A pod that has a claim which was just let go.
    fn user(&self, server: &Server, claim: &AnyObject) -> Option<String> {
        let meta = claim.metadata();
        let doomed = self.doomed.get(&meta.uid).copied().unwrap_or(u64::MAX);
        let pods = server.world.list(Pod::resource(), Some(&meta.namespace));
        let mut pods = pods.into_iter().filter_map(cast::<Pod>);
        let user = pods.find(|pod| {
            let placed = self.placed.get(&pod.metadata().uid);
            names(pod, &meta.name) && placed.is_some_and(|placed| *placed < doomed)
        })?;
        Some(format!(
            "{CONTROLLER}: let the claim {}/{} go while pod {} uses it",
            meta.namespace,
            meta.name,
            user.metadata().name
        ))
    }
}
