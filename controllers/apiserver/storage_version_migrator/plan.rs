//! What is next for the migrations of one resource.

use std::sync::Arc;

use controllers_kit::{
    Answer, Entry, NoPage, Plan, Query, Refusal, SignedDuration, Snapshot, StatusWrite, Str,
    Timestamp,
};
use kubernetes_proto::{
    Object,
    meta::{NOT_COMPARABLE, ObjectMeta, Time},
    storagemigration::{GroupResource, StorageVersionMigration},
};

use super::{BY_RESOURCE, MANAGER, Opened, Place, Progress, definition, status};

/// Objects in a page, and so in a plan: a handoff waits for at most one plan.
const PAGE: usize = 200;
/// Objects that are stored again side by side.
const AT_ONCE: usize = 20;
/// The longest continue token that is remembered. Tokens of the API server have the name of an object and
/// little more.
const TOKEN_BYTES_MAX: usize = 8192;
/// The age of a migration after which a resource that discovery does not show counts as not served.
const DISCOVERY: SignedDuration = SignedDuration::from_mins(1);
/// The interval of discovery reads until then.
const POLL: SignedDuration = SignedDuration::from_secs(2);
/// Verbs that a migrated resource must support.
const VERBS: &[&str] = &["update", "patch", "list"];
const FAILED_REASON: &str = "StorageVersionMigrationFailed";

/// What there is to do first.
enum Step {
    /// A migration has ended, and its status still says that it is running.
    End(Arc<StorageVersionMigration>),
    /// It is a migration's turn.
    Begin(Arc<StorageVersionMigration>),
    /// A migration is at work.
    Work(Arc<StorageVersionMigration>),
    Nothing,
}

fn step(name: &str, seen: &Snapshot<'_>) -> Step {
    let mut all = seen.indexed::<StorageVersionMigration>(BY_RESOURCE, name);
    all.sort_by_cached_key(|one| {
        let meta = Object::metadata(&**one);
        (created(one), meta.name.clone())
    });
    let first = |is: &dyn Fn(&StorageVersionMigration) -> bool| {
        all.iter().find(|one| is(one)).map(Arc::clone)
    };
    if let Some(one) = first(&|one| status::is_running(one) && status::is_over(one)) {
        Step::End(one)
    } else if let Some(one) = first(&status::is_running) {
        Step::Work(one)
    } else if let Some(one) = first(&status::is_waiting) {
        Step::Begin(one)
    } else {
        Step::Nothing
    }
}

fn created(one: &StorageVersionMigration) -> Timestamp {
    let created = Object::metadata(one).creation_timestamp;
    created.map_or(Timestamp::MIN, Time::timestamp)
}

/// The resource of a migration. A migration without one is in no index, so it never gets here.
fn resource_of(one: &StorageVersionMigration) -> GroupResource {
    let resource = one.spec.as_ref().and_then(|spec| spec.resource.clone());
    resource.unwrap_or_default()
}

/// The resource as discovery shows it.
fn served(of: &GroupResource, seen: &Snapshot<'_>) -> Option<Entry> {
    seen.catalogue().find(&of.group, &of.resource).cloned()
}

fn page(entry: &Entry, token: &str) -> Query {
    Query::Page {
        resource: entry.resource,
        limit: PAGE,
        token: token.to_owned(),
    }
}

/// Asks how far migrations have come.
fn migrations() -> Query {
    Query::Present {
        resource: StorageVersionMigration::resource(),
    }
}

pub(super) fn ask(name: &str, seen: &Snapshot<'_>, progress: &Progress) -> Vec<Query> {
    let query = match step(name, seen) {
        Step::End(one) | Step::Begin(one) => {
            let definition = definition::query(&resource_of(&one));
            return definition.into_iter().chain([migrations()]).collect();
        }
        Step::Work(one) => served(&resource_of(&one), seen)
            .filter(|entry| entry.can(VERBS))
            .and_then(|entry| {
                if status::version(&one).is_empty() {
                    let resource = entry.resource;
                    return Some(Query::Present { resource });
                }
                match progress.place(&Object::metadata(&*one).uid) {
                    Place::Page(token) => Some(page(&entry, token)),
                    Place::End | Place::Failed(_) => None,
                }
            }),
        Step::Nothing => None,
    };
    query.into_iter().collect()
}

