//! controllers-identity
