//! What goes wrong, and how often.

use clap::ValueEnum;
use rand::Rng;

/// A fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Fault {
    /// SIGKILL.
    Kill,
    /// SIGKILL, and a witness runs beside it.
    KillBesideWitness,
    /// SIGTERM.
    End,
    /// SIGSTOP for twice a Lease's duration.
    Stand,
    /// One thread of a replica stops, and the others run.
    Hang,
    /// Every byte to and from the API server is late.
    Delay,
    /// Nothing passes between a replica and the API server.
    Swallow,
    /// Watches bring nothing; everything else continues.
    FreezeWatches,
    /// Connections to the API server break in the middle of an answer.
    Cut,
    /// Nothing passes between a replica and its peers, while ranges have to move.
    PartPeers,
    /// The API server is away for 20 s.
    ApiServerAway,
    /// etcd hangs for 10 s.
    EtcdAway,
    /// An admission webhook takes 8 s for every pod.
    SlowWebhook,
    /// A peer with a certificate of another authority.
    WrongCertificate,
    /// A peer that sends garbage.
    Garbage,
    /// A peer that replays an old handoff and claims what it does not own.
    FalseHandoffs,
    /// A replica's own Lease is deleted by hand.
    DeleteReplicaLease,
    /// Leases of ranges are deleted by hand.
    DeleteRangeLeases,
    /// Leases of ranges are edited by hand: no holder, an older epoch.
    EditRangeLeases,
    /// Replicas come and go at once.
    JoinAndLeave,
}

/// With how often each is chosen among a hundred.
const ALL: &[(Fault, u32)] = &[
    (Fault::Kill, 6),
    (Fault::KillBesideWitness, 4),
    (Fault::End, 12),
    (Fault::Stand, 4),
    (Fault::Hang, 4),
    (Fault::Delay, 6),
    (Fault::Swallow, 6),
    (Fault::FreezeWatches, 5),
    (Fault::Cut, 8),
    (Fault::PartPeers, 4),
    (Fault::ApiServerAway, 1),
    (Fault::EtcdAway, 2),
    (Fault::SlowWebhook, 1),
    (Fault::WrongCertificate, 6),
    (Fault::Garbage, 6),
    (Fault::FalseHandoffs, 6),
    (Fault::DeleteReplicaLease, 4),
    (Fault::DeleteRangeLeases, 5),
    (Fault::EditRangeLeases, 5),
    (Fault::JoinAndLeave, 5),
];

/// `count` faults of these kinds, or of all where none is named: each kind once, as far as they reach, then
/// by weight.
pub(super) fn choose(random: &mut impl Rng, count: usize, only: &[Fault]) -> Vec<Fault> {
    let chosen = ALL
        .iter()
        .filter(|(fault, _)| only.is_empty() || only.contains(fault));
    let mut faults: Vec<Fault> = chosen.clone().map(|(fault, _)| *fault).collect();
    faults.truncate(count);
    let sum: u32 = chosen.clone().map(|(_, weight)| weight).sum();
    while faults.len() < count {
        let mut at = random.random_range(0..sum);
        for (fault, weight) in chosen.clone() {
            if at < *weight {
                faults.push(*fault);
                break;
            }
            at -= weight;
        }
    }
    // In any order.
    for at in (1..faults.len()).rev() {
        faults.swap(at, random.random_range(0..=at));
    }
    faults
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;

    #[test]
    fn a_seed_chooses_the_same_faults_and_none_is_left_out() {
        let of = |seed, count| choose(&mut StdRng::seed_from_u64(seed), count, &[]);
        assert_eq!(of(7, 200), of(7, 200));
        assert_ne!(of(7, 200), of(8, 200));
        let many = of(7, 200);
        assert_eq!(many.len(), 200);
        assert!(ALL.iter().all(|(fault, _)| many.contains(fault)));
        assert_eq!(of(7, 3).len(), 3);
        let two = [Fault::Cut, Fault::Kill];
        let some = choose(&mut StdRng::seed_from_u64(7), 50, &two);
        assert_eq!(some.len(), 50);
        assert!(two.iter().all(|fault| some.contains(fault)));
        assert!(some.iter().all(|fault| two.contains(fault)));
    }
}
