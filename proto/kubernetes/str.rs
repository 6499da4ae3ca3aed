//! Cheap, shared strings: names, namespaces, labels. Those that repeat are interned.

use std::{
    borrow::Borrow,
    cell::RefCell,
    collections::HashSet,
    convert::Infallible,
    fmt,
    hash::{BuildHasher, Hash, Hasher, RandomState},
    ops::Deref,
    str::Utf8Error,
    sync::{Arc, Mutex, OnceLock},
};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A shared, immutable string: 16 bytes, cloned by reference counting. Compares and hashes by content. The
/// empty text has no allocation: most fields of a message begin so, and counting would cost each of them
/// two writes to memory that all threads share.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Str(Option<Arc<str>>);

/// Shards of the interner: enough that concurrently decoding watch streams rarely contend.
const SHARDS: usize = 16;

/// A shard is swept of unreferenced strings when it has grown to this many, and again at each doubling.
const SWEEP_AT: usize = 4096;

/// Pairs of strings that each thread caches in front of the interner. A pod has some forty that repeat, and
/// the pods of one owner share nearly all of them: most are found here, without a lock. Pairs, since
/// strings that evict each other would go to the interner at every pod, and which ones do depends on the
/// process's seed.
const REMEMBERED: usize = 512;

struct Shard {
    strings: HashSet<Arc<str>, TextHash>,
    sweep_at: usize,
}

fn shards() -> &'static [Mutex<Shard>; SHARDS] {
    static INTERNER: OnceLock<[Mutex<Shard>; SHARDS]> = OnceLock::new();
    INTERNER.get_or_init(|| {
        std::array::from_fn(|_| {
            Mutex::new(Shard {
                strings: HashSet::with_hasher(TextHash),
                sweep_at: SWEEP_AT,
            })
        })
    })
}

thread_local! {
    static RECENT: RefCell<Vec<[Str; 2]>> = RefCell::new(vec![<[Str; 2]>::default(); REMEMBERED]);
}

/// Hashes texts a few times faster than std's hash. Seeded at random for each process, since labels come
/// from users; for tables in memory only, never for anything that leaves the process.
#[derive(Clone, Copy, Debug, Default)]
pub struct TextHash;

impl BuildHasher for TextHash {
    type Hasher = TextHasher;

    fn build_hasher(&self) -> TextHasher {
        static SEED: OnceLock<u64> = OnceLock::new();
        TextHasher(*SEED.get_or_init(|| RandomState::new().hash_one(0)))
    }
}

/// See [`TextHash`].
#[derive(Clone, Copy, Debug)]
pub struct TextHasher(u64);

impl TextHasher {
    /// Both halves of the product of 64 × 64 bits, folded: every bit of the input reaches every bit of the
    /// result.
    fn fold(&mut self, one: u64, other: u64) {
        let product = u128::from(self.0 ^ one ^ 0x9e37_79b9_7f4a_7c15)
            * u128::from(other ^ 0xd6e8_feb8_6659_fd93);
        self.0 = product as u64 ^ (product >> 64) as u64;
    }
}

impl Hasher for TextHasher {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        let mut pairs = words.chunks_exact(2);
        for pair in &mut pairs {
            self.fold(u64::from_le_bytes(pair[0]), u64::from_le_bytes(pair[1]));
        }
        let word = pairs
            .remainder()
            .first()
            .map_or(0, |word| u64::from_le_bytes(*word));
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.fold(word, u64::from_le_bytes(last));
        // Texts that differ only in zero bytes at the end must differ too.
        self.fold(bytes.len() as u64, self.0.rotate_left(32));
    }

    fn write_u8(&mut self, byte: u8) {
        self.fold(u64::from(byte), 0);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// A hash of bytes, for tables in memory.
pub(crate) fn hash_bytes(bytes: &[u8]) -> u64 {
    let mut hasher = TextHash.build_hasher();
    hasher.write(bytes);
    hasher.finish()
}

impl Str {
    /// The one shared copy of a text that is expected to repeat: a label, a namespace, an owner's name.
    pub fn interned(text: &str) -> Self {
        if text.is_empty() {
            return Self::default();
        }
        Self::remembered(text.as_bytes(), || Ok::<_, Infallible>(text))
            .unwrap_or_else(|never| match never {})
    }

    /// As [`Str::interned`], from bytes that are checked only where they occur for the first time: that they
    /// are UTF-8 is known of those that were met before.
    ///
    /// # Errors
    /// Where they are not UTF-8.
    pub(crate) fn interned_bytes(bytes: &[u8]) -> Result<Self, Utf8Error> {
        if bytes.is_empty() {
            return Ok(Self::default());
        }
        Self::remembered(bytes, || str::from_utf8(bytes))
    }

    fn remembered<'a, E>(
        bytes: &[u8],
        text: impl FnOnce() -> Result<&'a str, E>,
    ) -> Result<Self, E> {
        let hash = hash_bytes(bytes);
        RECENT.with_borrow_mut(|recent| {
            let pair = &mut recent[hash as usize % REMEMBERED];
            if let Some(known) = pair.iter().find(|known| known.as_bytes() == bytes) {
                return Ok(known.clone());
            }
            let found = Self::found(text()?, hash);
            pair.swap(0, 1);
            pair[0] = found.clone();
            Ok(found)
        })
    }

    fn found(text: &str, hash: u64) -> Self {
        // The set uses the lowest and the highest bits.
        let mut shard = shards()[(hash >> 40) as usize % SHARDS]
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(found) = shard.strings.get(text) {
            return Self(Some(Arc::clone(found)));
        }
        if shard.strings.len() >= shard.sweep_at {
            shard.strings.retain(|held| Arc::strong_count(held) > 1);
            shard.sweep_at = (shard.strings.len() * 2).max(SWEEP_AT);
        }
        let new: Arc<str> = Arc::from(text);
        shard.strings.insert(Arc::clone(&new));
        Self(Some(new))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }
}

impl Hash for Str {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl Deref for Str {
    type Target = str;
    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl Borrow<str> for Str {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl AsRef<str> for Str {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl From<&str> for Str {
    fn from(text: &str) -> Self {
        Self((!text.is_empty()).then(|| Arc::from(text)))
    }
}

impl From<String> for Str {
    fn from(text: String) -> Self {
        Self::from(text.as_str())
    }
}

impl From<&String> for Str {
    fn from(text: &String) -> Self {
        Self::from(text.as_str())
    }
}

impl From<Str> for String {
    fn from(text: Str) -> Self {
        text.as_str().to_owned()
    }
}

impl PartialEq<str> for Str {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for Str {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

impl PartialEq<String> for Str {
    fn eq(&self, other: &String) -> bool {
        self.as_str() == other.as_str()
    }
}

impl PartialEq<Str> for String {
    fn eq(&self, other: &Str) -> bool {
        other == self
    }
}

impl fmt::Display for Str {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self)
    }
}

impl fmt::Debug for Str {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl Serialize for Str {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self)
    }
}

impl<'de> Deserialize<'de> for Str {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::from)
    }
}
