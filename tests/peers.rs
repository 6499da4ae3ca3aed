//! How replicas know each other: by keys that their Leases name, where nothing is given to them but a
//! kubeconfig; and how a fleet comes there from certificate files.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::{ControlPlane, Fleet, PeerTrust, Replica, run_test, until};
use k8s_openapi::api::batch::v1::CronJob;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme, client::danger};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::support::{
    FLEET, Owners, PATIENCE, POLL, Watcher, alone, ended_well, fleet, judge, judged, moved,
};

const RANGES: u32 = 256;
/// CronJobs whose owners remember what is in no object.
const REMEMBERED: usize = 20;
/// How often a replica renews its Lease.
const RENEWAL: Duration = Duration::from_secs(1);
/// For any answer of a peer port.
const ANSWER: Duration = Duration::from_secs(5);
/// A changed fleet has even loads within this: far beyond what is printed, on a machine busy with other
/// tests.
const AFTER_A_CHANGE: Duration = Duration::from_secs(30);

/// What has happened to ownership in these replicas, by name.
async fn happened(replicas: &[Replica], what: &str) -> Result<f64> {
    let mut sum = 0.0;
    for replica in replicas {
        let metrics = replica.metrics().await?;
        let labels = [("what", what)];
        sum += metrics
            .sum("manifold_ownership_changes_total", &labels)
            .unwrap_or(0.0);
    }
    Ok(sum)
}

/// How many handoffs these replicas have made, and the seconds that they took.
async fn handoffs(replicas: &[Replica]) -> Result<(f64, f64)> {
    let (mut count, mut seconds) = (0.0, 0.0);
    for replica in replicas {
        let metrics = replica.metrics().await?;
        let of = |suffix: &str| {
            let name = format!("manifold_handoff_duration_seconds_{suffix}");
            metrics.sum(&name, &[("direction", "out")]).unwrap_or(0.0)
        };
        count += of("count");
        seconds += of("sum");
    }
    Ok((count, seconds))
}

/// Has a fourth replica come and go, and says how long its share took to arrive.
async fn measure(
    what: &str,
    fleet: &Fleet,
    watcher: &mut Watcher,
    replicas: &mut Vec<Replica>,
) -> Result<()> {
    let before = handoffs(replicas).await?;
    let (_, took) = join(fleet, watcher, replicas, 3).await?;
    let after = handoffs(replicas).await?;
    let count = after.0 - before.0;
    println!(
        "peers: {what}: a newcomer has its share {took:.2?} after it was ready; {count} handoffs took {:.1} ms on \
         average",
        (after.1 - before.1) / f64::max(count, 1.0) * 1e3
    );
    leave(watcher, replicas, "manifold-3", AFTER_A_CHANGE).await?;
    Ok(())
}

/// How many callers a replica has refused since no Lease names their keys.
async fn refused(replica: &Replica) -> Result<f64> {
    let metrics = replica.metrics().await?;
    let refused = metrics.sum("manifold_peer_refusals_total", &[("reason", "unknown")]);
    Ok(refused.unwrap_or(0.0))
}

/// The key that a replica's Lease names for its holder, and whether the Lease says that it is ready.
async fn pin(client: &Client, replica: &str) -> Result<(String, bool)> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), harness::fleet::NAMESPACE);
    let lease = leases.get(&format!("{FLEET}-replica-{replica}")).await?;
    let holder = lease.spec.unwrap_or_default().holder_identity;
    let annotations = lease.metadata.annotations.unwrap_or_default();
    let pin = annotations.get("manifold.dev/peer-pin").cloned();
    let ready = annotations.get("manifold.dev/ready").map(String::as_str) == Some("true");
    let pin = pin.context("the Lease names no key")?;
    let (incarnation, pin) = pin.split_once(' ').context("no incarnation")?;
    ensure!(
        holder == Some(format!("{replica}_{incarnation}")),
        "{pin} is not its holder's"
    );
    Ok((pin.to_owned(), ready))
}

/// Accepts any server: what a stranger does who wants to get in at any price.
#[derive(Debug)]
struct Anybody;

impl danger::ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<danger::ServerCertVerified, rustls::Error> {
        Ok(danger::ServerCertVerified::assertion())
    }
    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<danger::HandshakeSignatureValid, rustls::Error> {
        Ok(danger::HandshakeSignatureValid::assertion())
    }
    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<danger::HandshakeSignatureValid, rustls::Error> {
        Ok(danger::HandshakeSignatureValid::assertion())
    }
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let provider = rustls::crypto::ring::default_provider();
        provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// Connects with a new key of its own and says what HTTP/2 begins with; an error unless nothing is answered.
