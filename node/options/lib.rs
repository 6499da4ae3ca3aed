//! What the flags and the configuration file mean: typed, checked, with defaults that depend on the
//! surroundings filled in.
//!
//! [`args`] reads command lines by one table of flags, [`config`] files; [`Options`] is what came of both.

pub mod args;
mod auth;
mod client;
pub mod config;
mod configz;
mod controllers;
mod fleet;
mod logging;
mod serving;
mod shadow;
mod surroundings;
mod time_zone;
pub mod version;

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use controllers_kit::{Descriptor, Flags};
use coordinator::ServerFenceMode;

use crate::args::Values;
pub use crate::{
    auth::{AuthenticationOptions, AuthorizationOptions},
    client::ClientOptions,
    fleet::{FleetOptions, PeerTransport},
    logging::LoggingOptions,
    serving::{NamedCertificate, ServingOptions},
    shadow::{SHADOW_ENDING, ShadowOptions},
    surroundings::Surroundings,
    time_zone::HostZone,
};

/// The node's configuration.
#[derive(Clone, Debug)]
pub struct Options {
    /// How to speak with the API server.
    pub client: ClientOptions,
    /// The secure port.
    pub serving: ServingOptions,
    /// Who somebody is.
    pub authentication: AuthenticationOptions,
    /// What somebody may do.
    pub authorization: AuthorizationOptions,
    /// Canonical names of the controllers to run, in the order of their descriptors.
    pub controllers: Vec<&'static str>,
    /// The values of the flags that controllers declare.
    pub flags: Flags,
    /// The host's time zone, which the flags hand to controllers; `None` for UTC.
    pub time_zone: Option<HostZone>,
    /// The fleet.
    pub fleet: FleetOptions,
    /// Whether nothing is written, and what is planned is compared.
    pub shadow: Option<ShadowOptions>,
    /// Namespace and name of the Pod that this process runs in, as far as it is known.
    pub pod: Option<(String, String)>,
    /// Logs.
    pub logging: LoggingOptions,
    /// A TracingConfiguration.
    pub tracing_config_file: Option<PathBuf>,
    /// Each controller acts as a service account of its own.
    pub use_service_account_credentials: bool,
    /// Every object is examined again after a random time between this and its double.
    pub min_resync_period: Duration,
    /// Pause between the starts of two controllers.
    pub controller_start_interval: Duration,
    /// How long the handing over of work may take at the end.
    pub controller_shutdown_timeout: Duration,
    /// Answer below /debug/pprof/.
    pub profiling: bool,
    /// Metrics that are not shown.
    pub disabled_metrics: Vec<String>,
    /// Feature gates that were set.
    pub feature_gates: BTreeMap<&'static str, bool>,
    /// What was accepted and has no effect: one line to be logged, if any.
    pub warning: Option<String>,
    values: Values,
}

/// The options in force: those of the start, and of what a change of the configuration file has changed
/// since.
pub type InForce = arc_swap::ArcSwap<Options>;

/// Everything that is wrong with the options, each a sentence that names the flag.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("; "))]
pub struct Invalid(pub Vec<String>);

