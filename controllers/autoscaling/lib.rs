//! Controllers that size workloads.

use controllers_kit::Factory;

pub mod horizontal_pod_autoscaler;

/// All controllers of this group.
pub const REGISTRY: &[Factory] = &[Factory::of::<
    horizontal_pod_autoscaler::HorizontalPodAutoscalers,
>()];
