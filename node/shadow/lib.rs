//! What a shadow makes of two managers: the writes that the controllers here plan and never send, compared
//! with what the manager in charge does. Pure: the time is an argument, nothing is read or written.
//!
//! [`Want`] is a planned write as a state of one object, [`satisfied`] whether a change has brought that
//! state about, [`Comparison`] the bookkeeping: what is wanted and since when, what was seen and is not
//! explained. docs/shadow.md defines the verdicts for operators.

mod comparison;
mod history;
mod same;
mod want;

pub use comparison::{
    Answer, Candidate, Change, Comparison, Config, Kind, Now, UNKNOWN, Unwanted, Verdict,
};
pub use history::{History, Moments, Name, Objects, present_without};
pub use same::{Lists, Mismatch, differ};
pub use want::{
    Deed, Place, Want, changed_fields, explains, nearest, satisfied, sets, standing_fields,
    touches, would_make,
};

use std::time::Duration;

/// Planned writes that are waited for at one time, of all keys.
pub const WANTS_MAX: usize = 20_000;
/// Writes of one key that are waited for: a plan that makes more is compared as far as this.
pub const WANTS_OF_KEY_MAX: usize = 1_000;
/// Changes that no plan explains yet.
pub const CANDIDATES_MAX: usize = 2_000;
/// Fields of later changes that are remembered with a change that no plan explains yet.
pub const FIELDS_MAX: usize = 200;
/// Planned writes that are remembered for a patience after their plan has dropped them.
pub const PAST_MAX: usize = 5_000;
/// Differences that are kept whole; further ones are counted.
pub const DIFFERENCES_MAX: usize = 100;
/// Characters of a value in a difference.
pub const VALUE_CHARS_MAX: usize = 200;
/// Changes that are remembered, so that plans can be made as of before them.
pub const HISTORY_MAX: usize = 10_000;
/// Moments before a change as of which plans are made.
pub const MOMENTS_MAX: usize = 12;
/// How far the caches of the manager in charge may lag behind what it decides on.
pub const LAG_MAX: Duration = Duration::from_secs(3);
/// When a change that nobody explains is asked about again: what it rests on may come by another watch.
pub const ASKED_AGAIN: [Duration; 3] = [
    Duration::from_millis(500),
    Duration::from_secs(3),
    Duration::from_secs(12),
];

#[cfg(test)]
mod tests;
