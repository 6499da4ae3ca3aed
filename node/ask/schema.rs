//! Schemas of kinds: documents are read one at a time, cut down to the kind, and the cuts are kept.
//!
//! The index of the documents is read for every question: it names each with a hash of its content, so a cut
//! that is kept is never older than the document.

use std::{
    collections::VecDeque,
    sync::{Arc, LazyLock, Mutex, PoisonError},
    time::Duration,
};

use controllers_kit::{Answer, openapi};
use serde_json::Value;
use tokio::{sync::Semaphore, time::Instant};

use super::{answered, no_answer_within};
use crate::server::{Sender, Server};

/// Cuts that are kept; one is some hundred KiB at most.
const KEPT_MAX: usize = 32;
/// How long one is kept after it was used last.
const KEPT_FOR: Duration = Duration::from_secs(300);
/// What the index or a document may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// A document may be megabytes, and several times that in memory: one at a time.
static ONE_AT_A_TIME: LazyLock<Arc<Semaphore>> = LazyLock::new(|| Arc::new(Semaphore::new(1)));
static KEPT: LazyLock<Mutex<Kept>> = LazyLock::new(Mutex::default);

/// Group, version, kind.
type Wanted<'a> = (&'a str, &'a str, &'a str);

/// Cuts by the document's location, which names its content, and kind; the one used last is the last.
#[derive(Default)]
struct Kept {
    cuts: VecDeque<((String, String), Arc<Value>, Instant)>,
}

impl Kept {
    /// A cut, which counts as used now.
    fn get(&mut self, place: &(String, String), now: Instant) -> Option<Arc<Value>> {
        self.cuts
            .retain(|(_, _, used)| now.saturating_duration_since(*used) < KEPT_FOR);
        let at = self.cuts.iter().position(|(known, ..)| known == place)?;
        let (place, cut, _) = self.cuts.remove(at)?;
        self.cuts.push_back((place, Arc::clone(&cut), now));
        Some(cut)
    }

    /// Keeps a cut, in place of the one that was not used for the longest time if there are too many.
    fn put(&mut self, place: (String, String), cut: Arc<Value>, now: Instant) {
        if self.cuts.len() >= KEPT_MAX {
            self.cuts.pop_front();
        }
        self.cuts.push_back((place, cut, now));
    }
}

fn kept<R>(with: impl FnOnce(&mut Kept) -> R) -> R {
    with(&mut KEPT.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The schema of a kind.
pub(super) async fn read(server: &dyn Server, sender: &Sender, wanted: Wanted<'_>) -> Answer {
    // One that waits for a place waits for the document of somebody else; the same one, as often as not.
    let place = Arc::clone(&ONE_AT_A_TIME).acquire_owned();
    let Ok(Ok(_place)) = tokio::time::timeout(PATIENCE, place).await else {
        return Answer::Failed(no_answer_within(PATIENCE));
    };
    let (group, version, kind) = wanted;
    let index = match answered(PATIENCE, server.read(sender, openapi::INDEX)).await {
        Answer::Object(index) => index,
        other => return other,
    };
    let Some(path) = openapi::located(&index, group, version) else {
        return Answer::Missing;
    };
    let place = (path.clone(), kind.to_owned());
    if let Some(cut) = kept(|kept| kept.get(&place, Instant::now())) {
        return Answer::Object(cut);
    }
    let document = match answered(PATIENCE, server.read(sender, &path)).await {
        Answer::Object(document) => Arc::unwrap_or_clone(document),
        other => return other,
    };
    let answer = openapi::answer(document, group, version, kind);
    if let (Answer::Object(cut), true) = (&answer, path.contains("?hash=")) {
        kept(|kept| kept.put(place, Arc::clone(cut), Instant::now()));
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(number: usize) -> (String, String) {
        (format!("/openapi/v3/x?hash={number}"), "Kind".to_owned())
    }

    #[test]
    fn as_many_cuts_are_kept_as_the_bound_allows_and_the_ones_used_last() {
        let now = Instant::now();
        let mut kept = Kept::default();
        for number in 0..KEPT_MAX {
            kept.put(place(number), Arc::default(), now);
        }
        assert!(kept.get(&place(0), now).is_some());
        kept.put(place(KEPT_MAX), Arc::default(), now);
        assert_eq!(kept.cuts.len(), KEPT_MAX);
        assert!(kept.get(&place(0), now).is_some());
        assert!(kept.get(&place(1), now).is_none());
    }

    #[test]
    fn a_cut_that_is_not_used_for_long_is_dropped() {
        let now = Instant::now();
        let mut kept = Kept::default();
        kept.put(place(0), Arc::default(), now);
        assert!(kept.get(&place(0), now + KEPT_FOR / 2).is_some());
        assert!(kept.get(&place(1), now + KEPT_FOR).is_none());
        assert!(kept.get(&place(0), now + KEPT_FOR * 3 / 2).is_none());
        assert_eq!(kept.cuts.len(), 0);
    }
}
