//! Differences that are meant. Each has its reason in controllers/README.md, word for word.

use super::Difference;

/// One that is met wherever it fits.
#[derive(Debug)]
pub(crate) struct Expectation {
    pub(crate) name: &'static str,
    /// A sentence of a controller's `differs`.
    pub(crate) reason: &'static str,
    /// Whether it is upstream's chance that decides if it is met.
    pub(crate) by_chance: bool,
    pub(crate) fits: fn(&Difference) -> bool,
}

pub(crate) const EXPECTED: &[Expectation] = &[
    Expectation {
        name: "a node that is gone is not counted",
        reason: "A node that is gone wakes the DaemonSets that fitted it; upstream counts it until something else does. \
                 While surging, a pod on a node that is gone does not stop the rollout on the others.",
        by_chance: false,
        fits: |one| one.scenario == "daemonset-node-deleted" && is_status_of(one, "DaemonSet logs"),
    },
    Expectation {
        name: "a taint is reported in the status",
        reason: "A taint that only keeps new pods off a node is reported in the status at once, where upstream's \
            status waits for something else to happen.",
        by_chance: false,
        fits: |one| {
            one.scenario == "daemonset-taints"
                && one.snapshot == "it stays"
                && is_status_of(one, "DaemonSet logs")
        },
    },
    Expectation {
        name: "whose completion is reported",
        reason: "Which ReplicaSet the condition Progressing names after a Recreate is left to chance, as in upstream: \
                 where the status conflicts in the sync that made the ReplicaSet, it stays the one before.",
        by_chance: true,
        fits: |one| {
            one.object.starts_with("Deployment ")
                && one.scenario.contains("recreate")
                && one.path.ends_with("/message")
                && [&one.theirs, &one.ours]
                    .iter()
                    .all(|text| text.contains("has successfully progressed."))
        },
    },
    Expectation {
        name: "a CronJob reports things once",
        reason: "An event is recorded once while its reason lasts (MissSchedule and JobAlreadyActive: once for \
            each time), where upstream repeats it whenever anything wakes the CronJob.",
        by_chance: false,
        fits: |one| {
            one.object == "event"
                && one.path.contains("(cronjob-controller)")
                && [
                    "MissSchedule",
                    "JobAlreadyActive",
                    "UnexpectedJob",
                    "SawCompletedJob",
                ]
                .iter()
                .any(|reason| one.path.contains(reason))
                && (one.theirs.as_str(), one.ours.as_str()) == ("several", "one")
        },
    },
    Expectation {
        name: "a budget reports things once",
        reason: "Events about a budget's state (NoPods, UnmanagedPods, CalculateExpectedPodCountFailed) are \
            recorded when that state begins, not at every reconcile.",
        by_chance: true,
        fits: |one| {
            one.object == "event"
                && one.scenario.starts_with("disruption-")
                && ["NoPods", "UnmanagedPods", "CalculateExpectedPodCountFailed"]
                    .iter()
                    .any(|reason| one.path.contains(reason))
                && (one.theirs.as_str(), one.ours.as_str()) == ("several", "one")
        },
    },
    Expectation {
        name: "whether a rollout has progressed",
        reason: "Whether a rollout whose first pods are there is called NewReplicaSetCreated or ReplicaSetUpdated is \
                 left to chance, as in upstream: the latter where a status was written before they were counted.",
        by_chance: true,
        fits: |one| {
            let pairs = [
                ("NewReplicaSetCreated", "ReplicaSetUpdated"),
                ("Created new replica set", "is progressing."),
            ];
            one.object.starts_with("Deployment ")
                && one.scenario.contains("rolling")
                && one.path.starts_with("/status/conditions/")
                && pairs
                    .iter()
                    .any(|(theirs, ours)| one.theirs.contains(theirs) && one.ours.contains(ours))
        },
    },
    Expectation {
        name: "in which order claims are mounted",
        reason: "The volumes of several claim templates are in the templates' order in a new pod; upstream's \
            order is arbitrary.",
        by_chance: true,
        fits: |one| {
            let volume = one.path.strip_prefix("/spec/volumes/").unwrap_or_default();
            one.object.starts_with("Pod ")
                && one.scenario.starts_with("statefulset-claims")
                && (volume.ends_with("/name") || volume.ends_with("/claimName"))
        },
    },
    Expectation {
        name: "when a claim's owners are mended",
        reason: "As under upstream, the cache decides whether a new pod's claims are mended before it is created, or with \
                 an event after it.",
        by_chance: true,
        fits: |one| {
            one.object == "event"
                && one.scenario == "statefulset-claims-retention"
                && one.path.contains("SuccessfulUpdate")
        },
    },
    Expectation {
        name: "an aggregate of nothing",
        reason: "Where no role matches, the rules are applied as an empty list: rules that a user wrote are taken away, \
                 which upstream's apply leaves.",
        by_chance: false,
        fits: |one| {
            one.object.starts_with("ClusterRole aggregate-")
                && one.path == "/metadata/managedFields"
                && one
                    .ours
                    .contains(r#"{"f:rules":{}},"manager":"clusterrole-aggregation-controller""#)
                && !one.theirs.contains("clusterrole-aggregation-controller")
        },
    },
    Expectation {
        name: "who writes a ServiceCIDR's condition",
        reason: "The finalizer and the condition are written as merge patches with the version seen as \
            precondition, as kube-controller-manager, instead of a strategic patch and an apply without \
            version.",
        by_chance: false,
        fits: |one| {
            one.object.starts_with("ServiceCIDR ")
                && one.path.starts_with("/metadata/managedFields")
        },
    },
    Expectation {
        name: "what a claim waits for is reported once",
        reason: "WaitForFirstConsumer, WaitForPodScheduled, ExternalProvisioning, ProvisioningFailed, FailedBinding, \
                 VolumeMismatch and VolumeFailedRecycle for use are recorded when their reason begins and every 30 \
                 minutes while it lasts, not at each sync.",
        by_chance: true,
        fits: |one| {
            one.object == "event"
                && one.scenario.starts_with("volumes-")
                && one.path.contains("(persistentvolume-controller)")
                && (one.theirs.as_str(), one.ours.as_str()) == ("several", "one")
        },
    },
    Expectation {
        name: "a volume whose claim can't be named",
        reason: "A volume whose claimRef has a uid but no namespace or no name never becomes Released, since nothing \
                 shows that its claim is gone; the key's last error says so. Upstream releases one that lacks the \
                 namespace.",
        by_chance: false,
        fits: |one| {
            let volume = "PersistentVolume volumes-incomplete-reference-a";
            one.scenario == "volumes-incomplete-reference"
                && (is_status_of(one, volume)
                    || (one.object == volume && one.path == "/metadata/managedFields"))
        },
    },
    Expectation {
        name: "a claim to devices that is deleted by hand",
        reason: "A generated claim that is deleted by hand is recreated at once; upstream's mutation cache shows \
            the deleted one for up to an hour.",
        by_chance: true,
        fits: |one| one.scenario == "devices-claims-again",
    },
    Expectation {
        name: "what a recycler pod meets with",
        reason: "A recycler pod that this key's owner has not made itself is deleted and another made, without marking \
                 the volume Failed; its events are not copied to the volume.",
        by_chance: true,
        fits: |one| {
            one.object == "event"
                && one.scenario.starts_with("volumes-recycle")
                && one.path.contains(" RecyclerPod ")
                && one.ours == "nothing"
        },
    },
    Expectation {
        name: "conflicts of pods that were not judged again yet",
        reason: "When a driver changes, all pods of a storage are judged again at once; upstream warns of conflicts \
                 between those that it has judged again and those that it has not.",
        by_chance: true,
        fits: |one| {
            one.object == "event"
                && one.scenario == "selinux-driver"
                && one.path.contains(" SELinux")
                && one.ours == "nothing"
        },
    },
    Expectation {
        name: "labels of what is no storage",
        reason: "MultipleSELinuxLabels is recorded for volumes of claims and of in-line storage; which containers mount \
                 emptyDir, ConfigMaps, Secrets and the like is not known.",
        by_chance: false,
        fits: |one| {
            one.object == "event"
                && one.scenario == "selinux-twice"
                && one.path.contains("MultipleSELinuxLabels")
                && one.path.contains("kube-api-access-")
                && one.ours == "nothing"
        },
    },
    Expectation {
        name: "labels that disagree within a pod are reported once",
        reason: "MultipleSELinuxLabels is recorded once, not at each retry.",
        by_chance: false,
        fits: |one| {
            one.object == "event"
                && one.scenario == "selinux-twice"
                && one.path.contains("MultipleSELinuxLabels")
                && (one.theirs.as_str(), one.ours.as_str()) == ("several", "one")
        },
    },
    Expectation {
        name: "an attachment names its volume",
        reason: "An attachment that no pod wants any more is deleted after a restart too: of an in-line volume, and of \
            a PersistentVolume that is gone, by the annotation manifold.dev/volume that attachments are created with.",
        by_chance: false,
        fits: |one| {
            // Upstream writes no metadata of its attachments but the name.
            let is_all_metadata = one.path.ends_with("/f:metadata")
                && (one.theirs.as_str(), one.ours.as_str())
                    == (
                        "nothing",
                        r#"{"f:annotations":{".":{},"f:manifold.dev/volume":{}}}"#,
                    );
            one.object.starts_with("VolumeAttachment ")
                && (is_all_metadata || is_in_annotation(one, "manifold.dev/volume"))
        },
    },
    Expectation {
        name: "why a volume is not attached is reported once",
        reason: "An attachment that no pod wants any more is deleted while it is still being attached, and failures are \
                 reported when their reason begins, not at each try.",
        by_chance: false,
        fits: |one| {
            one.object == "event"
                && one.scenario.starts_with("attach-")
                && one.path.contains("FailedAttachVolume")
                && one.path.contains("AttachVolume.Attach failed")
                && (one.theirs.as_str(), one.ours.as_str()) == ("several", "one")
        },
    },
    Expectation {
        name: "addresses that are given twice",
        reason: "A patch rests on the Node's version and on a consistent read of all Nodes; a block that two Nodes \
                 hold is reported by an event CIDRNotUnique on the younger one.",
        by_chance: true,
        fits: |one| {
            one.object == "event"
                && one.path.contains("CIDRAssignmentFailed")
                && one.ours == "nothing"
        },
    },
    Expectation {
        name: "what the history limits have removed",
        reason: "A Job that the history limits have removed is never reported as missing; upstream calls it so \
            where its cache is behind its own write.",
        by_chance: true,
        fits: |one| {
            one.scenario == "cronjob-failed"
                && one.object == "event"
                && one.path.contains("MissingJob")
                && one.ours == "nothing"
        },
    },
    Expectation {
        name: "what a pod is called that a quota refused",
        reason: "FailedCreate names a pod by the beginning of its name, also where a quota refused it; there upstream \
                 has the whole name, another one at each try.",
        by_chance: false,
        fits: |one| {
            one.scenario == "quota-holds-back-a-job"
                && one.object == "event"
                && one.path.contains("FailedCreate")
                && one.path.contains("exceeded quota: all")
                && matches!(
                    (one.theirs.as_str(), one.ours.as_str()),
                    ("nothing", "several") | ("several", "nothing")
                )
        },
    },
    Expectation {
        name: "conflicts are reported in no event",
        reason: "A conflict is recorded in no event, where upstream records those that its own cache runs into.",
        by_chance: true,
        fits: |one| {
            one.object == "event"
                && one.path.contains("(statefulset-controller)")
                && one
                    .path
                    .contains("the object has been modified; please apply your changes")
                && one.ours == "nothing"
        },
    },
    Expectation {
        name: "a resource that is empty is not asked to go",
        reason: "A resource is listed first, and its content is deleted only if it has any. One that was seen \
            empty is listed again only when all are empty, and only if the first was seen so more than 10 s \
            before; upstream lists and deletes every resource in each pass.",
        by_chance: false,
        fits: |one| is_of(one, GOING) && one.path.starts_with("Delete ") && is_less(one),
    },
    Expectation {
        name: "the status of a namespace that goes",
        reason: "The conditions of a namespace that is let go at once are not written.",
        by_chance: true,
        fits: |one| is_of(one, GOING) && one.path == "Change namespaces/status" && is_less(one),
    },
    Expectation {
        name: "what is on its way out",
        reason: "An object that is already being deleted is not deleted again.",
        by_chance: true,
        fits: |one| {
            is_of(one, &["garbage-", "swap-foreground", "swap-orphans"])
                && one.path.starts_with("Delete ")
                && is_less(one)
        },
    },
    Expectation {
        name: "a pod that is held by finalizers",
        reason: "A pod that is gone but for its finalizers is not deleted again at every reconcile.",
        by_chance: false,
        fits: |one| one.scenario.starts_with("podgc-") && one.path == "Delete pods" && is_less(one),
    },
    Expectation {
        name: "the trigger time of a slice",
        reason: "The trigger time is that of the pods whose endpoint changed against the slices that are there; \
                 upstream remembers the times of all pods.",
        by_chance: true,
        fits: |one| one.object.starts_with("EndpointSlice ") && is_trigger_time(one),
    },
    Expectation {
        name: "the trigger time of Endpoints",
        reason: "The trigger time is that of the pods whose address changed against the Endpoints that are there; \
                 upstream remembers the times of all pods.",
        by_chance: true,
        fits: |one| one.object.starts_with("Endpoints ") && is_trigger_time(one),
    },
    Expectation {
        name: "how often a slice was written",
        reason: "Changes of one Service's slices are 200 to 700 ms apart, the more of them were written the \
            longer, so a rollout writes fewer of them; a slice that somebody else changed is corrected at \
            once instead of after a second.",
        by_chance: true,
        fits: |one| one.object.starts_with("EndpointSlice ") && one.path == "/metadata/generation",
    },
    Expectation {
        name: "why there are no hints",
        reason: "Why a Service has no hints, and that a pod's node is missing, is reported once and not at every \
            sync; a pod whose node is missing is added when the node appears.",
        by_chance: true,
        fits: |one| {
            one.object == "event"
                && one.path.contains("TopologyAwareHintsDisabled")
                && (one.theirs.as_str(), one.ours.as_str()) == ("several", "one")
        },
    },
    Expectation {
        name: "what a slice was named after",
        reason: "A slice that is used again keeps its generateName.",
        by_chance: true,
        fits: |one| {
            is_of(one, &["endpoints-mirrored", "swap-endpoints"])
                && one.object.starts_with("EndpointSlice ")
                && one.path.ends_with("generateName")
                && one.theirs == "nothing"
        },
    },
];

/// In which a namespace goes.
const GOING: &[&str] = &["namespace-", "swap-namespace"];

/// In a scenario whose name begins like one of these.
fn is_of(one: &Difference, prefixes: &[&str]) -> bool {
    let mut prefixes = prefixes.iter();
    prefixes.any(|prefix| one.scenario.starts_with(prefix))
}

/// Fewer writes than upstream's.
fn is_less(one: &Difference) -> bool {
    let count = |text: &str| text.parse::<usize>().ok();
    one.object == "writes"
        && count(&one.ours)
            .zip(count(&one.theirs))
            .is_some_and(|(ours, theirs)| ours < theirs)
}

/// In the annotation by which endpoints say when their pods changed.
fn is_trigger_time(one: &Difference) -> bool {
    is_in_annotation(one, "endpoints.kubernetes.io/last-change-trigger-time")
}

/// In this annotation, or in all of them, of which it is one.
fn is_in_annotation(one: &Difference, annotation: &str) -> bool {
    let (annotations, fields) = ("/metadata/annotations", "/f:metadata/f:annotations");
    let whole = one.path == annotations || one.path.ends_with(fields);
    let texts = [&one.theirs, &one.ours];
    one.path.ends_with(annotation) || whole && texts.iter().any(|text| text.contains(annotation))
}

/// In the status, or in who has last written which of its fields.
fn is_status_of(one: &Difference, object: &str) -> bool {
    one.object == object
        && (one.path.starts_with("/status/")
            || (one.path.starts_with("/metadata/managedFields/")
                && one.path.contains("/f:status/")))
}

/// The expectation that explains it.
pub(crate) fn reason(difference: &Difference) -> Option<&'static Expectation> {
    EXPECTED.iter().find(|one| (one.fits)(difference))
}

/// Those that must be met when every scenario has run.
pub(crate) fn always_met() -> impl Iterator<Item = &'static str> {
    let always = EXPECTED.iter().filter(|one| !one.by_chance);
    always.map(|one| one.name)
}
