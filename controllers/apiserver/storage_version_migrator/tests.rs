use std::sync::Arc;

use controllers_kit::{
    Answer, Catalogue, Controller as _, Entry, Factory, Failure, FlagValue, Flags, Outcome, Page,
    PatchKind, Plan, Query, Refusal, Requeue, Resource, Runs, Str, Verb, Written, testing::*,
};
use kubernetes_proto::{
    Object,
    core::ConfigMap,
    meta::{Condition, NOT_COMPARABLE, ObjectMeta},
    metadata_only,
    storagemigration::{GroupResource, StorageVersionMigration, StorageVersionMigrationSpec},
};
use serde_json::{Value, json};

use super::{COLLECTOR, GATE, INFORMER_GATE, MANAGER, Progress, StorageVersionMigrator};

/// A migration without status, an hour old.
pub(crate) fn migration(name: &str, resource: &str) -> StorageVersionMigration {
    let (plural, group) = resource.split_once('.').unwrap_or((resource, ""));
    let mut migration = StorageVersionMigration {
        spec: Some(StorageVersionMigrationSpec {
            resource: Some(GroupResource {
                group: group.to_owned(),
                resource: plural.to_owned(),
            }),
        }),
        ..Default::default()
    };
    let meta = migration.metadata_mut();
    meta.name = name.into();
    meta.uid = format!("uid-migration-{name}").as_str().into();
    meta.generation = 1;
    migration.created("11:00:00")
}

trait Course {
    fn conditioned(self, r#type: &str, status: &str) -> Self;
    fn up_to(self, version: &str) -> Self;
}

impl Course for StorageVersionMigration {
    fn conditioned(mut self, r#type: &str, status: &str) -> Self {
        let conditions = &mut self.status.get_or_insert_default().conditions;
        conditions.push(Condition {
            r#type: r#type.to_owned(),
            status: status.to_owned(),
            last_transition_time: Some(at("11:30:00").into()),
            reason: "Before".to_owned(),
            ..Default::default()
        });
        self
    }
    fn up_to(mut self, version: &str) -> Self {
        version.clone_into(&mut self.status.get_or_insert_default().resource_version);
        self
    }
}

fn running(resource: &str) -> StorageVersionMigration {
    migration("m", resource).conditioned("Running", "True")
}

fn widgets() -> &'static Resource {
    metadata_only("example.com", "v2", "Widget", "widgets", true).unwrap()
}

/// A definition as the API server has it: in generation 4, of which the migration knows or not.
fn definition(generation: i64) -> Value {
    json!({
        "metadata": {
            "name": "widgets.example.com", "uid": "uid-definition",
            "resourceVersion": "77", "generation": 4,
        },
        "spec": {"versions": [
            {"name": "v1", "storage": false},
            {"name": "v2", "storage": true},
        ]},
        "status": {
            "storedVersions": ["v1", "v2"],
            "conditions": [
                {"type": "Established", "status": "True"},
                {"type": "StorageMigrating", "status": "True", "observedGeneration": generation},
            ],
        },
    })
}

/// The same after an earlier migration, which has applied its stored versions.
fn migrated_before(generation: i64) -> Value {
    let mut definition = definition(generation);
    definition["metadata"]["managedFields"] = json!([
        {"manager": "kube-apiserver", "fieldsV1": {"f:status": {"f:conditions": {}}}},
        {"manager": "migration-runner-controller", "fieldsV1": {"f:status": {"f:storedVersions": {}}}},
    ]);
    definition
}

fn answer_of_definition(query: &Query, generation: i64) -> Option<Answer> {
    answer(query, definition(generation))
}

fn answer(query: &Query, definition: Value) -> Option<Answer> {
    match query {
        Query::Live { resource, .. } if resource.plural == "customresourcedefinitions" => {
            Some(Answer::Object(Arc::new(definition)))
        }
        _ => None,
    }
}

fn world() -> World {
    World::at("12:00:00")
}

fn plan(world: &World, resource: &str) -> Plan {
    world.plan::<StorageVersionMigrator>(&format!("resource/{resource}"))
}

/// The patch of the plan's one write to a subresource `status` of a migration.
fn conditions(plan: &Plan) -> Vec<(String, String, String, String)> {
    let patches = plan.actions().filter_map(|action| match &action.verb {
        Verb::Patch {
            subresource: "status",
            kind: PatchKind::Merge,
            patch,
            ..
        } => Some(patch["status"]["conditions"].clone()),
        _ => None,
    });
    let list: Vec<Value> = patches
        .flat_map(|list| list.as_array().cloned().unwrap_or_default())
        .collect();
    let text = |one: &Value, field: &str| one[field].as_str().unwrap_or_default().to_owned();
    list.iter()
        .map(|one| {
            (
                text(one, "type"),
                text(one, "status"),
                text(one, "reason"),
                text(one, "message"),
            )
        })
        .collect()
}

