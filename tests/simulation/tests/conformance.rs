//! The same calls, to the simulated server and to the real one; the answers must agree: code, reason and
//! cause, what became of the resourceVersion, what is read back, and what watches bring in which order.

use std::{collections::BTreeMap, fmt::Write as _, time::Duration};

use controllers_kit::{
    Action, Key, Only, PatchKind, Plan, Propagation, StatusWrite, Str, Verb,
    names::Children,
    pods,
    testing::{
        Common, ConfigMapBuild, World, config_map, namespace, owner_reference, pod_spec_bytes,
        replica_set,
    },
};
use harness::{ControlPlane, MetricsApi};
use http::Method;
use kubernetes_proto::{
    Object, Resource,
    apps::ReplicaSet,
    core::{ConfigMap, Namespace, PersistentVolume, PersistentVolumeClaim, Pod},
    envelope,
    meta::PartialObjectMetadata,
};
use node::write;
use node_cache::{
    Api, ApiError, Purpose,
    api::{Frames, Request, Response},
};
use prost::Message as _;
use serde_json::{Value, json};

use crate::{dice::Dice, hub::Hub, network, server::Server, workloads};

/// An external metric's value.
const QUEUE: i64 = 70;
/// No answer takes longer, and no event.
const PATIENCE: Duration = Duration::from_secs(20);

/// Calls one server and writes down what it says.
struct Caller {
    api: Api,
    namespace: String,
    answers: Vec<String>,
    /// The last version and uid of each object.
    known: BTreeMap<String, (u64, Str)>,
}

impl Caller {
    fn say(&mut self, what: &str, answer: &str) {
        self.answers
            .push(format!("{what}: {answer}").replace(&self.namespace, "NAMESPACE"));
    }

    /// How an object's version compares with its last one.
    fn version(&mut self, of: &str, version: u64, uid: &Str) -> &'static str {
        let before = self.known.insert(of.to_owned(), (version, uid.clone()));
        match before {
            None => "a first version",
            Some((_, other)) if other != *uid => "another object",
            Some((before, _)) if version > before => "a newer version",
            Some((before, _)) if version == before => "the same version",
            Some(_) => "an older version",
        }
    }

    async fn send(&self, request: Request) -> Result<Response, ApiError> {
        self.api.send(request.timeout(PATIENCE)).await
    }

    /// Carries an action out as the node does.
    async fn act(&mut self, what: &str, action: &Action) {
        let asked = write::request(action);
        let method = Method::from_bytes(asked.method.as_bytes()).expect("a method");
        let request = Request::new(method, asked.path)
            .body(asked.content_type, asked.body)
            .accept(write::ACCEPT_METADATA);
        let answer = match self.send(request).await {
            Ok(answer) => {
                let written = write::written(&answer.bytes);
                let place = format!("{:?} {}", action.resource, action.key);
                match written.resource_version {
                    0 => format!("{}, a Status", answer.status.as_u16()),
                    version => {
                        let compared = self.version(&place, version, &written.uid);
                        format!("{}, {compared}", answer.status.as_u16())
                    }
                }
            }
            Err(error) => refusal(&error),
        };
        self.say(what, &answer);
    }

    /// Reads an object whole, and some fields of it.
    async fn read(&mut self, what: &str, resource: &'static Resource, name: &str, fields: &[&str]) {
        let path = resource.path(&self.namespace, name);
        let answer = match self
            .send(Request::get(path).accept("application/json"))
            .await
        {
            Ok(answer) => {
                let json: Value =
                    serde_json::from_slice(&answer.bytes).expect("JSON was asked for");
                fields.iter().fold(String::new(), |mut text, field| {
                    let value = json.pointer(field).cloned().unwrap_or_default();
                    // What the server leaves out is nothing.
                    let shown = match &value {
                        Value::Null => "nothing".to_owned(),
                        Value::Number(number) if number.as_i64() == Some(0) => "nothing".to_owned(),
                        other => other.to_string(),
                    };
                    let _ = write!(text, "{field} {shown}; ");
                    text
                })
            }
            Err(error) => refusal(&error),
        };
        self.say(what, &answer);
    }

    fn known(&self, resource: &Resource, name: &str) -> (u64, Str) {
        let place = format!("{resource:?} {}", Key::new(self.namespace.as_str(), name));
        self.known.get(&place).cloned().unwrap_or_default()
    }

    fn patch(&self, resource: &'static Resource, name: &str, patch: Value) -> Action {
        let (version, uid) = self.known(resource, name);
        Action {
            verb: Verb::Patch {
                subresource: "",
                kind: PatchKind::Merge,
                patch,
                report: StatusWrite::No,
            },
            resource,
            key: Key::new(self.namespace.as_str(), name),
            uid,
            resource_version: version,
            announcement: None,
        }
    }

    fn delete(&self, resource: &'static Resource, name: &str) -> Action {
        Action {
            verb: Verb::Delete {
                only: Only::ThisUid,
                propagation: Propagation::Background,
                grace_period_seconds: None,
            },
            ..self.patch(resource, name, Value::Null)
        }
    }

    async fn watch(&self, resource: &Resource, query: &str) -> Result<Frames, ApiError> {
        let path = format!(
            "{}?watch=true&allowWatchBookmarks=true&{query}",
            resource.path(&self.namespace, "")
        );
        let request = Request::get(path)
            .accept("application/vnd.kubernetes.protobuf;stream=watch")
            .timeout(PATIENCE);
        self.api.watch(request).await
    }

    /// Follows a watch for this many events that are reported.
    async fn follow(&mut self, what: &str, mut frames: Frames, count: usize) {
        let mut reported = Vec::new();
        let mut last = 0;
        let until = tokio::time::Instant::now() + PATIENCE;
        while reported.len() < count {
            let frame = tokio::time::timeout_at(until, frames.next())
                .await
                .expect("an event was expected")
                .expect("the watch continues")
                .expect("the watch has not ended");
            let event = envelope::watch_event(&frame).expect("an event");
            let body = envelope::open(event.object).expect("an object in its envelope");
            let meta = PartialObjectMetadata::decode(body.raw)
                .expect("an object")
                .metadata
                .unwrap_or_default();
            let ends_list = meta.annotation(envelope::INITIAL_EVENTS_END) == Some("true");
            if event.r#type == "BOOKMARK" && !ends_list {
                continue;
            }
            if event.r#type == "ERROR" {
                let status = kubernetes_proto::meta::Status::decode(body.raw).expect("a Status");
                reported.push(format!("ERROR {} {}", status.code, status.reason));
                break;
            }
            let order = if meta.resource_version >= last {
                "later"
            } else {
                "earlier"
            };
            // The initial events come in the order of their names.
            let order = if what.contains("streamed") { "" } else { order };
            last = meta.resource_version;
            reported.push(format!("{} {} {order}", event.r#type, meta.name));
        }
        self.say(what, &reported.join(", "));
    }
}

