//! What the shell adds to the core: flags, Lease objects, the fence, peers over TLS.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use coordinator_core::{
    Care, Crashes, Deaths, Epoch, Holder, NotSent, Offer, RangeId, RangeLease, ReplicaLease,
    Status, Work,
};
use peer_proto::{ControllerState, KeyState, RangeState};
use tokio::{net::TcpListener, sync::watch};

use crate::{
    Config, Fence, Fenced,
    lease::{Found, Leases},
    peer::{Answers, PeerService, Peers, serve},
    tls::Tls,
};

fn config() -> Config {
    Config {
        replica_name: "manifold-0".to_owned(),
        peer_bind_address: Ipv4Addr::LOCALHOST.into(),
        peer_insecure: true,
        ..Config::default()
    }
}

#[test]
fn the_defaults_and_a_name_are_enough_on_loopback() {
    assert_eq!(config().validate(), Ok(()));
}

#[test]
fn a_flag_that_cannot_work_is_named() {
    type Spoil = fn(&mut Config);
    let cases: [(&str, Spoil); 13] = [
        ("replica-name", |config| {
            config.replica_name.clear();
        }),
        ("replica-name", |config| {
            config.replica_name = "a_b".to_owned();
        }),
        ("fleet-name", |config| {
            config.fleet_name = "Fleet".to_owned();
        }),
        ("fleet-namespace", |config| {
            config.fleet_namespace.clear();
        }),
        ("ranges", |config| {
            config.ranges = 0;
        }),
        ("ranges", |config| {
            config.ranges = 100;
        }),
        ("ranges", |config| {
            config.ranges = 8192;
        }),
        ("lease-retry-period", |config| {
            config.lease_retry_period = Duration::ZERO;
        }),
        ("lease-renew-deadline", |config| {
            config.lease_renew_deadline = Duration::from_millis(1200);
        }),
        ("lease-duration", |config| {
            config.lease_duration = Duration::from_secs(3);
        }),
        ("peer-advertise-address", |config| {
            config.peer_bind_address = Ipv4Addr::UNSPECIFIED.into();
        }),
        ("peer-insecure", |config| {
            config.peer_advertise_address = "10.0.0.1".to_owned();
        }),
        ("peer-tls-cert-file", |config| {
            config.peer_insecure = false;
        }),
    ];
    for (flag, spoil) in cases {
        let mut config = config();
        spoil(&mut config);
        assert_eq!(config.validate().map_err(|error| error.flag), Err(flag));
    }
}

#[test]
fn peers_are_told_an_address_with_a_port() {
    for (given, told) in [
        ("", "127.0.0.1:9"),
        ("10.0.0.1", "10.0.0.1:9"),
        ("fd00::1", "[fd00::1]:9"),
        ("manifold-0.manifold", "manifold-0.manifold:9"),
        ("10.0.0.1:77", "10.0.0.1:77"),
    ] {
        let config = Config {
            peer_advertise_address: given.to_owned(),
            ..config()
        };
        assert_eq!(config.advertised(9), told);
    }
}

// ---- Leases ----

fn leases() -> Leases {
    let service = tower::service_fn(|_: http::Request<kube::client::Body>| async {
        Err::<http::Response<kube::client::Body>, _>(std::io::Error::other("there is no server"))
    });
    let client = kube::Client::new(service, "kube-system");
    Leases::new(
        client,
        "kube-system",
        "manifold",
        Duration::from_secs(5),
        Duration::from_secs(1),
    )
}

