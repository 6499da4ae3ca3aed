//! Gathers the facts: the only part that talks to the API server.

mod leases;

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    path::Path,
    time::{Duration, Instant},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use controllers_kit::{Descriptor, selection, selection::Selection};
use futures::{StreamExt as _, stream};
use http_body_util::BodyExt as _;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{
    authentication::v1::SelfSubjectReview,
    authorization::v1::{
        ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
        SubjectAccessReview, SubjectAccessReviewSpec,
    },
    core::v1::Pod,
};
use kube::{
    Api, Client, Config, ResourceExt as _,
    api::{ListParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::Value;
use steering::Orders;

use leases::leases;

use crate::{
    certificates,
    facts::{
        Asked, Covered, Credentials, Facts, Fence, Fleet, Known, LeaseGuard, ManagerPod, Served,
        Server, Unknown, Unusable,
    },
    rights::{self, Right, Who},
};

/// One request; a server that takes longer can't be examined.
const REQUEST_MAX: Duration = Duration::from_secs(10);
/// Reviews in flight at once: far below what an API server queues for one client.
const REVIEWS_AT_ONCE: usize = 16;
/// The user of the manager's certificate, as kubeadm names it.
const MANAGER: &str = "system:kube-controller-manager";

/// How to reach the API server, and as whom.
pub(crate) struct Access {
    credentials: Credentials,
    client: Result<Client, String>,
}

impl Access {
    /// From a kubeconfig, or from the pod's service account.
    ///
    /// # Errors
    /// One sentence that names the file.
    pub(crate) async fn load(path: Option<&Path>, context: Option<&str>) -> Result<Self, String> {
        let shown = path.map_or_else(
            || "the kubeconfig of $KUBECONFIG or ~/.kube/config".to_owned(),
            |path| format!("--kubeconfig {}", path.display()),
        );
        let kubeconfig = match path {
            Some(path) => Kubeconfig::read_from(path).map(Some),
            None => Kubeconfig::read().map(Some),
        };
        let kubeconfig = match kubeconfig {
            Ok(kubeconfig) => kubeconfig,
            // In a pod there is none.
            Err(_) if path.is_none() && context.is_none() && Config::incluster().is_ok() => None,
            Err(why) => {
                return Err(format!("{shown}: {}: give --kubeconfig", causes(&why)));
            }
        };
        let Some(kubeconfig) = kubeconfig else {
            let config = Config::incluster().map_err(|why| causes(&why))?;
            let credentials = Credentials {
                server: config.cluster_url.to_string(),
                authorities: authorities(&config),
                ..Credentials::default()
            };
            return Ok(Self {
                credentials,
                client: client(config),
            });
        };
        let context = context
            .map(str::to_owned)
            .or_else(|| kubeconfig.current_context.clone());
        let options = KubeConfigOptions {
            context: context.clone(),
            ..KubeConfigOptions::default()
        };
        let config = Config::from_custom_kubeconfig(kubeconfig.clone(), &options)
            .await
            .map_err(|why| {
                format!(
                    "{shown}: {}: check its context, cluster and user",
                    causes(&why)
                )
            })?;
        let cluster = kubeconfig
            .contexts
            .iter()
            .find(|one| Some(&one.name) == context.as_ref())
            .and_then(|one| one.context.as_ref())
            .map(|context| context.cluster.clone())
            .unwrap_or_default();
        let credentials = Credentials {
            server: config
                .cluster_url
                .to_string()
                .trim_end_matches('/')
                .to_owned(),
            cluster,
            kubeconfig: path
                .map(|path| path.display().to_string())
                .or_else(|| std::env::var("KUBECONFIG").ok())
                .unwrap_or_default(),
            client: client_certificate(&config),
            authorities: authorities(&config),
            insecure: config.accept_invalid_certs,
        };
        Ok(Self {
            credentials,
            client: client(config),
        })
    }
}

fn client(mut config: Config) -> Result<Client, String> {
    // A proxy of the environment is for the world outside.
    if matches!(
        config.cluster_url.host(),
        Some("127.0.0.1" | "localhost" | "[::1]")
    ) {
        config.proxy_url = None;
    }
    config.read_timeout = Some(REQUEST_MAX);
    config.connect_timeout = Some(REQUEST_MAX);
    // The provider is set by nobody else.
    let _already = rustls::crypto::ring::default_provider().install_default();
    Client::try_from(config).map_err(|why| causes(&why))
}

fn client_certificate(config: &Config) -> Option<Known<certificates::Certificate>> {
    let unreadable = |why: String| Unknown {
        why,
        forbidden: false,
    };
    let auth = &config.auth_info;
    let pem = match (&auth.client_certificate_data, &auth.client_certificate) {
        (Some(data), _) => match decoded(data) {
            Some(pem) => pem,
            None => return Some(Err(unreadable("is not in base64".to_owned()))),
        },
        (None, Some(path)) => match std::fs::read(path) {
            Ok(pem) => pem,
            Err(why) => return Some(Err(unreadable(format!("{path}: {why}")))),
        },
        (None, None) => return None,
    };
    Some(certificates::first_of_pem(&pem))
}

/// Base64, in lines or not.
fn decoded(text: &str) -> Option<Vec<u8>> {
    let compact: String = text.split_whitespace().collect();
    STANDARD.decode(compact).ok()
}

fn authorities(config: &Config) -> Vec<Known<certificates::Certificate>> {
    config
        .root_cert
        .iter()
        .flatten()
        .map(|der| certificates::of_der(der))
        .collect()
}

/// The whole chain of causes in one line.
pub fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let more = next.to_string();
        // Many errors repeat their cause.
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = next.source();
    }
    text.replace("ServiceError: ", "").replace('\n', " ")
}

