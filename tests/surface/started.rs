//! Which controllers are started, and why the others are not: the log of kube-controller-manager beside that
//! of a replica that was given the same flags.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures::{StreamExt as _, TryStreamExt as _};
use harness::fleet::{Profile, binary};
use harness::process::{Process, Spec};
use harness::programs::Program;
use harness::{ControlPlane, everything, ports, run_test};

use crate::support::{PATIENCE, POLL, beside};

/// What kubeadm writes into the manifest.
const KUBEADM: &str = "*,bootstrapsigner,tokencleaner";
/// What kubeadm adds where the cluster has a network of pods.
const NETWORK: [&str; 3] = [
    "--allocate-node-cidrs=true",
    "--cluster-cidr=10.64.0.0/12",
    "--service-cluster-ip-range=10.96.0.0/16",
];
/// What kubeadm writes where the authority is another's.
const NO_SIGNER: [&str; 2] = [
    "--cluster-signing-cert-file=",
    "--cluster-signing-key-file=",
];
/// The only ones that kube-controller-manager never runs.
const OF_CLOUDS: [&str; 3] = [
    "cloud-node-lifecycle-controller",
    "node-route-controller",
    "service-lb-controller",
];
/// All start within a moment: no further line by then is the end of the list.
const SETTLED: Duration = Duration::from_secs(1);
/// Managers under way at once.
const AT_ONCE: usize = 3;

/// What became of a controller.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Fate {
    Started,
    /// Not selected by `--controllers`.
    Unselected,
    /// One of these gates is off.
    Gated(BTreeSet<String>),
    /// There is no provider of a cloud.
    OfTheCloud,
    /// Another flag is missing; upstream seldom says which.
    LeftOut,
}

type Fates = BTreeMap<String, Fate>;

/// A controller's field of klog's, as in `controller="ttl-controller"`.
fn field<'l>(line: &'l str, name: &str) -> Option<&'l str> {
    let (_, rest) = line.split_once(&format!(" {name}=\""))?;
    rest.split_once('"').map(|(value, _)| value)
}

/// What kube-controller-manager's log says, `-v=1`.
fn theirs(log: &str) -> Fates {
    let mut fates = Fates::new();
    for line in log.lines() {
        let Some(name) = field(line, "controller") else {
            continue;
        };
        let fate = if line.contains("\"Controller starting...\"") {
            Fate::Started
        } else if line.contains("\"Warning: controller is disabled\"") {
            Fate::Unselected
        } else if line.contains("\"Controller is disabled by a feature gate\"") {
            let list = line.split_once("requiredFeatureGates=[");
            let list = list.map_or("", |(_, rest)| rest.trim_end_matches(']'));
            Fate::Gated(
                list.split(',')
                    .map(|gate| gate.trim_matches('"').to_owned())
                    .collect(),
            )
        } else if line.contains("\"Skipping a cloud provider controller\"") {
            Fate::OfTheCloud
        } else if line.contains("\"Warning: skipping controller\"")
            || line.contains("\"Controller is disabled because there is no private key\"")
        {
            Fate::LeftOut
        } else {
            continue;
        };
        // That it is skipped is reported again of each that has reported its own reason.
        if fate != Fate::LeftOut || !fates.contains_key(name) {
            fates.insert(name.to_owned(), fate);
        }
    }
    fates
}

/// What a replica's log says; nothing before it has reported all of it.
fn ours(log: &str) -> Option<Fates> {
    let mut fates = Fates::new();
    for line in log.lines() {
        if line.contains("\"the controllers that run\"") {
            let running = field(line, "controllers")?.split_whitespace();
            fates.extend(running.map(|name| (name.to_owned(), Fate::Started)));
            return Some(fates);
        }
        let Some((_, why)) = line.split_once("\"the controller does not run: ") else {
            continue;
        };
        let fate = if why.contains("--controllers does not") {
            Fate::Unselected
        } else if let Some((_, gate)) = why.split_once("the feature gate ") {
            let gate = gate.split_whitespace().next().unwrap_or_default();
            Fate::Gated(BTreeSet::from([gate.to_owned()]))
        } else if why.contains("--cloud-provider-endpoint") {
            Fate::OfTheCloud
        } else {
            Fate::LeftOut
        };
        fates.insert(field(line, "controller")?.to_owned(), fate);
    }
    None
}

