//! Every controller on: what kube-controller-manager, Manifold and the API server are reported for it.

/// Flags of either manager: all controllers but those of clouds, which need a provider. Without the gates and
/// the ranges of pods' addresses, some would not run; without their names, those that are off by default.
pub const FLAGS: [&str; 4] = [
    "--controllers=*,bootstrap-signer-controller,token-cleaner-controller,selinux-warning-controller",
    "--feature-gates=ClusterTrustBundle=true,DRAResourcePoolStatus=true,GenericWorkload=true,\
     PodCertificateRequest=true,StorageVersionAPI=true,StorageVersionMigrator=true",
    "--allocate-node-cidrs=true",
    "--cluster-cidr=10.64.0.0/12",
];

/// Flags of the API server that serves what these controllers are for.
pub(crate) const API_SERVER: [&str; 2] = [
    "--feature-gates=ClusterTrustBundle=true,DRAResourcePoolStatus=true,GenericWorkload=true,\
     PodCertificateRequest=true,StorageVersionAPI=true,StorageVersionMigrator=true",
    "--runtime-config=certificates.k8s.io/v1beta1/clustertrustbundles=true,\
     certificates.k8s.io/v1beta1/podcertificaterequests=true,\
     internal.apiserver.k8s.io/v1alpha1=true,resource.k8s.io/v1alpha3/resourcepoolstatusrequests=true,\
     scheduling.k8s.io/v1alpha2=true,storagemigration.k8s.io/v1beta1=true",
];
