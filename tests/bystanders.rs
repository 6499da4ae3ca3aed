//! The server's fence and everybody else: it refuses the dead, and stops nobody.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use futures::future::join_all;
use harness::{ControlPlane, Replica, run_test, until, workspace_root};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, Config};
use serde_json::{Value, json};

use super::alone::fence::listed;
use crate::support::{PATIENCE, POLL, alone, beside, complete, create, deployment, fleet_of};

/// ConfigMaps in the cluster, unless `MANIFOLD_CONFIGMAPS` says otherwise.
const CONFIG_MAPS: usize = 20_000;
/// Requests under way while they are made.
const AT_ONCE: usize = 64;
/// How long writes are watched from the first answer of the API server on.
const WATCHED: Duration = Duration::from_secs(6);
/// Between two writes of one client.
const PACE: Duration = Duration::from_millis(20);

/// The policy as it was: every ConfigMap of the cluster is read for its parameter, and it fails closed.
const BY_CONFIG_MAP: &str = r#"
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: manifold-fence}
spec:
  failurePolicy: Fail
  paramKind: {apiVersion: v1, kind: ConfigMap}
  matchConstraints:
    matchPolicy: Exact
    resourceRules:
      - {apiGroups: ["*"], apiVersions: ["*"], operations: [CREATE, UPDATE, DELETE], resources: ["*/*"]}
  matchConditions:
    - name: sent-under-an-incarnation
      expression: "has(request.userInfo.extra) && 'manifold.dev/incarnation' in request.userInfo.extra"
  validations:
    - expression: >-
        !has(params.data) ||
        request.userInfo.extra['manifold.dev/incarnation'].all(incarnation, !(incarnation in params.data))
      reason: Forbidden
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: manifold-fence}
spec:
  policyName: manifold-fence
  validationActions: [Deny]
  paramRef: {name: manifold-fence, namespace: kube-system, parameterNotFoundAction: Allow}
"#;

/// The list inside the policy itself: no parameter at all.
const BY_ITSELF: &str = r#"
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: manifold-fence}
spec:
  failurePolicy: Ignore
  matchConstraints:
    matchPolicy: Exact
    resourceRules:
      - {apiGroups: ["*"], apiVersions: ["*"], operations: [CREATE, UPDATE, DELETE], resources: ["*/*"]}
  matchConditions:
    - name: sent-under-an-incarnation
      expression: "has(request.userInfo.extra) && 'manifold.dev/incarnation' in request.userInfo.extra"
  variables:
    - {name: refused, expression: "['self-test']"}
  validations:
    - expression: >-
        request.userInfo.extra['manifold.dev/incarnation'].all(incarnation, !(incarnation in variables.refused))
      reason: Forbidden
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: manifold-fence}
spec:
  policyName: manifold-fence
  validationActions: [Deny]
"#;

async fn make_config_maps(client: &Client, count: usize) -> Result<()> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), "many");
    let make = |at: usize| {
        let api = api.clone();
        async move {
            let object = serde_json::from_value(json!({
                "metadata": {"name": format!("map-{at}")}, "data": {"text": "x".repeat(200)},
            }))?;
            api.create(&PostParams::default(), &object).await?;
            anyhow::Ok(())
        }
    };
    let mut made = futures::stream::iter((0..count).map(make)).buffer_unordered(AT_ONCE);
    while let Some(result) = made.next().await {
        result?;
    }
    Ok(())
}

/// A write of somebody who has nothing to do with Manifold.
#[derive(Clone, Debug)]
struct Write {
    /// Since the API server's first answer.
    at: Duration,
    took: Duration,
    error: Option<String>,
}

/// What the writes of one client came to.
#[derive(Debug)]
struct Seen {
    who: &'static str,
    writes: Vec<Write>,
}

impl Seen {
    /// When the first write landed.
    fn first(&self) -> Duration {
        let landed = self.writes.iter().find(|write| write.error.is_none());
        landed.map_or(Duration::MAX, |write| write.at + write.took)
    }

    /// The slowest of those that landed.
    fn slowest(&self) -> Duration {
        let landed = self.writes.iter().filter(|write| write.error.is_none());
        landed.map(|write| write.took).max().unwrap_or_default()
    }

    /// Refusals by a policy, in the server's words.
    fn refused(&self) -> Vec<&str> {
        let errors = self
            .writes
            .iter()
            .filter_map(|write| write.error.as_deref());
        errors
            .filter(|why| {
                why.contains("denied by policy")
                    || why.contains("manifold-fence")
                    || why.contains("paramKind")
            })
            .collect()
    }
}

