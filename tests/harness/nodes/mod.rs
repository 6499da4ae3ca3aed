//! Real nodes on one machine: kubelets with containerd and runc, each in network, mount, process, host-name
//! and cgroup namespaces of its own.
//!
//! A [`Network`] is a bridge in a network namespace of its own, with one link to the namespace in which the
//! control plane runs. The API server listens on loopback and is reached at the link's address, and at the
//! address of the Service `kubernetes`, by connections that this process passes on. Nodes have links to the
//! bridge; routes lead to their pods. There is no kube-proxy, no DNS, no registry and no way out: other
//! Services do not answer, and an image is there or is not.
//!
//! Of the machine nothing is changed but that link and its routes, and cgroups below the present one. The
//! kernel removes everything with the processes that hold the namespaces; the cgroups that are left, empty,
//! are removed when a [`Node`] is dropped, or by the watchdog where this process is killed.

pub(crate) mod cgroups;
pub mod csi;
mod files;
mod forward;
mod image;
pub mod kubeadm;
mod requirements;

use std::fs;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use self::cgroups::Cgroups;
pub use self::files::{CRI_SOCKET, kubelet as kubelet_configuration};
use self::forward::Forward;
pub use self::image::IMAGE;
pub use self::requirements::lacking;
use crate::certificates::Authority;
use crate::control_plane::{ControlPlane, NO_KUBELET};
use crate::kubeconfig;
use crate::process::{Process, Spec, WorkDir};
use crate::programs::{Program, Programs};
use crate::toolchain::on_path;
use crate::wait::until;

/// Where nodes find the API server at the gateway's address.
pub const API_PORT: u16 = 6443;
/// More nodes have no addresses.
const NODES_MAX: u8 = 16;
/// The first node's last octet, less one.
const NODE_OCTET: u8 = 10;
/// The third octet of the first node's pods.
const PODS_OCTET: u8 = 16;
/// Second octets of the networks that are tried.
const OCTETS: std::ops::Range<u8> = 100..240;
const ATTEMPTS: usize = 20;
/// Far more than it takes on a machine that is busy with other tests.
const START_LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);
const NETWORK_SCRIPT: &str = include_str!("network.sh");
const NODE_SCRIPT: &str = include_str!("node.sh");
/// With which tests report why they do not run.
const SKIPPED: &str = "skipped: no real node can run on this machine";

/// Whether a test of real nodes can run here. Where it can't, the standard error says why, though the test
/// will pass: not by the macro, whose words are only shown of tests that fail.
pub fn can_run(test: &str) -> bool {
    let lacking = lacking();
    if !lacking.is_empty() {
        let why = lacking.join("; ");
        // Nobody is left to report to where this fails.
        let _ = writeln!(std::io::stderr(), "{test} {SKIPPED}: {why}");
    }
    lacking.is_empty()
}

/// The bridge between nodes and control plane, and what all nodes have in common. Dropping it ends it.
#[derive(Debug)]
pub struct Network {
    forwards: Vec<Forward>,
    process: Process,
    octet: u8,
    images: PathBuf,
    kubelet: Programs,
    containerd: Programs,
    dir: Arc<WorkDir>,
}

impl Network {
    /// Builds the programs if need be, and makes the bridge.
    pub async fn start() -> Result<Self> {
        let (kubelet, containerd) = tokio::task::spawn_blocking(|| {
            anyhow::Ok((Programs::obtain_kubelet()?, Programs::obtain_containerd()?))
        })
        .await
        .context("building the nodes' programs")??;
        let dir = Arc::new(WorkDir::new()?);
        let images = image::write(&dir)?;
        dir.write("network.sh", NETWORK_SCRIPT)?;
        dir.write("node.sh", NODE_SCRIPT)?;
        let octet = free_octet().await?;
        let link = format!("mf{:08x}", rand::random::<u32>());
        let ready = dir.file("network-is-ready");
        let mut network = Self {
            process: Process::spawn(&Spec {
                name: "the nodes' network".to_owned(),
                program: "/bin/sh".into(),
                args: vec![
                    dir.file("network.sh").display().to_string(),
                    "outside".into(),
                ],
                env: [
                    ("HOME_PID", std::process::id().to_string()),
                    ("LINK", link),
                    ("GATEWAY", gateway(octet).to_string()),
                    ("SERVICE", service(octet).to_string()),
                    ("ROUTER", router(octet).to_string()),
                    ("PODS", pods(octet)),
                    ("READY", ready.display().to_string()),
                ]
                .map(|(name, value)| (name.to_owned(), value))
                .into(),
                log: dir.file("network.log"),
            })?,
            forwards: Vec::new(),
            octet,
            images,
            kubelet,
            containerd,
            dir,
        };
        let up = until("the nodes' network is up", START_LIMIT, POLL, || async {
            Ok(ready.exists().then_some(()))
        });
        match up.await {
            Ok(()) => Ok(network),
            Err(error) => network.process.check().and(Err(error)),
        }
    }

