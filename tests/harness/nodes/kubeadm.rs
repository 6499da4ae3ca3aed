//! A cluster as kubeadm sets it up: its certificates, kubeconfigs, flags, tokens and configuration, with the
//! control plane's parts as processes instead of static pods. Addons are left out; who manages the
//! controllers is up to the test.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::Node as NodeObject;
use kube::{Api, Client};
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};
use x509_parser::{parse_x509_certificate, pem::parse_x509_pem};

use super::files::{CRI_SOCKET, kubelet};
use super::{API_PORT, Network, Node, POLL, START_LIMIT, image, run};
use crate::audit::AuditLog;
use crate::control_plane::start_etcd;
use crate::fleet::FleetBuilder;
use crate::process::{Process, Spec};
use crate::programs::{Program, Programs};
use crate::toolchain::on_path;
use crate::wait::until;
use crate::{kubeconfig, ports};

/// The token with which nodes join.
pub const TOKEN: &str = "abcdef.0123456789abcdef";
const API: &str = "kubeadm.k8s.io/v1beta4";
/// Its configuration, among the network's files.
const CONFIGURATION: &str = "kubeadm.yaml";
/// By which kubeadm and the kubelet know the pod of the controller manager.
const MANAGER: &str = "kube-controller-manager";
/// The host on which kubeadm made the cluster.
pub const HOST: &str = "control-plane";
/// Where images of Kubernetes' own parts are said to be: nowhere but in the nodes.
const IMAGES: &str = "localhost";
const AUDIT_LOG: &str = "kubeadm-audit.log";
/// The archive of upstream's images, among the network's files.
const UPSTREAM: &str = "upstream.tar";
/// A node has joined within this.
const JOIN_LIMIT: Duration = Duration::from_secs(120);
/// Phases of `kubeadm init` that need no API server.
const FILES: [&str; 3] = ["certs", "kubeconfig", "control-plane"];
/// With which kubeadm's service unit starts the kubelet.
const KUBELET_ARGUMENTS: [&str; 3] = [
    "--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf",
    "--kubeconfig=/etc/kubernetes/kubelet.conf",
    "--config=/var/lib/kubelet/config.yaml",
];
/// Flags of the rendered controller manager that a fleet of the harness gives its replicas itself.
const OF_THE_FLEET: [&str; 5] = [
    "--authentication-kubeconfig=",
    "--authorization-kubeconfig=",
    "--bind-address=",
    "--kubeconfig=",
    "--use-service-account-credentials=true",
];

/// A running cluster without controllers. Dropping it ends it.
#[derive(Debug)]
pub struct Kubeadm {
    parts: Vec<Process>,
    programs: Programs,
    network: Network,
}

/// Which of kubeadm's ways to render a host's static pods again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Upgrade {
    /// `kubeadm upgrade apply`: of the first host, with checks of the cluster's health before.
    Apply,
    /// `kubeadm upgrade node`: of any other.
    Node,
}

/// What is different from kubeadm's defaults.
#[derive(Debug, Clone, Copy, Default)]
pub struct Settings<'a> {
    /// Further arguments of the controller manager, by their names without hyphens in front.
    pub manager: &'a [(&'a str, &'a str)],
    /// What the API server's audit log is to hold; there is none where this is `None`.
    pub audit_policy: Option<&'a str>,
}

impl Kubeadm {
    /// `kubeadm init` without addons.
    pub async fn init(settings: Settings<'_>) -> Result<Self> {
        let programs = tokio::task::spawn_blocking(Programs::obtain)
            .await
            .context("building the control plane")??;
        let network = Network::start().await?;
        let etcd_port = ports::free()?;
        let etcd = start_etcd(&programs, network.dir(), etcd_port)?;
        let mut cluster = Self {
            parts: vec![etcd],
            programs,
            network,
        };
        let listens = until("etcd listens", START_LIMIT, POLL, || async {
            Ok(TcpStream::connect(("127.0.0.1", etcd_port)).ok())
        })
        .await;
        listens.or_else(|error| cluster.check().and(Err(error)))?;

        let config = cluster.configuration(etcd_port, settings)?;
        let etc = cluster.file("");
        fs::create_dir_all(&etc).with_context(|| format!("making {}", etc.display()))?;
        fs::copy("/etc/passwd", cluster.root().join("passwd")).context("copying the users")?;
        cluster.network.dir.write(CONFIGURATION, config)?;
        for phase in FILES {
            cluster.phase(CONFIGURATION, &[phase, "all"]).await?;
        }
        cluster.start("kube-apiserver", Program::ApiServer, &[])?;
        let client = cluster.client().await?;
        let answers = until("the API server is ready", START_LIMIT, POLL, || async {
            let request = http::Request::get("/readyz").body(Vec::new())?;
            Ok(Some(client.request_text(request).await?))
        })
        .await;
        answers
            .map(|_| ())
            .or_else(|error| cluster.check().and(Err(error)))?;
        cluster.start("kube-scheduler", Program::Scheduler, &["--secure-port=0"])?;
        let admin = ["--kubeconfig", "/etc/kubernetes/super-admin.conf"];
        for phase in [&["upload-config", "all"][..], &["bootstrap-token"]] {
            cluster
                .phase(CONFIGURATION, &[phase, &admin].concat())
                .await?;
        }
        // Who is in it may do everything by `admin.conf`: `init` as a whole makes it, none of its phases.
        let group = "kubeadm:cluster-admins";
        let (role, to) = ("--clusterrole=cluster-admin", format!("--group={group}"));
        cluster
            .kubectl(&["create", "clusterrolebinding", group, role, &to])
            .await?;
        let gateway = cluster.network.gateway();
        cluster.network.forward((gateway, API_PORT).into()).await?;
        Ok(cluster)
    }

