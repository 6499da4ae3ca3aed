use std::sync::{
    Mutex,
    atomic::{AtomicUsize, Ordering},
};

use node_options::{
    Options, Surroundings,
    args::{self, Parsed, Values},
};
use node_telemetry::metrics::Metrics;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};
use serde_json::json;

use super::{trust::Trust, *};

/// An authority and what it signs.
struct Ca {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Ca {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self {
            issuer: Issuer::new(params, key),
            pem,
        }
    }

    fn sign(&self, name: &str, group: Option<&str>) -> Vec<CertificateDer<'static>> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        if let Some(group) = group {
            params
                .distinguished_name
                .push(DnType::OrganizationName, group);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        vec![params.signed_by(&key, &self.issuer).unwrap().der().clone()]
    }
}

#[test]
fn a_certificate_may_name_a_uid() {
    let ca = Ca::new("clients");
    let named = |uids: &[&str]| {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "ann");
        for uid in uids {
            let uid_type = DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 57683, 2]);
            params.distinguished_name.push(uid_type, *uid);
        }
        let key = KeyPair::generate().unwrap();
        params.signed_by(&key, &ca.issuer).unwrap().der().clone()
    };
    for (uids, with_uid, wanted) in [
        (&[][..], true, Ok("")),
        (&["u-1"][..], true, Ok("u-1")),
        (&["u-1"][..], false, Ok("")),
        (&[""][..], true, Err("UID cannot be an empty string")),
        (&[""][..], false, Ok("")),
    ] {
        let found = trust::subject(&named(uids), with_uid).map(|user| user.uid);
        let found = found.as_deref().map_err(String::as_str);
        assert_eq!(found, wanted, "{uids:?} {with_uid}");
    }
}

/// An API server that knows one token and lets one user pass.
#[derive(Default)]
struct Fake {
    asked: Arc<AtomicUsize>,
    seen: Arc<Mutex<Vec<User>>>,
    broken: bool,
}

impl Reviews for Fake {
    fn token<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Option<User>, String>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            match (self.broken, token) {
                (true, _) => Err("no route".to_owned()),
                (false, "good") => Ok(Some(User {
                    name: "prometheus".to_owned(),
                    ..User::default()
                })),
                _ => Ok(None),
            }
        })
    }
    fn knows_tokens(&self) -> bool {
        true
    }
    fn access<'a>(
        &'a self,
        user: &'a User,
        _: &'a str,
        _: &'a Target,
    ) -> BoxFuture<'a, Result<(bool, String), String>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.seen.lock().unwrap().push(user.clone());
        Box::pin(async move {
            match self.broken {
                true => Err("no route".to_owned()),
                false => Ok((user.name == "prometheus", String::new())),
            }
        })
    }
}

struct Bed {
    auth: Auth,
    client: Ca,
    proxy: Ca,
    asked: Arc<AtomicUsize>,
    seen: Arc<Mutex<Vec<User>>>,
}

fn bed(broken: bool) -> Bed {
    let client = Ca::new("clients");
    let proxy = Ca::new("proxies");
    let mut trust = Trust::default();
    let data = json!({
        "client-ca-file": client.pem,
        "requestheader-client-ca-file": proxy.pem,
        "requestheader-allowed-names": "[\"front\"]",
        "requestheader-username-headers": "[\"X-Remote-User\"]",
        "requestheader-group-headers": "[\"X-Remote-Group\"]",
        "requestheader-extra-headers-prefix": "[\"X-Remote-Extra-\"]",
    });
    trust::fill(&mut trust, &data).unwrap();
    let options = Options::new(
        values(&[]).unwrap(),
        &[],
        &Surroundings {
            host_name: "a".to_owned(),
            ..Surroundings::default()
        },
    )
    .unwrap();
    let fake = Fake {
        broken,
        ..Fake::default()
    };
    let (asked, seen) = (fake.asked.clone(), fake.seen.clone());
    let trusted = Trusted::fixed(trust, &options.authentication);
    let auth = Auth::with(
        trusted,
        Arc::new(fake),
        &options.authentication,
        &options.authorization,
        Metrics::new(&[]),
    );
    Bed {
        auth,
        client,
        proxy,
        asked,
        seen,
    }
}

