//! selectors
