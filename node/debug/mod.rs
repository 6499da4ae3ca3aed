//! `/debug/shards`, `/debug/explain`, `/debug/top`, `/debug/unhappy` and `/debug/move`: who owns what, why a
//! key does not move, what is busy, and moving a range. Any replica answers for all; nobody is
//! shown a key whose object they may not see.

pub mod answers;
pub mod live;
mod resolve;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, OnceLock},
    time::Duration,
};

use controllers_kit::{Key, Resource};
use coordinator::{Handle, Loads};
use coordinator_core::Member;
use futures::{
    FutureExt,
    future::{BoxFuture, join_all},
    stream::BoxStream,
};
use inspect::{
    EXPLAIN_SCHEMA, Explanation, FleetShards, Hidden, KeyReport, Missing, RangeOwner,
    ReplicaShards, SHARDS_SCHEMA, TOP_SCHEMA, Top, UNHAPPY_SCHEMA, Unhappy,
};
use node_serving::{
    auth::{Refused, Target},
    http::{Debug, Denied, Rights, Update},
};
use peer_proto::{InspectRequest, InspectedKey, Question};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::{
    pod_events::Notice,
    reconcile::is_object,
    shared::{Shared, Unit},
};
use answers::{TOP_KEYS_MAX, UNHAPPY_KEYS_MAX};

/// Answers from the actors' shared state. The coordinator comes when it has started.
pub struct Inside {
    shared: Arc<Shared>,
    handle: OnceLock<Handle>,
    notices: OnceLock<mpsc::Sender<Notice>>,
    live: Arc<live::Live>,
}

impl Inside {
    /// Before the coordinator has started.
    pub fn new(shared: Arc<Shared>) -> Arc<Self> {
        Arc::new(Self {
            live: live::Live::new(shared.ranges),
            shared,
            handle: OnceLock::new(),
            notices: OnceLock::new(),
        })
    }

    /// The coordinator has started. `notices`: where events at the own Pod go, if there is one.
    pub fn set(&self, handle: Handle, notices: Option<mpsc::Sender<Notice>>) {
        self.handle.get_or_init(|| handle);
        if let Some(notices) = notices {
            self.notices.get_or_init(|| notices);
        }
    }

    /// What all replicas of a shadow have found.
    pub async fn whole_shadow(&self) -> inspect::Shadow {
        self.fleet().shadow().await.unwrap_or_default()
    }

    fn fleet(&self) -> Fleet {
        Fleet {
            shared: Arc::clone(&self.shared),
            handle: self.handle.get().cloned(),
        }
    }
}

/// What a question needs to be answered for all.
#[derive(Clone)]
struct Fleet {
    shared: Arc<Shared>,
    handle: Option<Handle>,
}

impl Fleet {
    /// The other replicas with a Lease.
    fn others(&self) -> Vec<Member> {
        let Some(handle) = &self.handle else {
            return Vec::new();
        };
        let mut members = handle.view().members;
        members.retain(|member| member.name != self.shared.replica);
        members
    }

    /// Asks one.
    async fn ask<T: DeserializeOwned>(
        &self,
        member: &Member,
        asked: InspectRequest,
    ) -> Result<T, Missing> {
        let missing = |why| Missing {
            replica: member.name.clone(),
            why,
        };
        let Some(handle) = &self.handle else {
            return Err(missing("the coordinator has not started yet".to_owned()));
        };
        let answer = handle.inspect(member, asked).await.map_err(missing)?;
        serde_json::from_slice(&answer)
            .map_err(|error| missing(format!("its answer can't be read: {error}")))
    }

    /// Asks all others at once.
    async fn ask_all<T: DeserializeOwned>(&self, asked: &InspectRequest) -> (Vec<T>, Vec<Missing>) {
        let members = self.others();
        let answers = members.iter().map(|member| self.ask(member, asked.clone()));
        let (mut all, mut missing) = (Vec::new(), Vec::new());
        for answer in join_all(answers).await {
            match answer {
                Ok(answer) => all.push(answer),
                Err(why) => missing.push(why),
            }
        }
        (all, missing)
    }

