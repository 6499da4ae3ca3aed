//! The real API server: HTTP/2, each controller under its own service account where that is asked for.

use std::sync::Arc;

use controllers_kit::{Action, Failure, Key, Page, Resource, Verb, Written};
use coordinator::ServerFence;
use futures::{FutureExt, TryFutureExt as _, future::BoxFuture};
use http::{HeaderName, HeaderValue, Method};
use kubernetes_proto::{
    envelope,
    meta::{ObjectMeta, PartialObjectMetadata},
};
use node_cache::api::{Api, ApiError, Request, Response};
use node_telemetry::trace::{Call, Writing};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, utf8_percent_encode};
use serde_json::Value;

use crate::{
    credentials::{Credentials, NAMESPACE as ACCOUNTS_NAMESPACE},
    events,
    server::{Live, LiveItem, Refused, Sender, Server},
    write::{self, WriteRequest},
};

/// Lists that prove freshness carry metadata alone.
const ACCEPT_METADATA_LIST: &str =
    "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
/// Objects in one page of such a list.
const PAGE: usize = 1000;
/// Pages of such a list: more objects than one owner can have made are not counted any further.
const PAGES_MAX: usize = 100;

/// The real API server.
pub struct ApiServer {
    /// With the manager's own credentials.
    own: Api,
    /// Without any: requests bring their controller's token.
    anonymous: Api,
    /// With `--use-service-account-credentials`.
    credentials: Option<Arc<Credentials>>,
    /// Where it holds, writes carry their incarnation.
    server_fence: Arc<ServerFence>,
}

impl ApiServer {
    /// Over two clients of the same server.
    pub fn new(
        own: Api,
        anonymous: Api,
        credentials: Option<Arc<Credentials>>,
        server_fence: Arc<ServerFence>,
    ) -> Self {
        Self {
            own,
            anonymous,
            credentials,
            server_fence,
        }
    }

    async fn send(&self, sender: &Sender, request: Request) -> Result<Response, Refused> {
        let (answer, _) = self.exchange(sender, request).await?;
        answer.map_err(|error| refused(&error))
    }

    /// As [`Self::send`], with the server's refusal as it is.
    async fn exchange(&self, sender: &Sender, mut request: Request) -> Result<Traced, Refused> {
        request.user_agent = Some(sender.user_agent.clone());
        let (Some(credentials), Some(account)) = (&self.credentials, sender.service_account) else {
            return Ok(traced(&self.own, sender, request).await);
        };
        let token = credentials
            .authorization(account)
            .await
            .map_err(|error| Refused::from(Failure::Other(error.to_string())))?;
        request.authorization = Some(token);
        let traced = traced(&self.anonymous, sender, request).await;
        if traced.0.as_ref().is_err_and(ApiError::is_unauthorized) {
            credentials.refused(account).await;
        }
        Ok(traced)
    }
}

/// An answer, and where its write is recorded.
type Traced = (Result<Response, ApiError>, Option<Writing>);

/// Sends a request, and records it where its reconcile is traced.
async fn traced(api: &Api, sender: &Sender, mut request: Request) -> Traced {
    let call = Call::begin(sender.trail.as_ref(), &mut request);
    let answer = api.send(request).await;
    let writing = call.end(&answer);
    (answer, writing)
}

impl ApiServer {
    async fn write_request(
        &self,
        sender: &Sender,
        request: WriteRequest,
        accept: &'static str,
    ) -> Result<(Written, Option<Writing>), Refused> {
        let method = match request.method {
            "POST" => Method::POST,
            "PATCH" => Method::PATCH,
            "PUT" => Method::PUT,
            _ => Method::DELETE,
        };
        let request = Request::new(method, request.path)
            .body(request.content_type, request.body)
            .accept(accept);
        let (answer, writing) = match self.impersonation(sender) {
            Some(headers) => self.send_fenced(sender, request, headers).await?,
            None => {
                let (answer, writing) = self.exchange(sender, request).await?;
                (answer.map_err(|error| refused(&error))?, writing)
            }
        };
        Ok((write::written(&answer.bytes), writing))
    }

