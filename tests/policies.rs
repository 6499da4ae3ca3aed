//! Types in the expressions of ValidatingAdmissionPolicies: the warnings in their status equal those of
//! kube-controller-manager, expression by expression. The expressions are those of upstream's own tests of
//! CEL, taken from the source of the pinned version when the suite runs, and variations of them in which a
//! literal gave way to a field of the object: where a field's type does not fit, both must say so in the same
//! words. What the API server refuses to store is left out, since nobody checks it.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, stream};
use harness::{ControlPlane, run_test, until};
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::support::{all_end_well, alone, fleet_of};

/// Modules with tests of CEL, and their folders; all below are read.
const SOURCES: [(&str, &str); 5] = [
    ("k8s.io/apiserver", "pkg/cel"),
    ("k8s.io/apiserver", "pkg/admission/plugin/policy"),
    ("k8s.io/apiextensions-apiserver", "pkg/apiserver/schema/cel"),
    (
        "k8s.io/kubernetes",
        "pkg/controller/validatingadmissionpolicystatus",
    ),
    ("k8s.io/kubernetes", "test/e2e/apimachinery"),
];
/// Fields of a Deployment, of different types, that take a literal's place.
const FIELDS: [&str; 10] = [
    "object.metadata.name",
    "object.metadata.labels",
    "object.metadata.finalizers",
    "object.metadata.creationTimestamp",
    "object.spec.replicas",
    "object.spec.paused",
    "object.spec.template.spec.containers",
    "object.spec.template.spec.containers[0].ports",
    "object.spec.strategy.rollingUpdate.maxSurge",
    "object.spec.nothing",
];
/// Variations of each expression.
const VARIATIONS: usize = 3;
/// A literal of this length or more is a document, not an expression.
const LENGTH_MAX: usize = 400;
/// Policies that are made at once.
const AT_ONCE: usize = 16;
const CONTROLLERS: &str = "--controllers=validatingadmissionpolicy-status-controller";
/// For one manager to check all: upstream has one worker, and takes minutes on a busy machine.
const LIMIT: Duration = Duration::from_secs(1200);
const REPLICAS: usize = 2;
/// Of a hundred verdicts, those that must be upstream's to the letter.
const EQUAL_PERCENT: usize = 95;
/// Differences that are printed.
const SHOWN: usize = 20;

/// Where the pinned version of a module lies.
fn module(name: &str) -> Result<PathBuf> {
    let output = Command::new("go")
        .current_dir(harness::workspace_root().join("tests/controlplane"))
        .env("GOTOOLCHAIN", "local")
        .env("GOWORK", "off")
        .args(["list", "-mod=readonly", "-m", "-f", "{{.Dir}}", name])
        .output()
        .context("go list")?;
    ensure!(output.status.success(), "go list -m {name}");
    Ok(PathBuf::from(String::from_utf8(output.stdout)?.trim()))
}

fn files(folder: &Path, into: &mut Vec<PathBuf>) -> Result<()> {
    let entries = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    for entry in entries {
        let path = entry?.path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if path.is_dir() {
            files(&path, into)?;
        } else if name.ends_with("_test.go") || name.starts_with("validatingadmissionpolicy") {
            into.push(path);
        }
    }
    Ok(())
}

/// The string literals of a Go file.
fn literals(source: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = source;
    while let Some(at) = rest.find(['"', '`', '\'', '/']) {
        let (mark, after) = rest[at..].split_at(1);
        rest = match mark {
            "/" if after.starts_with('/') => after.split_once('\n').map_or("", |(_, rest)| rest),
            "/" if after.starts_with('*') => after.split_once("*/").map_or("", |(_, rest)| rest),
            "/" => after,
            "`" => {
                let (text, rest) = after.split_once('`').unwrap_or((after, ""));
                found.push(text.to_owned());
                rest
            }
            quote => {
                let mut escaped = false;
                let end = after.find(|c: char| {
                    let ends = !escaped && c.to_string() == quote;
                    escaped = c == '\\' && !escaped;
                    ends
                });
                let end = end.unwrap_or(after.len());
                let text = after[..end].replace("\\\"", "\"").replace("\\\\", "\\");
                if quote == "\"" {
                    found.push(text);
                }
                after.get(end + 1..).unwrap_or("")
            }
        };
    }
    found
}

/// Whether a text may be an expression: the API server decides.
fn is_candidate(text: &str) -> bool {
    let marks = ["(", "==", "!=", "<", ">", "&&", "||", " in ", " + "];
    (3..LENGTH_MAX).contains(&text.len())
        && marks.iter().any(|mark| text.contains(mark))
        && !text.contains('%')
        && !text.contains(['\n', '\u{0}'])
}

