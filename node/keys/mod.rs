//! The keys that certificates and tokens are signed with. They are read here, stay here, and can't be
//! printed; what leaves is a certificate or a token.
//!
//! Files are read again when they change. A certificate and its key are taken as one pair: while somebody
//! replaces one after the other, and where the new pair is broken, the one before stays in use.

use std::{
    collections::BTreeMap,
    fmt, fs,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use controllers_identity::{
    certificatesigningrequest_signing::{self as signing, AuthorityFiles},
    serviceaccount_token::KEY_FILE,
    x509::{self, Algorithm, Authority},
};
use controllers_kit::{Flags, Issue, Timestamp};
use ring::{
    digest::{self, SHA256},
    rand::{SecureRandom as _, SystemRandom},
};
use rustls::{
    SignatureScheme,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject as _},
    },
    sign::{Signer, SigningKey},
};

/// Files are examined again this long after the last check, when something is to be signed. Upstream takes up
/// to a minute.
const READ_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// What signs.
pub trait Keys: Send + Sync {
    /// A certificate by one of the authorities, PEM.
    ///
    /// # Errors
    /// Where the authority is missing or has ended, or the request can't be fulfilled.
    fn certificate(&self, issue: &Issue, now: Timestamp) -> Result<String, String>;

    /// A JSON Web Token with these claims. Nobody may print it.
    ///
    /// # Errors
    /// Where there is no key, or it can't sign.
    fn token(&self, claims: &str) -> Result<String, String>;

    /// What every replica must have the same of, by name, each with a hash of its public part as it is now.
    /// Read again from changed files.
    fn fingerprints(&self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }
}

/// None at all: for simulations and tests.
pub struct NoKeys;

impl Keys for NoKeys {
    fn certificate(&self, issue: &Issue, _: Timestamp) -> Result<String, String> {
        Err(format!("there is no authority for {}", issue.signer))
    }

    fn token(&self, _: &str) -> Result<String, String> {
        Err("there is no key for tokens".to_owned())
    }
}

/// Those that flags name.
#[derive(Debug)]
pub struct FileKeys {
    authorities: Vec<(&'static str, Watched<Pair>)>,
    tokens: Option<Watched<TokenKey>>,
}

impl FileKeys {
    /// Reads what the controllers that run need.
    ///
    /// # Errors
    /// Naming the file, what is wrong with it, and what would do.
    pub fn open(flags: &Flags, controllers: &[&str]) -> Result<Self, String> {
        let runs = |name| controllers.contains(&name);
        let authorities = match runs("certificatesigningrequest-signing-controller") {
            true => signing::authorities(flags)?,
            false => Vec::new(),
        };
        let tokens = match runs("serviceaccount-token-controller") {
            true => Some(flags.text(KEY_FILE)).filter(|path| !path.is_empty()),
            false => None,
        };
        Ok(Self {
            authorities: authorities
                .into_iter()
                .map(|files| {
                    let signer = files.signer;
                    Watched::open(files)
                        .map(|pair| (signer, pair))
                        .map_err(|why| {
                            format!("failed to init {signer} certificate controller: {why}")
                        })
                })
                .collect::<Result<_, _>>()?,
            tokens: tokens
                .map(|path| Watched::open(TokenFile(path.to_owned())))
                .transpose()
                .map_err(|why| {
                    format!("error reading key for service account token controller: {why}")
                })?,
        })
    }
}

impl Keys for FileKeys {
    fn certificate(&self, issue: &Issue, now: Timestamp) -> Result<String, String> {
        let found = self
            .authorities
            .iter()
            .find(|(signer, _)| *signer == issue.signer);
        match found {
            Some((_, files)) => files.current()?.issue(issue, now),
            None => NoKeys.certificate(issue, now),
        }
    }

    fn token(&self, claims: &str) -> Result<String, String> {
        match &self.tokens {
            Some(file) => file.current()?.sign(claims),
            None => NoKeys.token(claims),
        }
    }

