//! Replicas of `manifold` as real processes.

use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use kube::{Client, Config};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::certificates::{Authority, Identity};
use crate::control_plane::ControlPlane;
use crate::hang::Hang;
use crate::metrics::Metrics;
use crate::process::{Process, Spec, WorkDir};
use crate::shards::Shards;
use crate::wait::until;
use crate::{kubeconfig, ports};

/// Namespace of a fleet's Leases, as in `deploy/rbac`.
pub const NAMESPACE: &str = "manifold-system";
/// Ranges of a fleet, unless set otherwise.
const RANGES: u32 = 256;
/// `--kube-api-qps` and `--kube-api-burst`: beyond what two cores can send.
const UNLIMITED_QPS: u32 = 5_000;
/// An answer of a replica takes no longer, unless it hangs.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(50);
/// In the log of a witness.
const WITNESS_WAITS: &str = "waits for the end of the replica's process";

/// By what the replicas know each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerTrust {
    /// By keys that their Leases name: nothing is given, as is the default.
    Pins,
    /// By certificates of [`Fleet::peers`].
    Files,
    /// By either.
    Both,
}

/// How the fleet must be.
#[derive(Debug)]
pub struct FleetBuilder {
    dir: Option<Arc<WorkDir>>,
    kubeconfig: PathBuf,
    viewer: PathBuf,
    authority: Option<Arc<Authority>>,
    binary: Option<PathBuf>,
    ranges: u32,
    namespace: String,
    name_prefix: String,
    peer_trust: PeerTrust,
    locks: bool,
    args: Vec<String>,
    env: Vec<(String, String)>,
}

impl FleetBuilder {
    /// On a control plane of the harness: as the user `system:kube-controller-manager`, with the
    /// cluster's root certificate and service-account key.
    pub fn on_control_plane(control_plane: &ControlPlane) -> Self {
        let ca = control_plane.ca_file().display().to_string();
        let ca_key = control_plane.ca_key_file().display().to_string();
        let key = control_plane
            .service_account_key_file()
            .display()
            .to_string();
        Self {
            dir: Some(Arc::clone(control_plane.dir())),
            authority: Some(Arc::clone(control_plane.authority())),
            ..Self::on_cluster(
                control_plane.manager_kubeconfig(),
                control_plane.admin_kubeconfig(),
            )
        }
        .arg(format!("--client-ca-file={ca}"))
        .arg(format!("--root-ca-file={ca}"))
        .arg(format!("--cluster-signing-cert-file={ca}"))
        .arg(format!("--cluster-signing-key-file={ca_key}"))
        .arg(format!("--service-account-private-key-file={key}"))
    }

    /// On any cluster: replicas use one kubeconfig, and the harness asks them with the identity of
    /// another, which may be the same.
    pub fn on_cluster(kubeconfig: &Path, viewer: &Path) -> Self {
        Self {
            dir: None,
            kubeconfig: kubeconfig.to_owned(),
            viewer: viewer.to_owned(),
            authority: None,
            binary: None,
            ranges: RANGES,
            namespace: NAMESPACE.to_owned(),
            name_prefix: "manifold".to_owned(),
            peer_trust: PeerTrust::Pins,
            locks: false,
            // What suites do to replicas all day would make every start of theirs a slow one; who tries that
            // says so.
            args: vec!["--slow-start-period=0s".to_owned()],
            env: Vec::new(),
        }
    }

    /// Another program than [`binary`] finds.
    #[must_use]
    pub fn binary(mut self, binary: impl Into<PathBuf>) -> Self {
        self.binary = Some(binary.into());
        self
    }

    /// Number of ranges.
    #[must_use]
    pub fn ranges(mut self, ranges: u32) -> Self {
        self.ranges = ranges;
        self
    }

    /// Where its Leases lie.
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// As another user than the manager's.
    #[must_use]
    pub fn kubeconfig(mut self, kubeconfig: impl Into<PathBuf>) -> Self {
        self.kubeconfig = kubeconfig.into();
        self
    }

