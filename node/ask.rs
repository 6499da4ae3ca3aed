//! Answers a controller's queries, and proves after a takeover that what a plan counted is all there is.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use controllers_kit::{
    Answer, Answers, Counted, Failure, Key, Pick, Query, Reader, Resource, Str, Timestamp,
};
use futures::{StreamExt, stream};
use serde_json::Value;
use tokio::sync::Semaphore;

use crate::{
    clock::Clock,
    cloud::{self, Cloud},
    keys::Keys,
    queue::Monotonic,
    server::{LiveItem, Refused, Sender, Server},
    view::View,
};

mod schema;

/// Queries of one key that are under way at once.
const QUERIES_AT_ONCE: usize = 16;
/// Calls to the cloud provider of one key that are under way at once.
const CLOUD_CALLS_AT_ONCE: usize = 200;
/// A query that has no answer by then has failed: its plan decides what that means.
const QUERY_TIMEOUT: Duration = Duration::from_secs(10);

/// Paths of one API that are asked for at once. A query waits for a place within its own patience, so an API
/// that hangs holds no more requests than these.
const PATHS_AT_ONCE: usize = 64;
/// APIs whose places are counted apart; those beyond share one count. There are as many as API groups that
/// are asked.
const APIS_MAX: usize = 64;

/// The places of each API, by the path's first three parts.
static PLACES: LazyLock<Mutex<HashMap<String, Arc<Semaphore>>>> = LazyLock::new(Mutex::default);

fn places(path: &str) -> Arc<Semaphore> {
    let api: String = path.split('/').take(4).collect::<Vec<_>>().join("/");
    let mut places = PLACES.lock().unwrap_or_else(PoisonError::into_inner);
    let api = if places.len() < APIS_MAX || places.contains_key(&api) {
        api
    } else {
        String::new()
    };
    let new = || Arc::new(Semaphore::new(PATHS_AT_ONCE));
    Arc::clone(places.entry(api).or_insert_with(new))
}

/// Whether the keys that wait for an answer are as many as the controller's workers: a flag bounds how many
/// load balancers are worked on at once, however long that takes.
pub fn holds_its_worker(queries: &[Query]) -> bool {
    let cloud = |query: &Query| matches!(query, Query::Cloud(_));
    queries.iter().any(cloud)
}

/// Whether an answer may take so long that nobody else should have to wait for it.
pub fn is_slow(queries: &[Query]) -> bool {
    queries.iter().any(|query| {
        matches!(
            query,
            Query::Path { .. }
                | Query::Picked { .. }
                | Query::Page { .. }
                | Query::Schema { .. }
                | Query::Cloud(_)
        )
    })
}

/// Objects in one page of what is picked from.
const PAGE: usize = 500;
/// Pages of a namespace; beyond it nothing is known of the rest, so that nothing may be decided.
const PAGES_MAX: usize = 200;
/// What a page may take.
const PAGE_TIMEOUT: Duration = Duration::from_secs(30);

