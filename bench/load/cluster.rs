//! A small cluster of workloads at rest, in a cache as a replica holds it: what controllers wake for and plan
//! over.

use std::collections::BTreeSet;
use std::sync::Arc;

use controllers_kit::testing::{
    Common as _, WorkloadBuild as _, World, at, daemon_set, deployment, job, namespace, node,
    pod_spec_bytes, replication_controller, service, stateful_set,
};
use controllers_kit::{
    Answers, Catalogue, DynChange, DynController, Flags, Key, Plan, Reader as _, Snapshot,
    Subscription,
};
use kubernetes_proto::batch::{CronJob, CronJobSpec, Job, JobSpec, JobTemplateSpec};
use kubernetes_proto::core::{PodTemplateSpec, ReplicationController, ResourceQuota};
use kubernetes_proto::meta::{LabelSelector, ObjectMeta, set};
use kubernetes_proto::policy::PodDisruptionBudget;
use kubernetes_proto::{AnyObject, Object, envelope};
use node_cache::Cache;
use serde_json::{Value, json};

/// Pods of the Deployment, the largest workload.
pub const PODS: i32 = 50;
const NODES: usize = 20;
/// Of each other workload.
const FEW: i32 = 20;
const NOW: &str = "12:00:00";

/// The cluster, and every controller of this build.
pub struct Cluster {
    /// What all controllers read.
    pub cache: Arc<Cache>,
    /// In the registry's order.
    pub controllers: Vec<Box<dyn DynController>>,
    objects: Vec<AnyObject>,
}

fn object<T: Object>(json: Value) -> T {
    serde_json::from_value(json).expect("an object of our own")
}

fn running_job() -> Job {
    let mut selector = LabelSelector::default();
    set(&mut selector.match_labels, "app", "sum");
    let mut metadata = ObjectMeta::default();
    metadata.set_label("app", "sum");
    Job {
        spec: Some(JobSpec {
            parallelism: Some(FEW),
            completions: Some(FEW),
            completion_mode: Some("NonIndexed".to_owned()),
            backoff_limit: Some(6),
            suspend: Some(false),
            selector: Some(selector),
            template: Some(PodTemplateSpec {
                metadata: Some(metadata),
                spec: pod_spec_bytes("sum:1"),
            }),
            ..Default::default()
        }),
        ..job("sum")
    }
}

/// Next due in the middle of the night.
fn cron_job() -> CronJob {
    let mut cron_job = CronJob {
        spec: Some(CronJobSpec {
            schedule: "0 3 * * *".to_owned(),
            concurrency_policy: "Forbid".to_owned(),
            suspend: Some(false),
            job_template: Some(JobTemplateSpec::default()),
            ..Default::default()
        }),
        status: Some(Default::default()),
        ..Default::default()
    };
    cron_job.metadata_mut().name = "nightly".into();
    cron_job.in_namespace("default").created("11:00:00")
}

fn world() -> World {
    let selector = json!({"matchLabels": {"app": "web"}});
    let mut world = World::at(NOW)
        .with(namespace("default"))
        .with(deployment("web").replicas(PODS))
        .with(stateful_set("db").replicas(FEW))
        .with(daemon_set("log"))
        .with(replication_controller("old"))
        .changed::<ReplicationController>("old", |old| {
            old.spec.get_or_insert_default().replicas = Some(FEW);
        })
        .with(service("web"))
        .with(object::<PodDisruptionBudget>(json!({
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {"selector": selector, "maxUnavailable": 5},
            "status": {},
        })))
        .with(running_job())
        .with(cron_job());
    for number in 0..NODES {
        world = world.with(node(&format!("node-{number:02}")));
    }
    world
}

impl Default for Cluster {
    fn default() -> Self {
        Self::at_rest()
    }
}

impl Cluster {
    /// All controllers have done what there was to do.
    pub fn at_rest() -> Self {
        let registry = node_registry::all();
        let mut world = world();
        world.settle(&registry);
        // Behind the pods: those that come later are charged for by admission, which there is none of here.
        world = world.with(object::<ResourceQuota>(json!({
            "metadata": {"name": "all", "namespace": "default"},
            "spec": {"hard": {"pods": "1000", "requests.cpu": "1000"}},
        })));
        world.settle(&registry);
        let descriptors = node_registry::descriptors();
        let flags = Flags::defaults(&descriptors);
        let controllers: Vec<_> = registry
            .iter()
            .map(|factory| (factory.build)(&flags))
            .collect();
        let cache = controllers
            .iter()
            .fold(Cache::builder(), |builder, controller| {
                builder.watches(&controller.watches())
            })
            .build();
        cache.set_catalogue(Catalogue::clone(&world.catalogue()));
        let objects: Vec<AnyObject> = world.objects().cloned().collect();
        for object in &objects {
            let resource = object.resource();
            if !cache.resources().any(|watched| watched == resource) {
                continue;
            }
            let raw = envelope::wrap(&resource.api_version(), resource.kind, object.encode());
            cache
                .feed(resource, &envelope::watch_frame("ADDED", raw))
                .expect("a frame of our own");
        }
        Self {
            cache,
            controllers,
            objects,
        }
    }

    /// The controller of this name.
    ///
    /// # Panics
    /// Where there is none.
    pub fn controller(&self, name: &str) -> &dyn DynController {
        self.controllers
            .iter()
            .find(|controller| controller.descriptor().name == name)
            .unwrap_or_else(|| panic!("no controller is called {name}"))
            .as_ref()
    }