    fn fingerprints(&self) -> BTreeMap<String, String> {
        /// Of an authority or key whose files can't be used.
        const UNUSABLE: &str = "unusable";
        let said = |hash: Result<String, String>| hash.unwrap_or_else(|_| UNUSABLE.to_owned());
        let mut all: BTreeMap<String, String> = self
            .authorities
            .iter()
            .map(|(signer, files)| {
                let name = signer.strip_prefix("kubernetes.io/").unwrap_or(signer);
                let hash = files.current().map(|pair| fingerprint(&pair.certificate));
                (name.to_owned(), said(hash))
            })
            .collect();
        if let Some(file) = &self.tokens {
            let hash = file
                .current()
                .and_then(|held| held.key.public())
                .map(|public| fingerprint(&public));
            all.insert("service-account-key".to_owned(), said(hash));
        }
        all
    }
}

/// The beginning of a hash: enough to distinguish what people configure.
pub fn fingerprint(public: &[u8]) -> String {
    const BYTES: usize = 8;
    let hash = digest::digest(&SHA256, public);
    hash.as_ref()[..BYTES]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

// ---- files ----

/// What is read from files, and read again when they change.
trait Files {
    /// What they hold.
    type Held;
    /// The files' bytes, one after the other.
    fn read(&self) -> Result<Vec<Vec<u8>>, String>;
    /// What the bytes are.
    fn parse(&self, contents: &[Vec<u8>]) -> Result<Self::Held, Unfit>;
    /// For logs.
    fn name(&self) -> String;
}

/// Why what files hold is not used.
#[derive(Debug, PartialEq, Eq)]
enum Unfit {
    /// It may be half of a change: what was there before stays in use.
    Broken(String),
    /// It is whole, and can't be used: nothing is signed until somebody mends it.
    Refused(String),
}

impl Unfit {
    fn into_text(self) -> String {
        match self {
            Self::Broken(why) | Self::Refused(why) => why,
        }
    }
}

/// Something in files.
struct Watched<H: Held> {
    files: H::Files,
    state: Mutex<State<H>>,
}

/// What can lie in files.
trait Held: Sized {
    /// Which files.
    type Files: Files<Held = Self>;
}

struct State<H> {
    held: Arc<H>,
    /// Of the bytes that were examined last: the bytes themselves are not kept.
    digest: Vec<u8>,
    read: Instant,
    refused: Option<String>,
}

impl<H: Held> fmt::Debug for Watched<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.files.name())
    }
}

fn digest_of(contents: &[Vec<u8>]) -> Vec<u8> {
    let mut context = digest::Context::new(&SHA256);
    for content in contents {
        context.update(&content.len().to_be_bytes());
        context.update(content);
    }
    context.finish().as_ref().to_vec()
}

impl<H: Held> Watched<H> {
    fn open(files: H::Files) -> Result<Self, String> {
        let contents = files.read()?;
        let held = files.parse(&contents).map_err(Unfit::into_text)?;
        Ok(Self {
            state: Mutex::new(State {
                held: Arc::new(held),
                digest: digest_of(&contents),
                read: Instant::now(),
                refused: None,
            }),
            files,
        })
    }

    /// What is to be used now.
    fn current(&self) -> Result<Arc<H>, String> {
        self.after(READ_AGAIN_AFTER)
    }

    /// What is to be used; the files are examined again where the last check is so long ago.
    fn after(&self, patience: Duration) -> Result<Arc<H>, String> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.read.elapsed() >= patience {
            state.read = Instant::now();
            self.read(&mut state);
        }
        match &state.refused {
            Some(why) => Err(why.clone()),
            None => Ok(Arc::clone(&state.held)),
        }
    }

    fn read(&self, state: &mut State<H>) {
        let keeps = |why: &str| {
            tracing::warn!(files = %self.files.name(), "not taken, the one before stays in use: {why}");
        };
        let contents = match self.files.read() {
            Ok(contents) => contents,
            Err(why) => return keeps(&why),
        };
        let digest = digest_of(&contents);
        if digest == state.digest {
            return;
        }
        state.digest = digest;
        match self.files.parse(&contents) {
            Ok(held) => {
                state.held = Arc::new(held);
                state.refused = None;
                tracing::info!(files = %self.files.name(), "has changed and was taken");
            }
            Err(Unfit::Broken(why)) => keeps(&why),
            Err(Unfit::Refused(why)) => state.refused = Some(why),
        }
    }
}

fn read(path: &str) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|why| format!("can't read {path}: {why}"))
}

