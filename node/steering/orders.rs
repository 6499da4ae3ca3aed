//! What the object says: orders, which of them are in force when, and what in it can't be read.

use std::{collections::BTreeMap, fmt};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    CLOCKS_APART_MAX, FAULTS_MAX, HOLDS_MAX, KEPT, KEY_BYTES_MAX, NAME_BYTES_MAX, ORDER_BYTES_MAX,
    ORDERS_MAX, QPS_MAX, QPS_MIN, RANGES_MAX, REASON_MAX, WORKERS_MAX,
};

/// How the field of a pause begins.
const PAUSE: &str = "pause.";
/// How the field of a drain begins.
const DRAIN: &str = "drain.";
/// How the field of a setting begins.
const SET: &str = "set.";
/// How the field of a move begins.
const MOVE: &str = "move.";

/// What of a controller an order can set, in each replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Setting {
    /// Keys that are reconciled at once.
    Workers,
    /// Writes to the API server in a second.
    Qps,
}

impl Setting {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Workers, Self::Qps];

    /// As commands and fields name it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Workers => "workers",
            Self::Qps => "qps",
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The value of a setting: a number that is finite.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Amount(f64);

// Never NaN.
impl Eq for Amount {}

impl Amount {
    /// A value of a setting.
    ///
    /// # Errors
    /// Where it is out of bounds.
    pub fn of(setting: Setting, value: f64) -> Result<Self, Unreadable> {
        let fits = match setting {
            Setting::Workers => {
                value.fract() == 0.0 && (1.0..=f64::from(WORKERS_MAX)).contains(&value)
            }
            Setting::Qps => (QPS_MIN..=QPS_MAX).contains(&value),
        };
        match (fits, setting) {
            (true, _) => Ok(Self(value)),
            (false, Setting::Workers) => Err(Unreadable::Workers(value.to_string())),
            (false, Setting::Qps) => Err(Unreadable::Qps(value.to_string())),
        }
    }

    /// As a number.
    pub fn value(self) -> f64 {
        self.0
    }

    /// As a count: what a setting of whole numbers has.
    pub fn count(self) -> usize {
        // Whole and within WORKERS_MAX, as it was made.
        self.0 as usize
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What an order is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// All keys of a controller are paused.
    Controller(String),
    /// One key of a controller is paused.
    Key {
        /// The controller.
        controller: String,
        /// Namespace and name.
        key: String,
    },
    /// A replica is drained.
    Replica(String),
    /// A controller has another number of workers, or another rate of writes.
    Setting {
        /// The controller.
        controller: String,
        /// Which of both.
        setting: Setting,
    },
    /// A range is owned by another replica than placement would give it to.
    Range(u16),
}

impl Target {
    /// The field in which such an order is written. One that was written by hand may be in another.
    pub fn field(&self) -> String {
        match self {
            Self::Controller(controller) => format!("{PAUSE}{controller}"),
            // A field's name can't hold every key.
            Self::Key { controller, key } => {
                format!("{PAUSE}{controller}.{:016x}", xxh3_64(key.as_bytes()))
            }
            Self::Replica(replica) => format!("{DRAIN}{replica}"),
            Self::Setting {
                controller,
                setting,
            } => format!("{SET}{controller}.{setting}"),
            Self::Range(range) => format!("{MOVE}{range}"),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Controller(controller) => f.write_str(controller),
            Self::Key { controller, key } => write!(f, "{controller}/{key}"),
            Self::Replica(replica) => f.write_str(replica),
            Self::Setting {
                controller,
                setting,
            } => write!(f, "{setting} of {controller}"),
            Self::Range(range) => write!(f, "range {range}"),
        }
    }
}

/// An order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// What it is about.
    pub target: Target,
    /// Of a drain: the start of the replica that it concerns; another start of it owns ranges again.
    pub incarnation: Option<String>,
    /// Of a setting: its value.
    pub amount: Option<Amount>,
    /// Of a move: the replica that is to own the range.
    pub to: Option<String>,
    /// Of a move: the replica that owned it before, and will again.
    pub home: Option<String>,
    /// When it was given.
    pub since: Timestamp,
    /// When it ends by itself.
    pub until: Timestamp,
    /// Why, for people.
    pub reason: String,
    /// Who, for people: RBAC decides, not this.
    pub by: String,
}

impl Order {
    /// Whether it holds at an instant.
    pub fn is_in_force(&self, now: Timestamp) -> bool {
        self.begins() <= now && now < self.until
    }

