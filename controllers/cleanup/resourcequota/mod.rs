//! Keeps a ResourceQuota's status true: its limits, and how much of them its namespace uses.
//!
//! Watches quotas, pods, services, claims to volumes and to devices, device classes, and the metadata of
//! whatever else discovery shows in namespaces; writes the status of quotas; a key per quota; remembers
//! nothing. Creations are charged by the API server's admission; here a quota is recalculated when an
//! object goes or takes less, when its limits change, when other resources are served, and every
//! `--resource-quota-sync-period`.
//!
//! Usage is lowered, and reported for the first time, only where the caches are known to be as new as the
//! quota itself: an old cache would miss what admission has just let in, and so let in too much. A resource
//! that can't be listed keeps the usage that was last reported, and holds back no other.

use std::time::Duration;

use controllers_kit::{
    Controller, Descriptor, FlagDefault, Flags, Key, Plan, Refusal, Sharding, SignedDuration,
    Snapshot, Watches,
};
use kubernetes_proto::{
    core::{PersistentVolumeClaim, Pod, ResourceQuota, Service},
    resource::{DeviceClass, ResourceClaim},
};

mod context;
mod devices;
mod names;
mod plan;
mod pods;
mod replenish;
mod services;
mod tally;
mod volumes;

const EXTENDED_RESOURCE: &str = "DRAExtendedResource";
const POD_LEVEL_RESOURCES: &str = "PodLevelResources";

/// The controller.
pub struct ResourceQuotas {
    /// How often every quota is recalculated; `None` for never.
    period: Option<SignedDuration>,
    gates: Gates,
}

/// Feature gates that change what is charged.
#[derive(Clone, Copy)]
struct Gates {
    /// Whether claims to devices are charged as extended resources too.
    extended_resources: bool,
    /// Whether pod-level resources count.
    pod_level_resources: bool,
}

impl Controller for ResourceQuotas {
    type Memory = ();

    fn describe() -> Descriptor {
        Descriptor::new("resourcequota-controller", Sharding::ByObject)
            .aliases(&["resourcequota"])
            .queue("resourcequota_primary")
            .workers(
                "concurrent-resource-quota-syncs",
                5,
                "The number of quotas that each replica calculates concurrently.",
            )
            .flag(
                "resource-quota-sync-period",
                FlagDefault::Duration(Duration::from_secs(300)),
                "The period of a full recalculation of every quota; 0 for never.",
            )
            .gate(EXTENDED_RESOURCE, true)
            .gate(POD_LEVEL_RESOURCES, true)
            .min_sync_interval(Duration::from_millis(500))
            .reads_live::<ResourceQuota>()
            .rule("", "resourcequotas/status", &["patch", "update"])
            .rule("*", "*", &["list", "watch"])
            .differences(include_str!("differences.md"))
    }

    fn new(flags: &Flags) -> Self {
        let period = flags.duration("resource-quota-sync-period");
        Self {
            period: SignedDuration::try_from(period)
                .ok()
                .filter(|period| !period.is_zero()),
            gates: Gates {
                extended_resources: flags.bool(EXTENDED_RESOURCE),
                pod_level_resources: flags.bool(POD_LEVEL_RESOURCES),
            },
        }
    }

    fn watch(&self, on: &mut Watches) {
        on.kind::<ResourceQuota>().wakes(replenish::limits_changed);
        on.kind::<Pod>().wakes(replenish::pods);
        on.kind::<Service>().wakes(replenish::services);
        on.kind::<PersistentVolumeClaim>().wakes(replenish::volumes);
        on.kind::<ResourceClaim>()
            .where_served()
            .wakes(replenish::devices);
        on.kind::<DeviceClass>().where_served();
        on.discovered(names::is_countable, replenish::objects, None);
    }

    fn plan(&self, key: &Key, seen: &Snapshot<'_>, (): &mut ()) -> Result<Plan, Refusal> {
        let Some(quota) = seen.get::<ResourceQuota>(key) else {
            return Ok(Plan::nothing());
        };
        let mut plan = plan::plan(&quota, seen, self.gates);
        if let Some(period) = self.period {
            plan.requeue_at(seen.now + period);
        }
        Ok(plan)
    }
}

#[cfg(test)]
mod tests;
