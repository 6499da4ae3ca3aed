//! Whether all replicas have the same of what they sign with and publish, and run the same controllers.
//!
//! Certificates are signed by the one that owns the request's range, so replicas that were started with
//! different authorities issue certificates of either, and publish either's bundle. Each replica says in its
//! Lease what it has, by the hash of the public part; each compares what the members say, warns in its log,
//! in `/readyz?verbose` and by `manifold_key_material_differs`. Nothing is stopped: while files are being
//! replaced, replicas differ for some seconds, and a fleet that stops signing would do more harm than one
//! that signs by two authorities of one operator.
//!
//! A controller that only some replicas run is missing for the keys of the other replicas' ranges, so the
//! selection of `--controllers` is compared in the same way.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use coordinator::{Handle, Member};
use node_telemetry::metrics::Metrics;

use crate::keys::Keys;

/// Between two checks of the files and the members.
const PERIOD: Duration = Duration::from_secs(5);

/// Fingerprints by name.
pub type Fingerprints = BTreeMap<String, String>;

/// As a Lease's annotation has them: `name=hash` with commas between them.
fn encoded(fingerprints: &Fingerprints) -> String {
    let pairs: Vec<String> = fingerprints
        .iter()
        .map(|(name, hash)| format!("{name}={hash}"))
        .collect();
    pairs.join(",")
}

/// What a Lease's annotation says; what is no pair is left out.
fn decoded(text: &str) -> BTreeMap<&str, &str> {
    text.split(',')
        .filter_map(|pair| pair.split_once('='))
        .collect()
}

/// In what the members differ, by name, with a text for people. Members that say nothing at all, builds from
/// before, are not compared.
fn differences(members: &[Member]) -> BTreeMap<String, String> {
    let said: Vec<(&str, BTreeMap<&str, &str>)> = members
        .iter()
        .map(|member| (member.name.as_str(), decoded(&member.fingerprints)))
        .filter(|(_, fingerprints)| !fingerprints.is_empty())
        .collect();
    let names: BTreeSet<&str> = said
        .iter()
        .flat_map(|(_, fingerprints)| fingerprints.keys().copied())
        .collect();
    let mut differences = BTreeMap::new();
    for name in names {
        let mut by_hash: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (member, fingerprints) in &said {
            let hash = fingerprints.get(name).copied().unwrap_or("none");
            by_hash.entry(hash).or_default().push(member);
        }
        if by_hash.len() < 2 {
            continue;
        }
        let groups: Vec<String> = by_hash
            .iter()
            .map(|(hash, members)| format!("{hash} at {}", members.join(", ")))
            .collect();
        differences.insert(
            name.to_owned(),
            format!(
                "replicas differ in {name}: {}; give all of them the same flags and files",
                groups.join("; ")
            ),
        );
    }
    differences
}

/// What was found last.
#[derive(Debug, Default)]
pub struct Agreement(Mutex<BTreeMap<String, String>>);

impl Agreement {
    /// What differs now, for `/readyz?verbose`.
    pub fn lines(&self) -> Vec<String> {
        let found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        found.values().cloned().collect()
    }

    /// Takes in what the members say: changes are logged.
    fn compare(&self, members: &[Member], metrics: &Metrics) {
        let differences = differences(members);
        let mut found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, text) in &differences {
            if found.get(name) != Some(text) {
                tracing::warn!(name, "{text}");
            }
        }
        for name in found.keys().filter(|name| !differences.contains_key(*name)) {
            tracing::info!(name, "replicas agree again");
        }
        let names: Vec<String> = differences.keys().cloned().collect();
        metrics.key_material_differs(&names);
        *found = differences;
    }
}

/// Announces what this replica has and compares it with what the others say, for as long as the process
/// lives. `fixed` is what is read once.
pub async fn follow(
    agreement: Arc<Agreement>,
    handle: Handle,
    keys: Arc<dyn Keys>,
    fixed: Fingerprints,
    metrics: Arc<Metrics>,
) {
    let mut announced = None;
    loop {
        let mut own = keys.fingerprints();
        own.extend(fixed.clone());
        let own = encoded(&own);
        if announced.as_ref() != Some(&own) {
            handle.announce(own.clone()).await;
            announced = Some(own);
        }
        agreement.compare(&handle.view().members, &metrics);
        tokio::time::sleep(PERIOD).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &str, fingerprints: &str) -> Member {
        Member {
            name: name.to_owned(),
            incarnation: "i".to_owned(),
            ready: true,
            version: "0.1.0".to_owned(),
            fingerprints: fingerprints.to_owned(),
            ..Member::default()
        }
    }

    #[test]
    fn replicas_with_different_key_material_are_named_with_what_each_has() {
        let table: [(&str, &[&str], &[&str]); 7] = [
            ("alone", &["root-ca=1"], &[]),
            ("equal", &["root-ca=1,x=2", "x=2,root-ca=1"], &[]),
            (
                "one of three",
                &["root-ca=1,x=2", "root-ca=1,x=3", "root-ca=1,x=2"],
                &[
                    "replicas differ in x: 2 at r0, r2; 3 at r1; give all of them the same flags and files",
                ],
            ),
            (
                "two things",
                &["root-ca=1,x=2", "root-ca=3,x=4"],
                &[
                    "replicas differ in root-ca: 1 at r0; 3 at r1; give all of them the same flags and files",
                    "replicas differ in x: 2 at r0; 4 at r1; give all of them the same flags and files",
                ],
            ),
            (
                "one has none",
                &["root-ca=1,x=2", "root-ca=1"],
                &[
                    "replicas differ in x: 2 at r0; none at r1; give all of them the same flags and files",
                ],
            ),
            ("a build from before says nothing", &["root-ca=1", ""], &[]),
            (
                "what is no pair is left out",
                &["root-ca=1,,x", "root-ca=1"],
                &[],
            ),
        ];
        for (name, said, expected) in table {
            let members: Vec<Member> = said
                .iter()
                .enumerate()
                .map(|(at, said)| member(&format!("r{at}"), said))
                .collect();
            let found: Vec<String> = differences(&members).into_values().collect();
            assert_eq!(found, expected, "{name}");
        }
    }

    #[test]
    fn a_difference_is_reported_while_it_lasts() {
        let metrics = Metrics::new(&[]);
        let agreement = Agreement::default();
        let shown = |agreement: &Agreement| {
            let text = metrics.encode();
            let counted = text.contains("manifold_key_material_differs{name=\"x\"} 1");
            (agreement.lines().len(), counted)
        };
        agreement.compare(&[member("a", "x=1"), member("b", "x=2")], &metrics);
        assert_eq!(shown(&agreement), (1, true));
        agreement.compare(&[member("a", "x=2"), member("b", "x=2")], &metrics);
        assert_eq!(shown(&agreement), (0, false));
    }

    #[test]
    fn fingerprints_survive_the_way_through_a_lease() {
        let own: Fingerprints = [("root-ca", "1"), ("kubelet-serving", "2")]
            .map(|(name, hash)| (name.to_owned(), hash.to_owned()))
            .into();
        let text = encoded(&own);
        assert_eq!(text, "kubelet-serving=2,root-ca=1");
        let back: Fingerprints = decoded(&text)
            .into_iter()
            .map(|(name, hash)| (name.to_owned(), hash.to_owned()))
            .collect();
        assert_eq!(back, own);
    }
}
