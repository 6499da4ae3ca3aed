//! What users do while the faults happen: one workload for each registered controller, each in a few
//! variants. Whatever becomes of a run in between, its end must not depend on when things were seen:
//! histories are kept at nothing, and nothing that is counted is disturbed by others.

use std::time::Duration;

use controllers_kit::testing::{
    BackendBuild, Common, ConfigMapBuild, DaemonSetBuild, DeploymentBuild, EXITS, EndpointsBuild,
    JobBuild, PodBuild, ServiceBuild, StatefulSetBuild, WorkloadBuild, World, ZoneBuild,
    config_map, daemon_set, deployment, endpoints, job, namespace, node, pod, pod_spec_bytes,
    replica_set, replication_controller, service, service_account, stateful_set,
};
use kubernetes_proto::{
    Object,
    apps::{DaemonSet, Deployment, ReplicaSet, StatefulSet},
    batch::{CronJob, CronJobSpec, Job, JobSpec, JobTemplateSpec},
    core::{
        Amount, ConfigMap, Endpoints, Namespace, Node, Pod, PodTemplateSpec, ReplicationController,
        ResourceQuota, Service, ServiceAccount,
    },
    meta::{LabelSelector, ObjectMeta, Quantity},
    policy::PodDisruptionBudget,
};

use prost::Message as _;

use crate::dice::Dice;

pub mod attachments;
mod claims;
mod clearing;
mod devices;
pub mod identity;
pub mod nodes;
mod scaling;
pub mod storage;
mod volumes;

/// Something that a user does.
type Deed = Box<dyn FnOnce(&mut World) + Send>;

/// Something that a user does once the cluster has come to something.
pub struct Awaited {
    /// What it is, for the record.
    pub what: String,
    /// Whether the cluster has.
    pub is_due: Box<dyn Fn(&World) -> bool + Send>,
    /// What is done then.
    pub deed: Deed,
}

/// A workload.
pub struct Workload {
    /// The cluster at the start.
    pub world: World,
    /// What is done, and when.
    pub deeds: Vec<(Duration, Deed)>,
    /// What is done when the cluster has come so far; all of it must be, or nothing has progressed.
    pub awaited: Vec<Awaited>,
    /// Whether there are a provisioner, a scheduler and kubelets that wait for volumes (`storage.rs`).
    pub storage: bool,
    /// Whether pods may be deleted by others: not where they are counted.
    pub pods_may_go: bool,
    /// How long faults last.
    pub faults: Duration,
    /// A run that has come to the expected end is done after so long without a write: longer than the
    /// longest interval at which its controllers batch writes.
    pub quiet: Duration,
}

/// Variants of each workload.
const VARIANTS: u64 = 4;

/// A workload of a controller, which may have several.
pub struct Entry {
    /// Upstream's canonical name.
    pub controller: &'static str,
    /// Makes a variant.
    pub make: fn(&mut Making),
}

