//! Runs controllers against a [`World`] until they are at rest: fed by their watches alone, through caches
//! that may lag, by one owner or two, with the disturbances that a [`Ways`] allows. Every plan is checked.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use jiff::Timestamp;
use kubernetes_proto::{AnyObject, Resource, core::Pod};

use super::{
    View, World,
    server::{self, Fault},
};
use crate::{
    Action, Answers, Descriptor, DynChange, DynController, Factory, Key, Memory, Only, Outcome,
    Plan, Query, Refusal, Requeue, Severity, Snapshot, Verb, Watches, names, postconditions,
};

/// The most plans at one instant: a chain of a few Deployments takes some hundreds.
const PLANS_MAX: usize = 3_000;
/// Instants visited in one run through time: the bound for a controller that requeues every second for an
/// hour.
const INSTANTS_MAX: usize = 4_000;
/// How many of the last plans a panic shows.
const PLANS_SHOWN: usize = 12;
/// How much harm is done in one run.
const HARMS: usize = 12;
/// Retries of a key that refuses or fails while nothing changes, before it counts as being at rest.
const RETRIES_MAX: usize = 4;

/// What may happen to controllers in a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ways {
    /// How many owners act on the same keys, unknown to each other.
    pub owners: usize,
    /// Whether caches lag behind.
    pub stale: bool,
    /// Whether memories are dropped or packed and unpacked, and whole owners restart.
    pub forgets: bool,
    /// Whether writes and answers get lost.
    pub loses: bool,
    /// Whether children are deleted, fail and lose their nodes, often enough that all their names would be
    /// used.
    pub harms: bool,
    /// Whether the rest of the cluster acts.
    pub environment: bool,
    /// Decides all of it; 0 for none of it.
    pub seed: u64,
}

impl Ways {
    /// One owner, no faults, nobody else acts.
    pub(super) fn alone() -> Self {
        Self {
            owners: 1,
            stale: false,
            forgets: false,
            loses: false,
            harms: false,
            environment: false,
            seed: 0,
        }
    }

    /// One owner, no faults, the rest of the cluster acts.
    pub(super) fn together() -> Self {
        Self {
            environment: true,
            ..Self::alone()
        }
    }
}

/// xorshift64*: the same seed, the same run.
#[derive(Clone, Debug)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        // Small seeds have few bits; spread them.
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Below a bound.
    fn below(&mut self, bound: usize) -> usize {
        assert!(bound > 0, "nothing to choose from");
        usize::try_from((self.next() >> 33) % bound as u64).expect("below a usize")
    }

    /// True once in `times`.
    fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
}

/// A controller as the engine runs it.
pub(super) struct Built {
    controller: Box<dyn DynController>,
    /// A second one: what differs between the two was not in the snapshot.
    twin: Box<dyn DynController>,
    watches: Arc<Watches>,
}

impl Built {
    pub(super) fn new(world: &World, factory: &Factory) -> Self {
        let controller = world.build(factory);
        Self {
            watches: Arc::new(controller.watches()),
            twin: world.build(factory),
            controller,
        }
    }

    fn descriptor(&self) -> &Descriptor {
        self.controller.descriptor()
    }

    fn view<'a>(&'a self, world: &'a World) -> View<'a> {
        View {
            world,
            watches: Some(Arc::clone(&self.watches)),
        }
    }

    /// The keys that a change wakes.
    pub(super) fn woken(
        &self,
        old: Option<&AnyObject>,
        new: Option<&AnyObject>,
        world: &World,
    ) -> BTreeSet<Key> {
        let mut keys = BTreeSet::new();
        let object = new.or(old).expect("a change has a before or an after");
        for subscription in &self.watches.subscriptions {
            let wanted = subscription
                .only_name
                .is_none_or(|name| object.metadata().name == *name);
            if subscription.resource == object.resource() && wanted {
                let change = DynChange {
                    old,
                    new,
                    version: 0,
                };
                (subscription.wake)(change, &self.view(world), &mut |key| {
                    keys.insert(key);
                });
            }
        }
        if let Some(entry) = world.catalogue.preferred(object.resource()) {
            for discovered in &self.watches.discovered {
                if (discovered.wanted)(entry) {
                    (discovered.wake)(
                        DynChange {
                            old,
                            new,
                            version: 0,
                        },
                        &self.view(world),
                        &mut |key| {
                            keys.insert(key);
                        },
                    );
                }
            }
        }
        keys
    }

