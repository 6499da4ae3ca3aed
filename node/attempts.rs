//! The last attempts of keys that fail, for people who ask why: pure, the clock is an argument.
//!
//! Kept by the replica that owns the key's range, and handed over with it. Bounded in keys, in attempts of
//! each and in bytes; where there is no room, the key whose last attempt is the oldest goes, those that have
//! recovered first.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use controllers_kit::Key;
use coordinator::RangeId;
use inspect::{Attempt, Blocker};

use crate::queue::Monotonic;

/// Attempts that are kept of a key.
pub const ATTEMPTS_MAX: usize = 10;
/// Keys that are kept in a process.
pub const KEYS_MAX: usize = 1000;
/// Bytes of all that is kept in a process, as [`size_of`] counts them: ten attempts of a thousand keys with
/// an error of some two hundred bytes, twice over.
pub const BYTES_MAX: usize = 8 << 20;
/// Bytes of one text: the API server's message for a refused pod has some five hundred.
pub const TEXT_BYTES_MAX: usize = 1024;
/// A key that has recovered is forgotten after so long.
pub const RECOVERED_FOR: Duration = Duration::from_secs(600);

/// A controller's place in the process, and its key.
pub type Place = (u16, Key);

/// One key's.
#[derive(Debug)]
struct Kept {
    range: RangeId,
    failures: u32,
    attempts: VecDeque<Attempt>,
    bytes: usize,
    last: Monotonic,
}

impl Kept {
    fn has_recovered(&self) -> bool {
        self.failures == 0
    }
}

/// All of a process.
#[derive(Debug, Default)]
pub struct Attempts {
    keys: HashMap<Place, Kept>,
    bytes: usize,
    forgotten: u64,
}

/// What is said of one key.
#[derive(Clone, Debug, PartialEq)]
pub struct Recent {
    /// The controller's place.
    pub unit: u16,
    /// The key.
    pub key: Key,
    /// Failures in a row; 0 where it has recovered.
    pub failures: u32,
    /// The newest last.
    pub attempts: Vec<Attempt>,
}

/// What a text, the strings beside it and the place in the table take, roughly.
fn size_of(attempt: &Attempt) -> usize {
    let blocker = |blocker: &Blocker| {
        blocker.name.len() + blocker.detail.len() + blocker.remedy.len() + size_of_val(blocker)
    };
    size_of_val(attempt)
        + attempt.error.len()
        + attempt.woken_by.len()
        + attempt.at.len()
        + attempt.blocker.as_ref().map_or(0, blocker)
}

/// Cuts a text at a character's end.
pub fn cut(text: &mut String) {
    if text.len() > TEXT_BYTES_MAX {
        let mut end = TEXT_BYTES_MAX;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push('…');
    }
}

fn bounded(mut attempt: Attempt) -> Attempt {
    for text in [
        &mut attempt.at,
        &mut attempt.result,
        &mut attempt.error,
        &mut attempt.woken_by,
    ] {
        cut(text);
    }
    if let Some(blocker) = &mut attempt.blocker {
        for text in [&mut blocker.name, &mut blocker.detail, &mut blocker.remedy] {
            cut(text);
        }
    }
    attempt
}

impl Attempts {
    /// Adds an attempt. `failures` counts those in a row, this one included; 0: the key has recovered.
    pub fn record(
        &mut self,
        place: &Place,
        range: RangeId,
        failures: u32,
        attempt: Attempt,
        now: Monotonic,
    ) {
        self.let_go(now);
        let attempt = bounded(attempt);
        if !self.keys.contains_key(place) && self.keys.len() >= KEYS_MAX {
            self.drop_one(place);
        }
        let kept = self.keys.entry(place.clone()).or_insert_with(|| Kept {
            range,
            failures,
            attempts: VecDeque::new(),
            bytes: 0,
            last: now,
        });
        let bytes = size_of(&attempt);
        kept.attempts.push_back(attempt);
        kept.bytes += bytes;
        self.bytes += bytes;
        if kept.attempts.len() > ATTEMPTS_MAX
            && let Some(oldest) = kept.attempts.pop_front()
        {
            let freed = size_of(&oldest);
            kept.bytes -= freed;
            self.bytes -= freed;
        }
        kept.failures = failures;
        kept.last = now;
        kept.range = range;
        while self.bytes > BYTES_MAX && self.drop_one(place) {}
    }

    /// Forgets the oldest but `spared`, a recovered one if there is any; whether there was one.
    fn drop_one(&mut self, spared: &Place) -> bool {
        let oldest = self
            .keys
            .iter()
            .filter(|(place, _)| *place != spared)
            .min_by_key(|(_, kept)| (!kept.has_recovered(), kept.last))
            .map(|(place, _)| place.clone());
        let Some(oldest) = oldest else { return false };
        self.forget(&oldest);
        self.forgotten += 1;
        true
    }

    fn forget(&mut self, place: &Place) {
        if let Some(kept) = self.keys.remove(place) {
            self.bytes -= kept.bytes;
        }
    }

    fn let_go(&mut self, now: Monotonic) {
        self.forget_all(|kept| kept.has_recovered() && kept.last + RECOVERED_FOR < now);
    }

    /// Another replica owns the range now.
    pub fn lost(&mut self, range: RangeId) {
        self.forget_all(|kept| kept.range == range);
    }

