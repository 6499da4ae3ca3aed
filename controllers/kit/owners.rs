//! Ownership: which objects an owner holds, adopts or releases, and the patches that do so.

use std::sync::Arc;

use kubernetes_proto::{
    Object, Shared, Str, cast,
    meta::{LabelSelector, ObjectMeta, OwnerReference},
};
use serde_json::json;

use crate::{
    Answer, Change, Key, PatchKind, Plan, Query, Reader, Refusal, Snapshot, StatusWrite,
    selectors::Selector,
};

/// The index of objects that no controller manages, by namespace: where an owner searches for objects to
/// adopt.
pub const ORPHANS: &str = "orphans";

/// The value of [`ORPHANS`] for an object.
pub fn orphan_in<T: Object>(object: &T) -> Vec<Str> {
    let meta = object.metadata();
    match meta.controller() {
        None => vec![meta.namespace.clone()],
        Some(_) => Vec::new(),
    }
}

/// The owners that might adopt an object: those that select it when it appears without a controller, loses it
/// or changes its labels.
pub fn adopters<O: Object, T: Object>(
    change: &Change<'_, T>,
    reader: &dyn Reader,
    selector: fn(&O) -> Option<&LabelSelector>,
) -> Vec<Key> {
    let Some(meta) = change.new.map(Object::metadata) else {
        return Vec::new();
    };
    let is_news = change
        .old
        .map(Object::metadata)
        .is_none_or(|before| before.controller().is_some() || before.labels != meta.labels);
    if meta.controller().is_some() || meta.is_terminating() || meta.labels.is_empty() || !is_news {
        return Vec::new();
    }
    reader
        .list(O::resource(), Some(&meta.namespace))
        .into_iter()
        .filter_map(cast::<O>)
        .filter(|owner| {
            Selector::compile(selector(owner))
                .is_ok_and(|selector| !selector.is_empty() && selector.matches(&meta.labels))
        })
        .map(|owner| Key::of(owner.as_ref()))
        .collect()
}

