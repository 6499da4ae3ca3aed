//! What must hold of identities and addresses: signatures, tokens, certificates, aggregated roles and ranges
//! of Services.
//!
//! Each rule has a name, by which a deliberate fault says that it is this one which must catch it. A
//! controller acts on what it sees, and may see late: what has gone counts for as long after as a write may
//! be on its way. Writes of processes that stood still are not judged.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
    time::Duration,
};

use controllers_kit::{Key, Timestamp, cidr::Cidr, selectors::Selector, testing::World};
use kubernetes_proto::{
    AnyObject, Object, cast,
    certificates::CertificateSigningRequest,
    core::{BootstrapToken, ClusterInfo, ServiceAccount, ServiceAccountToken},
    networking::{IpAddress, ServiceCidr},
    rbac::{ClusterRole, PolicyRule},
};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    judge::By,
    server::{Change, Server},
};

/// Who signs cluster-info.
pub const SIGNER: &str = "bootstrap-signer-controller";
/// Who deletes bootstrap tokens.
pub const TOKEN_CLEANER: &str = "token-cleaner-controller";
/// Who aggregates roles.
pub const AGGREGATION: &str = "clusterrole-aggregation-controller";
/// Who keeps ranges of Services.
pub const RANGES: &str = "service-cidr-controller";
/// Who makes tokens of accounts.
pub const TOKENS: &str = "serviceaccount-token-controller";
/// Who approves requests for certificates.
pub const APPROVING: &str = "certificatesigningrequest-approving-controller";
/// Who fulfils them.
pub const SIGNING: &str = "certificatesigningrequest-signing-controller";
/// Who deletes them.
pub const REQUEST_CLEANER: &str = "certificatesigningrequest-cleaner-controller";
/// Who deletes pods' requests for certificates.
pub const POD_REQUEST_CLEANER: &str = "podcertificaterequest-cleaner-controller";
/// The gate of those.
pub const POD_REQUESTS: &str = "PodCertificateRequest";

/// cluster-info is signed with tokens that are there and may sign, and at the end with all of them.
pub const SIGNED: &str = "signed-by-living-tokens";
/// No bootstrap token is deleted before its time.
pub const EXPIRED: &str = "token-until-its-time";
/// An aggregate has only rules of roles that it selects, and at the end all of them.
pub const GRANTED: &str = "granted-by-selected-roles";
/// A range of Services stays while one of them needs it.
pub const RANGE_KEPT: &str = "service-range-kept";
/// No token is made for an account that is gone, and none of one that is there is deleted.
pub const TOKEN_OF_ACCOUNT: &str = "token-of-living-account";
/// A request for a certificate is approved only where a review allows it.
pub const APPROVED: &str = "approved-if-allowed";
/// A certificate is issued only for what is approved.
pub const ISSUED: &str = "issued-if-approved";
/// A request for a certificate that is decided stays an hour, one of a pod a quarter of one.
pub const REQUEST_KEPT: &str = "request-until-its-time";

/// Holds a range of Services.
pub const RANGE_FINALIZER: &str = "networking.k8s.io/service-cidr-finalizer";
/// The name that is asked for in [`request`].
pub const NODE: &str = "system:node:one";
/// Who may ask for certificates of nodes.
pub const BOOTSTRAPPER: &str = "system:bootstrap:abcdef";
/// How old what a writer sees may be.
const ON_THE_WAY: Duration = Duration::from_secs(20);
const SIGNATURE: &str = "jws-kubeconfig-";
/// How long a decided request for a certificate stays.
const DECIDED_SECONDS: i64 = 3600;
/// How long a pod's does.
const POD_REQUEST_SECONDS: i64 = 900;
const UID: &str = "kubernetes.io/service-account.uid";
const ACCOUNT: &str = "kubernetes.io/service-account.name";

