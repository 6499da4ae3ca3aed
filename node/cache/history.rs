//! Which names of generated children were used lately. The rule that rests on it is
//! `controllers_kit::names`'.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    hash::BuildHasherDefault,
    sync::Mutex,
    time::Duration,
};

use controllers_kit::names;
use kubernetes_proto::{AnyObject, Resource};
use tokio::time::Instant;

use crate::unpoisoned;

/// Removed names that are remembered, the newest: some 14 MB. A cluster that removes more within an hour (73
/// pods a second, all the time) has its oldest names forgotten early.
const REMOVED_MAX: usize = 1 << 18;

/// Objects that are remembered as made since the history began, in its first hour. Of others the history
/// counts as incomplete.
const MADE_MAX: usize = 1 << 18;

const REUSE_AFTER: Duration = Duration::from_secs(names::REUSE_AFTER_SECONDS);

/// The keys are hashes already.
type Hashed<T> = HashMap<u64, T, BuildHasherDefault<AsItIs>>;

#[derive(Default)]
pub(crate) struct AsItIs(u64);

impl std::hash::Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        self.0 = names::hash(bytes);
    }
    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

/// What has been seen to be removed and made, over all resources.
#[derive(Default)]
pub(crate) struct History(Mutex<Content>);

#[derive(Default)]
struct Content {
    /// When each name was removed the last time, in that order. The hash is the same on every replica.
    removed: Hashed<Instant>,
    order: VecDeque<(Instant, u64)>,
    /// Since when, and since which version, removals were seen.
    since: Option<(Instant, u64)>,
    /// Uids of what was made since then. Empty once that is an hour ago.
    made: HashSet<u64, BuildHasherDefault<AsItIs>>,
}

impl Content {
    fn is_old(&self, now: Instant) -> bool {
        self.since
            .is_some_and(|(since, _)| now.duration_since(since) >= REUSE_AFTER)
    }

    fn expire(&mut self, now: Instant) {
        while let Some((at, name)) = self.order.front().copied()
            && (now.duration_since(at) >= REUSE_AFTER || self.order.len() > REMOVED_MAX)
        {
            self.order.pop_front();
            // It may have been removed again since.
            if self.removed.get(&name) == Some(&at) {
                self.removed.remove(&name);
            }
        }
        if self.order.len() < self.order.capacity() / 4 {
            self.order.shrink_to(self.order.len() * 2);
            self.removed.shrink_to(self.order.len() * 2);
        }
    }
}

/// Whether removals of a resource are remembered.
pub(crate) fn is_remembered(resource: &Resource) -> bool {
    !resource.metadata_only && names::has_generated(resource)
}

/// Whether it is remembered which objects of a resource were made since the history began.
pub(crate) fn is_traced(resource: &Resource) -> bool {
    !resource.metadata_only && (names::has_generated(resource) || names::owns_generated(resource))
}

impl History {
    /// A resource whose removals are remembered has been listed, at this version: what went before was not
    /// seen.
    pub(crate) fn begin(&self, version: u64) {
        let mut content = unpoisoned(self.0.lock());
        let before = content.since.map_or(0, |(_, version)| version);
        content.since = Some((Instant::now(), version.max(before)));
        content.made.clear();
    }

    /// An object has come at this version that was not there before.
    pub(crate) fn made(&self, object: &AnyObject, version: u64) {
        let mut content = unpoisoned(self.0.lock());
        if content.is_old(Instant::now()) {
            content.made = HashSet::default();
        } else if content.since.is_some_and(|(_, since)| version > since)
            && content.made.len() < MADE_MAX
        {
            content
                .made
                .insert(names::hash(object.metadata().uid.as_bytes()));
        }
    }

    /// An object of a name goes.
    pub(crate) fn removed(&self, resource: &Resource, namespace: &str, name: &str) {
        let now = Instant::now();
        let name = hash(resource, namespace, name);
        let mut content = unpoisoned(self.0.lock());
        content.removed.insert(name, now);
        content.order.push_back((now, name));
        content.expire(now);
    }

    pub(crate) fn was_removed(&self, resource: &Resource, namespace: &str, name: &str) -> bool {
        let name = hash(resource, namespace, name);
        let removed = unpoisoned(self.0.lock()).removed.get(&name).copied();
        removed.is_some_and(|at| at.elapsed() < REUSE_AFTER)
    }

    pub(crate) fn covers(&self, uid: &str) -> bool {
        let content = unpoisoned(self.0.lock());
        content.is_old(Instant::now()) || content.made.contains(&names::hash(uid.as_bytes()))
    }

    pub(crate) fn since(&self) -> u64 {
        unpoisoned(self.0.lock())
            .since
            .map_or(0, |(_, version)| version)
    }
}

fn hash(resource: &Resource, namespace: &str, name: &str) -> u64 {
    names::hash(format!("{}/{namespace}/{name}", resource.plural).as_bytes())
}

#[cfg(test)]
mod tests {
    use kubernetes_proto::{Object as _, core::Pod};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_name_is_forgotten_after_an_hour_and_a_history_is_whole_by_then() {
        let history = History::default();
        assert!(!history.covers("u"), "nothing is known before a list");
        history.begin(7);
        history.removed(Pod::resource(), "shop", "a");
        let used = |name| history.was_removed(Pod::resource(), "shop", name);
        tokio::time::advance(REUSE_AFTER - Duration::from_secs(1)).await;
        history.removed(Pod::resource(), "shop", "b");
        assert!(used("a") && used("b") && !history.covers("u"));
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!used("a") && used("b") && history.covers("u"));
        history.removed(Pod::resource(), "shop", "c");
        let content = unpoisoned(history.0.lock());
        assert_eq!((content.removed.len(), content.order.len()), (2, 2));
    }

    #[test]
    fn no_more_names_are_remembered_than_the_bound_says() {
        let history = History::default();
        for number in 0..REMOVED_MAX + 10 {
            history.removed(Pod::resource(), "shop", &number.to_string());
        }
        let content = unpoisoned(history.0.lock());
        assert_eq!(content.removed.len(), REMOVED_MAX);
        drop(content);
        assert!(!history.was_removed(Pod::resource(), "shop", "0"));
        assert!(history.was_removed(Pod::resource(), "shop", "10"));
    }
}