fn says(
    r#type: &str,
    status: &str,
    reason: &str,
    message: &str,
) -> (String, String, String, String) {
    (
        r#type.to_owned(),
        status.to_owned(),
        reason.to_owned(),
        message.to_owned(),
    )
}

fn failed(message: &str) -> (String, String, String, String) {
    says("Failed", "True", "StorageVersionMigrationFailed", message)
}

fn unhandled(why: &str) -> (String, String, String, String) {
    failed(&format!("migration encountered unhandled error: {why}"))
}

#[test]
fn of_the_migrations_of_a_resource_the_oldest_runs_alone() {
    let waits = |name: &str, made: &str| migration(name, "configmaps").created(made);
    let runs = || waits("runs", "11:50:00").conditioned("Running", "True");
    let over = |name: &str| {
        waits(name, "10:00:00")
            .conditioned("Running", "False")
            .conditioned("Succeeded", "True")
    };
    let table: [(&str, Vec<StorageVersionMigration>, &[&str]); 9] = [
        ("there is none", vec![], &[]),
        ("the only one", vec![waits("a", "11:00:00")], &["a"]),
        (
            "the older one",
            vec![waits("a", "11:30:00"), waits("b", "11:00:00")],
            &["b"],
        ),
        (
            "of equal age the first by name",
            vec![waits("b", "11:00:00"), waits("a", "11:00:00")],
            &["a"],
        ),
        (
            "one runs",
            vec![waits("a", "11:00:00"), runs().up_to("1")],
            &[],
        ),
        (
            "one has run",
            vec![over("z"), waits("a", "11:00:00")],
            &["a"],
        ),
        ("all have run", vec![over("z"), over("y")], &[]),
        (
            "another one has failed before it began",
            vec![
                waits("z", "10:00:00").conditioned("Failed", "True"),
                waits("a", "11:00:00"),
            ],
            &["a"],
        ),
        (
            "one was stopped without an end",
            vec![waits("a", "11:00:00").conditioned("Running", "False")],
            &[],
        ),
    ];
    for (case, migrations, begun) in table {
        let mut world = world();
        for migration in migrations {
            world.put(migration);
        }
        let plan = plan(&world, "configmaps");
        let statuses: Vec<String> = plan
            .verbs()
            .into_iter()
            .filter(|_| {
                conditions(&plan)
                    .iter()
                    .any(|one| one.2 == "MigrationRunning")
            })
            .collect();
        let expected: Vec<String> = begun
            .iter()
            .map(|name| format!("patch storageversionmigrations/{name}/status"))
            .collect();
        assert_eq!(statuses, expected, "{case}");
        if !begun.is_empty() {
            let wanted = says(
                "Running",
                "True",
                "MigrationRunning",
                "The migration is running",
            );
            assert!(conditions(&plan).contains(&wanted), "{case}");
        }
    }
}

#[test]
fn resources_are_migrated_side_by_side_and_a_change_wakes_its_own() {
    let world = world()
        .with(running("configmaps"))
        .with(migration("n", "secrets"))
        .with(migration("o", "widgets.example.com"));
    let woken = |migration: StorageVersionMigration| {
        let any: controllers_kit::AnyObject = Arc::new(migration);
        world.woken::<StorageVersionMigrator>(None, Some(&any))
    };
    assert_eq!(woken(running("configmaps")), ["resource/configmaps"]);
    assert_eq!(
        woken(migration("o", "widgets.example.com")),
        ["resource/widgets.example.com"]
    );
    assert_eq!(woken(StorageVersionMigration::default()), [""; 0]);
    assert_eq!(conditions(&plan(&world, "secrets")).len(), 1, "it begins");
}

/// The one apply to the definition: manager, version and patch.
fn applied(plan: &Plan) -> (&'static str, u64, Value) {
    let mut all = plan.actions().filter_map(|action| match &action.verb {
        Verb::Patch {
            subresource: "status",
            kind: PatchKind::Apply { manager },
            patch,
            ..
        } => Some((*manager, action.resource_version, patch["status"].clone())),
        _ => None,
    });
    let one = all.next().expect("an apply");
    assert!(all.next().is_none(), "{:?}", plan.verbs());
    one
}

