//! Scenarios as data: what is in `scenarios/*.yaml`, and what its manifests leave out.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail, ensure};
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::api::kind_of;

/// Which controllers a scenario is played under.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Among {
    /// Those of workloads alone: what nobody owns any more stays where it is, and can be compared.
    #[default]
    Workloads,
    /// Those that clear up, count and publish too.
    Everything,
    /// The same, and those that bind, attach, expand and protect volumes: the manager is exchanged. Volumes
    /// and classes are compared where their names begin with the scenario's, attachments where their nodes'
    /// do.
    Swapped,
    /// Those of identities: certificates, tokens, aggregated roles. Objects outside the namespace are
    /// compared too, where they have the label `parity: <scenario>`.
    Identity,
    /// Those of nodes: what becomes of nodes is theirs, and not the suite's.
    Nodes,
    /// Those that protect claims and volumes, make and expand claims; none binds, so that phases are the
    /// scenario's.
    Storage,
    /// Those that bind: volumes and classes are compared where their names begin with the scenario's.
    Volumes,
    /// The one that attaches volumes to nodes: nodes and volumes are compared where their names begin with
    /// the scenario's, attachments where their nodes' do.
    Attach,
    /// Those of stored versions, on an API server that has them: migrations, definitions and what they define
    /// are compared where their names begin with the scenario's.
    StoredVersions,
    /// Those of tainted devices and of questions about pools, with the gates of rules and of questions:
    /// slices, rules and requests are compared where their names begin with the scenario's.
    Devices,
    /// The one that makes, reserves and frees claims to devices; steps play scheduler and kubelet.
    Claims,
    /// The same with claims of PodGroups, the one that keeps PodGroups, and Jobs that have them.
    PodGroups,
    /// The one that warns of SELinux labels, which is off by default; steps bind claims and volumes. Volumes
    /// are compared where their names begin with the scenario's.
    Labels,
    /// The pod garbage collector alone, which leaves two pods that have ended in the whole cluster.
    FewEnded,
    /// Those that examine what there is when they start. The manager starts where the scenario has its swap;
    /// namespaces have no accounts of their own. Objects outside the namespace as with [`Among::Identity`].
    AtStart,
}

impl Among {
    /// Whether objects outside a scenario's namespace are compared.
    pub(crate) fn is_elsewhere(self) -> bool {
        matches!(self, Self::Identity | Self::AtStart)
    }
}

const FILES: &[(&str, Among, &str)] = &[
    // Before anybody else leaves pods that have ended.
    (
        "threshold",
        Among::FewEnded,
        include_str!("scenarios/threshold.yaml"),
    ),
    (
        "deployment",
        Among::Workloads,
        include_str!("scenarios/deployment.yaml"),
    ),
    (
        "replicaset",
        Among::Workloads,
        include_str!("scenarios/replicaset.yaml"),
    ),
    (
        "statefulset",
        Among::Workloads,
        include_str!("scenarios/statefulset.yaml"),
    ),
    (
        "daemonset",
        Among::Workloads,
        include_str!("scenarios/daemonset.yaml"),
    ),
    (
        "disruption",
        Among::Workloads,
        include_str!("scenarios/disruption.yaml"),
    ),
    ("job", Among::Workloads, include_str!("scenarios/job.yaml")),
    (
        "cronjob",
        Among::Workloads,
        include_str!("scenarios/cronjob.yaml"),
    ),
    (
        "garbage",
        Among::Everything,
        include_str!("scenarios/garbage.yaml"),
    ),
    (
        "namespace",
        Among::Everything,
        include_str!("scenarios/namespace.yaml"),
    ),
    (
        "endpoints",
        Among::Everything,
        include_str!("scenarios/endpoints.yaml"),
    ),
    (
        "quota",
        Among::Everything,
        include_str!("scenarios/quota.yaml"),
    ),
    (
        "identity",
        Among::Identity,
        include_str!("scenarios/identity.yaml"),
    ),
    (
        "policies",
        Among::Identity,
        include_str!("scenarios/policies.yaml"),
    ),
    (
        "start",
        Among::AtStart,
        include_str!("scenarios/start.yaml"),
    ),
    ("nodes", Among::Nodes, include_str!("scenarios/nodes.yaml")),
    (
        "storage",
        Among::Storage,
        include_str!("scenarios/storage.yaml"),
    ),
    (
        "volumes",
        Among::Volumes,
        include_str!("scenarios/volumes.yaml"),
    ),
    (
        "attach",
        Among::Attach,
        include_str!("scenarios/attach.yaml"),
    ),
    (
        "selinux",
        Among::Labels,
        include_str!("scenarios/selinux.yaml"),
    ),
    (
        "devices-claims",
        Among::Claims,
        include_str!("scenarios/devices-claims.yaml"),
    ),
    (
        "storage-versions",
        Among::StoredVersions,
        include_str!("scenarios/storage-versions.yaml"),
    ),
    (
        "devices-taints",
        Among::Devices,
        include_str!("scenarios/devices-taints.yaml"),
    ),
    (
        "devices-podgroups",
        Among::PodGroups,
        include_str!("scenarios/devices-podgroups.yaml"),
    ),
    (
        "job-groups",
        Among::PodGroups,
        include_str!("scenarios/job-groups.yaml"),
    ),
];

