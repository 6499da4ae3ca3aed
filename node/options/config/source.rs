//! What a command line or a configuration is read from: a configuration, what `/configz` answers, or the
//! manifest of a pod.

use std::collections::BTreeMap;

use serde_json::{Map, Value as Json};

use crate::args;

/// The group under which `/configz` has upstream's document.
const GROUP: &str = "kubecontrollermanager.config.k8s.io";
/// Programs whose flags are read.
const PROGRAMS: [&str; 2] = ["kube-controller-manager", "manifold"];
/// Programs that run something else.
const SHELLS: [&str; 4] = ["sh", "bash", "ash", "env"];

/// What a document is.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// A configuration.
    Configuration(Json),
    /// A pod's command line.
    Flags {
        /// The words after the program.
        words: Vec<String>,
        /// What was left out of them, each a sentence.
        notes: Vec<String>,
    },
}

/// What else than a configuration a document is, with its article; `None` where it is or tries to be one.
pub fn other_kind(document: &Json) -> Option<String> {
    if document.get(GROUP).is_some() {
        return Some("an answer of /configz".to_owned());
    }
    let kind = document.get("kind")?.as_str()?;
    containers(document).map(|_| format!("a {}", kind.escape_debug()))
}

impl Source {
    /// What a document is.
    ///
    /// # Errors
    /// Where it is a pod's manifest without a command line that can be read.
    pub fn of(document: Json) -> Result<Self, String> {
        if document.get(GROUP).is_some() {
            return Ok(Self::Configuration(of_configz(document)));
        }
        match containers(&document) {
            Some(containers) => of_pod(containers),
            None => Ok(Self::Configuration(document)),
        }
    }
}

/// The configuration that an answer of `/configz` holds.
fn of_configz(mut document: Json) -> Json {
    let mut take = |name: &str| match document.get_mut(name).map(Json::take) {
        Some(Json::Object(map)) => map,
        _ => Map::new(),
    };
    let mut configuration = take(GROUP);
    let mut ours = take("manifold");
    ours.remove("effective");
    configuration.extend(ours);
    for (name, value) in [("apiVersion", args::API_VERSION), ("kind", args::KIND)] {
        configuration.entry(name).or_insert_with(|| value.into());
    }
    configuration.into()
}

/// The containers of a pod, or of the pods that a workload makes.
fn containers(document: &Json) -> Option<&Vec<Json>> {
    let spec = document.get("spec")?;
    let spec = spec.pointer("/template/spec").unwrap_or(spec);
    spec.get("containers")?.as_array()
}

fn of_pod(containers: &[Json]) -> Result<Source, String> {
    let named = |container: &&Json| {
        let name = container.get("name").and_then(Json::as_str);
        let program = texts(container, "command").into_iter().next();
        let program = program.as_deref().map(base);
        [name, program]
            .into_iter()
            .flatten()
            .any(|name| PROGRAMS.contains(&name))
    };
    let container = match containers {
        [one] => one,
        several => several.iter().find(named).ok_or_else(|| {
            format!(
                "none of its {} containers is named or runs {}",
                several.len(),
                PROGRAMS.join(" or ")
            )
        })?,
    };
    let command = texts(container, "command");
    if let Some(shell) = command.first().filter(|word| SHELLS.contains(&base(word))) {
        return Err(format!(
            "its container runs {shell}: give the flags themselves, as in manifold config from-flags -- --v=2"
        ));
    }
    let given = command.into_iter().skip(1).chain(texts(container, "args"));
    let environment = environment(container);
    let (mut words, mut notes): (Vec<String>, Vec<String>) = Default::default();
    for word in given {
        match expanded(&word, &environment) {
            Ok(word) => words.push(word),
            Err(variable) => {
                // A value that is a word of its own goes with its flag.
                let flag = match word.starts_with('-') {
                    true => None,
                    false => {
                        words.pop_if(|before| before.starts_with("--") && !before.contains('='))
                    }
                };
                let whole = flag.map_or_else(|| word.clone(), |flag| format!("{flag} {word}"));
                notes.push(format!(
                    "{whole} is left out: the kubelet knows {variable} of each pod, so it stays on the command line"
                ));
            }
        }
    }
    Ok(Source::Flags { words, notes })
}

fn base(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

fn texts(container: &Json, field: &str) -> Vec<String> {
    let items = container.get(field).and_then(Json::as_array);
    items
        .into_iter()
        .flatten()
        .filter_map(Json::as_str)
        .map(str::to_owned)
        .collect()
}

/// The variables whose values the manifest itself has.
fn environment(container: &Json) -> BTreeMap<&str, &str> {
    let variables = container.get("env").and_then(Json::as_array);
    variables
        .into_iter()
        .flatten()
        .filter_map(|one| Some((one.get("name")?.as_str()?, one.get("value")?.as_str()?)))
        .collect()
}

/// A word with its `$(NAME)` replaced, as a kubelet does it; `$$` is `$`.
///
/// # Errors
/// With the name of a variable whose value is not known.
fn expanded(word: &str, environment: &BTreeMap<&str, &str>) -> Result<String, String> {
    let (mut text, mut rest) = (String::new(), word);
    while let Some(at) = rest.find('$') {
        text.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            text.push('$');
            rest = after;
        } else if let Some((name, after)) =
            rest.strip_prefix('(').and_then(|rest| rest.split_once(')'))
        {
            text.push_str(environment.get(name).ok_or_else(|| format!("$({name})"))?);
            rest = after;
        } else {
            text.push('$');
        }
    }
    text.push_str(rest);
    Ok(text)
}
