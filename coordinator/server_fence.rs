//! The fence at the API server: it refuses what an incarnation still sends after it was called dead.
//!
//! A process that is stopped between its last check of its own fence and the send can't be helped by any
//! clock. Where `deploy/fence` is installed, writes carry their incarnation as an extra of the user that they
//! impersonate, and a ValidatingAdmissionPolicy refuses those of every incarnation that one object of the
//! kind `Fence` lists. A replica that takes a dead owner's ranges lists it there first, and shows with a
//! dry-run write in its name that the server that answers refuses it.
//!
//! What can't be shown within [`PROOF_MAX`] is not waited for: then the rules of time hold, as without this
//! fence. So the policy fails open, and nobody else's write ever depends on it.
//!
//! A proof concerns the writes that carry their incarnation. A replica says in its Lease that all of its
//! writes do (`manifold.dev/fenced`): from a while after the first one that does, and until the last one that
//! does. Of a replica whose Lease does not say so, the proof is counted as unproven.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use coordinator_core::{Holder, Time};
use http::{HeaderName, HeaderValue, Request};
use kube::{Client, Error as KubeError};
use serde_json::{Value, json};
use tokio::{
    sync::{Notify, watch},
    time::timeout,
};

/// The policy, its binding, and the object that lists the refused.
pub const NAME: &str = "manifold-fence";
/// All objects of its kind. Cluster-scoped: it serves fleets in whatever namespace.
const FENCES: &str = "/apis/manifold.dev/v1/fences";
/// In whose name it is tried whether the fence holds: it may patch that object and nothing else.
pub const PROBE_ACCOUNT: &str = "manifold-fence-probe";
/// The namespace of that account and of the controllers' accounts, whatever the fleet's is.
const ACCOUNTS_NAMESPACE: &str = "kube-system";
/// Is in the list always, so that the fence can be tried without anybody being dead.
const SELF_TEST: &str = "self-test";
const USER_HEADER: &str = "impersonate-user";
/// The server lower-cases it and undoes the escape: the user's extra `manifold.dev/incarnation`.
const EXTRA_HEADER: &str = "impersonate-extra-manifold.dev%2fincarnation";

/// Listing an incarnation and showing that it is refused takes 10 to 30 ms; with so much nothing is in order,
/// and the ranges should not wait for it.
const PROOF_MAX: Duration = Duration::from_secs(1);
/// Between two tries of a proof: the list travels to the policy through a watch of the server's.
const PROOF_PAUSE: Duration = Duration::from_millis(5);
/// As many tries before the list is read again.
const PROOF_TRIES: usize = 20;
/// One request.
const REQUEST_MAX: Duration = Duration::from_millis(500);
/// How often the fence is probed: whether it is there and holds.
const CHECK_EVERY: Duration = Duration::from_secs(30);
/// However many writes are in doubt, it is not probed more often.
const CHECK_REST: Duration = Duration::from_secs(1);
/// With `--server-fence=on` the start waits so long for a policy that was installed just now.
const START_MAX: Duration = Duration::from_secs(10);
/// Between two probes then.
const START_PAUSE: Duration = Duration::from_millis(200);
/// With `auto` the start waits so long for an answer.
const FIRST_PROBE_MAX: Duration = Duration::from_secs(2);
/// Listed incarnations are dropped after so long. Whatever a dead process may still send goes over a
/// connection that it had: at its next turn it finds its own fence closed. The server ends a connection that
/// is idle for 90 s, and a request takes a minute at most; the rest is margin.
const LISTED_FOR: Duration = Duration::from_secs(600);
/// Upper bound of the list: 100 kB of an object's 1 MiB. More dead within ten minutes are not fenced by the
/// server.
const LISTED_MAX: usize = 1000;
/// A replica that finds the fence while it works announces it in its Lease after so long: what it had sent
/// before without its incarnation has been answered or given up by then.
const ANNOUNCED_AFTER: Duration = Duration::from_secs(5);

/// Whether the API server fences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServerFenceMode {
    /// Where the policy is installed and impersonation is allowed.
    Auto,
    /// Or else this replica does not start.
    On,
    /// Never.
    #[default]
    Off,
}

