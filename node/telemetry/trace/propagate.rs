//! W3C Trace Context, by the SDK's propagator.

use std::collections::HashMap;

use opentelemetry::{
    Context,
    propagation::TextMapPropagator as _,
    trace::{SpanContext, TraceContextExt as _},
};
use opentelemetry_sdk::propagation::TraceContextPropagator;

/// The header that carries a span.
pub const TRACEPARENT: &str = "traceparent";

/// The `traceparent` of a span.
pub fn inject(context: &SpanContext) -> Option<String> {
    let mut headers = HashMap::new();
    let context = Context::new().with_remote_span_context(context.clone());
    TraceContextPropagator::new().inject_context(&context, &mut headers);
    headers.remove(TRACEPARENT)
}

/// What a `traceparent` points to; `None` where it is not one.
pub fn extract(text: &str) -> Option<SpanContext> {
    let headers = HashMap::from([(TRACEPARENT.to_owned(), text.to_owned())]);
    let context = TraceContextPropagator::new().extract_with_context(&Context::new(), &headers);
    let context = context.span().span_context().clone();
    context.is_valid().then_some(context)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_traceparent_is_read_and_what_is_none_is_refused() {
        let right = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let context = extract(right).unwrap();
        assert_eq!(
            context.trace_id().to_string(),
            "4bf92f3577b34da6a3ce929d0e0e4736"
        );
        assert!(context.is_remote() && context.is_sampled());
        assert_eq!(inject(&context).as_deref(), Some(right));
        for wrong in [
            "",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-xbf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ] {
            assert!(extract(wrong).is_none(), "{wrong}");
        }
    }
}
