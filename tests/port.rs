//! The secure port under clients that mean ill: silent connections, unknown tokens, anonymous requests for
//! ever new paths. `/livez` answers within a second all the while, and memory stays.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::{ControlPlane, Replica, proxy, run_test};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, crypto::ring};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::support::alone;

/// More than the port has places.
const SILENT: usize = 300;
/// Connections of a flood: fewer than one address may have, so that none is displaced by its own kind.
const FLOODERS: usize = 24;
const FLOOD: Duration = Duration::from_secs(6);
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);
const GROWS_AT_MOST_MEGABYTES: f64 = 20.0;

#[derive(Clone)]
struct Target {
    port: u16,
    tls: TlsConnector,
}

impl Target {
    async fn connect(&self) -> Result<TlsStream<TcpStream>> {
        let tcp = TcpStream::connect(("127.0.0.1", self.port)).await?;
        let name = ServerName::try_from("localhost")?;
        Ok(self.tls.connect(name, tcp).await?)
    }

    /// How long an anonymous `/livez` takes, by a connection of its own as a kubelet makes it.
    async fn livez(&self) -> Result<Duration> {
        let began = Instant::now();
        let mut stream = self.connect().await?;
        stream
            .write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            .await?;
        let mut answer = Vec::new();
        let _unclean = stream.read_to_end(&mut answer).await;
        let answer = String::from_utf8_lossy(&answer);
        ensure!(answer.starts_with("HTTP/1.1 200"), "/livez: {answer}");
        Ok(began.elapsed())
    }
}

/// How long the port bears a client that says this after TLS, and nothing more.
async fn borne(target: &Target, says: &[u8]) -> Result<Duration> {
    let mut stream = target.connect().await?;
    let began = Instant::now();
    stream.write_all(says).await?;
    stream.flush().await?;
    let mut answer = Vec::new();
    let ended = tokio::time::timeout(Duration::from_secs(60), stream.read_to_end(&mut answer));
    let _unclean = ended
        .await
        .context("the connection is still open after a minute")?;
    Ok(began.elapsed())
}

/// The begin of an HTTP/2 connection: the preface and empty settings.
const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// The longest of some.
async fn slowest(target: &Target, count: usize) -> Result<Duration> {
    let mut slowest = Duration::ZERO;
    for _ in 0..count {
        let took = tokio::time::timeout(ANSWERS_WITHIN * 5, target.livez())
            .await
            .context("/livez has not answered within 5 s")??;
        slowest = slowest.max(took);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(slowest)
}

fn resident_megabytes(replica: &Replica) -> Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", replica.id()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next());
    Ok(kilobytes.context("no VmRSS")?.parse::<f64>()? / 1024.0)
}

/// Requests that are all different, from many connections at once.
#[derive(Default)]
struct Flood {
    over: AtomicBool,
    /// By class: refused (401, 403), too many (429), anything else.
    refused: AtomicUsize,
    busy: AtomicUsize,
    other: AtomicUsize,
}

impl Flood {
    async fn run(
        self: &Arc<Self>,
        target: &Target,
        request: fn(usize) -> String,
    ) -> Result<Duration> {
        let number = Arc::new(AtomicUsize::new(0));
        let tasks: Vec<_> = (0..FLOODERS)
            .map(|_| {
                let (flood, target, number) = (Arc::clone(self), target.clone(), number.clone());
                tokio::spawn(async move {
                    while !flood.over.load(Ordering::Relaxed) {
                        // A connection that was displaced by a probe is made again.
                        let Ok(mut stream) = target.connect().await else {
                            continue;
                        };
                        let mut head = vec![0; 4096];
                        while !flood.over.load(Ordering::Relaxed) {
                            let text = request(number.fetch_add(1, Ordering::Relaxed));
                            if stream.write_all(text.as_bytes()).await.is_err() {
                                break;
                            }
                            let Ok(read @ 1..) = stream.read(&mut head).await else {
                                break;
                            };
                            let answer = String::from_utf8_lossy(&head[..read]);
                            match answer.split(' ').nth(1) {
                                Some("401" | "403") => &flood.refused,
                                Some("429") => &flood.busy,
                                _ => &flood.other,
                            }
                            .fetch_add(1, Ordering::Relaxed);
                        }
                    }
                })
            })
            .collect();
        let read = async {
            let began = Instant::now();
            let mut slowest_one = Duration::ZERO;
            while began.elapsed() < FLOOD {
                slowest_one = slowest_one.max(slowest(target, 5).await?);
            }
            anyhow::Ok(slowest_one)
        };
        let slowest = read.await;
        self.over.store(true, Ordering::Relaxed);
        for task in tasks {
            task.await?;
        }
        slowest
    }

