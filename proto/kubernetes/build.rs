//! Compiles the .proto files through protox: nobody installs protoc.

use std::{error::Error, fmt::Write as _};

/// Messages of `core.proto` that are written as tables in `pod.rs`, and their names there.
const BY_HAND: [(&str, &str); 23] = [
    ("Pod", "Pod"),
    ("PodSpec", "PodSpec"),
    ("Volume", "Volume"),
    ("VolumeSource", "VolumeSource"),
    (
        "PersistentVolumeClaimVolumeSource",
        "PersistentVolumeClaimVolumeSource",
    ),
    ("VolumeMount", "VolumeMount"),
    ("EphemeralContainer", "EphemeralContainer"),
    ("EphemeralContainerCommon", "EphemeralContainerCommon"),
    ("InitContainer", "InitContainer"),
    ("PodStatus", "PodStatus"),
    ("PodCondition", "PodCondition"),
    ("ContainerStatus", "ContainerStatus"),
    ("ContainerState", "ContainerState"),
    ("ContainerStateTerminated", "ContainerStateTerminated"),
    ("Container", "Container"),
    ("ContainerPort", "ContainerPort"),
    ("PodIP", "PodIp"),
    (
        "PodExtendedResourceClaimStatus",
        "PodExtendedResourceClaimStatus",
    ),
    ("PodResourceClaim", "PodResourceClaim"),
    ("PodResourceClaimStatus", "PodResourceClaimStatus"),
    ("PodSchedulingGroup", "PodSchedulingGroup"),
    ("ResourceRequirements", "ResourceRequirements"),
    ("Amount", "Amount"),
];

/// As descriptors number the types of fields.
const TYPE_STRING: i32 = 9;
const TYPE_MESSAGE: i32 = 11;

