//! What kube-controller-manager 1.36 accepts: its flags, controllers and their old names. Names, types and
//! defaults are facts of its interface, and so are the fields that begin with a capital, which its `/configz`
//! prints; the sentences and the other fields are ours.

use super::{
    Effect::{Acts, Quiet, Without},
    Field::{self, FlagOnly, Halves, In},
    Flag,
    Kind::{
        Bool, Duration, Float, Float32, Int, Int32, Int32List, Ip, Level, List, Map, NamedCert,
        Pattern, Quantity, Text, Version,
    },
};

const CLOUD: &str = "there are no built-in cloud providers";
const LOGS: &str = "logs go to standard error unbuffered";
const MIGRATION: &str = "there is no one leader to migrate";

/// The sections of `--help` in upstream's order, each with its flags. A controller's section is its canonical
/// name with a capital; its flags act once the controller is built and declares them.
#[rustfmt::skip]
pub(super) const SECTIONS: &[(&str, &[Flag])] = &[
    ("Debugging", &[
        Flag("contention-profiling", Bool, "false", Without("there is no profiler inside"), "Profile where threads wait for each other.", In("Generic.Debugging.enableContentionProfiling")),
        Flag("profiling", Bool, "true", Acts, "Answer below /debug/pprof/; it reports which tools profile this binary.", In("Generic.Debugging.enableProfiling")),
    ]),
    ("Leader-migration", &[
        Flag("enable-leader-migration", Bool, "false", Without(MIGRATION), "Move controllers between managers under leader migration.", In("Generic.LeaderMigrationEnabled")),
        Flag("leader-migration-config", Text, "", Without(MIGRATION), "File with the leader migration's configuration.", FlagOnly(MIGRATION)),
    ]),
    ("Generic", &[
        Flag("allocate-node-cidrs", Bool, "false", Without("node-ipam-controller"), "Give each Node a range of pod addresses; needs --cluster-cidr.", In("KubeCloudShared.AllocateNodeCIDRs")),
        Flag("allow-untagged-cloud", Bool, "false", Without(CLOUD), "Accept a cloud whose resources bear no cluster tag.", In("KubeCloudShared.AllowUntaggedCloud")),
        Flag("cidr-allocator-type", Text, "RangeAllocator", Without("node-ipam-controller"), "Which allocator gives out the Nodes' ranges.", In("KubeCloudShared.CIDRAllocatorType")),
        Flag("cloud-config", Text, "", Without(CLOUD), "File with the cloud provider's configuration.", In("KubeCloudShared.CloudProvider.CloudConfigFile")),
        Flag("cloud-provider", Text, "", Acts, "Empty, or external where a cloud controller manager runs.", In("KubeCloudShared.CloudProvider.Name")),
        Flag("cluster-cidr", Text, "", Without("node-ipam-controller"), "The pods' address range; used with --allocate-node-cidrs.", In("KubeCloudShared.ClusterCIDR")),
        Flag("cluster-name", Text, "kubernetes", Without(CLOUD), "Prefix of this cluster's instances in a cloud.", In("KubeCloudShared.ClusterName")),
        Flag("configure-cloud-routes", Bool, "true", Without(CLOUD), "Set up routes for the Nodes' ranges in the cloud.", In("KubeCloudShared.ConfigureCloudRoutes")),
        Flag("controller-shutdown-timeout", Duration, "10s", Acts, "How long the handing over of work may take at the end before the process exits all the same.", In("fleet.controllerShutdownTimeout")),
        Flag("controller-start-interval", Duration, "0s", Acts, "Pause between the starts of two controllers.", In("Generic.ControllerStartInterval")),
        Flag("controllers", List, "[*]", Acts, "Controllers to run: * is all that are on by default, foo turns foo on, -foo turns it off. The first entry that names a controller decides.", In("Generic.Controllers")),
        Flag("emulated-version", List, "[]", Acts, "Version whose behaviour is shown: 1.36, or kube=1.36.", In("versions.emulated")),
        Flag("external-cloud-volume-plugin", Text, "", Without(CLOUD), "Volume plugin for --cloud-provider=external.", In("KubeCloudShared.ExternalCloudVolumePlugin")),
        Flag("feature-gates", List, "", Acts, "Feature gates as key=true|false, separated by commas; each must be one of Kubernetes 1.36.", In("featureGates")),
        Flag("kube-api-burst", Int32, "30", Acts, "Requests that may go to the API server at once beyond --kube-api-qps.", In("Generic.ClientConnection.burst")),
        Flag("kube-api-content-type", Text, "application/vnd.kubernetes.protobuf", Acts, "Encoding of requests to the API server.", In("Generic.ClientConnection.contentType")),
        Flag("kube-api-qps", Float32, "20", Acts, "Requests a second to the API server on the long run; below 0 there is no limit.", In("Generic.ClientConnection.qps")),
        Flag("leader-elect", Bool, "true", Acts, "Hold the Lease of the manager's leader election as a fleet, and write nothing while another manager or fleet holds it. With false nothing keeps two managers apart.", In("Generic.LeaderElection.leaderElect")),
        Flag("leader-elect-lease-duration", Duration, "15s", Acts, "How long another manager waits after the last renewal of that Lease, in whole seconds.", In("Generic.LeaderElection.leaseDuration")),
        Flag("leader-elect-renew-deadline", Duration, "10s", Acts, "A replica that has seen no renewal of that Lease for so long writes nothing.", In("Generic.LeaderElection.renewDeadline")),
        Flag("leader-elect-resource-lock", Text, "leases", Acts, "The kind of object that is held: only leases.", In("Generic.LeaderElection.resourceLock")),
        Flag("leader-elect-resource-name", Text, "kube-controller-manager", Acts, "Name of that Lease. Give another, as in manifold-companion, where kube-controller-manager runs beside with other controllers.", In("Generic.LeaderElection.resourceName")),
        Flag("leader-elect-resource-namespace", Text, "kube-system", Acts, "Namespace of that Lease; that of the fleet's own Leases is --fleet-namespace.", In("Generic.LeaderElection.resourceNamespace")),
        Flag("leader-elect-retry-period", Duration, "2s", Acts, "How often the fleet renews that Lease; where no watch shows a renewal, each replica reads it twice as often.", In("Generic.LeaderElection.retryPeriod")),
        Flag("min-compatibility-version", List, "[]", Acts, "Oldest version of the control plane to get along with, as 1.36 or kube=1.36.", In("versions.minCompatibility")),
        Flag("min-resync-period", Duration, "12h0m0s", Acts, "Every object is examined again after a random time between this and its double.", In("Generic.MinResyncPeriod")),
        Flag("node-monitor-period", Duration, "5s", Without("node-lifecycle-controller"), "How often Nodes are examined.", In("KubeCloudShared.NodeMonitorPeriod")),
        Flag("node-sync-period", Duration, "0s", Quiet, "Without effect upstream too.", In("KubeCloudShared.NodeSyncPeriod")),
        Flag("route-reconciliation-period", Duration, "10s", Without(CLOUD), "How often cloud routes are examined.", In("KubeCloudShared.RouteReconciliationPeriod")),
        Flag("use-service-account-credentials", Bool, "false", Acts, "Each controller acts as a service account of its own in kube-system.", In("KubeCloudShared.UseServiceAccountCredentials")),
    ]),
    ("Service-lb-controller", &[
        Flag("concurrent-service-syncs", Int32, "1", Without("service-lb-controller"), "Services worked on at once.", In("ServiceController.ConcurrentServiceSyncs")),
    ]),
    ("Secure serving", &[
        Flag("bind-address", Ip, "0.0.0.0", Acts, "Address to listen on; 0.0.0.0 and :: mean all, of both families.", In("serving.bindAddress")),
        Flag("cert-dir", Text, "", Acts, "Where a self-signed certificate is kept (manifold.crt, manifold.key); without it, it lives in memory. Ignored where files are given.", In("serving.certDir")),
        Flag("disable-http2-serving", Bool, "false", Acts, "Serve HTTP/1.1 alone.", In("serving.disableHTTP2Serving")),
        Flag("http2-max-streams-per-connection", Int, "0", Acts, "Requests at once on one HTTP/2 connection; 0 means 100, as upstream.", In("serving.http2MaxStreamsPerConnection")),
        Flag("permit-address-sharing", Bool, "false", Acts, "Listen with SO_REUSEADDR.", In("serving.permitAddressSharing")),
        Flag("permit-port-sharing", Bool, "false", Acts, "Listen with SO_REUSEPORT, so that several processes may share the port.", In("serving.permitPortSharing")),
        Flag("secure-port", Int, "10257", Acts, "Port for HTTPS.", In("serving.securePort")),
        Flag("tls-cert-file", Text, "", Acts, "Certificate for HTTPS, with its chain; read again when it changes. Self-signed where not given.", In("serving.tlsCertFile")),
        Flag("tls-cipher-suites", List, "[]", Acts, "Cipher suites by their IANA names; all that are safe where not given.", In("serving.tlsCipherSuites")),
        Flag("tls-curve-preferences", Int32List, "[]", Acts, "Key exchanges by number: 23 is P-256, 24 is P-384, 29 is X25519.", In("serving.tlsCurvePreferences")),
        Flag("tls-min-version", Text, "", Acts, "Oldest TLS to accept: VersionTLS12 (also the least where an older one is named) or VersionTLS13.", In("serving.tlsMinVersion")),
        Flag("tls-private-key-file", Text, "", Acts, "Private key that belongs to --tls-cert-file.", In("serving.tlsPrivateKeyFile")),
        Flag("tls-sni-cert-key", NamedCert, "[]", Acts, "One more certificate, as cert,key or cert,key:name,name; may be given several times.", In("serving.tlsSNICertKeys")),
    ]),
    ("Authentication", &[
        Flag("authentication-kubeconfig", Text, "", Acts, "Kubeconfig with the right to create TokenReviews. Without one, and outside a cluster, everybody with a token is anonymous.", In("authentication.kubeconfig")),
        Flag("authentication-skip-lookup", Bool, "false", Acts, "Do not read client CAs from the cluster.", In("authentication.skipLookup")),
        Flag("authentication-token-webhook-cache-ttl", Duration, "10s", Acts, "How long an answer about a token is remembered.", In("authentication.tokenWebhookCacheTTL")),
        Flag("authentication-tolerate-lookup-failure", Bool, "false", Acts, "Start also where the lookup of client CAs fails.", In("authentication.tolerateLookupFailure")),
        Flag("client-ca-file", Text, "", Acts, "A client with a certificate of these authorities is the user that its common name says.", In("authentication.clientCAFile")),
        Flag("requestheader-allowed-names", List, "[]", Acts, "Common names of proxies that may name users in headers; all where empty.", In("authentication.requestHeader.allowedNames")),
        Flag("requestheader-client-ca-file", Text, "", Acts, "Authorities of such proxies.", In("authentication.requestHeader.clientCAFile")),
        Flag("requestheader-extra-headers-prefix", List, "[x-remote-extra-]", Acts, "Prefixes of headers with a user's extra fields.", In("authentication.requestHeader.extraHeadersPrefix")),
        Flag("requestheader-group-headers", List, "[x-remote-group]", Acts, "Headers with a user's groups.", In("authentication.requestHeader.groupHeaders")),
        Flag("requestheader-uid-headers", List, "[]", Acts, "Headers with a user's UID.", In("authentication.requestHeader.uidHeaders")),
        Flag("requestheader-username-headers", List, "[x-remote-user]", Acts, "Headers with a user's name.", In("authentication.requestHeader.usernameHeaders")),
    ]),
    ("Authorization", &[
        Flag("authorization-always-allow-paths", List, "[/healthz,/readyz,/livez]", Acts, "Paths that everybody may get; a * at the end matches all below.", In("authorization.alwaysAllowPaths")),
        Flag("authorization-kubeconfig", Text, "", Acts, "Kubeconfig with the right to create SubjectAccessReviews. Without one, and outside a cluster, other paths are forbidden.", In("authorization.kubeconfig")),
        Flag("authorization-webhook-cache-authorized-ttl", Duration, "10s", Acts, "How long a yes is remembered.", In("authorization.webhookCacheAuthorizedTTL")),
        Flag("authorization-webhook-cache-unauthorized-ttl", Duration, "10s", Acts, "How long a no is remembered.", In("authorization.webhookCacheUnauthorizedTTL")),
    ]),
    ("Persistentvolume-attach-detach-controller", &[
        Flag("attach-detach-reconcile-sync-period", Duration, "1m0s", Without("persistentvolume-attach-detach-controller"), "How often attached volumes are compared with those wanted; at least a second.", In("AttachDetachController.ReconcilerSyncLoopPeriod")),
        Flag("disable-attach-detach-reconcile-sync", Bool, "false", Without("persistentvolume-attach-detach-controller"), "Never compare them.", In("AttachDetachController.DisableAttachDetachReconcilerSync")),
        Flag("disable-force-detach-on-timeout", Bool, "false", Without("persistentvolume-attach-detach-controller"), "Never detach by force.", In("AttachDetachController.disableForceDetachOnTimeout")),
    ]),
    ("Certificatesigningrequest-signing-controller", &[
        Flag("cluster-signing-cert-file", Text, "", Without("certificatesigningrequest-signing-controller"), "CA certificate for all signers.", In("CSRSigningController.ClusterSigningCertFile")),
        Flag("cluster-signing-duration", Duration, "8760h0m0s", Without("certificatesigningrequest-signing-controller"), "Longest life of a signed certificate.", In("CSRSigningController.ClusterSigningDuration")),
        Flag("cluster-signing-key-file", Text, "", Without("certificatesigningrequest-signing-controller"), "CA key for all signers.", In("CSRSigningController.ClusterSigningKeyFile")),
        Flag("cluster-signing-kube-apiserver-client-cert-file", Text, "", Without("certificatesigningrequest-signing-controller"), "CA certificate for kubernetes.io/kube-apiserver-client.", In("CSRSigningController.KubeAPIServerClientSignerConfiguration.CertFile")),
        Flag("cluster-signing-kube-apiserver-client-key-file", Text, "", Without("certificatesigningrequest-signing-controller"), "CA key for kubernetes.io/kube-apiserver-client.", In("CSRSigningController.KubeAPIServerClientSignerConfiguration.KeyFile")),
        Flag("cluster-signing-kubelet-client-cert-file", Text, "", Without("certificatesigningrequest-signing-controller"), "CA certificate for kubernetes.io/kube-apiserver-client-kubelet.", In("CSRSigningController.KubeletClientSignerConfiguration.CertFile")),
        Flag("cluster-signing-kubelet-client-key-file", Text, "", Without("certificatesigningrequest-signing-controller"), "CA key for kubernetes.io/kube-apiserver-client-kubelet.", In("CSRSigningController.KubeletClientSignerConfiguration.KeyFile")),
        Flag("cluster-signing-kubelet-serving-cert-file", Text, "", Without("certificatesigningrequest-signing-controller"), "CA certificate for kubernetes.io/kubelet-serving.", In("CSRSigningController.KubeletServingSignerConfiguration.CertFile")),
        Flag("cluster-signing-kubelet-serving-key-file", Text, "", Without("certificatesigningrequest-signing-controller"), "CA key for kubernetes.io/kubelet-serving.", In("CSRSigningController.KubeletServingSignerConfiguration.KeyFile")),
        Flag("cluster-signing-legacy-unknown-cert-file", Text, "", Without("certificatesigningrequest-signing-controller"), "CA certificate for kubernetes.io/legacy-unknown.", In("CSRSigningController.LegacyUnknownSignerConfiguration.CertFile")),
        Flag("cluster-signing-legacy-unknown-key-file", Text, "", Without("certificatesigningrequest-signing-controller"), "CA key for kubernetes.io/legacy-unknown.", In("CSRSigningController.LegacyUnknownSignerConfiguration.KeyFile")),
    ]),
    ("Deployment-controller", &[
        Flag("concurrent-deployment-syncs", Int32, "5", Without("deployment-controller"), "Deployments worked on at once by each replica.", In("DeploymentController.ConcurrentDeploymentSyncs")),
    ]),
    ("Device-taint-eviction-controller", &[
        Flag("concurrent-device-taint-eviction-syncs", Int32, "8", Without("device-taint-eviction-controller"), "Evictions and status updates under way at once.", In("DeviceTaintEvictionController.ConcurrentSyncs")),
    ]),
    ("Resourceclaim-controller", &[
        Flag("concurrent-resourceclaim-syncs", Int32, "50", Without("resourceclaim-controller"), "ResourceClaims made or deleted at once.", In("ResourceClaimController.ConcurrentSyncs")),
    ]),
    ("Statefulset-controller", &[
        Flag("concurrent-statefulset-syncs", Int32, "5", Without("statefulset-controller"), "StatefulSets worked on at once.", In("StatefulSetController.ConcurrentStatefulSetSyncs")),
    ]),
    ("Daemonset-controller", &[
        Flag("concurrent-daemonset-syncs", Int32, "2", Without("daemonset-controller"), "DaemonSets worked on at once.", In("DaemonSetController.ConcurrentDaemonSetSyncs")),
    ]),
    ("Endpoints-controller", &[
        Flag("concurrent-endpoint-syncs", Int32, "5", Without("endpoints-controller"), "Endpoints worked on at once.", In("EndpointController.ConcurrentEndpointSyncs")),
        Flag("endpoint-updates-batch-period", Duration, "0s", Without("endpoints-controller"), "How long pod changes are gathered before Endpoints are written.", In("EndpointController.EndpointUpdatesBatchPeriod")),
    ]),
    ("Endpointslice-controller", &[
        Flag("concurrent-service-endpoint-syncs", Int32, "5", Without("endpointslice-controller"), "Services worked on at once.", In("EndpointSliceController.ConcurrentServiceEndpointSyncs")),
        Flag("endpointslice-updates-batch-period", Duration, "0s", Without("endpointslice-controller"), "How long pod changes are gathered before EndpointSlices are written.", In("EndpointSliceController.EndpointUpdatesBatchPeriod")),
        Flag("max-endpoints-per-slice", Int32, "100", Without("endpointslice-controller"), "Most endpoints in one EndpointSlice.", In("EndpointSliceController.MaxEndpointsPerSlice")),
    ]),
    ("Endpointslice-mirroring-controller", &[
        Flag("mirroring-concurrent-service-endpoint-syncs", Int32, "5", Without("endpointslice-mirroring-controller"), "Endpoints mirrored at once.", In("EndpointSliceMirroringController.MirroringConcurrentServiceEndpointSyncs")),
        Flag("mirroring-endpointslice-updates-batch-period", Duration, "0s", Without("endpointslice-mirroring-controller"), "How long changes are gathered before mirrors are written.", In("EndpointSliceMirroringController.MirroringEndpointUpdatesBatchPeriod")),
        Flag("mirroring-max-endpoints-per-subset", Int32, "1000", Without("endpointslice-mirroring-controller"), "Most endpoints of one subset that are mirrored.", In("EndpointSliceMirroringController.MirroringMaxEndpointsPerSubset")),
    ]),
    ("Ephemeral-volume-controller", &[
        Flag("concurrent-ephemeralvolume-syncs", Int32, "5", Without("ephemeral-volume-controller"), "Pods with ephemeral volumes worked on at once.", In("EphemeralVolumeController.ConcurrentEphemeralVolumeSyncs")),
    ]),
    ("Garbage-collector-controller", &[
        Flag("concurrent-gc-syncs", Int32, "20", Without("garbage-collector-controller"), "Objects worked on at once.", In("GarbageCollectorController.ConcurrentGCSyncs")),
        Flag("enable-garbage-collector", Bool, "true", Without("garbage-collector-controller"), "Collect garbage; must agree with the API server's flag.", In("GarbageCollectorController.EnableGarbageCollector")),
    ]),
    ("Horizontal-pod-autoscaler-controller", &[
        Flag("concurrent-horizontal-pod-autoscaler-syncs", Int32, "5", Without("horizontal-pod-autoscaler-controller"), "Autoscalers worked on at once.", In("HPAController.ConcurrentHorizontalPodAutoscalerSyncs")),
        Flag("horizontal-pod-autoscaler-cpu-initialization-period", Duration, "5m0s", Without("horizontal-pod-autoscaler-controller"), "How long after its start a pod's CPU samples may be left out.", In("HPAController.HorizontalPodAutoscalerCPUInitializationPeriod")),
        Flag("horizontal-pod-autoscaler-downscale-stabilization", Duration, "5m0s", Without("horizontal-pod-autoscaler-controller"), "How far back recommendations forbid a scale-down.", In("HPAController.HorizontalPodAutoscalerDownscaleStabilizationWindow")),
        Flag("horizontal-pod-autoscaler-initial-readiness-delay", Duration, "30s", Without("horizontal-pod-autoscaler-controller"), "How long after its start a pod's readiness counts as its first.", In("HPAController.HorizontalPodAutoscalerInitialReadinessDelay")),
        Flag("horizontal-pod-autoscaler-sync-period", Duration, "15s", Without("horizontal-pod-autoscaler-controller"), "How often each autoscaler is computed.", In("HPAController.HorizontalPodAutoscalerSyncPeriod")),
        Flag("horizontal-pod-autoscaler-tolerance", Float, "0.1", Without("horizontal-pod-autoscaler-controller"), "Least change of the ratio, from 1.0, that scales.", In("HPAController.HorizontalPodAutoscalerTolerance")),
    ]),
    ("Job-controller", &[
        Flag("concurrent-job-syncs", Int32, "5", Without("job-controller"), "Jobs worked on at once.", In("JobController.ConcurrentJobSyncs")),
    ]),
    ("Cronjob-controller", &[
        Flag("concurrent-cron-job-syncs", Int32, "5", Without("cronjob-controller"), "CronJobs worked on at once.", In("CronJobController.ConcurrentCronJobSyncs")),
    ]),
    ("Legacy-serviceaccount-token-cleaner-controller", &[
        Flag("legacy-service-account-token-clean-up-period", Duration, "8760h0m0s", Without("legacy-serviceaccount-token-cleaner-controller"), "How long a token Secret may lie unused.", In("LegacySATokenCleaner.CleanUpPeriod")),
    ]),
    ("Namespace-controller", &[
        Flag("concurrent-namespace-syncs", Int32, "10", Without("namespace-controller"), "Namespaces worked on at once.", In("NamespaceController.ConcurrentNamespaceSyncs")),
        Flag("namespace-sync-period", Duration, "5m0s", Without("namespace-controller"), "How often each namespace is examined again.", In("NamespaceController.NamespaceSyncPeriod")),
    ]),
    ("Node-ipam-controller", &[
        Flag("node-cidr-mask-size", Int32, "0", Without("node-ipam-controller"), "Bits of a Node's range; 24 for IPv4 and 64 for IPv6 where 0.", In("NodeIPAMController.NodeCIDRMaskSize")),
        Flag("node-cidr-mask-size-ipv4", Int32, "0", Without("node-ipam-controller"), "The same for IPv4 with two families.", In("NodeIPAMController.NodeCIDRMaskSizeIPv4")),
        Flag("node-cidr-mask-size-ipv6", Int32, "0", Without("node-ipam-controller"), "The same for IPv6 with two families.", In("NodeIPAMController.NodeCIDRMaskSizeIPv6")),
        Flag("service-cluster-ip-range", Text, "", Without("node-ipam-controller"), "The Services' address range, kept free of Nodes.", Halves("NodeIPAMController.ServiceCIDR", "NodeIPAMController.SecondaryServiceCIDR")),
    ]),
    ("Node-lifecycle-controller", &[
        Flag("large-cluster-size-threshold", Int32, "50", Without("node-lifecycle-controller"), "Nodes from which on a zone counts as large.", In("NodeLifecycleController.LargeClusterSizeThreshold")),
        Flag("node-eviction-rate", Float32, "0.1", Without("node-lifecycle-controller"), "Nodes emptied a second in a healthy zone.", In("NodeLifecycleController.NodeEvictionRate")),
        Flag("node-monitor-grace-period", Duration, "50s", Without("node-lifecycle-controller"), "How long a Node may be silent before it counts as unhealthy.", In("NodeLifecycleController.NodeMonitorGracePeriod")),
        Flag("node-startup-grace-period", Duration, "1m0s", Without("node-lifecycle-controller"), "How long a new Node may be silent.", In("NodeLifecycleController.NodeStartupGracePeriod")),
        Flag("secondary-node-eviction-rate", Float32, "0.01", Without("node-lifecycle-controller"), "Nodes emptied a second in an unhealthy zone.", In("NodeLifecycleController.SecondaryNodeEvictionRate")),
        Flag("unhealthy-zone-threshold", Float32, "0.55", Without("node-lifecycle-controller"), "Part of a zone's Nodes that makes it unhealthy.", In("NodeLifecycleController.UnhealthyZoneThreshold")),
    ]),
    ("Persistentvolume-binder-controller", &[
        Flag("enable-dynamic-provisioning", Bool, "true", Without("persistentvolume-binder-controller"), "Provision volumes on demand.", In("PersistentVolumeBinderController.VolumeConfiguration.EnableDynamicProvisioning")),
        Flag("enable-hostpath-provisioner", Bool, "false", Without("persistentvolume-binder-controller"), "Provision volumes on the host; for trials only.", In("PersistentVolumeBinderController.VolumeConfiguration.EnableHostPathProvisioning")),
        Flag("flex-volume-plugin-dir", Text, "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/", Without("persistentvolume-binder-controller"), "Where volume plugins lie.", In("PersistentVolumeBinderController.VolumeConfiguration.FlexVolumePluginDir")),
        Flag("pv-recycler-increment-timeout-nfs", Int32, "30", Without("persistentvolume-binder-controller"), "Seconds for each Gi that an NFS recycler may take.", In("PersistentVolumeBinderController.VolumeConfiguration.PersistentVolumeRecyclerConfiguration.IncrementTimeoutNFS")),
        Flag("pv-recycler-minimum-timeout-hostpath", Int32, "60", Without("persistentvolume-binder-controller"), "Seconds that a host path recycler may take at least.", In("PersistentVolumeBinderController.VolumeConfiguration.PersistentVolumeRecyclerConfiguration.MinimumTimeoutHostPath")),
        Flag("pv-recycler-minimum-timeout-nfs", Int32, "300", Without("persistentvolume-binder-controller"), "Seconds that an NFS recycler may take at least.", In("PersistentVolumeBinderController.VolumeConfiguration.PersistentVolumeRecyclerConfiguration.MinimumTimeoutNFS")),
        Flag("pv-recycler-pod-template-filepath-hostpath", Text, "", Without("persistentvolume-binder-controller"), "File with the host path recycler's pod.", In("PersistentVolumeBinderController.VolumeConfiguration.PersistentVolumeRecyclerConfiguration.PodTemplateFilePathHostPath")),
        Flag("pv-recycler-pod-template-filepath-nfs", Text, "", Without("persistentvolume-binder-controller"), "File with the NFS recycler's pod.", In("PersistentVolumeBinderController.VolumeConfiguration.PersistentVolumeRecyclerConfiguration.PodTemplateFilePathNFS")),
        Flag("pv-recycler-timeout-increment-hostpath", Int32, "30", Without("persistentvolume-binder-controller"), "Seconds for each Gi that a host path recycler may take.", In("PersistentVolumeBinderController.VolumeConfiguration.PersistentVolumeRecyclerConfiguration.IncrementTimeoutHostPath")),
        Flag("pvclaimbinder-sync-period", Duration, "15s", Without("persistentvolume-binder-controller"), "How often volumes and claims are examined again.", In("PersistentVolumeBinderController.PVClaimBinderSyncPeriod")),
    ]),
    ("Pod-garbage-collector-controller", &[
        Flag("terminated-pod-gc-threshold", Int32, "12500", Without("pod-garbage-collector-controller"), "Ended pods that may stay; no limit where 0 or less.", In("PodGCController.TerminatedPodGCThreshold")),
    ]),
    ("Replicaset-controller", &[
        Flag("concurrent-replicaset-syncs", Int32, "5", Without("replicaset-controller"), "ReplicaSets worked on at once by each replica.", In("ReplicaSetController.ConcurrentRSSyncs")),
    ]),
    ("Replicationcontroller-controller", &[
        Flag("concurrent-rc-syncs", Int32, "5", Without("replicationcontroller-controller"), "ReplicationControllers worked on at once.", In("ReplicationController.ConcurrentRCSyncs")),
    ]),
    ("Resourcequota-controller", &[
        Flag("concurrent-resource-quota-syncs", Int32, "5", Without("resourcequota-controller"), "ResourceQuotas worked on at once.", In("ResourceQuotaController.ConcurrentResourceQuotaSyncs")),
        Flag("resource-quota-sync-period", Duration, "5m0s", Without("resourcequota-controller"), "How often usage is counted again.", In("ResourceQuotaController.ResourceQuotaSyncPeriod")),
    ]),
    ("Serviceaccount-controller", &[
        Flag("concurrent-serviceaccount-token-syncs", Int32, "5", Without("serviceaccount-token-controller"), "Token Secrets worked on at once.", In("SAController.ConcurrentSATokenSyncs")),
        Flag("root-ca-file", Text, "", Without("root-ca-certificate-publisher-controller"), "CA certificates that each namespace's kube-root-ca.crt holds.", In("SAController.RootCAFile")),
        Flag("service-account-private-key-file", Text, "", Without("serviceaccount-token-controller"), "Key that signs tokens in Secrets.", In("SAController.ServiceAccountKeyFile")),
    ]),
    ("Ttl-after-finished-controller", &[
        Flag("concurrent-ttl-after-finished-syncs", Int32, "5", Without("ttl-after-finished-controller"), "Finished Jobs worked on at once by each replica.", In("TTLAfterFinishedController.ConcurrentTTLSyncs")),
    ]),
    ("Validatingadmissionpolicy-status-controller", &[
        Flag("concurrent-validating-admission-policy-status-syncs", Int32, "5", Without("validatingadmissionpolicy-status-controller"), "Policies worked on at once.", In("ValidatingAdmissionPolicyStatusController.ConcurrentPolicySyncs")),
    ]),
    ("Metrics", &[
        Flag("allow-metric-labels", Map, "[]", Without("label values come from fixed sets"), "Values that a metric's label may take.", In("metrics.allowListMapping")),
        Flag("allow-metric-labels-manifest", Text, "", Without("label values come from fixed sets"), "File with the same.", In("metrics.allowListMappingManifest")),
        Flag("disabled-metrics", List, "[]", Acts, "Metrics that are not shown, by their full names.", In("metrics.disabledMetrics")),
        Flag("show-hidden-metrics-for-version", Text, "", Without("no metric is hidden"), "Show metrics that this version hides.", In("metrics.showHiddenMetricsForVersion")),
    ]),
    ("Logs", &[
        Flag("log-flush-frequency", Duration, "5s", Quiet, "Accepted for the sake of manifests: nothing is buffered.", In("logging.flushFrequency")),
        Flag("log-json-info-buffer-size", Quantity, "0", Without(LOGS), "Buffer for JSON messages.", In("logging.options.json.infoBufferSize")),
        Flag("log-json-split-stream", Bool, "false", Without(LOGS), "Write JSON messages to standard output.", In("logging.options.json.splitStream")),
        Flag("log-text-info-buffer-size", Quantity, "0", Without(LOGS), "Buffer for text messages.", In("logging.options.text.infoBufferSize")),
        Flag("log-text-split-stream", Bool, "false", Without(LOGS), "Write text messages to standard output.", In("logging.options.text.splitStream")),
        Flag("logging-format", Text, "text", Acts, "text or json.", In("logging.format")),
        Flag("v", Level, "0", Acts, "How much is logged: 0 to 10. RUST_LOG, where set, says it more finely and wins.", In("logging.verbosity")),
        Flag("vmodule", Pattern, "", Acts, "Verbosity of single modules, as pattern=N, separated by commas; for the text format.", In("logging.vmodule")),
    ]),
    ("Misc", &[
        Flag("kubeconfig", Text, "", Acts, "File with the API server's address and the credentials; inside a pod its service account where not given.", In("Generic.ClientConnection.kubeconfig")),
        Flag("master", Text, "", Acts, "The API server's address; goes before the one in the kubeconfig.", In("client.master")),
    ]),
];

