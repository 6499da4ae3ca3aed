//! The API as JSON: objects are compared as the server gives them, whatever their kind.

use anyhow::{Context, Result};
use harness::until;
use kube::Client;
use serde_json::{Value, json};

use crate::support::{PATIENCE, POLL};

/// A kind that scenarios make or controllers may leave behind.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) version: &'static str,
    pub(crate) plural: &'static str,
}

const fn kind(name: &'static str, version: &'static str, plural: &'static str) -> Kind {
    Kind {
        name,
        version,
        plural,
    }
}

/// Every kind of a namespace that is compared.
pub(crate) const KINDS: &[Kind] = &[
    kind("Deployment", "apps/v1", "deployments"),
    kind("ReplicaSet", "apps/v1", "replicasets"),
    kind("StatefulSet", "apps/v1", "statefulsets"),
    kind("DaemonSet", "apps/v1", "daemonsets"),
    kind("ControllerRevision", "apps/v1", "controllerrevisions"),
    kind("ReplicationController", "v1", "replicationcontrollers"),
    kind("Pod", "v1", "pods"),
    kind("PersistentVolumeClaim", "v1", "persistentvolumeclaims"),
    kind("ConfigMap", "v1", "configmaps"),
    kind("ServiceAccount", "v1", "serviceaccounts"),
    kind("Service", "v1", "services"),
    kind("Endpoints", "v1", "endpoints"),
    kind("EndpointSlice", "discovery.k8s.io/v1", "endpointslices"),
    kind("Secret", "v1", "secrets"),
    kind("ResourceQuota", "v1", "resourcequotas"),
    kind(
        "ResourceClaimTemplate",
        "resource.k8s.io/v1",
        "resourceclaimtemplates",
    ),
    kind("Workload", "scheduling.k8s.io/v1alpha2", "workloads"),
    kind("PodGroup", "scheduling.k8s.io/v1alpha2", "podgroups"),
    kind("ResourceClaim", "resource.k8s.io/v1", "resourceclaims"),
    WIDGET,
    kind("Job", "batch/v1", "jobs"),
    kind("CronJob", "batch/v1", "cronjobs"),
    kind("PodDisruptionBudget", "policy/v1", "poddisruptionbudgets"),
    kind("Lease", "coordination.k8s.io/v1", "leases"),
];

/// A custom resource that every control plane of this suite has.
const WIDGET: Kind = kind("Widget", "example.com/v1", "widgets");

/// Kinds that scenarios use and that belong to no namespace.
const OF_THE_CLUSTER: &[Kind] = &[
    kind("Node", "v1", "nodes"),
    kind("Namespace", "v1", "namespaces"),
    CLUSTER_ROLE,
    CLUSTER_ROLE_BINDING,
    REQUEST,
    POLICY,
    kind("ServiceCIDR", "networking.k8s.io/v1", "servicecidrs"),
    kind(
        "ClusterTrustBundle",
        "certificates.k8s.io/v1beta1",
        "clustertrustbundles",
    ),
    kind("PersistentVolume", "v1", "persistentvolumes"),
    kind(
        "VolumeAttributesClass",
        "storage.k8s.io/v1",
        "volumeattributesclasses",
    ),
    kind("StorageClass", "storage.k8s.io/v1", "storageclasses"),
    kind("CSIDriver", "storage.k8s.io/v1", "csidrivers"),
    kind("VolumeAttachment", "storage.k8s.io/v1", "volumeattachments"),
    kind(
        "CustomResourceDefinition",
        "apiextensions.k8s.io/v1",
        "customresourcedefinitions",
    ),
    kind(
        "StorageVersionMigration",
        "storagemigration.k8s.io/v1beta1",
        "storageversionmigrations",
    ),
    kind(
        "StorageVersion",
        "internal.apiserver.k8s.io/v1alpha1",
        "storageversions",
    ),
    kind(
        "ValidatingAdmissionPolicy",
        "admissionregistration.k8s.io/v1",
        "validatingadmissionpolicies",
    ),
    kind(
        "ValidatingAdmissionPolicyBinding",
        "admissionregistration.k8s.io/v1",
        "validatingadmissionpolicybindings",
    ),
    // What scenarios define themselves.
    kind("VersionsCrdThing", "example.com/v1", "versions-crd-things"),
    kind(
        "VersionsTwiceThing",
        "example.com/v1",
        "versions-twice-things",
    ),
    kind(
        "VersionsLateThing",
        "example.com/v1",
        "versions-late-things",
    ),
    kind(
        "VersionsRefusedThing",
        "example.com/v1",
        "versions-refused-things",
    ),
    kind("ResourceSlice", "resource.k8s.io/v1", "resourceslices"),
    kind(
        "DeviceTaintRule",
        "resource.k8s.io/v1beta2",
        "devicetaintrules",
    ),
    kind(
        "ResourcePoolStatusRequest",
        "resource.k8s.io/v1alpha3",
        "resourcepoolstatusrequests",
    ),
];

