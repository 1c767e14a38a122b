//! Credit: how much one side may send before the other has processed something.
//!
//! A window may be overdrawn by one message, so that a message larger than the window passes; memory stays bounded by
//! the window and the largest message.

use std::collections::BTreeMap;

use crate::id::CallId;

/// Most calls whose credit a connection keeps; the oldest is forgotten first, which gives it a fresh window.
const MAX_CALLS: usize = 4096;

/// What a receiver owes, saved up until it is worth a frame.
#[derive(Debug)]
pub(crate) struct Grants {
    saved: u64,
    worth: u64,
}

impl Grants {
    pub(crate) fn new(worth: u64) -> Self {
        Self { saved: 0, worth }
    }

    /// Adds what was processed; returns what to grant now.
    pub(crate) fn add(&mut self, bytes: u64) -> Option<u64> {
        self.saved += bytes;
        (self.saved >= self.worth).then(|| std::mem::take(&mut self.saved))
    }
}

/// How much of each call's responses the peer's application has not taken yet.
#[derive(Debug, Default)]
pub(crate) struct CallWindows {
    outstanding: BTreeMap<CallId, u64>,
}

impl CallWindows {
    /// Takes `cost` out of a call's window of size `limit`; `false` if nothing is left of it.
    #[inline(never)]
    pub(crate) fn take(&mut self, call: CallId, cost: u64, limit: u64) -> bool {
        if let Some(outstanding) = self.outstanding.get_mut(&call) {
            if *outstanding >= limit {
                return false;
            }
            *outstanding += cost;
            return true;
        }
        if self.outstanding.len() >= MAX_CALLS {
            self.outstanding.pop_first();
        }
        self.outstanding.insert(call, cost);
        true
    }

    /// Whether something is left of a call's window of size `limit`.
    pub(crate) fn has_room(&self, call: CallId, limit: u64) -> bool {
        self.outstanding
            .get(&call)
            .is_none_or(|outstanding| *outstanding < limit)
    }

    pub(crate) fn grant(&mut self, call: CallId, bytes: u64) {
        if let Some(outstanding) = self.outstanding.get_mut(&call) {
            *outstanding = outstanding.saturating_sub(bytes);
            if *outstanding == 0 {
                self.outstanding.remove(&call);
            }
        }
    }

    /// Drops what is kept for calls of the same initiator before `oldest`.
    pub(crate) fn forget(&mut self, oldest: CallId) {
        if !self.outstanding.is_empty() {
            self.forget_before(oldest);
        }
    }

    #[inline(never)]
    fn forget_before(&mut self, oldest: CallId) {
        let first = CallId {
            sequence: 0,
            ..oldest
        };
        while let Some((&call, _)) = self.outstanding.range(first..oldest).next() {
            self.outstanding.remove(&call);
        }
    }
}