/// The reference that makes an owner the managing controller.
pub fn reference<O: Object>(owner: &O) -> Shared<OwnerReference> {
    let resource = O::resource();
    Shared::from(OwnerReference {
        api_version: Str::interned(&resource.api_version()),
        kind: Str::interned(resource.kind),
        name: owner.metadata().name.clone(),
        uid: owner.metadata().uid.clone(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    })
}

/// Whether the managing controller is the one with this uid.
pub fn is_controlled_by(meta: &ObjectMeta, uid: &str) -> bool {
    meta.controller().is_some_and(|owner| owner.uid == *uid)
}

/// An owner's adoptions, releases and present children.
#[derive(Clone, Debug, PartialEq)]
pub struct Claims<T> {
    /// Children that it owns and selects.
    pub owned: Vec<Arc<T>>,
    /// Orphans that are selected: to be adopted.
    pub adopt: Vec<Arc<T>>,
    /// Children that it owns but no longer selects, to be released.
    pub release: Vec<Arc<T>>,
}

impl<T> Claims<T> {
    /// Whether adoptions or releases must be written before the owner can be sure of its children.
    pub fn are_unsettled(&self) -> bool {
        !self.adopt.is_empty() || !self.release.is_empty()
    }
}

/// Sorts the objects that an owner might own. A terminating owner keeps its children, adopts nothing and
/// releases nothing; a terminating object is not adopted.
pub fn claim<O: Object, T: Object>(
    owner: &O,
    selector: &Selector,
    objects: impl IntoIterator<Item = Arc<T>>,
) -> Claims<T> {
    let mut claims = Claims {
        owned: Vec::new(),
        adopt: Vec::new(),
        release: Vec::new(),
    };
    let owner_leaves = owner.is_terminating();
    let owner = owner.metadata();
    for object in objects {
        let meta = object.metadata();
        let selected = selector.matches(&meta.labels);
        match meta.controller() {
            Some(other) if other.uid != owner.uid => {}
            Some(_) if selected => claims.owned.push(object),
            Some(_) if owner_leaves => {}
            Some(_) => claims.release.push(object),
            None => {
                let adoptable = selected
                    && !owner_leaves
                    && !meta.is_terminating()
                    && (owner.namespace.is_empty() || owner.namespace == meta.namespace);
                if adoptable {
                    claims.adopt.push(object);
                }
            }
        }
    }
    claims
}

/// The opening of an owner's reconcile: the owner, the children that it has and might adopt, and the
/// adoptions and releases to settle before it can rely on them.
#[derive(Clone, Debug, PartialEq)]
pub struct Claimed<O, T> {
    /// The owner.
    pub owner: Arc<O>,
    /// The selector of its children.
    pub selector: Selector,
    /// All objects whose controller it is, in whatever state.
    pub children: Vec<Arc<T>>,
    /// Adoptions and releases to write.
    pub claims: Claims<T>,
    /// A finalizer that an adopted child gets and a released one loses.
    finalizer: Option<&'static str>,
}

impl<O: Object, T: Object> Claimed<O, T> {
    /// The children and orphans of an owner's namespace. The kind `T` must be indexed by [`ORPHANS`].
    pub fn of(owner: Arc<O>, selector: Selector, seen: &Snapshot<'_>) -> Self {
        Self::among(owner, selector, seen, |_, _| true)
    }

    /// As [`Claimed::of`], but only objects that pass `is_candidate` are claimed; `children` has all of them.
    pub fn among(
        owner: Arc<O>,
        selector: Selector,
        seen: &Snapshot<'_>,
        is_candidate: impl Fn(&O, &T) -> bool,
    ) -> Self {
        let meta = owner.metadata();
        let children = seen.owned_by::<T>(&meta.uid);
        let orphans = seen.indexed::<T>(ORPHANS, &meta.namespace);
        let candidates = children.iter().cloned().chain(orphans);
        let candidates = candidates.filter(|object| is_candidate(&owner, object));
        let claims = claim(owner.as_ref(), &selector, candidates);
        Self {
            owner,
            selector,
            children,
            claims,
            finalizer: None,
        }
    }

    /// A child gets this finalizer with its adoption, and loses it with its release.
    #[must_use]
    pub fn with_finalizer(mut self, finalizer: &'static str) -> Self {
        self.finalizer = Some(finalizer);
        self
    }

    /// The live read that is needed before claims can be settled, where something is to be adopted.
    pub fn ask(&self) -> Option<Query> {
        (!self.claims.adopt.is_empty()).then(|| recheck(self.owner.as_ref()))
    }

    /// The plan that settles the claims: adoptions and releases alone, since the owner can be sure of its
    /// children only afterwards. `None` where nothing is to be settled.
    pub fn settle(&self, seen: &Snapshot<'_>) -> Option<Result<Plan, Refusal>> {
        let settle = || {
            let mut plan = Plan::nothing();
            let owner = self.owner.as_ref();
            for object in &self.claims.release {
                release(&mut plan, owner, object.as_ref(), self.finalizer);
            }
            if self.claims.adopt.is_empty() {
                return Ok(plan);
            }
            match may_adopt(owner, seen) {
                Ok(()) => {
                    for object in &self.claims.adopt {
                        adopt(&mut plan, owner, object.as_ref(), self.finalizer);
                    }
                }
                // Releases do not depend on the owner's state.
                Err(refusal) if plan.is_nothing() => return Err(refusal),
                Err(_) => {}
            }
            Ok(plan)
        };
        self.claims.are_unsettled().then(settle)
    }

    /// Declares in a plan that it rests on the number of selected objects ([`Plan::counted`]).
    pub fn count(&self, plan: &mut Plan) {
        plan.counted::<T>(&self.owner.metadata().namespace, &self.selector);
    }
}

/// The live read before an adoption: the cache may not show yet that the owner is gone, and an object
/// adopted by a deleted owner would be garbage-collected with it.
pub fn recheck<O: Object>(owner: &O) -> Query {
    Query::Live {
        resource: O::resource(),
        key: Key::of(owner),
    }
}

/// Whether the live owner is still the one seen, and stays.
///
/// # Errors
/// Where it is not, or was not read.
pub fn may_adopt<O: Object>(owner: &O, seen: &Snapshot<'_>) -> Result<(), Refusal> {
    let kind = O::resource().kind;
    let key = Key::of(owner);
    let wanted = &owner.metadata().uid;
    match seen.answer(&recheck(owner)) {
        None => Err(Refusal::Retry(format!(
            "can't recheck DeletionTimestamp: {kind} {key} was not read"
        ))),
        Some(Answer::Failed(why)) => Err(Refusal::Retry(format!(
            "can't recheck DeletionTimestamp: {why}"
        ))),
        Some(Answer::Missing | Answer::NotFound(_)) => {
            Err(Refusal::Wait(format!("original {kind} {key} is gone")))
        }
        Some(Answer::Object(live)) => {
            let meta = &live["metadata"];
            let uid = meta["uid"].as_str().unwrap_or_default();
            if wanted != uid {
                return Err(Refusal::Wait(format!(
                    "original {kind} {key} is gone: got uid {uid}, wanted {wanted}"
                )));
            }
            match meta["deletionTimestamp"].as_str() {
                Some(at) => Err(Refusal::Wait(format!(
                    "{key} has just been deleted at {at}"
                ))),
                None => Ok(()),
            }
        }
    }
}

/// Adopts; the server refuses where another controller was first.
fn adopt<O: Object, T: Object>(
    plan: &mut Plan,
    owner: &O,
    object: &T,
    finalizer: Option<&'static str>,
) {
    let mut patch = json!({"metadata": {
        "uid": object.metadata().uid,
        "ownerReferences": [reference(owner)],
    }});
    if let Some(finalizer) = finalizer {
        patch["metadata"]["finalizers"] = json!([finalizer]);
    }
    plan.patch(object, "", PatchKind::Strategic, patch, StatusWrite::No);
}

/// Releases a child that is no longer selected.
fn release<O: Object, T: Object>(
    plan: &mut Plan,
    owner: &O,
    object: &T,
    finalizer: Option<&'static str>,
) {
    let mut patch = json!({"metadata": {
        "uid": object.metadata().uid,
        "ownerReferences": [{"$patch": "delete", "uid": owner.metadata().uid}],
    }});
    if let Some(finalizer) = finalizer {
        patch["metadata"]["$deleteFromPrimitiveList/finalizers"] = json!([finalizer]);
    }
    plan.patch(object, "", PatchKind::Strategic, patch, StatusWrite::No);
}

#[cfg(test)]
mod tests;
