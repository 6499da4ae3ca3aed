//! What is found under which name.

use kubernetes_proto::{Object, Str, apps::Deployment, core::Pod, metadata_only};

use super::{Catalogue, Entry};

fn entry(resource: &'static crate::Resource, verbs: &[&str], preferred: bool) -> Entry {
    Entry {
        resource,
        verbs: verbs.iter().map(|verb| Str::from(*verb)).collect(),
        subresources: vec!["status".into()],
        preferred,
    }
}

#[test]
fn a_kind_is_found_in_each_version_and_listed_in_the_preferred_one() {
    let old = metadata_only("shop.example", "v1beta1", "Cart", "carts", true).unwrap();
    let new = metadata_only("shop.example", "v1", "Cart", "carts", true).unwrap();
    let all = ["list", "watch", "delete"];
    let catalogue = Catalogue::new(
        vec![
            entry(Pod::resource(), &all, true),
            entry(Deployment::resource(), &["list", "watch"], true),
            entry(new, &all, true),
            entry(old, &all, false),
        ],
        [("broken.example/v1".into(), "503".into())].into(),
        1,
    );
    let found = |version, kind| catalogue.by_kind(version, kind).map(|entry| entry.resource);
    assert!(std::ptr::eq(found("v1", "Pod").unwrap(), Pod::resource()));
    assert!(std::ptr::eq(
        found("shop.example/v1beta1", "Cart").unwrap(),
        old
    ));
    assert!(std::ptr::eq(found("shop.example/v1", "Cart").unwrap(), new));
    assert_eq!(found("shop.example/v2", "Cart"), None);
    assert_eq!(found("v1", "Deployment"), None);
    let deletable: Vec<String> = catalogue
        .deletable()
        .map(|entry| format!("{}/{}", entry.resource.plural, entry.resource.version))
        .collect();
    assert_eq!(deletable, ["pods/v1", "carts/v1"]);
    let served = catalogue.preferred(old).unwrap();
    assert!(std::ptr::eq(served.resource, new));
    assert!(served.has("status") && !served.has("scale"));
    assert_eq!(catalogue.namespaced().count(), 3);
    assert!(catalogue.is_known() && !Catalogue::default().is_known());
}
