//! The running manager: what the controllers decide is fetched, fenced and written here.

pub mod actors;
pub mod api_server;
pub mod apply;
pub mod args;
pub mod ask;
pub mod clock;
pub mod credentials;
pub mod events;
pub mod gate;
pub mod limit;
pub mod metrics;
pub mod node;
pub mod options;
pub mod queue;
pub mod reconcile;
pub mod registry;
pub mod run;
pub mod server;
pub mod shared;
pub mod view;
pub mod write;
