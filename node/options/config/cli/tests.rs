use super::*;

/// Runs a command line; what it prints, its notes, its exit code.
fn run(words: &[&str]) -> (String, Vec<String>, u8) {
    let cli = Cli::try_parse_from(["config"].iter().chain(words)).unwrap();
    let surroundings = Surroundings {
        host_name: "host".to_owned(),
        ..Surroundings::default()
    };
    match act(cli.command, &node_registry::descriptors(), &surroundings) {
        Ok(Printed { out, notes, code }) => (out, notes, code),
        Err(Failure(lines, code)) => (String::new(), lines, code),
    }
}

const KUBEADM: &str = r#"
apiVersion: v1
kind: Pod
metadata:
  name: kube-controller-manager
  namespace: kube-system
spec:
  containers:
  - command:
    - kube-controller-manager
    - --allocate-node-cidrs=true
    - --bind-address=127.0.0.1
    - --cluster-cidr=10.244.0.0/16
    - --controllers=*,bootstrapsigner,tokencleaner
    - --kubeconfig=/etc/kubernetes/controller-manager.conf
    - --leader-elect=true
    - --service-cluster-ip-range=10.96.0.0/12
    - --use-service-account-credentials=true
    image: registry.example.com/kube-controller-manager:v1.36.3
    name: kube-controller-manager
  hostNetwork: true
"#;

const FROM_KUBEADM: &str = "\
apiVersion: kubecontrollermanager.config.k8s.io/v1alpha1
kind: KubeControllerManagerConfiguration
Generic:
  Controllers:
  - '*'
  - bootstrapsigner
  - tokencleaner
  ClientConnection:
    kubeconfig: /etc/kubernetes/controller-manager.conf
  LeaderElection:
    leaderElect: true
KubeCloudShared:
  AllocateNodeCIDRs: true
  ClusterCIDR: 10.244.0.0/16
  UseServiceAccountCredentials: true
NodeIPAMController:
  ServiceCIDR: 10.96.0.0/12
serving:
  bindAddress: 127.0.0.1
";

fn written(dir: &tempfile::TempDir, name: &str, text: &str) -> String {
    let path = dir.path().join(name);
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[test]
fn a_kubeadm_manifest_becomes_a_file_that_is_valid_and_says_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let manifest = written(&dir, "kcm.yaml", KUBEADM);
    let (out, notes, code) = run(&["from-flags", "-f", &manifest]);
    assert_eq!(
        (out.as_str(), notes.len(), code),
        (FROM_KUBEADM, 0, 0),
        "{notes:?}"
    );
    let file = written(&dir, "m.yaml", &out);
    let (out, notes, code) = run(&["validate", &file]);
    assert_eq!(
        (out, code),
        (format!("{file}: valid, fields given: 8\n"), 0),
        "{notes:?}"
    );
    assert_eq!(run(&["diff", &manifest, &file]), (String::new(), vec![], 0));
    // The manifest itself can be checked, too.
    assert_eq!(run(&["validate", &manifest]).2, 0);
    let (json, _, _) = run(&["from-flags", "-f", &manifest, "-o", "json"]);
    let json = written(&dir, "m.json", &json);
    assert_eq!(run(&["diff", &json, &file]).2, 0);
}

#[test]
fn flags_are_taken_from_the_command_line_and_from_workloads() {
    let (out, notes, code) = run(&[
        "from-flags",
        "--kube-api-qps=50",
        "-v",
        "4",
        "--master=https://a",
    ]);
    assert_eq!(code, 0, "{notes:?}");
    assert_eq!(
        out,
        "apiVersion: kubecontrollermanager.config.k8s.io/v1alpha1\nkind: KubeControllerManagerConfiguration\n\
         Generic:\n  ClientConnection:\n    qps: 50\nlogging:\n  verbosity: 4\nclient:\n  master: https://a\n"
    );
    assert_eq!(
        run(&[
            "from-flags",
            "--",
            "--kube-api-qps=50",
            "-v",
            "4",
            "--master=https://a"
        ])
        .0,
        out
    );
    let dir = tempfile::tempdir().unwrap();
    let stateful_set = written(
        &dir,
        "set.yaml",
        "kind: StatefulSet\nspec:\n  template:\n    spec:\n      containers:\n      - name: other\n        image: x\n      - name: manifold\n        \
         args: [--peer-advertise-address=$(POD_IP), --fleet-name, $(NAME), --replica-name, $(POD_NAME), --cluster-name=$$(x)$y, '--ranges=64']\n        \
         env: [{name: NAME, value: blue}, {name: POD_IP, valueFrom: {}}]\n        command: [/usr/local/bin/manifold]\n",
    );
    let (out, notes, code) = run(&["from-flags", "-f", &stateful_set]);
    assert_eq!(code, 0, "{notes:?}");
    assert_eq!(
        notes,
        [
            "--peer-advertise-address=$(POD_IP) is left out: the kubelet knows $(POD_IP) of each pod, so it stays on the command line",
            "--replica-name $(POD_NAME) is left out: the kubelet knows $(POD_NAME) of each pod, so it stays on the command line",
        ]
    );
    for line in ["name: blue", "ranges: 64", "ClusterName: $(x)$y"] {
        assert!(out.contains(line), "{line}: {out}");
    }
}

