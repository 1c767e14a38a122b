//! Credit: how much one side may send before the other has processed something.
//!
//! A window may be overdrawn by one message, so that a message larger than the window passes; memory stays bounded by
//! the window and the largest message. The receiver keeps account, too: more than that breaks the protocol.

use std::collections::{BTreeMap, VecDeque};

use super::event::Granted;
use crate::id::CallId;
use crate::numbers::MESSAGE_COST;
use crate::varint::Reader;
use crate::wire::{MAX_FRAME, WireError};

/// The window of requests, and that of parts, as a credit names them.
pub(crate) const REQUESTS: u8 = 0;
pub(crate) const PARTS: u8 = 1;

/// Why a credit is not taken.
pub(crate) const UNKNOWN: WireError = WireError::Malformed {
    what: "credit",
    why: "an unknown window",
};
pub(crate) const TOO_WIDE: WireError = WireError::Malformed {
    what: "credit",
    why: "more than a window can hold",
};

/// Reads a credit: of which window, and how many bytes more.
pub(crate) fn read(body: &[u8]) -> Result<(Granted, u64), WireError> {
    let what = "credit";
    let mut reader = Reader::new(body);
    let granted = match reader.u8(what)? {
        REQUESTS => Granted::Requests,
        PARTS => Granted::Parts,
        _ => return Err(UNKNOWN),
    };
    let bytes = reader.varint(what)?;
    reader.finish(what)?;
    Ok((granted, bytes))
}

/// The windows of requests: what this side may send, and what its peer may.
#[derive(Debug)]
pub(crate) struct RequestWindows {
    /// Less than nothing if the latest request was larger than what was left.
    left: i64,
    /// Most that a payload costs of the peer's window, and of this side's.
    dearest: u64,
    dearest_own: u64,
    grants: Grants,
}

impl RequestWindows {
    /// This side takes requests of so many bytes, each with a payload of at most `longest`.
    pub(crate) fn new(window: u64, longest: u64) -> Self {
        let dearest_own = dearest(window);
        Self {
            left: 0,
            dearest: 0,
            dearest_own,
            grants: Grants::new(window, dearest_own.min(longest) + MESSAGE_COST, window / 2),
        }
    }

    /// The handshake told how much the peer takes.
    pub(crate) fn open(&mut self, window: u64) {
        self.left = window.min(i64::MAX as u64).cast_signed();
        self.dearest = dearest(window);
    }

    /// Whether one more request may be sent.
    pub(crate) fn is_open(&self) -> bool {
        self.left > 0
    }

    /// A request with this payload is sent.
    pub(crate) fn spend(&mut self, payload: usize) {
        self.left -= cost(payload, self.dearest).cast_signed();
    }

    /// The peer takes so many bytes more; `None` if that is more than a window can hold.
    pub(crate) fn widen(&mut self, bytes: u64) -> Option<()> {
        self.left = self.left.checked_add(i64::try_from(bytes).ok()?)?;
        Some(())
    }

    /// A request with this payload has come; `false` if it was not granted.
    #[inline(always)]
    pub(crate) fn take(&mut self, payload: usize) -> bool {
        self.grants.take(cost(payload, self.dearest_own))
    }

    /// One has left the queue for its handler, or was refused; returns what to grant now.
    pub(crate) fn give_back(&mut self, payload: usize) -> Option<u64> {
        self.grants.add(cost(payload, self.dearest_own))
    }
}

/// What a request costs of a window of which no payload costs more than `dearest`. Both sides reckon so.
fn cost(payload: usize, dearest: u64) -> u64 {
    (payload as u64).min(dearest) + MESSAGE_COST
}

/// Most that the payload of a request costs of a window of this size. One that travels in parts costs at most an eighth of
/// it, so that small requests are not kept back while large ones are under way.
fn dearest(window: u64) -> u64 {
    (window / 8).max(MAX_FRAME as u64)
}

/// Most calls whose credit a connection keeps; the one that used it least recently is forgotten first, which gives it a
/// fresh window.
pub const MAX_CALLS: usize = 4096;

/// A window as its receiver sees it: what has come, and what it owes for that, saved up until it is worth a frame.
#[derive(Debug)]
pub(crate) struct Grants {
    saved: u64,
    worth: u64,
    /// What has come and was not granted anew yet; less than nothing if more was granted than came.
    used: i64,
    /// Most that an honest sender can have used: the window, and one message beyond it.
    most: i64,
}

impl Grants {
    /// Of a window of this size, whose dearest message costs so much; credit goes out from `worth` on.
    pub(crate) fn new(window: u64, dearest: u64, worth: u64) -> Self {
        let most = window.saturating_add(dearest);
        Self {
            saved: 0,
            worth,
            used: 0,
            most: i64::try_from(most).unwrap_or(i64::MAX),
        }
    }

    /// Something has come that costs so much; `false` if it was not granted.
    #[inline]
    pub(crate) fn take(&mut self, cost: u64) -> bool {
        self.used = self.used.saturating_add_unsigned(cost);
        self.used <= self.most
    }

