//! What pods are charged for.

use controllers_kit::{SignedDuration, Timestamp, conditions};
use kubernetes_proto::{
    Object, Shared,
    core::{
        Amount, ContainerStatus, Pod, PodAffinityTerm, PodSpec, ResourceRequirements,
        WeightedPodAffinityTerm,
    },
    quantity::Exact,
};

use super::{
    Gates,
    context::{IMPLICIT, Scope, amount, exact},
    names,
};

const HUGE_PAGES: &str = "hugepages-";

/// What a limit charges a pod for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Charge<'a> {
    /// The stored object, whether it has finished or not.
    Object,
    /// A pod that has not finished.
    Life,
    /// Its requests of a resource.
    Requests(&'a str),
    /// Its limits of a resource.
    Limits(&'a str),
    /// Something that no pod can use.
    Nothing,
}

/// What a limit charges pods for, if it does.
pub(super) fn charge(limit: &str) -> Option<Charge<'_>> {
    const COMPUTE: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];
    match limit {
        "count/pods" => return Some(Charge::Object),
        "pods" => return Some(Charge::Life),
        _ if COMPUTE.contains(&limit) || limit.starts_with(HUGE_PAGES) => {
            return Some(Charge::Requests(limit));
        }
        _ => {}
    }
    if let Some(resource) = limit.strip_prefix("limits.") {
        return COMPUTE
            .contains(&resource)
            .then_some(Charge::Limits(resource));
    }
    let resource = limit.strip_prefix(names::REQUESTS)?;
    if COMPUTE.contains(&resource) || resource.starts_with(HUGE_PAGES) {
        return Some(Charge::Requests(resource));
    }
    if !is_extended_limit(limit) {
        return None;
    }
    Some(
        if names::is_extended(resource) || limit.starts_with(IMPLICIT) {
            Charge::Requests(resource)
        } else {
            Charge::Nothing
        },
    )
}

/// Whether a limit is on an extended resource: on its requests alone, since no pod takes more than it
/// requests.
pub(super) fn is_extended_limit(limit: &str) -> bool {
    limit.starts_with(names::REQUESTS) && (!names::is_native(limit) || limit.starts_with(IMPLICIT))
}

/// Whether a pod is charged for more than its object: a finished one is not, nor one that outlives its
/// grace period, since its node may be lost and its owner wants another.
pub(super) fn lives(pod: &Pod, now: Timestamp) -> bool {
    !controllers_kit::pods::has_finished(pod) && lives_until(pod).is_none_or(|until| now < until)
}

/// When a terminating pod ceases to be charged. The deletion timestamp already includes the grace period
/// once.
pub(super) fn lives_until(pod: &Pod) -> Option<Timestamp> {
    let meta = Object::metadata(pod);
    let deleted = meta.deletion_timestamp?.timestamp();
    let grace = SignedDuration::from_secs(meta.deletion_grace_period_seconds?);
    // Times are whole seconds; the end itself is still within the period.
    let end = controllers_kit::pods::after(deleted, grace);
    Some(controllers_kit::pods::after(
        end,
        SignedDuration::from_nanos(1),
    ))
}

/// Whether a pod may run for some time only.
pub(super) fn is_bounded(pod: &Pod) -> bool {
    let spec = pod.spec.as_ref();
    spec.and_then(|spec| spec.active_deadline_seconds)
        .is_some_and(|seconds| seconds >= 0)
}

/// Whether a pod fulfils a condition.
pub(super) fn matches(pod: &Pod, scope: &Scope<'_>, gates: Gates) -> bool {
    match scope.name {
        "Terminating" => is_bounded(pod),
        "NotTerminating" => !is_bounded(pod),
        "BestEffort" => is_best_effort(pod, gates),
        "NotBestEffort" => !is_best_effort(pod, gates),
        "PriorityClass" => {
            let spec = pod.spec.as_ref();
            let class = spec.map_or("", |spec| &spec.priority_class_name);
            scope.selects(Some(class).filter(|class| !class.is_empty()).into_iter())
        }
        "CrossNamespacePodAffinity" => has_affinity_to_other_namespaces(pod),
        _ => false,
    }
}

