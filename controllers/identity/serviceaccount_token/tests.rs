use std::sync::Arc;

use controllers_kit::{
    Answer, Controller, FlagValue, Flags, Only, Query, Refusal, Runs, Verb,
    testing::{
        Common, World,
        identity::{AccountBuild, SecretBuild, held, prints_no, service_account_token},
        service_account,
    },
};
use kubernetes_proto::{
    Object,
    core::{ServiceAccount, ServiceAccountToken},
};
use serde_json::{Value, json};

use super::{KEY_FILE, ServiceAccountTokens, Whose};
use crate::accounts::{ACCOUNT, UID};

const CA: &str = "the authorities";

fn world() -> World {
    World::at("12:00:00")
        .flag(
            "root-ca-file",
            FlagValue::File(Some(CA.as_bytes().to_vec())),
        )
        .answering(|query| match query {
            Query::Token { claims } => {
                Some(Answer::Object(Arc::new(json!(format!("signed {claims}")))))
            }
            _ => None,
        })
}

fn account() -> ServiceAccount {
    service_account("robot")
}

fn uid() -> String {
    Object::metadata(&account()).uid.to_string()
}

fn secret() -> ServiceAccountToken {
    service_account_token("robot-token", "robot")
}

/// One that lacks nothing.
fn whole() -> ServiceAccountToken {
    secret()
        .annotation(UID, &uid())
        .holds("ca.crt", CA)
        .holds("namespace", "default")
        .holds("token", "old")
}

const KEY: &str = "robot-token";

fn claims() -> Value {
    json!({
        "iss": "kubernetes/serviceaccount",
        "kubernetes.io/serviceaccount/namespace": "default",
        "kubernetes.io/serviceaccount/secret.name": "robot-token",
        "kubernetes.io/serviceaccount/service-account.name": "robot",
        "kubernetes.io/serviceaccount/service-account.uid": uid(),
        "sub": "system:serviceaccount:default:robot",
    })
}

#[test]
fn a_secret_gets_what_it_lacks_and_keeps_what_it_has() {
    let table = [
        ("nothing in it", secret(), Some("new")),
        (
            "of the account's uid",
            secret().annotation(UID, &uid()),
            Some("new"),
        ),
        ("no authorities", whole().holds("ca.crt", ""), Some("old")),
        (
            "other authorities",
            whole().holds("ca.crt", "others"),
            Some("old"),
        ),
        ("no namespace", whole().holds("namespace", ""), Some("old")),
        ("no token", whole().holds("token", ""), Some("new")),
        ("all of it", whole(), None),
        (
            "all of it in a foreign namespace's name",
            whole().holds("namespace", "elsewhere"),
            None,
        ),
    ];
    for (name, secret, token) in table {
        let mut world = world().with(account()).with(secret.clone());
        let plan = world.plan::<ServiceAccountTokens>(KEY);
        let Some(token) = token else {
            assert!(plan.is_nothing(), "{name}");
            continue;
        };
        assert_eq!(plan.verbs(), ["patch secrets/robot-token"], "{name}");
        assert!(plan.actions().all(|action| action.resource_version > 0));
        world.apply(&plan).expect_success();
        let filled = world.get::<ServiceAccountToken>(KEY);
        assert_eq!(held(&filled.data, "ca.crt"), CA, "{name}");
        assert_eq!(held(&filled.data, "namespace"), "default", "{name}");
        let has = held(&filled.data, "token");
        match token {
            "old" => assert_eq!(has, "old", "{name}"),
            _ => {
                let signed = has.strip_prefix("signed ").unwrap();
                assert_eq!(serde_json::from_str::<Value>(signed).unwrap(), claims());
            }
        }
        let meta = Object::metadata(&*filled);
        assert_eq!(meta.annotation(ACCOUNT), Some("robot"), "{name}");
        assert_eq!(meta.annotation(UID), Some(uid().as_str()), "{name}");
        assert!(
            world.plan::<ServiceAccountTokens>(KEY).is_nothing(),
            "{name}"
        );
    }
}