    /// Adds what was processed; returns what to grant now.
    #[inline]
    pub(crate) fn add(&mut self, bytes: u64) -> Option<u64> {
        self.saved = self.saved.saturating_add(bytes);
        if self.saved < self.worth {
            return None;
        }
        self.used = self.used.saturating_sub_unsigned(self.saved);
        Some(std::mem::take(&mut self.saved))
    }
}

/// How much of each call's responses the peer's application has not taken yet.
#[derive(Debug, Default)]
pub(crate) struct CallWindows {
    /// The call that took credit last, for itself: most initiators have one call at a time answered over a connection.
    latest: Option<(CallId, u64)>,
    others: OtherCalls,
}

/// What is outstanding of other calls.
#[derive(Debug, Default)]
struct OtherCalls {
    calls: BTreeMap<CallId, Outstanding>,
    /// Their uses, in order. One that is not its call's latest means nothing.
    uses: VecDeque<(CallId, u64)>,
    next_use: u64,
}

#[derive(Debug, Clone, Copy)]
struct Outstanding {
    bytes: u64,
    latest_use: u64,
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
            *outstanding = outstanding.saturating_add(cost);
        }
        has_room
    }

    /// Whether something is left of a call's window of size `limit`.
    pub(crate) fn has_room(&self, call: CallId, limit: u64) -> bool {
        let outstanding = match &self.latest {
            Some((latest, outstanding)) if *latest == call => Some(*outstanding),
            _ => self.others.calls.get(&call).map(|known| known.bytes),
        };
        outstanding.is_none_or(|outstanding| outstanding < limit)
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
        if !self.others.calls.is_empty() {
            self.others.forget(oldest);
        }
    }

    fn outstanding(&mut self, call: CallId) -> Option<&mut u64> {
        match &mut self.latest {
            Some((latest, outstanding)) if *latest == call => Some(outstanding),
            _ if self.others.calls.is_empty() => None,
            _ => self.others.outstanding(call),
        }
    }

    fn add(&mut self, call: CallId, cost: u64) {
        if let Some((before, outstanding)) = self.latest.replace((call, cost)) {
            self.others.keep(before, outstanding);
        }
    }

    #[inline(never)]
    fn remove(&mut self, call: CallId) {
        if self.others.calls.remove(&call).is_none() {
            self.latest = None;
        }
    }
}

impl OtherCalls {
    #[inline(never)]
    fn outstanding(&mut self, call: CallId) -> Option<&mut u64> {
        if !self.calls.contains_key(&call) {
            return None;
        }
        let latest_use = self.note_use(call);
        let known = self.calls.get_mut(&call)?;
        known.latest_use = latest_use;
        Some(&mut known.bytes)
    }

    fn note_use(&mut self, call: CallId) -> u64 {
        if self.uses.len() >= 2 * MAX_CALLS {
            let calls = &self.calls;
            self.uses
                .retain(|&(call, number)| is_latest(calls, call, number));
        }
        self.next_use += 1;
        self.uses.push_back((call, self.next_use));
        self.next_use
    }

    #[inline(never)]
    fn keep(&mut self, call: CallId, bytes: u64) {
        while self.calls.len() + 1 >= MAX_CALLS {
            let Some((call, number)) = self.uses.pop_front() else {
                break;
            };
            if is_latest(&self.calls, call, number) {
                self.calls.remove(&call);
            }
        }
        let latest_use = self.note_use(call);
        self.calls.insert(call, Outstanding { bytes, latest_use });
    }

    #[inline(never)]
    fn forget(&mut self, oldest: CallId) {
        let first = CallId {
            sequence: 0,
            ..oldest
        };
        while let Some((&call, _)) = self.calls.range(first..oldest).next() {
            self.calls.remove(&call);
        }
    }
}

fn is_latest(calls: &BTreeMap<CallId, Outstanding>, call: CallId, number: u64) -> bool {
    calls
        .get(&call)
        .is_some_and(|known| known.latest_use == number)
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
    fn a_call_that_goes_on_is_not_forgotten_for_later_ones() {
        let mut windows = CallWindows::default();
        assert!(windows.take(call(1, 1), 1, LIMIT));
        for sequence in 2..10 * MAX_CALLS as u64 {
            assert!(windows.take(call(1, sequence), 1, LIMIT));
            if sequence % 4000 == 0 {
                assert!(windows.take(call(1, 1), 1, 1 << 40));
            }
        }
        assert!(
            !windows.has_room(call(1, 1), 11),
            "all of it was kept in mind"
        );
        assert!(windows.others.uses.len() <= 2 * MAX_CALLS);
    }

    #[test]
    fn not_more_calls_are_kept_than_the_limit() {
        let mut windows = CallWindows::default();
        let count = MAX_CALLS as u64 + 1;
        for sequence in 1..=count {
            assert!(windows.take(call(1, sequence), LIMIT, LIMIT));
        }
        assert_eq!(windows.others.calls.len() + 1, MAX_CALLS);
        assert!(windows.has_room(call(1, 1), LIMIT), "forgotten first");
        assert!(!windows.has_room(call(1, 2), LIMIT));
        assert!(!windows.has_room(call(1, count), LIMIT));
    }
}
