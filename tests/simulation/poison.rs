//! A key that ends the replica that reconciles it, on the fleet of [`crate::run`], with no other fault: each
//! process that is about to write for one ReplicaSet ends at once, before anything has left it, and starts
//! again some seconds later.
//!
//! What must hold: from the third death on, every further one is of a process that reconciled the key alone,
//! as its Lease says; there are ever fewer of them; the other ReplicaSets are scaled all along; and once the
//! key kills no more it is served, and nothing is quarantined.

use std::{rc::Rc, sync::Arc, time::Duration};

use controllers_kit::{
    Reader as _,
    testing::{WorkloadBuild as _, World, namespace, node, replica_set},
};
use kubernetes_proto::{Object as _, apps::ReplicaSet, core::Pod};
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    dice::{self, Dice},
    hub::{Hub, State},
    replica::{Fleet, Stage},
    server::{Request, Server},
};

/// The ReplicaSet that kills.
const POISON: &str = "poison";
/// Those that don't.
const OTHERS: [&str; 4] = ["web", "api", "shop", "mail"];
/// How long it kills.
const KILLS_FOR: Duration = Duration::from_secs(900);
/// Deaths until the key is quarantined.
const DEATHS_UNNOTICED: usize = 3;
/// Deaths in all of [`KILLS_FOR`]: three, then alone at once, after one minute, after four more, and after
/// ten more.
const DEATHS_MAX: usize = 7;
/// The others are scaled this often, once the key is quarantined …
const SCALED_EVERY: Duration = Duration::from_secs(60);
/// … and served within this time: a fleet of one replica is down for up to 14 seconds after each of two
/// deaths.
const SERVED_WITHIN: Duration = Duration::from_secs(40);

/// The key that kills, as the network knows it.
#[derive(Debug, Default)]
pub struct Poison {
    /// Whether it kills at present.
    pub kills: bool,
    /// Whether Leases lose what they say of it on their way: nobody can learn from the deaths.
    pub blind: bool,
    /// What the Lease of each that died said of the key then: `!` for alone, `~` for announced, nothing.
    pub deaths: Vec<(Instant, String)>,
}

impl Poison {
    /// Whether a process ends that is about to send this.
    pub fn kills(&self, request: &Request) -> bool {
        let says = |text: &[u8]| {
            text.windows(POISON.len())
                .any(|part| part == POISON.as_bytes())
        };
        self.kills
            && request.writes()
            && !request.about_leases()
            && !request.path.ends_with("/events")
            && !request.path.contains("/events/")
            && (says(request.path.as_bytes()) || says(&request.body))
    }

    /// What arrives instead of a write of a Lease.
    pub fn lease(&self, request: &Request) -> Option<Request> {
        if !self.blind || !request.about_leases() || !request.writes() {
            return None;
        }
        let mut json: Value = serde_json::from_slice(&request.body).ok()?;
        let annotations = json["metadata"].get_mut("annotations")?.as_object_mut()?;
        for lost in ["working", "deaths", "last-owners"] {
            annotations.remove(&format!("manifold.dev/{lost}"));
        }
        let mut changed = request.clone();
        changed.body = json.to_string().into();
        Some(changed)
    }
}

impl State {
    /// A process has met the key that kills.
    pub fn dies_of_poison(&mut self, replica: usize) {
        if self.ended.contains(&replica) {
            return;
        }
        let lease = format!("-replica-r-{replica}");
        let named = self
            .server
            .leases()
            .find(|(name, _)| name.ends_with(&lease))
            .and_then(|(_, lease)| {
                let working = lease["metadata"]["annotations"]["manifold.dev/working"].as_str()?;
                let key = format!("replicaset-controller default/{POISON}");
                let line = working.lines().find(|line| line.ends_with(&key))?;
                Some(line[..1].to_owned())
            });
        let named = named.unwrap_or_default();
        self.log(format_args!("r-{replica} dies of the key, named {named:?}"));
        self.poison.deaths.push((Instant::now(), named));
        self.ended.push(replica);
    }
}

/// What came of a run.
#[derive(Debug)]
pub struct Report {
    /// What must not have been.
    pub violation: Option<String>,
    /// How the Leases named the key at each death.
    pub named: Vec<String>,
    /// The last lines of the record.
    pub tale: String,
}

/// A fleet of this many replicas meets the key; `blind` as in [`Poison::blind`].
pub fn run(seed: u64, replicas: usize, blind: bool) -> Report {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime without threads or sockets");
    let dice = Dice::new(seed);
    dice::seed_thread(dice.fork(1));
    let mut world = World::at("12:00:00").without_collector();
    world.put(namespace("kube-system"));
    world.put(namespace("default"));
    world.put(node("node-1"));
    for name in OTHERS.iter().chain([&POISON]) {
        world.put(replica_set(name).replicas(1).selects(&[("app", name)]));
    }
    runtime.block_on(async {
        let hub = Hub::new(Server::new(world), dice.fork(2), None, false);
        hub.with(|state| {
            state.poison.kills = true;
            state.poison.blind = blind;
        });
        let fleet = Fleet::new(&hub);
        let director = Director {
            hub: Arc::clone(&hub),
            fleet: Rc::clone(&fleet),
            dice: dice.fork(3),
            replicas,
        };
        Stage {
            director: Box::pin(director.direct()),
            fleet,
        }
        .await;
        let shown = hub.with(|state| std::mem::take(&mut state.replicas));
        drop(shown);
        hub.with(|state| Report {
            violation: state.violation().map(str::to_owned),
            named: state
                .poison
                .deaths
                .iter()
                .map(|(_, named)| named.clone())
                .collect(),
            tale: state.tale(),
        })
    })
}

