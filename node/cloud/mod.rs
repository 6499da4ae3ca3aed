//! Carries out calls to a cloud provider ([`controllers_kit::cloud`]).
//!
//! Before each call the object that it is about is read consistently ([`Guard`]) and the gate of the range is
//! asked, so that neither a stale cache nor a range that is being handed over changes anything in the cloud.
//! A call that is under way when the range stops is given up; the provider may still carry it out, so it
//! carries the range's epoch, by which a provider can refuse a former owner.

mod breaker;
mod client;
mod tls;

use std::sync::Arc;

use controllers_kit::{
    Answer,
    cloud::{self, Call, Deed, Guard, Outcome, Reason, Refused},
};
use futures::future::BoxFuture;
use serde_json::Value;
use tokio::time::{Duration, Instant, timeout};

use crate::server::{Sender, Server};

pub use client::Provider;

/// A consistent read that has no answer by then has failed, and the call is not made.
const GUARD_TIMEOUT: Duration = Duration::from_secs(10);

/// What a provider is asked.
pub struct Request<'a> {
    /// What is to be done.
    pub deed: &'a Deed,
    /// The object that it is about, as it was read right before.
    pub object: Option<Value>,
    /// The range that it belongs to.
    pub range: u16,
    /// The epoch under which this replica owns the range.
    pub epoch: u64,
}

/// A cloud provider. [`Provider`] is the real one.
pub trait Cloud: Send + Sync {
    /// Makes a call, within a deadline of its own. Dropping the future gives the call up.
    fn call<'a>(&'a self, request: Request<'a>) -> BoxFuture<'a, Outcome>;
}

/// None at all.
pub struct NoCloud;

impl Cloud for NoCloud {
    fn call<'a>(&'a self, _: Request<'a>) -> BoxFuture<'a, Outcome> {
        let refused = Refused::new(Reason::Failed, "no cloud provider is configured");
        Box::pin(std::future::ready(Err(refused)))
    }
}

/// One that is asked for what there is, and never for a change.
pub struct ReadOnly(pub Arc<dyn Cloud>);

impl Cloud for ReadOnly {
    fn call<'a>(&'a self, request: Request<'a>) -> BoxFuture<'a, Outcome> {
        if !request.deed.changes() {
            return self.0.call(request);
        }
        let refused = Refused::new(
            Reason::Failed,
            "a shadow changes nothing at the cloud provider",
        );
        Box::pin(std::future::ready(Err(refused)))
    }
}

/// Verifies the guard, asks the gate, and makes the call.
pub async fn carry_out(
    server: &dyn Server,
    provider: &dyn Cloud,
    sender: &Sender,
    call: &Call,
) -> Answer {
    let began = Instant::now();
    let outcome = guarded(server, provider, sender, call).await;
    if let Err(refused) = &outcome {
        tracing::debug!(
            call = call.deed.name(),
            reason = ?refused.reason,
            why = refused.message,
            "the cloud provider was asked in vain"
        );
    }
    cloud::answer(outcome, began.elapsed())
}

async fn guarded(
    server: &dyn Server,
    provider: &dyn Cloud,
    sender: &Sender,
    call: &Call,
) -> Outcome {
    let object = verified(server, sender, &call.guard).await?;
    let gate = &sender.gate;
    // It counts as in flight until the provider has answered: this replica's Lease is not released before.
    let Ok(sending) = gate.send() else {
        return Err(stale("the range is about to have another owner".to_owned()));
    };
    let request = Request {
        deed: &call.deed,
        object,
        range: gate.range,
        epoch: gate.epoch,
    };
    let outcome = provider.call(request).await;
    // What has failed may have been carried out, or is about to be.
    let failed = |refused: &Refused| refused.reason == Reason::Failed;
    if let Some(sending) = sending
        && !outcome.as_ref().is_err_and(failed)
    {
        sending.answered();
    }
    outcome
}

fn stale(why: String) -> Refused {
    Refused::new(Reason::Stale, why)
}

/// The object of a guard that holds.
async fn verified(
    server: &dyn Server,
    sender: &Sender,
    guard: &Guard,
) -> Result<Option<Value>, Refused> {
    match guard {
        Guard::Nothing => Ok(None),
        Guard::Unchanged {
            resource,
            key,
            uid,
            version,
        } => {
            let what = format!("{}/{key}", resource.plural);
            let Some(object) = live(server, sender, resource, key).await? else {
                return Err(stale(format!("{what} is gone")));
            };
            let meta = &object["metadata"];
            let same = meta["uid"].as_str() == Some(&**uid)
                && meta["resourceVersion"].as_str() == Some(&version.to_string());
            match same {
                true => Ok(Some(object)),
                false => Err(stale(format!("{what} has changed"))),
            }
        }
        Guard::NotRouted {
            node,
            cidr,
            addresses,
        } => {
            use controllers_kit::Object as _;
            if node.is_empty() {
                return Ok(None);
            }
            let resource = kubernetes_proto::core::Node::resource();
            let key = controllers_kit::Key::cluster(node.as_str());
            let Some(live) = live(server, sender, resource, &key).await? else {
                return Ok(None);
            };
            match is_routed(&live, cidr, addresses.as_deref()) {
                true => Err(stale(format!("nodes/{node} has {cidr} by now"))),
                false => Ok(None),
            }
        }
    }
}

/// Whether a Node has a CIDR, and (where they count) exactly these addresses.
fn is_routed(node: &Value, cidr: &str, addresses: Option<&[cloud::Address]>) -> bool {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let has = list(&node["spec"]["podCIDRs"])
        .iter()
        .any(|one| one.as_str() == Some(cidr));
    let Some(addresses) = addresses else {
        return has;
    };
    let held: Vec<cloud::Address> = list(&node["status"]["addresses"])
        .iter()
        .map(|one| cloud::Address {
            r#type: one["type"].as_str().unwrap_or_default().to_owned(),
            address: one["address"].as_str().unwrap_or_default().to_owned(),
        })
        .collect();
    has && held.len() == addresses.len() && held.iter().all(|one| addresses.contains(one))
}

async fn live(
    server: &dyn Server,
    sender: &Sender,
    resource: &'static controllers_kit::Resource,
    key: &controllers_kit::Key,
) -> Result<Option<Value>, Refused> {
    let failed = |why: String| {
        let text = format!("{}/{key} could not be read: {why}", resource.plural);
        Refused::new(Reason::Failed, text)
    };
    match timeout(GUARD_TIMEOUT, server.get(sender, resource, key)).await {
        Ok(Ok(found)) => Ok(found),
        Ok(Err(refused)) => Err(failed(refused.failure.to_string())),
        Err(_) => Err(failed(format!(
            "no answer within {} s",
            GUARD_TIMEOUT.as_secs()
        ))),
    }
}

#[cfg(test)]
mod tests;
