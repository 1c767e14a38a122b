//! What an endpoint counts.

use std::sync::atomic::{AtomicU64, Ordering};

use wallaby_proto::connection::Counters;

macro_rules! metrics {
    ($($(#[$doc:meta])+ $name:ident,)+) => {
        /// A snapshot of what an endpoint has counted since its start.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        #[non_exhaustive]
        pub struct Metrics {
            /// Messages sent: requests, responses and those of the protocol itself.
            pub messages_sent: u64,
            /// Messages received.
            pub messages_received: u64,
            /// Bytes written to transports, framing included.
            pub bytes_sent: u64,
            /// Bytes read from transports, framing included.
            pub bytes_received: u64,
            /// Times that a connection was taken to send something on; those that had to be opened first are among
            /// [`Metrics::connections_opened`].
            pub connections_used: u64,
            $($(#[$doc])+ pub $name: u64,)+
        }

        /// The counters behind [`Metrics`].
        #[derive(Debug, Default)]
        pub(crate) struct Meters {
            $(pub(crate) $name: Meter,)+
        }

        impl Meters {
            /// A snapshot; `carried` is what all connections have, `used` is how often one was taken.
            pub(crate) fn snapshot(&self, carried: Counters, used: u64) -> Metrics {
                Metrics {
                    messages_sent: carried.messages_sent,
                    messages_received: carried.messages_received,
                    bytes_sent: carried.bytes_sent,
                    bytes_received: carried.bytes_received,
                    connections_used: used,
                    $($name: self.$name.get(),)+
                }
            }
        }
    };
}

metrics! {
    /// Calls begun.
    calls_started,
    /// Calls that completed, with or without statuses.
    calls_completed,
    /// Calls that failed.
    calls_failed,
    /// Calls that their initiator gave up.
    calls_aborted,
    /// Calls made again after a failure, each time.
    retries,
    /// Second attempts made beside slow calls.
    hedges,
    /// Those of them that delivered the answer.
    hedges_won,
    /// Further attempts that were not made since the client's budget was used up.
    retries_over_budget,
    /// Initial requests sent again, each time.
    resends,
    /// Calls, and further requests of them, that could not be kept to be sent again.
    resends_unkept,
    /// Requests that arrived.
    requests_received,
    /// Requests that had arrived before, or whose call was over: they were not handled.
    requests_dropped,
    /// Requests refused since the executor's queue was full.
    requests_refused,
    /// Requests refused since they were not sealed by who has a cluster key.
    unsealed_refused,
    /// Requests ended here since they, or a maximum of this endpoint, allowed no more requests, responses, bytes or hops.
    budgets_exhausted,
    /// Responses that were delivered to a call here, statuses included.
    responses_received,
    /// Statuses among them.
    statuses_received,
    /// Statuses that ended requests here.
    statuses_sent,
    /// Handlers that panicked.
    panics,
    /// Errors of handlers whose request had ended before.
    late_errors,
    /// Handlers that went on for long after their request was stopped, and gave up their place in the executor.
    stuck,
    /// Responses passed on for initiators that cannot be dialled.
    relayed,
    /// Pings passed on for initiators that cannot reach a server.
    pings_passed,
    /// Responses that waited since no way led to their initiator.
    waited_for_ways,
    /// Responses that no way led to their initiator for, and messages that 255 servers had passed on towards it.
    undeliverable,
    /// Responses that had arrived before.
    duplicates_dropped,
    /// Responses to calls that are over.
    late_dropped,
    /// Times that an address was not dialled since the dial policy forbids it.
    dials_forbidden,
    /// Times that an address which a peer had named was not dialled: it was a moment ago, or too many such addresses were.
    dials_held,
    /// Messages to calls of this endpoint that did not show the call's token, or announced a request of a call that it has
    /// not made yet.
    forged_dropped,
    /// Pings and aborts about requests that are not known here: they came too early or too late, or did not show the token
    /// of the call.
    unknown_pings,
    /// Connections opened, by either side.
    connections_opened,
    /// Streams that came in and were not opened: the handshake of their transport failed or took too long.
    accepts_failed,
    /// Connections that ended.
    connections_ended,
    /// Connections among them that were given up since the peer was silent.
    connections_silent,
    /// Strangers whose connection was closed: they did not say who they are, or over `udp:` nothing at all, for too long or
    /// while too many others did.
    strangers_dismissed,
    /// Connections among them that were closed to make room for others: those used least recently.
    connections_evicted,
}

/// A number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Meter(AtomicU64);

impl Meter {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
