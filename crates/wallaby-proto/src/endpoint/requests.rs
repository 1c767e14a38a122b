//! The server's side: which requests are handled, what they send, and how they end.

mod delegation;
mod verbs;

use std::sync::Arc;
use std::time::Duration;

pub(super) use self::delegation::TimedOptions;
pub use self::delegation::{DelegateOptions, How, NewDelegation};
pub use self::verbs::{Offer, Offered};

use super::bodies::InBody;
use super::conn::Times;
use super::draining::shutting_down;
use super::event::{IncomingRequest, Lane, Output, RequestKey};
use super::methods::{Meant, RefusedMethod, Serving};
use super::probe::Probe;
use super::server::{Author, HandledRequest, HandlerState, Place, RequestContext, Returned};
use super::{Alarm, Endpoint};
use crate::call::records::{Judgement, MessageOrigin, StopReason, Ticket};
use crate::connection::MethodDefinition;
use crate::seal::{SealError, verify};
use crate::wire::{Message, Metadata, MethodRef, Request, Response};
use crate::{Code, ConnId, DurableId, NodeId, Status};

impl<P: Probe> Endpoint<P> {
    // What arrives.

    /// A request came: it is to be handled, or refused.
    pub(super) fn admit(&mut self, from: ConnId, request: &mut Request) {
        self.metrics.requests_received += 1;
        let body = request.body();
        let judged = self.judge(from, request);
        let payload = std::mem::take(&mut request.payload);
        if let (Some(number), None | Some((_, Err(_)))) = (body, &judged) {
            self.stop_unread(from, number);
        }
        let Some((ticket, judged)) = judged else {
            self.grant_request(from, payload.len());
            return;
        };
        let most = self.config.max_budgets.as_ref();
        let mut handler = Box::new(HandledRequest::new(request, (from, ticket), most, self.raw));
        let mut waits = false;
        if let Ok(meant) = &judged {
            let Serving {
                ahead, credit_free, ..
            } = self.methods.serving(meant.served);
            let placed = self.place_for(&mut handler, meant);
            waits = !ahead && !placed;
            if !placed && !credit_free {
                handler.owed = Some(payload.len());
            }
            if let Some(number) = body {
                handler.body = self.begin_read(from, number);
            }
        }
        if handler.owed.is_none() {
            self.grant_request(from, payload.len());
        }
        handler.payload = payload;
        let key = self.handlers.add(handler);
        match judged {
            Ok(_) if waits => drop(self.wait_for_turn(key)),
            Ok(_) => self.outputs.push_back(Output::Run(key)),
            Err(status) => drop(self.end_with(key, &status)),
        }
    }

    /// A request is for this method: whether there is a place for it, which it takes then.
    #[inline]
    fn place_for(&mut self, handler: &mut HandledRequest, meant: &Meant) -> bool {
        let Serving { one, ahead, .. } = self.methods.serving(meant.served);
        (handler.served, handler.owes_answer) = (Some(meant.served), one);
        handler.named.clone_from(&meant.named);
        let placed = !ahead && self.executor.try_run(handler.owner());
        if placed {
            handler.place = Place::Request;
        }
        placed
    }

