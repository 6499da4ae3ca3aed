//! Cheap, shared strings: names, namespaces, labels. Those that repeat are interned.

use std::{
    borrow::Borrow,
    collections::HashSet,
    fmt,
    ops::Deref,
    sync::{Arc, Mutex, OnceLock},
};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A shared, immutable string: 16 bytes, cloned by counting. Compares and hashes by content.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Str(Arc<str>);

/// Shards of the interner: enough that watch streams decoding side by side rarely meet.
const SHARDS: usize = 16;

/// A shard is swept of strings that nobody holds when it has grown to this many, and again at each doubling.
const SWEEP_AT: usize = 4096;

struct Shard {
    strings: HashSet<Arc<str>>,
    sweep_at: usize,
}

fn shards() -> &'static [Mutex<Shard>; SHARDS] {
    static INTERNER: OnceLock<[Mutex<Shard>; SHARDS]> = OnceLock::new();
    INTERNER.get_or_init(|| {
        std::array::from_fn(|_| {
            Mutex::new(Shard {
                strings: HashSet::new(),
                sweep_at: SWEEP_AT,
            })
        })
    })
}

/// FNV-1a: picks the shard only; the set hashes by itself.
fn shard_of(text: &str) -> usize {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for byte in text.bytes() {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    (hash as usize >> 8) % SHARDS
}

impl Str {
    /// The one shared copy of a text that is expected to repeat: a label, a namespace, an owner's name.
    pub fn interned(text: &str) -> Self {
        if text.is_empty() {
            return Self::default();
        }
        let mut shard = shards()[shard_of(text)]
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(found) = shard.strings.get(text) {
            return Self(Arc::clone(found));
        }
        if shard.strings.len() >= shard.sweep_at {
            shard.strings.retain(|held| Arc::strong_count(held) > 1);
            shard.sweep_at = (shard.strings.len() * 2).max(SWEEP_AT);
        }
        let new: Arc<str> = Arc::from(text);
        shard.strings.insert(Arc::clone(&new));
        Self(new)
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Str {
    fn default() -> Self {
        static EMPTY: OnceLock<Arc<str>> = OnceLock::new();
        Self(Arc::clone(EMPTY.get_or_init(|| Arc::from(""))))
    }
}

impl Deref for Str {
    type Target = str;
    fn deref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for Str {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for Str {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Str {
    fn from(text: &str) -> Self {
        if text.is_empty() {
            Self::default()
        } else {
            Self(Arc::from(text))
        }
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
        text.0.as_ref().to_owned()
    }
}

impl PartialEq<str> for Str {
    fn eq(&self, other: &str) -> bool {
        &*self.0 == other
    }
}

impl PartialEq<&str> for Str {
    fn eq(&self, other: &&str) -> bool {
        &*self.0 == *other
    }
}

impl fmt::Display for Str {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for Str {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl Serialize for Str {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Str {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::from)
    }
}