    async fn shards(&self) -> FleetShards {
        let view = self.handle.as_ref().map(Handle::view).unwrap_or_default();
        let asked = InspectRequest {
            question: Question::Shards.into(),
            ..InspectRequest::default()
        };
        let (mut replicas, missing) = self.ask_all::<ReplicaShards>(&asked).await;
        let mut own = answers::shards(&self.shared);
        // Where it owns nothing, no range shows it.
        own.fence.open = view.fence.open;
        replicas.push(own);
        replicas.sort_by(|one, other| one.replica.cmp(&other.replica));
        let planned = view.planned;
        let mut steering = self.shared.steering.report(self.shared.clock.now());
        for moved in &mut steering.moves {
            let pin = planned.pins.iter().find(|pin| pin.range == moved.range);
            moved.home = pin.and_then(|pin| pin.home.clone()).unwrap_or_default();
            moved.without_effect = pin.is_none_or(|pin| !pin.counts);
        }
        let loads: BTreeMap<&str, &Loads> = view
            .members
            .iter()
            .map(|member| (&*member.name, &*member.loads))
            .collect();
        let seconds = |micros: u64| Duration::from_micros(micros).as_secs_f64();
        let load_of = |range: &coordinator::RangeOwner| {
            let owner = range.owner.as_deref().unwrap_or_default();
            let level = loads.get(owner).map_or(0, |loads| loads.level(range.range));
            seconds(coordinator::load_of(level))
        };
        let ranges: Vec<RangeOwner> = view
            .ranges
            .iter()
            .map(|range| RangeOwner {
                range: range.range,
                owner: range.owner.clone(),
                epoch: range.epoch,
                load: load_of(range),
            })
            .collect();
        let load_of = |name: &str| {
            let own = ranges
                .iter()
                .filter(|range| range.owner.as_deref() == Some(name));
            own.map(|range| range.load).sum()
        };
        let members = view.members.iter().map(|member| inspect::Member {
            load: load_of(&member.name),
            name: member.name.clone(),
            incarnation: member.incarnation.clone(),
            address: member.address.clone(),
            ready: member.ready,
            draining: member.draining,
            version: member.version.clone(),
            unreachable: member.unreachable.clone(),
        });
        let members = members.collect();
        FleetShards {
            schema: SHARDS_SCHEMA.to_owned(),
            replica: self.shared.replica.clone(),
            members,
            ranges,
            ranges_total: u32::from(self.shared.ranges),
            replicas,
            missing,
            steering,
            shadow: self.shared.shadow.is_some(),
            placement: inspect::Placement {
                load_aware: planned.followed,
                plan: planned.number,
                in_force: planned.in_force,
                planner: planned.planner,
            },
        }
    }

    /// Explains keys, each by its owner.
    async fn keys(&self, wanted: Vec<(&Unit, Key)>) -> (Vec<KeyReport>, Vec<Missing>) {
        let mut own = Vec::new();
        let mut of_others: BTreeMap<String, Vec<(&Unit, Key)>> = BTreeMap::new();
        for (unit, key) in wanted {
            let range = self.shared.range_of(unit, &key);
            let owner = self
                .handle
                .as_ref()
                .and_then(|handle| handle.owner_of(range));
            match owner {
                // What is held here is known here, also where the Lease names another by now.
                Some(owner)
                    if owner != self.shared.replica && self.shared.slot(range).is_none() =>
                {
                    of_others.entry(owner).or_default().push((unit, key));
                }
                owner => own.push((unit, key, owner)),
            }
        }
        let (mut reports, mut missing) = (Vec::new(), Vec::new());
        for (unit, key, owner) in own {
            match answers::key(&self.shared, unit, key, owner).await {
                Ok(report) => reports.push(report),
                Err(why) => missing.push(Missing {
                    replica: self.shared.replica.clone(),
                    why,
                }),
            }
        }
        let members = self.others();
        let asked = of_others.iter().map(|(owner, keys)| {
            let member = members.iter().find(|member| member.name == *owner);
            let asked = InspectRequest {
                question: Question::Keys.into(),
                keys: keys
                    .iter()
                    .map(|(unit, key)| InspectedKey {
                        controller: unit.name().to_owned(),
                        namespace: key.namespace.to_string(),
                        name: key.name.to_string(),
                    })
                    .collect(),
                ..InspectRequest::default()
            };
            async move {
                match member {
                    Some(member) => self.ask::<Vec<KeyReport>>(member, asked).await,
                    None => Err(Missing {
                        replica: owner.clone(),
                        why: "it has no Lease any more".to_owned(),
                    }),
                }
            }
        });
        for ((owner, keys), answer) in of_others.iter().zip(join_all(asked).await) {
            match answer {
                Ok(answer) => reports.extend(answer),
                Err(why) => {
                    // Where it is, is known all the same.
                    reports.extend(keys.iter().map(|(unit, key)| KeyReport {
                        controller: unit.name().to_owned(),
                        key: key.to_string(),
                        resource: answers::resource_of(unit),
                        range: self.shared.range_of(unit, key),
                        owner: Some(owner.clone()),
                        state: format!("its owner {owner} does not answer: {}", why.why),
                        ..KeyReport::default()
                    }));
                    missing.push(why);
                }
            }
        }
        (reports, missing)
    }

