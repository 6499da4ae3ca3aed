//! A pod's condition, written by hand: every pod has five, and their types, statuses and reasons are the same few words,
//! so they are interned while they are decoded.

use prost::{
    DecodeError, Message,
    bytes::{Buf, BufMut},
    encoding::{self, DecodeContext, WireType},
};
use serde::{Deserialize, Serialize};

use crate::{
    Str,
    meta::{Time, encode_text, merge_interned, merge_single, merge_time, text_len},
};

/// `core/v1.PodCondition`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct PodCondition {
    /// As in `Ready`.
    pub r#type: Str,
    /// The pod's generation that it was set for; 0 for none.
    #[serde(skip_serializing_if = "crate::is_default")]
    pub observed_generation: i64,
    /// `True`, `False` or `Unknown`.
    #[serde(skip_serializing_if = "crate::is_default")]
    pub status: Str,
    /// When it was last probed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_probe_time: Option<Time>,
    /// When its status last changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
    /// One word.
    #[serde(skip_serializing_if = "crate::is_default")]
    pub reason: Str,
    /// For people.
    #[serde(skip_serializing_if = "crate::is_default")]
    pub message: Str,
}

impl Message for PodCondition {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        encode_text(1, &self.r#type, buf);
        encode_text(2, &self.status, buf);
        if let Some(time) = &self.last_probe_time {
            encoding::message::encode(3, time, buf);
        }
        if let Some(time) = &self.last_transition_time {
            encoding::message::encode(4, time, buf);
        }
        encode_text(5, &self.reason, buf);
        encode_text(6, &self.message, buf);
        if self.observed_generation != 0 {
            encoding::int64::encode(7, &self.observed_generation, buf);
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
            1 => self.r#type = merge_interned(wire_type, buf, ctx)?,
            2 => self.status = merge_interned(wire_type, buf, ctx)?,
            3 => merge_time(wire_type, &mut self.last_probe_time, buf, ctx)?,
            4 => merge_time(wire_type, &mut self.last_transition_time, buf, ctx)?,
            5 => self.reason = merge_interned(wire_type, buf, ctx)?,
            6 => self.message = merge_single(wire_type, buf, ctx)?,
            7 => encoding::int64::merge(wire_type, &mut self.observed_generation, buf, ctx)?,
            _ => encoding::skip_field(wire_type, tag, buf, ctx)?,
        }
        Ok(())
    }

    fn encoded_len(&self) -> usize {
        let time = |tag, time: &Option<Time>| {
            time.as_ref()
                .map_or(0, |time| encoding::message::encoded_len(tag, time))
        };
        text_len(1, &self.r#type)
            + text_len(2, &self.status)
            + time(3, &self.last_probe_time)
            + time(4, &self.last_transition_time)
            + text_len(5, &self.reason)
            + text_len(6, &self.message)
            + if self.observed_generation == 0 {
                0
            } else {
                encoding::int64::encoded_len(7, &self.observed_generation)
            }
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}
