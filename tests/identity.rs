//! Certificates, tokens and roles on a real control plane under three replicas: what they make is accepted by
//! the API server, keys that change are taken by all, and no Secret that nobody asked for is in a replica's
//! memory.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use harness::certificates::Authority;
use harness::process::WorkDir;
use harness::{ControlPlane, Replica, run_test, until};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde_json::{Value, json};
use x509_parser::{parse_x509_certificate, pem::parse_x509_pem};

use crate::support::{PATIENCE, POLL, all_end_well, beside};

const REPLICAS: usize = 3;
/// Longer than a replica takes to examine its files again, and far less than upstream's minute.
const FILES_READ_AGAIN: Duration = Duration::from_secs(6);
/// Requests that are signed after a change of the authority: enough for each replica to own some.
const REQUESTS: usize = 12;
/// What a Secret holds that no controller reads.
const CANARY: &str = "a-canary-that-no-controller-reads";
/// Bytes of memory that are examined in one piece.
const PIECE: usize = 1 << 20;

async fn json_of(control_plane: &ControlPlane, args: &[&str]) -> Result<Value> {
    let mut all = args.to_vec();
    all.extend(["-o", "json"]);
    Ok(serde_json::from_str(&control_plane.kubectl(&all).await?)?)
}

async fn create(control_plane: &ControlPlane, object: &Value) -> Result<Value> {
    let args = ["create", "-o", "json"];
    let text = control_plane
        .kubectl_with_input(&args, &object.to_string())
        .await?;
    Ok(serde_json::from_str(&text)?)
}

/// A request for a certificate of a name, PEM.
fn pkcs10(name: &str) -> Result<String> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    Ok(params.serialize_request(&KeyPair::generate()?)?.pem()?)
}

/// The object that asks for it.
fn wanted(name: &str, request: &str) -> Value {
    json!({
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": name},
        "spec": {
            "request": STANDARD.encode(request),
            "signerName": "kubernetes.io/kube-apiserver-client",
            "usages": ["client auth"],
        },
    })
}

/// The issuer of the certificate that a new request gets.
async fn issuer(control_plane: &ControlPlane, name: &str) -> Result<String> {
    let request = pkcs10(name)?;
    create(control_plane, &wanted(name, &request)).await?;
    control_plane
        .kubectl(&["certificate", "approve", name])
        .await?;
    until(&format!("{name} is signed"), PATIENCE, POLL, || async {
        let request = json_of(control_plane, &["get", "csr", name]).await?;
        let Some(text) = request["status"]["certificate"].as_str() else {
            return Ok(None);
        };
        let pem = STANDARD.decode(text)?;
        let (_, block) = parse_x509_pem(&pem).context("a certificate")?;
        let (_, certificate) = parse_x509_certificate(&block.contents).context("a certificate")?;
        let issuer = certificate.issuer().iter_common_name().next();
        let issuer = issuer.context("an issuer")?.as_str()?;
        Ok(Some(issuer.to_owned()))
    })
    .await
}

/// Where in a process's memory some bytes stand.
fn found_in_memory(process: u32, wanted: &[u8]) -> Result<bool> {
    let maps = std::fs::read_to_string(format!("/proc/{process}/maps"))?;
    let mut memory = File::open(format!("/proc/{process}/mem"))?;
    for line in maps.lines().filter(|line| line.contains(" rw")) {
        let range = line.split(' ').next().unwrap_or_default();
        let (first, last) = range.split_once('-').context("a range")?;
        let mut at = u64::from_str_radix(first, 16)?;
        let last = u64::from_str_radix(last, 16)?;
        while at < last {
            let length = usize::try_from(last - at)?.min(PIECE);
            let mut piece = vec![0; length];
            memory.seek(SeekFrom::Start(at))?;
            // What can't be read is not the process's own.
            if memory.read_exact(&mut piece).is_ok()
                && piece.windows(wanted.len()).any(|part| part == wanted)
            {
                return Ok(true);
            }
            // What lies across two pieces is found too.
            let step = if length < PIECE {
                length
            } else {
                length - wanted.len()
            };
            at += u64::try_from(step)?;
        }
    }
    Ok(false)
}

async fn roles_are_aggregated(control_plane: &ControlPlane) -> Result<()> {
    for name in ["admin", "edit", "view"] {
        until(&format!("{name} has rules"), PATIENCE, POLL, || async {
            let role = json_of(control_plane, &["get", "clusterrole", name]).await?;
            let rules = role["rules"].as_array().map_or(0, Vec::len);
            Ok((rules > 0).then_some(()))
        })
        .await?;
    }
    Ok(())
}

