//! Whose certificates are believed: from files, and from the ConfigMap in which the API server publishes its
//! own.

use std::{
    path::Path,
    sync::{Arc, LazyLock},
    time::Duration,
};

use arc_swap::ArcSwap;
use kube::Client;
use node_connection::components::{self, causes};
use node_options::AuthenticationOptions;
use reload::{Reloaded, Unreadable};
use ring::digest;
use rustls::{
    RootCertStore,
    crypto::CryptoProvider,
    pki_types::{CertificateDer, UnixTime, pem::PemObject as _},
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
};
use serde_json::Value;
use x509_parser::x509::X509Name;

use super::User;

const CONFIG_MAP: &str =
    "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";

/// How long the lookup may take.
const LOOKUP_MAX: Duration = Duration::from_secs(10);

static PROVIDER: LazyLock<Arc<CryptoProvider>> =
    LazyLock::new(|| Arc::new(rustls::crypto::ring::default_provider()));

/// Why nobody can be known.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A kubeconfig.
    #[error(transparent)]
    Kubeconfig(#[from] components::Error),
    /// A file of authorities.
    #[error("--{flag} {path}: {why}: it must hold CA certificates in PEM form")]
    File {
        /// Which flag named it.
        flag: &'static str,
        /// The file.
        path: String,
        /// What is wrong.
        why: String,
    },
    /// A file of authorities that can't be read again.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// The cluster's.
    #[error(
        "client CAs can't be read from ConfigMap kube-system/extension-apiserver-authentication: {0}: grant the \
         role extension-apiserver-authentication-reader, or give --authentication-skip-lookup or \
         --authentication-tolerate-lookup-failure"
    )]
    Lookup(String),
}

/// Authorities that vouch for clients.
#[derive(Debug)]
pub(super) struct Authority {
    verifier: Arc<dyn ClientCertVerifier>,
}

impl Authority {
    /// From certificates in PEM form.
    pub(super) fn new(pem: &[u8]) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(pem) {
            let certificate = certificate.map_err(|why| why.to_string())?;
            roots.add(certificate).map_err(|why| why.to_string())?;
        }
        if roots.is_empty() {
            return Err("no certificate found".to_owned());
        }
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), PROVIDER.clone())
                .build()
                .map_err(|why| why.to_string())?;
        Ok(Self { verifier })
    }

    /// Whether it vouches for the first, with the others between.
    pub(super) fn verify(&self, certificates: &[CertificateDer<'static>]) -> Result<(), String> {
        let (first, others) = certificates.split_first().ok_or("no certificate")?;
        let verified = self
            .verifier
            .verify_client_cert(first, others, UnixTime::now());
        verified.map(drop).map_err(|why| why.to_string())
    }
}

/// What names a user's UID in the subject of a certificate: Kubernetes' own.
const UID: &str = "1.3.6.1.4.1.57683.2";

/// The UID that a subject names; empty where it names none.
fn uid_of(subject: &X509Name<'_>) -> Result<String, String> {
    let mut found = subject
        .iter_attributes()
        .filter(|one| one.attr_type().to_id_string() == UID);
    let Some(first) = found.next() else {
        return Ok(String::new());
    };
    let more = found.count();
    match first.as_str() {
        _ if more > 0 => Err(format!("expected 1 UID, but found {}", more + 1)),
        Err(_) => Err("unable to parse UID into a string".to_owned()),
        Ok("") => Err("UID cannot be an empty string".to_owned()),
        Ok(uid) => Ok(uid.to_owned()),
    }
}

/// The user that a certificate names: its common name, its organisations as groups and, where that is
/// asked for, its UID.
pub(super) fn subject(certificate: &CertificateDer<'_>, with_uid: bool) -> Result<User, String> {
    let (_, parsed) =
        x509_parser::parse_x509_certificate(certificate).map_err(|why| why.to_string())?;
    let subject = parsed.subject();
    let name = subject
        .iter_common_name()
        .last()
        .and_then(|name| name.as_str().ok());
    let groups = subject
        .iter_organization()
        .filter_map(|group| group.as_str().ok());
    match name {
        Some(name) if !name.is_empty() => Ok(User {
            name: name.to_owned(),
            groups: groups.map(str::to_owned).collect(),
            uid: match with_uid {
                true => uid_of(subject)?,
                false => String::new(),
            },
            ..User::default()
        }),
        _ => Err("the certificate has no common name".to_owned()),
    }
}

/// How long a certificate is valid still.
pub(super) fn valid_for(certificate: &CertificateDer<'_>) -> Option<Duration> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let left = parsed.validity().time_to_expiration()?;
    left.try_into().ok()
}

/// A digest under which a token is remembered.
pub(super) fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut digest = [0; 32];
    // The lengths are equal, or this panics: two tokens never share an answer for want of a digest.
    digest.copy_from_slice(digest::digest(&digest::SHA256, bytes).as_ref());
    digest
}

/// A proxy that may name users in headers.
#[derive(Debug)]
pub(super) struct Proxy {
    pub(super) authority: Arc<Authority>,
    pub(super) names: Vec<String>,
    pub(super) user_headers: Vec<String>,
    pub(super) group_headers: Vec<String>,
    pub(super) uid_headers: Vec<String>,
    pub(super) extra_prefixes: Vec<String>,
}

/// What is trusted at the moment.
#[derive(Debug, Default)]
pub(super) struct Trust {
    pub(super) client: Option<Arc<Authority>>,
    pub(super) proxy: Option<Proxy>,
}

/// A flag's file of authorities.
type AuthorityFile = Reloaded<Authority, Error, 1>;

