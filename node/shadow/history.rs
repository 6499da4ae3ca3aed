//! What the watches have shown of late, so that a plan can be made as of a moment that has passed.
//!
//! Versions order the changes of all resources: they are revisions of one etcd. (Only Events may be kept in
//! another one, and they are not watched here.)

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use controllers_kit::{AnyObject, Key};

use crate::{Change, HISTORY_MAX, LAG_MAX, MOMENTS_MAX, Now};

/// Group, resource and key of an object.
pub type Name = (&'static str, &'static str, Key);

/// Objects as they were at a moment, of those that have changed since; `None` for what was not there.
pub type Objects = HashMap<Name, Option<AnyObject>>;

fn name(object: &AnyObject) -> Name {
    let resource = object.resource();
    let key = Key::of_meta(object.metadata());
    (resource.group, resource.plural, key)
}

/// The object of a change as it was before.
fn undone_by(change: &Change) -> Option<(Name, Option<AnyObject>)> {
    let object = change.newest()?;
    Some((name(object), change.old.clone()))
}

/// What is now, without one change.
pub fn present_without(change: &Change) -> Objects {
    undone_by(change).into_iter().collect()
}

/// The last changes. Bound: [`HISTORY_MAX`] changes, none older than the last question about one may need.
pub struct History {
    /// By version, and by a number of their own where a version has several.
    changes: BTreeMap<(u64, u64), (Now, Change)>,
    next: u64,
    now: Now,
    age_max: Duration,
}

impl History {
    /// Where the last question about a change comes after this patience ([`crate::Config::patience_max`]), or
    /// after a queue of questions.
    pub fn new(patience: Duration) -> Self {
        Self {
            changes: BTreeMap::new(),
            next: 0,
            now: Duration::ZERO,
            age_max: patience * 2 + LAG_MAX,
        }
    }

    /// Remembers a change.
    pub fn add(&mut self, change: Change) {
        self.next += 1;
        let at = (change.version, self.next);
        self.changes.insert(at, (self.now, change));
        if self.changes.len() > HISTORY_MAX {
            self.changes.pop_first();
        }
    }

    /// Time has passed; old changes are forgotten.
    pub fn tick(&mut self, now: Now) {
        self.now = now;
        while let Some(oldest) = self.changes.first_entry()
            && oldest.get().0 + self.age_max < now
        {
            oldest.remove();
        }
    }

    /// The moments in which a manager may have decided on a change, the latest first: right before it, and
    /// before each of the changes of its namespace that its caches may not have shown yet.
    pub fn moments(&self, of: &Change) -> Moments {
        let near = |(_, (_, change)): &(&(u64, u64), &(Now, Change))| are_near(of, change);
        let since = self.changes.range((of.version, 0)..);
        let mut undone: Vec<_> = since
            .rev()
            .filter(near)
            .filter_map(|(_, (_, change))| undone_by(change))
            .collect();
        // It may have been forgotten.
        undone.extend(undone_by(of));
        let mut ends = vec![undone.len()];
        let before = self.changes.range(..(of.version, 0)).rev().filter(near);
        let mut latest: Option<Now> = None;
        for (_, (seen, change)) in before.take(MOMENTS_MAX - 1) {
            let latest = *latest.get_or_insert(*seen);
            if seen.saturating_add(LAG_MAX) < latest {
                break;
            }
            undone.extend(undone_by(change));
            ends.push(undone.len());
        }
        Moments {
            undone,
            ends,
            without: None,
        }
    }

    /// The moments right after a change, the first one first, as they would be without it: of two writes that
    /// a manager makes at once, either may come first.
    pub fn moments_after(&self, of: &Change) -> Moments {
        let later = self.changes.range((of.version.saturating_add(1), 0)..);
        let later: Vec<_> = later
            .map(|(_, (seen, change))| (*seen, change))
            .filter(|(_, change)| are_near(of, change))
            .collect();
        let Some((first, _)) = later.first() else {
            return Moments::default();
        };
        let end = first.saturating_add(LAG_MAX);
        let soon = later.iter().take(MOMENTS_MAX);
        let soon = soon.take_while(|(seen, _)| *seen <= end).count();
        let undone = later.iter().rev();
        Moments {
            undone: undone.filter_map(|(_, change)| undone_by(change)).collect(),
            ends: (1..=soon).map(|done| later.len() - done).collect(),
            without: undone_by(of),
        }
    }
}

/// Whether a manager that decides on a change may have to do with another: of its namespace, or of none.
fn are_near(one: &Change, other: &Change) -> bool {
    let namespace = |change: &Change| Some(change.newest()?.metadata().namespace.clone());
    namespace(one)
        .zip(namespace(other))
        .is_some_and(|(one, other)| one.is_empty() || other.is_empty() || one == other)
}

/// Moments in the past.
#[derive(Default)]
pub struct Moments {
    /// Objects before each change, the latest change first.
    undone: Vec<(Name, Option<AnyObject>)>,
    /// How many changes are undone at each moment.
    ends: Vec<usize>,
    /// An object as it is at each of them, its later changes left out.
    without: Option<(Name, Option<AnyObject>)>,
}

impl Moments {
    /// The objects of each moment, in order.
    pub fn iter(&self) -> impl Iterator<Item = Objects> {
        self.ends.iter().map(|end| {
            // The earliest of an object's changes comes last, and what was before it counts.
            let undone = self.undone[..*end].iter();
            undone.chain(&self.without).cloned().collect()
        })
    }
}
