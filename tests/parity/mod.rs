//! The same deeds under upstream's manager and under Manifold, and what is left compared.
//!
//! A scenario is data (`scenarios/*.yaml`): objects are made and changed, pods are run and failed,
//! facts are awaited. It runs in a namespace of its own, once on a control plane with
//! kube-controller-manager and once on one with three replicas of Manifold, both with the same
//! controllers. At each `snapshot` and at the end, when the manager has come to rest, every object of the
//! namespace is read, evened out ([`normal`]: names' random parts, uids, times, versions, addresses)
//! and compared, with the events and with the writes that it took ([`compare`]). A difference fails
//! the suite unless [`expected`] names it with its reason, which must stand in controllers/README.md.
//! Where upstream itself ends in one way or another, ours must be one of them: a scenario that differs is
//! run under upstream again, and counts as the same if that run ends as ours did.
//!
//! `cargo verify` runs the scenarios that are marked `verify: true`; `cargo parity` runs all, or
//! those whose names begin as `MANIFOLD_PARITY` says (a list with commas).

mod api;
mod compare;
mod expected;
mod normal;
mod run;
mod scenario;
mod signed;
mod writes;

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use harness::{Fleet, run_test};

pub(crate) use compare::{Difference, outcomes};
pub(crate) use expected::reason;
pub(crate) use normal::{Normal, text_at};
pub(crate) use run::{Outcome, Side, Snapshot};
pub(crate) use scenario::{Among, Scenario, filled, swaps};
pub(crate) use writes::AUDIT_POLICY;

use crate::support::{all_end_well, beside};

/// What both managers run: no more than the scenarios need, so that both do the same work.
const CONTROLLERS: &str = "deployment-controller,replicaset-controller,replicationcontroller-controller,\
    statefulset-controller,daemonset-controller,disruption-controller,job-controller,cronjob-controller,\
    ttl-after-finished-controller,serviceaccount-controller,root-ca-certificate-publisher-controller";
/// What both run besides where it matters what is cleared up, counted and published.
const MORE: &str = "garbage-collector-controller,namespace-controller,pod-garbage-collector-controller,\
    resourcequota-controller,endpoints-controller,endpointslice-controller,endpointslice-mirroring-controller";
/// Those of claims and volumes, where the manager is exchanged.
const DISKS: &str = "persistentvolume-binder-controller,persistentvolume-attach-detach-controller,\
    persistentvolume-expander-controller,ephemeral-volume-controller,persistentvolume-protection-controller,\
    persistentvolumeclaim-protection-controller";
/// What both run for identities. The cleaners are left out: upstream's work once an hour, once a day, and
/// when they start ([`AT_START`]).
const IDENTITY: &str = "serviceaccount-controller,clusterrole-aggregation-controller,\
    certificatesigningrequest-approving-controller,certificatesigningrequest-signing-controller,\
    serviceaccount-token-controller,bootstrap-signer-controller,token-cleaner-controller,\
    validatingadmissionpolicy-status-controller";
/// What both run where it matters what they find when they start.
const AT_START: &str = "legacy-serviceaccount-token-cleaner-controller,\
    certificatesigningrequest-cleaner-controller,\
    kube-apiserver-serving-clustertrustbundle-publisher-controller";
/// The authority that is published there: the same on both sides, so that its bundle has the same name.
const AUTHORITY: &str = "tests/parity/scenarios/authority.pem";
/// Those of nodes and of Services' ranges, and whom their scenarios need.
const NODES: &str = "node-lifecycle-controller,taint-eviction-controller,node-ipam-controller,ttl-controller,\
    service-cidr-controller,serviceaccount-controller,replicaset-controller";
/// Those of claims and volumes that need no binder.
const STORAGE: &str = "persistentvolumeclaim-protection-controller,persistentvolume-protection-controller,\
    volumeattributesclass-protection-controller,ephemeral-volume-controller,persistentvolume-expander-controller,\
    serviceaccount-controller";
