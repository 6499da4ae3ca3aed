//! The running manager: what the controllers decide is fetched, fenced and written here.

pub mod apply;
pub mod clock;
pub mod events;
pub mod gate;
pub mod limit;
pub mod metrics;
pub mod queue;
pub mod server;
pub mod write;
