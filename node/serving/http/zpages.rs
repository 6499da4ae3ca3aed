//! `/flagz` and `/statusz`: text for people, and a structured answer for who asks for one by `Accept`.
//!
//! The rules are upstream's (`apiserver/pkg/server/flagz`, `statusz`, `endpoints/handlers/negotiation`): JSON
//! and YAML only together with group, version and kind, as in
//! `application/json;g=config.k8s.io;v=v1beta1;as=Flagz`; text only without them; no header or `*/*` is text;
//! anything else is 406 with a Status.

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;

use super::{Nothing, Status};

const GROUP: &str = "config.k8s.io";
const TEXT: &str = "text/plain; charset=utf-8";
/// In upstream's order, which is that of preference where the client has none.
const ACCEPTED: &str = "application/json, application/yaml, text/plain";

/// How upstream's component is called: readers of these pages search for it.
const COMPONENT: &str = "kube-controller-manager";

const NOT_FOR_MACHINES: &str = "Warning: This endpoint is not meant to be machine parseable, has no formatting \
                                compatibility guarantees and is for debugging purposes only.\n";

/// One of the two pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Page {
    Flagz,
    Statusz,
}

impl Page {
    fn kind(self) -> &'static str {
        match self {
            Self::Flagz => "Flagz",
            Self::Statusz => "Statusz",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Flagz => "flagz",
            Self::Statusz => "statusz",
        }
    }

    /// The gate that switches it, on by default.
    pub(super) fn gate(self) -> &'static str {
        match self {
            Self::Flagz => "ComponentFlagz",
            Self::Statusz => "ComponentStatusz",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Json,
    Yaml,
}

impl Format {
    fn media_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Yaml => "application/yaml",
        }
    }
}

/// What a client is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    Text,
    Structured {
        format: Format,
        version: &'static str,
        pretty: bool,
    },
}

/// A clause of an `Accept` header.
struct Clause<'a> {
    kind: &'a str,
    sub: &'a str,
    quality: f64,
    params: Vec<(&'a str, &'a str)>,
}

impl Clause<'_> {
    fn matches(&self, kind: &str, sub: &str) -> bool {
        (self.kind == kind && (self.sub == sub || self.sub == "*"))
            || (self.kind == "*" && self.sub == "*")
    }

    fn param(&self, name: &str) -> Option<&str> {
        let mut params = self.params.iter().rev();
        params
            .find(|(known, _)| *known == name)
            .map(|(_, value)| *value)
    }
}

/// Clauses, the most wanted first; broken ones are left out.
fn clauses(header: &str) -> Vec<Clause<'_>> {
    let clause = |part| -> Option<Clause<'_>> {
        let mut parts = str::split(part, ';');
        let (kind, sub) = match parts.next()?.split_once('/') {
            Some((kind, sub)) if !sub.contains('/') && !sub.is_empty() => (kind.trim(), sub.trim()),
            None if part.trim() == "*" => ("*", "*"),
            _ => return None,
        };
        let params: Vec<(&str, &str)> = parts
            .filter_map(|param| param.split_once('='))
            .filter(|(_, value)| !value.is_empty() && !value.contains('='))
            .map(|(name, value)| (name.trim(), value.trim()))
            .collect();
        let quality = params.iter().rev().find(|(name, _)| *name == "q");
        Some(Clause {
            kind,
            sub,
            quality: quality.map_or(1.0, |(_, value)| value.parse().unwrap_or_default()),
            params,
        })
    };
    let mut clauses: Vec<Clause<'_>> = header.split(',').filter_map(clause).collect();
    clauses.sort_by(|left, right| {
        let general = |clause: &Clause<'_>| (clause.kind == "*", clause.sub == "*");
        right
            .quality
            .total_cmp(&left.quality)
            .then_with(|| general(left).cmp(&general(right)))
    });
    clauses
}

/// What is wanted of a page; `None`: nothing that is offered.
fn negotiate(accept: &str, page: Page) -> Option<Wanted> {
    if accept.trim().is_empty() {
        return Some(Wanted::Text);
    }
    clauses(accept).iter().find_map(|clause| {
        let target = ["g", "v", "as"].map(|name| clause.param(name));
        // Streams and other versions of the server's group are offered of nothing here.
        if ["stream", "sv"]
            .iter()
            .any(|name| clause.param(name).is_some())
        {
            return None;
        }
        let version = match target {
            [Some(GROUP), Some("v1beta1"), Some(kind)] if kind == page.kind() => Some("v1beta1"),
            [Some(GROUP), Some("v1alpha1"), Some(kind)] if kind == page.kind() => Some("v1alpha1"),
            _ => None,
        };
        let structured = |format| {
            version.map(|version| Wanted::Structured {
                format,
                version,
                pretty: clause.param("pretty") == Some("1"),
            })
        };
        let json = || {
            clause
                .matches("application", "json")
                .then(|| structured(Format::Json))
        };
        let yaml = || {
            clause
                .matches("application", "yaml")
                .then(|| structured(Format::Yaml))
        };
        let text = || {
            let plain = clause.matches("text", "plain") && target == [None; 3];
            plain.then_some(Wanted::Text)
        };
        json().flatten().or_else(|| yaml().flatten()).or_else(text)
    })
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Object<'a, T> {
    kind: &'a str,
    api_version: String,
    metadata: Metadata<'a>,
    #[serde(flatten)]
    content: &'a T,
}

#[derive(Serialize)]
struct Metadata<'a> {
    name: &'a str,
}

