//! Answers ResourcePoolStatusRequests: how many devices the pools of a driver have, and how many of them are
//! allocated. Each is answered once, and deleted an hour later.
//!
//! Watches resourcepoolstatusrequests, resourceslices and resourceclaims; patches the status of a request and
//! deletes it; a key per request; remembers nothing. Invariant: an answer rests on every slice and claim that
//! there was when it was computed.

use std::{collections::BTreeMap, sync::Arc};

use controllers_kit::{
    Change, Controller, Descriptor, Flags, Key, MetricKind, Only, Plan, Propagation, Query, Reader,
    Refusal, Resource, Runs, Sharding, SignedDuration, Snapshot, StatusWrite, Timestamp, Watches,
    cast,
};
use kubernetes_proto::{
    Object,
    meta::{Condition, Time},
    resource::{
        PoolStatus, ResourceClaim, ResourcePoolStatusRequest, ResourcePoolStatusRequestSpec,
        ResourcePoolStatusRequestStatus, ResourceSlice,
    },
};

const GATE: &str = "DRAResourcePoolStatus";

/// How long a request stays that was answered.
const ANSWERED: SignedDuration = SignedDuration::from_hours(1);
/// How long an unanswered request is kept.
const PENDING: SignedDuration = SignedDuration::from_hours(24);
/// Pools in an answer where the request sets no limit.
const LIMIT: i32 = 100;

const PROCESSED: &str = "resourcepoolstatusrequest_controller_requests_processed_total";
const ERRORS: &str = "resourcepoolstatusrequest_controller_request_processing_errors_total";
const DURATION: &str = "resourcepoolstatusrequest_controller_request_processing_duration_seconds";

/// The controller.
pub struct PoolStatusRequests;

/// What an answer rests on.
fn barriers() -> [&'static Resource; 2] {
    [ResourceSlice::resource(), ResourceClaim::resource()]
}

fn driver_of(request: &ResourcePoolStatusRequest) -> &str {
    request.spec.as_ref().map_or("", |spec| &spec.driver)
}

/// A pool, from the slices of its newest generation.
#[derive(Debug, Default)]
struct Pool<'a> {
    generation: i64,
    /// The nodes that slices name; empty for those that name none.
    nodes: Vec<&'a str>,
    /// How many slices there are to be.
    expected: i64,
    slices: i32,
    devices: i32,
}

fn saturated(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

/// The pools of a driver by name.
fn pools<'a>(
    spec: &ResourcePoolStatusRequestSpec,
    slices: &'a [Arc<ResourceSlice>],
) -> BTreeMap<&'a str, Pool<'a>> {
    let only = spec.pool_name.as_deref().filter(|name| !name.is_empty());
    let mut pools: BTreeMap<&str, Pool<'_>> = BTreeMap::new();
    for slice in slices.iter().filter_map(|slice| slice.spec.as_ref()) {
        let (name, generation, expected) = match &slice.pool {
            Some(pool) => (
                pool.name.as_str(),
                pool.generation,
                pool.resource_slice_count,
            ),
            None => ("", 0, 0),
        };
        if slice.driver != spec.driver || only.is_some_and(|only| only != name) {
            continue;
        }
        let pool = pools.entry(name).or_insert_with(|| Pool {
            generation,
            expected,
            ..Pool::default()
        });
        if generation > pool.generation {
            *pool = Pool {
                generation,
                expected,
                ..Pool::default()
            };
        }
        if generation == pool.generation {
            if !pool.nodes.contains(&slice.node_name.as_str()) {
                pool.nodes.push(&slice.node_name);
            }
            pool.slices = pool.slices.saturating_add(1);
            pool.devices = pool.devices.saturating_add(saturated(slice.devices.len()));
        }
    }
    pools
}

