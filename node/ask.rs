//! Answers a controller's queries, and proves after a takeover that what a plan counted is all there is.

use std::{sync::Arc, time::Duration};

use controllers_kit::{Answer, Answers, Counted, Key, Query, Reader, Resource};
use futures::{StreamExt, stream};

use crate::{
    server::{LiveItem, Sender, Server},
    view::View,
};

/// Queries of one key that are under way at once.
const QUERIES_AT_ONCE: usize = 8;
/// A query that has no answer by then has failed: its plan decides what that means.
const QUERY_TIMEOUT: Duration = Duration::from_secs(10);

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
        .unwrap_or_else(|_| Err(no_answer()))?;
        if let Some(why) = difference(view, set, &live) {
            return Ok(Proof::Stale { why });
        }
    }
    Ok(Proof::Fresh)
}

/// Compares the object that a key is about with what the API server has of it: whoever decides on an older one than the
/// owner before undoes what that one did.
///
/// # Errors
/// Where the server can't be read: nothing is proven then.
pub async fn prove_head(
    server: &dyn Server,
    view: &dyn View,
    resource: &'static Resource,
    key: &Key,
) -> Result<Proof, crate::server::Refused> {
    let live = tokio::time::timeout(QUERY_TIMEOUT, server.head(resource, key))
        .await
        .unwrap_or_else(|_| Err(no_answer()))?;
    let reader: &dyn Reader = view;
    let cached = reader.get(resource, &key.namespace, &key.name);
    let same = match (&live, &cached) {
        (None, None) => true,
        (Some(live), Some(cached)) => {
            let meta = cached.metadata();
            meta.uid == live.uid && meta.resource_version >= live.resource_version
        }
        _ => false,
    };
    Ok(match same {
        true => Proof::Fresh,
        false => Proof::Stale {
            why: format!("{}/{key} is another by now", resource.plural),
        },
    })
}

fn no_answer() -> crate::server::Refused {
    controllers_kit::Failure::Timeout(format!("no answer within {} s", QUERY_TIMEOUT.as_secs()))
        .into()
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
