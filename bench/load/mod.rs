//! Pods as a real API server sends them: one was captured (two containers with probes, environment and
//! volumes; status and managed fields as a kubelet leaves them), and the others are made from it by changing
//! what differs between the pods of a fleet: names, uids, versions, owners.

pub mod cluster;

use kubernetes_proto::envelope;

/// One pod of a list, as protobuf: 6.9 kB, of which 4.7 kB are managed fields.
const POD: &[u8] = include_bytes!("pod.pb");

/// The same pod as JSON.
const POD_JSON: &str = include_str!("pod.json");

/// What the captured pod is called, whose it is, and how these stand in it.
const NAME_END: &str = "-24pjb";
const UID: &str = "5aa83a38-4098-4f43-9be8-816e13cdd8db";
const TEMPLATE_HASH: &str = "6f7d9c0000";
const OWNER_UID_HEAD: &str = "0b9d4c52-0000-";
const VERSION: &str = "455";

/// Pods of one ReplicaSet.
pub const PODS_OF_AN_OWNER: usize = 50;

/// The uid of the ReplicaSet that owns the pod with this number.
pub fn owner_uid(number: usize) -> String {
    format!(
        "{}4f6e-9a57-3c1f5d1e77aa",
        owner_uid_head(number / PODS_OF_AN_OWNER)
    )
}

fn owner_uid_head(owner: usize) -> String {
    format!("0b9d4c52-{owner:04x}-")
}

/// The replacements for the pod with this number. Each new text is as long as the old one, so that no
/// length in the message changes.
fn replacements(number: usize) -> [(&'static str, String); 4] {
    let owner = number / PODS_OF_AN_OWNER;
    [
        (NAME_END, format!("-{number:05}")),
        (UID, format!("5aa83a38-4098-4f43-9be8-{number:012x}")),
        (TEMPLATE_HASH, format!("6f7d9c{owner:04}")),
        (OWNER_UID_HEAD, owner_uid_head(owner)),
    ]
}

/// The pod with this number, as one item of a protobuf list.
pub fn pod(number: usize) -> Vec<u8> {
    let mut pod = POD.to_vec();
    for (old, new) in replacements(number) {
        replace(&mut pod, old.as_bytes(), new.as_bytes());
    }
    pod
}

/// The same pod as JSON.
pub fn pod_json(number: usize) -> String {
    let mut pod = POD_JSON.to_owned();
    for (old, new) in replacements(number) {
        pod = pod.replace(old, &new);
    }
    pod.replace(
        &format!("\"resourceVersion\":\"{VERSION}\""),
        &format!("\"resourceVersion\":\"{}\"", 1000 + number),
    )
}

/// The pod with this number as the frame of a watch.
pub fn added(number: usize) -> Vec<u8> {
    envelope::watch_frame("ADDED", envelope::wrap("v1", "Pod", pod(number)))
}

fn replace(bytes: &mut [u8], old: &[u8], new: &[u8]) {
    assert_eq!(old.len(), new.len(), "a length in the message would change");
    let mut from = 0;
    while let Some(at) = bytes[from..]
        .windows(old.len())
        .position(|window| window == old)
    {
        bytes[from + at..from + at + old.len()].copy_from_slice(new);
        from += at + old.len();
    }
}

#[cfg(test)]
mod tests;
