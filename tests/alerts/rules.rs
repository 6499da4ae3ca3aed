//! The rules: read from their one source, written as the operator's object, and the metrics that they name.

use std::collections::{BTreeMap, BTreeSet};

use harness::workspace_root;
use serde::Deserialize;

/// The source, as Prometheus reads it itself.
pub(super) const SOURCE: &str = "deploy/overlays/monitoring/prometheus/rules.yaml";
/// What is made of it.
pub(crate) const OBJECT: &str = "deploy/overlays/monitoring/rules.yaml";
/// Where the runbooks are, each named as its alert.
pub(super) const RUNBOOKS: &str = "docs/runbooks";

/// The object around the groups.
const HEAD: &str = "\
# Made of prometheus/rules.yaml: UPDATE_GENERATED=1 cargo test -p tests generated
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: manifold
  namespace: manifold-system
  labels:
    app.kubernetes.io/name: manifold
spec:
";

/// Metrics that others export: Prometheus of each target, and kube-state-metrics.
pub(super) const FOREIGN: [&str; 2] = ["up", "kube_statefulset_replicas"];

/// Words of an expression that are neither functions nor metrics.
const KEYWORDS: [&str; 4] = ["and", "or", "unless", "bool"];
/// Each of these is followed by a list of labels.
const BEFORE_LABELS: [&str; 6] = [
    "by",
    "without",
    "on",
    "ignoring",
    "group_left",
    "group_right",
];

#[derive(Debug, Deserialize)]
pub(super) struct Rules {
    pub(super) groups: Vec<Group>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Group {
    pub(super) rules: Vec<Rule>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Rule {
    #[serde(default)]
    pub(super) record: String,
    #[serde(default)]
    pub(super) alert: String,
    pub(super) expr: String,
    #[serde(default)]
    pub(super) labels: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) annotations: BTreeMap<String, String>,
}

impl Rules {
    /// Those of the source.
    pub(super) fn read() -> Self {
        serde_yaml::from_str(&source()).expect("rules in YAML")
    }

    fn all(&self) -> impl Iterator<Item = &Rule> {
        self.groups.iter().flat_map(|group| &group.rules)
    }

    /// Those that record a series.
    pub(super) fn records(&self) -> impl Iterator<Item = &Rule> {
        self.all().filter(|rule| !rule.record.is_empty())
    }

    /// Those that fire, in order.
    pub(super) fn alerts(&self) -> impl Iterator<Item = &Rule> {
        self.all().filter(|rule| !rule.alert.is_empty())
    }

    /// Every metric that is named, without those that the rules record themselves.
    pub(super) fn metrics(&self) -> BTreeSet<String> {
        let recorded: BTreeSet<&str> = self.records().map(|rule| &*rule.record).collect();
        self.all()
            .flat_map(|rule| metrics_in(&rule.expr))
            .filter(|name| !recorded.contains(name.as_str()))
            .collect()
    }
}

fn source() -> String {
    std::fs::read_to_string(workspace_root().join(SOURCE)).expect("the rules")
}

/// The rules as the Prometheus operator takes them.
pub(crate) fn object() -> String {
    let source = source();
    let groups = source.find("\ngroups:").map_or(0, |at| at + 1);
    let mut object = HEAD.to_owned();
    for line in source[groups..].lines() {
        if !line.is_empty() {
            object.push_str("  ");
        }
        object.push_str(line);
        object.push('\n');
    }
    object
}

/// The metrics that an expression names: its identifiers that are no functions, keywords or labels.
pub(super) fn metrics_in(expression: &str) -> BTreeSet<String> {
    let bare = without_selectors(expression);
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let (mut found, mut rest, mut labels_follow) = (BTreeSet::new(), bare.as_str(), false);
    while let Some(at) = rest.find(|c: char| is_part(c) || c == '(') {
        rest = &rest[at..];
        if let Some(after) = rest.strip_prefix('(') {
            rest = after;
            if labels_follow {
                rest = after.split_once(')').map_or("", |(_, after)| after);
            }
            labels_follow = false;
            continue;
        }
        let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        rest = after;
        labels_follow = BEFORE_LABELS.contains(&word);
        let is_number = word.starts_with(|c: char| c.is_ascii_digit());
        let next = rest.trim_start();
        let is_call =
            next.starts_with(['(']) || ["by", "without"].iter().any(|word| next.starts_with(word));
        if !labels_follow && !is_number && !is_call && !KEYWORDS.contains(&word) {
            found.insert(word.to_owned());
        }
    }
    found
}

/// Without what is in braces, brackets and quotes.
fn without_selectors(expression: &str) -> String {
    let mut bare = String::new();
    let (mut depth, mut quoted) = (0_usize, false);
    for c in expression.chars() {
        match c {
            '"' => quoted = !quoted,
            _ if quoted => {}
            '{' | '[' => depth += 1,
            '}' | ']' => depth = depth.saturating_sub(1),
            _ if depth == 0 => bare.push(c),
            _ => {}
        }
    }
    bare
}

/// The labels that a text of a rule takes from its alert.
pub(super) fn labels_in(template: &str) -> BTreeSet<&str> {
    let parts = template.split("$labels.").skip(1);
    parts
        .map(|part| {
            let end = part.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
            &part[..end.unwrap_or(part.len())]
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_distinguished_from_functions_labels_and_keywords() {
        for (expression, wanted) in [
            ("up == 0", vec!["up"]),
            ("count by (x) (up)", vec!["up"]),
            (
                r#"sum by (le, name) (rate(a_bucket{job="x", code=~"5..|(a)"}[5m])) / 2 > 1e-3"#,
                vec!["a_bucket"],
            ),
            (
                "min_over_time((max(a) - sum(b))[5m:30s]) > 0 unless on () c == 1",
                vec!["a", "b", "c"],
            ),
            (
                "q:wait:p99 and on (x) group_left (y) d",
                vec!["d", "q:wait:p99"],
            ),
            ("time() - a_seconds < 7 * 86400", vec!["a_seconds"]),
        ] {
            let found: Vec<String> = metrics_in(expression).into_iter().collect();
            assert_eq!(found, wanted, "{expression}");
        }
    }

    #[test]
    fn labels_of_a_template_are_found() {
        let found = labels_in("{{ $labels.pod }} of {{ $labels.name }}: {{ $value }}");
        assert_eq!(found, BTreeSet::from(["name", "pod"]));
    }
}
