//! How long keys wait while managers come and go.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::observe::{Change, Probes, follow};
use harness::until;
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::task::JoinHandle;

use crate::meter::Figures;
use crate::peer::RANGES;
use crate::workload;

/// With three replicas about 43 for each.
const KEYS: usize = 128;
/// Between two touches: every key is touched within 2.6 s of whatever happens. Twice as many take both
/// processors of a small machine, and what is waited for then is the API server.
const TOUCH: Duration = Duration::from_millis(20);
/// Rounds of touches that are served before anything happens.
const QUIET_ROUNDS: u32 = 2;
/// What waits no longer than this is being served: at any time some touch is a few milliseconds old.
const IN_FLIGHT: Duration = Duration::from_millis(100);
/// For all keys to be served again.
const LIMIT: Duration = Duration::from_secs(120);
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Touches keys in turn, and sees when they are served.
#[derive(Debug)]
pub(crate) struct Stall {
    namespace: String,
    book: Arc<Mutex<Probes>>,
    tasks: Vec<JoinHandle<()>>,
}

fn lock(book: &Mutex<Probes>) -> MutexGuard<'_, Probes> {
    book.lock().unwrap_or_else(PoisonError::into_inner)
}

fn name(index: usize) -> String {
    format!("probe-{index:03}")
}

impl Stall {
    /// Returns when the keys were touched and served some times.
    pub(crate) async fn start(client: &Client, namespace: &str) -> Result<Self> {
        let api: Api<Deployment> = Api::namespaced(client.clone(), namespace);
        for index in 0..KEYS {
            let object = workload::deployment(&name(index), 0, "example/web:1")?;
            api.create(&PostParams::default(), &object)
                .await
                .context("making the probes")?;
        }
        let book = Arc::new(Mutex::new(Probes::new(KEYS)));
        let tasks = vec![
            tokio::spawn(see(api.clone(), Arc::clone(&book))),
            tokio::spawn(touch(api, Arc::clone(&book))),
        ];
        let stall = Self {
            namespace: namespace.to_owned(),
            book,
            tasks,
        };
        stall.quiet().await?;
        Ok(stall)
    }

    /// Touches continue for a while, and all are served.
    pub(crate) async fn quiet(&self) -> Result<Instant> {
        let from = Instant::now();
        tokio::time::sleep(TOUCH * u32::try_from(KEYS)? * QUIET_ROUNDS).await;
        self.served_since(from).await?;
        Ok(from)
    }

    /// Every key was touched since, and none waits.
    pub(crate) async fn served_since(&self, from: Instant) -> Result<()> {
        until(
            "every key is touched and served",
            LIMIT,
            CHECK_INTERVAL,
            || async {
                let waits = lock(&self.book).waits_since(from, Instant::now());
                let unserved = waits
                    .iter()
                    .filter(|wait| !wait.served && wait.lasted > IN_FLIGHT)
                    .count();
                let touched: BTreeSet<usize> = waits.iter().map(|wait| wait.probe).collect();
                ensure!(
                    unserved == 0 && touched.len() == KEYS,
                    "{} keys were touched, {unserved} are not served",
                    touched.len()
                );
                Ok(Some(()))
            },
        )
        .await
    }

    /// What each key waited at most since `from`: p99 and the longest over the keys of these ranges (all,
    /// where none are named), and over the others.
    pub(crate) fn figures(&self, from: Instant, ranges: Option<&[u32]>) -> Figures {
        let mut longest = vec![Duration::ZERO; KEYS];
        for wait in lock(&self.book).waits_since(from, Instant::now()) {
            longest[wait.probe] = longest[wait.probe].max(wait.lasted);
        }
        let is_hit = |index: usize| {
            let text = format!("{}/{}", self.namespace, name(index));
            let range = u32::from(coordinator::range_of(&text, RANGES));
            ranges.is_none_or(|ranges| ranges.contains(&range))
        };
        let (hit, others): (Vec<usize>, Vec<usize>) = (0..KEYS).partition(|index| is_hit(*index));
        let mut figures = Figures::new();
        for (what, indexes) in [("hit", hit), ("others", others)] {
            let mut waits: Vec<f64> = indexes
                .iter()
                .map(|index| longest[*index].as_secs_f64())
                .collect();
            waits.sort_by(f64::total_cmp);
            let at = |percent: usize| waits.get((waits.len() * percent).div_ceil(100).max(1) - 1);
            for (name, value) in [("p50", at(50)), ("p99", at(99)), ("longest", waits.last())] {
                if let Some(value) = value {
                    figures.insert(format!("stall_{name}_{what}_s"), *value);
                }
            }
        }
        figures
    }
}

impl Drop for Stall {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

async fn see(api: Api<Deployment>, book: Arc<Mutex<Probes>>) {
    follow(api, String::new(), |change| {
        let Change::Seen(deployment) = change else {
            return;
        };
        let name = deployment.metadata.name.unwrap_or_default();
        let index = name
            .strip_prefix("probe-")
            .and_then(|rest| rest.parse().ok());
        let observed = deployment
            .status
            .and_then(|status| status.observed_generation);
        if let (Some(index), Some(generation)) = (index, observed) {
            lock(&book).observed(index, generation, Instant::now());
        }
    })
    .await;
}

/// Each write is a task of its own: a slow answer delays no other touch.
async fn touch(api: Api<Deployment>, book: Arc<Mutex<Probes>>) {
    let mut ticks = tokio::time::interval(TOUCH);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    for turn in 0_u64.. {
        ticks.tick().await;
        let Some(index) = lock(&book).touch(Instant::now()) else {
            continue;
        };
        let (api, book) = (api.clone(), Arc::clone(&book));
        tokio::spawn(async move {
            // Changes the generation, and costs one write of the status.
            let patch = Patch::Merge(json!({"spec": {"revisionHistoryLimit": turn % 1_000}}));
            let written = api
                .patch_metadata(&name(index), &PatchParams::default(), &patch)
                .await;
            let mut book = lock(&book);
            match written.ok().and_then(|object| object.metadata.generation) {
                Some(generation) => book.accepted(index, generation),
                None => book.refused(index),
            }
        });
    }
}
