//! controllers-apps
