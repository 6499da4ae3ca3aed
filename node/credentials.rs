//! With `--use-service-account-credentials` each controller acts as a service account of its own in
//! kube-system, so that its rights are its own and the audit log names it.
//!
//! Tokens are asked for on first use, kept in memory alone, renewed at 80 % of their life, and never shown:
//! the types that hold them print nothing.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, PoisonError},
    time::{Duration, Instant},
};

use http::HeaderValue;
use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    core::v1::ServiceAccount,
};
use kube::{
    Api, Client, Error as KubeError,
    api::{ObjectMeta, PostParams},
};
use node_connection::components::causes;
use tokio::sync::Mutex;

/// Where the controllers' service accounts are.
pub const NAMESPACE: &str = "kube-system";

/// What is asked for; the server may give less.
const LIFE_SECONDS: i64 = 3600;

/// The part of its life after which a token is renewed.
const RENEWED_AFTER: f64 = 0.8;

/// How long a request for a token may take.
const REQUEST_MAX: Duration = Duration::from_secs(10);

/// After a failure the server is left alone for so long; callers meanwhile get the same error.
const FAILURE_REST: Duration = Duration::from_secs(1);

/// Why there is no token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no token for service account {NAMESPACE}/{account}: {why}")]
pub struct Error {
    /// The service account's name.
    pub account: String,
    /// What was met.
    pub why: String,
}

/// One account's token, or its absence.
#[derive(Default)]
struct Account {
    token: Option<Token>,
    failed: Option<(Instant, Error)>,
}

struct Token {
    header: HeaderValue,
    renewed_at: Instant,
    ends_at: Instant,
}

/// Hands out the `Authorization` header of each controller.
pub struct Credentials {
    client: Client,
    accounts: std::sync::Mutex<BTreeMap<&'static str, Arc<Mutex<Account>>>>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials")
    }
}

impl Credentials {
    /// Asks for tokens through this client: the manager's own identity.
    pub fn new(client: Client) -> Self {
        Self {
            client,
            accounts: std::sync::Mutex::default(),
        }
    }

    /// The header for a service account, which is made if there is none. One request at a time goes out for
    /// each account; a token that can still be used is used while its renewal fails.
    ///
    /// # Errors
    /// Naming the account and the cause.
    pub async fn authorization(&self, account: &'static str) -> Result<HeaderValue, Error> {
        let held = {
            let mut accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
            accounts.entry(account).or_default().clone()
        };
        let mut held = held.lock().await;
        let now = Instant::now();
        let usable = match &held.token {
            Some(token) if now < token.renewed_at => return Ok(token.header.clone()),
            Some(token) if now < token.ends_at => Some(token.header.clone()),
            _ => None,
        };
        if let Some((at, why)) = &held.failed
            && now < *at + FAILURE_REST
        {
            return usable.ok_or_else(|| why.clone());
        }
        let asked = tokio::time::timeout(REQUEST_MAX, self.request(account)).await;
        let result = asked.unwrap_or_else(|_| Err("the API server did not answer".to_owned()));
        match result {
            Ok(token) => {
                let header = token.header.clone();
                *held = Account {
                    token: Some(token),
                    failed: None,
                };
                Ok(header)
            }
            Err(why) => {
                let error = Error {
                    account: account.to_owned(),
                    why,
                };
                held.failed = Some((now, error.clone()));
                usable.ok_or(error)
            }
        }
    }

    /// Drops an account's token after the server has refused it (401): the next call asks again.
    pub async fn refused(&self, account: &'static str) {
        let held = {
            let accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
            accounts.get(account).cloned()
        };
        if let Some(held) = held {
            held.lock().await.token = None;
        }
    }

