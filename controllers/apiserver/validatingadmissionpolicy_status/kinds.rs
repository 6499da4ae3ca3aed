//! The kinds whose objects a policy sees: what its resource rules name, as far as they name it exactly.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use controllers_kit::Catalogue;
use kubernetes_proto::admissionregistration::{Rule, ValidatingAdmissionPolicySpec};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The most kinds of one rule; a rule that names more ends the list, for all rules.
const KINDS_MAX: usize = 10;
/// Kinds of one policy: each costs a schema.
const KINDS_OF_POLICY_MAX: usize = 40;
/// Resources that one policy may name: groups, versions and resources of a rule multiply.
const NAMED_MAX: usize = 1000;
/// Group versions whose discovery is read live for one policy, at most.
pub const READS_MAX: usize = 32;

/// A kind; they are ordered by group, version and kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Kind {
    /// The group; empty for the core group.
    pub group: String,
    /// The version.
    pub version: String,
    /// The kind.
    pub kind: String,
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}, Kind={}", self.group, self.version, self.kind)
    }
}

impl Kind {
    /// The group and version of an `apiVersion`; `None` where it is malformed or empty.
    pub fn of(api_version: &str, kind: &str) -> Option<Self> {
        let (group, version) = match api_version.split_once('/') {
            None => ("", api_version),
            Some((_, version)) if version.contains('/') => return None,
            Some((group, version)) => (group, version),
        };
        let all = Self {
            group: group.to_owned(),
            version: version.to_owned(),
            kind: kind.to_owned(),
        };
        (all != Self::default()).then_some(all)
    }
}

/// A rule's group, version and resource.
type Named = (String, String, String);

/// Results of live discovery reads of group versions that the catalogue lacks: kinds by the names of their
/// resources.
pub type Found = BTreeMap<String, BTreeMap<String, String>>;

/// Where discovery of a group version is read.
pub fn discovery(group: &str, version: &str) -> String {
    match group {
        "" => format!("/api/{version}"),
        _ => format!("/apis/{group}/{version}"),
    }
}

/// The kinds of a policy's resources in a document of discovery.
pub fn discovered(
    document: &Value,
    spec: &ValidatingAdmissionPolicySpec,
) -> BTreeMap<String, String> {
    let named = rules(spec).flat_map(named).take(NAMED_MAX);
    let wanted: BTreeSet<String> = named.map(|named| named.2).collect();
    let mut kinds = BTreeMap::new();
    for resource in document["resources"].as_array().into_iter().flatten() {
        let text = |field: &str| resource[field].as_str().unwrap_or_default();
        let (name, kind) = (text("name"), text("kind"));
        if name.is_empty() || kind.is_empty() || name.contains('/') {
            continue;
        }
        let singular = match text("singularName") {
            "" => kind.to_lowercase(),
            name => name.to_owned(),
        };
        kinds.insert(singular, kind.to_owned());
        kinds.insert(name.to_owned(), kind.to_owned());
    }
    kinds.retain(|name, _| wanted.contains(name));
    kinds
}

fn exact(names: &[String]) -> Vec<&String> {
    let mut names: Vec<&String> = match names.iter().any(|name| name.contains('*')) {
        true => Vec::new(),
        false => names.iter().collect(),
    };
    names.sort();
    names
}

/// The exact names of a rule: none, if it has a wildcard for groups or versions.
fn named(rule: &Rule) -> impl Iterator<Item = Named> {
    let resources = rule.resources.iter();
    let mut resources: Vec<&String> = resources
        .filter(|resource| !resource.contains(['*', '/']))
        .collect();
    resources.sort();
    let (groups, versions) = (exact(&rule.api_groups), exact(&rule.api_versions));
    groups.into_iter().flat_map(move |group| {
        let resources = resources.clone();
        versions.clone().into_iter().flat_map(move |version| {
            let all = resources.clone().into_iter();
            all.map(move |resource| (group.clone(), version.clone(), resource.to_lowercase()))
        })
    })
}

fn rules(spec: &ValidatingAdmissionPolicySpec) -> impl Iterator<Item = &Rule> {
    let constraints = spec.match_constraints.iter();
    constraints
        .flat_map(|constraints| &constraints.resource_rules)
        .filter_map(|rule| rule.rule_with_operations.as_ref()?.rule.as_ref())
}

/// The catalogue's kinds, by version and by the names of resources.
pub struct Served {
    kinds: HashMap<(String, String), Vec<Kind>>,
}

impl Served {
    /// From the catalogue.
    pub fn new(catalogue: &Catalogue) -> Self {
        let mut kinds: HashMap<(String, String), Vec<Kind>> = HashMap::new();
        for entry in catalogue.all() {
            let served = entry.resource;
            let mut names = vec![served.plural.to_owned(), served.kind.to_lowercase()];
            names.dedup();
            for name in names {
                kinds
                    .entry((served.version.to_owned(), name))
                    .or_default()
                    .push(Kind {
                        group: served.group.to_owned(),
                        version: served.version.to_owned(),
                        kind: served.kind.to_owned(),
                    });
            }
        }
        Self { kinds }
    }

    /// The kinds of a resource that is named. The core group's empty name matches any group, as in
    /// kube-controller-manager's mapping.
    fn of(&self, (group, version, resource): &Named) -> impl Iterator<Item = &Kind> {
        let place = (version.clone(), resource.clone());
        let all = self.kinds.get(&place).into_iter().flatten();
        all.filter(move |kind| group.is_empty() || kind.group == *group)
    }
}

/// The group versions whose discovery must be read live, since the catalogue lacks a named resource.
pub fn unknown(
    spec: &ValidatingAdmissionPolicySpec,
    served: &Served,
) -> BTreeSet<(String, String)> {
    let named = rules(spec).flat_map(named).take(NAMED_MAX);
    named
        .filter(|named| !named.1.is_empty() && served.of(named).next().is_none())
        .map(|(group, version, _)| (group, version))
        .take(READS_MAX)
        .collect()
}

/// The kinds that a policy's rules name, in order, and whether there are more than are checked.
pub fn of(
    spec: &ValidatingAdmissionPolicySpec,
    served: &Served,
    found: &Found,
) -> (BTreeSet<Kind>, bool) {
    let mut kinds = BTreeSet::new();
    let mut left = NAMED_MAX;
    for rule in rules(spec) {
        let mut count = 0;
        for named in named(rule) {
            if left == 0 {
                return (kinds, true);
            }
            left -= 1;
            let mut all: Vec<Kind> = served.of(&named).cloned().collect();
            if all.is_empty() {
                let (group, version, resource) = &named;
                let document = found.get(&discovery(group, version));
                let kind = document.and_then(|kinds| kinds.get(resource));
                all.extend(kind.map(|kind| Kind {
                    group: group.clone(),
                    version: version.clone(),
                    kind: kind.clone(),
                }));
            }
            for kind in all {
                if kinds.len() >= KINDS_OF_POLICY_MAX && !kinds.contains(&kind) {
                    return (kinds, true);
                }
                kinds.insert(kind);
                count += 1;
                if count == KINDS_MAX {
                    return (kinds, false);
                }
            }
        }
    }
    (kinds, false)
}
