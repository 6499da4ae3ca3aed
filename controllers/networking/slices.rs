//! What the two controllers of EndpointSlices share: how endpoints are identified, how slices are found,
//! named and written.
//!
//! Slices have names that follow from their owner's uid and an ordinal, so that of two replicas that plan
//! from one view the second one's first slice collides. The first slice is created alone, before all
//! others, and after the changes of existing ones, whose precondition is the version seen: a plan from an
//! old view fails before it has put an endpoint into a second slice.

use std::sync::Arc;

use controllers_kit::{
    Action, Event, Key, Only, Plan, Propagation, Reader, Snapshot, StatusWrite,
    names::{Children, Known},
    owners,
    selectors::Selector,
};
use kubernetes_proto::{
    Object, Str,
    discovery::{Endpoint, EndpointPort, EndpointSlice},
    meta::{self, Entry, ObjectMeta},
};

/// The label that names a slice's Service.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// The label that names who keeps a slice.
pub const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";

/// The index of slices by their Service.
pub const BY_SERVICE: &str = "service";

/// The value of [`BY_SERVICE`].
pub fn by_service(slice: &EndpointSlice) -> Vec<Str> {
    service_of(slice)
        .map(|key| Str::from(key.to_string()))
        .into_iter()
        .collect()
}

/// The Service that a slice says it is for.
fn service_of(slice: &EndpointSlice) -> Option<Key> {
    let meta = slice.metadata();
    let name = meta.label(SERVICE_NAME).filter(|name| !name.is_empty())?;
    Some(Key::new(meta.namespace.clone(), name))
}

/// Whether a controller keeps a slice.
pub fn is_managed_by(slice: &EndpointSlice, controller: &str) -> bool {
    slice.metadata().label(MANAGED_BY) == Some(controller)
}

/// The keys that a slice's change wakes: its Services before and after, where it is or was this
/// controller's.
pub fn woken_by_slice(
    slices: impl Iterator<Item = impl std::borrow::Borrow<EndpointSlice>>,
    controller: &str,
) -> Vec<Key> {
    let mut keys = Vec::new();
    let mut managed = false;
    for slice in slices {
        managed |= is_managed_by(slice.borrow(), controller);
        keys.extend(service_of(slice.borrow()));
    }
    keys.dedup();
    if managed { keys } else { Vec::new() }
}

/// A controller's slices of a Service, terminating ones included.
pub fn held(key: &Key, controller: &str, seen: &Snapshot<'_>) -> Vec<Arc<EndpointSlice>> {
    let mut slices = seen.indexed::<EndpointSlice>(BY_SERVICE, &key.to_string());
    slices.retain(|slice| is_managed_by(slice, controller));
    slices
}

/// The identity of an endpoint: addresses, hostname and target; all else changes in place.
pub type Identity<'a> = (&'a [String], &'a str, &'a str, &'a str);

/// The identity of an endpoint.
pub fn identity(endpoint: &Endpoint) -> Identity<'_> {
    let (namespace, name) = endpoint.target_ref.as_ref().map_or(("", ""), |target| {
        (target.namespace.as_str(), target.name.as_str())
    });
    (
        &endpoint.addresses,
        endpoint.hostname.as_deref().unwrap_or_default(),
        namespace,
        name,
    )
}

/// Whether two endpoints of one identity are equal. Hints are compared elsewhere, and the version of the
/// pod that an endpoint was made from does not count.
pub fn same(one: &Endpoint, other: &Endpoint) -> bool {
    let conditions = |endpoint: &Endpoint| {
        let conditions = endpoint.conditions.unwrap_or_default();
        (conditions.ready, conditions.serving, conditions.terminating)
    };
    one.node_name == other.node_name
        && one.zone == other.zone
        && conditions(one) == conditions(other)
        && match (&one.target_ref, &other.target_ref) {
            (Some(one), Some(other)) => {
                (&one.kind, &one.uid, &one.api_version, &one.field_path)
                    == (
                        &other.kind,
                        &other.uid,
                        &other.api_version,
                        &other.field_path,
                    )
            }
            (one, other) => one == other,
        }
}