async fn a_stranger_is_refused(to: &Replica) -> Result<()> {
    let key = rcgen::KeyPair::generate()?;
    let params = rcgen::CertificateParams::new(vec![to.name().to_owned()])?;
    let certificate = params.self_signed(&key)?.der().clone();
    let key = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
    let mut config = ClientConfig::builder()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody))
        .with_client_auth_cert(vec![certificate], key)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    let tcp = TcpStream::connect((Ipv4Addr::LOCALHOST, to.peer_port())).await?;
    let name = ServerName::try_from("pinned.manifold.dev")?;
    let heard = timeout(ANSWER, async {
        // By TLS 1.3 the client is done before it is refused.
        let mut tls = TlsConnector::from(Arc::new(config))
            .connect(name, tcp)
            .await?;
        tls.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
            .await?;
        let mut answer = [0; 64];
        anyhow::Ok(tls.read(&mut answer).await?)
    });
    let heard = heard.await.context("a stranger's connection stays open")?;
    ensure!(
        !heard.as_ref().is_ok_and(|read| *read > 0),
        "{} speaks with a stranger: {heard:?}",
        to.name()
    );
    Ok(())
}

fn cron_job(index: usize) -> String {
    format!("cron-{index:02}")
}

/// What the owners remember of CronJobs, by name: since when a changed schedule counts is in no object.
async fn memories(watcher: &Watcher, namespace: &str) -> Result<BTreeMap<String, Value>> {
    until("every owner remembers", PATIENCE, POLL, || async {
        let mut memories = BTreeMap::new();
        for index in 0..REMEMBERED {
            let key = format!("{namespace}/{}", cron_job(index));
            let said = watcher.explain("cronjob-controller", &key).await?;
            ensure!(!said["memory"]["not_before"].is_null(), "not yet: {said}");
            memories.insert(key, said["memory"].clone());
        }
        Ok(Some(memories))
    })
    .await
}

async fn remember(
    client: &Client,
    watcher: &Watcher,
    namespace: &str,
) -> Result<BTreeMap<String, Value>> {
    let api: Api<CronJob> = Api::namespaced(client.clone(), namespace);
    for index in 0..REMEMBERED {
        let cron_job = json!({
            "apiVersion": "batch/v1",
            "kind": "CronJob",
            "metadata": {"name": cron_job(index)},
            "spec": {"schedule": "17 3 29 2 *", "jobTemplate": {"spec": {"template": {"spec": {
                "restartPolicy": "Never",
                "containers": [{"name": "app", "image": "example/app:1"}],
            }}}}},
        });
        let cron_job = serde_json::from_value(cron_job)?;
        api.create(&PostParams::default(), &cron_job).await?;
    }
    until("every schedule is known", PATIENCE, POLL, || async {
        for index in 0..REMEMBERED {
            let key = format!("{namespace}/{}", cron_job(index));
            let said = watcher.explain("cronjob-controller", &key).await?;
            ensure!(!said["memory"]["schedule"].is_null(), "not yet: {said}");
        }
        Ok(Some(()))
    })
    .await?;
    let patch = Patch::Merge(json!({"spec": {"schedule": "18 3 29 2 *"}}));
    for index in 0..REMEMBERED {
        let name = cron_job(index);
        api.patch(&name, &PatchParams::default(), &patch).await?;
    }
    memories(watcher, namespace).await
}

/// Starts a replica and waits until it has its share; the owners, and how long that took from its readiness.
async fn join(
    fleet: &Fleet,
    watcher: &mut Watcher,
    replicas: &mut Vec<Replica>,
    index: usize,
) -> Result<(Owners, Duration)> {
    let mut replica = fleet.start(index)?;
    replica.wait_ready(PATIENCE).await?;
    watcher.add(&replica)?;
    replicas.push(replica);
    let since = Instant::now();
    watcher
        .settled("the newcomer has its share", since, AFTER_A_CHANGE)
        .await
}

/// Ends a replica and waits until the others have its share.
async fn leave(
    watcher: &mut Watcher,
    replicas: &mut Vec<Replica>,
    name: &str,
    limit: Duration,
) -> Result<(Owners, Duration)> {
    let at = replicas.iter().position(|one| one.name() == name);
    let mut replica = replicas.remove(at.context("no such replica")?);
    watcher.remove(name);
    let since = Instant::now();
    replica.ask_to_end()?;
    ended_well(&mut replica).await?;
    watcher
        .settled("the others have its share", since, limit)
        .await
}

