//! The initial requests above branches, of calls whose initial requests are sent again.

use crate::call::initiator::Initiator;

/// What was found out when it was looked up: ways up that were gone once are not gone step by step again.
#[derive(Debug, Default)]
pub(super) struct Roots {
    /// By position, the highest branch above that was found.
    tops: Vec<u32>,
}

impl Roots {
    /// The highest branch known above one: its initial request, unless something between them is not known yet.
    pub(super) fn of(&mut self, initiator: &Initiator, position: u32) -> u32 {
        let known = self.tops.len() as u32;
        self.tops
            .extend(known..initiator.branch_count().max(position + 1));
        let mut top = position;
        loop {
            let above = match self.tops[top as usize] {
                above if above == top => initiator.parent_of(top),
                above => Some(above),
            };
            match above {
                Some(above) => top = above,
                None => break,
            }
        }
        let mut place = position;
        while place != top {
            let above = match self.tops[place as usize] {
                above if above == place => initiator.parent_of(place).unwrap_or(top),
                above => above,
            };
            self.tops[place as usize] = top;
            place = above;
        }
        top
    }
}
