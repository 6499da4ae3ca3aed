//! One loop for all resources: list, watch, resume, list again. What comes next is decided by [`Course`],
//! which knows neither clock nor network; kinds matter to one function pointer, the resource's `decode`.
//!
//! A list is streamed (`sendInitialEvents`), which costs the server no second copy of it; a server that
//! refuses is asked for pages instead. While a list is on its way the old content is served, and the new one
//! takes its place whole. Both are consistent reads (no resourceVersion asked for): what is listed is never
//! older than what was written before.

use std::{convert::Infallible, ops::RangeInclusive, sync::Arc, time::Duration};

use controllers_kit::{Key, guard::guarded};
use http::HeaderValue;
use kubernetes_proto::{
    AnyObject, Resource,
    envelope::{self, INITIAL_EVENTS_END},
    meta::{self, NOT_COMPARABLE},
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, utf8_percent_encode};
use tokio::time::Instant;

use crate::{
    Api, ApiError, Request, Status,
    ages::is_pulse,
    api,
    digest::Digest,
    slot::{NOT_SERVED, Order, Slot, Why},
    store::Content,
};

/// Figures of the watch loop.
#[derive(Clone, Debug)]
pub struct Settings {
    /// A watch that comes no further for so long, by event or bookmark, is reopened: one and a half times the
    /// API server's interval of bookmarks.
    pub silence_max: Duration,
    /// The first wait after a failure.
    pub backoff_min: Duration,
    /// The longest, before jitter, which at most doubles it.
    pub backoff_max: Duration,
    /// How long a watch may last: the server ends it at a random second of these, so that watches spread.
    pub watch_seconds: RangeInclusive<u64>,
    /// Objects in one page where lists can't be streamed.
    pub page_size: u32,
    /// Between two checks of what reports only that nodes are alive, where metadata is all that is asked for.
    pub heartbeat_rest: Duration,
    /// The longest time between two signs of life of the watch of Leases that counts as time in which it was
    /// live, where it is asked how old heartbeats are: longer than a rest and a few renewals of this
    /// replica's own Lease.
    pub pulse_max: Duration,
    /// The renewals of this replica's own Lease, by which the watch of Leases knows what it has caught up
    /// with.
    pub renewed: Renewed,
    /// The requests' User-Agent.
    pub user_agent: Option<HeaderValue>,
    /// In `0.0..1.0`: spreads waits and the ends of watches.
    pub random: fn() -> f64,
}

impl Default for Settings {
    /// As client-go's reflector has them.
    fn default() -> Self {
        Self {
            silence_max: Duration::from_secs(90),
            backoff_min: Duration::from_millis(800),
            backoff_max: Duration::from_secs(30),
            watch_seconds: 300..=600,
            page_size: 500,
            heartbeat_rest: Duration::from_secs(5),
            pulse_max: Duration::from_secs(8),
            renewed: Renewed::default(),
            user_agent: None,
            random: rand::random,
        }
    }
}

/// Yields the newest renewal of this replica's own Lease: the version that it was given, and when its request
/// was started. What a watch of Leases has brought up to that version holds all that had happened by then; a
/// gap between two events proves nothing, since a slow server leaves gaps in what is overdue too.
#[derive(Clone, Default)]
pub struct Renewed(Option<Arc<Newest>>);

/// The version of the newest renewal, and when it was started.
type Newest = dyn Fn() -> Option<(u64, Instant)> + Send + Sync;

impl Renewed {
    /// By this function; it is called for each event of Leases.
    pub fn by(newest: impl Fn() -> Option<(u64, Instant)> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(newest)))
    }

    /// `None` where nothing is renewed, or nothing has been yet.
    pub(crate) fn newest(&self) -> Option<(u64, Instant)> {
        self.0.as_ref()?()
    }
}

impl std::fmt::Debug for Renewed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Renewed").field(&self.newest()).finish()
    }
}

/// A watch that ends sooner without any event is a failure, or a server that ends all of them would be asked
/// in a tight loop.
const WATCH_TIME_MIN: Duration = Duration::from_secs(1);

