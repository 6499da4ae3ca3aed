//! Bytes that nobody may print: tokens, the contents of Secrets. They have a value in JSON and on the wire,
//! and none in logs.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bytes that are compared, sent and signed with, and never shown: `Debug` hides them, and there is no
/// `Display`. JSON has them as the API does, in base64.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Confidential(Vec<u8>);

impl Confidential {
    /// The bytes, for signing and comparison.
    pub fn reveal(&self) -> &[u8] {
        &self.0
    }

    /// The bytes as text; `None` where they are not UTF-8.
    pub fn reveal_text(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// For the wire alone.
    pub(crate) fn bytes_mut(&mut self) -> &mut Vec<u8> {
        &mut self.0
    }

    /// For the wire alone.
    pub(crate) fn bytes(&self) -> &Vec<u8> {
        &self.0
    }
}

impl From<Vec<u8>> for Confidential {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl From<&str> for Confidential {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().to_vec())
    }
}

impl From<String> for Confidential {
    fn from(text: String) -> Self {
        Self(text.into_bytes())
    }
}

impl fmt::Debug for Confidential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(confidential)")
    }
}

impl Serialize for Confidential {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        base64::serialize(&self.0, serializer)
    }
}

impl<'de> Deserialize<'de> for Confidential {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        base64::deserialize(deserializer).map(Self)
    }
}

/// Bytes as the API has them in JSON: a text in base64.
pub mod base64 {
    use ::base64::{Engine as _, engine::general_purpose::STANDARD};
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    /// As a text in base64.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(bytes))
    }

    /// From a text in base64; null is none.
    ///
    /// # Errors
    /// Where it is no base64. The text is not repeated in the error.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?.unwrap_or_default();
        STANDARD
            .decode(text)
            .map_err(|_| D::Error::custom("the bytes are not in base64"))
    }
}
