//! What is read and checked before anything is started.

use std::{path::Path, sync::Arc};

use controllers_kit::{Descriptor, Factory, FlagValue, Flags, Runs};
use node_connection::{components::Source, rotation::Followed};
use node_options::Options;
use rustls::pki_types::{CertificateDer, pem::PemObject as _};

use super::{Error, connections::user_agent, wrong};

use crate::{
    agreement::Fingerprints,
    cloud::{Cloud, NoCloud, Provider, ReadOnly},
    keys::{self, FileKeys},
};

/// Of the FlexVolume drivers that a warning names.
const FLEX_DRIVERS_MAX: usize = 10;

/// What files and flags have given.
pub(super) struct Setup {
    /// The kubeconfig or the pod's service account.
    pub(super) followed: Arc<Followed>,
    /// As it was first read.
    pub(super) config: Arc<kube::Config>,
    /// Those of controllers, with the authorities of the API server.
    pub(super) flags: Flags,
    /// The controllers that run.
    pub(super) controllers: Vec<Factory>,
    /// Their names.
    pub(super) running: Vec<&'static str>,
    /// What tokens and certificates are signed with.
    pub(super) keys: FileKeys,
    /// The cloud's provider.
    pub(super) cloud: Arc<dyn Cloud>,
    /// What the replicas of the fleet must agree on.
    pub(super) published: Fingerprints,
}

impl Setup {
    /// Reads what the options name.
    ///
    /// # Errors
    /// With the first thing that is wrong.
    pub(super) async fn read(options: &Options) -> Result<Self, Error> {
        let source = Source {
            flag: "kubeconfig",
            kubeconfig: options.client.kubeconfig.clone(),
            master: options.client.master.clone(),
        };
        let followed = Followed::load(source, Some(user_agent(&options.fleet.replica)))
            .await
            .map_err(|error| wrong(&error))?;
        let config = followed.config();
        let flags = flags_with_root_ca(&options.flags, &config)?;
        let controllers = enabled(options, &flags)?;
        let running = names(&controllers);
        let keys = FileKeys::open(&flags, &running).map_err(Error)?;
        let cloud: Arc<dyn Cloud> = match Provider::open(&flags).map_err(Error)? {
            Some(provider) => Arc::new(provider),
            None => Arc::new(NoCloud),
        };
        let cloud: Arc<dyn Cloud> = match options.shadow.is_some() {
            true => Arc::new(ReadOnly(cloud)),
            false => cloud,
        };
        tracing::info!(
            count = running.len() as u64,
            controllers = running.join(" "),
            "the controllers that run"
        );
        let mut published = published(&flags, &running);
        // Keys of a controller in the ranges of a replica that does not run it are reconciled by nobody.
        published.insert(
            "controllers".to_owned(),
            selected(&options.controllers, &running),
        );
        Ok(Self {
            followed,
            config,
            flags,
            controllers,
            running,
            keys,
            cloud,
            published,
        })
    }
}

/// Logs what an operator must know of the options.
pub(super) fn announce(options: &Options) {
    for warning in options.values().deprecations() {
        tracing::warn!("{warning}");
    }
    if let Some(warning) = &options.warning {
        tracing::warn!("{warning}");
    }
    let overriding = options.values().overriding();
    if !overriding.is_empty() {
        tracing::info!(
            "these flags go before what the configuration file says: --{}",
            overriding.join(", --")
        );
    }
    if let Some(shadow) = &options.shadow {
        tracing::info!(
            fleet = options.fleet.fleet,
            patience = ?shadow.patience,
            "a shadow: nothing is written but this fleet's Leases and its report; what is planned is compared with what \
             the manager in charge does"
        );
    } else if options.fleet.interlock.is_none() {
        tracing::warn!(
            "--leader-elect=false: nothing keeps kube-controller-manager or another fleet from writing at the same time"
        );
    }
    if let Some(warning) = flex_drivers(Path::new(options.flags.text("flex-volume-plugin-dir"))) {
        tracing::warn!("{warning}");
    }
    if let Some(zone) = &options.time_zone {
        tracing::info!(
            zone = zone.source,
            "schedules of CronJobs without a time zone are read in the zone of this host, not in UTC"
        );
    }
}

