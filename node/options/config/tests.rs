use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value as Json, json};

use super::*;
use crate::{
    Options, Surroundings,
    args::{Field, Kind, Leaf, Parsed, Value},
};

fn specs() -> Vec<Spec> {
    args::flags(&node_registry::descriptors())
}

fn parsed(words: &[&str]) -> Values {
    match args::parse(specs(), words.iter().copied()) {
        Ok(Parsed::Run(values)) => values,
        other => panic!("{words:?}: {other:?}"),
    }
}

const HEAD: &str = "apiVersion: kubecontrollermanager.config.k8s.io/v1alpha1\nkind: KubeControllerManagerConfiguration\n";

/// A file with these lines after the head, which has two.
fn file(lines: &str) -> Result<File, Wrong> {
    File::parse("m.yaml", format!("{HEAD}{lines}").into_bytes(), &specs())
}

/// The values of flags over those of a file.
fn over(words: &[&str], lines: &str) -> Values {
    let mut values = parsed(words);
    values.beneath(file(lines).unwrap().settings().iter().cloned());
    values
}

/// A value of a flag that is not its default.
fn other_value(spec: &Spec) -> &'static str {
    match (spec.name, spec.kind) {
        ("logging-format", _) => "json",
        ("server-fence", _) => "off",
        ("peer-trust", _) => "files",
        ("tls-min-version", _) => "VersionTLS13",
        ("tls-cipher-suites", _) => "TLS_AES_128_GCM_SHA256,TLS_AES_256_GCM_SHA384",
        ("service-cluster-ip-range", _) => "10.0.0.0/16,fd00::/108",
        ("feature-gates", _) => "AllBeta=true,MaxUnavailableStatefulSet=false",
        (_, Kind::Bool) if spec.default == Value::Bool(true) => "false",
        (_, Kind::Bool) => "true",
        (_, Kind::Int | Kind::Int32) => "17",
        (_, Kind::Level) => "4",
        (_, Kind::Float | Kind::Float32) => "0.375",
        (_, Kind::Duration) => "1h2m3.5s",
        (_, Kind::Text) => "it's: a \"text\", # with [all] {of} it\\",
        (_, Kind::List) => "*,-ttl,\"a,b\",~,0x1,true,1.36",
        (_, Kind::Int32List) => "29,23",
        (_, Kind::Map) => "a=b,c=~",
        (_, Kind::Ip) => "fd00::1",
        (_, Kind::NamedCert) => "/a.crt,/a.key:a.example,b.example",
        (_, Kind::Quantity) => "2Mi",
        (_, Kind::Pattern) => "range=5,http*=2",
        (_, Kind::Gates | Kind::Version) => panic!("--{}", spec.name),
    }
}

#[test]
fn each_flag_has_a_field_or_a_reason_for_having_none() {
    let specs = specs();
    let mut fields = BTreeSet::new();
    let mut without = BTreeMap::new();
    for spec in &specs {
        match spec.field {
            Field::In(field) => assert!(fields.insert(field), "{field} is there twice"),
            Field::Halves(first, second) => {
                assert!(fields.insert(first) && fields.insert(second), "{first}");
            }
            Field::FlagOnly(why) => {
                without.insert(spec.name, why);
            }
        }
    }
    assert_eq!(specs.len(), 185);
    assert_eq!(
        without.keys().copied().collect::<Vec<_>>(),
        ["config", "help", "leader-migration-config", "version"]
    );
    for field in &fields {
        let first = field.split('.').next().unwrap();
        let is_ours = first.starts_with(char::is_lowercase);
        assert_eq!(
            is_ours,
            [
                "authentication",
                "authorization",
                "client",
                "cloudProvider",
                "featureGates",
                "fleet",
                "logging",
                "metrics",
                "serving",
                "shadow",
                "tracing",
                "versions"
            ]
            .contains(&first),
            "{field}"
        );
    }
    // What upstream's document has beside is fixed, and read as JSON.
    let shape = args::shape(&specs);
    let fixed: Vec<_> = shape
        .leaves()
        .into_iter()
        .filter_map(|(field, leaf)| match leaf {
            Leaf::Fixed(value) => Some((field, value.clone())),
            _ => None,
        })
        .collect();
    assert_eq!(fixed.len(), 2 + 8);
    for (field, value) in fixed {
        assert!(!value.is_null(), "{field}");
    }
}

