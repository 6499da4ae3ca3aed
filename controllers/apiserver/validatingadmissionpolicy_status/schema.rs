//! The type of a kind's objects, from its schema.
//!
//! As the API server declares types for CEL: an object's fields are those of its schema, a field without a
//! type is left out, a field that is an integer or a string is dynamic, and names that are not identifiers
//! are escaped.

use std::collections::BTreeSet;

use controllers_kit::openapi::{Schema, Schemas};

use super::cel::{Environment, Fields, Type};

/// The most schemas of one kind with every reference followed. A reference that contains itself ends there,
/// but two that contain each other many times would grow without end.
const NODES_MAX: usize = 100_000;
/// Schemas within each other.
const DEPTH_MAX: usize = 120;

/// Reserved words, which CEL does not allow as field names.
const RESERVED: [&str; 21] = [
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// Why a schema has no type: it exceeds the size bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge;

/// The type of a kind's objects, whose object types are declared in an environment under `name` and paths
/// below it; `None` where the schema does not determine its type.
///
/// # Errors
/// Where it is too large.
pub fn declare(
    schemas: &Schemas,
    name: &str,
    environment: &mut Environment,
) -> Result<Option<Type>, TooLarge> {
    let Some(root) = schemas.get(schemas.root()) else {
        return Ok(None);
    };
    let mut declaring = Declaring {
        schemas,
        environment,
        followed: BTreeSet::from([schemas.root()]),
        nodes: 0,
    };
    declaring.resolved(root, name, true, 0)
}

struct Declaring<'a> {
    schemas: &'a Schemas,
    environment: &'a mut Environment,
    /// References that are being followed.
    followed: BTreeSet<&'a str>,
    nodes: usize,
}

impl<'a> Declaring<'a> {
    /// The type of a schema, or of the one that it refers to.
    fn of(
        &mut self,
        schema: &'a Schema,
        name: &str,
        depth: usize,
    ) -> Result<Option<Type>, TooLarge> {
        let Some(reference) = schema.reference() else {
            return self.resolved(schema, name, schema.embedded_resource, depth);
        };
        // A schema that contains itself is an opaque object.
        if !self.followed.insert(reference) {
            return Ok(Some(self.object(name, Fields::new())));
        }
        let found = match self.schemas.get(reference) {
            Some(schema) => self.resolved(schema, name, schema.embedded_resource, depth),
            None => Err(TooLarge),
        };
        self.followed.remove(reference);
        found
    }

    fn object(&mut self, name: &str, fields: Fields) -> Type {
        self.environment.structs.insert(name.to_owned(), fields);
        Type::object(name)
    }

    fn resolved(
        &mut self,
        schema: &'a Schema,
        name: &str,
        is_root: bool,
        depth: usize,
    ) -> Result<Option<Type>, TooLarge> {
        self.nodes += 1;
        if self.nodes > NODES_MAX || depth > DEPTH_MAX {
            return Err(TooLarge);
        }
        if schema.int_or_string || schema.format == "int-or-string" {
            return Ok(Some(Type::Dyn));
        }
        Ok(Some(match schema.types.first().map(String::as_str) {
            Some("array") => {
                let Some(items) = &schema.items else {
                    return Ok(None);
                };
                let element = self.of(items, &format!("{name}.@idx"), depth + 1)?;
                return Ok(element.map(Type::list));
            }
            Some("object") => {
                // A root has fields of its own, whatever its schema declares.
                if let Some(values) = &schema.additional_properties {
                    let value = self.of(values, &format!("{name}.@elem"), depth + 1)?;
                    return Ok(value.map(|value| Type::map(Type::String, value)));
                }
                let mut fields = Fields::new();
                for (field, schema) in &schema.properties {
                    let Some(field) = escaped(field) else {
                        continue;
                    };
                    let path = format!("{name}.{field}");
                    if let Some(of) = self.of(schema, &path, depth + 1)? {
                        fields.insert(field, of);
                    }
                }
                if is_root && !self.has_metadata(schema) {
                    self.add_metadata(name, &mut fields);
                }
                self.object(name, fields)
            }
            Some("string") => match schema.format.as_str() {
                "byte" => Type::Bytes,
                "duration" => Type::Duration,
                "date" | "date-time" => Type::Timestamp,
                _ => Type::String,
            },
            Some("boolean") => Type::Bool,
            Some("number") => Type::Double,
            Some("integer") => Type::Int,
            _ => return Ok(None),
        }))
    }

    fn has_type(&self, schema: &Schema, wanted: &str) -> bool {
        let schema = match schema.reference() {
            Some(name) => self.schemas.get(name),
            None => Some(schema),
        };
        schema.is_some_and(|schema| schema.types.iter().any(|known| known == wanted))
    }

    /// Whether the schema of an API object declares the fields that every such object has.
    fn has_metadata(&self, schema: &Schema) -> bool {
        let is = |of: &Schema, field: &str, wanted: &str| {
            let field = of.properties.get(field);
            field.is_some_and(|field| self.has_type(field, wanted))
        };
        let metadata = schema.properties.get("metadata");
        let metadata = metadata.and_then(|metadata| match metadata.reference() {
            Some(name) => self.schemas.get(name),
            None => Some(metadata),
        });
        is(schema, "kind", "string")
            && is(schema, "apiVersion", "string")
            && metadata.is_some_and(|metadata| {
                metadata.types.iter().any(|known| known == "object")
                    && is(metadata, "name", "string")
                    && is(metadata, "generateName", "string")
            })
    }

    /// The fields that every object of the API has.
    fn add_metadata(&mut self, name: &str, fields: &mut Fields) {
        let names = ["name", "generateName"].map(|field| (field.to_owned(), Type::String));
        let metadata = self.object(&format!("{name}.metadata"), names.into());
        fields.insert("kind".to_owned(), Type::String);
        fields.insert("apiVersion".to_owned(), Type::String);
        fields.insert("metadata".to_owned(), metadata);
    }
}

/// The name of a field in CEL; `None` where it can't have one.
pub(super) fn escaped(name: &str) -> Option<String> {
    let first = name.chars().next()?;
    if first.is_ascii_digit() {
        return None;
    }
    if RESERVED.contains(&name) {
        return Some(format!("__{name}__"));
    }
    let mut out = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(sign) = rest.chars().next() {
        let width = match sign {
            '_' if rest.starts_with("__") => {
                out.push_str("__underscores__");
                2
            }
            '.' => {
                out.push_str("__dot__");
                1
            }
            '-' => {
                out.push_str("__dash__");
                1
            }
            '/' => {
                out.push_str("__slash__");
                1
            }
            sign if sign.is_ascii_alphanumeric() || sign == '_' => {
                out.push(sign);
                1
            }
            _ => return None,
        };
        rest = &rest[width..];
    }
    Some(out)
}