async fn start(
    control_plane: &ControlPlane,
    fleet: &Fleet,
) -> Result<(Watcher, Vec<Replica>, Owners)> {
    let replicas = fleet.start_all(3).await?;
    let mut watcher = Watcher::new(control_plane.client().await?, RANGES);
    for replica in &replicas {
        watcher.add(replica)?;
    }
    let begun = watcher.settled("three replicas share", Instant::now(), PATIENCE);
    let (owners, _) = begun.await?;
    Ok((watcher, replicas, owners))
}

#[test]
fn replicas_with_nothing_but_a_kubeconfig_hand_over_and_refuse_strangers() {
    let _alone = alone();
    run_test(async {
        let control_plane = judged().await?;
        let client = control_plane.client().await?;
        let fleet = fleet(&control_plane).await?;
        let (mut watcher, mut replicas, before) = start(&control_plane, &fleet).await?;
        let namespace = control_plane.namespace("peers").await?;
        let remembered = remember(&client, &watcher, &namespace).await?;
        let taken = happened(&replicas, "took_over").await?;

        // 3 → 5 → 3.
        let mut owners = before;
        for index in [3, 4] {
            let (after, took) = join(&fleet, &mut watcher, &mut replicas, index).await?;
            let count = moved(&owners, &after)?.len();
            println!("peers: manifold-{index} has {count} ranges {took:.2?} after it was ready");
            owners = after;
        }
        ensure!(
            memories(&watcher, &namespace).await? == remembered,
            "memories were lost in joins"
        );
        for name in ["manifold-4", "manifold-3"] {
            let (_, took) = leave(&mut watcher, &mut replicas, name, AFTER_A_CHANGE).await?;
            println!("peers: {name} has left, and its ranges are others' after {took:.2?}");
        }
        ensure!(
            memories(&watcher, &namespace).await? == remembered,
            "memories were lost in leaves"
        );
        let more = happened(&replicas, "took_over").await? - taken;
        ensure!(more == 0.0, "{more} ranges were taken over");

        // Who reaches the port and writes no Leases.
        for replica in &replicas {
            let before = refused(replica).await?;
            a_stranger_is_refused(replica).await?;
            // The connection ends before its refusal is counted.
            until("the refusal is counted", PATIENCE, POLL / 5, || async {
                let more = refused(replica).await? - before;
                ensure!(more >= 1.0, "{} counts {more} refusals", replica.name());
                Ok(Some(()))
            })
            .await?;
        }

        // A replica dies and comes back: another key, which the others know within a renewal.
        let known = pin(&client, "manifold-1").await?;
        let at = replicas.iter().position(|one| one.name() == "manifold-1");
        let mut victim = replicas.remove(at.context("no manifold-1")?);
        victim.kill();
        watcher.remove("manifold-1");
        watcher
            .settled("the others have its ranges", Instant::now(), PATIENCE)
            .await?;
        let taken = happened(&replicas, "took_over").await?;
        let mut back = fleet.start(1)?;
        let since = until(
            "it is a member with a new key",
            PATIENCE,
            POLL / 5,
            || async {
                let (now, ready) = pin(&client, "manifold-1").await?;
                Ok((now != known.0 && ready).then(Instant::now))
            },
        )
        .await?;
        let received = until("it receives ranges", PATIENCE, POLL / 5, || async {
            let own = back.shards().await?.owned.len();
            Ok((own > 0).then(|| since.elapsed()))
        })
        .await?;
        back.wait_ready(PATIENCE).await?;
        watcher.add(&back)?;
        replicas.push(back);
        watcher
            .settled("it has its share again", Instant::now(), AFTER_A_CHANGE)
            .await?;
        let more = happened(&replicas, "took_over").await? - taken;
        println!(
            "peers: a replica that came back received ranges {received:.2?} after its Lease named its new key"
        );
        ensure!(
            more == 0.0,
            "{more} ranges were taken over after the return"
        );
        ensure!(
            received < RENEWAL * 3,
            "it was known by its key after {received:?} alone"
        );
        judge(&control_plane, "peers")?;
        Ok(())
    });
}

