//! Rights: of the user of this program, of the manager, of the controllers.

use std::collections::{BTreeMap, BTreeSet};

use super::{Finding, some};
use crate::{
    facts::{Facts, Known},
    rights::{Right, Source, Who},
};

/// Restores what `deploy/rbac` has.
pub(super) const INSTALL: &str = "kubectl apply --server-side --force-conflicts -k deploy/rbac";

/// What is denied of these rights, and whether some could not be asked for.
pub(super) fn denied<'a>(
    rights: impl IntoIterator<Item = &'a (Right, Known<bool>)>,
) -> (Vec<&'a Right>, Option<&'a crate::facts::Unknown>, usize) {
    let (mut denied, mut unknown, mut count) = (Vec::new(), None, 0);
    for (right, allowed) in rights {
        count += 1;
        match allowed {
            Ok(true) => {}
            Ok(false) => denied.push(right),
            Err(why) => unknown = Some(why),
        }
    }
    (denied, unknown, count)
}

/// The rights as people read them, grouped by who lacks them.
fn shown(denied: &[&Right]) -> String {
    let mut by_who: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for right in denied {
        by_who
            .entry(right.who.user())
            .or_default()
            .push(right.show());
    }
    let lines: Vec<String> = by_who
        .into_iter()
        .map(|(who, rights)| match who.as_str() {
            "" => some(&rights),
            who => format!("{who} may not {}", some(&rights)),
        })
        .collect();
    lines.join("; ")
}

/// The commands that restore rights, by where they come from.
fn remedies(denied: &[&Right]) -> Vec<String> {
    let sources: BTreeSet<Source> = denied.iter().map(|right| right.source).collect();
    let mut commands: Vec<String> = sources
        .into_iter()
        .map(|source| match source {
            Source::Default => "# restart kube-apiserver: it restores its default roles and bindings when it starts (those \
                 annotated rbac.authorization.kubernetes.io/autoupdate=false it leaves as they are)"
                .to_owned(),
            Source::Rbac | Source::Guard => INSTALL.to_owned(),
            Source::Fence => "kubectl apply --server-side --force-conflicts -k deploy/fence".to_owned(),
            Source::Own => String::new(),
        })
        .filter(|command| !command.is_empty())
        .collect();
    commands.dedup();
    commands
}

pub(super) fn read(facts: &Facts) -> Finding {
    let needed = facts
        .own_rights
        .iter()
        .filter(|(right, _)| right.verb != "create" || right.resource == "subjectaccessreviews");
    let (denied, unknown, _) = denied(needed);
    let user = facts.user.as_deref().unwrap_or("NAME");
    match (denied.is_empty(), unknown) {
        (true, None) => Finding::passed(""),
        (true, Some(unknown)) => Finding::unknown(unknown),
        (false, _) => Finding::warning(
            format!(
                "{user} may not {}: the checks that need it are skipped",
                shown(&denied)
            ),
            [format!(
                "kubectl create clusterrolebinding manifold-doctor --clusterrole=manifold:doctor --user={user}"
            )],
        ),
    }
}

pub(super) fn install(facts: &Facts) -> Finding {
    let (denied, unknown, _) = denied(&facts.own_rights);
    let user = facts.user.as_deref().unwrap_or("NAME");
    match (denied.is_empty(), unknown) {
        (true, None) => Finding::passed(""),
        (true, Some(unknown)) => Finding::unknown(unknown),
        (false, _) => Finding::failed(
            format!("{user} may not {}", shown(&denied)),
            [format!(
                "kubectl create clusterrolebinding manifold-install --clusterrole=cluster-admin --user={user}"
            )],
        ),
    }
}

/// Of some rights of the fleet's identities.
pub(super) fn of(facts: &Facts, of: impl Fn(&Right) -> bool) -> Finding {
    let asked: Vec<_> = facts.rights.iter().filter(|(right, _)| of(right)).collect();
    if asked.is_empty() {
        return Finding::Skipped("no rights were asked for".to_owned());
    }
    let (denied, unknown, count) = denied(asked);
    match (denied.is_empty(), unknown) {
        (true, None) => Finding::passed(format!("{count} rights")),
        (true, Some(unknown)) => Finding::unknown(unknown),
        (false, _) => Finding::failed(shown(&denied), remedies(&denied)),
    }
}

/// Whether a right is the manager's own.
fn is_managers(facts: &Facts, right: &Right) -> bool {
    match &right.who {
        Who::User(_) => true,
        Who::Account { namespace, name } => facts
            .own_pods()
            .any(|pod| pod.namespace == *namespace && pod.account == *name),
        Who::Own => false,
    }
}

pub(super) fn manager(facts: &Facts) -> Finding {
    of(facts, |right| {
        !matches!(right.source, Source::Fence | Source::Guard) && is_managers(facts, right)
    })
}

pub(super) fn controllers(facts: &Facts) -> Finding {
    of(facts, |right| {
        !matches!(right.source, Source::Fence | Source::Guard) && !is_managers(facts, right)
    })
}