/// Fetches the answers. One that fails is an answer too. Certificates and tokens are made by `keys` as of
/// `now`; calls to the cloud go to the `provider`.
pub async fn ask(
    server: &dyn Server,
    keys: &dyn Keys,
    provider: &dyn Cloud,
    now: Timestamp,
    sender: &Sender,
    queries: Vec<Query>,
) -> Answers {
    // One key has all routes of a cluster: its calls to the provider are bounded there.
    let at_once = match holds_its_worker(&queries) {
        true => CLOUD_CALLS_AT_ONCE,
        false => QUERIES_AT_ONCE,
    };
    stream::iter(queries)
        .map(|query| async move {
            let answer = match &query {
                Query::Live { resource, key } => {
                    answered(QUERY_TIMEOUT, server.get(sender, resource, key)).await
                }
                Query::Content {
                    resource,
                    namespace,
                } => {
                    let content = server.content(sender, resource, namespace);
                    match tokio::time::timeout(QUERY_TIMEOUT, content).await {
                        Ok(Ok(metas)) => Answer::content(&metas),
                        Ok(Err(Refused {
                            failure: Failure::NotFound(_) | Failure::NotSupported(_),
                            ..
                        })) => Answer::Missing,
                        Ok(Err(refused)) => Answer::Failed(refused.failure.to_string()),
                        Err(_) => Answer::Failed(no_answer_within(QUERY_TIMEOUT)),
                    }
                }
                Query::Page {
                    resource,
                    limit,
                    token,
                } => {
                    let page = server.page(sender, resource, *limit, token);
                    match tokio::time::timeout(PAGE_TIMEOUT, page).await {
                        Ok(Ok(Some(page))) => Answer::page(&page),
                        Ok(Ok(None)) => Answer::NotFound("the token has expired".to_owned()),
                        Ok(Err(Refused {
                            failure: Failure::NotFound(_) | Failure::NotSupported(_),
                            ..
                        })) => Answer::Missing,
                        Ok(Err(refused)) => Answer::Failed(refused.failure.to_string()),
                        Err(_) => Answer::Failed(no_answer_within(PAGE_TIMEOUT)),
                    }
                }
                Query::Present { resource } => {
                    let present = server.present(sender, resource);
                    match tokio::time::timeout(QUERY_TIMEOUT, present).await {
                        Ok(Ok(version)) => Answer::present(version),
                        Ok(Err(Refused {
                            failure: Failure::NotFound(_),
                            ..
                        })) => Answer::Missing,
                        Ok(Err(refused)) => Answer::Failed(refused.failure.to_string()),
                        Err(_) => Answer::Failed(no_answer_within(QUERY_TIMEOUT)),
                    }
                }
                Query::Path { path, patience } => {
                    let read = async {
                        let _place = places(path).acquire_owned().await;
                        server.read(sender, path).await
                    };
                    match tokio::time::timeout(*patience, read).await {
                        Ok(Err(Refused {
                            failure: Failure::NotFound(why),
                            ..
                        })) => Answer::NotFound(why),
                        Ok(read) => answer(read),
                        Err(_) => Answer::Failed(no_answer_within(*patience)),
                    }
                }
                Query::Picked {
                    resource,
                    namespace,
                    pick,
                } => picked(server, sender, resource, namespace, *pick).await,
                Query::Schema {
                    group,
                    version,
                    kind,
                } => schema::read(server, sender, (group, version, kind)).await,
                Query::Review { path, body } => {
                    let review = server.review(sender, path, body);
                    answered(QUERY_TIMEOUT, async { review.await.map(Some) }).await
                }
                Query::Cloud(call) => cloud::carry_out(server, provider, sender, call).await,
                Query::Certificate(issue) => match keys.certificate(issue, now) {
                    Ok(pem) => Answer::Object(Arc::new(Value::String(pem))),
                    Err(why) => Answer::Failed(why),
                },
                Query::Token { claims } => match keys.token(claims) {
                    Ok(token) => Answer::Object(Arc::new(Value::String(token))),
                    Err(why) => Answer::Failed(why),
                },
            };
            (query, answer)
        })
        .buffer_unordered(at_once)
        .collect()
        .await
}

/// What is picked from all objects of a resource in a namespace, page by page.
async fn picked(
    server: &dyn Server,
    sender: &Sender,
    resource: &'static Resource,
    namespace: &str,
    pick: Pick,
) -> Answer {
    let mut found = std::collections::BTreeSet::new();
    let mut token = String::new();
    for _ in 0..PAGES_MAX {
        let path = format!(
            "{}?limit={PAGE}&continue={token}",
            resource.path(namespace, "")
        );
        let page = match answered(PAGE_TIMEOUT, server.read(sender, &path)).await {
            Answer::Object(page) => page,
            other => return other,
        };
        let items = page["items"].as_array().into_iter().flatten();
        found.extend(items.flat_map(|item| pick.from(item)));
        match page["metadata"]["continue"].as_str() {
            // A token is of base64 for URLs.
            Some(next) if !next.is_empty() => next.clone_into(&mut token),
            _ => return Answer::Object(Arc::new(serde_json::json!(found))),
        }
    }
    Answer::Failed(format!(
        "more than {} {} in {namespace}",
        PAGES_MAX * PAGE,
        resource.plural
    ))
}

