use std::{collections::BTreeSet, path::Path, sync::Arc, time::Duration};

use cloud_proto::{describe_response::Capability, refusal};
use cloud_provider::reference::{Fault, Reference};
use controllers_kit::{
    Action, Controller, Descriptor, FlagValue, Flags, Key, Resource, Sharding, Written,
    cloud::{Address, Answered, Node, Reply, Route, read},
};
use coordinator::{Epoch, RangeId};
use futures::FutureExt as _;
use kubernetes_proto::{Object as _, core::Service};
use node_telemetry::metrics::Metrics;
use serde_json::json;

use super::*;

use crate::{
    events,
    gate::{Fence, Gate},
    server::{Live, LiveItem, Refused as ServerRefused},
};

/// An API server that has a Service and a Node.
struct Api;

fn unexpected<T: Send + 'static>() -> BoxFuture<'static, Result<T, ServerRefused>> {
    panic!("nothing but objects is read")
}

impl Server for Api {
    fn write<'a>(
        &'a self,
        _: &'a Sender,
        _: &'a Action,
    ) -> BoxFuture<'a, Result<Written, ServerRefused>> {
        unexpected()
    }
    fn record<'a>(
        &'a self,
        _: &'a Sender,
        _: &'a events::Send,
        _: bool,
    ) -> BoxFuture<'a, Result<Written, ServerRefused>> {
        unexpected()
    }
    fn get<'a>(
        &'a self,
        _: &'a Sender,
        resource: &'static Resource,
        key: &'a Key,
    ) -> BoxFuture<'a, Result<Option<Value>, ServerRefused>> {
        let found = match (resource.plural, key.to_string().as_str()) {
            ("services", "shop/web") => Ok(Some(json!({
                "metadata": {"namespace": "shop", "name": "web", "uid": "u1", "resourceVersion": "7"},
                "spec": {"ports": [{"port": 80}]},
            }))),
            ("nodes", "n1") => Ok(Some(json!({
                "metadata": {"name": "n1"},
                "spec": {"podCIDRs": ["10.0.0.0/24"]},
                "status": {"addresses": [{"type": "InternalIP", "address": "10.1.1.1"}]},
            }))),
            ("nodes", "broken") => Err(controllers_kit::Failure::Other("down".to_owned()).into()),
            _ => Ok(None),
        };
        std::future::ready(found).boxed()
    }
    fn head<'a>(
        &'a self,
        _sender: &'a Sender,
        _: &'static Resource,
        _: &'a Key,
    ) -> BoxFuture<'a, Result<Live<Option<LiveItem>>, ServerRefused>> {
        unexpected()
    }
    fn list<'a>(
        &'a self,
        _: &'a Sender,
        _: &'static Resource,
        _: &'a str,
        _: &'a str,
    ) -> BoxFuture<'a, Result<Live<Vec<LiveItem>>, ServerRefused>> {
        unexpected()
    }
}

struct Open;

impl Fence for Open {
    fn open(&self, _: RangeId, _: Epoch) -> bool {
        true
    }
    fn closed(&self, _: RangeId, _: Epoch) -> BoxFuture<'static, ()> {
        std::future::pending().boxed()
    }
    fn settled(&self) -> u64 {
        0
    }
    fn renewed(&self) -> Option<(u64, tokio::time::Instant)> {
        None
    }
    fn late_write_max(&self) -> Duration {
        Duration::ZERO
    }
    fn announced(&self) -> BoxFuture<'static, ()> {
        std::future::ready(()).boxed()
    }
}

fn sender(epoch: Epoch) -> Sender {
    let metrics = Metrics::new(&[]);
    let descriptor = Descriptor::new("test", Sharding::ByObject);
    let gate = Gate::new(3, epoch, Arc::new(Open));
    Sender::new("a", &descriptor, metrics.controller("test"), &gate)
}

