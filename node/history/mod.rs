//! The last hour of the ranges, for the live page: who owned them, how much was worked in each, and how long
//! keys waited there. Pure: the clock is an argument.
//!
//! Time is cut into columns of ten seconds. A cell is one byte a plane, by the logarithm of what it counts: a
//! picture has to show a microsecond and a minute. A replica records what it owns; the one that serves the
//! page merges what all have recorded, so a range continues with its next owner's records, and what a dead
//! replica had recorded is lost unless it was merged before.

pub mod heat;

use std::{
    collections::VecDeque,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// Seconds of a column.
pub const COLUMN_SECONDS: u64 = 10;
/// Columns that are kept: an hour.
pub const COLUMNS_MAX: usize = 360;
/// Cells of a plane: with more than a thousand ranges fewer columns are kept. Three planes are 1.2 MB, and
/// what one replica answers another fits into a message.
pub const CELLS_MAX: usize = 400_000;
/// Names of owners that are known at once.
pub const NAMES_MAX: usize = 250;

/// Nobody has recorded anything.
const NOTHING: u8 = 0;
/// The range was owned, and nothing was done.
const IDLE: u8 = 1;
/// The least amount that a cell shows, and codes for each doubling: 20 doublings up to 255.
const CODE_FIRST: f64 = 2.0;
const CODES_EACH: f64 = 12.65;
/// Seconds of work a second, and seconds of waiting, that have the first code. The page has the same.
const WORK_LEAST: f64 = 1e-5;
const WAIT_LEAST: f64 = 1e-3;

/// The cell of an amount of an owned range.
fn code(amount: f64, least: f64) -> u8 {
    if amount <= 0.0 {
        return IDLE;
    }
    let code = CODE_FIRST + ((amount / least).log2() * CODES_EACH).round();
    code.clamp(CODE_FIRST, 255.0) as u8
}

/// Work and waits of one range, since they were recorded last.
#[derive(Debug, Default)]
pub struct Tally {
    worked_us: AtomicU64,
    waited_us: AtomicU64,
}

pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl Tally {
    /// A key was reconciled.
    pub fn worked(&self, took: Duration) {
        self.worked_us.fetch_add(micros(took), Ordering::Relaxed);
    }

    /// A key had waited in its queue.
    pub fn waited(&self, waited: Duration) {
        self.waited_us.fetch_max(micros(waited), Ordering::Relaxed);
    }

    /// The sum of work and the longest wait; from here on they are counted from nothing.
    pub fn take(&self) -> (Duration, Duration) {
        let take = |from: &AtomicU64| Duration::from_micros(from.swap(0, Ordering::Relaxed));
        (take(&self.worked_us), take(&self.waited_us))
    }
}

/// One column: a byte a range in each plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its number: seconds since 1970, divided by [`COLUMN_SECONDS`].
    pub at: u64,
    /// 0: nobody, or unknown; else the number of a name, from 1.
    pub owner: Vec<u8>,
    /// How much was worked.
    pub work: Vec<u8>,
    /// The longest wait.
    pub wait: Vec<u8>,
}

/// Cells of one range in columns that follow each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cells {
    /// The range.
    pub range: u16,
    /// The number of the first column.
    pub first: u64,
    /// How much was worked.
    pub work: Vec<u8>,
    /// The longest wait.
    pub wait: Vec<u8>,
}

/// A name, and the last column in which it was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Name {
    name: String,
    seen: u64,
}

/// Columns of all ranges, the oldest first, without gaps.
#[derive(Clone, Debug)]
pub struct Picture {
    ranges: usize,
    kept: usize,
    names: Vec<Name>,
    columns: VecDeque<Column>,
}

impl Picture {
    /// An empty one.
    pub fn new(ranges: u16) -> Self {
        let ranges = usize::from(ranges).max(1);
        Self {
            ranges,
            kept: COLUMNS_MAX.min(CELLS_MAX / ranges).max(1),
            names: Vec::new(),
            columns: VecDeque::new(),
        }
    }

    /// How many ranges it has.
    pub fn ranges(&self) -> usize {
        self.ranges
    }

    /// How many columns are kept.
    pub fn kept(&self) -> usize {
        self.kept
    }

    /// The newest column's number.
    pub fn newest(&self) -> Option<u64> {
        self.columns.back().map(|column| column.at)
    }

