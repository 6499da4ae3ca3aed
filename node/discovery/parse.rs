//! What discovery documents say. Pure.

use std::collections::{BTreeMap, HashMap, HashSet};

use controllers_kit::{Catalogue, Entry, Resource, Str};
use kubernetes_proto::metadata_only;
use serde::Deserialize;

/// One resource in one version, as a document shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// API group.
    pub group: String,
    /// Version.
    pub version: String,
    /// Kind.
    pub kind: String,
    /// Plural.
    pub plural: String,
    /// Whether objects live in namespaces.
    pub namespaced: bool,
    /// Verbs, sorted.
    pub verbs: Vec<String>,
    /// Names of subresources, sorted.
    pub subresources: Vec<String>,
}

/// All that discovery shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Groups in order, their versions in order of preference.
    pub shown: Vec<Shown>,
    /// Group versions that are served, in that order, whether or not they show a resource.
    pub group_versions: Vec<String>,
    /// Group versions that could not be read, with the reason.
    pub failures: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct GroupDiscoveryList {
    kind: String,
    items: Vec<GroupDiscovery>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct GroupDiscovery {
    metadata: Named,
    versions: Vec<VersionDiscovery>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Named {
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct VersionDiscovery {
    version: String,
    freshness: String,
    resources: Vec<ResourceDiscovery>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ResourceDiscovery {
    resource: String,
    response_kind: Option<ResponseKind>,
    scope: String,
    verbs: Vec<String>,
    subresources: Vec<SubresourceDiscovery>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ResponseKind {
    kind: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct SubresourceDiscovery {
    subresource: String,
}

fn sorted(mut texts: Vec<String>) -> Vec<String> {
    texts.sort();
    texts.dedup();
    texts
}

/// Reads an `APIGroupDiscoveryList`; `None` where the document is another: the server does not aggregate.
pub fn aggregated(document: &[u8], into: &mut Served) -> Option<()> {
    let list: GroupDiscoveryList = serde_json::from_slice(document).ok()?;
    if list.kind != "APIGroupDiscoveryList" {
        return None;
    }
    for group in list.items {
        for version in group.versions {
            let name = group_version(&group.metadata.name, &version.version);
            if version.freshness == "Stale" {
                // In client-go's words, which the namespace controller's condition repeats.
                into.failures.insert(
                    name.clone(),
                    format!("stale GroupVersion discovery: {name}"),
                );
                continue;
            }
            into.group_versions.push(name);
            for resource in version.resources {
                // Without a kind it is only the parent of subresources.
                let Some(kind) = resource.response_kind.map(|kind| kind.kind) else {
                    continue;
                };
                into.shown.push(Shown {
                    group: group.metadata.name.clone(),
                    version: version.version.clone(),
                    kind,
                    plural: resource.resource,
                    namespaced: resource.scope == "Namespaced",
                    verbs: sorted(resource.verbs),
                    subresources: sorted(
                        resource
                            .subresources
                            .into_iter()
                            .map(|one| one.subresource)
                            .collect(),
                    ),
                });
            }
        }
    }
    Some(())
}

/// `group/version`, or the version alone for the core group.
pub fn group_version(group: &str, version: &str) -> String {
    if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Versions {
    versions: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct GroupList {
    groups: Vec<Group>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Group {
    name: String,
    versions: Vec<GroupVersion>,
    preferred_version: GroupVersion,
}

#[derive(Default, Deserialize, PartialEq)]
#[serde(default)]
struct GroupVersion {
    version: String,
}

/// The group and version of each document to be read, in order of preference: from `/api` and `/apis`.
///
/// # Errors
/// Where a document is no such list.
pub fn groups(core: &[u8], others: &[u8]) -> Result<Vec<(String, String)>, serde_json::Error> {
    let core: Versions = serde_json::from_slice(core)?;
    let others: GroupList = serde_json::from_slice(others)?;
    let mut all: Vec<_> = core
        .versions
        .into_iter()
        .map(|version| (String::new(), version))
        .collect();
    for mut group in others.groups {
        group
            .versions
            .sort_by_key(|version| *version != group.preferred_version);
        let versions = group.versions.into_iter();
        all.extend(versions.map(|version| (group.name.clone(), version.version)));
    }
    Ok(all)
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ResourceList {
    resources: Vec<ApiResource>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ApiResource {
    name: String,
    namespaced: bool,
    kind: String,
    verbs: Vec<String>,
}

/// Reads the `APIResourceList` of one group version.
///
/// # Errors
/// Where the document is no such list.
pub fn resources(
    group: &str,
    version: &str,
    document: &[u8],
    into: &mut Served,
) -> Result<(), serde_json::Error> {
    let list: ResourceList = serde_json::from_slice(document)?;
    let mut subresources: HashMap<String, Vec<String>> = HashMap::new();
    for resource in &list.resources {
        if let Some((of, name)) = resource.name.split_once('/') {
            let names = subresources.entry(of.to_owned()).or_default();
            names.push(name.to_owned());
        }
    }
    for resource in list.resources {
        if resource.name.contains('/') {
            continue;
        }
        let subresources = subresources.remove(&resource.name).unwrap_or_default();
        into.shown.push(Shown {
            group: group.to_owned(),
            version: version.to_owned(),
            kind: resource.kind,
            plural: resource.name,
            namespaced: resource.namespaced,
            verbs: sorted(resource.verbs),
            subresources: sorted(subresources),
        });
    }
    Ok(())
}

/// The catalogue of what is served, and how many resources had no room in it. `whole` are the resources of
/// which every object is held as its projection: they are preferred where their version is served.
pub fn catalogue(
    served: &Served,
    whole: &[&'static Resource],
    generation: u64,
) -> (Catalogue, usize) {
    let mut without_room = 0;
    let mut entries: Vec<Entry> = Vec::with_capacity(served.shown.len());
    let projection = |shown: &Shown| {
        whole.iter().copied().find(|resource| {
            (resource.group, resource.version, resource.plural)
                == (&*shown.group, &*shown.version, &*shown.plural)
        })
    };
    let projected: HashSet<(&str, &str)> = served
        .shown
        .iter()
        .filter_map(projection)
        .map(|resource| (resource.group, resource.plural))
        .collect();
    let mut preferred: HashSet<(&str, &str)> = HashSet::new();
    for shown in &served.shown {
        let place = (&*shown.group, &*shown.plural);
        let held = projection(shown);
        let resource = held.or_else(|| {
            metadata_only(
                &shown.group,
                &shown.version,
                &shown.kind,
                &shown.plural,
                shown.namespaced,
            )
        });
        let Some(resource) = resource else {
            without_room += 1;
            continue;
        };
        let texts = |texts: &[String]| texts.iter().map(|text| Str::interned(text)).collect();
        entries.push(Entry {
            resource,
            verbs: texts(&shown.verbs),
            subresources: texts(&shown.subresources),
            preferred: match projected.contains(&place) {
                true => held.is_some(),
                false => preferred.insert(place),
            },
        });
    }
    let failures = served
        .failures
        .iter()
        .map(|(name, why)| (Str::interned(name), Str::from(why.as_str())))
        .collect();
    let group_versions = served.group_versions.iter();
    let group_versions = group_versions.map(|name| Str::interned(name)).collect();
    let catalogue =
        Catalogue::new(entries, failures, generation).with_group_versions(group_versions);
    (catalogue, without_room)
}
