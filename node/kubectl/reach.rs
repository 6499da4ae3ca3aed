//! The way to a replica: through the API server to a pod, or straight to a host's port, with the user's own
//! credentials.
//!
//! A user's token must reach nobody but a replica. Pods are therefore taken from the fleet's namespace and
//! kube-system alone, where only administrators can make one; the replica's certificate, which it has mostly
//! signed itself, then proves nothing more. At a port of its own it is checked.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use doctor::{ManagerPod, causes};
use http_body_util::{BodyExt as _, Limited};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader},
    process::{Child, Command},
};

/// An answer takes no longer: a replica asks its peers for three seconds.
const ANSWER_MAX: Duration = Duration::from_secs(20);
/// A tunnel is there within this time.
const TUNNEL_MAX: Duration = Duration::from_secs(15);
/// Bytes of an answer: metrics of a large cluster have some.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// Where static pods are.
const SYSTEM: &str = "kube-system";
/// The secure port's default.
const PORT: &str = "10257";

/// As given on the command line.
#[derive(Clone, Debug, Default)]
pub struct Way {
    /// `--kubeconfig`.
    pub kubeconfig: Option<PathBuf>,
    /// `--context`.
    pub context: Option<String>,
    /// `--server`: a replica's own port, or several with commas between them.
    pub server: Option<String>,
    /// `--certificate-authority`, for `--server`.
    pub authority: Option<PathBuf>,
    /// `--insecure-skip-tls-verify`, for `--server`.
    pub insecure: bool,
    /// `--replica`: the pod that is asked.
    pub replica: Option<String>,
    /// `--fleet-namespace`.
    pub fleet_namespace: String,
}

/// A replica that can be asked.
pub struct Replica {
    client: Client,
    /// Its pod, or the port at which it is asked.
    pub name: String,
    /// Of the user's context.
    pub namespace: String,
    /// Ends with it.
    _tunnel: Option<Tunnel>,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// HTTP status, where there was one.
    pub code: Option<u16>,
    /// In words, with the remedy.
    pub why: String,
}

impl From<String> for Trouble {
    fn from(why: String) -> Self {
        Self { code: None, why }
    }
}

impl Way {
    async fn config(&self) -> Result<Config, String> {
        let shown = self.kubeconfig.as_deref().map_or_else(
            || "the kubeconfig of $KUBECONFIG or ~/.kube/config".to_owned(),
            |path| format!("--kubeconfig {}", path.display()),
        );
        let read = match &self.kubeconfig {
            Some(path) => Kubeconfig::read_from(path),
            None => Kubeconfig::read(),
        };
        let read = read.map_err(|why| format!("{shown}: {}: give --kubeconfig", causes(&why)))?;
        let options = KubeConfigOptions {
            context: self.context.clone(),
            ..KubeConfigOptions::default()
        };
        let config = Config::from_custom_kubeconfig(read, &options).await;
        let mut config = config.map_err(|why| {
            format!(
                "{shown}: {}: check its context, cluster and user",
                causes(&why)
            )
        })?;
        config.read_timeout = Some(ANSWER_MAX);
        Ok(config)
    }

    /// The user's configuration, for another server.
    fn at(&self, config: &Config, url: &str) -> Result<Config, String> {
        let mut config = config.clone();
        let url = match url.contains("://") {
            true => url.to_owned(),
            false => format!("https://{url}"),
        };
        config.cluster_url = url
            .parse()
            .map_err(|why| format!("--server {url:?}: {why}: give it as https://HOST:10257"))?;
        if config.cluster_url.scheme_str() != Some("https") {
            return Err(format!("--server {url:?}: replicas serve https alone"));
        }
        config.tls_server_name = None;
        config.proxy_url = None;
        config.root_cert = None;
        config.accept_invalid_certs = false;
        Ok(config)
    }

    /// Finds a replica and opens the way to it.
    ///
    /// # Errors
    /// In words, with the remedy.
    pub async fn open(&self) -> Result<Replica, String> {
        self.open_but(&[]).await
    }

