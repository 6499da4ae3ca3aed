//! Orders to the fleet: read and written at the API server with the user's own credentials, so that RBAC
//! alone decides who may give them. No replica is asked.

use std::{collections::BTreeMap, time::Duration};

use controllers_kit::Descriptor;
use http_body_util::BodyExt as _;
use jiff::{SignedDuration, Timestamp};
use kube::{Client, client::Body};
use node::steer::canonical;
use serde::Serialize;
use serde_json::{Value, json};
use steering::{
    Amount, Edit, HOLDS_MAX, Order, Orders, Setting, Target, closest, lift, object_name, place,
};

use crate::reach::{Trouble, Way, answer_of};

/// Of [`Steered`].
const SCHEMA: &str = "manifold.dev/steering/v1";
/// How often a change is tried that meets another one.
const TRIES: u32 = 5;
/// Between two questions who owns what.
const POLL: Duration = Duration::from_millis(500);

/// What a command has done.
#[derive(Debug, Default, Serialize)]
pub struct Steered {
    schema: &'static str,
    /// The ConfigMap, as namespace and name.
    object: String,
    /// What it was about.
    target: String,
    /// Whether the command has changed anything.
    changed: bool,
    /// The orders that hold now.
    orders: Vec<Shown>,
    /// Fields of the object that have no effect, and why.
    faults: Vec<String>,
    /// What people are to know.
    #[serde(skip)]
    lines: Vec<String>,
}

/// An order, as it is printed.
#[derive(Debug, Serialize)]
struct Shown {
    order: &'static str,
    target: String,
    /// Of a setting.
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<f64>,
    /// Of a move.
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<String>,
    since: String,
    until: String,
    reason: String,
    by: String,
}

impl Steered {
    /// One more line for people.
    pub fn say(&mut self, line: String) {
        self.lines.push(line);
    }

    /// As text.
    pub fn text(&self) -> String {
        self.lines.iter().map(|line| format!("{line}\n")).collect()
    }
}

/// What is paused: `CONTROLLER`, `CONTROLLER/NAMESPACE/NAME`, or `CONTROLLER/NAME` with a namespace given
/// beside it.
///
/// # Errors
/// Names what is wrong, and the remedy.
pub fn target(
    text: &str,
    namespace: Option<&str>,
    descriptors: &[Descriptor],
) -> Result<Target, String> {
    let (name, key) = match text.split_once('/') {
        Some((name, key)) => (name, Some(key)),
        None => (text, None),
    };
    let or = ", or a key of it as deployment-controller/NAMESPACE/NAME";
    let controller = controller(name, descriptors, or)?;
    let Some(key) = key else {
        return match namespace {
            None => Ok(Target::Controller(controller)),
            Some(_) => Err(format!(
                "a whole controller is paused in all namespaces: leave -n out, or give a key as {controller}/NAME"
            )),
        };
    };
    let key = match (namespace, key.split_once('/')) {
        (Some(given), Some((of_key, _))) if given != of_key => {
            return Err(format!(
                "-n {given} is not the namespace of the key {key:?}"
            ));
        }
        (Some(given), None) => format!("{given}/{key}"),
        _ => key.to_owned(),
    };
    Ok(Target::Key { controller, key })
}

/// The canonical name of a controller; `or` is what else could be given.
fn controller(name: &str, descriptors: &[Descriptor], or: &str) -> Result<String, String> {
    canonical(descriptors, name).map_err(|like| match like {
        Some(like) => format!("there is no controller {name:?}: did you mean {like:?}?"),
        None => format!("there is no controller {name:?}: give one as deployment-controller{or}"),
    })
}

/// What is set: a setting of a controller.
///
/// # Errors
/// Names what is wrong, and the remedy.
pub fn setting(name: &str, setting: Setting, descriptors: &[Descriptor]) -> Result<Target, String> {
    Ok(Target::Setting {
        controller: controller(name, descriptors, "")?,
        setting,
    })
}

