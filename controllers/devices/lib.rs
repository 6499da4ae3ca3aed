//! Controllers of devices: claims made, reserved and freed, devices with taints, pods in groups.

use controllers_kit::Factory;

/// All controllers of this group.
pub const REGISTRY: &[Factory] = &[];
