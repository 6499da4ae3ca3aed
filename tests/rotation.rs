//! Credentials that change under a fleet at work: a kubeconfig, a client certificate, a CA bundle with the
//! API server's certificate, a token file, an exec plugin's certificate. Each old one is worth nothing by the
//! end of its step. No replica restarts or is fenced, and every change of a Deployment is served.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use harness::certificates::{Authority, Identity};
use harness::control_plane::MANAGER;
use harness::{ControlPlane, Replica, kubeconfig, run_test, until};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::support::{PATIENCE, POLL, alone, complete, create, deployment};

/// How long certificates live that are to run out.
const SHORT_LIFE: Duration = Duration::from_secs(75);
/// Files are read every 10 s.
const TAKEN_UP: Duration = Duration::from_secs(15);
const DEPLOYMENTS: usize = 6;

/// The files that the fleet's kubeconfig names, and itself.
struct Files<'a> {
    control_plane: &'a ControlPlane,
    dir: PathBuf,
}

impl Files<'_> {
    /// As an atomic writer does it.
    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> Result<PathBuf> {
        let path = self.dir.join(name);
        let next = self.dir.join(format!("{name}.next"));
        std::fs::write(&next, content)?;
        std::fs::rename(&next, &path)?;
        Ok(path)
    }

    fn kubeconfig(&self, user: &Value) -> Result<PathBuf> {
        let text = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {
                "server": self.control_plane.url(),
                "certificate-authority": "bundle.crt",
            }}],
            "users": [{"name": "u", "user": user}],
        });
        self.write("kubeconfig", text.to_string())
    }

    fn client(&self, identity: &Identity) -> Result<()> {
        // Between the two files the pair does not fit, which a replica must bear.
        self.write("client.crt", &identity.certificate)?;
        self.write("client.key", &identity.key)?;
        Ok(())
    }

    fn plugin_answer(&self, identity: &Identity) -> Result<()> {
        let credential = json!({
            "apiVersion": "client.authentication.k8s.io/v1",
            "kind": "ExecCredential",
            "status": {
                "clientCertificateData": identity.certificate,
                "clientKeyData": identity.key,
            },
        });
        self.write("answer.json", credential.to_string()).map(drop)
    }
}

/// Scales Deployments up and down until it is over; how many changes were served, and the slowest.
async fn work(api: &Api<Deployment>, over: &AtomicBool) -> Result<(usize, Duration)> {
    let (mut served, mut slowest) = (0, Duration::ZERO);
    while !over.load(Ordering::Relaxed) {
        let replicas = 1 + i32::try_from(served / DEPLOYMENTS % 2)?;
        let name = format!("web-{}", served % DEPLOYMENTS);
        let began = Instant::now();
        let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
        api.patch(&name, &PatchParams::default(), &patch).await?;
        complete(api, &name, replicas).await?;
        slowest = slowest.max(began.elapsed());
        served += 1;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok((served, slowest))
}

/// What must not happen to any replica.
async fn sound(replicas: &mut [Replica]) -> Result<()> {
    for replica in replicas {
        replica.check()?;
        let metrics = replica.metrics().await?;
        for what in ["fenced", "evicted", "self_evicted", "dropped"] {
            let count = metrics.sum("manifold_ownership_changes_total", &[("what", what)]);
            ensure!(
                count.unwrap_or_default() == 0.0,
                "{} has {what} {count:?} times",
                replica.name()
            );
        }
        replica.text("/readyz").await?;
        replica.text("/livez").await?;
    }
    Ok(())
}

/// When the certificate expires that each replica shows; `None` for one that shows none.
async fn expiries(replicas: &[Replica]) -> Result<Vec<Option<f64>>> {
    let mut all = Vec::new();
    for replica in replicas {
        let metrics = replica.metrics().await?;
        all.push(metrics.sum(
            "manifold_client_certificate_expiration_timestamp_seconds",
            &[("flag", "kubeconfig")],
        ));
    }
    Ok(all)
}

/// The same where all agree; `None` where they differ or show none.
async fn expiry(replicas: &[Replica]) -> Result<Option<f64>> {
    let all = expiries(replicas).await?;
    Ok(all
        .iter()
        .all(|one| *one == all[0])
        .then_some(all[0])
        .flatten())
}

/// A token of the fleet's service account that ends with a Secret.
async fn token(client: &Client, secret: &str) -> Result<String> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), "manifold-system");
    let object = serde_json::from_value(json!({"metadata": {"name": secret}}))?;
    let made: Secret = secrets.create(&PostParams::default(), &object).await?;
    let request: TokenRequest = serde_json::from_value(json!({
        "metadata": {},
        "spec": {
            "audiences": [],
            "expirationSeconds": 3600,
            "boundObjectRef": {"kind": "Secret", "apiVersion": "v1", "name": secret, "uid": made.metadata.uid},
        },
    }))?;
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "manifold-system");
    let made = accounts
        .create_token_request("manifold", &PostParams::default(), &request)
        .await?;
    made.status
        .and_then(|status| status.token)
        .context("no token")
}

