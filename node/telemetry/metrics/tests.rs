use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use controllers_kit::Key;

use super::*;

/// Every family with its type, as `/metrics` shows them: golden, for dashboards and alerts hang on the names.
const GOLDEN: &[(&str, &str)] = &[
    (
        "apiserver_client_certificate_expiration_seconds",
        "histogram",
    ),
    (
        "cronjob_controller_job_creation_skew_duration_seconds",
        "histogram",
    ),
    (
        "device_taint_eviction_controller_pod_deletion_duration_seconds",
        "histogram",
    ),
    (
        "device_taint_eviction_controller_pod_deletions_total",
        "counter",
    ),
    ("disabled_metrics_total", "counter"),
    (
        "endpoint_slice_controller_endpoints_added_per_sync",
        "histogram",
    ),
    (
        "endpoint_slice_controller_endpoints_removed_per_sync",
        "histogram",
    ),
    (
        "endpoint_slice_mirroring_controller_addresses_skipped_per_sync",
        "histogram",
    ),
    (
        "endpoint_slice_mirroring_controller_endpoints_added_per_sync",
        "histogram",
    ),
    (
        "endpoint_slice_mirroring_controller_endpoints_removed_per_sync",
        "histogram",
    ),
    (
        "endpoint_slice_mirroring_controller_endpoints_updated_per_sync",
        "histogram",
    ),
    (
        "ephemeral_volume_controller_create_failures_total",
        "counter",
    ),
    ("ephemeral_volume_controller_create_total", "counter"),
    (
        "garbagecollector_controller_resources_sync_error_total",
        "counter",
    ),
    ("hidden_metrics_total", "counter"),
    ("kubernetes_build_info", "gauge"),
    ("kubernetes_feature_enabled", "gauge"),
    ("leader_election_master_status", "gauge"),
    ("leader_election_slowpath_total", "counter"),
    ("manifold_api_back_pressure_ratio", "gauge"),
    ("manifold_api_budget_ratio", "gauge"),
    ("manifold_cache_bytes", "gauge"),
    ("manifold_cache_lag_seconds", "gauge"),
    ("manifold_cache_objects", "gauge"),
    ("manifold_config_changes_total", "counter"),
    ("manifold_config_pending_fields", "gauge"),
    ("manifold_config_refused", "gauge"),
    ("manifold_current", "gauge"),
    ("manifold_decode_errors_total", "counter"),
    ("manifold_drained", "gauge"),
    ("manifold_drains", "gauge"),
    ("manifold_epoch_changes_total", "counter"),
    ("manifold_events_dropped_total", "counter"),
    ("manifold_fence_open", "gauge"),
    ("manifold_fence_refusals_total", "counter"),
    ("manifold_fence_remaining_seconds", "gauge"),
    ("manifold_handoff_duration_seconds", "histogram"),
    ("manifold_handoff_marks_dropped_total", "counter"),
    ("manifold_members", "gauge"),
    ("manifold_members_unreachable", "gauge"),
    ("manifold_memory_limit_bytes", "gauge"),
    ("manifold_moves", "gauge"),
    ("manifold_moves_without_effect", "gauge"),
    ("manifold_ownership_changes_total", "counter"),
    ("manifold_paused_keys_waiting", "gauge"),
    ("manifold_pauses", "gauge"),
    ("manifold_peer_refusals_total", "counter"),
    ("manifold_placement_imbalance", "gauge"),
    ("manifold_placement_plan", "gauge"),
    ("manifold_placement_plan_in_force", "gauge"),
    ("manifold_plan_breaches_total", "counter"),
    ("manifold_plan_duration_seconds", "histogram"),
    ("manifold_plan_panics_total", "counter"),
    ("manifold_quarantined_keys", "gauge"),
    ("manifold_ranges", "gauge"),
    ("manifold_ranges_owned", "gauge"),
    ("manifold_ranges_unowned", "gauge"),
    ("manifold_reconciles_total", "counter"),
    ("manifold_renewal_margin_seconds", "gauge"),
    ("manifold_server_fence", "gauge"),
    ("manifold_server_fence_proofs_total", "counter"),
    ("manifold_settings", "gauge"),
    ("manifold_shadow", "gauge"),
    ("manifold_shadow_agreed_total", "counter"),
    ("manifold_shadow_dropped", "gauge"),
    ("manifold_shadow_early_total", "counter"),
    ("manifold_shadow_extra_total", "counter"),
    ("manifold_shadow_missing_total", "counter"),
    ("manifold_shadow_pending", "gauge"),
    ("manifold_shadow_superseded_total", "counter"),
    ("manifold_standby", "gauge"),
    ("manifold_steering_faults", "gauge"),
    ("manifold_steering_unread", "gauge"),
    ("manifold_takeover_duration_seconds", "histogram"),
    ("manifold_trace_spans_dropped_total", "counter"),
    ("manifold_trace_spans_exported_total", "counter"),
    ("manifold_vap_unchecked_total", "counter"),
    ("manifold_wake_panics_total", "counter"),
    ("manifold_writes_total", "counter"),
    (
        "manifold_client_certificate_expiration_timestamp_seconds",
        "gauge",
    ),
    (
        "node_collector_update_all_nodes_health_duration_seconds",
        "histogram",
    ),
    (
        "node_collector_update_node_health_duration_seconds",
        "histogram",
    ),
    ("process_cpu_seconds_total", "counter"),
    ("process_max_fds", "gauge"),
    ("process_network_receive_bytes_total", "counter"),
    ("process_network_transmit_bytes_total", "counter"),
    ("process_open_fds", "gauge"),
    ("process_resident_memory_bytes", "gauge"),
    ("process_start_time_seconds", "gauge"),
    ("process_virtual_memory_bytes", "gauge"),
    ("process_virtual_memory_max_bytes", "gauge"),
    ("registered_metrics_total", "counter"),
    (
        "replicaset_controller_sorting_deletion_age_ratio",
        "histogram",
    ),
    ("rest_client_rate_limiter_duration_seconds", "histogram"),
    ("rest_client_request_duration_seconds", "histogram"),
    ("rest_client_request_retries_total", "counter"),
    ("rest_client_request_size_bytes", "histogram"),
    ("rest_client_requests_total", "counter"),
    ("rest_client_response_size_bytes", "histogram"),
    ("retroactive_storageclass_errors_total", "counter"),
    ("retroactive_storageclass_total", "counter"),
    ("root_ca_cert_publisher_sync_duration_seconds", "histogram"),
    ("root_ca_cert_publisher_sync_total", "counter"),
    ("route_controller_route_sync_total", "counter"),
    ("running_managed_controllers", "gauge"),
    ("service_controller_loadbalancer_sync_total", "counter"),
    ("service_controller_nodesync_error_total", "counter"),
    ("service_controller_nodesync_latency_seconds", "histogram"),
    (
        "service_controller_update_loadbalancer_host_latency_seconds",
        "histogram",
    ),
    (
        "taint_eviction_controller_pod_deletion_duration_seconds",
        "histogram",
    ),
    ("taint_eviction_controller_pod_deletions_total", "counter"),
    (
        "ttl_after_finished_controller_job_deletion_duration_seconds",
        "histogram",
    ),
    ("version_info", "gauge"),
    ("workqueue_adds_total", "counter"),
    ("workqueue_depth", "gauge"),
    ("workqueue_longest_running_processor_seconds", "gauge"),
    ("workqueue_queue_duration_seconds", "histogram"),
    ("workqueue_retries_total", "counter"),
    ("workqueue_unfinished_work_seconds", "gauge"),
    ("workqueue_work_duration_seconds", "histogram"),
];

