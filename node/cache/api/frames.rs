//! The frames of an open watch.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;

use super::{
    connection::AnswerBody,
    error::{ApiError, broken},
};

/// A watch frame that is longer is refused: etcd takes no object of this size.
const FRAME_BYTES_MAX: usize = 64 << 20;

/// The frames of an open watch.
pub struct Frames {
    pub(super) server: Arc<str>,
    pub(super) body: AnswerBody,
    pub(super) framer: Framer,
}

impl Frames {
    /// The next frame, without its length; `None` when the server has ended the watch. Safe to give up while
    /// waiting: nothing that was received is lost.
    ///
    /// # Errors
    /// Where the connection broke, or a frame is too long.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        loop {
            if let Some(frame) = self.framer.next().map_err(|reason| ApiError::Garbage {
                server: Arc::clone(&self.server),
                reason,
            })? {
                return Ok(Some(frame));
            }
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.framer.push(&data);
                    }
                }
                Some(Err(error)) => return Err(broken(&self.server, error.as_ref())),
                None if self.framer.is_empty() => return Ok(None),
                None => {
                    return Err(ApiError::Garbage {
                        server: Arc::clone(&self.server),
                        reason: "a watch that ends within a frame".to_owned(),
                    });
                }
            }
        }
    }
}

/// Cuts a stream into frames: four bytes with the length, the most significant first, then as many bytes.
#[derive(Default)]
pub(crate) struct Framer {
    buffer: BytesMut,
}

impl Framer {
    pub(crate) fn push(&mut self, data: &[u8]) {
        self.buffer.extend_from_slice(data);
    }

    pub(crate) fn next(&mut self) -> Result<Option<Bytes>, String> {
        let Some((head, rest)) = self.buffer.split_first_chunk::<4>() else {
            return Ok(None);
        };
        let length = u32::from_be_bytes(*head) as usize;
        if length > FRAME_BYTES_MAX {
            return Err(format!(
                "a watch frame of {length} bytes, more than {FRAME_BYTES_MAX}"
            ));
        }
        if rest.len() < length {
            return Ok(None);
        }
        let mut frame = self.buffer.split_to(4 + length);
        Ok(Some(frame.split_off(4).freeze()))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }
}