    fn configuration(&self, etcd_port: u16, settings: Settings<'_>) -> Result<String> {
        let argument = |(name, value): &(&str, &str)| json!({"name": name, "value": value});
        let gateway = self.network.gateway().to_string();
        // Not at the addresses of the rest of the machine.
        let mut server = vec![argument(&("bind-address", &gateway))];
        if let Some(policy) = settings.audit_policy {
            let policy = self
                .network
                .dir
                .write("kubeadm-audit-policy.yaml", policy)?;
            let (policy, log) = (
                policy.display().to_string(),
                self.network.dir.file(AUDIT_LOG),
            );
            server.push(argument(&("audit-policy-file", &policy)));
            server.push(argument(&("audit-log-path", &log.display().to_string())));
        }
        let documents = [
            json!({
                "apiVersion": API,
                "kind": "InitConfiguration",
                "localAPIEndpoint": {"advertiseAddress": gateway, "bindPort": API_PORT},
                "nodeRegistration": {
                    "name": HOST,
                    "criSocket": CRI_SOCKET,
                    "kubeletExtraArgs": [argument(&("node-ip", &self.network.address(0).to_string()))],
                },
                "bootstrapTokens": [{
                    "token": TOKEN,
                    "ttl": "24h0m0s",
                    "usages": ["signing", "authentication"],
                    "groups": ["system:bootstrappers:kubeadm:default-node-token"],
                }],
            }),
            json!({
                "apiVersion": API,
                "kind": "ClusterConfiguration",
                "kubernetesVersion": self.programs.version(),
                "controlPlaneEndpoint": format!("{gateway}:{API_PORT}"),
                "imageRepository": IMAGES,
                "networking": {
                    "serviceSubnet": self.network.services(),
                    "podSubnet": self.network.pods(),
                },
                "etcd": {"external": {"endpoints": [format!("http://127.0.0.1:{etcd_port}")]}},
                "apiServer": {"extraArgs": server},
                "controllerManager": {
                    "extraArgs": settings.manager.iter().map(argument).collect::<Vec<_>>(),
                },
            }),
            kubelet(),
        ];
        let texts = documents.map(|one| serde_yaml::to_string(&one));
        let texts = texts.into_iter().collect::<Result<Vec<_>, _>>()?;
        Ok(texts.join("---\n"))
    }

    /// What `/etc` is to kubeadm.
    fn root(&self) -> PathBuf {
        self.network.dir.file("control-plane-etc")
    }

    /// A file of `/etc/kubernetes`.
    pub fn file(&self, name: &str) -> PathBuf {
        self.root().join("kubernetes").join(name)
    }

    /// One phase of `kubeadm init`, with directories of its own in place of the machine's.
    async fn phase(&self, configuration: &str, arguments: &[&str]) -> Result<()> {
        let script = "mount --bind \"$1\" /etc; mount -t tmpfs tmpfs /run; shift; exec \"$@\"";
        let kubeadm = self.network.program(Program::Kubeadm);
        let (root, kubeadm) = (
            self.root().display().to_string(),
            kubeadm.display().to_string(),
        );
        let config = self.network.dir.file(configuration).display().to_string();
        let before = [
            "--mount",
            "--propagation",
            "private",
            "--",
            "/bin/sh",
            "-euc",
            script,
            "sh",
            &root,
            &kubeadm,
            "init",
            "phase",
        ];
        let all = [&before[..], arguments, &["--config", &config]].concat();
        run("unshare", &all).await?;
        Ok(())
    }

