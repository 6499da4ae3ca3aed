//! `metav1`: what every object carries. Written by hand instead of generated, so that labels, namespaces and
//! owners are interned while they are decoded and a resourceVersion is kept as the number that it is.

use std::str::Utf8Error;

use jiff::Timestamp;
use prost::{
    DecodeError, Message,
    bytes::{Buf, BufMut},
    encoding::{self, DecodeContext, WireType},
};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::{
    Shared, Str, lossy,
    message::{Field, Many, MaybeBool, Part, Word, message},
    wire,
};

mod generated {
    #![allow(missing_docs)]
    include!(concat!(env!("OUT_DIR"), "/k8s.meta.rs"));
}
pub use crate::quantity::Quantity;
pub use generated::{
    Condition, IntOrString, LabelSelector, LabelSelectorRequirement, List, ListMeta,
    PartialObjectMetadata, RawExtension, Status, StatusCause, StatusDetails, TypeMeta, Unknown,
    WatchEvent,
};

/// `metav1.Time` and `metav1.MicroTime`: an instant, to the second in most fields. Packed, since it is nearly
/// always optional: 16 bytes then instead of 24, four and more times in each object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(Rust, packed(4))]
pub struct Time {
    /// Seconds since the Unix epoch.
    pub seconds: i64,
    /// Nanoseconds within the second.
    pub nanos: i32,
}

impl Time {
    /// The instant as jiff's type; the epoch where the fields are out of its range.
    pub fn timestamp(self) -> Timestamp {
        Timestamp::new(self.seconds, self.nanos).unwrap_or(Timestamp::UNIX_EPOCH)
    }
}

impl From<Timestamp> for Time {
    /// Cut to whole seconds, as the API keeps `metav1.Time`.
    fn from(at: Timestamp) -> Self {
        Self {
            seconds: at.as_second(),
            nanos: 0,
        }
    }
}

impl Time {
    /// Whether it is Go's zero time. The API server always encodes a time that is not a pointer in its
    /// types, so "none" is an empty message there, and `null` in JSON.
    pub fn is_zero(self) -> bool {
        self == Self::default()
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.is_zero() {
            return serializer.serialize_none();
        }
        serializer.collect_str(&self.timestamp())
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let at: Timestamp = text.parse().map_err(D::Error::custom)?;
        Ok(Self {
            seconds: at.as_second(),
            nanos: at.subsec_nanosecond(),
        })
    }
}

/// One label or annotation; on the wire, an entry of a `map<string, string>`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Entry {
    /// Interned.
    pub key: Str,
    /// Interned when short: labels repeat, long annotations do not.
    pub value: Str,
}

/// Values up to this length are interned; longer ones (annotations with JSON in them) rarely repeat.
const INTERNED_VALUE_BYTES_MAX: usize = 128;

message! {
    /// `metav1.OwnerReference`.
    #[derive(Eq, Hash)]
    pub struct OwnerReference {
        /// The owner's kind.
        1 kind: Word,
        /// The owner's name.
        3 name: Word,
        /// The owner's uid.
        4 uid: Word,
        /// `group/version`, or `version` alone for the core group.
        5 api_version: Word,
        /// Whether the owner is the managing controller; at most one may be.
        6 controller: MaybeBool,
        /// Whether a foreground deletion of the owner waits for this object.
        7 block_owner_deletion: MaybeBool,
    }
}