#[test]
fn the_definition_shows_the_migration_first() {
    let world = world()
        .with(migration("m", "widgets.example.com"))
        .answering(|query| answer_of_definition(query, 2));
    let plan = plan(&world, "widgets.example.com");
    assert_eq!(
        plan.verbs(),
        [
            "patch customresourcedefinitions/widgets.example.com/status",
            "patch storageversionmigrations/m/status"
        ]
    );
    assert_eq!(
        plan.stages.len(),
        2,
        "the migration runs when its definition says so"
    );
    let (manager, version, status) = applied(&plan);
    assert_eq!((manager, version), ("migration-runner-controller", 77));
    assert_eq!(
        status,
        json!({
            "conditions": [{
                "type": "StorageMigrating", "status": "True", "reason": "MigrationRunning",
                "message": "Migration m is running", "observedGeneration": 4,
                "lastTransitionTime": "2026-03-02T12:00:00Z",
            }],
        })
    );
}

#[test]
fn stored_versions_that_an_earlier_migration_has_applied_are_applied_again() {
    let again = world()
        .with(migration("m", "widgets.example.com"))
        .answering(|query| answer(query, migrated_before(2)));
    let (_, _, status) = applied(&plan(&again, "widgets.example.com"));
    assert_eq!(status["storedVersions"], json!(["v1", "v2"]));
    let ended = world()
        .with(
            running("widgets.example.com")
                .generation(6)
                .conditioned("Succeeded", "True"),
        )
        .answering(|query| answer(query, migrated_before(3)));
    let (_, _, status) = applied(&plan(&ended, "widgets.example.com"));
    assert_eq!(status["storedVersions"], json!(["v1", "v2"]));
}

#[test]
fn the_definition_shows_the_end_and_forgets_versions_where_it_is_the_same() {
    fn same(query: &Query) -> Option<Answer> {
        answer_of_definition(query, 4)
    }
    fn another(query: &Query) -> Option<Answer> {
        answer_of_definition(query, 3)
    }
    type Answering = fn(&Query) -> Option<Answer>;
    let table: [(&str, Answering, &str, &str, Value); 4] = [
        (
            "Succeeded",
            same,
            "MigrationSucceeded",
            "The migration has succeeded and the stored versions have been updated",
            json!(["v2"]),
        ),
        (
            "Succeeded",
            another,
            "MigrationSucceeded",
            "The migration has succeeded but the stored versions have not been updated due to a generation mismatch",
            Value::Null,
        ),
        (
            "Failed",
            same,
            "MigrationFailed",
            "The migration has failed",
            json!(["v2"]),
        ),
        (
            "Failed",
            another,
            "MigrationFailed",
            "The migration has failed",
            Value::Null,
        ),
    ];
    for (end, answering, reason, message, stored) in table {
        let world = world()
            .with(
                running("widgets.example.com")
                    .generation(6)
                    .conditioned(end, "True"),
            )
            .answering(answering);
        let plan = plan(&world, "widgets.example.com");
        let (_, _, status) = applied(&plan);
        let condition = &status["conditions"][0];
        assert_eq!(condition["status"], "False", "{end} {message}");
        assert_eq!(condition["reason"], reason, "{message}");
        assert_eq!(condition["message"], message);
        assert_eq!(status["storedVersions"], stored, "{message}");
        let done = says(
            "Running",
            "False",
            "MigrationCompleted",
            "Migration completed",
        );
        assert!(conditions(&plan).contains(&done), "{:?}", conditions(&plan));
    }
}

#[test]
fn a_beginning_and_an_end_rest_on_all_migrations_as_they_are_now() {
    for migration in [
        migration("m", "widgets.example.com"),
        running("widgets.example.com").conditioned("Succeeded", "True"),
    ] {
        let world = world()
            .with(migration)
            .answering(|query| answer_of_definition(query, 4));
        let plan = plan(&world, "widgets.example.com");
        let [counted] = &plan.counted[..] else {
            panic!("{:?}", plan.counted);
        };
        assert_eq!(counted.resource, StorageVersionMigration::resource());
        assert_eq!((counted.since, counted.strict), (world.version(), true));
        let failing = world.answering(|query| match query {
            Query::Present { .. } => Some(Answer::Failed("no answer".to_owned())),
            _ => answer_of_definition(query, 4),
        });
        let refusal = failing.refusal::<StorageVersionMigrator>("resource/widgets.example.com");
        let why = "migrations can't be listed: no answer";
        assert_eq!(refusal, Refusal::Retry(why.to_owned()));
    }
}

#[test]
fn without_a_definition_the_migration_alone_is_written() {
    for resource in ["configmaps", "deployments.apps"] {
        let begun = plan(&world().with(migration("m", resource)), resource);
        assert_eq!(begun.verbs(), ["patch storageversionmigrations/m/status"]);
        let over = running(resource).conditioned("Succeeded", "True");
        let ended = plan(&world().with(over), resource);
        assert_eq!(ended.verbs(), ["patch storageversionmigrations/m/status"]);
    }
}

