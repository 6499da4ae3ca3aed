//! What the API serves, by discovery: for controllers that handle every resource, not a few kinds.
//!
//! A catalogue is plain data. The node builds a new one when discovery changes; `testing::World` has one of
//! all kinds that have a projection.

use std::collections::{BTreeMap, HashMap};

use kubernetes_proto::{Resource, Str};

/// One resource in one version.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The resource: a projection where the node keeps one of all its objects, metadata alone otherwise.
    pub resource: &'static Resource,
    /// Its verbs, as in `deletecollection`; sorted.
    pub verbs: Vec<Str>,
    /// Names such as `scale` and `status`; sorted.
    pub subresources: Vec<Str>,
    /// Whether this is the group's preferred version.
    pub preferred: bool,
}

impl Entry {
    /// Whether the API server supports all of these verbs for it.
    pub fn can(&self, verbs: &[&str]) -> bool {
        verbs
            .iter()
            .all(|verb| self.verbs.iter().any(|known| **known == **verb))
    }

    /// Whether it has a subresource.
    pub fn has(&self, subresource: &str) -> bool {
        self.subresources
            .iter()
            .any(|known| **known == *subresource)
    }
}

/// What the API serves.
#[derive(Clone, Debug, Default)]
pub struct Catalogue {
    entries: Vec<Entry>,
    kinds: HashMap<(Str, Str), usize>,
    preferred: HashMap<(&'static str, &'static str), usize>,
    deletable: Vec<usize>,
    stale: Vec<Entry>,
    group_versions: Vec<Str>,
    /// Group versions that could not be read, with the reason. Their present resources are unknown: only
    /// [`Catalogue::stale`] answers with the former ones.
    pub failures: BTreeMap<Str, Str>,
    /// Why the last read of discovery failed as a whole; `None` when it succeeded. Everything else in this
    /// catalogue is then as of the last successful read.
    pub outdated: Option<Str>,
    /// Grows with every catalogue that differs from the one before; 0 for none yet.
    pub generation: u64,
}

impl Catalogue {
    /// Of what discovery shows, in its order.
    pub fn new(entries: Vec<Entry>, failures: BTreeMap<Str, Str>, generation: u64) -> Self {
        let mut kinds = HashMap::new();
        let mut preferred = HashMap::new();
        for (place, entry) in entries.iter().enumerate() {
            let resource = entry.resource;
            let kind = (
                Str::interned(&resource.api_version()),
                Str::interned(resource.kind),
            );
            kinds.entry(kind).or_insert(place);
            if entry.preferred {
                preferred
                    .entry((resource.group, resource.plural))
                    .or_insert(place);
            }
        }
        let deletable = (0..entries.len())
            .filter(|place| {
                let entry: &Entry = &entries[*place];
                entry.preferred && entry.can(&["list", "watch", "delete"])
            })
            .collect();
        Self {
            entries,
            kinds,
            preferred,
            deletable,
            stale: Vec::new(),
            group_versions: Vec::new(),
            failures,
            outdated: None,
            generation,
        }
    }

    /// Keeps what failed group versions served when they were last read: the node keeps watching it, so
    /// there may be cached objects of it.
    #[must_use]
    pub fn succeeding(mut self, previous: &Self) -> Self {
        let known = previous
            .entries
            .iter()
            .filter(|entry| entry.preferred)
            .chain(&previous.stale);
        self.stale = known
            .filter(|entry| {
                let resource = entry.resource;
                self.failures.contains_key(&*resource.api_version())
                    && self.preferred(resource).is_none()
            })
            .cloned()
            .collect();
        self
    }

    /// With the group versions that are served, in the server's order of preference, including those
    /// without resources, as the metrics APIs of some adapters have.
    #[must_use]
    pub fn with_group_versions(mut self, group_versions: Vec<Str>) -> Self {
        self.group_versions = group_versions;
        self
    }

    /// The group versions that are served, in the server's order of preference.
    pub fn group_versions(&self) -> &[Str] {
        &self.group_versions
    }

    /// Whether discovery lists a group, readable or not.
    pub fn has_group(&self, group: &str) -> bool {
        let mut all = self.group_versions.iter().chain(self.failures.keys());
        all.any(|name| name.split_once('/').is_some_and(|(of, _)| of == group))
    }

    /// Resources of failed group versions, as they were served before.
    pub fn stale(&self) -> &[Entry] {
        &self.stale
    }

    /// Whether discovery has been read at all.
    pub fn is_known(&self) -> bool {
        self.generation > 0
    }

    /// Every version of every resource.
    pub fn all(&self) -> &[Entry] {
        &self.entries
    }

    /// The resource of a kind in a served version, preferred or not: for the kind that an owner reference
    /// names.
    pub fn by_kind(&self, api_version: &str, kind: &str) -> Option<&Entry> {
        let place = self.kinds.get(&(Str::from(api_version), Str::from(kind)))?;
        Some(&self.entries[*place])
    }

    /// A resource in its preferred version.
    pub fn preferred(&self, resource: &Resource) -> Option<&Entry> {
        let place = self.preferred.get(&(resource.group, resource.plural))?;
        Some(&self.entries[*place])
    }

    /// A resource in its preferred version, by group and plural.
    pub fn find(&self, group: &str, plural: &str) -> Option<&Entry> {
        let place = self.preferred.get(&(group, plural))?;
        Some(&self.entries[*place])
    }

    /// Resources that can be listed, watched and deleted, each in its preferred version.
    pub fn deletable(&self) -> impl Iterator<Item = &Entry> {
        self.deletable.iter().map(|place| &self.entries[*place])
    }

    /// Namespaced resources, each in its preferred version.
    pub fn namespaced(&self) -> impl Iterator<Item = &Entry> {
        self.entries
            .iter()
            .filter(|entry| entry.preferred && entry.resource.namespaced)
    }
}

#[cfg(test)]
mod tests;
