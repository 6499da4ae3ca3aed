//! The table of all controllers in `controllers/README.md`, made from what they declare.

use std::fmt::Write;

use crate::{Backoff, Descriptor, Factory, FlagDefault, Flags, Sharding, Watches};

/// Where the made part of the document begins.
pub const BEGIN: &str = "<!-- made from the descriptors: begin -->\n";
/// The end mark of the generated part.
pub const END: &str = "<!-- made from the descriptors: end -->\n";

/// The table, a row for each controller in order of names, and the differences from upstream.
pub fn table(registry: &[Factory]) -> String {
    let mut rows: Vec<(Descriptor, Watches)> = registry
        .iter()
        .map(|factory| {
            let descriptor = (factory.describe)();
            let controller = (factory.build)(&Flags::defaults([&descriptor]));
            let watches = controller.watches();
            (descriptor, watches)
        })
        .collect();
    rows.sort_by_key(|(descriptor, _)| descriptor.name);
    let mut text = String::from(
        "| Controller | Old names | Watches | Writes | A key is | Workers | Service account |\n|---|---|---|---|---|---|---|\n",
    );
    for (descriptor, watches) in &rows {
        row(&mut text, descriptor, watches);
    }
    text.push_str("\n## What users of theirs see\n\n");
    text.push_str(SEEN);
    for (descriptor, _) in &rows {
        seen(&mut text, descriptor);
    }
    text.push_str("\n## Where they differ from upstream\n");
    for (descriptor, _) in &rows {
        if descriptor.differences.is_empty() {
            continue;
        }
        add(&mut text, format_args!("\n**{}**\n\n", descriptor.name));
        for difference in &descriptor.differences {
            add(&mut text, format_args!("- {difference}\n"));
        }
    }
    text
}

/// The document with its made part replaced.
///
/// # Errors
/// Where the document lacks one of the two marks, or has them the wrong way round.
pub fn fill(document: &str, table: &str) -> Result<String, String> {
    let place = |mark: &str| {
        document
            .find(mark)
            .ok_or_else(|| format!("controllers/README.md lacks the line {:?}", mark.trim_end()))
    };
    let (begin, end) = (place(BEGIN)? + BEGIN.len(), place(END)?);
    if end < begin {
        return Err("controllers/README.md has its made part's end before its begin".to_owned());
    }
    Ok(format!(
        "{}\n{table}\n{}",
        &document[..begin],
        &document[end..]
    ))
}

fn row(text: &mut String, descriptor: &Descriptor, watches: &Watches) {
    let default = if descriptor.on_by_default {
        ""
    } else {
        " (off by default)"
    };
    let key = match descriptor.sharding {
        Sharding::ByObject => "an object",
        Sharding::ByNamespace => "a namespace",
        Sharding::Single => "the cluster",
    };
    let workers = match descriptor.workers {
        Some((flag, default)) => format!("`--{flag}` {default}"),
        None => descriptor.workers_fixed.to_string(),
    };
    add(
        text,
        format_args!(
            "| {}{default} | {} | {} | {} | {key} | {workers} | {} |\n",
            descriptor.name,
            descriptor.aliases.join(", "),
            watched(watches),
            written(descriptor),
            descriptor.service_account,
        ),
    );
}

/// The head of the table of names that reach users.
const SEEN: &str = "\
| Controller | Events come from | Queue | Back-off | Flags beside workers | Feature gates | Metrics of its own |
|---|---|---|---|---|---|---|
";

/// Names and defaults that are upstream's, as dashboards, alerts and manifests have them.
fn seen(text: &mut String, descriptor: &Descriptor) {
    let workers = descriptor.workers.map(|(flag, _)| flag);
    let flags = descriptor
        .flags
        .iter()
        .filter(|flag| Some(flag.name) != workers)
        .map(|flag| format!("`--{}` {}", flag.name, shown(&flag.default)))
        .collect::<Vec<_>>();
    let gates = descriptor
        .gates
        .iter()
        .map(|(gate, default)| format!("{gate} {default}"))
        .collect::<Vec<_>>();
    let metrics =
        descriptor
            .metrics
            .iter()
            .map(|metric| match metric.labels {
                [] => metric.name.to_owned(),
                labels => format!("{}({})", metric.name, labels.join(", ")),
            })
            .chain(descriptor.sync_metrics.into_iter().flat_map(|prefix| {
                ["total", "duration_seconds"].map(|end| format!("{prefix}_{end}"))
            }))
            .chain(descriptor.sync_seconds.map(str::to_owned))
            .collect::<Vec<_>>();
    let Backoff { first, max } = descriptor.backoff;
    add(
        text,
        format_args!(
            "| {} | {} | {} | {first:?} to {max:?} | {} | {} | {} |\n",
            descriptor.name,
            descriptor.event_source,
            descriptor.queue,
            flags.join("; "),
            gates.join("; "),
            metrics.join("; "),
        ),
    );
}

fn shown(default: &FlagDefault) -> String {
    match default {
        FlagDefault::Int(value) => value.to_string(),
        FlagDefault::Float(value) => value.to_string(),
        FlagDefault::Bool(value) => value.to_string(),
        FlagDefault::Duration(value) if value.is_zero() => "0s".to_owned(),
        FlagDefault::Duration(value) => format!("{value:?}"),
        FlagDefault::Text("") => "empty".to_owned(),
        FlagDefault::Text(value) => (*value).to_owned(),
        FlagDefault::File => "no file".to_owned(),
    }
}

/// As in `namespaces; configmaps named kube-root-ca.crt`.
fn watched(watches: &Watches) -> String {
    let mut kinds: Vec<String> = Vec::new();
    for subscription in &watches.subscriptions {
        let id = subscription.resource.id();
        let kind = match subscription.only_name {
            Some(name) => format!("{id} named `{name}`"),
            None if subscription.where_served => format!("{id} where served"),
            None => id,
        };
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    kinds.join("; ")
}

/// As in `jobs.batch: delete`: what the rules allow beyond reading.
fn written(descriptor: &Descriptor) -> String {
    let mut writes = Vec::new();
    for rule in &descriptor.rules {
        let verbs: Vec<&str> = rule
            .verbs
            .iter()
            .copied()
            .filter(|verb| !matches!(*verb, "get" | "list" | "watch"))
            .collect();
        if verbs.is_empty() {
            continue;
        }
        let (resource, subresource) = rule
            .resource
            .split_once('/')
            .map_or((rule.resource, ""), |(resource, part)| (resource, part));
        let group = if rule.group.is_empty() {
            String::new()
        } else {
            format!(".{}", rule.group)
        };
        let part = if subresource.is_empty() {
            String::new()
        } else {
            format!("/{subresource}")
        };
        let names = if rule.names.is_empty() {
            String::new()
        } else {
            format!(" named `{}`", rule.names.join("`, `"))
        };
        writes.push(format!(
            "{resource}{group}{part}{names}: {}",
            verbs.join(" ")
        ));
    }
    writes.join("; ")
}

fn add(text: &mut String, line: std::fmt::Arguments<'_>) {
    text.write_fmt(line).expect("a String takes all");
}

#[cfg(test)]
mod tests;
