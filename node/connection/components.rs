//! Where the API server is and who we are to it: kubeconfigs, and waiting for the server at start.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig, NamedAuthInfo},
};
use node_cache::{Exchange, Observe, proxy::from_environment};
use node_telemetry::metrics::{ClientMetrics, Metrics};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};

/// How long the server may take to answer at start, and how often it is asked: upstream's figures.
const SERVER_WAIT_MAX: Duration = Duration::from_secs(10);
const SERVER_ASKED_EVERY: Duration = Duration::from_secs(1);

/// Why there is no API server to work with.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file can't be read or says nothing usable.
    #[error(
        "--{flag} {path}: {why}: check that the file exists, parses, and that its current context, cluster and user are complete"
    )]
    Kubeconfig {
        /// Which flag named it.
        flag: &'static str,
        /// The file.
        path: String,
        /// What is wrong.
        why: String,
    },
    /// There is no file and we are in no pod.
    #[error(
        "no API server is configured: give --kubeconfig (or --master), or run in a pod with a service account ({0})"
    )]
    Nowhere(String),
    /// `--master` is no URL.
    #[error("--master {0:?} is no URL: give one as https://host:port")]
    Master(String),
    /// A client can't be made.
    #[error("--{flag}: {why}")]
    Client {
        /// Which flag named the kubeconfig.
        flag: &'static str,
        /// What is wrong.
        why: node_cache::ConnectError,
    },
    /// The environment's proxy.
    #[error("{0}")]
    Proxy(String),
    /// It does not answer.
    #[error("the API server {url} does not answer within {}s: {why}: check its address, that it runs, and the kubeconfig's certificate authority", SERVER_WAIT_MAX.as_secs())]
    Silent {
        /// Its address.
        url: String,
        /// What the last attempt met.
        why: String,
    },
}

/// The whole chain of causes in one line.
pub fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    // The library's text repeats the whole Status.
    if let Some(kube::Error::Api(status)) = error.downcast_ref() {
        return status.message.replace('\n', " ");
    }
    // What is left of the library's own wrapping says nothing.
    let mut text = error.to_string().replace("ServiceError: ", "");
    let mut cause = error.source();
    while let Some(next) = cause {
        let more = next.to_string();
        // Many errors repeat their cause.
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = next.source();
    }
    text.replace('\n', " ")
}

/// Where a configuration comes from: a kubeconfig, an address, or the pod.
#[derive(Clone, Debug)]
pub struct Source {
    /// The flag that names the kubeconfig.
    pub flag: &'static str,
    /// The kubeconfig.
    pub kubeconfig: Option<PathBuf>,
    /// `--master`: overrides the kubeconfig's server.
    pub master: Option<String>,
}

/// A configuration and what it was made of.
#[derive(Debug)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// The files that it was read from, and those that it names.
    pub files: Vec<PathBuf>,
}

impl Source {
    /// The configuration as the files say it now.
    ///
    /// # Errors
    /// Naming the file and what is wrong with it.
    pub async fn load(&self) -> Result<Loaded, Error> {
        let url = match self.master.as_deref() {
            Some(text) => {
                let full = if text.contains("://") {
                    text.to_owned()
                } else {
                    format!("http://{text}")
                };
                let url = full
                    .parse::<http::Uri>()
                    .ok()
                    .filter(|url| url.host().is_some());
                Some(url.ok_or_else(|| Error::Master(text.to_owned()))?)
            }
            None => None,
        };
        let (mut loaded, proxy) = match (&self.kubeconfig, &url) {
            (Some(path), _) => from_file(self.flag, path).await?,
            (None, Some(url)) => (
                Loaded {
                    config: Config::new(url.clone()),
                    files: Vec::new(),
                },
                None,
            ),
            (None, None) => {
                let config = Config::incluster().map_err(|why| Error::Nowhere(causes(&why)))?;
                let token = config.auth_info.token_file.clone().map(PathBuf::from);
                let files = config.root_cert_file.clone().into_iter().chain(token);
                let files = files.collect();
                (Loaded { config, files }, None)
            }
        };
        if let Some(url) = url {
            loaded.config.cluster_url = url;
        }
        // The library takes HTTPS_PROXY without asking NO_PROXY.
        loaded.config.proxy_url = match proxy {
            Some(proxy) => Some(proxy),
            None => {
                let variable = |name: &str| std::env::var(name).ok();
                from_environment(&loaded.config.cluster_url, variable).map_err(Error::Proxy)?
            }
        };
        Ok(loaded)
    }
}

