//! `/configz`: upstream's document, filled from the flags, and our own part beside it.

use serde_json::{Value, json};

use super::{Options, PeerTransport};
use crate::args::go_duration;

/// Under upstream's group name the shape of its KubeControllerManagerConfiguration; under `manifold` what is
/// ours.
pub(super) fn configz(options: &Options) -> Value {
    let values = options.values();
    let text = |name: &str| json!(values.text(name));
    // Durations in Go's notation, as upstream's document has them.
    let time = |name: &str| json!(values.show(name));
    let int = |name: &str| json!(values.int(name));
    let truth = |name: &str| json!(values.bool(name));
    // 32 bits, lest 0.1 be shown as 0.10000000149011612.
    let float = |name: &str| json!(values.float(name));
    let whole = |name: &str| match values.float(name) {
        number if number.fract() == 0.0 => json!(number as i64),
        number => json!(number),
    };
    let signer = |name: &str| {
        json!({
            "CertFile": values.text(&format!("cluster-signing-{name}-cert-file")),
            "KeyFile": values.text(&format!("cluster-signing-{name}-key-file")),
        })
    };
    let (service_cidr, second_cidr) = values
        .text("service-cluster-ip-range")
        .split_once(',')
        .unwrap_or((values.text("service-cluster-ip-range"), ""));
    let controllers: Vec<String> = values
        .list("controllers")
        .iter()
        .map(|entry| canonical(entry))
        .collect();
    let upstream = json!({
        "kind": "KubeControllerManagerConfiguration",
        "apiVersion": "kubecontrollermanager.config.k8s.io/v1alpha1",
        "Generic": {
            "Port": 0,
            "Address": "0.0.0.0",
            "MinResyncPeriod": time("min-resync-period"),
            "ClientConnection": {
                "kubeconfig": text("kubeconfig"),
                "acceptContentTypes": "",
                "contentType": text("kube-api-content-type"),
                "qps": whole("kube-api-qps"),
                "burst": int("kube-api-burst"),
            },
            "ControllerStartInterval": time("controller-start-interval"),
            "LeaderElection": {
                "leaderElect": truth("leader-elect"),
                "leaseDuration": time("leader-elect-lease-duration"),
                "renewDeadline": time("leader-elect-renew-deadline"),
                "retryPeriod": time("leader-elect-retry-period"),
                "resourceLock": text("leader-elect-resource-lock"),
                "resourceName": text("leader-elect-resource-name"),
                "resourceNamespace": text("leader-elect-resource-namespace"),
            },
            "Controllers": controllers,
            "Debugging": {
                "enableProfiling": truth("profiling"),
                "enableContentionProfiling": truth("contention-profiling"),
            },
            "LeaderMigrationEnabled": truth("enable-leader-migration"),
            "LeaderMigration": { "leaderName": "", "resourceLock": "", "controllerLeaders": null },
        },
        "KubeCloudShared": {
            "CloudProvider": { "Name": text("cloud-provider"), "CloudConfigFile": text("cloud-config") },
            "ExternalCloudVolumePlugin": text("external-cloud-volume-plugin"),
            "UseServiceAccountCredentials": truth("use-service-account-credentials"),
            "AllowUntaggedCloud": truth("allow-untagged-cloud"),
            "RouteReconciliationPeriod": time("route-reconciliation-period"),
            "NodeMonitorPeriod": time("node-monitor-period"),
            "ClusterName": text("cluster-name"),
            "ClusterCIDR": text("cluster-cidr"),
            "AllocateNodeCIDRs": truth("allocate-node-cidrs"),
            "CIDRAllocatorType": text("cidr-allocator-type"),
            "ConfigureCloudRoutes": truth("configure-cloud-routes"),
            "NodeSyncPeriod": time("node-sync-period"),
        },
        "AttachDetachController": {
            "DisableAttachDetachReconcilerSync": truth("disable-attach-detach-reconcile-sync"),
            "ReconcilerSyncLoopPeriod": time("attach-detach-reconcile-sync-period"),
            "disableForceDetachOnTimeout": truth("disable-force-detach-on-timeout"),
        },
        "CSRSigningController": {
            "ClusterSigningCertFile": text("cluster-signing-cert-file"),
            "ClusterSigningKeyFile": text("cluster-signing-key-file"),
            "KubeletServingSignerConfiguration": signer("kubelet-serving"),
            "KubeletClientSignerConfiguration": signer("kubelet-client"),
            "KubeAPIServerClientSignerConfiguration": signer("kube-apiserver-client"),
            "LegacyUnknownSignerConfiguration": signer("legacy-unknown"),
            "ClusterSigningDuration": time("cluster-signing-duration"),
        },
        "DaemonSetController": { "ConcurrentDaemonSetSyncs": int("concurrent-daemonset-syncs") },
        "DeploymentController": { "ConcurrentDeploymentSyncs": int("concurrent-deployment-syncs") },
        "StatefulSetController": { "ConcurrentStatefulSetSyncs": int("concurrent-statefulset-syncs") },
        "DeprecatedController": {},
        "EndpointController": {
            "ConcurrentEndpointSyncs": int("concurrent-endpoint-syncs"),
            "EndpointUpdatesBatchPeriod": time("endpoint-updates-batch-period"),
        },
        "EndpointSliceController": {
            "ConcurrentServiceEndpointSyncs": int("concurrent-service-endpoint-syncs"),
            "MaxEndpointsPerSlice": int("max-endpoints-per-slice"),
            "EndpointUpdatesBatchPeriod": time("endpointslice-updates-batch-period"),
        },
        "EndpointSliceMirroringController": {
            "MirroringConcurrentServiceEndpointSyncs": int("mirroring-concurrent-service-endpoint-syncs"),
            "MirroringMaxEndpointsPerSubset": int("mirroring-max-endpoints-per-subset"),
            "MirroringEndpointUpdatesBatchPeriod": time("mirroring-endpointslice-updates-batch-period"),
        },
        "EphemeralVolumeController": { "ConcurrentEphemeralVolumeSyncs": int("concurrent-ephemeralvolume-syncs") },
        "GarbageCollectorController": {
            "EnableGarbageCollector": truth("enable-garbage-collector"),
            "ConcurrentGCSyncs": int("concurrent-gc-syncs"),
            "GCIgnoredResources": [
                { "Group": "", "Resource": "events" },
                { "Group": "events.k8s.io", "Resource": "events" },
            ],
        },
        "HPAController": {
            "ConcurrentHorizontalPodAutoscalerSyncs": int("concurrent-horizontal-pod-autoscaler-syncs"),
            "HorizontalPodAutoscalerSyncPeriod": time("horizontal-pod-autoscaler-sync-period"),
            "HorizontalPodAutoscalerDownscaleStabilizationWindow": time("horizontal-pod-autoscaler-downscale-stabilization"),
            "HorizontalPodAutoscalerTolerance": float("horizontal-pod-autoscaler-tolerance"),
            "HorizontalPodAutoscalerCPUInitializationPeriod": time("horizontal-pod-autoscaler-cpu-initialization-period"),
            "HorizontalPodAutoscalerInitialReadinessDelay": time("horizontal-pod-autoscaler-initial-readiness-delay"),
        },
        "JobController": { "ConcurrentJobSyncs": int("concurrent-job-syncs") },
        "CronJobController": { "ConcurrentCronJobSyncs": int("concurrent-cron-job-syncs") },
        "LegacySATokenCleaner": { "CleanUpPeriod": time("legacy-service-account-token-clean-up-period") },
        "NamespaceController": {
            "NamespaceSyncPeriod": time("namespace-sync-period"),
            "ConcurrentNamespaceSyncs": int("concurrent-namespace-syncs"),
        },
        "NodeIPAMController": {
            "ServiceCIDR": service_cidr,
            "SecondaryServiceCIDR": second_cidr,
            "NodeCIDRMaskSize": int("node-cidr-mask-size"),
            "NodeCIDRMaskSizeIPv4": int("node-cidr-mask-size-ipv4"),
            "NodeCIDRMaskSizeIPv6": int("node-cidr-mask-size-ipv6"),
        },
        "NodeLifecycleController": {
            "NodeEvictionRate": float("node-eviction-rate"),
            "SecondaryNodeEvictionRate": float("secondary-node-eviction-rate"),
            "NodeStartupGracePeriod": time("node-startup-grace-period"),
            "NodeMonitorGracePeriod": time("node-monitor-grace-period"),
            "PodEvictionTimeout": "0s",
            "LargeClusterSizeThreshold": int("large-cluster-size-threshold"),
            "UnhealthyZoneThreshold": float("unhealthy-zone-threshold"),
        },
        "PersistentVolumeBinderController": {
            "PVClaimBinderSyncPeriod": time("pvclaimbinder-sync-period"),
            "VolumeConfiguration": {
                "EnableHostPathProvisioning": truth("enable-hostpath-provisioner"),
                "EnableDynamicProvisioning": truth("enable-dynamic-provisioning"),
                "PersistentVolumeRecyclerConfiguration": {
                    "MaximumRetry": 3,
                    "MinimumTimeoutNFS": int("pv-recycler-minimum-timeout-nfs"),
                    "PodTemplateFilePathNFS": text("pv-recycler-pod-template-filepath-nfs"),
                    "IncrementTimeoutNFS": int("pv-recycler-increment-timeout-nfs"),
                    "PodTemplateFilePathHostPath": text("pv-recycler-pod-template-filepath-hostpath"),
                    "MinimumTimeoutHostPath": int("pv-recycler-minimum-timeout-hostpath"),
                    "IncrementTimeoutHostPath": int("pv-recycler-timeout-increment-hostpath"),
                },
                "FlexVolumePluginDir": text("flex-volume-plugin-dir"),
            },
        },
        "PodGCController": { "TerminatedPodGCThreshold": int("terminated-pod-gc-threshold") },
        "ReplicaSetController": { "ConcurrentRSSyncs": int("concurrent-replicaset-syncs") },
        "ReplicationController": { "ConcurrentRCSyncs": int("concurrent-rc-syncs") },
        "ResourceQuotaController": {
            "ResourceQuotaSyncPeriod": time("resource-quota-sync-period"),
            "ConcurrentResourceQuotaSyncs": int("concurrent-resource-quota-syncs"),
        },
        "SAController": {
            "ServiceAccountKeyFile": text("service-account-private-key-file"),
            "ConcurrentSATokenSyncs": int("concurrent-serviceaccount-token-syncs"),
            "RootCAFile": text("root-ca-file"),
        },
        "ServiceController": { "ConcurrentServiceSyncs": int("concurrent-service-syncs") },
        "TTLAfterFinishedController": { "ConcurrentTTLSyncs": int("concurrent-ttl-after-finished-syncs") },
        "ValidatingAdmissionPolicyStatusController": {
            "ConcurrentPolicySyncs": int("concurrent-validating-admission-policy-status-syncs"),
        },
        "DeviceTaintEvictionController": { "ConcurrentSyncs": int("concurrent-device-taint-eviction-syncs") },
        "ResourceClaimController": { "ConcurrentSyncs": int("concurrent-resourceclaim-syncs") },
    });
    json!({
        "kubecontrollermanager.config.k8s.io": upstream,
        "manifold": ours(options),
    })
}

