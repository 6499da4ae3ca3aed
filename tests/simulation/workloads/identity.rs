//! Tokens, signatures, requests for certificates, roles and ranges of Services.

use std::time::Duration;

use controllers_kit::testing::{
    Common, ConfigMapBuild, World, config_map,
    identity::{
        AccountBuild, ClusterInfoBuild, ClusterRoleBuild, RequestBuild, SecretBuild,
        bootstrap_token, certificate_signing_request, cluster_info, cluster_role,
        pod_certificate_request, service_account_token,
    },
    service_account,
};
use kubernetes_proto::{
    Object,
    certificates::{CertificateSigningRequest, PodCertificateRequest},
    core::{BootstrapToken, ClusterInfo, ServiceAccount, ServiceAccountToken},
    networking::{IpAddress, ServiceCidr, ServiceCidrSpec},
    rbac::ClusterRole,
};

use super::Making;
use crate::identity::{BOOTSTRAPPER, NODE, RANGE_FINALIZER, request};

/// By which roles are selected.
pub const EDIT: &str = "rbac.example.com/aggregate-to-edit";
const KUBELET_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const TRACKING: &str = "kube-apiserver-legacy-service-account-token-tracking";

fn delete<T: Object>(world: &mut World, name: &str) {
    if world
        .find::<T>(name)
        .is_some_and(|one| !one.is_terminating())
    {
        world.delete::<T>(name);
    }
}

fn token(number: usize) -> BootstrapToken {
    bootstrap_token(&format!("tok00{number}"), &format!("secret-{number}"))
}

fn token_name(number: usize) -> String {
    format!("kube-system/bootstrap-token-tok00{number}")
}

/// Tokens come, go, expire, and lose the right to sign; what is signed changes.
pub(super) fn signed(making: &mut Making) {
    making.put(cluster_info().says("kubeconfig", "kind: Config"));
    making.put(token(0));
    making.put(token(1).holds("usage-bootstrap-signing", "false"));
    for number in 2..6 {
        making.then(move |world| world.put(token(number)));
    }
    making.then(|world| delete::<BootstrapToken>(world, &token_name(2)));
    making.then(|world| {
        world.change::<BootstrapToken>(&token_name(3), |token| {
            *token = token.clone().holds("usage-bootstrap-signing", "false");
        });
    });
    making.then(|world| {
        world.change::<ClusterInfo>("kube-public/cluster-info", |info| {
            *info = info.clone().says("kubeconfig", "kind: Other");
        });
    });
    expiring(making, 6);
    making.then(|world| delete::<BootstrapToken>(world, &token_name(0)));
    making.then(|world| world.put(token(0).holds("token-secret", "another").uid("uid-again")));
}

/// Tokens whose time comes during the faults, after them, and never; one whose time is put off.
fn expiring(making: &mut Making, from: usize) {
    for (number, at) in ["12:00:15", "12:00:31", "13:00:00"].into_iter().enumerate() {
        let expiring = token(from + number).holds("expiration", &format!("2026-03-02T{at}Z"));
        making.put(expiring);
    }
}

pub(super) fn expired(making: &mut Making) {
    expiring(making, 0);
    making.put(token(4));
    making.put(token(5).holds("expiration", "2026-03-02T12:00:40Z"));
    making.at = Duration::from_secs(8);
    making.then(|world| {
        world.change::<BootstrapToken>(&token_name(5), |token| {
            *token = token.clone().holds("expiration", "2026-03-02T14:00:00Z");
        });
    });
}

