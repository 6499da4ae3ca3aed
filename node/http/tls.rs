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

use arc_swap::ArcSwap;
use rustls::{
    DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme, SupportedCipherSuite,
    client::danger::HandshakeSignatureValid,
    crypto::{
        CryptoProvider, SupportedKxGroup, ring, verify_tls12_signature, verify_tls13_signature,
    },
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, UnixTime},
    server::{
        ClientHello, ResolvesServerCert,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    sign::CertifiedKey,
};

use super::Error;
use crate::options::{NamedCertificate, ServingOptions};

/// How often files are looked at.
const LOOKED_AT_EVERY: Duration = Duration::from_secs(10);

/// The name under which a self-signed certificate is kept in `--cert-dir`.
const PAIR: &str = "manifold";

/// A certificate and the names it is chosen for.
#[derive(Debug)]
struct Named {
    names: Vec<String>,
    key: Arc<CertifiedKey>,
}

#[derive(Debug)]
struct Keys {
    default: Arc<CertifiedKey>,
    named: Vec<Named>,
}

/// Certificates that can change while the port is open.
pub(super) struct Certificates {
    now: ArcSwap<Keys>,
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
        let keys = keys(options, &provider, None)?;
        Ok(Arc::new(Self {
            now: ArcSwap::from_pointee(keys),
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

    /// Reads the files again and again; ends with the process. What can't be used leaves the old ones in place.
    pub(super) async fn keep_fresh(self: Arc<Self>) {
        if self.options.certificate.is_none() && self.options.named.is_empty() {
            return;
        }
        let mut complained = String::new();
        loop {
            tokio::time::sleep(LOOKED_AT_EVERY).await;
            match self.refresh() {
                Ok(true) => {
                    complained.clear();
                    tracing::info!("the serving certificates have changed and are in use");
                }
                Ok(false) => complained.clear(),
                Err(why) if why.to_string() != complained => {
                    complained = why.to_string();
                    tracing::warn!(
                        why = complained,
                        "the serving certificates can't be read again: the old ones stay"
                    );
                }
                Err(_) => {}
            }
        }
    }

    fn refresh(&self) -> Result<bool, Error> {
        let now = self.now.load_full();
        let keys = keys(&self.options, &self.provider, Some(&now.default))?;
        let same = |left: &CertifiedKey, right: &CertifiedKey| left.cert == right.cert;
        let changed = !same(&keys.default, &now.default)
            || keys
                .named
                .iter()
                .zip(&now.named)
                .any(|(left, right)| !same(&left.key, &right.key));
        if changed {
            self.now.store(Arc::new(keys));
        }
        Ok(changed)
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let keys = self.now.load();
        let asked = hello.server_name().map(str::to_ascii_lowercase);
        Some(choose(&keys, asked.as_deref()).clone())
    }
}

/// The certificate for a name: one named so, then one whose wildcard covers it, then the default.
fn choose<'a>(keys: &'a Keys, asked: Option<&str>) -> &'a Arc<CertifiedKey> {
    let Some(asked) = asked else {
        return &keys.default;
    };
    let wildcard = asked
        .split_once('.')
        .map(|(_, parent)| format!("*.{parent}"));
    let by = |wanted: &str| {
        keys.named
            .iter()
            .find(|one| one.names.iter().any(|name| name == wanted))
    };
    by(asked)
        .or_else(|| by(wildcard.as_deref()?))
        .map_or(&keys.default, |one| &one.key)
}

fn keys(
    options: &ServingOptions,
    provider: &CryptoProvider,
    generated: Option<&Arc<CertifiedKey>>,
) -> Result<Keys, Error> {
    let default = match (&options.certificate, generated) {
        (Some((cert, key)), _) => from_files(cert, key, provider)?,
        (None, Some(old)) => old.clone(),
        (None, None) => self_signed(options, provider)?,
    };
    let named = options
        .named
        .iter()
        .map(|one| named(one, provider))
        .collect::<Result<_, _>>()?;
    Ok(Keys { default, named })
}

fn named(one: &NamedCertificate, provider: &CryptoProvider) -> Result<Named, Error> {
    let key = from_files(&one.cert_file, &one.key_file, provider)?;
    let names = match one.names.is_empty() {
        true => names(&key),
        false => one.names.clone(),
    };
    Ok(Named { names, key })
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

fn from_files(
    cert: &Path,
    key: &Path,
    provider: &CryptoProvider,
) -> Result<Arc<CertifiedKey>, Error> {
    let pem = fs::read(cert).map_err(|why| wrong(cert, why))?;
    let chain = rustls_pemfile::certs(&mut pem.as_slice())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|why| wrong(cert, why))?;
    if chain.is_empty() {
        return Err(wrong(cert, "no certificate in PEM form"));
    }
    let pem = fs::read(key).map_err(|why| wrong(key, why))?;
    let private = rustls_pemfile::private_key(&mut pem.as_slice())
        .map_err(|why| wrong(key, why))?
        .ok_or_else(|| wrong(key, "no private key in PEM form"))?;
    certified(chain, private, provider).map_err(|why| wrong(key, why))
}

fn certified(
    chain: Vec<CertificateDer<'static>>,
    private: PrivateKeyDer<'static>,
    provider: &CryptoProvider,
) -> Result<Arc<CertifiedKey>, rustls::Error> {
    CertifiedKey::from_der(chain, private, provider).map(Arc::new)
}

/// As upstream: kept in `--cert-dir` and used again from there, or in memory where none is given.
fn self_signed(
    options: &ServingOptions,
    provider: &CryptoProvider,
) -> Result<Arc<CertifiedKey>, Error> {
    let pair = options.cert_dir.as_ref().map(|dir| {
        (
            dir.join(format!("{PAIR}.crt")),
            dir.join(format!("{PAIR}.key")),
        )
    });
    if let Some((cert, key)) = &pair
        && cert.exists()
        && key.exists()
    {
        return from_files(cert, key, provider);
    }
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let bound = options.address.ip();
    if !bound.is_unspecified() && bound != IpAddr::from([127, 0, 0, 1]) {
        names.push(bound.to_string());
    }
    let made =
        rcgen::generate_simple_self_signed(names).map_err(|why| Error::Tls(why.to_string()))?;
    if let Some((cert, key)) = &pair {
        let dir = cert.parent().unwrap_or(cert);
        fs::create_dir_all(dir).map_err(|why| wrong(dir, why))?;
        secretly(key, made.signing_key.serialize_pem().as_bytes())
            .map_err(|why| wrong(key, why))?;
        fs::write(cert, made.cert.pem()).map_err(|why| wrong(cert, why))?;
    }
    let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    certified(vec![made.cert.der().clone()], private, provider)
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

/// ring, with the cipher suites and key exchanges that were asked for. TLS 1.3's suites always stay, as in Go.
fn provider(options: &ServingOptions) -> CryptoProvider {
    let mut provider = ring::default_provider();
    if !options.cipher_suites.is_empty() {
        provider
            .cipher_suites
            .retain(|suite: &SupportedCipherSuite| {
                let name = format!("{:?}", suite.suite());
                // rustls calls TLS 1.3's TLS13_…; IANA has no version in the name, and Go a second name for ChaCha20's.
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

/// Asks for a client certificate and takes any whose key the client holds: whom it names and whether that is believed
/// is decided for each request, so that authorities may change and nobody is cut off in the handshake.
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
    use super::*;
    use crate::{
        args::tests::values,
        options::{Options, Surroundings},
    };

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

    fn pair(dir: &Path, name: &str) -> (std::path::PathBuf, std::path::PathBuf) {
        let made = rcgen::generate_simple_self_signed(vec![name.to_owned()]).unwrap();
        let paths = (dir.join("tls.crt"), dir.join("tls.key"));
        fs::write(&paths.0, made.cert.pem()).unwrap();
        fs::write(&paths.1, made.signing_key.serialize_pem()).unwrap();
        paths
    }

    #[test]
    fn changed_files_come_into_use_and_broken_ones_do_not() {
        let dir = dir();
        let (cert, key) = pair(&dir, "one.test");
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
        assert_eq!(names(&certificates.now.load().default), ["one.test"]);
        pair(&dir, "two.test");
        assert!(certificates.refresh().unwrap());
        assert_eq!(names(&certificates.now.load().default), ["two.test"]);
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_self_signed_pair_is_kept_where_a_directory_is_given() {
        let dir = dir();
        let given = format!("--cert-dir={}", dir.display());
        let first = Certificates::load(&options(&[&given])).unwrap();
        let second = Certificates::load(&options(&[&given])).unwrap();
        assert_eq!(
            first.now.load().default.cert,
            second.now.load().default.cert
        );
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
        let provider = ring::default_provider();
        let dir = dir();
        let make = |name: &str, names: &[&str]| {
            let (cert, key) = pair(&dir, name);
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
        let (cert, key) = pair(&dir, "default.test");
        let keys = Keys {
            default: from_files(&cert, &key, &provider).unwrap(),
            named: vec![make("wild", &["*.x.test"]), make("a.x.test", &[])],
        };
        for (asked, wanted) in [
            (None, "default.test"),
            (Some("a.x.test"), "a.x.test"),
            (Some("b.x.test"), "wild"),
            (Some("b.y.test"), "default.test"),
            (Some("test"), "default.test"),
        ] {
            assert_eq!(names(choose(&keys, asked)), [wanted], "{asked:?}");
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
