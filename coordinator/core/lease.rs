//! Leases as the protocol sees them: holder, epoch and version, without the API's clothes.

use std::{fmt, str::FromStr, sync::Arc, time::Duration};

use serde::Serialize;

use crate::{
    deaths::{Death, Deaths, Work},
    load::Loads,
    questions::{Question, Replies},
    slow_start::Crashes,
};

/// A range's number, below the fleet's number of ranges.
pub type RangeId = u16;

/// A range Lease's `leaseTransitions`; grows by one at every change of owner.
pub type Epoch = u64;

/// The first epoch that no replica writes. The API keeps epochs in an int32; half of it is left out, so that
/// whatever is computed from an epoch that was read fits. A range that moved once a second would come here
/// after 34 years, so a Lease with this epoch or a later one was edited by hand.
pub const EPOCH_END: Epoch = 1 << 30;

/// The epoch after this one. After the last it begins again with 1, which only an edit by hand can bring
/// about.
pub(crate) fn next_epoch(epoch: Epoch) -> Epoch {
    match epoch.checked_add(1) {
        Some(next) if next < EPOCH_END => next,
        _ => 1,
    }
}

/// A resourceVersion. All Leases count in one order, so versions of different Leases compare.
pub type Version = u64;

/// Monotonic time since any origin of this process. Never compared with that of another machine.
pub type Time = Duration;

/// One start of one replica.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Holder {
    /// The replica's name.
    pub name: String,
    /// Which start of it.
    pub incarnation: String,
}

impl Holder {
    /// The holder of this name and incarnation.
    pub fn new(name: impl Into<String>, incarnation: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            incarnation: incarnation.into(),
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}_{}", self.name, self.incarnation)
    }
}

/// A `holderIdentity` that is not `<name>_<incarnation>`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("holderIdentity {0:?} is not <name>_<incarnation>")]
pub struct NotAHolder(pub String);

impl FromStr for Holder {
    type Err = NotAHolder;

    fn from_str(text: &str) -> Result<Self, NotAHolder> {
        match text.rsplit_once('_') {
            Some((name, incarnation)) if !name.is_empty() && !incarnation.is_empty() => {
                Ok(Self::new(name, incarnation))
            }
            _ => Err(NotAHolder(text.to_owned())),
        }
    }
}

/// The SHA-256 of a SubjectPublicKeyInfo: the key that a replica proves to its peers that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pin(pub [u8; 32]);

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PIN_PREFIX)?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The digest that pins are made with, and how a pin begins.
const PIN_PREFIX: &str = "sha256:";

/// A text that is not `sha256:` and 64 hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a pin is sha256: and 64 hexadecimal digits")]
pub struct NotAPin;

impl FromStr for Pin {
    type Err = NotAPin;

    fn from_str(text: &str) -> Result<Self, NotAPin> {
        let digits = text.strip_prefix(PIN_PREFIX).ok_or(NotAPin)?;
        if digits.len() != 64 || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(NotAPin);
        }
        let mut pin = [0; 32];
        for (byte, at) in pin.iter_mut().zip((0..64).step_by(2)) {
            let pair = digits.get(at..at + 2).ok_or(NotAPin)?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| NotAPin)?;
        }
        Ok(Self(pin))
    }
}

impl Serialize for Pin {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

/// What a replica lets its placement depend on, beside the members and their ranges. What not all members
/// follow, none does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Follows {
    /// Ranges that operators have moved.
    pub pins: bool,
    /// The fleet's plan.
    pub plans: bool,
}

impl Follows {
    /// From what [`Display`](fmt::Display) wrote; unknown words are left out.
    pub fn parse(text: &str) -> Self {
        let names = |name| text.split(',').any(|word| word == name);
        Self {
            pins: names("pins"),
            plans: names("plans"),
        }
    }
}

impl fmt::Display for Follows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.pins, self.plans) {
            (true, true) => "pins,plans",
            (true, false) => "pins",
            (false, true) => "plans",
            (false, false) => "",
        })
    }
}