    pub(super) fn fresh_memory(&self) -> Memory {
        self.controller.new_memory()
    }

    /// What it asks before it plans a key.
    pub(super) fn ask(&self, world: &World, key: &Key, memory: &Memory) -> Vec<Query> {
        let (view, none) = (self.view(world), Answers::new());
        let seen = Snapshot::new(&view, &none, world.now);
        self.controller.ask(key, &seen, memory)
    }

    /// What it plans for a key.
    pub(super) fn plan(
        &self,
        world: &World,
        key: &Key,
        answers: &Answers,
        memory: &mut Memory,
    ) -> Result<Plan, Refusal> {
        let view = self.view(world);
        let seen = Snapshot::new(&view, answers, world.now);
        self.controller.plan(key, &seen, memory)
    }

    /// How large a memory is in a handoff.
    pub(super) fn packed_bytes(&self, memory: &Memory) -> usize {
        self.controller.pack(memory).map_or(0, |bytes| bytes.len())
    }

    /// All that it watches.
    fn resources(&self, world: &World) -> Vec<&'static Resource> {
        let named = self.watches.subscriptions.iter();
        let named = named.map(|subscription| subscription.resource);
        let found = world.catalogue.all().iter().filter(|entry| {
            let mut discovered = self.watches.discovered.iter();
            entry.preferred && discovered.any(|one| (one.wanted)(entry))
        });
        named.chain(found.map(|entry| entry.resource)).collect()
    }

    fn copy(&self, memory: &Memory) -> Memory {
        match self.controller.pack(memory) {
            Some(bytes) => self.twin.unpack(&bytes),
            None => self.twin.new_memory(),
        }
    }
}

/// A controller's number and a key of it.
type Task = (usize, Key);

/// One replica that believes to own everything.
struct Owner {
    /// What it has seen, resource by resource.
    cache: World,
    /// How far: an index into the history.
    seen: BTreeMap<&'static Resource, usize>,
    queue: BTreeSet<Task>,
    timers: BTreeMap<Task, Timestamp>,
    /// Tasks that are tried again when nothing else is left, with the number of retries.
    retries: BTreeMap<Task, usize>,
    memories: BTreeMap<Task, Memory>,
    /// The versions that a key's own writes have reached: it is not planned before the cache has.
    marks: BTreeMap<Task, BTreeMap<&'static Resource, u64>>,
}

/// For each owner, as in `pods of ReplicaSet default/web`, the most children that it had at once.
pub(super) type Peaks = BTreeMap<String, usize>;

/// What a run leaves behind besides its world.
pub(super) struct Run {
    /// The plans that wrote something.
    pub plans: Vec<Plan>,
    /// How many children there were.
    pub peaks: Peaks,
}

/// A run.
pub(super) struct Engine<'a> {
    built: &'a [Built],
    ways: Ways,
    dice: Dice,
    /// Every state of the cluster so far; the last is the present.
    history: Vec<World>,
    owners: Vec<Owner>,
    resources: BTreeSet<&'static Resource>,
    /// Every key that was ever woken.
    known: BTreeSet<Task>,
    written: Vec<Plan>,
    peaks: Peaks,
    recent: VecDeque<String>,
    plans: usize,
    /// Harm still to be done.
    harms: usize,
}

impl<'a> Engine<'a> {
    pub(super) fn new(built: &'a [Built], world: World, ways: Ways) -> Self {
        let resources = built
            .iter()
            .flat_map(|built| built.resources(&world))
            .collect();
        let owners = (0..ways.owners)
            .map(|_| Owner {
                cache: world.clone(),
                seen: BTreeMap::new(),
                queue: BTreeSet::new(),
                timers: BTreeMap::new(),
                retries: BTreeMap::new(),
                memories: BTreeMap::new(),
                marks: BTreeMap::new(),
            })
            .collect();
        let mut engine = Self {
            built,
            ways,
            dice: Dice::new(ways.seed),
            history: vec![world],
            owners,
            resources,
            known: BTreeSet::new(),
            written: Vec::new(),
            peaks: Peaks::new(),
            recent: VecDeque::new(),
            plans: 0,
            harms: if ways.harms { HARMS } else { 0 },
        };
        for owner in 0..engine.owners.len() {
            engine.wake_all(owner);
        }
        engine.count_children();
        engine
    }

