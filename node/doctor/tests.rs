//! Tables: facts that are as they should be, one thing broken, and the finding.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use controllers_kit::{Descriptor, Sharding, selection::Selection};
use coordinator::{Holder, RangeLease, ReplicaLease};
use jiff::{SignedDuration, Timestamp};
use steering::{Order, Orders, Target};

use crate::{
    certificates::{self, Certificate},
    checks::{self, CHECKS, Finding, When},
    companion::{Form, divide},
    facts::*,
    report::{self, Summary},
    rights::{self, Right, Source, Who},
};

const RANGES: u16 = 4;

fn now() -> Timestamp {
    "2026-11-25T12:00:00Z".parse().unwrap()
}

fn descriptors() -> Vec<Descriptor> {
    let named = |name| Descriptor::new(name, Sharding::ByObject);
    vec![
        named("deployment-controller")
            .aliases(&["deployment"])
            .rule(
                "apps",
                "deployments",
                &["get", "list", "watch", "patch", "update"],
            )
            .rule("apps", "deployments/status", &["patch"]),
        named("job-controller")
            .aliases(&["job"])
            .rule("batch", "jobs", &["get", "list", "watch"]),
        named("ttl-controller").aliases(&["ttl"]),
        named("service-lb-controller").aliases(&["service"]),
        named("bootstrap-signer-controller")
            .aliases(&["bootstrapsigner"])
            .off_by_default(),
        named("token-cleaner-controller")
            .aliases(&["tokencleaner"])
            .off_by_default(),
        named("serviceaccount-token-controller")
            .aliases(&["serviceaccount-token"])
            .runs_unlisted(),
    ]
}

fn replica(name: &str) -> Replica {
    let mut said = ReplicaLease {
        name: name.to_owned(),
        version: 1,
        incarnation: Some("i".to_owned()),
        status: Default::default(),
        ended: Vec::new(),
        working: Vec::new(),
        loads: Default::default(),
        deaths: Default::default(),
    };
    said.status.address = format!("{name}:10258");
    said.status.build = "0.1.0".to_owned();
    said.status.ready = true;
    said.status.ranges = RANGES;
    said.status.server_fenced = true;
    said.status.fingerprints = "controllers=* serviceaccount-token-controller,root-ca=1".into();
    Replica {
        lease: format!("manifold-replica-{name}"),
        said,
        renewed: true,
        clocks: Some((now(), now())),
    }
}

fn fleet() -> Fleet {
    Fleet {
        namespace: "kube-system".to_owned(),
        name: "manifold".to_owned(),
        replicas: vec![replica("m-0"), replica("m-1")],
        ranges: (0..RANGES)
            .map(|range| RangeLease {
                range,
                version: 1,
                holder: Some(Holder::new(format!("m-{}", range % 2), "i")),
                epoch: 1,
                dead: Vec::new(),
            })
            .collect(),
    }
}

fn certificate(days: i64) -> Certificate {
    Certificate {
        subject: "admin".to_owned(),
        begins: now() - SignedDuration::from_hours(24),
        ends: now() + SignedDuration::from_hours(24 * days),
    }
}

fn right(who: Who, source: Source) -> Right {
    Right {
        who,
        verb: "patch".to_owned(),
        group: "apps".to_owned(),
        resource: "deployments".to_owned(),
        subresource: "status".to_owned(),
        namespace: String::new(),
        name: String::new(),
        source,
    }
}

fn own() -> Right {
    right(Who::Own, Source::Own)
}

fn account(source: Source) -> Right {
    let who = Who::Account {
        namespace: "kube-system".to_owned(),
        name: "deployment-controller".to_owned(),
    };
    right(who, source)
}

fn manager(source: Source) -> Right {
    right(
        Who::User("system:kube-controller-manager".to_owned()),
        source,
    )
}

fn pod(name: &str) -> ManagerPod {
    ManagerPod {
        namespace: "kube-system".to_owned(),
        name: name.to_owned(),
        node: format!("node-{name}"),
        ready: true,
        is_manifold: true,
        account: "manifold".to_owned(),
        memory_limit: Some(256 << 20),
        ..ManagerPod::default()
    }
}

fn kcm(args: &[&str]) -> ManagerPod {
    ManagerPod {
        is_manifold: false,
        is_static: true,
        node: "host-a".to_owned(),
        args: args.iter().map(|arg| (*arg).to_owned()).collect(),
        ..pod("kube-controller-manager-host-a")
    }
}

fn guard(holder: &str) -> Known<Option<Guard>> {
    Ok(Some(Guard {
        holder: holder.to_owned(),
        fresh: true,
        valid: Duration::from_secs(15),
    }))
}