    /// What was handed on to another server and certainly did not get there is handled here in its place (docs/protocol.md, rule 19), by
    /// the method that its sender has named; `false` if that cannot be. It takes nothing of its connection's credit.
    #[cold]
    pub(super) fn handle_unsent(
        &mut self,
        request: &Request,
        (from, ticket): (ConnId, Ticket),
        (method, times): (Arc<MethodDefinition>, Times),
        why: Status,
    ) -> bool {
        let meant = self.methods.find(&method).ok();
        // Not what handles methods that nothing else does.
        let Some(meant) = meant.filter(|meant| meant.named.is_none()) else {
            return false;
        };
        let serving = self.methods.serving(meant.served);
        let left = times.until.saturating_sub(self.raw);
        // What an endpoint has begun it finishes while it drains.
        if self.is_ending() || left.is_zero() || request.depth > self.config.max_depth {
            return false;
        }
        let mut request = request.clone();
        request.deadline = Some(left);
        let options = request.options.get_or_insert_default();
        (options.seal, options.body) = (None, None); // those of a connection that did not take it
        options.age = Some(self.raw.saturating_sub(times.born));
        // Its server would have found it sealed.
        if let Some(key) = self.config.cluster_keys.first() {
            key.seal(
                &mut request,
                method.name(),
                self.node,
                self.address.as_ref(),
            );
        }
        let payload = std::mem::take(&mut request.payload);
        let most = self.config.max_budgets.as_ref();
        let from = (from, Some(ticket));
        let mut handler = Box::new(HandledRequest::new(&mut request, from, most, self.raw));
        handler.payload = payload;
        handler.undelivered = Some(Box::new(why.not_executed(true)));
        let waits = !self.place_for(&mut handler, &meant) && !serving.ahead;
        if waits && !self.executor.has_room(handler.owner()) {
            return false;
        }
        let key = self.handlers.add(handler);
        match waits {
            true => drop(self.wait_for_turn(key)),
            false => self.outputs.push_back(Output::Run(key)),
        }
        true
    }

    /// Which method is to handle a request, or the status that refuses it; `None` if nothing becomes of it.
    fn judge(
        &mut self,
        from: ConnId,
        request: &mut Request,
    ) -> Option<(Option<Ticket>, Result<Meant, Status>)> {
        let MethodRef::Number(number) = request.method else {
            return None;
        };
        self.use_conn(from);
        let node = self.conns.get(from)?.node()?;
        let methods = &self.conns.get(from)?.methods;
        let served = methods.get(number as usize);
        let served = served.and_then(|served| served.as_ref().ok());
        let how = served.map_or_else(Serving::default, |meant| self.methods.serving(meant.served));
        let sealed = how.sealed && !self.config.cluster_keys.is_empty();
        let required = sealed || self.config.require_seals;
        if let Err(error) = self.check_seal(from, request)
            && required
        {
            self.refuse_unsealed(from, request, error);
            return None;
        }
        let origin = MessageOrigin {
            conn: from,
            peer: node,
            transit: Duration::ZERO,
        };
        let judgement = self.records.admit(request, origin, self.now);
        self.probe.judged(request, &judgement);
        let ticket = match judgement {
            Judgement::Accepted(ticket) => ticket,
            Judgement::Refused(status) => return Some((None, Err(status))),
            Judgement::Duplicate => {
                self.metrics.requests_dropped += 1;
                return None;
            }
        };
        let methods = &self.conns.get(from)?.methods;
        let judged = match methods.get(number as usize) {
            _ if !self.takes(how) => Err(shutting_down()),
            Some(Ok(meant)) => Ok(meant.clone()),
            Some(Err(RefusedMethod(refused))) => Err(refused.1.clone()),
            None => Err(Status::new(Code::Internal, "its method was not named")),
        };
        Some((Some(ticket), judged))
    }

    /// A request, and what it may ask.
    #[inline]
    pub(super) fn handled(
        &mut self,
        key: RequestKey,
    ) -> Option<(&mut HandledRequest, RequestContext<'_>)> {
        let handler = self.handlers.get_mut(key)?;
        let context = RequestContext {
            node: self.node,
            address: self.address.as_ref(),
            raw: self.raw,
            epoch: self.epoch,
            served: (handler.served).and_then(|served| self.methods.definition(served)),
        };
        Some((handler, context))
    }

    /// Whether the cluster has sealed a request: only then it keeps its seal.
    #[inline]
    fn check_seal(&self, from: ConnId, request: &mut Request) -> Result<(), SealError> {
        match &request.options {
            Some(options) if options.seal.is_some() => self.verify_seal(from, request),
            _ => Err(SealError::Missing),
        }
    }

