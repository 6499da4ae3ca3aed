use std::time::Duration;

use controllers_kit::{Timestamp, testing::at};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, DnValue, IsCa, KeyPair,
    PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, SanType,
};

use super::*;
use crate::der::{GENERALIZED_TIME, UTC_TIME};

fn instant(time: &str) -> Timestamp {
    time.parse().unwrap()
}

fn dated(until: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    let at = |time: &str| {
        let civil = instant(time).to_zoned(jiff::tz::TimeZone::UTC).datetime();
        let number = |number: i8| u8::try_from(number).unwrap();
        rcgen::date_time_ymd(
            i32::from(civil.year()),
            number(civil.month()),
            number(civil.day()),
        ) + Duration::from_secs(
            3600 * u64::from(number(civil.hour()))
                + 60 * u64::from(number(civil.minute()))
                + u64::from(number(civil.second())),
        )
    };
    params.not_before = at("2026-01-01T00:00:00Z");
    params.not_after = at(until);
    params
}

/// A certificate in PEM that ends at an instant.
pub(crate) fn certificate_until(until: &str) -> String {
    let key = KeyPair::generate().unwrap();
    dated(until).self_signed(&key).unwrap().pem()
}

/// The PEM of a request by a new P-256 key: common name, organizations, and alternative names.
pub(crate) fn request_pem(name: &str, organizations: &[&str], names: Vec<SanType>) -> String {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    for organization in organizations {
        let organization = DnValue::PrintableString((*organization).try_into().unwrap());
        params
            .distinguished_name
            .push(DnType::OrganizationName, organization);
    }
    if !name.is_empty() {
        let name = DnValue::PrintableString(name.try_into().unwrap());
        params.distinguished_name.push(DnType::CommonName, name);
    }
    params.subject_alt_names = names;
    let key = KeyPair::generate().unwrap();
    params.serialize_request(&key).unwrap().pem().unwrap()
}

pub(crate) fn dns(name: &str) -> SanType {
    SanType::DnsName(name.try_into().unwrap())
}

pub(crate) fn email(name: &str) -> SanType {
    SanType::Rfc822Name(name.try_into().unwrap())
}

pub(crate) fn uri(name: &str) -> SanType {
    SanType::URI(name.try_into().unwrap())
}

pub(crate) fn ip(address: &str) -> SanType {
    SanType::IpAddress(address.parse().unwrap())
}

fn read_pem(pem: &str) -> Result<Request, String> {
    request_der(pem.as_bytes()).and_then(|der| read(&der))
}

#[test]
fn a_request_has_subject_names_and_key() {
    let names = vec![
        dns("a.example"),
        email("me@a.example"),
        ip("10.0.0.1"),
        ip("fd00::1"),
        uri("spiffe://a/b"),
    ];
    let pem = request_pem("system:node:one", &["system:nodes"], names);
    let request = read_pem(&pem).unwrap();
    assert_eq!(request.common_name(), "system:node:one");
    assert_eq!(request.organizations(), ["system:nodes"]);
    assert_eq!(request.dns, ["a.example"]);
    assert_eq!(request.emails, ["me@a.example"]);
    assert_eq!(request.uris, ["spiffe://a/b"]);
    assert_eq!(
        request.ips.iter().map(Vec::len).collect::<Vec<_>>(),
        [4, 16]
    );
    verify(&request_der(pem.as_bytes()).unwrap()).unwrap();
}

#[test]
fn malformed_requests_are_refused() {
    let wrong_block = "PEM block type must be CERTIFICATE REQUEST";
    let certificate = certificate_until("2027-01-01T00:00:00Z");
    for pem in ["", "garbage", certificate.as_str()] {
        assert_eq!(read_pem(pem).unwrap_err(), wrong_block, "{pem}");
    }
    let torn = pem("CERTIFICATE REQUEST", &[0x30, 3, 2, 1, 0]);
    assert!(read_pem(&torn).unwrap_err().contains("malformed"));
    let good = request_pem("a", &[], Vec::new());
    let mut der = request_der(good.as_bytes()).unwrap();
    der.push(0);
    assert!(read(&der).unwrap_err().contains("trailing data"));
}

