//! The Kubernetes API's messages, reduced to the fields that controllers read; field numbers are the API's
//! own.
//!
//! Undeclared fields are skipped while decoding. A projection is therefore never sent back whole: writes
//! are patches that name only what changed. What must survive a copy (a pod template's spec) is kept as
//! bytes.

pub mod confidential;
pub mod envelope;
mod int_or_string;
mod lossy;
mod message;
pub mod meta;
mod object;
pub mod opaque;
mod partial;
mod pod;
pub mod quantity;
mod secret;
mod str;
mod wire;

pub use confidential::Confidential;
pub use object::{AnyObject, DynObject, Object, Resource, Selection, cast};
pub use partial::{Partial, RESOURCES_MAX, metadata_only};
pub use str::{Str, TextHash};
pub use wire::Shared;

use object::{object, selected};

/// `core/v1`.
pub mod core {
    #![allow(missing_docs)]
    include!(concat!(env!("OUT_DIR"), "/k8s.core.rs"));
    pub use crate::secret::{BootstrapToken, ServiceAccountToken};

    /// The ConfigMap kube-public/cluster-info, by which nodes that join find the cluster; no other is held.
    #[derive(Clone, PartialEq, prost::Message, serde::Serialize, serde::Deserialize)]
    #[serde(rename_all = "camelCase", default, deny_unknown_fields)]
    pub struct ClusterInfo {
        /// Its metadata.
        #[prost(message, optional, tag = "1")]
        #[serde(skip_serializing_if = "crate::is_default")]
        pub metadata: Option<crate::meta::ObjectMeta>,
        /// The kubeconfig, and its signatures.
        #[prost(btree_map = "string, string", tag = "2")]
        #[serde(skip_serializing_if = "crate::is_default")]
        pub data: std::collections::BTreeMap<String, String>,
    }

    pub use crate::pod::{
        Amount, Container, ContainerPort, ContainerState, ContainerStateTerminated,
        ContainerStatus, EphemeralContainer, EphemeralContainerCommon, InitContainer,
        InlineVolumeSource, PersistentVolumeClaimVolumeSource, Pod, PodCondition,
        PodExtendedResourceClaimStatus, PodIp, PodResourceClaim, PodResourceClaimStatus,
        PodSchedulingGroup, PodSpec, PodStatus, ResourceRequirements, Volume, VolumeMount,
        VolumeSource,
    };
}

/// `apps/v1`.
pub mod apps {
    #![allow(missing_docs)]
    include!(concat!(env!("OUT_DIR"), "/k8s.apps.rs"));
}

/// `batch/v1`.
pub mod batch {
    #![allow(missing_docs)]
    include!(concat!(env!("OUT_DIR"), "/k8s.batch.rs"));
}

/// `discovery/v1`.
pub mod discovery {
    #![allow(missing_docs)]
    include!(concat!(env!("OUT_DIR"), "/k8s.discovery.rs"));
}

/// `policy/v1`.
pub mod policy {
    #![allow(missing_docs)]
    include!(concat!(env!("OUT_DIR"), "/k8s.policy.rs"));
}

/// `autoscaling/v2`.
pub mod autoscaling {
    #![allow(missing_docs)]
    include!(concat!(env!("OUT_DIR"), "/k8s.autoscaling.rs"));
}

/// `resource.k8s.io/v1`, and what its betas alone have.
pub mod resource {
    #![allow(missing_docs)]
    include!(concat!(env!("OUT_DIR"), "/k8s.resource.rs"));
}

/// `certificates.k8s.io/v1` and its betas.
pub mod certificates {
    #![allow(missing_docs)]
    include!(concat!(env!("OUT_DIR"), "/k8s.certificates.rs"));

    /// The trust bundles of the signer `kubernetes.io/kube-apiserver-serving`, as v1beta1 serves them.
    #[derive(Clone, PartialEq, prost::Message, serde::Serialize, serde::Deserialize)]
    #[serde(rename_all = "camelCase", default, deny_unknown_fields)]
    pub struct ServingTrustBundle {
        /// Its metadata.
        #[prost(message, optional, tag = "1")]
        #[serde(skip_serializing_if = "crate::is_default")]
        pub metadata: Option<crate::meta::ObjectMeta>,
        /// What it says.
        #[prost(message, optional, tag = "2")]
        #[serde(skip_serializing_if = "crate::is_default")]
        pub spec: Option<ClusterTrustBundleSpec>,
    }

