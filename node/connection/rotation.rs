//! Credentials that change while the process runs: client certificates, authorities, tokens, what exec
//! plugins give.
//!
//! A [`Followed`] configuration knows the files that it was made of and the clients that were made from it.
//! When a file's content differs, everything is read again and each client gets a new connection. The same
//! happens when the API server has refused the credentials for a lease duration, and before a certificate of
//! an exec plugin expires. Upstream restarts for a changed kubeconfig, reads certificates and authorities
//! again every five minutes (`client-go/transport/cert_rotation.go`, `ca_rotation.go`) and runs a plugin
//! again at a 401.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use http::HeaderValue;
use kube::Config;
use node_cache::{Api, ConnectError, Observe, Purpose, Refusals, Validity};
use reload::{Complaint, Snapshot};
use tokio::sync::Notify;

use crate::components::{self, Loaded, Source};

/// How often the files are read.
const READ_EVERY: Duration = Duration::from_secs(10);

/// How often while the API server refuses the credentials.
const REFUSED_READ_EVERY: Duration = Duration::from_secs(1);

/// A refusal that is older says nothing of now: its client has had nothing to ask since.
const REFUSAL_IS_RECENT: Duration = Duration::from_secs(60);

/// An exec plugin's certificate is renewed when this part of its life is left.
const RENEWED_BEFORE_END: f64 = 0.2;

/// Between two tries to renew it, and the longest pause between two reads of everything while refusals last:
/// a plugin may ask somebody else each time.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Why new credentials are not in use.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// They can't be loaded.
    #[error(transparent)]
    Load(#[from] components::Error),
    /// They can't be used.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// They are for another server, whose objects are not those that this process knows.
    #[error("--{flag} names the server {new} instead of {old} now: restart to use it")]
    OtherServer {
        /// Which flag named the kubeconfig.
        flag: &'static str,
        /// The server in use.
        old: String,
        /// The server that is named now.
        new: String,
    },
    /// A task could not be run.
    #[error("the connection could not be made: {0}")]
    Task(#[from] tokio::task::JoinError),
}

/// A configuration whose files are followed, and the clients that are made from it.
pub struct Followed {
    source: Source,
    user_agent: Option<HeaderValue>,
    config: ArcSwap<Config>,
    files: Mutex<Files>,
    /// Bound: a handful, made at the start.
    apis: Mutex<Vec<Api>>,
    refused: Arc<Notify>,
}

struct Files {
    paths: Vec<PathBuf>,
    /// As it was just before the configuration in use was made of it.
    read: Snapshot,
}

impl std::fmt::Debug for Followed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Followed")
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}

impl Followed {
    /// Loads the configuration for the first time; requests are sent as `user_agent`.
    ///
    /// # Errors
    /// Naming the file and what is wrong with it.
    pub async fn load(
        source: Source,
        user_agent: Option<HeaderValue>,
    ) -> Result<Arc<Self>, components::Error> {
        let paths = source.load().await?.files;
        // Which files there are is known now. They are read before they are loaded again, so that no change
        // between the two is missed.
        let read = Snapshot::of(paths.clone());
        let Loaded { mut config, files } = source.load().await?;
        config.headers.extend(
            user_agent
                .clone()
                .map(|name| (http::header::USER_AGENT, name)),
        );
        Ok(Arc::new(Self {
            source,
            user_agent,
            config: ArcSwap::from_pointee(config),
            files: Mutex::new(Files { paths: files, read }),
            apis: Mutex::default(),
            refused: Arc::default(),
        }))
    }

    /// The configuration in use.
    pub fn config(&self) -> Arc<Config> {
        self.config.load_full()
    }