/// The number of allocated devices of a driver's pools, by pool.
fn allocated<'a>(driver: &str, claims: &'a [Arc<ResourceClaim>]) -> BTreeMap<&'a str, i32> {
    let mut counts: BTreeMap<&str, i32> = BTreeMap::new();
    let allocations = claims
        .iter()
        .filter_map(|claim| claim.status.as_ref()?.allocation.as_ref()?.devices.as_ref());
    for result in allocations.flat_map(|devices| &devices.results) {
        if result.driver == driver {
            let count = counts.entry(&result.pool).or_default();
            *count = count.saturating_add(1);
        }
    }
    counts
}

/// The answer, or why there is none yet: a pool in it lacks slices, which its driver may be publishing.
fn answer(
    spec: &ResourcePoolStatusRequestSpec,
    slices: &[Arc<ResourceSlice>],
    claims: &[Arc<ResourceClaim>],
    now: Timestamp,
) -> Result<ResourcePoolStatusRequestStatus, String> {
    let pools = pools(spec, slices);
    let allocated = allocated(&spec.driver, claims);
    let limit = usize::try_from(spec.limit.unwrap_or(LIMIT)).unwrap_or(0);
    let mut statuses = Vec::new();
    for (name, pool) in pools.iter().take(limit) {
        if i64::from(pool.slices) < pool.expected {
            return Err(format!(
                "pool {}/{name} is incomplete: observed {}/{} slices at generation {}",
                spec.driver, pool.slices, pool.expected, pool.generation
            ));
        }
        let node = match pool.nodes[..] {
            [node] if !node.is_empty() => Some(node.to_owned()),
            _ => None,
        };
        let given = allocated.get(name).copied().unwrap_or(0);
        statuses.push(PoolStatus {
            driver: spec.driver.clone(),
            pool_name: (*name).to_owned(),
            node_name: node,
            total_devices: Some(pool.devices),
            allocated_devices: Some(given),
            available_devices: Some(pool.devices.saturating_sub(given).max(0)),
            unavailable_devices: Some(0),
            resource_slice_count: Some(pool.slices),
            generation: pool.generation,
            validation_error: None,
        });
    }
    let condition = Condition {
        r#type: "Complete".to_owned(),
        status: "True".to_owned(),
        observed_generation: 0,
        last_transition_time: Some(Time::from(now)),
        reason: "CalculationComplete".to_owned(),
        message: format!("Calculated status for {} pools", statuses.len()),
    };
    Ok(ResourcePoolStatusRequestStatus {
        pool_count: Some(saturated(pools.len())),
        pools: statuses,
        conditions: vec![condition],
    })
}

