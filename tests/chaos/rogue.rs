//! Peers that are none: with the wrong certificate, with garbage, with handoffs that are old or not theirs to
//! make.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::stream;
use harness::certificates::{Authority, Identity};
use harness::proxy::{certificates, key, roots};
use harness::{Fleet, Replica};
use hyper_util::rt::TokioIo;
use peer_proto::peer_client::PeerClient;
use peer_proto::{HandoffChunk, HandoffHeader};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};

/// For any answer.
const ANSWER: Duration = Duration::from_secs(5);
/// What every HTTP/2 connection begins with, and an empty SETTINGS frame.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// Sent as garbage.
const GARBAGE: usize = 64 << 10;

fn tls(fleet: &Fleet, identity: &Identity) -> Result<TlsConnector> {
    let mut config = ClientConfig::builder()
        .with_root_certificates(roots(fleet.peers().certificate())?)
        .with_client_auth_cert(certificates(&identity.certificate)?, key(&identity.key)?)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

/// A certificate of another authority: nobody speaks with its owner.
pub(super) async fn wrong_certificate(fleet: &Fleet, to: &Replica) -> Result<()> {
    let stranger = Authority::new("chaos-stranger-ca")?.peer("stranger")?;
    let tcp = TcpStream::connect((Ipv4Addr::LOCALHOST, to.peer_port())).await?;
    let name = ServerName::try_from(to.name().to_owned())?;
    let heard = timeout(ANSWER, async {
        // By TLS 1.3 the client is done before it is refused.
        let mut tls = tls(fleet, &stranger)?.connect(name, tcp).await?;
        tls.write_all(PREFACE).await?;
        let mut answer = [0; 64];
        anyhow::Ok(tls.read(&mut answer).await?)
    })
    .await
    .context("a stranger's connection stays open")?;
    ensure!(
        !heard.as_ref().is_ok_and(|read| *read > 0),
        "{} speaks with a stranger: {heard:?}",
        to.name()
    );
    Ok(())
}

/// Bytes that mean nothing.
pub(super) async fn garbage(random: &mut impl rand::Rng, to: &Replica) -> Result<()> {
    let mut bytes = vec![0; GARBAGE];
    random.fill_bytes(&mut bytes);
    let mut tcp = TcpStream::connect((Ipv4Addr::LOCALHOST, to.peer_port())).await?;
    // It may be closed before all is written.
    let _ = tcp.write_all(&bytes).await;
    let ended = timeout(ANSWER, async {
        let mut answer = Vec::new();
        let _ = tcp.read_to_end(&mut answer).await;
    });
    ended
        .await
        .with_context(|| format!("{} keeps a connection full of garbage", to.name()))
}

async fn channel(fleet: &Fleet, as_name: &str, to: &Replica) -> Result<Channel> {
    let connector = tls(fleet, &fleet.peers().peer(as_name)?)?;
    let (name, port) = (ServerName::try_from(to.name().to_owned())?, to.peer_port());
    let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{port}"))?;
    let connect = tower::service_fn(move |_: http::Uri| {
        let (connector, name) = (connector.clone(), name.clone());
        async move {
            let tcp = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
            Ok::<_, std::io::Error>(TokioIo::new(connector.connect(name, tcp).await?))
        }
    });
    Ok(timeout(ANSWER, endpoint.connect_with_connector(connect)).await??)
}

/// A member that offers what is not its to give: a range of another, and one of its own under an epoch that
/// is over. Whatever it says, the Leases decide.
pub(super) async fn false_handoffs(fleet: &Fleet, liar: &Replica, to: &Replica) -> Result<()> {
    let (its, theirs) = (liar.shards().await?, to.shards().await?);
    let own = its.owned.first().context("the liar owns nothing")?;
    let other = theirs.owned.first().context("the other owns nothing")?;
    let offers = [
        ("a range of the receiver", other.range, other.epoch),
        (
            "a range of its own under an old epoch",
            own.range,
            own.epoch.saturating_sub(1),
        ),
        (
            "a range of its own under an epoch to come",
            own.range,
            own.epoch + 7,
        ),
    ];
    for (what, range, epoch) in offers {
        let header = HandoffHeader {
            fleet: "manifold".to_owned(),
            from: liar.name().to_owned(),
            from_incarnation: its.incarnation.clone(),
            to_incarnation: theirs.incarnation.clone(),
            range,
            epoch,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            attempt: u64::MAX,
        };
        let chunk = HandoffChunk {
            header: Some(header),
            controllers: Vec::new(),
            end: true,
        };
        let mut client = PeerClient::new(channel(fleet, liar.name(), to).await?);
        let answer = timeout(ANSWER, client.handoff(stream::iter([chunk])))
            .await
            .with_context(|| format!("{} does not answer a handoff", to.name()))?;
        let accepted = answer.is_ok_and(|answer| answer.into_inner().accepted);
        ensure!(!accepted, "{} takes {what}", to.name());
    }
    // In another member's name than the certificate's.
    let header = HandoffHeader {
        fleet: "manifold".to_owned(),
        from: to.name().to_owned(),
        from_incarnation: theirs.incarnation.clone(),
        to_incarnation: theirs.incarnation,
        range: own.range,
        epoch: own.epoch,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        attempt: 1,
    };
    let chunk = HandoffChunk {
        header: Some(header),
        controllers: Vec::new(),
        end: true,
    };
    let mut client = PeerClient::new(channel(fleet, liar.name(), to).await?);
    let answer = timeout(ANSWER, client.handoff(stream::iter([chunk]))).await?;
    ensure!(
        !answer.is_ok_and(|answer| answer.into_inner().accepted),
        "{} takes a handoff in its own name from another",
        to.name()
    );
    Ok(())
}