#[test]
fn a_definition_that_cant_be_read_keeps_the_migration_from_beginning() {
    let world = world()
        .with(migration("m", "widgets.example.com"))
        .answering(|_| Some(Answer::Failed("no answer".to_owned())));
    let refusal = world.refusal::<StorageVersionMigrator>("resource/widgets.example.com");
    let why = "the CustomResourceDefinition can't be read: no answer";
    assert_eq!(refusal, Refusal::Retry(why.to_owned()));
}

fn catalogue(verbs: &[&str]) -> Catalogue {
    let entry = Entry {
        resource: widgets(),
        verbs: verbs.iter().map(|verb| Str::from(*verb)).collect(),
        subresources: Vec::new(),
        preferred: true,
    };
    Catalogue::new(vec![entry], Default::default(), 1)
}

const ALL_VERBS: &[&str] = &["list", "patch", "update"];

#[test]
fn the_version_of_a_running_migration_is_recorded_once() {
    let versions = |world: &World| {
        let plan = plan(world, "widgets.example.com");
        let patches = plan.actions().filter_map(|action| match &action.verb {
            Verb::Patch { patch, .. } => patch["status"]["resourceVersion"]
                .as_str()
                .map(str::to_owned),
            _ => None,
        });
        patches.collect::<Vec<_>>()
    };
    let world = || world().with_catalogue(catalogue(ALL_VERBS));
    let fresh = world().with(running("widgets.example.com"));
    assert_eq!(versions(&fresh), [fresh.version().to_string()]);
    for (case, other) in [
        (
            "it does not run",
            migration("m", "widgets.example.com").conditioned("Running", "False"),
        ),
        (
            "it has succeeded",
            running("widgets.example.com").conditioned("Succeeded", "True"),
        ),
        (
            "it has failed",
            running("widgets.example.com").conditioned("Failed", "True"),
        ),
        ("it has one", running("widgets.example.com").up_to("1")),
    ] {
        assert_eq!(versions(&world().with(other)), [""; 0], "{case}");
    }
}

#[test]
fn a_resource_that_cant_be_migrated_fails_the_migration() {
    const NOT_MIGRATABLE: &str = "resource \"example.com/v2, Resource=widgets\" does not support discovery \
                                  operations: [update patch list]";
    let of = |catalogue: Catalogue, migration: StorageVersionMigration| {
        conditions(&plan(
            &world().with_catalogue(catalogue).with(migration),
            "widgets.example.com",
        ))
        .pop()
    };
    let none = || Catalogue::new(Vec::new(), Default::default(), 1);
    let old = || running("widgets.example.com");
    for verbs in [
        &["list", "patch"][..],
        &["list", "update"],
        &["patch", "update"],
        &[],
    ] {
        assert_eq!(
            of(catalogue(verbs), old()),
            Some(failed(NOT_MIGRATABLE)),
            "{verbs:?}"
        );
    }
    let missing = "resource does not exist in discovery";
    assert_eq!(of(none(), old()), Some(failed(missing)));
    let no_gvr = "unable to obtain GVR from discovery";
    assert_eq!(of(none(), old().up_to("1")), Some(unhandled(no_gvr)));
}

#[test]
fn a_resource_that_discovery_does_not_show_yet_is_given_a_minute() {
    let none = Catalogue::new(Vec::new(), Default::default(), 1);
    for migration in [
        running("widgets.example.com"),
        running("widgets.example.com").up_to("1"),
    ] {
        for (made, again) in [("11:59:30", "12:00:02"), ("11:59:01", "12:00:01")] {
            let world = world()
                .with_catalogue(none.clone())
                .with(migration.clone().created(made));
            let plan = plan(&world, "widgets.example.com");
            assert!(plan.is_nothing(), "{:?}", plan.verbs());
            assert_eq!(plan.requeue, Requeue::At(at(again)));
        }
    }
}

#[test]
fn while_discovery_cant_be_read_nothing_is_decided() {
    let failing = |name: &str| {
        let failures = [(Str::from(name), Str::from("503"))].into_iter().collect();
        Catalogue::new(Vec::new(), failures, 1)
    };
    let mut outdated = Catalogue::new(Vec::new(), Default::default(), 1);
    outdated.outdated = Some("no answer".into());
    for (catalogue, refused) in [
        (Catalogue::default(), true),
        (outdated, true),
        (failing("example.com/v2"), true),
        (failing("example.org/v2"), false),
    ] {
        let world = world()
            .with_catalogue(catalogue)
            .with(running("widgets.example.com"));
        let planned = world.try_plan::<StorageVersionMigrator>("resource/widgets.example.com");
        assert_eq!(planned.is_err(), refused, "{planned:?}");
    }
}

