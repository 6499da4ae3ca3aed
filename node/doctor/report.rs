//! How findings are shown: text for people, JSON for programs.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::{
    checks::{Finding, Verdict},
    facts::Facts,
};

/// Version of the JSON report; it changes when a field changes its meaning or goes.
pub const SCHEMA: &str = "manifold.dev/doctor/v1";

/// How many checks had which result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Passed.
    pub passed: usize,
    /// Warned.
    pub warnings: usize,
    /// Failed.
    pub failed: usize,
    /// Skipped.
    pub skipped: usize,
}

impl Summary {
    /// Of some verdicts.
    pub fn of(verdicts: &[Verdict]) -> Self {
        let mut summary = Self::default();
        for verdict in verdicts {
            match verdict.finding {
                Finding::Passed(_) => summary.passed += 1,
                Finding::Warning { .. } => summary.warnings += 1,
                Finding::Failed { .. } => summary.failed += 1,
                Finding::Skipped(_) => summary.skipped += 1,
            }
        }
        summary
    }
}

/// Result, detail and remedy of a finding.
fn parts(finding: &Finding) -> (&'static str, &str, &[String]) {
    match finding {
        Finding::Passed(detail) => ("passed", detail, &[]),
        Finding::Warning { why, remedy } => ("warning", why, remedy),
        Finding::Failed { why, remedy } => ("failed", why, remedy),
        Finding::Skipped(why) => ("skipped", why, &[]),
    }
}

/// As text: a heading for each category, a line for each check, and below what is wrong why, and what repairs
/// it.
pub fn text(verdicts: &[Verdict]) -> String {
    let mut text = String::new();
    let mut category = "";
    for Verdict { check, finding } in verdicts {
        if check.category() != category {
            if !category.is_empty() {
                text.push('\n');
            }
            category = check.category();
            let line = "-".repeat(category.len());
            // Writing into a String can't fail, here and below.
            let _ = writeln!(text, "{category}\n{line}");
        }
        let (_, detail, remedy) = parts(finding);
        let sign = match finding {
            Finding::Passed(_) => '√',
            Finding::Warning { .. } => '‼',
            Finding::Failed { .. } => '×',
            Finding::Skipped(_) => '-',
        };
        let _ = match finding {
            Finding::Passed(detail) if !detail.is_empty() => {
                writeln!(text, "{sign} {} ({detail})", check.title)
            }
            Finding::Skipped(why) => writeln!(text, "{sign} {} (skipped: {why})", check.title),
            _ => writeln!(text, "{sign} {}", check.title),
        };
        if matches!(finding, Finding::Warning { .. } | Finding::Failed { .. }) {
            let _ = writeln!(text, "    {}: {detail}", check.id);
            for command in remedy {
                let _ = writeln!(text, "    repair: {command}");
            }
        }
    }
    let summary = Summary::of(verdicts);
    let sign = match summary {
        Summary { failed: 1.., .. } => '×',
        Summary { warnings: 1.., .. } => '‼',
        _ => '√',
    };
    let _ = writeln!(
        text,
        "\n{sign} {} passed, {} warned, {} failed, {} skipped",
        summary.passed, summary.warnings, summary.failed, summary.skipped
    );
    text
}

/// As JSON; docs/doctor.md describes it.
pub fn json(facts: &Facts, verdicts: &[Verdict]) -> Value {
    let summary = Summary::of(verdicts);
    let checks: Vec<Value> = verdicts
        .iter()
        .map(|Verdict { check, finding }| {
            let (result, detail, remedy) = parts(finding);
            json!({
                "id": check.id,
                "category": check.category(),
                "title": check.title,
                "result": result,
                "detail": detail,
                "remedy": remedy,
            })
        })
        .collect();
    json!({
        "schema": SCHEMA,
        "version": facts.build,
        "time": facts.now.to_string(),
        "pre": facts.asked.pre,
        "server": facts.credentials.server,
        "fleet": facts.fleet().map(|fleet| json!({
            "namespace": fleet.namespace,
            "name": fleet.name,
            "members": fleet.live().map(|one| &one.said.name).collect::<Vec<_>>(),
        })),
        "summary": {
            "passed": summary.passed,
            "warnings": summary.warnings,
            "failed": summary.failed,
            "skipped": summary.skipped,
        },
        "checks": checks,
    })
}
