//! The running manager: what the controllers decide is fetched, fenced and written here.

pub mod args;
pub mod auth;
pub mod components;
pub mod credentials;
pub mod http;
pub mod metrics;
pub mod options;
pub mod serving;
pub mod telemetry;