/// `metav1.ObjectMeta` without `managedFields` and `selfLink`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct ObjectMeta {
    /// The name; empty in templates.
    #[serde(skip_serializing_if = "empty")]
    pub name: Str,
    /// Prefix of a name that the server makes.
    #[serde(skip_serializing_if = "empty")]
    pub generate_name: Str,
    /// Empty for what is cluster-scoped.
    #[serde(skip_serializing_if = "empty")]
    pub namespace: Str,
    /// Unique over all time.
    #[serde(skip_serializing_if = "empty")]
    pub uid: Str,
    /// 0 where there is none. Comparable as a number (Kubernetes 1.35).
    #[serde(with = "resource_version", skip_serializing_if = "zero_u64")]
    pub resource_version: u64,
    /// Counts changes of the desired state.
    #[serde(skip_serializing_if = "zero_i64")]
    pub generation: i64,
    /// When the server made it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_timestamp: Option<Time>,
    /// When its grace period ends; set means that it is being deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_timestamp: Option<Time>,
    /// Seconds between the request to delete and `deletion_timestamp`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_grace_period_seconds: Option<i64>,
    /// Sorted by key, as the server sends them.
    #[serde(with = "entries", skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<Entry>,
    /// Sorted by key.
    #[serde(with = "entries", skip_serializing_if = "Vec::is_empty")]
    pub annotations: Vec<Entry>,
    /// Owners. All pods of a ReplicaSet have the same.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub owner_references: Vec<Shared<OwnerReference>>,
    /// Finalizers that hold the object.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub finalizers: Vec<Str>,
}

impl ObjectMeta {
    /// Trims its lists to their length.
    pub(crate) fn trim(&mut self) {
        self.labels.shrink_to_fit();
        self.annotations.shrink_to_fit();
        self.owner_references.shrink_to_fit();
        self.finalizers.shrink_to_fit();
    }

    /// A label's value.
    pub fn label(&self, key: &str) -> Option<&str> {
        get(&self.labels, key)
    }

    /// An annotation's value.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        get(&self.annotations, key)
    }

    /// Sets a label, keeping the order.
    pub fn set_label(&mut self, key: &str, value: &str) {
        set(&mut self.labels, key, value);
    }

    /// Sets an annotation, keeping the order.
    pub fn set_annotation(&mut self, key: &str, value: &str) {
        set(&mut self.annotations, key, value);
    }

    /// The owner that manages this object, if there is one.
    pub fn controller(&self) -> Option<&OwnerReference> {
        self.owner_references
            .iter()
            .map(|owner| &**owner)
            .find(|owner| owner.controller == Some(true))
    }

    /// Whether the object is being deleted.
    pub fn is_terminating(&self) -> bool {
        self.deletion_timestamp.is_some()
    }

    /// Whether it is being deleted and has no finalizer: the server removes such an object with the write
    /// that makes it so.
    pub fn is_held_by_nothing(&self) -> bool {
        self.is_terminating()
            && self.finalizers.is_empty()
            && self.deletion_grace_period_seconds.unwrap_or(0) == 0
    }
}

/// The value under a key.
pub fn get<'a>(entries: &'a [Entry], key: &str) -> Option<&'a str> {
    entries
        .iter()
        .find(|entry| entry.key == *key)
        .map(|entry| entry.value.as_str())
}

/// Sets the value under a key; a new key goes to its place in the order.
pub fn set(entries: &mut Vec<Entry>, key: &str, value: &str) {
    match entries.iter_mut().find(|entry| entry.key == *key) {
        Some(entry) => entry.value = Str::interned(value),
        None => {
            let place = entries.partition_point(|entry| entry.key.as_str() < key);
            entries.insert(
                place,
                Entry {
                    key: Str::interned(key),
                    value: Str::interned(value),
                },
            );
        }
    }
}

/// Takes a key away; whether it was there.
pub fn remove(entries: &mut Vec<Entry>, key: &str) -> bool {
    let before = entries.len();
    entries.retain(|entry| entry.key != *key);
    entries.len() != before
}

fn empty(text: &Str) -> bool {
    text.is_empty()
}
fn zero_u64(number: &u64) -> bool {
    *number == 0
}
fn zero_i64(number: &i64) -> bool {
    *number == 0
}

/// A resourceVersion is a number to us and a string to JSON.
mod resource_version {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(
        version: &u64,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_str(version)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text.is_empty() {
            return Ok(0);
        }
        text.parse().map_err(D::Error::custom)
    }
}