    /// Replicas are called `<prefix>-<i>`.
    #[must_use]
    pub fn name_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.name_prefix = prefix.into();
        self
    }

    /// By what the replicas know each other.
    #[must_use]
    pub fn peer_trust(mut self, trust: PeerTrust) -> Self {
        self.peer_trust = trust;
        self
    }

    /// A `--lock-dir` in memory, as deploy/base has it.
    #[must_use]
    pub fn locks(mut self) -> Self {
        self.locks = true;
        self
    }

    /// One more argument of every replica.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// One more variable in every replica's environment.
    #[must_use]
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Builds `manifold` if need be and makes the peers' authority; starts no replica yet.
    pub async fn build(self) -> Result<Fleet> {
        let binary = match self.binary {
            Some(binary) => binary,
            None => tokio::task::spawn_blocking(|| binary(Profile::of_this_build()))
                .await
                .context("building manifold")??,
        };
        let dir = match self.dir {
            Some(dir) => dir,
            None => Arc::new(WorkDir::new()?),
        };
        let authority = match self.authority {
            Some(authority) => authority,
            None => Arc::new(Authority::new("manifold-test-serving-ca")?),
        };
        // A CA of their own: under the cluster's, any client of the cluster would pass as a peer.
        let peers = Authority::new("manifold-test-peer-ca")?;
        let tag = format!("fleet-{:08x}", rand::random::<u32>());
        let peer_ca = dir.write(&format!("{tag}-peer-ca.crt"), peers.certificate())?;
        let mut viewer = kubeconfig::load(&self.viewer).await?;
        viewer.root_cert = Some(vec![authority.der().to_vec()]);
        viewer.accept_invalid_certs = false;
        viewer.tls_server_name = None;
        viewer.proxy_url = None;
        let (mut args, mut locks) = (self.args, None);
        if self.locks {
            let directory = tempfile::Builder::new()
                .prefix("manifold-locks-")
                .tempdir_in("/dev/shm")
                .context("a directory for locks")?;
            args.push(format!("--lock-dir={}", directory.path().display()));
            locks = Some(directory);
        }
        Ok(Fleet {
            dir,
            tag,
            binary,
            kubeconfig: self.kubeconfig,
            viewer,
            authority,
            peers,
            peer_ca,
            ranges: self.ranges,
            namespace: self.namespace,
            name_prefix: self.name_prefix,
            peer_trust: self.peer_trust,
            by_file: false,
            beside_file: Vec::new(),
            _locks: locks,
            args,
            env: self.env,
        })
    }
}

/// What the replicas of one fleet have in common.
#[derive(Debug)]
pub struct Fleet {
    dir: Arc<WorkDir>,
    tag: String,
    binary: PathBuf,
    kubeconfig: PathBuf,
    viewer: Config,
    authority: Arc<Authority>,
    peers: Authority,
    peer_ca: PathBuf,
    ranges: u32,
    namespace: String,
    name_prefix: String,
    peer_trust: PeerTrust,
    by_file: bool,
    beside_file: Vec<String>,
    _locks: Option<tempfile::TempDir>,
    args: Vec<String>,
    env: Vec<(String, String)>,
}

impl Fleet {
    /// By what the replicas that are started from now on know the others.
    pub fn set_peer_trust(&mut self, trust: PeerTrust) {
        self.peer_trust = trust;
    }

    /// Whether replicas that are started from now on are given all by `--config`, in a file that `manifold
    /// config from-flags` has made.
    pub fn set_by_file(&mut self, by_file: bool) {
        self.by_file = by_file;
    }

    /// Flags that replicas which are given a file have beside it.
    pub fn set_beside_file(&mut self, flags: &[&str]) {
        self.beside_file = flags.iter().map(|flag| (*flag).to_owned()).collect();
    }

    /// Number of ranges.
    pub fn ranges(&self) -> u32 {
        self.ranges
    }

    /// The authority of the peers' certificates, where there are any.
    pub fn peers(&self) -> &Authority {
        &self.peers
    }

    /// Where its files and logs lie.
    pub fn dir(&self) -> &Arc<WorkDir> {
        &self.dir
    }

    /// Starts replica `<prefix>-<index>` and does not wait for it.
    pub fn start(&self, index: usize) -> Result<Replica> {
        self.start_named(&format!("{}-{index}", self.name_prefix), &[])
    }

