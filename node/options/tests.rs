use super::*;
use crate::args::tests::{descriptors, values};

fn surroundings() -> Surroundings {
    Surroundings {
        host_name: "Node-1".to_owned(),
        ..Surroundings::default()
    }
}

fn options(words: &[&str]) -> Result<Options, Invalid> {
    Options::new(values(words).unwrap(), &descriptors(), &surroundings())
}

#[test]
fn the_defaults_stand_and_warn_of_nothing() {
    let options = options(&[]).unwrap();
    assert_eq!(options.warning, None);
    assert_eq!(options.client.qps, Some(20.0));
    assert_eq!(options.client.burst, 30);
    assert_eq!(options.serving.address.to_string(), "0.0.0.0:10257");
    assert_eq!(options.controllers.len(), 5);
    assert_eq!(options.fleet.replica, "node-1");
    assert_eq!(options.fleet.peer_advertised, "Node-1:10258");
    assert_eq!(options.fleet.peer_transport, PeerTransport::Pins);
    assert_eq!(options.flags.int("concurrent-replicaset-syncs"), 5);
}

#[test]
fn what_kubeadm_writes_is_accepted() {
    let options = options(&[
        "--allocate-node-cidrs=true",
        "--authentication-kubeconfig=/etc/kubernetes/controller-manager.conf",
        "--authorization-kubeconfig=/etc/kubernetes/controller-manager.conf",
        "--bind-address=127.0.0.1",
        "--client-ca-file=/etc/kubernetes/pki/ca.crt",
        "--cluster-cidr=10.244.0.0/16",
        "--cluster-name=kubernetes",
        "--cluster-signing-cert-file=/etc/kubernetes/pki/ca.crt",
        "--cluster-signing-key-file=/etc/kubernetes/pki/ca.key",
        "--controllers=*,bootstrapsigner,tokencleaner",
        "--kubeconfig=/etc/kubernetes/controller-manager.conf",
        "--leader-elect=true",
        "--requestheader-client-ca-file=/etc/kubernetes/pki/front-proxy-ca.crt",
        "--service-account-private-key-file=/etc/kubernetes/pki/sa.key",
        "--service-cluster-ip-range=10.96.0.0/12",
        "--use-service-account-credentials=true",
    ])
    .unwrap();
    assert_eq!(options.controllers.len(), 5);
    let warning = options.warning.unwrap();
    for named in [
        "--allocate-node-cidrs (node-ipam-controller is not built yet)",
        "--cluster-signing-key-file",
        "--controllers=bootstrapsigner (not built yet)",
    ] {
        assert!(warning.contains(named), "{warning}");
    }
    assert!(!warning.contains("leader-elect"), "{warning}");
}

#[test]
fn the_managers_lease_is_held_unless_leader_election_is_off() {
    let on = options(&["--leader-elect-resource-name=manifold-companion"]).unwrap();
    let interlock = on.fleet.interlock.unwrap();
    assert_eq!(
        (interlock.namespace.as_str(), interlock.name.as_str()),
        ("kube-system", "manifold-companion")
    );
    assert_eq!(interlock.lease_duration, Duration::from_secs(15));
    // Without it the other figures mean nothing.
    let off = options(&["--leader-elect=false", "--leader-elect-lease-duration=1s"]).unwrap();
    assert_eq!(off.fleet.interlock, None);
}

#[test]
fn the_first_entry_that_names_a_controller_decides() {
    let all = [
        "deployment-controller",
        "replicaset-controller",
        "root-ca-certificate-publisher-controller",
        "serviceaccount-controller",
        "ttl-after-finished-controller",
    ];
    for (given, wanted) in [
        ("*", &all[..]),
        ("*,-deployment", &all[1..]),
        ("*,-deployment-controller", &all[1..]),
        ("-deployment,*,deployment", &all[1..]),
        ("deployment,-deployment,*", &all[..]),
        ("deployment,replicaset-controller", &all[..2]),
        ("-deployment", &[]),
        ("*,-job,-cronjob-controller", &all[..]),
    ] {
        let options = options(&[&format!("--controllers={given}")]).unwrap();
        assert_eq!(options.controllers, wanted, "{given}");
    }
}

