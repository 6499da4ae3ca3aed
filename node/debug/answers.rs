//! What this replica says of itself: to people by the secure port, to other replicas by the peer protocol.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use controllers_kit::Key;
use futures::future::join_all;
use inspect::{
    BusyController, BusyKey, BusyRange, ControllerState, Fence, KeyReport, OwnedRange, Recorded,
    ReplicaShards, Row, SetAside, Suspected, Top, Totals, Unhappy, UnhappyKey,
};
use peer_proto::{InspectRequest, Question};
use serde_json::Value;

use crate::{
    actors::range::{Busy, Explain, Sample},
    history::History,
    history::heat::Rate,
    shared::{Shared, Unit},
    steer::in_force,
};

/// Busiest keys that a replica names.
pub const TOP_KEYS_MAX: usize = 50;
/// Unhappy keys that a replica names: with ten attempts each, of half a kilobyte, a third of what an answer
/// between replicas may have.
pub const UNHAPPY_KEYS_MAX: usize = 100;

/// The resource whose objects a controller's keys are.
pub fn resource_of(unit: &Unit) -> String {
    unit.primary()
        .map(controllers_kit::Resource::type_id)
        .unwrap_or_default()
}

/// Ranges, queues and controllers.
pub fn shards(shared: &Shared) -> ReplicaShards {
    let mut owned = Vec::new();
    let mut open = false;
    for range in 0..shared.ranges {
        let Some(slot) = shared.slot(range) else {
            continue;
        };
        open |= shared.fence.open(range, slot.epoch);
        let frozen = slot.stats.frozen.load(Ordering::Relaxed);
        owned.push(OwnedRange {
            range,
            epoch: slot.epoch,
            state: match frozen {
                true => "frozen".to_owned(),
                false => "active".to_owned(),
            },
            keys: slot.stats.keys.load(Ordering::Relaxed),
            queued: slot.stats.queued.load(Ordering::Relaxed),
        });
    }
    let unusable = shared.view.set_aside().into_iter();
    let unusable = unusable.map(|(resource, key, why)| SetAside {
        resource: resource.id(),
        object: key.to_string(),
        controller: None,
        why,
    });
    let unwoken = shared.unwoken.all().into_iter();
    let unwoken = unwoken.map(|(controller, resource, key, why)| SetAside {
        resource: resource.id(),
        object: key.to_string(),
        controller: Some(controller.to_owned()),
        why: format!("it wakes no keys: {why}"),
    });
    let list = shared.watchlist.list();
    let controllers: Vec<ControllerState> = shared
        .units
        .iter()
        .map(|unit| ControllerState {
            name: unit.name().to_owned(),
            ready: unit.ready.load(Ordering::Relaxed),
            working: unit.working.load(Ordering::Relaxed),
            reconciles: unit.reconciles.load(Ordering::Relaxed),
            paused: unit.paused.load(Ordering::Relaxed),
            workers: unit.workers.wanted(),
        })
        .collect();
    ReplicaShards {
        replica: shared.replica.clone(),
        orders: Some(shared.steering.seen(shared.clock.now())),
        fence: Fence { open },
        totals: Totals {
            keys: owned.iter().map(|one| one.keys).sum(),
            queued: owned.iter().map(|one| one.queued).sum(),
            // Ranges come and go with their counters; what was done in all is counted by the controllers.
            reconciles: controllers.iter().map(|one| one.reconciles).sum(),
            writes: shared.writes.load(Ordering::Relaxed),
        },
        owned,
        controllers,
        set_aside: unusable.chain(unwoken).collect(),
        suspected: list
            .keys
            .iter()
            .map(|(name, suspicion)| Suspected {
                key: name.clone(),
                deaths: suspicion.deaths,
            })
            .collect(),
    }
}

/// Notes what the owned ranges have done since the last time.
pub fn note(shared: &Shared) {
    let at = History::column(shared.clock.now().as_second());
    let slots = (0..shared.ranges).filter_map(|range| Some((range, shared.slot(range)?)));
    let tallies = slots.map(|(range, slot)| (range, slot.stats.tally.take()));
    shared.history().note(at, tallies);
}

