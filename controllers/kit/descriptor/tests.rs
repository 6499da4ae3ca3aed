use kubernetes_proto::{
    apps::DaemonSet,
    core::{Namespace, Pod, ServiceAccount},
};

use super::{Descriptor, FlagValue, Flags, MetricKind, MetricSpec, Sharding};
use crate::{Controller, Factory, rbac, readme, toy::NodeZones};

fn rules(descriptor: Descriptor) -> Vec<(&'static str, &'static str, String)> {
    let rules = descriptor.rules.into_iter();
    rules
        .map(|rule| (rule.group, rule.resource, rule.verbs.join(" ")))
        .collect()
}

#[test]
fn a_rule_of_a_kind_has_its_group_and_resource() {
    let descriptor = Descriptor::new("test", Sharding::ByObject)
        .reads::<Namespace>()
        .reads_live::<DaemonSet>()
        .writes::<ServiceAccount>(&["create", "patch"])
        .writes_status::<DaemonSet>()
        .blocks_owner_deletion::<DaemonSet>()
        .blocks_owner_deletion::<Pod>();
    let expected = [
        ("", "namespaces", "list watch"),
        ("apps", "daemonsets", "get list watch"),
        ("", "serviceaccounts", "list watch"),
        ("", "serviceaccounts", "create patch"),
        ("apps", "daemonsets/status", "patch"),
        ("apps", "daemonsets/finalizers", "update"),
        ("", "pods/finalizers", "update"),
    ];
    let expected: Vec<_> = expected
        .into_iter()
        .map(|(group, resource, verbs)| (group, resource, verbs.to_owned()))
        .collect();
    assert_eq!(rules(descriptor), expected);
}

#[test]
fn a_subresource_s_name_is_made_once() {
    let names = || {
        let descriptor = Descriptor::new("test", Sharding::ByObject);
        descriptor.blocks_owner_deletion::<Pod>().rules[0]
            .resource
            .as_ptr()
    };
    assert_eq!(names(), names());
}

#[test]
fn metrics_come_from_a_table_or_one_by_one() {
    const METRICS: &[MetricSpec] = &[
        MetricSpec::new("a_total", MetricKind::Counter, &["result"], "A."),
        MetricSpec::new("b", MetricKind::Gauge, &[], "B."),
    ];
    let one = Descriptor::new("test", Sharding::Single).metrics(METRICS);
    let other = Descriptor::new("test", Sharding::Single)
        .metric("a_total", MetricKind::Counter, &["result"], "A.")
        .metric("b", MetricKind::Gauge, &[], "B.");
    assert_eq!(one.metrics, other.metrics);
}

#[test]
fn differences_are_the_items_of_a_page() {
    let page = "# Differences from kube-controller-manager\n\n- One, with `code`.\n- Two.\n";
    let descriptor = Descriptor::new("test", Sharding::Single)
        .differences("- None.")
        .differences(page);
    assert_eq!(
        descriptor.differences,
        ["None.", "One, with `code`.", "Two."]
    );
}

#[test]
#[should_panic(expected = "test: a difference is a line that begins with `- `, unlike \"  more\"")]
fn a_difference_of_two_lines_is_refused() {
    let page = "- One,\n  more\n";
    let _ = Descriptor::new("test", Sharding::Single).differences(page);
}

#[test]
fn flags_rbac_metrics_and_the_table_s_row_of_a_controller_follow_from_its_descriptor() {
    let descriptor = NodeZones::describe();
    let flags = Flags::defaults([&descriptor]);
    let flags: Vec<_> = flags.iter().collect();
    let label = FlagValue::Text("example.com/zone".to_owned());
    assert_eq!(
        flags,
        [
            ("concurrent-node-zone-syncs", &FlagValue::Int(5)),
            ("node-zone-label", &label)
        ]
    );
    let metrics: Vec<_> = descriptor.metrics.iter().map(|spec| spec.name).collect();
    assert_eq!(metrics, ["node_zone_controller_nodes_labeled_total"]);

    let registry = [Factory::of::<NodeZones>()];
    let role = rbac::manifest(&registry);
    for line in [
        "  name: manifold:controller:node-zone-controller\n",
        "    resources: [nodes]\n    verbs: [patch]\n",
        "    name: node-zone-controller\n    namespace: kube-system\n",
    ] {
        assert!(role.contains(line), "{line}\nnot in\n{role}");
    }
    let table = readme::table(&registry);
    let row = "| node-zone-controller |  | nodes | nodes: patch | an object | \
               `--concurrent-node-zone-syncs` 5 | node-zone-controller |\n";
    assert!(table.contains(row), "{row}\nnot in\n{table}");
}

#[test]
fn a_small_controller_is_short() {
    let lines = include_str!("../toy.rs").lines().count();
    assert!(lines <= 60, "{lines} lines");
}