pub(super) fn plan(
    name: &str,
    seen: &Snapshot<'_>,
    progress: &mut Progress,
) -> Result<Plan, Refusal> {
    let now = Time::from(seen.now);
    match step(name, seen) {
        Step::Nothing => {
            *progress = Progress::default();
            Ok(Plan::nothing())
        }
        Step::End(one) => {
            *progress = Progress::default();
            turn(&one, seen, &status::ended(&one, now), |plan, definition| {
                definition::end(plan, definition, status::has_succeeded(&one), now);
            })
        }
        Step::Begin(one) => {
            *progress = Progress::default();
            let running = (
                status::RUNNING,
                "MigrationRunning",
                "The migration is running",
            );
            let name = Object::metadata(&*one).name.clone();
            turn(
                &one,
                seen,
                &status::with(&one, running, now),
                |plan, definition| {
                    definition::begin(plan, definition, &name, now);
                },
            )
        }
        Step::Work(one) if status::version(&one).is_empty() => find_version(&one, seen),
        Step::Work(one) => migrate(&one, seen, progress),
    }
}

/// Begins or ends a migration: first for the definition of its resource, if there is one, then for itself.
///
/// What is written to the definition can't be undone by a conflict of the second write: a migration that
/// began long ago would begin again in the definition's present generation, or end while the next one runs,
/// and versions would be forgotten of which objects are still stored. So the cache is proven to have every
/// migration as it is now.
fn turn(
    one: &StorageVersionMigration,
    seen: &Snapshot<'_>,
    new: &StorageVersionMigration,
    also: impl FnOnce(&mut Plan, &serde_json::Value),
) -> Result<Plan, Refusal> {
    let mut plan = Plan::nothing();
    if let Some(query) = definition::query(&resource_of(one)) {
        match seen.answer(&query) {
            Some(Answer::Object(definition)) => also(&mut plan, definition),
            Some(Answer::Missing) => {}
            Some(Answer::NotFound(why) | Answer::Failed(why)) => {
                return Err(Refusal::Retry(format!(
                    "the CustomResourceDefinition can't be read: {why}"
                )));
            }
            // The migrations have changed since the queries were made.
            None => return Ok(Plan::nothing().requeued_at(seen.now)),
        }
    }
    let resource = StorageVersionMigration::resource();
    match seen.present(resource) {
        Some(Ok(version)) if version > 0 => {
            plan.rests_strictly_on(resource, &Str::default(), version);
        }
        Some(Ok(_)) => {
            return Err(Refusal::Retry("migrations are not served now".to_owned()));
        }
        Some(Err(why)) => {
            return Err(Refusal::Retry(format!("migrations can't be listed: {why}")));
        }
        None => return Ok(Plan::nothing().requeued_at(seen.now)),
    }
    plan.then();
    write(&mut plan, one, new);
    plan.requeue_now();
    Ok(plan)
}

fn write(plan: &mut Plan, old: &StorageVersionMigration, new: &StorageVersionMigration) {
    if let Some(action) = plan.update_status(old, new) {
        action.reports(StatusWrite::No);
    }
}

/// The migration has failed.
fn fail(one: &StorageVersionMigration, seen: &Snapshot<'_>, message: &str) -> Plan {
    let mut plan = Plan::nothing();
    let condition = (status::FAILED, FAILED_REASON, message);
    write(
        &mut plan,
        one,
        &status::with(one, condition, Time::from(seen.now)),
    );
    plan
}

