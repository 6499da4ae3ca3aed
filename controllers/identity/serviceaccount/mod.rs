//! Keeps a ServiceAccount `default` in every active namespace: without it no pod can be created there.
//!
//! Watches namespaces and the ServiceAccounts of that name; creates ServiceAccounts; a key per namespace;
//! remembers nothing. One that is being deleted still holds the name: its successor is created when it is
//! gone.

use controllers_kit::{
    Controller, Descriptor, Flags, Key, Plan, Refusal, Sharding, Snapshot, Watches,
};
use kubernetes_proto::{
    Object, Str,
    core::{Namespace, ServiceAccount},
};

use crate::is_active;

/// The account of pods that name none.
const DEFAULT: &str = "default";

/// The controller.
pub struct ServiceAccounts;

impl Controller for ServiceAccounts {
    type Memory = ();

    fn describe() -> Descriptor {
        Descriptor::new("serviceaccount-controller", Sharding::ByNamespace)
            .aliases(&["serviceaccount"])
            .service_account("service-account-controller")
            .queue("serviceaccount")
            .reads::<Namespace>()
            .writes::<ServiceAccount>(&["create"])
            .differences(include_str!("differences.md"))
    }

    fn new(_: &Flags) -> Self {
        Self
    }

    fn watch(&self, on: &mut Watches) {
        on.kind::<Namespace>().wakes_itself();
        on.kind::<ServiceAccount>()
            .only_named(DEFAULT)
            .wakes(|change, _| match change.new {
                Some(_) => Vec::new(),
                None => vec![Key::cluster(change.newest().metadata().namespace.clone())],
            });
    }

    fn plan(&self, key: &Key, seen: &Snapshot<'_>, (): &mut ()) -> Result<Plan, Refusal> {
        let mut plan = Plan::nothing();
        if !seen
            .get::<Namespace>(key)
            .is_some_and(|namespace| is_active(&namespace))
        {
            return Ok(plan);
        }
        let account = Key::new(key.name.clone(), DEFAULT);
        if seen.get::<ServiceAccount>(&account).is_none() {
            let mut new = ServiceAccount::default();
            let meta = new.metadata_mut();
            meta.name = Str::interned(DEFAULT);
            meta.namespace = account.namespace;
            plan.create(&new);
        }
        Ok(plan)
    }
}

#[cfg(test)]
mod tests;
