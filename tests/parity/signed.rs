//! What was signed, in plain words: certificates and tokens in base64, without what differs each time they
//! are made.

use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use serde_json::Value;
use x509_parser::{certificate::X509Certificate, parse_x509_certificate, pem::parse_x509_pem};

/// Of a certificate or token; none of any other text.
pub(crate) fn plain(text: &str) -> Option<String> {
    let bytes = STANDARD.decode(text).ok()?;
    if let Ok((_, block)) = parse_x509_pem(&bytes)
        && block.label == "CERTIFICATE"
    {
        let (_, certificate) = parse_x509_certificate(&block.contents).ok()?;
        return Some(of_certificate(&certificate));
    }
    of_token(std::str::from_utf8(&bytes).ok()?)
}

fn of_certificate(certificate: &X509Certificate<'_>) -> String {
    let validity = certificate.validity();
    let seconds = validity.not_after.timestamp() - validity.not_before.timestamp();
    let mut lines = vec![
        format!("a certificate of {}", certificate.version()),
        format!("valid for {seconds} s"),
        format!("by {}", certificate.issuer()),
        format!("for {}", certificate.subject()),
        format!("signed with {}", certificate.signature_algorithm.algorithm),
        // Its first byte may be a zero that says that the number is positive.
        format!("a serial number: {}", !certificate.raw_serial().is_empty()),
    ];
    for extension in certificate.extensions() {
        let critical = if extension.critical {
            "critical"
        } else {
            "not critical"
        };
        // The authority's key, and whose certificate it is, are others on each side.
        let value = match extension.oid.to_id_string().as_str() {
            "2.5.29.14" | "2.5.29.35" => "of a key".to_owned(),
            _ => extension
                .value
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect(),
        };
        // With dots it would be taken for an address.
        let oid = extension.oid.to_id_string().replace('.', " ");
        lines.push(format!("{oid}, {critical}: {value}"));
    }
    lines.join("; ")
}

fn of_token(text: &str) -> Option<String> {
    let mut parts = text.split('.');
    let [header, claims] = [parts.next()?, parts.next()?].map(|part| URL_SAFE_NO_PAD.decode(part));
    let signature = parts.next()?;
    let header: Value = serde_json::from_slice(&header.ok()?).ok()?;
    let claims = String::from_utf8(claims.ok()?).ok()?;
    let names: Vec<&String> = header.as_object()?.keys().collect();
    Some(format!(
        "a token by {} with {names:?}, signed: {}, that says {claims}",
        header["alg"],
        !signature.is_empty()
    ))
}
