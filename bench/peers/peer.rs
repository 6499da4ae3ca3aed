//! Who is compared, and the processes of one of them on a control plane.

use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use harness::{ControlPlane, Fleet, Kcm, Metrics, Replica, everything, until};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{DeleteParams, ListParams};

/// Ranges of the fleet: Manifold's default.
pub(crate) const RANGES: u16 = 256;
/// Replicas that the machine must bear.
const REPLICAS_MAX: usize = 9;
/// For a replica to be ready or a range to have changed hands: far beyond what it takes.
const LIMIT: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(20);
/// Behind the number of replicas: they are fenced by the API server too.
const FENCED: &str = "-fenced";
/// Behind either: every controller is on.
const ALL: &str = "-all";
/// Its name as a peer and as a replica.
const WATCHER: &str = "watcher";
/// Who can hold no Lease owns nothing.
const NO_NAMESPACE: &str = "--fleet-namespace=no-such-namespace";
const KCM_LEASE: &str = "kube-controller-manager";
const FLEET_LABEL: &str = "manifold.dev/fleet=manifold";

/// One side of the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Peer {
    /// kube-controller-manager.
    Kcm(With),
    /// Replicas of Manifold.
    Manifold {
        /// How many.
        replicas: usize,
        with: With,
    },
    /// A replica of Manifold that watches what others do, beside one that does it: it is no member of any
    /// fleet, and what it costs is what every further replica of a fleet pays for its own cache.
    Watcher,
}

/// How a manager differs from one that was given nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum With {
    /// Controllers that are on by default.
    Defaults,
    /// The API server refuses the writes of dead replicas, which costs each write an impersonation and a
    /// policy.
    Fence,
    /// Every controller that can be on without a cloud.
    All,
}

impl Peer {
    /// Processes that work at a time: standbys don't.
    fn replicas(self) -> usize {
        match self {
            Self::Manifold { replicas, .. } => replicas,
            Self::Kcm(_) | Self::Watcher => 1,
        }
    }

    /// Whether the API server refuses the writes of its dead replicas.
    pub(crate) fn is_fenced(&self) -> bool {
        matches!(
            self,
            Self::Manifold {
                with: With::Fence,
                ..
            }
        )
    }

    /// Whether every controller is on.
    pub(crate) fn has_all(&self) -> bool {
        matches!(
            self,
            Self::Kcm(With::All)
                | Self::Manifold {
                    with: With::All,
                    ..
                }
        )
    }

    /// Whether it is kube-controller-manager.
    pub(crate) fn is_kcm(self) -> bool {
        matches!(self, Self::Kcm(_))
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kcm(with) => write!(f, "kcm{with}"),
            Self::Manifold { replicas, with } => write!(f, "n{replicas}{with}"),
            Self::Watcher => f.write_str(WATCHER),
        }
    }
}

/// What follows the peer's name.
impl fmt::Display for With {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Defaults => "",
            Self::Fence => FENCED,
            Self::All => ALL,
        })
    }
}

impl FromStr for Peer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, with) = [With::Fence, With::All]
            .into_iter()
            .find_map(|with| Some((text.strip_suffix(&with.to_string())?, with)))
            .unwrap_or((text, With::Defaults));
        let count = name.strip_prefix('n').and_then(|count| count.parse().ok());
        match (name, with, count) {
            ("kcm", With::Defaults | With::All, _) => Ok(Self::Kcm(with)),
            (WATCHER, With::Defaults, _) => Ok(Self::Watcher),
            (_, _, Some(replicas)) if (1..=REPLICAS_MAX).contains(&replicas) => {
                Ok(Self::Manifold { replicas, with })
            }
            _ => Err(format!(
                "a peer is kcm, or n1 to n{REPLICAS_MAX} for that number of replicas of Manifold, either with {ALL} behind \
                 it for every controller, the replicas with {FENCED} where the API server is to fence them, or {WATCHER} \
                 for one that only watches another"
            )),
        }
    }
}

/// What the managers' clients may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Qps {
    /// No limit that two cores could reach.
    Lifted,
    /// 20 a second and bursts of 30, for each process.
    Default,
}

impl Qps {
    fn flags(self) -> [String; 2] {
        let (qps, burst) = match self {
            Self::Lifted => (5_000, 5_000),
            Self::Default => (20, 30),
        };
        [
            format!("--kube-api-qps={qps}"),
            format!("--kube-api-burst={burst}"),
        ]
    }
}

impl fmt::Display for Qps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lifted => "lifted",
            Self::Default => "default",
        })
    }
}

#[derive(Debug)]
enum Processes {
    Kcm(Vec<Kcm>),
    Manifold(Vec<Replica>),
}

