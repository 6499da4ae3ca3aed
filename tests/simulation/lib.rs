//! The fleet in one process, on simulated time, from a seed: the real coordinators, nodes and controllers
//! against a simulated API server and network. README.md says what is real, what is simulated, and how a run
//! is done again.

pub mod attachments;
pub mod claims;
pub mod clearing;
pub mod devices;
pub mod dice;
pub mod discovery;
pub mod heartbeats;
pub mod hub;
pub mod identity;
pub mod judge;
pub mod metrics;
pub mod mistakes;
pub mod mutants;
pub mod names;
pub mod network;
pub mod nodes;
pub mod poison;
pub mod protection;
pub mod replica;
pub mod run;
pub mod scaling;
pub mod selection;
pub mod server;
pub mod storage;
pub mod stories;
#[cfg(test)]
mod tests;
pub mod workloads;