#[test]
fn what_has_no_field_or_no_effect_is_said() {
    let (out, notes, code) = run(&[
        "from-flags",
        "--leader-migration-config=/x",
        "--config=/y",
        "--contention-profiling",
    ]);
    assert_eq!(code, 0);
    assert_eq!(
        notes,
        [
            "--leader-migration-config stays on the command line: there is no one leader to migrate",
            "--config stays on the command line: it names the file",
            "--contention-profiling has no effect: there is no profiler inside",
            "--leader-migration-config has no effect: there is no one leader to migrate",
        ]
    );
    assert!(
        out.ends_with("Generic:\n  Debugging:\n    enableContentionProfiling: true\n"),
        "{out}"
    );
}

#[test]
fn all_fields_are_a_file_that_differs_in_nothing_from_the_defaults() {
    let (out, _, _) = run(&["from-flags", "--all", "--ranges=256"]);
    let dir = tempfile::tempdir().unwrap();
    let file = written(&dir, "all.yaml", &out);
    println!("{} bytes, {} lines", out.len(), out.lines().count());
    assert!(out.len() * 10 < BYTES_MAX, "the bound leaves room");
    assert_eq!(run(&["diff", &file]), (String::new(), vec![], 0));
    let (_, notes, code) = run(&["validate", &file]);
    assert_eq!((notes, code), (vec![], 0));
}

#[test]
fn differences_are_shown_with_what_a_change_needs() {
    let head = "apiVersion: kubecontrollermanager.config.k8s.io/v1alpha1\nkind: KubeControllerManagerConfiguration\n";
    let dir = tempfile::tempdir().unwrap();
    let from = written(
        &dir,
        "a",
        &format!("{head}logging: {{verbosity: 2}}\nGeneric: {{Controllers: ['*', -ttl]}}\n"),
    );
    let to = written(
        &dir,
        "b",
        &format!(
            "{head}fleet: {{ranges: 64}}\nGeneric: {{Controllers: ['*', -ttl-controller]}}\nNodeIPAMController: {{ServiceCIDR: a, SecondaryServiceCIDR: b}}\n"
        ),
    );
    let (out, _, code) = run(&["diff", &from, &to, "-o", "json"]);
    assert_eq!(code, 1);
    let found: Json = serde_json::from_str(&out).unwrap();
    assert_eq!(
        found["differences"],
        json!([
            {"field": "NodeIPAMController.ServiceCIDR", "from": "", "to": "a", "restart": true},
            {"field": "NodeIPAMController.SecondaryServiceCIDR", "from": "", "to": "b", "restart": true},
            {"field": "fleet.ranges", "from": 256, "to": 64, "restart": true},
            {"field": "logging.verbosity", "from": 2, "to": 0, "restart": false},
        ])
    );
    let (out, _, _) = run(&["diff", &from]);
    let rows: Vec<Vec<&str>> = out
        .lines()
        .map(|line| {
            line.split("   ")
                .map(str::trim)
                .filter(|cell| !cell.is_empty())
                .collect()
        })
        .collect();
    assert_eq!(rows[0], ["FIELD", from.as_str(), "default", "TAKES EFFECT"]);
    assert_eq!(
        rows[1],
        [
            "Generic.Controllers",
            "[\"*\",\"-ttl-controller\"]",
            "[\"*\"]",
            "after a restart"
        ]
    );
    assert_eq!(rows[2], ["logging.verbosity", "2", "0", "at once"]);
    // A flag without a field counts, too.
    let pod = |flags: &str| {
        format!("kind: Pod\nspec: {{containers: [{{name: manifold, args: [{flags}]}}]}}\n")
    };
    let (one, other) = (
        written(&dir, "c", &pod("")),
        written(&dir, "d", &pod("--leader-migration-config=x")),
    );
    assert_eq!(run(&["diff", &one, &other]).2, 1);
}

#[test]
fn what_configz_answers_is_compared_and_made_a_file() {
    let specs = args::flags(&node_registry::descriptors());
    let Ok(Parsed::Run(values)) = args::parse(specs, ["--ranges=64", "--controllers=*,-ttl"])
    else {
        panic!("nothing is printed");
    };
    let surroundings = Surroundings {
        host_name: "host".to_owned(),
        ..Surroundings::default()
    };
    let options = Options::new(values, &node_registry::descriptors(), &surroundings).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let configz = written(&dir, "configz.json", &options.configz().to_string());
    let (out, notes, code) = run(&["from-flags", "-f", &configz]);
    assert_eq!((notes, code), (vec![], 0));
    let file = written(&dir, "m.yaml", &out);
    assert_eq!(run(&["diff", &configz, &file]), (String::new(), vec![], 0));
    let (out, _, code) = run(&["diff", &configz]);
    assert_eq!((out.lines().count(), code), (3, 1), "{out}");
}

