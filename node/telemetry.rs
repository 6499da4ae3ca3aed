//! Logs and traces.
//!
//! Logs go to standard error, as lines near klog's or as JSON, as verbose as `-v` says; `RUST_LOG` says it
//! more finely. Traces are exported by OTLP where an endpoint is set in the environment. Where none is, no
//! exporter exists and
//! [`reconcile_span`] is a test of one flag.

use std::{
    collections::HashMap,
    fmt::{self, Write as _},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
};

use opentelemetry::{
    KeyValue,
    propagation::TextMapPropagator as _,
    trace::{SpanContext, TraceContextExt, TracerProvider},
};
use opentelemetry_otlp::WithExportConfig;
use opentelemetry_sdk::{Resource, propagation::TraceContextPropagator, trace::SdkTracerProvider};
use tracing::{Event, Level, Metadata, Span, Subscriber, field::Field, subscriber::Interest};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::{
    EnvFilter, Layer,
    fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields, format::Writer},
    layer::{Context, Filter, SubscriberExt},
    registry::LookupSpan,
    util::SubscriberInitExt,
};

use crate::options::LoggingOptions;

/// The target of spans that are made for traces and not for logs.
const TRACE_TARGET: &str = "manifold::trace";

/// Below this verbosity the API client's own messages are left out.
const QUIET_CLIENT_BELOW: i64 = 4;

/// The header in which W3C Trace Context carries a span.
const TRACEPARENT: &str = "traceparent";

static TRACING: AtomicBool = AtomicBool::new(false);

/// How verbose logs are; `/debug/flags/v` changes it.
#[derive(Debug)]
pub struct Verbosity {
    level: AtomicI64,
    modules: Vec<(String, i64)>,
    /// RUST_LOG rules instead.
    overridden: bool,
}

impl Verbosity {
    fn of(options: &LoggingOptions, overridden: bool) -> Self {
        Self {
            level: AtomicI64::new(options.verbosity),
            modules: options.modules.clone(),
            overridden,
        }
    }

    /// `-v`, as it stands.
    pub fn level(&self) -> i64 {
        self.level.load(Ordering::Relaxed)
    }

    /// Changes it from now on.
    ///
    /// # Errors
    /// Where RUST_LOG rules, which can't be changed from outside.
    pub fn set(&self, level: i64) -> Result<(), &'static str> {
        if self.overridden {
            return Err("RUST_LOG is set and rules instead of -v: start without it");
        }
        self.level.store(level, Ordering::Relaxed);
        tracing::callsite::rebuild_interest_cache();
        Ok(())
    }

    fn allows(&self, metadata: &Metadata<'_>) -> bool {
        if metadata.target() == TRACE_TARGET {
            return false;
        }
        let file = metadata.file().map(Path::new);
        let stem = file
            .and_then(Path::file_stem)
            .and_then(|stem| stem.to_str());
        let of_module = self.modules.iter().find(|(pattern, _)| {
            stem.is_some_and(|stem| like(pattern, stem)) || like(pattern, metadata.target())
        });
        let level = of_module.map_or_else(|| self.level(), |(_, level)| *level);
        // The client library logs each failed request as an error; the caller tells what it means.
        if level < QUIET_CLIENT_BELOW && metadata.target().starts_with("kube_client") {
            return false;
        }
        *metadata.level() <= shown(level, is_ours(metadata.target()))
    }
}

/// Whether a target is of this project; the rest are libraries.
fn is_ours(target: &str) -> bool {
    let first = target.split("::").next().unwrap_or_default();
    [
        "node",
        "manifold",
        "coordinator",
        "reload",
        "peer_proto",
        "kubernetes_proto",
    ]
    .contains(&first)
        || first.starts_with("node_")
        || first.starts_with("coordinator_")
        || first.starts_with("controllers_")
}

