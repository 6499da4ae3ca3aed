//! Controllers of the backends of Services: Endpoints, EndpointSlices, and the slices that mirror Endpoints
//! made by hand; and of the ranges that Services' addresses are taken from.

use controllers_kit::Factory;

mod batching;
pub mod endpoints;
pub mod endpointslice;
pub mod endpointslice_mirroring;
pub mod service_cidr;
mod services;
mod slices;
mod subsets;

/// All controllers of this group.
pub const REGISTRY: &[Factory] = &[
    Factory::of::<endpoints::EndpointsOfServices>(),
    Factory::of::<endpointslice::SlicesOfServices>(),
    Factory::of::<endpointslice_mirroring::MirroredSlices>(),
    Factory::of::<service_cidr::ServiceCidrs>(),
];

#[cfg(test)]
mod tests;
