//! The initiator's side of a node: its calls, and what their applications see.

use std::collections::{BTreeMap, BTreeSet};

use wallaby_proto::call::initiator::{Arrival, Initiator, Violation};
use wallaby_proto::call::records::{Sent, Session, Ticket};
use wallaby_proto::call::server::undelivered;
use wallaby_proto::call::taken::{AnswerLimits, Answers};
use wallaby_proto::call::watch::{FailureKind, Location, Watch};
use wallaby_proto::wire::{
    Budgets, Child, Message, MethodRef, Options, ReplyTo, Request, Response,
};
use wallaby_proto::{CallId, Code, Facts, RequestId, Status, Token};

use super::again::Again;
use super::liveness::{location, ping_settings};
use super::peers::{Destination, Parcel, session, socket};
use super::{Node, Short, address};
use crate::broken::Broken;
use crate::context::{Context, note};
use crate::coverage::Point;
use crate::network::Socket;
use crate::oracle::{Outcome, Rule};
use crate::queue::Timer;
use crate::workload::Answer;

/// One call, at its initiator.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) index: usize,
    pub(super) initiator: Initiator,
    /// What its requests show.
    token: Token,
    /// How it ended, once that is settled; what still runs is being stopped then.
    outcome: Option<Outcome>,
    /// Where its initial requests went.
    pub(super) servers: Vec<Location>,
    pub(super) watch: Option<Watch>,
    /// What a call that only counts would know.
    counts: Counts,
    /// Initial requests that no connection has taken yet.
    pub(super) unsent: BTreeSet<RequestId>,
    /// Where those stand that have been taken: by connection and mark.
    pub(super) writing: Vec<(RequestId, Socket, u64)>,
    /// Answers that the application has not taken, by the connection that credits them: how many, and their bytes.
    untaken: BTreeMap<Socket, (u64, u64)>,
    /// The same as the protocol counts it.
    credit: Answers,
    /// A take is due.
    taking: bool,
    /// What may be sent again.
    pub(super) again: Again,
}

/// Completion by counts: how many branches and responses are expected, and how many are there.
#[derive(Debug, Default)]
struct Counts {
    branches: i64,
    reported: i64,
    expected: i64,
    received: i64,
    /// Manifests that came a second time and were counted again.
    again: i64,
}

impl Counts {
    fn new(roots: usize) -> Self {
        Self {
            branches: roots as i64,
            ..Self::default()
        }
    }

    fn add(&mut self, message: &Message, result: &Result<Arrival, Violation>) {
        let manifest = match message {
            Message::Response(response) => {
                if matches!(result, Ok(Arrival::New)) {
                    self.received += 1;
                } else {
                    self.again += i64::from(response.last || response.manifest.is_some());
                    return;
                }
                if response.last {
                    self.report(Facts {
                        requests: 0,
                        responses: response.index + 1,
                    });
                }
                response.manifest
            }
            Message::End(end) => {
                self.report(end.facts);
                end.manifest
            }
            _ => None,
        };
        if let Some(manifest) = manifest {
            self.report(manifest.facts);
        }
    }

    fn report(&mut self, facts: Facts) {
        self.reported += 1;
        self.branches += i64::from(facts.requests);
        self.expected += i64::from(facts.responses);
    }

    /// Whether all seems to be there.
    fn are_even(&self, again: bool) -> bool {
        let again = if again { self.again } else { 0 };
        again <= self.reported
            && self.reported + again == self.branches
            && self.received == self.expected
    }
}

