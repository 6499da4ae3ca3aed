//! What a controller may read while it plans.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use kubernetes_proto::{AnyObject, Object, Resource, Str, cast, meta::ObjectMeta};
use serde::Deserialize as _;
use serde_json::json;

use crate::{Catalogue, Key, cloud};

/// A store of projections. The node's cache is one, `testing::World` another.
pub trait Reader: Send + Sync {
    /// The store over which this one is a layer, that changes or counts what is read: it answers what the
    /// layer does not. Objects are the layer's to answer, and so is their number.
    fn below(&self) -> Option<&dyn Reader> {
        None
    }
    /// Reads one object.
    fn get(&self, resource: &'static Resource, namespace: &str, name: &str) -> Option<AnyObject>;
    /// All objects of a namespace, or of the cluster (`None`), in order of namespace and name.
    fn list(&self, resource: &'static Resource, namespace: Option<&str>) -> Vec<AnyObject>;
    /// The objects that an index lists under a value, in order of namespace and name. The index must have
    /// been declared by the controller that asks ([`crate::Watches`]); the owner index
    /// ([`crate::Index::OWNER`]) always is.
    fn indexed(
        &self,
        resource: &'static Resource,
        index: &'static str,
        value: &str,
    ) -> Vec<AnyObject>;
    /// What the API serves, for controllers that asked for it ([`crate::Watches::catalogue`],
    /// [`crate::Watches::discovered`]); an empty one for others, and before discovery was read.
    fn catalogue(&self) -> Arc<Catalogue> {
        self.below().map(Reader::catalogue).unwrap_or_default()
    }
    /// Whether an object of this uid was seen to be deleted. A uid never returns, so `true` is final;
    /// `false` proves nothing.
    fn gone(&self, uid: &str) -> bool {
        self.below().is_some_and(|below| below.gone(uid))
    }
    /// Whether a name must not be given to a new child: an object of it exists, or was seen to be removed
    /// within the last hour ([`crate::names::REUSE_AFTER_SECONDS`]). Removals are remembered for resources
    /// that have generated children: pods, EndpointSlices, ResourceClaims.
    fn name_used(&self, resource: &'static Resource, namespace: &str, name: &str) -> bool {
        match self.below() {
            Some(below) => below.name_used(resource, namespace, name),
            None => self.get(resource, namespace, name).is_some(),
        }
    }
    /// Whether the removal of every object that belonged to, or came after, the object of this uid within
    /// the last hour was seen: the store has followed changes for an hour, or since before that object was
    /// created.
    fn history_covers(&self, uid: &str) -> bool {
        self.below().is_none_or(|below| below.history_covers(uid))
    }
    /// The version from which on removals were seen.
    fn history_since(&self) -> u64 {
        self.below().map_or(0, Reader::history_since)
    }
    /// How many objects of a resource there are.
    fn count(&self, resource: &'static Resource) -> usize {
        self.list(resource, None).len()
    }
    /// How long the heartbeat of an object ([`crate::heartbeat`]) has been unchanged, as this replica has
    /// seen it on its own clock. Only time during which its watches were live counts, so a replica whose
    /// watches are stalled finds nobody silent. `None` where no heartbeat was seen, and for controllers
    /// that did not ask for ages ([`crate::Watches::ages`]).
    fn heartbeat_age(
        &self,
        resource: &'static Resource,
        namespace: &str,
        name: &str,
    ) -> Option<Duration> {
        self.below()?.heartbeat_age(resource, namespace, name)
    }
    /// How long a pod has been exposed to a taint of its node with effect `NoExecute`, of this key, as this
    /// replica has seen both: since the taint has come (or its value has changed), or the pod, where it came
    /// later. Measured as [`Reader::heartbeat_age`]. `None` where the taint was not seen.
    fn exposure_age(&self, node: &str, taint: &str, pod: &Key) -> Option<Duration> {
        self.below()?.exposure_age(node, taint, pod)
    }
    /// How reliable the cached objects of a resource are.
    fn standing(&self, resource: &'static Resource) -> Standing {
        self.below()
            .map_or(Standing::Complete, |below| below.standing(resource))
    }
}

/// How reliable a store's objects of a resource are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Everything was listed once, and changes are followed.
    Complete,
    /// The first list has not completed.
    Listing,
    /// It could not be listed, and may never be.
    Failing,
    /// It is not watched.
    Unwatched,
}

/// Something that the cache can't answer; fetched by the node before `plan`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Query {
    /// One object, read live from the API server, whole, as JSON.
    Live {
        /// Its resource.
        resource: &'static Resource,
        /// Its key.
        key: Key,
    },
    /// The metadata of every object of a resource in a namespace, read live and consistently.
    Content {
        /// The resource.
        resource: &'static Resource,
        /// The namespace.
        namespace: Str,
    },
    /// A page of the metadata of every object of a resource in the cluster, read live: the first one
    /// consistently, later ones as of the first. [`Snapshot::page`] reads the answer.
    Page {
        /// The resource.
        resource: &'static Resource,
        /// How many objects it has at most.
        limit: usize,
        /// The token of the page before ([`Page::next`]); empty for the first.
        token: String,
    },
    /// The current resourceVersion of a resource, read live and consistently: a plan that must have seen
    /// everything up to now says so by [`crate::Plan::rests_on`] it. [`Snapshot::present`] reads the answer.
    Present {
        /// The resource.
        resource: &'static Resource,
    },
    /// Whatever the API serves under a path, as JSON: a scale, a metric. The answer is [`Answer::Object`];
    /// [`Answer::NotFound`] for 404.
    Path {
        /// Path and query, as in `/apis/metrics.k8s.io/v1beta1/namespaces/default/pods`.
        path: String,
        /// The timeout of the answer: an API that hangs delays its own callers alone.
        patience: Duration,
    },
    /// What [`Pick`] extracts from every object of a resource in a namespace, read live in pages: rarely
    /// needed data that would cost memory in every cached object. The answer is [`Answer::Object`], a
    /// sorted list of texts.
    Picked {
        /// The resource.
        resource: &'static Resource,
        /// The namespace.
        namespace: Str,
        /// What to extract from each object.
        pick: Pick,
    },
    /// The schema of a kind, with those that it refers to, from the API server's OpenAPI v3 documents. The
    /// answer is [`Answer::Object`], which [`crate::openapi::Schemas`] reads; [`Answer::Missing`] where no
    /// document of the version has the kind.
    Schema {
        /// The group; empty for the core group.
        group: Str,
        /// The version within the group.
        version: Str,
        /// The kind.
        kind: Str,
    },
    /// A virtual object that is posted for its answer and stored nowhere, as a SubjectAccessReview is. The
    /// answer is the object with its status.
    Review {
        /// Where it is posted, as in `/apis/authorization.k8s.io/v1/subjectaccessreviews`.
        path: &'static str,
        /// The object as JSON.
        body: String,
    },
    /// A certificate by one of the node's authorities, whose keys stay with the node. The answer is
    /// [`Answer::Object`] with the certificate in PEM as a text.
    Certificate(Issue),
    /// A JSON Web Token with these claims, signed by the key of service accounts' tokens, which stays with
    /// the node. The answer is [`Answer::Object`] with the token as a text, which must not be printed.
    Token {
        /// The claims as JSON; the same bytes are signed.
        claims: String,
    },
    /// A call to the cloud provider. [`Snapshot::cloud`] reads the answers.
    Cloud(cloud::Call),
}

