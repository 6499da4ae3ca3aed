//! A witness of a replica's process: it evicts the replica's Lease once the
//! process has ended.

use coordinator_core::{Gone, Witness, WitnessStep, Written};

use crate::{Config, handle::began, lease::Leases};

/// What has become of a replica's Lease after its process had ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Witnessed {
    /// The witness has taken it from this incarnation.
    Evicted(String),
    /// Nobody had to: it was released, or others were first.
    Released,
    /// Its holder renews it and lives, though its end was reported.
    Lives,
}

/// Takes the Lease of the replica that the configuration names away from the processes that have ended, as
/// soon as nothing of theirs can be executed any more. Tries until the API server answers. `second` is the
/// Unix second now.
pub async fn witness(config: &Config, client: kube::Client, gone: Gone, second: i64) -> Witnessed {
    let leases = Leases::new(
        client,
        &config.fleet_namespace,
        &config.fleet_name,
        config.lease_duration,
        config.lease_retry_period,
    );
    let now = || config.clock.now();
    let mut witness = Witness::new(config.lease_retry_period, gone, began(second, now()));
    loop {
        let pause = match leases.replica(&config.replica_name).await {
            Err(error) => {
                tracing::warn!(%error, "reading the Lease of a replica that has ended failed");
                config.lease_retry_period
            }
            Ok(lease) => match witness.read(now(), lease.as_ref()) {
                WitnessStep::Read(at) => at.saturating_sub(now()),
                WitnessStep::Evict(evicted) => {
                    let version = Some(evicted.version);
                    match leases.write_replica(version, &evicted, None).await {
                        Written::Done(lease) => {
                            return Witnessed::Evicted(
                                lease.ended.last().cloned().unwrap_or_default(),
                            );
                        }
                        Written::Conflict(_) => continue,
                        Written::Unknown => config.lease_retry_period,
                    }
                }
                WitnessStep::Released => return Witnessed::Released,
                WitnessStep::Lives => return Witnessed::Lives,
            },
        };
        tokio::time::sleep(pause).await;
    }
}
