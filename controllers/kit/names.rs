//! Names of generated children. They have the form of the server's own (a prefix and five characters), but
//! follow from the owner's uid and an ordinal: two replicas that plan from the same view choose the same
//! names, so a second creation of the same child collides at the server instead of adding one too many. The
//! five characters are a keyed permutation of the ordinal, so names of one owner appear unrelated, no two
//! ordinals share one, and a name gives its ordinal back.
//!
//! The rule, for every generated name (all but those that the API fixes: pods and claims of StatefulSets,
//! Jobs of CronJobs, ReplicaSets and ControllerRevisions that are named by a hash):
//!
//! **No child gets a name that another one had within the last hour** ([`REUSE_AFTER_SECONDS`]). A client
//! that waits for a name to be not found would wait forever, and logs and metrics that are keyed by name
//! would mix two children.
//!
//! 1. The ordinals go round a circle. The next one follows the newest child there is, terminating ones
//!    included, and names that [`Reader::name_used`] knows are skipped: those of objects that exist, and of
//!    those whose removal the store has seen within the hour. Every replica caches everything, so replicas
//!    that have watched for as long know the same names and choose the same.
//! 2. A replica that has watched for less than an hour does not know which names an owner used up before
//!    ([`Reader::history_covers`] is false of the owner and of its newest child). It begins at a place that
//!    follows from the owner's resourceVersion or, where the owner has not changed since, the version at
//!    which the replica began to watch: up to half-way round the part of the circle that is free. A child
//!    whose removal it has not seen was made from a lower version than that, so at another place. A second
//!    creation from the same view still collides, where both began before the owner's last change. After that
//!    first child the first rule holds for this owner.

use kubernetes_proto::{Resource, meta::ObjectMeta};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::Reader;

/// Seconds after a child's removal during which its name is not reused.
pub const REUSE_AFTER_SECONDS: u64 = 3600;

/// The characters of generated names: no vowels, so no words, and no easily confused ones.
const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";

/// Characters after the prefix.
const SUFFIX_LENGTH: usize = 5;

/// Longest prefix that the server would put before them.
const PREFIX_LENGTH_MAX: usize = 63 - SUFFIX_LENGTH;

/// Longest name of most objects (a DNS subdomain).
pub const NAME_LENGTH_MAX: usize = 253;

/// Two digits and three digits of base 27: the halves that the permutation mixes.
const LEFT: u32 = 27 * 27;
const RIGHT: u32 = 27 * 27 * 27;

/// The number of names of an owner: 27^5.
pub const SPACE: u32 = LEFT * RIGHT;

/// Rounds of the permutation; after four every input digit has reached every output digit twice.
const ROUNDS: u64 = 4;

/// The names of one owner's generated children.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Children {
    generate_name: String,
    key: u64,
}

impl Children {
    /// The names of an owner's children.
    pub fn of(owner_name: &str, owner_uid: &str) -> Self {
        // A dash as the server would have it, but an owner's name may be too long for one.
        let generate_name = if owner_name.len() < NAME_LENGTH_MAX {
            format!("{owner_name}-")
        } else {
            owner_name.to_owned()
        };
        Self {
            generate_name,
            key: xxh3_64(owner_uid.as_bytes()),
        }
    }

    /// For an owner with several series of children: the prefix of their names, and what distinguishes the
    /// series from all others, as the owner's uid with the series' name.
    pub fn of_series(generate_name: String, series: &str) -> Self {
        Self {
            generate_name,
            key: xxh3_64(series.as_bytes()),
        }
    }

    /// A child's `metadata.generateName`, as upstream sets it: the prefix before it is cut.
    pub fn generate_name(&self) -> &str {
        &self.generate_name
    }

    fn prefix(&self) -> &str {
        let mut end = self.generate_name.len().min(PREFIX_LENGTH_MAX);
        while !self.generate_name.is_char_boundary(end) {
            end -= 1;
        }
        &self.generate_name[..end]
    }

