//! Who owned what, by the Leases that the log shows being written, and who wrote all the same.
//!
//! - **Older epochs.** No write of an epoch arrives after the range's Lease was given a newer one. One that
//!   the API server's fence has refused, or whose sender withdrew it before the server had read it, is
//!   counted, not complained of: it changed nothing. A Lease that hands have deleted or edited is
//!   repaired, with the next epoch, by the life that has owned the range all the while: until that has heard
//!   of it, it writes under the epoch before.
//! - **Owners.** Each write names a range and an epoch that the Lease gave to its sender before it arrived.
//! - **Nobody's ranges.** From one sign of life of a range's owner (a renewal of its own Lease, the range's
//!   change of owner) to the next no more time passes than was announced. Times in which the server granted
//!   nobody's writes don't count: then everybody pauses and nobody moves.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use crate::AuditRecord;

/// The server was away where nobody's write was granted for so long: replicas renew once a second. What it
/// answers otherwise, from memory or with an error, helps nobody to renew.
const SILENCE: SignedDuration = SignedDuration::from_millis(1500);
/// After the server's return renewals and range Leases are read before anybody acts.
const RETURN: SignedDuration = SignedDuration::from_secs(3);
/// What hands have edited is asked for all round, and vanished owners are waited for, before it is taken.
const BY_HAND: SignedDuration = SignedDuration::from_secs(20);
/// The repair of a Lease is heard of by its maker within this time.
const HEARD: SignedDuration = SignedDuration::from_millis(500);
/// The message with which the API server's fence refuses.
const FENCE: &str = "ValidatingAdmissionPolicy 'manifold-fence'";

/// A range Lease as it was written.
#[derive(Debug, Clone)]
struct Named {
    arrived: Timestamp,
    done: Timestamp,
    epoch: u64,
    /// `<replica>_<incarnation>`; empty for nobody.
    holder: String,
    /// There was no Lease.
    made: bool,
    by_hand: bool,
    /// The server gave no clear answer: it may have landed.
    maybe: bool,
}

/// A write in a range's name.
#[derive(Debug, Clone)]
struct Write {
    arrived: Timestamp,
    range: u32,
    epoch: u64,
    replica: String,
    what: String,
    /// The server has done nothing of it.
    undone: bool,
}

/// Reads a log; see the module.
#[derive(Debug)]
pub struct Ownership {
    fleet: String,
    ranges: BTreeMap<u32, Vec<Named>>,
    /// By `<replica>_<incarnation>`: when it wrote its own Lease.
    renewals: BTreeMap<String, Vec<Timestamp>>,
    writes: Vec<Write>,
    /// Ends of writes that were granted, for silences.
    ends: Vec<Timestamp>,
}

/// What was found.
#[derive(Debug, Default)]
pub struct Owned {
    /// Broken promises, a line each.
    pub complaints: Vec<String>,
    /// Writes that named their range and epoch.
    pub writes: usize,
    /// Changes of owner.
    pub changes: usize,
    /// Writes of an older epoch that the API server refused, or never read.
    pub refused: usize,
    /// Times in which the server granted nobody's writes.
    pub silences: usize,
    /// The longest time that a range was nobody's, its number, and when that ended.
    pub longest: Option<(SignedDuration, u32, Timestamp)>,
}

impl Ownership {
    /// Of the fleet of this name.
    pub fn of(fleet: &str) -> Self {
        Self {
            fleet: fleet.to_owned(),
            ranges: BTreeMap::new(),
            renewals: BTreeMap::new(),
            writes: Vec::new(),
            ends: Vec::new(),
        }
    }

    /// Writes in a range's name that were read: what its memory grows with.
    pub fn writes(&self) -> usize {
        self.writes.len()
    }

    /// Takes in one record.
    pub fn read(&mut self, record: &AuditRecord) {
        if record.stage != "ResponseComplete" {
            return;
        }
        if !record.is_write() {
            return;
        }
        let granted = record.code().is_some_and(|code| (200..300).contains(&code));
        if granted {
            self.ends.push(record.stage_timestamp);
        }
        let agent = record.agent();
        if let Some(agent) = &agent
            && let (Some(range), Some(epoch)) = (agent.range, agent.epoch)
        {
            self.writes.push(Write {
                arrived: record.request_received_timestamp,
                range,
                epoch,
                replica: agent.replica.clone(),
                what: format!(
                    "{} {} {}/{}",
                    record.verb,
                    record.resource(),
                    record.object().namespace,
                    record.object().name
                ),
                undone: record.was_withdrawn_unread()
                    || record.code() == Some(403)
                        && record
                            .response_status
                            .as_ref()
                            .is_some_and(|status| status.message.contains(FENCE)),
            });
        }
        let object = record.object();
        let undecided = record.code().is_none_or(|code| code >= 500);
        if (granted || undecided) && object.resource == "leases" && record.verb != "delete" {
            self.lease(record, &object.name, agent.is_none(), undecided);
        }
    }