    async fn request(&self, account: &str) -> Result<Token, String> {
        let accounts = Api::<ServiceAccount>::namespaced(self.client.clone(), NAMESPACE);
        let asked = Instant::now();
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                expiration_seconds: Some(LIFE_SECONDS),
                ..TokenRequestSpec::default()
            }),
            ..TokenRequest::default()
        };
        let params = PostParams::default();
        let answer = match accounts
            .create_token_request(account, &params, &request)
            .await
        {
            Err(KubeError::Api(status)) if status.code == 404 => {
                self.make(&accounts, account).await?;
                accounts
                    .create_token_request(account, &params, &request)
                    .await
            }
            answer => answer,
        };
        let status = answer.map_err(|why| causes(&why))?.status;
        let status = status.ok_or("the answer holds no status")?;
        let token = status.token.ok_or("the answer holds no token")?;
        let expires = status
            .expiration_timestamp
            .ok_or("the answer holds no end of its token")?;
        let left = expires.0.duration_since(jiff::Timestamp::now());
        let life = Duration::try_from(left).unwrap_or_default();
        let mut header = HeaderValue::try_from(format!("Bearer {token}"))
            .map_err(|_| "the token is no header value".to_owned())?;
        header.set_sensitive(true);
        Ok(Token {
            header,
            renewed_at: asked + life.mul_f64(RENEWED_AFTER),
            ends_at: asked + life,
        })
    }

    async fn make(&self, accounts: &Api<ServiceAccount>, account: &str) -> Result<(), String> {
        let object = ServiceAccount {
            metadata: ObjectMeta {
                name: Some(account.to_owned()),
                namespace: Some(NAMESPACE.to_owned()),
                ..ObjectMeta::default()
            },
            ..ServiceAccount::default()
        };
        match accounts.create(&PostParams::default(), &object).await {
            Ok(_) => Ok(()),
            // Another replica was quicker.
            Err(KubeError::Api(status)) if status.code == 409 => Ok(()),
            Err(why) => Err(causes(&why)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Mutex as StdMutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    };

    use http::{Method, Request, Response, StatusCode};
    use http_body_util::Full;
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;

    /// An API server that gives tokens to accounts it has.
    #[derive(Clone, Default)]
    struct Server {
        log: Arc<StdMutex<Vec<String>>>,
        exists: Arc<AtomicBool>,
        broken: Arc<AtomicBool>,
        given: Arc<AtomicUsize>,
        life_seconds: i64,
    }

    impl Server {
        fn answer(&self, request: &Request<Body>) -> (StatusCode, Value) {
            let (method, path) = (request.method(), request.uri().path());
            self.log.lock().unwrap().push(format!("{method} {path}"));
            let status = |code: u16, reason: &str| {
                let body = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                    "message": format!("it is {reason}"), "reason": reason, "code": code});
                (StatusCode::from_u16(code).unwrap(), body)
            };
            let of_token = path.ends_with("/token");
            if self.broken.load(Ordering::Relaxed) {
                return status(403, "Forbidden");
            }
            if method == Method::POST && !of_token {
                self.exists.store(true, Ordering::Relaxed);
                return (
                    StatusCode::CREATED,
                    json!({"kind": "ServiceAccount", "apiVersion": "v1", "metadata": {"name": "a"}}),
                );
            }
            if !self.exists.load(Ordering::Relaxed) {
                return status(404, "NotFound");
            }
            let number = self.given.fetch_add(1, Ordering::Relaxed);
            let ends = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(self.life_seconds);
            let body = json!({
                "kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "metadata": {},
                "spec": {"audiences": []},
                "status": {"token": format!("t{number}"), "expirationTimestamp": ends.to_string()},
            });
            (StatusCode::CREATED, body)
        }

        fn credentials(&self) -> Credentials {
            let server = self.clone();
            let service = tower::service_fn(move |request: Request<Body>| {
                let (code, body) = server.answer(&request);
                async move {
                    let body = Full::new(bytes::Bytes::from(body.to_string()));
                    Ok::<_, std::convert::Infallible>(
                        Response::builder().status(code).body(body).unwrap(),
                    )
                }
            });
            Credentials::new(Client::new(service, "default"))
        }

        fn log(&self) -> Vec<String> {
            std::mem::take(&mut self.log.lock().unwrap())
        }
    }

    const ACCOUNTS: &str = "/api/v1/namespaces/kube-system/serviceaccounts";

    #[tokio::test]
    async fn an_account_that_is_absent_is_made_and_its_token_asked_for_once() {
        let server = Server {
            life_seconds: 3600,
            ..Server::default()
        };
        let credentials = Arc::new(server.credentials());
        let callers: Vec<_> = (0..8)
            .map(|_| {
                let credentials = credentials.clone();
                tokio::spawn(async move {
                    credentials
                        .authorization("deployment-controller")
                        .await
                        .unwrap()
                })
            })
            .collect();
        for caller in callers {
            let header = caller.await.unwrap();
            assert_eq!(header, "Bearer t0");
            assert!(header.is_sensitive() && !format!("{header:?} {credentials:?}").contains("t0"));
        }
        let token = format!("POST {ACCOUNTS}/deployment-controller/token");
        assert_eq!(
            server.log(),
            [token.clone(), format!("POST {ACCOUNTS}"), token.clone()]
        );
        credentials.refused("deployment-controller").await;
        assert_eq!(
            credentials
                .authorization("deployment-controller")
                .await
                .unwrap(),
            "Bearer t1"
        );
        assert_eq!(server.log(), [token]);
    }

    #[tokio::test]
    async fn a_token_is_renewed_before_its_end_and_used_while_renewal_fails() {
        let server = Server {
            life_seconds: 3600,
            ..Server::default()
        };
        server.exists.store(true, Ordering::Relaxed);
        let credentials = server.credentials();
        assert_eq!(credentials.authorization("a").await.unwrap(), "Bearer t0");
        let held = credentials.accounts.lock().unwrap()["a"].clone();
        let age = async |by: Duration| {
            let mut held = held.lock().await;
            let token = held.token.as_mut().unwrap();
            token.renewed_at -= by;
            token.ends_at -= by;
            held.failed = None;
        };
        age(Duration::from_secs(2870)).await;
        assert_eq!(
            credentials.authorization("a").await.unwrap(),
            "Bearer t0",
            "before 80 %"
        );
        age(Duration::from_secs(20)).await;
        server.broken.store(true, Ordering::Relaxed);
        assert_eq!(
            credentials.authorization("a").await.unwrap(),
            "Bearer t0",
            "past 80 %, renewal fails"
        );
        server.log();
        assert_eq!(credentials.authorization("a").await.unwrap(), "Bearer t0");
        assert_eq!(server.log(), [""; 0], "the server rests after a failure");
        age(Duration::from_secs(720)).await;
        let why = credentials
            .authorization("a")
            .await
            .unwrap_err()
            .to_string();
        assert_eq!(
            why,
            "no token for service account kube-system/a: it is Forbidden"
        );
        age(Duration::ZERO).await;
        server.broken.store(false, Ordering::Relaxed);
        assert_eq!(credentials.authorization("a").await.unwrap(), "Bearer t1");
    }
}