fn flags(pairs: &[(&'static str, &str)]) -> Flags {
    let mut flags = Flags::defaults([&controllers_clouds::service_lb::ServiceLb::describe()]);
    for (name, text) in pairs {
        flags.set(name, FlagValue::Text((*text).to_owned()));
    }
    flags.set(
        "cloud-provider-timeout",
        FlagValue::Duration(Duration::from_secs(2)),
    );
    flags
}

fn at_socket(socket: &Path) -> Provider {
    let endpoint = format!("unix://{}", socket.display());
    let flags = flags(&[("cloud-provider-endpoint", &endpoint)]);
    Provider::open(&flags).unwrap().unwrap()
}

fn web(deed: Deed) -> Call {
    Call {
        guard: Guard::Unchanged {
            resource: Service::resource(),
            key: Key::new("shop", "web"),
            uid: "u1".into(),
            version: 7,
        },
        deed,
    }
}

fn machine(name: &str) -> Node {
    Node {
        name: name.to_owned(),
        uid: format!("uid-{name}"),
        labels: [("a".to_owned(), "b".to_owned())].into(),
        ..Node::default()
    }
}

fn route(node: &str) -> Route {
    Route {
        target_node: node.to_owned(),
        target_addresses: vec![Address {
            r#type: "InternalIP".to_owned(),
            address: "10.1.1.1".to_owned(),
        }],
        destination: "10.0.7.0/24".to_owned(),
        ..Route::default()
    }
}

async fn made(provider: &Provider, call: &Call) -> Outcome {
    let Answered { outcome, .. } = read(&carry_out(&Api, provider, &sender(5), call).await);
    outcome
}

async fn reason(provider: &Provider, call: &Call) -> (Reason, String) {
    let refused = made(provider, call).await.unwrap_err();
    (refused.reason, refused.message)
}

#[tokio::test]
async fn every_call_reaches_the_provider_and_its_answer_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("cloud.sock");
    let cloud = Reference::new();
    cloud.machine("n1");
    let _serving = cloud.serve(&socket).unwrap();
    let provider = at_socket(&socket);
    let ask = async |call: Call| made(&provider, &call).await;

    let Ok(Reply::Provider {
        name,
        instances: true,
        load_balancers: true,
        routes: true,
    }) = ask(Call::read(Deed::Describe)).await
    else {
        panic!("it supports all");
    };
    assert_eq!(name, "reference");
    ask(Call::read(Deed::Describe)).await.unwrap();
    assert_eq!(cloud.count("Describe"), 1, "asked once for each connection");

    assert_eq!(
        ask(web(Deed::GetLoadBalancer)).await,
        Ok(Reply::LoadBalancer(None))
    );
    let nodes = vec![machine("n1"), machine("n2")];
    let Ok(Reply::LoadBalancer(Some(ingress))) = ask(web(Deed::EnsureLoadBalancer { nodes })).await
    else {
        panic!("it is made");
    };
    assert!(ingress[0].ip.starts_with("192.0.2."));
    let balancer = cloud.balancers()["shop/web"].clone();
    assert_eq!(balancer.ports, [80], "the Service comes whole");
    assert_eq!(balancer.nodes.len(), 2);
    let nodes = vec![machine("n3")];
    assert_eq!(
        ask(web(Deed::UpdateLoadBalancer { nodes })).await,
        Ok(Reply::Done)
    );
    let behind: BTreeSet<String> = ["n3".to_owned()].into();
    assert_eq!(cloud.balancers()["shop/web"].nodes, behind);
    assert_eq!(
        ask(web(Deed::EnsureLoadBalancerDeleted)).await,
        Ok(Reply::Done)
    );
    assert!(cloud.balancers().is_empty());

    for (name, exists) in [("n1", true), ("n2", false)] {
        let deed = Deed::InstanceExists(Box::new(machine(name)));
        assert_eq!(ask(Call::read(deed)).await, Ok(Reply::Is(exists)));
    }
    let deed = Deed::InstanceShutdown(Box::new(machine("n1")));
    assert_eq!(ask(Call::read(deed)).await, Ok(Reply::Is(false)));
    let deed = Deed::InstanceShutdown(Box::new(machine("n2")));
    let refused = ask(Call::read(deed)).await.unwrap_err();
    assert_eq!(refused.reason, Reason::InstanceNotFound);

    let deed = Deed::CreateRoute {
        hint: "uid".to_owned(),
        route: route("n9"),
    };
    assert_eq!(ask(Call::read(deed)).await, Ok(Reply::Done));
    let Ok(Reply::Routes(listed)) = ask(Call::read(Deed::ListRoutes)).await else {
        panic!("a list");
    };
    assert_eq!(listed[0].target_addresses, route("n9").target_addresses);
    assert!(!listed[0].name.is_empty());
    let deed = Deed::DeleteRoute {
        route: listed[0].clone(),
    };
    assert_eq!(ask(Call::read(deed)).await, Ok(Reply::Done));
    assert!(cloud.routes().is_empty());
    let epochs = cloud.calls().into_iter().filter(|one| one.epoch != 0);
    assert_eq!(
        epochs.map(|one| one.epoch).collect::<BTreeSet<_>>(),
        [5].into()
    );
}

#[tokio::test]
async fn no_call_rests_on_a_stale_cache() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("cloud.sock");
    let cloud = Reference::new();
    let _serving = cloud.serve(&socket).unwrap();
    let provider = at_socket(&socket);
    let service = |name: &str, uid: &str, version: u64| Guard::Unchanged {
        resource: Service::resource(),
        key: Key::new("shop", name),
        uid: uid.into(),
        version,
    };
    let node = |name: &str, cidr: &str, address: Option<&str>| Guard::NotRouted {
        node: name.to_owned(),
        cidr: cidr.to_owned(),
        addresses: address.map(|address| {
            vec![Address {
                r#type: "InternalIP".to_owned(),
                address: address.to_owned(),
            }]
        }),
    };
    for (guard, refused) in [
        (service("web", "u1", 7), None),
        (service("web", "u1", 6), Some(Reason::Stale)),
        (service("web", "u2", 7), Some(Reason::Stale)),
        (service("gone", "u1", 7), Some(Reason::Stale)),
        (node("n1", "10.0.0.0/24", None), Some(Reason::Stale)),
        (node("n1", "10.0.1.0/24", None), None),
        (node("n1", "", None), None),
        (
            node("n1", "10.0.0.0/24", Some("10.1.1.1")),
            Some(Reason::Stale),
        ),
        (node("n1", "10.0.0.0/24", Some("10.1.1.2")), None),
        (node("gone", "10.0.0.0/24", None), None),
        (node("", "10.0.0.0/24", None), None),
        (node("broken", "10.0.0.0/24", None), Some(Reason::Failed)),
    ] {
        let before = cloud.count("DeleteRoute");
        let call = Call {
            guard: guard.clone(),
            deed: Deed::DeleteRoute { route: route("n1") },
        };
        let outcome = made(&provider, &call).await;
        let reason = outcome.err().map(|refused| refused.reason);
        assert_eq!(reason, refused, "{guard:?}");
        let asked = cloud.count("DeleteRoute") - before;
        assert_eq!(asked, usize::from(refused.is_none()), "{guard:?}");
    }
}

