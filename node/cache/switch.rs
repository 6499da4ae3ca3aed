//! The connection under a client, which another can take the place of while requests are under way.
//!
//! Certificates, authorities and tokens change while the process runs. A request that has begun ends on the
//! connection on which it began, so none is lost; the next one goes by the new connection, and a watch moves
//! when it is opened again.

use std::{
    error::Error,
    io,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Instant,
};

use arc_swap::ArcSwap;
use futures::{FutureExt as _, future::BoxFuture};
use http::StatusCode;
use kube::client::Body;
use tokio::sync::Notify;
use tower::{BoxError, ServiceExt as _};

use crate::{
    api::{AnswerBody, NoAnswer, Service},
    socket::{Guard, Line},
    unpoisoned,
};

/// From when to when a certificate is valid, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// Not before.
    pub begins: i64,
    /// Not after.
    pub ends: i64,
}

/// The state of a client to the server that has only refused it since: by 401, by TLS, or because its
/// credentials can't be had. A connection that can't be made for another reason says nothing about
/// credentials and is not counted.
#[derive(Clone, Debug)]
pub struct Refusals {
    /// The first since something else was answered.
    pub first: Instant,
    /// The last.
    pub last: Instant,
    /// What the last one said.
    pub why: String,
}

/// One connection and what belongs to it.
pub(crate) struct Connection {
    pub(crate) service: Service,
    pub(crate) line: Arc<Line>,
    /// Held by the request that goes ahead where there is no connection yet.
    pub(crate) connecting: tokio::sync::Mutex<()>,
    /// Of the client certificate, if there is one.
    pub(crate) validity: Option<Validity>,
}

impl Connection {
    pub(crate) fn new(service: Service, line: Arc<Line>, validity: Option<Validity>) -> Self {
        Self {
            service,
            line,
            connecting: tokio::sync::Mutex::new(()),
            validity,
        }
    }
}

pub(crate) struct Switch {
    now: ArcSwap<Connection>,
    /// Of all lines, those to come among them.
    pub(crate) guard: Arc<OnceLock<Arc<dyn Guard>>>,
    /// Whether a refusal is one of this process's credentials, and not of a token that came with a request.
    counts: bool,
    refusing: AtomicBool,
    refusals: Mutex<Option<Refusals>>,
    bell: OnceLock<Arc<Notify>>,
}

impl Switch {
    pub(crate) fn new(
        connection: Connection,
        guard: Arc<OnceLock<Arc<dyn Guard>>>,
        counts: bool,
    ) -> Arc<Self> {
        Arc::new(Self {
            now: ArcSwap::from_pointee(connection),
            guard,
            counts,
            refusing: AtomicBool::new(false),
            refusals: Mutex::default(),
            bell: OnceLock::new(),
        })
    }

    pub(crate) fn now(&self) -> Arc<Connection> {
        self.now.load_full()
    }

    pub(crate) fn replace(&self, connection: Connection) {
        self.now.store(Arc::new(connection));
    }

    /// Rings at the first refusal after a time without.
    pub(crate) fn ring(&self, bell: Arc<Notify>) {
        self.bell.get_or_init(|| bell);
    }

    pub(crate) fn refusals(&self) -> Option<Refusals> {
        unpoisoned(self.refusals.lock()).clone()
    }

    /// Sends by this connection and takes note of what became of it.
    pub(crate) async fn send(
        &self,
        connection: &Connection,
        request: http::Request<Body>,
    ) -> Result<http::Response<AnswerBody>, BoxError> {
        let answer = connection.service.clone().oneshot(request).await;
        self.note(&answer);
        answer
    }

    fn note(&self, answer: &Result<http::Response<AnswerBody>, BoxError>) {
        if !self.counts {
            return;
        }
        let why = match answer {
            Ok(answer) if answer.status() == StatusCode::UNAUTHORIZED => {
                "the API server answers 401 Unauthorized".to_owned()
            }
            Ok(_) => {
                if self.refusing.swap(false, Ordering::AcqRel) {
                    *unpoisoned(self.refusals.lock()) = None;
                }
                return;
            }
            Err(error) => match refusal(error.as_ref()) {
                Some(why) => why,
                None => return,
            },
        };
        let now = Instant::now();
        let mut refusals = unpoisoned(self.refusals.lock());
        let first = refusals.as_ref().map_or(now, |before| before.first);
        *refusals = Some(Refusals {
            first,
            last: now,
            why,
        });
        if !self.refusing.swap(true, Ordering::AcqRel)
            && let Some(bell) = self.bell.get()
        {
            bell.notify_one();
        }
    }
}

/// What an error says of credentials: that TLS failed, or that they can't be had.
fn refusal(error: &(dyn Error + 'static)) -> Option<String> {
    if error.is::<NoAnswer>() {
        return None;
    }
    // The layers above hyper's client only add credentials.
    if !error.is::<hyper_util::client::legacy::Error>() {
        return Some(format!("credentials can't be had: {error}"));
    }
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(tls) = error.downcast_ref::<rustls::Error>() {
            return Some(format!("TLS: {tls}"));
        }
        // An io::Error's source skips the error that it wraps, and hyper-rustls wraps one in another.
        let wrapped = error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref)
            .map(|inner| inner as &(dyn Error + 'static));
        next = wrapped.or_else(|| error.source());
    }
    None
}

/// For kube's client: always by the connection that is in place when the request is sent.
#[derive(Clone)]
pub(crate) struct Switched(pub(crate) Arc<Switch>);

impl tower::Service<http::Request<Body>> for Switched {
    type Response = http::Response<AnswerBody>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let switch = Arc::clone(&self.0);
        async move {
            let connection = switch.now();
            switch.send(&connection, request).await
        }
        .boxed()
    }
}
