use serde_json::{Value, json};

use super::{Children, Counted, Judge, Names, Owned, Ownership, UNOWNED, Verdict};

mod volumes;

/// A Lease's body.
fn lease(name: &str, holder: &str, epoch: u64) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {"holderIdentity": holder, "leaseTransitions": epoch},
    })
}

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
fn epochs_that_grow_are_fine_and_one_that_falls_is_reported() {
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
fn two_replicas_in_one_epoch_are_reported() {
    let complaints = Log::new()
        .write("a", 7, 1)
        .write("b", 7, 1)
        .verdict()
        .complaints;
    assert_eq!(complaints.len(), 1, "{complaints:?}");
}

#[test]
fn a_pod_beyond_wanted_is_reported_even_when_it_goes_again() {
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
    for (verb, resource) in [("delete", "pods"), ("create", "pods/eviction")] {
        let log = Log::new()
            .deployment(1, "a")
            .set("web-1", "a")
            .pod("web-1-x");
        let log = log
            .entry(verb, resource, "web-1-x", &Value::Null, "")
            .pod("web-1-y");
        assert_eq!(log.verdict().complaints, Vec::<String>::new());
    }
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
fn two_sets_of_one_template_are_reported_unless_the_first_was_deleted() {
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
fn what_a_manager_was_not_allowed_is_reported() {
    let mut log = Log::new().write("a", 7, 1);
    log.0[0]["responseStatus"]["code"] = json!(403);
    let forbidden = log.verdict().forbidden;
    let one = forbidden.keys().next().expect("one");
    assert_eq!(
        (one.verb.as_str(), one.resource.as_str()),
        ("patch", "configmaps")
    );
}

/// A log with times of its own, in milliseconds.
#[derive(Clone, Default)]
struct Course(Vec<Value>);

impl Course {
    #[allow(
        clippy::too_many_arguments,
        reason = "one entry of a log has this many parts"
    )]
    fn entry(
        mut self,
        (arrived, done): (u64, u64),
        verb: &str,
        resource: &str,
        name: &str,
        agent: &str,
        (code, message): (u16, &str),
        (asked, answered): (Value, Value),
    ) -> Self {
        let at = |ms: u64| {
            format!(
                "2026-01-01T00:{:02}:{:02}.{:03}000Z",
                ms / 60_000,
                ms / 1000 % 60,
                ms % 1000
            )
        };
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        self.0.push(json!({
            "auditID": self.0.len().to_string(),
            "stage": "ResponseComplete",
            "verb": verb,
            "requestURI": "/apis",
            "user": {"username": "somebody"},
            "userAgent": agent,
            "objectRef": {"resource": resource, "subresource": subresource, "namespace": "default", "name": name},
            "responseStatus": {"code": code, "message": message},
            "requestReceivedTimestamp": at(arrived),
            "stageTimestamp": at(done),
            "requestObject": asked,
            "responseObject": answered,
        }));
        self
    }

    /// A range's Lease is written.
    fn lease_written(
        self,
        at: u64,
        range: u32,
        (holder, epoch): (&str, u64),
        (verb, code, agent): (&str, u16, &str),
    ) -> Self {
        let name = format!("manifold-range-{range:03}");
        let body = lease(&name, holder, epoch);
        self.entry(
            (at, at + 5),
            verb,
            "leases",
            &name,
            agent,
            (code, ""),
            (Value::Null, body),
        )
    }

    /// The range's Lease is given away.
    fn named(self, at: u64, range: u32, holder: &str, epoch: u64) -> Self {
        let how = ("patch", 200, "manifold/0 (replica=x)");
        self.lease_written(at, range, (holder, epoch), how)
    }

    /// There was none: somebody makes it.
    fn made(self, at: u64, range: u32, holder: &str, epoch: u64) -> Self {
        let how = ("create", 201, "manifold/0 (replica=x)");
        self.lease_written(at, range, (holder, epoch), how)
    }

    /// Hands give it away.
    fn by_hand(self, at: u64, range: u32, holder: &str, epoch: u64) -> Self {
        self.lease_written(at, range, (holder, epoch), ("patch", 200, "kubectl"))
    }

    /// Renewals, each second.
    fn lives(mut self, holder: &str, times: impl Iterator<Item = u64>) -> Self {
        let name = format!(
            "manifold-replica-{}",
            holder.split('_').next().unwrap_or_default()
        );
        for at in times {
            let body = lease(&name, holder, 0);
            self = self.entry(
                (at, at + 5),
                "patch",
                "leases",
                &name,
                "manifold/0 (replica=x)",
                (200, ""),
                (Value::Null, body),
            );
        }
        self
    }

    fn write(self, at: u64, replica: &str, range: u32, epoch: u64) -> Self {
        self.answered(at, replica, range, epoch, (200, ""))
    }

    fn answered(self, at: u64, replica: &str, range: u32, epoch: u64, answer: (u16, &str)) -> Self {
        let agent =
            format!("manifold/0 (replica={replica}; range={range}; epoch={epoch}; controller=x)");
        self.entry(
            (at, at + 5),
            "patch",
            "configmaps",
            "x",
            &agent,
            answer,
            (Value::Null, Value::Null),
        )
    }

    fn set(self, at: u64, replicas: i64) -> Self {
        let asked = json!({"metadata": {"name": "web-1"}, "spec": {"replicas": replicas}});
        let answered = json!({"metadata": {"name": "web-1", "uid": "uid-web-1"}});
        self.entry(
            (at, at + 5),
            "create",
            "replicasets",
            "web-1",
            "",
            (201, ""),
            (asked, answered),
        )
    }

    fn sized(self, at: u64, replicas: i64) -> Self {
        self.sized_answered(at, replicas, 200)
    }

    fn sized_answered(self, at: u64, replicas: i64, code: u16) -> Self {
        let asked = json!({"spec": {"replicas": replicas}});
        let answered = json!({"metadata": {"name": "web-1", "uid": "uid-web-1"}});
        self.entry(
            (at, at + 5),
            "patch",
            "replicasets",
            "web-1",
            "",
            (code, ""),
            (asked, answered),
        )
    }

    fn pod(self, at: u64, name: &str) -> Self {
        let body = json!({
            "metadata": {"name": name, "ownerReferences": [{"uid": "uid-web-1", "controller": true}]},
        });
        self.entry(
            (at, at + 5),
            "create",
            "pods",
            name,
            "",
            (201, ""),
            (Value::Null, body),
        )
    }

    fn pod_gone(self, at: u64, name: &str) -> Self {
        self.pod_gone_answered((at, at + 5), name, 200)
    }

    fn pod_gone_answered(self, at: (u64, u64), name: &str, code: u16) -> Self {
        self.entry(
            at,
            "delete",
            "pods",
            name,
            "",
            (code, ""),
            (Value::Null, Value::Null),
        )
    }

    fn owned(&self) -> Owned {
        let mut ownership = Ownership::of("manifold");
        for line in &self.0 {
            ownership.read(&serde_json::from_value(line.clone()).expect("a record"));
        }
        ownership.verdict(UNOWNED)
    }

    fn counted(&self) -> Counted {
        let mut children = Children::default();
        for line in &self.0 {
            children.read(&serde_json::from_value(line.clone()).expect("a record"));
        }
        children.verdict(1.0)
    }
}

/// A owns range 7 with epoch 1, dies after five seconds, and B takes it six seconds later.
fn takeover() -> Course {
    Course::default()
        .named(0, 7, "a_1", 1)
        .lives("a_1", (1..6).map(|second| second * 1000))
        .lives("b_1", (0..20).map(|second| second * 1000))
        .named(11_000, 7, "b_1", 2)
}

#[test]
fn one_that_writes_while_its_lease_names_it_is_let_be() {
    let owned = takeover()
        .write(100, "a", 7, 1)
        .write(5_900, "a", 7, 1)
        .write(11_100, "b", 7, 2)
        .owned();
    assert_eq!(owned.complaints, [""; 0]);
    assert_eq!((owned.writes, owned.changes, owned.refused), (3, 1, 0));
    let (longest, range, _) = owned.longest.expect("a gap");
    assert_eq!((longest.as_millis(), range), (6_005, 7));
}

#[test]
fn a_request_of_an_older_epoch_is_reported_unless_the_server_has_refused_it() {
    let late = takeover().write(11_500, "a", 7, 1).owned().complaints;
    assert!(
        late.len() == 1 && late[0].contains("a sent patch configmaps default/x with epoch 1"),
        "{late:?}"
    );
    let message = "x is forbidden: ValidatingAdmissionPolicy 'manifold-fence' with binding 'manifold-fence' denied request";
    let refused = takeover()
        .answered(11_500, "a", 7, 1, (403, message))
        .owned();
    assert_eq!((refused.complaints.len(), refused.refused), (0, 1));
    let mut withdrawn = takeover().answered(11_500, "a", 7, 1, (504, "context canceled"));
    let complaints = |course: &Course| course.clone().owned().complaints.len();
    assert_eq!(complaints(&withdrawn), 1, "bodies are not logged");
    let last = withdrawn.0.last_mut().unwrap();
    last["level"] = json!("Request");
    assert_eq!(complaints(&withdrawn), 0, "it was never read");
    let last = withdrawn.0.last_mut().unwrap();
    last["requestObject"] = json!({"data": {}});
    assert_eq!(
        complaints(&withdrawn),
        1,
        "it was read and may have been done"
    );
    let otherwise = takeover()
        .answered(11_500, "a", 7, 1, (403, "no right"))
        .owned();
    assert_eq!(otherwise.complaints.len(), 1);
}

#[test]
fn a_write_of_somebody_who_is_not_the_owner_is_reported() {
    for (course, part) in [
        (
            takeover().write(2_000, "b", 7, 1),
            "which its Lease gave to a_1",
        ),
        (
            takeover().write(2_000, "b", 7, 2),
            "before its Lease named it",
        ),
        (
            takeover().write(12_000, "b", 7, 3),
            "which its Lease gave to nobody",
        ),
    ] {
        let complaints = course.owned().complaints;
        assert!(
            complaints.len() == 1 && complaints[0].contains(part),
            "{complaints:?}"
        );
    }
    // What the log does not know the beginning of is not judged.
    assert_eq!(
        takeover().write(2_000, "a", 8, 1).owned().complaints,
        [""; 0]
    );
}

#[test]
fn a_range_that_was_nobodys_for_too_long_is_reported_but_not_while_the_server_was_away() {
    let late = Course::default()
        .named(0, 7, "a_1", 1)
        .lives("b_1", (0..20).map(|second| second * 1000))
        .named(9_000, 7, "b_1", 2);
    let complaints = late.owned().complaints;
    assert!(
        complaints.len() == 1 && complaints[0].contains("nobody's for 9.0 s"),
        "{complaints:?}"
    );
    // The same with a server that answers nobody for twenty seconds: no range moves.
    let away = Course::default()
        .named(0, 7, "a_1", 1)
        .lives("a_1", (1..3).map(|second| second * 1000))
        .lives("a_1", (23..30).map(|second| second * 1000))
        .lives("b_1", (0..3).chain(23..30).map(|second| second * 1000))
        .owned();
    assert_eq!((away.complaints.len(), away.silences), (0, 1));
    // Lost, and never taken again: the log ends.
    let lost = |seconds: u64| {
        Course::default()
            .named(0, 7, "a_1", 1)
            .lives("a_1", [1_000].into_iter())
            .lives("b_1", (0..seconds).map(|second| second * 1000))
            .owned()
    };
    assert_eq!(
        (lost(9).complaints.len(), lost(12).complaints.len()),
        (0, 1)
    );
    // One that is suspended and is not evicted acts on nothing either.
    let still = Course::default()
        .named(0, 7, "a_1", 1)
        .lives("a_1", [1_000, 12_000].into_iter())
        .lives("b_1", (0..20).map(|second| second * 1000))
        .owned();
    assert_eq!(still.complaints.len(), 1);
}

#[test]
fn what_hands_edit_may_take_longer_and_makes_nobody_an_owner() {
    let edited = |until: u64| {
        Course::default()
            .named(0, 7, "a_1", 1)
            .lives("a_1", (1..40).map(|second| second * 1000))
            .by_hand(2_000, 7, "", 1)
            .named(until, 7, "a_1", 2)
            .write(until + 100, "a", 7, 2)
            .owned()
    };
    assert_eq!(edited(14_000).complaints, [""; 0]);
    assert_eq!(edited(30_000).complaints.len(), 1);
}

#[test]
fn an_owner_that_repairs_its_edited_lease_may_write_under_the_old_epoch_until_it_hears_of_it() {
    let repaired = |holder: &str, write: u64| {
        Course::default()
            .named(0, 7, "a_1", 41)
            .lives("a_1", (1..9).map(|second| second * 1000))
            .by_hand(2_000, 7, "a_1", 0)
            .named(2_010, 7, holder, 42)
            .write(write, "a", 7, 41)
            .owned()
            .complaints
            .len()
    };
    assert_eq!(repaired("a_1", 2_020), 0);
    assert_eq!(repaired("a_1", 2_900), 1, "it has heard of it");
    assert_eq!(repaired("b_1", 2_020), 1, "another's");
}

#[test]
fn one_that_makes_its_deleted_lease_again_may_write_under_the_old_epoch_until_it_hears_of_it() {
    let again = |holder: &str, write: u64| {
        let owned = Course::default()
            .named(0, 7, "a_1", 1)
            .lives("a_1", (1..9).map(|second| second * 1000))
            .made(5_000, 7, holder, 2)
            .write(write, "a", 7, 1)
            .owned();
        owned.complaints.len()
    };
    assert_eq!(again("a_1", 5_020), 0);
    assert_eq!(again("a_1", 5_900), 1, "it has heard of it by then");
    assert_eq!(again("a_2", 5_020), 1, "another life of it");
    assert_eq!(again("b_1", 5_020), 1, "another replica");
}

#[test]
fn a_log_without_the_bodies_of_leases_proves_nothing_and_says_so() {
    let complaints = Course::default().write(0, "a", 7, 1).owned().complaints;
    assert!(
        complaints[0].contains("must log their bodies"),
        "{complaints:?}"
    );
}

#[test]
fn a_pod_beyond_wanted_is_reported_and_one_in_the_place_of_another_is_not() {
    let three = Course::default()
        .set(0, 2)
        .pod(100, "a")
        .pod(200, "b")
        .pod_gone(300, "a")
        .pod(400, "c");
    let counted = three.counted();
    assert_eq!(
        (counted.complaints.len(), counted.pods, counted.owners),
        (0, 3, 1)
    );
    let four = three.pod(500, "d").counted().complaints;
    assert!(
        four.len() == 1 && four[0].contains("is number 3 of its ReplicaSet, which wanted 2"),
        "{four:?}"
    );
}

#[test]
fn what_was_wanted_a_moment_ago_still_counts_and_what_was_wanted_long_ago_does_not() {
    let shrunk = |at: u64| {
        Course::default()
            .set(0, 1)
            .pod(100, "a")
            .sized(200, 3)
            .pod(300, "b")
            .sized(400, 1)
            .pod(at, "c")
            .counted()
            .complaints
    };
    assert_eq!(shrunk(600), [""; 0]);
    assert_eq!(shrunk(3_000).len(), 1);
}

#[test]
fn the_batches_of_one_sync_count_from_its_beginning() {
    let create = |course: Course, at: (u64, u64), name: &str| {
        let body = json!({
            "metadata": {"name": name, "ownerReferences": [{"uid": "uid-web-1", "controller": true}]},
        });
        course.entry(
            at,
            "create",
            "pods",
            name,
            "",
            (201, ""),
            (Value::Null, body),
        )
    };
    let begun = Course::default().set(0, 3);
    // A slow admission: the second batch goes out long after fewer were wanted.
    let slow = create(begun, (100, 8_000), "a").sized(500, 1);
    let batch = create(slow, (8_010, 16_000), "b");
    assert_eq!(batch.counted().complaints, [""; 0]);
    let another_sync = create(batch, (16_700, 16_800), "c");
    assert_eq!(another_sync.counted().complaints.len(), 1);
}

#[test]
fn what_has_no_good_answer_may_have_landed() {
    let one = || Course::default().set(0, 1).pod(100, "a");
    // The server lost its storage, but the change of size counts; where it does not, the size before
    // continues.
    let grown = one().sized_answered(3_000, 2, 504).pod(6_000, "b");
    assert_eq!(grown.counted().complaints, [""; 0]);
    let not_shrunk = one().sized(3_000, 2).sized_answered(4_000, 1, 504);
    assert_eq!(not_shrunk.pod(9_000, "b").counted().complaints, [""; 0]);
    let shrunk = one().sized_answered(3_000, 2, 504).sized(4_000, 1);
    assert_eq!(shrunk.pod(9_000, "b").counted().complaints.len(), 1);
    let deleted = one().pod_gone_answered((3_000, 3_005), "a", 504);
    assert_eq!(deleted.pod(4_000, "b").counted().complaints, [""; 0]);
    // What is refused has not landed.
    let refused = one().sized_answered(3_000, 2, 409).pod(6_000, "b");
    assert_eq!(refused.counted().complaints.len(), 1);
}

#[test]
fn a_deletion_by_name_may_hit_the_next_of_its_name() {
    let again = |deleted: (u64, u64)| {
        Course::default()
            .set(0, 2)
            .pod(100, "a")
            .pod_gone_answered((200, 205), "a", 200)
            .pod_gone_answered(deleted, "a", 200)
            .pod(300, "a")
            .pod(400, "b")
            .pod(500, "c")
            .counted()
            .complaints
            .len()
    };
    // Under way while it was made again.
    assert_eq!(again((250, 600)), 0);
    // Answered before.
    assert_eq!(again((250, 260)), 1);
}

#[test]
fn a_lease_write_without_an_answer_counts_if_it_has_landed() {
    let unclear = |epoch: u64| {
        let name = "manifold-range-007";
        let asked = lease(name, "b_1", epoch);
        takeover().entry(
            (14_000, 14_900),
            "patch",
            "leases",
            name,
            "manifold/0 (replica=b)",
            (504, "timeout"),
            (asked, Value::Null),
        )
    };
    assert_eq!(
        unclear(3).write(15_000, "b", 7, 3).owned().complaints,
        [""; 0]
    );
    // It has not: the older epoch continues.
    assert_eq!(
        unclear(3).write(15_000, "b", 7, 2).owned().complaints,
        [""; 0]
    );
    // One that is not named in it owns nothing by it.
    assert_eq!(
        unclear(3).write(15_000, "a", 7, 3).owned().complaints.len(),
        1
    );
}

#[test]
fn a_generated_name_that_is_given_twice_within_the_hour_is_reported() {
    let agent = |replica: &str, controller: &str| {
        format!("manifold/0 (replica={replica}; range=7; epoch=1; controller={controller})")
    };
    let made = |log: Log, replica: &str, controller: &str| {
        let agent = agent(replica, controller);
        log.entry("create", "pods", "web-1-x", &Value::Null, &agent)
    };
    let complaints = |log: &Log| {
        let mut names = Names::default();
        for line in &log.0 {
            names.read(&serde_json::from_value(line.clone()).expect("a record"));
        }
        names.complaints()
    };
    let log = made(Log::new(), "a", "replicaset-controller");
    let log = log.entry("delete", "pods", "web-1-x", &Value::Null, "kubectl");
    assert_eq!(complaints(&log), Vec::<String>::new());
    let reported = complaints(&made(log, "b", "replicaset-controller"));
    assert_eq!(reported.len(), 1, "{reported:?}");
    assert!(
        reported[0].contains("pods default/web-1-x was made by replicaset-controller of a")
            && reported[0].contains("again by replicaset-controller of b"),
        "{reported:?}"
    );
    let fixed = made(Log::new(), "a", "statefulset-controller");
    let fixed = made(fixed, "b", "statefulset-controller");
    assert_eq!(
        complaints(&fixed),
        Vec::<String>::new(),
        "the API names them"
    );
}