/// The state of the fence, for all that write or report it.
pub struct ServerFence {
    mode: ServerFenceMode,
    /// As found by the newest probe.
    found: AtomicBool,
    /// What the own replica Lease is to say.
    announce: watch::Sender<bool>,
    /// What it says, as last written. As long as it says so, every write carries its incarnation.
    announced: AtomicBool,
    /// Why not, where it is not; what does not hold, where it should.
    trouble: RwLock<String>,
    probe_now: Notify,
    held: AtomicU64,
    unproven: AtomicU64,
}

impl fmt::Debug for ServerFence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServerFence({})", self.summary())
    }
}

impl ServerFence {
    /// Not probed yet.
    pub fn new(mode: ServerFenceMode) -> Arc<Self> {
        let trouble = match mode {
            ServerFenceMode::Off => "--server-fence=off",
            ServerFenceMode::Auto | ServerFenceMode::On => "not probed yet",
        };
        Self::with(mode, trouble)
    }

    /// Off, and why, where it would have been probed otherwise.
    pub fn unavailable(why: &str) -> Arc<Self> {
        Self::with(ServerFenceMode::Off, why)
    }

    fn with(mode: ServerFenceMode, trouble: &str) -> Arc<Self> {
        Arc::new(Self {
            mode,
            found: AtomicBool::new(false),
            announce: watch::Sender::new(false),
            announced: AtomicBool::new(false),
            trouble: RwLock::new(trouble.to_owned()),
            probe_now: Notify::new(),
            held: AtomicU64::new(0),
            unproven: AtomicU64::new(0),
        })
    }

    /// What was asked for.
    pub fn mode(&self) -> ServerFenceMode {
        self.mode
    }

    /// Whether writes carry their incarnation.
    pub fn is_on(&self) -> bool {
        self.found.load(Ordering::Acquire) || self.announced.load(Ordering::Acquire)
    }

    /// Whether the own replica Lease is to say that each write carries its incarnation.
    pub(crate) fn announces(&self) -> bool {
        *self.announce.borrow()
    }

    /// The own replica Lease says so, or no longer.
    pub(crate) fn announced(&self, fenced: bool) {
        self.announced.store(fenced, Ordering::Release);
    }

    fn announce(&self, fenced: bool) {
        self.announce
            .send_if_modified(|before| std::mem::replace(before, fenced) != fenced);
    }

    /// For `/readyz?verbose`: `on`, or `off` and why.
    pub fn summary(&self) -> String {
        let trouble = self.trouble.read().unwrap_or_else(PoisonError::into_inner);
        match (self.is_on(), trouble.as_str()) {
            (true, "") => "on".to_owned(),
            (true, trouble) => format!("on, but it does not hold: {trouble}"),
            (false, trouble) => format!("off: {trouble}"),
        }
    }

    /// Dead incarnations whose requests were shown to be refused, and those for whom this was not to be had.
    pub fn proofs(&self) -> (u64, u64) {
        (
            self.held.load(Ordering::Relaxed),
            self.unproven.load(Ordering::Relaxed),
        )
    }

    /// A write was refused because it may not impersonate: probe at once.
    pub fn doubt(&self) {
        self.probe_now.notify_one();
    }

    fn found(&self, result: &Result<(), Trouble>) {
        let before = self.summary();
        let on = match result {
            Ok(()) => true,
            // A server that is away says nothing of its policies.
            Err(Trouble::NoAnswer(_)) => self.found.load(Ordering::Acquire),
            // Asked for by name, it stays on: a write that can't be fenced is then refused, not sent
            // without.
            Err(Trouble::Missing(_)) => {
                self.mode == ServerFenceMode::On && self.found.load(Ordering::Acquire)
            }
        };
        let trouble = match result {
            Ok(()) => String::new(),
            Err(Trouble::NoAnswer(_)) if on => return,
            Err(trouble) => trouble.to_string(),
        };
        *self.trouble.write().unwrap_or_else(PoisonError::into_inner) = trouble;
        self.found.store(on, Ordering::Release);
        if !on {
            self.announce(false);
        }
        let after = self.summary();
        if before != after {
            match result {
                Ok(()) => tracing::info!("the API server fences: {after}"),
                Err(_) if on => tracing::warn!("the API server's fence is {after}"),
                Err(_) => tracing::info!("the API server does not fence: {after}"),
            }
        }
    }
}

