//! `kubeadm init` and `kubeadm join` with real kubelets, no kube-controller-manager and three replicas of
//! Manifold; the same under kube-controller-manager, and what both leave behind, object by object.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::nodes::kubeadm::{Kubeadm, Settings, Upgrade};
use harness::nodes::{Node, can_run};
use harness::{image, run_test, until};
use k8s_openapi::api::apps::v1::Deployment;
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::interlock::{DURATION, FLEET, READ_MAX, SLACK, held_by, holder, took_turns};
use crate::judge::AUDIT_POLICY;
use crate::kubelets::{talking, usable};
use crate::parity::{self, Normal, Outcome, Snapshot, text_at};
use crate::support::{PATIENCE, POLL, all_end_well, alone, complete, create, from_environment};

const REPLICAS: usize = 3;
const NODES: u8 = 2;
const PODS: u32 = 4;
/// Nothing is written for so long: the cluster is at rest.
const REST: Duration = Duration::from_secs(4);
/// Life of the certificates that kubelets renew in the test. Signers date them back by five minutes, and
/// kubelets renew at 70 to 90 % of what the certificate says: 78 s after it was signed at the latest.
const SHORT: (&str, &str) = ("cluster-signing-duration", "2m");
const RENEWED: Duration = Duration::from_secs(78 + 30);
const PATCHES: &str = "deploy/kubeadm/patches";
/// Nothing of the machine is made for it: kubeadm's own is below /usr.
const FLEX_VOLUMES: (&str, &str) = ("flex-volume-plugin-dir", "/var/lib/flex-volumes");
/// The host's static pod waits for its rights so long, as where they are applied by hand.
const RIGHTS_AFTER: Duration = Duration::from_secs(5);
/// `kubeadm upgrade apply` makes a Job, and waits so long for its end.
const HEALTH_CHECK: Duration = Duration::from_secs(60);
/// How long upstream waits before the fleet dies, in seconds; `MANIFOLD_STANDBY_SECONDS` changes it.
const STANDBY: u64 = 60;
/// Kinds that no controller has a part in, or that report the moment.
const NOT_COMPARED: [&str; 3] = ["events", "events.events.k8s.io", "componentstatuses"];

/// Who manages the controllers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manager {
    Upstream,
    Manifold,
}

/// From nothing to two nodes that run a Deployment's containers; what is there then.
async fn cluster_under(manager: Manager) -> Result<Outcome> {
    let began = Instant::now();
    let mut cluster = Kubeadm::init(Settings::default()).await?;
    cluster.apply("deploy/rbac").await?;
    let initialised = began.elapsed();
    let fleet = cluster.fleet()?.build().await?;
    let mut replicas = match manager {
        Manager::Upstream => {
            cluster.start_kcm()?;
            Vec::new()
        }
        Manager::Manifold => fleet.start_all(REPLICAS).await?,
    };
    let client = cluster.client().await?;

    let began = Instant::now();
    let nodes = join(&cluster).await?;
    let joined = began.elapsed();
    usable(&client, NODES.into()).await?;
    let ready = began.elapsed();
    signed(&cluster).await?;

    let began = Instant::now();
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), "default");
    create(&deployments, talking("web", PODS)).await?;
    complete(&deployments, "web", PODS.try_into()?).await?;
    println!(
        "kubeadm: {manager:?}: init {initialised:.1?}, {NODES} nodes joined in {joined:.1?}, without taints in \
         {ready:.1?}, {PODS} containers in {:.1?}",
        began.elapsed()
    );
    for name in names(&cluster, "pods").await? {
        let said = cluster.kubectl(&["logs", &name]).await?;
        ensure!(said == format!("I am {name}\n"), "{name} says {said:?}");
    }
    let snapshot = at_rest(&cluster).await?;
    all_end_well(&mut replicas).await?;
    cluster.check()?;
    drop(nodes);
    Ok(Outcome {
        snapshots: vec![snapshot],
        failed: None,
    })
}

async fn join(cluster: &Kubeadm) -> Result<Vec<Node>> {
    let joins = (0..NODES).map(|index| async move {
        let name = format!("node-{index}");
        cluster.join(index, &name).await
    });
    futures::future::try_join_all(joins).await
}

