//! The metrics APIs that autoscalers ask, with values that a test sets: `metrics.k8s.io`,
//! `custom.metrics.k8s.io` and `external.metrics.k8s.io`, behind the real aggregation layer.
//!
//! A small HTTPS server on loopback; an ExternalName Service and an APIService for each group lead
//! kube-apiserver to it. Metrics of pods are answered for the pods that the cluster has and the selector
//! selects.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use crate::{ControlPlane, until};

/// What pods use.
pub(crate) const METRICS: (&str, &str) = ("metrics.k8s.io", "v1beta1");
/// The groups and their versions.
const GROUPS: [(&str, &str); 4] = [
    METRICS,
    ("custom.metrics.k8s.io", "v1beta2"),
    ("custom.metrics.k8s.io", "v1beta1"),
    ("external.metrics.k8s.io", "v1beta1"),
];
/// The namespace of the Service.
const NAMESPACE: &str = "kube-system";
/// The Service.
const NAME: &str = "metrics-of-the-test";
/// A request's head is no longer than this.
const HEAD_BYTES_MAX: usize = 64 * 1024;
/// Until all groups are available.
const LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(200);

/// What is served.
#[derive(Debug, Default)]
struct Values {
    /// By namespace and label `app`: thousandths of a CPU that each container uses.
    usage: BTreeMap<(String, String), u64>,
    /// By namespace, label `app` and metric: what each pod has.
    pods: BTreeMap<(String, String, String), String>,
    /// By namespace, `resource/name` and metric.
    objects: BTreeMap<(String, String, String), String>,
    /// By namespace and metric.
    external: BTreeMap<(String, String), Vec<String>>,
    /// Groups that do not answer.
    hanging: BTreeSet<String>,
    /// By external metric: when it was asked for.
    asked: BTreeMap<String, Vec<Instant>>,
}

/// The running server. Dropping it ends it.
#[derive(Debug)]
pub struct MetricsApi {
    values: Arc<Mutex<Values>>,
    changed: watch::Sender<()>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for MetricsApi {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl MetricsApi {
    /// Starts it, and returns when the API server finds all its groups.
    pub async fn start(control_plane: &ControlPlane) -> Result<Self> {
        let client = control_plane.client().await?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
        let identity = control_plane
            .authority()
            .server("metrics", &["localhost"])?;
        let chain = CertificateDer::pem_slice_iter(identity.certificate.as_bytes())
            .collect::<Result<Vec<_>, _>>()?;
        let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes())?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        let values = Arc::new(Mutex::new(Values::default()));
        let (changed, watching) = watch::channel(());
        let server = Arc::new(Server {
            values: Arc::clone(&values),
            changed: watching,
            client,
        });
        let acceptor = TlsAcceptor::from(Arc::new(tls));
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (server, acceptor) = (Arc::clone(&server), acceptor.clone());
                tokio::spawn(async move {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        // A connection that ends is no matter of the test.
                        let _ended = server.connection(stream).await;
                    }
                });
            }
        });
        let api = Self {
            values,
            changed,
            task,
        };
        aggregate(control_plane, NAME, port, &GROUPS).await?;
        Ok(api)
    }

    fn values(&self) -> MutexGuard<'_, Values> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Each container of the pods labelled `app` uses this many thousandths of a CPU; `None`: nothing is
    /// known.
    pub fn usage(&self, namespace: &str, app: &str, milli: Option<u64>) {
        let key = (namespace.to_owned(), app.to_owned());
        let mut values = self.values();
        match milli {
            Some(milli) => values.usage.insert(key, milli),
            None => values.usage.remove(&key),
        };
    }

    /// Each pod labelled `app` has this value of a custom metric; `None`: nothing is known.
    pub fn pods(&self, namespace: &str, app: &str, metric: &str, value: Option<&str>) {
        let key = (namespace.to_owned(), app.to_owned(), metric.to_owned());
        let mut values = self.values();
        match value {
            Some(value) => values.pods.insert(key, value.to_owned()),
            None => values.pods.remove(&key),
        };
    }

    /// An object, as in `services/web`, has this value of a custom metric; `None`: nothing is known.
    pub fn object(&self, namespace: &str, object: &str, metric: &str, value: Option<&str>) {
        let key = (namespace.to_owned(), object.to_owned(), metric.to_owned());
        let mut values = self.values();
        match value {
            Some(value) => values.objects.insert(key, value.to_owned()),
            None => values.objects.remove(&key),
        };
    }

    /// An external metric has these values; none: nothing is known.
    pub fn external(&self, namespace: &str, metric: &str, given: &[&str]) {
        let key = (namespace.to_owned(), metric.to_owned());
        let given = given.iter().map(|value| (*value).to_owned()).collect();
        self.values().external.insert(key, given);
    }

    /// When each external metric was asked for.
    pub fn asked(&self) -> BTreeMap<String, Vec<Instant>> {
        self.values().asked.clone()
    }

    /// Forgets what was asked for until now.
    pub fn forget(&self) {
        self.values().asked.clear();
    }

    /// A group, as in `external.metrics.k8s.io`, does not answer for metrics until it is asked to.
    pub fn hang(&self, group: &str, hangs: bool) {
        {
            let mut values = self.values();
            if hangs {
                values.hanging.insert(group.to_owned());
            } else {
                values.hanging.remove(group);
            }
        }
        self.changed.send_replace(());
    }
}

