//! The Leases of fleets and of guards, and which of them are renewed.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use coordinator::{Found, LABEL_FLEET, decode};
use futures::{StreamExt as _, stream};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client, ResourceExt as _, api::ListParams};

use super::{REVIEWS_AT_ONCE, asked};
use crate::facts::{Asked, Fleet, GUARD, GUARD_COMPANION, GUARD_NAMESPACE, Guard, Known, Replica};

/// Between two reads of Leases.
const SAMPLE_PAUSE: Duration = Duration::from_millis(400);
/// What a Lease without duration is valid for, as `--lease-duration`'s default.
const VALID_UNSET: Duration = Duration::from_secs(5);
/// A Lease that claims to be valid for longer is not waited for.
const SAMPLE_MAX: Duration = Duration::from_secs(15);

/// The Leases of all fleets: of the whole cluster, or of one namespace where the credentials allow no more.
async fn fleet_leases(client: &Client, asked_for: &Asked) -> Known<Vec<Lease>> {
    let params = ListParams::default().labels(LABEL_FLEET);
    let all: Api<Lease> = Api::all(client.clone());
    let everywhere = asked(all.list(&params)).await;
    match (everywhere, &asked_for.namespace) {
        (Err(unknown), Some(namespace)) if unknown.forbidden => {
            let one: Api<Lease> = Api::namespaced(client.clone(), namespace);
            asked(one.list(&params)).await.map(|list| list.items)
        }
        (answer, _) => answer.map(|list| list.items),
    }
}

fn version_of(lease: &Lease) -> String {
    lease.metadata.resource_version.clone().unwrap_or_default()
}

fn valid_for(lease: &Lease) -> Duration {
    let seconds = lease
        .spec
        .as_ref()
        .and_then(|spec| spec.lease_duration_seconds)
        .and_then(|seconds| u64::try_from(seconds).ok());
    seconds.map_or(VALID_UNSET, Duration::from_secs)
}

fn renewed_at(lease: &Lease) -> Option<Timestamp> {
    Some(lease.spec.as_ref()?.renew_time.as_ref()?.0)
}

/// A Lease's namespace and name.
type Place = (String, String);

fn place(lease: &Lease) -> Place {
    (lease.namespace().unwrap_or_default(), lease.name_any())
}

/// Reads the held Leases again until each was renewed or has had a whole lease duration for it. By versions,
/// not by times: clocks may differ.
async fn renewals(client: &Client, held: &[Lease]) -> BTreeMap<Place, (Timestamp, Lease)> {
    let mut waiting: BTreeMap<Place, (String, Duration)> = held
        .iter()
        .map(|lease| {
            let valid = valid_for(lease).min(SAMPLE_MAX);
            (place(lease), (version_of(lease), valid))
        })
        .collect();
    let started = Instant::now();
    let mut renewed = BTreeMap::new();
    while !waiting.is_empty() {
        tokio::time::sleep(SAMPLE_PAUSE).await;
        let reads = waiting.keys().map(|(namespace, name)| {
            let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
            let name = name.clone();
            async move { asked(leases.get_opt(&name)).await }
        });
        let answers: Vec<Known<Option<Lease>>> = stream::iter(reads.collect::<Vec<_>>())
            .buffer_unordered(REVIEWS_AT_ONCE)
            .collect()
            .await;
        let now = Timestamp::now();
        for lease in answers
            .into_iter()
            .filter_map(|answer| answer.ok().flatten())
        {
            let place = place(&lease);
            let before = waiting.get(&place).map(|(version, _)| version);
            if before.is_some_and(|before| *before != version_of(&lease)) {
                waiting.remove(&place);
                renewed.insert(place, (now, lease));
            }
        }
        waiting.retain(|_, (_, valid)| started.elapsed() < *valid);
    }
    renewed
}

fn is_held(lease: &Lease) -> bool {
    let holder = lease
        .spec
        .as_ref()
        .and_then(|spec| spec.holder_identity.as_ref());
    holder.is_some_and(|holder| !holder.is_empty())
}

/// All fleets, and the guards, with who is alive.
pub(super) async fn leases(
    client: &Client,
    asked_for: &Asked,
    clock_ahead: SignedDuration,
) -> (
    Known<Vec<Fleet>>,
    BTreeMap<&'static str, Known<Option<Guard>>>,
) {
    let guards: Api<Lease> = Api::namespaced(client.clone(), GUARD_NAMESPACE);
    let (listed, guard, companion) = futures::join!(
        fleet_leases(client, asked_for),
        asked(guards.get_opt(GUARD)),
        asked(guards.get_opt(GUARD_COMPANION)),
    );
    let listed = listed.map(|leases| {
        let decoded = leases.into_iter().filter_map(|lease| {
            let fleet = lease.labels().get(LABEL_FLEET)?.clone();
            let found = decode(&fleet, &lease)?;
            Some((fleet, found, lease))
        });
        decoded.collect::<Vec<_>>()
    });
    let mut held: Vec<Lease> = listed
        .iter()
        .flatten()
        .filter(|(_, found, lease)| matches!(found, Found::Replica(_)) && is_held(lease))
        .map(|(_, _, lease)| lease.clone())
        .collect();
    let guarding = [&guard, &companion];
    let guarding = guarding.into_iter().flatten().flatten();
    held.extend(guarding.filter(|lease| is_held(lease)).cloned());
    let renewed = renewals(client, &held).await;
    let guards = [(GUARD, guard), (GUARD_COMPANION, companion)]
        .into_iter()
        .map(|(name, lease)| {
            let guard = lease.map(|lease| {
                lease.map(|lease| Guard {
                    holder: lease
                        .spec
                        .as_ref()
                        .and_then(|spec| spec.holder_identity.clone())
                        .unwrap_or_default(),
                    fresh: renewed.contains_key(&place(&lease)),
                    valid: valid_for(&lease),
                })
            });
            (name, guard)
        })
        .collect();
    let fleets = listed.map(|leases| {
        let mut fleets: BTreeMap<(String, String), Fleet> = BTreeMap::new();
        for (name, found, lease) in leases {
            let namespace = lease.namespace().unwrap_or_default();
            let fleet = fleets
                .entry((namespace.clone(), name.clone()))
                .or_insert_with(|| Fleet {
                    namespace,
                    name: name.clone(),
                    replicas: Vec::new(),
                    ranges: Vec::new(),
                });
            match found {
                Found::Range(range) => fleet.ranges.push(range),
                Found::Plan(_) => {}
                Found::Replica(said) => {
                    let again = renewed.get(&place(&lease));
                    let said = again
                        .and_then(|(_, lease)| decode(&name, lease))
                        .and_then(|found| match found {
                            Found::Replica(said) => Some(said),
                            Found::Range(_) | Found::Plan(_) => None,
                        })
                        .unwrap_or(said);
                    let clocks = again.and_then(|(read, lease)| {
                        Some((renewed_at(lease)?, read.checked_sub(clock_ahead).ok()?))
                    });
                    fleet.replicas.push(Replica {
                        lease: lease.name_any(),
                        said,
                        renewed: again.is_some(),
                        clocks,
                    });
                }
            }
        }
        fleets.into_values().collect()
    });
    (fleets, guards)
}
