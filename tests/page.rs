//! The live page in a real Chromium, through `kubectl manifold dashboard`: what it shows, that a kill can be
//! seen in it, that nothing but the page gets through, and that it can be used with keys and read aloud.

mod browser;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::StreamExt as _;
use futures::stream;
use harness::{ControlPlane, Fleet, Replica, run_test, until, workspace_root};
use http_body_util::BodyExt as _;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::process::Child;

use crate::kubectl::user;
use crate::support::{
    PATIENCE, POLL, all_end_well, alone, beside, create, deployment, fleet, metrics_of,
};
use browser::Browser;

const REPLICAS: usize = 3;
const DEPLOYMENTS: usize = 12;
const PICTURE: &str = "docs/page.png";
const PICTURE_BYTES_MAX: usize = 250_000;
/// For the picture of the documents: time before, between and after what happens.
const PICTURE_PAUSE: Duration = Duration::from_secs(20);
/// What the page shows comes every two seconds, keys every six.
const SHOWN: Duration = Duration::from_secs(90);

/// A dashboard, which ends when it is dropped, and its URL.
struct Dashboard {
    _child: Child,
    url: String,
}

impl Dashboard {
    async fn start(control_plane: &ControlPlane, replicas: &[Replica]) -> Result<Self> {
        let roles = workspace_root().join("deploy/rbac/operators.yaml");
        let roles = roles.display().to_string();
        control_plane.kubectl(&["apply", "-f", &roles]).await?;
        let roles = ["view", "manifold:view-debug"];
        let plugin = user(control_plane, "watcher", &roles).await?;
        let servers: Vec<String> = replicas.iter().map(Replica::url).collect();
        let mut child = plugin
            .command(&servers.join(","))
            .args(["dashboard", "--no-open"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .context("kubectl manifold dashboard")?;
        let out = child.stdout.take().context("no output")?;
        let mut lines = BufReader::new(out).lines();
        let url = tokio::time::timeout(PATIENCE, lines.next_line())
            .await
            .context("no URL is printed")??
            .context("the dashboard has ended")?;
        Ok(Self { _child: child, url })
    }

    fn address(&self) -> Result<SocketAddr> {
        let host = self.url.strip_prefix("http://").context("no http")?;
        let address = host.split('/').next().unwrap_or_default();
        Ok(address.parse()?)
    }

    /// The status of an answer to a request that no browser sends.
    async fn answers(&self, method: &str, path: &str, headers: &str) -> Result<String> {
        let mut stream = TcpStream::connect(self.address()?).await?;
        let request = format!("{method} {path} HTTP/1.1\r\n{headers}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let status = answer.split(' ').nth(1).unwrap_or_default();
        Ok(status.to_owned())
    }

    /// Nothing but the page gets through, and nobody but who was given the URL.
    async fn is_closed(&self) -> Result<()> {
        let own = format!("Host: {}", self.address()?);
        let port = self.address()?.port();
        let path = self.url.splitn(4, '/').nth(3).unwrap_or_default();
        let (page, word) = (
            format!("/{path}"),
            path.split('/').next().unwrap_or_default(),
        );
        let evil = format!("Host: evil.example:{port}");
        let foreign = format!("{own}\r\nOrigin: http://evil.example");
        let cross = format!("{own}\r\nSec-Fetch-Site: cross-site");
        let (moves, metrics) = (
            format!("/{word}/debug/move?range=1&to=x"),
            format!("/{word}/metrics"),
        );
        for (method, path, headers, expected) in [
            ("GET", &*page, &own, "200"),
            ("GET", &*page, &evil, "403"),
            ("GET", &*page, &foreign, "403"),
            ("GET", &*page, &cross, "403"),
            ("POST", &*page, &own, "405"),
            ("GET", &*moves, &own, "404"),
            ("GET", &*metrics, &own, "404"),
            ("GET", "/debug/page/", &own, "404"),
        ] {
            let status = self.answers(method, path, headers).await?;
            ensure!(
                status == expected,
                "{method} {path} {headers}: {status}, not {expected}"
            );
        }
        Ok(())
    }
}

/// Waits until an expression in the page is true.
async fn shows(browser: &mut Browser, what: &str, expression: &str) -> Result<()> {
    let begun = Instant::now();
    loop {
        if browser.value(expression).await? == json!(true) {
            println!("page: {what} after {:.1?}", begun.elapsed());
            return Ok(());
        }
        if begun.elapsed() > SHOWN {
            let text = browser.value("document.body.innerText").await?;
            anyhow::bail!("{what} is not shown: {expression}\n{text}");
        }
        tokio::time::sleep(POLL * 2).await;
    }
}

/// The colours at the right edge of the picture, the most frequent first.
const EDGE: &str = "(() => {
  const map = document.getElementById('map'), context = map.getContext('2d');
  const line = context.getImageData(map.width - 5, 0, 1, map.height).data, colors = {};
  for (let at = 0; at < line.length; at += 4) {
    const color = line.slice(at, at + 3).join();
    colors[color] = (colors[color] || 0) + 1;
  }
  return Object.entries(colors).filter(([, count]) => count > map.height / 20).length;
})()";

/// Two columns of the picture have an owner of every range: what changes from here on is seen in it. Within
/// the first column the owners are written over by those who follow them.
const RECORDED: &str =
    "[...map.columns.values()].filter((column) => column.owner.every((id) => id)).length >= 2";

/// The state of a replica in the table.
fn state_of(name: &str) -> String {
    format!(
        "[...document.querySelectorAll('#replicas tbody tr')].find((row) => \
         row.cells[0].textContent === '{name}')?.cells[1].textContent || ''"
    )
}

async fn apply(control_plane: &ControlPlane, namespace: &str, object: &Value) -> Result<()> {
    let args = ["apply", "-n", namespace];
    control_plane
        .kubectl_with_input(&args, &object.to_string())
        .await?;
    Ok(())
}

/// Deployments that are scaled up, one of them more than its quota admits, and an autoscaler.
async fn work(control_plane: &ControlPlane) -> Result<String> {
    let namespace = control_plane.namespace("page").await?;
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"},
        "spec": {"hard": {"pods": "40"}},
    });
    apply(control_plane, &namespace, &quota).await?;
    let hard = "jsonpath={.status.hard.pods}";
    let hard = ["-n", &namespace, "get", "quota", "few", "-o", hard];
    until("the quota is in force", PATIENCE, POLL, || async {
        Ok((control_plane.kubectl(&hard).await? == "40").then_some(()))
    })
    .await?;
    let account = ["-n", &namespace, "get", "serviceaccount", "default"];
    until("there is an account", PATIENCE, POLL, || async {
        Ok(control_plane.kubectl(&account).await.ok())
    })
    .await?;
    let deployments: Api<Deployment> = Api::namespaced(control_plane.client().await?, &namespace);
    for index in 0..DEPLOYMENTS {
        create(&deployments, deployment(&format!("web-{index}"), 3)).await?;
    }
    create(&deployments, deployment("too-many", 100)).await?;
    let scaler = json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "web"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web-0"},
            "minReplicas": 1, "maxReplicas": 5,
            "metrics": [{"type": "Resource", "resource": {
                "name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50},
            }}],
        },
    });
    apply(control_plane, &namespace, &scaler).await?;
    Ok(namespace)
}

