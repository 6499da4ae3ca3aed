//! An admission webhook of ours.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use futures::StreamExt as _;
use harness::ControlPlane;
use harness::proxy::{serve, server_config};
use http::{Response, header};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// An admission webhook.
#[derive(Debug)]
pub(crate) struct Webhook {
    port: u16,
    task: JoinHandle<()>,
}

impl Webhook {
    /// Of its configuration in the API server.
    pub(crate) const NAME: &str = "slow";

    /// One that takes its time and lets everything pass.
    pub(crate) async fn start(control_plane: &ControlPlane, takes: Duration) -> Result<Self> {
        Self::answering(control_plane, move |_| async move {
            tokio::time::sleep(takes).await;
            true
        })
        .await
    }

    /// One that gets each review and says whether it passes.
    pub(crate) async fn answering<F, A>(control_plane: &ControlPlane, passes: F) -> Result<Self>
    where
        F: Fn(Value) -> A + Clone + Send + 'static,
        A: Future<Output = bool> + Send + 'static,
    {
        let identity = control_plane
            .authority()
            .server("slow-webhook", &["localhost"])?;
        let config = server_config(&identity, &["h2", "http/1.1"])?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
        let task = tokio::spawn(serve(
            listener,
            config,
            move |request: http::Request<Incoming>| {
                let passes = passes.clone();
                async move {
                    let review: Value = match request.into_body().collect().await {
                        Ok(body) => serde_json::from_slice(&body.to_bytes()).unwrap_or_default(),
                        Err(_) => Value::Null,
                    };
                    let uid = review["request"]["uid"].clone();
                    let allowed = passes(review).await;
                    let answer = json!({
                        "apiVersion": "admission.k8s.io/v1",
                        "kind": "AdmissionReview",
                        "response": {"uid": uid, "allowed": allowed},
                    });
                    let body = Full::new(Bytes::from(answer.to_string()));
                    let frames = body.into_data_stream().map(|data| match data {
                        Ok(data) => Ok(Frame::data(data)),
                        Err(never) => match never {},
                    });
                    let mut response = Response::new(StreamBody::new(frames.boxed()));
                    response.headers_mut().insert(
                        header::CONTENT_TYPE,
                        header::HeaderValue::from_static("application/json"),
                    );
                    Ok(response)
                }
            },
        ));
        Ok(Self { port, task })
    }

    /// What makes the API server call it for every creation of this resource of the core group.
    pub(crate) fn configuration(&self, authority: &str, resource: &str, on_failure: &str) -> Value {
        use base64::Engine as _;
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": Self::NAME},
            "webhooks": [{
                "name": format!("{resource}.webhook.manifold.dev"),
                "clientConfig": {
                    "url": format!("https://127.0.0.1:{}/", self.port),
                    "caBundle": base64::engine::general_purpose::STANDARD.encode(authority),
                },
                "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": [resource]}],
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "failurePolicy": on_failure,
                "timeoutSeconds": 20,
            }],
        })
    }
}

impl Drop for Webhook {
    fn drop(&mut self) {
        self.task.abort();
    }
}
