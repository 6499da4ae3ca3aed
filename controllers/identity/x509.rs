//! Reads PKCS #10 requests and builds X.509 certificates from them, byte for byte as Go's `crypto/x509`
//! does from the same input, except for serial number and signature. Pure: time, serial number and
//! signature are arguments.

use std::{net::Ipv6Addr, time::Duration};

use base64::{
    Engine as _,
    engine::{GeneralPurpose, GeneralPurposeConfig},
};
use controllers_kit::{SignedDuration, Timestamp};
use ring::signature::{
    RSA_PKCS1_1024_8192_SHA256_FOR_LEGACY_USE_ONLY, RSA_PKCS1_1024_8192_SHA512_FOR_LEGACY_USE_ONLY,
    RsaParameters, UnparsedPublicKey,
};
use x509_parser::{
    asn1_rs::BitString,
    extensions::ParsedExtension,
    oid_registry::{OID_PKCS1_SHA256WITHRSA, OID_PKCS1_SHA512WITHRSA},
    prelude::FromDer as _,
    verify::verify_signature,
    x509::{AlgorithmIdentifier, SubjectPublicKeyInfo},
};

use crate::der::{
    BIT_STRING, BMP_STRING, BOOLEAN, Der, IA5_STRING, INTEGER, NULL, NUMERIC_STRING, OCTET_STRING,
    OID, PRINTABLE_STRING, SEQUENCE, SET, T61_STRING, UTF8_STRING, each, explicit, implicit, next,
    positive, printable, take, time, value,
};

/// The attributes of a name that Go knows, in the order in which it writes them. Others are dropped.
const ATTRIBUTES: [&str; 9] = [
    "2.5.4.6",  // country
    "2.5.4.10", // organization
    "2.5.4.11", // organizational unit
    "2.5.4.7",  // locality
    "2.5.4.8",  // province
    "2.5.4.9",  // street address
    "2.5.4.17", // postal code
    COMMON_NAME,
    SERIAL_NUMBER,
];
const COMMON_NAME: &str = "2.5.4.3";
const SERIAL_NUMBER: &str = "2.5.4.5";
const ORGANIZATION: &str = "2.5.4.10";

/// Object identifiers, as in DER: the attribute of a request that lists extensions, and the extension that
/// is read.
const EXTENSION_REQUEST: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x0e];
const SUBJECT_ALTERNATIVE_NAME: &[u8] = &[0x55, 0x1d, 0x11];

/// The fields of a certificate request that the controllers read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// The known attributes of the subject, each with its values in order.
    subject: Vec<(&'static str, Vec<String>)>,
    /// Alternative names: DNS.
    pub dns: Vec<String>,
    /// Alternative names: e-mail.
    pub emails: Vec<String>,
    /// Alternative names: IP addresses, of 4 or 16 bytes.
    pub ips: Vec<Vec<u8>>,
    /// Alternative names: URIs.
    pub uris: Vec<String>,
    /// The public key with its algorithm, DER.
    pub public_key: Vec<u8>,
}

impl Request {
    /// The values of an attribute of the subject.
    fn values(&self, attribute: &str) -> &[String] {
        self.subject
            .iter()
            .find(|(known, _)| *known == attribute)
            .map_or(&[], |(_, values)| values)
    }

    /// The subject's organizations.
    pub fn organizations(&self) -> &[String] {
        self.values(ORGANIZATION)
    }

    /// The subject's common name; the last of several, as in Go.
    pub fn common_name(&self) -> &str {
        self.values(COMMON_NAME).last().map_or("", String::as_str)
    }
}

/// The DER of a request in PEM.
///
/// # Errors
/// Where the first block is of another type.
pub fn request_der(pem: &[u8]) -> Result<Vec<u8>, String> {
    pem_block(pem)
        .filter(|(label, _)| *label == b"CERTIFICATE REQUEST")
        .map(|(_, contents)| contents)
        .ok_or_else(|| "PEM block type must be CERTIFICATE REQUEST".to_owned())
}