#[test]
fn every_flag_with_another_value_comes_back_from_the_file_that_says_it() {
    let specs = specs();
    let shape = args::shape(&specs);
    let mut all = Vec::new();
    let mut seen = 0;
    for spec in &specs {
        if matches!(spec.field, Field::FlagOnly(_)) {
            continue;
        }
        seen += 1;
        let word = format!("--{}={}", spec.name, other_value(spec));
        let flags = parsed(&[&word]);
        assert_ne!(*flags.get(spec.name), spec.default, "{word}");
        let tree = shape.write(
            &|spec| flags.given(spec.name).then(|| flags.get(spec.name).clone()),
            false,
        );
        let text = serde_yaml::to_string(&tree).unwrap();
        let file = File::parse("x", text.clone().into_bytes(), &specs)
            .unwrap_or_else(|why| panic!("{word}: {why}\n{text}"));
        let mut values = parsed(&[]);
        values.beneath(file.settings().iter().cloned());
        let differing: Vec<_> = values.differing(&flags).map(|spec| spec.name).collect();
        assert!(differing.is_empty(), "{word}: {differing:?}\n{text}");
        assert_eq!(values.origin(spec.name), Some(Origin::File), "{word}");
        all.push(word);
    }
    assert_eq!(seen, 181);
    // All at once, in YAML and in JSON.
    let words: Vec<&str> = all.iter().map(String::as_str).collect();
    let flags = parsed(&words);
    let tree = shape.write(&|spec| Some(flags.get(spec.name).clone()), true);
    for text in [
        serde_yaml::to_string(&tree).unwrap(),
        serde_json::to_string(&tree).unwrap(),
    ] {
        let file = File::parse("x", text.into_bytes(), &specs).unwrap();
        let mut values = parsed(&[]);
        values.beneath(file.settings().iter().cloned());
        assert_eq!(values.differing(&flags).count(), 0);
    }
}

#[test]
fn a_file_and_flags_that_say_the_same_make_the_same_options() {
    let words = [
        "--controllers=*,-ttl,bootstrapsigner",
        "--kube-api-qps=50",
        "--kube-api-burst=100",
        "--use-service-account-credentials",
        "--leader-elect-lease-duration=20s",
        "--concurrent-deployment-syncs=9",
        "--service-cluster-ip-range=10.96.0.0/12",
        "--allocate-node-cidrs",
        "--cluster-cidr=10.244.0.0/16",
        "--feature-gates=MaxUnavailableStatefulSet=true",
        "--replica-name=m-0",
        "--ranges=64",
        "--peer-port=7000",
        "--peer-advertise-address=10.0.0.1",
        "--bind-address=127.0.0.1",
        "--tls-sni-cert-key=a.crt,a.key:A.example",
        "--tls-curve-preferences=29",
        "--vmodule=range=5",
        "-v=3",
        "--requestheader-allowed-names=front",
        "--authorization-always-allow-paths=/healthz",
    ];
    let lines = "\
Generic:
  Controllers: ['*', -ttl, bootstrapsigner]
  ClientConnection: {qps: 50, burst: 100}
  LeaderElection: {leaseDuration: 20s}
KubeCloudShared:
  UseServiceAccountCredentials: true
  AllocateNodeCIDRs: true
  ClusterCIDR: 10.244.0.0/16
DeploymentController: {ConcurrentDeploymentSyncs: 9}
NodeIPAMController: {ServiceCIDR: 10.96.0.0/12}
featureGates: {MaxUnavailableStatefulSet: true}
fleet:
  replicaName: m-0
  ranges: 64
  peer: {port: 7000, advertiseAddress: 10.0.0.1}
serving:
  bindAddress: 127.0.0.1
  tlsSNICertKeys: [{certFile: a.crt, keyFile: a.key, names: [A.example]}]
  tlsCurvePreferences: [29]
logging: {verbosity: 3, vmodule: [{filePattern: range, verbosity: 5}]}
authentication: {requestHeader: {allowedNames: [front]}}
authorization: {alwaysAllowPaths: [/healthz]}
";
    let descriptors = node_registry::descriptors();
    let made =
        |values: Values| Options::new(values, &descriptors, &Surroundings::default()).unwrap();
    let (flags, file) = (made(parsed(&words)), made(over(&[], lines)));
    assert_eq!(flags.configz(), file.configz());
    assert_eq!(flags.values().flagz(), file.values().flagz());
    assert_eq!(flags.fleet, file.fleet);
    assert_eq!(flags.serving, file.serving);
    assert_eq!(flags.logging, file.logging);
    assert_eq!(flags.controllers, file.controllers);
    assert_eq!(flags.warning, file.warning);
    assert!(!file.fleet.peer_port_is_default, "the file has given it");
}