// ---- keys ----

/// A private key that can't be printed.
struct Private(Arc<dyn SigningKey>);

impl fmt::Debug for Private {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(confidential)")
    }
}

impl Private {
    /// The first private key in some PEM.
    fn read(path: &str, pem: &[u8]) -> Result<Self, String> {
        let wrong = |why: &str| {
            format!(
                "error reading key file {path:?}: {why}: give an RSA key of 2048 to 4096 bits, or an ECDSA key on P-256 or \
                 P-384, in PEM without a passphrase"
            )
        };
        // Neither the library's errors nor ours repeat the bytes.
        let key = PrivateKeyDer::from_pem_slice(pem).map_err(|error| {
            wrong(match error {
                pem::Error::NoItemsFound => "there is no private key in it",
                _ => "it is no PEM",
            })
        })?;
        rustls::crypto::ring::sign::any_supported_type(&key)
            .map(Self)
            .map_err(|_| wrong("the key is of a kind that is not known"))
    }

    fn public(&self) -> Result<Vec<u8>, String> {
        self.0
            .public_key()
            .map(|key| key.as_ref().to_vec())
            .ok_or_else(|| "the key does not contain its public half".to_owned())
    }

    fn signer(&self) -> Result<Box<dyn Signer>, String> {
        self.0
            .choose_scheme(&[
                SignatureScheme::RSA_PKCS1_SHA256,
                SignatureScheme::ECDSA_NISTP256_SHA256,
                SignatureScheme::ECDSA_NISTP384_SHA384,
                SignatureScheme::ED25519,
            ])
            .ok_or_else(|| "the key knows no algorithm that is known here".to_owned())
    }
}

fn sign(signer: &dyn Signer, message: &[u8]) -> Result<Vec<u8>, String> {
    signer.sign(message).map_err(|error| error.to_string())
}

/// An authority's certificate and key.
#[derive(Debug)]
struct Pair {
    authority: Authority,
    /// The authority's certificate, DER.
    certificate: Vec<u8>,
    key: Private,
}

impl Held for Pair {
    type Files = AuthorityFiles;
}

impl Files for AuthorityFiles {
    type Held = Pair;

    fn read(&self) -> Result<Vec<Vec<u8>>, String> {
        Ok(vec![read(&self.certificate)?, read(&self.key)?])
    }

    fn parse(&self, contents: &[Vec<u8>]) -> Result<Pair, Unfit> {
        let [certificate, key] = contents else {
            return Err(Unfit::Broken("there are not two files".to_owned()));
        };
        let path = &self.certificate;
        let wrong = |why: String| format!("error reading CA cert file {path:?}: {why}");
        let certificates: Vec<_> = CertificateDer::pem_slice_iter(certificate)
            .collect::<Result<_, _>>()
            .map_err(|_| Unfit::Broken(wrong("it is no PEM".to_owned())))?;
        let Some(first) = certificates.first() else {
            return Err(Unfit::Broken(wrong(
                "there is no certificate in it".to_owned(),
            )));
        };
        let authority = Authority::read(first).map_err(|why| Unfit::Broken(wrong(why)))?;
        let key = Private::read(&self.key, key).map_err(Unfit::Broken)?;
        if key.public().map_err(Unfit::Broken)? != authority.public_key {
            return Err(Unfit::Broken(wrong(format!(
                "the key in {:?} is not that of the certificate",
                self.key
            ))));
        }
        if certificates.len() != 1 {
            return Err(Unfit::Refused(wrong(format!(
                "expected 1 certificate, found {}",
                certificates.len()
            ))));
        }
        Ok(Pair {
            authority,
            certificate: first.to_vec(),
            key,
        })
    }

    fn name(&self) -> String {
        format!("{} {}", self.certificate, self.key)
    }
}

