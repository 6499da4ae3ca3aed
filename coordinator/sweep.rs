//! Deletes the replica Leases of names that will not come back.
//!
//! A released or evicted Lease is kept for an hour by the clock of the replica that sweeps: its list of the
//! ended is a proof of death for range Leases that still name one of them. One that a range Lease names is
//! kept for as long as that is so; one that is held is never touched. The deletion insists on the version
//! that was seen all the time.

use std::{collections::BTreeMap, time::Duration};

use coordinator_core::{RangeLease, ReplicaLease, Time, Version};

use crate::lease::{Kind, Leases};

/// Time between two sweeps.
const SWEEP_EVERY: Duration = Duration::from_secs(300);
/// Vacant for so long.
const VACANT_FOR: Duration = Duration::from_secs(3600);
/// Deletions of one sweep: a fleet that was scaled down by hundreds is cleaned up in an hour or two, not in a
/// burst.
const AT_ONCE: usize = 16;
/// A list of all Leases.
const LIST_DEADLINE: Duration = Duration::from_secs(10);

/// What has been seen vacant, at which version, and since when.
#[derive(Debug, Default)]
struct Vacant {
    since: BTreeMap<String, (Version, Time)>,
}

impl Vacant {
    /// Takes in what there is; gives what may go.
    fn over(
        &mut self,
        now: Time,
        replicas: &[ReplicaLease],
        ranges: &[RangeLease],
    ) -> Vec<(String, Version)> {
        let is_named = |name: &str| {
            ranges.iter().any(|lease| {
                lease
                    .holder
                    .as_ref()
                    .is_some_and(|holder| holder.name == name)
            })
        };
        let before = std::mem::take(&mut self.since);
        self.since = replicas
            .iter()
            .filter(|lease| lease.incarnation.is_none())
            .map(|lease| {
                let known = before
                    .get(&lease.name)
                    .filter(|(version, _)| *version == lease.version);
                let since = known.map_or(now, |(_, since)| *since);
                (lease.name.clone(), (lease.version, since))
            })
            .collect();
        self.since
            .iter()
            .filter(|(name, (_, since))| {
                now.saturating_sub(*since) >= VACANT_FOR && !is_named(name)
            })
            .map(|(name, (version, _))| (name.clone(), *version))
            .take(AT_ONCE)
            .collect()
    }
}

/// Sweeps now and then for as long as the process lives.
pub(crate) async fn sweep(leases: Leases, now: impl Fn() -> Time) {
    let mut vacant = Vacant::default();
    loop {
        tokio::time::sleep(SWEEP_EVERY).await;
        let listed = match leases.list(Kind::Both, LIST_DEADLINE).await {
            Ok(listed) => listed,
            Err(error) => {
                tracing::debug!(%error, "Leases could not be listed to clean up");
                continue;
            }
        };
        for (name, version) in vacant.over(now(), &listed.replicas, &listed.ranges) {
            match leases.delete_replica(&name, version).await {
                Ok(true) => tracing::info!(replica = name, "deleted its Lease, vacant for an hour"),
                // It is in use again, or another was quicker.
                Ok(false) => {}
                Err(error) => tracing::debug!(replica = name, %error, "its Lease was not deleted"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use coordinator_core::{Deaths, Holder, Status};

    use super::*;

    fn replica(name: &str, version: Version, incarnation: Option<&str>) -> ReplicaLease {
        ReplicaLease {
            name: name.to_owned(),
            version,
            incarnation: incarnation.map(str::to_owned),
            status: Status::default(),
            ended: Vec::new(),
            working: Vec::new(),
            loads: std::sync::Arc::default(),
            deaths: Deaths::default(),
        }
    }

    fn minutes(count: u64) -> Time {
        Duration::from_secs(60 * count)
    }

    #[test]
    fn a_lease_goes_once_it_was_vacant_for_an_hour_and_no_range_names_its_replica() {
        let mut vacant = Vacant::default();
        let leases = [
            replica("a", 1, Some("a1")),
            replica("b", 2, None),
            replica("c", 3, None),
        ];
        let named = [RangeLease {
            range: 7,
            version: 9,
            holder: Some(Holder::new("c", "c1")),
            epoch: 1,
            dead: Vec::new(),
        }];
        assert_eq!(vacant.over(minutes(0), &leases, &named), []);
        assert_eq!(vacant.over(minutes(59), &leases, &named), []);
        assert_eq!(
            vacant.over(minutes(60), &leases, &named),
            [("b".to_owned(), 2)]
        );
        assert_eq!(
            vacant.over(minutes(61), &leases, &[]),
            [("b".to_owned(), 2), ("c".to_owned(), 3)]
        );
    }

    #[test]
    fn one_that_was_in_use_meanwhile_counts_again() {
        let mut vacant = Vacant::default();
        assert_eq!(vacant.over(minutes(0), &[replica("b", 2, None)], &[]), []);
        assert_eq!(
            vacant.over(minutes(30), &[replica("b", 5, Some("b2"))], &[]),
            []
        );
        assert_eq!(vacant.over(minutes(70), &[replica("b", 6, None)], &[]), []);
        // Taken and given up between two sweeps: another version.
        assert_eq!(vacant.over(minutes(100), &[replica("b", 8, None)], &[]), []);
        assert_eq!(vacant.over(minutes(140), &[replica("b", 8, None)], &[]), []);
        assert_eq!(
            vacant.over(minutes(160), &[replica("b", 8, None)], &[]),
            [("b".to_owned(), 8)]
        );
    }

    #[test]
    fn a_sweep_deletes_no_more_than_its_share() {
        let mut vacant = Vacant::default();
        let many: Vec<ReplicaLease> = (0..40)
            .map(|at| replica(&format!("r{at:02}"), at, None))
            .collect();
        vacant.over(minutes(0), &many, &[]);
        assert_eq!(vacant.over(minutes(60), &many, &[]).len(), AT_ONCE);
    }
}
