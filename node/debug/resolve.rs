//! From an object to the keys of all controllers that it concerns: pure, over the cache.

use std::collections::BTreeSet;

use controllers_kit::{AnyObject, DynChange, Index, Key, Reader, Resource, cast, guard::guarded};
use inspect::{Blocker, BlockerKind, ObjectReport, Reference};
use kubernetes_proto::{
    apps::Deployment,
    batch::{CronJob, Job},
};

use crate::shared::Unit;

/// Keys that are explained for one object: a Node concerns those of all its pods.
pub const KEYS_MAX: usize = 64;
/// Owners above owners: a Job of a CronJob has one, a pod of a Deployment two.
const OWNERS_MAX: usize = 5;
/// Dependents that are named, and whose own keys are explained.
const DEPENDENTS_MAX: usize = 10;

/// kubectl's short names of what controllers watch.
const SHORT: &[(&str, &str)] = &[
    ("cj", "cronjobs"),
    ("cm", "configmaps"),
    ("csr", "certificatesigningrequests"),
    ("deploy", "deployments"),
    ("ds", "daemonsets"),
    ("ep", "endpoints"),
    ("hpa", "horizontalpodautoscalers"),
    ("netpol", "networkpolicies"),
    ("no", "nodes"),
    ("ns", "namespaces"),
    ("pdb", "poddisruptionbudgets"),
    ("po", "pods"),
    ("pv", "persistentvolumes"),
    ("pvc", "persistentvolumeclaims"),
    ("quota", "resourcequotas"),
    ("rc", "replicationcontrollers"),
    ("rs", "replicasets"),
    ("sa", "serviceaccounts"),
    ("sc", "storageclasses"),
    ("sts", "statefulsets"),
    ("svc", "services"),
];

/// One key, and through which object it concerns the one that was asked for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Concern {
    /// The controller's place.
    pub unit: u16,
    /// The key.
    pub key: Key,
    /// Empty for the object itself.
    pub via: String,
}

/// An object as the cache has it.
pub struct Resolved {
    /// What is said of it; its dependents without regard to anybody's rights.
    pub report: ObjectReport,
    /// Its controllers' keys, in the order in which they are worth reading.
    pub concerns: Vec<Concern>,
    /// Keys beyond [`KEYS_MAX`].
    pub omitted: usize,
}

/// Every resource that the cache may have objects of, once for each of its forms; the projection of all
/// objects before metadata and selections.
pub fn resources(units: &[Unit], view: &dyn Reader) -> Vec<&'static Resource> {
    let mut all: Vec<&'static Resource> = units.iter().flat_map(Unit::resources).collect();
    let catalogue = view.catalogue();
    all.extend(
        catalogue
            .all()
            .iter()
            .filter(|entry| entry.preferred)
            .map(|entry| entry.resource),
    );
    all.sort_by_key(|resource| {
        let rank = (resource.metadata_only, resource.selection.is_some());
        (
            rank,
            resource.type_id(),
            std::ptr::from_ref(*resource) as usize,
        )
    });
    all.dedup_by(|one, other| std::ptr::eq(*one, *other));
    all
}

