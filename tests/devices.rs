//! Devices that a real DRA driver publishes and the real scheduler allocates: the driver of Kubernetes' own
//! tests is the agent of each fake node. Claims are made, reserved, freed and evicted from as under upstream;
//! and hundreds of pods with claims, while replicas die, never have two claims for one entry nor one device
//! for two claims, and reservations are those of the pods that there are.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, future::try_join_all, pin_mut};
use harness::{ControlPlane, Fleet, Kcm, Replica, process::Process, run_test, until};
use k8s_openapi::api::{
    apps::v1::{Deployment, ReplicaSet},
    batch::v1::Job,
    core::v1::{Event, Pod},
    resource::{
        v1::{DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice},
        v1beta2::DeviceTaintRule,
    },
};
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{
    parity::{Normal, text_at},
    support::{POLL, Unrest, all_end_well, alone, beside, fleet_of},
};

/// The driver's own name.
const DRIVER: &str = "test-driver.cdi.k8s.io";
/// Marks a claim that was made for an entry of a pod.
const OF_ENTRY: &str = "resource.kubernetes.io/pod-claim-name";
/// For what is awaited on a machine that is busy with other tests.
const LIMIT: Duration = Duration::from_secs(180);
/// Nothing has changed for so long.
const AT_REST: Duration = Duration::from_secs(3);
const API_SERVER: [&str; 2] = [
    "--feature-gates=DRADeviceTaintRules=true",
    "--runtime-config=resource.k8s.io/v1beta2/devicetaintrules=true",
];
/// What both sides run.
const CONTROLLERS: [&str; 2] = [
    "--controllers=resourceclaim-controller,device-taint-eviction-controller,deployment-controller,\
     replicaset-controller,job-controller,garbage-collector-controller,serviceaccount-controller",
    "--feature-gates=DRADeviceTaintRules=true",
];

/// A cluster whose nodes have devices.
struct Bed {
    control_plane: ControlPlane,
    client: Client,
    namespace: String,
    _drivers: Vec<Process>,
}

impl Bed {
    async fn new(nodes: usize, devices: usize) -> Result<Self> {
        let builder = ControlPlane::builder().nodes(nodes);
        let builder = API_SERVER
            .iter()
            .fold(builder, |builder, flag| builder.api_server_arg(*flag));
        let control_plane = builder.start().await?;
        let client = control_plane.client().await?;
        let named = (0..nodes).map(|index| format!("node-{index}"));
        let drivers = named.map(|node| {
            let control_plane = &control_plane;
            async move { control_plane.start_dra_driver(&node, devices).await }
        });
        let drivers = try_join_all(drivers).await?;
        let namespace = control_plane.namespace("devices").await?;
        let bed = Self {
            control_plane,
            client,
            namespace,
            _drivers: drivers,
        };
        for (name, driver) in [("gpu", DRIVER), ("hand", "hand.example.com")] {
            let expression = format!("device.driver == {driver:?}");
            let class = json!({
                "metadata": {"name": name},
                "spec": {"selectors": [{"cel": {"expression": expression}}]},
            });
            bed.make(&Api::<DeviceClass>::all(bed.client.clone()), class)
                .await?;
        }
        for (name, count) in [("one", 1), ("two", 2)] {
            let request =
                json!({"name": "gpu", "exactly": {"deviceClassName": "gpu", "count": count}});
            let template = json!({
                "metadata": {"name": name},
                "spec": {"spec": {"devices": {"requests": [request]}}},
            });
            bed.make(&bed.api::<ResourceClaimTemplate>(), template)
                .await?;
        }
        let slices: Api<ResourceSlice> = Api::all(bed.client.clone());
        until(
            "the drivers have published devices",
            LIMIT,
            POLL,
            || async {
                let found = slices.list(&ListParams::default()).await?.items.len();
                ensure!(found == nodes, "{found} slices");
                Ok(Some(()))
            },
        )
        .await?;
        Ok(bed)
    }

