//! Volumes of real nodes: a CSI driver of the tests' own, whose volumes are folders of this machine, and the
//! side-cars that connect it with the API server (external-provisioner, -attacher and -resizer).

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{Network, Node, POLL};
use crate::control_plane::ControlPlane;
use crate::process::{Process, Spec};
use crate::programs::{Program, Programs};
use crate::wait::until;

/// The driver's name.
pub const DRIVER: &str = "folders.csi.manifold.dev";
/// A kubelet notices a driver within a second; a busy machine may take longer.
const REGISTRATION_LIMIT: Duration = Duration::from_secs(60);
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
        let programs = tokio::task::spawn_blocking(Programs::obtain_csi)
            .await
            .context("building the CSI driver and its side-cars")??;
        let program = |wanted: Program| {
            let found = programs.get(&wanted).cloned();
            found.with_context(|| format!("{} was not built", wanted.name()))
        };
        let dir = network.dir();
        let volumes = dir.file("volumes");
        fs::create_dir_all(&volumes).with_context(|| format!("making {}", volumes.display()))?;
        let socket = dir.file("csi.sock");
        let mut processes = vec![Process::spawn(&Spec {
            name: "the CSI driver".to_owned(),
            program: program(Program::CsiDriver)?,
            args: arguments(&socket, &volumes),
            env: Vec::new(),
            log: dir.file("csi-driver.log"),
        })?];
        for one in SIDE_CARS {
            processes.push(Process::spawn(&Spec {
                name: one.name().to_owned(),
                program: program(one)?,
                args: vec![
                    format!("--csi-address={}", socket.display()),
                    format!(
                        "--kubeconfig={}",
                        control_plane.admin_kubeconfig().display()
                    ),
                    "--v=4".to_owned(),
                ],
                env: Vec::new(),
                log: dir.file(&format!("{}.log", one.name())),
            })?);
        }
        for node in nodes {
            let kubelet = Path::new("/var/lib/kubelet");
            let socket = kubelet.join("plugins").join(DRIVER).join("csi.sock");
            let register = kubelet.join(format!("plugins_registry/{DRIVER}-reg.sock"));
            let mut arguments = arguments(&socket, &volumes);
            arguments.push(format!("--node={}", node.name()));
            arguments.push(format!("--register={}", register.display()));
            let driver = program(Program::CsiDriver)?;
            processes.push(node.start("csi-driver", &driver, &arguments).await?);
        }
        let object = json!({
            "apiVersion": "storage.k8s.io/v1",
            "kind": "CSIDriver",
            "metadata": {"name": DRIVER},
            "spec": {"attachRequired": true, "podInfoOnMount": false},
        });
        control_plane
            .kubectl_with_input(&["apply"], &object.to_string())
            .await?;
        let mut csi = Self { processes, volumes };
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

    /// An error with the end of its log if one of the programs has ended.
    pub fn check(&mut self) -> Result<()> {
        self.processes.iter_mut().try_for_each(Process::check)
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

fn arguments(socket: &Path, volumes: &Path) -> Vec<String> {
    vec![
        format!("--name={DRIVER}"),
        format!("--socket={}", socket.display()),
        format!("--volumes={}", volumes.display()),
    ]
}
