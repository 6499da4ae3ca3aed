//! What is to be done about one volume: detaches first, then attaches.

use std::collections::{BTreeMap, BTreeSet};

use controllers_kit::{
    Action, Answer, Event, Key, Only, PatchKind, Plan, Propagation, Query, SignedDuration,
    Snapshot, StatusWrite, Timestamp,
};
use kubernetes_proto::{
    Object,
    core::{Node, PersistentVolume, Pod},
    storage::{VolumeAttachment, VolumeAttachmentSource, VolumeAttachmentSpec},
};
use serde_json::{Value, json};

use crate::translation;

use super::{
    AttachDetach, FORCED, IN_USE, Memory, Note, OPERATION, OUT_OF_SERVICE, SECONDS, TOTAL, UNMOUNT,
    is_managed, is_out_of_service, is_ready,
    places::{self, Place},
    volumes::{
        BY_NODE, BY_VOLUME, Spec, Unique, ephemeral_drivers, of_persistent, plugin_of, set_name,
    },
};

const FAILED: &str = "FailedAttachVolume";
const SUCCEEDED: &str = "SuccessfulAttachVolume";

/// Why a detach was forced, as the metric names it.
const TIMEOUT_REASON: &str = "timeout";
const OUT_OF_SERVICE_REASON: &str = "out-of-service";

/// The approximate time until a write to a node has reached every cache: the distance between the turns of
/// waiting keys, where the line does not move.
const TURN: SignedDuration = SignedDuration::from_millis(25);
/// No volume waits longer for its turn without the line moving.
const LAST_TURN: SignedDuration = SignedDuration::from_secs(2);

/// The changes of one volume, during its plan.
pub(super) struct Changes<'a> {
    controller: &'a AttachDetach,
    unique: &'a Unique,
    seen: &'a Snapshot<'a>,
    places: BTreeMap<String, Place>,
    plan: Plan,
    /// Queries whose answers are needed and were not asked for.
    unanswered: Vec<Query>,
}

fn later(at: Timestamp, by: SignedDuration) -> Timestamp {
    at.checked_add(by).unwrap_or(Timestamp::MAX)
}

/// `<prefix> for volume "<name>" <suffix>`.
fn message(prefix: &str, spec: &Spec, suffix: &str) -> String {
    format!("{prefix} for volume {:?} {suffix}", spec.name)
}

impl<'a> Changes<'a> {
    pub(super) fn new(
        controller: &'a AttachDetach,
        unique: &'a Unique,
        seen: &'a Snapshot<'a>,
        memory: &Memory,
    ) -> Self {
        Self {
            controller,
            unique,
            seen,
            places: places::of(unique, seen, memory.nodes.keys()),
            plan: Plan::nothing(),
            unanswered: Vec::new(),
        }
    }

    pub(super) fn of(mut self, memory: &mut Memory) -> (Plan, Vec<Query>) {
        let places = std::mem::take(&mut self.places);
        let failed = std::mem::take(&mut memory.failed);
        self.forget(&places, memory);
        // The nodes that keep the volume from others: they use it, or have not released it.
        let mut keeping: BTreeSet<&str> = BTreeSet::new();
        for (name, place) in &places {
            let managed = place.node.as_ref().is_none_or(|node| is_managed(node));
            if place.spec.is_some() || place.kept || !managed {
                keeping.insert(name);
                continue;
            }
            let note = memory.nodes.entry(name.clone()).or_default();
            if self.detach(name, place, note) {
                keeping.insert(name);
            }
        }
        let waiting = places.iter().filter(|(_, place)| {
            place.spec.is_some() && place.node.as_ref().is_some_and(|node| is_managed(node))
        });
        let first = self.first_in_line(waiting);
        for (name, place) in &places {
            let (Some(node), Some(spec)) = (&place.node, &place.spec) else {
                continue;
            };
            if !is_managed(node) {
                continue;
            }
            let note = memory.nodes.entry(name.clone()).or_default();
            note.unwanted_since = None;
            note.let_go = false;
            if place
                .attachment
                .as_ref()
                .is_none_or(|one| !one.is_terminating())
            {
                note.detaching_since = None;
                note.measured_failure = None;
            }
            if let Some(text) = self
                .unique
                .attachment(name)
                .and_then(|name| failed.get(&name).cloned())
            {
                let why = format!("kubernetes.io/csi: attacher.Attach failed: {text}");
                self.report_failure(place, spec, note, why);
            }
            let is_ready_to_list = match &self.unique.csi {
                Some(_) => self.follow(name, place, spec, note),
                None => !place.is_listed(self.unique),
            };
            let others = || places.iter().filter(|(other, _)| *other != name);
            let needs = !place.is_taken(self.unique);
            if needs && spec.exclusive {
                let taken = others().any(|(_, other)| other.is_taken(self.unique));
                if taken {
                    self.report_elsewhere(&places, &keeping, name, spec, note);
                    continue;
                }
                if first != Some(name.as_str()) || !self.is_proven() {
                    continue;
                }
            }
            if is_ready_to_list && spec.exclusive && self.is_held_elsewhere(&places, name) {
                self.report_elsewhere(&places, &keeping, name, spec, note);
                continue;
            }
            match &self.unique.csi {
                Some(_) if needs => self.create(name, spec, note),
                _ if is_ready_to_list => self.list(node, place, spec, note),
                _ => {}
            }
        }
        for (name, place) in &places {
            if place.kept
                && place.spec.is_none()
                && let Some(note) = memory.nodes.get_mut(name)
            {
                note.unwanted_since = None;
            }
        }
        memory.nodes.retain(|_, note| *note != Note::default());
        self.measure(&places);
        (self.plan, self.unanswered)
    }

