//! Who asks, and whether they may: the secure port trusts what the API server trusts.
//!
//! A user is known by a client certificate, by headers that a trusted proxy sets, or by a bearer token that the API
//! server vouches for (TokenReview). Nobody is `system:anonymous`. Then `system:masters` may do all, some paths are open
//! to all, and the API server is asked about the rest (SubjectAccessReview). Answers are remembered for ten seconds.

mod cache;
mod reviews;
mod trust;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use http::{HeaderMap, Method};
use rustls::pki_types::CertificateDer;

use cache::Cache;
pub use reviews::ServerReviews;
pub use trust::Error;
use trust::{Proxy, Trusted};

use crate::{
    metrics::Metrics,
    options::{AuthenticationOptions, AuthorizationOptions},
};

/// Who may do anything, whatever the API server says: as upstream.
const MASTERS: &str = "system:masters";

/// How many answers are remembered of each sort: far more askers than a manager has, and a few hundred kilobytes.
const ANSWERS_MAX: usize = 4096;

/// How often certificates of authorities are looked up again.
const TRUST_REFRESHED_EVERY: Duration = Duration::from_secs(60);

/// Somebody who asks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct User {
    /// The name.
    pub name: String,
    /// The UID, where one is known.
    pub uid: String,
    /// Groups.
    pub groups: Vec<String>,
    /// Further fields.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    fn anonymous() -> Self {
        Self {
            name: "system:anonymous".to_owned(),
            groups: vec!["system:unauthenticated".to_owned()],
            ..Self::default()
        }
    }

    /// As upstream adds it to everybody who is known.
    fn authenticated(mut self) -> Self {
        const GROUP: &str = "system:authenticated";
        if !self.groups.iter().any(|group| group == GROUP) {
            self.groups.push(GROUP.to_owned());
        }
        self
    }
}

/// Why a request is not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// 401: a token or certificate that nobody vouches for; the reason is for the log alone.
    Unauthorized(String),
    /// 403, with upstream's sentence.
    Forbidden(String),
    /// 500: the API server could not be asked.
    Broken(String),
}

/// What is asked of the API server.
pub trait Reviews: Send + Sync + 'static {
    /// Whose token it is; `None`: nobody's. Without this method's server all tokens are nobody's: see
    /// [`Reviews::knows_tokens`].
    fn token<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Option<User>, String>>;
    /// Whether tokens can be asked about at all; where not, they are ignored.
    fn knows_tokens(&self) -> bool;
    /// Whether the user may, and a reason; `None`: there is nobody to ask, so no.
    fn access<'a>(
        &'a self,
        user: &'a User,
        verb: &'a str,
        path: &'a str,
    ) -> BoxFuture<'a, Result<(bool, String), String>>;
}

/// A request, as far as it matters here.
#[derive(Debug)]
pub struct Asked<'a> {
    /// HTTP's method.
    pub method: &'a Method,
    /// The path without the query.
    pub path: &'a str,
    /// Headers.
    pub headers: &'a HeaderMap,
    /// The client's certificates; it has proven that it holds the first one's key.
    pub certificates: &'a [CertificateDer<'static>],
}

/// Both questions, with what is remembered.
pub struct Auth {
    trusted: Trusted,
    reviews: Box<dyn Reviews>,
    open_paths: Vec<String>,
    tokens: Cache<[u8; 32], Option<User>>,
    token_ttl: Duration,
    allowed: Cache<(User, String, String), String>,
    allow_ttl: Duration,
    denied: Cache<(User, String, String), String>,
    deny_ttl: Duration,
    metrics: Arc<Metrics>,
}

impl std::fmt::Debug for Auth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Auth")
    }
}

impl Auth {
    /// Loads what is trusted, from files and from the cluster.
    ///
    /// # Errors
    /// A file or a lookup that failed, with the remedy.
    pub async fn new(
        authentication: &AuthenticationOptions,
        authorization: &AuthorizationOptions,
        metrics: &Arc<Metrics>,
    ) -> Result<Arc<Self>, Error> {
        let reviews = ServerReviews::new(authentication, authorization, metrics).await?;
        let trusted = Trusted::load(authentication, reviews.lookup_client()).await?;
        Ok(Arc::new(Self::with(
            trusted,
            Box::new(reviews),
            authentication,
            authorization,
            Arc::clone(metrics),
        )))
    }

