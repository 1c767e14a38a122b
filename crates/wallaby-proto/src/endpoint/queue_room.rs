//! The room that messages take while they wait for connections, and when and in which order requests are told of it that were refused
//! some.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use super::conn::{Cargo, Parcel, Room};
use super::event::RequestKey;
use crate::call::shares::Shares;
use crate::numbers::MESSAGE_COST;
use crate::{CallId, ConnId, NodeId, Token};

/// When more requests than the first were told of room at once ([`Output::Space`](super::Output::Space)), none is told again before the
/// others for each, but the last at most.
const FEW_REFUSED: usize = 64;
const PAUSE_FOR_EACH: Duration = Duration::from_micros(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// What waits, and what could not.
#[derive(Debug)]
pub(super) struct QueueRoom {
    /// Bytes of requests, and how many there may be.
    requests: usize,
    most: usize,
    /// Who has how much of the room for answers.
    answers: Shares,
    /// How many answers that are relayed wait for which connections, by their calls.
    relaying: BTreeMap<(CallId, Token, ConnId), usize>,
    /// Requests whose messages were refused since they were told of room, by their turns.
    refused: BTreeMap<u64, RequestKey>,
    turn: u64,
    /// When they are told at the earliest.
    next: Duration,
    /// When they are told: there is room meanwhile.
    due: Option<Duration>,
}

impl QueueRoom {
    /// Room for so many bytes of requests, and as many of answers.
    pub(super) fn new(most: usize) -> Self {
        Self {
            requests: 0,
            most,
            answers: Shares::new(most),
            relaying: BTreeMap::new(),
            refused: BTreeMap::new(),
            turn: 0,
            next: Duration::ZERO,
            due: None,
        }
    }

    /// Whether a request with a payload of so many bytes may wait.
    pub(super) fn has_room(&self, payload: usize) -> bool {
        self.has_room_of(self.most, payload)
    }

    /// The same where so much may wait in all.
    pub(super) fn has_room_of(&self, room: usize, payload: usize) -> bool {
        self.requests + payload + MESSAGE_COST as usize <= room
    }

    /// Whether an answer of this cost may wait, whoever's it is.
    pub(super) fn is_plenty(&self, cost: usize) -> bool {
        self.answers.is_plenty(cost)
    }

    /// Whether an answer to this initiator, for which it waits over this connection, may.
    pub(super) fn has_room_for(&mut self, id: ConnId, initiator: NodeId, cost: usize) -> bool {
        let share = self.answers.name(id, initiator);
        self.answers.has_room_for(share, cost)
    }

    /// A message begins to wait; what it takes, or `None` if it is an answer for which there is no room.
    pub(super) fn take(&mut self, id: ConnId, parcel: &Parcel) -> Option<Room> {
        let (call, cost) = (parcel.call(), parcel.cost());
        let mut room = Room::default();
        match &parcel.cargo {
            Cargo::Relay(response, ..) => {
                if let Some(token) = response.token {
                    *self.relaying.entry((call, token, id)).or_default() += 1;
                    room.relayed = Some((call, token));
                }
            }
            // It was said to its handler that this may go: it was to leave at once, but was held back as it might be the last one, and
            // another one has left before it. So each handler that is polled has one more than there is room for, at most.
            Cargo::Answer(out) if out.by.is_some() && !out.is_no_value() => {
                let taken = self.answers.take_all(id, call.initiator, cost);
                room.answers = Some((taken, cost));
            }
            cargo if cargo.answered().is_some() => {
                let taken = self.answers.try_take_all(id, call.initiator, cost);
                room.answers = Some((taken.ok()?, cost));
            }
            _ => {
                self.requests += cost;
                room.requests = cost;
            }
        }
        Some(room)
    }

    /// A message waits for this connection no longer.
    pub(super) fn give_back(&mut self, id: ConnId, room: Room) {
        self.requests -= room.requests;
        if let Some((share, cost)) = room.answers {
            self.answers.give_back_all(share, cost);
        }
        if let Some((call, token)) = room.relayed
            && let Entry::Occupied(mut queued) = self.relaying.entry((call, token, id))
        {
            *queued.get_mut() -= 1;
            if *queued.get() == 0 {
                queued.remove();
            }
        }
    }

    /// For which connections answers of a call wait that are relayed.
    pub(super) fn relaying(&self, call: CallId, token: Token) -> Vec<ConnId> {
        let waiting = self.relaying.range((call, token, ConnId::FIRST)..);
        let waiting = waiting.take_while(|((of, shown, _), _)| (*of, *shown) == (call, token));
        waiting.map(|((.., id), _)| *id).collect()
    }

    /// A message of this request was refused for want of room. It is the last to be told, and this is its turn.
    pub(super) fn note_refused(&mut self, key: RequestKey) -> u64 {
        self.turn += 1;
        self.refused.insert(self.turn, key);
        self.turn
    }

    /// Whether any wait to be told of room.
    #[inline]
    pub(super) fn has_refused(&self) -> bool {
        !self.refused.is_empty()
    }

    /// A request that has this turn is not told any more.
    pub(super) fn leave_line(&mut self, turn: u64) {
        self.refused.remove(&turn);
    }

    /// There is room again: those that are told now, in their order. Each of these tries again, perhaps in vain: the more there are, the
    /// less often they are told.
    pub(super) fn note_space(&mut self, now: Duration) -> impl Iterator<Item = RequestKey> + use<> {
        let is_early = self.next > now;
        let told = match is_early || self.refused.is_empty() {
            true => BTreeMap::new(),
            false => std::mem::take(&mut self.refused),
        };
        self.due = Some(self.next).filter(|_| !self.refused.is_empty());
        if told.len() > FEW_REFUSED {
            let pause = u32::try_from(told.len()).map(|told| PAUSE_FOR_EACH.saturating_mul(told));
            let pause = pause.unwrap_or(LONGEST_PAUSE).min(LONGEST_PAUSE);
            self.next = now.saturating_add(pause);
        }
        told.into_values()
    }

    /// When those are told for whom there was room before.
    pub(super) fn due(&self) -> Option<Duration> {
        self.due
    }
}
