use std::collections::{BTreeMap, BTreeSet};

use controllers_kit::{Descriptor, FlagDefault, Sharding};

use super::*;

/// As the five controllers of this build declare them.
pub(crate) fn descriptors() -> Vec<Descriptor> {
    vec![
        Descriptor::new("deployment-controller", Sharding::ByObject)
            .aliases(&["deployment"])
            .workers("concurrent-deployment-syncs", 5, "Deployments at once."),
        Descriptor::new("replicaset-controller", Sharding::ByObject)
            .aliases(&["replicaset"])
            .workers("concurrent-replicaset-syncs", 5, "ReplicaSets at once."),
        Descriptor::new(
            "root-ca-certificate-publisher-controller",
            Sharding::ByNamespace,
        )
        .aliases(&["root-ca-cert-publisher"])
        .flag("root-ca-file", FlagDefault::File, "CA certificates."),
        Descriptor::new("serviceaccount-controller", Sharding::ByNamespace)
            .aliases(&["serviceaccount"]),
        Descriptor::new("ttl-after-finished-controller", Sharding::ByObject)
            .aliases(&["ttl-after-finished"])
            .workers("concurrent-ttl-after-finished-syncs", 5, "Jobs at once."),
    ]
}

pub(crate) fn values(words: &[&str]) -> Result<Values, Error> {
    match parse(flags(&descriptors()), words.iter().copied())? {
        Parsed::Run(values) => Ok(values),
        Parsed::Print(text) => panic!("prints {text}"),
    }
}

/// Flags of upstream with their defaults, as it prints them itself.
fn upstreams() -> BTreeMap<&'static str, &'static str> {
    include_str!("kcm-1.36-defaults.txt")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once('='))
        .collect()
}

/// Flags of this build that upstream lacks.
fn ours() -> BTreeSet<&'static str> {
    let tables = [upstream::FLEET, upstream::FILE];
    tables.into_iter().flatten().map(|flag| flag.0).collect()
}

#[test]
fn every_flag_of_upstream_is_known_with_its_default() {
    let values = values(&[]).unwrap();
    let upstreams = upstreams();
    assert_eq!(upstreams.len(), 150);
    for (name, default) in &upstreams {
        assert_eq!(values.show(name), *default, "--{name}");
    }
    let flags: Vec<&str> = values
        .values
        .keys()
        .copied()
        .filter(|name| !upstreams.contains_key(name))
        .collect();
    assert_eq!(
        flags,
        ours().into_iter().collect::<Vec<_>>(),
        "flags that upstream lacks"
    );
}

#[test]
fn every_flag_of_upstream_takes_its_own_default_as_a_value() {
    for (name, default) in upstreams() {
        let bare = default.trim_matches(['[', ']']);
        if ["help", "version"].contains(&name)
            || (bare.is_empty() && default.is_empty() && name == "vmodule")
        {
            continue;
        }
        let spec = flags(&descriptors())
            .into_iter()
            .find(|spec| spec.name == name)
            .unwrap();
        if bare.is_empty() && matches!(spec.kind, Kind::NamedCert | Kind::Map | Kind::Gates) {
            continue;
        }
        let joined = format!("--{name}={bare}");
        let parsed = values(&[&joined]).unwrap_or_else(|why| panic!("{joined}: {why}"));
        assert_eq!(parsed.show(name), default, "{joined}");
        assert!(parsed.given(name), "{joined}");
    }
}