/// The migration has failed at work.
fn fail_at_work(one: &StorageVersionMigration, seen: &Snapshot<'_>, why: &str) -> Plan {
    let message = format!("migration encountered unhandled error: {why}");
    fail(one, seen, &message)
}

/// The resource of a migration, or what to do where discovery does not show it.
fn discovered(
    one: &StorageVersionMigration,
    seen: &Snapshot<'_>,
    fail: impl FnOnce() -> Plan,
) -> Result<Result<Entry, Plan>, Refusal> {
    let of = resource_of(one);
    let catalogue = seen.catalogue();
    if let Some(entry) = served(&of, seen) {
        return Ok(Ok(entry));
    }
    if !catalogue.is_known() {
        return Err(Refusal::Retry("discovery was not read yet".to_owned()));
    }
    if let Some(why) = &catalogue.outdated {
        return Err(Refusal::Retry(format!("discovery can't be read: {why}")));
    }
    let mut failures = catalogue.failures.iter();
    let of_group = |name: &str| name.split_once('/').map_or("", |(group, _)| group) == of.group;
    if let Some((name, why)) = failures.find(|(name, _)| of_group(name)) {
        let why = format!("the discovery of {name} can't be read: {why}");
        return Err(Refusal::Retry(why));
    }
    let until = created(one).checked_add(DISCOVERY);
    let until = until.unwrap_or(Timestamp::MAX);
    Ok(Err(match seen.now < until {
        true => Plan::nothing().requeued_at(until.min(seen.now + POLL)),
        false => fail(),
    }))
}

/// As upstream names a resource in a version.
fn described(entry: &Entry) -> String {
    let resource = entry.resource;
    format!(
        "{}/{}, Resource={}",
        resource.group, resource.version, resource.plural
    )
}

/// Records the resource's current version.
fn find_version(one: &StorageVersionMigration, seen: &Snapshot<'_>) -> Result<Plan, Refusal> {
    let missing = || fail(one, seen, "resource does not exist in discovery");
    let entry = match discovered(one, seen, missing)? {
        Ok(entry) => entry,
        Err(plan) => return Ok(plan),
    };
    if !entry.can(VERBS) {
        let verbs = VERBS.join(" ");
        let message = format!(
            "resource \"{}\" does not support discovery operations: [{verbs}]",
            described(&entry)
        );
        return Ok(fail(one, seen, &message));
    }
    let resource = entry.resource;
    if seen.answer(&Query::Present { resource }) == Some(&Answer::Missing) {
        let why = format!("{} is not served now", described(&entry));
        return Err(Refusal::Retry(why));
    }
    let version = match seen.present(resource) {
        Some(Ok(version)) => version,
        Some(Err(why)) => {
            return Err(Refusal::Retry(format!(
                "error getting latest resourceVersion for {}: {why}",
                described(&entry)
            )));
        }
        None => return Ok(Plan::nothing().requeued_at(seen.now)),
    };
    if let Err(why) = comparable(version) {
        let message = format!(
            "latest resourceVersion for {} is not valid: {why}",
            described(&entry)
        );
        return Ok(fail(one, seen, &message));
    }
    let mut plan = Plan::nothing();
    let mut new = one.clone();
    new.status.get_or_insert_default().resource_version = version.to_string();
    write(&mut plan, one, &new);
    Ok(plan)
}

/// A resourceVersion that can be compared with others.
fn comparable(version: u64) -> Result<u64, String> {
    match version {
        0 => Err("resource version is not well formed: ".to_owned()),
        NOT_COMPARABLE => Err("resource version is not well formed".to_owned()),
        version => Ok(version),
    }
}

/// A recorded resourceVersion: a number without leading zeros.
fn recorded(text: &str) -> Result<u64, String> {
    let version = text.parse().ok().filter(|_| !text.starts_with('0'));
    version
        .filter(|version| {
            *version != NOT_COMPARABLE && text.bytes().all(|byte| byte.is_ascii_digit())
        })
        .ok_or_else(|| format!("resource version is not well formed: {text}"))
}

