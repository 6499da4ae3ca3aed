//! The running manager: watches, queues, actors, the one writer.

pub mod events;
pub mod queue;
pub mod write;