/// What one object's reading has come to, within a patience.
async fn answered(
    patience: Duration,
    read: impl Future<Output = Result<Option<Value>, Refused>>,
) -> Answer {
    match tokio::time::timeout(patience, read).await {
        Ok(read) => answer(read),
        Err(_) => Answer::Failed(no_answer_within(patience)),
    }
}

fn answer(read: Result<Option<Value>, Refused>) -> Answer {
    match read {
        Ok(Some(object)) => Answer::Object(Arc::new(object)),
        Ok(None) => Answer::Missing,
        Err(refused) => Answer::Failed(refused.failure.to_string()),
    }
}

fn no_answer_within(patience: Duration) -> String {
    format!("no answer within {} s", patience.as_secs())
}

/// What came of a proof.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proof {
    /// The cache holds what the API server holds: the plan rests on the truth.
    Fresh,
    /// It does not: the plan is dropped, and made again when the cache has caught up.
    Stale {
        /// In words, for `/debug/explain`.
        why: String,
    },
}

/// Sets that are proven at once, for one key.
const PROOFS_AT_ONCE: usize = 16;
/// Sets of which it is remembered how new the cache is known to be; beyond it all are forgotten, and proven
/// again.
const PROVEN_MAX: usize = 20_000;

type Set = (&'static Resource, Str);

/// What can't be read is not asked for again so long: a webhook that swallows its requests would cost
/// everybody
/// [`QUERY_TIMEOUT`].
const HOPELESS_FOR: Duration = Duration::from_secs(10);

/// What a read of the server has shown of a set.
#[derive(Default)]
struct Shown {
    /// The cache lacked nothing that there was at this version.
    reached: u64,
    /// It can't be read: until then nobody asks again.
    hopeless_until: Option<Monotonic>,
}

/// How far live reads have shown the server to be with one resource.
#[derive(Default)]
struct Floor {
    /// The read whose version the watch has yet to pass: when it began, and that version.
    ahead: Option<(Monotonic, u64)>,
    /// The newest read whose version the watch has passed: when it began, and when that was noticed.
    passed: Option<(Monotonic, Monotonic)>,
}

/// What is known of the cache besides how far each watch has come: a resource of which nothing changes may
/// show nothing for a minute, though nothing is missing from it. One read of the server does for everybody
/// who asks meanwhile. And what one read has shown the server's version to be does for all keys, once the
/// watch has passed it.
#[derive(Default)]
pub struct Proofs {
    known: Mutex<HashMap<Set, Arc<tokio::sync::Mutex<Shown>>>>,
    /// Bound: as many as there are resources.
    floors: Mutex<HashMap<&'static Resource, Floor>>,
}

/// What proofs are made with.
#[derive(Clone, Copy)]
pub struct Grounds<'a> {
    /// The truth.
    pub server: &'a dyn Server,
    /// What is compared with it.
    pub view: &'a dyn View,
    /// What is known already.
    pub proofs: &'a Proofs,
    /// When that was.
    pub clock: &'a dyn Clock,
}