/// A kubeconfig given by a flag, and its `proxy-url`; a relative path in it is relative to the file.
async fn from_file(flag: &'static str, path: &Path) -> Result<(Loaded, Option<http::Uri>), Error> {
    let wrong = |why: String| Error::Kubeconfig {
        flag,
        path: path.display().to_string(),
        why,
    };
    let file = Kubeconfig::read_from(path).map_err(|why| wrong(causes(&why)))?;
    // A missing user is not an error to the library, but it means that nobody is let in.
    let name = file.current_context.clone().unwrap_or_default();
    let context = file
        .contexts
        .iter()
        .find(|one| one.name == name)
        .and_then(|one| one.context.clone());
    let user = context.as_ref().and_then(|context| context.user.clone());
    if let Some(user) = user.filter(|name| {
        !file
            .auth_infos
            .iter()
            .any(|one: &NamedAuthInfo| &one.name == name)
    }) {
        return Err(wrong(format!(
            "the user {user:?} of the current context is missing"
        )));
    }
    let cluster = context.and_then(|context| {
        let named = file.clusters.iter().find(|one| one.name == context.cluster);
        named.and_then(|one| one.cluster.clone())
    });
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
        .await
        .map_err(|why| wrong(causes(&why)))?;
    client_certificate(&config).map_err(wrong)?;
    let auth = &config.auth_info;
    let unless = |data: bool, path: &Option<String>| path.clone().filter(|_| !data);
    let authority = cluster.as_ref().and_then(|cluster| {
        unless(
            cluster.certificate_authority_data.is_some(),
            &cluster.certificate_authority,
        )
    });
    let named = [
        authority,
        unless(
            auth.client_certificate_data.is_some(),
            &auth.client_certificate,
        ),
        unless(auth.client_key_data.is_some(), &auth.client_key),
        unless(auth.token.is_some(), &auth.token_file),
    ];
    let files = [path.to_owned()]
        .into_iter()
        .chain(named.into_iter().flatten().map(PathBuf::from))
        .collect();
    let proxy = cluster
        .and_then(|cluster| cluster.proxy_url)
        .filter(|text| !text.is_empty());
    let proxy = proxy.map(|text| text.parse::<http::Uri>());
    let proxy = proxy
        .transpose()
        .map_err(|why| wrong(format!("proxy-url is no URL: {why}")))?;
    Ok((Loaded { config, files }, proxy))
}

/// rustls takes X.509 v3 alone and says so obscurely: the certificate is examined here.
fn client_certificate(config: &Config) -> Result<(), String> {
    let auth = &config.auth_info;
    let pem = match (&auth.client_certificate_data, &auth.client_certificate) {
        (Some(data), _) => {
            use k8s_openapi::ByteString;
            let text = serde_json::Value::String(data.clone());
            let bytes: ByteString = serde_json::from_value(text)
                .map_err(|why| format!("client-certificate-data is not base64: {why}"))?;
            bytes.0
        }
        (None, Some(path)) => std::fs::read(path)
            .map_err(|why| format!("can't read client certificate {path}: {why}"))?,
        (None, None) => return Ok(()),
    };
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(&pem)
        .filter_map(Result::ok)
        .collect();
    let Some(first) = certificates.first() else {
        return Err("the client certificate holds no certificate in PEM form".to_owned());
    };
    let (_, certificate) = x509_parser::parse_x509_certificate(first)
        .map_err(|why| format!("the client certificate can't be parsed: {why}"))?;
    if certificate.version() != x509_parser::x509::X509Version::V3 {
        return Err("the client certificate is of X.509 version 1, which is not spoken: issue it as version 3 \
                    (with any extension, for instance extendedKeyUsage=clientAuth)"
            .to_owned());
    }
    if !certificate.validity().is_valid() {
        return Err(format!(
            "the client certificate is not valid now: {}",
            certificate.validity().not_after
        ));
    }
    Ok(())
}

/// Waits until the server's `/healthz` answers 200, asking once a second.
///
/// # Errors
/// When it has not for 10 seconds.
pub async fn wait_for_server(client: &Client, url: &str) -> Result<(), Error> {
    wait_within(client, url, SERVER_WAIT_MAX, SERVER_ASKED_EVERY).await
}

async fn wait_within(
    client: &Client,
    url: &str,
    most: Duration,
    every: Duration,
) -> Result<(), Error> {
    let end = Instant::now() + most;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let why = match tokio::time::timeout(left, healthz(client)).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(why)) => why,
            Err(_) => "no answer".to_owned(),
        };
        if Instant::now() + every >= end {
            return Err(Error::Silent {
                url: url.to_owned(),
                why,
            });
        }
        tracing::debug!(why, "the API server is not ready yet");
        tokio::time::sleep(every).await;
    }
}

