//! Controllers with deliberate faults: they decide rightly on a cache that does not show them what is there,
//! or by a clock that is wrong.

use std::{cell::Cell, sync::Arc};

use controllers_kit::{
    AnyObject, Descriptor, DynController, Factory, Flags, Key, Memory, Outcome, Plan, Query,
    Reader, Refusal, Resource, SignedDuration, Snapshot, Timestamp, Watches,
};
use kubernetes_proto::{
    Object as _,
    certificates::{CertificateSigningRequest, CertificateSigningRequestCondition},
    core::{BootstrapToken, PersistentVolume, PersistentVolumeClaim, Pod, ServiceAccount},
    networking::IpAddress,
    rbac::ClusterRole,
};

use crate::mutants::Mutant;

thread_local! {
    static TRIED: Cell<Option<Mutant>> = const { Cell::new(None) };
}

/// What a mistaken controller is shown of an object; `None` for nothing.
type Shows = fn(&AnyObject) -> Option<AnyObject>;

/// How a controller is mistaken.
#[derive(Clone, Copy)]
pub struct Mistake {
    /// What it sees.
    pub shows: Shows,
    /// By how much its clock is ahead.
    pub ahead: SignedDuration,
}

impl Mistake {
    /// Of one that does not see things as they are.
    pub fn of(shows: Shows) -> Self {
        Self {
            shows,
            ahead: SignedDuration::ZERO,
        }
    }

    /// Of one whose clock is ahead by some seconds.
    pub fn ahead(seconds: i64) -> Self {
        Self {
            shows: |object| Some(Arc::clone(object)),
            ahead: SignedDuration::from_secs(seconds),
        }
    }
}

/// Sets the deliberate fault of the run that begins on this thread.
pub fn begin(mutant: Option<Mutant>) {
    TRIED.set(mutant);
}

/// The controllers, one of them with the deliberate fault of this thread's run, if it has such.
pub fn mistaken(mut controllers: Vec<Factory>) -> Vec<Factory> {
    let Some((mutant, _)) = tried() else {
        return controllers;
    };
    for factory in &mut controllers {
        if Some((factory.describe)().name) == mutant.controller() {
            factory.build = build;
        }
    }
    controllers
}

fn tried() -> Option<(Mutant, Mistake)> {
    let mutant = TRIED.get()?;
    Some((mutant, mutant.mistake()?))
}

fn build(flags: &Flags) -> Box<dyn DynController> {
    let (mutant, mistake) = tried().expect("only a mistaken controller is built here");
    let mut all = node_registry::all().into_iter();
    let factory = all.find(|factory| Some((factory.describe)().name) == mutant.controller());
    let factory = factory.expect("a deliberate fault names a controller that there is");
    Box::new(Mistaken {
        controller: (factory.build)(flags),
        mistake,
    })
}

struct Mistaken {
    controller: Box<dyn DynController>,
    mistake: Mistake,
}

impl Mistaken {
    fn through<R>(&self, seen: &Snapshot<'_>, run: impl FnOnce(&Snapshot<'_>) -> R) -> R {
        let lens = Lens {
            reader: seen.reader(),
            shows: self.mistake.shows,
        };
        run(&seen.through(&lens, seen.now + self.mistake.ahead))
    }
}

impl DynController for Mistaken {
    fn descriptor(&self) -> &Descriptor {
        self.controller.descriptor()
    }
    fn watches(&self) -> Watches {
        self.controller.watches()
    }
    fn ask(&self, key: &Key, seen: &Snapshot<'_>, memory: &Memory) -> Vec<Query> {
        self.through(seen, |seen| self.controller.ask(key, seen, memory))
    }
    fn plan(&self, key: &Key, seen: &Snapshot<'_>, memory: &mut Memory) -> Result<Plan, Refusal> {
        self.through(seen, |seen| self.controller.plan(key, seen, memory))
    }
    fn learn(&self, outcome: &Outcome<'_>, memory: &mut Memory) {
        self.controller.learn(outcome, memory);
    }
    fn shift(&self, memory: &mut Memory, by: SignedDuration) {
        self.controller.shift(memory, by);
    }
    fn new_memory(&self) -> Memory {
        self.controller.new_memory()
    }
    fn is_fresh(&self, memory: &Memory) -> bool {
        self.controller.is_fresh(memory)
    }
    fn pack(&self, memory: &Memory) -> Option<Vec<u8>> {
        self.controller.pack(memory)
    }
    fn unpack(&self, bytes: &[u8]) -> Memory {
        self.controller.unpack(bytes)
    }
}