/// Writes from before the API server answers until a while after. A client of its own, as another program
/// has.
async fn writes(config: Config, who: &'static str, path: String) -> Result<Seen> {
    let client = Client::try_from(config)?;
    let mut writes = Vec::new();
    let mut first: Option<Instant> = None;
    loop {
        // Whether it answers at all, so that its start does not count.
        if first.is_none() {
            let version =
                tokio::time::timeout(Duration::from_secs(1), client.apiserver_version()).await;
            match version {
                Ok(Ok(_)) => first = Some(Instant::now()),
                _ => {
                    tokio::time::sleep(PACE).await;
                    continue;
                }
            }
        }
        let begun = Instant::now();
        let since = first.map_or(Duration::ZERO, |first| begun.duration_since(first));
        if since > WATCHED {
            return Ok(Seen { who, writes });
        }
        let patch = json!({"metadata": {"annotations": {"example.com/at": format!("{since:?}")}}});
        let request = http::Request::patch(&path)
            .header("content-type", "application/merge-patch+json")
            .body(serde_json::to_vec(&patch)?)?;
        let answer = client.request::<Value>(request).await;
        writes.push(Write {
            at: since,
            took: begun.elapsed(),
            error: answer.err().map(|error| error.to_string()),
        });
        tokio::time::sleep(PACE).await;
    }
}

/// Starts the API server again while others write; says how they fared.
async fn restarted(control_plane: &mut ControlPlane) -> Result<Vec<Seen>> {
    let config = harness::kubeconfig::load(control_plane.admin_kubeconfig()).await?;
    control_plane.stop_api_server().await?;
    let everybody = join_all([
        writes(
            config.clone(),
            "a config map",
            "/api/v1/namespaces/others/configmaps/own".to_owned(),
        ),
        writes(
            config.clone(),
            "a pod",
            "/api/v1/namespaces/others/pods/own".to_owned(),
        ),
        writes(config.clone(), "a node", "/api/v1/nodes/node-0".to_owned()),
        writes(
            config.clone(),
            "a lease",
            "/apis/coordination.k8s.io/v1/namespaces/others/leases/own".to_owned(),
        ),
    ]);
    let (started, seen) = futures::join!(control_plane.start_api_server(), everybody);
    started?;
    seen.into_iter().collect()
}

fn print(what: &str, seen: &[Seen]) {
    for one in seen {
        let refused = one.refused();
        let failed = one
            .writes
            .iter()
            .filter(|write| write.error.is_some())
            .count();
        println!(
            "bystanders: {what}: {}: first write {:.0?} after the first answer, slowest {:.0?}, {} writes, {failed} failed, \
             {} refused by a policy{}",
            one.who,
            one.first(),
            one.slowest(),
            one.writes.len(),
            refused.len(),
            refused
                .first()
                .map(|why| format!(": {why}"))
                .unwrap_or_default(),
        );
    }
}

