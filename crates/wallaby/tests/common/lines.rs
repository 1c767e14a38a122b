//! Calls down lines of servers, and what became of them.

use std::time::Duration;

use wallaby::codec::Codec;
use wallaby::{Answers, Caller, Code, Endpoint, Pipeline, Status, TargetOutcome};

/// Until there are no more answers.
pub(crate) async fn finish<A: Answers, C: Codec<A::Item>>(call: &mut Pipeline<A, C>) {
    while call.next().await.is_some() {}
}

/// The status that a server failed with.
pub(crate) fn code(outcome: &TargetOutcome) -> Option<Code> {
    match outcome {
        TargetOutcome::Failed(error) => error.status().map(Status::code),
        _ => None,
    }
}

/// Servers that are gone are found out soon, and those that live have time enough to show it.
pub(crate) fn quick(client: &Endpoint) -> Caller {
    let (period, timeout) = (Duration::from_millis(50), Duration::from_secs(5));
    client.caller().ping(period, timeout)
}
