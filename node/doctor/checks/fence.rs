//! The server's fence.

use super::{Finding, rights, some};
use crate::{
    facts::{Facts, Known},
    rights::Source,
};

const INSTALL: &str = "kubectl apply --server-side --force-conflicts -k deploy/fence";

/// Whether nothing of it is there: then it was not installed, which is allowed.
fn is_absent(facts: &Facts) -> bool {
    let fence = &facts.fence;
    fence.kind == Ok(false) && fence.policy == Ok(None) && fence.binding == Ok(None)
}

const ABSENT: &str = "deploy/fence is not installed";

/// Judges one part, where the fence is installed.
fn part<T>(facts: &Facts, part: &Known<T>, judge: impl Fn(&T) -> Finding) -> Finding {
    match part {
        _ if is_absent(facts) => Finding::Skipped(ABSENT.to_owned()),
        Ok(part) => judge(part),
        Err(unknown) => Finding::unknown(unknown),
    }
}

pub(super) fn kind(facts: &Facts) -> Finding {
    part(facts, &facts.fence.kind, |established| match established {
        true => Finding::passed(""),
        false => Finding::failed(
            "the CustomResourceDefinition fences.manifold.dev is missing or not established: nobody can list the dead",
            [INSTALL],
        ),
    })
}

pub(super) fn policy(facts: &Facts) -> Finding {
    if is_absent(facts) {
        return Finding::warning(
            "deploy/fence is not installed: what a paused process still sends after a takeover is stopped by \
             preconditions alone",
            [INSTALL],
        );
    }
    part(facts, &facts.fence.policy, |policy| {
        match policy.as_deref() {
            Some("Ignore") => Finding::passed(""),
            Some(other) => Finding::failed(
                format!(
                    "the ValidatingAdmissionPolicy manifold-fence has failurePolicy {other}: when its parameter can't be \
                 read, it stops everybody's writes"
                ),
                [INSTALL],
            ),
            None => Finding::failed(
                "the ValidatingAdmissionPolicy manifold-fence is missing: the API server refuses nobody",
                [INSTALL],
            ),
        }
    })
}

pub(super) fn binding(facts: &Facts) -> Finding {
    part(facts, &facts.fence.binding, |binding| match binding {
        Some(actions) if actions.iter().any(|action| action == "Deny") => Finding::passed(""),
        Some(actions) => Finding::failed(
            format!(
                "the ValidatingAdmissionPolicyBinding manifold-fence has validationActions {actions:?} without Deny: \
                 the API server refuses nobody"
            ),
            [INSTALL],
        ),
        None => Finding::failed(
            "the ValidatingAdmissionPolicyBinding manifold-fence is missing: the policy has no effect",
            [INSTALL],
        ),
    })
}

pub(super) fn rights(facts: &Facts) -> Finding {
    match is_absent(facts) {
        true => Finding::Skipped(ABSENT.to_owned()),
        false => rights::of(facts, |right| right.source == Source::Fence),
    }
}

pub(super) fn members(facts: &Facts) -> Finding {
    if is_absent(facts) {
        return Finding::Skipped(ABSENT.to_owned());
    }
    let Some(fleet) = facts.fleet() else {
        return Finding::Skipped("there is no fleet".to_owned());
    };
    let without: Vec<String> = fleet
        .live()
        .filter(|replica| !replica.said.status.server_fenced)
        .map(|replica| replica.said.name.clone())
        .collect();
    match without.is_empty() {
        true => Finding::passed(""),
        false => Finding::failed(
            format!(
                "{} write without their incarnation: the API server can't refuse them after a takeover \
                 (`/readyz?verbose` of each has the reason, check server-fence)",
                some(&without)
            ),
            [
                INSTALL.to_owned(),
                "# and start every replica with --use-service-account-credentials=true and --server-fence=auto".to_owned(),
            ],
        ),
    }
}
