//! The live page: three static files, and the stream of what they show.
//!
//! A stream is an answer without an end, so it has bounds of its own: how many there are, how long one lasts
//! before the caller's rights are examined again, and that it ends when the port does. The page opens it
//! again each time.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{Extension, State},
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
    routing::get,
};
use futures::StreamExt as _;
use http::{HeaderName, HeaderValue, StatusCode, header};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::{Caller, OfCaller, Shared, Sources, connections::Connection, plain};

/// Streams at once: a few people with the page open, and places of this host left for probes and scrapes
/// ([`super::connections::CONNECTIONS_PER_ADDRESS_MAX`]).
pub(super) const STREAMS_MAX: usize = 8;
/// How long one lasts. The page then opens another, for which the caller's rights are examined again.
const STREAM_MAX: Duration = Duration::from_secs(600);
/// After which the connection of a client that reads nothing ends.
const UNREAD_MAX: Duration = Duration::from_secs(660);
/// Between two signs of life.
const ALIVE_EVERY: Duration = Duration::from_secs(10);
/// How soon the page opens a stream again that has ended.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Nothing but what comes from here: no inline script or style, no frame around it.
const POLICY: &str =
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HTML: &str = include_str!("page/index.html");
const CSS: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");
const ICON: &str = include_str!("page/icon.svg");

/// All streams of the port.
pub(super) struct Streams {
    places: Arc<Semaphore>,
    stop: CancellationToken,
}

impl Streams {
    /// `stop`: all end.
    pub(super) fn new(stop: CancellationToken) -> Arc<Self> {
        Arc::new(Self {
            places: Arc::new(Semaphore::new(STREAMS_MAX)),
            stop,
        })
    }
}

pub(super) fn routes(streams: Arc<Streams>) -> Router<Arc<Sources>> {
    Router::new()
        .route("/debug/page", get(to_the_page))
        .route("/debug/page/", get(|| file("text/html", HTML)))
        .route("/debug/page/page.css", get(|| file("text/css", CSS)))
        .route(
            "/debug/page/page.js",
            get(|| file("text/javascript", SCRIPT)),
        )
        .route("/debug/page/icon.svg", get(|| file("image/svg+xml", ICON)))
        .route("/debug/page/live", get(live))
        .layer(Extension(streams))
}

/// What the page's answers bear beside the headers of all.
fn bounded(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(POLICY),
    );
    headers.insert(
        header::REFERRER_POLICY,
        HeaderValue::from_static("no-referrer"),
    );
    headers.insert(
        HeaderName::from_static("cross-origin-resource-policy"),
        HeaderValue::from_static("same-origin"),
    );
    response
}

/// The page's own links are relative to a folder.
async fn to_the_page() -> Response {
    let location = [(header::LOCATION, "page/")];
    (StatusCode::PERMANENT_REDIRECT, location).into_response()
}

async fn file(kind: &'static str, text: &'static str) -> Response {
    let kind = [(header::CONTENT_TYPE, format!("{kind}; charset=utf-8"))];
    bounded((kind, text).into_response())
}

async fn live(
    State(sources): Shared,
    Extension(streams): Extension<Arc<Streams>>,
    Extension(caller): Extension<Caller>,
    connection: Option<Extension<Arc<Connection>>>,
) -> Response {
    let Ok(place) = Arc::clone(&streams.places).try_acquire_owned() else {
        let mut response = plain(
            StatusCode::TOO_MANY_REQUESTS,
            format!("{STREAMS_MAX} pages are open at this replica: ask another, or close one\n"),
        );
        let headers = response.headers_mut();
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static("10"));
        return bounded(response);
    };
    // A connection on which something is answered is not idle.
    let answering = connection.as_ref().map(|Extension(one)| one.request());
    let read = CancellationToken::new();
    let ended = read.clone().drop_guard();
    if let Some(Extension(connection)) = connection {
        tokio::spawn(async move {
            tokio::select! {
                () = read.cancelled() => {}
                () = tokio::time::sleep(UNREAD_MAX) => connection.displaced.cancel(),
            }
        });
    }
    let stop = streams.stop.clone();
    let end = async move {
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(STREAM_MAX) => {}
        }
    };
    let updates = sources.debug.live(OfCaller::of(&sources, caller));
    let held = (place, answering, ended);
    let events = updates.take_until(Box::pin(end)).map(move |update| {
        let _until_the_end = &held;
        Ok::<_, Infallible>(Event::default().event(update.name).data(update.json))
    });
    let begin = Event::default().retry(AGAIN_AFTER).comment("");
    let events = futures::stream::once(async { Ok(begin) }).chain(events);
    let alive = KeepAlive::new().interval(ALIVE_EVERY);
    bounded(Sse::new(events).keep_alive(alive).into_response())
}
