//! Marks as invalid, and later deletes, Secrets with tokens that old clusters created for service accounts
//! and that nobody uses.
//!
//! Watches the Secrets of service accounts' tokens and no others, and ServiceAccounts; patches and deletes
//! Secrets; one key, reconciled each day. A token counts as unused where it was not used for
//! `--legacy-service-account-token-clean-up-period`, by the label that the API server keeps since the day
//! that a ConfigMap records, where its account lists the Secret, and no pod of the namespace names it. It
//! stays marked for the same period again before it is deleted.
//!
//! Pods are read live: which Secrets they name is in no cache. Remembers how far a pass has come, namespace
//! by namespace; a new owner starts the pass again.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use controllers_kit::{
    Answer, Controller, Descriptor, FlagDefault, Flags, Key, Only, PatchKind, Pick, Plan,
    Propagation, Query, Refusal, Runs, Sharding, SignedDuration, Snapshot, StatusWrite, Str,
    Timestamp, Watches,
};
use jiff::{civil::Date, tz::TimeZone};
use kubernetes_proto::{
    Object,
    core::{ConfigMap, Pod, ServiceAccount, ServiceAccountToken},
    meta::ObjectMeta,
};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::accounts;

const PERIOD: &str = "legacy-service-account-token-clean-up-period";
/// The interval between passes.
const EVERY: SignedDuration = SignedDuration::from_hours(24);
/// Namespaces whose pods are read for one plan.
const NAMESPACES_AT_ONCE: usize = 16;

const TRACKING: &str = "kube-apiserver-legacy-service-account-token-tracking";
const SINCE: &str = "since";
const LAST_USED: &str = "kubernetes.io/legacy-token-last-used";
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";

fn only_key() -> Key {
    Key::cluster("legacy-tokens")
}

/// How far a pass has come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Whether use has been tracked for long enough.
    tracked: bool,
    /// The last namespace that was done.
    after: Str,
}

/// The controller.
pub struct LegacyServiceAccountTokenCleaner {
    period: SignedDuration,
}

impl Controller for LegacyServiceAccountTokenCleaner {
    type Memory = Progress;

    fn describe() -> Descriptor {
        Descriptor::new(
            "legacy-serviceaccount-token-cleaner-controller",
            Sharding::Single,
        )
        .aliases(&["legacy-service-account-token-cleaner"])
        .service_account("legacy-service-account-token-cleaner")
        .flag(
            PERIOD,
            FlagDefault::Duration(Duration::from_secs(365 * 24 * 3600)),
            "How long a legacy service account token must be unused before it is marked as invalid, and how long it then stays marked before it is deleted.",
        )
        .runs_where(|flags| match flags.duration(PERIOD).is_zero() {
            true => Runs::Wrong(format!("--{PERIOD} must be greater than 0")),
            false => Runs::Yes,
        })
        .rule("", "secrets", &["list", "watch", "patch", "delete"])
        .reads::<ServiceAccount>()
        .rule_for("", "configmaps", &[TRACKING], &["get"])
        .rule_live("", "pods", &["list"])
        .differences(include_str!("differences.md"))
    }

    fn new(flags: &Flags) -> Self {
        Self {
            period: SignedDuration::try_from(flags.duration(PERIOD)).unwrap_or(SignedDuration::MAX),
        }
    }

    fn watch(&self, on: &mut Watches) {
        on.always(|| vec![only_key()]);
        on.kind::<ServiceAccountToken>();
        on.kind::<ServiceAccount>();
    }

    fn ask(&self, key: &Key, seen: &Snapshot<'_>, progress: &Progress) -> Vec<Query> {
        if *key != only_key() {
            return Vec::new();
        }
        if !progress.tracked {
            return vec![tracking()];
        }
        self.next(seen, progress).0.keys().map(pods).collect()
    }

    fn plan(
        &self,
        key: &Key,
        seen: &Snapshot<'_>,
        progress: &mut Progress,
    ) -> Result<Plan, Refusal> {
        let mut plan = Plan::nothing();
        if *key != only_key() {
            return Ok(plan);
        }
        plan.requeue_at(seen.now + EVERY);
        if !progress.tracked {
            let Some(since) = since(seen)? else {
                return Ok(plan);
            };
            let long_enough = since
                .checked_add(self.period)
                .is_ok_and(|from| from <= seen.now);
            if long_enough && !self.next(seen, progress).0.is_empty() {
                progress.tracked = true;
                plan.requeue_now();
            }
            return Ok(plan);
        }
        let (namespaces, more) = self.next(seen, progress);
        for (namespace, secrets) in &namespaces {
            let used = named_by_pods(seen, namespace)?;
            for secret in secrets {
                if !used.contains(Object::metadata(&**secret).name.as_str()) {
                    self.clean(&mut plan, secret, seen.now);
                }
            }
        }
        match namespaces.into_keys().next_back().filter(|_| more) {
            Some(last) => {
                progress.after = last;
                plan.requeue_now();
            }
            None => *progress = Progress::default(),
        }
        Ok(plan)
    }
}

