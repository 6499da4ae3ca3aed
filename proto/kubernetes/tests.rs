mod envelope;
mod facts;
mod garbage;
mod lossy;
mod partial;
mod quantity;
mod secret;
mod wire;

use prost::Message;
use serde_json::json;

use crate::{
    Object, Partial, Shared, Str, apps, core,
    meta::{Entry, IntOrString, ObjectMeta, OwnerReference, Time},
};

fn full_meta() -> ObjectMeta {
    ObjectMeta {
        name: "web-1".into(),
        generate_name: "web-".into(),
        namespace: "shop".into(),
        uid: "u-1".into(),
        resource_version: 4711,
        generation: 3,
        creation_timestamp: Some(Time {
            seconds: 1_700_000_000,
            nanos: 0,
        }),
        deletion_timestamp: Some(Time {
            seconds: 1_700_000_030,
            nanos: 0,
        }),
        deletion_grace_period_seconds: Some(30),
        labels: vec![Entry {
            key: "app".into(),
            value: "web".into(),
        }],
        annotations: vec![Entry {
            key: "note".into(),
            value: "x".repeat(200).into(),
        }],
        owner_references: vec![Shared::from(OwnerReference {
            api_version: "apps/v1".into(),
            kind: "ReplicaSet".into(),
            name: "web".into(),
            uid: "u-0".into(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        })],
        finalizers: vec!["example.com/hold".into()],
    }
}

#[test]
fn metadata_survives_the_wire_and_json() {
    let meta = full_meta();
    assert_eq!(
        ObjectMeta::decode(meta.encode_to_vec().as_slice()).unwrap(),
        meta
    );
    assert_eq!(meta.encoded_len(), meta.encode_to_vec().len());
    let json = serde_json::to_value(&meta).unwrap();
    assert_eq!(json["resourceVersion"], "4711");
    assert_eq!(json["creationTimestamp"], "2023-11-14T22:13:20Z");
    assert_eq!(serde_json::from_value::<ObjectMeta>(json).unwrap(), meta);
}

#[test]
fn equal_labels_are_one_allocation() {
    let text = "a-label-of-this-test";
    let (one, other) = (Str::interned(text), Str::interned(text));
    assert!(std::ptr::eq(one.as_str(), other.as_str()));
    assert!(!std::ptr::eq(one.as_str(), Str::from(text).as_str()));
}

#[test]
fn fields_that_a_projection_does_not_know_are_skipped() {
    let template = core::PodFromTemplate {
        metadata: Some(full_meta()),
        spec: Vec::new(),
    };
    let mut bytes = template.encode_to_vec();
    bytes.extend_from_slice(&[0xfa, 0x01, 3, 1, 2, 3]); // field 31, three bytes
    let pod = core::Pod::decode(bytes.as_slice()).unwrap();
    assert_eq!(Object::metadata(&pod), &full_meta());
}

#[test]
fn numbers_and_percentages_scale_as_the_api_says() {
    let table = [
        (IntOrString::number(3), 10, true, Ok(3)),
        (IntOrString::text("25%"), 10, true, Ok(3)),
        (IntOrString::text("25%"), 10, false, Ok(2)),
        (IntOrString::text("0%"), 10, true, Ok(0)),
        (IntOrString::text("100%"), 7, false, Ok(7)),
    ];
    for (value, total, up, expected) in table {
        assert_eq!(value.scaled(total, up), expected, "{value:?} of {total}");
    }
    assert!(
        IntOrString::text("a quarter")
            .scaled(4, true)
            .unwrap_err()
            .contains("a quarter")
    );
}

#[test]
fn json_is_the_api_s_own() {
    let json = json!({
        "metadata": {"name": "web", "namespace": "shop", "labels": {"app": "web"}},
        "spec": {"replicas": 0, "minReadySeconds": 5, "selector": {"matchLabels": {"app": "web"}},
                 "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 1}}}
    });
    let deployment: apps::Deployment = serde_json::from_value(json.clone()).unwrap();
    assert_eq!(serde_json::to_value(&deployment).unwrap(), json);
    let unknown = json!({"metadata": {}, "spec": {"replica": 1}});
    assert!(
        serde_json::from_value::<apps::Deployment>(unknown).is_err(),
        "a misspelt field must not pass"
    );
}

#[test]
fn a_time_that_go_sends_empty_is_none() {
    // In templates `creationTimestamp` is there and empty; so are the times of conditions.
    let bytes = [0x0a, 1, b'a', 0x42, 0];
    let meta = ObjectMeta::decode(bytes.as_slice()).unwrap();
    assert_eq!((meta.name.as_str(), meta.creation_timestamp), ("a", None));
    let condition = core::PodCondition::decode([0x0a, 1, b'R', 0x1a, 0].as_slice()).unwrap();
    let json = serde_json::to_value(&condition).unwrap();
    assert_eq!(json, json!({"type": "R"}));
    let again: core::PodCondition = serde_json::from_value(json).unwrap();
    assert_eq!(again.last_probe_time, None);
}

#[test]
fn texts_hash_apart_though_they_differ_little() {
    use std::hash::BuildHasher as _;
    let mut texts: Vec<String> = (0..20_000)
        .map(|number| format!("checkout-6f7d9c-{number}"))
        .collect();
    texts.extend((1..64).map(|length| "\0".repeat(length)));
    texts.extend((1..64).map(|length| "a".repeat(length)));
    let hashes: std::collections::HashSet<u64> = texts
        .iter()
        .map(|text| crate::TextHash.hash_one(text))
        .collect();
    assert_eq!(hashes.len(), texts.len());
    // As a table sees them: no bucket of 1024 holds far more than its share of 20.
    let mut buckets = [0; 1024];
    for hash in hashes {
        buckets[hash as usize % 1024] += 1;
    }
    assert!(buckets.iter().max() < Some(&60), "{buckets:?}");
}

#[test]
fn interned_texts_are_shared_between_threads_and_after_many_others() {
    let first = Str::interned("shared-between-threads");
    for number in 0..10_000 {
        Str::interned(&format!("another-{number}"));
    }
    let other = std::thread::spawn(|| Str::interned("shared-between-threads"))
        .join()
        .unwrap();
    assert!(std::ptr::eq(first.as_str(), other.as_str()));
    assert!(std::ptr::eq(
        first.as_str(),
        Str::interned("shared-between-threads").as_str()
    ));
}

#[test]
fn amounts_are_read_in_thousandths() {
    let table = [
        ("4", Some(4000)),
        ("500m", Some(500)),
        ("0.5", Some(500)),
        ("1.5k", Some(1_500_000)),
        ("2Ki", Some(2_048_000)),
        ("1e3", Some(1_000_000)),
        ("-1", Some(-1000)),
        ("+1", Some(1000)),
        ("1u", Some(1)),
        ("0", Some(0)),
        ("0Ei", Some(0)),
        ("9E", Some(i64::MAX)),
        ("", None),
        ("m", None),
        ("1x", None),
        ("1.2.3", None),
    ];
    for (text, expected) in table {
        assert_eq!(
            crate::meta::Quantity::text(text).milli(),
            expected,
            "{text:?}"
        );
    }
}

#[test]
fn amounts_by_name_are_an_object_in_json() {
    let json = json!({"status": {"allocatable": {"cpu": "4", "memory": "1Gi"}}});
    let node: core::Node = serde_json::from_value(json.clone()).unwrap();
    let amounts = &node.status.as_ref().unwrap().allocatable;
    assert_eq!(amounts.len(), 2);
    assert_eq!(serde_json::to_value(&node).unwrap(), json);
    // What is kept is the one that is read.
    let kept =
        (core::Node::resource().decode)(core::Node::resource(), &node.encode_to_vec()).unwrap();
    assert_eq!(kept.to_json()["status"]["allocatable"], json!({"cpu": "4"}));
}

#[test]
fn of_a_pod_s_ports_those_with_names_are_kept() {
    let json = json!({
        "spec": {"containers": [
            {"name": "side", "ports": [{"containerPort": 1, "protocol": "TCP"}]},
            {"name": "main", "ports": [{"name": "http", "containerPort": 2, "protocol": "TCP"}]},
        ]},
        "status": {"podIPs": [{"ip": "10.0.0.1"}]},
    });
    let pod: core::Pod = serde_json::from_value(json).unwrap();
    let kept = (core::Pod::resource().decode)(core::Pod::resource(), &pod.encode_to_vec()).unwrap();
    assert_eq!(
        kept.to_json(),
        json!({
            "spec": {"containers": [{"name": "side"}, {"name": "main", "ports": [{"name": "http", "containerPort": 2, "protocol": "TCP"}]}]},
            "status": {"podIPs": [{"ip": "10.0.0.1"}]},
        })
    );
}

#[test]
fn endpoints_and_slices_are_the_api_s_own_json() {
    let service = json!({"spec": {
        "clusterIP": "None",
        "selector": {"app": "web"},
        "ipFamilies": ["IPv4"],
        "ports": [{"name": "http", "protocol": "TCP", "targetPort": "http", "appProtocol": "h2c"}],
        "publishNotReadyAddresses": true,
        "trafficDistribution": "PreferClose",
    }});
    let read: core::Service = serde_json::from_value(service.clone()).unwrap();
    assert_eq!(serde_json::to_value(&read).unwrap(), service);
    let slice = json!({
        "addressType": "IPv4",
        "endpoints": [{
            "addresses": ["10.0.0.1"],
            "conditions": {"ready": true, "serving": true, "terminating": false},
            "deprecatedTopology": {"a": "b"},
            "hints": {"forNodes": [{"name": "n"}], "forZones": [{"name": "z"}]},
            "hostname": "h",
            "nodeName": "n",
            "targetRef": {"kind": "Pod", "name": "p", "namespace": "d", "uid": "u"},
            "zone": "z",
        }],
        "ports": [{"name": "", "port": 80, "protocol": "TCP"}],
    });
    let read: crate::discovery::EndpointSlice = serde_json::from_value(slice.clone()).unwrap();
    assert_eq!(serde_json::to_value(&read).unwrap(), slice);
    let endpoints = json!({"subsets": [{
        "addresses": [{"ip": "10.0.0.1", "hostname": "h", "nodeName": "n"}],
        "notReadyAddresses": [{"ip": "10.0.0.2"}],
        "ports": [{"name": "http", "port": 80, "protocol": "TCP", "appProtocol": "h2c"}],
    }]});
    let read: core::Endpoints = serde_json::from_value(endpoints.clone()).unwrap();
    assert_eq!(serde_json::to_value(&read).unwrap(), endpoints);
}

#[test]
fn a_load_balancer_s_fields_have_the_api_s_names() {
    let service = serde_json::json!({
        "metadata": {"name": "web"},
        "spec": {
            "ports": [{"port": 80, "nodePort": 30_080}],
            "type": "LoadBalancer",
            "externalIPs": ["192.0.2.7"],
            "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 9}},
            "loadBalancerIP": "192.0.2.8",
            "loadBalancerSourceRanges": ["10.0.0.0/8"],
            "loadBalancerClass": "example.com/own",
            "externalTrafficPolicy": "Local",
            "healthCheckNodePort": 30_081,
        },
        "status": {"loadBalancer": {"ingress": [{
            "ip": "192.0.2.9",
            "ipMode": "VIP",
            "ports": [{"port": 80, "protocol": "TCP", "error": "none.example/x"}],
        }]}},
    });
    let read: core::Service = serde_json::from_value(service.clone()).unwrap();
    assert_eq!(serde_json::to_value(&read).unwrap(), service);
    let node = serde_json::json!({
        "metadata": {"name": "n1"},
        "spec": {"providerID": "cloud://n1"},
        "status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]},
    });
    let read: core::Node = serde_json::from_value(node.clone()).unwrap();
    assert_eq!(serde_json::to_value(&read).unwrap(), node);
}

/// Tens of thousands are held: one more word would cost each of them 64 bytes.
#[test]
fn metadata_only_objects_fit_an_allocation_of_256_bytes() {
    let counts = 2 * size_of::<usize>();
    assert_eq!(size_of::<Option<Time>>(), 16);
    assert!(
        size_of::<Partial>() + counts <= 256,
        "{} bytes",
        size_of::<Partial>()
    );
}

#[test]
fn a_pod_holds_its_storage_and_nothing_of_other_volumes() {
    let spec = json!({
        "volumes": [
            {"name": "token"},
            {"name": "data", "volumeSource": {"persistentVolumeClaim": {"claimName": "data-1"}}},
            {"name": "disk", "volumeSource": {"awsElasticBlockStore": {"volumeID": "vol-1"}}},
            {"name": "own", "volumeSource": {"ephemeral": {"volumeClaimTemplate":
                {"spec": {"protobuf": "0a01"}}}}},
        ],
        "securityContext": {"seLinuxChangePolicy": "Recursive"},
        "containers": [{
            "name": "web",
            "volumeMounts": [{"name": "token"}, {"name": "data"}],
            "securityContext": {"seLinuxOptions": {"level": "s0:c1,c2"}},
        }],
    });
    let written: core::Pod = serde_json::from_value(json!({"spec": spec})).unwrap();
    assert_eq!(serde_json::to_value(&written).unwrap()["spec"], spec);
    let read = core::Pod::resource()
        .read(&written.encode_to_vec())
        .unwrap();
    let read: &core::Pod = read.as_any().downcast_ref().unwrap();
    let mut expected = written.spec.unwrap();
    expected.volumes.remove(0);
    expected.containers[0]
        .volume_mounts
        .as_mut()
        .unwrap()
        .remove(0);
    assert_eq!(read.spec.as_ref(), Some(&expected));

    // A pod without storage says nothing of mounts, and an empty security context is none.
    let other = json!({
        "containers": [{"name": "web", "volumeMounts": [{"name": "token"}]}],
        "securityContext": {},
    });
    let other: core::Pod = serde_json::from_value(json!({"spec": other})).unwrap();
    let read = core::Pod::resource().read(&other.encode_to_vec()).unwrap();
    let read: &core::Pod = read.as_any().downcast_ref().unwrap();
    let spec = read.spec.as_ref().unwrap();
    assert!(spec.security_context.is_none() && spec.containers[0].volume_mounts.is_none());

    let unknown = json!({"spec": {"volumes": [{"name": "a", "volumeSource": {"rbd": {}}}]}});
    assert!(serde_json::from_value::<core::Pod>(unknown).is_err());
}

#[test]
fn a_claim_to_devices_is_the_api_s_own_json() {
    let claim = json!({
        "metadata": {"name": "gpus", "namespace": "shop", "finalizers": ["resource.kubernetes.io/delete-protection"]},
        "spec": {"devices": {"requests": [
            {"name": "one", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1, "adminAccess": true}},
            {"name": "any", "firstAvailable": [{"name": "big", "deviceClassName": "gpu", "allocationMode": "All"}]},
        ]}},
        "status": {
            "allocation": {"devices": {"results": [{
                "request": "one", "driver": "gpu.example.com", "pool": "node-1", "device": "gpu-0",
                "adminAccess": true, "shareID": "a1",
                "tolerations": [{"key": "k", "operator": "Equal", "value": "v", "effect": "NoExecute", "tolerationSeconds": 0}],
            }]}},
            "reservedFor": [{"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g", "uid": "u"}],
        },
    });
    let read: crate::resource::ResourceClaim = serde_json::from_value(claim.clone()).unwrap();
    assert_eq!(serde_json::to_value(&read).unwrap(), claim);
    let decoded = crate::resource::ResourceClaim::decode(&*read.encode_to_vec()).unwrap();
    assert_eq!(decoded, read);
    // Allocated, though nothing is known of what.
    let bare = json!({"status": {"allocation": {}}});
    let read: crate::resource::ResourceClaim = serde_json::from_value(bare.clone()).unwrap();
    let decoded = crate::resource::ResourceClaim::decode(&*read.encode_to_vec()).unwrap();
    assert_eq!(serde_json::to_value(&decoded).unwrap(), bare);
}

#[test]
fn a_claim_made_from_a_template_keeps_fields_that_are_not_declared() {
    // spec.devices.constraints (2) and a field that no release has (90).
    let spec: &[u8] = &[0x0a, 0x02, 0x12, 0x00, 0xd2, 0x05, 1, b'x'];
    let mut wire = Vec::new();
    prost::encoding::bytes::encode(2, &spec.to_vec(), &mut wire);
    let inner = wire.clone();
    wire.clear();
    prost::encoding::bytes::encode(2, &inner, &mut wire);
    let template = crate::resource::ResourceClaimTemplate::decode(&*wire).unwrap();
    let carried = template.spec.unwrap().spec;
    assert_eq!(carried, spec);
    let claim = crate::resource::ResourceClaimFromTemplate {
        metadata: Some(full_meta()),
        spec: carried,
    };
    let bytes = claim.encode_to_vec();
    assert!(bytes.windows(spec.len()).any(|part| part == spec));
    let read = crate::resource::ResourceClaim::decode(&*bytes).unwrap();
    assert_eq!(Object::metadata(&read), &full_meta());
}

#[test]
fn a_pod_names_its_claims_to_devices_and_its_group() {
    let json = json!({
        "spec": {
            "resourceClaims": [
                {"name": "gpu", "resourceClaimTemplateName": "gpus"},
                {"name": "nic", "resourceClaimName": "shared"},
            ],
            "schedulingGroup": {"podGroupName": "workers"},
        },
        "status": {
            "resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "web-gpu-x"}, {"name": "none"}],
            "extendedResourceClaimStatus": {"resourceClaimName": "web-extended"},
        },
    });
    let pod: core::Pod = serde_json::from_value(json.clone()).unwrap();
    let read = core::Pod::resource().read(&pod.encode_to_vec()).unwrap();
    assert_eq!(read.to_json(), json);
}

#[test]
fn slices_rules_and_requests_are_the_api_s_own_json() {
    fn same<T: Object>(json: &serde_json::Value) {
        let read: T = serde_json::from_value(json.clone()).unwrap();
        let decoded = T::resource().read(&read.encode_to_vec()).unwrap();
        assert_eq!(decoded.to_json(), *json);
    }
    let taint = json!({"key": "k", "value": "v", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"});
    same::<crate::resource::ResourceSlice>(&json!({
        "metadata": {"name": "node-1-gpus"},
        "spec": {
            "driver": "gpu.example.com",
            "pool": {"name": "node-1", "generation": 3, "resourceSliceCount": 2},
            "nodeName": "node-1",
            "devices": [{"name": "gpu-0", "taints": [taint]}, {"name": "gpu-1"}],
        },
    }));
    let condition = json!({
        "type": "EvictionInProgress", "status": "False", "observedGeneration": 2,
        "lastTransitionTime": "2026-01-01T00:00:00Z", "reason": "NotStarted",
    });
    same::<crate::resource::DeviceTaintRule>(&json!({
        "metadata": {"name": "broken", "generation": 2},
        "spec": {
            "deviceSelector": {"driver": "gpu.example.com", "pool": "node-1", "device": "gpu-0"},
            "taint": taint,
        },
        "status": {"conditions": [condition]},
    }));
    // A selector that selects all devices is not the same as none.
    same::<crate::resource::DeviceTaintRule>(&json!({
        "metadata": {"name": "all"},
        "spec": {"deviceSelector": {}, "taint": {"key": "k", "effect": "None"}},
    }));
    same::<crate::resource::ResourcePoolStatusRequest>(&json!({
        "metadata": {"name": "how-many"},
        "spec": {"driver": "gpu.example.com", "poolName": "node-1", "limit": 5},
        "status": {
            "poolCount": 1,
            "pools": [{
                "driver": "gpu.example.com", "poolName": "node-1", "nodeName": "node-1", "generation": 3,
                "resourceSliceCount": 2, "totalDevices": 4, "allocatedDevices": 0, "availableDevices": 4,
                "unavailableDevices": 0,
            }],
            "conditions": [condition],
        },
    }));
}