/// Whether both say the same of a controller. Of some, upstream only says that it skips them.
fn agree(theirs: &Fate, ours: &Fate) -> bool {
    match (theirs, ours) {
        (Fate::Gated(needed), Fate::Gated(off)) => off.is_subset(needed),
        (Fate::LeftOut, Fate::Gated(_)) => true,
        (theirs, ours) => theirs == ours,
    }
}

/// The flags of a case.
#[derive(Debug, Clone)]
struct Case {
    name: String,
    /// Nothing where the flags say it.
    controllers: String,
    flags: Vec<&'static str>,
}

impl Case {
    fn new(name: &str, controllers: &str, flags: &[&'static str]) -> Self {
        Self {
            name: name.to_owned(),
            controllers: controllers.to_owned(),
            flags: flags.to_vec(),
        }
    }

    /// What kubeadm writes, with these in place of its own. `number` distinguishes this manager from others:
    /// each has a Lease of its own.
    fn arguments(&self, control_plane: &ControlPlane, number: usize) -> Result<Vec<String>> {
        let file = |path: &Path| path.display().to_string();
        let kubeconfig = file(control_plane.manager_kubeconfig());
        let ca = file(&control_plane.ca_file());
        let mut arguments: Vec<String> = [
            ("bind-address", "127.0.0.1"),
            ("leader-elect", "true"),
            ("kubeconfig", &kubeconfig),
            ("authentication-kubeconfig", &kubeconfig),
            ("authorization-kubeconfig", &kubeconfig),
            ("client-ca-file", &ca),
            (
                "requestheader-client-ca-file",
                &file(&control_plane.dir().file("front-proxy-ca.crt")),
            ),
            ("root-ca-file", &ca),
            (
                "service-account-private-key-file",
                &file(&control_plane.service_account_key_file()),
            ),
            ("cluster-signing-cert-file", &ca),
            (
                "cluster-signing-key-file",
                &file(&control_plane.ca_key_file()),
            ),
            ("use-service-account-credentials", "true"),
            ("cluster-name", "kubernetes"),
        ]
        .map(|(name, value)| format!("--{name}={value}"))
        .into();
        arguments.extend([
            format!("--secure-port={}", ports::free()?),
            format!("--leader-elect-resource-name=start-{number}"),
        ]);
        if !self.controllers.is_empty() {
            arguments.push(format!("--controllers={}", self.controllers));
        }
        arguments.extend(self.flags.iter().map(|flag| (*flag).to_owned()));
        Ok(arguments)
    }
}

/// Starts a program and reads its log until `reported` is content with it, then ends it; the error that ended
/// it where it has ended by itself.
async fn logged<T>(
    control_plane: &ControlPlane,
    program: &Path,
    name: &str,
    arguments: Vec<String>,
    mut reported: impl FnMut(&str) -> Option<T>,
) -> Result<Result<T, String>> {
    let mut process = Process::spawn(&Spec {
        name: name.to_owned(),
        program: program.to_owned(),
        args: arguments,
        env: Vec::new(),
        log: control_plane.dir().file(&format!("{name}.log")),
    })?;
    let began = Instant::now();
    loop {
        let ended = process.exited().is_some();
        let log = std::fs::read_to_string(process.log())?;
        if let Some(said) = reported(&log) {
            process.kill();
            return Ok(Ok(said));
        }
        if ended {
            // Upstream reports its lost Lease behind the reason.
            let reason = log.lines().rev().find(|line| line.contains(" err=\""));
            let last = reason.or_else(|| log.lines().rev().find(|line| !line.is_empty()));
            return Ok(Err(last.unwrap_or_default().to_owned()));
        }
        ensure!(
            began.elapsed() < PATIENCE,
            "{name} does not report what it has started:\n{log}"
        );
        tokio::time::sleep(POLL).await;
    }
}

/// What both say of one case; the error where one does not start.
async fn both(
    control_plane: &ControlPlane,
    manifold: &Path,
    case: &Case,
    number: usize,
) -> Result<(Result<Fates, String>, Result<Fates, String>)> {
    let mut arguments = case.arguments(control_plane, number)?;
    arguments.push("-v=1".to_owned());
    let upstream = control_plane.program(Program::ControllerManager);
    let mut before = (Fates::new(), Instant::now());
    let theirs = logged(
        control_plane,
        &upstream,
        &format!("upstream-{number}"),
        arguments,
        |log| {
            let fates = theirs(log);
            if fates != before.0 {
                before = (fates, Instant::now());
            }
            // Those that are left out come first.
            let any = before.0.values().any(|fate| *fate == Fate::Started);
            (any && before.1.elapsed() >= SETTLED).then(|| before.0.clone())
        },
    )
    .await?;
    let mut arguments = case.arguments(control_plane, number + 1)?;
    arguments.extend([
        format!("--replica-name=start-{number}"),
        "--peer-bind-address=127.0.0.1".to_owned(),
        format!("--peer-port={}", ports::free()?),
    ]);
    let name = format!("replica-{number}");
    let ours = logged(control_plane, manifold, &name, arguments, ours).await?;
    Ok((theirs, ours))
}

/// One line for each controller of which both do not say the same.
fn differences(theirs: &Fates, ours: &Fates) -> Vec<String> {
    let names: BTreeSet<&String> = theirs.keys().chain(ours.keys()).collect();
    names
        .into_iter()
        .filter(|name| match (theirs.get(*name), ours.get(*name)) {
            (Some(theirs), Some(ours)) => !agree(theirs, ours),
            _ => true,
        })
        .map(|name| {
            format!(
                "{name}: theirs {:?}, ours {:?}",
                theirs.get(name),
                ours.get(name)
            )
        })
        .collect()
}

fn count(fates: &Fates, wanted: &Fate) -> usize {
    fates.values().filter(|fate| *fate == wanted).count()
}

/// A control plane that serves what every controller is for.
async fn control_plane() -> Result<ControlPlane> {
    ControlPlane::builder().nodes(0).everything().start().await
}

/// The old names, cut into groups so that no two names are in the same groups: what a group selects shows
/// whose name each is.
fn by_old_names() -> Vec<Case> {
    let descriptors = node_registry::descriptors();
    let names: Vec<&str> = descriptors
        .iter()
        .flat_map(|one| one.aliases.iter().copied())
        .collect();
    let bits = usize::BITS - names.len().leading_zeros();
    (0..bits)
        .map(|bit| {
            // From 1, so that each name is in a group.
            let numbered = (1..).zip(&names);
            let group = numbered.filter(|(number, _)| number & (1_usize << bit) != 0);
            let group: Vec<&str> = group.map(|(_, name)| *name).collect();
            Case::new(&format!("old names, group {bit}"), &group.join(","), &[])
        })
        .collect()
}

fn cases() -> Vec<Case> {
    let mut cases = vec![
        Case::new("kubeadm", KUBEADM, &[]),
        Case::new("kubeadm with a network of pods", KUBEADM, &NETWORK),
        Case::new("kubeadm with another's authority", KUBEADM, &NO_SIGNER),
        Case::new("*", "*", &[]),
        Case::new("everything", "", &everything::FLAGS),
        Case::new(
            "gates off",
            "*",
            &["--feature-gates=AllAlpha=false,AllBeta=false"],
        ),
        Case::new(
            "no files",
            "*",
            &[
                &NO_SIGNER[..],
                &["--service-account-private-key-file=", "--root-ca-file="],
            ]
            .concat(),
        ),
        Case::new(
            "some taken out",
            "*,-deployment,-garbagecollector,-ttl-controller",
            &[],
        ),
        Case::new(
            "no garbage collector",
            "*",
            &["--enable-garbage-collector=false"],
        ),
        Case::new("one", "ttl", &[]),
    ];
    cases.extend(by_old_names());
    cases
}

#[test]
fn a_replica_starts_the_controllers_that_upstream_starts_with_the_same_flags() {
    let _beside = beside();
    run_test(async {
        let control_plane = control_plane().await?;
        let manifold = tokio::task::spawn_blocking(|| binary(Profile::of_this_build())).await??;
        let all = node_registry::descriptors().len();
        let cases = cases();
        let judged = cases.iter().enumerate().map(|(number, case)| {
            let (control_plane, manifold) = (&control_plane, &manifold);
            async move {
                let (theirs, ours) = both(control_plane, manifold, case, 2 * number).await?;
                let said = |fates: Result<Fates, String>| {
                    fates.map_err(|why| anyhow::anyhow!("{}: {why}", case.name))
                };
                let (theirs, ours) = (said(theirs)?, said(ours)?);
                println!(
                    "surface: {}: of {} controllers {} started, {} not selected",
                    case.name,
                    theirs.len(),
                    count(&theirs, &Fate::Started),
                    count(&theirs, &Fate::Unselected),
                );
                ensure!(
                    ours.len() == all,
                    "{}: {} are reported",
                    case.name,
                    ours.len()
                );
                if case.name == "everything" {
                    let left: Vec<&String> = theirs
                        .iter()
                        .filter(|(_, fate)| **fate != Fate::Started)
                        .map(|(name, _)| name)
                        .collect();
                    ensure!(left == OF_CLOUDS, "not all run: {left:?}");
                }
                let differences = differences(&theirs, &ours);
                anyhow::Ok(
                    differences
                        .into_iter()
                        .map(move |one| format!("{}: {one}", case.name)),
                )
            }
        });
        let judged: Vec<_> = futures::stream::iter(judged)
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await?;
        let lines: Vec<String> = judged.into_iter().flatten().collect();
        if !lines.is_empty() {
            bail!("{}", lines.join("\n"));
        }
        Ok(())
    });
}

#[test]
fn a_replica_refuses_the_flags_with_which_upstream_does_not_start() {
    let _beside = beside();
    run_test(async {
        let control_plane = control_plane().await?;
        let manifold = tokio::task::spawn_blocking(|| binary(Profile::of_this_build())).await??;
        let cases = [
            Case::new(
                "no addresses for pods",
                "*",
                &["--allocate-node-cidrs=true"],
            ),
            Case::new(
                "a migrator without a garbage collector",
                "*",
                &[
                    "--feature-gates=StorageVersionMigrator=true",
                    "--enable-garbage-collector=false",
                ],
            ),
            Case::new(
                "tokens are cleaned up at once",
                "*",
                &["--legacy-service-account-token-clean-up-period=0s"],
            ),
            Case::new(
                "volumes are compared all the time",
                "*",
                &["--attach-detach-reconcile-sync-period=1ms"],
            ),
            Case::new("nobody has this name", "*,foo", &[]),
            Case::new(
                "half a signer",
                "*",
                &["--cluster-signing-key-file=/nonexistent"],
            ),
        ];
        for (number, case) in cases.iter().enumerate() {
            let (theirs, ours) = both(&control_plane, &manifold, case, 2 * number).await?;
            let refused = |who: &str, fates: Result<Fates, String>| {
                let started = || format!("{}: {who} starts", case.name);
                fates.err().with_context(started)
            };
            let (theirs, ours) = (refused("upstream", theirs)?, refused("Manifold", ours)?);
            println!("surface: {}: {theirs}", case.name);
            println!("surface: {}: {ours}", case.name);
            ensure!(ours.starts_with("manifold: "), "{}: {ours}", case.name);
        }
        Ok(())
    });
}

#[test]
fn both_logs_are_read() {
    let upstream = concat!(
        "I1 1 controllermanager.go:850] \"Warning: controller is disabled\" controller=\"ttl-controller\"\n",
        "I1 1 a.go:1] \"Controller is disabled by a feature gate\" controller=\"podgroup-protection-controller\" \
         requiredFeatureGates=[\"GenericWorkload\"]\n",
        "I1 1 a.go:1] \"Warning: skipping controller\" controller=\"podgroup-protection-controller\"\n",
        "I1 1 a.go:1] \"Skipping a cloud provider controller\" controller=\"service-lb-controller\"\n",
        "I1 1 a.go:1] \"Warning: skipping controller\" controller=\"node-ipam-controller\"\n",
        "I1 1 a.go:1] \"Controller starting...\" controller=\"job-controller\"\n",
    );
    let replica = concat!(
        "I1 1 run.rs:1] \"the controller does not run: --controllers does not select it\" controller=\"ttl-controller\"\n",
        "I1 1 run.rs:1] \"the controller does not run: the feature gate GenericWorkload is off\" \
         controller=\"podgroup-protection-controller\"\n",
        "I1 1 run.rs:1] \"the controller does not run: there is no --cloud-provider-endpoint\" \
         controller=\"service-lb-controller\"\n",
        "I1 1 run.rs:1] \"the controller does not run: --allocate-node-cidrs is not given\" \
         controller=\"node-ipam-controller\"\n",
    );
    assert_eq!(ours(replica), None, "it has not reported all");
    let replica = format!(
        "{replica}I1 1 run.rs:1] \"the controllers that run\" count=1 controllers=\"job-controller\"\n"
    );
    let (mut theirs, ours) = (theirs(upstream), ours(&replica).unwrap());
    assert_eq!(theirs.len(), 5);
    assert_eq!(differences(&theirs, &ours), Vec::<String>::new());
    theirs.insert("job-controller".to_owned(), Fate::LeftOut);
    theirs.remove("ttl-controller");
    assert_eq!(
        differences(&theirs, &ours),
        [
            "job-controller: theirs Some(LeftOut), ours Some(Started)",
            "ttl-controller: theirs None, ours Some(Unselected)"
        ]
    );
}
