//! Addresses at which nodes and pods reach the API server, which listens on loopback.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context, Result};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// Passes connections on to another port. Dropping it ends them.
#[derive(Debug)]
pub(super) struct Forward {
    task: JoinHandle<()>,
}

impl Forward {
    pub(super) async fn start(from: (Ipv4Addr, u16), to: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind(from)
            .await
            .with_context(|| format!("listening at {}:{}", from.0, from.1))?;
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                tokio::select! {
                    accepted = listener.accept() => {
                        // A connection that is gone before it is accepted concerns nobody.
                        if let Ok((stream, _)) = accepted {
                            connections.spawn(pass(stream, to));
                        }
                    }
                    Some(_) = connections.join_next() => {}
                }
            }
        });
        Ok(Self { task })
    }
}

async fn pass(mut client: TcpStream, to: SocketAddr) {
    // Either end may close, or be cut off, at any time: then the other end is closed too.
    if let Ok(mut server) = TcpStream::connect(to).await {
        let _ = client.set_nodelay(true);
        let _ = server.set_nodelay(true);
        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        self.task.abort();
    }
}