    fn with(
        trusted: Trusted,
        reviews: Box<dyn Reviews>,
        authentication: &AuthenticationOptions,
        authorization: &AuthorizationOptions,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            trusted,
            reviews,
            open_paths: authorization.always_allow_paths.clone(),
            tokens: Cache::new(ANSWERS_MAX),
            token_ttl: authentication.token_ttl,
            allowed: Cache::new(ANSWERS_MAX),
            allow_ttl: authorization.allow_ttl,
            denied: Cache::new(ANSWERS_MAX),
            deny_ttl: authorization.deny_ttl,
            metrics,
        }
    }

    /// Looks up the authorities again and again; ends with the process.
    pub async fn keep_fresh(self: Arc<Self>) {
        loop {
            tokio::time::sleep(TRUST_REFRESHED_EVERY).await;
            if let Err(why) = self.trusted.refresh().await {
                tracing::warn!(%why, "client CAs could not be looked up again: the old ones stay");
            }
        }
    }

    /// Answers both questions.
    ///
    /// # Errors
    /// With what the client is to be told.
    pub async fn check(&self, asked: &Asked<'_>) -> Result<User, Refused> {
        let user = self.authenticate(asked).await?;
        self.authorize(&user, asked).await?;
        Ok(user)
    }

    /// Who asks. In upstream's order: proxy, certificate, token.
    async fn authenticate(&self, asked: &Asked<'_>) -> Result<User, Refused> {
        let trust = self.trusted.now();
        if let Some(user) = trust
            .proxy
            .as_ref()
            .and_then(|proxy| through_proxy(proxy, asked))
        {
            return Ok(user.authenticated());
        }
        let mut why = None;
        if let (Some(authority), false) = (&trust.client, asked.certificates.is_empty()) {
            match authority
                .verify(asked.certificates)
                .and_then(|()| trust::subject(&asked.certificates[0]))
            {
                Ok(user) => {
                    if let Some(left) = trust::valid_for(&asked.certificates[0]) {
                        self.metrics.client_certificate(left);
                    }
                    return Ok(user.authenticated());
                }
                Err(error) => why = Some(error),
            }
        }
        if let Some(token) = bearer(asked.headers).filter(|_| self.reviews.knows_tokens()) {
            match self.token(token).await {
                Ok(Some(user)) => return Ok(user.authenticated()),
                Ok(None) => why = Some("invalid bearer token".to_owned()),
                Err(error) => why = Some(error),
            }
        }
        match why {
            Some(why) => Err(Refused::Unauthorized(why)),
            None => Ok(User::anonymous()),
        }
    }

    async fn token(&self, token: &str) -> Result<Option<User>, String> {
        // Only a digest is kept.
        let key = trust::sha256(token.as_bytes());
        if let Some(answer) = self.tokens.get(&key) {
            return Ok(answer);
        }
        let answer = self.reviews.token(token).await?;
        self.tokens.put(key, answer.clone(), self.token_ttl);
        Ok(answer)
    }

    /// Whether they may.
    async fn authorize(&self, user: &User, asked: &Asked<'_>) -> Result<(), Refused> {
        let path = asked.path;
        let open = |pattern: &String| match pattern.strip_suffix('*') {
            Some(prefix) => path.starts_with(prefix),
            None => path == pattern,
        };
        if user.groups.iter().any(|group| group == MASTERS) || self.open_paths.iter().any(open) {
            return Ok(());
        }
        let verb = asked.method.as_str().to_ascii_lowercase();
        let forbidden = |reason: &str| {
            let reason = if reason.is_empty() {
                String::new()
            } else {
                format!(": {reason}")
            };
            let name = &user.name;
            Refused::Forbidden(format!(
                "forbidden: User {name:?} cannot {verb} path {path:?}{reason}"
            ))
        };
        let key = (user.clone(), verb.clone(), path.to_owned());
        if self.allowed.get(&key).is_some() {
            return Ok(());
        }
        if let Some(reason) = self.denied.get(&key) {
            return Err(forbidden(&reason));
        }
        match self.reviews.access(user, &verb, path).await {
            Ok((true, reason)) => {
                self.allowed.put(key, reason, self.allow_ttl);
                Ok(())
            }
            Ok((false, reason)) => {
                self.denied.put(key, reason.clone(), self.deny_ttl);
                Err(forbidden(&reason))
            }
            Err(why) => Err(Refused::Broken(why)),
        }
    }
}

/// The user whom a trusted proxy names; `None` where no such proxy asks or no user is named.
fn through_proxy(proxy: &Proxy, asked: &Asked<'_>) -> Option<User> {
    let first = asked.certificates.first()?;
    let texts = |name: &str| -> Vec<String> {
        let values = asked.headers.get_all(name).iter();
        values
            .filter_map(|value| value.to_str().ok())
            .filter(|text| !text.is_empty())
            .map(str::to_owned)
            .collect()
    };
    let name = proxy
        .user_headers
        .iter()
        .find_map(|name| texts(name).into_iter().next())?;
    proxy.authority.verify(asked.certificates).ok()?;
    let of = trust::subject(first).ok()?;
    if !proxy.names.is_empty() && !proxy.names.contains(&of.name) {
        return None;
    }
    let mut extra = BTreeMap::<String, Vec<String>>::new();
    for prefix in &proxy.extra_prefixes {
        for header in asked.headers.keys() {
            if let Some(key) = header.as_str().strip_prefix(prefix.as_str()) {
                extra
                    .entry(unescaped(key))
                    .or_default()
                    .extend(texts(header.as_str()));
            }
        }
    }
    Some(User {
        name,
        uid: proxy
            .uid_headers
            .iter()
            .find_map(|name| texts(name).into_iter().next())
            .unwrap_or_default(),
        groups: proxy
            .group_headers
            .iter()
            .flat_map(|name| texts(name))
            .collect(),
        extra,
    })
}

/// An extra field's key with its %-escapes undone; as it is where they are broken.
fn unescaped(key: &str) -> String {
    let mut bytes = Vec::with_capacity(key.len());
    let mut rest = key.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        match (first, hex.and_then(|hex| u8::from_str_radix(hex, 16).ok())) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            (b'%', None) => return key.to_owned(),
            (other, _) => {
                bytes.push(*other);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| key.to_owned())
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let text = headers.get(http::header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = text.trim().split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
pub(crate) mod tests;
