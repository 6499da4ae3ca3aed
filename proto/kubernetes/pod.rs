//! What a pod carries beyond its metadata. Every pod of an owner says the same words, so nearly all texts are
//! interned.

use prost::{
    DecodeError,
    bytes::{Buf, BufMut},
    encoding::{DecodeContext, WireType},
};

use crate::{
    core::{
        Affinity, AwsElasticBlockStoreVolumeSource, AzureDiskVolumeSource, AzureFileVolumeSource,
        CinderVolumeSource, ContainerStateWaiting, CsiVolumeSource, EphemeralVolumeSource,
        FcVolumeSource, FlexVolumeSource, GcePersistentDiskVolumeSource, HostPathVolumeSource,
        IscsiVolumeSource, NfsVolumeSource, PodSecurityContext, PortworxVolumeSource,
        SecurityContext, Toleration, VsphereVirtualDiskVolumeSource,
    },
    message::{
        Bool, Few, Field, Filled, Int32, Int64, Many, Maybe, MaybeInt64, Part, Text, When, Word,
        message,
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
        /// Volumes of claims and of storage: most are of other kinds, and every pod has one.
        1 volumes: Kept<Volume>,
        /// Its containers.
        2 containers: Many<Container>,
        /// For how long it may run.
        5 active_deadline_seconds: MaybeInt64,
        /// Whose identity it has.
        8 service_account_name: Word,
        /// Where it was bound to; empty before.
        10 node_name: Word,
        /// The SELinux labels of its containers.
        14 security_context: Filled<PodSecurityContext>,
        /// Its own host name.
        16 hostname: Text,
        /// The headless Service of its host name.
        17 subdomain: Word,
        /// Where it may run.
        18 affinity: Maybe<Shared<Affinity>>,
        /// Init containers, sidecars among them.
        20 init_containers: Many<InitContainer>,
        /// Its tolerations for effect `NoExecute`; others are never read.
        22 tolerations: Kept<Shared<Toleration>>,
        /// The class of its priority.
        24 priority_class_name: Word,
        /// What the pod takes beyond its containers.
        #[serde(with = "crate::quantity::amounts")]
        32 overhead: Many<Amount>,
        /// Its ephemeral containers.
        34 ephemeral_containers: Few<EphemeralContainer>,
        /// The claims to devices that its containers may use.
        39 resource_claims: Few<Shared<PodResourceClaim>>,
        /// What the pod asks for as a whole.
        40 resources: Maybe<Shared<ResourceRequirements>>,
        /// The group that it is scheduled with.
        43 scheduling_group: Maybe<Shared<PodSchedulingGroup>>,
    }
}

message! {
    /// A volume, reduced to its claim or storage.
    pub struct Volume {
        /// Its name within the pod. Not interned: most are generated for one pod, and not kept.
        1 name: Text,
        /// What it is made from.
        2 volume_source: Maybe<VolumeSource>,
    }
}

/// A volume's source: a claim, storage that the pod itself names, or something that is not read.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "serde_json::Value", into = "serde_json::Value")]
pub struct VolumeSource {
    /// The claim.
    pub persistent_volume_claim: Option<PersistentVolumeClaimVolumeSource>,
    /// Any other source: few pods have one, so the claims of the others reserve no room for it.
    pub inline: Option<Box<InlineVolumeSource>>,
}

impl prost::Message for VolumeSource {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        Maybe::encode(CLAIM, &self.persistent_volume_claim, buf);
        if let Some(inline) = &self.inline {
            inline.encode_raw(buf);
        }
    }
    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        if tag == CLAIM {
            return Maybe::merge(tag, wire_type, &mut self.persistent_volume_claim, buf, ctx);
        }
        let mut inline = self.inline.take().map(|inline| *inline).unwrap_or_default();
        inline.merge_field(tag, wire_type, buf, ctx)?;
        self.inline = (inline != InlineVolumeSource::default()).then(|| Box::new(inline));
        Ok(())
    }
    fn encoded_len(&self) -> usize {
        let inline = self.inline.as_ref();
        Maybe::len(CLAIM, &self.persistent_volume_claim)
            + inline.map_or(0, |inline| inline.encoded_len())
    }
    fn clear(&mut self) {
        *self = Self::default();
    }
}

