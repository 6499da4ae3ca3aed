//! `/debug/shards`, `/debug/explain` and `/debug/move`: who owns what, why a key does not move, and that a
//! range shall.

use std::sync::{Arc, OnceLock, atomic::Ordering};

use controllers_kit::Key;
use coordinator::Handle;
use futures::{FutureExt, future::BoxFuture};
use serde_json::{Value, json};

use tokio::sync::mpsc;

use crate::{actors::range::Explain, http::Debug, pod_events::Notice, shared::Shared};

/// Answers from the actors' shared state. The coordinator comes when it has started.
pub struct Inside {
    shared: Arc<Shared>,
    handle: OnceLock<Handle>,
    notices: OnceLock<mpsc::Sender<Notice>>,
}

impl Inside {
    /// Before the coordinator has started.
    pub fn new(shared: Arc<Shared>) -> Arc<Self> {
        Arc::new(Self {
            shared,
            handle: OnceLock::new(),
            notices: OnceLock::new(),
        })
    }

    /// The coordinator has started. `notices`: where events at the own Pod go, if there is one.
    pub fn set(&self, handle: Handle, notices: Option<mpsc::Sender<Notice>>) {
        self.handle.get_or_init(|| handle);
        if let Some(notices) = notices {
            self.notices.get_or_init(|| notices);
        }
    }
}

fn shards(shared: &Shared, handle: Option<&Handle>) -> Value {
    let mut said = handle.map_or_else(
        || json!({"replica": shared.replica, "fence": {"open": false, "remaining_ms": 0}, "members": [], "ranges": []}),
        |handle| serde_json::to_value(handle.view()).unwrap_or_default(),
    );
    let (mut keys, mut queued) = (0, 0);
    let mut owned = Vec::new();
    for range in 0..shared.ranges {
        let Some(slot) = shared.slot(range) else {
            continue;
        };
        let stats = &slot.stats;
        let (range_keys, range_queued) = (
            stats.keys.load(Ordering::Relaxed),
            stats.queued.load(Ordering::Relaxed),
        );
        keys += range_keys;
        queued += range_queued;
        owned.push(json!({
            "range": range,
            "epoch": slot.epoch,
            "state": if stats.frozen.load(Ordering::Relaxed) { "frozen" } else { "active" },
            "keys": range_keys,
            "queued": range_queued,
        }));
    }
    // Ranges come and go with their counters; what was done in all is counted by the controllers.
    let reconciles: u64 = shared
        .units
        .iter()
        .map(|unit| unit.reconciles.load(Ordering::Relaxed))
        .sum();
    said["owned"] = Value::Array(owned);
    said["totals"] = json!({
        "keys": keys,
        "queued": queued,
        "reconciles": reconciles,
        "writes": shared.writes.load(Ordering::Relaxed),
    });
    let set_aside = shared.view.set_aside().into_iter();
    let set_aside = set_aside.map(|(resource, key, why)| {
        json!({"resource": resource.id(), "object": key.to_string(), "why": why})
    });
    let unwoken = shared.unwoken.all().into_iter();
    let unwoken = unwoken.map(|(controller, resource, key, why)| {
        json!({
            "resource": resource.id(),
            "object": key.to_string(),
            "controller": controller,
            "why": format!("it wakes no keys: {why}"),
        })
    });
    said["set_aside"] = set_aside.chain(unwoken).collect();
    let list = shared.watchlist.list();
    let suspected = list.keys.iter().map(|(name, suspicion)| {
        json!({
            "key": name,
            "deaths": suspicion.deaths,
            "alone": suspicion.alone,
            "last": suspicion.last,
        })
    });
    said["quarantine"] = json!({
        "suspected": suspected.collect::<Vec<_>>(),
        "announced_ranges": &list.careful,
    });
    said["controllers"] = shared
        .units
        .iter()
        .map(|unit| {
            json!({
                "name": unit.name(),
                "ready": unit.ready.load(Ordering::Relaxed),
                "working": unit.working.load(Ordering::Relaxed),
                "reconciles": unit.reconciles.load(Ordering::Relaxed),
            })
        })
        .collect();
    said
}

impl Debug for Inside {
    fn shards(&self) -> Value {
        shards(&self.shared, self.handle.get())
    }

    fn explain(
        &self,
        controller: String,
        key: String,
    ) -> BoxFuture<'static, Result<Value, String>> {
        let shared = Arc::clone(&self.shared);
        let handle = self.handle.get().cloned();
        async move {
            let unit = shared.units.iter().find(|unit| {
                let descriptor = unit.controller.descriptor();
                descriptor.name == controller || descriptor.aliases.contains(&controller.as_str())
            });
            let Some(unit) = unit else {
                let known: Vec<&str> = shared.units.iter().map(|unit| unit.name()).collect();
                return Err(format!(
                    "no controller {controller:?} runs here; there are {}",
                    known.join(", ")
                ));
            };
            let key = Key::parse(&key);
            let range = shared.range_of(unit, &key);
            let owner = handle.as_ref().and_then(|handle| handle.owner_of(range));
            let mut said = json!({
                "controller": unit.name(),
                "key": key.to_string(),
                "range": range,
                "owner": owner,
                "replica": shared.replica,
            });
            let Some(slot) = shared.slot(range) else {
                said["state"] = json!(match &owner {
                    Some(owner) => format!("not owned here: ask {owner}"),
                    None => "the range has no owner yet".to_owned(),
                });
                return Ok(said);
            };
            said["epoch"] = json!(slot.epoch);
            if !unit.ready.load(Ordering::Acquire) {
                let missing: Vec<String> = unit
                    .resources()
                    .filter(|resource| !shared.view.complete(resource))
                    .map(|resource| resource.id())
                    .collect();
                said["state"] = json!(format!(
                    "the controller waits for the caches of {}: see /readyz?verbose",
                    missing.join(", ")
                ));
                return Ok(said);
            }
            let explain = Explain {
                unit: unit.index,
                key: key.clone(),
            };
            match slot.addr.send(explain).await {
                Ok(Some(Value::Object(inside))) => {
                    for (name, value) in inside {
                        said[name] = value;
                    }
                }
                Ok(_) => {
                    said["state"] =
                        json!("at rest: nothing is known of it that its object does not say");
                }
                Err(error) => return Err(format!("range {range} does not answer: {error}")),
            }
            Ok(said)
        }
        .boxed()
    }

    fn move_range(
        &self,
        range: u16,
        to: String,
        by: String,
    ) -> BoxFuture<'static, Result<Value, String>> {
        let handle = self.handle.get().cloned();
        let notices = self.notices.get().cloned();
        let from = self.shared.replica.clone();
        async move {
            let handle = handle.ok_or("the coordinator has not started yet")?;
            handle.move_range(range, &to).await?;
            if let Some(notices) = notices {
                let message =
                    format!("Range {range} is moved from {from} to {to}: asked for by {by}");
                // With the queue full the log has it alone.
                let _full = notices.try_send(Notice::normal("RangeMoveRequested", message));
            }
            Ok(json!({"range": range, "from": from, "to": to}))
        }
        .boxed()
    }
}
