//! What is read from discovery documents of either form.

use controllers_kit::Object as _;
use kubernetes_proto::{apps::Deployment, core::Pod};

use super::parse::{Served, aggregated, catalogue, groups, resources};

const CORE: &str = r#"{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","items":[{"metadata":{},
  "versions":[{"version":"v1","freshness":"Current","resources":[
    {"resource":"pods","responseKind":{"group":"","version":"","kind":"Pod"},"scope":"Namespaced","verbs":["list","watch","delete"],
     "subresources":[{"subresource":"status","responseKind":{"kind":"Pod"},"verbs":["get"]}]},
    {"resource":"onlyparents","scope":"Cluster","verbs":[],"subresources":[{"subresource":"eviction"}]}]}]}]}"#;
const OTHERS: &str = r#"{"kind":"APIGroupDiscoveryList","items":[
  {"metadata":{"name":"apps"},"versions":[{"version":"v2","freshness":"Current","resources":[
      {"resource":"deployments","responseKind":{"kind":"Deployment"},"scope":"Namespaced","verbs":["delete","list","watch"]}]},
    {"version":"v1","freshness":"Current","resources":[
      {"resource":"deployments","responseKind":{"kind":"Deployment"},"scope":"Namespaced","verbs":["delete","list","watch"]}]}]},
  {"metadata":{"name":"shop.example"},"versions":[{"version":"v1","freshness":"Current","resources":[
      {"resource":"carts","responseKind":{"kind":"Cart"},"scope":"Cluster","verbs":["get"]}]},
    {"version":"v1beta1","freshness":"Current","resources":[
      {"resource":"carts","responseKind":{"kind":"Cart"},"scope":"Cluster","verbs":["get"]},
      {"resource":"old","responseKind":{"kind":"Old"},"scope":"Cluster","verbs":["get"]}]}]},
  {"metadata":{"name":"custom.metrics.k8s.io"},"versions":[{"version":"v1beta1","freshness":"Current","resources":[]}]},
  {"metadata":{"name":"broken.example"},"versions":[{"version":"v1","freshness":"Stale"}]}]}"#;

fn lines(served: &Served) -> Vec<String> {
    let (catalogue, without_room) =
        catalogue(served, &[Pod::resource(), Deployment::resource()], 1);
    assert_eq!(without_room, 0);
    let mut lines: Vec<String> = catalogue
        .all()
        .iter()
        .map(|entry| {
            let resource = entry.resource;
            format!(
                "{} {} {}{}{}",
                resource.api_version(),
                resource.plural,
                if resource.metadata_only {
                    "metadata"
                } else {
                    "projection"
                },
                if entry.preferred { " preferred" } else { "" },
                if resource.namespaced {
                    " namespaced"
                } else {
                    ""
                },
            )
        })
        .collect();
    for (name, why) in &catalogue.failures {
        lines.push(format!("{name} fails: {why}"));
    }
    lines
}

#[test]
fn aggregated_documents_show_every_version_and_prefer_the_projection_then_the_first() {
    let mut served = Served::default();
    aggregated(CORE.as_bytes(), &mut served).unwrap();
    aggregated(OTHERS.as_bytes(), &mut served).unwrap();
    assert_eq!(
        lines(&served),
        [
            "v1 pods projection preferred namespaced",
            "apps/v2 deployments metadata namespaced",
            "apps/v1 deployments projection preferred namespaced",
            "shop.example/v1 carts metadata preferred",
            "shop.example/v1beta1 carts metadata",
            "shop.example/v1beta1 old metadata preferred",
            "broken.example/v1 fails: stale GroupVersion discovery: broken.example/v1",
        ]
    );
    assert_eq!(
        served.group_versions,
        [
            "v1",
            "apps/v2",
            "apps/v1",
            "shop.example/v1",
            "shop.example/v1beta1",
            "custom.metrics.k8s.io/v1beta1"
        ],
        "those without a resource too, but not what can't be read"
    );
    assert_eq!(served.shown[0].subresources, ["status"]);
    assert_eq!(served.shown[0].verbs, ["delete", "list", "watch"]);
}

#[test]
fn a_server_that_does_not_aggregate_is_reported_by_its_document() {
    let mut served = Served::default();
    assert!(aggregated(br#"{"kind":"APIVersions","versions":["v1"]}"#, &mut served).is_none());
    assert!(aggregated(b"not json", &mut served).is_none());

    let found = groups(
        br#"{"kind":"APIVersions","versions":["v1"]}"#,
        br#"{"kind":"APIGroupList","groups":[{"name":"shop.example",
            "versions":[{"groupVersion":"shop.example/v1beta1","version":"v1beta1"},{"groupVersion":"shop.example/v1","version":"v1"}],
            "preferredVersion":{"groupVersion":"shop.example/v1","version":"v1"}}]}"#,
    )
    .unwrap();
    let found: Vec<_> = found
        .iter()
        .map(|(group, version)| (&**group, &**version))
        .collect();
    assert_eq!(
        found,
        [
            ("", "v1"),
            ("shop.example", "v1"),
            ("shop.example", "v1beta1")
        ]
    );

    resources(
        "",
        "v1",
        br#"{"kind":"APIResourceList","resources":[
            {"name":"pods","namespaced":true,"kind":"Pod","verbs":["watch","list","delete"]},
            {"name":"pods/status","namespaced":true,"kind":"Pod","verbs":["get"]}]}"#,
        &mut served,
    )
    .unwrap();
    assert_eq!(lines(&served), ["v1 pods projection preferred namespaced"]);
    assert_eq!(served.shown[0].subresources, ["status"]);
    assert!(resources("", "v1", b"<html>", &mut served).is_err());
}
