//! Schemas of kinds, extracted from the API server's OpenAPI v3 documents.
//!
//! A document describes a whole group version, with prose, and may be megabytes. Kept is what a type
//! checker reads, of one kind and of the schemas it refers to.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::Answer;

/// Where the documents are listed.
pub const INDEX: &str = "/openapi/v3";
/// The prefix of a schema's name in a reference.
const REFERENCE: &str = "#/components/schemas/";

/// The path of a group version's document.
pub fn path(group: &str, version: &str) -> String {
    format!("{INDEX}/{}", entry(group, version))
}

/// The name of a group version's document in the index.
fn entry(group: &str, version: &str) -> String {
    match group {
        "" => format!("api/{version}"),
        _ => format!("apis/{group}/{version}"),
    }
}

/// The path of a group version's document, by the index, with a query that changes with its content. `None`
/// where it has none, or leads elsewhere.
pub fn located(index: &Value, group: &str, version: &str) -> Option<String> {
    let entry = &index["paths"][entry(group, version)];
    let path = entry["serverRelativeURL"].as_str()?;
    path.starts_with(&format!("{INDEX}/"))
        .then(|| path.to_owned())
}

/// One schema.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Schema {
    /// The name of the schema that this one refers to.
    #[serde(rename = "$ref", skip_serializing_if = "String::is_empty")]
    reference: String,
    /// A wrapping of a reference.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    all_of: Vec<Self>,
    /// Its types; one, as a rule.
    #[serde(
        rename = "type",
        deserialize_with = "one_or_more",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub types: Vec<String>,
    /// The format of a text or number.
    #[serde(
        deserialize_with = "or_default",
        skip_serializing_if = "String::is_empty"
    )]
    pub format: String,
    /// The fields of an object.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub properties: BTreeMap<String, Self>,
    /// The values of a map.
    #[serde(
        deserialize_with = "schema_or_other",
        skip_serializing_if = "Option::is_none"
    )]
    pub additional_properties: Option<Box<Self>>,
    /// The elements of a list.
    #[serde(
        deserialize_with = "schema_or_other",
        skip_serializing_if = "Option::is_none"
    )]
    pub items: Option<Box<Self>>,
    /// Whether it is a number or a text.
    #[serde(
        rename = "x-kubernetes-int-or-string",
        deserialize_with = "or_default",
        skip_serializing_if = "crate::openapi::is_false"
    )]
    pub int_or_string: bool,
    /// Whether it is an object of the API.
    #[serde(
        rename = "x-kubernetes-embedded-resource",
        deserialize_with = "or_default",
        skip_serializing_if = "crate::openapi::is_false"
    )]
    pub embedded_resource: bool,
    /// The kinds that it is the schema of.
    #[serde(
        rename = "x-kubernetes-group-version-kind",
        deserialize_with = "or_default",
        skip_serializing
    )]
    kinds: Vec<Kind>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Kind {
    group: String,
    version: String,
    kind: String,
}

#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_false(flag: &bool) -> bool {
    !*flag
}

/// A value of the wanted type, or none: one malformed value must not discard a whole document.
fn or_default<'de, D: Deserializer<'de>, T: Default + serde::de::DeserializeOwned>(
    deserializer: D,
) -> Result<T, D::Error> {
    let value = Value::deserialize(deserializer)?;
    Ok(serde_json::from_value(value).unwrap_or_default())
}

fn one_or_more<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    Ok(match Value::deserialize(deserializer)? {
        Value::String(one) => vec![one],
        Value::Array(all) => all
            .into_iter()
            .filter_map(|one| one.as_str().map(ToOwned::to_owned))
            .collect(),
        _ => Vec::new(),
    })
}

/// A schema; `None` for `true` and `false`, and for a list of schemas.
fn schema_or_other<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Box<Schema>>, D::Error> {
    let value = Value::deserialize(deserializer)?;
    Ok(match value {
        Value::Object(_) => serde_json::from_value(value).ok(),
        _ => None,
    })
}

impl Schema {
    /// The name of the schema that this one refers to, also where the reference is wrapped to add prose.
    pub fn reference(&self) -> Option<&str> {
        if !self.reference.is_empty() {
            return Some(self.reference.trim_start_matches(REFERENCE));
        }
        self.all_of.iter().find_map(Self::reference)
    }

    /// The schemas within it.
    fn parts(&self) -> impl Iterator<Item = &Self> {
        let inner = [&self.additional_properties, &self.items];
        let inner = inner.into_iter().flatten().map(|schema| &**schema);
        self.properties.values().chain(inner)
    }

    fn references<'a>(&'a self, into: &mut Vec<&'a str>) {
        into.extend(self.reference());
        for part in self.parts() {
            part.references(into);
        }
    }
}

/// The schema of a kind and those that it refers to.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Schemas {
    root: String,
    schemas: BTreeMap<String, Schema>,
}

