//! What a controller is called and needs: flags, RBAC, metrics, documentation and placement are made from it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use jiff::tz::TimeZone;
use kubernetes_proto::Object;
use smallvec::SmallVec;

use crate::Key;

/// The text that decides a key's range, on the stack where it is short, as nearly all are.
pub type ShardText = SmallVec<[u8; 128]>;

/// Which part of a key decides its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharding {
    /// `namespace/name`: objects with equal names share a range.
    ByObject,
    /// The namespace alone, where a decision needs all of it on one replica.
    ByNamespace,
    /// One key for the whole cluster; placed by the controller's name.
    Single,
}

/// A flag's default, which also gives its type.
#[derive(Clone, Debug, PartialEq)]
pub enum FlagDefault {
    /// A whole number.
    Int(i64),
    /// A number.
    Float(f64),
    /// true or false.
    Bool(bool),
    /// A duration, written as Go writes it (`1m30s`).
    Duration(Duration),
    /// A text.
    Text(&'static str),
    /// A file's path; its content is read at start and passed to the controller.
    File,
}

/// One command-line flag of a controller, named as upstream names it, without the dashes.
#[derive(Clone, Debug, PartialEq)]
pub struct Flag {
    /// The name.
    pub name: &'static str,
    /// Default and type.
    pub default: FlagDefault,
    /// One sentence for `--help`.
    pub help: &'static str,
}

/// A flag's value as given.
#[derive(Clone, Debug, PartialEq)]
pub enum FlagValue {
    /// A whole number.
    Int(i64),
    /// A number.
    Float(f64),
    /// true or false.
    Bool(bool),
    /// A duration.
    Duration(Duration),
    /// A text.
    Text(String),
    /// A file's content; `None` where no path was given.
    File(Option<Vec<u8>>),
}

/// The values of all flags that controllers declared.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    values: BTreeMap<&'static str, FlagValue>,
    local_zone: Option<TimeZone>,
}

impl Flags {
    /// The defaults of some descriptors.
    pub fn defaults<'a>(descriptors: impl IntoIterator<Item = &'a Descriptor>) -> Self {
        let mut flags = Self::default();
        let descriptors: Vec<&Descriptor> = descriptors.into_iter().collect();
        for (name, default) in descriptors.iter().flat_map(|descriptor| &descriptor.gates) {
            flags.values.insert(name, FlagValue::Bool(*default));
        }
        for flag in descriptors
            .into_iter()
            .flat_map(|descriptor| &descriptor.flags)
        {
            let value = match &flag.default {
                FlagDefault::Int(number) => FlagValue::Int(*number),
                FlagDefault::Float(number) => FlagValue::Float(*number),
                FlagDefault::Bool(truth) => FlagValue::Bool(*truth),
                FlagDefault::Duration(duration) => FlagValue::Duration(*duration),
                FlagDefault::Text(text) => FlagValue::Text((*text).to_owned()),
                FlagDefault::File => FlagValue::File(None),
            };
            flags.values.insert(flag.name, value);
        }
        flags
    }

    /// Sets a value.
    pub fn set(&mut self, name: &'static str, value: FlagValue) {
        self.values.insert(name, value);
    }

    /// Sets the time zone of the host.
    pub fn set_local_zone(&mut self, zone: TimeZone) {
        self.local_zone = Some(zone);
    }

    /// The time zone of the host, as the node has found it at start; UTC until it is set.
    pub fn local_zone(&self) -> TimeZone {
        self.local_zone.clone().unwrap_or(TimeZone::UTC)
    }

    /// All values by name: for `/configz`.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &FlagValue)> {
        self.values.iter().map(|(name, value)| (*name, value))
    }

    /// An integer. Panics where no descriptor declared the flag with that type: a programming error that
    /// the controller's first test finds.
    pub fn int(&self, name: &str) -> i64 {
        match self.values.get(name) {
            Some(FlagValue::Int(number)) => *number,
            other => panic!("flag {name} is not declared as a number but {other:?}"),
        }
    }

    /// A floating-point number. Panics as [`Flags::int`].
    pub fn float(&self, name: &str) -> f64 {
        match self.values.get(name) {
            Some(FlagValue::Float(number)) => *number,
            other => {
                panic!("flag {name} is not declared as a number with a fraction but {other:?}")
            }
        }
    }

    /// true or false. Panics as [`Flags::int`].
    pub fn bool(&self, name: &str) -> bool {
        match self.values.get(name) {
            Some(FlagValue::Bool(truth)) => *truth,
            other => panic!("flag {name} is not declared as true or false but {other:?}"),
        }
    }

    /// A duration. Panics as [`Flags::int`].
    pub fn duration(&self, name: &str) -> Duration {
        match self.values.get(name) {
            Some(FlagValue::Duration(duration)) => *duration,
            other => panic!("flag {name} is not declared as a duration but {other:?}"),
        }
    }

    /// A text. Panics as [`Flags::int`].
    pub fn text(&self, name: &str) -> &str {
        match self.values.get(name) {
            Some(FlagValue::Text(text)) => text,
            other => panic!("flag {name} is not declared as a text but {other:?}"),
        }
    }

    /// A file's content. Panics as [`Flags::int`].
    pub fn file(&self, name: &str) -> Option<&[u8]> {
        match self.values.get(name) {
            Some(FlagValue::File(content)) => content.as_deref(),
            other => panic!("flag {name} is not declared as a file but {other:?}"),
        }
    }
}

