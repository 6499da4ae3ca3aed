use kubernetes_proto::core::{InlineVolumeSource, PersistentVolume};
use serde_json::{Value, json};

use super::{MIGRATED, driver_of, in_line, persistent_volume, plugin_of};

/// A PersistentVolume from the API's JSON, where the source is inlined beside the other fields.
fn pv(metadata: &Value, spec: &Value) -> PersistentVolume {
    let (mut source, mut rest) = (json!({}), json!({}));
    for (name, value) in spec.as_object().unwrap() {
        let beside = matches!(name.as_str(), "accessModes" | "claimRef");
        let part = if beside { &mut rest } else { &mut source };
        part[name] = value.clone();
    }
    rest["persistentVolumeSource"] = source;
    serde_json::from_value(json!({ "metadata": metadata, "spec": rest })).unwrap()
}

#[test]
fn each_migrated_plugin_has_one_driver_and_back() {
    for (plugin, driver) in MIGRATED {
        assert_eq!(driver_of(plugin), Some(driver));
        assert_eq!(plugin_of(driver), Some(plugin));
    }
    assert_eq!(driver_of("kubernetes.io/nfs"), None);
    assert_eq!(plugin_of("csi.example.com"), None);
}

#[test]
fn a_volume_is_named_as_upstreams_library_names_it() {
    let zone = "topology.kubernetes.io/zone";
    let beta = "failure-domain.beta.kubernetes.io/zone";
    let gce = json!({"gcePersistentDisk": {"pdName": "d"}});
    let gce_handle = |place: &str| format!("projects/UNSPECIFIED/{place}/disks/d");
    let file = |more: Value| {
        let mut spec = json!({"azureFile": {"secretName": "azure-storage-account-acc-secret", "shareName": "s"}});
        let from = more.as_object().unwrap().clone();
        let into = spec["azureFile"].as_object_mut().unwrap();
        into.extend(from);
        spec
    };
    let cases = [
        (
            json!({}),
            json!({"awsElasticBlockStore": {"volumeID": "vol-1"}}),
            Ok("vol-1".to_owned()),
        ),
        (
            json!({}),
            json!({"awsElasticBlockStore": {"volumeID": "aws:///vol-1"}}),
            Ok("vol-1".to_owned()),
        ),
        (
            json!({}),
            json!({"awsElasticBlockStore": {"volumeID": "aws://us-east-1/vol-1"}}),
            Ok("vol-1".to_owned()),
        ),
        (
            json!({}),
            json!({"awsElasticBlockStore": {"volumeID": "aws://us-east-1/snap-1"}}),
            Err("Invalid format for AWS volume"),
        ),
        (
            json!({}),
            json!({"awsElasticBlockStore": {"volumeID": "aws://us/vol-1/x"}}),
            Err("Invalid format for AWS volume"),
        ),
        (json!({}), gce.clone(), Ok(gce_handle("zones/UNSPECIFIED"))),
        (
            json!({"labels": {zone: "us-b1-a"}}),
            gce.clone(),
            Ok(gce_handle("zones/us-b1-a")),
        ),
        (
            json!({"labels": {beta: "us-b1-b", zone: "us-b1-a"}}),
            gce.clone(),
            Ok(gce_handle("zones/us-b1-b")),
        ),
        (
            json!({"labels": {zone: "us-b1-a__us-b1-b"}}),
            gce.clone(),
            Ok(gce_handle("regions/us-b1")),
        ),
        (
            json!({"labels": {zone: "us-b1-a__us-b2-b"}}),
            gce.clone(),
            Err("multiple or no regions"),
        ),
        (
            json!({"labels": {zone: "a__b"}}),
            gce,
            Err("zone in unexpected format"),
        ),
        (
            json!({}),
            json!({"azureDisk": {"diskURI": "/s/d", "kind": "managed"}}),
            Ok("/s/d".to_owned()),
        ),
        (
            json!({}),
            json!({"azureDisk": {"diskURI": "/s/d", "kind": "Dedicated"}}),
            Err("kind(Dedicated) is not supported"),
        ),
        (
            json!({}),
            file(json!({"secretNamespace": "n"})),
            Ok("#acc#s#v#n".to_owned()),
        ),
        (
            json!({}),
            file(json!({"secretName": "mine", "secretNamespace": "n"})),
            Ok("#mine#s#v#n".to_owned()),
        ),
        (
            json!({}),
            file(json!({})),
            Err("could not find a secret namespace"),
        ),
        (
            json!({"annotations": {"kubernetes.io/azure-file-resource-group": "rg"}}),
            file(json!({"secretNamespace": "n"})),
            Ok("rg#acc#s#v#n".to_owned()),
        ),
        (
            json!({}),
            json!({"cinder": {"volumeID": "c"}}),
            Ok("c".to_owned()),
        ),
        (
            json!({}),
            json!({"vsphereVolume": {"volumePath": "[ds] v.vmdk"}}),
            Ok("[ds] v.vmdk".to_owned()),
        ),
        (
            json!({}),
            json!({"portworxVolume": {"volumeID": "p"}}),
            Ok("p".to_owned()),
        ),
    ];
    for (mut metadata, spec, wanted) in cases {
        metadata["name"] = "v".into();
        let found = persistent_volume(&pv(&metadata, &spec)).unwrap();
        match (found, wanted) {
            (Ok(found), Ok(handle)) => assert_eq!(found.handle, handle, "{metadata} {spec}"),
            (Err(why), Err(part)) => assert!(why.contains(part), "{why}"),
            (found, wanted) => panic!("{metadata} {spec}: {found:?}, wanted {wanted:?}"),
        }
    }
    let mut claimed = file(json!({}));
    claimed["claimRef"] = json!({"namespace": "shop", "name": "data"});
    let found = persistent_volume(&pv(&json!({"name": "v"}), &claimed));
    assert_eq!(found.unwrap().unwrap().handle, "#acc#s#v#shop");
    for other in [
        json!({"csi": {"driver": "d", "volumeHandle": "h"}}),
        json!({"nfs": {"server": "s", "path": "/"}}),
    ] {
        assert_eq!(persistent_volume(&pv(&json!({"name": "v"}), &other)), None);
    }
}