    /// The headers that let the API server fence this write, where it does.
    fn impersonation(&self, sender: &Sender) -> Option<[(HeaderName, HeaderValue); 2]> {
        let holder = &sender.gate.holder;
        if holder.is_empty() || !self.server_fence.is_on() {
            return None;
        }
        coordinator::impersonation(ACCOUNTS_NAMESPACE, sender.service_account?, holder)
    }

    /// Sends a write as the controller's service account under the range's incarnation: the audit log and
    /// RBAC see that account, as they do with a token of its own.
    async fn send_fenced(
        &self,
        sender: &Sender,
        mut request: Request,
        headers: [(HeaderName, HeaderValue); 2],
    ) -> Result<(Response, Option<Writing>), Refused> {
        request.user_agent = Some(sender.user_agent.clone());
        request.headers.extend(headers);
        let (answer, writing) = traced(&self.own, sender, request).await;
        let answer = answer.map_err(|error| {
            let refusal = error
                .status()
                .map(|status| (status.code, status.message.as_str()));
            if refusal.is_some_and(|(code, why)| coordinator::is_refusal(code, why)) {
                return Refused::from(Failure::Fenced);
            }
            if refusal.is_some_and(|(code, why)| coordinator::is_no_impersonation(code, why)) {
                self.server_fence.doubt();
            }
            refused(&error)
        })?;
        Ok((answer, writing))
    }
}

/// Records what a write has changed, for the reconciles that it wakes.
fn record(writing: &Writing, action: &Action, written: &Written) {
    let (resource, object) = (action.resource.id(), action.key.to_string());
    match action.verb {
        Verb::DeleteCollection { .. } => {}
        Verb::Delete { .. } => writing.wrote(resource, object, &action.uid, None),
        _ => {
            let version = Some(written.resource_version);
            writing.wrote(resource, object, &written.uid, version);
        }
    }
}

/// What a failed request means.
fn refused(error: &ApiError) -> Refused {
    let failure = match error {
        ApiError::Status(status) => write::failure(status),
        ApiError::Transport {
            before_sending: false,
            ..
        }
        | ApiError::Timeout { .. } => Failure::Timeout(error.to_string()),
        _ => Failure::Other(error.to_string()),
    };
    Refused {
        failure,
        // A name that is taken comes with a Retry-After too; only an overloaded server is left alone.
        retry_after: error.retry_after().filter(|_| error.is_throttled()),
    }
}

fn garbage(what: &str, error: &dyn std::fmt::Display) -> Refused {
    Failure::Other(format!("the API server's {what} can't be read: {error}")).into()
}