/// Roles that are selected come, change, are selected no more, and go; an aggregate of an aggregate.
pub(super) fn aggregated(making: &mut Making) {
    making.put(cluster_role("edit").aggregates(EDIT, "true"));
    making.put(cluster_role("admin").aggregates("rbac.example.com/aggregate-to-admin", "true"));
    making.put(cluster_role("other").may("delete", "everything"));
    for number in 0..4 {
        let role = cluster_role(&format!("part-{number}"))
            .label(EDIT, "true")
            .may("get", &format!("things-{number}"));
        if making.dice.chance(500) {
            making.put(role);
        } else {
            making.then_soon(move |world| world.put(role));
        }
    }
    making.then(|world| {
        world.change::<ClusterRole>("edit", |role| {
            *role = role
                .clone()
                .label("rbac.example.com/aggregate-to-admin", "true");
        });
    });
    making.then(|world| {
        world.change::<ClusterRole>("part-0", |role| {
            role.rules.clear();
            *role = role.clone().may("list", "others");
        });
    });
    making.then(|world| {
        world.change::<ClusterRole>("part-1", |role| {
            *role = role.clone().label(EDIT, "false");
        });
    });
    making.then(|world| delete::<ClusterRole>(world, "part-2"));
    // Somebody adds to the aggregate by hand what is not its own.
    making.then(|world| {
        world.change::<ClusterRole>("edit", |role| {
            *role = role.clone().may("create", "by-hand");
        });
    });
}

fn range(name: &str, cidr: &str) -> ServiceCidr {
    let mut range = ServiceCidr {
        spec: Some(ServiceCidrSpec {
            cidrs: vec![cidr.to_owned()],
        }),
        ..ServiceCidr::default()
    };
    range.metadata_mut().name = name.into();
    range.finalizer(RANGE_FINALIZER)
}

fn address(name: &str) -> IpAddress {
    let mut address = IpAddress::default();
    address.metadata_mut().name = name.into();
    address.label("ipaddress.kubernetes.io/managed-by", "ipallocator.k8s.io")
}

/// Ranges that are deleted while Services have addresses of theirs, of which some lie in another range too.
pub(super) fn ranges(making: &mut Making) {
    making.put(range("kubernetes", "10.96.0.0/16"));
    making.put(range("needed", "10.1.0.0/24"));
    making.put(range("covered", "10.96.1.0/24"));
    making.put(range("empty", "10.2.0.0/24"));
    // Two of one range: one of them stays for as long as it is needed.
    making.put(range("one", "10.3.0.0/24"));
    making.put(range("two", "10.3.0.0/24"));
    for name in ["10.96.0.1", "10.96.1.7", "10.1.0.5", "10.3.0.9"] {
        making.put(address(name));
    }
    for name in ["needed", "covered", "empty", "one", "two"] {
        making.then(move |world| delete::<ServiceCidr>(world, name));
    }
    // An address is given out just before its range is deleted, or goes just after.
    making.put(range("late", "10.4.0.0/24"));
    making.then(|world| world.put(address("10.4.0.4")));
    making.then_soon(|world| delete::<ServiceCidr>(world, "late"));
    making.then(|world| delete::<IpAddress>(world, "10.3.0.9"));
    making.at += Duration::from_secs(15);
    making.then(|world| delete::<IpAddress>(world, "10.4.0.4"));
}

/// Secrets of accounts that come, go, and come again as others.
pub(super) fn tokens(making: &mut Making) {
    for name in ["stays", "goes", "again"] {
        making.put(service_account(name));
        for number in 0..2 {
            let secret = format!("{name}-{number}");
            if number == 0 {
                making.put(service_account_token(&secret, name));
            } else {
                making.then(move |world| world.put(service_account_token(&secret, name)));
            }
        }
    }
    making.put(service_account_token("stray", "nobody"));
    for name in ["goes", "again"] {
        making.then(move |world| delete::<ServiceAccount>(world, name));
        let secret = format!("{name}-late");
        making.then_soon(move |world| world.put(service_account_token(&secret, name)));
    }
    // A cleaner that ran in between has deleted the Secrets of the account before.
    making.at += Duration::from_secs(60);
    making.then(|world| world.put(service_account("again").uid("uid-again")));
    making.then(|world| world.put(service_account_token("again-new", "again")));
    making.then(|world| delete::<ServiceAccountToken>(world, "stays-1"));
}

fn asks(name: &str, user: &str) -> CertificateSigningRequest {
    certificate_signing_request(name)
        .signer(KUBELET_CLIENT)
        .asks(request())
        .usages(&["digital signature", "key encipherment", "client auth"])
        .by(user)
}

