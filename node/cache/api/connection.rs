//! The connection below a client: TCP, tunnel, TLS, HTTP/2, and kube's layers over them.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderValue, header};
use http_body_util::{BodyExt as _, combinators::UnsyncBoxBody};
use hyper_util::{
    client::legacy::{
        Client,
        connect::{
            Connect, HttpConnector,
            proxy::{SocksV5, Tunnel},
        },
    },
    rt::{TokioExecutor, TokioTimer},
};
use kube::client::{Body, ConfigExt as _};
use tower::{BoxError, Layer as _, ServiceExt as _, util::BoxCloneSyncService};

use super::error::{ConnectError, causes};
use crate::{
    only::Only,
    proxy::{self, Way},
    socket::{Guard, Line, Socket},
    switch::{Connection, Validity},
};

/// The body of an answer, wherever it comes from.
pub type AnswerBody = UnsyncBoxBody<Bytes, BoxError>;

/// What answers requests: a connection, or a simulated API server.
pub type Service = BoxCloneSyncService<http::Request<Body>, http::Response<AnswerBody>, BoxError>;

/// A [`Service`] of a simulation says by it that no answer came.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct NoAnswer {
    /// The reason, for people.
    pub reason: String,
    /// Whether the server can't have seen the request.
    pub before_sending: bool,
}

/// What a connection is for. It decides how soon a dead connection is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Lists and watches: much data, long silences.
    Watches,
    /// Writes and single reads.
    Writes,
    /// Reviews of who asks this process: rare, so that nothing is sent while there is none.
    Reviews,
    /// Leases: a connection that has died must be replaced well within the renew deadline.
    Leases {
        /// How often something is asked over it, and comes back, as long as all is well.
        period: Duration,
        /// What is asked must have come back by then, over another connection if need be.
        deadline: Duration,
    },
}

impl Purpose {
    /// How long nothing comes before a connection is pinged, and how long an answer may take before it is
    /// given up.
    pub(crate) fn pings(self) -> (Duration, Duration) {
        match self {
            Self::Watches => (Duration::from_secs(10), Duration::from_secs(10)),
            Self::Writes => (Duration::from_secs(5), Duration::from_secs(5)),
            Self::Reviews => (Duration::from_secs(3), Duration::from_secs(3)),
            Self::Leases { period, deadline } => {
                // None is sent where answers come: a process at rest wakes up for each.
                let quiet = period * 5 / 4;
                match quiet + period * 3 / 2 <= deadline {
                    true => (quiet, period),
                    false => (deadline / 4, deadline / 4),
                }
            }
        }
    }

    /// Bytes that the server may send ahead of their being read: for each stream, and for the connection.
    fn windows(self) -> (u32, u32) {
        const MIB: u32 = 1 << 20;
        match self {
            Self::Watches => (4 * MIB, 16 * MIB),
            Self::Writes | Self::Reviews | Self::Leases { .. } => (MIB, 4 * MIB),
        }
    }
}

/// How long a TCP connection may take to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// What a request is sent as that names nothing else: the configuration's User-Agent header or the build's
/// own. kube would add the configured one to the request's, so it is taken out of the configuration.
fn own_user_agent(config: &kube::Config) -> (HeaderValue, kube::Config) {
    let mut config = config.clone();
    let (named, others) = std::mem::take(&mut config.headers)
        .into_iter()
        .partition(|(name, _)| *name == header::USER_AGENT);
    config.headers = others;
    let named: Vec<(http::HeaderName, HeaderValue)> = named;
    let name = named.into_iter().next().map_or(
        HeaderValue::from_static(concat!("manifold/", env!("CARGO_PKG_VERSION"))),
        |(_, value)| value,
    );
    (name, config)
}

/// A connection with these credentials and authorities, or with the authorities alone.
pub(super) fn connect(
    config: &kube::Config,
    purpose: Purpose,
    anonymous: bool,
    guard: &Arc<OnceLock<Arc<dyn Guard>>>,
) -> Result<Connection, ConnectError> {
    let mut config = config.clone();
    match anonymous {
        true => {
            config.auth_info = kube::config::AuthInfo::default();
            config
                .headers
                .retain(|(name, _)| *name == header::USER_AGENT);
        }
        false => check_client_certificate(&config)?,
    }
    let way = proxy::way(config.proxy_url.as_ref())?;
    let line = Line::guarded(guard);
    let unusable = |error: Box<kube::Error>| ConnectError::Config {
        server: config
            .cluster_url
            .to_string()
            .trim_end_matches('/')
            .to_owned(),
        reason: causes(error.as_ref()),
    };
    let tls = config
        .rustls_client_config()
        .map_err(|error| unusable(Box::new(error)))?;
    let validity = validity(&tls);
    let service = connection(&config, tls, way, purpose, &line).map_err(unusable)?;
    Ok(Connection::new(service, line, validity))
}

/// Of the certificate that is shown to the server, wherever it comes from: a file, the kubeconfig or a
/// plugin.
fn validity(tls: &rustls::ClientConfig) -> Option<Validity> {
    use rustls::SignatureScheme as Scheme;
    let schemes = [
        Scheme::ECDSA_NISTP256_SHA256,
        Scheme::ECDSA_NISTP384_SHA384,
        Scheme::ECDSA_NISTP521_SHA512,
        Scheme::ED25519,
        Scheme::RSA_PSS_SHA256,
        Scheme::RSA_PKCS1_SHA256,
    ];
    let key = tls.client_auth_cert_resolver.resolve(&[], &schemes)?;
    let (_, certificate) = x509_parser::parse_x509_certificate(key.cert.first()?).ok()?;
    let validity = certificate.validity();
    Some(Validity {
        begins: validity.not_before.timestamp(),
        ends: validity.not_after.timestamp(),
    })
}

