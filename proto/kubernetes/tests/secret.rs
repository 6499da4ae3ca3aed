//! What Secrets hold comes from the wire and JSON as it went, and is printed nowhere.

use prost::Message as _;

use crate::{
    Confidential,
    core::{BootstrapToken, ServiceAccountToken},
    meta::ObjectMeta,
};

fn token() -> ServiceAccountToken {
    ServiceAccountToken {
        metadata: Some(ObjectMeta {
            name: "robot".into(),
            ..ObjectMeta::default()
        }),
        data: [
            ("token".to_owned(), Confidential::from("canary")),
            ("empty".to_owned(), Confidential::default()),
        ]
        .into(),
        r#type: ServiceAccountToken::TYPE.into(),
    }
}

#[test]
fn a_secret_survives_the_wire_and_json() {
    let bytes = token().encode_to_vec();
    assert_eq!(token().encoded_len(), bytes.len());
    assert_eq!(
        ServiceAccountToken::decode(bytes.as_slice()).unwrap(),
        token()
    );
    let json = serde_json::to_value(token()).unwrap();
    assert_eq!(json["data"]["token"], "Y2FuYXJ5");
    assert_eq!(json["type"], "kubernetes.io/service-account-token");
    assert_eq!(
        serde_json::from_value::<ServiceAccountToken>(json).unwrap(),
        token()
    );
}

#[test]
fn a_secret_s_contents_are_not_printed_even_where_they_are_wrong() {
    for printed in [format!("{:?}", token()), format!("{:#?}", token())] {
        assert!(printed.contains("token") && !printed.contains("canary"));
        assert!(!printed.contains("Y2FuYXJ5"), "{printed}");
        assert!(!printed.contains("99, 97, 110"), "{printed}");
    }
    let wrong = serde_json::json!({"data": {"token": "canary!"}});
    let error = serde_json::from_value::<BootstrapToken>(wrong).unwrap_err();
    assert!(!error.to_string().contains("canary"), "{error}");
}
