//! Ways back to initiators of calls whose requests had to be forgotten early, for want of room. Answers of the servers that the
//! work went on to may still come by.

use std::collections::{HashMap, VecDeque};

use crate::call::records::table::{CallKey, Keyed};
use crate::call::records::{Session, Way};

/// Calls of which one is remembered; the oldest makes room.
const MOST: usize = 16_384;

#[derive(Debug)]
pub(super) struct ForgottenWays {
    ways: HashMap<CallKey, Way, Keyed>,
    by_age: VecDeque<CallKey>,
}

impl ForgottenWays {
    pub(super) fn new(keyed: Keyed) -> Self {
        Self {
            ways: HashMap::with_hasher(keyed),
            by_age: VecDeque::new(),
        }
    }

    /// The way of a request that is forgotten. Of each call the one nearest to the initiator is kept, as long as its session is
    /// open.
    pub(super) fn note(&mut self, call: CallKey, way: Way, is_closed: impl Fn(Session) -> bool) {
        if let Some(known) = self.ways.get_mut(&call) {
            if way.distance < known.distance || is_closed(known.session) {
                *known = way;
            }
            return;
        }
        if self.by_age.len() >= MOST
            && let Some(oldest) = self.by_age.pop_front()
        {
            self.ways.remove(&oldest);
        }
        self.ways.insert(call, way);
        self.by_age.push_back(call);
    }

    pub(super) fn get(&self, call: &CallKey) -> Option<Way> {
        self.ways.get(call).copied()
    }
}
