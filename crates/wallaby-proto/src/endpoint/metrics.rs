//! What an endpoint counts.

use crate::connection::Carried;

/// What an endpoint has counted since its start. Retries, hedges and failed accepts are counted by its driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(default)
)]
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
    /// Times that a connection was taken to send a request on; those that had to be opened first are among
    /// [`Metrics::connections_opened`].
    pub connections_used: u64,
    /// Calls begun.
    pub calls_started: u64,
    /// Calls that completed, with or without statuses.
    pub calls_completed: u64,
    /// Calls that failed.
    pub calls_failed: u64,
    /// Calls that their initiator gave up.
    pub calls_aborted: u64,
    /// Calls made again after a failure, each time.
    pub retries: u64,
    /// Second attempts made beside slow calls.
    pub hedges: u64,
    /// Those of them that delivered the answer.
    pub hedges_won: u64,
    /// Further attempts that were not made since the client's budget was used up.
    pub retries_over_budget: u64,
    /// Initial requests sent again, each time.
    pub resends: u64,
    /// Calls, and further requests of them, that could not be kept to be sent again.
    pub resends_unkept: u64,
    /// Requests that arrived.
    pub requests_received: u64,
    /// Requests that had arrived before, or whose call was over: they were not handled.
    pub requests_dropped: u64,
    /// Requests refused since the executor's queue was full.
    pub requests_refused: u64,
    /// Requests refused since they were not sealed by who has a cluster key.
    pub unsealed_refused: u64,
    /// Requests ended here since they, or a maximum of this endpoint, allowed no more requests, responses, bytes or hops.
    pub budgets_exhausted: u64,
    /// Responses that were delivered to a call here, statuses included.
    pub responses_received: u64,
    /// Statuses among them.
    pub statuses_received: u64,
    /// Statuses that ended requests here.
    pub statuses_sent: u64,
    /// Handlers that panicked.
    pub panics: u64,
    /// Errors of handlers whose request had ended before, but for those that say that it was cancelled.
    pub late_errors: u64,
    /// Handlers that went on for long after their request was stopped, and gave up their place in the executor.
    pub stuck: u64,
    /// Responses passed on for initiators that cannot be dialled.
    pub relayed: u64,
    /// Pings relayed for initiators that cannot reach a server.
    pub pings_relayed: u64,
    /// Responses that waited since no route led to their initiator.
    pub waited_for_routes: u64,
    /// Responses that no route led to their initiator for, and messages that 255 servers had passed on towards it.
    pub undeliverable: u64,
    /// Responses that had arrived before.
    pub duplicates_dropped: u64,
    /// Responses to calls that are over.
    pub late_dropped: u64,
    /// Times that an address was dialled in vain. Sessions over `udp:` are not among them: nobody refuses a datagram.
    pub dials_failed: u64,
    /// Times that an address was not dialled since the dial policy forbids it.
    pub dials_forbidden: u64,
    /// Times that an address which a peer had named was not dialled: it was a moment ago, or too many such addresses were.
    pub dials_held: u64,
    /// Messages to calls of this endpoint that did not show the call's token, or announced a request of a call that it has
    /// not made yet.
    pub forged_dropped: u64,
    /// Pings and aborts about requests that are not known here: they came too early or too late, or did not show the token
    /// of the call.
    pub unknown_pings: u64,
    /// Connections opened, by either side.
    pub connections_opened: u64,
    /// Streams that came in and were not opened: the handshake of their transport failed or took too long. The polling driver does
    /// not count them.
    pub accepts_failed: u64,
    /// Connections that ended.
    pub connections_ended: u64,
    /// Connections among them that were given up since the peer was silent.
    pub connections_silent: u64,
    /// Strangers whose connection was closed: they did not say who they are, or over `udp:` nothing at all, for too long or
    /// while too many others did.
    pub strangers_dismissed: u64,
    /// Connections among them that were closed to make room for others: those used least recently.
    pub connections_evicted: u64,
    /// Connections refused: all that may be are in use.
    pub connections_refused: u64,
    /// Streams broken off: their peer sent what the protocol does not say, or was silent for too long.
    pub connections_broken: u64,
    /// Datagrams received, whatever became of them.
    pub datagrams_received: u64,
    /// Datagrams sent.
    pub datagrams_sent: u64,
    /// Datagrams dropped: damaged, not what the protocol says, or for no session.
    pub datagrams_dropped: u64,
}

impl Metrics {
    /// Adds what a connection has carried.
    pub(super) fn add_carried(&mut self, carried: Carried) {
        self.messages_sent += carried.messages_sent;
        self.messages_received += carried.messages_received;
        self.bytes_sent += carried.bytes_sent;
        self.bytes_received += carried.bytes_received;
    }
}
