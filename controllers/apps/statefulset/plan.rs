//! Which pods are made, replaced and removed, in which order.

use std::{collections::BTreeMap, ops::Range, sync::Arc};

use controllers_kit::{
    Event, Key, Only, Plan, Propagation, Query, Refusal, Snapshot, StatusWrite, names,
    owners::{self, Claimed},
    pods,
    selectors::Selector,
};
use kubernetes_proto::{
    Object,
    apps::{ControllerRevision, StatefulSet, StatefulSetStatus},
    core::Pod,
};

use super::{
    MAX_UNAVAILABLE_METRIC, Memory, StatefulSets, UNAVAILABLE_METRIC, claims,
    context::{
        ON_DELETE, ROLLING_UPDATE, is_in_range, ordinals, partition, replicas, start, strategy,
    },
    pod::{self, spec},
    status,
};
use crate::revisions;

/// The most pods that one plan creates in parallel: more wait until the cache has seen these.
const BURST: usize = 500;
/// Bytes of a claim's creation beside its template: names, labels, events.
const CLAIM_BYTES: usize = 1024;

/// A StatefulSet, and what it may have a say in.
struct View {
    pods: Claimed<StatefulSet, Pod>,
    revisions: Claimed<StatefulSet, ControllerRevision>,
}

fn view(key: &Key, seen: &Snapshot<'_>) -> Result<Option<View>, Refusal> {
    let Some(set) = seen.get::<StatefulSet>(key) else {
        return Ok(None);
    };
    let selector = Selector::compile(spec(&set).selector.as_ref()).map_err(|error| {
        Refusal::Wait(format!(
            "error converting StatefulSet selector of {key}: {error}"
        ))
    })?;
    let mut revisions = revisions::of_owner(&set, &selector, seen);
    // What is not selected any more is left alone.
    revisions.claims.release.clear();
    let mut pods = Claimed::among(set, selector, seen, pod::is_member);
    // A pod whose name is not the set's does not belong to it, whatever its labels say.
    if !pods.owner.is_terminating() {
        let strangers = pods.children.iter();
        let strangers = strangers.filter(|child| !pod::is_member(&pods.owner, child));
        pods.claims.release.extend(strangers.cloned());
    }
    Ok(Some(View { pods, revisions }))
}

/// Reads the set live before an adoption, and where only JSON determines the template's revision.
pub(super) fn ask(
    of: &StatefulSets,
    key: &Key,
    seen: &Snapshot<'_>,
    memory: &Memory,
) -> Vec<Query> {
    let Ok(Some(view)) = view(key, seen) else {
        return Vec::new();
    };
    let adopts = view.pods.ask().or_else(|| view.revisions.ask());
    let asks = || {
        let set = view.pods.owner.as_ref();
        let revisions = &view.revisions.claims.owned;
        let update = find_update(of, set, revisions, &mut memory.known.clone(), None);
        matches!(update, Update::Ask).then(|| owners::recheck(set))
    };
    Vec::from_iter(adopts.or_else(asks))
}

pub(super) fn plan(
    of: &StatefulSets,
    key: &Key,
    seen: &Snapshot<'_>,
    memory: &mut Memory,
) -> Result<Plan, Refusal> {
    let Some(view) = view(key, seen)? else {
        return Ok(Plan::nothing());
    };
    let set = view.pods.owner.as_ref();
    let settled = view.revisions.settle(seen);
    if let Some(settled) = settled.or_else(|| view.pods.settle(seen)) {
        return settled;
    }
    let revisions = &view.revisions.claims.owned;
    let mut update = find_update(of, set, revisions, &mut memory.known, None);
    if matches!(update, Update::Ask) {
        let data = revisions::live_data(set, seen)?;
        update = find_update(of, set, revisions, &mut memory.known, Some(data));
    }
    let mut plan = Plan::nothing();
    let (update, collisions) = settle_update(&mut plan, &view, update, seen);
    let current = revisions
        .iter()
        .find(|revision| {
            *revision.metadata().name
                == *set
                    .status
                    .as_ref()
                    .map_or("", |status| &status.current_revision)
        })
        .cloned();
    let current = current.unwrap_or_else(|| Arc::clone(&update));
    plan.then();
    Rollout {
        of,
        set,
        seen,
        plan,
        current,
        update,
        collisions,
        obstacle: None,
    }
    .run(&view, memory)
}

