//! The control plane's programs, built from the `tool` lines of `tests/controlplane/go.mod`.
//!
//! They lie in `manifold/controlplane/<hash>/` under the user's cache directory, where the hash is of
//! go.mod, go.sum and Go's version: nothing is built again until one of these changes, and two
//! branches with different ones do not disturb each other. A lock file lets one process build while
//! the others wait; a build that was broken off continues where it stopped.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use xxhash_rust::xxh3::xxh3_128;

use crate::progress::Steps;
use crate::toolchain;

/// The module whose version the API server reports.
const KUBERNETES: &str = "k8s.io/kubernetes";
const KWOK: &str = "sigs.k8s.io/kwok";
const METRICS_SERVER: &str = "sigs.k8s.io/metrics-server";
const JAEGER: &str = "github.com/jaegertracing/jaeger";
const HELM: &str = "helm.sh/helm/v3";
const PROMETHEUS: &str = "github.com/prometheus/prometheus";
const CLOUD_PROVIDER: &str = "k8s.io/cloud-provider";
const CONTAINERD: &str = "github.com/containerd/containerd/v2";
/// The side-cars of a CSI driver and the tests' driver, each with a module of its own: their folders and what
/// gives them their version.
const CSI: [(&str, &str, Program); 4] = [
    (
        "tests/controlplane/csi-attacher",
        "github.com/kubernetes-csi/external-attacher/v4",
        Program::CsiAttacher,
    ),
    (
        "tests/controlplane/csi-provisioner",
        "github.com/kubernetes-csi/external-provisioner/v5",
        Program::CsiProvisioner,
    ),
    (
        "tests/controlplane/csi-resizer",
        "github.com/kubernetes-csi/external-resizer/v2",
        Program::CsiResizer,
    ),
    (
        "tests/controlplane/csi-driver",
        "github.com/container-storage-interface/spec",
        Program::CsiDriver,
    ),
];
/// Stage files of kwok that make fake nodes ready and keep them so, and run fake pods at once.
const STAGES: [&str; 3] = [
    "stage/node/fast",
    "stage/node/heartbeat-with-lease",
    "stage/pod/fast",
];
/// What makes kwok's kubelets report how much their pods use, by an annotation of the pods.
const USAGE: [&str; 2] = ["metrics/resource", "metrics/usage"];
/// A cached version that nobody has used for this long is removed: about 430 MB each.
const UNUSED_FOR: Duration = Duration::from_secs(30 * 24 * 3600);
/// Lines of a failed build that its error holds.
const ERROR_LINES: usize = 30;

/// One program of the control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Program {
    /// etcd, in which the API server keeps its objects.
    Etcd,
    /// kube-apiserver.
    ApiServer,
    /// kube-scheduler.
    Scheduler,
    /// kwok, which plays the kubelets.
    Kwok,
    /// kubectl.
    Kubectl,
    /// kube-controller-manager: the peer that Manifold is compared with.
    ControllerManager,
    /// metrics-server, which autoscalers ask what pods use.
    MetricsServer,
    /// Jaeger's all-in-one, which keeps traces in memory.
    Jaeger,
    /// kubelet, the agent of a real node.
    Kubelet,
    /// kubeadm, which sets clusters up.
    Kubeadm,
    /// containerd, which runs a real node's containers.
    Containerd,
    /// What stays with each of its pods.
    ContainerdShim,
    /// containerd's own client.
    Ctr,
    /// external-attacher: attaches what VolumeAttachments ask for.
    CsiAttacher,
    /// external-provisioner: makes and deletes PersistentVolumes.
    CsiProvisioner,
    /// external-resizer: expands volumes.
    CsiResizer,
    /// The CSI driver of the tests with real nodes.
    CsiDriver,
    /// helm, which renders and checks the chart.
    Helm,
    /// promtool, which checks the alerts and tests them over series.
    Promtool,
    /// Upstream's cloud controllers over the tests' cloud.
    CloudControllers,
    /// The DRA driver of Kubernetes' own tests.
    DraDriver,
}

impl Program {
    /// The programs of Kubernetes that a real node runs.
    pub const NODE: [Self; 2] = [Self::Kubeadm, Self::Kubelet];
    /// What runs its containers, beside Debian's runc.
    pub const CONTAINERS: [Self; 3] = [Self::Ctr, Self::ContainerdShim, Self::Containerd];