#[tokio::test]
async fn a_replica_lease_survives_the_way_to_the_api_and_back() {
    let lease = ReplicaLease {
        name: "manifold-0".to_owned(),
        version: 7,
        incarnation: Some("0abc-2".to_owned()),
        status: Status {
            address: "10.0.0.1:10258".to_owned(),
            build: "0.1.0".to_owned(),
            ready: true,
            draining: true,
            ranges: 256,
            share: Some(8),
            crashes: Crashes::parse("1700000000,1700000600"),
            server_fenced: true,
            fingerprints: "kubelet-serving=0a1b,root-ca=2c3d".into(),
        },
        ended: vec!["0abc".to_owned(), "0abc-1".to_owned()],
        working: vec![
            Work::new("job-controller", "a/x", Care::Alone),
            Work::new("deployment-controller", "a/y", Care::None),
        ],
        deaths: Deaths::parse("@1700000000 0aaa\n~job-controller a/x\n@1700000600 0abb"),
    };
    for lease in [
        lease.clone(),
        lease.vacated(),
        lease.evicted(Some(1_700_000_700)),
    ] {
        let object = leases().encode_replica(Some(7), &lease, None);
        assert_eq!(
            object.metadata.name.as_deref(),
            Some("manifold-replica-manifold-0")
        );
        assert_eq!(leases().decode(&object), Some(Found::Replica(lease)));
    }
}

#[tokio::test]
async fn a_range_lease_survives_the_way_to_the_api_and_back() {
    for (range, name) in [(7, "manifold-range-007"), (4095, "manifold-range-4095")] {
        let lease = RangeLease {
            range,
            version: 9,
            holder: Some(Holder::new("manifold-0", "0abc")),
            epoch: 3,
            dead: vec![
                Holder::new("manifold-1", "0abd"),
                Holder::new("manifold-2", "1"),
            ],
        };
        let object = leases().encode_range(Some(9), &lease);
        assert_eq!(object.metadata.name.as_deref(), Some(name));
        assert_eq!(leases().decode(&object), Some(Found::Range(lease)));
    }
}

#[tokio::test]
async fn what_a_hand_has_written_names_nobody_or_somebody_who_must_expire() {
    let lease = RangeLease {
        range: 1,
        version: 9,
        holder: Some(Holder::new("a", "1")),
        epoch: 3,
        dead: Vec::new(),
    };
    let mut object = leases().encode_range(Some(9), &lease);
    if let Some(spec) = &mut object.spec {
        spec.holder_identity = Some("someone".to_owned());
        spec.lease_transitions = Some(-4);
    }
    assert_eq!(
        leases().decode(&object),
        Some(Found::Range(RangeLease {
            holder: None,
            epoch: 0,
            ..lease
        }))
    );
    let replica = ReplicaLease {
        name: "a".to_owned(),
        version: 1,
        incarnation: Some("1".to_owned()),
        status: Status::default(),
        ended: Vec::new(),
        working: Vec::new(),
        deaths: Deaths::default(),
    };
    let mut object = leases().encode_replica(Some(1), &replica, None);
    if let Some(spec) = &mut object.spec {
        spec.holder_identity = Some("b_1".to_owned());
    }
    let incarnation = Some("b_1".to_owned());
    assert_eq!(
        leases().decode(&object),
        Some(Found::Replica(ReplicaLease {
            incarnation,
            ..replica
        }))
    );
    object.metadata.name = Some("manifold-other".to_owned());
    assert_eq!(leases().decode(&object), None);
}

// ---- fence ----

#[tokio::test]
async fn an_announcement_ends_with_the_renewal_that_carries_it() {
    let fence = Arc::new(Fence::new(1, Duration::ZERO));
    let announce = || {
        let fence = Arc::clone(&fence);
        tokio::spawn(async move { fence.announced().await })
    };
    let first = announce();
    fence.announcements.asked().await;
    let carried = fence.announcements.count();
    assert_eq!(carried, 1);
    // Made while the first one's renewal is under way.
    let second = announce();
    fence.announcements.asked().await;
    fence.announcements.landed(carried);
    first.await.unwrap();
    assert!(!second.is_finished());
    fence.announcements.landed(fence.announcements.count());
    second.await.unwrap();
}

#[tokio::test]
async fn the_fence_lets_through_what_is_held_while_it_is_open() {
    let fence = Fence::new(4, Duration::from_secs(2));
    let not_held = |range, epoch| Err(Fenced::NotHeld { range, epoch });
    assert_eq!(fence.check(1, 0), not_held(1, 0));
    fence.set_epoch(1, Some(3));
    assert_eq!(fence.check(1, 3), Err(Fenced::Closed));
    fence.set_until(Some(fence.now() + Duration::from_secs(60)));
    assert_eq!(fence.check(1, 3), Ok(()));
    assert_eq!(fence.check(1, 2), not_held(1, 2));
    assert_eq!(fence.check(9, 3), not_held(9, 3));
    fence.close();
    assert_eq!(fence.check(1, 3), not_held(1, 3));
}