/// Leads the API server to a server on loopback for these groups and versions, and waits until it finds them:
/// by a Service of this name.
pub(crate) async fn aggregate(
    control_plane: &ControlPlane,
    name: &str,
    port: u16,
    groups: &[(&str, &str)],
) -> Result<()> {
    let mut objects = vec![json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"type": "ExternalName", "externalName": "localhost",
                 "ports": [{"port": port, "protocol": "TCP"}]}
    })];
    for (group, version) in groups {
        objects.push(json!({
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {"name": format!("{version}.{group}")},
            "spec": {
                "group": group, "version": version, "insecureSkipTLSVerify": true,
                "groupPriorityMinimum": 100,
                "versionPriority": if *version == "v1beta2" { 200 } else { 100 },
                "service": {"name": name, "namespace": NAMESPACE, "port": port}
            }
        }));
    }
    let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
    control_plane.apply_text(&list.to_string()).await?;
    let client = control_plane.client().await?;
    until("the metrics APIs are available", LIMIT, POLL, || async {
        for (group, version) in groups {
            let request = http::Request::get(format!("/apis/{group}/{version}")).body(Vec::new())?;
            if client.request_text(request).await.is_err() {
                return Ok(None);
            }
        }
        Ok(Some(()))
    })
    .await
}

struct Server {
    values: Arc<Mutex<Values>>,
    changed: watch::Receiver<()>,
    client: Client,
}

impl Server {
    fn values(&self) -> MutexGuard<'_, Values> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests one after the other; all are GETs without a body.
    async fn connection<S>(&self, mut stream: S) -> Result<()>
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    {
        let mut waiting = Vec::new();
        loop {
            let end = loop {
                if let Some(at) = waiting.windows(4).position(|four| four == b"\r\n\r\n") {
                    break at + 4;
                }
                let mut piece = [0; 4096];
                let read = stream.read(&mut piece).await?;
                if read == 0 || waiting.len() > HEAD_BYTES_MAX {
                    return Ok(());
                }
                waiting.extend_from_slice(&piece[..read]);
            };
            let head = String::from_utf8_lossy(&waiting[..end]).into_owned();
            waiting.drain(..end);
            let target = head.split(' ').nth(1).context("a request line")?;
            let (code, body) = self.answer(target).await;
            let body = body.to_string();
            let reason = if code == 200 { "OK" } else { "Not Found" };
            let answer = format!(
                "HTTP/1.1 {code} {reason}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            );
            stream.write_all(answer.as_bytes()).await?;
        }
    }

    async fn answer(&self, target: &str) -> (u16, Value) {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let parts: Vec<String> = path.split('/').skip(1).map(unescaped).collect();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        if let ["apis", group, version] = parts[..] {
            return (200, discovery(group, version));
        }
        if let ["apis", group, ..] = parts[..] {
            let mut changed = self.changed.clone();
            while self.values().hanging.contains(group) {
                if changed.changed().await.is_err() {
                    break;
                }
            }
        }
        let found = match parts[..] {
            ["apis", "metrics.k8s.io", _, "namespaces", namespace, "pods"] => {
                self.usage(namespace, &selector(query)).await
            }
            [
                "apis",
                "custom.metrics.k8s.io",
                version,
                "namespaces",
                namespace,
                "pods",
                "*",
                metric,
            ] => {
                self.of_pods(version, namespace, &selector(query), metric)
                    .await
            }
            [
                "apis",
                "custom.metrics.k8s.io",
                version,
                "namespaces",
                namespace,
                resource,
                name,
                metric,
            ] => self.object(version, namespace, &format!("{resource}/{name}"), metric),
            [
                "apis",
                "custom.metrics.k8s.io",
                version,
                "namespaces",
                namespace,
                "metrics",
                metric,
            ] => self.object(version, namespace, "metrics", metric),
            [
                "apis",
                "external.metrics.k8s.io",
                _,
                "namespaces",
                namespace,
                metric,
            ] => self.external(namespace, metric),
            _ => None,
        };
        match found {
            Some(list) => (200, list),
            None => (
                404,
                json!({
                    "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404,
                    "message": "the server could not find the metric"
                }),
            ),
        }
    }

    async fn selected(&self, namespace: &str, selector: &str) -> Vec<Pod> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let wanted = ListParams::default().labels(selector);
        pods.list(&wanted)
            .await
            .map(|list| list.items)
            .unwrap_or_default()
    }