/// The processes of one peer. Dropping it kills them.
#[derive(Debug)]
pub(crate) struct Managers<'c> {
    control_plane: &'c ControlPlane,
    peer: Peer,
    flags: Vec<String>,
    fleet: Option<Fleet>,
    processes: Processes,
    /// Beside them, where it is what is measured.
    watcher: Option<Replica>,
    /// Replicas that were ever started: each has a name of its own.
    started: usize,
}

impl<'c> Managers<'c> {
    /// Prepared, and none started. All run the same controllers.
    pub(crate) async fn prepare(
        control_plane: &'c ControlPlane,
        peer: Peer,
        qps: Qps,
        binary: &Path,
    ) -> Result<Self> {
        let mut flags: Vec<String> = qps.flags().into();
        if peer.has_all() {
            flags.extend(everything::FLAGS.map(str::to_owned));
        }
        let (fleet, processes) = match peer {
            Peer::Kcm(_) => (None, Processes::Kcm(Vec::new())),
            Peer::Manifold { .. } | Peer::Watcher => {
                let (replicas, fenced) = (peer.replicas(), peer.is_fenced());
                let fence = if fenced { "on" } else { "off" };
                let mut fleet = control_plane
                    .fleet()
                    .binary(binary)
                    .ranges(RANGES.into())
                    .arg(format!("--server-fence={fence}"))
                    .arg(format!("--expected-replicas={replicas}"));
                for flag in &flags {
                    fleet = fleet.arg(flag);
                }
                (Some(fleet.build().await?), Processes::Manifold(Vec::new()))
            }
        };
        Ok(Self {
            control_plane,
            peer,
            flags,
            fleet,
            processes,
            watcher: None,
            started: 0,
        })
    }

    /// Starts as many as the peer has, and returns when they share the work; gives when all were ready.
    pub(crate) async fn start(&mut self) -> Result<Instant> {
        for _ in 0..self.peer.replicas() {
            self.spawn().await?;
        }
        self.await_ready().await?;
        let ready = Instant::now();
        self.await_shared().await?;
        if self.peer == Peer::Watcher {
            self.watch().await?;
        }
        Ok(ready)
    }

    /// Starts the watcher, and waits until it answers: by then it lists.
    async fn watch(&mut self) -> Result<()> {
        let fleet = self.fleet.as_ref().context("no fleet")?;
        let watcher = fleet.start_named(WATCHER, &[NO_NAMESPACE])?;
        until("the watcher answers", LIMIT, POLL, || async {
            Ok(watcher.metrics().await.ok().map(drop))
        })
        .await?;
        self.watcher = Some(watcher);
        Ok(())
    }

    /// One process more. kube-controller-manager is awaited until it is healthy.
    async fn spawn(&mut self) -> Result<()> {
        match &mut self.processes {
            Processes::Kcm(all) => {
                let flags: Vec<&str> = self.flags.iter().map(String::as_str).collect();
                all.push(self.control_plane.start_kcm(&flags).await?);
            }
            Processes::Manifold(all) => {
                let fleet = self.fleet.as_ref().context("no fleet")?;
                all.push(fleet.start(self.started)?);
            }
        }
        self.started += 1;
        Ok(())
    }

    async fn await_ready(&mut self) -> Result<()> {
        if let Processes::Manifold(all) = &mut self.processes {
            for replica in all.iter_mut() {
                replica.wait_ready(LIMIT).await?;
            }
        }
        Ok(())
    }

    /// Waits until every replica has its part of the ranges.
    pub(crate) async fn await_shared(&self) -> Result<()> {
        let Processes::Manifold(all) = &self.processes else {
            return Ok(());
        };
        let fair = usize::from(RANGES) / all.len().max(1);
        until("the replicas share the ranges", LIMIT, POLL, || async {
            let mut owned = 0;
            for replica in all {
                let count = replica.shards().await?.owned.len();
                if count < fair {
                    bail!("{} owns {count} ranges", replica.name());
                }
                owned += count;
            }
            Ok((owned == usize::from(RANGES)).then_some(()))
        })
        .await
    }

    /// One process more, awaited: a replica that shares the ranges, or a standby.
    pub(crate) async fn add(&mut self) -> Result<()> {
        self.spawn().await?;
        self.await_ready().await?;
        self.await_shared().await
    }

    /// SIGKILL to all, and nothing is left that says that they were there.
    pub(crate) async fn vanish(&mut self) -> Result<()> {
        match &mut self.processes {
            Processes::Kcm(all) => all.clear(),
            Processes::Manifold(all) => all.clear(),
        }
        let client = self.control_plane.client().await?;
        let held: Api<Lease> = Api::namespaced(client.clone(), "kube-system");
        // Both hold it while they work.
        if held.get_opt(KCM_LEASE).await?.is_some() {
            held.delete(KCM_LEASE, &DeleteParams::default()).await?;
        }
        if !self.peer.is_kcm() {
            let leases: Api<Lease> = Api::namespaced(client, harness::fleet::NAMESPACE);
            let of_fleet = ListParams::default().labels(FLEET_LABEL);
            leases
                .delete_collection(&DeleteParams::default(), &of_fleet)
                .await?;
        }
        Ok(())
    }

