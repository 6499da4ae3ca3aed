//! The plan of a pod or PodGroup: its claims are made, their names noted, and those of a pod that was bound
//! without the scheduler reserved for it.

use std::sync::Arc;

use controllers_kit::{
    Event, Key, PatchKind, Plan, Query, Refusal, Snapshot, StatusWrite, Str, pods,
};
use kubernetes_proto::{Object, core::Pod, resource::ResourceClaim, scheduling::PodGroup};
use serde_json::json;

use super::{
    FAILED, Features, MANAGER,
    facts::{self, CONSUMERS_MAX, Entry, Holder, Kind, Named},
    make::{self, Live},
};

fn claim_key(holder: &Holder<'_>, name: &str) -> Key {
    Key::new(holder.meta.namespace.clone(), name)
}

/// Queries for the claims that a holder has recorded and that the cache does not show: they are read before
/// another is created, since the watches of holders and of claims are not synchronized.
fn unseen(holder: &Holder<'_>, seen: &Snapshot<'_>) -> Vec<Query> {
    let made = holder
        .entries
        .iter()
        .filter_map(|entry| match holder.named(*entry) {
            Named::Made(name) => Some(claim_key(holder, name)),
            _ => None,
        });
    made.filter(|key| seen.get::<ResourceClaim>(key).is_none())
        .map(live_claim)
        .collect()
}

fn live_claim(key: Key) -> Query {
    Query::Live {
        resource: ResourceClaim::resource(),
        key,
    }
}

/// What is asked before a pod is planned.
pub(super) fn ask_of_pod(pod: &Pod, seen: &Snapshot<'_>) -> Vec<Query> {
    match pod.is_terminating() || facts::is_done(pod) {
        true => Vec::new(),
        false => unseen(&Holder::of_pod(pod), seen),
    }
}

/// What is asked before a PodGroup is planned.
pub(super) fn ask_of_group(group: &PodGroup, seen: &Snapshot<'_>) -> Vec<Query> {
    match group.is_terminating() {
        true => Vec::new(),
        false => unseen(&Holder::of_group(group), seen),
    }
}

/// A pass over the entries of one holder.
struct Pass<'a> {
    features: Features,
    seen: &'a Snapshot<'a>,
    plan: Plan,
    holder: Holder<'a>,
    /// The group of a pod, where groups have claims.
    group: Option<Holder<'a>>,
    /// Names of entries and of their claims, to be recorded.
    names: Vec<(&'a str, Option<Str>)>,
    /// Whether any of them is news.
    changed: bool,
}

/// What stops a pass.
enum Stop {
    /// This is reported as an event, and the key backs off.
    Report(String),
    /// The key can't be planned now.
    Refuse(Refusal),
}

impl<'a> Pass<'a> {
    /// Sees to the claim of an entry.
    fn entry<T: Object>(
        &mut self,
        owner: &T,
        entry: Entry<'a>,
        is_own: &dyn Fn(&ResourceClaim) -> bool,
    ) -> Result<(), Stop> {
        match self.holder.named(entry) {
            Named::Unsupported => return Err(Stop::Report(self.holder.unsupported(entry))),
            Named::Given(_) => return Ok(()),
            Named::NotNeeded => {
                self.names.push((entry.name, None));
                return Ok(());
            }
            Named::NotMade => {}
            Named::Made(name) => {
                let key = claim_key(&self.holder, name);
                match self.seen.get::<ResourceClaim>(&key) {
                    Some(claim) if is_own(&claim) => {
                        self.names.push((entry.name, Some(name.into())));
                        return Ok(());
                    }
                    // It belongs to another holder: this one gets one of its own.
                    Some(_) => {}
                    None => match make::live(self.seen, &live_claim(key.clone())) {
                        Ok(Live::Missing) => {}
                        Ok(Live::Uid(_)) => {
                            let why = format!(
                                "resourceclaims.resource.k8s.io {key} is not in the cache yet"
                            );
                            return Err(Stop::Refuse(Refusal::Expected(why)));
                        }
                        Ok(Live::NotAsked) => {
                            let why = format!("{key} has gone while it was asked for others");
                            return Err(Stop::Refuse(Refusal::Expected(why)));
                        }
                        Err(refusal) => return Err(Stop::Refuse(refusal)),
                    },
                }
            }
        }
        let kind = match self.holder.kind {
            Kind::PodGroup => Kind::PodGroup,
            Kind::Pod => {
                facts::binds_to(&self.holder, self.group.as_ref(), entry).map_err(Stop::Report)?
            }
        };
        let name = match (kind, &self.group) {
            // The group's key creates it; the pod records it once it exists.
            (Kind::PodGroup, Some(group)) => match make::find(group, entry, self.seen) {
                Some(claim) => Object::metadata(&*claim).name.clone(),
                None => return Ok(()),
            },
            _ => match make::find(&self.holder, entry, self.seen) {
                Some(claim) => Object::metadata(&*claim).name.clone(),
                None => make::create(
                    &mut self.plan,
                    self.features,
                    owner,
                    &self.holder,
                    entry,
                    self.seen,
                )
                .map_err(Stop::Report)?,
            },
        };
        self.names.push((entry.name, Some(name)));
        self.changed = true;
        Ok(())
    }