    fn api<T>(&self) -> Api<T>
    where
        T: Resource<Scope = k8s_openapi::NamespaceResourceScope>,
        T::DynamicType: Default,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    async fn make<T>(&self, api: &Api<T>, object: Value) -> Result<T>
    where
        T: Clone + std::fmt::Debug + Serialize + DeserializeOwned,
    {
        let object = serde_json::from_value(object)?;
        Ok(api.create(&PostParams::default(), &object).await?)
    }

    /// Everything of a kind as JSON.
    async fn all<T>(&self, api: &Api<T>, kind: &str) -> Result<Vec<Value>>
    where
        T: Clone + std::fmt::Debug + Serialize + DeserializeOwned,
    {
        let items = api.list(&ListParams::default()).await?.items;
        items
            .iter()
            .map(|item| {
                let mut json = serde_json::to_value(item)?;
                json["kind"] = json!(kind);
                Ok(json)
            })
            .collect()
    }

    async fn claims(&self) -> Result<Vec<Value>> {
        self.all(&self.api::<ResourceClaim>(), "ResourceClaim")
            .await
    }

    async fn pods(&self) -> Result<Vec<Value>> {
        self.all(&self.api::<Pod>(), "Pod").await
    }

    /// Waits until pods and claims are as they should be.
    async fn until(&self, what: &str, so: impl Fn(&[Value], &[Value]) -> Result<()>) -> Result<()> {
        until(what, LIMIT, POLL * 4, || async {
            so(&self.pods().await?, &self.claims().await?)?;
            Ok(Some(()))
        })
        .await
    }
}

/// A pod's template with a claim of a template.
fn pod_with(template: &str, labels: &Value) -> Value {
    json!({
        "metadata": {"labels": labels},
        "spec": pod_spec(&json!({"name": "gpu", "resourceClaimTemplateName": template})),
    })
}

fn pod_spec(claim: &Value) -> Value {
    json!({
        "resourceClaims": [claim],
        "containers": [{"name": "app", "image": "example/app:1", "resources": {"claims": [{"name": claim["name"]}]}}],
    })
}

fn uid(object: &Value) -> &str {
    text_at(object, "/metadata/uid")
}

fn list<'v>(object: &'v Value, pointer: &str) -> impl Iterator<Item = &'v Value> {
    object
        .pointer(pointer)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
}

fn is_terminal(pod: &Value) -> bool {
    ["Succeeded", "Failed"].contains(&text_at(pod, "/status/phase"))
}

fn is_running(pod: &Value) -> bool {
    text_at(pod, "/status/phase") == "Running"
        && pod.pointer("/metadata/deletionTimestamp").is_none()
}

fn devices(claim: &Value) -> Vec<String> {
    list(claim, "/status/allocation/devices/results")
        .map(|one| {
            let [driver, pool, device] =
                ["/driver", "/pool", "/device"].map(|pointer| text_at(one, pointer));
            format!("{driver}/{pool}/{device}")
        })
        .collect()
}

/// The pods that a claim is reserved for, by uid.
fn reserved(claim: &Value) -> impl Iterator<Item = &str> {
    list(claim, "/status/reservedFor").map(|one| text_at(one, "/uid"))
}

/// The pod and the entry that a claim was made for.
fn made_for(claim: &Value) -> Option<(String, String)> {
    let entry = claim
        .pointer("/metadata/annotations")?
        .get(OF_ENTRY)?
        .as_str()?;
    let owner = list(claim, "/metadata/ownerReferences").find(|one| one["controller"] == true)?;
    Some((text_at(owner, "/uid").to_owned(), entry.to_owned()))
}

