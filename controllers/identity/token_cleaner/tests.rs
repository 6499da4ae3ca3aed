use controllers_kit::{
    Only, Requeue, Verb,
    testing::{
        World, at,
        identity::{SecretBuild, bootstrap_token},
    },
};
use kubernetes_proto::core::BootstrapToken;

use super::TokenCleaner;

const KEY: &str = "kube-system/bootstrap-token-tokenid";
const ID: &str = "tokenid";

/// The outcome for a token at noon: whether it is deleted, and when it is requeued.
fn outcome(expiration: &str) -> (bool, Requeue) {
    let token = bootstrap_token(ID, "secret").holds("expiration", expiration);
    let world = World::at("12:00:00").with(token);
    let plan = world.plan::<TokenCleaner>(KEY);
    for action in plan.actions() {
        assert!(matches!(
            action.verb,
            Verb::Delete {
                only: Only::ThisUid,
                ..
            }
        ));
    }
    (!plan.is_nothing(), plan.requeue)
}

#[test]
fn a_token_goes_when_it_has_expired() {
    let table = [
        ("", (false, Requeue::Never)),
        ("2026-03-02T11:59:59Z", (true, Requeue::Never)),
        ("2026-03-02T12:00:00Z", (true, Requeue::Never)),
        ("2026-03-02T12:00:01Z", (false, Requeue::At(at("12:00:01")))),
        (
            "2026-03-02T13:00:01.5+01:00",
            (false, Requeue::At(at("2026-03-02T12:00:01.5Z"))),
        ),
        // As Go's `time.Parse` reads it.
        (
            "2026-03-02T12:00:01,5Z",
            (false, Requeue::At(at("2026-03-02T12:00:01.5Z"))),
        ),
        (
            "2026-03-03T9:00:00Z",
            (false, Requeue::At(at("2026-03-03T09:00:00Z"))),
        ),
        (
            "2026-03-02T12:00:01.0000000019Z",
            (false, Requeue::At(at("2026-03-02T12:00:01.000000001Z"))),
        ),
        (
            "2026-03-03T12:00:01+24:00",
            (false, Requeue::At(at("12:00:01"))),
        ),
        ("2026-03-02T10:59:01-00:60", (true, Requeue::Never)),
        ("2026-03-05T12:00:00+25:00", (true, Requeue::Never)),
        ("2026-03-05T24:00:00Z", (true, Requeue::Never)),
        ("2026-02-30T12:00:00Z", (true, Requeue::Never)),
        ("2026-13-01T12:00:00Z", (true, Requeue::Never)),
        ("2026-3-05T12:00:00Z", (true, Requeue::Never)),
        ("2026-03-05t12:00:00z", (true, Requeue::Never)),
        ("2026-03-05T12:00:00Z ", (true, Requeue::Never)),
        // What can't be read counts as over.
        ("tomorrow", (true, Requeue::Never)),
        ("2026-03-02T13:00Z", (true, Requeue::Never)),
        ("2026-03-02 13:00:00Z", (true, Requeue::Never)),
        ("2026-03-02T13:00:60Z", (true, Requeue::Never)),
        ("2026-03-02T13:00:00", (true, Requeue::Never)),
        ("2026-03-02T13:00:00.Z", (true, Requeue::Never)),
    ];
    for (expiration, expected) in table {
        assert_eq!(outcome(expiration), expected, "{expiration:?}");
    }
}

#[test]
fn a_token_that_expires_while_it_is_watched_goes_then() {
    let factories = [controllers_kit::Factory::of::<TokenCleaner>()];
    let mut world = World::at("12:00:00")
        .with(bootstrap_token(ID, "secret").holds("expiration", "2026-03-02T12:00:02Z"));
    world.settle_for(1, &factories);
    assert!(world.find::<BootstrapToken>(KEY).is_some());
    world.settle_for(2, &factories);
    assert!(world.find::<BootstrapToken>(KEY).is_none());
}

#[test]
fn a_token_that_is_prolonged_meanwhile_stays_until_then() {
    let mut world = World::at("12:00:00")
        .with(bootstrap_token(ID, "secret").holds("expiration", "2026-03-02T12:00:02Z"));
    world.change::<BootstrapToken>(KEY, |token| {
        token
            .data
            .insert("expiration".to_owned(), "2026-03-02T12:01:00Z".into());
    });
    world.settle_for(30, &[controllers_kit::Factory::of::<TokenCleaner>()]);
    assert!(world.find::<BootstrapToken>(KEY).is_some());
}

#[test]
fn a_token_s_content_is_never_printed() {
    let token = bootstrap_token(ID, "canary-of-a-secret").holds("expiration", "no time");
    assert!(controllers_kit::testing::identity::prints_no(
        &token, "canary"
    ));
    let plan = World::at("12:00:00").with(token).plan::<TokenCleaner>(KEY);
    assert!(!format!("{plan:?}").contains("canary"));
}
