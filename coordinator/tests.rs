//! What the shell adds to the core: flags, Lease objects, the fence, peers over TLS.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex},
    time::Duration,
};

use coordinator_core::{
    Care, Crashes, Deaths, Epoch, Follows, Holder, Member, NotSent, Offer, Pin, PlanLease,
    Question, RangeId, RangeLease, ReplicaLease, Replies, Status, Work,
};
use peer_proto::{ControllerState, InspectRequest, InspectedKey, KeyState, RangeState, Sight};
use rustls::{
    ClientConfig,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer},
    sign::{CertifiedKey, SingleCertAndKey},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    sync::watch,
};

use crate::{
    Clock, Config, EndCause, Fence, Fenced, InFlightMark,
    lease::{Found, Leases, PEER_PIN},
    peer::{Answers, Calls, PeerService, Peers, serve},
    tls::{Tls, pin_of},
    trace::{PeerCall, PeerSpan, Tracer},
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
    let cases: [(&str, Spoil); 14] = [
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
            config.peer_pins = false;
        }),
        ("peer-ca-file", |config| {
            config.peer_insecure = false;
            config.peer_tls_cert_file = Some("a".into());
            config.peer_tls_private_key_file = Some("b".into());
        }),
    ];
    for (flag, spoil) in cases {
        let mut config = config();
        spoil(&mut config);
        assert_eq!(config.validate().map_err(|error| error.flag), Err(flag));
    }
}

#[test]
fn nothing_has_to_be_given_for_tls_between_peers() {
    let config = Config {
        peer_insecure: false,
        ..config()
    };
    assert_eq!(config.validate(), Ok(()));
}

#[test]
fn a_port_that_nobody_asked_for_is_published_as_it_turned_out() {
    for (given, expected) in [
        ("10.0.0.1:10258", "10.0.0.1:9"),
        ("[fd00::1]:10258", "[fd00::1]:9"),
        ("node-1:10258", "node-1:9"),
        ("node-1:77", "node-1:77"),
    ] {
        let config = Config {
            peer_advertise_address: given.to_owned(),
            peer_port_is_default: true,
            ..config()
        };
        assert_eq!(config.advertised(9), expected);
    }
}

