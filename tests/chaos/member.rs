//! A replica whose ways to the API server and to its peers can be disturbed.

use std::path::{Path, PathBuf};

use anyhow::Result;
use harness::proxy::Proxy;
use harness::{ControlPlane, Fleet, Replica, kubeconfig};

use super::FLEET;
use super::relay::Relay;

/// A replica, and its ways to the world.
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) replica: Replica,
    pub(crate) api: Relay,
    pub(crate) proxy: Proxy,
    pub(crate) peers: Relay,
    kubeconfig: PathBuf,
}

impl Member {
    pub(crate) async fn start(
        control_plane: &ControlPlane,
        fleet: &Fleet,
        index: usize,
    ) -> Result<Self> {
        let name = format!("{FLEET}-{index}");
        let proxy = Proxy::start(control_plane).await?;
        let api = Relay::start(proxy.port()).await?;
        let peers = Relay::start(0).await?;
        let kubeconfig = kubeconfig(control_plane, &name, api.port())?;
        let replica = begin(fleet, &name, &kubeconfig, &peers, &[])?;
        Ok(Self {
            name,
            replica,
            api,
            proxy,
            peers,
            kubeconfig,
        })
    }

    /// A new process under the same name, with more flags; it is not awaited.
    pub(crate) fn again(&mut self, fleet: &Fleet, more: &[&str]) -> Result<()> {
        self.replica.kill();
        self.replica = begin(fleet, &self.name, &self.kubeconfig, &self.peers, more)?;
        Ok(())
    }
}

/// For a manager that reaches the API server at this port of the machine.
pub(crate) fn kubeconfig(control_plane: &ControlPlane, name: &str, port: u16) -> Result<PathBuf> {
    let authority = control_plane.authority();
    let text = kubeconfig::render(
        &format!("https://127.0.0.1:{port}"),
        authority.certificate(),
        "system:kube-controller-manager",
        &authority.client("system:kube-controller-manager", None)?,
    )?;
    let file = format!("relayed-{name}.kubeconfig");
    control_plane.dir().write(&file, text)
}

fn begin(
    fleet: &Fleet,
    name: &str,
    kubeconfig: &Path,
    peers: &Relay,
    more: &[&str],
) -> Result<Replica> {
    let kubeconfig = format!("--kubeconfig={}", kubeconfig.display());
    let address = format!("--peer-advertise-address=127.0.0.1:{}", peers.port());
    let args = [&[kubeconfig.as_str(), &address][..], more].concat();
    let replica = fleet.start_named(name, &args)?;
    peers.aim(replica.peer_port());
    Ok(replica)
}
