//! What a server counts.

use std::sync::atomic::{AtomicU64, Ordering};

/// What happened at a server so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerCounters {
    /// Calls that were executed or refused, duplicates not among them.
    pub calls: u64,
    /// Messages that are no calls. Over UDP they are dropped; a connection is ended.
    pub malformed: u64,
    /// Calls over UDP that came again when they had been answered, and got the same answer.
    pub duplicates_answered: u64,
    /// Calls over UDP that came again while they were executed. They are dropped.
    pub duplicates_dropped: u64,
    /// Calls over UDP that were dropped because too many were executed.
    pub overloaded: u64,
    /// Answers that did not fit into a datagram: the caller was told that the server failed.
    pub too_long_replies: u64,
    /// Replies over UDP that the system did not send.
    pub unsent_replies: u64,
    /// Handlers that panicked.
    pub panics: u64,
    /// Connections that were accepted.
    pub connections: u64,
    /// Connections that were ended to make room for others.
    pub idle_ended: u64,
    /// Connections that were refused because all others were busy.
    pub refused: u64,
    /// Connections on which too long a record began.
    pub too_long_records: u64,
    /// Connections whose peer did not take its replies.
    pub stalled: u64,
    /// Connections that are open now.
    pub open: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counting {
    pub(crate) calls: AtomicU64,
    pub(crate) malformed: AtomicU64,
    pub(crate) duplicates_answered: AtomicU64,
    pub(crate) duplicates_dropped: AtomicU64,
    pub(crate) overloaded: AtomicU64,
    pub(crate) too_long_replies: AtomicU64,
    pub(crate) unsent_replies: AtomicU64,
    pub(crate) panics: AtomicU64,
    pub(crate) connections: AtomicU64,
    pub(crate) idle_ended: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) too_long_records: AtomicU64,
    pub(crate) stalled: AtomicU64,
}

/// One more of this.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Counting {
    pub(crate) fn now(&self, open: usize) -> ServerCounters {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ServerCounters {
            calls: read(&self.calls),
            malformed: read(&self.malformed),
            duplicates_answered: read(&self.duplicates_answered),
            duplicates_dropped: read(&self.duplicates_dropped),
            overloaded: read(&self.overloaded),
            too_long_replies: read(&self.too_long_replies),
            unsent_replies: read(&self.unsent_replies),
            panics: read(&self.panics),
            connections: read(&self.connections),
            idle_ended: read(&self.idle_ended),
            refused: read(&self.refused),
            too_long_records: read(&self.too_long_records),
            stalled: read(&self.stalled),
            open: open as u64,
        }
    }
}