    async fn usage(&self, namespace: &str, selector: &str) -> Option<Value> {
        let mut items = Vec::new();
        for pod in self.selected(namespace, selector).await {
            let app = label(&pod);
            let milli = self
                .values()
                .usage
                .get(&(namespace.to_owned(), app))
                .copied();
            let (Some(milli), true) = (milli, is_running(&pod)) else {
                continue;
            };
            let containers: Vec<Value> = pod
                .spec
                .iter()
                .flat_map(|spec| &spec.containers)
                .map(|one| {
                    json!({"name": one.name, "usage": {"cpu": format!("{milli}m"), "memory": "64Mi"}})
                })
                .collect();
            items.push(json!({
                "metadata": {"name": pod.metadata.name, "namespace": namespace},
                "timestamp": now(), "window": "1s", "containers": containers
            }));
        }
        Some(
            json!({"kind": "PodMetricsList", "apiVersion": "metrics.k8s.io/v1beta1", "metadata": {}, "items": items}),
        )
    }

    async fn of_pods(
        &self,
        version: &str,
        namespace: &str,
        selector: &str,
        metric: &str,
    ) -> Option<Value> {
        let mut items = Vec::new();
        for pod in self.selected(namespace, selector).await {
            let key = (namespace.to_owned(), label(&pod), metric.to_owned());
            let value = self.values().pods.get(&key).cloned();
            if let (Some(value), true) = (value, is_running(&pod)) {
                let name = pod.metadata.name.unwrap_or_default();
                items.push(measured(version, "Pod", namespace, &name, metric, &value));
            }
        }
        Some(list_of(version, &items))
    }

    fn object(&self, version: &str, namespace: &str, object: &str, metric: &str) -> Option<Value> {
        let key = (namespace.to_owned(), object.to_owned(), metric.to_owned());
        let value = self.values().objects.get(&key).cloned()?;
        let name = object.rsplit('/').next().unwrap_or_default();
        Some(list_of(
            version,
            &[measured(version, "Object", namespace, name, metric, &value)],
        ))
    }

    fn external(&self, namespace: &str, metric: &str) -> Option<Value> {
        let key = (namespace.to_owned(), metric.to_owned());
        let given = {
            let mut values = self.values();
            let times = values.asked.entry(metric.to_owned()).or_default();
            times.push(Instant::now());
            values.external.get(&key).cloned()?
        };
        let items: Vec<Value> = given
            .iter()
            .map(|value| {
                json!({"metricName": metric, "metricLabels": {}, "timestamp": now(), "value": value})
            })
            .collect();
        Some(json!({
            "kind": "ExternalMetricValueList", "apiVersion": "external.metrics.k8s.io/v1beta1", "metadata": {},
            "items": items
        }))
    }
}

fn discovery(group: &str, version: &str) -> Value {
    json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{group}/{version}"),
        "resources": if group == "metrics.k8s.io" {
            json!([{"name": "pods", "singularName": "", "namespaced": true, "kind": "PodMetrics", "verbs": ["get", "list"]}])
        } else {
            json!([])
        }
    })
}

fn list_of(version: &str, items: &[Value]) -> Value {
    json!({
        "kind": "MetricValueList", "apiVersion": format!("custom.metrics.k8s.io/{version}"), "metadata": {},
        "items": items
    })
}

fn measured(
    version: &str,
    kind: &str,
    namespace: &str,
    name: &str,
    metric: &str,
    value: &str,
) -> Value {
    let mut item = json!({
        "describedObject": {"kind": kind, "namespace": namespace, "name": name, "apiVersion": "v1"},
        "timestamp": now(), "value": value
    });
    if version == "v1beta1" {
        item["metricName"] = metric.into();
    } else {
        item["metric"] = json!({"name": metric});
    }
    item
}

fn now() -> String {
    jiff::Timestamp::now()
        .strftime("%Y-%m-%dT%H:%M:%SZ")
        .to_string()
}

fn label(pod: &Pod) -> String {
    pod.metadata
        .labels
        .as_ref()
        .and_then(|labels| labels.get("app"))
        .cloned()
        .unwrap_or_default()
}

fn is_running(pod: &Pod) -> bool {
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    phase == Some("Running") && pod.metadata.deletion_timestamp.is_none()
}

fn selector(query: &str) -> String {
    query
        .split('&')
        .find_map(|pair| pair.strip_prefix("labelSelector="))
        .map(unescaped)
        .unwrap_or_default()
}

fn unescaped(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        let code = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match (first, code) {
            (b'%', Some(code)) => {
                bytes.push(code);
                rest = &after[2..];
            }
            (b'+', _) => {
                bytes.push(b' ');
                rest = after;
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
