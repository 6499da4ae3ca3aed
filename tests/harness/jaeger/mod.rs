//! A real Jaeger: its all-in-one with memory storage, and its HTTP API.
//!
//! The Go module holds no user interface (its files are built apart from it), so that the query port serves
//! the API alone.

mod picture;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::ports;
use crate::process::{Process, Spec, WorkDir};
use crate::programs::{Program, Programs};
use crate::wait::until;

pub use picture::draw;

/// It starts within this on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(100);
/// Traces that are kept; a search returns no more.
const TRACES_MAX: u32 = 20_000;

/// A running Jaeger. Dropping it kills it.
#[derive(Debug)]
pub struct Jaeger {
    process: Process,
    query: u16,
    grpc: u16,
    http: u16,
}

/// One trace, as the API returns it.
#[derive(Debug, Clone, Deserialize)]
pub struct Trace {
    /// Its spans, in no order.
    pub spans: Vec<Span>,
    /// The processes that they name.
    pub processes: BTreeMap<String, Service>,
}

/// A process of a trace.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Service {
    /// `service.name`.
    pub service_name: String,
    /// Resource attributes.
    #[serde(default)]
    pub tags: Vec<Tag>,
}

/// One span.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Span {
    /// Its trace.
    #[serde(rename = "traceID")]
    pub trace: String,
    /// Its id in the trace.
    #[serde(rename = "spanID")]
    pub id: String,
    /// Its name.
    #[serde(rename = "operationName")]
    pub name: String,
    /// Its parent (`CHILD_OF`) and links (`FOLLOWS_FROM`).
    #[serde(default)]
    pub references: Vec<Reference>,
    /// Microseconds since the Unix epoch.
    pub start_time: u64,
    /// Microseconds.
    pub duration: u64,
    /// Attributes.
    #[serde(default)]
    pub tags: Vec<Tag>,
    /// Its process.
    #[serde(rename = "processID")]
    pub process: String,
    /// What Jaeger has to say about it.
    pub warnings: Option<Vec<String>>,
}

/// A reference to another span.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Reference {
    /// `CHILD_OF` or `FOLLOWS_FROM`.
    pub ref_type: String,
    /// The other's trace.
    #[serde(rename = "traceID")]
    pub trace: String,
    /// The other's id.
    #[serde(rename = "spanID")]
    pub span: String,
}

/// An attribute.
#[derive(Debug, Clone, Deserialize)]
pub struct Tag {
    /// Its name.
    pub key: String,
    /// Its value.
    pub value: Value,
}

/// The value of an attribute as text; empty where there is none.
pub fn tag(tags: &[Tag], key: &str) -> String {
    let found = tags.iter().find(|tag| tag.key == key);
    match found.map(|tag| &tag.value) {
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
        None => String::new(),
    }
}

impl Span {
    /// An attribute's value as text.
    pub fn tag(&self, key: &str) -> String {
        tag(&self.tags, key)
    }

    /// Whether Jaeger shows it red.
    pub fn is_error(&self) -> bool {
        self.tag("error") == "true"
    }

    /// Trace and id.
    pub fn place(&self) -> (String, String) {
        (self.trace.clone(), self.id.clone())
    }

    /// The parent's place.
    pub fn parent(&self) -> Option<(String, String)> {
        let parent = self
            .references
            .iter()
            .find(|one| one.ref_type == "CHILD_OF");
        parent.map(|one| (one.trace.clone(), one.span.clone()))
    }

    /// The places that it is linked to.
    pub fn links(&self) -> impl Iterator<Item = (String, String)> {
        let links = self.references.iter();
        links
            .filter(|one| one.ref_type == "FOLLOWS_FROM")
            .map(|one| (one.trace.clone(), one.span.clone()))
    }
}

impl Trace {
    /// The replica that a span is of.
    pub fn replica(&self, span: &Span) -> String {
        let process = self.processes.get(&span.process);
        process.map_or_else(String::new, |process| {
            tag(&process.tags, "service.instance.id")
        })
    }
}

#[derive(Deserialize)]
struct Found {
    data: Vec<Trace>,
}

