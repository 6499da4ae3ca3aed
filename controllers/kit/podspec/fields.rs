//! A message as a sequence of fields, each with its bytes.

use prost::{
    bytes::Buf,
    encoding::{self, DecodeContext, WireType},
};

/// A message that can't be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the pod spec can't be read: {0}")]
pub struct Malformed(String);

/// One field of a message.
pub(super) struct Field<'a> {
    /// Its number.
    pub number: u32,
    /// All its bytes, the key in front included.
    pub whole: &'a [u8],
    /// The bytes of a text or a message; empty for numbers.
    pub content: &'a [u8],
}

/// The fields of a message, in order.
pub(super) fn of(message: &[u8]) -> Result<Vec<Field<'_>>, Malformed> {
    let mut fields = Vec::new();
    let mut rest = message;
    while rest.has_remaining() {
        let start = rest;
        let (number, wire_type) = encoding::decode_key(&mut rest)?;
        let mut content: &[u8] = &[];
        if wire_type == WireType::LengthDelimited {
            let length = encoding::decode_varint(&mut rest)?;
            let length = usize::try_from(length)
                .ok()
                .filter(|length| *length <= rest.len())
                .ok_or_else(|| Malformed(format!("field {number} ends before its length")))?;
            (content, rest) = rest.split_at(length);
        } else {
            encoding::skip_field(wire_type, number, &mut rest, DecodeContext::default())?;
        }
        fields.push(Field {
            number,
            whole: &start[..start.len() - rest.len()],
            content,
        });
    }
    Ok(fields)
}

impl From<prost::DecodeError> for Malformed {
    fn from(error: prost::DecodeError) -> Self {
        Self(error.to_string())
    }
}

/// Appends a field of bytes: a text or a message.
pub(super) fn put(message: &mut Vec<u8>, number: u32, content: &[u8]) {
    encoding::encode_key(number, WireType::LengthDelimited, message);
    encoding::encode_varint(content.len() as u64, message);
    message.extend_from_slice(content);
}

/// The message with one field of bytes in place of all fields of that number; empty content removes it.
pub(super) fn replaced(message: &[u8], number: u32, content: &[u8]) -> Result<Vec<u8>, Malformed> {
    let mut new = Vec::with_capacity(message.len() + content.len() + 8);
    for field in of(message)? {
        if field.number != number {
            new.extend_from_slice(field.whole);
        }
    }
    if !content.is_empty() {
        put(&mut new, number, content);
    }
    Ok(new)
}

/// The content of a single message; several pieces of it are merged.
pub(super) fn single(message: &[u8], number: u32) -> Result<Vec<u8>, Malformed> {
    Ok(of(message)?
        .into_iter()
        .filter(|field| field.number == number)
        .flat_map(|field| field.content.iter().copied())
        .collect())
}
