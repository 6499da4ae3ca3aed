//! Who owns what, as the Leases say.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::coordination::v1::Lease;

/// Owner and epoch of each range.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Owners {
    ranges: BTreeMap<u32, (String, i32)>,
}

impl Owners {
    /// Takes in a Lease; others than those of ranges are passed over.
    pub fn lease(&mut self, fleet: &str, lease: &Lease) {
        let Some(range) = range_of(fleet, lease) else {
            return;
        };
        let spec = lease.spec.clone().unwrap_or_default();
        let holder = spec.holder_identity.unwrap_or_default();
        // `<replica>_<incarnation>`; a released Lease is nobody's.
        let owner = holder
            .rsplit_once('_')
            .map_or("", |(name, _)| name)
            .to_owned();
        self.ranges
            .insert(range, (owner, spec.lease_transitions.unwrap_or(0)));
    }

    /// A Lease that is no more.
    pub fn lease_gone(&mut self, fleet: &str, lease: &Lease) {
        if let Some(range) = range_of(fleet, lease) {
            self.ranges.remove(&range);
        }
    }

    /// Whether all ranges are owned by these replicas, each of which has between half and one and a half of
    /// an equal share: ranges are placed by their work, so that their numbers differ.
    pub fn are_spread_over(&self, ranges: u32, members: &BTreeSet<String>) -> bool {
        let mut counts: BTreeMap<&str, u32> =
            members.iter().map(|name| (name.as_str(), 0)).collect();
        for (owner, _) in self.ranges.values() {
            match counts.get_mut(owner.as_str()) {
                Some(count) => *count += 1,
                None => return false,
            }
        }
        let all = u32::try_from(counts.len()).unwrap_or(u32::MAX);
        let share = |count: u32| 2 * count.saturating_mul(all);
        let even = !counts.is_empty()
            && counts.values().all(|count| {
                // By the next whole number.
                share(count + 1) > ranges && share(count.saturating_sub(1)) < 3 * ranges
            });
        even && u32::try_from(self.ranges.len()) == Ok(ranges)
    }

    /// How many ranges each has.
    pub fn loads(&self) -> BTreeMap<&str, u32> {
        let mut loads = BTreeMap::new();
        for (owner, _) in self.ranges.values() {
            *loads.entry(owner.as_str()).or_default() += 1;
        }
        loads
    }

    /// The ranges of one.
    pub fn of(&self, name: &str) -> BTreeSet<u16> {
        let own = self.ranges.iter().filter(|(_, (owner, _))| owner == name);
        own.filter_map(|(range, _)| u16::try_from(*range).ok())
            .collect()
    }

    /// Ranges whose owner is another than before.
    pub fn moved_since(&self, before: &Self) -> usize {
        self.ranges
            .iter()
            .filter(|(range, (owner, _))| {
                before.ranges.get(range).is_none_or(|(old, _)| old != owner)
            })
            .count()
    }
}

/// The number in `<fleet>-range-<nnn>`.
fn range_of(fleet: &str, lease: &Lease) -> Option<u32> {
    let name = lease.metadata.name.as_deref()?;
    name.strip_prefix(fleet)?
        .strip_prefix("-range-")?
        .parse()
        .ok()
}
