//! Edits of a pod's spec that is carried as bytes: top-level fields of the message are added or replaced, and
//! all else stays byte for byte, so that fields which this build has never heard of survive.

pub mod containers;
mod fields;
pub mod placement;
mod secrets;
pub mod volumes;

pub use fields::Malformed;
pub use secrets::secrets;

#[cfg(test)]
mod tests;
