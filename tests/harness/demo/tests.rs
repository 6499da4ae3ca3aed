//! The demo's parts: what it refuses, what it counts, what it shows.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use harness::{ControlPlane, run_test, until};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::Api;
use kube::api::{ListParams, PostParams};
use serde_json::json;

use crate::Args;
use crate::cluster::{Cluster, FLEET_NAMESPACE, Held, held};
use crate::summary::{Event, Summary, TAKEOVER_LIMIT};
use crate::view::{Figures, Pods, Row, State, frame, status_line};
use crate::workload::Workload;

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

#[test]
fn arguments_have_defaults_and_bounds() {
    let args = Args::try_parse_from(["demo"]).unwrap();
    assert_eq!(
        (args.replicas, args.deployments, args.pods, args.keep),
        (3, 20, 10, false)
    );
    for (bad, named) in [
        (&["--replicas", "1"][..], "--replicas"),
        (&["--replicas", "many"], "--replicas"),
        (&["--deployments", "0"], "--deployments"),
        (&["--pods", "-1"], "-1"),
        (&["--kubeconfig"], "--kubeconfig"),
        (&["--replica", "3"], "--replicas"),
    ] {
        let error = Args::try_parse_from([&["demo"], bad].concat())
            .unwrap_err()
            .to_string();
        assert!(error.contains(named), "{bad:?}: {error}");
    }
}

#[tokio::test]
async fn a_kubeconfig_that_is_not_there_is_named() {
    let error = Cluster::existing("no/such/file".as_ref())
        .await
        .err()
        .unwrap();
    assert!(format!("{error:#}").contains("no/such/file"), "{error:#}");
}

#[test]
fn a_lease_is_read_against_a_clock_that_may_be_wrong() {
    let lease = |spec: serde_json::Value| -> Lease {
        serde_json::from_value(json!({"spec": spec})).unwrap()
    };
    let now: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
    let of = |holder: &str, renewed: &str| {
        lease(json!({"holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": 15}))
    };
    let fifteen = SignedDuration::from_secs(15);
    let cases = [
        (of("a", "2026-01-01T00:00:50.000000Z"), Held::By("a".into())),
        (of("a", "2026-01-01T00:00:45.000000Z"), Held::By("a".into())),
        (of("a", "2026-01-01T00:05:00.000000Z"), Held::By("a".into())),
        (
            of("a", "2026-01-01T00:00:44.000000Z"),
            Held::Perhaps("a".into(), fifteen),
        ),
        (of("", "2026-01-01T00:00:59.000000Z"), Held::No),
        (lease(json!({})), Held::No),
    ];
    for (lease, expected) in cases {
        assert_eq!(held(&lease, now), expected, "{lease:?}");
    }
}

/// Upstream's own manager on a real control plane, with a lease short enough for a test.
#[test]
fn a_cluster_is_refused_while_kube_controller_manager_works_in_it() {
    run_test(is_refused_beside_kcm());
}

async fn is_refused_beside_kcm() -> Result<()> {
    let control_plane = ControlPlane::builder().nodes(1).start().await?;
    let kubeconfig = control_plane.admin_kubeconfig();
    assert!(
        matches!(
            Cluster::existing(kubeconfig).await?,
            Cluster::Existing { .. }
        ),
        "nobody is there yet"
    );

    let flags = [
        "--leader-elect-lease-duration=3s",
        "--leader-elect-renew-deadline=2s",
        "--leader-elect-retry-period=500ms",
    ];
    let mut kcm = control_plane.start_kcm(&flags).await?;
    let refused = until("it holds its Lease", ms(20_000), ms(100), || async {
        Ok(Cluster::existing(kubeconfig).await.err())
    })
    .await?;
    let line = format!("{refused:#}");
    assert!(!line.contains('\n'), "one line: {line}");
    for part in [
        "holds the Lease kube-system/kube-controller-manager",
        "stop it first",
    ] {
        assert!(line.contains(part), "{line}");
    }
    let metrics = kcm.metrics().await?;
    assert_eq!(metrics.sum("leader_election_master_status", &[]), Some(1.0));
    assert!(
        metrics
            .sum("process_cpu_seconds_total", &[])
            .context("its CPU time")?
            > 0.0
    );

    // Killed, it leaves the Lease in its name; once nobody renews it, the cluster is free.
    kcm.process().kill();
    let free = until("the Lease has run out", ms(30_000), ms(500), || async {
        Ok(Some(Cluster::existing(kubeconfig).await?))
    });
    free.await?;

    // A cluster that stays is left as it was found, but for namespaces that only their controller ends.
    let client = control_plane.client().await?;
    let workload = Workload {
        id: "demo-test".to_owned(),
        deployments: 4,
        pods: 2,
        probes: 2,
    };
    workload.create_namespaces(&client).await?;
    workload.create_probes(&client).await?;
    workload.create_deployments(&client).await?;
    let deployments: Api<Deployment> = Api::all(client.clone());
    let count = |labels: String| {
        let params = ListParams::default().labels(&labels);
        let deployments = deployments.clone();
        async move { anyhow::Ok(deployments.list(&params).await?.items.len()) }
    };
    assert_eq!(count(workload.selector()).await?, 4);
    assert_eq!(count(workload.probe_selector()).await?, 2);
    let probes = Api::namespaced(client.clone(), &workload.probe_namespace());
    assert_eq!(
        Workload::touch_probe(&probes, 1, true).await?,
        2,
        "a touch is a new generation"
    );
    assert_eq!(Workload::touch_probe(&probes, 1, false).await?, 3);
    assert_eq!(workload.roll_out(&client, 3).await?, 2);
    assert!(
        !workload.is_rolled_out(&client, 3, 2).await?,
        "nobody works here"
    );

    let leases: Api<Lease> = Api::namespaced(client.clone(), FLEET_NAMESPACE);
    let replica: Lease = serde_json::from_value(json!({
        "metadata": {"name": "manifold-replica-a", "labels": {"manifold.dev/fleet": "manifold"}},
        "spec": {
            "holderIdentity": "a_1",
            "renewTime": MicroTime(Timestamp::now()),
            "leaseDurationSeconds": 3600,
        },
    }))?;
    leases.create(&PostParams::default(), &replica).await?;
    let refused = Cluster::existing(kubeconfig)
        .await
        .err()
        .context("a fleet is at work")?;
    assert!(
        refused
            .to_string()
            .contains("a_1 of Manifold holds the Lease manifold-system/manifold-replica-a")
    );

    workload.remove(&client).await?;
    assert!(
        leases.get_opt("manifold-replica-a").await?.is_none(),
        "Leases go too"
    );
    assert_eq!(
        count(workload.selector()).await? + count(workload.probe_selector()).await?,
        0
    );
    Ok(())
}