impl Pair {
    fn issue(&self, issue: &Issue, now: Timestamp) -> Result<String, String> {
        let request = x509::read(&issue.request)?;
        x509::verify(&issue.request)?;
        let usages = x509::Usages::parse(&issue.usages)?;
        let validity = x509::validity(issue.ttl, now, self.authority.not_after)?;
        let mut serial = [0; 16];
        SystemRandom::new()
            .fill(&mut serial)
            .map_err(|_| "the system gives no randomness".to_owned())?;
        let signer = self.key.signer()?;
        let algorithm = match signer.scheme() {
            SignatureScheme::RSA_PKCS1_SHA256 => Algorithm::RsaSha256,
            SignatureScheme::ECDSA_NISTP256_SHA256 => Algorithm::EcdsaSha256,
            SignatureScheme::ECDSA_NISTP384_SHA384 => Algorithm::EcdsaSha384,
            _ => Algorithm::Ed25519,
        };
        let content = x509::to_be_signed(
            &self.authority,
            algorithm,
            &request,
            &usages,
            validity,
            serial,
        );
        let signature = sign(&*signer, &content)?;
        let certificate = x509::signed(&content, algorithm, &signature);
        Ok(x509::pem("CERTIFICATE", &certificate))
    }
}

/// Where the key of tokens lies.
struct TokenFile(String);

/// The key of tokens.
#[derive(Debug)]
struct TokenKey {
    key: Private,
    /// The first part of every token.
    header: String,
    /// Bytes of each half of an ECDSA signature; 0 for RSA.
    half: usize,
}

impl Held for TokenKey {
    type Files = TokenFile;
}

impl Files for TokenFile {
    type Held = TokenKey;

    fn read(&self) -> Result<Vec<Vec<u8>>, String> {
        Ok(vec![read(&self.0)?])
    }

    fn parse(&self, contents: &[Vec<u8>]) -> Result<TokenKey, Unfit> {
        let pem = contents.first().map_or(&[][..], Vec::as_slice);
        let key = Private::read(&self.0, pem).map_err(Unfit::Broken)?;
        TokenKey::new(key).map_err(Unfit::Broken)
    }

    fn name(&self) -> String {
        self.0.clone()
    }
}

impl TokenKey {
    fn new(key: Private) -> Result<Self, String> {
        let (algorithm, half) = match key.signer()?.scheme() {
            SignatureScheme::RSA_PKCS1_SHA256 => ("RS256", 0),
            SignatureScheme::ECDSA_NISTP256_SHA256 => ("ES256", 32),
            SignatureScheme::ECDSA_NISTP384_SHA384 => ("ES384", 48),
            _ => return Err("unknown private key type, must be RSA or ECDSA".to_owned()),
        };
        let id = URL_SAFE_NO_PAD.encode(digest::digest(&SHA256, &key.public()?));
        // In this order: the bytes are part of what is signed.
        let header = URL_SAFE_NO_PAD.encode(format!(r#"{{"alg":"{algorithm}","kid":"{id}"}}"#));
        Ok(Self { key, header, half })
    }

    fn sign(&self, claims: &str) -> Result<String, String> {
        let content = format!("{}.{}", self.header, URL_SAFE_NO_PAD.encode(claims));
        let signature = sign(&*self.key.signer()?, content.as_bytes())?;
        let signature = match self.half {
            0 => signature,
            half => halves(&signature, half)
                .ok_or_else(|| "the signature is of an unknown form".to_owned())?,
        };
        Ok(format!("{content}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }
}

/// An ECDSA signature as tokens have it, two numbers of a fixed length, from its DER.
fn halves(der: &[u8], half: usize) -> Option<Vec<u8>> {
    // A sequence of two integers; for these curves all lengths are below 128 or take one byte more.
    let rest = match *der.get(..2)? {
        [0x30, 0x81] => der.get(3..)?,
        [0x30, _] => der.get(2..)?,
        _ => return None,
    };
    let (first, rest) = integer(rest, half)?;
    let (second, rest) = integer(rest, half)?;
    rest.is_empty().then(|| [first, second].concat())
}

/// An integer of DER in this many bytes, and what follows it.
fn integer(der: &[u8], length: usize) -> Option<(Vec<u8>, &[u8])> {
    let [0x02, count, rest @ ..] = der else {
        return None;
    };
    let (bytes, rest) = rest.split_at_checked(usize::from(*count))?;
    let start = bytes.iter().position(|byte| *byte != 0)?;
    let bytes = &bytes[start..];
    let mut fixed = vec![0; length.checked_sub(bytes.len())?];
    fixed.extend_from_slice(bytes);
    Some((fixed, rest))
}

#[cfg(test)]
mod tests;
