//! The kubectl plugin `kubectl manifold`.
//!
//! One replica is asked, and answers for all with the caller's own rights ([`inspect`] has the answers). What
//! is shown are pure functions of the answers ([`render`], [`verdict`]); [`reach`] alone talks to the API
//! server and to a replica. docs/kubectl.md describes commands, exit codes and the JSON.

mod archive;
mod cli;
mod complete;
mod dashboard;
mod moves;
mod object;
mod reach;
mod render;
mod steer;
mod verdict;

pub use cli::run;