fn unknown(error: &kube::Error) -> Unknown {
    match error {
        kube::Error::Api(status) => Unknown {
            why: status.message.clone(),
            forbidden: status.code == 403,
        },
        other => Unknown {
            why: causes(other),
            forbidden: false,
        },
    }
}

/// One request within [`REQUEST_MAX`].
async fn asked<T>(request: impl Future<Output = Result<T, kube::Error>>) -> Known<T> {
    match tokio::time::timeout(REQUEST_MAX, request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(unknown(&error)),
        Err(_) => Err(Unknown {
            why: format!("no answer within {REQUEST_MAX:?}"),
            forbidden: false,
        }),
    }
}

/// An object by its path; `None` where there is none.
async fn object(client: &Client, path: &str) -> Known<Option<Value>> {
    let request = http::Request::get(path)
        .body(Vec::new())
        .map_err(|why| Unknown {
            why: why.to_string(),
            forbidden: false,
        })?;
    match tokio::time::timeout(REQUEST_MAX, client.request::<Value>(request)).await {
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => Ok(None),
        Ok(answer) => answer.map(Some).map_err(|error| unknown(&error)),
        Err(_) => Err(Unknown {
            why: format!("no answer within {REQUEST_MAX:?}"),
            forbidden: false,
        }),
    }
}

/// The orders of operators to a fleet.
async fn orders(
    client: &Client,
    namespace: &str,
    fleet: &str,
    descriptors: &[Descriptor],
) -> Known<Option<Orders>> {
    let name = steering::object_name(fleet);
    let path = format!("/api/v1/namespaces/{namespace}/configmaps/{name}");
    let Some(object) = object(client, &path).await? else {
        return Ok(None);
    };
    let fields = object["data"].as_object().into_iter().flatten();
    let text = |(field, text): (&String, &Value)| {
        (field.clone(), text.as_str().unwrap_or_default().to_owned())
    };
    let names = || descriptors.iter().map(|one| one.name);
    let read = Orders::read(&fields.map(text).collect(), &|name| {
        steering::known(name, selection::canonical(name, descriptors), names())
    });
    Ok(Some(read))
}