    fn present(&self) -> &World {
        self.history.last().expect("history begins with the start")
    }

    /// Runs to rest, on through time if asked to, and leaves the outcome in `world`.
    pub(super) fn run(mut self, world: &mut World, until: Option<Timestamp>) -> Run {
        self.run_to_rest();
        let mut instants = 0;
        while let Some(next) = until.and_then(|until| self.next_instant(until)) {
            instants += 1;
            assert!(
                instants <= INSTANTS_MAX,
                "more than {INSTANTS_MAX} instants were visited;{}",
                self.tale()
            );
            self.go_to(next);
            self.run_to_rest();
        }
        if let Some(until) = until {
            self.go_to(until);
            self.run_to_rest();
        }
        *world = self.history.pop().expect("history begins with the start");
        Run {
            plans: self.written,
            peaks: self.peaks,
        }
    }

    fn next_instant(&self, until: Timestamp) -> Option<Timestamp> {
        let timers = self.owners.iter().flat_map(|owner| owner.timers.values());
        timers.min().copied().filter(|at| *at <= until)
    }

    /// Moves the clock and queues what is due.
    fn go_to(&mut self, at: Timestamp) {
        self.plans = 0;
        let mut present = self.present().clone();
        present.now = present.now.max(at);
        let now = present.now;
        *self.history.last_mut().expect("never empty") = present;
        for owner in &mut self.owners {
            let due: Vec<Task> = owner
                .timers
                .iter()
                .filter(|(_, at)| **at <= now)
                .map(|(task, _)| task.clone())
                .collect();
            for task in due {
                owner.timers.remove(&task);
                owner.queue.insert(task);
            }
        }
    }

    fn run_to_rest(&mut self) {
        loop {
            if self.ways.seed != 0 {
                self.happen();
            }
            if let Some((owner, task)) = self.pick() {
                self.work(owner, &task);
                continue;
            }
            // Nothing is queued: advances the caches, then the other actors, then what failed.
            if self.catch_up() {
                continue;
            }
            if self.ways.environment && self.step_environment() {
                continue;
            }
            if self.retry() {
                continue;
            }
            // Whatever is done to a child, its owner has reported that there was one.
            if self.harms > 0 && self.harm() {
                self.harms -= 1;
                continue;
            }
            break;
        }
        self.check_rest();
    }

    /// Disturbs a child with a generated name; whether there was any.
    fn harm(&mut self) -> bool {
        let children: Vec<AnyObject> = self
            .present()
            .objects
            .values()
            .filter(|object| {
                let meta = object.metadata();
                names::is_generated(meta) && !meta.is_terminating()
            })
            .cloned()
            .collect();
        if children.is_empty() {
            return false;
        }
        let child = &children[self.dice.below(children.len())];
        let how = self.dice.below(5);
        self.note(format!("harm {how} to {}", Key::of_meta(child.metadata())));
        for world in self.present().harmed(child, how) {
            self.push(world);
        }
        if self.ways.forgets && self.dice.one_in(3) {
            let owner = self.dice.below(self.owners.len());
            self.restart(owner);
        }
        true
    }

    /// A restarted process: it lists everything, and knows nothing of the past.
    fn restart(&mut self, owner: usize) {
        let last = self.history.len() - 1;
        let listed = self.present().listed();
        let seen = self.resources.iter().map(|resource| (*resource, last));
        self.owners[owner] = Owner {
            cache: listed,
            seen: seen.collect(),
            queue: BTreeSet::new(),
            timers: BTreeMap::new(),
            retries: BTreeMap::new(),
            memories: BTreeMap::new(),
            marks: BTreeMap::new(),
        };
        self.wake_all(owner);
    }

