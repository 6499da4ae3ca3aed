//! Keeps the catalogue of what the API serves, and watches what controllers want of it.
//!
//! Discovery is read at the start, every 30 s, and at once when a CRD or an APIService changes; after such a
//! change a few times more, since the server shows the new resource only some time after the object. A group
//! that can't be read keeps its watches and is reported; nothing else waits for it, and no controller's start
//! waits for any of this.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use controllers_kit::{Catalogue, Measure, Reader as _, Resource, Standing, Str};
use futures::{StreamExt as _, stream};
use kubernetes_proto::metadata_only;
use node_cache::{Api, ApiError, Cache, Request, Response};
use tokio::{sync::Notify, time::Instant};

use crate::shared::Shared;

mod parse;

#[cfg(test)]
mod tests;

/// How often discovery is read without any reason.
const PERIOD: Duration = Duration::from_secs(30);
/// When it is read after a CRD or APIService has changed: its resource shows within a second or two as a
/// rule, and later where the server is busy.
const AFTER_CHANGE: [Duration; 7] = [
    Duration::ZERO,
    Duration::from_millis(300),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
    Duration::from_secs(8),
    Duration::from_secs(15),
];
/// How often it is checked whether a first list has ended.
const POLL: Duration = Duration::from_millis(100);
/// Scans for keys of resources that have just been listed are at least this far apart.
const SCAN_SPACING: Duration = Duration::from_secs(1);
/// Documents that are read at once where the server does not aggregate.
const READS_AT_ONCE: usize = 8;
/// A document that has not come by then has failed: an aggregated API behind a dead service answers never.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Aggregated documents, each group version with all its resources.
const ACCEPT_AGGREGATED: &str =
    "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";

/// The state of discovery.
#[derive(Default)]
pub struct Discovery {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Why nothing could be read at the last try.
    trouble: Option<String>,
    without_room: usize,
}

impl Discovery {
    fn with<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What is wrong, a line each: no reason not to be ready.
    pub fn troubles(&self, cache: &Cache) -> Vec<String> {
        let (trouble, without_room) =
            self.with(|state| (state.trouble.clone(), state.without_room));
        let mut lines: Vec<String> = trouble
            .map(|why| format!("discovery can't be read: {why}"))
            .into_iter()
            .collect();
        if without_room > 0 {
            lines.push(format!(
                "discovery: {without_room} resources are left alone: {} are known already",
                kubernetes_proto::RESOURCES_MAX
            ));
        }
        for (name, why) in &cache.serves().failures {
            lines.push(format!("discovery of {name} fails: {why}"));
        }
        let mut stats = cache.found_stats();
        stats.sort_by_key(|(resource, _)| *resource);
        for (resource, stats) in stats {
            if let Some(why) = stats.trouble {
                lines.push(format!("{} are not watched: {why}", resource.id()));
            }
        }
        lines
    }

    /// The group versions and resources that fail, for the metric.
    pub fn failing(&self, cache: &Cache) -> Vec<String> {
        let mut failing: Vec<String> = cache
            .serves()
            .failures
            .keys()
            .map(ToString::to_string)
            .collect();
        if self.with(|state| state.trouble.is_some()) {
            failing.push("*".to_owned());
        }
        let stats = cache.found_stats().into_iter();
        failing.extend(
            stats
                .filter(|(_, stats)| stats.trouble.is_some())
                .map(|(resource, _)| resource.id()),
        );
        failing
    }
}

/// The objects whose changes mean that other resources are served: definitions of custom resources, then
/// aggregated APIs. One for which there is no room any more is left out.
pub fn announcers() -> impl Iterator<Item = &'static Resource> {
    [
        (
            "apiextensions.k8s.io",
            "CustomResourceDefinition",
            "customresourcedefinitions",
        ),
        ("apiregistration.k8s.io", "APIService", "apiservices"),
    ]
    .into_iter()
    .filter_map(|(group, kind, plural)| metadata_only(group, "v1", kind, plural, false))
}

