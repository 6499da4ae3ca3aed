//! `kubectl rollout`, `scale` and `set image` against Manifold print what they print against
//! kube-controller-manager, and leave the same behind.
//!
//! One script is run in a namespace of each; the outputs are compared line by line. What differs by
//! nature is evened out: the namespace, the hash in a ReplicaSet's name, and how many steps of a
//! rollout `rollout status` happened to see.

use anyhow::{Context, Result, ensure};
use harness::{ControlPlane, Kcm, run_test, until};
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;

use crate::support::{PATIENCE, POLL, all_end_well, beside, complete, deployment, fleet};

const NAME: &str = "web";
const STATUS: &str = "rollout status deployment/web --timeout=60s";

/// What is run, in turn.
const SCRIPT: &[&str] = &[
    STATUS,
    "annotate deployment/web kubernetes.io/change-cause=first",
    "rollout history deployment/web",
    "set image deployment/web app=example/app:2",
    STATUS,
    "annotate deployment/web kubernetes.io/change-cause=second --overwrite",
    "rollout history deployment/web",
    "rollout history deployment/web --revision=2",
    "rollout undo deployment/web",
    STATUS,
    "rollout history deployment/web",
    "rollout undo deployment/web --to-revision=2",
    STATUS,
    "rollout history deployment/web",
    "rollout undo deployment/web --to-revision=77",
    "rollout pause deployment/web",
    "rollout pause deployment/web",
    "set image deployment/web app=example/app:3",
    "rollout undo deployment/web",
    "rollout restart deployment/web",
    "rollout history deployment/web",
    "rollout resume deployment/web",
    STATUS,
    "rollout history deployment/web",
    "rollout restart deployment/web",
    STATUS,
    "scale deployment/web --replicas=5",
    STATUS,
    "scale deployment/web --current-replicas=4 --replicas=1",
    "get deployment/web -o custom-columns=REVISION:.metadata.annotations.deployment\\.kubernetes\\.io/revision,\
     GENERATION:.metadata.generation,OBSERVED:.status.observedGeneration,REPLICAS:.status.replicas,\
     UPDATED:.status.updatedReplicas,READY:.status.readyReplicas,AVAILABLE:.status.availableReplicas,\
     AVAILABLE-STATUS:.status.conditions[?(@.type=='Available')].status,\
     AVAILABLE-REASON:.status.conditions[?(@.type=='Available')].reason,\
     AVAILABLE-MESSAGE:.status.conditions[?(@.type=='Available')].message,\
     PROGRESSING-STATUS:.status.conditions[?(@.type=='Progressing')].status,\
     PROGRESSING-REASON:.status.conditions[?(@.type=='Progressing')].reason,\
     PROGRESSING-MESSAGE:.status.conditions[?(@.type=='Progressing')].message",
    "get replicasets --sort-by=.metadata.annotations.deployment\\.kubernetes\\.io/revision -o custom-columns=\
     REVISION:.metadata.annotations.deployment\\.kubernetes\\.io/revision,\
     HISTORY:.metadata.annotations.deployment\\.kubernetes\\.io/revision-history,\
     DESIRED:.metadata.annotations.deployment\\.kubernetes\\.io/desired-replicas,\
     MOST:.metadata.annotations.deployment\\.kubernetes\\.io/max-replicas,\
     CAUSE:.metadata.annotations.kubernetes\\.io/change-cause,\
     WANTED:.spec.replicas,REPLICAS:.status.replicas,IMAGE:.spec.template.spec.containers[0].image",
];

/// One command, and what it printed on stdout or complained of.
type Said = (String, String);

/// Runs the script in a namespace of its own; gives the namespace and what was said.
async fn script(control_plane: &ControlPlane) -> Result<(String, Vec<Said>)> {
    let namespace = control_plane.namespace("rollout").await?;
    let api: Api<Deployment> = Api::namespaced(control_plane.client().await?, &namespace);
    control_plane
        .kubectl_with_input(
            &["-n", &namespace, "create"],
            &deployment(NAME, 3).to_string(),
        )
        .await?;
    let mut all = Vec::new();
    let mut wanted = 3;
    for line in SCRIPT {
        let mut args = vec!["-n", namespace.as_str()];
        args.extend(line.split(' ').filter(|word| !word.is_empty()));
        let said = match control_plane.kubectl(&args).await {
            Ok(said) => said,
            Err(error) => format!("{error:#}"),
        };
        if line.contains("--replicas=5") {
            wanted = 5;
        }
        if *line == STATUS {
            // kubectl is content before the last old pod's ReplicaSet is reported so.
            complete(&api, NAME, wanted).await?;
        } else {
            observed(&api).await?;
        }
        all.push(((*line).to_owned(), even(&said, &namespace, line)));
    }
    Ok((namespace, all))
}

