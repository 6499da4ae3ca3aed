//! How old heartbeats are and how long pods have been exposed to taints, as this process has seen it: on its
//! own clock, and counting only the time in which its watch of Leases was live.
//!
//! The watch of Leases is the pulse: this replica renews one every second or so, and a watch that has brought
//! the renewal has brought all that had happened when it was sent. Time is added up to there and no further:
//! a watch that is late, or brings nothing, ages nobody. Between two signs of life it is at most
//! [`Settings::pulse_max`](crate::Settings): a server that was stalled for a minute, or a process that was
//! stopped, adds no more than that to any age. What happens between two signs of life is noted as so much
//! later than the last one, or the next one would age it by time that had passed before it.

use std::{collections::HashMap, sync::Mutex, time::Duration};

use controllers_kit::{
    Key,
    heartbeat::{NODE_LEASES, no_execute},
};
use kubernetes_proto::{
    AnyObject, Object, Resource, Str,
    core::{Node, Pod},
};
use tokio::time::Instant;

use crate::unpoisoned;

/// The resource whose watch is the pulse.
pub(crate) fn is_pulse(resource: &Resource) -> bool {
    resource.group == "coordination.k8s.io" && resource.plural == "leases"
}

/// What is known of all heartbeats. Bound: one entry for each object that has one.
pub(crate) struct Ages {
    pulse_max: Duration,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// How long the pulse was live so far.
    live: Duration,
    /// The last sign of life.
    heard: Option<Instant>,
    beats: HashMap<(&'static str, Key), Beat>,
    /// The taints with effect `NoExecute` of each node that has any, by key.
    taints: HashMap<Str, HashMap<String, Taint>>,
    /// Pods that have come to a node which had such a taint by then. The others were there before.
    arrivals: HashMap<Key, Arrival>,
}

struct Taint {
    value: String,
    seen: Duration,
}

struct Arrival {
    uid: Str,
    node: Str,
    seen: Duration,
}

struct Beat {
    signature: (i64, i32),
    /// How long the pulse had been live when it was seen first.
    seen: Duration,
}

impl Ages {
    pub(crate) fn new(pulse_max: Duration) -> Self {
        Self {
            pulse_max,
            known: Mutex::default(),
        }
    }

    /// The pulse's watch has brought all that had happened `by` an instant.
    pub(crate) fn heard(&self, by: Instant) {
        let mut known = unpoisoned(self.known.lock());
        if let Some(heard) = known.heard {
            known.live += by.saturating_duration_since(heard).min(self.pulse_max);
        }
        known.heard = known.heard.max(Some(by));
    }

    /// A watch has brought a change of an object at `now`; `new` is none where it has gone.
    pub(crate) fn changed(
        &self,
        resource: &'static Resource,
        key: Key,
        old: Option<&AnyObject>,
        new: Option<&AnyObject>,
        now: Instant,
    ) {
        let object = new.map(|new| new.as_any());
        if resource.plural == "pods" {
            let old = old.and_then(|old| old.as_any().downcast_ref());
            let new = object.and_then(|any| any.downcast_ref());
            // Nearly all changes are of pods that stay where they are.
            if !stays(old, new) {
                let mut known = unpoisoned(self.known.lock());
                let seen = known.live_at(now, self.pulse_max);
                known.pod_changed(key, new, seen);
            }
            return;
        }
        let mut known = unpoisoned(self.known.lock());
        let seen = known.live_at(now, self.pulse_max);
        if resource.plural == "nodes" {
            let node = object.and_then(|any| any.downcast_ref());
            known.taints_changed(&key.name, node, seen);
        }
        let place = (resource.plural, key);
        let Some(signature) = new.and_then(|new| controllers_kit::heartbeat::of(&**new)) else {
            known.removed(&place);
            return;
        };
        let beat = Beat { signature, seen };
        match known.beats.get_mut(&place) {
            Some(held) if held.signature == signature => {}
            Some(held) => *held = beat,
            None => {
                known.beats.insert(place, beat);
            }
        }
    }

    /// Whether a resource's changes concern ages.
    pub(crate) fn concern(resource: &Resource) -> bool {
        let is_core = resource.group.is_empty() && !resource.metadata_only;
        is_pulse(resource) || (is_core && matches!(resource.plural, "nodes" | "pods"))
    }

