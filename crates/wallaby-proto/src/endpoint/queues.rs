//! What waits for connections, for credit or for room: it goes on in its turn, and those hear of room to whom it was refused.

use std::collections::VecDeque;
use std::time::Duration;

use crate::carrier::Carrier;
use crate::connection::Granted;
use crate::wire::Ping;
use crate::{CallId, ConnId};

use super::answer_queues::{AnswerQueues, Of, Size};
use super::conn::{Cargo, Delegation, Parcel, Room};
use super::event::{Lane, Output};
use super::handler_table::Waiting;
use super::probe::Probe;
use super::routing::gone;
use super::sending::ABORTED;
use super::{Alarm, Endpoint};

/// How often it is looked, at most, whether requests wait whose calls have ended: less often the more of them wait.
const PURGE_PAUSE: Duration = Duration::from_millis(100);

/// For so many that were looked at the pause is as long again.
const LOOKED_AT: usize = 10_000;

/// Calls whose answers wait for others in parts and that are tried each time that something has left.
const LARGE_TRIED: usize = 16;

impl<P: Probe> Endpoint<P> {
    /// A message waits for a connection. An answer for which there is no room is dropped: it is asked for again.
    pub(super) fn queue(&mut self, id: ConnId, mut parcel: Parcel) {
        if P::LOOKS {
            self.probe.waits(parcel.message());
        }
        let Some(room) = self.queue_room.take(id, &parcel) else {
            return self.drop_answer(parcel);
        };
        parcel.room = room;
        if let Some((key, lane)) = parcel.of() {
            // A server that hangs while it is dialled must not hold up what goes to others.
            let is_dialled = lane == Lane::Requests && !self.is_open(Some(id));
            // One with a body waits in a line of its own, which later ones would overtake.
            let is_dialled = is_dialled && parcel.body().is_none();
            let ahead = is_dialled && self.handlers.may_go_ahead(key);
            let of = Waiting { key, lane, ahead };
            self.handlers.begin_wait(of);
            parcel.room.of = Some(of);
        }
        if let Some(conn) = self.conns.get_mut(id) {
            conn.queues().push(parcel);
        }
    }

    /// A message of this request waits no longer.
    pub(super) fn end_wait(&mut self, of: Option<Waiting>) {
        if let Some(of) = of
            && self.handlers.end_wait(of)
        {
            self.outputs.push_back(Output::Room(of.key, of.lane));
        }
    }

    /// There may be room for what was refused before.
    pub(super) fn note_space(&mut self) {
        for key in self.queue_room.note_space(self.now) {
            if let Some(handler) = self.handlers.get_mut(key) {
                handler.room_turn = None;
                self.outputs.push_back(Output::Space(key));
            }
        }
        if let Some(due) = self.queue_room.due() {
            self.note_due(due);
        }
    }

    /// What there was room for before is told now.
    pub(super) fn tell_space_late(&mut self) {
        if self.queue_room.due().is_some_and(|due| due <= self.now) {
            self.note_space();
        }
    }

    /// Sends what can be sent, as far as there is room.
    pub(super) fn pump(&mut self, id: ConnId) {
        self.pump_for(id, Granted::Room);
    }

    /// Sends what can be sent now that this was granted.
    pub(super) fn pump_for(&mut self, id: ConnId, granted: Granted) {
        // What was refused for want of room may leave at once now, and so need none.
        if !matches!(granted, Granted::Parts | Granted::Body) && self.queue_room.has_refused() {
            self.note_space();
        }
        // Who is there is not known before the handshake is done.
        let open = self.conns.get_mut(id).filter(|conn| conn.is_open());
        let open = open.filter(|_| !matches!(granted, Granted::Parts | Granted::Body));
        let Some((mut queues, over)) = open.and_then(|conn| Some((conn.queues.take()?, conn.over)))
        else {
            return;
        };
        if granted == Granted::Room {
            self.pump_queue(id, &mut queues.controls);
        }
        if matches!(granted, Granted::Room | Granted::Requests) {
            self.pump_queue(id, &mut queues.requests);
            self.pump_queue(id, &mut queues.followed);
        }
        match granted {
            Granted::Room => self.pump_answers(id, &mut queues.answers),
            Granted::Call(call) => {
                for of in queues.answers.of_call(call) {
                    if let Some(parcels) = queues.answers.remove(&of) {
                        self.pump_those(id, &mut queues.answers, (of, parcels, None));
                    }
                }
            }
            Granted::Requests | Granted::Parts | Granted::Body => {}
        }
        match self.conns.get_mut(id) {
            // What was sent may have set off more, which now waits here, too.
            Some(conn) => {
                let newer = conn.queues.take();
                newer
                    .into_iter()
                    .flat_map(|newer| newer.all())
                    .for_each(|parcel| queues.push(parcel));
                conn.queues = Some(queues).filter(|queues| !queues.is_empty());
                if let Some(oldest) = conn.over.filter(|_| conn.over != over) {
                    self.pump_over(id, oldest);
                }
            }
            None => {
                let left = self.take_back(id, queues.all());
                self.post_again(left, &gone());
            }
        }
    }

    /// Calls are over: their answers need no credit any more.
    pub(super) fn pump_over(&mut self, id: ConnId, oldest: CallId) {
        let queues = self.conns.get_mut(id).and_then(|conn| conn.queues.as_mut());
        if queues.is_some_and(|queues| queues.answers.note_over(oldest)) {
            self.pump(id);
        }
    }