async fn a_token_is_accepted(control_plane: &ControlPlane) -> Result<()> {
    let namespace = control_plane.namespace("tokens").await?;
    let in_namespace = ["-n", namespace.as_str()];
    let args = |more: &[&'static str]| [&in_namespace[..], more].concat();
    control_plane
        .kubectl(&args(&["create", "serviceaccount", "robot"]))
        .await?;
    create(
        control_plane,
        &json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": "robot-token",
                "namespace": namespace,
                "annotations": {"kubernetes.io/service-account.name": "robot"},
            },
            "type": "kubernetes.io/service-account-token",
        }),
    )
    .await?;
    let token = until("the token is there", PATIENCE, POLL, || async {
        let secret = json_of(control_plane, &args(&["get", "secret", "robot-token"])).await?;
        Ok(secret["data"]["token"].as_str().map(str::to_owned))
    })
    .await?;
    let token = String::from_utf8(STANDARD.decode(token)?)?;
    let review = create(
        control_plane,
        &json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token},
        }),
    )
    .await?;
    ensure!(
        review["status"]["authenticated"] == true,
        "the token is refused"
    );
    let user = &review["status"]["user"]["username"];
    ensure!(
        *user == format!("system:serviceaccount:{namespace}:robot"),
        "the token is that of {user}"
    );
    control_plane
        .kubectl(&args(&["delete", "serviceaccount", "robot"]))
        .await?;
    until(
        "the token goes with its account",
        PATIENCE,
        POLL,
        || async {
            let secrets = json_of(control_plane, &args(&["get", "secrets"])).await?;
            let none = secrets["items"].as_array().is_some_and(Vec::is_empty);
            Ok(none.then_some(()))
        },
    )
    .await
}

/// A token of old that nobody uses, in a cluster whose use of tokens has long been tracked.
async fn leave_a_token_of_old(control_plane: &ControlPlane) -> Result<()> {
    let since = r#"{"data": {"since": "2020-01-01"}}"#;
    let tracking = "kube-apiserver-legacy-service-account-token-tracking";
    let patch = [
        "patch",
        "configmap",
        tracking,
        "-n",
        "kube-system",
        "-p",
        since,
    ];
    until("use of tokens is tracked", PATIENCE, POLL, || async {
        Ok(control_plane.kubectl(&patch).await.ok())
    })
    .await?;
    let account = json!({
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": "old", "namespace": "default"},
        "secrets": [{"name": "old-token"}],
    });
    let token = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": "old-token",
            "namespace": "default",
            "annotations": {"kubernetes.io/service-account.name": "old"},
        },
        "type": "kubernetes.io/service-account-token",
    });
    create(control_plane, &account).await?;
    create(control_plane, &token).await?;
    Ok(())
}

async fn what_is_old_is_cleared_up(control_plane: &ControlPlane) -> Result<()> {
    let label = "kubernetes.io/legacy-token-invalid-since";
    until("the token of old is marked", PATIENCE, POLL, || async {
        let args = ["get", "secret", "old-token", "-n", "default"];
        let secret = json_of(control_plane, &args).await?;
        let marked = secret["metadata"]["labels"][label].is_string();
        Ok(marked.then_some(()))
    })
    .await?;
    let failed = json!({"status": {"conditions": [{
        "type": "Failed",
        "status": "True",
        "reason": "Example",
        "lastUpdateTime": "2020-01-01T00:00:00Z",
    }]}});
    let request = pkcs10("forgotten")?;
    create(control_plane, &wanted("forgotten", &request)).await?;
    control_plane
        .kubectl(&[
            "patch",
            "csr",
            "forgotten",
            "--subresource=status",
            "--type=merge",
            "-p",
            &failed.to_string(),
        ])
        .await?;
    until("a failed request goes", PATIENCE, POLL, || async {
        let requests = json_of(control_plane, &["get", "csr"]).await?;
        let requests = requests["items"].as_array().context("a list")?;
        let there = requests
            .iter()
            .any(|request| request["metadata"]["name"] == "forgotten");
        Ok((!there).then_some(()))
    })
    .await
}

async fn bundles_are_published(control_plane: &ControlPlane) -> Result<()> {
    let text = std::fs::read_to_string(control_plane.ca_file())?;
    until("the one trust bundle", PATIENCE, POLL, || async {
        let bundles = json_of(control_plane, &["get", "clustertrustbundles"]).await?;
        match bundles["items"].as_array().map(Vec::as_slice) {
            Some([bundle]) => {
                let name = bundle["metadata"]["name"].as_str().unwrap_or_default();
                ensure!(name.starts_with("kubernetes.io:kube-apiserver-serving:"));
                ensure!(bundle["spec"]["trustBundle"] == text.as_str());
                Ok(Some(()))
            }
            _ => Ok(None),
        }
    })
    .await
}