fn rows() -> Vec<Row> {
    let figures = Figures {
        ranges: 128,
        keys: 1234,
        reconciles_per_second: 56.78,
        queued: 9,
    };
    vec![
        Row {
            name: "manifold-0".into(),
            state: State::Killed,
            figures: None,
        },
        Row {
            name: "manifold-1".into(),
            state: State::Ready,
            figures: Some(figures),
        },
    ]
}

#[test]
fn the_picture_is_a_table_whose_columns_stand_below_each_other() {
    let pods = Pods {
        wanted: 200,
        created: 198,
        ready: 150,
    };
    let picture = frame(
        "SIGKILL manifold-0",
        Duration::from_millis(12_345),
        &rows(),
        pods,
    );
    let expected = [
        " 12.3 s  SIGKILL manifold-0",
        "replica     state     ranges    keys  reconciles/s  queued",
        "manifold-0  killed         -       -             -       -",
        "manifold-1  ready        128    1234          56.8       9",
        "pods  wanted 200  created 198  ready 150",
    ];
    assert_eq!(picture, expected);
    assert_eq!(
        status_line(&rows(), pods),
        "pods 200 wanted 198 created 150 ready; manifold-0 killed; \
         manifold-1 128 ranges 1234 keys 56.8/s 9 queued"
    );
}

#[test]
fn the_summary_fails_for_each_thing_that_must_hold() {
    let event = Event {
        name: "SIGKILL manifold-0".into(),
        moved: 64,
        settled: ms(5_600),
        longest: ms(5_432),
        limit: Some(TAKEOVER_LIMIT),
    };
    let good = Summary {
        pods: Pods {
            wanted: 200,
            created: 200,
            ready: 200,
        },
        ever_created: 210,
        beyond_wanted: 0,
        events: vec![event.clone()],
        writes: BTreeMap::from([("manifold-1".to_owned(), 77)]),
        writes_from: "from the audit log",
        granted: Some(210),
        breaches: Vec::new(),
        probes: (64, 64),
    };
    assert_eq!(good.failures(), Vec::<String>::new());
    let text = good.lines().join("\n");
    for part in [
        "200 wanted, 200 ready; 210 ever created, 0 beyond what was wanted",
        "SIGKILL manifold-0                            64          5.6 s                     5.43 s",
        "manifold-1                                    77",
    ] {
        assert!(text.contains(part), "{part}\nnot in\n{text}");
    }

    let slow = Event {
        longest: ms(7_001),
        ..event
    };
    let breaches = [
        (
            Summary {
                pods: Pods {
                    wanted: 200,
                    created: 200,
                    ready: 199,
                },
                ..good.clone()
            },
            "199 pods are ready",
        ),
        (
            Summary {
                pods: Pods {
                    wanted: 200,
                    created: 201,
                    ready: 200,
                },
                ..good.clone()
            },
            "201 pods are there",
        ),
        (
            Summary {
                beyond_wanted: 1,
                ..good.clone()
            },
            "1 pods were created beyond",
        ),
        (
            Summary {
                granted: Some(211),
                ..good.clone()
            },
            "211 granted pod creations",
        ),
        (
            Summary {
                probes: (64, 63),
                ..good.clone()
            },
            "63 of 64 probes",
        ),
        (
            Summary {
                breaches: vec!["two owners".into()],
                ..good.clone()
            },
            "audit log: two owners",
        ),
        (
            Summary {
                events: vec![slow],
                ..good
            },
            "a key waited 7.00 s, at most 7 s",
        ),
    ];
    for (summary, expected) in breaches {
        let failures = summary.failures();
        assert!(
            failures.len() == 1 && failures[0].contains(expected),
            "{expected}: {failures:?}"
        );
    }
}