#[tokio::test]
async fn a_request_in_flight_hears_of_the_lost_range_at_once() {
    let fence = Arc::new(Fence::new(4, Duration::from_secs(2)));
    fence.set_epoch(1, Some(3));
    fence.set_until(Some(fence.now() + Duration::from_secs(60)));
    let waiting = tokio::spawn({
        let fence = Arc::clone(&fence);
        async move { fence.closed(1, 3).await }
    });
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished());
    fence.set_epoch(2, Some(1));
    fence.set_epoch(2, None);
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished(), "another range's end is not ours");
    fence.set_epoch(1, None);
    let heard = tokio::time::timeout(Duration::from_secs(5), waiting).await;
    assert!(matches!(
        heard,
        Ok(Ok(Fenced::NotHeld { range: 1, epoch: 3 }))
    ));
}

#[tokio::test]
async fn a_request_in_flight_hears_of_the_closing_fence_from_the_clock_alone() {
    let fence = Fence::new(4, Duration::from_secs(2));
    fence.set_epoch(1, Some(3));
    let until = fence.now() + Duration::from_millis(50);
    fence.set_until(Some(until));
    assert_eq!(fence.closed(1, 3).await, Fenced::Closed);
    assert!(fence.now() >= until);
}

// ---- peers ----

#[derive(Default)]
struct Recorder {
    offers: Mutex<Vec<(Offer, RangeState)>>,
}

impl Answers for Recorder {
    async fn offered(&self, offer: Offer, state: RangeState, _: usize) -> Result<(), String> {
        let refused = offer.range == 3;
        self.offers
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .push((offer, state));
        if refused {
            Err("not this one".to_owned())
        } else {
            Ok(())
        }
    }

    async fn told(&self, _: Holder, _: RangeId, _: Epoch) {}

    async fn holds(
        &self,
        ranges: Vec<RangeId>,
    ) -> Option<(String, BTreeMap<RangeId, (bool, Epoch)>)> {
        Some((
            "b1".to_owned(),
            ranges
                .into_iter()
                .map(|range| (range, (range == 1, 5)))
                .collect(),
        ))
    }

    fn is_peer_address(&self, address: IpAddr) -> bool {
        address == IpAddr::from(Ipv4Addr::LOCALHOST)
    }

    fn is_member(&self, name: &str) -> bool {
        name != "stranger"
    }
}

struct Authority {
    key: rcgen::KeyPair,
    params: rcgen::CertificateParams,
    dir: tempfile::TempDir,
}

impl Authority {
    fn new() -> Self {
        let mut params = rcgen::CertificateParams::new(Vec::<String>::new()).expect("parameters");
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        Self {
            key: rcgen::KeyPair::generate().expect("key"),
            params,
            dir: tempfile::tempdir().expect("directory"),
        }
    }

    fn write(&self, name: &str) {
        let key = rcgen::KeyPair::generate().expect("key");
        let issuer = rcgen::Issuer::from_params(&self.params, &self.key);
        let params = rcgen::CertificateParams::new(vec![name.to_owned()]).expect("parameters");
        let certificate = params.signed_by(&key, &issuer).expect("certificate");
        let ca = self.params.self_signed(&self.key).expect("CA");
        let file = |ending: &str, text: String| {
            std::fs::write(self.dir.path().join(ending), text).expect("written");
        };
        file(&format!("{name}.crt"), certificate.pem());
        file(&format!("{name}.key"), key.serialize_pem());
        file("ca.crt", ca.pem());
    }

    fn tls(&self, name: &str) -> Arc<Tls> {
        self.write(name);
        let at = |file: String| self.dir.path().join(file);
        let load = |cert: &Path, key: &Path, ca: &Path| Tls::load(cert, key, ca).expect("loads");
        Arc::new(load(
            &at(format!("{name}.crt")),
            &at(format!("{name}.key")),
            &at("ca.crt".to_owned()),
        ))
    }
}

