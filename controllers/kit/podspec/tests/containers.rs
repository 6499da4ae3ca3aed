use crate::podspec::{
    containers::{
        CONTAINERS, ENV, ENV_NAME, HOSTNAME, INIT_CONTAINERS, RESTART_POLICY, message,
        restarts_on_failure, with_env_from_field, with_hostname,
    },
    fields::of as fields,
};

const NAME: &str = "JOB_COMPLETION_INDEX";
const PATH: &str = "metadata.labels['x']";

fn container(name: &str, variables: &[&str]) -> Vec<u8> {
    let mut bytes = message(1, name.as_bytes());
    for variable in variables {
        bytes.extend(message(ENV, &message(ENV_NAME, variable.as_bytes())));
    }
    // A field that nobody here has heard of.
    bytes.extend(message(900, b"later"));
    bytes
}

fn spec() -> Vec<u8> {
    [
        message(1, b"a volume"),
        message(CONTAINERS, &container("main", &["A", "B"])),
        message(CONTAINERS, &container("has-its-own", &[NAME])),
        message(RESTART_POLICY, b"OnFailure"),
        // activeDeadlineSeconds = 300, a varint; an unknown 64-bit and an unknown 32-bit field.
        vec![5 << 3, 0xac, 0x02],
        vec![30 << 3 & 0x7f | 0x80 | 1, 1, 1, 2, 3, 4, 5, 6, 7, 8],
        vec![7 << 3 | 5, 1, 2, 3, 4],
        message(INIT_CONTAINERS, &container("init", &[])),
        message(901, b"unknown"),
    ]
    .concat()
}

#[test]
fn the_variable_goes_to_every_container_that_lacks_it_and_all_else_stays() {
    let before = spec();
    let after = with_env_from_field(&before, NAME, PATH).unwrap();
    let (before, after) = (fields(&before).unwrap(), fields(&after).unwrap());
    assert_eq!(before.len(), after.len());
    let mut touched = Vec::new();
    for (old, new) in before.iter().zip(&after) {
        assert_eq!(old.number, new.number);
        if old.whole != new.whole {
            assert!(new.content.starts_with(old.content));
            let added = fields(&new.content[old.content.len()..]).unwrap();
            assert_eq!(added.len(), 1);
            assert_eq!(added[0].number, ENV);
            let text = String::from_utf8_lossy(added[0].content).into_owned();
            assert!(text.contains(NAME) && text.contains(PATH), "{text}");
            touched.push(fields(new.content).unwrap()[0].content.to_vec());
        }
    }
    assert_eq!(touched, [b"main".to_vec(), b"init".to_vec()]);
}

#[test]
fn a_second_time_changes_nothing() {
    let once = with_env_from_field(&spec(), NAME, PATH).unwrap();
    assert_eq!(with_env_from_field(&once, NAME, PATH).unwrap(), once);
}

#[test]
fn the_variable_is_encoded_as_the_api_reads_it() {
    let bare = message(CONTAINERS, &[]);
    let after = with_env_from_field(&bare, "N", "p").unwrap();
    // containers { env { name: "N" valueFrom { fieldRef { fieldPath: "p" } } } }
    assert_eq!(
        after,
        [
            0x12, 12, 0x3a, 10, 0x0a, 1, b'N', 0x1a, 5, 0x0a, 3, 0x12, 1, b'p'
        ]
    );
}

#[test]
fn the_host_name_is_set_once() {
    let after = with_hostname(&with_hostname(&spec(), "old").unwrap(), "pi-3").unwrap();
    let named: Vec<Vec<u8>> = fields(&after)
        .unwrap()
        .iter()
        .filter(|field| field.number == HOSTNAME)
        .map(|field| field.content.to_vec())
        .collect();
    assert_eq!(named, [b"pi-3".to_vec()]);
    assert!(after.starts_with(&spec()));
}

#[test]
fn the_restart_policy_is_read() {
    assert_eq!(restarts_on_failure(&spec()), Ok(true));
    assert_eq!(
        restarts_on_failure(&message(RESTART_POLICY, b"Never")),
        Ok(false)
    );
    assert_eq!(restarts_on_failure(&[]), Ok(false));
}

#[test]
fn bytes_that_are_no_message_are_refused() {
    for bytes in [
        &[0x12, 5, 1][..],
        &[0xff],
        &[0x0b],
        &[
            0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
        ],
        &[1 << 3 | 5, 1],
    ] {
        assert!(with_hostname(bytes, "h").is_err(), "{bytes:?}");
        assert!(restarts_on_failure(bytes).is_err(), "{bytes:?}");
    }
    let broken_container = message(CONTAINERS, &[0xff]);
    assert!(with_env_from_field(&broken_container, "N", "p").is_err());
}
