//! Deliberate faults in the simulation's shell, to see that the judges can fail: each must be caught within a
//! few seeds.

use std::{sync::Arc, time::Duration};

use clap::ValueEnum;
use controllers_kit::{FlagValue, Flags, Object as _, heartbeat, is_json};
use futures::{FutureExt, future::BoxFuture};
use kubernetes_proto::{
    AnyObject,
    core::{Node, Pod},
    envelope,
    meta::{self, PartialObjectMetadata},
};
use node::{actors::host::LateFence, gate::Fence, view::View};
use peer_proto::RangeState;
use prost::Message as _;
use serde_json::Value;

use crate::{
    attachments, claims,
    hub::Counts,
    judge::Writer,
    nodes, protection,
    server::{Answer, Request, target},
};

const COLLECTOR: &str = "garbage-collector-controller";
const NAMESPACES: &str = "namespace-controller";
const AUTOSCALER: &str = "horizontal-pod-autoscaler-controller";
/// The first block of [`nodes::CLUSTER`].
const FIRST_RANGE: &str = "10.0.0.0/24";
/// By how much a handoff's clock is wrong where it is: longer than any window.
const WRONG_MS: i64 = 600_000;

/// A deliberate fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mutant {
    /// Writes are sent whether or not the fence is open and the range is held.
    IgnoredFence,
    /// No write leaves a mark: keys are planned again before the cache has seen what they did.
    NoMarks,
    /// A child is given another name at every creation, so that two of one ordinal don't collide.
    OtherNames,
    /// After a takeover the cache is compared with itself.
    NoProof,
    /// Lease writes don't compare versions.
    BlindLeases,
    /// Watches never report deletions.
    NoDeletions,
    /// Nothing but Leases is written on the uid and the version that were seen.
    BlindWrites,
    /// A handoff says that its instants are by another clock than they are.
    WrongAges,
    /// What a garbage collector asks the server to prove its graph is answered from its own cache.
    UnprovenGraph,
    /// An owner that a garbage collector asks for is never there.
    NoOwners,
    /// What a namespace holds is not shown to the namespace controller.
    EmptyNamespaces,
    /// What keeps an autoscaler's scalings beyond its owner never arrives.
    NoScaleEvents,
    /// Watches never report the renewals of nodes' Leases.
    DeafToKubelets,
    /// The rate at which pods of a zone's nodes are driven away is another than was asked for.
    FastZones,
    /// Watches never report that a node has lost its taints.
    StickyTaints,
    /// Whatever range of addresses is given to a node, it becomes the first.
    OneRange,
    /// A pod that who reserves devices asks for is never there.
    NoPods,
    /// The attach-detach controller's proof that its cache has all attachments is of an old version, and no
    /// write leaves a mark.
    BlindAttach,
    /// What a node lists as attached is written whatever the node says that it uses.
    BlindLists,
    /// As [`Self::WrongAges`], for the attach-detach controller: what should wait for minutes is due.
    EarlyForce,
    /// Who protects claims is told that the pods have come to a version which every cache has passed.
    NoBarrier,
}

