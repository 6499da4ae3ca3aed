//! What is wanted and not seen yet, what was seen and is not explained yet, and what has come of the rest.

use std::{
    collections::{BTreeMap, HashMap, VecDeque, btree_map::Entry},
    time::Duration,
};

use controllers_kit::{AnyObject, Key};
use inspect::{ShadowCounts, ShadowDifference};
use serde_json::Value;

use crate::{
    ASKED_AGAIN, CANDIDATES_MAX, DIFFERENCES_MAX, FIELDS_MAX, PAST_MAX, VALUE_CHARS_MAX, WANTS_MAX,
    WANTS_OF_KEY_MAX,
    same::Mismatch,
    want::{
        Deed, Place, Want, changed_fields, explains, judged_fields, nearest, overlaps, satisfied,
        touches,
    },
};

/// The controller of a change that none of those here would make.
pub const UNKNOWN: &str = "unknown";

/// Time since the process started.
pub type Now = Duration;

/// The bounds in time.
#[derive(Clone, Debug)]
pub struct Config {
    /// How long the manager in charge may take, and how far apart two times that managers write may be.
    pub patience: Duration,
    /// Controllers that act by timers of their own, and how many times as long they may take.
    pub slow: (&'static [&'static str], u32),
    /// A planned write that is seen later than this was planned early.
    pub early: Duration,
}

impl Config {
    fn patience(&self, controller: &str) -> Duration {
        match self.slow.0.contains(&controller) {
            true => self.patience * self.slow.1,
            false => self.patience,
        }
    }

    /// Until when after a change there are questions about it.
    pub fn patience_max(&self) -> Duration {
        self.patience * self.slow.1
    }
}

/// What has come of a planned write, or of a change that was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Both managers want it, at about the same time.
    Agreed,
    /// Both want it; here it was planned long before.
    Early,
    /// The plan was dropped before the other manager came to it: what it rests on has changed.
    Superseded,
    /// It was planned for a whole patience, and the manager in charge has not done it.
    Missing,
    /// The manager in charge has done it, and no plan wanted it within a patience.
    Extra,
}

/// A verdict, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The controller; `unknown` where none of those that run here would write so.
    pub controller: &'static str,
    /// What has come of it.
    pub kind: Kind,
}

/// A change that was seen.
#[derive(Clone, Debug)]
pub struct Change {
    /// Before; `None` where it was created.
    pub old: Option<AnyObject>,
    /// After; `None` where it is gone.
    pub new: Option<AnyObject>,
    /// The resourceVersion of the change, that of a deletion too.
    pub version: u64,
}

impl Change {
    /// The newest that is known of the object.
    pub fn newest(&self) -> Option<&AnyObject> {
        self.new.as_ref().or(self.old.as_ref())
    }
}

/// A change that no plan explains yet.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// By which it is answered for.
    pub id: u64,
    /// The change.
    pub change: Change,
    /// When it was seen, time in which nobody was in charge left out.
    pub seen: Now,
    /// Whether this is the last question.
    pub is_last: bool,
}

/// What is found of a candidate.
#[derive(Clone, Debug)]
pub enum Answer {
    /// The manager in charge has not made it, or that can't be known.
    NotTheirs,
    /// Nothing is left of it: what it has set has been set again.
    Overtaken,
    /// A controller would make it, had it not been made.
    Wanted(&'static str),
    /// None would.
    Unwanted(Box<Unwanted>),
}

/// Why nobody here would make a change.
#[derive(Clone, Debug, Default)]
pub struct Unwanted {
    /// The controller that might; `unknown` for none.
    pub controller: &'static str,
    /// Its key.
    pub key: String,
    /// What it would write instead.
    pub instead: Option<Mismatch>,
    /// Who has made the change, as far as that is known.
    pub by: &'static str,
}

/// A planned write that is waited for.
#[derive(Clone, Debug)]
pub struct Wanted {
    controller: &'static str,
    key: Key,
    want: Want,
    since: Now,
    is_reported: bool,
}

/// A planned write that its plan has dropped.
#[derive(Clone, Debug)]
pub struct Past {
    controller: &'static str,
    want: Want,
    until: Now,
}

struct Waiting {
    change: Change,
    since: Now,
    asked: usize,
    answer: Option<Unwanted>,
    /// Fields that later changes of the object have changed; at most [`FIELDS_MAX`].
    later: Vec<Vec<String>>,
}

/// The bookkeeping of one replica.
pub struct Comparison {
    config: Config,
    next: u64,
    wanted: BTreeMap<u64, Wanted>,
    by_key: HashMap<(&'static str, Key), Vec<u64>>,
    by_place: HashMap<Place, Vec<u64>>,
    past: VecDeque<Past>,
    waiting: BTreeMap<u64, Waiting>,
    /// The time in which nobody was in charge: it counts for nothing.
    idle: Duration,
    last: Now,
    is_led: bool,
    counts: BTreeMap<&'static str, ShadowCounts>,
    differences: Vec<ShadowDifference>,
    omitted: u64,
    dropped: u64,
}

impl Comparison {
    /// One that knows nothing yet.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            next: 0,
            wanted: BTreeMap::new(),
            by_key: HashMap::new(),
            by_place: HashMap::new(),
            past: VecDeque::new(),
            waiting: BTreeMap::new(),
            idle: Duration::ZERO,
            last: Duration::ZERO,
            is_led: false,
            counts: BTreeMap::new(),
            differences: Vec::new(),
            omitted: 0,
            dropped: 0,
        }
    }

