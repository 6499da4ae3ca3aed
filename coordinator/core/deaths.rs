//! Which keys a replica was working on when it died, and what follows for its successors. A key that ends the
//! process which reconciles it (out of memory, an overflowing stack, a panic outside of a plan) would
//! otherwise end one owner after the other.
//!
//! Two records, both in Leases that are written anyway:
//! * A replica's Lease names the keys that have been in flight for a while, as of its last renewal. One that
//!   evicts the replica, or takes its Lease over as its next life, files them with the death in that Lease.
//! * A range's Lease lists its last owners that died. A key that kills faster than a renewal can name it
//!   leaves this trace alone: the ranges that several dead replicas have owned. Their keys are announced
//!   before they are reconciled, so that the next death names the key.
//!
//! Everything here is evaluated from Leases, so all members come to the same result. None of it says who may
//! write: the worst that a wrong record can do is to make keys wait for each other.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use crate::lease::{Holder, RangeId, Time};

/// Keys that a replica's Lease names at most.
pub const WORKING_MAX: usize = 16;

/// Upper bound of a named key, in bytes; a longer one is cut off. Sixteen of them in each of the kept deaths
/// stay far below the 256 KiB that an object's annotations may have.
pub const WORK_BYTES_MAX: usize = 400;

/// Deaths that a replica's Lease keeps.
const DEATHS_MAX: usize = 4;

/// Dead owners that a range's Lease keeps.
const DEAD_OWNERS_MAX: usize = 4;

/// A death that is older than this many seconds counts no more.
const LATELY: i64 = 600;

/// A death while a key was reconciled alone counts for this many seconds: there is nothing else to blame.
const REMEMBERED: i64 = 3600;

/// This many deaths within [`LATELY`] make a suspect of a key that was in flight among others, and call for
/// care with a range whose owners died.
const SUSPICIOUS: u32 = 2;

/// Under which precautions a key was in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Care {
    /// Nothing else of its range was in flight, and it was announced before.
    Alone,
    /// It was announced before.
    Announced,
    /// None: it was noticed for the time that it took.
    None,
}

impl Care {
    const ALL: [Self; 3] = [Self::Alone, Self::Announced, Self::None];

    fn sign(self) -> char {
        match self {
            Self::Alone => '!',
            Self::Announced => '~',
            Self::None => '-',
        }
    }
}

/// A key in flight.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Work {
    /// Under which precautions.
    pub care: Care,
    /// Controller and key; the core only compares it.
    pub name: String,
}

impl Work {
    /// A key of a controller.
    pub fn new(controller: &str, key: impl fmt::Display, care: Care) -> Self {
        let name = Self::name(controller, key);
        Self { care, name }
    }

    /// How a key of a controller is named: on one line, of bounded length.
    pub fn name(controller: &str, key: impl fmt::Display) -> String {
        let mut name = format!("{controller} {key}").replace(char::is_control, "?");
        let mut end = name.len().min(WORK_BYTES_MAX);
        while !name.is_char_boundary(end) {
            end -= 1;
        }
        name.truncate(end);
        name
    }

    fn parse(line: &str) -> Option<Self> {
        let care = Care::ALL
            .into_iter()
            .find(|care| line.starts_with(care.sign()))?;
        let name = &line[1..];
        (!name.is_empty() && name.len() <= WORK_BYTES_MAX).then(|| Self {
            care,
            name: name.to_owned(),
        })
    }

    /// Reads what [`Work::write_all`] wrote; lines of another shape are skipped, and those beyond
    /// [`WORKING_MAX`].
    pub fn parse_all(text: &str) -> Vec<Self> {
        let lines = text.lines().filter_map(Self::parse);
        lines.take(WORKING_MAX).collect()
    }

    /// One line for each, [`WORKING_MAX`] at most.
    pub fn write_all(all: &[Self]) -> String {
        let lines = all.iter().take(WORKING_MAX).map(ToString::to_string);
        lines.collect::<Vec<_>>().join("\n")
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.care.sign(), self.name)
    }
}

/// The end of a life that had not released its Lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Death {
    /// When it was noticed, in Unix seconds by the clock of the replica that filed it.
    pub second: i64,
    /// Whose life.
    pub incarnation: String,
    /// What its Lease named as in flight.
    pub working: Vec<Work>,
}