/// The value of a setting, as it is given.
///
/// # Errors
/// Names what is wrong, and the remedy.
pub fn amount(setting: Setting, text: &str) -> Result<Amount, String> {
    let value: f64 = text.parse().map_err(|_| {
        format!("{text:?} is no number: give as many {setting} as each replica is to have")
    })?;
    Amount::of(setting, value).map_err(|why| why.to_string())
}

/// A replica, as its Lease has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    /// Its name.
    pub name: String,
    /// `None` where the Lease has no holder.
    incarnation: Option<String>,
    /// Whether it may own ranges.
    pub takes: bool,
}

/// The replicas of a list of Leases.
pub fn running(list: &Value) -> Vec<Running> {
    let all = list["items"].as_array().into_iter().flatten();
    let read = |lease: &Value| {
        let said = &lease["metadata"]["annotations"];
        let is = |name: &str| said[name] == "true";
        let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
        let (name, incarnation) = match holder.rsplit_once('_') {
            Some((name, incarnation)) => (name.to_owned(), Some(incarnation.to_owned())),
            None => {
                let name = lease["metadata"]["name"].as_str()?;
                (name.split_once("-replica-")?.1.to_owned(), None)
            }
        };
        Some(Running {
            takes: incarnation.is_some()
                && is("manifold.dev/ready")
                && !is("manifold.dev/draining"),
            name,
            incarnation,
        })
    };
    all.filter_map(read).collect()
}

/// Whom a drain concerns.
///
/// # Errors
/// In words: there is no such replica, or none is left to take its ranges.
fn to_drain(
    name: &str,
    running: &[Running],
    orders: &Orders,
    now: Timestamp,
) -> Result<String, String> {
    let Some(found) = running.iter().find(|one| one.name == name) else {
        let names: Vec<&str> = running.iter().map(|one| &*one.name).collect();
        return Err(
            match (closest(name, names.iter().copied()), names.is_empty()) {
                (_, true) => {
                    "the fleet has no replica: give --fleet-name and --fleet-namespace".to_owned()
                }
                (Some(like), _) => format!("there is no replica {name:?}: did you mean {like:?}?"),
                (None, _) => format!(
                    "there is no replica {name:?}; there are {}",
                    names.join(", ")
                ),
            },
        );
    };
    let Some(incarnation) = &found.incarnation else {
        return Err(format!("{name} does not run: it owns nothing"));
    };
    let in_force = orders.in_force(now);
    let is_drained = |one: &Running| {
        let order = in_force.get(&Target::Replica(one.name.clone()));
        order.is_some_and(|order| order.incarnation == one.incarnation)
    };
    let mut others = running.iter().filter(|one| one.name != name && one.takes);
    match others.any(|one| !is_drained(one)) {
        true => Ok(incarnation.clone()),
        false => Err(format!(
            "no other replica is ready and not drained: somebody must own the ranges, so nothing would move from {name}: start \
             or undrain another first"
        )),
    }
}

/// How many ranges of a list of Leases a replica's start owns.
fn owned(list: &Value, name: &str, incarnation: &str) -> usize {
    let holder = format!("{name}_{incarnation}");
    let all = list["items"].as_array().into_iter().flatten();
    all.filter(|lease| lease["spec"]["holderIdentity"] == *holder)
        .count()
}

/// What is given beside the target.
#[derive(Clone, Debug)]
pub struct Given {
    /// For how long.
    pub holds: Duration,
    /// The reason, for people.
    pub reason: String,
}

/// The fleet's orders at the API server.
pub struct Fleet {
    client: Client,
    namespace: String,
    fleet: String,
    descriptors: Vec<Descriptor>,
}

/// The object, as it was read.
pub struct Found {
    /// What it says.
    pub orders: Orders,
    data: BTreeMap<String, String>,
    exists: bool,
    /// By the API server's clock, which replicas follow closer than a user's machine may.
    pub now: Timestamp,
}

impl Fleet {
    /// By the kubeconfig.
    ///
    /// # Errors
    /// Names what is wrong, and the remedy.
    pub async fn open(way: &Way, fleet: &str) -> Result<Self, Trouble> {
        Ok(Self {
            client: way.api_server().await?,
            namespace: way.fleet_namespace.clone(),
            fleet: fleet.to_owned(),
            descriptors: node_registry::descriptors(),
        })
    }

