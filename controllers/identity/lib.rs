//! Controllers of identities: service accounts and their tokens, certificates, bootstrap tokens, aggregated
//! roles, and what pods need to know whom they speak to.

use controllers_kit::Factory;

mod accounts;
mod bootstrap;
pub mod bootstrap_signer;
pub mod certificatesigningrequest_approving;
pub mod certificatesigningrequest_cleaner;
pub mod certificatesigningrequest_signing;
pub mod clusterrole_aggregation;
mod der;
pub mod kube_apiserver_serving_clustertrustbundle_publisher;
pub mod legacy_serviceaccount_token_cleaner;
pub mod podcertificaterequest_cleaner;
mod requests;
pub mod root_ca_certificate_publisher;
pub mod serviceaccount;
pub mod serviceaccount_token;
pub mod token_cleaner;
pub mod x509;

/// All controllers of this group.
pub const REGISTRY: &[Factory] = &[
    Factory::of::<serviceaccount::ServiceAccounts>(),
    Factory::of::<root_ca_certificate_publisher::RootCaCertificatePublisher>(),
    Factory::of::<clusterrole_aggregation::ClusterRoleAggregation>(),
    Factory::of::<token_cleaner::TokenCleaner>(),
    Factory::of::<bootstrap_signer::BootstrapSigner>(),
    Factory::of::<certificatesigningrequest_cleaner::CertificateSigningRequestCleaner>(),
    Factory::of::<certificatesigningrequest_approving::CertificateSigningRequestApproving>(),
    Factory::of::<certificatesigningrequest_signing::CertificateSigningRequestSigning>(),
    Factory::of::<serviceaccount_token::ServiceAccountTokens>(),
    Factory::of::<legacy_serviceaccount_token_cleaner::LegacyServiceAccountTokenCleaner>(),
    Factory::of::<podcertificaterequest_cleaner::PodCertificateRequestCleaner>(),
    Factory::of::<kube_apiserver_serving_clustertrustbundle_publisher::ServingTrustBundlePublisher>(
    ),
];

/// Whether objects can be created in a namespace: it exists, is active, and is not being deleted.
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
