//! Compiles the .proto files through protox: nobody installs protoc.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let files = [
        "meta.proto",
        "core.proto",
        "apps.proto",
        "batch.proto",
        "policy.proto",
        "autoscaling.proto",
    ];
    for file in files {
        println!("cargo:rerun-if-changed={file}");
    }
    let descriptors = protox::compile(files, ["."])?;
    prost_build::Config::new()
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
        .type_attribute(
            ".k8s.meta.Quantity",
            "#[serde(from = \"String\", into = \"String\")]",
        )
        .field_attribute(
            ".k8s.core.ResourceRequirements.requests",
            "#[serde(with = \"crate::quantity::amounts\")]",
        )
        .field_attribute(
            ".k8s.core.PodSpec.overhead",
            "#[serde(with = \"crate::quantity::amounts\")]",
        )
        .extern_path(".k8s.meta.ObjectMeta", "crate::meta::ObjectMeta")
        .extern_path(".k8s.core.PodCondition", "crate::condition::PodCondition")
        .extern_path(".k8s.meta.Entry", "crate::meta::Entry")
        .extern_path(".k8s.meta.Time", "crate::meta::Time")
        .compile_fds(descriptors)?;
    Ok(())
}