#[test]
fn what_cannot_be_is_reported_with_the_remedy() {
    for (words, part) in [
        (
            &["--controllers=foo"][..],
            "\"foo\" is not in the list of known controllers",
        ),
        (&["--controllers=-deploymant"], "did you mean deployment?"),
        (
            &["--secure-port=0"],
            "--secure-port 0 must be between 1 and 65535, inclusive",
        ),
        (
            &["--secure-port=70000"],
            "--secure-port 70000 must be between",
        ),
        (
            &["--kube-api-burst=-1"],
            "--kube-api-burst must not be negative",
        ),
        (
            &["--cloud-provider=aws"],
            "cloud provider \"aws\" was specified, but built-in cloud providers are disabled",
        ),
        (
            &["--tls-cert-file=a"],
            "--tls-cert-file is given without --tls-private-key-file",
        ),
        (
            &["--tls-min-version=VersionTLS09"],
            "unknown tls version \"VersionTLS09\"",
        ),
        (
            &["--tls-cipher-suites=foo"],
            "Cipher suite foo not supported or doesn't exist",
        ),
        (
            &["--tls-cipher-suites=TLS_RSA_WITH_RC4_128_SHA"],
            "is spoken by this build",
        ),
        (
            &["--tls-curve-preferences=9"],
            "there is no such key exchange",
        ),
        (
            &["--http2-max-streams-per-connection=-1"],
            "--http2-max-streams-per-connection must be from 0",
        ),
        (&["--logging-format=xml"], "format: Invalid value: \"xml\""),
        (
            &["--logging-format=json", "--vmodule=a=1"],
            "--vmodule works with",
        ),
        (
            &["--feature-gates=Foo=true"],
            "unrecognized feature gate: Foo",
        ),
        (
            &["--emulated-version=1.20"],
            "--emulated-version \"1.20\" must be a version from 1.33 to 1.36",
        ),
        (
            &["--authorization-always-allow-paths=/a*b"],
            "only trailing * allowed",
        ),
        (
            &["--requestheader-username-headers=a b"],
            "is no header's name",
        ),
        (
            &[
                "--requestheader-uid-headers=X-Remote-Uid",
                "--feature-gates=RemoteRequestHeaderUID=false",
            ],
            "--requestheader-uid-headers requires the \"RemoteRequestHeaderUID\" feature to be enabled",
        ),
        (
            &["--requestheader-uid-headers=X-Uid"],
            "--requestheader-uid-headers is set without specifying the standard X-Remote-Uid header",
        ),
        (&["--ranges=100"], "--ranges must be a power of two"),
        (&["--ranges=0"], "--ranges must be a power of two"),
        (
            &["--ranges=8192"],
            "--ranges must be a power of two from 1 to 4096",
        ),
        (
            &["--lease-duration=3s"],
            "--lease-duration (3s) must be greater than --lease-renew-deadline (3s)",
        ),
        (
            &["--lease-retry-period=2500ms"],
            "--lease-renew-deadline (3s) must be greater than --lease-retry-period (2.5s) times 1.2",
        ),
        (
            &["--lease-retry-period=0"],
            "--lease-retry-period must be greater than 0",
        ),
        (
            &["--expected-replicas=-1"],
            "--expected-replicas must not be negative",
        ),
        (
            &["--replica-name=A_b"],
            "--replica-name \"A_b\" must be of lower case letters",
        ),
        (
            &["--expected-replicas=65"],
            "--expected-replicas 65 is more than the 64 replicas that a fleet may have",
        ),
        (
            &["--replica-pod=manifold-0"],
            "--replica-pod \"manifold-0\" must be a namespace and a pod's name",
        ),
        (
            &["--server-fence=on"],
            "--server-fence=on needs --use-service-account-credentials=true",
        ),
        (
            &["--server-fence=perhaps"],
            "--server-fence \"perhaps\" must be auto, on or off",
        ),
        (
            &["--peer-insecure"],
            "--peer-insecure is accepted on a loopback address only",
        ),
        (
            &["--peer-ca-file=a"],
            "--peer-ca-file is given without --peer-tls-cert-file and --peer-tls-private-key-file",
        ),
        (
            &["--peer-trust=keys"],
            "--peer-trust \"keys\" must be pins, files or both",
        ),
        (
            &["--peer-trust=both"],
            "--peer-trust=both needs --peer-tls-cert-file, --peer-tls-private-key-file, --peer-ca-file",
        ),
        (
            &[
                "--peer-trust=pins",
                "--peer-ca-file=a",
                "--peer-tls-cert-file=b",
                "--peer-tls-private-key-file=c",
            ],
            "--peer-trust=pins and certificate files exclude each other",
        ),
        (&["--peer-port=0"], "--peer-port 0 must be between"),
        (
            &["--lease-duration=0s"],
            "--lease-duration (0s) must be greater than --lease-renew-deadline",
        ),
        (
            &["--root-ca-file=/does/not/exist"],
            "--root-ca-file: can't read /does/not/exist",
        ),
        (
            &["--root-ca-file=Cargo.toml"],
            "holds no certificate in PEM form",
        ),
        (
            &["--min-resync-period=-1s"],
            "--min-resync-period must not be negative, but is -1s",
        ),
        (
            &["--leader-elect-lease-duration=10s"],
            "--leader-elect-lease-duration: 10s must be greater than --leader-elect-renew-deadline (10s)",
        ),
        (
            &["--leader-elect-retry-period=9s"],
            "--leader-elect-renew-deadline: 10s must be greater than 1.2 times --leader-elect-retry-period (9s)",
        ),
        (
            &["--leader-elect-retry-period=0s"],
            "--leader-elect-retry-period: must be greater than zero",
        ),
        (
            &[
                "--leader-elect-lease-duration=4s",
                "--leader-elect-renew-deadline=3s",
            ],
            "--leader-elect-lease-duration: 4s must be more than 4.4s in whole seconds",
        ),
        (
            &["--leader-elect-resource-name="],
            "--leader-elect-resource-name: must not be empty",
        ),
        (
            &["--leader-elect-resource-lock=endpoints"],
            "--leader-elect-resource-lock must be",
        ),
    ] {
        let why = match options(words) {
            Err(why) => why.to_string(),
            Ok(_) => panic!("{words:?} was accepted"),
        };
        assert!(why.contains(part), "{words:?}: {why}");
        assert!(!why.contains('\n'), "one line: {why}");
    }
}

