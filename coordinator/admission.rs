//! Who may keep a connection to the peer port.
//!
//! Kept true: strangers never take the places of members. Until a handshake has shown a key, all that is
//! known of a connection is its source address; so the number of handshakes is bounded for each address and
//! for all addresses together that no replica Lease names. A newcomer displaces, when all places are taken,
//! the oldest: a member is through in milliseconds, and a client that says nothing is the oldest soon.
//! Members' connections are bounded in the same way.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use coordinator_core::REPLICAS_MAX;
use tokio::{sync::oneshot, time::Instant};

/// Handshakes under way from one address. A peer keeps one connection and opens another when that one fails;
/// the rest is room for those who share an address with a member, as behind one host's network.
const HANDSHAKES_PER_ADDRESS: usize = 32;
/// Handshakes under way from all addresses that no replica Lease names.
const HANDSHAKES_OF_STRANGERS: usize = 128;
/// Connections that a member keeps: one, and those that end.
const CONNECTIONS_PER_MEMBER: usize = 4;
/// Connections where nobody proves anything, on a loopback address.
const CONNECTIONS_UNPROVEN: usize = 2 * REPLICAS_MAX;

/// First pause between two log lines about refused connections; it doubles up to [`LOG_PAUSE_MAX`].
const LOG_PAUSE: Duration = Duration::from_secs(1);
/// See [`LOG_PAUSE`]. After twice this time without a refusal it starts again.
const LOG_PAUSE_MAX: Duration = Duration::from_secs(60);

/// Places, of which each key has a bounded number.
#[derive(Debug)]
struct Places<K> {
    each: usize,
    taken: Mutex<Taken<K>>,
}

#[derive(Debug)]
struct Taken<K> {
    next: u64,
    /// By number, so the oldest comes first. Bound: `each` for each key that has a place.
    places: BTreeMap<u64, (K, oneshot::Sender<()>)>,
}

/// A place; dropping it gives it back.
#[derive(Debug)]
struct Place<K> {
    all: Arc<Places<K>>,
    number: u64,
    displaced: oneshot::Receiver<()>,
}

impl<K: PartialEq> Places<K> {
    fn new(each: usize) -> Arc<Self> {
        Arc::new(Self {
            each,
            taken: Mutex::new(Taken {
                next: 0,
                places: BTreeMap::new(),
            }),
        })
    }

    /// A place, if need be that of the oldest with this key.
    fn enter(self: &Arc<Self>, key: K) -> Place<K> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let same = taken.places.iter().filter(|(_, (other, _))| *other == key);
        let same: Vec<u64> = same.map(|(number, _)| *number).collect();
        if same.len() >= self.each
            && let Some(oldest) = same.first()
        {
            taken.places.remove(oldest);
        }
        let (keep, displaced) = oneshot::channel();
        let number = taken.next;
        taken.next += 1;
        taken.places.insert(number, (key, keep));
        Place {
            all: Arc::clone(self),
            number,
            displaced,
        }
    }

    #[cfg(test)]
    fn count(&self) -> usize {
        self.taken.lock().unwrap().places.len()
    }
}

impl<K> Place<K> {
    /// Ends when a newer one has taken it.
    async fn displaced(&mut self) {
        let _gone = (&mut self.displaced).await;
    }
}

impl<K> Drop for Place<K> {
    fn drop(&mut self) {
        let mut taken = self
            .all
            .taken
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        taken.places.remove(&self.number);
    }
}

/// All places of a peer port.
#[derive(Debug)]
pub(crate) struct Admission {
    handshakes: Arc<Places<IpAddr>>,
    strangers: Arc<Places<()>>,
    members: Arc<Places<String>>,
    unproven: Arc<Places<String>>,
}

/// The places of one connection.
#[derive(Debug)]
pub(crate) struct Admitted<K>(Place<K>, Option<Place<()>>);

impl<K> Admitted<K> {
    /// Ends when newer connections have taken one of them.
    pub(crate) async fn displaced(&mut self) {
        let Self(first, second) = self;
        match second {
            Some(second) => tokio::select! {
                () = first.displaced() => {}
                () = second.displaced() => {}
            },
            None => first.displaced().await,
        }
    }
}

impl Default for Admission {
    fn default() -> Self {
        Self {
            handshakes: Places::new(HANDSHAKES_PER_ADDRESS),
            strangers: Places::new(HANDSHAKES_OF_STRANGERS),
            members: Places::new(CONNECTIONS_PER_MEMBER),
            unproven: Places::new(CONNECTIONS_UNPROVEN),
        }
    }
}

impl Admission {
    /// For a handshake from this address, which a replica Lease names or not.
    pub(crate) fn handshake(&self, from: IpAddr, known: bool) -> Admitted<IpAddr> {
        let stranger = (!known).then(|| self.strangers.enter(()));
        Admitted(self.handshakes.enter(from), stranger)
    }