    /// The name of an ordinal; ordinals beyond the space wrap round.
    pub fn name(&self, ordinal: u32) -> String {
        let mut rest = permute(self.key, ordinal % SPACE);
        let mut suffix = [0; SUFFIX_LENGTH];
        for character in suffix.iter_mut().rev() {
            *character = ALPHABET[(rest % 27) as usize];
            rest /= 27;
        }
        let mut name = String::with_capacity(self.prefix().len() + SUFFIX_LENGTH);
        name.push_str(self.prefix());
        name.extend(suffix.iter().copied().map(char::from));
        name
    }

    /// The ordinal of a name; `None` for one that is not of this owner's form.
    pub fn ordinal(&self, name: &str) -> Option<u32> {
        let suffix = name.strip_prefix(self.prefix())?;
        if suffix.len() != SUFFIX_LENGTH {
            return None;
        }
        let mut value = 0;
        for character in suffix.bytes() {
            let digit = ALPHABET.iter().position(|other| *other == character)?;
            value = value * 27 + u32::try_from(digit).expect("there are 27 digits");
        }
        Some(unpermute(self.key, value))
    }

    /// The names of the next children, given all children that exist, and what is known of names (see the
    /// rule at the top of the module). An owner without children begins at `first`.
    pub fn next<'a>(
        &self,
        first: u64,
        existing: impl IntoIterator<Item = &'a ObjectMeta>,
        known: &Known<'_>,
        count: usize,
    ) -> Vec<String> {
        let existing: Vec<(u32, &ObjectMeta)> = existing
            .into_iter()
            .filter_map(|meta| Some((self.ordinal(&meta.name)?, meta)))
            .collect();
        let newest = newest(existing.iter().map(|(ordinal, _)| *ordinal).collect());
        let (mut start, free) = match newest {
            Some((ordinal, gap)) => ((ordinal + 1) % SPACE, gap),
            None => (remainder(first, SPACE), SPACE),
        };
        let child =
            newest.and_then(|(newest, _)| existing.iter().find(|(ordinal, _)| *ordinal == newest));
        if !known.covers(child.map(|(_, meta)| *meta)) {
            // Beyond the middle of the gap, the widest gap would be the one before the new child.
            start = (start + remainder(known.seed(self.key), (free / 2).max(1))) % SPACE;
        }
        (0..SPACE)
            .map(|step| self.name((start + step) % SPACE))
            .filter(|name| !known.is_used(name))
            .take(count)
            .collect()
    }
}

/// The store's knowledge of the names of an owner's children.
pub struct Known<'a> {
    reader: &'a dyn Reader,
    resource: &'static Resource,
    owner: &'a ObjectMeta,
}

impl<'a> Known<'a> {
    /// For the children of an owner that are of this resource, in the owner's namespace.
    pub fn of(reader: &'a dyn Reader, resource: &'static Resource, owner: &'a ObjectMeta) -> Self {
        Self {
            reader,
            resource,
            owner,
        }
    }

    fn is_used(&self, name: &str) -> bool {
        self.reader
            .name_used(self.resource, &self.owner.namespace, name)
    }

    /// Whether every name that must not be reused is known, given the newest existing child.
    fn covers(&self, newest: Option<&ObjectMeta>) -> bool {
        self.reader.history_covers(&self.owner.uid)
            || newest.is_some_and(|child| self.reader.history_covers(&child.uid))
    }

    fn seed(&self, key: u64) -> u64 {
        let version = self.owner.resource_version.max(self.reader.history_since());
        xxh3_64_with_seed(&version.to_le_bytes(), key)
    }
}

fn remainder(number: u64, modulus: u32) -> u32 {
    u32::try_from(number % u64::from(modulus)).expect("a remainder of a u32 is one")
}

/// Whether a resource has objects with generated names, whose removals are remembered.
pub fn has_generated(resource: &Resource) -> bool {
    matches!(
        (resource.group, resource.plural),
        ("", "pods")
            | ("discovery.k8s.io", "endpointslices")
            | ("resource.k8s.io", "resourceclaims")
    )
}

