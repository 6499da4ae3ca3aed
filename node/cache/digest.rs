//! What a store holds, in two numbers: two replicas whose watches have come to the same version must hold the
//! same. It finds what nobody alone can find: an event that a watch has lost for good.

use kubernetes_proto::{AnyObject, meta::NOT_COMPARABLE};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Count and sum of the objects of a resource, and the versions as of which it holds these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digest {
    /// The version of the last change: from there on it is what there was …
    pub from: u64,
    /// … up to this version, to which the watch has come.
    pub to: u64,
    /// How many objects.
    pub count: u64,
    /// Exclusive or of a hash of each object's uid and version.
    pub sum: u64,
}

fn hash(object: &AnyObject) -> u64 {
    let meta = object.metadata();
    xxh3_64_with_seed(meta.uid.as_bytes(), meta.resource_version)
}

impl Digest {
    /// Of a list.
    pub(crate) fn of<'a>(objects: impl Iterator<Item = &'a AnyObject>, version: u64) -> Self {
        let empty = Self {
            from: version,
            to: version,
            ..Self::default()
        };
        objects.fold(empty, |digest, object| Self {
            count: digest.count + 1,
            sum: digest.sum ^ hash(object),
            ..digest
        })
    }

    /// After a change that happened at this version.
    pub(crate) fn change(
        &mut self,
        old: Option<&AnyObject>,
        new: Option<&AnyObject>,
        version: u64,
    ) {
        for object in old.into_iter().chain(new) {
            self.sum ^= hash(object);
        }
        let more = u64::from(new.is_some());
        self.count = (self.count + more).saturating_sub(u64::from(old.is_some()));
        if version != NOT_COMPARABLE && version > self.to {
            (self.from, self.to) = (version, version);
        }
    }

    /// The watch has come further without a change.
    pub(crate) fn reach(&mut self, version: u64) {
        self.to = self.to.max(version);
    }

    /// Whether this and another replica's differ; `None` where they hold what was there at different times.
    pub fn differs(&self, other: &Self) -> Option<bool> {
        let together = self.from.max(other.from) <= self.to.min(other.to);
        together.then_some((self.count, self.sum) != (other.count, other.sum))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kubernetes_proto::{core::Pod, meta::ObjectMeta};

    use super::*;

    fn pod(name: &str, version: u64) -> AnyObject {
        Arc::new(Pod {
            metadata: Some(ObjectMeta {
                name: name.into(),
                uid: name.into(),
                resource_version: version,
                ..ObjectMeta::default()
            }),
            ..Pod::default()
        })
    }

    #[test]
    fn what_holds_the_same_has_the_same_however_it_came() {
        let (a3, b5, b9) = (pod("a", 3), pod("b", 5), pod("b", 9));
        let mut followed = Digest::of([&a3].into_iter(), 4);
        followed.change(None, Some(&b5), 5);
        followed.change(Some(&b5), Some(&b9), 9);
        followed.reach(20);
        let listed = Digest::of([&b9, &a3].into_iter(), 12);
        assert_eq!(followed.differs(&listed), Some(false));
        assert_eq!((followed.from, followed.to), (9, 20));
        // Not yet: it may be on its way.
        let mut late = Digest::of([&a3, &b5].into_iter(), 8);
        assert_eq!(late.differs(&followed), None);
        // It has come past the change and does not show it.
        late.reach(9);
        assert_eq!(late.differs(&followed), Some(true));
    }

    #[test]
    fn a_lost_deletion_shows_though_all_else_comes() {
        let (a, b, c) = (pod("a", 3), pod("b", 5), pod("c", 12));
        let mut right = Digest::of([&a, &b].into_iter(), 6);
        let mut wrong = right;
        right.change(Some(&b), None, 10);
        for digest in [&mut right, &mut wrong] {
            digest.change(None, Some(&c), 12);
        }
        assert_eq!(right.differs(&wrong), Some(true));
        assert_eq!(right.count, 2);
        right.change(Some(&c), None, 13);
        assert_eq!(right.differs(&wrong), None);
    }
}
