//! The new ReplicaSet: found and brought up to date, or created.

use controllers_kit::{Key, Snapshot, names, owners};
use kubernetes_proto::{
    Object,
    apps::{ReplicaSet, ReplicaSetSpec},
    meta::{self, ObjectMeta},
};

use super::{
    context::{RECREATE, ROLLING_UPDATE, Rollout, Set},
    progress,
    revision::{self, REVISION},
    template::{self, HASH_LABEL},
};

/// The result of the search for the new ReplicaSet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum New {
    /// It exists, or this plan creates it, or it is not wanted yet.
    Settled,
    /// Another ReplicaSet has its name: the status counts the collision, and the next plan uses another
    /// name.
    Collides,
}

impl Rollout {
    /// Brings the new ReplicaSet's annotations and the Deployment's revision up to date.
    pub fn sync_revision(&mut self) {
        let Some(index) = self.new else {
            return;
        };
        let next = self.next_revision();
        let min_ready_seconds = self.spec().min_ready_seconds;
        let deployment = std::sync::Arc::clone(&self.deployment);
        let set = &mut self.sets[index];
        if set.seen.is_some() {
            revision::annotate_new(set.wanted.metadata_mut(), deployment.metadata(), next);
            set.wanted.spec.get_or_insert_default().min_ready_seconds = min_ready_seconds;
        }
        let name = set.name().to_owned();
        let revision = set
            .wanted
            .metadata()
            .annotation(REVISION)
            .unwrap_or_default()
            .to_owned();
        self.take_revision(&revision);
        // The Deployment has just got a progress deadline: it counts from here.
        if self.progress_deadline_seconds().is_some()
            && progress::condition(&self.status, progress::PROGRESSING).is_none()
        {
            let condition = progress::new_condition(
                progress::PROGRESSING,
                "True",
                "FoundNewReplicaSet",
                format!("Found new replica set {name:?}"),
                self.now,
            );
            progress::set_condition(&mut self.status.conditions, condition);
        }
    }

    /// Creates the new ReplicaSet where there is none.
    pub fn create_new(&mut self, seen: &Snapshot<'_>) -> New {
        if self.new.is_some() {
            return New::Settled;
        }
        let next = self.next_revision();
        let hash = template::hash(&self.deployment, self.status.collision_count);
        let name = names::with_hash(self.name(), &hash);
        let key = Key::new(self.deployment.metadata().namespace.clone(), name.as_str());
        // It is not the new one, or it would have been found.
        if seen.get::<ReplicaSet>(&key).is_some() {
            let count = self.status.collision_count.get_or_insert_default();
            *count = count.wrapping_add(1);
            return New::Collides;
        }
        let mut set = self.new_set_named(&name, &hash);
        revision::annotate_new(set.metadata_mut(), self.deployment.metadata(), next);
        revision::annotate_replicas(set.metadata_mut(), self.replicas(), self.max_replicas());
        self.sets.push(Set::created(set));
        let index = self.sets.len() - 1;
        self.new = Some(index);
        let replicas = self.replicas_of_new(index);
        self.sets[index].set_replicas(replicas);
        self.take_revision(&next.to_string());
        if self.progress_deadline_seconds().is_some() {
            let condition = progress::new_condition(
                progress::PROGRESSING,
                "True",
                "NewReplicaSetCreated",
                format!("Created new replica set {name:?}"),
                self.now,
            );
            progress::set_condition(&mut self.status.conditions, condition);
        }
        New::Settled
    }

    fn new_set_named(&self, name: &str, hash: &str) -> ReplicaSet {
        let deployment = self.deployment.as_ref();
        let mut template = self.spec().template.clone().unwrap_or_default();
        let template_meta = template.metadata.get_or_insert_default();
        template_meta.set_label(HASH_LABEL, hash);
        template_meta.creation_timestamp = None;
        let labels = template_meta.labels.clone();
        let mut selector = self.spec().selector.clone().unwrap_or_default();
        meta::set(&mut selector.match_labels, HASH_LABEL, hash);
        ReplicaSet {
            metadata: Some(ObjectMeta {
                name: name.into(),
                namespace: deployment.metadata().namespace.clone(),
                owner_references: vec![owners::reference(deployment)],
                labels,
                ..Default::default()
            }),
            spec: Some(ReplicaSetSpec {
                replicas: Some(0),
                min_ready_seconds: self.spec().min_ready_seconds,
                selector: Some(selector),
                template: Some(template),
            }),
            status: None,
        }
    }

    /// The wanted size of the new ReplicaSet now: as many as fit below the surge, and not more than wanted.
    pub fn replicas_of_new(&self, new: usize) -> i32 {
        let present = self.sets[new].replicas();
        match self.strategy() {
            ROLLING_UPDATE => {
                let room = self.max_replicas().saturating_sub(self.total_replicas());
                if room <= 0 {
                    present
                } else {
                    present.saturating_add(room.min(self.replicas().saturating_sub(present)))
                }
            }
            RECREATE => self.replicas(),
            _ => present,
        }
    }
}
