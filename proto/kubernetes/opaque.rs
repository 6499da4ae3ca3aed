//! Messages that are carried as bytes, in JSON: `{"protobuf": "0a04…"}`. Only the tests' API server speaks
//! so: the real one writes such a message out in full, and what is read live is never put into a projection.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

/// The field that holds the bytes, as hexadecimal digits.
pub const FIELD: &str = "protobuf";

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Opaque {
    #[serde(default)]
    protobuf: String,
}

/// As a JSON object.
///
/// # Errors
/// Those of the serializer.
pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    let opaque = Opaque {
        protobuf: bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
    };
    opaque.serialize(serializer)
}

/// From a JSON object.
///
/// # Errors
/// Where it is not what [`serialize`] makes.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let opaque = Opaque::deserialize(deserializer)?;
    digits(&opaque.protobuf)
        .ok_or_else(|| D::Error::custom("bytes want pairs of hexadecimal digits"))
}

/// The bytes of pairs of hexadecimal digits.
pub fn digits(text: &str) -> Option<Vec<u8>> {
    text.len().is_multiple_of(2).then_some(())?;
    (0..text.len())
        .step_by(2)
        .map(|start| u8::from_str_radix(text.get(start..start + 2)?, 16).ok())
        .collect()
}