#[test]
fn a_request_that_was_tampered_with_is_not_verified() {
    let mut der = request_der(request_pem("node-1", &[], Vec::new()).as_bytes()).unwrap();
    let place = der.windows(6).position(|part| part == b"node-1").unwrap();
    der[place + 5] = b'2';
    assert_eq!(read(&der).unwrap().common_name(), "node-2");
    assert!(
        verify(&der)
            .unwrap_err()
            .starts_with("unable to verify certificate request signature")
    );
}

#[test]
fn arbitrary_bytes_do_no_harm() {
    let good = request_der(request_pem("a", &["b"], vec![dns("c")]).as_bytes()).unwrap();
    for place in 0..good.len() {
        for change in [0x00, 0xff, good[place] ^ 0x20] {
            let mut der = good.clone();
            der[place] = change;
            let _ = read(&der);
            let _ = verify(&der);
        }
        let _ = read(&good[..place]);
        let _ = Authority::read(&good[..place]);
    }
}

#[test]
fn usages_are_upstream_s() {
    let parse = |names: &[&str]| {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        Usages::parse(&names)
    };
    // Names of the extended ones that upstream's order puts there.
    let names = |usages: &Usages| -> Vec<&str> {
        let name = |place: &usize| EXTENDED_USAGES[*place].0[0];
        usages.extended.iter().map(name).collect()
    };
    let table: [(&[&str], u16, &[&str]); 5] = [
        (&["signing"], 1, &[]),
        (&["client auth"], 0, &["client auth"]),
        (&["client auth", "client auth"], 0, &["client auth"]),
        (&["cert sign", "encipher only"], 1 << 5 | 1 << 7, &[]),
        (
            &["ocsp signing", "crl sign", "s/mime", "content commitment"],
            1 << 6 | 1 << 1,
            &["email protection", "ocsp signing"],
        ),
    ];
    for (given, key, extended) in table {
        let usages = parse(given).unwrap();
        assert_eq!(
            (usages.key, names(&usages)),
            (key, extended.to_vec()),
            "{given:?}"
        );
    }
    assert_eq!(
        parse(&["signing", "unsupported string", "x"]).unwrap_err(),
        "unrecognized usage values: [\"unsupported string\" \"x\"]"
    );
}

#[test]
fn how_long_a_certificate_is_valid_is_as_upstream_has_it() {
    let minutes = |count: u64| Duration::from_secs(60 * count);
    let (now, end) = (at("12:00:00"), "2026-03-04T12:00:00Z");
    let table = [
        // Less than eight hours: what is put in front is not taken away behind.
        (minutes(1), end, Ok("2026-03-02T12:01:00Z")),
        (minutes(60), end, Ok("2026-03-02T13:00:00Z")),
        (minutes(8 * 60 - 1), end, Ok("2026-03-02T19:59:00Z")),
        (minutes(8 * 60), end, Ok("2026-03-02T19:55:00Z")),
        (minutes(24 * 60), end, Ok("2026-03-03T11:55:00Z")),
        // Never longer than the authority.
        (minutes(72 * 60), end, Ok(end)),
        (
            minutes(60),
            "2026-03-02T12:00:00Z",
            Err(
                "refusing to sign a certificate that expired in the past: NotAfter=2026-03-02T12:00:00Z",
            ),
        ),
        (
            minutes(60),
            "2026-03-02T11:55:00Z",
            Err("the signer has expired: NotAfter=2026-03-02T11:55:00Z"),
        ),
    ];
    for (ttl, end, expected) in table {
        let got = validity(ttl, now, instant(end));
        match expected {
            Ok(until) => assert_eq!(
                got,
                Ok(Validity {
                    not_before: at("11:55:00"),
                    not_after: instant(until),
                }),
                "{ttl:?}"
            ),
            Err(why) => assert_eq!(got, Err(why.to_owned()), "{ttl:?}"),
        }
    }
}

/// An authority of a name, with its certificate's DER and its key.
fn authority(name: &str) -> (Authority, Vec<u8>, KeyPair) {
    let mut params = dated("2036-01-01T00:00:00Z");
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let der = certificate.der().to_vec();
    (Authority::read(&der).unwrap(), der, key)
}

