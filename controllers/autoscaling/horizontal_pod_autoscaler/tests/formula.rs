//! How many replicas a metric asks for, a case a line: `target: pods -> replicas @usage`.
//!
//! A pod is its sample in thousandths, `?` for none; after it `p` pending, `d` being deleted, `f` failed, `n`
//! not ready and never was, `w` ready but its sample is from before, `l` not ready but was once. `of` says
//! what each container requests. `now` is the scale's size where it is not the number of pods.

use std::sync::Arc;

use controllers_kit::{
    SignedDuration,
    testing::{Common, PodBuild, at, pod},
};
use kubernetes_proto::{
    Shared,
    core::{Amount, Container, InitContainer, Pod, ResourceRequirements},
    meta::Quantity,
};

use super::super::replicas::{
    Circumstances, Proposal, Sample, Samples, Tolerances, of_average, of_utilization, of_value,
    of_value_per_pod, sum,
};

/// The instant of all cases; pods have been running for an hour.
const NOW: &str = "12:00:00";

pub(super) fn asking(resource: &str, amount: &str) -> Shared<ResourceRequirements> {
    Shared::from(ResourceRequirements {
        requests: vec![Amount {
            key: resource.into(),
            value: Some(Quantity::text(amount)),
        }],
        ..ResourceRequirements::default()
    })
}

fn container(name: &str, request: &str) -> Container {
    Container {
        name: name.into(),
        ports: Vec::new(),
        resources: (request != "-").then(|| asking("cpu", request)),
        ..Container::default()
    }
}

/// A pod and its sample.
fn read_pod(number: usize, word: &str, requests: &[String]) -> (Pod, Option<Sample>) {
    let digits = word.trim_end_matches(|c: char| c.is_ascii_lowercase());
    let mark = &word[digits.len()..];
    let mut pod = pod(&format!("pod-{number}"))
        .phase("Running")
        .ready("11:01:00");
    let status = pod.status.as_mut().unwrap();
    status.start_time = Some(at("11:00:00").into());
    let mut taken = "11:59:30";
    match mark {
        "" => {}
        "p" => status.phase = "Pending".into(),
        "f" => status.phase = "Failed".into(),
        "d" => pod = pod.terminating("11:59:00"),
        "n" => {
            status.conditions.clear();
            pod = pod.condition("Ready", "False", "11:00:10");
        }
        "l" => {
            status.conditions.clear();
            pod = pod.condition("Ready", "False", "11:30:00");
        }
        "w" => {
            status.conditions.clear();
            status.start_time = Some(at("11:58:00").into());
            taken = "11:59:05";
            pod = pod.condition("Ready", "True", "11:59:00");
        }
        other => panic!("a pod is not marked {other:?}"),
    }
    pod.spec.get_or_insert_default().containers = requests
        .iter()
        .enumerate()
        .map(|(number, request)| container(&format!("c{number}"), request))
        .collect();
    let sample = (digits != "?").then(|| Sample {
        value: digits.parse().unwrap(),
        at: at(taken),
        window: SignedDuration::from_secs(30),
    });
    (pod, sample)
}

struct Case {
    now: i32,
    pods: Vec<Arc<Pod>>,
    samples: Samples,
}

impl Case {
    /// Of words, as in `now 3 of 1000m 300 500 ?n`.
    fn read(text: &str) -> Self {
        let mut words = text.split_whitespace();
        let (mut now, mut requests) = (None, vec!["1".to_owned()]);
        let (mut pods, mut samples) = (Vec::new(), Samples::new());
        while let Some(word) = words.next() {
            match word {
                "now" => now = Some(words.next().unwrap().parse().unwrap()),
                "of" => {
                    requests = words
                        .next()
                        .unwrap()
                        .split('+')
                        .map(str::to_owned)
                        .collect();
                }
                word => {
                    let (pod, sample) = read_pod(pods.len(), word, &requests);
                    let name = kubernetes_proto::Object::metadata(&pod).name.to_string();
                    samples.extend(sample.map(|sample| (name, sample)));
                    pods.push(Arc::new(pod));
                }
            }
        }
        Self {
            now: now.unwrap_or_else(|| i32::try_from(pods.len()).unwrap()),
            pods,
            samples,
        }
    }