/// klog's levels as tracing's: 0 tells what an operator must know, 4 what a developer of the controller
/// wants, 6 and more what passes over the wire. Libraries are two steps quieter.
fn shown(level: i64, ours: bool) -> Level {
    match (level, ours) {
        (..=3, true) => Level::INFO,
        (4..=7, true) => Level::DEBUG,
        (8.., true) => Level::TRACE,
        (..=3, false) => Level::WARN,
        (4..=5, false) => Level::INFO,
        // Never TRACE: HTTP libraries show headers there, and tokens with them.
        (6.., false) => Level::DEBUG,
    }
}

/// A pattern of `--vmodule`: `*` stands for any text, `?` for one character.
fn like(pattern: &str, text: &str) -> bool {
    match pattern.chars().next() {
        None => text.is_empty(),
        Some('*') => {
            let rest = &pattern[1..];
            like(rest, text)
                || text
                    .char_indices()
                    .any(|(at, c)| like(rest, &text[at + c.len_utf8()..]))
        }
        Some(first) => match text.chars().next() {
            Some(c) if first == '?' || c == first => {
                like(&pattern[first.len_utf8()..], &text[c.len_utf8()..])
            }
            _ => false,
        },
    }
}

struct ByVerbosity(Arc<Verbosity>);

impl<S> Filter<S> for ByVerbosity {
    fn enabled(&self, metadata: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        self.0.allows(metadata)
    }

    /// Decided once for each place in the code and not at each of its spans: HTTP libraries open dozens for a
    /// request.
    /// [`Verbosity::set`] has all of them decided again.
    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.0.allows(metadata) {
            Interest::always()
        } else {
            Interest::never()
        }
    }
}

/// `I1120 14:21:36.783764   17727 run.rs:72] message key="value"`, as klog writes it.
struct Klog;

impl<S, N> FormatEvent<S, N> for Klog
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut out: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let metadata = event.metadata();
        let letter = match *metadata.level() {
            Level::ERROR => 'E',
            Level::WARN => 'W',
            _ => 'I',
        };
        let now = jiff::Zoned::now();
        let file = metadata.file().map(Path::new).and_then(Path::file_name);
        let file = file.and_then(|name| name.to_str()).unwrap_or("?");
        write!(
            out,
            "{letter}{:02}{:02} {:02}:{:02}:{:02}.{:06} {:>7} {file}:{}] ",
            now.month(),
            now.day(),
            now.hour(),
            now.minute(),
            now.second(),
            now.subsec_nanosecond() / 1000,
            std::process::id(),
            metadata.line().unwrap_or_default(),
        )?;
        let mut fields = Fields::default();
        event.record(&mut fields);
        write!(out, "{:?}", fields.message)?;
        out.write_str(&fields.others)?;
        for span in context.event_scope().into_iter().flatten() {
            let extensions = span.extensions();
            if let Some(of_span) = extensions
                .get::<FormattedFields<N>>()
                .filter(|of_span| !of_span.is_empty())
            {
                write!(out, " {of_span}")?;
            }
        }
        writeln!(out)
    }
}

/// An event's message, and its fields as klog writes them.
#[derive(Default)]
struct Fields {
    message: String,
    others: String,
}

impl tracing::field::Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing into a String can't fail.
        if field.name() == "message" {
            let _ = write!(self.message, "{value:?}");
        } else {
            let _ = write!(self.others, " {}={:?}", field.name(), format!("{value:?}"));
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.message.push_str(value);
        } else {
            let _ = write!(self.others, " {}={value:?}", field.name());
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        let _ = write!(self.others, " {}={value}", field.name());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        let _ = write!(self.others, " {}={value}", field.name());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        let _ = write!(self.others, " {}={value}", field.name());
    }
}

/// What must be kept until the end of the process, and then flushed.
#[derive(Debug)]
pub struct Telemetry {
    /// For `/debug/flags/v`.
    pub verbosity: Arc<Verbosity>,
    provider: Option<SdkTracerProvider>,
}

impl Telemetry {
    /// Sends what has not been sent yet; takes up to the exporter's timeout. To be called off the runtime's
    /// threads.
    pub fn flush(&self) {
        if let Some(provider) = &self.provider
            && let Err(why) = provider.shutdown()
        {
            tracing::warn!(%why, "the last spans could not be exported");
        }
    }
}