/// What is picked from an object's JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Pick {
    /// The names of all Secrets that a pod mounts or refers to.
    SecretsOfPod,
}

impl Pick {
    /// Extracts it from one object.
    pub fn from(self, object: &serde_json::Value) -> Vec<String> {
        match self {
            Self::SecretsOfPod => crate::podspec::secrets(&object["spec"]),
        }
    }
}

/// A request for a certificate.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Issue {
    /// By which authority: the name of the signer.
    pub signer: &'static str,
    /// The PKCS #10 request, DER, with subject, alternative names and public key.
    pub request: Vec<u8>,
    /// The certificate's usages, as a CertificateSigningRequest names them.
    pub usages: Vec<String>,
    /// The certificate's lifetime, before backdating.
    pub ttl: Duration,
}

impl Answer {
    /// What a namespace holds of a resource.
    pub fn content(metas: &[ObjectMeta]) -> Self {
        let items: Vec<_> = metas
            .iter()
            .map(|meta| json!({ "metadata": meta }))
            .collect();
        Self::Object(Arc::new(json!({ "items": items })))
    }

    /// The answer to [`Query::Page`].
    pub fn page(page: &Page) -> Self {
        let items = page.metas.iter().map(|meta| json!({ "metadata": meta }));
        Self::Object(Arc::new(json!({
            "metadata": { "resourceVersion": page.version, "continue": page.next },
            "items": items.collect::<Vec<_>>(),
        })))
    }

