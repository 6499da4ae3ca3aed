use kubernetes_proto::{Object as _, core::Pod};
use prost::Message as _;

use super::*;

#[test]
fn pods_differ_where_those_of_a_fleet_do_and_agree_in_both_encodings() {
    for number in [0, 49, 50, 19_999] {
        let bytes = pod(number);
        let decoded = Pod::decode(bytes.as_slice()).unwrap();
        let meta = decoded.metadata();
        assert!(meta.name.ends_with(&format!("-{number:05}")), "{meta:?}");
        let owner = meta.controller().unwrap();
        assert_eq!(owner.uid, owner_uid(number).as_str());
        assert!(meta.name.starts_with(&*owner.name));
        let json: serde_json::Value = serde_json::from_str(&pod_json(number)).unwrap();
        assert_eq!(json["metadata"]["name"], meta.name.as_str());
        assert_eq!(json["metadata"]["uid"], meta.uid.as_str());
        assert_eq!(
            json["metadata"]["ownerReferences"][0]["uid"],
            owner.uid.as_str()
        );
        assert_eq!(
            json["status"]["conditions"].as_array().unwrap().len(),
            decoded.status.unwrap().conditions.len()
        );
    }
}