#[tokio::test]
async fn a_range_that_is_handed_over_asks_for_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("cloud.sock");
    let cloud = Reference::new();
    let _serving = cloud.serve(&socket).unwrap();
    let provider = at_socket(&socket);
    let sender = sender(5);
    sender.gate.freeze();
    let call = web(Deed::EnsureLoadBalancerDeleted);
    let answered = read(&carry_out(&Api, &provider, &sender, &call).await);
    assert_eq!(answered.outcome.unwrap_err().reason, Reason::Stale);
    assert!(cloud.calls().is_empty());
}

#[tokio::test]
async fn each_fault_of_a_provider_is_distinguished_from_an_answer() {
    use refusal::Reason as Said;
    let refuse = |reason| Fault::Refuse(reason, "why".to_owned());
    for (fault, reason, text) in [
        (Fault::Down, Reason::Failed, "injected: down"),
        (Fault::LostAnswer, Reason::Failed, "the answer is lost"),
        (Fault::Empty, Reason::Failed, "no answer in it"),
        (
            Fault::Slow(Duration::from_secs(9)),
            Reason::Failed,
            "no answer within 2s",
        ),
        (refuse(Said::Failed), Reason::Failed, "why"),
        (refuse(Said::Unspecified), Reason::Failed, "why"),
        (refuse(Said::NotSupported), Reason::NotSupported, "why"),
        (
            refuse(Said::ImplementedElsewhere),
            Reason::ImplementedElsewhere,
            "why",
        ),
        (
            refuse(Said::InstanceNotFound),
            Reason::InstanceNotFound,
            "why",
        ),
        (refuse(Said::Superseded), Reason::Stale, "why"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("cloud.sock");
        let cloud = Reference::new();
        let _serving = cloud.serve(&socket).unwrap();
        let provider = at_socket(&socket);
        for (name, call) in [
            (
                "EnsureLoadBalancerDeleted",
                web(Deed::EnsureLoadBalancerDeleted),
            ),
            (
                "InstanceExists",
                Call::read(Deed::InstanceExists(Box::new(machine("x")))),
            ),
        ] {
            // What can't be reached is spared for a moment: each gets a provider of its own.
            let other = at_socket(&socket);
            let provider = match name {
                "InstanceExists" => &other,
                _ => &provider,
            };
            cloud.fault(name, fault.clone(), Some(1));
            let (found, message) = super::tests::reason(provider, &call).await;
            assert_eq!(found, reason, "{fault:?} {message}");
            assert!(message.contains(text), "{fault:?} {message}");
        }
    }
}

#[tokio::test]
async fn the_provider_s_own_delay_and_what_it_does_not_serve_are_typed_answers() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("cloud.sock");
    let cloud = Reference::new();
    let _serving = cloud.serve(&socket).unwrap();
    let provider = at_socket(&socket);
    let delay = Duration::from_millis(1500);
    cloud.fault("GetLoadBalancer", Fault::RetryAfter(delay), Some(1));
    let refused = made(&provider, &web(Deed::GetLoadBalancer))
        .await
        .unwrap_err();
    assert_eq!(
        (refused.reason, refused.retry_after),
        (Reason::Failed, Some(delay))
    );
    cloud.without(Capability::Routes);
    let (reason, _) = super::tests::reason(&provider, &Call::read(Deed::ListRoutes)).await;
    assert_eq!(reason, Reason::NotSupported);
}