#[test]
fn a_certificate_has_what_go_would_write_field_by_field() {
    let names = vec![
        uri("spiffe://a/b"),
        ip("10.0.0.1"),
        email("me@a.example"),
        dns("a.example"),
    ];
    let pem = request_pem("system:node:one", &["system:nodes"], names);
    let request = read_pem(&pem).unwrap();
    let (issuer, issuer_der, key) = authority("the authority");
    let usages = Usages::parse(&[
        "server auth".to_owned(),
        "key encipherment".to_owned(),
        "client auth".to_owned(),
        "digital signature".to_owned(),
    ])
    .unwrap();
    let validity = Validity {
        not_before: instant("2026-03-02T11:55:00Z"),
        not_after: instant("2050-01-01T00:00:00Z"),
    };
    let mut serial = [7; 16];
    serial[0] = 0xff;
    let content = to_be_signed(
        &issuer,
        Algorithm::EcdsaSha256,
        &request,
        &usages,
        validity,
        serial,
    );
    let signature = rcgen::SigningKey::sign(&key, &content).unwrap();
    let der = signed(&content, Algorithm::EcdsaSha256, &signature);

    let (rest, read) = x509_parser::parse_x509_certificate(&der).unwrap();
    assert!(rest.is_empty());
    let (_, read_issuer) = x509_parser::parse_x509_certificate(&issuer_der).unwrap();
    read.verify_signature(Some(read_issuer.public_key()))
        .unwrap();
    assert_eq!(read.version(), x509_parser::x509::X509Version::V3);
    assert_eq!(read.raw_serial()[0], 0, "a serial number is positive");
    assert_eq!(read.raw_serial()[1..], serial);
    assert_eq!(read.issuer().to_string(), "CN=the authority");
    assert_eq!(
        read.subject().to_string(),
        "O=system:nodes, CN=system:node:one"
    );
    assert_eq!(
        read.validity().not_before.to_string(),
        "Mar  2 11:55:00 2026 +00:00"
    );
    assert_eq!(
        read.validity().not_after.to_string(),
        "Jan  1 00:00:00 2050 +00:00"
    );
    assert_eq!(read.public_key().raw, request.public_key);

    let kinds: Vec<(String, bool)> = read
        .extensions()
        .iter()
        .map(|one| (one.oid.to_id_string(), one.critical))
        .collect();
    let expected = [
        ("2.5.29.15", true),
        ("2.5.29.37", false),
        ("2.5.29.19", true),
        ("2.5.29.35", false),
        ("2.5.29.17", false),
    ];
    assert_eq!(
        kinds,
        expected.map(|(oid, critical)| (oid.to_owned(), critical))
    );
    let value = |place: usize| read.extensions()[place].value.to_vec();
    // Digital signature and key encipherment: bits 0 and 2.
    assert_eq!(value(0), [3, 2, 5, 0xa0]);
    let purpose = |last: u8| [6, 8, 0x2b, 6, 1, 5, 5, 7, 3, last];
    assert_eq!(
        value(1),
        [&[0x30, 20][..], &purpose(1), &purpose(2)].concat()
    );
    assert_eq!(value(2), [0x30, 0]);
    let id = read_issuer
        .iter_extensions()
        .find_map(|one| match one.parsed_extension() {
            ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0.to_vec()),
            _ => None,
        })
        .unwrap();
    assert_eq!(value(3)[4..], id);
    let read_again = {
        let mut again = Request::default();
        let names = value(4);
        for name in each(take(&names, SEQUENCE).unwrap().0.content) {
            add_name(&mut again, &name.unwrap()).unwrap();
        }
        again
    };
    // DNS names first, then e-mail, addresses and URIs.
    assert_eq!(read_again.dns, request.dns);
    assert_eq!(read_again.emails, request.emails);
    assert_eq!(read_again.ips, request.ips);
    assert_eq!(read_again.uris, request.uris);
    assert_eq!(value(4)[2], 0x82);
}

#[test]
fn names_and_usages_that_are_not_there_are_left_out() {
    let request = read_pem(&request_pem("", &[], vec![dns("a.example")])).unwrap();
    let (mut issuer, ..) = authority("x");
    issuer.key_id.clear();
    let extensions = extensions(&issuer, &request, &Usages::default(), &subject(&request));
    // No key usage, no purpose, no key id; and without a subject the alternative names are critical.
    assert_eq!(extensions.len(), 2);
    assert!(
        extensions[1]
            .windows(3)
            .any(|part| part == [BOOLEAN, 1, 0xff])
    );
    assert_eq!(subject(&request), [SEQUENCE, 0]);
}