/// Everything as it should be.
fn healthy() -> Facts {
    Facts {
        asked: Asked::default(),
        build: "0.1.0".to_owned(),
        default_namespace: "kube-system".to_owned(),
        default_fleet: "manifold".to_owned(),
        descriptors: descriptors(),
        now: now(),
        credentials: Credentials {
            server: "https://10.0.0.1:6443".to_owned(),
            cluster: "kubernetes".to_owned(),
            kubeconfig: "/etc/kubernetes/admin.conf".to_owned(),
            client: Some(Ok(certificate(300))),
            authorities: vec![Ok(certificate(3000))],
            insecure: false,
        },
        server: Ok(Server {
            version: "v1.36.3".to_owned(),
            minor: (1, 36),
            clock_ahead: Some(SignedDuration::from_millis(300)),
        }),
        user: Ok("kubernetes-admin".to_owned()),
        served: Ok(Served {
            resources: BTreeSet::new(),
            versions: [
                "v1",
                "admissionregistration.k8s.io/v1",
                "apiextensions.k8s.io/v1",
                "apps/v1",
                "authentication.k8s.io/v1",
                "authorization.k8s.io/v1",
                "autoscaling/v2",
                "batch/v1",
                "certificates.k8s.io/v1",
                "coordination.k8s.io/v1",
                "discovery.k8s.io/v1",
                "events.k8s.io/v1",
                "flowcontrol.apiserver.k8s.io/v1",
                "networking.k8s.io/v1",
                "policy/v1",
                "rbac.authorization.k8s.io/v1",
                "storage.k8s.io/v1",
            ]
            .map(str::to_owned)
            .into(),
        }),
        own_rights: vec![(
            Right {
                verb: "list".to_owned(),
                ..own()
            },
            Ok(true),
        )],
        rights: vec![
            (account(Source::Rbac), Ok(true)),
            (manager(Source::Default), Ok(true)),
            (manager(Source::Fence), Ok(true)),
            (manager(Source::Guard), Ok(true)),
        ],
        fleets: Ok(vec![fleet()]),
        guards: [
            (GUARD, guard("manifold:kube-system/manifold")),
            (GUARD_COMPANION, Ok(None)),
        ]
        .into(),
        orders: Ok(Some(Orders::default())),
        pods: Ok(vec![pod("m-0"), pod("m-1")]),
        stateful_set: Ok(Some(2)),
        flow_schema: Ok(true),
        lease_guard: LeaseGuard {
            policy: Ok(Some(Covered::Named(["kube-system".to_owned()].into()))),
            binding: Ok(Some(vec!["Deny".to_owned()])),
        },
        fence: Fence {
            kind: Ok(true),
            policy: Ok(Some("Ignore".to_owned())),
            binding: Ok(Some(vec!["Deny".to_owned()])),
        },
        cluster_pods: Ok(10_000),
        peer_files: Some(Ok(certificate(300))),
    }
}

/// The facts of a fleet that runs Deployments and Jobs beside kube-controller-manager.
fn mixed(kcm_args: &[&str]) -> Facts {
    let mut facts = healthy();
    facts.guards = [
        (GUARD, guard("host-a_1234")),
        (GUARD_COMPANION, guard("manifold:kube-system/manifold")),
    ]
    .into();
    facts.pods.as_mut().unwrap().push(kcm(kcm_args));
    for replica in own_fleet(&mut facts).replicas.iter_mut() {
        replica.said.status.fingerprints =
            "controllers=deployment-controller job-controller,root-ca=1".into();
    }
    facts
}

fn each_pod_has(facts: &mut Facts, arg: &str) {
    for pod in facts.pods.as_mut().unwrap() {
        pod.args.push(arg.to_owned());
    }
}

fn own_fleet(facts: &mut Facts) -> &mut Fleet {
    facts.fleets.as_mut().unwrap().first_mut().unwrap()
}

/// An order that drains a start of a replica.
fn drain(facts: &mut Facts, name: &str, incarnation: &str) {
    let order = Order {
        target: Target::Replica(name.to_owned()),
        incarnation: Some(incarnation.to_owned()),
        amount: None,
        to: None,
        home: None,
        since: now(),
        until: now() + SignedDuration::from_hours(1),
        reason: String::new(),
        by: "jo".to_owned(),
    };
    let orders = facts.orders.as_mut().unwrap().get_or_insert_default();
    orders.all.insert(order.target.field(), order);
}

/// An order that moves a range.
fn moved(facts: &mut Facts, to: &str) {
    let order = Order {
        target: Target::Range(3),
        incarnation: None,
        amount: None,
        to: Some(to.to_owned()),
        home: None,
        since: now(),
        until: now() + SignedDuration::from_hours(1),
        reason: String::new(),
        by: "jo".to_owned(),
    };
    let orders = facts.orders.as_mut().unwrap().get_or_insert_default();
    orders.all.insert(order.target.field(), order);
}

fn fingerprints(facts: &mut Facts, at: usize, text: &str) {
    own_fleet(facts).replicas[at].said.status.fingerprints = text.into();
}

/// Result and detail of one check.
fn of(facts: &Facts, id: &str) -> (&'static str, String, String) {
    let verdicts = checks::examine(facts);
    let verdict = verdicts
        .iter()
        .find(|verdict| verdict.check.id == id)
        .unwrap_or_else(|| panic!("no check {id}"));
    match &verdict.finding {
        Finding::Passed(more) => ("passed", more.clone(), String::new()),
        Finding::Warning { why, remedy } => ("warning", why.clone(), remedy.join("\n")),
        Finding::Failed { why, remedy } => ("failed", why.clone(), remedy.join("\n")),
        Finding::Skipped(why) => ("skipped", why.clone(), String::new()),
    }
}

#[test]
fn a_healthy_fleet_passes_every_check() {
    for facts in [
        healthy(),
        mixed(&[
            "--controllers=*,-deployment-controller,-job-controller",
            "--service-account-private-key-file=/sa.key",
        ]),
    ] {
        for verdict in checks::examine(&facts) {
            let id = verdict.check.id;
            let passed = matches!(verdict.finding, Finding::Passed(_));
            let skipped = id == "interlock/standbys" && facts.is_companion();
            assert!(passed || skipped, "{id}: {:?}", verdict.finding);
        }
    }
    let mut pre = healthy();
    pre.asked.pre = true;
    pre.fleets = Ok(Vec::new());
    pre.guards = [(GUARD, guard("host-a_1234"))].into();
    for verdict in checks::examine(&pre) {
        assert!(
            matches!(verdict.finding, Finding::Passed(_)),
            "{}: {:?}",
            verdict.check.id,
            verdict.finding
        );
        assert_ne!(verdict.check.when, When::Installed);
    }
}

