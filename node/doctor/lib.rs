//! The subcommands of `manifold`: `doctor` examines a cluster and its fleet, `companion` divides the
//! controllers between a fleet and kube-controller-manager.
//!
//! Checks are pure functions from gathered facts to findings ([`checks`]); what talks to the API server only
//! gathers ([`gather`]). docs/doctor.md has the list of checks, the exit codes and the JSON report.

pub mod certificates;
pub mod checks;
mod cli;
pub mod companion;
pub mod facts;
mod gather;
pub mod report;
pub mod rights;
#[cfg(test)]
mod tests;

pub use cli::{SUBCOMMANDS, duration, parsed, run};
pub use facts::ManagerPod;
pub use gather::{causes, manager_pods};
