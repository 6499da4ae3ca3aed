//! Publishes the authorities of the API server's serving certificates as a ClusterTrustBundle, and deletes
//! other bundles of that signer.
//!
//! Watches the bundles of signer `kubernetes.io/kube-apiserver-serving` and no others, in v1beta1 or, on
//! servers without it, v1alpha1; creates, patches and deletes them; one key; remembers nothing. A bundle's
//! name follows from its content, so a new authority creates a new bundle before the old one is deleted.

use controllers_kit::{
    Controller, Descriptor, FlagDefault, Flags, Key, Only, Plan, Propagation, Refusal, Runs,
    Sharding, SignedDuration, Snapshot, Watches,
};
use kubernetes_proto::{
    Object, Resource, Str,
    certificates::{ClusterTrustBundleSpec, ServingTrustBundle, ServingTrustBundleAlpha},
};
use ring::digest;

const GATE: &str = "ClusterTrustBundle";
const SIGNER: &str = "kubernetes.io/kube-apiserver-serving";
const GROUP: &str = "certificates.k8s.io";
/// How many bytes of its content's hash a bundle's name has.
const HASHED: usize = 12;
/// The requeue delay where discovery has not been read yet, or shows no such resource.
const DISCOVERED_BY_THEN: SignedDuration = SignedDuration::from_secs(1);
const SERVED_BY_THEN: SignedDuration = SignedDuration::from_mins(1);

fn only_key() -> Key {
    Key::cluster("kube-apiserver-serving")
}

/// The bundles of either version.
trait Bundle: Object {
    fn of(spec: ClusterTrustBundleSpec) -> Self;
    fn spec(&self) -> Option<&ClusterTrustBundleSpec>;
    fn set_spec(&mut self, spec: ClusterTrustBundleSpec);
}

macro_rules! bundle {
    ($type:ty) => {
        impl Bundle for $type {
            fn of(spec: ClusterTrustBundleSpec) -> Self {
                Self {
                    metadata: None,
                    spec: Some(spec),
                }
            }
            fn spec(&self) -> Option<&ClusterTrustBundleSpec> {
                self.spec.as_ref()
            }
            fn set_spec(&mut self, spec: ClusterTrustBundleSpec) {
                self.spec = Some(spec);
            }
        }
    };
}
bundle!(ServingTrustBundle);
bundle!(ServingTrustBundleAlpha);

/// The controller.
pub struct ServingTrustBundlePublisher {
    authorities: String,
}

impl Controller for ServingTrustBundlePublisher {
    type Memory = ();

    fn describe() -> Descriptor {
        Descriptor::new(
            "kube-apiserver-serving-clustertrustbundle-publisher-controller",
            Sharding::Single,
        )
        .service_account("kube-apiserver-serving-clustertrustbundle-publisher")
        .queue("ca_cert_publisher_cluster_trust_bundles")
        .sync_metrics("clustertrustbundle_publisher_sync")
        .gate(GATE, false)
        .flag(
            "root-ca-file",
            FlagDefault::File,
            "The PEM file of the certificate authorities by which pods verify the API server; by default those of the manager's own kubeconfig.",
        )
        .runs_where(|flags| {
            if !flags.bool(GATE) {
                Runs::No("the feature gate ClusterTrustBundle is off")
            } else if flags.file("root-ca-file").is_none_or(<[u8]>::is_empty) {
                Runs::No("there are no authorities, neither by --root-ca-file nor in the kubeconfig")
            } else {
                Runs::Yes
            }
        })
        .rule_for(GROUP, "signers", &[SIGNER], &["attest"])
        .rule(
            GROUP,
            "clustertrustbundles",
            &["list", "watch", "create", "patch", "delete"],
        )
        .differences(include_str!("differences.md"))
    }

    fn new(flags: &Flags) -> Self {
        let file = flags.file("root-ca-file").unwrap_or_default();
        Self {
            authorities: String::from_utf8_lossy(file).into_owned(),
        }
    }

    fn watch(&self, on: &mut Watches) {
        on.always(|| vec![only_key()]);
        on.catalogue();
        on.kind::<ServingTrustBundle>()
            .where_served()
            .wakes(|_, _| vec![only_key()]);
        on.kind::<ServingTrustBundleAlpha>()
            .where_served()
            .wakes(|_, _| vec![only_key()]);
    }

    fn plan(&self, key: &Key, seen: &Snapshot<'_>, (): &mut ()) -> Result<Plan, Refusal> {
        if *key != only_key() {
            return Ok(Plan::nothing());
        }
        let catalogue = seen.catalogue();
        let is_served = |resource: &Resource| {
            catalogue.all().iter().any(|entry| {
                let served = entry.resource;
                (served.group, served.version, served.plural)
                    == (resource.group, resource.version, resource.plural)
            })
        };
        if is_served(ServingTrustBundle::resource()) {
            Ok(self.publish::<ServingTrustBundle>(seen))
        } else if is_served(ServingTrustBundleAlpha::resource()) {
            Ok(self.publish::<ServingTrustBundleAlpha>(seen))
        } else {
            let by_then = match catalogue.is_known() {
                true => SERVED_BY_THEN,
                false => DISCOVERED_BY_THEN,
            };
            Ok(Plan::nothing().requeued_at(seen.now + by_then))
        }
    }
}

impl ServingTrustBundlePublisher {
    fn publish<B: Bundle>(&self, seen: &Snapshot<'_>) -> Plan {
        let mut plan = Plan::nothing();
        let name = self.name();
        let wanted = ClusterTrustBundleSpec {
            signer_name: SIGNER.to_owned(),
            trust_bundle: self.authorities.clone(),
        };
        match seen.get::<B>(&Key::cluster(name.as_str())) {
            None => {
                let mut bundle = B::of(wanted);
                bundle.metadata_mut().name = Str::from(name.as_str());
                plan.create(&bundle);
            }
            Some(bundle) => {
                if bundle.spec().map(|spec| &spec.trust_bundle) != Some(&self.authorities) {
                    let mut new = B::clone(&bundle);
                    let mut spec = bundle.spec().cloned().unwrap_or_default();
                    spec.trust_bundle.clone_from(&self.authorities);
                    new.set_spec(spec);
                    plan.update(&*bundle, &new);
                }
            }
        }
        plan.then();
        for other in seen.all::<B>() {
            if *Object::metadata(&*other).name != *name {
                plan.delete(&*other, Only::ThisUid, Propagation::Background);
            }
        }
        plan
    }

    /// The name of the bundle: the signer's, and the beginning of the content's hash.
    fn name(&self) -> String {
        let hash = digest::digest(&digest::SHA256, self.authorities.as_bytes());
        let hash: String = hash.as_ref()[..HASHED]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        format!("{}:{hash}", SIGNER.replace('/', ":"))
    }
}

#[cfg(test)]
mod tests;