#[test]
fn flags_go_before_the_file_and_the_file_before_defaults() {
    let gates = "featureGates: {A: true}";
    for (words, lines, flag, shown, origin) in [
        (
            &[][..],
            "fleet: {ranges: 64}",
            "ranges",
            "64",
            Some(Origin::File),
        ),
        (
            &["--ranges=32"],
            "fleet: {ranges: 64}",
            "ranges",
            "32",
            Some(Origin::Both),
        ),
        (
            &["--ranges=256"],
            "fleet: {ranges: 64}",
            "ranges",
            "256",
            Some(Origin::Both),
        ),
        (&["--ranges=32"], "", "ranges", "32", Some(Origin::Flag)),
        (&[], "", "ranges", "256", None),
        (&[], "fleet:", "ranges", "256", None),
        (&[], "fleet: {ranges: null}", "ranges", "256", None),
        (
            &["--leader-elect"],
            "Generic: {LeaderElection: {leaderElect: false}}",
            "leader-elect",
            "true",
            Some(Origin::Both),
        ),
        (
            &[],
            "Generic: {LeaderElection: {leaderElect: false}}",
            "leader-elect",
            "false",
            Some(Origin::File),
        ),
        // A list of flags replaces the file's.
        (
            &["--controllers=a,b"],
            "Generic: {Controllers: [c]}",
            "controllers",
            "[a,b]",
            Some(Origin::Both),
        ),
        (
            &["--controllers=a", "--controllers=b"],
            "Generic: {Controllers: [c]}",
            "controllers",
            "[a,b]",
            Some(Origin::Both),
        ),
        (
            &[],
            "Generic: {Controllers: []}",
            "controllers",
            "[]",
            Some(Origin::File),
        ),
        // Maps are joined, as the kubelet joins gates.
        (
            &["--allow-metric-labels=b=flag,c=flag"],
            "metrics: {allowListMapping: {a: file, b: file}}",
            "allow-metric-labels",
            "[a=file,b=flag,c=flag]",
            Some(Origin::Both),
        ),
        (
            &["--feature-gates=AllAlpha=true"],
            "featureGates: {AllBeta: true, AllAlpha: false}",
            "feature-gates",
            "AllAlpha=true,AllBeta=true",
            Some(Origin::Both),
        ),
        (
            &[],
            "NodeIPAMController: {ServiceCIDR: a, SecondaryServiceCIDR: b}",
            "service-cluster-ip-range",
            "a,b",
            Some(Origin::File),
        ),
        (
            &["--service-cluster-ip-range=c"],
            "NodeIPAMController: {ServiceCIDR: a, SecondaryServiceCIDR: b}",
            "service-cluster-ip-range",
            "c",
            Some(Origin::Both),
        ),
    ] {
        let values = over(words, lines);
        assert_eq!(values.show(flag), shown, "{words:?} over {lines}");
        assert_eq!(values.origin(flag), origin, "{words:?} over {lines}");
    }
    assert!(file(gates).is_err());
    let both = over(
        &["--ranges=32", "--feature-gates=AllBeta=true", "-v=1"],
        "fleet: {ranges: 64}\nfeatureGates: {AllAlpha: true}",
    );
    assert_eq!(
        both.overriding(),
        ["ranges"],
        "nothing of the file is lost in a map"
    );
}