    /// What may befall owners between two plans.
    fn happen(&mut self) {
        if self.ways.environment && self.dice.one_in(4) {
            self.step_environment();
        }
        let owner = self.dice.below(self.owners.len());
        if self.ways.stale && self.dice.one_in(2) {
            let resources: Vec<_> = self.resources.iter().copied().collect();
            if !resources.is_empty() {
                let resource = resources[self.dice.below(resources.len())];
                let seen = self.seen(owner, resource);
                let behind = self.history.len() - 1 - seen;
                if behind > 0 {
                    let to = seen + 1 + self.dice.below(behind);
                    self.advance(owner, resource, to);
                }
            }
        }
        if self.ways.forgets && self.dice.one_in(24) {
            // A takeover: nothing is handed over; every key is reconciled again.
            let fresh = &mut self.owners[owner];
            fresh.memories.clear();
            fresh.timers.clear();
            fresh.retries.clear();
            fresh.marks.clear();
            self.wake_all(owner);
        }
    }

    fn seen(&self, owner: usize, resource: &'static Resource) -> usize {
        self.owners[owner].seen.get(resource).copied().unwrap_or(0)
    }

    /// Which key is worked on next.
    fn pick(&mut self) -> Option<(usize, Task)> {
        let busy: Vec<usize> = (0..self.owners.len())
            .filter(|owner| !self.owners[*owner].queue.is_empty())
            .collect();
        if busy.is_empty() {
            return None;
        }
        let varied = self.ways.seed != 0;
        let owner = if varied {
            busy[self.dice.below(busy.len())]
        } else {
            busy[0]
        };
        let queue = &self.owners[owner].queue;
        let nth = if varied {
            self.dice.below(queue.len())
        } else {
            0
        };
        let task = queue.iter().nth(nth).cloned()?;
        self.owners[owner].queue.remove(&task);
        Some((owner, task))
    }

    /// Brings every cache to the present; whether any was behind.
    fn catch_up(&mut self) -> bool {
        let last = self.history.len() - 1;
        let mut moved = false;
        for owner in 0..self.owners.len() {
            for resource in self.resources.clone() {
                if self.seen(owner, resource) < last {
                    moved |= self.advance(owner, resource, last);
                }
            }
        }
        moved
    }

    /// Brings one cache of an owner to a point of history and wakes what the changes name; whether anything
    /// changed.
    fn advance(&mut self, owner: usize, resource: &'static Resource, to: usize) -> bool {
        let (built, known) = (self.built, &mut self.known);
        let Owner {
            cache, seen, queue, ..
        } = &mut self.owners[owner];
        seen.insert(resource, to);
        let of = |world: &World| -> BTreeMap<Key, AnyObject> {
            world
                .objects
                .iter()
                .filter(|((held, _), _)| *held == resource)
                .map(|((_, key), object)| (key.clone(), object.clone()))
                .collect()
        };
        let (before, after) = (of(cache), of(&self.history[to]));
        cache.objects.retain(|(held, _), _| *held != resource);
        cache.heartbeats.retain(|(held, _), _| *held != resource);
        let beats = self.history[to].heartbeats.iter();
        let of_resource = beats.filter(|((held, _), _)| *held == resource);
        cache
            .heartbeats
            .extend(of_resource.map(|(place, beat)| (place.clone(), *beat)));
        for (key, object) in &after {
            cache
                .objects
                .insert((resource, key.clone()), object.clone());
        }
        if names::has_generated(resource) {
            // Includes what came and went in between: a watch delivers its deletion.
            let removed = Arc::make_mut(&mut cache.removed);
            removed.retain(|(held, _), _| *held != resource);
            let of_resource = self.history[to].removed.iter();
            let of_resource = of_resource.filter(|((held, _), _)| *held == resource);
            removed.extend(of_resource.map(|(place, at)| (place.clone(), *at)));
        }
        match resource.plural {
            "nodes" => cache.taints.clone_from(&self.history[to].taints),
            "pods" => cache.arrivals.clone_from(&self.history[to].arrivals),
            _ => {}
        }
        let mut changes: Vec<(Option<&AnyObject>, Option<&AnyObject>)> = Vec::new();
        for key in before.keys().chain(after.keys()).collect::<BTreeSet<_>>() {
            let (old, new) = (before.get(key), after.get(key));
            match (old, new) {
                (Some(one), Some(other)) if one.metadata().uid != other.metadata().uid => {
                    changes.push((old, None));
                    changes.push((None, new));
                }
                (Some(one), Some(other))
                    if one.metadata().resource_version == other.metadata().resource_version => {}
                _ => changes.push((old, new)),
            }
        }
        for (old, new) in &changes {
            for (number, controller) in built.iter().enumerate() {
                for key in controller.woken(*old, *new, cache) {
                    known.insert((number, key.clone()));
                    queue.insert((number, key));
                }
            }
        }
        !changes.is_empty()
    }

