//! What OpenTelemetry's environment variables and a TracingConfiguration file ask for.
//!
//! A pure function of both. No setting is an error: what can't be used is left out with a warning, since
//! tracing must never keep a controller manager from working.

use std::{path::PathBuf, time::Duration};

use opentelemetry_sdk::trace::Sampler;
use serde::Deserialize;

/// The share of traces that is sampled where nothing else is said.
pub const RATIO_DEFAULT: f64 = 0.01;
/// Spans that wait for their export (`OTEL_BSP_MAX_QUEUE_SIZE`): OpenTelemetry's default.
const QUEUE_DEFAULT: usize = 2048;
/// At most as many may be configured: 64 Ki spans of about 1 kB.
const QUEUE_MAX: usize = 1 << 16;
/// Spans of one export (`OTEL_BSP_MAX_EXPORT_BATCH_SIZE`).
const BATCH_DEFAULT: usize = 512;
/// Between two exports (`OTEL_BSP_SCHEDULE_DELAY`).
const DELAY_DEFAULT: Duration = Duration::from_secs(5);
/// For one export with its retries (`OTEL_BSP_EXPORT_TIMEOUT`).
const EXPORT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(30);
/// Where a TracingConfiguration names no endpoint: as kube-apiserver.
const FILE_ENDPOINT_DEFAULT: &str = "localhost:4317";
/// The port that is registered for OTLP over HTTP.
const HTTP_PORT: &str = "4318";
/// API versions of a TracingConfiguration (KEP-647), in kube-apiserver's group.
const FILE_VERSIONS: [&str; 3] = [
    "apiserver.config.k8s.io/v1alpha1",
    "apiserver.config.k8s.io/v1beta1",
    "apiserver.config.k8s.io/v1",
];

/// How spans are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// OTLP over gRPC.
    Grpc,
    /// OTLP over HTTP, in protobuf.
    Http,
}

/// What traces are made and where they go.
#[derive(Clone, Debug)]
pub struct Settings {
    /// With a scheme; over HTTP with the path.
    pub endpoint: String,
    /// How spans are sent.
    pub protocol: Protocol,
    /// Authorities of the endpoint's certificate; the system's where there is none.
    pub certificate: Option<PathBuf>,
    /// The own certificate and its key.
    pub client_certificate: Option<(PathBuf, PathBuf)>,
    /// Which traces are sampled when they begin.
    pub sampler: Sampler,
    /// Spans that may wait.
    pub queue: usize,
    /// Spans of one export.
    pub batch: usize,
    /// Between two exports.
    pub delay: Duration,
    /// For one export.
    pub export_timeout: Duration,
}

/// What came of reading them.
#[derive(Debug, Default)]
pub struct Read {
    /// `None`: no traces.
    pub settings: Option<Settings>,
    /// One line each.
    pub warnings: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    api_version: String,
    kind: String,
    endpoint: Option<String>,
    sampling_rate_per_million: Option<i64>,
}

/// The part of a TracingConfiguration that counts.
#[derive(Debug, Default, PartialEq)]
struct Configured {
    endpoint: Option<String>,
    ratio: Option<f64>,
}

fn parse_file(text: &str) -> Result<Configured, String> {
    let file: File = serde_yaml::from_str(text).map_err(|error| error.to_string())?;
    if file.kind != "TracingConfiguration" || !FILE_VERSIONS.contains(&file.api_version.as_str()) {
        return Err(format!(
            "it is a {} of {}, not a TracingConfiguration of {}",
            file.kind, file.api_version, FILE_VERSIONS[2]
        ));
    }
    let rate = file.sampling_rate_per_million;
    if let Some(rate) = rate.filter(|rate| !(0..=1_000_000).contains(rate)) {
        return Err(format!(
            "samplingRatePerMillion {rate} is not between 0 and 1000000"
        ));
    }
    let endpoint = file.endpoint.filter(|endpoint| !endpoint.is_empty());
    Ok(Configured {
        endpoint: Some(endpoint.unwrap_or_else(|| FILE_ENDPOINT_DEFAULT.to_owned())),
        // Up to a million: exact.
        #[allow(clippy::cast_precision_loss)]
        ratio: rate.map(|rate| rate as f64 / 1e6),
    })
}

