//! Controllers of identities: service accounts, and what pods need to know whom they speak to.

use controllers_kit::Factory;

pub mod root_ca_certificate_publisher;
pub mod serviceaccount;

/// All controllers of this group.
pub const REGISTRY: &[Factory] = &[
    Factory::of::<serviceaccount::ServiceAccounts>(),
    Factory::of::<root_ca_certificate_publisher::RootCaCertificatePublisher>(),
];

/// Whether something can be made in a namespace: it is there, active, and not being deleted.
fn is_active(namespace: &kubernetes_proto::core::Namespace) -> bool {
    use kubernetes_proto::Object;
    let phase = namespace
        .status
        .as_ref()
        .map(|status| status.phase.as_str());
    phase == Some("Active") && !namespace.is_terminating()
}

#[cfg(test)]
mod tests;
