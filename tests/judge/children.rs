//! Pods beyond what their ReplicaSet wanted at the moment of their making.
//!
//! A pod counts from when its creation was answered, and not any more from when its deletion arrived. What
//! was wanted is the most that the ReplicaSet's `spec.replicas` said from a moment before the creation
//! arrived until it was answered: a controller sees what the server stored a watch's delay ago. Creations of
//! one sync go out in batches, each after the answer of the one before, as upstream's do: all of them count
//! from the first one's arrival. A change of size or a deletion that the server gave no good answer to (it
//! lost its storage meanwhile) may have landed and counts as if it had; so does a deletion by name under way
//! while a pod of that name is made again. So a count is never too high on account of order.

use std::collections::{BTreeMap, BTreeSet};

use harness::AuditRecord;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::{controller_of, is_dry_run, name_of, replicas, stretched, text};

/// What a watch may be behind, where the machine is not busy with other things.
const LAG: SignedDuration = SignedDuration::from_secs(2);

/// Between the answer of one batch and the arrival of the next, each of which a fault may delay by 200 ms.
const BATCHES: SignedDuration = SignedDuration::from_millis(600);

type Name = (String, String);

/// How many were wanted from when on: the arrival of the change, and its answer.
#[derive(Debug, Clone, Copy)]
struct Wanted {
    from: Timestamp,
    done: Timestamp,
    replicas: i64,
    /// Whether it has surely landed. One that may not have leaves what was wanted before possible.
    certain: bool,
}

#[derive(Debug, Clone)]
struct Made {
    arrived: Timestamp,
    done: Timestamp,
    pod: Name,
    owner: String,
    by: String,
}

/// Reads a log; see the module.
#[derive(Debug, Default)]
pub struct Children {
    /// By uid of the ReplicaSet.
    wanted: BTreeMap<String, Vec<Wanted>>,
    /// Uids that a name had, and since when.
    uids: BTreeMap<Name, Vec<(Timestamp, String)>>,
    /// Changes of size by name, whose uid is found at the end.
    sizes: Vec<(Name, Wanted)>,
    made: Vec<Made>,
    /// Arrivals and answers of deletions.
    gone: BTreeMap<Name, Vec<(Timestamp, Timestamp)>>,
}

