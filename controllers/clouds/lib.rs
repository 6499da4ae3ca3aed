//! Controllers of clouds: load balancers, routes, and nodes that a provider no longer has.

use controllers_kit::Factory;

/// All controllers of this group.
pub const REGISTRY: &[Factory] = &[];
