//! Peers' TLS: mutual, 1.3 alone.
//!
//! A key is accepted because a replica Lease names it ([`Pin`]), or because an authority has certified it for
//! a replica's name (files, read again when they change), or for either reason while a fleet moves from one
//! to the other. Pins rest on the right to write the fleet's Leases, on which ownership rests anyway; nothing
//! is made, mounted or renewed for them: each process makes a key at its start and keeps it in memory.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use coordinator_core::Pin;
use reload::{Reloaded, Unreadable};
use rustls::{
    ClientConfig, DigitallySignedStruct, DistinguishedName, OtherError, RootCertStore,
    ServerConfig, SignatureScheme,
    client::{
        Resumption,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, ring, verify_tls13_signature},
    pki_types::{
        CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime,
        pem::PemObject as _,
    },
    server::{
        ClientHello, ParsedCertificate, ResolvesServerCert, WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    sign::CertifiedKey,
    version::TLS13,
};

use crate::trust::Caller;

/// A mounted Secret changes minutes after its object, so looking every few seconds adds nothing to that.
pub(crate) const RELOAD_PERIOD: Duration = Duration::from_secs(5);

/// The server name that asks for the key that the Lease names. Where certificates from files are accepted
/// too, a server knows by it which of the two its caller knows.
const PINNED_NAME: &str = "pinned.manifold.dev";

/// Why peers' keys or certificates cannot be used.
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
    /// No key could be made.
    #[error("cannot make a key for peers")]
    Key(#[source] Box<dyn std::error::Error + Send + Sync>),
}

fn unfit(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> TlsError {
    TlsError::Unfit(error.into())
}

fn no_key(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> TlsError {
    TlsError::Key(error.into())
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

/// The pin of a certificate's key; `None` for what is no certificate. Read with the parser by which the
/// handshake's signature is verified, so that the two cannot see different keys.
pub(crate) fn pin_of(certificate: &CertificateDer<'_>) -> Option<Pin> {
    let parsed = ParsedCertificate::try_from(certificate).ok()?;
    let key = parsed.subject_public_key_info();
    let digest = ::ring::digest::digest(&::ring::digest::SHA256, &key);
    Some(Pin(digest.as_ref().try_into().ok()?))
}

/// The key that this process has made for itself, in a certificate that it has signed itself.
struct Own {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    pin: Pin,
}

impl Own {
    fn make() -> Result<Self, TlsError> {
        let key = rcgen::KeyPair::generate().map_err(no_key)?;
        let params = rcgen::CertificateParams::new(vec![PINNED_NAME.to_owned()]).map_err(no_key)?;
        let certificate = params.self_signed(&key).map_err(no_key)?.der().clone();
        Ok(Self {
            pin: pin_of(&certificate).ok_or_else(|| no_key("its certificate has none"))?,
            chain: vec![certificate],
            key: PrivatePkcs8KeyDer::from(key.serialize_der()).into(),
        })
    }
}

/// What the files make.
struct Files {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
    verifier: Arc<dyn ClientCertVerifier>,
}

enum Serves {
    /// The own key alone.
    Pinned(Arc<ServerConfig>),
    /// The certificate from files, and the own key where there is one.
    Files(Reloaded<Files, TlsError, 3>),
}

/// How this replica proves who it is, and whom it believes.
pub(crate) struct Tls {
    /// There is one where pins are accepted.
    own: Option<Arc<Own>>,
    serves: Serves,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("pin", &self.pin())
            .finish_non_exhaustive()
    }
}

impl Tls {
    /// A new key, to be known by the Lease; nothing else is accepted of others.
    pub(crate) fn pinned() -> Result<Self, TlsError> {
        let own = Own::make()?;
        let server = server_config(Arc::new(Keys::new(Some(&own), None)?), Arc::new(AnyKey))?;
        Ok(Self {
            own: Some(Arc::new(own)),
            serves: Serves::Pinned(server),
        })
    }

    /// Certificates from files; with `pins` also a new key, and what Leases name is accepted of others.
    pub(crate) fn load(cert: &Path, key: &Path, ca: &Path, pins: bool) -> Result<Self, TlsError> {
        let own = pins.then(Own::make).transpose()?.map(Arc::new);
        let paths = [cert, key, ca].map(Path::to_owned);
        let (named, with) = (paths.clone(), own.clone());
        let files = Reloaded::load(paths, move |content| {
            build(&named, content, with.as_deref())
        })?;
        Ok(Self {
            own,
            serves: Serves::Files(files),
        })
    }

    /// What the own Lease is to say.
    pub(crate) fn pin(&self) -> Option<Pin> {
        self.own.as_ref().map(|own| own.pin)
    }

    pub(crate) fn server(&self) -> Arc<ServerConfig> {
        match &self.serves {
            Serves::Pinned(server) => Arc::clone(server),
            Serves::Files(files) => Arc::clone(&files.get().server),
        }
    }

    /// How a member is called whose Lease has this pin, or none.
    ///
    /// # Errors
    /// Where the two accept no kind of proof in common, or the name cannot stand in a certificate.
    pub(crate) fn client(
        &self,
        name: &str,
        pin: Option<Pin>,
    ) -> Result<(Arc<ClientConfig>, ServerName<'static>), String> {
        match (&self.own, pin, &self.serves) {
            (Some(own), Some(pin), _) => {
                let config = pinned_client(own, pin).map_err(|error| error.to_string())?;
                let name = ServerName::try_from(PINNED_NAME).map_err(|error| error.to_string())?;
                Ok((Arc::new(config), name))
            }
            (_, _, Serves::Files(files)) => {
                let name = ServerName::try_from(name.to_owned())
                    .map_err(|_| format!("replica name {name:?} cannot stand in a certificate"))?;
                Ok((Arc::clone(&files.get().client), name))
            }
            _ => Err(format!(
                "its Lease has no {}: it runs a build from before, or is known by certificate files alone \
                 (--peer-trust=both on either side lets them speak)",
                crate::lease::PEER_PIN
            )),
        }
    }

    /// What a caller has proven by its certificates. The handshake has shown that the key is its own.
    pub(crate) fn caller(&self, chain: &[CertificateDer<'_>]) -> Caller {
        let Some((certificate, rest)) = chain.split_first() else {
            return Caller::Named(Vec::new());
        };
        if let Serves::Files(files) = &self.serves {
            let now = UnixTime::now();
            let verifier = &files.get().verifier;
            if verifier.verify_client_cert(certificate, rest, now).is_ok() {
                return Caller::Named(dns_names(certificate));
            }
        }
        match pin_of(certificate).filter(|_| self.own.is_some()) {
            Some(pin) => Caller::Pinned(pin),
            None => Caller::Named(Vec::new()),
        }
    }

    /// Reads the files again; `true` if they had changed. What does not load leaves the old ones in force.
    pub(crate) fn reload(&self) -> Result<bool, TlsError> {
        match &self.serves {
            Serves::Pinned(_) => Ok(false),
            Serves::Files(files) => files.refresh(),
        }
    }
}

fn build(
    paths: &[PathBuf; 3],
    [cert, key, ca]: &[Vec<u8>; 3],
    own: Option<&Own>,
) -> Result<Files, TlsError> {
    let empty = |at: usize, wanted| TlsError::Empty {
        flag: FLAGS[at],
        path: paths[at].clone(),
        wanted,
    };
    let chain = certificates(cert);
    if chain.is_empty() {
        return Err(empty(0, "certificate"));
    }
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| empty(1, "private key"))?;
    let mut roots = RootCertStore::empty();
    for root in certificates(ca) {
        roots.add(root).map_err(unfit)?;
    }
    if roots.is_empty() {
        return Err(empty(2, "certificate"));
    }
    let roots = Arc::new(roots);
    let provider = Arc::new(ring::default_provider());
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
            .build()
            .map_err(unfit)?;
    let keys = Keys::new(own, Some((chain.clone(), key.clone_key())))?;
    // Where pins are accepted too, who is not certified is checked once the handshake is over.
    let accepts: Arc<dyn ClientCertVerifier> = match own {
        Some(_) => Arc::new(AnyKey),
        None => Arc::clone(&verifier) as _,
    };
    let mut client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(unfit)?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .map_err(unfit)?;
    client.alpn_protocols = vec![b"h2".to_vec()];
    client.resumption = Resumption::disabled();
    Ok(Files {
        server: server_config(Arc::new(keys), accepts)?,
        client: Arc::new(client),
        verifier,
    })
}

fn server_config(
    keys: Arc<Keys>,
    accepts: Arc<dyn ClientCertVerifier>,
) -> Result<Arc<ServerConfig>, TlsError> {
    let mut server = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&TLS13])
        .map_err(unfit)?
        .with_client_cert_verifier(accepts)
        .with_cert_resolver(keys);
    server.alpn_protocols = vec![b"h2".to_vec()];
    // Each connection proves its key again: a resumed one would rest on what was accepted before.
    server.send_tls13_tickets = 0;
    Ok(Arc::new(server))
}

fn pinned_client(own: &Own, pin: Pin) -> Result<ClientConfig, rustls::Error> {
    let mut client = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(ThisKey(pin)))
        .with_client_auth_cert(own.chain.clone(), own.key.clone_key())?;
    client.alpn_protocols = vec![b"h2".to_vec()];
    client.resumption = Resumption::disabled();
    Ok(client)
}

