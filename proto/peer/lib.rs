//! peer-proto