#[test]
#[ignore = "minutes: cargo parity"]
fn every_credential_is_exchanged_under_a_fleet_at_work() {
    let _alone = alone();
    run_test(async {
        let control_plane = ControlPlane::builder().nodes(2).start().await?;
        let first = control_plane.authority();
        let second = Authority::new("manifold-test-second-ca")?;
        // The test itself trusts both, whatever the server shows.
        let mut admin = kubeconfig::load(control_plane.admin_kubeconfig()).await?;
        admin.root_cert = Some(vec![first.der().to_vec(), second.der().to_vec()]);
        let client = Client::try_from(admin)?;
        let namespace = control_plane.namespace("rotation").await?;
        let deployments: Api<Deployment> = Api::namespaced(client.clone(), &namespace);

        let dir = control_plane.dir().file("rotation");
        std::fs::create_dir_all(&dir)?;
        let files = Files {
            control_plane: &control_plane,
            dir,
        };
        files.write("bundle.crt", first.certificate())?;
        files.client(&first.client_for(MANAGER, None, SHORT_LIFE)?)?;
        let began = Instant::now();
        let by_files = json!({"client-certificate": "client.crt", "client-key": "client.key"});
        let path = files.kubeconfig(&by_files)?;
        let fleet = control_plane
            .fleet()
            .arg(format!("--kubeconfig={}", path.display()))
            .arg(format!("--authentication-kubeconfig={}", path.display()))
            .arg(format!("--authorization-kubeconfig={}", path.display()))
            .build()
            .await?;
        let mut replicas = fleet.start_all(3).await?;
        let ids: Vec<u32> = replicas.iter().map(Replica::id).collect();
        for index in 0..DEPLOYMENTS {
            create(&deployments, deployment(&format!("web-{index}"), 1)).await?;
        }
        let over = AtomicBool::new(false);
        let working = work(&deployments, &over);
        let steps = async {
            let result = rotate(
                &files,
                &client,
                first,
                &second,
                &by_files,
                began,
                &mut replicas,
            )
            .await;
            over.store(true, Ordering::Relaxed);
            result
        };
        let (worked, rotated) = tokio::join!(working, steps);
        rotated?;
        let (served, slowest) = worked?;
        sound(&mut replicas).await?;
        ensure!(replicas.iter().map(Replica::id).eq(ids));
        println!(
            "rotation: {served} changes were served meanwhile, the slowest within {slowest:.1?}; no restart, no fence"
        );
        Ok(())
    });
}