/// All of them.
pub const ALL: &[Entry] = &[
    Entry {
        controller: "replicaset-controller",
        make: replica_sets,
    },
    Entry {
        controller: "deployment-controller",
        make: deployments,
    },
    Entry {
        controller: "statefulset-controller",
        make: stateful_sets,
    },
    Entry {
        controller: "daemonset-controller",
        make: daemon_sets,
    },
    Entry {
        controller: "replicationcontroller-controller",
        make: replication_controllers,
    },
    Entry {
        controller: "job-controller",
        make: jobs,
    },
    Entry {
        controller: "cronjob-controller",
        make: cron_jobs,
    },
    Entry {
        controller: "ttl-after-finished-controller",
        make: finished_jobs,
    },
    Entry {
        controller: "serviceaccount-controller",
        make: service_accounts,
    },
    Entry {
        controller: "root-ca-certificate-publisher-controller",
        make: root_certificates,
    },
    Entry {
        controller: "endpoints-controller",
        make: services,
    },
    Entry {
        controller: "endpointslice-controller",
        make: services,
    },
    Entry {
        controller: "endpointslice-mirroring-controller",
        make: mirrored,
    },
    Entry {
        controller: "pod-garbage-collector-controller",
        make: left_pods,
    },
    Entry {
        controller: "disruption-controller",
        make: budgets,
    },
    Entry {
        controller: "resourcequota-controller",
        make: quotas,
    },
    Entry {
        controller: "garbage-collector-controller",
        make: clearing::owned,
    },
    Entry {
        controller: "namespace-controller",
        make: clearing::namespaces,
    },
    Entry {
        controller: "horizontal-pod-autoscaler-controller",
        make: scaling::autoscaled,
    },
    Entry {
        controller: "node-lifecycle-controller",
        make: nodes::silent,
    },
    Entry {
        controller: "taint-eviction-controller",
        make: nodes::tainted,
    },
    Entry {
        controller: "node-ipam-controller",
        make: nodes::addresses,
    },
    Entry {
        controller: "ttl-controller",
        make: nodes::annotated,
    },
    Entry {
        controller: crate::attachments::CONTROLLER,
        make: attachments::attached,
    },
    Entry {
        controller: crate::claims::CONTROLLER,
        make: claims::made_and_freed,
    },
    Entry {
        controller: crate::protection::CONTROLLER,
        make: volumes::protected,
    },
    Entry {
        controller: crate::storage::BINDER,
        make: storage::bound,
    },
    Entry {
        controller: crate::storage::BINDER,
        make: storage::provisioned,
    },
    Entry {
        controller: crate::storage::BINDER,
        make: storage::all_gone,
    },
    Entry {
        controller: crate::attachments::CONTROLLER,
        make: storage::moved,
    },
    Entry {
        controller: crate::storage::VOLUME_PROTECTION,
        make: storage::kept,
    },
    Entry {
        controller: crate::storage::CLASS_PROTECTION,
        make: storage::attributes,
    },
    Entry {
        controller: "persistentvolume-expander-controller",
        make: storage::expanded,
    },
    Entry {
        controller: "ephemeral-volume-controller",
        make: storage::ephemeral,
    },
    Entry {
        controller: crate::identity::SIGNER,
        make: identity::signed,
    },
    Entry {
        controller: crate::identity::TOKEN_CLEANER,
        make: identity::expired,
    },
    Entry {
        controller: crate::identity::AGGREGATION,
        make: identity::aggregated,
    },
    Entry {
        controller: crate::identity::RANGES,
        make: identity::ranges,
    },
    Entry {
        controller: crate::identity::TOKENS,
        make: identity::tokens,
    },
    Entry {
        controller: crate::identity::APPROVING,
        make: identity::approved,
    },
    Entry {
        controller: crate::identity::SIGNING,
        make: identity::issued,
    },
    Entry {
        controller: crate::identity::REQUEST_CLEANER,
        make: identity::cleaned,
    },
    Entry {
        controller: "legacy-serviceaccount-token-cleaner-controller",
        make: identity::legacy,
    },
    Entry {
        controller: crate::identity::POD_REQUEST_CLEANER,
        make: identity::of_pods,
    },
    Entry {
        controller: crate::devices::CONTROLLER,
        make: devices::tainted,
    },
    Entry {
        controller: crate::devices::GROUPS,
        make: devices::grouped,
    },
];

fn of(controller: &str) -> impl Iterator<Item = &'static Entry> {
    ALL.iter()
        .filter(move |entry| entry.controller == controller)
}

/// How many variants there are of a controller's workloads.
pub fn variants(controller: &str) -> u64 {
    VARIANTS * of(controller).count().max(1) as u64
}

/// A controller's workload in a variant.
///
/// # Panics
/// Where there is none for the controller.
pub fn workload(controller: &str, variant: u64) -> Workload {
    let entries: Vec<&Entry> = of(controller).collect();
    assert!(
        !entries.is_empty(),
        "{controller} has no workload; give it one in tests/simulation/workloads.rs"
    );
    let count = entries.len() as u64;
    let entry = entries[usize::try_from(variant % count).expect("few workloads")];
    let mut making = Making {
        dice: Dice::new(variant / count),
        at: Duration::from_secs(2),
        workload: Workload {
            // One that clears up is one of the controllers.
            world: World::at("12:00:00").without_collector(),
            deeds: Vec::new(),
            awaited: Vec::new(),
            storage: false,
            pods_may_go: true,
            faults: Duration::from_secs(30),
            quiet: Duration::from_secs(3),
        },
    };
    clearing::serve_custom_kinds(&mut making.workload.world);
    // In every cluster; who has one key alone waits for it.
    making.put(namespace("kube-system"));
    // Where kubelets start pods that are for no other node.
    making.put(node("node-1"));
    (entry.make)(&mut making);
    making.workload
}

