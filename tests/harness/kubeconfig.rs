//! Kubeconfig files, and kube clients made from them.

use std::path::Path;

use anyhow::{Context, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::json;

use crate::certificates::Identity;

/// A kubeconfig with everything inside, so that the file can be copied elsewhere.
pub fn render(server: &str, authority: &str, user: &str, identity: &Identity) -> Result<String> {
    let kubeconfig = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "manifold",
        "contexts": [{"name": "manifold", "context": {"cluster": "manifold", "user": user}}],
        "clusters": [{"name": "manifold", "cluster": {
            "server": server,
            "certificate-authority-data": STANDARD.encode(authority),
        }}],
        "users": [{"name": user, "user": {
            "client-certificate-data": STANDARD.encode(&identity.certificate),
            "client-key-data": STANDARD.encode(&identity.key),
        }}],
    });
    serde_yaml::to_string(&kubeconfig).context("writing a kubeconfig")
}

/// The client configuration that a kubeconfig's current context describes.
pub async fn load(path: &Path) -> Result<Config> {
    let what = || format!("kubeconfig {}", path.display());
    let kubeconfig = Kubeconfig::read_from(path).with_context(what)?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .with_context(what)?;
    // A proxy named in the environment is for the world outside; the servers here are near.
    if is_loopback(&config.cluster_url) {
        config.proxy_url = None;
    }
    Ok(config)
}

/// A client for [`load`]'s configuration. Make one per runtime: its connections live on the runtime
/// that first used them, and each test has its own.
pub async fn client(path: &Path) -> Result<Client> {
    Client::try_from(load(path).await?).with_context(|| format!("kubeconfig {}", path.display()))
}

fn is_loopback(url: &http::Uri) -> bool {
    matches!(url.host(), Some("127.0.0.1" | "localhost" | "[::1]"))
}
