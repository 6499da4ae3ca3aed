//! The queue of finished spans, and the thread that sends them by OTLP.
//!
//! The SDK's batch processors do not say what they drop, and the one without a runtime cannot drive an
//! HTTP client: this one counts, and has a thread and a runtime to itself, so that a slow collector delays
//! nothing but its own spans.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{
    SpanExporter, WithExportConfig as _, WithHttpConfig as _, WithTonicConfig as _,
};
use opentelemetry_sdk::{
    Resource as Attributes,
    trace::{SpanData, SpanExporter as _},
};
use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    time::{Instant, sleep_until, timeout},
};
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

use super::{
    Counts,
    settings::{Protocol, Settings},
};

/// A collector's answer is empty or a few words.
const ANSWER_BYTES_MAX: usize = 1 << 20;

enum Message {
    Spans(Vec<SpanData>),
    Flush(std::sync::mpsc::Sender<()>),
}

/// What waits for its export. Bound: spans, by [`Settings::queue`].
#[derive(Debug)]
pub(super) struct Queue {
    sender: UnboundedSender<Message>,
    waiting: Arc<AtomicUsize>,
    max: usize,
    counts: Arc<Counts>,
}

impl Queue {
    /// Whether nobody exports any more.
    pub(super) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// Adds spans; all of them are dropped and counted where they are too many.
    pub(super) fn push(&self, spans: Vec<SpanData>) {
        let count = spans.len();
        let before = self.waiting.fetch_add(count, Ordering::Relaxed);
        if before + count > self.max || self.sender.send(Message::Spans(spans)).is_err() {
            self.waiting.fetch_sub(count, Ordering::Relaxed);
            self.counts
                .queue_full
                .fetch_add(count as u64, Ordering::Relaxed);
        }
    }

    /// Waits until all that waits was exported, for a time.
    pub(super) fn flush(&self, patience: Duration) {
        let (done, is_done) = std::sync::mpsc::channel();
        if self.sender.send(Message::Flush(done)).is_ok() {
            let _late = is_done.recv_timeout(patience);
        }
    }
}

/// Starts the thread. Without it nothing is exported; one warning says so.
pub(super) fn start(settings: Settings, attributes: Attributes, counts: Arc<Counts>) -> Queue {
    let (sender, receiver) = unbounded_channel();
    let waiting = Arc::<AtomicUsize>::default();
    let queue = Queue {
        sender,
        waiting: Arc::clone(&waiting),
        max: settings.queue,
        counts: Arc::clone(&counts),
    };
    let run = move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = match runtime {
            Ok(runtime) => runtime,
            Err(error) => return warn(&settings, &error),
        };
        runtime.block_on(async {
            match exporter(&settings, &attributes) {
                Ok(exporter) => {
                    let worker = Worker {
                        exporter,
                        settings,
                        waiting,
                        counts,
                        failing: false,
                    };
                    worker.run(receiver).await;
                }
                Err(why) => warn(&settings, &why),
            }
        });
    };
    let thread = std::thread::Builder::new().name("manifold-traces".to_owned());
    if let Err(error) = thread.spawn(run) {
        tracing::warn!(%error, "no traces are exported: their thread could not be started");
    }
    queue
}

fn warn(settings: &Settings, why: &dyn std::fmt::Display) {
    tracing::warn!(
        endpoint = settings.endpoint,
        "no traces are exported: {why}: check OTEL_EXPORTER_OTLP_ENDPOINT and what belongs to it"
    );
}

struct Worker {
    exporter: SpanExporter,
    settings: Settings,
    waiting: Arc<AtomicUsize>,
    counts: Arc<Counts>,
    /// Whether the last export has failed, which is logged once.
    failing: bool,
}

impl Worker {
    async fn run(mut self, mut receiver: UnboundedReceiver<Message>) {
        let mut batch = Vec::new();
        let mut due = Instant::now();
        loop {
            tokio::select! {
                message = receiver.recv() => match message {
                    Some(Message::Spans(spans)) => {
                        if batch.is_empty() {
                            due = Instant::now() + self.settings.delay;
                        }
                        batch.extend(spans);
                        if batch.len() >= self.settings.batch {
                            self.export(&mut batch).await;
                        }
                    }
                    Some(Message::Flush(done)) => {
                        while let Ok(message) = receiver.try_recv() {
                            if let Message::Spans(spans) = message {
                                batch.extend(spans);
                            }
                        }
                        self.export(&mut batch).await;
                        let _gone = done.send(());
                    }
                    None => return self.export(&mut batch).await,
                },
                () = sleep_until(due), if !batch.is_empty() => self.export(&mut batch).await,
            }
        }
    }

