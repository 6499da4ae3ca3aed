//! Short, fluent builders: `job("pi").finished("11:59:00").ttl(90)`. They make plain projections, in
//! namespace `default` until [`Common::in_namespace`] says otherwise.

use kubernetes_proto::{
    Object, Str,
    apps::{
        ControllerRevision, DaemonSet, DaemonSetSpec, DaemonSetUpdateStrategy, Deployment,
        DeploymentSpec, DeploymentStrategy, ReplicaSet, ReplicaSetSpec, RollingUpdateDaemonSet,
        RollingUpdateDeployment, RollingUpdateStatefulSetStrategy, StatefulSet,
        StatefulSetOrdinals, StatefulSetPersistentVolumeClaimRetentionPolicy, StatefulSetSpec,
        StatefulSetUpdateStrategy,
    },
    batch::{Job, JobCondition},
    core::{
        Amount, ConfigMap, Container, ContainerPort, ContainerState, ContainerStateTerminated,
        ContainerStatus, EndpointAddress, EndpointPort, EndpointSubset, Endpoints, Namespace,
        NamespaceSpec, NamespaceStatus, Node, NodeCondition, NodeSpec, ObjectReference,
        PersistentVolumeClaim, PersistentVolumeClaimTemplate, Pod, PodCondition, PodIp,
        PodTemplateSpec, ReplicationController, ReplicationControllerSpec, Service, ServiceAccount,
        ServicePort, ServiceSpec, Taint,
    },
    discovery::{Endpoint, EndpointConditions, EndpointSlice},
    meta::{IntOrString, LabelSelector, ObjectMeta, Quantity, Time},
};

use super::at;

pub(super) fn named<T: Object>(name: &str) -> T {
    let mut object = T::default();
    let meta = object.metadata_mut();
    meta.name = Str::from(name);
    if T::resource().namespaced {
        meta.namespace = Str::interned("default");
    }
    set_uid(&mut object);
    object
}

/// The uid follows from kind, namespace and name, so that owners can be named before they are stored.
fn set_uid<T: Object>(object: &mut T) {
    let plural = T::resource().plural;
    let meta = object.metadata_mut();
    meta.uid = Str::from(format!("uid-{plural}-{}-{}", meta.namespace, meta.name));
}

/// What every object has.
pub trait Common: Object {
    /// In another namespace. The uid changes with it, so call this before the object is named as an owner.
    #[must_use]
    fn in_namespace(mut self, namespace: &str) -> Self {
        self.metadata_mut().namespace = Str::interned(namespace);
        set_uid(&mut self);
        self
    }

    /// With another uid than the one that follows from its name.
    #[must_use]
    fn uid(mut self, uid: &str) -> Self {
        self.metadata_mut().uid = Str::from(uid);
        self
    }

    /// With a label.
    #[must_use]
    fn label(mut self, key: &str, value: &str) -> Self {
        self.metadata_mut().set_label(key, value);
        self
    }

    /// With an annotation.
    #[must_use]
    fn annotation(mut self, key: &str, value: &str) -> Self {
        self.metadata_mut().set_annotation(key, value);
        self
    }

    /// Managed by an owner.
    #[must_use]
    fn owned_by<O: Object>(mut self, owner: &O) -> Self {
        self.metadata_mut()
            .owner_references
            .push(owner_reference(owner));
        self
    }

    /// With a finalizer.
    #[must_use]
    fn finalizer(mut self, name: &str) -> Self {
        self.metadata_mut().finalizers.push(Str::from(name));
        self
    }

    /// Made at an instant.
    #[must_use]
    fn created(mut self, time: &str) -> Self {
        self.metadata_mut().creation_timestamp = Some(at(time).into());
        self
    }

    /// Being deleted since an instant.
    #[must_use]
    fn terminating(mut self, since: &str) -> Self {
        let meta = self.metadata_mut();
        meta.deletion_timestamp = Some(at(since).into());
        meta.deletion_grace_period_seconds.get_or_insert(0);
        self
    }