/// What a replica says of itself in its Lease's annotations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Status {
    /// Where its peers reach it, `host:port`.
    pub address: String,
    /// The key by which its peers know it and may call it; `None` where it accepts none by pin.
    pub pin: Option<Pin>,
    /// The build, as in `0.1.0`.
    pub build: String,
    /// Whether its caches were complete once.
    pub ready: bool,
    /// Whether it is on its way out.
    pub draining: bool,
    /// Whether it sees changes too late to be an owner, though it renews.
    pub stale: bool,
    /// How many ranges it believes the fleet to have.
    pub ranges: u16,
    /// How many ranges it takes at most; `None` for a full share.
    pub share: Option<u16>,
    /// When its last lives ended that did not leave.
    pub crashes: Crashes,
    /// Whether each of its writes carries its incarnation, so that the API server can refuse them by it.
    pub server_fenced: bool,
    /// Fingerprints of what every replica must have the same of, such as the authorities that certificates
    /// are signed by, as `name=hash` with commas between them. Nobody decides by it; empty where the build
    /// says nothing.
    pub fingerprints: Arc<str>,
    /// Names of the members that do not answer it, separated by commas. Nobody decides by it.
    pub unreachable: Arc<str>,
    /// The pod that it runs in, `<namespace>/<name>`: its status says when the replica's process has ended.
    /// Empty where there is none.
    pub pod: Arc<str>,
    /// What it would write, as a class of the node's; `None` where the build says nothing. Nobody decides by
    /// it who owns what.
    pub demand: Option<u8>,
    /// What it asks all members, while some do not answer by gRPC.
    pub question: Option<Arc<Question>>,
    /// What it knows of the questions of others; `None` where the build reads none.
    pub replies: Option<Arc<Replies>>,
    /// What its placement depends on.
    pub follows: Follows,
}

impl Status {
    /// Whether both say the same as far as membership and placement are concerned.
    pub(crate) fn is_same_member(&self, other: &Self) -> bool {
        let bare = |status: &Self| Self {
            unreachable: Arc::default(),
            demand: None,
            question: None,
            replies: None,
            ..status.clone()
        };
        self == other || bare(self) == bare(other)
    }
}

/// A replica Lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReplicaLease {
    /// The replica's name.
    pub name: String,
    /// The version seen.
    pub version: Version,
    /// Who holds it; `None` once it is released or evicted.
    pub incarnation: Option<String>,
    /// What the holder says of itself.
    pub status: Status,
    /// Incarnations that have lost this Lease by compare-and-swap, the newest last: each of them is dead for
    /// certain. A Lease that was deleted and made again proves nothing of the holder before, and so does not
    /// list it.
    pub ended: Vec<String>,
    /// What it had in flight for a while at its last renewal; empty in a Lease without holder.
    pub working: Vec<Work>,
    /// What its ranges' work is, as of a while ago; empty in a Lease without holder.
    pub loads: Arc<Loads>,
    /// How its last lives died that did not release the Lease, and what they had in flight.
    pub deaths: Deaths,
}

/// At most this number of ended incarnations is kept in a replica Lease. One that has fallen off the list is
/// waited for a lease duration instead of being known dead at once; its range Leases are long taken by then.
const ENDED_MAX: usize = 16;

impl ReplicaLease {
    /// The Lease without its holder, who is listed as ended and whose key is nobody's now.
    pub fn vacated(&self) -> Self {
        Self {
            ended: self.ended_after(),
            incarnation: None,
            status: Status {
                pin: None,
                question: None,
                replies: None,
                ..self.status.clone()
            },
            working: Vec::new(),
            loads: Arc::default(),
            ..self.clone()
        }
    }

    /// The Lease without its holder, whose death is filed with what it had in flight; `second` is the Unix
    /// second, `None` where deaths are not recorded.
    pub fn evicted(&self, second: Option<i64>) -> Self {
        let mut vacated = self.vacated();
        if let (Some(second), Some(incarnation)) = (second, self.incarnation.clone()) {
            vacated.deaths.push(Death {
                second,
                incarnation,
                working: self.working.clone(),
            });
        }
        vacated
    }

    /// The list of the ended once the present holder has lost the Lease.
    pub fn ended_after(&self) -> Vec<String> {
        let mut ended = self.ended.clone();
        ended.extend(self.incarnation.clone());
        ended.drain(..ended.len().saturating_sub(ENDED_MAX));
        ended
    }

    /// The holder, if there is one.
    pub fn holder(&self) -> Option<Holder> {
        self.incarnation
            .as_ref()
            .map(|incarnation| Holder::new(&self.name, incarnation))
    }
}

/// A range Lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RangeLease {
    /// The range.
    pub range: RangeId,
    /// The version seen.
    pub version: Version,
    /// The owner; `None` if nobody is named.
    pub holder: Option<Holder>,
    /// The owner's epoch.
    pub epoch: Epoch,
    /// Its last owners that died without handing it over, the newest last.
    pub dead: Vec<Holder>,
}

/// A request that was not answered, or by something that says nothing of what was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NoAnswer;

/// What came of a compare-and-swap.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Written<L> {
    /// It landed; this is the Lease now.
    Done(L),
    /// Another write was first; this is the Lease now, or none is left.
    Conflict(Option<L>),
    /// No answer, or one that says nothing: it may have landed, and it may still land.
    Unknown,
}