#[test]
fn a_version_that_cant_be_compared_is_not_recorded() {
    fn none(query: &Query) -> Option<Answer> {
        matches!(query, Query::Present { .. }).then(|| Answer::present(0))
    }
    fn text(query: &Query) -> Option<Answer> {
        matches!(query, Query::Present { .. }).then(|| Answer::present(NOT_COMPARABLE))
    }
    fn missing(query: &Query) -> Option<Answer> {
        matches!(query, Query::Present { .. }).then_some(Answer::Missing)
    }
    fn failing(query: &Query) -> Option<Answer> {
        matches!(query, Query::Present { .. }).then(|| Answer::Failed("list error".to_owned()))
    }
    let world = || {
        world()
            .with_catalogue(catalogue(ALL_VERBS))
            .with(running("widgets.example.com"))
    };
    for answering in [none as fn(&Query) -> Option<Answer>, text] {
        let plan = plan(&world().answering(answering), "widgets.example.com");
        let (kind, _, _, message) = conditions(&plan).pop().unwrap();
        assert_eq!(kind, "Failed");
        let wanted = "latest resourceVersion for example.com/v2, Resource=widgets is not valid: \
                      resource version is not well formed";
        assert!(message.starts_with(wanted), "{message}");
    }
    for (answering, why) in [
        (
            missing as fn(&Query) -> Option<Answer>,
            "example.com/v2, Resource=widgets is not served now",
        ),
        (
            failing,
            "error getting latest resourceVersion for example.com/v2, Resource=widgets: list error",
        ),
    ] {
        let refusal = world()
            .answering(answering)
            .refusal::<StorageVersionMigrator>("resource/widgets.example.com");
        assert_eq!(refusal, Refusal::Retry(why.to_owned()));
    }
}

/// A world with a number of ConfigMaps, and a migration up to the version that they have come to.
fn maps(count: usize) -> World {
    let mut world = world();
    for number in 0..count {
        world.put(config_map(&format!("map-{number:04}")));
    }
    let version = world.version().to_string();
    world.with(running("configmaps").up_to(&version))
}

fn step(world: &World, progress: &mut Progress) -> Plan {
    world
        .plan_with::<StorageVersionMigrator>("resource/configmaps", progress)
        .unwrap()
}

/// Carries a plan out; what becomes of an action may be something else.
fn carry_out(
    world: &mut World,
    plan: &Plan,
    progress: &mut Progress,
    fate: impl Fn(&str) -> Option<Failure>,
) {
    let controller = StorageVersionMigrator;
    let mut failed = false;
    for stage in &plan.stages {
        let skipped = failed;
        for action in stage {
            let failure = match skipped {
                true => Some(Failure::Skipped),
                false => fate(&action.key.name),
            };
            failed |= failure.is_some();
            let single = Plan {
                stages: vec![vec![action.clone()]],
                ..Plan::default()
            };
            let result = match &failure {
                Some(failure) => Err(failure),
                None => {
                    world.apply(&single).expect_success();
                    Ok(Written::default())
                }
            };
            controller.learn(&Outcome { action, result }, progress);
        }
    }
}

fn rewrites(plan: &Plan) -> usize {
    plan.actions().filter(|action| action.is_rewrite()).count()
}

#[test]
fn all_objects_are_stored_again_page_by_page_before_success_is_written() {
    let mut world = maps(450);
    let up_to = world.version() - 1;
    let mut progress = Progress::default();
    let mut pages = Vec::new();
    loop {
        let plan = step(&world, &mut progress);
        if rewrites(&plan) == 0 {
            assert_eq!(
                conditions(&plan).pop(),
                Some(says(
                    "Succeeded",
                    "True",
                    "StorageVersionMigrationSucceeded",
                    ""
                ))
            );
            break;
        }
        assert!(plan.stages.iter().all(|stage| stage.len() <= 20));
        assert!(conditions(&plan).is_empty(), "not before all are done");
        assert_eq!(plan.requeue, Requeue::Now);
        pages.push(rewrites(&plan));
        carry_out(&mut world, &plan, &mut progress, |_| None);
    }
    assert_eq!(pages, [200, 200, 50]);
    for map in world.all::<ConfigMap>() {
        assert!(
            map.metadata().resource_version > up_to,
            "{:?}",
            map.metadata()
        );
    }
}

#[test]
fn an_object_is_stored_again_by_an_apply_of_nothing_as_it_was_seen() {
    let world = maps(1);
    let plan = step(&world, &mut Progress::default());
    let map = world.get::<ConfigMap>("map-0000");
    let [action] = plan.actions().collect::<Vec<_>>()[..] else {
        panic!("{:?}", plan.verbs());
    };
    assert_eq!(action.uid, map.metadata().uid);
    assert_eq!(action.resource_version, map.metadata().resource_version);
    assert_eq!(
        action.verb,
        Verb::Patch {
            subresource: "",
            kind: PatchKind::Rewrite { manager: MANAGER },
            patch: json!({}),
            report: controllers_kit::StatusWrite::No,
        }
    );
}

