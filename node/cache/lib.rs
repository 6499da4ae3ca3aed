//! Keeps a copy of what controllers read: watches the API server, decodes into projections, stores and
//! indexes them.
//!
//! One watch and one store for each resource serve all controllers. What a store holds may be older than what
//! the server holds, but it is always a state that the server once had, and [`Cache::passed`] says how far it
//! has come.

mod ages;
pub mod api;
mod cache;
mod digest;
mod history;
mod only;
pub mod proxy;
mod slot;
mod socket;
mod store;
mod switch;
mod watch;

pub use api::{Api, ApiError, ConnectError, Exchange, Observe, Purpose, Request, Response, Status};
pub use cache::{Builder, Cache, Freshness};
pub use digest::Digest;
pub use only::{NotSent, Writes, refuse_all_but};
pub use slot::{Order, Sight, State, Stats};
pub use socket::Guard;
pub use switch::{Refusals, Validity};
pub use watch::{Renewed, Settings};

/// A lock whatever became of its last holder: what the locks here guard is changed in single steps, so a
/// panic of a holder leaves nothing half done.
fn unpoisoned<T>(result: Result<T, std::sync::PoisonError<T>>) -> T {
    result.unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
