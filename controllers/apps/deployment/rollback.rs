//! The rollback that an annotation asks for, as the field `rollbackTo` of old API versions did. (`kubectl
//! rollout undo` writes the template itself and needs nothing of this.)

use std::sync::Arc;

use controllers_kit::{Event, PatchKind, Plan, Query, Refusal, Snapshot, StatusWrite, patch};
use kubernetes_proto::{
    Object,
    apps::{Deployment, ReplicaSet},
    meta::ObjectMeta,
};
use serde_json::{Map, Value, json};

use super::{
    Memory,
    context::{Rollout, Set},
    revision::{self, ROLLBACK_TO},
    template,
};

const NOT_FOUND: &str = "DeploymentRollbackRevisionNotFound";
const UNCHANGED: &str = "DeploymentRollbackTemplateUnchanged";
const DONE: &str = "DeploymentRollback";

/// The requested revision; 0 means the last but one. `None` for anything but a number.
pub(super) fn wanted(deployment: &Deployment) -> Option<i64> {
    deployment.metadata().annotation(ROLLBACK_TO)?.parse().ok()
}

/// The ReplicaSet to roll back to and its revision, or why there is none.
fn target(sets: &[Set], wanted: i64) -> Result<(&Set, i64), &'static str> {
    let revision = match wanted {
        0 => revision::last_but_one(sets.iter()),
        named => named,
    };
    if revision == 0 {
        return Err("Unable to find last revision.");
    }
    sets.iter()
        .find(|set| revision::of(set.wanted.metadata()) == Some(revision))
        .map(|set| (set, revision))
        .ok_or("Unable to find the revision to rollback to.")
}

/// The template is copied from the live ReplicaSet: a projection does not know all of it.
pub(super) fn ask(
    deployment: &Deployment,
    sets: &[Arc<ReplicaSet>],
    memory: &Memory,
) -> Vec<Query> {
    let sets: Vec<Set> = sets.iter().map(Set::seen).collect();
    let Some(Ok((set, _))) = wanted(deployment).map(|wanted| target(&sets, wanted)) else {
        return Vec::new();
    };
    match &set.seen {
        Some(set) if template::is_known_equal(deployment, set, memory) != Some(true) => {
            vec![template::live(deployment), template::live(set.as_ref())]
        }
        _ => Vec::new(),
    }
}

impl Rollout {
    /// Rolls back, or records why not; either way the annotation is removed.
    ///
    /// # Errors
    /// Where the templates could not be read.
    pub fn roll_back(
        &self,
        plan: &mut Plan,
        wanted: i64,
        seen: &Snapshot<'_>,
        memory: &Memory,
    ) -> Result<(), Refusal> {
        let deployment = self.deployment.as_ref();
        let (set, revision) = match target(&self.sets, wanted) {
            Ok((set, revision)) => (set, revision),
            Err(why) => {
                plan.event(Event::warning(deployment, NOT_FOUND, why));
                self.patch_deployment(plan, None, None);
                return Ok(());
            }
        };
        let Some(set) = &set.seen else {
            return Err(Refusal::Retry(
                "the ReplicaSet to roll back to is being created".to_owned(),
            ));
        };
        let is_same = match template::is_known_equal(deployment, set, memory) {
            Some(true) => true,
            Some(false) | None => template::are_equal_live(deployment, set, seen)?,
        };
        if is_same {
            let name = self.name();
            plan.event(Event::warning(
                deployment,
                UNCHANGED,
                format!(
                    "The rollback revision contains the same template as current deployment {name:?}"
                ),
            ));
            self.patch_deployment(plan, None, None);
            return Ok(());
        }
        let change = patch::merge_patch(
            &template::live_template(deployment, seen)?,
            &template::live_template(set.as_ref(), seen)?,
        );
        let done = format!(
            "Rolled back deployment {:?} to revision {revision}",
            self.name()
        );
        self.patch_deployment(plan, Some(set.metadata()), change)
            .expect("the annotation is there and goes")
            .announce(Event::normal(deployment, DONE, done));
        Ok(())
    }

    fn patch_deployment<'a>(
        &self,
        plan: &'a mut Plan,
        set: Option<&ObjectMeta>,
        template: Option<Value>,
    ) -> Option<&'a mut controllers_kit::Action> {
        let meta = self.deployment.metadata();
        let json = |annotations: &[kubernetes_proto::meta::Entry]| {
            let entries = annotations
                .iter()
                .map(|entry| (entry.key.to_string(), Value::from(entry.value.as_str())));
            Value::Object(entries.collect::<Map<_, _>>())
        };
        let annotations = patch::merge_patch(
            &json(&meta.annotations),
            &json(&revision::annotations_of_rollback(meta, set)),
        )?;
        let mut change = json!({"metadata": {"annotations": annotations}});
        if let Some(template) = template {
            change["spec"] = json!({"template": template});
        }
        Some(plan.patch(
            self.deployment.as_ref(),
            "",
            PatchKind::Merge,
            change,
            StatusWrite::No,
        ))
    }
}