/// A peer whose key is not the one that its Lease names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("its key is {}, but its Lease names {wanted}", shown(.found.as_ref()))]
pub(crate) struct WrongKey {
    wanted: Pin,
    found: Option<Pin>,
}

fn shown(pin: Option<&Pin>) -> String {
    pin.map_or("in no certificate".to_owned(), Pin::to_string)
}

impl WrongKey {
    /// The one that a failed handshake names.
    pub(crate) fn in_error(error: &io::Error) -> Option<Self> {
        let inner = error.get_ref()?.downcast_ref::<rustls::Error>()?;
        let rustls::Error::InvalidCertificate(rustls::CertificateError::Other(other)) = inner
        else {
            return None;
        };
        other.0.downcast_ref::<Self>().cloned()
    }
}

fn verify_signature(
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signed: &DigitallySignedStruct,
) -> Result<HandshakeSignatureValid, rustls::Error> {
    let algorithms = ring::default_provider().signature_verification_algorithms;
    verify_tls13_signature(message, certificate, signed, &algorithms)
}

fn no_tls12() -> rustls::Error {
    rustls::Error::General("peers speak TLS 1.3 alone".to_owned())
}

fn schemes() -> Vec<SignatureScheme> {
    let algorithms = ring::default_provider().signature_verification_algorithms;
    algorithms.supported_schemes()
}