#[test]
fn claims_are_signed_in_go_s_order() {
    let world = world()
        .with(account())
        .with(secret())
        .answering(|query| match query {
            Query::Token { claims } => {
                let order = [
                    "iss",
                    "/namespace",
                    "secret.name",
                    "service-account.name",
                    "service-account.uid",
                    "sub",
                ];
                let places: Vec<usize> = order
                    .iter()
                    .map(|name| claims.find(&format!("{name}\":")).unwrap())
                    .collect();
                assert!(places.is_sorted(), "{claims}");
                Some(Answer::Object(Arc::new(json!("x"))))
            }
            _ => None,
        });
    assert!(!world.plan::<ServiceAccountTokens>(KEY).is_nothing());
}

#[test]
fn without_authorities_none_are_asked_for() {
    let world = World::at("12:00:00")
        .with(account())
        .with(whole().holds("ca.crt", ""));
    assert!(world.plan::<ServiceAccountTokens>(KEY).is_nothing());
}

#[test]
fn a_secret_whose_account_is_gone_goes() {
    let of_another = secret().annotation(UID, "uid-of-one-before");
    let table = [
        ("no account", world().with(whole()), true),
        (
            "another account of the name",
            world().with(account()).with(of_another),
            true,
        ),
        ("an account", world().with(account()).with(whole()), false),
        (
            "one that names no account",
            world().with(service_account_token(KEY, "")),
            false,
        ),
    ];
    for (name, world, goes) in table {
        let plan = world.plan::<ServiceAccountTokens>(KEY);
        let deletes = plan.actions().any(|action| {
            matches!(
                action.verb,
                Verb::Delete {
                    only: Only::ThisUid,
                    ..
                }
            )
        });
        assert_eq!((deletes, plan.is_nothing()), (goes, !goes), "{name}");
    }
}

#[test]
fn an_account_that_only_the_server_knows_keeps_its_secret() {
    // The cache has not got it yet: the world answers a live read apart.
    let world = world().with(whole()).answering(|query| match query {
        Query::Live { .. } => Some(Answer::Object(Arc::new(
            json!({"metadata": {"name": "robot", "uid": "uid-serviceaccounts-default-robot"}}),
        ))),
        _ => None,
    });
    assert_eq!(
        world.refusal::<ServiceAccountTokens>(KEY),
        Refusal::Wait("the account robot is not in the cache yet".to_owned())
    );
    let unknown = world.answering(|query| match query {
        Query::Live { .. } => Some(Answer::Failed("no answer".to_owned())),
        _ => None,
    });
    assert_eq!(
        unknown.refusal::<ServiceAccountTokens>(KEY),
        Refusal::Retry("no answer".to_owned())
    );
}

#[test]
fn an_account_s_deletion_takes_its_secrets_and_no_others() {
    let mut world = world()
        .with(account())
        .with(service_account("other"))
        .with(whole())
        .with(service_account_token("second", "robot"))
        .with(service_account_token("theirs", "other"))
        .with(service_account_token(KEY, "robot").in_namespace("shop"))
        .with(service_account("robot").in_namespace("shop"));
    world.run::<ServiceAccountTokens>();
    world.delete::<ServiceAccount>("robot");
    world.run::<ServiceAccountTokens>();
    let left: Vec<String> = world
        .all::<ServiceAccountToken>()
        .iter()
        .map(|secret| controllers_kit::Key::of(&**secret).to_string())
        .collect();
    assert_eq!(left, ["default/theirs", "shop/robot-token"]);
}