/// The result of the search for the present template's revision.
enum Update {
    /// It is this one of those there are.
    Present(usize),
    /// It is this one, an older one: a rollback.
    Older(usize),
    /// There is none: it is made of this data.
    New(Vec<u8>),
    /// Only the JSON of the template decides.
    Ask,
}

fn find_update(
    of: &StatefulSets,
    set: &StatefulSet,
    revisions: &[Arc<ControllerRevision>],
    known: &mut revisions::Known,
    data: Option<Vec<u8>>,
) -> Update {
    let template = revisions::template_hash(spec(set).template.as_ref());
    let current = set.status.as_ref().filter(|status| {
        status.observed_generation == set.metadata().generation && set.metadata().generation != 0
    });
    if let (Some(status), Some(last)) = (current, revisions.last())
        && *last.metadata().name == *status.update_revision
    {
        // The status was written for the very template that is there now.
        *known = revisions::Known {
            template,
            data: names::hash(revisions::data(last)),
            equivalent: last.metadata().uid.to_string(),
        };
        return Update::Present(revisions.len() - 1);
    }
    if let Some(data) = &data {
        known.template = template;
        known.data = names::hash(data);
        known.equivalent.clear();
    } else if known.template != template {
        return Update::Ask;
    }
    let equal = revisions
        .iter()
        .rposition(|revision| names::hash(revisions::data(revision)) == known.data);
    match (equal, revisions.last()) {
        (Some(equal), Some(last))
            if names::hash(revisions::data(last))
                != names::hash(revisions::data(&revisions[equal])) =>
        {
            return Update::Older(equal);
        }
        (Some(_), _) => return Update::Present(revisions.len() - 1),
        (None, Some(last)) if of.semantic => {
            if *last.metadata().uid == *known.equivalent {
                return Update::Present(revisions.len() - 1);
            }
            if let Some(data) = &data
                && revisions::are_equivalent(data, revisions::data(last))
            {
                known.equivalent = last.metadata().uid.to_string();
                return Update::Present(revisions.len() - 1);
            }
        }
        (None, _) => {}
    }
    data.map_or(Update::Ask, Update::New)
}

/// Brings the history up to date; returns the update revision, and the number of name collisions.
fn settle_update(
    plan: &mut Plan,
    view: &View,
    update: Update,
    seen: &Snapshot<'_>,
) -> (Arc<ControllerRevision>, i32) {
    let set = view.pods.owner.as_ref();
    let revisions = &view.revisions.claims.owned;
    let mut collisions = set
        .status
        .as_ref()
        .and_then(|status| status.collision_count)
        .unwrap_or(0);
    let next = revisions
        .last()
        .map_or(1, |last| last.revision.saturating_add(1));
    let data = match update {
        Update::Present(index) => return (Arc::clone(&revisions[index]), collisions),
        Update::Older(index) => {
            let old = &revisions[index];
            let mut new = ControllerRevision::clone(old);
            new.revision = next;
            plan.patch(
                old.as_ref(),
                "",
                controllers_kit::PatchKind::Merge,
                serde_json::json!({"revision": next}),
                StatusWrite::No,
            );
            return (Arc::new(new), collisions);
        }
        Update::New(data) => data,
        Update::Ask => unreachable!("the set was read live, or the plan refused"),
    };
    let meta = set.metadata();
    // The label keeps the first hash, even where the name had to change.
    let label = revisions::name_hash(&data, collisions);
    let mut hash = label.clone();
    loop {
        let name = revisions::name(&meta.name, &hash);
        let taken =
            seen.get::<ControllerRevision>(&Key::new(meta.namespace.clone(), name.as_str()));
        match taken {
            Some(same) if revisions::data(&same) == data => return (same, collisions),
            Some(_) => {
                collisions = collisions.wrapping_add(1);
                hash = revisions::name_hash(&data, collisions);
            }
            None => {
                let mut new = revisions::new(set, &name, data, next);
                let template = spec(set)
                    .template
                    .as_ref()
                    .and_then(|template| template.metadata.as_ref());
                let labels = &mut new.metadata_mut().labels;
                *labels = template.map(|meta| meta.labels.clone()).unwrap_or_default();
                kubernetes_proto::meta::set(labels, "controller.kubernetes.io/hash", &label);
                view.revisions.count(plan);
                plan.create(&new);
                return (Arc::new(new), collisions);
            }
        }
    }
}