    #[cold]
    fn verify_seal(&self, from: ConnId, request: &mut Request) -> Result<(), SealError> {
        let conn = self.conns.get(from);
        let address = conn.and_then(|conn| conn.hello()?.address.as_ref());
        let method = self.name_of(from, request.method);
        let verified = verify(
            &self.config.cluster_keys,
            request,
            method,
            self.node,
            address,
        );
        if let (Err(_), Some(options)) = (&verified, &mut request.options) {
            options.seal = None;
        }
        verified
    }

    /// A request that must not be taken is answered over its own connection: the address to which it wants its answers may be a
    /// stranger's.
    #[cold]
    fn refuse_unsealed(&mut self, from: ConnId, request: &mut Request, error: SealError) {
        self.metrics.unsealed_refused += 1;
        let status = self.own(Status::new(Code::PermissionDenied, error.to_string()));
        self.answer_stranger(from, request, &status);
    }

    /// A message above the limit came: a request gets a status, of an answer the application gets one in its place.
    #[cold]
    pub(super) fn handle_too_large(&mut self, from: ConnId, message: &mut Message, size: u64) {
        let status = |what: &str| self.own(self.config.limits.too_large(what, size));
        match message {
            Message::Request(request) => {
                let status = status("a request");
                if let Some(number) = request.body() {
                    self.stop_unread(from, number);
                }
                self.answer_stranger(from, request, &status);
            }
            Message::Response(response) => {
                let payload = status("an answer").to_payload();
                let response = Response {
                    status: true,
                    payload,
                    ..response.clone()
                };
                self.handle_answer(Some(from), &mut Message::Response(response));
            }
            _ => {}
        }
    }

    /// The name of what this one says next is to be called or handed on for a request, if that has a durable id: it follows from that,
    /// and from how much the same one has said before. A delegation that is given none gets its handler's next when it is sent.
    pub fn name_next(&mut self, key: RequestKey, author: Author) -> Option<DurableId> {
        self.handlers.get_mut(key)?.name_next(author)
    }

    // Running.

    /// What a request asks for ([`Output::Run`]). The shell runs a handler for it, with the verbs below, and says when it has
    /// [`returned`](Self::returned).
    ///
    /// # Errors
    ///
    /// How it has ended meanwhile.
    pub fn take_request(&mut self, key: RequestKey) -> Result<IncomingRequest, Box<Status>> {
        let taken = self.take_turn(key);
        if taken.is_err() {
            self.abort_calls_within(key);
        }
        taken.map_err(Box::new)
    }

    fn take_turn(&mut self, key: RequestKey) -> Result<IncomingRequest, Status> {
        if self.was_stopped(key) {
            self.fail(key, &stopped());
            return Err(stopped());
        }
        let handler = self.handlers.get(key).ok_or_else(stopped)?;
        if handler.state == HandlerState::Late && !self.starts_late(key) {
            return Err(too_late());
        }
        let raw = self.raw;
        let handler = self.handlers.get_mut(key).ok_or_else(stopped)?;
        let method = handler.served.ok_or_else(stopped)?;
        (handler.state, handler.began) = (HandlerState::Runs, Some(raw));
        Ok(IncomingRequest {
            method,
            payload: std::mem::take(&mut handler.payload),
            body: handler.body,
        })
    }

    /// A handler has returned, with a status if it failed. Its request ends, unless it was put aside.
    pub fn returned(&mut self, key: RequestKey, result: Result<(), Status>) -> Returned {
        let state = match self.is_stopping(key) {
            true => None,
            false => self.handlers.get(key).map(|handler| handler.state),
        };
        match (state, result) {
            (Some(HandlerState::Aside), Ok(())) => Returned::Heard,
            (Some(_), Ok(())) => {
                self.finish(key);
                Returned::Heard
            }
            (Some(_), Err(status)) => self.end_with(key, &status),
            (None, Err(status)) if status.code() != Code::Cancelled => {
                self.metrics.late_errors += 1;
                Returned::Late
            }
            (None, _) => Returned::Stopped,
        }
    }

