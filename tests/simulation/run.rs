//! One run: a workload, a fleet, faults by seed, then quiet, and the comparison with the undisturbed run.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    sync::{Arc, Mutex, Once, PoisonError},
    time::Duration,
};

use clap::ValueEnum as _;
use controllers_kit::{Key, Reader as _, Timestamp, heartbeat, testing::World};
use kubernetes_proto::{
    Object,
    core::{Node, Pod},
};
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    attachments, claims, clearing,
    dice::{self, Dice},
    heartbeats::{RENEWED_EVERY, SILENT},
    hub::{Counts, Edit, Hub, Outage},
    identity, mistakes,
    mutants::Mutant,
    replica::{Fleet, RANGES, Stage, simulated},
    server::{Log, Server},
    storage,
    workloads::{self, Workload},
};

/// Replicas of a disturbed run at the start, and at most.
const REPLICAS: (usize, usize) = (3, 5);
/// Without a write for so long, whatever it has come to is its end: longer than any back-off or timer of a
/// workload.
const STILL: Duration = Duration::from_secs(110);
/// Nothing takes longer.
const PATIENCE: Duration = Duration::from_secs(1200);
/// How long writes are waited for that must not come.
const AT_REST: Duration = Duration::from_secs(4);

/// What is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Decides everything.
    pub seed: u64,
    /// Whose workload; where none is named, the one in which the deliberate fault shows, or by seed.
    pub controller: Option<String>,
    /// A deliberate fault.
    pub mutant: Option<Mutant>,
    /// Whether the record is printed as it is written.
    pub loud: bool,
}

impl Options {
    /// Of a seed.
    pub fn seed(seed: u64) -> Self {
        Self {
            seed,
            controller: None,
            mutant: None,
            loud: false,
        }
    }
}

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// Its seed.
    pub seed: u64,
    /// Whose workload.
    pub controller: String,
    /// All that happened, in one number.
    pub hash: u64,
    /// What must not have been.
    pub violation: Option<String>,
    /// The last lines of the record.
    pub tale: String,
    /// The deliberate fault that was tried.
    pub mutant: Option<Mutant>,
    /// Counted.
    pub counts: Counts,
    /// The controllers that have written.
    pub wrote: BTreeSet<String>,
    /// How often an autoscaler has made its target smaller.
    pub shrunk: u64,
    /// How long it lasted, in the cluster's time.
    pub lasted: Duration,
    /// What the cluster had come to.
    pub rest: Vec<String>,
}

impl Report {
    /// The command that does it again.
    pub fn replay(&self) -> String {
        let mutant = self
            .mutant
            .and_then(|mutant| mutant.to_possible_value())
            .map_or_else(String::new, |value| {
                format!(" --mutant {}", value.get_name())
            });
        format!(
            "cargo simulate --seed {} --controller {}{mutant}",
            self.seed, self.controller
        )
    }

    /// # Panics
    /// With the record, where something was that must not be.
    pub fn expect_well(&self) {
        if let Some(violation) = &self.violation {
            panic!(
                "seed {} ({}): {violation}\nreplay: {}{}",
                self.seed,
                self.controller,
                self.replay(),
                self.tale
            );
        }
    }
}

/// The controllers by name: all that are registered are simulated, but for those that the server can't serve.
pub fn controllers() -> Vec<&'static str> {
    simulated()
        .iter()
        .map(|factory| (factory.describe)().name)
        .collect()
}

/// Runs a seed.
pub fn run(options: &Options) -> Report {
    let served = controllers();
    let names = workloads::ALL.iter().map(|entry| entry.controller);
    let names: Vec<&str> = names.filter(|name| served.contains(name)).collect();
    let shown = options.mutant.and_then(Mutant::controller);
    let named = options.controller.clone().or(shown.map(str::to_owned));
    let controller = named.unwrap_or_else(|| {
        let place = usize::try_from(options.seed % names.len() as u64).expect("few workloads");
        names[place].to_owned()
    });
    let variant = Dice::new(options.seed).bits() % workloads::variants(&controller);
    let expected = undisturbed(&controller, variant);
    perform(options, &controller, variant, Some(expected))
}

