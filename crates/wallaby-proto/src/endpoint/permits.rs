//! Which requests have a place to run, and which wait for one.

use super::event::{Output, RequestKey};
use super::probe::{Note, Probe};
use super::requests::too_late;
use super::server::{HandledRequest, HandlerState, Place};
use super::stopping::GoesOn;
use super::{Alarm, Endpoint};
use crate::detach::detach;
use crate::executor::{Load, Owner};
use crate::{Code, Status};

/// A place of the executor, which a handler has that may go on after its request has ended: see
/// [`Endpoint::keep_permit`]. It is given back once, by [`Endpoint::release_permit`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the place is taken until it is given back"]
pub struct Permit {
    owner: Owner,
    /// The request whose handler has it.
    of: Option<RequestKey>,
}

impl<P: Probe> Endpoint<P> {
    /// Takes over the place that a request has. Whoever runs handlers that may go on after their request has ended does that, and
    /// [gives it back](Self::release_permit) when the handler is done: until then a request whose call is aborted does not end.
    /// Otherwise the place is free when the request has ended. `None` if it has none: it has ended, or somebody has taken its place
    /// over. If the request is stopped and its handler is not done for [`Config::grace`](super::Config::grace), its place is given to
    /// others ([`Output::Stuck`]).
    pub fn keep_permit(&mut self, key: RequestKey) -> Option<Permit> {
        let handler = self.handlers.get_mut(key)?;
        if handler.place != Place::Request {
            return None;
        }
        handler.place = Place::Permit;
        Some(Permit {
            owner: handler.owner(),
            of: Some(key),
        })
    }

    /// Takes another place for a request that is open, if one is free.
    pub fn take_place(&mut self, key: RequestKey) -> Option<Permit> {
        let owner = self.handlers.get(key)?.owner();
        let has_place = self.executor.try_run(owner);
        has_place.then_some(Permit { owner, of: None })
    }

    /// Gives back what [`keep_permit`](Self::keep_permit) or [`take_place`](Self::take_place) has returned: the next request that
    /// waits gets [`Output::Run`].
    pub fn release_permit(&mut self, permit: Permit) {
        let Permit { owner, of } = permit;
        if self.has_panicked() {
            return; // it is of an executor that is gone
        }
        if let Some(key) = of
            && let Some(goes_on) = self.going_on.remove(&key)
        {
            return self.end_stopped(key, owner, &goes_on);
        }
        self.free_place(owner);
        // Nobody says so once more, though the request may go on.
        if let Some(handler) = of.and_then(|key| self.handlers.get_mut(key)) {
            handler.place = Place::None;
        }
    }

    /// Whoever has this permit does something now that is finished whatever becomes of the request: its place is its own for that,
    /// however long it takes, unless it was given to others before.
    pub fn keep_place(&mut self, permit: &Permit) {
        let Some(key) = permit.of else {
            return; // no stop takes it
        };
        if let Some(handler) = self.handlers.get_mut(key)
            && handler.place == Place::Permit
        {
            handler.place = Place::Kept;
        }
        if let Some(goes_on) = self.going_on.get_mut(&key)
            && let GoesOn::Until(until, ..) = *goes_on
        {
            *goes_on = GoesOn::Kept;
            self.alarms.remove(&(until, Alarm::Grace(key)));
        }
    }

    /// How many handlers run and how many requests wait.
    pub fn load(&self) -> Load {
        self.executor.load()
    }

    /// A request for which there is no place waits for its turn. If as many wait as may, it ends with this status.
    #[cold]
    #[inline(never)]
    pub(super) fn wait_for_turn(&mut self, key: RequestKey) -> Result<(), Status> {
        let Some(owner) = self.handlers.get(key).map(HandledRequest::owner) else {
            return Ok(());
        };
        if !self.makes_room(owner) {
            self.metrics.requests_refused += 1;
            self.probe.notes(Note::QueueFull);
            let why = self.executor.why_refused(owner);
            let status = Status::new(Code::ResourceExhausted, why);
            self.end_with(key, &status);
            return Err(status);
        }
        self.probe.notes(Note::Queued);
        if let Some(handler) = self.handlers.get_mut(key) {
            detach(&mut handler.payload);
            let (executor, deadline) = (&mut self.executor, handler.deadline);
            let urgency = executor.urgency(|| handler.age(), deadline, self.raw);
            let turn = executor.queue(key, owner, urgency);
            self.enter(key, HandlerState::Queued(turn));
        }
        Ok(())
    }

