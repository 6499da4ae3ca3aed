//! Texts that are not UTF-8. The API server decodes protobuf without checking UTF-8, and validates few
//! texts: an annotation's value may be any bytes. An object with one must still be counted, owned and
//! deleted, so each invalid byte is read as U+FFFD, as the API server itself shows it to JSON clients.
//!
//! A text that was read so is never written back: patches are differences of two projections, both of which
//! have the replacement.

use std::borrow::Cow;

use prost::{
    DecodeError, Message,
    encoding::{self, WireType},
};

use crate::wire::delimited;

/// What lies in a field, as far as texts may be there.
enum Kind {
    Text,
    Message(&'static str),
}

/// The fields of each message that are texts or messages, from the .proto files: name, then number and
/// content, which is empty for a text.
type Table = &'static [(&'static str, &'static [(u32, &'static str)])];

static MESSAGES: Table = include!(concat!(env!("OUT_DIR"), "/texts.rs"));

/// Those that are written by hand (`meta.rs`).
static BY_HAND: Table = &[
    (
        ".k8s.meta.ObjectMeta",
        &[
            (1, ""),
            (2, ""),
            (3, ""),
            (5, ""),
            (6, ""),
            (11, ".k8s.meta.Entry"),
            (12, ".k8s.meta.Entry"),
            (13, ".k8s.meta.OwnerReference"),
            (14, ""),
        ],
    ),
    (
        ".k8s.meta.OwnerReference",
        &[(1, ""), (3, ""), (4, ""), (5, "")],
    ),
];

/// Messages within messages are followed so deep.
const DEPTH_MAX: usize = 64;

/// Reads a message of that name (as in `.k8s.core.Pod`), texts that are not UTF-8 with replacements.
///
/// # Errors
/// Where it can't be read for another reason.
pub(crate) fn read<R>(
    name: &str,
    bytes: &[u8],
    decode: impl Fn(&[u8]) -> Result<R, DecodeError>,
) -> Result<R, DecodeError> {
    decode(bytes).or_else(|error| match repaired(name, bytes, 0) {
        Some(Cow::Owned(bytes)) => decode(&bytes),
        _ => Err(error),
    })
}

/// As [`read`], for a message that is no object.
///
/// # Errors
/// Those of [`read`].
pub(crate) fn message<M: Message + Default>(name: &str, bytes: &[u8]) -> Result<M, DecodeError> {
    read(name, bytes, |bytes| M::decode(bytes))
}

/// The name of the message that holds a kind's objects.
pub(crate) fn of_kind(kind: &str) -> &'static str {
    let mut names = MESSAGES.iter().map(|(name, _)| *name);
    names
        .find(|name| name.rsplit('.').next() == Some(kind))
        .unwrap_or_default()
}

fn kind(name: &str, tag: u32) -> Option<Kind> {
    let mut tables = BY_HAND.iter().chain(MESSAGES);
    let (_, fields) = tables.find(|(known, _)| *known == name)?;
    let (_, content) = fields.iter().find(|(number, _)| *number == tag)?;
    Some(match *content {
        "" => Kind::Text,
        message => Kind::Message(message),
    })
}

/// The same message with texts that are UTF-8; `None` where it is malformed.
fn repaired<'a>(name: &str, bytes: &'a [u8], depth: usize) -> Option<Cow<'a, [u8]>> {
    if depth > DEPTH_MAX {
        return Some(Cow::Borrowed(bytes));
    }
    let mut repaired: Option<Vec<u8>> = None;
    let mut rest = bytes;
    while !rest.is_empty() {
        let begin = bytes.len() - rest.len();
        let (tag, wire_type) = encoding::decode_key(&mut rest).ok()?;
        if wire_type != WireType::LengthDelimited {
            encoding::skip_field(wire_type, tag, &mut rest, Default::default()).ok()?;
            let end = bytes.len() - rest.len();
            if let Some(repaired) = &mut repaired {
                repaired.extend_from_slice(&bytes[begin..end]);
            }
            continue;
        }
        let (content, end) = delimited(rest)?;
        rest = &rest[end..];
        let content = match kind(name, tag) {
            Some(Kind::Text) => text(content),
            Some(Kind::Message(name)) => self::repaired(name, content, depth + 1)?,
            None => Cow::Borrowed(content),
        };
        match (&mut repaired, content) {
            (None, Cow::Borrowed(_)) => {}
            (None, Cow::Owned(content)) => {
                let mut before = bytes[..begin].to_vec();
                encoding::bytes::encode(tag, &content, &mut before);
                repaired = Some(before);
            }
            (Some(repaired), content) => {
                encoding::bytes::encode(tag, &content.into_owned(), repaired);
            }
        }
    }
    Some(repaired.map_or(Cow::Borrowed(bytes), Cow::Owned))
}

/// Each byte that is none of a character becomes one U+FFFD, as in Go; so an object reads the same as its
/// JSON.
fn text(bytes: &[u8]) -> Cow<'_, [u8]> {
    if str::from_utf8(bytes).is_ok() {
        return Cow::Borrowed(bytes);
    }
    let mut text = String::with_capacity(bytes.len() + 8);
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        for _ in chunk.invalid() {
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }
    Cow::Owned(text.into_bytes())
}