async fn names(cluster: &Kubeadm, resource: &str) -> Result<Vec<String>> {
    let path = "jsonpath={.items[*].metadata.name}";
    let said = cluster.kubectl(&["get", resource, "-o", path]).await?;
    Ok(said.split_whitespace().map(str::to_owned).collect())
}

async fn items(cluster: &Kubeadm, resource: &str) -> Result<Vec<Value>> {
    let said = cluster
        .kubectl(&["get", resource, "-A", "-o", "json"])
        .await?;
    let list: Value = serde_json::from_str(&said)?;
    Ok(list["items"].as_array().cloned().unwrap_or_default())
}

/// Every request for a certificate is approved and signed; nodes have addresses of their own; cluster-info
/// carries the token's signature.
async fn signed(cluster: &Kubeadm) -> Result<()> {
    let requests = items(cluster, "csr").await?;
    ensure!(requests.len() >= usize::from(NODES), "{requests:?}");
    for request in &requests {
        let name = text_at(request, "/metadata/name");
        let certificate = text_at(request, "/status/certificate");
        ensure!(!certificate.is_empty(), "{name} is not signed");
        let approved = request.pointer("/status/conditions/0/type");
        ensure!(approved == Some(&json!("Approved")), "{name}: {approved:?}");
    }
    let nodes = items(cluster, "nodes").await?;
    let ranges: BTreeSet<&str> = nodes
        .iter()
        .map(|node| text_at(node, "/spec/podCIDR"))
        .collect();
    ensure!(
        ranges.len() == nodes.len() && !ranges.contains(""),
        "{ranges:?}"
    );
    let path = "jsonpath={.data.jws-kubeconfig-abcdef}";
    let args = ["get", "cm", "-n", "kube-public", "cluster-info", "-o", path];
    let signature = cluster.kubectl(&args).await?;
    ensure!(signature.matches('.').count() == 2, "{signature:?}");
    Ok(())
}

/// Everything that is there, once nothing has changed for a while.
async fn at_rest(cluster: &Kubeadm) -> Result<Snapshot> {
    let resources = cluster
        .kubectl(&["api-resources", "--verbs=list", "-o", "name"])
        .await?;
    let resources: Vec<&str> = resources
        .split_whitespace()
        .filter(|name| !NOT_COMPARED.contains(name))
        .collect();
    let resources = resources.join(",");
    // A kubelet that had no node yet when it first tried makes its Lease ten seconds later.
    until("each node has its Lease", PATIENCE, POLL, || async {
        let leases = ["leases", "-n", "kube-node-lease", "-o", "name"];
        let said = cluster.kubectl(&[&["get"][..], &leases].concat()).await?;
        Ok((said.lines().count() == usize::from(NODES)).then_some(()))
    })
    .await?;
    let last = std::sync::Mutex::new((Vec::new(), Instant::now()));
    let there = until("the cluster is at rest", PATIENCE, POLL * 10, || async {
        let mut there = items(cluster, &resources).await?;
        there.retain(|object| !is_of_managers(object));
        let versions: Vec<String> = there
            .iter()
            .filter(|object| text_at(object, "/kind") != "Lease")
            .map(|object| text_at(object, "/metadata/resourceVersion").to_owned())
            .collect();
        let mut last = last
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if last.0 != versions {
            *last = (versions, Instant::now());
        }
        Ok((last.1.elapsed() >= REST).then_some(there))
    })
    .await?;
    Ok(snapshot(cluster, &there))
}

/// Leases of the managers and of the API server say who they are.
fn is_of_managers(object: &Value) -> bool {
    let name = text_at(object, "/metadata/name");
    text_at(object, "/kind") == "Lease"
        && [
            "manifold-",
            "kube-controller-manager",
            "kube-scheduler",
            "apiserver-",
        ]
        .iter()
        .any(|prefix| name.starts_with(prefix))
}