/// Answers with a page. `text` comes after the page's head; `pretty`: the client is a person's.
pub(super) fn answer<T: Serialize>(
    page: Page,
    accept: Option<&HeaderValue>,
    pretty: bool,
    text: &str,
    content: &T,
) -> Response {
    // What is no text is no media type either.
    let accept = accept.map_or("", |accept| accept.to_str().unwrap_or("?"));
    let (format, version, pretty) = match negotiate(accept, page) {
        None => return not_acceptable(accept, pretty),
        Some(Wanted::Text) => {
            let head = format!("\n{COMPONENT} {}\n{NOT_FOR_MACHINES}", page.name());
            return ([(header::CONTENT_TYPE, TEXT)], head + text).into_response();
        }
        Some(Wanted::Structured {
            format,
            version,
            pretty: asked,
        }) => (format, version, pretty || asked),
    };
    let object = Object {
        kind: page.kind(),
        api_version: format!("{GROUP}/{version}"),
        metadata: Metadata { name: COMPONENT },
        content,
    };
    let media_type = format!(
        "{};g={GROUP};v={version};as={}",
        format.media_type(),
        page.kind()
    );
    let mut response = (
        [(header::CONTENT_TYPE, media_type)],
        written(format, pretty, &object),
    )
        .into_response();
    if version == "v1alpha1" {
        let warning = format!(
            "299 - \"This version of the {} endpoint is deprecated. Please use a newer version.\"",
            page.name()
        );
        if let Ok(warning) = HeaderValue::from_str(&warning) {
            response.headers_mut().insert(header::WARNING, warning);
        }
    }
    response
}

fn written<T: Serialize>(format: Format, pretty: bool, object: &T) -> String {
    let text = match (format, pretty) {
        (Format::Json, true) => serde_json::to_string_pretty(object).ok(),
        (Format::Json, false) => serde_json::to_string(object).ok().map(|text| text + "\n"),
        // By way of JSON's values, so that the fields are sorted as in Go.
        (Format::Yaml, _) => serde_json::to_value(object)
            .ok()
            .and_then(|value| serde_yaml::to_string(&value).ok()),
    };
    text.unwrap_or_default()
}

/// 406, as JSON unless YAML is what the client takes.
fn not_acceptable(accept: &str, pretty: bool) -> Response {
    let format = clauses(accept).iter().find_map(|clause| {
        let plain = ["g", "v", "as"]
            .iter()
            .all(|name| clause.param(name).is_none());
        match plain {
            true if clause.matches("application", "json") => Some(Format::Json),
            true if clause.matches("application", "yaml") => Some(Format::Yaml),
            _ => None,
        }
    });
    let status = Status {
        kind: "Status",
        api_version: "v1",
        metadata: Nothing {},
        status: "Failure",
        message: &format!("only the following media types are accepted: {ACCEPTED}"),
        reason: "NotAcceptable",
        details: None,
        code: StatusCode::NOT_ACCEPTABLE.as_u16(),
    };
    // Where nothing fits, upstream writes JSON for people.
    let text = match format {
        Some(format) => written(format, pretty, &status),
        None => written(Format::Json, true, &status),
    };
    let media_type = format.unwrap_or(Format::Json).media_type();
    let kind = [(header::CONTENT_TYPE, media_type)];
    (StatusCode::NOT_ACCEPTABLE, kind, text).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_accepts_decides_as_upstream() {
        let json = |version| {
            Some(Wanted::Structured {
                format: Format::Json,
                version,
                pretty: false,
            })
        };
        let text = Some(Wanted::Text);
        for (accept, wanted) in [
            ("", text),
            ("  ", text),
            ("*/*", text),
            ("*", text),
            ("text/*", text),
            ("text/plain", text),
            ("text/plain;charset=utf-8", text),
            ("text/html, */*;q=0.1", text),
            (
                "application/json;v=v1beta1;g=config.k8s.io;as=Flagz",
                json("v1beta1"),
            ),
            (
                "application/json; v=v1alpha1; g=config.k8s.io; as=Flagz",
                json("v1alpha1"),
            ),
            ("*/*;v=v1beta1;g=config.k8s.io;as=Flagz", json("v1beta1")),
            (
                "text/plain;q=0.5,application/json;v=v1beta1;g=config.k8s.io;as=Flagz",
                json("v1beta1"),
            ),
            (
                "*/*,application/json;v=v1beta1;g=config.k8s.io;as=Flagz",
                json("v1beta1"),
            ),
            ("application/json;v=foo;g=config.k8s.io;as=Flagz,*/*", text),
            (
                "application/yaml;v=v1beta1;g=config.k8s.io;as=Flagz;pretty=1",
                Some(Wanted::Structured {
                    format: Format::Yaml,
                    version: "v1beta1",
                    pretty: true,
                }),
            ),
            (
                "application/json;v=v1beta1;g=config.k8s.io;as=Statusz",
                None,
            ),
            ("application/json;v=v1beta1;g=config.k8s.io", None),
            ("application/json", None),
            ("application/yaml", None),
            ("application/xml", None),
            ("application/cbor;v=v1beta1;g=config.k8s.io;as=Flagz", None),
            (
                "application/vnd.kubernetes.protobuf;v=v1beta1;g=config.k8s.io;as=Flagz",
                None,
            ),
            (
                "application/json;v=v1beta1;g=config.k8s.io;as=Flagz;stream=watch",
                None,
            ),
            ("text/plain;as=Flagz", None),
        ] {
            assert_eq!(negotiate(accept, Page::Flagz), wanted, "{accept:?}");
        }
    }
}