/// Those in which the manager is exchanged.
const SWAPS: &str = include_str!("scenarios/swap.yaml");

/// One story, in a namespace named after it.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Scenario {
    pub(crate) name: String,
    /// Among those of `cargo verify`.
    #[serde(default)]
    pub(crate) verify: bool,
    /// Whether every pending pod is run as soon as it is seen.
    #[serde(default)]
    pub(crate) kubelet: bool,
    /// What it is about, for readers.
    #[serde(default)]
    pub(crate) about: String,
    /// What it needs for itself: scenarios that name the same are played one after the other.
    #[serde(default)]
    pub(crate) in_turn: Option<String>,
    #[serde(skip)]
    pub(crate) among: Among,
    pub(crate) steps: Vec<Step>,
}

impl Scenario {
    fn swaps(&self) -> usize {
        let is_swap = |step: &&Step| matches!(step, Step::Swap(_));
        self.steps.iter().filter(is_swap).count()
    }
}

/// One deed. Steps follow each other at once; what must be waited for is awaited.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Step {
    /// Makes an object; see [`filled`] for what its manifest may leave out.
    Make(Value),
    /// A merge patch.
    Change(Change),
    /// A JSON patch, for lists.
    Edit(Change),
    /// A merge patch of the status.
    Status(Change),
    /// A merge patch of the approval of a CertificateSigningRequest.
    Approval(Change),
    /// Deletes an object.
    Delete(Delete),
    /// A command in the scenario's namespace.
    Kubectl(String),
    /// Does something to some pods, as a kubelet or an operator would; waits until there are enough.
    Pods(Pods),
    /// Waits for facts of an object. One that reports an `observedGeneration` must be up to date.
    Wait(Wait),
    /// Waits for this many pods.
    WaitPods(WaitPods),
    /// Makes, changes or deletes a node of the scenario's own.
    Node(Node),
    /// Waits until the manager has written nothing to the namespace for a while.
    Rest(Nothing),
    /// Comes to rest, and remembers what there is under this name.
    Snapshot(String),
    /// Does nothing for this number of seconds, while the manager continues to try.
    Pause(u64),
    /// The manager is exchanged here, where a suite does so, and starts here where it starts late.
    Swap(Nothing),
}