    /// The same, but for replicas of these names, as long as there are others.
    ///
    /// # Errors
    /// In words, with the remedy.
    pub async fn open_but(&self, failed: &[String]) -> Result<Replica, String> {
        // The provider is set by nobody else.
        let _already = rustls::crypto::ring::default_provider().install_default();
        let config = self.config().await?;
        let namespace = config.default_namespace.clone();
        let (name, config, tunnel) = match &self.server {
            Some(servers) => {
                let server = first_but(servers, failed);
                let mut at = self.at(&config, server)?;
                at.accept_invalid_certs = self.insecure;
                at.root_cert = self.authority.as_deref().map(certificates).transpose()?;
                (server.to_owned(), at, None)
            }
            None => {
                let api = Client::try_from(config.clone()).map_err(|why| causes(&why))?;
                let pods = doctor::manager_pods(&api).await.map_err(|why| {
                    format!("the replicas' pods can't be listed: {why}: give --server HOST:{PORT} instead")
                })?;
                let pod = choose(
                    &pods,
                    &self.fleet_namespace,
                    self.replica.as_deref(),
                    failed,
                )?;
                let tunnel = self.tunnel(pod).await?;
                let mut at = self.at(&config, &format!("127.0.0.1:{}", tunnel.port))?;
                at.accept_invalid_certs = true;
                (pod.name.clone(), at, Some(tunnel))
            }
        };
        Ok(Replica {
            client: Client::try_from(config).map_err(|why| causes(&why))?,
            name,
            namespace,
            _tunnel: tunnel,
        })
    }

    /// A client of the API server, with the user's credentials.
    ///
    /// # Errors
    /// In words, with the remedy.
    pub async fn api_server(&self) -> Result<Client, String> {
        // The provider is set by nobody else.
        let _already = rustls::crypto::ring::default_provider().install_default();
        Client::try_from(self.config().await?).map_err(|why| causes(&why))
    }

    async fn tunnel(&self, pod: &ManagerPod) -> Result<Tunnel, String> {
        let mut command = Command::new("kubectl");
        if let Some(path) = &self.kubeconfig {
            command.arg("--kubeconfig").arg(path);
        }
        if let Some(context) = &self.context {
            command.arg("--context").arg(context);
        }
        let port = pod.flag("secure-port").unwrap_or(PORT);
        command
            .args(["--namespace", &pod.namespace, "port-forward"])
            .args(["--address", "127.0.0.1"])
            .arg(format!("pod/{}", pod.name))
            .arg(format!(":{port}"));
        Tunnel::open(command, &format!("pod {}/{}", pod.namespace, pod.name)).await
    }
}

/// The first of several servers that has not failed, or the first of all.
fn first_but<'a>(servers: &'a str, failed: &[String]) -> &'a str {
    let all = || servers.split(',').map(str::trim);
    let other = all().find(|server| failed.iter().all(|failed| failed != server));
    other.or_else(|| all().next()).unwrap_or_default()
}

/// The pod that is asked: the one of this name, else a ready one, if possible none that has failed.
fn choose<'a>(
    pods: &'a [ManagerPod],
    fleet_namespace: &str,
    replica: Option<&str>,
    failed: &[String],
) -> Result<&'a ManagerPod, String> {
    let trusted =
        |pod: &&ManagerPod| pod.is_manifold && [fleet_namespace, SYSTEM].contains(&&*pod.namespace);
    let own: Vec<&ManagerPod> = pods.iter().filter(trusted).collect();
    match replica {
        Some(name) => {
            let named = own.iter().find(|pod| pod.name == name || pod.node == name);
            named.copied().ok_or_else(|| {
                let names: Vec<&str> = own.iter().map(|pod| &*pod.name).collect();
                format!("no pod of a replica is called {name:?}; there are {}", names.join(", "))
            })
        }
        None => own
            .iter()
            .max_by_key(|pod| (!failed.contains(&pod.name), pod.ready))
            .copied()
            .ok_or_else(|| {
                format!(
                    "there is no pod of a replica in the namespaces {fleet_namespace} and {SYSTEM}: give \
                     --fleet-namespace, or --server HOST:{PORT} where replicas are no pods"
                )
            }),
    }
}

fn certificates(path: &Path) -> Result<Vec<Vec<u8>>, String> {
    let wrong = |why: String| format!("--certificate-authority {}: {why}", path.display());
    let text = std::fs::read(path).map_err(|why| wrong(why.to_string()))?;
    let blocks = pem::parse_many(text).map_err(|why| wrong(why.to_string()))?;
    match blocks.is_empty() {
        true => Err(wrong("it has no certificate in PEM".to_owned())),
        false => Ok(blocks.into_iter().map(pem::Pem::into_contents).collect()),
    }
}

/// A `kubectl port-forward`: a plugin's kubectl is there, it speaks what the API server speaks, and knows the
/// user's way of logging in. It ends with this.
struct Tunnel {
    port: u16,
    _child: Child,
}

