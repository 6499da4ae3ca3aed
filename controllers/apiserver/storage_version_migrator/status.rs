//! The conditions of a migration.

use kubernetes_proto::{
    Object,
    meta::{Condition, Time},
    storagemigration::StorageVersionMigration,
};

/// It is at work.
pub(super) const RUNNING: &str = "Running";
/// All is stored again.
pub(super) const SUCCEEDED: &str = "Succeeded";
/// It can't be.
pub(super) const FAILED: &str = "Failed";

fn find<'a>(of: &'a StorageVersionMigration, r#type: &str) -> Option<&'a Condition> {
    let conditions = of.status.as_ref().map(|status| &status.conditions)?;
    conditions
        .iter()
        .find(|condition| condition.r#type == r#type)
}

fn is_true(of: &StorageVersionMigration, r#type: &str) -> bool {
    find(of, r#type).is_some_and(|condition| condition.status == "True")
}

/// Whether it is running, or was and its status has not been updated yet.
pub(super) fn is_running(of: &StorageVersionMigration) -> bool {
    is_true(of, RUNNING)
}

/// Whether it has ended, one way or the other.
pub(super) fn is_over(of: &StorageVersionMigration) -> bool {
    is_true(of, SUCCEEDED) || is_true(of, FAILED)
}

/// Whether it has succeeded.
pub(super) fn has_succeeded(of: &StorageVersionMigration) -> bool {
    is_true(of, SUCCEEDED)
}

/// Whether it waits for its turn. A migration that was stopped without an end is nobody's.
pub(super) fn is_waiting(of: &StorageVersionMigration) -> bool {
    !is_over(of) && find(of, RUNNING).is_none()
}

/// The resourceVersion up to which objects are stored again; empty for none yet.
pub(super) fn version(of: &StorageVersionMigration) -> &str {
    of.status
        .as_ref()
        .map_or("", |status| &status.resource_version)
}

/// The migration with one more true condition; an existing one of that type is left as it is.
pub(super) fn with(
    of: &StorageVersionMigration,
    (r#type, reason, message): (&str, &str, &str),
    now: Time,
) -> StorageVersionMigration {
    let mut new = of.clone();
    if find(of, r#type).is_none() {
        let conditions = &mut new.status.get_or_insert_default().conditions;
        conditions.push(Condition {
            r#type: r#type.to_owned(),
            status: "True".to_owned(),
            observed_generation: 0,
            last_transition_time: Some(now),
            reason: reason.to_owned(),
            message: message.to_owned(),
        });
    }
    new
}

/// The migration as one that does not run any more.
pub(super) fn ended(of: &StorageVersionMigration, now: Time) -> StorageVersionMigration {
    let mut new = of.clone();
    let generation = Object::metadata(of).generation;
    let conditions = new.status.iter_mut().flat_map(|one| &mut one.conditions);
    for condition in conditions.filter(|condition| condition.r#type == RUNNING) {
        *condition = Condition {
            r#type: RUNNING.to_owned(),
            status: "False".to_owned(),
            observed_generation: generation,
            last_transition_time: Some(now),
            reason: "MigrationCompleted".to_owned(),
            message: "Migration completed".to_owned(),
        };
    }
    new
}
