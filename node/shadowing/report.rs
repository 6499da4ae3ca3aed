//! Who is in charge, and the report in the fleet's namespace.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::{coordination::v1, core::v1::ConfigMap};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::json;

use crate::{debug::Inside, shared::Shared};

use super::Shadow;

/// How often the Lease of the managers is read.
const READ_EVERY: Duration = Duration::from_secs(2);
/// How often the report is written at most, where it has changed.
const WRITTEN_EVERY: Duration = Duration::from_secs(15);
/// A request that takes longer has failed.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The range whose owner writes the report for all.
const REPORTER: u16 = 0;
/// Owns the fields of the report.
const MANAGER: &str = "manifold-shadow";

/// The Lease that says who is in charge, as it was seen to change.
#[derive(Debug, Default)]
pub struct Lease {
    seen: Option<(String, String)>,
    /// When it was last seen to change, and how long that holds.
    changed: Option<(Duration, Duration)>,
}

impl Lease {
    /// The manager in charge now: the holder of a Lease that was seen to be renewed within its duration, on
    /// this replica's clock.
    pub fn read(&mut self, lease: Option<&v1::Lease>, now: Duration) -> Option<String> {
        let spec = lease?.spec.as_ref()?;
        let holder = spec
            .holder_identity
            .clone()
            .filter(|name| !name.is_empty())?;
        let renewed = spec.renew_time.as_ref().map(|time| time.0.to_string());
        let version = (holder, renewed.unwrap_or_default());
        let duration = u64::try_from(spec.lease_duration_seconds.unwrap_or(15)).unwrap_or(15);
        if self.seen.as_ref() != Some(&version) {
            // The first read proves nothing: its holder may be long gone.
            let is_first = self.seen.replace(version).is_none();
            if !is_first {
                self.changed = Some((now, Duration::from_secs(duration)));
            }
        }
        self.holder(now)
    }

    /// The same by what was seen last, where the Lease can't be read.
    pub fn holder(&self, now: Duration) -> Option<String> {
        let (at, holds) = self.changed?;
        let (holder, _) = self.seen.as_ref()?;
        (now.saturating_sub(at) <= holds).then(|| holder.clone())
    }
}

/// Reads who is in charge, and writes the report, for as long as it is polled.
pub async fn publish(
    client: Client,
    shared: Arc<Shared>,
    inside: Arc<Inside>,
    (namespace, name): (String, String),
) {
    let Some(shadow) = shared.shadow.clone() else {
        return;
    };
    let lead = lead(client.clone(), &shared, &shadow);
    let write = async {
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), &namespace);
        let mut written = String::new();
        let mut failing = false;
        loop {
            tokio::time::sleep(WRITTEN_EVERY).await;
            if shared.slot(REPORTER).is_none() {
                continue;
            }
            let report = inside.whole_shadow().await;
            let text = serde_json::to_string_pretty(&report).unwrap_or_default();
            if text == written {
                continue;
            }
            let object = json!({
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": name},
                "data": {
                    "verdict": report.verdict(),
                    "report.json": text,
                },
            });
            let params = PatchParams::apply(MANAGER).force();
            let patch = Patch::Apply(object);
            let sent = maps.patch(&name, &params, &patch);
            match tokio::time::timeout(REQUEST_TIMEOUT, sent).await {
                Ok(Ok(_)) => {
                    failing = false;
                    written = text;
                }
                Ok(Err(error)) => {
                    if !std::mem::replace(&mut failing, true) {
                        tracing::warn!(
                            why = node_connection::components::causes(&error),
                            "the report can't be written to the ConfigMap {namespace}/{name}: bind the Role \
                             manifold:shadow of deploy/shadow; /debug/shadow has it all the same"
                        );
                    }
                }
                Err(_) => {}
            }
        }
    };
    futures::join!(lead, write);
}

async fn lead(client: Client, shared: &Shared, shadow: &Shadow) {
    let Some((namespace, name)) = &shadow.options.manager else {
        shadow.led_by(Some("not read: --leader-elect=false".to_owned()));
        return;
    };
    let leases: Api<v1::Lease> = Api::namespaced(client, namespace);
    let mut known = Lease::default();
    loop {
        let read = tokio::time::timeout(REQUEST_TIMEOUT, leases.get_opt(name)).await;
        let now = shared.clock.monotonic();
        shadow.led_by(match read {
            Ok(Ok(found)) => known.read(found.as_ref(), now),
            _ => known.holder(now),
        });
        tokio::time::sleep(READ_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_that_was_seen_to_renew_is_in_charge_for_the_duration_of_the_lease() {
        let lease = |holder: &str, renewed: &str| -> v1::Lease {
            serde_json::from_value(json!({"spec": {
                "holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": 15,
            }}))
            .unwrap()
        };
        let mut known = Lease::default();
        let at = Duration::from_secs;
        let (one, two) = ("2026-01-01T12:00:00.000000Z", "2026-01-01T12:00:02.000000Z");
        for (now, seen, expected) in [
            (0, None, None),
            (2, Some(lease("kcm", one)), None),
            (4, Some(lease("kcm", one)), None),
            (6, Some(lease("kcm", two)), Some("kcm")),
            (20, Some(lease("kcm", two)), Some("kcm")),
            (22, Some(lease("kcm", two)), None),
            (24, Some(lease("other", two)), Some("other")),
            (26, Some(lease("", two)), None),
            (28, None, None),
        ] {
            assert_eq!(
                known.read(seen.as_ref(), at(now)).as_deref(),
                expected,
                "{now}"
            );
        }
    }
}