#[test]
fn any_content_type_is_accepted() {
    let options = options(&["--kube-api-content-type=application/cbor"]).unwrap();
    assert_eq!(options.client.content_type, "application/cbor");
}

#[test]
fn numbers_of_workers_are_checked_where_upstream_checks_them() {
    let descriptors = node_registry::descriptors();
    let surroundings = Surroundings {
        host_name: "host".to_owned(),
        ..Surroundings::default()
    };
    let checked = [
        "concurrent-cron-job-syncs",
        "concurrent-daemonset-syncs",
        "concurrent-horizontal-pod-autoscaler-syncs",
        "concurrent-job-syncs",
        "concurrent-statefulset-syncs",
    ];
    for descriptor in &descriptors {
        let Some((flag, _)) = descriptor.workers else {
            continue;
        };
        if descriptor.bounds.iter().any(|(bound, ..)| *bound == flag) {
            continue;
        }
        for number in [0, -1] {
            let word = format!("--{flag}={number}");
            let parsed = args::parse(args::flags(&descriptors), [word]).unwrap();
            let args::Parsed::Run(values) = parsed else {
                panic!("--{flag} prints");
            };
            let found = Options::new(values, &descriptors, &surroundings);
            match checked.contains(&flag) {
                true => assert_eq!(
                    found.err().unwrap().to_string(),
                    format!("{flag} must be greater than 0, but got {number}")
                ),
                false => assert_eq!(found.unwrap().flags.int(flag), number, "{flag}"),
            }
        }
    }
}

#[test]
fn numbers_stay_within_what_their_controller_says() {
    const FLAG: &str = "concurrent-deployment-syncs";
    let asking = |words: &[&str]| {
        let mut descriptors = descriptors();
        descriptors[0] = descriptors[0].clone().bound(FLAG, 2, 50);
        Options::new(values(words).unwrap(), &descriptors, &surroundings())
    };
    for (word, expected) in [
        ("--concurrent-deployment-syncs=2", None),
        ("--concurrent-deployment-syncs=50", None),
        (
            "--concurrent-deployment-syncs=0",
            Some("concurrent-deployment-syncs must not be less than 2, but got 0"),
        ),
        (
            "--concurrent-deployment-syncs=51",
            Some("concurrent-deployment-syncs must not be more than 50, but got 51"),
        ),
    ] {
        let why = asking(&[word]).err().map(|why| why.to_string());
        assert_eq!(why.is_none(), expected.is_none(), "{word}: {why:?}");
        if let Some(expected) = expected {
            assert!(why.as_ref().unwrap().contains(expected), "{why:?}");
            assert!(!why.unwrap().contains("greater than 0"));
        }
    }
}

