//! Watching a fleet at work: who owns what, how long keys wait, which pods were made.
//!
//! The books are pure (the clock is an argument); [`follow`] feeds them from the API server.

mod follow;
mod ledger;
mod owners;
mod probes;
#[cfg(test)]
mod tests;

pub use follow::{Change, follow};
pub use ledger::Ledger;
pub use owners::Owners;
pub use probes::{Probes, Waited};
