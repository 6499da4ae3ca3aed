//! controllers-batch
