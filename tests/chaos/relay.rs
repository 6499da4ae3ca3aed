//! A relay of bytes between two sockets that can slow down, swallow or cut. TLS passes through.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Read at once.
const CHUNK: usize = 16 << 10;

/// What happens to bytes on their way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Pass,
    /// Each chunk is so late, in both directions.
    Delay(Duration),
    /// Nothing arrives, and nobody is notified.
    Swallow,
}

/// Listens on a port of its own. Dropping it ends the listening.
#[derive(Debug)]
pub(crate) struct Relay {
    port: u16,
    mode: watch::Sender<Mode>,
    target: watch::Sender<u16>,
    /// Counts the cuts: every connection there is ends in the middle of an answer.
    cuts: watch::Sender<u64>,
    task: JoinHandle<()>,
}

impl Relay {
    /// To a port of this machine; 0 is nobody's, and connections wait.
    pub(crate) async fn start(target: u16) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .context("a relay's port")?;
        let port = listener.local_addr()?.port();
        let (mode, target, cuts) = (
            watch::Sender::new(Mode::Pass),
            watch::Sender::new(target),
            watch::Sender::new(0),
        );
        let (modes, targets, cut) = (mode.subscribe(), target.subscribe(), cuts.subscribe());
        let task = tokio::spawn(async move {
            loop {
                let Ok((client, _)) = listener.accept().await else {
                    continue;
                };
                let (modes, targets, mut cut) = (modes.clone(), targets.clone(), cut.clone());
                cut.mark_unchanged();
                tokio::spawn(connection(client, modes, targets, cut));
            }
        });
        Ok(Self {
            port,
            mode,
            target,
            cuts,
            task,
        })
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }

    pub(crate) fn aim(&self, target: u16) {
        self.target.send_replace(target);
    }

    pub(crate) fn cut(&self) {
        self.cuts.send_modify(|count| *count += 1);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
        // What still runs is cut.
        self.cut();
    }
}

async fn connection(
    client: TcpStream,
    mut modes: watch::Receiver<Mode>,
    targets: watch::Receiver<u16>,
    mut cut: watch::Receiver<u64>,
) {
    let target = *targets.borrow();
    if !through(&mut modes).await || target == 0 {
        return;
    }
    let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, target)).await else {
        return;
    };
    // Small frames at once: latencies are measured through this.
    if client.set_nodelay(true).is_err() || server.set_nodelay(true).is_err() {
        return;
    }
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let answers = cut.clone();
    tokio::select! {
        () = pump(from_client, to_server, modes.clone(), None) => {}
        () = pump(from_server, to_client, modes, Some(answers)) => {}
        // Connections without traffic end too, a moment later.
        () = async {
            let _ = cut.changed().await;
            tokio::time::sleep(Duration::from_millis(200)).await;
        } => {}
    }
}

/// Copies until either side ends; with `cut`, ends in the middle of the next chunk after a cut.
async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut modes: watch::Receiver<Mode>,
    cut: Option<watch::Receiver<u64>>,
) {
    let mut chunk = vec![0; CHUNK];
    while let Ok(read) = from.read(&mut chunk).await {
        if read == 0 || !through(&mut modes).await {
            return;
        }
        let is_cut = cut
            .as_ref()
            .is_some_and(|cut| cut.has_changed().unwrap_or(true));
        let end = if is_cut { read / 2 } else { read };
        if to.write_all(&chunk[..end]).await.is_err() || is_cut {
            return;
        }
    }
}

/// Waits as the mode says; false when the relay has gone.
async fn through(modes: &mut watch::Receiver<Mode>) -> bool {
    let mode = match modes.wait_for(|mode| *mode != Mode::Swallow).await {
        Ok(mode) => *mode,
        Err(_) => return false,
    };
    if let Mode::Delay(by) = mode {
        tokio::time::sleep(by).await;
    }
    true
}
