//! The cluster of the demo: a control plane of its own, or one that is there already.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use harness::control_plane::NO_KUBELET;
use harness::fleet::FleetBuilder;
use harness::process::WorkDir;
use harness::{AuditLog, ControlPlane, kubeconfig};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;

use crate::workload::create_fleet_namespace;

/// Pods that fit on one of our fake nodes.
const PODS_PER_NODE: usize = 250;
/// Fewest nodes.
const NODES: usize = 5;
/// An existing API server answers within this, or the demo does not start.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// A dead node is noticed sooner than by default (50 s), which is long to watch. kwok renews a node's Lease
/// every ten seconds.
const NODE_FLAGS: [&str; 2] = [
    "--node-monitor-grace-period=16s",
    "--node-monitor-period=1s",
];
/// Longest lease that is waited out when a Lease seems expired by this machine's clock: upstream's
/// default is 15 s.
const LEASE_LIMIT: SignedDuration = SignedDuration::from_secs(60);
/// Name, namespace and label of the fleet's Leases.
pub(crate) const FLEET: &str = "manifold";
pub(crate) const FLEET_NAMESPACE: &str = harness::fleet::NAMESPACE;
pub(crate) const FLEET_LABEL: &str = "manifold.dev/fleet";
const KCM_LEASE: &str = "kube-controller-manager";
/// How the identity begins under which a fleet holds it.
const FLEET_HOLDS: &str = "manifold:";

/// Where the replicas work.
pub(crate) enum Cluster {
    /// Started for this demo; gone with it.
    Own(Box<ControlPlane>),
    /// Named by the user.
    Existing {
        /// As given.
        kubeconfig: PathBuf,
        /// Our files.
        dir: Arc<WorkDir>,
    },
}

impl Cluster {
    /// A control plane with room for this many pods and half as many again.
    pub(crate) async fn own(pods: usize) -> Result<Self> {
        let nodes = (pods + pods / 2).div_ceil(PODS_PER_NODE).max(NODES);
        let control_plane = ControlPlane::builder()
            .nodes(nodes)
            .pods_per_node(PODS_PER_NODE)
            .kubelets_may_end();
        Ok(Self::Own(Box::new(control_plane.start().await?)))
    }

    /// A cluster that is there already, unless a kube-controller-manager works in it.
    pub(crate) async fn existing(path: &Path) -> Result<Self> {
        let client = kubeconfig::client(path).await?;
        let version = tokio::time::timeout(ANSWER_LIMIT, client.apiserver_version()).await;
        match version {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => bail!(
                "the API server of {} does not answer: {error}",
                path.display()
            ),
            Err(_) => bail!(
                "the API server of {} does not answer within {ANSWER_LIMIT:?}",
                path.display()
            ),
        }
        refuse_beside_kcm(client.clone()).await?;
        refuse_beside_a_fleet(client.clone()).await?;
        create_fleet_namespace(&client).await?;
        Ok(Self::Existing {
            kubeconfig: path.to_owned(),
            dir: Arc::new(WorkDir::new()?),
        })
    }

    pub(crate) fn kubeconfig(&self) -> &Path {
        match self {
            Self::Own(control_plane) => control_plane.admin_kubeconfig(),
            Self::Existing { kubeconfig, .. } => kubeconfig,
        }
    }

    /// Where our files lie.
    pub(crate) fn dir(&self) -> &WorkDir {
        match self {
            Self::Own(control_plane) => control_plane.dir(),
            Self::Existing { dir, .. } => dir,
        }
    }

    pub(crate) async fn client(&self) -> Result<Client> {
        kubeconfig::client(self.kubeconfig()).await
    }

    pub(crate) async fn fleet(&self) -> Result<FleetBuilder> {
        match self {
            Self::Own(control_plane) => Ok(NODE_FLAGS
                .iter()
                .fold(control_plane.fleet(), |fleet, flag| fleet.arg(*flag))),
            Self::Existing { kubeconfig, dir } => {
                let mut fleet = FleetBuilder::on_cluster(kubeconfig, kubeconfig);
                let config = kubeconfig::load(kubeconfig).await?;
                if let Some(roots) = &config.root_cert {
                    let pem: String = roots.iter().map(|der| to_pem(der)).collect();
                    let file = dir.write("root-ca.crt", pem)?;
                    fleet = fleet.arg(format!("--root-ca-file={}", file.display()));
                }
                Ok(fleet)
            }
        }
    }