/// Scales for as long as it is not dropped, so that there is something to see.
async fn unrest(control_plane: &ControlPlane, namespace: &str) -> Result<()> {
    for round in 0_usize.. {
        let name = format!("deployment/web-{}", round % DEPLOYMENTS);
        let replicas = format!("--replicas={}", 1 + round % 3);
        control_plane
            .kubectl(&["-n", namespace, "scale", &name, &replicas])
            .await?;
        tokio::time::sleep(POLL * 6).await;
    }
    Ok(())
}

/// Keys, labels, contrasts, in both schemes and both widths; pictures of each.
async fn can_be_used(browser: &mut Browser, dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir)?;
    let axe = std::env::var_os("MANIFOLD_AXE").map(std::fs::read_to_string);
    for (width, scheme) in [
        (1280, "dark"),
        (390, "light"),
        (390, "dark"),
        (1280, "light"),
    ] {
        browser.resize(width, 900, scheme).await?;
        let frame = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))";
        browser.value(frame).await?;
        let wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth";
        let beyond = browser.value(wide).await?;
        ensure!(beyond == json!(0), "{width}: {beyond} pixels too wide");
        let wrong = browser.value(include_str!("page/checks.js")).await?;
        ensure!(wrong == json!([]), "{width} {scheme}: {wrong:#}");
        if let Some(axe) = &axe {
            let source = axe
                .as_ref()
                .map_err(|why| anyhow::anyhow!("MANIFOLD_AXE: {why}"))?;
            browser.value(&format!("{source}; 1")).await?;
            let violations = "axe.run().then((found) => found.violations.map((one) => \
                              `${one.id}: ${one.nodes.map((node) => node.html).join(' ').slice(0, 300)}`))";
            let found = browser.value(violations).await?;
            ensure!(found == json!([]), "{width} {scheme}: axe: {found:#}");
        }
        let picture = browser.picture(width, 2000).await?;
        std::fs::write(dir.join(format!("page-{width}-{scheme}.png")), picture)?;
    }
    println!(
        "page: 1280 and 390 pixels in both schemes; pictures in {}; axe-core {}",
        dir.display(),
        match axe {
            Some(_) => "finds nothing",
            None => "was not asked: MANIFOLD_AXE=axe.min.js",
        }
    );
    Ok(())
}

