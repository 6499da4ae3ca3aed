//! When an autoscaler is evaluated: at instants of the wall clock that follow from its uid and the period.
//!
//! So the phase is the same for every owner, whether the last one has handed over, was restarted or has
//! crashed; no evaluation is early or late by a change of owner, and autoscalers that were created together
//! are spread over the period.

use controllers_kit::Timestamp;
use xxhash_rust::xxh3::xxh3_64;

use super::{Memory, Settings};

fn phase(settings: &Settings, uid: &str) -> i64 {
    let period = settings.period_millis.unsigned_abs();
    i64::try_from(xxh3_64(uid.as_bytes()) % period).unwrap_or(0)
}

/// The number of the turn that an instant falls into.
pub(super) fn present(settings: &Settings, now: Timestamp, uid: &str) -> i64 {
    (now.as_millisecond() - phase(settings, uid)).div_euclid(settings.period_millis)
}

/// When the next one begins.
pub(super) fn next(settings: &Settings, now: Timestamp, uid: &str) -> Timestamp {
    let number = present(settings, now, uid) + 1;
    let millis = number * settings.period_millis + phase(settings, uid);
    Timestamp::from_millisecond(millis).unwrap_or(Timestamp::MAX)
}

/// Whether the present one is still to be taken.
pub(super) fn is_due(settings: &Settings, now: Timestamp, uid: &str, memory: &Memory) -> bool {
    memory.redo || memory.turn != Some(present(settings, now, uid))
}