impl Grounds<'_> {
    /// Whether the cache of a resource, as it was at `by`, held all that had been written by `from`: a live
    /// read began after that, and the watch had passed its version before `by`.
    pub fn holds(&self, resource: &'static Resource, from: Monotonic, by: Monotonic) -> bool {
        let mut floors = self.proofs.floors();
        let Some(floor) = floors.get_mut(resource) else {
            return false;
        };
        let holds = floor
            .passed
            .is_some_and(|(began, noticed)| began >= from && noticed < by);
        // For the next that asks: this plan was made before it was known how far the watch is.
        let passed = |&mut (_, version): &mut (Monotonic, u64)| self.view.passed(resource, version);
        if let Some((began, _)) = floor.ahead.take_if(passed) {
            floor.passed = Some((began, self.clock.monotonic()));
        }
        holds
    }

    /// A live read that began then has shown the server to have come so far.
    fn note(&self, resource: &'static Resource, began: Monotonic, version: u64) {
        if version == 0 {
            return;
        }
        let mut floors = self.proofs.floors();
        let floor = floors.entry(resource).or_default();
        // One that is waited for stays: under a stream of reads the watch would never pass the newest.
        floor.ahead.get_or_insert((began, version));
    }
}

impl Proofs {
    fn floors(&self) -> MutexGuard<'_, HashMap<&'static Resource, Floor>> {
        self.floors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of(&self, set: &Counted) -> Arc<tokio::sync::Mutex<Shown>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= PROVEN_MAX {
            known.clear();
        }
        let place = (set.resource, set.namespace.clone());
        Arc::clone(known.entry(place).or_default())
    }
}

/// What is to be compared of what a plan counted: sets that must be whole as of a version to which the cache
/// has not come, strict ones of which an object can't be decoded, and of the others those that are `doubted`.
pub fn unsure<'a>(
    view: &dyn View,
    counted: &'a [Counted],
    doubted: impl Fn(&Counted) -> bool,
) -> Vec<&'a Counted> {
    let unsure = |set: &&Counted| match set.since {
        0 => doubted(set),
        since => !view.passed(set.resource, since) || unreadable(view, set).is_some(),
    };
    counted.iter().filter(unsure).collect()
}

/// An object of a strict set that the API server holds and this build can't decode: the cache lacks it
/// however far its watch has come.
fn unreadable(view: &dyn View, set: &Counted) -> Option<String> {
    if !set.strict {
        return None;
    }
    let of_set = |(resource, key, _): &(&'static Resource, Key, String)| {
        *resource == set.resource && (set.namespace.is_empty() || key.namespace == set.namespace)
    };
    let (resource, key, why) = view.set_aside().into_iter().find(of_set)?;
    Some(format!("{}/{key} can't be read: {why}", resource.plural))
}

/// Compares sets with a consistent live read. A resource that can't be read for long ([`View::is_hopeless`])
/// holds back nobody who needs its set whole, unless the set is strict: what is seen of it counts.
///
/// # Errors
/// Where the server can't be read: nothing is proven then.
pub async fn prove(
    grounds: Grounds<'_>,
    sender: &Sender,
    sets: Vec<&Counted>,
) -> Result<Proof, Refused> {
    let mut running = stream::iter(sets)
        .map(|set| prove_set(grounds, sender, set))
        .buffer_unordered(PROOFS_AT_ONCE);
    while let Some(proof) = running.next().await {
        match proof? {
            Proof::Fresh => {}
            stale @ Proof::Stale { .. } => return Ok(stale),
        }
    }
    Ok(Proof::Fresh)
}

/// Compares the object that a key is about with what the API server has of it: one that decides on an older
/// one than the owner before undoes what that one did.
///
/// # Errors
/// Where the server can't be read: nothing is proven then.
pub async fn prove_head(
    grounds: Grounds<'_>,
    sender: &Sender,
    resource: &'static Resource,
    key: &Key,
) -> Result<Proof, Refused> {
    let began = grounds.clock.monotonic();
    let live = tokio::time::timeout(QUERY_TIMEOUT, grounds.server.head(sender, resource, key))
        .await
        .unwrap_or_else(|_| Err(no_answer()))?;
    grounds.note(resource, began, live.version);
    let live = live.found;
    let reader: &dyn Reader = grounds.view;
    let cached = reader.get(resource, &key.namespace, &key.name);
    let same = match (&live, &cached) {
        (None, None) => true,
        (Some(live), Some(cached)) => {
            let meta = cached.metadata();
            meta.uid == live.uid && meta.resource_version >= live.resource_version
        }
        _ => false,
    };
    Ok(match same {
        true => Proof::Fresh,
        false => Proof::Stale {
            why: format!("{}/{key} is another by now", resource.plural),
        },
    })
}