    /// The same as v1alpha1 serves them, for servers without v1beta1.
    #[derive(Clone, PartialEq, prost::Message, serde::Serialize, serde::Deserialize)]
    #[serde(rename_all = "camelCase", default, deny_unknown_fields)]
    pub struct ServingTrustBundleAlpha {
        /// Its metadata.
        #[prost(message, optional, tag = "1")]
        #[serde(skip_serializing_if = "crate::is_default")]
        pub metadata: Option<crate::meta::ObjectMeta>,
        /// What it says.
        #[prost(message, optional, tag = "2")]
        #[serde(skip_serializing_if = "crate::is_default")]
        pub spec: Option<ClusterTrustBundleSpec>,
    }
}

/// `admissionregistration.k8s.io/v1`.
pub mod admissionregistration {
    #![allow(missing_docs)]
    include!(concat!(env!("OUT_DIR"), "/k8s.admissionregistration.rs"));
}

/// `rbac.authorization.k8s.io/v1`.
pub mod rbac {
    #![allow(missing_docs)]
    include!(concat!(env!("OUT_DIR"), "/k8s.rbac.rs"));
}

/// `coordination.k8s.io/v1`.
pub mod coordination {
    #![allow(missing_docs)]
    include!(concat!(env!("OUT_DIR"), "/k8s.coordination.rs"));
}

/// `internal.apiserver.k8s.io/v1alpha1`.
pub mod apiserverinternal {
    #![allow(missing_docs)]
    include!(concat!(env!("OUT_DIR"), "/k8s.apiserverinternal.rs"));
}

/// `storagemigration.k8s.io/v1beta1`.
pub mod storagemigration {
    #![allow(missing_docs)]
    include!(concat!(env!("OUT_DIR"), "/k8s.storagemigration.rs"));
}

/// `networking.k8s.io/v1`.
pub mod networking {
    #![allow(missing_docs)]
    include!(concat!(env!("OUT_DIR"), "/k8s.networking.rs"));
}

/// `scheduling.k8s.io/v1alpha2`.
pub mod scheduling {
    #![allow(missing_docs)]
    include!(concat!(env!("OUT_DIR"), "/k8s.scheduling.rs"));
}

/// `storage.k8s.io/v1`.
pub mod storage {
    #![allow(missing_docs)]
    include!(concat!(env!("OUT_DIR"), "/k8s.storage.rs"));
}

object!(core::Pod, "", "v1", "Pod", "pods", true, |pod| {
    if let Some(spec) = &mut pod.spec {
        spec.forget_mounts();
    }
});
object!(core::Namespace, "", "v1", "Namespace", "namespaces", false);
object!(
    core::ServiceAccount,
    "",
    "v1",
    "ServiceAccount",
    "serviceaccounts",
    true
);
object!(core::ConfigMap, "", "v1", "ConfigMap", "configmaps", true);
object!(
    apps::Deployment,
    "apps",
    "v1",
    "Deployment",
    "deployments",
    true
);
object!(
    apps::ReplicaSet,
    "apps",
    "v1",
    "ReplicaSet",
    "replicasets",
    true
);
object!(
    apps::StatefulSet,
    "apps",
    "v1",
    "StatefulSet",
    "statefulsets",
    true
);
object!(
    apps::DaemonSet,
    "apps",
    "v1",
    "DaemonSet",
    "daemonsets",
    true
);
object!(
    apps::ControllerRevision,
    "apps",
    "v1",
    "ControllerRevision",
    "controllerrevisions",
    true
);
object!(
    core::PersistentVolumeClaim,
    "",
    "v1",
    "PersistentVolumeClaim",
    "persistentvolumeclaims",
    true
);
object!(core::Node, "", "v1", "Node", "nodes", false, |node| {
    if let Some(status) = &mut node.status {
        status.volumes_in_use.shrink_to_fit();
        status.volumes_attached.shrink_to_fit();
        // A node lists a dozen kinds of capacity; the one that is read is that of its processors.
        status.allocatable.retain(|amount| amount.key == "cpu");
        status.allocatable.shrink_to_fit();
    }
});
object!(core::Service, "", "v1", "Service", "services", true);
object!(core::Endpoints, "", "v1", "Endpoints", "endpoints", true);
object!(
    discovery::EndpointSlice,
    "discovery.k8s.io",
    "v1",
    "EndpointSlice",
    "endpointslices",
    true,
    |slice| slice.endpoints.shrink_to_fit()
);
object!(
    core::ReplicationController,
    "",
    "v1",
    "ReplicationController",
    "replicationcontrollers",
    true
);
object!(batch::Job, "batch", "v1", "Job", "jobs", true);
object!(batch::CronJob, "batch", "v1", "CronJob", "cronjobs", true);
object!(
    policy::PodDisruptionBudget,
    "policy",
    "v1",
    "PodDisruptionBudget",
    "poddisruptionbudgets",
    true
);
object!(
    autoscaling::HorizontalPodAutoscaler,
    "autoscaling",
    "v2",
    "HorizontalPodAutoscaler",
    "horizontalpodautoscalers",
    true
);

