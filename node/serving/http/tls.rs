//! The secure port's certificates: from files that may change, or self-signed.

use std::{
    fmt, fs,
    io::{self, Write},
    net::IpAddr,
    os::unix::fs::OpenOptionsExt,
    path::Path,
    sync::Arc,
    time::Duration,
};

use node_options::{NamedCertificate, ServingOptions};
use reload::{Reloaded, Unreadable};
use rustls::{
    DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme, SupportedCipherSuite,
    client::danger::HandshakeSignatureValid,
    crypto::{
        CryptoProvider, SupportedKxGroup, ring, verify_tls12_signature, verify_tls13_signature,
    },
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, UnixTime, pem::PemObject as _},
    server::{
        ClientHello, ResolvesServerCert,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    sign::CertifiedKey,
};

use super::Error;

/// How often files are examined.
const READ_EVERY: Duration = Duration::from_secs(10);

/// The name under which a self-signed certificate is kept in `--cert-dir`.
const PAIR: &str = "manifold";

/// A certificate with its key, and the DNS names that stand in it.
#[derive(Debug)]
struct Certified {
    key: Arc<CertifiedKey>,
    names: Vec<String>,
}

/// A certificate with its key, from two files.
type Pair = Reloaded<Certified, Error, 2>;

/// Where a certificate comes from.
#[derive(Debug)]
enum Source {
    Files(Pair),
    /// Self-signed and kept in memory alone.
    Made(Arc<CertifiedKey>),
}

impl Source {
    fn get(&self) -> Arc<CertifiedKey> {
        match self {
            Self::Files(pair) => Arc::clone(&pair.get().key),
            Self::Made(key) => Arc::clone(key),
        }
    }
}

/// A certificate and the names it is chosen for; without names, those that stand in it.
#[derive(Debug)]
struct Named {
    names: Vec<String>,
    pair: Pair,
}

/// Certificates that can change while the port is open.
pub(super) struct Certificates {
    default: Source,
    named: Vec<Named>,
    options: ServingOptions,
    provider: Arc<CryptoProvider>,
}

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Certificates")
    }
}

impl Certificates {
    pub(super) fn load(options: &ServingOptions) -> Result<Arc<Self>, Error> {
        let provider = Arc::new(provider(options));
        let default = match &options.certificate {
            Some((cert, key)) => Source::Files(pair(cert, key, &provider)?),
            None => self_signed(options, &provider)?,
        };
        let named = options
            .named
            .iter()
            .map(|one| named(one, &provider))
            .collect::<Result<_, _>>()?;
        Ok(Arc::new(Self {
            default,
            named,
            options: options.clone(),
            provider,
        }))
    }

    /// What every connection begins with.
    pub(super) fn config(self: &Arc<Self>) -> Result<Arc<ServerConfig>, Error> {
        let versions: &[&rustls::SupportedProtocolVersion] = match self.options.only_tls13 {
            true => &[&rustls::version::TLS13],
            false => &[&rustls::version::TLS13, &rustls::version::TLS12],
        };
        let verifier = Arc::new(AnyCertificate(self.provider.clone()));
        let mut config = ServerConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(versions)
            .map_err(|why| Error::Tls(why.to_string()))?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(self.clone());
        config.alpn_protocols = match self.options.http2 {
            true => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
            false => vec![b"http/1.1".to_vec()],
        };
        Ok(Arc::new(config))
    }

    /// Reads the files again and again; ends with the process. What can't be used leaves the old ones in
    /// place.
    pub(super) async fn keep_fresh(self: Arc<Self>) {
        if matches!(self.default, Source::Made(_)) && self.named.is_empty() {
            return;
        }
        reload::follow("the serving certificates", READ_EVERY, || self.refresh()).await;
    }

    /// Whether any has changed. One that can't be used does not keep the others from being read.
    fn refresh(&self) -> Result<bool, Error> {
        let default = match &self.default {
            Source::Files(pair) => Some(pair),
            Source::Made(_) => None,
        };
        let pairs = default
            .into_iter()
            .chain(self.named.iter().map(|one| &one.pair));
        let mut changed = false;
        let mut failed = None;
        for pair in pairs {
            match pair.refresh() {
                Ok(new) => changed |= new,
                Err(why) => failed = failed.or(Some(why)),
            }
        }
        failed.map_or(Ok(changed), Err)
    }

