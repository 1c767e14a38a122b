//! What a channel counts.

use std::sync::atomic::{AtomicU64, Ordering};

/// What happened on a channel so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientCounters {
    /// Calls that were begun.
    pub calls: u64,
    /// Replies that ended a call.
    pub replies: u64,
    /// Replies that no call waits for: late ones and duplicates. They are dropped.
    pub late_replies: u64,
    /// What arrived and is no reply. It is dropped.
    pub malformed: u64,
    /// Datagrams from another address than the server's. They are dropped.
    pub foreign: u64,
    /// Datagrams of calls that were sent again.
    pub retransmissions: u64,
    /// Connections that were made.
    pub connections: u64,
}

#[derive(Debug, Default)]
pub(super) struct Counting {
    pub(super) calls: AtomicU64,
    pub(super) replies: AtomicU64,
    pub(super) late_replies: AtomicU64,
    pub(super) malformed: AtomicU64,
    pub(super) foreign: AtomicU64,
    pub(super) retransmissions: AtomicU64,
    pub(super) connections: AtomicU64,
}

/// One more of this.
pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Counting {
    pub(super) fn now(&self) -> ClientCounters {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ClientCounters {
            calls: read(&self.calls),
            replies: read(&self.replies),
            late_replies: read(&self.late_replies),
            malformed: read(&self.malformed),
            foreign: read(&self.foreign),
            retransmissions: read(&self.retransmissions),
            connections: read(&self.connections),
        }
    }
}
