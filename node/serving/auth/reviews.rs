//! TokenReview and SubjectAccessReview, asked of a real API server.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use kube::Client;
use node_cache::Purpose;
use node_connection::{
    components::{self, Source, causes},
    rotation::Followed,
};
use node_options::{AuthenticationOptions, AuthorizationOptions};
use node_telemetry::metrics::Metrics;
use serde_json::{Value, json};

use super::{Error, Reviews, Target, User};

/// How long one review may take: upstream's figure.
const REVIEW_MAX: Duration = Duration::from_secs(10);

/// The API servers that are asked; each may be missing.
#[derive(Clone)]
pub struct ServerReviews {
    tokens: Option<Client>,
    access: Option<Client>,
    followed: Vec<Arc<Followed>>,
}

impl std::fmt::Debug for ServerReviews {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ServerReviews")
    }
}

impl ServerReviews {
    /// Clients of the two kubeconfigs; without one, of the pod's service account; outside a pod, none.
    ///
    /// # Errors
    /// A kubeconfig that does not load.
    pub async fn new(
        authentication: &AuthenticationOptions,
        authorization: &AuthorizationOptions,
        metrics: &Metrics,
    ) -> Result<Self, Error> {
        let tokens = reviewer(
            "authentication-kubeconfig",
            authentication.kubeconfig.as_deref(),
            metrics,
        )
        .await?;
        let access = reviewer(
            "authorization-kubeconfig",
            authorization.kubeconfig.as_deref(),
            metrics,
        )
        .await?;
        if tokens.is_none() {
            tracing::warn!("no --authentication-kubeconfig: bearer tokens are not examined");
        }
        if access.is_none() {
            tracing::warn!(
                "no --authorization-kubeconfig: only open paths and system:masters are answered"
            );
        }
        let (tokens, of_tokens) = tokens.unzip();
        let (access, of_access) = access.unzip();
        Ok(Self {
            tokens,
            access,
            followed: of_tokens.into_iter().chain(of_access).collect(),
        })
    }

    /// Where the clients' credentials come from.
    pub(super) fn followed(&self) -> Vec<Arc<Followed>> {
        self.followed.clone()
    }

    /// The client that reads authorities from the cluster.
    pub(super) fn lookup_client(&self) -> Option<Client> {
        self.tokens.clone()
    }
}

async fn reviewer(
    flag: &'static str,
    path: Option<&std::path::Path>,
    metrics: &Metrics,
) -> Result<Option<(Client, Arc<Followed>)>, Error> {
    let source = Source {
        flag,
        kubeconfig: path.map(ToOwned::to_owned),
        master: None,
    };
    let followed = match Followed::load(source, None).await {
        Ok(followed) => followed,
        // In no pod either.
        Err(components::Error::Nowhere(_)) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let api = followed
        .connect(
            Purpose::Reviews,
            Some(components::observed(&followed.config(), metrics)),
        )
        .map_err(|why| components::Error::Client { flag, why })?;
    Ok(Some((api.kube(), followed)))
}

async fn ask(client: &Client, path: &str, body: &Value) -> Result<Value, String> {
    let body = serde_json::to_vec(body).map_err(|why| why.to_string())?;
    let request = http::Request::post(path)
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(body)
        .map_err(|why| why.to_string())?;
    match tokio::time::timeout(REVIEW_MAX, client.request::<Value>(request)).await {
        Ok(answer) => answer.map_err(|why| causes(&why)),
        Err(_) => Err(format!("no answer within {}s", REVIEW_MAX.as_secs())),
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().map(text).collect()
}

/// The user of a TokenReview's status.
fn user(status: &Value) -> User {
    let user = &status["user"];
    let extra = user["extra"].as_object().into_iter().flatten();
    User {
        name: text(&user["username"]),
        uid: text(&user["uid"]),
        groups: texts(&user["groups"]),
        extra: extra
            .map(|(key, values)| (key.clone(), texts(values)))
            .collect(),
    }
}

impl Reviews for ServerReviews {
    fn token<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Option<User>, String>> {
        Box::pin(async move {
            let Some(client) = &self.tokens else {
                return Ok(None);
            };
            let body = json!({
                "apiVersion": "authentication.k8s.io/v1",
                "kind": "TokenReview",
                "metadata": {},
                "spec": { "token": token },
            });
            let answer = ask(client, "/apis/authentication.k8s.io/v1/tokenreviews", &body).await?;
            let status = &answer["status"];
            Ok((status["authenticated"] == true).then(|| user(status)))
        })
    }

    fn knows_tokens(&self) -> bool {
        self.tokens.is_some()
    }

    fn access<'a>(
        &'a self,
        user: &'a User,
        verb: &'a str,
        target: &'a Target,
    ) -> BoxFuture<'a, Result<(bool, String), String>> {
        Box::pin(async move {
            let Some(client) = &self.access else {
                return Ok((false, String::new()));
            };
            let (field, attributes) = match target {
                Target::Path(path) => (
                    "nonResourceAttributes",
                    json!({ "path": path, "verb": verb }),
                ),
                Target::Object {
                    resource,
                    namespace,
                    name,
                } => (
                    "resourceAttributes",
                    json!({
                        "verb": verb,
                        "group": resource.group,
                        "version": resource.version,
                        "resource": resource.plural,
                        "namespace": namespace,
                        "name": name,
                    }),
                ),
            };
            let body = json!({
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SubjectAccessReview",
                "metadata": {},
                "spec": {
                    "user": user.name,
                    "uid": user.uid,
                    "groups": user.groups,
                    "extra": user.extra,
                    field: attributes,
                },
            });
            let answer = ask(
                client,
                "/apis/authorization.k8s.io/v1/subjectaccessreviews",
                &body,
            )
            .await?;
            let status = &answer["status"];
            Ok((status["allowed"] == true, text(&status["reason"])))
        })
    }
}