/// By keys alone: a cell of the picture, a failing key's timeline, a rollout and an autoscaler.
async fn is_read(browser: &mut Browser, namespace: &str) -> Result<()> {
    browser
        .value("document.getElementById('map').focus()")
        .await?;
    browser.press("End", 35).await?;
    browser.press("ArrowDown", 40).await?;
    let cell =
        "/^Range \\d+ at .*: manifold-\\d, work/.test(document.getElementById('cell').textContent)";
    shows(browser, "a cell", cell).await?;
    let failing = "[...document.querySelectorAll('#unhappy tbody tr')].find((row) => \
                   row.textContent.includes('quota') && row.textContent.includes('/few'))";
    shows(
        browser,
        "a failing key with its quota",
        &format!("!!{failing}"),
    )
    .await?;
    browser
        .value(&format!("{failing}.querySelector('button').focus()"))
        .await?;
    browser.press("Enter", 13).await?;
    let steps = "['woken', 'queued', 'planned', 'failed (403)', 'again in'].every((word) => \
                 document.querySelector('#answer .timeline')?.textContent.includes(word))";
    shows(browser, "the timeline of a key", steps).await?;
    let focused = browser.value("document.activeElement.id").await?;
    ensure!(focused == "answer", "the focus is at {focused}");
    for (kind, name, part) in [
        ("Deployment", "web-0", "replicasets.apps"),
        (
            "HorizontalPodAutoscaler",
            "web",
            "horizontal-pod-autoscaler-controller",
        ),
    ] {
        let submit = format!(
            "(() => {{ const form = document.getElementById('ask'); form.kind.value = '{kind}'; \
             form.namespace.value = '{namespace}'; form.elements.name.value = '{name}'; form.requestSubmit(); }})()"
        );
        browser.value(&submit).await?;
        let part = format!(
            "((text) => text.includes('{part}') && text.includes('/{name}'))(document.getElementById('answer').innerText)"
        );
        shows(browser, kind, &part).await?;
    }
    Ok(())
}

/// Nothing was refused by the policy, no script has failed; `lost`: answers may have broken off.
fn complained(browser: &Browser, lost: bool) -> Result<()> {
    let wrong: Vec<_> = browser
        .complaints
        .iter()
        .filter(|(source, _)| !(lost && source == "network"))
        .collect();
    ensure!(wrong.is_empty(), "the console: {wrong:#?}");
    Ok(())
}

/// The replica that serves the page.
async fn serving(browser: &mut Browser, replicas: &[Replica]) -> Result<usize> {
    let status = browser
        .value("document.getElementById('status').textContent")
        .await?;
    let status = status.as_str().unwrap_or_default();
    let place = replicas
        .iter()
        .position(|replica| status.contains(&format!("served by {}.", replica.name())));
    place.with_context(|| format!("who serves the page? {status:?}"))
}

