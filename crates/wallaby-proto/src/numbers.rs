//! Numbers on which all drivers must agree.

use std::time::Duration;

use crate::wire::PingSettings;

/// How much time a call has if nobody says: not stated on the wire.
pub(crate) const DEFAULT_DEADLINE: Duration = Duration::from_secs(60);

/// How calls are watched over if they do not say: not stated on the wire.
pub(crate) const DEFAULT_PING: PingSettings = PingSettings {
    period: Duration::from_millis(500),
    timeout: Duration::from_secs(5),
};

/// How soon others are heard who have work of a server that is gone for certain, where round trips take no time: not stated on
/// the wire. So long their threads may be busy with something else.
pub(crate) const DEFAULT_GONE_AFTER: Duration = Duration::from_millis(100);

/// What a message costs of a window, or of the room of those that wait, besides its payload: in bytes.
pub(crate) const MESSAGE_COST: u64 = 64;

/// A request's only answer goes back over the connection of the request without being counted against credit, if its payload is
/// no longer than this: in bytes.
pub(crate) const SMALL_ANSWER: usize = 4096;

/// How often a message of which no byte was written moves to another connection, or waits for a route.
pub(crate) const MOST_MOVES: u8 = 3;

/// Connections that claim to be one node's, of which an answer takes notice.
pub(crate) const MAX_CLAIMING: usize = 4;

/// Longest reason for closing that is sent or told: in bytes.
pub(crate) const MAX_REASON: usize = 1024;
