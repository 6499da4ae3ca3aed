use std::sync::Arc;

use jiff::Timestamp;
use kubernetes_proto::{AnyObject, Object, Resource, apps::ReplicaSet, core::Pod, meta::Time};
use serde_json::{Value, json};

use super::{Claimed, ORPHANS, claim, is_controlled_by, recheck, reference};
use crate::{Answer, Answers, Index, Plan, Reader, Refusal, Snapshot, Verb, selectors::Selector};

/// A store of pods, all in one namespace.
struct Pods(Vec<Arc<Pod>>);

impl Reader for Pods {
    fn get(&self, _: &'static Resource, _: &str, _: &str) -> Option<AnyObject> {
        None
    }
    fn list(&self, _: &'static Resource, _: Option<&str>) -> Vec<AnyObject> {
        Vec::new()
    }
    fn indexed(&self, _: &'static Resource, index: &'static str, value: &str) -> Vec<AnyObject> {
        let is_listed = |pod: &&Arc<Pod>| match pod.metadata().controller() {
            Some(owner) => index == Index::OWNER && owner.uid == *value,
            None => index == ORPHANS && pod.metadata().namespace == *value,
        };
        let listed = self.0.iter().filter(is_listed);
        listed.map(|pod| Arc::clone(pod) as AnyObject).collect()
    }
}

fn owner() -> ReplicaSet {
    let mut owner = ReplicaSet::default();
    let meta = owner.metadata_mut();
    meta.name = "web".into();
    meta.namespace = "shop".into();
    meta.uid = "u-web".into();
    owner
}

fn terminating<T: Object>(mut object: T) -> T {
    object.metadata_mut().deletion_timestamp = Some(Time {
        seconds: 1,
        nanos: 0,
    });
    object
}

fn pod(owner_uid: &str, app: &str) -> Pod {
    let mut pod = Pod::default();
    let meta = pod.metadata_mut();
    meta.name = "p".into();
    meta.namespace = "shop".into();
    meta.uid = "u-p".into();
    meta.resource_version = 7;
    meta.set_label("app", app);
    if !owner_uid.is_empty() {
        let mut by = reference(&owner());
        by.uid = owner_uid.into();
        meta.owner_references = vec![by];
    }
    pod
}

fn selector() -> Selector {
    let mut labels = Vec::new();
    kubernetes_proto::meta::set(&mut labels, "app", "web");
    Selector::of_labels(&labels)
}

#[test]
fn who_owns_adopts_and_releases_what() {
    let mut elsewhere = pod("", "web");
    elsewhere.metadata_mut().namespace = "other".into();
    for (what, owner, pod, expected) in [
        ("owned and selected", owner(), pod("u-web", "web"), "owned"),
        ("owned by another", owner(), pod("u-other", "web"), ""),
        (
            "owned, not selected any more",
            owner(),
            pod("u-web", "db"),
            "release",
        ),
        (
            "an orphan that is selected",
            owner(),
            pod("", "web"),
            "adopt",
        ),
        ("an orphan that is not", owner(), pod("", "db"), ""),
        (
            "an orphan that is going",
            owner(),
            terminating(pod("", "web")),
            "",
        ),
        ("an orphan elsewhere", owner(), elsewhere, ""),
        (
            "owned though it is going",
            owner(),
            terminating(pod("u-web", "web")),
            "owned",
        ),
        (
            "a leaving owner keeps",
            terminating(owner()),
            pod("u-web", "web"),
            "owned",
        ),
        (
            "a leaving owner does not release",
            terminating(owner()),
            pod("u-web", "db"),
            "",
        ),
        (
            "a leaving owner does not adopt",
            terminating(owner()),
            pod("", "web"),
            "",
        ),
    ] {
        let claims = claim(&owner, &selector(), [Arc::new(pod)]);
        let got = match (claims.owned.len(), claims.adopt.len(), claims.release.len()) {
            (1, 0, 0) => "owned",
            (0, 1, 0) => "adopt",
            (0, 0, 1) => "release",
            (0, 0, 0) => "",
            other => panic!("{what}: {other:?}"),
        };
        assert_eq!(got, expected, "{what}");
        assert_eq!(
            claims.are_unsettled(),
            matches!(expected, "adopt" | "release")
        );
    }
}

fn claimed_from(pods: Vec<Pod>) -> Claimed<ReplicaSet, Pod> {
    let reader = Pods(pods.into_iter().map(Arc::new).collect());
    let answers = Answers::new();
    let seen = Snapshot::new(&reader, &answers, Timestamp::UNIX_EPOCH);
    Claimed::of(Arc::new(owner()), selector(), &seen)
}

fn settled_by(
    claimed: &Claimed<ReplicaSet, Pod>,
    answer: Option<Answer>,
) -> Option<Result<Plan, Refusal>> {
    let mut answers = Answers::new();
    if let Some(answer) = answer {
        answers.insert(recheck(&owner()), answer);
    }
    let reader = Pods(Vec::new());
    claimed.settle(&Snapshot::new(&reader, &answers, Timestamp::UNIX_EPOCH))
}

fn settled(pods: Vec<Pod>, answer: Option<Answer>) -> Result<Plan, Refusal> {
    settled_by(&claimed_from(pods), answer).expect("there is something to settle")
}

