//! Peers' TLS: mutual, 1.3 alone, read again when the files change.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use reload::{Reloaded, Unreadable};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::WebPkiClientVerifier,
    version::TLS13,
};

/// A mounted Secret changes minutes after its object, so looking every few seconds adds nothing to that.
pub(crate) const RELOAD_PERIOD: Duration = Duration::from_secs(5);

/// Why peers' certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("--{flag}: cannot read {path}")]
    Read {
        /// Which flag names it.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file holds nothing of use.
    #[error("--{flag}: {path} holds no {wanted} in PEM")]
    Empty {
        /// Which flag names it.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// What should be in it.
        wanted: &'static str,
    },
    /// The parts do not fit.
    #[error("the peers' certificate, key and CA do not work together")]
    Unfit(#[source] Box<dyn std::error::Error + Send + Sync>),
}

#[derive(Debug)]
struct Loaded {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

/// The flags that name the files, in the order in which they are read.
const FLAGS: [&str; 3] = [
    "peer-tls-cert-file",
    "peer-tls-private-key-file",
    "peer-ca-file",
];

impl From<Unreadable> for TlsError {
    fn from(file: Unreadable) -> Self {
        Self::Read {
            flag: FLAGS[file.index],
            path: file.path,
            source: file.source,
        }
    }
}

/// The present configurations.
#[derive(Debug)]
pub(crate) struct Tls(Reloaded<Loaded, TlsError, 3>);

impl Tls {
    pub(crate) fn load(cert: &Path, key: &Path, ca: &Path) -> Result<Self, TlsError> {
        let paths = [cert, key, ca].map(Path::to_owned);
        let named = paths.clone();
        Reloaded::load(paths, move |content| build(&named, content)).map(Self)
    }

    pub(crate) fn server(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.0.get().server)
    }

    pub(crate) fn client(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.0.get().client)
    }

    /// Reads the files again; `true` if they had changed. What does not load leaves the old ones in force.
    pub(crate) fn reload(&self) -> Result<bool, TlsError> {
        self.0.refresh()
    }
}

fn build(paths: &[PathBuf; 3], [cert, key, ca]: &[Vec<u8>; 3]) -> Result<Loaded, TlsError> {
    let empty = |at: usize, wanted| TlsError::Empty {
        flag: FLAGS[at],
        path: paths[at].clone(),
        wanted,
    };
    let unfit = |error: Box<dyn std::error::Error + Send + Sync>| TlsError::Unfit(error);
    let chain = certificates(cert);
    if chain.is_empty() {
        return Err(empty(0, "certificate"));
    }
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| empty(1, "private key"))?;
    let mut roots = RootCertStore::empty();
    for root in certificates(ca) {
        roots.add(root).map_err(|error| unfit(error.into()))?;
    }
    if roots.is_empty() {
        return Err(empty(2, "certificate"));
    }
    let roots = Arc::new(roots);
    let provider = Arc::new(ring::default_provider());
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
            .build()
            .map_err(|error| unfit(error.into()))?;
    let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| unfit(error.into()))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain.clone(), key.clone_key())
        .map_err(|error| unfit(error.into()))?;
    server.alpn_protocols = vec![b"h2".to_vec()];
    let mut client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| unfit(error.into()))?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .map_err(|error| unfit(error.into()))?;
    client.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Loaded {
        server: Arc::new(server),
        client: Arc::new(client),
    })
}

fn certificates(pem: &[u8]) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem)
        .filter_map(Result::ok)
        .collect()
}

/// The DNS names in a certificate.
pub(crate) fn dns_names(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok((_, parsed)) = x509_parser::parse_x509_certificate(certificate) else {
        return Vec::new();
    };
    let Ok(Some(names)) = parsed.subject_alternative_name() else {
        return Vec::new();
    };
    names
        .value
        .general_names
        .iter()
        .filter_map(|name| match name {
            x509_parser::extensions::GeneralName::DNSName(name) => Some((*name).to_owned()),
            _ => None,
        })
        .collect()
}
