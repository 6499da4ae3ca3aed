//! Every feature gate of 1.36 is accounted for: it can't be set, nobody in kube-controller-manager reads it,
//! it acts here too, or it is in a table with the reason why it changes nothing. Who reads a gate is found in
//! the source of the pinned version.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use node_options::args;

/// What becomes of a gate that kube-controller-manager reads.
#[derive(Clone, Copy, Debug)]
enum Account {
    /// A controller acts on it.
    Acts,
    /// The node itself acts on it.
    Node,
    /// It changes nothing here, for this reason.
    Without(&'static str),
}
use Account::{Acts, Node, Without};

const HELD: &str =
    "the fleet holds the Lease as one, without candidates, and always releases it at the end";
const MARKS: &str = "always so: a key waits until the cache has seen its own writes";
const INFORMERS: &str = "inner workings of upstream's informers";
const CLIENTS: &str = "inner workings of upstream's client: requests are protobuf or JSON, and credentials are read \
                       again when they change";
const PLUGINS: &str =
    "of volume plugins, which upstream's program contains and its controllers do not ask";
const HANDLERS: &str =
    "of the API server's own request handlers, which a controller manager does not use";

/// Every gate that can be set and is read by code which runs in kube-controller-manager 1.36.3.
#[rustfmt::skip]
const READ: &[(&str, Account)] = &[
    ("APIServerIdentity", Acts),
    ("APIServingWithRoutine", Without(HANDLERS)),
    ("AllowParsingUserUIDFromCertAuth", Node),
    ("AtomicFIFO", Without(INFORMERS)),
    ("CBORServingAndStorage", Without("/flagz and /statusz are not offered in CBOR")),
    ("ClientsAllowCARotation", Without(CLIENTS)),
    ("ClientsAllowCBOR", Without(CLIENTS)),
    ("ClientsAllowTLSCacheGC", Without(CLIENTS)),
    ("ClientsPreferCBOR", Without(CLIENTS)),
    ("CloudControllerManagerWatchBasedRoutesReconciliation", Without("upstream's program never runs its cloud controllers")),
    ("ClusterTrustBundle", Acts),
    ("ComponentFlagz", Node),
    ("ComponentStatusz", Node),
    ("ConstrainedImpersonation", Without(HANDLERS)),
    ("ContextualLogging", Without("log lines always carry controller and key")),
    ("ControllerManagerReleaseLeaderElectionLockOnExit", Without(HELD)),
    ("CoordinatedLeaderElection", Without(HELD)),
    ("DRADeviceTaintRules", Acts),
    ("DRADeviceTaints", Acts),
    ("DRAExtendedResource", Acts),
    ("DRAPrioritizedList", Acts),
    ("DRAResourcePoolStatus", Acts),
    ("DRAWorkloadResourceClaims", Acts),
    ("DeploymentReplicaSetTerminatingReplicas", Acts),
    ("GenericWorkload", Acts),
    ("HPAConfigurableTolerance", Acts),
    ("HPAScaleToZero", Acts),
    ("InOrderInformersBatchProcess", Without(INFORMERS)),
    ("InformerResourceVersion", Acts),
    ("LocalStorageCapacityIsolationFSQuotaMonitoring", Without(PLUGINS)),
    ("MaxUnavailableStatefulSet", Acts),
    ("MutableSchedulingDirectivesForSuspendedJobs", Acts),
    ("NativeHistograms", Without("histograms have the classic form alone")),
    ("OpenAPIEnums", Without(HANDLERS)),
    ("PersistentVolumeClaimUnusedSinceTime", Acts),
    ("PodCertificateRequest", Acts),
    ("PodDeletionCost", Acts),
    ("PodLevelResources", Acts),
    ("RemoteRequestHeaderUID", Node),
    ("SELinuxMount", Without("decides for kubelets and volumes of any access mode; what is warned of is the same")),
    ("StaleControllerConsistencyDaemonSet", Without(MARKS)),
    ("StaleControllerConsistencyJob", Without(MARKS)),
    ("StaleControllerConsistencyReplicaSet", Without(MARKS)),
    ("StaleControllerConsistencyStatefulSet", Without(MARKS)),
    ("StatefulSetSemanticRevisionComparison", Acts),
    ("StorageVersionAPI", Acts),
    ("StorageVersionHash", Without(HANDLERS)),
    ("StorageVersionMigrator", Acts),
    ("TaintTolerationComparisonOperators", Acts),
    ("UnauthenticatedHTTP2DOSMitigation", Without("an unknown client is bounded by the port's own limits of connections, streams and time")),
    ("UnlockWhileProcessingFIFO", Without(INFORMERS)),
    ("WatchListClient", Without("lists are streamed where the API server can, and fetched in pages where it can't")),
    ("WorkloadWithJob", Acts),
];

/// Packages that kube-controller-manager is linked with and does not run: the beginnings of their import
/// paths, and what they are.
const NOT_RUN: &[(&str, &str)] = &[
    (
        "k8s.io/apiextensions-apiserver/",
        "the server of custom resources",
    ),
    ("k8s.io/apiserver/pkg/admission", "admission"),
    (
        "k8s.io/apiserver/pkg/apis/",
        "the API server's configuration",
    ),
    (
        "k8s.io/apiserver/pkg/endpoints/discovery",
        "the API server's discovery",
    ),
    (
        "k8s.io/apiserver/pkg/endpoints/handlers",
        "the API server's handlers",
    ),
    ("k8s.io/apiserver/pkg/features", "definitions of gates"),
    ("k8s.io/apiserver/pkg/registry", "the API server's storage"),
    (
        "k8s.io/apiserver/pkg/server/options/encryptionconfig",
        "the API server's storage",
    ),
    ("k8s.io/apiserver/pkg/storage", "the API server's storage"),
    (
        "k8s.io/apiserver/pkg/util/flowcontrol",
        "priority and fairness",
    ),
    (
        "k8s.io/apiserver/plugin/",
        "authenticators and authorizers of the API server",
    ),
    (
        "k8s.io/component-helpers/nodedeclaredfeatures",
        "what kubelets declare",
    ),
    ("k8s.io/kube-aggregator/", "the aggregator"),
    (
        "k8s.io/kubernetes/pkg/api/",
        "the API server's helpers of API types",
    ),
    (
        "k8s.io/kubernetes/pkg/apis/",
        "defaults and validation of API types",
    ),
    ("k8s.io/kubernetes/pkg/controlplane", "the API server"),
    ("k8s.io/kubernetes/pkg/credentialprovider", "of kubelets"),
    ("k8s.io/kubernetes/pkg/features", "definitions of gates"),
    ("k8s.io/kubernetes/pkg/kubeapiserver", "the API server"),
    ("k8s.io/kubernetes/pkg/kubelet", "of kubelets"),
    (
        "k8s.io/kubernetes/pkg/registry/",
        "the API server's storage",
    ),
    ("k8s.io/kubernetes/pkg/scheduler", "the scheduler"),
    ("k8s.io/kubernetes/pkg/volume", "volume plugins"),
    ("k8s.io/kubernetes/plugin/", "admission and authorization"),
];

/// Gates of [`READ`] that the scan does not find in code that runs: why they stand there.
const BESIDE: &[(&str, &str)] = &[
    (
        "CloudControllerManagerWatchBasedRoutesReconciliation",
        "read by a cloud-controller-manager",
    ),
    (
        "LocalStorageCapacityIsolationFSQuotaMonitoring",
        "read in volume plugins",
    ),
    (
        "SELinuxMount",
        "read in helpers that selinux-warning-controller calls",
    ),
];

/// The packages that kube-controller-manager is made of, with their folders.
fn packages() -> Result<Vec<(String, PathBuf)>> {
    let output = Command::new("go")
        .current_dir(harness::workspace_root().join("tests/controlplane"))
        .env("GOTOOLCHAIN", "local")
        .env("GOWORK", "off")
        .args(["list", "-mod=readonly", "-deps", "-f"])
        .arg("{{if not .Standard}}{{.ImportPath}} {{.Dir}}{{end}}")
        .arg("k8s.io/kubernetes/cmd/kube-controller-manager")
        .output()
        .context("go list")?;
    ensure!(
        output.status.success(),
        "go list: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let lines = String::from_utf8(output.stdout)?;
    let packages = lines.lines().filter_map(|line| line.split_once(' '));
    Ok(packages
        .map(|(package, folder)| (package.to_owned(), PathBuf::from(folder)))
        .collect())
}

/// The gates that a source file names: as `features.Name` of a package or alias that ends so, or in
/// `Enabled(Name)` beside the definitions.
fn named<'a>(source: &str, gates: &BTreeSet<&'a str>) -> BTreeSet<&'a str> {
    let is_of_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut found = BTreeSet::new();
    let mut before = ("", "");
    for word in source.split_inclusive(|c: char| !is_of_word(c)) {
        let end = word.find(|c| !is_of_word(c)).unwrap_or(word.len());
        let (name, mark) = word.split_at(end);
        if let Some(gate) = gates.get(name) {
            let (qualifier, joint) = before;
            let lower = qualifier.to_ascii_lowercase();
            let of_features = ["feature", "features", "featuregate", "featuregates"]
                .iter()
                .any(|ending| lower.ends_with(ending));
            if (joint == "." && of_features) || (joint == "(" && qualifier == "Enabled") {
                found.insert(*gate);
            }
        }
        before = (name, mark);
    }
    found
}

