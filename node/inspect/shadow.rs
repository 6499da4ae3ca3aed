//! What a shadow has found: how the writes that it plans compare with what the manager in charge does.

use serde::{Deserialize, Serialize};

use crate::Missing;

/// Of [`Shadow`].
pub const SHADOW_SCHEMA: &str = "manifold.dev/shadow/v1";
/// The exit code where both managers agree.
pub const AGREED: u8 = 0;
/// The exit code where they differ.
pub const DIFFERS: u8 = 1;
/// The exit code where that is undecided.
pub const UNDECIDED: u8 = 2;

/// What a shadow has found since it started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Shadow {
    /// [`SHADOW_SCHEMA`].
    pub schema: String,
    /// The replicas that this is the sum of.
    pub replicas: Vec<String>,
    /// Since when the first of them compares.
    pub since: String,
    /// The manager in charge, as the Lease of the managers names it; none where nobody is.
    pub manager: Option<String>,
    /// By controller.
    pub controllers: Vec<ShadowCounts>,
    /// The first differences.
    pub differences: Vec<ShadowDifference>,
    /// Differences beyond those.
    pub omitted: u64,
    /// Differences left out, since the caller may not see their objects.
    pub hidden: u64,
    /// Changes that are not explained yet.
    pub unexplained: u64,
    /// Planned writes to resources that are not watched: they are not compared.
    pub uncompared: u64,
    /// What a bound has left out of the comparison.
    pub dropped: u64,
    /// Replicas without an answer.
    pub missing: Vec<Missing>,
}

/// What has come of one controller's planned writes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ShadowCounts {
    /// Its name; `unknown` for changes that none of the controllers here would make.
    pub controller: String,
    /// Both managers want it, at about the same time.
    pub agreed: u64,
    /// Both want it; here it was planned long before.
    pub early: u64,
    /// The plan was dropped before the other manager came to it.
    pub superseded: u64,
    /// Planned, and not done by the manager in charge in time.
    pub missing: u64,
    /// Done by the manager in charge, and not planned.
    pub extra: u64,
    /// Planned, and still waited for.
    pub pending: u64,
}

/// One difference.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ShadowDifference {
    /// `missing` or `extra`.
    pub kind: String,
    /// The controller.
    pub controller: String,
    /// Its key.
    pub key: String,
    /// As in `patch pods/web-1/status`.
    pub write: String,
    /// The object's resource, as in `replicasets.apps`.
    pub resource: String,
    /// The object's namespace.
    pub namespace: String,
    /// The object's name.
    pub name: String,
    /// The first field that differs; empty where it is the whole object.
    pub field: String,
    /// What is wanted here.
    pub ours: String,
    /// What is there.
    pub theirs: String,
    /// Of `extra`: who has written it, as far as that is known.
    pub by: String,
    /// When it was found, as in `2026-01-01T12:00:00Z`.
    pub at: String,
}

impl Shadow {
    /// 0 where the managers agree, 1 where they differ, 2 where that is undecided: a replica does not answer,
    /// nobody is in charge, or nothing was compared yet.
    pub fn exit_code(&self) -> u8 {
        let sum = |of: fn(&ShadowCounts) -> u64| self.controllers.iter().map(of).sum::<u64>();
        if sum(|one| one.missing + one.extra) > 0 {
            DIFFERS
        } else if !self.missing.is_empty()
            || self.manager.is_none()
            || self.dropped > 0
            || sum(|one| one.agreed + one.early) == 0
        {
            UNDECIDED
        } else {
            AGREED
        }
    }

    /// Whether anything is still waited for.
    pub fn is_pending(&self) -> bool {
        self.unexplained > 0 || self.controllers.iter().any(|one| one.pending > 0)
    }

    /// Adds what another replica has found; of `differences_max` differences the first.
    pub fn add(&mut self, other: Self, differences_max: usize) {
        self.replicas.extend(other.replicas);
        if self.since.is_empty() || (!other.since.is_empty() && other.since < self.since) {
            self.since = other.since;
        }
        self.manager = self.manager.take().or(other.manager);
        for counts in other.controllers {
            let known = self
                .controllers
                .iter_mut()
                .find(|one| one.controller == counts.controller);
            match known {
                Some(sum) => {
                    sum.agreed += counts.agreed;
                    sum.early += counts.early;
                    sum.superseded += counts.superseded;
                    sum.missing += counts.missing;
                    sum.extra += counts.extra;
                    sum.pending += counts.pending;
                }
                None => self.controllers.push(counts),
            }
        }
        self.controllers
            .sort_by(|one, next| one.controller.cmp(&next.controller));
        self.differences.extend(other.differences);
        self.differences.sort_by(|one, next| one.at.cmp(&next.at));
        let beyond = self.differences.len().saturating_sub(differences_max);
        self.differences.truncate(differences_max);
        self.omitted += other.omitted + beyond as u64;
        self.hidden += other.hidden;
        self.unexplained += other.unexplained;
        self.uncompared += other.uncompared;
        self.dropped += other.dropped;
        self.missing.extend(other.missing);
    }

    /// The verdict in words.
    pub fn verdict(&self) -> &'static str {
        match self.exit_code() {
            AGREED => "agreed",
            DIFFERS => "differs",
            _ => "undecided",
        }
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut lines = vec![format!(
            "{}: a shadow of {}, since {}",
            self.verdict(),
            self.manager
                .as_deref()
                .unwrap_or("nobody (no manager holds its Lease)"),
            self.since
        )];
        let row = |cells: [&str; 7]| {
            let [name, rest @ ..] = cells;
            let rest: Vec<String> = rest.iter().map(|cell| format!("{cell:>10}")).collect();
            format!("{name:<48}{}", rest.join(" "))
        };
        lines.push(row([
            "CONTROLLER",
            "AGREED",
            "EARLY",
            "SUPERSEDED",
            "MISSING",
            "EXTRA",
            "PENDING",
        ]));
        for one in &self.controllers {
            let counts = [
                one.agreed,
                one.early,
                one.superseded,
                one.missing,
                one.extra,
                one.pending,
            ]
            .map(|count| count.to_string());
            let [agreed, early, superseded, missing, extra, pending] = &counts;
            lines.push(row([
                &one.controller,
                agreed,
                early,
                superseded,
                missing,
                extra,
                pending,
            ]));
        }
        for one in &self.differences {
            let object = match one.namespace.is_empty() {
                true => one.name.clone(),
                false => format!("{}/{}", one.namespace, one.name),
            };
            let field = match one.field.is_empty() {
                true => String::new(),
                false => format!(", field {}", one.field),
            };
            lines.push(format!(
                "{} {} {} ({}): {} {object}{field}: ours {:?}, theirs {:?}",
                one.at, one.kind, one.write, one.controller, one.resource, one.ours, one.theirs
            ));
        }
        for (count, what) in [
            (self.omitted, "differences more"),
            (self.hidden, "differences of objects that you may not list"),
            (self.unexplained, "changes not explained yet"),
            (
                self.uncompared,
                "planned writes of resources that are not watched: not compared",
            ),
            (
                self.dropped,
                "planned writes or changes left out, for a bound was reached",
            ),
        ] {
            if count > 0 {
                lines.push(format!("{count} {what}"));
            }
        }
        for one in &self.missing {
            lines.push(format!("no answer from {}: {}", one.replica, one.why));
        }
        lines.push(String::new());
        lines.join("\n")
    }
}