    /// The arguments that kubeadm rendered for a part, with its files where they lie here.
    fn arguments(&self, part: &str) -> Result<Vec<String>> {
        let path = self.file(&format!("manifests/{part}.yaml"));
        let text =
            fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let pod: Value = serde_yaml::from_str(&text)?;
        let list = |field: &str| {
            let words = pod.pointer("/spec/containers/0")?.get(field)?.as_array()?;
            Some(words.clone())
        };
        let command = list("command").context("a command")?;
        ensure!(command.first() == Some(&json!(part)), "{part}: {command:?}");
        // Patches put theirs behind kubeadm's.
        let more = list("args").unwrap_or_default();
        let etc = format!("{}/", self.root().display());
        let host = self.network.gateway().to_string();
        let words = command.iter().skip(1).chain(&more).map(|word| {
            let word = word.as_str().context("a word")?;
            let word = word.replace("=/etc/", &format!("={etc}"));
            let word = word.replace("$(HOST_IP)", &host);
            Ok(word.replace("$(REPLICA_POD)", &format!("{part}-host")))
        });
        words.collect()
    }

    /// Renders the static pod of the controller manager again, with the patches of a folder of the workspace
    /// or without any, as `kubeadm init`, `join` and `upgrade` do; gives its manifest.
    pub async fn render_manager(&self, patches: Option<&str>) -> Result<String> {
        let name = "kubeadm-of-the-manager.yaml";
        self.configuration_with(patches, name)?;
        self.phase(name, &["control-plane", "controller-manager"])
            .await?;
        let manifest = self.file(&format!("manifests/{MANAGER}.yaml"));
        fs::read_to_string(&manifest).with_context(|| format!("reading {}", manifest.display()))
    }

    /// Writes the configuration with the patches of a folder of the workspace, or without any.
    fn configuration_with(&self, patches: Option<&str>, name: &str) -> Result<PathBuf> {
        let path = self.network.dir.file(CONFIGURATION);
        let text =
            fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let (init, others) = text.split_once("---\n").context("several documents")?;
        let mut init: Value = serde_yaml::from_str(init)?;
        if let Some(patches) = patches {
            init["patches"] = folder(patches);
        }
        let text = format!("{}---\n{others}", serde_yaml::to_string(&init)?);
        self.network.dir.write(name, text)
    }

    /// The host of the control plane as a node: its kubelet runs the static pod of the controller manager, as
    /// rendered with the patches of a folder of the workspace. `image` is an archive that it needs for that;
    /// it has upstream's too. API server and scheduler stay processes of their own, for whose pods there are
    /// no images. The controller manager must give the node addresses for its pods.
    pub async fn host(&self, patches: Option<&str>, image: &Path) -> Result<Node> {
        let arguments = KUBELET_ARGUMENTS.map(str::to_owned);
        let mut node = self.network.node(0, HOST, &arguments)?;
        node.wait_for_containers().await?;
        self.network.import(&node, image).await?;
        self.import_upstream(&node).await?;
        let (from, to) = (self.file("."), node.file("etc/kubernetes"));
        let copied = [&from, &to].map(|path| path.display().to_string());
        run("cp", &["--archive", &copied[0], &copied[1]]).await?;
        let configuration = self.configuration_with(patches, "kubeadm-of-the-host.yaml")?;
        let configuration = configuration.display().to_string();
        let kubeadm = self.network.program(Program::Kubeadm).display().to_string();
        for phase in [
            &["control-plane", "controller-manager"][..],
            // It finds no service manager to start the kubelet with, and says so.
            &["kubelet-start"],
        ] {
            let words = [&["init", "phase"][..], phase, &["--config", &configuration]].concat();
            node.run(&kubeadm, &words).await?;
        }
        self.give_addresses(&node).await?;
        Ok(node)
    }

