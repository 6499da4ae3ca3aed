//! Stories: what a fleet does in one situation, as text that a person reads from top to bottom and that a
//! test compares. Every write with its writer, Events, and Leases but for renewals; nothing that differs
//! between runs. The same fleet, server and cluster as in [`crate::run`], without faults and without chance:
//! every delay is the middle of what it may be, and who has something to do does it at the next beat.

mod plots;
mod recorder;
mod words;

use std::{rc::Rc, sync::Arc, time::Duration};

use controllers_kit::{FlagValue, testing::World};
use futures::future::LocalBoxFuture;
use kubernetes_proto::{
    AnyObject, Object as _,
    core::{Node, Pod},
};
use tokio::time::Instant;

pub use recorder::Recorder;

use crate::{
    dice::{self, Dice},
    heartbeats::{RENEWED_EVERY, SILENT},
    hub::Hub,
    replica::{Fleet, RANGES, Stage},
    run,
    server::Server,
};

/// Scheduler, kubelets and drivers act so often.
const BEAT: Duration = Duration::from_millis(500);
/// A story begins at a multiple of this time, so that what comes before it does not shift it.
const BEGINS_EVERY: Duration = Duration::from_secs(30);
/// Without a write for so long, the cluster is at rest before a story begins.
const STILL: Duration = Duration::from_secs(15);
/// No story takes longer, and nothing in it.
const PATIENCE: Duration = Duration::from_secs(1200);

/// A flag's name and value.
type Flag = (&'static str, fn() -> FlagValue);

/// How a story goes.
pub struct Story {
    /// Of its file.
    pub name: &'static str,
    /// What it is about, as its head has it.
    pub about: &'static str,
    /// Replicas at the beginning.
    replicas: usize,
    /// Whether it shows ranges and epochs.
    ranges: bool,
    /// Flags with another value than that of simulated replicas.
    flags: &'static [Flag],
    /// The cluster before.
    before: fn(&mut World),
    /// What happens.
    play: for<'a> fn(&'a mut Scene) -> LocalBoxFuture<'a, ()>,
}

/// All of them.
pub const ALL: &[Story] = plots::ALL;

impl Story {
    /// Plays it; its text.
    ///
    /// # Panics
    /// Where something happened that must not.
    pub fn play(&self) -> String {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime without threads or sockets");
        let dice = Dice::steady();
        dice::seed_thread(dice.clone());
        let mut world = World::at("12:00:00").without_collector();
        for name in ["kube-system", "default"] {
            world.put(controllers_kit::testing::namespace(name));
        }
        (self.before)(&mut world);
        let (lines, violation) = runtime.block_on(async {
            let hub = Hub::new(Server::new(world), dice.clone(), None, false);
            hub.with(|state| {
                state.flags = self
                    .flags
                    .iter()
                    .map(|(name, value)| (*name, value()))
                    .collect();
            });
            let fleet = Fleet::new(&hub);
            let scene = Scene {
                hub: Arc::clone(&hub),
                fleet: Rc::clone(&fleet),
                dice,
                beat: Instant::now(),
                renewal: Instant::now(),
                starts_at_once: usize::MAX,
            };
            Stage {
                director: Box::pin(scene.direct(self)),
                fleet,
            }
            .await;
            let shown = hub.with(|state| std::mem::take(&mut state.replicas));
            drop(shown);
            hub.with(|state| {
                let recorder = state.recorder.take();
                let lines = recorder.map(|recorder| recorder.lines().to_vec());
                (
                    lines.unwrap_or_default(),
                    state.violation().map(str::to_owned),
                )
            })
        });
        if let Some(violation) = violation {
            panic!("{}: {violation}\n{}", self.name, lines.join("\n"));
        }
        let mut text = String::new();
        for line in self.about.lines() {
            text.push_str(format!("# {}", line.trim()).trim_end());
            text.push('\n');
        }
        text.push('\n');
        for line in lines {
            text.push_str(&line);
            text.push('\n');
        }
        text
    }
}

/// A story while it is played.
pub struct Scene {
    hub: Arc<Hub>,
    fleet: Rc<Fleet>,
    dice: Dice,
    /// When the cluster acts next.
    beat: Instant,
    /// When kubelets renew their nodes' Leases next.
    renewal: Instant,
    /// How many pods are started at one beat.
    starts_at_once: usize,
}

impl Scene {
    async fn direct(mut self, story: &Story) {
        for replica in 0..story.replicas {
            self.fleet.start(replica);
        }
        self.pass(BEGINS_EVERY).await;
        self.rest(STILL).await;
        while !self
            .hub
            .with(|state| state.elapsed())
            .as_millis()
            .is_multiple_of(BEGINS_EVERY.as_millis())
        {
            let elapsed = self.hub.with(|state| state.elapsed()).as_millis();
            let left = BEGINS_EVERY.as_millis() - elapsed % BEGINS_EVERY.as_millis();
            self.pass(Duration::from_millis(u64::try_from(left).expect("seconds")))
                .await;
        }
        self.hub.with(|state| {
            state.recorder = Some(Recorder::begin(&state.server, story.ranges));
        });
        if story.ranges {
            self.say_owners();
        }
        (story.play)(&mut self).await;
        if story.ranges {
            self.say_owners();
        }
    }