/// What is broken, the check that finds it, its result, a part of the reason and of the remedy.
type Row = (
    fn(&mut Facts),
    &'static str,
    &'static str,
    &'static str,
    &'static str,
);

const ROWS: &[Row] = &[
    (
        |f| f.server = Err(Unusable::Unreachable("refused".into())),
        "kubernetes-api/reachable",
        "failed",
        "does not answer: refused",
        "kubectl config set-cluster kubernetes",
    ),
    (
        |f| f.server = Err(Unusable::Unauthenticated("401".into())),
        "kubernetes-api/reachable",
        "failed",
        "does not accept your credentials",
        "kubeadm certs renew admin.conf",
    ),
    (
        |f| f.server = Err(Unusable::Failing("500".into())),
        "kubernetes-api/reachable",
        "failed",
        "fails: 500",
        "readyz?verbose",
    ),
    (
        |f| f.server.as_mut().unwrap().minor = (1, 35),
        "kubernetes-api/version",
        "failed",
        "must not be newer",
        "kubeadm upgrade apply v1.36.0",
    ),
    (
        |f| f.server.as_mut().unwrap().minor = (1, 37),
        "kubernetes-api/version",
        "passed",
        "newer than",
        "",
    ),
    (
        |f| f.server.as_mut().unwrap().minor = (1, 38),
        "kubernetes-api/version",
        "failed",
        "more than one minor",
        "set image",
    ),
    (
        |f| {
            f.served.as_mut().unwrap().versions.remove("policy/v1");
        },
        "kubernetes-api/served",
        "failed",
        "policy/v1",
        "--runtime-config=policy/v1=true",
    ),
    (
        |f| f.own_rights[0].1 = Ok(false),
        "access/read",
        "warning",
        "kubernetes-admin may not list deployments.apps/status",
        "--clusterrole=manifold:doctor --user=kubernetes-admin",
    ),
    (
        |f| own_fleet(f).replicas[1].said.status.build = "0.2.0".into(),
        "versions/members",
        "warning",
        "0.1.0 at m-0; 0.2.0 at m-1",
        "rollout status",
    ),
    (
        |f| own_fleet(f).replicas[1].said.status.build = "0.3.0".into(),
        "versions/members",
        "failed",
        "hand nothing over",
        "set image",
    ),
    (
        |f| f.rights[1].1 = Ok(false),
        "rbac/manager",
        "failed",
        "system:kube-controller-manager may not patch deployments.apps/status",
        "restart kube-apiserver",
    ),
    (
        |f| f.rights[0].1 = Ok(false),
        "rbac/controllers",
        "failed",
        "kube-system:deployment-controller may not patch",
        "-k deploy/rbac",
    ),
    (
        |f| f.fleets = Ok(Vec::new()),
        "leases/fleet",
        "failed",
        "no replica Leases",
        "kubectl apply -k deploy/base",
    ),
    (
        |f| f.asked.namespace = Some("other".into()),
        "leases/fleet",
        "failed",
        "there are kube-system/manifold",
        "deploy/base",
    ),
    (
        |f| {
            own_fleet(f)
                .replicas
                .iter_mut()
                .for_each(|one| one.renewed = false);
        },
        "leases/fleet",
        "failed",
        "no replica of",
        "rollout restart",
    ),
    (
        |f| own_fleet(f).replicas[1].renewed = false,
        "leases/replicas",
        "failed",
        "m-1",
        "kubectl -n kube-system delete pod m-1",
    ),
    (
        |f| own_fleet(f).replicas[1].said.status.ready = false,
        "leases/replicas",
        "warning",
        "m-1 are not ready",
        "-k deploy/rbac",
    ),
    (
        |f| own_fleet(f).replicas[1].said.status.stale = true,
        "leases/replicas",
        "warning",
        "m-1 see changes late",
        "kubectl -n kube-system delete pod m-1",
    ),
    (
        |f| {
            own_fleet(f).replicas[1].said.status.stale = true;
            // Another start of it was.
            drain(f, "m-1", "older");
        },
        "leases/replicas",
        "warning",
        "m-1 see changes late and own nothing while others see more:",
        "kubectl -n kube-system delete pod m-1",
    ),
    (
        |f| f.orders = Ok(None),
        "steering/orders",
        "warning",
        "there is no ConfigMap kube-system/manifold-steering",
        "-k deploy/rbac",
    ),
    (
        |f| {
            let fields = [("pause.x".to_owned(), "{".to_owned())].into();
            f.orders = Ok(Some(Orders::read(&fields, &|name| Ok(name.to_owned()))));
        },
        "steering/orders",
        "warning",
        "1 fields of the ConfigMap kube-system/manifold-steering have no effect: pause.x: it is no order",
        "kubectl -n kube-system patch configmap manifold-steering --type=merge --patch='{\"data\":{\"pause.x\":null}}'",
    ),
    (
        |f| moved(f, "m-9"),
        "steering/orders",
        "warning",
        "moves have no effect, since no ready replica is called so: range 3 to m-9",
        "kubectl manifold unmove RANGE",
    ),
    (
        |f| own_fleet(f).ranges[3].holder = None,
        "leases/ranges",
        "failed",
        "without live owner: 3",
        "delete lease manifold-range-003",
    ),
    (
        |f| own_fleet(f).ranges[3].holder = Some(Holder::new("m-1", "older")),
        "leases/ranges",
        "failed",
        "without live owner: 3",
        "manifold-range-003",
    ),
    (
        |f| {
            own_fleet(f).ranges.remove(2);
        },
        "leases/ranges",
        "failed",
        "without Lease: 2",
        "rollout restart",
    ),
    (
        |f| own_fleet(f).replicas[1].said.status.ranges = 8,
        "leases/ranges",
        "failed",
        "different --ranges",
        "same --ranges",
    ),
    (
        |f| {
            f.fleets.as_mut().unwrap().push(Fleet {
                namespace: "two".into(),
                replicas: vec![replica("x-0")],
                ..fleet()
            });
        },
        "leases/one-fleet",
        "failed",
        "two/manifold works on the same objects",
        "kubectl -n two scale statefulset manifold --replicas=0",
    ),
    (
        |f| {
            f.fleets.as_mut().unwrap().push(Fleet {
                namespace: "two".into(),
                replicas: Vec::new(),
                ..fleet()
            });
        },
        "leases/one-fleet",
        "warning",
        "no live replica",
        "kubectl -n two delete lease -l manifold.dev/fleet=manifold",
    ),
    (
        |f| f.flow_schema = Ok(false),
        "leases/priority",
        "warning",
        "manifold-leases is missing",
        "-k deploy/rbac",
    ),
    (
        |f| own_fleet(f).replicas[0].said.status.unreachable = "m-1,gone".into(),
        "peers/reachable",
        "failed",
        "m-0 does not reach m-1:",
        "delete pod m-1",
    ),
    (
        |f| own_fleet(f).replicas[0].said.status.address = "m-1:10258".into(),
        "peers/addresses",
        "failed",
        "m-0 and m-1 all advertise m-1:10258",
        "--peer-advertise-address",
    ),
    (
        |f| f.server.as_mut().unwrap().clock_ahead = Some(SignedDuration::from_secs(-20)),
        "clocks/local",
        "warning",
        "20 s behind",
        "chronyc makestep",
    ),
    (
        |f| f.server.as_mut().unwrap().clock_ahead = Some(SignedDuration::from_secs(200)),
        "clocks/local",
        "failed",
        "200 s ahead of",
        "chronyc makestep",
    ),
    (
        |f| own_fleet(f).replicas[1].clocks = Some((now() + SignedDuration::from_secs(90), now())),
        "clocks/members",
        "warning",
        "m-1 90 s ahead",
        "chronyc makestep",
    ),
    (
        |f| {
            f.guards.insert(GUARD, guard("host-a_1234"));
        },
        "interlock/guard",
        "failed",
        "host-a_1234 holds",
        "kube-controller-manager.yaml",
    ),
    (
        |f| {
            f.guards.insert(GUARD, guard("manifold:two/manifold"));
        },
        "interlock/guard",
        "failed",
        "another fleet",
        "kubectl -n two scale",
    ),
    (
        |f| {
            f.guards.insert(GUARD, Ok(None));
        },
        "interlock/guard",
        "failed",
        "nobody holds",
        "--leader-elect=false",
    ),
    (
        |f| {
            f.guards
                .get_mut(GUARD)
                .unwrap()
                .as_mut()
                .unwrap()
                .as_mut()
                .unwrap()
                .fresh = false;
        },
        "interlock/guard",
        "failed",
        "or renews it",
        "-k deploy/rbac",
    ),
    (
        |f| {
            f.guards.insert(GUARD, Ok(None));
            each_pod_has(f, "--leader-elect=false");
        },
        "interlock/guard",
        "warning",
        "nobody holds",
        "--leader-elect=false",
    ),
    (
        |f| {
            f.guards.insert(GUARD, Ok(None));
            f.pods.as_mut().unwrap()[0].args = vec!["--leader-elect=false".to_owned()];
        },
        "interlock/guard",
        "failed",
        "nobody holds",
        "--leader-elect=false",
    ),
    (
        |f| {
            f.guards.insert(GUARD, Ok(None));
            each_pod_has(f, "--config=/etc/manifold/manifold.yaml");
        },
        "interlock/guard",
        "warning",
        "has its settings from a file (--config)",
        "/configz",
    ),
    (
        |f| {
            f.guards.insert(GUARD, Ok(None));
            each_pod_has(f, "--leader-elect-resource-name=fleet-one");
        },
        "interlock/guard",
        "warning",
        "holds kube-system/fleet-one and nobody kube-system/kube-controller-manager",
        "manifold companion",
    ),
    (
        |f| f.lease_guard.policy = Ok(None),
        "leases/guard",
        "warning",
        "manifold-guard is missing",
        "-k deploy/rbac",
    ),
    (
        |f| f.lease_guard.binding = Ok(Some(vec!["Audit".into()])),
        "leases/guard",
        "warning",
        "denies anything in kube-system",
        "-k deploy/rbac",
    ),
    (
        |f| f.lease_guard.policy = Ok(Some(Covered::Named(["elsewhere".to_owned()].into()))),
        "leases/guard",
        "warning",
        "does not name kube-system",
        r#"[{"op":"add","path":"/spec/matchConstraints/namespaceSelector/matchExpressions/0/values/-","value":"kube-system"}]"#,
    ),
    (
        |f| f.lease_guard.policy = Ok(Some(Covered::All)),
        "leases/guard",
        "passed",
        "",
        "",
    ),
    (
        |f| f.rights[3].1 = Ok(false),
        "leases/guard-rights",
        "failed",
        "system:kube-controller-manager may not patch",
        "-k deploy/rbac",
    ),
    (
        |f| {
            f.lease_guard.policy = Ok(None);
            f.rights[3].1 = Ok(false);
        },
        "leases/guard-rights",
        "skipped",
        "no policy asks",
        "",
    ),
    (
        |f| f.rights[3].1 = Ok(false),
        "rbac/manager",
        "passed",
        "",
        "",
    ),
    (
        |f| f.pods.as_mut().unwrap().push(kcm(&[])),
        "interlock/standbys",
        "warning",
        "would take over",
        "kube-controller-manager.yaml",
    ),
    (
        |f| fingerprints(f, 1, "controllers=ttl-controller,root-ca=1"),
        "coverage/agree",
        "failed",
        "ttl-controller at m-1",
        "rollout restart",
    ),
    (
        |f| {
            (0..2).for_each(|at| {
                fingerprints(
                    f,
                    at,
                    "controllers=* serviceaccount-token-controller -ttl-controller,root-ca=1",
                );
            });
        },
        "coverage/complete",
        "warning",
        "no manager runs ttl-controller",
        "--controllers=*",
    ),
    (
        |f| (0..2).for_each(|at| fingerprints(f, at, "controllers=*,root-ca=1")),
        "coverage/complete",
        "warning",
        "serviceaccount-token-controller",
        "--service-account-private-key-file",
    ),
    (
        |f| {
            f.fence.kind = Ok(false);
        },
        "fence/kind",
        "failed",
        "fences.manifold.dev",
        "-k deploy/fence",
    ),
    (
        |f| {
            f.fence.policy = Ok(None);
        },
        "fence/policy",
        "failed",
        "is missing",
        "-k deploy/fence",
    ),
    (
        |f| {
            f.fence.policy = Ok(Some("Fail".into()));
        },
        "fence/policy",
        "failed",
        "failurePolicy Fail",
        "-k deploy/fence",
    ),
    (
        |f| {
            f.fence = Fence {
                kind: Ok(false),
                policy: Ok(None),
                binding: Ok(None),
            }
        },
        "fence/policy",
        "warning",
        "not installed",
        "-k deploy/fence",
    ),
    (
        |f| {
            f.fence = Fence {
                kind: Ok(false),
                policy: Ok(None),
                binding: Ok(None),
            }
        },
        "fence/members",
        "skipped",
        "not installed",
        "",
    ),
    (
        |f| {
            f.fence.binding = Ok(None);
        },
        "fence/binding",
        "failed",
        "is missing",
        "-k deploy/fence",
    ),
    (
        |f| {
            f.fence.binding = Ok(Some(vec!["Audit".into()]));
        },
        "fence/binding",
        "failed",
        "without Deny",
        "-k deploy/fence",
    ),
    (
        |f| f.rights[2].1 = Ok(false),
        "fence/rights",
        "failed",
        "may not patch",
        "-k deploy/fence",
    ),
    (
        |f| own_fleet(f).replicas[0].said.status.server_fenced = false,
        "fence/members",
        "failed",
        "m-0 write without",
        "--use-service-account-credentials=true",
    ),
    (
        |f| f.credentials.client = Some(Ok(certificate(-1))),
        "certificates/client",
        "failed",
        "expired",
        "kubeadm certs renew admin.conf",
    ),
    (
        |f| f.credentials.client = Some(Ok(certificate(10))),
        "certificates/client",
        "warning",
        "in 10 days",
        "kubeadm certs renew admin.conf",
    ),
    (
        |f| f.credentials.client = None,
        "certificates/client",
        "skipped",
        "no client certificate",
        "",
    ),
    (
        |f| f.server = Err(Unusable::Untrusted("UnknownIssuer".into())),
        "certificates/authority",
        "failed",
        "UnknownIssuer",
        "--certificate-authority=",
    ),
    (
        |f| f.credentials.insecure = true,
        "certificates/authority",
        "warning",
        "insecure-skip-tls-verify",
        "--certificate-authority=",
    ),
    (
        |f| f.credentials.authorities = vec![Ok(certificate(-1))],
        "certificates/authority",
        "failed",
        "expired",
        "--certificate-authority=",
    ),
    (
        |f| f.credentials.authorities.push(Ok(certificate(-1))),
        "certificates/authority",
        "passed",
        "",
        "",
    ),
    (
        |f| f.peer_files = Some(Err("not signed".into())),
        "certificates/peers",
        "failed",
        "not signed",
        "deploy/README.md",
    ),
    (
        |f| f.peer_files = Some(Ok(certificate(5))),
        "certificates/peers",
        "warning",
        "in 5 days",
        "deploy/README.md",
    ),
    (
        |f| {
            fingerprints(
                f,
                1,
                "controllers=* serviceaccount-token-controller,root-ca=2",
            );
        },
        "certificates/agree",
        "failed",
        "root-ca: 1 at m-0; 2 at m-1",
        "rollout restart",
    ),
    (
        |f| f.stateful_set = Ok(Some(3)),
        "capacity/members",
        "failed",
        "2 of 3 members work",
        "describe pods",
    ),
    (
        |f| f.asked.expected = Some(4),
        "capacity/members",
        "failed",
        "2 of 4",
        "describe pods",
    ),
    (
        |f| {
            f.stateful_set = Ok(None);
            own_fleet(f).replicas.truncate(1);
        },
        "capacity/members",
        "warning",
        "one member",
        "--replicas=3",
    ),
    (
        |f| f.cluster_pods = Ok(200_000),
        "capacity/memory",
        "failed",
        "the limit of kube-system/m-0 is 256 MiB",
        "set resources statefulset manifold --limits=memory=",
    ),
    (
        |f| f.cluster_pods = Ok(41_000),
        "capacity/memory",
        "warning",
        "the limit of",
        "--limits=memory=",
    ),
    (
        |f| {
            f.pods
                .as_mut()
                .unwrap()
                .iter_mut()
                .for_each(|pod| pod.memory_limit = None);
        },
        "capacity/memory",
        "passed",
        "no limit",
        "",
    ),
];