/// Those that bind claims and volumes. The protection controllers are not among them: what is deleted goes at
/// once.
const VOLUMES: &str = "persistentvolume-binder-controller,serviceaccount-controller";
/// The one of claims to devices, and those of PodGroups, which run where gates are on.
const CLAIMS: &str = "resourceclaim-controller,serviceaccount-controller";
const PODGROUPS: &str = "podgroup-protection-controller,job-controller";
/// The one that attaches volumes; steps play binder, attacher and kubelet.
const ATTACH: &str = "persistentvolume-attach-detach-controller,serviceaccount-controller";
/// Those of stored versions; upstream's migrator reads the garbage collector's caches.
const STORED_VERSIONS: &str = "storage-version-migrator-controller,storageversion-garbage-collector-controller,\
    garbage-collector-controller,serviceaccount-controller";
/// Those of devices with taints and of questions about pools; steps play scheduler and drivers.
const DEVICES: &str = "device-taint-eviction-controller,resourcepoolstatusrequest-controller,\
    serviceaccount-controller";
/// The one that warns of SELinux labels.
const LABELS: &str = "selinux-warning-controller,serviceaccount-controller";
/// How often upstream is run again over the scenarios that ended otherwise than ours.
const UPSTREAM_AGAIN: usize = 2;
/// Replicas of Manifold.
pub(crate) const REPLICAS: usize = 3;

/// Flags of both: which controllers, and what these do otherwise than they would.
pub(crate) fn flags(among: Among) -> Vec<String> {
    match among {
        Among::Workloads => vec![format!("--controllers={CONTROLLERS}")],
        Among::Everything => vec![format!("--controllers={CONTROLLERS},{MORE}")],
        Among::Swapped => vec![format!("--controllers={CONTROLLERS},{MORE},{DISKS}")],
        Among::Identity => vec![
            format!("--controllers={IDENTITY}"),
            "--cluster-signing-duration=24h".to_owned(),
        ],
        Among::Nodes => [
            &format!("--controllers={NODES}"),
            "--node-monitor-grace-period=16s",
            "--node-startup-grace-period=16s",
            "--node-monitor-period=1s",
            "--node-eviction-rate=2",
            "--allocate-node-cidrs=true",
            "--cluster-cidr=10.64.0.0/12",
        ]
        .map(str::to_owned)
        .to_vec(),
        Among::AtStart => vec![
            format!("--controllers={AT_START}"),
            "--feature-gates=ClusterTrustBundle=true".to_owned(),
            format!(
                "--root-ca-file={}",
                harness::workspace_root().join(AUTHORITY).display()
            ),
            "--legacy-service-account-token-clean-up-period=1s".to_owned(),
            // Upstream's cleaner of requests reads its cache as soon as it starts, and then after an hour.
            "--controller-start-interval=2s".to_owned(),
        ],
        Among::Storage => vec![format!("--controllers={STORAGE}")],
        Among::Volumes => vec![
            format!("--controllers={VOLUMES}"),
            "--pvclaimbinder-sync-period=1s".to_owned(),
        ],
        Among::Attach => vec![format!("--controllers={ATTACH}")],
        Among::StoredVersions => vec![
            format!("--controllers={STORED_VERSIONS}"),
            "--feature-gates=StorageVersionMigrator=true,StorageVersionAPI=true".to_owned(),
        ],
        Among::Devices => vec![
            format!("--controllers={DEVICES}"),
            "--feature-gates=DRADeviceTaintRules=true,DRAResourcePoolStatus=true".to_owned(),
        ],
        Among::Claims => vec![format!("--controllers={CLAIMS}")],
        Among::PodGroups => vec![
            format!("--controllers={CLAIMS},{PODGROUPS}"),
            "--feature-gates=GenericWorkload=true,DRAWorkloadResourceClaims=true,WorkloadWithJob=true"
                .to_owned(),
        ],
        Among::Labels => vec![format!("--controllers={LABELS}")],
        Among::FewEnded => vec![
            "--controllers=pod-garbage-collector-controller,serviceaccount-controller".to_owned(),
            "--terminated-pod-gc-threshold=2".to_owned(),
        ],
    }
}

/// Flags of kube-controller-manager: the same controllers, no waiting for a Lease, no limit of requests.
pub(crate) fn kcm_flags(among: Among) -> Vec<String> {
    let mut all = flags(among);
    all.extend(
        [
            "--leader-elect=false",
            "--kube-api-qps=5000",
            "--kube-api-burst=5000",
        ]
        .map(str::to_owned),
    );
    all
}

/// A fleet with the same controllers.
pub(crate) async fn fleet(side: &Side, among: Among) -> Result<Fleet> {
    let fleet = side.control_plane.fleet();
    flags(among)
        .into_iter()
        .fold(fleet, |fleet, flag| fleet.arg(flag))
        .build()
        .await
}