fn main() -> Result<(), Box<dyn Error>> {
    let files = [
        "meta.proto",
        "admissionregistration.proto",
        "core.proto",
        "apps.proto",
        "batch.proto",
        "discovery.proto",
        "policy.proto",
        "autoscaling.proto",
        "resource.proto",
        "certificates.proto",
        "rbac.proto",
        "coordination.proto",
        "networking.proto",
        "scheduling.proto",
        "storage.proto",
        "apiserverinternal.proto",
        "storagemigration.proto",
    ];
    for file in files {
        println!("cargo:rerun-if-changed={file}");
    }
    let descriptors = protox::compile(files, ["."])?;
    // The string fields, and the messages that may contain some: for texts that are not UTF-8 (lossy.rs).
    let mut table = String::from("&[");
    macro_rules! tables {
        ($messages:expr, $prefix:expr) => {
            for message in $messages {
                let name = format!("{}.{}", $prefix, message.name());
                write!(table, "({name:?}, &[")?;
                for field in &message.field {
                    match field.r#type {
                        Some(TYPE_STRING) => write!(table, "({}, \"\"),", field.number())?,
                        Some(TYPE_MESSAGE) => {
                            write!(table, "({}, {:?}),", field.number(), field.type_name())?;
                        }
                        _ => {}
                    }
                }
                table.push_str("]),\n");
            }
        };
    }
    for file in &descriptors.file {
        let package = format!(".{}", file.package());
        tables!(&file.message_type, package);
        for message in &file.message_type {
            // Entries of maps.
            tables!(
                &message.nested_type,
                format!("{package}.{}", message.name())
            );
        }
    }
    table.push(']');
    std::fs::write(
        std::path::Path::new(&std::env::var("OUT_DIR")?).join("texts.rs"),
        table,
    )?;
    let mut config = prost_build::Config::new();
    for (message, name) in BY_HAND {
        config.extern_path(
            format!(".k8s.core.{message}"),
            format!("crate::pod::{name}"),
        );
    }
    config.extern_path(".k8s.core.Secret", "crate::secret::Secret");
    config
        .btree_map(["."])
        .type_attribute(".", "#[allow(missing_docs)]")
        .type_attribute(".", "#[derive(serde::Serialize, serde::Deserialize)]")
        .type_attribute(".", "#[serde(rename_all = \"camelCase\", default, deny_unknown_fields)]")
        .field_attribute(".", "#[serde(skip_serializing_if = \"crate::is_default\")]")
        .field_attribute(
            ".k8s.meta.LabelSelector.matchLabels",
            "#[serde(with = \"crate::meta::entries\")]",
        )
        .field_attribute(
            ".k8s.core.ReplicationControllerSpec.selector",
            "#[serde(with = \"crate::meta::entries\")]",
        )
        .field_attribute(
            ".k8s.core.ServiceSpec.selector",
            "#[serde(with = \"crate::meta::entries\")]",
        )
        .field_attribute(
            ".k8s.discovery.Endpoint.deprecatedTopology",
            "#[serde(with = \"crate::meta::entries\")]",
        )
        .field_attribute(
            ".k8s.core.ServiceSpec.clusterIP",
            "#[serde(rename = \"clusterIP\")]",
        )
        .field_attribute(
            ".k8s.core.ServiceSpec.externalIPs",
            "#[serde(rename = \"externalIPs\")]",
        )
        .field_attribute(
            ".k8s.core.ServiceSpec.loadBalancerIP",
            "#[serde(rename = \"loadBalancerIP\")]",
        )
        .field_attribute(
            ".k8s.core.SessionAffinityConfig.clientIP",
            "#[serde(rename = \"clientIP\")]",
        )
        .field_attribute(
            ".k8s.core.NodeSpec.providerID",
            "#[serde(rename = \"providerID\")]",
        )
        .field_attribute(
            ".k8s.core.NodeSpec.podCIDR",
            "#[serde(rename = \"podCIDR\")]",
        )
        .field_attribute(
            ".k8s.core.NodeSpec.podCIDRs",
            "#[serde(rename = \"podCIDRs\")]",
        )
        .field_attribute(
            ".k8s.core.AWSElasticBlockStoreVolumeSource.volumeID",
            "#[serde(rename = \"volumeID\")]",
        )
        .field_attribute(
            ".k8s.core.CinderVolumeSource.volumeID",
            "#[serde(rename = \"volumeID\")]",
        )
        .field_attribute(
            ".k8s.core.CinderPersistentVolumeSource.volumeID",
            "#[serde(rename = \"volumeID\")]",
        )
        .field_attribute(
            ".k8s.core.PortworxVolumeSource.volumeID",
            "#[serde(rename = \"volumeID\")]",
        )
        .field_attribute(
            ".k8s.core.AzureDiskVolumeSource.diskURI",
            "#[serde(rename = \"diskURI\")]",
        )
        .field_attribute(
            ".k8s.core.VsphereVirtualDiskVolumeSource.storagePolicyID",
            "#[serde(rename = \"storagePolicyID\")]",
        )
        .field_attribute(
            ".k8s.core.FCVolumeSource.targetWWNs",
            "#[serde(rename = \"targetWWNs\")]",
        )
        .field_attribute(
            ".k8s.storage.CSINodeDriver.nodeID",
            "#[serde(rename = \"nodeID\")]",
        )
        .field_attribute(
            ".k8s.apiserverinternal.ServerStorageVersion.apiServerID",
            "#[serde(rename = \"apiServerID\")]",
        )
        .field_attribute(
            ".k8s.resource.DeviceRequestAllocationResult.shareID",
            "#[serde(rename = \"shareID\")]",
        )
        .field_attribute(
            ".k8s.resource.ResourceClaimTemplateSpec.spec",
            "#[serde(with = \"crate::opaque\")]",
        )
        .field_attribute(
            ".k8s.core.NodeStatus.allocatable",
            "#[serde(with = \"crate::quantity::amounts\")]",
        )
        .field_attribute(
            ".k8s.core.ResourceQuotaSpec.hard",
            "#[serde(with = \"crate::quantity::amounts\")]",
        )
        .field_attribute(
            ".k8s.core.ResourceQuotaStatus.hard",
            "#[serde(with = \"crate::quantity::amounts\")]",
        )
        .field_attribute(
            ".k8s.core.ResourceQuotaStatus.used",
            "#[serde(with = \"crate::quantity::amounts\")]",
        )
        .field_attribute(
            ".k8s.core.VolumeResourceRequirements.requests",
            "#[serde(with = \"crate::quantity::amounts\")]",
        )
        .field_attribute(
            ".k8s.core.PersistentVolumeClaimStatus.capacity",
            "#[serde(with = \"crate::quantity::amounts\")]",
        )
        .field_attribute(
            ".k8s.core.PersistentVolumeSpec.capacity",
            "#[serde(with = \"crate::quantity::amounts\")]",
        )
        .field_attribute(
            ".k8s.core.PersistentVolumeClaimStatus.allocatedResources",
            "#[serde(with = \"crate::quantity::amounts\")]",
        )
        .field_attribute(
            ".k8s.certificates.CertificateSigningRequestSpec.request",
            "#[serde(with = \"crate::confidential::base64\")]",
        )
        .field_attribute(
            ".k8s.certificates.CertificateSigningRequestStatus.certificate",
            "#[serde(with = \"crate::confidential::base64\")]",
        )
        .type_attribute(".k8s.certificates.ExtraValue", "#[serde(transparent)]")
        .field_attribute(
            ".k8s.rbac.PolicyRule.nonResourceURLs",
            "#[serde(rename = \"nonResourceURLs\")]",
        )
        // Few pods have them, and every pod would keep room for them.
        .boxed(".k8s.core.Affinity.podAffinity")
        .boxed(".k8s.core.Affinity.podAntiAffinity")
        // A volume has one of them, and would keep room for all.
        .boxed(".k8s.core.PersistentVolumeSource.gcePersistentDisk")
        .boxed(".k8s.core.PersistentVolumeSource.awsElasticBlockStore")
        .boxed(".k8s.core.PersistentVolumeSource.hostPath")
        .boxed(".k8s.core.PersistentVolumeSource.nfs")
        .boxed(".k8s.core.PersistentVolumeSource.iscsi")
        .boxed(".k8s.core.PersistentVolumeSource.cinder")
        .boxed(".k8s.core.PersistentVolumeSource.fc")
        .boxed(".k8s.core.PersistentVolumeSource.flexVolume")
        .boxed(".k8s.core.PersistentVolumeSource.azureFile")
        .boxed(".k8s.core.PersistentVolumeSource.vsphereVolume")
        .boxed(".k8s.core.PersistentVolumeSource.azureDisk")
        .boxed(".k8s.core.PersistentVolumeSource.portworxVolume")
        .boxed(".k8s.core.PersistentVolumeSource.local")
        .boxed(".k8s.core.PersistentVolumeSource.csi")
        .boxed(".k8s.core.PersistentVolumeClaimSpec.selector")
        .boxed(".k8s.storage.VolumeAttachmentSource.inlineVolumeSpec")
        .field_attribute(
            ".k8s.core.PodTemplateSpec.spec",
            "#[serde(with = \"crate::opaque\")]",
        )
        .field_attribute(
            ".k8s.core.PersistentVolumeClaimTemplate.spec",
            "#[serde(with = \"crate::opaque\")]",
        )
        .type_attribute(
            ".k8s.meta.IntOrString",
            "#[serde(from = \"crate::int_or_string::Either\", into = \"crate::int_or_string::Either\")]",
        )
        .extern_path(".k8s.meta.ObjectMeta", "crate::meta::ObjectMeta")
        .extern_path(".k8s.meta.Quantity", "crate::quantity::Quantity")
        .extern_path(".k8s.meta.Entry", "crate::meta::Entry")
        .extern_path(".k8s.meta.Time", "crate::meta::Time")
        .compile_fds(descriptors)?;
    Ok(())
}