/// What a refusal says, and what the node makes of it.
fn refusal(error: &ApiError) -> String {
    let Some(status) = error.status() else {
        return format!("no answer: {error}");
    };
    let failure = format!("{:?}", write::failure(status));
    let kind = failure.split('(').next().unwrap_or_default();
    format!("{} {} ({kind})", status.code, status.reason)
}

fn create<T: Object>(object: &T) -> Action {
    let mut plan = Plan::nothing();
    // Builders set uids, so that owners can be named; nobody sends them.
    let mut object = object.clone();
    object.metadata_mut().uid = Str::default();
    plan.create(&object).clone()
}

/// The table of calls.
async fn calls(api: Api, namespace: String) -> Vec<String> {
    let mut caller = Caller {
        api,
        namespace: namespace.clone(),
        answers: Vec::new(),
        known: BTreeMap::new(),
    };
    let maps = ConfigMap::resource();
    let labelled = |name: &str| {
        config_map(name)
            .in_namespace(&namespace)
            .label("conformance", "yes")
            .data("a", "1")
    };

    // Creations.
    let from_here = caller
        .send(Request::get(format!(
            "{}?limit=1",
            maps.path(&namespace, "")
        )))
        .await
        .expect("a list");
    let from_here = envelope::list(envelope::open(&from_here.bytes).expect("an envelope").raw)
        .expect("a list")
        .resource_version;
    caller.act("create", &create(&labelled("a"))).await;
    caller.act("create it again", &create(&labelled("a"))).await;
    caller.act("create another", &create(&labelled("b"))).await;
    caller
        .act(
            "create where no namespace is",
            &create(&config_map("a").in_namespace("nowhere-at-all")),
        )
        .await;
    let mut misnamed = create(&labelled("c"));
    let mut map = labelled("Not_A_Name");
    map.metadata_mut().uid = Str::default();
    misnamed.verb = Verb::Create {
        body: map.encode_to_vec(),
    };
    misnamed.key.name = "Not_A_Name".into();
    caller.act("create what has no valid name", &misnamed).await;

    // Patches.
    let seen = caller.patch(maps, "a", json!({"data": {"a": "2"}}));
    caller.act("patch", &seen).await;
    caller.act("patch what has changed since", &seen).await;
    let mut whatever = caller.patch(maps, "a", json!({"data": {"a": "2"}}));
    whatever.resource_version = 0;
    caller.act("patch without a change", &whatever).await;
    whatever.uid = "00000000-0000-0000-0000-000000000000".into();
    caller.act("patch of another uid", &whatever).await;
    let mut both = caller.patch(maps, "a", json!({"data": {"a": "3"}}));
    both.uid = "00000000-0000-0000-0000-000000000000".into();
    caller
        .act("patch of another uid and this version", &both)
        .await;
    both.resource_version = 1;
    caller
        .act("patch of another uid and an old version", &both)
        .await;
    caller
        .act(
            "patch what is not there",
            &caller.patch(maps, "missing", json!({"data": {}})),
        )
        .await;
    let mut owned = caller.patch(maps, "b", json!({"metadata": {"ownerReferences": [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": caller.known(maps, "a").1}]}}));
    if let Verb::Patch { kind, .. } = &mut owned.verb {
        *kind = PatchKind::Strategic;
    }
    caller.act("add an owner", &owned).await;
    let mut disowned = caller.patch(
        maps,
        "b",
        json!({"metadata": {"ownerReferences": [
        {"$patch": "delete", "uid": caller.known(maps, "a").1}]}}),
    );
    if let Verb::Patch { kind, .. } = &mut disowned.verb {
        *kind = PatchKind::Strategic;
    }
    caller.act("take the owner away", &disowned).await;
    caller
        .read(
            "what is left",
            maps,
            "b",
            &["/metadata/ownerReferences", "/data"],
        )
        .await;

    // Deletions.
    let mut other = caller.delete(maps, "a");
    other.uid = "00000000-0000-0000-0000-000000000000".into();
    caller.act("delete another uid", &other).await;
    let mut old = caller.delete(maps, "a");
    old.resource_version = 1;
    if let Verb::Delete { only, .. } = &mut old.verb {
        *only = Only::ThisVersion;
    }
    caller.act("delete an old version", &old).await;
    caller
        .act(
            "hold it",
            &caller.patch(
                maps,
                "a",
                json!({"metadata": {"finalizers": ["tests.manifold.dev/held"]}}),
            ),
        )
        .await;
    caller
        .act("delete what is held", &caller.delete(maps, "a"))
        .await;
    caller
        .act("delete it again", &caller.delete(maps, "a"))
        .await;
    caller
        .act(
            "let it go",
            &caller.patch(maps, "a", json!({"metadata": {"finalizers": null}})),
        )
        .await;
    caller.read("read what is gone", maps, "a", &[]).await;
    caller
        .act("delete what is gone", &caller.delete(maps, "a"))
        .await;
    let mut foreground = caller.delete(maps, "b");
    if let Verb::Delete { propagation, .. } = &mut foreground.verb {
        *propagation = Propagation::Foreground;
    }
    caller.act("delete in the foreground", &foreground).await;
    caller
        .read(
            "it waits for its dependents",
            maps,
            "b",
            &["/metadata/finalizers"],
        )
        .await;

    // A workload: generations, status, defaults, immutable fields.
    let sets = ReplicaSet::resource();
    caller
        .act(
            "create a set",
            &create(&replica_set("web").in_namespace(&namespace)),
        )
        .await;
    let fields = [
        "/metadata/generation",
        "/spec/replicas",
        "/status/replicas",
        "/status/observedGeneration",
    ];
    caller.read("it begins", sets, "web", &fields).await;
    caller
        .act(
            "scale it",
            &caller.patch(sets, "web", json!({"spec": {"replicas": 3}})),
        )
        .await;
    caller.read("a new generation", sets, "web", &fields).await;
    let mut report = caller.patch(
        sets,
        "web",
        json!({"status": {"replicas": 2, "observedGeneration": 2}, "spec": {"replicas": 9}}),
    );
    if let Verb::Patch { subresource, .. } = &mut report.verb {
        *subresource = "status";
    }
    caller.act("report", &report).await;
    caller
        .read(
            "the same generation, and no other spec",
            sets,
            "web",
            &fields,
        )
        .await;
    caller
        .act(
            "a status beside the subresource",
            &caller.patch(sets, "web", json!({"status": {"replicas": 7}})),
        )
        .await;
    caller.read("is not heard", sets, "web", &fields).await;
    caller
        .act(
            "another selector",
            &caller.patch(
                sets,
                "web",
                json!({"spec": {"selector": {"matchLabels": {"app": "db"}}}}),
            ),
        )
        .await;
    caller
        .act(
            "label it",
            &caller.patch(sets, "web", json!({"metadata": {"labels": {"x": "y"}}})),
        )
        .await;
    caller.read("no new generation", sets, "web", &fields).await;

    // Pods: as a controller makes them, deleted with and without grace.
    let owner = replica_set("web")
        .in_namespace(&namespace)
        .uid(&caller.known(sets, "web").1);
    let template = kubernetes_proto::core::PodTemplateSpec {
        metadata: None,
        // Of a scheduler that is nowhere: it must stay where it is.
        spec: [&pod_spec_bytes("app:1")[..], b"\x9a\x01\x06nobody"].concat(),
    };
    let children = Children::of("web", &Object::metadata(&owner).uid);
    let pod = pods::from_template(
        Some(&template),
        owner_reference(&owner),
        &children,
        &namespace.as_str().into(),
        "web-1",
    );
    let mut plan = Plan::nothing();
    pods::create(&mut plan, &pod);
    let making = plan.actions().next().expect("one action").clone();
    caller.act("create a pod", &making).await;
    caller.act("create the same pod", &making).await;
    caller
        .read(
            "it waits",
            Pod::resource(),
            "web-1",
            &["/status/phase", "/metadata/generateName"],
        )
        .await;
    caller
        .act(
            "delete a pod that never ran",
            &caller.delete(Pod::resource(), "web-1"),
        )
        .await;
    caller
        .read("it is gone at once", Pod::resource(), "web-1", &[])
        .await;

    // Watches.
    let watch = caller
        .watch(
            maps,
            &format!("resourceVersion={from_here}&labelSelector=conformance%3Dyes"),
        )
        .await;
    caller
        .follow("watched from before", watch.expect("a watch"), 9)
        .await;
    caller.act("create one more", &create(&labelled("d"))).await;
    let watch = caller
        .watch(maps, "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&labelSelector=conformance%3Dyes")
        .await;
    caller.follow("streamed", watch.expect("a watch"), 3).await;
    let listed = caller
        .send(
            Request::get(format!("{}?labelSelector=conformance%20in%20(yes,no),!other", maps.path(&namespace, "")))
                .accept("application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"),
        )
        .await
        .expect("a list");
    let list =
        envelope::list(envelope::open(&listed.bytes).expect("an envelope").raw).expect("a list");
    let names: Vec<String> = list
        .items
        .iter()
        .map(|item| {
            PartialObjectMetadata::decode(*item)
                .expect("metadata")
                .metadata
                .unwrap_or_default()
                .name
                .to_string()
        })
        .collect();
    caller.say("listed by labels", &names.join(", "));
    let one = caller
        .send(
            Request::get(format!("{}?fieldSelector=metadata.name%3Dd", maps.path(&namespace, "")))
                .accept("application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"),
        )
        .await
        .expect("a list");
    let list =
        envelope::list(envelope::open(&one.bytes).expect("an envelope").raw).expect("a list");
    caller.say("listed by name", &list.items.len().to_string());

    leases(&mut caller).await;
    events(&mut caller).await;

    discovery(&mut caller).await;
    metadata(&mut caller).await;
    scales(&mut caller).await;
    metrics(&mut caller).await;
    review(&mut caller).await;
    volumes(&mut caller).await;
    clearing(&mut caller).await;
    caller.answers
}

/// Whether somebody may do what nothing allows.
async fn review(caller: &mut Caller) {
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": "mallory",
            "resourceAttributes": {
                "group": "certificates.k8s.io",
                "resource": "certificatesigningrequests",
                "subresource": "nodeclient",
                "verb": "create",
                "version": "*",
            },
        },
    });
    let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    let request = Request::new(Method::POST, path.to_owned())
        .body("application/json", review.to_string().into_bytes())
        .accept("application/json");
    let answer = match caller.send(request).await {
        Ok(answer) => {
            let json: Value = serde_json::from_slice(&answer.bytes).expect("JSON was asked for");
            let allowed = &json["status"]["allowed"];
            format!(
                "{} {} allowed: {allowed}",
                answer.status.as_u16(),
                json["kind"]
            )
        }
        Err(error) => refusal(&error),
    };
    caller.say("a review", &answer);
}

/// Claims and volumes: made pending and protected, bound once, held while they are protected.
async fn volumes(caller: &mut Caller) {
    let (claims, volumes) = (
        PersistentVolumeClaim::resource(),
        PersistentVolume::resource(),
    );
    let shown = ["/metadata/finalizers", "/status/phase", "/spec/volumeName"];
    let namespace = caller.namespace.clone();
    let mut wanted = workloads::storage::wants("data", "conformance").in_namespace(&namespace);
    wanted.metadata_mut().finalizers.clear();
    caller.act("create a claim", &create(&wanted)).await;
    caller.read("a new claim", claims, "data", &shown).await;
    // Nobody else in the cluster has one of this name.
    let name = format!("{namespace}-volume");
    let mut made = workloads::storage::by_hand(&name, "conformance");
    made.metadata_mut().finalizers.clear();
    caller.act("create a volume", &create(&made)).await;
    for (what, volume) in [
        ("bind a claim", name.as_str()),
        ("bind it to that volume again", name.as_str()),
        ("bind it to another volume", "another"),
    ] {
        let patch = json!({"spec": {"volumeName": volume}});
        let patch = caller.patch(claims, "data", patch);
        caller.act(what, &patch).await;
    }
    let mut bound = caller.patch(claims, "data", json!({"status": {"phase": "Bound"}}));
    if let Verb::Patch { subresource, .. } = &mut bound.verb {
        *subresource = "status";
    }
    caller.act("say that it is bound", &bound).await;
    let gone = caller.delete(claims, "data");
    caller.act("delete a protected claim", &gone).await;
    caller
        .read(
            "a claim that is held",
            claims,
            "data",
            &["/metadata/finalizers"],
        )
        .await;
    let freed = caller.patch(claims, "data", json!({"metadata": {"finalizers": null}}));
    caller.act("let a claim go", &freed).await;
    caller
        .read("a claim that has gone", claims, "data", &shown)
        .await;
    // A volume's key has no namespace.
    let mut freed = caller.patch(volumes, &name, json!({"metadata": {"finalizers": null}}));
    freed.key = Key::cluster(name.as_str());
    (freed.uid, freed.resource_version) = (Str::default(), 0);
    caller
        .act("let a volume go that nobody deletes", &freed)
        .await;
}

/// What discovery shows of the resources that are used here.
async fn discovery(caller: &mut Caller) {
    const ACCEPT: &str =
        "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
    for (path, wanted) in [
        ("/api", &["configmaps", "namespaces", "pods"][..]),
        ("/apis", &["deployments", "replicasets", "jobs"][..]),
    ] {
        let answer = caller.send(Request::get(path).accept(ACCEPT)).await;
        let json: Value =
            serde_json::from_slice(&answer.expect("a document").bytes).expect("JSON was asked for");
        caller.say(path, &json["kind"].to_string());
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let mut lines = Vec::new();
        for group in list(&json["items"]) {
            for version in list(&group["versions"]) {
                for resource in list(&version["resources"]) {
                    let name = resource["resource"].as_str().unwrap_or_default().to_owned();
                    if !wanted.contains(&name.as_str()) {
                        continue;
                    }
                    let mut verbs: Vec<String> = list(&resource["verbs"])
                        .iter()
                        .map(ToString::to_string)
                        .collect();
                    verbs.sort();
                    let has_scale = list(&resource["subresources"])
                        .iter()
                        .any(|subresource| subresource["subresource"] == "scale");
                    let shown = format!(
                        "{name} {} {} {} {} {} {verbs:?}, scaled: {has_scale}",
                        group["metadata"]["name"].as_str().unwrap_or_default(),
                        version["version"],
                        version["freshness"],
                        resource["responseKind"]["kind"],
                        resource["scope"],
                    );
                    lines.push(shown);
                }
            }
        }
        // Groups come in the order of their priorities, which nobody here has an opinion on.
        lines.sort();
        for line in lines {
            caller.say("discovery", &line);
        }
    }
}

/// What the garbage collector watches and lists, and how it lets owners go.
async fn metadata(caller: &mut Caller) {
    const METADATA: &str =
        "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
    let maps = ConfigMap::resource();
    let map = |name: &str| {
        config_map(name)
            .in_namespace(&caller.namespace)
            .label("conformance", "yes")
            .data("a", "1")
    };
    let (owner, left, right) = (map("owner"), map("left"), map("right"));
    let gone = create(&map("gone"));
    caller.act("create an owner", &create(&owner)).await;
    let owner = owner.uid(&caller.known(maps, "owner").1);
    let block = |blocks: bool, map: ConfigMap| {
        let mut map = map;
        let mut reference = owner_reference(&owner);
        reference.controller = None;
        reference.block_owner_deletion = Some(blocks);
        map.metadata_mut().owner_references.push(reference);
        map
    };
    caller
        .act("create a dependent", &create(&block(true, left)))
        .await;
    caller
        .act("create another dependent", &create(&block(false, right)))
        .await;
    let path = format!(
        "{}?watch=true&allowWatchBookmarks=true&sendInitialEvents=true\
         &resourceVersionMatch=NotOlderThan&labelSelector=conformance%3Dyes",
        maps.path(&caller.namespace, "")
    );
    let watch = caller
        .api
        .watch(Request::get(path).accept(METADATA).timeout(PATIENCE))
        .await
        .expect("a watch of metadata");
    caller.follow("metadata, streamed", watch, 6).await;
    for (name, propagation) in [
        ("owner", Propagation::Foreground),
        ("left", Propagation::Orphan),
    ] {
        let mut deleting = caller.delete(maps, name);
        if let Verb::Delete {
            propagation: how, ..
        } = &mut deleting.verb
        {
            *how = propagation;
        }
        caller
            .act(&format!("delete {name}, {propagation:?}"), &deleting)
            .await;
        let fields = ["/metadata/finalizers", "/metadata/generation"];
        caller
            .read(&format!("{name} waits"), maps, name, &fields)
            .await;
    }
    let mut first = caller.delete(maps, "right");
    first.resource_version = caller.known(maps, "right").0;
    if let Verb::Delete { only, .. } = &mut first.verb {
        *only = Only::ThisVersion;
    }
    caller.act("delete this very version", &first).await;
    for name in ["left", "owner"] {
        let release = caller.patch(maps, name, json!({"metadata": {"finalizers": null}}));
        caller.act(&format!("release {name}"), &release).await;
        caller.act(&format!("release {name} again"), &release).await;
        caller
            .read(&format!("{name} is gone"), maps, name, &[])
            .await;
    }
    // The watch of metadata brings deletions, too.
    let from = caller
        .send(Request::get(format!(
            "{}?limit=1",
            maps.path(&caller.namespace, "")
        )))
        .await
        .expect("a list");
    let from = envelope::list(envelope::open(&from.bytes).expect("an envelope").raw)
        .expect("a list")
        .resource_version;
    caller.act("create one more", &gone).await;
    let deleting = caller.delete(maps, "gone");
    caller.act("delete it", &deleting).await;
    let path = format!(
        "{}?watch=true&resourceVersion={from}&labelSelector=conformance%3Dyes",
        maps.path(&caller.namespace, "")
    );
    let watch = caller
        .api
        .watch(Request::get(path).accept(METADATA).timeout(PATIENCE))
        .await
        .expect("a watch of metadata");
    caller.follow("metadata, watched", watch, 2).await;
}

/// What autoscalers read and write.
async fn scales(caller: &mut Caller) {
    let sets = ReplicaSet::resource();
    let path =
        |caller: &Caller, name: &str| format!("{}/scale", sets.path(&caller.namespace, name));
    for name in ["web", "missing"] {
        let request = Request::get(path(caller, name)).accept("application/json");
        let answer = match caller.send(request).await {
            Ok(answer) => {
                let json: Value =
                    serde_json::from_slice(&answer.bytes).expect("JSON was asked for");
                let (version, uid) = caller.known(sets, name);
                let version = version.to_string();
                format!(
                    "{} {} {} {} {} {} {}",
                    json["kind"],
                    json["apiVersion"],
                    json["spec"],
                    json["status"]["replicas"],
                    json["status"]["selector"],
                    json["metadata"]["uid"] == *uid,
                    json["metadata"]["resourceVersion"] == version,
                )
            }
            Err(error) => refusal(&error),
        };
        caller.say(&format!("the scale of {name}"), &answer);
    }
    let scale = |caller: &Caller, name: &str, replicas: i32| {
        let mut action = caller.patch(sets, name, json!({"spec": {"replicas": replicas}}));
        if let Verb::Patch { subresource, .. } = &mut action.verb {
            *subresource = "scale";
        }
        action
    };
    let seen = scale(caller, "web", 5);
    caller.act("set the scale", &seen).await;
    caller.act("set the scale of an old version", &seen).await;
    let again = scale(caller, "web", 5);
    caller.act("set the same scale", &again).await;
    let mut other = scale(caller, "web", 6);
    other.uid = "00000000-0000-0000-0000-000000000000".into();
    other.resource_version = 0;
    caller.act("set the scale of another uid", &other).await;
    let nobody = scale(caller, "missing", 1);
    caller
        .act("set the scale of what is not there", &nobody)
        .await;
    let fields = ["/metadata/generation", "/spec/replicas", "/status/replicas"];
    caller.read("what was scaled", sets, "web", &fields).await;
}

/// What autoscalers ask the metrics APIs for.
async fn metrics(caller: &mut Caller) {
    let within = format!("namespaces/{}", caller.namespace);
    for (what, path) in [
        (
            "an external metric",
            format!("/apis/external.metrics.k8s.io/v1beta1/{within}/queue"),
        ),
        (
            "the usage of no pod",
            format!("/apis/metrics.k8s.io/v1beta1/{within}/pods?labelSelector=app%3Dnobody"),
        ),
    ] {
        let request = Request::get(path).accept("application/json");
        let answer = match caller.send(request).await {
            Ok(answer) => {
                let json: Value =
                    serde_json::from_slice(&answer.bytes).expect("JSON was asked for");
                let items = json["items"].as_array().cloned().unwrap_or_default();
                let values: Vec<&Value> = items.iter().map(|item| &item["value"]).collect();
                format!("{} {} {values:?}", json["kind"], json["apiVersion"])
            }
            Err(error) => refusal(&error),
        };
        caller.say(what, &answer);
    }
}

/// A namespace on its way out.
async fn clearing(caller: &mut Caller) {
    let maps = ConfigMap::resource();
    let home = caller.namespace.clone();
    for (suffix, guard) in [("going", false), ("guarded", true)] {
        let going = format!("{home}-{suffix}");
        let namespaces = Namespace::resource();
        let mut made = controllers_kit::testing::namespace(&going);
        if guard {
            made.metadata_mut()
                .finalizers
                .push("tests.manifold.dev/held".into());
        }
        let creating = create(&made);
        caller.act("create a namespace", &creating).await;
        for name in ["one", "two"] {
            let map = config_map(name).in_namespace(&going).data("a", "1");
            caller.act("create something in it", &create(&map)).await;
        }
        let place = format!("{namespaces:?} {}", creating.key);
        let uid = caller.known.get(&place).cloned().unwrap_or_default().1;
        let deleting = Action {
            uid: uid.clone(),
            verb: caller.delete(maps, "x").verb,
            ..creating.clone()
        };
        caller.act("delete a namespace", &deleting).await;
        caller.act("delete it again", &deleting).await;
        caller
            .act(
                "create in it",
                &create(&config_map("late").in_namespace(&going)),
            )
            .await;
        // Its content, at once.
        caller.namespace.clone_from(&going);
        let held = caller.patch(
            maps,
            "two",
            json!({"metadata": {"finalizers": ["tests.manifold.dev/held"]}}),
        );
        caller.act("hold one of two", &held).await;
        let mut plan = Plan::nothing();
        plan.delete_collection(maps, &going.as_str().into(), Propagation::Background);
        let all = plan.actions().next().expect("one action").clone();
        let asked = write::request(&all);
        let method = Method::from_bytes(asked.method.as_bytes()).expect("a method");
        let request = Request::new(method, asked.path)
            .body(asked.content_type, asked.body)
            .accept(write::ACCEPT_ANY);
        let answer = match caller.send(request).await {
            Ok(answer) => answer.status.as_u16().to_string(),
            Err(error) => refusal(&error),
        };
        caller.say("delete all", &answer);
        caller.read("one is gone", maps, "one", &[]).await;
        caller
            .read("the other is held", maps, "two", &["/metadata/finalizers"])
            .await;
        let (_, uid_of_two) = caller.known(maps, "two");
        let mut release = caller.patch(maps, "two", json!({"metadata": {"finalizers": null}}));
        release.resource_version = 0;
        release.uid = uid_of_two;
        caller.act("let it go", &release).await;
        caller.namespace = String::new();
        finalize(caller, &going).await;
        if guard {
            let (_, uid) = caller.known.get(&place).cloned().unwrap_or_default();
            let mut release = caller.patch(
                namespaces,
                &going,
                json!({"metadata": {"finalizers": null}}),
            );
            release.resource_version = 0;
            release.uid = uid;
            caller.act("take what holds it away", &release).await;
            caller.read("it is gone", namespaces, &going, &[]).await;
        }
        caller.namespace.clone_from(&home);
    }
}

/// Takes a namespace's finalizer away, as of an old version and as of this one.
async fn finalize(caller: &mut Caller, name: &str) {
    let namespaces = Namespace::resource();
    let fields = ["/metadata/finalizers", "/spec/finalizers", "/status/phase"];
    caller.read("it ends", namespaces, name, &fields).await;
    let request = Request::get(namespaces.path("", name)).accept("application/json");
    let live = caller.send(request).await.expect("the namespace is there");
    let mut body: Value = serde_json::from_slice(&live.bytes).expect("JSON was asked for");
    body["spec"]["finalizers"] = json!([]);
    let version = body["metadata"]["resourceVersion"].clone();
    for (what, version) in [
        ("finalize an old version", json!("1")),
        ("finalize it", version),
    ] {
        body["metadata"]["resourceVersion"] = version;
        let action = Action {
            verb: Verb::Replace {
                subresource: "finalize",
                body: body.clone(),
            },
            ..caller.patch(namespaces, name, Value::Null)
        };
        caller.act(what, &action).await;
    }
    caller
        .read("when it is finalized", namespaces, name, &fields)
        .await;
}

/// What `coordinator` does with Leases.
async fn leases(caller: &mut Caller) {
    let collection = format!(
        "/apis/coordination.k8s.io/v1/namespaces/{}/leases",
        caller.namespace
    );
    let lease = |holder: &str, epoch: i64, version: Option<&str>| {
        let mut lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": "range-1", "labels": {"fleet": "x"}},
            "spec": {"holderIdentity": holder, "leaseTransitions": epoch}});
        if let Some(version) = version {
            lease["metadata"]["resourceVersion"] = version.into();
        }
        lease.to_string().into_bytes()
    };
    let mut version = String::new();
    let table: [(&str, Method, &str, i64, bool); 7] = [
        ("patch no Lease", Method::PATCH, "a_1", 1, false),
        ("create a Lease", Method::POST, "a_1", 1, false),
        ("create it again", Method::POST, "b_1", 1, false),
        ("swap it", Method::PATCH, "b_1", 2, true),
        ("swap it without a change", Method::PATCH, "b_1", 2, true),
        ("swap it to nobody", Method::PATCH, "", 3, true),
        ("swap an old version", Method::PATCH, "c_1", 4, true),
    ];
    let mut first = String::new();
    for (what, method, holder, epoch, versioned) in table {
        let used = if what == "swap an old version" {
            first.clone()
        } else {
            version.clone()
        };
        let path = match method {
            Method::POST => collection.clone(),
            _ => format!("{collection}/range-1"),
        };
        let content = match method {
            Method::POST => "application/json",
            _ => "application/merge-patch+json",
        };
        let request = Request::new(method, path)
            .body(
                content,
                lease(holder, epoch, versioned.then_some(used.as_str())),
            )
            .accept("application/json");
        let answer = match caller.send(request).await {
            Ok(answer) => {
                let json: Value =
                    serde_json::from_slice(&answer.bytes).expect("JSON was asked for");
                let newer = json["metadata"]["resourceVersion"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned();
                let compared = match newer == version {
                    true => "the same version",
                    false => "another version",
                };
                if first.is_empty() {
                    first.clone_from(&newer);
                }
                version = newer;
                format!(
                    "{}, {compared}, {} {}",
                    answer.status.as_u16(),
                    json["spec"]["holderIdentity"],
                    json["spec"]["leaseTransitions"]
                )
            }
            Err(error) => refusal(&error),
        };
        caller.say(what, &answer);
    }
    let request =
        Request::get(format!("{collection}?labelSelector=fleet%3Dx")).accept("application/json");
    let json: Value =
        serde_json::from_slice(&caller.send(request).await.expect("a list").bytes).expect("JSON");
    caller.say(
        "Leases by label",
        &json["items"].as_array().map_or(0, Vec::len).to_string(),
    );
}

/// What the node does with Events.
async fn events(caller: &mut Caller) {
    let collection = format!("/api/v1/namespaces/{}/events", caller.namespace);
    let body = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "web.1", "namespace": caller.namespace},
        "involvedObject": {"kind": "ConfigMap", "namespace": caller.namespace, "name": "a"},
        "reason": "Tested", "message": "it was tested", "type": "Normal", "count": 1,
        "firstTimestamp": "2026-03-02T12:00:00Z", "lastTimestamp": "2026-03-02T12:00:00Z",
        "source": {"component": "tests"}});
    for (what, method, name) in [
        ("record", Method::POST, ""),
        ("record it again", Method::POST, ""),
        ("count it up", Method::PATCH, "/web.1"),
        ("count up what is gone", Method::PATCH, "/web.2"),
    ] {
        let (content, body) = match method {
            Method::POST => ("application/json", body.clone()),
            _ => (
                "application/strategic-merge-patch+json",
                json!({"count": 2}),
            ),
        };
        let request = Request::new(method, format!("{collection}{name}"))
            .body(content, body.to_string().into_bytes())
            .accept(write::ACCEPT_METADATA);
        let answer = match caller.send(request).await {
            Ok(answer) => answer.status.as_u16().to_string(),
            Err(error) => refusal(&error),
        };
        caller.say(what, &answer);
    }
}