/// A workload in the making.
pub struct Making {
    dice: Dice,
    at: Duration,
    workload: Workload,
}

impl Making {
    fn put<T: Object>(&mut self, object: T) {
        self.workload.world.put(object);
    }

    /// A while later somebody does something.
    fn then(&mut self, deed: impl FnOnce(&mut World) + Send + 'static) {
        self.at += self.dice.millis(500, 6000);
        self.workload.deeds.push((self.at, Box::new(deed)));
    }

    /// So soon that who is to see both may see neither yet.
    fn then_soon(&mut self, deed: impl FnOnce(&mut World) + Send + 'static) {
        self.at += self.dice.millis(5, 300);
        self.workload.deeds.push((self.at, Box::new(deed)));
    }

    /// Somebody does something once the cluster has come to something.
    fn when(
        &mut self,
        what: &str,
        is_due: impl Fn(&World) -> bool + Send + 'static,
        deed: impl FnOnce(&mut World) + Send + 'static,
    ) {
        self.workload.awaited.push(Awaited {
            what: what.to_owned(),
            is_due: Box::new(is_due),
            deed: Box::new(deed),
        });
    }

    fn count(&mut self, least: usize, most: usize) -> i32 {
        let count = least + self.dice.below(most - least + 1);
        i32::try_from(count).expect("workloads are small")
    }
}

fn replica_sets(making: &mut Making) {
    let first = making.count(1, 5);
    making.put(replica_set("web").replicas(first));
    making.put(
        replica_set("doomed")
            .replicas(3)
            .selects(&[("app", "doomed")]),
    );
    for _ in 0..4 {
        let replicas = Some(making.count(0, 8));
        making.then(move |world| {
            world.change::<ReplicaSet>("web", |set| {
                set.spec.get_or_insert_default().replicas = replicas;
            });
        });
    }
    making.then(|world| world.delete::<ReplicaSet>("doomed"));
    let late = making.count(1, 4);
    making.then(move |world| {
        world.put(
            replica_set("late")
                .replicas(late)
                .selects(&[("app", "late")]),
        );
    });
}

fn replication_controllers(making: &mut Making) {
    let first = making.count(1, 5);
    let mut web = replication_controller("web");
    web.spec.get_or_insert_default().replicas = Some(first);
    making.put(web);
    for _ in 0..4 {
        let replicas = Some(making.count(0, 7));
        making.then(move |world| {
            world.change::<ReplicationController>("web", |set| {
                set.spec.get_or_insert_default().replicas = replicas;
            });
        });
    }
}

fn deployments(making: &mut Making) {
    let replicas = making.count(2, 6);
    let web = deployment("web").replicas(replicas).history(0);
    let web = match making.dice.below(3) {
        0 => web.rolling("0", "1"),
        1 => web.rolling("1", "0"),
        _ => web.rolling("25%", "25%"),
    };
    making.put(web);
    let other = making.count(1, 3);
    making.put(
        deployment("api")
            .replicas(other)
            .selects(&[("app", "api")])
            .history(0)
            .recreate(),
    );
    for round in 0..3 {
        let image = pod_spec_bytes(&format!("app:{}", round + 2));
        making.then(move |world| {
            world.change::<Deployment>("web", |deployment| {
                let template = deployment
                    .spec
                    .get_or_insert_default()
                    .template
                    .get_or_insert_default();
                template.spec = image;
            });
        });
        let replicas = Some(making.count(1, 7));
        making.then(move |world| {
            world.change::<Deployment>("web", |deployment| {
                deployment.spec.get_or_insert_default().replicas = replicas;
            });
        });
    }
    making.then(|world| {
        world.change::<Deployment>("api", |deployment| {
            let template = deployment
                .spec
                .get_or_insert_default()
                .template
                .get_or_insert_default();
            template.spec = pod_spec_bytes("api:2");
        });
    });
}