const CLUSTER_ROLE: Kind = kind(
    "ClusterRole",
    "rbac.authorization.k8s.io/v1",
    "clusterroles",
);
const CLUSTER_ROLE_BINDING: Kind = kind(
    "ClusterRoleBinding",
    "rbac.authorization.k8s.io/v1",
    "clusterrolebindings",
);
const REQUEST: Kind = kind(
    "CertificateSigningRequest",
    "certificates.k8s.io/v1",
    "certificatesigningrequests",
);
const POLICY: Kind = kind(
    "ValidatingAdmissionPolicy",
    "admissionregistration.k8s.io/v1",
    "validatingadmissionpolicies",
);

/// The label of a scenario's objects that lie outside its namespace.
pub(crate) const LABEL: &str = "parity";

/// Where a scenario's objects may lie outside its namespace; an empty one is the cluster.
pub(crate) const ELSEWHERE: &[(&str, &str)] = &[
    ("ClusterRole", ""),
    ("CertificateSigningRequest", ""),
    ("ClusterTrustBundle", ""),
    ("ValidatingAdmissionPolicy", ""),
    ("Secret", "kube-system"),
    ("ConfigMap", "kube-public"),
];

/// By its name, in any case.
pub(crate) fn kind_of(name: &str) -> Result<&'static Kind> {
    KINDS
        .iter()
        .chain(OF_THE_CLUSTER)
        .find(|kind| kind.name.eq_ignore_ascii_case(name))
        .with_context(|| format!("no kind {name}: add it to tests/parity/api.rs"))
}

/// `deployment/web` taken apart.
pub(crate) fn reference(text: &str) -> Result<(&'static Kind, &str)> {
    let (kind, name) = text
        .split_once('/')
        .with_context(|| format!("`{text}` is not <kind>/<name>"))?;
    Ok((kind_of(kind)?, name))
}

/// How a change is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Merge,
    Json,
}

impl Format {
    fn content_type(self) -> &'static str {
        match self {
            Self::Merge => "application/merge-patch+json",
            Self::Json => "application/json-patch+json",
        }
    }
}

/// The API server, as administrator.
#[derive(Clone)]
pub(crate) struct Server {
    client: Client,
}

impl Server {
    pub(crate) fn new(client: Client) -> Self {
        Self { client }
    }

    fn path(kind: &Kind, namespace: &str, name: &str, subresource: &str) -> String {
        let root = if kind.version == "v1" {
            "/api"
        } else {
            "/apis"
        };
        let mut path = format!("{root}/{}", kind.version);
        // `kube-system/name` names an object of another namespace than the scenario's.
        let (namespace, name) = name.split_once('/').unwrap_or((namespace, name));
        if !OF_THE_CLUSTER.contains(kind) {
            path += &format!("/namespaces/{namespace}");
        }
        path += &format!("/{}", kind.plural);
        for part in [name, subresource] {
            if !part.is_empty() {
                path += &format!("/{part}");
            }
        }
        path
    }

    async fn send(
        &self,
        method: http::Method,
        path: &str,
        content_type: &str,
        body: Vec<u8>,
    ) -> Result<Value> {
        let what = format!("{method} {path}");
        let request = http::Request::builder()
            .method(method)
            .uri(path)
            .header(http::header::CONTENT_TYPE, content_type)
            .body(body)?;
        self.client.request(request).await.context(what)
    }