#[test]
fn each_check_finds_what_it_is_for_and_names_what_repairs_it() {
    for (at, (breaks, id, result, why, remedy)) in ROWS.iter().enumerate() {
        let mut facts = healthy();
        breaks(&mut facts);
        let (found, detail, command) = of(&facts, id);
        assert_eq!(found, *result, "row {at}, {id}: {detail}");
        assert!(
            detail.contains(why),
            "row {at}, {id}: {detail:?} has no {why:?}"
        );
        assert!(
            command.contains(remedy),
            "row {at}, {id}: {command:?} has no {remedy:?}"
        );
    }
    // Every check that may fail has a row.
    let mixed = ["coverage/disjoint", "access/install"];
    for check in CHECKS.iter().filter(|check| !mixed.contains(&check.id)) {
        assert!(
            ROWS.iter()
                .any(|row| row.1 == check.id && row.2 != "passed"),
            "{} has no row",
            check.id
        );
    }
}

#[test]
fn beside_upstreams_manager_both_lists_are_compared() {
    const KEY: &str = "--service-account-private-key-file=/sa.key";
    let table: [(&[&str], &str, &str, &str); 6] = [
        (
            &["--controllers=*,-deployment,-job", KEY],
            "passed",
            "passed",
            "",
        ),
        (
            &["--controllers=*,-deployment", KEY],
            "passed",
            "failed",
            "job-controller",
        ),
        (
            &["kube-controller-manager", "--controllers", "*", KEY],
            "passed",
            "failed",
            "deployment-controller, job-controller",
        ),
        (&["--controllers=ttl", KEY], "passed", "passed", ""),
        (
            &["--controllers=bootstrapsigner", KEY],
            "failed",
            "passed",
            "",
        ),
        (
            &["--controllers=*,-unknown"],
            "warning",
            "warning",
            "does not know",
        ),
    ];
    for (args, complete, disjoint, why) in table {
        let facts = mixed(args);
        assert_eq!(of(&facts, "coverage/complete").0, complete, "{args:?}");
        let (found, detail, remedy) = of(&facts, "coverage/disjoint");
        assert_eq!(found, disjoint, "{args:?}: {detail}");
        assert!(detail.contains(why), "{detail}");
        if disjoint == "failed" {
            assert!(
                remedy.contains(
                    "manifold companion --controllers='deployment-controller,job-controller'"
                ),
                "{remedy}"
            );
        }
        assert_eq!(of(&facts, "interlock/guard").0, "passed");
    }
    // Its pods are not to be seen: what the command line says counts.
    let mut facts = mixed(&[]);
    facts.pods.as_mut().unwrap().pop();
    assert_eq!(of(&facts, "coverage/disjoint").0, "warning");
    facts.asked.kcm_controllers = Some(vec![
        "*".to_owned(),
        "-deployment".to_owned(),
        "-job".to_owned(),
    ]);
    assert_eq!(of(&facts, "coverage/disjoint").0, "passed");
    assert_eq!(of(&facts, "coverage/complete"), ("warning", "no manager runs serviceaccount-token-controller: it runs where --service-account-private-key-file is given; without it Secrets of service accounts get no tokens".to_owned(), "# give --service-account-private-key-file to every replica, or to kube-controller-manager".to_owned()));
}

