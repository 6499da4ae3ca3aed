//! The actors: thin shells round the queue, the plans and the writer.

pub mod controller;
pub mod host;
pub mod pacing;
pub mod range;
mod scan;
pub mod watch;

#[cfg(test)]
mod tests;