/// Reads them. `file` is the content of `--tracing-config-file`, or why it can't be read; variables of the
/// environment precede it.
pub fn read(env: &dyn Fn(&str) -> Option<String>, file: Option<Result<String, String>>) -> Read {
    let mut warnings = Vec::new();
    let set = |name: &str| env(name).filter(|value| !value.trim().is_empty());
    let is_true = |name: &str| set(name).is_some_and(|value| value.eq_ignore_ascii_case("true"));
    let file = file.map(|content| content.and_then(|text| parse_file(&text)));
    let configured = match file {
        Some(Ok(configured)) => configured,
        Some(Err(why)) => {
            warnings.push(format!("--tracing-config-file is not used: {why}"));
            Configured::default()
        }
        None => Configured::default(),
    };
    let none = |warnings| Read {
        settings: None,
        warnings,
    };
    if is_true("OTEL_SDK_DISABLED") {
        return none(warnings);
    }
    match set("OTEL_TRACES_EXPORTER").as_deref() {
        None | Some("otlp") => {}
        Some("none") => return none(warnings),
        Some(other) => {
            warnings.push(format!(
                "OTEL_TRACES_EXPORTER {other:?} is not supported: no traces are exported; use otlp"
            ));
            return none(warnings);
        }
    }
    let of_signal = |rest: &str| {
        set(&format!("OTEL_EXPORTER_OTLP_TRACES_{rest}"))
            .or_else(|| set(&format!("OTEL_EXPORTER_OTLP_{rest}")))
    };
    let (endpoint, is_whole) = match (
        set("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"),
        set("OTEL_EXPORTER_OTLP_ENDPOINT"),
        configured.endpoint,
    ) {
        (Some(endpoint), ..) => (endpoint, true),
        (None, Some(endpoint), _) => (endpoint, false),
        // As kube-apiserver reads it: host and port, without TLS.
        (None, None, Some(endpoint)) if !endpoint.contains("://") => {
            (format!("http://{endpoint}"), false)
        }
        (None, None, Some(endpoint)) => (endpoint, false),
        (None, None, None) => return none(warnings),
    };
    let protocol = protocol(of_signal("PROTOCOL").as_deref(), &endpoint, &mut warnings);
    let insecure = of_signal("INSECURE").is_some_and(|value| value.eq_ignore_ascii_case("true"));
    let endpoint = with_scheme(endpoint, insecure);
    let endpoint = match protocol {
        Protocol::Http if !is_whole => format!("{}/v1/traces", endpoint.trim_end_matches('/')),
        _ => endpoint,
    };
    let uri = endpoint.parse::<http::Uri>();
    let is_web = |uri: &http::Uri| matches!(uri.scheme_str(), Some("http" | "https"));
    if !uri.is_ok_and(|uri| is_web(&uri) && uri.authority().is_some()) {
        warnings.push(format!(
            "no traces are exported: the endpoint {endpoint:?} is no URL such as http://jaeger:4317"
        ));
        return none(warnings);
    }
    let sampler = sampler(
        set("OTEL_TRACES_SAMPLER").as_deref(),
        set("OTEL_TRACES_SAMPLER_ARG").as_deref(),
        configured.ratio,
        &mut warnings,
    );
    let Some(sampler) = sampler else {
        return none(warnings);
    };
    let mut number = |name: &str, default: usize, max: usize| match set(name) {
        None => default,
        Some(text) => match text.parse::<usize>() {
            Ok(number) if (1..=max).contains(&number) => number,
            _ => {
                warnings.push(format!(
                    "{name} {text:?} is not a number from 1 to {max}: {default} is used"
                ));
                default
            }
        },
    };
    let millis = |duration: Duration| usize::try_from(duration.as_millis()).unwrap_or(usize::MAX);
    let queue = number("OTEL_BSP_MAX_QUEUE_SIZE", QUEUE_DEFAULT, QUEUE_MAX);
    let batch = number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", BATCH_DEFAULT, QUEUE_MAX);
    let hour = 3_600_000;
    let delay = number("OTEL_BSP_SCHEDULE_DELAY", millis(DELAY_DEFAULT), hour);
    let timeout = number(
        "OTEL_BSP_EXPORT_TIMEOUT",
        millis(EXPORT_TIMEOUT_DEFAULT),
        hour,
    );
    let pair = of_signal("CLIENT_CERTIFICATE").zip(of_signal("CLIENT_KEY"));
    Read {
        settings: Some(Settings {
            endpoint,
            protocol,
            certificate: of_signal("CERTIFICATE").map(PathBuf::from),
            client_certificate: pair.map(|(certificate, key)| (certificate.into(), key.into())),
            sampler,
            queue,
            batch: batch.min(queue),
            delay: Duration::from_millis(delay as u64),
            export_timeout: Duration::from_millis(timeout as u64),
        }),
        warnings,
    }
}