    fn lease(&mut self, record: &AuditRecord, name: &str, by_hand: bool, maybe: bool) {
        // Without an answer, what was asked for is all that is known.
        let body = match maybe {
            true => record.request_object.as_ref(),
            false => record.response_object.as_ref(),
        };
        let Some(body) = body else { return };
        let spec = &body["spec"];
        let name = match name {
            "" => body["metadata"]["name"].as_str().unwrap_or_default(),
            name => name,
        };
        let Some(rest) = name.strip_prefix(&self.fleet) else {
            return;
        };
        let holder = spec["holderIdentity"].as_str().unwrap_or_default();
        let (arrived, done) = (record.request_received_timestamp, record.stage_timestamp);
        if let Some(range) = rest
            .strip_prefix("-range-")
            .and_then(|range| range.parse().ok())
        {
            self.ranges.entry(range).or_default().push(Named {
                arrived,
                done,
                epoch: spec["leaseTransitions"].as_u64().unwrap_or(0),
                holder: holder.to_owned(),
                made: record.verb == "create",
                by_hand,
                maybe,
            });
        } else if !maybe && rest.starts_with("-replica-") && !holder.is_empty() && !by_hand {
            self.renewals
                .entry(holder.to_owned())
                .or_default()
                .push(arrived);
        }
    }

    /// What all that was read comes to; `unowned` is the longest that a range may be nobody's.
    pub fn verdict(&self, unowned: SignedDuration) -> Owned {
        let mut owned = Owned {
            writes: self.writes.len(),
            ..Owned::default()
        };
        let mut ranges = self.ranges.clone();
        for (range, named) in &mut ranges {
            self.settle(*range, named);
            named.sort_by_key(|one| (one.done, one.epoch));
            owned.changes += named.len().saturating_sub(1);
        }
        if ranges.is_empty() && !self.writes.is_empty() {
            owned.complaints.push(
                "the log shows no Lease of a range being written: its policy must log their bodies"
                    .to_owned(),
            );
            return owned;
        }
        for write in &self.writes {
            let named = ranges.get(&write.range).map_or(&[][..], Vec::as_slice);
            self.judge_write(write, named, &mut owned);
        }
        let silences = self.silences();
        owned.silences = silences.len();
        let mut renewals = self.renewals.clone();
        for times in renewals.values_mut() {
            times.sort_unstable();
        }
        // As long as any replica lives, every range has an owner: a range that was lost and never taken again
        // is nobody's until then.
        let end = renewals.values().filter_map(|times| times.last()).max();
        for (range, named) in &ranges {
            let life = Life {
                renewals: &renewals,
                end: end.copied(),
            };
            judge_gaps(*range, named, &life, &silences, unowned, &mut owned);
        }
        owned
    }

    /// What had no clear answer has landed if its epoch was built upon, or written under by the one whom it
    /// names.
    fn settle(&self, range: u32, named: &mut Vec<Named>) {
        let sure: BTreeSet<u64> = named
            .iter()
            .filter(|one| !one.maybe)
            .map(|one| one.epoch)
            .collect();
        named.retain(|one| {
            let used = || {
                self.writes.iter().any(|write| {
                    let its = one.holder.rsplit_once('_').map_or("", |(name, _)| name);
                    (write.range, write.epoch, write.replica.as_str()) == (range, one.epoch, its)
                })
            };
            !one.maybe
                || (!sure.contains(&one.epoch) && (sure.contains(&(one.epoch + 1)) || used()))
        });
    }

