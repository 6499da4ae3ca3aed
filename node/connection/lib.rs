//! The way to the API server: where it is, who this process is to it, and credentials that change.

pub mod components;
pub mod rotation;