/// The first block of PEM, label and content, by the rules of Go's `encoding/pem`: text around it and headers
/// in it are allowed, and a block that is malformed is skipped. The API server has validated the block that
/// these rules find; another parser may find another one.
fn pem_block(data: &[u8]) -> Option<(&[u8], Vec<u8>)> {
    const BEGIN: &[u8] = b"-----BEGIN ";
    const END: &[u8] = b"\n-----END ";
    let mut from = 0;
    loop {
        let end = from + find(&data[from..], END)?;
        let trailer = end + END.len();
        let block = data[from..end]
            .windows(BEGIN.len())
            .rposition(|window| window == BEGIN)
            .map(|at| from + at)
            .filter(|at| *at == from || data[at - 1] == b'\n')
            .and_then(|begin| content(data, begin + BEGIN.len(), end, trailer));
        if block.is_some() {
            return block;
        }
        from = trailer;
    }
}

/// The block whose label begins at `label`, whose last line begins with the line feed at `end`, and whose
/// closing label begins at `trailer`.
fn content(data: &[u8], label: usize, end: usize, trailer: usize) -> Option<(&[u8], Vec<u8>)> {
    const DASHES: &[u8] = b"-----";
    let (line, mut body) = pem_line(data, label);
    let label = line.strip_suffix(DASHES)?;
    let mut has_headers = false;
    // Beyond the last line there is nothing to find, however many lines with colons follow.
    while body <= end {
        let (line, next) = pem_line(data, body);
        if !line.contains(&b':') {
            break;
        }
        has_headers = true;
        body = next;
    }
    if has_headers && body > end {
        return None;
    }
    let rest = data[trailer..].strip_prefix(label)?.strip_prefix(DASHES)?;
    if !pem_line(rest, 0).0.is_empty() {
        return None;
    }
    let text: Vec<u8> = data
        .get(body..end)
        .unwrap_or_default()
        .iter()
        .copied()
        .filter(|byte| !b" \t\r\n".contains(byte))
        .collect();
    PEM_BASE64.decode(text).ok().map(|content| (label, content))
}

/// Go's decoder accepts any bits after the last whole byte.
const PEM_BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

/// A line without line feed and trailing blanks, and where the next one begins.
fn pem_line(data: &[u8], from: usize) -> (&[u8], usize) {
    let rest = &data[from..];
    let (line, next) = match rest.iter().position(|byte| *byte == b'\n') {
        Some(at) => (&rest[..at], from + at + 1),
        None => (rest, data.len()),
    };
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let blanks = line.iter().rev().take_while(|byte| b" \t".contains(byte));
    (&line[..line.len() - blanks.count()], next)
}

fn find(data: &[u8], wanted: &[u8]) -> Option<usize> {
    data.windows(wanted.len()).position(|one| one == wanted)
}

/// The parts of a request.
struct Parts<'a> {
    /// What is signed, with tag and length.
    info: &'a [u8],
    subject: &'a [u8],
    /// With tag and length.
    public_key: &'a [u8],
    attributes: &'a [u8],
    /// With tag and length.
    algorithm: &'a [u8],
    /// With tag and length.
    signature: &'a [u8],
}

/// Splits a request into its parts. Everything that Go accepts is accepted, including unknown values at the
/// end of a sequence.
fn parts(der: &[u8]) -> Result<Parts<'_>, String> {
    let (whole, rest) = take(der, SEQUENCE).ok_or_else(malformed)?;
    if !rest.is_empty() {
        return Err("trailing data after the certificate request".to_owned());
    }
    let fields = || {
        let (info, rest) = take(whole.content, SEQUENCE)?;
        let (algorithm, rest) = take(rest, SEQUENCE)?;
        let (signature, _) = take(rest, BIT_STRING)?;
        let (_version, rest) = take(info.content, INTEGER)?;
        let (subject, rest) = take(rest, SEQUENCE)?;
        let (public_key, rest) = take(rest, SEQUENCE)?;
        let attributes = match rest {
            [] => &[],
            rest => take(rest, explicit(0))?.0.content,
        };
        Some(Parts {
            info: info.whole,
            subject: subject.content,
            public_key: public_key.whole,
            attributes,
            algorithm: algorithm.whole,
            signature: signature.whole,
        })
    };
    fields().ok_or_else(malformed)
}