/// Waits until the controller has seen the last change.
async fn observed(api: &Api<Deployment>) -> Result<()> {
    until("the Deployment is observed", PATIENCE, POLL, || async {
        let deployment = api.get(NAME).await?;
        let seen = deployment.status.unwrap_or_default().observed_generation;
        Ok((seen == deployment.metadata.generation).then_some(()))
    })
    .await
}

/// Evens out what differs by nature.
fn even(said: &str, namespace: &str, line: &str) -> String {
    let lines = said.lines().filter(|said| {
        // The steps of a rollout that were seen; the last line is its end.
        line != STATUS || !said.starts_with("Waiting for deployment")
    });
    let words = |line: &str| {
        let words = line.split_whitespace().map(|word| {
            let word = word.replace(namespace, "<namespace>");
            if let Some(rest) = word.strip_prefix("pod-template-hash=") {
                let _hash = rest;
                return "pod-template-hash=<hash>".to_owned();
            }
            even_set(&word)
        });
        words.collect::<Vec<_>>().join(" ")
    };
    lines.map(words).collect::<Vec<_>>().join("\n")
}

/// `"web-5d9c7b"` becomes `"web-<hash>"`.
fn even_set(word: &str) -> String {
    let Some(at) = word.find("web-") else {
        return word.to_owned();
    };
    let rest = &word[at + 4..];
    let end = rest
        .find(|c: char| !c.is_ascii_alphanumeric())
        .unwrap_or(rest.len());
    if end == 0 {
        return word.to_owned();
    }
    format!("{}web-<hash>{}", &word[..at], &rest[end..])
}

/// Events of a namespace as `kind reason message`, each once: how often depends on the pace.
async fn events(control_plane: &ControlPlane, namespace: &str) -> Result<Vec<String>> {
    let said = control_plane
        .kubectl(&[
            "-n", namespace, "get", "events", "--no-headers", "-o",
            "custom-columns=SOURCE:.source.component,KIND:.involvedObject.kind,TYPE:.type,REASON:.reason",
        ])
        .await?;
    let mut lines: Vec<String> = said
        .lines()
        .filter(|line| line.contains("Deployment") || line.contains("ReplicaSet"))
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    lines.sort();
    lines.dedup();
    Ok(lines)
}

async fn stop(mut kcm: Kcm) -> Result<()> {
    kcm.process().kill();
    until("kube-controller-manager ends", PATIENCE, POLL, || {
        let ended = kcm.process().exited();
        async move { Ok(ended) }
    })
    .await
    .map(|_| ())
}

#[test]
fn kubectl_rollout_works_as_against_upstream() {
    let _beside = beside();
    run_test(async {
        let control_plane = ControlPlane::builder().start().await?;
        let fleet = fleet(&control_plane).await?;
        let mut replicas = fleet.start_all(2).await?;
        let (namespace, ours) = script(&control_plane).await.context("against Manifold")?;
        let our_events = events(&control_plane, &namespace).await?;
        all_end_well(&mut replicas).await?;

        let kcm = control_plane.start_kcm(&[]).await?;
        let (namespace, theirs) = script(&control_plane)
            .await
            .context("against kube-controller-manager")?;
        let their_events = events(&control_plane, &namespace).await?;
        stop(kcm).await?;

        let mut differing = Vec::new();
        for ((line, ours), (_, theirs)) in ours.iter().zip(&theirs) {
            if ours != theirs {
                differing.push(format!(
                    "$ kubectl {line}\nours:\n{ours}\ntheirs:\n{theirs}"
                ));
            }
        }
        println!(
            "rollout: {} commands, {} answers differ; events {our_events:?}",
            ours.len(),
            differing.len()
        );
        ensure!(differing.is_empty(), "{}", differing.join("\n\n"));
        ensure!(
            our_events == their_events,
            "events: {our_events:?}, theirs {their_events:?}"
        );
        for (line, said) in &ours {
            println!("$ kubectl {line}\n{said}");
        }
        // The answers are those of a script that did what it says.
        let last = &ours.last().context("an answer")?.1;
        ensure!(
            last.lines().count() == 5,
            "four ReplicaSets were expected:\n{last}"
        );
        Ok(())
    });
}
