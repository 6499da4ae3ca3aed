//! The table of all controllers in `controllers/README.md`, made from what they declare.

use std::fmt::Write;

use crate::{Descriptor, Factory, Flags, Sharding, Watches};

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
