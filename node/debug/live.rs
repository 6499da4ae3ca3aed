//! What the live page shows, as a stream of updates.
//!
//! While somebody reads, one task asks all replicas every two seconds, however many readers there are;
//! without a reader nobody is asked. A reader waits for the newest answers and makes its update when it can
//! take it, so that one who reads slowly holds nothing. Keys are shown by each reader's own rights.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use controllers_kit::Timestamp;
use coordinator::Handle;
use coordinator_core::{Member, View};
use futures::{
    StreamExt as _,
    future::join_all,
    stream::{self, BoxStream},
};
use inspect::{
    Columns, Figures, Missing, PAGE_SCHEMA, PageKeys, PageReplica, PageState, Recorded, Row, Top,
    Unhappy,
};
use node_serving::http::{Denied, Rights, Update};
use peer_proto::{InspectRequest, Question};
use tokio::sync::watch;

use super::{Fleet, answers};

use crate::{
    history::{COLUMN_SECONDS, Cells, Column, History, Picture},
    shared::Shared,
};

/// Between two questions to all replicas while somebody reads.
const TICK: Duration = Duration::from_secs(2);
/// Keys are asked for each third time: every key of the fleet is touched for that.
const KEYS_EVERY: u64 = 3;
/// Between two records of what a replica's ranges have done: half a column.
const RECORD_EVERY: Duration = Duration::from_secs(5);
/// Ranges that are named as busy.
const RANGES_MAX: usize = 20;

/// What the readers of the page share.
pub struct Live {
    inner: Mutex<Inner>,
    ticks: watch::Sender<Option<Arc<Tick>>>,
}

struct Inner {
    /// Somebody asks already.
    polls: bool,
    /// What all replicas have recorded. It stays when the last reader leaves: what a replica has recorded
    /// that dies meanwhile is nowhere else.
    picture: Picture,
    /// From which column on each replica is asked next. Bound: replicas with a Lease.
    next: BTreeMap<String, u64>,
}

/// What all replicas have answered.
struct Tick {
    /// JSON.
    state: String,
    /// Counts the questions for keys.
    keys_number: u64,
    top: Top,
    unhappy: Unhappy,
}