/// Runs for ever, on the arbiter that it is spawned on.
pub async fn follow(discovery: Arc<Discovery>, shared: Arc<Shared>, cache: Arc<Cache>, api: Api) {
    let mut watches = Watches {
        shared,
        cache: Arc::clone(&cache),
        api: api.clone(),
        running: BTreeMap::new(),
        listing: BTreeSet::new(),
        scanned: None,
    };
    let changed = Arc::new(Notify::new());
    for resource in announcers() {
        watches.begin(resource);
        let changed = Arc::clone(&changed);
        cache.subscribe(resource, Box::new(move |_| changed.notify_one()));
    }
    let mut last = parse::Served::default();
    // Instants at which it is read besides the next period's.
    let mut due: Vec<Instant> = vec![Instant::now()];
    let mut period = Instant::now() + PERIOD;
    loop {
        let next = due.iter().min().map_or(period, |next| period.min(*next));
        tokio::select! {
            biased;
            () = tokio::time::sleep_until(next) => {}
            () = changed.notified() => {
                let now = Instant::now();
                due = AFTER_CHANGE.iter().map(|after| now + *after).collect();
                continue;
            }
            () = tokio::time::sleep(POLL), if watches.waits() => {
                watches.read();
                if Instant::now() < next {
                    continue;
                }
            }
        }
        let now = Instant::now();
        if next > now {
            continue;
        }
        due.retain(|at| *at > now);
        period = now + PERIOD;
        match read(&api).await {
            Err(error) => {
                let why = error.to_string();
                let known = discovery.with(|state| state.trouble.replace(why.clone()));
                watches.count_trouble();
                if known.as_ref() != Some(&why) {
                    tracing::warn!("discovery can't be read, what was known stays: {why}");
                    set_outdated(&cache, Some(Str::from(why)));
                }
                if !cache.serves().is_known() {
                    due.push(Instant::now() + Duration::from_secs(1));
                }
            }
            Ok(served) => {
                if discovery.with(|state| state.trouble.take()).is_some() {
                    set_outdated(&cache, None);
                }
                if served == last && cache.serves().is_known() {
                    continue;
                }
                if !served.failures.is_empty() {
                    watches.count_trouble();
                }
                report_failures(&last, &served);
                let generation = cache.serves().generation + 1;
                let (catalogue, without_room) =
                    parse::catalogue(&served, &cache.whole(), generation);
                let catalogue = catalogue.succeeding(&cache.serves());
                let before = discovery
                    .with(|state| std::mem::replace(&mut state.without_room, without_room));
                if without_room > 0 && before == 0 {
                    tracing::error!(
                        without_room,
                        "more than {} resources were served since the start: those beyond are left alone; restart to forget what is served no more",
                        kubernetes_proto::RESOURCES_MAX
                    );
                }
                watches.change(catalogue, &served.failures);
                last = served;
            }
        }
    }
}

/// Notes in the catalogue why discovery as a whole can't be read, or that it can again. A controller that
/// must know all that is served decides nothing on an outdated catalogue.
fn set_outdated(cache: &Cache, why: Option<Str>) {
    let mut catalogue = Catalogue::clone(&cache.serves());
    if catalogue.is_known() {
        catalogue.outdated = why;
        cache.set_catalogue(catalogue);
    }
}

fn report_failures(before: &parse::Served, now: &parse::Served) {
    for (name, why) in &now.failures {
        if before.failures.get(name) != Some(why) {
            tracing::warn!(group_version = %name, "discovery of a group fails, its resources alone are held back: {why}");
        }
    }
    for name in before.failures.keys() {
        if !now.failures.contains_key(name) {
            tracing::info!(group_version = %name, "discovery of a group works again");
        }
    }
}

/// The watches of what was discovered.
struct Watches {
    shared: Arc<Shared>,
    cache: Arc<Cache>,
    api: Api,
    running: BTreeMap<&'static Resource, tokio::task::JoinHandle<()>>,
    /// Those whose first list is on its way.
    listing: BTreeSet<&'static Resource>,
    scanned: Option<Instant>,
}

impl Watches {
    /// Watches a resource, unless it is watched already.
    fn begin(&mut self, resource: &'static Resource) {
        if !self.cache.find(resource) {
            return;
        }
        self.shared.follow(&self.cache, resource);
        let run = self.cache.run(resource, self.api.clone());
        let task = actix::spawn(async move {
            run.await;
        });
        self.running.insert(resource, task);
        self.listing.insert(resource);
    }

