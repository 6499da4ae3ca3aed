//! What a replica knows of the fleet, for `/debug/shards` and the node.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde::Serialize;

use super::{Core, planning::Planned};
use crate::lease::{Epoch, Holder, Pin, RangeId, RangeLease, Time};
use crate::load::Loads;

/// The fleet as one replica sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct View {
    /// Who sees it.
    pub replica: String,
    /// Which start of it.
    pub incarnation: String,
    /// Its fence.
    pub fence: ViewFence,
    /// All replicas with a Lease, sorted by name.
    pub members: Vec<Member>,
    /// All ranges with a Lease, in order.
    pub ranges: Arc<[RangeOwner]>,
    /// The fleet's plan of placement, and pins.
    pub planned: Planned,
    /// The ranges held here, with their epochs.
    #[serde(skip)]
    pub own: Arc<BTreeMap<RangeId, Epoch>>,
    /// Handoffs under way from here.
    #[serde(skip)]
    pub moves: Vec<Move>,
}

/// A fence at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ViewFence {
    /// Whether requests go out.
    pub open: bool,
    /// How long it stays open without another renewal.
    pub remaining_ms: u64,
}

/// A replica with a Lease.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Member {
    /// Its name.
    pub name: String,
    /// Which start of it.
    pub incarnation: String,
    /// Where its peers reach it.
    pub address: String,
    /// The key by which its peers know it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pin: Option<Pin>,
    /// Whether its caches were complete once.
    pub ready: bool,
    /// Whether it is on its way out.
    pub draining: bool,
    /// Whether it sees changes too late to be an owner.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub stale: bool,
    /// Its build.
    pub version: String,
    /// Fingerprints of what every replica must have the same of, as `name=hash` with commas between them.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub fingerprints: String,
    /// Names of the members that do not answer it, with commas between them.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub unreachable: String,
    /// What it would write, as a class of the node's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub demand: Option<u8>,
    /// What it says of its ranges' loads.
    #[serde(skip)]
    pub loads: Arc<Loads>,
}

/// A range's owner by its Lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RangeOwner {
    /// The range.
    pub range: RangeId,
    /// The owner's name.
    pub owner: Option<String>,
    /// Its epoch.
    pub epoch: Epoch,
}

/// A handoff under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Move {
    /// The range.
    pub range: RangeId,
    /// The new owner.
    pub to: String,
}

impl Core {
    /// This life of the replica, as far as the core has heard.
    pub fn holder(&self) -> Option<Holder> {
        self.me()
    }

    /// The ranges held, with their epochs.
    pub fn held(&self) -> impl Iterator<Item = (RangeId, Epoch)> + '_ {
        self.handoff
            .held
            .iter()
            .map(|(range, held)| (*range, held.epoch))
    }

    /// The range's Lease as last seen.
    pub fn range(&self, range: RangeId) -> Option<&RangeLease> {
        self.ranges.leases.get(&range)
    }

    /// Whether this incarnation is in a replica Lease as last seen: whose peers may speak.
    pub fn is_member(&self, name: &str) -> bool {
        self.members
            .seen
            .get(name)
            .is_some_and(|seen| seen.lease.incarnation.is_some())
    }

    /// The owners by the Leases; `before`, where they are as they were.
    pub(super) fn owners(&self, before: &Arc<[RangeOwner]>) -> Arc<[RangeOwner]> {
        fn owner(lease: &RangeLease) -> Option<&str> {
            lease.holder.as_ref().map(|holder| &*holder.name)
        }
        let same = self.ranges.leases.len() == before.len()
            && before
                .iter()
                .zip(self.ranges.leases.values())
                .all(|(before, lease)| {
                    (before.range, before.epoch) == (lease.range, lease.epoch)
                        && before.owner.as_deref() == owner(lease)
                });
        if same {
            return Arc::clone(before);
        }
        let leases = self.ranges.leases.values();
        leases
            .map(|lease| RangeOwner {
                range: lease.range,
                owner: owner(lease).map(str::to_owned),
                epoch: lease.epoch,
            })
            .collect()
    }

    /// What `/debug/shards` shows. What has not changed since the view `before` is shared with it: a view is
    /// made with every decision, and there are hundreds of ranges.
    pub fn view(&self, now: Time, before: &View) -> View {
        let own = self.own.lease.as_ref();
        let until = own
            .filter(|_| self.is_open(now))
            .and_then(|own| own.open_until);
        View {
            replica: self.config.name.clone(),
            incarnation: own.map(|own| own.incarnation.clone()).unwrap_or_default(),
            fence: ViewFence {
                open: until.is_some(),
                remaining_ms: until.map_or(0, |until| millis(until.saturating_sub(now))),
            },
            members: self
                .members
                .seen
                .values()
                .filter_map(|seen| {
                    Some(Member {
                        name: seen.lease.name.clone(),
                        incarnation: seen.lease.incarnation.clone()?,
                        address: seen.lease.status.address.clone(),
                        pin: seen.lease.status.pin,
                        ready: seen.lease.status.ready,
                        draining: seen.lease.status.draining,
                        stale: seen.lease.status.stale,
                        version: seen.lease.status.build.clone(),
                        fingerprints: seen.lease.status.fingerprints.to_string(),
                        unreachable: seen.lease.status.unreachable.to_string(),
                        demand: seen.lease.status.demand,
                        loads: Arc::clone(&seen.lease.loads),
                    })
                })
                .collect(),
            ranges: self.owners(&before.ranges),
            planned: self.planned(),
            own: match before
                .own
                .iter()
                .map(|(at, epoch)| (*at, *epoch))
                .eq(self.held())
            {
                true => Arc::clone(&before.own),
                false => Arc::new(self.held().collect()),
            },
            moves: self
                .handoff
                .held
                .iter()
                .filter_map(|(range, held)| {
                    Some(Move {
                        range: *range,
                        to: held.phase.target()?.name.clone(),
                    })
                })
                .collect(),
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