/// Flags that upstream has deprecated: hidden from `--help`, with this warning on use.
const DEPRECATED: [(&str, &str); 2] = [
    (
        "allow-untagged-cloud",
        "This flag is deprecated and will be removed in a future release. A cluster-id will be required on cloud instances.",
    ),
    (
        "node-sync-period",
        "This flag is currently no-op and will be deleted.",
    ),
];

/// What upstream says of the use of a deprecated flag.
pub(super) fn deprecation(name: &str) -> Option<&'static str> {
    let found = DEPRECATED.iter().find(|(known, _)| *known == name);
    found.map(|(_, why)| *why)
}

/// Our own flags.
#[rustfmt::skip]
pub(super) const FLEET: &[Flag] = &[
    Flag("replica-name", Text, "", Acts, "This replica's name, the same after a restart. $POD_NAME where not given, else the host's name.", In("fleet.replicaName")),
    Flag("fleet-name", Text, "manifold", Acts, "Name of the replicas that share the work; their Leases begin with it.", In("fleet.name")),
    Flag("fleet-namespace", Text, "manifold-system", Acts, "Namespace of the Leases.", In("fleet.namespace")),
    Flag("ranges", Int, "256", Acts, "Parts of the key space: a power of two up to 4096, the same for the whole fleet.", In("fleet.ranges")),
    Flag("lease-duration", Duration, "5s", Acts, "A replica that was not heard of for so long is dead.", In("fleet.leaseDuration")),
    Flag("lease-renew-deadline", Duration, "3s", Acts, "A replica that could not renew for so long stops writing; shorter than --lease-duration.", In("fleet.leaseRenewDeadline")),
    Flag("lease-retry-period", Duration, "1s", Acts, "How often a replica renews; shorter than --lease-renew-deadline.", In("fleet.leaseRetryPeriod")),
    Flag("expected-replicas", Int, "0", Acts, "At a fleet's first start, begin as soon as this many are there; 0 means: when none has come for --settle-time.", In("fleet.expectedReplicas")),
    Flag("settle-time", Duration, "1s", Acts, "At a fleet's first start, wait until no replica has come or gone for so long.", In("fleet.settleTime")),
    Flag("slow-start-period", Duration, "10s", Acts, "After a replica has ended without leaving, its share of the ranges doubles in so long, from one range on, so that one that dies of its share again and again stalls little; 0 gives it a full share at once.", In("fleet.slowStartPeriod")),
    Flag("load-aware-placement", Bool, "true", Acts, "Give replicas equal work where equal numbers of ranges are not: a range moves when a replica has had a fifth more than its fair share for a minute. Where one replica has it false, ranges are placed by equal numbers in the whole fleet.", In("fleet.loadAwarePlacement")),
    Flag("replica-pod", Text, "", Acts, "The pod that this replica runs in, as namespace/name: when its process has ended, the others learn that from the pod's status and need not wait for --lease-duration. $POD_NAMESPACE/$POD_NAME where not given.", In("fleet.replicaPod")),
    Flag("termination-message-path", Text, "/dev/termination-log", Acts, "The container's terminationMessagePath: what is written there comes to be in that status. Nothing is where there is no such file.", In("fleet.terminationMessagePath")),
    Flag("lock-dir", Text, "", Acts, "A directory of this machine, in memory if possible, that is there again after a restart of this process in place (an emptyDir with medium Memory, a directory in the host's /run): by a lock in it a restarted replica knows that the process before has ended, and takes its Lease over without waiting for --lease-duration.", In("fleet.lockDir")),
    Flag("adaptive-workers", Bool, "true", Acts, "Let a controller whose --concurrent-...-syncs is not given have up to four times as many workers as its default while keys wait for one and the API server keeps up.", In("fleet.adaptiveWorkers")),
    Flag("kube-api-budget", Text, "fleet", Acts, "Whose --kube-api-qps and --kube-api-burst are: fleet (divided among its replicas by what each has to write, so that all together ask no more of the API server than one kube-controller-manager), replica (each has them).", In("fleet.kubeAPIBudget")),
    Flag("server-fence", Text, "auto", Acts, "Let the API server refuse what a dead replica still sends: auto (where deploy/fence is installed and this user may impersonate), on, off.", In("fleet.serverFence")),
    Flag("shadow", Bool, "false", Acts, "Beside the manager in charge: watch, plan with all controllers, write nothing, and compare each planned write with what that manager does. The fleet's name gets the ending -shadow.", In("shadow.enabled")),
    Flag("shadow-patience", Duration, "60s", Acts, "How long the manager in charge may take for what is planned here before it counts as missing; five times as long for controllers that act by timers.", In("shadow.patience")),
    Flag("shadow-for", Duration, "0s", Acts, "End after so long, print the report of all replicas, and exit with 0 (they agree), 1 (they differ) or 2 (undecided); 0 means never.", In("shadow.for")),
    Flag("tracing-config-file", Text, "", Acts, "A TracingConfiguration (apiserver.config.k8s.io/v1: endpoint, samplingRatePerMillion), as kube-apiserver's flag of this name takes it; kube-controller-manager has no such flag. OTEL_* variables precede it. What is wrong in it is a warning: traces never keep this process from working.", In("tracing.configFile")),
    Flag("peer-bind-address", Ip, "0.0.0.0", Acts, "Address on which other replicas are heard.", In("fleet.peer.bindAddress")),
    Flag("peer-port", Int, "10258", Acts, "Port on which other replicas are heard.", In("fleet.peer.port")),
    Flag("peer-advertise-address", Text, "", Acts, "Address at which others find this replica, as host or host:port. $POD_IP or the first of $POD_IPS where not given, else the bind address, this host's address on its default route, or its name.", In("fleet.peer.advertiseAddress")),
    Flag("peer-trust", Text, "", Acts, "By what replicas know each other: pins (keys that each makes at its start and its Lease names; the default without certificate files), files (certificates; the default with them), both (while a fleet moves from one to the other).", In("fleet.peer.trust")),
    Flag("peer-tls-cert-file", Text, "", Acts, "Certificate of this replica for others, instead of a key that its Lease names; read again when it changes.", In("fleet.peer.tlsCertFile")),
    Flag("peer-tls-private-key-file", Text, "", Acts, "Its key.", In("fleet.peer.tlsPrivateKeyFile")),
    Flag("peer-ca-file", Text, "", Acts, "Authorities of the other replicas' certificates.", In("fleet.peer.caFile")),
    Flag("peer-insecure", Bool, "false", Acts, "Speak with other replicas without TLS; on a loopback address only.", In("fleet.peer.insecure")),
];