/// Labels are a list to us and an object to JSON.
pub mod entries {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Deserializer, Serializer};

    use super::{Entry, Str};

    /// As a JSON object.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(entries: &[Entry], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(entries.iter().map(|entry| (&entry.key, &entry.value)))
    }

    /// From a JSON object, sorted by key.
    ///
    /// # Errors
    /// Where the value is no object of strings.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Entry>, D::Error> {
        let map = BTreeMap::<String, String>::deserialize(deserializer)?;
        Ok(map
            .into_iter()
            .map(|(key, value)| Entry {
                key: Str::interned(&key),
                value: Str::interned(&value),
            })
            .collect())
    }
}

/// The name of the message that holds metadata alone.
pub(crate) const PARTIAL: &str = ".k8s.meta.PartialObjectMetadata";

impl PartialObjectMetadata {
    /// The metadata of one object, of whatever kind; texts that are not UTF-8 as
    /// [`Resource::read`](crate::Resource::read) has them.
    ///
    /// # Errors
    /// Where the bytes are no object.
    pub fn read(bytes: &[u8]) -> Result<ObjectMeta, DecodeError> {
        let object: Self = lossy::message(PARTIAL, bytes)?;
        Ok(object.metadata.unwrap_or_default())
    }
}

impl Status {
    /// A status from its protobuf; texts that are not UTF-8 as [`Resource::read`](crate::Resource::read) has
    /// them.
    ///
    /// # Errors
    /// Where the bytes are none.
    pub fn read(bytes: &[u8]) -> Result<Self, DecodeError> {
        lossy::message(".k8s.meta.Status", bytes)
    }
}

// ---- the wire ----

/// Reads a text in place where it lies in one piece, as it always does in a list or a watch frame, and
/// passes it on without a copy.
fn with_text<B: Buf, R>(
    wire_type: WireType,
    buf: &mut B,
    ctx: DecodeContext,
    take: impl FnOnce(&str) -> R,
) -> Result<R, DecodeError> {
    with_bytes(wire_type, buf, ctx, |bytes| str::from_utf8(bytes).map(take))
}

/// As [`with_text`], before the text is known to be UTF-8.
fn with_bytes<B: Buf, R>(
    wire_type: WireType,
    buf: &mut B,
    ctx: DecodeContext,
    take: impl FnOnce(&[u8]) -> Result<R, Utf8Error>,
) -> Result<R, DecodeError> {
    encoding::check_wire_type(WireType::LengthDelimited, wire_type)?;
    if let Some((bytes, end)) = wire::delimited(buf.chunk()) {
        let taken = take(bytes).map_err(|_| refused(NOT_UTF8, ctx))?;
        buf.advance(end);
        return Ok(taken);
    }
    let length = encoding::decode_varint(buf)?;
    match usize::try_from(length) {
        // In pieces.
        Ok(length) if length <= buf.remaining() => {
            take(&buf.copy_to_bytes(length)).map_err(|_| refused(NOT_UTF8, ctx))
        }
        _ => Err(refused(TOO_SHORT, ctx)),
    }
}

/// A field of one byte that is not UTF-8, and one that ends before its length: only prost can create its
/// errors, so the error for such a field comes from reading one.
const NOT_UTF8: &[u8] = &[1, 0xff];
const TOO_SHORT: &[u8] = &[1];

#[cold]
fn refused(mut sample: &[u8], ctx: DecodeContext) -> DecodeError {
    encoding::string::merge(
        WireType::LengthDelimited,
        &mut String::new(),
        &mut sample,
        ctx,
    )
    .expect_err("both samples are malformed")
}

pub(crate) fn merge_interned(
    wire_type: WireType,
    buf: &mut impl Buf,
    ctx: DecodeContext,
) -> Result<Str, DecodeError> {
    with_bytes(wire_type, buf, ctx, Str::interned_bytes)
}

/// For what does not repeat: names and uids.
pub(crate) fn merge_single(
    wire_type: WireType,
    buf: &mut impl Buf,
    ctx: DecodeContext,
) -> Result<Str, DecodeError> {
    with_text(wire_type, buf, ctx, |text| Str::from(text))
}