#[test]
fn what_is_wrong_is_named_with_line_field_and_remedy() {
    for (lines, line, wanted) in [
        // Fields that there are not.
        (
            "fleet: {rangs: 1}",
            3,
            "fleet.rangs: there is no such field (did you mean ranges?)",
        ),
        (
            "fleet:\n  Ranges: 1",
            4,
            "fleet.Ranges: there is no such field (did you mean ranges?)",
        ),
        (
            "generic: {}",
            3,
            "generic: there is no such field (did you mean Generic?)",
        ),
        (
            "ranges: 64",
            3,
            "ranges: there is no such field (did you mean fleet.ranges?)",
        ),
        (
            "kube-api-qps: 5",
            3,
            "kube-api-qps: there is no such field (did you mean Generic.ClientConnection.qps?)",
        ),
        (
            "kubeApiQps: 5",
            3,
            "(did you mean Generic.ClientConnection.qps?)",
        ),
        (
            "leaseDuration: 5s",
            3,
            "(did you mean Generic.LeaderElection.leaseDuration or fleet.leaseDuration?)",
        ),
        (
            "Generic: {ConcurrentDeploymentSync: 5}",
            3,
            "(did you mean DeploymentController.ConcurrentDeploymentSyncs?)",
        ),
        (
            "spaghetti: 1",
            3,
            "m.yaml:3: spaghetti: there is no such field",
        ),
        ("<<: {}", 3, "<<: there is no such field"),
        ("'': {}", 3, ": there is no such field"),
        (
            "Generic:\n  ClientConnection:\n    qpss: 1\n",
            5,
            "Generic.ClientConnection.qpss: there is no such field (did you mean qps?)",
        ),
        // Types.
        (
            "fleet: 5",
            3,
            "fleet: must be a mapping of fields, not the number 5",
        ),
        (
            "fleet: [a]",
            3,
            "fleet: must be a mapping of fields, not a list",
        ),
        (
            "fleet: {ranges: many}",
            3,
            "fleet.ranges: must be a whole number, not the text \"many\"",
        ),
        (
            "fleet: {ranges: '64'}",
            3,
            "must be a whole number, not the text \"64\": leave the quotes out",
        ),
        (
            "fleet: {ranges: 6.5}",
            3,
            "must be a whole number, not the number 6.5",
        ),
        (
            "fleet: {ranges: 18446744073709551615}",
            3,
            "must be a whole number, not the number",
        ),
        (
            "fleet: {ranges: {}}",
            3,
            "must be a whole number, not a mapping",
        ),
        (
            "Generic: {ClientConnection: {burst: 3000000000}}",
            3,
            "must be a whole number of 32 bits, not the number 3000000000",
        ),
        (
            "Generic: {ClientConnection: {qps: fast}}",
            3,
            "must be a number, not the text \"fast\"",
        ),
        (
            "Generic: {ClientConnection: {qps: true}}",
            3,
            "must be a number, not true",
        ),
        (
            "Generic: {LeaderElection: {leaderElect: 'true'}}",
            3,
            "must be true or false, not the text \"true\": leave the quotes out",
        ),
        (
            "Generic: {LeaderElection: {leaderElect: yes}}",
            3,
            "must be true or false, not the text \"yes\"",
        ),
        (
            "Generic: {LeaderElection: {leaderElect: 1}}",
            3,
            "must be true or false, not the number 1",
        ),
        (
            "logging: {verbosity: -1}",
            3,
            "logging.verbosity: must be a whole number from 0 up, not the number -1",
        ),
        (
            "KubeCloudShared: {ClusterName: 5}",
            3,
            "must be a text, not the number 5: put it in quotes",
        ),
        (
            "KubeCloudShared: {ClusterName: [a]}",
            3,
            "must be a text, not a list",
        ),
        (
            "KubeCloudShared: {ClusterName: \"a\\0b\"}",
            3,
            "must not hold control characters",
        ),
        (
            "KubeCloudShared: {ClusterName: \"a\\nb\"}",
            3,
            "must not hold control characters",
        ),
        (
            "serving: {bindAddress: localhost}",
            3,
            "serving.bindAddress: must be an IP address, not the text \"localhost\"",
        ),
        // Durations.
        (
            "fleet: {leaseDuration: 5}",
            3,
            "must be a duration with its unit, not the number 5: write 5s for seconds",
        ),
        (
            "fleet: {leaseDuration: 5 seconds}",
            3,
            "must be a duration such as 300ms, 15s or 1h30m, not the text \"5 seconds\"",
        ),
        (
            "fleet: {leaseDuration: 1d}",
            3,
            "must be a duration such as",
        ),
        (
            "fleet: {leaseDuration: true}",
            3,
            "must be a duration such as",
        ),
        (
            "fleet: {leaseDuration: ''}",
            3,
            "must be a duration such as",
        ),
        (
            "fleet: {leaseDuration: 99999999999h}",
            3,
            "must be a duration such as",
        ),
        // Lists and maps.
        (
            "Generic: {Controllers: '*,-ttl'}",
            3,
            "Generic.Controllers: must be a list, not the text \"*,-ttl\": write [*, -ttl]",
        ),
        (
            "Generic:\n  Controllers:\n  - '*'\n  - 5\n",
            6,
            "Generic.Controllers[1]: must be a text, not the number 5",
        ),
        (
            "serving: {tlsCurvePreferences: [29, P-256]}",
            3,
            "serving.tlsCurvePreferences[1]: must be a whole number, not the text \"P-256\"",
        ),
        (
            "serving: {tlsSNICertKeys: ['a,b']}",
            3,
            "tlsSNICertKeys[0]: must be a mapping of certFile, keyFile, names, not the text \"a,b\"",
        ),
        (
            "serving: {tlsSNICertKeys: [{certFile: a}]}",
            3,
            "tlsSNICertKeys[0]: keyFile is missing",
        ),
        (
            "serving: {tlsSNICertKeys: [{certFile: 'a,b', keyFile: c}]}",
            3,
            "tlsSNICertKeys[0].certFile: must not hold ','",
        ),
        (
            "serving: {tlsSNICertKeys: [{certfile: a, keyFile: c}]}",
            3,
            "tlsSNICertKeys[0].certfile: there is no such field (did you mean certFile?)",
        ),
        (
            "logging: {vmodule: 'a=1'}",
            3,
            "logging.vmodule: must be a list, not the text \"a=1\"",
        ),
        (
            "logging: {vmodule: [{filePattern: a, verbosity: x}]}",
            3,
            "logging.vmodule[0].verbosity: must be a whole number",
        ),
        (
            "logging: {vmodule: [{verbosity: 1}]}",
            3,
            "logging.vmodule[0]: filePattern is missing",
        ),
        (
            "metrics: {allowListMapping: [a]}",
            3,
            "must be a mapping of names to texts, not a list",
        ),
        (
            "metrics: {allowListMapping: {a: 1}}",
            3,
            "metrics.allowListMapping.a: must be a text, not the number 1",
        ),
        (
            "featureGates: 'A=true'",
            3,
            "featureGates: must be a mapping of names to true or false, not the text \"A=true\"",
        ),
        (
            "featureGates:\n  AllBeta: true\n  MaxUnavailableStatefulSets: true",
            5,
            "unrecognized feature gate: MaxUnavailableStatefulSets (did you mean MaxUnavailableStatefulSet?)",
        ),
        (
            "featureGates: {AllBeta: 'on'}",
            3,
            "featureGates.AllBeta: must be true or false, not the text \"on\"",
        ),
        (
            "featureGates: {APIServerTracing: false}",
            3,
            "cannot set feature gate APIServerTracing to false, feature is locked to true",
        ),
        (
            "NodeIPAMController: {SecondaryServiceCIDR: b}",
            3,
            "is given without the first range",
        ),
        (
            "NodeIPAMController: {ServiceCIDR: 'a,b'}",
            3,
            "NodeIPAMController.ServiceCIDR: must be one range",
        ),
        // What upstream's document has and no flag sets.
        (
            "Generic: {Port: 10252}",
            3,
            "Generic.Port: is always the number 0 and can't be set: leave it out",
        ),
        (
            "Generic: {LeaderMigration: {leaderName: a}}",
            3,
            "can't be set: leave it out",
        ),
    ] {
        let found = file(lines)
            .err()
            .unwrap_or_else(|| panic!("{lines} was read"));
        let why = found.to_string();
        assert!(why.contains(wanted), "{lines}: {why}");
        assert!(
            why.starts_with(&format!("m.yaml:{line}: ")),
            "{lines}: {why}"
        );
        assert_eq!(found.0.len(), 1, "{lines}: {why}");
        assert!(!why.contains('\n') && why.len() < 300, "{why}");
    }
}