/// What the rig and the kubelets make different each time is made equal; the rest as in the parity suite.
fn snapshot(cluster: &Kubeadm, there: &[Value]) -> Snapshot {
    let gateway = cluster.network().gateway().to_string();
    let network = gateway.trim_end_matches("0.1");
    let mut normal = Normal::default();
    // Pods are named after the ReplicaSets that own them.
    let (owners, others): (Vec<_>, Vec<_>) = there
        .iter()
        .partition(|object| text_at(object, "/kind") == "ReplicaSet");
    for object in owners.into_iter().chain(others) {
        normal.learn(object);
    }
    let evened = there.iter().map(|object| {
        let mut even = normal.object(object);
        plain(&mut even, network);
        match text_at(&even, "/kind") {
            "CertificateSigningRequest" => {
                even["metadata"]["name"] = json!("csr-<random>");
                even["metadata"]["uid"] = json!("<uid>");
            }
            // The kubelet reports a limit or does not, as it comes to reads at the pod's cgroup.
            "Pod" => {
                if let Some(status) = even.get_mut("status").and_then(Value::as_object_mut) {
                    status.remove("resources");
                }
            }
            _ => {}
        }
        even
    });
    Snapshot::of("at rest", evened)
}

/// Fields whose values are of this cluster alone.
const OWN: [&str; 13] = [
    "expiration",
    "containerID",
    "podIP",
    "ip",
    "podCIDR",
    "bootID",
    "jws-kubeconfig-abcdef",
    "client-ca-file",
    "requestheader-client-ca-file",
    "memory",
    "ephemeral-storage",
    "etcd",
    "availabilityZone",
];

fn plain(value: &mut Value, network: &str) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let own = OWN.contains(&key.as_str()) && value.is_string();
                if own || key == "podCIDRs" || key == "names" {
                    *value = json!(format!("<{key}>"));
                } else {
                    plain(value, network);
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|value| plain(value, network)),
        Value::String(text) => {
            let lines = text.lines().map(|line| {
                let own = ["certificate-authority-data: ", "- http://127.0.0.1:"];
                let cut = own.iter().find_map(|prefix| {
                    let at = line.find(prefix)?;
                    Some(format!("{}<own>", &line[..at + prefix.len()]))
                });
                cut.unwrap_or_else(|| line.replace(network, "10.<network>."))
            });
            *text = lines.collect::<Vec<_>>().join("\n");
        }
        _ => {}
    }
}

/// Why something is not the same, where that is meant.
fn expected(one: &parity::Difference) -> Option<&'static str> {
    let account = one.object.starts_with("ServiceAccount kube-system/");
    (account && one.ours == "nothing").then_some(
        "upstream makes the accounts of all of its controllers when it starts, Manifold that of a controller which first \
         writes",
    )
}

#[test]
#[ignore = "minutes, and real nodes: cargo parity"]
fn kubeadm_s_cluster_is_under_manifold_what_it_is_under_kube_controller_manager() {
    if !can_run("kubeadm: the cluster of kubeadm") {
        return;
    }
    let _alone = alone();
    run_test(async {
        let theirs = cluster_under(Manager::Upstream).await?;
        let ours = cluster_under(Manager::Manifold).await?;
        let objects = ours.snapshots[0]
            .objects
            .values()
            .map(Vec::len)
            .sum::<usize>();
        let differences = parity::outcomes("kubeadm", &theirs, &ours);
        let mut unexplained = 0;
        for one in &differences {
            match expected(one) {
                Some(why) => println!("kubeadm: expected ({why}): {one}"),
                None => {
                    unexplained += 1;
                    println!("kubeadm: {one}");
                }
            }
        }
        println!(
            "kubeadm: {objects} objects, {} differences, {unexplained} unexplained",
            differences.len()
        );
        ensure!(unexplained == 0, "{unexplained} differences");
        Ok(())
    });
}

#[test]
#[ignore = "minutes, and real nodes: cargo parity"]
fn a_kubelet_renews_its_certificate_under_manifold() {
    if !can_run("kubeadm: a kubelet renews its certificate") {
        return;
    }
    let _alone = alone();
    run_test(async {
        let settings = Settings {
            manager: &[SHORT],
            ..Settings::default()
        };
        let cluster = Kubeadm::init(settings).await?;
        cluster.apply("deploy/rbac").await?;
        let fleet = cluster.fleet()?.build().await?;
        let mut replicas = fleet.start_all(REPLICAS).await?;
        let node = cluster.join(0, "node-0").await?;
        let client = cluster.client().await?;
        usable(&client, 1).await?;
        let began = Instant::now();
        let link = node.file("var/lib/kubelet/pki/kubelet-client-current.pem");
        let first = std::fs::read_link(&link).context("the kubelet's certificate")?;
        until(
            "the kubelet has another certificate",
            RENEWED,
            POLL,
            || async { Ok((std::fs::read_link(&link)? != first).then_some(())) },
        )
        .await?;
        let renewed = began.elapsed();
        let requests = items(&cluster, "csr").await?;
        let own = requests
            .iter()
            .filter(|one| text_at(one, "/spec/username") == "system:node:node-0");
        let own = own.count();
        ensure!(own > 0, "nobody but the token asked: {requests:?}");
        // With the new one its health checks continue.
        usable(&client, 1).await?;
        println!("kubeadm: renewed after {renewed:.1?}, {own} requests of the node");
        all_end_well(&mut replicas).await
    });
}