fn malformed() -> String {
    "the certificate request is malformed".to_owned()
}

/// Decodes a request. Its signature is not checked: [`verify`] does that.
///
/// # Errors
/// Where it is malformed.
pub fn read(der: &[u8]) -> Result<Request, String> {
    let parts = parts(der)?;
    let mut request = Request {
        subject: read_subject(parts.subject)?,
        public_key: parts.public_key.to_vec(),
        ..Request::default()
    };
    for extension in requested_extensions(parts.attributes)? {
        if extension.id == SUBJECT_ALTERNATIVE_NAME {
            let (names, _) = take(extension.content, SEQUENCE)
                .ok_or("the subject's alternative names are malformed")?;
            for name in each(names.content) {
                add_name(&mut request, &name.ok_or_else(malformed)?)?;
            }
        }
    }
    Ok(request)
}

/// The known attributes of a subject, each with its values in order. Those whose value is of no string type
/// that Go knows are left out, as in Go.
fn read_subject(der: &[u8]) -> Result<Vec<(&'static str, Vec<String>)>, String> {
    let mut subject: Vec<(&'static str, Vec<String>)> = Vec::new();
    for set in each(der) {
        let set = set.filter(|set| set.tag == SET).ok_or_else(malformed)?;
        for attribute in each(set.content) {
            let pair = attribute.filter(|one| one.tag == SEQUENCE).and_then(|one| {
                let (id, rest) = take(one.content, OID)?;
                Some((id.content, next(rest)?.0))
            });
            let (id, value) = pair.ok_or_else(malformed)?;
            let known = ATTRIBUTES
                .iter()
                .find(|known| matches!(id, [0x55, 4, last] if Some(*last) == last_arc(known)));
            let (Some(known), Some(text)) = (known, text(&value)?) else {
                continue;
            };
            match subject.iter_mut().find(|(one, _)| one == known) {
                Some((_, values)) => values.push(text),
                None => subject.push((known, vec![text])),
            }
        }
    }
    Ok(subject)
}

/// The last number of an object identifier of `id-at`.
fn last_arc(identifier: &str) -> Option<u8> {
    identifier.rsplit('.').next()?.parse().ok()
}

/// A text of a subject; `None` where the value is of another kind.
fn text(value: &Der<'_>) -> Result<Option<String>, String> {
    let wrong = || "a text of the subject is malformed".to_owned();
    Ok(Some(match value.tag {
        NUMERIC_STRING | PRINTABLE_STRING | IA5_STRING | UTF8_STRING => {
            String::from_utf8(value.content.to_vec()).map_err(|_| wrong())?
        }
        // Read as Latin-1, whose bytes are Unicode's first code points.
        T61_STRING => value.content.iter().copied().map(char::from).collect(),
        BMP_STRING => {
            let (units, rest) = value.content.as_chunks::<2>();
            if !rest.is_empty() {
                return Err(wrong());
            }
            let units: Vec<u16> = units.iter().map(|unit| u16::from_be_bytes(*unit)).collect();
            // A terminator may be there.
            let units = units.strip_suffix(&[0]).unwrap_or(&units);
            String::from_utf16(units).map_err(|_| wrong())?
        }
        _ => return Ok(None),
    }))
}

/// An extension that a request asks for.
struct Extension<'a> {
    id: &'a [u8],
    content: &'a [u8],
}