/// A server "b"; gives its address. It ends with the sender.
async fn server(tls: Option<Arc<Tls>>, answers: Arc<Recorder>) -> (String, watch::Sender<bool>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    let (stop, stopped) = watch::channel(false);
    let service = PeerService::new("manifold".to_owned(), 8, tls.is_some(), answers);
    tokio::spawn(serve(listener, tls, service, stopped));
    (address, stop)
}

fn peers(name: &str, tls: Option<Arc<Tls>>) -> Peers {
    Peers::new(
        "manifold".to_owned(),
        name.to_owned(),
        "0.1.0".to_owned(),
        tls,
        None,
    )
}

fn state(keys: usize, bytes: usize) -> RangeState {
    let key = |at: usize| KeyState {
        name: format!("k-{at}"),
        memory: Some(vec![1; bytes]),
        ..KeyState::default()
    };
    let controller = |name: &str| ControllerState {
        controller: name.to_owned(),
        keys: (0..keys).map(key).collect(),
        seen: vec![peer_proto::Mark {
            resource: "pods".to_owned(),
            resource_version: 9,
            ..peer_proto::Mark::default()
        }],
    };
    RangeState {
        controllers: vec![controller("x"), controller("y")],
    }
}

#[tokio::test]
async fn a_state_of_many_chunks_arrives_whole_over_mutual_tls() {
    let authority = Authority::new();
    let recorder = Arc::new(Recorder::default());
    let (address, _stop) = server(Some(authority.tls("b")), Arc::clone(&recorder)).await;
    let peers = peers("a", Some(authority.tls("a")));
    let to = Holder::new("b", "b1");
    let sent = state(30, 100_000);
    assert_eq!(
        peers
            .handoff("a1", &to, &address, (2, 4, 1), sent.clone())
            .await,
        Ok(())
    );
    let refused = peers
        .handoff("a1", &to, &address, (3, 4, 1), RangeState::default())
        .await;
    assert_eq!(refused, Err(NotSent::Refused("not this one".to_owned())));
    let offers = recorder
        .offers
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let (offer, arrived) = &offers[0];
    assert_eq!(
        (offer.range, offer.epoch, &offer.from),
        (2, 4, &Holder::new("a", "a1"))
    );
    assert_eq!(*arrived, sent);
}

#[tokio::test]
async fn what_is_too_large_is_not_sent() {
    let (address, _stop) = server(None, Arc::default()).await;
    let result = peers("a", None)
        .handoff(
            "a1",
            &Holder::new("b", "b1"),
            &address,
            (2, 4, 1),
            state(40, 1 << 20),
        )
        .await;
    assert!(matches!(result, Err(NotSent::TooLarge(_))), "{result:?}");
}

#[tokio::test]
async fn only_certificates_of_live_members_speak_and_only_for_themselves() {
    let authority = Authority::new();
    let recorder = Arc::new(Recorder::default());
    let (address, _stop) = server(Some(authority.tls("b")), Arc::clone(&recorder)).await;
    let to = Holder::new("b", "b1");
    let nothing = RangeState::default;
    for (name, tls) in [
        // No member; a member in another's name; under another CA; no TLS at all.
        ("stranger", Some(authority.tls("stranger"))),
        ("c", Some(authority.tls("a"))),
        ("a", Some(Authority::new().tls("a"))),
        ("a", None),
    ] {
        let result = peers(name, tls)
            .handoff("a1", &to, &address, (2, 4, 1), nothing())
            .await;
        assert!(
            matches!(result, Err(NotSent::Unreachable(_))),
            "{name}: {result:?}"
        );
    }
    // The server at this address is not the one that the Lease names.
    let result = peers("a", Some(authority.tls("a")))
        .handoff(
            "a1",
            &Holder::new("d", "d1"),
            &address,
            (2, 4, 1),
            nothing(),
        )
        .await;
    assert!(matches!(result, Err(NotSent::Unreachable(_))), "{result:?}");
    assert!(
        recorder
            .offers
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .is_empty()
    );
}