/// What must be so at rest: an entry has one claim and a device one claim; claims are reserved for all pods
/// that use them and may run, and for nobody else.
fn judge(pods: &[Value], claims: &[Value]) -> Result<()> {
    let by_uid: BTreeMap<&str, &Value> = pods.iter().map(|pod| (uid(pod), pod)).collect();
    let by_name: BTreeMap<&str, &Value> = (claims
        .iter()
        .map(|claim| (text_at(claim, "/metadata/name"), claim)))
    .collect();
    let (mut entries, mut taken) = (BTreeMap::new(), BTreeMap::new());
    for claim in claims {
        let name = text_at(claim, "/metadata/name");
        if let Some(entry) = made_for(claim) {
            let other = entries.insert(entry.clone(), name);
            ensure!(
                other.is_none(),
                "{entry:?} has the claims {other:?} and {name}"
            );
            ensure!(
                by_uid.contains_key(&*entry.0),
                "{name} is left of a pod that is gone"
            );
        }
        for device in devices(claim) {
            let other = taken.insert(device.clone(), name);
            ensure!(
                other.is_none(),
                "{device} is allocated to {other:?} and {name}"
            );
        }
        for pod in reserved(claim) {
            let found = by_uid.get(pod).context("a pod that is gone");
            let pod = found.with_context(|| format!("{name} is reserved"))?;
            ensure!(
                !is_terminal(pod),
                "{name} is reserved for a pod that has ended"
            );
        }
    }
    for pod in pods.iter().filter(|pod| is_running(pod)) {
        let name = text_at(pod, "/metadata/name");
        for entry in list(pod, "/spec/resourceClaims") {
            let entry_name = text_at(entry, "/name");
            let reported = list(pod, "/status/resourceClaimStatuses")
                .find(|one| text_at(one, "/name") == entry_name)
                .map(|one| text_at(one, "/resourceClaimName"));
            let given = Some(text_at(entry, "/resourceClaimName")).filter(|name| !name.is_empty());
            let claim = given
                .or(reported)
                .with_context(|| format!("{name} names no claim"))?;
            let claim = by_name
                .get(claim)
                .with_context(|| format!("{name}: {claim} is missing"))?;
            ensure!(!devices(claim).is_empty(), "{name} runs without devices");
            ensure!(
                reserved(claim).any(|one| one == uid(pod)),
                "{name} has no reservation"
            );
        }
    }
    Ok(())
}

/// Entry of a pod → uids of the claims that were ever made for it.
type Made = Arc<Mutex<BTreeMap<(String, String), BTreeSet<String>>>>;

/// Follows all claims that are made.
async fn follow(api: Api<ResourceClaim>, made: Made) -> Result<()> {
    let mut version = "0".to_owned();
    loop {
        let stream = api.watch(&WatchParams::default(), &version).await?;
        pin_mut!(stream);
        while let Some(event) = stream.next().await {
            match event {
                Ok(
                    WatchEvent::Added(claim)
                    | WatchEvent::Modified(claim)
                    | WatchEvent::Deleted(claim),
                ) => {
                    version = claim.metadata.resource_version.clone().unwrap_or_default();
                    let json = serde_json::to_value(&claim)?;
                    if let Some(entry) = made_for(&json) {
                        let mut made = made.lock().unwrap_or_else(PoisonError::into_inner);
                        made.entry(entry).or_default().insert(uid(&json).to_owned());
                    }
                }
                Ok(WatchEvent::Bookmark(mark)) => version = mark.metadata.resource_version,
                Ok(WatchEvent::Error(status)) => anyhow::bail!("the watch of claims: {status:?}"),
                Err(_) => break,
            }
        }
    }
}

const MANY_NODES: usize = 6;
/// 600 devices.
const MANY_DEVICES: usize = 100;
const SET: i32 = 400;
const COMPLETIONS: i32 = 100;
const REPLICAS: usize = 3;