async fn watched(
    browser: &mut Browser,
    control_plane: &ControlPlane,
    (fleet, replicas): (&Fleet, &mut Vec<Replica>),
    namespace: &str,
) -> Result<()> {
    let draws = std::env::var_os("UPDATE_GENERATED").is_some();
    let pause = async || {
        if draws {
            tokio::time::sleep(PICTURE_PAUSE).await;
        }
    };
    for replica in &*replicas {
        let active = format!("({}) === 'active'", state_of(replica.name()));
        shows(browser, &format!("{} is active", replica.name()), &active).await?;
    }
    shows(browser, "three owners", &format!("{EDGE} === 3")).await?;
    is_read(browser, namespace).await?;
    complained(browser, false)?;
    pause().await;
    shows(browser, "two columns", RECORDED).await?;

    // The one that serves the page dies: another one shows its death.
    let place = serving(browser, replicas).await?;
    let mut killed = replicas.remove(place);
    let name = killed.name().to_owned();
    // Planned moves may be under way.
    let owned = killed.shards().await?.owned.len() / 2;
    killed.kill();
    let gone = format!("({}).startsWith('gone')", state_of(&name));
    shows(browser, &format!("{name} is gone"), &gone).await?;
    shows(browser, "two owners", &format!("{EDGE} === 2")).await?;
    let legend = format!("document.getElementById('legend').textContent.includes('{name} (gone)')");
    shows(browser, "the legend", &legend).await?;
    let moved = format!(
        "[...document.querySelectorAll('#changes tbody tr')].filter((row) => \
         row.cells[1].textContent === '{name}').reduce((sum, row) => sum + Number(row.cells[3].textContent), 0) >= {owned}"
    );
    shows(browser, "its ranges in the list of changes", &moved).await?;
    complained(browser, true)?;
    can_be_used(browser, &control_plane.dir().file("pictures")).await?;
    pause().await;

    // One joins, by a handoff.
    let mut joined = fleet.start(REPLICAS)?;
    joined.wait_ready(harness::fleet::READY_LIMIT).await?;
    replicas.push(joined);
    shows(browser, "three owners again", &format!("{EDGE} === 3")).await?;
    pause().await;
    if draws {
        browser.resize(1280, 900, "light").await?;
        browser.value("window.scrollTo(0, 0)").await?;
        let picture = browser.picture(1280, 900).await?;
        ensure!(
            picture.len() <= PICTURE_BYTES_MAX,
            "{} bytes",
            picture.len()
        );
        std::fs::write(workspace_root().join(PICTURE), picture)?;
    }
    complained(browser, true)
}

#[test]
fn the_page_shows_who_owns_what_works_and_fails_and_a_kill_in_chromium() {
    let Some(program) = browser::program() else {
        eprintln!(
            "page: skipped: there is no chromium in the PATH (apt-get install chromium, or MANIFOLD_CHROMIUM=FILE)"
        );
        return;
    };
    let _beside = beside();
    run_test(async {
        let control_plane = ControlPlane::builder().nodes(1).start().await?;
        let fleet = fleet(&control_plane).await?;
        let mut replicas = fleet.start_all(REPLICAS).await?;
        let namespace = work(&control_plane).await?;
        let dashboard = Dashboard::start(&control_plane, &replicas).await?;
        dashboard.is_closed().await?;
        let profile = control_plane.dir().file("chromium");
        let mut browser = Browser::start(&program, &profile).await?;
        browser.resize(1280, 900, "light").await?;
        browser.open(&dashboard.url).await?;
        let fleet = (&fleet, &mut replicas);
        let watched = watched(&mut browser, &control_plane, fleet, &namespace);
        tokio::select! {
            watched = watched => watched?,
            ended = unrest(&control_plane, &namespace) => ended?,
        }
        all_end_well(&mut replicas).await
    });
}

const MANY_REPLICAS: usize = 20;
const MANY_KEYS: usize = 10_000;
const MEASURED: Duration = Duration::from_secs(60);
/// Processors that an open page may cost a replica.
const PROCESSORS: f64 = 0.02;

