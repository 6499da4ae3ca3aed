//! What must never become of volumes and claims under any manager.
//!
//! - **Released.** No volume becomes Released while the claim that it is for lives, unless that claim names
//!   another volume.
//! - **Deleted.** No volume that was Bound goes while its claim lives, and no program deletes any volume
//!   whose claim lives.
//! - **Attached twice.** No volume for one node has two attachments that both say attached.
//! - **Unprotected.** No claim loses its finalizer while a pod has it that was on its node before the claim's
//!   deletion was asked for, nor a volume while it is Bound.
//! - **Bound twice.** No claim has two volumes that are Bound to it.
//!
//! The log has each write and its answer; of some writers the answer is metadata alone, and what they asked
//! for is merged into what was known. What began counts from its answer, what ended from its arrival. A write
//! without a clear answer may have landed: until the next clear one, nothing is held against anybody by it.
//! So a complaint is never due to the order of the log; two that overlap for the time of one request are not
//! seen.

use std::collections::BTreeMap;

use harness::AuditRecord;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::{is_dry_run, name_of, text};

const CLAIM_FINALIZER: &str = "kubernetes.io/pvc-protection";
const VOLUME_FINALIZER: &str = "kubernetes.io/pv-protection";
/// Who deletes volumes of its own accord; users may do so by mistake.
const PROGRAMS: [&str; 3] = ["manifold/", "kube-controller-manager/", "csi-provisioner/"];
/// Access modes of volumes that one node has at a time.
const EXCLUSIVE: [&str; 2] = ["ReadWriteOnce", "ReadWriteOncePod"];
/// Resources that are read.
const READ: [&str; 4] = [
    "pods",
    "persistentvolumeclaims",
    "persistentvolumes",
    "volumeattachments",
];

/// Resource, namespace, name.
type Name = (String, String, String);

/// One write.
#[derive(Debug, Clone)]
struct Entry {
    arrived: Timestamp,
    done: Timestamp,
    verb: String,
    subresource: String,
    by: String,
    /// Without a clear answer, it may have landed or not.
    unclear: bool,
    asked: Value,
    answer: Value,
    /// As the answer says.
    version: Option<u64>,
}

/// An object from one write to the next.
#[derive(Debug, Clone)]
struct Version {
    arrived: Timestamp,
    done: Timestamp,
    body: Value,
    /// Whether spec and status are surely so.
    sure: bool,
}

/// An object of one uid.
#[derive(Debug, Default)]
struct Life {
    versions: Vec<Version>,
    /// Arrivals of writes without a clear answer.
    doubts: Vec<Timestamp>,
    /// When the request arrived that ended it, and was answered.
    gone: Option<(Timestamp, Timestamp)>,
    /// When a program asked for its end: arrival and answer.
    asked_to_go: Option<(Timestamp, Timestamp, String)>,
}

/// Reads a log; see the module.
#[derive(Debug, Default)]
pub struct Volumes {
    entries: BTreeMap<Name, Vec<Entry>>,
    /// Deletions of all that is in a namespace, by resource and namespace.
    swept: BTreeMap<(String, String), Vec<Timestamp>>,
}

/// What was found.
#[derive(Debug, Default)]
pub struct Kept {
    /// Broken promises, a line each.
    pub complaints: Vec<String>,
    /// Claims seen.
    pub claims: usize,
    /// Volumes seen.
    pub volumes: usize,
    /// Those that became Released.
    pub released: usize,
    /// Those that went.
    pub deleted: usize,
    /// Finalizers of claims and volumes that were taken off.
    pub unprotected: usize,
    /// Times that an attachment began to say attached.
    pub attached: usize,
    /// Times that a volume became Bound.
    pub bound: usize,
}

