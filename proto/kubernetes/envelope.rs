//! What lies round the objects: the envelope of every protobuf body, lists, watch events. Read in place: an
//! object's bytes are decoded where they were received, without a copy in between.

use std::fmt;

use prost::{
    Message,
    bytes::Buf,
    encoding::{self, DecodeContext, WireType},
};

use crate::{MAGIC, meta};

/// The media type of a protobuf body; watches append `;stream=watch`.
pub const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// The annotation of the bookmark that ends the initial events of a streaming list.
pub const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// A body that is not what it should be; the text says which part is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed(&'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "malformed protobuf: {}", self.0)
    }
}

impl std::error::Error for Malformed {}

/// An opened envelope.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Envelope<'a> {
    /// As in `apps/v1`.
    pub api_version: &'a str,
    /// As in `Deployment`.
    pub kind: &'a str,
    /// The message within.
    pub raw: &'a [u8],
}

/// Puts a message into its envelope: what is sent as `application/vnd.kubernetes.protobuf`.
pub fn wrap(api_version: &str, kind: &str, raw: Vec<u8>) -> Vec<u8> {
    let unknown = meta::Unknown {
        type_meta: Some(meta::TypeMeta {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
        }),
        raw,
        content_encoding: String::new(),
        content_type: String::new(),
    };
    let mut body = Vec::with_capacity(MAGIC.len() + unknown.encoded_len());
    body.extend_from_slice(MAGIC);
    unknown
        .encode(&mut body)
        .expect("a Vec grows as far as is needed");
    body
}

/// Opens an envelope.
///
/// # Errors Where the four bytes in front are missing, or what follows is no envelope, or its content is
/// encoded further.
pub fn open(body: &[u8]) -> Result<Envelope<'_>, Malformed> {
    let rest = body
        .strip_prefix(MAGIC)
        .ok_or(Malformed("a body does not begin with k8s and a zero byte"))?;
    let mut envelope = Envelope::default();
    for field in Fields(rest) {
        match field? {
            (1, Value::Bytes(type_meta)) => {
                for field in Fields(type_meta) {
                    match field? {
                        (1, Value::Bytes(version)) => envelope.api_version = text(version)?,
                        (2, Value::Bytes(kind)) => envelope.kind = text(kind)?,
                        _ => {}
                    }
                }
            }
            (2, Value::Bytes(raw)) => envelope.raw = raw,
            (3, Value::Bytes(encoding)) if !encoding.is_empty() => {
                return Err(Malformed("an envelope's content is encoded"));
            }
            _ => {}
        }
    }
    Ok(envelope)
}

/// One event of a watch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WatchEvent<'a> {
    /// `ADDED`, `MODIFIED`, `DELETED`, `BOOKMARK` or `ERROR`.
    pub r#type: &'a str,
    /// The object's envelope.
    pub object: &'a [u8],
}

/// Reads one frame of a watch, without the length in front.
///
/// # Errors
/// Where it is no event.
pub fn watch_event(frame: &[u8]) -> Result<WatchEvent<'_>, Malformed> {
    let mut event = WatchEvent::default();
    for field in Fields(frame) {
        match field? {
            (1, Value::Bytes(kind)) => event.r#type = text(kind)?,
            (2, Value::Bytes(extension)) => {
                for field in Fields(extension) {
                    if let (1, Value::Bytes(raw)) = field? {
                        event.object = raw;
                    }
                }
            }
            _ => {}
        }
    }
    Ok(event)
}

/// Writes one frame of a watch, without the length in front: what [`watch_event`] reads.
pub fn watch_frame(r#type: &str, object: Vec<u8>) -> Vec<u8> {
    meta::WatchEvent {
        r#type: r#type.to_owned(),
        object: Some(meta::RawExtension { raw: object }),
    }
    .encode_to_vec()
}

/// A list whose items are not decoded yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct List<'a> {
    /// The version at which it is true.
    pub resource_version: u64,
    /// What asks for the next page; empty on the last one.
    pub continue_token: &'a str,
    /// One message each.
    pub items: Vec<&'a [u8]>,
}

/// Reads a list, of whatever kind.
///
/// # Errors
/// Where it is none.
pub fn list(raw: &[u8]) -> Result<List<'_>, Malformed> {
    let mut list = List::default();
    for field in Fields(raw) {
        match field? {
            (1, Value::Bytes(list_meta)) => {
                for field in Fields(list_meta) {
                    match field? {
                        (2, Value::Bytes(version)) => {
                            list.resource_version = meta::parse_version(text(version)?);
                        }
                        (3, Value::Bytes(token)) => list.continue_token = text(token)?,
                        _ => {}
                    }
                }
            }
            (2, Value::Bytes(item)) => list.items.push(item),
            _ => {}
        }
    }
    Ok(list)
}

/// What can be had of an object that does not decode: as far as its metadata can be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Glimpse<'a> {
    /// Empty where it can't be had.
    pub namespace: &'a str,
    /// Empty where it can't be had.
    pub name: &'a str,
    /// 0 where it can't be had.
    pub resource_version: u64,
}

/// Finds an object's key and version, even where the rest of it is malformed.
pub fn glimpse(raw: &[u8]) -> Glimpse<'_> {
    let mut glimpse = Glimpse::default();
    let metadata = Fields(raw)
        .map_while(Result::ok)
        .find_map(|field| match field {
            (1, Value::Bytes(metadata)) => Some(metadata),
            _ => None,
        });
    for field in Fields(metadata.unwrap_or_default()).map_while(Result::ok) {
        match field {
            (1, Value::Bytes(name)) => glimpse.name = text(name).unwrap_or_default(),
            (3, Value::Bytes(namespace)) => {
                glimpse.namespace = text(namespace).unwrap_or_default();
            }
            (6, Value::Bytes(version)) => {
                glimpse.resource_version = text(version).map_or(0, meta::parse_version);
            }
            _ => {}
        }
    }
    glimpse
}

fn text(bytes: &[u8]) -> Result<&str, Malformed> {
    str::from_utf8(bytes).map_err(|_| Malformed("a text is not UTF-8"))
}

/// A field's value, as far as envelopes have them.
enum Value<'a> {
    Bytes(&'a [u8]),
    /// A number or whatever else: envelopes have none that is read.
    Other,
}

/// The fields of one message, in order.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn field(&mut self) -> Result<(u32, Value<'a>), prost::DecodeError> {
        let (number, wire_type) = encoding::decode_key(&mut self.0)?;
        if wire_type == WireType::LengthDelimited {
            let mut rest = self.0;
            let length = encoding::decode_varint(&mut rest)?;
            if let Ok(length) = usize::try_from(length)
                && length <= rest.len()
            {
                let (bytes, rest) = rest.split_at(length);
                self.0 = rest;
                return Ok((number, Value::Bytes(bytes)));
            }
        }
        encoding::skip_field(wire_type, number, &mut self.0, DecodeContext::default())?;
        Ok((number, Value::Other))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Value<'a>), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if !self.0.has_remaining() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            // Nothing is known about what follows.
            self.0 = &[];
        }
        Some(field.map_err(|_| Malformed("a field does not end where it should")))
    }
}
