//! Answers a controller's queries, and proves after a takeover that what a plan counted is all there is.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock, Mutex, PoisonError},
    time::Duration,
};

use controllers_kit::{Answer, Answers, Counted, Query, Reader};
use futures::{StreamExt, stream};
use tokio::sync::Semaphore;

use crate::{
    server::{LiveItem, Sender, Server},
    view::View,
};

/// Queries of one key that are under way at once.
const QUERIES_AT_ONCE: usize = 8;
/// A query that has no answer by then has failed: its plan decides what that means.
const QUERY_TIMEOUT: Duration = Duration::from_secs(10);

/// Paths of one API that are asked for at once. Whoever waits for a place does so within their own patience, so an API
/// that hangs holds no more requests than these.
const PATHS_AT_ONCE: usize = 64;
/// APIs whose places are counted apart; those beyond share one count. There are as many as API groups that are asked.
const APIS_MAX: usize = 64;

/// The places of each API, by the path's first three parts.
static PLACES: LazyLock<Mutex<HashMap<String, Arc<Semaphore>>>> = LazyLock::new(Mutex::default);

fn places(path: &str) -> Arc<Semaphore> {
    let api: String = path.split('/').take(4).collect::<Vec<_>>().join("/");
    let mut places = PLACES.lock().unwrap_or_else(PoisonError::into_inner);
    let api = if places.len() < APIS_MAX || places.contains_key(&api) {
        api
    } else {
        String::new()
    };
    let new = || Arc::new(Semaphore::new(PATHS_AT_ONCE));
    Arc::clone(places.entry(api).or_insert_with(new))
}

/// Whether an answer may take so long that nobody else should have to wait for it.
pub fn is_slow(queries: &[Query]) -> bool {
    queries
        .iter()
        .any(|query| matches!(query, Query::Path { .. }))
}

/// Fetches the answers. One that fails is an answer too.
pub async fn ask(server: &dyn Server, sender: &Sender, queries: Vec<Query>) -> Answers {
    stream::iter(queries)
        .map(|query| async move {
            let answer = match &query {
                Query::Live { resource, key } => {
                    match tokio::time::timeout(QUERY_TIMEOUT, server.get(sender, resource, key))
                        .await
                    {
                        Ok(Ok(Some(object))) => Answer::Object(Arc::new(object)),
                        Ok(Ok(None)) => Answer::Missing,
                        Ok(Err(refused)) => Answer::Failed(refused.failure.to_string()),
                        Err(_) => Answer::Failed(format!(
                            "no answer within {} s",
                            QUERY_TIMEOUT.as_secs()
                        )),
                    }
                }
                Query::Path { path, patience } => {
                    let read = async {
                        let _place = places(path).acquire_owned().await;
                        server.read(sender, path).await
                    };
                    match tokio::time::timeout(*patience, read).await {
                        Ok(Ok(Some(object))) => Answer::Object(Arc::new(object)),
                        Ok(Ok(None)) => Answer::Missing,
                        Ok(Err(refused)) => Answer::Failed(refused.failure.to_string()),
                        Err(_) => {
                            Answer::Failed(format!("no answer within {} s", patience.as_secs()))
                        }
                    }
                }
            };
            (query, answer)
        })
        .buffer_unordered(QUERIES_AT_ONCE)
        .collect()
        .await
}

/// What came of a proof.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proof {
    /// The cache holds what the API server holds: the plan rests on the truth.
    Fresh,
    /// It does not: the plan is dropped, and made anew when the cache has caught up.
    Stale {
        /// In words, for `/debug/explain`.
        why: String,
    },
}

/// Compares what a plan counted with a consistent live read.
///
/// # Errors
/// Where the server can't be read: nothing is proven then.
pub async fn prove(
    server: &dyn Server,
    sender: &Sender,
    view: &dyn View,
    counted: &[Counted],
) -> Result<Proof, crate::server::Refused> {
    for set in counted {
        let Some(selector) = set.selector.text() else {
            continue;
        };
        let live = tokio::time::timeout(
            QUERY_TIMEOUT,
            server.list(sender, set.resource, &set.namespace, &selector),
        )
        .await
        .unwrap_or_else(|_| {
            Err(controllers_kit::Failure::Timeout(format!(
                "no answer within {} s",
                QUERY_TIMEOUT.as_secs()
            ))
            .into())
        })?;
        if let Some(why) = difference(view, set, &live) {
            return Ok(Proof::Stale { why });
        }
    }
    Ok(Proof::Fresh)
}

/// How the cache differs from a live list of the same set.
fn difference(view: &dyn View, set: &Counted, live: &[LiveItem]) -> Option<String> {
    let reader: &dyn Reader = view;
    for item in live {
        let cached = reader.get(set.resource, &item.key.namespace, &item.key.name);
        let Some(cached) = cached.filter(|cached| cached.metadata().uid == item.uid) else {
            return Some(format!(
                "{}/{} is not in the cache yet",
                set.resource.plural, item.key
            ));
        };
        if cached.metadata().resource_version < item.resource_version {
            return Some(format!(
                "{}/{} is older in the cache",
                set.resource.plural, item.key
            ));
        }
    }
    let known: std::collections::HashSet<&str> =
        live.iter().map(|item| item.uid.as_str()).collect();
    reader
        .list(set.resource, Some(&set.namespace))
        .iter()
        .find(|cached| {
            let meta = cached.metadata();
            set.selector.matches(&meta.labels) && !known.contains(meta.uid.as_str())
        })
        .map(|gone| format!("{}/{} is gone", set.resource.plural, gone.metadata().name))
}
