//! The test bed: a real control plane, and Manifold's replicas as real processes on it.
//!
//! [`ControlPlane`] starts etcd, kube-apiserver, kube-scheduler and kwok from programs that
//! [`programs`] builds once per version into a cache outside the tree. [`Fleet`] starts replicas of
//! `manifold` and can kill, stop, pause and ask them. Whatever is started is taken down again when
//! its value is dropped, on a panic, on Ctrl-C, and even when this process is killed: see
//! [`process`].
//!
//! A test in [`run_test`] that fails keeps its working directories and says where they are; so does
//! `MANIFOLD_KEEP=1`.

pub mod audit;
pub mod certificates;
pub mod control_plane;
pub mod everything;
pub mod fleet;
pub mod hang;
pub mod image;
pub mod jaeger;
pub mod kubeconfig;
pub mod memory;
pub mod metrics;
pub mod metrics_api;
pub mod mounts;
pub mod nodes;
pub mod observe;
pub mod oci;
pub mod panic;
pub mod ports;
pub mod process;
pub mod programs;
pub mod progress;
pub mod proxy;
pub mod shards;
pub mod toolchain;
pub mod wait;

pub use audit::{AuditLog, AuditRecord};
pub use control_plane::{ControlPlane, Kcm};
pub use fleet::{Fleet, PeerTrust, Replica};
pub use hang::Hang;
pub use jaeger::Jaeger;
pub use metrics::Metrics;
pub use metrics_api::MetricsApi;
pub use mounts::Mounts;
pub use shards::Shards;
pub use wait::until;

use std::path::PathBuf;

/// Runs a test on a runtime of its own. Where it fails, by panic or by an error, the working
/// directories of its control planes and fleets are kept, and their places reported.
///
/// # Panics
/// With the error that `body` returns.
pub fn run_test<F>(body: F)
where
    F: Future<Output = anyhow::Result<()>>,
{
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let result = process::deciding_later(|| runtime?.block_on(body));
    if let Err(error) = result {
        panic!("{error:?}");
    }
}

/// What only the root of this workspace has.
const ROOT_HAS: &str = "tests/controlplane/go.mod";

/// The root of the workspace: the one it is started in. The one it was built in comes last, since a cache of
/// builds may serve a clone elsewhere.
pub fn workspace_root() -> PathBuf {
    let built = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let started = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    [started, std::env::current_dir().ok(), Some(built.clone())]
        .iter()
        .flatten()
        .flat_map(|place| place.ancestors())
        .find(|place| place.join(ROOT_HAS).is_file())
        .map_or(built, PathBuf::from)
}

/// Where built programs are kept between runs: `${XDG_CACHE_HOME:-$HOME/.cache}/manifold`.
pub fn cache_dir() -> anyhow::Result<PathBuf> {
    let set = |name: &str| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let base = set("XDG_CACHE_HOME")
        .or_else(|| set("HOME").map(|home| home.join(".cache")))
        .ok_or_else(|| {
            anyhow::anyhow!(
                "neither XDG_CACHE_HOME nor HOME names a directory: set one, the built programs are kept there"
            )
        })?;
    Ok(base.join("manifold"))
}

#[cfg(test)]
mod tests;