#[test]
fn words_are_read_as_pflag_reads_them() {
    for (words, name, shown) in [
        (&["--kube-api-qps=50"][..], "kube-api-qps", "50"),
        (&["--kube-api-qps", "50.5"], "kube-api-qps", "50.5"),
        (&["--kube_api_qps", "7"], "kube-api-qps", "7"),
        (&["--kube-api-qps=-1"], "kube-api-qps", "-1"),
        (&["--kube-api-burst=0x10"], "kube-api-burst", "16"),
        (&["--kube-api-burst=010"], "kube-api-burst", "8"),
        (&["--kube-api-burst=1_000"], "kube-api-burst", "1000"),
        (&["--profiling"], "profiling", "true"),
        (&["--profiling=false"], "profiling", "false"),
        (&["--profiling=F"], "profiling", "false"),
        (&["--profiling=0", "--profiling"], "profiling", "true"),
        (
            &["--min-resync-period=1h30m"],
            "min-resync-period",
            "1h30m0s",
        ),
        (
            &["--min-resync-period", "90s"],
            "min-resync-period",
            "1m30s",
        ),
        (&["--min-resync-period=1.5s"], "min-resync-period", "1.5s"),
        (&["--min-resync-period=250ms"], "min-resync-period", "250ms"),
        (
            &["--min-resync-period=1500us"],
            "min-resync-period",
            "1.5ms",
        ),
        (&["--min-resync-period=0"], "min-resync-period", "0s"),
        (&["--min-resync-period=-1s"], "min-resync-period", "-1s"),
        (&["--controllers=*,-foo"], "controllers", "[*,-foo]"),
        (
            &["--controllers=a", "--controllers=b,c"],
            "controllers",
            "[a,b,c]",
        ),
        (&["--controllers=\"a,b\",c"], "controllers", "[a,b,c]"),
        (
            &["--authorization-always-allow-paths="],
            "authorization-always-allow-paths",
            "[]",
        ),
        (
            &["--feature-gates=A=true,kube:B=false"],
            "feature-gates",
            "A=true,kube:B=false",
        ),
        (
            &["--feature-gates=A=true", "--feature-gates=A=false"],
            "feature-gates",
            "A=false",
        ),
        (&["--bind-address=::1"], "bind-address", "::1"),
        (&["-v=4"], "v", "4"),
        (&["-v4"], "v", "4"),
        (&["-v", "4"], "v", "4"),
        (&["--v=2"], "v", "2"),
        (
            &["--vmodule=queue=4,watch*=6"],
            "vmodule",
            "queue=4,watch*=6",
        ),
        (
            &["--tls-sni-cert-key=a.crt,a.key:*.x.y,z"],
            "tls-sni-cert-key",
            "[a.crt,a.key:*.x.y,z]",
        ),
        (
            &["--tls-curve-preferences=29,23"],
            "tls-curve-preferences",
            "[29,23]",
        ),
        (&["--allow-metric-labels=m,l=v"], "allow-metric-labels", ""),
        (
            &["--log-json-info-buffer-size=2Mi"],
            "log-json-info-buffer-size",
            "2Mi",
        ),
        (&["--kubeconfig", "--odd"], "kubeconfig", "--odd"),
        (&["--version=false"], "version", "false"),
        (
            &["--horizontal-pod-autoscaler-tolerance=1e-1"],
            "horizontal-pod-autoscaler-tolerance",
            "0.1",
        ),
    ] {
        match values(words) {
            Ok(values) => assert_eq!(values.show(name), shown, "{words:?}"),
            // A key without a value, as upstream refuses it.
            Err(why) => assert!(shown.is_empty(), "{words:?}: {why}"),
        }
    }
}

