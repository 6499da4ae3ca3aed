//! The running manager: what the controllers decide is fetched, fenced and written here.

pub mod args;
pub mod metrics;
pub mod options;
