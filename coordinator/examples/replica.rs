//! One replica of a fleet that owns ranges and does nothing with them: for looking at the protocol on a real
//! API server.
//!
//! `KUBECONFIG=… cargo run -p coordinator --example replica -- <name>`; prints what happens, one line each,
//! with the milliseconds since the epoch. SIGTERM drains. With `STATE_BYTES` each range's state has that
//! size. Peers know each other by keys in their Leases; with `PEER_CERT`, `PEER_KEY` and `PEER_CA` by these
//! certificates; with `PEER_INSECURE` they speak without TLS.

use std::{
    collections::BTreeMap,
    pin::Pin,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use coordinator::{Config, Epoch, Frozen, Gained, RangeHost, RangeId};
use peer_proto::{ControllerState, KeyState, RangeState};

fn say(text: &str) {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    println!("{} {text}", now.as_millis());
}

/// Counts how often each range has been handed on in its state, so that a lost state shows.
struct Trivial {
    held: Mutex<BTreeMap<RangeId, u32>>,
    bytes: usize,
}

impl RangeHost for Trivial {
    fn gained(&self, range: RangeId, epoch: Epoch, how: Gained) {
        let (hops, text) = match how {
            Gained::Handoff(state) => {
                let hops = state
                    .controllers
                    .first()
                    .and_then(|c| c.keys.first())
                    .map_or(0, |key| key.failures)
                    + 1;
                (hops, "handoff")
            }
            Gained::Takeover => (0, "takeover"),
        };
        self.held
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .insert(range, hops);
        say(&format!("gained {range} {epoch} {text} {hops}"));
    }

    fn lost(&self, range: RangeId) {
        self.held
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .remove(&range);
        say(&format!("lost {range}"));
    }

    fn freeze(
        &self,
        range: RangeId,
        _: Duration,
        _: bool,
    ) -> Pin<Box<dyn Future<Output = Frozen> + Send + 'static>> {
        say(&format!("freeze {range}"));
        let hops = self
            .held
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .get(&range)
            .copied();
        let key = KeyState {
            failures: hops.unwrap_or(0),
            memory: Some(vec![7; self.bytes]),
            ..KeyState::default()
        };
        let state = RangeState {
            controllers: vec![ControllerState {
                controller: "x".into(),
                keys: vec![key],
                ..ControllerState::default()
            }],
        };
        Box::pin(async move { Frozen::Still(state) })
    }

    fn resume(&self, range: RangeId) {
        say(&format!("resume {range}"));
    }

    fn ready(&self) -> bool {
        true
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter("info")
        .init();
    let name = std::env::args().nth(1).ok_or("which name?")?;
    let file = |key: &str| std::env::var_os(key).map(Into::into);
    let config = Config {
        replica_name: name,
        ranges: std::env::var("RANGES")
            .ok()
            .and_then(|ranges| ranges.parse().ok())
            .unwrap_or(256),
        expected_replicas: std::env::var("EXPECTED")
            .ok()
            .and_then(|expected| expected.parse().ok()),
        fleet_name: std::env::var("FLEET").unwrap_or_else(|_| "manifold".to_owned()),
        peer_bind_address: std::net::Ipv4Addr::LOCALHOST.into(),
        peer_port: 0,
        peer_insecure: std::env::var_os("PEER_INSECURE").is_some(),
        peer_pins: std::env::var_os("PEER_CERT").is_none(),
        peer_tls_cert_file: file("PEER_CERT"),
        peer_tls_private_key_file: file("PEER_KEY"),
        peer_ca_file: file("PEER_CA"),
        ..Config::default()
    };
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        let kubeconfig = kube::Config::infer().await?;
        let bytes = std::env::var("STATE_BYTES")
            .ok()
            .and_then(|bytes| bytes.parse().ok())
            .unwrap_or(100);
        let host = Arc::new(Trivial {
            held: Mutex::default(),
            bytes,
        });
        let client = move || match kube::Client::try_from(kubeconfig.clone()) {
            Ok(client) => client,
            Err(error) => panic!("the kubeconfig has loaded once: {error}"),
        };
        let handle = coordinator::start(config, host, Arc::new(client)).await?;
        say(&format!("started {}", handle.incarnation()));
        let mut happenings = handle.happenings();
        let mut term = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        let mut status =
            tokio::signal::unix::signal(tokio::signal::unix::SignalKind::user_defined1())?;
        loop {
            tokio::select! {
                happening = happenings.recv() => if let Ok(happening) = happening {
                    say(&format!("happened {happening}"));
                },
                _ = status.recv() => say(&format!("view {}", serde_json::to_string(&handle.view())?)),
                _ = term.recv() => {
                    say("draining");
                    say(&format!("drained {:?}", handle.drain(Duration::from_secs(10)).await));
                    return Ok(());
                }
                fatal = handle.fatal() => return Err(fatal.into()),
            }
        }
    })
}
