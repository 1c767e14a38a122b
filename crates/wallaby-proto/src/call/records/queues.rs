//! Slots of a table in the order in which they came, from which they may leave anywhere.

use std::mem;

/// Some queues. A slot is in one of them at most.
#[derive(Debug)]
pub(super) struct Queues {
    count: u32,
    /// Neighbours in a ring for each queue, whose head stands between its last and its first: first all heads, then all slots.
    /// Who is alone in a ring is its own neighbour.
    links: Vec<Links>,
}

#[derive(Debug, Clone, Copy)]
struct Links {
    previous: u32,
    next: u32,
}

impl Queues {
    /// So many queues, all empty.
    pub(super) fn new(count: u32) -> Self {
        let mut queues = Self {
            count,
            links: Vec::new(),
        };
        queues.make(count);
        queues
    }

    /// Adds a slot to a queue, behind all others. It must be in none.
    #[inline]
    pub(super) fn push(&mut self, queue: u32, slot: u32) {
        let place = self.count + slot;
        self.make(place + 1);
        let (previous, next) = (self.links[queue as usize].previous, queue);
        self.links[place as usize] = Links { previous, next };
        self.links[previous as usize].next = place;
        self.links[next as usize].previous = place;
    }

    /// Takes a slot out of its queue, if it is in one.
    pub(super) fn remove(&mut self, slot: u32) {
        let place = self.count + slot;
        if let Some(links) = self.links.get_mut(place as usize) {
            let Links { previous, next } = mem::replace(links, Links::alone(place));
            self.links[previous as usize].next = next;
            self.links[next as usize].previous = previous;
        }
    }

    pub(super) fn first(&self, queue: u32) -> Option<u32> {
        self.links[queue as usize].next.checked_sub(self.count)
    }

    pub(super) fn last(&self, queue: u32) -> Option<u32> {
        self.links[queue as usize].previous.checked_sub(self.count)
    }

    /// There are at least so many places.
    fn make(&mut self, places: u32) {
        while self.links.len() < places as usize {
            let place = self.links.len() as u32;
            self.links.push(Links::alone(place));
        }
    }
}

impl Links {
    fn alone(place: u32) -> Self {
        let (previous, next) = (place, place);
        Self { previous, next }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_leave_from_anywhere_and_the_others_stay_in_order() {
        let mut queues = Queues::new(2);
        for (queue, slot) in [(0, 5), (1, 2), (0, 0), (0, 3), (1, 4)] {
            queues.push(queue, slot);
        }
        let mut of_first = vec![5, 0, 3];
        for gone in [0, 0, 9, 3, 5] {
            assert_eq!(queues.first(0), of_first.first().copied());
            assert_eq!(queues.last(0), of_first.last().copied());
            queues.remove(gone);
            of_first.retain(|slot| *slot != gone);
        }
        assert_eq!((queues.first(0), queues.last(0)), (None, None));
        assert_eq!((queues.first(1), queues.last(1)), (Some(2), Some(4)));
    }
}