    fn forget_all(&mut self, is_over: impl Fn(&Kept) -> bool) {
        let Self { keys, bytes, .. } = self;
        keys.retain(|_, kept| {
            let is_over = is_over(kept);
            if is_over {
                *bytes -= kept.bytes;
            }
            !is_over
        });
    }

    /// Those of one key.
    pub fn of(&self, place: &Place) -> Option<Recent> {
        self.keys.get(place).map(|kept| recent(place, kept))
    }

    /// All that failed lately: those that still fail first, then by failures in a row; `namespace` empty for
    /// all. With it, how many there are beyond `limit`.
    pub fn all(&self, namespace: &str, limit: usize, now: Monotonic) -> (Vec<Recent>, usize) {
        let mut all: Vec<_> = self
            .keys
            .iter()
            .filter(|((_, key), _)| namespace.is_empty() || key.namespace == *namespace)
            .filter(|(_, kept)| !kept.has_recovered() || now <= kept.last + RECOVERED_FOR)
            .collect();
        all.sort_by(|(one, a), (other, b)| (b.failures, one).cmp(&(a.failures, other)));
        let omitted = all.len().saturating_sub(limit);
        let all = all.into_iter().take(limit);
        (
            all.map(|(place, kept)| recent(place, kept)).collect(),
            omitted,
        )
    }

    /// Keys that were forgotten for want of room.
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }
}

fn recent(place: &Place, kept: &Kept) -> Recent {
    Recent {
        unit: place.0,
        key: place.1.clone(),
        failures: kept.failures,
        attempts: kept.attempts.iter().cloned().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(error: &str) -> Attempt {
        Attempt {
            error: error.to_owned(),
            ..Attempt::default()
        }
    }

    fn place(name: &str) -> Place {
        (0, Key::new("shop", name))
    }

    fn at(seconds: u64) -> Monotonic {
        Monotonic::from_secs(seconds)
    }

    #[test]
    fn ten_attempts_are_kept_and_the_recovery_ends_them() {
        let mut all = Attempts::default();
        for count in 1..=12 {
            let now = at(u64::from(count));
            all.record(&place("web"), 3, count, attempt(&format!("{count}")), now);
        }
        let recent = all.of(&place("web")).unwrap();
        assert_eq!((recent.failures, recent.attempts.len()), (12, ATTEMPTS_MAX));
        assert_eq!(
            (&*recent.attempts[0].error, &*recent.attempts[9].error),
            ("3", "12")
        );
        all.record(&place("web"), 3, 0, attempt(""), at(13));
        assert_eq!(all.of(&place("web")).unwrap().failures, 0);
        assert_eq!(all.all("", 5, at(14)).0.len(), 1);
        // Ten minutes later it is forgotten, and with it every byte.
        all.record(&place("api"), 3, 1, attempt("x"), at(700));
        assert_eq!(all.of(&place("web")), None);
        all.lost(3);
        assert_eq!((all.keys.len(), all.bytes, all.forgotten()), (0, 0, 0));
    }

    #[test]
    fn without_room_the_recovered_go_first_and_then_the_oldest() {
        let mut all = Attempts::default();
        for number in 0..KEYS_MAX {
            let name = format!("k{number}");
            let failures = u32::from(number != 7);
            all.record(
                &place(&name),
                1,
                failures,
                attempt("x"),
                at(number as u64 / 10),
            );
        }
        all.record(&place("new"), 1, 1, attempt("x"), at(100));
        assert_eq!(all.of(&place("k7")), None, "it had recovered");
        all.record(&place("newer"), 1, 1, attempt("x"), at(100));
        assert!((0..10).any(|number| all.of(&place(&format!("k{number}"))).is_none()));
        assert_eq!((all.keys.len(), all.forgotten()), (KEYS_MAX, 2));
        // The bound in bytes holds too, and what is said is cut at a character's end.
        let long = "ü".repeat(TEXT_BYTES_MAX);
        for number in 0..KEYS_MAX {
            for count in 1..=10 {
                let place = place(&format!("k{number}"));
                all.record(&place, 1, count, attempt(&long), at(200));
            }
        }
        assert!(all.bytes <= BYTES_MAX, "{}", all.bytes);
        assert!(all.forgotten() > 2);
        let recent = all.of(&place("k999")).unwrap();
        assert!(recent.attempts[0].error.len() <= TEXT_BYTES_MAX + '…'.len_utf8());
    }

    #[test]
    fn those_that_fail_most_are_said_first() {
        let mut all = Attempts::default();
        for (name, failures) in [("a", 1), ("b", 5), ("c", 0), ("d", 5)] {
            all.record(&place(name), 1, failures, attempt("x"), at(1));
        }
        all.record(&(0, Key::cluster("node")), 2, 9, attempt("x"), at(1));
        let names = |namespace: &str, limit| {
            let (recent, omitted) = all.all(namespace, limit, at(2));
            let names: Vec<String> = recent.iter().map(|one| one.key.name.to_string()).collect();
            (names.join(" "), omitted)
        };
        assert_eq!(names("", 10), ("node b d a c".to_owned(), 0));
        assert_eq!(names("shop", 2), ("b d".to_owned(), 2));
    }
}
