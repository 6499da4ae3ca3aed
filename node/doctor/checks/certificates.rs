//! Certificates and key material.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use super::{Finding, server};
use crate::{
    certificates::Certificate,
    facts::{Facts, Unusable},
};

/// A certificate that ends sooner is warned of: kubeadm renews with each upgrade, several times a year.
const ENDS_SOON: SignedDuration = SignedDuration::from_hours(30 * 24);

/// Why a certificate is not or soon no longer valid, and whether it is valid now.
fn validity(certificate: &Certificate, now: Timestamp) -> Option<(String, bool)> {
    let Certificate {
        subject,
        begins,
        ends,
    } = certificate;
    if now < *begins {
        return Some((
            format!("{subject}: valid from {begins} on, it is {now}"),
            false,
        ));
    }
    let left = ends.duration_since(now);
    if left <= SignedDuration::ZERO {
        return Some((format!("{subject}: expired at {ends}"), false));
    }
    (left < ENDS_SOON).then(|| {
        let days = left.as_hours() / 24;
        (
            format!("{subject}: expires at {ends}, in {days} days"),
            true,
        )
    })
}

fn judged(certificate: &Certificate, now: Timestamp, remedy: String) -> Finding {
    match validity(certificate, now) {
        None => Finding::passed(format!(
            "{} until {}",
            certificate.subject, certificate.ends
        )),
        Some((why, true)) => Finding::warning(why, [remedy]),
        Some((why, false)) => Finding::failed(why, [remedy]),
    }
}

pub(super) fn client(facts: &Facts) -> Finding {
    match &facts.credentials.client {
        None => Finding::Skipped("your credentials have no client certificate".to_owned()),
        Some(Ok(certificate)) => judged(certificate, facts.now, server::renew(facts)),
        Some(Err(unknown)) => Finding::failed(
            format!("the client certificate {}", unknown.why),
            [server::renew(facts)],
        ),
    }
}

pub(super) fn authority(facts: &Facts) -> Finding {
    if let Err(Unusable::Untrusted(why)) = &facts.server {
        return Finding::failed(
            format!("the API server's certificate is not accepted: {why}"),
            [server::trust(facts)],
        );
    }
    if facts.credentials.insecure {
        return Finding::warning(
            "insecure-skip-tls-verify: anybody between here and the API server can read your credentials",
            [server::trust(facts)],
        );
    }
    let mut worst = None;
    let mut valid = Vec::new();
    for authority in &facts.credentials.authorities {
        match authority {
            Ok(certificate) => match validity(certificate, facts.now) {
                Some((why, still)) => worst = worst.or(Some((why, still))),
                None => valid.push(certificate.subject.clone()),
            },
            Err(unknown) => worst = worst.or_else(|| Some((unknown.why.clone(), false))),
        }
    }
    match worst {
        // One valid authority is enough: an old one beside it is what a rotation leaves.
        _ if !valid.is_empty() => Finding::passed(valid.join(", ")),
        None => Finding::Skipped("the kubeconfig names no authority".to_owned()),
        Some((why, true)) => Finding::warning(why, [server::trust(facts)]),
        Some((why, false)) => Finding::failed(why, [server::trust(facts)]),
    }
}

pub(super) fn peers(facts: &Facts) -> Finding {
    let remedy = "# issue a new certificate as deploy/README.md describes, or start the replicas without the --peer-tls-* flags";
    match &facts.peer_files {
        None => Finding::Skipped("no --peer-tls-cert-file was given".to_owned()),
        Some(Ok(certificate)) => judged(certificate, facts.now, remedy.to_owned()),
        Some(Err(why)) => Finding::failed(why.clone(), [remedy]),
    }
}

pub(super) fn agree(facts: &Facts) -> Finding {
    let Some(fleet) = facts.fleet() else {
        return Finding::Skipped("there is no fleet".to_owned());
    };
    let said = fleet.fingerprints();
    let names: BTreeSet<&str> = said
        .values()
        .flat_map(|fingerprints| fingerprints.keys().copied())
        // Not a matter of keys: coverage/agree compares it.
        .filter(|name| *name != "controllers")
        .collect();
    let mut differing = Vec::new();
    for name in &names {
        let mut by_hash: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (member, fingerprints) in &said {
            let hash = fingerprints.get(name).copied().unwrap_or("none");
            by_hash.entry(hash).or_default().push(member);
        }
        if by_hash.len() > 1 {
            let groups: Vec<String> = by_hash
                .iter()
                .map(|(hash, members)| format!("{hash} at {}", members.join(", ")))
                .collect();
            differing.push(format!("{name}: {}", groups.join("; ")));
        }
    }
    match differing.is_empty() {
        true => Finding::passed(names.into_iter().collect::<Vec<_>>().join(", ")),
        false => Finding::failed(
            format!("the members have different files for {}", differing.join("; ")),
            [
                "# give every replica the same files for --cluster-signing-*, --service-account-private-key-file and \
                 --root-ca-file, then:"
                    .to_owned(),
                super::fleet::restart(facts, None),
            ],
        ),
    }
}