/// The field number of the claim among a volume's sources.
pub(crate) const CLAIM: u32 = 10;

impl From<VolumeSource> for serde_json::Value {
    fn from(source: VolumeSource) -> Self {
        // Strings and integers alone: nothing that JSON lacks.
        let mut json = serde_json::to_value(source.inline.unwrap_or_default()).unwrap_or_default();
        if let (Some(claim), Self::Object(fields)) = (source.persistent_volume_claim, &mut json) {
            let claim = serde_json::to_value(claim).unwrap_or_default();
            fields.insert("persistentVolumeClaim".to_owned(), claim);
        }
        json
    }
}

impl TryFrom<serde_json::Value> for VolumeSource {
    type Error = serde_json::Error;
    fn try_from(mut json: serde_json::Value) -> Result<Self, serde_json::Error> {
        let claim = match &mut json {
            serde_json::Value::Object(fields) => fields.remove("persistentVolumeClaim"),
            _ => None,
        };
        let inline: InlineVolumeSource = serde_json::from_value(json)?;
        Ok(Self {
            persistent_volume_claim: claim.map(serde_json::from_value).transpose()?,
            inline: (inline != InlineVolumeSource::default()).then(|| Box::new(inline)),
        })
    }
}

message! {
    /// Storage that a pod names in-line. The pods of one owner name the same.
    pub struct InlineVolumeSource {
        /// A path of the node.
        1 host_path: Maybe<Shared<HostPathVolumeSource>>,
        /// A disk of GCE.
        3 gce_persistent_disk: Maybe<Shared<GcePersistentDiskVolumeSource>>,
        /// A volume of AWS EBS.
        4 aws_elastic_block_store: Maybe<Shared<AwsElasticBlockStoreVolumeSource>>,
        /// An export of NFS.
        7 nfs: Maybe<Shared<NfsVolumeSource>>,
        /// A logical unit of iSCSI.
        8 iscsi: Maybe<Shared<IscsiVolumeSource>>,
        /// A volume of a FlexVolume driver.
        12 flex_volume: Maybe<Shared<FlexVolumeSource>>,
        /// A volume of OpenStack Cinder.
        13 cinder: Maybe<Shared<CinderVolumeSource>>,
        /// A logical unit of Fibre Channel.
        17 fc: Maybe<Shared<FcVolumeSource>>,
        /// A share of Azure Files.
        18 azure_file: Maybe<Shared<AzureFileVolumeSource>>,
        /// A disk of vSphere.
        20 vsphere_volume: Maybe<Shared<VsphereVirtualDiskVolumeSource>>,
        /// A disk of Azure.
        22 azure_disk: Maybe<Shared<AzureDiskVolumeSource>>,
        /// A volume of Portworx.
        24 portworx_volume: Maybe<Shared<PortworxVolumeSource>>,
        /// An ephemeral volume of a CSI driver.
        28 csi: Maybe<Shared<CsiVolumeSource>>,
        /// A claim that is made for the pod.
        29 ephemeral: Maybe<Shared<EphemeralVolumeSource>>,
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
    /// A container, reduced to its requests, the ports that Services find by name, and the volumes that it
    /// mounts with their SELinux labels.
    pub struct Container {
        /// Its name.
        1 name: Word,
        /// Its named ports.
        6 ports: Kept<Shared<ContainerPort>>,
        /// What it asks for.
        8 resources: Maybe<Shared<ResourceRequirements>>,
        /// Its mounts of the volumes that are held.
        9 volume_mounts: Few<VolumeMount>,
        /// Its SELinux labels.
        15 security_context: Filled<SecurityContext>,
    }
}

message! {
    /// A mount, reduced to the volume's name.
    pub struct VolumeMount {
        /// The volume's name.
        1 name: Text,
    }
}

message! {
    /// An ephemeral container of a pod.
    pub struct EphemeralContainer {
        /// What it has in common with other containers.
        1 ephemeral_container_common: Maybe<EphemeralContainerCommon>,
    }
}

message! {
    /// The fields that an ephemeral container has in common with others.
    pub struct EphemeralContainerCommon {
        /// Its name.
        1 name: Word,
        /// Its mounts of the volumes that are held.
        9 volume_mounts: Few<VolumeMount>,
        /// Its SELinux labels.
        15 security_context: Filled<SecurityContext>,
    }
}

impl PodSpec {
    /// Drops mounts of volumes that are not held: nobody asks which containers mount these.
    pub(crate) fn forget_mounts(&mut self) {
        let volumes = &self.volumes;
        let forget = |mounts: &mut Option<Box<Vec<VolumeMount>>>| {
            if let Some(list) = mounts {
                list.retain(|mount| volumes.iter().any(|volume| volume.name == mount.name));
                list.shrink_to_fit();
                if list.is_empty() {
                    *mounts = None;
                }
            }
        };
        for container in &mut self.containers {
            forget(&mut container.volume_mounts);
        }
        for container in &mut self.init_containers {
            forget(&mut container.volume_mounts);
        }
        for container in self
            .ephemeral_containers
            .iter_mut()
            .flat_map(|all| &mut **all)
        {
            if let Some(common) = &mut container.ephemeral_container_common {
                forget(&mut common.volume_mounts);
            }
        }
        if volumes.is_empty() {
            self.ephemeral_containers = None;
        }
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
    /// An init container, reduced to its requests, whether it is a sidecar (those of restartPolicy Always
    /// are), and its ports.
    pub struct InitContainer {
        /// Its name.
        1 name: Word,
        /// Its named ports.
        6 ports: Kept<Shared<ContainerPort>>,
        /// What it asks for.
        8 resources: Maybe<Shared<ResourceRequirements>>,
        /// Its mounts of the volumes that are held.
        9 volume_mounts: Few<VolumeMount>,
        /// Its SELinux labels.
        15 security_context: Filled<SecurityContext>,
        /// Its own restart policy.
        24 restart_policy: Word,
    }
}

message! {
    /// `core/v1.PodStatus`.
    pub struct PodStatus {
        /// As in `Running`.
        1 phase: Word,
        /// Its conditions: pods that are created together have equal ones in the same second.
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
        /// One for each ephemeral container.
        13 ephemeral_container_statuses: Few<ContainerStatus>,
        /// The claims that were created for it from templates.
        15 resource_claim_statuses: Few<PodResourceClaimStatus>,
        /// The generation that it was set for.
        17 observed_generation: Int64,
        /// The claim that was created for its extended resources.
        18 extended_resource_claim_status: Maybe<Shared<PodExtendedResourceClaimStatus>>,
    }
}

message! {
    /// An entry of a pod's claims to devices: a claim of the pod's namespace, or a template that one is
    /// created from. The API refuses empty names; an empty one here is an absent one.
    pub struct PodResourceClaim {
        /// What its containers call it.
        1 name: Word,
        /// A claim that somebody else makes.
        3 resource_claim_name: Word,
        /// The template of the claim that is created for the pod.
        4 resource_claim_template_name: Word,
    }
}

message! {
    /// The claim that was made for such an entry.
    pub struct PodResourceClaimStatus {
        /// The entry's name.
        1 name: Word,
        /// The claim's name; empty where the entry needs none.
        2 resource_claim_name: Text,
    }
}

message! {
    /// The group that a pod is scheduled with.
    pub struct PodSchedulingGroup {
        /// Its name, in the pod's namespace.
        1 pod_group_name: Word,
    }
}

message! {
    /// The claim that was created for a pod's extended resources.
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
    /// The state of a container that does not run.
    pub struct ContainerState {
        /// That it waits to be started.
        1 waiting: Maybe<ContainerStateWaiting>,
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

/// An element of a list that decides whether it is kept.
pub trait Keep {
    /// Whether anybody asks for it.
    fn is_kept(&self) -> bool;
}

impl Keep for Volume {
    fn is_kept(&self) -> bool {
        self.volume_source
            .as_ref()
            .is_some_and(|source| *source != VolumeSource::default())
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

/// Repeated messages of which only relevant ones are kept while they are decoded.
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