/// When a request is to be deleted.
fn end(request: &ResourcePoolStatusRequest) -> Timestamp {
    let made = Object::metadata(request).creation_timestamp;
    let (since, age) = match &request.status {
        None => (made, PENDING),
        Some(status) => {
            let mut conditions = status.conditions.iter();
            let done = conditions
                .find(|condition| matches!(condition.r#type.as_str(), "Complete" | "Failed"));
            (
                done.map_or(made, |done| done.last_transition_time),
                ANSWERED,
            )
        }
    };
    let since = since.filter(|since| !since.is_zero());
    let end = since.and_then(|since| since.timestamp().checked_add(age).ok());
    end.unwrap_or(Timestamp::MAX)
}

/// The requests that wait for an answer about this driver.
fn wake_requests(change: &Change<'_, ResourceSlice>, reader: &dyn Reader) -> Vec<Key> {
    let requests = reader.list(ResourcePoolStatusRequest::resource(), None);
    let requests = requests
        .into_iter()
        .filter_map(cast::<ResourcePoolStatusRequest>);
    let about = |request: &ResourcePoolStatusRequest| {
        let drivers = change.both().filter_map(|slice| slice.spec.as_ref());
        drivers
            .into_iter()
            .any(|spec| spec.driver == driver_of(request))
    };
    requests
        .filter(|request| request.status.is_none() && about(request))
        .map(|request| Key::of(&*request))
        .collect()
}

impl Controller for PoolStatusRequests {
    type Memory = ();

    fn describe() -> Descriptor {
        Descriptor::new("resourcepoolstatusrequest-controller", Sharding::ByObject)
            .one_by_one()
            .gate(GATE, false)
            .runs_where(|flags| match flags.bool(GATE) {
                true => Runs::Yes,
                false => Runs::No("the feature gate DRAResourcePoolStatus is off"),
            })
            .metric(
                PROCESSED,
                MetricKind::Counter,
                &["driver_name"],
                "Total number of ResourcePoolStatusRequests processed",
            )
            .metric(
                ERRORS,
                MetricKind::Counter,
                &["driver_name"],
                "Total number of errors encountered while processing ResourcePoolStatusRequests",
            )
            .metric(
                DURATION,
                MetricKind::Histogram(0.001, 2.0, 15),
                &["driver_name"],
                "Time taken to process a ResourcePoolStatusRequest",
            )
            .rule(
                "resource.k8s.io",
                "resourcepoolstatusrequests",
                &["list", "watch", "delete"],
            )
            .rule(
                "resource.k8s.io",
                "resourcepoolstatusrequests/status",
                &["patch"],
            )
            .rule("resource.k8s.io", "resourceslices", &["list", "watch"])
            .rule("resource.k8s.io", "resourceclaims", &["list", "watch"])
            .differences(include_str!("differences.md"))
    }

    fn new(_: &Flags) -> Self {
        Self
    }

    fn watch(&self, on: &mut Watches) {
        on.kind::<ResourcePoolStatusRequest>()
            .where_served()
            .wakes_itself();
        on.kind::<ResourceSlice>().wakes(wake_requests);
        on.kind::<ResourceClaim>();
    }

    fn ask(&self, key: &Key, seen: &Snapshot<'_>, (): &()) -> Vec<Query> {
        let request = seen.get::<ResourcePoolStatusRequest>(key);
        match request.is_some_and(|request| request.status.is_none() && end(&request) > seen.now) {
            true => barriers()
                .map(|resource| Query::Present { resource })
                .into(),
            false => Vec::new(),
        }
    }

    fn plan(&self, key: &Key, seen: &Snapshot<'_>, (): &mut ()) -> Result<Plan, Refusal> {
        let mut plan = Plan::nothing();
        let Some(request) = seen.get::<ResourcePoolStatusRequest>(key) else {
            return Ok(plan);
        };
        let terminating = request.is_terminating();
        if end(&request) <= seen.now {
            if !terminating {
                plan.delete(&*request, Only::ThisVersion, Propagation::Background);
            }
            return Ok(plan);
        }
        if !terminating {
            plan = plan.requeued_at(end(&request));
        }
        if request.status.is_some() {
            return Ok(plan);
        }
        let spec = request.spec.clone().unwrap_or_default();
        let slices = seen.all::<ResourceSlice>();
        let claims = seen.all::<ResourceClaim>();
        let Ok(status) = answer(&spec, &slices, &claims, seen.now) else {
            // A slice that comes wakes the request.
            return Ok(plan);
        };
        for resource in barriers() {
            match seen.present(resource) {
                Some(Ok(version)) if version > 0 => {
                    plan.rests_on(resource, &"".into(), version);
                }
                Some(Ok(_)) => {}
                Some(Err(why)) => {
                    let id = resource.id();
                    return Err(Refusal::Retry(format!("{id} could not be asked: {why}")));
                }
                // The request has appeared between queries and plan.
                None => return Ok(Plan::nothing().requeued_at(seen.now)),
            }
        }
        let mut answered = (*request).clone();
        answered.status = Some(status);
        if let Some(action) = plan.update_status(&*request, &answered) {
            action.reports(StatusWrite::No);
        }
        let driver = [spec.driver.as_str()];
        plan.measure(PROCESSED, &driver, 1.0);
        plan.time(DURATION, &driver);
        plan.measure_on_failure(PROCESSED, &driver, 1.0);
        plan.measure_on_failure(ERRORS, &driver, 1.0);
        plan.time_on_failure(DURATION, &driver);
        Ok(plan)
    }
}

#[cfg(test)]
pub(crate) mod tests;