    /// What every test needs, those that are built fastest first, so that a mistake shows early.
    pub const CONTROL_PLANE: [Self; 6] = [
        Self::Kwok,
        Self::Etcd,
        Self::ApiServer,
        Self::Scheduler,
        Self::Kubectl,
        Self::ControllerManager,
    ];

    /// File name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::ApiServer => "kube-apiserver",
            Self::Scheduler => "kube-scheduler",
            Self::Kwok => "kwok",
            Self::Kubectl => "kubectl",
            Self::ControllerManager => "kube-controller-manager",
            Self::MetricsServer => "metrics-server",
            Self::Jaeger => "jaeger-all-in-one",
            Self::Kubelet => "kubelet",
            Self::Kubeadm => "kubeadm",
            Self::Containerd => "containerd",
            Self::ContainerdShim => "containerd-shim-runc-v2",
            Self::Ctr => "ctr",
            Self::CsiAttacher => "csi-attacher",
            Self::CsiProvisioner => "csi-provisioner",
            Self::CsiResizer => "csi-resizer",
            Self::CsiDriver => "csi-driver",
            Self::Helm => "helm",
            Self::Promtool => "promtool",
            Self::CloudControllers => "cloud-controllers",
            Self::DraDriver => "dra-driver",
        }
    }

    /// Go package, as in go.mod's `tool` lines; the module itself for a program of the tests' own.
    pub fn package(self) -> &'static str {
        match self {
            Self::Etcd => "go.etcd.io/etcd/server/v3",
            Self::ApiServer => "k8s.io/kubernetes/cmd/kube-apiserver",
            Self::Scheduler => "k8s.io/kubernetes/cmd/kube-scheduler",
            Self::Kwok => "sigs.k8s.io/kwok/cmd/kwok",
            Self::Kubectl => "k8s.io/kubernetes/cmd/kubectl",
            Self::ControllerManager => "k8s.io/kubernetes/cmd/kube-controller-manager",
            Self::MetricsServer => "sigs.k8s.io/metrics-server/cmd/metrics-server",
            Self::Jaeger => "github.com/jaegertracing/jaeger/cmd/all-in-one",
            Self::Kubelet => "k8s.io/kubernetes/cmd/kubelet",
            Self::Kubeadm => "k8s.io/kubernetes/cmd/kubeadm",
            Self::Containerd => "github.com/containerd/containerd/v2/cmd/containerd",
            Self::ContainerdShim => {
                "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"
            }
            Self::Ctr => "github.com/containerd/containerd/v2/cmd/ctr",
            Self::CsiAttacher => "github.com/kubernetes-csi/external-attacher/v4/cmd/csi-attacher",
            Self::CsiProvisioner => {
                "github.com/kubernetes-csi/external-provisioner/v5/cmd/csi-provisioner"
            }
            Self::CsiResizer => "github.com/kubernetes-csi/external-resizer/v2/cmd/csi-resizer",
            Self::CsiDriver => "manifold.dev/tests/controlplane/csi-driver",
            Self::Helm => "helm.sh/helm/v3/cmd/helm",
            Self::Promtool => "github.com/prometheus/prometheus/cmd/promtool",
            Self::CloudControllers => "manifold.dev/tests/controlplane/cloud-controllers",
            Self::DraDriver => "k8s.io/kubernetes/test/e2e/dra/test-driver",
        }
    }

    /// Go's build tags. Rules need no service discovery, which is most of what promtool would be built of.
    fn tags(self) -> &'static str {
        match self {
            Self::Promtool => "remove_all_sd",
            _ => "",
        }
    }
}

/// A directory with all programs in it.
#[derive(Debug, Clone)]
pub struct Programs {
    directory: PathBuf,
    version: String,
}

impl Programs {
    /// Builds what is missing of the control plane; blocks for minutes when nothing is cached.
    pub fn obtain() -> Result<Self> {
        Source::of_the_control_plane()?.obtain(&cache()?, &Program::CONTROL_PLANE)
    }

    /// Builds metrics-server, which few tests need.
    pub fn obtain_metrics_server() -> Result<Self> {
        Source::of_metrics_server()?.obtain(&cache()?, &[Program::MetricsServer])
    }

