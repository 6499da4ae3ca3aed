//! Puts the account's token into each Secret of type `kubernetes.io/service-account-token`, and deletes the
//! Secret when the account is gone.
//!
//! Watches those Secrets and no others, and ServiceAccounts; patches and deletes Secrets, patches accounts;
//! a key per Secret. Remembers a Secret's account, by name and uid, so that the account's reference to it
//! can be removed when it is deleted; losing that leaves a reference behind, as a restart of upstream does.
//!
//! The token is signed by the node, which keeps the key. Neither the token nor any other content of a
//! Secret can be printed.

use std::collections::BTreeMap;

use controllers_kit::{
    Action, Answer, Confidential, Controller, Descriptor, FlagDefault, Flags, Key, Only, PatchKind,
    Plan, Propagation, Query, Refusal, Runs, Sharding, Snapshot, StatusWrite, Str, Verb, Watches,
};
use kubernetes_proto::{
    Object,
    core::{ServiceAccount, ServiceAccountToken},
    meta::ObjectMeta,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::accounts::{self, ACCOUNT, BY_ACCOUNT, UID};

/// The flag that names the file of the key.
pub const KEY_FILE: &str = "service-account-private-key-file";
const CA: &str = "ca.crt";
const NAMESPACE: &str = "namespace";
const TOKEN: &str = "token";
const ISSUER: &str = "kubernetes/serviceaccount";

/// Whose a Secret was when it was last seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Whose {
    account: Str,
    /// The account's uid in the Secret; empty without one.
    uid: Str,
}

/// The controller.
pub struct ServiceAccountTokens {
    ca: Confidential,
}

impl Controller for ServiceAccountTokens {
    type Memory = Whose;

    fn describe() -> Descriptor {
        Descriptor::new("serviceaccount-token-controller", Sharding::ByObject)
            .aliases(&["serviceaccount-token"])
            // Upstream builds it before all others, without consulting `--controllers`.
            .runs_unlisted()
            .service_account("tokens-controller")
            .queue("serviceaccount_tokens_service")
            .workers(
                "concurrent-serviceaccount-token-syncs",
                5,
                "The number of service account token Secrets that each replica handles concurrently.",
            )
            .flag(
                KEY_FILE,
                FlagDefault::Text(""),
                "Private RSA or ECDSA key, PEM, that signs service account tokens; reloaded when the file changes.",
            )
            .flag(
                "root-ca-file",
                FlagDefault::File,
                "The PEM file of the certificate authorities by which pods verify the API server; by default those of the manager's own kubeconfig.",
            )
            .runs_where(|flags| match flags.text(KEY_FILE) {
                "" => Runs::No("there is no --service-account-private-key-file"),
                _ => Runs::Yes,
            })
            .rule("", "secrets", &["list", "watch", "patch", "delete"])
            .rule("", "serviceaccounts", &["get", "list", "watch", "patch"])
            .differences(include_str!("differences.md"))
    }

    fn new(flags: &Flags) -> Self {
        Self {
            ca: flags
                .file("root-ca-file")
                .unwrap_or_default()
                .to_vec()
                .into(),
        }
    }

    fn watch(&self, on: &mut Watches) {
        on.kind::<ServiceAccountToken>()
            .indexed_by(BY_ACCOUNT, accounts::index)
            .wakes_itself();
        on.kind::<ServiceAccount>().wakes(|change, reader| {
            let meta = Object::metadata(change.newest());
            let named = accounts::place(&meta.namespace, &meta.name);
            reader
                .indexed(ServiceAccountToken::resource(), BY_ACCOUNT, &named)
                .iter()
                .map(|secret| Key::of_meta(secret.metadata()))
                .collect()
        });
    }

    fn ask(&self, key: &Key, seen: &Snapshot<'_>, whose: &Whose) -> Vec<Query> {
        let Some(secret) = seen.get::<ServiceAccountToken>(key) else {
            return match whose.account.is_empty() {
                true => Vec::new(),
                false => vec![live(&key.namespace, &whose.account)],
            };
        };
        let named = accounts::named(&secret);
        if named.account.is_empty() {
            return Vec::new();
        }
        match accounts::find(seen, &key.namespace, &named) {
            None => vec![live(&key.namespace, &named.account)],
            Some(account) if secret.data.get(TOKEN).is_none_or(Confidential::is_empty) => {
                vec![sign(&account, &secret)]
            }
            Some(_) => Vec::new(),
        }
    }

    fn plan(&self, key: &Key, seen: &Snapshot<'_>, whose: &mut Whose) -> Result<Plan, Refusal> {
        let mut plan = Plan::nothing();
        let Some(secret) = seen.get::<ServiceAccountToken>(key) else {
            return forget(key, seen, whose);
        };
        let named = accounts::named(&secret);
        whose.account = named.account.clone();
        whose.uid = named.uid.clone();
        if named.account.is_empty() {
            return Ok(plan);
        }
        let Some(account) = accounts::find(seen, &key.namespace, &named) else {
            return match seen.answer(&live(&key.namespace, &named.account)) {
                Some(Answer::Object(account)) if is_it(account, &named.uid) => Err(Refusal::Wait(
                    format!("the account {} is not in the cache yet", named.account),
                )),
                Some(Answer::Object(_) | Answer::Missing) => {
                    plan.delete(&*secret, Only::ThisUid, Propagation::Background);
                    Ok(plan)
                }
                Some(Answer::Failed(why)) => Err(Refusal::Retry(why.clone())),
                _ => Err(Refusal::Retry("the account was not asked for".to_owned())),
            };
        };
        let new = self.filled(&account, &secret, seen)?;
        plan.update(&*secret, &new);
        Ok(plan)
    }
}