#[test]
fn heads_are_checked() {
    for (text, wanted) in [
        (
            "kind: KubeControllerManagerConfiguration",
            "m.yaml:1: apiVersion is missing: write apiVersion: kubecontrollermanager.config.k8s.io/v1alpha1",
        ),
        (
            "apiVersion: kubecontrollermanager.config.k8s.io/v1alpha1",
            "m.yaml:1: kind is missing: write kind: KubeControllerManagerConfiguration",
        ),
        (
            "apiVersion: v1\nkind: KubeControllerManagerConfiguration",
            "m.yaml:1: apiVersion: must be the text \"kubecontrollermanager.config.k8s.io/v1alpha1\", not the text \"v1\"",
        ),
        (
            "apiVersion: kubecontrollermanager.config.k8s.io/v1alpha1\nkind: KubeletConfiguration",
            "m.yaml:2: kind: must be",
        ),
        ("[]", "m.yaml:1: must be a mapping of fields, not a list"),
        (
            "text",
            "m.yaml:1: must be a mapping of fields, not the text \"text\"",
        ),
        ("", "m.yaml: is empty"),
        ("a: 1\na: 2", "m.yaml:2: the field \"a\" is there twice"),
        (
            "kind: Pod\nspec: {containers: []}",
            "m.yaml: is a Pod, not a KubeControllerManagerConfiguration: make one of it by manifold config from-flags -f m.yaml",
        ),
        (
            r#"{"kubecontrollermanager.config.k8s.io": {}}"#,
            "m.yaml: is an answer of /configz, not a KubeControllerManagerConfiguration",
        ),
    ] {
        let why = File::parse("m.yaml", text.as_bytes().to_vec(), &specs()).unwrap_err();
        assert!(why.to_string().starts_with(wanted), "{text}: {why}");
    }
}

