//! Which requests have a place to run, and which wait for one.

use super::event::{Output, RequestKey};
use super::probe::{Note, Probe};
use super::requests::{HandledRequest, Stage, age, too_late};
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
    /// The place was given to others meanwhile.
    free: bool,
}

impl Permit {
    /// Whether its place [was given to others](Endpoint::free_permit).
    pub fn is_free(&self) -> bool {
        self.free
    }
}

impl<P: Probe> Endpoint<P> {
    /// Takes over the place that a request has. Whoever runs handlers that may go on after their request has ended does that, and
    /// [gives it back](Self::release_permit) when the handler is done: until then a request whose call is aborted does not end.
    /// Otherwise the place is free when the request has ended. `None` if it has none: it has ended, or somebody has taken its place
    /// over.
    pub fn keep_permit(&mut self, key: RequestKey) -> Option<Permit> {
        let handler = self.handlers.get_mut(key)?;
        let placed = std::mem::take(&mut handler.placed);
        handler.kept |= placed;
        placed.then(|| Permit {
            owner: handler.owner(),
            of: Some(key),
            free: false,
        })
    }

    /// Takes another place for a request that is open, if one is free.
    pub fn take_place(&mut self, key: RequestKey) -> Option<Permit> {
        let owner = self.handlers.get(key)?.owner();
        let permit = |owner| Permit {
            owner,
            of: None,
            free: false,
        };
        self.executor.try_run(owner).then(|| permit(owner))
    }

    /// Gives back what [`keep_permit`](Self::keep_permit) or [`take_place`](Self::take_place) has returned: the next request that
    /// waits gets [`Output::Run`].
    pub fn release_permit(&mut self, permit: Permit) {
        if !permit.free {
            self.free_place(permit.owner);
        }
        if let Some(key) = permit.of {
            self.note_done(key);
        }
    }

    /// The next request that waits gets the place, though the handler that has it is not done.
    pub fn free_permit(&mut self, permit: &mut Permit) {
        if !std::mem::replace(&mut permit.free, true) {
            self.free_place(permit.owner);
        }
    }

    /// How many handlers run and how many requests wait.
    pub fn load(&self) -> Load {
        self.executor.load()
    }

    /// A request for which there is no place waits, or is refused.
    #[cold]
    #[inline(never)]
    pub(super) fn wait_for_place(&mut self, mut handler: Box<HandledRequest>) {
        let owner = handler.owner();
        if !self.makes_room(owner) {
            self.metrics.requests_refused += 1;
            self.probe.notes(Note::QueueFull);
            self.grant_request(handler.from, handler.payload.len());
            if let Some(body) = handler.body {
                self.drop_body(body);
            }
            let why = self.executor.why_refused(owner);
            self.end_with(handler, &Status::new(Code::ResourceExhausted, why));
            return;
        }
        self.probe.notes(Note::Queued);
        detach(&mut handler.payload);
        let urgency = (self.executor).urgency(|| age(&handler), handler.deadline, self.raw);
        let key = self.handlers.add(handler);
        let turn = self.executor.queue(key, owner, urgency);
        if let Some(mut handler) = self.handlers.take(key) {
            handler.stage = Stage::Queued(turn);
            self.list(key, &handler);
            self.handlers.put(key, handler);
        }
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
        let one = self.serving(served).one;
        let over = || Status::new(Code::Aborted, "the request has ended");
        let mut handler = self.handlers.take(key).ok_or_else(over)?;
        if handler.server.has_ended() {
            self.finish(handler);
            return Err(over());
        }
        handler.expect(served, one);
        let (owner, is_listed) = (handler.owner(), handler.is_listed());
        if self.executor.try_run(owner) {
            if is_listed {
                self.unlist(key, &handler);
            }
            (handler.stage, handler.placed) = (Stage::Waits, true);
            self.grant_owed(&mut handler);
            self.handlers.put(key, handler);
            self.outputs.push_back(Output::Run(key));
            return Ok(());
        }
        if !self.makes_room(owner) {
            self.metrics.requests_refused += 1;
            let why = self.executor.why_refused(owner);
            let status = Status::new(Code::ResourceExhausted, why);
            self.end_with(handler, &status);
            return Err(status);
        }
        let urgency = (self.executor).urgency(|| age(&handler), handler.deadline, self.raw);
        handler.stage = Stage::Queued(self.executor.queue(key, owner, urgency));
        if !is_listed {
            self.list(key, &handler);
        }
        self.handlers.put(key, handler);
        Ok(())
    }

    /// A place is free: whose turn it is runs.
    #[inline]
    pub(super) fn free_place(&mut self, owner: Owner) {
        if let Some(next) = self.executor.release(owner) {
            self.run_late(next);
        }
    }

    #[cold]
    #[inline(never)]
    fn run_late(&mut self, key: RequestKey) {
        let Some(mut handler) = self.handlers.take(key) else {
            return;
        };
        self.unlist(key, &handler);
        (handler.stage, handler.placed) = (Stage::Late, true);
        self.grant_owed(&mut handler);
        self.handlers.put(key, handler);
        self.outputs.push_back(Output::Run(key));
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

    /// A request that waits for its turn has ended.
    #[cold]
    #[inline(never)]
    pub(super) fn leave_line(&mut self, handler: &HandledRequest) {
        let Stage::Queued(turn) = handler.stage else {
            return;
        };
        self.executor.withdraw(handler.owner(), turn);
    }

    /// A request has left the queue: its sender may send as much again.
    fn grant_owed(&mut self, handler: &mut HandledRequest) {
        if let Some(payload) = handler.owed.take() {
            self.grant_request(handler.from, payload);
        }
    }

    /// A request waits, for its turn or put aside: an abort and its deadline find it, and its connection is needed.
    pub(super) fn list(&mut self, key: RequestKey, handler: &HandledRequest) {
        if let Some(ticket) = handler.ticket {
            self.tickets.insert(ticket, key);
        }
        let alarm = (handler.given_up_at(), Alarm::Request(key));
        self.alarms.insert(alarm);
        if let Some(conn) = self.conns.get_mut(handler.from) {
            conn.busy += 1;
        }
    }

    /// It does not wait any more.
    pub(super) fn unlist(&mut self, key: RequestKey, handler: &HandledRequest) {
        if let Some(ticket) = handler.ticket {
            self.tickets.remove(&ticket);
        }
        self.alarms
            .remove(&(handler.given_up_at(), Alarm::Request(key)));
        if let Some(conn) = self.conns.get_mut(handler.from) {
            conn.busy = conn.busy.saturating_sub(1);
            self.may_rest(handler.from);
        }
    }
}