/// Whether the next ordinals may be processed.
#[derive(PartialEq, Eq)]
enum Step {
    Next,
    Stop,
}

/// The existing pods of wanted ordinals. A gap is a missing ordinal.
type Living = BTreeMap<i64, Arc<Pod>>;

/// How many wanted ordinals have no pod.
fn gaps(set: &StatefulSet, living: &Living) -> usize {
    let ordinals = ordinals(set);
    usize::try_from(ordinals.end - ordinals.start)
        .unwrap_or(usize::MAX)
        .saturating_sub(living.len())
}

/// One reconcile of a StatefulSet, with the plan that it makes.
struct Rollout<'a> {
    of: &'a StatefulSets,
    set: &'a StatefulSet,
    seen: &'a Snapshot<'a>,
    plan: Plan,
    current: Arc<ControllerRevision>,
    update: Arc<ControllerRevision>,
    collisions: i32,
    /// What can't be done now.
    obstacle: Option<String>,
}

/// The content of a plan's stages, in their order: claims before the pods that use them.
#[derive(Default)]
struct Stages {
    claims: Plan,
    pods: Plan,
}

impl Rollout<'_> {
    fn run(mut self, view: &View, memory: &mut Memory) -> Result<Plan, Refusal> {
        let set = self.set;
        let (now, min_ready_seconds) = (self.seen.now, spec(set).min_ready_seconds);
        let mut status = StatefulSetStatus {
            observed_generation: set.metadata().generation,
            current_revision: self.current.metadata().name.to_string(),
            update_revision: self.update.metadata().name.to_string(),
            collision_count: Some(self.collisions),
            ..Default::default()
        };
        let pods = &view.pods.claims.owned;
        let mut stages = Stages::default();
        if set.is_terminating() {
            status::count(&mut status, pods, min_ready_seconds, now);
        } else {
            self.manage(pods, &mut status, &mut stages)?;
        }
        status::complete(set, &mut status);
        self.measure();
        self.report_obstacle(memory);
        self.plan.events.append(&mut stages.claims.events);
        status::requeue_until_available(&mut self.plan, set, &status, pods, now);
        status::report(&mut self.plan, set, status);
        for mut stage in [stages.claims, stages.pods] {
            let actions = stage.stages.drain(..).flatten();
            for action in actions {
                self.plan.act(action);
            }
            self.plan.then();
        }
        self.truncate_history(&view.revisions, pods);
        if self.plan.actions().any(|action| {
            action.resource == Pod::resource()
                && !matches!(action.verb, controllers_kit::Verb::Patch { .. })
        }) {
            view.pods.count(&mut self.plan);
        }
        Ok(self.plan)
    }

    /// First the wanted ordinals, then surplus pods, then the rollout.
    fn manage(
        &mut self,
        pods: &[Arc<Pod>],
        status: &mut StatefulSetStatus,
        stages: &mut Stages,
    ) -> Result<(), Refusal> {
        let set = self.set;
        let (now, min_ready_seconds) = (self.seen.now, spec(set).min_ready_seconds);
        // Only existing pods may take memory and time: a set may ask for two billion of them.
        let mut living = Living::new();
        let mut condemned = Vec::new();
        for pod in pods {
            let ordinal = pod::ordinal(pod);
            if is_in_range(set, ordinal) {
                living.insert(ordinal, Arc::clone(pod));
            } else if ordinal >= 0 {
                condemned.push(Arc::clone(pod));
            }
        }
        condemned.sort_by_key(|pod| std::cmp::Reverse(pod::ordinal(pod)));
        status::count(
            status,
            living.values().chain(&condemned),
            min_ready_seconds,
            now,
        );
        let ordered = spec(set).pod_management_policy != "Parallel";
        let unavailable =
            |pod: &Pod| pod.is_terminating() || !pods::is_available(pod, min_ready_seconds, now);
        // The first unavailable one in order: only it may be deleted before all others are available.
        let is_first_unavailable = |pod: &Arc<Pod>| {
            gaps(set, &living) == 0
                && living.values().all(|pod| !unavailable(pod))
                && condemned
                    .iter()
                    .rev()
                    .find(|pod| unavailable(pod))
                    .is_some_and(|first| Arc::ptr_eq(first, pod))
        };
        // In order, the first gap ends the walk; in parallel, the number of creations at once.
        let most = self.creations_at_once();
        let mut missing = 0;
        for ordinal in ordinals(set) {
            let pod = living.get(&ordinal);
            missing += usize::from(pod.is_none());
            if missing > most {
                return Ok(());
            }
            let step = self.living(pod.map(Arc::as_ref), ordinal, ordered, stages)?;
            if step == Step::Stop && ordered {
                return Ok(());
            }
        }
        if self.obstacle.is_some() {
            return Ok(());
        }
        for pod in &condemned {
            if !claims::match_policy(set, pod, self.seen) {
                claims::mend_owners(&mut stages.claims, set, pod, self.seen, None);
            }
        }
        for pod in &condemned {
            if pod.is_terminating() {
                if ordered {
                    return Ok(());
                }
                continue;
            }
            let at_work =
                pod::is_running_and_ready(pod) && pods::is_available(pod, min_ready_seconds, now);
            if ordered && !at_work && !is_first_unavailable(pod) {
                return Ok(());
            }
            self.delete(stages, pod);
            if ordered {
                return Ok(());
            }
        }
        if strategy(set) == ON_DELETE {
            return Ok(());
        }
        if self.of.max_unavailable {
            return self.roll_several(&living, &unavailable, status, stages);
        }
        self.roll(&living, &unavailable, status, stages);
        Ok(())
    }

    /// The number of pods that one plan creates, each with its claims.
    fn creations_at_once(&self) -> usize {
        let spec = spec(self.set);
        let pod =
            pods::template_bytes(spec.template.as_ref()).max(revisions::data(&self.current).len());
        let claims = spec.volume_claim_templates.iter();
        let claims: usize = claims
            .map(|claim| prost::Message::encoded_len(claim).saturating_add(CLAIM_BYTES))
            .sum();
        pods::creations_at_once(BURST, pod.saturating_add(claims))
    }

    /// One wanted ordinal.
    fn living(
        &mut self,
        pod: Option<&Pod>,
        ordinal: i64,
        ordered: bool,
        stages: &mut Stages,
    ) -> Result<Step, Refusal> {
        let set = self.set;
        let Some(pod) = pod else {
            if claims::are_stale(set, ordinal, self.seen) {
                return Ok(Step::Stop);
            }
            return self.create(ordinal, ordered, stages);
        };
        if pods::has_finished(pod) {
            if !pod.is_terminating() {
                self.delete(stages, pod);
            }
            return Ok(Step::Stop);
        }
        if pod::is_pending(pod) {
            if let Err(why) = claims::create_missing(&mut stages.claims, set, ordinal, self.seen) {
                self.obstacle.get_or_insert(why);
                return Ok(Step::Stop);
            }
            claims::mend_owners(&mut stages.claims, set, pod, self.seen, None);
        }
        let min_ready_seconds = spec(set).min_ready_seconds;
        let at_work = pod::is_running_and_ready(pod)
            && pods::is_available(pod, min_ready_seconds, self.seen.now);
        if ordered && (pod.is_terminating() || !at_work) {
            return Ok(Step::Stop);
        }
        self.mend(pod, ordinal, stages);
        Ok(Step::Next)
    }

    fn create(
        &mut self,
        ordinal: i64,
        ordered: bool,
        stages: &mut Stages,
    ) -> Result<Step, Refusal> {
        let set = self.set;
        let name = pod::name(set, ordinal);
        if let Err(why) = claims::create_missing(&mut stages.claims, set, ordinal, self.seen) {
            let message = format!(
                "Create Pod {name} in StatefulSet {} failed error: {why}",
                set.metadata().name
            );
            self.obstacle.get_or_insert(message);
            return Ok(Step::Stop);
        }
        let is_current = self.is_current(ordinal);
        let action = if is_current && self.current.metadata().name != self.update.metadata().name {
            pod::create_of_revision(&mut stages.pods, set, &self.current, ordinal)?
        } else {
            pod::create(&mut stages.pods, set, &self.update.metadata().name, ordinal)?
        };
        action
            .announce(successful(set, "Create", &name))
            .announce_failure(failed(set, "Create", &name));
        Ok(if ordered { Step::Stop } else { Step::Next })
    }

    /// Whether a new pod of an ordinal has the current revision: ordinals below the partition do; without a
    /// partition, as many as the status counts.
    fn is_current(&self, ordinal: i64) -> bool {
        let below = match partition(self.set) {
            Some(partition) => partition,
            None if strategy(self.set) == ROLLING_UPDATE => self
                .set
                .status
                .as_ref()
                .map_or(0, |status| status.current_replicas),
            None => 0,
        };
        ordinal < start(self.set) + i64::from(below)
    }

    /// Restores a pod's identity, its storage, and its claims' owners.
    fn mend(&mut self, pod: &Pod, ordinal: i64, stages: &mut Stages) {
        let set = self.set;
        let name = &pod.metadata().name;
        let wrong = pod::wrong_volumes(set, pod);
        let mut announced = false;
        // A pending pod has had its claims seen to.
        let is_pending = pod::is_pending(pod);
        if !is_pending
            && !wrong.is_empty()
            && let Err(why) = claims::create_missing(&mut stages.claims, set, ordinal, self.seen)
        {
            let message = format!(
                "Update Pod {name} in StatefulSet {} failed error: {why}",
                set.metadata().name
            );
            self.obstacle.get_or_insert(message);
            return;
        }
        let mut patch = serde_json::json!({});
        if !pod::has_identity(pod) {
            patch["metadata"]["labels"] = serde_json::json!({
                pod::NAME_LABEL: name,
                pod::INDEX_LABEL: ordinal.to_string(),
            });
        }
        if !wrong.is_empty() {
            // The server refuses it, for a pod's volumes can't change; the event quotes its answer.
            patch["spec"]["volumes"] = wrong
                .iter()
                .map(|volume| {
                    serde_json::json!({
                        "name": volume.volume,
                        "persistentVolumeClaim": {"claimName": volume.claim},
                    })
                })
                .collect();
        }
        if patch != serde_json::json!({}) {
            announced = true;
            stages
                .pods
                .patch(
                    pod,
                    "",
                    controllers_kit::PatchKind::Strategic,
                    patch,
                    StatusWrite::No,
                )
                .announce(successful(set, "Update", name))
                .announce_failure(failed(set, "Update", name));
        }
        if is_pending {
            return;
        }
        let event = (!announced).then(|| successful(set, "Update", name));
        claims::mend_owners(&mut stages.claims, set, pod, self.seen, event.as_ref());
    }

    fn delete(&self, stages: &mut Stages, pod: &Pod) {
        let name = &pod.metadata().name;
        stages
            .pods
            .delete(pod, Only::ThisUid, Propagation::Background)
            .announce(successful(self.set, "Delete", name))
            .announce_failure(failed(self.set, "Delete", name));
    }

    fn is_updated(&self, pod: &Pod) -> bool {
        *pod::revision(pod) == *self.update.metadata().name
    }

    /// The ordinals that a rollout may touch.
    fn rolled(&self) -> Range<i64> {
        let all = ordinals(self.set);
        let lowest = all.start + i64::from(partition(self.set).unwrap_or(0).max(0));
        lowest.min(all.end)..all.end
    }

    /// From the highest ordinal down, one at a time: the next is deleted when its predecessor is available
    /// again.
    fn roll(
        &self,
        living: &Living,
        unavailable: &dyn Fn(&Pod) -> bool,
        status: &mut StatefulSetStatus,
        stages: &mut Stages,
    ) {
        for ordinal in self.rolled().rev() {
            // Waits for one that is still being created.
            let Some(pod) = living.get(&ordinal) else {
                return;
            };
            if !self.is_updated(pod) && !pod.is_terminating() {
                self.delete(stages, pod);
                one_less(status);
                return;
            }
            if unavailable(pod) {
                return;
            }
        }
    }

    /// As many at a time as may be unavailable.
    fn roll_several(
        &mut self,
        living: &Living,
        unavailable: &dyn Fn(&Pod) -> bool,
        status: &mut StatefulSetStatus,
        stages: &mut Stages,
    ) -> Result<(), Refusal> {
        let missing =
            gaps(self.set, living) + living.values().filter(|pod| unavailable(pod)).count();
        let labels = self.metric_labels();
        self.plan.measure(
            UNAVAILABLE_METRIC,
            &labels.each_ref().map(String::as_str),
            missing as f64,
        );
        let room = max_unavailable(self.set)?.saturating_sub(missing);
        let outdated = living
            .range(self.rolled())
            .rev()
            .map(|(_, pod)| pod)
            .filter(|pod| !self.is_updated(pod) && !pod.is_terminating());
        for pod in outdated.take(room) {
            self.delete(stages, pod);
            one_less(status);
        }
        Ok(())
    }

    fn metric_labels(&self) -> [String; 3] {
        let meta = self.set.metadata();
        [
            meta.namespace.to_string(),
            meta.name.to_string(),
            spec(self.set).pod_management_policy.clone(),
        ]
    }

    fn measure(&mut self) {
        if !self.of.max_unavailable {
            return;
        }
        let labels = self.metric_labels();
        if let Ok(most) = max_unavailable(self.set) {
            self.plan.measure(
                MAX_UNAVAILABLE_METRIC,
                &labels.each_ref().map(String::as_str),
                most as f64,
            );
        }
    }

    /// Reports once what could not be done. For a pending pod that lost its claim upstream has no event.
    fn report_obstacle(&mut self, memory: &mut Memory) {
        let obstacle = self.obstacle.take().unwrap_or_default();
        let reason = match &obstacle {
            text if text.starts_with("Create") => Some("FailedCreate"),
            text if text.starts_with("Update") => Some("FailedUpdate"),
            _ => None,
        };
        if let Some(reason) = reason {
            let event = Event::warning(self.set, reason, obstacle);
            self.plan.event_once(&mut memory.said, event);
        }
        memory.said.settle();
    }

    /// Deletes revisions that no pod has, oldest first, down to the history limit.
    fn truncate_history(
        &mut self,
        revisions: &Claimed<StatefulSet, ControllerRevision>,
        pods: &[Arc<Pod>],
    ) {
        let limit = spec(self.set).revision_history_limit.unwrap_or(10);
        let Ok(limit) = usize::try_from(limit) else {
            return;
        };
        let owned = revisions.claims.owned.iter();
        let idle: Vec<&Arc<ControllerRevision>> = owned
            .filter(|revision| {
                let name = &revision.metadata().name;
                *name != self.current.metadata().name
                    && *name != self.update.metadata().name
                    && pods.iter().all(|pod| *pod::revision(pod) != **name)
            })
            .collect();
        let surplus = idle.len().saturating_sub(limit);
        for revision in &idle[..surplus] {
            revisions.count(&mut self.plan);
            self.plan
                .delete(revision.as_ref(), Only::ThisUid, Propagation::Background);
        }
    }
}

