//! manifold
fn main() {}
