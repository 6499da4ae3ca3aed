//! Every field that our messages declare has the number and the type that the API gives it (1.36). The table
//! is what the API says, written down apart from our messages: a field that is added there must be added
//! here.

use std::collections::BTreeMap;

use prost::Message as _;

use crate::{
    Shared,
    meta::{ObjectMeta, OwnerReference, Time},
    pod::CLAIM,
};

/// Field, number, type; `map` for a map of strings.
const FACTS: &[(&str, i32, &str)] = &[
    ("k8s.meta.ListMeta.resourceVersion", 2, "string"),
    ("k8s.meta.ListMeta.continue", 3, "string"),
    ("k8s.meta.ListMeta.remainingItemCount", 4, "int64"),
    ("k8s.meta.LabelSelector.matchLabels", 1, "map"),
    (
        "k8s.meta.LabelSelector.matchExpressions",
        2,
        "repeated LabelSelectorRequirement",
    ),
    ("k8s.meta.LabelSelectorRequirement.key", 1, "string"),
    ("k8s.meta.LabelSelectorRequirement.operator", 2, "string"),
    (
        "k8s.meta.LabelSelectorRequirement.values",
        3,
        "repeated string",
    ),
    ("k8s.meta.PartialObjectMetadata.metadata", 1, "ObjectMeta"),
    ("k8s.meta.Status.status", 2, "string"),
    ("k8s.meta.Status.message", 3, "string"),
    ("k8s.meta.Status.reason", 4, "string"),
    ("k8s.meta.Status.details", 5, "StatusDetails"),
    ("k8s.meta.Status.code", 6, "int32"),
    ("k8s.meta.StatusDetails.name", 1, "string"),
    ("k8s.meta.StatusDetails.group", 2, "string"),
    ("k8s.meta.StatusDetails.kind", 3, "string"),
    ("k8s.meta.StatusDetails.uid", 6, "string"),
    ("k8s.meta.StatusDetails.causes", 4, "repeated StatusCause"),
    ("k8s.meta.StatusDetails.retryAfterSeconds", 5, "int32"),
    ("k8s.meta.StatusCause.reason", 1, "string"),
    ("k8s.meta.StatusCause.message", 2, "string"),
    ("k8s.meta.StatusCause.field", 3, "string"),
    ("k8s.meta.WatchEvent.type", 1, "string"),
    ("k8s.meta.WatchEvent.object", 2, "RawExtension"),
    ("k8s.meta.RawExtension.raw", 1, "bytes"),
    ("k8s.meta.Unknown.typeMeta", 1, "TypeMeta"),
    ("k8s.meta.Unknown.raw", 2, "bytes"),
    ("k8s.meta.Unknown.contentEncoding", 3, "string"),
    ("k8s.meta.Unknown.contentType", 4, "string"),
    ("k8s.meta.TypeMeta.apiVersion", 1, "string"),
    ("k8s.meta.TypeMeta.kind", 2, "string"),
    ("k8s.meta.IntOrString.type", 1, "int64"),
    ("k8s.meta.IntOrString.intVal", 2, "int32"),
    ("k8s.meta.IntOrString.strVal", 3, "string"),
    ("k8s.core.PodTemplateSpec.metadata", 1, "ObjectMeta"),
    ("k8s.core.PodTemplateSpec.spec", 2, "PodSpec"),
    ("k8s.core.PodFromTemplate.metadata", 1, "ObjectMeta"),
    ("k8s.core.PodFromTemplate.spec", 2, "PodSpec"),
    ("k8s.core.Pod.metadata", 1, "ObjectMeta"),
    ("k8s.core.Pod.spec", 2, "PodSpec"),
    ("k8s.core.Pod.status", 3, "PodStatus"),
    ("k8s.core.PodSpec.nodeName", 10, "string"),
    ("k8s.core.PodSpec.serviceAccountName", 8, "string"),
    ("k8s.core.PodSpec.activeDeadlineSeconds", 5, "int64"),
    ("k8s.core.PodStatus.phase", 1, "string"),
    ("k8s.core.PodStatus.conditions", 2, "repeated PodCondition"),
    ("k8s.core.PodStatus.reason", 4, "string"),
    ("k8s.core.PodStatus.startTime", 7, "Time"),
    ("k8s.core.PodStatus.observedGeneration", 17, "int64"),
    (
        "k8s.core.PodStatus.containerStatuses",
        8,
        "repeated ContainerStatus",
    ),
    ("k8s.core.PodCondition.type", 1, "string"),
    ("k8s.core.PodCondition.observedGeneration", 7, "int64"),
    ("k8s.core.PodCondition.status", 2, "string"),
    ("k8s.core.PodCondition.lastProbeTime", 3, "Time"),
    ("k8s.core.PodCondition.lastTransitionTime", 4, "Time"),
    ("k8s.core.PodCondition.reason", 5, "string"),
    ("k8s.core.PodCondition.message", 6, "string"),
    ("k8s.core.ContainerStatus.name", 1, "string"),
    ("k8s.core.ContainerStatus.ready", 4, "bool"),
    ("k8s.core.ContainerStatus.restartCount", 5, "int32"),
    ("k8s.core.Namespace.metadata", 1, "ObjectMeta"),
    ("k8s.core.Namespace.status", 3, "NamespaceStatus"),
    ("k8s.core.Namespace.spec", 2, "NamespaceSpec"),
    ("k8s.core.NamespaceSpec.finalizers", 1, "repeated string"),
    ("k8s.core.NamespaceStatus.phase", 1, "string"),
    (
        "k8s.core.NamespaceStatus.conditions",
        2,
        "repeated NamespaceCondition",
    ),
    ("k8s.core.NamespaceCondition.type", 1, "string"),
    ("k8s.core.NamespaceCondition.status", 2, "string"),
    ("k8s.core.NamespaceCondition.lastTransitionTime", 4, "Time"),
    ("k8s.core.NamespaceCondition.reason", 5, "string"),
    ("k8s.core.NamespaceCondition.message", 6, "string"),
    ("k8s.core.ServiceAccount.metadata", 1, "ObjectMeta"),
    (
        "k8s.core.ServiceAccount.secrets",
        2,
        "repeated ObjectReference",
    ),
    ("k8s.core.Secret.metadata", 1, "ObjectMeta"),
    ("k8s.core.Secret.data", 2, "map"),
    ("k8s.core.Secret.type", 3, "string"),
    ("k8s.core.ConfigMap.metadata", 1, "ObjectMeta"),
    ("k8s.core.ConfigMap.data", 2, "map"),
    ("k8s.apps.Deployment.metadata", 1, "ObjectMeta"),
    ("k8s.apps.Deployment.spec", 2, "DeploymentSpec"),
    ("k8s.apps.Deployment.status", 3, "DeploymentStatus"),
    ("k8s.apps.DeploymentSpec.replicas", 1, "int32"),
    ("k8s.apps.DeploymentSpec.selector", 2, "LabelSelector"),
    ("k8s.apps.DeploymentSpec.template", 3, "PodTemplateSpec"),
    ("k8s.apps.DeploymentSpec.strategy", 4, "DeploymentStrategy"),
    ("k8s.apps.DeploymentSpec.minReadySeconds", 5, "int32"),
    ("k8s.apps.DeploymentSpec.revisionHistoryLimit", 6, "int32"),
    ("k8s.apps.DeploymentSpec.paused", 7, "bool"),
    (
        "k8s.apps.DeploymentSpec.progressDeadlineSeconds",
        9,
        "int32",
    ),
    ("k8s.apps.DeploymentStrategy.type", 1, "string"),
    (
        "k8s.apps.DeploymentStrategy.rollingUpdate",
        2,
        "RollingUpdateDeployment",
    ),
    (
        "k8s.apps.RollingUpdateDeployment.maxUnavailable",
        1,
        "IntOrString",
    ),
    (
        "k8s.apps.RollingUpdateDeployment.maxSurge",
        2,
        "IntOrString",
    ),
    ("k8s.apps.DeploymentStatus.observedGeneration", 1, "int64"),
    ("k8s.apps.DeploymentStatus.replicas", 2, "int32"),
    ("k8s.apps.DeploymentStatus.updatedReplicas", 3, "int32"),
    ("k8s.apps.DeploymentStatus.readyReplicas", 7, "int32"),
    ("k8s.apps.DeploymentStatus.availableReplicas", 4, "int32"),
    ("k8s.apps.DeploymentStatus.unavailableReplicas", 5, "int32"),
    ("k8s.apps.DeploymentStatus.terminatingReplicas", 9, "int32"),
    (
        "k8s.apps.DeploymentStatus.conditions",
        6,
        "repeated DeploymentCondition",
    ),
    ("k8s.apps.DeploymentStatus.collisionCount", 8, "int32"),
    ("k8s.apps.DeploymentCondition.type", 1, "string"),
    ("k8s.apps.DeploymentCondition.status", 2, "string"),
    ("k8s.apps.DeploymentCondition.lastUpdateTime", 6, "Time"),
    ("k8s.apps.DeploymentCondition.lastTransitionTime", 7, "Time"),
    ("k8s.apps.DeploymentCondition.reason", 4, "string"),
    ("k8s.apps.DeploymentCondition.message", 5, "string"),
    ("k8s.apps.ReplicaSet.metadata", 1, "ObjectMeta"),
    ("k8s.apps.ReplicaSet.spec", 2, "ReplicaSetSpec"),
    ("k8s.apps.ReplicaSet.status", 3, "ReplicaSetStatus"),
    ("k8s.apps.ReplicaSetSpec.replicas", 1, "int32"),
    ("k8s.apps.ReplicaSetSpec.minReadySeconds", 4, "int32"),
    ("k8s.apps.ReplicaSetSpec.selector", 2, "LabelSelector"),
    ("k8s.apps.ReplicaSetSpec.template", 3, "PodTemplateSpec"),
    ("k8s.apps.ReplicaSetStatus.replicas", 1, "int32"),
    ("k8s.apps.ReplicaSetStatus.fullyLabeledReplicas", 2, "int32"),
    ("k8s.apps.ReplicaSetStatus.readyReplicas", 4, "int32"),
    ("k8s.apps.ReplicaSetStatus.availableReplicas", 5, "int32"),
    ("k8s.apps.ReplicaSetStatus.terminatingReplicas", 7, "int32"),
    ("k8s.apps.ReplicaSetStatus.observedGeneration", 3, "int64"),
    (
        "k8s.apps.ReplicaSetStatus.conditions",
        6,
        "repeated ReplicaSetCondition",
    ),
    ("k8s.apps.ReplicaSetCondition.type", 1, "string"),
    ("k8s.apps.ReplicaSetCondition.status", 2, "string"),
    ("k8s.apps.ReplicaSetCondition.lastTransitionTime", 3, "Time"),
    ("k8s.apps.ReplicaSetCondition.reason", 4, "string"),
    ("k8s.apps.ReplicaSetCondition.message", 5, "string"),
    (
        "k8s.core.PodSpecOutline.containers",
        2,
        "repeated ContainerOutline",
    ),
    ("k8s.core.PodSpecOutline.serviceAccountName", 8, "string"),
    (
        "k8s.core.PodSpecOutline.initContainers",
        20,
        "repeated ContainerOutline",
    ),
    ("k8s.core.ContainerOutline.name", 1, "string"),
    ("k8s.core.ContainerOutline.image", 2, "string"),
    ("k8s.core.ContainerOutline.command", 3, "repeated string"),
    ("k8s.core.ContainerOutline.args", 4, "repeated string"),
    ("k8s.core.ContainerOutline.env", 7, "repeated EnvVarOutline"),
    ("k8s.core.EnvVarOutline.name", 1, "string"),
    ("k8s.core.EnvVarOutline.value", 2, "string"),
    ("k8s.core.PodSpec.volumes", 1, "repeated Volume"),
    ("k8s.core.PodSpec.hostname", 16, "string"),
    ("k8s.core.PodSpec.tolerations", 22, "repeated Toleration"),
    ("k8s.core.PodSpec.subdomain", 17, "string"),
    ("k8s.core.PodSpec.affinity", 18, "Affinity"),
    (
        "k8s.core.PodSpec.initContainers",
        20,
        "repeated InitContainer",
    ),
    ("k8s.core.Volume.name", 1, "string"),
    ("k8s.core.Volume.volumeSource", 2, "VolumeSource"),
    (
        "k8s.core.VolumeSource.persistentVolumeClaim",
        10,
        "PersistentVolumeClaimVolumeSource",
    ),
    (
        "k8s.core.PersistentVolumeClaimVolumeSource.claimName",
        1,
        "string",
    ),
    (
        "k8s.core.PersistentVolumeClaimVolumeSource.readOnly",
        2,
        "bool",
    ),
    ("k8s.core.Affinity.nodeAffinity", 1, "NodeAffinity"),
    (
        "k8s.core.NodeAffinity.requiredDuringSchedulingIgnoredDuringExecution",
        1,
        "NodeSelector",
    ),
    (
        "k8s.core.NodeSelector.nodeSelectorTerms",
        1,
        "repeated NodeSelectorTerm",
    ),
    (
        "k8s.core.NodeSelectorTerm.matchExpressions",
        1,
        "repeated NodeSelectorRequirement",
    ),
    (
        "k8s.core.NodeSelectorTerm.matchFields",
        2,
        "repeated NodeSelectorRequirement",
    ),
    ("k8s.core.NodeSelectorRequirement.key", 1, "string"),
    ("k8s.core.NodeSelectorRequirement.operator", 2, "string"),
    (
        "k8s.core.NodeSelectorRequirement.values",
        3,
        "repeated string",
    ),
    ("k8s.core.Toleration.key", 1, "string"),
    ("k8s.core.Toleration.operator", 2, "string"),
    ("k8s.core.Toleration.value", 3, "string"),
    ("k8s.core.Toleration.effect", 4, "string"),
    ("k8s.core.Toleration.tolerationSeconds", 5, "int64"),
    ("k8s.core.PodPlacement.nodeSelector", 7, "map"),
    ("k8s.core.PodPlacement.nodeName", 10, "string"),
    ("k8s.core.PodPlacement.hostNetwork", 11, "bool"),
    ("k8s.core.PodPlacement.affinity", 18, "Affinity"),
    (
        "k8s.core.PodPlacement.tolerations",
        22,
        "repeated Toleration",
    ),
    ("k8s.core.InitContainer.name", 1, "string"),
    ("k8s.core.InitContainer.restartPolicy", 24, "string"),
    (
        "k8s.core.PodStatus.initContainerStatuses",
        10,
        "repeated ContainerStatus",
    ),
    (
        "k8s.core.PodStatus.ephemeralContainerStatuses",
        13,
        "repeated ContainerStatus",
    ),
    (
        "k8s.core.PersistentVolumeClaimTemplate.metadata",
        1,
        "ObjectMeta",
    ),
    (
        "k8s.core.PersistentVolumeClaimTemplate.spec",
        2,
        "PersistentVolumeClaimSpec",
    ),
    ("k8s.core.PersistentVolumeClaim.metadata", 1, "ObjectMeta"),
    ("k8s.core.Node.metadata", 1, "ObjectMeta"),
    ("k8s.core.Node.spec", 2, "NodeSpec"),
    ("k8s.core.Node.status", 3, "NodeStatus"),
    ("k8s.core.NodeSpec.podCIDR", 1, "string"),
    ("k8s.core.NodeSpec.podCIDRs", 7, "repeated string"),
    ("k8s.core.NodeSpec.unschedulable", 4, "bool"),
    ("k8s.core.NodeSpec.taints", 5, "repeated Taint"),
    ("k8s.core.Taint.key", 1, "string"),
    ("k8s.core.Taint.value", 2, "string"),
    ("k8s.core.Taint.effect", 3, "string"),
    ("k8s.core.Taint.timeAdded", 4, "Time"),
    (
        "k8s.core.NodeStatus.conditions",
        4,
        "repeated NodeCondition",
    ),
    ("k8s.core.NodeCondition.type", 1, "string"),
    ("k8s.core.NodeCondition.status", 2, "string"),
    ("k8s.core.NodeCondition.lastHeartbeatTime", 3, "Time"),
    ("k8s.core.NodeCondition.lastTransitionTime", 4, "Time"),
    ("k8s.core.NodeCondition.reason", 5, "string"),
    ("k8s.core.NodeCondition.message", 6, "string"),
    ("k8s.core.ReplicationController.metadata", 1, "ObjectMeta"),
    (
        "k8s.core.ReplicationController.spec",
        2,
        "ReplicationControllerSpec",
    ),
    (
        "k8s.core.ReplicationController.status",
        3,
        "ReplicationControllerStatus",
    ),
    ("k8s.core.ReplicationControllerSpec.replicas", 1, "int32"),
    ("k8s.core.ReplicationControllerSpec.selector", 2, "map"),
    (
        "k8s.core.ReplicationControllerSpec.template",
        3,
        "PodTemplateSpec",
    ),
    (
        "k8s.core.ReplicationControllerSpec.minReadySeconds",
        4,
        "int32",
    ),
    ("k8s.core.ReplicationControllerStatus.replicas", 1, "int32"),
    (
        "k8s.core.ReplicationControllerStatus.fullyLabeledReplicas",
        2,
        "int32",
    ),
    (
        "k8s.core.ReplicationControllerStatus.observedGeneration",
        3,
        "int64",
    ),
    (
        "k8s.core.ReplicationControllerStatus.readyReplicas",
        4,
        "int32",
    ),
    (
        "k8s.core.ReplicationControllerStatus.availableReplicas",
        5,
        "int32",
    ),
    (
        "k8s.core.ReplicationControllerStatus.conditions",
        6,
        "repeated ReplicationControllerCondition",
    ),
    ("k8s.core.ReplicationControllerCondition.type", 1, "string"),
    (
        "k8s.core.ReplicationControllerCondition.status",
        2,
        "string",
    ),
    (
        "k8s.core.ReplicationControllerCondition.lastTransitionTime",
        3,
        "Time",
    ),
    (
        "k8s.core.ReplicationControllerCondition.reason",
        4,
        "string",
    ),
    (
        "k8s.core.ReplicationControllerCondition.message",
        5,
        "string",
    ),
    ("k8s.apps.StatefulSet.metadata", 1, "ObjectMeta"),
    ("k8s.apps.StatefulSet.spec", 2, "StatefulSetSpec"),
    ("k8s.apps.StatefulSet.status", 3, "StatefulSetStatus"),
    ("k8s.apps.StatefulSetSpec.replicas", 1, "int32"),
    ("k8s.apps.StatefulSetSpec.selector", 2, "LabelSelector"),
    ("k8s.apps.StatefulSetSpec.template", 3, "PodTemplateSpec"),
    (
        "k8s.apps.StatefulSetSpec.volumeClaimTemplates",
        4,
        "repeated PersistentVolumeClaimTemplate",
    ),
    ("k8s.apps.StatefulSetSpec.serviceName", 5, "string"),
    ("k8s.apps.StatefulSetSpec.podManagementPolicy", 6, "string"),
    (
        "k8s.apps.StatefulSetSpec.updateStrategy",
        7,
        "StatefulSetUpdateStrategy",
    ),
    ("k8s.apps.StatefulSetSpec.revisionHistoryLimit", 8, "int32"),
    ("k8s.apps.StatefulSetSpec.minReadySeconds", 9, "int32"),
    (
        "k8s.apps.StatefulSetSpec.persistentVolumeClaimRetentionPolicy",
        10,
        "StatefulSetPersistentVolumeClaimRetentionPolicy",
    ),
    (
        "k8s.apps.StatefulSetSpec.ordinals",
        11,
        "StatefulSetOrdinals",
    ),
    ("k8s.apps.StatefulSetUpdateStrategy.type", 1, "string"),
    (
        "k8s.apps.StatefulSetUpdateStrategy.rollingUpdate",
        2,
        "RollingUpdateStatefulSetStrategy",
    ),
    (
        "k8s.apps.RollingUpdateStatefulSetStrategy.partition",
        1,
        "int32",
    ),
    (
        "k8s.apps.RollingUpdateStatefulSetStrategy.maxUnavailable",
        2,
        "IntOrString",
    ),
    (
        "k8s.apps.StatefulSetPersistentVolumeClaimRetentionPolicy.whenDeleted",
        1,
        "string",
    ),
    (
        "k8s.apps.StatefulSetPersistentVolumeClaimRetentionPolicy.whenScaled",
        2,
        "string",
    ),
    ("k8s.apps.StatefulSetOrdinals.start", 1, "int32"),
    ("k8s.apps.StatefulSetStatus.observedGeneration", 1, "int64"),
    ("k8s.apps.StatefulSetStatus.replicas", 2, "int32"),
    ("k8s.apps.StatefulSetStatus.readyReplicas", 3, "int32"),
    ("k8s.apps.StatefulSetStatus.currentReplicas", 4, "int32"),
    ("k8s.apps.StatefulSetStatus.updatedReplicas", 5, "int32"),
    ("k8s.apps.StatefulSetStatus.currentRevision", 6, "string"),
    ("k8s.apps.StatefulSetStatus.updateRevision", 7, "string"),
    ("k8s.apps.StatefulSetStatus.collisionCount", 9, "int32"),
    ("k8s.apps.StatefulSetStatus.availableReplicas", 11, "int32"),
    ("k8s.apps.DaemonSet.metadata", 1, "ObjectMeta"),
    ("k8s.apps.DaemonSet.spec", 2, "DaemonSetSpec"),
    ("k8s.apps.DaemonSet.status", 3, "DaemonSetStatus"),
    ("k8s.apps.DaemonSetSpec.selector", 1, "LabelSelector"),
    ("k8s.apps.DaemonSetSpec.template", 2, "PodTemplateSpec"),
    (
        "k8s.apps.DaemonSetSpec.updateStrategy",
        3,
        "DaemonSetUpdateStrategy",
    ),
    ("k8s.apps.DaemonSetSpec.minReadySeconds", 4, "int32"),
    ("k8s.apps.DaemonSetSpec.revisionHistoryLimit", 6, "int32"),
    ("k8s.apps.DaemonSetUpdateStrategy.type", 1, "string"),
    (
        "k8s.apps.DaemonSetUpdateStrategy.rollingUpdate",
        2,
        "RollingUpdateDaemonSet",
    ),
    (
        "k8s.apps.RollingUpdateDaemonSet.maxUnavailable",
        1,
        "IntOrString",
    ),
    ("k8s.apps.RollingUpdateDaemonSet.maxSurge", 2, "IntOrString"),
    (
        "k8s.apps.DaemonSetStatus.currentNumberScheduled",
        1,
        "int32",
    ),
    ("k8s.apps.DaemonSetStatus.numberMisscheduled", 2, "int32"),
    (
        "k8s.apps.DaemonSetStatus.desiredNumberScheduled",
        3,
        "int32",
    ),
    ("k8s.apps.DaemonSetStatus.numberReady", 4, "int32"),
    ("k8s.apps.DaemonSetStatus.observedGeneration", 5, "int64"),
    (
        "k8s.apps.DaemonSetStatus.updatedNumberScheduled",
        6,
        "int32",
    ),
    ("k8s.apps.DaemonSetStatus.numberAvailable", 7, "int32"),
    ("k8s.apps.DaemonSetStatus.numberUnavailable", 8, "int32"),
    ("k8s.apps.DaemonSetStatus.collisionCount", 9, "int32"),
    ("k8s.apps.ControllerRevision.metadata", 1, "ObjectMeta"),
    ("k8s.apps.ControllerRevision.data", 2, "RawExtension"),
    ("k8s.apps.ControllerRevision.revision", 3, "int64"),
    ("k8s.batch.Job.metadata", 1, "ObjectMeta"),
    ("k8s.batch.Job.spec", 2, "JobSpec"),
    ("k8s.batch.Job.status", 3, "JobStatus"),
    ("k8s.batch.JobSpec.ttlSecondsAfterFinished", 8, "int32"),
    ("k8s.batch.JobStatus.conditions", 1, "repeated JobCondition"),
    ("k8s.batch.JobStatus.startTime", 2, "Time"),
    ("k8s.batch.JobStatus.completionTime", 3, "Time"),
    ("k8s.batch.JobCondition.type", 1, "string"),
    ("k8s.batch.JobCondition.status", 2, "string"),
    ("k8s.batch.JobCondition.lastProbeTime", 3, "Time"),
    ("k8s.batch.JobCondition.lastTransitionTime", 4, "Time"),
    ("k8s.batch.JobCondition.reason", 5, "string"),
    ("k8s.batch.JobCondition.message", 6, "string"),
    ("k8s.core.ContainerStatus.state", 2, "ContainerState"),
    (
        "k8s.core.ContainerState.terminated",
        3,
        "ContainerStateTerminated",
    ),
    ("k8s.core.ContainerStateTerminated.exitCode", 1, "int32"),
    ("k8s.core.ContainerStateTerminated.finishedAt", 6, "Time"),
    ("k8s.core.ObjectReference.kind", 1, "string"),
    ("k8s.core.ObjectReference.namespace", 2, "string"),
    ("k8s.core.ObjectReference.name", 3, "string"),
    ("k8s.core.ObjectReference.uid", 4, "string"),
    ("k8s.core.ObjectReference.apiVersion", 5, "string"),
    ("k8s.core.ObjectReference.resourceVersion", 6, "string"),
    ("k8s.core.ObjectReference.fieldPath", 7, "string"),
    ("k8s.batch.JobSpec.parallelism", 1, "int32"),
    ("k8s.batch.JobSpec.completions", 2, "int32"),
    ("k8s.batch.JobSpec.activeDeadlineSeconds", 3, "int64"),
    ("k8s.batch.JobSpec.podFailurePolicy", 11, "PodFailurePolicy"),
    ("k8s.batch.JobSpec.successPolicy", 16, "SuccessPolicy"),
    ("k8s.batch.JobSpec.backoffLimit", 7, "int32"),
    ("k8s.batch.JobSpec.backoffLimitPerIndex", 12, "int32"),
    ("k8s.batch.JobSpec.maxFailedIndexes", 13, "int32"),
    ("k8s.batch.JobSpec.selector", 4, "LabelSelector"),
    ("k8s.batch.JobSpec.template", 6, "PodTemplateSpec"),
    ("k8s.batch.JobSpec.completionMode", 9, "string"),
    ("k8s.batch.JobSpec.suspend", 10, "bool"),
    ("k8s.batch.JobSpec.podReplacementPolicy", 14, "string"),
    ("k8s.batch.JobSpec.managedBy", 15, "string"),
    (
        "k8s.batch.PodFailurePolicy.rules",
        1,
        "repeated PodFailurePolicyRule",
    ),
    ("k8s.batch.PodFailurePolicyRule.action", 1, "string"),
    (
        "k8s.batch.PodFailurePolicyRule.onExitCodes",
        2,
        "PodFailurePolicyOnExitCodesRequirement",
    ),
    (
        "k8s.batch.PodFailurePolicyRule.onPodConditions",
        3,
        "repeated PodFailurePolicyOnPodConditionsPattern",
    ),
    (
        "k8s.batch.PodFailurePolicyOnExitCodesRequirement.containerName",
        1,
        "string",
    ),
    (
        "k8s.batch.PodFailurePolicyOnExitCodesRequirement.operator",
        2,
        "string",
    ),
    (
        "k8s.batch.PodFailurePolicyOnExitCodesRequirement.values",
        3,
        "repeated int32",
    ),
    (
        "k8s.batch.PodFailurePolicyOnPodConditionsPattern.type",
        1,
        "string",
    ),
    (
        "k8s.batch.PodFailurePolicyOnPodConditionsPattern.status",
        2,
        "string",
    ),
    (
        "k8s.batch.SuccessPolicy.rules",
        1,
        "repeated SuccessPolicyRule",
    ),
    ("k8s.batch.SuccessPolicyRule.succeededIndexes", 1, "string"),
    ("k8s.batch.SuccessPolicyRule.succeededCount", 2, "int32"),
    ("k8s.batch.JobStatus.active", 4, "int32"),
    ("k8s.batch.JobStatus.succeeded", 5, "int32"),
    ("k8s.batch.JobStatus.failed", 6, "int32"),
    ("k8s.batch.JobStatus.terminating", 11, "int32"),
    ("k8s.batch.JobStatus.completedIndexes", 7, "string"),
    ("k8s.batch.JobStatus.failedIndexes", 10, "string"),
    (
        "k8s.batch.JobStatus.uncountedTerminatedPods",
        8,
        "UncountedTerminatedPods",
    ),
    ("k8s.batch.JobStatus.ready", 9, "int32"),
    (
        "k8s.batch.UncountedTerminatedPods.succeeded",
        1,
        "repeated string",
    ),
    (
        "k8s.batch.UncountedTerminatedPods.failed",
        2,
        "repeated string",
    ),
    ("k8s.batch.CronJob.metadata", 1, "ObjectMeta"),
    ("k8s.batch.CronJob.spec", 2, "CronJobSpec"),
    ("k8s.batch.CronJob.status", 3, "CronJobStatus"),
    ("k8s.batch.CronJobSpec.schedule", 1, "string"),
    ("k8s.batch.CronJobSpec.timeZone", 8, "string"),
    ("k8s.batch.CronJobSpec.startingDeadlineSeconds", 2, "int64"),
    ("k8s.batch.CronJobSpec.concurrencyPolicy", 3, "string"),
    ("k8s.batch.CronJobSpec.suspend", 4, "bool"),
    ("k8s.batch.CronJobSpec.jobTemplate", 5, "JobTemplateSpec"),
    (
        "k8s.batch.CronJobSpec.successfulJobsHistoryLimit",
        6,
        "int32",
    ),
    ("k8s.batch.CronJobSpec.failedJobsHistoryLimit", 7, "int32"),
    (
        "k8s.batch.CronJobStatus.active",
        1,
        "repeated ObjectReference",
    ),
    ("k8s.batch.CronJobStatus.lastScheduleTime", 4, "Time"),
    ("k8s.batch.CronJobStatus.lastSuccessfulTime", 5, "Time"),
    ("k8s.batch.JobTemplateSpec.metadata", 1, "ObjectMeta"),
    ("k8s.batch.JobTemplateSpec.spec", 2, "JobSpec"),
    ("k8s.batch.JobFromTemplate.metadata", 1, "ObjectMeta"),
    ("k8s.batch.JobFromTemplate.spec", 2, "JobSpec"),
    ("k8s.meta.Quantity.string", 1, "string"),
    ("k8s.core.PodSpec.containers", 2, "repeated Container"),
    ("k8s.core.Container.ports", 6, "repeated ContainerPort"),
    ("k8s.core.ContainerPort.name", 1, "string"),
    ("k8s.core.ContainerPort.containerPort", 3, "int32"),
    ("k8s.core.ContainerPort.protocol", 4, "string"),
    ("k8s.core.InitContainer.ports", 6, "repeated ContainerPort"),
    ("k8s.core.PodStatus.podIPs", 12, "repeated PodIP"),
    ("k8s.core.PodIP.ip", 1, "string"),
    ("k8s.core.NodeStatus.allocatable", 2, "map"),
    ("k8s.core.NodeSpec.providerID", 3, "string"),
    ("k8s.core.NodeStatus.addresses", 5, "repeated NodeAddress"),
    ("k8s.core.NodeAddress.type", 1, "string"),
    ("k8s.core.NodeAddress.address", 2, "string"),
    ("k8s.core.Service.status", 3, "ServiceStatus"),
    (
        "k8s.core.ServiceStatus.loadBalancer",
        1,
        "LoadBalancerStatus",
    ),
    (
        "k8s.core.LoadBalancerStatus.ingress",
        1,
        "repeated LoadBalancerIngress",
    ),
    ("k8s.core.LoadBalancerIngress.ip", 1, "string"),
    ("k8s.core.LoadBalancerIngress.hostname", 2, "string"),
    ("k8s.core.LoadBalancerIngress.ipMode", 3, "string"),
    (
        "k8s.core.LoadBalancerIngress.ports",
        4,
        "repeated PortStatus",
    ),
    ("k8s.core.PortStatus.port", 1, "int32"),
    ("k8s.core.PortStatus.protocol", 2, "string"),
    ("k8s.core.PortStatus.error", 3, "string"),
    ("k8s.core.ServiceSpec.externalIPs", 5, "repeated string"),
    ("k8s.core.ServiceSpec.sessionAffinity", 7, "string"),
    ("k8s.core.ServiceSpec.loadBalancerIP", 8, "string"),
    (
        "k8s.core.ServiceSpec.loadBalancerSourceRanges",
        9,
        "repeated string",
    ),
    ("k8s.core.ServiceSpec.externalTrafficPolicy", 11, "string"),
    ("k8s.core.ServiceSpec.healthCheckNodePort", 12, "int32"),
    (
        "k8s.core.ServiceSpec.sessionAffinityConfig",
        14,
        "SessionAffinityConfig",
    ),
    ("k8s.core.ServiceSpec.loadBalancerClass", 21, "string"),
    (
        "k8s.core.SessionAffinityConfig.clientIP",
        1,
        "ClientIPConfig",
    ),
    ("k8s.core.ClientIPConfig.timeoutSeconds", 1, "int32"),
    ("k8s.core.ServicePort.port", 3, "int32"),
    ("k8s.core.Service.metadata", 1, "ObjectMeta"),
    ("k8s.core.Service.spec", 2, "ServiceSpec"),
    ("k8s.core.ServiceSpec.ports", 1, "repeated ServicePort"),
    ("k8s.core.ServiceSpec.selector", 2, "map"),
    ("k8s.core.ServiceSpec.clusterIP", 3, "string"),
    ("k8s.core.ServiceSpec.type", 4, "string"),
    ("k8s.core.ServiceSpec.publishNotReadyAddresses", 13, "bool"),
    ("k8s.core.ServiceSpec.ipFamilies", 19, "repeated string"),
    ("k8s.core.ServiceSpec.trafficDistribution", 23, "string"),
    ("k8s.core.ServicePort.name", 1, "string"),
    ("k8s.core.ServicePort.protocol", 2, "string"),
    ("k8s.core.ServicePort.targetPort", 4, "IntOrString"),
    ("k8s.core.ServicePort.appProtocol", 6, "string"),
    ("k8s.core.Endpoints.metadata", 1, "ObjectMeta"),
    ("k8s.core.Endpoints.subsets", 2, "repeated EndpointSubset"),
    (
        "k8s.core.EndpointSubset.addresses",
        1,
        "repeated EndpointAddress",
    ),
    (
        "k8s.core.EndpointSubset.notReadyAddresses",
        2,
        "repeated EndpointAddress",
    ),
    ("k8s.core.EndpointSubset.ports", 3, "repeated EndpointPort"),
    ("k8s.core.EndpointAddress.ip", 1, "string"),
    ("k8s.core.EndpointAddress.targetRef", 2, "ObjectReference"),
    ("k8s.core.EndpointAddress.hostname", 3, "string"),
    ("k8s.core.EndpointAddress.nodeName", 4, "string"),
    ("k8s.core.EndpointPort.name", 1, "string"),
    ("k8s.core.EndpointPort.port", 2, "int32"),
    ("k8s.core.EndpointPort.protocol", 3, "string"),
    ("k8s.core.EndpointPort.appProtocol", 4, "string"),
    ("k8s.discovery.EndpointSlice.metadata", 1, "ObjectMeta"),
    (
        "k8s.discovery.EndpointSlice.endpoints",
        2,
        "repeated Endpoint",
    ),
    (
        "k8s.discovery.EndpointSlice.ports",
        3,
        "repeated EndpointPort",
    ),
    ("k8s.discovery.EndpointSlice.addressType", 4, "string"),
    ("k8s.discovery.Endpoint.addresses", 1, "repeated string"),
    ("k8s.discovery.Endpoint.conditions", 2, "EndpointConditions"),
    ("k8s.discovery.Endpoint.hostname", 3, "string"),
    ("k8s.discovery.Endpoint.targetRef", 4, "ObjectReference"),
    ("k8s.discovery.Endpoint.deprecatedTopology", 5, "map"),
    ("k8s.discovery.Endpoint.nodeName", 6, "string"),
    ("k8s.discovery.Endpoint.zone", 7, "string"),
    ("k8s.discovery.Endpoint.hints", 8, "EndpointHints"),
    ("k8s.discovery.EndpointConditions.ready", 1, "bool"),
    ("k8s.discovery.EndpointConditions.serving", 2, "bool"),
    ("k8s.discovery.EndpointConditions.terminating", 3, "bool"),
    (
        "k8s.discovery.EndpointHints.forZones",
        1,
        "repeated ForZone",
    ),
    (
        "k8s.discovery.EndpointHints.forNodes",
        2,
        "repeated ForNode",
    ),
    ("k8s.discovery.ForZone.name", 1, "string"),
    ("k8s.discovery.ForNode.name", 1, "string"),
    ("k8s.discovery.EndpointPort.name", 1, "string"),
    ("k8s.discovery.EndpointPort.protocol", 2, "string"),
    ("k8s.discovery.EndpointPort.port", 3, "int32"),
    ("k8s.discovery.EndpointPort.appProtocol", 4, "string"),
    ("k8s.coordination.Lease.metadata", 1, "ObjectMeta"),
    ("k8s.coordination.Lease.spec", 2, "LeaseSpec"),
    ("k8s.coordination.LeaseSpec.renewTime", 4, "Time"),
    ("k8s.networking.ServiceCIDR.metadata", 1, "ObjectMeta"),
    ("k8s.networking.ServiceCIDR.spec", 2, "ServiceCIDRSpec"),
    ("k8s.networking.ServiceCIDR.status", 3, "ServiceCIDRStatus"),
    ("k8s.networking.ServiceCIDRSpec.cidrs", 1, "repeated string"),
    (
        "k8s.networking.ServiceCIDRStatus.conditions",
        1,
        "repeated Condition",
    ),
    ("k8s.networking.IPAddress.metadata", 1, "ObjectMeta"),
    ("k8s.policy.PodDisruptionBudget.metadata", 1, "ObjectMeta"),
    (
        "k8s.policy.PodDisruptionBudget.spec",
        2,
        "PodDisruptionBudgetSpec",
    ),
    (
        "k8s.policy.PodDisruptionBudget.status",
        3,
        "PodDisruptionBudgetStatus",
    ),
    (
        "k8s.policy.PodDisruptionBudgetSpec.minAvailable",
        1,
        "IntOrString",
    ),
    (
        "k8s.policy.PodDisruptionBudgetSpec.selector",
        2,
        "LabelSelector",
    ),
    (
        "k8s.policy.PodDisruptionBudgetSpec.maxUnavailable",
        3,
        "IntOrString",
    ),
    (
        "k8s.policy.PodDisruptionBudgetStatus.observedGeneration",
        1,
        "int64",
    ),
    (
        "k8s.policy.PodDisruptionBudgetStatus.disruptedPods",
        2,
        "map",
    ),
    (
        "k8s.policy.PodDisruptionBudgetStatus.disruptionsAllowed",
        3,
        "int32",
    ),
    (
        "k8s.policy.PodDisruptionBudgetStatus.currentHealthy",
        4,
        "int32",
    ),
    (
        "k8s.policy.PodDisruptionBudgetStatus.desiredHealthy",
        5,
        "int32",
    ),
    (
        "k8s.policy.PodDisruptionBudgetStatus.expectedPods",
        6,
        "int32",
    ),
    (
        "k8s.policy.PodDisruptionBudgetStatus.conditions",
        7,
        "repeated Condition",
    ),
    (
        "k8s.autoscaling.HorizontalPodAutoscaler.metadata",
        1,
        "ObjectMeta",
    ),
    (
        "k8s.autoscaling.HorizontalPodAutoscaler.spec",
        2,
        "HorizontalPodAutoscalerSpec",
    ),
    (
        "k8s.autoscaling.HorizontalPodAutoscaler.status",
        3,
        "HorizontalPodAutoscalerStatus",
    ),
    (
        "k8s.autoscaling.HorizontalPodAutoscalerSpec.scaleTargetRef",
        1,
        "CrossVersionObjectReference",
    ),
    (
        "k8s.autoscaling.HorizontalPodAutoscalerSpec.minReplicas",
        2,
        "int32",
    ),
    (
        "k8s.autoscaling.HorizontalPodAutoscalerSpec.maxReplicas",
        3,
        "int32",
    ),
    (
        "k8s.autoscaling.HorizontalPodAutoscalerSpec.metrics",
        4,
        "repeated MetricSpec",
    ),
    (
        "k8s.autoscaling.HorizontalPodAutoscalerSpec.behavior",
        5,
        "HorizontalPodAutoscalerBehavior",
    ),
    (
        "k8s.autoscaling.CrossVersionObjectReference.kind",
        1,
        "string",
    ),
    (
        "k8s.autoscaling.CrossVersionObjectReference.name",
        2,
        "string",
    ),
    (
        "k8s.autoscaling.CrossVersionObjectReference.apiVersion",
        3,
        "string",
    ),
    ("k8s.autoscaling.MetricSpec.type", 1, "string"),
    ("k8s.autoscaling.MetricSpec.object", 2, "ObjectMetricSource"),
    ("k8s.autoscaling.MetricSpec.pods", 3, "PodsMetricSource"),
    (
        "k8s.autoscaling.MetricSpec.resource",
        4,
        "ResourceMetricSource",
    ),
    (
        "k8s.autoscaling.MetricSpec.external",
        5,
        "ExternalMetricSource",
    ),
    (
        "k8s.autoscaling.MetricSpec.containerResource",
        7,
        "ContainerResourceMetricSource",
    ),
    (
        "k8s.autoscaling.ObjectMetricSource.describedObject",
        1,
        "CrossVersionObjectReference",
    ),
    (
        "k8s.autoscaling.ObjectMetricSource.target",
        2,
        "MetricTarget",
    ),
    (
        "k8s.autoscaling.ObjectMetricSource.metric",
        3,
        "MetricIdentifier",
    ),
    (
        "k8s.autoscaling.PodsMetricSource.metric",
        1,
        "MetricIdentifier",
    ),
    ("k8s.autoscaling.PodsMetricSource.target", 2, "MetricTarget"),
    ("k8s.autoscaling.ResourceMetricSource.name", 1, "string"),
    (
        "k8s.autoscaling.ResourceMetricSource.target",
        2,
        "MetricTarget",
    ),
    (
        "k8s.autoscaling.ContainerResourceMetricSource.name",
        1,
        "string",
    ),
    (
        "k8s.autoscaling.ContainerResourceMetricSource.target",
        2,
        "MetricTarget",
    ),
    (
        "k8s.autoscaling.ContainerResourceMetricSource.container",
        3,
        "string",
    ),
    (
        "k8s.autoscaling.ExternalMetricSource.metric",
        1,
        "MetricIdentifier",
    ),
    (
        "k8s.autoscaling.ExternalMetricSource.target",
        2,
        "MetricTarget",
    ),
    ("k8s.autoscaling.MetricIdentifier.name", 1, "string"),
    (
        "k8s.autoscaling.MetricIdentifier.selector",
        2,
        "LabelSelector",
    ),
    ("k8s.autoscaling.MetricTarget.type", 1, "string"),
    ("k8s.autoscaling.MetricTarget.value", 2, "Quantity"),
    ("k8s.autoscaling.MetricTarget.averageValue", 3, "Quantity"),
    (
        "k8s.autoscaling.MetricTarget.averageUtilization",
        4,
        "int32",
    ),
    (
        "k8s.autoscaling.HorizontalPodAutoscalerBehavior.scaleUp",
        1,
        "HPAScalingRules",
    ),
    (
        "k8s.autoscaling.HorizontalPodAutoscalerBehavior.scaleDown",
        2,
        "HPAScalingRules",
    ),
    ("k8s.autoscaling.HPAScalingRules.selectPolicy", 1, "string"),
    (
        "k8s.autoscaling.HPAScalingRules.policies",
        2,
        "repeated HPAScalingPolicy",
    ),
    (
        "k8s.autoscaling.HPAScalingRules.stabilizationWindowSeconds",
        3,
        "int32",
    ),
    ("k8s.autoscaling.HPAScalingRules.tolerance", 4, "Quantity"),
    ("k8s.autoscaling.HPAScalingPolicy.type", 1, "string"),
    ("k8s.autoscaling.HPAScalingPolicy.value", 2, "int32"),
    ("k8s.autoscaling.HPAScalingPolicy.periodSeconds", 3, "int32"),
    (
        "k8s.autoscaling.HorizontalPodAutoscalerStatus.observedGeneration",
        1,
        "int64",
    ),
    (
        "k8s.autoscaling.HorizontalPodAutoscalerStatus.lastScaleTime",
        2,
        "Time",
    ),
    (
        "k8s.autoscaling.HorizontalPodAutoscalerStatus.currentReplicas",
        3,
        "int32",
    ),
    (
        "k8s.autoscaling.HorizontalPodAutoscalerStatus.desiredReplicas",
        4,
        "int32",
    ),
    (
        "k8s.autoscaling.HorizontalPodAutoscalerStatus.currentMetrics",
        5,
        "repeated MetricStatus",
    ),
    (
        "k8s.autoscaling.HorizontalPodAutoscalerStatus.conditions",
        6,
        "repeated HorizontalPodAutoscalerCondition",
    ),
    (
        "k8s.autoscaling.HorizontalPodAutoscalerCondition.type",
        1,
        "string",
    ),
    (
        "k8s.autoscaling.HorizontalPodAutoscalerCondition.status",
        2,
        "string",
    ),
    (
        "k8s.autoscaling.HorizontalPodAutoscalerCondition.lastTransitionTime",
        3,
        "Time",
    ),
    (
        "k8s.autoscaling.HorizontalPodAutoscalerCondition.reason",
        4,
        "string",
    ),
    (
        "k8s.autoscaling.HorizontalPodAutoscalerCondition.message",
        5,
        "string",
    ),
    ("k8s.autoscaling.MetricStatus.type", 1, "string"),
    (
        "k8s.autoscaling.MetricStatus.object",
        2,
        "ObjectMetricStatus",
    ),
    ("k8s.autoscaling.MetricStatus.pods", 3, "PodsMetricStatus"),
    (
        "k8s.autoscaling.MetricStatus.resource",
        4,
        "ResourceMetricStatus",
    ),
    (
        "k8s.autoscaling.MetricStatus.external",
        5,
        "ExternalMetricStatus",
    ),
    (
        "k8s.autoscaling.MetricStatus.containerResource",
        7,
        "ContainerResourceMetricStatus",
    ),
    (
        "k8s.autoscaling.ObjectMetricStatus.metric",
        1,
        "MetricIdentifier",
    ),
    (
        "k8s.autoscaling.ObjectMetricStatus.current",
        2,
        "MetricValueStatus",
    ),
    (
        "k8s.autoscaling.ObjectMetricStatus.describedObject",
        3,
        "CrossVersionObjectReference",
    ),
    (
        "k8s.autoscaling.PodsMetricStatus.metric",
        1,
        "MetricIdentifier",
    ),
    (
        "k8s.autoscaling.PodsMetricStatus.current",
        2,
        "MetricValueStatus",
    ),
    ("k8s.autoscaling.ResourceMetricStatus.name", 1, "string"),
    (
        "k8s.autoscaling.ResourceMetricStatus.current",
        2,
        "MetricValueStatus",
    ),
    (
        "k8s.autoscaling.ContainerResourceMetricStatus.name",
        1,
        "string",
    ),
    (
        "k8s.autoscaling.ContainerResourceMetricStatus.current",
        2,
        "MetricValueStatus",
    ),
    (
        "k8s.autoscaling.ContainerResourceMetricStatus.container",
        3,
        "string",
    ),
    (
        "k8s.autoscaling.ExternalMetricStatus.metric",
        1,
        "MetricIdentifier",
    ),
    (
        "k8s.autoscaling.ExternalMetricStatus.current",
        2,
        "MetricValueStatus",
    ),
    ("k8s.autoscaling.MetricValueStatus.value", 1, "Quantity"),
    (
        "k8s.autoscaling.MetricValueStatus.averageValue",
        2,
        "Quantity",
    ),
    (
        "k8s.autoscaling.MetricValueStatus.averageUtilization",
        3,
        "int32",
    ),
    ("k8s.meta.Condition.type", 1, "string"),
    ("k8s.meta.Condition.status", 2, "string"),
    ("k8s.meta.Condition.observedGeneration", 3, "int64"),
    ("k8s.meta.Condition.lastTransitionTime", 4, "Time"),
    ("k8s.meta.Condition.reason", 5, "string"),
    ("k8s.meta.Condition.message", 6, "string"),
    ("k8s.core.PodSpec.overhead", 32, "map"),
    ("k8s.core.PodSpec.resources", 40, "ResourceRequirements"),
    ("k8s.core.Container.name", 1, "string"),
    ("k8s.core.Container.resources", 8, "ResourceRequirements"),
    ("k8s.core.ResourceRequirements.requests", 2, "map"),
    (
        "k8s.core.InitContainer.resources",
        8,
        "ResourceRequirements",
    ),
    ("k8s.core.PodSpec.priorityClassName", 24, "string"),
    ("k8s.core.ResourceRequirements.limits", 1, "map"),
    ("k8s.core.Affinity.podAffinity", 2, "PodAffinity"),
    ("k8s.core.Affinity.podAntiAffinity", 3, "PodAntiAffinity"),
    (
        "k8s.core.PodAffinity.requiredDuringSchedulingIgnoredDuringExecution",
        1,
        "repeated PodAffinityTerm",
    ),
    (
        "k8s.core.PodAffinity.preferredDuringSchedulingIgnoredDuringExecution",
        2,
        "repeated WeightedPodAffinityTerm",
    ),
    (
        "k8s.core.PodAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution",
        1,
        "repeated PodAffinityTerm",
    ),
    (
        "k8s.core.PodAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution",
        2,
        "repeated WeightedPodAffinityTerm",
    ),
    ("k8s.core.PodAffinityTerm.namespaces", 2, "repeated string"),
    (
        "k8s.core.PodAffinityTerm.namespaceSelector",
        4,
        "LabelSelector",
    ),
    (
        "k8s.core.WeightedPodAffinityTerm.podAffinityTerm",
        2,
        "PodAffinityTerm",
    ),
    (
        "k8s.core.PodSpec.resourceClaims",
        39,
        "repeated PodResourceClaim",
    ),
    ("k8s.core.PodSpec.schedulingGroup", 43, "PodSchedulingGroup"),
    ("k8s.core.PodResourceClaim.name", 1, "string"),
    ("k8s.core.PodResourceClaim.resourceClaimName", 3, "string"),
    (
        "k8s.core.PodResourceClaim.resourceClaimTemplateName",
        4,
        "string",
    ),
    ("k8s.core.PodSchedulingGroup.podGroupName", 1, "string"),
    (
        "k8s.core.PodStatus.resourceClaimStatuses",
        15,
        "repeated PodResourceClaimStatus",
    ),
    ("k8s.core.PodResourceClaimStatus.name", 1, "string"),
    (
        "k8s.core.PodResourceClaimStatus.resourceClaimName",
        2,
        "string",
    ),
    ("k8s.core.PodStatus.qosClass", 9, "string"),
    (
        "k8s.core.PodStatus.extendedResourceClaimStatus",
        18,
        "PodExtendedResourceClaimStatus",
    ),
    (
        "k8s.core.PodExtendedResourceClaimStatus.resourceClaimName",
        2,
        "string",
    ),
    ("k8s.core.ContainerStatus.allocatedResources", 10, "map"),
    (
        "k8s.core.ContainerStatus.resources",
        11,
        "ResourceRequirements",
    ),
    (
        "k8s.core.PersistentVolumeClaim.spec",
        2,
        "PersistentVolumeClaimSpec",
    ),
    (
        "k8s.core.PersistentVolumeClaim.status",
        3,
        "PersistentVolumeClaimStatus",
    ),
    (
        "k8s.core.PersistentVolumeClaimSpec.resources",
        2,
        "VolumeResourceRequirements",
    ),
    (
        "k8s.core.PersistentVolumeClaimSpec.storageClassName",
        5,
        "string",
    ),
    (
        "k8s.core.PersistentVolumeClaimSpec.volumeAttributesClassName",
        9,
        "string",
    ),
    ("k8s.core.VolumeResourceRequirements.requests", 2, "map"),
    (
        "k8s.core.PersistentVolumeClaimStatus.allocatedResources",
        5,
        "map",
    ),
    (
        "k8s.core.PersistentVolumeClaimStatus.currentVolumeAttributesClassName",
        8,
        "string",
    ),
    (
        "k8s.core.PersistentVolumeClaimStatus.modifyVolumeStatus",
        9,
        "ModifyVolumeStatus",
    ),
    (
        "k8s.core.ModifyVolumeStatus.targetVolumeAttributesClassName",
        1,
        "string",
    ),
    (
        "k8s.core.ServiceSpec.allocateLoadBalancerNodePorts",
        20,
        "bool",
    ),
    ("k8s.core.ServicePort.nodePort", 5, "int32"),
    ("k8s.core.ResourceQuota.metadata", 1, "ObjectMeta"),
    ("k8s.core.ResourceQuota.spec", 2, "ResourceQuotaSpec"),
    ("k8s.core.ResourceQuota.status", 3, "ResourceQuotaStatus"),
    ("k8s.core.ResourceQuotaSpec.hard", 1, "map"),
    ("k8s.core.ResourceQuotaSpec.scopes", 2, "repeated string"),
    (
        "k8s.core.ResourceQuotaSpec.scopeSelector",
        3,
        "ScopeSelector",
    ),
    (
        "k8s.core.ScopeSelector.matchExpressions",
        1,
        "repeated ScopedResourceSelectorRequirement",
    ),
    (
        "k8s.core.ScopedResourceSelectorRequirement.scopeName",
        1,
        "string",
    ),
    (
        "k8s.core.ScopedResourceSelectorRequirement.operator",
        2,
        "string",
    ),
    (
        "k8s.core.ScopedResourceSelectorRequirement.values",
        3,
        "repeated string",
    ),
    ("k8s.core.ResourceQuotaStatus.hard", 1, "map"),
    ("k8s.core.ResourceQuotaStatus.used", 2, "map"),
    ("k8s.resource.ResourceClaim.metadata", 1, "ObjectMeta"),
    ("k8s.resource.ResourceClaim.spec", 2, "ResourceClaimSpec"),
    (
        "k8s.resource.ResourceClaim.status",
        3,
        "ResourceClaimStatus",
    ),
    ("k8s.resource.ResourceClaimSpec.devices", 1, "DeviceClaim"),
    (
        "k8s.resource.ResourceClaimStatus.allocation",
        1,
        "AllocationResult",
    ),
    (
        "k8s.resource.ResourceClaimStatus.reservedFor",
        2,
        "repeated ResourceClaimConsumerReference",
    ),
    (
        "k8s.resource.AllocationResult.devices",
        1,
        "DeviceAllocationResult",
    ),
    (
        "k8s.resource.DeviceAllocationResult.results",
        1,
        "repeated DeviceRequestAllocationResult",
    ),
    (
        "k8s.resource.DeviceRequestAllocationResult.request",
        1,
        "string",
    ),
    (
        "k8s.resource.DeviceRequestAllocationResult.driver",
        2,
        "string",
    ),
    (
        "k8s.resource.DeviceRequestAllocationResult.pool",
        3,
        "string",
    ),
    (
        "k8s.resource.DeviceRequestAllocationResult.device",
        4,
        "string",
    ),
    (
        "k8s.resource.DeviceRequestAllocationResult.adminAccess",
        5,
        "bool",
    ),
    (
        "k8s.resource.DeviceRequestAllocationResult.tolerations",
        6,
        "repeated DeviceToleration",
    ),
    (
        "k8s.resource.DeviceRequestAllocationResult.shareID",
        9,
        "string",
    ),
    ("k8s.resource.DeviceToleration.key", 1, "string"),
    ("k8s.resource.DeviceToleration.operator", 2, "string"),
    ("k8s.resource.DeviceToleration.value", 3, "string"),
    ("k8s.resource.DeviceToleration.effect", 4, "string"),
    (
        "k8s.resource.DeviceToleration.tolerationSeconds",
        5,
        "int64",
    ),
    (
        "k8s.resource.ResourceClaimConsumerReference.apiGroup",
        1,
        "string",
    ),
    (
        "k8s.resource.ResourceClaimConsumerReference.resource",
        3,
        "string",
    ),
    (
        "k8s.resource.ResourceClaimConsumerReference.name",
        4,
        "string",
    ),
    (
        "k8s.resource.ResourceClaimConsumerReference.uid",
        5,
        "string",
    ),
    (
        "k8s.resource.ResourceClaimTemplate.metadata",
        1,
        "ObjectMeta",
    ),
    (
        "k8s.resource.ResourceClaimTemplate.spec",
        2,
        "ResourceClaimTemplateSpec",
    ),
    (
        "k8s.resource.ResourceClaimTemplateSpec.metadata",
        1,
        "ObjectMeta",
    ),
    (
        "k8s.resource.ResourceClaimTemplateSpec.spec",
        2,
        "ResourceClaimSpec",
    ),
    (
        "k8s.resource.ResourceClaimFromTemplate.metadata",
        1,
        "ObjectMeta",
    ),
    (
        "k8s.resource.ResourceClaimFromTemplate.spec",
        2,
        "ResourceClaimSpec",
    ),
    (
        "k8s.resource.DeviceClaim.requests",
        1,
        "repeated DeviceRequest",
    ),
    ("k8s.resource.DeviceRequest.name", 1, "string"),
    (
        "k8s.resource.DeviceRequest.exactly",
        2,
        "ExactDeviceRequest",
    ),
    (
        "k8s.resource.DeviceRequest.firstAvailable",
        3,
        "repeated DeviceSubRequest",
    ),
    (
        "k8s.resource.ExactDeviceRequest.deviceClassName",
        1,
        "string",
    ),
    (
        "k8s.resource.ExactDeviceRequest.allocationMode",
        3,
        "string",
    ),
    ("k8s.resource.ExactDeviceRequest.count", 4, "int64"),
    ("k8s.resource.ExactDeviceRequest.adminAccess", 5, "bool"),
    ("k8s.resource.DeviceSubRequest.name", 1, "string"),
    ("k8s.resource.DeviceSubRequest.deviceClassName", 2, "string"),
    ("k8s.resource.DeviceSubRequest.allocationMode", 4, "string"),
    ("k8s.resource.DeviceSubRequest.count", 5, "int64"),
    ("k8s.resource.DeviceClass.metadata", 1, "ObjectMeta"),
    ("k8s.resource.DeviceClass.spec", 2, "DeviceClassSpec"),
    (
        "k8s.resource.DeviceClassSpec.extendedResourceName",
        4,
        "string",
    ),
    ("k8s.resource.ResourceSlice.metadata", 1, "ObjectMeta"),
    ("k8s.resource.ResourceSlice.spec", 2, "ResourceSliceSpec"),
    ("k8s.resource.ResourceSliceSpec.driver", 1, "string"),
    ("k8s.resource.ResourceSliceSpec.pool", 2, "ResourcePool"),
    ("k8s.resource.ResourceSliceSpec.nodeName", 3, "string"),
    (
        "k8s.resource.ResourceSliceSpec.devices",
        6,
        "repeated Device",
    ),
    ("k8s.resource.ResourcePool.name", 1, "string"),
    ("k8s.resource.ResourcePool.generation", 2, "int64"),
    ("k8s.resource.ResourcePool.resourceSliceCount", 3, "int64"),
    ("k8s.resource.Device.name", 1, "string"),
    ("k8s.resource.Device.taints", 8, "repeated DeviceTaint"),
    ("k8s.resource.DeviceTaint.key", 1, "string"),
    ("k8s.resource.DeviceTaint.value", 2, "string"),
    ("k8s.resource.DeviceTaint.effect", 3, "string"),
    ("k8s.resource.DeviceTaint.timeAdded", 4, "Time"),
    ("k8s.resource.DeviceTaintRule.metadata", 1, "ObjectMeta"),
    (
        "k8s.resource.DeviceTaintRule.spec",
        2,
        "DeviceTaintRuleSpec",
    ),
    (
        "k8s.resource.DeviceTaintRule.status",
        3,
        "DeviceTaintRuleStatus",
    ),
    (
        "k8s.resource.DeviceTaintRuleSpec.deviceSelector",
        1,
        "DeviceTaintSelector",
    ),
    ("k8s.resource.DeviceTaintRuleSpec.taint", 2, "DeviceTaint"),
    ("k8s.resource.DeviceTaintSelector.driver", 2, "string"),
    ("k8s.resource.DeviceTaintSelector.pool", 3, "string"),
    ("k8s.resource.DeviceTaintSelector.device", 4, "string"),
    (
        "k8s.resource.DeviceTaintRuleStatus.conditions",
        1,
        "repeated Condition",
    ),
    (
        "k8s.resource.ResourcePoolStatusRequest.metadata",
        1,
        "ObjectMeta",
    ),
    (
        "k8s.resource.ResourcePoolStatusRequest.spec",
        2,
        "ResourcePoolStatusRequestSpec",
    ),
    (
        "k8s.resource.ResourcePoolStatusRequest.status",
        3,
        "ResourcePoolStatusRequestStatus",
    ),
    (
        "k8s.resource.ResourcePoolStatusRequestSpec.driver",
        1,
        "string",
    ),
    (
        "k8s.resource.ResourcePoolStatusRequestSpec.poolName",
        2,
        "string",
    ),
    (
        "k8s.resource.ResourcePoolStatusRequestSpec.limit",
        3,
        "int32",
    ),
    (
        "k8s.resource.ResourcePoolStatusRequestStatus.pools",
        2,
        "repeated PoolStatus",
    ),
    (
        "k8s.resource.ResourcePoolStatusRequestStatus.conditions",
        3,
        "repeated Condition",
    ),
    (
        "k8s.resource.ResourcePoolStatusRequestStatus.poolCount",
        6,
        "int32",
    ),
    ("k8s.resource.PoolStatus.driver", 1, "string"),
    ("k8s.resource.PoolStatus.poolName", 2, "string"),
    ("k8s.resource.PoolStatus.nodeName", 3, "string"),
    ("k8s.resource.PoolStatus.totalDevices", 4, "int32"),
    ("k8s.resource.PoolStatus.allocatedDevices", 5, "int32"),
    ("k8s.resource.PoolStatus.availableDevices", 6, "int32"),
    ("k8s.resource.PoolStatus.unavailableDevices", 7, "int32"),
    ("k8s.resource.PoolStatus.resourceSliceCount", 8, "int32"),
    ("k8s.resource.PoolStatus.generation", 9, "int64"),
    ("k8s.resource.PoolStatus.validationError", 10, "string"),
    (
        "k8s.certificates.CertificateSigningRequest.metadata",
        1,
        "ObjectMeta",
    ),
    (
        "k8s.certificates.CertificateSigningRequest.spec",
        2,
        "CertificateSigningRequestSpec",
    ),
    (
        "k8s.certificates.CertificateSigningRequest.status",
        3,
        "CertificateSigningRequestStatus",
    ),
    (
        "k8s.certificates.CertificateSigningRequestSpec.request",
        1,
        "bytes",
    ),
    (
        "k8s.certificates.CertificateSigningRequestSpec.username",
        2,
        "string",
    ),
    (
        "k8s.certificates.CertificateSigningRequestSpec.uid",
        3,
        "string",
    ),
    (
        "k8s.certificates.CertificateSigningRequestSpec.groups",
        4,
        "repeated string",
    ),
    (
        "k8s.certificates.CertificateSigningRequestSpec.usages",
        5,
        "repeated string",
    ),
    (
        "k8s.certificates.CertificateSigningRequestSpec.extra",
        6,
        "map",
    ),
    (
        "k8s.certificates.CertificateSigningRequestSpec.signerName",
        7,
        "string",
    ),
    (
        "k8s.certificates.CertificateSigningRequestSpec.expirationSeconds",
        8,
        "int32",
    ),
    ("k8s.certificates.ExtraValue.items", 1, "repeated string"),
    (
        "k8s.certificates.CertificateSigningRequestStatus.conditions",
        1,
        "repeated CertificateSigningRequestCondition",
    ),
    (
        "k8s.certificates.CertificateSigningRequestStatus.certificate",
        2,
        "bytes",
    ),
    (
        "k8s.certificates.CertificateSigningRequestCondition.type",
        1,
        "string",
    ),
    (
        "k8s.certificates.CertificateSigningRequestCondition.reason",
        2,
        "string",
    ),
    (
        "k8s.certificates.CertificateSigningRequestCondition.message",
        3,
        "string",
    ),
    (
        "k8s.certificates.CertificateSigningRequestCondition.lastUpdateTime",
        4,
        "Time",
    ),
    (
        "k8s.certificates.CertificateSigningRequestCondition.lastTransitionTime",
        5,
        "Time",
    ),
    (
        "k8s.certificates.CertificateSigningRequestCondition.status",
        6,
        "string",
    ),
    (
        "k8s.certificates.PodCertificateRequest.metadata",
        1,
        "ObjectMeta",
    ),
    (
        "k8s.certificates.ClusterTrustBundle.metadata",
        1,
        "ObjectMeta",
    ),
    (
        "k8s.certificates.ClusterTrustBundle.spec",
        2,
        "ClusterTrustBundleSpec",
    ),
    (
        "k8s.certificates.ClusterTrustBundleSpec.signerName",
        1,
        "string",
    ),
    (
        "k8s.certificates.ClusterTrustBundleSpec.trustBundle",
        2,
        "string",
    ),
    ("k8s.rbac.ClusterRole.metadata", 1, "ObjectMeta"),
    ("k8s.rbac.ClusterRole.rules", 2, "repeated PolicyRule"),
    ("k8s.rbac.ClusterRole.aggregationRule", 3, "AggregationRule"),
    (
        "k8s.rbac.AggregationRule.clusterRoleSelectors",
        1,
        "repeated LabelSelector",
    ),
    ("k8s.rbac.PolicyRule.verbs", 1, "repeated string"),
    ("k8s.rbac.PolicyRule.apiGroups", 2, "repeated string"),
    ("k8s.rbac.PolicyRule.resources", 3, "repeated string"),
    ("k8s.rbac.PolicyRule.resourceNames", 4, "repeated string"),
    ("k8s.rbac.PolicyRule.nonResourceURLs", 5, "repeated string"),
    ("k8s.core.PodSpec.securityContext", 14, "PodSecurityContext"),
    (
        "k8s.core.PodSpec.ephemeralContainers",
        34,
        "repeated EphemeralContainer",
    ),
    (
        "k8s.core.PodSecurityContext.seLinuxOptions",
        1,
        "SELinuxOptions",
    ),
    (
        "k8s.core.PodSecurityContext.seLinuxChangePolicy",
        13,
        "string",
    ),
    (
        "k8s.core.SecurityContext.seLinuxOptions",
        3,
        "SELinuxOptions",
    ),
    ("k8s.core.SELinuxOptions.user", 1, "string"),
    ("k8s.core.SELinuxOptions.role", 2, "string"),
    ("k8s.core.SELinuxOptions.type", 3, "string"),
    ("k8s.core.SELinuxOptions.level", 4, "string"),
    ("k8s.core.VolumeMount.name", 1, "string"),
    (
        "k8s.core.EphemeralContainer.ephemeralContainerCommon",
        1,
        "EphemeralContainerCommon",
    ),
    ("k8s.core.EphemeralContainerCommon.name", 1, "string"),
    (
        "k8s.core.EphemeralContainerCommon.volumeMounts",
        9,
        "repeated VolumeMount",
    ),
    (
        "k8s.core.EphemeralContainerCommon.securityContext",
        15,
        "SecurityContext",
    ),
    ("k8s.core.Container.volumeMounts", 9, "repeated VolumeMount"),
    ("k8s.core.Container.securityContext", 15, "SecurityContext"),
    ("k8s.core.VolumeSource.hostPath", 1, "HostPathVolumeSource"),
    (
        "k8s.core.VolumeSource.gcePersistentDisk",
        3,
        "GCEPersistentDiskVolumeSource",
    ),
    (
        "k8s.core.VolumeSource.awsElasticBlockStore",
        4,
        "AWSElasticBlockStoreVolumeSource",
    ),
    ("k8s.core.VolumeSource.nfs", 7, "NFSVolumeSource"),
    ("k8s.core.VolumeSource.iscsi", 8, "ISCSIVolumeSource"),
    ("k8s.core.VolumeSource.flexVolume", 12, "FlexVolumeSource"),
    ("k8s.core.VolumeSource.cinder", 13, "CinderVolumeSource"),
    ("k8s.core.VolumeSource.fc", 17, "FCVolumeSource"),
    (
        "k8s.core.VolumeSource.azureFile",
        18,
        "AzureFileVolumeSource",
    ),
    (
        "k8s.core.VolumeSource.vsphereVolume",
        20,
        "VsphereVirtualDiskVolumeSource",
    ),
    (
        "k8s.core.VolumeSource.azureDisk",
        22,
        "AzureDiskVolumeSource",
    ),
    (
        "k8s.core.VolumeSource.portworxVolume",
        24,
        "PortworxVolumeSource",
    ),
    ("k8s.core.VolumeSource.csi", 28, "CSIVolumeSource"),
    (
        "k8s.core.VolumeSource.ephemeral",
        29,
        "EphemeralVolumeSource",
    ),
    ("k8s.core.HostPathVolumeSource.path", 1, "string"),
    ("k8s.core.HostPathVolumeSource.type", 2, "string"),
    ("k8s.core.NFSVolumeSource.server", 1, "string"),
    ("k8s.core.NFSVolumeSource.path", 2, "string"),
    ("k8s.core.NFSVolumeSource.readOnly", 3, "bool"),
    ("k8s.core.FCVolumeSource.targetWWNs", 1, "repeated string"),
    ("k8s.core.FCVolumeSource.lun", 2, "int32"),
    ("k8s.core.FCVolumeSource.fsType", 3, "string"),
    ("k8s.core.FCVolumeSource.readOnly", 4, "bool"),
    ("k8s.core.FCVolumeSource.wwids", 5, "repeated string"),
    ("k8s.core.ISCSIVolumeSource.targetPortal", 1, "string"),
    ("k8s.core.ISCSIVolumeSource.iqn", 2, "string"),
    ("k8s.core.ISCSIVolumeSource.lun", 3, "int32"),
    ("k8s.core.ISCSIVolumeSource.fsType", 5, "string"),
    ("k8s.core.ISCSIVolumeSource.readOnly", 6, "bool"),
    ("k8s.core.CSIVolumeSource.driver", 1, "string"),
    ("k8s.core.CSIVolumeSource.readOnly", 2, "bool"),
    ("k8s.core.CSIVolumeSource.fsType", 3, "string"),
    (
        "k8s.core.EphemeralVolumeSource.volumeClaimTemplate",
        1,
        "PersistentVolumeClaimTemplate",
    ),
    ("k8s.core.FlexVolumeSource.driver", 1, "string"),
    ("k8s.core.FlexVolumeSource.fsType", 2, "string"),
    ("k8s.core.FlexVolumeSource.readOnly", 4, "bool"),
    ("k8s.core.GCEPersistentDiskVolumeSource.pdName", 1, "string"),
    ("k8s.core.GCEPersistentDiskVolumeSource.fsType", 2, "string"),
    (
        "k8s.core.GCEPersistentDiskVolumeSource.partition",
        3,
        "int32",
    ),
    ("k8s.core.GCEPersistentDiskVolumeSource.readOnly", 4, "bool"),
    (
        "k8s.core.AWSElasticBlockStoreVolumeSource.volumeID",
        1,
        "string",
    ),
    (
        "k8s.core.AWSElasticBlockStoreVolumeSource.fsType",
        2,
        "string",
    ),
    (
        "k8s.core.AWSElasticBlockStoreVolumeSource.partition",
        3,
        "int32",
    ),
    (
        "k8s.core.AWSElasticBlockStoreVolumeSource.readOnly",
        4,
        "bool",
    ),
    ("k8s.core.AzureDiskVolumeSource.diskName", 1, "string"),
    ("k8s.core.AzureDiskVolumeSource.diskURI", 2, "string"),
    ("k8s.core.AzureDiskVolumeSource.cachingMode", 3, "string"),
    ("k8s.core.AzureDiskVolumeSource.fsType", 4, "string"),
    ("k8s.core.AzureDiskVolumeSource.readOnly", 5, "bool"),
    ("k8s.core.AzureDiskVolumeSource.kind", 6, "string"),
    ("k8s.core.AzureFileVolumeSource.secretName", 1, "string"),
    ("k8s.core.AzureFileVolumeSource.shareName", 2, "string"),
    ("k8s.core.AzureFileVolumeSource.readOnly", 3, "bool"),
    ("k8s.core.CinderVolumeSource.volumeID", 1, "string"),
    ("k8s.core.CinderVolumeSource.fsType", 2, "string"),
    ("k8s.core.CinderVolumeSource.readOnly", 3, "bool"),
    (
        "k8s.core.VsphereVirtualDiskVolumeSource.volumePath",
        1,
        "string",
    ),
    (
        "k8s.core.VsphereVirtualDiskVolumeSource.fsType",
        2,
        "string",
    ),
    (
        "k8s.core.VsphereVirtualDiskVolumeSource.storagePolicyName",
        3,
        "string",
    ),
    (
        "k8s.core.VsphereVirtualDiskVolumeSource.storagePolicyID",
        4,
        "string",
    ),
    ("k8s.core.PortworxVolumeSource.volumeID", 1, "string"),
    ("k8s.core.PortworxVolumeSource.fsType", 2, "string"),
    ("k8s.core.PortworxVolumeSource.readOnly", 3, "bool"),
    (
        "k8s.core.InitContainer.volumeMounts",
        9,
        "repeated VolumeMount",
    ),
    (
        "k8s.core.InitContainer.securityContext",
        15,
        "SecurityContext",
    ),
    (
        "k8s.core.ContainerState.waiting",
        1,
        "ContainerStateWaiting",
    ),
    (
        "k8s.core.PersistentVolumeClaimSpec.accessModes",
        1,
        "repeated string",
    ),
    ("k8s.core.PersistentVolumeClaimSpec.volumeName", 3, "string"),
    (
        "k8s.core.PersistentVolumeClaimSpec.selector",
        4,
        "LabelSelector",
    ),
    ("k8s.core.PersistentVolumeClaimSpec.volumeMode", 6, "string"),
    ("k8s.core.PersistentVolumeClaimStatus.phase", 1, "string"),
    (
        "k8s.core.PersistentVolumeClaimStatus.accessModes",
        2,
        "repeated string",
    ),
    ("k8s.core.PersistentVolumeClaimStatus.capacity", 3, "map"),
    (
        "k8s.core.PersistentVolumeClaimStatus.conditions",
        4,
        "repeated PersistentVolumeClaimCondition",
    ),
    ("k8s.core.PersistentVolumeClaimCondition.type", 1, "string"),
    (
        "k8s.core.PersistentVolumeClaimCondition.status",
        2,
        "string",
    ),
    (
        "k8s.core.PersistentVolumeClaimCondition.lastProbeTime",
        3,
        "Time",
    ),
    (
        "k8s.core.PersistentVolumeClaimCondition.lastTransitionTime",
        4,
        "Time",
    ),
    (
        "k8s.core.PersistentVolumeClaimCondition.reason",
        5,
        "string",
    ),
    (
        "k8s.core.PersistentVolumeClaimCondition.message",
        6,
        "string",
    ),
    ("k8s.core.ModifyVolumeStatus.status", 2, "string"),
    ("k8s.core.PersistentVolume.metadata", 1, "ObjectMeta"),
    ("k8s.core.PersistentVolume.spec", 2, "PersistentVolumeSpec"),
    (
        "k8s.core.PersistentVolume.status",
        3,
        "PersistentVolumeStatus",
    ),
    ("k8s.core.PersistentVolumeSpec.capacity", 1, "map"),
    (
        "k8s.core.PersistentVolumeSpec.persistentVolumeSource",
        2,
        "PersistentVolumeSource",
    ),
    (
        "k8s.core.PersistentVolumeSpec.accessModes",
        3,
        "repeated string",
    ),
    (
        "k8s.core.PersistentVolumeSpec.claimRef",
        4,
        "ObjectReference",
    ),
    (
        "k8s.core.PersistentVolumeSpec.persistentVolumeReclaimPolicy",
        5,
        "string",
    ),
    (
        "k8s.core.PersistentVolumeSpec.storageClassName",
        6,
        "string",
    ),
    ("k8s.core.PersistentVolumeSpec.volumeMode", 8, "string"),
    (
        "k8s.core.PersistentVolumeSpec.volumeAttributesClassName",
        10,
        "string",
    ),
    (
        "k8s.core.PersistentVolumeSource.gcePersistentDisk",
        1,
        "GCEPersistentDiskVolumeSource",
    ),
    (
        "k8s.core.PersistentVolumeSource.awsElasticBlockStore",
        2,
        "AWSElasticBlockStoreVolumeSource",
    ),
    (
        "k8s.core.PersistentVolumeSource.hostPath",
        3,
        "HostPathVolumeSource",
    ),
    ("k8s.core.PersistentVolumeSource.nfs", 5, "NFSVolumeSource"),
    (
        "k8s.core.PersistentVolumeSource.iscsi",
        7,
        "ISCSIPersistentVolumeSource",
    ),
    (
        "k8s.core.PersistentVolumeSource.cinder",
        8,
        "CinderPersistentVolumeSource",
    ),
    ("k8s.core.PersistentVolumeSource.fc", 10, "FCVolumeSource"),
    (
        "k8s.core.PersistentVolumeSource.flexVolume",
        12,
        "FlexPersistentVolumeSource",
    ),
    (
        "k8s.core.PersistentVolumeSource.azureFile",
        13,
        "AzureFilePersistentVolumeSource",
    ),
    (
        "k8s.core.PersistentVolumeSource.vsphereVolume",
        14,
        "VsphereVirtualDiskVolumeSource",
    ),
    (
        "k8s.core.PersistentVolumeSource.azureDisk",
        16,
        "AzureDiskVolumeSource",
    ),
    (
        "k8s.core.PersistentVolumeSource.portworxVolume",
        18,
        "PortworxVolumeSource",
    ),
    (
        "k8s.core.PersistentVolumeSource.local",
        20,
        "LocalVolumeSource",
    ),
    (
        "k8s.core.PersistentVolumeSource.csi",
        22,
        "CSIPersistentVolumeSource",
    ),
    (
        "k8s.core.ISCSIPersistentVolumeSource.targetPortal",
        1,
        "string",
    ),
    ("k8s.core.ISCSIPersistentVolumeSource.iqn", 2, "string"),
    ("k8s.core.ISCSIPersistentVolumeSource.lun", 3, "int32"),
    ("k8s.core.ISCSIPersistentVolumeSource.fsType", 5, "string"),
    ("k8s.core.ISCSIPersistentVolumeSource.readOnly", 6, "bool"),
    (
        "k8s.core.CinderPersistentVolumeSource.volumeID",
        1,
        "string",
    ),
    ("k8s.core.CinderPersistentVolumeSource.fsType", 2, "string"),
    ("k8s.core.CinderPersistentVolumeSource.readOnly", 3, "bool"),
    ("k8s.core.FlexPersistentVolumeSource.driver", 1, "string"),
    ("k8s.core.FlexPersistentVolumeSource.fsType", 2, "string"),
    ("k8s.core.FlexPersistentVolumeSource.readOnly", 4, "bool"),
    (
        "k8s.core.AzureFilePersistentVolumeSource.secretName",
        1,
        "string",
    ),
    (
        "k8s.core.AzureFilePersistentVolumeSource.shareName",
        2,
        "string",
    ),
    (
        "k8s.core.AzureFilePersistentVolumeSource.readOnly",
        3,
        "bool",
    ),
    (
        "k8s.core.AzureFilePersistentVolumeSource.secretNamespace",
        4,
        "string",
    ),
    ("k8s.core.LocalVolumeSource.path", 1, "string"),
    ("k8s.core.LocalVolumeSource.fsType", 2, "string"),
    ("k8s.core.CSIPersistentVolumeSource.driver", 1, "string"),
    (
        "k8s.core.CSIPersistentVolumeSource.volumeHandle",
        2,
        "string",
    ),
    ("k8s.core.CSIPersistentVolumeSource.readOnly", 3, "bool"),
    ("k8s.core.CSIPersistentVolumeSource.fsType", 4, "string"),
    (
        "k8s.core.CSIPersistentVolumeSource.volumeAttributes",
        5,
        "map",
    ),
    ("k8s.core.PersistentVolumeStatus.phase", 1, "string"),
    ("k8s.core.PersistentVolumeStatus.message", 2, "string"),
    ("k8s.core.PersistentVolumeStatus.reason", 3, "string"),
    (
        "k8s.core.PersistentVolumeStatus.lastPhaseTransitionTime",
        4,
        "Time",
    ),
    ("k8s.core.NodeStatus.volumesInUse", 9, "repeated string"),
    (
        "k8s.core.NodeStatus.volumesAttached",
        10,
        "repeated AttachedVolume",
    ),
    ("k8s.core.AttachedVolume.name", 1, "string"),
    ("k8s.core.AttachedVolume.devicePath", 2, "string"),
    ("k8s.storage.StorageClass.metadata", 1, "ObjectMeta"),
    ("k8s.storage.StorageClass.provisioner", 2, "string"),
    ("k8s.storage.StorageClass.volumeBindingMode", 7, "string"),
    (
        "k8s.storage.VolumeAttributesClass.metadata",
        1,
        "ObjectMeta",
    ),
    ("k8s.storage.VolumeAttributesClass.driverName", 2, "string"),
    ("k8s.storage.VolumeAttachment.metadata", 1, "ObjectMeta"),
    (
        "k8s.storage.VolumeAttachment.spec",
        2,
        "VolumeAttachmentSpec",
    ),
    (
        "k8s.storage.VolumeAttachment.status",
        3,
        "VolumeAttachmentStatus",
    ),
    ("k8s.storage.VolumeAttachmentSpec.attacher", 1, "string"),
    (
        "k8s.storage.VolumeAttachmentSpec.source",
        2,
        "VolumeAttachmentSource",
    ),
    ("k8s.storage.VolumeAttachmentSpec.nodeName", 3, "string"),
    (
        "k8s.storage.VolumeAttachmentSource.persistentVolumeName",
        1,
        "string",
    ),
    (
        "k8s.storage.VolumeAttachmentSource.inlineVolumeSpec",
        2,
        "PersistentVolumeSpec",
    ),
    ("k8s.storage.VolumeAttachmentStatus.attached", 1, "bool"),
    (
        "k8s.storage.VolumeAttachmentStatus.attachmentMetadata",
        2,
        "map",
    ),
    (
        "k8s.storage.VolumeAttachmentStatus.attachError",
        3,
        "VolumeError",
    ),
    (
        "k8s.storage.VolumeAttachmentStatus.detachError",
        4,
        "VolumeError",
    ),
    ("k8s.scheduling.PodGroup.metadata", 1, "ObjectMeta"),
    ("k8s.scheduling.PodGroup.spec", 2, "PodGroupSpec"),
    ("k8s.scheduling.PodGroup.status", 3, "PodGroupStatus"),
    (
        "k8s.scheduling.PodGroupSpec.podGroupTemplateRef",
        1,
        "PodGroupTemplateReference",
    ),
    (
        "k8s.scheduling.PodGroupSpec.schedulingPolicy",
        2,
        "PodGroupSchedulingPolicy",
    ),
    (
        "k8s.scheduling.PodGroupTemplateReference.workload",
        1,
        "WorkloadPodGroupTemplateReference",
    ),
    (
        "k8s.scheduling.WorkloadPodGroupTemplateReference.workloadName",
        1,
        "string",
    ),
    (
        "k8s.scheduling.WorkloadPodGroupTemplateReference.podGroupTemplateName",
        2,
        "string",
    ),
    (
        "k8s.scheduling.PodGroupSchedulingPolicy.basic",
        1,
        "BasicSchedulingPolicy",
    ),
    (
        "k8s.scheduling.PodGroupSchedulingPolicy.gang",
        2,
        "GangSchedulingPolicy",
    ),
    ("k8s.scheduling.GangSchedulingPolicy.minCount", 1, "int32"),
    ("k8s.scheduling.Workload.metadata", 1, "ObjectMeta"),
    ("k8s.scheduling.Workload.spec", 2, "WorkloadSpec"),
    (
        "k8s.scheduling.WorkloadSpec.controllerRef",
        1,
        "TypedLocalObjectReference",
    ),
    (
        "k8s.scheduling.WorkloadSpec.podGroupTemplates",
        2,
        "repeated PodGroupTemplate",
    ),
    (
        "k8s.scheduling.TypedLocalObjectReference.apiGroup",
        1,
        "string",
    ),
    ("k8s.scheduling.TypedLocalObjectReference.kind", 2, "string"),
    ("k8s.scheduling.TypedLocalObjectReference.name", 3, "string"),
    ("k8s.scheduling.PodGroupTemplate.name", 1, "string"),
    (
        "k8s.scheduling.PodGroupTemplate.schedulingPolicy",
        2,
        "PodGroupSchedulingPolicy",
    ),
    (
        "k8s.scheduling.PodGroupSpec.resourceClaims",
        4,
        "repeated PodGroupResourceClaim",
    ),
    ("k8s.scheduling.PodGroupResourceClaim.name", 1, "string"),
    (
        "k8s.scheduling.PodGroupResourceClaim.resourceClaimName",
        2,
        "string",
    ),
    (
        "k8s.scheduling.PodGroupResourceClaim.resourceClaimTemplateName",
        3,
        "string",
    ),
    (
        "k8s.scheduling.PodGroupStatus.resourceClaimStatuses",
        2,
        "repeated PodGroupResourceClaimStatus",
    ),
    (
        "k8s.scheduling.PodGroupResourceClaimStatus.name",
        1,
        "string",
    ),
    (
        "k8s.scheduling.PodGroupResourceClaimStatus.resourceClaimName",
        2,
        "string",
    ),
    ("k8s.storage.VolumeError.time", 1, "Time"),
    ("k8s.storage.VolumeError.message", 2, "string"),
    ("k8s.storage.CSIDriver.metadata", 1, "ObjectMeta"),
    ("k8s.storage.CSIDriver.spec", 2, "CSIDriverSpec"),
    ("k8s.storage.CSIDriverSpec.attachRequired", 1, "bool"),
    ("k8s.storage.CSIDriverSpec.seLinuxMount", 8, "bool"),
    ("k8s.storage.CSINode.metadata", 1, "ObjectMeta"),
    ("k8s.storage.CSINode.spec", 2, "CSINodeSpec"),
    (
        "k8s.storage.CSINodeSpec.drivers",
        1,
        "repeated CSINodeDriver",
    ),
    ("k8s.storage.CSINodeDriver.name", 1, "string"),
    ("k8s.storage.CSINodeDriver.nodeID", 2, "string"),
    (
        "k8s.apiserverinternal.StorageVersion.metadata",
        1,
        "ObjectMeta",
    ),
    (
        "k8s.apiserverinternal.StorageVersion.status",
        3,
        "StorageVersionStatus",
    ),
    (
        "k8s.apiserverinternal.StorageVersionStatus.storageVersions",
        1,
        "repeated ServerStorageVersion",
    ),
    (
        "k8s.apiserverinternal.StorageVersionStatus.commonEncodingVersion",
        2,
        "string",
    ),
    (
        "k8s.apiserverinternal.StorageVersionStatus.conditions",
        3,
        "repeated StorageVersionCondition",
    ),
    (
        "k8s.apiserverinternal.ServerStorageVersion.apiServerID",
        1,
        "string",
    ),
    (
        "k8s.apiserverinternal.ServerStorageVersion.encodingVersion",
        2,
        "string",
    ),
    (
        "k8s.apiserverinternal.ServerStorageVersion.decodableVersions",
        3,
        "repeated string",
    ),
    (
        "k8s.apiserverinternal.ServerStorageVersion.servedVersions",
        4,
        "repeated string",
    ),
    (
        "k8s.apiserverinternal.StorageVersionCondition.type",
        1,
        "string",
    ),
    (
        "k8s.apiserverinternal.StorageVersionCondition.status",
        2,
        "string",
    ),
    (
        "k8s.apiserverinternal.StorageVersionCondition.observedGeneration",
        3,
        "int64",
    ),
    (
        "k8s.apiserverinternal.StorageVersionCondition.lastTransitionTime",
        4,
        "Time",
    ),
    (
        "k8s.apiserverinternal.StorageVersionCondition.reason",
        5,
        "string",
    ),
    (
        "k8s.apiserverinternal.StorageVersionCondition.message",
        6,
        "string",
    ),
    (
        "k8s.storagemigration.StorageVersionMigration.metadata",
        1,
        "ObjectMeta",
    ),
    (
        "k8s.storagemigration.StorageVersionMigration.spec",
        2,
        "StorageVersionMigrationSpec",
    ),
    (
        "k8s.storagemigration.StorageVersionMigration.status",
        3,
        "StorageVersionMigrationStatus",
    ),
    (
        "k8s.storagemigration.StorageVersionMigrationSpec.resource",
        1,
        "GroupResource",
    ),
    ("k8s.storagemigration.GroupResource.group", 1, "string"),
    ("k8s.storagemigration.GroupResource.resource", 2, "string"),
    (
        "k8s.storagemigration.StorageVersionMigrationStatus.conditions",
        1,
        "repeated Condition",
    ),
    (
        "k8s.storagemigration.StorageVersionMigrationStatus.resourceVersion",
        2,
        "string",
    ),
];

