//! Who asks, and whether they may: the secure port trusts what the API server trusts.
//!
//! A user is known by a client certificate, by headers that a trusted proxy sets, or by a bearer token that
//! the API server vouches for (TokenReview). Nobody is `system:anonymous`. Then `system:masters` may do all,
//! some paths are open to all, and the API server is asked about the rest (SubjectAccessReview). Answers are
//! remembered for ten seconds.

mod cache;
mod limits;
mod reviews;
mod trust;

use std::{collections::BTreeMap, net::IpAddr, sync::Arc, time::Duration};

use controllers_kit::Resource;
use futures::future::BoxFuture;
use http::{HeaderMap, Method};
use node_connection::rotation::Followed;
use node_options::{AuthenticationOptions, AuthorizationOptions};
use node_telemetry::metrics::Metrics;
use percent_encoding::percent_decode_str;
use rustls::pki_types::CertificateDer;

use cache::Cache;
use limits::{Flights, Unanswered};
pub use reviews::ServerReviews;
pub use trust::Error;
use trust::{Proxy, Trusted};

/// Who may do anything, whatever the API server says: as upstream.
const MASTERS: &str = "system:masters";

/// How many answers are remembered of each sort: far more askers than a manager has. A key is a digest, so
/// that is less than a megabyte.
const ANSWERS_MAX: usize = 4096;

/// Bytes of user, verb and path beyond which an answer is not remembered: upstream's
/// `maxControlledAttrCacheSize`.
const REMEMBERED_BYTES_MAX: usize = 10_000;

/// Bytes of a path that is examined; a longer one is answered 414. The longest path here has some fifty.
pub const PATH_BYTES_MAX: usize = 1024;

/// How often certificates of authorities are fetched again.
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

    /// Whether nobody is known to ask.
    pub fn is_anonymous(&self) -> bool {
        self.name == "system:anonymous"
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
    /// 500: the API server could not be asked; the reason is for the log alone, since it names the server's
    /// address.
    Broken(String),
    /// 429: too many are being asked about at once.
    Busy,
    /// 414: nothing here has a path this long.
    TooLong,
}

/// What a right is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A path of this port.
    Path(String),
    /// An object of the API, or all of a namespace or of the cluster.
    Object {
        /// Its resource.
        resource: &'static Resource,
        /// Empty for what is cluster-scoped, and for all namespaces.
        namespace: String,
        /// Empty for all.
        name: String,
    },
}

impl Target {
    /// Each with its place, so that no two targets read alike.
    fn parts(&self) -> [&str; 5] {
        match self {
            Self::Path(path) => ["path", path, "", "", ""],
            Self::Object {
                resource,
                namespace,
                name,
            } => ["object", resource.group, resource.plural, namespace, name],
        }
    }

    /// In the API server's words.
    fn describe(&self) -> String {
        match self {
            Self::Path(path) => format!("path {path:?}"),
            Self::Object {
                resource,
                namespace,
                ..
            } => {
                let place = match namespace.is_empty() {
                    true => "at the cluster scope".to_owned(),
                    false => format!("in the namespace {namespace:?}"),
                };
                let (plural, group) = (resource.plural, resource.group);
                format!("resource {plural:?} in API group {group:?} {place}")
            }
        }
    }
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
        target: &'a Target,
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
    /// Where the client connects from; `None` in tests.
    pub from: Option<IpAddr>,
    /// The client's certificates; it has proven that it holds the first one's key.
    pub certificates: &'a [CertificateDer<'static>],
}

/// Both questions, with what is remembered.
pub struct Auth {
    trusted: Trusted,
    reviews: Arc<dyn Reviews>,
    open_paths: Vec<String>,
    certificate_uids: bool,
    tokens: Cache<Digest, Option<User>>,
    token_reviews: Flights<Digest, Option<User>>,
    allowed: Cache<Digest, ()>,
    denied: Cache<Digest, String>,
    access_reviews: Flights<Digest, (bool, String)>,
    metrics: Arc<Metrics>,
    /// The credentials by which the API server is asked.
    followed: Vec<Arc<Followed>>,
}

/// Of SHA-256. What it is made of, tokens among it, is not kept.
type Digest = [u8; 32];

