//! Deletes a bootstrap token once it has expired.
//!
//! Watches the Secrets of type `bootstrap.kubernetes.io/token` in kube-system and no others; deletes them
//! by uid; a key per Secret; remembers nothing. An expiration that can't be read counts as expired; without
//! one a token stays.

use controllers_kit::{
    Controller, Descriptor, Flags, Key, Only, Plan, Propagation, Refusal, Sharding, Snapshot,
    Watches,
};
use kubernetes_proto::core::BootstrapToken;

use crate::bootstrap::{self, Expiry};

/// The controller.
pub struct TokenCleaner;

impl Controller for TokenCleaner {
    type Memory = ();

    fn describe() -> Descriptor {
        Descriptor::new("token-cleaner-controller", Sharding::ByObject)
            .aliases(&["tokencleaner"])
            .service_account("token-cleaner")
            .queue("token_cleaner")
            .off_by_default()
            .rule_in(
                bootstrap::NAMESPACE,
                "",
                "secrets",
                &[],
                &["get", "list", "watch", "delete"],
            )
            .differences(include_str!("differences.md"))
    }

    fn new(_: &Flags) -> Self {
        Self
    }

    fn watch(&self, on: &mut Watches) {
        on.kind::<BootstrapToken>().wakes_itself();
    }

    fn plan(&self, key: &Key, seen: &Snapshot<'_>, (): &mut ()) -> Result<Plan, Refusal> {
        let mut plan = Plan::nothing();
        let Some(token) = seen.get::<BootstrapToken>(key) else {
            return Ok(plan);
        };
        match bootstrap::expiry(&token) {
            Expiry::Never => {}
            expiry if expiry.is_over(seen.now) => {
                plan.delete(&*token, Only::ThisUid, Propagation::Background);
            }
            Expiry::At(at) => plan.requeue_at(at),
            Expiry::Unreadable => {}
        }
        Ok(plan)
    }
}

#[cfg(test)]
mod tests;
