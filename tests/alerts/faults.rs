//! What happens to a fleet, and which alert is its own. Everything else must stay silent.

use super::cluster::{Cluster, RANGES, Target};

/// Minutes of the run in which something is wrong, unless a row says otherwise.
const FROM: f64 = 30.0;
const TO: f64 = 60.0;

const ERRORS: &str =
    r#"manifold_reconciles_total{controller="deployment-controller",result="error"}"#;
const SUCCESSES: &str =
    r#"manifold_reconciles_total{controller="deployment-controller",result="success"}"#;
const JOB_ERRORS: &str = r#"manifold_reconciles_total{controller="job-controller",result="error"}"#;
const JOB_SUCCESSES: &str =
    r#"manifold_reconciles_total{controller="job-controller",result="success"}"#;
const NO_ANSWER: &str =
    r#"rest_client_requests_total{code="<error>",host="10.96.0.1:443",method="GET"}"#;
const FAILED: &str = r#"rest_client_requests_total{code="500",host="10.96.0.1:443",method="POST"}"#;
const THROTTLED: &str =
    r#"rest_client_requests_total{code="429",host="10.96.0.1:443",method="PATCH"}"#;
const DEPTH: &str = r#"workqueue_depth{name="deployment"}"#;
const LONGEST: &str = r#"workqueue_longest_running_processor_seconds{name="deployment"}"#;
const LAG: &str = r#"manifold_cache_lag_seconds{resource="pods"}"#;
const QUARANTINED: &str = r#"manifold_quarantined_keys{controller="deployment-controller"}"#;
const PANICS: &str = r#"manifold_plan_panics_total{controller="deployment-controller"}"#;
const FENCED: &str = r#"manifold_ownership_changes_total{what="fenced"}"#;
const UNDECODED: &str = r#"manifold_decode_errors_total{resource="pods"}"#;
const CERTIFICATE: &str =
    r#"manifold_client_certificate_expiration_timestamp_seconds{flag="kubeconfig"}"#;
const PAUSES: &str = r#"manifold_pauses{controller="deployment-controller",of="controller"}"#;
const REFUSED_FILE: &str = "manifold_config_refused";
const PENDING_FIELDS: &str = "manifold_config_pending_fields";
const OWNED: &str = "manifold_ranges_owned";
const UNOWNED: &str = "manifold_ranges_unowned";
const UNREACHABLE: &str = "manifold_members_unreachable";

/// One row of the table.
pub(super) struct Fault {
    pub(super) name: &'static str,
    /// In minutes of the run.
    from: f64,
    to: f64,
    /// Changes the healthy fleet; the minutes since its beginning.
    edit: fn(&mut Cluster, f64),
    /// The alert that it is for; none where it is ordinary.
    pub(super) fires: Option<&'static str>,
}

impl Fault {
    /// The fleet at one minute of the run.
    pub(super) fn apply(&self, cluster: &mut Cluster, minute: f64) {
        if (self.from..self.to).contains(&minute) {
            (self.edit)(cluster, minute - self.from);
        }
    }
}

const fn ordinary(name: &'static str, edit: fn(&mut Cluster, f64)) -> Fault {
    Fault {
        name,
        from: FROM,
        to: 120.0,
        edit,
        fires: None,
    }
}

const fn fault(name: &'static str, fires: &'static str, edit: fn(&mut Cluster, f64)) -> Fault {
    Fault {
        name,
        from: FROM,
        to: TO,
        edit,
        fires: Some(fires),
    }
}

/// A pod that was made again: another address, and a process that began then.
fn made_again(target: &mut Target, at: f64) {
    target.instance = target.instance.replace("10.244.1.", "10.244.2.");
    target.start(at * 60.0);
}

/// A process that began again under the same address.
fn restarted(target: &mut Target, since: f64) {
    target.start((FROM + since) * 60.0);
}

/// Half a minute in which a dead replica's ranges are nobody's and its peers still ask it.
fn killed(cluster: &mut Cluster, at: usize) {
    cluster.members(3.0, 0.0, 0.0);
    for target in cluster.each() {
        target.set(UNOWNED, RANGES / 4.0);
        target.set(UNREACHABLE, 1.0);
    }
    cluster.targets[at].up = false;
}

/// An operator has drained one replica: half a minute later the others have its ranges.
fn drained(cluster: &mut Cluster, at: usize, since: f64) {
    if since >= 0.5 {
        without(cluster, at);
        cluster.members(4.0, 0.0, 0.0);
    }
    cluster
        .each()
        .for_each(|target| target.set("manifold_drains", 1.0));
    cluster.targets[at].set("manifold_drained", 1.0);
}

