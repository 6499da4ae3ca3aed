//! What other replicas see, as they say it. It may be wrong: at worst a resource is listed in vain, or ranges
//! move to those who say so.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use coordinator::REPLICAS_MAX;
use node_cache::{Cache, Digest};
use peer_proto::Sight;
use tokio::time::Instant;

/// What was said longer ago is forgotten.
const SAID_FOR: Duration = Duration::from_secs(60);

/// A version so far beyond all that was seen here is no version of this cluster.
const MARGIN: u64 = 1_000_000;

/// The newest word of one replica.
struct Word {
    at: Instant,
    /// By resource, as in `replicasets.apps`.
    sights: HashMap<String, Sight>,
}

/// Whom the replica compares itself with.
#[derive(Default)]
pub struct Others {
    own: OnceLock<Arc<Cache>>,
    /// By name. Bound: [`REPLICAS_MAX`].
    words: Mutex<HashMap<String, Word>>,
}

fn digest_of(sight: &Sight) -> Option<Digest> {
    (sight.to != 0).then_some(Digest {
        from: sight.from,
        to: sight.to,
        count: sight.count,
        sum: sight.sum,
    })
}

/// Whether more others hold something else as of the same time than hold the same. Of two, both are odd.
pub(super) fn is_odd(own: &Digest, others: impl Iterator<Item = Digest>) -> bool {
    let (mut same, mut other) = (0, 0);
    for differs in others.filter_map(|digest| own.differs(&digest)) {
        match differs {
            true => other += 1,
            false => same += 1,
        }
    }
    other > same
}

impl Others {
    /// What this replica itself sees.
    pub(crate) fn set_own(&self, cache: Arc<Cache>) {
        self.own.get_or_init(|| cache);
    }

    fn words(&self) -> MutexGuard<'_, HashMap<String, Word>> {
        self.words.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For the others.
    pub(crate) fn own(&self) -> Vec<Sight> {
        let sights = self.own.get().map(|cache| cache.sights());
        let said = |(resource, sight): (&'static controllers_kit::Resource, node_cache::Sight)| {
            let digest = sight.digest.unwrap_or_default();
            Sight {
                resource: resource.id(),
                newest: sight.newest,
                from: digest.from,
                to: digest.to,
                count: digest.count,
                sum: digest.sum,
            }
        };
        sights.into_iter().flatten().map(said).collect()
    }

    /// A replica has said what it sees.
    pub(crate) fn said(&self, replica: &str, sights: Vec<Sight>) {
        let at = Instant::now();
        let mut words = self.words();
        words.retain(|_, word| word.at.elapsed() < SAID_FOR);
        if words.len() < REPLICAS_MAX || words.contains_key(replica) {
            let sights = sights
                .into_iter()
                .map(|sight| (sight.resource.clone(), sight))
                .collect();
            words.insert(replica.to_owned(), Word { at, sights });
        }
    }

    /// The newest version of an object of a resource that another has seen, where it is newer than `reached`;
    /// `newest` is the newest version that was seen here of anything.
    pub(super) fn further(&self, resource: &str, reached: u64, newest: u64) -> Option<u64> {
        let words = self.words();
        let sights = words.values().filter_map(|word| word.sights.get(resource));
        let further = sights
            .map(|sight| sight.newest)
            .filter(|version| *version > reached && *version <= newest.saturating_add(MARGIN));
        // The oldest of them is missing longest.
        further.min()
    }

    /// Whether what is held of a resource is held by nobody else.
    pub(super) fn find_odd(&self, resource: &str, own: &Digest) -> bool {
        let words = self.words();
        let sights = words.values().filter_map(|word| word.sights.get(resource));
        is_odd(own, sights.filter_map(digest_of))
    }
}
