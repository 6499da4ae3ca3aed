//! How long keys wait to be served while something is wrong, and whose they are.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use futures::future::try_join_all;
use harness::observe::{Change, follow};
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::task::JoinHandle;

/// Deployments without pods: a change is served when it is observed.
pub(crate) const KEYS: usize = 96;
/// Between two touches.
const TOUCH: Duration = Duration::from_millis(30);
/// A touch that the server has not answered by then is no touch.
const ANSWER: Duration = Duration::from_secs(2);

/// A touch that was served, or waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wait {
    /// From when it was sent until it was seen to be served.
    pub(crate) whole: Duration,
    /// The part of it in which the API server had not answered the touch.
    pub(crate) answer: Duration,
}

/// Of one part of these waits; `None` where nobody waited.
pub(crate) fn p99<'a>(
    waits: impl IntoIterator<Item = &'a Wait>,
    part: fn(&Wait) -> Duration,
) -> Option<Duration> {
    let mut parts: Vec<Duration> = waits.into_iter().map(part).collect();
    parts.sort_unstable();
    let at = (parts.len() * 99).div_ceil(100).max(1) - 1;
    parts.get(at).copied()
}

/// A touch that the API server has answered.
#[derive(Debug, Clone, Copy)]
struct Touch {
    generation: i64,
    sent: Instant,
    answer: Duration,
}

impl Touch {
    fn wait(&self, until: Instant) -> Wait {
        Wait {
            whole: until.saturating_duration_since(self.sent),
            answer: self.answer,
        }
    }
}

#[derive(Debug, Default)]
struct Key {
    served: i64,
    /// Answered and not served.
    waiting: Option<Touch>,
    /// Sent, and not answered yet.
    sending: bool,
}

#[derive(Debug, Default)]
struct Book {
    keys: Vec<Key>,
    /// Key, when it was touched, how long it waited.
    waits: Vec<(usize, Instant, Wait)>,
    turn: i64,
}

impl Book {
    fn serve(&mut self, index: usize, now: Instant) {
        let Some(key) = self.keys.get_mut(index) else {
            return;
        };
        if let Some(touch) = key.waiting
            && touch.generation <= key.served
        {
            key.waiting = None;
            self.waits.push((index, touch.sent, touch.wait(now)));
        }
    }
}

/// Touches keys in turn, and sees when they are served.
#[derive(Debug)]
pub(crate) struct Probes {
    namespace: String,
    ranges: u16,
    book: Arc<Mutex<Book>>,
    tasks: Vec<JoinHandle<()>>,
}

fn name(index: usize) -> String {
    format!("probe-{index:03}")
}

fn lock(book: &Mutex<Book>) -> MutexGuard<'_, Book> {
    book.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Probes {
    pub(crate) async fn start(client: &Client, namespace: &str, ranges: u16) -> Result<Self> {
        let api: Api<Deployment> = Api::namespaced(client.clone(), namespace);
        let all: Vec<usize> = (0..KEYS).collect();
        for some in all.chunks(16) {
            try_join_all(some.iter().map(|index| {
                let (api, name) = (api.clone(), name(*index));
                async move {
                    let object =
                        serde_json::from_value(super::workload::deployment(&name, &name, 0, 1))?;
                    api.create(&PostParams::default(), &object).await?;
                    anyhow::Ok(())
                }
            }))
            .await?;
        }
        let book = Arc::new(Mutex::new(Book {
            keys: (0..KEYS).map(|_| Key::default()).collect(),
            ..Book::default()
        }));
        let (seeing, touching) = (Arc::clone(&book), Arc::clone(&book));
        let watched = api.clone();
        let see = tokio::spawn(async move {
            follow(watched, String::new(), |change| {
                let Change::Seen(deployment) = change else {
                    return;
                };
                let index = deployment
                    .metadata
                    .name
                    .as_deref()
                    .and_then(|name| name.strip_prefix("probe-")?.parse::<usize>().ok());
                let observed = deployment
                    .status
                    .and_then(|status| status.observed_generation);
                if let (Some(index), Some(generation)) = (index, observed) {
                    let mut book = lock(&seeing);
                    if let Some(key) = book.keys.get_mut(index) {
                        key.served = key.served.max(generation);
                    }
                    book.serve(index, Instant::now());
                }
            })
            .await;
        });
        let touch = tokio::spawn(async move {
            let mut ticks = tokio::time::interval(TOUCH);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
            for at in 0_usize.. {
                ticks.tick().await;
                let index = at % KEYS;
                let turn = {
                    let mut book = lock(&touching);
                    let key = &mut book.keys[index];
                    if key.sending || key.waiting.is_some() {
                        continue;
                    }
                    key.sending = true;
                    book.turn += 1;
                    book.turn
                };
                tokio::spawn(send(api.clone(), Arc::clone(&touching), index, turn));
            }
        });
        Ok(Self {
            namespace: namespace.to_owned(),
            ranges,
            book,
            tasks: vec![see, touch],
        })
    }

    /// Whether a key is in one of these ranges.
    fn is_in(&self, index: usize, ranges: &BTreeSet<u16>) -> bool {
        let text = format!("{}/{}", self.namespace, name(index));
        ranges.contains(&coordinator::range_of(&text, self.ranges))
    }

    /// Of the touches since a moment: those in these ranges, and the others. Those that still wait count as
    /// they are.
    pub(crate) fn waits(&self, from: Instant, ranges: &BTreeSet<u16>) -> (Vec<Wait>, Vec<Wait>) {
        let now = Instant::now();
        let book = lock(&self.book);
        let lasting = book.keys.iter().enumerate().filter_map(|(index, key)| {
            let touch = key.waiting?;
            Some((index, touch.sent, touch.wait(now)))
        });
        let (mut inside, mut outside) = (Vec::new(), Vec::new());
        for (index, begin, wait) in book.waits.iter().copied().chain(lasting) {
            if begin >= from {
                if self.is_in(index, ranges) {
                    inside.push(wait);
                } else {
                    outside.push(wait);
                }
            }
        }
        (inside, outside)
    }

    /// Keys that have waited for longer than this, by name.
    pub(crate) fn stuck(&self, longer: Duration) -> Vec<String> {
        let now = Instant::now();
        lock(&self.book)
            .keys
            .iter()
            .enumerate()
            .filter(|(_, key)| {
                key.waiting
                    .is_some_and(|touch| touch.wait(now).whole > longer)
            })
            .map(|(index, _)| name(index))
            .collect()
    }

    /// Touches so far that were served.
    pub(crate) fn served(&self) -> usize {
        lock(&self.book).waits.len()
    }
}

impl Drop for Probes {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

async fn send(api: Api<Deployment>, book: Arc<Mutex<Book>>, index: usize, turn: i64) {
    // Changes the generation, and no pod.
    let patch = Patch::Merge(json!({"spec": {"progressDeadlineSeconds": 600 + turn}}));
    let (name, sent) = (name(index), Instant::now());
    let params = PatchParams::default();
    let answer = tokio::time::timeout(ANSWER, api.patch(&name, &params, &patch)).await;
    let mut book = lock(&book);
    let key = &mut book.keys[index];
    key.sending = false;
    if let Ok(Ok(written)) = answer {
        let now = Instant::now();
        key.waiting = Some(Touch {
            generation: written.metadata.generation.unwrap_or_default(),
            sent,
            answer: now.saturating_duration_since(sent),
        });
        // Its being served may have been seen before this answer.
        book.serve(index, now);
    }
}