/// What workloads come to, by controller and variant.
type Ends = BTreeMap<(String, u64), Arc<Vec<String>>>;

/// What a workload comes to when nothing disturbs it.
fn undisturbed(controller: &str, variant: u64) -> Arc<Vec<String>> {
    static KNOWN: Mutex<Ends> = Mutex::new(Ends::new());
    let place = (controller.to_owned(), variant);
    let known = KNOWN
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .get(&place)
        .cloned();
    if let Some(rest) = known {
        return rest;
    }
    let report = perform(&Options::seed(variant), controller, variant, None);
    report.expect_well();
    let rest = Arc::new(report.rest);
    KNOWN
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .insert(place, Arc::clone(&rest));
    rest
}

thread_local! {
    static SIMULATING: Cell<bool> = const { Cell::new(false) };
    static PANICS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// The runtime swallows panics of its tasks; here each of them is a violation.
fn listen_for_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let say = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if SIMULATING.get() {
                PANICS.with_borrow_mut(|panics| panics.push(panic.to_string()));
            } else {
                say(panic);
            }
        }));
    });
}

/// A run, disturbed if it is known what it must come to.
fn perform(
    options: &Options,
    controller: &str,
    variant: u64,
    expected: Option<Arc<Vec<String>>>,
) -> Report {
    listen_for_panics();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without threads or sockets");
    SIMULATING.set(true);
    let dice = Dice::new(options.seed);
    dice::seed_thread(dice.fork(1));
    let workload = workloads::workload(controller, variant);
    mistakes::begin(options.mutant);
    let report = runtime.block_on(async {
        let server = Server::new(workload.world.clone());
        let hub = Hub::new(server, dice.fork(2), options.mutant, options.loud);
        let fleet = Fleet::new(&hub);
        let director = Director {
            hub: Arc::clone(&hub),
            fleet: Rc::clone(&fleet),
            dice: dice.fork(3),
            actors: storage::Actors::new(workload.storage),
            workload,
            expected,
            idle_at: 0,
        };
        let lasted = Stage {
            director: Box::pin(director.direct()),
            fleet,
        }
        .await;
        // What a replica shows of itself leads back to the hub: it would be kept for as long as the process
        // lives. What is let go may ask the hub something, so that is done outside.
        let shown = hub.with(|state| std::mem::take(&mut state.replicas));
        drop(shown);
        hub.with(|state| Report {
            seed: options.seed,
            controller: controller.to_owned(),
            hash: state.hash(),
            violation: state.violation().map(str::to_owned),
            tale: state.tale(),
            mutant: options.mutant,
            counts: state.counts,
            wrote: state.wrote.clone(),
            shrunk: state.judge.scaling.shrunk,
            lasted,
            rest: normal(&state.server.world),
        })
    });
    drop(runtime);
    SIMULATING.set(false);
    report
}

/// What is in a ReplicaSet whose number was given again: the numbers that it has had.
const HISTORY: &str = ",\"deployment.kubernetes.io/revision-history\":\"";

/// What two runs of a workload have in common: kit's normal form, without the numbers of revisions, which say
/// how many were seen on the way.
/// Without references of service accounts to Secrets that are gone: they stay where the manager died before
/// it saw the deletion, as upstream's.
fn without_dangling(lines: Vec<String>) -> Vec<String> {
    let there: BTreeSet<String> = lines
        .iter()
        .filter(|line| line.starts_with("secrets"))
        .filter_map(|line| line.split(' ').nth(1).map(str::to_owned))
        .collect();
    let without = |line: String| {
        let mut parts = line.splitn(3, ' ');
        let (Some("serviceaccounts"), Some(key), Some(value)) =
            (parts.next(), parts.next(), parts.next())
        else {
            return line;
        };
        let namespace = key.split('/').next().unwrap_or_default();
        let mut value: Value = serde_json::from_str(value).expect("a line ends in JSON");
        if let Some(held) = value.get_mut("secrets").and_then(Value::as_array_mut) {
            held.retain(|one| {
                let name = one["name"].as_str().unwrap_or_default();
                there.contains(&format!("{namespace}/{name}"))
            });
        }
        format!("serviceaccounts {key} {value}")
    };
    lines.into_iter().map(without).collect()
}