/// TCP to the server or its proxy, a tunnel if there is a proxy, TLS, and kube's layers over one HTTP/2
/// connection.
fn connection(
    config: &kube::Config,
    tls: rustls::ClientConfig,
    way: Way,
    purpose: Purpose,
    line: &Arc<Line>,
) -> Result<Service, Box<kube::Error>> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(Duration::from_secs(30)));
    tcp.set_connect_timeout(Some(
        config
            .connect_timeout
            .map_or(CONNECT_TIMEOUT, |configured| {
                configured.min(CONNECT_TIMEOUT)
            }),
    ));
    let mut https = hyper_rustls::HttpsConnectorBuilder::new()
        .with_tls_config(tls.clone())
        .https_or_http();
    if let Some(name) = &config.tls_server_name {
        let name = rustls::pki_types::ServerName::try_from(name.clone())
            .map_err(|error| Box::new(kube::Error::Service(Box::new(error))))?;
        https = https.with_server_name_resolver(hyper_rustls::FixedServerNameResolver::new(name));
    }
    let https = https.enable_all_versions();
    let line = Arc::clone(line);
    let socket = tcp.map_response(move |tcp| Socket::new(tcp, Arc::clone(&line)));
    match way {
        Way::Direct => layers(config, purpose, https.wrap_connector(socket)),
        Way::Connect {
            proxy,
            authorization,
        } => {
            // As in Go the proxy is trusted by the same authorities, and shown the same certificate.
            let to_proxy = hyper_rustls::HttpsConnectorBuilder::new()
                .with_tls_config(tls)
                .https_or_http()
                .enable_http1()
                .wrap_connector(socket);
            let mut tunnel = Tunnel::new(proxy, to_proxy);
            if let Some(authorization) = authorization {
                tunnel = tunnel.with_auth(authorization);
            }
            layers(config, purpose, https.wrap_connector(tunnel))
        }
        Way::Socks5 { proxy, user } => {
            let mut socks = SocksV5::new(proxy, socket);
            if let Some((name, password)) = user {
                socks = socks.with_auth(name, password);
            }
            layers(config, purpose, https.wrap_connector(socks))
        }
    }
}

/// kube's layers over HTTP/2 by this connector.
fn layers<C>(config: &kube::Config, purpose: Purpose, https: C) -> Result<Service, Box<kube::Error>>
where
    C: Connect + Clone + Send + Sync + 'static,
{
    let (interval, timeout) = purpose.pings();
    let (stream_window, connection_window) = purpose.windows();
    let client: Client<_, Body> = Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .http2_keep_alive_interval(interval)
        .http2_keep_alive_timeout(timeout)
        .http2_keep_alive_while_idle(purpose != Purpose::Reviews)
        .http2_initial_stream_window_size(stream_window)
        .http2_initial_connection_window_size(connection_window)
        .build(https);

    let client = client
        .map_response(|answer: http::Response<hyper::body::Incoming>| {
            answer.map(|body| body.map_err(BoxError::from).boxed_unsync())
        })
        .map_err(BoxError::from);
    let (name, config) = own_user_agent(config);
    let client = client.map_request(move |mut request: http::Request<Body>| {
        let headers = request.headers_mut();
        headers
            .entry(header::USER_AGENT)
            .or_insert_with(|| name.clone());
        request
    });
    let client = Only::new(client, config.cluster_url.path());
    let with_headers = config
        .extra_headers_layer()
        .map_err(Box::new)?
        .layer(client);
    let service = match config.auth_layer().map_err(Box::new)? {
        Some(auth) => {
            BoxCloneSyncService::new(config.base_uri_layer().layer(auth.layer(with_headers)))
        }
        None => BoxCloneSyncService::new(config.base_uri_layer().layer(with_headers)),
    };
    Ok(service)
}

/// rustls refuses X.509 v1 with a message that names neither the file nor the remedy; so it is examined
/// before.
fn check_client_certificate(config: &kube::Config) -> Result<(), ConnectError> {
    use rustls::pki_types::{CertificateDer, pem::PemObject as _};

    let auth = &config.auth_info;
    let (name, pem) = if let Some(data) = &auth.client_certificate_data {
        use base64::Engine as _;
        let name = "in the kubeconfig's client-certificate-data".to_owned();
        match base64::engine::general_purpose::STANDARD.decode(data.trim()) {
            Ok(pem) => (name, pem),
            Err(error) => return Err(ConnectError::Certificate(name, error.to_string())),
        }
    } else if let Some(path) = &auth.client_certificate {
        match std::fs::read(path) {
            Ok(pem) => (path.clone(), pem),
            Err(error) => return Err(ConnectError::Certificate(path.clone(), error.to_string())),
        }
    } else {
        return Ok(());
    };
    let leaf = CertificateDer::pem_slice_iter(&pem)
        .next()
        .ok_or_else(|| ConnectError::Certificate(name.clone(), "it holds none".to_owned()))?
        .map_err(|error| ConnectError::Certificate(name.clone(), error.to_string()))?;
    let (_, certificate) = x509_parser::parse_x509_certificate(&leaf)
        .map_err(|error| ConnectError::Certificate(name.clone(), error.to_string()))?;
    // The encoding counts from 0.
    match certificate.version().0 + 1 {
        3 => Ok(()),
        version => Err(ConnectError::CertificateVersion(name, version)),
    }
}