    /// A key was planned: this is all that its controller would write now. What it wanted before and wants no
    /// more is superseded.
    pub fn planned(
        &mut self,
        controller: &'static str,
        key: &Key,
        mut wants: Vec<Want>,
        now: Now,
    ) -> Vec<Verdict> {
        let now = self.effective(now);
        let mut verdicts = Vec::new();
        if wants.len() > WANTS_OF_KEY_MAX {
            self.dropped += (wants.len() - WANTS_OF_KEY_MAX) as u64;
            wants.truncate(WANTS_OF_KEY_MAX);
        }
        let place = (controller, key.clone());
        let mut before: Vec<Wanted> = Vec::new();
        for id in self.by_key.remove(&place).unwrap_or_default() {
            before.extend(self.forget(id));
        }
        // What is wanted as before first: the rest may be in place of what is wanted no more.
        let mut changed = Vec::new();
        for want in wants {
            if self.explains_waiting(&want) {
                verdicts.push(self.verdict(controller, Kind::Agreed));
                continue;
            }
            let same = before.iter().position(|one| one.want == want);
            let (since, is_reported) = match same {
                Some(at) => {
                    let one = before.swap_remove(at);
                    (one.since, one.is_reported)
                }
                None => {
                    changed.push(want);
                    continue;
                }
            };
            self.want(controller, key, want, (since, is_reported));
        }
        for want in changed {
            let of_slot = before
                .iter()
                .position(|one| one.want.is_of_same_slot(&want));
            let (since, is_reported) = match of_slot {
                Some(at) => {
                    let one = before.swap_remove(at);
                    (one.since, one.is_reported)
                }
                None => (now, false),
            };
            self.want(controller, key, want, (since, is_reported));
        }
        for one in before.into_iter().filter(|one| !one.is_reported) {
            verdicts.push(self.verdict(controller, Kind::Superseded));
            if self.past.len() >= PAST_MAX {
                self.past.pop_front();
            }
            self.past.push_back(Past {
                controller,
                want: one.want,
                until: now + self.config.patience,
            });
        }
        verdicts
    }

    /// An object has changed. What is not explained by a plan is asked about ([`Self::to_ask`]), where
    /// `is_concern` says that a controller might have made the change.
    pub fn observed(&mut self, change: Change, is_concern: bool, now: Now) -> Vec<Verdict> {
        let now = self.effective(now);
        let Some(newest) = change.newest() else {
            return Vec::new();
        };
        let ids: Vec<u64> = Place::of_object(newest)
            .into_iter()
            .flatten()
            .filter_map(|place| self.by_place.get(&place))
            .flatten()
            .copied()
            .collect();
        let (old, new) = (change.old.as_ref(), change.new.as_ref());
        let slack = self.config.patience;
        let mut verdicts = self.moved_on(&change);
        let mut made_by: Vec<&'static str> = Vec::new();
        for id in ids {
            let Some(one) = self.wanted.get(&id) else {
                continue;
            };
            let is_creation = matches!(one.want.deed, Deed::Create { .. });
            if satisfied(&one.want, old, new, slack) {
                // One child is made by one write of a controller.
                if is_creation && made_by.contains(&one.controller) {
                    continue;
                }
                let early = now.saturating_sub(one.since) > self.config.early;
                let (controller, is_reported) = (one.controller, one.is_reported);
                let explains = explains(&one.want, old, new, slack);
                self.done(id);
                if explains {
                    made_by.push(controller);
                }
                if !is_reported {
                    let kind = if early { Kind::Early } else { Kind::Agreed };
                    verdicts.push(self.verdict(controller, kind));
                }
            } else if touches(&one.want, old, new)
                && let Some(one) = self.wanted.get_mut(&id)
            {
                // They are at it: what they have written now, the next plan sees.
                one.since = now;
            }
        }
        if !made_by.is_empty() {
            return verdicts;
        }
        while self.past.front().is_some_and(|past| past.until < now) {
            self.past.pop_front();
        }
        let past = self
            .past
            .iter()
            .position(|past| explains(&past.want, old, new, slack));
        if let Some(past) = past.and_then(|at| self.past.remove(at)) {
            verdicts.push(self.verdict(past.controller, Kind::Agreed));
            return verdicts;
        }
        if is_concern && self.is_led {
            if self.waiting.len() >= CANDIDATES_MAX {
                self.dropped += 1;
            } else {
                let id = self.next_id();
                let waiting = Waiting {
                    change,
                    since: now,
                    asked: 0,
                    answer: None,
                    later: Vec::new(),
                };
                self.waiting.insert(id, waiting);
            }
        }
        verdicts
    }