    /// From when on it holds on a replica whose clock may be behind.
    fn begins(&self) -> Timestamp {
        earlier(self.since, CLOCKS_APART_MAX)
    }

    /// As in `until 2026-11-26T03:00:00Z by jo: reason`.
    pub fn in_words(&self) -> String {
        let mut text = format!("until {}", self.until);
        if !self.by.is_empty() {
            text += &format!(" by {}", self.by);
        }
        if !self.reason.is_empty() {
            text += &format!(": {}", self.reason);
        }
        text
    }

    /// As the object has it.
    pub fn written(&self) -> String {
        let mut written = Written {
            since: Some(self.since),
            until: Some(self.until),
            reason: self.reason.clone(),
            by: self.by.clone(),
            ..Written::default()
        };
        match &self.target {
            Target::Controller(controller) => written.controller = Some(controller.clone()),
            Target::Key { controller, key } => {
                written.controller = Some(controller.clone());
                written.key = Some(key.clone());
            }
            Target::Replica(replica) => {
                written.replica = Some(replica.clone());
                written.incarnation.clone_from(&self.incarnation);
            }
            Target::Setting {
                controller,
                setting,
            } => {
                written.controller = Some(controller.clone());
                match (setting, self.amount) {
                    (Setting::Workers, Some(amount)) => {
                        written.workers = u32::try_from(amount.count()).ok();
                    }
                    (Setting::Qps, amount) => written.qps = amount.map(Amount::value),
                    (Setting::Workers, None) => {}
                }
            }
            Target::Range(range) => {
                written.range = Some(*range);
                written.to.clone_from(&self.to);
                written.home.clone_from(&self.home);
            }
        }
        // Plain texts and instants can always be written.
        serde_json::to_string(&written).unwrap_or_default()
    }
}

fn earlier(at: Timestamp, by: SignedDuration) -> Timestamp {
    at.checked_sub(by).unwrap_or(Timestamp::MIN)
}

fn later(at: Timestamp, by: SignedDuration) -> Timestamp {
    at.checked_add(by).unwrap_or(Timestamp::MAX)
}

/// A field's value.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(skip_serializing_if = "Option::is_none")]
    controller: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    replica: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    incarnation: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    workers: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    qps: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    range: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    home: Option<String>,
    since: Option<Timestamp>,
    until: Option<Timestamp>,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    by: String,
}

/// Why an order can't be read, or may not be given.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// It is no JSON of an order.
    #[error("it is no order: {0}")]
    Form(String),
    /// Something has to be there.
    #[error("{0:?} is missing")]
    Missing(&'static str),
    /// Something must not be there.
    #[error("{0:?} does not belong there")]
    Stray(&'static str),
    /// The field's name says no sort.
    #[error("a field's name begins with {PAUSE:?}, {DRAIN:?}, {SET:?} or {MOVE:?}")]
    Sort,
    /// A controller that does not exist.
    #[error("there is no controller {name:?}{}", did_you_mean(.like))]
    NoController {
        /// The name as it was given.
        name: String,
        /// One that is called alike.
        like: Option<String>,
    },
    /// A key that can't be one.
    #[error("{0:?} is no key: give NAMESPACE/NAME, or NAME where objects have no namespace")]
    NoKey(String),
    /// A replica that can't be one, or a start of it.
    #[error("{0:?} is no name of a replica, or of a start of it")]
    NoReplica(String),
    /// A range that can't be.
    #[error("there is no range {0}: a fleet has {RANGES_MAX} at most")]
    NoRange(u16),
    /// A number of workers that can't be.
    #[error(
        "{0} workers can't be: give a whole number from 1 to {WORKERS_MAX}; `pause` stops a controller"
    )]
    Workers(String),
    /// A rate that can't be.
    #[error(
        "a qps of {0} can't be: give a number from {QPS_MIN} to {QPS_MAX}; `pause` stops a controller"
    )]
    Qps(String),
    /// It holds for too long, or ends before it begins.
    #[error("it holds for {0:#}: give more than 0s and at most {HOLDS_MAX:#}")]
    Duration(SignedDuration),
    /// A text is too long, or has characters that no text has.
    #[error("{0:?} has more than {1} characters, or a line break")]
    Text(&'static str, usize),
    /// The field is too long.
    #[error("it has more than {ORDER_BYTES_MAX} bytes")]
    Bytes,
    /// There are too many.
    #[error("there are more than {ORDERS_MAX} orders")]
    TooMany,
}