    async fn export(&mut self, batch: &mut Vec<SpanData>) {
        while !batch.is_empty() {
            let rest = batch.split_off(batch.len().min(self.settings.batch));
            let part = std::mem::replace(batch, rest);
            let count = part.len();
            let sent = timeout(self.settings.export_timeout, self.exporter.export(part)).await;
            self.waiting.fetch_sub(count, Ordering::Relaxed);
            let why = match sent {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(error.to_string()),
                Err(_) => Some(format!("no answer in {:?}", self.settings.export_timeout)),
            };
            let counter = match &why {
                None => &self.counts.exported,
                Some(_) => &self.counts.export_failed,
            };
            counter.fetch_add(count as u64, Ordering::Relaxed);
            self.log(why.as_deref());
        }
    }

    fn log(&mut self, why: Option<&str>) {
        let endpoint = &self.settings.endpoint;
        match (why, self.failing) {
            (Some(why), false) => tracing::warn!(
                endpoint,
                "spans could not be exported and are dropped: {why}; until it works again they are only counted \
                 (manifold_trace_spans_dropped_total)"
            ),
            (None, true) => tracing::info!(endpoint, "spans are exported again"),
            _ => {}
        }
        self.failing = why.is_some();
    }
}

/// Headers, compression and the timeout of a request are read from the environment by the library.
fn exporter(settings: &Settings, attributes: &Attributes) -> Result<SpanExporter, String> {
    let built = match settings.protocol {
        Protocol::Grpc => {
            let mut builder = SpanExporter::builder()
                .with_tonic()
                .with_endpoint(&settings.endpoint);
            if settings.endpoint.starts_with("https://") {
                builder = builder.with_tls_config(grpc_tls(settings)?);
            }
            builder.build()
        }
        Protocol::Http => SpanExporter::builder()
            .with_http()
            .with_protocol(opentelemetry_otlp::Protocol::HttpBinary)
            .with_endpoint(&settings.endpoint)
            .with_http_client(Http::new(settings)?)
            .build(),
    };
    let mut exporter = built.map_err(|error| error.to_string())?;
    exporter.set_resource(attributes);
    Ok(exporter)
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("{} can't be read: {error}", path.display()))
}

fn grpc_tls(settings: &Settings) -> Result<ClientTlsConfig, String> {
    let mut tls = match &settings.certificate {
        Some(path) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(path)?)),
        None => ClientTlsConfig::new().with_native_roots(),
    };
    if let Some((certificate, key)) = &settings.client_certificate {
        tls = tls.identity(Identity::from_pem(read(certificate)?, read(key)?));
    }
    Ok(tls)
}

/// The HTTP client that the exporter uses.
#[derive(Debug)]
struct Http(Client<HttpsConnector<HttpConnector>, Full<Bytes>>);

impl Http {
    fn new(settings: &Settings) -> Result<Self, String> {
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(http_tls(settings)?)
            .https_or_http()
            .enable_all_versions()
            .build();
        Ok(Self(Client::builder(TokioExecutor::new()).build(connector)))
    }
}

fn http_tls(settings: &Settings) -> Result<rustls::ClientConfig, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let mut roots = RootCertStore::empty();
    match &settings.certificate {
        Some(path) => {
            for certificate in CertificateDer::pem_slice_iter(&read(path)?) {
                let certificate = certificate.map_err(|error| error.to_string())?;
                roots.add(certificate).map_err(|error| error.to_string())?;
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    let builder = builder.with_root_certificates(roots);
    let Some((certificate, key)) = &settings.client_certificate else {
        return Ok(builder.with_no_client_auth());
    };
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(certificate)?).collect();
    let key = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|error| error.to_string())?;
    builder
        .with_client_auth_cert(chain.map_err(|error| error.to_string())?, key)
        .map_err(|error| error.to_string())
}

#[tonic::async_trait]
impl HttpClient for Http {
    async fn send_bytes(
        &self,
        request: http::Request<Bytes>,
    ) -> Result<http::Response<Bytes>, HttpError> {
        let answer = self.0.request(request.map(Full::new)).await?;
        let (head, body) = answer.into_parts();
        let body = Limited::new(body, ANSWER_BYTES_MAX).collect().await?;
        Ok(http::Response::from_parts(head, body.to_bytes()))
    }
}