struct Lens<'a> {
    reader: &'a dyn Reader,
    shows: Shows,
}

impl Lens<'_> {
    fn all(&self, objects: &[AnyObject]) -> Vec<AnyObject> {
        objects.iter().filter_map(self.shows).collect()
    }
}

impl Reader for Lens<'_> {
    fn below(&self) -> Option<&dyn Reader> {
        Some(self.reader)
    }

    fn get(&self, resource: &'static Resource, namespace: &str, name: &str) -> Option<AnyObject> {
        let object = self.reader.get(resource, namespace, name)?;
        (self.shows)(&object)
    }
    fn list(&self, resource: &'static Resource, namespace: Option<&str>) -> Vec<AnyObject> {
        self.all(&self.reader.list(resource, namespace))
    }
    fn indexed(
        &self,
        resource: &'static Resource,
        index: &'static str,
        value: &str,
    ) -> Vec<AnyObject> {
        self.all(&self.reader.indexed(resource, index, value))
    }
}

/// Every volume as nobody has it.
pub fn unbound(object: &AnyObject) -> Option<AnyObject> {
    let Some(volume) = object.as_any().downcast_ref::<PersistentVolume>() else {
        return Some(Arc::clone(object));
    };
    let mut volume = volume.clone();
    volume.status.get_or_insert_default().phase = "Available".to_owned();
    volume.spec.get_or_insert_default().claim_ref = None;
    Some(Arc::new(volume))
}

/// Neither claims nor volumes.
pub fn without_storage(object: &AnyObject) -> Option<AnyObject> {
    let hidden = [
        PersistentVolume::resource(),
        PersistentVolumeClaim::resource(),
    ];
    (!hidden.contains(&object.resource())).then(|| Arc::clone(object))
}

/// No volume that was provisioned.
pub fn without_provisioned(object: &AnyObject) -> Option<AnyObject> {
    let is_hidden = object.resource() == PersistentVolume::resource()
        && object.metadata().name.starts_with("pvc-");
    (!is_hidden).then(|| Arc::clone(object))
}

/// No claim that is bound.
pub fn without_bound_claims(object: &AnyObject) -> Option<AnyObject> {
    let claim = object.as_any().downcast_ref::<PersistentVolumeClaim>();
    let is_hidden = claim.is_some_and(crate::storage::is_bound);
    (!is_hidden).then(|| Arc::clone(object))
}

/// No ServiceAccounts.
pub fn without_accounts(object: &AnyObject) -> Option<AnyObject> {
    (object.resource() != ServiceAccount::resource()).then(|| Arc::clone(object))
}

/// No pods.
pub fn without_pods(object: &AnyObject) -> Option<AnyObject> {
    (object.resource() != Pod::resource()).then(|| Arc::clone(object))
}

/// No addresses of Services.
pub fn without_addresses(object: &AnyObject) -> Option<AnyObject> {
    (object.resource() != IpAddress::resource()).then(|| Arc::clone(object))
}

/// Every bootstrap token as one that may sign.
pub fn signing(object: &AnyObject) -> Option<AnyObject> {
    let Some(token) = object.as_any().downcast_ref::<BootstrapToken>() else {
        return Some(Arc::clone(object));
    };
    let mut token = token.clone();
    token
        .data
        .insert("usage-bootstrap-signing".to_owned(), "true".into());
    Some(Arc::new(token))
}

/// Every role as one that the aggregates select.
pub fn selected(object: &AnyObject) -> Option<AnyObject> {
    let Some(role) = object.as_any().downcast_ref::<ClusterRole>() else {
        return Some(Arc::clone(object));
    };
    let mut role = role.clone();
    role.metadata_mut()
        .set_label(crate::workloads::identity::EDIT, "true");
    Some(Arc::new(role))
}

fn with_condition(object: &AnyObject, condition: &str) -> Option<AnyObject> {
    let Some(request) = object.as_any().downcast_ref::<CertificateSigningRequest>() else {
        return Some(Arc::clone(object));
    };
    let mut request = request.clone();
    let status = request.status.get_or_insert_default();
    status.conditions.retain(|one| one.r#type != "Denied");
    status.conditions.push(CertificateSigningRequestCondition {
        r#type: condition.to_owned(),
        status: "True".to_owned(),
        last_update_time: Some(Timestamp::UNIX_EPOCH.into()),
        ..CertificateSigningRequestCondition::default()
    });
    Some(Arc::new(request))
}

/// Every request for a certificate as an approved one.
pub fn approved(object: &AnyObject) -> Option<AnyObject> {
    with_condition(object, "Approved")
}