/// What a user of FlexVolume drivers must know: the drivers of a folder, each in one of its own, are not run.
pub(super) fn flex_drivers(folder: &Path) -> Option<String> {
    let entries = std::fs::read_dir(folder).ok()?.flatten();
    let folders = entries.filter(|entry| entry.path().is_dir());
    let mut names: Vec<String> = folders
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| !name.starts_with('.'))
        .take(FLEX_DRIVERS_MAX)
        .collect();
    names.sort();
    (!names.is_empty()).then(|| {
        format!(
            "the FlexVolume drivers in {} ({}) are not run: their volumes are bound, and neither attached nor expanded; use a CSI driver",
            folder.display(),
            names.join(", ")
        )
    })
}

/// The controllers that the options name and that run with the flags. All others are logged with the reason.
pub(super) fn enabled(options: &Options, flags: &Flags) -> Result<Vec<Factory>, Error> {
    let mut enabled = Vec::new();
    for factory in node_registry::all() {
        let descriptor = (factory.describe)();
        let selected = descriptor.runs_unlisted || options.controllers.contains(&descriptor.name);
        let runs = match (selected, descriptor.on_by_default) {
            (true, _) => (descriptor.runs)(flags),
            (false, true) => Runs::No("--controllers does not select it"),
            (false, false) => Runs::No("it is off by default, and --controllers does not name it"),
        };
        match runs {
            Runs::Yes => enabled.push(factory),
            Runs::No(why) => {
                tracing::info!(
                    controller = descriptor.name,
                    "the controller does not run: {why}"
                );
            }
            Runs::Wrong(why) => return Err(Error(why)),
        }
    }
    Ok(enabled)
}

/// The controllers that this replica's `--controllers` selects, and of those that no list selects the ones
/// that run: as the shortest list, with blanks between its entries. Replicas must agree on it, and `manifold
/// doctor` compares it with what runs elsewhere.
pub(super) fn selected(listed: &[&str], running: &[&str]) -> String {
    let descriptors = node_registry::descriptors();
    let names = descriptors
        .iter()
        .filter(|one| match one.runs_unlisted {
            true => running.contains(&one.name),
            false => listed.contains(&one.name),
        })
        .map(|one| one.name)
        .collect();
    controllers_kit::selection::shortest(&names, &descriptors).join(" ")
}

pub(super) fn names(controllers: &[Factory]) -> Vec<&'static str> {
    controllers
        .iter()
        .map(|factory| (factory.describe)().name)
        .collect()
}

/// The controllers whose metrics are exported. Those of clouds that do not run have none, as in
/// kube-controller-manager, which never runs them.
pub(super) fn measured(running: &[&str]) -> Vec<Descriptor> {
    let clouds: Vec<_> = controllers_clouds::REGISTRY
        .iter()
        .map(|factory| (factory.describe)().name)
        .collect();
    let mut descriptors = node_registry::descriptors();
    descriptors.retain(|one| !clouds.contains(&one.name) || running.contains(&one.name));
    descriptors
}

/// Without `--root-ca-file` pods are given the authorities that this process itself knows the API server by.
fn flags_with_root_ca(given: &Flags, config: &kube::Config) -> Result<Flags, Error> {
    const FLAG: &str = "root-ca-file";
    let mut flags = given.clone();
    match given.file(FLAG) {
        Some(pem) => {
            let found = CertificateDer::pem_slice_iter(pem)
                .filter_map(Result::ok)
                .count();
            if found == 0 {
                return Err(Error(format!(
                    "--{FLAG}: no certificate in it: give a PEM file with the API server's authorities"
                )));
            }
        }
        None => {
            let authorities: String = config
                .root_cert
                .iter()
                .flatten()
                .map(|der| certificate_pem(der))
                .collect();
            flags.set(FLAG, FlagValue::File(Some(authorities.into_bytes())));
        }
    }
    Ok(flags)
}

/// Fingerprints of the authorities that some controller publishes; constant while the process lives.
fn published(flags: &Flags, controllers: &[&str]) -> Fingerprints {
    const PUBLISHERS: [&str; 3] = [
        "root-ca-certificate-publisher-controller",
        "serviceaccount-token-controller",
        "kube-apiserver-serving-clustertrustbundle-publisher-controller",
    ];
    let publishes = PUBLISHERS.iter().any(|name| controllers.contains(name));
    let root = flags
        .file("root-ca-file")
        .filter(|_| publishes)
        .map(|pem| ("root-ca".to_owned(), keys::fingerprint(pem)));
    root.into_iter().collect()
}

/// As Go writes it: lines of 64 characters that end with a line feed.
pub(super) fn certificate_pem(der: &[u8]) -> String {
    let config = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
    pem::encode_config(&pem::Pem::new("CERTIFICATE", der), config)
}
