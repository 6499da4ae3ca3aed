//! A shadow beside the manager in charge.

use std::time::Duration;

use coordinator::ServerFenceMode;

use crate::{
    args::Values,
    fleet::{FleetOptions, NAME_MAX},
};

/// What the name of each shadow's fleet ends with, and of no other's.
pub const SHADOW_ENDING: &str = "-shadow";

/// A shadow beside the manager in charge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShadowOptions {
    /// How long the manager in charge may take.
    pub patience: Duration,
    /// When the process ends by itself, and reports; never where it is `None`.
    pub ends_after: Option<Duration>,
    /// Namespace and name of the Lease that names who is in charge; `None` with `--leader-elect=false`:
    /// somebody is.
    pub manager: Option<(String, String)>,
}

/// The shadow, where it is asked for; the fleet is made one that no fleet at work can be.
pub(super) fn of(
    values: &Values,
    fleet: &mut FleetOptions,
    wrong: &mut Vec<String>,
    idle: &mut Vec<String>,
) -> Option<ShadowOptions> {
    if !values.bool("shadow") {
        for flag in ["shadow-patience", "shadow-for"] {
            // A file that lists every field with its default asks for nothing.
            let spec = values.specs().iter().find(|spec| spec.name == flag);
            if values.given(flag) && spec.is_some_and(|spec| *values.get(flag) != spec.default) {
                wrong.push(format!(
                    "--{flag} needs --shadow: without it nothing is compared"
                ));
            }
        }
        if fleet.fleet.ends_with(SHADOW_ENDING) {
            wrong.push(format!(
                "--fleet-name {:?} ends with {SHADOW_ENDING}, as the names of shadows alone do: give another name, or \
                 --shadow",
                fleet.fleet
            ));
        }
        return None;
    }
    if fleet.server_fence == ServerFenceMode::On {
        wrong.push(
            "--shadow contradicts --server-fence=on: a shadow sends no write that could be fenced; leave one of them out"
                .to_owned(),
        );
    }
    fleet.server_fence = ServerFenceMode::Off;
    if values.bool("use-service-account-credentials") {
        idle.push(
            "--use-service-account-credentials (a shadow makes no tokens and reads in its own name)".to_owned(),
        );
    }
    if !fleet.fleet.ends_with(SHADOW_ENDING) {
        fleet.fleet.push_str(SHADOW_ENDING);
    }
    if fleet.fleet.len() > NAME_MAX {
        wrong.push(format!(
            "--fleet-name {:?} is longer than {NAME_MAX}: give a shorter one, the ending {SHADOW_ENDING} included",
            fleet.fleet
        ));
    }
    let patience = values.duration("shadow-patience");
    if patience < Duration::from_secs(1) {
        wrong.push(format!(
            "--shadow-patience must be at least 1s, but is {}",
            values.show("shadow-patience")
        ));
    }
    // It never holds the Lease of the managers, and waits for nobody who does.
    let manager = fleet
        .interlock
        .take()
        .map(|lease| (lease.namespace, lease.name));
    Some(ShadowOptions {
        patience,
        ends_after: Some(values.duration("shadow-for")).filter(|after| !after.is_zero()),
        manager,
    })
}
