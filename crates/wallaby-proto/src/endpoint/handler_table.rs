//! The table of requests that are handled or wait for it, by their keys.

use super::event::{Lane, RequestKey};
use super::server::{HandledRequest, HandlerState};
use crate::slot_map::SlotMap;

/// So many delegations of a request do not hold the next ones up while their servers are dialled.
const AHEAD: u8 = 64;

/// Requests that are handled.
#[derive(Debug, Default)]
pub(super) struct Handlers(SlotMap<Handler>);

#[derive(Debug)]
struct Handler {
    /// How many of the request's messages wait, in each direction.
    waiting: [u32; 2],
    /// How many of its delegations have waited for their servers to be dialled and held no other up.
    ahead: u8,
    /// An answer of it has waited for a way in vain: no other holds it up.
    unrouted: bool,
    request: Box<HandledRequest>,
}

impl Handlers {
    /// A place for one: its key.
    pub(super) fn add(&mut self, request: Box<HandledRequest>) -> RequestKey {
        RequestKey(self.0.insert(Handler {
            waiting: [0; 2],
            ahead: 0,
            unrouted: false,
            request,
        }))
    }

    #[inline]
    pub(super) fn get(&self, key: RequestKey) -> Option<&HandledRequest> {
        Some(&self.0.get(key.0)?.request)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, key: RequestKey) -> Option<&mut HandledRequest> {
        Some(&mut self.0.get_mut(key.0)?.request)
    }

    /// The key is not used any more. How many messages wait that were sent for it, in each direction.
    pub(super) fn remove(&mut self, key: RequestKey) -> Option<(Box<HandledRequest>, [u32; 2])> {
        let handler = self.0.remove(key.0)?;
        Some((handler.request, handler.waiting))
    }

    /// A message of this request waits.
    pub(super) fn begin_wait(&mut self, (key, lane): (RequestKey, Lane)) {
        if let Some(slot) = self.0.get_mut(key.0) {
            slot.waiting[lane as usize] += 1;
        }
    }

    /// A delegation of this request waits until its server was dialled; whether the next one need not wait behind it.
    pub(super) fn goes_ahead(&mut self, key: RequestKey) -> bool {
        let slot = self.0.get_mut(key.0);
        slot.is_some_and(|slot| {
            let goes = slot.ahead < AHEAD;
            slot.ahead += u8::from(goes);
            goes
        })
    }

    /// One waits no longer; whether it was the last one of its direction.
    pub(super) fn end_wait(&mut self, (key, lane): (RequestKey, Lane)) -> bool {
        let Some(slot) = self.0.get_mut(key.0) else {
            return false;
        };
        let waiting = &mut slot.waiting[lane as usize];
        let was_last = *waiting == 1;
        *waiting = waiting.saturating_sub(1);
        was_last
    }

    pub(super) fn waits(&self, key: RequestKey, lane: Lane) -> bool {
        let slot = self.0.get(key.0);
        slot.is_some_and(|slot| slot.waiting[lane as usize] > 0)
    }

    /// Whether answers of this request hold it up while they wait for a route.
    pub(super) fn waits_for_route(&self, key: RequestKey) -> bool {
        self.0.get(key.0).is_some_and(|slot| !slot.unrouted)
    }

    /// One has waited for a way in vain.
    pub(super) fn note_unrouted(&mut self, key: RequestKey) {
        if let Some(slot) = self.0.get_mut(key.0) {
            slot.unrouted = true;
        }
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Those in such a state.
    pub(super) fn those(
        &self,
        which: impl Fn(HandlerState) -> bool,
    ) -> impl Iterator<Item = RequestKey> {
        let those = self.0.iter();
        let those = those.filter(move |(_, handler)| which(handler.request.state));
        those.map(|(key, _)| RequestKey(key))
    }
}
