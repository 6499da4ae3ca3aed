//! Peers' TLS: mutual, 1.3 alone, read again when the files change.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, RwLock},
    time::Duration,
};

use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer},
    server::WebPkiClientVerifier,
    version::TLS13,
};

/// A mounted Secret changes minutes after its object, so looking every few seconds adds nothing to that.
pub(crate) const RELOAD_PERIOD: Duration = Duration::from_secs(5);

/// A file of certificates larger than this is not one.
const FILE_BYTES_MAX: u64 = 1 << 20;

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

#[derive(Clone, Debug, PartialEq, Eq)]
struct Pem {
    cert: Vec<u8>,
    key: Vec<u8>,
    ca: Vec<u8>,
}

#[derive(Clone, Debug)]
struct Loaded {
    pem: Pem,
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

/// The present configurations.
#[derive(Debug)]
pub(crate) struct Tls {
    files: [(&'static str, PathBuf); 3],
    loaded: RwLock<Loaded>,
}

impl Tls {
    pub(crate) fn load(cert: &Path, key: &Path, ca: &Path) -> Result<Self, TlsError> {
        let files = [
            ("peer-tls-cert-file", cert.to_owned()),
            ("peer-tls-private-key-file", key.to_owned()),
            ("peer-ca-file", ca.to_owned()),
        ];
        let loaded = build(&files, read(&files)?)?;
        Ok(Self {
            files,
            loaded: RwLock::new(loaded),
        })
    }

    pub(crate) fn server(&self) -> Arc<ServerConfig> {
        Arc::clone(
            &self
                .loaded
                .read()
                .unwrap_or_else(std::sync::PoisonError::into_inner)
                .server,
        )
    }

    pub(crate) fn client(&self) -> Arc<ClientConfig> {
        Arc::clone(
            &self
                .loaded
                .read()
                .unwrap_or_else(std::sync::PoisonError::into_inner)
                .client,
        )
    }

    /// Reads the files again; `true` if they had changed. What does not load leaves the old ones in force.
    pub(crate) fn reload(&self) -> Result<bool, TlsError> {
        let pem = read(&self.files)?;
        if self
            .loaded
            .read()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .pem
            == pem
        {
            return Ok(false);
        }
        let loaded = build(&self.files, pem)?;
        *self
            .loaded
            .write()
            .unwrap_or_else(std::sync::PoisonError::into_inner) = loaded;
        Ok(true)
    }
}

fn read(files: &[(&'static str, PathBuf); 3]) -> Result<Pem, TlsError> {
    let one = |(flag, path): &(&'static str, PathBuf)| {
        let failed = |source| TlsError::Read {
            flag,
            path: path.clone(),
            source,
        };
        let length = std::fs::metadata(path).map_err(failed)?.len();
        if length > FILE_BYTES_MAX {
            return Err(failed(io::Error::other(format!(
                "{length} bytes are too many for certificates"
            ))));
        }
        std::fs::read(path).map_err(failed)
    };
    Ok(Pem {
        cert: one(&files[0])?,
        key: one(&files[1])?,
        ca: one(&files[2])?,
    })
}

fn build(files: &[(&'static str, PathBuf); 3], pem: Pem) -> Result<Loaded, TlsError> {
    let empty = |at: usize, wanted| TlsError::Empty {
        flag: files[at].0,
        path: files[at].1.clone(),
        wanted,
    };
    let unfit = |error: Box<dyn std::error::Error + Send + Sync>| TlsError::Unfit(error);
    let chain = certificates(&pem.cert);
    if chain.is_empty() {
        return Err(empty(0, "certificate"));
    }
    let key: PrivateKeyDer<'static> = rustls_pemfile::private_key(&mut pem.key.as_slice())
        .ok()
        .flatten()
        .ok_or_else(|| empty(1, "private key"))?;
    let mut roots = RootCertStore::empty();
    for root in certificates(&pem.ca) {
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
        pem,
        server: Arc::new(server),
        client: Arc::new(client),
    })
}

fn certificates(pem: &[u8]) -> Vec<CertificateDer<'static>> {
    rustls_pemfile::certs(&mut &*pem)
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
