//! Logs, metrics and traces of the process.

mod logs;
pub mod metrics;
pub mod trace;

pub use logs::{Telemetry, Verbosity, start};