impl Schemas {
    /// Decodes the answer to a [`crate::Query::Schema`].
    ///
    /// # Errors
    /// Where it is none.
    pub fn read(answer: &Value) -> Result<Self, serde_json::Error> {
        Self::deserialize(answer)
    }

    /// The name of the kind's schema.
    pub fn root(&self) -> &str {
        &self.root
    }

    /// A schema by its name.
    pub fn get(&self, name: &str) -> Option<&Schema> {
        self.schemas.get(name)
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Document {
    components: Components,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Components {
    schemas: BTreeMap<String, Schema>,
}

/// Extracts the schemas of a kind from a document, as an answer: [`Answer::Missing`] where it has none, or
/// is no document.
pub fn answer(document: Value, group: &str, version: &str, kind: &str) -> Answer {
    let Ok(Document { components }) = serde_json::from_value(document) else {
        return Answer::Missing;
    };
    let mut schemas = components.schemas;
    let wanted =
        |known: &Kind| known.group == group && known.version == version && known.kind == kind;
    let Some(root) = schemas
        .iter()
        .find(|(_, schema)| schema.kinds.iter().any(wanted))
        .map(|(name, _)| name.clone())
    else {
        return Answer::Missing;
    };
    let reached = reached(&schemas, &root);
    schemas.retain(|name, _| reached.contains(name));
    match serde_json::to_value(Schemas { root, schemas }) {
        Ok(value) => Answer::Object(std::sync::Arc::new(value)),
        Err(error) => Answer::Failed(error.to_string()),
    }
}

/// The names of all schemas that one refers to, itself among them.
fn reached(schemas: &BTreeMap<String, Schema>, root: &str) -> BTreeSet<String> {
    let mut reached = BTreeSet::from([root.to_owned()]);
    let mut open = vec![root];
    while let Some(name) = open.pop() {
        let mut names = Vec::new();
        if let Some(schema) = schemas.get(name) {
            schema.references(&mut names);
        }
        for name in names {
            if reached.insert(name.to_owned()) {
                open.push(name);
            }
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn document() -> Value {
        json!({ "components": { "schemas": {
            "shop.Cart": {
                "description": "prose",
                "type": "object",
                "properties": {
                    "metadata": { "default": {}, "allOf": [{ "$ref": "#/components/schemas/Meta" }] },
                    "items": { "type": "array", "items": { "$ref": "#/components/schemas/Item" } },
                    "port": { "x-kubernetes-int-or-string": true },
                    "odd": { "type": ["string", "null"], "format": 7, "additionalProperties": true },
                },
                "x-kubernetes-group-version-kind": [{ "group": "shop", "version": "v1", "kind": "Cart" }],
            },
            "Item": { "type": "object", "additionalProperties": { "$ref": "#/components/schemas/Item" } },
            "Meta": { "type": "object" },
            "Other": { "type": "object" },
        } } })
    }

    fn schemas(kind: &str) -> Option<Schemas> {
        match answer(document(), "shop", "v1", kind) {
            Answer::Object(value) => Schemas::read(&value).ok(),
            _ => None,
        }
    }

    #[test]
    fn of_a_document_one_kind_is_kept_with_all_that_it_refers_to() {
        let found = schemas("Cart").unwrap_or_default();
        assert_eq!(found.root(), "shop.Cart");
        let names: Vec<&str> = found.schemas.keys().map(String::as_str).collect();
        assert_eq!(names, ["Item", "Meta", "shop.Cart"]);
        let cart = found.get("shop.Cart").cloned().unwrap_or_default();
        assert_eq!(cart.properties["metadata"].reference(), Some("Meta"));
        assert!(cart.properties["port"].int_or_string);
        assert_eq!(cart.properties["odd"].types, ["string", "null"]);
        assert_eq!(cart.properties["odd"].additional_properties, None);
    }

    #[test]
    fn a_kind_without_schema_and_a_document_that_is_none_are_missing() {
        assert_eq!(schemas("Basket"), None);
        assert_eq!(answer(json!(["no"]), "shop", "v1", "Cart"), Answer::Missing);
        let broken = json!({ "components": { "schemas": { "A": "no" } } });
        assert_eq!(answer(broken, "shop", "v1", "Cart"), Answer::Missing);
    }

    #[test]
    fn a_document_is_read_where_the_index_locates_it_and_nowhere_else() {
        let index = json!({ "paths": {
            "apis/shop/v1": { "serverRelativeURL": "/openapi/v3/apis/shop/v1?hash=AB" },
            "api/v1": { "serverRelativeURL": "/api/v1/secrets" },
        } });
        let found = located(&index, "shop", "v1");
        assert_eq!(found.as_deref(), Some("/openapi/v3/apis/shop/v1?hash=AB"));
        assert_eq!(located(&index, "", "v1"), None);
        assert_eq!(located(&index, "shop", "v2"), None);
    }
}