/// Where the literals of an expression of CEL stand: texts and numbers.
fn spots(expression: &str) -> Vec<std::ops::Range<usize>> {
    let bytes = expression.as_bytes();
    let mut spots = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let start = at;
        match bytes[at] {
            quote @ (b'"' | b'\'') => {
                at += 1;
                while at < bytes.len() && bytes[at] != quote {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                at = (at + 1).min(bytes.len());
                // A raw text or bytes have a letter before the quote.
                let is_plain = start == 0 || !bytes[start - 1].is_ascii_alphanumeric();
                if is_plain && expression.is_char_boundary(at) {
                    spots.push(start..at);
                }
            }
            b'0'..=b'9' => {
                while at < bytes.len() && (bytes[at].is_ascii_alphanumeric() || bytes[at] == b'.') {
                    at += 1;
                }
                let is_plain = start == 0
                    || !(bytes[start - 1].is_ascii_alphanumeric()
                        || b"_.".contains(&bytes[start - 1]));
                if is_plain {
                    spots.push(start..at);
                }
            }
            _ => at += 1,
        }
    }
    spots
}

/// Upstream's expressions, and variations of them.
fn expressions() -> Result<Vec<String>> {
    let mut all = std::collections::BTreeSet::new();
    for (name, folder) in SOURCES {
        let mut paths = Vec::new();
        files(&module(name)?.join(folder), &mut paths)?;
        for path in paths {
            let source = std::fs::read(&path).with_context(|| path.display().to_string())?;
            for text in literals(&String::from_utf8_lossy(&source)) {
                if is_candidate(&text) {
                    // Rules of custom resources call the object so.
                    let text = text
                        .replace("oldSelf", "oldObject")
                        .replace("self", "object");
                    all.insert(text);
                }
            }
        }
    }
    let mut varied = Vec::new();
    for (number, text) in all.iter().enumerate() {
        let spots = spots(text);
        for turn in 0..VARIATIONS.min(spots.len()) {
            // Each spot and each field has its turn; the same in every run.
            let spot = &spots[(number + turn) % spots.len()];
            let field = FIELDS[(number * VARIATIONS + turn) % FIELDS.len()];
            varied.push(format!(
                "{}{field}{}",
                &text[..spot.start],
                &text[spot.end..]
            ));
        }
    }
    let mut all = Vec::from_iter(all);
    all.extend(varied);
    all.sort();
    all.dedup();
    Ok(all)
}

fn policy(name: &str, expression: &str) -> Result<ValidatingAdmissionPolicy> {
    Ok(serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Ignore",
            "matchConstraints": {"resourceRules": [{
                "apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["deployments"], "operations": ["CREATE"],
            }]},
            "validations": [{"expression": expression}],
        },
    }))?)
}

