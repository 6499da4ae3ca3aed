//! Volumes of a CSI driver of the tests' own, which are folders of this machine, and the side-cars that
//! connect it with the API server (external-provisioner, -attacher and -resizer). Real nodes mount them by an
//! instance of the driver each; on kwok's nodes [`Mounts`](crate::mounts::Mounts) says what a kubelet would.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{Network, Node, POLL};
use crate::control_plane::ControlPlane;
use crate::process::{Process, Spec, WorkDir};
use crate::programs::{Program, Programs};
use crate::wait::until;

/// The driver's name.
pub const DRIVER: &str = "folders.csi.manifold.dev";
/// A kubelet notices a driver within a second; a busy machine may take longer.
const REGISTRATION_LIMIT: Duration = Duration::from_secs(60);
/// By which a node leaves attaching to the controller.
const MANAGED: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
/// Where hundreds of volumes change at once, they must wait for the manager alone.
const UNHURRIED: [(Program, &[&str]); 3] = [
    (
        Program::CsiProvisioner,
        &[
            "--worker-threads=50",
            "--kube-api-qps=5000",
            "--kube-api-burst=5000",
        ],
    ),
    (
        Program::CsiAttacher,
        &[
            "--worker-threads=50",
            "--kube-api-qps=5000",
            "--kube-api-burst=5000",
        ],
    ),
    (
        Program::CsiResizer,
        &[
            "--workers=50",
            "--kube-api-qps=5000",
            "--kube-api-burst=5000",
        ],
    ),
];
const SIDE_CARS: [Program; 3] = [
    Program::CsiProvisioner,
    Program::CsiAttacher,
    Program::CsiResizer,
];

/// The running driver and its side-cars. Dropping it kills them; what is mounted on nodes stays.
#[derive(Debug)]
pub struct Csi {
    processes: Vec<Process>,
    volumes: PathBuf,
}

impl Csi {
    /// Builds the programs if need be, starts them, and waits until the nodes' kubelets know the driver.
    pub async fn start(
        control_plane: &ControlPlane,
        network: &Network,
        nodes: &[Node],
    ) -> Result<Self> {
        let programs = programs().await?;
        let mut csi = Self::central(control_plane, network.dir(), &programs, &[]).await?;
        let driver = program(&programs, Program::CsiDriver)?;
        for node in nodes {
            let kubelet = Path::new("/var/lib/kubelet");
            let socket = kubelet.join("plugins").join(DRIVER).join("csi.sock");
            let register = kubelet.join(format!("plugins_registry/{DRIVER}-reg.sock"));
            let mut arguments = arguments(&socket, &csi.volumes);
            arguments.push(format!("--node={}", node.name()));
            arguments.push(format!("--register={}", register.display()));
            csi.processes
                .push(node.start("csi-driver", driver, &arguments).await?);
        }
        let known = until(
            "the kubelets know the CSI driver",
            REGISTRATION_LIMIT,
            POLL,
            || async {
                let text = control_plane
                    .kubectl(&["get", "csinodes", "--output=json"])
                    .await?;
                let list: Value = serde_json::from_str(&text)?;
                let items = list["items"].as_array();
                let items = items.into_iter().flatten();
                let knowing = items.filter(|node| {
                    let drivers = node["spec"]["drivers"].as_array();
                    let mut drivers = drivers.into_iter().flatten();
                    drivers.any(|driver| driver["name"] == DRIVER)
                });
                let count = knowing.count();
                ensure!(count >= nodes.len(), "{count} of {} do", nodes.len());
                Ok(Some(()))
            },
        )
        .await;
        match known {
            Ok(()) => Ok(csi),
            Err(error) => csi.check().and(Err(error)),
        }
    }

    /// For kwok's nodes: volumes are provisioned, attached to them and expanded, and nobody mounts. Every
    /// node that there is gets a CSINode with the driver, and the annotation by which attachments are a
    /// controller's.
    pub async fn for_fake_nodes(control_plane: &ControlPlane) -> Result<Self> {
        let programs = programs().await?;
        let csi = Self::central(control_plane, control_plane.dir(), &programs, &UNHURRIED).await?;
        let nodes = control_plane
            .kubectl(&["get", "nodes", "--output=name"])
            .await?;
        let names = nodes.lines().filter_map(|line| line.strip_prefix("node/"));
        let infos: Vec<Value> = names
            .map(|name| {
                json!({
                    "apiVersion": "storage.k8s.io/v1",
                    "kind": "CSINode",
                    "metadata": {"name": name},
                    "spec": {"drivers": [{"name": DRIVER, "nodeID": name, "topologyKeys": []}]},
                })
            })
            .collect();
        let list = json!({"apiVersion": "v1", "kind": "List", "items": infos}).to_string();
        control_plane.apply_text(&list).await?;
        let managed = format!("{MANAGED}=true");
        control_plane
            .kubectl(&["annotate", "nodes", "--all", &managed])
            .await?;
        Ok(csi)
    }