    /// Creates the claims of all entries, and records their names. Whether all succeeded; otherwise the
    /// plan ends with what was planned before.
    fn entries<T: Object>(
        &mut self,
        owner: &T,
        is_own: &dyn Fn(&ResourceClaim) -> bool,
    ) -> Result<bool, Refusal> {
        for entry in self.holder.entries.clone() {
            match self.entry(owner, entry, is_own) {
                Ok(()) => {}
                Err(Stop::Refuse(refusal)) => return Err(refusal),
                // Later entries wait for this one, and so do the names of earlier ones, as upstream's.
                Err(Stop::Report(why)) => {
                    let what = format!("{} {}: {why}", self.holder.word(), entry.name);
                    self.plan.event(Event::warning(owner, FAILED, what.clone()));
                    let (kind, key) = (T::resource().kind, Key::of(owner));
                    self.plan.fail(format!("{kind} {key}, {what}"));
                    return Ok(false);
                }
            }
        }
        if self.changed {
            self.plan.then();
            // All of them: an apply of a part would remove what was applied before.
            let status = |(entry, claim): &(&str, Option<Str>)| match claim {
                Some(claim) => json!({"name": entry, "resourceClaimName": claim}),
                None => json!({"name": entry}),
            };
            let names: Vec<_> = self.names.iter().map(status).collect();
            let fields = json!({"status": {"resourceClaimStatuses": names}});
            let kind = PatchKind::Apply { manager: MANAGER };
            self.plan
                .patch(owner, "status", kind, fields, StatusWrite::No);
        }
        Ok(true)
    }
}

/// The plan of a PodGroup.
///
/// # Errors
/// Where it can't be planned now.
pub(super) fn plan_group(
    features: Features,
    group: &PodGroup,
    seen: &Snapshot<'_>,
) -> Result<Plan, Refusal> {
    let mut pass = Pass {
        features,
        seen,
        plan: Plan::nothing(),
        holder: Holder::of_group(group),
        group: None,
        names: Vec::new(),
        changed: false,
    };
    if !group.is_terminating() {
        let meta = group.metadata();
        pass.entries(group, &|claim| facts::is_for_group(meta, claim))?;
    }
    Ok(pass.plan)
}

/// The plan of a pod.
///
/// # Errors
/// Where it can't be planned now.
pub(super) fn plan_pod(
    features: Features,
    pod: &Pod,
    seen: &Snapshot<'_>,
) -> Result<Plan, Refusal> {
    let holder = Holder::of_pod(pod);
    if holder.entries.is_empty() || pod.is_terminating() || facts::is_done(pod) {
        return Ok(Plan::nothing());
    }
    let group = group_of(features, pod, seen)?;
    let mut pass = Pass {
        features,
        seen,
        plan: Plan::nothing(),
        holder,
        group: group.as_deref().map(Holder::of_group),
        names: Vec::new(),
        changed: false,
    };
    let is_own = |claim: &ResourceClaim| facts::is_for_pod(pod, claim, features.groups);
    if pass.entries(pod, &is_own)? && !pods::node_name(pod).is_empty() {
        pass.plan.then();
        reserve(&mut pass, pod);
    }
    Ok(pass.plan)
}

/// The PodGroup of a pod, where groups have claims.
///
/// # Errors
/// Where it does not exist yet: until then it is unknown for whom claims are created.
fn group_of(
    features: Features,
    pod: &Pod,
    seen: &Snapshot<'_>,
) -> Result<Option<Arc<PodGroup>>, Refusal> {
    let Some(name) = facts::group_name(pod).filter(|_| features.groups) else {
        return Ok(None);
    };
    let meta = pod.metadata();
    let group = seen.get::<PodGroup>(&Key::new(meta.namespace.clone(), name.clone()));
    group.map(Some).ok_or_else(|| {
        Refusal::Retry(format!(
            "get PodGroup for Pod {}/{}: podgroup.scheduling.k8s.io {:?} not found",
            meta.namespace, meta.name, &**name
        ))
    })
}

/// Reserves, for a pod that is bound to a node, the claims that are allocated and not reserved for it: the
/// scheduler does so for the pods that it binds, but this pod was bound without it.
fn reserve(pass: &mut Pass<'_>, pod: &Pod) {
    let mut done: Vec<&str> = Vec::new();
    for entry in pass.holder.entries.clone() {
        let named = pass.holder.named(entry);
        // A name that this plan is the first to record is reserved once the pod shows it.
        let Some(name) = named.claim().filter(|name| !done.contains(name)) else {
            continue;
        };
        let Some(claim) = pass
            .seen
            .get::<ResourceClaim>(&claim_key(&pass.holder, name))
        else {
            continue;
        };
        let is_own = matches!(named, Named::Given(_))
            || facts::is_for_pod(pod, &claim, pass.features.groups);
        if !is_own || !wants_reservation(pod, &claim, pass.features.groups) {
            continue;
        }
        done.push(name);
        let consumer = match facts::binds_to(&pass.holder, pass.group.as_ref(), entry) {
            Ok(Kind::PodGroup) => pass.group.as_ref().map(facts::reservation),
            Ok(Kind::Pod) => Some(facts::reservation(&pass.holder)),
            Err(why) => {
                pass.plan.fail(why);
                return;
            }
        };
        let mut consumers = facts::consumers(&claim).to_vec();
        if consumers.len() >= CONSUMERS_MAX {
            pass.plan.fail(format!(
                "reserve claim {}: it is reserved for {} consumers, and the API allows {CONSUMERS_MAX}",
                Key::of(&*claim),
                consumers.len()
            ));
            continue;
        }
        consumers.extend(consumer);
        let patch = json!({"status": {"reservedFor": consumers}});
        pass.plan
            .patch(&*claim, "status", PatchKind::Merge, patch, StatusWrite::No);
    }
}

/// Whether a claim is allocated and not reserved for a pod that needs it.
pub(super) fn wants_reservation(pod: &Pod, claim: &ResourceClaim, groups: bool) -> bool {
    facts::is_allocated(claim) && !facts::is_reserved_for(pod, claim, groups)
}
