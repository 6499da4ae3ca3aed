//! A cloud provider in memory that speaks `manifold.cloud.v1`, and the conformance suite for any provider.
//!
//! [`reference::Reference`] is what the tests of the controllers run against, with faults on demand, and an
//! example of how a provider keeps the rules of `proto/cloud/README.md`. [`conformance::check`] runs against
//! any provider; the program `cloud-conformance` is its command line.

pub mod conformance;
pub mod reference;