/// A server that gives no answer at all is asked again this soon, however long it has been away. All watches
/// share one attempt to connect, and each continues where it stood: it costs little, and the end of an outage
/// is not slept through. Lists, which may be what it broke under, wait as after any failure.
/// Nor does the outage count afterwards: a server that has just started forbids everything until it has read
/// its roles.
const ABSENT_WAIT_MAX: Duration = Duration::from_secs(1);

/// So often a watch is tried again from where it was after the server, or what it sent, has failed it; then
/// the resource is listed again.
const STRIKES_MAX: u32 = 3;

/// So often in a row the server's own word on when to come again is taken, as client-go does; then waits
/// double.
const THROTTLED_MAX: u32 = 10;

/// Changes that subscribers are notified of, and events that are taken, before other tasks get their turn.
const TURN: usize = 256;

/// Until a watch has begun. Longer than the server's own bound on beginning one.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(60);

/// Whether a resource is rewritten all the time only to say that somebody is alive: each node renews a Lease
/// every ten seconds. One that asks for its metadata alone doesn't care when, and a hundred nodes would wake
/// a replica at rest ten times a second. So its watch ends when it has caught up, and continues from there
/// after [`Settings::heartbeat_rest`]. Who asks how old heartbeats are gets them late by as much.
fn is_heartbeat(resource: &Resource) -> bool {
    is_pulse(resource)
}

/// A watch of heartbeats that has come to the renewal of the own Lease that was the newest when it was opened
/// has caught up once nothing comes for so long …
const HEARTBEAT_GAP: Duration = Duration::from_millis(20);
/// … or once it was followed for so long: there are enough nodes that something always comes.
const HEARTBEATS_FOLLOWED: Duration = Duration::from_secs(1);

/// Where no projection exists, metadata is all that is asked for; in this form the server has it of every
/// resource.
const METADATA: &str =
    "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
const METADATA_LIST: &str =
    "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

/// What is asked of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// All objects as events, then changes.
    Stream,
    /// All objects, in pages, or whole where the server forgot between two pages what it was listing.
    Pages { whole: bool },
    /// Changes from a version on.
    Watch { from: u64 },
}

impl Ask {
    /// As RBAC names it. A streaming list is a watch.
    fn verb(self) -> &'static str {
        match self {
            Self::Stream | Self::Watch { .. } => "watch",
            Self::Pages { .. } => "list",
        }
    }
}

/// How it ended.
#[derive(Debug)]
pub(crate) enum End {
    /// In good order: the pages are listed, or the server ended the watch after its time.
    Closed,
    /// By us: heartbeats have been caught up with.
    CaughtUp,
    /// Nothing was heard for too long.
    Silent,
    /// By an order.
    Ordered(Order),
    /// With an error, from the server or on the way.
    Failed(ApiError),
}

/// What of one resource's watch outlasts a request.
#[derive(Debug, Default)]
pub(crate) struct Course {
    relist: bool,
    /// The server refuses to stream; asked again at the next list.
    pages: bool,
    whole: bool,
    failures: u32,
    strikes: u32,
    throttled: u32,
}

impl Course {
    /// What to ask next, having come as far as `version` (0 for nowhere, [`NOT_SERVED`] where there is
    /// nothing).
    pub(crate) fn ask(&self, version: u64) -> Ask {
        if version > NOT_SERVED && !self.relist {
            Ask::Watch { from: version }
        } else if self.pages {
            Ask::Pages { whole: self.whole }
        } else {
            Ask::Stream
        }
    }

    /// An order came while nothing was asked.
    fn ordered(&mut self, order: Order) {
        self.relist |= order == Order::List;
    }

    /// A list is complete.
    pub(crate) fn listed(&mut self) {
        *self = Self::default();
    }