async fn healthz(client: &Client) -> Result<(), String> {
    let request = http::Request::get("/healthz")
        .body(Vec::new())
        .map_err(|why| why.to_string())?;
    client
        .request_text(request)
        .await
        .map(drop)
        .map_err(|why| causes(&why))
}

/// Host and port of the API server of a configuration, as `rest_client_*` name it.
pub fn host_of(config: &Config) -> String {
    config
        .cluster_url
        .authority()
        .map_or_else(String::new, ToString::to_string)
}

/// Counts requests to the API server of a configuration, as `rest_client_*`.
pub fn observed(config: &Config, metrics: &Metrics) -> Arc<dyn Observe> {
    Arc::new(Observed(metrics.client(&host_of(config))))
}

/// Counts requests under upstream's names.
struct Observed(Arc<ClientMetrics>);

impl Observe for Observed {
    fn observe(&self, exchange: &Exchange<'_>) {
        let verb = match exchange.method {
            "GET" => "GET",
            "POST" => "POST",
            "PUT" => "PUT",
            "PATCH" => "PATCH",
            "DELETE" => "DELETE",
            _ => "OTHER",
        };
        self.0.answered(
            verb,
            exchange.code,
            exchange.duration,
            exchange.request_bytes as u64,
            (exchange.response_bytes > 0).then_some(exchange.response_bytes as u64),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(kubeconfig: Option<&Path>, master: Option<&str>) -> Source {
        Source {
            flag: "kubeconfig",
            kubeconfig: kubeconfig.map(Path::to_owned),
            master: master.map(str::to_owned),
        }
    }

    fn written(text: &str) -> std::path::PathBuf {
        let path =
            std::env::temp_dir().join(format!("manifold-kubeconfig-{}", uuid::Uuid::new_v4()));
        std::fs::write(&path, text).unwrap();
        path
    }

    #[tokio::test]
    async fn a_kubeconfig_that_does_not_load_is_named_with_the_cause() {
        let head = "apiVersion: v1\nkind: Config\ncurrent-context: c\n";
        let whole = "clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n";
        for (text, part) in [
            ("{not yaml".to_owned(), "parse"),
            (
                "apiVersion: v1\nkind: Config\n".to_owned(),
                "current context",
            ),
            (head.to_owned(), "context"),
            (
                format!("{head}{whole}"),
                "the user \"u\" of the current context is missing",
            ),
            (
                format!(
                    "{head}{whole}users: [{{name: u, user: {{client-certificate: /nope, client-key: /nope}}}}]\n"
                ),
                "/nope",
            ),
            (
                format!(
                    "{head}{whole}users: [{{name: u, user: {{client-certificate-data: eA==, client-key-data: eA==}}}}]\n"
                ),
                "holds no certificate",
            ),
        ] {
            let path = written(&text);
            let why = source(Some(&path), None)
                .load()
                .await
                .map(drop)
                .unwrap_err()
                .to_string();
            std::fs::remove_file(&path).unwrap();
            assert!(
                why.contains(part) && why.starts_with("--kubeconfig "),
                "{text}: {why}"
            );
            assert!(!why.contains('\n'), "one line: {why}");
        }
        let why = source(Some(Path::new("/nope")), None)
            .load()
            .await
            .map(drop)
            .unwrap_err()
            .to_string();
        assert!(
            why.contains("/nope") && why.contains("No such file"),
            "{why}"
        );
    }

    #[tokio::test]
    async fn the_master_goes_before_the_file() {
        let loaded = source(None, Some("127.0.0.1:8080")).load().await.unwrap();
        let url = loaded.config.cluster_url.to_string();
        assert_eq!(url, "http://127.0.0.1:8080/");
        assert!(matches!(
            source(None, Some("::")).load().await,
            Err(Error::Master(_))
        ));
    }

    #[tokio::test]
    async fn a_silent_server_ends_the_start_with_its_address() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        drop(listener);
        let config = Config::new(url.parse().unwrap());
        let client = Client::try_from(config).unwrap();
        let ms = Duration::from_millis;
        let why = wait_within(&client, &url, ms(200), ms(50))
            .await
            .unwrap_err()
            .to_string();
        assert!(
            why.contains(&url) && why.contains("does not answer within 10s"),
            "{why}"
        );
    }
}