#[test]
fn objects_newer_than_the_recorded_version_are_left_alone() {
    let mut world = maps(3);
    world.put(config_map("later"));
    world.change::<ConfigMap>("map-0001", |map| {
        map.metadata_mut().set_label("a", "b");
    });
    let plan = step(&world, &mut Progress::default());
    assert_eq!(
        plan.verbs(),
        ["patch configmaps/map-0000", "patch configmaps/map-0002"]
    );
    let none = world
        .clone()
        .changed::<StorageVersionMigration>("m", |one| {
            "1".clone_into(&mut one.status.as_mut().unwrap().resource_version);
        });
    let plan = step(&none, &mut Progress::default());
    assert_eq!(
        conditions(&plan).pop().unwrap().0,
        "Succeeded",
        "there is nothing to do"
    );
}

#[test]
fn an_interrupted_migration_continues_at_its_page_and_without_memory_at_the_first() {
    let mut world = maps(450);
    let mut progress = Progress::default();
    let first = step(&world, &mut progress);
    carry_out(&mut world, &first, &mut progress, |_| None);
    let second = step(&world, &mut progress);
    // The owner changes in the middle of the second page: 40 were done, one is in flight, the rest is not
    // sent.
    carry_out(&mut world, &second, &mut progress, |name| {
        (name >= "map-0240").then_some(Failure::Fenced)
    });
    let packed = serde_json::to_vec(&progress).unwrap();
    let mut handed: Progress = serde_json::from_slice(&packed).unwrap();
    let again = step(&world, &mut handed);
    assert_eq!(
        again.verbs()[0],
        "patch configmaps/map-0240",
        "those before it are newer now"
    );
    assert_eq!(rewrites(&again), 160);
    let mut lost = Progress::default();
    let from_the_start = step(&world, &mut lost);
    assert_eq!(
        rewrites(&from_the_start),
        0,
        "all of the first page are newer now"
    );
    assert_eq!(from_the_start.requeue, Requeue::Now);
    assert_eq!(rewrites(&step(&world, &mut lost)), 160);
}

#[test]
fn a_page_of_which_something_is_left_is_worked_on_again() {
    let gone = |name: &str| Failure::Timeout(format!("no answer for {name}"));
    let busy = |_: &str| Failure::Other("too many requests".to_owned());
    for failure in [gone as fn(&str) -> Failure, busy] {
        let mut world = maps(30);
        let mut progress = Progress::default();
        let plan = step(&world, &mut progress);
        carry_out(&mut world, &plan, &mut progress, |name| {
            (name == "map-0007").then(|| failure(name))
        });
        let again = step(&world, &mut progress);
        let left: Vec<String> = again.verbs();
        assert_eq!(left[0], "patch configmaps/map-0007");
        assert_eq!(left.len(), 11, "and the stage after it, which was not sent");
        assert!(conditions(&again).is_empty(), "no success");
    }
}

#[test]
fn a_final_refusal_fails_the_migration_with_its_text() {
    let why = || "no".to_owned();
    let table = [
        (Failure::Forbidden(why()), true),
        (Failure::Invalid(why()), true),
        (Failure::NotSupported(why()), true),
        (Failure::NotFound(why()), true),
        (Failure::Other(why()), false),
        (Failure::Timeout(why()), false),
        (Failure::Skipped, false),
        (Failure::Fenced, false),
    ];
    for (failure, is_final) in table {
        let mut world = maps(3);
        let mut progress = Progress::default();
        let plan = step(&world, &mut progress);
        carry_out(&mut world, &plan, &mut progress, |name| {
            (name == "map-0001").then(|| failure.clone())
        });
        let next = step(&world, &mut progress);
        let expected = is_final.then(|| unhandled("no"));
        assert_eq!(conditions(&next).pop(), expected, "{failure:?}");
        assert_eq!(rewrites(&next) > 0, !is_final, "{failure:?}");
    }
}

