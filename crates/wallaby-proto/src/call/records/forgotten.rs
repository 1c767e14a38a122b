//! Routes back to initiators of calls whose requests had to be forgotten early, for want of room. Answers of the servers that the
//! work went on to may still come by.

use std::collections::{BTreeMap, VecDeque};

use crate::call::records::table::RecordedCallKey;
use crate::call::records::{ConnId, RelayRoute};

/// Calls of which one is remembered; the oldest makes room.
const MOST: usize = 16_384;

#[derive(Debug, Default)]
pub(super) struct ForgottenRoutes {
    routes: BTreeMap<RecordedCallKey, RelayRoute>,
    by_age: VecDeque<RecordedCallKey>,
}

impl ForgottenRoutes {
    /// The route of a request that is forgotten. Of each call the one nearest to the initiator is kept, as long as its connection
    /// is open.
    pub(super) fn note(
        &mut self,
        call: RecordedCallKey,
        route: RelayRoute,
        is_closed: impl Fn(ConnId) -> bool,
    ) {
        if let Some(known) = self.routes.get_mut(&call) {
            if route.distance < known.distance || is_closed(known.conn) {
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
