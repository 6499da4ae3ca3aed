//! A pod has its template's spec, byte for byte, with every field that the API server accepts.
//!
//! The templates name beforehand what admission would add: service account without a token volume,
//! priority, preemption policy, the tolerations of unready and unreachable nodes, the RuntimeClass's
//! overhead. Their scheduler does not exist, so no node is written. Nothing is left to be removed before
//! comparing, and nothing is: the encoded spec of the pod equals that of the template.
//!
//! That the templates have every field is not claimed but counted, against the server's own OpenAPI
//! document: each property of each message below PodSpec is in what the server has stored for one of the
//! templates, or in [`LEFT_OUT`] with its reason.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use harness::{ControlPlane, run_test, until};
use kube::Client;
use serde_json::{Value, json};

use crate::support::{PATIENCE, POLL, beside, fleet};

/// Their names, and what is in them.
const TEMPLATES: &[(&str, &str)] = &[
    ("linux", include_str!("linux.json")),
    ("windows", include_str!("windows.json")),
    ("host", include_str!("host.json")),
];

/// Alpha and beta fields are fields too: without these the server would drop or refuse some.
const GATES: &str = "--feature-gates=ClusterTrustBundle=true,ClusterTrustBundleProjection=true,\
    ContainerStopSignals=true,CrossNamespaceVolumeDataSource=true,GenericWorkload=true,\
    PodCertificateRequest=true";
/// The kinds that go with them.
const KINDS: &str =
    "--runtime-config=certificates.k8s.io/v1beta1=true,scheduling.k8s.io/v1alpha2=true";

/// Properties, as `<message>.<property>` or `<message>.*`, that no stored template can have, and why.
const LEFT_OUT: &[(&str, &str)] = &[
    (
        "PodSpec.activeDeadlineSeconds",
        "refused in templates of ReplicaSets",
    ),
    (
        "PodSpec.ephemeralContainers",
        "refused in templates: they are added to pods that run",
    ),
    ("EphemeralContainer.*", "as above"),
    (
        "ObjectMeta.*",
        "of a volume claim's template: labels and annotations alone are allowed",
    ),
    ("ManagedFieldsEntry.*", "as above"),
    ("OwnerReference.*", "as above"),
];

/// Whether there is a reason why this property can't be there.
fn left_out(property: &str) -> bool {
    LEFT_OUT.iter().any(|(name, _)| left_out_by(name, property))
}

fn left_out_by(entry: &str, property: &str) -> bool {
    let message = property.split('.').next();
    entry == property
        || entry
            .strip_suffix(".*")
            .is_some_and(|whole| Some(whole) == message)
}

async fn text(client: &Client, path: &str) -> Result<String> {
    let request = http::Request::get(path).body(Vec::new())?;
    Ok(client.request_text(request).await?)
}

/// The object as the server encodes it for those who ask for protobuf.
async fn protobuf(client: &Client, path: &str) -> Result<Vec<u8>> {
    let request = http::Request::get(path)
        .header("accept", "application/vnd.kubernetes.protobuf")
        .body(kube::client::Body::empty())?;
    let response = client.send(request).await?;
    ensure!(
        response.status().is_success(),
        "{path}: {}",
        response.status()
    );
    let body = response.into_body().collect_bytes().await?.to_vec();
    let unknown = body.strip_prefix(b"k8s\0").context("no protobuf")?;
    // runtime.Unknown: the object is its second field.
    Ok(field(unknown, 2)?.to_vec())
}

fn varint(bytes: &mut &[u8]) -> Result<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first().context("the message ends early")?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Ok(value);
        }
    }
    anyhow::bail!("a number without an end")
}