fn max_unavailable(set: &StatefulSet) -> Result<usize, Refusal> {
    let rolling = spec(set)
        .update_strategy
        .as_ref()
        .and_then(|strategy| strategy.rolling_update.as_ref());
    let Some(most) = rolling.and_then(|rolling| rolling.max_unavailable.as_ref()) else {
        return Ok(1);
    };
    let scaled = most
        .scaled(replicas(set), false)
        .map_err(|error| Refusal::Retry(format!("StatefulSet {}: {error}", Key::of(set))))?;
    Ok(usize::try_from(scaled).unwrap_or(0).max(1))
}

/// Upstream's event for a successful write of a pod.
fn successful(set: &StatefulSet, verb: &'static str, pod: &str) -> Event {
    let reason = match verb {
        "Create" => "SuccessfulCreate",
        "Update" => "SuccessfulUpdate",
        _ => "SuccessfulDelete",
    };
    let set_name = &set.metadata().name;
    Event::normal(
        set,
        reason,
        format!("{verb} Pod {pod} in StatefulSet {set_name} successful"),
    )
}

fn failed(set: &StatefulSet, verb: &'static str, pod: &str) -> Event {
    let reason = match verb {
        "Create" => "FailedCreate",
        "Update" => "FailedUpdate",
        _ => "FailedDelete",
    };
    let set_name = &set.metadata().name;
    Event::warning(
        set,
        reason,
        format!("{verb} Pod {pod} in StatefulSet {set_name} failed error: "),
    )
}

/// A pod that goes for a rollout leaves the current revision, as upstream counts, of whatever revision it is.
/// Where the template changes before the end of a rollout was recorded, none is of that revision: the API
/// server refuses a count below zero, and nothing is deleted before the status is written.
fn one_less(status: &mut StatefulSetStatus) {
    status.current_replicas = (status.current_replicas - 1).max(0);
}