/// The extensions that a request asks for. Malformed attributes are skipped, as in Go.
fn requested_extensions(attributes: &[u8]) -> Result<Vec<Extension<'_>>, String> {
    let wrong = || "an extension of the request is malformed".to_owned();
    let mut extensions: Vec<Extension<'_>> = Vec::new();
    for attribute in each(attributes) {
        let attribute = attribute.ok_or_else(malformed)?;
        let request = take(attribute.whole, SEQUENCE)
            .and_then(|(attribute, _)| take(attribute.content, OID))
            .filter(|(id, _)| id.content == EXTENSION_REQUEST)
            .and_then(|(_, rest)| take(rest, SET))
            .and_then(|(values, _)| next(values.content));
        let Some((first, _)) = request else {
            continue;
        };
        let (list, _) = take(first.whole, SEQUENCE).ok_or_else(wrong)?;
        for extension in each(list.content) {
            let found = extension
                .filter(|one| one.tag == SEQUENCE)
                .and_then(|one| take(one.content, OID))
                .and_then(|(id, rest)| {
                    let rest = take(rest, BOOLEAN).map_or(rest, |(_, rest)| rest);
                    let (content, _) = take(rest, OCTET_STRING)?;
                    Some(Extension {
                        id: id.content,
                        content: content.content,
                    })
                });
            let extension = found.ok_or_else(wrong)?;
            if extensions.iter().any(|one| one.id == extension.id) {
                return Err(
                    "certificate request contains duplicate requested extensions".to_owned(),
                );
            }
            extensions.push(extension);
        }
    }
    Ok(extensions)
}

fn add_name(request: &mut Request, name: &Der<'_>) -> Result<(), String> {
    const EMAIL: u8 = implicit(1);
    const DNS: u8 = implicit(2);
    const URI: u8 = implicit(6);
    const IP: u8 = implicit(7);
    let content = name.content;
    let ascii = |kind: &str| match content.is_ascii() {
        true => Ok(String::from_utf8_lossy(content).into_owned()),
        false => Err(format!("SAN {kind} is malformed")),
    };
    match name.tag {
        EMAIL => request.emails.push(ascii("rfc822Name")?),
        DNS => request.dns.push(ascii("dNSName")?),
        URI => request.uris.push(ascii("uniformResourceIdentifier")?),
        IP => request.ips.push(match <[u8; 16]>::try_from(content) {
            // An IPv4 address is written in four bytes, in whatever form it was requested.
            Ok(long) => match Ipv6Addr::from(long).to_ipv4_mapped() {
                Some(short) => short.octets().to_vec(),
                None => long.to_vec(),
            },
            Err(_) if content.len() == 4 => content.to_vec(),
            Err(_) => {
                return Err(format!(
                    "cannot parse IP address of length {}",
                    content.len()
                ));
            }
        }),
        // Go does not read the others either.
        _ => {}
    }
    Ok(())
}

/// Verifies that the requester holds the private key of the request's public key.
///
/// # Errors
/// Where the signature is wrong, or of an algorithm that this build does not know: RSA from 1024 bits, ECDSA
/// on P-256 and P-384, and Ed25519 are known.
pub fn verify(der: &[u8]) -> Result<(), String> {
    let parts = parts(der)?;
    let wrong = |why: &dyn std::fmt::Display| {
        format!(
            "unable to verify certificate request signature: {why} \
             (keys may be RSA from 1024 bits, ECDSA on P-256 or P-384, or Ed25519)"
        )
    };
    let (_, public_key) =
        SubjectPublicKeyInfo::from_der(parts.public_key).map_err(|error| wrong(&error))?;
    let (_, algorithm) =
        AlgorithmIdentifier::from_der(parts.algorithm).map_err(|error| wrong(&error))?;
    let (_, signature) = BitString::from_der(parts.signature).map_err(|error| wrong(&error))?;
    verify_signature(&public_key, &algorithm, &signature, parts.info)
        .map_err(|error| wrong(&error))
        .or_else(|why| {
            // Keys of less than 2048 bits, which the library refuses but Go accepts.
            let algorithm = short_rsa(&algorithm).ok_or_else(|| why.clone())?;
            UnparsedPublicKey::new(algorithm, &public_key.subject_public_key.data)
                .verify(parts.info, &signature.data)
                .map_err(|_| why)
        })
}

