//! Completion: kubectl asks an executable `kubectl_complete-manifold` in the PATH, which asks this program.
//! Pure.

use clap::Command;
use steering::Setting;

/// kubectl completes nothing else: no file names.
const NO_FILES: &str = ":4";
/// kubectl may complete file names.
const FILES: &str = ":0";

/// Kinds that operators ask about most.
const KINDS: &[&str] = &[
    "cronjob/",
    "daemonset/",
    "deployment/",
    "horizontalpodautoscaler/",
    "job/",
    "namespace/",
    "node/",
    "persistentvolumeclaim/",
    "pod/",
    "replicaset/",
    "resourcequota/",
    "service/",
    "statefulset/",
];

/// What may follow these words, of which the last is unfinished; the last line is kubectl's directive.
pub fn complete(command: &Command, words: &[String]) -> Vec<String> {
    let (unfinished, before) = words
        .split_last()
        .map_or(("", &[][..]), |(last, before)| (&**last, before));
    let chosen = before.iter().find_map(|word| command.find_subcommand(word));
    // Those of all subcommands are the command's own.
    let all_flags = || {
        let own = chosen.into_iter().flat_map(Command::get_arguments);
        own.chain(command.get_arguments())
    };
    let value_of = before
        .last()
        .and_then(|word| word.strip_prefix("--").or_else(|| word.strip_prefix('-')))
        .and_then(|name| {
            all_flags().find(|flag| {
                flag.get_long() == Some(name)
                    || flag
                        .get_short()
                        .is_some_and(|short| name == short.to_string())
            })
        })
        .filter(|flag| flag.get_action().takes_values());
    let mut found: Vec<String> = if let Some(flag) = value_of {
        let values = flag.get_possible_values();
        if values.is_empty() {
            return vec![FILES.to_owned()];
        }
        values
            .iter()
            .map(|value| value.get_name().to_owned())
            .collect()
    } else if unfinished.starts_with('-') {
        let flags = all_flags().filter(|flag| !flag.is_hide_set());
        flags
            .filter_map(|flag| flag.get_long().map(|long| format!("--{long}")))
            .collect()
    } else if let Some(chosen) = chosen {
        match chosen.get_name() {
            "explain" | "history" | "move" | "unmove" => {
                KINDS.iter().map(|kind| (*kind).to_owned()).collect()
            }
            "set" | "unset" if !before.iter().any(|word| is_setting(word)) => {
                let all = Setting::ALL.iter();
                all.map(|setting| setting.name().to_owned()).collect()
            }
            "pause" | "resume" | "set" | "unset" => node_registry::descriptors()
                .iter()
                .map(|one| one.name.to_owned())
                .collect(),
            _ => Vec::new(),
        }
    } else {
        let all = command.get_subcommands().filter(|one| !one.is_hide_set());
        all.map(|one| one.get_name().to_owned()).collect()
    };
    found.retain(|one| one.starts_with(unfinished));
    found.sort();
    found.dedup();
    found.push(NO_FILES.to_owned());
    found
}

fn is_setting(word: &str) -> bool {
    Setting::ALL.iter().any(|setting| setting.name() == word)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn words_are_completed() {
        let command = Cli::command();
        for (words, expected) in [
            (&["sta"][..], "status :4"),
            (&["-o", "js"], "json :4"),
            (&["explain", "--output", "y"], "yaml :4"),
            (&["explain", "dep"], "deployment/ :4"),
            (&["status", "--wa"], "--wait :4"),
            (&["--kubeconfig", ""], ":0"),
            (&["top", "x"], ":4"),
            (&["pause", "deploy"], "deployment-controller :4"),
            (&["set", ""], "qps workers :4"),
            (&["set", "workers", "deploy"], "deployment-controller :4"),
        ] {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            assert_eq!(complete(&command, &words).join(" "), expected, "{words:?}");
        }
        let first = complete(&command, &[String::new()]);
        assert!(
            first.len() > 8 && !first.contains(&"__complete".to_owned()),
            "{first:?}"
        );
    }
}