/// What is different in two manifests: the path of each field, as in `/spec/hostNetwork`.
fn changed(path: &str, before: &Value, after: &Value, into: &mut BTreeSet<String>) {
    match (before, after) {
        (Value::Object(before), Value::Object(after)) => {
            for name in before.keys().chain(after.keys()) {
                let field = |of: &serde_json::Map<String, Value>| {
                    of.get(name).cloned().unwrap_or(Value::Null)
                };
                changed(
                    &format!("{path}/{name}"),
                    &field(before),
                    &field(after),
                    into,
                );
            }
        }
        (Value::Array(before), Value::Array(after)) if before.len() == after.len() => {
            for (index, (before, after)) in before.iter().zip(after).enumerate() {
                changed(&format!("{path}/{index}"), before, after, into);
            }
        }
        _ if before == after => {}
        _ => {
            into.insert(path.to_owned());
        }
    }
}

#[test]
#[ignore = "real nodes: cargo parity"]
fn kubeadm_s_patch_runs_manifold_under_the_manager_s_name_and_goes_without_a_trace() {
    if !can_run("kubeadm: the patch runs Manifold") {
        return;
    }
    let _alone = alone();
    run_test(async {
        let mut cluster = Kubeadm::init(Settings::default()).await?;
        let upstream = cluster.render_manager(None).await?;
        let patched = cluster.render_manager(Some(PATCHES)).await?;
        let (before, after): (Value, Value) = (
            serde_yaml::from_str(&upstream)?,
            serde_yaml::from_str(&patched)?,
        );
        let mut fields = BTreeSet::new();
        changed("", &before, &after, &mut fields);
        let container = "/spec/containers/0";
        let wanted = [
            "args",
            "env",
            "image",
            "ports",
            "securityContext",
            "volumeMounts",
        ];
        let mut wanted: BTreeSet<String> = wanted.map(|name| format!("{container}/{name}")).into();
        // The lock, and the witness that waits for it.
        wanted.extend(["/spec/initContainers", "/spec/volumes"].map(str::to_owned));
        ensure!(
            fields.is_subset(&wanted) && fields.contains(&format!("{container}/image")),
            "the patch changes {fields:?}:\n{patched}"
        );
        ensure!(
            text_at(&after, "/spec/containers/0/image").starts_with("localhost/manifold:"),
            "{patched}"
        );

        // The command line that the kubelet would start, by the name that the image has for it.
        cluster.apply("deploy/rbac").await?;
        let binary = harness::fleet::Profile::of_this_build();
        let binary = tokio::task::spawn_blocking(move || harness::fleet::binary(binary)).await??;
        let began = Instant::now();
        cluster.start_rendered(&binary)?;
        let client = cluster.client().await?;
        let deployments: Api<Deployment> = Api::namespaced(client.clone(), "default");
        create(&deployments, talking("web", PODS)).await?;
        until("its pods are made", PATIENCE, POLL, || async {
            Ok((names(&cluster, "pods").await?.len() == PODS as usize).then_some(()))
        })
        .await?;
        cluster.check()?;
        println!(
            "kubeadm: {} fields patched, pods made {:.1} s after its start",
            fields.len(),
            began.elapsed().as_secs_f64()
        );

        let rolled_back = cluster.render_manager(None).await?;
        ensure!(rolled_back == upstream, "without the patch:\n{rolled_back}");
        Ok(())
    });
}

/// A Deployment comes to its end, so somebody manages.
async fn works(client: &Client, name: &str) -> Result<()> {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), "default");
    create(&deployments, talking(name, 2)).await?;
    complete(&deployments, name, 2).await
}