    /// Sends answers for which there is room, in their turn. Of those that wait for others in parts some are tried, the others in
    /// the next turns.
    fn pump_answers(&mut self, id: ConnId, answers: &mut AnswerQueues) {
        for size in [Size::Only, Size::Small] {
            while let Some((of, turn, parcels)) = answers.next(size) {
                if self.pump_those(id, answers, (of, parcels, Some(turn))) == Some(size) {
                    break;
                }
            }
        }
        for _ in 0..LARGE_TRIED {
            let Some((of, _, parcels)) = answers.next(Size::Large) else {
                return;
            };
            self.pump_those(id, answers, (of, parcels, None));
        }
    }

    /// Sends those of a call that can be sent; what is left waits on, for credit or for its turn among those of this size.
    fn pump_those(
        &mut self,
        id: ConnId,
        answers: &mut AnswerQueues,
        (of, mut parcels, turn): (Of, VecDeque<Parcel>, Option<u64>),
    ) -> Option<Size> {
        self.pump_queue(id, &mut parcels);
        let size = Size::of(parcels.front()?);
        let carrier = self.carrier_peek(id);
        let has_credit = carrier.as_ref().is_none_or(|it| it.has_credit(of.0));
        let size = match size {
            Size::Only => Some(size),
            _ if !has_credit => None,
            // It must not overtake one in parts.
            Size::Small if carrier.is_some_and(|it| it.takes_output()) => Some(Size::Large),
            _ => Some(size),
        };
        let turn = turn.filter(|_| size != Some(Size::Large));
        answers.put(of, parcels, size.map(|size| (size, turn)));
        size
    }

    /// What carries a peer's messages, only to ask it.
    pub(super) fn carrier_peek(&self, id: ConnId) -> Option<&dyn Carrier> {
        self.conns.get(id)?.link.peek(&self.sockets)
    }

    /// A message does not wait for this connection any more.
    pub(super) fn leave_queue(&mut self, id: ConnId, room: Room) {
        self.end_wait(room.of);
        self.queue_room.give_back(id, room);
        self.note_space();
    }

    /// Requests that wait, and are not sent any more as their calls have ended or were aborted, make room; who waits for the end of an
    /// aborted call is told. Not each time that there is no room, or that a call is aborted, as this looks at all that wait: `false` if
    /// it is too early.
    #[cold]
    pub(super) fn drop_ended_requests(&mut self) -> bool {
        if self.raw < self.purge_next {
            return false;
        }
        let (mut ended, mut looked_at): (Vec<Parcel>, usize) = (Vec::new(), 0);
        for id in self.conns.ids() {
            let Some(queues) = self.conns.get_mut(id).and_then(|conn| conn.queues.as_mut()) else {
                continue;
            };
            let requests = std::mem::take(&mut queues.requests);
            let followed = std::mem::take(&mut queues.followed);
            looked_at += requests.len() + followed.len();
            let requests = self.without_ended(id, requests, &mut ended);
            let followed = self.without_ended(id, followed, &mut ended);
            if let Some(conn) = self.conns.get_mut(id) {
                let queues = conn.queues();
                (queues.requests, queues.followed) = (requests, followed);
                if queues.is_empty() {
                    conn.queues = None; // it may be one that nobody needs
                }
            }
            self.may_rest(id);
        }
        let pause = PURGE_PAUSE.saturating_mul(1 + (looked_at / LOOKED_AT) as u32);
        self.purge_next = self.raw.saturating_add(pause);
        for parcel in ended {
            if let Some(body) = parcel.body() {
                self.body_over(body);
            }
            if let Cargo::Request(out) = &parcel.cargo
                && let Some(Delegation { ticket, .. }) = out.delegated
            {
                self.withdraw(out, ticket, Some(ABORTED));
            }
        }
        true
    }

    fn without_ended(
        &mut self,
        id: ConnId,
        parcels: VecDeque<Parcel>,
        ended: &mut Vec<Parcel>,
    ) -> VecDeque<Parcel> {
        let (over, rest): (VecDeque<Parcel>, VecDeque<Parcel>) = parcels
            .into_iter()
            .partition(|parcel| self.is_in_vain(parcel));
        ended.extend(self.take_back(id, over.into_iter()));
        rest
    }

    /// Whether a request that waits is not sent any more, whatever its connection takes.
    fn is_in_vain(&self, parcel: &Parcel) -> bool {
        let Cargo::Request(out) = &parcel.cargo else {
            return false;
        };
        match out.delegated {
            Some(Delegation { ticket, .. }) => self.records.is_aborted(ticket),
            None => self.is_over(out.request.call.sequence),
        }
    }

    /// The call of a request was aborted: what it has delegated, and still waits, does so no more.
    pub(super) fn withdraw_delegations(&mut self, ping: &Ping) {
        if self
            .records
            .has_waiting((ping.call, ping.token), ping.request)
        {
            let at = self.raw.max(self.purge_next);
            self.alarms.insert((at, Alarm::EndedRequests));
        }
    }

    fn pump_queue(&mut self, id: ConnId, queue: &mut VecDeque<Parcel>) {
        while let Some(mut parcel) = queue.pop_front() {
            let room = std::mem::take(&mut parcel.room);
            if let Some(mut parcel) = self.try_parcel(id, parcel) {
                parcel.room = room;
                queue.push_front(parcel);
                return;
            }
            self.leave_queue(id, room);
        }
    }
}