/// What is remembered.
#[derive(Default)]
pub struct Identity {
    /// When a bootstrap token was there last that may sign, by its id.
    signers: BTreeMap<String, Option<Instant>>,
    /// When accounts went, by uid.
    accounts: BTreeMap<String, Instant>,
    /// When a role was there last with a rule, by the role's labels and the rule.
    rules: Vec<(ClusterRole, Option<Instant>)>,
}

/// A kubelet's request for a certificate, PEM: the same for all runs of a process.
pub fn request() -> &'static str {
    static PEM: OnceLock<String> = OnceLock::new();
    PEM.get_or_init(|| {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let name = &mut params.distinguished_name;
        name.push(DnType::CommonName, NODE);
        name.push(DnType::OrganizationName, "system:nodes");
        let key = KeyPair::generate().expect("keys can be made");
        let request = params.serialize_request(&key).expect("a plain request");
        request.pem().expect("a request is a text")
    })
}

/// Who may have what approved, as bindings of kubeadm have it.
fn allows(user: &str, subresource: &str) -> bool {
    match subresource {
        "selfnodeclient" => user == NODE,
        "nodeclient" => user == BOOTSTRAPPER,
        _ => false,
    }
}

/// The answer to a SubjectAccessReview.
pub fn review(body: &[u8]) -> Value {
    let mut review: Value = serde_json::from_slice(body).unwrap_or_default();
    let user = review["spec"]["user"].as_str().unwrap_or_default();
    let asked = &review["spec"]["resourceAttributes"]["subresource"];
    let allowed = allows(user, asked.as_str().unwrap_or_default());
    review["status"] = json!({ "allowed": allowed });
    review
}

fn is_since(at: Option<Instant>) -> bool {
    at.is_none_or(|at| at.elapsed() <= ON_THE_WAY)
}

fn text<'a>(token: &'a BootstrapToken, key: &str) -> &'a str {
    let value = token.data.get(key);
    value
        .and_then(|value| value.reveal_text())
        .unwrap_or_default()
}

fn expiration(token: &BootstrapToken) -> Option<Timestamp> {
    text(token, "expiration").parse().ok()
}

/// Whether a token may sign and has not expired some seconds ago.
fn may_sign(token: &BootstrapToken, now: Timestamp, seconds: i64) -> bool {
    let lives = |at: Timestamp| now.duration_since(at).as_secs() < seconds;
    text(token, "usage-bootstrap-signing") == "true" && expiration(token).is_none_or(lives)
}

fn of<T: Object>(one: &Option<AnyObject>) -> Option<Arc<T>> {
    cast::<T>(Arc::clone(one.as_ref()?))
}

