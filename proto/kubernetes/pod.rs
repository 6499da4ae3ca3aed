//! What a pod carries beyond its metadata. Every pod of an owner says the same words, so nearly all texts are interned.

use prost::{
    DecodeError,
    bytes::{Buf, BufMut},
    encoding::{self, DecodeContext, WireType},
};

use crate::{
    core::Affinity,
    message::{Bool, Field, Int32, Int64, Many, Maybe, MaybeInt64, Text, When, Word, message},
};

message! {
    /// `core/v1.PodSpec`, as far as controllers look at pods that run.
    pub struct PodSpec {
        /// Those of claims alone where the pod was decoded to be kept.
        1 volumes: ClaimVolumes,
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
        18 affinity: Maybe<Affinity>,
        /// Init containers, sidecars among them.
        20 init_containers: Many<InitContainer>,
    }
}

message! {
    /// A volume, as far as it tells which claim it is of.
    pub struct Volume {
        /// Its name within the pod.
        1 name: Word,
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
    /// An init container, as far as it tells whether it is a sidecar: those of restartPolicy Always are.
    pub struct InitContainer {
        /// Its name.
        1 name: Word,
        /// Its own restart policy.
        24 restart_policy: Word,
    }
}

message! {
    /// `core/v1.PodStatus`.
    pub struct PodStatus {
        /// As in `Running`.
        1 phase: Word,
        /// Its conditions.
        2 conditions: Many<PodCondition>,
        /// One word.
        4 reason: Word,
        /// When the kubelet has seen it first.
        7 start_time: When,
        /// One for each container.
        8 container_statuses: Many<ContainerStatus>,
        /// One for each init container.
        10 init_container_statuses: Many<ContainerStatus>,
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

/// Volumes: those that are decoded are kept only where they are of a claim, since most are of other kinds, and every pod
/// has one.
pub struct ClaimVolumes;

impl Field for ClaimVolumes {
    type Held = Vec<Volume>;
    fn encode(tag: u32, held: &Vec<Volume>, buf: &mut impl BufMut) {
        Many::<Volume>::encode(tag, held, buf);
    }
    fn merge(
        _: u32,
        wire_type: WireType,
        held: &mut Vec<Volume>,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        let mut volume = Volume::default();
        encoding::message::merge(wire_type, &mut volume, buf, ctx)?;
        if volume
            .volume_source
            .as_ref()
            .is_some_and(|source| source.persistent_volume_claim.is_some())
        {
            held.push(volume);
        }
        Ok(())
    }
    fn len(tag: u32, held: &Vec<Volume>) -> usize {
        Many::<Volume>::len(tag, held)
    }
}

impl PodSpec {
    /// Gives back what its lists have grown beyond what they hold.
    pub(crate) fn trim(&mut self) {
        self.volumes.shrink_to_fit();
        self.init_containers.shrink_to_fit();
    }
}

impl PodStatus {
    /// Gives back what its lists have grown beyond what they hold.
    pub(crate) fn trim(&mut self) {
        self.conditions.shrink_to_fit();
        self.container_statuses.shrink_to_fit();
        self.init_container_statuses.shrink_to_fit();
    }
}
