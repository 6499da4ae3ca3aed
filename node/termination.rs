//! The container's termination message: by it the others learn that a replica's process has ended.
//!
//! A process writes the incarnation that it begins with into the file that the kubelet has made for this very
//! container. The kubelet puts the content into the pod's status once the runtime says that the container has
//! exited, and not before. So a reader who finds it there has the word of the kernel, by way of runtime and
//! kubelet, that this process is gone. No other status has it: a deleted pod's, that of a pod on a lost node,
//! which controllers mark as failed, and the kubelet's own `ContainerStatusUnknown` say nothing about a
//! process.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    path::Path,
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::{Api, Client, api::ListParams};
use tokio::{runtime::Handle, sync::OnceCell};

/// The process that a container is about has this id there: with any other, something else may end the
/// container while this process runs.
const FIRST: u32 = 1;
/// How the first line begins; the incarnation follows.
const MARK: &str = "manifold.dev/incarnation=";
/// Of what is added. The kubelet takes the last 4096 bytes of a file, and the first line must be among them.
const ADDED_BYTES_MAX: usize = 2048;
/// Of a pod or a namespace.
const NAME_BYTES_MAX: usize = 253;
/// One request.
const REQUEST_MAX: Duration = Duration::from_secs(1);
/// What runtime and kubelet say of a container that they have lost sight of.
const REASONS_OF_THE_LOST: [&str; 2] = ["Unknown", "ContainerStatusUnknown"];

/// That of this process, once it has begun.
static THIS: OnceLock<Message> = OnceLock::new();

/// Begins the message of this process; see [`Message::begin`].
///
/// # Errors
/// Where the file cannot be written.
pub fn begin(path: &Path, id: u32, process: &str) -> io::Result<()> {
    if let Some(message) = Message::begin(path, id, process)? {
        THIS.get_or_init(|| message);
    }
    Ok(())
}

/// Adds why this process ends, where it has a message.
pub fn add(why: &str) {
    if let Some(message) = THIS.get() {
        message.add(why);
    }
}

/// The message of a process.
#[derive(Debug)]
pub struct Message(File);

