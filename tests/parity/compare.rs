//! Two outcomes of a scenario beside each other.
//!
//! Objects are compared field by field, those of one evened name as a multiset. Writes are judged by
//! this rule: as many objects made and deleted, of every resource; of changes, Manifold may do with
//! fewer, and take half as many more and three, since both pace their status writes by the clock.
//! A request whose sender was killed before the answer may count or not.
//! Whatever differs within the rule is reported as a note. Refused writes are reported too, as notes: a
//! conflict is upstream's everyday way of learning that its cache is old.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::Value;

use super::run::{Outcome, Snapshot};
use super::writes::Verb;

/// Changes beyond upstream's that are no matter: half of them, and this many.
const MORE_CHANGES: usize = 3;
/// Longer values are cut in what is printed.
const SHOWN_MAX: usize = 600;
const NOTHING: &str = "nothing";

/// One thing that is not the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Difference {
    pub(crate) scenario: String,
    pub(crate) snapshot: String,
    /// Kind and evened name, `event`, `writes` or `course`.
    pub(crate) object: String,
    /// Where in the object.
    pub(crate) path: String,
    pub(crate) theirs: String,
    pub(crate) ours: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} ({}): {} {}: theirs {}, ours {}",
            self.scenario,
            self.snapshot,
            self.object,
            self.path,
            cut(&self.theirs),
            cut(&self.ours)
        )
    }
}

fn cut(text: &str) -> String {
    let mut short: String = text.chars().take(SHOWN_MAX).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    short
}

/// Gathers what differs in one place.
struct Report<'r> {
    scenario: &'r str,
    snapshot: &'r str,
    found: Vec<Difference>,
}

impl Report<'_> {
    fn add(
        &mut self,
        object: &str,
        path: &str,
        theirs: impl fmt::Display,
        ours: impl fmt::Display,
    ) {
        self.found.push(Difference {
            scenario: self.scenario.to_owned(),
            snapshot: self.snapshot.to_owned(),
            object: object.to_owned(),
            path: path.to_owned(),
            theirs: theirs.to_string(),
            ours: ours.to_string(),
        });
    }
}

/// Everything that differs.
pub(crate) fn outcomes(scenario: &str, theirs: &Outcome, ours: &Outcome) -> Vec<Difference> {
    let mut report = Report {
        scenario,
        snapshot: "course",
        found: Vec::new(),
    };
    // A scenario that came to its end under neither shows nothing.
    if theirs.failed.is_some() || ours.failed.is_some() {
        let said = |outcome: &Outcome| outcome.failed.clone().unwrap_or_else(|| "done".to_owned());
        report.add("course", "", said(theirs), said(ours));
    }
    let names = |outcome: &Outcome| {
        let names = outcome
            .snapshots
            .iter()
            .map(|snapshot| snapshot.name.clone());
        names.collect::<Vec<_>>().join(", ")
    };
    if names(theirs) != names(ours) {
        report.add("course", "snapshots", names(theirs), names(ours));
    }
    let mut found = report.found;
    for (theirs, ours) in theirs.snapshots.iter().zip(&ours.snapshots) {
        let mut report = Report {
            scenario,
            snapshot: &theirs.name,
            found: Vec::new(),
        };
        objects(&mut report, theirs, ours);
        events(&mut report, theirs, ours);
        writes(&mut report, theirs, ours);
        found.extend(report.found);
    }
    found
}

fn objects(report: &mut Report<'_>, theirs: &Snapshot, ours: &Snapshot) {
    let none = Vec::new();
    let keys: BTreeSet<&String> = theirs.objects.keys().chain(ours.objects.keys()).collect();
    for key in keys {
        let left = theirs.objects.get(key).unwrap_or(&none);
        let right = ours.objects.get(key).unwrap_or(&none);
        let (left, right) = without_common(left, right);
        for (left, right) in left.iter().zip(&right) {
            values(report, key, "", left, right);
        }
        for extra in left.iter().skip(right.len()) {
            report.add(key, "", extra, NOTHING);
        }
        for extra in right.iter().skip(left.len()) {
            report.add(key, "", NOTHING, extra);
        }
    }
}

