//! `/debug`: what happens inside, and what may be changed there.

use std::collections::HashMap;

use axum::{
    body::Bytes,
    extract::{Extension, Query, State},
    response::{IntoResponse, Response},
};
use http::{Method, StatusCode};
use serde_json::Value;

use super::{Caller, Denied, OfCaller, Shared, json_text, not_found, plain, refusal};

pub(super) async fn verbosity(
    State(sources): Shared,
    Extension(caller): Extension<Caller>,
    method: Method,
    body: Bytes,
) -> Response {
    if method != Method::PUT {
        return plain(StatusCode::NOT_ACCEPTABLE, "unsupported http method\n");
    }
    let text = String::from_utf8_lossy(&body);
    let text = text.trim();
    let Some(level) = text.parse::<i64>().ok().filter(|level| *level >= 0) else {
        return plain(
            StatusCode::BAD_REQUEST,
            format!("failed to set the verbosity to {text:?}: expected a whole number from 0 up\n"),
        );
    };
    match sources.verbosity.set(level) {
        Ok(()) => {
            let Caller { user, from } = &caller;
            tracing::info!(level, user = user.name, groups = ?user.groups, ?from, "the verbosity was changed");
            plain(
                StatusCode::OK,
                format!("successfully set klog.logging.verbosity to {level}"),
            )
        }
        Err(why) => plain(
            StatusCode::BAD_REQUEST,
            format!("failed to set the verbosity: {why}\n"),
        ),
    }
}

/// Whether `?scope=fleet` is given; without it a replica speaks of itself alone.
///
/// # Errors
/// Another word.
fn is_for_fleet(query: &HashMap<String, String>) -> Result<bool, String> {
    match query.get("scope").map(String::as_str) {
        None | Some("replica") => Ok(false),
        Some("fleet") => Ok(true),
        Some(other) => Err(format!("scope {other:?} is neither fleet nor replica\n")),
    }
}

pub(super) async fn shards(
    State(sources): Shared,
    Query(query): Query<HashMap<String, String>>,
) -> Response {
    match is_for_fleet(&query) {
        Ok(true) => json_text(&sources.debug.fleet_shards().await),
        Ok(false) => json_text(&sources.debug.shards()),
        Err(wrong) => plain(StatusCode::BAD_REQUEST, wrong),
    }
}

fn shown(answer: Result<Value, Denied>, path: &str) -> Response {
    match answer {
        Ok(value) => json_text(&value),
        Err(Denied::NotFound(why)) => plain(StatusCode::NOT_FOUND, format!("{why}\n")),
        Err(Denied::Refused(refused)) => refusal(refused, path, false),
    }
}

pub(super) async fn explain(
    State(sources): Shared,
    Extension(caller): Extension<Caller>,
    Query(mut query): Query<HashMap<String, String>>,
) -> Response {
    let is_for_fleet = match is_for_fleet(&query) {
        Ok(is_for_fleet) => is_for_fleet,
        Err(wrong) => return plain(StatusCode::BAD_REQUEST, wrong),
    };
    let rights = OfCaller::of(&sources, caller);
    let mut given = |name: &str| query.remove(name);
    let answer = if let (Some(kind), Some(name)) = (given("kind"), given("name")) {
        let namespace = given("namespace").unwrap_or_default();
        sources.debug.explain_object(kind, namespace, name, rights)
    } else if let (Some(controller), Some(key)) = (given("controller"), given("key")) {
        let debug = &sources.debug;
        debug.explain(controller, key, is_for_fleet, rights)
    } else {
        return plain(
            StatusCode::BAD_REQUEST,
            "give ?controller=<name>&key=<namespace>/<name>, as in ?controller=deployment-controller&key=shop/web, or \
             ?kind=<kind>&namespace=<namespace>&name=<name>\n",
        );
    };
    shown(answer.await, "/debug/explain")
}

pub(super) async fn top(
    State(sources): Shared,
    Extension(caller): Extension<Caller>,
    Query(mut query): Query<HashMap<String, String>>,
) -> Response {
    let namespace = query.remove("namespace").unwrap_or_default();
    let rights = OfCaller::of(&sources, caller);
    shown(sources.debug.top(namespace, rights).await, "/debug/top")
}

pub(super) async fn unhappy(
    State(sources): Shared,
    Extension(caller): Extension<Caller>,
    Query(mut query): Query<HashMap<String, String>>,
) -> Response {
    let namespace = query.remove("namespace").unwrap_or_default();
    let rights = OfCaller::of(&sources, caller);
    let answer = sources.debug.unhappy(namespace, rights).await;
    shown(answer, "/debug/unhappy")
}

pub(super) async fn shadow(
    State(sources): Shared,
    Extension(caller): Extension<Caller>,
) -> Response {
    let rights = OfCaller::of(&sources, caller);
    shown(sources.debug.shadow(rights).await, "/debug/shadow")
}

/// Changes who owns a range; one that may `post` the path may do so.
pub(super) async fn move_range(
    State(sources): Shared,
    Extension(caller): Extension<Caller>,
    Query(query): Query<HashMap<String, String>>,
) -> Response {
    let range = query.get("range").and_then(|range| range.parse().ok());
    let (Some(range), Some(to)) = (range, query.get("to")) else {
        return plain(
            StatusCode::BAD_REQUEST,
            "give ?range=<number>&to=<replica>, as in ?range=17&to=manifold-1\n",
        );
    };
    let moved = sources
        .debug
        .move_range(range, to.clone(), caller.describe());
    let moved = moved.await;
    let Caller { user, from } = &caller;
    let refused = moved.as_ref().err();
    tracing::info!(range, to, user = user.name, groups = ?user.groups, ?from, refused, "a move was asked for");
    match moved {
        Ok(value) => (StatusCode::ACCEPTED, json_text(&value)).into_response(),
        Err(why) => plain(StatusCode::CONFLICT, format!("{why}\n")),
    }
}

pub(super) async fn pprof(State(sources): Shared) -> Response {
    if !sources.options.load().profiling {
        return not_found().await;
    }
    plain(
        StatusCode::NOT_IMPLEMENTED,
        "Go's profiles are not offered: this is no Go program. Use perf, or a profiler that reads DWARF.\n",
    )
}
