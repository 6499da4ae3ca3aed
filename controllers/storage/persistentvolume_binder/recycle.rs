//! Volumes of policy Recycle: a pod empties each, and its life is followed.

use controllers_kit::{FlagDefault, Flags, Key, Runs};
use kubernetes_proto::{Object, core::PersistentVolume, quantity::Quantity};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::facts::volume_spec;

const GIBIBYTE: i64 = 1 << 30;
/// The prefix of the pod's name; the volume's name follows.
pub(super) const POD_PREFIX: &str = "recycler-for-";
const NAMESPACE: &str = "default";
/// Upstream's image, which kubelets pull; in two parts, since no registry is named in the tree.
const IMAGE: &str = concat!(
    "registry.k8s",
    ".io/build-image/debian-base:bookworm-v1.0.6"
);

/// The flags of one plugin that recycles.
struct Names {
    template: &'static str,
    minimum: &'static str,
    increment: &'static str,
}

const NFS: Names = Names {
    template: "pv-recycler-pod-template-filepath-nfs",
    minimum: "pv-recycler-minimum-timeout-nfs",
    increment: "pv-recycler-increment-timeout-nfs",
};
const HOST_PATH: Names = Names {
    template: "pv-recycler-pod-template-filepath-hostpath",
    minimum: "pv-recycler-minimum-timeout-hostpath",
    // Spelled differently from its sibling, as in upstream.
    increment: "pv-recycler-timeout-increment-hostpath",
};

/// Name, default and help of every flag of recyclers.
pub(super) const FLAGS: [(&str, FlagDefault, &str); 6] = [
    (
        NFS.template,
        FlagDefault::File,
        "Pod in YAML or JSON that empties NFS volumes of policy Recycle; it must have a volume, which is replaced.",
    ),
    (
        NFS.minimum,
        FlagDefault::Int(300),
        "Minimum activeDeadlineSeconds of a pod that empties an NFS volume.",
    ),
    (
        NFS.increment,
        FlagDefault::Int(30),
        "Seconds added to activeDeadlineSeconds for each GiB of an NFS volume.",
    ),
    (
        HOST_PATH.template,
        FlagDefault::File,
        "Pod in YAML or JSON that empties hostPath volumes of policy Recycle; it must have a volume, which is replaced. For tests on one node.",
    ),
    (
        HOST_PATH.minimum,
        FlagDefault::Int(60),
        "Minimum activeDeadlineSeconds of a pod that empties a hostPath volume.",
    ),
    (
        HOST_PATH.increment,
        FlagDefault::Int(30),
        "Seconds added to activeDeadlineSeconds for each GiB of a hostPath volume.",
    ),
];

/// The numeric flags.
pub(super) const NUMBERS: [&str; 4] = [
    NFS.minimum,
    NFS.increment,
    HOST_PATH.minimum,
    HOST_PATH.increment,
];

/// How one plugin empties its volumes.
pub(super) struct Recycler {
    template: Value,
    minimum: i64,
    increment: i64,
}

/// Those that there are.
pub(super) struct Recyclers {
    nfs: Recycler,
    host_path: Recycler,
}

/// The pod where no template is given.
fn own_template() -> Value {
    let scrub = "test -e /scrub && find /scrub -mindepth 1 -delete && test -z \"$(ls -A /scrub)\" || exit 1";
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": NAMESPACE},
        "spec": {
            "restartPolicy": "Never",
            "volumes": [{"name": "vol"}],
            "containers": [{
                "name": "pv-recycler",
                "image": IMAGE,
                "command": ["/bin/sh"],
                "args": ["-c", scrub],
                "volumeMounts": [{"name": "vol", "mountPath": "/scrub"}],
            }],
        },
    })
}

fn template(flags: &Flags, flag: &str) -> Result<Value, String> {
    let Some(file) = flags.file(flag) else {
        return Ok(own_template());
    };
    let wrong = |why: &str| format!("--{flag}: pod specification {why}");
    let mut pod: Value =
        serde_yaml::from_slice(file).map_err(|error| wrong(&format!("can't be read: {error}")))?;
    if pod["kind"] != "Pod" || pod["apiVersion"] != "v1" {
        return Err(wrong("is not of kind Pod, apiVersion v1"));
    }
    let volume = pod["spec"]["volumes"].get(0);
    if !volume.is_some_and(|volume| volume["name"].is_string()) {
        return Err(wrong("does not contain any volume(s)"));
    }
    if !pod["metadata"].is_object() {
        pod["metadata"] = json!({});
    }
    if !pod["metadata"]["namespace"].is_string() {
        pod["metadata"]["namespace"] = NAMESPACE.into();
    }
    if let Some(fields) = pod.as_object_mut() {
        fields.remove("status");
    }
    Ok(pod)
}

