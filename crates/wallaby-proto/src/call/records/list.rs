//! Lists whose members are slots of a table: adding and removing anywhere costs nothing and allocates nothing.

/// No slot.
pub(super) const NONE: u32 = u32::MAX;

/// A member's neighbours.
#[derive(Debug, Clone, Copy)]
pub(super) struct Links {
    previous: u32,
    next: u32,
    member: bool,
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
    pub(super) const NONE: Self = Self {
        previous: NONE,
        next: NONE,
        member: false,
    };

    pub(super) fn is_member(self) -> bool {
        self.member
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
        *slots.links(slot) = Links {
            previous,
            next,
            member: true,
        };
    }

    /// Takes a slot out, if it is a member.
    pub(super) fn remove<const L: usize>(&mut self, slots: &mut impl Linked<L>, slot: u32) {
        let Links {
            previous,
            next,
            member,
        } = std::mem::replace(slots.links(slot), Links::NONE);
        if !member {
            return;
        }
        match previous {
            NONE => self.first = next,
            previous => slots.links(previous).next = next,
        }
        match next {
            NONE => self.last = previous,
            next => slots.links(next).previous = previous,
        }
    }
}