/// The headers with which a write is sent as a service account, under an incarnation. `None` where one of
/// them can't stand in a header, which no name of an account or replica is.
pub fn impersonation(
    namespace: &str,
    account: &str,
    holder: &str,
) -> Option<[(HeaderName, HeaderValue); 2]> {
    let user = format!("system:serviceaccount:{namespace}:{account}");
    Some([
        (
            HeaderName::from_static(USER_HEADER),
            HeaderValue::try_from(user).ok()?,
        ),
        (
            HeaderName::from_static(EXTRA_HEADER),
            HeaderValue::try_from(holder).ok()?,
        ),
    ])
}

/// Whether a refusal is this policy's.
pub fn is_refusal(code: u16, message: &str) -> bool {
    code == 403 && message.contains("ValidatingAdmissionPolicy 'manifold-fence'")
}

/// Whether a refusal says that the writer may not impersonate.
pub fn is_no_impersonation(code: u16, message: &str) -> bool {
    code == 403 && message.contains("cannot impersonate")
}

/// Why the fence does not hold.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum Trouble {
    /// The server has answered, and does not fence.
    #[error("{0}")]
    Missing(String),
    /// It has not answered.
    #[error("{0}")]
    NoAnswer(String),
}

impl Trouble {
    fn no_answer() -> Self {
        Self::NoAnswer("the API server does not answer in time".to_owned())
    }
}

impl From<Answer> for Trouble {
    fn from(answer: Answer) -> Self {
        match answer {
            Answer::Status(500.., _) | Answer::Status(429, _) | Answer::None(_) => {
                Self::NoAnswer(answer.to_string())
            }
            Answer::Status(..) => Self::Missing(answer.to_string()),
        }
    }
}

/// Lists the dead and shows that they are refused.
#[derive(Clone)]
pub(crate) struct Barrier {
    client: Client,
    /// Who lists, for people.
    replica: String,
    state: Arc<ServerFence>,
}

impl Barrier {
    pub(crate) fn new(client: Client, replica: &str, state: Arc<ServerFence>) -> Self {
        Self {
            client,
            replica: replica.to_owned(),
            state,
        }
    }

    /// What the own replica Lease is to say of this fence.
    pub(crate) fn announcements(&self) -> watch::Receiver<bool> {
        self.state.announce.subscribe()
    }

    /// Finds out at the start, before anything is written; an error where the fence was asked for and is not
    /// to be had.
    pub(crate) async fn begin(&self) -> Result<(), String> {
        let result = self.first_probe().await;
        self.state.announce(self.state.is_on());
        result
    }

    async fn first_probe(&self) -> Result<(), String> {
        match self.state.mode {
            ServerFenceMode::Off => Ok(()),
            ServerFenceMode::Auto => {
                let result = timeout(FIRST_PROBE_MAX, self.probe())
                    .await
                    .unwrap_or_else(|_| Err(Trouble::no_answer()));
                self.state.found(&result);
                Ok(())
            }
            ServerFenceMode::On => {
                let mut last = Trouble::no_answer();
                let result = timeout(START_MAX, async {
                    while let Err(trouble) = self.probe().await {
                        last = trouble;
                        tokio::time::sleep(START_PAUSE).await;
                    }
                })
                .await
                .map_err(|_| last);
                self.state.found(&result);
                result.map_err(|trouble| trouble.to_string())
            }
        }
    }

    /// Probes now and then for as long as the process lives, and drops from the list who can send nothing any
    /// more.
    pub(crate) async fn keep(self, now: impl Fn() -> Time) {
        if self.state.mode == ServerFenceMode::Off {
            return;
        }
        let mut listed = Listed::default();
        loop {
            let on = self.state.is_on();
            let every = match on && !self.state.announces() {
                true => ANNOUNCED_AFTER,
                false => CHECK_EVERY,
            };
            // Woken early where a write met a refusal.
            let woken = timeout(every, self.state.probe_now.notified())
                .await
                .is_ok();
            if on && !woken {
                self.state.announce(true);
            }
            if self.state.is_on()
                && let Err(trouble) = self.sweep(&mut listed, now()).await
            {
                tracing::debug!(%trouble, "the list of refused incarnations was not swept");
            }
            self.state.found(&self.probe().await);
            tokio::time::sleep(CHECK_REST).await;
        }
    }