    /// How long to wait before the next request. `progressed` says whether anything was heard after the list,
    /// `lived` how long the request lasted, and `random` lies in `0.0..1.0`.
    pub(crate) fn ended(
        &mut self,
        ask: Ask,
        end: &End,
        progressed: bool,
        lived: Duration,
        settings: &Settings,
        random: f64,
    ) -> Duration {
        if progressed {
            self.failures = 0;
            self.strikes = 0;
            self.throttled = 0;
        }
        match end {
            End::Closed if progressed || lived >= WATCH_TIME_MIN => Duration::ZERO,
            // It has cost enough time already.
            End::Silent => Duration::ZERO,
            End::Ordered(order) => {
                self.ordered(*order);
                Duration::ZERO
            }
            End::CaughtUp => settings.heartbeat_rest,
            End::Failed(error) if error.is_expired() => match ask {
                Ask::Watch { .. } => {
                    self.relist = true;
                    Duration::ZERO
                }
                Ask::Pages { whole: false } => {
                    self.whole = true;
                    Duration::ZERO
                }
                Ask::Stream | Ask::Pages { whole: true } => self.backoff(settings, random),
            },
            End::Failed(error) if error.is_resource_version_too_large() => {
                // This server has not seen what another has shown, or its history was set back: only a
                // consistent list shows.
                self.relist = true;
                self.backoff(settings, random)
            }
            End::Failed(error) if ask == Ask::Stream && refuses_streaming(error) => {
                self.pages = true;
                Duration::ZERO
            }
            End::Failed(error) => {
                if matches!(error, ApiError::Garbage { .. }) || error.code() == Some(500) {
                    self.strikes += 1;
                    if self.strikes >= STRIKES_MAX {
                        self.strikes = 0;
                        self.relist = true;
                    }
                }
                let absent = matches!(error, ApiError::Transport { .. } | ApiError::Timeout { .. });
                if absent && matches!(ask, Ask::Watch { .. }) {
                    self.failures = 0;
                    let wait = settings.backoff_min;
                    return (wait + wait.mul_f64(random)).min(ABSENT_WAIT_MAX);
                }
                match error.retry_after() {
                    // The server is there and says when: a server that has just started fills its caches, and
                    // the waits of the outage before must not add up with that.
                    Some(after) if self.throttled < THROTTLED_MAX => {
                        self.throttled += 1;
                        let after = after.max(settings.backoff_min);
                        after + after.mul_f64(random / 2.0)
                    }
                    after => self
                        .backoff(settings, random)
                        .max(after.unwrap_or_default()),
                }
            }
            End::Closed => self.backoff(settings, random),
        }
    }

    fn backoff(&mut self, settings: &Settings, random: f64) -> Duration {
        let doubled = 2u32.saturating_pow(self.failures.min(16));
        self.failures += 1;
        let wait = settings
            .backoff_min
            .saturating_mul(doubled)
            .min(settings.backoff_max);
        wait + wait.mul_f64(random)
    }
}

/// The server takes no streaming list: its feature is off, or it does not know the parameters.
fn refuses_streaming(error: &ApiError) -> bool {
    matches!(error.code(), Some(400 | 405 | 406 | 415 | 422))
}

fn why(error: &ApiError) -> Why {
    if error.is_forbidden() || error.is_unauthorized() || error.is_not_found() {
        Why::Blocked
    } else if error.status().is_some() {
        Why::Refused
    } else {
        Why::Unanswered
    }
}