/// Figures of this replica, and what it has recorded of its ranges from a column on.
pub fn recorded(shared: &Shared, since: u64) -> Recorded {
    note(shared);
    let mut said = Recorded {
        replica: shared.replica.clone(),
        lag_ms: shared.view.lag().map(|lag| {
            let millis = lag.as_millis();
            u64::try_from(millis).unwrap_or(u64::MAX)
        }),
        ..Recorded::default()
    };
    for range in 0..shared.ranges {
        let Some(slot) = shared.slot(range) else {
            continue;
        };
        said.open |= shared.fence.open(range, slot.epoch);
        said.ranges += 1;
        said.keys += slot.stats.keys.load(Ordering::Relaxed);
        said.queued += slot.stats.queued.load(Ordering::Relaxed);
    }
    let history = shared.history();
    let last = history.last();
    said.load = last.load;
    said.waited_ms = u64::try_from(last.waited.as_millis()).unwrap_or(u64::MAX);
    let rows = history.cells(since).into_iter().map(|cells| Row {
        range: cells.range,
        first: cells.first,
        work: BASE64.encode(&cells.work),
        wait: BASE64.encode(&cells.wait),
    });
    said.rows = rows.collect();
    said
}

/// Why a key does not move, as far as this replica knows. `owner` is the range's owner by its Lease.
///
/// # Errors
/// Where the range's actor does not answer.
pub async fn key(
    shared: &Shared,
    unit: &Unit,
    key: Key,
    owner: Option<String>,
) -> Result<KeyReport, String> {
    let range = shared.range_of(unit, &key);
    let mut report = KeyReport {
        controller: unit.name().to_owned(),
        key: key.to_string(),
        resource: resource_of(unit),
        range,
        ..KeyReport::default()
    };
    let replica = Value::String(shared.replica.clone());
    report.inside.insert("replica".to_owned(), replica);
    let Some(slot) = shared.slot(range) else {
        report.state = match &owner {
            Some(owner) => format!("not owned here: ask {owner}"),
            None => "the range has no owner yet".to_owned(),
        };
        report.owner = owner;
        return Ok(report);
    };
    report.owner = owner.or_else(|| Some(shared.replica.clone()));
    report.epoch = Some(slot.epoch);
    if !unit.ready.load(Ordering::Acquire) {
        let missing: Vec<String> = unit
            .resources()
            .filter(|resource| !shared.view.complete(resource))
            .map(|resource| resource.id())
            .collect();
        report.state = format!(
            "the controller waits for the caches of {}: see /readyz?verbose",
            missing.join(", ")
        );
        return Ok(report);
    }
    let explain = Explain {
        unit: unit.index,
        key: key.clone(),
    };
    let inside = slot.addr.send(explain).await;
    match inside.map_err(|error| format!("range {range} does not answer: {error}"))? {
        Some(Value::Object(inside)) => {
            let mut whole = match serde_json::to_value(&report) {
                Ok(Value::Object(whole)) => whole,
                _ => serde_json::Map::new(),
            };
            whole.extend(inside);
            report = serde_json::from_value(Value::Object(whole))
                .map_err(|error| format!("range {range}: {error}"))?;
        }
        _ => {
            "at rest: nothing is known of it that its object does not say"
                .clone_into(&mut report.state);
        }
    }
    if let Some(order) = shared.steering.in_force().pause(unit.index, &key) {
        // What is in flight is ended, and what is at rest stays so whatever happens.
        if report.state != "working" {
            "paused".clone_into(&mut report.state);
        }
        report.blocker = Some(in_force::blocker(order));
    }
    if let Some(recent) = shared.attempts().of(&(unit.index, key)) {
        report.attempts = recent.attempts;
    }
    Ok(report)
}

