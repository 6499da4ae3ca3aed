//! Which keys a change wakes. `GROUPS` says whether PodGroups have claims.

use controllers_kit::{Change, Key, Reader, Str, cast};
use kubernetes_proto::{
    Object,
    core::Pod,
    resource::{ResourceClaim, ResourceClaimTemplate},
    scheduling::PodGroup,
};

use super::{
    CLAIM, PODGROUP, facts,
    facts::{Holder, Kind, Named},
    holder,
};

/// The index of pods and PodGroups by `namespace/name` of each of their known claims.
pub(super) const BY_CLAIM: &str = "resourceclaim: holders of a claim";
/// The index of pods and PodGroups by `namespace/name` of each template that they name.
pub(super) const BY_TEMPLATE: &str = "resourceclaim: users of a template";
/// The index of pods with claims by `namespace/name` of their group.
pub(super) const BY_GROUP: &str = "resourceclaim: pods of a group";

fn place(namespace: &str, name: &str) -> Str {
    Str::from(format!("{namespace}/{name}"))
}

fn places<'a>(holder: &Holder<'_>, names: impl Iterator<Item = &'a str>) -> Vec<Str> {
    let namespace = &holder.meta.namespace;
    let mut places: Vec<Str> = names.map(|name| place(namespace, name)).collect();
    places.sort();
    places.dedup();
    places
}

fn templates<'a>(holder: &Holder<'a>) -> impl Iterator<Item = &'a str> {
    let templates = holder.entries.iter().map(|entry| entry.template);
    templates.filter(|template| !template.is_empty())
}

/// The values of [`BY_CLAIM`] for pods.
pub(super) fn claims_of_pod(pod: &Pod) -> Vec<Str> {
    let holder = Holder::of_pod(pod);
    places(&holder, holder.claims())
}

/// The values of [`BY_TEMPLATE`] for pods.
pub(super) fn templates_of_pod(pod: &Pod) -> Vec<Str> {
    let holder = Holder::of_pod(pod);
    places(&holder, templates(&holder))
}

/// The values of [`BY_GROUP`].
pub(super) fn group_of_pod(pod: &Pod) -> Vec<Str> {
    let has_claims = |pod: &Pod| !Holder::of_pod(pod).entries.is_empty();
    let group = facts::group_name(pod).filter(|_| has_claims(pod));
    let namespace = &pod.metadata().namespace;
    group
        .map(|group| place(namespace, group))
        .into_iter()
        .collect()
}

/// The values of [`BY_CLAIM`] for PodGroups.
pub(super) fn claims_of_group(group: &PodGroup) -> Vec<Str> {
    let holder = Holder::of_group(group);
    places(&holder, holder.claims())
}

/// The values of [`BY_TEMPLATE`] for PodGroups.
pub(super) fn templates_of_group(group: &PodGroup) -> Vec<Str> {
    let holder = Holder::of_group(group);
    places(&holder, templates(&holder))
}

fn get<T: Object>(reader: &dyn Reader, namespace: &str, name: &str) -> Option<std::sync::Arc<T>> {
    reader.get(T::resource(), namespace, name).and_then(cast)
}

fn found<T: Object>(
    reader: &dyn Reader,
    index: &'static str,
    value: &str,
) -> Vec<std::sync::Arc<T>> {
    let found = reader.indexed(T::resource(), index, value);
    found.into_iter().filter_map(cast).collect()
}

fn claim_key(namespace: &str, name: &str) -> Key {
    Key::within(namespace, CLAIM, name)
}

fn group_key(group: &PodGroup) -> Key {
    let meta = group.metadata();
    Key::within(meta.namespace.clone(), PODGROUP, &meta.name)
}

/// Whether a claim of a holder must still be created, or its name recorded.
fn lacks_claims(holder: &Holder<'_>, reader: &dyn Reader, groups: bool, pod: Option<&Pod>) -> bool {
    holder
        .entries
        .iter()
        .any(|entry| match holder.named(*entry) {
            Named::Given(_) | Named::NotNeeded => false,
            Named::NotMade | Named::Unsupported => true,
            Named::Made(name) => {
                let claim = get::<ResourceClaim>(reader, &holder.meta.namespace, name);
                claim.is_none_or(|claim| match (holder.kind, pod) {
                    (Kind::Pod, Some(pod)) => !facts::is_for_pod(pod, &claim, groups),
                    _ => !facts::is_for_group(holder.meta, &claim),
                })
            }
        })
}

/// The key of a pod with something to do.
fn needy<const GROUPS: bool>(pod: &Pod, reader: &dyn Reader) -> Option<Key> {
    let holder = Holder::of_pod(pod);
    if holder.entries.is_empty() || pod.is_terminating() || facts::is_done(pod) {
        return None;
    }
    let is_bound = !controllers_kit::pods::node_name(pod).is_empty();
    let wants_reservation = || {
        holder.claims().any(|name| {
            let claim = get::<ResourceClaim>(reader, &holder.meta.namespace, name);
            claim.is_some_and(|claim| holder::wants_reservation(pod, &claim, GROUPS))
        })
    };
    let needs = lacks_claims(&holder, reader, GROUPS, Some(pod)) || is_bound && wants_reservation();
    needs.then(|| Key::of(pod))
}