/// The parts that rules read.
fn reduced(body: Option<&Value>) -> Value {
    let Some(body) = body.filter(|body| body["kind"] != "Status") else {
        return Value::Null;
    };
    if !body.is_object() {
        return body.clone();
    }
    let part = |of: &Value, keys: &[&str]| {
        let of = of.as_object();
        let kept = keys
            .iter()
            .filter_map(|key| Some(((*key).to_owned(), of?.get(*key)?.clone())));
        Value::Object(kept.collect::<Map<_, _>>())
    };
    let mut reduced = Map::new();
    let metadata = [
        "uid",
        "finalizers",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "resourceVersion",
    ];
    let spec = [
        "accessModes",
        "claimRef",
        "nodeName",
        "source",
        "volumeName",
        "volumes",
    ];
    for (name, keys) in [
        ("metadata", &metadata[..]),
        ("spec", &spec[..]),
        ("status", &["attached", "phase"][..]),
    ] {
        if body[name].is_object() {
            reduced.insert(name.to_owned(), part(&body[name], keys));
        }
    }
    // A binding names its node, a deletion its grace.
    for name in ["target", "gracePeriodSeconds"] {
        if !body[name].is_null() {
            reduced.insert(name.to_owned(), body[name].clone());
        }
    }
    Value::Object(reduced)
}