    /// Changes of which it is time to ask whether a controller here would make them.
    pub fn to_ask(&mut self, at: Now) -> Vec<Candidate> {
        let now = self.effective(at);
        let mut due = Vec::new();
        for (id, one) in &mut self.waiting {
            let age = now.saturating_sub(one.since);
            // The timer by which a controller here would have made it may end as much later.
            let controller = one
                .answer
                .as_ref()
                .map_or(UNKNOWN, |found| found.controller);
            let patience = self.config.patience(controller);
            let next = match one.asked {
                0 => Some(Duration::ZERO),
                asked if asked <= ASKED_AGAIN.len() => {
                    Some(ASKED_AGAIN[asked - 1]).filter(|next| *next < patience)
                }
                _ => None,
            };
            let is_last = next.is_none();
            if age >= next.unwrap_or(patience) {
                one.asked = if is_last {
                    usize::MAX - 1
                } else {
                    one.asked + 1
                };
                due.push(Candidate {
                    id: *id,
                    change: one.change.clone(),
                    seen: at.saturating_sub(age),
                    is_last,
                });
            }
        }
        due
    }

    /// What was found of a candidate. One that nobody wants is asked about again, and is extra at last.
    pub fn answered(&mut self, candidate: &Candidate, answer: Answer, at: &str) -> Option<Verdict> {
        match answer {
            Answer::NotTheirs => {
                self.waiting.remove(&candidate.id);
                None
            }
            Answer::Overtaken => {
                // What nobody has asked about may be anybody's.
                let answer = self.waiting.remove(&candidate.id)?.answer?;
                Some(self.verdict(answer.controller, Kind::Superseded))
            }
            Answer::Wanted(controller) => {
                self.waiting.remove(&candidate.id)?;
                Some(self.verdict(controller, Kind::Agreed))
            }
            Answer::Unwanted(found) if candidate.is_last => {
                let waiting = self.waiting.remove(&candidate.id)?;
                let difference = extra(&waiting.change, &found, at);
                self.keep(difference);
                Some(self.verdict(found.controller, Kind::Extra))
            }
            Answer::Unwanted(found) => {
                let waiting = self.waiting.get_mut(&candidate.id)?;
                waiting.answer = Some(*found);
                None
            }
        }
    }

    /// Time has passed. `current` reads the object of a write that was waited for in vain; `at` is the
    /// present for people.
    pub fn tick(
        &mut self,
        now: Now,
        is_led: bool,
        at: &str,
        current: &dyn Fn(&Want) -> Option<AnyObject>,
    ) -> Vec<Verdict> {
        if !self.is_led {
            self.idle += now.saturating_sub(self.last);
        }
        self.last = now;
        self.is_led = is_led;
        let now = self.effective(now);
        let overdue: Vec<u64> = self
            .wanted
            .iter()
            .filter(|(_, one)| {
                !one.is_reported
                    && now.saturating_sub(one.since) >= self.config.patience(one.controller)
            })
            .map(|(id, _)| *id)
            .collect();
        let mut verdicts = Vec::new();
        for id in overdue {
            let Some(one) = self.wanted.get_mut(&id) else {
                continue;
            };
            one.is_reported = true;
            let controller = one.controller;
            let difference = missing(one, current(&one.want).as_ref(), self.config.patience, at);
            self.keep(difference);
            verdicts.push(self.verdict(controller, Kind::Missing));
        }
        verdicts
    }

