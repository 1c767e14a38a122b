//! Routes back to initiators of calls whose requests had to be forgotten early, for want of room. Answers of the servers that the
//! work went on to may still come by.

use std::collections::{HashMap, VecDeque};

use crate::call::records::table::{Keyed, RecordedCallKey};
use crate::call::records::{RelayRoute, SessionNumber};

/// Calls of which one is remembered; the oldest makes room.
const MOST: usize = 16_384;

#[derive(Debug)]
pub(super) struct ForgottenRoutes {
    routes: HashMap<RecordedCallKey, RelayRoute, Keyed>,
    by_age: VecDeque<RecordedCallKey>,
}

impl ForgottenRoutes {
    pub(super) fn new(keyed: Keyed) -> Self {
        Self {
            routes: HashMap::with_hasher(keyed),
            by_age: VecDeque::new(),
        }
    }

    /// The route of a request that is forgotten. Of each call the one nearest to the initiator is kept, as long as its session is
    /// open.
    pub(super) fn note(
        &mut self,
        call: RecordedCallKey,
        route: RelayRoute,
        is_closed: impl Fn(SessionNumber) -> bool,
    ) {
        if let Some(known) = self.routes.get_mut(&call) {
            if route.distance < known.distance || is_closed(known.session) {
                *known = route;
            }
            return;
        }
        if self.by_age.len() >= MOST
            && let Some(oldest) = self.by_age.pop_front()
        {
            self.routes.remove(&oldest);
        }
        self.routes.insert(call, route);
        self.by_age.push_back(call);
    }

    pub(super) fn get(&self, call: &RecordedCallKey) -> Option<RelayRoute> {
        self.routes.get(call).copied()
    }
}
