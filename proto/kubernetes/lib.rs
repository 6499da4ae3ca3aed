//! kubernetes-proto