/// Metrics in which every family has at least one series.
fn used() -> Arc<Metrics> {
    let metrics = Metrics::new(&node_registry::descriptors());
    let ms = Duration::from_millis;
    let queue = metrics.queue("deployment");
    queue.added();
    queue.depth(2);
    queue.depth(-1);
    queue.started(ms(2));
    queue.finished(ms(3));
    queue.retried();
    let client = metrics.client("10.0.0.1:6443");
    client.limited("GET", ms(1));
    client.answered("GET", Some(200), ms(4), 0, Some(70));
    client.answered("GET", None, ms(4), 0, None);
    client.answered("POST", Some(418), ms(4), 100, Some(300));
    client.retried("GET", Some(429));
    let controller = metrics.controller("deployment-controller");
    controller.planned(ms(1));
    controller.panicked();
    controller.breached();
    controller.wake_panicked();
    controller.quarantined(2);
    controller.quarantined(-1);
    controller.paused_waiting(1);
    metrics.pauses("deployment-controller", 1, 2);
    metrics.is_shadow();
    for kind in [
        Kind::Agreed,
        Kind::Early,
        Kind::Superseded,
        Kind::Missing,
        Kind::Extra,
    ] {
        metrics.shadow_verdict("deployment-controller", kind);
    }
    metrics.shadow_pending("deployment-controller", 1);
    metrics.shadow_dropped(0);
    metrics.steering_faults(1);
    metrics.steering_unread(false);
    metrics.drains(1);
    metrics.setting("deployment-controller", "qps", 2.5);
    metrics.drained(true);
    controller.fenced();
    controller.reconciled("success");
    controller.wrote("create", "replicasets", "success");
    let cache = metrics.cache("pods");
    cache.lag(ms(1500));
    cache.objects(7);
    cache.bytes(9000);
    cache.decode_error();
    metrics.ranges_owned(86);
    metrics.epoch_changed();
    metrics.handed_off(Direction::In, ms(20));
    metrics.handed_off(Direction::Out, ms(30));
    metrics.taken_over(ms(5200));
    metrics.ranges(256, 0);
    metrics.members(&[("ready", 3), ("not_ready", 0), ("draining", 0)]);
    metrics.fence(ms(2500), Some(ms(1900)));
    metrics.fence(ms(2500), None);
    metrics.standby(false);
    metrics.leads("kube-controller-manager", true);
    metrics.slow_renewals("kube-controller-manager", 2);
    metrics.slow_renewals("kube-controller-manager", 3);
    let set = BTreeMap::from([("HPAScaleToZero", true)]);
    let gates = node_options::args::gate_states(&set);
    metrics.started_with(gates, &["deployment-controller"], 2);
    metrics.client_certificate(Duration::from_secs(3600));
    metrics.client_certificate_ends("kubeconfig", Some(1_900_000_000));
    metrics.server_fence(true, (1, 0));
    metrics.peer_refusals(&[("unknown", 2)]);
    metrics.ownership_changed("took_over");
    metrics.event_dropped();
    metrics.config_read(true, 1);
    metrics.trace_spans(1, &[("queue_full", 1)]);
    metrics
        .controller("root-ca-certificate-publisher-controller")
        .synced(200, ms(5));
    metrics
        .controller("ttl-after-finished-controller")
        .measure(&controllers_kit::Measure {
            name: "ttl_after_finished_controller_job_deletion_duration_seconds",
            labels: Vec::new(),
            value: 0.15,
        });
    metrics
}