impl Live {
    /// Before anybody reads.
    pub fn new(ranges: u16) -> Arc<Self> {
        Arc::new(Self {
            inner: Mutex::new(Inner {
                polls: false,
                picture: Picture::new(ranges),
                next: BTreeMap::new(),
            }),
            ticks: watch::Sender::new(None),
        })
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn subscribe(self: &Arc<Self>, fleet: &Fleet) -> watch::Receiver<Option<Arc<Tick>>> {
        let mut inner = self.inner();
        let mut receiver = self.ticks.subscribe();
        receiver.mark_changed();
        if !inner.polls {
            inner.polls = true;
            tokio::spawn(Arc::clone(self).poll(fleet.clone()));
        }
        receiver
    }

    /// Asks for as long as anybody reads.
    async fn poll(self: Arc<Self>, fleet: Fleet) {
        /// Where it ends by a panic the next reader begins another.
        struct Polls(Option<Arc<Live>>);
        impl Drop for Polls {
            fn drop(&mut self) {
                if let Some(live) = &self.0 {
                    live.inner().polls = false;
                }
            }
        }
        let mut polls = Polls(Some(Arc::clone(&self)));
        let mut timer = tokio::time::interval(TICK);
        timer.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let (mut number, mut keys_number) = (0_u64, 0);
        let (mut top, mut unhappy) = (Top::default(), Unhappy::default());
        loop {
            timer.tick().await;
            {
                let mut inner = self.inner();
                if self.ticks.receiver_count() == 0 {
                    inner.polls = false;
                    self.ticks.send_replace(None);
                    polls.0 = None;
                    return;
                }
            }
            if number.is_multiple_of(KEYS_EVERY) {
                (top, unhappy) = futures::join!(fleet.all_top(""), fleet.all_unhappy(""));
                top.ranges.truncate(RANGES_MAX);
                for key in &mut unhappy.keys {
                    let before = key.attempts.len().saturating_sub(1);
                    key.attempts.drain(..before);
                }
                keys_number += 1;
            }
            number += 1;
            let state = self.state(&fleet).await;
            self.ticks.send_replace(Some(Arc::new(Tick {
                state: serde_json::to_string(&state).unwrap_or_default(),
                keys_number,
                top: top.clone(),
                unhappy: unhappy.clone(),
            })));
        }
    }

    /// Asks all replicas for their figures and columns.
    async fn state(&self, fleet: &Fleet) -> PageState {
        let shared = &fleet.shared;
        let view = fleet.handle.as_ref().map(Handle::view).unwrap_or_default();
        let at = shared.clock.now();
        note(shared, &view);
        let others = fleet.others();
        let next: Vec<u64> = {
            let inner = self.inner();
            let next = |name: &str| inner.next.get(name).copied().unwrap_or(0);
            let others = others.iter().map(|member| next(&member.name));
            std::iter::once(next(&shared.replica))
                .chain(others)
                .collect()
        };
        let asked = others.iter().zip(&next[1..]).map(|(member, since)| {
            let asked = InspectRequest {
                question: Question::Page.into(),
                since: *since,
                ..InspectRequest::default()
            };
            fleet.ask::<Recorded>(member, asked)
        });
        let answers = join_all(asked).await;
        let mut said = BTreeMap::new();
        let own = answers::recorded(shared, next[0]);
        said.insert(own.replica.clone(), Ok(own));
        for (member, answer) in others.iter().zip(answers) {
            said.insert(member.name.clone(), answer);
        }
        let mut inner = self.inner();
        let Inner { picture, next, .. } = &mut *inner;
        {
            let since = next.get(&shared.replica).copied().unwrap_or(0);
            shared.history().show(picture, since);
        }
        next.retain(|name, _| said.contains_key(name));
        for (name, said) in &said {
            let Ok(said) = said else { continue };
            for row in &said.rows {
                if let Some(cells) = decoded(row) {
                    picture.add(name, &cells);
                }
            }
            // The newest column is not whole yet, nor may be the one before by the other's clock.
            let newest = picture.newest().unwrap_or(0);
            next.insert(name.clone(), newest.saturating_sub(1));
        }
        PageState {
            schema: PAGE_SCHEMA.to_owned(),
            replica: shared.replica.clone(),
            at: at.to_string(),
            ranges: usize::from(shared.ranges),
            unowned: usize::from(shared.ranges).saturating_sub(
                view.ranges
                    .iter()
                    .filter(|range| range.owner.is_some())
                    .count(),
            ),
            replicas: replicas(&view, &said, picture.seen()),
        }
    }
}

fn decoded(row: &Row) -> Option<Cells> {
    Some(Cells {
        range: row.range,
        first: row.first,
        work: BASE64.decode(&row.work).ok()?,
        wait: BASE64.decode(&row.wait).ok()?,
    })
}

/// The replicas with a Lease, and those that were seen with one and have none any more.
fn replicas<'a>(
    view: &View,
    said: &BTreeMap<String, Result<Recorded, Missing>>,
    seen: impl Iterator<Item = (&'a str, u64)>,
) -> Vec<PageReplica> {
    let mut owned: BTreeMap<&str, usize> = BTreeMap::new();
    for range in view.ranges.iter() {
        if let Some(owner) = &range.owner {
            *owned.entry(owner).or_default() += 1;
        }
    }
    let state = |member: &Member| match (member.draining, member.stale, member.ready) {
        (true, ..) => "draining",
        (_, true, _) => "stale",
        (.., false) => "starting",
        _ => "active",
    };
    let members = view.members.iter().map(|member| {
        let answer = said.get(&member.name);
        PageReplica {
            name: member.name.clone(),
            state: state(member).to_owned(),
            why: match answer {
                Some(Err(missing)) => missing.why.clone(),
                Some(Ok(_)) => String::new(),
                None => "it was not asked yet".to_owned(),
            },
            ranges: owned.get(&*member.name).copied().unwrap_or(0),
            figures: match answer {
                Some(Ok(said)) => Some(Figures::from(said)),
                _ => None,
            },
        }
    });
    let mut all: Vec<PageReplica> = members.collect();
    for (name, last) in seen {
        if view.members.iter().any(|member| member.name == name) {
            continue;
        }
        let second = i64::try_from(last.saturating_mul(COLUMN_SECONDS)).unwrap_or(i64::MAX);
        let last = Timestamp::from_second(second).unwrap_or_default();
        all.push(PageReplica {
            name: name.to_owned(),
            state: "gone".to_owned(),
            why: format!("without a Lease since {last}"),
            ranges: owned.get(name).copied().unwrap_or(0),
            figures: None,
        });
    }
    all.sort_by(|one, other| one.name.cmp(&other.name));
    all
}

/// The columns from this number on, as they are sent.
fn columns(picture: &Picture, since: u64) -> Columns {
    let mut before: Option<&Column> = None;
    let columns = picture.since(since).map(|column| {
        let plane = |of: fn(&Column) -> &Vec<u8>| {
            let same = before.is_some_and(|before| of(before) == of(column));
            (!same).then(|| BASE64.encode(of(column)))
        };
        let sent = inspect::Column {
            at: column.at,
            owner: plane(|column| &column.owner),
            work: plane(|column| &column.work),
            wait: plane(|column| &column.wait),
        };
        before = Some(column);
        sent
    });
    Columns {
        seconds: COLUMN_SECONDS,
        columns: columns.collect(),
        ranges: picture.ranges(),
        kept: picture.kept(),
        names: picture.names().map(str::to_owned).collect(),
    }
}

/// Notes what the owned ranges have done, and who owns all of them.
fn note(shared: &Shared, view: &View) {
    answers::note(shared);
    let at = History::column(shared.clock.now().as_second());
    let members = view.members.iter().map(|member| &*member.name);
    let owners = view.ranges.iter();
    let owners = owners.map(|range| (range.range, range.owner.as_deref()));
    shared.history().owned_by(at, members, owners);
}

/// Records what happens for as long as the process lives.
pub async fn record(shared: Weak<Shared>, handle: Handle) {
    while let Some(shared) = shared.upgrade() {
        note(&shared, &handle.view());
        drop(shared);
        tokio::time::sleep(RECORD_EVERY).await;
    }
}

/// What one reader has read so far.
struct Feed {
    live: Arc<Live>,
    ticks: watch::Receiver<Option<Arc<Tick>>>,
    /// From which column on it needs what is next.
    since: u64,
    keys_number: u64,
}

impl Feed {
    fn new(live: Arc<Live>, ticks: watch::Receiver<Option<Arc<Tick>>>) -> Self {
        Self {
            live,
            ticks,
            since: 0,
            keys_number: 0,
        }
    }