/// Whether the environment names an OTLP endpoint.
fn endpoint_is_set() -> bool {
    [
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    ]
    .iter()
    .any(|name| std::env::var(name).is_ok_and(|value| !value.is_empty()))
}

/// Sets up logs, and traces where an endpoint is set. Once for each process, inside the runtime (the
/// exporter's connection lives there).
///
/// # Errors
/// One line: an endpoint or RUST_LOG that can't be used, or a second call.
pub fn start(options: &LoggingOptions, replica: &str) -> Result<Telemetry, String> {
    let rust_log = std::env::var("RUST_LOG")
        .ok()
        .filter(|text| !text.is_empty());
    let verbosity = Arc::new(Verbosity::of(options, rust_log.is_some()));
    let filter: Box<dyn Filter<tracing_subscriber::Registry> + Send + Sync> = match &rust_log {
        Some(text) => Box::new(
            EnvFilter::try_new(text)
                .map_err(|why| format!("RUST_LOG {text:?} can't be read: {why}"))?,
        ),
        None => Box::new(ByVerbosity(verbosity.clone())),
    };
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(false);
    let lines = match options.json {
        true => lines.json().flatten_event(true).with_filter(filter).boxed(),
        false => lines.event_format(Klog).with_filter(filter).boxed(),
    };
    let provider = match endpoint_is_set() {
        true => Some(provider(replica, None)?),
        false => None,
    };
    let subscriber = tracing_subscriber::registry().with(lines);
    // No layer that is none: whether each place in the code is of interest would be asked at every span of
    // the HTTP libraries. In a Job of 2,000 pods the filter alone took 4 % of the processor's time.
    match &provider {
        Some(provider) => subscriber.with(spans(provider)).try_init(),
        None => subscriber.try_init(),
    }
    .map_err(|why| format!("logs are set up already: {why}"))?;
    TRACING.store(provider.is_some(), Ordering::Relaxed);
    Ok(Telemetry {
        verbosity,
        provider,
    })
}

/// What becomes of the spans that are made for traces.
fn spans<S>(provider: &SdkTracerProvider) -> impl Layer<S>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    tracing_opentelemetry::layer()
        .with_tracer(provider.tracer("manifold"))
        .with_location(false)
        .with_threads(false)
        .with_filter(tracing_subscriber::filter::filter_fn(|metadata| {
            metadata.target() == TRACE_TARGET
        }))
}

/// The exporter in batches. Endpoint, headers, timeouts and the sampler (`OTEL_TRACES_SAMPLER`, `_ARG`) are
/// read from the environment by the library.
fn provider(replica: &str, endpoint: Option<&str>) -> Result<SdkTracerProvider, String> {
    let builder = opentelemetry_otlp::SpanExporter::builder().with_tonic();
    let builder = match endpoint {
        Some(endpoint) => builder.with_endpoint(endpoint),
        None => builder,
    };
    let exporter = builder.build().map_err(|why| {
        format!("traces can't be exported: {why}: check OTEL_EXPORTER_OTLP_ENDPOINT")
    })?;
    let resource = Resource::builder()
        .with_service_name("manifold")
        .with_attributes([
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("service.instance.id", replica.to_owned()),
        ])
        .build();
    Ok(SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_resource(resource)
        .build())
}

/// What a reconcile's span tells.
#[derive(Clone, Copy)]
pub struct Reconcile<'a> {
    /// The controller's name.
    pub controller: &'static str,
    /// The key's namespace.
    pub namespace: &'a str,
    /// The key, as in `shop/web`.
    pub key: &'a dyn fmt::Display,
    /// The range that holds it.
    pub range: u16,
    /// That range's epoch.
    pub epoch: u64,
    /// This replica.
    pub replica: &'a str,
}

/// A span for one reconcile: the parent of those of its calls. `from` is the `traceparent` that came with the
/// key in a handoff; the span is linked to it. Without an exporter it is no span at all.
pub fn reconcile_span(what: &Reconcile<'_>, from: Option<&str>) -> Span {
    if !TRACING.load(Ordering::Relaxed) {
        return Span::none();
    }
    made(what, from)
}

