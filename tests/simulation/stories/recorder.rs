//! Writes a story down: every write as the server carries it out, Events, and Leases but for renewals.

use std::collections::BTreeMap;

use controllers_kit::names;
use coordinator::{Epoch, Holder, RangeId};
use http::Method;
use kubernetes_proto::{AnyObject, Object as _, core::Pod, storage::VolumeAttachment};
use peer_proto::RangeState;
use serde_json::Value;
use tokio::time::Instant;

use super::words;
use crate::{
    hub::Sent,
    judge::Writer,
    server::{Change, Request, Server, target},
};

/// Of a replica's Lease, what is shown besides its owner.
const OF_REPLICA: [&str; 4] = ["ready", "draining", "stale", "ended"];

/// A story so far.
#[derive(Debug)]
pub struct Recorder {
    begun: Instant,
    lines: Vec<String>,
    /// Whether writers are shown with range and epoch.
    ranges: bool,
    /// Generated names, and what is written for them.
    names: Vec<(String, String)>,
    /// How many there are of each beginning.
    counts: BTreeMap<String, usize>,
    /// Events by namespace and name.
    events: BTreeMap<String, Value>,
    /// Leases as they were last.
    leases: BTreeMap<String, Value>,
}

impl Recorder {
    /// From now on; `ranges` for a story about who owns what.
    pub fn begin(server: &Server, ranges: bool) -> Self {
        let mut recorder = Self {
            begun: Instant::now(),
            lines: Vec::new(),
            ranges,
            names: Vec::new(),
            counts: BTreeMap::new(),
            events: BTreeMap::new(),
            leases: by_name(server),
        };
        let mut there: Vec<&AnyObject> = server.world.objects().collect();
        // In the order in which they were made: uids are counted.
        there.sort_by_key(|object| (object.metadata().uid.len(), object.metadata().uid.clone()));
        for object in there {
            recorder.meet(object);
        }
        recorder
    }

    /// The lines.
    pub fn lines(&self) -> &[String] {
        &self.lines
    }

    /// Something that happened, in words.
    pub fn say(&mut self, who: &str, what: &str) {
        self.line(who, what, "", "");
    }

    fn line(&mut self, who: &str, verb: &str, object: &str, words: &str) {
        let at = self.begun.elapsed().as_secs_f64();
        let line = format!("{at:7.1}  {who:<34} {verb:<6} {object:<40}  {words}");
        self.lines.push(self.stable(line.trim_end()));
    }

    /// With names that do not depend on uids and versions.
    fn stable(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (name, stable) in &self.names {
            text = text.replace(name, stable);
        }
        text
    }

    /// Notes a name that was generated.
    fn meet(&mut self, object: &AnyObject) {
        let meta = object.metadata();
        let beginning = if object.resource() == VolumeAttachment::resource() {
            "csi-"
        } else if names::is_generated(meta) {
            &*meta.generate_name
        } else {
            return;
        };
        if self.names.iter().any(|(name, _)| *name == *meta.name) {
            return;
        }
        let count = self.counts.entry(beginning.to_owned()).or_default();
        *count += 1;
        self.names
            .push((meta.name.to_string(), format!("{beginning}#{count}")));
    }

    /// Somebody else than a replica has changed an object.
    pub fn other(&mut self, who: &str, change: &Change) {
        let verb = match (&change.old, &change.new) {
            (None, _) => "create",
            (_, None) => "delete",
            (Some(old), Some(new))
                if !old.metadata().is_terminating() && new.metadata().is_terminating() =>
            {
                "delete"
            }
            _ => "patch",
        };
        let verb = if who == "scheduler" { "bind" } else { verb };
        let who = match (who, change.object().resource().plural) {
            ("storage", "volumeattachments" | "persistentvolumes") => "external-attacher",
            ("storage", _) => "kubelet",
            _ => who,
        };
        self.change(who, verb, "", change);
    }

    fn change(&mut self, who: &str, verb: &str, subresource: &str, change: &Change) {
        let object = change.object();
        self.meet(object);
        let words = match (&change.old, &change.new) {
            (None, Some(new)) => words::made(object.resource().plural, &new.to_json()),
            (Some(old), Some(new)) => words::changed(&old.to_json(), &new.to_json()),
            _ => "gone".to_owned(),
        };
        // Signs of life are no news.
        if words.is_empty() && verb == "patch" && who == "kubelet" {
            return;
        }
        let meta = object.metadata();
        let place = self.place(
            object.resource().plural,
            subresource,
            &meta.namespace,
            &meta.name,
        );
        self.line(who, verb, &place, &words);
    }

    fn place(&self, plural: &str, subresource: &str, namespace: &str, name: &str) -> String {
        let subresource = match subresource {
            "" => String::new(),
            other => format!("/{other}"),
        };
        let namespace = match namespace {
            "" => String::new(),
            other => format!("{other}/"),
        };
        self.stable(&format!("{plural}{subresource} {namespace}{name}"))
    }

    /// A replica's write has been answered.
    pub fn answered(
        &mut self,
        sent: &Sent,
        writer: &Writer,
        request: &Request,
        code: u16,
        changes: &[Change],
    ) {
        let Some(target) = target(&request.path) else {
            return;
        };
        let verb = match request.method {
            Method::POST => "create",
            Method::DELETE => "delete",
            Method::PUT => "put",
            _ => "patch",
        };
        let controller = writer.controller.trim_end_matches("-controller");
        let who = match self.ranges {
            true => format!(
                "r-{} {controller} {}@{}",
                sent.replica, writer.range, writer.epoch
            ),
            false => format!("r-{} {controller}", sent.replica),
        };
        if target.plural == "events" {
            return self.event(&who, request, &target, code);
        }
        if code >= 300 || changes.is_empty() {
            let answer = match code {
                200..300 => "nothing changes".to_owned(),
                _ => format!("refused: {code}"),
            };
            let place = self.place(
                target.plural,
                target.subresource,
                target.namespace,
                target.name,
            );
            return self.line(&who, verb, &place, &answer);
        }
        for change in changes {
            self.change(&who, verb, target.subresource, change);
        }
    }