    /// kubeadm renders the host's static pods again, with the patches of a folder of the workspace or without
    /// any, and waits until the kubelet runs them; gives what it says.
    pub async fn upgrade(
        &self,
        host: &Node,
        upgrade: Upgrade,
        patches: Option<&str>,
    ) -> Result<String> {
        let mut common = json!({
            // They last for a year.
            "certificateRenewal": false,
            "etcdUpgrade": false,
            // They search for the programs of a machine that is a node as a whole.
            "ignorePreflightErrors": ["all"],
            "skipPhases": ["addon"],
        });
        if let Some(patches) = patches {
            common["patches"] = folder(patches);
        }
        let mut apply = common.clone();
        apply["kubernetesVersion"] = json!(self.programs.version());
        apply["forceUpgrade"] = json!(true);
        let configuration = json!({
            "apiVersion": API,
            "kind": "UpgradeConfiguration",
            "apply": apply,
            "node": common,
        });
        host.write("etc/upgrade.yaml", &serde_yaml::to_string(&configuration)?)?;
        let kubeadm = self.network.program(Program::Kubeadm).display().to_string();
        let words = match upgrade {
            Upgrade::Apply => &["upgrade", "apply", "--config=/etc/upgrade.yaml", "--yes"][..],
            Upgrade::Node => &["upgrade", "node", "--config=/etc/upgrade.yaml"],
        };
        let upgrades = tokio::time::timeout(JOIN_LIMIT, host.run(&kubeadm, words));
        upgrades
            .await
            .with_context(|| format!("kubeadm {} within {JOIN_LIMIT:?}", words.join(" ")))?
    }

    /// Gives a node upstream's images, as far as there are any.
    pub async fn import_upstream(&self, node: &Node) -> Result<()> {
        let archive = self.network.dir.file(UPSTREAM);
        if !archive.exists() {
            self.upstream_images().await?;
        }
        self.network.import(node, &archive).await
    }

    /// The images of kubeadm that its static pod of the controller manager and its check of the cluster's
    /// health need, made of the programs that are there.
    async fn upstream_images(&self) -> Result<PathBuf> {
        let kubeadm = self.network.program(Program::Kubeadm).display().to_string();
        let version = format!("--kubernetes-version={}", self.programs.version());
        let repository = format!("--image-repository={IMAGES}");
        let listed = run(
            &kubeadm,
            &["config", "images", "list", &version, &repository],
        )
        .await?;
        let named = |part: &str| {
            let prefix = format!("{IMAGES}/{part}:");
            let found = listed.lines().find(|line| line.starts_with(&prefix));
            found.with_context(|| format!("kubeadm names no image {prefix} in {listed}"))
        };
        let manager = self.programs.path(Program::ControllerManager);
        let pause = on_path("busybox").context("no busybox: install busybox-static")?;
        image::of_programs(
            &self.network.dir,
            UPSTREAM,
            &[
                (named(MANAGER)?, MANAGER, &manager),
                // Its argument is to print a version: what is there to do nothing will do.
                (named("pause")?, "true", &pause),
            ],
        )
    }

    /// The cluster's audit log, where there is one.
    pub fn audit(&self) -> AuditLog {
        AuditLog::open(&self.network.dir.file(AUDIT_LOG))
    }

    /// Starts what the rendered static pod would: a program under the manager's name, at free ports.
    pub fn start_rendered(&mut self, program: &Path) -> Result<()> {
        let name = self.network.dir.file(MANAGER);
        if !name.is_symlink() {
            std::os::unix::fs::symlink(program, &name)
                .with_context(|| format!("linking {}", name.display()))?;
        }
        let mut args = self.arguments(MANAGER)?;
        for port in ["secure-port", "peer-port"] {
            args.push(format!("--{port}={}", ports::free()?));
        }
        self.parts.push(Process::spawn(&Spec {
            name: MANAGER.to_owned(),
            program: name,
            args,
            env: Vec::new(),
            log: self.network.dir.file(&format!("{MANAGER}.log")),
        })?);
        Ok(())
    }

    fn start(&mut self, part: &str, program: Program, more: &[&str]) -> Result<()> {
        let mut args = self.arguments(part)?;
        args.extend(more.iter().map(|one| (*one).to_owned()));
        self.parts.push(Process::spawn(&Spec {
            name: part.to_owned(),
            program: self.programs.path(program),
            args,
            env: Vec::new(),
            log: self.network.dir.file(&format!("{part}.log")),
        })?);
        Ok(())
    }

    /// Starts kube-controller-manager as kubeadm would.
    pub fn start_kcm(&mut self) -> Result<()> {
        let port = format!("--secure-port={}", ports::free()?);
        self.start(MANAGER, Program::ControllerManager, &[&port])
    }

    /// A fleet of replicas in its place, with its arguments.
    pub fn fleet(&self) -> Result<FleetBuilder> {
        let fleet = FleetBuilder::on_cluster(
            &self.file("controller-manager.conf"),
            &self.file("super-admin.conf"),
        );
        let arguments = self.arguments(MANAGER)?;
        let taken = |one: &String| !OF_THE_FLEET.iter().any(|flag| one.starts_with(flag));
        Ok(arguments
            .into_iter()
            .filter(taken)
            .fold(fleet, FleetBuilder::arg))
    }