fn did_you_mean(like: &Option<String>) -> String {
    like.as_ref()
        .map_or_else(String::new, |like| format!(": did you mean {like:?}?"))
}

/// The canonical name of a controller, if there is one; otherwise that of one that is called alike.
///
/// # Errors
/// The name of a controller that is called alike, if there is one.
pub fn known<'a>(
    name: &str,
    canonical: Option<&str>,
    names: impl IntoIterator<Item = &'a str>,
) -> Result<String, Option<String>> {
    match canonical {
        Some(canonical) => Ok(canonical.to_owned()),
        None => Err(crate::closest(name, names).map(str::to_owned)),
    }
}

/// A field of the object that has no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Its name.
    pub field: String,
    /// The reason, for people.
    pub why: Unreadable,
}

/// What the object says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Orders {
    /// By field.
    pub all: BTreeMap<String, Order>,
    /// What has no effect. Bound: [`FAULTS_MAX`].
    pub faults: Vec<Fault>,
    /// How many more fields have no effect.
    pub faults_omitted: usize,
}

impl Orders {
    /// Reads the object's fields. `controller` gives the canonical name of a controller or its alias, or the
    /// name of one that is called alike.
    pub fn read(
        data: &BTreeMap<String, String>,
        controller: &dyn Fn(&str) -> Result<String, Option<String>>,
    ) -> Self {
        let mut orders = Self::default();
        for (field, text) in data {
            let read = match orders.all.len() {
                ORDERS_MAX => Err(Unreadable::TooMany),
                _ => read(field, text, controller),
            };
            match read {
                Ok(order) => drop(orders.all.insert(field.clone(), order)),
                Err(_) if orders.faults.len() == FAULTS_MAX => orders.faults_omitted += 1,
                Err(why) => orders.faults.push(Fault {
                    field: field.clone(),
                    why,
                }),
            }
        }
        orders
    }

    /// How many fields have no effect.
    pub fn faults_count(&self) -> usize {
        self.faults.len() + self.faults_omitted
    }

    /// What has no effect, and why, for people.
    pub fn faults_in_words(&self) -> Vec<String> {
        let faults = self.faults.iter();
        let more =
            (self.faults_omitted > 0).then(|| format!("{} more fields", self.faults_omitted));
        faults
            .map(|fault| format!("{}: {}", fault.field, fault.why))
            .chain(more)
            .collect()
    }

    /// The orders that hold at an instant; of several about one target the one that ends last.
    pub fn in_force(&self, now: Timestamp) -> BTreeMap<&Target, &Order> {
        let mut found: BTreeMap<&Target, &Order> = BTreeMap::new();
        for order in self.all.values().filter(|order| order.is_in_force(now)) {
            let known = found.entry(&order.target).or_insert(order);
            if known.until < order.until {
                *known = order;
            }
        }
        found
    }

    /// When the next order begins, ends or is to be removed by itself.
    pub fn next_change(&self, now: Timestamp) -> Option<Timestamp> {
        let all = self.all.values();
        all.flat_map(|order| [order.begins(), order.until, later(order.until, KEPT)])
            .filter(|at| *at > now)
            .min()
    }

    /// Fields that are to be removed: what has ended a while ago.
    pub fn expired(&self, now: Timestamp) -> Vec<&str> {
        let over = |order: &Order| later(order.until, KEPT) <= now;
        let all = self.all.iter().filter(|(_, order)| over(order));
        all.map(|(field, _)| field.as_str()).collect()
    }
}