/// Ends and starts each replica in turn with another kind of trust; how many ranges were taken over instead
/// of handed over, and the longest time until loads were even again.
async fn roll(
    fleet: &mut Fleet,
    (watcher, replicas): (&mut Watcher, &mut Vec<Replica>),
    trust: PeerTrust,
    limit: Duration,
) -> Result<(f64, Duration)> {
    fleet.set_peer_trust(trust);
    let (mut taken, mut longest) = (0.0, Duration::ZERO);
    for index in 0..3 {
        let name = format!("manifold-{index}");
        let at = replicas.iter().position(|one| one.name() == name);
        let mut others: Vec<Replica> = Vec::new();
        let mut ending = replicas.remove(at.context("no such replica")?);
        others.append(replicas);
        let before = happened(&others, "took_over").await?;
        watcher.remove(&name);
        let since = Instant::now();
        ending.ask_to_end()?;
        ended_well(&mut ending).await?;
        let gone = watcher.settled("the others have its share", since, limit);
        let (_, left) = gone.await?;
        let mut next = fleet.start(index)?;
        next.wait_ready(PATIENCE).await?;
        let since = Instant::now();
        watcher.add(&next)?;
        others.push(next);
        let there = watcher.settled("it has its share", since, limit).await?;
        longest = longest.max(left).max(there.1);
        taken += happened(&others, "took_over").await? - before;
        *replicas = others;
    }
    Ok((taken, longest))
}

#[test]
fn a_fleet_moves_from_files_to_pins_and_speaks_all_the_way() {
    let _alone = alone();
    run_test(async {
        let control_plane = judged().await?;
        let mut fleet = fleet(&control_plane).await?;
        fleet.set_peer_trust(PeerTrust::Files);
        let (mut watcher, mut replicas, _) = start(&control_plane, &fleet).await?;
        measure("by files", &fleet, &mut watcher, &mut replicas).await?;
        for trust in [PeerTrust::Both, PeerTrust::Pins] {
            let parts = (&mut watcher, &mut replicas);
            let (taken, longest) = roll(&mut fleet, parts, trust, AFTER_A_CHANGE).await?;
            println!(
                "peers: rolled to {trust:?}: even loads after {longest:.2?} at most, {taken} taken over"
            );
            ensure!(taken == 0.0, "{taken} ranges were taken over on the way");
        }
        measure("by pins", &fleet, &mut watcher, &mut replicas).await?;
        // Straight back, against the book: who can't be spoken with is refused, and nothing stalls.
        let parts = (&mut watcher, &mut replicas);
        let refused = roll_without_common_trust(&mut fleet, parts).await?;
        println!("peers: rolled straight to files: {refused} peers refused, every range owned");
        judge(&control_plane, "peers: from files to pins")?;
        Ok(())
    });
}

/// Rolls from pins to files at once. While the two kinds are side by side, ranges move when their owner ends.
async fn roll_without_common_trust(
    fleet: &mut Fleet,
    (watcher, replicas): (&mut Watcher, &mut Vec<Replica>),
) -> Result<f64> {
    fleet.set_peer_trust(PeerTrust::Files);
    let mut refused = 0.0;
    for index in 0..3 {
        let mut ending = replicas.remove(0);
        ensure!(
            ending.name() == format!("manifold-{index}"),
            "another order"
        );
        watcher.remove(ending.name());
        ending.ask_to_end()?;
        ended_well(&mut ending).await?;
        let mut next = fleet.start(index)?;
        next.wait_ready(PATIENCE).await?;
        watcher.add(&next)?;
        replicas.push(next);
        if index < 2 {
            // Both sides report that they do not reach the other.
            until("the others are reported", PATIENCE, POLL, || async {
                for replica in replicas.iter() {
                    let metrics = replica.metrics().await?;
                    let silent = metrics.sum("manifold_members_unreachable", &[]);
                    ensure!(silent >= Some(1.0), "{}: {silent:?}", replica.name());
                }
                Ok(Some(()))
            })
            .await?;
            let said = replicas[0].text("/readyz?verbose").await?;
            ensure!(said.contains("members do not answer: "), "{said}");
        }
        for replica in replicas.iter() {
            let metrics = replica.metrics().await?;
            refused += metrics
                .sum("manifold_peer_refusals_total", &[])
                .unwrap_or(0.0);
        }
    }
    watcher
        .settled("all speak by files", Instant::now(), AFTER_A_CHANGE)
        .await?;
    until("all are reached", PATIENCE, POLL, || async {
        for replica in replicas.iter() {
            let metrics = replica.metrics().await?;
            let silent = metrics.sum("manifold_members_unreachable", &[]);
            ensure!(silent == Some(0.0), "{}: {silent:?}", replica.name());
        }
        Ok(Some(()))
    })
    .await?;
    Ok(refused)
}