#[test]
fn several_organizations_are_one_part_of_the_name_as_go_has_it() {
    let request = Request {
        subject: vec![
            (COMMON_NAME, vec!["first".to_owned(), "last_one".to_owned()]),
            ("2.5.4.10", vec!["b".to_owned(), "a".to_owned()]),
        ],
        ..Request::default()
    };
    let part = |attribute: u8, tag: u8, text: &str| {
        value(
            SEQUENCE,
            &[
                &[OID, 3, 0x55, 4, attribute],
                &value(tag, &[text.as_bytes()]),
            ],
        )
    };
    let expected = value(
        SEQUENCE,
        &[
            &value(
                SET,
                &[
                    &part(10, PRINTABLE_STRING, "a"),
                    &part(10, PRINTABLE_STRING, "b"),
                ],
            ),
            // An underscore is not printable.
            &value(SET, &[&part(3, UTF8_STRING, "last_one")]),
        ],
    );
    assert_eq!(subject(&request), expected);
}

#[test]
fn key_usages_are_bits_without_zeros_at_the_end() {
    let table: [(u16, &[u8]); 5] = [
        (0b1, &[3, 2, 7, 0x80]),
        (0b101, &[3, 2, 5, 0xa0]),
        (1 << 7, &[3, 2, 0, 0x01]),
        (1 << 8, &[3, 3, 7, 0x00, 0x80]),
        (1 << 8 | 1, &[3, 3, 7, 0x80, 0x80]),
    ];
    for (bits, der) in table {
        assert_eq!(key_usage(bits), der, "{bits:b}");
    }
}

#[test]
fn times_have_two_digits_of_the_year_from_1950_to_2049() {
    let table = [
        ("2026-03-02T12:00:00Z", UTC_TIME, "260302120000Z"),
        ("2049-12-31T23:59:59Z", UTC_TIME, "491231235959Z"),
        ("2050-01-01T00:00:00Z", GENERALIZED_TIME, "20500101000000Z"),
        ("1949-12-31T23:59:59Z", GENERALIZED_TIME, "19491231235959Z"),
    ];
    for (at, tag, text) in table {
        assert_eq!(time(instant(at)), value(tag, &[text.as_bytes()]), "{at}");
    }
}

#[test]
fn long_values_have_long_lengths() {
    for (length, head) in [
        (127, vec![4, 127]),
        (128, vec![4, 0x81, 128]),
        (256, vec![4, 0x82, 1, 0]),
        (65_536, vec![4, 0x83, 1, 0, 0]),
    ] {
        let der = value(OCTET_STRING, &[&vec![0; length]]);
        assert_eq!(der[..head.len()], head);
        assert_eq!(der.len(), head.len() + length);
    }
}

#[test]
fn a_certificate_s_end_is_read_and_garbage_has_none() {
    let pem = certificate_until("2026-03-02T12:30:00Z");
    assert_eq!(not_after(pem.as_bytes()), Some(at("12:30:00")));
    for garbage in [
        "",
        "garbage",
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    ] {
        assert_eq!(not_after(garbage.as_bytes()), None);
    }
}

#[test]
fn keys_of_p_384_sign_requests_too() {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).unwrap();
    let request = CertificateParams::default()
        .serialize_request(&key)
        .unwrap();
    verify(request.der()).unwrap();
}

/// A request of a name and attributes, each DER, that nobody has signed.
fn request_of(subject: &[u8], attributes: &[&[u8]]) -> Vec<u8> {
    let key = value(SEQUENCE, &[&[SEQUENCE, 0], &[BIT_STRING, 1, 0]]);
    let info = value(
        SEQUENCE,
        &[
            &[INTEGER, 1, 0],
            &value(SEQUENCE, &[subject]),
            &key,
            &value(explicit(0), attributes),
        ],
    );
    value(SEQUENCE, &[&info, &[SEQUENCE, 0], &[BIT_STRING, 1, 0]])
}

/// An attribute of a name, in a set of its own.
fn named(last: u8, tag: u8, content: &[u8]) -> Vec<u8> {
    let attribute = value(
        SEQUENCE,
        &[&[OID, 3, 0x55, 4, last], &value(tag, &[content])],
    );
    value(SET, &[&attribute])
}