/// The flags' values by a command line.
pub(crate) fn values(words: &[&str]) -> Result<Values, args::Error> {
    let specs = args::flags(&node_registry::descriptors());
    match args::parse(specs, words.iter().copied())? {
        Parsed::Run(values) => Ok(values),
        Parsed::Print(text) => panic!("prints {text}"),
    }
}

/// For tests of what lies behind: the token `good` may do all.
pub(crate) fn auth() -> Arc<Auth> {
    Arc::new(bed(false).auth)
}

async fn check(
    auth: &Auth,
    path: &str,
    headers: &[(&'static str, &str)],
    certificates: &[CertificateDer<'static>],
) -> Result<User, Refused> {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.append(*name, value.parse().unwrap());
    }
    auth.check(&Asked {
        method: &Method::GET,
        path,
        headers: &map,
        from: None,
        certificates,
    })
    .await
}

#[tokio::test]
async fn health_is_open_to_all_and_metrics_are_not() {
    let bed = bed(false);
    for path in ["/healthz", "/livez", "/readyz"] {
        assert_eq!(
            check(&bed.auth, path, &[], &[]).await.unwrap().name,
            "system:anonymous"
        );
    }
    assert_eq!(bed.asked.load(Ordering::Relaxed), 0);
    assert_eq!(
        check(&bed.auth, "/metrics", &[], &[]).await,
        Err(Refused::Forbidden(
            "forbidden: User \"system:anonymous\" cannot get path \"/metrics\"".to_owned()
        ))
    );
}

#[tokio::test]
async fn a_certificate_names_its_user_and_masters_may_do_all() {
    let bed = bed(false);
    let master = bed.client.sign("admin", Some("system:masters"));
    let user = check(&bed.auth, "/configz", &[], &master).await.unwrap();
    assert_eq!(user.groups, ["system:masters", "system:authenticated"]);
    assert_eq!(bed.asked.load(Ordering::Relaxed), 0);
    let nobody = bed.client.sign("nobody", None);
    let why = check(&bed.auth, "/configz", &[], &nobody)
        .await
        .unwrap_err();
    assert_eq!(
        why,
        Refused::Forbidden("forbidden: User \"nobody\" cannot get path \"/configz\"".to_owned())
    );
    let foreign = Ca::new("others").sign("admin", Some("system:masters"));
    assert!(matches!(
        check(&bed.auth, "/healthz", &[], &foreign).await,
        Err(Refused::Unauthorized(_))
    ));
}

#[tokio::test]
async fn a_token_is_asked_about_once() {
    let bed = bed(false);
    for _ in 0..3 {
        let user = check(
            &bed.auth,
            "/metrics",
            &[("authorization", "Bearer good")],
            &[],
        )
        .await
        .unwrap();
        assert_eq!(user.name, "prometheus");
    }
    assert_eq!(
        bed.asked.load(Ordering::Relaxed),
        2,
        "one TokenReview, one SubjectAccessReview"
    );
    for _ in 0..3 {
        let refused = check(
            &bed.auth,
            "/healthz",
            &[("authorization", "bearer bad")],
            &[],
        )
        .await;
        assert_eq!(
            refused,
            Err(Refused::Unauthorized("invalid bearer token".to_owned()))
        );
    }
    assert_eq!(bed.asked.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn a_server_that_cannot_be_asked_is_nobodys_leave() {
    let bed = bed(true);
    let token = check(
        &bed.auth,
        "/metrics",
        &[("authorization", "Bearer good")],
        &[],
    )
    .await;
    assert_eq!(token, Err(Refused::Unauthorized("no route".to_owned())));
    let anonymous = check(&bed.auth, "/metrics", &[], &[]).await;
    assert_eq!(anonymous, Err(Refused::Broken("no route".to_owned())));
}

#[tokio::test]
async fn headers_count_only_from_a_trusted_proxy() {
    let bed = bed(false);
    let headers = [
        ("x-remote-user", "prometheus"),
        ("x-remote-group", "a"),
        ("x-remote-group", "b"),
        ("x-remote-extra-acme.com%2fscope", "read"),
    ];
    let front = bed.proxy.sign("front", None);
    check(&bed.auth, "/metrics", &headers, &front)
        .await
        .unwrap();
    let seen = bed.seen.lock().unwrap().clone();
    assert_eq!(seen[0].groups, ["a", "b", "system:authenticated"]);
    assert_eq!(seen[0].extra["acme.com/scope"], ["read"]);
    // Without a certificate they are no more than text.
    assert!(matches!(
        check(&bed.auth, "/metrics", &headers, &[]).await,
        Err(Refused::Forbidden(_))
    ));
    // Under a name that is not allowed.
    let other = bed.proxy.sign("other", None);
    assert!(matches!(
        check(&bed.auth, "/metrics", &headers, &other).await,
        Err(Refused::Unauthorized(_))
    ));
    // Signed by the authority of clients, not of proxies.
    let client = bed.client.sign("front", None);
    let why = check(&bed.auth, "/metrics", &headers, &client)
        .await
        .unwrap_err();
    assert_eq!(
        why,
        Refused::Forbidden("forbidden: User \"front\" cannot get path \"/metrics\"".to_owned())
    );
}

#[test]
fn a_digest_is_sha256() {
    let hex: String = trust::sha256(b"abc")
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(
        hex,
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    );
}

#[tokio::test]
async fn a_flood_of_equal_tokens_is_one_review() {
    let bed = bed(false);
    let headers = [("authorization", "Bearer unknown")];
    let many = (0..500).map(|_| check(&bed.auth, "/healthz", &headers, &[]));
    for refused in futures::future::join_all(many).await {
        assert_eq!(
            refused,
            Err(Refused::Unauthorized("invalid bearer token".to_owned()))
        );
    }
    assert_eq!(bed.asked.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_path_that_is_too_long_is_refused_before_anybody_is_asked() {
    let bed = bed(false);
    let longest = format!("/{}", "x".repeat(PATH_BYTES_MAX - 1));
    assert!(matches!(
        check(&bed.auth, &longest, &[], &[]).await,
        Err(Refused::Forbidden(_))
    ));
    let longer = format!("{longest}x");
    assert_eq!(
        check(&bed.auth, &longer, &[], &[]).await,
        Err(Refused::TooLong)
    );
    assert_eq!(bed.asked.load(Ordering::Relaxed), 1);
}

#[test]
fn what_is_longer_than_upstreams_bound_is_not_remembered_and_no_two_wishes_share_a_key() {
    let user = |name: &str, groups: &[&str]| User {
        name: name.to_owned(),
        groups: groups.iter().map(|group| (*group).to_owned()).collect(),
        ..User::default()
    };
    let path = |path: &str| Target::Path(path.to_owned());
    let object = |namespace: &str, name: &str| Target::Object {
        resource: <kubernetes_proto::core::Pod as kubernetes_proto::Object>::resource(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    };
    let long = |bytes: usize| user("a", &["x".repeat(bytes).as_str()]);
    let (_, remembered) = wanted(&long(9_980), "get", &path("/metrics"));
    assert!(remembered);
    let (_, remembered) = wanted(&long(9_990), "get", &path("/metrics"));
    assert!(!remembered);
    let all = [
        wanted(&user("ab", &[]), "get", &path("/a")).0,
        wanted(&user("a", &["b"]), "get", &path("/a")).0,
        wanted(&user("a", &["b", ""]), "get", &path("/a")).0,
        wanted(&user("a", &["", "b"]), "get", &path("/a")).0,
        wanted(&user("ab", &[]), "get/", &path("a")).0,
        wanted(&user("ab", &[]), "get", &object("a", "")).0,
        wanted(&user("ab", &[]), "get", &object("", "a")).0,
        wanted(&user("ab", &[]), "list", &object("", "a")).0,
    ];
    let different: std::collections::BTreeSet<_> = all.iter().collect();
    assert_eq!(different.len(), all.len());
}