    /// The certificate for a name: one named so, then one whose wildcard covers it, then the default.
    fn choose(&self, asked: Option<&str>) -> Arc<CertifiedKey> {
        let Some(asked) = asked else {
            return self.default.get();
        };
        let wildcard = asked
            .split_once('.')
            .map(|(_, parent)| format!("*.{parent}"));
        let by = |wanted: &str| {
            let mut all = self.named.iter();
            all.find_map(|one| {
                let certified = one.pair.get();
                let names = match one.names.is_empty() {
                    true => &certified.names,
                    false => &one.names,
                };
                let is_named = names.iter().any(|name| name == wanted);
                is_named.then(|| Arc::clone(&certified.key))
            })
        };
        by(asked)
            .or_else(|| by(wildcard.as_deref()?))
            .unwrap_or_else(|| self.default.get())
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let asked = hello.server_name().map(str::to_ascii_lowercase);
        Some(self.choose(asked.as_deref()))
    }
}

fn named(one: &NamedCertificate, provider: &Arc<CryptoProvider>) -> Result<Named, Error> {
    Ok(Named {
        names: one.names.clone(),
        pair: pair(&one.cert_file, &one.key_file, provider)?,
    })
}

/// The DNS names in a certificate.
fn names(key: &CertifiedKey) -> Vec<String> {
    use x509_parser::extensions::GeneralName;
    let parsed = key
        .cert
        .first()
        .and_then(|first| x509_parser::parse_x509_certificate(first).ok());
    let Some((_, certificate)) = parsed else {
        return Vec::new();
    };
    let extension = certificate.subject_alternative_name().ok().flatten();
    let names = extension.map(|extension| extension.value.general_names.clone());
    names
        .into_iter()
        .flatten()
        .filter_map(|name| match name {
            GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
            _ => None,
        })
        .collect()
}

fn wrong(path: &Path, why: impl fmt::Display) -> Error {
    Error::File {
        path: path.display().to_string(),
        why: why.to_string(),
    }
}

impl From<Unreadable> for Error {
    fn from(file: Unreadable) -> Self {
        wrong(&file.path, file.source)
    }
}

fn pair(cert: &Path, key: &Path, provider: &Arc<CryptoProvider>) -> Result<Pair, Error> {
    let paths = [cert.to_owned(), key.to_owned()];
    let [cert, key] = paths.clone();
    let provider = Arc::clone(provider);
    Reloaded::load(paths, move |[chain, private]| {
        let chain = CertificateDer::pem_slice_iter(chain)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|why| wrong(&cert, why))?;
        if chain.is_empty() {
            return Err(wrong(&cert, "no certificate in PEM form"));
        }
        let private = PrivateKeyDer::from_pem_slice(private).map_err(|why| match why {
            rustls::pki_types::pem::Error::NoItemsFound => {
                wrong(&key, "no private key in PEM form")
            }
            why => wrong(&key, why),
        })?;
        let certified = CertifiedKey::from_der(chain, private, &provider);
        let key = certified.map_err(|why| wrong(&key, why))?;
        Ok(Certified {
            names: names(&key),
            key: Arc::new(key),
        })
    })
}

/// As upstream: kept in `--cert-dir` and used again from there, or in memory where none is given.
fn self_signed(options: &ServingOptions, provider: &Arc<CryptoProvider>) -> Result<Source, Error> {
    let kept = options.cert_dir.as_ref().map(|dir| {
        (
            dir.join(format!("{PAIR}.crt")),
            dir.join(format!("{PAIR}.key")),
        )
    });
    if let Some((cert, key)) = &kept
        && cert.exists()
        && key.exists()
    {
        return pair(cert, key, provider).map(Source::Files);
    }
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let bound = options.address.ip();
    if !bound.is_unspecified() && bound != IpAddr::from([127, 0, 0, 1]) {
        names.push(bound.to_string());
    }
    let made =
        rcgen::generate_simple_self_signed(names).map_err(|why| Error::Tls(why.to_string()))?;
    if let Some((cert, key)) = &kept {
        let dir = cert.parent().unwrap_or(cert);
        fs::create_dir_all(dir).map_err(|why| wrong(dir, why))?;
        secretly(key, made.signing_key.serialize_pem().as_bytes())
            .map_err(|why| wrong(key, why))?;
        fs::write(cert, made.cert.pem()).map_err(|why| wrong(cert, why))?;
    }
    let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    CertifiedKey::from_der(vec![made.cert.der().clone()], private, provider)
        .map(|key| Source::Made(Arc::new(key)))
        .map_err(|why| Error::Tls(why.to_string()))
}

/// Writes a file that nobody else may read.
fn secretly(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(content)
}