    /// Lets the server refuse whatever the holder may still send. `fenced` is whether its Lease said that
    /// each of its writes carries its incarnation. Returns within [`PROOF_MAX`].
    pub(crate) async fn bar(&self, holder: &Holder, fenced: bool) {
        if !self.state.is_on() {
            return;
        }
        let name = holder.to_string();
        let mut last = Trouble::no_answer();
        let proof = timeout(PROOF_MAX, async {
            loop {
                let shown = match self.list(&name).await {
                    Ok(()) => self.refuses(&name).await,
                    Err(trouble) => Err(trouble),
                };
                match shown {
                    Ok(()) => return,
                    Err(trouble) => last = trouble,
                }
                tokio::time::sleep(PROOF_PAUSE).await;
            }
        });
        match proof.await {
            Ok(()) if !fenced => {
                self.state.unproven.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(
                    incarnation = name,
                    "the API server refuses what carries this incarnation, but its replica Lease does not say that all of \
                     its writes do; the rules of time hold"
                );
            }
            Ok(()) => {
                self.state.held.fetch_add(1, Ordering::Relaxed);
                tracing::info!(
                    incarnation = name,
                    "the API server refuses what it may still send"
                );
            }
            Err(_) => {
                self.state.unproven.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(
                    incarnation = name,
                    why = %last,
                    "it could not be shown in time that the API server refuses it; the rules of time hold"
                );
                self.state.doubt();
            }
        }
    }

    /// Tries some times, since the list travels to the policy on its own way.
    async fn refuses(&self, name: &str) -> Result<(), Trouble> {
        for _ in 0..PROOF_TRIES {
            if self.is_refused(name).await? {
                return Ok(());
            }
            tokio::time::sleep(PROOF_PAUSE).await;
        }
        Err(Trouble::Missing(format!(
            "nothing refuses a listed incarnation: is deploy/fence installed, and is {name:?} in the Fence {NAME}?"
        )))
    }

    /// Whether the fence is there and holds: one listed is refused, one that is not listed is let through.
    async fn probe(&self) -> Result<(), Trouble> {
        self.may_try().await?;
        if let Err(Answer::Status(404, _)) = self.read().await {
            self.make(None).await?;
        }
        self.refuses(SELF_TEST).await?;
        match self.is_refused(&self.replica).await? {
            false => Ok(()),
            true => Err(Trouble::Missing(
                "it refuses an incarnation that is not listed".to_owned(),
            )),
        }
    }