fn stateful_sets(making: &mut Making) {
    let replicas = making.count(1, 4);
    let db = stateful_set("db").replicas(replicas).history(0);
    let parallel = making.dice.chance(400);
    making.put(if parallel { db.parallel() } else { db });
    for round in 0..3 {
        let replicas = Some(making.count(1, 5));
        making.then(move |world| {
            world.change::<StatefulSet>("db", |set| {
                set.spec.get_or_insert_default().replicas = replicas;
            });
        });
        if round > 0 {
            let image = pod_spec_bytes(&format!("db:{round}"));
            making.then(move |world| {
                world.change::<StatefulSet>("db", |set| {
                    set.spec
                        .get_or_insert_default()
                        .template
                        .get_or_insert_default()
                        .spec = image;
                });
            });
        }
    }
}

fn daemon_sets(making: &mut Making) {
    for name in ["n-1", "n-2", "n-3"] {
        making.put(node(name));
    }
    making.put(daemon_set("agent").history(0));
    making.then(|world| world.put(node("n-4")));
    making.then(|world| {
        world.change::<DaemonSet>("agent", |set| {
            set.spec
                .get_or_insert_default()
                .template
                .get_or_insert_default()
                .spec = pod_spec_bytes("agent:2");
        });
    });
    making.then(|world| world.delete::<Node>("n-2"));
    let round = making.count(3, 5);
    making.then(move |world| {
        world.change::<DaemonSet>("agent", |set| {
            set.spec
                .get_or_insert_default()
                .template
                .get_or_insert_default()
                .spec = pod_spec_bytes(&format!("agent:{round}"));
        });
    });
}

const JOB_UID: &str = "batch.kubernetes.io/controller-uid";

/// A Job as the API server leaves it, whose pods end with some codes.
pub fn counted(name: &str, parallelism: i32, completions: i32, exits: &str) -> Job {
    let mut made = job(name);
    let uid = Object::metadata(&made).uid.to_string();
    let mut selector = LabelSelector::default();
    kubernetes_proto::meta::set(&mut selector.match_labels, JOB_UID, &uid);
    let mut meta = ObjectMeta::default();
    meta.set_label(JOB_UID, &uid);
    meta.set_label("job-name", name);
    meta.set_annotation(EXITS, exits);
    made.spec = Some(JobSpec {
        parallelism: Some(parallelism),
        completions: Some(completions),
        backoff_limit: Some(2),
        completion_mode: Some("NonIndexed".to_owned()),
        suspend: Some(false),
        selector: Some(selector),
        template: Some(PodTemplateSpec {
            metadata: Some(meta),
            spec: pod_spec_bytes("pi:1"),
        }),
        ..JobSpec::default()
    });
    made
}

fn jobs(making: &mut Making) {
    making.workload.pods_may_go = false;
    let (parallelism, completions) = (making.count(1, 4), making.count(2, 7));
    making.put(counted("sum", parallelism, completions, "0"));
    let indexes = making.count(2, 5);
    let mut indexed = counted("parts", making.count(1, 5), indexes, "0");
    indexed.spec.get_or_insert_default().completion_mode = Some("Indexed".to_owned());
    making.put(indexed);
    making.then(|world| world.put(counted("late", 2, 3, "0")));
    making.then(|world| {
        let mut held = counted("held", 1, 2, "0");
        held.spec.get_or_insert_default().suspend = Some(true);
        world.put(held);
    });
    making.then(|world| {
        world.change::<Job>("held", |job| {
            job.spec.get_or_insert_default().suspend = Some(false);
        });
    });
}

