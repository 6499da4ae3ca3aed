//! Who a peer is: what it has proven, compared with the replica Leases as they are seen now.

use std::net::{IpAddr, SocketAddr};

use coordinator_core::{Holder, Member, Pin};
use tokio::sync::watch;

/// What the other end of a connection has proven.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Caller {
    /// Nothing was asked: `--peer-insecure`.
    Unproven,
    /// That an authority has certified these names for it.
    Named(Vec<String>),
    /// That it has this key.
    Pinned(Pin),
}

impl Caller {
    /// The live members that it may speak for.
    pub(crate) fn members<'a>(&'a self, members: &'a [Member]) -> impl Iterator<Item = &'a str> {
        members
            .iter()
            .filter(move |member| match self {
                Self::Unproven => true,
                Self::Named(names) => names.contains(&member.name),
                Self::Pinned(pin) => member.pin == Some(*pin),
            })
            .map(|member| member.name.as_str())
    }

    /// Whether it is a live member at all.
    pub(crate) fn is_member(&self, members: &[Member]) -> bool {
        self.members(members).next().is_some()
    }

    /// For errors and logs.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Unproven => "a peer without TLS".to_owned(),
            Self::Named(names) if names.is_empty() => {
                "a certificate without DNS names, or of no authority".to_owned()
            }
            Self::Named(names) => format!("a certificate for {}", names.join(", ")),
            Self::Pinned(pin) => format!("the key {pin}"),
        }
    }
}

/// The key that the Lease of this very incarnation names.
///
/// # Errors
/// Where no Lease names this incarnation any more.
pub(crate) fn pin_of(members: &[Member], holder: &Holder) -> Result<Option<Pin>, String> {
    let is_it =
        |member: &&Member| member.name == holder.name && member.incarnation == holder.incarnation;
    match members.iter().find(is_it) {
        Some(member) => Ok(member.pin),
        None => Err(format!("no replica Lease names {holder} now")),
    }
}

/// Whether a replica Lease names this address.
pub(crate) fn is_peer_address(members: &[Member], address: IpAddr) -> bool {
    let mut addresses = members.iter().filter_map(|member| {
        let address: SocketAddr = member.address.parse().ok()?;
        Some(address.ip().to_canonical())
    });
    addresses.any(|known| known == address.to_canonical())
}

/// Whether these are the same members by all that trust and connections rest on.
fn are_same(some: &[Member], others: &[Member]) -> bool {
    let is_same = |(one, other): (&Member, &Member)| {
        (&one.name, &one.incarnation, &one.address, one.pin)
            == (&other.name, &other.incarnation, &other.address, other.pin)
    };
    some.len() == others.len() && some.iter().zip(others).all(is_same)
}

/// Makes these the members that are known now, and wakes those who wait only where somebody is another than
/// before, which it returns: each connection from a peer waits for that, and in a large fleet a view is
/// published all the time.
pub(crate) fn know(known: &watch::Sender<Vec<Member>>, members: &[Member]) -> bool {
    known.send_if_modified(|known| {
        let is_news = !are_same(known, members);
        members.clone_into(known);
        is_news
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(members: &[(&str, &str, Option<u8>)]) -> Vec<Member> {
        let members = members.iter().map(|(name, address, pin)| Member {
            name: (*name).to_owned(),
            incarnation: format!("{name}1"),
            address: (*address).to_owned(),
            pin: pin.map(|byte| Pin([byte; 32])),
            ready: true,
            ..Member::default()
        });
        members.collect()
    }

    #[test]
    fn a_key_speaks_for_the_members_whose_leases_name_it() {
        let members = members(&[("a", "", Some(1)), ("b", "", Some(2)), ("c", "", None)]);
        let named = |names: &[&str]| Caller::Named(names.iter().map(|n| (*n).to_owned()).collect());
        for (caller, expected) in [
            (Caller::Pinned(Pin([1; 32])), &["a"][..]),
            (Caller::Pinned(Pin([3; 32])), &[]),
            (named(&["b", "x"]), &["b"]),
            (named(&[]), &[]),
            (Caller::Unproven, &["a", "b", "c"]),
        ] {
            let found: Vec<&str> = caller.members(&members).collect();
            assert_eq!(found, expected, "{caller:?}");
        }
        let pin = |name: &str, life: &str| pin_of(&members, &Holder::new(name, life));
        assert_eq!(pin("a", "a1"), Ok(Some(Pin([1; 32]))));
        assert_eq!(pin("c", "c1"), Ok(None));
        assert!(pin("a", "a0").is_err() && pin("x", "x1").is_err());
    }

    #[test]
    fn a_peers_address_is_known_in_each_of_its_forms() {
        let members = members(&[
            ("a", "10.0.0.1:10258", None),
            ("b", "[fd00::1]:1", None),
            ("c", "node-1:10258", None),
        ]);
        for (address, known) in [
            ("10.0.0.1", true),
            ("::ffff:10.0.0.1", true),
            ("fd00::1", true),
            ("10.0.0.2", false),
        ] {
            let is_known = is_peer_address(&members, address.parse().unwrap());
            assert_eq!(is_known, known, "{address}");
        }
    }

    #[test]
    fn who_waits_wakes_when_somebody_is_another_and_reads_what_is_new_anyway() {
        let known = watch::Sender::new(Vec::new());
        let mut seen = known.subscribe();
        let mut publish = |members: &[Member]| {
            know(&known, members);
            let woken = seen.has_changed().unwrap();
            assert_eq!(*seen.borrow_and_update(), members);
            woken
        };
        let mut now = members(&[("a", "10.0.0.1:1", Some(1)), ("b", "10.0.0.2:1", None)]);
        assert!(publish(&now));
        assert!(!publish(&now));
        now[0].demand = Some(3);
        assert!(!publish(&now), "a load is nothing to wake for");
        now[1].incarnation = "b2".to_owned();
        assert!(publish(&now));
        now[0].pin = None;
        assert!(publish(&now));
        now.pop();
        assert!(publish(&now));
    }
}
