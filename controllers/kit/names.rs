//! Names of generated children. They look like the server's own (a prefix and five characters), but follow from the
//! owner's uid and an ordinal: two replicas that plan from the same view choose the same names, so a second creation of
//! the same child collides at the server instead of adding one too many.
//!
//! The ordinals go round a circle. The next one comes after the newest child there is, terminating ones included; what
//! counts is what is seen, nothing is remembered, because a memory that only one of two replicas has would part their
//! names. The five characters are a keyed permutation of the ordinal, so names of one owner look unrelated, no two
//! ordinals share one, and a name tells its ordinal back.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// The characters of generated names: no vowels, so no words, and nothing that is easily misread.
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

/// How many names an owner has: 27^5.
pub const SPACE: u32 = LEFT * RIGHT;

/// Rounds of the permutation; at four of them every input digit has reached every output digit twice.
const ROUNDS: u64 = 4;

/// The names of one owner's generated children.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Children {
    generate_name: String,
    key: u64,
}

impl Children {
    /// Of an owner.
    pub fn of(owner_name: &str, owner_uid: &str) -> Self {
        // A dash makes the name prettier, but an owner's name may be too long for one.
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

    /// What upstream puts into a child's `metadata.generateName`: the prefix before it is cut.
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

    /// The name of an ordinal; ordinals beyond the space go round.
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

    /// The names of the next children, given the names of all that exist. Names that `taken` knows (an object of
    /// another owner has them) are left out. An owner without children begins at `first`, which should be another number
    /// than the last time: then names that were in use are not used again.
    pub fn next<'a>(
        &self,
        first: u64,
        existing: impl IntoIterator<Item = &'a str>,
        taken: impl Fn(&str) -> bool,
        count: usize,
    ) -> Vec<String> {
        let start = match newest(
            existing
                .into_iter()
                .filter_map(|name| self.ordinal(name))
                .collect(),
        ) {
            Some(ordinal) => (ordinal + 1) % SPACE,
            None => u32::try_from(first % u64::from(SPACE)).expect("a remainder of a u32 is one"),
        };
        (0..SPACE)
            .map(|step| self.name((start + step) % SPACE))
            .filter(|name| !taken(name))
            .take(count)
            .collect()
    }
}

/// The newest of some ordinals on the circle: the one before the widest gap, since names are given out in order. Of
/// gaps of one width the one that begins lowest.
fn newest(mut ordinals: Vec<u32>) -> Option<u32> {
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
    Some(widest.1)
}

fn mix(key: u64, round: u64, half: u32, modulus: u32) -> u32 {
    let mixed =
        xxh3_64_with_seed(&half.to_le_bytes(), key.wrapping_add(round)) % u64::from(modulus);
    u32::try_from(mixed).expect("a remainder of a u32 is one")
}

/// An unbalanced Feistel network: each half is shifted by a hash of the other, which can be undone step by step.
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

/// A hash of some bytes that is the same on every replica and in every version.
pub fn hash(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
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