/// The delay of a key after failures in a row: exponential, from `first` after one failure to `max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The delay after the first failure.
    pub first: Duration,
    /// The largest delay.
    pub max: Duration,
}

impl Backoff {
    /// client-go's `DefaultTypedControllerRateLimiter`: 5 ms to 1000 s.
    pub const DEFAULT: Self = Self {
        first: Duration::from_millis(5),
        max: Duration::from_secs(1000),
    };

    /// The delay after `failures` failures in a row.
    pub fn after(&self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1);
        let factor = 1_u32.checked_shl(doublings).unwrap_or(u32::MAX);
        let delay = self.first.checked_mul(factor);
        delay.map_or(self.max, |delay| delay.min(self.max))
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// One rule of a controller's RBAC role. Events are granted to all and need no rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// Resource, or `resource/subresource`.
    pub resource: &'static str,
    /// Verbs, as RBAC names them.
    pub verbs: &'static [&'static str],
    /// The only names that it is for; empty for all.
    pub names: &'static [&'static str],
    /// The only namespace that it is for; empty for all.
    pub namespace: &'static str,
    /// Whether its lists are live reads by the controller's own account, rather than by the cache's.
    pub live: bool,
}

/// How the values of a metric are aggregated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MetricKind {
    /// A counter; each measure adds to it. `_total` belongs to its name, where upstream has it there.
    Counter,
    /// The last value that a plan has measured for its key. The series is removed with the key: when its
    /// object is gone or its range has another owner.
    Gauge,
    /// The sum of the last values of all of this replica's keys: a key that no longer measures adds
    /// nothing.
    Sum,
    /// A histogram: the first bound, the factor between bounds, and their number.
    Histogram(f64, f64, u16),
    /// Values in buckets with these bounds.
    Buckets(&'static [f64]),
}

/// One of upstream's metrics of a controller, named as upstream names it.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricSpec {
    /// The name in full.
    pub name: &'static str,
    /// How its values are aggregated.
    pub kind: MetricKind,
    /// Names of its labels, in the order in which [`crate::Measure`] gives their values.
    pub labels: &'static [&'static str],
    /// One sentence, the metric's HELP.
    pub help: &'static str,
}