    /// Ends a node's kubelet, or starts it again. A cluster that is somebody else's keeps its nodes.
    pub(crate) async fn set_kubelet(&self, client: &Client, node: &str, runs: bool) -> Result<()> {
        if let Self::Existing { kubeconfig, .. } = self {
            bail!("the nodes of {} are not the demo's", kubeconfig.display());
        }
        let nodes: Api<Node> = Api::all(client.clone());
        let value = if runs { None } else { Some("none") };
        let label = Patch::Merge(json!({"metadata": {"labels": {NO_KUBELET: value}}}));
        let patched = nodes.patch(node, &PatchParams::default(), &label).await;
        patched.with_context(|| format!("labelling the node {node}"))?;
        Ok(())
    }

    /// The audit log, where it can be read.
    pub(crate) fn audit(&self) -> Option<AuditLog> {
        match self {
            Self::Own(control_plane) => Some(control_plane.audit()),
            Self::Existing { .. } => None,
        }
    }

    /// An error if a part of it has died.
    pub(crate) fn check(&mut self) -> Result<()> {
        match self {
            Self::Own(control_plane) => control_plane.check(),
            Self::Existing { .. } => Ok(()),
        }
    }

    /// Leaves the logs in place, to find out what went wrong.
    pub(crate) fn keep_files(&self) -> Result<()> {
        match self {
            Self::Own(control_plane) => control_plane.dir().keep(),
            Self::Existing { dir, .. } => dir.keep(),
        }
    }
}

/// What the Lease of kube-controller-manager says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Held {
    /// Nobody holds it.
    No,
    /// Renewed within its duration.
    By(String),
    /// By this clock it has run out; the holder's clock may say otherwise.
    Perhaps(String, SignedDuration),
}

/// Reads the Lease against a clock that need not agree with the holder's.
pub(crate) fn held(lease: &Lease, now: Timestamp) -> Held {
    let spec = lease.spec.clone().unwrap_or_default();
    let holder = spec.holder_identity.filter(|holder| !holder.is_empty());
    let (Some(holder), Some(renewed)) = (holder, spec.renew_time) else {
        return Held::No;
    };
    let duration = SignedDuration::from_secs(spec.lease_duration_seconds.unwrap_or(0).into());
    if now.duration_since(renewed.0) <= duration {
        Held::By(holder)
    } else {
        Held::Perhaps(holder, duration)
    }
}

async fn refuse_beside_kcm(client: Client) -> Result<()> {
    let leases: Api<Lease> = Api::namespaced(client, "kube-system");
    let read = || async {
        let lease = leases.get_opt(KCM_LEASE).await;
        lease.context("reading the Lease kube-system/kube-controller-manager")
    };
    let Some(lease) = read().await? else {
        return Ok(());
    };
    let holder = match held(&lease, Timestamp::now()) {
        Held::No => return Ok(()),
        Held::By(holder) => holder,
        Held::Perhaps(holder, duration) => {
            let duration = duration.min(LEASE_LIMIT);
            eprintln!(
                "the Lease kube-system/{KCM_LEASE} of {holder} seems expired: watching for {duration:#} whether it is renewed"
            );
            tokio::time::sleep(duration.unsigned_abs()).await;
            let renewed =
                |lease: &Lease| lease.spec.as_ref().and_then(|spec| spec.renew_time.clone());
            match read().await? {
                Some(again) if renewed(&again) != renewed(&lease) => holder,
                _ => return Ok(()),
            }
        }
    };
    // A fleet is reported below, by its replicas.
    if holder.starts_with(FLEET_HOLDS) {
        return Ok(());
    }
    bail!(
        "kube-controller-manager {holder} holds the Lease kube-system/{KCM_LEASE} in this cluster and would reconcile the same objects: stop it first, or run the demo without --kubeconfig"
    )
}

/// Replicas of the demo would join a fleet that is at work, and take their ranges with them.
async fn refuse_beside_a_fleet(client: Client) -> Result<()> {
    let leases: Api<Lease> = Api::namespaced(client, FLEET_NAMESPACE);
    let list = leases
        .list(&ListParams::default().labels(FLEET_LABEL))
        .await
        .context("listing the Leases of Manifold's fleets")?;
    for lease in list.items {
        let name = lease.metadata.name.clone().unwrap_or_default();
        // A range's Lease is not renewed, so it reports nothing of who is alive.
        if let (true, Held::By(holder)) =
            (name.contains("-replica-"), held(&lease, Timestamp::now()))
        {
            bail!(
                "the replica {holder} of Manifold holds the Lease {FLEET_NAMESPACE}/{name} in this cluster: stop its fleet first, or run the demo without --kubeconfig"
            );
        }
    }
    Ok(())
}

fn to_pem(der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let lines: Vec<&str> = (0..text.len())
        .step_by(64)
        .map(|at| &text[at..text.len().min(at + 64)])
        .collect();
    format!(
        "-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n",
        lines.join("\n")
    )
}