    /// All keys that the objects in an owner's cache wake, and all that were ever known.
    fn wake_all(&mut self, owner: usize) {
        let cache = &self.owners[owner].cache;
        let mut tasks = self.known.clone();
        for object in cache.objects.values() {
            for (number, controller) in self.built.iter().enumerate() {
                let keys = controller.woken(None, Some(object), cache);
                tasks.extend(keys.into_iter().map(|key| (number, key)));
            }
        }
        self.known.extend(tasks.iter().cloned());
        self.owners[owner].queue.extend(tasks);
    }

    fn step_environment(&mut self) -> bool {
        let mut world = self.present().clone();
        let changed = world.step();
        if changed {
            self.push(world);
        }
        changed
    }

    fn push(&mut self, world: World) {
        self.history.push(world);
        self.count_children();
        for owner in &mut self.owners {
            owner.retries.values_mut().for_each(|tried| *tried = 0);
        }
        if !self.ways.stale {
            self.catch_up();
        }
    }

    /// Working children: not being deleted, and, if they are pods, not finished.
    fn count_children(&mut self) {
        let mut counts = Peaks::new();
        for object in self.present().objects.values() {
            let meta = object.metadata();
            let over = object.as_any().downcast_ref::<Pod>().is_some_and(|pod| {
                let phase = pod.status.as_ref().map_or("", |status| &status.phase);
                matches!(phase, "Succeeded" | "Failed")
            });
            if let Some(owner) = meta
                .controller()
                .filter(|_| !over && !meta.is_terminating())
            {
                let (resource, namespace) = (object.resource(), &meta.namespace);
                let name = format!("{resource:?} of {} {namespace}/{}", owner.kind, owner.name);
                *counts.entry(name).or_default() += 1;
            }
        }
        for (name, count) in counts {
            let peak = self.peaks.entry(name).or_default();
            *peak = (*peak).max(count);
        }
    }

    /// Queues keys that failed or refused before; whether any has retries left.
    fn retry(&mut self) -> bool {
        let mut any = false;
        for owner in &mut self.owners {
            for (task, tried) in &mut owner.retries {
                if *tried < RETRIES_MAX {
                    *tried += 1;
                    any = true;
                    owner.queue.insert(task.clone());
                }
            }
        }
        any
    }

    /// One reconcile.
    fn work(&mut self, owner: usize, task: &Task) {
        self.plans += 1;
        assert!(
            self.plans <= PLANS_MAX,
            "no rest after {PLANS_MAX} plans;{}",
            self.tale()
        );
        self.reach_marks(owner, task);
        let built = &self.built[task.0];
        let mut memory = self.owners[owner]
            .memories
            .remove(task)
            .unwrap_or_else(|| built.controller.new_memory());
        if self.ways.forgets && self.dice.one_in(3) {
            memory = if self.dice.one_in(2) {
                built.controller.new_memory()
            } else {
                built.copy(&memory)
            };
        }
        let planned = self.plan(owner, task, &mut memory);
        // What a plan says that it rests on must have been seen: the node proves it, or drops the plan.
        let unseen: Vec<&'static Resource> = planned
            .iter()
            .flat_map(|plan| &plan.counted)
            // After a takeover, and where an answer was lost, whatever was counted.
            .filter(|counted| counted.since > 0 || self.ways.harms)
            .map(|counted| counted.resource)
            .filter(|resource| self.seen(owner, resource) < self.history.len() - 1)
            .collect();
        if !unseen.is_empty() {
            for resource in unseen {
                self.advance(owner, resource, self.history.len() - 1);
            }
            self.owners[owner].queue.insert(task.clone());
            self.owners[owner].memories.insert(task.clone(), memory);
            return;
        }
        match planned {
            Ok(plan) => {
                let retries = &mut self.owners[owner].retries;
                match &plan.failure {
                    Some(_) => {
                        retries.entry(task.clone()).or_default();
                    }
                    None => {
                        retries.remove(task);
                    }
                }
                self.apply(owner, task, &plan, &mut memory);
            }
            Err(refusal) => {
                self.note(format!("{} refuses: {refusal}", self.name(owner, task)));
                if matches!(refusal, Refusal::Retry(_) | Refusal::Expected(_)) {
                    self.owners[owner].retries.entry(task.clone()).or_default();
                } else {
                    self.owners[owner].retries.remove(task);
                }
            }
        }
        self.owners[owner].memories.insert(task.clone(), memory);
    }