/// `rest: {}`
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Nothing {}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Change {
    /// `<kind>/<name>`; `<kind>/~<prefix>` is the one whose name was generated with this prefix.
    pub(crate) of: String,
    pub(crate) to: Value,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Delete {
    pub(crate) of: String,
    /// `Background`, `Orphan` or `Foreground`.
    #[serde(default = "background")]
    pub(crate) how: String,
}

fn background() -> String {
    "Background".to_owned()
}

/// Which pods, and what becomes of them.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct Pods {
    /// Value of the label `app`.
    pub(crate) of: String,
    pub(crate) turn: Turn,
    #[serde(default = "one")]
    pub(crate) count: usize,
    /// Completion index or ordinal; any, where it is left out.
    pub(crate) index: Option<u32>,
    /// Of this phase; where it is left out, `Pending` for `run`, else any that is not final.
    pub(crate) phase: Option<String>,
    /// Those that are being deleted instead of those that are not.
    #[serde(default)]
    pub(crate) terminating: bool,
    /// For `fail`.
    #[serde(default = "one")]
    pub(crate) exit_code: usize,
    /// For `fail`: a condition that is true.
    pub(crate) condition: Option<String>,
    /// For `change`.
    pub(crate) to: Option<Value>,
}

impl Pods {
    /// Any pending pod, to be run.
    pub(crate) fn to_run() -> Self {
        Self {
            of: String::new(),
            turn: Turn::Run,
            count: 1,
            index: None,
            phase: None,
            terminating: false,
            exit_code: 0,
            condition: None,
            to: None,
        }
    }
}

fn one() -> usize {
    1
}