    /// Waits for answers that were not read yet; of several the newest.
    async fn tick(&mut self) -> Option<Arc<Tick>> {
        loop {
            self.ticks.changed().await.ok()?;
            let tick = self.ticks.borrow_and_update().clone();
            if tick.is_some() {
                return tick;
            }
        }
    }

    /// The columns that were not read yet, and the newest one, which is not whole.
    fn columns(&mut self) -> Columns {
        let inner = self.live.inner();
        let columns = columns(&inner.picture, self.since);
        self.since = inner.picture.newest().map_or(0, |at| at.saturating_sub(1));
        columns
    }

    /// Whether the keys were not read yet.
    fn wants_keys(&mut self, tick: &Tick) -> bool {
        std::mem::replace(&mut self.keys_number, tick.keys_number) != tick.keys_number
    }
}

/// One who reads.
struct Reader {
    feed: Feed,
    fleet: Fleet,
    rights: Arc<dyn Rights>,
    /// Made of the tick that was read last. Bound: three.
    waiting: VecDeque<Update>,
}

impl Reader {
    async fn next(&mut self) -> Option<Update> {
        while self.waiting.is_empty() {
            let tick = self.feed.tick().await?;
            let columns = self.feed.columns();
            self.push("columns", serde_json::to_string(&columns));
            self.push("state", Ok(tick.state.clone()));
            if self.feed.wants_keys(&tick) {
                let keys = visible(&self.fleet, &tick, &*self.rights).await;
                self.push("keys", serde_json::to_string(&keys));
            }
        }
        self.waiting.pop_front()
    }

    fn push(&mut self, name: &'static str, json: serde_json::Result<String>) {
        match json {
            Ok(json) => self.waiting.push_back(Update { name, json }),
            Err(why) => tracing::debug!(%why, name, "an update of the page can't be written"),
        }
    }
}

/// What the reader may see.
async fn visible(fleet: &Fleet, tick: &Tick, rights: &dyn Rights) -> PageKeys {
    let read = async {
        let top = fleet.visible_top(tick.top.clone(), rights).await?;
        let unhappy = fleet.visible_unhappy(tick.unhappy.clone(), rights).await?;
        Ok::<_, Denied>((top, unhappy))
    };
    match read.await {
        Ok((mut top, unhappy)) => PageKeys {
            missing: std::mem::take(&mut top.missing),
            top,
            unhappy,
            refused: String::new(),
        },
        Err(why) => {
            tracing::debug!(?why, "what a reader of the page may see is not known");
            PageKeys {
                refused: "your rights could not be found out".to_owned(),
                ..PageKeys::default()
            }
        }
    }
}

/// The updates of one reader.
pub(super) fn updates(
    live: Arc<Live>,
    fleet: Fleet,
    rights: Arc<dyn Rights>,
) -> BoxStream<'static, Update> {
    let ticks = live.subscribe(&fleet);
    let reader = Reader {
        feed: Feed::new(live, ticks),
        fleet,
        rights,
        waiting: VecDeque::new(),
    };
    stream::unfold(reader, |mut reader| async move {
        let update = reader.next().await?;
        Some((update, reader))
    })
    .boxed()
}

#[cfg(test)]
#[path = "live_tests.rs"]
mod tests;