fn normal(world: &World) -> Vec<String> {
    let mut lines: Vec<String> = without_dangling(world.rest())
        .into_iter()
        .map(|line| {
            let mut line = line;
            for (before, after) in [
                ("\"deployment.kubernetes.io/revision\":\"", "\""),
                ("\"deprecated.daemonset.template.generation\":\"", "\""),
                ("\"pod-template-generation\":\"", "\""),
            ] {
                line = without_value(&line, before, after);
            }
            line = alike(&line);
            line = without_value(&line, HISTORY, "\"").replace(&format!("{HISTORY}\""), "");
            // A Job that was let go before it was seen has never been suspended. One whose pods had all ended
            // before it could be reported that it continues is complete and suspended at once: upstream's
            // reports of no more than the end.
            let reported = match line.contains("{\"status\":\"True\",\"type\":\"Complete\"}") {
                true => &["True", "False"][..],
                false => &["False"],
            };
            for status in reported {
                let suspended = format!("{{\"status\":\"{status}\",\"type\":\"Suspended\"}}");
                line = line.replace(&format!("{suspended},"), "");
                line = line.replace(&format!(",{suspended}"), "");
            }
            // A volume that was never attached is another's end as well.
            if line.starts_with("persistentvolumes ") {
                let held = format!("\"{}\"", attachments::FINALIZER);
                line = line.replace(&format!(",{held}"), "");
                line = line.replace(&format!("{held},"), "");
            }
            if line.starts_with("controllerrevisions") {
                line = without_value(&line, "\"revision\":", "}");
            }
            line
        })
        .collect();
    lines.sort();
    lines
}

/// Digits of a SHA-256 in hexadecimal.
const DIGEST: usize = 64;

/// Without the numbers of volumes that are one like another, of those that were made for claims whose uids
/// were counted, and without the digests of those in the names of attachments.
fn alike(line: &str) -> String {
    let mut kept = String::new();
    let mut rest = line;
    let next = |rest: &str| {
        let places = [workloads::storage::ANY, "pvc-uid-", "disk-uid-"]
            .into_iter()
            .filter_map(|before| rest.find(before).map(|place| place + before.len()));
        places.min()
    };
    while let Some(place) = next(rest) {
        let (head, tail) = rest.split_at(place);
        kept.push_str(head);
        rest = tail.trim_start_matches(|char: char| char.is_ascii_digit());
    }
    kept.push_str(rest);
    without_digests(&kept)
}

fn without_digests(line: &str) -> String {
    let mut parts = line.split("csi-");
    let mut kept = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        kept.push_str("csi-");
        let tail = part.trim_start_matches(|char: char| char.is_ascii_hexdigit());
        kept.push_str(match part.len() - tail.len() {
            DIGEST => tail,
            _ => part,
        });
    }
    kept
}

fn without_value(line: &str, before: &str, after: &str) -> String {
    let mut kept = String::new();
    let mut rest = line;
    while let Some(place) = rest.find(before) {
        let (head, tail) = rest.split_at(place + before.len());
        kept.push_str(head);
        let end = tail.find(after).unwrap_or(tail.len());
        rest = &tail[end..];
    }
    kept.push_str(rest);
    kept
}

struct Director {
    hub: Arc<Hub>,
    fleet: Rc<Fleet>,
    dice: Dice,
    actors: storage::Actors,
    workload: Workload,
    expected: Option<Arc<Vec<String>>>,
    /// The version at which nobody else had anything to do.
    idle_at: u64,
}

