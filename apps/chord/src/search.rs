//! A lookup as its client sees it: attempts that learn from each other.
//!
//! A forwarded lookup that meets a dead node cannot turn back: the node that forwarded it is done with it. Its client
//! learns of the failure, and who it was, and begins again with a note of whom to avoid; nodes on the way take the next best
//! finger then. The alternative, that every node keeps each lookup until the next hop has taken it, would cost all lookups
//! a message a hop to save the few that fail a second attempt.

use crate::id::RingId;
use crate::message::{Avoid, Lookup, Miss, Refusal, Wish};
use wallaby::Address;

/// A lookup, until one of its attempts succeeds.
#[derive(Clone, Debug)]
pub struct Search {
    id: RingId,
    wish: Wish,
    avoid: Avoid,
    made: u32,
    most: u32,
}

/// What to do after an attempt that did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Try again at once.
    AtOnce,
    /// Try again in a moment: the ring is about to change.
    InAMoment,
    /// Give up.
    Never,
}

impl Search {
    /// How many attempts are made at most, if nothing is said.
    pub const MOST: u32 = 24;

    /// One that has made no attempt yet, of so many at most.
    pub fn new(id: RingId, wish: Wish, most: u32) -> Self {
        Self {
            id,
            wish,
            avoid: Avoid::default(),
            made: 0,
            most,
        }
    }

    /// Whether another attempt may be made.
    pub fn may_go_on(&self) -> bool {
        self.made < self.most
    }

    /// The next attempt, which begins at a node.
    pub fn attempt(&mut self, start: RingId) -> Lookup {
        self.made += 1;
        let mut lookup = Lookup::new(self.id, start, self.wish.clone());
        lookup.avoid = self.avoid.clone();
        lookup
    }

    /// How many attempts were made.
    pub fn made(&self) -> u32 {
        self.made
    }

    /// Endpoints at which it should not begin.
    pub fn avoids(&self, host: &Address) -> bool {
        self.avoid.hosts.contains(host)
    }

    /// Learns from an attempt that did not succeed.
    pub fn handle_miss(&mut self, miss: &Miss) -> Next {
        let next = match miss {
            Miss::Lost(Some(host)) => {
                let is_new = !self.avoids(host);
                self.avoid.add_host(host.clone());
                Next::after(is_new)
            }
            Miss::Refused(Refusal::Gone(peer)) => {
                let is_new = !self.avoid.has(peer);
                self.avoid.add(peer.clone());
                Next::after(is_new)
            }
            // Rings that are put right have ways that end.
            Miss::Lost(None)
            | Miss::Refused(
                Refusal::NotReady(_) | Refusal::TooManyHops { .. } | Refusal::NobodyHere,
            ) => Next::InAMoment,
            Miss::Refused(
                Refusal::Full { .. }
                | Refusal::TooLarge { .. }
                | Refusal::Taken(_)
                | Refusal::Misplaced(_),
            ) => Next::Never,
        };
        match self.may_go_on() {
            true => next,
            false => Next::Never,
        }
    }
}

impl Next {
    /// After it was found out who does not answer. If that one was avoided already, the ring needs a moment to go another way.
    fn after(is_new: bool) -> Self {
        match is_new {
            true => Self::AtOnce,
            false => Self::InAMoment,
        }
    }
}