fn cron_jobs(making: &mut Making) {
    making.workload.pods_may_go = false;
    // The first time comes amid faults, the last one after them.
    making.workload.faults = Duration::from_secs(85);
    let policy = ["Allow", "Forbid", "Replace"][making.dice.below(3)];
    let mut cron = CronJob::default();
    let meta = cron.metadata_mut();
    meta.name = "tick".into();
    meta.namespace = "default".into();
    meta.uid = "uid-cronjobs-default-tick".into();
    let mut template = ObjectMeta::default();
    template.set_annotation(EXITS, "0");
    let spec = JobSpec {
        parallelism: Some(1),
        completions: Some(1),
        backoff_limit: Some(2),
        completion_mode: Some("NonIndexed".to_owned()),
        suspend: Some(false),
        template: Some(PodTemplateSpec {
            metadata: Some(template),
            spec: pod_spec_bytes("tick:1"),
        }),
        ..JobSpec::default()
    };
    cron.spec = Some(CronJobSpec {
        schedule: "* * * * *".to_owned(),
        concurrency_policy: policy.to_owned(),
        suspend: Some(false),
        successful_jobs_history_limit: Some(1),
        failed_jobs_history_limit: Some(1),
        job_template: Some(JobTemplateSpec {
            metadata: None,
            spec: spec.encode_to_vec(),
        }),
        ..CronJobSpec::default()
    });
    making.put(cron);
    // It changes once the faults are over: after three deaths its key would be held back for four minutes.
    making.at = Duration::from_secs(100);
    making.then(|world| {
        world.change::<CronJob>("tick", |cron| {
            cron.spec.get_or_insert_default().failed_jobs_history_limit = Some(2);
        });
    });
    // Two more ticks.
    making.at = Duration::from_secs(210);
    making.then(|world| {
        world.change::<CronJob>("tick", |cron| {
            cron.spec.get_or_insert_default().suspend = Some(true);
        });
    });
}

fn finished_jobs(making: &mut Making) {
    for (name, ttl) in [("one", 5), ("two", 12), ("three", 40)] {
        making.put(counted(name, 1, 1, "0").ttl(ttl).finished("11:59:59"));
    }
    making.put(counted("kept", 1, 1, "0").finished("11:00:00"));
    making.put(
        counted("spared", 1, 1, "0")
            .ttl(100_000)
            .finished("11:59:00"),
    );
    let ttl = making.count(1, 20);
    making.then(move |world| {
        world.change::<Job>("kept", |job| {
            job.spec.get_or_insert_default().ttl_seconds_after_finished = Some(ttl);
        });
    });
}

/// A pod with an address that a Service selects.
fn backend(number: usize) -> Pod {
    pod(&format!("web-{number}"))
        .label("app", "web")
        .on("node-1")
        .ip(&format!("10.1.0.{}", number + 1))
}

fn services(making: &mut Making) {
    making.workload.pods_may_go = false;
    making.put(node("node-1").works_in("a", "4"));
    making.put(service("web"));
    making.put(service("late").no_selector());
    let first = making.dice.below(4) + 1;
    for number in 0..first {
        making.put(backend(number));
    }
    for number in first..first + 3 {
        making.then(move |world| world.put(backend(number)));
    }
    making.then(|world| world.delete::<Pod>("web-0"));
    making.then(|world| {
        world.change::<Service>("web", |service| {
            service
                .spec
                .get_or_insert_default()
                .publish_not_ready_addresses = true;
        });
    });
    making.then(|world| {
        world.change::<Service>("late", |service| {
            let spec = service.spec.get_or_insert_default();
            kubernetes_proto::meta::set(&mut spec.selector, "app", "web");
        });
    });
    let gone = making.dice.chance(300);
    making.then(move |world| {
        if gone {
            world.delete::<Service>("web");
        }
    });
}

fn mirrored(making: &mut Making) {
    making.put(service("bare").no_selector());
    making.put(endpoints("bare").subset(&["192.0.2.1"], &["192.0.2.9"], 80));
    making.put(endpoints("early").subset(&["192.0.2.5"], &[], 80));
    for round in 2..5_u8 {
        let address = format!("192.0.2.{round}");
        making.then(move |world| {
            let subsets = endpoints("bare")
                .subset(&["192.0.2.1", &address], &[], 80)
                .subsets;
            world.change::<Endpoints>("bare", |endpoints| endpoints.subsets = subsets);
        });
    }
    making.then(|world| world.put(service("early").no_selector()));
    making.then(|world| world.delete::<Endpoints>("early"));
}

fn left_pods(making: &mut Making) {
    making.workload.pods_may_go = false;
    making.workload.faults = Duration::from_secs(60);
    making.workload.world = making.workload.world.clone().without_kubelets();
    making.put(node("node-1"));
    making.put(node("node-2"));
    making.put(pod("well").on("node-1").phase("Running"));
    making.put(pod("lost").on("node-9").phase("Running"));
    making.put(pod("never").terminating("11:59:00"));
    making.put(pod("soon").on("node-2").phase("Running"));
    making.then(|world| world.delete::<Node>("node-2"));
}

