//! Whose connections are open, how long one may be silent, and which one ends where a newcomer needs its
//! place.
//!
//! A connection costs memory before its client has proven anything. So all places together are bounded, each
//! client address has a share of them, some are kept for this host (a kubelet's probes come from it), and a
//! connection on which no request is being answered gives way to a newcomer: a client that opens connections
//! and says nothing displaces its own ones.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tokio_util::sync::CancellationToken;

/// Connections of all addresses but this host's.
pub(super) const CONNECTIONS_MAX: usize = 224;

/// Connections of one address, and those that are kept for this host.
pub(super) const CONNECTIONS_PER_ADDRESS_MAX: usize = 32;

/// How long a connection may be silent after its TLS handshake.
pub(super) const FIRST_BYTE_MAX: Duration = Duration::from_secs(10);

/// From the connection's begin to the end of its first request's headers, and for the headers of each further
/// request: upstream's `ReadHeaderTimeout`.
pub(super) const HEADERS_MAX: Duration = Duration::from_secs(32);

/// How long a connection may have no request: upstream's `IdleTimeout`.
pub(super) const IDLE_MAX: Duration = Duration::from_secs(90);

/// Who shares places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Group {
    /// This host.
    Own,
    Other(IpAddr),
}

/// One connection, as long as it is open.
#[derive(Debug)]
pub(super) struct Connection {
    began: Instant,
    /// Requests that are being answered.
    answering: AtomicUsize,
    /// Milliseconds after `began` at which the last request was answered; 0 before the first one.
    answered: AtomicU64,
    /// Cancelled where a newcomer takes the place.
    pub(super) displaced: CancellationToken,
}

impl Connection {
    fn new(now: Instant) -> Arc<Self> {
        Arc::new(Self {
            began: now,
            answering: AtomicUsize::new(0),
            answered: AtomicU64::new(0),
            displaced: CancellationToken::new(),
        })
    }

    /// A request has come; it is being answered until what is returned is dropped.
    pub(super) fn request(self: &Arc<Self>) -> Answering {
        self.answering.fetch_add(1, Ordering::AcqRel);
        Answering(Arc::clone(self))
    }

    fn silent_since(&self) -> Option<Instant> {
        if self.answering.load(Ordering::Acquire) > 0 {
            return None;
        }
        Some(self.began + Duration::from_millis(self.answered.load(Ordering::Acquire)))
    }

    /// When the connection ends if nothing comes; `None`: it is over now.
    pub(super) fn ends_at(&self, now: Instant) -> Option<Instant> {
        let end = match self.silent_since() {
            None => now + IDLE_MAX,
            Some(began) if began == self.began => began + HEADERS_MAX,
            Some(since) => since + IDLE_MAX,
        };
        (now < end).then_some(end)
    }
}

/// A request that is being answered.
pub(super) struct Answering(Arc<Connection>);

impl Drop for Answering {
    fn drop(&mut self) {
        let passed = self.0.began.elapsed().as_millis().max(1);
        let passed = u64::try_from(passed).unwrap_or(u64::MAX);
        self.0.answered.fetch_max(passed, Ordering::AcqRel);
        self.0.answering.fetch_sub(1, Ordering::AcqRel);
    }
}

/// All open connections.
#[derive(Debug, Default)]
pub(super) struct Connections {
    open: Mutex<Open>,
    /// The node's addresses, where the pod has others.
    own: Vec<IpAddr>,
}

#[derive(Debug, Default)]
struct Open {
    groups: HashMap<Group, BTreeMap<u64, Arc<Connection>>>,
    next: u64,
}

impl Open {
    /// Places that are taken by others than this host.
    fn of_others(&self) -> usize {
        let others = self
            .groups
            .iter()
            .filter(|(group, _)| **group != Group::Own);
        others.map(|(_, open)| open.len()).sum()
    }

    /// Ends the connection of the group that has been silent the longest; `false`: all are answering.
    fn displace(&mut self, group: Group) -> bool {
        let Some(open) = self.groups.get_mut(&group) else {
            return false;
        };
        let silent = open
            .iter()
            .filter_map(|(id, one)| Some((one.silent_since()?, *id)));
        let Some((_, id)) = silent.min() else {
            return false;
        };
        if let Some(connection) = open.remove(&id) {
            connection.displaced.cancel();
        }
        if open.is_empty() {
            self.groups.remove(&group);
        }
        true
    }
}

/// A connection's place, until it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) connection: Arc<Connection>,
    all: Arc<Connections>,
    group: Group,
    id: u64,
}

impl Connections {
    /// `own`: addresses that count as this host's besides those by which it is reached.
    pub(super) fn new(own: &[IpAddr]) -> Arc<Self> {
        Arc::new(Self {
            open: Mutex::default(),
            own: own.to_vec(),
        })
    }

    fn group(&self, from: IpAddr, to: Option<IpAddr>) -> Group {
        let from = from.to_canonical();
        let own = from.is_loopback()
            || to.map(|to| to.to_canonical()) == Some(from)
            || self.own.contains(&from);
        match own {
            true => Group::Own,
            false => Group::Other(from),
        }
    }

