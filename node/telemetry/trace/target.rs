//! What a request to the API server is about, by its path.

use http::Method;
use opentelemetry::KeyValue;

/// The parts of a path.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Target<'a> {
    group: &'a str,
    namespace: &'a str,
    resource: &'a str,
    name: &'a str,
    subresource: &'a str,
    /// Without its query.
    path: &'a str,
}

/// Takes a path apart, as the API server's request info does.
pub fn of(path_and_query: &str) -> Target<'_> {
    let path = path_and_query.split('?').next().unwrap_or_default();
    let mut parts = path.split('/').filter(|part| !part.is_empty());
    let group = match parts.next() {
        Some("api") => Some(""),
        Some("apis") => parts.next(),
        _ => None,
    };
    let (Some(group), Some(_version)) = (group, parts.next()) else {
        return Target {
            path,
            ..Target::default()
        };
    };
    let rest: Vec<&str> = parts.collect();
    let (namespace, rest) = match rest[..] {
        ["namespaces", namespace, resource, ..] if !["status", "finalize"].contains(&resource) => {
            (namespace, &rest[2..])
        }
        _ => ("", &rest[..]),
    };
    let part = |at: usize| rest.get(at).copied().unwrap_or_default();
    Target {
        group,
        namespace,
        resource: part(0),
        name: part(1),
        subresource: part(2),
        path,
    }
}

impl Target<'_> {
    /// As RBAC calls it.
    pub fn verb(&self, method: &Method) -> &'static str {
        match (method.as_str(), self.name.is_empty()) {
            ("GET", true) => "list",
            ("GET", false) => "get",
            ("POST", _) => "create",
            ("PATCH", _) => "patch",
            ("PUT", _) => "update",
            ("DELETE", true) => "deletecollection",
            ("DELETE", false) => "delete",
            _ => "call",
        }
    }

    /// As RBAC calls it, with the subresource; the path where it is no resource's.
    pub fn resource(&self) -> String {
        match (self.resource, self.subresource) {
            ("", _) => self.path.to_owned(),
            (resource, "") => resource.to_owned(),
            (resource, subresource) => format!("{resource}/{subresource}"),
        }
    }

    /// Attributes of a call's span.
    pub fn attributes(&self, method: &Method) -> Vec<KeyValue> {
        let mut attributes = vec![
            KeyValue::new("http.request.method", method.as_str().to_owned()),
            KeyValue::new("url.path", self.path.to_owned()),
        ];
        let resource = match self.group {
            "" => self.resource.to_owned(),
            group => format!("{}.{group}", self.resource),
        };
        for (name, value) in [
            ("k8s.resource", resource.as_str()),
            ("k8s.namespace.name", self.namespace),
            ("k8s.object.name", self.name),
            ("k8s.subresource", self.subresource),
        ] {
            if !value.is_empty() {
                attributes.push(KeyValue::new(name, value.to_owned()));
            }
        }
        attributes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_taken_apart_as_the_api_server_does() {
        for (method, path, verb, resource, namespace, name) in [
            (
                "POST",
                "/api/v1/namespaces/shop/pods",
                "create",
                "pods",
                "shop",
                "",
            ),
            ("GET", "/api/v1/pods?limit=1", "list", "pods", "", ""),
            (
                "PATCH",
                "/apis/apps/v1/namespaces/shop/replicasets/web-1/status?fieldManager=x",
                "patch",
                "replicasets/status",
                "shop",
                "web-1",
            ),
            (
                "GET",
                "/api/v1/namespaces/shop",
                "get",
                "namespaces",
                "",
                "shop",
            ),
            (
                "PUT",
                "/api/v1/namespaces/shop/finalize",
                "update",
                "namespaces/finalize",
                "",
                "shop",
            ),
            ("DELETE", "/api/v1/nodes/n1", "delete", "nodes", "", "n1"),
            (
                "DELETE",
                "/api/v1/namespaces/shop/secrets",
                "deletecollection",
                "secrets",
                "shop",
                "",
            ),
            ("GET", "/openapi/v3", "list", "/openapi/v3", "", ""),
        ] {
            let target = of(path);
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            assert_eq!(target.verb(&method), verb, "{path}");
            assert_eq!(target.resource(), resource, "{path}");
            assert_eq!((target.namespace, target.name), (namespace, name), "{path}");
        }
    }
}