fn protocol(named: Option<&str>, endpoint: &str, warnings: &mut Vec<String>) -> Protocol {
    let by_port = || {
        let rest = endpoint
            .split_once("://")
            .map_or(endpoint, |(_, rest)| rest);
        let authority = rest.split('/').next().unwrap_or_default();
        match authority.rsplit_once(':') {
            Some((_, HTTP_PORT)) => Protocol::Http,
            _ => Protocol::Grpc,
        }
    };
    match named {
        Some("grpc") => Protocol::Grpc,
        Some("http/protobuf") => Protocol::Http,
        None => by_port(),
        Some(other) => {
            let used = by_port();
            warnings.push(format!(
                "OTEL_EXPORTER_OTLP_PROTOCOL {other:?} is not supported: {} is used",
                match used {
                    Protocol::Grpc => "grpc",
                    Protocol::Http => "http/protobuf",
                }
            ));
            used
        }
    }
}

/// An endpoint without a scheme is secure unless it says otherwise: the OTLP exporter's specification.
fn with_scheme(endpoint: String, insecure: bool) -> String {
    match (endpoint.contains("://"), insecure) {
        (true, _) => endpoint,
        (false, true) => format!("http://{endpoint}"),
        (false, false) => format!("https://{endpoint}"),
    }
}

