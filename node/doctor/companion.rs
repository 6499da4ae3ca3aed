//! Mixed mode: which controllers kube-controller-manager keeps where a fleet runs the others.
//!
//! Two managers that run one controller are two writers of its objects, and nothing in the API keeps them
//! apart; one that nobody runs is missed late. So both lists are made from one.

use std::collections::BTreeSet;

use controllers_kit::{
    Descriptor,
    selection::{Selection, shortest, with_star},
};
use serde::Serialize;
use serde_json::json;

use crate::{
    checks::{CLOUD, TOKENS},
    facts::GUARD_COMPANION,
};

/// Version of the JSON form.
const SCHEMA: &str = "manifold.dev/companion/v1";
/// A manager without this key does not run the controller of tokens.
const TOKENS_FLAG: &str = "service-account-private-key-file";

/// What kube-controller-manager runs where kubeadm has set it up.
const KUBEADM: &[&str] = &[
    "*",
    "bootstrap-signer-controller",
    "token-cleaner-controller",
];

/// Who runs what, and the flags that bring it about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Division {
    /// What the fleet runs.
    pub manifold: Side,
    /// What kube-controller-manager runs.
    pub kcm: Side,
    /// What neither of them runs, because a list takes it out.
    pub unassigned: Vec<&'static str>,
}

/// One manager.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Side {
    /// Canonical names, sorted.
    pub controllers: Vec<&'static str>,
    /// The flags that differ from what it has otherwise.
    pub args: Vec<String>,
}

/// The name that is most like an unknown one.
fn similar(name: &str, descriptors: &[Descriptor]) -> Option<&'static str> {
    /// Below it two names have little in common.
    const LIKENESS_MIN: f64 = 0.85;
    descriptors
        .iter()
        .flat_map(|one| one.aliases.iter().copied().chain([one.name]))
        .map(|known| (strsim::jaro_winkler(name, known), known))
        .max_by(|left, right| left.0.total_cmp(&right.0))
        .filter(|(likeness, _)| *likeness > LIKENESS_MIN)
        .map(|(_, known)| known)
}

/// Reads one list.
fn read(flag: &str, list: &[String], descriptors: &[Descriptor]) -> Result<Selection, String> {
    let entries = list
        .iter()
        .map(|entry| entry.trim())
        .filter(|entry| !entry.is_empty());
    Selection::of(entries, descriptors).map_err(|unknown| {
        let named: Vec<String> = unknown
            .iter()
            .map(|name| match similar(name, descriptors) {
                Some(known) => format!("{name:?} (did you mean {known}?)"),
                None => format!("{name:?}"),
            })
            .collect();
        format!(
            "--{flag} names no known controller: {}; manifold --help lists all",
            named.join(", ")
        )
    })
}

/// Divides the controllers: the fleet runs what `manifold` selects, kube-controller-manager the rest of what
/// `kcm` selects, or of what kubeadm has it run.
///
/// # Errors One sentence with the remedy: for an unknown name, a controller that both lists name, or a list
/// that leaves one manager nothing.
pub fn divide(
    manifold: &[String],
    kcm: Option<&[String]>,
    descriptors: &[Descriptor],
) -> Result<Division, String> {
    let ours = read("controllers", manifold, descriptors)?;
    let before: Vec<String> = KUBEADM.iter().map(|entry| (*entry).to_owned()).collect();
    let theirs = read("kcm-controllers", kcm.unwrap_or(&before), descriptors)?;
    let fleet = ours.names(descriptors);
    // What somebody names for kube-controller-manager it is to keep; without a list it keeps the rest.
    let overlap = |by_name: bool| -> Vec<&str> {
        fleet
            .iter()
            .copied()
            .filter(|name| kcm.is_some() && theirs.named(name) == Some(true))
            .filter(|name| ours.named(name).is_some() == by_name)
            .collect()
    };
    let (named, by_star) = (overlap(true), overlap(false));
    if let Some(name) = named.first() {
        return Err(format!(
            "both lists name {}: two managers would write its objects; take {name} out of --controllers or out of \
             --kcm-controllers",
            named.join(", ")
        ));
    }
    if let Some(name) = by_star.first() {
        return Err(format!(
            "--kcm-controllers names {}, which `*` in --controllers gives to Manifold too: two managers would write its \
             objects; add -{name} to --controllers or take {name} out of --kcm-controllers",
            by_star.join(", ")
        ));
    }
    if fleet.is_empty() {
        return Err(
            "--controllers gives Manifold nothing to run: name what it takes over, as in \
             --controllers=deployment-controller,replicaset-controller"
                .to_owned(),
        );
    }
    let mut kept: BTreeSet<&'static str> = theirs.names(descriptors);
    // The key decides where it runs: with kube-controller-manager, unless the fleet takes it by name.
    if !fleet.contains(TOKENS) && theirs.named(TOKENS) != Some(false) {
        kept.insert(TOKENS);
    }
    kept.retain(|name| !fleet.contains(name));
    if kept
        .iter()
        .all(|name| CLOUD.contains(name) || *name == TOKENS)
    {
        return Err(
            "--controllers leaves kube-controller-manager nothing: stop kube-controller-manager instead, or take out what \
             it keeps, as in --controllers='*,-node-ipam-controller'"
                .to_owned(),
        );
    }
    let unassigned = descriptors
        .iter()
        .filter(|one| one.on_by_default && !fleet.contains(one.name) && !kept.contains(one.name))
        .map(|one| one.name)
        .collect();
    let mut kcm_args = vec![format!(
        "--controllers={}",
        kcm_list(&kept, &theirs, descriptors)
    )];
    let mut manifold_args = vec![
        format!("--controllers={}", list_of(&fleet, &ours, descriptors)),
        format!("--leader-elect-resource-name={GUARD_COMPANION}"),
    ];
    match fleet.contains(TOKENS) {
        true => kcm_args.push(format!("--{TOKENS_FLAG}=")),
        false => manifold_args.push(format!("--{TOKENS_FLAG}=")),
    }
    Ok(Division {
        manifold: Side {
            controllers: fleet.into_iter().collect(),
            args: manifold_args,
        },
        kcm: Side {
            controllers: kept.into_iter().collect(),
            args: kcm_args,
        },
        unassigned,
    })
}