    /// A key is not planned before the cache has its own last writes.
    fn reach_marks(&mut self, owner: usize, task: &Task) {
        let marks = self.owners[owner]
            .marks
            .get(task)
            .cloned()
            .unwrap_or_default();
        for (resource, version) in marks {
            let seen = self.seen(owner, resource);
            if self.history[seen].resource_version >= version {
                continue;
            }
            let reached = (seen..self.history.len())
                .find(|place| self.history[*place].resource_version >= version)
                .expect("what was written is in the present");
            self.advance(owner, resource, reached);
        }
        // Advancing may have woken this very key.
        self.owners[owner].queue.remove(task);
    }

    /// Plans twice, by two controllers, and checks what must hold of every plan.
    fn plan(&mut self, owner: usize, task: &Task, memory: &mut Memory) -> Result<Plan, Refusal> {
        let built = &self.built[task.0];
        let name = self.name(owner, task);
        let now = self.present().now;
        self.owners[owner].cache.now = now;
        let view = built.view(&self.owners[owner].cache);
        let none = Answers::new();
        let queries = built
            .controller
            .ask(&task.1, &Snapshot::new(&view, &none, now), memory);
        let answers = self.present().answer(queries);
        let seen = Snapshot::new(&view, &answers, now);
        let mut copy = built.copy(memory);
        let plan = built.controller.plan(&task.1, &seen, memory);
        let again = built.twin.plan(&task.1, &seen, &mut copy);
        assert!(
            plan == again,
            "{name}: same input, two plans\n  {}\n  {}",
            show(&plan),
            show(&again)
        );
        assert_eq!(
            built.controller.pack(memory),
            built.twin.pack(&copy),
            "{name}: same input, two memories"
        );
        if let Ok(plan) = &plan {
            check_plan(&name, built, &task.1, &self.owners[owner].cache, plan);
        }
        plan
    }