/// The last deaths of a replica, the newest last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Deaths(Vec<Death>);

impl Deaths {
    /// Reads what [`Display`](fmt::Display) wrote; what has another shape is skipped.
    pub fn parse(text: &str) -> Self {
        let mut deaths = Self::default();
        for line in text.lines() {
            if let Some((second, incarnation)) = line
                .strip_prefix('@')
                .and_then(|death| death.split_once(' '))
                && let Ok(second) = second.parse()
            {
                deaths.push(Death {
                    second,
                    incarnation: incarnation.to_owned(),
                    working: Vec::new(),
                });
            } else if let Some(work) = Work::parse(line)
                && let Some(death) = deaths.0.last_mut()
                && death.working.len() < WORKING_MAX
            {
                death.working.push(work);
            }
        }
        deaths
    }

    /// With one more. A life dies once.
    pub fn push(&mut self, death: Death) {
        self.0
            .retain(|known| known.incarnation != death.incarnation);
        self.0.push(death);
        self.0.drain(..self.0.len().saturating_sub(DEATHS_MAX));
    }

    /// Forgets deaths that can't count any more, and those of earlier lives of the process whose first life
    /// this is: that one lives on, so its keys have not killed it.
    pub fn prune(&mut self, now: i64, survivor: &str) {
        self.0.retain(|death| {
            now.saturating_sub(death.second) < REMEMBERED
                && first_life(&death.incarnation) != first_life(survivor)
        });
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether this life is among them.
    pub fn names(&self, incarnation: &str) -> bool {
        let mut deaths = self.0.iter();
        deaths.any(|death| death.incarnation == incarnation)
    }

    fn lately(&self, now: i64, incarnation: &str) -> bool {
        let mut deaths = self.0.iter();
        deaths.any(|death| death.incarnation == incarnation && is_within(now, death, LATELY))
    }
}

impl fmt::Display for Deaths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, death) in self.0.iter().enumerate() {
            let separator = if at == 0 { "" } else { "\n" };
            write!(f, "{separator}@{} {}", death.second, death.incarnation)?;
            for work in &death.working {
                write!(f, "\n{work}")?;
            }
        }
        Ok(())
    }
}

/// The Unix second now, by a machine's clock as it was at time 0.
pub(crate) fn unix_second(origin: i64, now: Time) -> i64 {
    origin.saturating_add(i64::try_from(now.as_secs()).unwrap_or(i64::MAX))
}

/// The process whose life this is. Lives of one process are `<id>`, `<id>-1`, `<id>-2` …
pub fn first_life(incarnation: &str) -> &str {
    let (first, _) = incarnation.split_once('-').unwrap_or((incarnation, ""));
    first
}

/// A clock that is ahead makes a death as recent as one that is behind makes it old.
fn is_within(now: i64, death: &Death, seconds: i64) -> bool {
    now.saturating_sub(death.second).saturating_abs() < seconds
}

/// A range's dead owners with one more, the newest last.
pub fn with_dead_owner(mut owners: Vec<Holder>, owner: Holder) -> Vec<Holder> {
    owners.retain(|known| *known != owner);
    owners.push(owner);
    owners.drain(..owners.len().saturating_sub(DEAD_OWNERS_MAX));
    owners
}

/// Reads dead owners; those of another shape are skipped.
pub fn parse_dead_owners(text: &str) -> Vec<Holder> {
    let owners = text.split(',').filter_map(|owner| owner.parse().ok());
    owners.fold(Vec::new(), with_dead_owner)
}

/// Why a key is quarantined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Suspicion {
    /// Deaths of replicas that had it in flight, as far as they count.
    pub deaths: u32,
    /// Those of them at which it was reconciled alone.
    pub alone: u32,
    /// The newest of them, in Unix seconds.
    pub last: i64,
}

/// What Leases say of keys that may kill.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quarantine {
    /// Keys that are reconciled alone and last, by [`Work::name`]. Bound: [`WORKING_MAX`] for each kept
    /// death.
    pub keys: BTreeMap<String, Suspicion>,
    /// Ranges whose keys are announced before they are reconciled.
    pub careful: BTreeSet<RangeId>,
}