/// Messages that are no message of the API: a map's entry, a list of undecoded items, and the names of those
/// that are written by hand.
const OURS_ALONE: &[&str] = &[
    "k8s.core.Amount",
    "k8s.meta.Entry",
    "k8s.meta.List",
    "k8s.meta.ObjectMeta",
    "k8s.meta.Time",
];

#[test]
fn every_field_has_the_number_and_the_type_that_the_api_gives_it() {
    let facts: BTreeMap<&str, (i32, &str)> = FACTS
        .iter()
        .map(|(field, number, r#type)| (*field, (*number, *r#type)))
        .collect();
    assert_eq!(
        facts.len(),
        FACTS.len(),
        "a field occurs twice in the table"
    );
    let files = [
        "meta.proto",
        "core.proto",
        "apps.proto",
        "batch.proto",
        "discovery.proto",
        "policy.proto",
        "autoscaling.proto",
        "resource.proto",
        "certificates.proto",
        "rbac.proto",
        "coordination.proto",
        "networking.proto",
        "scheduling.proto",
        "storage.proto",
        "apiserverinternal.proto",
        "storagemigration.proto",
    ];
    let descriptors = protox::compile(files, ["."]).unwrap();
    let mut declared = 0;
    for file in &descriptors.file {
        for message in &file.message_type {
            let name = format!("{}.{}", file.package(), message.name());
            if OURS_ALONE.contains(&name.as_str()) {
                continue;
            }
            for field in &message.field {
                let path = format!("{name}.{}", field.name());
                let Some((number, r#type)) = facts.get(path.as_str()) else {
                    panic!(
                        "{path} is declared, but the table of the API's fields does not have it"
                    );
                };
                assert_eq!(field.number(), *number, "{path}");
                let scalar = field
                    .r#type()
                    .as_str_name()
                    .trim_start_matches("TYPE_")
                    .to_lowercase();
                let repeated = field.label().as_str_name() == "LABEL_REPEATED";
                let ours = if field.type_name().is_empty() {
                    scalar
                } else {
                    field
                        .type_name()
                        .rsplit('.')
                        .next()
                        .unwrap_or_default()
                        .to_owned()
                };
                // A map is a list of entries, and a message may be kept as its bytes.
                let equal = match (*r#type, ours.as_str()) {
                    (
                        "map",
                        "Entry"
                        | "Amount"
                        | "DataEntry"
                        | "NodeSelectorEntry"
                        | "DisruptedPodsEntry"
                        | "ExtraEntry"
                        | "VolumeAttributesEntry"
                        | "AttachmentMetadataEntry",
                    ) => repeated,
                    (
                        "PodSpec" | "JobSpec" | "PersistentVolumeClaimSpec" | "ResourceClaimSpec",
                        "bytes",
                    ) => !repeated,
                    (theirs, ours) => theirs
                        .strip_prefix("repeated ")
                        .map_or(!repeated && theirs == ours, |theirs| {
                            repeated && theirs == ours
                        }),
                };
                assert!(equal, "{path}: {ours} (repeated: {repeated}) for {type}");
                declared += 1;
            }
        }
    }
    assert_eq!(
        declared,
        FACTS.len(),
        "the table has a field that no message declares"
    );
}

#[test]
fn the_messages_written_as_tables_are_those_of_the_proto_files() {
    use crate::core::*;
    let sources = [
        &[(CLAIM, "persistent_volume_claim")],
        InlineVolumeSource::FIELDS,
    ]
    .concat();
    let tables = [
        ("Secret", ServiceAccountToken::FIELDS),
        ("Secret", BootstrapToken::FIELDS),
        ("Pod", Pod::FIELDS),
        ("PodSpec", PodSpec::FIELDS),
        ("Volume", Volume::FIELDS),
        ("VolumeSource", &sources),
        ("VolumeMount", VolumeMount::FIELDS),
        ("EphemeralContainer", EphemeralContainer::FIELDS),
        ("EphemeralContainerCommon", EphemeralContainerCommon::FIELDS),
        (
            "PersistentVolumeClaimVolumeSource",
            PersistentVolumeClaimVolumeSource::FIELDS,
        ),
        ("Container", Container::FIELDS),
        ("ContainerPort", ContainerPort::FIELDS),
        ("InitContainer", InitContainer::FIELDS),
        ("PodStatus", PodStatus::FIELDS),
        ("PodIP", PodIp::FIELDS),
        ("PodResourceClaim", PodResourceClaim::FIELDS),
        ("PodResourceClaimStatus", PodResourceClaimStatus::FIELDS),
        ("PodSchedulingGroup", PodSchedulingGroup::FIELDS),
        (
            "PodExtendedResourceClaimStatus",
            PodExtendedResourceClaimStatus::FIELDS,
        ),
        ("ResourceRequirements", ResourceRequirements::FIELDS),
        ("Amount", Amount::FIELDS),
        ("PodCondition", PodCondition::FIELDS),
        ("ContainerStatus", ContainerStatus::FIELDS),
        ("ContainerState", ContainerState::FIELDS),
        ("ContainerStateTerminated", ContainerStateTerminated::FIELDS),
        ("Secret", ServiceAccountToken::FIELDS),
        ("Secret", BootstrapToken::FIELDS),
    ];
    let descriptors = protox::compile(["core.proto"], ["."]).unwrap();
    let core = descriptors
        .file
        .iter()
        .find(|file| file.name() == "core.proto")
        .unwrap();
    assert!(
        OwnerReference::FIELDS.contains(&(4, "uid")),
        "core.proto does not have it"
    );
    for (name, fields) in tables {
        let message = core
            .message_type
            .iter()
            .find(|message| message.name() == name)
            .unwrap();
        let mut declared: Vec<(u32, String)> = message
            .field
            .iter()
            .map(|field| {
                (
                    u32::try_from(field.number()).unwrap(),
                    field.name().to_lowercase(),
                )
            })
            .collect();
        let mut table: Vec<(u32, String)> = fields
            .iter()
            .map(|(number, field)| (*number, field.replace("r#", "").replace('_', "")))
            .collect();
        declared.sort();
        table.sort();
        assert_eq!(table, declared, "{name}");
    }
}

/// The numbers that a message's encoding uses, in its order.
fn numbers(mut bytes: &[u8]) -> Vec<u32> {
    let mut numbers = Vec::new();
    while !bytes.is_empty() {
        let (number, wire_type) = prost::encoding::decode_key(&mut bytes).unwrap();
        prost::encoding::skip_field(wire_type, number, &mut bytes, Default::default()).unwrap();
        numbers.push(number);
    }
    numbers
}

#[test]
fn the_messages_written_by_hand_have_the_api_s_numbers_too() {
    let meta = super::full_meta();
    assert_eq!(
        numbers(&meta.encode_to_vec()),
        [1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14]
    );
    assert_eq!(
        numbers(&meta.owner_references[0].encode_to_vec()),
        [1, 3, 4, 5, 6, 7]
    );
    let time = Time {
        seconds: 1,
        nanos: 2,
    };
    assert_eq!(numbers(&time.encode_to_vec()), [1, 2]);
    // One field each, so that no two are exchanged.
    let only = |meta: ObjectMeta| numbers(&meta.encode_to_vec());
    let text = || "x".into();
    let table = [
        (
            ObjectMeta {
                name: text(),
                ..ObjectMeta::default()
            },
            1,
        ),
        (
            ObjectMeta {
                generate_name: text(),
                ..ObjectMeta::default()
            },
            2,
        ),
        (
            ObjectMeta {
                namespace: text(),
                ..ObjectMeta::default()
            },
            3,
        ),
        (
            ObjectMeta {
                uid: text(),
                ..ObjectMeta::default()
            },
            5,
        ),
        (
            ObjectMeta {
                resource_version: 1,
                ..ObjectMeta::default()
            },
            6,
        ),
        (
            ObjectMeta {
                generation: 1,
                ..ObjectMeta::default()
            },
            7,
        ),
        (
            ObjectMeta {
                creation_timestamp: Some(time),
                ..ObjectMeta::default()
            },
            8,
        ),
        (
            ObjectMeta {
                deletion_timestamp: Some(time),
                ..ObjectMeta::default()
            },
            9,
        ),
        (
            ObjectMeta {
                deletion_grace_period_seconds: Some(1),
                ..ObjectMeta::default()
            },
            10,
        ),
        (
            ObjectMeta {
                labels: meta.labels.clone(),
                ..ObjectMeta::default()
            },
            11,
        ),
        (
            ObjectMeta {
                annotations: meta.annotations,
                ..ObjectMeta::default()
            },
            12,
        ),
        (
            ObjectMeta {
                owner_references: vec![Shared::default()],
                ..ObjectMeta::default()
            },
            13,
        ),
        (
            ObjectMeta {
                finalizers: vec![text()],
                ..ObjectMeta::default()
            },
            14,
        ),
    ];
    for (meta, number) in table {
        assert_eq!(only(meta), [number]);
    }
}