    /// The driver's instance for the controller's calls, and the side-cars with these arguments more.
    async fn central(
        control_plane: &ControlPlane,
        dir: &WorkDir,
        programs: &BTreeMap<Program, PathBuf>,
        more: &[(Program, &[&str])],
    ) -> Result<Self> {
        let volumes = dir.file("volumes");
        fs::create_dir_all(&volumes).with_context(|| format!("making {}", volumes.display()))?;
        let socket = dir.file("csi.sock");
        let mut processes = vec![Process::spawn(&Spec {
            name: "the CSI driver".to_owned(),
            program: program(programs, Program::CsiDriver)?.clone(),
            args: arguments(&socket, &volumes),
            env: Vec::new(),
            log: dir.file("csi-driver.log"),
        })?];
        for one in SIDE_CARS {
            let mut args = vec![
                format!("--csi-address={}", socket.display()),
                format!(
                    "--kubeconfig={}",
                    control_plane.admin_kubeconfig().display()
                ),
                "--v=4".to_owned(),
            ];
            let its = more.iter().filter(|(of, _)| *of == one);
            args.extend(its.flat_map(|(_, args)| args.iter().map(|arg| (*arg).to_owned())));
            processes.push(Process::spawn(&Spec {
                name: one.name().to_owned(),
                program: program(programs, one)?.clone(),
                args,
                env: Vec::new(),
                log: dir.file(&format!("{}.log", one.name())),
            })?);
        }
        let object = json!({
            "apiVersion": "storage.k8s.io/v1",
            "kind": "CSIDriver",
            "metadata": {"name": DRIVER},
            "spec": {"attachRequired": true, "podInfoOnMount": false},
        });
        control_plane.apply_text(&object.to_string()).await?;
        Ok(Self { processes, volumes })
    }

    /// An error with the end of its log if one of the programs has ended.
    pub fn check(&mut self) -> Result<()> {
        self.processes.iter_mut().try_for_each(Process::check)
    }

    /// Starts those again that have ended, as a kubelet would.
    pub fn start_the_ended_again(&mut self) -> Result<()> {
        let ended = self.processes.iter_mut();
        ended
            .filter_map(|process| process.exited().map(|_| process))
            .try_for_each(Process::start_again)
    }

    /// What would have lost data on a real disk, a line each; empty where nothing would.
    pub fn violations(&self) -> Result<String> {
        match fs::read_to_string(self.volumes.join("violations")) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
            read => read.context("reading the driver's record"),
        }
    }

    /// A file of a volume; its content lies in `data`.
    pub fn file(&self, volume: &str, name: &str) -> PathBuf {
        self.volumes.join(volume).join(name)
    }

    /// The ids of all volumes.
    pub fn volumes(&self) -> Result<Vec<String>> {
        let entries = fs::read_dir(&self.volumes).context("reading the driver's volumes")?;
        let folders = entries.flatten().filter(|entry| entry.path().is_dir());
        Ok(folders
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect())
    }

    /// Makes a volume that nobody provisions: a PersistentVolume may name it.
    pub fn make(&self, volume: &str) -> Result<()> {
        for folder in ["data", "attached", "mounted"] {
            let folder = self.file(volume, folder);
            fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
        }
        let bytes = self.file(volume, "bytes");
        fs::write(&bytes, (1_u64 << 30).to_string())
            .with_context(|| format!("writing {}", bytes.display()))
    }

    /// The nodes that it is attached to, by the driver's own record.
    pub fn attached(&self, volume: &str) -> Result<usize> {
        let folder = self.file(volume, "attached");
        let entries =
            fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))?;
        Ok(entries.count())
    }

    /// The folder of all volumes.
    pub fn folder(&self) -> &Path {
        &self.volumes
    }

    /// Notes that a node has lost power: what was mounted there is not mounted any more.
    pub fn power_off(&self, node: &str) -> Result<()> {
        for volume in self.volumes()? {
            let mark = self.file(&volume, "mounted").join(node);
            if mark.exists() {
                fs::remove_file(&mark).with_context(|| format!("removing {}", mark.display()))?;
            }
        }
        Ok(())
    }
}

async fn programs() -> Result<BTreeMap<Program, PathBuf>> {
    tokio::task::spawn_blocking(Programs::obtain_csi)
        .await
        .context("building the CSI driver and its side-cars")?
}

fn program(programs: &BTreeMap<Program, PathBuf>, wanted: Program) -> Result<&PathBuf> {
    let found = programs.get(&wanted);
    found.with_context(|| format!("{} was not built", wanted.name()))
}

fn arguments(socket: &Path, volumes: &Path) -> Vec<String> {
    vec![
        format!("--name={DRIVER}"),
        format!("--socket={}", socket.display()),
        format!("--volumes={}", volumes.display()),
    ]
}
