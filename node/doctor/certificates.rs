//! What is asked of certificates: whose, until when, and whether a key and an authority belong to them.

use jiff::Timestamp;
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use x509_parser::{certificate::X509Certificate, prelude::FromDer as _};

use crate::facts::{Known, PeerFiles, Unknown};

/// A certificate as people know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// Its subject's common name, or the whole subject without one.
    pub subject: String,
    /// From when it is valid.
    pub begins: Timestamp,
    /// Until when it is valid.
    pub ends: Timestamp,
}

fn unknown(why: impl Into<String>) -> Unknown {
    Unknown {
        why: why.into(),
        forbidden: false,
    }
}

fn described(certificate: &X509Certificate<'_>) -> Known<Certificate> {
    let names = certificate.subject();
    let common = names
        .iter_common_name()
        .next()
        .and_then(|name| name.as_str().ok());
    let second = |time: i64| {
        Timestamp::from_second(time)
            .map_err(|_| unknown("its validity is no time of this calendar"))
    };
    let validity = certificate.validity();
    Ok(Certificate {
        subject: common.map_or_else(|| names.to_string(), str::to_owned),
        begins: second(validity.not_before.timestamp())?,
        ends: second(validity.not_after.timestamp())?,
    })
}

/// The first certificate of a PEM text: the client's own, before its chain.
///
/// # Errors
/// Where there is none.
pub fn first_of_pem(pem: &[u8]) -> Known<Certificate> {
    let der = CertificateDer::pem_slice_iter(pem)
        .next()
        .ok_or_else(|| unknown("holds no certificate in PEM form"))?
        .map_err(|_| unknown("holds no certificate in PEM form"))?;
    of_der(&der)
}

/// A certificate in DER form.
///
/// # Errors
/// Where it is none.
pub fn of_der(der: &[u8]) -> Known<Certificate> {
    let (_, certificate) = X509Certificate::from_der(der)
        .map_err(|why| unknown(format!("is no X.509 certificate: {why}")))?;
    described(&certificate)
}

/// A replica's certificate for its peers: that its authority has signed it and that the key is its own.
///
/// # Errors
/// One sentence that names the file and the flag.
pub fn of_peer(files: &PeerFiles) -> Result<Certificate, String> {
    let read = |flag: &str, path: &str| {
        std::fs::read(path).map_err(|why| format!("--{flag} {path}: {why}"))
    };
    let chain = read("peer-tls-cert-file", &files.certificate)?;
    let key = read("peer-tls-private-key-file", &files.key)?;
    let authorities = read("peer-ca-file", &files.authority)?;
    let der =
        |flag: &str, path: &str, pem: &[u8]| -> Result<Vec<CertificateDer<'static>>, String> {
            let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
            match all {
                Ok(all) if !all.is_empty() => Ok(all),
                _ => Err(format!("--{flag} {path} holds no certificate in PEM form")),
            }
        };
    let chain = der("peer-tls-cert-file", &files.certificate, &chain)?;
    let authorities = der("peer-ca-file", &files.authority, &authorities)?;
    let leaf = chain
        .first()
        .ok_or_else(|| format!("{} holds no certificate", files.certificate))?;
    let (_, parsed) = X509Certificate::from_der(leaf)
        .map_err(|why| format!("{} is no X.509 certificate: {why}", files.certificate))?;
    let signed = authorities.iter().any(|authority| {
        X509Certificate::from_der(authority).is_ok_and(|(_, authority)| {
            parsed
                .verify_signature(Some(authority.public_key()))
                .is_ok()
        })
    });
    if !signed {
        return Err(format!(
            "{} is not signed by an authority of --peer-ca-file {}",
            files.certificate, files.authority
        ));
    }
    let key = rustls::pki_types::PrivateKeyDer::from_pem_slice(&key).map_err(|_| {
        format!(
            "--peer-tls-private-key-file {} holds no key in PEM form",
            files.key
        )
    })?;
    let signer = rustls::crypto::ring::sign::any_supported_type(&key)
        .map_err(|why| format!("{}: {why}", files.key))?;
    let belongs = signer
        .public_key()
        .is_some_and(|public| *public == *parsed.public_key().raw);
    if !belongs {
        return Err(format!(
            "the key in {} is not that of the certificate in {}",
            files.key, files.certificate
        ));
    }
    described(&parsed).map_err(|unknown| format!("{}: {}", files.certificate, unknown.why))
}
