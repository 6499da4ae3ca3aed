//! Spans of calls between replicas. The node records them; here they begin and end.

use coordinator_core::{Epoch, RangeId};

/// One call that moves a range, on either side.
#[derive(Clone, Copy, Debug)]
pub struct PeerCall<'a> {
    /// As in the protocol: `Handoff` or `Released`.
    pub method: &'static str,
    /// Whether it is made here; else it is answered here.
    pub is_client: bool,
    /// The other replica's name.
    pub peer: &'a str,
    /// The incarnation of the owner before.
    pub from: &'a str,
    /// The range.
    pub range: RangeId,
    /// The next owner's epoch.
    pub epoch: Epoch,
    /// The `traceparent` that came with it.
    pub parent: Option<&'a str>,
}

/// Records calls.
pub trait Tracer: Send + Sync {
    /// Begins a span; `None` where nothing is traced.
    fn begin(&self, call: &PeerCall<'_>) -> Option<Box<dyn PeerSpan>>;
}

/// A call under way. Dropped, it was given up.
pub trait PeerSpan: Send {
    /// Its W3C trace context, for the metadata of the call.
    fn traceparent(&self) -> Option<String>;
    /// Ends it, with what went wrong.
    fn end(self: Box<Self>, error: Option<String>);
}