    /// For the connection of a member, or of somebody who has to prove nothing.
    pub(crate) fn connection(&self, member: Option<&str>) -> Admitted<String> {
        Admitted(
            match member {
                Some(name) => self.members.enter(name.to_owned()),
                None => self.unproven.enter(String::new()),
            },
            None,
        )
    }
}

/// Why a peer was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerRefusal {
    /// A connection whose TLS handshake failed or took too long.
    Handshake,
    /// A connection that newer ones have displaced.
    Displaced,
    /// A caller whose key or certificate is no live member's.
    Unknown,
    /// A message in another's name.
    OtherName,
    /// A member that was called and has another key than its Lease names.
    WrongKey,
}

impl PeerRefusal {
    /// All of them, with the names that metrics have for them.
    pub const ALL: [(Self, &'static str); 5] = [
        (Self::Handshake, "handshake"),
        (Self::Displaced, "displaced"),
        (Self::Unknown, "unknown"),
        (Self::OtherName, "other_name"),
        (Self::WrongKey, "wrong_key"),
    ];
}

/// Counts refusals and logs them, ever less often while they continue.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    counts: [AtomicU64; PeerRefusal::ALL.len()],
    log: Mutex<RefusalLog>,
}

impl Refusals {
    /// Counts one and writes it into the log if it is its turn.
    pub(crate) fn refuse(&self, why: PeerRefusal, who: &str, text: &str) {
        let kinds = PeerRefusal::ALL.iter().zip(&self.counts);
        for ((kind, reason), count) in kinds {
            if *kind != why {
                continue;
            }
            count.fetch_add(1, Ordering::Relaxed);
            let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(suppressed) = log.count(Instant::now()) {
                tracing::warn!(who, reason, suppressed, "refused a peer: {text}");
            }
        }
    }

    /// How many there were of each kind.
    pub(crate) fn counts(&self) -> [(&'static str, u64); PeerRefusal::ALL.len()] {
        let mut counts = PeerRefusal::ALL.map(|(_, reason)| (reason, 0));
        for ((_, sum), count) in counts.iter_mut().zip(&self.counts) {
            *sum = count.load(Ordering::Relaxed);
        }
        counts
    }
}

/// Says which refusals are logged, so that a flood of connections does not flood the log.
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
    use futures::FutureExt;

    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn is_displaced<K>(admitted: &mut Admitted<K>) -> bool {
        admitted.displaced().now_or_never().is_some()
    }

    #[test]
    fn one_address_has_few_handshakes_and_all_strangers_a_common_bound() {
        let all = Admission::default();
        let mut here: Vec<_> = (0..HANDSHAKES_PER_ADDRESS)
            .map(|_| all.handshake(address(1), false))
            .collect();
        assert!(!here.iter_mut().any(is_displaced));
        // The next from there takes the oldest one's place, and nobody else's.
        let next = all.handshake(address(1), false);
        assert!(is_displaced(&mut here[0]) && !here[1..].iter_mut().any(is_displaced));
        assert_eq!(all.handshakes.count(), HANDSHAKES_PER_ADDRESS);
        // A member's address is outside of the strangers' bound.
        let mut member = all.handshake(address(0), true);
        let mut others: Vec<_> = (2..=u8::MAX)
            .map(|at| all.handshake(address(at), false))
            .collect();
        let left = others
            .iter_mut()
            .filter_map(|one| (!is_displaced(one)).then_some(()));
        assert_eq!(left.count(), HANDSHAKES_OF_STRANGERS);
        assert!(!is_displaced(&mut member));
        drop((here, next, others, member));
        let counts = [all.handshakes.count(), all.strangers.count()];
        assert_eq!(counts, [0, 0], "nothing is kept");
    }

    #[test]
    fn a_member_keeps_few_connections_and_takes_no_other_members() {
        let all = Admission::default();
        let mut other = all.connection(Some("b"));
        let mut own: Vec<_> = (0..100).map(|_| all.connection(Some("a"))).collect();
        let left = own
            .iter_mut()
            .filter_map(|one| (!is_displaced(one)).then_some(()));
        // Those that were displaced are still closing; once dropped they count no more.
        assert_eq!(left.count(), CONNECTIONS_PER_MEMBER);
        assert!(!is_displaced(&mut other));
        assert_eq!(all.members.count(), CONNECTIONS_PER_MEMBER + 1);
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
        let logged: u64 = lines.iter().map(|(_, suppressed)| suppressed + 1).sum();
        assert_eq!(logged, 2431, "all up to the last line");
        // After a quiet time the next one is logged at once, and the pause is short again.
        let later = start + Duration::from_secs(1000);
        assert_eq!(log.count(later), Some(569));
        assert_eq!(log.count(later + LOG_PAUSE), Some(0));
    }
}
