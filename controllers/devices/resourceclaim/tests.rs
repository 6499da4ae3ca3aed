use std::sync::Arc;

use controllers_kit::{
    Answer, AnyObject, Factory, FlagValue, Flags, Query, Refusal, Verb,
    names::Children,
    testing::{PodBuild as _, *},
};
use kubernetes_proto::{
    Object,
    core::{Pod, PodResourceClaim, PodResourceClaimStatus, PodSchedulingGroup},
    meta::ObjectMeta,
    resource::{
        AllocationResult, DeviceClaim, DeviceRequest, DeviceSubRequest, ExactDeviceRequest,
        ResourceClaim, ResourceClaimConsumerReference, ResourceClaimFromTemplate,
        ResourceClaimSpec, ResourceClaimTemplate, ResourceClaimTemplateSpec,
    },
    scheduling::{PodGroup, PodGroupResourceClaim, PodGroupSpec, PodGroupStatus},
};
use prost::Message as _;
use serde_json::json;

use super::{
    CLAIMS, CREATES, Memory, ResourceClaims,
    facts::{FINALIZER, OF_ENTRY, OF_EXTENDED},
    make::generate_name,
};

/// `spec.devices.constraints` (2), which no projection has.
const SPEC: &[u8] = &[0x0a, 0x02, 0x12, 0x00];
const GATE: &str = "DRAWorkloadResourceClaims";

fn new<T: Object>(name: &str) -> T {
    let mut object = T::default();
    let meta = object.metadata_mut();
    meta.name = name.into();
    object.in_namespace("default")
}

fn template(name: &str) -> ResourceClaimTemplate {
    ResourceClaimTemplate {
        spec: Some(ResourceClaimTemplateSpec {
            metadata: None,
            spec: SPEC.to_vec(),
        }),
        ..new(name)
    }
}

fn asking_for(requests: Vec<DeviceRequest>) -> ResourceClaimSpec {
    ResourceClaimSpec {
        devices: Some(DeviceClaim { requests }),
    }
}