#[test]
#[ignore = "minutes: cargo parity"]
fn claims_of_500_pods_are_never_doubled_and_reservations_are_right_while_replicas_die() {
    let _alone = alone();
    run_test(async {
        let bed = Bed::new(MANY_NODES, MANY_DEVICES).await?;
        let fleet = fleet_of(&bed.control_plane, &CONTROLLERS).await?;
        let mut replicas = fleet.start_all(REPLICAS).await?;
        let made = Made::default();
        let following = tokio::spawn(follow(bed.api(), Arc::clone(&made)));
        let unrest = Unrest {
            moved: 30,
            kill_every: Duration::from_secs(8),
            kills_max: 4 * REPLICAS,
        };
        let begun = Instant::now();
        let sets: Api<ReplicaSet> = bed.api();
        let count = |set: usize, ended: usize| {
            move |pods: &[Value], claims: &[Value]| {
                let running = pods.iter().filter(|pod| is_running(pod)).count();
                let done = pods.iter().filter(|pod| is_terminal(pod)).count();
                ensure!(
                    (running, done, pods.len()) == (set, ended, set + ended),
                    "{running} run and {done} have ended of {}",
                    pods.len()
                );
                ensure!(claims.len() == set, "{} claims", claims.len());
                judge(pods, claims)
            }
        };
        let scale = async |replicas: i32| {
            let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
            sets.patch("set", &PatchParams::default(), &patch).await
        };
        let (all, some) = (usize::try_from(SET)?, usize::try_from(SET / 4)?);
        let ended = usize::try_from(COMPLETIONS)?;
        let work = async {
            let labels = json!({"app": "set"});
            let set = json!({
                "metadata": {"name": "set"},
                "spec": {"replicas": SET, "selector": {"matchLabels": labels}, "template": pod_with("one", &labels)},
            });
            bed.make(&sets, set).await?;
            let mut template = pod_with("one", &json!({}));
            template["spec"]["restartPolicy"] = json!("Never");
            let job = json!({
                "metadata": {"name": "job"},
                "spec": {"completions": COMPLETIONS, "parallelism": COMPLETIONS, "completionMode": "Indexed", "template": template},
            });
            bed.make(&bed.api::<Job>(), job).await?;
            bed.until("all pods run or have ended", count(all, ended))
                .await?;
            scale(SET / 4).await?;
            bed.until("three quarters are gone", count(some, ended))
                .await?;
            scale(SET).await?;
            bed.until("all are back", count(all, ended)).await
        };
        let ((), moves, kills) = unrest
            .during(work, &fleet, &mut replicas, &bed.client)
            .await?;
        let took = begun.elapsed();
        ensure!(!following.is_finished(), "the watch of claims has ended");
        following.abort();
        let made = made.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let doubled: Vec<_> = made.iter().filter(|(_, claims)| claims.len() > 1).collect();
        let expected = all + (all - some) + ended;
        println!(
            "devices: {} claims for {} entries in {took:.0?}, {moves} moves, {kills} kills, {} doubled",
            made.values().map(BTreeSet::len).sum::<usize>(),
            made.len(),
            doubled.len(),
        );
        ensure!(doubled.is_empty(), "doubled: {doubled:?}");
        ensure!(
            made.len() >= expected,
            "only {} of {expected} entries had claims",
            made.len()
        );
        all_end_well(&mut replicas).await
    });
}

/// Who runs the controllers.
#[allow(clippy::large_enum_variant, reason = "one of a test")]
enum Manager {
    Upstream(Kcm),
    Ours {
        _fleet: Fleet,
        replicas: Vec<Replica>,
    },
}

/// What was found at each reads: objects and events with what differs by nature made equal, and their number.
type Snapshots = BTreeMap<&'static str, BTreeMap<String, usize>>;

/// A side of the comparison under way.
struct Side {
    bed: Bed,
    normal: Normal,
    snapshots: Snapshots,
}

impl Side {
    fn learn<T: Serialize>(&mut self, kind: &str, object: &T) -> Result<()> {
        let mut json = serde_json::to_value(object)?;
        json["kind"] = json!(kind);
        self.normal.learn(&json);
        Ok(())
    }