/// One page more.
fn migrate(
    one: &StorageVersionMigration,
    seen: &Snapshot<'_>,
    progress: &mut Progress,
) -> Result<Plan, Refusal> {
    let uid = &Object::metadata(one).uid;
    if *progress.migration != **uid {
        progress.begin(uid);
    }
    let missing = || fail_at_work(one, seen, "unable to obtain GVR from discovery");
    let entry = match discovered(one, seen, missing)? {
        Ok(entry) => entry,
        Err(plan) => return Ok(plan),
    };
    let up_to = match recorded(status::version(one)) {
        Ok(version) => version,
        Err(why) => {
            let why =
                format!("error comparing resource versions between GC and SVM resource: {why}");
            return Ok(fail_at_work(one, seen, &why));
        }
    };
    let token = match progress.place(uid) {
        Place::End => return Ok(succeed(one, seen)),
        Place::Failed(why) => return Ok(fail_at_work(one, seen, why)),
        Place::Page(token) => token.to_owned(),
    };
    let found = match seen.page(&page(&entry, &token)) {
        Some(Ok(page)) => page,
        Some(Err(NoPage::Expired)) => {
            // A rewritten object is newer than the recorded version: it is listed once more and skipped.
            progress.begin(uid);
            let mut plan = Plan::nothing();
            plan.requeue_now();
            return Ok(plan);
        }
        Some(Err(why @ (NoPage::NotServed | NoPage::Failed(_)))) => {
            return Err(Refusal::Retry(format!(
                "{} can't be listed: {why}",
                described(&entry)
            )));
        }
        // Discovery has shown the resource, or another version of it, since the queries were made.
        None => return Ok(Plan::nothing().requeued_at(seen.now)),
    };
    match comparable(found.version) {
        Ok(version) if version < up_to => {
            return Err(Refusal::Retry(format!(
                "the list of {} is older ({version}) than the recorded version ({up_to})",
                described(&entry)
            )));
        }
        Ok(_) => {}
        Err(why) => {
            let why =
                format!("error comparing resource versions between GC and SVM resource: {why}");
            return Ok(fail_at_work(one, seen, &why));
        }
    }
    if found.next.len() > TOKEN_BYTES_MAX {
        let why = format!(
            "the continue token of {} has {} bytes, more than {TOKEN_BYTES_MAX}",
            described(&entry),
            found.next.len()
        );
        return Ok(fail_at_work(one, seen, &why));
    }
    let mut old: Vec<&ObjectMeta> = Vec::new();
    for meta in &found.metas {
        if meta.uid.is_empty() {
            return Err(Refusal::Retry(format!(
                "{} {}/{} can't be read",
                described(&entry),
                meta.namespace,
                meta.name
            )));
        }
        match comparable(meta.resource_version) {
            Ok(version) if version > up_to => {}
            Ok(_) => old.push(meta),
            Err(why) => return Ok(fail_at_work(one, seen, &why)),
        }
    }
    progress.page = Some(Opened {
        next: found.next,
        left: old.len(),
    });
    progress.token = token;
    if old.is_empty() && progress.place(uid) == Place::End {
        return Ok(succeed(one, seen));
    }
    let mut plan = Plan::nothing();
    for some in old.chunks(AT_ONCE) {
        plan.then();
        for meta in some {
            plan.rewrite(entry.resource, meta, MANAGER);
        }
    }
    plan.requeue_now();
    Ok(plan)
}

fn succeed(one: &StorageVersionMigration, seen: &Snapshot<'_>) -> Plan {
    let mut plan = Plan::nothing();
    let condition = (status::SUCCEEDED, "StorageVersionMigrationSucceeded", "");
    write(
        &mut plan,
        one,
        &status::with(one, condition, Time::from(seen.now)),
    );
    plan
}
