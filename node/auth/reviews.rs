//! TokenReview and SubjectAccessReview, asked of a real API server.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::future::BoxFuture;
use kube::{Client, Config};
use serde_json::{Value, json};

use super::{Error, Reviews, User};
use crate::{
    components::{self, causes},
    metrics::{ClientMetrics, Metrics},
    options::{AuthenticationOptions, AuthorizationOptions},
};

/// How long one review may take: upstream's figure.
const REVIEW_MAX: Duration = Duration::from_secs(10);

/// The API servers that are asked; each may be missing.
#[derive(Clone)]
pub struct ServerReviews {
    tokens: Option<Reviewer>,
    access: Option<Reviewer>,
}

/// An API server that is asked, and what its answers are counted by.
#[derive(Clone)]
struct Reviewer {
    client: Client,
    metrics: Arc<ClientMetrics>,
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
            tracing::warn!("no --authentication-kubeconfig: bearer tokens are not looked at");
        }
        if access.is_none() {
            tracing::warn!(
                "no --authorization-kubeconfig: only open paths and system:masters are answered"
            );
        }
        Ok(Self { tokens, access })
    }

    /// The client that looks up authorities in the cluster.
    pub(super) fn lookup_client(&self) -> Option<Client> {
        self.tokens.as_ref().map(|tokens| tokens.client.clone())
    }
}

async fn reviewer(
    flag: &'static str,
    path: Option<&std::path::Path>,
    metrics: &Metrics,
) -> Result<Option<Reviewer>, Error> {
    let config = match path {
        Some(path) => components::from_file(flag, path).await?,
        None => match Config::incluster() {
            Ok(config) => config,
            Err(_) => return Ok(None),
        },
    };
    let host = config.cluster_url.authority().map(ToString::to_string);
    Ok(Some(Reviewer {
        metrics: metrics.client(&host.unwrap_or_default()),
        client: components::client(config, flag)?,
    }))
}

async fn ask(reviewer: &Reviewer, path: &str, body: &Value) -> Result<Value, String> {
    let Reviewer { client, metrics } = reviewer;
    let body = serde_json::to_vec(body).map_err(|why| why.to_string())?;
    let request = http::Request::post(path)
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(body)
        .map_err(|why| why.to_string())?;
    let (began, length) = (Instant::now(), request.body().len());
    let answer = tokio::time::timeout(REVIEW_MAX, client.request::<Value>(request)).await;
    let code = match &answer {
        Ok(Ok(_)) => Some(201),
        Ok(Err(kube::Error::Api(status))) => Some(status.code),
        _ => None,
    };
    metrics.answered("POST", code, began.elapsed(), length as u64, None);
    match answer {
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
        path: &'a str,
    ) -> BoxFuture<'a, Result<(bool, String), String>> {
        Box::pin(async move {
            let Some(client) = &self.access else {
                return Ok((false, String::new()));
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
                    "nonResourceAttributes": { "path": path, "verb": verb },
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