object!(
    core::ResourceQuota,
    "",
    "v1",
    "ResourceQuota",
    "resourcequotas",
    true
);
object!(
    resource::ResourceClaim,
    "resource.k8s.io",
    "v1",
    "ResourceClaim",
    "resourceclaims",
    true
);
object!(
    resource::ResourceClaimTemplate,
    "resource.k8s.io",
    "v1",
    "ResourceClaimTemplate",
    "resourceclaimtemplates",
    true
);
object!(
    resource::DeviceClass,
    "resource.k8s.io",
    "v1",
    "DeviceClass",
    "deviceclasses",
    false
);
object!(
    resource::ResourceSlice,
    "resource.k8s.io",
    "v1",
    "ResourceSlice",
    "resourceslices",
    false
);
object!(
    resource::DeviceTaintRule,
    "resource.k8s.io",
    "v1beta2",
    "DeviceTaintRule",
    "devicetaintrules",
    false
);
object!(
    resource::ResourcePoolStatusRequest,
    "resource.k8s.io",
    "v1alpha3",
    "ResourcePoolStatusRequest",
    "resourcepoolstatusrequests",
    false
);

object!(
    certificates::CertificateSigningRequest,
    "certificates.k8s.io",
    "v1",
    "CertificateSigningRequest",
    "certificatesigningrequests",
    false
);
object!(
    certificates::PodCertificateRequest,
    "certificates.k8s.io",
    "v1beta1",
    "PodCertificateRequest",
    "podcertificaterequests",
    true
);
object!(
    admissionregistration::ValidatingAdmissionPolicy,
    "admissionregistration.k8s.io",
    "v1",
    "ValidatingAdmissionPolicy",
    "validatingadmissionpolicies",
    false
);
object!(
    rbac::ClusterRole,
    "rbac.authorization.k8s.io",
    "v1",
    "ClusterRole",
    "clusterroles",
    false
);
selected!(
    core::ClusterInfo,
    "",
    "v1",
    "ConfigMap",
    "configmaps",
    true,
    Selection {
        name: "cluster-info",
        namespace: "kube-public",
        fields: "metadata.name=cluster-info",
    }
);
selected!(
    certificates::ServingTrustBundle,
    "certificates.k8s.io",
    "v1beta1",
    "ClusterTrustBundle",
    "clustertrustbundles",
    false,
    Selection {
        name: "kube-apiserver-serving",
        namespace: "",
        fields: "spec.signerName=kubernetes.io/kube-apiserver-serving",
    }
);
selected!(
    certificates::ServingTrustBundleAlpha,
    "certificates.k8s.io",
    "v1alpha1",
    "ClusterTrustBundle",
    "clustertrustbundles",
    false,
    Selection {
        name: "kube-apiserver-serving-v1alpha1",
        namespace: "",
        fields: "spec.signerName=kubernetes.io/kube-apiserver-serving",
    }
);