fn made(what: &Reconcile<'_>, from: Option<&str>) -> Span {
    let span = tracing::info_span!(
        target: TRACE_TARGET,
        "reconcile",
        "k8s.namespace.name" = what.namespace,
        controller = what.controller,
        key = %what.key,
        range = what.range,
        epoch = what.epoch,
        replica = what.replica,
    );
    if let Some(context) = from.and_then(from_traceparent) {
        span.add_link(context);
    }
    span
}

/// A span for one call to the API server, within a reconcile's.
pub fn call_span(verb: &'static str, resource: &str) -> Span {
    if !TRACING.load(Ordering::Relaxed) {
        return Span::none();
    }
    tracing::info_span!(target: TRACE_TARGET, "call", verb, resource)
}

/// The W3C `traceparent` of a span, to be sent with a request or a handoff; `None` where there is none.
pub fn traceparent(span: &Span) -> Option<String> {
    let mut headers = HashMap::new();
    TraceContextPropagator::new().inject_context(&span.context(), &mut headers);
    headers.remove(TRACEPARENT)
}

/// The trace's id, for `/debug/explain`.
pub fn trace_id(span: &Span) -> Option<String> {
    traceparent(span)?.split('-').nth(1).map(str::to_owned)
}

/// What a `traceparent` points to; `None` where it is not one.
pub fn from_traceparent(text: &str) -> Option<SpanContext> {
    let headers = HashMap::from([(TRACEPARENT.to_owned(), text.to_owned())]);
    let context = TraceContextPropagator::new()
        .extract_with_context(&opentelemetry::Context::new(), &headers);
    let context = context.span().span_context().clone();
    context.is_valid().then_some(context)
}