    fn with(&self, tolerances: Tolerances) -> Circumstances<'_> {
        Circumstances {
            current: self.now,
            pods: &self.pods,
            tolerances,
            now: at(NOW),
            cpu_initialization: SignedDuration::from_mins(5),
            readiness_delay: SignedDuration::from_secs(30),
            pod_level: true,
        }
    }
}

const TENTH: Tolerances = Tolerances { down: 0.1, up: 0.1 };

fn text(outcome: Result<Proposal, String>) -> String {
    match outcome {
        Err(error) => error,
        Ok(Proposal {
            replicas,
            utilization: Some(percent),
            ..
        }) => format!("{replicas} @{percent}%"),
        Ok(Proposal {
            replicas, usage, ..
        }) => format!("{replicas} @{usage}"),
    }
}

fn check(table: &[(&str, &str)], compute: impl Fn(&str, &Case) -> String) {
    let mut wrong = Vec::new();
    for (given, wanted) in table {
        let (target, pods) = given.split_once(':').unwrap();
        let case = Case::read(pods);
        let found = compute(target.trim(), &case);
        if found != *wanted {
            wrong.push(format!("{given}: {found} instead of {wanted}"));
        }
    }
    assert!(
        wrong.is_empty(),
        "{}",
        wrong.join(
            "
"
        )
    );
}

