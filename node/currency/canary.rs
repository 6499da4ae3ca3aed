//! A watch of this replica's own Lease over the connection of all watches: each renewal that lands must come
//! back by it.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use kubernetes_proto::{envelope, meta::NOT_COMPARABLE};
use node_cache::{Api, ApiError, Request};
use tokio::sync::Notify;

/// Between two attempts to open it.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Until it has begun: nothing is in the way of one object's watch for long.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the server is asked to keep it.
const SECONDS: u32 = 600;

/// How far it has come.
#[derive(Debug, Default)]
pub(super) struct Canary {
    reached: AtomicU64,
    again: Notify,
}

impl Canary {
    pub(super) fn reached(&self) -> u64 {
        self.reached.load(Ordering::Acquire)
    }

    /// Has it opened again, over the connection that is there now.
    pub(super) fn reopen(&self) {
        self.again.notify_one();
    }

    /// Watches the Lease for ever.
    pub(super) async fn follow(&self, api: &Api, namespace: &str, lease: &str) {
        loop {
            tokio::select! {
                biased;
                () = self.again.notified() => continue,
                ended = self.watch(api, namespace, lease) => if let Err(error) = ended {
                    tracing::debug!(%error, "the own Lease is not watched, tried again");
                },
            }
            tokio::select! {
                biased;
                () = self.again.notified() => {}
                () = tokio::time::sleep(AGAIN_AFTER) => {}
            }
        }
    }

    async fn watch(&self, api: &Api, namespace: &str, lease: &str) -> Result<(), ApiError> {
        // From the server's cache: the object as it is there, then its changes.
        let path = format!(
            "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases?watch=true&resourceVersion=0\
             &timeoutSeconds={SECONDS}&fieldSelector=metadata.name%3D{lease}"
        );
        let request = Request::get(path)
            .accept("application/vnd.kubernetes.protobuf;stream=watch")
            .timeout(BEGIN_TIMEOUT);
        let mut frames = api.watch(request).await?;
        while let Some(frame) = frames.next().await? {
            let Some(version) = version_of(&frame) else {
                return Ok(());
            };
            self.reached.fetch_max(version, Ordering::AcqRel);
        }
        Ok(())
    }
}

/// The version that an event shows; `None` for what is no event of an object.
fn version_of(frame: &[u8]) -> Option<u64> {
    let event = envelope::watch_event(frame).ok()?;
    if !matches!(event.r#type, "ADDED" | "MODIFIED" | "DELETED" | "BOOKMARK") {
        return None;
    }
    let version = envelope::glimpse(envelope::open(event.object).ok()?.raw).resource_version;
    (version != 0 && version != NOT_COMPARABLE).then_some(version)
}