struct Director {
    hub: Arc<Hub>,
    fleet: Rc<Fleet>,
    dice: Dice,
    replicas: usize,
}

impl Director {
    async fn direct(mut self) {
        for replica in 0..self.replicas {
            self.fleet.start(replica);
        }
        let start = Instant::now();
        let mut scaled: Option<(Instant, i32)> = None;
        let mut restarts = vec![None; self.replicas];
        while start.elapsed() < KILLS_FOR {
            self.pass(&mut restarts).await;
            let now = Instant::now();
            self.judge_deaths();
            match scaled {
                Some((at, replicas)) if now > at + SERVED_WITHIN => {
                    self.judge_others(replicas);
                    if now > at + SCALED_EVERY {
                        scaled = Some((now, self.scale()));
                    }
                }
                None if self.deaths() >= DEATHS_UNNOTICED => scaled = Some((now, self.scale())),
                _ => {}
            }
            if self.hub.with(|state| state.violation().is_some()) {
                return;
            }
        }
        if scaled.is_none() {
            self.violate("the key has not killed three times".to_owned());
        }
        // It is mended, and kills no more.
        self.hub.with(|state| {
            state.poison.kills = false;
            state.others("user", |world| {
                world.change::<ReplicaSet>(POISON, |set| {
                    set.spec.get_or_insert_default().replicas = Some(2);
                });
            });
        });
        let end = Instant::now() + Duration::from_secs(60);
        while self.pods(POISON) != 2 || self.fleet.quarantined() > 0 {
            self.pass(&mut restarts).await;
            if Instant::now() > end {
                return self.violate(format!(
                    "a minute after the key was mended it has {} pods, and {} keys are quarantined",
                    self.pods(POISON),
                    self.fleet.quarantined()
                ));
            }
        }
    }

    /// A moment passes; kubelets do what is to be done, and who has died starts again some seconds later.
    async fn pass(&mut self, restarts: &mut [Option<Instant>]) {
        tokio::time::sleep(self.dice.millis(20, 150)).await;
        self.hub.with(|state| {
            state.others("cluster", |world| {
                world.step_where(&mut |_| true);
            });
        });
        let running = self.fleet.running();
        for (replica, restart) in restarts.iter_mut().enumerate() {
            if running.contains(&replica) {
                *restart = None;
                continue;
            }
            let after = self.dice.millis(500, 8000);
            if *restart.get_or_insert(Instant::now() + after) <= Instant::now() {
                self.fleet.start(replica);
            }
        }
    }

    fn deaths(&self) -> usize {
        self.hub.with(|state| state.poison.deaths.len())
    }

    fn pods(&self, of: &str) -> usize {
        self.hub.with(|state| {
            let pods = state.server.world.list(Pod::resource(), Some("default"));
            let of = |name: &str| name.starts_with(&format!("{of}-"));
            pods.iter()
                .filter(|pod| of(&pod.metadata().name) && !pod.metadata().is_terminating())
                .count()
        })
    }

    fn scale(&mut self) -> i32 {
        let replicas = 1 + i32::try_from(self.dice.below(5)).unwrap_or(0);
        self.hub.with(|state| {
            state.others("user", |world| {
                for name in OTHERS {
                    world.change::<ReplicaSet>(name, |set| {
                        set.spec.get_or_insert_default().replicas = Some(replicas);
                    });
                }
            });
        });
        replicas
    }

    fn judge_deaths(&self) {
        let deaths = self.hub.with(|state| state.poison.deaths.clone());
        let late = deaths.iter().skip(DEATHS_UNNOTICED);
        for (at, (_, named)) in late.enumerate() {
            if named != "!" {
                let number = at + 1 + DEATHS_UNNOTICED;
                return self.violate(format!(
                    "death {number} was of a process that did not reconcile the key alone: {named:?}"
                ));
            }
        }
        if deaths.len() > DEATHS_MAX {
            self.violate(format!("{} processes died of the key", deaths.len()));
        }
    }

    fn judge_others(&self, replicas: i32) {
        for name in OTHERS {
            let pods = self.pods(name);
            if i32::try_from(pods) != Ok(replicas) {
                self.violate(format!(
                    "{name} has {pods} pods {SERVED_WITHIN:?} after it was scaled to {replicas}"
                ));
            }
        }
    }

    fn violate(&self, what: String) {
        self.hub.with(|state| state.violate(what));
    }
}