/// Makes a policy of each expression that the API server takes; one that is neither true nor false is put
/// into a list. Policy → expression.
async fn make(client: &Client, expressions: Vec<String>) -> Result<BTreeMap<String, String>> {
    let api: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
    let made = stream::iter(expressions.into_iter().enumerate())
        .map(|(number, expression)| {
            let api = api.clone();
            async move {
                let name = format!("policy-{number}");
                for form in [expression.clone(), format!("[{expression}].size() == 1")] {
                    match api
                        .create(&PostParams::default(), &policy(&name, &form)?)
                        .await
                    {
                        Ok(_) => return anyhow::Ok(Some((name, form))),
                        Err(kube::Error::Api(status)) if (400..500).contains(&status.code) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
                Ok(None)
            }
        })
        .buffer_unordered(AT_ONCE)
        .collect::<Vec<_>>()
        .await;
    let made = made.into_iter().collect::<Result<Vec<_>>>()?;
    Ok(made.into_iter().flatten().collect())
}

/// Policy → warnings, once every policy that was made is checked as it is now. Others that the cluster has
/// are left out.
async fn checked(
    client: &Client,
    made: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, Value>> {
    let api: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
    until(
        "all policies are checked",
        LIMIT,
        Duration::from_secs(1),
        || async {
            let all = api.list(&ListParams::default()).await?.items;
            let mut warnings = BTreeMap::new();
            for policy in all {
                let name = policy.metadata.name.unwrap_or_default();
                let status = policy.status.unwrap_or_default();
                let is_new = status.observed_generation == policy.metadata.generation;
                if is_new && made.contains_key(&name) {
                    let found = status
                        .type_checking
                        .and_then(|checking| checking.expression_warnings);
                    warnings.insert(name, serde_json::to_value(found.unwrap_or_default())?);
                }
            }
            let count = made.len();
            ensure!(warnings.len() == count, "{} of {count}", warnings.len());
            Ok(Some(warnings))
        },
    )
    .await
}

/// The number in a type's name is left out: it is the time of upstream's check.
fn plain(warnings: &Value) -> String {
    let text = warnings.to_string();
    let mut plain = String::new();
    let mut rest = text.as_str();
    while let Some(at) = rest.find("Deployment") {
        let (before, after) = rest.split_at(at + "Deployment".len());
        plain.push_str(before);
        rest = after.trim_start_matches(|c: char| c.is_ascii_digit());
    }
    plain.push_str(rest);
    plain
}

#[test]
#[ignore = "minutes: cargo parity"]
fn warnings_of_upstream_s_expressions_are_those_of_kube_controller_manager() {
    let _alone = alone();
    run_test(async {
        let control_plane = ControlPlane::builder().nodes(0).start().await?;
        let client = control_plane.client().await?;
        let candidates = expressions()?;
        let found = candidates.len();
        let made = make(&client, candidates).await?;
        ensure!(
            made.len() > 500,
            "only {} of {found} are stored",
            made.len()
        );
        let begun = Instant::now();
        let mut kcm = control_plane
            .start_kcm(&[
                CONTROLLERS,
                "--leader-elect=false",
                "--kube-api-qps=5000",
                "--kube-api-burst=5000",
            ])
            .await?;
        let theirs = checked(&client, &made).await.context("upstream")?;
        kcm.process().kill();
        let upstream_took = begun.elapsed();
        // A new generation is checked again.
        let api: Api<ValidatingAdmissionPolicy> = Api::all(client.clone());
        let patch = json!({"spec": {"failurePolicy": "Fail"}});
        let changed = stream::iter(made.keys())
            .map(|name| {
                let (api, patch) = (&api, &patch);
                async move {
                    api.patch(name, &PatchParams::default(), &Patch::Merge(patch))
                        .await
                }
            })
            .buffer_unordered(AT_ONCE)
            .collect::<Vec<_>>()
            .await;
        changed.into_iter().collect::<Result<Vec<_>, _>>()?;
        let begun = Instant::now();
        let unlimited = ["--kube-api-qps=5000", "--kube-api-burst=5000"];
        let flags = [&[CONTROLLERS][..], &unlimited].concat();
        let fleet = fleet_of(&control_plane, &flags).await?;
        let mut replicas = fleet.start_all(REPLICAS).await?;
        let ours = checked(&client, &made).await.context("Manifold")?;
        let our_time = begun.elapsed();
        all_end_well(&mut replicas).await?;

        let (mut equal, mut warned, mut unsaid) = (0, 0, 0);
        let (mut invented, mut different) = (Vec::new(), Vec::new());
        for (name, expression) in &made {
            let [theirs, ours] = [&theirs[name], &ours[name]].map(plain);
            warned += usize::from(theirs != "[]");
            if theirs == ours {
                equal += 1;
                continue;
            }
            let shown = format!("{expression}\n  theirs {theirs}\n  ours   {ours}");
            match (theirs.as_str(), ours.as_str()) {
                ("[]", _) => invented.push(shown),
                (_, "[]") => {
                    unsaid += 1;
                    different.push(shown);
                }
                _ => different.push(shown),
            }
        }
        for shown in different.iter().take(SHOWN) {
            println!("policies: {shown}");
        }
        println!(
            "policies: {found} candidates, {} stored, {warned} with warnings of upstream's; {equal} verdicts equal, \
             {unsaid} warnings left unsaid, {} in other words, {} invented; checked in {upstream_took:.1?} by \
             upstream, in {our_time:.1?} by {REPLICAS} replicas with their start",
            made.len(),
            different.len() - unsaid,
            invented.len(),
        );
        ensure!(
            invented.is_empty(),
            "false warnings:\n{}",
            invented.join("\n")
        );
        ensure!(
            equal * 100 >= made.len() * EQUAL_PERCENT,
            "only {equal} of {} verdicts are equal:\n{}",
            made.len(),
            different.join("\n")
        );
        Ok(())
    });
}

#[test]
fn literals_of_go_and_of_cel_are_found() {
    let source =
        "a := \"x == \\\"y\\\"\" // \"no\"\nb := `size(z) > 1` /* `no` */\nc := 'q'\nd := \"'\"";
    assert_eq!(literals(source), ["x == \"y\"", "size(z) > 1", "'"]);
    let expression = "object.a1 == 'x' && [1, 2.5].size() > 0 && b'raw' != \"y\"";
    let found: Vec<&str> = (spots(expression).into_iter())
        .map(|spot| &expression[spot])
        .collect();
    assert_eq!(found, ["'x'", "1", "2.5", "0", "\"y\""]);
}
