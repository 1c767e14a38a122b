//! The room that messages take while they wait for connections, and when those are told of it to whom some was refused.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;

use super::conn::{Cargo, Parcel, Room};
use crate::call::shares::Shares;
use crate::numbers::MESSAGE_COST;
use crate::{CallId, ConnId, NodeId, Token};

/// When more messages than the first were refused for want of room since [`Output::Space`](super::Output::Space), it is not told
/// again before the others for each, but the last at most.
const FEW_REFUSED: u32 = 64;
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
    /// How many messages were refused since those were told that there is room.
    refused: usize,
    /// When they are told again at the earliest.
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
            refused: 0,
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

    /// A message was refused for want of room.
    pub(super) fn note_refused(&mut self) {
        self.refused += 1;
    }

    /// There is room again; whether those are told now to whom it was refused, if it was. Each of these tries again, perhaps in vain:
    /// the more there are, the less often they are told.
    pub(super) fn note_space(&mut self, now: Duration) -> bool {
        if self.refused == 0 {
            return false;
        }
        if self.next > now {
            self.due = Some(self.next);
            return false;
        }
        let pause = match u32::try_from(self.refused) {
            Ok(0..=FEW_REFUSED) => Duration::ZERO,
            Ok(refused) => PAUSE_FOR_EACH.saturating_mul(refused).min(LONGEST_PAUSE),
            Err(_) => LONGEST_PAUSE,
        };
        (self.refused, self.due) = (0, None);
        self.next = now.saturating_add(pause);
        true
    }

    /// When those are told for whom there was room before.
    pub(super) fn due(&self) -> Option<Duration> {
        self.due
    }
}
