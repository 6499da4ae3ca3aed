//! The running manager: what the controllers decide is fetched, fenced and written here.

pub mod metrics;