    /// Asks first what everybody may ask: where deploy/fence is not installed, no refused request may appear
    /// in the server's audit log every half minute.
    async fn may_try(&self) -> Result<(), Trouble> {
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {
                "verb": "patch", "group": "manifold.dev", "resource": "fences", "name": NAME,
            }},
        });
        let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        let answer = self.send("POST", path, &[], &review).await?;
        if answer["status"]["allowed"] == true {
            return Ok(());
        }
        Err(Trouble::Missing(format!(
            "patching the Fence {NAME} is not allowed: deploy/fence is not installed"
        )))
    }

    /// Tries a write in somebody's name, without effect.
    async fn is_refused(&self, holder: &str) -> Result<bool, Trouble> {
        let Some(headers) = impersonation(ACCOUNTS_NAMESPACE, PROBE_ACCOUNT, holder) else {
            return Err(Trouble::Missing(format!(
                "{holder:?} can't stand in a header"
            )));
        };
        let patch = json!({"metadata": {"annotations": {"manifold.dev/tried-by": self.replica}}});
        let path = format!("{FENCES}/{NAME}?dryRun=All");
        match self.send("PATCH", &path, &headers, &patch).await {
            Ok(_) => Ok(false),
            Err(Answer::Status(code, message)) if is_refusal(code, &message) => Ok(true),
            Err(Answer::Status(404, _)) => Err(Trouble::Missing(format!(
                "no Fence {NAME}: deploy/fence is not installed"
            ))),
            Err(Answer::Status(code, message)) if is_no_impersonation(code, &message) => Err(
                Trouble::Missing(format!("impersonation is not allowed: {message}")),
            ),
            Err(answer) => Err(answer.into()),
        }
    }

    /// Adds a name; nothing happens to one that is there.
    async fn list(&self, name: &str) -> Result<(), Trouble> {
        let present = match self.read().await {
            Err(Answer::Status(404, _)) => return self.make(Some(name)).await,
            read => read?,
        };
        let listed = present["incarnations"].as_object();
        if listed.is_some_and(|listed| listed.contains_key(name)) {
            return Ok(());
        }
        if listed.is_some_and(|listed| listed.len() >= LISTED_MAX) {
            return Err(Trouble::Missing(format!(
                "the Fence {NAME} lists {LISTED_MAX} incarnations already"
            )));
        }
        let patch = json!({"incarnations": {name: self.note()}});
        self.send("PATCH", &format!("{FENCES}/{NAME}"), &[], &patch)
            .await?;
        Ok(())
    }

    /// For people.
    fn note(&self) -> String {
        format!("listed by {} at {}", self.replica, jiff::Timestamp::now())
    }

    /// Nobody has made the list yet, or somebody has deleted it.
    async fn make(&self, name: Option<&str>) -> Result<(), Trouble> {
        let note = "never dropped: replicas try the fence with it".to_owned();
        let names = [(SELF_TEST, note)].into_iter();
        let incarnations: BTreeMap<&str, String> =
            names.chain(name.map(|name| (name, self.note()))).collect();
        let object = json!({
            "apiVersion": "manifold.dev/v1",
            "kind": "Fence",
            "metadata": {"name": NAME, "labels": {"app.kubernetes.io/name": "manifold"}},
            "incarnations": incarnations,
        });
        match self.send("POST", FENCES, &[], &object).await {
            // Another was quicker; the next probe adds what is missing.
            Ok(_) | Err(Answer::Status(409, _)) => Ok(()),
            Err(Answer::Status(404, _)) => Err(Trouble::Missing(
                "the API server does not serve fences.manifold.dev: deploy/fence is not installed"
                    .to_owned(),
            )),
            Err(answer) => Err(answer.into()),
        }
    }

    async fn read(&self) -> Result<Value, Answer> {
        self.send("GET", &format!("{FENCES}/{NAME}"), &[], &Value::Null)
            .await
    }

    async fn sweep(&self, listed: &mut Listed, now: Time) -> Result<(), Trouble> {
        let present = match self.read().await {
            // Deleted by hand while replicas rely on it: without it nobody is refused.
            Err(Answer::Status(404, _)) => return self.make(None).await,
            read => read?,
        };
        let names = present["incarnations"].as_object();
        let names = names
            .into_iter()
            .flat_map(|listed| listed.keys().map(String::as_str));
        let over = listed.over(now, names);
        if over.is_empty() {
            return Ok(());
        }
        let dropped: BTreeMap<&str, Value> = over
            .iter()
            .map(|name| (name.as_str(), Value::Null))
            .collect();
        // What has changed the list meanwhile is not undone; the next probe does it.
        let version = &present["metadata"]["resourceVersion"];
        let patch = json!({"metadata": {"resourceVersion": version}, "incarnations": dropped});
        let path = format!("{FENCES}/{NAME}");
        match self.send("PATCH", &path, &[], &patch).await {
            Ok(_) | Err(Answer::Status(409, _)) => Ok(()),
            Err(answer) => Err(answer.into()),
        }
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(HeaderName, HeaderValue)],
        body: &Value,
    ) -> Result<Value, Answer> {
        let content_type = match method {
            "PATCH" => "application/merge-patch+json",
            _ => "application/json",
        };
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(http::header::CONTENT_TYPE, content_type)
            .header(http::header::ACCEPT, "application/json");
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let body = if body.is_null() {
            Vec::new()
        } else {
            body.to_string().into_bytes()
        };
        let request = request
            .body(body)
            .map_err(|error| Answer::None(error.to_string()))?;
        match timeout(REQUEST_MAX, self.client.request::<Value>(request)).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(KubeError::Api(status))) => {
                Err(Answer::Status(status.code, status.message.clone()))
            }
            Ok(Err(error)) => Err(Answer::None(error.to_string())),
            Err(_) => Err(Answer::None("the API server does not answer".to_owned())),
        }
    }
}

/// An answer that is no success.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum Answer {
    #[error("{1}")]
    Status(u16, String),
    #[error("{0}")]
    None(String),
}

/// Since when each incarnation is known to be listed, by one's own clock.
#[derive(Debug, Default)]
struct Listed {
    since: BTreeMap<String, Time>,
}