    fn object(&self) -> String {
        format!("{}/{}", self.namespace, object_name(&self.fleet))
    }

    /// Gives an order; what was changed, the orders after it, and when.
    ///
    /// # Errors
    /// Names what is wrong, and the remedy.
    pub async fn place(
        &self,
        given: &Given,
        order: impl Fn(&Found) -> Result<Order, String>,
    ) -> Result<(Edit, Orders, Timestamp), Trouble> {
        let by = self.user().await;
        let edit = |found: &Found| {
            let mut order = order(found)?;
            order.until = given.end(found.now)?;
            order.reason.clone_from(&given.reason);
            order.by.clone_from(&by);
            place(&found.orders, &order).map_err(|why| why.to_string())
        };
        self.edit(edit).await
    }

    /// Pauses a controller or a key.
    ///
    /// # Errors
    /// Names what is wrong, and the remedy.
    pub async fn pause(&self, target: Target, given: &Given) -> Result<Steered, Trouble> {
        let order = |found: &Found| Ok(order(&target, found.now));
        let (edit, after, now) = self.place(given, order).await?;
        let mut steered = self.steered(&target, !edit.is_empty(), &after, now);
        let held = after.in_force(now);
        if let Some(order) = held.get(&target) {
            steered
                .lines
                .push(format!("{target} is paused {}", order.in_words()));
        }
        if let Target::Key { key, .. } = &target
            && !key.contains('/')
        {
            steered.lines.push(format!(
                "{key:?} is taken for an object without namespace: for another give NAMESPACE/NAME, or -n"
            ));
        }
        Ok(steered)
    }

    /// Ends a pause.
    ///
    /// # Errors
    /// Names what is wrong, and the remedy.
    pub async fn resume(&self, target: &Target) -> Result<Steered, Trouble> {
        let (edit, after, now) = self.edit(|found| Ok(lift(&found.orders, target))).await?;
        let mut steered = self.steered(target, !edit.is_empty(), &after, now);
        steered.lines.push(match edit.is_empty() {
            true => format!("{target} is not paused"),
            false => format!("{target} is resumed"),
        });
        let held = after.in_force(now);
        for other in held.keys() {
            let stays = match (target, other) {
                (Target::Controller(of), Target::Key { controller, .. })
                | (Target::Key { controller: of, .. }, Target::Controller(controller)) => {
                    of == controller
                }
                _ => false,
            };
            if stays {
                let still = format!("{other} is still paused: kubectl manifold resume {other}");
                steered.lines.push(still);
            }
        }
        Ok(steered)
    }

    /// Sets workers or a rate of writes of a controller.
    ///
    /// # Errors
    /// Names what is wrong, and the remedy.
    pub async fn set(
        &self,
        target: Target,
        amount: Amount,
        given: &Given,
    ) -> Result<Steered, Trouble> {
        let order = |found: &Found| {
            Ok(Order {
                amount: Some(amount),
                ..order(&target, found.now)
            })
        };
        let (edit, after, now) = self.place(given, order).await?;
        let mut steered = self.steered(&target, !edit.is_empty(), &after, now);
        let held = after.in_force(now);
        if let Some(order) = held.get(&target) {
            let words = order.in_words();
            steered
                .lines
                .push(format!("{target} set to {amount} in each replica {words}"));
        }
        Ok(steered)
    }

    /// Has a controller the workers or the rate of writes of its flags again.
    ///
    /// # Errors
    /// Names what is wrong, and the remedy.
    pub async fn unset(&self, target: &Target) -> Result<Steered, Trouble> {
        let (edit, after, now) = self.edit(|found| Ok(lift(&found.orders, target))).await?;
        let mut steered = self.steered(target, !edit.is_empty(), &after, now);
        steered.lines.push(match edit.is_empty() {
            true => format!("{target} are not set by an order"),
            false => format!("{target} as configured again"),
        });
        Ok(steered)
    }