/// Whether a pod requests neither CPU nor memory.
fn is_best_effort(pod: &Pod, gates: Gates) -> bool {
    let class = pod.status.as_ref().map_or("", |status| &status.qos_class);
    if !class.is_empty() {
        return class == "BestEffort";
    }
    let Some(spec) = &pod.spec else {
        return true;
    };
    let asks = |of: &Option<Shared<ResourceRequirements>>| {
        let amounts = of
            .iter()
            .flat_map(|of| of.requests.iter().chain(&of.limits));
        amounts
            .filter(|amount| matches!(&*amount.key, "cpu" | "memory"))
            .filter_map(exact)
            .any(|amount| amount.exceeds(Exact::default()))
    };
    if gates.pod_level_resources && spec.resources.is_some() {
        return !asks(&spec.resources);
    }
    let containers = spec.containers.iter().map(|one| &one.resources);
    let init = spec.init_containers.iter().map(|one| &one.resources);
    !containers.chain(init).any(asks)
}

fn has_affinity_to_other_namespaces(pod: &Pod) -> bool {
    fn any(required: &[PodAffinityTerm], preferred: &[WeightedPodAffinityTerm]) -> bool {
        let preferred = preferred
            .iter()
            .filter_map(|one| one.pod_affinity_term.as_ref());
        required
            .iter()
            .chain(preferred)
            .any(|term| !term.namespaces.is_empty() || term.namespace_selector.is_some())
    }
    let Some(affinity) = pod.spec.as_ref().and_then(|spec| spec.affinity.as_ref()) else {
        return false;
    };
    let to = affinity.pod_affinity.as_ref().is_some_and(|to| {
        any(
            &to.required_during_scheduling_ignored_during_execution,
            &to.preferred_during_scheduling_ignored_during_execution,
        )
    });
    let from = affinity.pod_anti_affinity.as_ref().is_some_and(|from| {
        any(
            &from.required_during_scheduling_ignored_during_execution,
            &from.preferred_during_scheduling_ignored_during_execution,
        )
    });
    to || from
}

/// What a pod that lives is charged.
pub(super) fn usage(pod: &Pod, charge: &Charge<'_>, gates: Gates) -> Exact {
    match charge {
        Charge::Object | Charge::Life => Exact::of_count(1),
        Charge::Nothing => Exact::default(),
        Charge::Requests(resource) => requests(pod, resource, gates).unwrap_or_default(),
        Charge::Limits(resource) => limits(pod, resource, gates).unwrap_or_default(),
    }
}

/// What a pod asks for of a resource.
fn requests(pod: &Pod, resource: &str, gates: Gates) -> Option<Exact> {
    let spec = pod.spec.as_ref()?;
    let whole = of_whole(spec, gates, resource, |of| &of.requests);
    let asked = whole.or_else(|| of_containers(pod, spec, resource, Side::Requests));
    plus(asked, amount(&spec.overhead, resource))
}

/// A pod's limit of a resource; `None` without one.
fn limits(pod: &Pod, resource: &str, gates: Gates) -> Option<Exact> {
    let spec = pod.spec.as_ref()?;
    let whole = of_whole(spec, gates, resource, |of| &of.limits);
    let limit = whole.or_else(|| of_containers(pod, spec, resource, Side::Limits))?;
    if limit.is_zero() {
        return Some(limit);
    }
    plus(Some(limit), amount(&spec.overhead, resource))
}

/// A pod-level amount, where those count.
fn of_whole(
    spec: &PodSpec,
    gates: Gates,
    resource: &str,
    side: fn(&ResourceRequirements) -> &Vec<Amount>,
) -> Option<Exact> {
    let counts = matches!(resource, "cpu" | "memory") || resource.starts_with(HUGE_PAGES);
    let whole = spec.resources.as_ref();
    whole
        .filter(|_| gates.pod_level_resources && counts)
        .and_then(|whole| amount(side(whole), resource))
}