    /// The answer to [`Query::Present`].
    pub fn present(version: u64) -> Self {
        Self::Object(Arc::new(
            json!({ "metadata": { "resourceVersion": version } }),
        ))
    }
}

/// A page of a resource ([`Query::Page`]).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    /// The resourceVersion of the list; 0 where it has none.
    pub version: u64,
    /// The metadata of its objects.
    pub metas: Vec<ObjectMeta>,
    /// The token of the next page; empty after the last.
    pub next: String,
}

/// Why a page could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoPage {
    /// The token has expired: the list must start over.
    #[error("the continue token has expired")]
    Expired,
    /// The resource is not served, or can't be listed.
    #[error("the resource is not served")]
    NotServed,
    /// The read failed; the server's error.
    #[error("{0}")]
    Failed(String),
}

/// The answer to a query. `Debug` hides objects: they may hold tokens.
#[derive(Clone, PartialEq)]
pub enum Answer {
    /// The object; for [`Query::Content`] a list, whose items are metadata alone: [`Snapshot::content`]
    /// reads it.
    Object(Arc<serde_json::Value>),
    /// There is none: no such object, no such resource, or one that can't be listed ([`Query::Content`], 404
    /// and 405).
    Missing,
    /// There is nothing under the path ([`Query::Path`]); the server's message, [`NOT_FOUND`] where it has
    /// none. For [`Query::Page`]: the token has expired.
    NotFound(String),
    /// It could not be asked; the text says why.
    Failed(String),
}

/// The message of a 404 that carries none of its own, as client-go words it.
pub const NOT_FOUND: &str = "the server could not find the requested resource";

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Object(_) => f.write_str("Object(..)"),
            Self::Missing => f.write_str("Missing"),
            Self::NotFound(why) => f.debug_tuple("NotFound").field(why).finish(),
            Self::Failed(why) => f.debug_tuple("Failed").field(why).finish(),
        }
    }
}

/// The answers to a controller's queries.
pub type Answers = std::collections::BTreeMap<Query, Answer>;

/// The input of a plan: the store, the clock and the answers, for one key.
#[derive(Clone, Copy)]
pub struct Snapshot<'a> {
    reader: &'a dyn Reader,
    answers: &'a Answers,
    /// The present, the only clock that a plan may read.
    pub now: Timestamp,
}

impl<'a> Snapshot<'a> {
    /// Over a store, with the answers to what was asked.
    pub fn new(reader: &'a dyn Reader, answers: &'a Answers, now: Timestamp) -> Self {
        Self {
            reader,
            answers,
            now,
        }
    }

    /// The same answers at another instant, over another store: what a controller with a deliberate fault
    /// sees (`tests/simulation`).
    #[must_use]
    pub fn through<'b>(&'b self, reader: &'b dyn Reader, now: Timestamp) -> Snapshot<'b> {
        Snapshot::new(reader, self.answers, now)
    }

    /// One object by its key.
    pub fn get<T: Object>(&self, key: &Key) -> Option<Arc<T>> {
        self.reader
            .get(T::resource(), &key.namespace, &key.name)
            .and_then(cast)
    }

    /// All objects of a namespace.
    pub fn list<T: Object>(&self, namespace: &str) -> Vec<Arc<T>> {
        self.reader
            .list(T::resource(), Some(namespace))
            .into_iter()
            .filter_map(cast)
            .collect()
    }

    /// All objects of the cluster.
    pub fn all<T: Object>(&self) -> Vec<Arc<T>> {
        self.reader
            .list(T::resource(), None)
            .into_iter()
            .filter_map(cast)
            .collect()
    }

