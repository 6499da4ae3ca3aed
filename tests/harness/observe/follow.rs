//! Follows the objects of one kind: a list, then a watch, again from the start when the watch's
//! history is gone.

use std::fmt::Debug;
use std::time::Duration;

use futures::TryStreamExt;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

/// After an error: the server may be away, and asking faster does not bring it back.
const PAUSE: Duration = Duration::from_millis(500);

/// What became of an object.
pub enum Change<K> {
    /// It is there, new or changed.
    Seen(K),
    /// It is gone.
    Gone(K),
    /// All that are there follow; others are gone, unseen.
    Again,
}

/// Calls `each` for every change of the objects with these labels; never returns.
pub async fn follow<K>(api: Api<K>, labels: String, mut each: impl FnMut(Change<K>))
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    loop {
        let Ok(list) = api.list(&ListParams::default().labels(&labels)).await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let mut version = list.metadata.resource_version.unwrap_or_default();
        each(Change::Again);
        for object in list.items {
            each(Change::Seen(object));
        }
        while watch(&api, &labels, &mut version, &mut each).await {}
        tokio::time::sleep(PAUSE).await;
    }
}

/// One watch; whether the next can continue from `version`.
async fn watch<K>(
    api: &Api<K>,
    labels: &str,
    version: &mut String,
    each: &mut impl FnMut(Change<K>),
) -> bool
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    let Ok(stream) = api
        .watch(&WatchParams::default().labels(labels), version)
        .await
    else {
        return false;
    };
    let mut stream = std::pin::pin!(stream);
    loop {
        let (object, gone) = match stream.try_next().await {
            Ok(Some(WatchEvent::Added(object) | WatchEvent::Modified(object))) => (object, false),
            Ok(Some(WatchEvent::Deleted(object))) => (object, true),
            Ok(Some(WatchEvent::Bookmark(bookmark))) => {
                version.clone_from(&bookmark.metadata.resource_version);
                continue;
            }
            Ok(Some(WatchEvent::Error(_))) | Err(_) => return false,
            // The server ends each watch after some minutes.
            Ok(None) => return true,
        };
        if let Some(at) = &object.meta().resource_version {
            version.clone_from(at);
        }
        each(if gone {
            Change::Gone(object)
        } else {
            Change::Seen(object)
        });
    }
}