/// A verbosity for servers that are made without [`start`].
#[cfg(test)]
pub(crate) fn fixed_verbosity() -> Arc<Verbosity> {
    static FIXED: std::sync::OnceLock<Arc<Verbosity>> = std::sync::OnceLock::new();
    let make = || {
        let quiet = LoggingOptions {
            json: false,
            verbosity: 0,
            modules: Vec::new(),
        };
        Arc::new(Verbosity::of(&quiet, false))
    };
    FIXED.get_or_init(make).clone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_own_crates_log_is_shown_and_libraries_are_quieter() {
        for ours in [
            "node::run",
            "node_cache::cache",
            "coordinator::actor",
            "reload",
            "controllers_kit::rbac",
        ] {
            assert!(is_ours(ours), "{ours}");
        }
        for library in ["kube_client::client", "reloader", "hyper"] {
            assert!(!is_ours(library), "{library}");
        }
    }

    #[test]
    fn a_traceparent_is_read_and_what_is_none_is_refused() {
        let right = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let context = from_traceparent(right).unwrap();
        assert_eq!(
            context.trace_id().to_string(),
            "4bf92f3577b34da6a3ce929d0e0e4736"
        );
        assert!(context.is_remote() && context.is_sampled());
        for wrong in [
            "",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-xbf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ] {
            assert!(from_traceparent(wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn a_span_gives_the_traceparent_that_the_next_owner_links_to() {
        let provider = SdkTracerProvider::builder().build();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
        let subscriber = tracing_subscriber::registry().with(layer);
        tracing::subscriber::with_default(subscriber, || {
            let span = tracing::info_span!(target: TRACE_TARGET, "reconcile");
            let text = traceparent(&span).unwrap();
            let context = from_traceparent(&text).unwrap();
            assert_eq!(Some(context.trace_id().to_string()), trace_id(&span));
        });
    }

    #[test]
    fn without_an_exporter_there_is_no_span() {
        let key = "shop/web";
        let what = Reconcile {
            controller: "deployment-controller",
            namespace: "shop",
            key: &key,
            range: 1,
            epoch: 2,
            replica: "a",
        };
        assert!(reconcile_span(&what, None).is_none());
        assert_eq!(traceparent(&Span::none()), None);
    }

    /// A collector that keeps what it is sent and answers as gRPC does.
    async fn collector() -> (String, Arc<std::sync::Mutex<Vec<u8>>>) {
        use http_body_util::{BodyExt, Empty};
        use hyper::{
            Request, Response,
            body::{Bytes, Incoming},
            service::service_fn,
        };
        use hyper_util::{
            rt::{TokioExecutor, TokioIo},
            server::conn::auto,
        };

        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let kept = Arc::new(std::sync::Mutex::new(Vec::new()));
        let keep = kept.clone();
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let service = service_fn(move |request: Request<Incoming>| {
                let keep = keep.clone();
                async move {
                    assert!(
                        request.uri().path().ends_with("TraceService/Export"),
                        "{}",
                        request.uri()
                    );
                    let body = request.into_body().collect().await.unwrap().to_bytes();
                    keep.lock().unwrap().extend_from_slice(&body);
                    let answer = Response::builder()
                        .header("content-type", "application/grpc")
                        .header("grpc-status", "0");
                    Ok::<_, std::convert::Infallible>(answer.body(Empty::<Bytes>::new()).unwrap())
                }
            });
            let _ = auto::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
        (endpoint, kept)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn spans_reach_a_collector_with_their_attributes_and_links() {
        let (endpoint, kept) = collector().await;
        let provider = provider("replica-7", Some(&endpoint)).unwrap();
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("manifold"));
        let from = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            let key = "shop/web";
            let what = Reconcile {
                controller: "deployment-controller",
                namespace: "shop",
                key: &key,
                range: 1,
                epoch: 2,
                replica: "replica-7",
            };
            drop(made(&what, Some(from)));
        });
        let telemetry = Telemetry {
            verbosity: fixed_verbosity(),
            provider: Some(provider),
        };
        tokio::task::spawn_blocking(move || telemetry.flush())
            .await
            .unwrap();
        let kept = kept.lock().unwrap();
        let has = |part: &[u8]| kept.windows(part.len()).any(|window| window == part);
        for part in [
            "manifold",
            "service.instance.id",
            "replica-7",
            "reconcile",
            "k8s.namespace.name",
            "shop/web",
            "deployment-controller",
            "epoch",
        ] {
            assert!(has(part.as_bytes()), "{part} is missing");
        }
        let linked = from_traceparent(from).unwrap();
        assert!(
            has(&linked.trace_id().to_bytes()) && has(&linked.span_id().to_bytes()),
            "the link is missing"
        );
    }

    #[test]
    fn patterns_and_levels_are_klogs() {
        for (pattern, text, wanted) in [
            ("queue", "queue", true),
            ("queue", "queues", false),
            ("wat*", "watch", true),
            ("*ch", "watch", true),
            ("w?tch", "watch", true),
            ("*", "", true),
            ("", "x", false),
        ] {
            assert_eq!(like(pattern, text), wanted, "{pattern} {text}");
        }
        assert_eq!(shown(0, true), Level::INFO);
        assert_eq!(shown(0, false), Level::WARN);
        assert_eq!(shown(4, true), Level::DEBUG);
        assert_eq!(shown(10, false), Level::DEBUG);
        assert!(
            is_ours("node::http")
                && is_ours("controllers_apps::deployment")
                && !is_ours("hyper::proto")
        );
    }

    #[test]
    fn a_line_reads_as_klogs() {
        #[derive(Clone, Default)]
        struct Sink(Arc<std::sync::Mutex<Vec<u8>>>);
        impl std::io::Write for Sink {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                self.0.lock().unwrap().extend_from_slice(bytes);
                Ok(bytes.len())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let sink = Sink::default();
        let writer = sink.clone();
        let layer = tracing_subscriber::fmt::layer()
            .event_format(Klog)
            .with_writer(move || writer.clone());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            tracing::warn!(count = 3, name = "web", "two \"words\"");
        });
        let text = String::from_utf8(sink.0.lock().unwrap().clone()).unwrap();
        assert!(text.starts_with('W'), "{text}");
        assert!(text.contains("telemetry.rs:"), "{text}");
        assert!(
            text.ends_with("] \"two \\\"words\\\"\" count=3 name=\"web\"\n"),
            "{text}"
        );
    }
}
