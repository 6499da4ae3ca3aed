//! A real control plane on free loopback ports.
//!
//! etcd, kube-apiserver (TLS, RBAC and Node authorisation, audit log, service-account issuer,
//! front-proxy certificates for aggregated APIs), kube-scheduler, and kwok as the kubelets of some
//! fake nodes. kube-controller-manager does not run unless a test asks for it: the service accounts,
//! root certificates and pods are Manifold's to make.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::{Namespace, Node};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, Config};
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::sync::OnceCell;

use crate::audit::AuditLog;
use crate::certificates::{Authority, Identity, signing_key};
use crate::fleet::FleetBuilder;
use crate::metrics::Metrics;
use crate::metrics_api::{METRICS, aggregate};
use crate::nodes::Network;
use crate::process::{Process, Spec, WorkDir};
use crate::programs::{Program, Programs};
use crate::progress::Steps;
use crate::wait::until;
use crate::{everything, kubeconfig, ports};

/// Fake nodes, unless set otherwise.
const NODES: usize = 5;
/// Pods that fit on a node, as a kubelet says by default.
const PODS_PER_NODE: usize = 110;
/// Starts with fresh ports before a collision is an error.
const ATTEMPTS: usize = 3;
/// For each thing awaited at the start: about 20 times what it takes on two idle cores, because
/// several control planes may start on them at once.
const START_LIMIT: Duration = Duration::from_secs(120);
/// An API server that was asked to end has answered all but watches after this.
const STOP_LIMIT: Duration = Duration::from_secs(3);
/// Between two checks of something awaited.
const POLL: Duration = Duration::from_millis(50);
/// Keys that are read from etcd at once.
const STORED_PAGE: usize = 500;
/// Addresses of Services.
const SERVICE_CIDR: &str = "10.96.0.0/16";
/// Requests a second that the scheduler may send: no limit that a test could reach.
const UNLIMITED_QPS: u32 = 5_000;
const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";
const FRONT_PROXY: &str = "front-proxy-client";
/// Whom kubelets know the API server as.
const KUBELET_CLIENT: &str = "kube-apiserver-kubelet-client";
const NOT_READY_TAINT: &str = "node.kubernetes.io/not-ready";
/// Label by whose value `none` a node falls silent ([`Builder::kubelets_may_end`]): kwok neither says how it
/// is nor renews its Lease.
pub const NO_KUBELET: &str = "tests.manifold.dev/kubelet";
/// Annotation of nodes that kwok leaves alone.
const WITHOUT_KUBELET: &str = "example.com/without-kubelet";
/// Managers run as this user, as upstream's does.
/// The user of the manager's certificate, as kubeadm names it.
pub const MANAGER: &str = "system:kube-controller-manager";

/// Metadata of everything but reads of the parts that are not under test: their lists and watches
/// would be most of the file.
const AUDIT_POLICY: &str = r#"
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: ["RequestReceived"]
rules:
- level: None
  users: ["system:kube-scheduler", "system:apiserver", "kwok"]
  verbs: ["get", "list", "watch"]
- level: None
  nonResourceURLs: ["/healthz*", "/readyz*", "/livez*", "/version", "/openapi*"]
- level: Metadata
"#;

/// How the control plane must be.
#[derive(Debug, Clone)]
pub struct Builder {
    nodes: usize,
    pods_per_node: usize,
    api_server_args: Vec<String>,
    audit_policy: String,
    fence: bool,
    metrics_server: bool,
    kubelets_may_end: bool,
    /// The addresses at which real nodes reach it.
    addresses: Vec<Ipv4Addr>,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            nodes: NODES,
            pods_per_node: PODS_PER_NODE,
            api_server_args: Vec::new(),
            audit_policy: AUDIT_POLICY.to_owned(),
            fence: false,
            metrics_server: false,
            kubelets_may_end: false,
            addresses: Vec::new(),
        }
    }
}

impl Builder {
    /// Number of fake nodes.
    #[must_use]
    pub fn nodes(mut self, nodes: usize) -> Self {
        self.nodes = nodes;
        self
    }

    /// Pods that fit on each.
    #[must_use]
    pub fn pods_per_node(mut self, pods: usize) -> Self {
        self.pods_per_node = pods;
        self
    }

    /// One more argument of kube-apiserver.
    #[must_use]
    pub fn api_server_arg(mut self, arg: impl Into<String>) -> Self {
        self.api_server_args.push(arg.into());
        self
    }

    /// Another audit policy, in YAML.
    #[must_use]
    pub fn audit_policy(mut self, yaml: impl Into<String>) -> Self {
        self.audit_policy = yaml.into();
        self
    }

    /// With `deploy/fence`: the API server refuses the writes of dead replicas.
    #[must_use]
    pub fn fence(mut self) -> Self {
        self.fence = true;
        self
    }

    /// What every controller is for is served: see [`crate::everything`].
    #[must_use]
    pub fn everything(self) -> Self {
        let flags = everything::API_SERVER.into_iter();
        flags.fold(self, Self::api_server_arg)
    }