    fn apply(&mut self, owner: usize, task: &Task, plan: &Plan, memory: &mut Memory) {
        let mut world = self.present().clone();
        let (loses, dice) = (self.ways.loses && self.ways.seed != 0, &mut self.dice);
        let applied = world.apply_with(plan, &mut |_| {
            if !loses || !dice.one_in(12) {
                Fault::None
            } else if dice.one_in(2) {
                Fault::Lost
            } else {
                Fault::AnswerLost
            }
        });
        let version = world.resource_version;
        let changed = version != self.present().resource_version;
        let verbs = plan.verbs();
        if !verbs.is_empty() || !plan.events.is_empty() {
            self.note(format!(
                "{} plans {verbs:?}, failed {:?}",
                self.name(owner, task),
                applied.failures()
            ));
            self.written.push(plan.clone());
        }
        let mut reuses = Vec::new();
        let controller = &self.built[task.0].controller;
        let of_owner = &mut self.owners[owner];
        let marks = of_owner.marks.entry(task.clone()).or_default();
        let mut mark = |resource: &'static Resource, version: u64| {
            let held = marks.entry(resource).or_default();
            *held = (*held).max(version);
        };
        for (action, result) in &applied.0 {
            if result.is_ok()
                && let Some(reused) = reused(&self.history, action)
            {
                reuses.push(reused);
            }
            match result {
                Ok(written) => mark(action.resource, written.resource_version),
                // The cache will show the truth; only then is the key planned again.
                Err(failure) if failure.class().severity == Severity::Race => {
                    mark(action.resource, version);
                }
                Err(_) => {}
            }
            controller.learn(
                &Outcome {
                    action,
                    result: result.as_ref().cloned(),
                },
                memory,
            );
        }
        if !applied.failures().is_empty() {
            of_owner.retries.entry(task.clone()).or_default();
        }
        of_owner.timers.remove(task);
        match plan.requeue {
            Requeue::Never => {}
            Requeue::Now => {
                of_owner.queue.insert(task.clone());
            }
            Requeue::At(at) if at <= world.now => {
                of_owner.queue.insert(task.clone());
            }
            Requeue::At(at) => {
                of_owner.timers.insert(task.clone(), at);
            }
        }
        assert!(
            reuses.is_empty(),
            "names were used twice within an hour: {reuses:?};{}",
            self.tale()
        );
        if changed {
            self.push(world);
        } else {
            // Events alone.
            *self.history.last_mut().expect("never empty") = world;
        }
    }

    /// At rest nothing is left to do for any key, whether or not a change has woken it.
    fn check_rest(&mut self) {
        for owner in 0..self.owners.len() {
            self.wake_all(owner);
            let tasks = std::mem::take(&mut self.owners[owner].queue);
            for task in tasks {
                if self.owners[owner].retries.contains_key(&task) {
                    continue;
                }
                let built = &self.built[task.0];
                let mut memory = match self.owners[owner].memories.get(&task) {
                    Some(memory) => built.copy(memory),
                    None => built.controller.new_memory(),
                };
                let name = self.name(owner, &task);
                if let Ok(plan) = self.plan(owner, &task, &mut memory) {
                    assert!(
                        plan.is_nothing(),
                        "{name}: no change has woken it, yet it would {:?} and record {:?};{}",
                        plan.verbs(),
                        plan.events,
                        self.tale()
                    );
                    assert_ne!(
                        plan.requeue,
                        Requeue::Now,
                        "{name}: has nothing to do and wants to do it again at once"
                    );
                }
            }
        }
    }

    fn name(&self, owner: usize, task: &Task) -> String {
        format!(
            "{} of owner {owner} on {}",
            self.built[task.0].descriptor().name,
            task.1
        )
    }

    fn note(&mut self, line: String) {
        if self.recent.len() == PLANS_SHOWN {
            self.recent.pop_front();
        }
        self.recent.push_back(line);
    }

    /// What happened last, for a panic's message.
    fn tale(&self) -> String {
        let mut tale = format!("\n{:?}; at last:", self.ways);
        for line in &self.recent {
            tale.push_str("\n  ");
            tale.push_str(line);
        }
        tale
    }
}

/// The name that a creation has given to a child, if another child had it within the last hour.
fn reused(history: &[World], action: &Action) -> Option<String> {
    let Verb::Create { body } = &action.verb else {
        return None;
    };
    let object = server::read_body(action.resource, body).ok()?;
    let before = history.last()?;
    let used = crate::Reader::name_used(
        before,
        action.resource,
        &action.key.namespace,
        &action.key.name,
    );
    (used && names::is_generated(object.metadata())).then(|| action.key.to_string())
}

/// A plan to be read: bodies as JSON.
fn show(plan: &Result<Plan, Refusal>) -> String {
    let plan = match plan {
        Ok(plan) => plan,
        Err(refusal) => return format!("refused: {refusal:?}"),
    };
    let mut text = format!("{:?}, {:?}, {:?}", plan.requeue, plan.counted, plan.events);
    for action in plan.actions() {
        let detail = match &action.verb {
            Verb::Create { body } => match server::read_body(action.resource, body) {
                Ok(object) => object.to_json().to_string(),
                Err(error) => error,
            },
            other => format!("{other:?}"),
        };
        text.push_str(&format!("\n    {action} {}: {detail}", action.uid));
    }
    text
}