#[test]
fn the_texts_of_a_subject_are_read_as_go_reads_them() {
    let table: [(u8, &[u8], Option<&str>); 12] = [
        (PRINTABLE_STRING, b"a", Some("a")),
        (UTF8_STRING, "ä".as_bytes(), Some("ä")),
        (IA5_STRING, b"a", Some("a")),
        (NUMERIC_STRING, b"1", Some("1")),
        (T61_STRING, b"\xe4", Some("ä")),
        (BMP_STRING, b"\0a\0\xe4", Some("aä")),
        (BMP_STRING, b"\0a\0\0", Some("a")),
        // No texts: left out.
        (OCTET_STRING, b"a", None),
        (0x1c, b"\0\0\0a", None),
        (INTEGER, &[1], None),
        (SEQUENCE, &[], None),
        (SET, &[], None),
    ];
    for (tag, content, expected) in table {
        let request = read(&request_of(&named(3, tag, content), &[])).unwrap();
        assert_eq!(
            request.common_name(),
            expected.unwrap_or_default(),
            "{tag:x} {content:?}"
        );
        assert_eq!(request.subject.is_empty(), expected.is_none(), "{tag:x}");
    }
    for (tag, content) in [
        (UTF8_STRING, &[0xff][..]),
        (BMP_STRING, &[0][..]),
        (BMP_STRING, &[0xd8, 0][..]),
    ] {
        let why = read(&request_of(&named(3, tag, content), &[])).unwrap_err();
        assert_eq!(why, "a text of the subject is malformed");
    }
    // An e-mail address in the name is no attribute that Go writes.
    let foreign = value(
        SET,
        &[&value(
            SEQUENCE,
            &[
                &value(OID, &[&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 1]]),
                &value(IA5_STRING, &[b"me@a.example"]),
            ],
        )],
    );
    assert!(read(&request_of(&foreign, &[])).unwrap().subject.is_empty());
}

/// An attribute that asks for extensions.
fn asking_for(extensions: &[Vec<u8>]) -> Vec<u8> {
    let list = value(SEQUENCE, &[&extensions.concat()]);
    value(
        SEQUENCE,
        &[&value(OID, &[EXTENSION_REQUEST]), &value(SET, &[&list])],
    )
}

fn names_extension(names: &[Vec<u8>]) -> Vec<u8> {
    extension(0x11, false, &value(SEQUENCE, &[&names.concat()]))
}

#[test]
fn a_request_is_read_as_go_reads_it() {
    let dns = |name: &[u8]| value(implicit(2), &[name]);
    let a = || names_extension(&[dns(b"a")]);
    let password = value(
        SEQUENCE,
        &[
            &value(OID, &[&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 7]]),
            &value(SET, &[&value(IA5_STRING, &[b"a password"])]),
        ],
    );
    let mapped = [&[0; 10][..], &[0xff, 0xff, 10, 0, 0, 1]].concat();
    /// A name, attributes, and the DNS names and addresses that are read from them.
    type Row<'r> = (&'r str, Vec<Vec<u8>>, &'r [&'r str], &'r [&'r [u8]]);
    let found: [Row<'_>; 7] = [
        ("nothing", vec![], &[], &[]),
        ("names", vec![asking_for(&[a()])], &["a"], &[]),
        // Malformed key usage: nobody reads it.
        (
            "a malformed extension besides",
            vec![asking_for(&[extension(0x0f, true, &[0xff]), a()])],
            &["a"],
            &[],
        ),
        (
            "a password of an odd kind",
            vec![password, asking_for(&[a()])],
            &["a"],
            &[],
        ),
        (
            "an attribute that is none",
            vec![vec![NULL, 0], asking_for(&[a()])],
            &["a"],
            &[],
        ),
        (
            "names of other kinds",
            vec![asking_for(&[names_extension(&[
                value(implicit(8), &[&[0x55]]),
                value(explicit(0), &[b"x"]),
                dns(b"b"),
            ])])],
            &["b"],
            &[],
        ),
        (
            "an IPv4 address in its long form",
            vec![asking_for(&[names_extension(&[value(
                implicit(7),
                &[&mapped],
            )])])],
            &[],
            &[&[10, 0, 0, 1]],
        ),
    ];
    for (name, attributes, dns, ips) in found {
        let attributes: Vec<&[u8]> = attributes.iter().map(Vec::as_slice).collect();
        let request = read(&request_of(&[], &attributes)).expect(name);
        assert_eq!(request.dns, dns, "{name}");
        assert_eq!(request.ips, ips, "{name}");
    }
    let refused: [(&str, Vec<u8>, &str); 5] = [
        (
            "twice",
            asking_for(&[a(), a()]),
            "certificate request contains duplicate requested extensions",
        ),
        (
            "no list",
            value(
                SEQUENCE,
                &[
                    &value(OID, &[EXTENSION_REQUEST]),
                    &value(SET, &[&[NULL, 0]]),
                ],
            ),
            "an extension of the request is malformed",
        ),
        (
            "no ASCII",
            asking_for(&[names_extension(&[dns(&[0xff])])]),
            "SAN dNSName is malformed",
        ),
        (
            "an address of no length",
            asking_for(&[names_extension(&[value(implicit(7), &[&[1, 2, 3]])])]),
            "cannot parse IP address of length 3",
        ),
        (
            "no names",
            asking_for(&[extension(0x11, false, &[NULL, 0])]),
            "the subject's alternative names are malformed",
        ),
    ];
    for (name, attribute, why) in refused {
        let refused = read(&request_of(&[], &[&attribute]));
        assert_eq!(refused.unwrap_err(), why, "{name}");
    }
}

