//! The contract of every controller, which each group's tests run on its registry.
//!
//! 1. Same input, same plan: two instances, one with a memory that was packed and unpacked.
//! 2. Plans applied come to rest, and at rest the plan is empty, for keys that no change has woken too.
//! 3. Memory dropped at any point, or packed and unpacked, or all of it lost in a takeover: same rest.
//! 4. Two owners at once, each with caches that lag: same rest, and never more children of one owner at once
//!    than undisturbed, so that a second creation has not been made good by a deletion. Lost requests and
//!    answers: the same.
//! 5. Nothing unseen is deleted or changed: every patch and delete carries the uid that was seen, and the
//!    version seen where it carries one; creates have names, so that a second one collides.
//! 6. Every action lies within the declared rules; only what is watched is read; indexes are declared.
//! 7. Plans that make or delete generated children say what was counted.
//! 8. No child gets a generated name that another had within the last hour, whatever befalls children:
//!    deleted at once or with grace, failed, evicted, their node gone; with two owners, memory lost, and
//!    owners that start again and have seen nothing of what was before.
//! 9. Whatever integers, lists, maps and sizes its objects have, one plan stays within bounds of processor
//!    time and of memory, and does not panic (`extremes.rs`).

use std::{collections::BTreeSet, sync::Arc};

use kubernetes_proto::{AnyObject, Object, Str, discovery::EndpointSlice};
use serde_json::Value;

use super::{World, engine, extremes};
use crate::{Factory, SignedDuration, Timestamp, names};

/// Runs of each kind and world: enough that a fault that shows in one run of ten is missed once in some
/// thousand.
const SEEDS: u64 = 24;
/// Seconds of each run through time: past the usual deadlines (600 s) and their successors.
const SECONDS: i64 = 3600;

/// The contract of one controller, with its test setup.
pub struct Contract<'a> {
    factory: &'a Factory,
    among: Vec<Factory>,
    seeds: u64,
    seconds: i64,
    surplus: usize,
}

/// Checks the contract of a controller in some worlds. Panics where it is broken; the message names the
/// seed.
pub fn check(factory: &Factory, worlds: impl IntoIterator<Item = World>) {
    Contract::of(factory).check(worlds);
}

/// Checks that some controllers are all of a registry: for a group's test that each of its controllers has
/// worlds.
pub fn covers(registry: &[Factory], checked: &[&str]) {
    let registered: BTreeSet<&str> = registry
        .iter()
        .map(|factory| (factory.describe)().name)
        .collect();
    let checked: BTreeSet<&str> = checked.iter().copied().collect();
    assert_eq!(
        registered, checked,
        "registered (left) and checked by the contract (right)"
    );
}

impl<'a> Contract<'a> {
    /// Of a controller, alone.
    pub fn of(factory: &'a Factory) -> Self {
        Self {
            factory,
            among: Vec::new(),
            seeds: SEEDS,
            seconds: SECONDS,
            surplus: 0,
        }
    }

    /// Runs beside other controllers that it depends on (Deployments on ReplicaSets' controller). They are
    /// held to the same contract.
    #[must_use]
    pub fn among(mut self, others: &[Factory]) -> Self {
        self.among.extend_from_slice(others);
        self
    }

    /// With another number of seeds for each kind of run.
    #[must_use]
    pub fn seeds(mut self, seeds: u64) -> Self {
        self.seeds = seeds;
        self
    }

    /// Lets a disturbed run have `more` children of one owner beyond the undisturbed one at once: for
    /// controllers whose order of steps decides how many there are in between.
    #[must_use]
    pub fn surplus(mut self, children: usize) -> Self {
        self.surplus = children;
        self
    }

    /// Runs through a span of the cluster's time, in seconds.
    #[must_use]
    pub fn seconds(mut self, seconds: i64) -> Self {
        self.seconds = seconds;
        self
    }

    /// Runs it in some worlds.
    pub fn check(&self, worlds: impl IntoIterator<Item = World>) {
        let name = (self.factory.describe)().name;
        let mut planned = 0;
        for (number, world) in worlds.into_iter().enumerate() {
            let title = format!("{name}, world {number}");
            planned += self.check_world(&title, &world);
            extremes::check(&title, number, &world, self.factory);
        }
        assert!(
            planned > 0,
            "{name} never planned anything: these worlds show nothing of it"
        );
    }