/// Gate → the packages that read it.
fn readers<'a>(gates: &BTreeSet<&'a str>) -> Result<BTreeMap<&'a str, BTreeSet<String>>> {
    let mut readers: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for (package, folder) in packages()? {
        for file in sources(&folder)? {
            let source = std::fs::read(&file).with_context(|| file.display().to_string())?;
            for gate in named(&String::from_utf8_lossy(&source), gates) {
                readers.entry(gate).or_default().insert(package.clone());
            }
        }
    }
    Ok(readers)
}

fn sources(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if name.ends_with(".go") && !name.ends_with("_test.go") {
            files.push(path);
        }
    }
    Ok(files)
}

#[test]
fn every_gate_of_upstream_is_accounted_for() {
    let descriptors = node_registry::descriptors();
    let asked: BTreeMap<&str, bool> = descriptors
        .iter()
        .flat_map(|descriptor| descriptor.gates.iter().copied())
        .collect();
    let none = BTreeMap::new();
    let defaults: BTreeMap<&str, bool> = args::gate_states(&none)
        .map(|(name, _, on)| (name, on))
        .collect();
    let fixed: BTreeSet<&str> = args::fixed_gates().collect();
    let gates: BTreeSet<&str> = defaults.keys().copied().collect();
    let readers = readers(&gates).expect("upstream's source");
    let mut wrong = String::new();
    let table: BTreeMap<&str, Account> = READ.iter().copied().collect();
    assert!(READ.is_sorted_by_key(|(name, _)| *name));
    let (mut unread, mut not_run) = (0, 0);
    for gate in gates.difference(&fixed) {
        let places = readers.get(gate);
        let runs: Vec<&String> = (places.into_iter().flatten())
            .filter(|place| {
                !NOT_RUN
                    .iter()
                    .any(|(beginning, _)| place.starts_with(beginning))
            })
            .collect();
        match (table.get(gate), runs.is_empty()) {
            (None, true) if places.is_none() => unread += 1,
            (None, true) => not_run += 1,
            (None, false) => writeln!(
                wrong,
                "{gate} is read by {runs:?}, and is not accounted for"
            )
            .unwrap(),
            (Some(_), false) => {}
            (Some(_), true) => {
                if !BESIDE.iter().any(|(name, _)| name == gate) {
                    writeln!(wrong, "{gate} is read by no code that runs: {places:?}").unwrap();
                }
            }
        }
    }
    let mut counts = [0; 3];
    for (name, account) in READ {
        let acts = asked.contains_key(name);
        let right = match account {
            Acts => acts,
            Node | Without(_) => !acts,
        };
        counts[match account {
            Acts => 0,
            Node => 1,
            Without(_) => 2,
        }] += 1;
        if !right || fixed.contains(name) || !gates.contains(name) {
            writeln!(
                wrong,
                "{name} is {account:?}; a controller asks for it: {acts}"
            )
            .unwrap();
        }
    }
    for (name, default) in &asked {
        if defaults.get(name) != Some(default) {
            writeln!(wrong, "the default of {name} is not {default}").unwrap();
        }
        if !table.contains_key(name) && !fixed.contains(name) {
            writeln!(
                wrong,
                "{name} is asked for, and upstream's manager does not read it"
            )
            .unwrap();
        }
    }
    println!(
        "gates: {} of 1.36.3: {} can't be set, {unread} are read by nothing that upstream's manager contains, {not_run} \
         only by parts of it that don't run; of the {} others controllers act on {}, the node on {}, and {} change \
         nothing, for a reason",
        gates.len(),
        fixed.len(),
        READ.len(),
        counts[0],
        counts[1],
        counts[2],
    );
    assert!(wrong.is_empty(), "{wrong}");
    // The whole of the source was read.
    assert!(
        readers.len() > 150,
        "only {} gates were found",
        readers.len()
    );
}

/// The page of the gates that change nothing.
fn page() -> String {
    let mut page = String::from(
        "# Feature gates\n\n`--feature-gates` takes every gate of kube-controller-manager 1.36, with its stage, default \
         and dependencies; `/metrics` shows them as `kubernetes_feature_enabled`. What a gate switches in \
         kube-controller-manager it switches here, but for these, which are accepted and change nothing:\n\n\
         | gate | because |\n|---|---|\n",
    );
    for (name, account) in READ {
        if let Without(why) = account {
            writeln!(page, "| {name} | {why} |").unwrap();
        }
    }
    page.push_str(
        "\nAll other gates are fixed, or are read by other components only. \
         `cargo test -p tests -- gates::` holds this page and the source of the pinned version together.\n",
    );
    page
}

#[test]
fn the_generated_page_of_gates_is_fresh() {
    let path = harness::workspace_root().join("docs/feature-gates.md");
    let wanted = page();
    if std::env::var_os("UPDATE_GENERATED").is_some() {
        std::fs::write(&path, &wanted).expect("written");
    }
    assert!(
        std::fs::read_to_string(&path).is_ok_and(|found| found == wanted),
        "{} is stale: UPDATE_GENERATED=1 cargo test -p tests generated",
        path.display()
    );
}
