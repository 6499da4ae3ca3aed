//! Which nodes get a pod and which lose one.

use std::sync::Arc;

use controllers_kit::{
    Event, Key, Only, Plan, Propagation, Query, Refusal, Snapshot,
    names::{Children, Known},
    owners::{self, Claimed},
    pods,
    podspec::placement,
    selectors::{self, Selector},
};
use kubernetes_proto::{
    Object,
    apps::{ControllerRevision, DaemonSet},
    core::{Node, Pod},
};

use super::{
    DaemonSets, Memory,
    context::{
        ByNode, GENERATION_LABEL, PodChanges, SyncContext, order, spec, template_generation,
    },
    history,
    nodes::{self, Placement},
    rolling, status,
};
use crate::revisions::{self, REVISION_LABEL};

/// The most pods that one plan creates, and that it deletes: more wait until the cache has seen these.
const BURST: usize = 250;

struct View {
    pods: Claimed<DaemonSet, Pod>,
    revisions: Claimed<DaemonSet, ControllerRevision>,
}

fn view(key: &Key, seen: &Snapshot<'_>) -> Result<Option<View>, Refusal> {
    let Some(set) = seen
        .get::<DaemonSet>(key)
        .filter(|set| !set.is_terminating())
    else {
        return Ok(None);
    };
    let selector = Selector::compile(spec(&set).selector.as_ref())
        .map_err(|error| Refusal::Wait(format!("selector of DaemonSet {key}: {error}")))?;
    Ok(Some(View {
        revisions: revisions::of_owner(&set, &selector, seen),
        pods: Claimed::of(set, selector, seen),
    }))
}

fn selects_all(set: &DaemonSet) -> bool {
    selectors::selects_all(spec(set).selector.as_ref())
}

pub(super) fn ask(key: &Key, seen: &Snapshot<'_>, memory: &Memory) -> Vec<Query> {
    let Ok(Some(view)) = view(key, seen) else {
        return Vec::new();
    };
    let set = view.pods.owner.as_ref();
    if selects_all(set) {
        return Vec::new();
    }
    let adopts = view.pods.ask().or_else(|| view.revisions.ask());
    let is_known = history::is_known(set, &view.revisions.claims.owned, &memory.known);
    Vec::from_iter(adopts.or_else(|| (!is_known).then(|| owners::recheck(set))))
}

pub(super) fn plan(
    of: &DaemonSets,
    key: &Key,
    seen: &Snapshot<'_>,
    memory: &mut Memory,
) -> Result<Plan, Refusal> {
    let Some(view) = view(key, seen)? else {
        return Ok(Plan::nothing());
    };
    let set = view.pods.owner.as_ref();
    let meta = set.metadata();
    let mut plan = Plan::nothing();
    if selects_all(set) {
        let event = Event::warning(
            set,
            "SelectingAll",
            "This daemon set is selecting all pods. A non-empty selector is required.",
        );
        plan.event_once_for(&mut memory.said, event, &meta.generation.to_string());
        memory.said.settle();
        return Ok(plan);
    }
    let settled = view.revisions.settle(seen);
    if let Some(settled) = settled.or_else(|| view.pods.settle(seen)) {
        return settled;
    }
    let placement = Placement::of(set, of.comparisons)
        .map_err(|error| Refusal::Wait(format!("template of DaemonSet {key}: {error}")))?;
    let owned = &view.pods.claims.owned;
    let history = history::settle(
        &mut plan,
        set,
        &view.pods.selector,
        &view.revisions.claims.owned,
        owned,
        &mut memory.known,
        seen,
    )?;
    plan.then();
    let context = SyncContext {
        set,
        placement,
        nodes: seen.all::<Node>(),
        pods: by_node(owned),
        hash: history.hash.clone(),
        seen,
    };
    let observed = set
        .status
        .as_ref()
        .map_or(0, |status| status.observed_generation);
    memory.clear(format!("{}/{observed}", meta.uid), seen.now);
    status::report(&mut plan, &context, history.collisions);
    let mut changes = manage(&context, &mut plan, memory);
    if changes.create.is_empty() && changes.delete.is_empty() {
        changes = rolling::changes(&context)?;
    }
    carry_out(&mut plan, &context, &changes, owned, &view.pods.selector)?;
    plan.then();
    history::truncate(&mut plan, set, &view.pods.selector, &history.old, owned);
    Ok(plan)
}