#[test]
fn what_cannot_be_read_is_named_with_what_is_expected() {
    for (words, message) in [
        (&["--foo"][..], "unknown flag: --foo"),
        (
            &["--kube-api-qqs=1"],
            "unknown flag: --kube-api-qqs (did you mean --kube-api-qps?)",
        ),
        (
            &["--concurrent-deployments-sync=1"],
            "unknown flag: --concurrent-deployments-sync (did you mean --concurrent-deployment-syncs?)",
        ),
        (
            &["--range=2"],
            "unknown flag: --range (did you mean --ranges?)",
        ),
        (&["-x"], "unknown flag: -x"),
        (
            &["--concurrent-deployment-syncs=x"],
            "invalid argument \"x\" for \"--concurrent-deployment-syncs\" flag: expected a whole number of 32 bits",
        ),
        (
            &["--kube-api-burst=99999999999"],
            "invalid argument \"99999999999\" for \"--kube-api-burst\" flag: expected a whole number of 32 bits",
        ),
        (
            &["--concurrent-deployment-syncs"],
            "flag needs an argument: --concurrent-deployment-syncs (expected int32)",
        ),
        (
            &["--master"],
            "flag needs an argument: --master (expected string)",
        ),
        (
            &["--min-resync-period=5"],
            "invalid argument \"5\" for \"--min-resync-period\" flag: expected a duration such as 300ms, 15s or 1h30m",
        ),
        (
            &["--min-resync-period=5x"],
            "invalid argument \"5x\" for \"--min-resync-period\" flag: expected a duration such as 300ms, 15s or 1h30m",
        ),
        (
            &["--min-resync-period=9999999h"],
            "invalid argument \"9999999h\" for \"--min-resync-period\" flag: expected a duration such as 300ms, 15s or 1h30m",
        ),
        (
            &["--profiling=maybe"],
            "invalid argument \"maybe\" for \"--profiling\" flag: expected true or false",
        ),
        (
            &["--profiling", "false"],
            "no arguments are taken but flags, got [\"false\"]",
        ),
        (
            &["extra"],
            "no arguments are taken but flags, got [\"extra\"]",
        ),
        (
            &["--", "--foo"],
            "no arguments are taken but flags, got [\"--foo\"]",
        ),
        (
            &["-v=abc"],
            "invalid argument \"abc\" for \"-v, --v\" flag: expected a whole number from 0 up",
        ),
        (
            &["-v=-1"],
            "invalid argument \"-1\" for \"-v, --v\" flag: expected a whole number from 0 up",
        ),
        (
            &["--bind-address=foo"],
            "invalid argument \"foo\" for \"--bind-address\" flag: expected an IP address",
        ),
        (
            &["--kube-api-qps=NaN"],
            "invalid argument \"NaN\" for \"--kube-api-qps\" flag: expected a number",
        ),
        (
            &["--allow-metric-labels=foo"],
            "invalid argument \"foo\" for \"--allow-metric-labels\" flag: expected key=value, separated by commas",
        ),
        (
            &["--vmodule=foo"],
            "invalid argument \"foo\" for \"--vmodule\" flag: expected pattern=N, separated by commas",
        ),
        (
            &["--tls-sni-cert-key=a"],
            "invalid argument \"a\" for \"--tls-sni-cert-key\" flag: expected paths of a certificate and its key, separated by a comma",
        ),
        (
            &["--tls-curve-preferences=a"],
            "invalid argument \"a\" for \"--tls-curve-preferences\" flag: expected whole numbers separated by commas",
        ),
        (
            &["--log-json-info-buffer-size=2Xi"],
            "invalid argument \"2Xi\" for \"--log-json-info-buffer-size\" flag: expected a quantity of bytes such as 512, 1K or 2Mi",
        ),
        (
            &["--version=v1"],
            "invalid argument \"v1\" for \"--version\" flag: expected true, false or raw",
        ),
        (
            &["--feature-gates=AllAlpha"],
            "invalid argument \"AllAlpha\" for \"--feature-gates\" flag: expected key=true|false, separated by commas",
        ),
    ] {
        let why = match parse(flags(&descriptors()), words.iter().copied()) {
            Err(why) => why.to_string(),
            Ok(_) => panic!("{words:?} was accepted"),
        };
        assert_eq!(why, message, "{words:?}");
    }
}

#[test]
fn help_shows_every_flag_under_its_heading_and_version_names_us() {
    let print = |word: &str| match parse(flags(&descriptors()), [word]).unwrap() {
        Parsed::Print(text) => text,
        Parsed::Run(_) => panic!("{word} runs"),
    };
    let help = print("--help");
    assert_eq!(help, print("-h"));
    for spec in flags(&descriptors()) {
        // Deprecated ones are accepted, and hidden.
        let shown = !["allow-untagged-cloud", "node-sync-period"].contains(&spec.name);
        assert_eq!(
            help.contains(&format!("--{} ", spec.name))
                || help.contains(&format!("--{}\n", spec.name)),
            shown,
            "{}",
            spec.name
        );
        assert!(
            help.contains(&format!("\n{} flags:\n", spec.section)),
            "{}",
            spec.section
        );
    }
    assert!(print("--version").starts_with("Manifold v0."));
    assert!(print("--version=raw").contains("Minor:\"36\""));
}

#[test]
fn the_use_of_a_deprecated_flag_is_warned_of() {
    assert_eq!(values(&[]).unwrap().deprecations(), [""; 0]);
    let given = values(&["--node_sync_period=10s", "--allow-untagged-cloud"]).unwrap();
    assert_eq!(
        given.deprecations(),
        [
            "Flag --allow-untagged-cloud has been deprecated, This flag is deprecated and will be removed in a future release. A cluster-id will be required on cloud instances.",
            "Flag --node-sync-period has been deprecated, This flag is currently no-op and will be deleted.",
        ]
    );
}