impl Mutant {
    /// In whose workload it shows, where that is one alone.
    pub fn controller(self) -> Option<&'static str> {
        match self {
            Self::BlindWrites | Self::UnprovenGraph | Self::NoOwners => Some(COLLECTOR),
            Self::EmptyNamespaces => Some(NAMESPACES),
            Self::WrongAges | Self::NoScaleEvents => Some(AUTOSCALER),
            Self::DeafToKubelets | Self::FastZones => Some("node-lifecycle-controller"),
            Self::StickyTaints => Some("taint-eviction-controller"),
            Self::OneRange => Some("node-ipam-controller"),
            Self::NoPods => Some(claims::CONTROLLER),
            Self::NoBarrier => Some(protection::CONTROLLER),
            Self::BlindAttach | Self::BlindLists | Self::EarlyForce => {
                Some(attachments::CONTROLLER)
            }
            _ => None,
        }
    }

    /// What is handed over instead of a range's state.
    pub fn handoff(self, state: &mut RangeState) {
        if !matches!(self, Self::WrongAges | Self::EarlyForce) {
            return;
        }
        for controller in &mut state.controllers {
            for key in &mut controller.keys {
                key.packed_at_ms += WRONG_MS;
            }
        }
    }

    /// What the server is given instead of a request.
    pub fn request(self, request: &Request, counts: &Counts) -> Option<Request> {
        let mut changed = request.clone();
        match self {
            Self::OtherNames if request.path.ends_with("/pods") && request.method == "POST" => {
                if is_json(&request.body) {
                    return None;
                }
                let body = envelope::open(&request.body).ok()?;
                let mut pod = Pod::decode(body.raw).ok()?;
                let name = format!("{}-{}", pod.metadata().name, counts.writes);
                pod.metadata_mut().name = name.as_str().into();
                // The message is a projection: what it does not know would be lost, but nobody reads it
                // here.
                changed.body = envelope::wrap("v1", "Pod", pod.encode_to_vec()).into();
            }
            Self::BlindLeases if request.about_leases() && request.method == "PATCH" => {
                changed.body = without(&request.body, &["metadata"])?;
            }
            Self::BlindWrites if !request.about_leases() => {
                changed.body = match request.method.as_str() {
                    "PATCH" => without(&request.body, &["metadata"])?,
                    "DELETE" => without(&request.body, &["preconditions"])?,
                    _ => return None,
                };
            }
            Self::BlindLists
                if request.method == "PATCH"
                    && Writer::parse(&request.user_agent).controller == attachments::CONTROLLER =>
            {
                changed.body = without(&request.body, &["metadata"])?;
            }
            Self::NoScaleEvents if request.method == "PATCH" => {
                let mut json: Value = serde_json::from_slice(&request.body).ok()?;
                let annotations = json["metadata"].get_mut("annotations")?.as_object_mut()?;
                annotations.remove("manifold.dev/scale-events")?;
                changed.body = json.to_string().into();
            }
            Self::OneRange if request.method == "PATCH" => {
                let mut json: Value = serde_json::from_slice(&request.body).ok()?;
                let spec = json["spec"].as_object_mut()?;
                spec.get("podCIDRs")?;
                spec.insert("podCIDR".to_owned(), FIRST_RANGE.into());
                spec.insert("podCIDRs".to_owned(), vec![FIRST_RANGE].into());
                changed.body = json.to_string().into();
            }
            _ => return None,
        }
        Some(changed)
    }

    /// What is answered instead of what the server would say to a read.
    pub fn read(self, request: &Request, view: Option<Arc<dyn View>>) -> Option<Answer> {
        let asks = Writer::parse(&request.user_agent).controller;
        let lists = request.accept.contains("as=PartialObjectMetadataList");
        match self {
            Self::UnprovenGraph if lists && asks == COLLECTOR => {
                let view = view?;
                let target = target(&request.path)?;
                let entry = view.catalogue().find(target.group, target.plural)?.clone();
                let namespace = (!target.namespace.is_empty()).then_some(target.namespace);
                let held = view.list(entry.resource, namespace);
                return Some(metadata_list(held.iter().map(|object| object.metadata())));
            }
            Self::EmptyNamespaces if lists && asks == NAMESPACES => {
                return Some(metadata_list(std::iter::empty()));
            }
            Self::BlindAttach if lists && asks == attachments::CONTROLLER => {
                return Some(metadata_list_at("1", std::iter::empty()));
            }
            Self::NoBarrier if lists && asks == protection::CONTROLLER => {
                return Some(metadata_list_at("1", std::iter::empty()));
            }
            Self::NoOwners if asks == COLLECTOR && !lists => return Some(not_found()),
            Self::NoPods if asks == claims::CONTROLLER && request.path.contains("/pods/") => {
                return Some(not_found());
            }
            _ => {}
        }
        if self != Self::NoProof || !request.accept.contains("as=PartialObjectMetadataList") {
            return None;
        }
        let namespace = request.path.split('/').rev().nth(1)?;
        if !request.path.ends_with("/pods") {
            return None;
        }
        let held = view?.list(Pod::resource(), Some(namespace));
        Some(metadata_list(held.iter().map(|object| object.metadata())))
    }

    /// What is answered instead of what the server said to a write.
    pub fn answer(self, answer: Answer) -> Answer {
        match answer {
            Answer::Whole { code, body, .. }
                if matches!(self, Self::NoMarks | Self::BlindAttach) && code < 300 =>
            {
                let _unread = body;
                Answer::Whole {
                    code,
                    content_type: "application/json",
                    body: b"{\"kind\":\"Status\"}".to_vec(),
                }
            }
            other => other,
        }
    }

    /// Whether a watch leaves a change out.
    pub fn hides(self, kind: &str, object: Option<&AnyObject>) -> bool {
        let untainted = |object: &AnyObject| {
            let node = object.as_any().downcast_ref::<Node>();
            node.is_some_and(|node| heartbeat::no_execute(node).next().is_none())
        };
        match self {
            Self::NoDeletions => kind == "DELETED",
            Self::DeafToKubelets => {
                object.is_some_and(|object| *object.metadata().namespace == *heartbeat::NODE_LEASES)
            }
            Self::StickyTaints => kind == "MODIFIED" && object.is_some_and(untainted),
            _ => false,
        }
    }

    /// Flags that are others than they should be.
    pub fn flags(self, flags: &mut Flags) {
        if self == Self::FastZones {
            flags.set("node-eviction-rate", FlagValue::Float(8.0 * nodes::RATE));
        }
    }
}