/// Further flags of the API server that a group's scenarios are played on: feature gates and API versions
/// beyond those that every control plane of this suite has. Both `--feature-gates` and `--runtime-config` add
/// up when they are repeated. Scenarios that ask for the same flags share a control plane.
pub(crate) fn api_server_flags(among: Among) -> &'static [&'static str] {
    match among {
        Among::Workloads
        | Among::Everything
        | Among::Swapped
        | Among::Identity
        | Among::Nodes
        | Among::AtStart
        | Among::Storage
        | Among::Volumes
        | Among::Attach
        | Among::Claims
        | Among::Labels
        | Among::FewEnded => &[],
        // Apart from the others: with this gate kube-controller-manager ends by a nil pointer where a pod
        // without a group has a claim that is not its own, and other groups' pods stay.
        Among::PodGroups => &[
            "--feature-gates=GenericWorkload=true,DRAWorkloadResourceClaims=true,WorkloadWithJob=true",
            "--runtime-config=scheduling.k8s.io/v1alpha2=true",
        ],
        Among::Devices | Among::StoredVersions => &[
            "--feature-gates=StorageVersionMigrator=true,StorageVersionAPI=true,\
             DRADeviceTaintRules=true,DRAResourcePoolStatus=true",
            "--runtime-config=storagemigration.k8s.io/v1beta1=true,internal.apiserver.k8s.io/v1alpha1=true,\
             resource.k8s.io/v1beta2/devicetaintrules=true,\
             resource.k8s.io/v1alpha3/resourcepoolstatusrequests=true",
        ],
    }
}

/// All scenarios under kube-controller-manager alone.
pub(crate) async fn upstream(scenarios: &[Scenario]) -> Result<Vec<Outcome>> {
    let mut outcomes = Vec::new();
    for (api_server, scenarios) in by_api_server(scenarios) {
        let side = Side::start("upstream", api_server).await?;
        for (among, scenarios) in by_controllers(scenarios) {
            let flags = kcm_flags(among);
            let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
            let plays = side.prepared(scenarios).await;
            let mut kcm = side.control_plane.start_kcm(&flags).await?;
            outcomes.extend(side.run(plays).await);
            kcm.process().kill();
        }
    }
    Ok(outcomes)
}

/// All scenarios but those in which the manager is exchanged.
pub(crate) fn scenarios() -> Result<Vec<Scenario>> {
    scenario::all()
}

/// The scenarios as they are, cut where the flags of the API server change.
pub(crate) fn by_api_server(scenarios: &[Scenario]) -> Vec<(&'static [&'static str], &[Scenario])> {
    scenarios
        .chunk_by(|one, next| api_server_flags(one.among) == api_server_flags(next.among))
        .map(|chunk| (api_server_flags(chunk[0].among), chunk))
        .collect()
}

/// The scenarios as they are, cut where the controllers change.
pub(crate) fn by_controllers(scenarios: &[Scenario]) -> Vec<(Among, &[Scenario])> {
    scenarios
        .chunk_by(|one, next| one.among == next.among)
        .map(|chunk| (chunk[0].among, chunk))
        .collect()
}

/// All scenarios under a fleet.
async fn ours(scenarios: &[Scenario]) -> Result<Vec<Outcome>> {
    let mut outcomes = Vec::new();
    for (api_server, scenarios) in by_api_server(scenarios) {
        let side = Side::start("manifold", api_server).await?;
        for (among, scenarios) in by_controllers(scenarios) {
            let fleet = fleet(&side, among).await?;
            let plays = side.prepared(scenarios).await;
            let mut replicas = fleet.start_all(REPLICAS).await?;
            outcomes.extend(side.run(plays).await);
            all_end_well(&mut replicas).await?;
        }
    }
    Ok(outcomes)
}

