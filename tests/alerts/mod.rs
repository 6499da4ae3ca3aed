//! Alerts: each fires for its fault and for no other, names metrics that the program exports, and has a
//! runbook.

mod cluster;
mod faults;
mod promtool;
mod recorded;
pub(crate) mod rules;
mod series;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use harness::workspace_root;
use node_telemetry::metrics::Metrics;
use serde_json::Value;

use self::cluster::STEP_SECONDS;
use self::faults::FAULTS;
use self::promtool::{Case, Promtool};
use self::rules::{FOREIGN, RUNBOOKS, Rules, labels_in, metrics_in};

/// What a runbook says, in this order.
const SECTIONS: [&str; 3] = ["## Meaning", "## Run", "## Repair"];
/// A page is read at three in the morning.
const PAGE_LINES_MAX: usize = 40;

#[test]
fn each_alert_fires_for_its_fault_and_is_silent_for_all_others() {
    let rules = Rules::read();
    let promtool = Promtool::obtain().expect("promtool");
    let said = promtool.check().expect("rules that promtool accepts");
    println!("alerts: {}", said.trim().replace('\n', "; "));
    let cases: Vec<Case<'_>> = FAULTS
        .iter()
        .map(|fault| Case {
            name: fault.name,
            series: cluster::run(&rules, |cluster, minute| fault.apply(cluster, minute)),
            step_seconds: STEP_SECONDS,
            fired: fault.fires.into_iter().collect(),
            fires_still: Vec::new(),
        })
        .collect();
    let took = promtool
        .test(&rules, &cases)
        .unwrap_or_else(|error| panic!("{error:#}"));
    let alerts: Vec<&str> = rules.alerts().map(|alert| &*alert.alert).collect();
    println!("{}", table(&alerts, &cases));
    println!(
        "alerts: {} alerts × {} courses of {} min, {} of them ordinary: {:.1} s",
        alerts.len(),
        cases.len(),
        cluster::MINUTES,
        cases.iter().filter(|case| case.fired.is_empty()).count(),
        took.as_secs_f64()
    );
    let tested: BTreeSet<&str> = cases.iter().flat_map(|case| case.fired.clone()).collect();
    let untested: Vec<&&str> = alerts
        .iter()
        .filter(|name| !tested.contains(**name))
        .collect();
    assert!(untested.is_empty(), "no fault has {untested:?} fire");
}

