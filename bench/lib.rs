//! Loads for measurements: what the benchmarks decode, store and apply.

pub mod load;