    /// With metrics-server, which asks the kubelets what pods use: what their annotation
    /// `kwok.x-k8s.io/usage-cpu` says.
    #[must_use]
    pub fn metrics_server(mut self) -> Self {
        self.metrics_server = true;
        self
    }

    /// Nodes of the start that get the label [`NO_KUBELET`]`=none` fall silent. Those that are added later
    /// may have no kubelet at all.
    #[must_use]
    pub fn kubelets_may_end(mut self) -> Self {
        self.kubelets_may_end = true;
        self
    }

    /// Real nodes can join by this network, once it [forwards](crate::nodes::Network::forward) to it.
    /// Services have addresses of the network's range, and kwok leaves nodes with the label
    /// [`NO_KUBELET`]`=none` to their kubelets.
    #[must_use]
    pub fn real_nodes(mut self, network: &Network) -> Self {
        self.addresses = vec![network.gateway(), network.service()];
        self.kubelets_may_end()
            .api_server_arg(format!("--service-cluster-ip-range={}", network.services()))
            .api_server_arg("--kubelet-preferred-address-types=InternalIP")
    }

    /// Builds the programs if need be, starts everything, and returns when all nodes are ready.
    pub async fn start(self) -> Result<ControlPlane> {
        let programs = tokio::task::spawn_blocking(Programs::obtain)
            .await
            .context("building the control plane")??;
        let mut attempt = 1;
        loop {
            let count = 4 + u64::from(self.metrics_server);
            let mut steps = Steps::new("control plane", count);
            match self.start_once(&programs, &mut steps).await {
                Ok(control_plane) => {
                    steps.finish(&format!(
                        "{} is up, {} nodes ready",
                        programs.version(),
                        self.nodes
                    ));
                    return Ok(control_plane);
                }
                Err(error)
                    if attempt < ATTEMPTS
                        && format!("{error:#}").contains("address already in use") =>
                {
                    eprintln!("control plane: a port was taken meanwhile, trying others");
                    attempt += 1;
                }
                Err(error) => return Err(error.context("starting the control plane")),
            }
        }
    }

    async fn start_once(&self, programs: &Programs, steps: &mut Steps) -> Result<ControlPlane> {
        let dir = Arc::new(WorkDir::new()?);
        let files = Files::write(&dir, &self.audit_policy, &self.addresses)?;
        let etcd_port = ports::free()?;

        steps.begin("awaiting etcd");
        let mut etcd = start_etcd(programs, &dir, etcd_port)?;
        until("etcd listens", START_LIMIT, POLL, || async {
            Ok(TcpStream::connect((Ipv4Addr::LOCALHOST, etcd_port)).ok())
        })
        .await
        .or_else(|error| etcd.check().and(Err(error)))?;

        steps.begin("awaiting kube-apiserver");
        let mut api_server = self.start_api_server(programs, &dir, &files, etcd_port)?;
        let client = kubeconfig::client(&files.admin).await?;
        await_ready(&client, &mut [&mut etcd, &mut api_server]).await?;

        steps.begin("awaiting the nodes");
        let scheduler = start_scheduler(programs, &dir, &files)?;
        let kubelet_port = self.metrics_server.then(ports::free).transpose()?;
        let kwok = start_kwok(programs, &dir, &files, kubelet_port, self.kubelets_may_end)?;
        let mut control_plane = ControlPlane {
            parts: vec![kwok, scheduler, api_server, etcd],
            etcd_port,
            programs: programs.clone(),
            files,
            dir,
        };
        control_plane
            .add_nodes(&client, "node", self.nodes, self.pods_per_node)
            .await?;
        control_plane.await_nodes(&client).await?;

        steps.begin("applying deploy/rbac");
        control_plane.apply("deploy/rbac").await?;
        if self.fence {
            control_plane.apply("deploy/fence").await?;
        }
        if self.metrics_server {
            steps.begin("awaiting metrics-server");
            control_plane.start_metrics_server().await?;
        }
        Ok(control_plane)
    }