impl Node {
    pub(super) fn begin_call(&mut self, index: usize, context: &mut Context<'_>) {
        let plan = &context.plan.calls[index];
        self.last_sequence += 1;
        let sequence = self.last_sequence;
        let call = CallId {
            initiator: self.id,
            sequence,
        };
        let token = Token::derive(self.secret, sequence);
        let mut initiator = Initiator::new(call, token, Budgets::default());
        let mut roots = Vec::new();
        let mut requests = Vec::new();
        for root in &plan.roots {
            let Ok(id) = initiator.send() else {
                unreachable!("a few requests are within any budget")
            };
            roots.push((id, root.task.number, root.server));
            requests.push((root.server, id, root.task.to_payload()));
        }
        initiator.close();
        note!(context, self.index, "begins {call}, the plan's c{index}");
        if plan.retries > 0 {
            context.oracle.reruns.begin(call, plan);
        } else {
            let now = context.queue.now();
            context.oracle.begin(
                now,
                (call, token),
                (index, self.index),
                &roots,
                context.plan,
            );
        }
        let call_state = Call {
            index,
            initiator,
            token,
            outcome: None,
            servers: plan
                .roots
                .iter()
                .map(|root| location(context.plan, root.server))
                .collect(),
            watch: None,
            counts: Counts::new(plan.roots.len()),
            unsent: roots.iter().map(|(id, ..)| *id).collect(),
            writing: Vec::new(),
            untaken: BTreeMap::new(),
            credit: Answers::default(),
            taking: false,
            again: Again::default(),
        };
        self.calls.insert(sequence, call_state);
        if !context.is(Broken::NoWatch) {
            self.wake(plan.ping_period, Timer::Watch(sequence), context);
        }
        if !context.is(Broken::NoWatch) {
            self.wake(plan.deadline, Timer::CallDeadline(sequence), context);
        }
        let oldest = self.oldest_call() + u64::from(context.is(Broken::Watermark));
        let deadline = plan.deadline;
        let ping = Some(ping_settings(context, index));
        for (server, id, payload) in requests {
            context.hit(Point::RequestInitial);
            let request = Request {
                call,
                token,
                id,
                depth: 0,
                base: 0,
                reply_to: ReplyTo::Peer,
                manifest: None,
                deadline: Some(deadline),
                oldest,
                traced: false,
                compressed: false,
                waited: std::time::Duration::ZERO,
                options: Some(Box::new(Options {
                    ping,
                    repeatable: plan.retries > 0,
                    ..Options::default()
                })),
                method: MethodRef::Number(0),
                payload,
            };
            if plan.retries > 0
                && let Some(call) = self.calls.get_mut(&sequence)
            {
                call.again.keep(server, &request);
            }
            let message = Message::Request(request);
            self.post(
                Parcel {
                    message,
                    to: Destination::Server(server),
                    job: None,
                    released: None,
                    waits: 0,
                },
                context,
            );
        }
    }

    /// The sequence of the oldest call that lives.
    fn oldest_call(&self) -> u64 {
        self.calls
            .keys()
            .next()
            .copied()
            .unwrap_or(self.last_sequence + 1)
    }

    /// A message for one of this node's calls came.
    pub(super) fn handle_answer(
        &mut self,
        from: Socket,
        mut message: Message,
        context: &mut Context<'_>,
    ) {
        if context.is(Broken::AnyCall)
            && let Message::Response(response) = &mut message
            && !self.calls.contains_key(&response.call.sequence)
            && let Some(other) = self.calls.values().next()
        {
            response.call = other.initiator.call();
            response.token = None;
        }
        if self.peers.get(&from).and_then(super::Peer::node).is_none() {
            return;
        }
        context.oracle.taken(context.queue.now(), self.id, &message);
        self.judge_answer(Some(from), message, context);
    }

    fn judge_answer(&mut self, from: Option<Socket>, message: Message, context: &mut Context<'_>) {
        let id = message.call();
        let Some(call) = self.calls.get_mut(&id.sequence) else {
            context.hit(Point::AnswerAfterEnd);
            self.credit(from, &message, context);
            return;
        };
        context.oracle.arrived(context.queue.now(), &message);
        let manifest = match &message {
            Message::Response(response) => response
                .manifest
                .filter(|manifest| manifest.owner != response.request.path),
            Message::End(end) => end.manifest,
            _ => None,
        };
        if manifest.is_some() {
            context.hit(Point::AnswerCarriesManifest);
        }
        let result = match &message {
            Message::Response(response) => call.initiator.handle_response(response),
            Message::End(end) => call.initiator.handle_end(end).map(|()| Arrival::Duplicate),
            _ => return,
        };
        let settled = call.outcome.is_some();
        let shown = match &message {
            Message::Response(response) => response.token,
            Message::End(end) => end.token,
            _ => None,
        };
        if shown.is_some_and(|shown| shown != call.token) {
            context.violate(
                Rule::Misdelivered,
                format!("{} shows another token", Short(&message)),
            );
        }
        call.counts.add(&message, &result);
        match result {
            Ok(Arrival::Duplicate) if context.is(Broken::ResponseTwice) => {
                if let Message::Response(response) = &message {
                    self.deliver(from, response, context);
                }
            }
            Ok(Arrival::New) if settled => {
                context.hit(Point::AnswerAfterOutcome);
                self.credit(from, &message, context);
            }
            Ok(Arrival::New) => {
                if let Message::Response(response) = &message {
                    self.deliver(from, response, context);
                }
            }
            // A response that was sent again has used up credit like any other.
            Ok(Arrival::Duplicate | Arrival::Contradiction) => {
                self.credit(from, &message, context);
            }
            Err(violation) if context.oracle.reruns.may_differ(id) => {
                let request = match &message {
                    Message::Response(response) => response.request,
                    Message::End(end) => end.request,
                    _ => return,
                };
                let now = self.now();
                if let Some(call) = self.calls.get_mut(&id.sequence)
                    && let Some(watch) = &mut call.watch
                {
                    let kind = FailureKind::Violation(violation);
                    watch.fail(&mut call.initiator, request, kind, now);
                }
                // Before what else has come, which might complete the call.
                self.follow_watch(id.sequence, context);
                return;
            }
            Err(violation) => {
                context.violate(
                    Rule::FalseAccusation,
                    format!("{id}: {violation} ({})", Short(&message)),
                );
                return;
            }
        }
        let request = match &message {
            Message::Response(response) => response.request,
            Message::End(end) => end.request,
            _ => return,
        };
        let source = from
            .map(|from| self.source(from, shown))
            .unwrap_or_default();
        let now = self.now();
        if let Some(call) = self.calls.get_mut(&id.sequence)
            && let Some(watch) = &mut call.watch
        {
            watch.handle_heard(&mut call.initiator, request, &source, now);
        }
        self.check_completion(id.sequence, context);
    }

