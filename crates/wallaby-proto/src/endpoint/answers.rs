//! What arrives for calls: answers, and the credit that they cost.

use std::sync::Arc;

use super::Endpoint;
use super::client::{CallContext, ClientAction, ClientCall, InitialRequest};
use super::event::{IncomingAnswer, ReportedEnd};
use super::probe::Probe;
use crate::call::initiator::{Arrival, Violation};
use crate::call::ungranted::AnswerLimits;
use crate::call::watch::Source;
use crate::connection::{ConnectionError, MAX_CALLS};
use crate::detach::{FEW, detach};
use crate::error::Failure;
use crate::numbers::MESSAGE_COST;
use crate::status::turns_away;
use crate::wire::{Message, Response};
use crate::{Code, ConnId, Path, RequestId, Token};

/// What an answer was for its call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Received {
    /// What a response was.
    pub arrival: Option<Arrival>,
    /// Its connection has brought more answers than were granted, which the sender knew: it has broken the protocol.
    pub overdrawn: bool,
}

impl ClientCall {
    /// Whether who sent an answer shows that it may: by the call's token, or by the connection of one of its requests.
    pub(super) fn may_answer(
        &self,
        shown: Option<Token>,
        from: Option<ConnId>,
        path: &Path,
    ) -> bool {
        match (shown, from) {
            (Some(shown), _) => shown == self.initiator.token(),
            (None, Some(from)) => {
                // The initial request at or above this place is the likeliest: a call may have thousands.
                let likely = path.initial_index();
                let likely = likely.and_then(|index| self.roots.get(index as usize));
                let is_over = |root: &InitialRequest| root.conn == Some(from);
                likely.is_some_and(is_over)
                    || self.roots.iter().any(is_over)
                    || self.was_sent_over(from)
            }
            (None, None) => false,
        }
    }

    /// Whether an earlier attempt of a request went out over this connection.
    #[cold]
    fn was_sent_over(&self, conn: ConnId) -> bool {
        let resending = self.resending.as_ref();
        resending.is_some_and(|before| before.earlier.contains(&conn))
    }

    /// A response, an end or a trace report arrived, whose sender may send it.
    pub fn handle_answer(
        &mut self,
        from: Option<ConnId>,
        message: &mut Message,
        context: &impl CallContext,
    ) -> Received {
        let mut received = Received::default();
        if self.has_ended() {
            self.handle_late(from, message, context);
            return received;
        }
        // A server that gave up at the deadline may be faster than the timer here; this clock decides (docs/protocol.md, rule 38).
        if matches!(message, Message::Response(response) if response.status)
            && context.raw() >= self.deadline
        {
            self.handle_deadline(context);
            return received;
        }
        let (request, is_shown) = (request_of(message), message.token().is_some());
        let handled = match message {
            Message::Response(response) => {
                self.handle_response(from, response, &mut received, context)
            }
            Message::End(end) => self.initiator.handle_end(end),
            Message::Trace(report) => {
                self.initiator.handle_trace(&report.records);
                Ok(())
            }
            _ => Ok(()),
        };
        match handled {
            Err(violation) => self.violated(request, violation, context),
            Ok(()) if self.has_ended() => {}
            Ok(()) if self.initiator.is_complete() => self.end(Ok(())),
            Ok(()) => {
                self.initiator.note_heard(&request.path, context.now());
                self.heard(request, (from, is_shown), context);
            }
        }
        received
    }

    fn handle_response(
        &mut self,
        from: Option<ConnId>,
        response: &mut Response,
        received: &mut Received,
        context: &impl CallContext,
    ) -> Result<(), Violation> {
        let size = response.payload.len();
        let arrival = self.initiator.handle_response(response)?;
        received.arrival = Some(arrival);
        // The last one costs nothing any more.
        if let Some(from) = from
            && (arrival != Arrival::New || !self.initiator.is_complete())
        {
            self.note_arrival(from, size, context)
                .map_err(|overdrawn| {
                    received.overdrawn = overdrawn;
                    Violation::Overdrawn
                })?;
        }
        if arrival != Arrival::New {
            // One that was sent again has cost the call's credit, or its endpoint's room, like any other.
            match from {
                Some(from) => self.grant(from, size, context.config().limits.call),
                None => self.own = self.own.saturating_sub(cost_of(size)),
            }
            return Ok(());
        }
        if let Some(traced) = &mut self.traced {
            let after = context.raw().saturating_sub(traced.begun);
            traced.answered.insert(response.request.path, after);
        }
        let mut answer = IncomingAnswer {
            call: self.key(),
            request: response.request,
            index: response.index,
            status: response.status,
            payload: std::mem::take(&mut response.payload),
            from,
            method: None,
            root: None,
            loss: None,
            not_executed: false,
        };
        if response.status {
            self.explain(&mut answer, response);
        }
        self.keep_answer(answer);
        let fails_fast = (self.options.as_ref()).is_some_and(|options| options.fail_fast);
        if response.status && fails_fast {
            self.end(Err(Failure::FailedFast));
        }
        Ok(())
    }

