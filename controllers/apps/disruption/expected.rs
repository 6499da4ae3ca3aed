//! The expected number of pods: the sum of what the pods' owners want, each owner counted once.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use controllers_kit::{Answer, Catalogue, Key, Query, Snapshot, Str, pods};
use kubernetes_proto::{
    Object,
    apps::{Deployment, ReplicaSet, StatefulSet},
    core::{Pod, ReplicationController},
    meta::OwnerReference,
    policy::{PodDisruptionBudget, PodDisruptionBudgetSpec},
};

/// The timeout of a live read of a scale.
const PATIENCE: Duration = Duration::from_secs(10);

/// The numbers of pods that a budget requires.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Expected {
    /// Expected pods.
    pub count: i32,
    /// Pods that must be healthy.
    pub healthy: i32,
    /// Whether there are pods without an owner among them.
    pub unmanaged: bool,
}

/// Why the expected number of pods is unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failed {
    /// The reason, in upstream's words.
    pub why: String,
    /// Whether a retry may help.
    pub again: bool,
}

impl Failed {
    fn for_good(why: String) -> Self {
        Self { why, again: false }
    }
}

/// Whether the expected number matters, and not only the present one.
fn counts_owners(spec: &PodDisruptionBudgetSpec) -> bool {
    const TEXT: i64 = 1;
    spec.max_unavailable.is_some()
        || spec
            .min_available
            .as_ref()
            .is_some_and(|least| least.r#type == TEXT)
}

/// How an owner's scale is found.
enum Source {
    /// In the cache: whose it is and how many.
    Known(Str, i32),
    /// By a query.
    Ask(Query),
    /// It has none; the reason.
    Nowhere(String),
}

/// The owner as a workload in the cache; a ReplicaSet of a Deployment counts as the Deployment.
fn known(owner: &OwnerReference, namespace: &str, seen: &Snapshot<'_>) -> Option<(Str, i32)> {
    let group = owner
        .api_version
        .split_once('/')
        .map_or("", |(group, _)| group);
    let key = Key::new(namespace, owner.name.clone());
    match (group, owner.kind.as_str()) {
        ("", "ReplicationController") => {
            let found = seen.get::<ReplicationController>(&key)?;
            let size = found.spec.as_ref().and_then(|spec| spec.replicas);
            of(&*found, owner, size)
        }
        ("apps", "StatefulSet") => {
            let found = seen.get::<StatefulSet>(&key)?;
            let size = found.spec.as_ref().and_then(|spec| spec.replicas);
            of(&*found, owner, size)
        }
        ("apps" | "extensions", "ReplicaSet") => {
            let set = seen.get::<ReplicaSet>(&key)?;
            let size = set.spec.as_ref().and_then(|spec| spec.replicas);
            let itself = of(&*set, owner, size)?;
            match Object::metadata(&*set).controller() {
                Some(above) if above.kind == *"Deployment" => {
                    let key = Key::new(namespace, above.name.clone());
                    let found = seen.get::<Deployment>(&key)?;
                    let size = found.spec.as_ref().and_then(|spec| spec.replicas);
                    of(&*found, above, size)
                }
                _ => Some(itself),
            }
        }
        _ => None,
    }
}

fn of<T: Object>(found: &T, owner: &OwnerReference, size: Option<i32>) -> Option<(Str, i32)> {
    let uid = &found.metadata().uid;
    (*uid == owner.uid).then(|| (uid.clone(), size.unwrap_or(1)))
}

fn source(
    owner: &OwnerReference,
    namespace: &str,
    seen: &Snapshot<'_>,
    catalogue: &Catalogue,
) -> Source {
    if let Some((uid, size)) = known(owner, namespace, seen) {
        return Source::Known(uid, size);
    }
    let Some(entry) = catalogue.by_kind(&owner.api_version, &owner.kind) else {
        return Source::Nowhere(format!(
            "no matches for kind {:?} in version {:?}",
            owner.kind.as_str(),
            owner.api_version.as_str()
        ));
    };
    if !entry.has("scale") {
        return Source::Nowhere(format!(
            "{} does not implement the scale subresource",
            entry.resource.id()
        ));
    }
    Source::Ask(Query::Path {
        path: format!("{}/scale", entry.resource.path(namespace, &owner.name)),
        patience: PATIENCE,
    })
}

/// The pods that a budget selects.
pub(super) fn selected(
    budget: &PodDisruptionBudget,
    seen: &Snapshot<'_>,
) -> Result<Vec<Arc<Pod>>, String> {
    let selector = super::selector(budget)?;
    Ok(pods::selected(
        seen,
        &Object::metadata(budget).namespace,
        &selector,
    ))
}

/// The scales that are not in the cache, each once.
pub(super) fn ask(key: &Key, seen: &Snapshot<'_>) -> Vec<Query> {
    let Some(budget) = seen.get::<PodDisruptionBudget>(key) else {
        return Vec::new();
    };
    if !budget.spec.as_ref().is_some_and(counts_owners) {
        return Vec::new();
    }
    let catalogue = seen.catalogue();
    let mut owners = BTreeSet::new();
    let mut queries = Vec::new();
    for pod in selected(&budget, seen).unwrap_or_default() {
        let Some(owner) = Object::metadata(&*pod).controller() else {
            continue;
        };
        if owners.insert(owner.uid.clone())
            && let Source::Ask(query) = source(owner, &key.namespace, seen, &catalogue)
        {
            queries.push(query);
        }
    }
    queries
}

/// What the owners of these pods want together.
fn of_owners(
    namespace: &str,
    pods: &[Arc<Pod>],
    seen: &Snapshot<'_>,
) -> Result<(i32, bool), Failed> {
    let catalogue = seen.catalogue();
    let mut sizes: BTreeMap<Str, i32> = BTreeMap::new();
    let mut visited = BTreeSet::new();
    let mut unmanaged = false;
    for pod in pods {
        let meta = Object::metadata(&**pod);
        let Some(owner) = meta.controller() else {
            unmanaged = true;
            continue;
        };
        if !visited.insert(owner.uid.clone()) {
            continue;
        }
        let none = || {
            Failed::for_good(format!(
                "found no controllers for pod {:?}",
                meta.name.as_str()
            ))
        };
        let (uid, size) = match source(owner, namespace, seen, &catalogue) {
            Source::Known(uid, size) => (uid, size),
            Source::Nowhere(why) => return Err(Failed::for_good(why)),
            Source::Ask(query) => match seen.answer(&query) {
                Some(Answer::Object(scale)) if scale["metadata"]["uid"] == *owner.uid => {
                    let size = scale["spec"]["replicas"].as_i64().unwrap_or(0);
                    (owner.uid.clone(), i32::try_from(size).unwrap_or(i32::MAX))
                }
                Some(Answer::Object(_) | Answer::Missing | Answer::NotFound(_)) => {
                    return Err(none());
                }
                Some(Answer::Failed(why)) => {
                    return Err(Failed {
                        why: why.clone(),
                        again: true,
                    });
                }
                None => {
                    return Err(Failed {
                        why: "the scale has not been asked for".to_owned(),
                        again: true,
                    });
                }
            },
        };
        sizes.insert(uid, size);
    }
    let sum: i64 = sizes.values().map(|size| i64::from(*size)).sum();
    Ok((i32::try_from(sum).unwrap_or(i32::MAX), unmanaged))
}

/// What a budget asks for of these pods.
pub(super) fn count(
    budget: &PodDisruptionBudget,
    pods: &[Arc<Pod>],
    seen: &Snapshot<'_>,
) -> Result<Expected, Failed> {
    let Some(spec) = &budget.spec else {
        return Ok(Expected::default());
    };
    if !counts_owners(spec) {
        return Ok(match &spec.min_available {
            Some(least) => Expected {
                count: i32::try_from(pods.len()).unwrap_or(i32::MAX),
                healthy: least.int_val,
                unmanaged: false,
            },
            None => Expected::default(),
        });
    }
    let (count, unmanaged) = of_owners(&Object::metadata(budget).namespace, pods, seen)?;
    let healthy = match (&spec.max_unavailable, &spec.min_available) {
        (Some(most), _) => {
            let most = most.scaled(count, true).map_err(Failed::for_good)?;
            count.saturating_sub(most).max(0)
        }
        (None, Some(least)) => least.scaled(count, true).map_err(Failed::for_good)?,
        (None, None) => 0,
    };
    Ok(Expected {
        count,
        healthy,
        unmanaged,
    })
}