impl Tunnel {
    async fn open(mut command: Command, to: &str) -> Result<Self, String> {
        let spawned = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn();
        let mut child = spawned.map_err(|why| {
            format!("kubectl, which opens the way to {to}, can't be started: {why}: put it into the PATH, or give --server")
        })?;
        let (Some(out), Some(mut err)) = (child.stdout.take(), child.stderr.take()) else {
            return Err("kubectl has no output".to_owned());
        };
        let mut lines = BufReader::new(out).lines();
        let port = async {
            while let Ok(Some(line)) = lines.next_line().await {
                if let Some(port) = forwarded(&line) {
                    return Some(port);
                }
            }
            None
        };
        match tokio::time::timeout(TUNNEL_MAX, port).await {
            Ok(Some(port)) => {
                // It writes a line for each connection.
                tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
                tokio::spawn(async move {
                    let mut sink = Vec::new();
                    let _ended = err.read_to_end(&mut sink).await;
                });
                Ok(Self {
                    port,
                    _child: child,
                })
            }
            Ok(None) => {
                let mut said = String::new();
                let _read = err.read_to_string(&mut said).await;
                Err(format!(
                    "no way to {to}: kubectl port-forward: {}: you need the right to create pods/portforward there, or give \
                     --server",
                    said.trim().replace('\n', " ")
                ))
            }
            Err(_) => Err(format!(
                "no way to {to} within {}s: see whether kubectl port-forward works, or give --server",
                TUNNEL_MAX.as_secs()
            )),
        }
    }
}

/// The local port that kubectl announces, as in `Forwarding from 127.0.0.1:40123 -> 10257`.
fn forwarded(line: &str) -> Option<u16> {
    let from = line.strip_prefix("Forwarding from 127.0.0.1:")?;
    from.split_once(" ->")?.0.parse().ok()
}

impl Replica {
    /// Asks.
    ///
    /// # Errors
    /// Why there is no answer.
    pub async fn get(&self, path: &str) -> Result<Vec<u8>, Trouble> {
        self.ask("GET", path).await
    }

    /// An answer as it comes, also one that has no end.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn send(&self, path: &str) -> Result<http::Response<kube::client::Body>, Trouble> {
        self.sent("GET", path).await
    }

    async fn sent(
        &self,
        method: &str,
        path: &str,
    ) -> Result<http::Response<kube::client::Body>, Trouble> {
        let request = http::Request::builder()
            .method(method)
            .uri(path)
            .body(kube::client::Body::empty())
            .map_err(|why| why.to_string())?;
        self.client.send(request).await.map_err(|why| {
            let why = causes(&why);
            let remedy = match why.contains("certificate") || why.contains("UnknownIssuer") {
                true => {
                    ": give its authority by --certificate-authority, or --insecure-skip-tls-verify"
                }
                false => "",
            };
            Trouble::from(format!("the replica can't be asked: {why}{remedy}"))
        })
    }

    async fn ask(&self, method: &str, path: &str) -> Result<Vec<u8>, Trouble> {
        let answer = async {
            let answer = self.sent(method, path).await?;
            let code = answer.status().as_u16();
            let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX);
            let body = body.collect().await.map_err(|why| Trouble {
                code: Some(code),
                why: format!("the answer broke off: {why}"),
            })?;
            Ok((code, body.to_bytes().to_vec()))
        };
        match tokio::time::timeout(ANSWER_MAX, answer).await {
            Ok(Ok((200..=299, body))) => Ok(body),
            Ok(Ok((code, body))) => Err(refusal(code, &body, path)),
            Ok(Err(trouble)) => Err(trouble),
            Err(_) => Err(format!("no answer within {}s", ANSWER_MAX.as_secs()).into()),
        }
    }
}

/// The answer to a request, within the time that one may take.
///
/// # Errors
/// Names what is wrong, and the remedy.
pub async fn answer_of<T>(
    sent: impl Future<Output = kube::Result<T>>,
    otherwise: &str,
) -> Result<T, Trouble> {
    match tokio::time::timeout(ANSWER_MAX, sent).await {
        Ok(answer) => answer.map_err(|why| format!("{otherwise}: {}", causes(&why)).into()),
        Err(_) => Err(format!("no answer within {}s", ANSWER_MAX.as_secs()).into()),
    }
}

