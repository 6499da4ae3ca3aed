//! Logs, and whether there are traces.
//!
//! Logs go to standard error, as lines near klog's or as JSON, as verbose as `-v` says; `RUST_LOG` says it
//! more finely.

use std::{
    fmt::{self, Write as _},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
};

use arc_swap::ArcSwap;
use node_options::{LoggingOptions, Options};
use tracing::{Event, Level, Metadata, Subscriber, field::Field, subscriber::Interest};
use tracing_subscriber::{
    EnvFilter, Layer,
    fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields, format::Writer},
    layer::{Context, Filter, SubscriberExt},
    registry::LookupSpan,
    util::SubscriberInitExt,
};

use crate::trace::{Instance, Traces, settings};

/// Below this verbosity the API client's own messages are left out.
const QUIET_CLIENT_BELOW: i64 = 4;

/// How verbose logs are; `/debug/flags/v` changes it.
#[derive(Debug)]
pub struct Verbosity {
    level: AtomicI64,
    modules: ArcSwap<Vec<(String, i64)>>,
    /// RUST_LOG rules instead.
    overridden: bool,
}

impl Verbosity {
    /// By the options, unless it is `overridden`: RUST_LOG rules then.
    pub fn of(options: &LoggingOptions, overridden: bool) -> Self {
        Self {
            level: AtomicI64::new(options.verbosity),
            modules: ArcSwap::from_pointee(options.modules.clone()),
            overridden,
        }
    }

    /// `-v`, as it is now.
    pub fn level(&self) -> i64 {
        self.level.load(Ordering::Relaxed)
    }

    /// Changes it from now on.
    ///
    /// # Errors
    /// Where RUST_LOG rules, which can't be changed from outside.
    pub fn set(&self, level: i64) -> Result<(), &'static str> {
        self.check()?;
        self.level.store(level, Ordering::Relaxed);
        tracing::callsite::rebuild_interest_cache();
        Ok(())
    }

    /// Changes that of single modules, `--vmodule`, from now on.
    ///
    /// # Errors
    /// As [`Self::set`].
    pub fn set_modules(&self, modules: Vec<(String, i64)>) -> Result<(), &'static str> {
        self.check()?;
        self.modules.store(Arc::new(modules));
        tracing::callsite::rebuild_interest_cache();
        Ok(())
    }

    fn check(&self) -> Result<(), &'static str> {
        match self.overridden {
            true => Err("RUST_LOG is set and rules instead of -v: start without it"),
            false => Ok(()),
        }
    }

    fn allows(&self, metadata: &Metadata<'_>) -> bool {
        let file = metadata.file().map(Path::new);
        let stem = file
            .and_then(Path::file_stem)
            .and_then(|stem| stem.to_str());
        let modules = self.modules.load();
        let of_module = modules.iter().find(|(pattern, _)| {
            stem.is_some_and(|stem| like(pattern, stem)) || like(pattern, metadata.target())
        });
        let level = of_module.map_or_else(|| self.level(), |(_, level)| *level);
        // The client library logs each failed request as an error; the caller reports what it means.
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

/// klog's levels as tracing's: 0 reports what an operator must know, 4 what a developer of the controller
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

/// A pattern of `--vmodule`: `*` matches any text, `?` one character.
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
    /// Traces, where an endpoint for them is set.
    pub traces: Option<Arc<Traces>>,
}

impl Telemetry {
    /// Sends the spans that have not been sent yet; takes a second at most.
    pub fn flush(&self) {
        if let Some(traces) = &self.traces {
            traces.flush();
        }
    }
}

/// Sets up logs, and traces where an endpoint is set. Once for each process.
///
/// # Errors
/// One line: a RUST_LOG that can't be used, or a second call. What is wrong with traces is a warning.
pub fn start(options: &Options) -> Result<Telemetry, String> {
    let verbosity = logs(&options.logging)?;
    let file = options.tracing_config_file.as_ref().map(|path| {
        std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
    });
    let read = settings::read(&|name| std::env::var(name).ok(), file);
    for warning in read.warnings {
        tracing::warn!("{warning}");
    }
    let traces = read.settings.map(|settings| {
        let instance = Instance {
            replica: options.fleet.replica.clone(),
            pod: options.pod.clone(),
            fleet: options.fleet.fleet.clone(),
        };
        Traces::start(settings, instance)
    });
    Ok(Telemetry { verbosity, traces })
}

fn logs(options: &LoggingOptions) -> Result<Arc<Verbosity>, String> {
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
    tracing_subscriber::registry()
        .with(lines)
        .try_init()
        .map_err(|why| format!("logs are set up already: {why}"))?;
    Ok(verbosity)
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
        assert!(text.contains("logs.rs:"), "{text}");
        assert!(
            text.ends_with("] \"two \\\"words\\\"\" count=3 name=\"web\"\n"),
            "{text}"
        );
    }
}