#[test]
fn before_the_installation_rights_and_leftovers_are_examined() {
    let mut facts = healthy();
    facts.asked.pre = true;
    facts.own_rights = vec![(
        Right {
            verb: "create".to_owned(),
            ..own()
        },
        Ok(false),
    )];
    let (result, why, remedy) = of(&facts, "access/install");
    assert_eq!(result, "failed");
    assert!(why.contains("may not create"), "{why}");
    assert!(remedy.contains("--clusterrole=cluster-admin"), "{remedy}");
    assert_eq!(of(&facts, "leases/one-fleet").0, "warning");
}

#[test]
fn without_the_server_only_it_and_the_credentials_are_examined() {
    let mut facts = healthy();
    facts.server = Err(Unusable::Unreachable("refused".to_owned()));
    for verdict in checks::examine(&facts) {
        let id = verdict.check.id;
        let examined = id.starts_with("certificates/") || id == "kubernetes-api/reachable";
        let skipped = matches!(verdict.finding, Finding::Skipped(_));
        assert_eq!(skipped, !examined, "{id}: {:?}", verdict.finding);
    }
}

#[test]
fn what_may_not_be_read_is_skipped_and_what_fails_is_warned_of() {
    let mut facts = healthy();
    facts.flow_schema = Err(Unknown {
        why: "forbidden".to_owned(),
        forbidden: true,
    });
    assert_eq!(of(&facts, "leases/priority").0, "skipped");
    facts.flow_schema = Err(Unknown {
        why: "slow".to_owned(),
        forbidden: false,
    });
    assert_eq!(of(&facts, "leases/priority").0, "warning");
}

