//! What an endpoint counts itself.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;
use wallaby::{Endpoint, Load, Metrics};

/// Asks an endpoint at each scrape.
#[derive(Debug)]
pub(crate) struct Counts(pub(crate) Endpoint);

/// A counter: its name, its unit if any, what it is, and where its value is.
type Counted = (
    &'static str,
    Option<Unit>,
    &'static str,
    fn(&Metrics) -> u64,
);

const COUNTED: &[Counted] = &[
    (
        "wallaby_messages_sent",
        None,
        "Messages sent, those of the protocol itself included",
        |it| it.messages_sent,
    ),
    (
        "wallaby_messages_received",
        None,
        "Messages received",
        |it| it.messages_received,
    ),
    (
        "wallaby_sent",
        Some(Unit::Bytes),
        "Bytes written to transports, framing included",
        |it| it.bytes_sent,
    ),
    (
        "wallaby_received",
        Some(Unit::Bytes),
        "Bytes read from transports, framing included",
        |it| it.bytes_received,
    ),
    (
        "wallaby_requests_received",
        None,
        "Requests that arrived",
        |it| it.requests_received,
    ),
    (
        "wallaby_requests_refused",
        None,
        "Requests refused since too many waited for a handler",
        |it| it.requests_refused,
    ),
    (
        "wallaby_requests_dropped",
        None,
        "Requests that had arrived before, or whose call was over",
        |it| it.requests_dropped,
    ),
    (
        "wallaby_requests_unsealed",
        None,
        "Requests refused since no key of the cluster has sealed them",
        |it| it.unsealed_refused,
    ),
    (
        "wallaby_budgets_exhausted",
        None,
        "Requests ended since they had used up what they may",
        |it| it.budgets_exhausted,
    ),
    (
        "wallaby_panics",
        None,
        "Handlers and interceptors that panicked",
        |it| it.panics,
    ),
    (
        "wallaby_handlers_stuck",
        None,
        "Handlers that went on for long after their request was stopped",
        |it| it.stuck,
    ),
    (
        "wallaby_handlers_late_errors",
        None,
        "Errors of handlers whose request had ended before",
        |it| it.late_errors,
    ),
    (
        "wallaby_responses_received",
        None,
        "Answers and statuses that calls here got",
        |it| it.responses_received,
    ),
    (
        "wallaby_statuses_received",
        None,
        "Statuses among them",
        |it| it.statuses_received,
    ),
    (
        "wallaby_statuses_sent",
        None,
        "Statuses that ended requests here, before interceptors are asked, too",
        |it| it.statuses_sent,
    ),
    (
        "wallaby_retries",
        None,
        "Calls made again after a failure",
        |it| it.retries,
    ),
    (
        "wallaby_retries_over_budget",
        None,
        "Further attempts that were not made since the budget for them was used up",
        |it| it.retries_over_budget,
    ),
    (
        "wallaby_hedges",
        None,
        "Second attempts made beside slow calls",
        |it| it.hedges,
    ),
    (
        "wallaby_hedges_won",
        None,
        "Second attempts that answered first",
        |it| it.hedges_won,
    ),
    (
        "wallaby_resends",
        None,
        "Initial requests sent again",
        |it| it.resends,
    ),
    (
        "wallaby_connections_opened",
        None,
        "Connections opened, by either side",
        |it| it.connections_opened,
    ),
    (
        "wallaby_connections_ended",
        None,
        "Connections that ended",
        |it| it.connections_ended,
    ),
    (
        "wallaby_connections_silent",
        None,
        "Connections given up since the peer was silent",
        |it| it.connections_silent,
    ),
    (
        "wallaby_connections_evicted",
        None,
        "Connections closed to make room for others",
        |it| it.connections_evicted,
    ),
    (
        "wallaby_strangers_dismissed",
        None,
        "Peers that did not say in time who they are",
        |it| it.strangers_dismissed,
    ),
    (
        "wallaby_accepts_failed",
        None,
        "Connections that came in and were not opened, as when a handshake failed",
        |it| it.accepts_failed,
    ),
    (
        "wallaby_dials_failed",
        None,
        "Addresses dialled in vain",
        |it| it.dials_failed,
    ),
    (
        "wallaby_dials_forbidden",
        None,
        "Addresses not dialled since the dial policy forbids it",
        |it| it.dials_forbidden,
    ),
    (
        "wallaby_dials_held",
        None,
        "Addresses that a peer named and that were not dialled since they were a moment ago",
        |it| it.dials_held,
    ),
    (
        "wallaby_relayed",
        None,
        "Answers passed on for callers that cannot be dialled",
        |it| it.relayed,
    ),
    (
        "wallaby_undeliverable",
        None,
        "Answers to which no way led to their caller",
        |it| it.undeliverable,
    ),
    (
        "wallaby_forged",
        None,
        "Messages dropped that did not show the token of their call",
        |it| it.forged_dropped,
    ),
    (
        "wallaby_late",
        None,
        "Answers to calls that were over",
        |it| it.late_dropped,
    ),
];

impl Collector for Counts {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (metrics, load) = (self.0.metrics(), self.0.load());
        for (name, unit, about, value) in COUNTED {
            let counter = ConstCounter::new(value(&metrics));
            let kind = counter.metric_type();
            counter.encode(encoder.encode_descriptor(name, about, unit.as_ref(), kind)?)?;
        }
        let open = metrics
            .connections_opened
            .saturating_sub(metrics.connections_ended);
        let Load { running, waiting } = load;
        let held = self.0.remembered();
        for (name, about, value) in [
            ("wallaby_connections", "Connections that are open", open),
            (
                "wallaby_handlers_running",
                "Handlers that run",
                running as u64,
            ),
            (
                "wallaby_requests_waiting",
                "Requests that wait for a handler",
                waiting as u64,
            ),
            (
                "wallaby_requests_remembered",
                "Requests that are remembered, running ones included",
                held.requests as u64,
            ),
        ] {
            let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            let kind = gauge.metric_type();
            gauge.encode(encoder.encode_descriptor(name, about, None, kind)?)?;
        }
        Ok(())
    }
}
