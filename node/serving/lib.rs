//! The secure port: what it answers, and who may ask. It knows nothing of queues, ranges or writes.

pub mod auth;
pub mod http;