    /// Drains a replica; with `wait` until it owns nothing, for so long at most.
    ///
    /// # Errors
    /// Names what is wrong, and the remedy.
    pub async fn drain(
        &self,
        name: &str,
        given: &Given,
        wait: Option<Duration>,
    ) -> Result<Steered, Trouble> {
        let running = running(&self.leases("replica").await?);
        let target = Target::Replica(name.to_owned());
        let order = |found: &Found| {
            let incarnation = to_drain(name, &running, &found.orders, found.now)?;
            Ok(Order {
                incarnation: Some(incarnation),
                ..order(&target, found.now)
            })
        };
        let (edit, after, now) = self.place(given, order).await?;
        let mut steered = self.steered(&target, !edit.is_empty(), &after, now);
        let held = after.in_force(now);
        let Some(order) = held.get(&target) else {
            return Ok(steered);
        };
        let words = order.in_words();
        steered.lines.push(format!(
            "{name} hands its ranges over and takes none {words}"
        ));
        if let (Some(wait), Some(incarnation)) = (wait, &order.incarnation) {
            let begun = tokio::time::Instant::now();
            loop {
                let left = owned(&self.leases("range").await?, name, incarnation);
                if left == 0 {
                    let took = begun.elapsed().as_secs_f64();
                    steered
                        .lines
                        .push(format!("{name} owns no range any more, after {took:.1}s"));
                    break;
                }
                if begun.elapsed() >= wait {
                    return Err(format!(
                        "{name} is drained and still owns {left} ranges after {}s: see kubectl manifold status",
                        wait.as_secs()
                    )
                    .into());
                }
                tokio::time::sleep(POLL).await;
            }
        }
        Ok(steered)
    }

    /// Has a replica own ranges again.
    ///
    /// # Errors
    /// Names what is wrong, and the remedy.
    pub async fn undrain(&self, name: &str) -> Result<Steered, Trouble> {
        let target = Target::Replica(name.to_owned());
        let (edit, after, now) = self.edit(|found| Ok(lift(&found.orders, &target))).await?;
        if edit.is_empty() {
            // A mistyped name must not pass for one that is not drained.
            let running = running(&self.leases("replica").await?);
            let names: Vec<&str> = running.iter().map(|one| &*one.name).collect();
            if !names.contains(&name) {
                return Err(format!(
                    "there is no replica {name:?}; there are {}",
                    names.join(", ")
                )
                .into());
            }
        }
        let mut steered = self.steered(&target, !edit.is_empty(), &after, now);
        steered.lines.push(match edit.is_empty() {
            true => format!("{name} is not drained"),
            false => format!("{name} is no longer drained"),
        });
        Ok(steered)
    }

    /// What is printed of a change.
    pub fn steered(
        &self,
        target: &Target,
        changed: bool,
        orders: &Orders,
        now: Timestamp,
    ) -> Steered {
        let held = orders.in_force(now).into_values();
        let shown = held.map(|order| Shown {
            order: match order.target {
                Target::Replica(_) => "drain",
                Target::Controller(_) | Target::Key { .. } => "pause",
                Target::Setting { .. } => "set",
                Target::Range(_) => "move",
            },
            target: order.target.to_string(),
            value: order.amount.map(Amount::value),
            to: order.to.clone(),
            since: order.since.to_string(),
            until: order.until.to_string(),
            reason: order.reason.clone(),
            by: order.by.clone(),
        });
        let faults = orders.faults_in_words();
        let lines = faults.iter().map(|fault| {
            format!(
                "{}: a field has no effect: {fault}: correct or remove it",
                self.object()
            )
        });
        Steered {
            schema: SCHEMA,
            object: self.object(),
            target: target.to_string(),
            changed,
            orders: shown.collect(),
            lines: lines.collect(),
            faults,
        }
    }