/// Faults by alerts, as promtool has found them.
fn table(alerts: &[&str], cases: &[Case<'_>]) -> String {
    let width = cases.iter().map(|case| case.name.len()).max().unwrap_or(0);
    let mut text = String::from("alerts:\n");
    for (at, alert) in alerts.iter().enumerate() {
        let _ = writeln!(text, "  {:>2} {alert}", at + 1);
    }
    let numbers: String = (1..=alerts.len()).map(|at| format!("{at:>3}")).collect();
    let _ = writeln!(text, "{:width$}{numbers}", "");
    for case in cases {
        let _ = write!(text, "{:width$}", case.name);
        for alert in alerts {
            let mark = if case.fired.contains(alert) {
                "X"
            } else {
                "·"
            };
            let _ = write!(text, "{mark:>3}");
        }
        text.push('\n');
    }
    text
}

#[test]
fn every_alert_has_a_severity_a_summary_and_a_runbook_and_every_runbook_an_alert() {
    let rules = Rules::read();
    let folder = workspace_root().join(RUNBOOKS);
    let index = std::fs::read_to_string(folder.join("README.md")).expect("the index");
    let mut pages: BTreeSet<String> = std::fs::read_dir(&folder)
        .expect("runbooks")
        .map(|entry| entry.expect("an entry").file_name())
        .map(|name| name.to_string_lossy().into_owned())
        .filter(|name| name != "README.md")
        .collect();
    let mut names = BTreeSet::new();
    for alert in rules.alerts() {
        let name = &alert.alert;
        assert!(names.insert(name.clone()), "{name} is there twice");
        let severity = alert.labels.get("severity").map_or("", String::as_str);
        assert!(
            ["critical", "warning"].contains(&severity),
            "{name}: {severity:?}"
        );
        let summary = alert.annotations.get("summary").map_or("", String::as_str);
        assert!(summary.len() > 30, "{name} has no summary");
        let runbook = alert.annotations.get("runbook").map_or("", String::as_str);
        assert_eq!(runbook, format!("{RUNBOOKS}/{name}.md"), "{name}");
        let page = std::fs::read_to_string(workspace_root().join(runbook));
        let page = page.unwrap_or_else(|error| panic!("{runbook}: {error}"));
        pages.remove(&format!("{name}.md"));
        assert!(
            page.starts_with(&format!("# {name}\n")),
            "{runbook}: another title"
        );
        let sections: Vec<&str> = page
            .lines()
            .filter(|line| line.starts_with("## "))
            .collect();
        assert_eq!(sections, SECTIONS, "{runbook}");
        assert!(
            page.lines().count() <= PAGE_LINES_MAX,
            "{runbook} is too long"
        );
        assert!(
            page.contains("manifold doctor") || page.contains("kubectl "),
            "{runbook}: no command"
        );
        let row = format!("| [{name}]({name}.md) | {severity} |");
        assert!(
            index.contains(&row),
            "{RUNBOOKS}/README.md has no row {row:?}"
        );
    }
    assert!(pages.is_empty(), "no alert has the runbooks {pages:?}");
    let rows = index.lines().filter(|line| line.starts_with("| [")).count();
    assert_eq!(rows, names.len(), "{RUNBOOKS}/README.md has other rows");
}

/// Every metric that the program exports.
fn exported() -> BTreeSet<String> {
    Metrics::new(&node_registry::descriptors()).names()
}

#[test]
fn rules_name_metrics_that_replicas_export() {
    let (rules, exported) = (Rules::read(), exported());
    for name in rules.metrics() {
        assert!(
            exported.contains(&name) || FOREIGN.contains(&name.as_str()),
            "a rule asks for {name}, which nobody exports"
        );
    }
    // What a rule records is used, and each rule says of which job it speaks.
    let used: BTreeSet<String> = rules
        .alerts()
        .flat_map(|rule| metrics_in(&rule.expr))
        .collect();
    for rule in rules.records() {
        assert!(used.contains(&rule.record), "nobody uses {}", rule.record);
    }
    for rule in rules.alerts().chain(rules.records()) {
        let selectors = rule.expr.matches('{').count();
        let of_the_job = rule
            .expr
            .matches("{job=\"kube-controller-manager\"")
            .count();
        let of_others = rule.expr.matches("{statefulset=").count();
        let name = format!("{}{}", rule.alert, rule.record);
        assert_eq!(of_the_job + of_others, selectors, "{name}: another job");
        for metric in metrics_in(&rule.expr)
            .iter()
            .filter(|name| !name.contains(':'))
        {
            assert!(
                rule.expr.contains(&format!("{metric}{{")),
                "{name}: {metric} of all jobs"
            );
        }
    }
    // A label in a text is one of the alert's; promtool shows that each has a value.
    for rule in rules.alerts() {
        for text in rule.annotations.values() {
            assert!(
                !labels_in(text).contains("job"),
                "{}: always the same",
                rule.alert
            );
        }
    }
}

#[test]
fn the_operator_s_object_has_the_rules_of_the_source() {
    let read = |path: &str| -> Value {
        let text = std::fs::read_to_string(workspace_root().join(path)).expect("a file");
        serde_yaml::from_str(&text).expect("YAML")
    };
    assert_eq!(read(rules::OBJECT)["spec"], read(rules::SOURCE));
}

#[test]
fn dashboards_ask_for_metrics_that_replicas_export_and_explain_each_panel() {
    let exported = exported();
    let folder = workspace_root().join("deploy/overlays/monitoring/dashboards");
    let mut asked = BTreeMap::new();
    for name in ["fleet", "controllers", "api"] {
        let text = std::fs::read_to_string(folder.join(format!("{name}.json"))).expect("a file");
        let dashboard: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(dashboard["uid"], format!("manifold-{name}"));
        let panels = dashboard["panels"].as_array().expect("panels");
        assert!(panels.len() >= 8, "{name}: {} panels", panels.len());
        for panel in panels {
            let title = &panel["title"];
            let described = panel["description"].as_str().map_or(0, str::len);
            assert!(described > 10, "{name}: {title} is not described");
            let targets = panel["targets"].as_array().expect("targets");
            assert!(!targets.is_empty(), "{name}: {title} shows nothing");
            for target in targets {
                let expression = target["expr"].as_str().expect("an expression");
                assert!(
                    expression.contains("job=\"kube-controller-manager\""),
                    "{name}: {title} reads other jobs as well"
                );
                let metrics = metrics_in(expression);
                assert!(!metrics.is_empty(), "{name}: {title} asks for nothing");
                for metric in metrics {
                    asked.insert(metric, format!("{name}: {title}"));
                }
            }
        }
    }
    for (metric, panel) in asked {
        assert!(
            exported.contains(&metric),
            "{panel}: nobody exports {metric}"
        );
    }
}
