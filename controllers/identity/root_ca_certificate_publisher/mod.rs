//! Keeps a ConfigMap `kube-root-ca.crt` in every active namespace, with the certificates by which pods
//! verify the API server.
//!
//! Watches namespaces and the ConfigMaps of that name; creates and restores ConfigMaps; a key per namespace;
//! remembers nothing. Restored are the data, which must be `ca.crt` alone, and the annotation that describes
//! the ConfigMap, where it is missing or the data had to be restored; other metadata and `binaryData` are the
//! user's.
//!
//! Without `--root-ca-file` the node fills the flag's content with the certificates of the manager's own
//! kubeconfig.

use controllers_kit::{
    Controller, Descriptor, FlagDefault, Flags, Key, Plan, Refusal, Sharding, Snapshot, Watches,
};
use kubernetes_proto::{
    Object, Str,
    core::{ConfigMap, Namespace},
};

use crate::is_active;

/// Its name, which every pod's token volume refers to.
const NAME: &str = "kube-root-ca.crt";
/// The one key of its data.
const CERTIFICATES: &str = "ca.crt";
/// The annotation's key and value, part of the API.
const DESCRIPTION_KEY: &str = "kubernetes.io/description";
const DESCRIPTION: &str = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes clusters.";

/// The controller.
pub struct RootCaCertificatePublisher {
    certificates: String,
}

impl Controller for RootCaCertificatePublisher {
    type Memory = ();

    fn describe() -> Descriptor {
        Descriptor::new(
            "root-ca-certificate-publisher-controller",
            Sharding::ByNamespace,
        )
        .aliases(&["root-ca-cert-publisher"])
        .service_account("root-ca-cert-publisher")
        .queue("root_ca_cert_publisher")
        .sync_metrics("root_ca_cert_publisher_sync")
        .flag(
            "root-ca-file",
            FlagDefault::File,
            "The PEM file of the certificate authorities by which pods verify the API server; by default those of the manager's own kubeconfig.",
        )
        .reads::<Namespace>()
        .writes::<ConfigMap>(&["create"])
        .rule_for("", "configmaps", &[NAME], &["patch"])
        .differences(include_str!("differences.md"))
    }

    fn new(flags: &Flags) -> Self {
        let file = flags.file("root-ca-file").unwrap_or_default();
        Self {
            certificates: String::from_utf8_lossy(file).into_owned(),
        }
    }

    fn watch(&self, on: &mut Watches) {
        on.kind::<Namespace>().wakes_itself();
        on.kind::<ConfigMap>()
            .only_named(NAME)
            .wakes(|change, _| vec![Key::cluster(change.newest().metadata().namespace.clone())]);
    }

    fn plan(&self, key: &Key, seen: &Snapshot<'_>, (): &mut ()) -> Result<Plan, Refusal> {
        let mut plan = Plan::nothing();
        if !seen
            .get::<Namespace>(key)
            .is_some_and(|namespace| is_active(&namespace))
        {
            return Ok(plan);
        }
        let published = Key::new(key.name.clone(), NAME);
        match seen.get::<ConfigMap>(&published) {
            None => {
                let mut new = ConfigMap::default();
                let meta = new.metadata_mut();
                meta.name = Str::interned(NAME);
                meta.namespace = published.namespace;
                self.publish_in(&mut new);
                plan.create(&new);
            }
            Some(old) if !self.is_published_in(&old) => {
                let mut new = ConfigMap::clone(&old);
                self.publish_in(&mut new);
                plan.update(&*old, &new);
            }
            Some(_) => {}
        }
        Ok(plan)
    }
}

impl RootCaCertificatePublisher {
    /// Any description will do; the data must be exact.
    fn is_published_in(&self, map: &ConfigMap) -> bool {
        let described = map
            .metadata()
            .annotation(DESCRIPTION_KEY)
            .is_some_and(|text| !text.is_empty());
        described && map.data.len() == 1 && map.data.get(CERTIFICATES) == Some(&self.certificates)
    }

    fn publish_in(&self, map: &mut ConfigMap) {
        map.data.clear();
        map.data
            .insert(CERTIFICATES.to_owned(), self.certificates.clone());
        map.metadata_mut()
            .set_annotation(DESCRIPTION_KEY, DESCRIPTION);
    }
}

#[cfg(test)]
mod tests;
