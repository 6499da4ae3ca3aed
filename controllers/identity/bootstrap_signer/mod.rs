//! Signs the kubeconfig in ConfigMap kube-public/`cluster-info` with every bootstrap token that may sign,
//! so that a client that joins with a token can verify that the cluster knows the token.
//!
//! Watches that ConfigMap alone, and the Secrets of type `bootstrap.kubernetes.io/token` in kube-system;
//! patches the ConfigMap; one key; remembers nothing. A signature is a JWS without its content (RFC 7515,
//! appendix F), keyed by the token's secret; it is the same whenever it is made. Signatures of other tokens
//! are removed.

use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use controllers_kit::{
    Confidential, Controller, Descriptor, Flags, Key, Plan, Refusal, Sharding, Snapshot, Watches,
};
use kubernetes_proto::core::{BootstrapToken, ClusterInfo};
use ring::hmac;

use crate::bootstrap::{self, Expiry};

const NAMESPACE: &str = "kube-public";
const NAME: &str = "cluster-info";
/// What is signed.
const KUBECONFIG: &str = "kubeconfig";
/// The prefix of a signature's name; the token's id follows.
const SIGNATURE: &str = "jws-kubeconfig-";

fn only_key() -> Key {
    Key::new(NAMESPACE, NAME)
}

/// The controller.
pub struct BootstrapSigner;

impl Controller for BootstrapSigner {
    type Memory = ();

    fn describe() -> Descriptor {
        Descriptor::new("bootstrap-signer-controller", Sharding::Single)
            .aliases(&["bootstrapsigner"])
            .service_account("bootstrap-signer")
            .queue("bootstrap_signer_queue")
            .off_by_default()
            .rule_in(NAMESPACE, "", "configmaps", &[], &["get", "list", "watch"])
            .rule_in(NAMESPACE, "", "configmaps", &[NAME], &["patch"])
            .rule_in(
                bootstrap::NAMESPACE,
                "",
                "secrets",
                &[],
                &["get", "list", "watch"],
            )
            .differences(include_str!("differences.md"))
    }

    fn new(_: &Flags) -> Self {
        Self
    }

    fn watch(&self, on: &mut Watches) {
        on.kind::<ClusterInfo>().wakes_itself();
        on.kind::<BootstrapToken>().wakes(|_, _| vec![only_key()]);
    }

    fn plan(&self, key: &Key, seen: &Snapshot<'_>, (): &mut ()) -> Result<Plan, Refusal> {
        let mut plan = Plan::nothing();
        let Some(info) = seen.get::<ClusterInfo>(key) else {
            return Ok(plan);
        };
        let Some(content) = info.data.get(KUBECONFIG) else {
            return Ok(plan);
        };
        let mut signed = ClusterInfo::clone(&info);
        signed.data.retain(|name, _| !name.starts_with(SIGNATURE));
        let tokens = seen.list::<BootstrapToken>(bootstrap::NAMESPACE);
        let mut signatures = BTreeMap::new();
        for token in &tokens {
            let Some((id, secret)) = bootstrap::for_signing(token, seen.now) else {
                continue;
            };
            if let Expiry::At(at) = bootstrap::expiry(token) {
                plan.requeue_at(at);
            }
            signatures.insert(format!("{SIGNATURE}{id}"), detached(content, id, secret));
        }
        signed.data.append(&mut signatures);
        plan.update(&*info, &signed);
        Ok(plan)
    }
}

/// A compact JWS by HS256 with detached content.
fn detached(content: &str, id: &str, secret: &Confidential) -> String {
    // Six letters and digits, so nothing has to be escaped. The order of fields is part of the signed
    // bytes.
    let header = URL_SAFE_NO_PAD.encode(format!(r#"{{"alg":"HS256","kid":"{id}"}}"#));
    let input = format!("{header}.{}", URL_SAFE_NO_PAD.encode(content));
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.reveal());
    let signature = URL_SAFE_NO_PAD.encode(hmac::sign(&key, input.as_bytes()));
    format!("{header}..{signature}")
}

#[cfg(test)]
mod tests;