/// The resource that somebody means by `deploy`, `deployment`, `Deployment`, `deployments` or
/// `deployments.apps`, in all its forms.
///
/// # Errors
/// In words, with what it may have been.
pub fn forms_of(kind: &str, known: &[&'static Resource]) -> Result<Vec<&'static Resource>, String> {
    let lower = kind.to_ascii_lowercase();
    let (name, group) = match lower.split_once('.') {
        Some((name, group)) => (name, Some(group)),
        None => (&*lower, None),
    };
    let short = SHORT.iter().find(|(short, _)| *short == name);
    let name = short.map_or(name, |(_, plural)| plural);
    let named = |resource: &&&'static Resource| {
        resource.plural == name || resource.kind.to_ascii_lowercase() == name
    };
    let of_group =
        |resource: &&&'static Resource| group.is_none_or(|group| resource.group == group);
    let mut forms: Vec<&'static Resource> = known
        .iter()
        .filter(named)
        .filter(of_group)
        .copied()
        .collect();
    // Without a group the core group is meant, then the first by name, as in kubectl.
    if let Some(meant) = forms.iter().map(|form| form.group).min() {
        forms.retain(|form| form.group == meant);
        return Ok(forms);
    }
    let names = known.iter().map(|resource| resource.plural);
    let near = names
        .map(|plural| (strsim::jaro_winkler(plural, name), plural))
        .filter(|(near, _)| *near > 0.8)
        .max_by(|(one, _), (other, _)| one.total_cmp(other));
    Err(match near {
        Some((_, plural)) => {
            format!("no controller that runs here watches {kind:?}: did you mean {plural}?")
        }
        None => format!(
            "no controller that runs here watches {kind:?}: give a kind as in deployment or deployments.apps"
        ),
    })
}

/// Whether a controller's keys are objects of this resource.
fn is_about(unit: &Unit, resource: &Resource) -> bool {
    unit.primary()
        .is_some_and(|primary| primary.type_id() == resource.type_id())
}

/// The key of an object by its namespace and name.
pub fn key_of(resource: &Resource, namespace: &str, name: &str) -> Key {
    match resource.namespaced {
        true => Key::new(namespace, name),
        false => Key::cluster(name),
    }
}

/// Resolves an object, given in all forms of its resource.
pub fn resolve(
    units: &[Unit],
    view: &dyn Reader,
    forms: &[&'static Resource],
    key: &Key,
) -> Resolved {
    let all = resources(units, view);
    let found: Vec<AnyObject> = forms
        .iter()
        .filter_map(|form| view.get(form, &key.namespace, &key.name))
        .collect();
    let resource = forms.first().copied();
    let mut report = ObjectReport {
        resource: resource.map(Resource::type_id).unwrap_or_default(),
        name: key.to_string(),
        exists: !found.is_empty(),
        ..ObjectReport::default()
    };
    let mut concerns = Vec::new();
    let mut known = BTreeSet::new();
    let mut add = |unit: &Unit, key: Key, via: &str| {
        if known.insert((unit.index, key.clone())) {
            let via = via.to_owned();
            concerns.push(Concern {
                unit: unit.index,
                key,
                via,
            });
        }
    };
    for unit in units {
        if resource.is_some_and(|resource| is_about(unit, resource)) {
            add(unit, key.clone(), "");
        }
    }
    for object in &found {
        report.holds.extend(holds(object));
        for unit in units {
            woken(unit, view, object, &mut |key| add(unit, key, ""));
        }
    }
    let mut above = found.first().cloned();
    while let Some(owner) = above
        .as_ref()
        .filter(|_| report.owners.len() < OWNERS_MAX)
        .and_then(|object| owner_of(view, &all, object))
    {
        let (of, name) = (owner.resource().type_id(), Key::of_meta(owner.metadata()));
        let via = format!("its owner {of} {name}");
        for unit in units.iter().filter(|unit| is_about(unit, owner.resource())) {
            add(unit, name.clone(), &via);
        }
        report.holds.extend(holds(&owner));
        report.owners.push(Reference {
            resource: of,
            name: name.to_string(),
        });
        above = Some(owner);
    }
    let mut dependents = found.first().map_or_else(Vec::new, |object| {
        dependents_of(view, &all, &object.metadata().uid)
    });
    dependents.sort_by_key(|object| (object.resource().type_id(), Key::of_meta(object.metadata())));
    report.dependents_total = dependents.len();
    dependents.truncate(DEPENDENTS_MAX);
    for object in dependents {
        let (of, name) = (object.resource().type_id(), Key::of_meta(object.metadata()));
        let via = format!("its dependent {of} {name}");
        for unit in units
            .iter()
            .filter(|unit| is_about(unit, object.resource()))
        {
            add(unit, name.clone(), &via);
        }
        report.dependents.push(Reference {
            resource: of,
            name: name.to_string(),
        });
    }
    // The keys that are woken by many others' changes come last: what is about the object is read first.
    let own = |concern: &Concern| !concern.via.is_empty() || concern.key == *key;
    concerns.sort_by_key(|concern| !own(concern));
    let omitted = concerns.len().saturating_sub(KEYS_MAX);
    concerns.truncate(KEYS_MAX);
    Resolved {
        report,
        concerns,
        omitted,
    }
}

/// The keys that any change of an object wakes, whether it has just come or has been there.
fn woken(unit: &Unit, view: &dyn Reader, object: &AnyObject, each: &mut dyn FnMut(Key)) {
    let forms = [
        DynChange {
            old: None,
            new: Some(object),
            version: 0,
        },
        DynChange {
            old: Some(object),
            new: Some(object),
            version: 0,
        },
    ];
    let catalogue = view.catalogue();
    for change in forms {
        for subscription in &unit.subscriptions {
            let wanted = std::ptr::eq(subscription.resource, object.resource())
                && subscription
                    .only_name
                    .is_none_or(|name| object.metadata().name == *name);
            if wanted {
                // An object over which it panics wakes nothing, which /debug/shards says.
                let _panicked = guarded(|| (subscription.wake)(change, view, &mut *each));
            }
        }
        let entry = catalogue.preferred(object.resource());
        for discovered in &unit.discovered {
            if entry.is_some_and(|entry| (discovered.wanted)(entry)) {
                let _panicked = guarded(|| (discovered.wake)(change, view, &mut *each));
            }
        }
    }
}

/// The managing controller of an object, else its first owner, as far as the cache has it.
fn owner_of(view: &dyn Reader, all: &[&'static Resource], object: &AnyObject) -> Option<AnyObject> {
    let meta = object.metadata();
    let references = &meta.owner_references;
    let reference = references
        .iter()
        .find(|one| one.controller == Some(true))
        .or(references.first())?;
    let group = reference
        .api_version
        .split_once('/')
        .map_or("", |(group, _)| group);
    all.iter()
        .filter(|resource| resource.group == group && reference.kind == *resource.kind)
        .find_map(|resource| {
            let namespace = match resource.namespaced {
                true => &*meta.namespace,
                false => "",
            };
            view.get(resource, namespace, &reference.name)
        })
        .filter(|owner| owner.metadata().uid == reference.uid)
}

/// The objects whose managing controller this is.
fn dependents_of(view: &dyn Reader, all: &[&'static Resource], uid: &str) -> Vec<AnyObject> {
    let mut known = BTreeSet::new();
    let mut found = Vec::new();
    for resource in all {
        for object in view.indexed(resource, Index::OWNER, uid) {
            if known.insert(object.metadata().uid.clone()) {
                found.push(object);
            }
        }
    }
    found
}

/// What in an object itself keeps its controllers from going on.
fn holds(object: &AnyObject) -> Option<Blocker> {
    let meta = object.metadata();
    let name = format!("{} {}", object.resource().type_id(), Key::of_meta(meta));
    let of = match meta.namespace.is_empty() {
        true => String::new(),
        false => format!(" -n {}", meta.namespace),
    };
    let resource = object.resource().type_id();
    if meta.is_terminating() {
        let finalizers: Vec<&str> = meta.finalizers.iter().map(|one| &**one).collect();
        return (!finalizers.is_empty()).then(|| {
            Blocker::new(
                BlockerKind::Finalizers,
                name,
                format!("it is being deleted, and held by {}", finalizers.join(", ")),
                format!(
                    "kubectl get {resource}/{}{of} -o yaml: see who removes its finalizers",
                    meta.name
                ),
            )
        });
    }
    let paused = |what: &str, remedy: String| {
        Some(Blocker::new(
            BlockerKind::Paused,
            name.clone(),
            what,
            remedy,
        ))
    };
    let spec = |field: &str| {
        format!(
            "kubectl patch {resource}/{}{of} --type=merge -p '{{\"spec\":{{\"{field}\":false}}}}'",
            meta.name
        )
    };
    if let Some(deployment) = cast::<Deployment>(object.clone()) {
        return match deployment.spec.as_ref().is_some_and(|spec| spec.paused) {
            true => paused(
                "spec.paused: its template is not rolled out",
                format!("kubectl rollout resume deployment/{}{of}", meta.name),
            ),
            false => None,
        };
    }
    if let Some(job) = cast::<Job>(object.clone()) {
        let suspended = job.spec.as_ref().and_then(|spec| spec.suspend);
        return match suspended {
            Some(true) => paused("spec.suspend: it has no pods", spec("suspend")),
            _ => None,
        };
    }
    let cron_job = cast::<CronJob>(object.clone())?;
    let suspended = cron_job.spec.as_ref().and_then(|spec| spec.suspend);
    match suspended {
        Some(true) => paused("spec.suspend: it starts no Job", spec("suspend")),
        _ => None,
    }
}