/// The bytes of the one length-delimited field of this number.
fn field(mut message: &[u8], wanted: u64) -> Result<&[u8]> {
    while !message.is_empty() {
        let tag = varint(&mut message)?;
        match tag & 7 {
            0 => {
                varint(&mut message)?;
            }
            2 => {
                let length = usize::try_from(varint(&mut message)?)?;
                let value = message.get(..length).context("the message ends early")?;
                if tag >> 3 == wanted {
                    return Ok(value);
                }
                message = &message[length..];
            }
            kind => anyhow::bail!("wire type {kind}, which the API does not use here"),
        }
    }
    anyhow::bail!("no field {wanted}")
}

/// The spec within a Pod's bytes.
fn pod_spec(pod: &[u8]) -> Result<&[u8]> {
    field(pod, 2)
}

/// The template's spec within a ReplicaSet's bytes: spec, template, spec.
fn template_spec(set: &[u8]) -> Result<&[u8]> {
    field(field(field(set, 2)?, 3)?, 2)
}

/// The server's schemas by name.
struct Schemas(BTreeMap<String, Value>);

impl Schemas {
    async fn of(client: &Client) -> Result<Self> {
        let document: Value = serde_json::from_str(&text(client, "/openapi/v3/api/v1").await?)?;
        let schemas = document["components"]["schemas"].clone();
        Ok(Self(serde_json::from_value(schemas)?))
    }

    /// The message that a property is, through lists and maps; none for scalars and free maps.
    fn message(&self, property: &Value) -> Option<String> {
        let reference = property["$ref"]
            .as_str()
            .or_else(|| property["allOf"][0]["$ref"].as_str());
        if let Some(reference) = reference {
            let name = reference.rsplit('/').next()?.to_owned();
            return self.0.get(&name)?["properties"].is_object().then_some(name);
        }
        ["items", "additionalProperties"]
            .iter()
            .filter(|key| property[**key].is_object())
            .find_map(|key| self.message(&property[*key]))
    }

    /// `<message>.<property>` of all that can be below this message.
    fn all(&self, message: &str, found: &mut BTreeSet<String>) {
        for (name, property) in self.properties(message) {
            if found.insert(format!("{}.{name}", short(message)))
                && let Some(below) = self.message(property)
            {
                self.all(&below, found);
            }
        }
    }

    /// The same for what a value has.
    fn seen(&self, message: &str, value: &Value, found: &mut BTreeSet<String>) {
        for (name, property) in self.properties(message) {
            let value = &value[name];
            if value.is_null() {
                continue;
            }
            found.insert(format!("{}.{name}", short(message)));
            if let Some(below) = self.message(property) {
                match value {
                    Value::Array(values) => {
                        values
                            .iter()
                            .for_each(|value| self.seen(&below, value, found));
                    }
                    value => self.seen(&below, value, found),
                }
            }
        }
    }

    fn properties(&self, message: &str) -> impl Iterator<Item = (&String, &Value)> {
        self.0
            .get(message)
            .and_then(|schema| schema["properties"].as_object())
            .into_iter()
            .flatten()
    }
}

fn short(message: &str) -> &str {
    message.rsplit('.').next().unwrap_or(message)
}

/// What the templates name and admission fetches.
fn surroundings() -> Value {
    json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "some"},
         "value": 1000, "preemptionPolicy": "PreemptLowerPriority"},
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "never"},
         "value": 2000, "preemptionPolicy": "Never"},
        {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "heavy"},
         "handler": "heavy", "overhead": {"podFixed": {"cpu": "10m"}}},
    ]})
}

async fn the_only(
    client: &Client,
    kind: &str,
    namespace: &str,
    name: &str,
) -> Result<(String, Value)> {
    let group = if kind == "pods" {
        "api/v1"
    } else {
        "apis/apps/v1"
    };
    let path = format!("/{group}/namespaces/{namespace}/{kind}");
    let selected = format!("{path}?labelSelector=app%3D{name}");
    let object = until(&format!("{kind} of {name}"), PATIENCE, POLL, || async {
        let list: Value = serde_json::from_str(&text(client, &selected).await?)?;
        Ok(list["items"].get(0).cloned())
    })
    .await?;
    let object_name = object["metadata"]["name"].as_str().context("a name")?;
    Ok((format!("{path}/{object_name}"), object))
}