    fn counts(&self) -> (usize, usize, usize) {
        let count = |of: &AtomicUsize| of.load(Ordering::Relaxed);
        (count(&self.refused), count(&self.busy), count(&self.other))
    }
}

fn unknown_token(number: usize) -> String {
    format!(
        "GET /metrics HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer unknown-{number}-{}\r\n\r\n",
        "x".repeat(1000)
    )
}

fn new_path(number: usize) -> String {
    format!(
        "GET /{number}/{} HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "x".repeat(1000)
    )
}

#[test]
fn the_port_answers_probes_under_silent_clients_unknown_tokens_and_ever_new_paths() {
    let _alone = alone();
    run_test(async {
        let control_plane = ControlPlane::builder().nodes(1).start().await?;
        let fleet = control_plane.fleet().build().await?;
        let mut replicas = fleet.start_all(1).await?;
        let replica = &mut replicas[0];
        let port = replica
            .url()
            .rsplit_once(':')
            .context("a port")?
            .1
            .trim_end_matches('/')
            .parse()?;
        let roots = proxy::roots(control_plane.authority().certificate())?;
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let target = Target {
            port,
            tls: TlsConnector::from(Arc::new(config)),
        };
        let quiet = slowest(&target, 20).await?;
        let before = resident_megabytes(replica)?;

        let mut silent = Vec::new();
        for _ in 0..SILENT {
            silent.push(target.connect().await?);
        }
        let took = slowest(&target, 20).await?;
        let after = resident_megabytes(replica)?;
        println!(
            "port: {SILENT} silent TLS clients: /livez at most {took:.1?} (quiet: {quiet:.1?}), {before:.1} MB, then {after:.1} MB"
        );
        ensure!(took < ANSWERS_WITHIN);
        drop(silent);

        let (nothing, half, no_stream) = tokio::try_join!(
            borne(&target, b""),
            borne(&target, b"GET /livez HTTP/1.1\r\nHost:"),
            borne(&target, HTTP2),
        )?;
        println!(
            "port: a client is borne for {nothing:.1?} with no byte, {half:.1?} with half of a request's headers, \
             {no_stream:.1?} with HTTP/2 and no request"
        );
        let seconds = Duration::from_secs;
        ensure!(nothing > seconds(9) && nothing < seconds(13));
        ensure!(half > seconds(31) && half < seconds(36));
        // Its pings go unanswered, which alone would end it after 40 s.
        ensure!(no_stream > seconds(31) && no_stream < seconds(37));

        for (what, request) in [
            ("unknown tokens", unknown_token as fn(usize) -> String),
            ("ever new paths", new_path),
        ] {
            let flood = Arc::new(Flood::default());
            let took = flood.run(&target, request).await?;
            let (refused, busy, other) = flood.counts();
            let after = resident_megabytes(replica)?;
            println!(
                "port: {what} for {FLOOD:?}: {refused} refused, {busy} too many, {other} others; /livez at most {took:.1?}; \
                 {after:.1} MB"
            );
            ensure!(took < ANSWERS_WITHIN);
            // 200 a second and 400 at once, and some slack for the probes between.
            let most = 400 + 200 * (FLOOD.as_secs() as usize + 6);
            ensure!(
                refused <= most,
                "{refused} were asked about, more than {most}"
            );
            ensure!(refused > 0 && other == 0);
        }
        let after = resident_megabytes(replica)?;
        let grown = after - before;
        println!("port: memory grew by {grown:.1} MB");
        ensure!(
            grown <= GROWS_AT_MOST_MEGABYTES,
            "memory grew by {grown:.1} MB"
        );
        replica.check()
    });
}