    /// A range is another replica's: its keys are not this one's to judge.
    pub fn forget_keys(&mut self, is_lost: &dyn Fn(&'static str, &Key) -> bool) {
        let lost: Vec<(&'static str, Key)> = self
            .by_key
            .keys()
            .filter(|(controller, key)| is_lost(controller, key))
            .cloned()
            .collect();
        for place in lost {
            for id in self.by_key.remove(&place).unwrap_or_default() {
                self.forget(id);
            }
        }
    }

    /// Counts by controller, those that are pending included.
    pub fn counts(&self) -> Vec<ShadowCounts> {
        let mut counts = self.counts.clone();
        for one in self.wanted.values().filter(|one| !one.is_reported) {
            counts.entry(one.controller).or_default().pending += 1;
        }
        counts
            .into_iter()
            .map(|(controller, counts)| ShadowCounts {
                controller: controller.to_owned(),
                ..counts
            })
            .collect()
    }

    /// How many writes of each controller are waited for.
    pub fn pending(&self) -> BTreeMap<&'static str, usize> {
        let mut pending: BTreeMap<&'static str, usize> =
            self.counts.keys().map(|name| (*name, 0)).collect();
        for one in self.wanted.values().filter(|one| !one.is_reported) {
            *pending.entry(one.controller).or_default() += 1;
        }
        pending
    }

    /// Changes that are not explained yet.
    pub fn unexplained(&self) -> usize {
        self.waiting.len()
    }

    /// The first differences, and how many there are beyond.
    pub fn differences(&self) -> (&[ShadowDifference], u64) {
        (&self.differences, self.omitted)
    }

    /// What a bound has left out.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Whether somebody is in charge, as of the last tick: what changes before it is not compared.
    pub fn is_led(&self) -> bool {
        self.is_led
    }

    /// The time in which somebody was in charge.
    fn effective(&self, now: Now) -> Now {
        let idle = match self.is_led {
            true => self.idle,
            false => self.idle + now.saturating_sub(self.last),
        };
        now.saturating_sub(idle)
    }

    fn next_id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn want(
        &mut self,
        controller: &'static str,
        key: &Key,
        want: Want,
        (since, is_reported): (Now, bool),
    ) {
        if self.wanted.len() >= WANTS_MAX {
            self.dropped += 1;
            return;
        }
        self.remember(Wanted {
            controller,
            key: key.clone(),
            want,
            since,
            is_reported,
        });
    }

    fn remember(&mut self, one: Wanted) {
        let id = self.next_id();
        let place = (one.controller, one.key.clone());
        self.by_key.entry(place).or_default().push(id);
        self.by_place.entry(one.want.place()).or_default().push(id);
        self.wanted.insert(id, one);
    }

    /// Removes what is waited for from all but `by_key`.
    fn forget(&mut self, id: u64) -> Option<Wanted> {
        let one = self.wanted.remove(&id)?;
        let place = one.want.place();
        if let Some(ids) = self.by_place.get_mut(&place) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.by_place.remove(&place);
            }
        }
        Some(one)
    }

    fn done(&mut self, id: u64) {
        let Some(one) = self.forget(id) else { return };
        let place = (one.controller, one.key);
        if let Some(ids) = self.by_key.get_mut(&place) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.by_key.remove(&place);
            }
        }
    }

    /// Changes that wait for an explanation and whose fields have all been changed again: they were steps,
    /// and the last one is judged.
    fn moved_on(&mut self, change: &Change) -> Vec<Verdict> {
        let (Some(old), Some(new)) = (&change.old, &change.new) else {
            return Vec::new();
        };
        let uid = &new.metadata().uid;
        let of_same = |one: &Waiting| {
            let (Some(before), Some(after)) = (&one.change.old, &one.change.new) else {
                return false;
            };
            // A deletion is one, however its grace period ends.
            let begins_to_end =
                after.metadata().is_terminating() && !before.metadata().is_terminating();
            after.metadata().uid == *uid && !begins_to_end
        };
        if !self.waiting.values().any(of_same) {
            return Vec::new();
        }
        let changed = changed_fields(old, new);
        let mut overtaken = Vec::new();
        for (id, one) in self.waiting.iter_mut().filter(|(_, one)| of_same(one)) {
            let (Some(old), Some(new)) = (&one.change.old, &one.change.new) else {
                continue;
            };
            let room = FIELDS_MAX.saturating_sub(one.later.len());
            one.later.extend(changed.iter().take(room).cloned());
            if is_overtaken(changed_fields(old, new), &one.later) {
                overtaken.push(*id);
            }
        }
        overtaken
            .into_iter()
            .filter_map(|id| {
                let one = self.waiting.remove(&id)?;
                let controller = one.answer.map_or(UNKNOWN, |answer| answer.controller);
                Some(self.verdict(controller, Kind::Superseded))
            })
            .collect()
    }

    /// Whether a write is what a change that waits for an explanation has done.
    fn explains_waiting(&mut self, want: &Want) -> bool {
        let slack = self.config.patience;
        let found = self.waiting.iter().find(|(_, one)| {
            explains(
                want,
                one.change.old.as_ref(),
                one.change.new.as_ref(),
                slack,
            )
        });
        let found = found.map(|(id, _)| *id);
        found.is_some_and(|id| self.waiting.remove(&id).is_some())
    }

    fn verdict(&mut self, controller: &'static str, kind: Kind) -> Verdict {
        let counts = match self.counts.entry(controller) {
            Entry::Occupied(counts) => counts.into_mut(),
            Entry::Vacant(place) => place.insert(ShadowCounts::default()),
        };
        match kind {
            Kind::Agreed => counts.agreed += 1,
            Kind::Early => counts.early += 1,
            Kind::Superseded => counts.superseded += 1,
            Kind::Missing => counts.missing += 1,
            Kind::Extra => counts.extra += 1,
        }
        Verdict { controller, kind }
    }

    fn keep(&mut self, difference: ShadowDifference) {
        match self.differences.len() < DIFFERENCES_MAX {
            true => self.differences.push(difference),
            false => self.omitted += 1,
        }
    }
}

