//! Everything that is tested from outside a crate: one binary, a module per suite.

#[cfg(test)]
mod tidy;
