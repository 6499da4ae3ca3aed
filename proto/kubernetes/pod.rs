//! What a pod carries beyond its metadata. Every pod of an owner says the same words, so nearly all texts are
//! interned.

use prost::{
    DecodeError,
    bytes::{Buf, BufMut},
    encoding::{DecodeContext, WireType},
};

use crate::{
    core::{Affinity, Toleration},
    message::{
        Bool, Field, Int32, Int64, Many, Maybe, MaybeInt64, Part, Text, When, Word, message,
    },
    meta::{ObjectMeta, Quantity},
    wire::Shared,
};

message! {
    /// `core/v1.Pod`.
    pub struct Pod {
        /// Its metadata.
        1 metadata: Maybe<ObjectMeta>,
        /// What is wanted of it.
        2 spec: Maybe<PodSpec>,
        /// What has become of it.
        3 status: Maybe<PodStatus>,
    }
}

message! {
    /// `core/v1.PodSpec`, reduced to what controllers read of running pods.
    pub struct PodSpec {
        /// Those of claims: most are of other kinds, and every pod has one.
        1 volumes: Kept<Volume>,
        /// Its containers.
        2 containers: Many<Container>,
        /// For how long it may run.
        5 active_deadline_seconds: MaybeInt64,
        /// Whose identity it has.
        8 service_account_name: Word,
        /// Where it was bound to; empty before.
        10 node_name: Word,
        /// Its own host name.
        16 hostname: Text,
        /// The headless Service that its host name lies under.
        17 subdomain: Word,
        /// Where it may run.
        18 affinity: Maybe<Shared<Affinity>>,
        /// Init containers, sidecars among them.
        20 init_containers: Many<InitContainer>,
        /// The taints with effect `NoExecute` that it bears; its other tolerations are never read.
        22 tolerations: Kept<Shared<Toleration>>,
        /// The class of its priority.
        24 priority_class_name: Word,
        /// What the pod takes beyond its containers.
        #[serde(with = "crate::quantity::amounts")]
        32 overhead: Many<Amount>,
        /// What the pod asks for as a whole.
        40 resources: Maybe<Shared<ResourceRequirements>>,
    }
}

message! {
    /// A volume, as far as it tells which claim it is of.
    pub struct Volume {
        /// Its name within the pod. Not interned: most are made up for one pod, and not kept.
        1 name: Text,
        /// What it is made from.
        2 volume_source: Maybe<VolumeSource>,
    }
}

message! {
    /// What a volume is made from: a claim, or something that is not looked at.
    pub struct VolumeSource {
        /// The claim.
        10 persistent_volume_claim: Maybe<PersistentVolumeClaimVolumeSource>,
    }
}

message! {
    /// The claim of a volume.
    pub struct PersistentVolumeClaimVolumeSource {
        /// Its name, in the pod's namespace.
        1 claim_name: Text,
        /// Whether it is mounted for reading alone.
        2 read_only: Bool,
    }
}

message! {
    /// A container, as far as it tells what it asks for, and Services find its ports by name.
    pub struct Container {
        /// Its name.
        1 name: Word,
        /// Its named ports.
        6 ports: Kept<Shared<ContainerPort>>,
        /// What it asks for.
        8 resources: Maybe<Shared<ResourceRequirements>>,
    }
}

message! {
    /// What a container asks for.
    pub struct ResourceRequirements {
        /// What it may not exceed.
        #[serde(with = "crate::quantity::amounts")]
        1 limits: Many<Amount>,
        /// What is set aside for it.
        #[serde(with = "crate::quantity::amounts")]
        2 requests: Many<Amount>,
    }
}

message! {
    /// An entry of a `map<string, Quantity>`; as a list it takes a fifth of a map's memory.
    pub struct Amount {
        /// Of what, as in `cpu`.
        1 key: Word,
        /// How much.
        2 value: Maybe<Quantity>,
    }
}

message! {
    /// A container's port.
    pub struct ContainerPort {
        /// What Services call it.
        1 name: Word,
        /// The number.
        3 container_port: Int32,
        /// As in `TCP`.
        4 protocol: Word,
    }
}

message! {
    /// An init container, as far as it tells what it asks for, whether it is a sidecar (those of
    /// restartPolicy Always are), and its ports.
    pub struct InitContainer {
        /// Its name.
        1 name: Word,
        /// Its named ports.
        6 ports: Kept<Shared<ContainerPort>>,
        /// What it asks for.
        8 resources: Maybe<Shared<ResourceRequirements>>,
        /// Its own restart policy.
        24 restart_policy: Word,
    }
}

