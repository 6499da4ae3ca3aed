//! promtool over series: which alerts have fired, and which fire still.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use harness::process::WorkDir;
use harness::programs::{Program, Programs};
use harness::toolchain::at_lowest_priority;
use harness::workspace_root;
use serde_json::{Value, json};

use super::rules::{Rules, SOURCE, labels_in};
use super::series::Series;

/// Alerts are searched for in this much of a run: more than the longest one lasts.
const WHOLE_RUN: &str = "12h";

/// One run of series and what must come of it.
pub(super) struct Case<'a> {
    pub(super) name: &'a str,
    pub(super) series: Series,
    /// Between two scrapes.
    pub(super) step_seconds: u32,
    /// Every alert that fires at some time, no other.
    pub(super) fired: Vec<&'a str>,
    /// Every alert that fires at the end.
    pub(super) fires_still: Vec<&'a str>,
}

/// promtool, built if need be.
pub(super) struct Promtool {
    program: PathBuf,
    dir: WorkDir,
}

impl Promtool {
    pub(super) fn obtain() -> Result<Self> {
        Ok(Self {
            program: Programs::obtain_promtool()?.path(Program::Promtool),
            dir: WorkDir::new()?,
        })
    }

    fn run(&self, arguments: &[&str], file: &Path) -> Result<String> {
        // It computes for minutes, beside suites that measure time.
        let output = at_lowest_priority(&self.program)
            .args(arguments)
            .arg(file)
            .output()
            .context("starting promtool")?;
        let said = format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        ensure!(
            output.status.success(),
            "promtool {}: {said}",
            arguments.join(" ")
        );
        Ok(said)
    }

    /// `promtool check rules`.
    pub(super) fn check(&self) -> Result<String> {
        let source = workspace_root().join(SOURCE);
        self.run(&["check", "rules", "--lint=all", "--lint-fatal"], &source)
    }

    /// `promtool test rules` of all cases: how long it took. An error names the cases, which promtool does
    /// not.
    pub(super) fn test(&self, rules: &Rules, cases: &[Case<'_>]) -> Result<Duration> {
        let began = Instant::now();
        if self.passes(rules, cases, "all").is_ok() {
            return Ok(began.elapsed());
        }
        let failed: Vec<String> = cases
            .iter()
            .filter_map(|case| {
                let cases = std::slice::from_ref(case);
                let error = self.passes(rules, cases, case.name).err()?;
                Some(format!("{}: {error:#}", case.name))
            })
            .collect();
        bail!("{}", failed.join("\n"))
    }

    /// `name`: of the file, which stays where a test fails.
    fn passes(&self, rules: &Rules, cases: &[Case<'_>], name: &str) -> Result<()> {
        let tests: Vec<Value> = cases.iter().map(|case| test(rules, case)).collect();
        let file = json!({
            "rule_files": [workspace_root().join(SOURCE)],
            "evaluation_interval": "30s",
            "tests": tests,
        });
        // JSON is YAML.
        let path = self
            .dir
            .write(&format!("{name}.test.yaml"), serde_json::to_vec(&file)?)?;
        self.run(&["test", "rules"], &path)?;
        Ok(())
    }
}

fn test(rules: &Rules, case: &Case<'_>) -> Value {
    let input: Vec<Value> = case
        .series
        .written()
        .map(|(series, values)| json!({"series": series, "values": values}))
        .collect();
    let end = u64::from(case.step_seconds) * (case.series.scrapes() as u64 - 1);
    let is = |expression: String, alerts: &[&str]| {
        let samples: Vec<Value> = alerts
            .iter()
            .map(|alert| json!({"labels": format!("{{alertname=\"{alert}\"}}"), "value": 1}))
            .collect();
        json!({"expr": expression, "eval_time": format!("{end}s"), "exp_samples": samples})
    };
    let all = |more: &str| {
        format!(
            "group by (alertname) (last_over_time(ALERTS{{alertstate=\"firing\"{more}}}[{WHOLE_RUN}]))"
        )
    };
    let mut expressions = vec![
        is(all(""), &case.fired),
        is(
            "group by (alertname) (ALERTS{alertstate=\"firing\"})".to_owned(),
            &case.fires_still,
        ),
    ];
    // What its texts take from its labels is there.
    for alert in rules
        .alerts()
        .filter(|alert| case.fired.contains(&&*alert.alert))
    {
        for label in alert.annotations.values().flat_map(|text| labels_in(text)) {
            let without = format!(",alertname=\"{}\",{label}=\"\"", alert.alert);
            expressions.push(is(all(&without), &[]));
        }
    }
    json!({
        "name": case.name,
        "interval": format!("{}s", case.step_seconds),
        "input_series": input,
        "promql_expr_test": expressions,
    })
}