#[test]
fn a_gate_reaches_the_controllers_that_ask_for_it() {
    const GATE: &str = "MaxUnavailableStatefulSet";
    let asking = |words: &[&str]| {
        let mut descriptors = descriptors();
        descriptors[0] = descriptors[0].clone().gate(GATE, false);
        Options::new(values(words).unwrap(), &descriptors, &surroundings()).unwrap()
    };
    assert!(!asking(&[]).flags.bool(GATE));
    let on = asking(&["--feature-gates=MaxUnavailableStatefulSet=true"]);
    assert!(on.flags.bool(GATE));
    assert_eq!(on.warning, None, "it has its effect");
    assert!(asking(&["--feature-gates=AllBeta=true"]).flags.bool(GATE));
    let idle = options(&["--feature-gates=MaxUnavailableStatefulSet=true"]).unwrap();
    assert!(idle.warning.unwrap().contains(GATE), "nobody asks for it");
}

#[test]
fn limits_of_the_client_are_as_upstreams() {
    for (words, qps, burst) in [
        (
            &["--kube-api-qps=0", "--kube-api-burst=0"][..],
            Some(5.0),
            10,
        ),
        (&["--kube-api-qps=-1"], None, 30),
        (
            &["--kube-api-qps=100", "--kube-api-burst=200"],
            Some(100.0),
            200,
        ),
    ] {
        let client = options(words).unwrap().client;
        assert_eq!((client.qps, client.burst), (qps, burst), "{words:?}");
    }
}

#[test]
fn a_replica_is_found_where_it_listens() {
    for (words, pod_ip, wanted) in [
        (
            &["--peer-bind-address=127.0.0.1", "--peer-insecure"][..],
            None,
            "127.0.0.1:10258",
        ),
        (&[], Some("10.1.2.3"), "10.1.2.3:10258"),
        (&[], Some("fd00::1"), "[fd00::1]:10258"),
        (
            &["--peer-advertise-address=m-0.m", "--peer-port=7000"],
            Some("10.1.2.3"),
            "m-0.m:7000",
        ),
        (&["--peer-advertise-address=m-0.m:9"], None, "m-0.m:9"),
    ] {
        let surroundings = Surroundings {
            pod_ip: pod_ip.map(str::to_owned),
            pod_name: Some("m-0".to_owned()),
            ..surroundings()
        };
        let options = Options::new(values(words).unwrap(), &descriptors(), &surroundings).unwrap();
        assert_eq!(options.fleet.peer_advertised, wanted, "{words:?}");
        assert_eq!(options.fleet.replica, "m-0");
    }
}

#[test]
fn outside_of_a_pod_a_replica_is_found_by_its_default_route() {
    let surroundings = Surroundings {
        route_ip: Some([10, 1, 2, 4].into()),
        ..surroundings()
    };
    let found = |words: &[&str]| {
        let values = values(words).unwrap();
        Options::new(values, &descriptors(), &surroundings).unwrap()
    };
    let fleet = found(&[]).fleet;
    assert_eq!(fleet.peer_advertised, "10.1.2.4:10258");
    assert!(fleet.peer_port_is_default);
    let fleet = found(&["--peer-bind-address=10.0.0.9", "--peer-port=10258"]).fleet;
    assert_eq!(fleet.peer_advertised, "10.0.0.9:10258");
    assert!(!fleet.peer_port_is_default);
}

#[test]
fn configz_has_upstreams_shape() {
    let config = options(&["--controllers=*,-deployment", "--kube-api-qps=50"])
        .unwrap()
        .configz();
    let upstream = &config["kubecontrollermanager.config.k8s.io"];
    assert_eq!(upstream["kind"], "KubeControllerManagerConfiguration");
    assert_eq!(upstream["Generic"]["MinResyncPeriod"], "12h0m0s");
    assert_eq!(upstream["Generic"]["ClientConnection"]["qps"], 50);
    assert_eq!(
        upstream["Generic"]["Controllers"],
        serde_json::json!(["*", "-deployment-controller"])
    );
    assert_eq!(
        upstream["HPAController"]["HorizontalPodAutoscalerTolerance"],
        0.1
    );
    assert_eq!(config["manifold"]["fleet"]["ranges"], 256);
    assert_eq!(config["manifold"]["effective"]["replica"], "node-1");
}

