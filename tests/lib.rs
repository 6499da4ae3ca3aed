//! Everything that is tested from outside a crate: one binary, a module per suite.

pub mod chaos;
pub mod judge;

/// Suites that compare figures with bounds: each has the machine to itself. Tests start in the order of their
/// names, so these come first, and the suites that only wait for events then overlap.
#[cfg(test)]
#[path = "."]
mod alone {
    mod autoscaled;
    mod budget;
    #[path = "chaos/tests.rs"]
    mod chaos;
    mod cleanup;
    mod endpoints;
    mod failover;
    pub(crate) mod fence;
    mod fifty;
    mod fleet;
    mod handoff;
    mod kubeadm;
    mod loads;
    mod moves;
    mod node_dies;
    mod overload;
    mod poison;
    mod port;
    mod quarantine;
    mod rotation;
    mod start;
    mod statefulset;
    pub(crate) mod steering;
    mod takeover;
    mod volumes;
    mod week;
}

#[cfg(test)]
mod alerts;
#[cfg(test)]
mod audit;
#[cfg(test)]
mod bystanders;
#[cfg(test)]
mod clouds;
#[cfg(test)]
mod companion;
#[cfg(test)]
mod config;
#[cfg(test)]
mod csi;
#[cfg(test)]
mod deploy;
#[cfg(test)]
mod devices;
#[cfg(test)]
mod disruption;
#[cfg(test)]
mod doctor;
#[cfg(test)]
mod gates;
#[cfg(test)]
mod hpa;
#[cfg(test)]
mod identity;
#[cfg(test)]
mod image;
#[cfg(test)]
mod interlock;
#[cfg(test)]
mod kubectl;
#[cfg(test)]
mod kubelets;
#[cfg(test)]
mod migration;
#[cfg(test)]
mod nodes;
#[cfg(test)]
mod page;
#[cfg(test)]
mod parity;
#[cfg(test)]
mod peers;
#[cfg(test)]
mod policies;
#[cfg(test)]
mod quota;
#[cfg(test)]
mod reported;
#[cfg(test)]
mod rollout;
#[cfg(test)]
mod shadow;
#[cfg(test)]
mod stale;
#[cfg(test)]
mod support;
#[cfg(test)]
mod surface;
#[cfg(test)]
mod swap;
#[cfg(test)]
mod template;
#[cfg(test)]
mod tidy;
#[cfg(test)]
mod traces;