    async fn explain_object(
        &self,
        (kind, namespace, name): (String, String, String),
        rights: &dyn Rights,
    ) -> Result<Explanation, Denied> {
        let (units, view) = (&self.shared.units, &*self.shared.view);
        let known = resolve::resources(units, view);
        let forms = resolve::forms_of(&kind, &known).map_err(Denied::NotFound)?;
        let resource = forms[0];
        if resource.namespaced && namespace.is_empty() {
            return Err(Denied::NotFound(format!(
                "{} live in namespaces: give one",
                resource.plural
            )));
        }
        let key = resolve::key_of(resource, &namespace, &name);
        let own = Target::Object {
            resource,
            namespace: key.namespace.to_string(),
            name: key.name.to_string(),
        };
        rights.may("get", &own).await.map_err(Denied::Refused)?;
        let mut resolved = resolve::resolve(units, view, &forms, &key);
        // Owners are named in the object itself; dependents are not.
        let mut may_list = MayList::new(rights);
        let mut dependents = Vec::new();
        for one in std::mem::take(&mut resolved.report.dependents) {
            let of = known.iter().find(|form| form.type_id() == one.resource);
            if let Some(of) = of
                && may_list.allows(of, &key.namespace).await?
            {
                dependents.push(one);
            }
        }
        resolved.report.dependents = dependents;
        let mut vias = HashMap::new();
        let mut hidden: Vec<Hidden> = Vec::new();
        let mut wanted = Vec::new();
        for concern in resolved.concerns {
            let unit = &units[usize::from(concern.unit)];
            if let Some((verb, target)) = needed(unit, &concern.key) {
                match rights.may(verb, &target).await {
                    Ok(()) => {}
                    Err(Refused::Forbidden(_)) => {
                        let one = Hidden {
                            controller: unit.name().to_owned(),
                            needs: needs(verb, &target),
                        };
                        if !hidden.contains(&one) {
                            hidden.push(one);
                        }
                        continue;
                    }
                    Err(refused) => return Err(Denied::Refused(refused)),
                }
            }
            let place = (unit.name().to_owned(), concern.key.to_string());
            vias.insert(place, concern.via);
            wanted.push((unit, concern.key));
        }
        let (mut keys, missing) = self.keys(wanted).await;
        for report in &mut keys {
            let place = (report.controller.clone(), report.key.clone());
            report.via = vias.remove(&place).unwrap_or_default();
        }
        let own = key.to_string();
        keys.sort_by_key(|report| {
            let troubled = report.blocker.is_some() || report.failures > 0;
            (!troubled, report.via.clone(), report.key != own)
        });
        Ok(Explanation {
            schema: EXPLAIN_SCHEMA.to_owned(),
            replica: self.shared.replica.clone(),
            object: Some(resolved.report),
            keys,
            hidden,
            omitted: resolved.omitted,
            missing,
        })
    }

    async fn explain_key(
        &self,
        controller: &str,
        key: &str,
        rights: &dyn Rights,
    ) -> Result<(Vec<KeyReport>, Vec<Missing>), Denied> {
        let (unit, key) = self.unit_and_key(controller, key)?;
        if let Some((verb, target)) = needed(unit, &key) {
            rights.may(verb, &target).await.map_err(Denied::Refused)?;
        }
        Ok(self.keys(vec![(unit, key)]).await)
    }

    fn unit_and_key(&self, controller: &str, key: &str) -> Result<(&Unit, Key), Denied> {
        match answers::unit(&self.shared, controller) {
            Some(unit) => Ok((unit, Key::parse(key))),
            None => {
                let known: Vec<&str> = self.shared.units.iter().map(Unit::name).collect();
                Err(Denied::NotFound(format!(
                    "no controller {controller:?} runs here; there are {}",
                    known.join(", ")
                )))
            }
        }
    }