/// Takes away what both have; sorts the rest, so that like is beside like.
fn without_common(left: &[Value], right: &[Value]) -> (Vec<Value>, Vec<Value>) {
    let mut right: Vec<Value> = right.to_vec();
    let mut rest = Vec::new();
    for value in left {
        match right.iter().position(|other| other == value) {
            Some(at) => {
                right.remove(at);
            }
            None => rest.push(value.clone()),
        }
    }
    rest.sort_by_key(Value::to_string);
    right.sort_by_key(Value::to_string);
    (rest, right)
}

fn values(report: &mut Report<'_>, object: &str, path: &str, theirs: &Value, ours: &Value) {
    if theirs == ours {
        return;
    }
    match (theirs, ours) {
        (Value::Object(left), Value::Object(right)) => {
            let keys: BTreeSet<&String> = left.keys().chain(right.keys()).collect();
            for key in keys {
                let path = format!("{path}/{key}");
                match (left.get(key), right.get(key)) {
                    (Some(left), Some(right)) => values(report, object, &path, left, right),
                    (Some(left), None) => report.add(object, &path, left, NOTHING),
                    (None, Some(right)) => report.add(object, &path, NOTHING, right),
                    (None, None) => {}
                }
            }
        }
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => {
            for (index, (left, right)) in left.iter().zip(right).enumerate() {
                values(report, object, &format!("{path}/{index}"), left, right);
            }
        }
        _ => report.add(object, path, theirs, ours),
    }
}

fn events(report: &mut Report<'_>, theirs: &Snapshot, ours: &Snapshot) {
    let keys: BTreeSet<&String> = theirs.events.keys().chain(ours.events.keys()).collect();
    for key in keys {
        let class = |snapshot: &Snapshot| snapshot.events.get(key).copied().unwrap_or(NOTHING);
        if class(theirs) != class(ours) {
            report.add("event", key, class(theirs), class(ours));
        }
    }
}

fn write_counts<'l>(
    theirs: &'l Snapshot,
    ours: &'l Snapshot,
) -> BTreeMap<&'l (String, Verb), (usize, usize)> {
    let mut counts = BTreeMap::new();
    for (key, count) in &theirs.course.writes {
        counts.entry(key).or_insert((0, 0)).0 = *count;
    }
    for (key, count) in &ours.course.writes {
        counts.entry(key).or_insert((0, 0)).1 = *count;
    }
    counts
}

/// Whether this many writes are as many as upstream's.
pub(crate) fn is_like(resource: &str, verb: Verb, theirs: usize, ours: usize) -> bool {
    // They are compared by what they say; how often they are reported is their count class.
    if resource == "events" {
        return true;
    }
    match verb {
        Verb::Create | Verb::Delete => theirs == ours,
        Verb::Change => ours <= theirs + theirs / 2 + MORE_CHANGES,
    }
}

/// Requests whose sender was killed before the answer: done or not, nobody can say.
fn unanswered(snapshot: &Snapshot, resource: &str, verb: Verb) -> usize {
    let key = (resource.to_owned(), verb, 504);
    snapshot.course.refused.get(&key).copied().unwrap_or(0)
}

fn writes(report: &mut Report<'_>, theirs: &Snapshot, ours: &Snapshot) {
    for ((resource, verb), (left, right)) in write_counts(theirs, ours) {
        let more = |snapshot| unanswered(snapshot, resource, *verb);
        let like = (left..=left + more(theirs)).any(|left| {
            (right..=right + more(ours)).any(|right| is_like(resource, *verb, left, right))
        });
        if !like {
            report.add("writes", &format!("{verb:?} {resource}"), left, right);
        }
    }
}

/// What differs within the rule, at the end.
pub(crate) fn notes(theirs: &Outcome, ours: &Outcome) -> Vec<String> {
    let (Some(theirs), Some(ours)) = (theirs.snapshots.last(), ours.snapshots.last()) else {
        return Vec::new();
    };
    let mut notes = Vec::new();
    for ((resource, verb), (theirs, ours)) in write_counts(theirs, ours) {
        if theirs != ours && resource != "events" {
            notes.push(format!("{verb:?} {resource}: theirs {theirs}, ours {ours}"));
        }
    }
    for (side, snapshot) in [("theirs", theirs), ("ours", ours)] {
        for ((resource, verb, code), count) in &snapshot.course.refused {
            notes.push(format!(
                "refused to {side}: {verb:?} {resource} {code}: {count}"
            ));
        }
    }
    notes
}