impl Recycler {
    fn of(flags: &Flags, names: &Names) -> Result<Self, String> {
        Ok(Self {
            template: template(flags, names.template)?,
            minimum: flags.int(names.minimum),
            increment: flags.int(names.increment),
        })
    }

    /// For how long the pod may run.
    fn deadline(&self, volume: &PersistentVolume) -> i64 {
        let named = super::facts::storage(&volume_spec(volume).capacity);
        let bytes = named.and_then(Quantity::milli).unwrap_or_default() / 1000;
        let seconds = (bytes / GIBIBYTE).saturating_mul(self.increment);
        seconds.max(self.minimum).min(i64::from(i32::MAX))
    }

    /// The pod that empties a volume.
    pub(super) fn key(&self, volume: &PersistentVolume) -> Key {
        let namespace = self.template["metadata"]["namespace"].as_str();
        let name = format!("{POD_PREFIX}{}", Object::metadata(volume).name);
        Key::new(namespace.unwrap_or(NAMESPACE), name)
    }

    /// Its JSON.
    pub(super) fn pod(&self, volume: &PersistentVolume) -> Value {
        let mut pod = self.template.clone();
        let source = volume_spec(volume).persistent_volume_source.as_ref();
        let source = match source.map(|source| (&source.host_path, &source.nfs)) {
            Some((Some(host), _)) => json!({"hostPath": {"path": host.path}}),
            Some((None, Some(nfs))) => json!({"nfs": {"server": nfs.server, "path": nfs.path}}),
            _ => json!({}),
        };
        let name = pod["spec"]["volumes"][0]["name"].take();
        pod["spec"]["volumes"][0] = source;
        pod["spec"]["volumes"][0]["name"] = name;
        pod["spec"]["activeDeadlineSeconds"] = self.deadline(volume).into();
        if let Some(meta) = pod["metadata"].as_object_mut() {
            meta.remove("generateName");
            meta.insert("name".to_owned(), self.key(volume).name.as_str().into());
        }
        pod
    }
}

impl Recyclers {
    /// # Errors
    /// Where a template can't be used.
    pub(super) fn of(flags: &Flags) -> Result<Self, String> {
        Ok(Self {
            nfs: Recycler::of(flags, &NFS)?,
            host_path: Recycler::of(flags, &HOST_PATH)?,
        })
    }

    /// Where their pods are.
    pub(super) fn namespaces(&self) -> impl Iterator<Item = &str> {
        [&self.nfs, &self.host_path]
            .into_iter()
            .filter_map(|one| one.template["metadata"]["namespace"].as_str())
    }

    /// Who empties a volume, if anybody can.
    pub(super) fn of_volume(&self, volume: &PersistentVolume) -> Option<&Recycler> {
        let source = volume_spec(volume).persistent_volume_source.as_ref()?;
        match (&source.host_path, &source.nfs) {
            (Some(_), _) => Some(&self.host_path),
            (None, Some(_)) => Some(&self.nfs),
            (None, None) => None,
        }
    }
}

/// Whether the flags can be used.
pub(super) fn runs(flags: &Flags) -> Runs {
    if flags.bool("enable-hostpath-provisioner") {
        return Runs::Wrong(
            "--enable-hostpath-provisioner=true: volumes can't be directories of the manager's host where every replica has a host of its own; use a provisioner such as that of local paths".to_owned(),
        );
    }
    match Recyclers::of(flags) {
        Ok(_) => Runs::Yes,
        Err(why) => Runs::Wrong(why),
    }
}

/// The progress of emptying a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Recycling {
    /// The uid of the pod that was created for it: only that pod's result counts, since any client may
    /// create a pod of that name. Empty before.
    pub(super) pod: String,
    /// Why it could not be made.
    pub(super) refused: String,
    /// How often it failed in a row.
    pub(super) failures: u32,
    /// When it is tried again; Unix milliseconds.
    pub(super) retry_at: i64,
}