/// The keys of the claims of a pod that no longer needs them: those that it names, that of its extended
/// resources, and those that were created for it.
fn freed(pod: &Pod, reader: &dyn Reader, keys: &mut Vec<Key>) {
    let holder = Holder::of_pod(pod);
    let status = pod.status.as_ref();
    let extended = status.and_then(|status| status.extended_resource_claim_status.as_ref());
    if holder.entries.is_empty() && extended.is_none() {
        return;
    }
    let namespace = &holder.meta.namespace;
    let extended = extended.map(|status| &*status.resource_claim_name);
    let named = holder.claims().chain(extended);
    keys.extend(named.map(|name| claim_key(namespace, name)));
    let owned = reader.indexed(
        ResourceClaim::resource(),
        controllers_kit::Index::OWNER,
        &holder.meta.uid,
    );
    keys.extend(
        owned
            .iter()
            .map(|claim| claim_key(namespace, &claim.metadata().name)),
    );
}

fn distinct(mut keys: Vec<Key>) -> Vec<Key> {
    keys.sort();
    keys.dedup();
    keys
}

/// A pod wakes its claims where it no longer needs them, and itself where there is something to do.
pub(super) fn by_pod<const GROUPS: bool>(
    change: &Change<'_, Pod>,
    reader: &dyn Reader,
) -> Vec<Key> {
    let mut keys = Vec::new();
    let uid = |pod: &Pod| pod.metadata().uid.clone();
    let replaced = |old: &&Pod| change.new.map(uid) != Some(uid(old));
    if let Some(gone) = change.old.filter(replaced) {
        freed(gone, reader, &mut keys);
    }
    if let Some(new) = change.new {
        if facts::is_done(new) {
            freed(new, reader, &mut keys);
        }
        keys.extend(needy::<GROUPS>(new, reader));
    }
    distinct(keys)
}

/// A claim wakes itself, the pods and PodGroups that have it, and its owner.
pub(super) fn by_claim<const GROUPS: bool>(
    change: &Change<'_, ResourceClaim>,
    reader: &dyn Reader,
) -> Vec<Key> {
    let meta = change.newest().metadata();
    let mut keys = vec![claim_key(&meta.namespace, &meta.name)];
    let place = place(&meta.namespace, &meta.name);
    let pods = found::<Pod>(reader, BY_CLAIM, &place);
    keys.extend(pods.iter().filter_map(|pod| needy::<GROUPS>(pod, reader)));
    for owner in change.both().filter_map(facts::owning_pod) {
        let pod = get::<Pod>(reader, &meta.namespace, &owner.name);
        keys.extend(pod.and_then(|pod| needy::<GROUPS>(&pod, reader)));
    }
    if GROUPS {
        let groups = found::<PodGroup>(reader, BY_CLAIM, &place);
        keys.extend(groups.iter().filter_map(|group| needy_group(group, reader)));
        let owners = change
            .both()
            .filter_map(|claim| claim.metadata().controller());
        for owner in owners.filter(|owner| owner.kind == *"PodGroup") {
            if let Some(group) = get::<PodGroup>(reader, &meta.namespace, &owner.name) {
                keys.extend(needy_group(&group, reader));
                members::<GROUPS>(&group, reader, &mut keys);
            }
        }
    }
    distinct(keys)
}

/// A new or changed template wakes the pods and PodGroups that wait for it.
pub(super) fn by_template<const GROUPS: bool>(
    change: &Change<'_, ResourceClaimTemplate>,
    reader: &dyn Reader,
) -> Vec<Key> {
    let Some(template) = change.new.map(Object::metadata) else {
        return Vec::new();
    };
    let place = place(&template.namespace, &template.name);
    let pods = found::<Pod>(reader, BY_TEMPLATE, &place);
    let mut keys: Vec<Key> = pods
        .iter()
        .filter_map(|pod| needy::<GROUPS>(pod, reader))
        .collect();
    if GROUPS {
        let groups = found::<PodGroup>(reader, BY_TEMPLATE, &place);
        keys.extend(groups.iter().filter_map(|group| needy_group(group, reader)));
    }
    keys
}

/// The key of a PodGroup with something to do.
fn needy_group(group: &PodGroup, reader: &dyn Reader) -> Option<Key> {
    let holder = Holder::of_group(group);
    let needs = !group.is_terminating() && lacks_claims(&holder, reader, true, None);
    needs.then(|| group_key(group))
}

/// The keys of the pods of a group with something to do.
fn members<const GROUPS: bool>(group: &PodGroup, reader: &dyn Reader, keys: &mut Vec<Key>) {
    let meta = group.metadata();
    let pods = found::<Pod>(reader, BY_GROUP, &place(&meta.namespace, &meta.name));
    keys.extend(pods.iter().filter_map(|pod| needy::<GROUPS>(pod, reader)));
}

/// A PodGroup wakes its claims where it is gone, itself, and its pods, which wait for it and for its
/// claims.
pub(super) fn by_group(change: &Change<'_, PodGroup>, reader: &dyn Reader) -> Vec<Key> {
    let mut keys = Vec::new();
    let uid = |group: &PodGroup| group.metadata().uid.clone();
    let replaced = |old: &&PodGroup| change.new.map(uid) != Some(uid(old));
    if let Some(gone) = change.old.filter(replaced) {
        let holder = Holder::of_group(gone);
        let namespace = &holder.meta.namespace;
        keys.extend(holder.claims().map(|name| claim_key(namespace, name)));
    }
    if let Some(new) = change.new {
        keys.extend(needy_group(new, reader));
        members::<true>(new, reader, &mut keys);
    }
    distinct(keys)
}