fn is_that(request: &CertificateSigningRequest, condition: &str) -> bool {
    let mut conditions = request.status.iter().flat_map(|status| &status.conditions);
    conditions.any(|one| one.r#type == condition)
}

impl Identity {
    /// Of a cluster as it is.
    pub fn new(server: &Server) -> Self {
        let mut identity = Self::default();
        for object in server.world.objects() {
            let there = Change {
                old: None,
                new: Some(Arc::clone(object)),
            };
            identity.note(&there);
        }
        identity
    }

    fn note(&mut self, change: &Change) {
        let now = Instant::now();
        let (old, new) = (
            of::<BootstrapToken>(&change.old),
            of::<BootstrapToken>(&change.new),
        );
        let may = |token: &BootstrapToken| text(token, "usage-bootstrap-signing") == "true";
        if let Some(token) = new.as_ref().or(old.as_ref()) {
            let id = text(token, "token-id").to_owned();
            match (
                old.is_some_and(|old| may(&old)),
                new.is_some_and(|new| may(&new)),
            ) {
                (_, true) => {
                    self.signers.insert(id, None);
                }
                (true, false) => {
                    self.signers.insert(id, Some(now));
                }
                (false, false) => {}
            }
        }
        if let (Some(account), None) = (of::<ServiceAccount>(&change.old), &change.new) {
            let uid = Object::metadata(&*account).uid.to_string();
            self.accounts.insert(uid, now);
        }
        let (old, new) = (
            of::<ClusterRole>(&change.old),
            of::<ClusterRole>(&change.new),
        );
        if let Some(old) = old {
            for (role, until) in &mut self.rules {
                if *role == *old && until.is_none() {
                    *until = Some(now);
                }
            }
        }
        if let Some(new) = new {
            self.rules.push((ClusterRole::clone(&new), None));
        }
        self.rules.retain(|(_, until)| is_since(*until));
    }

    /// Judges a change; by nobody of the fleet where there is no writer.
    pub fn after(
        &mut self,
        server: &Server,
        change: &Change,
        by: Option<&By<'_>>,
    ) -> Option<String> {
        self.note(change);
        // Requests that stood still, and those that nobody waits for, come from a view that is past.
        let by = by.filter(|by| by.shown.is_some() && !by.stale)?;
        let now = server.world.now();
        match by.writer.controller.as_str() {
            SIGNER => self.signed(server, change, now),
            TOKEN_CLEANER => {
                let token = of::<BootstrapToken>(&change.old)?;
                let at = expiration(&token);
                let is_early = at.is_none_or(|at| now < at);
                is_early.then(|| {
                    let name = &Object::metadata(&*token).name;
                    format!("{EXPIRED}: {TOKEN_CLEANER} deleted {name}, which expires at {at:?}")
                })
            }
            AGGREGATION => self.granted(change),
            RANGES => range_let_go(server, change),
            TOKENS => self.token(server, change, now),
            APPROVING => approved(change),
            SIGNING => issued(change),
            REQUEST_CLEANER => request_deleted(change, now),
            POD_REQUEST_CLEANER => {
                let old = change.old.as_ref().filter(|_| change.new.is_none())?;
                let made = old.metadata().creation_timestamp?;
                let age = now.duration_since(made.timestamp()).as_secs();
                (age < POD_REQUEST_SECONDS).then(|| {
                    let name = &old.metadata().name;
                    format!("{REQUEST_KEPT}: {POD_REQUEST_CLEANER} deleted {name} after {age} s")
                })
            }
            _ => None,
        }
    }

    fn signed(&self, server: &Server, change: &Change, now: Timestamp) -> Option<String> {
        let (old, new) = (
            of::<ClusterInfo>(&change.old)?,
            of::<ClusterInfo>(&change.new)?,
        );
        let fresh = new
            .data
            .iter()
            .filter(|(key, value)| old.data.get(*key) != Some(value));
        let mut ids = fresh.filter_map(|(key, _)| key.strip_prefix(SIGNATURE));
        let wrong = ids.find(|id| {
            let name = format!("kube-system/bootstrap-token-{id}");
            let token = server.world.find::<BootstrapToken>(&name);
            let seconds = i64::try_from(ON_THE_WAY.as_secs()).unwrap_or_default();
            let is_over = token.is_some_and(|token| !may_sign(&token, now, seconds));
            let known = self.signers.get(*id);
            let was = known.is_some_and(|until| is_since(*until));
            !was || (is_over && known.is_some_and(Option::is_none))
        })?;
        Some(format!(
            "{SIGNED}: {SIGNER} signed with token {wrong}, which may not sign"
        ))
    }

    fn granted(&self, change: &Change) -> Option<String> {
        let new = of::<ClusterRole>(&change.new)?;
        let aggregation = new.aggregation_rule.as_ref()?;
        let selectors = aggregation.cluster_role_selectors.iter();
        let selectors: Vec<Selector> = selectors
            .filter_map(|selector| Selector::compile(Some(selector)).ok())
            .collect();
        let meta = Object::metadata(&*new);
        let given = |rule: &PolicyRule| {
            self.rules.iter().any(|(role, _)| {
                let of = Object::metadata(role);
                of.name != meta.name
                    && role.rules.contains(rule)
                    && selectors
                        .iter()
                        .any(|selector| selector.matches(&of.labels))
            })
        };
        let wrong = new.rules.iter().find(|rule| !given(rule))?;
        Some(format!(
            "{GRANTED}: {AGGREGATION} gave {} what no role that it selects has had lately: {wrong:?}",
            meta.name
        ))
    }

    fn token(&self, server: &Server, change: &Change, now: Timestamp) -> Option<String> {
        let has = |secret: &ServiceAccountToken| {
            secret
                .data
                .get("token")
                .is_some_and(|token| !token.is_empty())
        };
        let old = of::<ServiceAccountToken>(&change.old)?;
        let new = of::<ServiceAccountToken>(&change.new);
        let account = |secret: &ServiceAccountToken| {
            let meta = Object::metadata(secret);
            let name = meta.annotation(ACCOUNT)?;
            server
                .world
                .find::<ServiceAccount>(&format!("{}/{name}", meta.namespace))
        };
        let uid = |secret: &ServiceAccountToken| {
            Object::metadata(secret).annotation(UID).map(str::to_owned)
        };
        let is_of = |account: &ServiceAccount, uid: Option<&str>| {
            uid.is_none_or(|uid| *Object::metadata(account).uid == *uid)
        };
        let name = &Object::metadata(&*old).name;
        match new {
            Some(new) if !has(&old) && has(&new) => {
                let uid = uid(&new);
                let lives = account(&new).is_some_and(|account| is_of(&account, uid.as_deref()));
                let gone = uid.as_ref().and_then(|uid| self.accounts.get(uid));
                let lately = gone.is_some_and(|gone| is_since(Some(*gone)));
                (!lives && !lately).then(|| {
                    format!("{TOKEN_OF_ACCOUNT}: {TOKENS} made the token of {name}, whose account is gone")
                })
            }
            None => {
                let uid = uid(&old);
                let account = account(&old).filter(|account| is_of(account, uid.as_deref()))?;
                let made = Object::metadata(&*account).creation_timestamp;
                let made = made.map_or(Timestamp::MIN, |made| made.timestamp());
                // One that has just come may not have been there when it was asked for.
                let is_old = now.duration_since(made).as_secs() > 20;
                (uid.is_some() || is_old).then(|| {
                    format!("{TOKEN_OF_ACCOUNT}: {TOKENS} deleted {name}, whose account is there")
                })
            }
            _ => None,
        }
    }
}

fn approved(change: &Change) -> Option<String> {
    let (old, new) = (
        of::<CertificateSigningRequest>(&change.old)?,
        of::<CertificateSigningRequest>(&change.new)?,
    );
    if is_that(&old, "Approved") || !is_that(&new, "Approved") {
        return None;
    }
    let user = new.spec.as_ref().map_or("", |spec| spec.username.as_str());
    let may = allows(user, "selfnodeclient") || allows(user, "nodeclient");
    (!may).then(|| {
        let name = &Object::metadata(&*new).name;
        format!("{APPROVED}: {APPROVING} approved {name} of {user:?}, who may not have it")
    })
}

fn issued(change: &Change) -> Option<String> {
    let (old, new) = (
        of::<CertificateSigningRequest>(&change.old)?,
        of::<CertificateSigningRequest>(&change.new)?,
    );
    let has = |request: &CertificateSigningRequest| {
        let status = request.status.as_ref();
        status.is_some_and(|status| !status.certificate.is_empty())
    };
    let may = is_that(&old, "Approved") && !is_that(&old, "Denied");
    (!has(&old) && has(&new) && !may).then(|| {
        let name = &Object::metadata(&*new).name;
        format!("{ISSUED}: {SIGNING} issued a certificate for {name}, which is not approved")
    })
}

fn request_deleted(change: &Change, now: Timestamp) -> Option<String> {
    let old = of::<CertificateSigningRequest>(&change.old)?;
    let conditions = old.status.iter().flat_map(|status| &status.conditions);
    let seconds = |at: Option<kubernetes_proto::meta::Time>| {
        at.map_or(0, |at| now.duration_since(at.timestamp()).as_secs())
    };
    let decided = conditions.map(|one| seconds(one.last_update_time));
    let age = decided
        .max()
        .unwrap_or_else(|| seconds(Object::metadata(&*old).creation_timestamp));
    (change.new.is_none() && age < DECIDED_SECONDS).then(|| {
        let name = &Object::metadata(&*old).name;
        format!("{REQUEST_KEPT}: {REQUEST_CLEANER} deleted {name} after {age} s")
    })
}

fn ranges(of: &ServiceCidr) -> Vec<Cidr> {
    let texts = of.spec.iter().flat_map(|spec| &spec.cidrs);
    texts.filter_map(|text| Cidr::parse(text)).collect()
}

fn range_let_go(server: &Server, change: &Change) -> Option<String> {
    let is_held = |one: &ServiceCidr| {
        let held = &Object::metadata(one).finalizers;
        held.iter().any(|name| **name == *RANGE_FINALIZER)
    };
    let old = of::<ServiceCidr>(&change.old).filter(|old| is_held(old))?;
    if of::<ServiceCidr>(&change.new).is_some_and(|new| is_held(&new)) {
        return None;
    }
    let name = &Object::metadata(&*old).name;
    let world = &server.world;
    let others: Vec<Cidr> = world
        .all::<ServiceCidr>()
        .iter()
        .filter(|other| Object::metadata(&***other).name != *name && is_held(other))
        .flat_map(|other| ranges(other))
        .collect();
    let own = ranges(&old);
    let address = world.all::<IpAddress>().into_iter().find(|address| {
        let name = Object::metadata(&**address).name.parse();
        name.is_ok_and(|address| {
            own.iter().any(|range| range.contains(address))
                && !others.iter().any(|range| range.contains(address))
        })
    })?;
    Some(format!(
        "{RANGE_KEPT}: {RANGES} let {name} go, in which {} lies",
        Object::metadata(&*address).name
    ))
}

/// What is wrong at the end.
pub fn at_the_end(world: &World) -> Option<String> {
    unsigned(world).or_else(|| not_the_union(world))
}

fn unsigned(world: &World) -> Option<String> {
    let info = world.find::<ClusterInfo>("kube-public/cluster-info")?;
    let ids = info
        .data
        .keys()
        .filter_map(|key| key.strip_prefix(SIGNATURE));
    let ids: Vec<&str> = ids.collect();
    let tokens = world.all::<BootstrapToken>();
    let living: Vec<&str> = tokens
        .iter()
        .filter(|token| may_sign(token, world.now(), 0))
        .map(|token| text(token, "token-id"))
        .collect();
    (ids != living).then(|| {
        format!(
            "{SIGNED}: cluster-info is signed with {ids:?}, and the living tokens are {living:?}"
        )
    })
}

fn not_the_union(world: &World) -> Option<String> {
    let roles = world.all::<ClusterRole>();
    for role in &roles {
        let Some(aggregation) = &role.aggregation_rule else {
            continue;
        };
        let meta = Object::metadata(&**role);
        let mut wanted: Vec<PolicyRule> = Vec::new();
        for selector in &aggregation.cluster_role_selectors {
            let Ok(selector) = Selector::compile(Some(selector)) else {
                continue;
            };
            let selected = roles.iter().filter(|other| {
                let other = Object::metadata(&***other);
                other.name != meta.name && selector.matches(&other.labels)
            });
            for rule in selected.flat_map(|other| &other.rules) {
                if !wanted.contains(rule) {
                    wanted.push(rule.clone());
                }
            }
        }
        if wanted != role.rules {
            return Some(format!(
                "{GRANTED}: {} has not the rules of the roles that it selects",
                Key::of_meta(meta)
            ));
        }
    }
    None
}
