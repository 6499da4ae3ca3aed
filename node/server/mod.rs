//! What the node asks of the API server besides watches and Leases. The real one is `ApiServer`; the seeded
//! simulation has its own.

pub mod api_server;

use std::{sync::Arc, time::Duration};

use controllers_kit::{Action, Descriptor, Failure, Key, Page, Resource, Str, Written};
use futures::future::BoxFuture;
use http::HeaderValue;
use kubernetes_proto::meta::ObjectMeta;
use node_telemetry::{metrics::ControllerMetrics, trace::Trail};
use serde_json::Value;

use crate::{events, gate::Gate};

/// In whose name a request is sent: for the User-Agent, the credentials, and the gate.
#[derive(Clone)]
pub struct Sender {
    /// The controller.
    pub controller: &'static str,
    /// Its service account in kube-system; without one it is sent as the replica itself.
    pub service_account: Option<&'static str>,
    /// The `source.component` of its events.
    pub event_source: &'static str,
    /// `manifold/<version> (replica=<name>; range=<n>; epoch=<n>; controller=<name>)`: the API server's audit
    /// log proves ownership by it.
    pub user_agent: HeaderValue,
    /// What its writes are counted in.
    pub metrics: Arc<ControllerMetrics>,
    /// How its own allowance of writes is to that of all ([`Descriptor::client_rate`]).
    pub client_rate: (u32, u32),
    /// The range and epoch it is sent under.
    pub gate: Arc<Gate>,
    /// Where the calls of this reconcile are recorded, if it is traced.
    pub trail: Option<Arc<Trail>>,
}

impl Sender {
    /// For a controller in an owned range.
    pub fn new(
        replica: &str,
        descriptor: &Descriptor,
        metrics: Arc<ControllerMetrics>,
        gate: &Arc<Gate>,
    ) -> Self {
        let controller = descriptor.name;
        let user_agent = format!(
            "manifold/{} (replica={replica}; range={}; epoch={}; controller={controller})",
            env!("CARGO_PKG_VERSION"),
            gate.range,
            gate.epoch
        );
        Self {
            controller,
            service_account: Some(descriptor.service_account),
            event_source: descriptor.event_source,
            user_agent: header(&user_agent),
            metrics,
            client_rate: descriptor.client_rate,
            gate: Arc::clone(gate),
            trail: None,
        }
    }

    /// The same as the replica itself: for what upstream's roles don't allow every controller's account, such
    /// as an event about an object of a controller that never records one.
    pub fn as_replica(&self) -> Self {
        Self {
            service_account: None,
            ..self.clone()
        }
    }
}

/// A refused or lost request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// What the server answered, or that it did not.
    pub failure: Failure,
    /// How long the server asked to be left alone.
    pub retry_after: Option<Duration>,
}

impl From<Failure> for Refused {
    fn from(failure: Failure) -> Self {
        Self {
            failure,
            retry_after: None,
        }
    }
}

/// What a live list says of one object: enough to compare it with the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveItem {
    /// Its key.
    pub key: Key,
    /// Its uid.
    pub uid: Str,
    /// Its resourceVersion.
    pub resource_version: u64,
}

/// What a consistent read has found, and how far the server had come by then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Live<T> {
    /// The resourceVersion of the answer; 0 where it says none.
    pub version: u64,
    /// What there was.
    pub found: T,
}

/// The API server, as far as keys are reconciled with it.
pub trait Server: Send + Sync {
    /// Sends a write. The caller has asked the gate and aborts by dropping the future.
    fn write<'a>(
        &'a self,
        sender: &'a Sender,
        action: &'a Action,
    ) -> BoxFuture<'a, Result<Written, Refused>>;

    /// Records an event: creates it, or counts an earlier one up unless `create` says that it has gone. The
    /// caller asks the gate as for a write.
    fn record<'a>(
        &'a self,
        sender: &'a Sender,
        event: &'a events::Send,
        create: bool,
    ) -> BoxFuture<'a, Result<Written, Refused>>;

    /// Reads one object whole, consistently; `None` where there is none.
    fn get<'a>(
        &'a self,
        sender: &'a Sender,
        resource: &'static Resource,
        key: &'a Key,
    ) -> BoxFuture<'a, Result<Option<Value>, Refused>>;

    /// What there is of one object, consistently; asked in the manager's own name, which may list whatever it
    /// watches.
    fn head<'a>(
        &'a self,
        sender: &'a Sender,
        resource: &'static Resource,
        key: &'a Key,
    ) -> BoxFuture<'a, Result<Live<Option<LiveItem>>, Refused>>;

    /// The metadata of every object of a resource in a namespace, consistently.
    fn content<'a>(
        &'a self,
        _sender: &'a Sender,
        resource: &'static Resource,
        _namespace: &'a str,
    ) -> BoxFuture<'a, Result<Vec<ObjectMeta>, Refused>> {
        let failure = Failure::Other(format!("{} can't be listed here", resource.id()));
        Box::pin(std::future::ready(Err(failure.into())))
    }

    /// A page of the metadata of every object of a resource: the first for an empty token, consistently; the
    /// page after for the token of the one before. `None` where the token has expired.
    fn page<'a>(
        &'a self,
        _sender: &'a Sender,
        resource: &'static Resource,
        _limit: usize,
        _token: &'a str,
    ) -> BoxFuture<'a, Result<Option<Page>, Refused>> {
        let failure = Failure::Other(format!("{} can't be listed here", resource.id()));
        Box::pin(std::future::ready(Err(failure.into())))
    }

    /// Reads whatever is served under a path, as JSON; `None` for 404.
    fn read<'a>(
        &'a self,
        _sender: &'a Sender,
        path: &'a str,
    ) -> BoxFuture<'a, Result<Option<Value>, Refused>> {
        let refused = Failure::Other(format!("nothing is served under {path}")).into();
        Box::pin(std::future::ready(Err(refused)))
    }

    /// Posts an object that is stored nowhere and answered at once, as a SubjectAccessReview is.
    fn review<'a>(
        &'a self,
        _sender: &'a Sender,
        path: &'a str,
        _body: &'a str,
    ) -> BoxFuture<'a, Result<Value, Refused>> {
        let refused = Failure::Other(format!("nothing is reviewed under {path}")).into();
        Box::pin(std::future::ready(Err(refused)))
    }

    /// The resourceVersion that a resource has come to, consistently.
    fn present<'a>(
        &'a self,
        sender: &'a Sender,
        resource: &'static Resource,
    ) -> BoxFuture<'a, Result<u64, Refused>> {
        let list = self.list(sender, resource, "", "");
        Box::pin(async move { list.await.map(|live| live.version) })
    }

    /// Lists what matches a label selector in a namespace, consistently.
    fn list<'a>(
        &'a self,
        sender: &'a Sender,
        resource: &'static Resource,
        namespace: &'a str,
        selector: &'a str,
    ) -> BoxFuture<'a, Result<Live<Vec<LiveItem>>, Refused>>;
}

/// The User-Agent as a header; characters that a header can't hold become `?`.
fn header(text: &str) -> HeaderValue {
    let safe: String = text
        .chars()
        .map(|char| {
            if (' '..='~').contains(&char) {
                char
            } else {
                '?'
            }
        })
        .collect();
    HeaderValue::from_str(&safe).unwrap_or_else(|_| HeaderValue::from_static("manifold"))
}