    /// Builds Jaeger, which the suite of traces and the demo need.
    pub fn obtain_jaeger() -> Result<Self> {
        Source::of("tests/controlplane/jaeger", JAEGER)?.obtain(&cache()?, &[Program::Jaeger])
    }

    /// Builds helm, which the tests of the chart need.
    pub fn obtain_helm() -> Result<Self> {
        Source::of("tests/controlplane/helm", HELM)?.obtain(&cache()?, &[Program::Helm])
    }

    /// Builds promtool, which the tests of the alerts need.
    pub fn obtain_promtool() -> Result<Self> {
        Source::of("tests/controlplane/prometheus", PROMETHEUS)?
            .obtain(&cache()?, &[Program::Promtool])
    }

    /// Builds upstream's cloud controllers, which the parity of Manifold's is measured with.
    pub fn obtain_cloud_controllers() -> Result<Self> {
        Source::of("tests/controlplane/cloud-controllers", CLOUD_PROVIDER)?
            .obtain(&cache()?, &[Program::CloudControllers])
    }

    /// Builds the DRA driver of Kubernetes' own tests.
    pub fn obtain_dra_driver() -> Result<Self> {
        Source::of("tests/controlplane/dra-driver", KUBERNETES)?
            .obtain(&cache()?, &[Program::DraDriver])
    }

    /// Builds the kubelet and kubeadm, which tests with real nodes need.
    pub fn obtain_kubelet() -> Result<Self> {
        Source::of("tests/controlplane/kubelet", KUBERNETES)?.obtain(&cache()?, &Program::NODE)
    }

    /// Builds containerd, which they need too.
    pub fn obtain_containerd() -> Result<Self> {
        Source::of("tests/controlplane/containerd", CONTAINERD)?
            .obtain(&cache()?, &Program::CONTAINERS)
    }

    /// Builds the tests' CSI driver and the side-cars that connect it with the API server; gives their files.
    pub fn obtain_csi() -> Result<BTreeMap<Program, PathBuf>> {
        let cache = cache()?;
        let built = CSI.iter().map(|(folder, main, program)| {
            let programs = Source::of(folder, main)?.obtain(&cache, &[*program])?;
            Ok((*program, programs.path(*program)))
        });
        built.collect()
    }

    /// Where they lie.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The file of one.
    pub fn path(&self, program: Program) -> PathBuf {
        self.directory.join(program.name())
    }

    /// Kubernetes' version, with the `v`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// kwok's stage files.
    pub fn stages(&self) -> Result<Vec<PathBuf>> {
        self.files("stages")
    }

    /// What kwok must be given for its kubelets to report what pods use.
    pub fn usage(&self) -> Result<Vec<PathBuf>> {
        self.files("usage")
    }

    fn files(&self, directory: &str) -> Result<Vec<PathBuf>> {
        let directory = self.directory.join(directory);
        let mut files: Vec<PathBuf> = fs::read_dir(&directory)
            .with_context(|| format!("reading {}", directory.display()))?
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<std::io::Result<_>>()?;
        files.sort();
        Ok(files)
    }
}

fn cache() -> Result<PathBuf> {
    Ok(crate::cache_dir()?.join("controlplane"))
}

/// A Go module that programs are built from.
#[derive(Debug)]
pub(crate) struct Source {
    module: PathBuf,
    /// Of its main program.
    version: String,
    kwok_version: Option<String>,
    hash: String,
}

impl Source {
    /// `tests/controlplane` of this workspace.
    pub(crate) fn of_the_control_plane() -> Result<Self> {
        Self::of("tests/controlplane", KUBERNETES)
    }

    fn of_metrics_server() -> Result<Self> {
        Self::of("tests/controlplane/metrics-server", METRICS_SERVER)
    }

