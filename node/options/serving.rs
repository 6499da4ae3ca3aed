//! The secure port.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

use crate::{
    Surroundings,
    args::{self, Values},
};

/// One more certificate, chosen by the name that the client asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedCertificate {
    /// Certificate and chain.
    pub cert_file: PathBuf,
    /// Its key.
    pub key_file: PathBuf,
    /// Names that it is for; those of the certificate where empty.
    pub names: Vec<String>,
}

/// The secure port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServingOptions {
    /// Where to listen.
    pub address: SocketAddr,
    /// `--cert-dir`.
    pub cert_dir: Option<PathBuf>,
    /// Certificate and key; `None`: self-signed.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// `--tls-sni-cert-key`.
    pub named: Vec<NamedCertificate>,
    /// IANA names; empty: all that are offered.
    pub cipher_suites: Vec<String>,
    /// Numbers of key exchanges; empty: all that are offered.
    pub curves: Vec<u16>,
    /// TLS 1.3 alone.
    pub only_tls13: bool,
    /// `--disable-http2-serving`.
    pub http2: bool,
    /// Requests at once on one HTTP/2 connection.
    pub http2_streams_max: u32,
    /// SO_REUSEADDR.
    pub address_sharing: bool,
    /// SO_REUSEPORT.
    pub port_sharing: bool,
    /// The node's addresses, for which places are kept as for this host itself.
    pub own_addresses: Vec<IpAddr>,
}

/// By the flags.
pub(super) fn of(
    values: &Values,
    surroundings: &Surroundings,
    wrong: &mut Vec<String>,
    idle: &mut Vec<String>,
) -> ServingOptions {
    /// What upstream's server takes where the flag is 0: its clients begin with as many.
    const HTTP2_STREAMS_UNSET: u32 = 100;
    let port = values.int("secure-port");
    if !(1..=65535).contains(&port) {
        wrong.push(format!(
            "--secure-port {port} must be between 1 and 65535, inclusive. It cannot be turned off with 0"
        ));
    }
    let certificate = match (
        values.some("tls-cert-file"),
        values.some("tls-private-key-file"),
    ) {
        (Some(cert), Some(key)) => Some((PathBuf::from(cert), PathBuf::from(key))),
        (None, None) => None,
        (Some(_), None) => {
            wrong.push(
                "--tls-cert-file is given without --tls-private-key-file: give both".to_owned(),
            );
            None
        }
        (None, Some(_)) => {
            wrong.push(
                "--tls-private-key-file is given without --tls-cert-file: give both".to_owned(),
            );
            None
        }
    };
    let only_tls13 = match values.text("tls-min-version") {
        "" | "VersionTLS12" => false,
        "VersionTLS13" => true,
        old @ ("VersionTLS10" | "VersionTLS11") => {
            idle.push(format!(
                "--tls-min-version={old} (TLS 1.2 is the oldest that is spoken)"
            ));
            false
        }
        other => {
            wrong.push(format!(
                "unknown tls version {other:?}: --tls-min-version must be VersionTLS12 or VersionTLS13"
            ));
            false
        }
    };
    let cipher_suites = cipher_suites(values.list("tls-cipher-suites"), wrong, idle);
    let curves = curves(values.list("tls-curve-preferences"), wrong, idle);
    let streams = values.int("http2-max-streams-per-connection");
    ServingOptions {
        address: SocketAddr::new(
            values.ip("bind-address"),
            u16::try_from(port).unwrap_or_default(),
        ),
        cert_dir: values.some("cert-dir").map(PathBuf::from),
        certificate,
        named: values
            .list("tls-sni-cert-key")
            .iter()
            .map(|text| named_certificate(text))
            .collect(),
        cipher_suites,
        curves,
        only_tls13,
        http2: !values.bool("disable-http2-serving"),
        http2_streams_max: match u32::try_from(streams) {
            Ok(0) => HTTP2_STREAMS_UNSET,
            Ok(streams) => streams,
            Err(_) => {
                wrong.push(format!(
                    "--http2-max-streams-per-connection must be from 0 to {}, but is {streams}",
                    u32::MAX
                ));
                HTTP2_STREAMS_UNSET
            }
        },
        address_sharing: values.bool("permit-address-sharing"),
        port_sharing: values.bool("permit-port-sharing"),
        own_addresses: surroundings
            .host_ips
            .iter()
            .flat_map(|text| text.split(','))
            .filter_map(|text| text.trim().parse().ok())
            .collect(),
    }
}