#[test]
fn an_object_that_was_written_or_is_gone_meanwhile_is_done() {
    let mut world = maps(4);
    let plan = step(&world, &mut Progress::default());
    world.change::<ConfigMap>("map-0001", |map| {
        map.metadata_mut().set_label("a", "b");
    });
    world.vanish::<ConfigMap>("map-0002");
    let applied = world.apply(&plan);
    applied.expect_success();
    let action = plan.actions().next().unwrap();
    let of = |object: &str| {
        format!("Operation cannot be fulfilled on {object}: the object has been modified")
    };
    let namespace_gone = |name: &str| Failure::NotFound(format!("namespaces \"{name}\" not found"));
    for (failure, is_superseded) in [
        (Failure::Conflict(of("configmaps \"map-0000\"")), true),
        (Failure::Conflict(of("configmaps \"map-0001\"")), false),
        (Failure::Conflict(of("resourcequotas \"map-0000\"")), false),
        (Failure::Conflict(String::new()), false),
        (
            Failure::AlreadyExists("configmaps \"map-0000\" already exists".to_owned()),
            true,
        ),
        (Failure::NamespaceTerminating(String::new()), true),
        (namespace_gone("default"), true),
        (namespace_gone("another"), false),
        (
            Failure::NotFound("the server could not find the requested resource".to_owned()),
            false,
        ),
        (Failure::Forbidden(String::new()), false),
        (Failure::Timeout(String::new()), false),
    ] {
        assert_eq!(action.is_superseded(&failure), is_superseded, "{failure:?}");
    }
}

#[test]
fn another_migration_of_the_resource_begins_at_the_first_page() {
    let mut world = maps(250);
    let mut progress = Progress::default();
    let plan = step(&world, &mut progress);
    carry_out(&mut world, &plan, &mut progress, |_| None);
    world.vanish::<StorageVersionMigration>("m");
    let version = world.version().to_string();
    let mut next = migration("n", "configmaps")
        .conditioned("Running", "True")
        .up_to(&version);
    next.metadata_mut().uid = "another".into();
    world.put(next);
    assert_eq!(
        step(&world, &mut progress).verbs()[0],
        "patch configmaps/map-0000"
    );
}

fn paged(page: &Page) -> Answer {
    Answer::page(page)
}

fn meta(name: &str, version: u64) -> ObjectMeta {
    ObjectMeta {
        name: name.into(),
        namespace: "default".into(),
        uid: format!("uid-{name}").as_str().into(),
        resource_version: version,
        ..ObjectMeta::default()
    }
}

#[test]
fn the_list_must_be_as_new_as_the_recorded_version_and_comparable() {
    fn answer(query: &Query, version: u64, object: u64) -> Option<Answer> {
        matches!(query, Query::Page { .. }).then(|| {
            paged(&Page {
                version,
                metas: vec![meta("a", object)],
                next: String::new(),
            })
        })
    }
    const LISTS: &str = "error comparing resource versions between GC and SVM resource: resource version is \
                         not well formed";
    type Case = (
        &'static str,
        fn(&Query) -> Option<Answer>,
        Result<usize, &'static str>,
    );
    let table: [Case; 6] = [
        ("as new", |query| answer(query, 500, 400), Ok(1)),
        ("newer", |query| answer(query, 501, 500), Ok(1)),
        (
            "the object is newer",
            |query| answer(query, 501, 501),
            Ok(0),
        ),
        (
            "the list has no version",
            |query| answer(query, 0, 400),
            Err(LISTS),
        ),
        (
            "the list's is no number",
            |query| answer(query, NOT_COMPARABLE, 400),
            Err(LISTS),
        ),
        (
            "the object's is no number",
            |query| answer(query, 500, NOT_COMPARABLE),
            Err("resource version is not well formed"),
        ),
    ];
    let world = || {
        world()
            .with_catalogue(catalogue(ALL_VERBS))
            .with(running("widgets.example.com").up_to("500"))
    };
    for (case, answering, expected) in table {
        let plan = plan(&world().answering(answering), "widgets.example.com");
        match expected {
            Ok(count) => assert_eq!(rewrites(&plan), count, "{case}"),
            Err(why) => {
                let (kind, _, _, message) = conditions(&plan).pop().unwrap();
                assert_eq!(kind, "Failed", "{case}");
                assert!(message.contains(why), "{case}: {message}");
            }
        }
    }
    let behind = world().answering(|query| answer(query, 499, 400));
    let refusal = behind.refusal::<StorageVersionMigrator>("resource/widgets.example.com");
    assert!(
        matches!(&refusal, Refusal::Retry(why) if why.contains("is older (499)")),
        "{refusal}"
    );
    for text in ["x", "0", "0500", "+500", "5e2", "-1"] {
        let world = world().changed::<StorageVersionMigration>("m", |one| {
            text.clone_into(&mut one.status.as_mut().unwrap().resource_version);
        });
        let (kind, _, _, message) = conditions(&plan(&world, "widgets.example.com"))
            .pop()
            .unwrap();
        assert_eq!(kind, "Failed", "{text}");
        assert!(
            message.ends_with(&format!("resource version is not well formed: {text}")),
            "{message}"
        );
    }
}