    /// All objects of one resource.
    pub fn objects(&self, plural: &str) -> Vec<AnyObject> {
        self.objects
            .iter()
            .filter(|object| object.resource().plural == plural)
            .cloned()
            .collect()
    }

    /// Every interest in one resource, of whichever controller.
    pub fn subscriptions(&self, plural: &str) -> Vec<Subscription> {
        self.controllers
            .iter()
            .flat_map(|controller| controller.watches().subscriptions)
            .filter(|subscription| subscription.resource.plural == plural)
            .filter(|subscription| subscription.resource.selection.is_none())
            .collect()
    }

    /// The keys that a new object wakes by these interests.
    pub fn wakes(&self, subscriptions: &[Subscription], object: &AnyObject) -> usize {
        let change = DynChange {
            old: None,
            new: Some(object),
            version: 0,
        };
        let mut woken = 0;
        for subscription in subscriptions {
            (subscription.wake)(change, &*self.cache, &mut |_| woken += 1);
        }
        woken
    }

    /// The keys of a controller, as far as it plans them without asking anything.
    pub fn keys(&self, controller: &dyn DynController) -> Vec<Key> {
        let mut keys = BTreeSet::new();
        for subscription in &controller.watches().subscriptions {
            let objects = self.objects(subscription.resource.plural);
            // A selection of a resource's objects has a projection of its own.
            for object in objects
                .into_iter()
                .filter(|object| object.resource() == subscription.resource)
            {
                let change = DynChange {
                    old: None,
                    new: Some(&object),
                    version: 0,
                };
                (subscription.wake)(change, &*self.cache, &mut |key| {
                    keys.insert(key);
                });
            }
        }
        let (none, memory) = (Answers::new(), controller.new_memory());
        let seen = Snapshot::new(&*self.cache, &none, at(NOW));
        keys.into_iter()
            .filter(|key| controller.ask(key, &seen, &memory).is_empty())
            .collect()
    }

    /// What a controller plans for a key at rest.
    ///
    /// # Panics
    /// Where it refuses to.
    pub fn plan(&self, controller: &dyn DynController, key: &Key) -> Plan {
        let none = Answers::new();
        let seen = Snapshot::new(&*self.cache, &none, at(NOW));
        controller
            .plan(key, &seen, &mut controller.new_memory())
            .unwrap_or_else(|refusal| panic!("{key}: {refusal}"))
    }
}

/// The first plan of a Deployment's ReplicaSet: all its pods are to be made.
pub fn creations() -> Plan {
    let set = controllers_kit::testing::replica_set("web").replicas(PODS);
    World::at(NOW)
        .with(set)
        .plan::<controllers_apps::replicaset::ReplicaSets>("web")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_controller_that_asks_nothing_has_keys_and_plans_nothing_at_rest() {
        let cluster = Cluster::at_rest();
        let mut without = Vec::new();
        for controller in &cluster.controllers {
            let keys = cluster.keys(controller.as_ref());
            if keys.is_empty() {
                without.push(controller.descriptor().name);
            }
            for key in keys {
                let plan = cluster.plan(controller.as_ref(), &key);
                assert!(plan.actions().next().is_none(), "{key}: {:?}", plan.verbs());
            }
        }
        without.sort_unstable();
        // These have no object of theirs in this cluster, have a key only where something is on its way out,
        // or ask before they plan (a DaemonSet's controller, which revision the template is of).
        let asking = [
            "bootstrap-signer-controller",
            "certificatesigningrequest-approving-controller",
            "certificatesigningrequest-cleaner-controller",
            "certificatesigningrequest-signing-controller",
            "cloud-node-lifecycle-controller",
            "clusterrole-aggregation-controller",
            "daemonset-controller",
            "device-taint-eviction-controller",
            "ephemeral-volume-controller",
            "garbage-collector-controller",
            "horizontal-pod-autoscaler-controller",
            "legacy-serviceaccount-token-cleaner-controller",
            "namespace-controller",
            "node-ipam-controller",
            "persistentvolume-attach-detach-controller",
            "persistentvolume-binder-controller",
            "persistentvolume-expander-controller",
            "persistentvolume-protection-controller",
            "persistentvolumeclaim-protection-controller",
            "podcertificaterequest-cleaner-controller",
            "podgroup-protection-controller",
            "resourceclaim-controller",
            "resourcepoolstatusrequest-controller",
            "selinux-warning-controller",
            "service-cidr-controller",
            "service-lb-controller",
            "serviceaccount-token-controller",
            "storage-version-migrator-controller",
            "storageversion-garbage-collector-controller",
            "token-cleaner-controller",
            "validatingadmissionpolicy-status-controller",
            "volumeattributesclass-protection-controller",
        ];
        assert_eq!(without, asking);
        assert!(cluster.objects("pods").len() > 100);
    }

    #[test]
    fn a_new_pod_wakes_its_owner_and_a_first_plan_makes_all_pods() {
        let cluster = Cluster::at_rest();
        let pods = cluster.objects("pods");
        let subscriptions = cluster.subscriptions("pods");
        assert!(cluster.wakes(&subscriptions, &pods[0]) > 0);
        let made = creations();
        let verbs = made.verbs();
        let creates = verbs.iter().filter(|verb| verb.starts_with("create pods"));
        assert_eq!(creates.count(), usize::try_from(PODS).unwrap());
    }
}