#[test]
fn ids_are_unique_and_every_failure_has_a_command() {
    let ids: BTreeSet<&str> = CHECKS.iter().map(|check| check.id).collect();
    assert_eq!(ids.len(), CHECKS.len());
    for (breaks, id, ..) in ROWS {
        let mut facts = healthy();
        breaks(&mut facts);
        for verdict in checks::examine(&facts) {
            if let Finding::Failed { remedy, .. } = &verdict.finding {
                assert!(
                    !remedy.is_empty(),
                    "{id}: {} fails without a command",
                    verdict.check.id
                );
            }
        }
    }
}

#[test]
fn the_text_has_a_line_for_each_check_and_the_command_below_what_fails() {
    let mut facts = healthy();
    facts.flow_schema = Ok(false);
    own_fleet(&mut facts).replicas[1].renewed = false;
    let verdicts = checks::examine(&facts);
    let text = report::text(&verdicts);
    let expected = "× every replica Lease that is held is renewed\n    leases/replicas: not renewed for a whole lease duration: m-1\n    repair: kubectl -n kube-system delete pod m-1\n";
    assert!(text.contains(expected), "{text}");
    assert!(text.starts_with("kubernetes-api\n--------------\n√ the API server answers (https://10.0.0.1:6443, v1.36.3, as kubernetes-admin)\n"), "{text}");
    let summary = Summary::of(&verdicts);
    assert!(summary.failed >= 1 && summary.warnings >= 1);
    assert!(
        text.trim_end().lines().last().unwrap().starts_with("× "),
        "{text}"
    );
}