    fn of(folder: &str, main: &str) -> Result<Self> {
        let module = crate::workspace_root().join(folder);
        let read = |name: &str| {
            let path = module.join(name);
            fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
        };
        let (go_mod, go_sum) = (read("go.mod")?, read("go.sum")?);
        let go = toolchain::go()?;
        // What is copied beside the programs too: a cache that was filled before it was wanted lacks it.
        let copied = [&STAGES[..], &USAGE].concat().join(" ");
        let mut hashed = [go_mod.as_str(), &go_sum, &go, &copied].join("\0");
        // Of a program of the tests' own; other modules have none.
        if module.join("main.go").is_file() {
            hashed.push_str(&read("main.go")?);
        }
        Ok(Self {
            version: required_version(&go_mod, main)
                .with_context(|| format!("{folder}/go.mod requires no {main}"))?,
            kwok_version: required_version(&go_mod, KWOK),
            hash: format!("{:032x}", xxh3_128(hashed.as_bytes())),
            module,
        })
    }

    /// Builds what of `wanted` is missing below `cache`.
    pub(crate) fn obtain(&self, cache: &Path, wanted: &[Program]) -> Result<Programs> {
        let directory = cache.join(&self.hash);
        let programs = Programs {
            directory: directory.clone(),
            version: self.version.clone(),
        };
        if !directory.is_dir() {
            fs::create_dir_all(cache).with_context(|| format!("making {}", cache.display()))?;
            let lock = cache.join(format!("{}.lock", self.hash));
            let lock = File::create(&lock).with_context(|| format!("making {}", lock.display()))?;
            if lock.try_lock().is_err() {
                eprintln!("control plane: another process is building it, waiting");
                lock.lock()
                    .context("waiting for the process that builds the control plane")?;
            }
            if !directory.is_dir() {
                let unfinished = cache.join(format!("{}.building", self.hash));
                self.build(&unfinished, wanted)?;
                fs::rename(&unfinished, &directory)
                    .with_context(|| format!("renaming {}", unfinished.display()))?;
            }
        }
        // Only shows a later run that this version is in use; a read-only cache is no error.
        let _ = File::open(&directory).and_then(|dir| dir.set_modified(SystemTime::now()));
        remove_unused(cache);
        Ok(programs)
    }

    fn build(&self, into: &Path, wanted: &[Program]) -> Result<()> {
        fs::create_dir_all(into).with_context(|| format!("making {}", into.display()))?;
        let what = match wanted {
            [one] => format!("building {}", one.name()),
            [first, ..] if self.kwok_version.is_none() => {
                format!("building {} and what belongs to it", first.name())
            }
            _ => "building the control plane".to_owned(),
        };
        let mut steps = Steps::new(what, wanted.len() as u64);
        let flags = self.link_flags();
        for program in wanted {
            steps.begin(program.name());
            let target = into.join(program.name());
            if target.is_file() {
                continue;
            }
            // `go build` writes its output in place; a broken-off one must not seem finished.
            let partial = into.join(format!("{}.partial", program.name()));
            let arguments = [
                "build",
                "-trimpath",
                "-buildvcs=false",
                "-mod=readonly",
                "-tags",
                program.tags(),
                "-ldflags",
                &flags,
                "-o",
            ];
            let mut go = Command::new("go");
            go.args(arguments).arg(&partial).arg(program.package());
            self.run(&mut go, program.name(), &steps)?;
            fs::rename(&partial, &target)
                .with_context(|| format!("renaming {}", partial.display()))?;
        }
        if self.kwok_version.is_some() {
            let kustomize = self.kustomize(&steps)?;
            copy_manifests(&kustomize, &STAGES, &into.join("stages"))?;
            copy_manifests(&kustomize, &USAGE, &into.join("usage"))?;
        }
        steps.finish("built");
        Ok(())
    }

    /// Without these the API server would call itself v0.0.0-master, and kubectl would warn.
    fn link_flags(&self) -> String {
        let plain = self.version.trim_start_matches('v');
        let mut parts = plain.split('.');
        let (major, minor) = (parts.next().unwrap_or("1"), parts.next().unwrap_or("0"));
        let mut flags = String::from("-s -w");
        for package in [
            "k8s.io/component-base/version",
            "k8s.io/client-go/pkg/version",
        ] {
            for (name, value) in [
                ("gitVersion", self.version.as_str()),
                ("gitMajor", major),
                ("gitMinor", minor),
                ("gitCommit", &self.version),
                ("gitTreeState", "clean"),
            ] {
                flags.push_str(&format!(" -X {package}.{name}={value}"));
            }
        }
        if let Some(version) = &self.kwok_version {
            flags.push_str(&format!(" -X {KWOK}/pkg/consts.Version={version}"));
        }
        flags
    }