/// Whether the API server answers, its version, and its clock.
async fn server(client: &Client) -> Result<Server, Unusable> {
    let request = http::Request::get("/version")
        .body(kube::client::Body::empty())
        .map_err(|why| Unusable::Failing(why.to_string()))?;
    let before = Timestamp::now();
    let started = Instant::now();
    let answer = tokio::time::timeout(REQUEST_MAX, client.send(request)).await;
    let took = started.elapsed();
    let answer = match answer {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => {
            let why = causes(&error);
            let is_trust = ["certificate", "UnknownIssuer", "NotValidForName"]
                .iter()
                .any(|word| why.contains(word))
                && !why.contains("alert");
            return Err(match is_trust {
                true => Unusable::Untrusted(why),
                // TLS 1.3 refuses a client's certificate after the handshake.
                false if why.contains("alert") => Unusable::Unauthenticated(why),
                false => Unusable::Unreachable(why),
            });
        }
        Err(_) => {
            return Err(Unusable::Unreachable(format!(
                "no answer within {REQUEST_MAX:?}"
            )));
        }
    };
    let status = answer.status();
    // Whole seconds, cut off: half a second is missing on average.
    let date = answer
        .headers()
        .get(http::header::DATE)
        .and_then(|date| date.to_str().ok())
        .and_then(|date| jiff::fmt::rfc2822::parse(date).ok())
        .and_then(|date| {
            date.timestamp()
                .checked_add(SignedDuration::from_millis(500))
                .ok()
        });
    let middle = SignedDuration::try_from(took / 2)
        .ok()
        .and_then(|half| before.checked_add(half).ok());
    let clock_ahead = middle
        .zip(date)
        .map(|(middle, date)| middle.duration_since(date));
    let body = answer
        .into_body()
        .collect()
        .await
        .map_err(|why| Unusable::Failing(causes(&why)))?
        .to_bytes();
    let text = String::from_utf8_lossy(&body);
    match status.as_u16() {
        200 => {}
        401 => return Err(Unusable::Unauthenticated("401 Unauthorized".to_owned())),
        code => return Err(Unusable::Failing(format!("{code}: {}", text.trim()))),
    }
    let info: Value = serde_json::from_slice(&body)
        .map_err(|_| Unusable::Failing("/version is no JSON: is it an API server?".to_owned()))?;
    let number = |field: &str| {
        let text = info[field].as_str().unwrap_or_default();
        text.trim_end_matches(|c: char| !c.is_ascii_digit())
            .parse::<u32>()
            .unwrap_or(0)
    };
    Ok(Server {
        version: info["gitVersion"].as_str().unwrap_or_default().to_owned(),
        minor: (number("major"), number("minor")),
        clock_ahead,
    })
}

async fn user(client: &Client) -> Known<String> {
    let reviews: Api<SelfSubjectReview> = Api::all(client.clone());
    let review =
        asked(reviews.create(&PostParams::default(), &SelfSubjectReview::default())).await?;
    let info = review.status.and_then(|status| status.user_info);
    Ok(info.and_then(|info| info.username).unwrap_or_default())
}

async fn served(client: &Client) -> Known<Served> {
    let (core, groups) = futures::join!(
        asked(client.list_core_api_versions_aggregated()),
        asked(client.list_api_groups_aggregated()),
    );
    let mut served = Served::default();
    for group in core?.items.into_iter().chain(groups?.items) {
        let name = group
            .metadata
            .and_then(|metadata| metadata.name)
            .unwrap_or_default();
        for version in group.versions {
            let number = version.version.unwrap_or_default();
            served.versions.insert(match name.as_str() {
                "" => number,
                name => format!("{name}/{number}"),
            });
            let resources = version.resources.into_iter();
            served
                .resources
                .extend(resources.filter_map(|resource| Some((name.clone(), resource.resource?))));
        }
    }
    Ok(served)
}

/// Asks for one right.
async fn allowed(client: &Client, right: &Right) -> Known<bool> {
    let some = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    let attributes = ResourceAttributes {
        verb: Some(right.verb.clone()),
        group: Some(right.group.clone()),
        resource: Some(right.resource.clone()),
        subresource: some(&right.subresource),
        namespace: some(&right.namespace),
        name: some(&right.name),
        ..ResourceAttributes::default()
    };
    let params = PostParams::default();
    let status = match &right.who {
        Who::Own => {
            let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
            let review = SelfSubjectAccessReview {
                spec: SelfSubjectAccessReviewSpec {
                    resource_attributes: Some(attributes),
                    ..SelfSubjectAccessReviewSpec::default()
                },
                ..SelfSubjectAccessReview::default()
            };
            asked(reviews.create(&params, &review)).await?.status
        }
        who => {
            let reviews: Api<SubjectAccessReview> = Api::all(client.clone());
            let review = SubjectAccessReview {
                spec: SubjectAccessReviewSpec {
                    user: Some(who.user()),
                    groups: Some(who.groups()),
                    resource_attributes: Some(attributes),
                    ..SubjectAccessReviewSpec::default()
                },
                ..SubjectAccessReview::default()
            };
            asked(reviews.create(&params, &review)).await?.status
        }
    };
    Ok(status.is_some_and(|status| status.allowed))
}