#[test]
fn the_host_s_time_zone_reaches_the_controllers_and_utc_is_the_default() {
    use jiff::tz::TimeZone;
    assert_eq!(options(&[]).unwrap().flags.local_zone(), TimeZone::UTC);
    let zone = TimeZone::get("Europe/Berlin").unwrap();
    let surroundings = Surroundings {
        time_zone: Some(HostZone {
            source: "/etc/localtime".to_owned(),
            zone: zone.clone(),
        }),
        ..surroundings()
    };
    let options = Options::new(values(&[]).unwrap(), &descriptors(), &surroundings).unwrap();
    assert_eq!(options.flags.local_zone(), zone);
    assert_eq!(options.time_zone, surroundings.time_zone);
}

#[test]
fn a_replica_is_found_in_the_pod_that_it_is_given_or_that_its_environment_names() {
    // The flags, the environment's name and namespace, what is known.
    type Case = (
        &'static [&'static str],
        Option<&'static str>,
        Option<&'static str>,
        &'static str,
    );
    let cases: [Case; 5] = [
        (&[], None, None, ""),
        (&[], Some("m-0"), None, ""),
        (&[], Some("m-0"), Some("system"), "system/m-0"),
        (
            &["--replica-pod=kube-system/m-node-1"],
            None,
            None,
            "kube-system/m-node-1",
        ),
        (
            &["--replica-pod=kube-system/m-node-1.example"],
            Some("m-0"),
            Some("system"),
            "kube-system/m-node-1.example",
        ),
    ];
    for (words, name, namespace, expected) in cases {
        let surroundings = Surroundings {
            pod_name: name.map(str::to_owned),
            pod_namespace: namespace.map(str::to_owned),
            ..surroundings()
        };
        let options = Options::new(values(words).unwrap(), &descriptors(), &surroundings).unwrap();
        assert_eq!(options.fleet.pod, expected, "{words:?}");
        assert_eq!(options.fleet.lock_dir, None);
        let path = options.fleet.termination_message;
        assert_eq!(path.to_str(), Some("/dev/termination-log"));
    }
}

#[test]
fn a_shadow_has_a_fleet_of_its_own_and_neither_lease_nor_fence_nor_tokens() {
    for (words, fleet) in [
        (&["--shadow"][..], "manifold-shadow"),
        (&["--shadow", "--fleet-name=blue"], "blue-shadow"),
        (&["--shadow", "--fleet-name=blue-shadow"], "blue-shadow"),
    ] {
        let options = options(words).unwrap();
        assert_eq!(options.fleet.fleet, fleet);
        assert_eq!(options.fleet.interlock, None);
        assert_eq!(options.fleet.server_fence, ServerFenceMode::Off);
        let shadow = options.shadow.unwrap();
        assert_eq!(shadow.patience, Duration::from_secs(60));
        assert_eq!(shadow.ends_after, None);
        let lease = (
            "kube-system".to_owned(),
            "kube-controller-manager".to_owned(),
        );
        assert_eq!(shadow.manager, Some(lease));
    }
    let with = options(&[
        "--shadow",
        "--shadow-for=1h",
        "--leader-elect=false",
        "--use-service-account-credentials=true",
    ])
    .unwrap();
    assert!(!with.use_service_account_credentials);
    let shadow = with.shadow.unwrap();
    assert_eq!(shadow.ends_after, Some(Duration::from_secs(3600)));
    assert_eq!(shadow.manager, None, "somebody is in charge");
    let warning = with.warning.unwrap();
    assert!(
        warning.contains("--use-service-account-credentials"),
        "{warning}"
    );
}

#[test]
fn what_contradicts_a_shadow_is_refused() {
    for (words, named) in [
        (
            &["--shadow", "--server-fence=on"][..],
            "--shadow contradicts --server-fence=on",
        ),
        (&["--shadow-for=1h"], "--shadow-for needs --shadow"),
        (
            &["--shadow-patience=2m"],
            "--shadow-patience needs --shadow",
        ),
        (
            &["--shadow", "--shadow-patience=10ms"],
            "--shadow-patience must be at least 1s",
        ),
        (&["--fleet-name=blue-shadow"], "ends with -shadow"),
    ] {
        let Invalid(wrong) = options(words).unwrap_err();
        assert_eq!(wrong.len(), 1, "{words:?}: {wrong:?}");
        assert!(wrong[0].contains(named), "{words:?}: {wrong:?}");
    }
}