    fn start_api_server(
        &self,
        programs: &Programs,
        dir: &Arc<WorkDir>,
        files: &Files,
        etcd_port: u16,
    ) -> Result<Process> {
        let file = |name: &str| dir.file(name).display().to_string();
        let mut args: Vec<String> = [
            ("etcd-servers", format!("http://127.0.0.1:{etcd_port}")),
            ("bind-address", "127.0.0.1".into()),
            ("secure-port", files.port.to_string()),
            ("advertise-address", "127.0.0.1".into()),
            // The Service `kubernetes` would point at a loopback address, which its endpoints may not hold.
            ("endpoint-reconciler-type", "none".into()),
            ("tls-cert-file", file("apiserver.crt")),
            ("tls-private-key-file", file("apiserver.key")),
            ("client-ca-file", file("ca.crt")),
            ("authorization-mode", "Node,RBAC".into()),
            ("enable-bootstrap-token-auth", "false".into()),
            ("service-account-issuer", ISSUER.into()),
            ("service-account-key-file", file("service-account.pub")),
            (
                "service-account-signing-key-file",
                file("service-account.key"),
            ),
            ("service-cluster-ip-range", SERVICE_CIDR.into()),
            ("requestheader-client-ca-file", file("front-proxy-ca.crt")),
            ("requestheader-allowed-names", FRONT_PROXY.into()),
            ("requestheader-username-headers", "X-Remote-User".into()),
            ("requestheader-group-headers", "X-Remote-Group".into()),
            (
                "requestheader-extra-headers-prefix",
                "X-Remote-Extra-".into(),
            ),
            ("proxy-client-cert-file", file("front-proxy-client.crt")),
            ("proxy-client-key-file", file("front-proxy-client.key")),
            ("enable-aggregator-routing", "true".into()),
            ("allow-privileged", "true".into()),
            ("audit-policy-file", file("audit-policy.yaml")),
            ("audit-log-path", file("audit.log")),
            ("audit-log-format", "json".into()),
            ("audit-log-maxsize", AUDIT_LOG_MEGABYTES.to_string()),
        ]
        .map(|(name, value)| format!("--{name}={value}"))
        .into();
        if !self.addresses.is_empty() {
            let client = KUBELET_CLIENT;
            args.extend([
                format!("--kubelet-certificate-authority={}", file("ca.crt")),
                format!(
                    "--kubelet-client-certificate={}",
                    file(&format!("{client}.crt"))
                ),
                format!("--kubelet-client-key={}", file(&format!("{client}.key"))),
            ]);
        }
        args.extend(self.api_server_args.iter().cloned());
        Process::spawn(&Spec {
            // More than half of all processor time of the suites is the API servers', a sixth of it their
            // collection of garbage at Go's default.
            env: vec![("GOGC".to_owned(), API_SERVER_GOGC.to_owned())],
            ..spec(programs, dir, Program::ApiServer, args)
        })
    }
}

/// By how many percent its heap may grow between two collections: half a gigabyte for each control plane.
const API_SERVER_GOGC: &str = "400";
/// Without the client's validation: for that the server would make its OpenAPI documents, seconds of a
/// processor, and on a busy machine kubectl gives up after 32 s. `deploy::` validates what is shipped.
const APPLY: [&str; 2] = ["apply", "--validate=false"];
/// Megabytes of audit log, never reached: the server would continue in a new file, and half an hour of faults
/// takes more than the 100 that it allows otherwise.
const AUDIT_LOG_MEGABYTES: u32 = 100_000;

/// A running control plane. Dropping it kills every part and removes its files.
#[derive(Debug)]
pub struct ControlPlane {
    /// Dropped, and so killed, in this order.
    parts: Vec<Process>,
    etcd_port: u16,
    programs: Programs,
    files: Files,
    dir: Arc<WorkDir>,
}