    /// The node that gets a contested volume: one that still uses it, else the one whose pod has waited
    /// longest.
    fn first_in_line<'p>(
        &self,
        places: impl Iterator<Item = (&'p String, &'p Place)>,
    ) -> Option<&'p str> {
        let age = |place: &Place| {
            let pods = place.pods.iter().map(|pod| Object::metadata(&**pod));
            pods.map(|meta| {
                (
                    meta.creation_timestamp.map(|time| time.timestamp()),
                    meta.uid.to_string(),
                )
            })
            .min()
        };
        let is_free = |place: &Place| place.is_in_use(self.unique) != Some(true);
        let first =
            places.min_by_key(|(name, place)| (is_free(place), age(place), (*name).clone()));
        first.map(|(name, _)| name.as_str())
    }

    /// Whether a volume for a single node must not be listed on a node, though it is attached there:
    /// another node lists it, or has it attached and comes first. That happens after another client has
    /// created a second attachment.
    fn is_held_elsewhere(&self, places: &BTreeMap<String, Place>, name: &str) -> bool {
        let attached = || places.iter().filter(|(_, place)| place.is_attached());
        let first = self.first_in_line(attached().filter(|(_, place)| place.spec.is_some()));
        let mut others = places.iter().filter(|(other, _)| *other != name);
        others.any(|(_, other)| {
            other.is_listed(self.unique)
                || other.is_attached() && (other.spec.is_none() || first != Some(name))
        })
    }

    /// Measures completed detaches, and forgets the nodes.
    fn forget(&mut self, places: &BTreeMap<String, Place>, memory: &mut Memory) {
        let gone = |name: &String| {
            places
                .get(name)
                .is_none_or(|place| place.attachment.is_none() && !place.is_listed(self.unique))
        };
        let mut ended = Vec::new();
        for (name, note) in &mut memory.nodes {
            if gone(name) {
                ended.extend(note.detaching_since.take());
            }
        }
        for since in ended {
            self.took("volume_detach", "success", self.is_migrated(), since);
        }
        memory.nodes.retain(|name, _| places.contains_key(name));
    }

    /// Whether the volume has an in-tree source, when no pod names it any more: a PersistentVolume's, or an
    /// in-line one, which only drivers of in-tree plugins can have.
    fn is_migrated(&self) -> bool {
        let volumes = self
            .seen
            .indexed::<PersistentVolume>(BY_VOLUME, &self.unique.text);
        let of_volumes = || volumes.iter().filter_map(|pv| of_persistent(pv));
        let csi = self.unique.csi.as_ref();
        match volumes.is_empty() {
            true => csi.is_some_and(|(driver, _)| translation::plugin_of(driver).is_some()),
            false => of_volumes().any(|spec| spec.migrated),
        }
    }

    fn retry_at(&mut self, at: Timestamp) {
        self.plan.requeue_at(at);
    }

    fn took(
        &mut self,
        operation: &'static str,
        status: &'static str,
        migrated: bool,
        since: Timestamp,
    ) {
        let plugin = self.unique.plugin();
        let migrated = if migrated { "true" } else { "false" };
        let seconds = self.seen.now.duration_since(since).as_secs_f64().max(0.0);
        self.plan
            .measure(SECONDS, &[&plugin, operation, status, migrated], seconds);
    }

    fn measure(&mut self, places: &BTreeMap<String, Place>) {
        let plugin = self.unique.plugin();
        let mut count = |state: &str, number: usize| {
            if number > 0 {
                #[expect(clippy::cast_precision_loss, reason = "a number of nodes")]
                self.plan.measure(TOTAL, &[&plugin, state], number as f64);
            }
        };
        let desired = places.values().filter(|place| place.spec.is_some()).count();
        let actual = places
            .values()
            .filter(|place| place.is_taken(self.unique))
            .count();
        count("desired_state_of_world", desired);
        count("actual_state_of_world", actual);
        for (name, place) in places.iter().filter(|(_, place)| place.references > 0) {
            #[expect(clippy::cast_precision_loss, reason = "a number of volumes")]
            self.plan
                .measure(IN_USE, &[name, &plugin], place.references as f64);
        }
    }

    /// The answer to a query, which is recorded where it was not asked.
    fn answer(&mut self, query: Query) -> Option<&'a Answer> {
        let answer = self.seen.answer(&query);
        if answer.is_none() {
            self.unanswered.push(query);
        }
        answer
    }

    /// Takes the next step of detaching the volume from a node; whether the node keeps it for now.
    fn detach(&mut self, name: &str, place: &Place, note: &mut Note) -> bool {
        if place.attachment.is_none() && !place.is_listed(self.unique) {
            *note = Note::default();
            return place.foreign;
        }
        let is_listed = place.is_listed(self.unique);
        let is_in_use = place.is_in_use(self.unique);
        *note = Note {
            unwanted_since: note.unwanted_since,
            detaching_since: note.detaching_since,
            let_go: is_in_use.map_or(note.let_go, |is_in_use| !is_in_use && !is_listed),
            measured_failure: note.measured_failure.take(),
            turn: note.turn,
            before: note.before,
            ..Note::default()
        };
        let now = self.seen.now;
        let since = *note.unwanted_since.get_or_insert(now);
        let due = later(since, UNMOUNT);
        let is_late = now >= due && self.controller.forces;
        let forced = match &place.node {
            Some(node) if is_out_of_service(node) && !is_late => Some(OUT_OF_SERVICE_REASON),
            Some(node) if is_ready(node) && !is_out_of_service(node) => None,
            _ => is_late.then_some(TIMEOUT_REASON),
        };
        if is_in_use.unwrap_or(!note.let_go) && forced.is_none() {
            if now < due && self.controller.forces {
                self.retry_at(due);
            }
            return true;
        }
        if let Some(node) = place.node.as_ref().filter(|_| is_listed) {
            // Without an attachment, removing the entry completes the detach.
            let is_last = place.attachment.is_none();
            if is_last {
                note.detaching_since.get_or_insert(now);
            }
            if let Some(write) = self.take_out(node, note)
                && let Some(reason) = forced.filter(|_| is_last)
            {
                write.measure(FORCED, &[reason], 1.0);
            }
            return false;
        }
        let Some(attachment) = &place.attachment else {
            return false;
        };
        if attachment.is_terminating() {
            self.follow_detach(attachment, note);
            return false;
        }
        let may_go = match forced {
            Some(reason) => self.is_still_forced(name, reason),
            None => self.is_let_go(name),
        };
        if !may_go {
            return false;
        }
        note.detaching_since.get_or_insert(now);
        // Irreversible: the driver takes the disk from the node. Verified immediately before: no pod on the
        // node wants the volume; the node, read live, has it neither in `volumesAttached`, so that its
        // kubelet does not begin to mount it, nor in `volumesInUse`; and the attachment is the very version
        // that was seen. Where the detach is forced, instead: the node, read live, has the taint
        // out-of-service, by which an administrator declares it shut down; or it is gone or not ready after
        // six minutes of waiting.
        let deletion = self
            .plan
            .delete(&**attachment, Only::ThisVersion, Propagation::Background);
        if let Some(reason) = forced {
            deletion.measure(FORCED, &[reason], 1.0);
        }
        false
    }

    /// Measures the failures of a requested detach: each error of the driver once, and a timeout.
    fn follow_detach(&mut self, attachment: &VolumeAttachment, note: &mut Note) {
        let since = *note.detaching_since.get_or_insert(self.seen.now);
        let due = later(since, OPERATION);
        let status = attachment.status.as_ref();
        let error = status.and_then(|status| status.detach_error.as_ref());
        let why = match error {
            Some(error) => error.message.clone(),
            None if self.seen.now < due => {
                self.retry_at(due);
                return;
            }
            None => "timed out".to_owned(),
        };
        if note.measured_failure.as_ref() != Some(&why) {
            self.took("volume_detach", "fail-unknown", self.is_migrated(), since);
            note.measured_failure = Some(why);
        }
    }

    /// Whether the node, read live, is still one that a volume may be detached from by force. The cache may
    /// lag behind a node that has come back and writes.
    fn is_still_forced(&mut self, name: &str, reason: &str) -> bool {
        let query = Query::Live {
            resource: Node::resource(),
            key: Key::cluster(name),
        };
        let all = |list: &Value| list.as_array().cloned().unwrap_or_default();
        let why = match self.answer(query) {
            None => return false,
            Some(Answer::Missing | Answer::NotFound(_)) => return true,
            Some(Answer::Failed(why)) => {
                format!("DetachVolume failed fetching node {name} from API server: {why}")
            }
            Some(Answer::Object(node)) => {
                let is_out = all(&node["spec"]["taints"])
                    .iter()
                    .any(|taint| taint["key"] == OUT_OF_SERVICE);
                let is_ready = all(&node["status"]["conditions"])
                    .iter()
                    .any(|one| one["type"] == "Ready" && one["status"] == "True");
                if is_out || reason == TIMEOUT_REASON && !is_ready {
                    return true;
                }
                format!("node {name} is in service again: its volume is not detached by force")
            }
        };
        self.plan.fail(why);
        false
    }

    /// Whether the node, read live, has the volume neither mounted nor listed.
    fn is_let_go(&mut self, name: &str) -> bool {
        let query = Query::Live {
            resource: Node::resource(),
            key: Key::cluster(name),
        };
        let has = |list: &Value, field: Option<&str>| {
            let entries = list.as_array().into_iter().flatten();
            let mut names = entries.map(|entry| field.map_or(entry, |field| &entry[field]));
            names.any(|name| name == self.unique.text.as_str())
        };
        let why = match self.answer(query) {
            None => return false,
            Some(Answer::Missing | Answer::NotFound(_)) => return true,
            Some(Answer::Failed(why)) => {
                format!("DetachVolume failed fetching node {name} from API server: {why}")
            }
            Some(Answer::Object(node)) => {
                let status = &node["status"];
                if has(&status["volumesInUse"], None) {
                    format!("volume is still in use by node {name}, according to Node status")
                } else if has(&status["volumesAttached"], Some("name")) {
                    format!("node {name} still lists the volume as attached")
                } else {
                    return true;
                }
            }
        };
        self.plan.fail(why);
        false
    }

    /// Whether it is this volume's turn to write a node's list. The first in line is woken by each change of
    /// the list; the others wait for as long as the line moves on, so that they don't write at once.
    fn is_turn(&mut self, waiting: &places::Waiting, note: &mut Note) -> bool {
        let now = self.seen.now;
        let own = &self.unique.text;
        let before = waiting.names.iter().take_while(|name| *name < own).count();
        let due = match note.turn {
            _ if before == 0 => None,
            Some(due) if now < due => Some(due),
            Some(_) if before >= note.before => None,
            _ => {
                note.before = before;
                let wait = TURN
                    .saturating_mul(i32::try_from(before).unwrap_or(i32::MAX))
                    .min(LAST_TURN);
                Some(later(now, wait))
            }
        };
        note.turn = due;
        if let Some(due) = due {
            self.retry_at(due);
        } else {
            note.before = 0;
        }
        due.is_none()
    }

    /// Writes a node's list as a compare-and-swap on the version seen.
    fn write(&mut self, node: &Node, entries: BTreeMap<String, String>) -> &mut Action {
        let entries: Vec<Value> = entries
            .into_iter()
            .map(|(name, path)| json!({ "name": name, "devicePath": path }))
            .collect();
        let list = if entries.is_empty() {
            Value::Null
        } else {
            entries.into()
        };
        let patch = json!({ "status": { "volumesAttached": list } });
        self.plan
            .patch(node, "status", PatchKind::Merge, patch, StatusWrite::No)
    }

    /// Removes the volume from the node's list, together with all others that leave. Each is unwanted and,
    /// at the version that is the patch's precondition, not in use; its own owner puts back one that is
    /// wanted again, and deletes no attachment without a check of its own. So this may be done for volumes
    /// of other owners, where adding may not.
    fn take_out(&mut self, node: &Node, note: &mut Note) -> Option<&mut Action> {
        let waiting = places::waiting(node, self.seen.reader());
        if !self.is_turn(&waiting, note) {
            return None;
        }
        let mut entries = entries(node);
        entries.remove(&self.unique.text);
        entries.retain(|name, _| !waiting.leaving.contains(name));
        Some(self.write(node, entries))
    }

    /// Adds the volume to a node's list: from now on its kubelet may mount it.
    fn list(&mut self, node: &Node, place: &Place, spec: &Spec, note: &mut Note) {
        let (turn, before) = (note.turn, note.before);
        let waiting = places::waiting(node, self.seen.reader());
        if !self.is_turn(&waiting, note) {
            return;
        }
        if let (Some(attachment), Some(_)) = (&place.attachment, &self.unique.csi)
            && !self.is_still_attached(attachment)
        {
            (note.turn, note.before) = (turn, before);
            return;
        }
        if !note.reported_success {
            note.reported_success = true;
            // A recreated node lacks its list, and nothing was attached.
            let made =
                |time: Option<kubernetes_proto::meta::Time>| time.map(|time| time.timestamp());
            let node_made = made(Object::metadata(node).creation_timestamp);
            let attached = place.attachment.as_ref();
            let attached =
                attached.and_then(|one| made(Object::metadata(&**one).creation_timestamp));
            let is_old =
                matches!((attached, node_made), (Some(attached), Some(node)) if attached < node);
            if !is_old {
                let text = message("AttachVolume.Attach succeeded", spec, "");
                for pod in &place.pods {
                    self.plan
                        .event(Event::normal(&**pod, SUCCEEDED, text.clone()));
                }
                let since = note.attaching_since.take().unwrap_or(self.seen.now);
                self.took("volume_attach", "success", spec.migrated, since);
            }
        }
        let mut entries = entries(node);
        entries.entry(self.unique.text.clone()).or_default();
        self.write(node, entries);
    }

    /// Checks the attachment to a node that wants the volume; whether the volume is to be added to the
    /// node's list now.
    fn follow(&mut self, name: &str, place: &Place, spec: &Spec, note: &mut Note) -> bool {
        let is_listed = place.is_listed(self.unique);
        let now = self.seen.now;
        let Some(attachment) = &place.attachment else {
            note.attaching_since = None;
            if is_listed {
                self.recover(name, place, note);
            }
            return false;
        };
        note.reported_elsewhere = false;
        if attachment.is_terminating() {
            // While a detach that was requested here is in progress, upstream does not begin to attach.
            let ends = note.detaching_since.map(|since| later(since, OPERATION));
            match ends.filter(|due| now < *due) {
                _ if is_listed => {}
                Some(due) => self.retry_at(due),
                None => {
                    let why = "volume attachment is being deleted".to_owned();
                    self.report_failure(place, spec, note, why);
                }
            }
            return false;
        }
        if place.is_attached() {
            if is_listed {
                *note = Note::default();
            }
            note.lost_since = None;
            return !is_listed;
        }
        if is_listed {
            self.recover(name, place, note);
            return false;
        }
        let since = *note.attaching_since.get_or_insert(now);
        let status = attachment.status.as_ref();
        if let Some(error) = status.and_then(|status| status.attach_error.as_ref()) {
            self.report_failure(place, spec, note, error.message.clone());
        } else if now < later(since, OPERATION) {
            self.retry_at(later(since, OPERATION));
        } else if let Some((driver, handle)) = &self.unique.csi {
            let why = format!(
                "timed out waiting for external-attacher of {driver} CSI driver to attach volume {handle}"
            );
            self.report_failure(place, spec, note, why);
        }
        false
    }

    /// Whether an attachment, read live, is still attached. The cache may lag, even behind a deletion by
    /// the previous owner: the entry of a detached volume would keep other nodes from it.
    fn is_still_attached(&mut self, attachment: &VolumeAttachment) -> bool {
        let meta = Object::metadata(attachment);
        let query = Query::Live {
            resource: VolumeAttachment::resource(),
            key: Key::cluster(meta.name.clone()),
        };
        let why = match self.answer(query) {
            None => return false,
            Some(Answer::Object(live)) => {
                let of_live = &live["metadata"];
                let is_ending = !of_live["deletionTimestamp"].is_null();
                let is_same = of_live["uid"].as_str() == Some(&*meta.uid);
                if is_same && !is_ending && live["status"]["attached"] == true {
                    return true;
                }
                "is not attached any more".to_owned()
            }
            Some(Answer::Missing | Answer::NotFound(_)) => "is gone".to_owned(),
            Some(Answer::Failed(why)) => format!("could not be read: {why}"),
        };
        self.plan
            .fail(format!("VolumeAttachment {} {why}", meta.name));
        false
    }

    /// A node lists a volume whose attachment does not exist, or is not attached: after the sync period the
    /// entry is removed, and the volume is attached again.
    fn recover(&mut self, name: &str, place: &Place, note: &mut Note) {
        let now = self.seen.now;
        let (Some(period), Some(node)) = (self.controller.sync, &place.node) else {
            return;
        };
        let due = later(*note.lost_since.get_or_insert(now), period);
        if now < due {
            self.retry_at(due);
            return;
        }
        let Some(attachment) = self.unique.attachment(name) else {
            return;
        };
        let query = Query::Live {
            resource: VolumeAttachment::resource(),
            key: Key::cluster(attachment.as_str()),
        };
        // The kubelet may use the volume: its entry is removed only after the API server, read live, has no
        // attached attachment. The cache may lag behind the node's list.
        let is_lost = match self.answer(query) {
            None => return,
            Some(Answer::Missing | Answer::NotFound(_)) => true,
            Some(Answer::Object(live)) => live["status"]["attached"] != true,
            Some(Answer::Failed(why)) => {
                self.plan.fail(format!(
                    "VolumeAttachment {attachment} could not be read: {why}"
                ));
                return;
            }
        };
        if is_lost {
            let node = node.clone();
            self.take_out(&node, note);
        } else {
            note.lost_since = Some(now);
            self.retry_at(later(now, period));
        }
    }

    /// Whether the cache holds every attachment, as of a version that was read just now.
    fn is_proven(&mut self) -> bool {
        let resource = match self.unique.csi {
            Some(_) => VolumeAttachment::resource(),
            None => Node::resource(),
        };
        if self.answer(Query::Present { resource }).is_none() {
            return false;
        }
        match self.seen.present(resource) {
            Some(Ok(version)) => {
                if version > 0 {
                    self.plan.rests_on(resource, &"".into(), version);
                }
                true
            }
            Some(Err(why)) => {
                self.plan
                    .fail(format!("{} could not be asked: {why}", resource.id()));
                false
            }
            None => false,
        }
    }

    /// Asks the driver to attach the volume. Irreversible, as the driver begins at once: verified
    /// immediately before, for a volume for a single node, that no other node has an attachment or an
    /// entry, by a cache that is proven to have reached the API server's state just before
    /// ([`Self::is_proven`]). The name follows from volume and node, so a second creation collides.
    fn create(&mut self, node: &str, spec: &Spec, note: &mut Note) {
        let (Some(name), Some((driver, _))) = (self.unique.attachment(node), &self.unique.csi)
        else {
            return;
        };
        note.attaching_since = Some(self.seen.now);
        note.reported_elsewhere = false;
        if let Some(in_line) = &spec.in_line {
            let attachment = json!({
                "apiVersion": "storage.k8s.io/v1",
                "kind": "VolumeAttachment",
                "metadata": { "name": name },
                "spec": { "attacher": driver, "nodeName": node, "source": { "inlineVolumeSpec": in_line } },
            });
            let key = Key::cluster(name.as_str());
            self.plan.create_json::<VolumeAttachment>(key, &attachment);
            return;
        }
        let mut attachment = VolumeAttachment {
            spec: Some(VolumeAttachmentSpec {
                attacher: driver.clone(),
                source: Some(VolumeAttachmentSource {
                    persistent_volume_name: Some(spec.name.clone()),
                    inline_volume_spec: None,
                }),
                node_name: node.to_owned(),
            }),
            ..VolumeAttachment::default()
        };
        attachment.metadata_mut().name = name.as_str().into();
        set_name(&mut attachment, self.unique);
        self.plan.create(&attachment);
    }

    /// Records an event on the pods when the reason why the volume could not be attached changes.
    fn report_failure(&mut self, place: &Place, spec: &Spec, note: &mut Note, why: String) {
        if note.reported_failure.as_ref() == Some(&why) {
            return;
        }
        let text = message("AttachVolume.Attach failed", spec, &format!(": {why}"));
        for pod in &place.pods {
            self.plan
                .event(Event::warning(&**pod, FAILED, text.clone()));
        }
        let since = note.attaching_since.unwrap_or(self.seen.now);
        self.took("volume_attach", "fail-unknown", spec.migrated, since);
        note.reported_failure = Some(why);
    }

    /// Records an event on the pods of a node that another node keeps the volume: once, and not while that
    /// one is releasing it.
    fn report_elsewhere(
        &mut self,
        places: &BTreeMap<String, Place>,
        keeping: &BTreeSet<&str>,
        name: &str,
        spec: &Spec,
        note: &mut Note,
    ) {
        let others: Vec<(&String, &Place)> = places
            .iter()
            .filter(|(other, _)| *other != name)
            .filter(|(_, other)| {
                other.is_attached() || other.is_listed(self.unique) || other.foreign
            })
            .collect();
        if note.reported_elsewhere
            || !others
                .iter()
                .any(|(other, _)| keeping.contains(other.as_str()))
        {
            return;
        }
        note.reported_elsewhere = true;
        let using: Vec<&Pod> = others
            .iter()
            .flat_map(|(_, other)| other.pods.iter().map(|pod| &**pod))
            .collect();
        for pod in places.get(name).iter().flat_map(|place| &place.pods) {
            let why = elsewhere(&using, &Object::metadata(&**pod).namespace);
            let text = message("Multi-Attach error", spec, &why);
            self.plan.event(Event::warning(&**pod, FAILED, text));
        }
    }
}

