//! The table of requests that are handled or wait for it, by their keys.

use super::event::{Lane, RequestKey};
use super::server::{HandledRequest, HandlerState};
use crate::slot_map::SlotMap;

/// So many delegations of a request hold no other up while their servers are dialled.
const AHEAD: u32 = 64;

/// A message of a request that waits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waiting {
    pub(super) key: RequestKey,
    pub(super) lane: Lane,
    /// It holds up none that is sent after it.
    pub(super) ahead: bool,
}

/// Requests that are handled.
#[derive(Debug, Default)]
pub(super) struct Handlers(SlotMap<Handler>);

#[derive(Debug)]
struct Handler {
    /// How many of the request's messages wait, in each direction.
    waiting: [u32; 2],
    /// How many of the delegations among them hold no other up.
    ahead: u32,
    /// An answer of it has waited for a way in vain: no other holds it up.
    unrouted: bool,
    request: Box<HandledRequest>,
}

impl Handler {
    /// How many messages wait in a direction that hold up the next one.
    fn holding(&self, lane: Lane) -> u32 {
        let waiting = self.waiting[lane as usize];
        match lane {
            Lane::Answers => waiting,
            Lane::Requests => waiting.saturating_sub(self.ahead),
        }
    }
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

    /// A message of a request waits.
    pub(super) fn begin_wait(&mut self, of: Waiting) {
        if let Some(slot) = self.0.get_mut(of.key.0) {
            slot.waiting[of.lane as usize] += 1;
            slot.ahead += u32::from(of.ahead);
        }
    }

    /// Whether a delegation of this request that waits until its server was dialled may hold no other up.
    pub(super) fn may_go_ahead(&self, key: RequestKey) -> bool {
        self.0.get(key.0).is_some_and(|slot| slot.ahead < AHEAD)
    }

    /// One waits no longer; whether none of its direction does now, or none that holds another up.
    pub(super) fn end_wait(&mut self, of: Waiting) -> bool {
        let Some(slot) = self.0.get_mut(of.key.0) else {
            return false;
        };
        let waiting = &mut slot.waiting[of.lane as usize];
        *waiting = waiting.saturating_sub(1);
        slot.ahead = slot.ahead.saturating_sub(u32::from(of.ahead));
        *waiting == 0 || (!of.ahead && slot.holding(of.lane) == 0)
    }

    /// Whether messages wait that hold up the next one.
    pub(super) fn holds_up(&self, key: RequestKey, lane: Lane) -> bool {
        self.0.get(key.0).is_some_and(|slot| slot.holding(lane) > 0)
    }

    /// Whether any messages wait.
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