    /// Changes the object; what was changed, the orders after it, and when.
    ///
    /// # Errors
    /// Names what is wrong, and the remedy.
    pub async fn edit(
        &self,
        edit: impl Fn(&Found) -> Result<Edit, String>,
    ) -> Result<(Edit, Orders, Timestamp), Trouble> {
        let mut tries = 0;
        loop {
            tries += 1;
            let found = self.find().await?;
            let edit = edit(&found)?;
            if edit.is_empty() {
                return Ok((edit, found.orders, found.now));
            }
            match self.write(&edit, found.exists).await {
                Ok(()) => {
                    let mut data = found.data;
                    for (field, text) in &edit.fields {
                        match text {
                            Some(text) => drop(data.insert(field.clone(), text.clone())),
                            None => drop(data.remove(field)),
                        }
                    }
                    let orders = Orders::read(&data, &|name| canonical(&self.descriptors, name));
                    return Ok((edit, orders, found.now));
                }
                // Somebody else has made or removed the object meanwhile.
                Err(trouble) if matches!(trouble.code, Some(404 | 409)) && tries < TRIES => {}
                Err(trouble) => return Err(self.explained(&trouble)),
            }
        }
    }

    async fn find(&self) -> Result<Found, Trouble> {
        let path = format!(
            "/api/v1/namespaces/{}/configmaps/{}",
            self.namespace,
            object_name(&self.fleet)
        );
        let (code, body, date) = self.ask("GET", &path, None).await?;
        let object = match code {
            200..=299 => Some(body),
            404 => None,
            code => return Err(self.explained(&refusal(code, &body))),
        };
        let data = object
            .as_ref()
            .map_or(&Value::Null, |object| &object["data"]);
        let data: BTreeMap<String, String> = data
            .as_object()
            .into_iter()
            .flatten()
            .map(|(field, text)| (field.clone(), text.as_str().unwrap_or_default().to_owned()))
            .collect();
        Ok(Found {
            orders: Orders::read(&data, &|name| canonical(&self.descriptors, name)),
            data,
            exists: object.is_some(),
            now: date.unwrap_or_else(Timestamp::now),
        })
    }

    async fn write(&self, edit: &Edit, exists: bool) -> Result<(), Trouble> {
        let (namespace, name) = (&self.namespace, object_name(&self.fleet));
        let all = format!("/api/v1/namespaces/{namespace}/configmaps");
        let (code, body, _) = match exists {
            true => {
                self.ask("PATCH", &format!("{all}/{name}"), Some(&edit.patch(None)))
                    .await?
            }
            false => {
                let object = json!({
                    "apiVersion": "v1",
                    "kind": "ConfigMap",
                    "metadata": {
                        "name": name,
                        "labels": {"app.kubernetes.io/name": "manifold"},
                    },
                    "data": edit.data(),
                });
                self.ask("POST", &all, Some(&object)).await?
            }
        };
        match code {
            200..=299 => Ok(()),
            code => Err(refusal(code, &body)),
        }
    }

    /// A refusal with its remedy.
    fn explained(&self, trouble: &Trouble) -> Trouble {
        let remedy = match trouble.code {
            Some(403) => format!(
                ": have a RoleBinding to manifold:steer made for you in the namespace {0}; if the ConfigMap {1} is missing there, \
                 apply deploy/rbac",
                self.namespace,
                object_name(&self.fleet)
            ),
            Some(404) => format!(
                ": is {} the fleet's namespace? Give --fleet-namespace",
                self.namespace
            ),
            _ => String::new(),
        };
        Trouble {
            why: format!("{}{remedy}", trouble.why),
            code: trouble.code,
        }
    }

    /// The fleet's Leases of a kind.
    ///
    /// # Errors
    /// Names what is wrong, and the remedy.
    pub async fn leases(&self, kind: &str) -> Result<Value, Trouble> {
        let path = format!(
            "/apis/coordination.k8s.io/v1/namespaces/{}/leases?labelSelector=manifold.dev%2Ffleet%3D{}%2Cmanifold.dev%2Flease%3D{kind}",
            self.namespace, self.fleet
        );
        let (code, body, _) = self.ask("GET", &path, None).await?;
        match code {
            200..=299 => Ok(body),
            code => Err(self.explained(&refusal(code, &body))),
        }
    }