/// What a refusal says, and what to do.
fn refusal(code: u16, body: &[u8], path: &str) -> Trouble {
    let text = String::from_utf8_lossy(body);
    let status: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let said = status
        .as_ref()
        .and_then(|status| status["message"].as_str())
        .unwrap_or(text.trim());
    let path = path.split('?').next().unwrap_or(path);
    let remedy = match code {
        401 => ": the replica does not know you: see its --client-ca-file and --authentication-kubeconfig".to_owned(),
        403 if said.contains(" path ") => {
            ": have a ClusterRoleBinding to manifold:view-debug made for you".to_owned()
        }
        404 if said == "404 page not found" => {
            format!(": this replica's build does not serve {path}")
        }
        _ => String::new(),
    };
    Trouble {
        code: Some(code),
        why: format!("{said}{remedy}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(namespace: &str, name: &str, ready: bool, is_manifold: bool) -> ManagerPod {
        ManagerPod {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            ready,
            is_manifold,
            ..ManagerPod::default()
        }
    }

    #[test]
    fn a_ready_pod_of_a_trusted_namespace_is_asked() {
        let pods = [
            pod("evil", "manifold-0", true, true),
            pod("kube-system", "kube-controller-manager-host", true, false),
            pod("manifold-system", "manifold-0", false, true),
            pod("manifold-system", "manifold-1", true, true),
        ];
        let chosen = |replica| choose(&pods, "manifold-system", replica, &[]).map(|pod| &*pod.name);
        assert_eq!(chosen(None), Ok("manifold-1"));
        assert_eq!(chosen(Some("manifold-0")), Ok("manifold-0"));
        let wrong = chosen(Some("manifold-9")).unwrap_err();
        assert!(
            wrong.ends_with("there are manifold-0, manifold-1"),
            "{wrong}"
        );
        let none = choose(&pods[..2], "manifold-system", None, &[]).unwrap_err();
        assert!(none.contains("--server"), "{none}");
    }

    #[test]
    fn a_refusal_names_what_to_do() {
        let forbidden = br#"{"kind":"Status","message":"forbidden: User \"jo\" cannot get path \"/debug/top\"","code":403}"#;
        for (code, body, part) in [
            (403, &forbidden[..], "manifold:view-debug"),
            (401, b"{\"message\":\"Unauthorized\"}", "does not know you"),
            (404, b"404 page not found\n", "does not serve /debug/top"),
            (
                404,
                b"no controller \"x\" runs here\n",
                "no controller \"x\" runs here",
            ),
        ] {
            let why = refusal(code, body, "/debug/top?namespace=x").why;
            assert!(why.contains(part), "{why}");
        }
    }

    #[test]
    fn the_forwarded_port_is_read() {
        for (line, expected) in [
            ("Forwarding from 127.0.0.1:40123 -> 10257", Some(40123)),
            ("Forwarding from [::1]:40123 -> 10257", None),
            ("Handling connection for 40123", None),
        ] {
            assert_eq!(forwarded(line), expected, "{line}");
        }
    }

    #[tokio::test]
    async fn a_tunnel_is_what_kubectl_opens_or_its_error() {
        let shell = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            command
        };
        let open = "echo 'Forwarding from 127.0.0.1:4711 -> 10257'; sleep 60";
        let tunnel = Tunnel::open(shell(open), "pod a/b").await;
        assert_eq!(tunnel.map(|tunnel| tunnel.port).ok(), Some(4711));
        let refused = "echo 'error: pods \"b\" is forbidden' >&2; exit 1";
        let why = Tunnel::open(shell(refused), "pod a/b").await.err().unwrap();
        assert!(
            why.contains("is forbidden") && why.contains("pods/portforward"),
            "{why}"
        );
        let absent = Command::new("/nonexistent/kubectl");
        let why = Tunnel::open(absent, "pod a/b").await.err().unwrap();
        assert!(why.contains("PATH"), "{why}");
    }

    #[test]
    fn who_has_not_answered_is_asked_last() {
        let pods = [
            pod("kube-system", "a", true, true),
            pod("kube-system", "b", true, true),
            pod("kube-system", "c", false, true),
        ];
        let failed = |names: &[&str]| -> Vec<String> {
            names.iter().map(|name| (*name).to_owned()).collect()
        };
        for (names, pod, server) in [
            (&[][..], "b", "a:1"),
            (&["b", "a:1"], "a", "b:2"),
            (&["a", "b", "b:2"], "c", "a:1"),
            (&["a", "b", "c", "a:1", "b:2"], "b", "a:1"),
        ] {
            let chosen = choose(&pods, "manifold-system", None, &failed(names)).unwrap();
            assert_eq!(chosen.name, pod, "{names:?}");
            assert_eq!(first_but("a:1, b:2", &failed(names)), server, "{names:?}");
        }
    }

    #[test]
    fn credentials_go_to_https_alone() {
        let config = Config::new("https://127.0.0.1:6443".parse().unwrap());
        let way = Way::default();
        let at = |url: &str| way.at(&config, url).map(|at| at.cluster_url.to_string());
        assert_eq!(at("host:10257").unwrap(), "https://host:10257/");
        assert!(at("http://host:10257").unwrap_err().contains("https alone"));
        assert!(at("a b").is_err());
    }
}