#[rustfmt::skip]
const OF_CPU_REQUESTS: &[(&str, &str)] = &[
    // The formula: the ratio times the pods that are ready, rounded up.
    ("30%: 300 500 700",                    "5 @50%"),
    ("50%: 500 500",                        "2 @50%"),
    ("50%: 1000 1000",                      "4 @100%"),
    ("50%: 250 250 250 250",                "2 @25%"),
    ("100%: 10 10 10",                      "1 @1%"),
    ("30%: 0 0 0",                          "0 @0%"),
    ("80%: 900",                            "2 @90%"),
    ("10%: 1000 1000 1000",                 "30 @100%"),
    ("200%: 3000 3000",                     "3 @300%"),
    // Utilization is cut to whole percents before it is compared.
    ("50%: 559 559",                        "2 @55%"),
    ("50%: 560 560",                        "3 @56%"),
    // Within a tenth nothing is done.
    ("50%: 550 550",                        "2 @55%"),
    ("50%: 450 450",                        "2 @45%"),
    ("50%: 440 440",                        "2 @44%"),
    ("50%: 440 440 440 440 440 440 440 440 440 440", "9 @44%"),
    ("100%: 1020 1010",                     "2 @101%"),
    // The size is what the scale says; without a change in tolerance it stays even where pods differ.
    ("50%: now 7 500 500",                  "7 @50%"),
    ("50%: now 7 1000 1000",                "4 @100%"),
    // What is requested.
    ("50%: of 500m 500 500",                "4 @100%"),
    ("50%: of 2 500 500",                   "1 @25%"),
    ("50%: of 500m+500m 500 500",           "2 @50%"),
    ("50%: of 250m 100 of 750m 400",        "2 @50%"),
    ("50%: of - 500",                       "missing request for cpu in container c0 of Pod pod-0"),
    ("50%: of 1+- 500",                     "missing request for cpu in container c1 of Pod pod-0"),
    ("50%: 500 of - 500d",                  "missing request for cpu in container c0 of Pod pod-1"),
    ("50%: of 0 500",                       "no metrics returned matched known pods"),
    // Without pods or samples nothing can be said.
    ("50%: now 3",                          "no pods returned by selector while calculating replica count"),
    ("50%: ? ?",                            "did not receive metrics for targeted pods (pods might be unready)"),
    ("50%: 500p 500n",                      "did not receive metrics for targeted pods (pods might be unready)"),
    ("50%: 500d 500f",                      "did not receive metrics for targeted pods (pods might be unready)"),
    // Pods that are going or have failed do not count at all.
    ("50%: 1000 1000d 1000f",               "2 @100%"),
    ("50%: 500 0d",                         "2 @50%"),
    // Missing samples on the way up: nothing used.
    ("50%: 1000 ?",                         "2 @100%"),
    ("50%: 1000 1000 1000 ?",               "6 @100%"),
    ("50%: 2000 ?",                         "4 @200%"),
    ("30%: 600 ? ?",                        "3 @60%"),
    ("10%: 1000 ? ? ?",                     "10 @100%"),
    // Missing samples on the way down: all that is requested.
    ("50%: 100 100 100 ?",                  "3 @10%"),
    ("50%: 100 ?",                          "2 @10%"),
    ("50%: 100 100 100 100 100 100 ?",      "4 @10%"),
    ("100%: 100 100 ?",                     "2 @10%"),
    ("200%: 100 100 ?",                     "2 @10%"),
    ("300%: 100 ?",                         "2 @10%"),
    ("50%: 10 ? ? ?",                       "4 @1%"),
    // Missing samples with a ratio of one: as if they were not there.
    ("50%: 500 ?",                          "2 @50%"),
    // Unready pods on the way up: nothing used.
    ("50%: 1000 1000 1000n",                "4 @100%"),
    ("50%: 2000 500n",                      "4 @200%"),
    ("30%: 300 500 700n",                   "3 @40%"),
    ("30%: 500 700 700n",                   "4 @60%"),
    ("30%: 400 500n 700n",                  "3 @40%"),
    ("50%: 1000 1000p",                     "2 @100%"),
    ("50%: 1000 1000 ?p",                   "4 @100%"),
    // Unready pods on the way down do not count.
    ("50%: 100 100 900n",                   "1 @10%"),
    ("50%: 100 100 100 100 900p",           "1 @10%"),
    // A pod that was ready once counts, ready or not.
    ("50%: 1000 1000l",                     "4 @100%"),
    ("50%: 100 100l",                       "1 @10%"),
    // A sample from before a young pod was ready does not.
    ("50%: 500 2000w",                      "2 @50%"),
    ("50%: 1000 3000w",                     "2 @100%"),
    ("50%: 3000w",                          "did not receive metrics for targeted pods (pods might be unready)"),
    // Both at once: on the way up both count as nothing, and a change that turns round is not made.
    ("50%: 1000 ? 1000n",                   "3 @100%"),
    ("50%: 3000 ? 1000n",                   "6 @300%"),
    ("50%: 100 100 100 ? 1000n",            "3 @10%"),
    // More pods than the scale has, as in a rollout: never against the direction.
    ("50%: now 2 700 700 ? ?",              "2 @70%"),
    ("50%: now 8 2000 2000 ?",              "8 @200%"),
    ("50%: now 2 100 100 100 ? ? ?",        "2 @10%"),
];

#[test]
fn a_share_of_requested_cpu() {
    check(OF_CPU_REQUESTS, |target, case| {
        let target = target.strip_suffix('%').unwrap().parse().unwrap();
        text(of_utilization(
            &case.with(TENTH),
            case.samples.clone(),
            "cpu",
            "",
            target,
        ))
    });
}

#[rustfmt::skip]
const OF_ONE_CONTAINER: &[(&str, &str)] = &[
    ("50%: of 500m+1 500 500",              "4 @100%"),
    ("50%: of 1+- 500 500",                 "2 @50%"),
    ("50%: of -+1 500",                     "missing request for cpu in container c0 of Pod pod-0"),
];

#[test]
fn a_share_of_what_one_container_requests() {
    check(OF_ONE_CONTAINER, |target, case| {
        let target = target.strip_suffix('%').unwrap().parse().unwrap();
        let samples = case.samples.clone();
        text(of_utilization(
            &case.with(TENTH),
            samples,
            "cpu",
            "c0",
            target,
        ))
    });
    let case = Case::read("500");
    let outcome = of_utilization(&case.with(TENTH), case.samples.clone(), "cpu", "web", 50);
    assert_eq!(text(outcome), "container web not found in Pod pod-0");
}

