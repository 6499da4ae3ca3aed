//! coordinator-core