fn yes() -> bool {
    true
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Turn {
    /// Running and ready.
    Run,
    /// Running, not ready.
    Unready,
    /// Its containers have ended badly.
    Fail,
    /// Its containers have ended well.
    Succeed,
    /// Somebody deletes it.
    Delete,
    /// Somebody asks for its eviction; it is granted.
    Evict,
    /// The kubelet is done with it: it is gone from the server.
    End,
    /// A merge patch.
    Change,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Wait {
    pub(crate) of: String,
    /// Path with dots, or a JSON pointer → value. `condition.X` is the status of a condition, `reason.X` its
    /// reason, `taint.X:Y` whether a node has the taint X with effect Y, null means absent. Nothing at all:
    /// the object is there.
    #[serde(default)]
    pub(crate) until: BTreeMap<String, Value>,
    /// That it is not there.
    #[serde(default)]
    pub(crate) gone: bool,
    /// Seconds that it may take at most, for what must come in time.
    pub(crate) within: Option<u64>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WaitPods {
    pub(crate) of: String,
    pub(crate) count: usize,
    pub(crate) phase: Option<String>,
    #[serde(default)]
    pub(crate) terminating: bool,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Node {
    /// A node with these labels and the taint `parity`, so that only those come who want to; ready, unless it
    /// has no kubelet.
    Add {
        name: String,
        #[serde(default)]
        labels: BTreeMap<String, String>,
        #[serde(default = "yes")]
        kubelet: bool,
        #[serde(default)]
        annotations: BTreeMap<String, String>,
        /// What its spec has besides.
        #[serde(default)]
        spec: Map<String, Value>,
    },
    /// A merge patch; a taint list is itself.
    Change {
        name: String,
        to: Value,
    },
    Delete {
        name: String,
    },
}

/// Every scenario of every file.
pub(crate) fn all() -> Result<Vec<Scenario>> {
    let mut all = Vec::new();
    for (file, among, text) in FILES {
        let mut scenarios = parse(text).with_context(|| format!("scenarios/{file}.yaml"))?;
        for scenario in &mut scenarios {
            scenario.among = *among;
            ensure!(
                scenario.swaps() == usize::from(*among == Among::AtStart),
                "{} has {} swaps",
                scenario.name,
                scenario.swaps()
            );
        }
        all.append(&mut scenarios);
    }
    let mut names = BTreeSet::new();
    for scenario in &all {
        ensure!(
            names.insert(scenario.name.clone()),
            "two scenarios are called {}",
            scenario.name
        );
    }
    Ok(all)
}

/// Those in which the manager is exchanged, twice each.
pub(crate) fn swaps() -> Result<Vec<Scenario>> {
    let mut swaps = parse(SWAPS).context("scenarios/swap.yaml")?;
    for scenario in &mut swaps {
        scenario.among = Among::Swapped;
        let count = scenario.swaps();
        ensure!(count == 2, "{} has {count} swaps, not 2", scenario.name);
    }
    Ok(swaps)
}

/// Reads a file. Each scenario is read for itself, so that an error names it.
pub(crate) fn parse(text: &str) -> Result<Vec<Scenario>> {
    let values: Vec<Value> = serde_yaml::from_str(text)?;
    values
        .into_iter()
        .map(|value| {
            let name = value["name"]
                .as_str()
                .unwrap_or("without a name")
                .to_owned();
            let scenario: Scenario =
                serde_json::from_value(value).with_context(|| format!("the scenario {name}"))?;
            for step in &scenario.steps {
                if let Step::Make(manifest) = step {
                    filled(manifest).with_context(|| format!("the scenario {name}"))?;
                }
            }
            Ok(scenario)
        })
        .collect()
}

/// A manifest with what it may leave out: `apiVersion`; for workloads a selector and a template of one
/// container with the label `app: <name>`, into which what it says is merged. `pods: by-hand` binds the
/// pods to a node without a kubelet, so that nothing happens to them but what steps do; `pods: gated`
/// holds them back from the scheduler, so that they also vanish at once when they are deleted.
pub(crate) fn filled(manifest: &Value) -> Result<Value> {
    let mut object = manifest.clone();
    let kind = kind_of(
        object["kind"]
            .as_str()
            .context("a manifest without a kind")?,
    )?;
    let name = object["metadata"]["name"]
        .as_str()
        .with_context(|| format!("a {} without a name", kind.name))?
        .to_owned();
    object["apiVersion"] = json!(kind.version);
    // They are fetched when the object is made.
    owners(manifest)?;
    if let Some(map) = object.as_object_mut() {
        map.remove("owners");
        map.remove("by");
        if let Some(request) = map.remove("request") {
            object["spec"]["request"] = json!(pkcs10(&request)?);
        }
    }
    let pods = object.as_object_mut().and_then(|map| map.remove("pods"));
    let labels = json!({"app": name});
    let restart = if matches!(kind.name, "Job" | "CronJob") {
        "Never"
    } else {
        "Always"
    };
    let mut template = json!({
        "metadata": {"labels": labels},
        "spec": {
            "restartPolicy": restart,
            "containers": [{"name": "app", "image": "example/app:1"}],
        },
    });
    match pods.as_ref().and_then(Value::as_str) {
        None if pods.is_none() => {}
        Some("by-hand") => template["spec"]["nodeName"] = json!("by-hand"),
        Some("gated") => {
            template["spec"]["schedulingGates"] = json!([{"name": "example.com/hand"}]);
        }
        _ => bail!("{} {name}: `pods` is by-hand or gated", kind.name),
    }
    let defaults = match kind.name {
        "Deployment" | "ReplicaSet" | "DaemonSet" => {
            json!({"selector": {"matchLabels": labels}, "template": template})
        }
        "StatefulSet" => {
            json!({"serviceName": name, "selector": {"matchLabels": labels}, "template": template})
        }
        "ReplicationController" => json!({"selector": labels, "template": template}),
        "Job" => json!({"template": template}),
        "CronJob" => json!({"jobTemplate": {"spec": {"template": template}}}),
        "Pod" => {
            let mut pod = json!({"metadata": template["metadata"], "spec": template["spec"]});
            merge(&mut pod, &object);
            return Ok(pod);
        }
        _ => return Ok(object),
    };
    let mut spec = defaults;
    // A selector that is given is itself.
    if !object["spec"]["selector"].is_null() {
        spec["selector"] = Value::Null;
    }
    if object["spec"].is_object() {
        merge(&mut spec, &object["spec"]);
    }
    object["spec"] = spec;
    Ok(object)
}

/// An owner of an object that is made.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Owner {
    /// `<kind>/<name>`
    pub(crate) of: String,
    /// Where it is, if not in the scenario's namespace.
    pub(crate) namespace: Option<String>,
    /// Whether it must wait for the object when it is deleted in the foreground.
    #[serde(default)]
    pub(crate) block: bool,
    /// Of one that is not there: any uid will do.
    pub(crate) uid: Option<String>,
    /// Of a kind that is not among the suite's.
    #[serde(rename = "apiVersion")]
    pub(crate) api_version: Option<String>,
}

/// A PKCS #10 request in base64, by a new key: `{name, organizations, dns, ips}`.
fn pkcs10(wanted: &Value) -> Result<String> {
    use base64::Engine as _;
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Wanted {
        name: String,
        #[serde(default)]
        organization: Option<String>,
        #[serde(default)]
        dns: Vec<String>,
        #[serde(default)]
        ips: Vec<std::net::IpAddr>,
    }
    let wanted: Wanted = serde_json::from_value(wanted.clone()).context("`request`")?;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    if let Some(organization) = wanted.organization {
        let kind = DnType::OrganizationName;
        params.distinguished_name.push(kind, organization);
    }
    params
        .distinguished_name
        .push(DnType::CommonName, wanted.name);
    for name in wanted.dns {
        let name = SanType::DnsName(name.try_into()?);
        params.subject_alt_names.push(name);
    }
    let addresses = wanted.ips.into_iter().map(SanType::IpAddress);
    params.subject_alt_names.extend(addresses);
    let request = params.serialize_request(&KeyPair::generate()?)?.pem()?;
    Ok(base64::engine::general_purpose::STANDARD.encode(request))
}

/// In whose name an object is made: `by: {user, groups}`.
pub(crate) fn requestor(manifest: &Value) -> Result<Option<(String, Vec<String>)>> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct By {
        user: String,
        #[serde(default)]
        groups: Vec<String>,
    }
    manifest
        .get("by")
        .map(|by| {
            let by: By = serde_json::from_value(by.clone()).context("`by`")?;
            Ok((by.user, by.groups))
        })
        .transpose()
}

/// What is under `owners` in a manifest.
pub(crate) fn owners(manifest: &Value) -> Result<Vec<Owner>> {
    match manifest.get("owners") {
        None => Ok(Vec::new()),
        Some(owners) => serde_json::from_value(owners.clone()).context("`owners`"),
    }
}

/// `ago:<n>d` wherever it is written as that time, and `in:<n>s`.
pub(crate) fn dated(value: &Value, now: Timestamp) -> Result<Value> {
    Ok(match value {
        Value::String(text) if text.starts_with("in:") => {
            let seconds: i64 = text["in:".len()..]
                .strip_suffix('s')
                .and_then(|seconds| seconds.parse().ok())
                .with_context(|| format!("`{text}` is not in:<seconds>s"))?;
            let then = now + SignedDuration::from_secs(seconds);
            json!(then.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
        }
        Value::String(text) => match text.strip_prefix("ago:") {
            Some(days) => {
                let days: i64 = days
                    .strip_suffix('d')
                    .and_then(|days| days.parse().ok())
                    .with_context(|| format!("`{text}` is not ago:<days>d"))?;
                let then = now - SignedDuration::from_hours(24 * days);
                json!(then.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
            }
            None => value.clone(),
        },
        Value::Array(values) => values
            .iter()
            .map(|value| dated(value, now))
            .collect::<Result<_>>()?,
        Value::Object(map) => {
            let mut all = Map::new();
            for (key, value) in map {
                all.insert(key.clone(), dated(value, now)?);
            }
            Value::Object(all)
        }
        other => other.clone(),
    })
}

/// A JSON merge patch.
pub(crate) fn merge(into: &mut Value, change: &Value) {
    let Value::Object(change) = change else {
        *into = change.clone();
        return;
    };
    if !into.is_object() {
        *into = Value::Object(Map::new());
    }
    for (key, value) in change {
        if value.is_null() {
            if let Some(map) = into.as_object_mut() {
                map.remove(key);
            }
        } else {
            merge(&mut into[key.as_str()], value);
        }
    }
}