async fn all_allowed(
    client: &Client,
    rights: impl IntoIterator<Item = Right>,
) -> Vec<(Right, Known<bool>)> {
    let mut answers: Vec<(Right, Known<bool>)> = stream::iter(rights)
        .map(|right| async move {
            let answer = allowed(client, &right).await;
            (right, answer)
        })
        .buffer_unordered(REVIEWS_AT_ONCE)
        .collect()
        .await;
    answers.sort_by(|left, right| left.0.cmp(&right.0));
    answers
}

/// Bytes of a memory quantity such as `256Mi`.
fn bytes(text: &str) -> Option<u64> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let number: f64 = text[..digits].parse().ok()?;
    let unit: f64 = match &text[digits..] {
        "" => 1.0,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "Ki" => 1024.0,
        "Mi" => 1024.0 * 1024.0,
        "Gi" => 1024.0 * 1024.0 * 1024.0,
        _ => return None,
    };
    let value = number * unit;
    // A limit beyond it is no limit.
    (value < 9e18).then_some(value as u64)
}

/// A pod of a manager, as the checks know it.
fn manager_pod(pod: &Pod) -> Option<ManagerPod> {
    let spec = pod.spec.as_ref()?;
    let container = spec.containers.first()?;
    let args: Vec<String> = [&container.command, &container.args]
        .into_iter()
        .flatten()
        .flatten()
        .cloned()
        .collect();
    let phase = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref());
    if matches!(phase, Some("Succeeded" | "Failed")) {
        return None;
    }
    let own_flags = [
        "--peer-",
        "--replica-name",
        "--fleet-",
        "--expected-replicas",
        "--config",
    ];
    let image = container.image.as_deref().unwrap_or_default();
    // Behind kubeadm's manifest only the image and some flags say what it is.
    let is_manifold = image.contains("manifold")
        || pod
            .labels()
            .get("app.kubernetes.io/name")
            .is_some_and(|name| name == "manifold")
        || args
            .iter()
            .any(|arg| own_flags.iter().any(|flag| arg.starts_with(flag)));
    let ready = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref())
        .is_some_and(|conditions| {
            conditions
                .iter()
                .any(|condition| condition.type_ == "Ready" && condition.status == "True")
        });
    let limit = container
        .resources
        .as_ref()
        .and_then(|resources| resources.limits.as_ref())
        .and_then(|limits| limits.get("memory"))
        .and_then(|quantity| bytes(&quantity.0));
    Some(ManagerPod {
        namespace: pod.namespace().unwrap_or_default(),
        name: pod.name_any(),
        node: spec.node_name.clone().unwrap_or_default(),
        ready,
        is_manifold,
        args,
        memory_limit: limit,
        account: spec.service_account_name.clone().unwrap_or_default(),
        is_static: pod
            .annotations()
            .contains_key("kubernetes.io/config.mirror"),
    })
}

async fn pods(client: &Client) -> Known<Vec<ManagerPod>> {
    let all: Api<Pod> = Api::all(client.clone());
    let own = ListParams::default().labels("app.kubernetes.io/name=manifold");
    let managers = ListParams::default().labels("component=kube-controller-manager");
    let (own, managers) = futures::join!(asked(all.list(&own)), asked(all.list(&managers)));
    let mut found = BTreeMap::new();
    for pod in own?.items.iter().chain(&managers?.items) {
        if let Some(pod) = manager_pod(pod) {
            found.insert((pod.namespace.clone(), pod.name.clone()), pod);
        }
    }
    Ok(found.into_values().collect())
}

/// The pods of managers, of this fleet and others.
///
/// # Errors
/// Names what is wrong, and the remedy.
pub async fn manager_pods(client: &Client) -> Result<Vec<ManagerPod>, String> {
    pods(client).await.map_err(|unknown| unknown.why)
}