impl ControlPlane {
    /// With 5 nodes and nothing special.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// One that all tests of this process share, for those that only need a namespace of their own.
    /// It is never dropped: the watchdog takes it down when the process ends.
    pub async fn shared() -> Result<&'static Self> {
        static SHARED: OnceCell<ControlPlane> = OnceCell::const_new();
        let start = || async {
            let control_plane = Self::builder().start().await?;
            control_plane.dir.keep_after_any_panic();
            anyhow::Ok(control_plane)
        };
        SHARED.get_or_try_init(start).await
    }

    /// URL of the API server.
    pub fn url(&self) -> String {
        self.files.url()
    }

    /// Port of the API server on loopback.
    pub fn port(&self) -> u16 {
        self.files.port
    }

    /// Kubernetes' version, with the `v`.
    pub fn version(&self) -> &str {
        self.programs.version()
    }

    /// Its working directory: logs, certificates, kubeconfigs.
    pub fn dir(&self) -> &Arc<WorkDir> {
        &self.dir
    }

    /// Kubeconfig of an administrator (`system:masters`).
    pub fn admin_kubeconfig(&self) -> &Path {
        &self.files.admin
    }

    /// Kubeconfig of the user `system:kube-controller-manager`.
    pub fn manager_kubeconfig(&self) -> &Path {
        &self.files.manager
    }

    /// The cluster's certificate authority, in a file.
    pub fn ca_file(&self) -> PathBuf {
        self.dir.file("ca.crt")
    }

    /// The key of the cluster's authority, in a file.
    pub fn ca_key_file(&self) -> PathBuf {
        self.dir.file("ca.key")
    }

    /// The private key of service-account tokens, in a file.
    pub fn service_account_key_file(&self) -> PathBuf {
        self.dir.file("service-account.key")
    }

    /// The file of one of its programs.
    pub fn program(&self, program: Program) -> PathBuf {
        self.programs.path(program)
    }

    /// Process ids of all parts.
    pub fn process_ids(&self) -> Vec<u32> {
        self.parts.iter().map(Process::id).collect()
    }

    /// An error with the end of the log of the first part that has died.
    pub fn check(&mut self) -> Result<()> {
        self.parts.iter_mut().try_for_each(Process::check)
    }

    /// SIGSTOP to the API server: it keeps its connections and answers nobody.
    pub fn pause_api_server(&mut self) -> Result<()> {
        self.pause(Program::ApiServer)
    }

    /// SIGCONT to the API server.
    pub fn resume_api_server(&mut self) -> Result<()> {
        self.resume(Program::ApiServer)
    }

    /// SIGSTOP to one of its parts.
    pub fn pause(&mut self, program: Program) -> Result<()> {
        self.part(program)?.pause()
    }

    /// SIGCONT to one of its parts.
    pub fn resume(&mut self, program: Program) -> Result<()> {
        self.part(program)?.resume()
    }

    /// Ends the API server: it answers and logs what is in flight, but watches, which it would wait for a
    /// minute.
    pub async fn stop_api_server(&mut self) -> Result<()> {
        let api_server = self.part(Program::ApiServer)?;
        if api_server.terminate(STOP_LIMIT).await.is_err() {
            api_server.kill();
        }
        Ok(())
    }

    /// Starts it again as it was, and waits until it is ready.
    pub async fn start_api_server(&mut self) -> Result<()> {
        let api_server = self.part(Program::ApiServer)?;
        api_server.start_again()?;
        let client = kubeconfig::client(&self.files.admin).await?;
        await_ready(&client, &mut [self.part(Program::ApiServer)?]).await
    }

    /// Starts scheduler and kubelets again, as what runs them in a cluster would: an outage ends the one
    /// (it finds its cache to be wrong and exits), and the other does not find its way back to its watches.
    pub fn start_the_others_again(&mut self) -> Result<()> {
        self.part(Program::Scheduler)?.start_again()?;
        self.part(Program::Kwok)?.start_again()
    }

    /// Starts scheduler and kubelets again if they have ended: either does when it starts and the API server,
    /// which has just begun to answer, does not answer it in time.
    pub fn start_the_others_that_ended(&mut self) -> Result<()> {
        for program in [Program::Scheduler, Program::Kwok] {
            let part = self.part(program)?;
            if let Some(status) = part.exited() {
                println!("{} has ended ({status}) and is started again", part.name());
                part.start_again()?;
            }
        }
        Ok(())
    }

    fn part(&mut self, program: Program) -> Result<&mut Process> {
        let name = program.name();
        self.parts
            .iter_mut()
            .find(|part| part.name() == name)
            .with_context(|| format!("no {name}"))
    }

    /// A client as administrator, new each time: connections belong to the runtime of one test.
    pub async fn client(&self) -> Result<Client> {
        kubeconfig::client(&self.files.admin).await
    }

    /// A client as another user; the certificate is made on the spot.
    pub async fn client_as(&self, user: &str, group: Option<&str>) -> Result<Client> {
        let identity = self.files.authority.client(user, group)?;
        kubeconfig::client(&self.kubeconfig_of(user, &identity)?).await
    }

    /// A kubeconfig for a user with this certificate, in a file.
    pub fn kubeconfig_of(&self, user: &str, identity: &Identity) -> Result<PathBuf> {
        let kubeconfig = self.files.kubeconfig(user, identity)?;
        let name = format!("client-{:08x}.kubeconfig", rand::random::<u32>());
        self.dir.write(&name, kubeconfig)
    }

    /// Makes a namespace whose name begins so; returns the whole name.
    pub async fn namespace(&self, prefix: &str) -> Result<String> {
        let name = format!("{prefix}-{:08x}", rand::random::<u32>());
        let namespaces: Api<Namespace> = Api::all(self.client().await?);
        let namespace = serde_json::from_value(json!({"metadata": {"name": name}}))?;
        namespaces
            .create(&PostParams::default(), &namespace)
            .await
            .with_context(|| format!("making the namespace {name}"))?;
        Ok(name)
    }

    /// Annotations of a node that never becomes ready, and whose pods nobody runs.
    #[must_use]
    pub fn without_kubelet() -> serde_json::Value {
        json!({WITHOUT_KUBELET: "true"})
    }

    /// Adds fake nodes `<prefix>-0` and so on; kwok makes them ready.
    pub async fn add_nodes(
        &self,
        client: &Client,
        prefix: &str,
        count: usize,
        pods: usize,
    ) -> Result<()> {
        let nodes: Api<Node> = Api::all(client.clone());
        let create = |index: usize| {
            let nodes = nodes.clone();
            async move {
                let name = format!("{prefix}-{index}");
                let node = serde_json::from_value(node_object(&name, pods))?;
                nodes
                    .create(&PostParams::default(), &node)
                    .await
                    .with_context(|| format!("making the node {name}"))?;
                anyhow::Ok(())
            }
        };
        try_join_all((0..count).map(create)).await?;
        Ok(())
    }

    /// Waits until every node is ready, and then does what only node-lifecycle would: it takes away
    /// the taint that admission puts on each new node.
    pub async fn await_nodes(&mut self, client: &Client) -> Result<()> {
        let nodes: Api<Node> = Api::all(client.clone());
        let ready = until("all nodes are ready", START_LIMIT, POLL, || async {
            let list = nodes.list(&ListParams::default()).await?.items;
            let waiting: Vec<String> = list
                .iter()
                .filter(|node| !is_ready(node))
                .map(name_of)
                .collect();
            ensure!(waiting.is_empty(), "not ready: {}", waiting.join(", "));
            Ok(Some(list))
        })
        .await;
        let ready = match ready {
            Ok(ready) => ready,
            Err(error) => return self.check().and(Err(error)),
        };
        let untaint = |node: Node| {
            let nodes = nodes.clone();
            async move {
                let spec = node.spec.clone().unwrap_or_default();
                let all = spec.taints.unwrap_or_default();
                let left: Vec<_> = all
                    .iter()
                    .filter(|taint| taint.key != NOT_READY_TAINT)
                    .collect();
                if left.len() < all.len() {
                    let patch = Patch::Merge(json!({"spec": {"taints": left}}));
                    nodes
                        .patch(&name_of(&node), &PatchParams::default(), &patch)
                        .await?;
                }
                anyhow::Ok(())
            }
        };
        try_join_all(ready.into_iter().map(untaint))
            .await
            .context("removing the taint of new nodes")?;
        Ok(())
    }

    /// Applies a folder of the workspace that has a kustomization.
    pub async fn apply(&self, folder: &str) -> Result<()> {
        let folder = crate::workspace_root().join(folder).display().to_string();
        let how = ["--server-side", "-k", &folder];
        self.kubectl(&[&APPLY[..], &how].concat()).await?;
        Ok(())
    }

    /// Applies an object, or a list of them, as text.
    pub async fn apply_text(&self, text: &str) -> Result<()> {
        self.kubectl_with_input(&APPLY, text).await?;
        Ok(())
    }

    /// Runs kubectl as administrator; gives what it printed, or what it complained of.
    pub async fn kubectl(&self, args: &[&str]) -> Result<String> {
        let output = self.run_kubectl(args, None).await?;
        if !output.status.success() {
            bail!(
                "kubectl {} ({}): {}",
                args.join(" "),
                output.status,
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// `kubectl <args> -f -` with this text as its input.
    pub async fn kubectl_with_input(&self, args: &[&str], input: &str) -> Result<String> {
        let mut all = args.to_vec();
        all.extend(["-f", "-"]);
        let output = self.run_kubectl(&all, Some(input)).await?;
        ensure!(
            output.status.success(),
            "kubectl {} ({}): {}",
            all.join(" "),
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    async fn run_kubectl(
        &self,
        args: &[&str],
        input: Option<&str>,
    ) -> Result<std::process::Output> {
        let mut child = tokio::process::Command::new(self.programs.path(Program::Kubectl))
            .arg("--kubeconfig")
            .arg(&self.files.admin)
            .arg("--cache-dir")
            .arg(self.dir.file("kubectl-cache"))
            .args(args)
            .env_remove("KUBECONFIG")
            .stdin(if input.is_some() {
                Stdio::piped()
            } else {
                Stdio::null()
            })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("starting kubectl")?;
        if let (Some(mut stdin), Some(input)) = (child.stdin.take(), input) {
            stdin
                .write_all(input.as_bytes())
                .await
                .context("writing to kubectl")?;
        }
        child
            .wait_with_output()
            .await
            .context("waiting for kubectl")
    }

    /// What etcd holds below a prefix, as in `/registry/configmaps/`: each key and its bytes, as the API
    /// server has encoded them.
    pub async fn stored(&self, prefix: &str) -> Result<BTreeMap<String, Vec<u8>>> {
        let config = Config::new(format!("http://127.0.0.1:{}", self.etcd_port).parse()?);
        let client = Client::try_from(config)?;
        let mut stored = BTreeMap::new();
        let mut from = prefix.as_bytes().to_vec();
        let mut end = from.clone();
        // The first key that does not begin so.
        if let Some(last) = end.last_mut() {
            *last += 1;
        }
        loop {
            let body = json!({
                "key": STANDARD.encode(&from),
                "range_end": STANDARD.encode(&end),
                "limit": STORED_PAGE.to_string(),
            });
            let request = http::Request::post("/v3/kv/range").body(serde_json::to_vec(&body)?)?;
            let answer: serde_json::Value =
                client.request(request).await.context("reading etcd")?;
            let pairs = answer["kvs"].as_array().cloned().unwrap_or_default();
            for pair in &pairs {
                let bytes = |field: &str| STANDARD.decode(pair[field].as_str().unwrap_or_default());
                let key = bytes("key")?;
                from = key.clone();
                from.push(0);
                stored.insert(String::from_utf8(key)?, bytes("value")?);
            }
            if answer["more"] != true {
                return Ok(stored);
            }
        }
    }

    /// The audit log, from its beginning.
    pub fn audit(&self) -> AuditLog {
        AuditLog::open(&self.dir.file("audit.log"))
    }

    /// A fleet of replicas on this control plane.
    pub fn fleet(&self) -> FleetBuilder {
        FleetBuilder::on_control_plane(self)
    }

    /// Starts upstream's kube-controller-manager as the peer, and waits until it is healthy.
    pub async fn start_kcm(&self, flags: &[&str]) -> Result<Kcm> {
        let port = ports::free()?;
        let file = |name: &str| self.dir.file(name).display().to_string();
        let mut args = self.serving(&self.files.manager, port);
        let more = [
            ("client-ca-file", file("ca.crt")),
            ("root-ca-file", file("ca.crt")),
            (
                "service-account-private-key-file",
                file("service-account.key"),
            ),
            ("cluster-signing-cert-file", file("ca.crt")),
            ("cluster-signing-key-file", file("ca.key")),
            ("use-service-account-credentials", "true".into()),
        ];
        args.extend(more.map(|(name, value)| format!("--{name}={value}")));
        args.extend(flags.iter().map(|flag| (*flag).to_owned()));
        let process = spawn(&self.programs, &self.dir, Program::ControllerManager, args)?;
        let mut kcm = Kcm {
            viewer: self.viewer(port).await?,
            process,
            _dir: Arc::clone(&self.dir),
        };
        let client = Client::try_from(kcm.viewer.clone())?;
        let healthy = until(
            "kube-controller-manager is healthy",
            START_LIMIT,
            POLL,
            || async {
                let request = http::Request::get("/healthz").body(Vec::new())?;
                Ok(Some(client.request_text(request).await?))
            },
        )
        .await;
        match healthy {
            Ok(_) => Ok(kcm),
            Err(error) => kcm.process.check().and(Err(error)),
        }
    }

    /// Starts upstream's cloud controllers over the cloud that is served on a socket.
    pub async fn start_cloud_controllers(&self, cloud: &Path, flags: &[&str]) -> Result<Process> {
        let programs = tokio::task::spawn_blocking(Programs::obtain_cloud_controllers)
            .await
            .context("building upstream's cloud controllers")??;
        let mut args = vec![
            format!("--kubeconfig={}", self.files.admin.display()),
            format!("--cloud={}", cloud.display()),
        ];
        args.extend(flags.iter().map(|flag| (*flag).to_owned()));
        spawn(&programs, &self.dir, Program::CloudControllers, args)
    }

    /// Starts the DRA driver of Kubernetes' own tests as the agent of a fake node, where it publishes
    /// devices. No kubelet asks it to prepare them: kwok's pods run all the same.
    pub async fn start_dra_driver(&self, node: &str, devices: usize) -> Result<Process> {
        let programs = tokio::task::spawn_blocking(Programs::obtain_dra_driver)
            .await
            .context("building the DRA driver")??;
        // Paths of Unix sockets are short.
        let file = |name: &str| self.dir.file(&format!("{node}/{name}"));
        // It does not make the folder of its own socket, which is named after it.
        for name in ["registry", "data/test-driver.cdi.k8s.io", "cdi"] {
            std::fs::create_dir_all(file(name)).context("the DRA driver's folders")?;
        }
        let args = [
            "kubelet-plugin".to_owned(),
            format!("--kubeconfig={}", self.files.admin.display()),
            format!("--node-name={node}"),
            format!("--num-devices={devices}"),
            format!("--plugin-registration-path={}", file("registry").display()),
            format!("--datadir={}", file("data").display()),
            format!("--cdi-dir={}", file("cdi").display()),
        ];
        Process::spawn(&Spec {
            name: format!("dra-driver-{node}"),
            program: programs.path(Program::DraDriver),
            args: args.to_vec(),
            env: Vec::new(),
            log: self.dir.file(&format!("dra-driver-{node}.log")),
        })
    }

    /// Flags of a server on loopback that asks the API server who its callers are.
    fn serving(&self, kubeconfig: &Path, port: u16) -> Vec<String> {
        let file = |name: &str| self.dir.file(name).display().to_string();
        let kubeconfig = kubeconfig.display().to_string();
        [
            ("kubeconfig", kubeconfig.clone()),
            ("authentication-kubeconfig", kubeconfig.clone()),
            ("authorization-kubeconfig", kubeconfig),
            ("bind-address", "127.0.0.1".into()),
            ("secure-port", port.to_string()),
            ("tls-cert-file", file("manager.crt")),
            ("tls-private-key-file", file("manager.key")),
        ]
        .map(|(name, value)| format!("--{name}={value}"))
        .into()
    }

    /// Starts metrics-server, and waits until its API is served.
    async fn start_metrics_server(&mut self) -> Result<()> {
        let port = ports::free()?;
        let mut args = self.serving(&self.files.admin, port);
        args.extend(
            [
                "--kubelet-insecure-tls=true",
                "--kubelet-use-node-status-port=true",
                "--kubelet-preferred-address-types=InternalIP",
                // The least that it accepts.
                "--metric-resolution=10s",
                // It must be less than that.
                "--kubelet-request-timeout=5s",
            ]
            .map(str::to_owned),
        );
        let programs = tokio::task::spawn_blocking(Programs::obtain_metrics_server)
            .await
            .context("building metrics-server")??;
        let process = spawn(&programs, &self.dir, Program::MetricsServer, args)?;
        self.parts.insert(0, process);
        let served = aggregate(self, "metrics-server", port, &[METRICS]).await;
        served.or_else(|error| self.part(Program::MetricsServer)?.check().and(Err(error)))
    }

    /// How an administrator reaches another server of this cluster on loopback.
    async fn viewer(&self, port: u16) -> Result<Config> {
        let mut config = kubeconfig::load(&self.files.admin).await?;
        config.cluster_url = format!("https://127.0.0.1:{port}").parse()?;
        Ok(config)
    }

    /// The authority that signed the servers' and users' certificates.
    pub fn authority(&self) -> &Arc<Authority> {
        &self.files.authority
    }
}

/// A running kube-controller-manager. Dropping it kills it.
#[derive(Debug)]
pub struct Kcm {
    process: Process,
    viewer: Config,
    _dir: Arc<WorkDir>,
}

impl Kcm {
    /// The process: its id, log, `kill`, `terminate`, `pause`.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// A scrape of `/metrics`.
    pub async fn metrics(&self) -> Result<Metrics> {
        Ok(Metrics::parse(&self.text("/metrics").await?))
    }

    /// Any path that it serves, as text.
    pub async fn text(&self, path: &str) -> Result<String> {
        let request = http::Request::get(path).body(Vec::new())?;
        let client = Client::try_from(self.viewer.clone())?;
        let text = client.request_text(request).await;
        text.with_context(|| format!("kube-controller-manager's {path}"))
    }
}

/// Certificates, keys and kubeconfigs.
#[derive(Debug)]
struct Files {
    port: u16,
    authority: Arc<Authority>,
    admin: PathBuf,
    manager: PathBuf,
    scheduler: PathBuf,
    kwok: PathBuf,
}

impl Files {
    fn write(dir: &WorkDir, audit_policy: &str, addresses: &[Ipv4Addr]) -> Result<Self> {
        let authority = Arc::new(Authority::new("manifold-test-ca")?);
        let front_proxy = Authority::new("manifold-test-front-proxy-ca")?;
        let (private, public) = signing_key()?;
        dir.write("ca.crt", authority.certificate())?;
        dir.write("ca.key", &authority.identity().key)?;
        dir.write("front-proxy-ca.crt", front_proxy.certificate())?;
        dir.write("service-account.key", private)?;
        dir.write("service-account.pub", public)?;
        dir.write("audit-policy.yaml", audit_policy)?;
        let names = [
            "localhost",
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
        ];
        let pairs = [
            (
                "apiserver",
                authority.server_at("kube-apiserver", &names, addresses)?,
            ),
            (
                KUBELET_CLIENT,
                authority.client(KUBELET_CLIENT, Some("system:masters"))?,
            ),
            (
                "manager",
                authority.server("kube-controller-manager", &["localhost"])?,
            ),
            (FRONT_PROXY, front_proxy.client(FRONT_PROXY, None)?),
        ];
        for (name, identity) in pairs {
            dir.write(&format!("{name}.crt"), identity.certificate)?;
            dir.write(&format!("{name}.key"), identity.key)?;
        }
        let mut files = Self {
            port: ports::free()?,
            authority,
            admin: PathBuf::new(),
            manager: PathBuf::new(),
            scheduler: PathBuf::new(),
            kwok: PathBuf::new(),
        };
        let user = |file: &str, user: &str, group: Option<&str>| {
            let identity = files.authority.client(user, group)?;
            dir.write(file, files.kubeconfig(user, &identity)?)
        };
        let admin = user(
            "admin.kubeconfig",
            "manifold-test-admin",
            Some("system:masters"),
        )?;
        let manager = user("controller-manager.kubeconfig", MANAGER, None)?;
        let scheduler = user("scheduler.kubeconfig", "system:kube-scheduler", None)?;
        let kwok = user("kwok.kubeconfig", "kwok", Some("system:masters"))?;
        (files.admin, files.manager) = (admin, manager);
        (files.scheduler, files.kwok) = (scheduler, kwok);
        Ok(files)
    }

    fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    fn kubeconfig(&self, user: &str, identity: &Identity) -> Result<String> {
        kubeconfig::render(&self.url(), self.authority.certificate(), user, identity)
    }
}

fn spec(programs: &Programs, dir: &WorkDir, program: Program, args: Vec<String>) -> Spec {
    Spec {
        name: program.name().to_owned(),
        program: programs.path(program),
        args,
        env: Vec::new(),
        log: dir.file(&format!("{}.log", program.name())),
    }
}

fn spawn(
    programs: &Programs,
    dir: &WorkDir,
    program: Program,
    args: Vec<String>,
) -> Result<Process> {
    Process::spawn(&spec(programs, dir, program, args))
}

pub(crate) fn start_etcd(programs: &Programs, dir: &WorkDir, port: u16) -> Result<Process> {
    // A single member talks to no peer, so its peer port may be any.
    let args = [
        ("name", "manifold".to_owned()),
        ("data-dir", dir.file("etcd").display().to_string()),
        ("listen-client-urls", format!("http://127.0.0.1:{port}")),
        ("advertise-client-urls", format!("http://127.0.0.1:{port}")),
        ("listen-peer-urls", "http://127.0.0.1:0".to_owned()),
        (
            "initial-advertise-peer-urls",
            "http://127.0.0.1:0".to_owned(),
        ),
        ("initial-cluster", "manifold=http://127.0.0.1:0".to_owned()),
        ("unsafe-no-fsync", "true".to_owned()),
        ("log-level", "warn".to_owned()),
    ]
    .map(|(name, value)| format!("--{name}={value}"));
    spawn(programs, dir, Program::Etcd, args.into())
}

fn start_scheduler(programs: &Programs, dir: &WorkDir, files: &Files) -> Result<Process> {
    let config = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": false},
        "clientConnection": {
            "kubeconfig": files.scheduler,
            "qps": UNLIMITED_QPS,
            "burst": UNLIMITED_QPS,
        },
    });
    let config = dir.write("scheduler.yaml", serde_yaml::to_string(&config)?)?;
    let args = vec![
        format!("--config={}", config.display()),
        // It serves nobody: no port, and nothing to authenticate.
        "--secure-port=0".to_owned(),
    ];
    spawn(programs, dir, Program::Scheduler, args)
}

/// With a port, its kubelets report there how much their pods use.
fn start_kwok(
    programs: &Programs,
    dir: &WorkDir,
    files: &Files,
    kubelet_port: Option<u16>,
    kubelets_may_end: bool,
) -> Result<Process> {
    let mut args = vec![
        format!("--kubeconfig={}", files.kwok.display()),
        format!("--manage-all-nodes={}", !kubelets_may_end),
        format!("--disregard-status-with-annotation-selector={WITHOUT_KUBELET}=true"),
        "--node-lease-duration-seconds=40".to_owned(),
        // All nodes share the range; addresses repeat when it is used up, which no test minds.
        "--cidr=10.244.0.0/16".to_owned(),
        "--node-ip=127.0.0.1".to_owned(),
    ];
    if kubelets_may_end {
        args.push(format!(
            "--manage-nodes-with-label-selector={NO_KUBELET}!=none"
        ));
    }
    let mut manifests = programs.stages()?;
    if let Some(port) = kubelet_port {
        manifests.extend(programs.usage()?);
        args.push(format!("--server-address=127.0.0.1:{port}"));
        args.push(format!("--node-port={port}"));
        for (flag, file) in [("cert", "manager.crt"), ("private-key", "manager.key")] {
            args.push(format!("--tls-{flag}-file={}", dir.file(file).display()));
        }
    }
    for manifest in manifests {
        args.push(format!("--config={}", manifest.display()));
    }
    spawn(programs, dir, Program::Kwok, args)
}

async fn await_ready(client: &Client, parts: &mut [&mut Process]) -> Result<()> {
    let started = Instant::now();
    loop {
        let request = http::Request::get("/readyz").body(Vec::new())?;
        let answer = client.request_text(request).await;
        for part in parts.iter_mut() {
            part.check()?;
        }
        match answer {
            Ok(_) => return Ok(()),
            Err(error) if started.elapsed() > START_LIMIT => {
                return Err(anyhow!(error)
                    .context(format!("kube-apiserver is not ready after {START_LIMIT:?}")));
            }
            Err(_) => tokio::time::sleep(POLL).await,
        }
    }
}

/// A fake node of this name, with room for this number of pods.
pub fn node_object(name: &str, pods: usize) -> serde_json::Value {
    let room = json!({"cpu": "64", "memory": "256Gi", "pods": pods.to_string()});
    // kwok's kubelets share a port.
    let usage = format!("/metrics/nodes/{name}/metrics/resource");
    json!({
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "type": "kwok",
            },
            "annotations": {"metrics.k8s.io/resource-metrics-path": usage},
        },
        "status": {"capacity": room, "allocatable": room},
    })
}

fn name_of(node: &Node) -> String {
    node.metadata.name.clone().unwrap_or_default()
}

fn is_ready(node: &Node) -> bool {
    let status = node.status.as_ref();
    let ready = status
        .and_then(|status| status.conditions.as_ref())
        .is_some_and(|conditions| {
            conditions
                .iter()
                .any(|condition| condition.type_ == "Ready" && condition.status == "True")
        });
    let none: BTreeMap<String, Quantity> = BTreeMap::new();
    let allocatable = status
        .and_then(|status| status.allocatable.as_ref())
        .unwrap_or(&none);
    ready && allocatable.contains_key("pods")
}
