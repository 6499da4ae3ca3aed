//! The checks: each a pure function from facts to a finding.
//!
//! A check's id is stable: scripts select by it. A failed check names the command that repairs it.

mod capacity;
mod certificates;
mod fence;
mod fleet;
mod managers;
mod rights;
mod server;
mod steering;

pub(crate) use managers::{CLOUD, TOKENS};

use crate::facts::{Facts, Unknown};

/// What a check finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// All is well; more for people, or nothing.
    Passed(String),
    /// Nothing is broken, but something may break, or it is not known whether it is.
    Warning {
        /// What is the matter.
        why: String,
        /// Commands that repair it.
        remedy: Vec<String>,
    },
    /// Something is broken.
    Failed {
        /// What is the matter.
        why: String,
        /// Commands that repair it.
        remedy: Vec<String>,
    },
    /// The check does not apply, or its facts are missing for a reason that another check reports.
    Skipped(String),
}

impl Finding {
    fn passed(more: impl Into<String>) -> Self {
        Self::Passed(more.into())
    }

    fn warning<S: Into<String>>(
        why: impl Into<String>,
        remedy: impl IntoIterator<Item = S>,
    ) -> Self {
        Self::Warning {
            why: why.into(),
            remedy: remedy.into_iter().map(Into::into).collect(),
        }
    }

    fn failed<S: Into<String>>(
        why: impl Into<String>,
        remedy: impl IntoIterator<Item = S>,
    ) -> Self {
        Self::Failed {
            why: why.into(),
            remedy: remedy.into_iter().map(Into::into).collect(),
        }
    }

    /// The facts could not be read: `access/read` reports what the credentials lack.
    fn unknown(unknown: &Unknown) -> Self {
        match unknown.forbidden {
            true => Self::Skipped(format!("not known: {} (see access/read)", unknown.why)),
            false => Self::warning(format!("not known: {}", unknown.why), [""; 0]),
        }
    }
}

/// When a check is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// With `--pre` and without.
    Always,
    /// With `--pre` alone.
    Pre,
    /// Without `--pre`.
    Installed,
}

/// One check.
pub struct Check {
    /// `category/name`.
    pub id: &'static str,
    /// What holds where it passes.
    pub title: &'static str,
    /// When it is made.
    pub when: When,
    judge: fn(&Facts) -> Finding,
}

impl Check {
    /// The part of the id before the `/`.
    pub fn category(&self) -> &'static str {
        self.id.split('/').next().unwrap_or(self.id)
    }
}

const fn check(
    id: &'static str,
    title: &'static str,
    when: When,
    judge: fn(&Facts) -> Finding,
) -> Check {
    Check {
        id,
        title,
        when,
        judge,
    }
}

/// A check and its finding.
pub struct Verdict {
    /// The check.
    pub check: &'static Check,
    /// What it found.
    pub finding: Finding,
}