    /// The flag that names the kubeconfig.
    pub fn flag(&self) -> &'static str {
        self.source.flag
    }

    /// A client whose credentials are kept fresh.
    ///
    /// # Errors
    /// Where the configuration can't be used.
    pub fn connect(
        &self,
        purpose: Purpose,
        observe: Option<Arc<dyn Observe>>,
    ) -> Result<Api, ConnectError> {
        let api = Api::connect(&self.config(), purpose, observe)?;
        api.ring_at_refusal(Arc::clone(&self.refused));
        self.keep(&api);
        Ok(api)
    }

    /// A client without credentials whose authorities are kept fresh.
    ///
    /// # Errors
    /// Where the configuration can't be used.
    pub fn connect_anonymous(
        &self,
        purpose: Purpose,
        observe: Option<Arc<dyn Observe>>,
    ) -> Result<Api, ConnectError> {
        let api = Api::connect_anonymous(&self.config(), purpose, observe)?;
        self.keep(&api);
        Ok(api)
    }

    fn keep(&self, api: &Api) {
        let mut apis = self.apis.lock().unwrap_or_else(PoisonError::into_inner);
        apis.push(api.clone());
    }

    fn apis(&self) -> Vec<Api> {
        self.apis
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The client's refusals that have lasted longest, if there are recent ones.
    pub fn refusals(&self, now: Instant) -> Option<Refusals> {
        let apis = self.apis();
        let all = apis.iter().filter_map(Api::refusals);
        all.filter(|one| now.saturating_duration_since(one.last) < REFUSAL_IS_RECENT)
            .max_by_key(|one| one.last.saturating_duration_since(one.first))
    }

    /// Of the client certificate, if there is one.
    pub fn certificate(&self) -> Option<Validity> {
        self.apis().iter().find_map(Api::certificate)
    }

    /// Reads the files again, and uses what they say where they have changed, or in any case.
    ///
    /// # Errors
    /// Where something can't be used: what was in use stays in use.
    pub async fn refresh(&self, in_any_case: bool) -> Result<bool, Error> {
        let (paths, before) = {
            let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
            (files.paths.clone(), files.read.clone())
        };
        let read = Snapshot::of(paths);
        let changed = read.changed_since(&before);
        if changed.is_empty() && !in_any_case {
            return Ok(false);
        }
        tracing::debug!(?changed, in_any_case, "credentials are read again");
        let Loaded { mut config, files } = self.source.load().await?;
        let (old, new) = (&self.config().cluster_url, &config.cluster_url);
        if old != new {
            return Err(Error::OtherServer {
                flag: self.source.flag,
                old: old.to_string(),
                new: new.to_string(),
            });
        }
        let user_agent = self.user_agent.clone();
        config
            .headers
            .extend(user_agent.map(|name| (http::header::USER_AGENT, name)));
        let config = Arc::new(config);
        let (apis, of_task) = (self.apis(), Arc::clone(&config));
        // Plugins run meanwhile: not on a thread that serves others.
        let replaced = tokio::task::spawn_blocking(move || {
            // Each is tried: a plugin that failed for one is no reason for the others to wait.
            let results: Vec<_> = apis.iter().map(|api| api.replace(&of_task)).collect();
            results.into_iter().collect::<Result<(), ConnectError>>()
        });
        replaced.await??;
        self.config.store(config);
        let mut held = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        // A file that is named for the first time may have changed since it was loaded: it is not known yet,
        // and so the next check reads all of them again.
        *held = Files {
            read: read.only(&files),
            paths: files,
        };
        Ok(true)
    }

    /// Follows the files for ever. `lease`: how long refusals last until everything is read again though no
    /// file has changed; a plugin runs again at once. While that does not help, the pauses grow up to a
    /// minute.
    pub async fn keep_fresh(self: Arc<Self>, lease: Duration) {
        let mut complaint = Complaint::default();
        let mut forced: Option<Instant> = None;
        let mut pause = lease;
        loop {
            let refused = self.refusals(Instant::now());
            match &refused {
                Some(_) => tokio::time::sleep(REFUSED_READ_EVERY).await,
                None => tokio::select! {
                    () = tokio::time::sleep(READ_EVERY) => {}
                    () = self.refused.notified() => {}
                },
            }
            if refused.is_none() {
                pause = lease;
            }
            let now = Instant::now();
            let rested = |pause| forced.is_none_or(|at| now.saturating_duration_since(at) >= pause);
            let has_plugin = self.config().auth_info.exec.is_some();
            let by_refusal = self.refusals(now).is_some_and(|refusals| {
                has_plugin || refusals.last.saturating_duration_since(refusals.first) >= lease
            });
            let by_age = has_plugin
                && self.certificate().is_some_and(|certificate| {
                    is_to_be_renewed(certificate, jiff::Timestamp::now().as_second())
                });
            let by_refusal = by_refusal && rested(pause);
            let in_any_case = by_refusal || (by_age && rested(PAUSE_MAX));
            if in_any_case {
                forced = Some(now);
            }
            if by_refusal {
                pause = (pause * 2).min(PAUSE_MAX);
            }
            let refreshed = self.refresh(in_any_case).await;
            complaint.log(
                &format!("the credentials of --{}", self.source.flag),
                refreshed,
            );
        }
    }
}