#[test]
fn many_mistakes_are_named_at_once_and_not_too_many() {
    let lines: String = (0..30).map(|number| format!("x{number}: 1\n")).collect();
    let why = file(&lines).unwrap_err();
    assert_eq!(why.0.len(), SHOWN_MAX + 1);
    assert_eq!(why.0[SHOWN_MAX], "m.yaml: and 20 more");
}

#[test]
fn values_that_do_not_fit_together_are_placed_in_the_file() {
    let descriptors = node_registry::descriptors();
    for (words, lines, wanted) in [
        (
            &[][..],
            "fleet:\n  ranges: 100",
            "m.yaml:4: fleet.ranges: --ranges must be a power of two",
        ),
        (
            &["--ranges=100"],
            "fleet:\n  ranges: 64",
            "--ranges must be a power of two",
        ),
        (
            &[],
            "fleet:\n  leaseDuration: 3s",
            "m.yaml:4: fleet.leaseDuration: --lease-duration (3s) must be greater than --lease-renew-deadline (3s)",
        ),
        (
            &["--lease-duration=4s"],
            "fleet:\n  leaseRenewDeadline: 4s",
            "m.yaml:4: fleet.leaseRenewDeadline: --lease-duration (4s) must be greater than --lease-renew-deadline (4s)",
        ),
        (
            &[],
            "DaemonSetController: {ConcurrentDaemonSetSyncs: 0}",
            "m.yaml:3: DaemonSetController.ConcurrentDaemonSetSyncs: concurrent-daemonset-syncs must be greater than 0",
        ),
        (
            &[],
            "Generic:\n  Controllers: ['*', -deploymant]",
            "m.yaml:4: Generic.Controllers: \"deploymant\" is not in the list of known controllers (did you mean deployment?)",
        ),
        (
            &[],
            "logging: {format: xml}",
            "m.yaml:3: logging.format: format: Invalid value: \"xml\"",
        ),
        (
            &[],
            "KubeCloudShared:\n  CloudProvider:\n    Name: aws",
            "m.yaml:5: KubeCloudShared.CloudProvider.Name: cloud provider \"aws\"",
        ),
        (
            &[],
            "SAController: {RootCAFile: /does/not/exist}",
            "m.yaml:3: SAController.RootCAFile: --root-ca-file: can't read /does/not/exist",
        ),
        (
            &[],
            "serving: {tlsCertFile: a}",
            "m.yaml:3: serving.tlsCertFile: --tls-cert-file is given without --tls-private-key-file",
        ),
    ] {
        let values = over(words, lines);
        let invalid = Options::new(
            values.clone(),
            &descriptors,
            &Surroundings {
                host_name: "host".to_owned(),
                ..Surroundings::default()
            },
        )
        .err()
        .unwrap_or_else(|| panic!("{lines} was accepted"));
        let why = file(lines).unwrap().place(&values, &invalid).to_string();
        assert!(why.starts_with(wanted), "{lines}: {why}");
    }
}

#[test]
fn flags_are_found_in_sentences_as_whole_words() {
    for (sentence, flag, wanted) in [
        ("--ranges must", "ranges", Some(2)),
        ("the ranges must", "ranges", None),
        ("--lease-duration must", "lease-duration", Some(2)),
        ("--leader-elect-lease-duration must", "lease-duration", None),
        ("concurrent-gc-syncs must", "concurrent-gc-syncs", Some(0)),
        ("--v (3)", "v", Some(2)),
        ("--vmodule", "v", None),
        ("--vmodule and --v", "v", Some(16)),
        ("", "v", None),
    ] {
        assert_eq!(mentioned(sentence, flag), wanted, "{sentence} {flag}");
    }
}