/// What is busy in this replica.
pub async fn top(shared: &Shared, namespace: &str, keys_max: usize) -> Top {
    let slots: Vec<_> = (0..shared.ranges)
        .filter_map(|range| Some((range, shared.slot(range)?)))
        .collect();
    let asked = slots.iter().map(|(range, slot)| {
        let sample = Sample {
            keys_max,
            namespace: namespace.to_owned(),
        };
        let survey = slot.addr.send(sample);
        async move { (*range, survey.await) }
    });
    let mut by_controller: BTreeMap<u16, Busy> = BTreeMap::new();
    let mut top = Top::default();
    for (range, survey) in join_all(asked).await {
        // A range that ends meanwhile is another's by now.
        let Ok(survey) = survey else { continue };
        let mut busy = Busy::default();
        for (unit, part) in survey.controllers {
            for sum in [&mut busy, by_controller.entry(unit).or_default()] {
                sum.keys += part.keys;
                sum.queued += part.queued;
                sum.failing += part.failing;
                sum.rate += part.rate;
            }
        }
        let Rate { rate, load } = busy.rate;
        top.ranges.push(BusyRange {
            range,
            owner: shared.replica.clone(),
            keys: busy.keys,
            queued: busy.queued,
            rate,
            load,
        });
        let keys = survey.keys.into_iter();
        top.keys
            .extend(keys.map(|(unit, key, failures, Rate { rate, load })| {
                let unit = &shared.units[usize::from(unit)];
                BusyKey {
                    controller: unit.name().to_owned(),
                    key: key.to_string(),
                    resource: resource_of(unit),
                    range,
                    owner: shared.replica.clone(),
                    failures,
                    rate,
                    load,
                }
            }));
    }
    let controllers = by_controller.into_iter();
    top.controllers
        .extend(controllers.map(|(unit, busy)| BusyController {
            controller: shared.units[usize::from(unit)].name().to_owned(),
            keys: busy.keys,
            queued: busy.queued,
            failing: busy.failing,
            rate: busy.rate.rate,
            load: busy.rate.load,
        }));
    top.keys
        .sort_by(|one, other| other.rate.total_cmp(&one.rate));
    top.keys.truncate(keys_max);
    top
}

/// The keys that failed lately in this replica.
pub fn unhappy(shared: &Shared, namespace: &str, keys_max: usize) -> Unhappy {
    let now = shared.clock.monotonic();
    let orders = shared.steering.in_force();
    let attempts = shared.attempts();
    let (all, omitted) = attempts.all(namespace, keys_max, now);
    let keys = all.into_iter().map(|recent| {
        let unit = &shared.units[usize::from(recent.unit)];
        UnhappyKey {
            controller: unit.name().to_owned(),
            key: recent.key.to_string(),
            resource: resource_of(unit),
            owner: shared.replica.clone(),
            failures: recent.failures,
            pause: orders
                .pause(recent.unit, &recent.key)
                .map(|order| in_force::blocker(order)),
            attempts: recent.attempts,
        }
    });
    Unhappy {
        keys: keys.collect(),
        forgotten: attempts.forgotten(),
        omitted,
        ..Unhappy::default()
    }
}

/// The enabled controller of this name or alias.
pub fn unit<'a>(shared: &'a Shared, name: &str) -> Option<&'a Unit> {
    shared.units.iter().find(|unit| {
        let descriptor = unit.controller.descriptor();
        descriptor.name == name || descriptor.aliases.contains(&name)
    })
}

/// Answers another replica.
///
/// # Errors
/// In words, for the person who asks it.
pub async fn answer(shared: Arc<Shared>, asked: InspectRequest) -> Result<Vec<u8>, String> {
    let limit = |most: usize| match usize::try_from(asked.limit) {
        Ok(wanted) if wanted > 0 => wanted.min(most),
        _ => most,
    };
    let written = match asked.question() {
        Question::Shards => serde_json::to_vec(&shards(&shared)),
        Question::Top => {
            let top = top(&shared, &asked.namespace, limit(TOP_KEYS_MAX));
            serde_json::to_vec(&top.await)
        }
        Question::Unhappy => {
            let most = limit(UNHAPPY_KEYS_MAX);
            serde_json::to_vec(&unhappy(&shared, &asked.namespace, most))
        }
        Question::Keys => {
            let mut reports = Vec::new();
            for one in &asked.keys {
                let Some(unit) = unit(&shared, &one.controller) else {
                    return Err(format!("no controller {:?} runs here", one.controller));
                };
                let its_key = Key::new(one.namespace.as_str(), one.name.as_str());
                reports.push(key(&shared, unit, its_key, None).await?);
            }
            serde_json::to_vec(&reports)
        }
        Question::Shadow => match &shared.shadow {
            Some(shadow) => serde_json::to_vec(&shadow.report(&shared.replica)),
            None => return Err("it is no shadow".to_owned()),
        },
        Question::Page => serde_json::to_vec(&recorded(&shared, asked.since)),
        Question::Unknown => return Err("this build does not know the question".to_owned()),
    };
    written.map_err(|error| error.to_string())
}