    /// Watches these no more.
    fn end(&mut self, resources: &[&'static Resource]) {
        for resource in resources {
            tracing::info!(resource = %resource.id(), "is served no more");
            if let Some(task) = self.running.remove(resource) {
                task.abort();
            }
            self.listing.remove(resource);
            self.cache.forget(resource);
        }
    }

    /// Follows a changed catalogue: what is served no more is forgotten, but not what could not be read.
    fn change(&mut self, catalogue: Catalogue, failures: &BTreeMap<String, String>) {
        let units = &self.shared.units;
        let discovered: Vec<_> = units.iter().flat_map(|unit| &unit.discovered).collect();
        let mut wanted: BTreeSet<&'static Resource> = catalogue
            .all()
            .iter()
            .filter(|entry| entry.preferred && discovered.iter().any(|one| (one.wanted)(entry)))
            .map(|entry| entry.resource)
            .collect();
        wanted.extend(announcers());
        let gone: Vec<_> = self
            .running
            .keys()
            .copied()
            .filter(|resource| {
                // The same resource in another version or scope is another watch.
                let stays = wanted
                    .get(resource)
                    .is_some_and(|same| std::ptr::eq(*same, *resource));
                !stays && !failures.contains_key(&resource.api_version())
            })
            .collect();
        // What a catalogue names is watched, on whatever thread it is read: so the new is watched before, and
        // what is gone is forgotten after, but for what makes room for its own next version.
        let (replaced, gone): (Vec<_>, Vec<_>) = gone
            .into_iter()
            .partition(|resource| wanted.contains(resource));
        self.end(&replaced);
        for resource in wanted {
            self.begin(resource);
        }
        self.cache.set_catalogue(catalogue);
        self.end(&gone);
        // Keys may wait for a kind that was not served.
        self.scanned = None;
        self.scan();
    }

    /// Counts a failure for the controllers that have a counter of such.
    fn count_trouble(&self) {
        for unit in &self.shared.units {
            for name in unit.discovered.iter().filter_map(|one| one.troubles) {
                unit.metrics.measure(&Measure {
                    name,
                    labels: Vec::new(),
                    value: 1.0,
                });
            }
        }
    }

    fn waits(&self) -> bool {
        !self.listing.is_empty()
    }

    /// What was listed meanwhile is scanned for keys: while it was not, nobody could know whether an owner is
    /// there.
    fn read(&mut self) {
        let now = Instant::now();
        if self.scanned.is_some_and(|at| now < at + SCAN_SPACING) {
            return;
        }
        let before = self.listing.len();
        let cache = Arc::clone(&self.cache);
        self.listing
            .retain(|resource| cache.standing(resource) == Standing::Listing);
        if self.listing.len() < before {
            self.scan();
        }
    }

    fn scan(&mut self) {
        self.scanned = Some(Instant::now());
        let shared = Arc::clone(&self.shared);
        self.shared.aside.run(Duration::ZERO, move || {
            shared.wake_all(&|unit| !unit.discovered.is_empty(), &|_| true);
        });
    }
}

/// Reads all documents.
async fn read(api: &Api) -> Result<parse::Served, ApiError> {
    let (core, others) = tokio::try_join!(
        get(api, "/api", ACCEPT_AGGREGATED),
        get(api, "/apis", ACCEPT_AGGREGATED)
    )?;
    let mut served = parse::Served::default();
    let aggregated = parse::aggregated(&core.bytes, &mut served)
        .and_then(|()| parse::aggregated(&others.bytes, &mut served));
    if aggregated.is_some() {
        return Ok(served);
    }
    let groups = parse::groups(&core.bytes, &others.bytes)
        .map_err(|error| api.garbage(error.to_string()))?;
    let documents: Vec<(String, String, _)> = stream::iter(groups)
        .map(|(group, version)| async move {
            let path = match group.is_empty() {
                true => format!("/api/{version}"),
                false => format!("/apis/{group}/{version}"),
            };
            let answer = get(api, &path, "application/json").await;
            (group, version, answer)
        })
        .buffered(READS_AT_ONCE)
        .collect()
        .await;
    let mut served = parse::Served::default();
    for (group, version, answer) in documents {
        let name = parse::group_version(&group, &version);
        served.group_versions.push(name.clone());
        let read = match answer {
            Ok(answer) => parse::resources(&group, &version, &answer.bytes, &mut served)
                .map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        if let Err(why) = read {
            served.failures.insert(name, why);
        }
    }
    Ok(served)
}

async fn get(api: &Api, path: &str, accept: &'static str) -> Result<Response, ApiError> {
    api.send(Request::get(path).accept(accept).timeout(READ_TIMEOUT))
        .await
}