    fn run(&self, go: &mut Command, what: &str, steps: &Steps) -> Result<String> {
        let mut child = go
            .current_dir(&self.module)
            .env("CGO_ENABLED", "0")
            .env("GOTOOLCHAIN", "local")
            .env("GOWORK", "off")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("starting go")?;
        let mut said = Vec::new();
        if let Some(stderr) = child.stderr.take() {
            for line in BufReader::new(stderr).lines() {
                let line = line.context("reading what go says")?;
                steps.detail(&format!("{what}: {line}"));
                said.push(line);
            }
        }
        let output = child.wait_with_output().context("waiting for go")?;
        if !output.status.success() {
            let last = said.len().saturating_sub(ERROR_LINES);
            bail!(
                "go could not build {what} ({}); it said:\n{}",
                output.status,
                said[last..].join("\n")
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Where kwok's module holds its manifests.
    fn kustomize(&self, steps: &Steps) -> Result<PathBuf> {
        let mut download = Command::new("go");
        download.args(["mod", "download", KWOK]);
        self.run(&mut download, "kwok's manifests", steps)?;
        let mut list = Command::new("go");
        list.args(["list", "-mod=readonly", "-m", "-f", "{{.Dir}}", KWOK]);
        let module = self.run(&mut list, "kwok's manifests", steps)?;
        Ok(Path::new(module.trim()).join("kustomize"))
    }
}

/// Copies the manifests of some folders into one.
fn copy_manifests(kustomize: &Path, folders: &[&str], into: &Path) -> Result<()> {
    fs::create_dir_all(into).with_context(|| format!("making {}", into.display()))?;
    for folder in folders {
        let from = kustomize.join(folder);
        for entry in fs::read_dir(&from).with_context(|| format!("reading {}", from.display()))? {
            let path = entry?.path();
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            if name.ends_with(".yaml") && name != "kustomization.yaml" {
                // Read and written, not copied: files of the module cache are read-only.
                let text =
                    fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
                fs::write(into.join(&name), text)
                    .with_context(|| format!("writing the manifest {name}"))?;
            }
        }
    }
    Ok(())
}

/// The version that a `require` line of go.mod names for a module.
fn required_version(go_mod: &str, module: &str) -> Option<String> {
    go_mod.lines().find_map(|line| {
        let mut words = line
            .split_whitespace()
            .skip_while(|word| *word == "require");
        (words.next() == Some(module))
            .then(|| words.next())
            .flatten()
            .filter(|version| version.starts_with('v'))
            .map(str::to_owned)
    })
}

fn remove_unused(cache: &Path) {
    let Ok(entries) = fs::read_dir(cache) else {
        return;
    };
    for entry in entries.flatten() {
        let unused = entry
            .metadata()
            .and_then(|meta| meta.modified())
            .is_ok_and(|used| used.elapsed().is_ok_and(|age| age > UNUSED_FOR));
        if unused {
            // Another process may be removing the same one.
            let _ = fs::remove_dir_all(entry.path()).or_else(|_| fs::remove_file(entry.path()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstream_s_cloud_controllers_are_of_the_control_plane_s_version() {
        let version = |folder: &str, module: &str| {
            let go_mod = crate::workspace_root().join(folder).join("go.mod");
            required_version(&fs::read_to_string(go_mod).unwrap(), module).unwrap()
        };
        // Staging modules have 0 where Kubernetes has 1.
        assert_eq!(
            version("tests/controlplane/cloud-controllers", CLOUD_PROVIDER)
                .replacen("v0.", "v1.", 1),
            version("tests/controlplane", KUBERNETES)
        );
    }

    #[test]
    fn kubelet_kubeadm_and_dra_driver_are_of_the_control_plane_s_version() {
        let version = |folder: &str| {
            let go_mod = crate::workspace_root().join(folder).join("go.mod");
            required_version(&fs::read_to_string(go_mod).unwrap(), KUBERNETES).unwrap()
        };
        for folder in [
            "tests/controlplane/kubelet",
            "tests/controlplane/dra-driver",
        ] {
            assert_eq!(version(folder), version("tests/controlplane"), "{folder}");
        }
    }
}