    /// What is busy in all replicas, without regard to anybody's rights.
    async fn all_top(&self, namespace: &str) -> Top {
        let asked = InspectRequest {
            question: Question::Top.into(),
            namespace: namespace.to_owned(),
            ..InspectRequest::default()
        };
        let own = answers::top(&self.shared, namespace, TOP_KEYS_MAX);
        let (own, (all, missing)) = futures::join!(own, self.ask_all::<Top>(&asked));
        let mut top = merged(std::iter::once(own).chain(all));
        top.missing = missing;
        top
    }

    /// The keys of it that the caller may see.
    async fn visible_top(&self, mut top: Top, rights: &dyn Rights) -> Result<Top, Denied> {
        let mut may_list = MayList::new(rights);
        let mut keys = Vec::new();
        for key in std::mem::take(&mut top.keys) {
            match self
                .may_see(&mut may_list, &key.controller, &key.key)
                .await?
            {
                true => keys.push(key),
                false => top.hidden += 1,
            }
        }
        top.keys = keys;
        Ok(top)
    }

    /// What all have found, of all objects; `None` where this is no shadow.
    async fn shadow(&self) -> Option<inspect::Shadow> {
        let shadow = self.shared.shadow.as_ref()?;
        let asked = InspectRequest {
            question: Question::Shadow.into(),
            ..InspectRequest::default()
        };
        let (all, missing) = self.ask_all::<inspect::Shadow>(&asked).await;
        let mut whole = shadow.report(&self.shared.replica);
        for one in all {
            whole.add(one, shadow::DIFFERENCES_MAX);
        }
        whole.replicas.sort();
        whole.missing = missing;
        Some(whole)
    }

    /// The same, of the objects that the caller may list.
    async fn shadow_for(&self, rights: &dyn Rights) -> Result<inspect::Shadow, Denied> {
        let mut whole = self.shadow().await.ok_or_else(|| {
            Denied::NotFound(
                "this fleet is no shadow: its replicas run without --shadow".to_owned(),
            )
        })?;
        let known = resolve::resources(&self.shared.units, &*self.shared.view);
        let mut may_list = MayList::new(rights);
        let mut differences = Vec::new();
        for one in std::mem::take(&mut whole.differences) {
            let resource = known.iter().find(|of| of.type_id() == one.resource);
            let may = match resource {
                Some(resource) => may_list.allows(resource, &one.namespace).await?,
                None => false,
            };
            match may {
                true => differences.push(one),
                false => whole.hidden += 1,
            }
        }
        whole.differences = differences;
        Ok(whole)
    }

    async fn top(&self, namespace: &str, rights: &dyn Rights) -> Result<Top, Denied> {
        let top = self.all_top(namespace).await;
        self.visible_top(top, rights).await
    }

    /// What fails in all replicas, without regard to anybody's rights or to how much it is.
    async fn all_unhappy(&self, namespace: &str) -> Unhappy {
        let asked = InspectRequest {
            question: Question::Unhappy.into(),
            namespace: namespace.to_owned(),
            ..InspectRequest::default()
        };
        let (all, missing) = self.ask_all::<Unhappy>(&asked).await;
        let own = answers::unhappy(&self.shared, namespace, UNHAPPY_KEYS_MAX);
        let mut whole = Unhappy {
            schema: UNHAPPY_SCHEMA.to_owned(),
            missing,
            ..Unhappy::default()
        };
        for one in std::iter::once(own).chain(all) {
            whole.forgotten += one.forgotten;
            whole.omitted += one.omitted;
            whole.keys.extend(one.keys);
        }
        whole.keys.sort_by(|one, other| {
            let order = |key: &inspect::UnhappyKey| (key.controller.clone(), key.key.clone());
            (other.failures, order(one)).cmp(&(one.failures, order(other)))
        });
        whole
    }

    /// The keys of it that the caller may see, as far as there is room.
    async fn visible_unhappy(
        &self,
        mut whole: Unhappy,
        rights: &dyn Rights,
    ) -> Result<Unhappy, Denied> {
        let mut may_list = MayList::new(rights);
        for key in std::mem::take(&mut whole.keys) {
            match self
                .may_see(&mut may_list, &key.controller, &key.key)
                .await?
            {
                false => whole.hidden += 1,
                true if whole.keys.len() < UNHAPPY_KEYS_MAX => whole.keys.push(key),
                true => whole.omitted += 1,
            }
        }
        Ok(whole)
    }

    async fn unhappy(&self, namespace: &str, rights: &dyn Rights) -> Result<Unhappy, Denied> {
        let whole = self.all_unhappy(namespace).await;
        self.visible_unhappy(whole, rights).await
    }