object!(
    coordination::Lease,
    "coordination.k8s.io",
    "v1",
    "Lease",
    "leases",
    true
);
object!(
    networking::ServiceCidr,
    "networking.k8s.io",
    "v1",
    "ServiceCIDR",
    "servicecidrs",
    false
);
object!(
    networking::IpAddress,
    "networking.k8s.io",
    "v1",
    "IPAddress",
    "ipaddresses",
    false
);
object!(
    scheduling::PodGroup,
    "scheduling.k8s.io",
    "v1alpha2",
    "PodGroup",
    "podgroups",
    true
);
object!(
    scheduling::Workload,
    "scheduling.k8s.io",
    "v1alpha2",
    "Workload",
    "workloads",
    true
);
object!(
    core::PersistentVolume,
    "",
    "v1",
    "PersistentVolume",
    "persistentvolumes",
    false
);
object!(
    storage::StorageClass,
    "storage.k8s.io",
    "v1",
    "StorageClass",
    "storageclasses",
    false
);
object!(
    storage::VolumeAttributesClass,
    "storage.k8s.io",
    "v1",
    "VolumeAttributesClass",
    "volumeattributesclasses",
    false
);
object!(
    storage::VolumeAttachment,
    "storage.k8s.io",
    "v1",
    "VolumeAttachment",
    "volumeattachments",
    false
);
object!(
    storage::CsiDriver,
    "storage.k8s.io",
    "v1",
    "CSIDriver",
    "csidrivers",
    false
);
object!(
    storage::CsiNode,
    "storage.k8s.io",
    "v1",
    "CSINode",
    "csinodes",
    false
);

object!(
    apiserverinternal::StorageVersion,
    "internal.apiserver.k8s.io",
    "v1alpha1",
    "StorageVersion",
    "storageversions",
    false
);
object!(
    storagemigration::StorageVersionMigration,
    "storagemigration.k8s.io",
    "v1beta1",
    "StorageVersionMigration",
    "storageversionmigrations",
    false
);

/// Every kind that has a projection of all its objects.
pub fn kinds() -> Vec<&'static Resource> {
    vec![
        <core::Pod as Object>::resource(),
        <core::Namespace as Object>::resource(),
        <core::ServiceAccount as Object>::resource(),
        <core::ConfigMap as Object>::resource(),
        <apps::Deployment as Object>::resource(),
        <apps::ReplicaSet as Object>::resource(),
        <apps::StatefulSet as Object>::resource(),
        <apps::DaemonSet as Object>::resource(),
        <apps::ControllerRevision as Object>::resource(),
        <core::PersistentVolumeClaim as Object>::resource(),
        <core::Node as Object>::resource(),
        <core::Service as Object>::resource(),
        <core::Endpoints as Object>::resource(),
        <discovery::EndpointSlice as Object>::resource(),
        <core::ReplicationController as Object>::resource(),
        <batch::Job as Object>::resource(),
        <batch::CronJob as Object>::resource(),
        <policy::PodDisruptionBudget as Object>::resource(),
        <autoscaling::HorizontalPodAutoscaler as Object>::resource(),
        <core::ResourceQuota as Object>::resource(),
        <resource::ResourceClaim as Object>::resource(),
        <resource::ResourceClaimTemplate as Object>::resource(),
        <resource::DeviceClass as Object>::resource(),
        <resource::ResourceSlice as Object>::resource(),
        <resource::DeviceTaintRule as Object>::resource(),
        <resource::ResourcePoolStatusRequest as Object>::resource(),
        <certificates::CertificateSigningRequest as Object>::resource(),
        <certificates::PodCertificateRequest as Object>::resource(),
        <admissionregistration::ValidatingAdmissionPolicy as Object>::resource(),
        <rbac::ClusterRole as Object>::resource(),
        <coordination::Lease as Object>::resource(),
        <networking::ServiceCidr as Object>::resource(),
        <networking::IpAddress as Object>::resource(),
        <scheduling::PodGroup as Object>::resource(),
        <scheduling::Workload as Object>::resource(),
        <core::PersistentVolume as Object>::resource(),
        <storage::StorageClass as Object>::resource(),
        <storage::VolumeAttributesClass as Object>::resource(),
        <storage::VolumeAttachment as Object>::resource(),
        <storage::CsiDriver as Object>::resource(),
        <storage::CsiNode as Object>::resource(),
        <apiserverinternal::StorageVersion as Object>::resource(),
        <storagemigration::StorageVersionMigration as Object>::resource(),
    ]
}

/// Every projection of a part of a resource's objects.
pub fn selections() -> Vec<&'static Resource> {
    vec![
        <core::ServiceAccountToken as Object>::resource(),
        <core::BootstrapToken as Object>::resource(),
        <core::ClusterInfo as Object>::resource(),
        <certificates::ServingTrustBundle as Object>::resource(),
        <certificates::ServingTrustBundleAlpha as Object>::resource(),
    ]
}

/// Whether a field need not stand in JSON.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// The four bytes before every protobuf body of the API.
pub const MAGIC: &[u8; 4] = b"k8s\0";

#[cfg(test)]
mod tests;