    /// A place for a connection from one address to another. Where there is none left, the longest silent
    /// connection of the same address ends, or of the address with most connections. `None`: all are
    /// answering.
    pub(super) fn enter(
        self: &Arc<Self>,
        from: IpAddr,
        to: Option<IpAddr>,
        now: Instant,
    ) -> Option<Place> {
        let group = self.group(from, to);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let same = open.groups.get(&group).map_or(0, BTreeMap::len);
        if same >= CONNECTIONS_PER_ADDRESS_MAX {
            if !open.displace(group) {
                return None;
            }
        } else if group != Group::Own && open.of_others() >= CONNECTIONS_MAX {
            let mut others: Vec<(usize, Group)> = open
                .groups
                .iter()
                .filter(|(group, _)| **group != Group::Own)
                .map(|(group, connections)| (connections.len(), *group))
                .collect();
            others.sort_unstable_by(|left, right| right.cmp(left));
            if !others.into_iter().any(|(_, group)| open.displace(group)) {
                return None;
            }
        }
        let id = open.next;
        open.next += 1;
        let connection = Connection::new(now);
        let of_group = open.groups.entry(group).or_default();
        of_group.insert(id, Arc::clone(&connection));
        Some(Place {
            connection,
            all: Arc::clone(self),
            group,
            id,
        })
    }

    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.groups.values().map(BTreeMap::len).sum()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.all.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(of_group) = open.groups.get_mut(&self.group) {
            of_group.remove(&self.id);
            if of_group.is_empty() {
                open.groups.remove(&self.group);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_address_has_its_share_and_a_newcomer_displaces_the_longest_silent_of_the_same() {
        let all = Connections::new(&[]);
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut places: Vec<Place> = (0..CONNECTIONS_PER_ADDRESS_MAX as u64)
            .map(|second| all.enter(ip("10.0.0.1"), None, at(second)).unwrap())
            .collect();
        let answering = places[0].connection.request();
        let newcomer = all.enter(ip("::ffff:10.0.0.1"), None, at(99)).unwrap();
        assert!(
            !places[0].connection.displaced.is_cancelled(),
            "it is being answered"
        );
        assert!(places[1].connection.displaced.is_cancelled());
        assert_eq!(all.count(), CONNECTIONS_PER_ADDRESS_MAX);
        drop(places.remove(1));
        assert_eq!(
            all.count(),
            CONNECTIONS_PER_ADDRESS_MAX,
            "its place is the newcomer's now"
        );
        places.push(newcomer);
        drop(answering);
        let _busy: Vec<Answering> = places
            .iter()
            .map(|place| place.connection.request())
            .collect();
        assert!(
            all.enter(ip("10.0.0.1"), None, at(100)).is_none(),
            "nothing is silent"
        );
        assert!(all.enter(ip("10.0.0.2"), None, at(100)).is_some());
        drop(places);
        assert_eq!(all.count(), 0);
    }

    #[test]
    fn many_addresses_leave_places_for_this_host_and_for_an_address_with_few_connections() {
        let all = Connections::new(&[ip("192.168.0.9")]);
        let now = Instant::now();
        let flood: Vec<Place> = (0..9u8)
            .flat_map(|host| std::iter::repeat_n(host, CONNECTIONS_PER_ADDRESS_MAX))
            .filter_map(|host| all.enter(IpAddr::from([10, 0, 0, host]), None, now))
            .collect();
        assert_eq!(all.count(), CONNECTIONS_MAX);
        let own: Vec<Place> = [
            ("127.0.0.1", "127.0.0.1"),
            ("192.168.0.9", "10.1.1.1"),
            ("10.1.1.1", "10.1.1.1"),
        ]
        .into_iter()
        .map(|(from, to)| all.enter(ip(from), Some(ip(to)), now).unwrap())
        .collect();
        assert_eq!(
            all.count(),
            CONNECTIONS_MAX + own.len(),
            "nobody was displaced for it"
        );
        let scraper = all.enter(ip("10.9.9.9"), None, now).unwrap();
        assert_eq!(all.count(), CONNECTIONS_MAX + own.len());
        for _ in 0..CONNECTIONS_MAX {
            let _more = all.enter(IpAddr::from([10, 0, 0, 1]), None, now);
        }
        assert!(!scraper.connection.displaced.is_cancelled());
        assert!(
            own.iter()
                .all(|place| !place.connection.displaced.is_cancelled())
        );
        drop(flood);
    }

    #[test]
    fn a_connection_ends_without_a_request_in_32_s_and_idle_in_90_s() {
        let all = Connections::new(&[]);
        let start = Instant::now();
        let place = all.enter(ip("10.0.0.1"), None, start).unwrap();
        let connection = &place.connection;
        assert_eq!(connection.ends_at(start), Some(start + HEADERS_MAX));
        assert_eq!(connection.ends_at(start + HEADERS_MAX), None);
        let answering = connection.request();
        let late = start + Duration::from_secs(1000);
        assert_eq!(connection.ends_at(late), Some(late + IDLE_MAX));
        drop(answering);
        let end = connection.ends_at(start).unwrap();
        assert!(end > start + IDLE_MAX && end < start + IDLE_MAX + Duration::from_secs(30));
        assert_eq!(connection.ends_at(late), None);
    }
}
