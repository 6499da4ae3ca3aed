//! Decoding of messages that lie in one piece, as everything in a list or a watch frame does. prost reads
//! from any buffer and so checks it at each byte; here a message is a slice, and a field that nobody reads
//! is skipped by its length. Anything unusual is passed to prost, so errors are prost's too.

use std::{
    any::Any,
    cell::RefCell,
    fmt,
    ops::{Deref, DerefMut},
    sync::Arc,
};

use prost::{
    DecodeError, Message,
    bytes::Buf,
    encoding::{self, DecodeContext, WireType},
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::str::hash_bytes;

/// The content of a length-delimited field whose key has been read, and where it ends. `None` where its
/// length is malformed or exceeds the input.
pub(crate) fn delimited(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let (length, begin) = match *bytes {
        [first @ ..0x80, ..] => (usize::from(first), 1),
        [first, second @ ..0x80, ..] => (usize::from(first & 0x7f) | usize::from(second) << 7, 2),
        _ => {
            let mut rest = bytes;
            let length = encoding::decode_varint(&mut rest).ok()?;
            (usize::try_from(length).ok()?, bytes.len() - rest.len())
        }
    };
    let end = begin.checked_add(length)?;
    Some((bytes.get(begin..end)?, end))
}

/// Steps over a field that nobody asks for.
pub(crate) fn skip(
    wire_type: WireType,
    tag: u32,
    buf: &mut impl Buf,
    ctx: DecodeContext,
) -> Result<(), DecodeError> {
    if wire_type == WireType::LengthDelimited
        && let Some((_, end)) = delimited(buf.chunk())
    {
        buf.advance(end);
        return Ok(());
    }
    encoding::skip_field(wire_type, tag, buf, ctx)
}

/// Reads a message within a message.
pub(crate) fn merge<M: Message>(
    wire_type: WireType,
    message: &mut M,
    buf: &mut impl Buf,
    ctx: DecodeContext,
) -> Result<(), DecodeError> {
    if wire_type == WireType::LengthDelimited
        && let Some((content, end)) = delimited(buf.chunk())
    {
        fields(message, content, &ctx)?;
        buf.advance(end);
        return Ok(());
    }
    encoding::message::merge(wire_type, message, buf, ctx)
}

/// Reads a message's fields. Depth is not counted here: only prost's own messages contain themselves, and
/// they count.
fn fields<M: Message>(
    message: &mut M,
    mut bytes: &[u8],
    ctx: &DecodeContext,
) -> Result<(), DecodeError> {
    const VARINT: u8 = WireType::Varint as u8;
    const DELIMITED: u8 = WireType::LengthDelimited as u8;
    while let Some((&key, rest)) = bytes.split_first() {
        // Numbers 1 to 15 take one byte.
        let usual = match (key, key & 7) {
            (0x08..0x80, VARINT) => Some(WireType::Varint),
            (0x08..0x80, DELIMITED) => Some(WireType::LengthDelimited),
            _ => None,
        };
        let (tag, wire_type) = match usual {
            Some(wire_type) => {
                bytes = rest;
                (u32::from(key >> 3), wire_type)
            }
            None => encoding::decode_key(&mut bytes)?,
        };
        message.merge_field(tag, wire_type, &mut bytes, ctx.clone())?;
    }
    Ok(())
}

/// A message that is equal in many objects, as the resources of a container are in all pods of a
/// Deployment: held once and not decoded again where its bytes were seen before.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Shared<T>(Arc<T>);

/// Pairs of messages that each thread caches by their bytes; why pairs, see [`Str`](crate::Str)'s. Enough
/// for what the pods of some hundred owners share, and for their conditions of some seconds.
const REMEMBERED: usize = 512;

/// Longer ones are decoded each time: they hardly repeat.
const REMEMBERED_BYTES_MAX: usize = 1024;

struct Known {
    bytes: Box<[u8]>,
    message: Arc<dyn Any + Send + Sync>,
}

thread_local! {
    static KNOWN: RefCell<[[Option<Known>; 2]; REMEMBERED]> =
        const { RefCell::new([const { [None, None] }; REMEMBERED]) };
}

impl<T: Message + Default + 'static> Shared<T> {
    /// Reads one that lies within another message.
    pub(crate) fn read(
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<Self, DecodeError> {
        if wire_type == WireType::LengthDelimited
            && let Some((content, end)) = delimited(buf.chunk())
            && content.len() <= REMEMBERED_BYTES_MAX
        {
            let read = Self::remembered(content, &ctx)?;
            buf.advance(end);
            return Ok(read);
        }
        let mut message = T::default();
        encoding::message::merge(wire_type, &mut message, buf, ctx)?;
        Ok(Self::from(message))
    }

    fn remembered(bytes: &[u8], ctx: &DecodeContext) -> Result<Self, DecodeError> {
        let place = hash_bytes(bytes) as usize % REMEMBERED;
        let known = KNOWN.with_borrow(|known| {
            let pair = known[place].iter().flatten();
            // Another type of message may have the same bytes.
            pair.filter(|known| *known.bytes == *bytes)
                .find_map(|known| Arc::clone(&known.message).downcast().ok())
        });
        if let Some(message) = known {
            return Ok(Self(message));
        }
        let mut message = T::default();
        fields(&mut message, bytes, ctx)?;
        let message = Arc::new(message);
        KNOWN.with_borrow_mut(|known| {
            let pair = &mut known[place];
            pair.swap(0, 1);
            pair[0] = Some(Known {
                bytes: bytes.into(),
                message: Arc::clone(&message) as Arc<dyn Any + Send + Sync>,
            });
        });
        Ok(Self(message))
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

/// Copy on write: other holders of the message keep it unchanged.
impl<T: Clone> DerefMut for Shared<T> {
    fn deref_mut(&mut self) -> &mut T {
        Arc::make_mut(&mut self.0)
    }
}

impl<T> From<T> for Shared<T> {
    fn from(message: T) -> Self {
        Self(Arc::new(message))
    }
}

impl<T: fmt::Debug> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<T: Serialize> Serialize for Shared<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Shared<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::deserialize(deserializer).map(Self::from)
    }
}
