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
    /// The call that took credit last, for itself: most initiators have one call at a time answered over a connection.
    latest: Option<(CallId, u64)>,
    others: BTreeMap<CallId, u64>,
}

impl CallWindows {
    /// Takes `cost` out of a call's window of size `limit`; `false` if nothing is left of it.
    pub(crate) fn take(&mut self, call: CallId, cost: u64, limit: u64) -> bool {
        let Some(outstanding) = self.outstanding(call) else {
            self.add(call, cost);
            return true;
        };
        let has_room = *outstanding < limit;
        if has_room {
            *outstanding += cost;
        }
        has_room
    }

    /// Whether something is left of a call's window of size `limit`.
    pub(crate) fn has_room(&self, call: CallId, limit: u64) -> bool {
        let outstanding = match &self.latest {
            Some((latest, outstanding)) if *latest == call => Some(outstanding),
            _ => self.others.get(&call),
        };
        outstanding.is_none_or(|outstanding| *outstanding < limit)
    }

    pub(crate) fn grant(&mut self, call: CallId, bytes: u64) {
        if let Some(outstanding) = self.outstanding(call) {
            *outstanding = outstanding.saturating_sub(bytes);
            if *outstanding == 0 {
                self.remove(call);
            }
        }
    }

    /// Drops what is kept for calls of the same initiator before `oldest`.
    pub(crate) fn forget(&mut self, oldest: CallId) {
        let is_over = |(call, _): &(CallId, u64)| {
            call.initiator == oldest.initiator && call.sequence < oldest.sequence
        };
        self.latest = self.latest.filter(|latest| !is_over(latest));
        if !self.others.is_empty() {
            self.forget_others(oldest);
        }
    }

    fn outstanding(&mut self, call: CallId) -> Option<&mut u64> {
        match &mut self.latest {
            Some((latest, outstanding)) if *latest == call => Some(outstanding),
            _ if self.others.is_empty() => None,
            _ => self.others.get_mut(&call),
        }
    }

    fn add(&mut self, call: CallId, cost: u64) {
        if let Some((before, outstanding)) = self.latest.replace((call, cost)) {
            self.keep(before, outstanding);
        }
    }

    #[inline(never)]
    fn keep(&mut self, call: CallId, outstanding: u64) {
        if self.others.len() + 1 >= MAX_CALLS {
            self.others.pop_first();
        }
        self.others.insert(call, outstanding);
    }

    #[inline(never)]
    fn remove(&mut self, call: CallId) {
        if self.others.remove(&call).is_none() {
            self.latest = None;
        }
    }

    #[inline(never)]
    fn forget_others(&mut self, oldest: CallId) {
        let first = CallId {
            sequence: 0,
            ..oldest
        };
        while let Some((&call, _)) = self.others.range(first..oldest).next() {
            self.others.remove(&call);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::NodeId;

    const LIMIT: u64 = 100;

    fn call(initiator: u64, sequence: u64) -> CallId {
        CallId {
            initiator: NodeId::new(initiator).expect("not zero"),
            sequence,
        }
    }

    #[test]
    fn each_call_has_its_own_window() {
        let mut windows = CallWindows::default();
        let calls = [call(1, 1), call(1, 2), call(2, 1)];
        for call in calls {
            assert!(windows.take(call, LIMIT, LIMIT));
        }
        for call in calls {
            assert!(!windows.has_room(call, LIMIT));
            assert!(!windows.take(call, 1, LIMIT));
        }
        for call in calls {
            windows.grant(call, 1);
            assert!(windows.has_room(call, LIMIT));
            assert!(windows.take(call, 1, LIMIT), "may be overdrawn");
            assert!(!windows.has_room(call, LIMIT));
            windows.grant(call, LIMIT);
            assert!(windows.take(call, LIMIT, LIMIT), "all of it was granted");
        }
    }

    #[test]
    fn calls_that_are_over_are_forgotten_and_others_are_not() {
        let mut windows = CallWindows::default();
        let calls = [call(1, 1), call(1, 2), call(1, 3), call(2, 1), call(1, 4)];
        for call in calls {
            assert!(windows.take(call, LIMIT, LIMIT));
        }
        windows.forget(call(1, 3));
        let room = calls.map(|call| windows.has_room(call, LIMIT));
        assert_eq!(room, [true, true, false, false, false]);
        windows.forget(call(1, 5));
        let room = calls.map(|call| windows.has_room(call, LIMIT));
        assert_eq!(room, [true, true, true, false, true]);
    }

    #[test]
    fn not_more_calls_are_kept_than_the_limit() {
        let mut windows = CallWindows::default();
        let count = MAX_CALLS as u64 + 1;
        for sequence in 1..=count {
            assert!(windows.take(call(1, sequence), LIMIT, LIMIT));
        }
        assert_eq!(windows.others.len() + 1, MAX_CALLS);
        assert!(windows.has_room(call(1, 1), LIMIT), "forgotten first");
        assert!(!windows.has_room(call(1, 2), LIMIT));
        assert!(!windows.has_room(call(1, count), LIMIT));
    }
}
