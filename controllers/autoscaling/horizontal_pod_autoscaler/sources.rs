//! Where metrics come from: what is asked of the API, and what the answers say.

use std::time::Duration;

use controllers_kit::{
    Answer, Catalogue, Entry, NOT_FOUND, Query, SignedDuration, Snapshot, Str, Timestamp,
    selectors::{Selector, in_messages},
};
use kubernetes_proto::{
    autoscaling::{CrossVersionObjectReference, MetricIdentifier, MetricSpec},
    meta::Quantity,
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, utf8_percent_encode};
use serde_json::Value;

use super::replicas::{Sample, Samples};

/// The timeout of a scale or a metric: less than the usual period, so that an API that hangs costs an
/// autoscaler its decision and not its turn.
const PATIENCE: Duration = Duration::from_secs(10);
/// The custom metrics API.
const CUSTOM_GROUP: &str = "custom.metrics.k8s.io";
/// Its versions that can be read.
const CUSTOM_VERSIONS: [&str; 2] = ["v1beta1", "v1beta2"];
/// The window of a custom metric without one.
const DEFAULT_WINDOW: SignedDuration = SignedDuration::from_secs(60);

/// A target's scale, as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scale {
    /// `spec.replicas`.
    pub replicas: i32,
    /// `status.replicas`.
    pub present: i32,
    /// `status.selector`.
    pub selector: String,
    /// The target's uid.
    pub uid: Str,
    /// The target's version.
    pub resource_version: u64,
}

impl Scale {
    /// From JSON.
    pub fn read(json: &Value) -> Self {
        let number = |value: &Value| {
            value
                .as_i64()
                .and_then(|number| i32::try_from(number).ok())
                .unwrap_or(0)
        };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Self {
            replicas: number(&json["spec"]["replicas"]),
            present: number(&json["status"]["replicas"]),
            selector: text(&json["status"]["selector"]),
            uid: text(&json["metadata"]["uid"]).into(),
            resource_version: text(&json["metadata"]["resourceVersion"])
                .parse()
                .unwrap_or(0),
        }
    }
}

fn ask(path: String) -> Query {
    Query::Path {
        path,
        patience: PATIENCE,
    }
}

/// The group of an `apiVersion`.
pub fn group(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}

/// The resource of a kind: in the named version, or in its group's preferred one.
pub fn resource<'a>(
    catalogue: &'a Catalogue,
    api_version: &str,
    kind: &str,
) -> Result<&'a Entry, String> {
    let group = group(api_version);
    catalogue
        .by_kind(api_version, kind)
        .or_else(|| {
            let mut all = catalogue.all().iter();
            all.find(|entry| {
                entry.preferred && entry.resource.group == group && entry.resource.kind == kind
            })
        })
        .ok_or_else(|| format!("no matches for kind {kind:?} in group {group:?}"))
}

/// Asks for a target's scale.
pub fn scale(entry: &Entry, namespace: &str, name: &str) -> Query {
    ask(format!("{}/scale", entry.resource.path(namespace, name)))
}

/// The parameters of metric queries.
#[derive(Clone, Copy)]
pub struct Asking<'a> {
    /// The autoscaler's namespace.
    pub namespace: &'a str,
    /// The target's selector.
    pub pods: &'a str,
    /// What the API serves.
    pub catalogue: &'a Catalogue,
}