/// A volume's users as users of one namespace may see them: without the names of pods in others.
pub(super) fn elsewhere(using: &[&Pod], namespace: &str) -> String {
    if using.is_empty() {
        return "Volume is already exclusively attached to one node and can't be attached to another"
            .to_owned();
    }
    let local: Vec<&str> = using
        .iter()
        .map(|pod| Object::metadata(*pod))
        .filter(|meta| *meta.namespace == *namespace)
        .map(|meta| &*meta.name)
        .collect();
    let others = using.len() - local.len();
    match (local.is_empty(), others) {
        (true, _) => format!("Volume is already used by {others} pod(s) in different namespaces"),
        (false, 0) => format!("Volume is already used by pod(s) {}", local.join(", ")),
        (false, _) => format!(
            "Volume is already used by pod(s) {} and {others} pod(s) in different namespaces",
            local.join(", ")
        ),
    }
}

fn entries(node: &Node) -> BTreeMap<String, String> {
    let listed = node
        .status
        .iter()
        .flat_map(|status| &status.volumes_attached);
    listed
        .map(|volume| (volume.name.clone(), volume.device_path.clone()))
        .collect()
}

/// Counts CSI ephemeral volumes of a node's pods.
pub(super) fn count_ephemeral(node: &str, seen: &Snapshot<'_>) -> Plan {
    let mut plan = Plan::nothing();
    let mut drivers: BTreeMap<String, usize> = BTreeMap::new();
    for pod in seen.indexed::<Pod>(BY_NODE, node) {
        for driver in ephemeral_drivers(&pod) {
            *drivers.entry(driver.to_string()).or_default() += 1;
        }
    }
    for (driver, number) in drivers {
        #[expect(clippy::cast_precision_loss, reason = "a number of volumes")]
        plan.measure(IN_USE, &[node, &plugin_of(&driver)], number as f64);
    }
    plan
}