/// Whether an endpoint is ready.
pub fn is_ready(endpoint: &Endpoint) -> bool {
    endpoint
        .conditions
        .is_some_and(|conditions| conditions.ready == Some(true))
}

/// Ports in the order in which they are compared.
pub fn sorted(mut ports: Vec<EndpointPort>) -> Vec<EndpointPort> {
    ports.sort_by(|one, other| {
        let order = |port: &EndpointPort| {
            (
                port.name.clone(),
                port.port,
                port.protocol.clone(),
                port.app_protocol.clone(),
            )
        };
        order(one).cmp(&order(other))
    });
    ports
}

/// A slice as it is and as it should be.
#[derive(Clone, Debug, PartialEq)]
pub struct Changed {
    /// The slice as the cache has it.
    pub old: Arc<EndpointSlice>,
    /// The slice as it should be.
    pub new: EndpointSlice,
}

/// Slices by what the plan does with them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Slices {
    /// Slices to create, without names.
    pub create: Vec<EndpointSlice>,
    /// Slices to update.
    pub update: Vec<Changed>,
    /// Slices to delete.
    pub delete: Vec<Arc<EndpointSlice>>,
    /// Slices that are as they should be.
    pub unchanged: Vec<Arc<EndpointSlice>>,
}

impl Slices {
    /// Appends those of another address type.
    pub fn append(&mut self, other: Self) {
        self.create.extend(other.create);
        self.update.extend(other.update);
        self.delete.extend(other.delete);
        self.unchanged.extend(other.unchanged);
    }

    /// The endpoints that slices will hold: those to create, to update and unchanged.
    pub fn endpoints(&self) -> impl Iterator<Item = &Endpoint> {
        let create = self.create.iter().flat_map(|slice| &slice.endpoints);
        let update = self.update.iter().flat_map(|slice| &slice.new.endpoints);
        let unchanged = self.unchanged.iter().flat_map(|slice| &slice.endpoints);
        create.chain(update).chain(unchanged)
    }

    /// The endpoints of slices that are written anyway, to be changed.
    pub fn written(&mut self) -> impl Iterator<Item = &mut Endpoint> {
        let create = self
            .create
            .iter_mut()
            .flat_map(|slice| &mut slice.endpoints);
        let update = self
            .update
            .iter_mut()
            .flat_map(|slice| &mut slice.new.endpoints);
        create.chain(update)
    }

    /// Moves the unchanged slices that `needs` selects to those that are updated.
    pub fn touch(&mut self, mut needs: impl FnMut(&EndpointSlice) -> bool) {
        for slice in std::mem::take(&mut self.unchanged) {
            if needs(&slice) {
                self.update.push(Changed {
                    new: EndpointSlice::clone(&slice),
                    old: slice,
                });
            } else {
                self.unchanged.push(slice);
            }
        }
    }

    /// Reuses slices that would be deleted for those that would be created: one write instead of two. An
    /// address type can't be changed, and a slice of another owner (an earlier Service of the name) is
    /// being garbage-collected.
    pub fn recycle(&mut self, is_ours: impl Fn(&EndpointSlice) -> bool) {
        let mut place = 0;
        while let (Some(old), Some(made)) = (self.delete.get(place), self.create.last()) {
            if old.address_type != made.address_type || !is_ours(old) {
                place += 1;
                continue;
            }
            let old = self.delete.remove(place);
            let mut made = self.create.pop().expect("there is a last one");
            let meta = made.metadata_mut();
            let mut kept = old.metadata().clone();
            kept.labels = std::mem::take(&mut meta.labels);
            kept.annotations = std::mem::take(&mut meta.annotations);
            kept.owner_references = std::mem::take(&mut meta.owner_references);
            *meta = kept;
            self.update.push(Changed { old, new: made });
        }
    }

