//! The trait, and its form for the node, which holds controllers of any kind side by side.

use std::any::Any;

use kubernetes_proto::Str;
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    Action, Descriptor, Failure, Flags, Key, Plan, Query, SignedDuration, Snapshot, Watches,
};

/// A control loop: a pure function from what is seen to what should be written.
pub trait Controller: Send + Sync + 'static {
    /// State that travels with a key when its owner changes. Losing it must be safe, only slower.
    type Memory: Default + PartialEq + Serialize + DeserializeOwned + Send + 'static;
    /// Name, aliases, sharding, flags, rules: `--help`, deploy/ and the docs are generated from it.
    fn describe() -> Descriptor;
    /// Builds the controller from the values of its flags.
    fn new(flags: &Flags) -> Self;
    /// Declares the watched kinds, and which keys an object of each wakes.
    fn watch(&self, on: &mut Watches);
    /// Queries for what the cache can't answer, fetched before `plan`. Answers kept in memory need no
    /// query.
    fn ask(&self, _key: &Key, _seen: &Snapshot<'_>, _memory: &Self::Memory) -> Vec<Query> {
        Vec::new()
    }
    /// Decides. Same inputs, same plan: no clock but `seen.now`, no randomness, no I/O.
    ///
    /// # Errors
    /// Where the key can't be decided now.
    fn plan(
        &self,
        key: &Key,
        seen: &Snapshot<'_>,
        memory: &mut Self::Memory,
    ) -> Result<Plan, Refusal>;
    /// Receives the result of each action, before the next plan.
    fn learn(&self, _outcome: &Outcome<'_>, _memory: &mut Self::Memory) {}
    /// Shifts the instants in a memory that came from another machine by the difference of the two clocks,
    /// so that ages stay the same.
    fn shift(&self, _memory: &mut Self::Memory, _by: SignedDuration) {}
}

/// Why a key can't be planned now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Only a change of a watched object helps: no retry, no error counted.
    #[error("waits for a change: {0}")]
    Wait(String),
    /// Retried with back-off.
    #[error("{0}")]
    Retry(String),
    /// Retried with back-off like [`Refusal::Retry`], but no fault of the cluster: everyday user errors,
    /// such as a request that is not permitted. Logged at debug level alone, and not counted as an error.
    #[error("{0}")]
    Expected(String),
}

/// The result of one action, for [`Controller::learn`].
pub struct Outcome<'a> {
    /// The action.
    pub action: &'a Action,
    /// The write's effect, or its failure.
    pub result: Result<Written, &'a Failure>,
}

/// What a write left behind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// The object's uid.
    pub uid: Str,
    /// Its new resourceVersion: the mark that the cache must reach. 0 for a delete whose answer had none.
    pub resource_version: u64,
    /// Whether the write removed the object: it was being deleted, and this was its last finalizer. The
    /// server then returns the previous version, which the cache may have passed long ago.
    pub gone: bool,
}

/// A key's memory, of whatever controller.
pub type Memory = Box<dyn Any + Send>;

/// [`Controller`] with its type erased, for the node.
pub trait DynController: Send + Sync {
    /// As [`Controller::describe`].
    fn descriptor(&self) -> &Descriptor;
    /// As [`Controller::watch`].
    fn watches(&self) -> Watches;
    /// As [`Controller::ask`].
    fn ask(&self, key: &Key, seen: &Snapshot<'_>, memory: &Memory) -> Vec<Query>;
    /// As [`Controller::plan`].
    ///
    /// # Errors
    /// Those of [`Controller::plan`].
    fn plan(&self, key: &Key, seen: &Snapshot<'_>, memory: &mut Memory) -> Result<Plan, Refusal>;
    /// As [`Controller::learn`].
    fn learn(&self, outcome: &Outcome<'_>, memory: &mut Memory);
    /// As [`Controller::shift`].
    fn shift(&self, memory: &mut Memory, by: SignedDuration);
    /// An empty memory.
    fn new_memory(&self) -> Memory;
    /// Whether a memory equals a fresh one.
    fn is_fresh(&self, memory: &Memory) -> bool;
    /// A memory for the handoff; `None` where it equals a fresh one.
    fn pack(&self, memory: &Memory) -> Option<Vec<u8>>;
    /// Decodes a memory from a handoff; a fresh one where the bytes can't be read (another version's).
    fn unpack(&self, bytes: &[u8]) -> Memory;
}

struct Held<C> {
    controller: C,
    descriptor: Descriptor,
}

impl<C: Controller> Held<C> {
    fn memory<'a>(&self, memory: &'a mut Memory) -> &'a mut C::Memory {
        memory.downcast_mut().unwrap_or_else(|| {
            panic!(
                "{} was given the memory of another controller",
                self.descriptor.name
            )
        })
    }
}

impl<C: Controller> DynController for Held<C> {
    fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }
    fn watches(&self) -> Watches {
        let mut watches = Watches::default();
        self.controller.watch(&mut watches);
        watches
    }
    fn ask(&self, key: &Key, seen: &Snapshot<'_>, memory: &Memory) -> Vec<Query> {
        let memory = memory.downcast_ref().unwrap_or_else(|| {
            panic!(
                "{} was given the memory of another controller",
                self.descriptor.name
            )
        });
        self.controller.ask(key, seen, memory)
    }
    fn plan(&self, key: &Key, seen: &Snapshot<'_>, memory: &mut Memory) -> Result<Plan, Refusal> {
        self.controller.plan(key, seen, self.memory(memory))
    }
    fn learn(&self, outcome: &Outcome<'_>, memory: &mut Memory) {
        self.controller.learn(outcome, self.memory(memory));
    }
    fn shift(&self, memory: &mut Memory, by: SignedDuration) {
        self.controller.shift(self.memory(memory), by);
    }
    fn new_memory(&self) -> Memory {
        Box::new(C::Memory::default())
    }
    fn is_fresh(&self, memory: &Memory) -> bool {
        memory
            .downcast_ref::<C::Memory>()
            .is_none_or(|memory| *memory == C::Memory::default())
    }
    fn pack(&self, memory: &Memory) -> Option<Vec<u8>> {
        if self.is_fresh(memory) {
            return None;
        }
        serde_json::to_vec(memory.downcast_ref::<C::Memory>()?).ok()
    }
    fn unpack(&self, bytes: &[u8]) -> Memory {
        Box::new(serde_json::from_slice::<C::Memory>(bytes).unwrap_or_default())
    }
}

/// How the node creates a controller: one line of a group's registry.
#[derive(Clone, Copy)]
pub struct Factory {
    /// As [`Controller::describe`].
    pub describe: fn() -> Descriptor,
    /// As [`Controller::new`].
    pub build: fn(&Flags) -> Box<dyn DynController>,
}

impl Factory {
    /// The factory of a controller type.
    pub const fn of<C: Controller>() -> Self {
        Self {
            describe: C::describe,
            build: |flags| {
                Box::new(Held {
                    controller: C::new(flags),
                    descriptor: C::describe(),
                })
            },
        }
    }
}