impl Listed {
    /// Who has been listed for long enough.
    fn over<'a>(&mut self, now: Time, names: impl Iterator<Item = &'a str>) -> Vec<String> {
        let before = std::mem::take(&mut self.since);
        self.since = names
            .filter(|name| *name != SELF_TEST)
            .map(|name| (name.to_owned(), before.get(name).copied().unwrap_or(now)))
            .collect();
        self.since
            .iter()
            .filter(|(_, since)| now.saturating_sub(**since) >= LISTED_FOR)
            .map(|(name, _)| name.clone())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_headers_name_the_account_and_the_incarnation() {
        let [user, extra] =
            impersonation("kube-system", "deployment-controller", "manifold-0_1f-2").unwrap();
        assert_eq!(
            user.1,
            "system:serviceaccount:kube-system:deployment-controller"
        );
        // The server lower-cases the name and undoes the escape: manifold.dev/incarnation.
        assert_eq!(
            extra.0.as_str(),
            "impersonate-extra-manifold.dev%2fincarnation"
        );
        assert_eq!(extra.1, "manifold-0_1f-2");
        assert!(impersonation("kube-system", "a", "line\nbreak").is_none());
    }

    #[test]
    fn refusals_are_distinguished() {
        let policy = "pods \"a\" is forbidden: ValidatingAdmissionPolicy 'manifold-fence' with binding \
                      'manifold-fence' denied request: no";
        assert!(is_refusal(403, policy) && !is_refusal(422, policy));
        let rbac = "users \"system:serviceaccount:kube-system:a\" is forbidden: User \"b\" cannot impersonate resource";
        assert!(!is_refusal(403, rbac) && is_no_impersonation(403, rbac));
        assert!(!is_no_impersonation(403, policy));
    }

    #[test]
    fn what_is_listed_is_dropped_once_none_of_its_requests_can_live() {
        let mut listed = Listed::default();
        let at = Duration::from_secs;
        assert_eq!(listed.over(at(5), [SELF_TEST, "a_1"].into_iter()), [""; 0]);
        assert_eq!(listed.over(at(300), ["a_1", "b_1"].into_iter()), [""; 0]);
        assert_eq!(listed.over(at(604), ["a_1", "b_1"].into_iter()), [""; 0]);
        assert_eq!(
            listed.over(at(605), [SELF_TEST, "a_1", "b_1"].into_iter()),
            ["a_1"]
        );
        // Gone from the list and there again: it counts again.
        assert_eq!(listed.over(at(700), ["b_1"].into_iter()), [""; 0]);
        assert_eq!(listed.over(at(910), ["a_1", "b_1"].into_iter()), ["b_1"]);
        assert_eq!(listed.over(at(10_000), [SELF_TEST].into_iter()), [""; 0]);
    }

    #[test]
    fn writes_carry_their_incarnation_for_as_long_as_the_lease_says_so() {
        let fence = ServerFence::new(ServerFenceMode::Auto);
        fence.found(&Ok(()));
        assert_eq!((fence.is_on(), fence.announces()), (true, false));
        fence.announce(true);
        fence.announced(true);
        // Gone: others may still rely on the Lease, so writes continue as it says until it says otherwise.
        fence.found(&Err(Trouble::Missing("gone".to_owned())));
        assert_eq!((fence.is_on(), fence.announces()), (true, false));
        fence.announced(false);
        assert!(!fence.is_on());
    }

    #[test]
    fn its_summary_names_mode_and_reason() {
        let off = ServerFence::new(ServerFenceMode::Off);
        assert_eq!(
            (off.is_on(), off.summary().as_str()),
            (false, "off: --server-fence=off")
        );
        let auto = ServerFence::new(ServerFenceMode::Auto);
        let missing = |why: &str| Err(Trouble::Missing(why.to_owned()));
        auto.found(&missing("not there"));
        assert_eq!(
            (auto.is_on(), auto.summary().as_str()),
            (false, "off: not there")
        );
        auto.found(&Ok(()));
        assert_eq!((auto.is_on(), auto.summary().as_str()), (true, "on"));
        auto.found(&Err(Trouble::no_answer()));
        assert_eq!((auto.is_on(), auto.summary().as_str()), (true, "on"));
        auto.found(&missing("gone"));
        assert_eq!(
            (auto.is_on(), auto.summary().as_str()),
            (false, "off: gone")
        );
        let on = ServerFence::new(ServerFenceMode::On);
        on.found(&Ok(()));
        on.found(&missing("gone"));
        assert_eq!(
            (on.is_on(), on.summary().as_str()),
            (true, "on, but it does not hold: gone")
        );
    }
}