fn memories_are_clean(replicas: &[Replica]) -> Result<()> {
    let forms = [CANARY.to_owned(), STANDARD.encode(CANARY)];
    for replica in replicas {
        for form in &forms {
            if found_in_memory(replica.id(), form.as_bytes())? {
                bail!("{} holds a Secret that no controller reads", replica.name());
            }
        }
    }
    Ok(())
}

#[test]
fn what_replicas_sign_is_accepted_and_no_other_secret_is_held() {
    let _beside = beside();
    run_test(async {
        let control_plane = ControlPlane::builder()
            .api_server_arg("--feature-gates=ClusterTrustBundle=true,PodCertificateRequest=true")
            .api_server_arg("--runtime-config=certificates.k8s.io/v1beta1=true")
            .start()
            .await?;
        // It is there before the replicas are, and changes while they watch.
        let canary = json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "canary", "namespace": "default"},
            "type": "Opaque",
            "stringData": {"canary": CANARY},
        });
        create(&control_plane, &canary).await?;
        leave_a_token_of_old(&control_plane).await?;
        let files = WorkDir::new()?;
        let renew = |name: &str| -> Result<()> {
            let authority = Authority::new(name)?;
            files.write("signer.crt", authority.certificate())?;
            files.write("signer.key", &authority.identity().key)?;
            Ok(())
        };
        renew("the first authority")?;
        let path = |name: &str| files.file(name).display().to_string();
        let fleet = control_plane
            .fleet()
            .arg("--controllers=*,bootstrapsigner,tokencleaner")
            .arg("--legacy-service-account-token-clean-up-period=1s")
            .arg("--feature-gates=ClusterTrustBundle=true,PodCertificateRequest=true")
            .arg(format!(
                "--cluster-signing-cert-file={}",
                path("signer.crt")
            ))
            .arg(format!("--cluster-signing-key-file={}", path("signer.key")))
            .build()
            .await?;
        let mut replicas = fleet.start_all(REPLICAS).await?;

        roles_are_aggregated(&control_plane).await?;
        bundles_are_published(&control_plane).await?;
        let first = issuer(&control_plane, "before").await?;
        ensure!(first == "the first authority", "it was signed by {first}");
        renew("the second authority")?;
        tokio::time::sleep(FILES_READ_AGAIN).await;
        for number in 0..REQUESTS {
            let signed = issuer(&control_plane, &format!("after-{number}")).await?;
            ensure!(signed == "the second authority", "{number} by {signed}");
        }
        a_token_is_accepted(&control_plane).await?;
        what_is_old_is_cleared_up(&control_plane).await?;
        control_plane
            .kubectl(&["label", "secret", "canary", "-n", "default", "seen=no"])
            .await?;
        memories_are_clean(&replicas)?;
        all_end_well(&mut replicas).await
    });
}

/// Two replicas that were started with different authorities warn of it, in what `/readyz?verbose` says and
/// by a metric, until they have the same.
#[test]
fn replicas_with_different_authorities_say_so_until_they_agree() {
    const NAME: &str = "manifold_key_material_differs{name=\"kubelet-serving\"} 1";
    const SAID: &str = "[~]replicas differ in kubelet-serving: ";
    let _beside = beside();
    run_test(async {
        let control_plane = ControlPlane::builder().start().await?;
        let files = WorkDir::new()?;
        let write = |file: &str, authority: &Authority| -> Result<()> {
            files.write(&format!("{file}.crt"), authority.certificate())?;
            files.write(&format!("{file}.key"), &authority.identity().key)?;
            Ok(())
        };
        let first = Authority::new("the first authority")?;
        write("a", &first)?;
        write("b", &Authority::new("the second authority")?)?;
        let fleet = control_plane
            .fleet()
            .arg("--controllers=csrsigning,serviceaccount")
            .build()
            .await?;
        let mut replicas = Vec::new();
        for file in ["a", "b"] {
            let flag = |flag: &str, end: &str| {
                let path = files.file(&format!("{file}.{end}"));
                format!("--cluster-signing-{flag}-file={}", path.display())
            };
            let flags = [flag("cert", "crt"), flag("key", "key")];
            let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
            let mut replica = fleet.start_named(&format!("manifold-{file}"), &flags)?;
            replica.wait_ready(PATIENCE).await?;
            replicas.push(replica);
        }
        let says = |wanted: bool| {
            let replicas = &replicas;
            async move {
                let what = format!("both say that they differ: {wanted}");
                until(&what, PATIENCE, POLL, || async {
                    for replica in replicas {
                        let ready = replica.text("/readyz?verbose").await?;
                        let metrics = replica.text("/metrics").await?;
                        if (ready.contains(SAID), metrics.contains(NAME)) != (wanted, wanted) {
                            return Ok(None);
                        }
                    }
                    Ok(Some(()))
                })
                .await
            }
        };
        says(true).await?;
        write("b", &first)?;
        says(false).await?;
        all_end_well(&mut replicas).await
    });
}