/// What changes the count.
enum Step<'c> {
    Gone(&'c Name),
    /// And when the first of its sync arrived.
    Made(&'c Made, Timestamp),
}

/// What was found.
#[derive(Debug, Default)]
pub struct Counted {
    /// Broken promises, a line each.
    pub complaints: Vec<String>,
    /// Pods that ReplicaSets had made.
    pub pods: usize,
    /// ReplicaSets of which pods were made.
    pub owners: usize,
}

impl Children {
    /// Takes in one record.
    pub fn read(&mut self, record: &AuditRecord) {
        let granted = record.code().is_some_and(|code| (200..300).contains(&code));
        // A server that lost its storage in the middle says so, and the write may stand all the same.
        let uncertain = record.code().is_none_or(|code| code >= 500);
        if record.stage != "ResponseComplete"
            || !record.is_write()
            || !(granted || uncertain)
            || is_dry_run(record)
        {
            return;
        }
        let body = record.response_object.as_ref();
        let object = record.object();
        let name = (object.namespace.clone(), name_of(&object.name, body));
        let (from, done) = (record.request_received_timestamp, record.stage_timestamp);
        let wanted = |replicas| Wanted {
            from,
            done,
            replicas,
            certain: granted,
        };
        match (record.verb.as_str(), record.resource().as_str()) {
            ("create", "replicasets") if granted => {
                let Some(uid) = body.map(|body| text(&body["metadata"]["uid"])) else {
                    return;
                };
                // One that asks for its metadata alone gets no spec in the answer.
                let whole = body.filter(|body| body["spec"].is_object());
                let size = whole.or(record.request_object.as_ref()).map_or(1, replicas);
                self.uids.entry(name).or_default().push((done, uid.clone()));
                self.wanted.entry(uid).or_default().push(wanted(size));
            }
            ("update" | "patch", "replicasets" | "replicasets/scale") => {
                let size = body
                    .and_then(size)
                    .or_else(|| record.request_object.as_ref().and_then(size));
                if let Some(size) = size {
                    self.sizes.push((name, wanted(size)));
                }
            }
            ("delete", "replicasets") => self.sizes.push((name, wanted(0))),
            ("create", "pods") if granted => {
                if let Some(owner) = body.and_then(controller_of) {
                    let by = record
                        .agent()
                        .map_or_else(|| record.user.username.clone(), |agent| agent.replica);
                    self.made.push(Made {
                        arrived: from,
                        done,
                        pod: name,
                        owner,
                        by,
                    });
                }
            }
            ("delete", "pods") => self.gone.entry(name).or_default().push((from, done)),
            _ => {}
        }
    }

    /// For each creation, when the first of its sync arrived.
    fn begun(&self, batches: SignedDuration) -> Vec<Timestamp> {
        let mut order: Vec<usize> = (0..self.made.len()).collect();
        order.sort_by_key(|at| self.made[*at].arrived);
        let mut begun: Vec<Timestamp> = self.made.iter().map(|made| made.arrived).collect();
        // By owner and sender: when the sync under way began, and when its newest answer was given.
        let mut syncs: BTreeMap<(&str, &str), (Timestamp, Timestamp)> = BTreeMap::new();
        for at in order {
            let made = &self.made[at];
            let sync = syncs
                .entry((made.owner.as_str(), made.by.as_str()))
                .or_insert((made.arrived, made.done));
            if made.arrived.duration_since(sync.1) > batches {
                *sync = (made.arrived, made.done);
            }
            sync.1 = sync.1.max(made.done);
            begun[at] = sync.0;
        }
        begun
    }

    /// What all that was read comes to; times may be exceeded by the factor `slack`, on a machine that is
    /// busy with other things.
    pub fn verdict(&self, slack: f64) -> Counted {
        let lag = stretched(LAG, slack);
        let begun = self.begun(stretched(BATCHES, slack));
        let mut wanted = self.wanted.clone();
        for (name, change) in &self.sizes {
            let uid = self.uids.get(name).and_then(|uids| {
                let before = uids.iter().filter(|(since, _)| *since <= change.done);
                before.max_by_key(|(since, _)| *since)
            });
            if let Some((_, uid)) = uid {
                wanted.entry(uid.clone()).or_default().push(*change);
            }
        }
        for changes in wanted.values_mut() {
            changes.sort_by_key(|change| (change.done, change.from));
        }
        // Deletions before creations at the same microsecond.
        let mut steps: Vec<(Timestamp, Step<'_>)> = Vec::new();
        for (name, deletions) in &self.gone {
            steps.extend(deletions.iter().map(|(from, _)| (*from, Step::Gone(name))));
        }
        steps.extend(
            self.made
                .iter()
                .zip(&begun)
                .map(|(made, begun)| (made.done, Step::Made(made, *begun))),
        );
        steps.sort_by_key(|(at, step)| (*at, matches!(step, Step::Made(..))));
        let mut alive: BTreeMap<&str, BTreeSet<&Name>> = BTreeMap::new();
        let mut owner_of: BTreeMap<&Name, &str> = BTreeMap::new();
        let mut counted = Counted::default();
        for (_, step) in steps {
            let (made, begun) = match step {
                Step::Made(made, begun) => (made, begun),
                Step::Gone(name) => {
                    if let Some(owner) = owner_of.remove(name) {
                        alive.entry(owner).or_default().remove(name);
                    }
                    continue;
                }
            };
            // A deletion by name that was under way meanwhile may have hit this one.
            let hit = self.gone.get(&made.pod).is_some_and(|deletions| {
                let mut meanwhile = deletions.iter();
                meanwhile.any(|(from, done)| *from <= made.done && *done >= made.arrived)
            });
            if hit {
                counted.pods += 1;
                continue;
            }
            let pods = alive.entry(&made.owner).or_default();
            pods.insert(&made.pod);
            owner_of.insert(&made.pod, &made.owner);
            counted.pods += 1;
            // A log may begin later than the ReplicaSet.
            let Some(most) = wanted
                .get(&made.owner)
                .and_then(|changes| most_wanted(changes, begun - lag, made.done))
            else {
                continue;
            };
            if i64::try_from(pods.len()).unwrap_or(i64::MAX) > most {
                counted.complaints.push(format!(
                    "pod {}/{}, made by {} at {}, is number {} of its ReplicaSet, which wanted {most}",
                    made.pod.0,
                    made.pod.1,
                    made.by,
                    made.done,
                    pods.len()
                ));
            }
        }
        counted.owners = alive.len();
        counted
    }
}

/// The most that was wanted at any time between.
fn most_wanted(changes: &[Wanted], from: Timestamp, to: Timestamp) -> Option<i64> {
    let ends = (0..changes.len()).map(|at| {
        let later = changes[at + 1..].iter().find(|change| change.certain);
        later.map(|next| next.done)
    });
    changes
        .iter()
        .zip(ends)
        .filter(|(change, end)| change.from <= to && end.is_none_or(|end| end >= from))
        .map(|(change, _)| change.replicas)
        .max()
}

/// The size that a body says; a patch need not.
fn size(body: &Value) -> Option<i64> {
    match (&body["spec"], body["kind"] == "Scale") {
        (spec, true) if spec.is_object() || spec.is_null() => Some(replicas(body)),
        (spec, _) => spec["replicas"].as_i64(),
    }
}