/// Whether all fields of a step are changed again.
fn is_overtaken(step: Vec<Vec<String>>, changed: &[Vec<String>]) -> bool {
    judged_fields(step)
        .iter()
        .all(|path| overlaps(path, changed))
}

fn missing(one: &Wanted, seen: Option<&AnyObject>, slack: Duration, at: &str) -> ShadowDifference {
    let mismatch = seen.and_then(|seen| nearest(&one.want, seen, slack));
    let (field, ours, theirs) = match mismatch {
        Some(Mismatch {
            field,
            ours,
            theirs,
        }) => (field, shown(&ours), shown(&theirs)),
        None => {
            let theirs = match seen {
                Some(_) => "it is there",
                None => "nothing",
            };
            (String::new(), one.want.text.clone(), theirs.to_owned())
        }
    };
    let confidential = one.want.is_confidential();
    let hidden = |text| match confidential {
        true => "(confidential)".to_owned(),
        false => text,
    };
    ShadowDifference {
        kind: "missing".to_owned(),
        controller: one.controller.to_owned(),
        key: one.key.to_string(),
        write: one.want.text.clone(),
        resource: one.want.resource.type_id(),
        namespace: one.want.key.namespace.to_string(),
        name: one.want.key.name.to_string(),
        field,
        ours: hidden(ours),
        theirs: hidden(theirs),
        at: at.to_owned(),
        ..ShadowDifference::default()
    }
}

fn extra(change: &Change, found: &Unwanted, at: &str) -> ShadowDifference {
    let mut difference = ShadowDifference {
        kind: "extra".to_owned(),
        controller: found.controller.to_owned(),
        key: found.key.clone(),
        by: found.by.to_owned(),
        at: at.to_owned(),
        ..ShadowDifference::default()
    };
    let Some(newest) = change.newest() else {
        return difference;
    };
    let (resource, meta) = (newest.resource(), newest.metadata());
    difference.resource = resource.type_id();
    difference.namespace = meta.namespace.to_string();
    difference.name = meta.name.to_string();
    let written = |verb: &str| format!("{verb} {}/{}", resource.plural, meta.name);
    match (&change.old, &change.new) {
        (None, _) => difference.write = written("create"),
        (Some(_), None) => difference.write = written("delete"),
        (Some(old), Some(new))
            if new.metadata().is_terminating() && !old.metadata().is_terminating() =>
        {
            difference.write = written("delete");
        }
        (Some(old), Some(new)) => {
            difference.write = written("update");
            if let Some(path) = changed_fields(old, new).first() {
                difference.field = path.join(".");
                let pointer = |object: &AnyObject| {
                    let json = object.to_json();
                    let mut value = &json;
                    for part in path {
                        value = value.get(part).unwrap_or(&Value::Null);
                    }
                    shown(value)
                };
                difference.theirs = pointer(new);
                difference.ours = pointer(old);
            }
        }
    }
    if let Some(instead) = &found.instead {
        difference.field.clone_from(&instead.field);
        difference.ours = shown(&instead.ours);
        difference.theirs = shown(&instead.theirs);
    }
    if resource.group.is_empty() && resource.plural == "secrets" {
        difference.ours = "(confidential)".to_owned();
        difference.theirs.clone_from(&difference.ours);
    }
    difference
}

fn shown(value: &Value) -> String {
    let text = match value {
        Value::Null => "nothing".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    match text.char_indices().nth(VALUE_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
