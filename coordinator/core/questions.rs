//! Questions and replies in replica Leases: how members that do not reach each other learn who holds a range
//! whose Lease does not say so.
//!
//! Before a range without a trustworthy Lease is claimed, every live member says that it does not hold it. It
//! is asked by gRPC, and if it does not answer, through the API server: who asks writes a [`Question`]
//! into its own replica Lease, and every member that reads one writes [`Replies`] into its own. An answer is
//! what that life of the member knew after it had read the question, in an object that it alone writes, so it
//! says the same as one that came by gRPC.
//!
//! Both name the incarnation that wrote them: a Lease that another build or a next life has written may still
//! have them, and then they count for nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use crate::{
    lease::{EPOCH_END, Epoch, Holder, RangeId},
    machine::REPLICAS_MAX,
    ring::MAX_RANGES,
};

/// A field without content.
const NOTHING: &str = "-";

/// Which ranges a replica has to know about before it claims them.
///
/// At most [`MAX_RANGES`] ranges, 12 KiB of an annotation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Question {
    /// The incarnation that asks.
    pub by: String,
    /// Counts the questions of a process. The ranges of one number never change.
    pub number: u64,
    /// The ranges.
    pub ranges: BTreeSet<RangeId>,
}

/// What a replica knows of all the questions that it has read. Without a question it only says that this
/// build reads them.
///
/// At most [`REPLICAS_MAX`] questions and [`MAX_RANGES`] ranges, 88 KiB of an annotation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Replies {
    /// The incarnation that answers.
    pub by: String,
    /// Who had asked, under which number, before the rest was found out.
    pub to: BTreeMap<Holder, u64>,
    /// The ranges asked for that it holds, claims or is being handed.
    pub held: BTreeSet<RangeId>,
    /// The highest epochs known of the ranges asked for.
    pub epochs: BTreeMap<RangeId, Epoch>,
}

impl Question {
    /// From what [`Display`](fmt::Display) wrote; `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let mut fields = text.split(' ');
        let question = Self {
            by: name(fields.next()?)?,
            number: fields.next()?.parse().ok()?,
            ranges: parse_ranges(fields.next()?)?,
        };
        fields.next().is_none().then_some(question)
    }
}

impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ", self.by, self.number)?;
        write_ranges(f, &self.ranges)
    }
}

impl Replies {
    /// From what [`Display`](fmt::Display) wrote; `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let mut fields = text.split(' ');
        let mut replies = Self {
            by: name(fields.next()?)?,
            to: BTreeMap::new(),
            held: BTreeSet::new(),
            epochs: BTreeMap::new(),
        };
        let Some(to) = fields.next() else {
            return Some(replies);
        };
        for question in to.split(',') {
            let (holder, number) = question.rsplit_once('=')?;
            replies
                .to
                .insert(holder.parse().ok()?, number.parse().ok()?);
        }
        replies.held = parse_ranges(fields.next()?)?;
        replies.epochs = parse_epochs(fields.next()?)?;
        (replies.to.len() <= REPLICAS_MAX && fields.next().is_none()).then_some(replies)
    }
}

impl fmt::Display for Replies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.by)?;
        if self.to.is_empty() {
            return Ok(());
        }
        for (at, (holder, number)) in self.to.iter().enumerate() {
            let before = if at == 0 { ' ' } else { ',' };
            write!(f, "{before}{holder}={number}")?;
        }
        f.write_str(" ")?;
        write_ranges(f, &self.held)?;
        if self.epochs.is_empty() {
            return write!(f, " {NOTHING}");
        }
        for (at, (range, epoch)) in self.epochs.iter().enumerate() {
            let before = if at == 0 { ' ' } else { ',' };
            write!(f, "{before}{range}={epoch}")?;
        }
        Ok(())
    }
}

fn name(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

/// As in `0-3,7`.
pub(crate) fn write_ranges(f: &mut fmt::Formatter<'_>, ranges: &BTreeSet<RangeId>) -> fmt::Result {
    let mut runs: Vec<(RangeId, RangeId)> = Vec::new();
    for range in ranges {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*range) => *last = *range,
            _ => runs.push((*range, *range)),
        }
    }
    if runs.is_empty() {
        return f.write_str(NOTHING);
    }
    for (at, (first, last)) in runs.iter().enumerate() {
        if at > 0 {
            f.write_str(",")?;
        }
        write!(f, "{first}")?;
        if last > first {
            write!(f, "-{last}")?;
        }
    }
    Ok(())
}