    /// Whether another request of this owner may wait. For that, one of the connection that has most of them may be refused.
    fn makes_room(&mut self, owner: Owner) -> bool {
        if self.executor.has_room(owner) {
            return true;
        }
        let Some(displaced) = self.executor.displace(owner) else {
            return false;
        };
        self.metrics.requests_refused += 1;
        self.probe.notes(Note::QueueFull);
        let why = "as many requests wait as may, and most of them came over the same connection as this one";
        self.stop(displaced, Status::new(Code::ResourceExhausted, why));
        true
    }

    /// A request that was handed out [ahead](super::Serving::ahead) is to have a place, as one of this method: [`Output::Run`] tells
    /// when it is its turn, with nothing to take but the turn.
    ///
    /// # Errors
    ///
    /// If it has ended, or is refused now since as many wait as may: with this status.
    pub fn run_as(&mut self, key: RequestKey, served: usize) -> Result<(), Status> {
        let placed = self.place_as(key, served);
        if placed.is_err() {
            self.abort_calls_within(key);
        }
        placed
    }

    fn place_as(&mut self, key: RequestKey, served: usize) -> Result<(), Status> {
        let one = self.methods.serving(served).one;
        let over = || Status::new(Code::Aborted, "the request has ended");
        let handler = self.handlers.get_mut(key).ok_or_else(over)?;
        if handler.has_ended() {
            self.release(key);
            return Err(over());
        }
        (handler.served, handler.owes_answer) = (Some(served), one);
        if !self.executor.try_run(handler.owner()) {
            return self.wait_for_turn(key);
        }
        self.run_now(key, HandlerState::Waits);
        Ok(())
    }

    /// A request has a place from now on, and its sender may send as much again as it took while it waited.
    fn run_now(&mut self, key: RequestKey, state: HandlerState) {
        self.enter(key, state);
        let Some(handler) = self.handlers.get_mut(key) else {
            return;
        };
        handler.place = Place::Request;
        self.free_credit(key);
        self.outputs.push_back(Output::Run(key));
    }

    /// The sender of a request may send as much again as it took, though it has no place yet: whoever has taken what it was sent with
    /// bounds that in another way.
    pub fn free_credit(&mut self, key: RequestKey) {
        let handler = self.handlers.get_mut(key);
        let owed = handler.and_then(|handler| Some((handler.from, handler.owed.take()?)));
        if let Some((from, payload)) = owed {
            self.grant_request(from, payload);
        }
    }

    /// A place is free: whose turn it is runs.
    #[inline]
    pub(super) fn free_place(&mut self, owner: Owner) {
        if let Some(next) = self.executor.release(owner) {
            self.run_now(next, HandlerState::Late);
        }
    }

    /// A request that has waited for its turn is to run: whether it still has time.
    #[cold]
    #[inline(never)]
    pub(super) fn starts_late(&mut self, key: RequestKey) -> bool {
        let Some(handler) = self.handlers.get(key) else {
            return false;
        };
        if handler.deadline <= self.raw {
            self.fail(key, &too_late());
            return false;
        }
        if let Some(ticket) = handler.ticket {
            self.records.progressed(ticket, self.now);
        }
        true
    }

    /// A request that waits has ended.
    #[cold]
    #[inline(never)]
    pub(super) fn leave_line(&mut self, key: RequestKey) {
        let Some(handler) = self.handlers.get(key) else {
            return;
        };
        if let HandlerState::Queued(turn) = handler.state {
            self.executor.withdraw(handler.owner(), turn);
        }
        self.enter(key, HandlerState::Runs);
    }

    /// A request is in another state from now on. As long as it waits, for its turn or put aside, an abort and its deadline find it,
    /// and its connection is needed.
    pub(super) fn enter(&mut self, key: RequestKey, state: HandlerState) {
        let Some(handler) = self.handlers.get_mut(key) else {
            return;
        };
        let was_listed = handler.is_listed();
        handler.state = state;
        if handler.is_listed() == was_listed {
            return;
        }
        let (ticket, from) = (handler.ticket, handler.from);
        let alarm = (handler.given_up_at(), Alarm::Request(key));
        if was_listed {
            ticket.map(|ticket| self.tickets.remove(&ticket));
            self.alarms.remove(&alarm);
        } else {
            ticket.map(|ticket| self.tickets.insert(ticket, key));
            self.alarms.insert(alarm);
        }
        if let Some(conn) = self.conns.get_mut(from) {
            match was_listed {
                true => conn.busy = conn.busy.saturating_sub(1),
                false => conn.busy += 1,
            }
            self.may_rest(from); // a busy one does not
        }
    }
}