impl Server for ApiServer {
    fn write<'a>(
        &'a self,
        sender: &'a Sender,
        action: &'a Action,
    ) -> BoxFuture<'a, Result<Written, Refused>> {
        let accept = match action.verb {
            Verb::DeleteCollection { .. } => write::ACCEPT_ANY,
            _ => write::ACCEPT_METADATA,
        };
        async move {
            let request = write::request(action);
            let (written, writing) = self.write_request(sender, request, accept).await?;
            if let Some(writing) = writing {
                record(&writing, action, &written);
            }
            Ok(written)
        }
        .boxed()
    }

    fn record<'a>(
        &'a self,
        sender: &'a Sender,
        event: &'a events::Send,
        create: bool,
    ) -> BoxFuture<'a, Result<Written, Refused>> {
        let request = write::event_request(event, create);
        self.write_request(sender, request, write::ACCEPT_METADATA)
            .map_ok(|(written, _)| written)
            .boxed()
    }

    fn get<'a>(
        &'a self,
        sender: &'a Sender,
        resource: &'static Resource,
        key: &'a Key,
    ) -> BoxFuture<'a, Result<Option<Value>, Refused>> {
        async move {
            let request =
                Request::get(resource.path(&key.namespace, &key.name)).accept("application/json");
            match self.send(sender, request).await {
                Ok(answer) => serde_json::from_slice(&answer.bytes)
                    .map(Some)
                    .map_err(|error| garbage("object", &error)),
                Err(Refused {
                    failure: Failure::NotFound(_),
                    ..
                }) => Ok(None),
                Err(refused) => Err(refused),
            }
        }
        .boxed()
    }

    fn head<'a>(
        &'a self,
        sender: &'a Sender,
        resource: &'static Resource,
        key: &'a Key,
    ) -> BoxFuture<'a, Result<Live<Option<LiveItem>>, Refused>> {
        async move {
            // A list of one: the manager's role has no `get` for every resource.
            let path = format!(
                "{}?fieldSelector={}",
                resource.path(&key.namespace, ""),
                query_escaped(&match resource.field_selector() {
                    "" => format!("metadata.name={}", key.name),
                    fields => format!("metadata.name={},{fields}", key.name),
                })
            );
            let request = Request::get(path).accept(ACCEPT_METADATA_LIST);
            let (answer, _) = traced(&self.own, sender, request).await;
            let answer = answer.map_err(|error| refused(&error))?;
            let list = envelope::open(&answer.bytes)
                .and_then(|envelope| envelope::list(envelope.raw))
                .map_err(|error| garbage("list", &error))?;
            let mut found = None;
            for item in list.items {
                let meta = PartialObjectMetadata::read(item)
                    .map_err(|error| garbage("list item", &error))?;
                found = found.or_else(|| Some(live_item(&meta)).filter(|live| live.key == *key));
            }
            Ok(Live {
                version: list.resource_version,
                found,
            })
        }
        .boxed()
    }

    fn page<'a>(
        &'a self,
        sender: &'a Sender,
        resource: &'static Resource,
        limit: usize,
        token: &'a str,
    ) -> BoxFuture<'a, Result<Option<Page>, Refused>> {
        async move {
            let mut path = format!("{}?limit={limit}", resource.path("", ""));
            if !token.is_empty() {
                path.push_str(&format!("&continue={}", query_escaped(token)));
            }
            let request = Request::get(path).accept(ACCEPT_METADATA_LIST);
            let answer = match self.exchange(sender, request).await?.0 {
                Ok(answer) => answer,
                Err(error) if error.is_expired() => return Ok(None),
                Err(error) => return Err(refused(&error)),
            };
            let list = envelope::open(&answer.bytes)
                .and_then(|envelope| envelope::list(envelope.raw))
                .map_err(|error| garbage("list", &error))?;
            let metas = list.items.into_iter();
            Ok(Some(Page {
                version: list.resource_version,
                metas: metas.map(|item| metadata_of(item, resource)).collect(),
                next: list.continue_token.to_owned(),
            }))
        }
        .boxed()
    }

    fn read<'a>(
        &'a self,
        sender: &'a Sender,
        path: &'a str,
    ) -> BoxFuture<'a, Result<Option<Value>, Refused>> {
        async move {
            let request = Request::get(path.to_owned()).accept("application/json");
            let answer = self.send(sender, request).await?;
            serde_json::from_slice(&answer.bytes)
                .map(Some)
                .map_err(|error| garbage("answer", &error))
        }
        .boxed()
    }

    fn review<'a>(
        &'a self,
        sender: &'a Sender,
        path: &'a str,
        body: &'a str,
    ) -> BoxFuture<'a, Result<Value, Refused>> {
        async move {
            let request = Request::new(Method::POST, path.to_owned())
                .body("application/json", body.as_bytes().to_vec())
                .accept("application/json");
            let answer = self.send(sender, request).await?;
            serde_json::from_slice(&answer.bytes).map_err(|error| garbage("review", &error))
        }
        .boxed()
    }

    fn list<'a>(
        &'a self,
        sender: &'a Sender,
        resource: &'static Resource,
        namespace: &'a str,
        selector: &'a str,
    ) -> BoxFuture<'a, Result<Live<Vec<LiveItem>>, Refused>> {
        async move {
            let metas = self.list_metadata(sender, resource, namespace, selector);
            let Live { version, found } = metas.await?;
            Ok(Live {
                version,
                // One that can't be read is not in the cache either, or as it was when it last could.
                found: found
                    .iter()
                    .filter(|meta| !meta.uid.is_empty())
                    .map(live_item)
                    .collect(),
            })
        }
        .boxed()
    }

    fn present<'a>(
        &'a self,
        sender: &'a Sender,
        resource: &'static Resource,
    ) -> BoxFuture<'a, Result<u64, Refused>> {
        async move {
            // One object at most: what is asked for is the version of the answer.
            let path = format!("{}?limit=1", resource.path("", ""));
            let answer = self
                .send(sender, Request::get(path).accept(ACCEPT_METADATA_LIST))
                .await?;
            envelope::open(&answer.bytes)
                .and_then(|envelope| envelope::list(envelope.raw))
                .map(|list| list.resource_version)
                .map_err(|error| garbage("list", &error))
        }
        .boxed()
    }

    fn content<'a>(
        &'a self,
        sender: &'a Sender,
        resource: &'static Resource,
        namespace: &'a str,
    ) -> BoxFuture<'a, Result<Vec<ObjectMeta>, Refused>> {
        self.list_metadata(sender, resource, namespace, "")
            .map_ok(|live| live.found)
            .boxed()
    }
}