/// Prints what differs; an error unless all of it is expected, or excused by what the suite itself did.
pub(crate) fn judge(
    suite: &str,
    scenarios: &[Scenario],
    theirs: &[Outcome],
    ours: &[Outcome],
    excuse: fn(&Difference) -> Option<&'static str>,
) -> Result<BTreeSet<&'static str>> {
    let mut unexplained = Vec::new();
    let mut met = BTreeSet::new();
    let mut explained = 0;
    for ((scenario, theirs), ours) in scenarios.iter().zip(theirs).zip(ours) {
        for note in compare::notes(theirs, ours) {
            println!("{suite}: {}: {note}", scenario.name);
        }
        for difference in compare::outcomes(&scenario.name, theirs, ours) {
            let expectation = expected::reason(&difference).map(|one| one.name);
            met.extend(expectation);
            match expectation.or_else(|| excuse(&difference)) {
                Some(why) => {
                    explained += 1;
                    println!("{suite}: expected ({why}): {difference}");
                }
                None => unexplained.push(difference),
            }
        }
    }
    println!(
        "{suite}: {} scenarios, {} snapshots, {explained} differences explained, {} unexplained",
        scenarios.len(),
        theirs
            .iter()
            .map(|outcome| outcome.snapshots.len())
            .sum::<usize>(),
        unexplained.len()
    );
    let lines: Vec<String> = unexplained.iter().map(Difference::to_string).collect();
    ensure!(
        lines.is_empty(),
        "unexplained differences:\n{}",
        lines.join("\n")
    );
    Ok(met)
}

/// What no expectation names.
fn unexplained(scenario: &Scenario, theirs: &Outcome, ours: &Outcome) -> Vec<Difference> {
    let mut found = compare::outcomes(&scenario.name, theirs, ours);
    found.retain(|difference| expected::reason(difference).is_none());
    found
}

/// Runs upstream again over what ended otherwise than ours, and takes an outcome that is ours for the one
/// before.
async fn other_ways(
    scenarios: &[Scenario],
    theirs: &mut [Outcome],
    ours: &[Outcome],
) -> Result<()> {
    for _ in 0..UPSTREAM_AGAIN {
        let (differing, again): (Vec<usize>, Vec<Scenario>) = scenarios
            .iter()
            .enumerate()
            .filter(|(at, scenario)| !unexplained(scenario, &theirs[*at], &ours[*at]).is_empty())
            .map(|(at, scenario)| (at, scenario.clone()))
            .unzip();
        if differing.is_empty() {
            break;
        }
        for (at, outcome) in differing.into_iter().zip(upstream(&again).await?) {
            let scenario = &scenarios[at];
            if unexplained(scenario, &outcome, &ours[at]).is_empty() {
                for difference in unexplained(scenario, &theirs[at], &ours[at]) {
                    println!(
                        "parity: upstream does either, run again it ended as ours: {difference}"
                    );
                }
                theirs[at] = outcome;
            }
        }
    }
    Ok(())
}

fn check(scenarios: &[Scenario]) -> Result<BTreeSet<&'static str>> {
    let mut met = BTreeSet::new();
    run_test(async {
        // In turn: both at once would take the same processors, and each other's time.
        let mut theirs = upstream(scenarios).await?;
        let ours = ours(scenarios).await?;
        other_ways(scenarios, &mut theirs, &ours).await?;
        met = judge("parity", scenarios, &theirs, &ours, |_| None)?;
        Ok(())
    });
    Ok(met)
}

#[test]
fn a_selection_of_scenarios_ends_as_under_upstream() {
    let _beside = beside();
    let all = scenario::all().expect("the scenarios are well-formed");
    let chosen: Vec<Scenario> = all.into_iter().filter(|scenario| scenario.verify).collect();
    check(&chosen).expect("the comparison");
}

#[test]
#[ignore = "minutes: cargo parity"]
fn all_scenarios_end_as_under_upstream() {
    let _beside = beside();
    let chosen = std::env::var("MANIFOLD_PARITY").unwrap_or_default();
    let all = scenario::all().expect("the scenarios are well-formed");
    let wanted = |scenario: &Scenario| {
        chosen.is_empty()
            || chosen
                .split(',')
                .any(|prefix| scenario.name.starts_with(prefix))
    };
    let some: Vec<Scenario> = all.iter().filter(|one| wanted(one)).cloned().collect();
    assert!(
        !some.is_empty(),
        "MANIFOLD_PARITY={chosen} names no scenario"
    );
    let met = check(&some).expect("the comparison");
    if some.len() == all.len() {
        let stale: Vec<&str> = expected::always_met()
            .filter(|name| !met.contains(name))
            .collect();
        assert!(
            stale.is_empty(),
            "expected, but no longer different: {stale:?}"
        );
    }
}

#[cfg(test)]
mod tests;