#[test]
fn the_json_report_has_the_fields_that_are_documented() {
    let facts = healthy();
    let value = report::json(&facts, &checks::examine(&facts));
    let fields: Vec<&String> = value.as_object().unwrap().keys().collect();
    let documented = [
        "checks", "fleet", "pre", "schema", "server", "summary", "time", "version",
    ];
    assert_eq!(fields, documented);
    assert_eq!(value["schema"], "manifold.dev/doctor/v1");
    assert_eq!(value["fleet"]["members"][1], "m-1");
    let check = value["checks"][0].as_object().unwrap();
    let fields: Vec<&String> = check.keys().collect();
    assert_eq!(
        fields,
        ["category", "detail", "id", "remedy", "result", "title"]
    );
    let page = include_str!("../../docs/doctor.md");
    for check in CHECKS {
        assert!(
            page.contains(&format!("| `{}` |", check.id)),
            "docs/doctor.md lacks {}",
            check.id
        );
    }
    for field in documented
        .iter()
        .chain(&["category", "detail", "id", "remedy", "result", "title"])
    {
        assert!(
            page.contains(&format!("`{field}`")),
            "docs/doctor.md lacks {field}"
        );
    }
}

fn list(text: &str) -> Vec<String> {
    text.split(',').map(str::to_owned).collect()
}

#[test]
fn upstreams_manager_keeps_what_the_fleet_does_not_run() {
    let all = descriptors();
    let kubeadm = "--controllers=*,bootstrap-signer-controller,token-cleaner-controller";
    let table: [(&str, Option<&str>, &str); 5] = [
        (
            "deployment,job",
            None,
            &format!("{kubeadm},-deployment-controller,-job-controller"),
        ),
        (
            "*,-ttl",
            None,
            "--controllers=*,bootstrap-signer-controller,token-cleaner-controller,-deployment-controller,-job-controller,-service-lb-controller",
        ),
        (
            "*,bootstrapsigner,tokencleaner,-ttl",
            None,
            "--controllers=*,-deployment-controller,-job-controller,-service-lb-controller",
        ),
        (
            "deployment",
            Some("*"),
            "--controllers=*,-deployment-controller",
        ),
        (
            "deployment",
            Some("job,ttl"),
            "--controllers=job-controller,ttl-controller",
        ),
    ];
    for (ours, theirs, expected) in table {
        let theirs = theirs.map(list);
        let division = divide(&list(ours), theirs.as_deref(), &all).unwrap();
        assert_eq!(division.kcm.args, [expected], "{ours}");
        // The lists select what they say, and nothing twice.
        let read = |args: &[String]| {
            let text = args[0].strip_prefix("--controllers=").unwrap().to_owned();
            Selection::of(text.split(','), &all).unwrap().names(&all)
        };
        let (fleet, kept) = (read(&division.manifold.args), read(&division.kcm.args));
        assert!(fleet.is_disjoint(&kept), "{ours}: {fleet:?} {kept:?}");
        assert!(
            division
                .manifold
                .args
                .contains(&"--leader-elect-resource-name=manifold-companion".to_owned())
        );
        assert!(
            division
                .manifold
                .args
                .contains(&"--service-account-private-key-file=".to_owned())
        );
    }
    // The controller of tokens goes with the key.
    let division = divide(&list("deployment,serviceaccount-token"), None, &all).unwrap();
    assert_eq!(division.kcm.args[1], "--service-account-private-key-file=");
    assert_eq!(division.manifold.args.len(), 2);
    // What both take out is named.
    let division = divide(&list("deployment"), Some(&list("*,-ttl")), &all).unwrap();
    assert_eq!(division.unassigned, ["ttl-controller"]);
}

#[test]
fn lists_that_contradict_each_other_are_refused_with_the_remedy() {
    let all = descriptors();
    let table: [(&str, Option<&str>, &str); 7] = [
        (
            "deployment",
            Some("*,deployment-controller"),
            "both lists name deployment-controller: two managers would write its objects; take deployment-controller out of --controllers",
        ),
        (
            "*,-ttl",
            Some("job"),
            "--kcm-controllers names job-controller, which `*` in --controllers gives to Manifold too: two managers would write its objects; add -job-controller",
        ),
        (
            "deploymnt",
            None,
            "--controllers names no known controller: \"deploymnt\" (did you mean deployment?)",
        ),
        (
            "deployment",
            Some("*,-zzz"),
            "--kcm-controllers names no known controller: \"zzz\"; manifold --help",
        ),
        (
            "*",
            Some("*"),
            "leaves kube-controller-manager nothing: stop kube-controller-manager instead",
        ),
        ("-ttl", None, "gives Manifold nothing to run"),
        ("", None, "gives Manifold nothing to run"),
    ];
    for (ours, theirs, expected) in table {
        let theirs = theirs.map(list);
        let error = divide(&list(ours), theirs.as_deref(), &all).unwrap_err();
        assert!(error.contains(expected), "{ours}: {error}");
        assert!(!error.contains('\n'));
    }
}