    /// How many plans the undisturbed run took.
    fn check_world(&self, name: &str, world: &World) -> usize {
        let mut factories = vec![*self.factory];
        factories.extend_from_slice(&self.among);
        let built: Vec<engine::Built> = factories
            .iter()
            .map(|factory| engine::Built::new(world, factory))
            .collect();
        let until: Timestamp = world.now() + SignedDuration::from_secs(self.seconds);
        let run = |ways: engine::Ways| {
            let mut end = world.clone();
            let run = engine::Engine::new(&built, world.clone(), ways).run(&mut end, Some(until));
            (end.rest(), run)
        };
        let calm = engine::Ways::together();
        let (rest, undisturbed) = run(calm);
        let kinds = [
            ("in any order", calm),
            (
                "forgetting",
                engine::Ways {
                    forgets: true,
                    ..calm
                },
            ),
            (
                "on stale caches",
                engine::Ways {
                    stale: true,
                    ..calm
                },
            ),
            (
                "losing writes",
                engine::Ways {
                    loses: true,
                    stale: true,
                    ..calm
                },
            ),
            (
                "with two owners",
                engine::Ways {
                    owners: 2,
                    stale: true,
                    ..calm
                },
            ),
            (
                "with two owners, forgetting and losing writes",
                engine::Ways {
                    owners: 2,
                    stale: true,
                    forgets: true,
                    loses: true,
                    ..calm
                },
            ),
        ];
        for (kind, ways) in kinds {
            for seed in 1..=self.seeds {
                let (other, disturbed) = run(engine::Ways { seed, ..ways });
                assert!(
                    rest == other,
                    "{name}, {kind}, seed {seed}: another rest\nundisturbed:\n  {}\nso:\n  {}",
                    missing(&rest, &other).join("\n  "),
                    missing(&other, &rest).join("\n  ")
                );
                for (children, most) in &disturbed.peaks {
                    let peak = undisturbed.peaks.get(children).copied().unwrap_or(0);
                    assert!(
                        *most <= peak + self.surplus,
                        "{name}, {kind}, seed {seed}: {most} {children} at once, undisturbed {peak}"
                    );
                }
            }
        }
        let harmed = engine::Ways {
            harms: true,
            ..calm
        };
        let everything = engine::Ways {
            owners: 2,
            stale: true,
            forgets: true,
            loses: true,
            ..harmed
        };
        let starting = engine::Ways {
            forgets: true,
            ..harmed
        };
        for ways in [harmed, starting, everything] {
            // The engine itself judges names.
            for seed in 1..=self.seeds.div_ceil(3) {
                run(engine::Ways { seed, ..ways });
            }
        }
        undisturbed.plans.len()
    }
}

/// The lines of one rest that the other lacks.
fn missing(of: &[String], from: &[String]) -> Vec<String> {
    let mut left = from.to_vec();
    let mut lacking = Vec::new();
    for line in of {
        match left.iter().position(|other| other == line) {
            Some(place) => {
                left.swap_remove(place);
            }
            None => lacking.push(line.clone()),
        }
    }
    lacking
}

impl World {
    /// What two equivalent runs have in common: every object as a line, without uids, versions, times,
    /// generated names of children, and the reasons of conditions. Slices of one Service count as one:
    /// which endpoint is in which of them depends on the order of events.
    pub fn rest(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut slices = BTreeSet::new();
        for object in self.objects.values() {
            match object.as_any().downcast_ref::<EndpointSlice>() {
                Some(slice) => {
                    let mut whole = slice.clone();
                    let endpoints = std::mem::take(&mut whole.endpoints);
                    let meta = whole.metadata_mut();
                    meta.name = Str::default();
                    meta.generate_name = Str::default();
                    meta.generation = 0;
                    let whole = line(&(Arc::new(whole) as AnyObject));
                    lines.extend(endpoints.iter().map(|one| format!("{whole} {one:?}")));
                    slices.insert(whole);
                }
                None => lines.push(line(object)),
            }
        }
        lines.extend(slices);
        lines.sort();
        lines
    }
}

fn line(object: &AnyObject) -> String {
    let mut json = object.to_json();
    let generation = json["metadata"]["generation"].take();
    if let Some(status) = json["status"].as_object_mut()
        && let Some(observed) = status.get_mut("observedGeneration")
    {
        let caught_up = *observed == generation;
        *observed = caught_up.into();
    }
    blur(&mut json);
    let meta = object.metadata();
    let is_generated = names::has_generated(object.resource()) && meta.controller().is_some();
    let name = if is_generated {
        json["metadata"]["name"] = "*".into();
        json["metadata"]["generateName"] = "*".into();
        "*".to_owned()
    } else {
        meta.name.to_string()
    };
    format!(
        "{} {}/{name} {json}",
        object.resource().id(),
        meta.namespace
    )
}

/// Removes what differs between equivalent runs.
fn blur(json: &mut Value) {
    match json {
        Value::Object(fields) => {
            let is_condition = fields.contains_key("type") && fields.contains_key("status");
            fields.retain(|name, value| {
                let time = name.ends_with("Time")
                    || name.ends_with("Timestamp")
                    || name.ends_with("-trigger-time")
                    || matches!(name.as_str(), "finishedAt" | "timeAdded");
                let identity = matches!(
                    name.as_str(),
                    "uid"
                        | "resourceVersion"
                        | "batch.kubernetes.io/controller-uid"
                        | "manifold.dev/scale-events"
                );
                let story = is_condition && matches!(name.as_str(), "reason" | "message");
                !(time || identity || story || value.is_null())
            });
            fields.values_mut().for_each(blur);
            // Which block a node got depends on the order of attempts; that it has one of each family does
            // not.
            fields.remove("podCIDR");
            if let Some(Value::Array(blocks)) = fields.get_mut("podCIDRs") {
                blocks.fill("*".into());
            }
            // None, or one that was taken out.
            if fields
                .get("annotations")
                .and_then(Value::as_object)
                .is_some_and(serde_json::Map::is_empty)
            {
                fields.remove("annotations");
            }
            // The claims that were made for a pod have generated names.
            if let Some(Value::Array(items)) = fields.get_mut("resourceClaimStatuses") {
                for item in items.iter_mut().filter_map(Value::as_object_mut) {
                    if let Some(name) = item.get_mut("resourceClaimName") {
                        *name = "*".into();
                    }
                }
            }
            // Conditions are a set, and so are taints.
            for name in ["conditions", "taints"] {
                if let Some(Value::Array(items)) = fields.get_mut(name) {
                    items.sort_by_key(ToString::to_string);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(blur),
        _ => {}
    }
}