    /// Of a generation.
    #[must_use]
    fn generation(mut self, generation: i64) -> Self {
        self.metadata_mut().generation = generation;
        self
    }
}

impl<T: Object> Common for T {}

pub use crate::owners::reference as owner_reference;

/// An active namespace.
pub fn namespace(name: &str) -> Namespace {
    Namespace {
        status: Some(NamespaceStatus {
            phase: "Active".to_owned(),
            ..Default::default()
        }),
        spec: Some(NamespaceSpec {
            finalizers: vec!["kubernetes".to_owned()],
        }),
        ..named(name)
    }
}

/// What namespaces have besides.
pub trait NamespaceBuild {
    /// Being deleted since an instant, and in phase Terminating.
    #[must_use]
    fn ending(self, since: &str) -> Self;
}

impl NamespaceBuild for Namespace {
    fn ending(mut self, since: &str) -> Self {
        self.status.get_or_insert_default().phase = "Terminating".to_owned();
        self.terminating(since)
    }
}

/// A service account.
pub fn service_account(name: &str) -> ServiceAccount {
    named(name)
}

/// An empty ConfigMap.
pub fn config_map(name: &str) -> ConfigMap {
    named(name)
}

/// What ConfigMaps have besides.
pub trait ConfigMapBuild {
    /// With an entry.
    #[must_use]
    fn data(self, key: &str, value: &str) -> Self;
}

impl ConfigMapBuild for ConfigMap {
    fn data(mut self, key: &str, value: &str) -> Self {
        self.data.insert(key.to_owned(), value.to_owned());
        self
    }
}

/// A Job that runs.
pub fn job(name: &str) -> Job {
    Job {
        spec: Some(Default::default()),
        status: Some(Default::default()),
        ..named(name)
    }
}