/// Time from listing an incarnation until its writes are refused: the middle of some tries.
async fn until_refused(
    client: &Client,
    list: impl Fn(String) -> http::Request<Vec<u8>>,
) -> Result<Duration> {
    let mut took = Vec::new();
    for at in 0..9 {
        // Not in step with whatever the server does each second.
        tokio::time::sleep(Duration::from_millis(1370)).await;
        let name = format!("dead-{at}");
        let listed: Result<Value, _> = client.request(list(name.clone())).await;
        listed.context("listing")?;
        let begun = Instant::now();
        until(
            "it is refused",
            PATIENCE,
            Duration::from_millis(2),
            || async {
                let request =
                    http::Request::patch("/api/v1/namespaces/others/configmaps/own?dryRun=All")
                        .header("content-type", "application/merge-patch+json")
                        .header("impersonate-user", "bystander")
                        .header("impersonate-group", "system:masters")
                        .header("impersonate-extra-manifold.dev%2fincarnation", &name)
                        .body(br#"{"metadata": {"annotations": {"a": "b"}}}"#.to_vec())?;
                let answer: Result<Value, kube::Error> = client.request(request).await;
                Ok(
                    matches!(answer, Err(kube::Error::Api(status)) if status.code == 403)
                        .then_some(()),
                )
            },
        )
        .await?;
        took.push(begun.elapsed());
    }
    took.sort_unstable();
    println!("bystanders: refused after {took:.0?}");
    Ok(took[took.len() / 2])
}

fn merge_patch(path: &str, patch: &Value) -> http::Request<Vec<u8>> {
    http::Request::patch(path)
        .header("content-type", "application/merge-patch+json")
        .body(patch.to_string().into_bytes())
        .expect("a request")
}

async fn settle() {
    // Policies are examined once a second.
    tokio::time::sleep(Duration::from_secs(3)).await;
}

#[test]
#[ignore = "minutes: cargo parity"]
fn everybody_else_writes_from_the_first_second_of_an_api_server_that_fences() {
    let _alone = alone();
    let count = std::env::var("MANIFOLD_CONFIGMAPS").ok();
    let count = count
        .and_then(|text| text.parse().ok())
        .unwrap_or(CONFIG_MAPS);
    run_test(async move {
        let mut control_plane = ControlPlane::builder().nodes(1).start().await?;
        let client = control_plane.client().await?;
        for name in ["many", "others"] {
            let namespace =
                serde_json::from_value::<Namespace>(json!({"metadata": {"name": name}}))?;
            Api::all(client.clone())
                .create(&PostParams::default(), &namespace)
                .await?;
        }
        let begun = Instant::now();
        make_config_maps(&client, count).await?;
        println!(
            "bystanders: {count} ConfigMaps made in {:.0?}",
            begun.elapsed()
        );
        let account: k8s_openapi::api::core::v1::ServiceAccount =
            serde_json::from_value(json!({"metadata": {"name": "default"}}))?;
        let params = PostParams::default();
        Api::namespaced(client.clone(), "others")
            .create(&params, &account)
            .await?;
        let map: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "own"}}))?;
        Api::namespaced(client.clone(), "others")
            .create(&params, &map)
            .await?;
        let lease: Lease = serde_json::from_value(json!({"metadata": {"name": "own"}}))?;
        Api::namespaced(client.clone(), "others")
            .create(&params, &lease)
            .await?;
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "own"},
            "spec": {"schedulerName": "nobody", "containers": [{"name": "app", "image": "example/app:1"}]},
        }))?;
        Api::namespaced(client.clone(), "others")
            .create(&params, &pod)
            .await?;

        // What it is without any fence, then the three ways to give a policy its list.
        let without = restarted(&mut control_plane).await?;
        print("no fence", &without);

        control_plane
            .kubectl_with_input(&["apply", "--server-side"], BY_CONFIG_MAP)
            .await?;
        let own: ConfigMap =
            serde_json::from_value(json!({"metadata": {"name": "manifold-fence"}}))?;
        Api::namespaced(client.clone(), "kube-system")
            .create(&params, &own)
            .await?;
        settle().await;
        print(
            "as it was, by ConfigMap",
            &restarted(&mut control_plane).await?,
        );
        control_plane
            .kubectl_with_input(&["delete"], BY_CONFIG_MAP)
            .await?;

        control_plane
            .kubectl_with_input(&["apply", "--server-side"], BY_ITSELF)
            .await?;
        settle().await;
        let path =
            "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/manifold-fence";
        let by_itself = until_refused(&client, |name| {
            let variables =
                json!([{"name": "refused", "expression": format!("['self-test', '{name}']")}]);
            merge_patch(path, &json!({"spec": {"variables": variables}}))
        })
        .await?;
        print("list in the policy", &restarted(&mut control_plane).await?);
        control_plane
            .kubectl_with_input(&["delete"], BY_ITSELF)
            .await?;

        control_plane.apply("deploy/fence").await?;
        let fleet = fleet_of(&control_plane, &["--server-fence=on"]).await?;
        let replicas = fleet.start_all(1).await?;
        let replica = &replicas[0];
        let by_kind = until_refused(&client, |name| {
            let path = "/apis/manifold.dev/v1/fences/manifold-fence";
            merge_patch(path, &json!({"incarnations": {name: "a test"}}))
        })
        .await?;
        println!(
            "bystanders: refused after {by_kind:.0?} with a kind of its own, {by_itself:.0?} with the list in the policy"
        );
        let with = restarted(&mut control_plane).await?;
        print("deploy/fence", &with);
        let most = without.iter().map(Seen::first).max().unwrap_or_default();
        for one in &with {
            let refused = one.refused();
            ensure!(refused.is_empty(), "{}: {refused:?}", one.who);
            // One that comes before the server has read the list waits for a second at most, and is let
            // through.
            ensure!(
                one.first() < most + Duration::from_millis(1500),
                "{}: {:?}, without a fence {most:?}",
                one.who,
                one.first()
            );
        }
        // And the fence holds again: the replica finds it so.
        until("the replica finds the fence", PATIENCE, POLL, || async {
            let ready = replica.text("/readyz?verbose").await?;
            Ok(ready.contains("[+]server-fence ok: on\n").then_some(()))
        })
        .await?;
        Ok(())
    });
}