    /// Claims, pods, rules, and the events of the two controllers.
    async fn state(&mut self) -> Result<BTreeMap<String, usize>> {
        let bed = &self.bed;
        let rules = Api::<DeviceTaintRule>::all(bed.client.clone());
        let rules = bed.all(&rules, "DeviceTaintRule").await?;
        let sets = bed.all(&bed.api::<ReplicaSet>(), "ReplicaSet").await?;
        let [claims, pods] = [bed.claims().await?, bed.pods().await?];
        // Owners before what they own.
        for object in sets.iter().chain(&pods).chain(&claims).chain(&rules) {
            if !self.normal.knows(object) {
                self.normal.learn(object);
            }
        }
        // Claims that are gone stay in the statuses of the pods that they were made for.
        for pod in &pods {
            let name = text_at(pod, "/metadata/name");
            for one in list(pod, "/status/resourceClaimStatuses") {
                self.normal
                    .learn(&json!({"kind": "ResourceClaim", "metadata": {
                        "name": one["resourceClaimName"],
                        "generateName": format!("{name}-{}-", text_at(one, "/name")),
                        "ownerReferences": [{"controller": true, "kind": "Pod", "name": name}],
                    }}));
            }
        }
        let mut state = BTreeMap::new();
        for mut object in claims.into_iter().chain(pods).chain(rules) {
            if let Some(meta) = object["metadata"].as_object_mut() {
                // Each manager has a name of its own as a client, and each side a namespace.
                meta.remove("managedFields");
                meta.remove("namespace");
            }
            if object["kind"] == "Pod" {
                // What the scheduler, kwok and admission have said of it.
                let status = object["status"].take();
                object["status"] = json!({
                    "phase": status["phase"],
                    "resourceClaimStatuses": status["resourceClaimStatuses"],
                });
            }
            let text = self.normal.object(&object).to_string();
            *state.entry(plain(&text)).or_default() += 1;
        }
        let events: Api<Event> = Api::all(bed.client.clone());
        for event in events.list(&ListParams::default()).await?.items {
            let source = event.source.and_then(|source| source.component);
            let source = source.or(event.reporting_component).unwrap_or_default();
            if !["resource_claim", "device-taint-eviction-controller"].contains(&&*source) {
                continue;
            }
            let message = event.message.unwrap_or_default();
            let about = event.involved_object;
            let text = format!(
                "event of {source} about {} {}: {} {} {message}",
                about.kind.unwrap_or_default(),
                about.name.unwrap_or_default(),
                event.type_.unwrap_or_default(),
                event.reason.unwrap_or_default(),
            );
            let text =
                plain(&self.normal.text(&text, false)).replace(&bed.namespace, "<namespace>");
            *state.entry(text).or_default() += 1;
        }
        Ok(state)
    }

    async fn snapshot(&mut self, what: &'static str) -> Result<()> {
        let (mut last, mut since) = (self.state().await?, Instant::now());
        let begun = Instant::now();
        while since.elapsed() < AT_REST && begun.elapsed() < LIMIT {
            tokio::time::sleep(POLL * 4).await;
            let state = self.state().await?;
            if state != last {
                (last, since) = (state, Instant::now());
            }
        }
        judge(&self.bed.pods().await?, &self.bed.claims().await?)?;
        self.snapshots.insert(what, last);
        Ok(())
    }

    async fn pod(&mut self, name: &str, claim: Value) -> Result<()> {
        let pod = json!({"metadata": {"name": name}, "spec": pod_spec(&claim)});
        let made = self.bed.make(&self.bed.api::<Pod>(), pod).await?;
        self.learn("Pod", &made)
    }

