//! Which account a token's Secret is of: what both controllers of such Secrets ask.

use std::sync::Arc;

use controllers_kit::{Key, Snapshot, Str};
use kubernetes_proto::{
    Object,
    core::{ServiceAccount, ServiceAccountToken},
};

/// The annotations that name a Secret's account.
pub const ACCOUNT: &str = "kubernetes.io/service-account.name";
pub const UID: &str = "kubernetes.io/service-account.uid";
/// The index of Secrets by the account that they name.
pub const BY_ACCOUNT: &str = "account";

/// A Secret's account; texts are empty where it names none.
pub struct Named {
    pub account: Str,
    pub uid: Str,
}

/// The account that a Secret names.
pub fn named(secret: &ServiceAccountToken) -> Named {
    let text = |key| Object::metadata(secret).annotation(key).unwrap_or_default();
    Named {
        account: text(ACCOUNT).into(),
        uid: text(UID).into(),
    }
}

/// A value of [`BY_ACCOUNT`].
pub fn place(namespace: &str, account: &str) -> String {
    format!("{namespace}/{account}")
}

/// The values of [`BY_ACCOUNT`] of a Secret.
pub fn index(secret: &ServiceAccountToken) -> Vec<Str> {
    let named = named(secret);
    match named.account.is_empty() {
        true => Vec::new(),
        false => vec![place(&Object::metadata(secret).namespace, &named.account).into()],
    }
}

/// The named account, if it has the uid.
pub fn find(seen: &Snapshot<'_>, namespace: &str, named: &Named) -> Option<Arc<ServiceAccount>> {
    seen.get::<ServiceAccount>(&Key::new(namespace, named.account.clone()))
        .filter(|account| named.uid.is_empty() || named.uid == Object::metadata(&**account).uid)
}