    fn judge_write(&self, write: &Write, named: &[Named], owned: &mut Owned) {
        let Write {
            arrived,
            range,
            epoch,
            replica,
            what,
            undone,
        } = write;
        // A log may begin later than the range's history.
        let Some(first) = named.iter().map(|one| one.epoch).min() else {
            return;
        };
        if *epoch < first {
            return;
        }
        // It repairs what hands have done to its Lease, under the next epoch.
        let is_repair = |one: &Named| {
            let before = named
                .iter()
                .take_while(|before| !std::ptr::eq(*before, one));
            one.made || before.last().is_some_and(|before| before.by_hand)
        };
        let of_the_same_life = |one: &Named| {
            let mut before = named.iter().filter(|before| before.epoch == *epoch);
            is_repair(one) && before.any(|before| before.holder == one.holder)
        };
        let unheard =
            |one: &Named| arrived.duration_since(one.done) < HEARD && of_the_same_life(one);
        let newer = named
            .iter()
            .find(|one| one.epoch > *epoch && one.done < *arrived && !one.by_hand && !unheard(one));
        if let Some(newer) = newer {
            if *undone {
                owned.refused += 1;
                return;
            }
            owned.complaints.push(format!(
                "range {range}: {replica} sent {what} with epoch {epoch} at {arrived}, after {} had epoch {} at {}",
                newer.holder, newer.epoch, newer.done
            ));
            return;
        }
        let given: Vec<&Named> = named
            .iter()
            .filter(|one| one.epoch == *epoch && !one.by_hand)
            .collect();
        let named_it = |one: &&Named| {
            one.holder
                .rsplit_once('_')
                .is_some_and(|(name, _)| name == replica)
        };
        match given.iter().copied().find(named_it) {
            Some(one) if one.arrived <= *arrived => {}
            Some(one) => owned.complaints.push(format!(
                "range {range}: {replica} sent {what} with epoch {epoch} at {arrived}, before its Lease named it at {}",
                one.arrived
            )),
            None => owned.complaints.push(format!(
                "range {range}: {replica} sent {what} with epoch {epoch} at {arrived}, which its Lease gave to {}",
                given.first().map_or("nobody", |one| one.holder.as_str())
            )),
        }
    }

    /// Times in which no write was granted, and a moment after each.
    fn silences(&self) -> Vec<(Timestamp, Timestamp)> {
        let mut ends = self.ends.clone();
        ends.sort_unstable();
        ends.windows(2)
            .filter_map(|pair| match pair {
                [before, after] if after.duration_since(*before) > SILENCE => {
                    Some((*before, *after + RETURN))
                }
                _ => None,
            })
            .collect()
    }
}

/// Signs of life of the replicas.
struct Life<'a> {
    /// By holder, in order.
    renewals: &'a BTreeMap<String, Vec<Timestamp>>,
    /// The last one of all.
    end: Option<Timestamp>,
}

/// The times between signs of life of the holder that the Lease names, to the last sign of any replica.
fn judge_gaps(
    range: u32,
    named: &[Named],
    life: &Life<'_>,
    silences: &[(Timestamp, Timestamp)],
    unowned: SignedDuration,
    owned: &mut Owned,
) {
    for (at, one) in named.iter().enumerate() {
        let next = named.get(at + 1);
        let of_holder = life
            .renewals
            .get(&one.holder)
            .map_or(&[][..], Vec::as_slice);
        let inside = of_holder
            .iter()
            .copied()
            .filter(|renewed| *renewed > one.done && next.is_none_or(|next| *renewed < next.done));
        // Who is named next has given a sign of life itself.
        let until = match next {
            Some(next) => Some(next.done),
            None => life.end.filter(|end| *end > one.done),
        };
        let signs: Vec<Timestamp> = std::iter::once(one.done)
            .chain(inside)
            .chain(until)
            .collect();
        for pair in signs.windows(2) {
            let [from, to] = pair else { continue };
            let mut gap = to.duration_since(*from);
            for (begin, end) in silences {
                let overlap = (*to).min(*end).duration_since((*from).max(*begin));
                if overlap.is_positive() {
                    gap -= overlap;
                }
            }
            if owned.longest.is_none_or(|(longest, ..)| gap > longest) {
                owned.longest = Some((gap, range, *to));
            }
            let bound = if one.by_hand || next.is_some_and(|next| next.by_hand) {
                unowned.max(BY_HAND)
            } else {
                unowned
            };
            if gap > bound {
                owned.complaints.push(format!(
                    "range {range}: nobody's for {:.1} s until {to}; its Lease named {:?} with epoch {}",
                    gap.as_secs_f64(),
                    one.holder,
                    one.epoch
                ));
            }
        }
    }
}

impl Owned {
    /// The figures in one line.
    pub fn summary(&self) -> String {
        let longest = self.longest.map_or_else(
            || "never".to_owned(),
            |(gap, range, until)| {
                format!("{:.1} s (range {range}, until {until})", gap.as_secs_f64())
            },
        );
        format!(
            "{} writes, {} changes of owner, {} late writes that the server refused or never read, {} silences of the server, \
             nobody's for at most {longest}; {} complaints",
            self.writes,
            self.changes,
            self.refused,
            self.silences,
            self.complaints.len()
        )
    }
}