impl ApiServer {
    async fn list_metadata(
        &self,
        sender: &Sender,
        resource: &'static Resource,
        namespace: &str,
        selector: &str,
    ) -> Result<Live<Vec<ObjectMeta>>, Refused> {
        let mut items = Vec::new();
        let mut next = String::new();
        for _ in 0..PAGES_MAX {
            let mut path = format!("{}?limit={PAGE}", resource.path(namespace, ""));
            for (name, value) in [
                ("labelSelector", selector),
                ("fieldSelector", resource.field_selector()),
                ("continue", next.as_str()),
            ] {
                if !value.is_empty() {
                    path.push_str(&format!("&{name}={}", query_escaped(value)));
                }
            }
            let answer = self
                .send(sender, Request::get(path).accept(ACCEPT_METADATA_LIST))
                .await?;
            let list = envelope::open(&answer.bytes)
                .and_then(|envelope| envelope::list(envelope.raw))
                .map_err(|error| garbage("list", &error))?;
            for item in list.items {
                items.push(metadata_of(item, resource));
            }
            next = list.continue_token.to_owned();
            if next.is_empty() {
                // Of all pages the same: they show one moment.
                return Ok(Live {
                    version: list.resource_version,
                    found: items,
                });
            }
        }
        Err(Failure::Other(format!(
            "more than {} {} match {selector:?} in {namespace}",
            PAGE * PAGES_MAX,
            resource.plural
        ))
        .into())
    }
}

/// The metadata of an item of a list. One that can't be read must not hide the others: it is there, by its
/// name.
fn metadata_of(item: &[u8], resource: &Resource) -> ObjectMeta {
    PartialObjectMetadata::read(item).unwrap_or_else(|error| {
        let glimpse = envelope::glimpse(item);
        tracing::warn!(
            resource = %resource.id(), namespace = glimpse.namespace, name = glimpse.name,
            "an item of a list can't be read, and counts by its name alone: {error}"
        );
        ObjectMeta {
            namespace: glimpse.namespace.into(),
            name: glimpse.name.into(),
            resource_version: glimpse.resource_version,
            ..ObjectMeta::default()
        }
    })
}

fn live_item(meta: &ObjectMeta) -> LiveItem {
    LiveItem {
        key: Key::of_meta(meta),
        uid: meta.uid.clone(),
        resource_version: meta.resource_version,
    }
}

/// What may not stand in a query's value; a slash may.
const QUERY: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b'/');

fn query_escaped(value: &str) -> PercentEncode<'_> {
    utf8_percent_encode(value, QUERY)
}