/// Runs must ascend, so a text of any length costs no more than [`MAX_RANGES`].
fn parse_ranges(text: &str) -> Option<BTreeSet<RangeId>> {
    let mut ranges = BTreeSet::new();
    if text == NOTHING {
        return Some(ranges);
    }
    for run in text.split(',') {
        let (first, last) = run.split_once('-').unwrap_or((run, run));
        let (first, last): (RangeId, RangeId) = (first.parse().ok()?, last.parse().ok()?);
        let ascends = ranges.last().is_none_or(|before| *before < first);
        if !ascends || first > last || last >= MAX_RANGES {
            return None;
        }
        ranges.extend(first..=last);
    }
    Some(ranges)
}

fn parse_epochs(text: &str) -> Option<BTreeMap<RangeId, Epoch>> {
    let mut epochs = BTreeMap::new();
    if text == NOTHING {
        return Some(epochs);
    }
    for pair in text.split(',') {
        let (range, epoch) = pair.split_once('=')?;
        let (range, epoch): (RangeId, Epoch) = (range.parse().ok()?, epoch.parse().ok()?);
        if range >= MAX_RANGES || epoch >= EPOCH_END {
            return None;
        }
        epochs.insert(range, epoch);
    }
    Some(epochs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_survives_the_way_through_a_lease() {
        for (ranges, text) in [
            (vec![0, 1, 2, 3, 7], "a1-2 9 0-3,7"),
            (vec![5, 7, 8], "a1-2 9 5,7-8"),
            (vec![], "a1-2 9 -"),
            ((0..MAX_RANGES).collect(), "a1-2 9 0-4095"),
        ] {
            let question = Question {
                by: "a1-2".to_owned(),
                number: 9,
                ranges: ranges.into_iter().collect(),
            };
            assert_eq!(question.to_string(), text);
            assert_eq!(Question::parse(text), Some(question));
        }
    }

    #[test]
    fn replies_survive_the_way_through_a_lease() {
        let none = Replies {
            by: "b1".to_owned(),
            to: BTreeMap::new(),
            held: BTreeSet::new(),
            epochs: BTreeMap::new(),
        };
        let one = Replies {
            to: BTreeMap::from([(Holder::new("a_x", "a1-2"), 9)]),
            ..none.clone()
        };
        let more = Replies {
            to: BTreeMap::from([(Holder::new("a", "a1"), 9), (Holder::new("c", "c1"), 1)]),
            held: BTreeSet::from([0, 1, 4]),
            epochs: BTreeMap::from([(0, 3), (4, 17)]),
            ..none.clone()
        };
        for (replies, text) in [
            (none, "b1"),
            (one, "b1 a_x_a1-2=9 - -"),
            (more, "b1 a_a1=9,c_c1=1 0-1,4 0=3,4=17"),
        ] {
            assert_eq!(replies.to_string(), text);
            assert_eq!(Replies::parse(text), Some(replies));
        }
    }

    #[test]
    fn what_hands_wrote_is_no_question_and_no_reply() {
        for text in [
            "",
            "a1",
            "a1 x 0",
            "a1 1",
            "a1 1 ",
            "a1 1 3-1",
            "a1 1 0-4096",
            "a1 1 0-4095,0-4095",
            "a1 1 2,1",
            "a1 1 0 more",
        ] {
            assert_eq!(Question::parse(text), None, "{text:?}");
        }
        let all: String = (0..=REPLICAS_MAX).map(|at| format!("r{at}_i=1,")).collect();
        let too_many = format!("b1 {} - -", all.trim_end_matches(','));
        for text in [
            "",
            "b1 ",
            "b1 a",
            "b1 a=1 - -",
            "b1 a_a1=x - -",
            "b1 a_a1=1",
            "b1 a_a1=1 -",
            "b1 a_a1=1 0-9999 -",
            "b1 a_a1=1 - 0=x",
            "b1 a_a1=1 - 0=1073741824",
            "b1 a_a1=1 - - more",
            &too_many,
        ] {
            assert_eq!(Replies::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn annotations_have_a_bound() {
        let every_other = (0..MAX_RANGES).step_by(2).collect();
        let question = Question {
            by: "i".repeat(64),
            number: u64::MAX,
            ranges: every_other,
        };
        assert!(question.to_string().len() < 12 << 10);
        let replies = Replies {
            by: "i".repeat(64),
            to: (0..REPLICAS_MAX)
                .map(|at| (Holder::new(format!("{at:064}"), "i".repeat(64)), u64::MAX))
                .collect(),
            held: (0..MAX_RANGES).step_by(2).collect(),
            epochs: (0..MAX_RANGES)
                .map(|range| (range, EPOCH_END - 1))
                .collect(),
        };
        let text = replies.to_string();
        eprintln!("the longest replies: {} bytes", text.len());
        assert!(text.len() < 88 << 10);
    }
}