#[tokio::test]
async fn a_provider_that_comes_back_is_found_again() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("cloud.sock");
    let provider = at_socket(&socket);
    let call = Call::read(Deed::ListRoutes);
    for words in [
        "Unavailable",
        "Unavailable",
        "not tried again yet: Unavailable",
    ] {
        let (reason, message) = super::tests::reason(&provider, &call).await;
        assert_eq!(reason, Reason::Failed);
        assert!(message.contains(words), "{message}");
    }
    let cloud = Reference::new();
    let _serving = cloud.serve(&socket).unwrap();
    let mut tries = 0;
    while made(&provider, &call).await.is_err() {
        tries += 1;
        assert!(tries < 200, "it is never found");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

mod over_tls {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    use rustls::{
        RootCertStore, ServerConfig, pki_types::PrivateKeyDer, server::WebPkiClientVerifier,
    };
    use tokio::net::{TcpListener, UnixStream};

    use super::*;

    struct Authority {
        pem: String,
        issuer: Issuer<'static, KeyPair>,
        der: rustls::pki_types::CertificateDer<'static>,
    }

    fn authority() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        Authority {
            pem: certificate.pem(),
            der: certificate.der().clone(),
            issuer: Issuer::new(params, key),
        }
    }

    /// Certificate and key, PEM, with the certificate's DER.
    fn issued(
        by: &Authority,
    ) -> (
        String,
        String,
        rustls::pki_types::CertificateDer<'static>,
        Vec<u8>,
    ) {
        let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &by.issuer).unwrap();
        (
            certificate.pem(),
            key.serialize_pem(),
            certificate.der().clone(),
            key.serialize_der(),
        )
    }

    /// Ends TLS with certificates of both sides, and hands the rest to a socket.
    async fn terminate(ca: &Authority, socket: std::path::PathBuf) -> u16 {
        let (_, _, der, key) = issued(ca);
        let mut roots = RootCertStore::empty();
        roots.add(ca.der.clone()).unwrap();
        let ring = Arc::new(rustls::crypto::ring::default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&ring))
                .build()
                .unwrap();
        let mut config = ServerConfig::builder_with_provider(ring)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![der], PrivateKeyDer::Pkcs8(key.into()))
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("localhost:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((tcp, _)) = listener.accept().await {
                let (acceptor, socket) = (acceptor.clone(), socket.clone());
                tokio::spawn(async move {
                    let Ok(mut tls) = acceptor.accept(tcp).await else {
                        return;
                    };
                    let mut unix = UnixStream::connect(socket).await.unwrap();
                    let _ended = tokio::io::copy_bidirectional(&mut tls, &mut unix).await;
                });
            }
        });
        port
    }

    #[tokio::test]
    async fn both_sides_show_certificates_and_new_files_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("cloud.sock");
        let cloud = Reference::new();
        let _serving = cloud.serve(&socket).unwrap();
        let (ours, other) = (authority(), authority());
        let port = terminate(&ours, socket).await;
        let path = |name: &str| dir.path().join(name).display().to_string();
        let write = |ca: &Authority, client: &Authority| {
            let (certificate, key, _, _) = issued(client);
            std::fs::write(path("ca"), &ca.pem).unwrap();
            std::fs::write(path("cert"), certificate).unwrap();
            std::fs::write(path("key"), key).unwrap();
        };
        let endpoint = format!("https://localhost:{port}");
        let (ca, cert, key) = (path("ca"), path("cert"), path("key"));
        let flags = flags(&[
            ("cloud-provider-endpoint", &endpoint),
            ("cloud-provider-ca-file", &ca),
            ("cloud-provider-cert-file", &cert),
            ("cloud-provider-key-file", &key),
        ]);
        let missing = Provider::open(&flags).err().unwrap();
        assert!(
            missing.contains("--cloud-provider-ca-file: can't read"),
            "{missing}"
        );
        let call = Call::read(Deed::ListRoutes);
        for (ca, client) in [(&other, &ours), (&ours, &other)] {
            write(ca, client);
            let provider = Provider::open(&flags).unwrap().unwrap();
            assert!(made(&provider, &call).await.is_err());
        }
        assert!(cloud.calls().is_empty(), "nothing came through");
        let provider = Provider::open(&flags).unwrap().unwrap();
        assert!(made(&provider, &call).await.is_err());
        write(&ours, &ours);
        let mut tries = 0;
        while made(&provider, &call).await.is_err() {
            tries += 1;
            assert!(tries < 200, "the new files are never read");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        std::fs::write(path("key"), "nonsense").unwrap();
        let broken = Provider::open(&flags).err().unwrap();
        assert!(broken.contains("holds no private key in PEM"), "{broken}");
    }
}