/// Which of a container's amounts.
#[derive(Clone, Copy)]
enum Side {
    Requests,
    Limits,
}

impl Side {
    fn of(
        self,
        requirements: Option<&Shared<ResourceRequirements>>,
        resource: &str,
    ) -> Option<Exact> {
        let requirements = requirements?;
        let amounts = match self {
            Self::Requests => &requirements.requests,
            Self::Limits => &requirements.limits,
        };
        amount(amounts, resource)
    }
}

/// The sum of a pod's containers: those that run together, or an init container with the sidecars that were
/// started before it, whichever is larger.
fn of_containers(pod: &Pod, spec: &PodSpec, resource: &str, side: Side) -> Option<Exact> {
    let in_force = |name: &str, wanted: Option<&Shared<ResourceRequirements>>| {
        in_force(pod, name, side.of(wanted, resource), resource, side)
    };
    let mut together = None;
    for container in &spec.containers {
        together = plus(
            together,
            in_force(&container.name, container.resources.as_ref()),
        );
    }
    let (mut sidecars, mut initializing) = (None, None);
    for container in &spec.init_containers {
        let wanted = container.resources.as_ref();
        let beside = if &*container.restart_policy == "Always" {
            let taken = in_force(&container.name, wanted);
            together = plus(together, taken);
            sidecars = plus(sidecars, taken);
            sidecars
        } else {
            plus(side.of(wanted, resource), sidecars)
        };
        initializing = larger(initializing, beside);
    }
    larger(together, initializing)
}

/// The larger of a container's present and wanted amount, while its pod is resized. An infeasible resize is
/// ignored.
fn in_force(
    pod: &Pod,
    name: &str,
    wanted: Option<Exact>,
    resource: &str,
    side: Side,
) -> Option<Exact> {
    let Some(status) = status(pod, name) else {
        return wanted;
    };
    let Some(running) = status.resources.as_ref() else {
        return wanted;
    };
    let running = side.of(Some(running), resource);
    let set_aside = match side {
        Side::Requests => amount(&status.allocated_resources, resource),
        Side::Limits => None,
    };
    let wanted = wanted.filter(|_| !is_infeasible(pod));
    larger(larger(wanted, running), set_aside)
}

fn status<'a>(pod: &'a Pod, name: &str) -> Option<&'a ContainerStatus> {
    let status = pod.status.as_ref()?;
    let init = status.init_container_statuses.iter();
    init.chain(&status.container_statuses)
        .find(|status| &*status.name == name)
}

/// Whether a resize was requested that the node can never grant.
fn is_infeasible(pod: &Pod) -> bool {
    let status = pod.status.as_ref();
    status
        .and_then(|status| conditions::find(&status.conditions, "PodResizePending"))
        .is_some_and(|condition| condition.reason == "Infeasible")
}

fn plus(one: Option<Exact>, other: Option<Exact>) -> Option<Exact> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.plus(other)),
        (one, other) => one.or(other),
    }
}

fn larger(one: Option<Exact>, other: Option<Exact>) -> Option<Exact> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.at_least(other)),
        (one, other) => one.or(other),
    }
}

/// Whether a change of a pod can lower its charge, or will do so by itself later.
pub(super) fn frees(old: &Pod, new: &Pod) -> bool {
    let ends = |pod: &Pod| controllers_kit::pods::has_finished(pod);
    is_bounded(old) != is_bounded(new)
        || !ends(old) && ends(new)
        || lives_until(old) != lives_until(new)
        || takes(old) != takes(new)
}

/// The amounts that a pod's containers run with, as the kubelet reports them.
fn takes(pod: &Pod) -> Vec<(&str, Option<&Shared<ResourceRequirements>>)> {
    let statuses = pod.status.iter().flat_map(|status| {
        status
            .container_statuses
            .iter()
            .chain(&status.init_container_statuses)
    });
    statuses
        .filter(|status| status.resources.is_some())
        .map(|status| (&*status.name, status.resources.as_ref()))
        .collect()
}
