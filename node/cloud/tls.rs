//! The certificates of both sides, read again when the files change.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use controllers_clouds::flags::{CA_FILE, CERT_FILE, KEY_FILE};
use reload::{Reloaded, Unreadable};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};

/// The flags that name the files, in the order in which they are read.
const FLAGS: [&str; 3] = [CA_FILE, CERT_FILE, KEY_FILE];

/// Why the files can't be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// One can't be read.
    #[error("--{flag}: can't read {}", .file.path.display())]
    Read {
        /// Which flag names it.
        flag: &'static str,
        /// The file.
        #[source]
        file: Unreadable,
    },
    /// One holds nothing of use.
    #[error("--{flag}: {} holds no {wanted} in PEM", .path.display())]
    Empty {
        /// Which flag names it.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// What should be in it.
        wanted: &'static str,
    },
    /// They do not fit.
    #[error("the files of the flags --cloud-provider-…-file do not work together")]
    Unfit(#[source] rustls::Error),
}

impl From<Unreadable> for Error {
    fn from(file: Unreadable) -> Self {
        Self::Read {
            flag: FLAGS[file.index],
            file,
        }
    }
}

/// The present configuration.
pub(super) struct Tls(Reloaded<Arc<ClientConfig>, Error, 3>);

impl Tls {
    pub(super) fn load(paths: [&str; 3]) -> Result<Self, Error> {
        let paths = paths.map(|path| Path::new(path).to_owned());
        let named = paths.clone();
        Reloaded::load(paths, move |content| build(&named, content)).map(Self)
    }

    pub(super) fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.0.get())
    }

    /// Reads the files again; whether they had changed. What can't be used leaves the old ones in force.
    pub(super) fn refresh(&self) -> Result<bool, Error> {
        self.0.refresh()
    }
}

fn certificates(pem: &[u8]) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem)
        .filter_map(Result::ok)
        .collect()
}

fn build(paths: &[PathBuf; 3], [ca, cert, key]: &[Vec<u8>; 3]) -> Result<Arc<ClientConfig>, Error> {
    let empty = |at: usize, wanted| Error::Empty {
        flag: FLAGS[at],
        path: paths[at].clone(),
        wanted,
    };
    let mut roots = RootCertStore::empty();
    for root in certificates(ca) {
        roots.add(root).map_err(Error::Unfit)?;
    }
    if roots.is_empty() {
        return Err(empty(0, "certificate"));
    }
    let chain = certificates(cert);
    if chain.is_empty() {
        return Err(empty(1, "certificate"));
    }
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| empty(2, "private key"))?;
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(Error::Unfit)?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .map_err(Error::Unfit)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}
