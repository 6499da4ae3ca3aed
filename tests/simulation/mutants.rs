//! Deliberate faults in the simulation's shell, to see that the judges can fail: each must be caught within a
//! few seeds.

use std::{sync::Arc, time::Duration};

use clap::ValueEnum;
use controllers_kit::{FlagValue, Flags, Object as _, heartbeat, is_json};
use coordinator::Sending;
use futures::{FutureExt, future::BoxFuture};
use kubernetes_proto::{
    AnyObject,
    core::{Node, Pod},
    envelope,
    meta::{self, PartialObjectMetadata},
};
use node::{
    actors::host::LateFence,
    gate::{Fence, Stopped},
    view::View,
};
use peer_proto::RangeState;
use prost::Message as _;
use serde_json::Value;

use crate::{
    attachments, claims, devices,
    hub::Counts,
    identity,
    judge::Writer,
    mistakes::{self, Mistake},
    nodes, protection,
    server::{Answer, Request, target},
    storage,
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
    /// The clock by which fences close stops while the process does, as `CLOCK_MONOTONIC` does while a
    /// machine is suspended.
    StoppedClock,
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
    /// Who protects claims knows that the pods have come to a version which every cache has passed.
    NoBarrier,
    /// A claim that the binder asks for live is never there, and it sees none that is bound.
    NoClaims,
    /// As [`Self::NoClaims`]: the disks of volumes that were released so.
    NoDisks,
    /// The binder writes volumes and claims whatever their versions.
    BlindBinding,
    /// The binder sees no volume that was provisioned.
    UnseenVolumes,
    /// Who protects volumes sees none as bound.
    UnboundVolumes,
    /// As [`Self::UnboundVolumes`]: what becomes of the volumes.
    GoneVolumes,
    /// Who protects classes of attributes sees neither claims nor volumes.
    UnusedClasses,
    /// Who signs cluster-info takes every bootstrap token for one that may.
    AllSign,
    /// The clock of who deletes bootstrap tokens is ahead.
    EarlyTokens,
    /// Who aggregates roles takes every role for a selected one.
    AllRoles,
    /// Who keeps ranges of Services sees no addresses.
    NoAddresses,
    /// Who makes tokens of accounts sees no accounts, and finds none.
    NoAccounts,
    /// Reviews are asked for another user than the one who requests a certificate.
    AnotherUser,
    /// Who issues certificates takes every request for an approved one.
    AllApproved,
    /// The clock of who deletes requests for certificates is ahead.
    EarlyRequests,
    /// The clock of who evicts from devices with taints is ahead.
    EarlyTaints,
    /// Who protects groups of pods sees no pods.
    NoMembers,
    /// What is published of a rule of taints is ten times what it was.
    OtherNumbers,
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
            Self::NoClaims | Self::NoDisks | Self::BlindBinding | Self::UnseenVolumes => {
                Some(storage::BINDER)
            }
            Self::UnboundVolumes | Self::GoneVolumes => Some(storage::VOLUME_PROTECTION),
            Self::UnusedClasses => Some(storage::CLASS_PROTECTION),
            Self::AllSign => Some(identity::SIGNER),
            Self::EarlyTokens => Some(identity::TOKEN_CLEANER),
            Self::AllRoles => Some(identity::AGGREGATION),
            Self::NoAddresses => Some(identity::RANGES),
            Self::NoAccounts => Some(identity::TOKENS),
            Self::AnotherUser => Some(identity::APPROVING),
            Self::AllApproved => Some(identity::SIGNING),
            Self::EarlyRequests => Some(identity::REQUEST_CLEANER),
            Self::EarlyTaints | Self::OtherNumbers => Some(devices::CONTROLLER),
            Self::NoMembers => Some(devices::GROUPS),
            _ => None,
        }
    }

    /// By which rule it must be caught, where that has a name: what breaks other rules is passed over.
    pub fn rule(self) -> Option<&'static str> {
        Some(match self {
            Self::NoClaims => storage::RELEASED,
            Self::NoDisks | Self::GoneVolumes => storage::DELETED,
            Self::BlindBinding => storage::BOUND_ONCE,
            Self::UnseenVolumes => storage::PROGRESS,
            Self::UnboundVolumes => storage::VOLUME_KEPT,
            Self::UnusedClasses => storage::CLASS_KEPT,
            Self::AllSign => identity::SIGNED,
            Self::EarlyTokens => identity::EXPIRED,
            Self::AllRoles => identity::GRANTED,
            Self::NoAddresses => identity::RANGE_KEPT,
            Self::NoAccounts => identity::TOKEN_OF_ACCOUNT,
            Self::AnotherUser => identity::APPROVED,
            Self::AllApproved => identity::ISSUED,
            Self::EarlyRequests => identity::REQUEST_KEPT,
            Self::NoMembers => devices::GROUP_KEPT,
            Self::EarlyTaints => devices::EARLY,
            Self::OtherNumbers => devices::PUBLISHED,
            _ => return None,
        })
    }

    /// What its controller takes for what is there.
    pub fn mistake(self) -> Option<Mistake> {
        Some(match self {
            Self::NoClaims | Self::NoDisks => Mistake::of(mistakes::without_bound_claims),
            Self::UnseenVolumes => Mistake::of(mistakes::without_provisioned),
            Self::UnboundVolumes | Self::GoneVolumes => Mistake::of(mistakes::unbound),
            Self::UnusedClasses => Mistake::of(mistakes::without_storage),
            Self::AllSign => Mistake::of(mistakes::signing),
            Self::AllRoles => Mistake::of(mistakes::selected),
            Self::NoMembers => Mistake::of(mistakes::without_pods),
            Self::NoAddresses => Mistake::of(mistakes::without_addresses),
            Self::NoAccounts => Mistake::of(mistakes::without_accounts),
            Self::AllApproved => Mistake::of(mistakes::approved),
            Self::EarlyTokens => Mistake::ahead(30),
            Self::EarlyRequests => Mistake::ahead(1800),
            Self::EarlyTaints => Mistake::ahead(5),
            _ => return None,
        })
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
            Self::BlindBinding
                if request.method == "PATCH"
                    && Writer::parse(&request.user_agent).controller == storage::BINDER =>
            {
                changed.body = without(&request.body, &["metadata"])?;
            }
            Self::AnotherUser if request.path.ends_with("/subjectaccessreviews") => {
                let mut json: Value = serde_json::from_slice(&request.body).ok()?;
                json["spec"]["user"] = identity::BOOTSTRAPPER.into();
                changed.body = json.to_string().into();
            }
            Self::OtherNumbers if request.path.contains("/devicetaintrules/") => {
                let text = std::str::from_utf8(&request.body).ok()?;
                changed.body = text.replace(" pods evicted", "0 pods evicted").into();
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
            Self::NoClaims | Self::NoDisks
                if asks == storage::BINDER && request.path.contains("/persistentvolumeclaims/") =>
            {
                return Some(not_found());
            }
            Self::NoAccounts
                if asks == identity::TOKENS && request.path.contains("/serviceaccounts/") =>
            {
                return Some(not_found());
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

    fn send(&self, range: u16, epoch: u64) -> Result<Option<Sending>, Stopped> {
        match self.mutant {
            Some(Mutant::IgnoredFence) => Ok(None),
            _ => self.fence.send(range, epoch),
        }
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

    fn late_write_max(&self) -> Duration {
        self.fence.late_write_max()
    }

    fn announced(&self) -> BoxFuture<'static, ()> {
        self.fence.announced()
    }
}
