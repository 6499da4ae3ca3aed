use super::manifest;
use crate::{
    Controller, Descriptor, Factory, Flags, Key, Plan, Refusal, Sharding, Snapshot, Watches,
};

struct Says<const WHICH: usize>;

impl<const WHICH: usize> Controller for Says<WHICH> {
    type Memory = ();
    fn describe() -> Descriptor {
        match WHICH {
            // All of it is upstream's.
            0 => Descriptor::new("ttl-after-finished-controller", Sharding::ByObject).rule(
                "batch",
                "jobs",
                &["get", "list", "watch", "delete"],
            ),
            // Some of it is.
            1 => Descriptor::new("root", Sharding::ByNamespace)
                .service_account("root-ca-cert-publisher")
                .rule("", "configmaps", &["list", "watch", "create"])
                .rule_for("", "configmaps", &["one", "two"], &["patch", "get"]),
            // Upstream has no such account, which two controllers share.
            2 | 3 => Descriptor::new("new-controller", Sharding::ByObject)
                .service_account("example-controller")
                .rule("", "nodes", &["list", "watch"])
                .rule("", "nodes/status", &["patch"]),
            _ => Descriptor::new("another-controller", Sharding::ByObject)
                .service_account("example-controller")
                .rule("apps", "daemonsets", &["delete"]),
        }
    }
    fn new(_: &Flags) -> Self {
        Self
    }
    fn watch(&self, _: &mut Watches) {}
    fn plan(&self, _: &Key, _: &Snapshot<'_>, (): &mut ()) -> Result<Plan, Refusal> {
        Ok(Plan::nothing())
    }
}

#[test]
fn an_account_is_granted_what_upstream_s_role_lacks_and_no_more() {
    let registry = [
        Factory::of::<Says<1>>(),
        Factory::of::<Says<0>>(),
        Factory::of::<Says<2>>(),
        Factory::of::<Says<3>>(),
        Factory::of::<Says<4>>(),
    ];
    let expected = "\
# Made from the controllers' descriptors; do not edit.
# What each controller's service account needs beyond the role that every cluster has for it.
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: manifold:controller:example-controller
rules:
  - apiGroups: [\"\"]
    resources: [nodes/status]
    verbs: [patch]
  - apiGroups: [\"apps\"]
    resources: [daemonsets]
    verbs: [delete]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: manifold:controller:example-controller
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: manifold:controller:example-controller
subjects:
  - kind: ServiceAccount
    name: example-controller
    namespace: kube-system
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: manifold:controller:root-ca-cert-publisher
rules:
  - apiGroups: [\"\"]
    resources: [configmaps]
    resourceNames: [one, two]
    verbs: [patch, get]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: manifold:controller:root-ca-cert-publisher
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: manifold:controller:root-ca-cert-publisher
subjects:
  - kind: ServiceAccount
    name: root-ca-cert-publisher
    namespace: kube-system
";
    assert_eq!(manifest(&registry), expected);
}

struct OfOneNamespace;

impl Controller for OfOneNamespace {
    type Memory = ();
    fn describe() -> Descriptor {
        Descriptor::new("signer", Sharding::Single)
            .service_account("bootstrap-signer")
            .rule_in("kube-public", "", "configmaps", &[], &["get", "list"])
            .rule_in("kube-public", "", "configmaps", &["info"], &["patch"])
            .rule_live("", "pods", &["list"])
    }
    fn new(_: &Flags) -> Self {
        Self
    }
    fn watch(&self, _: &mut Watches) {}
    fn plan(&self, _: &Key, _: &Snapshot<'_>, (): &mut ()) -> Result<Plan, Refusal> {
        Ok(Plan::nothing())
    }
}

#[test]
fn a_rule_of_one_namespace_is_a_role_there_and_a_live_list_is_granted() {
    let text = manifest(&[Factory::of::<OfOneNamespace>()]);
    let name = "manifold:controller:bootstrap-signer";
    for expected in [
        format!(
            "kind: ClusterRole\nmetadata:\n  name: {name}\nrules:\n  - apiGroups: [\"\"]\n    resources: [pods]\n    verbs: [list]\n"
        ),
        format!(
            "kind: Role\nmetadata:\n  name: {name}\n  namespace: kube-public\nrules:\n  - apiGroups: [\"\"]\n    resources: [configmaps]\n    resourceNames: [info]\n    verbs: [patch]\n"
        ),
        format!(
            "kind: RoleBinding\nmetadata:\n  name: {name}\n  namespace: kube-public\nroleRef:\n  apiGroup: rbac.authorization.k8s.io\n  kind: Role\n"
        ),
    ] {
        assert!(text.contains(&expected), "{expected}\nnot in\n{text}");
    }
    assert!(text.contains("    name: bootstrap-signer\n    namespace: kube-system\n"));
}