    async fn claim(&mut self, name: &str, class: &str) -> Result<()> {
        let request = json!({"name": "gpu", "exactly": {"deviceClassName": class}});
        let claim =
            json!({"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}});
        let made = self
            .bed
            .make(&self.bed.api::<ResourceClaim>(), claim)
            .await?;
        self.learn("ResourceClaim", &made)
    }

    async fn running(&self, wanted: usize) -> Result<()> {
        let what = format!("{wanted} pods run");
        let so = |pods: &[Value], _: &[Value]| {
            let running = pods.iter().filter(|pod| is_running(pod)).count();
            ensure!(running == wanted, "{running}");
            Ok(())
        };
        self.bed.until(&what, so).await
    }

    async fn gone(&self, name: &str) -> Result<()> {
        let what = format!("{name} is gone");
        let so = |pods: &[Value], _: &[Value]| {
            ensure!(
                pods.iter()
                    .all(|pod| text_at(pod, "/metadata/name") != name),
                "it is there"
            );
            Ok(())
        };
        self.bed.until(&what, so).await
    }

    async fn delete(&self, name: &str) -> Result<()> {
        self.bed
            .api::<Pod>()
            .delete(name, &DeleteParams::default())
            .await?;
        self.gone(name).await
    }

    /// The deeds of both sides.
    async fn play(&mut self) -> Result<()> {
        let labels = json!({"app": "web"});
        let deployment = json!({
            "metadata": {"name": "web"},
            "spec": {"replicas": 4, "selector": {"matchLabels": labels}, "template": pod_with("two", &labels)},
        });
        self.bed
            .make(&self.bed.api::<Deployment>(), deployment)
            .await?;
        self.claim("shared", "gpu").await?;
        for name in ["left", "right"] {
            self.pod(name, json!({"name": "gpu", "resourceClaimName": "shared"}))
                .await?;
        }
        self.running(6).await?;
        self.snapshot("allocated and reserved").await?;

        let mut template = pod_with("one", &json!({}));
        template["spec"]["restartPolicy"] = json!("Never");
        let job = json!({
            "metadata": {"name": "job"},
            "spec": {"completions": 2, "parallelism": 2, "completionMode": "Indexed", "template": template},
        });
        self.bed.make(&self.bed.api::<Job>(), job).await?;
        self.bed
            .until("the Job's pods have ended", |pods, _| {
                let ended = pods.iter().filter(|pod| is_terminal(pod)).count();
                ensure!(ended == 2, "{ended}");
                Ok(())
            })
            .await?;
        self.snapshot("the Job's claims are gone").await?;

        self.delete("left").await?;
        self.snapshot("reserved for one").await?;
        self.delete("right").await?;
        self.snapshot("not allocated").await?;
        self.pod(
            "again",
            json!({"name": "gpu", "resourceClaimName": "shared"}),
        )
        .await?;
        self.running(5).await?;
        let patch = Patch::Merge(json!({"spec": {"replicas": 1}}));
        let deployments: Api<Deployment> = self.bed.api();
        deployments
            .patch("web", &PatchParams::default(), &patch)
            .await?;
        self.running(2).await?;
        self.snapshot("scaled down").await?;

        // A rule for the one device that a pod uses.
        let shared = self.bed.api::<ResourceClaim>().get("shared").await?;
        let shared = serde_json::to_value(&shared)?;
        let used = list(&shared, "/status/allocation/devices/results").next();
        let used = used.context("it is not allocated")?;
        let rules: Api<DeviceTaintRule> = Api::all(self.bed.client.clone());
        let rule = json!({
            "metadata": {"name": "broken"},
            "spec": {
                "deviceSelector": {"driver": used["driver"], "pool": used["pool"], "device": used["device"]},
                "taint": {"key": "example.com/broken", "effect": "None"},
            },
        });
        self.bed.make(&rules, rule).await?;
        self.snapshot("a rule without effect").await?;
        let patch = Patch::Merge(json!({"spec": {"taint": {"effect": "NoExecute"}}}));
        rules
            .patch("broken", &PatchParams::default(), &patch)
            .await?;
        self.gone("again").await?;
        // A rule's status is written every ten seconds at most.
        until("the rule is done", LIMIT, POLL * 4, || async {
            let rule = serde_json::to_value(rules.get("broken").await?)?;
            let mut conditions = list(&rule, "/status/conditions");
            let done = conditions.any(|one| text_at(one, "/reason") == "Completed");
            Ok(done.then_some(()))
        })
        .await?;
        self.snapshot("evicted by a rule").await?;

        // A taint that the driver itself publishes.
        let slices: Api<ResourceSlice> = Api::all(self.bed.client.clone());
        let slice = json!({
            "metadata": {"name": "by-hand"},
            "spec": {
                "driver": "hand.example.com",
                "pool": {"name": "hand", "generation": 1, "resourceSliceCount": 1},
                "allNodes": true,
                "devices": [{"name": "tool"}, {"name": "spare"}],
            },
        });
        self.bed.make(&slices, slice).await?;
        self.claim("tool", "hand").await?;
        self.pod("handy", json!({"name": "gpu", "resourceClaimName": "tool"}))
            .await?;
        self.running(2).await?;
        self.snapshot("a tool").await?;
        let taint = json!([{"key": "example.com/worn", "effect": "NoExecute"}]);
        let patch = json!({"spec": {"devices": [{"name": "tool", "taints": taint}, {"name": "spare", "taints": taint}]}});
        slices
            .patch("by-hand", &PatchParams::default(), &Patch::Merge(patch))
            .await?;
        self.gone("handy").await?;
        self.snapshot("evicted by the driver").await
    }
}

/// The number of the device and the times in a text made equal.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("device-") {
        let (before, found) = rest.split_at(at + "device-".len());
        plain.push_str(before);
        let end = found
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(found.len());
        plain.push_str(if end > 0 { "<number>" } else { "" });
        rest = &found[end..];
    }
    plain.push_str(rest);
    plain
}