/// Accepts a server for its key alone: what else its certificate says, dates and names, it has written
/// itself.
#[derive(Debug)]
struct ThisKey(Pin);

impl ServerCertVerifier for ThisKey {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let found = pin_of(certificate);
        if found == Some(self.0) {
            return Ok(ServerCertVerified::assertion());
        }
        let why = WrongKey {
            wanted: self.0,
            found,
        };
        Err(rustls::CertificateError::Other(OtherError(Arc::new(why))).into())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(no_tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        schemes()
    }
}

/// Accepts a client that has the key which it shows. Whose key that is, is decided right after the handshake,
/// by [`Tls::caller`]: a Lease that is a few milliseconds on its way can be waited for there.
#[derive(Debug)]
struct AnyKey;

impl ClientCertVerifier for AnyKey {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        match pin_of(certificate) {
            Some(_) => Ok(ClientCertVerified::assertion()),
            None => Err(rustls::CertificateError::BadEncoding.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(no_tls12())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        schemes()
    }
}

/// What a server shows: its own key to a caller that asks for it, or where there is nothing else, a
/// certificate from files to the others.
#[derive(Debug)]
struct Keys {
    own: Option<Arc<CertifiedKey>>,
    from_files: Option<Arc<CertifiedKey>>,
}

impl Keys {
    fn new(
        own: Option<&Own>,
        files: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
    ) -> Result<Self, TlsError> {
        let provider: CryptoProvider = ring::default_provider();
        let certified = |(chain, key)| {
            CertifiedKey::from_der(chain, key, &provider)
                .map(Arc::new)
                .map_err(unfit)
        };
        let own = own.map(|own| (own.chain.clone(), own.key.clone_key()));
        Ok(Self {
            own: own.map(certified).transpose()?,
            from_files: files.map(certified).transpose()?,
        })
    }
}

impl ResolvesServerCert for Keys {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let pinned = hello.server_name() == Some(PINNED_NAME);
        match (&self.own, &self.from_files) {
            (Some(own), _) if pinned => Some(Arc::clone(own)),
            (_, Some(files)) => Some(Arc::clone(files)),
            (own, None) => own.clone(),
        }
    }
}

fn certificates(pem: &[u8]) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem)
        .filter_map(Result::ok)
        .collect()
}

/// The DNS names in a certificate.
fn dns_names(certificate: &CertificateDer<'_>) -> Vec<String> {
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
