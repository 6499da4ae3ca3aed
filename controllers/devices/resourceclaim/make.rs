//! How a claim is made from a template.

use controllers_kit::{
    Action, Event, Key, Plan, Refusal, Snapshot, Verb,
    names::{Children, Known},
    selectors::Selector,
};
use kubernetes_proto::{
    Object, Shared, Str,
    meta::ObjectMeta,
    resource::{
        ResourceClaim, ResourceClaimFromTemplate, ResourceClaimSpec, ResourceClaimTemplate,
    },
};
use prost::Message as _;

use super::{
    CREATES, FAILED, Features,
    facts::{self, Entry, Holder},
};

/// The longest prefix of a claim's name: the server would add five characters, and a label has 63 at most.
/// Upstream leaves one more for a dash.
const BASE_MAX: usize = 57;

/// The prefix of the name of an entry's claim. Where it is too long, owner and entry are cut in proportion,
/// so that both can still be recognized.
pub(super) fn generate_name(owner: &str, entry: &str) -> String {
    let whole = format!("{owner}-{entry}-");
    if whole.len() <= BASE_MAX {
        return whole;
    }
    let cut = |text: &str| {
        let mut end = text.len() * BASE_MAX / whole.len();
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text[..end].to_owned()
    };
    format!("{}-{}", cut(owner), cut(entry))
}

/// The claim that was created for an entry of a holder, whether the holder's status names it or not. Of
/// several the first by name; the others are deleted with their owner.
pub(super) fn find(
    holder: &Holder<'_>,
    entry: Entry<'_>,
    seen: &Snapshot<'_>,
) -> Option<std::sync::Arc<ResourceClaim>> {
    let owned = seen.owned_by::<ResourceClaim>(&holder.meta.uid);
    owned.into_iter().find(|claim| {
        let meta = Object::metadata(&**claim);
        meta.namespace == holder.meta.namespace
            && meta.annotation(facts::OF_ENTRY) == Some(entry.name)
            && meta
                .controller()
                .is_some_and(|owner| holder.is_of_kind(owner))
    })
}

/// What the spec in a template's bytes asks for.
fn read(bytes: &[u8]) -> Result<ResourceClaimSpec, String> {
    ResourceClaimSpec::decode(bytes).map_err(|error| format!("its spec can't be read: {error}"))
}

/// Plans the creation of the claim of a holder's entry; its name.
///
/// # Errors
/// Where it can't be created, in upstream's words.
pub(super) fn create<T: Object>(
    plan: &mut Plan,
    features: Features,
    owner: &T,
    holder: &Holder<'_>,
    entry: Entry<'_>,
    seen: &Snapshot<'_>,
) -> Result<Str, String> {
    let meta = holder.meta;
    let key = Key::new(meta.namespace.clone(), entry.template);
    let template = seen.get::<ResourceClaimTemplate>(&key).ok_or_else(|| {
        let name = entry.template;
        format!(
            "resource claim template {name:?}: resourceclaimtemplate.resource.k8s.io {name:?} not found"
        )
    })?;
    let wanted = template.spec.as_ref();
    let spec = wanted.map(|wanted| wanted.spec.clone()).unwrap_or_default();
    let requests = read(&spec).map_err(|why| format!("resource claim template {key}: {why}"))?;
    let admin_access = facts::has_admin_access(Some(&requests));
    if admin_access && !features.admin_access {
        return Err("admin access is requested, but the feature is disabled".to_owned());
    }
    if !features.prioritized_list && facts::has_prioritized_list(&requests) {
        return Err(
            "template includes a prioritized list of subrequests, but the feature is disabled"
                .to_owned(),
        );
    }
    let wanted = wanted.and_then(|wanted| wanted.metadata.as_ref());
    let mut claim = ObjectMeta {
        namespace: meta.namespace.clone(),
        labels: wanted
            .map(|wanted| wanted.labels.clone())
            .unwrap_or_default(),
        annotations: (wanted.map(|wanted| wanted.annotations.clone())).unwrap_or_default(),
        owner_references: vec![Shared::from(holder.owner())],
        ..ObjectMeta::default()
    };
    claim.set_annotation(facts::OF_ENTRY, entry.name);
    let base = generate_name(&meta.name, entry.name);
    let series = format!("{}/{}", meta.uid, entry.name);
    let names = Children::of_series(base.clone(), &series);
    let known = Known::of(seen.reader(), ResourceClaim::resource(), meta);
    // No other claim of this entry exists: it would have been found.
    let name = names.next(0, [], &known, 1).pop();
    let name = Str::from(name.ok_or("every name of its claims is taken")?);
    claim.generate_name = Str::from(base.clone());
    claim.name = name.clone();
    // Its absence is decided by the cache: after a takeover the node compares it with a live list.
    plan.counted::<ResourceClaim>(&meta.namespace, &Selector::of_labels(&[]));
    let label = if admin_access { "true" } else { "false" };
    let failure = format!("{} {}: create ResourceClaim : ", holder.word(), entry.name);
    plan.act(Action {
        verb: Verb::Create {
            body: ResourceClaimFromTemplate {
                metadata: Some(claim),
                spec,
            }
            .encode_to_vec(),
        },
        resource: ResourceClaim::resource(),
        key: Key::new(meta.namespace.clone(), name.clone()),
        uid: Str::default(),
        resource_version: 0,
        announcement: None,
    })
    .reported_as(&base)
    .announce_failure(Event::warning(owner, FAILED, failure))
    .measure(CREATES, &["success", label], 1.0)
    .measure_failure(CREATES, &["failure", label], 1.0);
    Ok(name)
}

/// The live state of an object that the cache does not show.
pub(super) enum Live<'a> {
    /// There is one, of this uid.
    Uid(&'a str),
    /// There is none.
    Missing,
    /// It was not queried: the cache has changed since.
    NotAsked,
}

/// The answer to a live read.
///
/// # Errors
/// Where it could not be read.
pub(super) fn live<'a>(
    seen: &Snapshot<'a>,
    query: &controllers_kit::Query,
) -> Result<Live<'a>, Refusal> {
    use controllers_kit::{Answer, Query};
    let what = match query {
        Query::Live { resource, key } => format!("{} {key}", resource.id()),
        other => format!("{other:?}"),
    };
    match seen.answer(query) {
        Some(Answer::Object(object)) => match object["metadata"]["uid"].as_str() {
            Some(uid) => Ok(Live::Uid(uid)),
            None => Err(Refusal::Retry(format!("{what} was answered without a uid"))),
        },
        Some(Answer::Missing) => Ok(Live::Missing),
        Some(Answer::NotFound(why) | Answer::Failed(why)) => {
            Err(Refusal::Retry(format!("{what} could not be read: {why}")))
        }
        None => Ok(Live::NotAsked),
    }
}