impl Options {
    /// From the flags' values. Reads the files that controllers' flags name, and no others.
    ///
    /// # Errors
    /// With everything that is wrong, not just the first.
    pub fn new(
        values: Values,
        descriptors: &[Descriptor],
        surroundings: &Surroundings,
    ) -> Result<Self, Invalid> {
        let mut wrong = Vec::new();
        let mut idle: Vec<String> = values
            .without_effect()
            .map(|(flag, why)| format!("--{flag} ({why})"))
            .collect();
        let feature_gates =
            args::feature_gates(values.map("feature-gates")).unwrap_or_else(|why| {
                wrong.push(why);
                BTreeMap::new()
            });
        idle.extend(
            feature_gates
                .iter()
                .filter(|(name, on)| {
                    let is_asked_for = descriptors
                        .iter()
                        .flat_map(|descriptor| &descriptor.gates)
                        .any(|(asked, _)| asked == *name);
                    !is_asked_for && **on != args::gate(name, &BTreeMap::new())
                })
                .map(|(name, on)| {
                    format!("--feature-gates={name}={on} (no built controller asks for it)")
                }),
        );
        let time_zone = surroundings.time_zone.clone();
        let mut flags = controllers::flags(
            &values,
            descriptors,
            &feature_gates,
            surroundings,
            &mut wrong,
        );
        if let Some(HostZone { zone, .. }) = &time_zone {
            flags.set_local_zone(zone.clone());
        }
        let mut fleet = fleet::of(&values, surroundings, &mut wrong);
        let shadow = shadow::of(&values, &mut fleet, &mut wrong, &mut idle);
        let options = Self {
            client: client::of(&values, &mut wrong),
            serving: serving::of(&values, surroundings, &mut wrong, &mut idle),
            authentication: auth::authentication(&values, &feature_gates, &mut wrong),
            authorization: auth::authorization(&values, &mut wrong),
            controllers: controllers::selected(&values, descriptors, &mut wrong, &mut idle),
            flags,
            time_zone,
            fleet,
            pod: surroundings
                .pod_namespace
                .clone()
                .zip(surroundings.pod_name.clone())
                // An event at it would be a write.
                .filter(|_| shadow.is_none()),
            logging: logging::of(&values, &mut wrong),
            tracing_config_file: values.some("tracing-config-file").map(PathBuf::from),
            use_service_account_credentials: values.bool("use-service-account-credentials")
                && shadow.is_none(),
            shadow,
            min_resync_period: values.duration("min-resync-period"),
            controller_start_interval: values.duration("controller-start-interval"),
            controller_shutdown_timeout: values.duration("controller-shutdown-timeout"),
            profiling: values.bool("profiling"),
            disabled_metrics: values.list("disabled-metrics").to_vec(),
            feature_gates,
            warning: None,
            values,
        };
        options.validate(&mut wrong, &mut idle);
        if !wrong.is_empty() {
            return Err(Invalid(wrong));
        }
        let warning = (!idle.is_empty()).then(|| {
            format!(
                "accepted, but without effect in this build: {}",
                idle.join(", ")
            )
        });
        Ok(Self { warning, ..options })
    }

    /// What concerns no one group.
    fn validate(&self, wrong: &mut Vec<String>, idle: &mut Vec<String>) {
        let values = &self.values;
        match values.text("cloud-provider") {
            "" => {}
            "external" => {}
            other => wrong.push(format!(
                "cloud provider {other:?} was specified, but built-in cloud providers are disabled: \
                 set --cloud-provider=external and run a cloud controller manager"
            )),
        }
        match values.text("cidr-allocator-type") {
            "" | "RangeAllocator" => {}
            other => wrong.push(format!(
                "--cidr-allocator-type {other:?}: only RangeAllocator is available without built-in cloud providers"
            )),
        }
        if self.fleet.server_fence == ServerFenceMode::On && !self.use_service_account_credentials {
            wrong.push(
                "--server-fence=on needs --use-service-account-credentials=true: only a write in the name of a service \
                 account can carry the incarnation by which it is refused"
                    .to_owned(),
            );
        }
        if values.bool("leader-elect") && values.text("leader-elect-resource-lock") != "leases" {
            wrong.push("--leader-elect-resource-lock must be \"leases\"".to_owned());
        }
        for flag in ["emulated-version", "min-compatibility-version"] {
            for text in values.list(flag) {
                match emulated(text) {
                    Some((1, 36)) => {}
                    Some((1, 33..36)) => {
                        idle.push(format!("--{flag}={text} (only 1.36 is built)"));
                    }
                    _ => wrong.push(format!(
                        "--{flag} {text:?} must be a version from 1.33 to 1.36, as in 1.36 or kube=1.36"
                    )),
                }
            }
        }
        for flag in [
            "min-resync-period",
            "controller-start-interval",
            "controller-shutdown-timeout",
        ] {
            if values.show(flag).starts_with('-') {
                wrong.push(format!(
                    "--{flag} must not be negative, but is {}",
                    values.show(flag)
                ));
            }
        }
    }

    /// Whether a feature gate is on.
    pub fn gate(&self, name: &str) -> bool {
        args::gate(name, &self.feature_gates)
    }

    /// Whether the number of workers by this flag is the default's and may grow.
    pub fn adapts(&self, flag: &str) -> bool {
        self.fleet.adapts_workers && !self.values.given(flag)
    }

    /// The flags' values as given.
    pub fn values(&self) -> &Values {
        &self.values
    }

    /// `/configz`.
    pub fn configz(&self) -> serde_json::Value {
        configz::configz(self)
    }
}

/// Major and minor of `1.36` or `kube=1.36`.
fn emulated(text: &str) -> Option<(u32, u32)> {
    let version = text.strip_prefix("kube=").unwrap_or(text);
    let (major, minor) = version.trim_start_matches('v').split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests;
