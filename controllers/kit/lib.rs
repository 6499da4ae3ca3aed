//! The library of all controllers: the trait, what it may read, the plan it returns.
//!
//! A controller is a pure function from what is seen to what should be written. It knows nothing of
//! clients, of actors or of who owns a key; the node queries, fences, writes and retries for it.

mod controller;
mod descriptor;
mod failure;
mod key;
mod plan;
mod said;
mod snapshot;
#[cfg(test)]
mod toy;
mod watches;

pub mod catalogue;
pub mod cidr;
pub mod cloud;
pub mod conditions;
pub mod finalizers;
pub mod guard;
pub mod heartbeat;
pub mod names;
pub mod openapi;
pub mod owners;
pub mod patch;
pub mod pods;
pub mod podspec;
pub mod postconditions;
pub mod rbac;
pub mod readme;
pub mod selection;
pub mod selectors;
pub mod status;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod tolerations;

pub use catalogue::{Catalogue, Entry};
pub use controller::{Controller, DynController, Factory, Memory, Outcome, Refusal, Written};
pub use descriptor::{
    Backoff, Descriptor, Flag, FlagDefault, FlagValue, Flags, MetricKind, MetricSpec, Rule, Runs,
    Sharding,
};
pub use failure::{Class, Failure, Landed, Severity};
pub use key::Key;
pub use plan::{
    Action, Announcement, Counted, Event, EventType, Measure, ObjectRef, OnFailure, Only,
    PatchKind, Plan, Propagation, Requeue, StatusWrite, Verb, is_json,
};
pub use said::Said;
pub use snapshot::{
    Answer, Answers, Issue, NOT_FOUND, NoPage, Page, Pick, Query, Reader, Snapshot, Standing,
};
pub use watches::{Change, Discovered, DynChange, Index, Subscription, Watches};

pub use jiff::{SignedDuration, Timestamp};
pub use kubernetes_proto::{AnyObject, Confidential, DynObject, Object, Resource, Str, cast};
