//! The CustomResourceDefinition of a resource that is migrated: it shows the migration, and forgets the
//! versions of which nothing is stored any more.

use std::sync::OnceLock;

use controllers_kit::{Action, Key, PatchKind, Plan, Query, Resource, StatusWrite, Str, Verb};
use kubernetes_proto::{meta::Time, storagemigration::GroupResource};
use serde_json::{Value, json};

use super::name_of;

/// As whom upstream applies the condition.
const MANAGER: &str = "migration-runner-controller";
const CONDITION: &str = "StorageMigrating";

/// CustomResourceDefinitions; `None` where the process has reached its bound of resources.
fn resource() -> Option<&'static Resource> {
    static RESOURCE: OnceLock<Option<&'static Resource>> = OnceLock::new();
    *RESOURCE.get_or_init(|| {
        kubernetes_proto::metadata_only(
            "apiextensions.k8s.io",
            "v1",
            "CustomResourceDefinition",
            "customresourcedefinitions",
            false,
        )
    })
}

/// Queries the definition of a resource; none for the core group, which has no definitions.
pub(super) fn query(of: &GroupResource) -> Option<Query> {
    let resource = resource().filter(|_| !of.group.is_empty())?;
    Some(Query::Live {
        resource,
        key: Key::cluster(name_of(of)),
    })
}

/// Says that a migration runs.
pub(super) fn begin(plan: &mut Plan, definition: &Value, migration: &str, now: Time) {
    let message = format!("Migration {migration} is running");
    apply(
        plan,
        definition,
        ("True", "MigrationRunning", &message),
        kept(definition),
        now,
    );
}

/// Records how a migration has ended. Stored versions without objects are dropped where the definition has
/// not changed since the migration began.
pub(super) fn end(plan: &mut Plan, definition: &Value, has_succeeded: bool, now: Time) {
    let list = |pointer| {
        definition
            .pointer(pointer)
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
    };
    let is_same = list("/status/conditions")
        .find(|condition| condition["type"] == CONDITION)
        .is_some_and(|condition| {
            condition["observedGeneration"].as_i64().unwrap_or(0)
                == definition["metadata"]["generation"].as_i64().unwrap_or(0)
        });
    let (reason, message) = match (has_succeeded, is_same) {
        (true, true) => (
            "MigrationSucceeded",
            "The migration has succeeded and the stored versions have been updated",
        ),
        (true, false) => (
            "MigrationSucceeded",
            "The migration has succeeded but the stored versions have not been updated due to a generation mismatch",
        ),
        (false, _) => ("MigrationFailed", "The migration has failed"),
    };
    let stored = list("/spec/versions").find(|version| version["storage"] == true);
    let versions = match stored {
        Some(version) if is_same => json!([version["name"]]),
        _ => kept(definition),
    };
    apply(plan, definition, ("False", reason, message), versions, now);
}

/// The stored versions as they are, where an earlier migration has applied them: the API server removes what
/// a manager has applied and applies no longer. Null where they are somebody else's.
fn kept(definition: &Value) -> Value {
    let entries = definition["metadata"]["managedFields"].as_array();
    let is_owned = entries.into_iter().flatten().any(|entry| {
        entry["manager"] == MANAGER && !entry["fieldsV1"]["f:status"]["f:storedVersions"].is_null()
    });
    match is_owned {
        true => definition["status"]["storedVersions"].clone(),
        false => Value::Null,
    }
}

/// Applies condition and stored versions to the version that was read: a later one may have another
/// generation, or another storage version.
fn apply(
    plan: &mut Plan,
    definition: &Value,
    (value, reason, message): (&str, &str, &str),
    versions: Value,
    now: Time,
) {
    let Some(resource) = resource() else {
        return;
    };
    let meta = &definition["metadata"];
    let text = |field: &str| meta[field].as_str().unwrap_or_default();
    let mut status = json!({
        "conditions": [{
            "type": CONDITION,
            "status": value,
            "lastTransitionTime": now,
            "reason": reason,
            "message": message,
            "observedGeneration": meta["generation"],
        }],
    });
    if versions.as_array().is_some_and(|all| !all.is_empty()) {
        status["storedVersions"] = versions;
    }
    plan.act(Action {
        verb: Verb::Patch {
            subresource: "status",
            kind: PatchKind::Apply { manager: MANAGER },
            patch: json!({ "status": status }),
            report: StatusWrite::No,
        },
        resource,
        key: Key::cluster(Str::from(text("name"))),
        uid: Str::from(text("uid")),
        resource_version: text("resourceVersion").parse().unwrap_or(0),
        announcement: None,
    });
}