/// Watches one resource for ever.
pub(crate) async fn run(slot: &Slot, api: &Api) -> Infallible {
    let _turn = slot.turn.lock().await;
    notify_all(slot).await;
    let mut course = Course::default();
    loop {
        let mut ask = course.ask(slot.progress.version());
        let began = Instant::now();
        let mut session = Session {
            slot,
            gathered: None,
            listed: false,
            progressed: false,
        };
        let end = match ask {
            Ask::Pages { whole } => session.pages(api, whole).await,
            Ask::Stream => {
                session.gathered = Some(slot.store.fresh());
                session.follow(api, ask).await
            }
            Ask::Watch { .. } => session.follow(api, ask).await,
        }
        .unwrap_or_else(End::Failed);
        if session.listed {
            course.listed();
            // From there on it was a watch like any other.
            ask = course.ask(slot.progress.version());
        }
        match &end {
            End::Failed(error) if ask == Ask::Stream && refuses_streaming(error) => {
                tracing::debug!(resource = %slot.resource.id(), "lists are not streamed: {error}");
            }
            End::Failed(error) if error.is_expired() => {
                tracing::info!(resource = %slot.resource.id(), "listed again: {error}");
            }
            End::Failed(error)
                if slot.where_served
                    && error.is_not_found()
                    && !matches!(ask, Ask::Watch { .. }) =>
            {
                slot.not_served();
            }
            End::Failed(error) => slot.failed(ask.verb(), &error.to_string(), why(error)),
            // The server sends no bookmarks for a resource in which nothing has happened since it started.
            End::Silent if slot.resource.metadata_only && !session.progressed => {
                tracing::debug!(resource = %slot.resource.id(), "nothing was heard, watched again");
            }
            End::Silent => {
                slot.failed(
                    ask.verb(),
                    &format!("nothing new was heard for {:?}", slot.settings.silence_max),
                    Why::Unanswered,
                );
            }
            End::Ordered(order) => {
                tracing::debug!(resource = %slot.resource.id(), ?order, "watched again, as ordered");
            }
            End::Closed | End::CaughtUp => {}
        }
        let wait = course.ended(
            ask,
            &end,
            session.progressed || session.listed,
            began.elapsed(),
            &slot.settings,
            (slot.settings.random)(),
        );
        if !wait.is_zero() {
            tokio::select! {
                biased;
                order = slot.ordered() => course.ordered(order),
                () = tokio::time::sleep(wait) => {}
            }
        }
    }
}

/// Notifies subscribers of all changes that were put aside, a few at a time.
async fn notify_all(slot: &Slot) {
    while slot.notify_some(TURN) {
        tokio::task::yield_now().await;
    }
}

/// One request to list or watch, and what comes of it.
struct Session<'a> {
    slot: &'a Slot,
    /// The list that is on its way; `None` while changes are followed.
    gathered: Option<Content>,
    listed: bool,
    /// Whether anything was heard while changes were followed.
    progressed: bool,
}

/// What one frame was.
enum Taken {
    Event,
    /// The end of the initial events, at this version.
    Listed(u64),
}