    /// The objects whose controller is the one with this uid.
    pub fn owned_by<T: Object>(&self, uid: &str) -> Vec<Arc<T>> {
        self.indexed(crate::Index::OWNER, uid)
    }

    /// The objects that an index lists under a value.
    pub fn indexed<T: Object>(&self, index: &'static str, value: &str) -> Vec<Arc<T>> {
        self.reader
            .indexed(T::resource(), index, value)
            .into_iter()
            .filter_map(cast)
            .collect()
    }

    /// The answer to a query; `None` if it was not asked.
    pub fn answer(&self, query: &Query) -> Option<&'a Answer> {
        self.answers.get(query)
    }

    /// What a namespace holds of a resource, if that was asked; none where the resource is not served.
    ///
    /// # Errors
    /// Where it could not be read; the text says why.
    pub fn content(&self, query: &Query) -> Option<Result<Vec<ObjectMeta>, String>> {
        Some(match self.answers.get(query)? {
            Answer::Missing => Ok(Vec::new()),
            Answer::NotFound(why) | Answer::Failed(why) => Err(why.clone()),
            Answer::Object(list) => {
                let items = list["items"].as_array().into_iter().flatten();
                items
                    .map(|item| ObjectMeta::deserialize(&item["metadata"]))
                    .collect::<Result<_, _>>()
                    .map_err(|error| error.to_string())
            }
        })
    }

    /// A page of a resource, if that was asked.
    ///
    /// # Errors
    /// Where there is none ([`NoPage`]).
    pub fn page(&self, query: &Query) -> Option<Result<Page, NoPage>> {
        Some(match self.answers.get(query)? {
            Answer::Missing => Err(NoPage::NotServed),
            Answer::NotFound(_) => Err(NoPage::Expired),
            Answer::Failed(why) => Err(NoPage::Failed(why.clone())),
            Answer::Object(list) => {
                let items = list["items"].as_array().into_iter().flatten();
                let metas = items.map(|item| ObjectMeta::deserialize(&item["metadata"]));
                let meta = &list["metadata"];
                metas
                    .collect::<Result<_, _>>()
                    .map(|metas| Page {
                        version: meta["resourceVersion"].as_u64().unwrap_or(0),
                        metas,
                        next: meta["continue"].as_str().unwrap_or_default().to_owned(),
                    })
                    .map_err(|error| NoPage::Failed(error.to_string()))
            }
        })
    }

    /// How far a resource has come, if that was asked; 0 where the resource is not served.
    ///
    /// # Errors
    /// Where it could not be read; the text says why.
    pub fn present(&self, resource: &'static Resource) -> Option<Result<u64, String>> {
        Some(match self.answers.get(&Query::Present { resource })? {
            Answer::Missing => Ok(0),
            Answer::NotFound(why) | Answer::Failed(why) => Err(why.clone()),
            Answer::Object(answer) => answer["metadata"]["resourceVersion"]
                .as_u64()
                .ok_or_else(|| "the answer has no resourceVersion".to_owned()),
        })
    }

    /// The calls to the cloud provider that were asked for, each with its answer: the queries may differ
    /// from those that the cache would lead to by now.
    pub fn cloud(&self) -> impl Iterator<Item = (&'a cloud::Call, cloud::Answered)> {
        self.answers
            .iter()
            .filter_map(|(query, answer)| match query {
                Query::Cloud(call) => Some((call, cloud::read(answer))),
                _ => None,
            })
    }

    /// As [`Reader::heartbeat_age`].
    pub fn heartbeat_age<T: Object>(&self, key: &Key) -> Option<Duration> {
        self.reader
            .heartbeat_age(T::resource(), &key.namespace, &key.name)
    }

    /// As [`Reader::exposure_age`].
    pub fn exposure_age(&self, node: &str, taint: &str, pod: &Key) -> Option<Duration> {
        self.reader.exposure_age(node, taint, pod)
    }

    /// How many objects of a kind there are.
    pub fn count<T: Object>(&self) -> usize {
        self.reader.count(T::resource())
    }

    /// What the API serves, where the controller has asked for it.
    pub fn catalogue(&self) -> Arc<Catalogue> {
        self.reader.catalogue()
    }

    /// The store behind it.
    pub fn reader(&self) -> &'a dyn Reader {
        self.reader
    }
}
