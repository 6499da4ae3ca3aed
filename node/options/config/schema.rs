//! The JSON schema of the configuration file, made from the flags' table.

use serde_json::{Map, Value as Json, json};

use crate::args::{Kind, Leaf, Shape, Spec, encode};

/// Durations as Go reads them.
const DURATION: &str = r"^[-+]?(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$";
/// Texts without control characters.
const TEXT: &str = r"^[^\u0000-\u001f\u007f-\u009f]*$";
/// Quantities of bytes.
const QUANTITY: &str = r"^([0-9]+(\.[0-9]*)?|\.[0-9]+)([kKMGTPE]|[KMGTPE]i)?$";

/// The schema of a whole document. null means a field that is not there, as in Go.
pub fn schema(shape: &Shape<'_>) -> Json {
    let mut schema = of(shape, true);
    if let Json::Object(map) = &mut schema {
        let head = json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": "KubeControllerManagerConfiguration",
            "description": "The file of --config. Fields that begin with a capital are those that \
                kube-controller-manager prints at /configz; all others are Manifold's. A flag on the command line goes \
                before the file.",
            "required": ["apiVersion", "kind"],
        });
        if let Json::Object(head) = head {
            map.extend(head);
        }
    }
    schema
}

fn of(shape: &Shape<'_>, is_root: bool) -> Json {
    match shape {
        Shape::Section(fields) => {
            let properties: Map<String, Json> = fields
                .iter()
                .map(|(name, field)| ((*name).to_owned(), of(field, false)))
                .collect();
            let kind = if is_root {
                json!("object")
            } else {
                json!(["object", "null"])
            };
            json!({
                "type": kind,
                "properties": properties,
                "additionalProperties": false,
            })
        }
        Shape::Leaf("apiVersion" | "kind", Leaf::Fixed(value)) => json!({ "const": value }),
        Shape::Leaf(_, Leaf::Fixed(value)) => fixed(value),
        Shape::Leaf(_, Leaf::Flag(spec)) => {
            let mut schema = of_kind(spec.kind);
            describe(&mut schema, spec);
            if let Json::Object(map) = &mut schema {
                map.insert("default".to_owned(), encode(spec.kind, &spec.default));
            }
            schema
        }
        Shape::Leaf(_, Leaf::First(spec) | Leaf::Second(spec)) => {
            let mut schema = json!({
                "type": ["string", "null"],
                "pattern": r"^[^,\u0000-\u001f\u007f-\u009f]*$",
            });
            describe(&mut schema, spec);
            schema
        }
    }
}

/// What no flag sets may be repeated, as a document of `/configz` does.
fn fixed(value: &Json) -> Json {
    match value {
        Json::Object(map) => {
            let properties: Map<String, Json> = map
                .iter()
                .map(|(name, value)| (name.clone(), fixed(value)))
                .collect();
            json!({
                "type": ["object", "null"],
                "properties": properties,
                "additionalProperties": false,
                "description": "Can't be set.",
            })
        }
        Json::Null => json!({ "const": null }),
        // In any order, as it is read.
        Json::Array(items) => json!({
            "type": ["array", "null"],
            "items": { "enum": items },
            "minItems": items.len(),
            "maxItems": items.len(),
            "uniqueItems": true,
            "description": "Can't be set.",
        }),
        value => json!({ "enum": [value, null], "description": "Can't be set." }),
    }
}

fn describe(schema: &mut Json, spec: &Spec) {
    let Json::Object(map) = schema else {
        return;
    };
    let takes_effect = match spec.live {
        true => "A change takes effect while the process runs.",
        false => "A change needs a restart.",
    };
    let description = format!("{} {takes_effect} As --{}.", spec.help, spec.name);
    map.insert("description".to_owned(), description.into());
    map.insert("x-manifold-flag".to_owned(), spec.name.into());
    map.insert("x-manifold-restart".to_owned(), (!spec.live).into());
}

fn of_kind(kind: Kind) -> Json {
    match kind {
        Kind::Bool => json!({ "type": ["boolean", "null"] }),
        Kind::Int => json!({ "type": ["integer", "null"] }),
        Kind::Int32 => {
            json!({ "type": ["integer", "null"], "minimum": i32::MIN, "maximum": i32::MAX })
        }
        Kind::Level => json!({ "type": ["integer", "null"], "minimum": 0, "maximum": i32::MAX }),
        Kind::Float | Kind::Float32 => json!({ "type": ["number", "null"] }),
        Kind::Duration => json!({ "type": ["string", "null"], "pattern": DURATION }),
        Kind::Text | Kind::Version => json!({ "type": ["string", "null"], "pattern": TEXT }),
        Kind::Ip => json!({
            "type": ["string", "null"],
            "anyOf": [{ "format": "ipv4" }, { "format": "ipv6" }],
        }),
        Kind::Quantity => {
            json!({ "type": ["string", "integer", "null"], "pattern": QUANTITY, "minimum": 0 })
        }
        Kind::List => json!({ "type": ["array", "null"], "items": text() }),
        Kind::Int32List => json!({
            "type": ["array", "null"],
            "items": { "type": "integer", "minimum": i32::MIN, "maximum": i32::MAX },
        }),
        Kind::Map => json!({ "type": ["object", "null"], "additionalProperties": text() }),
        Kind::Gates => {
            let gates: Map<String, Json> = crate::args::gate_states(&Default::default())
                .map(|(name, stage, on)| (name.to_owned(), gate(stage, on)))
                .collect();
            json!({ "type": ["object", "null"], "properties": gates, "additionalProperties": false })
        }
        Kind::NamedCert => json!({
            "type": ["array", "null"],
            "items": {
                "type": "object",
                "properties": {
                    "certFile": { "type": "string", "pattern": r"^[^,:\u0000-\u001f\u007f-\u009f]+$" },
                    "keyFile": { "type": "string", "pattern": r"^[^,:\u0000-\u001f\u007f-\u009f]+$" },
                    "names": {
                        "type": ["array", "null"],
                        "items": { "type": "string", "pattern": r"^[^,\u0000-\u001f\u007f-\u009f]*$" },
                    },
                },
                "required": ["certFile", "keyFile"],
                "additionalProperties": false,
            },
        }),
        Kind::Pattern => json!({
            "type": ["array", "null"],
            "items": {
                "type": "object",
                "properties": {
                    "filePattern": { "type": "string", "pattern": r"^[^,=\u0000-\u001f\u007f-\u009f]+$" },
                    "verbosity": { "type": ["integer", "null"], "minimum": 0, "maximum": i32::MAX },
                },
                "required": ["filePattern"],
                "additionalProperties": false,
            },
        }),
    }
}

fn gate(stage: &str, on: bool) -> Json {
    let stage = if stage.is_empty() { "GA" } else { stage };
    json!({ "type": "boolean", "default": on, "description": stage })
}

fn text() -> Json {
    json!({ "type": "string", "pattern": TEXT })
}
