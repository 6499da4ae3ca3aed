//! Which controllers a `--controllers` list selects, by upstream's rules: the first entry that names a
//! controller decides, `*` selects those that are on by default.
//!
//! A controller that runs whatever the list says ([`Descriptor::runs_unlisted`]) is selected here only where
//! it is named: whether it runs is decided by other flags.

use std::collections::{BTreeMap, BTreeSet};

use crate::Descriptor;

/// A `--controllers` list, read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    all: bool,
    named: BTreeMap<&'static str, bool>,
}

impl Selection {
    /// Reads a list. `canonical` gives the canonical name for a canonical or an old one.
    ///
    /// # Errors
    /// The names that nobody has, as given, without their `-`.
    pub fn parse<'a>(
        entries: impl IntoIterator<Item = &'a str>,
        canonical: impl Fn(&str) -> Option<&'static str>,
    ) -> Result<Self, Vec<String>> {
        let mut selection = Self::default();
        let mut unknown = Vec::new();
        for entry in entries {
            if entry == "*" {
                selection.all = true;
                continue;
            }
            let (name, on) = match entry.strip_prefix('-') {
                Some(name) => (name, false),
                None => (entry, true),
            };
            match canonical(name) {
                Some(name) => {
                    selection.named.entry(name).or_insert(on);
                }
                None => unknown.push(name.to_owned()),
            }
        }
        match unknown.is_empty() {
            true => Ok(selection),
            false => Err(unknown),
        }
    }

    /// As [`Selection::parse`], with the names of these descriptors.
    ///
    /// # Errors
    /// As [`Selection::parse`].
    pub fn of<'a>(
        entries: impl IntoIterator<Item = &'a str>,
        descriptors: &[Descriptor],
    ) -> Result<Self, Vec<String>> {
        Self::parse(entries, |name| canonical(name, descriptors))
    }

    /// Whether the list has `*`.
    pub fn has_star(&self) -> bool {
        self.all
    }

    /// What the list says of a controller by name; `None` where it leaves it to `*`.
    pub fn named(&self, name: &str) -> Option<bool> {
        self.named.get(name).copied()
    }

    /// Whether the controller is selected.
    pub fn selects(&self, descriptor: &Descriptor) -> bool {
        self.named(descriptor.name)
            .unwrap_or(self.all && is_in_star(descriptor))
    }

    /// The canonical names of those that are selected.
    pub fn names(&self, descriptors: &[Descriptor]) -> BTreeSet<&'static str> {
        descriptors
            .iter()
            .filter(|descriptor| self.selects(descriptor))
            .map(|descriptor| descriptor.name)
            .collect()
    }
}

/// Whether `*` selects the controller.
pub fn is_in_star(descriptor: &Descriptor) -> bool {
    descriptor.on_by_default && !descriptor.runs_unlisted
}

/// A controller's canonical name from a canonical or an old one; `None` where there is no such controller.
pub fn canonical(name: &str, descriptors: &[Descriptor]) -> Option<&'static str> {
    descriptors
        .iter()
        .find(|one| one.name == name || one.aliases.contains(&name))
        .map(|one| one.name)
}

/// The list with `*` that selects exactly these.
pub fn with_star(names: &BTreeSet<&str>, descriptors: &[Descriptor]) -> Vec<String> {
    let more = descriptors
        .iter()
        .filter(|one| !is_in_star(one) && names.contains(one.name))
        .map(|one| one.name.to_owned());
    let without = descriptors
        .iter()
        .filter(|one| is_in_star(one) && !names.contains(one.name))
        .map(|one| format!("-{}", one.name));
    let mut list: Vec<String> = more.chain(without).collect();
    // Sorting puts what is taken out first.
    list.sort_by_key(|entry| (entry.starts_with('-'), entry.clone()));
    list.insert(0, "*".to_owned());
    list
}

/// The shortest list that selects exactly these: names alone, or `*` with what differs from it.
pub fn shortest(names: &BTreeSet<&str>, descriptors: &[Descriptor]) -> Vec<String> {
    let with_star = with_star(names, descriptors);
    match with_star.len() <= names.len() {
        true => with_star,
        false => names.iter().map(|name| (*name).to_owned()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Sharding;

    fn descriptors() -> Vec<Descriptor> {
        let named = |name| Descriptor::new(name, Sharding::ByObject);
        vec![
            named("a-controller").aliases(&["a"]),
            named("b-controller"),
            named("off-controller").off_by_default(),
            named("tokens-controller").runs_unlisted(),
        ]
    }

    #[test]
    fn the_first_entry_that_names_a_controller_decides() {
        let all = descriptors();
        let table: [(&[&str], &[&str]); 9] = [
            (&[], &[]),
            (&["*"], &["a-controller", "b-controller"]),
            (&["*", "-a"], &["b-controller"]),
            (&["-a", "a", "*"], &["b-controller"]),
            (&["a", "-a"], &["a-controller"]),
            (&["a-controller"], &["a-controller"]),
            (
                &["*", "off-controller"],
                &["a-controller", "b-controller", "off-controller"],
            ),
            (&["tokens-controller"], &["tokens-controller"]),
            (&["-b-controller"], &[]),
        ];
        for (list, expected) in table {
            let selection = Selection::of(list.iter().copied(), &all).unwrap();
            let names: Vec<&str> = selection.names(&all).into_iter().collect();
            assert_eq!(names, expected, "{list:?}");
        }
        assert_eq!(
            Selection::of(["*", "c", "-d"], &all),
            Err(vec!["c".to_owned(), "d".to_owned()])
        );
    }

    #[test]
    fn a_list_made_from_a_set_selects_that_set() {
        let all = descriptors();
        for bits in 0..1_u32 << all.len() {
            let names: BTreeSet<&str> = all
                .iter()
                .enumerate()
                .filter(|(at, _)| bits & (1 << at) != 0)
                .map(|(_, one)| one.name)
                .collect();
            for list in [with_star(&names, &all), shortest(&names, &all)] {
                let read = Selection::of(list.iter().map(String::as_str), &all).unwrap();
                assert_eq!(read.names(&all), names, "{list:?}");
            }
        }
        let half: BTreeSet<&str> = ["b-controller", "off-controller"].into();
        assert_eq!(
            with_star(&half, &all),
            ["*", "off-controller", "-a-controller"]
        );
        assert_eq!(shortest(&half, &all), ["b-controller", "off-controller"]);
    }
}
