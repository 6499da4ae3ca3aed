//! Differences that are meant. Each has its reason in controllers/README.md, word for word.

use super::Difference;

/// One that is met wherever it fits.
#[derive(Debug)]
pub(crate) struct Expectation {
    pub(crate) name: &'static str,
    /// A sentence of a controller's `differs`.
    pub(crate) reason: &'static str,
    /// Whether it is upstream's chance that decides if it is met.
    pub(crate) by_chance: bool,
    pub(crate) fits: fn(&Difference) -> bool,
}

pub(crate) const EXPECTED: &[Expectation] = &[
    Expectation {
        name: "a node that is gone is not counted",
        reason: "A node that is gone wakes the DaemonSets that fitted it; upstream counts it until something else does. \
                 While surging, a pod on a node that is gone does not stop the rollout on the others.",
        by_chance: false,
        fits: |one| one.scenario == "daemonset-node-deleted" && is_status_of(one, "DaemonSet logs"),
    },
    Expectation {
        name: "a taint is told in the status",
        reason: "A taint that only keeps new pods off a node is told in the status at once, where upstream's status \
                 waits for something else to happen.",
        by_chance: false,
        fits: |one| {
            one.scenario == "daemonset-taints"
                && one.look == "it stays"
                && is_status_of(one, "DaemonSet logs")
        },
    },
    Expectation {
        name: "a CronJob tells things once",
        reason: "An event is told once while its reason lasts (MissSchedule and JobAlreadyActive: once for each time), \
                 where upstream repeats it whenever anything wakes the CronJob.",
        by_chance: false,
        fits: |one| {
            one.object == "event"
                && one.path.contains("(cronjob-controller)")
                && [
                    "MissSchedule",
                    "JobAlreadyActive",
                    "UnexpectedJob",
                    "SawCompletedJob",
                ]
                .iter()
                .any(|reason| one.path.contains(reason))
                && (one.theirs.as_str(), one.ours.as_str()) == ("several", "one")
        },
    },
    Expectation {
        name: "conflicts are told in no event",
        reason: "A conflict is told in no event, where upstream tells of those that its own cache runs into.",
        by_chance: true,
        fits: |one| {
            one.object == "event"
                && one.path.contains("(statefulset-controller)")
                && one
                    .path
                    .contains("the object has been modified; please apply your changes")
                && one.ours == "nothing"
        },
    },
];

/// In the status, or in who has last written which of its fields.
fn is_status_of(one: &Difference, object: &str) -> bool {
    one.object == object
        && (one.path.starts_with("/status/")
            || (one.path.starts_with("/metadata/managedFields/")
                && one.path.contains("/f:status/")))
}

/// The expectation that explains it.
pub(crate) fn reason(difference: &Difference) -> Option<&'static Expectation> {
    EXPECTED.iter().find(|one| (one.fits)(difference))
}

/// Those that must be met when every scenario has run.
pub(crate) fn always_met() -> impl Iterator<Item = &'static str> {
    let always = EXPECTED.iter().filter(|one| !one.by_chance);
    always.map(|one| one.name)
}
