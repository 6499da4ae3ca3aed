//! Every family with its name, help and bounds: what is registered is what is served.

use std::{
    borrow::Cow,
    sync::atomic::{AtomicI64, AtomicU64},
};

use node_options::version;
use prometheus_client::{
    metrics::{MetricType, counter::Counter, family::Family, gauge::Gauge},
    registry::{Metric, Registry},
};
use shadow::Kind;

use super::histogram::{Histogram, exponential};

pub(super) type Text = Cow<'static, str>;
pub(super) type Labels<const N: usize> = [(&'static str, Text); N];
pub(super) type Counters<const N: usize> = Family<Labels<N>, Counter>;
pub(super) type Gauges<const N: usize> = Family<Labels<N>, Gauge<i64, AtomicI64>>;
pub(super) type Seconds<const N: usize> = Family<Labels<N>, Gauge<f64, AtomicU64>>;
pub(super) type Histograms<const N: usize> = Family<Labels<N>, Histogram, fn() -> Histogram>;

/// From 10 ns to 10 s: upstream's bounds for queues.
fn queue_seconds() -> Histogram {
    Histogram::new(exponential(10e-9, 10.0, 10))
}

/// Upstream's bounds for requests and for waiting in front of the rate limit.
fn request_seconds() -> Histogram {
    Histogram::new(vec![
        0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0,
    ])
}

/// 64 bytes to 16 MiB: upstream's bounds for bodies.
fn body_bytes() -> Histogram {
    Histogram::new(vec![
        64.0,
        256.0,
        512.0,
        1024.0,
        4096.0,
        16384.0,
        65536.0,
        262_144.0,
        1_048_576.0,
        4_194_304.0,
        16_777_216.0,
    ])
}

/// 1 µs to 4 s: a plan takes microseconds, and one that takes seconds must be seen.
fn plan_seconds() -> Histogram {
    Histogram::new(exponential(1e-6, 4.0, 12))
}

/// 1 ms to 33 s: a handoff takes milliseconds, a takeover up to the lease duration and some.
fn move_seconds() -> Histogram {
    Histogram::new(exponential(0.001, 2.0, 16))
}

/// The families that are counted in, as they are registered.
pub(super) struct Families {
    pub(super) depth: Gauges<1>,
    pub(super) adds: Counters<1>,
    pub(super) waited: Histograms<1>,
    pub(super) worked: Histograms<1>,
    pub(super) unfinished: Seconds<1>,
    pub(super) longest: Seconds<1>,
    pub(super) retries: Counters<1>,

    pub(super) requests: Counters<3>,
    pub(super) request_seconds: Histograms<2>,
    pub(super) request_bytes: Histograms<2>,
    pub(super) response_bytes: Histograms<2>,
    pub(super) limiter_seconds: Histograms<2>,
    pub(super) request_retries: Counters<3>,

    pub(super) ranges: Gauge<i64, AtomicI64>,
    pub(super) ranges_unowned: Gauge<i64, AtomicI64>,
    pub(super) ranges_owned: Gauge<i64, AtomicI64>,
    pub(super) epoch_changes: Counter,
    pub(super) handoff_seconds: Histograms<1>,
    pub(super) takeover_seconds: Histogram,
    pub(super) fence_refusals: Counters<1>,
    pub(super) fence_open: Gauge<i64, AtomicI64>,
    pub(super) fence_remaining: Gauge<f64, AtomicU64>,
    pub(super) renewal_margin: Gauge<f64, AtomicU64>,
    pub(super) api_budget: Gauge<f64, AtomicU64>,
    pub(super) api_back_pressure: Gauge<f64, AtomicU64>,
    pub(super) standby: Gauge<i64, AtomicI64>,
    pub(super) leader: Gauges<1>,
    pub(super) slow_renewals: Counters<1>,
    pub(super) features: Gauges<2>,
    pub(super) running: Gauges<2>,
    pub(super) disabled: Counter,
    pub(super) certificate_expiration: Histogram,
    pub(super) client_certificate_ends: Gauges<1>,
    pub(super) server_fence: Gauge<i64, AtomicI64>,
    pub(super) server_fence_proofs: Counters<1>,
    pub(super) peer_refusals: Counters<1>,
    pub(super) ownership_changes: Counters<1>,
    pub(super) cache_lag: Seconds<1>,
    pub(super) cache_objects: Gauges<1>,
    pub(super) cache_bytes: Gauges<1>,
    pub(super) discovery_failing: Gauges<1>,
    pub(super) key_material_differs: Gauges<1>,
    pub(super) members: Gauges<1>,
    pub(super) members_unreachable: Gauge<i64, AtomicI64>,
    pub(super) current: Gauge<i64, AtomicI64>,
    pub(super) drained: Gauge<i64, AtomicI64>,
    pub(super) decode_errors: Counters<1>,
    pub(super) plan_seconds: Histograms<1>,
    pub(super) plan_panics: Counters<1>,
    pub(super) config_reads: Counters<1>,
    pub(super) config_pending: Gauge<i64, AtomicI64>,
    pub(super) config_refused: Gauge<i64, AtomicI64>,
    pub(super) plan_breaches: Counters<1>,
    pub(super) wake_panics: Counters<1>,
    pub(super) quarantined: Gauges<1>,
    pub(super) paused_waiting: Gauges<1>,
    pub(super) pauses: Gauges<2>,
    pub(super) drains: Gauge<i64, AtomicI64>,
    pub(super) moves: Gauge<i64, AtomicI64>,
    pub(super) moves_without_effect: Gauge<i64, AtomicI64>,
    pub(super) plan: Gauge<i64, AtomicI64>,
    pub(super) plan_in_force: Gauge<i64, AtomicI64>,
    pub(super) imbalance: Gauge<f64, AtomicU64>,
    pub(super) settings: Seconds<2>,
    pub(super) steering_faults: Gauge<i64, AtomicI64>,
    pub(super) steering_unread: Gauge<i64, AtomicI64>,
    pub(super) shadow: Gauge<i64, AtomicI64>,
    pub(super) shadow_verdicts: [(Kind, Counters<1>); 5],
    pub(super) shadow_pending: Gauges<1>,
    pub(super) shadow_dropped: Gauge<i64, AtomicI64>,
    pub(super) reconciles: Counters<2>,
    pub(super) writes: Counters<4>,
    pub(super) events_dropped: Counter,
    pub(super) marks_dropped: Counter,
    pub(super) spans_exported: Counter,
    pub(super) spans_dropped: Counters<1>,
}

/// Registers as it goes, so that no family can be made and forgotten; and the families with their types, by
/// the names that they were registered with.
pub(super) struct Registering(pub(super) Registry, pub(super) Vec<(String, MetricType)>);

impl Registering {
    pub(super) fn add<M: Metric + Clone>(&mut self, name: &str, help: &str, metric: M) -> M {
        self.0.register(name, help, metric.clone());
        self.1.push((name.to_owned(), metric.metric_type()));
        metric
    }

    /// A counter's name is given without the `_total` that it is served with.
    pub(super) fn counters<const N: usize>(&mut self, name: &str, help: &str) -> Counters<N> {
        self.add(name, help, Family::default())
    }

    pub(super) fn gauges<const N: usize>(&mut self, name: &str, help: &str) -> Gauges<N> {
        self.add(name, help, Family::default())
    }

    pub(super) fn seconds<const N: usize>(&mut self, name: &str, help: &str) -> Seconds<N> {
        self.add(name, help, Family::default())
    }

    pub(super) fn histograms<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        of: fn() -> Histogram,
    ) -> Histograms<N> {
        self.add(name, help, Family::new_with_constructor(of))
    }
}

/// Registers all but those that controllers declare.
pub(super) fn families(on: &mut Registering) -> Families {
    Families {
        depth: on.gauges("workqueue_depth", "Keys that wait in the queue now."),
        adds: on.counters("workqueue_adds", "Keys that were added to the queue."),
        waited: on.histograms(
            "workqueue_queue_duration_seconds",
            "How long a key waits in the queue before it is taken up.",
            queue_seconds,
        ),
        worked: on.histograms(
            "workqueue_work_duration_seconds",
            "How long the work on a key takes.",
            queue_seconds,
        ),
        unfinished: on.seconds(
            "workqueue_unfinished_work_seconds",
            "Sum of how long the keys that are worked on now have been so. It grows where work is stuck.",
        ),
        longest: on.seconds(
            "workqueue_longest_running_processor_seconds",
            "How long the key that is worked on longest has been so.",
        ),
        retries: on.counters("workqueue_retries", "Keys that were put back with back-off."),

        requests: on.counters(
            "rest_client_requests",
            "Requests to the API server by status code, method and host; the code is <error> where no answer came.",
        ),
        request_seconds: on.histograms(
            "rest_client_request_duration_seconds",
            "How long a request to the API server takes, by verb and host.",
            request_seconds,
        ),
        request_bytes: on.histograms(
            "rest_client_request_size_bytes",
            "Size of request bodies, by verb and host.",
            body_bytes,
        ),
        response_bytes: on.histograms(
            "rest_client_response_size_bytes",
            "Size of response bodies, by verb and host.",
            body_bytes,
        ),
        limiter_seconds: on.histograms(
            "rest_client_rate_limiter_duration_seconds",
            "How long a request waits for this client's own rate limit, by verb and host.",
            request_seconds,
        ),
        request_retries: on.counters(
            "rest_client_request_retries",
            "Requests that were sent again, by status code, verb and host.",
        ),

        ranges: on.add(
            "manifold_ranges",
            "Ranges of the key space: --ranges.",
            Gauge::default(),
        ),
        ranges_unowned: on.add(
            "manifold_ranges_unowned",
            "Ranges that no member owns by their Leases, as this replica sees them.",
            Gauge::default(),
        ),
        ranges_owned: on.add(
            "manifold_ranges_owned",
            "Ranges of the key space that this replica owns. Summed over the fleet it is --ranges.",
            Gauge::default(),
        ),
        epoch_changes: on.add(
            "manifold_epoch_changes",
            "Ranges that came to this replica, each under a new epoch.",
            Counter::default(),
        ),
        handoff_seconds: on.histograms(
            "manifold_handoff_duration_seconds",
            "How long an orderly change of owner keeps a range still; direction is in or out.",
            move_seconds,
        ),
        takeover_seconds: on.add(
            "manifold_takeover_duration_seconds",
            "How long it takes to own a range after its owner was found dead.",
            Histogram::new(exponential(0.001, 2.0, 16)),
        ),
        fence_refusals: on.counters(
            "manifold_fence_refusals",
            "Writes that were not sent because the range is not this replica's (any more) or its Lease may be over.",
        ),
        fence_open: on.add(
            "manifold_fence_open",
            "1 while this replica may write: its Lease was renewed within the deadline, and so was the manager's by the fleet.",
            Gauge::default(),
        ),
        fence_remaining: on.add(
            "manifold_fence_remaining_seconds",
            "For how long this replica may write without another renewal. Between two renewals it falls from \
             --lease-renew-deadline by --lease-retry-period; it is lower where renewals are slow.",
            Gauge::default(),
        ),
        renewal_margin: on.add(
            "manifold_renewal_margin_seconds",
            "For how long this replica could still have written when the last renewal of its Lease landed:              --lease-renew-deadline less --lease-retry-period, less what a renewal takes. 0 before the second renewal.",
            Gauge::default(),
        ),
        api_budget: on.add(
            "manifold_api_budget_ratio",
            "The part of --kube-api-qps and --kube-api-burst that this replica may use now. With \
             --kube-api-budget=fleet it follows from what each replica has to write, and the parts of all add up to 1.",
            Gauge::default(),
        ),
        api_back_pressure: on.add(
            "manifold_api_back_pressure_ratio",
            "What the API server's answers 429 have left of the part that this replica may use: 1 without, halved in \
             each second with such an answer.",
            Gauge::default(),
        ),
        standby: on.add(
            "manifold_standby",
            "1 while another manager holds the Lease that keeps managers apart: this replica writes nothing.",
            Gauge::default(),
        ),
        leader: on.gauges(
            "leader_election_master_status",
            "1 while this replica may write under the Lease of that name, which the fleet holds. All replicas work at once, so their sum is the number of replicas at work; 0 in all while another manager holds it.",
        ),
        slow_renewals: on.counters(
            "leader_election_slowpath",
            "Renewals of the Lease of that name that this replica made on a version which it had to read again, since its write on the version that it knew was refused or had no answer.",
        ),
        features: on.gauges(
            "kubernetes_feature_enabled",
            "Whether a feature gate is on, by its name and stage.",
        ),
        running: on.gauges(
            "running_managed_controllers",
            "1 for each controller that runs in this replica, whatever ranges of its keys it owns.",
        ),
        disabled: on.add(
            "disabled_metrics",
            "Metrics that --disabled-metrics names.",
            Counter::default(),
        ),
        certificate_expiration: on.add(
            "apiserver_client_certificate_expiration_seconds",
            "How long the certificates are valid still by which clients of the secure port are known.",
            Histogram::new(vec![
                0.0,
                1_800.0,
                3_600.0,
                7_200.0,
                21_600.0,
                43_200.0,
                86_400.0,
                172_800.0,
                345_600.0,
                604_800.0,
                2_592_000.0,
                7_776_000.0,
                15_552_000.0,
                31_104_000.0,
            ]),
        ),
        client_certificate_ends: on.gauges(
            "manifold_client_certificate_expiration_timestamp_seconds",
            "When the client certificate by which the API server is asked expires, by the flag that names its kubeconfig.",
        ),
        server_fence: on.add(
            "manifold_server_fence",
            "1 while writes carry their incarnation, so that the API server refuses those of the dead.",
            Gauge::default(),
        ),
        server_fence_proofs: on.counters(
            "manifold_server_fence_proofs",
            "Dead incarnations before a takeover: result is held (the API server was shown to refuse them) or unproven.",
        ),
        peer_refusals: on.counters(
            "manifold_peer_refusals",
            "Peers that were refused, by reason: handshake (no TLS, or too slow), displaced (by newer connections), \
             unknown (no live member's key or certificate), other_name (a message in another's name), wrong_key (a \
             member was called and has not the key that its Lease names).",
        ),
        ownership_changes: on.counters(
            "manifold_ownership_changes",
            "What has happened to ownership here, by what: took_over, received, handed_over, handoff_failed, evicted, \
             fenced, reopened, self_evicted, deprived, dropped, joined, lease_damaged, ranges_doubtful (some member \
             has not said for a lease duration that it holds none of them), relinquished (given without state to a \
             member that does not answer), holds, standby, false_proof (a replica that was said to have ended renews), \
             planned (this replica's plan moves a range), bad_plan (the fleet's plan can not be read).",
        ),
        cache_lag: on.seconds(
            "manifold_cache_lag_seconds",
            "How long ago the watch of a resource last came further.",
        ),
        cache_objects: on.gauges("manifold_cache_objects", "Objects in the cache."),
        cache_bytes: on.gauges("manifold_cache_bytes", "Memory that the cached objects take, as estimated."),
        discovery_failing: on.gauges(
            "manifold_discovery_failing",
            "Group versions whose discovery fails, and resources found by discovery that can't be watched.",
        ),
        key_material_differs: on.gauges(
            "manifold_key_material_differs",
            "1 while replicas have different files of what they must have the same of, by name: a signer's authority, \
             root-ca, service-account-key; controllers are those of --controllers.",
        ),
        members: on.gauges(
            "manifold_members",
            "Members of the fleet as this replica sees them, by state: ready, not_ready (caches fill), draining.",
        ),
        members_unreachable: on.add(
            "manifold_members_unreachable",
            "Members that do not answer this replica.",
            Gauge::default(),
        ),
        current: on.add(
            "manifold_current",
            "1 while what this replica sees is current; at 0 its ranges move to others whose view is.",
            Gauge::default(),
        ),
        decode_errors: on.counters(
            "manifold_decode_errors",
            "Objects that could not be decoded or indexed and were left alone.",
        ),
        plan_seconds: on.histograms(
            "manifold_plan_duration_seconds",
            "How long a controller thinks about a key.",
            plan_seconds,
        ),
        plan_panics: on.counters(
            "manifold_plan_panics",
            "Plans that panicked; each costs its key a back-off.",
        ),
        config_reads: on.counters(
            "manifold_config_changes",
            "Changes of the configuration file since the start, by whether they were used or refused.",
        ),
        config_pending: on.add(
            "manifold_config_pending_fields",
            "Fields of the configuration file that a restart would change.",
            Gauge::default(),
        ),
        config_refused: on.add(
            "manifold_config_refused",
            "1 while the configuration file is one that was refused, so that an earlier one is in force, else 0.",
            Gauge::default(),
        ),
        plan_breaches: on.counters(
            "manifold_plan_breaches",
            "Plans that were not applied since they broke a post-condition: an action beyond the controller's rules, or a deletion of a child that was not counted; each costs its key a back-off.",
        ),
        wake_panics: on.counters(
            "manifold_wake_panics",
            "Changes of objects over which a controller panicked when it was asked which keys they wake; they wake none.",
        ),
        quarantined: on.gauges(
            "manifold_quarantined_keys",
            "Keys of this replica that are reconciled alone and last: replicas have died while they reconciled them.",
        ),
        paused_waiting: on.gauges(
            "manifold_paused_keys_waiting",
            "Keys of this replica that something has happened to while they were paused: they are reconciled when the pause ends.",
        ),
        pauses: on.gauges(
            "manifold_pauses",
            "Pauses that hold, by controller, and by what they pause: the whole controller or a key of it. Each replica says the same.",
        ),
        drained: on.add(
            "manifold_drained",
            "1 while the replica was drained by an operator: it hands its ranges over and takes none.",
            Gauge::default(),
        ),
        drains: on.add(
            "manifold_drains",
            "Drains of replicas that hold. Each replica says the same.",
            Gauge::default(),
        ),
        moves: on.add(
            "manifold_moves",
            "Ranges that an order gives to another replica than placement would. Each replica says the same.",
            Gauge::default(),
        ),
        moves_without_effect: on.add(
            "manifold_moves_without_effect",
            "Of these, those without effect: there is no such ready replica, or not all replicas follow such orders.",
            Gauge::default(),
        ),
        plan: on.add(
            "manifold_placement_plan",
            "The number of the newest plan of placement; 0 where there never was one. Each replica says the same.",
            Gauge::default(),
        ),
        plan_in_force: on.add(
            "manifold_placement_plan_in_force",
            "1 while ranges are placed by a plan, 0 while by equal numbers. Each replica says the same.",
            Gauge::default(),
        ),
        imbalance: on.add(
            "manifold_placement_imbalance",
            "The load of the busiest replica over the mean: 1 is even. Said by the replica that plans, 0 by the others.",
            Gauge::default(),
        ),
        settings: on.seconds(
            "manifold_settings",
            "Workers or writes a second of a controller that an order has set, while it holds; 0 otherwise. Each replica says the same.",
        ),
        steering_unread: on.add(
            "manifold_steering_unread",
            "1 while this replica can't read the fleet's orders: it goes by those that it has read before.",
            Gauge::default(),
        ),
        steering_faults: on.add(
            "manifold_steering_faults",
            "Fields of the fleet's steering object that can't be read and have no effect. Each replica says the same.",
            Gauge::default(),
        ),
        shadow: on.add(
            "manifold_shadow",
            "1 where this replica is a shadow: it plans and compares, and writes nothing.",
            Gauge::default(),
        ),
        shadow_verdicts: [
            (Kind::Agreed, on.counters(
                "manifold_shadow_agreed",
                "Writes that both managers want at about the same time, by controller.",
            )),
            (Kind::Early, on.counters(
                "manifold_shadow_early",
                "Writes that both managers want and that were planned here long before, by controller.",
            )),
            (Kind::Superseded, on.counters(
                "manifold_shadow_superseded",
                "Planned writes that were planned no more before the manager in charge came to them, by controller.",
            )),
            (Kind::Missing, on.counters(
                "manifold_shadow_missing",
                "Planned writes that the manager in charge has not done in time, by controller.",
            )),
            (Kind::Extra, on.counters(
                "manifold_shadow_extra",
                "Writes of the manager in charge that no plan wanted, by the controller that might have made them.",
            )),
        ],
        shadow_pending: on.gauges(
            "manifold_shadow_pending",
            "Planned writes that the manager in charge is waited for with, by controller.",
        ),
        shadow_dropped: on.add(
            "manifold_shadow_dropped",
            "Planned writes and changes that a bound has left out of the comparison.",
            Gauge::default(),
        ),
        reconciles: on.counters("manifold_reconciles", "Keys that were reconciled, by what came of it."),
        writes: on.counters(
            "manifold_writes",
            "Writes to the API server, by controller, verb, resource and what came of them.",
        ),
        events_dropped: on.add(
            "manifold_events_dropped",
            "Events that were not sent: their queue was full or the server refused them.",
            Counter::default(),
        ),
        marks_dropped: on.add(
            "manifold_handoff_marks_dropped",
            "Versions that came with a range, far beyond all that was seen here, and were left out.",
            Counter::default(),
        ),
        spans_exported: on.add(
            "manifold_trace_spans_exported",
            "Spans that the OTLP endpoint has taken.",
            Counter::default(),
        ),
        spans_dropped: on.counters(
            "manifold_trace_spans_dropped",
            "Spans that were not exported: queue_full, export_failed, buffer_full (of unfinished reconciles); \
             rate_limited counts reconciles that failed or were slow beyond what is exported of such in a second.",
        ),
    }
}

/// `kubernetes_build_info`, with upstream's labels; what has no meaning here is empty.
pub(super) fn build_info(on: &mut Registering) {
    let info: Gauges<9> = on.gauges(
        "kubernetes_build_info",
        "Always 1; the labels say what was built and for which platform.",
    );
    info.get_or_create(&[
        ("build_date", "".into()),
        ("compiler", "rustc".into()),
        ("git_commit", "".into()),
        ("git_tree_state", "".into()),
        ("git_version", version::GIT_VERSION.into()),
        ("go_version", "".into()),
        ("major", "1".into()),
        ("minor", "36".into()),
        ("platform", version::platform().into()),
    ])
    .set(1);
}

/// How many metrics there are, `version_info`, and that none is hidden.
pub(super) fn registered(on: &mut Registering) {
    let info: Gauges<4> = on.gauges(
        "version_info",
        "Always 1; the labels say the Kubernetes version that is built, emulated, and the oldest that is compatible.",
    );
    info.get_or_create(&[
        ("component", "kube".into()),
        ("binary", "1.36".into()),
        ("emulation", "1.36".into()),
        ("min_compat", "1.35".into()),
    ])
    .set(1);
    on.add(
        "hidden_metrics",
        "Metrics that are hidden for their age: none.",
        <Counter>::default(),
    );
    let all: Counters<2> = on.counters(
        "registered_metrics",
        "Metrics of this process. Their stability is not graded: both labels are empty.",
    );
    let labels = [
        ("stability_level", Text::from("")),
        ("deprecated_version", Text::from("")),
    ];
    all.get_or_create(&labels)
        .inc_by(u64::try_from(on.1.len()).unwrap_or(u64::MAX));
}