    /// A handler has panicked, as this text says: the status with which it is to [return](Self::returned).
    pub fn panicked(&mut self, text: String) -> Status {
        self.metrics.panics += 1;
        Status::new(Code::Panicked, text)
    }

    /// A request waits for something of the application's: it is put aside until it is [resumed](Self::resume), aborted, or has no
    /// time left. What was held back leaves.
    pub fn put_aside(&mut self, key: RequestKey) {
        if self.is_stopping(key) {
            return;
        }
        self.flush_held(key);
        let state = self.handlers.get(key).map(|handler| handler.state);
        if matches!(state, None | Some(HandlerState::Queued(_))) {
            return; // it waits for another turn
        }
        self.enter(key, HandlerState::Aside);
        if self.was_stopped(key) {
            self.stop_aborted(key, stopped());
        }
    }

    /// Whether a request's call was aborted: of one that was not put aside then nobody was told.
    fn was_stopped(&self, key: RequestKey) -> bool {
        let handler = self.handlers.get(key);
        let goes_on = handler.filter(|handler| !handler.has_ended());
        let ticket = goes_on.and_then(|handler| handler.ticket);
        ticket.is_some_and(|ticket| !self.records.may_delegate(ticket))
    }

    /// A request that was put aside goes on; `false` if it has ended. Whoever is done with it says that it has
    /// [`returned`](Self::returned), or puts it aside again.
    pub fn resume(&mut self, key: RequestKey) -> bool {
        let handler = self.handlers.get_mut(key);
        let goes_on = |handler: &&mut HandledRequest| {
            handler.state == HandlerState::Aside && handler.stopping.is_none()
        };
        let Some(handler) = handler.filter(goes_on) else {
            return false;
        };
        handler.state = HandlerState::Resumed;
        if let Some(ticket) = handler.ticket {
            self.records.progressed(ticket, self.now);
        }
        true
    }

    /// A handler says that it makes progress.
    pub fn progress(&mut self, key: RequestKey) {
        if let Some(ticket) = self.handlers.get(key).and_then(|handler| handler.ticket) {
            self.records.progressed(ticket, self.now);
        }
    }

    /// Tells a part of the time apart that a request takes, in the trace of its call if that is traced: at most
    /// [`MAX_TRACE_PARTS`](crate::wire::MAX_TRACE_PARTS) names, times of the same name added up, before its last message leaves.
    pub fn note_time(&mut self, key: RequestKey, name: &str, took: Duration) {
        if let Some(handler) = self.handlers.get_mut(key) {
            handler.note_time(name, took);
        }
    }

    /// A request that is handled, or waits for it.
    pub fn request(&self, key: RequestKey) -> Option<&HandledRequest> {
        self.handlers.get(key)
    }

    /// Who sent a request; `None` if its connection has ended meanwhile.
    pub fn delegator(&self, key: RequestKey) -> Option<NodeId> {
        self.conns.get(self.handlers.get(key)?.from)?.node()
    }

    /// How much time a request has left.
    pub fn remaining(&self, key: RequestKey) -> Duration {
        let handler = self.handlers.get(key);
        handler.map_or(Duration::ZERO, |handler| {
            handler.deadline.saturating_sub(self.raw)
        })
    }

    /// A request has no more time than this from now on, nor has what it leads to; it never has more than before.
    pub fn shorten_deadline(&mut self, key: RequestKey, left: Duration) {
        let until = self.raw.saturating_add(left);
        let Some(handler) = self.handlers.get_mut(key) else {
            return;
        };
        if until < handler.deadline {
            let before = (handler.given_up_at(), Alarm::Request(key));
            handler.deadline = until;
            if handler.is_listed() {
                self.alarms.remove(&before);
                let alarm = (handler.given_up_at(), Alarm::Request(key));
                self.alarms.insert(alarm);
            }
        }
    }