/// `None` where nothing is ever sampled.
fn sampler(
    named: Option<&str>,
    argument: Option<&str>,
    configured: Option<f64>,
    warnings: &mut Vec<String>,
) -> Option<Sampler> {
    let parent_based = |sampler| Sampler::ParentBased(Box::new(sampler));
    // Without a name the argument still says how many.
    let unset = match named {
        Some(_) => 1.0,
        None => configured.unwrap_or(RATIO_DEFAULT),
    };
    let ratio = match argument.map(str::parse::<f64>) {
        None => unset,
        Some(Ok(ratio)) if (0.0..=1.0).contains(&ratio) => ratio,
        Some(_) => {
            warnings.push(format!(
                "OTEL_TRACES_SAMPLER_ARG {:?} is not between 0 and 1: {RATIO_DEFAULT} is used",
                argument.unwrap_or_default()
            ));
            RATIO_DEFAULT
        }
    };
    match named {
        None | Some("parentbased_traceidratio") => {
            Some(parent_based(Sampler::TraceIdRatioBased(ratio)))
        }
        Some("traceidratio") => Some(Sampler::TraceIdRatioBased(ratio)),
        Some("always_on") => Some(Sampler::AlwaysOn),
        Some("parentbased_always_on") => Some(parent_based(Sampler::AlwaysOn)),
        // Nothing above this process begins a trace, so that both mean the same.
        Some("always_off" | "parentbased_always_off") => None,
        Some(other) => {
            warnings.push(format!(
                "OTEL_TRACES_SAMPLER {other:?} is not supported: parentbased_traceidratio of {RATIO_DEFAULT} is used"
            ));
            Some(parent_based(Sampler::TraceIdRatioBased(RATIO_DEFAULT)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(vars: &[(&str, &str)], file: Option<&str>) -> Read {
        let env = |name: &str| {
            let found = vars.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        read(&env, file.map(|text| Ok(text.to_owned())))
    }

    const ENDPOINT: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://jaeger:4317");

    #[test]
    fn without_an_endpoint_and_where_traces_are_switched_off_there_are_none() {
        for vars in [
            &[][..],
            &[("OTEL_EXPORTER_OTLP_ENDPOINT", " ")],
            &[ENDPOINT, ("OTEL_SDK_DISABLED", "TRUE")],
            &[ENDPOINT, ("OTEL_TRACES_EXPORTER", "none")],
            &[ENDPOINT, ("OTEL_TRACES_SAMPLER", "always_off")],
        ] {
            let read = of(vars, None);
            assert!(
                read.settings.is_none() && read.warnings.is_empty(),
                "{vars:?}"
            );
        }
    }

    #[test]
    fn endpoints_are_resolved_as_the_exporters_specification_says() {
        let traces = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
        let all = "OTEL_EXPORTER_OTLP_ENDPOINT";
        let protocol = "OTEL_EXPORTER_OTLP_PROTOCOL";
        let insecure = ("OTEL_EXPORTER_OTLP_INSECURE", "true");
        for (vars, endpoint, expected) in [
            (
                &[(all, "http://j:4317")][..],
                "http://j:4317",
                Protocol::Grpc,
            ),
            (&[(all, "j:4317")], "https://j:4317", Protocol::Grpc),
            (
                &[(all, "j:4317"), insecure],
                "http://j:4317",
                Protocol::Grpc,
            ),
            (
                &[(all, "http://j:4318/")],
                "http://j:4318/v1/traces",
                Protocol::Http,
            ),
            (
                &[(all, "https://j"), (protocol, "http/protobuf")],
                "https://j/v1/traces",
                Protocol::Http,
            ),
            (
                &[(traces, "https://j/mine"), (protocol, "http/protobuf")],
                "https://j/mine",
                Protocol::Http,
            ),
            (
                &[(traces, "http://a:1"), (all, "http://b:1")],
                "http://a:1",
                Protocol::Grpc,
            ),
        ] {
            let settings = of(vars, None).settings.unwrap();
            assert_eq!(settings.endpoint, endpoint, "{vars:?}");
            assert_eq!(settings.protocol, expected, "{vars:?}");
        }
    }

    #[test]
    fn one_in_a_hundred_is_sampled_unless_something_else_is_said() {
        let name = "OTEL_TRACES_SAMPLER";
        let argument = "OTEL_TRACES_SAMPLER_ARG";
        let file = "{apiVersion: apiserver.config.k8s.io/v1beta1, kind: TracingConfiguration, samplingRatePerMillion: 500}";
        for (vars, file, expected) in [
            (
                &[ENDPOINT][..],
                None,
                "ParentBased(TraceIdRatioBased(0.01))",
            ),
            (
                &[ENDPOINT, (argument, "0.5")],
                None,
                "ParentBased(TraceIdRatioBased(0.5))",
            ),
            (
                &[ENDPOINT, (name, "traceidratio"), (argument, "0.25")],
                None,
                "TraceIdRatioBased(0.25)",
            ),
            (&[ENDPOINT, (name, "always_on")], None, "AlwaysOn"),
            (&[], Some(file), "ParentBased(TraceIdRatioBased(0.0005))"),
            (&[(name, "always_on")], Some(file), "AlwaysOn"),
        ] {
            let sampler = of(vars, file).settings.unwrap().sampler;
            assert_eq!(format!("{sampler:?}"), expected, "{vars:?}");
        }
    }

    #[test]
    fn a_tracing_configuration_names_endpoint_and_rate() {
        let head = "apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\n";
        for (rest, endpoint) in [
            ("", "http://localhost:4317"),
            ("endpoint: otel:4317\n", "http://otel:4317"),
            ("endpoint: https://otel:4317\n", "https://otel:4317"),
        ] {
            let read = of(&[], Some(&format!("{head}{rest}")));
            assert_eq!(read.warnings, Vec::<String>::new());
            assert_eq!(read.settings.unwrap().endpoint, endpoint);
        }
        let precedes = of(&[ENDPOINT], Some(&format!("{head}endpoint: other:1\n")));
        assert_eq!(precedes.settings.unwrap().endpoint, ENDPOINT.1);
    }

    #[test]
    fn what_can_not_be_used_is_one_warning_and_no_error() {
        let bad = |name, value| vec![ENDPOINT, (name, value)];
        for (vars, file, named) in [
            (
                bad("OTEL_TRACES_SAMPLER", "xray"),
                None,
                "\"xray\" is not supported",
            ),
            (
                bad("OTEL_TRACES_SAMPLER_ARG", "2"),
                None,
                "\"2\" is not between 0 and 1",
            ),
            (
                bad("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
                None,
                "grpc is used",
            ),
            (bad("OTEL_BSP_MAX_QUEUE_SIZE", "0"), None, "2048 is used"),
            (bad("OTEL_TRACES_EXPORTER", "zipkin"), None, "use otlp"),
            (
                vec![("OTEL_EXPORTER_OTLP_ENDPOINT", "ftp://x y")],
                None,
                "is no URL",
            ),
            (
                vec![],
                Some("kind: Pod\napiVersion: v1\n"),
                "it is a Pod of v1",
            ),
            (
                vec![],
                Some("kind: [\n"),
                "--tracing-config-file is not used",
            ),
            (
                vec![],
                Some(
                    "apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\nsamplingRatePerMillion: -1\n",
                ),
                "-1 is not between",
            ),
        ] {
            let read = of(&vars, file);
            assert_eq!(read.warnings.len(), 1, "{vars:?}: {:?}", read.warnings);
            assert!(read.warnings[0].contains(named), "{}", read.warnings[0]);
        }
    }
}
