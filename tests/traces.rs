//! A rollout as a real Jaeger shows it: one search by the Deployment finds its reconciles, those of its
//! ReplicaSets and the creations of its pods, on whichever replica they ran, a kill in the middle included.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use harness::jaeger::{Span, Trace, draw, tag};
use harness::{ControlPlane, Jaeger, run_test, until};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ResourceQuota;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;

use crate::support::{PATIENCE, POLL, all_end_well, beside, complete, create, deployment};

const SERVICE: &str = "manifold";
const DEPLOYMENTS: usize = 6;
const PODS: i32 = 3;
/// Spans are exported within this.
const DELAY_MS: &str = "200";
const PICTURE: &str = "docs/trace.svg";
const DEPLOYMENT: &str = "reconcile deployment-controller";
const REPLICASET: &str = "reconcile replicaset-controller";

fn name(index: usize) -> String {
    format!("web-{index}")
}

type Place = (String, String);

/// Spans of several traces, and how they are connected.
struct Graph<'a> {
    spans: BTreeMap<Place, (&'a Trace, &'a Span)>,
}

impl<'a> Graph<'a> {
    fn of(traces: &'a [Trace]) -> Self {
        let spans = traces.iter().flat_map(|trace| {
            let of_trace = trace.spans.iter();
            of_trace.map(move |span| (span.place(), (trace, span)))
        });
        Self {
            spans: spans.collect(),
        }
    }