    /// What a request leads to has these pairs in place of those that it came with.
    pub fn set_inherited(&mut self, key: RequestKey, metadata: Metadata) {
        if let Some(handler) = self.handlers.get_mut(key) {
            handler.options.get_or_insert_default().metadata = metadata;
        }
    }

    /// From now on the places of a request's messages are told: [`Output::Placed`].
    pub fn report_places(&mut self, key: RequestKey) {
        if let Some(handler) = self.handlers.get_mut(key) {
            handler.reported = true;
        }
    }

    /// Says how many delegations of a request will come: each gets an equal part of its budgets, if these are stated.
    pub fn share_delegations(&mut self, key: RequestKey, times: u32) {
        let handler = self.handlers.get_mut(key);
        if let Some(allowance) = handler.and_then(|handler| handler.server.allowance_mut()) {
            allowance.announce(times);
        }
    }

    /// A request has ended: its key means nothing any more.
    pub(super) fn release(&mut self, key: RequestKey) {
        if !self.going_on.is_empty() {
            self.leave_calls(key);
        }
        let Some(handler) = self.handlers.get(key) else {
            return;
        };
        let is_listed = handler.is_listed();
        if let Some(body) = handler.body.filter(|_| !handler.has_begun()) {
            self.drop_body(body);
        }
        if is_listed {
            self.leave_line(key);
        }
        let Some((handler, waiting)) = self.handlers.remove(key) else {
            return;
        };
        // Who waits for that waits for nothing.
        for (lane, waiting) in [Lane::Answers, Lane::Requests].into_iter().zip(waiting) {
            if waiting > 0 && handler.has_begun() {
                self.outputs.push_back(Output::Room(key, lane));
            }
        }
        if let Some(turn) = handler.room_turn {
            self.queue_room.leave_line(turn);
            self.outputs.push_back(Output::Space(key));
        }
        if let Some(payload) = handler.owed {
            self.grant_request(handler.from, payload);
        }
        if handler.place == Place::Request {
            self.free_place(handler.owner());
        }
    }

    pub(super) fn request_deadline(&mut self, key: RequestKey) {
        if !self.is_stopping(key) {
            self.stop(key, too_late());
        }
    }

    /// A request that waits ends here and now, and its initiator is told.
    pub(super) fn stop(&mut self, key: RequestKey, status: Status) {
        match self.handlers.get(key) {
            Some(handler) if !handler.has_ended() => {
                let known = handler.is_worked_for().then_some(handler.body);
                self.begin_grace(key);
                self.end_with(key, &status);
                if let Some(body) = known {
                    self.tell_stopped(key, body, status);
                }
            }
            _ => self.stop_silently(key, status), // its handler goes on, that is all
        }
    }

    /// The same without a word to its initiator.
    pub(super) fn stop_silently(&mut self, key: RequestKey, status: Status) {
        let Some(handler) = self.handlers.get(key) else {
            return;
        };
        let known = handler.is_worked_for().then_some(handler.body);
        self.begin_grace(key);
        self.release(key);
        if let Some(body) = known {
            self.tell_stopped(key, body, status);
        }
    }

    /// Whoever works for a request, or reads what follows it, learns that it was stopped.
    pub(super) fn tell_stopped(&mut self, key: RequestKey, body: Option<InBody>, status: Status) {
        let status = Box::new(status);
        self.outputs.push_back(Output::Stopped(key, status));
        if let Some(body) = body {
            self.give_body_up(body);
        }
        self.break_bodies_of_request(key);
        self.abort_calls_within(key);
    }
}

#[cold]
fn stopped() -> Status {
    Status::new(Code::Cancelled, StopReason::Aborted.to_string())
}

#[cold]
pub(super) fn too_late() -> Status {
    let why = "the deadline passed before the request was done";
    Status::new(Code::DeadlineExceeded, why)
}