impl Quarantine {
    /// Evaluates the deaths of all replicas, by name, and the dead owners of some ranges, as of a Unix
    /// second.
    ///
    /// A key is suspected after two deaths within ten minutes, or one before which it was announced: an
    /// announcement names few keys, and is only made where two owners have died before.
    pub fn of<'a>(
        now: i64,
        deaths: &BTreeMap<&str, &Deaths>,
        ranges: impl IntoIterator<Item = (RangeId, &'a [Holder])>,
    ) -> Self {
        let mut keys: BTreeMap<String, (Suspicion, bool)> = BTreeMap::new();
        for death in deaths.values().flat_map(|deaths| &deaths.0) {
            for work in &death.working {
                let alone = work.care == Care::Alone;
                let counted = if alone { REMEMBERED } else { LATELY };
                if !is_within(now, death, counted) {
                    continue;
                }
                let (suspicion, announced) = keys.entry(work.name.clone()).or_default();
                suspicion.deaths += 1;
                suspicion.alone += u32::from(alone);
                suspicion.last = death.second.max(suspicion.last);
                *announced |= work.care != Care::None;
            }
        }
        let keys = keys
            .into_iter()
            .filter(|(_, (suspicion, announced))| *announced || suspicion.deaths >= SUSPICIOUS)
            .map(|(name, (suspicion, _))| (name, suspicion))
            .collect();
        let died = |owner: &&Holder| {
            let known = deaths.get(&*owner.name);
            known.is_some_and(|deaths| deaths.lately(now, &owner.incarnation))
        };
        let careful = ranges
            .into_iter()
            .filter(|(_, owners)| owners.iter().filter(died).count() >= SUSPICIOUS as usize)
            .map(|(range, _)| range)
            .collect();
        Self { keys, careful }
    }

    /// Whether nothing is suspected.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.careful.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_700_000_000;

    fn work(care: Care, key: &str) -> Work {
        Work::new("job-controller", key, care)
    }

    fn death(ago: i64, incarnation: &str, working: &[(Care, &str)]) -> Death {
        Death {
            second: NOW - ago,
            incarnation: incarnation.to_owned(),
            working: working.iter().map(|(care, key)| work(*care, key)).collect(),
        }
    }

    fn suspects(all: &[(&str, Vec<Death>)]) -> Vec<(String, u32, u32)> {
        let deaths: Vec<(&str, Deaths)> = all
            .iter()
            .map(|(name, deaths)| (*name, Deaths(deaths.clone())))
            .collect();
        let deaths = deaths.iter().map(|(name, deaths)| (*name, deaths));
        let quarantine = Quarantine::of(NOW, &deaths.collect(), []);
        let keys = quarantine.keys.into_iter();
        keys.map(|(name, suspicion)| {
            let key = name.strip_prefix("job-controller ").unwrap().to_owned();
            (key, suspicion.deaths, suspicion.alone)
        })
        .collect()
    }

    #[test]
    fn a_key_is_suspected_after_two_deaths_in_ten_minutes_or_one_that_announced_it() {
        use Care::{Alone, Announced, None};
        let once = |key: &str, deaths, alone| vec![(key.to_owned(), deaths, alone)];
        for (case, deaths, expected) in [
            (
                "one death among others",
                vec![death(5, "x", &[(None, "a/x"), (None, "a/y")])],
                vec![],
            ),
            (
                "two deaths with one key in common",
                vec![
                    death(9, "x", &[(None, "a/x"), (None, "a/y")]),
                    death(5, "y", &[(None, "a/x"), (None, "a/z")]),
                ],
                once("a/x", 2, 0),
            ),
            (
                "the first is too long ago",
                vec![
                    death(600, "x", &[(None, "a/x")]),
                    death(5, "y", &[(None, "a/x")]),
                ],
                vec![],
            ),
            (
                "a clock that is ahead",
                vec![
                    death(-500, "x", &[(None, "a/x")]),
                    death(5, "y", &[(None, "a/x")]),
                ],
                once("a/x", 2, 0),
            ),
            (
                "announced",
                vec![death(599, "x", &[(Announced, "a/x")])],
                once("a/x", 1, 0),
            ),
            (
                "announced long ago",
                vec![death(600, "x", &[(Announced, "a/x")])],
                vec![],
            ),
            (
                "alone",
                vec![death(3599, "x", &[(Alone, "a/x")])],
                once("a/x", 1, 1),
            ),
            (
                "alone an hour ago",
                vec![death(3600, "x", &[(Alone, "a/x")])],
                vec![],
            ),
        ] {
            assert_eq!(suspects(&[("a", deaths.clone())]), expected, "{case}");
            // It makes no difference which replicas died.
            let apart: Vec<(String, Vec<Death>)> = deaths
                .into_iter()
                .enumerate()
                .map(|(at, death)| (at.to_string(), vec![death]))
                .collect();
            let apart: Vec<(&str, Vec<Death>)> = apart
                .iter()
                .map(|(name, deaths)| (&**name, deaths.clone()))
                .collect();
            assert_eq!(suspects(&apart), expected, "{case}, of different replicas");
        }
    }

