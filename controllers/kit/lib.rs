//! controllers-kit
