use std::{fs, path::Path, time::Duration};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use controllers_identity::{
    certificatesigningrequest_signing::CertificateSigningRequestSigning,
    serviceaccount_token::ServiceAccountTokens,
};
use controllers_kit::{Controller, FlagValue, Flags, Issue, Timestamp};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, KeyPair, PKCS_ECDSA_P256_SHA256,
    PKCS_ECDSA_P384_SHA384, PKCS_ED25519, PKCS_RSA_SHA256, PublicKeyData as _, SignatureAlgorithm,
};
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, RSA_PKCS1_2048_8192_SHA256,
    UnparsedPublicKey, VerificationAlgorithm,
};
use tempfile::TempDir;
use x509_parser::{parse_x509_certificate, pem::parse_x509_pem};

use super::*;

const SIGNING: &str = "certificatesigningrequest-signing-controller";
const TOKENS: &str = "serviceaccount-token-controller";
const SIGNER: &str = "kubernetes.io/kube-apiserver-client";

/// An RSA key for these tests alone, in the oldest of the forms: ring makes none.
const RSA: &str = include_str!("tests.pem");

fn new_key(algorithm: &'static SignatureAlgorithm) -> KeyPair {
    if algorithm != &PKCS_RSA_SHA256 {
        return KeyPair::generate_for(algorithm).unwrap();
    }
    let key = PrivateKeyDer::from_pem_slice(RSA.as_bytes()).unwrap();
    KeyPair::from_der_and_sign_algo(&key, algorithm).unwrap()
}

/// A key as a file has it.
fn pem_of(key: &KeyPair) -> String {
    match key.algorithm() == &PKCS_RSA_SHA256 {
        true => RSA.to_owned(),
        false => key.serialize_pem(),
    }
}

/// An authority of a name, in `ca.crt` and `ca.key` of a folder.
fn write_authority(folder: &Path, name: &str, algorithm: &'static SignatureAlgorithm) -> KeyPair {
    let key = new_key(algorithm);
    fs::write(folder.join("ca.crt"), certificate(name, &key)).unwrap();
    fs::write(folder.join("ca.key"), pem_of(&key)).unwrap();
    key
}

fn certificate(name: &str, key: &KeyPair) -> String {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.self_signed(key).unwrap().pem()
}

fn flags(folder: &Path) -> Flags {
    let descriptors = [
        CertificateSigningRequestSigning::describe(),
        ServiceAccountTokens::describe(),
    ];
    let mut flags = Flags::defaults(&descriptors);
    for (flag, file) in [
        ("cluster-signing-cert-file", "ca.crt"),
        ("cluster-signing-key-file", "ca.key"),
        (KEY_FILE, "sa.key"),
    ] {
        let path = folder.join(file).display().to_string();
        flags.set(flag, FlagValue::Text(path));
    }
    flags
}

fn issue() -> Issue {
    let key = KeyPair::generate().unwrap();
    let request = CertificateParams::default()
        .serialize_request(&key)
        .unwrap();
    Issue {
        signer: SIGNER,
        request: request.der().to_vec(),
        usages: vec!["client auth".to_owned()],
        ttl: Duration::from_secs(3600),
    }
}

fn issuer(pem: &str) -> String {
    let (_, block) = parse_x509_pem(pem.as_bytes()).unwrap();
    let (_, certificate) = parse_x509_certificate(&block.contents).unwrap();
    let name = certificate.issuer().iter_common_name().next().unwrap();
    name.as_str().unwrap().to_owned()
}

/// As after the patience of a check.
fn read_again(keys: &FileKeys) {
    for (_, pair) in &keys.authorities {
        drop(pair.after(Duration::ZERO));
    }
    if let Some(tokens) = &keys.tokens {
        drop(tokens.after(Duration::ZERO));
    }
}