impl Jaeger {
    /// Builds it if need be, which takes minutes, starts it and waits until it answers.
    pub async fn start(dir: &WorkDir) -> Result<Self> {
        let program: PathBuf = tokio::task::spawn_blocking(Programs::obtain_jaeger)
            .await
            .context("building Jaeger")??
            .path(Program::Jaeger);
        let [query, grpc, http] = [ports::free()?, ports::free()?, ports::free()?];
        let here = |port: u16| format!("127.0.0.1:{port}");
        let args = [
            ("query.http-server.host-port", here(query)),
            ("query.grpc-server.host-port", here(ports::free()?)),
            ("collector.otlp.grpc.host-port", here(grpc)),
            ("collector.otlp.http.host-port", here(http)),
            ("collector.grpc-server.host-port", here(ports::free()?)),
            ("collector.http-server.host-port", here(ports::free()?)),
            ("admin.http.host-port", here(ports::free()?)),
            ("memory.max-traces", TRACES_MAX.to_string()),
        ]
        .map(|(name, value)| format!("--{name}={value}"));
        let process = Process::spawn(&Spec {
            name: "jaeger".to_owned(),
            program,
            args: args.into(),
            env: vec![
                ("SPAN_STORAGE_TYPE".to_owned(), "memory".to_owned()),
                ("OTEL_TRACES_SAMPLER".to_owned(), "always_off".to_owned()),
            ],
            log: dir.file("jaeger.log"),
        })?;
        let mut jaeger = Self {
            process,
            query,
            grpc,
            http,
        };
        let answers = until("Jaeger answers", START_LIMIT, POLL, || async {
            jaeger.get("/api/services").await.map(Some)
        });
        match answers.await {
            Ok(_) => Ok(jaeger),
            Err(error) => jaeger.process.check().and(Err(error)),
        }
    }

    /// For `OTEL_EXPORTER_OTLP_ENDPOINT`: OTLP over gRPC.
    pub fn grpc(&self) -> String {
        format!("http://127.0.0.1:{}", self.grpc)
    }

    /// For `OTEL_EXPORTER_OTLP_ENDPOINT`: OTLP over HTTP, whose protocol must be named.
    pub fn http(&self) -> String {
        format!("http://127.0.0.1:{}", self.http)
    }

    /// The address of a search, for people too.
    pub fn search_url(&self, service: &str, operation: &str, tags: &[(&str, &str)]) -> String {
        format!(
            "http://127.0.0.1:{}{}",
            self.query,
            search(service, operation, tags)
        )
    }

    /// Searches traces of which a span matches.
    pub async fn search(
        &self,
        service: &str,
        operation: &str,
        tags: &[(&str, &str)],
    ) -> Result<Vec<Trace>> {
        let found = self.get(&search(service, operation, tags)).await?;
        let found: Found = serde_json::from_value(found).context("Jaeger's answer")?;
        Ok(found.data)
    }

    async fn get(&self, path: &str) -> Result<Value> {
        let client: Client<_, Empty<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
        let url = format!("http://127.0.0.1:{}{path}", self.query);
        let answer = client.get(url.parse()?).await?;
        let status = answer.status();
        let body = answer.into_body().collect().await?.to_bytes();
        ensure!(
            status.is_success(),
            "{path}: {status}: {}",
            String::from_utf8_lossy(&body)
        );
        Ok(serde_json::from_slice(&body)?)
    }
}

fn search(service: &str, operation: &str, tags: &[(&str, &str)]) -> String {
    let escaped = |text: &str| -> String {
        text.bytes()
            .map(|byte| match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' => {
                    char::from(byte).to_string()
                }
                _ => format!("%{byte:02X}"),
            })
            .collect()
    };
    let mut query = format!(
        "/api/traces?service={}&limit={TRACES_MAX}",
        escaped(service)
    );
    if !operation.is_empty() {
        query.push_str(&format!("&operation={}", escaped(operation)));
    }
    if !tags.is_empty() {
        let tags: BTreeMap<_, _> = tags.iter().copied().collect();
        query.push_str(&format!("&tags={}", escaped(&json!(tags).to_string())));
    }
    query
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_is_escaped() {
        assert_eq!(
            search("m", "reconcile x", &[("root", "Deployment a/b")]),
            "/api/traces?service=m&limit=20000&operation=reconcile%20x\
             &tags=%7B%22root%22%3A%22Deployment%20a%2Fb%22%7D"
        );
    }
}