/// The value of one series.
fn value(text: &str, series: &str) -> f64 {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    let Some(line) = line else {
        panic!("no {series} in\n{text}");
    };
    line.parse().unwrap()
}

#[test]
fn what_the_process_was_started_with_is_reported_by_upstream_s_metrics() {
    let text = used().encode();
    for (series, expected) in [
        (
            r#"kubernetes_feature_enabled{name="HPAScaleToZero",stage="ALPHA"}"#,
            1.0,
        ),
        (
            r#"kubernetes_feature_enabled{name="GenericWorkload",stage="ALPHA"}"#,
            0.0,
        ),
        (
            r#"kubernetes_feature_enabled{name="ComponentFlagz",stage="BETA"}"#,
            1.0,
        ),
        (
            r#"kubernetes_feature_enabled{name="DynamicResourceAllocation",stage=""}"#,
            1.0,
        ),
        (
            r#"running_managed_controllers{name="deployment-controller",manager="kube-controller-manager"}"#,
            1.0,
        ),
        (
            r#"leader_election_master_status{name="kube-controller-manager"}"#,
            1.0,
        ),
        (
            r#"leader_election_slowpath_total{name="kube-controller-manager"}"#,
            3.0,
        ),
        ("disabled_metrics_total", 2.0),
        ("hidden_metrics_total", 0.0),
        (
            r#"version_info{component="kube",binary="1.36",emulation="1.36",min_compat="1.35"}"#,
            1.0,
        ),
        ("apiserver_client_certificate_expiration_seconds_count", 1.0),
    ] {
        assert_eq!(value(&text, series), expected, "{series}");
    }
    let registered = r#"registered_metrics_total{stability_level="",deprecated_version=""}"#;
    assert!(value(&text, registered) > 50.0);
}