/// What Jobs have besides.
pub trait JobBuild {
    /// With `ttlSecondsAfterFinished`.
    #[must_use]
    fn ttl(self, seconds: i32) -> Self;
    /// Complete since an instant.
    #[must_use]
    fn finished(self, time: &str) -> Self;
    /// Failed since an instant.
    #[must_use]
    fn failed(self, time: &str) -> Self;
    /// With a condition; without a time where that is empty.
    #[must_use]
    fn condition(self, r#type: &str, status: &str, time: &str) -> Self;
}

impl JobBuild for Job {
    fn ttl(mut self, seconds: i32) -> Self {
        self.spec.get_or_insert_default().ttl_seconds_after_finished = Some(seconds);
        self
    }
    fn finished(self, time: &str) -> Self {
        self.condition("Complete", "True", time)
    }
    fn failed(self, time: &str) -> Self {
        self.condition("Failed", "True", time)
    }
    fn condition(mut self, r#type: &str, status: &str, time: &str) -> Self {
        self.status
            .get_or_insert_default()
            .conditions
            .push(JobCondition {
                r#type: r#type.to_owned(),
                status: status.to_owned(),
                last_transition_time: (!time.is_empty()).then(|| Time::from(at(time))),
                ..Default::default()
            });
        self
    }
}

/// The protobuf of a pod spec with one container of an image: what templates carry as opaque bytes.
pub fn pod_spec_bytes(image: &str) -> Vec<u8> {
    // Container { name = 1, image = 2 } as field 2 of PodSpec; the projection of pods does not know it.
    let field = |tag: u8, content: &[u8]| {
        let length = u8::try_from(content.len()).expect("test images have short names");
        assert!(length < 128, "one byte holds the length of a short field");
        [&[tag << 3 | 2, length], content].concat()
    };
    field(2, &[field(1, b"main"), field(2, image.as_bytes())].concat())
}

fn app_label(name: &str) -> LabelSelector {
    let mut selector = LabelSelector::default();
    kubernetes_proto::meta::set(&mut selector.match_labels, "app", name);
    selector
}

fn app_template(name: &str) -> PodTemplateSpec {
    let mut meta = ObjectMeta::default();
    meta.set_label("app", name);
    PodTemplateSpec {
        metadata: Some(meta),
        spec: pod_spec_bytes("app:1"),
    }
}

/// A Deployment of one replica with the API's defaults; label, selector and template label `app=<name>`,
/// image `app:1`.
pub fn deployment(name: &str) -> Deployment {
    Deployment {
        spec: Some(DeploymentSpec {
            replicas: Some(1),
            selector: Some(app_label(name)),
            template: Some(app_template(name)),
            strategy: Some(DeploymentStrategy {
                r#type: "RollingUpdate".to_owned(),
                rolling_update: Some(RollingUpdateDeployment {
                    max_unavailable: Some(IntOrString::text("25%")),
                    max_surge: Some(IntOrString::text("25%")),
                }),
            }),
            revision_history_limit: Some(10),
            progress_deadline_seconds: Some(600),
            ..Default::default()
        }),
        status: Some(Default::default()),
        ..named::<Deployment>(name).label("app", name)
    }
}

/// A ReplicaSet of one replica; label, selector and template label `app=<name>`, image `app:1`.
pub fn replica_set(name: &str) -> ReplicaSet {
    ReplicaSet {
        spec: Some(ReplicaSetSpec {
            replicas: Some(1),
            selector: Some(app_label(name)),
            template: Some(app_template(name)),
            ..Default::default()
        }),
        status: Some(Default::default()),
        ..named::<ReplicaSet>(name).label("app", name)
    }
}

/// The common builder methods of Deployments and ReplicaSets.
pub trait WorkloadBuild {
    /// With a number of replicas.
    #[must_use]
    fn replicas(self, count: i32) -> Self;
    /// With another image in the template.
    #[must_use]
    fn image(self, image: &str) -> Self;
    /// With `minReadySeconds`.
    #[must_use]
    fn min_ready(self, seconds: i32) -> Self;
    /// With another selector, the same labels in the template.
    #[must_use]
    fn selects(self, labels: &[(&str, &str)]) -> Self;
}

macro_rules! workload {
    ($type:ty) => {
        impl WorkloadBuild for $type {
            fn replicas(mut self, count: i32) -> Self {
                self.spec.get_or_insert_default().replicas = Some(count);
                self
            }
            fn image(mut self, image: &str) -> Self {
                self.spec
                    .get_or_insert_default()
                    .template
                    .get_or_insert_default()
                    .spec = pod_spec_bytes(image);
                self
            }
            fn min_ready(mut self, seconds: i32) -> Self {
                self.spec.get_or_insert_default().min_ready_seconds = seconds;
                self
            }
            fn selects(mut self, labels: &[(&str, &str)]) -> Self {
                let spec = self.spec.get_or_insert_default();
                let mut selector = LabelSelector::default();
                let mut meta = ObjectMeta::default();
                for (key, value) in labels {
                    kubernetes_proto::meta::set(&mut selector.match_labels, key, value);
                    meta.set_label(key, value);
                }
                spec.selector = Some(selector);
                spec.template.get_or_insert_default().metadata = Some(meta);
                self
            }
        }
    };
}
workload!(Deployment);
workload!(ReplicaSet);
workload!(StatefulSet);

/// A StatefulSet of one replica with the API's defaults; label, selector and template label `app=<name>`,
/// image `app:1`, service `<name>`.
pub fn stateful_set(name: &str) -> StatefulSet {
    StatefulSet {
        spec: Some(StatefulSetSpec {
            replicas: Some(1),
            selector: Some(app_label(name)),
            template: Some(app_template(name)),
            service_name: name.to_owned(),
            pod_management_policy: "OrderedReady".to_owned(),
            update_strategy: Some(StatefulSetUpdateStrategy {
                r#type: "RollingUpdate".to_owned(),
                rolling_update: Some(RollingUpdateStatefulSetStrategy {
                    partition: Some(0),
                    max_unavailable: None,
                }),
            }),
            revision_history_limit: Some(10),
            ..Default::default()
        }),
        status: Some(Default::default()),
        ..named::<StatefulSet>(name).label("app", name)
    }
}

/// What StatefulSets have besides.
pub trait StatefulSetBuild {
    /// All pods at once instead of in order.
    #[must_use]
    fn parallel(self) -> Self;
    /// Rolls the pods from a partition on.
    #[must_use]
    fn partition(self, partition: i32) -> Self;
    /// With `maxUnavailable`, in numbers or percent.
    #[must_use]
    fn max_unavailable(self, most: &str) -> Self;
    /// Pods are replaced when somebody deletes them.
    #[must_use]
    fn on_delete(self) -> Self;
    /// The first ordinal.
    #[must_use]
    fn first(self, ordinal: i32) -> Self;
    /// With a claim template.
    #[must_use]
    fn claims(self, name: &str) -> Self;
    /// With a retention policy, `Retain` or `Delete`.
    #[must_use]
    fn retention(self, when_deleted: &str, when_scaled: &str) -> Self;
    /// With `revisionHistoryLimit`.
    #[must_use]
    fn history(self, limit: i32) -> Self;
}

impl StatefulSetBuild for StatefulSet {
    fn parallel(mut self) -> Self {
        self.spec.get_or_insert_default().pod_management_policy = "Parallel".to_owned();
        self
    }
    fn partition(mut self, partition: i32) -> Self {
        let strategy = &mut self.spec.get_or_insert_default().update_strategy;
        let rolling = &mut strategy.get_or_insert_default().rolling_update;
        rolling.get_or_insert_default().partition = Some(partition);
        self
    }
    fn max_unavailable(mut self, most: &str) -> Self {
        let strategy = &mut self.spec.get_or_insert_default().update_strategy;
        let rolling = &mut strategy.get_or_insert_default().rolling_update;
        rolling.get_or_insert_default().max_unavailable = Some(int_or_percent(most));
        self
    }
    fn on_delete(mut self) -> Self {
        self.spec.get_or_insert_default().update_strategy = Some(StatefulSetUpdateStrategy {
            r#type: "OnDelete".to_owned(),
            rolling_update: None,
        });
        self
    }
    fn first(mut self, ordinal: i32) -> Self {
        self.spec.get_or_insert_default().ordinals = Some(StatefulSetOrdinals { start: ordinal });
        self
    }
    fn claims(mut self, name: &str) -> Self {
        let metadata = ObjectMeta {
            name: name.into(),
            ..Default::default()
        };
        let templates = &mut self.spec.get_or_insert_default().volume_claim_templates;
        templates.push(PersistentVolumeClaimTemplate {
            metadata: Some(metadata),
            spec: Vec::new(),
        });
        self
    }
    fn retention(mut self, when_deleted: &str, when_scaled: &str) -> Self {
        let spec = self.spec.get_or_insert_default();
        spec.persistent_volume_claim_retention_policy =
            Some(StatefulSetPersistentVolumeClaimRetentionPolicy {
                when_deleted: when_deleted.to_owned(),
                when_scaled: when_scaled.to_owned(),
            });
        self
    }
    fn history(mut self, limit: i32) -> Self {
        self.spec.get_or_insert_default().revision_history_limit = Some(limit);
        self
    }
}

/// A DaemonSet with the API's defaults; label, selector and template label `app=<name>`, image `app:1`.
pub fn daemon_set(name: &str) -> DaemonSet {
    DaemonSet {
        spec: Some(DaemonSetSpec {
            selector: Some(app_label(name)),
            template: Some(app_template(name)),
            update_strategy: Some(DaemonSetUpdateStrategy {
                r#type: "RollingUpdate".to_owned(),
                rolling_update: Some(RollingUpdateDaemonSet {
                    max_unavailable: Some(IntOrString::number(1)),
                    max_surge: Some(IntOrString::number(0)),
                }),
            }),
            revision_history_limit: Some(10),
            ..Default::default()
        }),
        status: Some(Default::default()),
        ..named::<DaemonSet>(name).label("app", name)
    }
}

/// What DaemonSets have besides.
pub trait DaemonSetBuild {
    /// With another image in the template.
    #[must_use]
    fn image(self, image: &str) -> Self;
    /// With a pod spec in place of the template's.
    #[must_use]
    fn pod_spec(self, spec: Vec<u8>) -> Self;
    /// With `minReadySeconds`.
    #[must_use]
    fn min_ready(self, seconds: i32) -> Self;
    /// Rolls with these bounds, in numbers or percent.
    #[must_use]
    fn rolling(self, max_unavailable: &str, max_surge: &str) -> Self;
    /// Pods are replaced when somebody deletes them.
    #[must_use]
    fn on_delete(self) -> Self;
    /// With `revisionHistoryLimit`.
    #[must_use]
    fn history(self, limit: i32) -> Self;
}

impl DaemonSetBuild for DaemonSet {
    fn image(self, image: &str) -> Self {
        self.pod_spec(pod_spec_bytes(image))
    }
    fn pod_spec(mut self, spec: Vec<u8>) -> Self {
        let template = &mut self.spec.get_or_insert_default().template;
        template.get_or_insert_default().spec = spec;
        self
    }
    fn min_ready(mut self, seconds: i32) -> Self {
        self.spec.get_or_insert_default().min_ready_seconds = seconds;
        self
    }
    fn rolling(mut self, max_unavailable: &str, max_surge: &str) -> Self {
        self.spec.get_or_insert_default().update_strategy = Some(DaemonSetUpdateStrategy {
            r#type: "RollingUpdate".to_owned(),
            rolling_update: Some(RollingUpdateDaemonSet {
                max_unavailable: Some(int_or_percent(max_unavailable)),
                max_surge: Some(int_or_percent(max_surge)),
            }),
        });
        self
    }
    fn on_delete(mut self) -> Self {
        self.spec.get_or_insert_default().update_strategy = Some(DaemonSetUpdateStrategy {
            r#type: "OnDelete".to_owned(),
            rolling_update: None,
        });
        self
    }
    fn history(mut self, limit: i32) -> Self {
        self.spec.get_or_insert_default().revision_history_limit = Some(limit);
        self
    }
}

/// A ReplicationController of one replica; selector and template label `app=<name>`, image `app:1`.
pub fn replication_controller(name: &str) -> ReplicationController {
    ReplicationController {
        spec: Some(ReplicationControllerSpec {
            replicas: Some(1),
            selector: app_label(name).match_labels,
            template: Some(app_template(name)),
            ..Default::default()
        }),
        status: Some(Default::default()),
        ..named::<ReplicationController>(name).label("app", name)
    }
}

/// A claim.
pub fn claim(name: &str) -> PersistentVolumeClaim {
    named(name)
}

/// A revision.
pub fn controller_revision(name: &str, number: i64, data: &str) -> ControllerRevision {
    ControllerRevision {
        revision: number,
        data: Some(kubernetes_proto::meta::RawExtension {
            raw: data.as_bytes().to_vec(),
        }),
        ..named(name)
    }
}

/// A node.
pub fn node(name: &str) -> Node {
    Node {
        spec: Some(NodeSpec::default()),
        ..named(name)
    }
}

/// What nodes have besides.
pub trait NodeBuild {
    /// With a taint.
    #[must_use]
    fn taint(self, key: &str, value: &str, effect: &str) -> Self;
}

impl NodeBuild for Node {
    fn taint(mut self, key: &str, value: &str, effect: &str) -> Self {
        self.spec.get_or_insert_default().taints.push(Taint {
            key: key.to_owned(),
            value: value.to_owned(),
            effect: effect.to_owned(),
            time_added: None,
        });
        self
    }
}

/// What Deployments have besides.
pub trait DeploymentBuild {
    /// Rolls with these bounds, in numbers or percent.
    #[must_use]
    fn rolling(self, max_unavailable: &str, max_surge: &str) -> Self;
    /// Deletes all old pods before it creates new ones.
    #[must_use]
    fn recreate(self) -> Self;
    /// Paused.
    #[must_use]
    fn paused(self) -> Self;
    /// With `revisionHistoryLimit`.
    #[must_use]
    fn history(self, limit: i32) -> Self;
    /// With `progressDeadlineSeconds`.
    #[must_use]
    fn deadline(self, seconds: i32) -> Self;
}

fn int_or_percent(text: &str) -> IntOrString {
    match text.parse() {
        Ok(number) => IntOrString::number(number),
        Err(_) => IntOrString::text(text),
    }
}

impl DeploymentBuild for Deployment {
    fn rolling(mut self, max_unavailable: &str, max_surge: &str) -> Self {
        self.spec.get_or_insert_default().strategy = Some(DeploymentStrategy {
            r#type: "RollingUpdate".to_owned(),
            rolling_update: Some(RollingUpdateDeployment {
                max_unavailable: Some(int_or_percent(max_unavailable)),
                max_surge: Some(int_or_percent(max_surge)),
            }),
        });
        self
    }
    fn recreate(mut self) -> Self {
        self.spec.get_or_insert_default().strategy = Some(DeploymentStrategy {
            r#type: "Recreate".to_owned(),
            rolling_update: None,
        });
        self
    }
    fn paused(mut self) -> Self {
        self.spec.get_or_insert_default().paused = true;
        self
    }
    fn history(mut self, limit: i32) -> Self {
        self.spec.get_or_insert_default().revision_history_limit = Some(limit);
        self
    }
    fn deadline(mut self, seconds: i32) -> Self {
        self.spec.get_or_insert_default().progress_deadline_seconds = Some(seconds);
        self
    }
}

/// A pod in phase Pending, not scheduled.
pub fn pod(name: &str) -> Pod {
    let mut pod = Pod {
        spec: Some(Default::default()),
        ..named(name)
    };
    pod.status.get_or_insert_default().phase = "Pending".into();
    pod
}

/// What pods have besides.
pub trait PodBuild {
    /// Finished since an instant: its container `main` has ended with a code.
    #[must_use]
    fn exited(self, code: i32, time: &str) -> Self;
    /// Scheduled to a node.
    #[must_use]
    fn on(self, node: &str) -> Self;
    /// In a phase.
    #[must_use]
    fn phase(self, phase: &str) -> Self;
    /// Running, not ready.
    #[must_use]
    fn running(self) -> Self;
    /// Running and ready since an instant, on `node-1` unless a node was named.
    #[must_use]
    fn ready(self, since: &str) -> Self;
    /// With a condition.
    #[must_use]
    fn condition(self, r#type: &str, status: &str, time: &str) -> Self;
}

/// The annotation by which kubelets let a pod end: its exit code, or a list of them by completion index.
pub const EXITS: &str = "tests.manifold.dev/exits";

impl PodBuild for Pod {
    fn exited(mut self, code: i32, time: &str) -> Self {
        let status = self.status.get_or_insert_default();
        status.phase = if code == 0 { "Succeeded" } else { "Failed" }.into();
        for condition in &mut status.conditions {
            if condition.r#type == "Ready" && condition.status != "False" {
                condition.status = "False".into();
                condition.last_transition_time = Some(at(time).into());
            }
        }
        let terminated = ContainerStateTerminated {
            exit_code: code,
            finished_at: Some(at(time).into()),
        };
        status.container_statuses = vec![ContainerStatus {
            name: "main".into(),
            state: Some(ContainerState {
                terminated: Some(terminated),
                ..ContainerState::default()
            }),
            ..Default::default()
        }];
        self
    }
    fn on(mut self, node: &str) -> Self {
        self.spec.get_or_insert_default().node_name = node.into();
        self
    }
    fn phase(mut self, phase: &str) -> Self {
        self.status.get_or_insert_default().phase = phase.into();
        self
    }
    fn running(self) -> Self {
        let pod = if self
            .spec
            .as_ref()
            .is_none_or(|spec| spec.node_name.is_empty())
        {
            self.on("node-1")
        } else {
            self
        };
        pod.phase("Running")
    }
    fn ready(self, since: &str) -> Self {
        PodBuild::condition(self.running(), "Ready", "True", since)
    }
    fn condition(mut self, r#type: &str, status: &str, time: &str) -> Self {
        let conditions = &mut self.status.get_or_insert_default().conditions;
        conditions.retain(|condition| condition.r#type != r#type);
        let condition = PodCondition {
            r#type: r#type.into(),
            status: status.into(),
            last_transition_time: Some(at(time).into()),
            ..Default::default()
        };
        conditions.push(condition.into());
        self
    }
}

/// A Service of address 10.96.0.1 that selects `app=<name>` and serves its one port, without a name, at 8080.
pub fn service(name: &str) -> Service {
    Service {
        spec: Some(ServiceSpec {
            selector: app_label(name).match_labels,
            cluster_ip: "10.96.0.1".to_owned(),
            r#type: "ClusterIP".to_owned(),
            ip_families: vec!["IPv4".to_owned()],
            ..Default::default()
        }),
        ..named(name)
    }
    .port("", 8080)
}

/// What Services have besides.
pub trait ServiceBuild {
    /// One more port, at a number. The port without a name is dropped.
    #[must_use]
    fn port(self, name: &str, target: i32) -> Self;
    /// One more port, at the pod's port of this name. The port without a name is dropped.
    #[must_use]
    fn port_named(self, name: &str, target: &str) -> Self;
    /// Without ports.
    #[must_use]
    fn no_ports(self) -> Self;
    /// Without an address.
    #[must_use]
    fn headless(self) -> Self;
    /// Of these families.
    #[must_use]
    fn families(self, families: &[&str]) -> Self;
    /// Without a selector.
    #[must_use]
    fn no_selector(self) -> Self;
    /// Publishes pods that are not ready.
    #[must_use]
    fn publish_not_ready(self) -> Self;
    /// With `trafficDistribution`.
    #[must_use]
    fn traffic(self, distribution: &str) -> Self;
}

fn add_port(service: &mut Service, name: &str, target: IntOrString) {
    let ports = &mut service.spec.get_or_insert_default().ports;
    ports.retain(|port| !port.name.is_empty());
    ports.push(ServicePort {
        name: name.to_owned(),
        protocol: "TCP".into(),
        target_port: Some(target),
        ..ServicePort::default()
    });
}

impl ServiceBuild for Service {
    fn port(mut self, name: &str, target: i32) -> Self {
        add_port(&mut self, name, IntOrString::number(target));
        self
    }
    fn port_named(mut self, name: &str, target: &str) -> Self {
        add_port(&mut self, name, IntOrString::text(target));
        self
    }
    fn no_ports(mut self) -> Self {
        self.spec.get_or_insert_default().ports.clear();
        self
    }
    fn headless(mut self) -> Self {
        self.spec.get_or_insert_default().cluster_ip = "None".to_owned();
        self
    }
    fn families(mut self, families: &[&str]) -> Self {
        let families = families.iter().map(|family| (*family).to_owned());
        self.spec.get_or_insert_default().ip_families = families.collect();
        self
    }
    fn no_selector(mut self) -> Self {
        self.spec.get_or_insert_default().selector.clear();
        self
    }
    fn publish_not_ready(mut self) -> Self {
        self.spec
            .get_or_insert_default()
            .publish_not_ready_addresses = true;
        self
    }
    fn traffic(mut self, distribution: &str) -> Self {
        self.spec.get_or_insert_default().traffic_distribution = Some(distribution.to_owned());
        self
    }
}

/// Builder methods of pods that back Services.
pub trait BackendBuild {
    /// With one more address.
    #[must_use]
    fn ip(self, address: &str) -> Self;
    /// With a container's port of a name.
    #[must_use]
    fn serves(self, name: &str, port: i32) -> Self;
    /// With a hostname in a subdomain.
    #[must_use]
    fn hostname(self, name: &str, subdomain: &str) -> Self;
}

impl BackendBuild for Pod {
    fn ip(mut self, address: &str) -> Self {
        let status = self.status.get_or_insert_default();
        status.pod_ips.push(PodIp { ip: address.into() });
        self
    }
    fn serves(mut self, name: &str, port: i32) -> Self {
        let port = ContainerPort {
            name: name.into(),
            container_port: port,
            protocol: "TCP".into(),
        };
        self.spec
            .get_or_insert_default()
            .containers
            .push(Container {
                ports: vec![port.into()],
                ..Container::default()
            });
        self
    }
    fn hostname(mut self, name: &str, subdomain: &str) -> Self {
        let spec = self.spec.get_or_insert_default();
        spec.hostname = name.into();
        spec.subdomain = subdomain.into();
        self
    }
}

/// Builder methods of nodes for topology.
pub trait ZoneBuild {
    /// Ready, in a zone, with a number of processors.
    #[must_use]
    fn works_in(self, zone: &str, processors: &str) -> Self;
}

impl ZoneBuild for Node {
    fn works_in(mut self, zone: &str, processors: &str) -> Self {
        let status = self.status.get_or_insert_default();
        status.conditions.push(NodeCondition {
            r#type: "Ready".to_owned(),
            status: "True".to_owned(),
            ..Default::default()
        });
        status.allocatable.push(Amount {
            key: "cpu".into(),
            value: Some(Quantity::text(processors)),
        });
        self.label("topology.kubernetes.io/zone", zone)
    }
}

/// Endpoints without addresses.
pub fn endpoints(name: &str) -> Endpoints {
    named(name)
}

/// What Endpoints have besides.
pub trait EndpointsBuild {
    /// One more subset, with one port without a name.
    #[must_use]
    fn subset(self, ready: &[&str], not_ready: &[&str], port: i32) -> Self;
}

impl EndpointsBuild for Endpoints {
    fn subset(mut self, ready: &[&str], not_ready: &[&str], port: i32) -> Self {
        let addresses = |ips: &[&str]| {
            let addresses = ips.iter().map(|ip| EndpointAddress {
                ip: (*ip).to_owned(),
                ..Default::default()
            });
            addresses.collect()
        };
        self.subsets.push(EndpointSubset {
            addresses: addresses(ready),
            not_ready_addresses: addresses(not_ready),
            ports: vec![EndpointPort {
                port,
                protocol: "TCP".into(),
                ..Default::default()
            }],
        });
        self
    }
}

/// A slice of a Service, of IPv4 addresses, with one port without a name at 8080, that a manager keeps.
pub fn endpoint_slice(name: &str, service: &Service, manager: &str) -> EndpointSlice {
    EndpointSlice {
        address_type: "IPv4".to_owned(),
        ports: vec![kubernetes_proto::discovery::EndpointPort {
            name: Some(String::new()),
            protocol: Some("TCP".to_owned()),
            port: Some(8080),
            app_protocol: None,
        }],
        ..named::<EndpointSlice>(name)
            .owned_by(service)
            .label("kubernetes.io/service-name", &service.metadata().name)
            .label("endpointslice.kubernetes.io/managed-by", manager)
    }
}

/// What slices have besides.
pub trait SliceBuild {
    /// With the endpoint of a pod that is ready.
    #[must_use]
    fn endpoint(self, pod: &Pod) -> Self;
}

impl SliceBuild for EndpointSlice {
    fn endpoint(mut self, pod: &Pod) -> Self {
        let meta = pod.metadata();
        let addresses = pod.status.iter().flat_map(|status| &status.pod_ips);
        self.endpoints.push(Endpoint {
            addresses: addresses.map(|address| address.ip.to_string()).collect(),
            conditions: Some(EndpointConditions {
                ready: Some(true),
                serving: Some(true),
                terminating: Some(false),
            }),
            target_ref: Some(ObjectReference {
                kind: "Pod".to_owned(),
                namespace: meta.namespace.to_string(),
                name: meta.name.to_string(),
                uid: meta.uid.to_string(),
                ..Default::default()
            }),
            node_name: pod.spec.as_ref().map(|spec| spec.node_name.to_string()),
            ..Default::default()
        });
        self
    }
}