/// Verifies signatures by RSA keys from 1024 bits.
fn short_rsa(algorithm: &AlgorithmIdentifier<'_>) -> Option<&'static RsaParameters> {
    let id = &algorithm.algorithm;
    if *id == OID_PKCS1_SHA256WITHRSA {
        Some(&RSA_PKCS1_1024_8192_SHA256_FOR_LEGACY_USE_ONLY)
    } else if *id == OID_PKCS1_SHA512WITHRSA {
        Some(&RSA_PKCS1_1024_8192_SHA512_FOR_LEGACY_USE_ONLY)
    } else {
        None
    }
}

/// When the first certificate in a PEM expires; `None` where there is none.
pub fn not_after(pem: &[u8]) -> Option<Timestamp> {
    let (_, der) = pem_block(pem)?;
    let (_, certificate) = x509_parser::parse_x509_certificate(&der).ok()?;
    let seconds = certificate.validity().not_after.timestamp();
    Timestamp::from_second(seconds).ok()
}

/// The fields of a certificate authority's certificate that its signed certificates show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authority {
    subject: Vec<u8>,
    key_id: Vec<u8>,
    /// When it ends.
    pub not_after: Timestamp,
    /// Its public key with its algorithm, DER.
    pub public_key: Vec<u8>,
}

impl Authority {
    /// Decodes a certificate.
    ///
    /// # Errors
    /// Where it is malformed.
    pub fn read(der: &[u8]) -> Result<Self, String> {
        let (_, certificate) = x509_parser::parse_x509_certificate(der)
            .map_err(|error| format!("the certificate is malformed: {error}"))?;
        let key_id = certificate
            .iter_extensions()
            .find_map(|extension| match extension.parsed_extension() {
                ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0.to_vec()),
                _ => None,
            })
            .unwrap_or_default();
        Ok(Self {
            subject: certificate.subject().as_raw().to_vec(),
            key_id,
            not_after: Timestamp::from_second(certificate.validity().not_after.timestamp())
                .map_err(|error| error.to_string())?,
            public_key: certificate.public_key().raw.to_vec(),
        })
    }
}

/// With what an authority's key signs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// RSA, PKCS #1 v1.5, SHA-256.
    RsaSha256,
    /// ECDSA with SHA-256, for P-256.
    EcdsaSha256,
    /// ECDSA with SHA-384, for P-384.
    EcdsaSha384,
    /// Ed25519.
    Ed25519,
}

impl Algorithm {
    fn identifier(self) -> Vec<u8> {
        let (oid, parameters): (&[u8], &[u8]) = match self {
            Self::RsaSha256 => (
                &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0b],
                &[NULL, 0],
            ),
            Self::EcdsaSha256 => (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02], &[]),
            Self::EcdsaSha384 => (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x03], &[]),
            Self::Ed25519 => (&[0x2b, 0x65, 0x70], &[]),
        };
        value(SEQUENCE, &[&value(OID, &[oid]), parameters])
    }
}

/// What a certificate's key may be used for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usages {
    /// Bits of the key usage, the first in the lowest.
    pub key: u16,
    /// Indexes into Go's order of extended usages, sorted.
    pub extended: Vec<usize>,
}

/// Key usages by the API's names, each with its bit.
const KEY_USAGES: [(&str, u16); 10] = [
    ("signing", 0),
    ("digital signature", 0),
    ("content commitment", 1),
    ("key encipherment", 2),
    ("data encipherment", 3),
    ("key agreement", 4),
    ("cert sign", 5),
    ("crl sign", 6),
    ("encipher only", 7),
    ("decipher only", 8),
];

/// Extended usages by the API's names and their object identifiers, in Go's order, in which certificates list
/// them.
const EXTENDED_USAGES: [(&[&str], &[u8]); 12] = [
    (&["any"], &[0x55, 0x1d, 0x25, 0x00]),
    (&["server auth"], &[0x2b, 6, 1, 5, 5, 7, 3, 1]),
    (&["client auth"], &[0x2b, 6, 1, 5, 5, 7, 3, 2]),
    (&["code signing"], &[0x2b, 6, 1, 5, 5, 7, 3, 3]),
    (
        &["email protection", "s/mime"],
        &[0x2b, 6, 1, 5, 5, 7, 3, 4],
    ),
    (&["ipsec end system"], &[0x2b, 6, 1, 5, 5, 7, 3, 5]),
    (&["ipsec tunnel"], &[0x2b, 6, 1, 5, 5, 7, 3, 6]),
    (&["ipsec user"], &[0x2b, 6, 1, 5, 5, 7, 3, 7]),
    (&["timestamping"], &[0x2b, 6, 1, 5, 5, 7, 3, 8]),
    (&["ocsp signing"], &[0x2b, 6, 1, 5, 5, 7, 3, 9]),
    (
        &["microsoft sgc"],
        &[0x2b, 6, 1, 4, 1, 0x82, 0x37, 0x0a, 3, 3],
    ),
    (
        &["netscape sgc"],
        &[0x60, 0x86, 0x48, 1, 0x86, 0xf8, 0x42, 4, 1],
    ),
];