#[test]
fn authorities_of_every_kind_sign_what_verifies() {
    for algorithm in [
        &PKCS_ECDSA_P256_SHA256,
        &PKCS_ECDSA_P384_SHA384,
        &PKCS_ED25519,
        &PKCS_RSA_SHA256,
    ] {
        let folder = TempDir::new().unwrap();
        write_authority(folder.path(), "one", algorithm);
        let keys = FileKeys::open(&flags(folder.path()), &[SIGNING]).unwrap();
        let pems = [0, 1].map(|_| keys.certificate(&issue(), Timestamp::now()).unwrap());
        let authority = fs::read(folder.path().join("ca.crt")).unwrap();
        let (_, authority) = parse_x509_pem(&authority).unwrap();
        let (_, authority) = parse_x509_certificate(&authority.contents).unwrap();
        let serials = pems.map(|pem| {
            let (_, block) = parse_x509_pem(pem.as_bytes()).unwrap();
            let (_, certificate) = parse_x509_certificate(&block.contents).unwrap();
            certificate
                .verify_signature(Some(authority.public_key()))
                .unwrap();
            certificate.raw_serial().to_vec()
        });
        assert_ne!(serials[0], serials[1]);
    }
}

#[test]
fn a_new_pair_is_taken_and_half_of_one_is_not() {
    let folder = TempDir::new().unwrap();
    let path = folder.path();
    write_authority(path, "one", &PKCS_ECDSA_P256_SHA256);
    let keys = FileKeys::open(&flags(path), &[SIGNING]).unwrap();
    let by = || {
        read_again(&keys);
        issuer(&keys.certificate(&issue(), Timestamp::now()).unwrap())
    };
    assert_eq!(by(), "one");
    // The certificate comes first: its key is still the old one.
    let next = KeyPair::generate().unwrap();
    fs::write(path.join("ca.crt"), certificate("two", &next)).unwrap();
    assert_eq!(by(), "one");
    fs::write(path.join("ca.key"), next.serialize_pem()).unwrap();
    assert_eq!(by(), "two");
    // Broken files and missing ones change nothing.
    fs::write(path.join("ca.key"), "garbage").unwrap();
    assert_eq!(by(), "two");
    fs::remove_file(path.join("ca.crt")).unwrap();
    assert_eq!(by(), "two");
}

#[test]
fn files_are_read_again_after_a_while_only() {
    let folder = TempDir::new().unwrap();
    write_authority(folder.path(), "one", &PKCS_ECDSA_P256_SHA256);
    let keys = FileKeys::open(&flags(folder.path()), &[SIGNING]).unwrap();
    write_authority(folder.path(), "two", &PKCS_ECDSA_P256_SHA256);
    let signed = keys.certificate(&issue(), Timestamp::now()).unwrap();
    assert_eq!(issuer(&signed), "one");
}

#[test]
fn a_pair_that_can_t_be_meant_stops_signing_until_it_is_mended() {
    let folder = TempDir::new().unwrap();
    let path = folder.path();
    let key = write_authority(path, "one", &PKCS_ECDSA_P256_SHA256);
    let keys = FileKeys::open(&flags(path), &[SIGNING]).unwrap();
    let two = [certificate("one", &key), certificate("two", &key)].concat();
    fs::write(path.join("ca.crt"), &two).unwrap();
    read_again(&keys);
    let why = keys.certificate(&issue(), Timestamp::now()).unwrap_err();
    assert!(why.ends_with("expected 1 certificate, found 2"), "{why}");
    // At the start it is an error too.
    let why = FileKeys::open(&flags(path), &[SIGNING]).unwrap_err();
    assert!(why.ends_with("expected 1 certificate, found 2"), "{why}");
    fs::write(path.join("ca.crt"), certificate("three", &key)).unwrap();
    read_again(&keys);
    let signed = keys.certificate(&issue(), Timestamp::now()).unwrap();
    assert_eq!(issuer(&signed), "three");
}