/// That there is no such object.
fn not_found() -> Answer {
    Answer::Whole {
        code: 404,
        content_type: "application/json",
        body: br#"{"kind":"Status","status":"Failure","reason":"NotFound","code":404}"#.to_vec(),
    }
}

/// A list of metadata.
fn metadata_list<'a>(held: impl Iterator<Item = &'a meta::ObjectMeta>) -> Answer {
    metadata_list_at("", held)
}

/// The same as of a version.
fn metadata_list_at<'a>(version: &str, held: impl Iterator<Item = &'a meta::ObjectMeta>) -> Answer {
    let items = held
        .map(|metadata| {
            PartialObjectMetadata {
                metadata: Some(metadata.clone()),
            }
            .encode_to_vec()
        })
        .collect();
    let list = meta::List {
        metadata: Some(meta::ListMeta {
            resource_version: version.to_owned(),
            ..meta::ListMeta::default()
        }),
        items,
    };
    Answer::Whole {
        code: 200,
        content_type: envelope::PROTOBUF,
        body: envelope::wrap("v1", "List", list.encode_to_vec()),
    }
}

/// A body's JSON without the versions and uids of some of its parts.
fn without(body: &[u8], parts: &[&str]) -> Option<bytes::Bytes> {
    let mut json: Value = serde_json::from_slice(body).ok()?;
    for part in parts {
        let part = json.get_mut(*part)?.as_object_mut()?;
        part.remove("resourceVersion");
        part.remove("uid");
    }
    Some(json.to_string().into())
}

/// The fence of a replica, with the fault that ignores it.
pub struct Gatekeeper {
    /// The real one.
    pub fence: Arc<LateFence>,
    /// The fault.
    pub mutant: Option<Mutant>,
}

impl Fence for Gatekeeper {
    fn open(&self, range: u16, epoch: u64) -> bool {
        self.mutant == Some(Mutant::IgnoredFence) || self.fence.open(range, epoch)
    }

    fn closed(&self, range: u16, epoch: u64) -> BoxFuture<'static, ()> {
        if self.mutant == Some(Mutant::IgnoredFence) {
            return std::future::pending().boxed();
        }
        self.fence.closed(range, epoch)
    }

    fn settled(&self) -> u64 {
        self.fence.settled()
    }

    fn renewed(&self) -> Option<(u64, tokio::time::Instant)> {
        self.fence.renewed()
    }

    fn in_hand(&self) -> Duration {
        self.fence.in_hand()
    }

    fn announced(&self) -> BoxFuture<'static, ()> {
        self.fence.announced()
    }
}
