use controllers_kit::{
    Catalogue, Controller, FlagValue, Flags, Requeue, Runs,
    testing::{Common, World, at, namespace},
};
use kubernetes_proto::{
    Object,
    certificates::{ClusterTrustBundleSpec, ServingTrustBundle, ServingTrustBundleAlpha},
};

use super::{Bundle, GATE, SIGNER, ServingTrustBundlePublisher};

const KEY: &str = "kube-apiserver-serving";
const CA: &str = "the authorities";
/// The first twelve bytes of the hash of `the authorities`.
const HASHED: &str = "kubernetes.io:kube-apiserver-serving:";

fn world() -> World {
    let mut world = World::at("12:00:00").with(namespace("kube-system")).flag(
        "root-ca-file",
        FlagValue::File(Some(CA.as_bytes().to_vec())),
    );
    world.serve_kind(ServingTrustBundle::resource());
    world
}

fn bundle<B: Bundle>(name: &str, text: &str) -> B {
    let mut bundle = B::of(ClusterTrustBundleSpec {
        signer_name: SIGNER.to_owned(),
        trust_bundle: text.to_owned(),
    });
    bundle.metadata_mut().name = name.into();
    bundle.uid(name)
}

fn name() -> String {
    ServingTrustBundlePublisher {
        authorities: CA.to_owned(),
    }
    .name()
}

/// Names and texts of the bundles after a run.
fn published(mut world: World) -> Vec<(String, String)> {
    world.run::<ServingTrustBundlePublisher>();
    world
        .all::<ServingTrustBundle>()
        .iter()
        .map(|bundle| {
            let text = bundle.spec.as_ref().unwrap().trust_bundle.clone();
            (Object::metadata(&**bundle).name.to_string(), text)
        })
        .collect()
}

#[test]
fn a_bundle_s_name_is_its_signer_s_and_the_hash_of_its_content() {
    let hash = name().strip_prefix(HASHED).unwrap().to_owned();
    assert_eq!(hash.len(), 24);
    let empty = ServingTrustBundlePublisher {
        authorities: String::new(),
    };
    // SHA-256 of nothing.
    assert_eq!(empty.name(), format!("{HASHED}e3b0c44298fc1c149afbf4c8"));
}

#[test]
fn the_one_bundle_of_the_signer_is_that_of_the_authorities() {
    let right = || bundle::<ServingTrustBundle>(&name(), CA);
    let wrong = || bundle::<ServingTrustBundle>(&name(), "forged");
    let other = |number: u8| bundle::<ServingTrustBundle>(&format!("{HASHED}{number}"), "old");
    let table = [
        ("none", world()),
        ("the right one", world().with(right())),
        ("one of another text", world().with(wrong())),
        ("an old one", world().with(other(1))),
        (
            "several old ones and the right one",
            world().with(other(1)).with(right()).with(other(2)),
        ),
        (
            "several old ones and the right one's name with another text",
            world().with(other(1)).with(wrong()).with(other(2)),
        ),
    ];
    for (case, world) in table {
        assert_eq!(published(world), [(name(), CA.to_owned())], "{case}");
    }
}

#[test]
fn the_new_bundle_comes_before_the_old_one_goes() {
    let world = world().with(bundle::<ServingTrustBundle>("old", "old"));
    let plan = world.plan::<ServingTrustBundlePublisher>(KEY);
    assert_eq!(plan.stages.len(), 2);
    assert_eq!(
        plan.verbs(),
        [
            format!("create clustertrustbundles/{}", name()),
            "delete clustertrustbundles/old".to_owned()
        ]
    );
}

#[test]
fn a_server_without_the_beta_is_given_the_alpha() {
    let mut world = World::at("12:00:00").with(namespace("kube-system")).flag(
        "root-ca-file",
        FlagValue::File(Some(CA.as_bytes().to_vec())),
    );
    world.serve_kind(ServingTrustBundleAlpha::resource());
    world.run::<ServingTrustBundlePublisher>();
    assert_eq!(world.all::<ServingTrustBundleAlpha>().len(), 1);
    assert!(world.all::<ServingTrustBundle>().is_empty());
}

#[test]
fn a_server_without_bundles_is_checked_again() {
    let world = World::at("12:00:00");
    let again = |world: World| world.plan::<ServingTrustBundlePublisher>(KEY).requeue;
    assert_eq!(again(world.clone()), Requeue::At(at("12:01:00")));
    let unread = world.with_catalogue(Catalogue::default());
    assert_eq!(again(unread), Requeue::At(at("12:00:01")));
}

#[test]
fn the_controller_runs_where_the_gate_is_on_and_there_are_authorities() {
    let descriptor = ServingTrustBundlePublisher::describe();
    let mut flags = Flags::defaults([&descriptor]);
    let runs = |flags: &Flags| (descriptor.runs)(flags);
    assert!(matches!(runs(&flags), Runs::No(why) if why.contains("gate")));
    flags.set(GATE, FlagValue::Bool(true));
    assert!(matches!(runs(&flags), Runs::No(why) if why.contains("authorities")));
    flags.set("root-ca-file", FlagValue::File(Some(vec![1])));
    assert_eq!(runs(&flags), Runs::Yes);
}