impl Usages {
    /// From the API's names.
    ///
    /// # Errors
    /// Where one is unknown; the text names all that are.
    pub fn parse(names: &[String]) -> Result<Self, String> {
        let mut usages = Self::default();
        let mut unknown = Vec::new();
        for name in names {
            let key = KEY_USAGES.iter().find(|(known, _)| known == name);
            let extended = EXTENDED_USAGES
                .iter()
                .position(|(known, _)| known.contains(&name.as_str()));
            match (key, extended) {
                (Some((_, bit)), _) => usages.key |= 1 << bit,
                (None, Some(place)) => usages.extended.push(place),
                (None, None) => unknown.push(format!("{name:?}")),
            }
        }
        usages.extended.sort_unstable();
        usages.extended.dedup();
        match unknown.is_empty() {
            true => Ok(usages),
            false => Err(format!(
                "unrecognized usage values: [{}]",
                unknown.join(" ")
            )),
        }
    }
}

/// From when to when a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// The first instant.
    pub not_before: Timestamp,
    /// The last instant.
    pub not_after: Timestamp,
}

/// How far before its issue a certificate becomes valid, since clocks differ.
const BACKDATED: SignedDuration = SignedDuration::from_mins(5);
/// From this lifetime on, backdating is subtracted from the end.
const LONG: Duration = Duration::from_secs(8 * 3600);

/// The validity of a certificate with this lifetime, by an authority that expires at that instant.
///
/// # Errors
/// Where the authority has expired.
pub fn validity(
    ttl: Duration,
    now: Timestamp,
    authority_end: Timestamp,
) -> Result<Validity, String> {
    let not_before = now.saturating_sub(BACKDATED).unwrap_or(Timestamp::MIN);
    let mut life = SignedDuration::try_from(ttl).unwrap_or(SignedDuration::MAX);
    if ttl >= LONG {
        life -= BACKDATED;
    }
    let not_after = now.saturating_add(life).unwrap_or(Timestamp::MAX);
    if not_before >= authority_end {
        return Err(format!("the signer has expired: NotAfter={authority_end}"));
    }
    if now >= authority_end {
        return Err(format!(
            "refusing to sign a certificate that expired in the past: NotAfter={authority_end}"
        ));
    }
    Ok(Validity {
        not_before,
        not_after: not_after.min(authority_end),
    })
}

/// The signed part of a certificate, DER.
pub fn to_be_signed(
    authority: &Authority,
    algorithm: Algorithm,
    request: &Request,
    usages: &Usages,
    validity: Validity,
    serial: [u8; 16],
) -> Vec<u8> {
    let subject = subject(request);
    let extensions = extensions(authority, request, usages, &subject);
    value(
        SEQUENCE,
        &[
            // Version 3.
            &value(explicit(0), &[&[INTEGER, 1, 2]]),
            &value(INTEGER, &[&positive(&serial)]),
            &algorithm.identifier(),
            &authority.subject,
            &value(
                SEQUENCE,
                &[&time(validity.not_before), &time(validity.not_after)],
            ),
            &subject,
            &request.public_key,
            &value(explicit(3), &[&value(SEQUENCE, &[&extensions.concat()])]),
        ],
    )
}

/// A certificate, DER, from its signed part and the signature.
pub fn signed(to_be_signed: &[u8], algorithm: Algorithm, signature: &[u8]) -> Vec<u8> {
    value(
        SEQUENCE,
        &[
            to_be_signed,
            &algorithm.identifier(),
            &value(BIT_STRING, &[&[0], signature]),
        ],
    )
}