#[test]
fn what_configz_answers_is_a_configuration_that_changes_nothing() {
    let descriptors = node_registry::descriptors();
    let options = Options::new(
        parsed(&[]),
        &descriptors,
        &Surroundings {
            host_name: "host".to_owned(),
            ..Surroundings::default()
        },
    )
    .unwrap();
    let configz = options.configz();
    let upstream = configz["kubecontrollermanager.config.k8s.io"].to_string();
    let repeated = File::parse("x", upstream.into_bytes(), &specs()).unwrap();
    let mut values = parsed(&[]);
    values.beneath(repeated.settings().iter().cloned());
    assert_eq!(values.differing(&parsed(&[])).count(), 0);
    // Defaults that are repeated ask for nothing, so nothing is warned of.
    assert_eq!(values.without_effect().count(), 0);
    assert!(values.deprecations().is_empty());
    // kube-controller-manager prints this list in another order after each start.
    for (list, is_theirs) in [
        (
            "[{Group: events.k8s.io, Resource: events}, {Group: '', Resource: events}]",
            true,
        ),
        ("[{Group: '', Resource: events}]", false),
        (
            "[{Group: '', Resource: events}, {Group: '', Resource: events}]",
            false,
        ),
    ] {
        let lines = format!("GarbageCollectorController: {{GCIgnoredResources: {list}}}");
        assert_eq!(self::file(&lines).is_ok(), is_theirs, "{list}");
    }
    let asked = over(
        &[],
        "Generic: {LeaderMigrationEnabled: true}\nKubeCloudShared: {AllowUntaggedCloud: true}",
    );
    assert_eq!(
        asked.without_effect().count(),
        2 - usize::from(
            asked
                .without_effect()
                .all(|(flag, _)| flag != "allow-untagged-cloud")
        )
    );
    assert_eq!(asked.deprecations().len(), 1);
}

/// Whether a document has the form that a schema wants, as far as our own schema goes. Patterns are compared
/// by the reader.
fn conforms(schema: &Json, node: &Json) -> bool {
    let kinds: Vec<&str> = match &schema["type"] {
        Json::String(kind) => vec![kind],
        Json::Array(kinds) => kinds.iter().filter_map(Json::as_str).collect(),
        _ => vec![],
    };
    let is = |kind: &str| match node {
        Json::Null => kind == "null",
        Json::Bool(_) => kind == "boolean",
        Json::Number(number) => kind == "number" || (kind == "integer" && !number.is_f64()),
        Json::String(_) => kind == "string",
        Json::Array(_) => kind == "array",
        Json::Object(_) => kind == "object",
    };
    if !kinds.is_empty() && !kinds.iter().any(|kind| is(kind)) {
        return false;
    }
    if let Some(wanted) = schema.get("const")
        && wanted != node
    {
        return false;
    }
    if let Some(values) = schema["enum"].as_array()
        && !values.contains(node)
    {
        return false;
    }
    if let (Some(least), Some(number)) = (schema["minimum"].as_i64(), node.as_i64())
        && number < least
    {
        return false;
    }
    if let (Some(most), Some(number)) = (schema["maximum"].as_i64(), node.as_i64())
        && number > most
    {
        return false;
    }
    match node {
        Json::Object(map) => {
            let required = schema["required"].as_array().into_iter().flatten();
            required
                .filter_map(Json::as_str)
                .all(|name| map.contains_key(name))
                && map
                    .iter()
                    .all(|(name, value)| match schema["properties"].get(name) {
                        Some(inner) => conforms(inner, value),
                        None => match schema.get("additionalProperties") {
                            Some(Json::Bool(more)) => *more,
                            Some(inner) => conforms(inner, value),
                            None => true,
                        },
                    })
        }
        Json::Array(items) => {
            let length = items.len() as u64;
            let is_unique = (1..items.len()).all(|at| !items[..at].contains(&items[at]));
            schema["minItems"]
                .as_u64()
                .is_none_or(|least| length >= least)
                && schema["maxItems"]
                    .as_u64()
                    .is_none_or(|most| length <= most)
                && (schema["uniqueItems"] != true || is_unique)
                && items.iter().all(|item| conforms(&schema["items"], item))
        }
        _ => true,
    }
}