/// Whether objects of a resource own such objects as their controllers.
pub fn owns_generated(resource: &Resource) -> bool {
    matches!(
        (resource.group, resource.plural),
        ("", "replicationcontrollers" | "services" | "endpoints")
            | ("apps", "replicasets" | "daemonsets")
            | ("batch", "jobs")
            | ("scheduling.k8s.io", "podgroups")
    )
}

/// Whether an object's name was generated by its controller. Names that the API itself fixes were not: pods
/// of StatefulSets are named by their ordinals.
pub fn is_generated(meta: &ObjectMeta) -> bool {
    let Some(owner) = meta.controller() else {
        return false;
    };
    // Ordinals are keyed by the owner's uid, but every key knows every ending.
    let any = Children {
        generate_name: meta.generate_name.to_string(),
        key: 0,
    };
    *owner.kind != *"StatefulSet"
        && !meta.generate_name.is_empty()
        && any.ordinal(&meta.name).is_some()
}

/// The newest of some ordinals on the circle, with the width of its gap: the one before the widest gap,
/// since names are given out in order; of equal gaps the lowest.
fn newest(mut ordinals: Vec<u32>) -> Option<(u32, u32)> {
    ordinals.sort_unstable();
    ordinals.dedup();
    let first = *ordinals.first()?;
    let after = ordinals
        .iter()
        .copied()
        .skip(1)
        .chain(std::iter::once(first + SPACE));
    let mut widest = (0, first);
    for (ordinal, next) in ordinals.iter().copied().zip(after) {
        if next - ordinal > widest.0 {
            widest = (next - ordinal, ordinal);
        }
    }
    Some((widest.1, widest.0))
}

fn mix(key: u64, round: u64, half: u32, modulus: u32) -> u32 {
    remainder(
        xxh3_64_with_seed(&half.to_le_bytes(), key.wrapping_add(round)),
        modulus,
    )
}

/// An unbalanced Feistel network: each half is shifted by a hash of the other, which can be undone step by
/// step.
fn permute(key: u64, ordinal: u32) -> u32 {
    let (mut left, mut right) = (ordinal / RIGHT, ordinal % RIGHT);
    for round in 0..ROUNDS {
        left = (left + mix(key, 2 * round, right, LEFT)) % LEFT;
        right = (right + mix(key, 2 * round + 1, left, RIGHT)) % RIGHT;
    }
    left * RIGHT + right
}

fn unpermute(key: u64, value: u32) -> u32 {
    let (mut left, mut right) = (value / RIGHT, value % RIGHT);
    for round in (0..ROUNDS).rev() {
        right = (right + RIGHT - mix(key, 2 * round + 1, left, RIGHT)) % RIGHT;
        left = (left + LEFT - mix(key, 2 * round, right, LEFT)) % LEFT;
    }
    left * RIGHT + right
}

/// A hash of some bytes, the same on every replica and in every version.
pub fn hash(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

/// FNV-1a of some bytes one after the other, of 32 bits: for names that upstream computes so.
pub fn fnv32a<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u32 {
    let bytes = parts.into_iter().flatten();
    bytes.fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    })
}

/// A hash as the last part of a name: its decimal digits, each as one of the characters of generated names.
pub fn encode_hash(hash: u32) -> String {
    hash.to_string()
        .bytes()
        .map(|digit| char::from(ALPHABET[usize::from(digit) % ALPHABET.len()]))
        .collect()
}

/// `<owner>-<hash>`, the owner's name cut so that the whole is a valid name.
pub fn with_hash(owner_name: &str, hash: &str) -> String {
    let mut end = owner_name.len().min(NAME_LENGTH_MAX - 1 - hash.len());
    while !owner_name.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}-{hash}", &owner_name[..end])
}

#[cfg(test)]
mod tests;
