//! Counts that may only shrink, kept per top-level folder in `ratchets.txt`.
//!
//! A folder's count may exceed the kept one by [`Ratchet::headroom`], so that work which merges at the same
//! time does not fail because of a few words. Where it has shrunk by more than that and a twentieth the test
//! fails and prints the new lines; `UPDATE_GENERATED=1` writes them. A count that has grown is never written:
//! the words go, or somebody raises the number by hand and says why in the commit.

use std::collections::BTreeMap;

/// Where the counts are kept, from the root.
pub(crate) const FILE: &str = "tests/tidy/ratchets.txt";

const HEAD: &str = "\
# Counts that may only shrink, per top-level folder (`.`: files of the root). Renew what has shrunk with
# UPDATE_GENERATED=1 cargo test -p tests -- tidy
";

/// What is counted, with the folder's name as key.
pub(crate) type Counts = BTreeMap<String, usize>;

/// One kind of count.
pub(crate) struct Ratchet {
    /// The first word of its lines in the file.
    pub name: &'static str,
    /// What a person does about a count that has grown.
    pub remedy: &'static str,
    /// By how much a folder may exceed its kept count.
    pub headroom: usize,
}

/// The top-level folder of a path; `.` for files of the root.
pub(crate) fn folder(path: &str) -> &str {
    path.split_once('/').map_or(".", |(folder, _)| folder)
}

/// The kept counts of one kind. A line is `name folder count`.
fn kept(name: &str, file: &str) -> Counts {
    let lines = file.lines().map(str::trim);
    lines
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let (kind, folder, count) = (words.next()?, words.next()?, words.next()?);
            (kind == name).then_some((folder.to_owned(), count.parse().ok()?))
        })
        .collect()
}

impl Ratchet {
    /// Complaints about counts that have grown, or shrunk so far that the file must follow.
    pub(crate) fn complaints(&self, file: &str, found: &Counts) -> Vec<String> {
        let kept = kept(self.name, file);
        let mut complaints = Vec::new();
        for (folder, &count) in found {
            let limit = kept.get(folder).copied().unwrap_or(0);
            if count > limit + self.headroom {
                complaints.push(format!(
                    "{folder}: {count} {} where {limit} are kept in {FILE}: {}",
                    self.name, self.remedy
                ));
            }
        }
        let shrunk = kept.iter().any(|(folder, &limit)| {
            let count = found.get(folder).copied().unwrap_or(0);
            count + self.headroom + limit / 20 < limit
        });
        if shrunk {
            complaints.push(format!(
                "{} have shrunk: run with UPDATE_GENERATED=1, or write into {FILE}:\n{}",
                self.name,
                self.lines(&self.lowered(file, found))
            ));
        }
        complaints
    }

    /// The lower of kept and found, folder by folder. A folder that is not kept yet is taken as found.
    fn lowered(&self, file: &str, found: &Counts) -> Counts {
        let kept = kept(self.name, file);
        found
            .iter()
            .filter(|(_, count)| **count > 0)
            .map(|(folder, &count)| {
                let limit = kept.get(folder).copied().unwrap_or(count);
                (folder.clone(), count.min(limit))
            })
            .collect()
    }

    fn lines(&self, counts: &Counts) -> String {
        counts
            .iter()
            .map(|(folder, count)| format!("{} {folder} {count}\n", self.name))
            .collect()
    }
}

/// The file with all counts that have shrunk.
pub(crate) fn renewed(file: &str, ratchets: &[(&Ratchet, &Counts)]) -> String {
    let lines = ratchets
        .iter()
        .map(|(ratchet, found)| ratchet.lines(&ratchet.lowered(file, found)));
    std::iter::once(HEAD.to_owned()).chain(lines).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const APPLES: Ratchet = Ratchet {
        name: "apples",
        remedy: "eat them",
        headroom: 2,
    };
    const KEPT: &str = "# apples a 1000\napples a 100\napples b 7\npears a 3\n";

    fn counts(of: &[(&str, usize)]) -> Counts {
        of.iter()
            .map(|(folder, count)| ((*folder).to_owned(), *count))
            .collect()
    }

    #[test]
    fn a_count_may_not_grow_beyond_its_headroom_nor_shrink_unnoticed() {
        let table: [(&[(&str, usize)], usize); 6] = [
            (&[("a", 100), ("b", 7)], 0),
            (&[("a", 102), ("b", 9)], 0),
            (&[("a", 103), ("b", 10)], 2),
            (&[("a", 93), ("b", 7)], 0),
            (&[("a", 92), ("b", 7)], 1),
            (&[("a", 100), ("b", 7), ("new", 3)], 1),
        ];
        for (found, expected) in table {
            let complaints = APPLES.complaints(KEPT, &counts(found));
            assert_eq!(complaints.len(), expected, "{found:?}: {complaints:?}");
        }
    }

    #[test]
    fn renewing_the_file_lowers_counts_and_raises_none() {
        let found = counts(&[("a", 50), ("b", 9), ("gone", 0), ("new", 1)]);
        let file = renewed(KEPT, &[(&APPLES, &found)]);
        assert_eq!(
            file.strip_prefix(HEAD),
            Some("apples a 50\napples b 7\napples new 1\n")
        );
    }

    #[test]
    fn a_folder_is_the_first_part_of_a_path() {
        assert_eq!(folder("node/cache/lib.rs"), "node");
        assert_eq!(folder("README.md"), ".");
    }
}