#[allow(clippy::too_many_arguments)] // The parts of one test.
async fn rotate(
    files: &Files<'_>,
    client: &Client,
    first: &Authority,
    second: &Authority,
    by_files: &Value,
    began: Instant,
    replicas: &mut [Replica],
) -> Result<()> {
    let step =
        |what: &str, since: Instant| println!("rotation: {what}, after {:.1?}", since.elapsed());

    // A client certificate, whose predecessor runs out.
    let since = Instant::now();
    let old = expiry(replicas).await?.context("an expiry")?;
    files.client(&first.client(MANAGER, None)?)?;
    until(
        "the new client certificate is in use",
        PATIENCE,
        POLL * 10,
        || async { Ok(expiry(replicas).await?.filter(|new| *new != old)) },
    )
    .await?;
    step("a client certificate is in use", since);
    tokio::time::sleep((SHORT_LIFE + Duration::from_secs(5)).saturating_sub(began.elapsed())).await;
    sound(replicas).await?;
    step("its predecessor has expired", since);

    // The CA bundle, with the server's certificate under the new CA alone.
    let since = Instant::now();
    files.write(
        "bundle.crt",
        format!("{}{}", first.certificate(), second.certificate()),
    )?;
    tokio::time::sleep(TAKEN_UP).await;
    let dir = files.control_plane.dir();
    let serve = |authority: &Authority| -> Result<()> {
        let identity = authority.server("kube-apiserver", &["localhost"])?;
        dir.write("apiserver.key", &identity.key)?;
        dir.write("apiserver.crt", &identity.certificate)?;
        Ok(())
    };
    let shown_under = async |authority: &Authority| {
        until(
            "the API server shows its new certificate",
            PATIENCE * 2,
            POLL * 10,
            || async {
                let mut config = kubeconfig::load(files.control_plane.admin_kubeconfig()).await?;
                config.root_cert = Some(vec![authority.der().to_vec()]);
                let asked = Client::try_from(config)?.apiserver_version().await;
                Ok(asked.is_ok().then_some(()))
            },
        )
        .await
    };
    serve(second)?;
    shown_under(second).await?;
    files.write("bundle.crt", second.certificate())?;
    tokio::time::sleep(TAKEN_UP).await;
    sound(replicas).await?;
    step(
        "the server's certificate is of another authority, and only that is trusted",
        since,
    );
    files.write(
        "bundle.crt",
        format!("{}{}", first.certificate(), second.certificate()),
    )?;
    tokio::time::sleep(TAKEN_UP).await;
    serve(first)?;
    shown_under(first).await?;
    sound(replicas).await?;
    step("and back", since);

    // The kubeconfig itself, which names a token now; then the token.
    let since = Instant::now();
    let old = token(client, "old-token").await?;
    files.write("token", &old)?;
    files.kubeconfig(&json!({"tokenFile": "token"}))?;
    until(
        "no certificate is shown any more",
        PATIENCE,
        POLL * 10,
        || async {
            let none = expiries(replicas).await?.iter().all(Option::is_none);
            Ok(none.then_some(()))
        },
    )
    .await?;
    tokio::time::sleep(TAKEN_UP).await;
    sound(replicas).await?;
    files.write("token", token(client, "new-token").await?)?;
    tokio::time::sleep(TAKEN_UP).await;
    let secrets: Api<Secret> = Api::namespaced(client.clone(), "manifold-system");
    secrets
        .delete("old-token", &DeleteParams::default())
        .await?;
    // The API server remembers tokens for ten seconds.
    tokio::time::sleep(TAKEN_UP).await;
    sound(replicas).await?;
    step(
        "a token file was exchanged, and the old token is void",
        since,
    );

    // An exec plugin, whose certificate runs out.
    let since = Instant::now();
    files.plugin_answer(&first.client_for(MANAGER, None, SHORT_LIFE)?)?;
    let answer = files.dir.join("answer.json");
    let plugin = files.write("plugin", format!("#!/bin/sh\ncat {}\n", answer.display()))?;
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(&plugin, std::fs::Permissions::from_mode(0o755))?;
    files.kubeconfig(&json!({"exec": {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": plugin,
        "interactiveMode": "Never",
    }}))?;
    let old = until(
        "the plugin's certificate is in use",
        PATIENCE,
        POLL * 10,
        || expiry(replicas),
    )
    .await?;
    files.plugin_answer(&first.client(MANAGER, None)?)?;
    until(
        "the plugin has run again",
        PATIENCE * 2,
        POLL * 10,
        || async { Ok(expiry(replicas).await?.filter(|new| *new != old)) },
    )
    .await?;
    step(
        "a plugin's certificate was renewed before it ran out",
        since,
    );
    tokio::time::sleep((SHORT_LIFE + Duration::from_secs(5)).saturating_sub(since.elapsed())).await;
    sound(replicas).await?;
    step("its predecessor has expired", since);

    let since = Instant::now();
    let data = |text: &str| STANDARD.encode(text);
    let identity = first.client(MANAGER, None)?;
    files.kubeconfig(&json!({
        "client-certificate-data": data(&identity.certificate),
        "client-key-data": data(&identity.key),
    }))?;
    tokio::time::sleep(TAKEN_UP).await;
    sound(replicas).await?;
    files.client(&first.client(MANAGER, None)?)?;
    files.kubeconfig(by_files)?;
    tokio::time::sleep(TAKEN_UP).await;
    sound(replicas).await?;
    step(
        "a kubeconfig was written again with the certificate inside, as kubeadm does, and back",
        since,
    );
    Ok(())
}