fn tracking() -> Query {
    Query::Live {
        resource: ConfigMap::resource(),
        key: Key::new("kube-system", TRACKING),
    }
}

fn pods(namespace: &Str) -> Query {
    Query::Picked {
        resource: Pod::resource(),
        namespace: namespace.clone(),
        pick: Pick::SecretsOfPod,
    }
}

/// From when on the use of tokens is known for certain: the day after tracking began. `None` where nothing
/// tracks it.
fn since(seen: &Snapshot<'_>) -> Result<Option<Timestamp>, Refusal> {
    let text = match seen.answer(&tracking()) {
        Some(Answer::Object(map)) => map["data"][SINCE]
            .as_str()
            .map(str::to_owned)
            .ok_or("configMap does not have since label".to_owned()),
        Some(Answer::Failed(why)) => Err(why.clone()),
        _ => return Ok(None),
    };
    text.and_then(|text| {
        date(&text)
            .and_then(|day| day.tomorrow().ok())
            .and_then(|day| day.to_zoned(TimeZone::UTC).ok())
            .map(|day| Some(day.timestamp()))
            .ok_or_else(|| format!("error parsing trackedSince time: {text:?}"))
    })
    .map_err(Refusal::Retry)
}

/// A day as in `2006-01-02`, without anything else that a lenient parser would accept.
fn date(text: &str) -> Option<Date> {
    let is_shaped = text.len() == 10
        && text.bytes().enumerate().all(|(place, byte)| match place {
            4 | 7 => byte == b'-',
            _ => byte.is_ascii_digit(),
        });
    is_shaped.then(|| text.parse().ok()).flatten()
}

fn day(at: Timestamp) -> String {
    at.to_zoned(TimeZone::UTC).date().to_string()
}

/// The Secrets that pods of a namespace name.
fn named_by_pods(seen: &Snapshot<'_>, namespace: &Str) -> Result<BTreeSet<String>, Refusal> {
    match seen.answer(&pods(namespace)) {
        Some(Answer::Object(names)) => Ok(names
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|name| name.as_str().map(str::to_owned))
            .collect()),
        Some(Answer::Failed(why)) => Err(Refusal::Retry(why.clone())),
        // A Secret has become a candidate since the queries were made.
        _ => Err(Refusal::Retry(format!(
            "the pods of {namespace} were not read"
        ))),
    }
}

type Candidates = BTreeMap<Str, Vec<Arc<ServiceAccountToken>>>;

impl LegacyServiceAccountTokenCleaner {
    /// What was made or used since then is kept.
    fn kept_from(&self, now: Timestamp) -> Timestamp {
        now.checked_sub(self.period).unwrap_or(Timestamp::MIN)
    }

    /// The next namespaces with Secrets that may have to be marked or deleted, and whether there are more.
    fn next(&self, seen: &Snapshot<'_>, progress: &Progress) -> (Candidates, bool) {
        let mut candidates = Candidates::new();
        for secret in seen.all::<ServiceAccountToken>() {
            let namespace = &Object::metadata(&*secret).namespace;
            if *namespace > progress.after && self.is_candidate(&secret, seen) {
                let full = candidates.len() == NAMESPACES_AT_ONCE;
                if full && !candidates.contains_key(namespace) {
                    // They come in order of namespaces.
                    return (candidates, true);
                }
                candidates
                    .entry(namespace.clone())
                    .or_default()
                    .push(secret);
            }
        }
        (candidates, false)
    }

    fn is_candidate(&self, secret: &ServiceAccountToken, seen: &Snapshot<'_>) -> bool {
        let kept = self.kept_from(seen.now);
        let meta = Object::metadata(secret);
        let made = meta
            .creation_timestamp
            .map_or(Timestamp::MIN, |time| time.timestamp());
        if made >= kept || meta.is_terminating() {
            return false;
        }
        if let Some(used) = label(meta, LAST_USED)
            && (date(used).is_none() || *used >= *day(kept))
        {
            return false;
        }
        if let Some(invalid) = label(meta, INVALID_SINCE)
            && date(invalid).is_some()
            && *invalid >= *day(kept)
        {
            return false;
        }
        // A Secret that its account does not list was created by hand.
        let named = accounts::named(secret);
        !named.account.is_empty()
            && accounts::find(seen, &meta.namespace, &named).is_some_and(|account| {
                let mut listed = account.secrets.iter();
                listed.any(|reference| *reference.name == *meta.name)
            })
    }

    fn clean(&self, plan: &mut Plan, secret: &ServiceAccountToken, now: Timestamp) {
        let marked = label(Object::metadata(secret), INVALID_SINCE).and_then(date);
        if marked.is_some() {
            plan.delete(secret, Only::ThisVersion, Propagation::Background);
        } else {
            plan.patch(
                secret,
                "",
                PatchKind::Merge,
                json!({"metadata": {"labels": {INVALID_SINCE: day(now)}}}),
                StatusWrite::No,
            );
        }
    }
}

fn label<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.labels
        .iter()
        .find(|entry| *entry.key == *key)
        .map(|entry| entry.value.as_str())
}

#[cfg(test)]
mod tests;