    /// Whether something is to be written.
    pub fn are_changed(&self) -> bool {
        self.changed() > 0
    }

    /// How many are made, deleted or changed.
    pub fn changed(&self) -> usize {
        let update = self.update.iter();
        let updated = update.filter(|changed| *changed.old != changed.new).count();
        self.create.len() + self.delete.len() + updated
    }
}

/// An empty slice that belongs to an owner.
pub fn empty<O: Object>(
    owner: &O,
    address_type: &str,
    ports: Vec<EndpointPort>,
    labels: Vec<Entry>,
) -> EndpointSlice {
    EndpointSlice {
        metadata: Some(ObjectMeta {
            namespace: owner.metadata().namespace.clone(),
            labels,
            owner_references: vec![owners::reference(owner)],
            ..ObjectMeta::default()
        }),
        endpoints: Vec::new(),
        ports,
        address_type: address_type.to_owned(),
    }
}

/// How the writes of slices are counted, and reported when they fail.
pub struct SliceMetrics<'a> {
    /// The counter of changes by operation.
    pub changes: &'static str,
    /// The counter of syncs by result, if there is one.
    pub syncs: Option<&'static str>,
    /// The event of a failure, from the operation (`create`, `update`, `delete`) and the slice's name.
    pub failure: &'a dyn Fn(&'static str, &str) -> Option<Event>,
}

/// Plans the writes: changes, then the first new slice, then all others, then deletions. A change that only
/// reports what was seen may be delayed by the node for a moment, so that a burst of pods costs a few
/// writes.
pub fn write<O: Object>(
    plan: &mut Plan,
    owner: &O,
    held: &[Arc<EndpointSlice>],
    slices: &Slices,
    reader: &dyn Reader,
    metrics: &SliceMetrics<'_>,
) {
    for Changed { old, new } in &slices.update {
        if let Some(action) = plan.update(&**old, new) {
            action.reports(StatusWrite::Observed);
            announce(action, "update", metrics);
        }
    }
    let children = Children::of(&owner.metadata().name, &owner.metadata().uid);
    let known = Known::of(reader, EndpointSlice::resource(), owner.metadata());
    let existing = held.iter().map(|slice| slice.metadata());
    let names = children.next(0, existing, &known, slices.create.len());
    for (number, (slice, name)) in slices.create.iter().zip(names).enumerate() {
        if number < 2 {
            plan.then();
        }
        let mut slice = slice.clone();
        let meta = slice.metadata_mut();
        meta.name = Str::from(name);
        meta.generate_name = Str::interned(children.generate_name());
        announce(plan.create(&slice), "create", metrics);
    }
    if !slices.delete.is_empty() {
        plan.then();
    }
    for slice in &slices.delete {
        let action = plan.delete(&**slice, Only::ThisVersion, Propagation::Background);
        announce(action, "delete", metrics);
    }
}

/// Declares which slices were counted, where some are created or deleted.
pub fn counted(plan: &mut Plan, key: &Key, controller: &str, slices: &Slices) {
    if slices.create.is_empty() && slices.delete.is_empty() {
        return;
    }
    let mut labels = Vec::new();
    meta::set(&mut labels, SERVICE_NAME, &key.name);
    meta::set(&mut labels, MANAGED_BY, controller);
    plan.counted::<EndpointSlice>(&key.namespace, &Selector::of_labels(&labels));
}

fn announce(action: &mut Action, operation: &'static str, metrics: &SliceMetrics<'_>) {
    action.measure(metrics.changes, &[operation], 1.0);
    if let Some(syncs) = metrics.syncs {
        action.measure_failure(syncs, &["error"], 1.0);
    }
    if let Some(event) = (metrics.failure)(operation, &action.key.name) {
        action.announce_failure(event);
    }
}
