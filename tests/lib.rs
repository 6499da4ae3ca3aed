//! Everything that is tested from outside a crate: one binary, a module per suite.

pub mod chaos;
pub mod judge;

/// Suites that measure time, one after the other. Those that may run beside others follow, so that neither kind waits for
/// the other more than once: tests begin in the order of their names.
#[cfg(test)]
#[path = "."]
mod alone {
    mod audit;
    mod bystanders;
    mod cleanup;
    mod endpoints;
    mod fence;
    mod fleet;
    mod handoff;
    mod hpa;
    mod kubeadm;
    mod kubelets;
    mod moves;
    mod node_dies;
    mod nodes;
    mod overload;
    mod poison;
    mod port;
    mod quota;
    mod rotation;
    mod start;
    mod told;
}

#[cfg(test)]
mod deploy;
#[cfg(test)]
mod disruption;
#[cfg(test)]
mod identity;
#[cfg(test)]
mod parity;
#[cfg(test)]
mod rollout;
#[cfg(test)]
mod support;
#[cfg(test)]
mod swap;
#[cfg(test)]
mod template;
#[cfg(test)]
mod tidy;
