//! Everything that is tested from outside a crate: one binary, a module per suite.

pub mod chaos;
pub mod judge;

#[cfg(test)]
mod audit;
#[cfg(test)]
mod cleanup;
#[cfg(test)]
mod deploy;
#[cfg(test)]
mod disruption;
#[cfg(test)]
mod endpoints;
#[cfg(test)]
mod fence;
#[cfg(test)]
mod fleet;
#[cfg(test)]
mod handoff;
#[cfg(test)]
mod hpa;
#[cfg(test)]
mod moves;
#[cfg(test)]
mod parity;
#[cfg(test)]
mod quota;
#[cfg(test)]
mod rollout;
#[cfg(test)]
mod start;
#[cfg(test)]
mod support;
#[cfg(test)]
mod swap;
#[cfg(test)]
mod template;
#[cfg(test)]
mod tidy;
#[cfg(test)]
mod told;