impl Director {
    /// Runs all of it; how long it lasted.
    async fn direct(mut self) -> Duration {
        let start = Instant::now();
        let disturbed = self.expected.is_some();
        let replicas = if disturbed { REPLICAS.0 } else { 1 };
        for replica in 0..replicas {
            self.fleet.start(replica);
        }
        let mut deeds = std::mem::take(&mut self.workload.deeds);
        deeds.sort_by_key(|(at, _)| *at);
        let mut deeds = deeds.into_iter().peekable();
        // The fleet comes together first.
        let calm_until = start + Duration::from_secs(6);
        let faults_end = calm_until + self.workload.faults;
        let mut next_fault = calm_until;
        let mut next_step = start;
        let mut next_renewal = start;
        let mut healed = !disturbed;
        let mut last = ((0, 0), start);
        let mut comparison = Instant::now();
        loop {
            tokio::time::sleep_until(self.next(next_step, next_fault, healed, &mut deeds, start))
                .await;
            let now = Instant::now();
            if self.is_over(start) {
                break;
            }
            if now >= next_renewal {
                next_renewal = now + RENEWED_EVERY;
                renew(&self.hub);
            }
            if now >= next_step {
                next_step = now + self.dice.millis(20, 150);
                self.step();
            }
            while deeds.peek().is_some_and(|(at, _)| start + *at <= now) {
                if let Some((_, deed)) = deeds.next() {
                    self.hub.with(|state| state.others("user", deed));
                }
            }
            if disturbed && !healed && now >= next_fault {
                self.hub.with(|state| state.faulty = true);
                next_fault = now + self.dice.millis(100, 3500);
                if now >= faults_end {
                    healed = true;
                    self.heal(replicas);
                    // One that waits for a timer may have begun to only when the faults ended.
                    last.1 = now;
                } else {
                    self.fault();
                }
            }
            // A new owner of a key may wait for a timer from its beginning.
            let version = self
                .hub
                .with(|state| (state.server.world.version(), state.counts.moves));
            if version != last.0 {
                last = (version, now);
            }
            let still = now - last.1;
            if !healed || deeds.peek().is_some() || still < self.workload.quiet {
                continue;
            }
            match &self.expected {
                None if still >= STILL => break,
                None => {}
                Some(expected) => {
                    if now < comparison {
                        continue;
                    }
                    comparison = now + Duration::from_secs(1);
                    let rests: Vec<_> = self.hub.with(|state| {
                        let ends = state.judge.without_late(&state.server);
                        ends.map(|end| normal(&end)).collect()
                    });
                    let under_way = self.hub.with(|state| state.under_way);
                    let is_done = self.workload.awaited.is_empty();
                    if rests.contains(&**expected) && is_done && self.is_owned() && under_way == 0 {
                        self.check_rest().await;
                        break;
                    }
                    if still >= STILL && self.fleet.quarantined() == 0 {
                        let expected = Arc::clone(expected);
                        self.hub
                            .with(|state| state.violate(another_rest(&expected, &rests[0])));
                        break;
                    }
                }
            }
        }
        self.hub.with(|state| {
            if let Some(left) = clearing::leftovers(&state.server).into_iter().next() {
                state.violate(format!("at the end {left}"));
            }
            let undone = self.workload.awaited.first();
            let undone =
                undone.map(|one| format!("{}: not done yet: {}", storage::PROGRESS, one.what));
            let unequal = match disturbed {
                true => None,
                false => state.judge.devices.at_an_undisturbed_end(&state.server),
            };
            let wrong = claims::at_the_end(&state.server)
                .into_iter()
                .chain(storage::at_the_end(&state.server))
                .chain(identity::at_the_end(&state.server.world))
                .chain(unequal)
                .chain(undone);
            for what in wrong {
                state.violate(format!("at the end {what}"));
            }
        });
        self.is_over(start);
        start.elapsed()
    }

    fn next(
        &self,
        step: Instant,
        fault: Instant,
        healed: bool,
        deeds: &mut std::iter::Peekable<impl Iterator<Item = (Duration, impl Sized)>>,
        start: Instant,
    ) -> Instant {
        let mut next = step;
        if !healed {
            next = next.min(fault);
        }
        if let Some((at, _)) = deeds.peek() {
            next = next.min(start + *at);
        }
        next
    }

