//! Events at the replica's own Pod: what `kubectl describe pod` reports of takeovers, evictions and fences.
//!
//! Only where `$POD_NAME` and `$POD_NAMESPACE` say which Pod that is. They change nothing and are sent under
//! no fence, so that a fenced replica can say so.

use std::time::{Duration, Instant};

use controllers_kit::{Event, EventType, Key, ObjectRef, Timestamp};
use k8s_openapi::api::core::v1::{Event as CoreEvent, Pod};
use kube::{
    Api, Client, Error as KubeError,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use node_connection::components::causes;
use tokio::sync::mpsc;

use crate::events::Correlator;

/// Notices that wait while the API server does not answer; more are dropped and counted.
pub const WAITING_MAX: usize = 64;
/// How often one is tried: an outage is reported once it is over, if it is over soon.
const TRIES: u32 = 20;
/// Between two tries.
const PAUSE: Duration = Duration::from_secs(3);
/// One request.
const REQUEST_MAX: Duration = Duration::from_secs(5);
/// `source.component` of the events.
const COMPONENT: &str = "manifold";

/// Something to report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// As it should be, or something to act on.
    pub r#type: EventType,
    /// One word.
    pub reason: &'static str,
    /// Who, which ranges, why, how long.
    pub message: String,
}

impl Notice {
    /// As it should be.
    pub fn normal(reason: &'static str, message: String) -> Self {
        Self {
            r#type: EventType::Normal,
            reason,
            message,
        }
    }

    /// Something to act on.
    pub fn warning(reason: &'static str, message: String) -> Self {
        Self {
            r#type: EventType::Warning,
            reason,
            message,
        }
    }
}

/// Sends what comes, until nobody can send any more.
pub async fn send(
    client: Client,
    (namespace, name): (String, String),
    mut notices: mpsc::Receiver<Notice>,
) {
    let began = Instant::now();
    let mut correlator = Correlator::new(COMPONENT);
    let mut about = None;
    while let Some(notice) = notices.recv().await {
        let mut tries = 0;
        loop {
            tries += 1;
            let one = record(
                &client,
                (&namespace, &name),
                &mut about,
                &mut correlator,
                &notice,
                began,
            );
            let why = match tokio::time::timeout(REQUEST_MAX, one).await {
                Ok(Ok(())) => break,
                Ok(Err(why)) => why,
                Err(_) => "the API server does not answer".to_owned(),
            };
            if tries == TRIES {
                tracing::warn!(
                    reason = notice.reason,
                    why,
                    "an event of this Pod was not recorded"
                );
                break;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

async fn record(
    client: &Client,
    (namespace, name): (&str, &str),
    about: &mut Option<ObjectRef>,
    correlator: &mut Correlator,
    notice: &Notice,
    began: Instant,
) -> Result<(), String> {
    let target = match about {
        Some(about) => about.clone(),
        None => about.insert(lookup(client, namespace, name).await?).clone(),
    };
    let event = Event {
        about: target,
        r#type: notice.r#type,
        reason: notice.reason.into(),
        message: notice.message.clone(),
    };
    let Some(send) = correlator.correlate(&event, Timestamp::now(), began.elapsed()) else {
        return Ok(());
    };
    let api: Api<CoreEvent> = Api::namespaced(client.clone(), &send.namespace);
    if let Some(patch) = &send.patch {
        let params = PatchParams::default();
        match api
            .patch(&send.name, &params, &Patch::Strategic(patch))
            .await
        {
            Ok(_) => return Ok(()),
            // It has gone meanwhile.
            Err(KubeError::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(causes(&error)),
        }
    }
    let object = serde_json::from_value(send.body).map_err(|error| error.to_string())?;
    match api.create(&PostParams::default(), &object).await {
        Ok(_) => Ok(()),
        Err(error) => Err(causes(&error)),
    }
}

/// The manager may list every pod, and get none.
async fn lookup(client: &Client, namespace: &str, name: &str) -> Result<ObjectRef, String> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let only = ListParams::default().fields(&format!("metadata.name={name}"));
    let list = pods.list(&only).await.map_err(|error| causes(&error))?;
    let pod = list.items.into_iter().next().ok_or_else(|| {
        format!("no Pod {namespace}/{name}, which $POD_NAMESPACE and $POD_NAME name")
    })?;
    Ok(ObjectRef {
        api_version: "v1".into(),
        kind: "Pod".into(),
        key: Key::new(namespace, name),
        uid: pod.metadata.uid.unwrap_or_default().as_str().into(),
        resource_version: pod
            .metadata
            .resource_version
            .and_then(|text| text.parse().ok())
            .unwrap_or(0),
    })
}
