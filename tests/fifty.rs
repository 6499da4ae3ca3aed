//! Fifty replicas and 1,024 ranges: what a large fleet costs at rest, and how long a start, a join, an
//! orderly stop and a crash take.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::{ControlPlane, Metrics, Replica, run_test, until};
use kube::Client;

use crate::support::{
    POLL, all_end_well, alone, from_environment, loads, metrics_of, moved, owners,
};

/// Fewer by `FIFTY_REPLICAS`, on a machine on which fifty processes starve.
const REPLICAS: usize = 50;
const RANGES: u32 = 1024;
/// Fifty processes start on two processors.
const STARTED: Duration = Duration::from_secs(300);
/// Of one replica that comes or goes.
const CHANGED: Duration = Duration::from_secs(60);
/// After a change: Leases are read, caches filled.
const SETTLED: Duration = Duration::from_secs(30);
const MEASURED: Duration = Duration::from_secs(60);
/// What a replica at rest may cost: processors, and requests a second.
const PROCESSORS: f64 = 0.002;
const REQUESTS: f64 = 1.2;

/// Waits until the Leases give all ranges to this number of replicas, evenly; returns them, and after how
/// long.
async fn even(
    client: &Client,
    (what, count): (&str, usize),
    since: Instant,
    limit: Duration,
) -> Result<(crate::support::Owners, Duration)> {
    let shared = until(what, limit, POLL * 2, || async {
        let owners = owners(client).await?;
        let shares = loads(&owners);
        let (least, most) = (shares.values().min(), shares.values().max());
        ensure!(
            !shares.contains_key("") && shares.len() == count && owners.len() == RANGES as usize,
            "{} ranges of {} owners, {} of nobody",
            owners.len(),
            shares.len(),
            shares.get("").unwrap_or(&0)
        );
        ensure!(
            most.zip(least)
                .is_some_and(|(most, least)| most - least <= 1)
        );
        Ok(Some(owners))
    })
    .await?;
    let took = since.elapsed();
    println!("fifty: {what} after {:.1} s", took.as_secs_f64());
    Ok((shared, took))
}

fn total(all: &[Metrics], name: &str) -> Result<f64> {
    let of_each = all.iter().map(|one| one.sum(name, &[]));
    of_each
        .sum::<Option<f64>>()
        .with_context(|| format!("no {name}"))
}

async fn server_time(client: &Client) -> Result<f64> {
    let request = http::Request::get("/metrics").body(Vec::new())?;
    let metrics = Metrics::parse(&client.request_text(request).await?);
    metrics
        .sum("process_cpu_seconds_total", &[])
        .context("the API server's processor time")
}

/// Prints what each replica costs while nothing happens.
async fn at_rest(client: &Client, replicas: &[Replica]) -> Result<(f64, f64)> {
    tokio::time::sleep(SETTLED).await;
    let (before, server_before) = (metrics_of(replicas).await?, server_time(client).await?);
    let began = Instant::now();
    tokio::time::sleep(MEASURED).await;
    let (after, server_after) = (metrics_of(replicas).await?, server_time(client).await?);
    let (took, count) = (began.elapsed().as_secs_f64(), replicas.len() as f64);
    let each = |name: &str| -> Result<f64> {
        Ok((total(&after, name)? - total(&before, name)?) / took / count)
    };
    let (processors, requests) = (
        each("process_cpu_seconds_total")?,
        each("rest_client_requests_total")?,
    );
    for method in ["GET", "PATCH", "PUT", "POST"] {
        let count = |all: &[Metrics]| -> f64 {
            let of_each = all.iter().map(|one| {
                let named = [("method", method)];
                one.sum("rest_client_requests_total", &named).unwrap_or(0.0)
            });
            of_each.sum()
        };
        let rate = (count(&after) - count(&before)) / took / replicas.len() as f64;
        println!("fifty: of these {rate:.2} requests a second are {method}");
    }
    let memory = total(&after, "process_resident_memory_bytes")? / count / f64::from(1 << 20);
    println!(
        "fifty: at rest each replica uses {processors:.4} processors, {requests:.2} requests a second, {memory:.1} MiB; \
         the API server {:.3} processors",
        (server_after - server_before) / took
    );
    Ok((processors, requests))
}

#[test]
#[ignore = "six minutes, and over its bounds: a command of its own"]
fn fifty_replicas_share_a_thousand_ranges_and_cost_little_at_rest() {
    let _alone = alone();
    run_test(async {
        let count = from_environment("FIFTY_REPLICAS", REPLICAS)?;
        let control_plane = ControlPlane::builder().start().await?;
        let client = control_plane.client().await?;
        let fleet = control_plane
            .fleet()
            .ranges(RANGES)
            .arg("--use-service-account-credentials=true")
            .build()
            .await?;
        let began = Instant::now();
        let mut replicas = Vec::new();
        for index in 0..count {
            replicas.push(fleet.start(index)?);
        }
        for replica in &mut replicas {
            replica.wait_ready(STARTED).await?;
        }
        println!(
            "fifty: all are ready after {:.1} s",
            began.elapsed().as_secs_f64()
        );
        let what = ("all share the ranges", count);
        even(&client, what, began, STARTED).await?;
        let (processors, requests) = at_rest(&client, &replicas).await?;
        let (before, _) = even(&client, ("nothing has moved", count), began, CHANGED).await?;

        let mut one_more = fleet.start(count)?;
        one_more.wait_ready(CHANGED).await?;
        let what = ("after a join all share", count + 1);
        let (after, _) = even(&client, what, Instant::now(), CHANGED).await?;
        println!("fifty: {} ranges moved", moved(&before, &after)?.len());

        let before = after;
        let since = Instant::now();
        one_more.ask_to_end()?;
        let what = ("after an orderly stop the others share", count);
        let (after, _) = even(&client, what, since, CHANGED).await?;
        println!("fifty: {} ranges moved", moved(&before, &after)?.len());

        let before = after;
        let since = Instant::now();
        let mut killed = replicas.pop().context("no replica")?;
        killed.kill();
        let what = ("after a SIGKILL the others share", count - 1);
        let (after, _) = even(&client, what, since, CHANGED).await?;
        println!("fifty: {} ranges moved", moved(&before, &after)?.len());

        for replica in &mut replicas {
            replica.check()?;
        }
        all_end_well(&mut replicas).await?;
        ensure!(
            processors <= PROCESSORS && requests <= REQUESTS,
            "{processors:.4} processors of {PROCESSORS}, {requests:.2} requests a second of {REQUESTS}"
        );
        Ok(())
    });
}