#[test]
fn a_deleted_secret_s_reference_goes_from_the_account_it_was_of() {
    let table = [
        ("listed", account().lists("keep").lists(KEY), whole(), 1),
        ("not listed", account().lists("keep"), whole(), 1),
        (
            "of an account before",
            account().lists("keep").lists(KEY),
            whole(),
            1,
        ),
    ];
    for (name, account, secret, left) in table {
        let mut world = world().with(account).with(secret);
        world.run::<ServiceAccountTokens>();
        let mut memory = Whose::default();
        world
            .plan_with::<ServiceAccountTokens>(KEY, &mut memory)
            .unwrap();
        world.delete::<ServiceAccountToken>(KEY);
        let plan = world
            .plan_with::<ServiceAccountTokens>(KEY, &mut memory)
            .unwrap();
        world.apply(&plan).expect_success();
        let account = world.get::<ServiceAccount>("robot");
        assert_eq!(account.secrets.len(), left, "{name}");
        assert_eq!(account.secrets[0].name, "keep", "{name}");
        // Once more, and nothing is remembered.
        let plan = world
            .plan_with::<ServiceAccountTokens>(KEY, &mut memory)
            .unwrap();
        assert!(plan.is_nothing(), "{name}");
        assert_eq!(memory, Whose::default(), "{name}");
    }
}

#[test]
fn a_reference_of_another_account_of_the_name_stays() {
    let mut memory = Whose {
        account: "robot".into(),
        uid: "uid-of-one-before".into(),
    };
    let world = world().with(account().lists(KEY));
    let plan = world
        .plan_with::<ServiceAccountTokens>(KEY, &mut memory)
        .unwrap();
    assert!(plan.is_nothing());
}

#[test]
fn a_reference_to_a_secret_that_was_never_seen_stays() {
    // It may be of another type, of which none are held.
    let mut world = world().with(account().lists("pull-secret"));
    world.run::<ServiceAccountTokens>();
    assert_eq!(world.get::<ServiceAccount>("robot").secrets.len(), 1);
    assert!(
        world
            .plan::<ServiceAccountTokens>("pull-secret")
            .is_nothing()
    );
}

#[test]
fn two_that_fill_a_secret_write_it_once() {
    let mut world = world().with(account()).with(secret());
    let plan = world.plan::<ServiceAccountTokens>(KEY);
    world.apply(&plan).expect_success();
    assert_eq!(world.apply(&plan).failures().len(), 1);
}

#[test]
fn a_key_that_can_t_sign_is_tried_again() {
    let world = world()
        .with(account())
        .with(secret())
        .answering(|query| match query {
            Query::Token { .. } => Some(Answer::Failed("no key".to_owned())),
            _ => None,
        });
    assert_eq!(
        world.refusal::<ServiceAccountTokens>(KEY),
        Refusal::Retry("no key".to_owned())
    );
}

#[test]
fn no_token_is_printed_or_handed_over() {
    let world = world()
        .with(account())
        .with(secret())
        .answering(|query| match query {
            Query::Token { .. } => Some(Answer::Object(Arc::new(json!("canary-of-a-token")))),
            _ => None,
        });
    let mut memory = Whose::default();
    let plan = world
        .plan_with::<ServiceAccountTokens>(KEY, &mut memory)
        .unwrap();
    let answers = world.answer(vec![Query::Token {
        claims: String::new(),
    }]);
    // Base64, as a patch has it.
    let hidden = ["canary", "Y2FuYXJ5"];
    let printed = [
        format!("{plan:?}"),
        plan.verbs().join(" "),
        format!("{answers:?}"),
        serde_json::to_string(&memory).unwrap(),
    ];
    for text in &printed {
        assert!(hidden.iter().all(|word| !text.contains(word)), "{text}");
    }
    let mut filled = world.clone();
    filled.apply(&plan).expect_success();
    let secret = filled.get::<ServiceAccountToken>(KEY);
    assert_eq!(held(&secret.data, "token"), "canary-of-a-token");
    assert!(hidden.iter().all(|word| prints_no(&*secret, word)));
}

#[test]
fn the_controller_runs_where_there_is_a_key() {
    let descriptor = ServiceAccountTokens::describe();
    let mut flags = Flags::defaults([&descriptor]);
    assert!(matches!((descriptor.runs)(&flags), Runs::No(_)));
    flags.set(KEY_FILE, FlagValue::Text("/sa.key".to_owned()));
    assert_eq!((descriptor.runs)(&flags), Runs::Yes);
}
