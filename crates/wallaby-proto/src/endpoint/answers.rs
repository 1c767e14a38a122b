//! What arrives for calls: answers, and the credit that they cost.

use std::sync::Arc;

use super::Endpoint;
use super::conn::ConnId;
use super::event::{Answer, CallKey, Output};
use super::probe::Probe;
use crate::call::initiator::{Arrival, Violation};
use crate::call::ungranted::AnswerLimits;
use crate::connection::{ConnectionError, MAX_CALLS};
use crate::detach::{FEW, detach};
use crate::error::Failure;
use crate::wire::{Message, Response};
use crate::{Code, Path, RequestId};

impl<P: Probe> Endpoint<P> {
    /// An answer over a session is out of the way. What had come of a call that has ended was granted then.
    pub(super) fn credit(&mut self, from: ConnId, sequence: u64, size: usize) {
        if !self.is_over(sequence) {
            self.credit_now(from, sequence, size);
        }
    }

    fn credit_now(&mut self, from: ConnId, sequence: u64, size: usize) {
        let worth = self.config.limits.call / 4;
        let Some(call) = self.calls.get_mut(sequence) else {
            return;
        };
        let id = call.initiator.call();
        let granted = call.credit.take(from.number(), size as u64, worth);
        if let Some((responses, bytes)) = granted
            && let Some(carrier) = self.carrier(from)
        {
            carrier.grant_call(id, responses, bytes);
        }
    }

    // What arrives.

    /// A response, an end, a trace report or a pong arrived, over a session or from this endpoint itself.
    pub(super) fn handle_answer(&mut self, from: Option<ConnId>, message: &mut Message) {
        let id = message.call();
        if id.initiator != self.node {
            return self.relay(from, message);
        }
        if let Message::Pong(pong) = message {
            return self.handle_pong(from, pong);
        }
        let shown = message.token();
        let Some(call) = self.calls.get_mut(id.sequence) else {
            self.metrics.late_dropped += 1;
            return;
        };
        let path = match &*message {
            Message::Response(response) => response.request.path,
            Message::End(end) => end.request.path,
            _ => Path::ROOT,
        };
        if !call.may_answer(shown, from, &path) {
            self.metrics.forged_dropped += 1;
            return;
        }
        // What shows no token came by an initial request's own connection.
        if shown.is_some()
            && let Some(peer) = from.and_then(|from| self.conns.get_mut(from))
        {
            peer.carried_calls = true;
        }
        if call.ended {
            self.metrics.late_dropped += 1;
            return self.handle_late(from, message);
        }
        // A server that gave up at the deadline may be faster than the timer here; this clock decides (PROTOCOL-NOTES 38).
        if matches!(message, Message::Response(response) if response.status)
            && self.raw >= call.deadline
        {
            return self.call_deadline(id.sequence);
        }
        let request = match message {
            Message::Response(response) => response.request,
            Message::End(end) => end.request,
            _ => RequestId::FIRST,
        };
        let handled = match message {
            Message::Response(response) => self.handle_response(from, response),
            Message::End(end) => call.initiator.handle_end(end).map_err(Failure::from),
            Message::Trace(report) => {
                call.initiator.handle_trace(&report.records);
                Ok(())
            }
            _ => Ok(()),
        };
        let now = self.now;
        let Some(call) = self.calls.get_mut(id.sequence) else {
            return;
        };
        match handled {
            Err(failure) => {
                self.end_call(id.sequence, Err(failure));
                if let Some(from) = self.overdrawn.take() {
                    let what = "answers of a call";
                    self.break_stream(from, ConnectionError::Overdrawn { what });
                }
            }
            Ok(()) if call.initiator.is_complete() => self.end_call(id.sequence, Ok(())),
            Ok(()) => {
                call.initiator.note_heard(&request.path, now);
                if call.watch.is_some() {
                    self.note_heard(id.sequence, request, from, shown);
                }
            }
        }
    }