/// What the simulated server says.
fn simulated() -> Vec<String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let mut world = World::at("12:00:00").with(namespace("conformance"));
        crate::metrics::set(&mut world, "conformance", "queue", QUEUE);
        let hub = Hub::new(Server::new(world), Dice::new(1), None, false);
        let api = Api::over(network::service(&hub, 0, 1), "simulation");
        calls(api, "conformance".to_owned()).await
    })
}

/// What the real one says.
async fn real() -> anyhow::Result<Vec<String>> {
    // The metrics APIs are reached by a name, not by endpoints.
    let plane = ControlPlane::builder()
        .nodes(1)
        .api_server_arg("--enable-aggregator-routing=false")
        .start()
        .await?;
    let kubeconfig = kube::config::Kubeconfig::read_from(plane.admin_kubeconfig())?;
    let config = kube::Config::from_custom_kubeconfig(
        kubeconfig,
        &kube::config::KubeConfigOptions::default(),
    )
    .await?;
    let namespace = plane.namespace("conformance").await?;
    // Without a controller manager nobody makes it, and no pod is admitted without it.
    let client = plane.client().await?;
    let account =
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
    let request = http::Request::post(path)
        .header("content-type", "application/json")
        .body(account.to_string().into_bytes())?;
    // It may be there already, where another test's manager is at work.
    let _made = client.request::<Value>(request).await;
    let metrics = MetricsApi::start(&plane).await?;
    metrics.external(&namespace, "queue", &[&QUEUE.to_string()]);
    let api = Api::connect(&config, Purpose::Writes, None)?;
    Ok(calls(api, namespace).await)
}

#[test]
fn the_simulated_server_answers_as_the_real_one() {
    let simulated = simulated();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let real = runtime
        .block_on(real())
        .expect("the real control plane answers");
    let differences: Vec<String> = simulated
        .iter()
        .zip(&real)
        .filter(|(one, other)| one != other)
        .map(|(one, other)| format!("\n  simulated  {one}\n  real       {other}"))
        .collect();
    assert!(
        differences.is_empty() && simulated.len() == real.len(),
        "{} of {} answers differ:{}",
        differences.len(),
        real.len(),
        differences.concat()
    );
}