    /// The application gets a response.
    fn deliver(&mut self, from: Option<Socket>, response: &Response, context: &mut Context<'_>) {
        let id = response.call;
        let own = CallId {
            initiator: self.id,
            ..id
        };
        context.oracle.delivered(context.queue.now(), id, response);
        let answer = Answer::from_payload(&response.payload).filter(|_| !response.status);
        context.oracle.reruns.delivered(
            context.queue.now(),
            id,
            (response.request.path, response.index),
            answer.map(|(_, answer)| answer.number),
        );
        if !response.status {
            match Answer::from_payload(&response.payload) {
                Some((mark, _)) if mark == mark_of(own) => {}
                Some((mark, answer)) => {
                    let what = format!("answer {answer} of call {mark:x} came to {own}");
                    context.violate(Rule::Misdelivered, what);
                }
                None => context.violate(Rule::Corrupted, format!("an answer of {id}")),
            }
        }
        let (Some(call), Some(from)) = (self.calls.get_mut(&id.sequence), from) else {
            return;
        };
        let size = response.payload.len() as u64;
        let (count, bytes) = call.untaken.entry(from).or_default();
        *count += 1;
        *bytes += size;
        let limits = AnswerLimits {
            call: self.hello.limits.call,
            message: self.hello.limits.message,
        };
        let requests = || call.servers.len() as u64;
        let (mine, peers) = (session(from).0, &self.peers);
        let is_open = |number| peers.contains_key(&socket(Session(number)));
        let arrived = (call.credit).arrive(mine, size, limits, requests, || 0, is_open);
        if arrived.is_err() {
            let what = format!("more answers of {id} over {from:?} than were granted");
            context.violate(Rule::FalseAccusation, what);
        }
        let appetite = context.plan.calls[call.index].appetite;
        if appetite.is_zero() {
            self.take_answers(id.sequence, context);
        } else if !std::mem::replace(&mut call.taking, true) {
            self.wake(appetite, Timer::Take(id.sequence), context);
        }
    }

    /// The application takes all answers that wait for it.
    pub(super) fn take_answers(&mut self, sequence: u64, context: &mut Context<'_>) {
        let Some(call) = self.calls.get_mut(&sequence) else {
            return;
        };
        call.taking = false;
        let id = call.initiator.call();
        let untaken = std::mem::take(&mut call.untaken);
        for (socket, (count, bytes)) in &untaken {
            let connection = session(*socket).0;
            for _ in 1..*count {
                call.credit.take(connection, 0, u64::MAX);
            }
            call.credit.take(connection, *bytes, 0);
        }
        for (socket, (count, bytes)) in untaken {
            if let Some(mut carrier) = self.carrier(socket) {
                carrier.grant_call(id, count, bytes);
            }
            self.pump(socket, context);
        }
    }

    /// What nobody takes any more is credited at once, so that it does not keep others back.
    fn credit(&mut self, from: Option<Socket>, message: &Message, context: &mut Context<'_>) {
        let (Some(from), Message::Response(response)) = (from, message) else {
            return;
        };
        if let Some(mut carrier) = self.carrier(from) {
            carrier.grant_call(response.call, 1, response.payload.len() as u64);
        }
        self.pump(from, context);
    }

    pub(super) fn check_completion(&mut self, sequence: u64, context: &mut Context<'_>) {
        let Some(call) = self.calls.get(&sequence) else {
            return;
        };
        let id = call.initiator.call();
        let complete = match context.broken {
            Some(Broken::CountsAlone) => call.counts.are_even(false),
            Some(Broken::ManifestTwice) => {
                call.counts.are_even(true) || call.initiator.is_complete()
            }
            _ => call.initiator.is_complete(),
        };
        context
            .oracle
            .is_complete(context.queue.now(), id, complete);
        if !complete {
            return;
        }
        if call.outcome.is_none() || context.is(Broken::OutcomeChanges) {
            let (_, statuses) = call.initiator.responses();
            self.settle(
                sequence,
                Outcome::Complete {
                    statuses: statuses > 0,
                },
                context,
            );
        }
        self.calls.remove(&sequence);
    }