/// `cert,key:name,name`, which the parser has checked.
fn named_certificate(text: &str) -> NamedCertificate {
    let (cert, key, names) = args::named_cert(text);
    NamedCertificate {
        cert_file: cert.into(),
        key_file: key.into(),
        names: names.into_iter().map(str::to_ascii_lowercase).collect(),
    }
}

/// Names that upstream knows, and whether this build speaks them.
const CIPHER_SUITES: &[(&str, bool)] = &[
    ("TLS_AES_128_GCM_SHA256", true),
    ("TLS_AES_256_GCM_SHA384", true),
    ("TLS_CHACHA20_POLY1305_SHA256", true),
    ("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", true),
    ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", true),
    ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305", true),
    ("TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", true),
    ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", true),
    ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", true),
    ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305", true),
    ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", true),
    ("TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA", false),
    ("TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256", false),
    ("TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA", false),
    ("TLS_ECDHE_ECDSA_WITH_RC4_128_SHA", false),
    ("TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA", false),
    ("TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA", false),
    ("TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256", false),
    ("TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA", false),
    ("TLS_ECDHE_RSA_WITH_RC4_128_SHA", false),
    ("TLS_RSA_WITH_3DES_EDE_CBC_SHA", false),
    ("TLS_RSA_WITH_AES_128_CBC_SHA", false),
    ("TLS_RSA_WITH_AES_128_CBC_SHA256", false),
    ("TLS_RSA_WITH_AES_128_GCM_SHA256", false),
    ("TLS_RSA_WITH_AES_256_CBC_SHA", false),
    ("TLS_RSA_WITH_AES_256_GCM_SHA384", false),
    ("TLS_RSA_WITH_RC4_128_SHA", false),
];

fn cipher_suites(given: &[String], wrong: &mut Vec<String>, idle: &mut Vec<String>) -> Vec<String> {
    let mut spoken = Vec::new();
    for name in given {
        match CIPHER_SUITES.iter().find(|(known, _)| known == name) {
            Some((_, true)) => spoken.push(name.clone()),
            Some((_, false)) => {
                idle.push(format!("--tls-cipher-suites={name} (not spoken: it lacks forward secrecy or an AEAD)"));
            }
            None => wrong.push(format!(
                "Cipher suite {name} not supported or doesn't exist: --tls-cipher-suites takes IANA names, see --help"
            )),
        }
    }
    if !given.is_empty() && spoken.is_empty() && wrong.is_empty() {
        wrong.push(format!(
            "none of --tls-cipher-suites {} is spoken by this build: add TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256 or \
             another with ECDHE and GCM or CHACHA20",
            given.join(",")
        ));
    }
    spoken
}

fn curves(given: &[String], wrong: &mut Vec<String>, idle: &mut Vec<String>) -> Vec<u16> {
    /// P-256, P-384 and X25519: what ring offers.
    const SPOKEN: [u16; 3] = [23, 24, 29];
    /// P-521 and the post-quantum hybrids, which upstream knows.
    const KNOWN: [u16; 4] = [25, 4587, 4588, 4589];
    let mut spoken = Vec::new();
    for text in given {
        match text.parse::<u16>() {
            Ok(number) if SPOKEN.contains(&number) => spoken.push(number),
            Ok(number) if KNOWN.contains(&number) => {
                idle.push(format!("--tls-curve-preferences={number} (not offered)"));
            }
            _ => wrong.push(format!(
                "--tls-curve-preferences {text}: there is no such key exchange; 23 is P-256, 24 is P-384, 29 is X25519"
            )),
        }
    }
    if !given.is_empty() && spoken.is_empty() && wrong.is_empty() {
        wrong.push("none of --tls-curve-preferences is offered by this build: add 29 (X25519) or 23 (P-256)".to_owned());
    }
    spoken
}