#[test]
fn what_can_t_be_used_at_the_start_is_named_with_a_remedy() {
    let folder = TempDir::new().unwrap();
    let path = folder.path();
    let opened = || FileKeys::open(&flags(path), &[SIGNING, TOKENS]).unwrap_err();
    assert!(opened().contains("can't read"), "{}", opened());
    let key = write_authority(path, "one", &PKCS_ECDSA_P256_SHA256);
    assert!(opened().contains("sa.key"), "{}", opened());
    fs::write(path.join("sa.key"), "garbage").unwrap();
    assert!(
        opened().contains("there is no private key in it"),
        "{}",
        opened()
    );
    let ed = KeyPair::generate_for(&PKCS_ED25519).unwrap();
    fs::write(path.join("sa.key"), ed.serialize_pem()).unwrap();
    assert!(opened().contains("must be RSA or ECDSA"), "{}", opened());
    fs::write(path.join("ca.crt"), "garbage").unwrap();
    assert!(
        opened().contains("there is no certificate in it"),
        "{}",
        opened()
    );
    let other = KeyPair::generate().unwrap();
    fs::write(path.join("ca.crt"), certificate("one", &other)).unwrap();
    assert!(
        opened().contains("is not that of the certificate"),
        "{}",
        opened()
    );
    fs::write(path.join("ca.crt"), certificate("one", &key)).unwrap();
    fs::write(
        path.join("ca.key"),
        "-----BEGIN EC PRIVATE KEY-----\nMAMCAQE=\n-----END EC PRIVATE KEY-----\n",
    )
    .unwrap();
    assert!(
        opened().contains("of a kind that is not known"),
        "{}",
        opened()
    );
}

#[test]
fn keys_of_controllers_that_do_not_run_are_not_read() {
    let folder = TempDir::new().unwrap();
    let keys = FileKeys::open(&flags(folder.path()), &[]).unwrap();
    assert_eq!(
        keys.certificate(&issue(), Timestamp::now()).unwrap_err(),
        format!("there is no authority for {SIGNER}")
    );
    assert!(keys.token("{}").is_err());
}

#[test]
fn requests_that_can_t_be_fulfilled_are_refused() {
    let folder = TempDir::new().unwrap();
    write_authority(folder.path(), "one", &PKCS_ECDSA_P256_SHA256);
    let keys = FileKeys::open(&flags(folder.path()), &[SIGNING]).unwrap();
    let refused = |change: &dyn Fn(&mut Issue)| {
        let mut issue = issue();
        change(&mut issue);
        keys.certificate(&issue, Timestamp::now()).unwrap_err()
    };
    assert!(refused(&|issue| issue.usages.push("x".to_owned())).contains("unrecognized usage"));
    assert!(refused(&|issue| issue.signer = "example.com/x").contains("no authority"));
    let tampered = refused(&|issue| {
        let last = issue.request.len() - 1;
        issue.request[last] ^= 1;
    });
    assert!(tampered.contains("unable to verify"), "{tampered}");
    // rcgen's authorities end in the year 4096.
    let late: Timestamp = "4100-01-01T00:00:00Z".parse().unwrap();
    let why = keys.certificate(&issue(), late).unwrap_err();
    assert!(why.starts_with("the signer has expired"), "{why}");
}

#[test]
fn tokens_are_signed_as_their_key_is_and_named_by_it() {
    let claims = r#"{"iss":"kubernetes/serviceaccount"}"#;
    let table: [(
        &'static SignatureAlgorithm,
        &str,
        &'static dyn VerificationAlgorithm,
    ); 3] = [
        (&PKCS_RSA_SHA256, "RS256", &RSA_PKCS1_2048_8192_SHA256),
        (&PKCS_ECDSA_P256_SHA256, "ES256", &ECDSA_P256_SHA256_FIXED),
        (&PKCS_ECDSA_P384_SHA384, "ES384", &ECDSA_P384_SHA384_FIXED),
    ];
    for (algorithm, name, verifies) in table {
        let folder = TempDir::new().unwrap();
        let key = new_key(algorithm);
        fs::write(folder.path().join("sa.key"), pem_of(&key)).unwrap();
        let keys = FileKeys::open(&flags(folder.path()), &[TOKENS]).unwrap();
        // Of an ECDSA signature's numbers some are short: many are tried.
        for _ in 0..if name == "RS256" { 1 } else { 300 } {
            let token = keys.token(claims).unwrap();
            let parts: Vec<&str> = token.split('.').collect();
            let [header, content, signature] = parts[..] else {
                panic!("{} parts", parts.len());
            };
            let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).unwrap();
            let id =
                URL_SAFE_NO_PAD.encode(digest::digest(&SHA256, &key.subject_public_key_info()));
            assert_eq!(
                String::from_utf8(decode(header)).unwrap(),
                format!(r#"{{"alg":"{name}","kid":"{id}"}}"#)
            );
            assert_eq!(decode(content), claims.as_bytes());
            let signed = format!("{header}.{content}");
            UnparsedPublicKey::new(verifies, key.public_key_raw())
                .verify(signed.as_bytes(), &decode(signature))
                .unwrap();
        }
    }
}