#[test]
fn every_family_has_its_upstream_name_and_type() {
    let text = used().encode();
    let types: BTreeMap<&str, &str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
        .collect();
    assert_eq!(types, GOLDEN.iter().copied().collect());
    assert_eq!(
        text.matches("# HELP ").count(),
        GOLDEN.len(),
        "one help line each"
    );
    assert!(!text.contains("# EOF") && !text.contains("# UNIT"));
}

#[test]
fn names_are_those_of_the_samples_with_and_without_series() {
    let names = used().names();
    for name in [
        "manifold_fence_open",
        "manifold_key_material_differs",
        "manifold_plan_panics_total",
        "workqueue_queue_duration_seconds_bucket",
        "process_resident_memory_bytes",
        "endpoint_slice_controller_changes",
    ] {
        assert!(names.contains(name), "no {name}");
    }
    for name in [
        "manifold_plan_panics",
        "endpoint_slice_controller_changes_total",
    ] {
        assert!(!names.contains(name), "{name}");
    }
    let text = used().encode();
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    for sample in samples.filter_map(|line| line.split(['{', ' ']).next()) {
        assert!(names.contains(sample), "{sample} is not named");
    }
}

#[test]
fn samples_bear_upstreams_labels_and_bounds() {
    let text = used().encode();
    for (series, wanted) in [
        (r#"workqueue_adds_total{name="deployment"}"#, 1.0),
        (r#"workqueue_depth{name="deployment"}"#, 1.0),
        (
            r#"workqueue_queue_duration_seconds_bucket{name="deployment",le="0.001"}"#,
            0.0,
        ),
        (
            r#"workqueue_queue_duration_seconds_bucket{name="deployment",le="0.01"}"#,
            1.0,
        ),
        (
            r#"workqueue_queue_duration_seconds_bucket{name="deployment",le="9.999999999999999e-06"}"#,
            0.0,
        ),
        (
            r#"workqueue_queue_duration_seconds_bucket{name="deployment",le="+Inf"}"#,
            1.0,
        ),
        (
            r#"workqueue_queue_duration_seconds_sum{name="deployment"}"#,
            0.002,
        ),
        (
            r#"rest_client_requests_total{code="200",host="10.0.0.1:6443",method="GET"}"#,
            1.0,
        ),
        (
            r#"rest_client_requests_total{code="<error>",host="10.0.0.1:6443",method="GET"}"#,
            1.0,
        ),
        (
            r#"rest_client_requests_total{code="418",host="10.0.0.1:6443",method="POST"}"#,
            1.0,
        ),
        (
            r#"rest_client_response_size_bytes_bucket{host="10.0.0.1:6443",verb="GET",le="1.048576e+06"}"#,
            1.0,
        ),
        (
            r#"rest_client_request_duration_seconds_count{host="10.0.0.1:6443",verb="GET"}"#,
            2.0,
        ),
        (
            r#"rest_client_request_retries_total{code="429",host="10.0.0.1:6443",verb="GET"}"#,
            1.0,
        ),
        (
            r#"manifold_writes_total{controller="deployment-controller",resource="replicasets",result="success",verb="create"}"#,
            1.0,
        ),
        (r#"manifold_cache_lag_seconds{resource="pods"}"#, 1.5),
        (r#"root_ca_cert_publisher_sync_total{code="200"}"#, 1.0),
        (
            "ttl_after_finished_controller_job_deletion_duration_seconds_bucket{le=\"0.2\"}",
            1.0,
        ),
        ("manifold_ranges_owned", 86.0),
        (r#"manifold_members{state="ready"}"#, 3.0),
        ("manifold_fence_open", 1.0),
        ("manifold_fence_remaining_seconds", 2.5),
        ("manifold_renewal_margin_seconds", 1.9),
    ] {
        assert_eq!(value(&text, series), wanted, "{series}");
    }
    assert!(text.contains(r#"major="1",minor="36""#), "{text}");
}

#[test]
fn a_queues_series_exist_before_anything_happened() {
    let metrics = Metrics::new(&node_registry::descriptors());
    let _ = metrics.queue("serviceaccount");
    let text = metrics.encode();
    assert_eq!(
        value(&text, r#"workqueue_adds_total{name="serviceaccount"}"#),
        0.0
    );
    assert_eq!(
        value(
            &text,
            r#"workqueue_work_duration_seconds_count{name="serviceaccount"}"#
        ),
        0.0
    );
}

#[test]
fn counters_and_histograms_without_labels_exist_before_anything_happened() {
    let metrics = Metrics::new(&node_registry::descriptors());
    let text = metrics.encode();
    for series in [
        "taint_eviction_controller_pod_deletions_total",
        "taint_eviction_controller_pod_deletion_duration_seconds_count",
        r#"taint_eviction_controller_pod_deletion_duration_seconds_bucket{le="240"}"#,
        "node_collector_update_node_health_duration_seconds_count",
        "node_collector_update_all_nodes_health_duration_seconds_count",
    ] {
        assert_eq!(value(&text, series), 0.0, "{series}");
    }
    // Those with labels appear with their first values.
    assert!(!text.contains("node_collector_evictions_total{"), "{text}");
}

#[test]
fn work_under_way_is_seen_until_it_ends() {
    let metrics = Metrics::new(&node_registry::descriptors());
    let queue = metrics.queue("replicaset");
    let first = Instant::now();
    queue.started(Duration::ZERO);
    std::thread::sleep(Duration::from_millis(30));
    let second = Instant::now();
    queue.started(Duration::ZERO);
    let text = metrics.encode();
    let longest = value(
        &text,
        r#"workqueue_longest_running_processor_seconds{name="replicaset"}"#,
    );
    let unfinished = value(
        &text,
        r#"workqueue_unfinished_work_seconds{name="replicaset"}"#,
    );
    assert!(
        longest >= 0.03 && unfinished >= longest,
        "{longest} {unfinished}"
    );
    // The older one ends: what stays is younger.
    queue.finished(first.elapsed());
    let text = metrics.encode();
    let stays = value(
        &text,
        r#"workqueue_longest_running_processor_seconds{name="replicaset"}"#,
    );
    let most = second.elapsed().as_secs_f64();
    assert!(stays <= most, "{stays} {most}");
    queue.finished(Duration::ZERO);
    let text = metrics.encode();
    assert_eq!(
        value(
            &text,
            r#"workqueue_unfinished_work_seconds{name="replicaset"}"#
        ),
        0.0
    );
}

#[test]
fn the_same_name_gives_the_same_queue() {
    let metrics = Metrics::new(&node_registry::descriptors());
    assert!(Arc::ptr_eq(&metrics.queue("job"), &metrics.queue("job")));
}

#[test]
fn health_checks_are_reported_by_slis() {
    let metrics = Metrics::new(&node_registry::descriptors());
    metrics.health_checked("leases", "readyz", true);
    metrics.health_checked("leases", "readyz", false);
    let text = metrics.encode_slis();
    assert_eq!(
        value(
            &text,
            r#"kubernetes_healthcheck{name="leases",type="readyz"}"#
        ),
        0.0
    );
    for status in ["success", "error"] {
        let series = format!(
            r#"kubernetes_healthchecks_total{{name="leases",status="{status}",type="readyz"}}"#
        );
        assert_eq!(value(&text, &series), 1.0);
    }
    assert!(value(&text, "process_start_time_seconds") > 1.5e9);
}

#[test]
fn counting_from_many_threads_loses_nothing() {
    let metrics = Metrics::new(&node_registry::descriptors());
    let queue = metrics.queue("endpoint");
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..5000 {
                    queue.started(Duration::from_millis(1));
                    queue.finished(Duration::from_millis(1));
                }
            });
        }
    });
    let text = metrics.encode();
    let series = |what| format!(r#"workqueue_work_duration_seconds_{what}{{name="endpoint"}}"#);
    assert_eq!(value(&text, &series("count")), 40_000.0);
    assert!((value(&text, &series("sum")) - 40.0).abs() < 1e-6);
}

fn measure(name: &'static str, labels: &[&str], value: f64) -> controllers_kit::Measure {
    controllers_kit::Measure {
        name,
        labels: labels.iter().map(|label| (*label).into()).collect(),
        value,
    }
}

#[test]
fn what_keys_measure_is_added_up_and_forgotten_with_their_range() {
    const ENDPOINTS: &str = "endpoint_slice_controller_endpoints_desired";
    const TRAFFIC: &str = "endpoint_slice_controller_services_count_by_traffic_distribution";
    let metrics = Metrics::new(&node_registry::descriptors());
    let controller = metrics.controller("endpointslice-controller");
    let key = |name: &str| Key::new("shop", name);
    let sum = || value(&metrics.encode(), ENDPOINTS);
    controller.add_up(
        1,
        &key("web"),
        &[
            measure(ENDPOINTS, &[], 10.0),
            measure(TRAFFIC, &["PreferClose"], 1.0),
        ],
    );
    controller.add_up(2, &key("api"), &[measure(ENDPOINTS, &[], 5.0)]);
    assert_eq!(sum(), 15.0);
    controller.add_up(1, &key("web"), &[measure(ENDPOINTS, &[], 12.0)]);
    assert_eq!(sum(), 17.0, "in place of what it added before");
    let close = format!("{TRAFFIC}{{traffic_distribution=\"PreferClose\"}}");
    assert_eq!(value(&metrics.encode(), &close), 0.0);
    controller.add_up(2, &key("api"), &[]);
    assert_eq!(sum(), 12.0, "the object is gone");
    controller.forget(1);
    assert_eq!(sum(), 0.0, "the range is another's");
    // One value alone is no sum: it is recorded by the plan's key.
    controller.measure(&measure(ENDPOINTS, &[], 7.0));
    assert_eq!(sum(), 0.0);
}

#[test]
fn a_gauge_of_an_object_goes_with_its_key_and_its_range() {
    const DESIRED: &str = "horizontal_pod_autoscaler_controller_desired_replicas";
    const RECONCILED: &str = "horizontal_pod_autoscaler_controller_reconciliations_total";
    let metrics = Metrics::new(&node_registry::descriptors());
    let controller = metrics.controller("horizontal-pod-autoscaler-controller");
    let shown = || -> Vec<String> {
        let text = metrics.encode();
        let lines = text.lines().filter_map(|line| line.strip_prefix(DESIRED));
        lines.map(str::to_owned).collect()
    };
    let set = |range, name: &str, size| {
        let measures = [measure(DESIRED, &["shop", name], size)];
        controller.add_up(range, &Key::new("shop", name), &measures);
    };
    set(1, "web", 3.0);
    set(2, "api", 5.0);
    let of = |name: &str, size: u8| format!("{{namespace=\"shop\",hpa_name=\"{name}\"}} {size}");
    assert_eq!(shown(), [of("api", 5), of("web", 3)]);
    set(1, "web", 4.0);
    let failed = [measure(RECONCILED, &["none", "internal"], 1.0)];
    controller.add_up(1, &Key::new("shop", "web"), &failed);
    assert_eq!(
        shown(),
        [of("api", 5), of("web", 4)],
        "a sync that does not measure it leaves it"
    );
    controller.forget(1);
    assert_eq!(shown(), [of("api", 5)], "the range is another's");
    controller.add_up(2, &Key::new("shop", "api"), &[]);
    assert!(shown().is_empty(), "the object is gone");

    // Neither fills the bound of series.
    for number in 0..10_050 {
        set(3, &format!("old-{number}"), 1.0);
    }
    assert_eq!(shown().len(), 10_000);
    set(3, "old-10049", 2.0);
    controller.forget(3);
    set(4, "new", 7.0);
    assert_eq!(shown(), [of("new", 7)]);
}

#[test]
fn counters_have_upstream_s_names_with_total_or_without() {
    let metrics = Metrics::new(&node_registry::descriptors());
    let name = "endpoint_slice_controller_changes";
    metrics
        .controller("endpointslice-controller")
        .measure(&measure(name, &["create"], 3.0));
    let text = metrics.encode();
    assert_eq!(
        value(&text, &format!("{name}{{operation=\"create\"}}")),
        3.0
    );
    assert!(text.contains(&format!("# TYPE {name} counter\n")), "{text}");
}

#[test]
fn a_controller_s_syncs_are_timed_where_upstream_times_them() {
    let metrics = Metrics::new(&node_registry::descriptors());
    metrics
        .controller("endpointslice-mirroring-controller")
        .synced(200, Duration::from_millis(5));
    let count = "endpoint_slice_mirroring_controller_endpoints_sync_duration_count";
    assert_eq!(value(&metrics.encode(), count), 1.0);
}