/// A digest of who wants what, and whether that is short enough to be remembered.
fn wanted(user: &User, verb: &str, target: &Target) -> (Digest, bool) {
    let extra = user.extra.iter().flat_map(|(name, values)| {
        let count = values.len().to_string();
        [name.clone(), count]
            .into_iter()
            .chain(values.iter().cloned())
    });
    let groups = [user.groups.len().to_string()]
        .into_iter()
        .chain(user.groups.iter().cloned());
    let single = [&user.name, &user.uid].map(String::to_owned);
    let ends = std::iter::once(verb)
        .chain(target.parts())
        .map(str::to_owned);
    let mut bytes = Vec::new();
    let mut length = 0;
    for part in single.into_iter().chain(groups).chain(extra).chain(ends) {
        // Each with its length before it, or two different lists could read alike.
        bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
        bytes.extend_from_slice(part.as_bytes());
        length += part.len();
    }
    (trust::sha256(&bytes), length <= REMEMBERED_BYTES_MAX)
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
        let followed = reviews.followed();
        Ok(Arc::new(Self {
            followed,
            ..Self::with(
                trusted,
                Arc::new(reviews),
                authentication,
                authorization,
                Arc::clone(metrics),
            )
        }))
    }

    fn with(
        trusted: Trusted,
        reviews: Arc<dyn Reviews>,
        authentication: &AuthenticationOptions,
        authorization: &AuthorizationOptions,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            trusted,
            reviews,
            open_paths: authorization.always_allow_paths.clone(),
            certificate_uids: authentication.certificate_uids,
            tokens: Cache::new(ANSWERS_MAX, authentication.token_ttl),
            token_reviews: Flights::new(),
            allowed: Cache::new(ANSWERS_MAX, authorization.allow_ttl),
            denied: Cache::new(ANSWERS_MAX, authorization.deny_ttl),
            access_reviews: Flights::new(),
            metrics,
            followed: Vec::new(),
        }
    }

    /// The credentials by which the API server is asked for reviews.
    pub fn followed(&self) -> &[Arc<Followed>] {
        &self.followed
    }

    /// Fetches the authorities again and again; ends with the process.
    pub async fn keep_fresh(self: Arc<Self>) {
        let mut complaint = reload::Complaint::default();
        loop {
            tokio::time::sleep(TRUST_REFRESHED_EVERY).await;
            complaint.log(
                "client certificate authorities",
                self.trusted.refresh().await,
            );
        }
    }

    /// Answers both questions.
    ///
    /// # Errors
    /// What the client is answered.
    pub async fn check(&self, asked: &Asked<'_>) -> Result<User, Refused> {
        if asked.path.len() > PATH_BYTES_MAX {
            return Err(Refused::TooLong);
        }
        let user = self.authenticate(asked).await?;
        let path = asked.path;
        let open = |pattern: &String| match pattern.strip_suffix('*') {
            Some(prefix) => path.starts_with(prefix),
            None => path == pattern,
        };
        if !self.open_paths.iter().any(open) {
            let verb = asked.method.as_str().to_ascii_lowercase();
            let target = Target::Path(path.to_owned());
            self.authorize(&user, &verb, &target, asked.from).await?;
        }
        Ok(user)
    }

    /// Whether a user may `get` a path, whatever paths are open to all.
    pub async fn may_get(&self, user: &User, path: &str, from: Option<IpAddr>) -> bool {
        let target = Target::Path(path.to_owned());
        self.authorize(user, "get", &target, from).await.is_ok()
    }

    /// Whether a user may do something to an object of the API.
    ///
    /// # Errors
    /// Where not, or where nobody could be asked.
    pub async fn may(
        &self,
        user: &User,
        verb: &str,
        target: &Target,
        from: Option<IpAddr>,
    ) -> Result<(), Refused> {
        self.authorize(user, verb, target, from).await
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
                .and_then(|()| trust::subject(&asked.certificates[0], self.certificate_uids))
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
            match self.token(token, asked.from).await {
                Ok(Some(user)) => return Ok(user.authenticated()),
                Ok(None) => why = Some("invalid bearer token".to_owned()),
                Err(Unanswered::Failed(error)) => why = Some(error),
                Err(Unanswered::Busy) => return Err(Refused::Busy),
            }
        }
        match why {
            Some(why) => Err(Refused::Unauthorized(why)),
            None => Ok(User::anonymous()),
        }
    }

    async fn token(&self, token: &str, from: Option<IpAddr>) -> Result<Option<User>, Unanswered> {
        let key = trust::sha256(token.as_bytes());
        if let Some(answer) = self.tokens.get(&key) {
            return Ok(answer);
        }
        let ask = || {
            let (reviews, token) = (Arc::clone(&self.reviews), token.to_owned());
            async move { reviews.token(&token).await }
        };
        let answer = self.token_reviews.join(key, from, ask).await?;
        self.tokens.put(key, answer.clone());
        Ok(answer)
    }

    /// Whether they may, by group or by the API server's word.
    async fn authorize(
        &self,
        user: &User,
        verb: &str,
        target: &Target,
        from: Option<IpAddr>,
    ) -> Result<(), Refused> {
        if user.groups.iter().any(|group| group == MASTERS) {
            return Ok(());
        }
        let forbidden = |reason: &str| {
            let reason = if reason.is_empty() {
                String::new()
            } else {
                format!(": {reason}")
            };
            let name = &user.name;
            Refused::Forbidden(format!(
                "forbidden: User {name:?} cannot {verb} {}{reason}",
                target.describe()
            ))
        };
        let (key, remembered) = wanted(user, verb, target);
        if self.allowed.get(&key).is_some() {
            return Ok(());
        }
        if let Some(reason) = self.denied.get(&key) {
            return Err(forbidden(&reason));
        }
        let ask = || {
            let reviews = Arc::clone(&self.reviews);
            let (user, verb, target) = (user.clone(), verb.to_owned(), target.clone());
            async move { reviews.access(&user, &verb, &target).await }
        };
        match self.access_reviews.join(key, from, ask).await {
            Ok((true, _)) => {
                if remembered {
                    self.allowed.put(key, ());
                }
                Ok(())
            }
            Ok((false, reason)) => {
                if remembered {
                    self.denied.put(key, reason.clone());
                }
                Err(forbidden(&reason))
            }
            Err(Unanswered::Failed(why)) => Err(Refused::Broken(why)),
            Err(Unanswered::Busy) => Err(Refused::Busy),
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
    let of = trust::subject(first, false).ok()?;
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
    // The library leaves a broken escape in place and undoes the others; url.PathUnescape refuses the whole.
    let broken = key.split('%').skip(1).any(|after| {
        let digits = after.as_bytes().get(..2);
        digits.is_none_or(|digits| !digits.iter().all(u8::is_ascii_hexdigit))
    });
    match percent_decode_str(key).decode_utf8() {
        Ok(text) if !broken => text.into_owned(),
        _ => key.to_owned(),
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let text = headers.get(http::header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = text.trim().split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
pub(crate) mod tests;