    /// Whether there is no going on.
    fn is_over(&self, start: Instant) -> bool {
        let panics = PANICS.take();
        self.hub.with(|state| {
            for panic in panics {
                state.violate(format!("a panic: {panic}"));
            }
            if start.elapsed() >= PATIENCE {
                state.violate(format!("no rest within {PATIENCE:?}"));
            }
            state.violation().is_some()
        })
    }

    /// Kubelets and scheduler do some of what they have to do.
    fn step(&mut self) {
        let (idle_at, dice) = (self.idle_at, &mut self.dice);
        let (actors, awaited) = (&mut self.actors, &mut self.workload.awaited);
        let idle = self.hub.with(|state| {
            if state.server.world.version() == idle_at {
                return true;
            }
            let mut left_out = false;
            let changed = state.others("cluster", |world| {
                world.step_where(&mut |_| {
                    let chosen = dice.chance(400);
                    left_out |= !chosen;
                    chosen
                });
            });
            let mut attachments = std::mem::take(&mut state.judge.attachments);
            let mut busy = false;
            state.others("storage", |world| busy = attachments.step(world, dice));
            state.judge.attachments = attachments;
            state.others("storage", |world| busy |= actors.step(world, dice));
            for wrong in actors.take_wrong() {
                state.violate(wrong);
            }
            for place in (0..awaited.len()).rev() {
                if (awaited[place].is_due)(&state.server.world) {
                    busy = true;
                    if dice.chance(300) {
                        let one = awaited.remove(place);
                        state.log(format_args!("{}", one.what));
                        state.others("user", one.deed);
                    }
                }
            }
            !changed && !busy && !left_out
        });
        if idle {
            self.idle_at = self.hub.with(|state| state.server.world.version());
        }
    }