/// Paths at which the pod has something else than its template.
fn differences(path: &str, pod: &Value, template: &Value, found: &mut Vec<String>) {
    match (pod, template) {
        (Value::Object(ours), Value::Object(theirs)) => {
            let names: BTreeSet<&String> = ours.keys().chain(theirs.keys()).collect();
            for name in names {
                let below = format!("{path}.{name}");
                differences(&below, &pod[name], &template[name], found);
            }
        }
        (Value::Array(ours), Value::Array(theirs)) if ours.len() == theirs.len() => {
            for (index, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
                differences(&format!("{path}[{index}]"), ours, theirs, found);
            }
        }
        _ if pod != template => found.push(format!("{path}: {pod} of {template}")),
        _ => {}
    }
}

async fn check(
    control_plane: &ControlPlane,
    client: &Client,
    namespace: &str,
    name: &str,
    template: &str,
) -> Result<Value> {
    let template: Value = serde_json::from_str(template)?;
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": template},
    });
    control_plane
        .kubectl_with_input(
            &["-n", namespace, "create", "--validate=strict"],
            &deployment.to_string(),
        )
        .await?;
    let (set_path, set) = the_only(client, "replicasets", namespace, name).await?;
    let (pod_path, pod) = the_only(client, "pods", namespace, name).await?;
    let stored = &set["spec"]["template"]["spec"];
    // The JSON says where they differ, should they.
    let mut differing = Vec::new();
    differences("spec", &pod["spec"], stored, &mut differing);
    ensure!(differing.is_empty(), "{name}: {}", differing.join("\n"));
    let (set, pod) = (
        protobuf(client, &set_path).await?,
        protobuf(client, &pod_path).await?,
    );
    let (template, spec) = (template_spec(&set)?, pod_spec(&pod)?);
    ensure!(
        template == spec,
        "{name}: equal as JSON, but not byte for byte"
    );
    println!("template: {name}: {} bytes of spec, equal", spec.len());
    Ok(stored.clone())
}

#[test]
fn every_field_of_a_template_reaches_the_pod_unchanged() {
    let _beside = beside();
    run_test(async {
        let control_plane = ControlPlane::builder()
            .nodes(1)
            .api_server_arg(GATES)
            .api_server_arg(KINDS)
            .start()
            .await?;
        let client = control_plane.client().await?;
        control_plane
            .kubectl_with_input(&["create"], &surroundings().to_string())
            .await?;
        let fleet = fleet(&control_plane).await?;
        let mut replicas = fleet.start_all(1).await?;
        let namespace = control_plane.namespace("template").await?;
        let schemas = Schemas::of(&client).await?;
        const ROOT: &str = "io.k8s.api.core.v1.PodSpec";
        let mut seen = BTreeSet::new();
        for (name, template) in TEMPLATES {
            let stored = check(&control_plane, &client, &namespace, name, template).await?;
            schemas.seen(ROOT, &stored, &mut seen);
        }
        let mut all = BTreeSet::new();
        schemas.all(ROOT, &mut all);
        let missing: Vec<&String> = all
            .iter()
            .filter(|name| !seen.contains(*name) && !left_out(name))
            .collect();
        let without = all.iter().filter(|name| !seen.contains(*name)).count();
        println!(
            "template: {} of {} fields below PodSpec are in the templates, {without} can't be",
            seen.len(),
            all.len()
        );
        ensure!(missing.is_empty(), "in no template: {missing:?}");
        // An entry whose field has come into some template is one too many.
        for (name, _) in LEFT_OUT {
            let of = |known: &&String| left_out_by(name, known);
            ensure!(all.iter().any(|known| of(&known)), "{name} is no field");
            let needless = seen.iter().filter(of).count() == all.iter().filter(of).count();
            ensure!(!needless, "left out without need: {name}");
        }
        replicas.iter_mut().try_for_each(harness::Replica::check)
    });
}
