//! The table of requests that are handled or wait for it, by their keys.

use super::event::RequestKey;
use super::requests::{Handler, Stage};

/// Requests that are handled.
#[derive(Debug, Default)]
pub(super) struct Handlers {
    slots: Vec<(u32, Option<Box<Handler>>)>,
    free: Vec<u32>,
}

impl Handlers {
    /// A place for one: its key.
    pub(super) fn add(&mut self, mut handler: Box<Handler>) -> RequestKey {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push((0, None));
            self.slots.len() as u32 - 1
        });
        let (generation, place) = &mut self.slots[slot as usize];
        let generation = *generation;
        let key = RequestKey { slot, generation };
        handler.key = Some(key);
        *place = Some(handler);
        key
    }

    pub(super) fn get(&self, key: RequestKey) -> Option<&Handler> {
        match self.slots.get(key.slot as usize)? {
            (generation, handler) if *generation == key.generation => handler.as_deref(),
            _ => None,
        }
    }

    pub(super) fn get_mut(&mut self, key: RequestKey) -> Option<&mut Handler> {
        match self.slots.get_mut(key.slot as usize)? {
            (generation, handler) if *generation == key.generation => handler.as_deref_mut(),
            _ => None,
        }
    }

    /// It is put back, or its key released, soon.
    pub(super) fn take(&mut self, key: RequestKey) -> Option<Box<Handler>> {
        match self.slots.get_mut(key.slot as usize)? {
            (generation, handler) if *generation == key.generation => handler.take(),
            _ => None,
        }
    }

    pub(super) fn put(&mut self, key: RequestKey, handler: Box<Handler>) {
        if let Some((_, place)) = self.slots.get_mut(key.slot as usize) {
            *place = Some(handler);
        }
    }

    /// The key is not used any more.
    pub(super) fn release(&mut self, key: RequestKey) {
        if let Some((generation, place)) = self.slots.get_mut(key.slot as usize) {
            *generation = generation.wrapping_add(1);
            *place = None;
            self.free.push(key.slot);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Those in such a stage.
    pub(super) fn those(&self, which: impl Fn(Stage) -> bool) -> impl Iterator<Item = RequestKey> {
        let handlers = self
            .slots
            .iter()
            .filter_map(|(_, handler)| handler.as_ref());
        let those = handlers.filter(move |handler| which(handler.stage));
        those.filter_map(|handler| handler.key)
    }
}