impl Asking<'_> {
    /// The query for a metric; `None` where it can't be computed whatever the answer is.
    pub fn metric(&self, spec: &MetricSpec) -> Option<Query> {
        match spec.r#type.as_str() {
            "Resource" | "ContainerResource" => Some(self.resource()),
            "Pods" => self.pods(spec.pods.as_ref()?.metric.as_ref()?).ok(),
            "Object" => {
                let object = spec.object.as_ref()?;
                let described = object.described_object.as_ref()?;
                self.object(described, object.metric.as_ref()?).ok()
            }
            "External" => self.external(spec.external.as_ref()?.metric.as_ref()?).ok(),
            _ => None,
        }
    }

    /// Resource usage of the pods.
    pub fn resource(&self) -> Query {
        ask(with_query(
            format!(
                "/apis/metrics.k8s.io/v1beta1/namespaces/{}/pods",
                self.namespace
            ),
            &[("labelSelector", self.pods)],
        ))
    }

    /// The path of the custom metrics API, in the first supported version of those that the server prefers.
    fn custom(&self) -> Result<String, String> {
        let served = self.catalogue.group_versions().iter();
        let known = served
            .filter_map(|name| name.split_once('/'))
            .find(|(group, version)| *group == CUSTOM_GROUP && CUSTOM_VERSIONS.contains(version));
        match known {
            Some((group, version)) => Ok(format!("/apis/{group}/{version}")),
            None if self.catalogue.has_group(CUSTOM_GROUP) => {
                Err("no known available metric versions found".to_owned())
            }
            None => Err(format!("no custom metrics API ({CUSTOM_GROUP}) registered")),
        }
    }

    /// A custom metric of the pods.
    pub fn pods(&self, metric: &MetricIdentifier) -> Result<Query, String> {
        Ok(ask(with_query(
            format!(
                "{}/namespaces/{}/pods/*/{}",
                self.custom()?,
                self.namespace,
                escaped(&metric.name)
            ),
            &[
                ("labelSelector", self.pods),
                ("metricLabelSelector", &selector(metric)?),
            ],
        )))
    }

    /// A custom metric of one object, or of the namespace.
    pub fn object(
        &self,
        of: &CrossVersionObjectReference,
        metric: &MetricIdentifier,
    ) -> Result<Query, String> {
        let place = if of.kind == "Namespace" && group(&of.api_version).is_empty() {
            "metrics".to_owned()
        } else {
            let entry = resource(self.catalogue, &of.api_version, &of.kind).map_err(|error| {
                let group = group(&of.api_version);
                let kind = if group.is_empty() {
                    of.kind.clone()
                } else {
                    format!("{}.{group}", of.kind)
                };
                format!("unable to map kind {kind} to resource: {error}")
            })?;
            format!("{}/{}", entry.resource.id(), escaped(&of.name))
        };
        Ok(ask(with_query(
            format!(
                "{}/namespaces/{}/{place}/{}",
                self.custom()?,
                self.namespace,
                escaped(&metric.name)
            ),
            &[("metricLabelSelector", &selector(metric)?)],
        )))
    }

    /// An external metric.
    pub fn external(&self, metric: &MetricIdentifier) -> Result<Query, String> {
        Ok(ask(with_query(
            format!(
                "/apis/external.metrics.k8s.io/v1beta1/namespaces/{}/{}",
                self.namespace,
                escaped(&metric.name)
            ),
            &[("labelSelector", &selector(metric)?)],
        )))
    }
}

/// A metric's selector as text: all values where it has none. A selector of nothing would select everything
/// when asked for by its text, so it differs from an empty one in messages alone.
fn selector(metric: &MetricIdentifier) -> Result<String, String> {
    let Some(selector) = &metric.selector else {
        return Ok(String::new());
    };
    let selector = Selector::compile(Some(selector)).map_err(|error| error.to_string())?;
    Ok(selector.text().unwrap_or_default())
}

fn with_query(mut path: String, pairs: &[(&str, &str)]) -> String {
    let mut sign = '?';
    for (name, value) in pairs.iter().filter(|(_, value)| !value.is_empty()) {
        path.push(sign);
        path.push_str(name);
        path.push('=');
        path.extend(escaped(value));
        sign = '&';
    }
    path
}

/// Characters to escape in a path's part or a query's value: all but RFC 3986's unreserved ones.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

fn escaped(text: &str) -> PercentEncode<'_> {
    utf8_percent_encode(text, RESERVED)
}

// ---- answers ----

/// The answer's JSON, or why there is none; `what` is client-go's description of the request.
pub fn json<'a>(answer: Option<&'a Answer>, what: &str) -> Result<&'a Value, String> {
    match answer {
        Some(Answer::Object(json)) => Ok(json),
        // The server's own words are passed on; otherwise client-go says what was asked for.
        Some(Answer::NotFound(why)) if why != NOT_FOUND => Err(why.clone()),
        Some(Answer::NotFound(_) | Answer::Missing) => Err(format!("{NOT_FOUND} ({what})")),
        Some(Answer::Failed(why)) => Err(why.clone()),
        None => Err(format!("not asked for ({what})")),
    }
}

fn items(json: &Value) -> &[Value] {
    json["items"].as_array().map_or(&[], Vec::as_slice)
}

fn milli(value: &Value) -> Option<i64> {
    match value {
        Value::String(text) => Quantity::text(text).milli(),
        Value::Number(number) => Quantity::text(&number.to_string()).milli(),
        _ => None,
    }
}

fn instant(value: &Value) -> Timestamp {
    value
        .as_str()
        .and_then(|text| text.parse().ok())
        .unwrap_or(Timestamp::UNIX_EPOCH)
}

/// A duration as Go writes it: `30s`, `1m0.5s`.
fn window(text: &str) -> Option<SignedDuration> {
    let mut total = 0.0;
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(end);
        let end = after
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        let seconds = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        total += number.parse::<f64>().ok()? * seconds;
        rest = after;
    }
    SignedDuration::try_from_secs_f64(total).ok()
}