    fn handle_response(
        &mut self,
        from: Option<ConnId>,
        response: &mut Response,
    ) -> Result<(), Failure> {
        let sequence = response.call.sequence;
        let Some(call) = self.calls.get_mut(sequence) else {
            return Ok(());
        };
        match call.initiator.handle_response(response)? {
            Arrival::Duplicate | Arrival::Contradiction => {
                self.metrics.duplicates_dropped += 1;
                // One that was sent again has cost the call's credit like any other.
                if let Some(from) = from {
                    self.note_arrival(from, sequence, response.payload.len())?;
                    self.credit(from, sequence, response.payload.len());
                }
                Ok(())
            }
            Arrival::New => {
                self.metrics.responses_received += 1;
                self.metrics.statuses_received += u64::from(response.status);
                if let Some(traced) = &mut call.traced {
                    let after = self.raw.saturating_sub(traced.begun);
                    traced.answered.insert(response.request.path, after);
                }
                let method = match response.status {
                    true => {
                        let code = response.payload.first().copied();
                        let code = code.map_or(Code::Unknown, Code::from_number);
                        call.status.get_or_insert(code);
                        call.method_of(response.request)
                    }
                    false => None,
                };
                let root = call.root_of(response.request).filter(|_| response.status);
                let root = root.map(|root| Arc::clone(&root.method));
                let options = response.options.as_ref().filter(|_| response.status);
                let not_executed = options.is_some_and(|options| options.undelivered);
                let fail_fast = call
                    .options
                    .as_ref()
                    .is_some_and(|options| options.fail_fast);
                // The last one costs nothing any more.
                if let Some(from) = from
                    && !call.initiator.is_complete()
                {
                    self.note_arrival(from, sequence, response.payload.len())?;
                }
                let mut payload = std::mem::take(&mut response.payload);
                if self.untaken >= FEW {
                    detach(&mut payload);
                }
                let answer = Answer {
                    call: CallKey(sequence),
                    request: response.request,
                    index: response.index,
                    status: response.status,
                    payload,
                    from,
                    method,
                    root,
                    loss: None,
                    not_executed,
                };
                self.keep_answer(sequence, answer);
                if response.status && fail_fast {
                    Err(Failure::FailedFast)
                } else {
                    Ok(())
                }
            }
        }
    }

    /// An answer waits for the application.
    pub(super) fn keep_answer(&mut self, sequence: u64, answer: Answer) {
        if let Some(call) = self.calls.get_mut(sequence).filter(|call| !call.taken) {
            match &mut call.order {
                None => {
                    call.answers.push(answer);
                    self.untaken += 1;
                }
                Some(order) if answer.loss.is_some() => {
                    let held = order.give_up(answer.request.path);
                    self.untaken += 1 + held.len();
                    call.answers.push(answer);
                    held.into_iter().for_each(|held| call.answers.push(held));
                }
                Some(order) => {
                    let path = answer.request.path;
                    let mut next = order.arrive(answer);
                    if next.is_none() {
                        return;
                    }
                    while let Some(answer) = next {
                        call.answers.push(answer);
                        self.untaken += 1;
                        next = order.next(path);
                    }
                }
            }
            if !std::mem::replace(&mut call.told, true) {
                self.outputs.push_back(Output::Call(CallKey(sequence)));
            }
        }
    }

    /// An answer came that costs the call's credit.
    ///
    /// # Errors
    ///
    /// If it was not granted. Its connection is closed then, unless the sender may have forgotten what it had sent before.
    fn note_arrival(&mut self, from: ConnId, sequence: u64, size: usize) -> Result<(), Failure> {
        let limits = AnswerLimits {
            call: self.config.limits.call.max(1),
            message: self.config.limits.message,
        };
        let Some(call) = self.calls.get_mut(sequence) else {
            return Ok(());
        };
        let (conns, sockets, roots) = (&self.conns, &self.sockets, &call.roots);
        let requests = || roots.iter().count() as u64;
        let messages = || {
            let carrier = conns.get(from).and_then(|peer| peer.link.peek(sockets));
            carrier.map_or(0, |carrier| carrier.counters().messages_received)
        };
        let connection = from.number();
        let is_open = |number| conns.get(ConnId::from_number(number)).is_some();
        let arrived =
            (call.credit).arrive(connection, size as u64, limits, requests, messages, is_open);
        let Err(meanwhile) = arrived else {
            return Ok(());
        };
        if meanwhile < MAX_CALLS as u64 {
            self.overdrawn = Some(from);
        }
        Err(Failure::Violation(Violation::Overdrawn))
    }

    /// The call has ended, but what it still hears tells what has stopped.
    #[cold]
    fn handle_late(&mut self, from: Option<ConnId>, message: &Message) {
        let id = message.call();
        let Some(call) = self.calls.get_mut(id.sequence) else {
            return;
        };
        let request = match message {
            Message::Response(response) => {
                let _ = call.initiator.handle_response(response);
                self.credit_late(from, response);
                response.request
            }
            Message::End(end) => {
                let _ = call.initiator.handle_end(end);
                end.request
            }
            _ => return,
        };
        self.note_heard(id.sequence, request, from, message.token());
    }

    /// Servers that pass answers on keep those for which there is no credit.
    fn credit_late(&mut self, from: Option<ConnId>, response: &Response) {
        if let Some(from) = from {
            let (sequence, size) = (response.call.sequence, response.payload.len());
            let _ = self.note_arrival(from, sequence, size);
            self.overdrawn = None; // it may not know yet that the call is over
            self.credit_now(from, sequence, size);
        }
    }

    /// Nobody takes what has come of a call.
    pub(super) fn credit_all(&mut self, sequence: u64) {
        let Some(call) = self.calls.get_mut(sequence) else {
            return;
        };
        let id = call.initiator.call();
        let granted: Vec<(u64, u64)> = call.credit.take_all().collect();
        for (connection, bytes) in granted {
            if let Some(carrier) = self.carrier(ConnId::from_number(connection)) {
                carrier.grant_call(id, 0, bytes);
            }
        }
    }
}
