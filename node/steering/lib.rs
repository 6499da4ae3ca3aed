//! Orders of operators to a fleet: a controller or a key is paused, a replica is drained, a controller has
//! other workers or another rate of writes, a range is another replica's. Pure: the time is an argument.
//!
//! Orders are the fields of one ConfigMap in the fleet's namespace ([`object_name`]), a field for each, so
//! that a merge patch of one field changes one order and two operators never overwrite each other. RBAC
//! decides who may write it; replicas read it and remove what has expired. docs/steering.md describes it for
//! operators.
//!
//! An order that can't be read has no effect and is a [`Fault`]: an unknown field is refused too, since a
//! mistyped `key` would pause a whole controller.

mod edit;
mod orders;

pub use edit::{Edit, Refused, closest, lift, place};
pub use orders::{Amount, Fault, Order, Orders, Setting, Target, Unreadable, known};

use jiff::SignedDuration;

/// The longest time for which an order may hold.
pub const HOLDS_MAX: SignedDuration = SignedDuration::from_hours(7 * 24);
/// For how long an order holds where nothing else is asked for.
pub const HOLDS: SignedDuration = SignedDuration::from_hours(1);
/// By so much the clock of who wrote an order may be ahead of a replica's: one that begins later than this is
/// not in force yet.
pub const CLOCKS_APART_MAX: SignedDuration = SignedDuration::from_mins(5);
/// An order is kept for so long after its end, and is removed then: by then it has ended by each clock.
pub const KEPT: SignedDuration = CLOCKS_APART_MAX;
/// Orders of a fleet at one time. With [`ORDER_BYTES_MAX`] a third of what an object may have.
pub const ORDERS_MAX: usize = 256;
/// Fields of the object that are named because they have no effect; the rest is counted.
pub const FAULTS_MAX: usize = 20;
/// Bytes of an order's field.
pub const ORDER_BYTES_MAX: usize = 2048;
/// Characters of a reason.
pub const REASON_MAX: usize = 256;
/// Bytes of a key: a namespace, a sort and a name.
pub const KEY_BYTES_MAX: usize = 400;

/// Bytes of a replica's name, as an object of Kubernetes has it.
pub const NAME_BYTES_MAX: usize = 253;
/// The most workers that a controller can be given in each replica.
pub const WORKERS_MAX: u32 = 1000;
/// The most ranges that a fleet can have.
pub const RANGES_MAX: u16 = 4096;
/// The lowest rate of a controller's writes in each replica: below it, keys of many writes would wait for
/// minutes, and `pause` is what is meant.
pub const QPS_MIN: f64 = 0.1;
/// The highest.
pub const QPS_MAX: f64 = 10_000.0;

/// The ConfigMap of a fleet's orders.
pub fn object_name(fleet: &str) -> String {
    format!("{fleet}-steering")
}

#[cfg(test)]
mod tests;