    /// Whether the caller may list the objects of a controller's key. What a controller that does not run
    /// here works on is not known here.
    async fn may_see(
        &self,
        may_list: &mut MayList<'_>,
        controller: &str,
        key: &str,
    ) -> Result<bool, Denied> {
        let Some(unit) = answers::unit(&self.shared, controller) else {
            return Ok(false);
        };
        match needed(unit, &Key::parse(key)) {
            None => Ok(true),
            Some((
                _,
                Target::Object {
                    resource,
                    namespace,
                    ..
                },
            )) => may_list.allows(resource, &namespace).await,
            Some((_, Target::Path(_))) => Ok(false),
        }
    }
}

/// Sums of several replicas' answers.
fn merged(all: impl Iterator<Item = Top>) -> Top {
    let mut controllers = BTreeMap::new();
    let mut whole = Top {
        schema: TOP_SCHEMA.to_owned(),
        ..Top::default()
    };
    for one in all {
        for part in one.controllers {
            let sum: &mut inspect::BusyController =
                controllers.entry(part.controller.clone()).or_default();
            sum.controller = part.controller;
            sum.keys += part.keys;
            sum.queued += part.queued;
            sum.failing += part.failing;
            sum.rate += part.rate;
            sum.load += part.load;
        }
        whole.ranges.extend(one.ranges);
        whole.keys.extend(one.keys);
    }
    whole.controllers = controllers.into_values().collect();
    whole
        .controllers
        .sort_by(|one, other| other.rate.total_cmp(&one.rate));
    whole
        .ranges
        .sort_by(|one, other| other.rate.total_cmp(&one.rate));
    whole
        .keys
        .sort_by(|one, other| other.rate.total_cmp(&one.rate));
    whole.keys.truncate(TOP_KEYS_MAX);
    whole
}

/// The right that shows a key: to get its object, or to list what the controller works on where the key is no
/// object. `None` where it works on no objects at all.
fn needed(unit: &Unit, key: &Key) -> Option<(&'static str, Target)> {
    let resource = unit.primary()?;
    let object = |namespace: &str, name: &str| Target::Object {
        resource,
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    };
    Some(match (is_object(resource, key), resource.namespaced) {
        (true, _) => ("get", object(&key.namespace, &key.name)),
        (false, true) => ("list", object(&key.namespace, "")),
        (false, false) => ("list", object("", "")),
    })
}

/// As in `get replicasets.apps in namespace shop`: without a name, which the right would show.
fn needs(verb: &str, target: &Target) -> String {
    match target {
        Target::Path(path) => format!("{verb} {path}"),
        Target::Object {
            resource,
            namespace,
            ..
        } if namespace.is_empty() => format!("{verb} {}", resource.type_id()),
        Target::Object {
            resource,
            namespace,
            ..
        } => format!("{verb} {} in namespace {namespace}", resource.type_id()),
    }
}

/// Rights to list, each asked for once.
struct MayList<'a> {
    rights: &'a dyn Rights,
    known: HashMap<(&'static Resource, String), bool>,
}

impl<'a> MayList<'a> {
    fn new(rights: &'a dyn Rights) -> Self {
        Self {
            rights,
            known: HashMap::new(),
        }
    }

    /// In all namespaces, or in this one.
    async fn allows(
        &mut self,
        resource: &'static Resource,
        namespace: &str,
    ) -> Result<bool, Denied> {
        Ok(self.asked(resource, "").await?
            || (!namespace.is_empty() && self.asked(resource, namespace).await?))
    }

    async fn asked(
        &mut self,
        resource: &'static Resource,
        namespace: &str,
    ) -> Result<bool, Denied> {
        let place = (resource, namespace.to_owned());
        if let Some(known) = self.known.get(&place) {
            return Ok(*known);
        }
        let target = Target::Object {
            resource,
            namespace: namespace.to_owned(),
            name: String::new(),
        };
        let may = match self.rights.may("list", &target).await {
            Ok(()) => true,
            Err(Refused::Forbidden(_)) => false,
            Err(refused) => return Err(Denied::Refused(refused)),
        };
        self.known.insert(place, may);
        Ok(may)
    }
}

fn written(answer: &impl serde::Serialize) -> Value {
    serde_json::to_value(answer).unwrap_or_default()
}