fn by_node(pods: &[Arc<Pod>]) -> ByNode {
    let mut by_node = ByNode::new();
    for pod in pods {
        // With a finalizer it may exist for long; nothing is left to do about it.
        let is_over = pods::has_finished(pod) && pod.is_terminating();
        if let Some(node) = nodes::target(pod).filter(|_| !is_over) {
            by_node
                .entry(node.to_owned())
                .or_default()
                .push(Arc::clone(pod));
        }
    }
    by_node
}

/// The creations and deletions that each node needs, whatever rollout is in progress.
fn manage(context: &SyncContext<'_>, plan: &mut Plan, memory: &mut Memory) -> PodChanges {
    let mut changes = PodChanges::default();
    for node in &context.nodes {
        let name = Object::metadata(node.as_ref()).name.as_str();
        let fit = context.placement.judge(node);
        match context.pods.get(name) {
            None if fit.runs => changes.create.push(name.to_owned()),
            None => {}
            Some(pods) if fit.stays => {
                on_node(context, name, pods, fit.runs, plan, memory, &mut changes);
            }
            Some(pods) => {
                let leaving = pods.iter().filter(|pod| !pod.is_terminating());
                changes.delete.extend(leaving.cloned());
            }
        }
    }
    // Never scheduled, so the pod garbage collector does not find them.
    for (node, pods) in &context.pods {
        if context
            .nodes
            .iter()
            .all(|other| *Object::metadata(other.as_ref()).name != **node)
        {
            let stranded = pods.iter().filter(|pod| pods::node_name(pod).is_empty());
            changes
                .delete
                .extend(stranded.filter(|pod| !pod.is_terminating()).cloned());
        }
    }
    changes
}

/// A node on which pods may stay: failed ones and surplus ones are deleted.
fn on_node(
    context: &SyncContext<'_>,
    node: &str,
    pods: &[Arc<Pod>],
    runs: bool,
    plan: &mut Plan,
    memory: &mut Memory,
    changes: &mut PodChanges,
) {
    let set = context.set;
    let mut running = Vec::new();
    for pod in pods.iter().filter(|pod| !pod.is_terminating()) {
        let meta = pod.metadata();
        match pod.status.as_ref().map_or("", |status| &status.phase) {
            "Failed" => {
                // The kubelet may refuse the next one too: back-off prevents a hot loop.
                if let Some(until) = memory.hold_back(node, context.seen.now) {
                    plan.requeue_at(until);
                    continue;
                }
                plan.event(Event::warning(
                    set,
                    "FailedDaemonPod",
                    format!(
                        "Found failed daemon pod {}/{} on node {node}, will try to kill it",
                        meta.namespace, meta.name
                    ),
                ));
                changes.delete.push(Arc::clone(pod));
            }
            "Succeeded" => {
                plan.event(Event::normal(
                    set,
                    "SucceededDaemonPod",
                    format!(
                        "Found succeeded daemon pod {}/{} on node {node}, will try to delete it",
                        meta.namespace, meta.name
                    ),
                ));
                changes.delete.push(Arc::clone(pod));
            }
            _ => running.push(Arc::clone(pod)),
        }
    }
    running.sort_by(|one, other| order(one, other));
    if !rolling::surges(set) {
        changes.delete.extend(running.into_iter().skip(1));
        return;
    }
    if running.len() <= 1 {
        if running.is_empty() && runs {
            changes.create.push(node.to_owned());
        }
        return;
    }
    // Two pods may stay: the oldest of the present revision while it is not ready, and the oldest of
    // another while it is.
    let (mut newest, mut oldest) = (None, None);
    for pod in running {
        let is_new = pod.metadata().label(REVISION_LABEL) == Some(&context.hash);
        let place = if is_new { &mut newest } else { &mut oldest };
        match place {
            None => *place = Some(pod),
            Some(_) => changes.delete.push(pod),
        }
    }
    if let (Some(new), Some(old)) = (newest, oldest)
        && (!pods::is_ready(&old)
            || pods::is_available(&new, spec(set).min_ready_seconds, context.seen.now))
    {
        changes.delete.push(old);
    }
}

