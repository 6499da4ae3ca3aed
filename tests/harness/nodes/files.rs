//! What containerd, the kubelet and the pods' network are configured with.

use anyhow::Result;
use serde_json::{Value, json};

use super::image::PAUSE;
use super::requirements::PLUGINS;

/// Where the kubelet and `ctr` find containerd.
pub const CRI_SOCKET: &str = "unix:///run/containerd/containerd.sock";

/// No group of the machine's tasks loses memory to a node's: scores stay as they are.
pub(super) fn containerd() -> String {
    format!(
        "\
version = 4
root = '/var/lib/containerd'
state = '/run/containerd'
disabled_plugins = ['io.containerd.internal.v1.opt']

[plugins.'io.containerd.nri.v1.nri']
disable = true

[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = '{PAUSE}'

[plugins.'io.containerd.cri.v1.runtime']
restrict_oom_score_adj = true

[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ['{PLUGINS}']
conf_dir = '/etc/cni/net.d'

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = 'io.containerd.runc.v2'

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
SystemdCgroup = false
"
    )
}

/// Pods of this range behind the node, each with a link of its own to it.
pub(super) fn pod_network(range: &str) -> String {
    json!({
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [{
            "type": "ptp",
            "ipMasq": false,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": range}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }],
    })
    .to_string()
}

/// What every kubelet here needs, however it joined: nothing that belongs to the whole machine is changed,
/// and nothing is evicted because the machine is full.
pub fn kubelet() -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": CRI_SOCKET,
        "cgroupDriver": "cgroupfs",
        "failCgroupV1": false,
        "failSwapOn": false,
        "makeIPTablesUtilChains": false,
        "oomScoreAdj": 0,
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": {
            "memory.available": "1Mi",
            "nodefs.available": "0%",
            "nodefs.inodesFree": "0%",
            "imagefs.available": "0%",
            "imagefs.inodesFree": "0%",
        },
        "resolvConf": "/etc/resolv.conf",
    })
}

/// With a serving certificate of the cluster's authority and the API server's word on who may ask.
pub(super) fn kubelet_with_certificates(more: &Value) -> Result<String> {
    let mut configuration = kubelet();
    let mut merge = |with: &Value| {
        if let (Some(into), Some(with)) = (configuration.as_object_mut(), with.as_object()) {
            into.extend(with.clone());
        }
    };
    merge(&json!({
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": "/etc/kubernetes/pki/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": "/etc/kubernetes/pki/kubelet.crt",
        "tlsPrivateKeyFile": "/etc/kubernetes/pki/kubelet.key",
    }));
    merge(more);
    Ok(serde_yaml::to_string(&configuration)?)
}