    /// Whose status it is.
    #[cold]
    fn explain(&mut self, answer: &mut IncomingAnswer, response: &Response) {
        let code = answer.payload.first().copied();
        let code = code.map_or(Code::Unknown, Code::from_number);
        self.status.get_or_insert(code);
        let root = self.root_of(answer.request);
        answer.root = root.map(|root| Arc::clone(&root.method));
        let options = response.options.as_ref();
        let told = || options.and_then(|options| options.method.clone());
        answer.method = self.method_of(answer.request).or_else(told);
        answer.not_executed = options.is_some_and(|options| options.undelivered);
        self.turned_away |= turns_away(answer.request, answer.not_executed);
    }

    /// How it has ended, for who waits for no more than that.
    pub(super) fn reported_end(&self) -> Option<ReportedEnd> {
        Some(ReportedEnd {
            outcome: self.outcome.clone()?,
            status: self.status,
            turned_away: self.turned_away,
        })
    }

    /// The call has ended, but what it still hears tells what has stopped.
    #[cold]
    fn handle_late(&mut self, from: Option<ConnId>, message: &Message, context: &impl CallContext) {
        match message {
            Message::Response(response) => {
                let _ = self.initiator.handle_response(response);
                // Servers that pass answers on keep those for which there is no credit.
                if let Some(from) = from {
                    let size = response.payload.len();
                    let _ = self.note_arrival(from, size, context); // it may not know yet that the call is over
                    self.grant(from, size, context.config().limits.call);
                }
            }
            Message::End(end) => drop(self.initiator.handle_end(end)),
            _ => return,
        }
        let request = request_of(message);
        self.heard(request, (from, message.token().is_some()), context);
    }

    /// An answer was shown to the initiator.
    fn heard(
        &mut self,
        request: RequestId,
        from: (Option<ConnId>, bool),
        context: &impl CallContext,
    ) {
        if let Some(watch) = self.initiator.watch_mut() {
            let source = source(from, context);
            watch.handle_heard(request, &source, context.now());
        }
    }

    /// An answer waits for the application.
    pub(super) fn keep_answer(&mut self, answer: IncomingAnswer) {
        let before = self.answers.len();
        match &mut self.order {
            None => self.answers.push(answer),
            Some(order) if answer.loss.is_some() => {
                let held = order.give_up(answer.request.path);
                self.answers.push(answer);
                held.into_iter().for_each(|held| self.answers.push(held));
            }
            Some(order) => {
                let path = answer.request.path;
                let mut next = order.arrive(answer);
                while let Some(answer) = next {
                    self.answers.push(answer);
                    next = order.next(path);
                }
            }
        }
        self.untold += self.answers.len() - before;
    }

    /// The next answer. What is taken makes room for more: a connection is granted no less than a quarter of `window` at a time.
    #[inline]
    pub fn next_answer(&mut self, window: u64) -> Option<IncomingAnswer> {
        let answer = self.answers.pop()?;
        match answer.from {
            // What had come of a call that has ended was granted then.
            Some(from) if !self.has_ended() => self.grant(from, answer.payload.len(), window),
            Some(_) => {}
            None => self.own = self.own.saturating_sub(cost_of(answer.payload.len())),
        }
        Some(answer)
    }

    /// Nobody takes its answers: how many there were that were told of.
    pub(super) fn forget_answers(&mut self) -> usize {
        let answers = std::mem::take(&mut self.answers);
        answers.len() - std::mem::take(&mut self.untold)
    }

    // What answers cost.

    /// An answer came that costs the call's credit.
    ///
    /// # Errors
    ///
    /// If it was not granted. Whether its connection is to blame, since the sender cannot have forgotten what it had sent before.
    fn note_arrival(
        &mut self,
        from: ConnId,
        size: usize,
        context: &impl CallContext,
    ) -> Result<(), bool> {
        let limits = &context.config().limits;
        let limits = AnswerLimits {
            call: limits.call.max(1),
            message: limits.message,
        };
        let roots = &self.roots;
        let requests = || roots.iter().count() as u64;
        let messages = || context.messages_received(from);
        let is_open = |number| context.is_open(ConnId::from_number(number));
        let arrived = self.credit.arrive(
            from.number(),
            size as u64,
            limits,
            requests,
            messages,
            is_open,
        );
        arrived.map_err(|meanwhile| meanwhile < MAX_CALLS as u64)
    }