    /// Something breaks.
    fn fault(&mut self) {
        let running = self.fleet.running();
        let dice = &mut self.dice;
        let of = |dice: &mut Dice, some: &[usize]| some[dice.below(some.len())];
        self.hub.with(|state| state.counts.faults += 1);
        match dice.below(21) {
            0..=3 if !running.is_empty() => {
                let replica = of(dice, &running);
                self.fleet.crash(replica);
                let edited = dice
                    .chance(80)
                    .then(|| (dice.millis(1, 3000), dice.below(usize::from(RANGES))));
                let (fleet, later) = (Rc::clone(&self.fleet), dice.millis(10, 9000));
                self.later(later, move || fleet.start(replica));
                if let Some((after, range)) = edited {
                    let hub = Arc::clone(&self.hub);
                    let names = [
                        format!("manifold-replica-r-{replica}"),
                        format!("manifold-range-{range:03}"),
                    ];
                    self.later(after, move || {
                        hub.with(|state| {
                            let faulty = state.faulty;
                            for name in names.iter().filter(|_| faulty) {
                                state.edit_by_hand(name, Edit::Delete);
                            }
                        });
                    });
                }
            }
            4..=6 if !running.is_empty() => {
                let replica = of(dice, &running);
                let length = dice.millis(100, 12_000);
                if !self.hub.is_paused(replica) {
                    self.hub.pause(replica, length);
                }
            }
            7 if !running.is_empty() => {
                let replica = of(dice, &running);
                let length = dice.millis(1000, 14_000);
                self.hub.with(|state| {
                    state.log(format_args!(
                        "no Leases for r-{replica} for {length:?}, all else continues"
                    ));
                    let seen = state.replicas.entry(replica).or_default();
                    seen.no_leases_until = Some(Instant::now() + length);
                });
            }
            8..=9 if !running.is_empty() => {
                let replica = of(dice, &running);
                let kind = if dice.chance(500) {
                    Outage::Refused
                } else {
                    Outage::Silent
                };
                let length = dice.millis(200, 9000);
                let all = dice.chance(250);
                self.hub.with(|state| {
                    state.log(format_args!(
                        "no API server for r-{replica} (all: {all}) for {length:?}: {kind:?}"
                    ));
                    for (number, seen) in &mut state.replicas {
                        if all || *number == replica {
                            seen.outage = Some((Instant::now() + length, kind));
                            seen.watches_broken += 1;
                        }
                    }
                });
            }
            10 if !running.is_empty() => {
                let replica = of(dice, &running);
                let length = dice.millis(500, 15_000);
                self.hub.with(|state| {
                    let catalogue = state.server.world.catalogue();
                    let all = catalogue.all().iter().map(|entry| Log::Of(entry.resource));
                    let some: BTreeSet<Log> = all.filter(|_| dice.chance(300)).collect();
                    state.log(format_args!(
                        "some watches of r-{replica} stand still for {length:?}: {some:?}"
                    ));
                    let seen = state.replicas.entry(replica).or_default();
                    seen.some_frozen_until = Some((some, Instant::now() + length));
                });
            }
            11 if !running.is_empty() => {
                let replica = of(dice, &running);
                let length = dice.millis(500, 15_000);
                let all = dice.chance(250);
                self.hub.with(|state| {
                    state.log(format_args!(
                        "the watches of r-{replica} (all: {all}) stand still for {length:?}"
                    ));
                    for (number, seen) in &mut state.replicas {
                        if all || *number == replica {
                            seen.freeze_watches(length);
                        }
                    }
                });
            }
            12 if !running.is_empty() => {
                let replica = of(dice, &running);
                let forgotten = dice.chance(500);
                self.hub.with(|state| {
                    state.log(format_args!(
                        "the watches of r-{replica} break (history forgotten: {forgotten})"
                    ));
                    state.replicas.entry(replica).or_default().watches_broken += 1;
                    if forgotten {
                        state.server.compact();
                    }
                });
            }
            13 | 14 if !running.is_empty() => {
                let replica = of(dice, &running);
                let length = dice.millis(500, 8000);
                self.hub.with(|state| {
                    state.log(format_args!("no peers for r-{replica} for {length:?}"));
                    let seen = state.replicas.entry(replica).or_default();
                    seen.cut_off_until = Some(Instant::now() + length);
                });
            }
            15 if running.len() < REPLICAS.1 => {
                if let Some(free) = (0..REPLICAS.1).find(|one| !running.contains(one)) {
                    self.fleet.start(free);
                }
            }
            16 if running.len() > 1 => {
                let replica = of(dice, &running);
                match dice.chance(500) {
                    true => self.fleet.leave(replica),
                    false => self.fleet.fail(replica),
                }
            }
            17 => {
                let leases: Vec<String> = self.hub.with(|state| {
                    state
                        .server
                        .leases()
                        .map(|(name, _)| name.to_owned())
                        .collect()
                });
                if !leases.is_empty() && dice.chance(300) {
                    let name = &leases[dice.below(leases.len())];
                    let edit = Edit::ALL[dice.below(Edit::ALL.len())];
                    self.hub.with(|state| state.edit_by_hand(name, edit));
                }
            }
            18 if !running.is_empty() => {
                // Renewals are late, so that the kubelet is asked, and late once more.
                let replica = of(dice, &running);
                let errs = dice.millis(2000, 20_000);
                let late = [dice.millis(1000, 3000), dice.millis(1000, 3000)];
                let again = dice.millis(3000, 8000);
                let delay = move |hub: &Hub, length: Duration| {
                    hub.with(|state| {
                        let seen = state.replicas.entry(replica).or_default();
                        let until = Instant::now() + length;
                        seen.no_leases_until = seen.no_leases_until.max(Some(until));
                    });
                };
                self.hub.with(|state| {
                    state.log(format_args!(
                        "the kubelet says for {errs:?} that r-{replica} has ended, whose renewals are late"
                    ));
                    let seen = state.replicas.entry(replica).or_default();
                    let now = Instant::now();
                    seen.misjudged = Some((now, now + errs));
                });
                delay(&self.hub, late[0]);
                let hub = Arc::clone(&self.hub);
                self.later(again, move || {
                    if hub.with(|state| state.faulty) {
                        delay(&hub, late[1]);
                    }
                });
            }
            _ if self.workload.pods_may_go => {
                let pods: Vec<Key> = self.hub.with(|state| {
                    let pods = state.server.world.all::<Pod>();
                    pods.iter()
                        .filter(|pod| !pod.is_terminating())
                        .map(|pod| Key::of_meta(Object::metadata(&**pod)))
                        .collect()
                });
                if !pods.is_empty() {
                    let pod = pods[dice.below(pods.len())].to_string();
                    self.hub
                        .with(|state| state.others("user", |world| world.delete::<Pod>(&pod)));
                }
            }
            _ => {}
        }
    }

