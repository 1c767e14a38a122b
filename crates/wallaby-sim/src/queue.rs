//! Virtual time: what happens next.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::time::Duration;

use bytes::Bytes;
use wallaby_proto::endpoint::{CallKey, OutBody, RequestKey};

use crate::network::{LinkId, Socket};

/// Something that happens at some time.
#[derive(Debug)]
pub(crate) enum Event {
    /// A dial has reached its target.
    Dialled(LinkId),
    /// The answer to a dial has come back; whether it was accepted.
    Answered(LinkId, bool),
    /// Something may have arrived at this end.
    Arrived(Socket),
    /// This end may write again.
    Writable(Socket),
    /// This end learns that its connection is gone.
    GivenUp(Socket),
    /// A datagram arrives.
    Datagram { from: u32, to: u32, bytes: Bytes },
    /// A node learns that nobody listens for its datagrams at another.
    Unreachable { node: u32, at: u32 },
    /// It may be all over.
    Look,
    /// A timer of an incarnation of a node.
    Timer {
        node: u32,
        incarnation: u32,
        timer: Timer,
    },
    /// The call with this place in the plan begins.
    Begin(usize),
    /// The application gives it up.
    Abort(usize),
    /// The fault with this place in the plan begins.
    Fault(usize),
    /// A stalled node goes on.
    Wake(u32),
    /// A crashed node starts again.
    Restart(u32),
}

/// What a node wants to be woken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Timer {
    /// A handler goes on.
    Resume(RequestKey),
    /// There is more of a body to write.
    Write(OutBody),
    /// The application takes the answers that wait for it.
    Take(CallKey),
    /// The endpoint has something to do, at this time of the node's clock.
    Clock(Duration),
}

/// All that is to happen, in order.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    now: Duration,
    count: u64,
    events: BinaryHeap<Entry>,
}

#[derive(Debug)]
struct Entry {
    at: Duration,
    /// What was scheduled first happens first.
    order: u64,
    event: Event,
}

impl Queue {
    pub(crate) fn now(&self) -> Duration {
        self.now
    }

    pub(crate) fn at(&mut self, at: Duration, event: Event) {
        self.count += 1;
        let (at, order) = (at.max(self.now), self.count);
        self.events.push(Entry { at, order, event });
    }

    pub(crate) fn after(&mut self, delay: Duration, event: Event) {
        self.at(self.now + delay, event);
    }

    /// The next event; time moves on to it.
    pub(crate) fn next(&mut self) -> Option<Event> {
        let entry = self.events.pop()?;
        self.now = entry.at;
        Some(entry.event)
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        // The heap yields the greatest: that is the earliest.
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}

impl Eq for Entry {}
