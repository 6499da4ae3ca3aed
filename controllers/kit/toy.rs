//! Labels each node by its zone: a whole controller with its tests. Flags, RBAC, metrics and the row in
//! `controllers/README.md` would follow from its descriptor.

use kubernetes_proto::{Object, core::Node};

use crate::{
    Controller, Descriptor, FlagDefault, Flags, Key, MetricKind, Plan, Refusal, Sharding, Snapshot,
    Watches,
};

const ZONE: &str = "topology.kubernetes.io/zone";
const LABEL: &str = "example.com/zone";
const LABELED: &str = "node_zone_controller_nodes_labeled_total";

pub(crate) struct NodeZones(String);

impl Controller for NodeZones {
    type Memory = ();
    fn describe() -> Descriptor {
        Descriptor::new("node-zone-controller", Sharding::ByObject)
            .workers("concurrent-node-zone-syncs", 5, "Nodes labeled at once.")
            .flag("node-zone-label", FlagDefault::Text(LABEL), "The label.")
            .writes::<Node>(&["patch"])
            .metric(LABELED, MetricKind::Counter, &["zone"], "Nodes labeled.")
    }
    fn new(flags: &Flags) -> Self {
        Self(flags.text("node-zone-label").to_owned())
    }
    fn watch(&self, on: &mut Watches) {
        on.kind::<Node>().wakes_itself();
    }
    fn plan(&self, key: &Key, seen: &Snapshot<'_>, (): &mut ()) -> Result<Plan, Refusal> {
        let mut plan = Plan::nothing();
        if let Some(node) = seen.get::<Node>(key)
            && let Some(zone) = node.metadata().label(ZONE)
        {
            let mut labeled = Node::clone(&node);
            labeled.metadata_mut().set_label(&self.0, zone);
            if let Some(action) = plan.update(&*node, &labeled) {
                action.measure(LABELED, &[zone], 1.0);
            }
        }
        Ok(plan)
    }
}

#[test]
fn a_node_with_a_zone_is_labeled_once() {
    use crate::testing::{Common, World, contract, node};
    let world = World::at("12:00:00")
        .with(node("a").label(ZONE, "east"))
        .with(node("b"));
    let planned = world.clone().run::<NodeZones>();
    let verbs: Vec<_> = planned.iter().flat_map(Plan::verbs).collect();
    assert_eq!(verbs, ["patch nodes/a"]);
    contract::check(&crate::Factory::of::<NodeZones>(), [world]);
}