    /// The control plane's address in it.
    pub fn gateway(&self) -> Ipv4Addr {
        gateway(self.octet)
    }

    /// Address of the Service `kubernetes`: the first of [`Self::services`].
    pub fn service(&self) -> Ipv4Addr {
        service(self.octet)
    }

    /// Range of the Services' addresses.
    pub fn services(&self) -> String {
        format!("10.{}.128.0/20", self.octet)
    }

    /// Range of the pods' addresses, with a block of 256 for each node.
    pub fn pods(&self) -> String {
        pods(self.octet)
    }

    /// The files of the network and of its nodes.
    pub fn dir(&self) -> &Arc<WorkDir> {
        &self.dir
    }

    /// Programs of a kubelet's module.
    pub fn program(&self, program: Program) -> PathBuf {
        self.kubelet.path(program)
    }

    /// Address of a node.
    pub fn address(&self, index: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, self.octet, 0, NODE_OCTET + 1 + index)
    }

    /// Lets nodes reach an API server that listens at `to`, at the gateway and at the Service.
    pub async fn forward(&mut self, to: SocketAddr) -> Result<()> {
        let (gateway, service) = (self.gateway(), self.service());
        for from in [(gateway, API_PORT), (service, 443)] {
            if SocketAddr::from(from) != to {
                self.forwards.push(Forward::start(from, to).await?);
            }
        }
        Ok(())
    }

    /// A node whose kubelet has not been configured; `arguments` are its words whenever it is.
    pub fn node(&self, index: u8, name: &str, arguments: &[String]) -> Result<Node> {
        ensure!(index < NODES_MAX, "a network has {NODES_MAX} nodes at most");
        Node::spawn(self, index, name, arguments)
    }

    /// A node of a control plane that was built with
    /// [`real_nodes`](crate::control_plane::Builder::real_nodes), which joins with certificates made here.
    /// `more` is put over the kubelet's configuration.
    pub async fn join(
        &self,
        control_plane: &ControlPlane,
        index: u8,
        name: &str,
        more: &Value,
    ) -> Result<Node> {
        let mut arguments: Vec<String> = [
            "--config=/var/lib/kubelet/config.yaml",
            "--kubeconfig=/etc/kubernetes/kubelet.conf",
        ]
        .map(str::to_owned)
        .into();
        arguments.push(format!("--hostname-override={name}"));
        arguments.push(format!("--node-ip={}", self.address(index)));
        // kwok leaves such a node to its kubelet.
        arguments.push(format!("--node-labels={NO_KUBELET}=none"));
        let node = self.node(index, name, &arguments)?;
        let authority: &Authority = control_plane.authority();
        let client = authority.client(&format!("system:node:{name}"), Some("system:nodes"))?;
        let server = format!("https://{}:{API_PORT}", self.gateway());
        let kubeconfig = kubeconfig::render(&server, authority.certificate(), name, &client)?;
        let serving = authority.server_at(name, &[name], &[node.address])?;
        for (file, content) in [
            ("etc/kubernetes/pki/ca.crt", authority.certificate()),
            ("etc/kubernetes/pki/kubelet.crt", &serving.certificate),
            ("etc/kubernetes/pki/kubelet.key", &serving.key),
            ("etc/kubernetes/kubelet.conf", &kubeconfig),
        ] {
            node.write(file, content)?;
        }
        self.route(&node, &self.pods_of(index)).await?;
        node.write(
            "var/lib/kubelet/config.yaml",
            &files::kubelet_with_certificates(more)?,
        )?;
        // Without it the kubelet does not start; here all is said elsewhere.
        node.write(
            "var/lib/kubelet/kubeadm-flags.env",
            "KUBELET_KUBEADM_ARGS=\n",
        )?;
        Ok(node)
    }

    /// Imports an archive of images into a node's containerd, as `ctr` would be called on the host.
    pub async fn import(&self, node: &Node, archive: &Path) -> Result<()> {
        let ctr = self.containerd.path(Program::Ctr).display().to_string();
        let archive = archive.display().to_string();
        let arguments = ["--namespace", "k8s.io", "images", "import", &archive];
        node.run(&ctr, &arguments).await?;
        Ok(())
    }

    fn pods_of(&self, index: u8) -> String {
        format!("10.{}.{}.0/24", self.octet, PODS_OCTET + index)
    }

    /// Gives a node's pods addresses of this range, and makes them reachable.
    pub async fn route(&self, node: &Node, range: &str) -> Result<()> {
        let (network, via) = (self.process.id().to_string(), node.address.to_string());
        let route = ["ip", "route", "replace", range, "via", &via];
        let enter = ["--target", &network, "--net", "--"];
        run("nsenter", &[&enter[..], &route].concat()).await?;
        node.write("etc/cni/net.d/10-pods.conflist", &files::pod_network(range))
    }
}