async fn count_pods(client: &Client) -> Known<u64> {
    let all: Api<Pod> = Api::all(client.clone());
    let page = asked(all.list_metadata(&ListParams::default().limit(1))).await?;
    let rest = page.metadata.remaining_item_count.unwrap_or(0);
    let shown = i64::try_from(page.items.len()).unwrap_or(i64::MAX);
    Ok(u64::try_from(rest.saturating_add(shown)).unwrap_or(0))
}

/// A ValidatingAdmissionPolicy, and the actions of its binding, both of this name.
async fn admission(
    client: &Client,
    name: &str,
) -> (Known<Option<Value>>, Known<Option<Vec<String>>>) {
    let group = "/apis/admissionregistration.k8s.io/v1";
    let (policy, binding) = (
        format!("{group}/validatingadmissionpolicies/{name}"),
        format!("{group}/validatingadmissionpolicybindings/{name}"),
    );
    let (policy, binding) = futures::join!(object(client, &policy), object(client, &binding));
    let actions = |binding: Value| texts(&binding["spec"]["validationActions"]);
    (policy, binding.map(|binding| binding.map(actions)))
}

/// The texts of a list.
fn texts(list: &Value) -> Vec<String> {
    let texts = list.as_array().into_iter().flatten();
    texts.filter_map(Value::as_str).map(str::to_owned).collect()
}

/// The namespaces in which a policy is asked.
fn covered(policy: &Value) -> Covered {
    let selector = &policy["spec"]["matchConstraints"]["namespaceSelector"]["matchExpressions"];
    let by_name = selector
        .as_array()
        .into_iter()
        .flatten()
        .filter(|one| one["key"] == "kubernetes.io/metadata.name" && one["operator"] == "In");
    let mut named = by_name.map(|one| texts(&one["values"]).into_iter().collect::<BTreeSet<_>>());
    match named.next() {
        Some(first) => Covered::Named(named.fold(first, |all, next| &all & &next)),
        None => Covered::All,
    }
}

async fn lease_guard(client: &Client) -> LeaseGuard {
    let (policy, binding) = admission(client, "manifold-guard").await;
    LeaseGuard {
        policy: policy.map(|policy| policy.as_ref().map(covered)),
        binding,
    }
}

async fn fence(client: &Client) -> Fence {
    let kind = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/fences.manifold.dev";
    let (kind, (policy, binding)) =
        futures::join!(object(client, kind), admission(client, "manifold-fence"));
    let established = |kind: Value| {
        kind["status"]["conditions"].as_array().is_some_and(|all| {
            all.iter()
                .any(|one| one["type"] == "Established" && one["status"] == "True")
        })
    };
    Fence {
        kind: kind.map(|kind| kind.is_some_and(established)),
        policy: policy.map(|policy| {
            policy.map(|policy| {
                let failure = policy["spec"]["failurePolicy"].as_str();
                failure.unwrap_or("Fail").to_owned()
            })
        }),
        binding,
    }
}

/// Who the replicas are to the API server.
fn identities(facts: &Facts) -> Vec<Who> {
    let mut identities = BTreeSet::new();
    for pod in facts.own_pods() {
        let who = match pod.is_static || pod.account.is_empty() {
            true => Who::User(MANAGER.to_owned()),
            false => Who::Account {
                namespace: pod.namespace.clone(),
                name: pod.account.clone(),
            },
        };
        identities.insert(who);
    }
    if identities.is_empty() {
        identities.insert(Who::User(MANAGER.to_owned()));
    }
    identities.into_iter().collect()
}

/// The controllers that the fleet runs, or all where nobody says.
fn running<'a>(facts: &'a Facts, descriptors: &'a [Descriptor]) -> BTreeSet<&'a str> {
    let lists = facts.fleet().map(Fleet::selections).unwrap_or_default();
    let mut names = BTreeSet::new();
    for list in lists.into_keys() {
        if let Ok(selection) = Selection::of(list.split(' '), descriptors) {
            names.extend(selection.names(descriptors));
        }
    }
    if names.is_empty() {
        names.extend(descriptors.iter().map(|one| one.name));
    }
    names
}