#[test]
fn what_is_wrong_is_said_with_an_exit_code() {
    let dir = tempfile::tempdir().unwrap();
    let head = "apiVersion: kubecontrollermanager.config.k8s.io/v1alpha1\nkind: KubeControllerManagerConfiguration\n";
    let unknown = written(
        &dir,
        "unknown.yaml",
        &format!("{head}fleet:\n  rangs: 1\n  lease: 2\n"),
    );
    let unfit = written(
        &dir,
        "unfit.yaml",
        &format!("{head}fleet:\n  ranges: 100\nSAController: {{RootCAFile: /none}}\n"),
    );
    let shell = written(
        &dir,
        "shell.yaml",
        "kind: Pod\nspec: {containers: [{name: manifold, command: [/bin/sh, -c, x]}]}\n",
    );
    let two = written(
        &dir,
        "two.yaml",
        "kind: Pod\nspec: {containers: [{name: a}, {name: b}]}\n",
    );
    let bad = written(
        &dir,
        "bad.yaml",
        "kind: Pod\nspec: {containers: [{name: a, args: [--rangs=1]}]}\n",
    );
    let fine = written(&dir, "fine.yaml", head);
    let long = written(&dir, "long.yaml", &"#".repeat(BYTES_MAX + 1));
    let absent = dir.path().join("absent.yaml").display().to_string();
    for (words, wanted, code) in [
        (
            &["validate", &unknown][..],
            vec![
                format!("{unknown}:4: fleet.rangs: there is no such field (did you mean ranges?)"),
                format!("{unknown}:5: fleet.lease: there is no such field"),
            ],
            1,
        ),
        (
            &["validate", &unfit],
            vec![format!(
                "{unfit}:4: fleet.ranges: --ranges must be a power of two from 1 to 4096, but is 100"
            )],
            1,
        ),
        (
            &["validate", "--files", &unfit],
            vec![format!(
                "{unfit}:5: SAController.RootCAFile: --root-ca-file: can't read /none: No such file or directory (os error 2)"
            )],
            1,
        ),
        (
            &["validate", &fine, "--ranges=100"],
            vec!["--ranges must be a power of two".to_owned()],
            1,
        ),
        (
            &["validate", &fine, "--rangs=100"],
            vec!["unknown flag: --rangs (did you mean --ranges?)".to_owned()],
            1,
        ),
        (&["validate", &fine, "--help"], vec![], 0),
        (
            &["validate", &absent],
            vec![format!("can't read {absent}: No such file")],
            2,
        ),
        (
            &["validate", &long],
            vec![format!("{long}: is longer than {BYTES_MAX} bytes")],
            1,
        ),
        (
            &["validate", &two, "--v=1"],
            vec![format!(
                "{two}: none of its 2 containers is named or runs kube-controller-manager or manifold"
            )],
            1,
        ),
        (
            &["validate", &bad],
            vec![format!(
                "{bad}: unknown flag: --rangs (did you mean --ranges?)"
            )],
            1,
        ),
        (&["from-flags"], vec!["give flags, as in".to_owned()], 2),
        (
            &["from-flags", "--ranges=many"],
            vec!["invalid argument \"many\" for \"--ranges\" flag".to_owned()],
            1,
        ),
        (
            &["from-flags", "--version"],
            vec!["--help and --version print and end".to_owned()],
            1,
        ),
        (
            &["from-flags", "-f", &shell],
            vec![format!(
                "{shell}: its container runs /bin/sh: give the flags themselves"
            )],
            1,
        ),
        (
            &["diff", &unknown, &fine],
            vec![format!("{unknown}:4:"), format!("{unknown}:5:")],
            2,
        ),
        (&["diff", &fine, &absent], vec!["can't read".to_owned()], 2),
    ] {
        if code == 0 {
            assert!(Cli::try_parse_from(["config"].iter().chain(words)).is_err());
            continue;
        }
        let (out, lines, found) = run(words);
        assert_eq!((out.as_str(), found), ("", code), "{words:?}: {lines:?}");
        for wanted in &wanted {
            assert!(
                lines.iter().any(|line| line.starts_with(wanted.as_str())),
                "{words:?}: {lines:?}"
            );
        }
    }
}

#[test]
fn flags_beside_a_file_go_before_it() {
    let dir = tempfile::tempdir().unwrap();
    let head = "apiVersion: kubecontrollermanager.config.k8s.io/v1alpha1\nkind: KubeControllerManagerConfiguration\n";
    let file = written(&dir, "m.yaml", &format!("{head}fleet: {{ranges: 100}}\n"));
    assert_eq!(run(&["validate", &file]).2, 1);
    let (_, notes, code) = run(&["validate", &file, "--ranges=64"]);
    assert_eq!(
        (notes, code),
        (
            vec!["these flags go before their fields: --ranges".to_owned()],
            0
        )
    );
}