/// The address of the bridge, by which pods reach those of other nodes.
fn router(octet: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, octet, 0, 2)
}

fn pods(octet: u8) -> String {
    format!("10.{octet}.{PODS_OCTET}.0/20")
}

fn gateway(octet: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, octet, 0, 1)
}

fn service(octet: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, octet, 128, 1)
}

/// One whose network this machine has no address or route in.
async fn free_octet() -> Result<u8> {
    let known = run("ip", &["-4", "route", "show", "table", "all"]).await?;
    for _ in 0..ATTEMPTS {
        let octet = rand::random_range(OCTETS);
        if !known.contains(&format!(" 10.{octet}.")) && !known.contains(&format!("\n10.{octet}.")) {
            return Ok(octet);
        }
    }
    bail!("no network of 10.{OCTETS:?} is free on this machine")
}

/// Runs a program; gives what it printed, or what it complained of.
async fn run(program: &str, arguments: &[&str]) -> Result<String> {
    let output = tokio::process::Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .with_context(|| format!("starting {program}"))?;
    ensure!(
        output.status.success(),
        "{program} {} ({}): {}{}",
        arguments.join(" "),
        output.status,
        String::from_utf8_lossy(&output.stderr).trim(),
        String::from_utf8_lossy(&output.stdout).trim()
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// A node. Dropping it kills everything that runs on it, at once.
#[derive(Debug)]
pub struct Node {
    name: String,
    address: Ipv4Addr,
    link: String,
    network: u32,
    /// Dropped before the cgroups, which can only be removed when no process is left in them.
    process: Process,
    _cgroups: Cgroups,
    files: PathBuf,
    _dir: Arc<WorkDir>,
}

impl Node {
    fn spawn(network: &Network, index: u8, name: &str, arguments: &[String]) -> Result<Self> {
        let files = network.dir.file(name);
        for directory in [
            "etc/cni/net.d",
            "etc/containerd",
            "etc/kubernetes/manifests",
            "etc/kubernetes/pki",
            "var/lib/kubelet",
            "var/log/pods",
            "var/tmp",
        ] {
            let directory = files.join(directory);
            fs::create_dir_all(&directory)
                .with_context(|| format!("making {}", directory.display()))?;
        }
        let run = files.join("var/run");
        if !run.is_symlink() {
            std::os::unix::fs::symlink("/run", run).context("linking /var/run")?;
        }
        for (file, content) in [
            ("etc/containerd/config.toml", files::containerd()),
            ("etc/passwd", "root:x:0:0:root:/:/bin/sh\n".to_owned()),
            ("etc/group", "root:x:0:\n".to_owned()),
            ("etc/hosts", format!("127.0.0.1 localhost {name}\n")),
            // Where nothing listens: a name is refused at once.
            ("etc/resolv.conf", "nameserver 127.0.0.1\n".to_owned()),
        ] {
            let path = files.join(file);
            fs::write(&path, content).with_context(|| format!("writing {}", path.display()))?;
        }
        let cgroups = Cgroups::create()?;
        let address = network.address(index);
        let link = format!("node{index}");
        let path = [
            network.containerd.directory().display().to_string(),
            network.kubelet.directory().display().to_string(),
            "/usr/sbin:/usr/bin:/sbin:/bin".to_owned(),
        ]
        .join(":");
        let env = [
            ("PATH", path),
            ("CGROUPS", cgroups.paths()),
            ("HIERARCHIES", cgroups.mounts()),
            ("NETWORK_PID", network.process.id().to_string()),
            ("LINK", link.clone()),
            ("ADDRESS", address.to_string()),
            ("GATEWAY", network.gateway().to_string()),
            ("SERVICES", network.services()),
            ("ROUTER", router(network.octet).to_string()),
            ("PODS", network.pods()),
            ("NODE", name.to_owned()),
            ("FILES", files.display().to_string()),
            ("IMAGES", network.images.display().to_string()),
            ("KUBELET_ARGUMENTS", arguments.join(" ")),
        ]
        .map(|(name, value)| (name.to_owned(), value));
        let script = network.dir.file("node.sh").display().to_string();
        let process = Process::spawn(&Spec {
            name: format!("the node {name}"),
            program: "/bin/sh".into(),
            args: vec![script, "outside".to_owned()],
            env: env.into(),
            log: files.join("node.log"),
        })?;
        Ok(Self {
            name: name.to_owned(),
            address,
            link,
            network: network.process.id(),
            process,
            _cgroups: cgroups,
            files,
            _dir: Arc::clone(&network.dir),
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its address.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// One of its files: `etc/…` and `var/…` are what it has there, `kubelet.log` and `containerd.log` lie
    /// beside them.
    pub fn file(&self, name: &str) -> PathBuf {
        self.files.join(name)
    }

    /// Writes one of its files, whole or not at all: the kubelet and containerd read some as they appear.
    pub fn write(&self, name: &str, content: &str) -> Result<()> {
        let path = self.file(name);
        let partial = path.with_extension("partial");
        fs::write(&partial, content)
            .and_then(|()| fs::rename(&partial, &path))
            .with_context(|| format!("writing {}", path.display()))
    }

    /// Waits until containerd answers and has the images.
    pub async fn wait_for_containers(&mut self) -> Result<()> {
        let imported = self.file("imported");
        let what = format!("{} has its images", self.name);
        let done = until(&what, START_LIMIT, POLL, || async {
            Ok(imported.exists().then_some(()))
        })
        .await;
        done.or_else(|error| self.check().and(Err(error)))
    }

    /// An error with the ends of its logs if it has ended.
    pub fn check(&mut self) -> Result<()> {
        self.process.check()
    }

    /// Runs a program in the node's namespaces; gives what it printed, or what it complained of.
    pub async fn run(&self, program: &str, arguments: &[&str]) -> Result<String> {
        let enter = self.enter().await?;
        let enter: Vec<&str> = enter.iter().map(String::as_str).collect();
        run(
            "nsenter",
            &[&enter[..], &["--", program], arguments].concat(),
        )
        .await
    }

    /// Starts a program in the node's namespaces, which ends with the node at the latest; its log lies beside
    /// the node's others.
    pub async fn start(&self, name: &str, program: &Path, arguments: &[String]) -> Result<Process> {
        let mut args = self.enter().await?;
        args.extend(["--".to_owned(), program.display().to_string()]);
        args.extend_from_slice(arguments);
        Process::spawn(&Spec {
            name: format!("{name} of {}", self.name),
            program: on_path("nsenter").context("there is no program `nsenter`")?,
            args,
            env: Vec::new(),
            log: self.files.join(format!("{name}.log")),
        })
    }

    /// What makes `nsenter` enter the node's namespaces.
    async fn enter(&self) -> Result<Vec<String>> {
        let first = until(
            "the node's first process runs",
            START_LIMIT,
            POLL,
            || async { first_process(self.process.id()) },
        )
        .await?;
        let namespaces = ["--mount", "--uts", "--net", "--pid", "--cgroup"];
        let target = ["--target".to_owned(), first.to_string()];
        Ok(target
            .into_iter()
            .chain(namespaces.map(str::to_owned))
            .collect())
    }

    /// Takes its link down: nobody reaches the node or its pods, and they reach nobody.
    pub async fn cut_off(&self) -> Result<()> {
        self.set_link("down").await
    }

    /// Takes its link up again.
    pub async fn reconnect(&self) -> Result<()> {
        self.set_link("up").await
    }

    async fn set_link(&self, to: &str) -> Result<()> {
        let network = self.network.to_string();
        let set = ["ip", "link", "set", &self.link, to];
        run(
            "nsenter",
            &[&["--target", &network, "--net", "--"][..], &set].concat(),
        )
        .await?;
        Ok(())
    }
}

/// The process whose end is the end of the node, once it has become the first one of its own.
fn first_process(parent: u32) -> Result<Option<u32>> {
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"))?;
    let Some(first) = children.split_whitespace().next() else {
        return Ok(None);
    };
    let namespace = |process: &str| fs::read_link(Path::new("/proc").join(process).join("ns/pid"));
    if namespace(first)? == namespace("self")? {
        return Ok(None);
    }
    Ok(Some(first.parse()?))
}

#[cfg(test)]
mod tests;