impl MetricSpec {
    /// A metric, for a controller's table of them ([`Descriptor::metrics`]).
    pub const fn new(
        name: &'static str,
        kind: MetricKind,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Self {
        Self {
            name,
            kind,
            labels,
            help,
        }
    }
}

/// Whether a controller runs with the flags that were given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Runs {
    /// The controller runs.
    Yes,
    /// It does not run, as upstream would not start it; the reason is a sentence for the log.
    No(&'static str),
    /// The flags contradict each other: the process does not start.
    Wrong(String),
}

/// What a controller is called and needs.
#[derive(Clone, Debug)]
pub struct Descriptor {
    /// Upstream's canonical name, as in `deployment-controller`.
    pub name: &'static str,
    /// Upstream's old names, accepted by `--controllers`.
    pub aliases: &'static [&'static str],
    /// The service account in kube-system; also the events' source component unless
    /// [`Descriptor::event_source`] says otherwise.
    pub service_account: &'static str,
    /// The `source.component` of its events.
    pub event_source: &'static str,
    /// The `name` label of its `workqueue_*` metrics.
    pub queue: &'static str,
    /// Which part of a key decides its range.
    pub sharding: Sharding,
    /// The flag for the number of keys that one replica works on at once, and its default.
    pub workers: Option<(&'static str, i64)>,
    /// The number of keys that one replica works on at once, where there is no flag for it.
    pub workers_fixed: usize,
    /// Whether it judges each object by itself, so that its deletions do not depend on numbers of children.
    pub one_by_one: bool,
    /// Whether all that a plan leaves in a key's memory is what it has seen, and nothing that it is to write:
    /// a plan that is not carried out may leave it there.
    pub remembers_what_it_sees: bool,
    /// The back-off of a key after failed reconciles, as upstream's queue has it.
    pub backoff: Backoff,
    /// The duration flag that replaces `backoff.max`, for controllers that requeue at a period of the
    /// user's choice.
    pub backoff_max_flag: Option<&'static str>,
    /// Whether `--controllers=*` includes it.
    pub on_by_default: bool,
    /// Whether it runs regardless of `--controllers`.
    pub runs_unlisted: bool,
    /// Whether it runs with the given flags; asked where `--controllers` names it.
    pub runs: fn(&Flags) -> Runs,
    /// Its flags, the one of `workers` included.
    pub flags: Vec<Flag>,
    /// Feature gates that it reads, with upstream's defaults; their values come with the flags, as
    /// booleans.
    pub gates: Vec<(&'static str, bool)>,
    /// Its RBAC rules.
    pub rules: Vec<Rule>,
    /// Its own metrics, besides those that every controller has.
    pub metrics: Vec<MetricSpec>,
    /// The prefix of a counter `_total` and a histogram `_duration_seconds` of its syncs by status code,
    /// where upstream has such.
    pub sync_metrics: Option<&'static str>,
    /// A histogram of how long its syncs take, in seconds, where upstream has one without labels.
    pub sync_seconds: Option<&'static str>,
    /// Rate-limits reconciles by status writes: a key is not planned while its last status write is too
    /// recent for another one. For controllers whose plans are expensive and whose every write is a status.
    /// The value bounds the time between the starts of two plans of one key, for keys that read many
    /// objects.
    pub min_sync_interval: Option<Duration>,
    /// Its rate limit of writes as multiples of `--kube-api-qps` and `--kube-api-burst`; 1 and 1 for
    /// controllers that share one limit with all others, anything else for a limit of its own.
    pub client_rate: (u32, u32),
    /// The bounds of its numeric flags, both included.
    pub bounds: Vec<(&'static str, i64, i64)>,
    /// Its differences from upstream: one sentence each, for controllers/README.md.
    pub differences: Vec<&'static str>,
}

impl Descriptor {
    /// A controller with upstream's canonical name, which is also its alias, service account and queue
    /// until set otherwise; it works on one key at a time.
    pub fn new(name: &'static str, sharding: Sharding) -> Self {
        Self {
            name,
            aliases: &[],
            service_account: name,
            event_source: name,
            queue: name,
            sharding,
            workers: None,
            workers_fixed: 1,
            one_by_one: false,
            remembers_what_it_sees: false,
            backoff: Backoff::DEFAULT,
            backoff_max_flag: None,
            on_by_default: true,
            runs_unlisted: false,
            runs: |_| Runs::Yes,
            flags: Vec::new(),
            gates: Vec::new(),
            rules: Vec::new(),
            metrics: Vec::new(),
            sync_metrics: None,
            sync_seconds: None,
            min_sync_interval: None,
            client_rate: (1, 1),
            bounds: Vec::new(),
            differences: Vec::new(),
        }
    }

    /// Former names that `--controllers` accepts too.
    #[must_use]
    pub fn aliases(mut self, aliases: &'static [&'static str]) -> Self {
        self.aliases = aliases;
        self
    }

    /// The name of its service account in kube-system.
    #[must_use]
    pub fn service_account(mut self, name: &'static str) -> Self {
        self.service_account = name;
        self
    }

    /// The source component of its events.
    #[must_use]
    pub fn event_source(mut self, name: &'static str) -> Self {
        self.event_source = name;
        self
    }

    /// The name of its queue in metrics.
    #[must_use]
    pub fn queue(mut self, name: &'static str) -> Self {
        self.queue = name;
        self
    }

    /// Declares the flag for the number of keys that are worked on at once.
    #[must_use]
    pub fn workers(mut self, flag: &'static str, default: i64, help: &'static str) -> Self {
        self.workers = Some((flag, default));
        self.flag(flag, FlagDefault::Int(default), help)
    }

    /// Sets the number of keys that are worked on at once, where upstream has no flag for it.
    #[must_use]
    pub fn workers_fixed(mut self, count: usize) -> Self {
        self.workers_fixed = count;
        self
    }

    /// Declares that it judges each object by itself.
    #[must_use]
    pub fn one_by_one(mut self) -> Self {
        self.one_by_one = true;
        self
    }

    /// All that a plan leaves in a key's memory is what it has seen
    /// ([`Descriptor::remembers_what_it_sees`]).
    #[must_use]
    pub fn remembers_what_it_sees(mut self) -> Self {
        self.remembers_what_it_sees = true;
        self
    }

    /// Delay of a key after its first failed reconcile; conflicts still begin with [`Backoff::DEFAULT`]'s.
    #[must_use]
    pub fn retry_first(mut self, shortest: Duration) -> Self {
        self.backoff.first = shortest;
        self
    }

    /// A key that fails waits no longer than this.
    #[must_use]
    pub fn retry_max(mut self, longest: Duration) -> Self {
        self.backoff.max = longest;
        self
    }

    /// Bounds the back-off of a failing key by the value of this duration flag.
    #[must_use]
    pub fn retry_max_flag(mut self, flag: &'static str) -> Self {
        self.backoff_max_flag = Some(flag);
        self
    }

    /// The back-off with the flags' values.
    pub fn backoff_with(&self, flags: &Flags) -> Backoff {
        match self.backoff_max_flag {
            Some(flag) => Backoff {
                max: flags.duration(flag),
                ..self.backoff
            },
            None => self.backoff,
        }
    }

    /// The controller runs where its start conditions hold, whatever `--controllers` says.
    #[must_use]
    pub fn runs_unlisted(mut self) -> Self {
        self.runs_unlisted = true;
        self
    }

    /// Leaves it out of `--controllers=*`: it runs where it is named.
    #[must_use]
    pub fn off_by_default(mut self) -> Self {
        self.on_by_default = false;
        self
    }

    /// Decides whether it runs with the given flags, gates included.
    #[must_use]
    pub fn runs_where(mut self, runs: fn(&Flags) -> Runs) -> Self {
        self.runs = runs;
        self
    }

    /// Declares a flag.
    #[must_use]
    pub fn flag(mut self, name: &'static str, default: FlagDefault, help: &'static str) -> Self {
        self.flags.push(Flag {
            name,
            default,
            help,
        });
        self
    }

    /// Declares several flags, from a table.
    #[must_use]
    pub fn with_flags(mut self, flags: impl IntoIterator<Item = Flag>) -> Self {
        self.flags.extend(flags);
        self
    }

    /// Declares a feature gate that it reads: [`Flags::bool`] by the gate's name.
    #[must_use]
    pub fn gate(mut self, name: &'static str, default: bool) -> Self {
        self.gates.push((name, default));
        self
    }

    /// Adds an RBAC rule.
    #[must_use]
    pub fn rule(
        mut self,
        group: &'static str,
        resource: &'static str,
        verbs: &'static [&'static str],
    ) -> Self {
        self.rules.push(Rule {
            group,
            resource,
            verbs,
            names: &[],
            namespace: "",
            live: false,
        });
        self
    }

    /// An RBAC rule for a kind whose objects are read from the cache.
    #[must_use]
    pub fn reads<T: Object>(self) -> Self {
        let resource = T::resource();
        self.rule(resource.group, resource.plural, &["list", "watch"])
    }

    /// As [`Descriptor::reads`], for a kind of which single objects are also read live.
    #[must_use]
    pub fn reads_live<T: Object>(self) -> Self {
        let resource = T::resource();
        self.rule(resource.group, resource.plural, &["get", "list", "watch"])
    }

    /// RBAC rules for a kind that is read from the cache and written with these verbs.
    #[must_use]
    pub fn writes<T: Object>(self, verbs: &'static [&'static str]) -> Self {
        let resource = T::resource();
        let reads = self.reads::<T>();
        reads.rule(resource.group, resource.plural, verbs)
    }