    /// Starts the witness of a replica, as the manifests have one beside each, and waits until it is ready.
    /// The fleet must have a `--lock-dir`.
    pub async fn start_witness(&self, name: &str) -> Result<Process> {
        let shared = |arg: &&String| {
            ["--lock-dir=", "--fleet-name="]
                .iter()
                .any(|flag| arg.starts_with(flag))
        };
        let mut args = vec![
            "witness".to_owned(),
            format!("--kubeconfig={}", self.kubeconfig.display()),
            format!("--replica-name={name}"),
            format!("--fleet-namespace={}", self.namespace),
        ];
        args.extend(self.args.iter().filter(shared).cloned());
        let process = Process::spawn(&Spec {
            name: format!("witness of {name}"),
            program: self.binary.clone(),
            args,
            env: self.env.clone(),
            log: self.log_of(&format!("witness-{name}")),
        })?;
        let process = Mutex::new(process);
        until("the witness is ready", READY_LIMIT, POLL, || async {
            let mut process = process.lock().unwrap_or_else(PoisonError::into_inner);
            process.check()?;
            Ok(process.log_says(WITNESS_WAITS).then_some(()))
        })
        .await?;
        Ok(process.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    /// Starts a replica under any name, with more arguments, and does not wait for it.
    pub fn start_named(&self, name: &str, args: &[&str]) -> Result<Replica> {
        let secure_port = ports::free()?;
        let peer_port = ports::free()?;
        let (serving_certificate, serving_key) = self.write_identity(
            name,
            "serving",
            &self.authority.server(name, &["localhost"])?,
        )?;
        let path = |path: &Path| path.display().to_string();
        let mut arguments: Vec<String> = [
            ("kubeconfig", path(&self.kubeconfig)),
            ("authentication-kubeconfig", path(&self.kubeconfig)),
            ("authorization-kubeconfig", path(&self.kubeconfig)),
            ("replica-name", name.to_owned()),
            ("fleet-namespace", self.namespace.clone()),
            ("ranges", self.ranges.to_string()),
            ("bind-address", "127.0.0.1".to_owned()),
            ("secure-port", secure_port.to_string()),
            ("tls-cert-file", path(&serving_certificate)),
            ("tls-private-key-file", path(&serving_key)),
            ("peer-bind-address", "127.0.0.1".to_owned()),
            ("peer-port", peer_port.to_string()),
            ("peer-advertise-address", "127.0.0.1".to_owned()),
            // As kubeadm has it: the manager's own user may write little, its controllers' accounts may.
            ("use-service-account-credentials", "true".to_owned()),
            ("kube-api-qps", UNLIMITED_QPS.to_string()),
            ("kube-api-burst", UNLIMITED_QPS.to_string()),
        ]
        .map(|(name, value)| format!("--{name}={value}"))
        .into();
        if self.peer_trust != PeerTrust::Pins {
            let identity = self.peers.peer(name)?;
            let (certificate, key) = self.write_identity(name, "peer", &identity)?;
            arguments.extend([
                format!("--peer-tls-cert-file={}", path(&certificate)),
                format!("--peer-tls-private-key-file={}", path(&key)),
                format!("--peer-ca-file={}", path(&self.peer_ca)),
            ]);
        }
        if self.peer_trust == PeerTrust::Both {
            arguments.push("--peer-trust=both".to_owned());
        }
        arguments.extend(self.args.iter().cloned());
        arguments.extend(args.iter().map(|arg| (*arg).to_owned()));
        if self.by_file {
            let file = self.config_file(name);
            std::fs::write(&file, self.file_of(&arguments)?)
                .with_context(|| format!("writing {}", file.display()))?;
            arguments = vec![format!("--config={}", file.display())];
            arguments.extend(self.beside_file.iter().cloned());
        }
        let log = self.log_of(name);
        let process = Process::spawn(&Spec {
            name: name.to_owned(),
            program: self.binary.clone(),
            args: arguments,
            env: self.env.clone(),
            log,
        })?;
        let mut viewer = self.viewer.clone();
        viewer.cluster_url = format!("https://127.0.0.1:{secure_port}").parse()?;
        Ok(Replica {
            name: name.to_owned(),
            process,
            viewer,
            secure_port,
            peer_port,
            _dir: Arc::clone(&self.dir),
        })
    }

    /// The configuration file of a replica, where replicas are given one.
    pub fn config_file(&self, name: &str) -> PathBuf {
        self.dir.file(&format!("{}-{name}.yaml", self.tag))
    }

    /// The file that says what flags say.
    fn file_of(&self, flags: &[String]) -> Result<Vec<u8>> {
        let output = std::process::Command::new(&self.binary)
            .args(["config", "from-flags", "--"])
            .args(flags)
            .output()
            .context("manifold config from-flags")?;
        if !output.status.success() {
            bail!(
                "manifold config from-flags: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
        Ok(output.stdout)
    }

    /// Starts `count` replicas, numbered from 0, and waits until all are ready.
    pub async fn start_all(&self, count: usize) -> Result<Vec<Replica>> {
        let mut replicas = (0..count)
            .map(|index| self.start(index))
            .collect::<Result<Vec<_>>>()?;
        for replica in &mut replicas {
            replica.wait_ready(READY_LIMIT).await?;
        }
        Ok(replicas)
    }

    fn write_identity(
        &self,
        name: &str,
        what: &str,
        identity: &Identity,
    ) -> Result<(PathBuf, PathBuf)> {
        let file = format!("{}-{name}-{what}", self.tag);
        Ok((
            self.dir
                .write(&format!("{file}.crt"), &identity.certificate)?,
            self.dir.write(&format!("{file}.key"), &identity.key)?,
        ))
    }

    /// Each start has a log of its own: `manifold-0.log`, `manifold-0.1.log`, …
    fn log_of(&self, name: &str) -> PathBuf {
        let first = self.dir.file(&format!("{name}.log"));
        let later = (1..).map(|number| self.dir.file(&format!("{name}.{number}.log")));
        std::iter::once(first)
            .chain(later)
            .find(|path| !path.exists())
            .unwrap_or_else(|| self.dir.file(&format!("{name}.last.log")))
    }
}

/// A replica is ready within this, on a machine that is busy with other tests.
pub const READY_LIMIT: Duration = Duration::from_secs(60);

/// A replica. Dropping it kills it.
#[derive(Debug)]
pub struct Replica {
    name: String,
    process: Process,
    viewer: Config,
    secure_port: u16,
    peer_port: u16,
    _dir: Arc<WorkDir>,
}

impl Replica {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Its log.
    pub fn log(&self) -> &Path {
        self.process.log()
    }

    /// Where it serves.
    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.secure_port)
    }

    /// Where its peers reach it.
    pub fn peer_port(&self) -> u16 {
        self.peer_port
    }

    /// How it ended, if it has.
    pub fn exited(&mut self) -> Option<ExitStatus> {
        self.process.exited()
    }

    /// An error with the end of its log if it has ended.
    pub fn check(&mut self) -> Result<()> {
        self.process.check()
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// SIGTERM, and does not wait.
    pub fn ask_to_end(&mut self) -> Result<()> {
        self.process.ask_to_end()
    }

    /// SIGTERM, then waits for the end.
    pub async fn terminate(&mut self, limit: Duration) -> Result<ExitStatus> {
        self.process.terminate(limit).await
    }

    /// SIGSTOP.
    pub fn pause(&mut self) -> Result<()> {
        self.process.pause()
    }

    /// One of its threads stops, whose name begins so, while the others run.
    pub fn hang(&self, thread: &str) -> Result<Hang> {
        Hang::begin(self.process.id(), thread)
    }

    /// Its program's file.
    pub fn program(&self) -> &Path {
        self.process.program()
    }

    /// SIGINT, and does not wait.
    pub fn interrupt(&mut self) -> Result<()> {
        self.process.interrupt()
    }

    /// SIGCONT.
    pub fn resume(&mut self) -> Result<()> {
        self.process.resume()
    }

    /// Waits until `/readyz` says so; fails at once if the process ends.
    pub async fn wait_ready(&mut self, limit: Duration) -> Result<()> {
        let client = self.client()?;
        let process = std::sync::Mutex::new(&mut self.process);
        let what = format!("{} is ready", self.name);
        let ready = until(&what, limit, POLL, || async {
            let ended = process
                .lock()
                .is_ok_and(|mut process| process.exited().is_some());
            if ended {
                return Ok(Some(false));
            }
            get_text(&client, "/readyz?verbose").await?;
            Ok(Some(true))
        })
        .await;
        match ready {
            Ok(true) => Ok(()),
            Ok(false) => self.process.check(),
            Err(error) => bail!(
                "{error:#}; the end of its log:\n{}",
                self.process.log_tail()
            ),
        }
    }

    /// A client for what it serves, as administrator. Each call makes a new one.
    pub fn client(&self) -> Result<Client> {
        Client::try_from(self.viewer.clone()).with_context(|| format!("a client for {}", self.name))
    }

    /// `/debug/shards`.
    pub async fn shards(&self) -> Result<Shards> {
        get_json(&self.client()?, "/debug/shards")
            .await
            .with_context(|| format!("{}'s /debug/shards", self.name))
    }

    /// `/metrics`.
    pub async fn metrics(&self) -> Result<Metrics> {
        let text = self.text("/metrics").await?;
        Ok(Metrics::parse(&text))
    }

    /// Any path that it serves, as text.
    pub async fn text(&self, path: &str) -> Result<String> {
        get_text(&self.client()?, path)
            .await
            .with_context(|| format!("{}'s {path}", self.name))
    }
}

/// `/debug/shards` through a client that is already there.
pub async fn shards(client: &Client) -> Result<Shards> {
    get_json(client, "/debug/shards").await
}

/// `/debug/explain` of one key through a client that is already there.
pub async fn explain(client: &Client, controller: &str, key: &str) -> Result<Value> {
    let path = format!("/debug/explain?controller={controller}&key={key}");
    get_json(client, &path).await
}

async fn get_text(client: &Client, path: &str) -> Result<String> {
    let request = http::Request::get(path).body(Vec::new())?;
    let answer = tokio::time::timeout(ANSWER_LIMIT, client.request_text(request));
    Ok(answer
        .await
        .with_context(|| format!("no answer within {ANSWER_LIMIT:?}"))??)
}

async fn get_json<T: DeserializeOwned>(client: &Client, path: &str) -> Result<T> {
    let request = http::Request::get(path).body(Vec::new())?;
    let answer = tokio::time::timeout(ANSWER_LIMIT, client.request(request));
    Ok(answer
        .await
        .with_context(|| format!("no answer within {ANSWER_LIMIT:?}"))??)
}

/// How `manifold` is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// `cargo build`.
    Dev,
    /// `cargo build --release`.
    Release,
    /// As it is shipped: `cargo build --profile dist`.
    Dist,
}

impl Profile {
    /// As this harness was built, so that a test run needs one set of dependencies.
    pub fn of_this_build() -> Self {
        if cfg!(debug_assertions) {
            Self::Dev
        } else {
            Self::Release
        }
    }

    /// With which cargo builds so.
    pub(crate) fn flags(self) -> &'static [&'static str] {
        match self {
            Self::Dev => &[],
            Self::Release => &["--release"],
            Self::Dist => &["--profile", "dist"],
        }
    }
}

/// The program `manifold`, as [`program`] finds it.
pub fn binary(profile: Profile) -> Result<PathBuf> {
    program("manifold", profile)
}

/// A program of the tree: what a variable as `MANIFOLD_BIN` or `KUBECTL_MANIFOLD_BIN` names, or built now
/// (nothing to do if it is fresh).
pub fn program(name: &str, profile: Profile) -> Result<PathBuf> {
    let variable = format!("{}_BIN", name.replace('-', "_").to_ascii_uppercase());
    if let Some(path) = std::env::var_os(&variable).map(PathBuf::from) {
        if path.is_file() {
            return Ok(path);
        }
        bail!(
            "{variable} names {}, which is no file: unset it to have {name} built",
            path.display()
        );
    }
    crate::toolchain::rust()?;
    let mut command = crate::toolchain::cargo();
    command
        // No --package: features are resolved as for the whole workspace, so nothing is compiled twice.
        .args(["build", "--bin", name])
        .args(["--message-format", "json-render-diagnostics"]);
    command.args(profile.flags());
    // What cargo says goes to the terminal: a compile error is read there best.
    let output = command
        .stderr(std::process::Stdio::inherit())
        .output()
        .with_context(|| format!("starting cargo to build {name}"))?;
    if !output.status.success() {
        bail!("cargo could not build {name} ({})", output.status);
    }
    executable(name, &String::from_utf8_lossy(&output.stdout))
        .with_context(|| format!("cargo built {name} but did not say where it lies"))
}

/// Where cargo's messages say that a program lies.
pub(crate) fn executable(name: &str, messages: &str) -> Option<PathBuf> {
    messages.lines().rev().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        (message["target"]["name"] == name).then_some(())?;
        message["executable"].as_str().map(PathBuf::from)
    })
}
