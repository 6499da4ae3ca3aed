//! What `wire` reads itself instead of prost.

use prost::Message;

use crate::{
    Object,
    core::{Amount, Container, Pod, ResourceRequirements},
    meta::Quantity,
};

#[test]
fn equal_parts_of_many_pods_are_held_once() {
    let asking = |cpu: &str| ResourceRequirements {
        requests: vec![Amount {
            key: "cpu".into(),
            value: Some(Quantity::text(cpu)),
        }],
        ..Default::default()
    };
    let bytes = |name: &str, cpu: &str| {
        Container {
            name: name.into(),
            resources: Some(asking(cpu).into()),
            ..Default::default()
        }
        .encode_to_vec()
    };
    let read = |bytes: Vec<u8>| {
        let container = Container::decode(&bytes[..]).unwrap();
        container.resources.expect("it asks for something")
    };
    let (one, other, third) = (
        read(bytes("a", "100m")),
        read(bytes("b", "100m")),
        read(bytes("a", "200m")),
    );
    assert!(std::ptr::eq(&*one, &*other));
    assert_eq!(*one, asking("100m"));
    assert_eq!(*third, asking("200m"));
}

#[test]
fn truncated_messages_and_invalid_text_are_refused_as_prost_refuses_them() {
    let mut pod = Pod::default();
    pod.metadata_mut().name = "web".into();
    pod.spec.get_or_insert_default().containers = vec![Container {
        name: "server".into(),
        ..Default::default()
    }];
    let whole = pod.encode_to_vec();
    assert_eq!(Pod::decode(&whole[..]).unwrap(), pod);
    for end in 1..whole.len() {
        // Between two of the pod's own fields it is a pod, if a shorter one.
        if let Ok(shorter) = Pod::decode(&whole[..end]) {
            assert!(shorter.spec.is_none(), "cut at {end}");
        }
    }
    let at = whole.windows(6).position(|six| six == b"server").unwrap();
    let mut spoilt = whole;
    spoilt[at] = 0xff;
    assert!(Pod::decode(&spoilt[..]).is_err());
}

#[test]
fn fields_that_nobody_asks_for_are_stepped_over_whatever_their_form() {
    let mut bytes = Container {
        name: "server".into(),
        ..Default::default()
    }
    .encode_to_vec();
    // A number, four bytes, eight bytes, a text of two and one of 300, one whose own number takes two bytes.
    bytes.extend([
        0x60, 0xff, 0x01, 0x65, 1, 2, 3, 4, 0x61, 1, 2, 3, 4, 5, 6, 7, 8,
    ]);
    bytes.extend([0x62, 2, b'h', b'i', 0x62, 0xac, 0x02]);
    bytes.extend([b'x'; 300]);
    bytes.extend([0xa2, 0x06, 1, b'y']);
    // And the name again: the last one counts.
    bytes.extend([0x0a, 1, b'z']);
    assert_eq!(Container::decode(&bytes[..]).unwrap().name, "z");
}