    /// An error with the end of its log if one of them has ended by itself.
    pub(crate) fn check(&mut self) -> Result<()> {
        self.watcher.iter_mut().try_for_each(Replica::check)?;
        match &mut self.processes {
            Processes::Kcm(all) => all.iter_mut().try_for_each(|kcm| kcm.process().check()),
            Processes::Manifold(all) => all.iter_mut().try_for_each(Replica::check),
        }
    }

    /// Ids of the processes that are measured.
    pub(crate) fn ids(&mut self) -> Vec<u32> {
        if let Some(watcher) = &self.watcher {
            return vec![watcher.id()];
        }
        match &mut self.processes {
            Processes::Kcm(all) => all.iter_mut().map(|kcm| kcm.process().id()).collect(),
            Processes::Manifold(all) => all.iter().map(Replica::id).collect(),
        }
    }

    /// A scrape of each that is measured.
    pub(crate) async fn metrics(&self) -> Result<Vec<Metrics>> {
        if let Some(watcher) = &self.watcher {
            return Ok(vec![watcher.metrics().await?]);
        }
        let mut scrapes = Vec::new();
        match &self.processes {
            Processes::Kcm(all) => {
                for kcm in all {
                    scrapes.push(kcm.metrics().await?);
                }
            }
            Processes::Manifold(all) => {
                for replica in all {
                    scrapes.push(replica.metrics().await?);
                }
            }
        }
        Ok(scrapes)
    }

    /// Ranges of the process that goes next; `None` where all keys are its.
    pub(crate) async fn first_ranges(&self) -> Result<Option<Vec<u32>>> {
        match &self.processes {
            Processes::Kcm(_) => Ok(None),
            Processes::Manifold(all) => {
                let first = all.first().context("no replica")?;
                Ok(Some(first.shards().await?.owned_ranges()))
            }
        }
    }

    /// SIGKILL to the first: the leader, or a replica. Its place in the row becomes the next one's.
    pub(crate) fn kill_first(&mut self) -> Result<()> {
        match &mut self.processes {
            Processes::Kcm(all) if all.len() > 1 => all.remove(0).process().kill(),
            Processes::Manifold(all) if all.len() > 1 => all.remove(0).kill(),
            _ => bail!("nobody would be left"),
        }
        Ok(())
    }

    /// SIGTERM to the first; the process that is ending, to be awaited.
    pub(crate) fn stop_first(&mut self) -> Result<Ending> {
        let mut ending = match &mut self.processes {
            Processes::Kcm(all) if all.len() > 1 => Ending::Kcm(all.remove(0)),
            Processes::Manifold(all) if all.len() > 1 => Ending::Replica(all.remove(0)),
            _ => bail!("nobody would be left"),
        };
        match &mut ending {
            Ending::Kcm(kcm) => kcm.process().ask_to_end()?,
            Ending::Replica(replica) => replica.ask_to_end()?,
        }
        Ok(ending)
    }
}

/// A process that was asked to end. Dropping it kills what is left of it.
#[derive(Debug)]
pub(crate) enum Ending {
    Kcm(Kcm),
    Replica(Replica),
}

impl Ending {
    /// Returns when it is gone.
    pub(crate) async fn awaited(&mut self) -> Result<()> {
        let what = "the process that was asked to end is gone";
        let this = std::sync::Mutex::new(self);
        until(what, LIMIT, POLL, || async {
            let Ok(mut this) = this.lock() else {
                return Ok(None);
            };
            let status = match &mut **this {
                Self::Kcm(kcm) => kcm.process().exited(),
                Self::Replica(replica) => replica.exited(),
            };
            Ok(status.map(|_| ()))
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_read_as_they_are_written() {
        for text in ["kcm", "kcm-all", "n1", "n3-fenced", "n9-all", "watcher"] {
            let peer: Peer = text.parse().unwrap();
            assert_eq!(peer.to_string(), text);
            assert_eq!(peer.has_all(), text.ends_with(ALL), "{text}");
            assert_eq!(peer.is_fenced(), text.ends_with(FENCED), "{text}");
        }
        for text in [
            "n0",
            "n10",
            "kcm-fenced",
            "watcher-all",
            "n1-all-fenced",
            "-all",
            "",
        ] {
            let why = text.parse::<Peer>().unwrap_err();
            assert!(
                why.starts_with("a peer is kcm, or n1 to n9"),
                "{text}: {why}"
            );
        }
    }
}
