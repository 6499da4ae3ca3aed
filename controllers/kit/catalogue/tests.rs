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

#[test]
fn the_resources_of_a_failed_group_version_are_stale_until_it_is_read_again_or_replaced() {
    let all = ["list", "watch", "delete"];
    let old = metadata_only("shop.example", "v1beta1", "Cart", "carts", true).unwrap();
    let new = metadata_only("shop.example", "v1", "Cart", "carts", true).unwrap();
    let other = metadata_only("bank.example", "v1", "Account", "accounts", true).unwrap();
    let of = |served: &[&'static crate::Resource], failed: &[&str], before: &Catalogue| {
        let entries = served.iter().map(|resource| entry(resource, &all, true));
        let failures = failed.iter().map(|name| ((*name).into(), "503".into()));
        Catalogue::new(entries.collect(), failures.collect(), 1).succeeding(before)
    };
    let stale = |catalogue: &Catalogue| -> Vec<String> {
        let stale = catalogue.stale().iter();
        stale.map(|entry| entry.resource.id()).collect()
    };
    let first = of(&[new, other], &[], &Catalogue::default());
    assert!(stale(&first).is_empty());
    let failed = of(&[other], &["shop.example/v1"], &first);
    assert_eq!(stale(&failed), ["carts.shop.example"]);
    assert!(
        failed.preferred(new).is_none(),
        "it is not known to be served"
    );
    let still = of(&[other], &["shop.example/v1"], &failed);
    assert_eq!(stale(&still), ["carts.shop.example"]);
    for (served, failed) in [
        (&[new, other][..], &[][..]),
        // Another version of it is served, under which the same objects are read.
        (&[old, other], &["shop.example/v1"]),
        // The group is gone.
        (&[other], &[]),
    ] {
        assert!(stale(&of(served, failed, &still)).is_empty(), "{failed:?}");
    }
    assert!(
        stale(&of(&[], &["shop.example/v1"], &Catalogue::default())).is_empty(),
        "what was never read is not known"
    );
}