fn shards(shared: &Shared, handle: Option<&Handle>) -> Value {
    let mut said = handle.map_or_else(
        || json!({"replica": shared.replica, "fence": {"open": false, "remaining_ms": 0}, "members": [], "ranges": []}),
        |handle| written(&handle.view()),
    );
    let own = answers::shards(shared);
    said["owned"] = written(&own.owned);
    said["totals"] = written(&own.totals);
    said["set_aside"] = written(&own.set_aside);
    said["controllers"] = written(&own.controllers);
    let list = shared.watchlist.list();
    let suspected = list.keys.iter().map(|(name, suspicion)| {
        json!({
            "key": name,
            "deaths": suspicion.deaths,
            "alone": suspicion.alone,
            "last": suspicion.last,
        })
    });
    said["quarantine"] = json!({
        "suspected": suspected.collect::<Vec<_>>(),
        "announced_ranges": &list.careful,
    });
    said
}

impl Debug for Inside {
    fn shards(&self) -> Value {
        shards(&self.shared, self.handle.get())
    }

    fn fleet_shards(&self) -> BoxFuture<'static, Value> {
        let fleet = self.fleet();
        async move { written(&fleet.shards().await) }.boxed()
    }

    fn explain(
        &self,
        controller: String,
        key: String,
        is_for_fleet: bool,
        rights: Arc<dyn Rights>,
    ) -> BoxFuture<'static, Result<Value, Denied>> {
        let fleet = self.fleet();
        async move {
            if is_for_fleet {
                let (keys, missing) = fleet.explain_key(&controller, &key, &*rights).await?;
                return Ok(written(&Explanation {
                    schema: EXPLAIN_SCHEMA.to_owned(),
                    replica: fleet.shared.replica.clone(),
                    keys,
                    missing,
                    ..Explanation::default()
                }));
            }
            let (unit, key) = fleet.unit_and_key(&controller, &key)?;
            if let Some((verb, target)) = needed(unit, &key) {
                rights.may(verb, &target).await.map_err(Denied::Refused)?;
            }
            let range = fleet.shared.range_of(unit, &key);
            let owner = fleet
                .handle
                .as_ref()
                .and_then(|handle| handle.owner_of(range));
            let report = answers::key(&fleet.shared, unit, key, owner).await;
            report
                .map(|report| written(&report))
                .map_err(Denied::NotFound)
        }
        .boxed()
    }

    fn explain_object(
        &self,
        kind: String,
        namespace: String,
        name: String,
        rights: Arc<dyn Rights>,
    ) -> BoxFuture<'static, Result<Value, Denied>> {
        let fleet = self.fleet();
        async move {
            let asked = (kind, namespace, name);
            let explanation = fleet.explain_object(asked, &*rights).await?;
            Ok(written(&explanation))
        }
        .boxed()
    }

    fn top(
        &self,
        namespace: String,
        rights: Arc<dyn Rights>,
    ) -> BoxFuture<'static, Result<Value, Denied>> {
        let fleet = self.fleet();
        async move { Ok(written(&fleet.top(&namespace, &*rights).await?)) }.boxed()
    }

    fn unhappy(
        &self,
        namespace: String,
        rights: Arc<dyn Rights>,
    ) -> BoxFuture<'static, Result<Value, Denied>> {
        let fleet = self.fleet();
        async move { Ok(written(&fleet.unhappy(&namespace, &*rights).await?)) }.boxed()
    }

    fn shadow(&self, rights: Arc<dyn Rights>) -> BoxFuture<'static, Result<Value, Denied>> {
        let fleet = self.fleet();
        async move { Ok(written(&fleet.shadow_for(&*rights).await?)) }.boxed()
    }

    fn live(&self, rights: Arc<dyn Rights>) -> BoxStream<'static, Update> {
        live::updates(Arc::clone(&self.live), self.fleet(), rights)
    }

    fn move_range(
        &self,
        range: u16,
        to: String,
        by: String,
    ) -> BoxFuture<'static, Result<Value, String>> {
        let handle = self.handle.get().cloned();
        let notices = self.notices.get().cloned();
        let from = self.shared.replica.clone();
        async move {
            let handle = handle.ok_or("the coordinator has not started yet")?;
            handle.move_range(range, &to).await?;
            if let Some(notices) = notices {
                let message =
                    format!("Range {range} is moved from {from} to {to}: asked for by {by}");
                // With the queue full the log has it alone.
                let _full = notices.try_send(Notice::normal("RangeMoveRequested", message));
            }
            Ok(json!({"range": range, "from": from, "to": to}))
        }
        .boxed()
    }
}
