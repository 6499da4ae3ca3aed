//! A witness outlives a replica's process and evicts its Lease once the process has ended.
//!
//! The process that comes after would do the same; nobody knows when there is one. The rule of what a proof
//! is worth is theirs in common: [`Gone::over_at`].

use crate::{
    deaths::unix_second,
    lease::{ReplicaLease, Time},
    mutation::broken,
    reachable::reachable,
    renewal::{Gone, Sighting},
};

/// What a witness does next.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(
    clippy::large_enum_variant,
    reason = "one for each end of a process, moved once to the shell that performs it"
)]
pub enum WitnessStep {
    /// The Lease is to be read then, and not before.
    Read(Time),
    /// The holder has ended, and nothing of it is executed any more: this is to be written over the version
    /// that it carries, and the Lease to be read again.
    Evict(ReplicaLease),
    /// None of the processes holds the Lease: it was released, or others were first.
    Released,
    /// The holder has renewed twice since it was said to have ended: it lives, and its Lease is left alone.
    Lives,
}

/// The witness of one end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Witness {
    /// Between two reads of the Lease at most, and between two renewals.
    retry_period: Time,
    gone: Gone,
    /// The Unix second at time 0.
    epoch_second: i64,
    /// Who holds the Lease.
    seen: Option<Sighting>,
}

impl Witness {
    /// Of these processes, which have ended.
    pub fn new(retry_period: Time, gone: Gone, epoch_second: i64) -> Self {
        Self {
            retry_period,
            gone,
            epoch_second,
            seen: None,
        }
    }

    /// The replica's Lease as it is now; `None` where there is none.
    pub fn read(&mut self, now: Time, lease: Option<&ReplicaLease>) -> WitnessStep {
        let Some((lease, holder)) =
            lease.and_then(|lease| Some((lease, lease.incarnation.as_ref()?)))
        else {
            return WitnessStep::Released;
        };
        if !self.gone.names(holder) {
            return WitnessStep::Released;
        }
        let first = || Sighting::first(now, holder.clone(), lease.version);
        let before = self.seen.take().filter(|before| before.holder == *holder);
        let seen = self.seen.insert(before.unwrap_or_else(first));
        if seen.again(now, lease.version) {
            reachable!(WitnessSeesARenewal);
        }
        match self.gone.over_at(seen, self.retry_period) {
            Some(over) if now >= over || broken!(WitnessDoesNotWait) => {
                reachable!(WitnessEvicts);
                WitnessStep::Evict(lease.evicted(Some(unix_second(self.epoch_second, now))))
            }
            Some(over) => {
                reachable!(WitnessWaits);
                WitnessStep::Read(over.min(now + self.retry_period))
            }
            None => WitnessStep::Lives,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        Status,
        deaths::{Care, Deaths, Work},
        lease::Version,
        mutation::{self, Mutation},
    };

    const RETRY_PERIOD: Time = Duration::from_secs(1);

    fn lease(incarnation: Option<&str>, version: Version) -> ReplicaLease {
        ReplicaLease {
            name: "a".to_owned(),
            version,
            incarnation: incarnation.map(str::to_owned),
            status: Status::default(),
            ended: vec!["a0".to_owned()],
            working: vec![Work::new("job-controller", "shop/pi", Care::None)],
            loads: std::sync::Arc::default(),
            deaths: Deaths::default(),
        }
    }

    fn gone(processes: &[&str], still: bool) -> Gone {
        Gone {
            processes: processes.iter().map(|one| (*one).to_owned()).collect(),
            by: Duration::from_millis(100),
            still,
            late: Duration::from_secs(2),
        }
    }

    /// What a witness does of whom it was said after 100 ms that they had ended, and when, in milliseconds;
    /// the Lease changes at these times.
    fn does(holder: Option<&str>, changes: &[u64], gone: Gone) -> (u64, &'static str) {
        let mut witness = Witness::new(RETRY_PERIOD, gone, 1000);
        let mut next = Duration::from_millis(110);
        for millis in 110..20_000 {
            let now = Duration::from_millis(millis);
            if now < next {
                continue;
            }
            let changed = changes.iter().filter(|change| **change <= millis).count();
            let lease = lease(holder, 10 + u64::try_from(changed).unwrap());
            match witness.read(now, Some(&lease)) {
                WitnessStep::Read(at) => {
                    assert!(at > now && at <= now + RETRY_PERIOD, "{at:?} at {now:?}");
                    next = at;
                }
                WitnessStep::Evict(evicted) => {
                    let holder = holder.unwrap();
                    assert_eq!(evicted.version, lease.version);
                    assert_eq!((&evicted.incarnation, evicted.working.len()), (&None, 0));
                    assert_eq!(evicted.ended, ["a0", holder]);
                    let second = 1000 + millis / 1000;
                    let filed = format!("@{second} {holder}\n-job-controller shop/pi");
                    assert_eq!(evicted.deaths.to_string(), filed);
                    return (millis, "evicts");
                }
                WitnessStep::Released => return (millis, "released"),
                WitnessStep::Lives => return (millis, "lives"),
            }
        }
        panic!("it waits for ever");
    }

    #[test]
    fn a_witness_evicts_who_has_ended_once_nothing_of_it_is_executed_any_more() {
        let renews: Vec<u64> = (0..10).map(|second| 500 + 1000 * second).collect();
        let table: [(&str, _, &[u64], _, _); 9] = [
            (
                "nothing was in flight",
                Some("a1"),
                &[],
                gone(&["a1"], true),
                (110, "evicts"),
            ),
            (
                "a later life of it",
                Some("a1-3"),
                &[],
                gone(&["a1"], true),
                (110, "evicts"),
            ),
            (
                "something was",
                Some("a1"),
                &[],
                gone(&["a1"], false),
                (2100, "evicts"),
            ),
            // Of the one before the last nothing is known.
            (
                "one came after it",
                Some("a1"),
                &[],
                gone(&["a1", "a2"], true),
                (2100, "evicts"),
            ),
            (
                "it has left",
                None,
                &[],
                gone(&["a1"], true),
                (110, "released"),
            ),
            (
                "the next one was first",
                Some("a2"),
                &[],
                gone(&["a1"], true),
                (110, "released"),
            ),
            (
                "a longer name",
                Some("a11"),
                &[],
                gone(&["a1"], true),
                (110, "released"),
            ),
            // Seen at 1110: who lives has renewed again 1.333 s later.
            (
                "a renewal was on its way",
                Some("a1"),
                &[500],
                gone(&["a1"], false),
                (4444, "evicts"),
            ),
            (
                "it renews",
                Some("a1"),
                &renews,
                gone(&["a1"], false),
                (2110, "lives"),
            ),
        ];
        for (case, holder, changes, gone, expected) in table {
            assert_eq!(does(holder, changes, gone), expected, "{case}");
        }
        mutation::set(Some(Mutation::WitnessDoesNotWait));
        let done = does(Some("a1"), &[], gone(&["a1"], false));
        mutation::set(None);
        assert_eq!(done, (110, "evicts"), "this is how it would be");
    }

    #[test]
    fn a_lease_that_was_deleted_is_left_to_the_others() {
        let mut witness = Witness::new(RETRY_PERIOD, gone(&["a1"], true), 1000);
        let now = Duration::from_secs(1);
        assert_eq!(witness.read(now, None), WitnessStep::Released);
    }
}