/// ReplicaSets without pods: keys that are at rest.
async fn many(control_plane: &ControlPlane) -> Result<()> {
    let namespace = control_plane.namespace("many").await?;
    let sets: Api<ReplicaSet> = Api::namespaced(control_plane.client().await?, &namespace);
    let made = stream::iter(0..MANY_KEYS).map(|index| {
        let sets = sets.clone();
        async move {
            let labels = json!({"app": format!("web-{index}")});
            let set = json!({
                "apiVersion": "apps/v1", "kind": "ReplicaSet",
                "metadata": {"name": format!("web-{index}")},
                "spec": {
                    "replicas": 0,
                    "selector": {"matchLabels": labels},
                    "template": {
                        "metadata": {"labels": labels},
                        "spec": {"containers": [{"name": "app", "image": "example/app:1"}]},
                    },
                },
            });
            let set = serde_json::from_value(set)?;
            sets.create(&PostParams::default(), &set).await?;
            anyhow::Ok(())
        }
    });
    let mut made = made.buffer_unordered(32);
    while let Some(one) = made.next().await {
        one?;
    }
    Ok(())
}

/// Processors that each replica uses for a while.
async fn processors(replicas: &[Replica]) -> Result<Vec<f64>> {
    let seconds = async || -> Result<Vec<f64>> {
        let all = metrics_of(replicas).await?;
        all.iter()
            .map(|one| {
                one.sum("process_cpu_seconds_total", &[])
                    .context("no figure")
            })
            .collect()
    };
    let (before, began) = (seconds().await?, Instant::now());
    tokio::time::sleep(MEASURED).await;
    let (after, took) = (seconds().await?, began.elapsed().as_secs_f64());
    Ok(before
        .iter()
        .zip(after)
        .map(|(before, after)| (after - before) / took)
        .collect())
}

fn mean(all: &[f64]) -> f64 {
    all.iter().sum::<f64>() / all.len() as f64
}

#[test]
#[ignore = "minutes: cargo parity"]
fn an_open_page_costs_a_replica_of_twenty_with_ten_thousand_keys_little() {
    let _alone = alone();
    run_test(async {
        let control_plane = ControlPlane::builder().start().await?;
        let fleet = fleet(&control_plane).await?;
        let mut replicas = fleet.start_all(MANY_REPLICAS).await?;
        many(&control_plane).await?;
        let client = replicas[0].client()?;
        until(
            "all keys are known and at rest",
            PATIENCE * 2,
            POLL * 20,
            || async {
                let request = http::Request::get("/debug/shards?scope=fleet").body(Vec::new())?;
                let shards: Value = client.request(request).await?;
                let sum = |name: &str| -> u64 {
                    let all = shards["replicas"].as_array().into_iter().flatten();
                    all.filter_map(|one| one["totals"][name].as_u64()).sum()
                };
                let (keys, queued) = (sum("keys"), sum("queued"));
                ensure!(
                    keys >= MANY_KEYS as u64 && queued == 0,
                    "{keys} keys, {queued} queued"
                );
                Ok(Some(()))
            },
        )
        .await?;
        let closed = processors(&replicas).await?;
        let request = http::Request::get("/debug/page/live").body(kube::client::Body::empty())?;
        let answer = client.send(request).await?;
        let read = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&read);
        let reading = tokio::spawn(async move {
            let mut body = answer.into_body();
            while let Some(Ok(frame)) = body.frame().await {
                let bytes = frame.data_ref().map_or(0, bytes::Bytes::len);
                count.fetch_add(bytes, Ordering::Relaxed);
            }
        });
        let open = processors(&replicas).await?;
        ensure!(!reading.is_finished(), "the stream has ended");
        reading.abort();
        let read = read.load(Ordering::Relaxed);
        let mut size = 0;
        for file in ["", "page.css", "page.js", "icon.svg"] {
            size += replicas[0]
                .text(&format!("/debug/page/{file}"))
                .await?
                .len();
        }
        let (serving, others) = (open[0] - closed[0], mean(&open[1..]) - mean(&closed[1..]));
        println!(
            "page: {size} bytes, then {read} in a minute; {MANY_REPLICAS} replicas, {MANY_KEYS} keys: closed {:.4} processors each, open {:.4} at \
             the replica that serves it (+{serving:.4}), +{others:.4} at the others",
            mean(&closed),
            open[0],
        );
        ensure!(size <= 100_000, "{size} bytes");
        ensure!(
            serving <= PROCESSORS && others <= PROCESSORS,
            "more than {PROCESSORS}"
        );
        all_end_well(&mut replicas).await
    });
}
