//! Everything that is tested from outside a crate: one binary, a module per suite.

pub mod chaos;
pub mod judge;

#[cfg(test)]
mod audit;
#[cfg(test)]
mod deploy;
#[cfg(test)]
mod fence;
#[cfg(test)]
mod fleet;
#[cfg(test)]
mod moves;
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