#[test]
fn lengths_and_tags_that_go_does_not_take_are_refused() {
    let table: [(&[u8], bool); 8] = [
        (&[4, 1, 0], true),
        (&[4, 0x81, 1, 0], false),
        (&[4, 0x82, 0, 1, 0], false),
        (&[4, 0x80, 0, 0], false),
        (&[4, 0x85, 0, 0, 0, 0, 1, 0], false),
        (&[0x1f, 0x81, 0, 0], false),
        (&[4, 2, 0], false),
        (&[4], false),
    ];
    for (der, is_one) in table {
        assert_eq!(next(der).is_some(), is_one, "{der:x?}");
    }
}

#[test]
fn the_block_of_a_request_is_the_one_that_go_finds() {
    const LABEL: &str = "CERTIFICATE REQUEST";
    let block =
        |label: &str, text: &str| format!("-----BEGIN {label}-----\n{text}-----END {label}-----");
    let good = block(LABEL, "AQID\n");
    let table = [
        ("alone", good.clone(), true),
        (
            "with text before and after",
            format!("Subject: a\n{good}\nmore\n"),
            true,
        ),
        (
            "with bytes before that are no text",
            format!("\u{ff}\u{fffd}\n{good}"),
            true,
        ),
        (
            "with line ends of Windows",
            good.replace('\n', "\r\n"),
            true,
        ),
        ("with blanks at line ends", block(LABEL, "AQ ID \t\n"), true),
        ("with headers", block(LABEL, "a: b\nc: d\n\nAQID\n"), true),
        (
            "after a broken block",
            format!("{}\n{good}", block(LABEL, "!\n")),
            true,
        ),
        (
            "after a begin without an end",
            format!("-----BEGIN X-----\nAAAA\n{good}"),
            true,
        ),
        (
            "after an end of another label",
            format!("-----BEGIN X-----\n-----END Y-----\n{good}"),
            true,
        ),
        ("of another label", block("CERTIFICATE", "AQID\n"), false),
        (
            "after one of another label",
            format!("{}\n{good}", block("X", "AQID\n")),
            false,
        ),
        ("without padding", block(LABEL, "AQIDBA\n"), false),
        ("with something after the end", format!("{good} x"), false),
        ("not at the beginning of a line", format!(" {good}"), false),
        (
            "with a torn label",
            good.replacen("REQUEST-----", "REQUEST----", 1),
            false,
        ),
        ("headers alone", block(LABEL, "a: b\n"), false),
    ];
    for (name, pem, is_found) in table {
        assert_eq!(
            request_der(pem.as_bytes()).ok(),
            is_found.then(|| vec![1, 2, 3]),
            "{name}"
        );
    }
    // Go reads bits after the last byte too.
    let odd = block(LABEL, "AQIDBB==\n");
    assert_eq!(request_der(odd.as_bytes()).unwrap(), [1, 2, 3, 4]);
    let empty = request_der(block(LABEL, "").as_bytes()).unwrap();
    assert!(empty.is_empty());
    // However many lines there are: lines with colons are read up to the block's end.
    let long = "-----BEGIN X-----\na:b\n-----END Y-----:\n".repeat(20_000);
    let began = std::time::Instant::now();
    assert!(request_der(long.as_bytes()).is_err());
    assert!(began.elapsed() < Duration::from_secs(10));
}