const RESOURCE: &str = "unable to fetch metrics from resource metrics API: ";
const CUSTOM: &str = "unable to fetch metrics from custom metrics API: ";
const EXTERNAL: &str = "unable to fetch metrics from external metrics API: ";

/// The usage of a resource by pod: the sum of its containers, or that of one of them. A pod is missing
/// where a container has no value.
///
/// # Errors
/// Where there is no value; upstream's words.
pub fn usage(
    seen: &Snapshot<'_>,
    query: &Query,
    resource: &str,
    container: &str,
) -> Result<Samples, String> {
    let json = json(seen.answer(query), "get pods.metrics.k8s.io")
        .map_err(|error| format!("{RESOURCE}{error}"))?;
    if items(json).is_empty() {
        return Err("no metrics returned from resource metrics API".to_owned());
    }
    let mut samples = Samples::new();
    for item in items(json) {
        let Some(name) = item["metadata"]["name"].as_str() else {
            continue;
        };
        let containers = item["containers"].as_array().map_or(&[][..], Vec::as_slice);
        let of = |one: &Value| milli(&one["usage"][resource]);
        let value = if container.is_empty() {
            let parts: Option<Vec<i64>> = containers.iter().map(of).collect();
            parts.filter(|parts| !parts.is_empty()).map(|parts| {
                parts
                    .iter()
                    .fold(0, |sum: i64, part| sum.saturating_add(*part))
            })
        } else {
            containers
                .iter()
                .find(|one| one["name"] == *container)
                .and_then(of)
        };
        let window = item["window"].as_str().and_then(window);
        if let Some(value) = value {
            let sample = Sample {
                value,
                at: instant(&item["timestamp"]),
                window: window.unwrap_or_default(),
            };
            samples.insert(name.to_owned(), sample);
        }
    }
    Ok(samples)
}

/// A custom metric by pod.
///
/// # Errors
/// Where there is no value; upstream's words.
pub fn custom(
    seen: &Snapshot<'_>,
    query: Result<Query, String>,
    metric: &str,
) -> Result<Samples, String> {
    let what = format!("get pods.custom.metrics.k8s.io * {metric}");
    let json = query
        .and_then(|query| json(seen.answer(&query), &what).cloned())
        .map_err(|error| format!("{CUSTOM}{error}"))?;
    if items(&json).is_empty() {
        return Err("no metrics returned from custom metrics API".to_owned());
    }
    let mut samples = Samples::new();
    for item in items(&json) {
        let (Some(name), Some(value)) = (
            item["describedObject"]["name"].as_str(),
            milli(&item["value"]),
        ) else {
            continue;
        };
        let sample = Sample {
            value,
            at: instant(&item["timestamp"]),
            window: item["windowSeconds"]
                .as_i64()
                .map_or(DEFAULT_WINDOW, SignedDuration::from_secs),
        };
        samples.insert(name.to_owned(), sample);
    }
    Ok(samples)
}

/// A custom metric of one object.
///
/// # Errors
/// Where there is no value; upstream's words.
pub fn object(
    seen: &Snapshot<'_>,
    query: Result<Query, String>,
    of: &CrossVersionObjectReference,
    metric: &str,
) -> Result<i64, String> {
    let what = format!("get {}.custom.metrics.k8s.io {} {metric}", of.kind, of.name);
    query
        .and_then(|query| {
            let json = json(seen.answer(&query), &what)?;
            let [item] = items(json) else {
                return Err(format!(
                    "the custom metrics API server returned {} results when we asked for exactly one",
                    items(json).len()
                ));
            };
            milli(&item["value"]).ok_or_else(|| "the value is no quantity".to_owned())
        })
        .map_err(|error| format!("{CUSTOM}{error}"))
}

/// The values of an external metric.
///
/// # Errors
/// Where there is no value; upstream's words.
pub fn external(
    seen: &Snapshot<'_>,
    query: Result<Query, String>,
    metric: &str,
) -> Result<Vec<i64>, String> {
    let what = format!("get {metric}.external.metrics.k8s.io");
    let json = query
        .and_then(|query| json(seen.answer(&query), &what).cloned())
        .map_err(|error| format!("{EXTERNAL}{error}"))?;
    if items(&json).is_empty() {
        return Err("no metrics returned from external metrics API".to_owned());
    }
    Ok(items(&json)
        .iter()
        .filter_map(|item| milli(&item["value"]))
        .collect())
}

/// A metric with its selector, as events name it.
pub fn named(metric: &MetricIdentifier) -> String {
    format!(
        "external metric {}({})",
        metric.name,
        in_messages(metric.selector.as_ref())
    )
}