#[test]
fn a_division_is_printed_in_three_forms() {
    let all = descriptors();
    let division = divide(&list("deployment,serviceaccount-token"), None, &all).unwrap();
    assert_eq!(
        division.print(Form::Flags),
        "--controllers=*,bootstrap-signer-controller,token-cleaner-controller,-deployment-controller\n--service-account-private-key-file=\n"
    );
    let kubeadm: serde_json::Value = serde_yaml::from_str(&division.print(Form::Kubeadm)).unwrap();
    assert_eq!(kubeadm["apiVersion"], "kubeadm.k8s.io/v1beta4");
    let args = kubeadm["controllerManager"]["extraArgs"]
        .as_array()
        .unwrap();
    assert_eq!(args[0]["name"], "controllers");
    assert_eq!(
        args[0]["value"],
        "*,bootstrap-signer-controller,token-cleaner-controller,-deployment-controller"
    );
    assert_eq!(args[1]["value"], "");
    let json: serde_json::Value = serde_json::from_str(&division.print(Form::Json)).unwrap();
    assert_eq!(json["schema"], "manifold.dev/companion/v1");
    assert_eq!(
        json["manifold"]["controllers"][1],
        "serviceaccount-token-controller"
    );
    assert_eq!(json["kcm"]["controllers"][1], "job-controller");
    assert_eq!(
        division.notes(),
        [
            "start Manifold with --controllers=deployment-controller,serviceaccount-token-controller --leader-elect-resource-name=manifold-companion"
        ]
    );
}

#[test]
fn a_drained_replica_is_no_stale_one() {
    let mut facts = healthy();
    own_fleet(&mut facts).replicas[1].said.status.stale = true;
    drain(&mut facts, "m-1", "i");
    let (result, why, _) = of(&facts, "leases/replicas");
    assert_eq!(
        (result, &*why),
        ("passed", "2 members, of them drained: m-1")
    );
    let (result, why, _) = of(&facts, "steering/orders");
    assert_eq!(
        (result, &*why),
        ("passed", "m-1 drained until 2026-11-25T13:00:00Z")
    );
    moved(&mut facts, "m-0");
    let (result, why, _) = of(&facts, "steering/orders");
    assert_eq!(result, "passed", "{why}");
    assert!(why.contains("range 3 moved to m-0 until"), "{why}");
    facts.orders = Err(Unknown {
        why: "forbidden".to_owned(),
        forbidden: true,
    });
    let (result, why, _) = of(&facts, "leases/replicas");
    assert_eq!(result, "warning");
    assert!(why.contains("or were drained"), "{why}");
}

#[test]
fn rights_are_every_verb_that_running_controllers_declare() {
    let all = descriptors();
    let running: BTreeSet<&str> = ["deployment-controller"].into();
    let controllers = rights::of_controllers(&all, &running);
    let shown: BTreeMap<String, Source> = controllers
        .iter()
        .map(|right| (right.show(), right.source))
        .collect();
    let expected = [
        ("get deployments.apps", Source::Default),
        ("patch deployments.apps", Source::Rbac),
        ("patch deployments.apps/status", Source::Rbac),
        ("update deployments.apps", Source::Default),
    ];
    assert_eq!(
        shown,
        expected
            .map(|(text, source)| (text.to_owned(), source))
            .into()
    );
    let who = Who::User("system:kube-controller-manager".to_owned());
    let manager: BTreeSet<String> = rights::of_manager(&who, ("fleets", "own"), &all, &running)
        .iter()
        .map(Right::show)
        .collect();
    for text in [
        "list deployments.apps",
        "watch deployments.apps",
        "delete leases.coordination.k8s.io in fleets",
        "delete fleetleases.manifold.dev in fleets",
        "list configmaps \"own-steering\" in fleets",
        "watch configmaps \"own-steering\" in fleets",
        "patch configmaps \"own-steering\" in fleets",
        "create leases.coordination.k8s.io in kube-system",
        "create serviceaccounts/token",
        "update leases.coordination.k8s.io \"kube-controller-manager\" in kube-system",
    ] {
        assert!(manager.contains(text), "{text} not in {manager:?}");
    }
    assert!(
        !manager.iter().any(|text| text.contains("jobs")),
        "{manager:?}"
    );
    let fence: BTreeSet<String> = rights::of_fence(&who, &all, &running)
        .iter()
        .map(Right::show)
        .collect();
    assert!(
        fence.contains("impersonate serviceaccounts \"deployment-controller\" in kube-system"),
        "{fence:?}"
    );
    assert!(
        fence.contains("impersonate userextras.authentication.k8s.io/manifold.dev/incarnation"),
        "{fence:?}"
    );
}

#[test]
fn a_peers_certificate_must_fit_its_key_and_authority() {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let authority = |name: &str| {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        (certificate.pem(), Issuer::new(params, key))
    };
    let ((ours, issuer), (others, _)) = (authority("ours"), authority("others"));
    let key = KeyPair::generate().unwrap();
    let other_key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(["m-0".to_owned()])
        .unwrap()
        .signed_by(&key, &issuer)
        .unwrap();
    let files = |key: &str, authority: &str| PeerFiles {
        certificate: write("tls.crt", &leaf.pem()),
        key: write("tls.key", key),
        authority: write("ca.crt", authority),
    };
    assert!(certificates::of_peer(&files(&key.serialize_pem(), &ours)).is_ok());
    let wrong = certificates::of_peer(&files(&other_key.serialize_pem(), &ours)).unwrap_err();
    assert!(wrong.contains("is not that of the certificate"), "{wrong}");
    let wrong = certificates::of_peer(&files(&key.serialize_pem(), &others)).unwrap_err();
    assert!(wrong.contains("is not signed by an authority"), "{wrong}");
    let wrong = certificates::of_peer(&files("nothing", &ours)).unwrap_err();
    assert!(wrong.contains("holds no key"), "{wrong}");
    let missing = PeerFiles {
        certificate: "/nowhere/tls.crt".to_owned(),
        ..files("", "")
    };
    assert!(
        certificates::of_peer(&missing)
            .unwrap_err()
            .contains("--peer-tls-cert-file /nowhere/tls.crt")
    );
}