/// Where the flags are that controllers alone declare.
const DECLARED: [(&str, &str); 5] = [
    ("cloud-provider-ca-file", "cloudProvider.caFile"),
    ("cloud-provider-cert-file", "cloudProvider.certFile"),
    ("cloud-provider-endpoint", "cloudProvider.endpoint"),
    ("cloud-provider-key-file", "cloudProvider.keyFile"),
    ("cloud-provider-timeout", "cloudProvider.timeout"),
];

/// The field of a flag that a controller alone declares.
pub(super) fn declared_field(flag: &str) -> Field {
    let found = DECLARED.iter().find(|(known, _)| *known == flag);
    found.map_or(FlagOnly("its controller alone knows it"), |(_, field)| {
        In(field)
    })
}

/// The configuration file, which upstream does not take.
#[rustfmt::skip]
pub(super) const FILE: &[Flag] = &[
    Flag("config", Text, "", Acts, "File with a KubeControllerManagerConfiguration, for what is not given as a flag: a flag goes before the file. manifold config from-flags makes one, docs/config.md describes it. Some fields take effect while the process runs.", FlagOnly("it names the file")),
];

/// Fields of upstream's document that no flag sets. A file may repeat them as they are, since a document of
/// `/configz` does.
pub(super) const FIXED: &[(&str, &str)] = &[
    ("Generic.Port", "0"),
    ("Generic.Address", r#""0.0.0.0""#),
    ("Generic.ClientConnection.acceptContentTypes", r#""""#),
    (
        "Generic.LeaderMigration",
        r#"{"leaderName": "", "resourceLock": "", "controllerLeaders": null}"#,
    ),
    ("DeprecatedController", "{}"),
    (
        "GarbageCollectorController.GCIgnoredResources",
        r#"[{"Group": "", "Resource": "events"}, {"Group": "events.k8s.io", "Resource": "events"}]"#,
    ),
    ("NodeLifecycleController.PodEvictionTimeout", r#""0s""#),
    (
        "PersistentVolumeBinderController.VolumeConfiguration.PersistentVolumeRecyclerConfiguration.MaximumRetry",
        "3",
    ),
];

/// Flags whose fields take effect while the process runs, beside the numbers of workers.
pub(super) const LIVE: [&str; 7] = [
    "controller-shutdown-timeout",
    "disabled-metrics",
    "kube-api-burst",
    "kube-api-qps",
    "profiling",
    "v",
    "vmodule",
];

/// Help and version.
#[rustfmt::skip]
pub(super) const GLOBAL: &[Flag] = &[
    Flag("help", Bool, "false", Acts, "This text.", FlagOnly("it prints and ends")),
    Flag("version", Version, "false", Acts, "--version and --version=raw print the version and end.", FlagOnly("it prints and ends")),
];

/// A controller of upstream's: canonical name, old names, whether `*` includes it.
pub(super) struct Controller(
    pub(super) &'static str,
    pub(super) &'static [&'static str],
    pub(super) bool,
);

#[rustfmt::skip]
pub(super) const CONTROLLERS: &[Controller] = &[
    Controller("bootstrap-signer-controller", &["bootstrapsigner"], false),
    Controller("certificatesigningrequest-approving-controller", &["csrapproving"], true),
    Controller("certificatesigningrequest-cleaner-controller", &["csrcleaner"], true),
    Controller("certificatesigningrequest-signing-controller", &["csrsigning"], true),
    Controller("cloud-node-lifecycle-controller", &["cloud-node-lifecycle"], true),
    Controller("clusterrole-aggregation-controller", &["clusterrole-aggregation"], true),
    Controller("cronjob-controller", &["cronjob"], true),
    Controller("daemonset-controller", &["daemonset"], true),
    Controller("deployment-controller", &["deployment"], true),
    Controller("device-taint-eviction-controller", &[], true),
    Controller("disruption-controller", &["disruption"], true),
    Controller("endpoints-controller", &["endpoint"], true),
    Controller("endpointslice-controller", &["endpointslice"], true),
    Controller("endpointslice-mirroring-controller", &["endpointslicemirroring"], true),
    Controller("ephemeral-volume-controller", &["ephemeral-volume"], true),
    Controller("garbage-collector-controller", &["garbagecollector"], true),
    Controller("horizontal-pod-autoscaler-controller", &["horizontalpodautoscaling"], true),
    Controller("job-controller", &["job"], true),
    Controller("kube-apiserver-serving-clustertrustbundle-publisher-controller", &[], true),
    Controller("legacy-serviceaccount-token-cleaner-controller", &["legacy-service-account-token-cleaner"], true),
    Controller("namespace-controller", &["namespace"], true),
    Controller("node-ipam-controller", &["nodeipam"], true),
    Controller("node-lifecycle-controller", &["nodelifecycle"], true),
    Controller("node-route-controller", &["route"], true),
    Controller("persistentvolume-attach-detach-controller", &["attachdetach"], true),
    Controller("persistentvolume-binder-controller", &["persistentvolume-binder"], true),
    Controller("persistentvolume-expander-controller", &["persistentvolume-expander"], true),
    Controller("persistentvolume-protection-controller", &["pv-protection"], true),
    Controller("persistentvolumeclaim-protection-controller", &["pvc-protection"], true),
    Controller("pod-garbage-collector-controller", &["podgc"], true),
    Controller("podcertificaterequest-cleaner-controller", &[], true),
    Controller("podgroup-protection-controller", &[], true),
    Controller("replicaset-controller", &["replicaset"], true),
    Controller("replicationcontroller-controller", &["replicationcontroller"], true),
    Controller("resourceclaim-controller", &["resource-claim-controller"], true),
    Controller("resourcepoolstatusrequest-controller", &[], true),
    Controller("resourcequota-controller", &["resourcequota"], true),
    Controller("root-ca-certificate-publisher-controller", &["root-ca-cert-publisher"], true),
    Controller("selinux-warning-controller", &[], false),
    Controller("service-cidr-controller", &[], true),
    Controller("service-lb-controller", &["service"], true),
    Controller("serviceaccount-controller", &["serviceaccount"], true),
    Controller("serviceaccount-token-controller", &["serviceaccount-token"], true),
    Controller("statefulset-controller", &["statefulset"], true),
    Controller("storage-version-migrator-controller", &["svm"], true),
    Controller("storageversion-garbage-collector-controller", &["storage-version-gc"], true),
    Controller("taint-eviction-controller", &[], true),
    Controller("token-cleaner-controller", &["tokencleaner"], false),
    Controller("ttl-after-finished-controller", &["ttl-after-finished"], true),
    Controller("ttl-controller", &["ttl"], true),
    Controller("validatingadmissionpolicy-status-controller", &[], true),
    Controller("volumeattributesclass-protection-controller", &[], true),
];