    /// An answer over a connection is out of the way.
    fn grant(&mut self, from: ConnId, size: usize, window: u64) {
        let granted = self.credit.take(from.number(), size as u64, window / 4);
        if let Some((answers, bytes)) = granted {
            self.push(ClientAction::Grant(from, answers, bytes));
        }
    }

    /// Nobody takes what has come of it.
    pub(super) fn grant_all(&mut self) {
        let granted: Vec<(u64, u64)> = self.credit.take_all().collect();
        for (connection, bytes) in granted {
            let conn = ConnId::from_number(connection);
            self.push(ClientAction::Grant(conn, 0, bytes));
        }
    }
}

/// The request that sent an answer; a trace report is about many.
fn request_of(answer: &Message) -> RequestId {
    match answer {
        Message::Response(response) => response.request,
        Message::End(end) => end.request,
        _ => RequestId::FIRST,
    }
}

/// Who sent a message, over this connection: it may have been relayed if it shows the call's token.
pub(super) fn source(
    (from, is_shown): (Option<ConnId>, bool),
    context: &impl CallContext,
) -> Source {
    match from {
        Some(_) if is_shown => Source::default(),
        from => context.source(from),
    }
}

pub(super) fn cost_of(payload: usize) -> u64 {
    payload as u64 + MESSAGE_COST
}

impl<P: Probe> Endpoint<P> {
    /// A response, an end, a trace report or a pong arrived, over a connection or from this endpoint itself.
    pub(super) fn handle_answer(&mut self, from: Option<ConnId>, message: &mut Message) {
        let id = message.call();
        if id.initiator != self.node {
            return self.relay(from, message);
        }
        if let Message::Pong(pong) = message {
            return self.handle_pong(from, pong);
        }
        let shown = message.token();
        let Some(call) = self.calls.get(id.sequence).map(|call| &call.client) else {
            self.metrics.late_dropped += 1;
            return self.credit_forgotten(from, message);
        };
        if !call.may_answer(shown, from, &request_of(message).path) {
            self.metrics.forged_dropped += 1;
            return;
        }
        self.metrics.late_dropped += u64::from(call.has_ended());
        // What shows no token came by an initial request's own connection.
        if shown.is_some() {
            self.note_call(from);
        }
        if let Message::Response(response) = message
            && self.untaken >= FEW
        {
            detach(&mut response.payload);
        }
        let Some((call, context)) = self.call(id.sequence) else {
            return;
        };
        let received = call.handle_answer(from, message, &context);
        match received.arrival {
            Some(Arrival::New) => {
                let is_status = matches!(message, Message::Response(response) if response.status);
                self.metrics.responses_received += 1;
                self.metrics.statuses_received += u64::from(is_status);
            }
            Some(_) => {
                self.metrics.duplicates_dropped += 1;
                self.note_space();
            }
            None => {}
        }
        self.follow(id.sequence);
        if let Some(from) = from.filter(|_| received.overdrawn) {
            let what = "answers of a call";
            self.break_stream(from, ConnectionError::Overdrawn { what });
        }
    }

    /// An answer to a call that is over and forgotten: its server may send what is left of it, and so comes to rest.
    #[cold]
    fn credit_forgotten(&mut self, from: Option<ConnId>, message: &Message) {
        if let Message::Response(response) = message
            && let Some(carrier) = from.and_then(|from| self.carrier(from))
        {
            carrier.grant_call(response.call, 1, response.payload.len() as u64);
        }
    }

    /// Whether a call of this endpoint takes one more answer of its own now, as it would be credited to another one.
    pub(super) fn takes_own(&self, sequence: u64) -> bool {
        let limit = self.config.limits.call;
        self.is_over(sequence)
            || (self.calls.get(sequence)).is_none_or(|call| call.client.own <= limit)
    }

    /// An answer of this endpoint to its own call.
    pub(super) fn note_own(&mut self, message: &Message) {
        if let Message::Response(response) = message
            && let Some(call) = self.calls.get_mut(response.call.sequence)
        {
            call.client.own += cost_of(response.payload.len());
        }
    }
}