    /// Who asks, for people; empty where that is not known.
    async fn user(&self) -> String {
        let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
        let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
        let answer = self.ask("POST", path, Some(&review)).await;
        let name = answer.ok().and_then(|(_, body, _)| {
            let name = body["status"]["userInfo"]["username"].as_str()?;
            Some(name.chars().take(steering::REASON_MAX).collect())
        });
        name.unwrap_or_default()
    }

    /// The answer's status, its body, and the API server's time.
    async fn ask(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(u16, Value, Option<Timestamp>), Trouble> {
        let content = match method {
            "PATCH" => "application/merge-patch+json",
            _ => "application/json",
        };
        let request = http::Request::builder()
            .method(method)
            .uri(path)
            .header(http::header::ACCEPT, "application/json")
            .header(http::header::CONTENT_TYPE, content)
            .body(body.map_or_else(Body::empty, |body| {
                Body::from(body.to_string().into_bytes())
            }))
            .map_err(|why| why.to_string())?;
        let answer = answer_of(self.client.send(request), "the API server can't be asked").await?;
        let date = answer.headers().get(http::header::DATE);
        let date = date
            .and_then(|date| date.to_str().ok())
            .and_then(|date| jiff::fmt::rfc2822::parse(date).ok())
            .map(|date| date.timestamp());
        let code = answer.status().as_u16();
        let bytes = answer.into_body().collect().await.map_err(|why| Trouble {
            code: Some(code),
            why: format!("the answer broke off: {why}"),
        })?;
        let body = serde_json::from_slice(&bytes.to_bytes()).unwrap_or_default();
        Ok((code, body, date))
    }
}

/// An order from now on, of nobody and without an end yet.
pub fn order(target: &Target, now: Timestamp) -> Order {
    Order {
        target: target.clone(),
        incarnation: None,
        amount: None,
        to: None,
        home: None,
        since: now,
        until: now,
        reason: String::new(),
        by: String::new(),
    }
}

impl Given {
    /// When an order of now ends.
    fn end(&self, now: Timestamp) -> Result<Timestamp, String> {
        let holds = SignedDuration::try_from(self.holds).ok();
        let holds = holds.filter(|holds| *holds <= HOLDS_MAX);
        let end = holds.and_then(|holds| now.checked_add(holds).ok());
        end.ok_or_else(|| format!("--for: give at most {}h", HOLDS_MAX.as_hours()))
    }
}

fn refusal(code: u16, body: &Value) -> Trouble {
    let said = body["message"].as_str().map_or_else(
        || format!("the API server answered with status {code}"),
        str::to_owned,
    );
    Trouble {
        code: Some(code),
        why: said,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn lease(name: &str, holder: &str, ready: bool) -> Value {
        json!({
            "metadata": {
                "name": format!("manifold-replica-{name}"),
                "annotations": {"manifold.dev/ready": ready.to_string(), "manifold.dev/draining": "false"},
            },
            "spec": {"holderIdentity": holder},
        })
    }

    #[test]
    fn a_target_is_a_controller_or_a_key_of_one() {
        let descriptors = node_registry::descriptors();
        let of = |text: &str, namespace| {
            target(text, namespace, &descriptors).map(|target| target.to_string())
        };
        for (text, namespace, expected) in [
            ("deployment-controller", None, "deployment-controller"),
            ("deployment", None, "deployment-controller"),
            (
                "deployment/shop/web",
                None,
                "deployment-controller/shop/web",
            ),
            (
                "deployment/web",
                Some("shop"),
                "deployment-controller/shop/web",
            ),
            (
                "deployment/shop/web",
                Some("shop"),
                "deployment-controller/shop/web",
            ),
            (
                "namespace-controller/shop",
                None,
                "namespace-controller/shop",
            ),
        ] {
            assert_eq!(of(text, namespace), Ok(expected.to_owned()), "{text}");
        }
        for (text, namespace, part) in [
            (
                "deploymet-controller",
                None,
                "did you mean \"deployment-controller\"?",
            ),
            ("zzz", None, "give one as deployment-controller"),
            ("", None, "there is no controller \"\""),
            ("deployment", Some("shop"), "leave -n out"),
            (
                "deployment/shop/web",
                Some("other"),
                "-n other is not the namespace",
            ),
        ] {
            let why = of(text, namespace).unwrap_err();
            assert!(why.contains(part), "{text}: {why}");
        }
    }

    #[test]
    fn who_can_be_drained_and_who_can_not() {
        let list = json!({"items": [
            lease("a", "a_1", true),
            lease("b", "b_1", true),
            lease("c", "c_1", false),
            lease("d", "", true),
        ]});
        let replicas = running(&list);
        assert_eq!(replicas.len(), 4);
        let drained = |name: &str, incarnation: &str| {
            let target = Target::Replica(name.to_owned());
            let order = Order {
                incarnation: Some(incarnation.to_owned()),
                until: NOW + SignedDuration::from_mins(1),
                ..order(&target, NOW)
            };
            let mut orders = Orders::default();
            orders.all.insert(target.field(), order);
            orders
        };
        let none = Orders::default();
        for (name, orders, expected) in [
            ("a", &none, Ok("1")),
            ("c", &none, Ok("1")),
            ("d", &none, Err("does not run")),
            ("zzz", &none, Err("there are a, b, c, d")),
            ("a", &drained("b", "1"), Err("nothing would move")),
            // Another start of it takes ranges again.
            ("a", &drained("b", "0"), Ok("1")),
            ("b", &drained("b", "1"), Ok("1")),
        ] {
            let found = to_drain(name, &replicas, orders, NOW);
            match (&found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{name}"),
                (Err(why), Err(part)) => assert!(why.contains(part), "{name}: {why}"),
                _ => panic!("{name}: {found:?}"),
            }
        }
        let ranges = json!({"items": [
            {"spec": {"holderIdentity": "a_1"}},
            {"spec": {"holderIdentity": "a_2"}},
            {"spec": {"holderIdentity": "b_1"}},
        ]});
        assert_eq!(owned(&ranges, "a", "1"), 1);
    }

    #[test]
    fn an_order_ends_in_time() {
        let end = |hours: u64| {
            let given = Given {
                holds: Duration::from_secs(hours * 3600),
                reason: String::new(),
            };
            given.end(NOW)
        };
        assert_eq!(end(2).map(Timestamp::as_second), Ok(7200));
        let why = end(7 * 24 + 1).unwrap_err();
        assert!(why.contains("at most 168h"), "{why}");
    }

    #[test]
    fn a_setting_has_a_controller_and_a_number_within_bounds() {
        let descriptors = node_registry::descriptors();
        let of = |name| setting(name, Setting::Workers, &descriptors).map(|one| one.to_string());
        assert_eq!(of("job"), Ok("workers of job-controller".to_owned()));
        let why = of("jobb-controller").unwrap_err();
        assert!(why.contains("did you mean \"job-controller\"?"), "{why}");
        for (setting, text, expected) in [
            (Setting::Workers, "20", Ok("20")),
            (Setting::Workers, "0", Err("from 1 to 1000; `pause` stops")),
            (Setting::Workers, "1001", Err("from 1 to 1000")),
            (Setting::Workers, "2.5", Err("a whole number")),
            (Setting::Workers, "many", Err("\"many\" is no number")),
            (Setting::Qps, "2.5", Ok("2.5")),
            (Setting::Qps, "0", Err("from 0.1 to 10000")),
            (Setting::Qps, "-1", Err("from 0.1 to 10000")),
            (Setting::Qps, "NaN", Err("from 0.1 to 10000")),
            (Setting::Qps, "inf", Err("from 0.1 to 10000")),
        ] {
            match (amount(setting, text), expected) {
                (Ok(amount), Ok(expected)) => assert_eq!(amount.to_string(), expected),
                (Err(why), Err(part)) => assert!(why.contains(part), "{text}: {why}"),
                (found, _) => panic!("{text}: {found:?}"),
            }
        }
    }
}
