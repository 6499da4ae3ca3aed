use kubernetes_proto::{batch::Job, core::ConfigMap};

use super::{BEGIN, END, fill, table};
use crate::{
    Controller, Descriptor, Factory, Flags, Key, Plan, Refusal, Sharding, Snapshot, Watches,
};

struct Zeal;

impl Controller for Zeal {
    type Memory = ();
    fn describe() -> Descriptor {
        Descriptor::new("zeal-controller", Sharding::ByObject)
            .aliases(&["zeal"])
            .workers("concurrent-zeal-syncs", 5, "How many at once.")
            .rule("batch", "jobs", &["get", "list", "watch"])
            .rule("batch", "jobs/status", &["patch"])
            .rule("", "pods", &["list", "create", "delete"])
            .rule_for("", "secrets", &["one", "two"], &["patch"])
            .differences("- It is quicker.")
    }
    fn new(_: &Flags) -> Self {
        Self
    }
    fn watch(&self, on: &mut Watches) {
        let _ = on.kind::<Job>().wakes_itself();
        let _ = on.kind::<ConfigMap>().only_named("zeal");
    }
    fn plan(&self, _: &Key, _: &Snapshot<'_>, (): &mut ()) -> Result<Plan, Refusal> {
        Ok(Plan::nothing())
    }
}

struct Apathy;

impl Controller for Apathy {
    type Memory = ();
    fn describe() -> Descriptor {
        let mut descriptor = Descriptor::new("apathy-controller", Sharding::Single);
        descriptor.on_by_default = false;
        descriptor
    }
    fn new(_: &Flags) -> Self {
        Self
    }
    fn watch(&self, _: &mut Watches) {}
    fn plan(&self, _: &Key, _: &Snapshot<'_>, (): &mut ()) -> Result<Plan, Refusal> {
        Ok(Plan::nothing())
    }
}

const TABLE: &str = "\
| Controller | Old names | Watches | Writes | A key is | Workers | Service account |
|---|---|---|---|---|---|---|
| apathy-controller (off by default) |  |  |  | the cluster | 1 | apathy-controller |
| zeal-controller | zeal | jobs.batch; configmaps named `zeal` | jobs.batch/status: patch; pods: create delete; secrets named `one`, `two`: patch | an object | `--concurrent-zeal-syncs` 5 | zeal-controller |

## What users of theirs see

| Controller | Events come from | Queue | Back-off | Flags beside workers | Feature gates | Metrics of its own |
|---|---|---|---|---|---|---|
| apathy-controller | apathy-controller | apathy-controller | 5ms to 1000s |  |  |  |
| zeal-controller | zeal-controller | zeal-controller | 5ms to 1000s |  |  |  |

## Where they differ from upstream

**zeal-controller**

- It is quicker.
";

#[test]
fn a_row_says_what_the_descriptor_and_the_watches_say() {
    assert_eq!(
        table(&[Factory::of::<Zeal>(), Factory::of::<Apathy>()]),
        TABLE
    );
}

#[test]
fn only_the_made_part_is_replaced_and_twice_is_as_good_as_once() {
    let document = format!("# Head\n\n{BEGIN}old\n{END}\nFoot\n");
    let filled = fill(&document, TABLE).unwrap();
    assert_eq!(filled, format!("# Head\n\n{BEGIN}\n{TABLE}\n{END}\nFoot\n"));
    assert_eq!(fill(&filled, TABLE).unwrap(), filled);
    assert!(fill("# Head\n", TABLE).unwrap_err().contains("begin"));
    assert!(fill(&format!("{END}{BEGIN}"), TABLE).is_err());
}