fn budgets(making: &mut Making) {
    let replicas = making.count(2, 5);
    making.put(replica_set("web").replicas(replicas));
    let budget = |name: &str, spec: serde_json::Value| -> PodDisruptionBudget {
        let mut budget: PodDisruptionBudget =
            serde_json::from_value(serde_json::json!({"spec": spec})).expect("a budget");
        let meta = budget.metadata_mut();
        meta.name = name.into();
        meta.namespace = "default".into();
        meta.uid = format!("uid-poddisruptionbudgets-default-{name}").into();
        meta.generation = 1;
        budget
    };
    let selector = serde_json::json!({"matchLabels": {"app": "web"}});
    making.put(budget(
        "half",
        serde_json::json!({"maxUnavailable": "50%", "selector": selector}),
    ));
    let late = budget(
        "late",
        serde_json::json!({"minAvailable": 2, "selector": selector}),
    );
    making.then(move |world| world.put(late));
    for _ in 0..3 {
        let replicas = Some(making.count(1, 7));
        making.then(move |world| {
            world.change::<ReplicaSet>("web", |set| {
                set.spec.get_or_insert_default().replicas = replicas;
            });
        });
    }
}

fn service_accounts(making: &mut Making) {
    making.put(namespace("one"));
    making.put(namespace("two"));
    making.then(|world| world.put(namespace("three")));
    making.then(|world| {
        if world.find::<ServiceAccount>("one/default").is_some() {
            world.delete::<ServiceAccount>("one/default");
        } else {
            world.put(service_account("default").in_namespace("one"));
        }
    });
    making.then(|world| world.delete::<Namespace>("two"));
    making.then(|world| {
        if world.find::<ServiceAccount>("three/default").is_some() {
            world.delete::<ServiceAccount>("three/default");
        }
    });
}

fn root_certificates(making: &mut Making) {
    const NAME: &str = "kube-root-ca.crt";
    making.put(namespace("one"));
    making.put(
        config_map(NAME)
            .in_namespace("one")
            .data("ca.crt", "forged"),
    );
    making.then(|world| world.put(namespace("two")));
    making.then(|world| {
        if world.find::<ConfigMap>("one/kube-root-ca.crt").is_some() {
            world.delete::<ConfigMap>("one/kube-root-ca.crt");
        }
    });
    making.then(|world| {
        if world.find::<ConfigMap>("two/kube-root-ca.crt").is_some() {
            world.change::<ConfigMap>("two/kube-root-ca.crt", |map| {
                map.data
                    .insert("ca.crt".to_owned(), "forged again".to_owned());
            });
        }
    });
    making.then(|world| world.delete::<Namespace>("one"));
}

/// What is made is charged for by admission, which there is none of here: everything that is made is there at
/// the start.
fn quotas(making: &mut Making) {
    making.workload.pods_may_go = false;
    let limited = |limits: &[(&str, i32)]| {
        let limits = limits.iter().map(|(name, most)| Amount {
            key: (*name).into(),
            value: Some(Quantity::text(&most.to_string())),
        });
        limits.collect::<Vec<_>>()
    };
    let mut quota = ResourceQuota::default();
    quota.metadata_mut().name = "all".into();
    quota.metadata_mut().namespace = "default".into();
    quota.spec.get_or_insert_default().hard =
        limited(&[("pods", 9), ("count/pods", 9), ("services", 9)]);
    making.put(quota);
    for number in 0..6 {
        making.put(backend(number).ready("11:00:00"));
    }
    making.put(service("web"));
    making.put(service("going"));
    making.then(|world| world.delete::<Pod>("web-0"));
    making.then(|world| world.change::<Pod>("web-1", |pod| *pod = pod.clone().phase("Failed")));
    making.then(|world| world.delete::<Service>("going"));
    let pods = making.count(10, 20);
    making.then(move |world| {
        world.change::<ResourceQuota>("all", |quota| {
            quota.spec.get_or_insert_default().hard = limited(&[("pods", pods), ("services", 9)]);
        });
    });
    making.then(|world| world.delete::<Pod>("web-2"));
    making.then(|world| {
        world.change::<Pod>("web-3", |pod| *pod = pod.clone().phase("Succeeded"));
    });
}