    /// The application learns how a call ended.
    pub(super) fn settle(&mut self, sequence: u64, outcome: Outcome, context: &mut Context<'_>) {
        self.take_answers(sequence, context);
        let Some(call) = self.calls.get_mut(&sequence) else {
            return;
        };
        call.outcome = Some(outcome);
        context.hit(match outcome {
            Outcome::Complete { statuses: false } => Point::OutcomeComplete,
            Outcome::Complete { statuses: true } => Point::OutcomeStatuses,
            Outcome::Failed => Point::OutcomeFailed,
            Outcome::Aborted => Point::OutcomeAborted,
            Outcome::Deadline => Point::OutcomeDeadline,
            Outcome::InitiatorGone => Point::OutcomeInitiatorGone,
        });
        let id = call.initiator.call();
        note!(context, self.index, "{id} ended: {outcome:?}");
        let now = context.queue.now();
        if !matches!(outcome, Outcome::Complete { .. }) {
            let judged = (context.plan, &mut context.coverage);
            let failed = outcome == Outcome::Failed;
            context.oracle.judge_detection(now, id, judged, failed);
        }
        context.oracle.ended(now, id, outcome);
        context
            .oracle
            .reruns
            .ended(context.queue.now(), id, outcome);
    }

    /// The application gives a call up, or its time is over: what runs is stopped.
    fn give_up(&mut self, sequence: u64, outcome: Outcome, context: &mut Context<'_>) {
        if self
            .calls
            .get(&sequence)
            .is_some_and(|call| call.outcome.is_none())
        {
            self.settle(sequence, outcome, context);
            self.with_watch(sequence, context, |watch, initiator, now| {
                watch.abort(initiator, now)
            });
        }
    }

    /// Whether a call has come to its outcome.
    pub(super) fn is_over(&self, sequence: u64) -> bool {
        self.calls
            .get(&sequence)
            .is_none_or(|call| call.outcome.is_some())
    }

    pub(super) fn call_deadline(&mut self, sequence: u64, context: &mut Context<'_>) {
        self.give_up(sequence, Outcome::Deadline, context);
    }

    pub(super) fn abort_call(&mut self, index: usize, context: &mut Context<'_>) {
        let found = self
            .calls
            .iter()
            .find(|(_, call)| call.index == index)
            .map(|(sequence, _)| *sequence);
        if let Some(sequence) = found {
            self.give_up(sequence, Outcome::Aborted, context);
        }
    }

    /// A request certainly never reaches its server: a status takes its place (PROTOCOL-NOTES 19).
    pub(super) fn undelivered(&mut self, parcel: Parcel, code: Code, context: &mut Context<'_>) {
        self.ready.extend(parcel.job);
        let (Message::Request(request), Destination::Server(server)) = (parcel.message, parcel.to)
        else {
            return;
        };
        context.hit(Point::RequestUndelivered);
        if code == Code::Unavailable {
            let what = "a server believes that the next one is not there";
            context
                .oracle
                .gave_up(context.queue.now(), request.call, context.plan, what);
        }
        note!(
            context,
            self.index,
            "cannot deliver request {} of {}",
            request.id,
            request.call
        );
        if request.depth == 0 && code == Code::Unavailable {
            self.fail_call(request.call.sequence, request.id, context);
            return;
        }
        let status = Status::new(code, format!("n{server} is not reached"));
        let response = undelivered(&request, &status);
        context
            .oracle
            .replaced(context.queue.now(), self.id, &response);
        let message = Message::Response(response.clone());
        if request.call.initiator == self.id && request.depth == 0 {
            if let Some(call) = self.calls.get_mut(&request.call.sequence) {
                call.unsent.remove(&request.id);
            }
            self.judge_answer(None, message, context);
        } else {
            let released = self.stand_in(&request, parcel.released, &response, context);
            self.answer_for(&request, message, released, context);
        }
    }
}

impl Node {
    /// This node answers in the name of a request that it could not deliver: that is where its initiator finds it.
    fn stand_in(
        &mut self,
        request: &Request,
        released: Option<(Ticket, Sent)>,
        response: &Response,
        context: &Context<'_>,
    ) -> Option<(Ticket, Sent)> {
        let (ticket, _) = released?;
        let now = self.now();
        let own = Child {
            server: address(context.plan, self.index),
            node: Some(self.id),
        };
        let ticket = self
            .records
            .delegation_undelivered(ticket, request, own, now)?;
        self.records.response_released(ticket, response, None, now);
        Some((ticket, Sent::Response(response.index)))
    }
}

/// What answers of a call say of it.
pub(super) fn mark_of(call: CallId) -> u64 {
    call.initiator.get().rotate_left(17) ^ call.sequence
}
