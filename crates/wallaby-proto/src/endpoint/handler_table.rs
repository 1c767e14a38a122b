//! The table of requests that are handled or wait for it, by their keys.

use super::event::{Lane, RequestKey};
use super::server::{HandledRequest, Stage};

/// Requests that are handled.
#[derive(Debug, Default)]
pub(super) struct Handlers {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

#[derive(Debug, Default)]
struct Slot {
    generation: u32,
    /// How many of the request's messages wait, in each direction.
    waiting: [u32; 2],
    /// An answer of it has waited for a way in vain: no other holds it up.
    unrouted: bool,
    handler: Option<Box<HandledRequest>>,
}

impl Handlers {
    /// A place for one: its key.
    pub(super) fn add(&mut self, handler: Box<HandledRequest>) -> RequestKey {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() as u32 - 1
        });
        let place = &mut self.slots[slot as usize];
        place.handler = Some(handler);
        RequestKey {
            slot,
            generation: place.generation,
        }
    }

    fn slot(&self, key: RequestKey) -> Option<&Slot> {
        let slot = self.slots.get(key.slot as usize)?;
        (slot.generation == key.generation).then_some(slot)
    }

    fn slot_mut(&mut self, key: RequestKey) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(key.slot as usize)?;
        (slot.generation == key.generation).then_some(slot)
    }

    pub(super) fn get(&self, key: RequestKey) -> Option<&HandledRequest> {
        self.slot(key)?.handler.as_deref()
    }

    pub(super) fn get_mut(&mut self, key: RequestKey) -> Option<&mut HandledRequest> {
        self.slot_mut(key)?.handler.as_deref_mut()
    }

    /// The key is not used any more. How many messages wait that were sent for it, in each direction.
    pub(super) fn remove(&mut self, key: RequestKey) -> Option<(Box<HandledRequest>, [u32; 2])> {
        let slot = self.slot_mut(key)?;
        let next = Slot {
            generation: key.generation.wrapping_add(1),
            ..Slot::default()
        };
        let before = std::mem::replace(slot, next);
        self.free.push(key.slot);
        Some((before.handler?, before.waiting))
    }

    /// A message of this request waits.
    pub(super) fn begin_wait(&mut self, (key, lane): (RequestKey, Lane)) {
        if let Some(slot) = self.slot_mut(key) {
            slot.waiting[lane as usize] += 1;
        }
    }

    /// One waits no longer; whether it was the last one of its direction.
    pub(super) fn end_wait(&mut self, (key, lane): (RequestKey, Lane)) -> bool {
        let Some(slot) = self.slot_mut(key) else {
            return false;
        };
        let waiting = &mut slot.waiting[lane as usize];
        let was_last = *waiting == 1;
        *waiting = waiting.saturating_sub(1);
        was_last
    }

    pub(super) fn waits(&self, key: RequestKey, lane: Lane) -> bool {
        let slot = self.slot(key);
        slot.is_some_and(|slot| slot.waiting[lane as usize] > 0)
    }

    /// Whether answers of this request hold it up while they wait for a route.
    pub(super) fn waits_for_route(&self, key: RequestKey) -> bool {
        self.slot(key).is_some_and(|slot| !slot.unrouted)
    }

    /// One has waited for a way in vain.
    pub(super) fn note_unrouted(&mut self, key: RequestKey) {
        if let Some(slot) = self.slot_mut(key) {
            slot.unrouted = true;
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Those in such a stage.
    pub(super) fn those(&self, which: impl Fn(Stage) -> bool) -> impl Iterator<Item = RequestKey> {
        (0..).zip(&self.slots).filter_map(move |(number, slot)| {
            let handler = slot.handler.as_ref()?;
            which(handler.stage).then_some(RequestKey {
                slot: number,
                generation: slot.generation,
            })
        })
    }
}