/// With `*` where the given list has it: then a controller that a later version brings runs as well.
fn list_of(
    names: &BTreeSet<&'static str>,
    given: &Selection,
    descriptors: &[Descriptor],
) -> String {
    let names: BTreeSet<&str> = names.iter().copied().collect();
    let list = match given.has_star() {
        true => with_star(&names, descriptors),
        false => shortest(&names, descriptors),
    };
    list.join(",")
}

/// As [`list_of`]; without the controller of tokens, which no list switches on or off there.
fn kcm_list(
    kept: &BTreeSet<&'static str>,
    given: &Selection,
    descriptors: &[Descriptor],
) -> String {
    let mut listed = kept.clone();
    listed.remove(TOKENS);
    list_of(&listed, given, descriptors)
}

/// How a division is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Form {
    /// kube-controller-manager's flags, one a line.
    #[default]
    Flags,
    /// A kubeadm ClusterConfiguration with `controllerManager.extraArgs`.
    Kubeadm,
    /// JSON with both sides.
    Json,
}

impl Division {
    /// The text of a form, with a line feed at its end.
    pub fn print(&self, form: Form) -> String {
        match form {
            Form::Flags => self.kcm.args.iter().map(|arg| format!("{arg}\n")).collect(),
            Form::Kubeadm => self.kubeadm(),
            Form::Json => {
                let mut value = json!({"schema": SCHEMA});
                for (name, side) in [("manifold", json!(self.manifold)), ("kcm", json!(self.kcm))] {
                    value[name] = side;
                }
                value["unassigned"] = json!(self.unassigned);
                format!("{value:#}\n")
            }
        }
    }

    fn kubeadm(&self) -> String {
        let mut text = "# Merge into the cluster's configuration (kubectl -n kube-system edit configmap kubeadm-config), then on each\n\
             # control-plane host: kubeadm init phase control-plane controller-manager --config=FILE\n\
             # Manifold's own flags beside it:\n"
            .to_owned();
        for arg in &self.manifold.args {
            text.push_str(&format!("#   {arg}\n"));
        }
        text.push_str(
            "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\ncontrollerManager:\n  extraArgs:\n",
        );
        for arg in &self.kcm.args {
            let (name, value) = arg
                .trim_start_matches("--")
                .split_once('=')
                .unwrap_or((arg, ""));
            text.push_str(&format!("    - name: {name}\n      value: {value:?}\n"));
        }
        text
    }

    /// What people should know besides, a line each.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = vec![format!(
            "start Manifold with {}",
            self.manifold
                .args
                .iter()
                .map(|arg| match arg.contains('*') {
                    true => format!("'{arg}'"),
                    false => arg.clone(),
                })
                .collect::<Vec<_>>()
                .join(" ")
        )];
        if !self.unassigned.is_empty() {
            notes.push(format!("neither runs {}", self.unassigned.join(", ")));
        }
        notes
    }
}
