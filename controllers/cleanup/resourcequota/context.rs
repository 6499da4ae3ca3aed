//! What the files of the controller share: scopes, amounts, and the prefix of an implicit limit.

use kubernetes_proto::{core::Amount, quantity::Exact};

/// One scope condition of a quota; all must hold.
pub(super) struct Scope<'a> {
    pub(super) name: &'a str,
    pub(super) operator: &'a str,
    pub(super) values: &'a [String],
}

impl Scope<'_> {
    /// Whether one of some names is selected; no name counts as an empty one.
    pub(super) fn selects<'n>(&self, mut names: impl Iterator<Item = &'n str>) -> bool {
        let listed = |name: &str| self.values.iter().any(|value| value == name);
        match self.operator {
            "In" => names.any(listed),
            // One of several names that is not listed suffices; so does having none.
            "NotIn" => match names.next() {
                None => true,
                Some(first) => !listed(first) || names.any(|name| !listed(name)),
            },
            "Exists" => names.next().is_some(),
            "DoesNotExist" => names.next().is_none(),
            _ => false,
        }
    }
}

/// An amount of a list.
pub(super) fn amount(amounts: &[Amount], resource: &str) -> Option<Exact> {
    amounts
        .iter()
        .find(|amount| *amount.key == *resource)
        .and_then(exact)
}

/// One amount, as far as it is one.
pub(super) fn exact(amount: &Amount) -> Option<Exact> {
    amount.value.as_ref()?.exact()
}

/// The prefix of the limit on a device class's implicit extended resource.
pub(super) const IMPLICIT: &str = "requests.deviceclass.resource.kubernetes.io/";