/// Requests of who may have them and of who may not; one of a name that another had.
pub(super) fn approved(making: &mut Making) {
    for (number, user) in [NODE, BOOTSTRAPPER, "mallory"].into_iter().enumerate() {
        making.put(asks(&format!("first-{number}"), user));
        let request = asks(&format!("later-{number}"), user);
        making.then(move |world| world.put(request));
    }
    making.put(asks("again", NODE));
    making.then(|world| delete::<CertificateSigningRequest>(world, "again"));
    making.then_soon(|world| world.put(asks("again", "mallory").uid("uid-again")));
    making.put(asks("elsewhere", BOOTSTRAPPER).signer("example.com/other"));
}

/// Requests that are approved and denied, by hand and by the controller.
pub(super) fn issued(making: &mut Making) {
    making.put(asks("by-review", BOOTSTRAPPER));
    making.put(asks("never", "mallory"));
    making.put(asks("denied", "mallory").condition("Denied", "11:59:50"));
    let both = asks("both", "mallory").condition("Approved", "11:59:50");
    making.put(both.condition("Denied", "11:59:51"));
    making.put(asks("wrong", "mallory").usages(&["cert sign"]));
    for name in ["never", "wrong"] {
        let is_last = name == "wrong";
        making.put(asks(&format!("hand-{name}"), "mallory"));
        making.then(move |world| {
            let name = if is_last {
                "wrong".to_owned()
            } else {
                format!("hand-{name}")
            };
            world.change::<CertificateSigningRequest>(&name, |request| {
                *request = request.clone().condition("Approved", "12:00:00");
            });
        });
    }
}

/// Requests whose time comes while the faults last, before, and long after.
pub(super) fn cleaned(making: &mut Making) {
    for (name, since) in [
        ("old", "10:00:00"),
        ("soon", "11:00:20"),
        ("new", "11:59:00"),
    ] {
        for condition in ["Denied", "Failed"] {
            let name = format!("{}-{name}", condition.to_lowercase());
            making.put(asks(&name, "mallory").condition(condition, since));
        }
        let issued = asks(&format!("issued-{name}"), "mallory").condition("Approved", since);
        making.put(issued.issued("not a certificate"));
    }
    making.put(asks("forgotten", "mallory").created("2026-03-01T11:00:00Z"));
    making.put(asks("waits", "mallory").created("11:00:00"));
    making.then(|world| {
        world.change::<CertificateSigningRequest>("waits", |request| {
            *request = request.clone().condition("Denied", "11:00:30");
        });
    });
}

/// Secrets of old clusters: unused, used, marked long ago, listed by nobody.
pub(super) fn legacy(making: &mut Making) {
    const USED: &str = "kubernetes.io/legacy-token-last-used";
    const INVALID: &str = "kubernetes.io/legacy-token-invalid-since";
    let tracked = config_map(TRACKING).in_namespace("kube-system");
    making.put(tracked.data("since", "2020-01-01"));
    let names = ["unused", "used", "marked", "lately", "unlisted", "new"];
    for namespace in ["one", "two", "three"] {
        let mut account = service_account("robot").in_namespace(namespace);
        for name in names.into_iter().filter(|name| *name != "unlisted") {
            account = account.lists(name);
        }
        making.put(account);
        for name in names {
            let mut secret = service_account_token(name, "robot").in_namespace(namespace);
            if name != "new" {
                secret = secret.created("2021-01-01T00:00:00Z");
            }
            secret = match name {
                "used" => secret.label(USED, "2026-03-01"),
                "marked" => secret.label(INVALID, "2022-01-01"),
                "lately" => secret.label(INVALID, "2026-03-01"),
                _ => secret,
            };
            making.put(secret);
        }
    }
}

/// Requests of pods, which go a quarter of an hour after they were made.
pub(super) fn of_pods(making: &mut Making) {
    for (name, made) in [
        ("old", "11:00:00"),
        ("soon", "11:45:20"),
        ("later", "11:45:50"),
        ("new", "11:59:00"),
    ] {
        making.put(
            pod_certificate_request(name)
                .in_namespace("default")
                .created(made),
        );
    }
    making.then(|world| delete::<PodCertificateRequest>(world, "new"));
    making.then(|world| {
        let again = pod_certificate_request("new").in_namespace("default");
        world.put(again.uid("uid-again"));
    });
}
