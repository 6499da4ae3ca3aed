//! What waits to be sent. One Event has one request under way at most, so that its counts arrive in their
//! order, and what waits behind it is one request too: the newest count says all that the ones before it
//! would have said. Pure; `apply.rs` sends what it hands out.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
};

use super::Send;

/// Events that wait to be sent; further ones are dropped and counted, as upstream drops them at 1000. As many
/// again may lie in the channel that leads to them.
pub const WAITING_MAX: usize = 1000;

/// An Event's namespace and name.
pub type Name = Arc<(String, String)>;

/// What waits to be sent, with what its sender needs beside it.
#[derive(Debug)]
pub struct Outbox<T> {
    /// In the order in which they came. Those whose Event is under way have no place in it.
    order: VecDeque<Name>,
    waiting: HashMap<Name, (Send, T)>,
    under_way: HashSet<Name>,
}

impl<T> Default for Outbox<T> {
    fn default() -> Self {
        Self {
            order: VecDeque::new(),
            waiting: HashMap::new(),
            under_way: HashSet::new(),
        }
    }
}

impl<T> Outbox<T> {
    /// Takes in what is to be sent, in the place of what waits for the same Event. False where
    /// [`WAITING_MAX`] others wait: then it is dropped.
    #[must_use]
    pub fn push(&mut self, send: Send, with: T) -> bool {
        let name = Name::new((send.namespace.clone(), send.name.clone()));
        if let Some((earlier, earlier_with)) = self.waiting.get_mut(&name) {
            // What was to be created still is, with the newer count.
            let patch = earlier.patch.is_some().then_some(send.patch).flatten();
            *earlier = Send { patch, ..send };
            *earlier_with = with;
            return true;
        }
        if self.waiting.len() >= WAITING_MAX {
            return false;
        }
        if !self.under_way.contains(&name) {
            self.order.push_back(Arc::clone(&name));
        }
        self.waiting.insert(name, (send, with));
        true
    }

    /// What goes next: under way until [`Outbox::done`].
    pub fn take(&mut self) -> Option<(Name, Send, T)> {
        let name = self.order.pop_front()?;
        let (send, with) = self.waiting.remove(&name)?;
        self.under_way.insert(Arc::clone(&name));
        Some((name, send, with))
    }

    /// The request has ended, well or badly: what has come for the same Event meanwhile has its turn behind
    /// all others.
    pub fn done(&mut self, name: &Name) {
        self.under_way.remove(name);
        if self.waiting.contains_key(name) {
            self.order.push_back(Arc::clone(name));
        }
        if self.waiting.is_empty() && self.under_way.is_empty() {
            // A flood leaves no room behind.
            *self = Self::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Outbox, Send, WAITING_MAX};

    fn send(name: &str, count: i32, known: bool) -> Send {
        Send {
            namespace: "shop".to_owned(),
            name: name.to_owned(),
            body: json!({"count": count}),
            patch: known.then(|| json!({"count": count})),
        }
    }

    fn next(outbox: &mut Outbox<u8>) -> Option<(super::Name, i64, bool)> {
        outbox.take().map(|(name, send, _)| {
            let count = send.body["count"].as_i64().unwrap();
            (name, count, send.patch.is_some())
        })
    }

    #[test]
    fn one_event_has_one_request_under_way_and_the_newest_count_waits_behind_it() {
        let mut outbox = Outbox::default();
        assert!(outbox.push(send("a", 1, false), 0));
        let (a, count, known) = next(&mut outbox).unwrap();
        assert_eq!((count, known), (1, false));
        for count in 2..=9 {
            assert!(outbox.push(send("a", count, true), 0));
        }
        assert_eq!(next(&mut outbox), None, "the first one is under way");
        assert!(outbox.push(send("b", 1, false), 0));
        let (b, ..) = next(&mut outbox).unwrap();
        assert_eq!(b.1, "b");
        outbox.done(&a);
        let (a, count, known) = next(&mut outbox).unwrap();
        assert_eq!((count, known), (9, true));
        outbox.done(&a);
        outbox.done(&b);
        assert_eq!(next(&mut outbox), None);
    }

    #[test]
    fn what_was_not_created_yet_is_created_with_the_newest_count() {
        let mut outbox = Outbox::default();
        assert!(outbox.push(send("a", 1, false), 1));
        assert!(outbox.push(send("a", 2, true), 2));
        let (_, sent, with) = outbox.take().unwrap();
        assert_eq!(sent, send("a", 2, false));
        assert_eq!(with, 2, "it is sent on behalf of the later one");
    }

    #[test]
    fn an_event_that_is_counted_up_all_the_time_does_not_hold_up_the_others() {
        let mut outbox = Outbox::default();
        assert!(outbox.push(send("a", 1, false), 0));
        let (a, ..) = next(&mut outbox).unwrap();
        assert!(outbox.push(send("a", 2, true), 0));
        assert!(outbox.push(send("b", 1, false), 0));
        outbox.done(&a);
        assert_eq!(next(&mut outbox).unwrap().0.1, "b");
        assert_eq!(next(&mut outbox).unwrap().0.1, "a");
    }

    #[test]
    fn it_is_bounded_but_what_waits_can_be_counted_up() {
        let mut outbox = Outbox::default();
        for number in 0..WAITING_MAX {
            assert!(outbox.push(send(&number.to_string(), 1, false), 0));
        }
        assert!(!outbox.push(send("late", 1, false), 0));
        assert!(outbox.push(send("7", 2, true), 0));
        while let Some((name, ..)) = outbox.take() {
            outbox.done(&name);
        }
        assert_eq!(outbox.order.capacity(), 0);
        assert!(outbox.push(send("late", 1, false), 0));
        assert!(outbox.take().is_some());
    }
}
