//! Answers that wait for a connection: by call, and which of the calls have a turn when there is room.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};

use super::conn::{Cargo, Parcel};
use crate::wire::MAX_FRAME;
use crate::{CallId, Token};

/// Whose answers: whoever does not know the token of a call holds nothing of it up.
pub(super) type Of = (CallId, Option<Token>);

/// For what room there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Size {
    /// The one small answer of its branch, back over its request's own connection: it needs no credit, and less room than others.
    Only,
    /// Answers of one frame.
    Small,
    /// Answers in parts, and what must not overtake them.
    Large,
}

/// Answers that wait. Those of a call for which there is no credit have no turn, so that neither room nor credit of others
/// costs a look at them.
#[derive(Debug, Default)]
pub(super) struct AnswerQueues {
    queues: BTreeMap<Of, CallQueue>,
    turns: [BTreeMap<u64, Of>; 3],
    latest: u64,
}

/// Those of one call, of which there is one at least.
#[derive(Debug)]
struct CallQueue {
    parcels: VecDeque<Parcel>,
    turn: Option<(Size, u64)>,
}

impl Size {
    pub(super) fn of(parcel: &Parcel) -> Self {
        match &parcel.cargo {
            Cargo::Answer(out) if out.own && out.small => Self::Only,
            _ if parcel.payload() > MAX_FRAME => Self::Large,
            _ => Self::Small,
        }
    }
}

impl AnswerQueues {
    pub(super) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    pub(super) fn contains(&self, of: &Of) -> bool {
        self.queues.contains_key(of)
    }

    /// One more waits. If it is the first of its call, whether for room or for credit shows in its turn.
    pub(super) fn push(&mut self, of: Of, parcel: Parcel) {
        match self.queues.entry(of) {
            Entry::Occupied(mut queue) => queue.get_mut().parcels.push_back(parcel),
            Entry::Vacant(_) => {
                let size = Size::of(&parcel);
                self.put(of, VecDeque::from([parcel]), Some((size, None)));
            }
        }
    }

    /// Takes all of a call.
    pub(super) fn remove(&mut self, of: &Of) -> Option<VecDeque<Parcel>> {
        let queue = self.queues.remove(of)?;
        if let Some((size, turn)) = queue.turn {
            self.turns[size as usize].remove(&turn);
        }
        Some(queue.parcels)
    }

    /// Takes those whose turn it is, and when that was.
    pub(super) fn next(&mut self, size: Size) -> Option<(Of, u64, VecDeque<Parcel>)> {
        let (&turn, &of) = self.turns[size as usize].first_key_value()?;
        Some((of, turn, self.remove(&of)?))
    }

    /// Those of a call wait: for credit, or for room in this turn or behind all others.
    pub(super) fn put(
        &mut self,
        of: Of,
        parcels: VecDeque<Parcel>,
        turn: Option<(Size, Option<u64>)>,
    ) {
        let turn = turn.map(|(size, turn)| {
            self.latest += 1;
            let turn = turn.unwrap_or(self.latest);
            self.turns[size as usize].insert(turn, of);
            (size, turn)
        });
        self.queues.insert(of, CallQueue { parcels, turn });
    }

    /// The calls before this one of its initiator are over: their answers need no credit any more. Whether any have waited for it.
    pub(super) fn note_over(&mut self, oldest: CallId) -> bool {
        let first = CallId {
            sequence: 0,
            ..oldest
        };
        let before = self.latest;
        let over = self.queues.range_mut((first, None)..(oldest, None));
        for (of, queue) in over.filter(|(_, queue)| queue.turn.is_none()) {
            self.latest += 1;
            self.turns[Size::Small as usize].insert(self.latest, *of);
            queue.turn = Some((Size::Small, self.latest));
        }
        self.latest > before
    }

    /// Those of a call, whatever tokens they show.
    pub(super) fn of_call(&self, call: CallId) -> Vec<Of> {
        let from = self.queues.range((call, None)..);
        let of_call = from.take_while(|((of, _), _)| *of == call);
        of_call.map(|(of, _)| *of).collect()
    }

    pub(super) fn all(self) -> impl Iterator<Item = Parcel> {
        self.queues.into_values().flat_map(|queue| queue.parcels)
    }
}
