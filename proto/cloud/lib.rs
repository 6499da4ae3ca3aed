//! How Manifold asks a cloud provider: see cloud.proto and README.md.
#![allow(missing_docs, clippy::all)]

tonic::include_proto!("manifold.cloud.v1");

/// Bytes of one message in either direction. 5,000 nodes with labels and annotations of 4 kB fit.
pub const MESSAGE_BYTES_MAX: usize = 32 << 20;
/// Routes that a provider may list. A cluster of 10,000 dual-stack nodes has 20,000.
pub const ROUTES_MAX: usize = 50_000;