    /// An RBAC rule for patches of a kind's status.
    #[must_use]
    pub fn writes_status<T: Object>(self) -> Self {
        let resource = T::resource();
        let status = interned(format!("{}/status", resource.plural));
        self.rule(resource.group, status, &["patch"])
    }

    /// An RBAC rule for a kind that is named as an owner with `blockOwnerDeletion`. Its finalizers are
    /// never written, but the API server demands the permission of any client that sets that field.
    #[must_use]
    pub fn blocks_owner_deletion<T: Object>(self) -> Self {
        let resource = T::resource();
        let finalizers = interned(format!("{}/finalizers", resource.plural));
        self.rule(resource.group, finalizers, &["update"])
    }

    /// An RBAC rule for objects of some names alone. `create` and `list` know no names: declare them by
    /// [`Descriptor::rule`].
    #[must_use]
    pub fn rule_for(
        mut self,
        group: &'static str,
        resource: &'static str,
        names: &'static [&'static str],
        verbs: &'static [&'static str],
    ) -> Self {
        self.rules.push(Rule {
            group,
            resource,
            verbs,
            names,
            namespace: "",
            live: false,
        });
        self
    }

    /// An RBAC rule for one namespace alone; of some names, or of all where none are given.
    #[must_use]
    pub fn rule_in(
        mut self,
        namespace: &'static str,
        group: &'static str,
        resource: &'static str,
        names: &'static [&'static str],
        verbs: &'static [&'static str],
    ) -> Self {
        self.rules.push(Rule {
            group,
            resource,
            verbs,
            names,
            namespace,
            live: false,
        });
        self
    }

    /// An RBAC rule for what is listed live by the controller's own account ([`crate::Query::Picked`]).
    #[must_use]
    pub fn rule_live(
        mut self,
        group: &'static str,
        resource: &'static str,
        verbs: &'static [&'static str],
    ) -> Self {
        self = self.rule(group, resource, verbs);
        if let Some(rule) = self.rules.last_mut() {
            rule.live = true;
        }
        self
    }

    /// Declares a metric that its plans measure.
    #[must_use]
    pub fn metric(
        mut self,
        name: &'static str,
        kind: MetricKind,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Self {
        self.metrics.push(MetricSpec {
            name,
            kind,
            labels,
            help,
        });
        self
    }

    /// Metrics that its plans measure, from a table.
    #[must_use]
    pub fn metrics(mut self, specs: &[MetricSpec]) -> Self {
        self.metrics.extend_from_slice(specs);
        self
    }

    /// Declares a counter and a histogram of syncs by status code under this prefix.
    #[must_use]
    pub fn sync_metrics(mut self, prefix: &'static str) -> Self {
        self.sync_metrics = Some(prefix);
        self
    }

    /// Declares a histogram of the durations of its syncs, in seconds.
    #[must_use]
    pub fn sync_seconds(mut self, name: &'static str) -> Self {
        self.sync_seconds = Some(name);
        self
    }

    /// Delays a key's plan while its last status write is too recent for another one
    /// ([`Descriptor::min_sync_interval`]); a key that reads many objects waits at most `most`.
    #[must_use]
    pub fn min_sync_interval(mut self, most: Duration) -> Self {
        self.min_sync_interval = Some(most);
        self
    }

    /// Sets the bounds of a numeric flag, both included.
    #[must_use]
    pub fn bound(mut self, flag: &'static str, least: i64, most: i64) -> Self {
        self.bounds.push((flag, least, most));
        self
    }

    /// Gives its writes a rate limit of their own: these multiples of `--kube-api-qps` and
    /// `--kube-api-burst`.
    #[must_use]
    pub fn client_rate(mut self, qps: u32, burst: u32) -> Self {
        self.client_rate = (qps, burst);
        self
    }

    /// The differences from upstream that a page of the controller's folder lists:
    /// `include_str!("differences.md")`. Each is a line that begins with `- `; besides them the page has a
    /// heading. Panics where the page has other lines, a mistake of the controller's author that every test
    /// of it finds.
    #[must_use]
    pub fn differences(mut self, page: &'static str) -> Self {
        for line in page.lines().filter(|line| !line.is_empty()) {
            match line.strip_prefix("- ") {
                Some(difference) => self.differences.push(difference),
                None => assert!(
                    line.starts_with("# "),
                    "{}: a difference is a line that begins with `- `, unlike {line:?}",
                    self.name
                ),
            }
        }
        self
    }

    /// The text whose hash finds a key's range. It is computed for every change and every key that it
    /// wakes, so it is built without allocation.
    pub fn shard_text(&self, key: &Key) -> ShardText {
        let by_object = [&*key.namespace, "/", &key.name];
        let parts = match self.sharding {
            Sharding::ByObject if !key.namespace.is_empty() => &by_object[..],
            Sharding::ByNamespace if !key.namespace.is_empty() => &by_object[..1],
            Sharding::ByObject | Sharding::ByNamespace => &by_object[2..],
            Sharding::Single => &[self.name],
        };
        let mut text = ShardText::new();
        for part in parts {
            text.extend_from_slice(part.as_bytes());
        }
        text
    }
}

/// A text interned for the life of the process: as many as there are subresources in rules.
fn interned(text: String) -> &'static str {
    static TEXTS: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    match texts.get(text.as_str()) {
        Some(text) => text,
        None => {
            let text: &'static str = text.leak();
            texts.insert(text);
            text
        }
    }
}

#[cfg(test)]
mod tests;