/// All checks, in the order of the report.
pub const CHECKS: &[Check] = &[
    check(
        "kubernetes-api/reachable",
        "the API server answers",
        When::Always,
        server::reachable,
    ),
    check(
        "kubernetes-api/version",
        "its version is one that this build may manage",
        When::Always,
        server::version,
    ),
    check(
        "kubernetes-api/served",
        "it serves the API versions that controllers need",
        When::Always,
        server::served,
    ),
    check(
        "access/read",
        "your credentials may read what the checks need",
        When::Always,
        rights::read,
    ),
    check(
        "access/install",
        "your credentials may install Manifold",
        When::Pre,
        rights::install,
    ),
    check(
        "versions/members",
        "the members run one version",
        When::Installed,
        fleet::versions,
    ),
    check(
        "rbac/manager",
        "the manager's identity has its rights",
        When::Installed,
        rights::manager,
    ),
    check(
        "rbac/controllers",
        "the controllers' service accounts have their rights",
        When::Installed,
        rights::controllers,
    ),
    check(
        "leases/fleet",
        "there is a fleet",
        When::Installed,
        fleet::exists,
    ),
    check(
        "leases/replicas",
        "every replica Lease that is held is renewed",
        When::Installed,
        fleet::renewed,
    ),
    check(
        "leases/ranges",
        "every range has a live owner",
        When::Installed,
        fleet::ranges,
    ),
    check(
        "leases/one-fleet",
        "no other fleet works on this cluster",
        When::Always,
        fleet::only_one,
    ),
    check(
        "leases/priority",
        "requests for Leases have their priority level",
        When::Installed,
        fleet::priority,
    ),
    check(
        "leases/guard",
        "the fleet's Leases are written by the fleet alone",
        When::Installed,
        fleet::guard,
    ),
    check(
        "leases/guard-rights",
        "the guard of its Leases lets the fleet pass",
        When::Installed,
        fleet::guard_rights,
    ),
    check(
        "steering/orders",
        "the orders to the fleet can be read",
        When::Installed,
        steering::orders,
    ),
    check(
        "peers/reachable",
        "the members reach each other",
        When::Installed,
        fleet::peers,
    ),
    check(
        "peers/addresses",
        "each member has an address of its own",
        When::Installed,
        fleet::addresses,
    ),
    check(
        "clocks/local",
        "the local clock agrees with the API server's",
        When::Always,
        server::clock,
    ),
    check(
        "clocks/members",
        "the members' clocks agree with the API server's",
        When::Installed,
        fleet::clocks,
    ),
    check(
        "interlock/guard",
        "one manager at most may write",
        When::Always,
        managers::guard,
    ),
    check(
        "interlock/standbys",
        "no kube-controller-manager waits to take over",
        When::Installed,
        managers::standbys,
    ),
    check(
        "coverage/agree",
        "the members run the same controllers",
        When::Installed,
        managers::agree,
    ),
    check(
        "coverage/complete",
        "every controller runs somewhere",
        When::Installed,
        managers::complete,
    ),
    check(
        "coverage/disjoint",
        "no controller runs in two managers",
        When::Installed,
        managers::disjoint,
    ),
    check(
        "fence/kind",
        "the fence's kind is established",
        When::Installed,
        fence::kind,
    ),
    check(
        "fence/policy",
        "the fence's policy is in place",
        When::Installed,
        fence::policy,
    ),
    check(
        "fence/binding",
        "the fence's binding is in place",
        When::Installed,
        fence::binding,
    ),
    check(
        "fence/rights",
        "the manager may impersonate the controllers' accounts",
        When::Installed,
        fence::rights,
    ),
    check(
        "fence/members",
        "every member writes under its incarnation",
        When::Installed,
        fence::members,
    ),
    check(
        "certificates/client",
        "your client certificate is valid",
        When::Always,
        certificates::client,
    ),
    check(
        "certificates/authority",
        "the API server's authority is trusted and valid",
        When::Always,
        certificates::authority,
    ),
    check(
        "certificates/peers",
        "the peer certificate fits its key and authority",
        When::Always,
        certificates::peers,
    ),
    check(
        "certificates/agree",
        "the members have the same key material",
        When::Installed,
        certificates::agree,
    ),
    check(
        "capacity/members",
        "as many members work as are wanted",
        When::Installed,
        capacity::members,
    ),
    check(
        "capacity/memory",
        "the memory limit fits the cluster's number of pods",
        When::Always,
        capacity::memory,
    ),
];

/// Makes all checks that apply.
pub fn examine(facts: &Facts) -> Vec<Verdict> {
    let applies = |check: &&Check| match check.when {
        When::Always => true,
        When::Pre => facts.asked.pre,
        When::Installed => !facts.asked.pre,
    };
    // Without the API server only it and the credentials can be examined.
    let needs_server = |check: &Check| {
        !check.id.starts_with("certificates/") && check.id != "kubernetes-api/reachable"
    };
    CHECKS
        .iter()
        .filter(applies)
        .map(|check| Verdict {
            check,
            finding: if facts.server.is_err() && needs_server(check) {
                Finding::Skipped("the API server can't be used".to_owned())
            } else if facts.is_shadow() && !is_of_shadows(check) {
                Finding::Skipped("the fleet is a shadow: it writes nothing".to_owned())
            } else {
                (check.judge)(facts)
            },
        })
        .collect()
}

/// Whether a check is of what a shadow has too. Rights to write, the fence, and controllers that another
/// manager runs as well are none of its matters.
fn is_of_shadows(check: &Check) -> bool {
    const OTHERS: [&str; 9] = [
        "coverage/complete",
        "coverage/disjoint",
        "interlock/standbys",
        "leases/guard",
        "leases/guard-rights",
        "leases/one-fleet",
        "leases/priority",
        "rbac/controllers",
        "rbac/manager",
    ];
    check.category() != "fence" && !OTHERS.contains(&check.id)
}

/// Up to this many things are named one by one; of more, the number is given.
const NAMED_MAX: usize = 8;

/// Some names, and how many more there are.
fn some(names: &[String]) -> String {
    let shown = names[..names.len().min(NAMED_MAX)].join(", ");
    match names.len().saturating_sub(NAMED_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