impl Session<'_> {
    /// Opens a watch and follows it.
    async fn follow(&mut self, api: &Api, ask: Ask) -> Result<End, ApiError> {
        // What has happened by now is overdue until the watch has come to this version.
        let renewed = self.slot.settings.renewed.newest();
        let overdue = renewed.filter(|_| is_heartbeat(self.slot.resource));
        let overdue = overdue.map_or(0, |(version, _)| version);
        let mut frames = tokio::select! {
            biased;
            order = self.ordered() => return Ok(End::Ordered(order)),
            frames = api.watch(self.request(ask)) => frames?,
        };
        // A streaming list that has begun may still fail: only a watch clears what stood in its way.
        if self.gathered.is_none() {
            self.slot.opened();
        }
        let mut events = 0usize;
        // When it came further last: a bookmark that repeats a version is no sign of life.
        let mut grew = Instant::now();
        // Since when heartbeats come.
        let mut beating: Option<Instant> = None;
        loop {
            let caught_up = self.slot.progress.version() >= overdue;
            let (patience, end) = match beating {
                Some(_) if caught_up => (HEARTBEAT_GAP, End::CaughtUp),
                _ => {
                    let silence_max = self.slot.settings.silence_max;
                    (silence_max.saturating_sub(grew.elapsed()), End::Silent)
                }
            };
            let frame = tokio::select! {
                biased;
                order = self.ordered() => return Ok(End::Ordered(order)),
                frame = tokio::time::timeout(patience, frames.next()) => frame,
            };
            let Ok(frame) = frame else {
                return Ok(end);
            };
            let Some(frame) = frame? else {
                return Ok(End::Closed);
            };
            let (before, lists) = (self.slot.progress.version(), self.gathered.is_some());
            let taken = self.take(&frame).map_err(|fault| fault.from(api))?;
            if lists || self.slot.progress.version() > before {
                grew = Instant::now();
                self.slot.heard();
            }
            self.slot.pulse();
            match taken {
                Taken::Event if self.gathered.is_none() && is_heartbeat(self.slot.resource) => {
                    let since = *beating.get_or_insert_with(Instant::now);
                    let caught_up = self.slot.progress.version() >= overdue;
                    if caught_up && since.elapsed() >= HEARTBEATS_FOLLOWED {
                        return Ok(End::CaughtUp);
                    }
                }
                Taken::Event => {}
                Taken::Listed(version) => {
                    self.complete(version).await;
                    self.slot.opened();
                }
            }
            events += 1;
            if events.is_multiple_of(TURN) {
                // Frames that have arrived together would else be taken in one go.
                tokio::task::yield_now().await;
            }
        }
    }

    /// Resolves with an order. A list that is under way is not begun again: it is what would be ordered.
    fn ordered(&self) -> impl Future<Output = Order> + Send + use<'_> {
        let (slot, follows) = (self.slot, self.gathered.is_none());
        async move {
            match follows {
                true => slot.ordered().await,
                false => std::future::pending().await,
            }
        }
    }

    fn request(&self, ask: Ask) -> Request {
        let (first, last) = self.slot.settings.watch_seconds.clone().into_inner();
        let spread = Duration::from_secs(last - first).mul_f64((self.slot.settings.random)());
        let seconds = first + spread.as_secs();
        let mut query = format!("watch=true&allowWatchBookmarks=true&timeoutSeconds={seconds}");
        match ask {
            Ask::Watch { from } => query.push_str(&format!("&resourceVersion={from}")),
            Ask::Stream | Ask::Pages { .. } => {
                query.push_str("&sendInitialEvents=true&resourceVersionMatch=NotOlderThan");
            }
        }
        self.get(&query)
            .accept(match self.slot.resource.metadata_only {
                true => METADATA,
                false => "application/vnd.kubernetes.protobuf;stream=watch",
            })
            .timeout(BEGIN_TIMEOUT)
    }

    fn get(&self, query: &str) -> Request {
        let resource = self.slot.resource;
        let mut path = format!("{}?{query}", resource.collection());
        let named = self
            .slot
            .only_name
            .map(|name| format!("metadata.name={name}"));
        let selectors = [named.as_deref().unwrap_or(""), resource.field_selector()];
        let fields: Vec<&str> = selectors
            .into_iter()
            .filter(|fields| !fields.is_empty())
            .collect();
        if !fields.is_empty() {
            path.push_str("&fieldSelector=");
            path.extend(escaped(&fields.join(",")));
        }
        let mut request = Request::get(path);
        if self.slot.resource.metadata_only {
            request = request.accept(METADATA_LIST);
        }
        request.user_agent = self.slot.settings.user_agent.clone();
        request
    }

    /// Lists in pages.
    async fn pages(&mut self, api: &Api, whole: bool) -> Result<End, ApiError> {
        let mut gathered = self.slot.store.fresh();
        let mut token = String::new();
        loop {
            let limit = if whole {
                0
            } else {
                self.slot.settings.page_size
            };
            let answer = api
                .send(self.get(&format!("limit={limit}&continue={}", escaped(&token))))
                .await?;
            let garbage = |reason: String| api.garbage(reason);
            if !answer.protobuf {
                return Err(garbage("a list that is not protobuf".to_owned()));
            }
            let page = envelope::open(&answer.bytes)
                .and_then(|body| envelope::list(body.raw))
                .map_err(|error| garbage(error.to_string()))?;
            for (place, item) in page.items.iter().enumerate() {
                self.gather(&mut gathered, decode(self.slot, item));
                if place % TURN == TURN - 1 {
                    tokio::task::yield_now().await;
                }
            }
            self.slot.heard();
            if page.continue_token.is_empty() {
                let version = comparable(page.resource_version).map_err(|fault| fault.from(api))?;
                self.gathered = Some(gathered);
                self.complete(version).await;
                return Ok(End::Closed);
            }
            page.continue_token.clone_into(&mut token);
        }
    }

    /// Puts a complete list into the place of what was there, and reports what has changed.
    async fn complete(&mut self, version: u64) {
        let slot = self.slot;
        let Some(mut content) = self.gathered.take() else {
            return;
        };
        content.compact();
        let changes = slot.store.read().differences(&content);
        let newest = content
            .all()
            .map(|object| object.metadata().resource_version)
            .max();
        // No await between these: one that stops the watch stops it before or after all of them.
        slot.begin_history(version, &changes);
        slot.put_aside(changes);
        slot.digest(|digest| *digest = Digest::of(content.all(), version));
        slot.store.replace(content);
        slot.came(newest.unwrap_or(0));
        slot.progress.reach(version);
        slot.listed();
        self.listed = true;
        notify_all(slot).await;
    }

    /// Takes one frame of a watch.
    fn take(&mut self, frame: &[u8]) -> Result<Taken, Fault> {
        let event = envelope::watch_event(frame)?;
        match event.r#type {
            "ADDED" | "MODIFIED" | "DELETED" => {
                let raw = envelope::open(event.object)?.raw;
                let object = decode(self.slot, raw);
                let gone = event.r#type == "DELETED";
                match self.gathered.take() {
                    Some(mut gathered) => {
                        if gone {
                            let (Ok(Key { namespace, name }) | Err((Key { namespace, name }, _))) =
                                object.map(|object| Key::of_meta(object.metadata()));
                            gathered.remove(&namespace, &name, &self.slot.store.indexes);
                        } else {
                            self.gather(&mut gathered, object);
                        }
                        self.gathered = Some(gathered);
                    }
                    None => self.change(object, gone),
                }
                Ok(Taken::Event)
            }
            "BOOKMARK" => {
                let raw = envelope::open(event.object)?.raw;
                let metadata = meta::PartialObjectMetadata::read(raw)
                    .map_err(|error| Fault::Garbage(format!("a bookmark: {error}")))?;
                let version = comparable(metadata.resource_version)?;
                if self.gathered.is_none() {
                    self.reach(version);
                } else if metadata.annotation(INITIAL_EVENTS_END) == Some("true") {
                    return Ok(Taken::Listed(version));
                }
                Ok(Taken::Event)
            }
            "ERROR" => Err(match api::parse_status(event.object) {
                Some(status) => Fault::Refused(Box::new(status)),
                None => Fault::Garbage("an error that is no Status".to_owned()),
            }),
            other => Err(Fault::Garbage(format!("a watch event of type {other:?}"))),
        }
    }

    /// Adds an object to a list. One that does not decode stays as it was when it last did: it exists, and
    /// one that took it for gone would make another.
    fn gather(&self, gathered: &mut Content, object: Result<AnyObject, (Key, u64)>) {
        let indexes = &self.slot.store.indexes;
        match object {
            Ok(object) => {
                if let Err(panic) = gathered.put(&object, indexes) {
                    let key = self.not_indexed(&object, &panic);
                    self.keep_older(gathered, &key);
                }
            }
            Err((key, _)) => self.keep_older(gathered, &key),
        }
    }

    fn keep_older(&self, gathered: &mut Content, key: &Key) {
        if let Some(older) = self.slot.store.get(&key.namespace, &key.name)
            && let Err(panic) = gathered.put(&older, &self.slot.store.indexes)
        {
            self.not_indexed(&older, &panic);
        }
    }

    fn not_indexed(&self, object: &AnyObject, panic: &str) -> Key {
        let key = Key::of_meta(object.metadata());
        self.slot
            .trouble(&key, &format_args!("an index panicked over it: {panic}"));
        key
    }

    /// Applies one change. What does not decode leaves an older version standing: see [`Session::gather`].
    /// Writes that rest on it carry its resourceVersion and are refused by the server.
    fn change(&mut self, object: Result<AnyObject, (Key, u64)>, gone: bool) {
        let slot = self.slot;
        let version = match (object, gone) {
            (Ok(object), false) => {
                let version = object.metadata().resource_version;
                match slot.store.put(&object) {
                    Ok(old) => {
                        slot.digest(|digest| digest.change(old.as_ref(), Some(&object), version));
                        slot.no_trouble(|| Key::of_meta(object.metadata()));
                        slot.trace(old.as_ref(), &object, version);
                        slot.publish(old.as_ref(), Some(&object), version);
                    }
                    Err(panic) => {
                        self.not_indexed(&object, &panic);
                    }
                }
                version
            }
            (Ok(object), true) => {
                let meta = object.metadata();
                slot.remember(&meta.namespace, &meta.name);
                let old = slot.store.remove(&meta.namespace, &meta.name);
                let version = meta.resource_version;
                slot.digest(|digest| digest.change(old.as_ref(), None, version));
                slot.publish(Some(old.as_ref().unwrap_or(&object)), None, version);
                version
            }
            (Err((_, version)), false) => version,
            (Err((key, version)), true) => {
                slot.remember(&key.namespace, &key.name);
                if let Some(old) = slot.store.remove(&key.namespace, &key.name) {
                    slot.digest(|digest| digest.change(Some(&old), None, version));
                    slot.publish(Some(&old), None, version);
                }
                version
            }
        };
        slot.came(version);
        self.reach(version);
    }

    /// After the subscribers were notified, so that who waits for the version finds its keys woken already.
    fn reach(&mut self, version: u64) {
        self.progressed = true;
        if version != NOT_COMPARABLE && version > self.slot.progress.version() {
            self.slot.digest(|digest| digest.reach(version));
            self.slot.progress.reach(version);
        }
    }
}