/// ring, with the cipher suites and key exchanges that were asked for. TLS 1.3's suites always stay, as in
/// Go.
fn provider(options: &ServingOptions) -> CryptoProvider {
    let mut provider = ring::default_provider();
    if !options.cipher_suites.is_empty() {
        provider
            .cipher_suites
            .retain(|suite: &SupportedCipherSuite| {
                let name = format!("{:?}", suite.suite());
                // rustls calls TLS 1.3's TLS13_…; IANA has no version in the name, and Go a second name for
                // ChaCha20's.
                name.starts_with("TLS13_")
                    || options
                        .cipher_suites
                        .iter()
                        .any(|given| *given == name || format!("{given}_SHA256") == name)
            });
    }
    if !options.curves.is_empty() {
        provider
            .kx_groups
            .retain(|group: &&'static dyn SupportedKxGroup| {
                options.curves.contains(&u16::from(group.name()))
            });
    }
    provider
}

/// Asks for a client certificate and takes any whose key the client holds: whom it names and whether that is
/// believed is decided for each request, so that authorities may change and nobody is cut off in the
/// handshake.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ClientCertVerifier for AnyCertificate {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(
            message,
            cert,
            signature,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(
            message,
            cert,
            signature,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use node_options::{Options, Surroundings};

    use super::*;
    use crate::auth::tests::values;

    fn options(words: &[&str]) -> ServingOptions {
        let surroundings = Surroundings {
            host_name: "a".to_owned(),
            ..Surroundings::default()
        };
        Options::new(values(words).unwrap(), &[], &surroundings)
            .unwrap()
            .serving
    }

    fn dir() -> std::path::PathBuf {
        let dir = std::env::temp_dir().join(format!("manifold-tls-{}", uuid::Uuid::new_v4()));
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    fn written(dir: &Path, name: &str) -> (std::path::PathBuf, std::path::PathBuf) {
        let made = rcgen::generate_simple_self_signed(vec![name.to_owned()]).unwrap();
        let paths = (dir.join("tls.crt"), dir.join("tls.key"));
        fs::write(&paths.0, made.cert.pem()).unwrap();
        fs::write(&paths.1, made.signing_key.serialize_pem()).unwrap();
        paths
    }

    #[test]
    fn changed_files_come_into_use_and_broken_ones_do_not() {
        let dir = dir();
        let (cert, key) = written(&dir, "one.test");
        let given = [
            format!("--tls-cert-file={}", cert.display()),
            format!("--tls-private-key-file={}", key.display()),
        ];
        let certificates = Certificates::load(&options(&[&given[0], &given[1]])).unwrap();
        assert!(!certificates.refresh().unwrap(), "nothing has changed");
        fs::write(&cert, "broken").unwrap();
        let why = certificates.refresh().unwrap_err().to_string();
        assert!(
            why.contains("tls.crt") && why.contains("no certificate"),
            "{why}"
        );
        assert_eq!(names(&certificates.default.get()), ["one.test"]);
        written(&dir, "two.test");
        assert!(certificates.refresh().unwrap());
        assert_eq!(names(&certificates.default.get()), ["two.test"]);
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_self_signed_pair_is_kept_where_a_directory_is_given() {
        let dir = dir();
        let given = format!("--cert-dir={}", dir.display());
        let first = Certificates::load(&options(&[&given])).unwrap();
        let second = Certificates::load(&options(&[&given])).unwrap();
        assert_eq!(first.default.get().cert, second.default.get().cert);
        use std::os::unix::fs::PermissionsExt;
        let mode = fs::metadata(dir.join("manifold.key"))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn the_name_that_is_asked_for_decides() {
        let provider = Arc::new(ring::default_provider());
        let dir = dir();
        let make = |name: &str, names: &[&str]| {
            let (cert, key) = written(&dir, name);
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            named(
                &NamedCertificate {
                    cert_file: cert,
                    key_file: key,
                    names,
                },
                &provider,
            )
            .unwrap()
        };
        let (cert, key) = written(&dir, "default.test");
        let certificates = Certificates {
            default: Source::Files(super::pair(&cert, &key, &provider).unwrap()),
            named: vec![make("wild", &["*.x.test"]), make("a.x.test", &[])],
            options: options(&[]),
            provider: provider.clone(),
        };
        for (asked, wanted) in [
            (None, "default.test"),
            (Some("a.x.test"), "a.x.test"),
            (Some("b.x.test"), "wild"),
            (Some("b.y.test"), "default.test"),
            (Some("test"), "default.test"),
        ] {
            assert_eq!(names(&certificates.choose(asked)), [wanted], "{asked:?}");
        }
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn cipher_suites_and_key_exchanges_are_cut_down() {
        let all = provider(&options(&[]));
        let some = provider(&options(&[
            "--tls-cipher-suites=TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305",
            "--tls-curve-preferences=29",
        ]));
        assert_eq!(all.cipher_suites.len(), 9);
        assert_eq!(some.cipher_suites.len(), 5, "{:?}", some.cipher_suites);
        assert_eq!(some.kx_groups.len(), 1);
    }
}