/// `deploy/rbac`'s Role for Leases and its binding, in another namespace.
async fn allow_fleet_in(client: &Client, namespace: &str) -> Result<()> {
    let text = std::fs::read_to_string(workspace_root().join("deploy/rbac/fleet.yaml"))?;
    for document in text.split("\n---\n") {
        let mut object: Value = serde_yaml::from_str(document)?;
        if object["metadata"]["name"] != "manifold:fleet" {
            continue;
        }
        object["metadata"]["namespace"] = namespace.into();
        let params = PostParams::default();
        match object["kind"].as_str() {
            Some("Role") => {
                let role: Role = serde_json::from_value(object)?;
                Api::namespaced(client.clone(), namespace)
                    .create(&params, &role)
                    .await?;
            }
            _ => {
                let binding: RoleBinding = serde_json::from_value(object)?;
                Api::namespaced(client.clone(), namespace)
                    .create(&params, &binding)
                    .await?;
            }
        }
    }
    Ok(())
}

async fn server_fence(replica: &Replica) -> Result<String> {
    let ready = replica.text("/readyz?verbose").await?;
    let line = ready.lines().find(|line| line.contains("server-fence"));
    Ok(line
        .with_context(|| format!("no line in {ready}"))?
        .to_owned())
}

#[test]
fn the_fence_serves_a_fleet_of_another_namespace_and_impersonates_nobody_without_credentials() {
    let _beside = beside();
    run_test(async {
        let control_plane = ControlPlane::builder().nodes(1).fence().start().await?;
        let client = control_plane.client().await?;
        let namespace = control_plane.namespace("elsewhere").await?;
        allow_fleet_in(&client, &namespace).await?;
        let args = [
            "--use-service-account-credentials=true",
            "--server-fence=on",
        ];
        let mut builder = control_plane.fleet().namespace(&namespace);
        for arg in args {
            builder = builder.arg(arg);
        }
        let fleet = builder.build().await?;
        let mut replicas = fleet.start_all(2).await?;
        for replica in &replicas {
            until("it finds the fence", PATIENCE, POLL, || async {
                let fence = server_fence(replica).await?;
                ensure!(fence == "[+]server-fence ok: on", "{fence}");
                Ok(Some(()))
            })
            .await?;
            // A replica that is ready may own nothing yet; of one that never did nothing is taken over.
            until("it owns ranges", PATIENCE, POLL, || async {
                Ok((!replica.shards().await?.owned.is_empty()).then_some(()))
            })
            .await?;
        }
        let leases: Api<Lease> = Api::namespaced(client.clone(), &namespace);
        let lease = leases.get("manifold-replica-manifold-1").await?;
        let annotations = lease.metadata.annotations.unwrap_or_default();
        ensure!(
            annotations
                .get("manifold.dev/fenced")
                .is_some_and(|fenced| fenced == "true"),
            "{annotations:?}"
        );
        let dead = lease
            .spec
            .and_then(|spec| spec.holder_identity)
            .context("a holder")?;

        // A dead owner's incarnation is listed and refused.
        drop(replicas.pop());
        let survivor = replicas.first().context("the survivor")?;
        let proofs = "manifold_server_fence_proofs_total";
        until("the dead one is taken over", PATIENCE, POLL, || async {
            let held = survivor.metrics().await?.sum(proofs, &[("result", "held")]);
            Ok(held.filter(|held| *held > 0.0))
        })
        .await?;
        let listed = listed(&client).await?;
        ensure!(listed.contains_key(&dead), "{dead}: {listed:?}");
        let api: Api<k8s_openapi::api::apps::v1::Deployment> =
            Api::namespaced(client.clone(), &namespace);
        create(&api, deployment("works", 2)).await?;
        complete(&api, "works", 2).await?;
        drop(replicas);

        // Without accounts of their own, controllers write in the manager's name; it is said that nothing
        // fences.
        let fleet = control_plane
            .fleet()
            .namespace(&namespace)
            .name_prefix("plain");
        let fleet = fleet
            .arg("--use-service-account-credentials=false")
            .build()
            .await?;
        let replicas = fleet.start_all(1).await?;
        let fence = server_fence(&replicas[0]).await?;
        println!("bystanders: without credentials: {fence}");
        ensure!(
            fence.contains("off: --use-service-account-credentials=false"),
            "{fence}"
        );
        let patch = Patch::Merge(json!({"spec": {"replicas": 1}}));
        let _ = api.patch("works", &PatchParams::default(), &patch).await?;
        until("it has written", PATIENCE, POLL, || async {
            let written = replicas[0]
                .metrics()
                .await?
                .sum("manifold_writes_total", &[]);
            Ok(written.filter(|written| *written > 0.0))
        })
        .await?;
        let mut impersonated: BTreeMap<String, usize> = BTreeMap::new();
        control_plane.audit().read(|record| {
            let agent = record
                .agent()
                .filter(|agent| agent.replica.starts_with("plain"));
            if let (Some(_), Some(user)) = (agent, record.impersonated_user) {
                *impersonated.entry(user.username).or_default() += 1;
            }
        })?;
        ensure!(impersonated.is_empty(), "{impersonated:?}");
        Ok(())
    });
}