    /// How long a pod has been exposed to a taint of its node; `None` where the taint was not seen.
    pub(crate) fn exposure(&self, node: &str, taint: &str, pod: &Key) -> Option<Duration> {
        let known = unpoisoned(self.known.lock());
        let tainted = known.taints.get(node)?.get(taint)?.seen;
        let arrival = known.arrivals.get(pod).filter(|one| one.node == *node);
        let since = arrival.map_or(tainted, |arrival| arrival.seen.max(tainted));
        Some(known.live.saturating_sub(since))
    }

    /// How long an object's heartbeat has been the same; `None` where none was seen.
    pub(crate) fn age(&self, resource: &Resource, key: Key) -> Option<Duration> {
        let known = unpoisoned(self.known.lock());
        let beat = known.beats.get(&(resource.plural, key))?;
        Some(known.live.saturating_sub(beat.seen))
    }
}

/// Whether a pod is the same on the same node.
fn stays(old: Option<&Pod>, new: Option<&Pod>) -> bool {
    fn place(pod: &Pod) -> (&Str, Option<&Str>) {
        let node = pod.spec.as_ref().map(|spec| &spec.node_name);
        (&Object::metadata(pod).uid, node)
    }
    matches!((old, new), (Some(old), Some(new)) if place(old) == place(new))
}

impl Known {
    /// How long the pulse will have been live by `now`, if it is heard again.
    fn live_at(&self, now: Instant, pulse_max: Duration) -> Duration {
        let since = self.heard.map(|heard| now.saturating_duration_since(heard));
        self.live + since.unwrap_or_default().min(pulse_max)
    }