#[rustfmt::skip]
const OF_AVERAGES: &[(&str, &str)] = &[
    ("15000: 20000 10000 30000",            "4 @20000"),
    ("20000: 20000 10000 30000",            "3 @20000"),
    ("50000: 20000 10000 30000",            "2 @20000"),
    ("20000: 21000 21000 21000",            "3 @21000"),
    ("20000: 18000 18000 18000",            "3 @18000"),
    ("20000: 10000 10000 10000 10000 10000", "3 @10000"),
    ("20000: 0 0 0",                        "0 @0"),
    ("1: 7",                                "7 @7"),
    ("1000: now 5 1000 1000",               "5 @1000"),
    // Missing: the target on the way down, nothing on the way up.
    ("20000: 10000 ?",                      "2 @10000"),
    ("20000: 4000 4000 4000 ?",             "2 @4000"),
    ("20000: 60000 ?",                      "3 @60000"),
    ("20000: 30000 ?",                      "2 @30000"),
    ("20000: 5000 ? ?",                     "3 @5000"),
    // Pending pods count as nothing on the way up and not at all on the way down.
    ("20000: 60000 0p",                     "3 @60000"),
    ("20000: 30000 30000 30000 0p",         "5 @30000"),
    ("20000: 5000 5000 0p",                 "1 @5000"),
    // Readiness does not matter but for CPU.
    ("20000: 30000n",                       "2 @30000"),
    ("20000: 30000w 30000",                 "3 @30000"),
    ("20000: 30000d 40000",                 "2 @40000"),
    ("20000: now 2",                        "no pods returned by selector while calculating replica count"),
    ("20000: ?",                            "did not receive metrics for targeted pods (pods might be unready)"),
];

#[test]
fn an_average_over_pods() {
    check(OF_AVERAGES, |target, case| {
        let samples = case.samples.clone();
        text(of_average(
            &case.with(TENTH),
            samples,
            "",
            target.parse().unwrap(),
        ))
    });
}

#[rustfmt::skip]
const OF_VALUES: &[(&str, &str)] = &[
    ("usage 20000 of 10000: 0 0 0",         "6 @20000"),
    ("usage 10000 of 10000: 0 0 0",         "3 @10000"),
    ("usage 10900 of 10000: 0 0 0",         "3 @10900"),
    ("usage 12000 of 10000: 0 0 0",         "4 @12000"),
    ("usage 5000 of 10000: 0 0 0 0",        "2 @5000"),
    ("usage 0 of 10000: 0 0",               "0 @0"),
    // The pods that are ready count.
    ("usage 20000 of 10000: 0 0 0l",        "4 @20000"),
    ("usage 20000 of 10000: 0p 0n",         "0 @20000"),
    ("usage 20000 of 10000: now 3",         "unable to calculate ready pods: no pods returned by selector while calculating replica count"),
    // From zero neither pods nor tolerance count.
    ("usage 20000 of 10000: now 0",         "2 @20000"),
    ("usage 10500 of 10000: now 0",         "2 @10500"),
    ("usage 1 of 10000: now 0",             "1 @1"),
    ("usage 0 of 10000: now 0",             "0 @0"),
    ("usage 9223372036854775807 of 1: 0",   "2147483647 @9223372036854775807"),
];

fn two(text: &str) -> (i64, i64) {
    let (usage, target) = text
        .strip_prefix("usage ")
        .and_then(|text| text.split_once(" of "))
        .unwrap();
    (usage.parse().unwrap(), target.parse().unwrap())
}

#[test]
fn a_value_of_something_else() {
    check(OF_VALUES, |target, case| {
        let (usage, target) = two(target);
        text(of_value(&case.with(TENTH), usage, target))
    });
}