message! {
    /// `core/v1.PodStatus`.
    pub struct PodStatus {
        /// As in `Running`.
        1 phase: Word,
        /// Its conditions: pods that are made together say the same in the same second.
        2 conditions: Many<Shared<PodCondition>>,
        /// One word.
        4 reason: Word,
        /// When the kubelet has seen it first.
        7 start_time: When,
        /// One for each container.
        8 container_statuses: Many<ContainerStatus>,
        /// As in `BestEffort`.
        #[serde(rename = "qosClass")]
        9 qos_class: Word,
        /// One for each init container.
        10 init_container_statuses: Many<ContainerStatus>,
        /// Its addresses, the primary one first.
        #[serde(rename = "podIPs")]
        12 pod_ips: Many<PodIp>,
        /// The generation that it was set for.
        17 observed_generation: Int64,
        /// The claim that was made for its extended resources.
        18 extended_resource_claim_status: Maybe<Shared<PodExtendedResourceClaimStatus>>,
    }
}

message! {
    /// The claim that was made for a pod's extended resources.
    pub struct PodExtendedResourceClaimStatus {
        /// Its name, in the pod's namespace.
        2 resource_claim_name: Text,
    }
}

message! {
    /// One of a pod's addresses.
    pub struct PodIp {
        /// The address.
        1 ip: Text,
    }
}

message! {
    /// `core/v1.PodCondition`.
    pub struct PodCondition {
        /// As in `Ready`.
        1 r#type: Word,
        /// `True`, `False` or `Unknown`.
        2 status: Word,
        /// When it was last probed.
        3 last_probe_time: When,
        /// When its status last changed.
        4 last_transition_time: When,
        /// One word.
        5 reason: Word,
        /// For people.
        6 message: Text,
        /// The pod's generation that it was set for; 0 for none.
        7 observed_generation: Int64,
    }
}

message! {
    /// `core/v1.ContainerStatus`.
    pub struct ContainerStatus {
        /// The container's name.
        1 name: Word,
        /// What it is doing.
        2 state: Maybe<ContainerState>,
        /// Whether it passes its readiness probe.
        4 ready: Bool,
        /// How often it was started again.
        5 restart_count: Int32,
        /// What the kubelet has set aside for it.
        #[serde(with = "crate::quantity::amounts")]
        10 allocated_resources: Many<Amount>,
        /// What it runs with.
        11 resources: Maybe<Shared<ResourceRequirements>>,
    }
}

message! {
    /// What a container is doing, where it has ended.
    pub struct ContainerState {
        /// How it ended.
        3 terminated: Maybe<ContainerStateTerminated>,
    }
}

message! {
    /// How a container ended.
    pub struct ContainerStateTerminated {
        /// 0 for success.
        1 exit_code: Int32,
        /// When.
        6 finished_at: When,
    }
}

/// An element of a list that is worth keeping or not.
pub trait Keep {
    /// Whether anybody asks for it.
    fn is_kept(&self) -> bool;
}

impl Keep for Volume {
    fn is_kept(&self) -> bool {
        self.volume_source
            .as_ref()
            .is_some_and(|source| source.persistent_volume_claim.is_some())
    }
}

impl Keep for Toleration {
    fn is_kept(&self) -> bool {
        matches!(self.effect.as_str(), "" | "NoExecute")
    }
}

impl Keep for ContainerPort {
    fn is_kept(&self) -> bool {
        !self.name.is_empty()
    }
}

/// Repeated messages of which only those that are asked for are kept while they are decoded.
pub struct Kept<P>(std::marker::PhantomData<P>);

impl<P: Part<Message: Keep>> Field for Kept<P> {
    type Held = Vec<P>;
    fn encode(tag: u32, held: &Vec<P>, buf: &mut impl BufMut) {
        Many::<P>::encode(tag, held, buf);
    }
    fn merge(
        _: u32,
        wire_type: WireType,
        held: &mut Vec<P>,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        let mut part = None;
        P::merge(&mut part, wire_type, buf, ctx)?;
        if let Some(part) = part.filter(|part: &P| part.message().is_kept()) {
            held.reserve_exact(1);
            held.push(part);
        }
        Ok(())
    }
    fn len(tag: u32, held: &Vec<P>) -> usize {
        Many::<P>::len(tag, held)
    }
}