fn live(metadata: &Value) -> Answer {
    Answer::Object(Arc::new(json!({"metadata": metadata})))
}

#[test]
fn an_adoption_adds_the_owner_and_insists_on_the_uid() {
    let plan = settled(vec![pod("", "web")], Some(live(&json!({"uid": "u-web"})))).unwrap();
    let actions: Vec<_> = plan.actions().collect();
    assert_eq!(actions.len(), 1);
    assert_eq!(
        (actions[0].uid.as_str(), actions[0].resource_version),
        ("u-p", 7)
    );
    let Verb::Patch { patch, .. } = &actions[0].verb else {
        panic!()
    };
    assert_eq!(
        *patch,
        json!({"metadata": {"uid": "u-p", "ownerReferences": [{
            "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u-web",
            "controller": true, "blockOwnerDeletion": true,
        }]}})
    );
}

#[test]
fn a_release_takes_away_only_the_own_reference() {
    let plan = settled(vec![pod("u-web", "db")], None).unwrap();
    let Verb::Patch { patch, .. } = &plan.actions().next().unwrap().verb else {
        panic!()
    };
    assert_eq!(
        *patch,
        json!({"metadata": {"uid": "u-p", "ownerReferences": [{"$patch": "delete", "uid": "u-web"}]}})
    );
}

#[test]
fn nothing_is_adopted_for_an_owner_that_is_gone_going_or_unread() {
    for (what, answer, retries) in [
        ("not read", None, true),
        ("unreadable", Some(Answer::Failed("timeout".into())), true),
        ("gone", Some(Answer::Missing), false),
        (
            "another by that name",
            Some(live(&json!({"uid": "u-2"}))),
            false,
        ),
        (
            "being deleted",
            Some(live(
                &json!({"uid": "u-web", "deletionTimestamp": "2026-01-01T00:00:00Z"}),
            )),
            false,
        ),
    ] {
        let refusal = settled(vec![pod("", "web")], answer.clone()).unwrap_err();
        assert_eq!(
            matches!(refusal, Refusal::Retry(_)),
            retries,
            "{what}: {refusal}"
        );
        // Children to be released are released all the same.
        let plan = settled(vec![pod("", "web"), pod("u-web", "db")], answer).unwrap();
        assert_eq!(plan.verbs(), ["patch pods/p"], "{what}");
    }
}

#[test]
fn an_owner_s_children_and_the_orphans_of_its_namespace_are_claimed() {
    let mut other = pod("u-other", "web");
    other.metadata_mut().name = "other".into();
    let claimed = claimed_from(vec![pod("u-web", "web"), pod("u-web", "db"), other]);
    assert_eq!(claimed.children.len(), 2, "children of any labels");
    assert_eq!(claimed.claims.owned.len(), 1);
    assert_eq!(claimed.claims.release.len(), 1);
    assert_eq!(claimed.ask(), None, "a release needs no live read");
    let claimed = claimed_from(vec![pod("", "web")]);
    assert_eq!(claimed.children.len(), 0);
    assert_eq!(claimed.ask(), Some(recheck(&owner())));
    let claimed = claimed_from(vec![pod("u-web", "web"), pod("", "db")]);
    assert_eq!(claimed.ask(), None);
    assert_eq!(settled_by(&claimed, None), None, "nothing is to be settled");
    let mut plan = Plan::nothing();
    claimed.count(&mut plan);
    let counted = &plan.counted[0];
    assert_eq!(counted.namespace, "shop");
    assert_eq!(counted.resource, Pod::resource());
    assert_eq!(counted.selector, selector());
}

#[test]
fn candidates_alone_are_claimed_but_all_children_are_there() {
    let reader = Pods(vec![Arc::new(terminating(pod("u-web", "web")))]);
    let answers = Answers::new();
    let seen = Snapshot::new(&reader, &answers, Timestamp::UNIX_EPOCH);
    let is_candidate = |_: &ReplicaSet, pod: &Pod| !pod.is_terminating();
    let claimed = Claimed::among(Arc::new(owner()), selector(), &seen, is_candidate);
    assert_eq!(claimed.children.len(), 1);
    assert!(claimed.claims.owned.is_empty());
}

#[test]
fn a_finalizer_comes_with_the_adoption_and_goes_with_the_release() {
    for (pod, name) in [
        (pod("", "web"), "finalizers"),
        (pod("u-web", "db"), "$deleteFromPrimitiveList/finalizers"),
    ] {
        let claimed = claimed_from(vec![pod]).with_finalizer("example.com/tracking");
        let plan = settled_by(&claimed, Some(live(&json!({"uid": "u-web"}))));
        let plan = plan.unwrap().unwrap();
        let Verb::Patch { patch, .. } = &plan.actions().next().unwrap().verb else {
            panic!()
        };
        assert_eq!(patch["metadata"][name], json!(["example.com/tracking"]));
    }
}

#[test]
fn only_the_managing_controller_owns() {
    let mut pod = pod("u-web", "web");
    assert!(is_controlled_by(pod.metadata(), "u-web"));
    pod.metadata_mut().owner_references[0].controller = None;
    assert!(!is_controlled_by(pod.metadata(), "u-web"));
}