fn carry_out(
    plan: &mut Plan,
    context: &SyncContext<'_>,
    changes: &PodChanges,
    owned: &[Arc<Pod>],
    selector: &Selector,
) -> Result<(), Refusal> {
    let set = context.set;
    if !changes.create.is_empty() || !changes.delete.is_empty() {
        plan.counted::<Pod>(&set.metadata().namespace, selector);
    }
    if !changes.create.is_empty() {
        let template = Template::of(context)?;
        let copied = pods::template_bytes(spec(set).template.as_ref());
        let count = pods::creations_at_once(BURST, copied);
        for node in changes.create.iter().take(count) {
            template.create(plan, context, node, owned)?;
        }
    }
    for pod in changes.delete.iter().take(BURST) {
        let name = &pod.metadata().name;
        plan.delete(pod.as_ref(), Only::ThisUid, Propagation::Background)
            .announce(Event::normal(
                set,
                "SuccessfulDelete",
                format!("Deleted pod: {name}"),
            ))
            .announce_failure(Event::warning(set, "FailedDelete", "Error deleting: "));
    }
    Ok(())
}

/// The template of a DaemonSet's pods, before they are pinned to their nodes.
struct Template(kubernetes_proto::core::PodTemplateSpec);

impl Template {
    fn of(context: &SyncContext<'_>) -> Result<Self, Refusal> {
        let set = context.set;
        let mut template = spec(set).template.clone().unwrap_or_default();
        template.spec =
            placement::tolerating(&template.spec, &context.placement.added_tolerations())
                .map_err(|error| unreadable(set, &error))?;
        let labels = template.metadata.get_or_insert_default();
        if let Some(generation) = template_generation(set) {
            labels.set_label(GENERATION_LABEL, &generation.to_string());
        }
        labels.set_label(REVISION_LABEL, &context.hash);
        Ok(Self(template))
    }

    fn create(
        &self,
        plan: &mut Plan,
        context: &SyncContext<'_>,
        node: &str,
        owned: &[Arc<Pod>],
    ) -> Result<(), Refusal> {
        let set = context.set;
        let meta = set.metadata();
        // A name for each node and revision: two owners that create the same pod choose the same name.
        let children = Children::of(&meta.name, &format!("{}/{node}/{}", meta.uid, context.hash));
        let existing = owned
            .iter()
            .filter(|pod| {
                nodes::target(pod) == Some(node)
                    && pod.metadata().label(REVISION_LABEL) == Some(&context.hash)
            })
            .map(|pod| pod.metadata());
        let known = Known::of(context.seen.reader(), Pod::resource(), meta);
        let Some(name) = children.next(0, existing, &known, 1).pop() else {
            return Ok(());
        };
        let mut pod = pods::from_template(
            Some(&self.0),
            owners::reference(set),
            &children,
            &meta.namespace,
            &name,
        );
        pod.spec =
            placement::pinned_to(&pod.spec, node).map_err(|error| unreadable(set, &error))?;
        pods::create(plan, &pod)
            .announce(Event::normal(
                set,
                "SuccessfulCreate",
                format!("Created pod: {name}"),
            ))
            .announce_failure(Event::warning(set, "FailedCreate", "Error creating: "))
            .reported_as(children.generate_name());
        Ok(())
    }
}

fn unreadable(set: &DaemonSet, error: &controllers_kit::podspec::Malformed) -> Refusal {
    Refusal::Wait(format!("template of DaemonSet {}: {error}", Key::of(set)))
}
