//! Where a key belongs, and whom a range prefers. Both are protocol: golden tests fix them.

use std::{
    collections::BTreeMap,
    hash::{Hash, Hasher},
    sync::Arc,
};

use consistent_hash::{Node, RingHash, StaticHashRing};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::lease::RangeId;

/// Points that each replica has on the ring. 256 keep the shares of an unbounded ring within about 15 % of
/// the mean, and the bound in [`crate::place`] does the rest.
pub const VIRTUAL_NODES: usize = 256;

/// A fleet's greatest number of ranges.
pub const MAX_RANGES: u16 = 4096;

/// The range of a shard text: the top log2(`ranges`) bits of its hash.
pub fn range_of(text: impl AsRef<[u8]>, ranges: u16) -> RangeId {
    debug_assert!(ranges.is_power_of_two() && ranges <= MAX_RANGES);
    let bits = ranges.trailing_zeros();
    if bits == 0 {
        return 0;
    }
    u16::try_from(xxh3_64(text.as_ref()) >> (64 - bits)).unwrap_or(0)
}

/// Hashes the bytes that [`Point`] writes and nothing else: what std writes for a `str` or a tuple is no
/// stable encoding.
struct Bytes;

impl RingHash for Bytes {
    fn hash_item<T: Hash>(&self, item: &T) -> u64 {
        let mut hasher = Xxh3::new();
        item.hash(&mut hasher);
        Hasher::finish(&hasher)
    }

    fn hash_vnode<K: Hash>(&self, node_key: &K, vnode_seq: usize) -> u64 {
        let mut hasher = Xxh3::new();
        node_key.hash(&mut hasher);
        // Names hold no slash, so no name and number run into another pair.
        Hasher::write(&mut hasher, b"/");
        Hasher::write(
            &mut hasher,
            &u32::try_from(vnode_seq).unwrap_or(u32::MAX).to_be_bytes(),
        );
        Hasher::finish(&hasher)
    }
}

/// Something on the ring, as bytes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Point(Vec<u8>);

impl Hash for Point {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(&self.0);
    }
}

/// Each range's order of preference over the members. A function of the members' names and the number of
/// ranges alone.
#[derive(Clone, Debug)]
pub struct Ring {
    members: Vec<String>,
    ranges: u16,
    order: Arc<Vec<Vec<u16>>>,
}

impl Ring {
    /// The ring of these members; order and duplicates in `members` do not matter.
    pub fn new<I: IntoIterator<Item = S>, S: Into<String>>(members: I, ranges: u16) -> Self {
        let mut members: Vec<String> = members.into_iter().map(Into::into).collect();
        members.sort();
        members.dedup();
        let index: BTreeMap<&[u8], u16> = (0..)
            .zip(&members)
            .map(|(at, name)| (name.as_bytes(), at))
            .collect();
        let nodes = members
            .iter()
            .map(|name| Node::new(Point(name.as_bytes().to_vec())).quantity(VIRTUAL_NODES));
        let ring = StaticHashRing::new(Bytes, nodes);
        let order = (0..ranges)
            .map(|range| {
                let point = Point([b"range/".as_slice(), &range.to_be_bytes()].concat());
                ring.calc_candidates(&point)
                    .filter_map(|node| index.get(node.key.0.as_slice()).copied())
                    .collect()
            })
            .collect();
        Self {
            members,
            ranges,
            order: Arc::new(order),
        }
    }

    /// The members' names, sorted; preferences are indexes into them.
    pub fn members(&self) -> &[String] {
        &self.members
    }

    /// How many ranges there are.
    pub fn ranges(&self) -> u16 {
        self.ranges
    }

    /// Whom the range prefers, first to last.
    pub fn order(&self, range: RangeId) -> &[u16] {
        self.order
            .get(usize::from(range))
            .map_or(&[], Vec::as_slice)
    }
}

// The order follows from the rest.
impl PartialEq for Ring {
    fn eq(&self, other: &Self) -> bool {
        self.ranges == other.ranges && self.members == other.members
    }
}

impl Eq for Ring {}

impl Hash for Ring {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.members.hash(state);
        self.ranges.hash(state);
    }
}
