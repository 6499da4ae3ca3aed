use super::*;

#[test]
fn what_blocks_is_read_from_the_servers_words() {
    let quota = "pods \"web-1\" is forbidden: exceeded quota: few, requested: pods=1, used: pods=2, limited: pods=2";
    let down = "Internal error occurred: failed calling webhook \"guard.example.com\": failed to call webhook: Post \
                \"https://guard.shop.svc:443/?timeout=10s\": service \"guard\" not found";
    let denied = "admission webhook \"guard.example.com\" denied the request: no images from there";
    let policy = "pods \"x\" is forbidden: ValidatingAdmissionPolicy 'no-latest' with binding 'all' denied request: \
                  tag it";
    let security =
        "pods \"x\" is forbidden: violates PodSecurity \"restricted:latest\": runAsNonRoot != true";
    let right = "pods is forbidden: User \"system:serviceaccount:kube-system:replicaset-controller\" cannot create \
                 resource \"pods\" in API group \"\" in the namespace \"shop\"";
    let rbac = "secrets is forbidden: User \"jo\" cannot get resource \"secrets\" in API group \"\" in the namespace \
                \"shop\": RBAC: clusterrole.rbac.authorization.k8s.io \"x\" not found";
    let account = "pods \"x\" is forbidden: error looking up service account shop/robot: serviceaccount \"robot\" not \
                   found";
    let ending = "pods \"x\" is forbidden: unable to create new content in namespace shop because it is being \
                  terminated";
    let limits = "pods \"x\" is forbidden: maximum cpu usage per Container is 1, but limit is 2";
    use BlockerKind as Kind;
    let table = [
        (
            403,
            quota,
            Kind::Quota,
            "resourcequotas shop/few",
            "requested: pods=1, used: pods=2, limited: pods=2",
        ),
        (
            500,
            down,
            Kind::WebhookDown,
            "guard.example.com",
            "failed to call webhook: Post \"https://guard.shop.svc:443/?timeout=10s\": service \"guard\" not found",
        ),
        (
            400,
            denied,
            Kind::WebhookRefusal,
            "guard.example.com",
            "no images from there",
        ),
        (
            422,
            policy,
            Kind::Policy,
            "validatingadmissionpolicies no-latest",
            "tag it",
        ),
        (
            403,
            security,
            Kind::PodSecurity,
            "namespaces shop",
            "restricted:latest: runAsNonRoot != true",
        ),
        (
            403,
            right,
            Kind::MissingRight,
            "system:serviceaccount:kube-system:replicaset-controller",
            "cannot create resource \"pods\" in API group \"\" in the namespace \"shop\"",
        ),
        (
            403,
            rbac,
            Kind::MissingRight,
            "jo",
            "cannot get resource \"secrets\" in API group \"\" in the namespace \"shop\"",
        ),
        (
            403,
            account,
            Kind::MissingServiceAccount,
            "serviceaccounts shop/robot",
            "there is no such ServiceAccount",
        ),
        (
            403,
            ending,
            Kind::NamespaceTerminating,
            "namespaces shop",
            "nothing can be made in it any more",
        ),
        (
            403,
            limits,
            Kind::LimitRange,
            "limitranges in namespace shop",
            "maximum cpu usage per Container is 1, but limit is 2",
        ),
        (
            409,
            "the object has been modified",
            Kind::Conflict,
            "",
            "the object has been modified",
        ),
        (
            422,
            "spec.replicas: Invalid value",
            Kind::Invalid,
            "",
            "spec.replicas: Invalid value",
        ),
        (403, "no", Kind::Other, "", "no"),
        (
            504,
            "no answer within 30s",
            Kind::NoAnswer,
            "",
            "no answer within 30s",
        ),
    ];
    for (code, message, kind, name, detail) in table {
        let found =
            blocker(code, message, "shop").unwrap_or_else(|| panic!("nothing in {message:?}"));
        assert_eq!(
            (found.kind, &*found.name, &*found.detail),
            (kind, name, detail),
            "{message}"
        );
        assert!(!found.remedy.is_empty(), "{message}");
        let json = serde_json::to_value(found.kind).unwrap();
        assert_eq!(json, kind.word());
    }
    assert_eq!(blocker(500, "the cache is behind", "shop"), None);
}

#[test]
fn a_sort_that_a_later_build_adds_is_read_as_other() {
    let read: Blocker = serde_json::from_str(r#"{"kind": "eclipse", "name": "x"}"#).unwrap();
    assert_eq!((read.kind, &*read.name), (BlockerKind::Other, "x"));
}
