//! The one place that every request passes below kube's client and our own: a process that may write next to
//! nothing sends nothing else, any caller included.

use std::{
    sync::{Arc, OnceLock},
    task::{Context, Poll},
};

use bytes::Bytes;
use futures::{FutureExt as _, future::BoxFuture};
use http::Method;
use kube::client::Body;
use tower::{BoxError, Service, ServiceExt as _};

static ONLY: OnceLock<Writes> = OnceLock::new();

/// The writes that a process may send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Writes {
    /// The namespace of what it may write.
    pub namespace: String,
    /// Leases whose names begin so.
    pub leases: String,
    /// The one ConfigMap, by patches alone.
    pub config_map: String,
}

/// Refused: nothing of it was sent.
#[derive(Debug, thiserror::Error)]
#[error(
    "{method} {path} was not sent: this process is a shadow and writes nothing but its own Leases and its report"
)]
pub struct NotSent {
    method: Method,
    path: String,
}

/// From now on no connection of this process sends any other write: those that are there already neither. It
/// can't be undone.
pub fn refuse_all_but(writes: Writes) {
    ONLY.get_or_init(|| writes);
}

/// What is asked and stored nowhere.
const REVIEWS: [&str; 5] = [
    "tokenreviews",
    "subjectaccessreviews",
    "localsubjectaccessreviews",
    "selfsubjectaccessreviews",
    "selfsubjectreviews",
];

impl Writes {
    /// Whether a request may be sent; `body` is of a request that creates something in a collection.
    fn allow(&self, method: &Method, path: &str, body: &[u8]) -> bool {
        if matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS) {
            // A GET of these opens a stream into a container or to what is behind.
            return !["exec", "attach", "portforward", "proxy"]
                .iter()
                .any(|stream| path.split('/').any(|part| part == *stream));
        }
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        match parts[..] {
            [
                "apis",
                "authentication.k8s.io" | "authorization.k8s.io",
                _,
                what,
            ]
            | ["apis", "authorization.k8s.io", _, "namespaces", _, what] => {
                method == Method::POST && REVIEWS.contains(&what)
            }
            [
                "apis",
                "coordination.k8s.io",
                "v1",
                "namespaces",
                namespace,
                "leases",
            ] => {
                method == Method::POST
                    && namespace == self.namespace
                    && name_in(body).is_some_and(|name| name.starts_with(&self.leases))
            }
            [
                "apis",
                "coordination.k8s.io",
                "v1",
                "namespaces",
                namespace,
                "leases",
                name,
            ] => namespace == self.namespace && name.starts_with(&self.leases),
            ["api", "v1", "namespaces", namespace, "configmaps", name] => {
                method == Method::PATCH && namespace == self.namespace && name == self.config_map
            }
            _ => false,
        }
    }
}

/// The name of an object in JSON.
fn name_in(body: &[u8]) -> Option<String> {
    let object: serde_json::Value = serde_json::from_slice(body).ok()?;
    Some(object["metadata"]["name"].as_str()?.to_owned())
}

/// A connection that sends what [`refuse_all_but`] allows, and everything where that was not called.
#[derive(Clone)]
pub(crate) struct Only<S> {
    inner: S,
    /// Of the server's address, before the API's own paths.
    prefix: Arc<str>,
    writes: fn() -> Option<&'static Writes>,
}

impl<S> Only<S> {
    pub(crate) fn new(inner: S, prefix: &str) -> Self {
        Self {
            inner,
            prefix: prefix.trim_end_matches('/').into(),
            writes: || ONLY.get(),
        }
    }
}