#[test]
fn a_list_that_cant_be_read_is_tried_again_and_one_whose_token_has_expired_begins_again() {
    let world = |answering| {
        world()
            .with_catalogue(catalogue(ALL_VERBS))
            .with(running("widgets.example.com").up_to("500"))
            .answering(answering)
    };
    for (answering, why) in [
        (
            (|_| Some(Answer::Failed("no answer".to_owned()))) as fn(&Query) -> Option<Answer>,
            "example.com/v2, Resource=widgets can't be listed: no answer",
        ),
        (
            |_| Some(Answer::Missing),
            "example.com/v2, Resource=widgets can't be listed: the resource is not served",
        ),
    ] {
        let refusal =
            world(answering).refusal::<StorageVersionMigrator>("resource/widgets.example.com");
        assert_eq!(refusal, Refusal::Retry(why.to_owned()));
    }
    let mut world = maps(450);
    let mut progress = Progress::default();
    let first = step(&world, &mut progress);
    carry_out(&mut world, &first, &mut progress, |_| None);
    let expired = world.clone().answering(|query| {
        matches!(query, Query::Page { .. }).then(|| Answer::NotFound("410".to_owned()))
    });
    let plan = step(&expired, &mut progress);
    assert!(plan.is_nothing());
    assert_eq!(plan.requeue, Requeue::Now);
    assert_eq!(progress, {
        let mut fresh = Progress::default();
        fresh.begin("uid-migration-m");
        fresh
    });
}

#[test]
fn an_item_that_cant_be_read_keeps_success_back() {
    let world = world()
        .with_catalogue(catalogue(ALL_VERBS))
        .with(running("widgets.example.com").up_to("500"))
        .answering(|query| {
            matches!(query, Query::Page { .. }).then(|| {
                paged(&Page {
                    version: 500,
                    metas: vec![ObjectMeta {
                        uid: Str::default(),
                        ..meta("a", 400)
                    }],
                    next: String::new(),
                })
            })
        });
    let refusal = world.refusal::<StorageVersionMigrator>("resource/widgets.example.com");
    let why = "example.com/v2, Resource=widgets default/a can't be read";
    assert_eq!(refusal, Refusal::Retry(why.to_owned()));
}

#[test]
fn a_token_of_any_length_is_not_remembered() {
    let world = world()
        .with_catalogue(catalogue(ALL_VERBS))
        .with(running("widgets.example.com").up_to("500"))
        .answering(|query| {
            matches!(query, Query::Page { .. }).then(|| {
                paged(&Page {
                    version: 500,
                    metas: vec![meta("a", 400)],
                    next: "x".repeat(9000),
                })
            })
        });
    let plan = plan(&world, "widgets.example.com");
    let why =
        "the continue token of example.com/v2, Resource=widgets has 9000 bytes, more than 8192";
    assert_eq!(conditions(&plan).pop(), Some(unhandled(why)));
}

#[test]
fn a_migration_goes_from_its_creation_to_its_end_and_the_next_one_follows() {
    let mut world = world();
    for number in 0..45 {
        world.put(config_map(&format!("map-{number}")));
    }
    world.put(migration("first", "configmaps").created("11:00:00"));
    world.put(migration("second", "configmaps").created("11:00:01"));
    world.settle(&[Factory::of::<StorageVersionMigrator>()]);
    for name in ["first", "second"] {
        let status = world
            .get::<StorageVersionMigration>(name)
            .status
            .clone()
            .unwrap();
        let held: Vec<(&str, &str)> = status
            .conditions
            .iter()
            .map(|condition| (&*condition.r#type, &*condition.status))
            .collect();
        assert_eq!(
            held,
            [("Running", "False"), ("Succeeded", "True")],
            "{name}"
        );
        let up_to: u64 = status.resource_version.parse().unwrap();
        for map in world.all::<ConfigMap>() {
            assert!(map.metadata().resource_version > up_to);
        }
    }
}

#[test]
fn the_controller_runs_where_its_gates_and_the_garbage_collector_are_on() {
    let descriptor = StorageVersionMigrator::describe();
    let collector =
        || Runs::Wrong("storage version migrator requires garbage collector".to_owned());
    let off = Runs::No("the feature gate StorageVersionMigrator is off");
    let informer = Runs::No("the feature gate InformerResourceVersion is off");
    for (gate, informers, collects, runs) in [
        (false, true, true, off.clone()),
        (false, true, false, off),
        (true, false, true, informer),
        (true, true, true, Runs::Yes),
        (true, true, false, collector()),
    ] {
        let mut flags = Flags::defaults([&descriptor]);
        flags.set(GATE, FlagValue::Bool(gate));
        flags.set(INFORMER_GATE, FlagValue::Bool(informers));
        flags.set(COLLECTOR, FlagValue::Bool(collects));
        assert_eq!((descriptor.runs)(&flags), runs);
    }
}
