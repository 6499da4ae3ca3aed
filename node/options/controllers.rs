//! Which controllers run, and the flags that they declare.

use std::collections::BTreeMap;

use controllers_kit::{
    Descriptor, FlagDefault, FlagValue, Flags,
    selection::{self, Selection},
};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};

use crate::{
    Surroundings,
    args::{self, Values},
};

/// Which of the built controllers run. The first entry that names one decides; without one, `*` does.
pub(super) fn selected(
    values: &Values,
    descriptors: &[Descriptor],
    wrong: &mut Vec<String>,
    idle: &mut Vec<String>,
) -> Vec<&'static str> {
    let entries = || values.list("controllers").iter().map(String::as_str);
    let known = |name: &str| args::canonical(name, descriptors).is_some();
    for entry in entries().filter(|entry| *entry != "*") {
        let name = entry.strip_prefix('-').unwrap_or(entry);
        if !known(name) {
            let hint = args::like_controller(name)
                .map(|known| format!(" (did you mean {known}?)"))
                .unwrap_or_default();
            wrong.push(format!(
                "{name:?} is not in the list of known controllers{hint}: --controllers takes the names that --help shows"
            ));
            continue;
        }
        let built = selection::canonical(name, descriptors).is_some();
        if name == entry && !built {
            idle.push(format!("--controllers={entry} (not built yet)"));
        }
    }
    let built = entries().filter(|entry| {
        let name = entry.strip_prefix('-').unwrap_or(entry);
        *entry == "*" || selection::canonical(name, descriptors).is_some()
    });
    let selection = Selection::of(built, descriptors).unwrap_or_default();
    descriptors
        .iter()
        .filter(|one| selection.selects(one))
        .map(|one| one.name)
        .collect()
}

/// Numbers of workers that upstream wants to be at least 1. With any other a controller without workers is
/// accepted, and does nothing.
const WORKERS_AT_LEAST_ONE: [&str; 5] = [
    "concurrent-cron-job-syncs",
    "concurrent-daemonset-syncs",
    "concurrent-horizontal-pod-autoscaler-syncs",
    "concurrent-job-syncs",
    "concurrent-statefulset-syncs",
];

/// The values of the flags that controllers declare.
pub(super) fn flags(
    values: &Values,
    descriptors: &[Descriptor],
    gates: &BTreeMap<&'static str, bool>,
    surroundings: &Surroundings,
    wrong: &mut Vec<String>,
) -> Flags {
    let mut flags = Flags::defaults(descriptors);
    for descriptor in descriptors {
        for (name, _) in &descriptor.gates {
            flags.set(name, FlagValue::Bool(args::gate(name, gates)));
        }
        for flag in &descriptor.flags {
            let name = flag.name;
            let value = match &flag.default {
                FlagDefault::Int(_) => FlagValue::Int(values.int(name)),
                FlagDefault::Float(_) => FlagValue::Float(values.float(name)),
                FlagDefault::Bool(_) => FlagValue::Bool(values.bool(name)),
                FlagDefault::Duration(_) => FlagValue::Duration(values.duration(name)),
                FlagDefault::Text(_) => FlagValue::Text(values.text(name).to_owned()),
                FlagDefault::File if surroundings.elsewhere => FlagValue::File(None),
                FlagDefault::File => FlagValue::File(file(name, values, wrong)),
            };
            flags.set(name, value);
        }
        for (name, least, most) in &descriptor.bounds {
            let value = values.int(name);
            if value < *least {
                wrong.push(format!(
                    "{name} must not be less than {least}, but got {value}"
                ));
            } else if value > *most {
                wrong.push(format!(
                    "{name} must not be more than {most}, but got {value}"
                ));
            }
        }
        if let Some((name, _)) = descriptor.workers
            && WORKERS_AT_LEAST_ONE.contains(&name)
            && values.int(name) < 1
        {
            wrong.push(format!(
                "{name} must be greater than 0, but got {}",
                values.int(name)
            ));
        }
    }
    flags
}

/// What lies in the file that a controller's flag names.
fn file(flag: &str, values: &Values, wrong: &mut Vec<String>) -> Option<Vec<u8>> {
    let path = values.some(flag)?;
    let content = match std::fs::read(path) {
        Ok(content) => content,
        Err(why) => {
            wrong.push(format!("--{flag}: can't read {path}: {why}"));
            return None;
        }
    };
    if flag.ends_with("ca-file") {
        let certificates = CertificateDer::pem_slice_iter(&content).collect::<Result<Vec<_>, _>>();
        match certificates {
            Ok(certificates) if !certificates.is_empty() => {}
            _ => wrong.push(format!("--{flag}: {path} holds no certificate in PEM form")),
        }
    }
    Some(content)
}