fn canonical(entry: &str) -> String {
    let (sign, name) = match entry.strip_prefix('-') {
        Some(name) => ("-", name),
        None => ("", entry),
    };
    format!(
        "{sign}{}",
        crate::args::canonical(name, &[]).unwrap_or(name)
    )
}

fn ours(options: &Options) -> Value {
    let fleet = &options.fleet;
    json!({
        "replica": fleet.replica,
        "fleet": fleet.fleet,
        "namespace": fleet.namespace,
        "ranges": fleet.ranges,
        "leaseDuration": go_duration(fleet.lease_duration),
        "renewDeadline": go_duration(fleet.renew_deadline),
        "retryPeriod": go_duration(fleet.retry_period),
        "expectedReplicas": fleet.expected_replicas,
        "settleTime": go_duration(fleet.settle_time),
        "slowStartPeriod": go_duration(fleet.slow_start_period),
        "peer": {
            "address": fleet.peer_address.to_string(),
            "advertised": fleet.peer_advertised,
            "trust": match fleet.peer_transport {
                PeerTransport::Pins => "pins",
                PeerTransport::Files { pins: false, .. } => "files",
                PeerTransport::Files { pins: true, .. } => "both",
                PeerTransport::Insecure => "insecure",
            },
        },
        "controllers": options.controllers,
        "featureGates": options.feature_gates,
    })
}