#[rustfmt::skip]
const OF_VALUES_PER_POD: &[(&str, &str)] = &[
    ("usage 40000 of 10000: 0 0",           "4 @20000"),
    ("usage 40000 of 10000: 0 0 0 0",       "4 @10000"),
    ("usage 43000 of 10000: 0 0 0 0",       "4 @10750"),
    ("usage 45000 of 10000: 0 0 0 0",       "5 @11250"),
    ("usage 35000 of 10000: 0 0 0 0",       "4 @8750"),
    ("usage 10000 of 10000: 0 0 0 0",       "1 @2500"),
    ("usage 0 of 10000: 0 0",               "0 @0"),
    ("usage 10001 of 10000: 0 0 0",         "2 @3334"),
    ("usage 25000 of 10000: now 0",         "3 @0"),
    ("usage 0 of 10000: now 0",             "0 @0"),
    ("usage 9223372036854775807 of 1: 0 0", "2147483647 @9223372036854775807"),
];

#[test]
fn a_value_for_each_pod() {
    check(OF_VALUES_PER_POD, |target, case| {
        let (usage, target) = two(target);
        text(Ok(of_value_per_pod(
            &case.with(TENTH),
            case.now,
            usage,
            target,
        )))
    });
    assert_eq!(sum(&[1, 2, 3]), 6);
    assert_eq!(sum(&[i64::MAX, 1]), i64::MAX);
    assert_eq!(sum(&[]), 0);
}

#[test]
fn tolerances_are_each_for_one_direction() {
    for (down, up, usage, wanted) in [
        (0.1, 0.1, 570, 3),
        (0.1, 0.2, 570, 2),
        (0.1, 0.05, 540, 3),
        (0.0, 0.0, 510, 3),
        (0.5, 0.1, 260, 2),
        (0.5, 0.1, 240, 1),
        (0.0, 0.5, 490, 2),
    ] {
        let case = Case::read(&format!("{usage} {usage}"));
        let with = case.with(Tolerances { down, up });
        let proposal = of_utilization(&with, case.samples.clone(), "cpu", "", 50).unwrap();
        assert_eq!(proposal.replicas, wanted, "-{down} +{up} at {usage}");
    }
}

#[test]
fn memory_counts_whether_ready_or_not() {
    let mut case = Case::read("500n 500p");
    for pod in &mut case.pods {
        let pod = Arc::make_mut(pod);
        pod.spec.as_mut().unwrap().containers[0].resources = Some(asking("memory", "1"));
    }
    let outcome = of_utilization(&case.with(TENTH), case.samples.clone(), "memory", "", 25);
    // Not ready counts, pending does not: it uses nothing on the way up.
    assert_eq!(text(outcome), "2 @50%");
}

#[test]
fn sidecars_and_pod_level_requests_count() {
    let mut case = Case::read("500");
    let with_sidecar = |pod: &mut Pod| {
        let spec = pod.spec.as_mut().unwrap();
        for (name, policy, request) in [("mesh", "Always", "1"), ("setup", "", "5")] {
            spec.init_containers.push(InitContainer {
                name: name.into(),
                restart_policy: policy.into(),
                resources: Some(asking("cpu", request)),
                ..InitContainer::default()
            });
        }
    };
    with_sidecar(Arc::make_mut(&mut case.pods[0]));
    let compute = |case: &Case, pod_level| {
        let with = Circumstances {
            pod_level,
            ..case.with(TENTH)
        };
        text(of_utilization(&with, case.samples.clone(), "cpu", "", 25))
    };
    assert_eq!(compute(&case, true), "1 @25%", "one of two");
    Arc::make_mut(&mut case.pods[0])
        .spec
        .as_mut()
        .unwrap()
        .resources = Some(asking("cpu", "4"));
    assert_eq!(
        compute(&case, true),
        "1 @12%",
        "one of four, whatever its parts ask for"
    );
    assert_eq!(compute(&case, false), "1 @25%", "gate off");
    // What the pod as a whole does not say follows from its parts: here the init container beside the
    // sidecar.
    Arc::make_mut(&mut case.pods[0])
        .spec
        .as_mut()
        .unwrap()
        .resources = Some(asking("memory", "4"));
    assert_eq!(compute(&case, true), "1 @8%", "one of six");
}