    fn later(&self, after: Duration, run: impl FnOnce() + 'static) {
        self.fleet.later(after, Box::new(run));
    }

    /// All faults end.
    fn heal(&mut self, replicas: usize) {
        self.hub.with(|state| {
            state.log(format_args!("faults end"));
            state.faulty = false;
            for seen in state.replicas.values_mut() {
                seen.paused_until = None;
                seen.outage = None;
                seen.no_leases_until = None;
                seen.watches_frozen_until = None;
                let now = Instant::now();
                seen.misjudged = seen.misjudged.map(|(from, until)| (from, until.min(now)));
                seen.some_frozen_until = None;
                seen.cut_off_until = None;
            }
        });
        self.hub.healed.notify_waiters();
        self.hub.waker.wake();
        for replica in 0..replicas {
            self.fleet.start(replica);
        }
    }

    /// Whether every range has an owner, and only one.
    fn is_owned(&self) -> bool {
        self.hub.with(|state| {
            (0..RANGES).all(|range| {
                let owners = state
                    .replicas
                    .values()
                    .filter_map(|seen| seen.fence.as_ref())
                    .filter(|fence| {
                        fence
                            .epoch(range)
                            .is_some_and(|epoch| fence.check(range, epoch).is_ok())
                    })
                    .count();
                owners == 1
            })
        })
    }

    /// One that checks again at everything finds nothing to do.
    async fn check_rest(&self) {
        let version = self.hub.with(|state| state.server.world.version());
        self.fleet.wake_all();
        tokio::time::sleep(AT_REST).await;
        self.hub.with(|state| {
            if state.server.world.version() != version {
                state
                    .violate("at rest somebody wrote when all keys were examined again".to_owned());
            }
        });
    }
}

/// Kubelets renew their nodes' Leases; one of which the cluster thinks otherwise says that its node is
/// ready.
pub fn renew(hub: &Hub) {
    hub.with(|state| {
        let now = state.now();
        state.server.advance_to(now);
        let nodes = state.server.world.all::<Node>();
        let living = nodes
            .iter()
            .filter(|node| Object::metadata(&***node).label(SILENT).is_none());
        for node in living {
            let name = Object::metadata(&**node).name.to_string();
            state.server.renew(&name);
            if heartbeat::ready(node).is_some_and(|ready| ready.status != "True") {
                state.others("kubelet", |world| {
                    world.change::<Node>(&name, |node| say_ready(node, now));
                });
            }
        }
    });
}

/// What a kubelet says of its node.
fn say_ready(node: &mut Node, now: Timestamp) {
    let status = node.status.get_or_insert_default();
    for condition in &mut status.conditions {
        let is = if condition.r#type == "Ready" {
            "True"
        } else {
            "False"
        };
        if condition.status != is {
            is.clone_into(&mut condition.status);
            condition.last_transition_time = Some(now.into());
            condition.reason.clear();
            condition.message.clear();
        }
        condition.last_heartbeat_time = Some(now.into());
    }
}

/// How two ends differ.
fn another_rest(expected: &[String], rest: &[String]) -> String {
    let lacking = |of: &[String], from: &[String]| {
        let mut left = from.to_vec();
        let mut text = String::new();
        for line in of {
            match left.iter().position(|other| other == line) {
                Some(place) => {
                    left.swap_remove(place);
                }
                None => {
                    text.push_str("\n    ");
                    text.push_str(line);
                }
            }
        }
        text
    };
    format!(
        "another end than undisturbed\n  undisturbed:{}\n  so:{}",
        lacking(expected, rest),
        lacking(rest, expected)
    )
}