    /// Has a column of this number be the newest. A clock that was set back changes none.
    fn advance(&mut self, at: u64) {
        let kept = self.kept as u64;
        let mut next = match self.newest() {
            None => at,
            Some(newest) if at <= newest => return,
            Some(newest) => (newest + 1).max(at.saturating_sub(kept - 1)),
        };
        while next <= at {
            let empty = || vec![NOTHING; self.ranges];
            self.columns.push_back(Column {
                at: next,
                owner: empty(),
                work: empty(),
                wait: empty(),
            });
            next += 1;
        }
        while self.columns.len() > self.kept
            || self
                .columns
                .front()
                .is_some_and(|oldest| oldest.at + kept <= at)
        {
            self.columns.pop_front();
        }
    }

    fn at(&mut self, at: u64) -> Option<&mut Column> {
        let first = self.columns.front()?.at;
        let place = usize::try_from(at.checked_sub(first)?).ok()?;
        self.columns.get_mut(place)
    }

    /// The number of a name, which is seen in this column; 0 where there is no room for it.
    fn number(&mut self, name: &str, at: u64) -> u8 {
        let oldest = self.columns.front().map_or(0, |column| column.at);
        let place = match self.names.iter().position(|one| one.name == name) {
            Some(place) => place,
            None => {
                // No column has the number of a name that was seen last before the oldest of them.
                let free = self.names.iter().position(|one| one.seen < oldest);
                let new = Name {
                    name: name.to_owned(),
                    seen: at,
                };
                match free {
                    Some(free) => {
                        self.names[free] = new;
                        free
                    }
                    None if self.names.len() < NAMES_MAX => {
                        self.names.push(new);
                        self.names.len() - 1
                    }
                    None => return 0,
                }
            }
        };
        let seen = &mut self.names[place].seen;
        *seen = at.max(*seen);
        u8::try_from(place + 1).unwrap_or(0)
    }

    /// The names, in the order of their numbers.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(|one| &*one.name)
    }

    /// Names that were seen in a column that is kept, with the last one.
    pub fn seen(&self) -> impl Iterator<Item = (&str, u64)> {
        let oldest = self.columns.front().map_or(0, |column| column.at);
        let seen = self.names.iter().filter(move |one| one.seen >= oldest);
        seen.map(|one| (&*one.name, one.seen))
    }

    /// The owners in the newest column, by the Leases, and the members with one.
    pub fn owned_by<'a>(
        &mut self,
        at: u64,
        members: impl Iterator<Item = &'a str>,
        owners: impl Iterator<Item = (u16, Option<&'a str>)>,
    ) {
        self.advance(at);
        let at = self.newest().unwrap_or(at);
        for member in members {
            self.number(member, at);
        }
        let mut last: Option<(&str, u8)> = None;
        for (range, owner) in owners {
            let number = match (owner, last) {
                (None, _) => 0,
                (Some(owner), Some((before, number))) if owner == before => number,
                (Some(owner), _) => {
                    let number = self.number(owner, at);
                    last = Some((owner, number));
                    number
                }
            };
            if let Some(column) = self.columns.back_mut()
                && let Some(cell) = column.owner.get_mut(usize::from(range))
            {
                *cell = number;
            }
        }
    }

    /// Takes the owners that another picture has from a column on; this one has no column beyond its newest.
    fn adopt(&mut self, other: &Self, since: u64) {
        if let Some(newest) = other.newest() {
            // There is room for what others have recorded before this one has started.
            if self.columns.is_empty() {
                self.advance(newest.saturating_sub(self.kept as u64 - 1));
            }
            self.advance(newest);
        }
        for (name, seen) in other.seen() {
            self.number(name, seen);
        }
        let numbers: Vec<u8> = other
            .names
            .iter()
            .map(|one| self.names.iter().position(|own| own.name == one.name))
            .map(|place| place.map_or(0, |place| u8::try_from(place + 1).unwrap_or(0)))
            .collect();
        for column in other.since(since) {
            let Some(own) = self.at(column.at) else {
                continue;
            };
            for (cell, owner) in own.owner.iter_mut().zip(&column.owner) {
                if let Some(number) = usize::from(*owner).checked_sub(1) {
                    *cell = numbers.get(number).copied().unwrap_or(0);
                }
            }
        }
    }

    /// Adds what a replica has recorded of a range. Where no Lease was seen to name an owner, it is the
    /// owner; columns beyond the newest are left out.
    pub fn add(&mut self, replica: &str, cells: &Cells) {
        if self.newest().is_none_or(|newest| cells.first > newest) {
            return;
        }
        let range = usize::from(cells.range);
        let both = cells.work.iter().zip(&cells.wait);
        for (at, (work, wait)) in (cells.first..).zip(both) {
            if *work == NOTHING && *wait == NOTHING || self.at(at).is_none() {
                continue;
            }
            let number = self.number(replica, at);
            let Some(column) = self.at(at) else { continue };
            let (Some(owner), Some(own_work), Some(own_wait)) = (
                column.owner.get_mut(range),
                column.work.get_mut(range),
                column.wait.get_mut(range),
            ) else {
                return;
            };
            *own_work = (*own_work).max(*work);
            *own_wait = (*own_wait).max(*wait);
            if *owner == NOTHING {
                *owner = number;
            }
        }
    }

    /// The columns from this number on.
    pub fn since(&self, since: u64) -> impl Iterator<Item = &Column> {
        self.columns.iter().filter(move |column| column.at >= since)
    }
}