#[test]
fn access_modes_of_gce_become_those_that_its_driver_knows() {
    for (modes, wanted) in [
        (json!([]), vec![]),
        (json!(["ReadWriteOnce"]), vec!["ReadWriteOnce"]),
        (json!(["ReadWriteMany"]), vec!["ReadWriteOnce"]),
        (json!(["ReadOnlyMany"]), vec!["ReadOnlyMany"]),
        (
            json!(["ReadOnlyMany", "ReadWriteOnce"]),
            vec!["ReadWriteOnce"],
        ),
        (json!(["ReadWriteOncePod"]), vec!["ReadWriteOnce"]),
    ] {
        let spec = json!({"gcePersistentDisk": {"pdName": "d"}, "accessModes": modes});
        let found = persistent_volume(&pv(&json!({"name": "v"}), &spec))
            .unwrap()
            .unwrap();
        assert_eq!(found.access_modes, wanted, "{modes}");
    }
}

#[test]
fn an_in_line_volume_is_the_persistent_volume_that_upstream_makes_of_it() {
    let attributes = |value: Value| value;
    for (source, name, spec) in [
        (
            json!({"awsElasticBlockStore": {"volumeID": "aws://z/vol-1", "fsType": "ext4", "partition": 2, "readOnly": true}}),
            "ebs.csi.aws.com-vol-1",
            json!({"accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem", "csi": {"driver": "ebs.csi.aws.com", "volumeHandle": "vol-1", "fsType": "ext4", "readOnly": true, "volumeAttributes": {"partition": "2"}}}),
        ),
        (
            json!({"gcePersistentDisk": {"pdName": "d", "readOnly": true}}),
            "pd.csi.storage.gke.io-d",
            json!({"accessModes": ["ReadOnlyMany"], "volumeMode": "Filesystem", "csi": {"driver": "pd.csi.storage.gke.io", "volumeHandle": "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d", "readOnly": true, "volumeAttributes": {"partition": ""}}}),
        ),
        (
            json!({"azureDisk": {"diskName": "d", "diskURI": "/s/d", "cachingMode": "None", "fsType": "xfs"}}),
            "/s/d",
            json!({"accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem", "csi": {"driver": "disk.csi.azure.com", "volumeHandle": "/s/d", "fsType": "xfs", "volumeAttributes": attributes(json!({"kind": "Managed", "cachingmode": "None", "fstype": "xfs"}))}}),
        ),
        (
            json!({"azureFile": {"secretName": "azure-storage-account-acc-secret", "shareName": "s"}}),
            "#acc#s#data#shop",
            json!({"accessModes": ["ReadWriteMany"], "volumeMode": "Filesystem", "csi": {"driver": "file.csi.azure.com", "volumeHandle": "#acc#s#data#shop", "volumeAttributes": {"sharename": "s"}, "nodeStageSecretRef": {"name": "azure-storage-account-acc-secret", "namespace": "shop"}}}),
        ),
        (
            json!({"cinder": {"volumeID": "c"}}),
            "cinder.csi.openstack.org-c",
            json!({"accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem", "csi": {"driver": "cinder.csi.openstack.org", "volumeHandle": "c"}}),
        ),
        (
            json!({"vsphereVolume": {"volumePath": "[ds] v", "storagePolicyName": "gold"}}),
            "csi.vsphere.vmware.com-[ds] v",
            json!({"accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem", "csi": {"driver": "csi.vsphere.vmware.com", "volumeHandle": "[ds] v", "volumeAttributes": {"storagepolicyname": "gold"}}}),
        ),
        (
            json!({"portworxVolume": {"volumeID": "p", "readOnly": true}}),
            "pxd.portworx.com-p",
            json!({"accessModes": ["ReadOnlyMany"], "volumeMode": "Filesystem", "csi": {"driver": "pxd.portworx.com", "volumeHandle": "p"}}),
        ),
    ] {
        let source: InlineVolumeSource = serde_json::from_value(source).unwrap();
        let found = in_line("data", &source, "shop").unwrap().unwrap();
        assert_eq!(found.name, name);
        assert_eq!(found.spec(), spec, "{name}");
    }
    let other: InlineVolumeSource =
        serde_json::from_value(json!({"nfs": {"server": "s", "path": "/"}})).unwrap();
    assert_eq!(in_line("data", &other, "shop"), None);
}