impl Message {
    /// Begins it for a process with this id in its container; `None` outside of containers, where there is no
    /// such file, and where the container does not end with this process.
    ///
    /// # Errors
    /// Where the file cannot be written.
    pub fn begin(path: &Path, id: u32, process: &str) -> io::Result<Option<Self>> {
        if id != FIRST {
            return Ok(None);
        }
        let file = OpenOptions::new().append(true).open(path);
        match file {
            Ok(mut file) => {
                file.write_all(format!("{MARK}{process}\n").as_bytes())?;
                Ok(Some(Self(file)))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Adds why the process ends, for people.
    pub fn add(&self, why: &str) {
        let mut end = why.len().min(ADDED_BYTES_MAX);
        while !why.is_char_boundary(end) {
            end -= 1;
        }
        let _lost = writeln!(&self.0, "{}", &why[..end]);
    }
}

/// Whether a pod's status proves that a process has ended.
pub fn proves_end(pod: &Pod, process: &str) -> bool {
    let line = format!("{MARK}{process}");
    let proves = |status: &ContainerStatus| {
        let states = [&status.state, &status.last_state];
        let mut ended = states
            .into_iter()
            .flatten()
            .filter_map(|state| state.terminated.as_ref());
        ended.any(|ended| {
            let reason = ended.reason.as_deref().unwrap_or_default();
            // The whole first line: a log that a kubelet falls back to may hold anything in the middle.
            let said = ended.message.as_deref().unwrap_or_default().lines().next();
            said == Some(line.as_str())
                && !REASONS_OF_THE_LOST.contains(&reason)
                && ended.container_id.as_ref().is_some_and(|id| !id.is_empty())
        })
    };
    let status = pod.status.as_ref();
    status
        .and_then(|status| status.container_statuses.as_ref())
        .is_some_and(|statuses| statuses.iter().any(proves))
}

/// Whether it can name a namespace or a pod.
fn is_name(text: &str) -> bool {
    let fits = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, b'-' | b'.');
    let begins = text
        .bytes()
        .next()
        .is_some_and(|c| c.is_ascii_alphanumeric());
    begins && text.len() <= NAME_BYTES_MAX && text.bytes().all(fits)
}

/// Reads other replicas' pods.
pub struct Pods {
    client: Client,
    /// Where the client's connection is driven.
    runtime: Handle,
    refused: Arc<OnceCell<()>>,
}

impl Pods {
    /// Reads by this client. To be called within the runtime that drives it.
    pub fn new(client: Client) -> Self {
        Self {
            client,
            runtime: Handle::current(),
            refused: Arc::default(),
        }
    }

    /// Whether the status of a pod, `<namespace>/<name>`, proves that a process has ended.
    pub fn prove_end(&self, pod: &str, process: &str) -> BoxFuture<'static, bool> {
        // It comes out of another replica's Lease, which hands may have edited, and goes into an address.
        let Some((namespace, name)) = pod
            .split_once('/')
            .filter(|(namespace, name)| [namespace, name].into_iter().all(|part| is_name(part)))
        else {
            return Box::pin(std::future::ready(false));
        };
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        // The manager may list what it watches, and nothing more.
        let params = ListParams::default().fields(&format!("metadata.name={name}"));
        let (pod, process) = (pod.to_owned(), process.to_owned());
        let refused = Arc::clone(&self.refused);
        let reading = self.runtime.spawn(async move {
            let listed = match tokio::time::timeout(REQUEST_MAX, api.list(&params)).await {
                Ok(Ok(listed)) => listed,
                Ok(Err(error)) => {
                    if refused.set(()).is_ok() {
                        tracing::warn!(
                            pod, %error,
                            "cannot list the pod of a replica that is late: its end is waited for as if it were silent"
                        );
                    }
                    return false;
                }
                Err(_) => return false,
            };
            listed.items.iter().any(|pod| proves_end(pod, &process))
        });
        Box::pin(async move { reading.await.unwrap_or(false) })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const PROCESS: &str = "00f1e2d3c4b5a697";

    fn terminated(message: &str) -> serde_json::Value {
        json!({"terminated": {
            "exitCode": 137,
            "reason": "OOMKilled",
            "message": message,
            "containerID": "containerd://0123",
            "startedAt": "2026-01-01T00:00:00Z",
            "finishedAt": "2026-01-01T00:01:00Z",
        }})
    }

    fn pod(status: &serde_json::Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "manifold-0", "namespace": "manifold-system"},
            "status": status,
        }))
        .unwrap()
    }

    fn container(state: &serde_json::Value, last: &serde_json::Value) -> serde_json::Value {
        json!({"containerStatuses": [
            {
                "name": "other", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
            },
            {
                "name": "manifold", "image": "", "imageID": "", "ready": false, "restartCount": 1,
                "state": state, "lastState": last,
            },
        ]})
    }

    #[test]
    fn the_kubelets_word_that_this_very_process_has_ended_is_a_proof_and_nothing_else_is() {
        let ours = format!("{MARK}{PROCESS}\n");
        let why = format!("{MARK}{PROCESS}\npanicked at node/run.rs:1");
        let another = format!("{MARK}00f1e2d3c4b5a698\n");
        let longer = format!("{MARK}{PROCESS}0\n");
        let log = format!("evicted manifold-1\n{MARK}{PROCESS}\n");
        let within = format!("said {MARK}{PROCESS}\n");
        let running = json!({"running": {"startedAt": "2026-01-01T00:01:02Z"}});
        let waiting = json!({"waiting": {"reason": "CrashLoopBackOff"}});
        let lost = |reason: &str| {
            let mut state = terminated(&ours);
            state["terminated"]["reason"] = json!(reason);
            state
        };
        let mut nowhere = terminated(&ours);
        nowhere["terminated"]["containerID"] = json!("");
        let nothing = json!({});
        let cases = [
            (
                "it has ended",
                container(&terminated(&ours), &nothing),
                true,
            ),
            ("and said why", container(&terminated(&why), &nothing), true),
            (
                "it is started again",
                container(&running, &terminated(&ours)),
                true,
            ),
            (
                "after a pause",
                container(&waiting, &terminated(&ours)),
                true,
            ),
            ("it runs", container(&running, &nothing), false),
            (
                "the one before it has ended",
                container(&running, &terminated(&another)),
                false,
            ),
            (
                "one with a longer name",
                container(&terminated(&longer), &nothing),
                false,
            ),
            (
                "a log that names it",
                container(&terminated(&log), &nothing),
                false,
            ),
            (
                "a line that names it",
                container(&terminated(&within), &nothing),
                false,
            ),
            ("no message", container(&terminated(""), &nothing), false),
            (
                "the kubelet has lost it",
                container(&lost("ContainerStatusUnknown"), &nothing),
                false,
            ),
            (
                "the runtime has lost it",
                container(&lost("Unknown"), &nothing),
                false,
            ),
            (
                "no container of any runtime",
                container(&nowhere, &nothing),
                false,
            ),
            (
                "a controller has marked the pod of a lost node",
                json!({"phase": "Failed", "reason": "NodeLost", "message": ours,
                    "conditions": [{"type": "DisruptionTarget", "status": "True", "message": ours}]}),
                false,
            ),
            ("no status", json!({}), false),
        ];
        for (name, status, proves) in cases {
            assert_eq!(proves_end(&pod(&status), PROCESS), proves, "{name}");
        }
    }

    #[test]
    fn a_name_out_of_an_edited_lease_is_no_address() {
        for good in ["kube-system", "manifold-0", "manifold-node-1.example", "0"] {
            assert!(is_name(good), "{good}");
        }
        let long = "a".repeat(254);
        for bad in [
            "",
            "..",
            "a/b",
            "A",
            "a,b",
            "a?b",
            "a%2f",
            "-a",
            "ä",
            long.as_str(),
        ] {
            assert!(!is_name(bad), "{bad}");
        }
    }

    #[test]
    fn the_message_begins_with_the_incarnation_and_stays_within_what_a_kubelet_reads() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("termination-log");
        let begin = |id| Message::begin(&path, id, PROCESS).unwrap();
        assert!(begin(FIRST).is_none(), "outside of a container");
        assert!(!path.exists());
        std::fs::write(&path, "").unwrap();
        assert!(
            begin(17).is_none(),
            "a shell or another container is the first process"
        );
        let message = begin(FIRST).unwrap();
        message.add("panicked\nat node/run.rs:1");
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(
            text,
            format!("{MARK}{PROCESS}\npanicked\nat node/run.rs:1\n")
        );
        message.add(&"ü".repeat(3000));
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.len() < 4096 && text.starts_with(MARK));
    }
}