    /// Makes the kind that is the suite's own; returns when it is served.
    pub(crate) async fn define_widgets(&self) -> Result<()> {
        let (group, version) = WIDGET.version.split_once('/').context("a group")?;
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{}.{group}", WIDGET.plural)},
            "spec": {
                "group": group,
                "scope": "Namespaced",
                "names": {"kind": WIDGET.name, "plural": WIDGET.plural},
                "versions": [{
                    "name": version,
                    "served": true,
                    "storage": true,
                    "schema": {"openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": true,
                    }},
                }],
            },
        });
        self.send(
            http::Method::POST,
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            "application/json",
            serde_json::to_vec(&definition)?,
        )
        .await?;
        until("widgets are served", PATIENCE, POLL, || async {
            Ok(self.list(&WIDGET, "default").await.ok())
        })
        .await?;
        Ok(())
    }

    pub(crate) async fn list(&self, kind: &Kind, namespace: &str) -> Result<Vec<Value>> {
        let path = Self::path(kind, namespace, "", "");
        let list = self
            .send(http::Method::GET, &path, "application/json", Vec::new())
            .await;
        let mut list = match list {
            // Some kinds are served with the feature gates of their scenarios alone.
            Err(error) if is_not_found(&error) => return Ok(Vec::new()),
            list => list?,
        };
        let mut items: Vec<Value> = serde_json::from_value(list["items"].take())?;
        // A list leaves out what its items have in common.
        for item in &mut items {
            item["apiVersion"] = json!(kind.version);
            item["kind"] = json!(kind.name);
        }
        Ok(items)
    }

    /// Events as the newer API reports them.
    pub(crate) async fn events(&self, namespace: &str) -> Result<Vec<Value>> {
        let path = format!("/api/v1/namespaces/{namespace}/events");
        let mut list = self
            .send(http::Method::GET, &path, "application/json", Vec::new())
            .await?;
        Ok(serde_json::from_value(list["items"].take())?)
    }

    /// `None` where there is none.
    pub(crate) async fn get(
        &self,
        kind: &Kind,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Value>> {
        let path = Self::path(kind, namespace, name, "");
        let answer = self
            .send(http::Method::GET, &path, "application/json", Vec::new())
            .await;
        match answer {
            Ok(object) => Ok(Some(object)),
            Err(error) if is_not_found(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) async fn create(
        &self,
        kind: &Kind,
        namespace: &str,
        object: &Value,
    ) -> Result<Value> {
        let path = Self::path(kind, namespace, "", "");
        let body = serde_json::to_vec(object)?;
        self.send(http::Method::POST, &path, "application/json", body)
            .await
    }

    /// Makes an object in another user's name.
    pub(crate) async fn create_as(
        &self,
        kind: &Kind,
        object: &Value,
        (user, groups): (&str, &[String]),
    ) -> Result<Value> {
        let path = Self::path(kind, "", "", "");
        let mut request = http::Request::post(&path)
            .header(http::header::CONTENT_TYPE, "application/json")
            .header("Impersonate-User", user);
        for group in groups {
            request = request.header("Impersonate-Group", group);
        }
        let request = request.body(serde_json::to_vec(object)?)?;
        self.client.request(request).await.context(path)
    }

    pub(crate) async fn patch(
        &self,
        kind: &Kind,
        namespace: &str,
        (name, subresource): (&str, &str),
        format: Format,
        change: &Value,
    ) -> Result<Value> {
        let path = Self::path(kind, namespace, name, subresource);
        let body = serde_json::to_vec(change)?;
        self.send(http::Method::PATCH, &path, format.content_type(), body)
            .await
    }

    /// Asks for a pod's eviction; an error where a budget does not allow it.
    pub(crate) async fn evict(&self, namespace: &str, pod: &str) -> Result<()> {
        let path = Self::path(kind_of("pod")?, namespace, pod, "eviction");
        let eviction = json!({
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": namespace},
        });
        let body = serde_json::to_vec(&eviction)?;
        self.send(http::Method::POST, &path, "application/json", body)
            .await?;
        Ok(())
    }

    /// What is gone already is no error.
    pub(crate) async fn delete(
        &self,
        kind: &Kind,
        namespace: &str,
        name: &str,
        options: &Value,
    ) -> Result<()> {
        let path = Self::path(kind, namespace, name, "");
        let body = serde_json::to_vec(options)?;
        match self
            .send(http::Method::DELETE, &path, "application/json", body)
            .await
        {
            Ok(_) => Ok(()),
            Err(error) if is_not_found(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Refused for what the object is, or because it is not there.
pub(crate) fn is_refused(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref::<kube::Error>(),
        Some(kube::Error::Api(status)) if matches!(status.code, 404 | 409 | 422)
    )
}

fn is_not_found(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref::<kube::Error>(),
        Some(kube::Error::Api(status)) if status.code == 404
    )
}