/// An object, or the key and version of one that does not decode, as far as they can be had.
fn decode(slot: &Slot, raw: &[u8]) -> Result<AnyObject, (Key, u64)> {
    let refuse = |reason: &dyn std::fmt::Display| {
        let glimpse = envelope::glimpse(raw);
        let key = Key::new(glimpse.namespace, glimpse.name);
        slot.trouble(&key, reason);
        Err((key, glimpse.resource_version))
    };
    let read = guarded(|| slot.resource.read(raw));
    let read = match read {
        Ok(read) => read,
        Err(panic) => return refuse(&format_args!("reading it panicked: {panic}")),
    };
    match read {
        Ok(object) if object.metadata().resource_version == NOT_COMPARABLE => {
            refuse(&"its resourceVersion is no number")
        }
        Ok(object) if object.metadata().name.is_empty() => refuse(&"it has no name"),
        Ok(object) => Ok(object),
        Err(error) => refuse(&error),
    }
}

fn comparable(version: u64) -> Result<u64, Fault> {
    if version == 0 || version == NOT_COMPARABLE {
        return Err(Fault::Garbage(
            "a list or bookmark whose resourceVersion is no number".to_owned(),
        ));
    }
    Ok(version)
}

/// What ends a watch from within.
#[derive(Debug)]
enum Fault {
    Garbage(String),
    Refused(Box<Status>),
}

impl Fault {
    fn from(self, api: &Api) -> ApiError {
        match self {
            Self::Garbage(reason) => api.garbage(reason),
            Self::Refused(status) => ApiError::Status(status),
        }
    }
}

impl From<envelope::Malformed> for Fault {
    fn from(malformed: envelope::Malformed) -> Self {
        Self::Garbage(malformed.to_string())
    }
}

/// Applies one frame as the watch would that follows changes.
pub(crate) fn feed(slot: &Slot, frame: &[u8]) -> Result<(), String> {
    let mut session = Session {
        slot,
        gathered: None,
        listed: false,
        progressed: false,
    };
    match session.take(frame) {
        Ok(_) => Ok(()),
        Err(Fault::Garbage(reason)) => Err(reason),
        Err(Fault::Refused(status)) => Err(status.to_string()),
    }
}

/// What may not stand in a value of a query: all but what RFC 3986 calls unreserved.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

fn escaped(text: &str) -> PercentEncode<'_> {
    utf8_percent_encode(text, RESERVED)
}
