//! Connections that are being opened, and what is known of the addresses that they are to lead to.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::connection::{DialLimits, Dials};
use crate::{Address, ConnId, NodeId};

/// Round trips within which others are heard of whom a server that is gone has asked something: they learn of its end, perhaps
/// dial the initiator, and tell it.
const TRIPS: u32 = 8;

/// Addresses of which something is remembered, for each connection that there may be.
const REMEMBERED: usize = 4;

/// Fewest addresses whose incarnations are remembered, in fourths.
const MIN_FOUND: usize = 64;

/// What is being opened.
#[derive(Debug)]
pub(super) struct Dialling {
    /// Connections that are being opened, or that end soon, by when that must be done.
    opening: BTreeSet<(Duration, ConnId)>,
    /// Those that the shell waits for.
    waited_for: BTreeSet<ConnId>,
    /// How long it took to open connections, or to be refused: the longest, which later ones diminish.
    trip: Duration,
    /// The incarnation that was last found at each address.
    found: BTreeMap<Address, NodeId>,
    most_found: usize,
    /// Dials of addresses that peers have named, and those of them that are for one incarnation and under way.
    pub(super) dials: Dials<Address>,
}

impl Dialling {
    /// Where there may be so many connections.
    pub(super) fn new(limits: DialLimits, connections: usize) -> Self {
        Self {
            opening: BTreeSet::new(),
            waited_for: BTreeSet::new(),
            trip: Duration::ZERO,
            found: BTreeMap::new(),
            most_found: connections.max(MIN_FOUND).saturating_mul(REMEMBERED),
            dials: Dials::new(limits),
        }
    }

    /// Whether connections are being opened, or end soon.
    pub(super) fn is_opening(&self) -> bool {
        !self.opening.is_empty()
    }

    /// A connection must be open, or have ended, by then; not any more by the time `before`.
    pub(super) fn open_until(&mut self, id: ConnId, before: Option<Duration>, until: Duration) {
        self.end(id, before);
        self.opening.insert((until, id));
    }

    /// A connection is open, or gone, that had to be until then.
    pub(super) fn end(&mut self, id: ConnId, until: Option<Duration>) {
        if let Some(until) = until {
            self.opening.remove(&(until, id));
        }
    }

    /// When the next one must be.
    pub(super) fn next_timeout(&self) -> Option<Duration> {
        self.opening.first().map(|(until, _)| *until)
    }

    /// One that takes too long.
    pub(super) fn overdue(&mut self, now: Duration) -> Option<ConnId> {
        let &(until, id) = self.opening.first()?;
        (until <= now).then(|| {
            self.opening.pop_first();
            id
        })
    }

    /// The shell waits for a connection.
    pub(super) fn wait_for(&mut self, id: ConnId) {
        self.waited_for.insert(id);
    }

    /// Whether it does.
    pub(super) fn is_awaited(&self, id: ConnId) -> bool {
        self.waited_for.contains(&id)
    }

    /// It does not any more; whether it did.
    pub(super) fn end_wait(&mut self, id: ConnId) -> bool {
        self.waited_for.remove(&id)
    }

    /// A connection that was dialled is open, or refused: that has taken a round trip or two.
    pub(super) fn note_trip(&mut self, taken: Duration) {
        self.trip = taken.max(self.trip - self.trip / 8);
    }

    /// The time in which others are heard who have work of a server that is gone.
    pub(super) fn trips(&self) -> Duration {
        self.trip.saturating_mul(TRIPS)
    }

    /// An incarnation was found at an address.
    pub(super) fn found(&mut self, at: &Address, node: NodeId) {
        if self.found.len() >= self.most_found {
            self.found.clear(); // what is found later is news again
        }
        self.dials.found(at); // what was so may be no more
        self.found.insert(at.clone(), node);
    }

    /// Whether this incarnation was found at an address, and nobody since.
    pub(super) fn was_found(&self, at: &Address, node: Option<NodeId>) -> bool {
        node.is_some() && self.found.get(at).copied() == node
    }
}