#[test]
fn the_schema_accepts_what_is_read_and_refuses_what_is_not() {
    let specs = specs();
    let shape = args::shape(&specs);
    let schema = schema::schema(&shape);
    let all: Vec<String> = specs
        .iter()
        .filter(|spec| !matches!(spec.field, Field::FlagOnly(_)))
        .map(|spec| format!("--{}={}", spec.name, other_value(spec)))
        .collect();
    let words: Vec<&str> = all.iter().map(String::as_str).collect();
    let flags = parsed(&words);
    let tree = json!(shape.write(&|spec| Some(flags.get(spec.name).clone()), true));
    assert!(conforms(&schema, &tree));
    // One field at a time holds one value of each type.
    let values = [
        json!(null),
        json!(true),
        json!(7),
        json!(-7),
        json!(7.5),
        json!(3_000_000_000_u64),
        json!("text"),
        json!("5s"),
        json!([]),
        json!([1]),
        json!(["a"]),
        json!({}),
        json!({"a": "b"}),
        json!({"AllBeta": true}),
        json!([{"certFile": "a", "keyFile": "b"}]),
        json!([{"filePattern": "a"}]),
        json!([{}]),
    ];
    let mut compared = 0;
    for (field, leaf) in shape.leaves() {
        for value in &values {
            let mut document = json!({"apiVersion": args::API_VERSION, "kind": args::KIND});
            let mut at = &mut document;
            for name in field.split('.') {
                at = &mut at[name];
            }
            *at = value.clone();
            let read = shape.read(&document).is_ok();
            let formed = conforms(&schema, &document);
            // A pattern is not examined here, and of two halves the second needs the first.
            let is_text = value.is_string() || matches!(leaf, Leaf::Second(_));
            assert!(
                read == formed || (is_text && formed),
                "{field}: {value}: read {read}, by the schema {formed}"
            );
            compared += 1;
        }
    }
    println!("{compared} pairs of field and value");
    let live: BTreeSet<&str> = shape
        .leaves()
        .into_iter()
        .filter_map(|(field, leaf)| match leaf {
            Leaf::Flag(spec) if spec.live => Some(field),
            _ => None,
        })
        .collect();
    assert!(live.contains("logging.verbosity"));
    assert!(live.contains("DeploymentController.ConcurrentDeploymentSyncs"));
    assert!(!live.contains("fleet.ranges"));
}

const DOCS: &str = include_str!("../../../docs/config.md");

#[test]
fn the_example_of_the_docs_starts_a_replica_and_its_fields_are_fields() {
    let example = DOCS
        .split("```yaml\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .find(|block| block.contains(args::KIND))
        .unwrap();
    let specs = specs();
    let file = File::parse("docs", example.as_bytes().to_vec(), &specs).unwrap();
    let mut values = parsed(&[]);
    values.beneath(file.settings().iter().cloned());
    let surroundings = Surroundings {
        host_name: "host".to_owned(),
        elsewhere: true,
        ..Surroundings::default()
    };
    let options = Options::new(values, &node_registry::descriptors(), &surroundings).unwrap();
    assert_eq!(options.warning, None);
    assert!(!options.controllers.contains(&"ttl-controller"));
    // Each field that the text names is there, and all that it says to take effect does.
    let shape = args::shape(&specs);
    let leaves = shape.leaves();
    let named: BTreeSet<&str> = DOCS
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|text| {
            text.contains('.') && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '.')
        })
        .filter(|text| {
            let section = text.split('.').next().unwrap();
            leaves
                .iter()
                .any(|(field, _)| field.split('.').next() == Some(section))
        })
        .collect();
    assert!(named.len() > 12, "{named:?}");
    for name in &named {
        let is_known = leaves
            .iter()
            .any(|(field, _)| field == name || field.starts_with(&format!("{name}.")));
        assert!(is_known, "{name} is no field");
    }
    let (_, said) = DOCS
        .split_once("These fields take effect at once:")
        .unwrap();
    let (said, _) = said.split_once("All others").unwrap();
    for spec in specs.iter().filter(|spec| spec.live) {
        let Field::In(field) = spec.field else {
            panic!("--{}", spec.name);
        };
        let is_workers = node_registry::descriptors()
            .iter()
            .any(|one| one.workers.is_some_and(|(flag, _)| flag == spec.name));
        assert!(
            is_workers || said.contains(&format!("`{field}`")),
            "{field}"
        );
    }
}