fn no_answer() -> Refused {
    Failure::Timeout(no_answer_within(QUERY_TIMEOUT)).into()
}

async fn prove_set(grounds: Grounds<'_>, sender: &Sender, set: &Counted) -> Result<Proof, Refused> {
    let Grounds {
        server,
        view,
        proofs,
        clock,
    } = grounds;
    let Some(selector) = set.selector.text() else {
        return Ok(Proof::Fresh);
    };
    if let Some(why) = unreadable(view, set) {
        return Err(Failure::Other(why).into());
    }
    let place = (set.since > 0).then(|| proofs.of(set));
    let mut known = match &place {
        Some(place) => Some(place.lock().await),
        None => None,
    };
    if known.as_ref().is_some_and(|known| {
        known.reached >= set.since
            || !set.strict
                && known
                    .hopeless_until
                    .is_some_and(|until| clock.monotonic() < until)
    }) {
        return Ok(Proof::Fresh);
    }
    let newest = view.newest_of_all().max(set.since);
    let began = clock.monotonic();
    let live = tokio::time::timeout(
        QUERY_TIMEOUT,
        server.list(sender, set.resource, &set.namespace, &selector),
    )
    .await
    .unwrap_or_else(|_| Err(no_answer()));
    let live = match live {
        // What is served no more has no objects left to be missed.
        Err(Refused {
            failure: Failure::NotFound(_),
            ..
        }) if set.since > 0 => return Ok(Proof::Fresh),
        live => live,
    };
    let proof = live.map(|live| {
        grounds.note(set.resource, began, live.version);
        difference(view, set, &live.found)
    });
    let hopeless = || !set.strict && view.is_hopeless(set.resource);
    match (proof, &mut known) {
        (Ok(None), Some(known)) => known.reached = newest,
        (Ok(None), None) => {}
        // Where it was never listed, a list of one namespace may succeed where that of all does not.
        (Err(_), Some(known)) if hopeless() => {
            known.hopeless_until = Some(clock.monotonic() + HOPELESS_FOR);
        }
        (Ok(Some(_)), Some(_)) if !view.complete(set.resource) && hopeless() => {}
        (Ok(Some(why)), _) => return Ok(Proof::Stale { why }),
        (Err(refused), _) => return Err(refused),
    }
    Ok(Proof::Fresh)
}

/// How the cache differs from a live list of the same set.
fn difference(view: &dyn View, set: &Counted, live: &[LiveItem]) -> Option<String> {
    let reader: &dyn Reader = view;
    for item in live {
        let cached = reader.get(set.resource, &item.key.namespace, &item.key.name);
        let Some(cached) = cached.filter(|cached| cached.metadata().uid == item.uid) else {
            return Some(format!(
                "{}/{} is not in the cache yet",
                set.resource.plural, item.key
            ));
        };
        if cached.metadata().resource_version < item.resource_version {
            return Some(format!(
                "{}/{} is older in the cache",
                set.resource.plural, item.key
            ));
        }
    }
    let known: std::collections::HashSet<&str> =
        live.iter().map(|item| item.uid.as_str()).collect();
    reader
        .list(
            set.resource,
            (!set.namespace.is_empty()).then_some(&*set.namespace),
        )
        .iter()
        .find(|cached| {
            let meta = cached.metadata();
            set.selector.matches(&meta.labels) && !known.contains(meta.uid.as_str())
        })
        .map(|gone| format!("{}/{} is gone", set.resource.plural, gone.metadata().name))
}

#[cfg(test)]
mod tests;