fn is_to_be_renewed(certificate: Validity, now: i64) -> bool {
    let life = certificate.ends.saturating_sub(certificate.begins) as f64;
    let left = certificate.ends.saturating_sub(now) as f64;
    left < life * RENEWED_BEFORE_END
}

/// What `/livez` says after so long a time of nothing but refusals.
///
/// # Errors
/// Where only a restart may help.
pub fn check(refusals: Option<&Refusals>, most: Duration) -> Result<(), String> {
    match refusals {
        Some(refusals) if refusals.last.saturating_duration_since(refusals.first) >= most => {
            let seconds = refusals
                .last
                .saturating_duration_since(refusals.first)
                .as_secs();
            Err(format!(
                "nothing but refusals by the API server for {seconds}s: {}",
                refusals.why
            ))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    struct Bed {
        dir: tempfile::TempDir,
        followed: Arc<Followed>,
    }

    fn certificate(dir: &Path) {
        let made = rcgen::generate_simple_self_signed(vec!["manager".to_owned()]).unwrap();
        fs::write(dir.join("client.crt"), made.cert.pem()).unwrap();
        fs::write(dir.join("client.key"), made.signing_key.serialize_pem()).unwrap();
    }

    fn kubeconfig(dir: &Path, server: &str, user: &str) {
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
             clusters: [{{name: c, cluster: {{server: '{server}', certificate-authority: ca.crt}}}}]\n\
             contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n\
             users: [{{name: u, user: {user}}}]\n"
        );
        fs::write(dir.join("kubeconfig"), text).unwrap();
    }

    const SERVER: &str = "https://127.0.0.1:1";
    const BY_FILES: &str = "{client-certificate: client.crt, client-key: client.key}";

    /// What the kubeconfig of a folder leads to.
    async fn followed(dir: &Path) -> Arc<Followed> {
        let source = Source {
            flag: "kubeconfig",
            kubeconfig: Some(dir.join("kubeconfig")),
            master: None,
        };
        Followed::load(source, None).await.unwrap()
    }

    async fn bed(user: &str) -> Bed {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let dir = tempfile::tempdir().unwrap();
        certificate(dir.path());
        fs::copy(dir.path().join("client.crt"), dir.path().join("ca.crt")).unwrap();
        kubeconfig(dir.path(), SERVER, user);
        let followed = followed(dir.path()).await;
        Bed { dir, followed }
    }

    #[tokio::test]
    async fn every_file_of_a_kubeconfig_is_followed_and_the_clients_get_what_is_new() {
        let Bed { dir, followed } = bed(BY_FILES).await;
        let api = followed.connect(Purpose::Writes, None).unwrap();
        let first = api.certificate().unwrap();
        assert!(
            !followed.refresh(false).await.unwrap(),
            "nothing has changed"
        );
        certificate(dir.path());
        assert!(followed.refresh(false).await.unwrap());
        assert!(!followed.refresh(false).await.unwrap());
        fs::copy(dir.path().join("client.crt"), dir.path().join("ca.crt")).unwrap();
        let authorities = followed.config().root_cert.clone();
        assert!(followed.refresh(false).await.unwrap());
        assert_ne!(followed.config().root_cert, authorities);
        // kubeadm writes the certificate into the kubeconfig itself.
        use base64::Engine as _;
        let data = |name: &str| {
            base64::engine::general_purpose::STANDARD
                .encode(fs::read(dir.path().join(name)).unwrap())
        };
        let user = format!(
            "{{client-certificate-data: {}, client-key-data: {}}}",
            data("client.crt"),
            data("client.key")
        );
        kubeconfig(dir.path(), SERVER, &user);
        assert!(followed.refresh(false).await.unwrap());
        certificate(dir.path());
        assert!(
            !followed.refresh(false).await.unwrap(),
            "that file is not in use any more"
        );
        assert_eq!(
            first.ends,
            api.certificate().unwrap().ends,
            "rcgen's end of time"
        );
        assert!(followed.refresh(true).await.unwrap(), "in any case");
    }

    #[tokio::test]
    async fn what_cannot_be_used_leaves_the_old_credentials_in_use() {
        let Bed { dir, followed } = bed(BY_FILES).await;
        let _api = followed.connect(Purpose::Writes, None).unwrap();
        let before = followed.config();
        fs::write(dir.path().join("client.key"), "half writ").unwrap();
        let why = followed.refresh(false).await.unwrap_err().to_string();
        assert!(!why.is_empty());
        assert!(Arc::ptr_eq(&before, &followed.config()));
        certificate(dir.path());
        assert!(followed.refresh(false).await.unwrap(), "and is tried again");
        kubeconfig(dir.path(), "https://127.0.0.1:2", BY_FILES);
        let why = followed.refresh(false).await.unwrap_err().to_string();
        assert!(
            why.contains("https://127.0.0.1:2/ instead of https://127.0.0.1:1/"),
            "{why}"
        );
        assert!(why.contains("restart"), "{why}");
    }

    #[tokio::test]
    async fn a_plugin_that_gives_another_certificate_is_asked_again() {
        let Bed { dir, .. } = bed(BY_FILES).await;
        let plugin = dir.path().join("plugin");
        let calls = dir.path().join("calls");
        let script = format!(
            "#!/bin/sh\necho x >> {calls}\ncat {answer}\n",
            calls = calls.display(),
            answer = dir.path().join("answer").display()
        );
        fs::write(&plugin, script).unwrap();
        use std::os::unix::fs::PermissionsExt as _;
        fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).unwrap();
        let answer = |days: i64| {
            let mut params = rcgen::CertificateParams::default();
            let now = jiff::Timestamp::now().as_second();
            params.not_before = rcgen::date_time_ymd(2020, 1, 1);
            params.not_after = rcgen::date_time_ymd(2030 + i32::try_from(days).unwrap(), 1, 1);
            let key = rcgen::KeyPair::generate().unwrap();
            let made = params.self_signed(&key).unwrap();
            let status = serde_json::json!({
                "clientCertificateData": made.pem(),
                "clientKeyData": key.serialize_pem(),
            });
            let credential = serde_json::json!({
                "apiVersion": "client.authentication.k8s.io/v1",
                "kind": "ExecCredential",
                "status": status,
            });
            fs::write(dir.path().join("answer"), credential.to_string()).unwrap();
            now
        };
        answer(0);
        let user = format!(
            "{{exec: {{apiVersion: client.authentication.k8s.io/v1, command: {}, interactiveMode: Never}}}}",
            plugin.display()
        );
        kubeconfig(dir.path(), SERVER, &user);
        let followed = followed(dir.path()).await;
        let api = followed.connect(Purpose::Writes, None).unwrap();
        let first = api.certificate().unwrap();
        answer(1);
        assert!(
            !followed.refresh(false).await.unwrap(),
            "no file has changed"
        );
        assert!(followed.refresh(true).await.unwrap());
        assert!(api.certificate().unwrap().ends > first.ends);
        assert!(fs::read_to_string(&calls).unwrap().lines().count() >= 2);
    }

    /// A server that lets in who brings this token.
    async fn server(token: &'static str) -> String {
        use http::{HeaderMap, StatusCode, header::AUTHORIZATION};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let app = axum::Router::new().fallback(move |headers: HeaderMap| async move {
            match headers
                .get(AUTHORIZATION)
                .is_some_and(|given| given == token)
            {
                true => StatusCode::OK,
                false => StatusCode::UNAUTHORIZED,
            }
        });
        tokio::spawn(axum::serve(listener, app).into_future());
        url
    }

    #[tokio::test]
    async fn a_refusal_has_files_and_plugins_read_again_long_before_the_next_check() {
        let credential = |token: &str| {
            let kind =
                "\"apiVersion\":\"client.authentication.k8s.io/v1\",\"kind\":\"ExecCredential\"";
            format!("{{{kind},\"status\":{{\"token\":\"{token}\"}}}}")
        };
        for by_plugin in [false, true] {
            let Bed { dir, .. } = bed(BY_FILES).await;
            let url = server("Bearer new").await;
            let path = dir.path().join("token");
            let content = |token: &str| match by_plugin {
                true => credential(token),
                false => token.to_owned(),
            };
            fs::write(&path, content("old")).unwrap();
            let user = match by_plugin {
                true => format!(
                    "{{exec: {{apiVersion: client.authentication.k8s.io/v1, command: cat, args: ['{}'], \
                     interactiveMode: Never}}}}",
                    path.display()
                ),
                false => "{tokenFile: token}".to_owned(),
            };
            kubeconfig(dir.path(), &url, &user);
            let followed = followed(dir.path()).await;
            let api = followed.connect(Purpose::Writes, None).unwrap();
            let lease = Duration::from_secs(1);
            let following = tokio::spawn(Arc::clone(&followed).keep_fresh(lease));
            let ask = || api.send(node_cache::Request::get("/x"));
            let began = Instant::now();
            assert!(ask().await.unwrap_err().is_unauthorized());
            assert!(followed.refusals(Instant::now()).is_some());
            fs::write(&path, content("new")).unwrap();
            while ask().await.is_err() {
                tokio::time::sleep(Duration::from_millis(50)).await;
                assert!(
                    began.elapsed() < READ_EVERY - lease,
                    "by plugin: {by_plugin}"
                );
            }
            assert!(followed.refusals(Instant::now()).is_none());
            following.abort();
        }
    }

    #[test]
    fn a_plugins_certificate_is_renewed_with_a_fifth_of_its_life_left() {
        let certificate = Validity {
            begins: 1000,
            ends: 2000,
        };
        assert!(!is_to_be_renewed(certificate, 1799));
        assert!(is_to_be_renewed(certificate, 1801));
        assert!(is_to_be_renewed(certificate, 9999));
    }

    #[test]
    fn only_refusals_that_have_lasted_fail_the_check() {
        let most = Duration::from_secs(600);
        let first = Instant::now();
        let refusals = |seconds| Refusals {
            first,
            last: first + Duration::from_secs(seconds),
            why: "401".to_owned(),
        };
        assert!(check(None, most).is_ok());
        assert!(check(Some(&refusals(599)), most).is_ok());
        let why = check(Some(&refusals(600)), most).unwrap_err();
        assert_eq!(why, "nothing but refusals by the API server for 600s: 401");
    }
}