/// Reads one of repeated messages. The first one counts those that follow, so that the list is allocated
/// exactly: growing and trimming would cost more than counting.
pub(crate) fn merge_many<P: Part>(
    tag: u32,
    wire_type: WireType,
    list: &mut Vec<P>,
    buf: &mut impl Buf,
    ctx: DecodeContext,
) -> Result<(), DecodeError> {
    if list.is_empty() {
        list.reserve_exact(following(tag, buf.chunk()));
    }
    let mut part = None;
    P::merge(&mut part, wire_type, buf, ctx)?;
    list.extend(part);
    Ok(())
}

/// The most elements for which memory is reserved on the word of an unread message.
const AHEAD_MAX: usize = 32;

/// The number of consecutive length-delimited fields of this number, the first of them without its key.
fn following(tag: u32, mut bytes: &[u8]) -> usize {
    let key = u64::from(tag) << 3 | WireType::LengthDelimited as u64;
    let mut count = 0;
    while count < AHEAD_MAX {
        count += 1;
        let Some((_, end)) = wire::delimited(bytes) else {
            break;
        };
        let mut rest = &bytes[end..];
        if encoding::decode_varint(&mut rest) != Ok(key) {
            break;
        }
        bytes = rest;
    }
    count
}

/// Go sends a missing time as an empty message.
pub(crate) fn merge_time(
    wire_type: WireType,
    time: &mut Option<Time>,
    buf: &mut impl Buf,
    ctx: DecodeContext,
) -> Result<(), DecodeError> {
    wire::merge(wire_type, time.get_or_insert_default(), buf, ctx)?;
    *time = time.filter(|time| !time.is_zero());
    Ok(())
}

pub(crate) fn encode_text(tag: u32, text: &str, buf: &mut impl BufMut) {
    if !text.is_empty() {
        encode_text_always(tag, text, buf);
    }
}

fn encode_text_always(tag: u32, text: &str, buf: &mut impl BufMut) {
    encoding::encode_key(tag, WireType::LengthDelimited, buf);
    encoding::encode_varint(text.len() as u64, buf);
    buf.put_slice(text.as_bytes());
}

pub(crate) fn text_len(tag: u32, text: &str) -> usize {
    if text.is_empty() {
        0
    } else {
        text_len_always(tag, text)
    }
}

fn text_len_always(tag: u32, text: &str) -> usize {
    encoding::key_len(tag) + encoding::encoded_len_varint(text.len() as u64) + text.len()
}