/// What is trusted, fetched again from time to time.
pub(super) struct Trusted {
    now: ArcSwap<Trust>,
    clients: Option<AuthorityFile>,
    proxies: Option<AuthorityFile>,
    options: AuthenticationOptions,
    client: Option<Client>,
}

impl Trusted {
    /// Files first; what they leave open comes from the cluster, unless that is to be left out.
    pub(super) async fn load(
        options: &AuthenticationOptions,
        client: Option<Client>,
    ) -> Result<Self, Error> {
        let trusted = Self {
            now: ArcSwap::default(),
            clients: authority("client-ca-file", options.client_ca_file.as_deref())?,
            proxies: authority(
                "requestheader-client-ca-file",
                options.proxy_ca_file.as_deref(),
            )?,
            options: options.clone(),
            client,
        };
        match trusted.refresh().await {
            Err(Error::Lookup(why)) if options.tolerate_lookup_failure => {
                tracing::warn!(
                    why,
                    "client CAs could not be read from the cluster; continuing without"
                );
                trusted.now.store(Arc::new(trusted.of_files()));
            }
            result => drop(result?),
        }
        Ok(trusted)
    }

    #[cfg(test)]
    pub(super) fn fixed(trust: Trust, options: &AuthenticationOptions) -> Self {
        Self {
            now: ArcSwap::from_pointee(trust),
            clients: None,
            proxies: None,
            options: options.clone(),
            client: None,
        }
    }

    pub(super) fn now(&self) -> Arc<Trust> {
        self.now.load_full()
    }

    /// Reads the files again and asks the cluster; whether a file has changed.
    pub(super) async fn refresh(&self) -> Result<bool, Error> {
        let mut changed = false;
        for file in [&self.clients, &self.proxies].into_iter().flatten() {
            changed |= file.refresh()?;
        }
        let mut trust = self.of_files();
        let open = trust.client.is_none() || trust.proxy.is_none();
        if open
            && !self.options.skip_lookup
            && let Some(client) = &self.client
        {
            let data = lookup(client).await.map_err(Error::Lookup)?;
            fill(&mut trust, &data).map_err(Error::Lookup)?;
        }
        self.now.store(Arc::new(trust));
        Ok(changed)
    }

    /// What the flags' files say.
    fn of_files(&self) -> Trust {
        let options = &self.options;
        let proxy = self.proxies.as_ref().map(|authority| Proxy {
            authority: authority.get(),
            names: options.proxy_names.clone(),
            user_headers: options.user_headers.clone(),
            group_headers: options.group_headers.clone(),
            uid_headers: options.uid_headers.clone(),
            extra_prefixes: options.extra_prefixes.clone(),
        });
        Trust {
            client: self.clients.as_ref().map(Reloaded::get),
            proxy,
        }
    }
}

fn authority(flag: &'static str, path: Option<&Path>) -> Result<Option<AuthorityFile>, Error> {
    let Some(path) = path else {
        return Ok(None);
    };
    let named = path.display().to_string();
    let of_flag = move |why: String| Error::File {
        flag,
        path: named.clone(),
        why,
    };
    let unreadable = of_flag.clone();
    let file = Reloaded::load([path.to_owned()], move |[pem]| {
        Authority::new(pem).map_err(&of_flag)
    });
    file.map(Some).map_err(|why| match why {
        Error::Unreadable(file) => unreadable(file.source.to_string()),
        other => other,
    })
}

async fn lookup(client: &Client) -> Result<Value, String> {
    let request = http::Request::get(CONFIG_MAP)
        .body(Vec::new())
        .map_err(|why| why.to_string())?;
    let asked = tokio::time::timeout(LOOKUP_MAX, client.request::<Value>(request)).await;
    let answer = asked
        .map_err(|_| format!("no answer within {}s", LOOKUP_MAX.as_secs()))?
        .map_err(|why| causes(&why))?;
    Ok(answer["data"].clone())
}

/// Puts in what the ConfigMap knows and files left open.
pub(super) fn fill(trust: &mut Trust, data: &Value) -> Result<(), String> {
    let text = |key: &str| data[key].as_str().filter(|text| !text.is_empty());
    let list = |key: &str| -> Result<Vec<String>, String> {
        let parsed = text(key)
            .map(serde_json::from_str::<Option<Vec<String>>>)
            .transpose();
        Ok(parsed
            .map_err(|why| format!("{key}: {why}"))?
            .flatten()
            .unwrap_or_default())
    };
    let headers = |key: &str| -> Result<Vec<String>, String> {
        Ok(list(key)?
            .iter()
            .map(|name| name.to_ascii_lowercase())
            .collect())
    };
    if trust.client.is_none()
        && let Some(pem) = text("client-ca-file")
    {
        let authority =
            Authority::new(pem.as_bytes()).map_err(|why| format!("client-ca-file: {why}"))?;
        trust.client = Some(Arc::new(authority));
    }
    if trust.proxy.is_none()
        && let Some(pem) = text("requestheader-client-ca-file")
    {
        let authority = Authority::new(pem.as_bytes())
            .map_err(|why| format!("requestheader-client-ca-file: {why}"))?;
        trust.proxy = Some(Proxy {
            authority: Arc::new(authority),
            names: list("requestheader-allowed-names")?,
            user_headers: headers("requestheader-username-headers")?,
            group_headers: headers("requestheader-group-headers")?,
            uid_headers: headers("requestheader-uid-headers")?,
            extra_prefixes: headers("requestheader-extra-headers-prefix")?,
        });
    }
    Ok(())
}
