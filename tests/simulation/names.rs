//! What must hold of generated names: no child gets one that another had within the last hour.
//!
//! A writer is held to what it can know. A process that stood still acts on a view that is past, and so does
//! one whose watch of the children has not shown the removal yet: it proves by a live list that no child is
//! there, but a list shows nothing of one that came and went. It then takes the name that the owner before it
//! took, which is also what makes a late creation of that owner collide (decisions 003 and 080). Where a
//! process that stood still makes a child late, names that come after that child's may have been used before:
//! nothing is asked of that owner's further names.

use std::collections::{BTreeMap, BTreeSet};

use controllers_kit::{Key, names};
use kubernetes_proto::Resource;
use tokio::time::Instant;

use crate::{
    judge::By,
    server::{Change, Server},
};

/// What is remembered of generated names.
#[derive(Default)]
pub struct Names {
    /// When each was removed. Bound: as many as a run removes.
    removed: BTreeMap<(&'static Resource, Key), Instant>,
    /// Uids of owners of which a child was made by a process whose epoch was over.
    out_of_order: BTreeSet<String>,
}

impl Names {
    /// Judges what a write, or somebody else, has changed.
    pub fn after(
        &mut self,
        server: &Server,
        change: &Change,
        by: Option<&By<'_>>,
    ) -> Option<String> {
        let meta = change.object().metadata();
        if !names::is_generated(meta) {
            return None;
        }
        let resource = change.object().resource();
        let key = Key::new(meta.namespace.clone(), meta.name.clone());
        let place = (resource, key);
        match (&change.old, &change.new) {
            (Some(_), None) => {
                self.removed.insert(place, Instant::now());
                None
            }
            (None, Some(_)) => {
                let owner = meta.controller().map_or("", |owner| &owner.uid);
                let by = by?;
                if by.stale {
                    self.out_of_order.insert(owner.to_owned());
                }
                let by = by.shown.is_some().then_some(by)?;
                if self.out_of_order.contains(owner) {
                    return None;
                }
                let again = server
                    .world
                    .was_removed(resource, &meta.namespace, &meta.name)
                    && self
                        .removed
                        .get(&place)
                        .is_none_or(|at| by.had_seen(resource, *at));
                again.then(|| {
                    format!(
                        "{} made {resource:?} {}/{}, a name that another had within the hour",
                        by.writer, meta.namespace, meta.name
                    )
                })
            }
            _ => None,
        }
    }
}