/// The others have the ranges of one replica.
fn without(cluster: &mut Cluster, at: usize) {
    cluster.members(3.0, 0.0, 0.0);
    for target in cluster.each() {
        target.set(OWNED, 85.0);
    }
    cluster.targets[0].set(OWNED, 86.0);
    cluster.targets[at].set(OWNED, 0.0);
}

pub(super) const FAULTS: &[Fault] = &[
    ordinary("nothing", |_, _| {}),
    ordinary(
        "roll-out of the StatefulSet, with other flags",
        |cluster, since| {
            // A pod every 90 s: it drains, is away, fills its caches, works.
            for at in 1..4 {
                let since = since - 1.5 * (3 - at) as f64;
                if since < 0.0 {
                    continue;
                }
                match since {
                    0.0..0.5 => {
                        cluster.members(3.0, 0.0, 1.0);
                        cluster.targets[at].set(OWNED, 10.0);
                    }
                    0.5..1.0 => {
                        cluster.members(3.0, 0.0, 0.0);
                        cluster.targets[at].up = false;
                    }
                    1.0..1.5 => cluster.members(3.0, 1.0, 0.0),
                    _ => {}
                }
                if since >= 1.0 {
                    let began = FROM + 1.5 * (3 - at) as f64 + 0.9;
                    made_again(&mut cluster.targets[at], began);
                }
                if (1.0..3.0).contains(&since) {
                    cluster.targets[at].waits(4.0, 1.0);
                }
            }
            if since < 4.5 {
                cluster.appears(r#"manifold_key_material_differs{name="controllers"}"#, 1.0);
            }
        },
    ),
    ordinary("scale from three to five and to two", |cluster, since| {
        let (wanted, pods): (f64, usize) = match since {
            0.0..0.5 => (5.0, 3),
            0.5..10.0 => (5.0, 5),
            10.0..11.0 => (2.0, 5),
            _ => (2.0, 2),
        };
        cluster.wanted = Some(wanted);
        while cluster.targets.len() < pods + 1 {
            cluster.join();
        }
        let members = (pods + 1) as f64;
        cluster.members(members, 0.0, 0.0);
        for target in cluster.each() {
            target.set(OWNED, (RANGES / members).floor());
        }
        cluster.targets[0].set(OWNED, RANGES - (members - 1.0) * (RANGES / members).floor());
        match since {
            0.5..1.0 => cluster.members(4.0, 2.0, 0.0),
            10.0..11.0 => cluster.members(3.0, 0.0, 3.0),
            _ => {}
        }
        for target in cluster.targets.iter_mut().skip(pods + 1) {
            target.exists = false;
        }
    }),
    ordinary("a replica is killed and comes back", |cluster, since| {
        if since < 0.5 {
            killed(cluster, 1);
        } else {
            restarted(&mut cluster.targets[1], 0.1);
        }
        if (0.5..1.0).contains(&since) {
            cluster.members(3.0, 1.0, 0.0);
        }
    }),
    ordinary(
        "a thread hangs twice in half an hour, and its replica ends",
        |cluster, since| {
            for again in [0.0, 12.0] {
                let since = since - again;
                if since >= 0.5 {
                    restarted(&mut cluster.targets[1], again + 0.1);
                }
                match since {
                    0.0..0.5 => killed(cluster, 1),
                    // The keys that were in flight are tried alone, twice.
                    0.5..2.0 => cluster.targets[2].set(QUARANTINED, 2.0),
                    _ => {}
                }
            }
        },
    ),
    ordinary("a replica is stopped for ten seconds", |cluster, since| {
        if since < 0.5 {
            killed(cluster, 1);
            cluster.targets[1].up = true;
            cluster.targets[1].fenced();
        }
        if since == 0.0 {
            cluster.targets[1].add(FENCED, 1.0);
        }
    }),
    ordinary(
        "a node is lost for six minutes",
        |cluster, since| match since {
            0.0..0.5 => killed(cluster, 2),
            0.5..6.0 => {
                without(cluster, 2);
                cluster.targets[2].up = false;
            }
            _ => made_again(&mut cluster.targets[2], FROM + 5.9),
        },
    ),
    ordinary(
        "the API server is away for twenty seconds",
        |cluster, since| {
            if since < 0.5 {
                cluster.each().for_each(|target| target.cut_off(20.0));
            } else if since < 1.0 {
                // What has waited.
                cluster.each().for_each(|target| target.waits(4.0, 2.0));
            }
            if since == 0.0 {
                cluster.each().for_each(|target| target.add(FENCED, 1.0));
            }
        },
    ),
    ordinary(
        "all replicas begin at once, with many objects",
        |cluster, since| {
            match since {
                0.0..0.5 => cluster.each().for_each(|target| target.up = false),
                0.5..2.0 => {
                    cluster.members(0.0, 4.0, 0.0);
                    for target in cluster.each() {
                        target.set(OWNED, 0.0);
                        target.set(UNOWNED, RANGES);
                    }
                    if since < 1.0 {
                        cluster.each().for_each(Target::fenced);
                    } else {
                        // Owned from here on.
                        cluster.each().for_each(|target| {
                            target.set(UNOWNED, 0.0);
                            target.set(OWNED, RANGES / 4.0);
                        });
                    }
                }
                _ => {}
            }
            if since >= 0.5 {
                cluster
                    .each()
                    .for_each(|target| target.start((FROM + 0.4) * 60.0));
            }
            if (1.0..7.0).contains(&since) {
                cluster.each().for_each(|target| {
                    target.set(DEPTH, 2000.0);
                    target.waits(100.0, 200.0);
                });
            }
        },
    ),
    ordinary(
        "ranges move all the time, and scrapes differ in time",
        |cluster, since| {
            if since < 20.0 {
                let less = (since * 2.0) as usize % 3;
                cluster.targets[less].set(OWNED, 52.0);
                cluster.targets[(less + 1) % 4].set(OWNED, if less == 0 { 70.0 } else { 78.0 });
            }
        },
    ),
    ordinary(
        "kubeadm swaps managers within ten minutes",
        |cluster, since| {
            if since < 10.0 {
                for target in cluster.each() {
                    target.fenced();
                    target.set("manifold_standby", 1.0);
                    target.set(OWNED, 0.0);
                    target.waits(0.0, 0.0);
                }
            }
        },
    ),
    ordinary("two objects exceed their quota", |cluster, _| {
        for target in cluster.each() {
            target.rate(JOB_SUCCESSES, 0.0);
            target.rate(JOB_ERRORS, 0.007_812_5);
        }
    }),
    ordinary("a controller is paused for an hour", |cluster, since| {
        if since < 60.0 {
            cluster.each().for_each(|target| target.set(PAUSES, 1.0));
        }
    }),
    ordinary("a replica is drained for an hour", |cluster, since| {
        if since < 60.0 {
            drained(cluster, 1, since);
        }
    }),
    ordinary("an order is mistyped and corrected", |cluster, since| {
        if since < 2.0 {
            let each = cluster.each();
            each.for_each(|target| target.set("manifold_steering_faults", 1.0));
        }
    }),
    ordinary(
        "a configuration file is wrong and corrected",
        |cluster, since| {
            if since < 2.0 {
                let each = cluster.each();
                each.for_each(|target| target.set(REFUSED_FILE, 1.0));
            }
        },
    ),
    ordinary(
        "a configuration file changes, and a restart follows within the hour",
        |cluster, since| {
            if since < 60.0 {
                let each = cluster.each();
                each.for_each(|target| target.set(PENDING_FIELDS, 2.0));
            }
        },
    ),
    ordinary(
        "kube-controller-manager beside, in trouble",
        |cluster, _| {
            // In the same job, without a metric of ours.
            cluster.join();
            let at = cluster.targets.len() - 1;
            let other = &mut cluster.targets[at];
            other.namespace = "kube-system";
            other.pod = "kube-controller-manager-cp-1".to_owned();
            other.instance = "192.168.0.11:10257".to_owned();
            other.waits(1.0, 10.0);
            other.rate(FAILED, 10.0);
            other.rate(THROTTLED, 10.0);
            other.set(DEPTH, 40.0);
            other.set(LONGEST, 900.0);
            other.forget_ours();
        },
    ),
    Fault {
        name: "a pause is forgotten",
        from: FROM,
        to: 110.0,
        edit: |cluster, _| cluster.each().for_each(|target| target.set(PAUSES, 1.0)),
        fires: Some("ManifoldPaused"),
    },
    Fault {
        name: "a drain is forgotten",
        from: FROM,
        to: 110.0,
        edit: |cluster, since| drained(cluster, 1, since),
        fires: Some("ManifoldDrained"),
    },
    fault(
        "nobody takes three ranges of a drained replica",
        "ManifoldDrainStuck",
        |cluster, since| {
            drained(cluster, 1, since);
            if since >= 0.5 {
                cluster.targets[0].set(OWNED, 83.0);
                cluster.targets[1].set(OWNED, 3.0);
            }
        },
    ),
    fault(
        "an order is mistyped",
        "ManifoldOrdersInvalid",
        |cluster, _| {
            let each = cluster.each();
            each.for_each(|target| target.set("manifold_steering_faults", 1.0));
        },
    ),
    fault(
        "a range is moved to a replica that is gone",
        "ManifoldMoveWithoutEffect",
        |cluster, _| {
            let each = cluster.each();
            each.for_each(|target| target.set("manifold_moves_without_effect", 1.0));
        },
    ),
    fault(
        "three replicas may not read the orders",
        "ManifoldOrdersUnread",
        |cluster, _| {
            for target in cluster.targets.iter_mut().skip(1) {
                target.set("manifold_steering_unread", 1.0);
            }
        },
    ),
    fault(
        "a configuration file is wrong",
        "ManifoldConfigRefused",
        |cluster, _| {
            let each = cluster.each();
            each.for_each(|target| target.set(REFUSED_FILE, 1.0));
        },
    ),
    Fault {
        name: "a restart for a configuration file is forgotten",
        from: FROM,
        to: 110.0,
        edit: |cluster, _| cluster.targets[1].set(PENDING_FIELDS, 2.0),
        fires: Some("ManifoldConfigPending"),
    },
    fault("no replica answers", "ManifoldAbsent", |cluster, _| {
        cluster.each().for_each(|target| target.up = false);
    }),
    fault(
        "nobody may take three ranges",
        "ManifoldRangesWithoutOwner",
        |cluster, _| {
            cluster.targets[1].set(OWNED, 61.0);
            cluster.each().for_each(|target| target.set(UNOWNED, 3.0));
        },
    ),
    fault(
        "an owner by the Leases does not act",
        "ManifoldRangesWithoutOwner",
        |cluster, _| {
            cluster.targets[1].set(OWNED, 0.0);
        },
    ),
    fault(
        "the API server is away",
        "ManifoldAllFenced",
        |cluster, since| {
            cluster
                .each()
                .for_each(|target| target.cut_off(since * 60.0));
        },
    ),
    fault(
        "one replica is cut off from the API server",
        "ManifoldFenceClosed",
        |cluster, since| {
            without(cluster, 1);
            cluster.targets[1].cut_off(since * 60.0);
            if since < 0.5 {
                killed(cluster, 1);
                cluster.targets[1].up = true;
            }
        },
    ),
    fault(
        "renewals take more than a second",
        "ManifoldRenewalsSlow",
        |cluster, _| {
            cluster.targets[1].set("manifold_renewal_margin_seconds", 0.9);
        },
    ),
    fault(
        "a fence closes every three minutes",
        "ManifoldRenewalsSlow",
        |cluster, since| {
            if since % 3.0 == 0.0 {
                cluster.targets[1].fenced();
                cluster.targets[1].add(FENCED, 1.0);
            }
        },
    ),
    fault(
        "kube-controller-manager holds the Lease",
        "ManifoldStandby",
        |cluster, _| {
            for target in cluster.each() {
                target.fenced();
                target.set("manifold_standby", 1.0);
                target.set(OWNED, 0.0);
                target.waits(0.0, 0.0);
            }
        },
    ),
    fault(
        "a node is lost for half an hour",
        "ManifoldReplicaDown",
        |cluster, since| {
            without(cluster, 2);
            cluster.targets[2].up = false;
            if since < 0.5 {
                killed(cluster, 2);
            }
        },
    ),
    fault(
        "no node takes a replica",
        "ManifoldReplicasMissing",
        |cluster, _| {
            without(cluster, 2);
            cluster.targets[2].exists = false;
        },
    ),
    fault(
        "no node takes any replica of the StatefulSet",
        "ManifoldReplicasMissing",
        |cluster, _| {
            cluster.members(1.0, 0.0, 0.0);
            cluster.targets[0].set(OWNED, RANGES);
            for target in cluster.targets.iter_mut().skip(1) {
                target.exists = false;
            }
        },
    ),
    fault(
        "a cache never fills",
        "ManifoldReplicaNotReady",
        |cluster, _| {
            without(cluster, 2);
            cluster.members(3.0, 1.0, 0.0);
        },
    ),
    fault(
        "a replica crashes again and again",
        "ManifoldReplicaRestarts",
        |cluster, since| {
            // Up for two minutes, down for one.
            let (times, phase) = ((since / 3.0).floor(), since % 3.0);
            restarted(&mut cluster.targets[1], times * 3.0);
            if phase >= 2.0 {
                cluster.members(3.0, 0.0, 0.0);
                cluster.targets[1].up = false;
            }
            if phase == 2.0 {
                killed(cluster, 1);
            }
        },
    ),
    fault(
        "replicas run different controllers",
        "ManifoldReplicasDiffer",
        |cluster, _| {
            cluster.appears(r#"manifold_key_material_differs{name="controllers"}"#, 1.0);
        },
    ),
    fault(
        "two replicas do not reach each other",
        "ManifoldMembersUnreachable",
        |cluster, _| {
            cluster.targets[1].set(UNREACHABLE, 1.0);
            cluster.targets[2].set(UNREACHABLE, 1.0);
        },
    ),
    fault(
        "a replica takes nearly all of its memory",
        "ManifoldMemoryNearLimit",
        |cluster, _| {
            cluster.targets[1].set(
                "process_resident_memory_bytes",
                0.95 * 384.0 * 1024.0 * 1024.0,
            );
        },
    ),
    Fault {
        name: "nobody renews a client certificate",
        from: FROM,
        to: 115.0,
        edit: |cluster, _| cluster.targets[0].set(CERTIFICATE, 3.0 * 86_400.0),
        fires: Some("ManifoldClientCertificateExpires"),
    },
    fault(
        "nobody's watches bring anything",
        "ManifoldNobodyCurrent",
        |cluster, since| {
            for target in cluster.each() {
                target.set("manifold_current", 0.0);
                target.set(LAG, since * 60.0);
            }
        },
    ),
    fault(
        "one replica's watches bring nothing",
        "ManifoldStale",
        |cluster, since| {
            without(cluster, 1);
            cluster.members(4.0, 0.0, 0.0);
            cluster.targets[1].set("manifold_current", 0.0);
            cluster.targets[1].set(LAG, since * 60.0);
        },
    ),
    fault(
        "the watch of one resource brings nothing",
        "ManifoldCacheLags",
        |cluster, since| {
            cluster.targets[1].set(LAG, since * 60.0);
        },
    ),
    fault(
        "an object cannot be decoded",
        "ManifoldObjectsSetAside",
        |cluster, since| {
            if since == 0.0 {
                cluster.each().for_each(|target| target.add(UNDECODED, 1.0));
            }
        },
    ),
    fault(
        "more keys than workers",
        "ManifoldKeysWait",
        |cluster, _| {
            for target in cluster.each() {
                target.waits(1.0, 5.0);
                target.set(DEPTH, 600.0);
            }
        },
    ),
    fault(
        "nothing is taken up of a queue",
        "ManifoldQueueStuck",
        |cluster, _| {
            cluster.targets[1].waits(0.0, 0.0);
            cluster.targets[1].set(DEPTH, 12.0);
        },
    ),
    fault(
        "a call of a reconcile has no end",
        "ManifoldReconcileHangs",
        |cluster, since| {
            cluster.targets[1].set(LONGEST, since * 60.0);
        },
    ),
    fault(
        "a policy refuses what a controller writes",
        "ManifoldReconcileErrors",
        |cluster, _| {
            for target in cluster.each() {
                target.rate(SUCCESSES, 0.25);
                target.rate(ERRORS, 1.0);
            }
        },
    ),
    fault(
        "a webhook is down",
        "ManifoldApiRequestsFail",
        |cluster, _| {
            for target in cluster.each() {
                target.rate(SUCCESSES, 0.25);
                target.rate(ERRORS, 1.0);
                target.rate(FAILED, 1.0);
            }
        },
    ),
    fault(
        "every fifth request has no answer",
        "ManifoldApiRequestsFail",
        |cluster, _| {
            cluster.targets[1].rate(NO_ANSWER, 1.5);
        },
    ),
    fault(
        "the API server turns requests away",
        "ManifoldApiThrottled",
        |cluster, _| {
            cluster
                .each()
                .for_each(|target| target.rate(THROTTLED, 1.0));
        },
    ),
    fault(
        "a key kills its owners",
        "ManifoldKeysQuarantined",
        |cluster, _| {
            cluster.targets[1].set(QUARANTINED, 1.0);
            cluster.targets[1].set(DEPTH, 1.0);
        },
    ),
    fault("a plan panics", "ManifoldPlansFail", |cluster, since| {
        if since == 0.0 {
            cluster.targets[1].add(PANICS, 1.0);
        }
    }),
];