async fn side(ours: bool) -> Result<Snapshots> {
    let bed = Bed::new(3, 8).await?;
    let mut manager = if ours {
        let fleet = fleet_of(&bed.control_plane, &CONTROLLERS).await?;
        let replicas = fleet.start_all(REPLICAS).await?;
        Manager::Ours {
            _fleet: fleet,
            replicas,
        }
    } else {
        let mut flags = CONTROLLERS.to_vec();
        flags.push("--leader-elect=false");
        Manager::Upstream(bed.control_plane.start_kcm(&flags).await?)
    };
    let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> = bed.api();
    until("the namespace has its account", LIMIT, POLL, || async {
        Ok(accounts.get_opt("default").await?)
    })
    .await?;
    let mut side = Side {
        bed,
        normal: Normal::default(),
        snapshots: Snapshots::new(),
    };
    let played = side.play().await;
    played.context(if ours { "Manifold" } else { "upstream" })?;
    match &mut manager {
        Manager::Upstream(kcm) => kcm.process().kill(),
        Manager::Ours { replicas, .. } => all_end_well(replicas).await?,
    }
    Ok(side.snapshots)
}

#[test]
#[ignore = "minutes: cargo parity"]
fn a_real_driver_s_devices_are_allocated_reserved_and_evicted_from_as_under_upstream() {
    let _beside = beside();
    run_test(async {
        let (theirs, ours) = tokio::try_join!(side(false), side(true))?;
        let mut wrong = Vec::new();
        let mut equal = 0;
        for (snapshot, theirs) in &theirs {
            let ours = &ours[snapshot];
            for text in theirs.keys().chain(ours.keys()).collect::<BTreeSet<_>>() {
                let counts = [theirs, ours].map(|side| side.get(text).copied().unwrap_or(0));
                match counts[0] == counts[1] {
                    true => equal += counts[0],
                    false => wrong.push(format!(
                        "{snapshot}: theirs {}, ours {}: {text}",
                        counts[0], counts[1]
                    )),
                }
            }
        }
        println!(
            "devices: {} snapshots, {equal} objects and events equal, {} not",
            theirs.len(),
            wrong.len()
        );
        ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
        Ok(())
    });
}
