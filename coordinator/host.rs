//! What the coordinator asks of the node, and what it gives it: ranges, and the fence.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use coordinator_core::{Holder, Loads, Quarantine, Work};
use peer_proto::{InspectRequest, RangeState, Sight};

/// A range's number, below the fleet's number of ranges.
pub type RangeId = u16;

/// A range Lease's `leaseTransitions`; grows by one at every change of owner.
pub type Epoch = u64;

/// How a range came.
#[derive(Clone, Debug, PartialEq)]
pub enum Gained {
    /// The replica before has handed it over with all it knew.
    Handoff(RangeState),
    /// Nobody handed it over: the owner is dead, or there was none. Freshness must be proven.
    Takeover,
}

/// What came of freezing a range.
#[derive(Clone, Debug, PartialEq)]
pub enum Frozen {
    /// Nothing is under way any more; this is all that is known.
    Still(RangeState),
    /// Writes were under way when the time was over. With `force` the range is frozen all the same and the
    /// keys in flight are marked in the state; without, it is served as before and the state is empty.
    Busy {
        /// Keys in flight, as in `deployment-controller shop/web`.
        keys: Vec<String>,
        /// The state, if it was forced.
        state: RangeState,
    },
}

/// The node's side: who holds the queues. Calls return at once; work continues in the node's own tasks.
pub trait RangeHost: Send + Sync + 'static {
    /// Under which incarnation the ranges are owned that are gained from now on. What was gained before is
    /// lost.
    fn lives_as(&self, _holder: &Holder) {}
    /// The replica may act on the range from now on.
    fn gained(&self, range: RangeId, epoch: Epoch, how: Gained);
    /// The range has another owner or may have one: drop all its state.
    fn lost(&self, range: RangeId);
    /// Starts no further key, lets writes in flight end within `budget`, and gives out all that is known.
    fn freeze(
        &self,
        range: RangeId,
        budget: Duration,
        force: bool,
    ) -> Pin<Box<dyn Future<Output = Frozen> + Send + 'static>>;
    /// The move did not happen: serve a frozen range as before.
    fn resume(&self, range: RangeId);
    /// Whether the caches are complete, so that ranges may come.
    fn ready(&self) -> bool;
    /// The keys in flight that the replica's Lease is to name: those that were announced, and of the others
    /// those that take long, the oldest first; at most [`coordinator_core::WORKING_MAX`]. Asked before each
    /// renewal.
    fn working(&self) -> Vec<Work> {
        Vec::new()
    }
    /// What the replica's Lease is to say of its ranges' work. Asked before each renewal; what has not
    /// changed enough is as before.
    fn loads(&self) -> Arc<Loads> {
        Arc::default()
    }
    /// How far its watches have come; for peers.
    fn sights(&self) -> Vec<Sight> {
        Vec::new()
    }
    /// How far those of another replica have come. It may be wrong.
    fn peer_sees(&self, _replica: &str, _sights: Vec<Sight>) {}
    /// Whether the status of a pod, `<namespace>/<name>`, proves that a process of a replica has ended, which
    /// is named by the incarnation that it began with. `false` also where that could not be found out.
    fn has_ended(
        &self,
        _pod: &str,
        _process: &str,
    ) -> Pin<Box<dyn Future<Output = bool> + Send + 'static>> {
        Box::pin(std::future::ready(false))
    }
    /// Which keys and ranges are treated with care from now on. Comes before the ranges that it names are
    /// gained.
    fn quarantine(&self, _quarantine: &Quarantine) {}
    /// What happens inside, for a person who asks another replica: JSON. Answered by the node's own tasks, so
    /// that the coordinator does not wait.
    fn inspect(
        &self,
        _asked: InspectRequest,
    ) -> Pin<Box<dyn Future<Output = Result<Vec<u8>, String>> + Send + 'static>> {
        Box::pin(std::future::ready(Err(
            "this replica has nothing to show".to_owned()
        )))
    }
}