/// What the fleet's identities need.
fn needed(facts: &Facts) -> BTreeSet<Right> {
    let descriptors = &facts.descriptors;
    let mut running = running(facts, descriptors);
    // Default roles of a controller behind a feature gate do not exist where the gate is off, nor are its
    // kinds served: it does not run.
    if let Ok(served) = &facts.served {
        running.retain(|name| {
            let own = rights::of_controllers(descriptors, &BTreeSet::from([*name]));
            own.iter()
                .all(|right| right.is_virtual() || served.has(&right.group, &right.resource))
        });
    }
    let mut needed = rights::of_controllers(descriptors, &running);
    for who in identities(facts) {
        needed.extend(rights::of_manager(
            &who,
            (facts.namespace(), facts.fleet_name()),
            descriptors,
            &running,
        ));
        needed.extend(rights::of_fence(&who, descriptors, &running));
        if facts.is_companion() {
            needed.extend(rights::of_companion(&who));
        }
    }
    if let Ok(served) = &facts.served {
        needed.retain(|right| right.is_virtual() || served.has(&right.group, &right.resource));
    }
    needed
}

/// Everything, as of now.
pub(crate) async fn facts(
    access: &Access,
    asked_for: Asked,
    build: &str,
    descriptors: &[Descriptor],
) -> Facts {
    let nothing = || Unknown {
        why: "not asked for".to_owned(),
        forbidden: false,
    };
    let peer_files = asked_for.peer_files.as_ref().map(certificates::of_peer);
    let mut facts = Facts {
        asked: asked_for,
        build: build.to_owned(),
        default_namespace: coordinator::Config::default().fleet_namespace,
        default_fleet: coordinator::Config::default().fleet_name,
        descriptors: descriptors.to_vec(),
        now: Timestamp::now(),
        credentials: access.credentials.clone(),
        server: Err(Unusable::Unreachable(String::new())),
        user: Err(nothing()),
        served: Err(nothing()),
        own_rights: Vec::new(),
        rights: Vec::new(),
        fleets: Err(nothing()),
        guards: BTreeMap::new(),
        orders: Err(nothing()),
        pods: Err(nothing()),
        stateful_set: Err(nothing()),
        flow_schema: Err(nothing()),
        lease_guard: LeaseGuard {
            policy: Err(nothing()),
            binding: Err(nothing()),
        },
        fence: Fence {
            kind: Err(nothing()),
            policy: Err(nothing()),
            binding: Err(nothing()),
        },
        cluster_pods: Err(nothing()),
        peer_files,
    };
    let client = match &access.client {
        Ok(client) => client,
        Err(why) => {
            facts.server = Err(Unusable::Unreachable(why.clone()));
            return facts;
        }
    };
    facts.server = server(client).await;
    let Ok(found) = &facts.server else {
        return facts;
    };
    let clock_ahead = found.clock_ahead.unwrap_or(SignedDuration::ZERO);
    let mut own = rights::to_examine(facts.namespace(), facts.fleet_name());
    if facts.asked.pre {
        own.extend(rights::to_install(facts.namespace()));
    }
    let flow_schema = "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas/manifold-leases";
    let (user, served, own_rights, (fleets, guards), pods, flow_schema) = futures::join!(
        user(client),
        served(client),
        all_allowed(client, own),
        leases(client, &facts.asked, clock_ahead),
        pods(client),
        object(client, flow_schema),
    );
    let (lease_guard, fence, cluster_pods) =
        futures::join!(lease_guard(client), fence(client), count_pods(client));
    facts.user = user;
    facts.served = served;
    facts.own_rights = own_rights;
    facts.fleets = fleets;
    facts.guards = guards;
    facts.pods = pods;
    facts.flow_schema = flow_schema.map(|found| found.is_some());
    facts.lease_guard = lease_guard;
    facts.fence = fence;
    facts.cluster_pods = cluster_pods;
    if facts.asked.pre {
        return facts;
    }
    let set = format!(
        "/apis/apps/v1/namespaces/{}/statefulsets/manifold",
        facts.namespace()
    );
    let needed = needed(&facts);
    let orders = orders(client, facts.namespace(), facts.fleet_name(), descriptors);
    let (set, rights, orders) =
        futures::join!(object(client, &set), all_allowed(client, needed), orders);
    facts.orders = orders;
    facts.stateful_set = set.map(|set| {
        let replicas = set.as_ref()?["spec"]["replicas"].as_u64()?;
        usize::try_from(replicas).ok()
    });
    facts.rights = rights;
    facts
}

#[cfg(test)]
mod tests;
