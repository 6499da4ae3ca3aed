//! Each rule about volumes: a log that keeps it, and the same log with the mistake that it is there for.

use serde_json::{Value, json};

use super::super::volumes::{Kept, Volumes};
use super::Course;

const CLAIM_FINALIZER: &str = "kubernetes.io/pvc-protection";
const VOLUME_FINALIZER: &str = "kubernetes.io/pv-protection";
const MANAGER: &str = "manifold/0 (replica=a; range=7; epoch=1; controller=x)";
const PROVISIONER: &str = "csi-provisioner/v5.3.0";

/// What happens, and when it arrives; each is answered five milliseconds later.
type Event = (u64, What);

#[derive(Debug, Clone)]
enum What {
    /// A claim, or a volume for one.
    Claim(&'static str),
    Volume(&'static str, &'static str, &'static str),
    /// A phase, answered with metadata alone, as Manifold asks for.
    Phase(&'static str, &'static str),
    /// A phase, without a clear answer.
    UnclearPhase(&'static str, &'static str),
    /// A claim names its volume.
    Names(&'static str, &'static str),
    /// A pod with a claim, its node, its phase, its end.
    Pod(&'static str, &'static str),
    Bind(&'static str, &'static str),
    Finish(&'static str),
    EndPod(&'static str),
    UnclearEndPod(&'static str),
    /// Asks for the end of a claim or volume, which its finalizer holds.
    DeleteClaim(&'static str),
    DeleteVolume(&'static str, &'static str),
    /// Its finalizer goes, and with it the claim or volume.
    FreeClaim(&'static str),
    UnclearFreeClaim(&'static str),
    FreeVolume(&'static str),
    /// An attachment of a volume to a node, its status, its end.
    Attach(&'static str, &'static str, &'static str),
    Attached(&'static str, bool),
    Detach(&'static str),
    UnclearDetach(&'static str),
    /// All pods of the namespace.
    SweepPods,
}

use What::*;

fn metadata(at: u64, uid: &str, finalizers: &[&str], is_going: bool) -> Value {
    let mut metadata = json!({
        "uid": format!("uid-{uid}"),
        "resourceVersion": (at + 1).to_string(),
    });
    if !finalizers.is_empty() {
        metadata["finalizers"] = json!(finalizers);
    }
    if is_going {
        metadata["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        metadata["deletionGracePeriodSeconds"] = json!(0);
    }
    json!({"metadata": metadata})
}

/// An answer with more than metadata.
fn whole(mut answer: Value, spec: Value, status: Value) -> Value {
    answer["kind"] = json!("Any");
    answer["spec"] = spec;
    answer["status"] = status;
    answer
}

/// Whether the deletion of this claim or volume was asked for before.
fn is_going(events: &[Event], name: &str) -> bool {
    events.iter().any(|(_, what)| match what {
        DeleteClaim(one) | DeleteVolume(one, _) => *one == name,
        _ => false,
    })
}

fn course(events: &[Event]) -> Course {
    let mut course = Course::default();
    let (claims, volumes) = ("persistentvolumeclaims", "persistentvolumes");
    for (index, (at, what)) in events.iter().enumerate() {
        let (at, before) = (*at, &events[..index]);
        let going = |name: &str| is_going(before, name);
        let free = json!({"metadata": {"finalizers": null}});
        let (verb, resource, name, agent, code, asked, answer) = match what {
            Claim(name) => {
                let answer = metadata(at, name, &[CLAIM_FINALIZER], false);
                let answer = whole(answer, json!({"accessModes": ["ReadWriteOnce"]}), json!({}));
                ("create", claims, *name, "kubectl", 201, Value::Null, answer)
            }
            Volume(name, claim, mode) => {
                let claim = json!({"name": claim, "uid": format!("uid-{claim}")});
                let spec = json!({"accessModes": [mode], "claimRef": claim});
                let answer = metadata(at, name, &[VOLUME_FINALIZER], false);
                let answer = whole(answer, spec, json!({"phase": "Pending"}));
                (
                    "create",
                    volumes,
                    *name,
                    PROVISIONER,
                    201,
                    Value::Null,
                    answer,
                )
            }
            Phase(name, phase) => {
                let answer = metadata(at, name, &[VOLUME_FINALIZER], going(name));
                let asked = json!({"status": {"phase": phase}});
                (
                    "patch",
                    "persistentvolumes/status",
                    *name,
                    MANAGER,
                    200,
                    asked,
                    answer,
                )
            }
            UnclearPhase(name, phase) => {
                let asked = json!({"status": {"phase": phase}});
                (
                    "patch",
                    "persistentvolumes/status",
                    *name,
                    MANAGER,
                    504,
                    asked,
                    Value::Null,
                )
            }
            Names(name, volume) => {
                let answer = metadata(at, name, &[CLAIM_FINALIZER], going(name));
                let asked = json!({"spec": {"volumeName": volume}});
                ("patch", claims, *name, MANAGER, 200, asked, answer)
            }
            Pod(name, claim) => {
                let source = json!({"name": "data", "persistentVolumeClaim": {"claimName": claim}});
                let spec = json!({"volumes": [source]});
                // The manager that makes it reads metadata alone.
                let asked = json!({"metadata": {}, "spec": spec});
                (
                    "create",
                    "pods",
                    *name,
                    MANAGER,
                    201,
                    asked,
                    metadata(at, name, &[], false),
                )
            }
            Bind(name, node) => {
                let asked = json!({"target": {"name": node}});
                let answer = json!({"kind": "Status", "metadata": {}});
                (
                    "create",
                    "pods/binding",
                    *name,
                    "kube-scheduler",
                    201,
                    asked,
                    answer,
                )
            }
            Finish(name) => {
                let asked = json!({"status": {"phase": "Succeeded"}});
                (
                    "patch",
                    "pods/status",
                    *name,
                    "kwok",
                    200,
                    asked,
                    Value::Null,
                )
            }
            EndPod(name) => {
                let mut answer = metadata(at, name, &[], true);
                // As it was stored last.
                answer["metadata"]["deletionGracePeriodSeconds"] = json!(30);
                let asked = json!({"gracePeriodSeconds": 0});
                ("delete", "pods", *name, "kwok", 200, asked, answer)
            }
            UnclearEndPod(name) => (
                "delete",
                "pods",
                *name,
                "kwok",
                500,
                Value::Null,
                Value::Null,
            ),
            DeleteClaim(name) => {
                let answer = metadata(at, name, &[CLAIM_FINALIZER], true);
                ("delete", claims, *name, "kubectl", 200, Value::Null, answer)
            }
            DeleteVolume(name, agent) => {
                let answer = metadata(at, name, &[VOLUME_FINALIZER], true);
                ("delete", volumes, *name, *agent, 200, Value::Null, answer)
            }
            FreeClaim(name) => {
                let answer = metadata(at, name, &[], going(name));
                ("patch", claims, *name, MANAGER, 200, free, answer)
            }
            UnclearFreeClaim(name) => ("patch", claims, *name, MANAGER, 504, free, Value::Null),
            FreeVolume(name) => {
                let answer = metadata(at, name, &[], going(name));
                ("patch", volumes, *name, MANAGER, 200, free, answer)
            }
            Attach(name, volume, node) => {
                let source = json!({"persistentVolumeName": volume});
                let asked = json!({"spec": {"source": source, "nodeName": node}});
                let answer = metadata(at, name, &[], false);
                (
                    "create",
                    "volumeattachments",
                    *name,
                    MANAGER,
                    201,
                    asked,
                    answer,
                )
            }
            Attached(name, attached) => {
                let asked = json!({"status": {"attached": attached}});
                let answer = metadata(at, name, &["attacher"], false);
                (
                    "patch",
                    "volumeattachments/status",
                    *name,
                    "csi-attacher",
                    200,
                    asked,
                    answer,
                )
            }
            Detach(name) => {
                let answer = metadata(at, name, &[], true);
                (
                    "patch",
                    "volumeattachments",
                    *name,
                    "csi-attacher",
                    200,
                    free,
                    answer,
                )
            }
            UnclearDetach(name) => (
                "patch",
                "volumeattachments",
                *name,
                "csi-attacher",
                504,
                free,
                Value::Null,
            ),
            SweepPods => (
                "deletecollection",
                "pods",
                "",
                "kubectl",
                200,
                Value::Null,
                Value::Null,
            ),
        };
        let times = (at, at + 5);
        course = course.entry(
            times,
            verb,
            resource,
            name,
            agent,
            (code, ""),
            (asked, answer),
        );
    }
    course
}

fn kept(events: &[Event]) -> Kept {
    let mut volumes = Volumes::default();
    for line in &course(events).0 {
        volumes.read(&serde_json::from_value(line.clone()).expect("a record"));
    }
    volumes.verdict()
}

/// A claim with a volume, and a pod that has it on a node.
fn pair() -> Vec<Event> {
    vec![
        (0, Claim("data")),
        (100, Volume("pv", "data", "ReadWriteOnce")),
        (200, Phase("pv", "Bound")),
        (300, Names("data", "pv")),
        (400, Pod("web", "data")),
        (500, Bind("web", "node-a")),
        (600, Attach("va-a", "pv", "node-a")),
        (700, Attached("va-a", true)),
    ]
}

/// All of it goes, in the order in which it may.
fn end() -> Vec<Event> {
    vec![
        (1_000, DeleteClaim("data")),
        (1_100, EndPod("web")),
        (1_200, Detach("va-a")),
        (1_300, FreeClaim("data")),
        (1_400, Phase("pv", "Released")),
        (1_500, DeleteVolume("pv", PROVISIONER)),
        (1_600, FreeVolume("pv")),
    ]
}

fn with(more: &[Event]) -> Vec<Event> {
    [&pair()[..], more].concat()
}

#[test]
fn a_volume_s_whole_life_is_fine_and_counted() {
    let kept = kept(&with(&end()));
    assert_eq!(kept.complaints, [""; 0]);
    assert_eq!((kept.claims, kept.volumes), (1, 1));
    assert_eq!((kept.bound, kept.attached), (1, 1));
    assert_eq!((kept.unprotected, kept.released, kept.deleted), (2, 1, 1));
}

#[test]
fn each_mistake_is_reported() {
    let at_last = |what: What| with(&[(1_000, what)]);
    for (mistake, events, part) in [
        (
            "released while the claim lives",
            at_last(Phase("pv", "Released")),
            "volume pv became Released at 2026-01-01T00:00:01.005Z, while its claim default/data lived",
        ),
        (
            "released before the claim has lost its finalizer",
            with(&[
                (1_000, DeleteClaim("data")),
                (1_100, EndPod("web")),
                (1_200, Phase("pv", "Released")),
                (1_300, FreeClaim("data")),
            ]),
            "volume pv became Released",
        ),
        (
            "deleted by a program while the claim lives",
            at_last(DeleteVolume("pv", PROVISIONER)),
            "volume pv was deleted at 2026-01-01T00:00:01.005Z by csi-provisioner",
        ),
        (
            "gone while the claim lives",
            with(&[
                (1_000, Phase("pv", "Available")),
                (1_100, DeleteVolume("pv", "kubectl")),
                (1_200, FreeVolume("pv")),
            ]),
            "volume pv went at 2026-01-01T00:00:01.205Z, while its claim default/data lived",
        ),
        (
            "a bound volume loses its finalizer",
            with(&[
                (1_000, DeleteClaim("data")),
                (1_100, EndPod("web")),
                (1_200, FreeClaim("data")),
                (1_300, DeleteVolume("pv", "kubectl")),
                (1_400, FreeVolume("pv")),
            ]),
            "volume pv lost its finalizer",
        ),
        (
            "a claim loses its finalizer under a pod",
            with(&[
                (1_000, DeleteClaim("data")),
                (1_100, FreeClaim("data")),
                (1_200, EndPod("web")),
            ]),
            "claim default/data lost its finalizer at 2026-01-01T00:00:01.105Z, while pod web had it",
        ),
        (
            "a claim that nobody deletes loses its finalizer under a pod",
            at_last(FreeClaim("data")),
            "claim default/data lost its finalizer",
        ),
        (
            "attached to two nodes",
            with(&[
                (1_000, Attach("va-b", "pv", "node-b")),
                (1_100, Attached("va-b", true)),
                (1_200, Attached("va-a", false)),
            ]),
            "volume pv was attached to node-a and to node-b at 2026-01-01T00:00:01.105Z",
        ),
        (
            "two volumes for one claim",
            with(&[
                (1_000, Volume("other", "data", "ReadWriteOnce")),
                (1_100, Phase("other", "Bound")),
            ]),
            "the claim of uid uid-data had the volumes pv and other",
        ),
    ] {
        let complaints = kept(&events).complaints;
        assert!(
            complaints.len() == 1 && complaints[0].contains(part),
            "{mistake}: {complaints:?}"
        );
    }
}

#[test]
fn what_only_resembles_a_mistake_is_accepted() {
    for (story, events) in [
        (
            "a volume whose claim names another",
            vec![
                (0, Claim("data")),
                (100, Volume("pv", "data", "ReadWriteOnce")),
                (200, Names("data", "other")),
                (300, Phase("pv", "Released")),
                (400, DeleteVolume("pv", PROVISIONER)),
                (500, FreeVolume("pv")),
            ],
        ),
        (
            "a volume that its user deletes is held by its finalizer",
            with(&[(1_000, DeleteVolume("pv", "kubectl"))]),
        ),
        (
            "a volume that was never bound, and that its user deletes",
            vec![
                (0, Claim("data")),
                (100, Volume("pv", "data", "ReadWriteOnce")),
                (200, Phase("pv", "Available")),
                (300, DeleteVolume("pv", "kubectl")),
                (400, FreeVolume("pv")),
            ],
        ),
        (
            "a claim that may be gone already",
            with(&[
                (1_000, DeleteClaim("data")),
                (1_100, EndPod("web")),
                (1_200, UnclearFreeClaim("data")),
                (1_300, Phase("pv", "Released")),
            ]),
        ),
        (
            "a volume that may be Bound no more",
            with(&[
                (1_000, DeleteClaim("data")),
                (1_100, EndPod("web")),
                (1_200, FreeClaim("data")),
                (1_300, DeleteVolume("pv", "kubectl")),
                (1_350, UnclearPhase("pv", "Released")),
                (1_400, FreeVolume("pv")),
            ]),
        ),
        (
            "a volume that was Released just before its finalizer went, and answered just after",
            with(&[
                (1_000, DeleteClaim("data")),
                (1_100, EndPod("web")),
                (1_200, FreeClaim("data")),
                (1_300, DeleteVolume("pv", "kubectl")),
                (1_400, FreeVolume("pv")),
                (1_400, Phase("pv", "Released")),
            ]),
        ),
        (
            "a pod that came to its node after the claim's deletion was asked for",
            [
                &pair()[..5],
                &[
                    (1_000, DeleteClaim("data")),
                    (1_050, Bind("web", "node-a")),
                    (1_100, FreeClaim("data")),
                ],
            ]
            .concat(),
        ),
        (
            "a pod without a node",
            [
                &pair()[..5],
                &[(1_000, DeleteClaim("data")), (1_100, FreeClaim("data"))],
            ]
            .concat(),
        ),
        (
            "a pod that has finished",
            with(&[
                (900, Finish("web")),
                (1_000, DeleteClaim("data")),
                (1_100, FreeClaim("data")),
            ]),
        ),
        (
            "a pod that may be gone already",
            with(&[
                (1_000, DeleteClaim("data")),
                (1_050, UnclearEndPod("web")),
                (1_100, FreeClaim("data")),
            ]),
        ),
        (
            "a pod that went with all others",
            with(&[
                (1_000, DeleteClaim("data")),
                (1_050, SweepPods),
                (1_100, FreeClaim("data")),
            ]),
        ),
        (
            "attached to the next node once it has left the first",
            with(&[
                (1_000, Attach("va-b", "pv", "node-b")),
                (1_100, Detach("va-a")),
                (1_200, Attached("va-b", true)),
            ]),
        ),
        (
            "attached to the next node when it may have left the first",
            with(&[
                (1_000, Attach("va-b", "pv", "node-b")),
                (1_100, UnclearDetach("va-a")),
                (1_200, Attached("va-b", true)),
            ]),
        ),
        (
            "a volume that several nodes may have",
            vec![
                (0, Volume("pv", "data", "ReadWriteMany")),
                (100, Attach("va-a", "pv", "node-a")),
                (200, Attached("va-a", true)),
                (300, Attach("va-b", "pv", "node-b")),
                (400, Attached("va-b", true)),
            ],
        ),
        (
            "a claim made again gets a volume of its own",
            [
                &with(&end())[..],
                &[
                    (2_000, Claim("data")),
                    (2_100, Volume("next", "data", "ReadWriteOnce")),
                    (2_200, Phase("next", "Bound")),
                ],
            ]
            .concat(),
        ),
    ] {
        assert_eq!(kept(&events).complaints, [""; 0], "{story}");
    }
}

#[test]
fn writes_are_taken_in_the_order_of_their_versions() {
    let mut course = course(&with(&end()));
    course.0.reverse();
    let mut volumes = Volumes::default();
    for line in &course.0 {
        volumes.read(&serde_json::from_value(line.clone()).expect("a record"));
    }
    assert_eq!(volumes.verdict().complaints, [""; 0]);
}