/// The image that the host's static pod runs, as the kubelet reports it.
async fn managing_image(cluster: &Kubeadm) -> Result<String> {
    let pods = [
        "-n",
        "kube-system",
        "get",
        "pods",
        "-l",
        "component=kube-controller-manager",
        "-o",
        "jsonpath={.items[*].status.containerStatuses[*].image}",
    ];
    cluster.kubectl(&pods).await
}

#[test]
#[ignore = "minutes, and real nodes: cargo parity"]
fn kubeadm_swaps_manifold_in_and_out_on_a_host_and_two_managers_never_write_at_once() {
    if !can_run("kubeadm: a host is swapped in and out") {
        return;
    }
    let _alone = alone();
    run_test(async {
        let image = tokio::task::spawn_blocking(image::obtain)
            .await
            .context("building the image")??;
        println!("kubeadm: the image {image}");
        let settings = Settings {
            manager: &[FLEX_VOLUMES],
            audit_policy: Some(AUDIT_POLICY),
        };
        let mut cluster = Kubeadm::init(settings).await?;
        let began = Instant::now();
        let rights = async {
            tokio::time::sleep(RIGHTS_AFTER).await;
            cluster.apply("deploy/rbac").await
        };
        let host = cluster.host(Some(PATCHES), &image.path);
        let (host, ()) = futures::future::try_join(host, rights).await?;
        let client = cluster.client().await?;
        usable(&client, 1).await?;
        works(&client, "first").await?;
        println!(
            "kubeadm: the host's static pod manages {:.1?} after its node was started, {RIGHTS_AFTER:?} of it without rights",
            began.elapsed()
        );
        let worker = cluster.join(1, "node-1").await?;
        cluster.import_upstream(&worker).await?;
        usable(&client, 2).await?;

        for (step, (upgrade, patches)) in [
            (Upgrade::Apply, Some(PATCHES)),
            (Upgrade::Node, None),
            (Upgrade::Apply, Some(PATCHES)),
            (Upgrade::Apply, None),
            (Upgrade::Node, Some(PATCHES)),
        ]
        .into_iter()
        .enumerate()
        {
            let manifold = patches.is_some();
            let began = Instant::now();
            let said = cluster.upgrade(&host, upgrade, patches).await?;
            let upgraded = began.elapsed();
            ensure!(
                upgraded < HEALTH_CHECK,
                "step {step}: its Job has not ended:\n{said}"
            );
            let unchanged = said.contains("manifests of kube-controller-manager are equal");
            ensure!(unchanged == (step == 0), "step {step}:\n{said}");
            held_by(&client, manifold, PATIENCE).await?;
            let runs = managing_image(&cluster).await?;
            ensure!(
                runs.contains("/manifold:") == manifold,
                "step {step}: {runs:?} runs"
            );
            works(&client, &format!("step-{step}")).await?;
            println!(
                "kubeadm: upgrade {upgrade:?} with {}: {upgraded:.1?}, then {} manages; {:.1?} until a Deployment was \
                 complete",
                patches.unwrap_or("no patches"),
                holder(&client).await?,
                began.elapsed()
            );
        }

        // Upstream's manager by accident, and then the fleet's end without a farewell.
        cluster.start_kcm()?;
        let standby = from_environment("MANIFOLD_STANDBY_SECONDS", STANDBY)?;
        for _ in 0..standby {
            tokio::time::sleep(Duration::from_secs(1)).await;
            ensure!(holder(&client).await? == FLEET, "upstream has not waited");
        }
        let kill = "kill -KILL $(pidof kube-controller-manager)";
        host.run("/bin/sh", &["-c", kill]).await?;
        // Before the kubelet starts it again.
        let manifest = host.file("etc/kubernetes/manifests/kube-controller-manager.yaml");
        std::fs::remove_file(&manifest).context("taking the static pod away")?;
        let took = held_by(&client, false, PATIENCE).await?;
        println!(
            "kubeadm: upstream stood by for {standby} s, and holds the Lease {took:.1?} after the fleet was killed"
        );
        ensure!(took <= DURATION + READ_MAX + SLACK, "{took:?}");
        works(&client, "last").await?;
        let wanted = [
            "manifold", "upstream", "manifold", "upstream", "manifold", "upstream",
        ];
        took_turns(cluster.audit(), "kubeadm", &wanted)?;
        cluster.check()?;
        drop((host, worker));
        Ok(())
    });
}
