//! Checks, and carries out what follows.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use controllers_kit::Resource;
use coordinator::{Fence, Handle, Member};
use node_cache::{Api, Cache, Order, Sight};
use tokio::time::Instant;

use crate::steer::Steering;

use super::{Currency, Others, Progress, Repair, Standstill, View, canary::Canary};

const CHECKS_EVERY: Duration = Duration::from_millis(500);

/// A resource of which nobody else holds the same is listed; if that does not help, what differs is no lost
/// event.
const LIST_AGAIN_AFTER: Duration = Duration::from_secs(600);

/// What is checked, and what can be done.
pub struct Parts {
    /// The watches.
    pub cache: Arc<Cache>,
    /// Their connection.
    pub api: Api,
    /// Gives them a new one.
    pub connect: Box<dyn Fn() -> Result<(), String>>,
    /// What other replicas see.
    pub others: Arc<Others>,
    /// The namespace and the name of the replica's own Lease.
    pub lease: (String, String),
    /// Knows its renewals.
    pub fence: Arc<Fence>,
    /// Who is to know.
    pub handle: Handle,
    /// For probes and metrics.
    pub said: Arc<Said>,
    /// Whether operators have drained this replica: then it says that it is not current, too.
    pub steering: Arc<Steering>,
}

/// The newest verdict, for probes and metrics: what is stuck, in words, while the replica is stale.
#[derive(Debug, Default)]
pub struct Said(Mutex<Option<String>>);

impl Said {
    /// What is stuck, in words; `None` while the replica is current.
    pub fn stale(&self) -> Option<String> {
        self.newest().clone()
    }

    fn newest(&self) -> MutexGuard<'_, Option<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is stuck, in words.
fn in_words(what: Standstill, resources: &[&'static Resource]) -> String {
    match what {
        Standstill::Connection => "no watch brings anything".to_owned(),
        Standstill::Resource(at) => match resources.get(at) {
            Some(resource) => format!("the watch of {} is stuck", resource.id()),
            None => "a watch is stuck".to_owned(),
        },
    }
}

/// Whether another member is current, as it says itself.
fn others_are_current(handle: &Handle) -> bool {
    let view = handle.view();
    let another = |member: &Member| member.name != view.replica;
    let members = view.members.iter().filter(|member| another(member));
    members
        .filter(|member| member.ready && !member.draining)
        .any(|member| !member.stale)
}

/// Follows for as long as the process lives.
pub async fn follow(parts: Parts) {
    let Parts {
        cache,
        api,
        connect,
        others,
        lease: (namespace, lease),
        fence,
        handle,
        said,
        steering,
    } = parts;
    let canary = Arc::new(Canary::default());
    let watched = Arc::clone(&canary);
    actix::spawn(async move { watched.follow(&api, &namespace, &lease).await });
    let resources: Vec<&'static Resource> = cache.resources().collect();
    let names: Vec<String> = resources.iter().map(|resource| resource.id()).collect();
    // When it was listed because of what others hold. Bound: as many as there are resources.
    let mut listed: HashMap<String, Instant> = HashMap::new();
    let mut currency = Currency::new(resources.len());
    let (mut current, begun) = (true, Instant::now());
    let (mut takes, mut stepped_back) = (true, false);
    loop {
        tokio::time::sleep(CHECKS_EVERY).await;
        let sights: HashMap<&'static Resource, Sight> = cache.sights().into_iter().collect();
        let newest = cache.newest_of_all();
        let progress: Vec<Progress> = resources
            .iter()
            .zip(&names)
            .map(|(resource, name)| match sights.get(resource) {
                Some(sight) => {
                    let reached = sight.reached;
                    let further = others.further(name, reached, newest);
                    let wanted = sight.wanted.into_iter().chain(further).min();
                    Progress { reached, wanted }
                }
                None => Progress::default(),
            })
            .collect();
        for (resource, name) in resources.iter().zip(&names) {
            let digest = sights.get(resource).and_then(|sight| sight.digest);
            let again = listed
                .get(name)
                .is_none_or(|at| at.elapsed() >= LIST_AGAIN_AFTER);
            if again && digest.is_some_and(|digest| others.find_odd(name, &digest)) {
                tracing::warn!(
                    resource = name,
                    "other replicas hold something else as of the same version: a watch has lost an event, and the \
                     resource is listed"
                );
                listed.insert(name.clone(), Instant::now());
                cache.order(resource, Order::List);
            }
        }
        let of_canary = Progress {
            reached: canary.reached(),
            wanted: fence.renewed().map(|(version, _)| version),
        };
        let view = View {
            canary: of_canary,
            resources: &progress,
            // Asked for only where it matters: the view of a fleet is large.
            others_are_current: !current && others_are_current(&handle),
        };
        let verdict = currency.check(begun.elapsed(), view);
        let worst = verdict.worst.map(|(what, stuck)| {
            let stuck_ms = u64::try_from(stuck.as_millis()).unwrap_or(u64::MAX);
            (in_words(what, &resources), stuck_ms)
        });
        let (what, stuck_ms) = worst.unwrap_or_default();
        for repair in &verdict.repairs {
            match repair {
                Repair::Connect => {
                    tracing::info!(
                        stuck_ms,
                        "{what}: the watches get another connection to the API server"
                    );
                    if let Err(error) = connect() {
                        tracing::warn!(error, "there is no other connection");
                    }
                    canary.reopen();
                    cache.reopen_all();
                }
                Repair::List(at) => {
                    if let Some(resource) = resources.get(*at) {
                        tracing::info!(resource = %resource.id(), stuck_ms, "{what}: it is listed");
                        cache.order(resource, Order::List);
                    }
                }
            }
        }
        *said.newest() = (!verdict.current).then(|| match what.is_empty() {
            true => "everything moves again, and is observed for a while".to_owned(),
            false => format!("{what} since {stuck_ms} ms"),
        });
        if verdict.current != current {
            current = verdict.current;
            match current {
                false => tracing::warn!(
                    stuck_ms,
                    "{what}, and a new connection has not helped: ranges move to replicas that see what happens"
                ),
                true => tracing::info!("what is seen is current again: ranges may come"),
            }
        }
        let steps_back = steering.steps_back(&handle);
        if steps_back != stepped_back {
            stepped_back = steps_back;
            match steps_back {
                true => tracing::info!("drained: ranges are handed over, and none is taken"),
                false => tracing::info!(
                    "no longer drained, or nobody else takes ranges: ranges may come"
                ),
            }
        }
        if takes != (current && !steps_back) {
            takes = !takes;
            handle.is_current(takes).await;
        }
    }
}