#[test]
fn peers_are_given_an_address_with_a_port() {
    for (given, expected) in [
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
        assert_eq!(config.advertised(9), expected);
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
            pin: Some(Pin([0xab; 32])),
            build: "0.1.0".to_owned(),
            ready: true,
            draining: true,
            stale: true,
            ranges: 256,
            share: Some(8),
            crashes: Crashes::parse("1700000000,1700000600"),
            server_fenced: true,
            fingerprints: "kubelet-serving=0a1b,root-ca=2c3d".into(),
            unreachable: "manifold-1,manifold-2".into(),
            demand: Some(7),
            pod: "manifold-system/manifold-0".into(),
            question: Some(Arc::new(Question {
                by: "0abc-2".to_owned(),
                number: 3,
                ranges: BTreeSet::from([0, 1, 7]),
            })),
            replies: Some(Arc::new(Replies {
                by: "0abc-2".to_owned(),
                to: BTreeMap::from([(Holder::new("manifold-1", "0def"), 5)]),
                held: BTreeSet::from([4]),
                epochs: BTreeMap::from([(4, 9)]),
            })),
            follows: Follows {
                pins: true,
                plans: true,
            },
        },
        loads: Arc::new([(3, 90), (4, 1), (200, 255)].into_iter().collect()),
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

/// Builds from before leave the annotation as it is when they write a Lease.
#[tokio::test]
async fn a_pin_counts_for_the_incarnation_that_it_names_alone() {
    let lease = ReplicaLease {
        name: "a".to_owned(),
        version: 1,
        incarnation: Some("a1".to_owned()),
        status: Status {
            pin: Some(Pin([1; 32])),
            ..Status::default()
        },
        ended: Vec::new(),
        working: Vec::new(),
        loads: Arc::default(),
        deaths: Deaths::default(),
    };
    let pin_of = |object: &k8s_openapi::api::coordination::v1::Lease| {
        let Some(Found::Replica(found)) = leases().decode(object) else {
            panic!("a replica Lease");
        };
        found.status.pin
    };
    let mut object = leases().encode_replica(Some(1), &lease, None);
    assert_eq!(pin_of(&object), lease.status.pin);
    for identity in ["a_a2", "a_a1-1", "b_a1", ""] {
        if let Some(spec) = &mut object.spec {
            spec.holder_identity = Some(identity.to_owned());
        }
        assert_eq!(pin_of(&object), None, "{identity}");
    }
    for text in ["", "a1", "a1 sha256:01", "a1 md5:0101", "a1  sha256:"] {
        let mut object = leases().encode_replica(Some(1), &lease, None);
        let annotations = object.metadata.annotations.get_or_insert_default();
        annotations.insert(PEER_PIN.to_owned(), text.to_owned());
        assert_eq!(pin_of(&object), None, "{text}");
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
async fn the_plans_lease_survives_the_way_to_the_api_and_back() {
    let lease = PlanLease {
        version: 9,
        number: 3,
        text: "v1 a,b ABBA".to_owned(),
        planner: "a".to_owned(),
    };
    let object = leases().encode_plan(Some(9), &lease);
    assert_eq!(object.metadata.name.as_deref(), Some("manifold-plan"));
    assert_eq!(leases().decode(&object), Some(Found::Plan(lease)));
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
        loads: Arc::default(),
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

#[tokio::test(start_paused = true)]
async fn a_fence_is_closed_while_the_renewal_thread_does_not_check() {
    let fence = Fence::new(4, Duration::from_secs(2));
    fence.set_epoch(1, Some(3));
    fence.set_until(Some(fence.now() + Duration::from_secs(60)));
    fence.watched(fence.now());
    tokio::time::advance(Duration::from_millis(900)).await;
    assert_eq!(fence.check(1, 3), Ok(()));
    // As after SIGSTOP, where this thread is the first to run.
    tokio::time::advance(Duration::from_millis(200)).await;
    assert_eq!(fence.check(1, 3), Err(Fenced::Closed));
    assert!(!fence.is_open(), "the socket asks this");
    fence.watched(fence.now());
    assert_eq!(fence.check(1, 3), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_fence_has_what_the_newest_renewal_found_left_whenever_it_is_read() {
    let fence = Fence::new(4, Duration::from_secs(2));
    let lands_after = async |wait: u64| {
        let started = fence.now();
        tokio::time::advance(Duration::from_millis(wait)).await;
        fence.landed(1, started);
        fence.set_until(Some(started + Duration::from_secs(3)));
    };
    lands_after(100).await;
    assert_eq!(fence.margin(), None, "it has opened only now");
    tokio::time::advance(Duration::from_millis(900)).await;
    lands_after(700).await;
    assert_eq!(fence.margin(), Some(Duration::from_millis(1300)));
    tokio::time::advance(Duration::from_millis(2500)).await;
    assert_eq!(fence.margin(), Some(Duration::from_millis(1300)));
    lands_after(100).await;
    assert_eq!(fence.margin(), Some(Duration::ZERO), "it came too late");
}

#[tokio::test(start_paused = true)]
async fn a_fence_closes_by_the_clock_that_runs_while_the_machine_is_suspended() {
    let suspended = Arc::new(Mutex::new(Duration::ZERO));
    let (slept, began) = (Arc::clone(&suspended), tokio::time::Instant::now());
    let clock = Clock::given(move || began.elapsed() + *slept.lock().unwrap());
    let fence = Fence::by(clock, 4, Duration::from_secs(2));
    fence.set_epoch(1, Some(3));
    fence.set_until(Some(Duration::from_secs(3)));
    assert_eq!(fence.check(1, 3), Ok(()));
    *suspended.lock().unwrap() = Duration::from_secs(30);
    assert_eq!(fence.check(1, 3), Err(Fenced::Closed));
}

#[tokio::test]
async fn a_fence_over_a_hung_thread_does_not_open_again() {
    let fence = Fence::new(4, Duration::from_secs(2));
    fence.set_epoch(1, Some(3));
    fence.set_until(Some(fence.now() + Duration::from_secs(60)));
    fence.suspect(true);
    assert_eq!(fence.check(1, 3), Err(Fenced::Closed));
    fence.set_until(Some(fence.now() + Duration::from_secs(60)));
    assert_eq!(fence.check(1, 3), Err(Fenced::Closed), "it may hang");
    fence.suspect(false);
    fence.set_until(Some(fence.now() + Duration::from_secs(60)));
    assert_eq!(fence.check(1, 3), Ok(()), "it was long at something");
    fence.shut();
    fence.set_until(Some(fence.now() + Duration::from_secs(60)));
    assert!(!fence.is_open());
    assert_eq!(fence.check(1, 3), Err(Fenced::Closed));
}

#[tokio::test(start_paused = true)]
async fn what_is_in_flight_is_noted_before_it_is_sent_and_until_it_is_over() {
    let noted = Arc::new(std::sync::Mutex::new(Vec::new()));
    let notes = Arc::clone(&noted);
    let mark = InFlightMark::new(move |is| {
        let mut notes = notes.lock().unwrap();
        notes.push(is);
        notes.len() < 6
    });
    let fence = Fence::new(4, Duration::from_secs(2)).with_mark(mark);
    let fence = Arc::new(fence);
    fence.set_epoch(1, Some(3));
    fence.set_until(Some(fence.now() + Duration::from_secs(60)));
    let noted = move || noted.lock().unwrap().clone();
    tokio::time::advance(Duration::from_secs(1)).await;
    assert!(noted().is_empty(), "so the file says it from its beginning");
    fence.mark_if_still();
    fence.mark_if_still();
    assert_eq!(noted(), [false]);
    let one = fence.sending(1, 3).unwrap();
    let two = fence.sending(1, 3).unwrap();
    assert_eq!(noted(), [false, true], "once");
    one.answered();
    assert_eq!(noted(), [false, true]);
    two.answered();
    assert_eq!(noted(), [false, true, false]);
    assert!(fence.sending(2, 3).is_err());
    assert_eq!(noted(), [false, true, false], "nothing was sent");
    drop(fence.sending(1, 3).unwrap());
    tokio::time::advance(Duration::from_millis(1999)).await;
    fence.mark_if_still();
    assert_eq!(noted(), [false, true, false, true], "it was given up");
    tokio::time::advance(Duration::from_millis(1)).await;
    fence.mark_if_still();
    assert_eq!(noted(), [false, true, false, true, false]);
    assert_eq!(fence.sending(1, 3).err(), Some(Fenced::Leaves));
    assert!(fence.ending().is_some(), "it could not be noted");
}

#[tokio::test]
async fn a_replica_that_ends_sends_nothing_new_and_hears_the_answers_to_what_it_sent() {
    let fence = Arc::new(Fence::new(4, Duration::from_secs(2)));
    fence.set_epoch(1, Some(3));
    fence.set_until(Some(fence.now() + Duration::from_secs(60)));
    let sent = fence.sending(1, 3).expect("the fence is open");
    fence.end(EndCause::Panic, "a plan has no end".to_owned());
    fence.end(EndCause::Other, "asked to end".to_owned());
    assert_eq!(fence.check(1, 3), Err(Fenced::Leaves));
    assert_eq!(fence.sending(1, 3).err(), Some(Fenced::Leaves));
    assert!(fence.is_open(), "an answer may come");
    assert!(!fence.is_still());
    sent.answered();
    assert!(fence.is_still());
    let end = fence.ending().map(|end| (end.cause, end.why.as_str()));
    assert_eq!(end, Some((EndCause::Panic, "a plan has no end")));
    tokio::time::timeout(Duration::from_secs(1), fence.ends())
        .await
        .expect("a wait for the end ends with one before, too");
}

// ---- peers ----

struct Recorder {
    offers: Mutex<Vec<(Offer, RangeState)>>,
    members: watch::Sender<Vec<Member>>,
}

impl Default for Recorder {
    fn default() -> Self {
        Self::seeing([member("a", None), member("b", None), member("c", None)])
    }
}

impl Recorder {
    fn seeing(members: impl Into<Vec<Member>>) -> Self {
        Self {
            offers: Mutex::default(),
            members: watch::Sender::new(members.into()),
        }
    }

    fn offers(&self) -> std::sync::MutexGuard<'_, Vec<(Offer, RangeState)>> {
        self.offers
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// "a" in its life "a1", at the address of this host.
fn member(name: &str, pin: Option<Pin>) -> Member {
    Member {
        name: name.to_owned(),
        incarnation: format!("{name}1"),
        address: "127.0.0.1:1".to_owned(),
        pin,
        ready: true,
        version: "0.1.0".to_owned(),
        ..Member::default()
    }
}

impl Answers for Recorder {
    async fn offered(&self, offer: Offer, state: RangeState, _: usize) -> Result<(), String> {
        let refused = offer.range == 3;
        self.offers().push((offer, state));
        if refused {
            Err("not this one".to_owned())
        } else {
            Ok(())
        }
    }

    async fn swap_announced(&self, _: Holder, _: RangeId, _: Epoch) {}

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

    fn sights(&self) -> Vec<Sight> {
        vec![Sight {
            resource: "pods".to_owned(),
            newest: 7,
            ..Sight::default()
        }]
    }

    fn members(&self) -> watch::Receiver<Vec<Member>> {
        self.members.subscribe()
    }

    async fn inspect(&self, asked: InspectRequest) -> Result<Vec<u8>, String> {
        match asked.limit {
            0 => Err("nothing to show".to_owned()),
            size => Ok(vec![b' '; size as usize]),
        }
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
        self.tls_with(name, false)
    }

    fn tls_with(&self, name: &str, pins: bool) -> Arc<Tls> {
        self.write(name);
        let at = |file: String| self.dir.path().join(file);
        let (cert, key) = (at(format!("{name}.crt")), at(format!("{name}.key")));
        let tls = Tls::load(&cert, &key, &at("ca.crt".to_owned()), pins);
        Arc::new(tls.expect("loads"))
    }
}

/// A server "b"; gives its address. It ends with the sender.
async fn server(tls: Option<Arc<Tls>>, answers: Arc<Recorder>) -> (String, watch::Sender<bool>) {
    traced_server(tls, answers, None).await
}

async fn traced_server(
    tls: Option<Arc<Tls>>,
    answers: Arc<Recorder>,
    tracer: Option<Arc<dyn Tracer>>,
) -> (String, watch::Sender<bool>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    let (stop, stopped) = watch::channel(false);
    let service = PeerService::new("manifold".to_owned(), 8, answers, Arc::default(), tracer);
    tokio::spawn(serve(listener, tls, service, stopped));
    (address, stop)
}

/// Whose peers are known by certificates.
fn peers(name: &str, tls: Option<Arc<Tls>>) -> Peers {
    let members = ["a", "b", "c", "d"].map(|name| member(name, None));
    peers_seeing(name, tls, members)
}

fn peers_seeing(name: &str, tls: Option<Arc<Tls>>, members: impl Into<Vec<Member>>) -> Peers {
    // The last members stay where their sender is gone.
    let (_, seen) = watch::channel(members.into());
    Peers::new(
        "manifold".to_owned(),
        name.to_owned(),
        "0.1.0".to_owned(),
        tls,
        seen,
        Arc::default(),
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
    let offers = recorder.offers();
    let (offer, arrived) = &offers[0];
    assert_eq!(
        (offer.range, offer.epoch, &offer.from),
        (2, 4, &Holder::new("a", "a1"))
    );
    assert_eq!(*arrived, sent);
}

/// Which call, of which range and epoch, with which parent, and what it ended with.
type Spans = Arc<Mutex<Vec<String>>>;

struct Spy(Spans);

struct SpySpan(Spans, String);

impl Tracer for Spy {
    fn begin(&self, call: &PeerCall<'_>) -> Option<Box<dyn PeerSpan>> {
        let side = if call.is_client { "client" } else { "server" };
        let (method, from, range, epoch) = (call.method, call.from, call.range, call.epoch);
        let parent = call.parent.unwrap_or("none");
        let text = format!("{method} {side} {from} {range}/{epoch} of {parent}");
        Some(Box::new(SpySpan(Arc::clone(&self.0), text)))
    }
}

impl PeerSpan for SpySpan {
    fn traceparent(&self) -> Option<String> {
        Some("the-caller".to_owned())
    }

    fn end(self: Box<Self>, error: Option<String>) {
        let text = format!("{}: {}", self.1, error.as_deref().unwrap_or("ok"));
        self.0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .push(text);
    }
}

#[tokio::test]
async fn both_sides_of_a_call_are_traced_and_the_caller_is_the_parent() {
    let spans = Spans::default();
    let tracer = || Some(Arc::new(Spy(Arc::clone(&spans))) as Arc<dyn Tracer>);
    let (address, _stop) = traced_server(None, Arc::default(), tracer()).await;
    let (fleet, build) = ("manifold".to_owned(), "0.1.0".to_owned());
    let (_keep, seen) = watch::channel(Vec::new());
    let refusals = Arc::default();
    let peers = Peers::new(fleet, "a".to_owned(), build, None, seen, refusals, tracer());
    let to = Holder::new("b", "b1");
    for range in [2, 3] {
        let what = (range, 4, 1);
        let _refused = peers
            .handoff("a1", &to, &address, what, RangeState::default())
            .await;
    }
    let sent = peers.released("a1", &to, &address, 2, 5).await;
    assert_eq!(sent, Ok(()));
    let spans = spans
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    assert_eq!(
        *spans,
        [
            "Handoff server a1 2/5 of the-caller: ok",
            "Handoff client a1 2/5 of none: ok",
            "Handoff server a1 3/5 of the-caller: not this one",
            "Handoff client a1 3/5 of none: not this one",
            "Released server a1 2/5 of the-caller: ok",
            "Released client a1 2/5 of none: ok",
        ]
    );
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
    assert!(recorder.offers().is_empty());
}

#[tokio::test]
async fn a_peer_reports_what_it_holds_for_its_incarnation_alone() {
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
async fn a_proven_member_is_shown_what_happens_inside_within_limits() {
    let asked = |limit, keys| InspectRequest {
        limit,
        keys: vec![InspectedKey::default(); keys],
        ..InspectRequest::default()
    };
    let to = Holder::new("b", "b1");
    let authority = Authority::new();
    let (address, _stop) = server(Some(authority.tls("b")), Arc::default()).await;
    let member = peers("a", Some(authority.tls("a")));
    for (limit, keys, expected) in [
        (5, 0, Ok(5)),
        (0, 0, Err("nothing to show")),
        (1, 257, Err("more than 256 keys")),
        (3 << 20, 0, Err("over the limit of 2097152")),
    ] {
        let answer = member.inspect(&to, &address, asked(limit, keys)).await;
        match (&answer, expected) {
            (Ok(answer), Ok(bytes)) => assert_eq!(answer.len(), bytes),
            (Err(why), Err(part)) => assert!(why.contains(part), "{why}"),
            _ => panic!("{answer:?} instead of {expected:?}"),
        }
    }
    let stranger = peers("stranger", Some(authority.tls("stranger")));
    let refused = stranger.inspect(&to, &address, asked(5, 0)).await;
    assert!(refused.is_err(), "{refused:?}");
    // Without TLS nobody has proven anything.
    let (address, _stop) = server(None, Arc::default()).await;
    let refused = peers("a", None).inspect(&to, &address, asked(5, 0)).await;
    let why = refused.expect_err("nothing was proven");
    assert!(why.contains("--peer-insecure"), "{why}");
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
async fn silent_connections_do_not_stop_a_peer() {
    const SILENT: u16 = 300;
    let tls = Arc::new(Tls::pinned().expect("a key"));
    let caller = Arc::new(Tls::pinned().expect("a key"));
    let members = || [member("a", caller.pin()), member("b", tls.pin())];
    let recorder = Arc::new(Recorder::seeing(members()));
    let (address, _stop) = server(Some(Arc::clone(&tls)), recorder).await;
    let target: SocketAddr = address.parse().expect("an address");
    let to = Holder::new("b", "b1");
    // Half of them from the peer's own address, the others from addresses that no replica Lease names.
    let mut silent = Vec::new();
    for at in 0..SILENT {
        let last = u8::try_from(at / 2 % 100).expect("small") + 2;
        let from = match at % 2 {
            0 => Ipv4Addr::LOCALHOST,
            _ => Ipv4Addr::new(127, 0, 1, last),
        };
        let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
        socket
            .bind(SocketAddr::from((from, 0)))
            .expect("a loopback address");
        silent.push(socket.connect(target).await.expect("it listens"));
    }
    // And one more whenever one of them is dropped, as a client that comes back does.
    let flood = tokio::spawn(async move {
        for _ in 0..SILENT / 3 {
            silent.push(
                tokio::net::TcpStream::connect(target)
                    .await
                    .expect("it listens"),
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        silent
    });
    let mut longest = Duration::ZERO;
    for _ in 0..10 {
        // A new connection each time.
        let peers = peers_seeing("a", Some(Arc::clone(&caller)), members());
        let begun = std::time::Instant::now();
        let held = peers.holds(&to, &address, &[]).await;
        longest = longest.max(begun.elapsed());
        assert!(held.is_ok(), "{held:?}");
    }
    println!(
        "beside {SILENT} silent clients and 100 that come a second, ten peers were answered within {longest:.1?}"
    );
    flood.await.expect("it connects");
}

#[tokio::test]
async fn channels_to_lives_and_addresses_that_a_peer_has_left_are_dropped() {
    let pin = |byte| Some(Pin([byte; 32]));
    let own = Arc::new(Tls::pinned().expect("a key"));
    let (sender, seen) = watch::channel(vec![member("b", pin(1))]);
    let peers = Peers::new(
        "manifold".to_owned(),
        "a".to_owned(),
        "0.1.0".to_owned(),
        Some(own),
        seen,
        Arc::default(),
        None,
    );
    let to = Holder::new("b", "b1");
    for (address, byte) in [("127.0.0.1:1", 1), ("127.0.0.1:2", 1), ("127.0.0.1:2", 2)] {
        sender.send_replace(vec![member("b", pin(byte))]);
        assert!(
            peers.holds(&to, address, &[]).await.is_err(),
            "nobody listens"
        );
    }
    assert_eq!(peers.open_channels().len(), 3);
    let now = Member {
        address: "127.0.0.1:2".to_owned(),
        ..member("b", pin(2))
    };
    Calls::keep(&peers, &[now]);
    let left = ("b".to_owned(), "127.0.0.1:2".to_owned(), pin(2));
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
    // Made before the call, whose time is bounded.
    let parts: Vec<_> = (0..3)
        .map(|at| peer_proto::HandoffChunk {
            header: (at == 0).then(|| header.clone()),
            controllers: state(100_000, 0).controllers,
            end: at == 2,
        })
        .collect();
    let refused = client.handoff(tokio_stream::iter(parts)).await;
    let code = refused.as_ref().map_err(tonic::Status::code);
    assert_eq!(
        code.err(),
        Some(tonic::Code::ResourceExhausted),
        "{refused:?}"
    );
}

// ---- keys that Leases name ----

#[tokio::test]
async fn peers_know_each_other_by_the_keys_that_their_leases_name() {
    let [a, b, other] = [(); 3].map(|()| Arc::new(Tls::pinned().expect("a key")));
    let seen = || {
        [
            member("a", a.pin()),
            member("b", b.pin()),
            member("c", other.pin()),
        ]
    };
    let recorder = Arc::new(Recorder::seeing(seen()));
    let (address, _stop) = server(Some(Arc::clone(&b)), Arc::clone(&recorder)).await;
    let to = Holder::new("b", "b1");
    let peers = peers_seeing("a", Some(Arc::clone(&a)), seen());
    let sent = state(30, 100_000);
    let what = (2, 4, 1);
    let handed = peers.handoff("a1", &to, &address, what, sent.clone()).await;
    assert_eq!(handed, Ok(()));
    let first = recorder.offers().pop().expect("an offer");
    assert_eq!((&first.0.from, &first.1), (&Holder::new("a", "a1"), &sent));

    let call = async |name: &str, tls: &Arc<Tls>, members: Vec<Member>, to: &Holder| {
        let peers = peers_seeing(name, Some(Arc::clone(tls)), members);
        let call = peers.handoff("a1", to, &address, what, RangeState::default());
        match call.await {
            Err(NotSent::Unreachable(why)) => why,
            other => panic!("{other:?}"),
        }
    };
    // The server has not the key that its Lease names; nor is it the life that is called.
    let why = call("a", &a, vec![member("b", other.pin())], &to).await;
    assert!(why.contains("its key is sha256:"), "{why}");
    let why = call("a", &a, seen().into(), &Holder::new("b", "b2")).await;
    assert!(why.contains("no replica Lease names b_b2"), "{why}");
    // A member without a pin has no key that could be checked.
    let why = call("a", &a, vec![member("b", None)], &to).await;
    assert!(
        why.contains("its Lease has no manifold.dev/peer-pin"),
        "{why}"
    );
    // Another member's key does not speak for this one.
    let why = call("a", &other, seen().into(), &to).await;
    assert!(why.contains("speaks in the name of \"a\""), "{why}");
    // A key that no Lease names.
    let stranger = Arc::new(Tls::pinned().expect("a key"));
    call("a", &stranger, seen().into(), &to).await;
    assert!(recorder.offers().is_empty());
}

#[tokio::test]
async fn a_peer_is_waited_for_whose_lease_is_on_its_way_and_cut_off_with_it() {
    let [a, b] = [(); 2].map(|()| Arc::new(Tls::pinned().expect("a key")));
    let seen = || [member("a", a.pin()), member("b", b.pin())];
    let recorder = Arc::new(Recorder::seeing([member("b", b.pin())]));
    let (address, _stop) = server(Some(Arc::clone(&b)), Arc::clone(&recorder)).await;
    let peers = peers_seeing("a", Some(Arc::clone(&a)), seen());
    let to = Holder::new("b", "b1");
    let late = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        recorder.members.send_replace(seen().into());
    };
    let (answer, ()) = tokio::join!(peers.holds(&to, &address, &[1]), late);
    assert!(answer.is_ok(), "{answer:?}");
    // Its next life has another key: what is open ends, and the old key opens nothing.
    let next = Tls::pinned().expect("a key");
    let members = [member("a", next.pin()), member("b", b.pin())];
    recorder.members.send_replace(members.into());
    let answer = peers.holds(&to, &address, &[1]).await;
    assert!(answer.is_err(), "{answer:?}");
}

/// A fleet moves from files to keys in its Leases: each way that two members can meet.
#[tokio::test]
async fn files_and_pins_meet_where_one_side_takes_both() {
    let authority = Authority::new();
    let make = |name: &str, trust: &str| match trust {
        "pins" => Arc::new(Tls::pinned().expect("a key")),
        trust => authority.tls_with(name, trust == "both"),
    };
    for (caller, callee, speak) in [
        ("pins", "pins", true),
        ("pins", "both", true),
        ("pins", "files", false),
        ("both", "pins", true),
        ("both", "both", true),
        ("both", "files", true),
        ("files", "pins", false),
        ("files", "both", true),
        ("files", "files", true),
    ] {
        let (a, b) = (make("a", caller), make("b", callee));
        let seen = || [member("a", a.pin()), member("b", b.pin())];
        let recorder = Arc::new(Recorder::seeing(seen()));
        let (address, _stop) = server(Some(Arc::clone(&b)), recorder).await;
        let peers = peers_seeing("a", Some(Arc::clone(&a)), seen());
        let answer = peers.holds(&Holder::new("b", "b1"), &address, &[1]).await;
        assert_eq!(answer.is_ok(), speak, "{caller} calls {callee}: {answer:?}");
    }
}

fn old_certificate() -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
    let key = rcgen::KeyPair::generate().expect("a key");
    let mut params = rcgen::CertificateParams::new(Vec::<String>::new()).expect("parameters");
    params.not_before = rcgen::date_time_ymd(2000, 1, 1);
    params.not_after = rcgen::date_time_ymd(2001, 1, 1);
    let certificate = params.self_signed(&key).expect("a certificate");
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());
    (certificate.der().clone(), key.into())
}

/// Of a certificate that a process signs for itself nothing counts but its key.
#[tokio::test]
async fn the_dates_of_a_self_signed_certificate_mean_nothing() {
    let b = Arc::new(Tls::pinned().expect("a key"));
    let (certificate, key) = old_certificate();
    let pin = pin_of(&certificate).expect("a key");
    let recorder = Recorder::seeing([member("a", Some(pin))]);
    let (address, _stop) = server(Some(Arc::clone(&b)), Arc::new(recorder)).await;
    let (config, name) = b.client("b", b.pin()).expect("a configuration");
    let mut config = ClientConfig::clone(&config);
    let provider = rustls::crypto::ring::default_provider();
    let signer = provider.key_provider.load_private_key(key).expect("a key");
    let certified = CertifiedKey::new(vec![certificate.clone()], signer);
    config.client_auth_cert_resolver = Arc::new(SingleCertAndKey::from(certified));
    let tcp = tokio::net::TcpStream::connect(&address)
        .await
        .expect("it listens");
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let mut tls = connector.connect(name, tcp).await.expect("a handshake");
    // The server begins with its settings once the client has been let in.
    let mut answer = [0; 9];
    tls.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        .await
        .expect("sent");
    tls.read_exact(&mut answer).await.expect("the settings");
    assert_eq!(answer[3], 4, "{answer:?}");
}

#[tokio::test]
async fn tls_1_2_is_refused_by_either_end() {
    let b = Arc::new(Tls::pinned().expect("a key"));
    let recorder = Recorder::seeing([member("b", b.pin())]);
    let (address, _stop) = server(Some(Arc::clone(&b)), Arc::new(recorder)).await;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let old = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS12])
        .expect("a version")
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let (_, name) = b.client("b", b.pin()).expect("a configuration");
    let tcp = tokio::net::TcpStream::connect(&address)
        .await
        .expect("it listens");
    let connector = tokio_rustls::TlsConnector::from(Arc::new(old));
    let why = connector
        .connect(name, tcp)
        .await
        .expect_err("refused")
        .to_string();
    assert!(why.contains("ProtocolVersion"), "{why}");

    // A server that has the right key and speaks nothing newer.
    let (certificate, key) = old_certificate();
    let pin = pin_of(&certificate);
    let old = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS12])
        .expect("a version")
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .expect("a configuration");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    let accepting = tokio::spawn(async move {
        let (tcp, _) = listener.accept().await.expect("a connection");
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(old));
        acceptor.accept(tcp).await.is_err()
    });
    let peers = peers_seeing("a", Some(b), [member("b", pin)]);
    let answer = peers.holds(&Holder::new("b", "b1"), &address, &[]).await;
    assert!(answer.is_err(), "{answer:?}");
    assert!(accepting.await.expect("it ends"), "no handshake");
}