/// As in RFC 7386.
fn merge(into: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        into.clone_from(patch);
        return;
    };
    if !into.is_object() {
        *into = Value::Object(Map::new());
    }
    let Some(into) = into.as_object_mut() else {
        return;
    };
    for (key, value) in patch {
        if value.is_null() {
            into.remove(key);
        } else {
            merge(into.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

fn has_finalizer(body: &Value, finalizer: &str) -> bool {
    let finalizers = body["metadata"]["finalizers"].as_array();
    finalizers
        .into_iter()
        .flatten()
        .any(|one| *one == *finalizer)
}

fn is_going(body: &Value) -> bool {
    !body["metadata"]["deletionTimestamp"].is_null()
}

/// Whether an object with this metadata is not stored any more, once it is to go.
fn is_gone(resource: &str, body: &Value) -> bool {
    let metadata = &body["metadata"];
    let held = metadata["finalizers"]
        .as_array()
        .is_some_and(|all| !all.is_empty());
    let grace = metadata["deletionGracePeriodSeconds"].as_i64().unwrap_or(0);
    is_going(body) && !held && (resource != "pods" || grace == 0)
}

fn phase(body: &Value) -> &str {
    body["status"]["phase"].as_str().unwrap_or_default()
}

impl Life {
    fn born(&self) -> Option<(Timestamp, Timestamp)> {
        self.versions
            .first()
            .map(|first| (first.arrived, first.done))
    }

    /// Whether it surely was there at this time.
    fn lives(&self, at: Timestamp) -> bool {
        let born = self.born().is_some_and(|(_, done)| done <= at);
        let ended = self.gone.is_some_and(|(arrived, _)| arrived <= at);
        let doubtful = self.doubts.iter().any(|doubt| {
            let later = self.versions.iter().any(|one| one.arrived > *doubt);
            let ended_later = self.gone.is_some_and(|(arrived, _)| arrived > *doubt);
            *doubt <= at && !later && !ended_later
        });
        born && !ended && !doubtful
    }

    /// What it may have been at any time of these, each with whether its spec and status surely were so.
    fn possible(&self, from: Timestamp, to: Timestamp) -> Vec<(&Version, bool)> {
        let next = self.versions.iter().skip(1).map(Some).chain([None]);
        let pairs = self.versions.iter().zip(next);
        let possible = pairs.filter(|(one, next)| {
            let over = next.is_some_and(|next| next.done < from);
            one.arrived <= to && !over
        });
        possible
            .map(|(one, _)| {
                let mut doubts = self.doubts.iter();
                let doubted = doubts.any(|doubt| one.arrived < *doubt && *doubt <= to);
                (one, one.sure && !doubted)
            })
            .collect()
    }

    /// The times in which this surely held: from an answer to the next arrival of what may have changed it.
    fn spans(&self, holds: impl Fn(&Value) -> bool) -> Vec<(Timestamp, Timestamp)> {
        let mut spans: Vec<(Timestamp, Timestamp)> = Vec::new();
        let mut open: Option<Timestamp> = None;
        for one in &self.versions {
            let does = one.sure && holds(&one.body);
            match (open, does) {
                (Some(from), false) => {
                    spans.push((from, one.arrived));
                    open = None;
                }
                (None, true) => open = Some(one.done),
                _ => {}
            }
        }
        if let Some(from) = open {
            let doubts = self.doubts.iter().copied().filter(|doubt| *doubt > from);
            let end = doubts.chain(self.gone.map(|(arrived, _)| arrived)).min();
            spans.push((from, end.unwrap_or(Timestamp::MAX)));
        }
        // A doubt in the middle ends a span, since what it may have done may have been undone before the
        // next.
        for (from, to) in &mut spans {
            let doubts = self.doubts.iter().copied();
            if let Some(doubt) = doubts.filter(|doubt| *from < *doubt && *doubt < *to).min() {
                *to = doubt;
            }
        }
        spans
    }
}

/// Whether it ended the object at once: its answer has the version of the write before then, since nothing is
/// stored.
fn ends(entry: &Entry) -> bool {
    let metadata = &entry.answer["metadata"];
    let held = metadata["finalizers"].as_array();
    let held = held.is_some_and(|all| !all.is_empty());
    !held && (entry.verb == "delete" || metadata["deletionTimestamp"].is_string())
}

/// Earlier ones first; those that say no version stand by time.
fn in_order(entries: &[Entry]) -> Vec<&Entry> {
    let (mut ordered, mut others): (Vec<&Entry>, Vec<&Entry>) =
        entries.iter().partition(|entry| entry.version.is_some());
    ordered.sort_by_key(|entry| (entry.version, ends(entry)));
    others.sort_by_key(|entry| entry.done);
    for other in others {
        let at = ordered.iter().position(|entry| entry.done > other.done);
        ordered.insert(at.unwrap_or(ordered.len()), other);
    }
    ordered
}

/// The lives of one name.
fn lives(resource: &str, entries: &[Entry], swept: &[Timestamp]) -> Vec<Life> {
    let mut lives: Vec<Life> = Vec::new();
    for entry in in_order(entries) {
        let living = lives.last().filter(|life| life.gone.is_none());
        if entry.unclear {
            if living.is_some()
                && let Some(life) = lives.last_mut()
            {
                life.doubts.push(entry.arrived);
            }
            continue;
        }
        let whole = entry.answer["spec"].is_object();
        let uid = &entry.answer["metadata"]["uid"];
        let is_known = living.is_some_and(|life| {
            let last = life.versions.last();
            let its = last.map_or(&Value::Null, |last| &last.body["metadata"]["uid"]);
            uid.is_null() || its.is_null() || *uid == *its
        });
        let is_made = entry.verb == "create" && entry.subresource.is_empty();
        let is_fresh = is_made || !is_known;
        if is_fresh {
            if !entry.answer.is_object() {
                // The log does not know its beginning.
                continue;
            }
            lives.push(Life::default());
        }
        let Some(life) = lives.last_mut() else {
            continue;
        };
        let before = life.versions.last().cloned();
        let base = before.as_ref();
        let mut body = base.map_or(Value::Null, |before| before.body.clone());
        // A write without a clear answer since then may have changed what this answer does not contain.
        let undoubted = base.is_none_or(|before| {
            before.sure && life.doubts.iter().all(|doubt| *doubt < before.arrived)
        });
        let mut sure = undoubted || whole;
        match (entry.verb.as_str(), entry.subresource.as_str()) {
            ("create", "binding") => {
                let node = entry.asked["target"]["name"].clone();
                merge(&mut body, &json!({"spec": {"nodeName": node}}));
            }
            ("delete", _) => {
                if entry.answer["metadata"].is_object() {
                    body["metadata"] = entry.answer["metadata"].clone();
                } else if entry.answer.is_null() {
                    merge(
                        &mut body,
                        &json!({"metadata": {"deletionTimestamp": "asked"}}),
                    );
                }
                if PROGRAMS.iter().any(|one| entry.by.starts_with(one)) {
                    let asked = (entry.arrived, entry.done, entry.by.clone());
                    life.asked_to_go.get_or_insert(asked);
                }
            }
            _ => {
                if whole {
                    body = entry.answer.clone();
                } else {
                    if entry.asked.is_object() {
                        merge(&mut body, &entry.asked);
                    } else {
                        // Patched in a way that is not read here.
                        sure = false;
                    }
                    if entry.answer["metadata"].is_object() {
                        body["metadata"] = entry.answer["metadata"].clone();
                    }
                }
                sure &= !is_fresh || is_made || whole;
            }
        }
        let held = body["metadata"]["finalizers"]
            .as_array()
            .is_some_and(|all| !all.is_empty());
        // What nothing holds back goes at once, and its answer says nothing of a deletion.
        let graceless = entry.asked["gracePeriodSeconds"] == 0;
        let at_once = entry.verb == "delete" && !held && (graceless || !is_going(&body));
        if at_once || is_gone(resource, &body) {
            life.gone = Some((entry.arrived, entry.done));
        }
        life.versions.push(Version {
            arrived: entry.arrived,
            done: entry.done,
            body,
            sure,
        });
    }
    for life in &mut lives {
        life.doubts.extend(swept);
        life.doubts.sort_unstable();
    }
    lives
}

/// Lives by resource.
struct World {
    lives: BTreeMap<Name, Vec<Life>>,
}

impl World {
    fn of(&self, resource: &str) -> impl Iterator<Item = (&Name, &Life)> {
        let here = self
            .lives
            .iter()
            .filter(move |(name, _)| name.0 == resource);
        here.flat_map(|(name, lives)| lives.iter().map(move |life| (name, life)))
    }

    fn claim(&self, uid: &Value) -> Option<(&Name, &Life)> {
        let uid = uid.as_str().filter(|uid| !uid.is_empty())?;
        self.of("persistentvolumeclaims").find(|(_, life)| {
            let mut versions = life.versions.iter();
            versions.any(|one| one.body["metadata"]["uid"] == uid)
        })
    }

    /// Its claim, if that surely lived on after this, and named no other volume.
    fn living_claim(
        &self,
        volume: &str,
        body: &Value,
        (arrived, done): (Timestamp, Timestamp),
    ) -> Option<&Name> {
        let (name, claim) = self.claim(&body["spec"]["claimRef"]["uid"])?;
        let possible = claim.possible(arrived, done);
        let is_its = possible.iter().all(|(one, sure)| {
            let named = one.body["spec"]["volumeName"].as_str().unwrap_or_default();
            *sure && (named.is_empty() || named == volume)
        });
        (claim.lives(done) && is_its).then_some(name)
    }

    fn judge_volumes(&self, kept: &mut Kept) {
        for ((_, _, volume), life) in self.of("persistentvolumes") {
            kept.volumes += 1;
            let pairs = life.versions.iter().zip(life.versions.iter().skip(1));
            for (before, after) in pairs {
                let during = (after.arrived, after.done);
                if phase(&after.body) == "Released" && phase(&before.body) != "Released" {
                    kept.released += 1;
                    if after.sure
                        && let Some((_, namespace, claim)) =
                            self.living_claim(volume, &after.body, during)
                    {
                        kept.complaints.push(format!(
                            "volume {volume} became Released at {}, while its claim {namespace}/{claim} lived",
                            after.done
                        ));
                    }
                }
                let lost = has_finalizer(&before.body, VOLUME_FINALIZER)
                    && !has_finalizer(&after.body, VOLUME_FINALIZER);
                kept.unprotected += usize::from(lost);
                let possible = life.possible(after.arrived, after.arrived);
                let is_bound = possible.iter().all(|(one, sure)| {
                    std::ptr::eq(*one, after) || *sure && phase(&one.body) == "Bound"
                });
                if lost && is_bound {
                    kept.complaints.push(format!(
                        "volume {volume} lost its finalizer at {}, while it was Bound",
                        after.done
                    ));
                }
            }
            let Some(last) = life.versions.last().filter(|last| last.sure) else {
                continue;
            };
            kept.deleted += usize::from(life.gone.is_some());
            // What was never Bound holds no data: its user may delete it at any time.
            let was_bound = life.versions.iter().any(|one| phase(&one.body) == "Bound");
            if let Some(during) = life.gone.filter(|_| was_bound)
                && let Some((_, namespace, claim)) = self.living_claim(volume, &last.body, during)
            {
                kept.complaints.push(format!(
                    "volume {volume} went at {}, while its claim {namespace}/{claim} lived",
                    during.1
                ));
            } else if let Some((arrived, done, by)) = &life.asked_to_go
                && let Some((_, namespace, claim)) =
                    self.living_claim(volume, &last.body, (*arrived, *done))
            {
                kept.complaints.push(format!(
                    "volume {volume} was deleted at {done} by {by}, while its claim {namespace}/{claim} lived"
                ));
            }
        }
    }

    fn judge_claims(&self, kept: &mut Kept) {
        for ((_, namespace, claim), life) in self.of("persistentvolumeclaims") {
            kept.claims += 1;
            let Some((born, _)) = life.born() else {
                continue;
            };
            let going = life.versions.iter().find(|one| is_going(&one.body));
            let pairs = life.versions.iter().zip(life.versions.iter().skip(1));
            for (_, after) in pairs.filter(|(before, after)| {
                has_finalizer(&before.body, CLAIM_FINALIZER)
                    && !has_finalizer(&after.body, CLAIM_FINALIZER)
            }) {
                kept.unprotected += 1;
                let asked = going.map_or(after.arrived, |going| going.arrived.min(after.arrived));
                for ((_, _, pod), _) in self.of("pods").filter(|((_, its, name), pod)| {
                    its == namespace && uses(name, claim, pod, (born, asked), after)
                }) {
                    kept.complaints.push(format!(
                        "claim {namespace}/{claim} lost its finalizer at {}, while pod {pod} had it",
                        after.done
                    ));
                }
            }
        }
    }

    fn judge_attached(&self, kept: &mut Kept) {
        let mut spans: BTreeMap<&str, Vec<(Timestamp, Timestamp, &str)>> = BTreeMap::new();
        for (_, life) in self.of("volumeattachments") {
            let Some(spec) = life.versions.last().map(|last| &last.body["spec"]) else {
                continue;
            };
            let volume = spec["source"]["persistentVolumeName"].as_str();
            let (Some(volume), Some(node)) = (volume, spec["nodeName"].as_str()) else {
                continue;
            };
            let its = life.spans(|body| body["status"]["attached"] == true);
            kept.attached += its.len();
            let its = its.into_iter().map(|(from, to)| (from, to, node));
            spans.entry(volume).or_default().extend(its);
        }
        for (volume, spans) in spans {
            let is_exclusive = self.of("persistentvolumes").any(|((_, _, name), life)| {
                let modes = life.versions.last();
                let modes = modes.and_then(|last| last.body["spec"]["accessModes"].as_array());
                name == volume
                    && modes.is_some_and(|modes| {
                        let mut modes = modes.iter().filter_map(Value::as_str);
                        modes.all(|mode| EXCLUSIVE.contains(&mode))
                    })
            });
            for (first, second, at) in overlaps(spans).filter(|_| is_exclusive) {
                kept.complaints.push(format!(
                    "volume {volume} was attached to {first} and to {second} at {at}"
                ));
            }
        }
    }

    fn judge_bound(&self, kept: &mut Kept) {
        let mut spans: BTreeMap<String, Vec<(Timestamp, Timestamp, &str)>> = BTreeMap::new();
        for ((_, _, volume), life) in self.of("persistentvolumes") {
            let mut claims: Vec<String> = life
                .versions
                .iter()
                .map(|one| text(&one.body["spec"]["claimRef"]["uid"]))
                .collect();
            claims.sort();
            claims.dedup();
            for claim in claims.into_iter().filter(|claim| !claim.is_empty()) {
                let its = life.spans(|body| {
                    phase(body) == "Bound" && body["spec"]["claimRef"]["uid"] == *claim
                });
                kept.bound += its.len();
                let its = its.into_iter().map(|(from, to)| (from, to, &**volume));
                spans.entry(claim).or_default().extend(its);
            }
        }
        for (claim, spans) in spans {
            for (first, second, at) in overlaps(spans) {
                kept.complaints.push(format!(
                    "the claim of uid {claim} had the volumes {first} and {second} at {at}"
                ));
            }
        }
    }
}

/// Pairs of different holders at the same time, each pair of neighbours once.
fn overlaps(
    mut spans: Vec<(Timestamp, Timestamp, &str)>,
) -> impl Iterator<Item = (&str, &str, Timestamp)> {
    spans.sort_unstable();
    let mut found = Vec::new();
    for (at, (_, to, holder)) in spans.iter().enumerate() {
        for (from, _, other) in &spans[at + 1..] {
            if holder != other && from < to {
                found.push((*holder, *other, *from));
            }
        }
    }
    found.into_iter()
}

/// Whether a pod surely had a claim when that lost its finalizer: on its node since before the claim's
/// deletion was asked for, and neither gone nor finished.
fn uses(
    name: &str,
    claim: &str,
    pod: &Life,
    (born, asked): (Timestamp, Timestamp),
    lost: &Version,
) -> bool {
    let on_node = pod.versions.iter().find(|one| {
        let node = one.body["spec"]["nodeName"].as_str();
        node.is_some_and(|node| !node.is_empty())
    });
    let Some(on_node) = on_node.filter(|one| one.done < asked && one.done > born) else {
        return false;
    };
    let volumes = on_node.body["spec"]["volumes"].as_array();
    let has_it = volumes.into_iter().flatten().any(|volume| {
        let named = volume["persistentVolumeClaim"]["claimName"].as_str();
        let own = volume["ephemeral"].is_object()
            && format!("{name}-{}", text(&volume["name"])) == *claim;
        named == Some(claim) || own
    });
    let is_over = |one: &Version| matches!(phase(&one.body), "Succeeded" | "Failed");
    let over = pod
        .versions
        .iter()
        .any(|one| one.arrived <= lost.done && is_over(one));
    has_it && !over && pod.lives(lost.done)
}

impl Volumes {
    /// Takes in one record.
    pub fn read(&mut self, record: &AuditRecord) {
        let object = record.object();
        if record.stage != "ResponseComplete"
            || !record.is_write()
            || !READ.contains(&object.resource.as_str())
            || is_dry_run(record)
            || record.was_withdrawn_unread()
        {
            return;
        }
        let unclear = record.code().is_none_or(|code| code >= 500);
        let granted = record.code().is_some_and(|code| (200..300).contains(&code));
        if !(granted || unclear) {
            return;
        }
        if record.verb == "deletecollection" {
            let place = (object.resource, object.namespace);
            let swept = self.swept.entry(place).or_default();
            swept.push(record.request_received_timestamp);
            return;
        }
        // An eviction asks for an end that the deletion without grace will bring.
        if matches!(
            object.subresource.as_str(),
            "eviction" | "token" | "ephemeralcontainers"
        ) {
            return;
        }
        let answer = reduced(record.response_object.as_ref());
        let version = text(&answer["metadata"]["resourceVersion"]).parse().ok();
        let name = name_of(&object.name, record.response_object.as_ref());
        let entry = Entry {
            arrived: record.request_received_timestamp,
            done: record.stage_timestamp,
            verb: record.verb.clone(),
            subresource: object.subresource,
            by: record.user_agent.clone(),
            unclear,
            asked: reduced(record.request_object.as_ref()),
            answer,
            version,
        };
        let name = (object.resource, object.namespace, name);
        self.entries.entry(name).or_default().push(entry);
    }

    /// What all that was read comes to.
    pub fn verdict(&self) -> Kept {
        let world = World {
            lives: self
                .entries
                .iter()
                .map(|(name, entries)| {
                    let place = (name.0.clone(), name.1.clone());
                    let swept = self.swept.get(&place).map_or(&[][..], Vec::as_slice);
                    (name.clone(), lives(&name.0, entries, swept))
                })
                .collect(),
        };
        let mut kept = Kept::default();
        world.judge_volumes(&mut kept);
        world.judge_claims(&mut kept);
        world.judge_attached(&mut kept);
        world.judge_bound(&mut kept);
        kept
    }
}

impl Kept {
    /// The figures in one line.
    pub fn summary(&self) -> String {
        format!(
            "{} claims and {} volumes: {} times bound, {} attached, {} finalizers taken off, {} released, {} deleted; \
             {} complaints",
            self.claims,
            self.volumes,
            self.bound,
            self.attached,
            self.unprotected,
            self.released,
            self.deleted,
            self.complaints.len()
        )
    }
}