fn exactly(admin_access: Option<bool>) -> DeviceRequest {
    DeviceRequest {
        name: "one".to_owned(),
        exactly: Some(ExactDeviceRequest {
            device_class_name: "gpu".to_owned(),
            admin_access,
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn first_of() -> DeviceRequest {
    DeviceRequest {
        first_available: vec![DeviceSubRequest::default()],
        ..Default::default()
    }
}

fn template_of(name: &str, requests: Vec<DeviceRequest>) -> ResourceClaimTemplate {
    let mut template = template(name);
    template.spec.get_or_insert_default().spec = asking_for(requests).encode_to_vec();
    template
}

/// What pods of these tests have besides.
trait Asks: Sized {
    /// An entry with a template.
    fn asks(self, entry: &str, template: &str) -> Self;
    /// An entry with a claim.
    fn shares(self, entry: &str, claim: &str) -> Self;
    /// The name of an entry's claim; empty where none is needed.
    fn has(self, entry: &str, claim: &str) -> Self;
    /// Of a group.
    fn of_group(self, group: &str) -> Self;
    /// With a claim for extended resources.
    fn extended(self, claim: &str) -> Self;
}

fn entry(mut pod: Pod, name: &str, claim: &str, template: &str) -> Pod {
    let spec = pod.spec.get_or_insert_default();
    let entry = PodResourceClaim {
        name: name.into(),
        resource_claim_name: claim.into(),
        resource_claim_template_name: template.into(),
    };
    spec.resource_claims
        .get_or_insert_default()
        .push(entry.into());
    pod
}

impl Asks for Pod {
    fn asks(self, name: &str, template: &str) -> Self {
        entry(self, name, "", template)
    }
    fn shares(self, name: &str, claim: &str) -> Self {
        entry(self, name, claim, "")
    }
    fn has(mut self, entry: &str, claim: &str) -> Self {
        let status = self.status.get_or_insert_default();
        let statuses = status.resource_claim_statuses.get_or_insert_default();
        statuses.push(PodResourceClaimStatus {
            name: entry.into(),
            resource_claim_name: claim.into(),
        });
        self
    }
    fn of_group(mut self, group: &str) -> Self {
        let group = PodSchedulingGroup {
            pod_group_name: group.into(),
        };
        self.spec.get_or_insert_default().scheduling_group = Some(group.into());
        self
    }
    fn extended(mut self, claim: &str) -> Self {
        let status = kubernetes_proto::core::PodExtendedResourceClaimStatus {
            resource_claim_name: claim.into(),
        };
        self.status
            .get_or_insert_default()
            .extended_resource_claim_status = Some(status.into());
        self
    }
}

/// What claims of these tests have besides.
trait Given: Sized {
    fn allocated(self) -> Self;
    fn reserved(self, resource: &str, name: &str, uid: &str) -> Self;
    fn reserved_for(self, pod: &Pod) -> Self;
    fn made_for(self, pod: &Pod, entry: &str) -> Self;
}

impl Given for ResourceClaim {
    fn allocated(mut self) -> Self {
        self.status.get_or_insert_default().allocation = Some(AllocationResult::default());
        self
    }
    fn reserved(mut self, resource: &str, name: &str, uid: &str) -> Self {
        let api_group = match resource {
            "pods" => "",
            "podgroups" => "scheduling.k8s.io",
            _ => "foo.com",
        };
        let consumer = ResourceClaimConsumerReference {
            api_group: api_group.to_owned(),
            resource: resource.to_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
        };
        self.status
            .get_or_insert_default()
            .reserved_for
            .push(consumer);
        self
    }
    fn reserved_for(self, pod: &Pod) -> Self {
        let meta = pod.metadata();
        self.reserved("pods", &meta.name, &meta.uid)
    }
    fn made_for(self, pod: &Pod, entry: &str) -> Self {
        self.owned_by(pod).annotation(OF_ENTRY, entry)
    }
}

fn gpus(name: &str) -> ResourceClaim {
    new(name)
}

fn group(name: &str) -> PodGroup {
    PodGroup {
        spec: Some(PodGroupSpec {
            resource_claims: vec![PodGroupResourceClaim {
                name: "gpu".to_owned(),
                resource_claim_template_name: Some("gpus".to_owned()),
                ..Default::default()
            }],
            ..PodGroupSpec::default()
        }),
        ..new(name)
    }
}

fn of_group(name: &str, group: &PodGroup) -> ResourceClaim {
    gpus(name).owned_by(group).annotation(OF_ENTRY, "gpu")
}

fn world() -> World {
    World::at("12:00:00").without_kubelets()
}

fn with_groups(world: World) -> World {
    world.flag(GATE, FlagValue::Bool(true))
}

fn web() -> Pod {
    pod("web").asks("gpu", "gpus")
}

/// The name that the first claim of a pod's entry gets.
fn first_name(pod: &str, entry: &str) -> String {
    let series = format!("uid-pods-default-{pod}/{entry}");
    Children::of_series(generate_name(pod, entry), &series).name(0)
}

fn statuses(world: &World, pod: &str) -> Vec<(String, String)> {
    let pod = world.get::<Pod>(pod);
    let status = pod.status.as_ref();
    let statuses = status.and_then(|status| status.resource_claim_statuses.as_deref());
    statuses
        .into_iter()
        .flatten()
        .map(|status| {
            (
                status.name.to_string(),
                status.resource_claim_name.to_string(),
            )
        })
        .collect()
}

fn claims(world: &World) -> Vec<String> {
    let all = world.all::<ResourceClaim>();
    all.iter()
        .map(|claim| Object::metadata(&**claim).name.to_string())
        .collect()
}

/// A claim in one line: allocation, finalizer, consumers.
fn shown(world: &World, claim: &str) -> String {
    let Some(claim) = world.find::<ResourceClaim>(claim) else {
        return "gone".to_owned();
    };
    let mut text = String::new();
    if super::facts::is_allocated(&claim) {
        text.push_str("allocated ");
    }
    if super::facts::is_protected(&claim) {
        text.push_str("protected ");
    }
    let consumers = super::facts::consumers(&claim).iter();
    let names: Vec<&str> = consumers.map(|consumer| consumer.name.as_str()).collect();
    text + &names.join(",")
}

/// Worlds for the contract.
pub(crate) fn worlds() -> Vec<World> {
    let done = pod("done")
        .shares("a", "shared")
        .asks("gpu", "gpus")
        .on("n")
        .phase("Succeeded");
    let user = pod("user").shares("a", "shared").on("n").phase("Running");
    vec![
        World::at("12:00:00")
            .with(template("gpus"))
            .with(template_of("admin", vec![exactly(Some(true))]))
            .with(web().asks("other", "admin"))
            .with(pod("lost").asks("gpu", "missing")),
        world()
            .with(template("gpus"))
            .with(
                gpus("shared")
                    .allocated()
                    .finalizer(FINALIZER)
                    .reserved_for(&done)
                    .reserved_for(&user)
                    .reserved("pods", "nobody", "uid-nobody"),
            )
            .with(
                gpus("own")
                    .made_for(&done, "gpu")
                    .allocated()
                    .finalizer(FINALIZER)
                    .reserved_for(&done),
            )
            .with(gpus("left").finalizer(FINALIZER))
            .with(
                gpus("going")
                    .allocated()
                    .finalizer(FINALIZER)
                    .terminating("11:00:00"),
            )
            .with(done)
            .with(user)
            .with(web()),
        with_groups(world())
            .with(template("gpus"))
            .with(group("workers"))
            .with(web().of_group("workers"))
            .with(
                pod("next")
                    .asks("gpu", "gpus")
                    .of_group("workers")
                    .on("n")
                    .phase("Running"),
            )
            .with(
                gpus("kept")
                    .allocated()
                    .reserved("podgroups", "gone", "uid-gone"),
            ),
    ]
}

#[test]
fn a_pod_gets_the_claim_of_its_template_byte_for_byte() {
    let mut made = template("gpus");
    let mut wanted = ObjectMeta::default();
    wanted.set_label("app", "web");
    wanted.set_annotation("for", "tests");
    wanted.set_annotation(OF_ENTRY, "not this");
    wanted.name = "ignored".into();
    wanted.finalizers.push("not/copied".into());
    made.spec.as_mut().unwrap().metadata = Some(wanted);
    let mut world = world().with(web()).with(made);
    let plan = world.plan::<ResourceClaims>("web");
    let name = first_name("web", "gpu");
    assert_eq!(
        plan.verbs(),
        [
            format!("create resourceclaims/{name}"),
            "patch pods/web/status".to_owned()
        ]
    );
    assert_eq!(plan.stages.len(), 2);
    let action = &plan.stages[0][0];
    let Verb::Create { body } = &action.verb else {
        panic!("{action:?}")
    };
    let claim = ResourceClaimFromTemplate::decode(&body[..]).unwrap();
    assert_eq!(claim.spec, SPEC);
    let meta = claim.metadata.unwrap();
    assert_eq!((&*meta.name, &*meta.generate_name), (&*name, "web-gpu-"));
    assert_eq!(meta.label("app"), Some("web"));
    assert_eq!(meta.annotation("for"), Some("tests"));
    assert_eq!(meta.annotation(OF_ENTRY), Some("gpu"));
    assert!(meta.finalizers.is_empty());
    let [owner] = &meta.owner_references[..] else {
        panic!("{:?}", meta.owner_references)
    };
    assert_eq!(
        (&*owner.api_version, &*owner.kind, &*owner.name),
        ("v1", "Pod", "web")
    );
    assert_eq!(
        (owner.controller, owner.block_owner_deletion),
        (Some(true), None)
    );
    let counted: Vec<_> = plan
        .counted
        .iter()
        .map(|set| (set.resource, &*set.namespace))
        .collect();
    assert_eq!(counted, [(ResourceClaim::resource(), "default")]);

    world.run::<ResourceClaims>();
    assert_eq!(statuses(&world, "web"), [("gpu".to_owned(), name)]);
    assert!(world.plan::<ResourceClaims>("web").is_nothing());
}

/// Upstream's cases of a pod's key: the pod, what there is, which claims there are in the end, and which one
/// the pod names.
#[test]
#[expect(clippy::type_complexity, reason = "a table of cases")]
fn pods_get_claims_as_upstream_s_do() {
    let name = first_name("web", "gpu");
    let cases: Vec<(&str, Option<Pod>, Vec<ResourceClaim>, bool, Vec<&str>, &str)> = vec![
        ("made", Some(web()), vec![], true, vec![&name], &name),
        (
            "there already",
            Some(web().has("gpu", "web-gpu-x")),
            vec![gpus("web-gpu-x").made_for(&web(), "gpu")],
            true,
            vec!["web-gpu-x"],
            "web-gpu-x",
        ),
        (
            "made again",
            Some(web().has("gpu", "web-gpu-x")),
            vec![],
            true,
            vec![&name],
            &name,
        ),
        (
            "found by its annotation",
            Some(web()),
            vec![gpus("web-gpu-x").made_for(&web(), "gpu")],
            false,
            vec!["web-gpu-x"],
            "web-gpu-x",
        ),
        (
            "of another entry",
            Some(web()),
            vec![gpus("a").made_for(&web(), "other")],
            true,
            vec!["a", &name],
            &name,
        ),
        (
            "without annotation",
            Some(web()),
            vec![gpus("a").owned_by(&web())],
            true,
            vec!["a", &name],
            &name,
        ),
        (
            "of the pod before",
            Some(web()),
            vec![gpus("a").made_for(&web().uid("before"), "gpu")],
            true,
            // The old one goes, too.
            vec![&name],
            &name,
        ),
        (
            "named, but another's",
            Some(web().has("gpu", "a")),
            vec![gpus("a")],
            true,
            vec!["a", &name],
            &name,
        ),
        (
            "not needed",
            Some(web().has("gpu", "")),
            vec![],
            true,
            vec![],
            "",
        ),
        (
            "somebody else's to make",
            Some(pod("web").shares("gpu", "b")),
            vec![],
            true,
            vec![],
            "",
        ),
        (
            "being deleted",
            Some(web().on("n").terminating("11:00:00")),
            vec![],
            true,
            vec![],
            "",
        ),
        (
            "finished",
            Some(web().on("n").phase("Failed")),
            vec![],
            true,
            vec![],
            "",
        ),
        ("without claims", Some(pod("web")), vec![], true, vec![], ""),
        ("no such pod", None, vec![], true, vec![], ""),
    ];
    for (what, pod, claims_before, has_template, expected, named) in cases {
        let mut world = World::at("12:00:00").without_kubelets().without_collector();
        if has_template {
            world.put(template("gpus"));
        }
        for claim in claims_before {
            world.put(claim);
        }
        let is_there = pod.is_some();
        if let Some(pod) = pod {
            world.put(pod);
        }
        world.run::<ResourceClaims>();
        let mut expected: Vec<String> = expected.into_iter().map(str::to_owned).collect();
        expected.sort();
        assert_eq!(claims(&world), expected, "{what}");
        if is_there {
            let held = statuses(&world, "web");
            let held = held
                .iter()
                .map(|(_, claim)| claim.as_str())
                .next()
                .unwrap_or_default();
            assert_eq!(held, named, "{what}");
        }
    }
}

#[test]
fn a_claim_of_the_same_name_in_another_namespace_is_another() {
    let other = gpus(&first_name("web", "gpu")).in_namespace("other");
    let mut world = world().with(web()).with(template("gpus")).with(other);
    world.run::<ResourceClaims>();
    assert_eq!(claims(&world).len(), 2);
}

#[test]
#[expect(clippy::type_complexity, reason = "a table of cases")]
fn a_claim_that_can_t_be_created_gets_an_event_and_holds_back_the_next() {
    let off = |name| move |world: World| world.flag(name, FlagValue::Bool(false));
    let same: fn(World) -> World = |world| world;
    let cases: [(
        &str,
        Option<Vec<DeviceRequest>>,
        &dyn Fn(World) -> World,
        &str,
    ); 4] = [
        (
            "no template",
            None,
            &same,
            "resource claim template \"gpus\": resourceclaimtemplate.resource.k8s.io \"gpus\" not found",
        ),
        (
            "admin access",
            Some(vec![exactly(None), exactly(Some(true))]),
            &off("DRAAdminAccess"),
            "admin access is requested, but the feature is disabled",
        ),
        (
            "alternatives",
            Some(vec![first_of()]),
            &off("DRAPrioritizedList"),
            "template includes a prioritized list of subrequests, but the feature is disabled",
        ),
        ("no form that is known", Some(vec![]), &same, ""),
    ];
    for (what, requests, change, why) in cases {
        let mut world = change(world().with(template("others")));
        let mut pod = pod("web")
            .asks("first", "others")
            .asks("gpu", "gpus")
            .asks("last", "others");
        if let Some(requests) = requests {
            world.put(template_of("gpus", requests));
        }
        let mut why = why.to_owned();
        if why.is_empty() {
            pod = crate::resourceclaim::tests::pod("web")
                .asks("first", "others")
                .shares("gpu", "")
                .asks("last", "others");
            why = "checking for claim before creating it: pod \"default/web\", spec.resourceClaim \
                   \"gpu\": none of the supported fields are set"
                .to_owned();
        }
        let plan = world.with(pod).plan::<ResourceClaims>("web");
        let first = first_name("web", "first");
        assert_eq!(
            plan.verbs(),
            [format!("create resourceclaims/{first}")],
            "{what}"
        );
        let [event] = &plan.events[..] else {
            panic!("{what}: {:?}", plan.events)
        };
        assert_eq!(
            (&*event.reason, event.message.as_str()),
            (
                "FailedResourceClaimCreation",
                &*format!("PodResourceClaim gpu: {why}")
            ),
            "{what}"
        );
        let failure = format!("Pod default/web, PodResourceClaim gpu: {why}");
        assert_eq!(plan.failure, Some(failure), "{what}");
    }
}

#[test]
fn creations_are_counted_by_success_and_admin_access() {
    for (admin, label) in [
        (None, "false"),
        (Some(false), "false"),
        (Some(true), "true"),
    ] {
        let world = world()
            .with(web())
            .with(template_of("gpus", vec![exactly(admin)]));
        let plan = world.plan::<ResourceClaims>("web");
        let announced = plan.stages[0][0].announcement.as_ref().unwrap();
        let of = |measures: &[controllers_kit::Measure]| -> Vec<String> {
            let of = measures
                .iter()
                .map(|one| format!("{} {:?} {}", one.name, one.labels, one.value));
            of.collect()
        };
        assert_eq!(
            of(&announced.measures),
            [format!("{CREATES} [\"success\", {label:?}] 1")]
        );
        assert_eq!(
            of(&announced.failure_measures),
            [format!("{CREATES} [\"failure\", {label:?}] 1")]
        );
        let failure = announced.failure.as_ref().unwrap();
        assert_eq!(
            failure.message,
            "PodResourceClaim gpu: create ResourceClaim : "
        );
        assert_eq!(announced.reported_as, *"web-gpu-");
    }
}

#[test]
fn the_names_of_all_claims_are_noted_together() {
    let mut world = world()
        .with(template("gpus"))
        .with(web().asks("nic", "gpus").asks("no", "gpus").has("no", ""));
    world.run::<ResourceClaims>();
    let before = statuses(&world, "web");
    assert_eq!(before.len(), 3);
    // One goes: the others stay named.
    let lost = &before.iter().find(|(entry, _)| entry == "nic").unwrap().1;
    world.vanish::<ResourceClaim>(lost);
    let plan = world.plan::<ResourceClaims>("web");
    let patch = plan.actions().last().unwrap();
    let Verb::Patch {
        patch, subresource, ..
    } = &patch.verb
    else {
        panic!("{patch:?}")
    };
    assert_eq!(*subresource, "status");
    let names = patch["status"]["resourceClaimStatuses"].as_array().unwrap();
    assert_eq!(names.len(), 3);
    assert!(names.contains(&json!({"name": "no"})));
    world.run::<ResourceClaims>();
    let after = statuses(&world, "web");
    let again = &after.iter().find(|(entry, _)| entry == "nic").unwrap().1;
    // A name is not given out again within the hour.
    assert_ne!(again, lost);
    assert!(world.find::<ResourceClaim>(again).is_some());
}

/// The pod's watch is ahead of the claims': the name is there, the claim is not yet.
#[test]
fn a_claim_that_a_pod_names_is_not_made_again_before_it_is_known_to_be_missing() {
    let world = world()
        .with(web().has("gpu", "web-gpu-x"))
        .with(template("gpus"));
    fn there(query: &Query) -> Option<Answer> {
        matches!(query, Query::Live { .. })
            .then(|| Answer::Object(Arc::new(json!({"metadata": {"uid": "u"}}))))
    }
    let refusal = world
        .clone()
        .answering(there)
        .refusal::<ResourceClaims>("web");
    let why = "resourceclaims.resource.k8s.io default/web-gpu-x is not in the cache yet";
    assert_eq!(refusal, Refusal::Expected(why.to_owned()));
    fn failing(query: &Query) -> Option<Answer> {
        matches!(query, Query::Live { .. }).then(|| Answer::Failed("timed out".to_owned()))
    }
    let refusal = world
        .clone()
        .answering(failing)
        .refusal::<ResourceClaims>("web");
    assert!(matches!(refusal, Refusal::Retry(why) if why.contains("timed out")));
    assert_eq!(world.plan::<ResourceClaims>("web").verbs().len(), 2);
}

#[test]
fn names_are_cut_in_proportion() {
    let long = "x".repeat(60);
    for (pod, entry, expected) in [
        ("web", "gpu", "web-gpu-".to_owned()),
        // 57 characters are whole.
        (&long[..52], "gpu", format!("{}-gpu-", &long[..52])),
        (&long[..53], "gpu", format!("{}-{}", &long[..52], "gp")),
        (
            &long,
            &long[..60],
            format!("{}-{}", &long[..28], &long[..28]),
        ),
        ("a", &long, format!("{}-{}", "", &long[..54])),
    ] {
        let name = generate_name(pod, entry);
        assert_eq!(name, expected, "{pod} {entry}");
        assert!(name.len() <= 57);
    }
    assert!(generate_name(&"ü".repeat(40), &"ö".repeat(40)).len() <= 57);
}

/// Upstream's cases of a claim's key: the pods, the claim before, and the claim in the end.
#[test]
fn reservations_and_allocations_go_as_upstream_s_do() {
    let running = || pod("web").shares("a", "c").on("n").phase("Running");
    let over = |phase| running().phase(phase);
    let claim = || gpus("c").allocated();
    let protected = || claim().finalizer(FINALIZER);
    let cases: Vec<(&str, Vec<Pod>, ResourceClaim, &str)> = vec![
        (
            "used",
            vec![running()],
            claim().reserved_for(&running()),
            "allocated web",
        ),
        (
            "of nobody",
            vec![],
            protected().reserved_for(&running()),
            "",
        ),
        (
            "allocated by others",
            vec![],
            claim().reserved_for(&running()),
            "allocated ",
        ),
        (
            "one of two is there",
            vec![running()],
            protected()
                .reserved_for(&running())
                .reserved("pods", "b", "uid-b"),
            "allocated protected web",
        ),
        (
            "of nobody, being deleted",
            vec![],
            protected().reserved_for(&running()).terminating("11:00:00"),
            "gone",
        ),
        (
            "unreserved, being deleted",
            vec![],
            protected().terminating("11:00:00"),
            "gone",
        ),
        (
            "used, being deleted",
            vec![running()],
            protected().reserved_for(&running()).terminating("11:00:00"),
            "allocated protected web",
        ),
        (
            "unallocated, being deleted",
            vec![],
            gpus("c").finalizer(FINALIZER).terminating("11:00:00"),
            "gone",
        ),
        (
            "succeeded",
            vec![over("Succeeded")],
            protected().reserved_for(&running()),
            "",
        ),
        (
            "failed",
            vec![over("Failed")],
            protected().reserved_for(&running()),
            "",
        ),
        (
            "deleted before it was bound",
            vec![
                pod("web")
                    .shares("a", "c")
                    .finalizer("f")
                    .terminating("11:00:00"),
            ],
            protected().reserved_for(&running()),
            "",
        ),
        (
            "deleted, and bound",
            vec![running().finalizer("f").terminating("11:00:00")],
            protected().reserved_for(&running()),
            "allocated protected web",
        ),
        (
            "replaced by another of its name",
            vec![running().uid("other")],
            protected().reserved("pods", "web", "uid-before"),
            // The other one is bound, shares it, and would have it; but what nobody has is deallocated.
            "",
        ),
        (
            "never reserved",
            vec![],
            protected(),
            "allocated protected ",
        ),
        (
            "of a consumer of another kind",
            vec![over("Succeeded")],
            claim()
                .reserved_for(&running())
                .reserved("foo", "foo", "123"),
            "allocated foo",
        ),
        (
            "of a PodGroup, with the gate off",
            vec![],
            protected().reserved("podgroups", "g", "uid-g"),
            "allocated protected g",
        ),
    ];
    for (what, pods, claim, expected) in cases {
        let mut world = world().without_collector().with(claim);
        for pod in pods {
            world.put(pod);
        }
        world.run::<ResourceClaims>();
        assert_eq!(shown(&world, "c"), expected, "{what}");
    }
}

/// The cache has not shown the pod yet, or an older one of its name: the scheduler may just have reserved the
/// claim for it.
#[test]
fn a_reservation_is_dropped_only_when_its_pod_is_known_to_be_gone() {
    let reserved = gpus("c")
        .allocated()
        .finalizer(FINALIZER)
        .reserved("pods", "web", "uid-new");
    fn new_one(query: &Query) -> Option<Answer> {
        matches!(query, Query::Live { resource, .. } if resource.plural == "pods")
            .then(|| Answer::Object(Arc::new(json!({"metadata": {"uid": "uid-new"}}))))
    }
    fn failing(query: &Query) -> Option<Answer> {
        matches!(query, Query::Live { .. }).then(|| Answer::Failed("timed out".to_owned()))
    }
    let unseen = world().with(reserved);
    let replaced = unseen
        .clone()
        .with(pod("web").uid("uid-old").shares("a", "c").on("n"));
    for (what, world) in [("unseen", unseen), ("an older one", replaced)] {
        let plan = world
            .clone()
            .answering(new_one)
            .plan::<ResourceClaims>("default/claim:c");
        assert!(plan.is_nothing(), "{what}: {:?}", plan.verbs());
        let refusal = world
            .clone()
            .answering(failing)
            .refusal::<ResourceClaims>("default/claim:c");
        assert_eq!(
            refusal,
            Refusal::Retry("pods default/web could not be read: timed out".to_owned()),
            "{what}"
        );
        let plan = world.plan::<ResourceClaims>("default/claim:c");
        assert_eq!(plan.verbs(), ["patch resourceclaims/c/status"], "{what}");
        let action = plan.actions().next().unwrap();
        let seen = world.get::<ResourceClaim>("c");
        assert_eq!(action.resource_version, seen.metadata().resource_version);
        let Verb::Patch { patch, .. } = &action.verb else {
            panic!("{action:?}")
        };
        assert_eq!(
            *patch,
            json!({"status": {"reservedFor": null, "allocation": null}})
        );
    }
}

#[test]
fn a_claim_that_was_made_for_a_pod_goes_when_the_pod_is_done() {
    let own = |pod: &Pod| {
        let claim = gpus("c").made_for(pod, "gpu").allocated();
        claim.finalizer(FINALIZER).reserved_for(pod)
    };
    let running = || web().on("n").phase("Running").has("gpu", "c");
    let extended = pod("web").extended("c").on("n").phase("Running");
    let of_extended = gpus("c")
        .owned_by(&extended)
        .annotation(OF_EXTENDED, "true")
        .allocated();
    let of_extended = of_extended.finalizer(FINALIZER).reserved_for(&extended);
    let cases: Vec<(&str, Pod, ResourceClaim, &str)> = vec![
        (
            "runs",
            running(),
            own(&running()),
            "allocated protected web",
        ),
        (
            "succeeded",
            running().phase("Succeeded"),
            own(&running()),
            "gone",
        ),
        ("failed", running().phase("Failed"), own(&running()), "gone"),
        (
            "deleted before it was bound",
            web().has("gpu", "c").finalizer("f").terminating("11:00:00"),
            own(&running()),
            "gone",
        ),
        (
            "replaced",
            running().uid("other").phase("Running"),
            own(&running()),
            "gone",
        ),
        (
            "extended, runs",
            extended.clone(),
            of_extended.clone(),
            "allocated protected web",
        ),
        (
            "extended, succeeded",
            extended.clone().phase("Succeeded"),
            of_extended.clone(),
            "gone",
        ),
        (
            "extended, failed",
            extended.phase("Failed"),
            of_extended,
            "gone",
        ),
        (
            "reserved for another kind",
            running().phase("Succeeded"),
            own(&running()).reserved("foo", "foo", "1"),
            "allocated protected foo",
        ),
    ];
    for (what, pod, claim, expected) in cases {
        let mut world = world().without_collector().with(pod).with(claim);
        world.run::<ResourceClaims>();
        assert_eq!(shown(&world, "c"), expected, "{what}");
    }
    // Without its pod it is the garbage collector's.
    let mut world = world().without_collector().with(own(&running()));
    world.run::<ResourceClaims>();
    assert_eq!(shown(&world, "c"), "");
}

/// A pod cache that lags shows the pod before: the claim is the new one's.
#[test]
fn a_claim_is_deleted_only_when_its_pod_is_known_to_be_gone_and_in_the_version_seen() {
    fn new_one(query: &Query) -> Option<Answer> {
        matches!(query, Query::Live { resource, .. } if resource.plural == "pods")
            .then(|| Answer::Object(Arc::new(json!({"metadata": {"uid": "uid-new"}}))))
    }
    let world = world()
        .with(web().uid("uid-old").on("n").phase("Running"))
        .with(gpus("c").made_for(&web().uid("uid-new"), "gpu"));
    let plan = world
        .clone()
        .answering(new_one)
        .plan::<ResourceClaims>("default/claim:c");
    assert!(plan.is_nothing(), "{:?}", plan.verbs());
    let plan = world.plan::<ResourceClaims>("default/claim:c");
    assert_eq!(plan.verbs(), ["delete resourceclaims/c"]);
    let action = plan.actions().next().unwrap();
    let Verb::Delete { only, .. } = &action.verb else {
        panic!("{action:?}")
    };
    assert_eq!(*only, controllers_kit::Only::ThisVersion);
    let seen = world.get::<ResourceClaim>("c");
    assert_eq!(action.resource_version, seen.metadata().resource_version);
}

#[test]
fn the_finalizer_goes_after_the_own_deallocation_at_once_and_else_after_a_minute() {
    let world = world().with(gpus("c").finalizer(FINALIZER));
    let plan = world.plan::<ResourceClaims>("default/claim:c");
    assert!(plan.is_nothing());
    assert_eq!(plan.requeue, controllers_kit::Requeue::At(at("12:01:00")));
    let factory = Factory::of::<ResourceClaims>();
    let mut end = world.clone();
    end.settle_for(59, &[factory]);
    assert_eq!(shown(&end, "c"), "protected ");
    let mut end = world.clone();
    end.settle_for(61, &[factory]);
    assert_eq!(shown(&end, "c"), "");
    // Somebody is about to allocate it: a change starts the delay again.
    let mut end = world;
    end.settle_for(40, &[factory]);
    end.change::<ResourceClaim>("c", |claim| claim.metadata_mut().set_label("a", "b"));
    end.settle_for(40, &[factory]);
    assert_eq!(shown(&end, "c"), "protected ");
}

#[test]
fn a_pod_that_was_bound_without_the_scheduler_has_its_claims_reserved() {
    let bound = || pod("web").shares("a", "c").on("n");
    let other = pod("other");
    let full = |claim: ResourceClaim| {
        (0..256).fold(claim, |claim, n| {
            claim.reserved("foo", &n.to_string(), &n.to_string())
        })
    };
    let cases: Vec<(&str, Pod, ResourceClaim, &str)> = vec![
        ("allocated", bound(), gpus("c").allocated(), "allocated web"),
        ("not allocated", bound(), gpus("c"), ""),
        (
            "not bound",
            pod("web").shares("a", "c"),
            gpus("c").allocated(),
            "allocated ",
        ),
        (
            "reserved already",
            bound(),
            gpus("c").allocated().reserved_for(&bound()),
            "allocated web",
        ),
        (
            "shared",
            bound(),
            gpus("c").allocated().reserved_for(&other),
            "allocated other,web",
        ),
        (
            "named twice",
            bound().shares("b", "c"),
            gpus("c").allocated(),
            "allocated web",
        ),
        (
            "finished",
            bound().phase("Succeeded"),
            gpus("c").allocated(),
            "allocated ",
        ),
        (
            "its own",
            web().on("n").has("gpu", "c"),
            gpus("c").made_for(&web(), "gpu").allocated(),
            "allocated web",
        ),
    ];
    for (what, pod, claim, expected) in cases {
        let mut world = world()
            .with(other.clone())
            .with(template("gpus"))
            .with(pod)
            .with(claim);
        world.run::<ResourceClaims>();
        assert_eq!(shown(&world, "c"), expected, "{what}");
    }
    let world = world().with(bound()).with(full(gpus("c").allocated()));
    let plan = world.plan::<ResourceClaims>("web");
    assert!(plan.verbs().is_empty());
    assert_eq!(
        plan.failure.as_deref(),
        Some("reserve claim default/c: it is reserved for 256 consumers, and the API allows 256")
    );
}

/// Upstream reserves it again as often as it takes the reservation away.
#[test]
fn a_claim_that_others_share_is_not_reserved_again_for_a_pod_that_has_finished() {
    let done = pod("done").shares("a", "c").on("n").phase("Succeeded");
    let user = pod("user").shares("a", "c").on("n").phase("Running");
    let claim = gpus("c").allocated().finalizer(FINALIZER);
    let mut world = world()
        .with(claim.reserved_for(&done).reserved_for(&user))
        .with(done)
        .with(user);
    world.run::<ResourceClaims>();
    assert_eq!(shown(&world, "c"), "allocated protected user");
}

/// Upstream's cases with PodGroups: the gate, what there is, the key, and what the plan does.
#[test]
fn pod_groups_have_claims_where_the_gate_is_on() {
    let series = "uid-podgroups-default-workers/gpu";
    let name = Children::of_series("workers-gpu-".to_owned(), series).name(0);
    let mut world = with_groups(world())
        .with(template("gpus"))
        .with(group("workers"))
        .with(web().of_group("workers"));
    // The pod waits for the group's.
    assert!(world.plan::<ResourceClaims>("web").is_nothing());
    let plan = world.plan::<ResourceClaims>("default/podgroup:workers");
    assert_eq!(
        plan.verbs(),
        [
            format!("create resourceclaims/{name}"),
            "patch podgroups/workers/status".to_owned()
        ]
    );
    world.run::<ResourceClaims>();
    assert_eq!(claims(&world), std::slice::from_ref(&name));
    assert_eq!(statuses(&world, "web"), [("gpu".to_owned(), name.clone())]);
    let noted = world.get::<PodGroup>("workers");
    let noted = &noted.status.as_ref().unwrap().resource_claim_statuses;
    assert_eq!(noted[0].resource_claim_name.as_deref(), Some(&*name));
    let claim = world.get::<ResourceClaim>(&name);
    let owner = claim.metadata().controller().unwrap();
    assert_eq!(
        (&*owner.api_version, &*owner.kind, &*owner.name),
        ("scheduling.k8s.io/v1alpha2", "PodGroup", "workers")
    );
    // A bound pod reserves it for the group.
    world.change::<ResourceClaim>(&name, |claim| *claim = claim.clone().allocated());
    world.change::<Pod>("web", |pod| *pod = pod.clone().on("n"));
    world.run::<ResourceClaims>();
    assert_eq!(shown(&world, &name), "allocated workers");
    let reserved = world.get::<ResourceClaim>(&name);
    let consumer = &super::facts::consumers(&reserved)[0];
    assert_eq!(
        (&*consumer.api_group, &*consumer.resource, &*consumer.uid),
        (
            "scheduling.k8s.io",
            "podgroups",
            "uid-podgroups-default-workers"
        )
    );
    // It stays as long as the group does.
    world.change::<Pod>("web", |pod| *pod = pod.clone().phase("Succeeded"));
    world.run::<ResourceClaims>();
    assert_eq!(shown(&world, &name), "allocated workers");
    world.vanish::<PodGroup>("workers");
    world.run::<ResourceClaims>();
    assert_eq!(shown(&world, &name), "allocated ");
}

#[test]
fn without_the_gate_pod_groups_are_nothing() {
    let workers = group("workers");
    let mut world = world()
        .with(template("gpus"))
        .with(workers.clone())
        .with(web().of_group("workers"))
        .with(of_group("workers-gpu-x", &workers));
    world.run::<ResourceClaims>();
    let own = first_name("web", "gpu");
    assert_eq!(claims(&world), [own.clone(), "workers-gpu-x".to_owned()]);
    assert_eq!(statuses(&world, "web"), [("gpu".to_owned(), own)]);
    assert!(
        world
            .plan::<ResourceClaims>("default/podgroup:workers")
            .is_nothing()
    );
}

#[test]
fn pods_of_a_group_that_is_not_there_wait_for_it() {
    let world = with_groups(world())
        .with(template("gpus"))
        .with(web().of_group("workers"));
    assert_eq!(
        world.refusal::<ResourceClaims>("web"),
        Refusal::Retry(
            "get PodGroup for Pod default/web: podgroup.scheduling.k8s.io \"workers\" not found"
                .to_owned()
        )
    );
    // An entry that the group does not have is the pod's own.
    let mut other = group("workers");
    other.spec.as_mut().unwrap().resource_claims[0].name = "nic".to_owned();
    let mut world = world.with(other);
    world.run::<ResourceClaims>();
    assert_eq!(
        statuses(&world, "web"),
        [("gpu".to_owned(), first_name("web", "gpu"))]
    );
}

/// Upstream's remaining cases of a PodGroup's key.
#[test]
fn claims_of_pod_groups_are_found_and_made_again() {
    let noted = |claim: &str| {
        let status = kubernetes_proto::scheduling::PodGroupResourceClaimStatus {
            name: "gpu".to_owned(),
            resource_claim_name: Some(claim.to_owned()),
        };
        PodGroup {
            status: Some(PodGroupStatus {
                resource_claim_statuses: vec![status],
            }),
            ..group("workers")
        }
    };
    let key = "default/podgroup:workers";
    let start = || with_groups(world()).with(template("gpus"));
    let its = || of_group("a", &group("workers"));
    let verbs = |world: World| world.plan::<ResourceClaims>(key).verbs().len();
    assert_eq!(verbs(start().with(noted("a")).with(its())), 0, "there");
    assert_eq!(verbs(start().with(noted("a"))), 2, "made again");
    assert_eq!(
        verbs(start().with(group("workers")).with(its())),
        1,
        "found"
    );
    assert_eq!(
        verbs(start().with(noted("a")).with(gpus("a"))),
        2,
        "another's"
    );
    assert_eq!(verbs(start()), 0, "no such group");
    assert_eq!(
        verbs(start().with(group("workers").terminating("11:00:00"))),
        0,
        "going"
    );
    let plan = with_groups(world())
        .with(group("workers"))
        .plan::<ResourceClaims>(key);
    assert_eq!(
        plan.events[0].message,
        "PodGroupResourceClaim gpu: resource claim template \"gpus\": \
         resourceclaimtemplate.resource.k8s.io \"gpus\" not found"
    );
}

#[test]
fn claims_are_counted_by_allocation_admin_access_and_source() {
    let admin = |claim: ResourceClaim| ResourceClaim {
        spec: Some(asking_for(vec![exactly(Some(false)), exactly(Some(true))])),
        ..claim
    };
    let alternatives = ResourceClaim {
        spec: Some(asking_for(vec![first_of(), exactly(None)])),
        ..gpus("c")
    };
    for (claim, expected) in [
        (gpus("c"), ["false", "false", ""]),
        (gpus("c").allocated(), ["true", "false", ""]),
        (alternatives, ["false", "false", ""]),
        (gpus("c").annotation(OF_ENTRY, ""), ["false", "false", ""]),
        (
            admin(gpus("c").annotation(OF_ENTRY, "gpu")),
            ["false", "true", "resource_claim_template"],
        ),
        (
            gpus("c")
                .annotation(OF_EXTENDED, "true")
                .annotation(OF_ENTRY, "gpu")
                .allocated(),
            ["true", "false", "extended_resource"],
        ),
        (
            gpus("c").annotation(OF_EXTENDED, "false"),
            ["false", "false", ""],
        ),
    ] {
        let plan = world()
            .with(claim)
            .plan::<ResourceClaims>("default/claim:c");
        let [one] = &plan.measures[..] else {
            panic!("{:?}", plan.measures)
        };
        assert_eq!((one.name, one.value), (CLAIMS, 1.0));
        assert_eq!(one.labels, expected.map(kubernetes_proto::Str::from));
    }
    assert!(
        world()
            .plan::<ResourceClaims>("default/claim:c")
            .measures
            .is_empty()
    );
}

fn any<T: Object>(object: T) -> Option<AnyObject> {
    Some(Arc::new(object) as AnyObject)
}

/// Upstream's cases of events.
#[test]
fn changes_wake_who_has_something_to_do() {
    let woken = |world: &World, old: Option<AnyObject>, new: Option<AnyObject>| {
        world.woken::<ResourceClaims>(old.as_ref(), new.as_ref())
    };
    let none: [&str; 0] = [];
    let named = || web().has("gpu", "c");
    let world = world()
        .with(named())
        .with(pod("two").asks("gpu", "gpus").in_namespace("shop"))
        .with(gpus("c").made_for(&named(), "gpu"));
    // Pods.
    assert_eq!(woken(&world, None, any(web())), ["default/web"]);
    assert_eq!(woken(&world, None, any(named())), none);
    assert_eq!(woken(&world, None, any(pod("web"))), none);
    assert_eq!(woken(&world, any(named()), None), ["default/claim:c"]);
    let over = named().on("n").phase("Failed");
    assert_eq!(woken(&world, any(named()), any(over)), ["default/claim:c"]);
    let unbound = named().terminating("11:00:00");
    assert_eq!(
        woken(&world, any(named()), any(unbound)),
        ["default/claim:c"]
    );
    let going = named().on("n").terminating("11:00:00");
    assert_eq!(woken(&world, any(named()), any(going)), none);
    let extended = || pod("web").extended("e").on("n");
    assert_eq!(woken(&world, None, any(extended())), none);
    for phase in ["Succeeded", "Failed"] {
        let over = any(extended().phase(phase));
        let keys = woken(&world, any(extended()), over);
        assert!(keys.contains(&"default/claim:e".to_owned()), "{keys:?}");
    }
    // One of the same name takes its place.
    let keys = woken(&world, any(named()), any(web().uid("u")));
    assert_eq!(keys, ["default/claim:c", "default/web"]);
    // Claims.
    let free = || gpus("c").made_for(&named(), "gpu");
    assert_eq!(woken(&world, None, any(free())), ["default/claim:c"]);
    assert_eq!(
        woken(&world, any(free()), any(free().allocated())),
        ["default/claim:c"]
    );
    let mut without = world.clone();
    without.vanish::<ResourceClaim>("c");
    assert_eq!(
        woken(&without, any(free()), None),
        ["default/claim:c", "default/web"]
    );
    let mut bound = world.clone();
    bound.put(named().on("n"));
    bound.put(free().allocated());
    assert_eq!(
        woken(&bound, any(free()), any(free().allocated())),
        ["default/claim:c", "default/web"]
    );
    // Templates.
    assert_eq!(woken(&world, None, any(template("gpus"))), none);
    let waiting = World::at("12:00:00")
        .with(web())
        .with(pod("two").asks("a", "gpus").in_namespace("shop"));
    assert_eq!(
        woken(&waiting, None, any(template("gpus"))),
        ["default/web"]
    );
    assert_eq!(
        woken(&waiting, None, any(template("gpus").in_namespace("shop"))),
        ["shop/two"]
    );
    assert_eq!(woken(&waiting, None, any(template("others"))), none);
    assert_eq!(woken(&waiting, any(template("gpus")), None), none);
}

/// Upstream's cases of events of PodGroups.
#[test]
fn pod_groups_wake_themselves_their_pods_and_their_claims() {
    let in_status = || {
        let mut group = group("workers");
        let status = kubernetes_proto::scheduling::PodGroupResourceClaimStatus {
            name: "gpu".to_owned(),
            resource_claim_name: Some("c".to_owned()),
        };
        group
            .status
            .get_or_insert_default()
            .resource_claim_statuses
            .push(status);
        group
    };
    let of = |name: &str, group: &str| pod(name).asks("gpu", "gpus").of_group(group);
    let start = world()
        .with(of("one", "workers"))
        .with(of("two", "workers"))
        .with(of("three", "others"))
        .with(pod("four").of_group("workers"));
    let woken = |world: &World, old: Option<AnyObject>, new: Option<AnyObject>| {
        world.woken::<ResourceClaims>(old.as_ref(), new.as_ref())
    };
    let none: [&str; 0] = [];
    assert_eq!(woken(&start, any(group("workers")), any(in_status())), none);
    let on = with_groups(start);
    let all = ["default/one", "default/podgroup:workers", "default/two"];
    assert_eq!(woken(&on, any(group("workers")), any(in_status())), all);
    let with_claim = on.clone().with(of_group("c", &group("workers")));
    assert_eq!(
        woken(&with_claim, None, any(in_status())),
        ["default/one", "default/two"],
        "the claim is there"
    );
    assert_eq!(woken(&on, any(in_status()), None), ["default/claim:c"]);
    let group_alone = with_groups(world()).with(group("workers"));
    assert_eq!(
        woken(&group_alone, None, any(of_group("c", &group("workers")))),
        ["default/claim:c", "default/podgroup:workers"]
    );
    assert_eq!(
        woken(&group_alone, None, any(template("gpus"))),
        ["default/podgroup:workers"]
    );
}

#[test]
fn a_memory_follows_the_clock_of_its_owner() {
    let json = json!({"deallocated": 7, "left_over": [5, 1000]});
    let mut memory: Memory = serde_json::from_value(json).unwrap();
    memory.shift(controllers_kit::SignedDuration::from_secs(-2));
    let json = serde_json::to_value(&memory).unwrap();
    assert_eq!(json, json!({"deallocated": 7, "left_over": [5, -1000]}));
}

#[test]
fn flags_gates_and_names_are_upstream_s() {
    let descriptor = (Factory::of::<ResourceClaims>().describe)();
    let flags = Flags::defaults([&descriptor]);
    assert_eq!(descriptor.aliases, ["resource-claim-controller"]);
    assert_eq!(descriptor.service_account, "resource-claim-controller");
    assert_eq!(
        (descriptor.event_source, descriptor.queue),
        ("resource_claim", "resource_claim")
    );
    assert_eq!(
        descriptor.workers,
        Some(("concurrent-resourceclaim-syncs", 50))
    );
    assert!(flags.bool("DRAAdminAccess") && flags.bool("DRAPrioritizedList"));
    assert!(!flags.bool(GATE));
    // Golden: another placement, or another name, is another protocol between versions.
    let key = controllers_kit::Key::within("shop", "claim", "c");
    assert_eq!(&descriptor.shard_text(&key)[..], b"shop/claim:c");
    assert_eq!(
        key.within_kind("claim"),
        Some(controllers_kit::Key::new("shop", "c"))
    );
    assert_eq!(
        (key.within_kind("podgroup"), key.within_kind("cl")),
        (None, None)
    );
    assert_eq!(first_name("web", "gpu"), "web-gpu-hkjhz");
    let bounds = [("concurrent-resourceclaim-syncs", 1, i64::from(i32::MAX))];
    assert_eq!(descriptor.bounds, bounds);
}
