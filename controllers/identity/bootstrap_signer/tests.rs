use controllers_kit::{
    Requeue, Verb,
    testing::{
        Common, World, at,
        identity::{ClusterInfoBuild, SecretBuild, bootstrap_token, cluster_info},
    },
};
use kubernetes_proto::core::{BootstrapToken, ClusterInfo};
use serde_json::{Value, json};

use super::BootstrapSigner;

const KEY: &str = "kube-public/cluster-info";
const ID: &str = "abcdef";
const NAME: &str = "jws-kubeconfig-abcdef";
/// The protected header of every signature by the token `abcdef`, in base64.
const HEADER: &str = "eyJhbGciOiJIUzI1NiIsImtpZCI6ImFiY2RlZiJ9";

fn world() -> World {
    World::at("12:00:00")
}

fn info() -> ClusterInfo {
    cluster_info().says("kubeconfig", "payload")
}

fn token() -> BootstrapToken {
    bootstrap_token(ID, "foobar")
}

/// What is written to the ConfigMap's data; none where nothing is.
fn written(world: &World) -> Option<Value> {
    let plan = world.plan::<BootstrapSigner>(KEY);
    let mut actions = plan.actions();
    let action = actions.next()?;
    assert!(actions.next().is_none());
    match &action.verb {
        Verb::Patch { patch, .. } => Some(patch["data"].clone()),
        other => panic!("no patch but {other:?}"),
    }
}

fn signed(world: World) -> World {
    let mut world = world;
    world.run::<BootstrapSigner>();
    assert_eq!(written(&world), None, "at rest");
    world
}

#[test]
fn the_signature_is_upstream_s_byte_for_byte() {
    // From upstream's own test of its JWS: content "Hello from the other side. I must have called a thousand
    // times.", token id "joshua", secret "my voice is my passcode".
    let signature = super::detached(
        "Hello from the other side. I must have called a thousand times.",
        "joshua",
        &"my voice is my passcode".into(),
    );
    assert_eq!(
        signature,
        "eyJhbGciOiJIUzI1NiIsImtpZCI6Impvc2h1YSJ9..VShe2taLd-YTrmWuRkcL_8QTNDHYxQIEBsAYYiIj1_8"
    );
}

#[test]
fn there_is_nothing_to_sign_without_the_config_map_or_its_kubeconfig() {
    let table = [
        world().with(token()),
        world().with(token()).with(cluster_info()),
        world()
            .with(token())
            .with(cluster_info().says(NAME, "kept, for there is nothing to sign")),
    ];
    for world in table {
        assert_eq!(written(&world), None);
    }
}

#[test]
fn every_token_that_may_sign_does_and_no_other() {
    let odd = |name: &str| {
        let mut token = token();
        token.metadata.as_mut().unwrap().name = name.into();
        token
    };
    let table: Vec<(&str, BootstrapToken, bool)> = vec![
        ("a good one", token(), true),
        ("named otherwise", odd("token-abcdef"), false),
        ("an id too long", odd("bootstrap-token-abcdefg"), false),
        ("an id in capitals", odd("bootstrap-token-ABCDEF"), false),
        ("another id", token().holds("token-id", "ghijkl"), false),
        ("no id", token().holds("token-id", ""), false),
        ("no secret", token().holds("token-secret", ""), false),
        (
            "not for signing",
            token().holds("usage-bootstrap-signing", "false"),
            false,
        ),
        (
            "not said to be for signing",
            token().holds("usage-bootstrap-signing", ""),
            false,
        ),
        (
            "expired",
            token().holds("expiration", "2026-03-02T11:00:00Z"),
            false,
        ),
        (
            "of an unreadable expiration",
            token().holds("expiration", "soon"),
            false,
        ),
        (
            "not expired",
            token().holds("expiration", "2026-03-02T13:00:00Z"),
            true,
        ),
    ];
    for (name, token, signs) in table {
        let world = signed(world().with(info()).with(token));
        let data = &world.get::<ClusterInfo>(KEY).data;
        assert_eq!(data.contains_key(NAME), signs, "{name}");
        assert_eq!(data.len(), 1 + usize::from(signs), "{name}");
        if signs {
            assert!(data[NAME].starts_with(&format!("{HEADER}..")), "{name}");
        }
    }
}

#[test]
fn changed_content_is_signed_again_and_other_keys_stay() {
    let mut world = signed(world().with(info().says("motd", "hello")).with(token()));
    let first = world.get::<ClusterInfo>(KEY).data[NAME].clone();
    world.change::<ClusterInfo>(KEY, |info| {
        info.data
            .insert("kubeconfig".to_owned(), "other".to_owned());
    });
    let world = signed(world);
    let data = &world.get::<ClusterInfo>(KEY).data;
    assert_ne!(data[NAME], first);
    assert_eq!(data["motd"], "hello");
}

#[test]
fn a_forged_signature_is_put_right_and_those_of_no_token_go() {
    let world = world()
        .with(
            info()
                .says(NAME, "forged")
                .says("jws-kubeconfig-zzzzzz", "of nobody"),
        )
        .with(token());
    let patch = written(&world).unwrap();
    assert_eq!(patch["jws-kubeconfig-zzzzzz"], Value::Null);
    assert!(patch[NAME].as_str().unwrap().starts_with(HEADER));
}

#[test]
fn a_deleted_token_s_signature_goes() {
    let mut world = signed(world().with(info()).with(token()));
    world.delete::<BootstrapToken>("kube-system/bootstrap-token-abcdef");
    assert_eq!(written(&world), Some(json!({NAME: null})));
}

#[test]
fn an_expiring_token_s_signature_goes_when_it_expires() {
    let world = signed(
        world()
            .with(info())
            .with(token().holds("expiration", "2026-03-02T12:10:00Z")),
    );
    let plan = world.plan::<BootstrapSigner>(KEY);
    assert_eq!(plan.requeue, Requeue::At(at("12:10:00")));
    assert_eq!(written(&world.later(600)), Some(json!({NAME: null})));
}

#[test]
fn tokens_of_other_namespaces_do_not_sign() {
    let world = signed(world().with(info()).with(token().in_namespace("shop")));
    assert_eq!(world.get::<ClusterInfo>(KEY).data.len(), 1);
}

#[test]
fn a_token_s_secret_is_printed_nowhere() {
    let world = world()
        .with(info())
        .with(bootstrap_token(ID, "canary-of-a-secret"));
    let plan = world.plan::<BootstrapSigner>(KEY);
    assert!(!plan.is_nothing());
    assert!(!format!("{plan:?}").contains("canary"));
}