/// What must hold of every plan, whatever it was made from.
fn check_plan(name: &str, built: &Built, key: &Key, cache: &World, plan: &Plan) {
    let descriptor = built.descriptor();
    let primary = built.watches.subscriptions.first();
    let primary = primary.map(|subscription| subscription.resource);
    if let Err(breach) = postconditions::check(descriptor, primary, key, plan, &built.view(cache)) {
        panic!("{name}: {breach}");
    }
    check_measures(name, descriptor, plan);
    for action in plan.actions() {
        let generated = match &action.verb {
            Verb::Create { body } => check_create(name, action, body),
            Verb::Patch { .. } | Verb::Delete { .. } => check_seen(name, action, cache),
            Verb::DeleteCollection { .. } | Verb::Replace { .. } => false,
        };
        // The number of a controller's children rests on how many were seen: after a takeover the node counts
        // them.
        let counts = !built.descriptor().one_by_one;
        if generated && counts && !matches!(action.verb, Verb::Patch { .. }) {
            assert!(
                plan.counted.iter().any(|counted| {
                    counted.resource == action.resource
                        && (counted.namespace.is_empty()
                            || counted.namespace == action.key.namespace)
                }),
                "{name}: {action} makes or deletes a generated child, but the plan doesn't say which were counted"
            );
        }
    }
}

/// A plan measures declared metrics alone, each with as many labels as were declared.
fn check_measures(name: &str, descriptor: &Descriptor, plan: &Plan) {
    let of_actions = plan
        .actions()
        .filter_map(|action| action.announcement.as_ref());
    let of_actions = of_actions.flat_map(|announcement| {
        announcement
            .measures
            .iter()
            .chain(&announcement.failure_measures)
    });
    let of_plan = [
        &plan.measures,
        &plan.timings,
        &plan.on_failure.measures,
        &plan.on_failure.timings,
    ];
    for measure in of_plan.into_iter().flatten().chain(of_actions) {
        assert!(
            descriptor.metrics.iter().any(|spec| {
                spec.name == measure.name && spec.labels.len() == measure.labels.len()
            }),
            "{name} measures {} with labels {:?}, which it has not declared so",
            measure.name,
            measure.labels
        );
    }
}

/// A create names its object, so that a second one collides. Whether the object is a generated child.
fn check_create(name: &str, action: &Action, body: &[u8]) -> bool {
    let object = server::read_body(action.resource, body).unwrap_or_else(|error| {
        panic!("{name}: {action} has a body that can't be decoded: {error}")
    });
    let meta = object.metadata();
    assert!(
        !meta.name.is_empty() && Key::of_meta(meta) == action.key,
        "{name}: {action} is for {} but its body is named {:?}",
        action.key,
        meta.name
    );
    assert!(
        meta.uid.is_empty() && meta.resource_version == 0,
        "{name}: {action} sets a uid or a resourceVersion"
    );
    meta.controller().is_some()
}

/// A patch or delete is for the very object that was seen. Whether that is a generated child.
fn check_seen(name: &str, action: &Action, cache: &World) -> bool {
    assert!(!action.uid.is_empty(), "{name}: {action} carries no uid");
    if let Verb::Patch {
        subresource: "scale",
        ..
    } = action.verb
    {
        // A scale is always read live: it is of any kind, watched or not.
        assert_ne!(
            action.resource_version, 0,
            "{name}: {action} carries no version"
        );
        return false;
    }
    if action.is_rewrite() {
        // A rewritten object comes from a live list, watched or not.
        assert_ne!(
            action.resource_version, 0,
            "{name}: {action} carries no version"
        );
        return false;
    }
    let seen = cache
        .objects
        .get(&(action.resource, action.key.clone()))
        .filter(|object| object.metadata().uid == action.uid)
        .unwrap_or_else(|| {
            panic!(
                "{name}: {action} is for uid {}, which was not seen",
                action.uid
            )
        });
    let version = seen.metadata().resource_version;
    let insists = matches!(
        action.verb,
        Verb::Delete {
            only: Only::ThisVersion,
            ..
        }
    );
    assert!(
        action.resource_version == version || (action.resource_version == 0 && !insists),
        "{name}: {action} expects version {}, but {version} was seen",
        action.resource_version
    );
    seen.metadata().controller().is_some()
}