    /// The topmost parent of a span.
    fn top(&self, span: &'a Span) -> &'a Span {
        let mut top = span;
        while let Some((_, above)) = top.parent().and_then(|parent| self.spans.get(&parent)) {
            top = above;
        }
        top
    }

    /// The reconciles whose writes a span is linked to, with the trace that each is of.
    fn causes(&self, span: &Span) -> Vec<(&'a Trace, &'a Span)> {
        let linked = span.links().filter_map(|place| self.spans.get(&place));
        linked
            .map(|(trace, written)| (*trace, self.top(written)))
            .collect()
    }

    /// From a reconcile of the Deployment by a write of its ReplicaSet to the reconciles of that, until one
    /// creates a pod: the replicas of the first and the last, for each that is whole.
    fn chains(&self) -> Vec<(String, String)> {
        let all = self.spans.values();
        let of_pods =
            all.filter(|(_, span)| span.name == "written" && span.tag("k8s.resource") == "pods");
        let creators: BTreeSet<Place> = of_pods.map(|(_, span)| self.top(span).place()).collect();
        let mut chains = Vec::new();
        for (trace, span) in creators.iter().filter_map(|place| self.spans.get(place)) {
            let mut seen = BTreeSet::new();
            let mut open = vec![*span];
            while let Some(span) = open.pop().filter(|_| span.name == REPLICASET) {
                for (of, cause) in self.causes(span) {
                    if cause.name == DEPLOYMENT {
                        chains.push((of.replica(cause), trace.replica(span)));
                    } else if seen.insert(cause.place()) {
                        open.push(cause);
                    }
                }
            }
        }
        chains
    }
}

/// The traces of a Deployment: one search.
async fn of_deployment(jaeger: &Jaeger, namespace: &str, name: &str) -> Result<Vec<Trace>> {
    let root = format!("Deployment {namespace}/{name}");
    jaeger.search(SERVICE, "", &[("root", &root)]).await
}

/// Waits until Jaeger has a whole chain of a Deployment at a generation.
async fn whole(
    jaeger: &Jaeger,
    namespace: &str,
    name: &str,
) -> Result<(Vec<Trace>, Vec<(String, String)>)> {
    let what = format!("Jaeger shows {name} from the Deployment to its pods");
    until(&what, PATIENCE, POLL, || async {
        let traces = of_deployment(jaeger, namespace, name).await?;
        let chains = Graph::of(&traces).chains();
        ensure!(
            !chains.is_empty(),
            "{} traces, none whole: {:?}",
            traces.len(),
            operations(&traces)
        );
        Ok(Some((traces, chains)))
    })
    .await
}

fn operations(traces: &[Trace]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for span in traces.iter().flat_map(|trace| &trace.spans) {
        *counts.entry(&*span.name).or_default() += 1;
    }
    counts
}

#[test]
fn one_search_in_jaeger_shows_a_rollout_across_replicas_and_a_kill() {
    let _beside = beside();
    run_test(async {
        let begin = Instant::now();
        let control_plane = ControlPlane::builder().start().await?;
        let jaeger = Jaeger::start(control_plane.dir()).await?;
        let fleet = control_plane
            .fleet()
            .env("OTEL_EXPORTER_OTLP_ENDPOINT", jaeger.grpc())
            .env("OTEL_TRACES_SAMPLER_ARG", "1")
            .env("OTEL_BSP_SCHEDULE_DELAY", DELAY_MS)
            .env("OTEL_BSP_MAX_QUEUE_SIZE", "65536")
            .build()
            .await?;
        let mut replicas = fleet.start_all(3).await?;
        let namespace = control_plane.namespace("traces").await?;
        let api: Api<Deployment> = Api::namespaced(control_plane.client().await?, &namespace);
        for index in 0..DEPLOYMENTS {
            let pods = u32::try_from(PODS)?;
            create(&api, deployment(&name(index), pods)).await?;
        }
        let names: Vec<String> = (0..DEPLOYMENTS).map(name).collect();
        try_join_all(names.iter().map(|name| complete(&api, name, PODS))).await?;
        first_rollout(&jaeger, &namespace, &names).await?;

        // A kill in the middle of the next one.
        for name in &names {
            let image = json!({"spec": {"template": {"spec": {"containers": [
                {"name": "app", "image": "example/app:2"}
            ]}}}});
            api.patch(name, &PatchParams::default(), &Patch::Strategic(image))
                .await?;
        }
        let killed = replicas.remove(1);
        let victim = killed.name().to_owned();
        drop(killed);
        try_join_all(names.iter().map(|name| complete(&api, name, PODS))).await?;
        let mut across = 0;
        for name in &names {
            let (traces, chains) = whole(&jaeger, &namespace, name).await?;
            across += chains.iter().filter(|(one, other)| one != other).count();
            let graph = Graph::of(&traces);
            ensure!(
                graph.spans.values().any(|(_, span)| {
                    span.name == DEPLOYMENT && span.tag("root.generation") == "2"
                }),
                "{name}: its second rollout is in no trace"
            );
        }
        ensure!(
            across > 0,
            "no Deployment and ReplicaSet had different owners"
        );
        takeovers(&jaeger, &victim).await?;

        // One that joins gets its share by handoffs.
        let mut joined = fleet.start(3)?;
        joined.wait_ready(PATIENCE).await?;
        replicas.push(joined);
        handoffs(&jaeger).await?;
        failures(&control_plane, &jaeger).await?;
        all_end_well(&mut replicas).await?;
        println!(
            "traces: {across} chains across replicas; {:.1} s",
            begin.elapsed().as_secs_f64()
        );
        Ok(())
    });
}

/// What the spans of a rollout say.
async fn first_rollout(jaeger: &Jaeger, namespace: &str, names: &[String]) -> Result<()> {
    let mut pictures = Vec::new();
    for name in names {
        let (traces, chains) = whole(jaeger, namespace, name).await?;
        for trace in &traces {
            let process = trace.processes.values().next().context("a process")?;
            ensure!(process.service_name == SERVICE, "{}", process.service_name);
            ensure!(
                !tag(&process.tags, "service.version").is_empty(),
                "no version"
            );
        }
        let spans: Vec<&Span> = traces.iter().flat_map(|trace| &trace.spans).collect();
        let create = spans.iter().find(|span| span.name == "create pods");
        let create = create.context("no call that creates a pod")?;
        let said = [
            "span.kind",
            "http.request.method",
            "k8s.namespace.name",
            "http.response.status_code",
        ]
        .map(|key| create.tag(key));
        ensure!(said == ["client", "POST", namespace, "201"], "{said:?}");
        for stage in ["queue", "ask", "plan", "verify", "apply", "learn"] {
            ensure!(
                spans.iter().any(|span| span.name == stage),
                "no span {stage}"
            );
        }
        let woken = spans.iter().any(|span| {
            span.name == REPLICASET && span.tag("woken_by").starts_with("replicasets.apps ")
        });
        ensure!(
            woken,
            "no reconcile of a ReplicaSet says that the ReplicaSet woke it"
        );
        if let Some((one, other)) = chains.iter().find(|(one, other)| one != other) {
            let title = format!("Deployment {name}, {PODS} pods: from {one} to {other}");
            pictures.extend(traces.first().map(|trace| draw(trace, &title)));
        }
    }
    ensure!(!pictures.is_empty(), "no rollout went across replicas");
    until("every span has its parent", PATIENCE, POLL, || async {
        let traces = of_deployment(jaeger, namespace, &names[0]).await?;
        for span in traces.iter().flat_map(|trace| &trace.spans) {
            // Others are about times: an event is sent after the reconcile that it is of.
            let said = span.warnings.iter().flatten();
            let mut wrong =
                said.filter(|one| one.contains("invalid parent") || one.contains("duplicate"));
            ensure!(wrong.next().is_none(), "{}: {:?}", span.name, span.warnings);
        }
        Ok(Some(()))
    })
    .await?;
    if std::env::var_os("UPDATE_GENERATED").is_some() {
        std::fs::write(harness::workspace_root().join(PICTURE), &pictures[0])?;
    }
    Ok(())
}

/// Waits for traces in which these hold.
async fn shown<T>(
    jaeger: &Jaeger,
    operation: &str,
    check: impl Fn(&Graph<'_>) -> Result<T>,
) -> Result<T> {
    let what = format!("Jaeger shows {operation}");
    until(&what, PATIENCE, POLL, || async {
        let traces = jaeger.search(SERVICE, operation, &[]).await?;
        check(&Graph::of(&traces)).map(Some)
    })
    .await
}

/// The victim's ranges were taken over: spans below that of its eviction.
async fn takeovers(jaeger: &Jaeger, victim: &str) -> Result<()> {
    let replicas = shown(jaeger, "takeover", |graph| {
        let mut replicas = BTreeSet::new();
        for (trace, span) in graph.spans.values() {
            if span.name != "takeover" || !span.tag("from").starts_with(victim) {
                continue;
            }
            let above = graph.top(span);
            ensure!(
                above.name == "evict replica" && above.is_error(),
                "{}",
                above.name
            );
            replicas.insert(trace.replica(span));
        }
        ensure!(replicas.len() == 2, "of {replicas:?}");
        Ok(replicas)
    })
    .await?;
    println!("traces: the ranges of {victim} were taken over by {replicas:?}");
    Ok(())
}

/// Both sides of a handoff, with the caller's span as the parent of the other's.
async fn handoffs(jaeger: &Jaeger) -> Result<()> {
    let count = shown(jaeger, "receive Handoff", |graph| {
        let mut count = 0;
        for (trace, span) in graph.spans.values() {
            if span.name != "receive Handoff" {
                continue;
            }
            let parent = span.parent().and_then(|place| graph.spans.get(&place));
            let (of, sent) = parent.context("the sender's span is missing")?;
            ensure!(sent.name == "send Handoff", "{}", sent.name);
            ensure!(of.replica(sent) != trace.replica(span), "one replica");
            ensure!(
                graph.top(span).name == "handoff",
                "{}",
                graph.top(span).name
            );
            count += 1;
        }
        ensure!(count > 0, "none");
        let gained = |span: &Span| span.name == "range gained" && graph.top(span).name == "handoff";
        ensure!(
            graph.spans.values().any(|(_, span)| gained(span)),
            "no range was gained"
        );
        Ok(count)
    })
    .await?;
    println!("traces: {count} handoffs with both sides");
    Ok(())
}

/// A quota refuses pods: the call and its reconcile are red.
async fn failures(control_plane: &ControlPlane, jaeger: &Jaeger) -> Result<()> {
    let namespace = control_plane.namespace("refused").await?;
    let client = control_plane.client().await?;
    let quotas: Api<ResourceQuota> = Api::namespaced(client.clone(), &namespace);
    let quota = json!({"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}});
    let quota: ResourceQuota = serde_json::from_value(quota)?;
    quotas.create(&PostParams::default(), &quota).await?;
    until("the quota counts", PATIENCE, POLL, || async {
        let quota = quotas.get("none").await?;
        Ok(quota.status.and_then(|status| status.hard).map(|_| ()))
    })
    .await?;
    let api: Api<Deployment> = Api::namespaced(client, &namespace);
    create(&api, deployment("web", 1)).await?;
    let root = format!("Deployment {namespace}/web");
    let red = until("Jaeger shows the failure", PATIENCE, POLL, || async {
        let tags = [("root", &*root), ("error", "true")];
        let traces = jaeger.search(SERVICE, REPLICASET, &tags).await?;
        let spans = traces.iter().flat_map(|trace| &trace.spans);
        let red: Vec<&Span> = spans.filter(|span| span.is_error()).collect();
        let call = red.iter().find(|span| span.name == "create pods");
        let call = call.context("no red call")?;
        ensure!(
            call.tag("http.response.status_code") == "403",
            "{:?}",
            call.tags
        );
        ensure!(call.tag("error.type") == "Forbidden", "{:?}", call.tags);
        let reconcile = red.iter().find(|span| span.name == REPLICASET);
        let reconcile = reconcile.context("no red reconcile")?;
        let said = reconcile.tag("otel.status_description");
        ensure!(said.contains("exceeded quota"), "{said}");
        Ok(Some(said))
    })
    .await?;
    println!("traces: red: {red}");
    Ok(())
}

/// A collector that is not there costs one warning, and neither the start nor the end of the process.
#[test]
fn a_collector_that_is_not_there_is_one_warning() {
    let _beside = beside();
    run_test(async {
        let control_plane = ControlPlane::builder().start().await?;
        let nowhere = format!("http://127.0.0.1:{}", harness::ports::free()?);
        let fleet = control_plane
            .fleet()
            .env("OTEL_EXPORTER_OTLP_ENDPOINT", nowhere)
            .env("OTEL_TRACES_SAMPLER_ARG", "1")
            .env("OTEL_BSP_SCHEDULE_DELAY", DELAY_MS)
            .env("OTEL_BSP_EXPORT_TIMEOUT", "300")
            .build()
            .await?;
        let mut replicas = fleet.start_all(1).await?;
        let namespace = control_plane.namespace("nowhere").await?;
        let api: Api<Deployment> = Api::namespaced(control_plane.client().await?, &namespace);
        create(&api, deployment("web", 1)).await?;
        complete(&api, "web", 1).await?;
        until("dropped spans are counted", PATIENCE, POLL, || async {
            let metrics = replicas[0].metrics().await?;
            let dropped = metrics.sum(
                "manifold_trace_spans_dropped_total",
                &[("reason", "export_failed")],
            );
            Ok(dropped.filter(|dropped| *dropped > 0.0).map(|_| ()))
        })
        .await?;
        let ending = Instant::now();
        all_end_well(&mut replicas).await?;
        let took = ending.elapsed();
        ensure!(took < Duration::from_secs(8), "the end took {took:?}");
        let log = std::fs::read_to_string(fleet.dir().file("manifold-0.log"))?;
        let warnings = log.lines().filter(|line| line.contains("spans could not"));
        ensure!(warnings.count() == 1, "{log}");
        Ok(())
    });
}

/// Deployments, and pods of each, of one measured turn.
const MEASURED: (usize, i32) = (20, 30);
/// Turns of each kind, in turn, so that what else runs meets both.
const TURNS: usize = 6;

/// Processor time of one replica for the creation of many pods, with and without traces.
#[test]
#[ignore = "minutes: cargo parity"]
fn one_percent_of_traces_costs_little() {
    let _alone = crate::support::alone();
    run_test(async {
        let control_plane = ControlPlane::builder().nodes(8).start().await?;
        let jaeger = Jaeger::start(control_plane.dir()).await?;
        let mut seconds: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for turn in 0..TURNS * 2 {
            let traced = turn % 2 == 1;
            let mut fleet = control_plane.fleet();
            if traced {
                fleet = fleet.env("OTEL_EXPORTER_OTLP_ENDPOINT", jaeger.grpc());
            }
            let fleet = fleet.build().await?;
            let mut replicas = fleet.start_all(1).await?;
            let before = cpu(&replicas[0]).await?;
            let namespace = control_plane.namespace("cost").await?;
            let api: Api<Deployment> = Api::namespaced(control_plane.client().await?, &namespace);
            let names: Vec<String> = (0..MEASURED.0).map(name).collect();
            for name in &names {
                create(&api, deployment(name, u32::try_from(MEASURED.1)?)).await?;
            }
            try_join_all(names.iter().map(|name| complete(&api, name, MEASURED.1))).await?;
            let used = cpu(&replicas[0]).await? - before;
            let kind = if traced { "1 %" } else { "none" };
            println!("traces: turn {turn}: {kind}: {used:.2} s");
            seconds.entry(kind).or_default().push(used);
            // Within this turn: the next replica would have to clear it.
            control_plane
                .kubectl(&["delete", "namespace", &namespace, "--timeout=120s"])
                .await?;
            all_end_well(&mut replicas).await?;
        }
        // The first of each kind is left out: it warms up what both use.
        let mean = |kind: &str| seconds[kind][1..].iter().sum::<f64>() / (TURNS - 1) as f64;
        let more = (mean("1 %") / mean("none") - 1.0) * 100.0;
        println!("traces: processor seconds {seconds:.2?}: {more:+.1} % in the mean");
        Ok(())
    });
}

async fn cpu(replica: &harness::Replica) -> Result<f64> {
    let metrics = replica.metrics().await?;
    metrics
        .sum("process_cpu_seconds_total", &[])
        .context("no process_cpu_seconds_total")
}