impl<S> Service<http::Request<Body>> for Only<S>
where
    S: Service<http::Request<Body>, Error = BoxError> + Clone + Send + 'static,
    S::Response: Send + 'static,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<S::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let Some(writes) = (self.writes)() else {
            return self.inner.call(request).boxed();
        };
        let (inner, prefix) = (self.inner.clone(), Arc::clone(&self.prefix));
        async move {
            let (head, body) = request.into_parts();
            let (body, bytes) = match head.method == Method::POST {
                true => {
                    let bytes: Bytes = body.collect_bytes().await?;
                    (Body::from(bytes.clone()), bytes)
                }
                false => (body, Bytes::new()),
            };
            let path = head.uri.path();
            let of_api = path.strip_prefix(&*prefix).unwrap_or(path);
            if !writes.allow(&head.method, of_api, &bytes) {
                return Err(BoxError::from(NotSent {
                    path: of_api.to_owned(),
                    method: head.method,
                }));
            }
            inner.oneshot(http::Request::from_parts(head, body)).await
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_sent_but_reads_reviews_own_leases_and_the_report() {
        let writes = Writes {
            namespace: "manifold-system".to_owned(),
            leases: "manifold-shadow-".to_owned(),
            config_map: "manifold-shadow".to_owned(),
        };
        let own = br#"{"metadata":{"name":"manifold-shadow-range-000"}}"#.as_slice();
        let others = br#"{"metadata":{"name":"manifold-range-000"}}"#.as_slice();
        let leases = "/apis/coordination.k8s.io/v1/namespaces/manifold-system/leases";
        let lease = |name: &str| format!("{leases}/{name}");
        let maps = "/api/v1/namespaces/manifold-system/configmaps";
        for (method, path, body, allowed) in [
            ("GET", "/api/v1/pods", b"".as_slice(), true),
            ("GET", "/api/v1/namespaces/shop/pods/web-1/log", b"", true),
            ("GET", "/api/v1/namespaces/shop/pods/web-1/exec", b"", false),
            (
                "GET",
                "/api/v1/namespaces/shop/services/web/proxy/drop",
                b"",
                false,
            ),
            ("POST", leases, own, true),
            ("POST", leases, others, false),
            ("POST", leases, b"\0protobuf", false),
            ("PUT", &lease("manifold-shadow-replica-a"), b"", true),
            ("DELETE", &lease("manifold-shadow-replica-a"), b"", true),
            ("PUT", &lease("manifold-replica-a"), b"", false),
            ("DELETE", leases, b"", false),
            (
                "PUT",
                "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-controller-manager",
                b"",
                false,
            ),
            (
                "PUT",
                "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/manifold-shadow-replica-a",
                b"",
                false,
            ),
            ("PATCH", &format!("{maps}/manifold-shadow"), b"", true),
            ("DELETE", &format!("{maps}/manifold-shadow"), b"", false),
            ("PATCH", &format!("{maps}/manifold-steering"), b"", false),
            ("POST", maps, b"", false),
            (
                "POST",
                "/apis/authentication.k8s.io/v1/tokenreviews",
                b"",
                true,
            ),
            (
                "POST",
                "/apis/authorization.k8s.io/v1/subjectaccessreviews",
                b"",
                true,
            ),
            (
                "POST",
                "/apis/authorization.k8s.io/v1/namespaces/shop/localsubjectaccessreviews",
                b"",
                true,
            ),
            ("POST", "/api/v1/namespaces/shop/events", b"", false),
            (
                "POST",
                "/api/v1/namespaces/shop/pods/web-1/eviction",
                b"",
                false,
            ),
            (
                "POST",
                "/api/v1/namespaces/shop/pods/web-1/binding",
                b"",
                false,
            ),
            (
                "POST",
                "/api/v1/namespaces/kube-system/serviceaccounts/job/token",
                b"",
                false,
            ),
            ("PATCH", "/api/v1/nodes/a/status", b"", false),
            ("DELETE", "/api/v1/namespaces/shop/pods/web-1", b"", false),
            ("PUT", "/api/v1/namespaces/shop/finalize", b"", false),
        ] {
            let method: Method = method.parse().unwrap();
            assert_eq!(
                writes.allow(&method, path, body),
                allowed,
                "{method} {path}"
            );
        }
    }

    #[tokio::test]
    async fn what_is_refused_reaches_no_connection() {
        let reached = tower::service_fn(|request: http::Request<Body>| async move {
            Ok::<_, BoxError>(request.uri().path().to_owned())
        });
        static SHADOW: OnceLock<Writes> = OnceLock::new();
        SHADOW.get_or_init(|| Writes {
            namespace: "m".to_owned(),
            leases: "s-".to_owned(),
            config_map: "s".to_owned(),
        });
        let only = Only {
            inner: reached,
            prefix: "/k8s/clusters/one".into(),
            writes: || SHADOW.get(),
        };
        let send = |method: &str, path: &str, body: &'static str| {
            let request = http::Request::builder().method(method).uri(path);
            let request = request.body(Body::from(body.as_bytes().to_vec())).unwrap();
            only.clone().oneshot(request)
        };
        let leases = "/k8s/clusters/one/apis/coordination.k8s.io/v1/namespaces/m/leases";
        let own = r#"{"metadata":{"name":"s-1"}}"#;
        assert_eq!(send("POST", leases, own).await.unwrap(), leases);
        let refused = send("POST", leases, "{}").await.unwrap_err().to_string();
        assert!(refused.contains("was not sent"), "{refused}");
        assert!(send("DELETE", "/api/v1/nodes/a", "").await.is_err());
    }
}