#[test]
fn every_flag_that_a_built_controller_declares_is_upstream_s_and_acts() {
    let descriptors = node_registry::descriptors();
    let upstreams = upstreams();
    let fleet = ours();
    let parsed = |words: &[String]| match parse(flags(&descriptors), words.iter().cloned()).unwrap()
    {
        Parsed::Run(values) => values,
        Parsed::Print(text) => panic!("prints {text}"),
    };
    let untouched = parsed(&[]);
    // Upstream's provider is linked in: what reaches one over the network is ours.
    let provider = {
        use controllers_clouds::flags::{CA_FILE, CERT_FILE, ENDPOINT, KEY_FILE, TIMEOUT};
        [CA_FILE, CERT_FILE, ENDPOINT, KEY_FILE, TIMEOUT]
    };
    for name in untouched.values.keys() {
        assert!(
            upstreams.contains_key(name) || fleet.contains(name) || provider.contains(name),
            "upstream has no --{name}"
        );
    }
    for (name, default) in &upstreams {
        assert_eq!(untouched.show(name), *default, "--{name}");
    }
    for descriptor in &descriptors {
        let Some((flag, _)) = descriptor.workers else {
            continue;
        };
        for name in [flag.to_owned(), flag.replace('-', "_")] {
            let given = parsed(&[format!("--{name}=9")]);
            assert_eq!(given.int(flag), 9, "--{name}");
            let idle: Vec<_> = given.without_effect().collect();
            assert!(idle.is_empty(), "--{name}: {idle:?}");
        }
    }
    assert_eq!(
        parsed(&["--concurrent_rc_syncs=9".to_owned()]).int("concurrent-rc-syncs"),
        9
    );
}

#[test]
fn flags_without_effect_are_reported_when_given_and_only_then() {
    let of = |words: &[&str]| -> Vec<&str> {
        values(words)
            .unwrap()
            .without_effect()
            .map(|(name, _)| name)
            .collect()
    };
    assert_eq!(
        of(&["--leader-elect=true", "--concurrent-deployment-syncs=7"]),
        [""; 0]
    );
    assert_eq!(
        of(&[
            "--concurrent-gc-syncs=2",
            "--cloud-config=x",
            "--kube-api-qps=3"
        ]),
        ["cloud-config", "concurrent-gc-syncs"]
    );
}

#[test]
fn feature_gates_are_checked_against_those_of_1_36() {
    let of = |text: &str| {
        feature_gates(
            values(&[&format!("--feature-gates={text}")])
                .unwrap()
                .map("feature-gates"),
        )
    };
    assert_eq!(
        of("Foo=true").unwrap_err(),
        "unrecognized feature gate: Foo"
    );
    assert_eq!(
        of("AllAlpha=maybe").unwrap_err(),
        "invalid value of AllAlpha=maybe: expected true or false"
    );
    assert_eq!(
        of("DisableNodeKubeProxyVersion=false").unwrap_err(),
        "cannot set feature gate DisableNodeKubeProxyVersion to false, feature is locked to true"
    );
    assert!(
        of("wardle:Foo=true")
            .unwrap_err()
            .starts_with("component not registered: wardle")
    );
    for (given, expected) in [
        (
            "ClusterTrustBundleProjection=true",
            Err(
                "ClusterTrustBundleProjection is enabled, but depends on features that are disabled: [ClusterTrustBundle]",
            ),
        ),
        (
            "ClusterTrustBundleProjection=true,ClusterTrustBundle=true",
            Ok(()),
        ),
        (
            "DRAWorkloadResourceClaims=true",
            Err(
                "DRAWorkloadResourceClaims is enabled, but depends on features that are disabled: [GenericWorkload]",
            ),
        ),
        // One that is on by default is no better off.
        (
            "AtomicFIFO=false",
            Err(
                "StaleControllerConsistencyDaemonSet is enabled, but depends on features that are disabled: [AtomicFIFO]",
            ),
        ),
        ("AllBeta=false", Ok(())),
    ] {
        let found = of(given).map(|_| ());
        assert_eq!(found, expected.map_err(str::to_owned), "{given}");
    }
    for (name, dependencies) in gates::DEPENDENCIES {
        for gate in dependencies.iter().chain([name]) {
            assert!(gates::GATES.iter().any(|known| known.0 == *gate), "{gate}");
        }
    }
    let set = of("kube:AllBeta=false,ComponentFlagz=true").unwrap();
    assert!(gate("ComponentFlagz", &set) && !gate("ComponentStatusz", &set));
    assert!(gate("ComponentStatusz", &BTreeMap::new()));
    assert!(gates::GATES.is_sorted_by_key(|gate| gate.0));
}