fn read(
    field: &str,
    text: &str,
    controller: &dyn Fn(&str) -> Result<String, Option<String>>,
) -> Result<Order, Unreadable> {
    if text.len() > ORDER_BYTES_MAX {
        return Err(Unreadable::Bytes);
    }
    let sort = [PAUSE, DRAIN, SET, MOVE]
        .into_iter()
        .find(|sort| field.starts_with(sort))
        .ok_or(Unreadable::Sort)?;
    let written: Written = serde_json::from_str(text).map_err(|why| form(&why))?;
    let (drains, sets, moves) = (sort == DRAIN, sort == SET, sort == MOVE);
    let stray = [
        (
            "controller",
            (drains || moves) && written.controller.is_some(),
        ),
        ("key", sort != PAUSE && written.key.is_some()),
        ("replica", !drains && written.replica.is_some()),
        ("incarnation", !drains && written.incarnation.is_some()),
        ("workers", !sets && written.workers.is_some()),
        ("qps", !sets && written.qps.is_some()),
        ("range", !moves && written.range.is_some()),
        ("to", !moves && written.to.is_some()),
        ("home", !moves && written.home.is_some()),
    ];
    if let Some((name, _)) = stray.into_iter().find(|(_, is)| *is) {
        return Err(Unreadable::Stray(name));
    }
    let given = |text: Option<String>, name| {
        let text = text.filter(|text| !text.is_empty());
        text.ok_or(Unreadable::Missing(name))
    };
    let of_controller = |name: Option<String>| {
        let name = given(name, "controller")?;
        controller(&name).map_err(|like| Unreadable::NoController { name, like })
    };
    let (mut incarnation, mut amount, mut to) = (None, None, None);
    let target = match (sort, written.key) {
        (DRAIN, _) => {
            incarnation = Some(given(written.incarnation, "incarnation")?);
            Target::Replica(given(written.replica, "replica")?)
        }
        (SET, _) => {
            let controller = of_controller(written.controller)?;
            let (setting, value) = match (written.workers, written.qps) {
                (Some(workers), None) => (Setting::Workers, f64::from(workers)),
                (None, Some(qps)) => (Setting::Qps, qps),
                (None, None) => return Err(Unreadable::Missing("workers or qps")),
                // One field is one order.
                (Some(_), Some(_)) => return Err(Unreadable::Stray("qps")),
            };
            amount = Some(Amount::of(setting, value)?);
            Target::Setting {
                controller,
                setting,
            }
        }
        (MOVE, _) => {
            to = Some(given(written.to, "to")?);
            Target::Range(written.range.ok_or(Unreadable::Missing("range"))?)
        }
        (_, Some(key)) => Target::Key {
            controller: of_controller(written.controller)?,
            key,
        },
        (_, None) => Target::Controller(of_controller(written.controller)?),
    };
    let order = Order {
        target,
        incarnation,
        amount,
        to,
        home: written.home,
        since: written.since.ok_or(Unreadable::Missing("since"))?,
        until: written.until.ok_or(Unreadable::Missing("until"))?,
        reason: written.reason,
        by: written.by,
    };
    order.check()?;
    Ok(order)
}

/// What a parser says of a text, which it may quote: without what would move a terminal's cursor.
fn form(why: &serde_json::Error) -> Unreadable {
    let why = why.to_string();
    Unreadable::Form(why.replace(char::is_control, "\u{fffd}"))
}

impl Order {
    /// Whether it may be given, as far as it shows that itself.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self) -> Result<(), Unreadable> {
        if let Target::Key { key, .. } = &self.target
            && !is_key(key)
        {
            return Err(Unreadable::NoKey(key.clone()));
        }
        if let Target::Replica(name) = &self.target {
            let names = [Some(name), self.incarnation.as_ref()];
            if let Some(wrong) = names.into_iter().flatten().find(|name| !is_name(name)) {
                return Err(Unreadable::NoReplica(wrong.clone()));
            }
        }
        if let Target::Range(range) = self.target {
            if range >= RANGES_MAX {
                return Err(Unreadable::NoRange(range));
            }
            let names = [&self.to, &self.home].into_iter().flatten();
            if let Some(wrong) = names.into_iter().find(|name| !is_name(name)) {
                return Err(Unreadable::NoReplica(wrong.clone()));
            }
        }
        let holds = self.until.duration_since(self.since);
        if holds <= SignedDuration::ZERO || holds > HOLDS_MAX {
            return Err(Unreadable::Duration(holds));
        }
        for (name, text) in [("reason", &self.reason), ("by", &self.by)] {
            if text.chars().count() > REASON_MAX || text.chars().any(char::is_control) {
                return Err(Unreadable::Text(name, REASON_MAX));
            }
        }
        Ok(())
    }
}

/// Whether a text can be a replica's name, or name a start of it.
fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= NAME_BYTES_MAX
        && !text.chars().any(|c| c.is_whitespace() || c.is_control())
}

/// Whether a text can be a key as `/debug/explain` shows it.
fn is_key(text: &str) -> bool {
    let parts: Vec<&str> = text.split('/').collect();
    let fits = |part: &&str| {
        !part.is_empty() && !part.chars().any(|c| c.is_whitespace() || c.is_control())
    };
    text.len() <= KEY_BYTES_MAX && parts.len() <= 2 && parts.iter().all(fits)
}
