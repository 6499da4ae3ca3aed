//! Who may open a connection to the peer port before anybody knows who it is.
//!
//! Kept true: strangers never take the places of members. Until a handshake has shown a certificate, all that
//! is known of a connection is its source address; so the number of handshakes is bounded for each address
//! and for all addresses together, and addresses that replica Leases name are outside the common bound.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// Handshakes under way from one address. A peer keeps one connection and opens another when that one fails.
const HANDSHAKES_PER_ADDRESS: usize = 4;
/// Handshakes under way from all addresses that no replica Lease names.
const HANDSHAKES_OF_STRANGERS: usize = 32;

/// First pause between two log lines about refused connections; it doubles up to [`LOG_PAUSE_MAX`].
const LOG_PAUSE: Duration = Duration::from_secs(1);
/// See [`LOG_PAUSE`]. After twice this time without a refusal it starts again.
const LOG_PAUSE_MAX: Duration = Duration::from_secs(60);

/// Handshakes under way, by source address. Bound: one entry for each handshake under way.
#[derive(Debug, Default)]
pub(crate) struct Handshakes(Mutex<BTreeMap<IpAddr, (usize, bool)>>);

/// A place among the handshakes; dropping it gives it back.
#[derive(Debug)]
pub(crate) struct Place {
    all: Arc<Handshakes>,
    from: IpAddr,
}

impl Handshakes {
    /// A place for a connection from this address, or why there is none.
    pub(crate) fn enter(
        self: &Arc<Self>,
        from: IpAddr,
        member: bool,
    ) -> Result<Place, &'static str> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let here = all.get(&from).map_or(0, |(count, _)| *count);
        if here >= HANDSHAKES_PER_ADDRESS {
            return Err("too many handshakes from this address are under way");
        }
        let strangers = all.values().filter(|(_, member)| !member);
        let strangers: usize = strangers.map(|(count, _)| count).sum();
        if !member && strangers >= HANDSHAKES_OF_STRANGERS {
            return Err("too many handshakes from addresses of no member are under way");
        }
        all.insert(from, (here + 1, member));
        Ok(Place {
            all: Arc::clone(self),
            from,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut all = self.all.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((count, _)) = all.get_mut(&self.from) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.from);
            }
        }
    }
}

/// Says which refusals are logged, so that whoever floods the port does not flood the log.
#[derive(Debug, Default)]
pub(crate) struct RefusalLog {
    last: Option<Instant>,
    pause: Duration,
    next: Option<Instant>,
    suppressed: u64,
}

impl RefusalLog {
    /// Counts a refusal: `Some` with the number of those before it that were not logged if this one is to be.
    pub(crate) fn count(&mut self, now: Instant) -> Option<u64> {
        let quiet = |last: Instant| now.duration_since(last) >= LOG_PAUSE_MAX * 2;
        if self.last.is_some_and(quiet) {
            self.pause = Duration::ZERO;
            self.next = None;
        }
        self.last = Some(now);
        if self.next.is_some_and(|next| now < next) {
            self.suppressed += 1;
            return None;
        }
        self.pause = (self.pause * 2).clamp(LOG_PAUSE, LOG_PAUSE_MAX);
        self.next = Some(now + self.pause);
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    #[test]
    fn one_address_has_few_handshakes_and_all_strangers_a_common_bound() {
        let all = Arc::new(Handshakes::default());
        let places: Vec<_> = (0..HANDSHAKES_PER_ADDRESS)
            .map(|_| all.enter(address(1), false).unwrap())
            .collect();
        assert!(all.enter(address(1), false).is_err());
        let mut others = Vec::new();
        for at in 2..=u8::MAX {
            others.extend(all.enter(address(at), false));
        }
        assert_eq!(
            others.len(),
            HANDSHAKES_OF_STRANGERS - HANDSHAKES_PER_ADDRESS
        );
        // A member's address is outside of it, with a bound of its own.
        let members: Vec<_> = (0..10)
            .filter_map(|_| all.enter(address(0), true).ok())
            .collect();
        assert_eq!(members.len(), HANDSHAKES_PER_ADDRESS);
        drop(places);
        assert!(
            all.enter(address(1), false).is_ok(),
            "places are given back"
        );
        drop((others, members));
        assert!(all.0.lock().unwrap().is_empty(), "nothing is kept");
    }

    #[test]
    fn refusals_are_logged_ever_less_often_and_none_is_forgotten() {
        let mut log = RefusalLog::default();
        let start = Instant::now();
        let mut lines = Vec::new();
        // Ten a second for five minutes.
        for tenth in 0..3000 {
            if let Some(suppressed) = log.count(start + Duration::from_millis(100) * tenth) {
                lines.push((tenth / 10, suppressed));
            }
        }
        let seconds: Vec<u32> = lines.iter().map(|(at, _)| *at).collect();
        assert_eq!(seconds, [0, 1, 3, 7, 15, 31, 63, 123, 183, 243]);
        let told: u64 = lines.iter().map(|(_, suppressed)| suppressed + 1).sum();
        assert_eq!(told, 2431, "all up to the last line");
        // After a quiet time the next one is logged at once, and the pause is short again.
        let later = start + Duration::from_secs(1000);
        assert_eq!(log.count(later), Some(569));
        assert_eq!(log.count(later + LOG_PAUSE), Some(0));
    }
}