    /// An object has no heartbeat any more. The last renewal of a node's Lease stays the last sign of life of
    /// its node: a Lease that somebody deletes is created again by the kubelet, up to ten seconds later.
    fn removed(&mut self, place: &(&'static str, Key)) {
        let Some(beat) = self.beats.remove(place) else {
            return;
        };
        let (plural, key) = place;
        if *plural == "leases"
            && *key.namespace == *NODE_LEASES
            && let Some(of_node) = self
                .beats
                .get_mut(&("nodes", Key::cluster(key.name.clone())))
        {
            of_node.seen = of_node.seen.max(beat.seen);
        }
    }

    fn taints_changed(&mut self, name: &Str, node: Option<&Node>, seen: Duration) {
        let mut before = self.taints.remove(name);
        let after: HashMap<String, Taint> = node
            .into_iter()
            .flat_map(no_execute)
            .map(|taint| {
                let held = before.as_mut().and_then(|held| held.remove(&taint.key));
                let held = held.filter(|held| held.value == taint.value);
                let new = || Taint {
                    value: taint.value.clone(),
                    seen,
                };
                (taint.key.clone(), held.unwrap_or_else(new))
            })
            .collect();
        if !after.is_empty() {
            self.taints.insert(name.clone(), after);
        } else if before.is_some() {
            self.arrivals.retain(|_, arrival| arrival.node != *name);
        }
    }

    fn pod_changed(&mut self, key: Key, pod: Option<&Pod>, seen: Duration) {
        let node = pod
            .and_then(|pod| pod.spec.as_ref())
            .map(|spec| &spec.node_name)
            .filter(|node| self.taints.contains_key(*node));
        let (Some(pod), Some(node)) = (pod, node) else {
            self.arrivals.remove(&key);
            return;
        };
        let uid = &Object::metadata(pod).uid;
        let arrival = || Arrival {
            uid: uid.clone(),
            node: node.clone(),
            seen,
        };
        match self.arrivals.get_mut(&key) {
            Some(held) if held.uid == *uid && held.node == *node => {}
            Some(held) => *held = arrival(),
            None => {
                self.arrivals.insert(key, arrival());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kubernetes_proto::{
        Object,
        coordination::{Lease, LeaseSpec},
        meta::Time,
    };

    use super::*;

    fn lease(name: &str, second: i64) -> AnyObject {
        let mut lease = Lease {
            spec: Some(LeaseSpec {
                renew_time: Some(Time {
                    seconds: second,
                    nanos: 0,
                }),
            }),
            ..Lease::default()
        };
        lease.metadata_mut().name = name.into();
        Arc::new(lease)
    }

    struct Bed {
        ages: Ages,
        start: Instant,
        millis: std::cell::Cell<u64>,
    }

    impl Bed {
        fn new() -> Self {
            let bed = Self {
                ages: Ages::new(Duration::from_secs(8)),
                start: Instant::now(),
                millis: std::cell::Cell::new(0),
            };
            bed.pulse(0);
            bed
        }
        fn pulse(&self, second: u64) {
            self.wait_until(second * 1000);
            self.ages.heard(self.now());
        }
        fn wait_until(&self, millis: u64) {
            self.millis.set(millis);
        }
        fn now(&self) -> Instant {
            self.start + Duration::from_millis(self.millis.get())
        }
        fn changed(
            &self,
            resource: &'static Resource,
            key: &Key,
            old: Option<&AnyObject>,
            new: Option<&AnyObject>,
        ) {
            let now = self.now();
            self.ages.changed(resource, key.clone(), old, new, now);
        }
        fn renewed(&self, node: &str, second: i64) {
            let lease = lease(node, second);
            self.changed(Lease::resource(), &Key::cluster(node), None, Some(&lease));
        }
        fn age(&self, node: &str) -> Option<u64> {
            let age = self.ages.age(Lease::resource(), Key::cluster(node));
            age.map(|age| age.as_secs())
        }
    }

    #[test]
    fn a_heartbeat_ages_while_the_pulse_is_heard_and_begins_again_with_the_next() {
        let bed = Bed::new();
        assert_eq!(bed.age("n1"), None);
        // Its own clock is an hour behind: that says nothing.
        bed.renewed("n1", -3600);
        for second in 1..=60 {
            bed.pulse(second);
            if second == 40 {
                bed.renewed("n1", -3600);
                assert_eq!(bed.age("n1"), Some(40), "the same heartbeat once more");
            }
        }
        assert_eq!(bed.age("n1"), Some(60));
        bed.renewed("n1", -3590);
        assert_eq!(bed.age("n1"), Some(0));
        bed.changed(Lease::resource(), &Key::cluster("n1"), None, None);
        assert_eq!(bed.age("n1"), None);
    }

    #[test]
    fn a_watch_that_is_stuck_ages_nobody_and_its_end_no_more_than_one_pulse() {
        let bed = Bed::new();
        bed.renewed("n1", 1);
        for second in 1..=10 {
            bed.pulse(second);
        }
        // Two minutes without a sign of life; then what was missed comes at once.
        bed.pulse(130);
        bed.pulse(130);
        assert_eq!(bed.age("n1"), Some(18));
        bed.renewed("n1", 120);
        assert_eq!(bed.age("n1"), Some(0));
    }

    #[test]
    fn a_watch_that_is_late_ages_nobody_by_what_it_has_not_brought() {
        let bed = Bed::new();
        bed.renewed("n1", 1);
        // Half a minute passes while the watch brings what had happened by the second second.
        for _ in 0..30 {
            bed.ages.heard(bed.start + Duration::from_secs(2));
        }
        bed.ages.heard(bed.start + Duration::from_secs(1));
        assert_eq!(bed.age("n1"), Some(2));
    }

    #[test]
    fn a_lease_that_is_deleted_leaves_its_last_renewal_to_the_node() {
        let bed = Bed::new();
        let (node_key, lease_key) = (Key::cluster("n1"), Key::new(NODE_LEASES, "n1"));
        let node = node(&[]);
        bed.changed(Node::resource(), &node_key, None, Some(&node));
        let silence = || {
            let of_lease = bed.ages.age(Lease::resource(), lease_key.clone());
            let of_node = bed.ages.age(Node::resource(), node_key.clone());
            let ages = [of_lease, of_node].into_iter().flatten();
            ages.min().map(|age| age.as_secs())
        };
        for second in 1..=60 {
            bed.pulse(second);
            if second % 10 == 0 {
                let lease = lease("n1", i64::try_from(second).unwrap());
                bed.changed(Lease::resource(), &lease_key, None, Some(&lease));
            }
        }
        bed.pulse(65);
        assert_eq!(silence(), Some(5));
        bed.changed(Lease::resource(), &lease_key, None, None);
        assert_eq!(silence(), Some(5), "its status is a minute old");
        bed.pulse(70);
        assert_eq!(silence(), Some(10), "it ages on");
        // One of another namespace says nothing of the node.
        let other = Key::new("default", "n1");
        let renewed = lease("n1", 70);
        bed.changed(Lease::resource(), &other, None, Some(&renewed));
        bed.changed(Lease::resource(), &other, None, None);
        assert_eq!(silence(), Some(10));
        bed.changed(Node::resource(), &node_key, None, None);
        assert_eq!(silence(), None, "nothing is kept of a node that is gone");
    }

    fn node(taints: &[(&str, &str)]) -> AnyObject {
        let mut node = Node::default();
        node.metadata_mut().name = "n1".into();
        let taints = taints
            .iter()
            .map(|&(key, value)| kubernetes_proto::core::Taint {
                key: key.to_owned(),
                value: value.to_owned(),
                effect: "NoExecute".to_owned(),
                time_added: None,
            });
        node.spec.get_or_insert_default().taints = taints.collect();
        Arc::new(node)
    }

    fn pod(uid: &str, node: &str) -> AnyObject {
        let mut pod = Pod::default();
        pod.metadata_mut().name = "web".into();
        pod.metadata_mut().uid = uid.into();
        pod.spec.get_or_insert_default().node_name = node.into();
        Arc::new(pod)
    }

    #[test]
    fn a_pod_is_exposed_since_its_node_has_the_taint_or_since_it_came_there() {
        let bed = Bed::new();
        let taint = |taints: &[(&str, &str)]| {
            let node = node(taints);
            bed.changed(Node::resource(), &Key::cluster("n1"), None, Some(&node));
        };
        let web = Key::cluster("web");
        let bind = |old: Option<AnyObject>, new: Option<AnyObject>| {
            bed.changed(Pod::resource(), &web, old.as_ref(), new.as_ref());
        };
        let age = |taint: &str| {
            bed.ages
                .exposure("n1", taint, &web)
                .map(|age| age.as_secs())
        };
        bind(None, Some(pod("u1", "n1")));
        assert_eq!(age("down"), None);
        bed.pulse(5);
        taint(&[("down", "")]);
        bed.pulse(10);
        // The pod was there before, and its status keeps changing.
        bind(Some(pod("u1", "n1")), Some(pod("u1", "n1")));
        taint(&[("down", ""), ("slow", "a")]);
        bed.pulse(15);
        taint(&[("down", ""), ("slow", "b")]);
        assert_eq!((age("down"), age("slow")), (Some(10), Some(0)));
        // Another of its name comes.
        bind(Some(pod("u1", "n1")), None);
        bind(None, Some(pod("u2", "")));
        bind(Some(pod("u2", "")), Some(pod("u2", "n1")));
        bed.pulse(20);
        assert_eq!((age("down"), age("slow")), (Some(5), Some(5)));
        taint(&[]);
        assert_eq!(age("down"), None);
        taint(&[("down", "")]);
        bed.pulse(23);
        assert_eq!(age("down"), Some(3), "nothing is left of what was");
    }

    #[test]
    fn what_happens_between_two_pulses_is_no_older_than_it_is() {
        let bed = Bed::new();
        let web = Key::cluster("web");
        let age = || {
            let age = bed.ages.exposure("n1", "down", &web);
            age.map(|age| age.as_millis())
        };
        bed.pulse(1);
        // Seven seconds after the last sign of life, one before the next.
        bed.wait_until(8000);
        let node = node(&[("down", "")]);
        bed.changed(Node::resource(), &Key::cluster("n1"), None, Some(&node));
        assert_eq!(age(), Some(0));
        bed.pulse(9);
        assert_eq!(age(), Some(1000), "not eight seconds");
        let own = bed.ages.age(Node::resource(), Key::cluster("n1"));
        assert_eq!(own, Some(Duration::from_secs(1)));
        // While nothing is heard, no more is added than one pulse.
        bed.wait_until(60_000);
        assert_eq!(age(), Some(1000));
        bed.pulse(120);
        assert_eq!(age(), Some(9000));
        // A pod that comes between two pulses.
        bed.wait_until(125_000);
        let pod = pod("u1", "n1");
        bed.changed(Pod::resource(), &web, None, Some(&pod));
        bed.pulse(126);
        assert_eq!(age(), Some(1000));
    }
}