impl ServiceAccountTokens {
    /// The Secret with all that it lacks.
    fn filled(
        &self,
        account: &ServiceAccount,
        secret: &ServiceAccountToken,
        seen: &Snapshot<'_>,
    ) -> Result<ServiceAccountToken, Refusal> {
        let mut new = secret.clone();
        let lacks = |field: &str| secret.data.get(field).is_none_or(Confidential::is_empty);
        let data = &mut new.data;
        if !self.ca.is_empty() && secret.data.get(CA) != Some(&self.ca) {
            data.insert(CA.to_owned(), self.ca.clone());
        }
        let meta = Object::metadata(account);
        if lacks(NAMESPACE) {
            data.insert(NAMESPACE.to_owned(), meta.namespace.as_str().into());
        }
        if lacks(TOKEN) {
            let token = match seen.answer(&sign(account, secret)) {
                Some(Answer::Object(token)) => token.as_str().unwrap_or_default().into(),
                Some(Answer::Failed(why)) => return Err(Refusal::Retry(why.clone())),
                _ => {
                    return Err(Refusal::Retry(
                        "there is no key to sign tokens with".to_owned(),
                    ));
                }
            };
            data.insert(TOKEN.to_owned(), token);
        }
        if new.data != secret.data {
            let annotations = new.metadata_mut();
            annotations.set_annotation(ACCOUNT, &meta.name);
            annotations.set_annotation(UID, &meta.uid);
        }
        Ok(new)
    }
}

fn live(namespace: &str, account: &str) -> Query {
    Query::Live {
        resource: ServiceAccount::resource(),
        key: Key::new(namespace, account),
    }
}

/// Whether an account, read live, has a uid; any account does where none is named.
fn is_it(account: &Value, uid: &str) -> bool {
    uid.is_empty() || account["metadata"]["uid"] == uid
}

/// The token for a Secret of this name. It does not expire.
fn sign(account: &ServiceAccount, secret: &ServiceAccountToken) -> Query {
    let ObjectMeta {
        namespace,
        name,
        uid,
        ..
    } = Object::metadata(account);
    let subject = format!("system:serviceaccount:{namespace}:{name}");
    let secret = &Object::metadata(secret).name;
    // Sorted by name, as Go writes them.
    let claims: BTreeMap<&str, &str> = [
        ("iss", ISSUER),
        ("kubernetes.io/serviceaccount/namespace", namespace.as_str()),
        ("kubernetes.io/serviceaccount/secret.name", secret.as_str()),
        (
            "kubernetes.io/serviceaccount/service-account.name",
            name.as_str(),
        ),
        (
            "kubernetes.io/serviceaccount/service-account.uid",
            uid.as_str(),
        ),
        ("sub", &subject),
    ]
    .into();
    Query::Token {
        claims: serde_json::to_string(&claims).expect("texts are JSON"),
    }
}

/// Removes the reference to a deleted Secret from its account.
fn forget(key: &Key, seen: &Snapshot<'_>, whose: &mut Whose) -> Result<Plan, Refusal> {
    let mut plan = Plan::nothing();
    if whose.account.is_empty() {
        return Ok(plan);
    }
    let account = match seen.answer(&live(&key.namespace, &whose.account)) {
        Some(Answer::Object(account)) => account,
        Some(Answer::Failed(why)) => return Err(Refusal::Retry(why.clone())),
        _ => {
            *whose = Whose::default();
            return Ok(plan);
        }
    };
    let meta = &account["metadata"];
    let references = account["secrets"].as_array().into_iter().flatten();
    let refers = references
        .into_iter()
        .any(|reference| reference["name"] == key.name.as_str());
    if !refers || !is_it(account, &whose.uid) {
        *whose = Whose::default();
        return Ok(plan);
    }
    // Remembered until it is seen to be removed: the write may meet a conflict.
    plan.act(Action {
        verb: Verb::Patch {
            subresource: "",
            kind: PatchKind::Strategic,
            patch: json!({"secrets": [{"$patch": "delete", "name": key.name.as_str()}]}),
            report: StatusWrite::No,
        },
        resource: ServiceAccount::resource(),
        key: Key::new(key.namespace.clone(), whose.account.clone()),
        uid: meta["uid"].as_str().unwrap_or_default().into(),
        resource_version: meta["resourceVersion"]
            .as_str()
            .and_then(|version| version.parse().ok())
            .or(meta["resourceVersion"].as_u64())
            .unwrap_or(0),
        announcement: None,
    });
    plan.requeue_now();
    Ok(plan)
}

#[cfg(test)]
mod tests;
