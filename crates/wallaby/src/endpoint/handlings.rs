//! Requests that wait here, in the queue or in their handlers: whom an abort reaches.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};

use wallaby_proto::call::records::Ticket;

use crate::endpoint::Inner;
use crate::handling::Handling;

/// They are found by their records' places: nothing is hashed, and no table has to be built anew when a million wait.
#[derive(Default)]
pub(crate) struct Handlings {
    by_slot: Vec<Option<Arc<Handling>>>,
    /// Those without a record, and those whose record's place another request has got meanwhile.
    others: Vec<Arc<Handling>>,
}

impl Handlings {
    fn add(&mut self, handling: &Arc<Handling>) {
        let handling = Arc::clone(handling);
        let Some(slot) = handling.ticket.map(|ticket| ticket.slot() as usize) else {
            return self.others.push(handling);
        };
        if slot >= self.by_slot.len() {
            self.by_slot.resize_with(slot + 1, || None);
        }
        match &mut self.by_slot[slot] {
            Some(_) => self.others.push(handling),
            free => *free = Some(handling),
        }
    }

    fn remove(&mut self, handling: &Arc<Handling>) {
        let place = handling.ticket.and_then(|ticket| self.place(ticket));
        let there = |known: &mut Arc<Handling>| Arc::ptr_eq(known, handling);
        if place.is_some_and(|place| place.take_if(there).is_some()) {
            return;
        }
        let mut known = self.others.iter();
        if let Some(index) = known.position(|known| Arc::ptr_eq(known, handling)) {
            self.others.swap_remove(index);
        }
    }

    fn place(&mut self, ticket: Ticket) -> Option<&mut Option<Arc<Handling>>> {
        self.by_slot.get_mut(ticket.slot() as usize)
    }

    fn find(&mut self, ticket: Ticket) -> Option<Arc<Handling>> {
        let is = |known: &&Arc<Handling>| known.ticket == Some(ticket);
        let there = self.by_slot.get(ticket.slot() as usize)?.as_ref();
        let found = there.filter(is);
        found.or_else(|| self.others.iter().find(is)).cloned()
    }
}

impl Inner {
    fn handlings(&self) -> MutexGuard<'_, Handlings> {
        self.handlings
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// A request waits: an abort must find it.
    pub(crate) fn handling_waits(&self, handling: &Arc<Handling>) {
        if !handling.listed.swap(true, Ordering::AcqRel) {
            self.handlings().add(handling);
        }
    }

    pub(crate) fn handling_ended(&self, handling: &Arc<Handling>) {
        if handling.listed.load(Ordering::Acquire) {
            self.handlings().remove(handling);
        }
    }

    /// The request with this record, if it waits for something here.
    pub(crate) fn waiting(&self, ticket: Ticket) -> Option<Arc<Handling>> {
        self.handlings().find(ticket)
    }

    /// All requests that wait for something here.
    pub(super) fn all_waiting(&self) -> Vec<Arc<Handling>> {
        let handlings = self.handlings();
        let known = handlings.by_slot.iter().flatten();
        known.chain(&handlings.others).cloned().collect()
    }
}
