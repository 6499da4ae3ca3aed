use serde_json::{Value, json};

use super::{Judge, Verdict};

/// A log line by line; each entry is a second later than the one before.
struct Log(Vec<Value>);

impl Log {
    fn new() -> Self {
        Self(Vec::new())
    }

    fn entry(mut self, verb: &str, resource: &str, name: &str, body: &Value, agent: &str) -> Self {
        let at = format!("2026-01-01T00:00:{:02}.000000Z", self.0.len());
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        self.0.push(json!({
            "auditID": self.0.len().to_string(),
            "stage": "ResponseComplete",
            "verb": verb,
            "requestURI": "/apis",
            "user": {"username": "system:kube-controller-manager"},
            "userAgent": agent,
            "objectRef": {"resource": resource, "subresource": subresource, "namespace": "default", "name": name},
            "responseStatus": {"code": 200},
            "requestReceivedTimestamp": at,
            "stageTimestamp": at,
            "responseObject": body,
        }));
        self
    }

    fn deployment(self, replicas: u32, template: &str) -> Self {
        let body = json!({
            "metadata": {"name": "web", "uid": "uid-web"},
            "spec": {"replicas": replicas, "template": {"image": template}},
        });
        self.entry("update", "deployments", "web", &body, "kubectl")
    }

    fn set(self, name: &str, template: &str) -> Self {
        let body = json!({
            "metadata": {"name": name, "uid": format!("uid-{name}"), "ownerReferences": [{"uid": "uid-web", "controller": true}]},
            "spec": {"template": {"image": template}},
        });
        self.entry("create", "replicasets", name, &body, "")
    }

    fn pod(self, name: &str) -> Self {
        let body = json!({
            "metadata": {"name": name, "ownerReferences": [{"uid": "uid-web-1", "controller": true}]},
        });
        self.entry("create", "pods", name, &body, "")
    }

    fn write(self, replica: &str, range: u32, epoch: u64) -> Self {
        let agent =
            format!("manifold/0 (replica={replica}; range={range}; epoch={epoch}; controller=x)");
        self.entry("patch", "configmaps", "x", &Value::Null, &agent)
    }

    fn verdict(&self) -> Verdict {
        let mut judge = Judge::default();
        for line in &self.0 {
            judge.read(&serde_json::from_value(line.clone()).expect("a record"));
        }
        judge.verdict()
    }
}

#[test]
fn epochs_that_grow_are_fine_and_one_that_falls_is_told() {
    let log = Log::new()
        .write("a", 7, 1)
        .write("b", 7, 2)
        .write("a", 8, 1);
    let verdict = log.verdict();
    assert_eq!(verdict.complaints, Vec::<String>::new());
    assert_eq!((verdict.writes, verdict.ranges, verdict.changes), (3, 2, 1));
    let fallen = log.write("a", 7, 1).verdict().complaints;
    assert_eq!(fallen.len(), 1, "{fallen:?}");
    assert!(
        fallen[0].contains("range 7: a wrote with epoch 1"),
        "{fallen:?}"
    );
}

#[test]
fn two_replicas_in_one_epoch_are_told() {
    let complaints = Log::new()
        .write("a", 7, 1)
        .write("b", 7, 1)
        .verdict()
        .complaints;
    assert_eq!(complaints.len(), 1, "{complaints:?}");
}

#[test]
fn a_pod_beyond_wanted_is_told_even_when_it_goes_again() {
    let log = Log::new()
        .deployment(1, "a")
        .set("web-1", "a")
        .pod("web-1-x");
    assert_eq!(log.verdict().complaints, Vec::<String>::new());
    assert_eq!(log.verdict().only_grown, 1);
    let log = log
        .pod("web-1-y")
        .entry("delete", "pods", "web-1-y", &Value::Null, "");
    let verdict = log.verdict();
    assert_eq!(verdict.beyond, 1);
    assert_eq!(verdict.complaints.len(), 1, "{:?}", verdict.complaints);
}

#[test]
fn a_pod_replaced_after_its_deletion_is_not_beyond_wanted() {
    let log = Log::new()
        .deployment(1, "a")
        .set("web-1", "a")
        .pod("web-1-x");
    let log = log
        .entry("delete", "pods", "web-1-x", &Value::Null, "")
        .pod("web-1-y");
    assert_eq!(log.verdict().complaints, Vec::<String>::new());
}

#[test]
fn a_rollout_or_a_scaling_down_is_no_matter_of_growth() {
    for log in [
        Log::new().deployment(1, "a").deployment(1, "b"),
        Log::new().deployment(2, "a").deployment(1, "a"),
    ] {
        let log = log.set("web-1", "a").pod("web-1-x").pod("web-1-y");
        let verdict = log.verdict();
        assert_eq!((verdict.only_grown, verdict.complaints.len()), (0, 0));
    }
}

#[test]
fn two_sets_of_one_template_are_told_unless_the_first_was_deleted() {
    let log = Log::new().deployment(1, "a").set("web-1", "a");
    let twice = log.set("web-2", "a").verdict().complaints;
    assert_eq!(twice.len(), 1, "{twice:?}");
    let log = Log::new().deployment(1, "a").set("web-1", "a");
    let log = log
        .entry("delete", "replicasets", "web-1", &Value::Null, "")
        .set("web-2", "a");
    assert_eq!(log.verdict().complaints, Vec::<String>::new());
}

#[test]
fn a_set_answered_with_metadata_alone_is_read_from_its_request() {
    let mut log = Log::new()
        .deployment(1, "a")
        .set("web-1", "a")
        .set("web-2", "b");
    for line in &mut log.0[1..] {
        line["requestObject"] = json!({"spec": line["responseObject"]["spec"].take()});
    }
    assert_eq!(log.verdict().complaints, Vec::<String>::new());
    assert_eq!(log.set("web-3", "b").verdict().complaints.len(), 1);
}

#[test]
fn what_a_manager_was_not_allowed_is_told() {
    let mut log = Log::new().write("a", 7, 1);
    log.0[0]["responseStatus"]["code"] = json!(403);
    let forbidden = log.verdict().forbidden;
    let one = forbidden.keys().next().expect("one");
    assert_eq!(
        (one.verb.as_str(), one.resource.as_str()),
        ("patch", "configmaps")
    );
}