/// What this replica records.
#[derive(Debug)]
pub struct History {
    picture: Picture,
    /// Seconds worked in the newest column, by range.
    worked: Vec<f64>,
    /// The longest wait in it, in seconds.
    waited: Vec<f64>,
    last: Whole,
}

/// What was done in the last whole column.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Whole {
    /// Seconds of work a second.
    pub load: f64,
    /// The longest wait.
    pub waited: Duration,
}

impl History {
    /// Without any record.
    pub fn new(ranges: u16) -> Self {
        Self {
            picture: Picture::new(ranges),
            worked: vec![0.0; usize::from(ranges)],
            waited: vec![0.0; usize::from(ranges)],
            last: Whole::default(),
        }
    }

    /// The column of a second.
    pub fn column(second: i64) -> u64 {
        u64::try_from(second).unwrap_or(0) / COLUMN_SECONDS
    }

    fn advance(&mut self, at: u64) {
        let Some(newest) = self.picture.newest() else {
            return self.picture.advance(at);
        };
        if at > newest {
            let longest = self.waited.iter().copied().fold(0.0, f64::max);
            self.last = Whole {
                load: self.worked.iter().sum::<f64>() / COLUMN_SECONDS as f64,
                waited: Duration::from_secs_f64(longest),
            };
            self.worked.fill(0.0);
            self.waited.fill(0.0);
            self.picture.advance(at);
        }
    }

    /// Notes what owned ranges have done since the last time: work and longest wait of each.
    pub fn note(&mut self, at: u64, ranges: impl Iterator<Item = (u16, (Duration, Duration))>) {
        self.advance(at);
        let Some(column) = self.picture.columns.back_mut() else {
            return;
        };
        for (range, (worked, waited)) in ranges {
            let range = usize::from(range);
            let (Some(sum), Some(longest)) =
                (self.worked.get_mut(range), self.waited.get_mut(range))
            else {
                continue;
            };
            *sum += worked.as_secs_f64();
            *longest = longest.max(waited.as_secs_f64());
            column.work[range] = code(*sum / COLUMN_SECONDS as f64, WORK_LEAST);
            column.wait[range] = code(*longest, WAIT_LEAST);
        }
    }

    /// Notes the members and the owners that the Leases name.
    pub fn owned_by<'a>(
        &mut self,
        at: u64,
        members: impl Iterator<Item = &'a str>,
        owners: impl Iterator<Item = (u16, Option<&'a str>)>,
    ) {
        self.advance(at);
        self.picture.owned_by(at, members, owners);
    }

    /// What was done in the last whole column.
    pub fn last(&self) -> Whole {
        self.last
    }

    /// What was recorded of the ranges that were owned, from a column on.
    pub fn cells(&self, since: u64) -> Vec<Cells> {
        let columns: Vec<&Column> = self.picture.since(since).collect();
        let Some(first) = columns.first().map(|column| column.at) else {
            return Vec::new();
        };
        let ranges = 0..self.worked.len();
        let rows = ranges.filter_map(|range| {
            let plane = |of: fn(&Column) -> &Vec<u8>| -> Vec<u8> {
                columns.iter().map(|column| of(column)[range]).collect()
            };
            let (work, wait) = (plane(|column| &column.work), plane(|column| &column.wait));
            let owned = work.iter().chain(&wait).any(|cell| *cell != NOTHING);
            owned.then(|| Cells {
                range: u16::try_from(range).unwrap_or(u16::MAX),
                first,
                work,
                wait,
            })
        });
        rows.collect()
    }

    /// Has a picture of all replicas show the owners that this one has seen, from a column on.
    pub fn show(&self, picture: &mut Picture, since: u64) {
        picture.adopt(&self.picture, since);
    }
}

#[cfg(test)]
mod tests;
