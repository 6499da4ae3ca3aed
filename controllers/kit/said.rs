//! Events that are recorded once, however often their reason is seen.

use serde::{Deserialize, Serialize};

use crate::{Event, Plan, names};

/// The events that a key's last plan recorded or repeated: part of a memory, and empty where there are
/// none. It needs no bound of its own, since a plan's events are bounded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Said {
    /// Hashes of the last plan's events, sorted.
    before: Vec<u64>,
    /// Hashes of what this plan has said so far.
    #[serde(skip)]
    now: Vec<u64>,
}

impl Said {
    /// Ends a plan: events that it has not repeated are forgotten, so that they are recorded again when
    /// their reason returns.
    pub fn settle(&mut self) {
        self.before = std::mem::take(&mut self.now);
        self.before.sort_unstable();
    }

    /// Ends a plan that is dropped with its events: as if it had recorded none.
    pub fn abandon(&mut self) {
        self.now.clear();
    }

    /// Whether something is said for the first time.
    fn is_news(&mut self, hash: u64) -> bool {
        if self.now.contains(&hash) {
            return false;
        }
        self.now.push(hash);
        self.before.binary_search(&hash).is_err()
    }
}

impl Plan {
    /// Records an event, unless the key's last plan or this one has recorded the same reason and message.
    /// [`Said::settle`] ends a plan.
    pub fn event_once(&mut self, said: &mut Said, event: Event) {
        self.event_once_for(said, event, "");
    }

    /// As [`Plan::event_once`]; `cause` distinguishes events of the same text.
    pub fn event_once_for(&mut self, said: &mut Said, event: Event, cause: &str) {
        let text = format!("{}\n{}\n{cause}", event.reason, event.message);
        if said.is_news(names::hash(text.as_bytes())) {
            self.event(event);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Said;
    use crate::{Event, Plan, testing::pod};

    /// The messages of a plan that says these, each with a cause.
    fn plan(said: &mut Said, says: &[(&str, &str)]) -> Vec<String> {
        let mut plan = Plan::nothing();
        for (message, cause) in says {
            plan.event_once_for(said, Event::warning(&pod("a"), "Failed", *message), cause);
        }
        plan.events.into_iter().map(|event| event.message).collect()
    }

    #[test]
    fn an_event_is_recorded_once_while_its_reason_lasts() {
        let mut said = Said::default();
        assert_eq!(plan(&mut said, &[("one", ""), ("one", "")]), ["one"]);
        said.settle();
        assert_eq!(plan(&mut said, &[("one", ""), ("two", "")]), ["two"]);
        said.settle();
        assert_eq!(plan(&mut said, &[("one", "another cause")]), ["one"]);
        said.settle();
        assert_eq!(plan(&mut said, &[("one", "")]), ["one"], "it had ended");
        said.settle();
        assert!(plan(&mut said, &[]).is_empty());
        said.settle();
        assert_eq!(said, Said::default());
    }

    #[test]
    fn the_event_of_a_dropped_plan_is_recorded_again() {
        let mut said = Said::default();
        assert_eq!(plan(&mut said, &[("one", "")]), ["one"]);
        said.abandon();
        assert_eq!(plan(&mut said, &[("one", "")]), ["one"]);
    }

    #[test]
    fn a_handoff_carries_what_was_said_as_a_list_of_hashes() {
        let mut said = Said::default();
        plan(&mut said, &[("one", ""), ("two", "")]);
        said.settle();
        let packed = serde_json::to_string(&said).unwrap();
        let hashes: Vec<u64> = serde_json::from_str(&packed).unwrap();
        assert_eq!(hashes.len(), 2);
        let mut unpacked: Said = serde_json::from_str(&packed).unwrap();
        assert!(plan(&mut unpacked, &[("two", ""), ("one", "")]).is_empty());
    }
}