impl Message for Time {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        encoding::int64::encode(1, &{ self.seconds }, buf);
        encoding::int32::encode(2, &{ self.nanos }, buf);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        match tag {
            1 => {
                let mut seconds = self.seconds;
                encoding::int64::merge(wire_type, &mut seconds, buf, ctx)?;
                self.seconds = seconds;
                Ok(())
            }
            2 => {
                let mut nanos = self.nanos;
                encoding::int32::merge(wire_type, &mut nanos, buf, ctx)?;
                self.nanos = nanos;
                Ok(())
            }
            _ => wire::skip(wire_type, tag, buf, ctx),
        }
    }

    fn encoded_len(&self) -> usize {
        encoding::int64::encoded_len(1, &{ self.seconds })
            + encoding::int32::encoded_len(2, &{ self.nanos })
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

impl Message for Entry {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        encode_text_always(1, &self.key, buf);
        encode_text_always(2, &self.value, buf);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        match tag {
            1 => self.key = merge_interned(wire_type, buf, ctx)?,
            2 => {
                self.value = with_bytes(wire_type, buf, ctx, |bytes| {
                    if bytes.len() <= INTERNED_VALUE_BYTES_MAX {
                        Str::interned_bytes(bytes)
                    } else {
                        str::from_utf8(bytes).map(Str::from)
                    }
                })?;
            }
            _ => wire::skip(wire_type, tag, buf, ctx)?,
        }
        Ok(())
    }

    fn encoded_len(&self) -> usize {
        text_len_always(1, &self.key) + text_len_always(2, &self.value)
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

impl Message for ObjectMeta {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        encode_text(1, &self.name, buf);
        encode_text(2, &self.generate_name, buf);
        encode_text(3, &self.namespace, buf);
        encode_text(5, &self.uid, buf);
        if self.resource_version != 0 {
            encode_text(6, &self.resource_version.to_string(), buf);
        }
        if self.generation != 0 {
            encoding::int64::encode(7, &self.generation, buf);
        }
        if let Some(time) = &self.creation_timestamp {
            encoding::message::encode(8, time, buf);
        }
        if let Some(time) = &self.deletion_timestamp {
            encoding::message::encode(9, time, buf);
        }
        if let Some(seconds) = &self.deletion_grace_period_seconds {
            encoding::int64::encode(10, seconds, buf);
        }
        encoding::message::encode_repeated(11, &self.labels, buf);
        encoding::message::encode_repeated(12, &self.annotations, buf);
        Many::encode(13, &self.owner_references, buf);
        for finalizer in &self.finalizers {
            encode_text_always(14, finalizer, buf);
        }
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        match tag {
            1 => self.name = merge_single(wire_type, buf, ctx)?,
            2 => self.generate_name = merge_interned(wire_type, buf, ctx)?,
            3 => self.namespace = merge_interned(wire_type, buf, ctx)?,
            5 => self.uid = merge_single(wire_type, buf, ctx)?,
            6 => {
                self.resource_version = with_text(wire_type, buf, ctx, parse_version)?;
            }
            7 => encoding::int64::merge(wire_type, &mut self.generation, buf, ctx)?,
            8 => merge_time(wire_type, &mut self.creation_timestamp, buf, ctx)?,
            9 => merge_time(wire_type, &mut self.deletion_timestamp, buf, ctx)?,
            10 => encoding::int64::merge(
                wire_type,
                self.deletion_grace_period_seconds.get_or_insert_default(),
                buf,
                ctx,
            )?,
            11 => merge_many(tag, wire_type, &mut self.labels, buf, ctx)?,
            12 => merge_many(tag, wire_type, &mut self.annotations, buf, ctx)?,
            13 => merge_many(tag, wire_type, &mut self.owner_references, buf, ctx)?,
            14 => self.finalizers.push(merge_interned(wire_type, buf, ctx)?),
            _ => wire::skip(wire_type, tag, buf, ctx)?,
        }
        Ok(())
    }

    fn encoded_len(&self) -> usize {
        text_len(1, &self.name)
            + text_len(2, &self.generate_name)
            + text_len(3, &self.namespace)
            + text_len(5, &self.uid)
            + if self.resource_version == 0 {
                0
            } else {
                text_len(6, &self.resource_version.to_string())
            }
            + if self.generation == 0 {
                0
            } else {
                encoding::int64::encoded_len(7, &self.generation)
            }
            + self
                .creation_timestamp
                .as_ref()
                .map_or(0, |time| encoding::message::encoded_len(8, time))
            + self
                .deletion_timestamp
                .as_ref()
                .map_or(0, |time| encoding::message::encoded_len(9, time))
            + self
                .deletion_grace_period_seconds
                .as_ref()
                .map_or(0, |seconds| encoding::int64::encoded_len(10, seconds))
            + encoding::message::encoded_len_repeated(11, &self.labels)
            + encoding::message::encoded_len_repeated(12, &self.annotations)
            + Many::len(13, &self.owner_references)
            + self
                .finalizers
                .iter()
                .map(|finalizer| text_len_always(14, finalizer))
                .sum::<usize>()
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

/// A resourceVersion as a number: 0 for none, and [`NOT_COMPARABLE`] for any other text.
pub fn parse_version(text: &str) -> u64 {
    if text.is_empty() {
        0
    } else {
        text.parse().unwrap_or(NOT_COMPARABLE)
    }
}

/// The value of a resourceVersion that is not a number: no decision may rest on it. It never equals a
/// version of the server, so a write with it as precondition is refused, and the cache counts the object as
/// one that does not decode.
pub const NOT_COMPARABLE: u64 = u64::MAX;