fn subject(request: &Request) -> Vec<u8> {
    let mut parts = Vec::new();
    for attribute in ATTRIBUTES {
        let mut values = request.values(attribute);
        // Attributes of which a name has one, the last that was read; an empty one is left out.
        if matches!(attribute, COMMON_NAME | SERIAL_NUMBER) {
            values = values
                .last()
                .filter(|value| !value.is_empty())
                .map_or(&[], std::slice::from_ref);
        }
        if values.is_empty() {
            continue;
        }
        let last = last_arc(attribute).unwrap_or_default();
        let mut set: Vec<Vec<u8>> = values
            .iter()
            .map(|text| value(SEQUENCE, &[&[OID, 3, 0x55, 4, last], &printable(text)]))
            .collect();
        set.sort();
        parts.push(value(SET, &[&set.concat()]));
    }
    value(SEQUENCE, &[&parts.concat()])
}

fn extensions(
    authority: &Authority,
    request: &Request,
    usages: &Usages,
    subject: &[u8],
) -> Vec<Vec<u8>> {
    let mut extensions = Vec::new();
    if usages.key != 0 {
        extensions.push(extension(0x0f, true, &key_usage(usages.key)));
    }
    if !usages.extended.is_empty() {
        let identifiers: Vec<Vec<u8>> = usages
            .extended
            .iter()
            .map(|place| value(OID, &[EXTENDED_USAGES[*place].1]))
            .collect();
        extensions.push(extension(
            0x25,
            false,
            &value(SEQUENCE, &[&identifiers.concat()]),
        ));
    }
    // No authority.
    extensions.push(extension(0x13, true, &value(SEQUENCE, &[])));
    if !authority.key_id.is_empty() && authority.subject != subject {
        let id = value(implicit(0), &[&authority.key_id]);
        extensions.push(extension(0x23, false, &value(SEQUENCE, &[&id])));
    }
    let texts = [(2, &request.dns), (1, &request.emails)];
    let mut names: Vec<Vec<u8>> = texts
        .into_iter()
        .flat_map(|(tag, names)| {
            names
                .iter()
                .map(move |name| value(implicit(tag), &[name.as_bytes()]))
        })
        .collect();
    names.extend(request.ips.iter().map(|ip| value(implicit(7), &[ip])));
    names.extend(
        request
            .uris
            .iter()
            .map(|uri| value(implicit(6), &[uri.as_bytes()])),
    );
    if !names.is_empty() {
        let no_subject = subject == [SEQUENCE, 0];
        extensions.push(extension(
            0x11,
            no_subject,
            &value(SEQUENCE, &[&names.concat()]),
        ));
    }
    extensions
}

/// One extension of `id-ce`.
fn extension(id: u8, critical: bool, content: &[u8]) -> Vec<u8> {
    let critical: &[u8] = if critical { &[BOOLEAN, 1, 0xff] } else { &[] };
    value(
        SEQUENCE,
        &[
            &[OID, 3, 0x55, 0x1d, id],
            critical,
            &value(OCTET_STRING, &[content]),
        ],
    )
}

/// A named bit list: the first is the highest, trailing zeros are left out.
fn key_usage(bits: u16) -> Vec<u8> {
    let reversed = bits.reverse_bits().to_be_bytes();
    let bytes = if reversed[1] == 0 {
        &reversed[..1]
    } else {
        &reversed[..]
    };
    let unused = bytes.last().map_or(0, |last| last.trailing_zeros());
    let unused = u8::try_from(unused).unwrap_or_default();
    value(BIT_STRING, &[&[unused], bytes])
}

/// The longest line of a PEM block.
const PEM_LINE: usize = 64;

/// A block of PEM.
pub fn pem(label: &str, der: &[u8]) -> String {
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let mut pem = format!("-----BEGIN {label}-----\n");
    for start in (0..text.len()).step_by(PEM_LINE) {
        pem.push_str(&text[start..text.len().min(start + PEM_LINE)]);
        pem.push('\n');
    }
    pem.push_str(&format!("-----END {label}-----\n"));
    pem
}

#[cfg(test)]
#[path = "x509_tests.rs"]
pub(crate) mod tests;