    /// A user does something.
    fn user(&self, deed: impl FnOnce(&mut World)) {
        self.hub.with(|state| state.others("user", deed));
    }

    /// Something that is no write.
    fn say(&self, who: &str, what: &str) {
        self.hub
            .with(|state| state.record(|recorder| recorder.say(who, what)));
    }

    /// Who owns which ranges by its own fence.
    fn say_owners(&self) {
        let owners: Vec<(String, String)> = self.hub.with(|state| {
            let living = state.replicas.iter().filter(|(_, seen)| seen.alive);
            living
                .map(|(replica, seen)| {
                    let fence = seen.fence.as_ref();
                    let owned = (0..RANGES).filter_map(|range| {
                        let fence = fence?;
                        let epoch = fence.epoch(range)?;
                        fence.check(range, epoch).ok()?;
                        Some(format!("{range}@{epoch}"))
                    });
                    let owned: Vec<String> = owned.collect();
                    (
                        format!("r-{replica}"),
                        format!("owns the ranges {}", owned.join(" ")),
                    )
                })
                .collect()
        });
        for (who, what) in owners {
            self.say(&who, &what);
        }
    }

    /// Time passes, in which the rest of the cluster acts.
    async fn pass(&mut self, length: Duration) {
        let end = Instant::now() + length;
        while self.beat <= end {
            tokio::time::sleep_until(self.beat).await;
            self.beat += BEAT;
            self.act();
        }
        tokio::time::sleep_until(end).await;
    }

    /// Time passes until a replica says that it is ready.
    async fn ready(&mut self, replica: usize) {
        let lease = format!("-replica-r-{replica}");
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            let is_ready = self.hub.with(|state| {
                state.server.leases().any(|(name, held)| {
                    let said = &held["metadata"]["annotations"]["manifold.dev/ready"];
                    name.ends_with(&lease) && *said == "true"
                })
            });
            if is_ready {
                return;
            }
            self.pass(Duration::from_millis(1)).await;
        }
        self.hub
            .with(|state| state.violate(format!("r-{replica} is not ready within {PATIENCE:?}")));
    }

    /// Time passes until nobody has written for a while.
    async fn rest(&mut self, still: Duration) {
        let start = Instant::now();
        let mut last = (0, start);
        while last.1.elapsed() < still {
            let version = self.hub.with(|state| state.server.world.version());
            if version != last.0 {
                last = (version, Instant::now());
            }
            self.pass(BEAT).await;
            if start.elapsed() > PATIENCE {
                return self
                    .hub
                    .with(|state| state.violate(format!("no rest within {PATIENCE:?}")));
            }
        }
    }

    /// Scheduler, kubelets and drivers do what is to be done.
    fn act(&mut self) {
        if Instant::now() >= self.renewal {
            self.renewal += RENEWED_EVERY;
            run::renew(&self.hub);
        }
        let (dice, most) = (&mut self.dice, self.starts_at_once);
        self.hub.with(|state| {
            let mut attachments = std::mem::take(&mut state.judge.attachments);
            state.others("storage", |world| {
                attachments.step(world, dice);
            });
            let mut starts = 0;
            state.others("kubelet", |world| {
                let nodes = world.clone();
                world.step_where(&mut |object: &AnyObject| {
                    let Some(pod) = object.as_any().downcast_ref::<Pod>() else {
                        return false;
                    };
                    let node = recorder::node_of(pod);
                    let Some(node) = nodes.find::<Node>(node) else {
                        return false;
                    };
                    let phase = pod.status.as_ref().map_or("", |status| &status.phase);
                    let starts_now = matches!(phase, "" | "Pending") && !pod.is_terminating();
                    let is_silent = kubernetes_proto::Object::metadata(&*node)
                        .label(SILENT)
                        .is_some();
                    if is_silent || (starts_now && !attachments.are_mounted(&nodes, pod)) {
                        return false;
                    }
                    starts += usize::from(starts_now);
                    !starts_now || starts <= most
                });
            });
            state.judge.attachments = attachments;
            state.others("scheduler", schedule);
        });
    }
}

/// Every pod without a node gets the one with the fewest pods of those that let it in.
fn schedule(world: &mut World) {
    for pod in world.all::<Pod>() {
        if !recorder::node_of(&pod).is_empty() || pod.is_terminating() {
            continue;
        }
        let pods = world.all::<Pod>();
        let open = world.all::<Node>().into_iter().filter(|node| {
            let spec = node.spec.as_ref();
            spec.is_none_or(|spec| !spec.unschedulable && spec.taints.is_empty())
        });
        let name = |node: &Node| kubernetes_proto::Object::metadata(node).name.to_string();
        let load = |node: &Node| {
            let of_node = |pod: &&Arc<Pod>| recorder::node_of(pod) == name(node);
            pods.iter().filter(of_node).count()
        };
        let Some(node) = open.min_by_key(|node| (load(node), name(node))) else {
            continue;
        };
        let meta = kubernetes_proto::Object::metadata(&*pod);
        let key = format!("{}/{}", meta.namespace, meta.name);
        world.change::<Pod>(&key, |pod| {
            let spec = pod.spec.get_or_insert_default();
            spec.node_name = name(&node).as_str().into();
            plots::tolerate(spec);
        });
    }
}