#[tokio::test]
async fn a_peer_tells_what_it_holds_for_its_incarnation_alone() {
    let (address, _stop) = server(None, Arc::default()).await;
    let answer = peers("a", None)
        .holds(&Holder::new("b", "b1"), &address, &[1, 2])
        .await;
    assert_eq!(
        answer,
        Ok(BTreeMap::from([(1, (true, 5)), (2, (false, 5))]))
    );
    assert!(
        peers("a", None)
            .holds(&Holder::new("b", "b0"), &address, &[1])
            .await
            .is_err()
    );
    assert!(
        peers("a", None)
            .holds(&Holder::new("b", "b1"), &address, &[8])
            .await
            .is_err(),
        "no such range"
    );
}

#[tokio::test]
async fn new_certificates_are_used_and_broken_ones_are_not() {
    let authority = Authority::new();
    let tls = authority.tls("b");
    assert!(!tls.reload().expect("unchanged"));
    authority.write("b");
    assert!(tls.reload().expect("changed"));
    let before = tls.server();
    std::fs::write(authority.dir.path().join("b.crt"), "garbage").expect("written");
    assert!(tls.reload().is_err());
    assert!(
        Arc::ptr_eq(&before, &tls.server()),
        "the old ones stay in force"
    );
}

#[tokio::test]
async fn idle_connections_of_strangers_do_not_stop_a_peer() {
    let authority = Authority::new();
    let (address, _stop) = server(Some(authority.tls("b")), Arc::default()).await;
    let target: SocketAddr = address.parse().expect("an address");
    // Loopback has many addresses; no replica Lease names these.
    let mut idle = Vec::new();
    for last in 2..52u8 {
        for _ in 0..4 {
            let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
            let from = SocketAddr::from((Ipv4Addr::new(127, 0, 1, last), 0));
            socket.bind(from).expect("a loopback address");
            idle.push(socket.connect(target).await.expect("it listens"));
        }
    }
    let peers = peers("a", Some(authority.tls("a")));
    let to = Holder::new("b", "b1");
    let begun = std::time::Instant::now();
    let held = peers.holds(&to, &address, &[]).await;
    let took = begun.elapsed();
    println!(
        "{} idle sockets, a peer was answered after {took:.1?}: {held:?}",
        idle.len()
    );
    assert!(held.is_ok(), "{held:?}");
}

#[tokio::test]
async fn channels_to_addresses_that_a_peer_has_left_are_dropped() {
    let peers = peers("manifold-0", None);
    let to = Holder::new("manifold-1", "life");
    for address in ["127.0.0.1:1", "127.0.0.1:2"] {
        assert!(
            peers.holds(&to, address, &[]).await.is_err(),
            "nobody listens"
        );
    }
    assert_eq!(peers.open_channels().len(), 2);
    peers.keep(|name, address| (name, address) == ("manifold-1", "127.0.0.1:2"));
    let left = ("manifold-1".to_owned(), "127.0.0.1:2".to_owned());
    assert_eq!(peers.open_channels(), [left]);
}

#[tokio::test]
async fn a_state_of_countless_empty_keys_is_not_sent_and_not_taken() {
    let (address, _stop) = server(None, Arc::default()).await;
    let peers = peers("a", None);
    let to = Holder::new("b", "b1");
    // Two bytes each on the wire, some 200 in memory.
    let result = peers
        .handoff("a", &to, &address, (3, 7, 1), state(300_000, 0))
        .await;
    assert!(matches!(result, Err(NotSent::TooLarge(_))), "{result:?}");
    // A peer that does not count sends them all the same.
    let mut client = peer_proto::peer_client::PeerClient::connect(format!("http://{address}"))
        .await
        .expect("it listens");
    let header = peer_proto::HandoffHeader {
        fleet: "manifold".to_owned(),
        from: "manifold-0".to_owned(),
        range: 3,
        ..Default::default()
    };
    let parts = (0..3).map(move |at| peer_proto::HandoffChunk {
        header: (at == 0).then(|| header.clone()),
        controllers: state(100_000, 0).controllers,
        end: at == 2,
    });
    let refused = client.handoff(tokio_stream::iter(parts)).await;
    let code = refused.as_ref().map_err(tonic::Status::code);
    assert_eq!(
        code.err(),
        Some(tonic::Code::ResourceExhausted),
        "{refused:?}"
    );
}
