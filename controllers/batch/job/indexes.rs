//! Sets of completion indexes: ordered intervals, written as in `0-2,5`.

use std::{collections::BTreeSet, fmt};

use controllers_kit::Object;
use kubernetes_proto::core::Pod;

/// The annotation and label of a pod's index.
pub(super) const INDEX: &str = "batch.kubernetes.io/job-completion-index";

/// The index of a pod; `None` where it is missing or invalid.
pub(super) fn of(pod: &Pod) -> Option<i64> {
    parse(Object::metadata(pod).annotation(INDEX)?).filter(|index| *index >= 0)
}

/// The index of a pod where it is within the Job's completions.
pub(super) fn valid(pod: &Pod, completions: i32) -> Option<i64> {
    of(pod).filter(|index| *index < i64::from(completions))
}

/// A number as Go's Atoi reads it: a sign is allowed, nothing else beside digits.
pub(super) fn parse(text: &str) -> Option<i64> {
    text.parse().ok()
}

/// Disjoint intervals in order, both ends included; neighbours are joined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Indexes(Vec<(i64, i64)>);

impl Indexes {
    /// Parses the API's text, up to a number of completions. Malformed parts are left out.
    pub(super) fn parse(text: &str, completions: i32) -> Self {
        let completions = i64::from(completions);
        let mut intervals: Vec<(i64, i64)> = Vec::new();
        for part in text.split(',').filter(|_| !text.is_empty()) {
            let mut ends = part.split('-');
            let Some(first) = ends.next().and_then(parse) else {
                continue;
            };
            if first >= completions {
                break;
            }
            let last = match ends.next() {
                None => first,
                Some(text) => match parse(text) {
                    Some(last) => last.min(completions - 1),
                    None => continue,
                },
            };
            match intervals.last_mut() {
                Some((_, end)) if *end == first - 1 => *end = last,
                _ => intervals.push((first, last)),
            }
        }
        Self(intervals)
    }

    /// With more indexes.
    pub(super) fn with(&self, indexes: &BTreeSet<i64>) -> Self {
        self.merge(&Self(
            indexes.iter().map(|index| (*index, *index)).collect(),
        ))
    }

    /// Those of both.
    pub(super) fn merge(&self, other: &Self) -> Self {
        let mut all = [&self.0[..], &other.0[..]].concat();
        all.sort_unstable();
        let mut merged: Vec<(i64, i64)> = Vec::with_capacity(all.len());
        for (first, last) in all {
            match merged.last_mut() {
                Some((_, end)) if first <= *end + 1 => *end = last.max(*end),
                _ => merged.push((first, last)),
            }
        }
        Self(merged)
    }

    /// How many there are.
    pub(super) fn count(&self) -> i64 {
        self.0.iter().map(|(first, last)| last - first + 1).sum()
    }

    /// Whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether an index is among them.
    pub(super) fn has(&self, index: i64) -> bool {
        let place = self.0.partition_point(|(_, last)| *last < index);
        self.0.get(place).is_some_and(|(first, _)| *first <= index)
    }

    /// How many both have.
    pub(super) fn overlap(&self, other: &Self) -> i64 {
        let (mut one, mut two, mut common) = (0, 0, 0);
        while let (Some(a), Some(b)) = (self.0.get(one), other.0.get(two)) {
            common += (a.1.min(b.1) - a.0.max(b.0) + 1).max(0);
            if a.1 <= b.1 {
                one += 1;
            }
            if b.1 <= a.1 {
                two += 1;
            }
        }
        common
    }

    /// The first indexes below `completions` that are missing.
    pub(super) fn first_missing(&self, count: usize, completions: i32) -> Vec<i64> {
        let mut missing = Vec::new();
        let mut candidate = 0;
        let end = (i64::from(completions), i64::from(completions));
        for (first, last) in self.0.iter().copied().chain(std::iter::once(end)) {
            while candidate < first.min(i64::from(completions)) && missing.len() < count {
                missing.push(candidate);
                candidate += 1;
            }
            candidate = candidate.max(last + 1);
        }
        missing
    }
}

impl fmt::Display for Indexes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, (first, last)) in self.0.iter().enumerate() {
            let comma = if place > 0 { "," } else { "" };
            match last - first {
                0 => write!(f, "{comma}{first}")?,
                1 => write!(f, "{comma}{first},{last}")?,
                _ => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}