    /// Its network.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// A client as an administrator.
    pub async fn client(&self) -> Result<Client> {
        let mut config = kubeconfig::load(&self.file("super-admin.conf")).await?;
        config.proxy_url = None;
        Ok(Client::try_from(config)?)
    }

    /// An error with the end of the log of the first part that has died.
    pub fn check(&mut self) -> Result<()> {
        self.parts.iter_mut().try_for_each(Process::check)
    }

    /// Runs kubectl as an administrator.
    pub async fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        let kubectl = self.programs.path(Program::Kubectl);
        let output = tokio::process::Command::new(&kubectl)
            .arg("--kubeconfig")
            .arg(self.file("super-admin.conf"))
            .arg("--cache-dir")
            .arg(self.network.dir.file("kubectl-cache"))
            .args(arguments)
            .env_remove("KUBECONFIG")
            .env_remove("HTTPS_PROXY")
            .env_remove("https_proxy")
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .context("starting kubectl")?;
        ensure!(
            output.status.success(),
            "kubectl {} ({}): {}",
            arguments.join(" "),
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Applies a folder of the workspace that has a kustomization.
    pub async fn apply(&self, folder: &str) -> Result<()> {
        let folder = crate::workspace_root().join(folder).display().to_string();
        self.kubectl(&["apply", "--server-side", "-k", &folder])
            .await?;
        Ok(())
    }

    /// `kubeadm join` on a new node: from the signed cluster-info, with the token, to a certificate of its
    /// own. Its pods get addresses of the range that the node was given.
    pub async fn join(&self, index: u8, name: &str) -> Result<Node> {
        let arguments = KUBELET_ARGUMENTS.map(str::to_owned);
        let mut node = self.network.node(index, name, &arguments)?;
        node.wait_for_containers().await?;
        let address = node.address().to_string();
        let configuration = json!({
            "apiVersion": API,
            "kind": "JoinConfiguration",
            "discovery": {"bootstrapToken": {
                "token": TOKEN,
                "apiServerEndpoint": format!("{}:{API_PORT}", self.network.gateway()),
                "caCertHashes": [key_hash(&self.file("pki/ca.crt"))?],
            }},
            "nodeRegistration": {
                "name": name,
                "criSocket": CRI_SOCKET,
                "kubeletExtraArgs": [{"name": "node-ip", "value": address}],
            },
        });
        node.write("etc/join.yaml", &serde_yaml::to_string(&configuration)?)?;
        let kubeadm = self.network.program(Program::Kubeadm).display().to_string();
        let arguments = [
            "join",
            "--config=/etc/join.yaml",
            // They search for the programs of a machine that is a node as a whole.
            "--ignore-preflight-errors=all",
        ];
        let joins = tokio::time::timeout(JOIN_LIMIT, node.run(&kubeadm, &arguments)).await;
        match joins {
            Ok(Ok(said)) => node.write("kubeadm-join.log", &said)?,
            Ok(Err(error)) => {
                node.check()?;
                return Err(error.context(format!("{name} joins")));
            }
            Err(_) => bail!("{name} has not joined within {JOIN_LIMIT:?}"),
        }
        self.give_addresses(&node).await?;
        Ok(node)
    }

    /// Its pods get addresses of the range that a controller manager gives to the node.
    async fn give_addresses(&self, node: &Node) -> Result<()> {
        let nodes: Api<NodeObject> = Api::all(self.client().await?);
        let name = node.name();
        let range = until(
            &format!("{name} has addresses for its pods"),
            START_LIMIT,
            POLL,
            || async {
                let found = nodes.get_opt(name).await?;
                Ok(found.and_then(|node| node.spec?.pod_cidr))
            },
        )
        .await?;
        self.network.route(node, &range).await
    }
}

/// A folder of the workspace, as kubeadm is reported patches.
fn folder(patches: &str) -> Value {
    let directory = crate::workspace_root().join(patches);
    json!({"directory": directory.display().to_string()})
}

/// Of an authority's public key, as those who join are reported it.
fn key_hash(certificate: &Path) -> Result<String> {
    let pem = fs::read(certificate)?;
    let (_, block) = parse_x509_pem(&pem).context("a certificate in PEM")?;
    let (_, certificate) = parse_x509_certificate(&block.contents).context("a certificate")?;
    let digest = digest(&SHA256, certificate.public_key().raw);
    let hex: String = digest
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    Ok(format!("sha256:{hex}"))
}
