//! Certificate authorities and certificates, X.509 v3 with P-256 keys.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType,
};

/// A certificate and its key, in PEM.
#[derive(Clone)]
pub struct Identity {
    /// The certificate.
    pub certificate: String,
    /// The PKCS #8 key.
    pub key: String,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Identity(..)")
    }
}

/// Signs certificates.
#[derive(Debug)]
pub struct Authority {
    identity: Identity,
    der: Vec<u8>,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// A self-signed authority.
    pub fn new(name: &str) -> Result<Self> {
        let key = KeyPair::generate().context("making a key")?;
        let mut params = CertificateParams::default();
        params.distinguished_name = subject(name, None);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        let certificate = params.self_signed(&key).context("signing an authority")?;
        Ok(Self {
            identity: Identity {
                certificate: certificate.pem(),
                key: key.serialize_pem(),
            },
            der: certificate.der().to_vec(),
            issuer: Issuer::new(params, key),
        })
    }

    /// Its certificate in PEM, to be trusted by others.
    pub fn certificate(&self) -> &str {
        &self.identity.certificate
    }

    /// Its certificate in DER.
    pub fn der(&self) -> &[u8] {
        &self.der
    }

    /// Certificate and key, for a signer such as the peer's CSR controller.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// A client's certificate: the API server reads the user from the common name and a group from
    /// the organisation.
    pub fn client(&self, user: &str, group: Option<&str>) -> Result<Identity> {
        self.sign(user, group, &[], &[ExtendedKeyUsagePurpose::ClientAuth])
    }

    /// A client's certificate that expires.
    pub fn client_for(&self, user: &str, group: Option<&str>, life: Duration) -> Result<Identity> {
        let usages = [ExtendedKeyUsagePurpose::ClientAuth];
        self.sign_until(
            user,
            group,
            (&[], &[]),
            &usages,
            Some(SystemTime::now() + life),
        )
    }

    /// A server's certificate for 127.0.0.1 and these names.
    pub fn server(&self, name: &str, names: &[&str]) -> Result<Identity> {
        self.server_at(name, names, &[])
    }

    /// A server's certificate for these names, and for these addresses beside 127.0.0.1.
    pub fn server_at(
        &self,
        name: &str,
        names: &[&str],
        addresses: &[Ipv4Addr],
    ) -> Result<Identity> {
        let usages = [ExtendedKeyUsagePurpose::ServerAuth];
        self.sign_until(name, None, (names, addresses), &usages, None)
    }

    /// A certificate for both ends, as peers need, whose DNS name is `name`.
    pub fn peer(&self, name: &str) -> Result<Identity> {
        self.sign(
            name,
            None,
            &[name],
            &[
                ExtendedKeyUsagePurpose::ServerAuth,
                ExtendedKeyUsagePurpose::ClientAuth,
            ],
        )
    }

    fn sign(
        &self,
        name: &str,
        group: Option<&str>,
        names: &[&str],
        usages: &[ExtendedKeyUsagePurpose],
    ) -> Result<Identity> {
        self.sign_until(name, group, (names, &[]), usages, None)
    }

    fn sign_until(
        &self,
        name: &str,
        group: Option<&str>,
        (names, addresses): (&[&str], &[Ipv4Addr]),
        usages: &[ExtendedKeyUsagePurpose],
        end: Option<SystemTime>,
    ) -> Result<Identity> {
        let what = || format!("making the certificate of {name}");
        let key = KeyPair::generate().with_context(what)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = subject(name, group);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = usages.to_vec();
        params.use_authority_key_identifier_extension = true;
        if let Some(end) = end {
            params.not_before = SystemTime::now().into();
            params.not_after = end.into();
        }
        if usages.contains(&ExtendedKeyUsagePurpose::ServerAuth) {
            params.subject_alt_names = std::iter::once(&Ipv4Addr::LOCALHOST)
                .chain(addresses)
                .map(|address| SanType::IpAddress(IpAddr::V4(*address)))
                .collect();
            for name in names {
                let name = (*name).try_into().with_context(what)?;
                params.subject_alt_names.push(SanType::DnsName(name));
            }
        }
        let certificate = params.signed_by(&key, &self.issuer).with_context(what)?;
        Ok(Identity {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        })
    }
}

/// A key pair for service-account tokens: the private and the public key in PEM.
pub fn signing_key() -> Result<(String, String)> {
    let key = KeyPair::generate().context("making the service-account key")?;
    Ok((key.serialize_pem(), key.public_key_pem()))
}

fn subject(name: &str, group: Option<&str>) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    if let Some(group) = group {
        subject.push(DnType::OrganizationName, group);
    }
    subject.push(DnType::CommonName, name);
    subject
}