    fn event(
        &mut self,
        who: &str,
        request: &Request,
        target: &crate::server::Target<'_>,
        code: u16,
    ) {
        let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let name = match request.method {
            Method::POST => body["metadata"]["name"].as_str().unwrap_or_default(),
            _ => target.name,
        };
        let place = format!("{}/{name}", target.namespace);
        let mut event = self.events.get(&place).cloned().unwrap_or_default();
        match event.as_object_mut() {
            Some(event) => event.extend(body.as_object().cloned().unwrap_or_default()),
            None => event = body,
        }
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let about = &event["involvedObject"];
        let namespace = match text(&about["namespace"]) {
            none if none.is_empty() => none,
            other => format!("{other}/"),
        };
        let object = format!(
            "{} {namespace}{}",
            text(&about["kind"]),
            text(&about["name"])
        );
        let count = match event["count"].as_u64() {
            Some(count) if count > 1 => format!(" (x{count})"),
            _ => String::new(),
        };
        let refused = match code {
            200..300 => String::new(),
            _ => format!(" refused: {code}"),
        };
        let words = format!(
            "{} {}{count}: {}{refused}",
            text(&event["type"]),
            text(&event["reason"]),
            text(&event["message"])
        );
        let object = self.stable(&object);
        self.line(who, "event", &object, &words);
        self.events.insert(place, event);
    }

    /// A frozen range goes to its next owner.
    pub fn handed(
        &mut self,
        replica: usize,
        to: &Holder,
        (range, epoch): (RangeId, Epoch),
        state: &RangeState,
    ) {
        let mut keys = Vec::new();
        for of in &state.controllers {
            for key in &of.keys {
                let mut has = Vec::new();
                if key.queued {
                    has.push("queued".to_owned());
                }
                if key.in_flight {
                    has.push("a write in flight".to_owned());
                }
                if !key.marks.is_empty() {
                    has.push(format!("marks {}", key.marks.len()));
                }
                // Keys at rest are many.
                if !has.is_empty() {
                    let (controller, has) = (&of.controller, has.join(", "));
                    keys.push(format!(
                        "{}/{} of {controller} ({has})",
                        key.namespace, key.name
                    ));
                }
            }
        }
        let keys = match keys.is_empty() {
            true => "all keys at rest".to_owned(),
            false => keys.join(", "),
        };
        let who = format!("r-{replica}");
        let (to, words) = (
            format!("range {range}@{epoch}"),
            format!("to {}: {keys}", to.name),
        );
        self.line(&who, "hand", &to, &words);
    }

    /// A Lease may have changed: renewals are left out.
    pub fn leases(&mut self, replica: usize, request: &Request, code: u16, server: &Server) {
        let now = by_name(server);
        let who = format!("r-{replica}");
        if code >= 300
            && let Some(target) = target(&request.path)
        {
            self.line(
                &who,
                "patch",
                &format!("leases {}/{}", target.namespace, target.name),
                &format!("refused: {code}"),
            );
        }
        let before = std::mem::take(&mut self.leases);
        for (name, lease) in &now {
            let old = before.get(name);
            let words = of_lease(old, lease);
            if !words.is_empty() {
                let verb = if old.is_some() { "patch" } else { "create" };
                self.line(&who, verb, &in_namespace(lease, name), &words);
            }
        }
        for (name, lease) in before.iter().filter(|(name, _)| !now.contains_key(*name)) {
            self.line(&who, "delete", &in_namespace(lease, name), "gone");
        }
        self.leases = now;
    }
}

fn by_name(server: &Server) -> BTreeMap<String, Value> {
    let leases = server.leases();
    leases
        .map(|(name, lease)| (name.to_owned(), lease.clone()))
        .collect()
}

fn in_namespace(lease: &Value, name: &str) -> String {
    let namespace = lease["metadata"]["namespace"].as_str();
    format!("leases {}/{name}", namespace.unwrap_or_default())
}

/// What has changed of a Lease besides its renewal.
fn of_lease(old: Option<&Value>, new: &Value) -> String {
    let holder = |lease: &Value| match lease["spec"]["holderIdentity"].as_str() {
        None | Some("") => "nobody".to_owned(),
        Some(holder) => holder.to_owned(),
    };
    let epoch = |lease: &Value| lease["spec"]["leaseTransitions"].as_u64().unwrap_or(0);
    let said = |lease: &Value, name: &str| {
        let value = &lease["metadata"]["annotations"][format!("manifold.dev/{name}")];
        value.as_str().unwrap_or_default().to_owned()
    };
    let mut words = Vec::new();
    let (was, is) = (old.map_or_else(|| "nobody".to_owned(), holder), holder(new));
    if was != is {
        words.push(format!("owner {was} -> {is}"));
    }
    if old.map(epoch) != Some(epoch(new)) && (epoch(new) > 0 || old.is_some()) {
        words.push(format!("epoch {} -> {}", old.map_or(0, epoch), epoch(new)));
    }
    for name in OF_REPLICA {
        let (was, is) = (
            old.map_or_else(String::new, |old| said(old, name)),
            said(new, name),
        );
        // What is false at the beginning is not worth a word.
        if was != is && !(was.is_empty() && is == "false") {
            words.push(format!("{name} {is}"));
        }
    }
    words.join(", ")
}

/// A pod's node; empty where it has none.
pub(super) fn node_of(pod: &Pod) -> &str {
    controllers_kit::pods::node_name(pod)
}