    #[test]
    fn a_range_wants_care_after_two_of_its_owners_died_lately() {
        let owner = |name: &str, incarnation: &str| Holder::new(name, incarnation);
        let of_a = Deaths(vec![death(700, "a1", &[]), death(20, "a2", &[])]);
        let of_b = Deaths(vec![death(10, "b1", &[])]);
        let deaths = BTreeMap::from([("a", &of_a), ("b", &of_b)]);
        let ranges = [
            vec![],
            vec![owner("a", "a2")],
            vec![owner("a", "a1"), owner("b", "b1")],
            vec![owner("a", "a2"), owner("b", "b1")],
            // One whose Lease is gone, and one that turned out to live.
            vec![owner("c", "c1"), owner("b", "b1"), owner("b", "b0")],
        ];
        let ranges = (0..).zip(ranges.iter().map(Vec::as_slice));
        let careful = Quarantine::of(NOW, &deaths, ranges).careful;
        assert_eq!(careful, BTreeSet::from([3]));
    }

    #[test]
    fn a_process_that_lives_on_under_a_later_life_has_not_died() {
        let mut deaths = Deaths(vec![
            death(4000, "old", &[]),
            death(30, "x", &[]),
            death(20, "y", &[]),
            death(10, "x-1", &[]),
        ]);
        deaths.prune(NOW, "x-2");
        assert_eq!(deaths, Deaths(vec![death(20, "y", &[])]));
    }

    #[test]
    fn records_survive_their_text_and_are_bounded() {
        let mut deaths = Deaths::default();
        assert_eq!(deaths.to_string(), "");
        for at in 0..6 {
            deaths.push(death(
                60 - at,
                &format!("x{at}"),
                &[
                    (Care::Alone, "a/x"),
                    (Care::Announced, "a/y"),
                    (Care::None, "z"),
                ],
            ));
        }
        deaths.push(death(1, "x5", &[(Care::None, "z")]));
        assert_eq!(deaths.0.len(), DEATHS_MAX);
        assert_eq!(deaths.0.last().unwrap().second, NOW - 1, "a life dies once");
        assert_eq!(Deaths::parse(&deaths.to_string()), deaths);

        let text = "-early\n@x y\n@5 b1\n!\n?job a/b\n~job a/b\n@6\n";
        let parsed = Deaths::parse(text);
        assert_eq!(
            parsed.to_string(),
            "@5 b1\n~job a/b",
            "what has no shape is skipped"
        );

        let many: Vec<Work> = (0..40)
            .map(|at| work(Care::None, &at.to_string()))
            .collect();
        assert_eq!(
            Work::parse_all(&Work::write_all(&many)),
            many[..WORKING_MAX]
        );
        let long = work(Care::None, &"ä\n".repeat(WORK_BYTES_MAX));
        assert!(long.name.len() <= WORK_BYTES_MAX && !long.name.contains('\n'));
        assert_eq!(Work::parse_all(&long.to_string()), [long]);
    }

    #[test]
    fn the_newest_dead_owners_of_a_range_are_kept() {
        let owners = parse_dead_owners("a_1,nobody,b_1,a_1,c_1,d_1,e_1");
        let names: Vec<String> = owners.iter().map(ToString::to_string).collect();
        assert_eq!(names, ["a_1", "c_1", "d_1", "e_1"]);
        assert!(parse_dead_owners("").is_empty());
    }
}