#[test]
fn a_new_key_signs_the_next_token() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("sa.key");
    fs::write(&path, KeyPair::generate().unwrap().serialize_pem()).unwrap();
    let keys = FileKeys::open(&flags(folder.path()), &[TOKENS]).unwrap();
    let header = || {
        read_again(&keys);
        keys.token("{}")
            .unwrap()
            .split('.')
            .next()
            .unwrap()
            .to_owned()
    };
    let first = header();
    assert_eq!(header(), first);
    fs::write(&path, KeyPair::generate().unwrap().serialize_pem()).unwrap();
    assert_ne!(header(), first);
}

#[test]
fn keys_are_printed_nowhere() {
    let folder = TempDir::new().unwrap();
    let key = write_authority(folder.path(), "one", &PKCS_ECDSA_P256_SHA256);
    fs::write(folder.path().join("sa.key"), key.serialize_pem()).unwrap();
    let keys = FileKeys::open(&flags(folder.path()), &[SIGNING, TOKENS]).unwrap();
    let pair = keys.authorities[0].1.current().unwrap();
    let tokens = keys.tokens.as_ref().unwrap().current().unwrap();
    let printed = format!("{keys:?} {pair:?} {tokens:?}");
    assert!(printed.contains("(confidential)"));
    let der = key.serialize_der();
    let secrets = [
        base64::engine::general_purpose::STANDARD.encode(&der),
        format!("{:?}", &der[..32])
            .trim_matches(['[', ']'])
            .to_owned(),
    ];
    for secret in &secrets {
        assert!(!printed.contains(&secret[..20]), "{printed}");
    }
}

#[test]
fn fingerprints_are_of_what_is_signed_with_now() {
    let folder = TempDir::new().unwrap();
    let path = folder.path();
    let key = write_authority(path, "one", &PKCS_ECDSA_P256_SHA256);
    fs::write(path.join("sa.key"), pem_of(&key)).unwrap();
    let keys = FileKeys::open(&flags(path), &[SIGNING, TOKENS]).unwrap();
    let first = keys.fingerprints();
    let names: Vec<&str> = first.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "kube-apiserver-client",
            "kube-apiserver-client-kubelet",
            "kubelet-serving",
            "legacy-unknown",
            "service-account-key",
        ]
    );
    assert!(first.values().all(|hash| hash.len() == 16));
    let again = FileKeys::open(&flags(path), &[SIGNING, TOKENS]).unwrap();
    assert_eq!(again.fingerprints(), first);
    // Another authority, the same key for tokens.
    write_authority(path, "two", &PKCS_ECDSA_P256_SHA256);
    read_again(&keys);
    let second = keys.fingerprints();
    assert_ne!(second["kubelet-serving"], first["kubelet-serving"]);
    assert_eq!(second["service-account-key"], first["service-account-key"]);
    // Two certificates in one file can't be meant.
    let two = [certificate("one", &key), certificate("two", &key)].concat();
    fs::write(path.join("ca.crt"), two).unwrap();
    fs::write(path.join("ca.key"), pem_of(&key)).unwrap();
    read_again(&keys);
    assert_eq!(keys.fingerprints()["kubelet-serving"], "unusable");
    // A controller that does not run needs no agreement.
    let none = FileKeys::open(&flags(path), &[]).unwrap();
    assert!(none.fingerprints().is_empty());
}
