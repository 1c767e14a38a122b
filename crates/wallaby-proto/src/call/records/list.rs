//! Lists whose members are slots of a table: adding and removing anywhere costs nothing and allocates nothing.

/// No slot.
pub(super) const NONE: u32 = u32::MAX;

/// In place of the previous member: this is none.
const UNLISTED: u32 = u32::MAX - 1;

/// A member's neighbours.
#[derive(Debug, Clone, Copy)]
pub(super) struct Links {
    previous: u32,
    next: u32,
}

/// The ends of a list.
#[derive(Debug, Clone, Copy)]
pub(super) struct List {
    pub(super) first: u32,
    pub(super) last: u32,
}

/// A table whose slots can be members of the list `L`, one at a time.
pub(super) trait Linked<const L: usize> {
    fn links(&mut self, slot: u32) -> &mut Links;
    fn links_of(&self, slot: u32) -> &Links;
}

impl Links {
    /// Those of a slot that is in no list.
    pub(super) const UNLISTED: Self = Self {
        previous: UNLISTED,
        next: NONE,
    };

    /// Those of the only member.
    pub(super) const ALONE: Self = Self {
        previous: NONE,
        next: NONE,
    };

    pub(super) fn is_member(self) -> bool {
        self.previous != UNLISTED
    }

    pub(super) fn next(self) -> Option<u32> {
        (self.next != NONE).then_some(self.next)
    }

    pub(super) fn previous(self) -> Option<u32> {
        (self.previous != NONE).then_some(self.previous)
    }
}

impl List {
    pub(super) const EMPTY: Self = Self {
        first: NONE,
        last: NONE,
    };

    /// A list with this only member, whose links are [`Links::ALONE`].
    pub(super) const fn of(slot: u32) -> Self {
        Self {
            first: slot,
            last: slot,
        }
    }

    pub(super) fn first(self) -> Option<u32> {
        (self.first != NONE).then_some(self.first)
    }

    pub(super) fn last(self) -> Option<u32> {
        (self.last != NONE).then_some(self.last)
    }

    pub(super) fn push<const L: usize>(&mut self, slots: &mut impl Linked<L>, slot: u32) {
        let last = self.last;
        self.insert_after(slots, slot, last);
    }

    /// Adds a slot behind another one; behind [`NONE`] is the front.
    pub(super) fn insert_after<const L: usize>(
        &mut self,
        slots: &mut impl Linked<L>,
        slot: u32,
        previous: u32,
    ) {
        let next = match previous {
            NONE => std::mem::replace(&mut self.first, slot),
            previous => std::mem::replace(&mut slots.links(previous).next, slot),
        };
        match next {
            NONE => self.last = slot,
            next => slots.links(next).previous = slot,
        }
        *slots.links(slot) = Links { previous, next };
    }

    /// Takes a slot out, if it is a member.
    pub(super) fn remove<const L: usize>(&mut self, slots: &mut impl Linked<L>, slot: u32) {
        let Links { previous, next } = std::mem::replace(slots.links(slot), Links::UNLISTED);
        match previous {
            UNLISTED => return,
            NONE => self.first = next,
            previous => slots.links(previous).next = next,
        }
        match next {
            NONE => self.last = previous,
            next => slots.links(next).previous = previous,
        }
    }
}
