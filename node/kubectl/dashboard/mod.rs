//! `kubectl manifold dashboard`: a port of this machine that forwards the live page's requests to a replica,
//! with the user's credentials.
//!
//! One replica is asked for all; when it does not answer any more, another one is.

mod rules;

use std::{
    net::{Ipv4Addr, SocketAddr},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::{Request, State},
    response::{IntoResponse as _, Response},
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    sync::Mutex,
};

use crate::reach::{Replica, Trouble, Way};
use rules::{Asked, Rules};

/// How often another replica is asked for one request.
const REPLICAS_MAX: usize = 5;
/// How long the head of an answer may take.
const HEAD_MAX: Duration = Duration::from_secs(10);

/// What of a replica's answer reaches the browser.
static PASSED: [HeaderName; 8] = [
    header::CONTENT_TYPE,
    header::CACHE_CONTROL,
    header::CONTENT_SECURITY_POLICY,
    header::X_CONTENT_TYPE_OPTIONS,
    header::REFERRER_POLICY,
    header::RETRY_AFTER,
    header::CONTENT_LENGTH,
    HeaderName::from_static("cross-origin-resource-policy"),
];

struct Dashboard {
    way: Way,
    rules: Rules,
    asked: Mutex<InUse>,
}

/// The replica that is asked.
#[derive(Default)]
struct InUse {
    replica: Option<Arc<Replica>>,
    /// Those that have not answered since one did. Bound: [`REPLICAS_MAX`].
    failed: Vec<String>,
}

/// Serves the page until the program is ended.
///
/// # Errors
/// In words: no replica can be asked, the user may not, or the port is taken.
pub async fn serve(way: Way, port: u16, opens: bool) -> Result<(), Trouble> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let wrong = |why: std::io::Error| format!("{address}: {why}: choose another --port");
    let listener = TcpListener::bind(address).await.map_err(wrong)?;
    let port = listener.local_addr().map_err(wrong)?.port();
    let word = uuid::Uuid::new_v4().simple().to_string();
    let dashboard = Arc::new(Dashboard {
        way,
        rules: Rules { port, word },
        asked: Mutex::default(),
    });
    let url = dashboard.rules.url();
    // A user who may not see the page reads so here.
    let replica = dashboard.replica(None).await?;
    replica.get("/debug/page/").await?;
    eprintln!(
        "The page of the fleet, served by {}. Ctrl-C ends it.",
        replica.name
    );
    println!("{url}");
    if opens {
        browse(&url);
    }
    let router = Router::new().fallback(forward).with_state(dashboard);
    let served = async { axum::serve(listener, router).await };
    // A tunnel's process ends with what has opened it, which a signal alone would not let go.
    tokio::select! {
        served = served => served.map_err(|why| Trouble::from(why.to_string())),
        ended = ended() => ended.map_err(|why| Trouble::from(why.to_string())),
    }
}

/// Resolves when the program is asked to end.
async fn ended() -> std::io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted,
        _terminated = terminate.recv() => Ok(()),
    }
}

/// Opens the browser, if there is one; the URL is printed anyway.
fn browse(url: &str) {
    let program = match cfg!(target_os = "macos") {
        true => "open",
        false => "xdg-open",
    };
    let started = std::process::Command::new(program)
        .arg(url)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    drop(started);
}

impl Dashboard {
    /// The replica that is in use; another one where this one has failed.
    async fn replica(&self, failed: Option<&Arc<Replica>>) -> Result<Arc<Replica>, String> {
        let mut asked = self.asked.lock().await;
        if let Some(failed) = failed
            && let Some(replica) = &asked.replica
            && Arc::ptr_eq(replica, failed)
        {
            let name = failed.name.clone();
            asked.replica = None;
            asked.failed.push(name);
        }
        if let Some(replica) = &asked.replica {
            return Ok(Arc::clone(replica));
        }
        let opened = self.way.open_but(&asked.failed).await;
        if opened.is_err() || asked.failed.len() >= REPLICAS_MAX {
            // What has failed may be back by now.
            asked.failed.clear();
        }
        let replica = Arc::new(opened?);
        asked.replica = Some(Arc::clone(&replica));
        Ok(replica)
    }

    /// A replica's answer, of whichever gives one.
    async fn answer(&self, path: &str) -> Result<http::Response<kube::client::Body>, String> {
        let mut failed = None;
        let mut why = String::new();
        for _ in 0..REPLICAS_MAX {
            let replica = match self.replica(failed.as_ref()).await {
                Ok(replica) => replica,
                Err(trouble) => return Err(trouble),
            };
            match tokio::time::timeout(HEAD_MAX, replica.send(path)).await {
                Ok(Ok(answer)) => {
                    self.asked.lock().await.failed.clear();
                    return Ok(answer);
                }
                Ok(Err(trouble)) => why = format!("{}: {}", replica.name, trouble.why),
                Err(_) => {
                    why = format!("{}: no answer within {}s", replica.name, HEAD_MAX.as_secs());
                }
            }
            failed = Some(replica);
        }
        Err(why)
    }
}

fn text(code: u16, words: &str) -> Response {
    let code = StatusCode::from_u16(code).unwrap_or(StatusCode::BAD_GATEWAY);
    let kind = [
        (header::CONTENT_TYPE, "text/plain; charset=utf-8"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (code, kind, format!("{words}\n")).into_response()
}

/// The path and query by which the replica is asked.
fn path_of(rules: &Rules, request: &Request) -> Result<String, (u16, &'static str)> {
    let of = |name: &HeaderName| {
        let value: Option<&HeaderValue> = request.headers().get(name);
        value.map(|value| value.to_str().unwrap_or("?"))
    };
    let path = rules.path(&Asked {
        method: request.method().as_str(),
        path: request.uri().path(),
        host: of(&header::HOST),
        origin: of(&header::ORIGIN),
        site: of(&HeaderName::from_static("sec-fetch-site")),
    })?;
    Ok(match request.uri().query() {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    })
}

async fn forward(State(dashboard): State<Arc<Dashboard>>, request: Request) -> Response {
    let path = match path_of(&dashboard.rules, &request) {
        Ok(path) => path,
        Err((code, words)) => return text(code, words),
    };
    drop(request);
    match dashboard.answer(&path).await {
        Ok(answer) => passed(answer),
        Err(why) => {
            eprintln!("kubectl manifold: {why}");
            text(502, &why)
        }
    }
}

fn passed(answer: http::Response<kube::client::Body>) -> Response {
    let (head, body) = answer.into_parts();
    let mut headers = HeaderMap::new();
    for name in &PASSED {
        if let Some(value) = head.headers.get(name) {
            headers.insert(name.clone(), value.clone());
        }
    }
    let mut response = Response::new(Body::new(body));
    *response.status_mut() = head.status;
    *response.headers_mut() = headers;
    response
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
