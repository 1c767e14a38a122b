//! The initiator's side: calls, their answers, and how they end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::call::allowance::Allowance;
use crate::call::initiator::{Arrival, Initiator, Violation};
use crate::call::taken::{AnswerLimits, Answers};
use crate::call::watch::Watch;
use crate::connection::{ConnectionError, MAX_CALLS, Mark, MethodDefinition, Refusal};
use crate::datagram::MAX_MESSAGE;
use crate::detach::{FEW, detach};
use crate::wire::{
    Budgets, Message, Metadata, MethodRef, Options, PingSettings, ReplyTo, Request, Response,
};
use crate::{Address, CallId, NodeId, Path, RequestId, Token};
use bytes::Bytes;

use super::conn::{ConnId, Parcel, Towards};
use super::event::{Answer, CallKey, Next, Outcome, Output};
use super::streams::Place;
use super::{Alarm, Endpoint};
use crate::error::{ConnectError, Failure};
use crate::line::Line;
use crate::numbers::{DEFAULT_DEADLINE, DEFAULT_PING, MESSAGE_COST};
use crate::trace::{self, Trace};

/// Longer times than this are as good as none.
const LONGEST: Duration = Duration::from_secs(365 * 86_400);

/// Calls that are over whose memory is kept, at most.
const SPARE: usize = 64;

/// Fewest places in the table of calls.
const PLACES: usize = 16;

/// How a call is made.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct CallOptions {
    /// How much time the call has; the endpoint's default (60 s) if not set.
    pub deadline: Option<Duration>,
    /// Whether the first status ends the call; the rest of the tree is aborted then.
    pub fail_fast: bool,
    /// Pairs that travel down the tree.
    pub metadata: Metadata,
    /// What the call's tree may use up.
    pub budgets: Option<Budgets>,
    /// How often its servers are asked about it, and how long silence may last; as the endpoint says if not set. What is
    /// beyond [`PingSettings::bounded`] is taken for the nearest that is not.
    pub ping: Option<PingSettings>,
    /// How long a handler may make no progress; as the endpoint says if not set.
    pub stall_limit: Option<Duration>,
    /// Whether each hop reports its timings: [`Next::Trace`].
    pub traced: bool,
}

/// One call.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) initiator: Initiator,
    pub(super) token: Token,
    /// How much time it had, and when that is over.
    time: Duration,
    pub(super) deadline: Duration,
    /// What is not the default.
    options: Option<Box<CallOptions>>,
    pub(super) roots: Line<Root>,
    /// It has come to its outcome; what still runs is being stopped.
    pub(super) ended: bool,
    /// What answers cost of the call's credit.
    credit: Answers,
    pub(super) watch: Option<Box<Watch>>,
    /// When the watch wants to look at it.
    pub(super) watch_due: Option<Duration>,
    /// Sessions over which its servers were asked: they need not show the token when they answer.
    pub(super) pinged: Vec<ConnId>,
    allowance: Option<Box<Allowance>>,
    /// What answers of this endpoint itself cost that the application has not taken.
    own: u64,
    /// What is noted of a traced one.
    traced: Option<Box<Traced>>,
    /// Answers that the application has not taken, and how the call ended.
    answers: Line<Answer>,
    outcome: Option<Outcome>,
    /// The application was told that there is something to take.
    told: bool,
    /// Nobody wants to know how it ends, or somebody knows already.
    taken: bool,
    /// It has ended, and nothing of it runs any more: it is only kept for its outcome.
    over: bool,
}

/// What is noted of a traced call.
#[derive(Debug)]
struct Traced {
    /// When it began, and when it ended.
    begun: Duration,
    ended: Option<Duration>,
    /// The methods of its initial requests.
    methods: Vec<Arc<str>>,
    /// When each branch's latest response arrived, since it began.
    answered: BTreeMap<Path, Duration>,
}

/// An initial request.
#[derive(Debug)]
pub(super) struct Root {
    pub(super) request: RequestId,
    pub(super) server: Address,
    /// Where it went out, and how far that must be written for it.
    pub(super) session: Option<ConnId>,
    pub(super) mark: Mark,
    /// Who was there.
    pub(super) node: Option<NodeId>,
    /// That has ended.
    pub(super) lost: bool,
}

/// Live calls: a call's place is the end of its sequence, and a sequence whose place is taken is passed over. So nothing is
/// hashed or searched.
#[derive(Debug, Default)]
pub(super) struct Calls {
    places: Vec<Option<(u64, Box<Option<Call>>)>>,
    /// Boxes of calls that are over, for the next ones.
    #[allow(clippy::vec_box, reason = "they go into `places` as they are")]
    spare: Vec<Box<Option<Call>>>,
    /// How many places are taken, and how many of them by calls that are over.
    taken: usize,
    over: usize,
    last: u64,
    /// No call before this one is live.
    oldest: u64,
}

impl Calls {
    /// The sequence of a call that is begun now.
    fn next(&mut self) -> u64 {
        if self.taken * 2 >= self.places.len() {
            self.grow();
        }
        loop {
            self.last += 1;
            let place = self.place(self.last);
            if self.places.get(place).is_some_and(Option::is_none) {
                break;
            }
        }
        if self.taken == self.over {
            self.oldest = self.last;
        }
        self.last
    }

    fn place(&self, sequence: u64) -> usize {
        sequence as usize & (self.places.len().wrapping_sub(1))
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        let len = (self.places.len() * 2).max(PLACES);
        let before = std::mem::take(&mut self.places);
        self.places.resize_with(len, || None);
        for call in before.into_iter().flatten() {
            let place = self.place(call.0);
            self.places[place] = Some(call); // sequences that differed in fewer bits differ in more
        }
    }

    /// The call is made where it stays: it is long.
    #[inline]
    fn add(&mut self, sequence: u64, call: impl FnOnce() -> Call) {
        let place = self.place(sequence);
        if let Some(free) = self.places.get_mut(place) {
            let mut kept = self.spare.pop().unwrap_or_default();
            *kept = Some(call());
            *free = Some((sequence, kept));
            self.taken += 1;
        }
    }

    /// A call, as long as anything of it may run.
    pub(super) fn get(&self, sequence: u64) -> Option<&Call> {
        self.peek(sequence).filter(|call| !call.over)
    }

    pub(super) fn get_mut(&mut self, sequence: u64) -> Option<&mut Call> {
        self.kept(sequence).filter(|call| !call.over)
    }

    /// A call that lives, or is kept for its outcome.
    fn peek(&self, sequence: u64) -> Option<&Call> {
        match self.places.get(self.place(sequence))? {
            Some((found, call)) if *found == sequence => call.as_ref().as_ref(),
            _ => None,
        }
    }

    /// The same, to change it.
    fn kept(&mut self, sequence: u64) -> Option<&mut Call> {
        let place = self.place(sequence);
        match self.places.get_mut(place)? {
            Some((found, call)) if *found == sequence => call.as_mut().as_mut(),
            _ => None,
        }
    }

    /// Nothing of a call runs any more. It goes as soon as its outcome was taken.
    fn finish(&mut self, sequence: u64) {
        let Some(call) = self.get_mut(sequence).filter(|call| !call.over) else {
            return;
        };
        call.over = true;
        self.over += 1;
        while self.oldest <= self.last && self.get(self.oldest).is_none() {
            self.oldest += 1;
        }
        self.leave(sequence);
    }

    /// The outcome of a call was taken, or nothing of it runs any more: with both it goes.
    fn leave(&mut self, sequence: u64) {
        let place = self.place(sequence);
        if let Some(found) = self.places.get_mut(place)
            && let Some((_, mut call)) = found.take_if(|(found, call)| {
                let done = |call: &Call| call.over && call.taken;
                *found == sequence && call.as_ref().as_ref().is_none_or(done)
            })
        {
            *call = None;
            if self.spare.len() < SPARE {
                self.spare.push(call);
            }
            self.taken -= 1;
            self.over -= 1;
        }
    }

    /// How many are live.
    pub(super) fn len(&self) -> usize {
        self.taken - self.over
    }

    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// The live calls in so many places from this one on, and the place to go on from. Who goes on in a later turn misses none
    /// that lives since: where the table has grown meanwhile, calls have stayed or moved on.
    pub(super) fn batch(&self, from: usize, most: usize) -> (Vec<u64>, Option<usize>) {
        let end = from.saturating_add(most);
        let places = self.places.get(from..end.min(self.places.len()));
        let kept = places.into_iter().flatten().flatten();
        let live = kept.filter(|(_, call)| call.as_ref().as_ref().is_some_and(|call| !call.over));
        let live = live.map(|(sequence, _)| *sequence).collect();
        (live, (end < self.places.len()).then_some(end))
    }
}

impl Call {
    pub(super) fn ping(&self, default: PingSettings) -> PingSettings {
        let own = self.options.as_ref().and_then(|options| options.ping);
        own.unwrap_or(default)
    }

    pub(super) fn stall_limit(&self, default: Option<Duration>) -> Option<Duration> {
        let own = self
            .options
            .as_ref()
            .and_then(|options| options.stall_limit);
        own.or(default)
    }

    /// Whether who sent an answer shows that it may: by the call's token, or by the session of one of its requests.
    pub(super) fn may_answer(&self, shown: Option<Token>, from: Option<ConnId>) -> bool {
        match (shown, from) {
            (Some(shown), _) => shown == self.token,
            (None, Some(from)) => self.roots.iter().any(|root| root.session == Some(from)),
            (None, None) => false,
        }
    }

    /// A missing request in words.
    fn describe(&self, request: RequestId) -> String {
        let Some(root) = self.roots.iter().find(|root| root.request == request) else {
            let watch = self.watch.as_ref();
            return match watch.and_then(|watch| watch.server_of(&self.initiator, request)) {
                Some(server) => format!("request {request} at {server}"),
                None => format!("request {request} (its server is not known)"),
            };
        };
        let server = &root.server;
        match (root.session, root.lost) {
            (None, _) => format!("request {request} (not sent to {server} yet)"),
            (Some(_), true) => format!("request {request} at {server} (its connection has ended)"),
            (Some(_), false) => format!("request {request} at {server}"),
        }
    }
}

impl Endpoint {
    // What the application does.

    /// Begins a call without initial requests. It can complete only when no more can come: after [`close_call`](Self::close_call).
    ///
    /// # Errors
    ///
    /// If there are as many calls as may be.
    pub fn begin(&mut self, options: &CallOptions) -> Result<CallKey, Failure> {
        let limit = self.config.limits.calls;
        if self.calls.len().max(self.calls.over) >= limit {
            return Err(Failure::TooManyCalls { limit });
        }
        let sequence = self.calls.next();
        let id = CallId {
            initiator: self.node,
            sequence,
        };
        let token = Token::derive(self.secret, sequence);
        let budgets = options.budgets.unwrap_or_default();
        let time = options
            .deadline
            .unwrap_or(self.config.default_deadline)
            .min(LONGEST);
        let deadline = self.raw.saturating_add(time);
        let allowance = options.budgets.map(|all| Box::new(Allowance::new(all)));
        let special = *options != CallOptions::default();
        let raw = self.raw;
        let mut initiator = Initiator::new(id, token, budgets);
        initiator.count_in(&self.branches);
        self.calls.add(sequence, || Call {
            initiator,
            token,
            time,
            deadline,
            options: special.then(|| Box::new(options.clone())),
            roots: Line::default(),
            ended: false,
            credit: Answers::default(),
            watch: None,
            watch_due: None,
            pinged: Vec::new(),
            allowance,
            own: 0,
            traced: options.traced.then(|| {
                Box::new(Traced {
                    begun: raw,
                    ended: None,
                    methods: Vec::new(),
                    answered: BTreeMap::new(),
                })
            }),
            answers: Line::default(),
            outcome: None,
            told: false,
            taken: false,
            over: false,
        });
        let ping = options.ping.unwrap_or(self.config.ping).bounded();
        // Calls that are over sooner cost no place among the alarms.
        if time <= self.config.ping.period.saturating_mul(2) {
            self.alarms.insert((deadline, Alarm::Call(sequence)));
        }
        if ping.period < self.config.ping.period {
            self.watch_at(sequence, Some(self.now.saturating_add(ping.period)));
        } else {
            self.fresh.push_back((self.now, sequence));
        }
        Ok(CallKey(sequence))
    }

    /// Sends an initial request of a call.
    ///
    /// # Errors
    ///
    /// If it cannot be sent, or the call is closed or has ended. The call has failed then.
    pub fn send(
        &mut self,
        key: CallKey,
        server: &Address,
        method: &Arc<MethodDefinition>,
        payload: Bytes,
    ) -> Result<RequestId, Failure> {
        let sent = self.try_initial(key, server, method, payload);
        if let Err(failure) = &sent {
            self.end_call(key.0, Err(failure.clone()));
        }
        sent
    }

    fn try_initial(
        &mut self,
        key: CallKey,
        server: &Address,
        method: &Arc<MethodDefinition>,
        payload: Bytes,
    ) -> Result<RequestId, Failure> {
        let oldest = self.calls.oldest;
        let limit = self.config.limits.message;
        let (call, raw) = (self.calls.get_mut(key.0), self.raw);
        let Some(call) = call.filter(|call| !call.ended && !call.initiator.is_closed()) else {
            return Err(Failure::Closed);
        };
        let id = call.initiator.send()?;
        let size = payload.len() as u64;
        let not_sent = |error| Failure::NotSent { request: id, error };
        if !self.config.schemes.lead_to(server) {
            let server = server.clone();
            return Err(not_sent(ConnectError::NoTransport { server }));
        }
        let limit = most_to(server, limit);
        if size > limit {
            let server = server.clone();
            return Err(Failure::TooLarge {
                request: id,
                server,
                size,
                limit,
            });
        }
        if !self.config.dial_policy.permits_call(server) {
            let server = server.clone();
            return Err(not_sent(ConnectError::Forbidden { server }));
        }
        call.roots.push(Root {
            request: id,
            server: server.clone(),
            session: None,
            mark: Mark::Written(0),
            node: None,
            lost: false,
        });
        if let Some(traced) = &mut call.traced {
            traced.methods.push(Arc::clone(method.name()));
        }
        let budgets = call.share();
        let mut request = Request {
            call: call.initiator.call(),
            token: call.token,
            id,
            depth: 0,
            base: 0,
            reply_to: ReplyTo::Peer,
            manifest: None,
            // The default of the protocol need not be stated.
            deadline: (call.time != DEFAULT_DEADLINE).then(|| call.deadline.saturating_sub(raw)),
            oldest,
            traced: call.traced.is_some(),
            compressed: false,
            waited: Duration::ZERO,
            options: call.request_options(budgets, self.config.ping),
            method: MethodRef::Number(0),
            payload,
        };
        if let Some(id) = self.conn_at(server)
            && self
                .conns
                .get(id)
                .is_some_and(|peer| !peer.holds_requests())
        {
            match self.send_request(id, &mut request, method, None) {
                Ok(mark) => {
                    self.root_sent(key.0, request.id, id, mark);
                    return Ok(request.id);
                }
                Err(Refusal::Blocked | Refusal::NotOpen) => {}
                Err(refusal) => return Err(refused(request.id, server, refusal)),
            }
        }
        if !self.has_room(request.payload.len()) {
            let reason = "too much waits to be sent already".into();
            return Err(Failure::Refused {
                request: id,
                server: server.clone(),
                reason,
            });
        }
        let mut parcel = Parcel::new(Message::Request(request), Towards::Server(server.clone()));
        parcel.method = Some(Arc::clone(method));
        self.post(parcel);
        Ok(id)
    }

    /// No further initial request of a call comes.
    pub fn close_call(&mut self, key: CallKey) {
        if let Some(call) = self.calls.get_mut(key.0)
            && !call.ended
        {
            call.initiator.close();
            if call.initiator.is_complete() {
                self.end_call(key.0, Ok(()));
            }
        }
    }

    /// Says how many initial requests of a call will come: each gets an equal part of its budgets, if these are stated.
    pub fn share_among(&mut self, key: CallKey, requests: u32) {
        if let Some(call) = self.calls.get_mut(key.0)
            && let Some(allowance) = &mut call.allowance
        {
            allowance.announce(requests);
        }
    }

    /// Gives a call up: it fails with [`Failure::Aborted`], and what runs of it elsewhere is stopped.
    pub fn abort(&mut self, key: CallKey) {
        self.end_call(key.0, Err(Failure::Aborted));
    }

    /// Nobody wants to hear of a call any more: it is aborted if it lives, and forgotten when nothing of it runs.
    pub fn forget(&mut self, key: CallKey) {
        self.end_call(key.0, Err(Failure::Aborted));
        if let Some(call) = self.calls.kept(key.0) {
            call.taken = true;
            self.untaken -= call.answers.len();
            call.answers = Line::default();
            self.calls.leave(key.0);
        }
    }

    /// The tree of hops of a call, as far as it is known now; what hops report of themselves only of a traced one.
    pub fn trace(&self, key: CallKey) -> Option<Trace> {
        Some(self.trace_of(self.calls.peek(key.0)?))
    }

    fn trace_of(&self, call: &Call) -> Trace {
        let begun = call.deadline.saturating_sub(call.time);
        let ended = call.traced.as_ref().and_then(|traced| traced.ended);
        let method = |index: usize| Some(Arc::clone(call.traced.as_ref()?.methods.get(index)?));
        let roots = call
            .roots
            .iter()
            .enumerate()
            .map(|(index, root)| trace::Root {
                path: root.request.path,
                server: root.server.clone(),
                method: method(index).unwrap_or_else(|| "".into()),
                node: root.node,
            });
        let roots: Vec<trace::Root> = roots.collect();
        let answered = call.traced.iter().flat_map(|traced| traced.answered.iter());
        let answered: Vec<(Path, Duration)> = answered.map(|(path, at)| (*path, *at)).collect();
        let elapsed = ended.unwrap_or(self.raw).saturating_sub(begun);
        let begun = self.epoch.saturating_add(begun);
        trace::assemble(&call.initiator, begun, elapsed, &roots, &answered)
    }

    /// The next answer of a call, or how it ended: then it is forgotten. What is taken makes room for more.
    pub fn next_answer(&mut self, key: CallKey) -> Next {
        let Some(call) = self.calls.kept(key.0) else {
            return Next::Pending;
        };
        if let Some(answer) = call.answers.pop() {
            self.untaken -= 1;
            match answer.from {
                Some(from) => self.credit(from, key.0, answer.payload.len()),
                None => call.own = call.own.saturating_sub(cost_of(answer.payload.len())),
            }
            return Next::Answer(answer);
        }
        if call.outcome.is_none() {
            call.told = false;
            return Next::Pending;
        }
        if call.traced.is_some() {
            return self.take_trace(key);
        }
        let Some(outcome) = call.outcome.take() else {
            return Next::Pending;
        };
        call.taken = true;
        self.calls.leave(key.0);
        Next::Ended(outcome)
    }

    #[cold]
    fn take_trace(&mut self, key: CallKey) -> Next {
        let trace = self.trace(key);
        if let Some(call) = self.calls.kept(key.0) {
            call.traced = None;
        }
        trace.map_or(Next::Pending, |trace| Next::Trace(Box::new(trace)))
    }

    /// Whether [`next_answer`](Self::next_answer) has something of a call.
    pub fn has_next(&self, key: CallKey) -> bool {
        let call = self.calls.peek(key.0);
        call.is_some_and(|call| !call.answers.is_empty() || call.outcome.is_some())
    }

    /// The application learns that there is something to take of a call.
    fn tell_of(&mut self, sequence: u64) {
        if let Some(call) = self.calls.kept(sequence)
            && !call.taken
            && !std::mem::replace(&mut call.told, true)
        {
            self.outputs.push_back(Output::Call(CallKey(sequence)));
        }
    }

    /// Whether a call of this endpoint takes one more answer of its own now, as it would be credited to another one.
    pub(super) fn takes_own(&self, sequence: u64) -> bool {
        let call = self.calls.get(sequence).filter(|call| !call.ended);
        call.is_none_or(|call| call.own <= self.config.limits.call)
    }

    /// An answer of this endpoint to its own call.
    pub(super) fn note_own(&mut self, message: &Message) {
        if let Message::Response(response) = message
            && let Some(call) = self.calls.get_mut(response.call.sequence)
        {
            call.own += cost_of(response.payload.len());
        }
    }

    /// An answer over a session is out of the way. What had come of a call that has ended was granted then.
    fn credit(&mut self, from: ConnId, sequence: u64, size: usize) {
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
            && let Some(mut carrier) = self.carrier(from)
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
            self.counters.late_dropped += 1;
            return;
        };
        if !call.may_answer(shown, from) {
            self.counters.forged_dropped += 1;
            return;
        }
        // What shows no token came by an initial request's own connection.
        if shown.is_some()
            && let Some(peer) = from.and_then(|from| self.conns.get_mut(from))
        {
            peer.carried_calls = true;
        }
        if call.ended {
            self.counters.late_dropped += 1;
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
        let Some(call) = self.calls.get(id.sequence) else {
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
            Ok(()) if call.watch.is_some() => self.note_heard(id.sequence, request, from, shown),
            Ok(()) => {}
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
                // One that was sent again has cost the call's credit like any other.
                if let Some(from) = from {
                    self.note_arrival(from, sequence, response.payload.len())?;
                    self.credit(from, sequence, response.payload.len());
                }
                Ok(())
            }
            Arrival::New => {
                if let Some(traced) = &mut call.traced {
                    let after = self.raw.saturating_sub(traced.begun);
                    traced.answered.insert(response.request.path, after);
                }
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
                };
                self.keep_answer(sequence, answer);
                if response.status && fail_fast {
                    Err(Failure::Aborted)
                } else {
                    Ok(())
                }
            }
        }
    }

    /// An answer waits for the application.
    fn keep_answer(&mut self, sequence: u64, answer: Answer) {
        if let Some(call) = self.calls.get_mut(sequence).filter(|call| !call.taken) {
            call.answers.push(answer);
            self.untaken += 1;
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
        let (conns, gate, roots) = (&self.conns, &self.gate, &call.roots);
        let requests = || roots.iter().count() as u64;
        let messages = || {
            let carrier = conns.get(from).and_then(|peer| peer.way.peek(gate));
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
    fn credit_all(&mut self, sequence: u64) {
        let Some(call) = self.calls.get_mut(sequence) else {
            return;
        };
        let id = call.initiator.call();
        let granted: Vec<(u64, u64)> = call.credit.take_all().collect();
        for (connection, bytes) in granted {
            if let Some(mut carrier) = self.carrier(ConnId::from_number(connection)) {
                carrier.grant_call(id, 0, bytes);
            }
        }
    }

    // How calls end.

    pub(super) fn call_deadline(&mut self, sequence: u64) {
        let Some(call) = self.calls.get(sequence).filter(|call| !call.ended) else {
            return;
        };
        let missing = call.initiator.missing().take(8);
        let failure = Failure::Deadline {
            after: call.time,
            missing: missing.map(|request| call.describe(request)).collect(),
        };
        self.end_call(sequence, Err(failure));
    }

    /// A call has come to its outcome; nothing changes that. What still runs somewhere is told to stop.
    pub(super) fn end_call(&mut self, sequence: u64, outcome: Result<(), Failure>) {
        let Some(call) = self.calls.get_mut(sequence).filter(|call| !call.ended) else {
            return;
        };
        call.ended = true;
        if let Some(traced) = &mut call.traced {
            traced.ended = Some(self.raw);
        }
        let failed = outcome.is_err();
        call.outcome = Some(match outcome {
            Ok(()) => Outcome::Complete {
                statuses: call.initiator.responses().1,
            },
            Err(failure) => Outcome::Failed(Box::new(failure)),
        });
        let mut rested = Vec::new();
        for root in call.roots.iter() {
            if let Some(peer) = root.session.and_then(|id| self.conns.get_mut(id)) {
                peer.busy = peer.busy.saturating_sub(1);
                let rests = peer.busy == 0 && self.places.has_needed();
                rested.extend(root.session.filter(|_| rests));
            }
        }
        rested.into_iter().for_each(|id| self.may_rest(id));
        if failed {
            self.credit_all(sequence);
        }
        self.tell_of(sequence);
        if !failed || !self.wind_down(sequence) {
            self.call_over(sequence);
        }
    }

    /// Nothing of a call runs any more.
    pub(super) fn call_over(&mut self, sequence: u64) {
        self.watch_at(sequence, None);
        if let Some(call) = self.calls.get(sequence) {
            let alarm = (call.deadline, Alarm::Call(sequence));
            if !self.alarms.is_empty() {
                self.alarms.remove(&alarm);
            }
        }
        self.calls.finish(sequence);
        while let Some((_, first)) = self.fresh.front()
            && self.calls.get(*first).is_none()
        {
            self.fresh.pop_front();
        }
    }

    /// A call has lasted for a while: from now on its deadline is among the alarms.
    pub(super) fn set_deadline(&mut self, sequence: u64) {
        if let Some(call) = self.calls.get(sequence).filter(|call| !call.ended) {
            self.alarms.insert((call.deadline, Alarm::Call(sequence)));
        }
    }

    pub(super) fn is_over(&self, sequence: u64) -> bool {
        self.calls.get(sequence).is_none_or(|call| call.ended)
    }

    // What becomes of initial requests.

    /// A connection has taken an initial request.
    pub(super) fn root_sent(
        &mut self,
        sequence: u64,
        request: RequestId,
        session: ConnId,
        mark: Mark,
    ) {
        let Some(call) = self.calls.get_mut(sequence) else {
            return;
        };
        if let (Some(root), Some(peer)) = (call.root(request), self.conns.get_mut(session)) {
            root.session = Some(session);
            root.mark = mark;
            root.node = peer.node();
            root.lost = false;
            peer.carried_calls = true;
            peer.busy += 1;
        }
        if let Mark::Parts(number) = mark {
            self.note_large(session, number, Place::Root(sequence, request));
        }
    }

    /// The last part of an initial request has been added to the output.
    pub(super) fn root_left(&mut self, sequence: u64, request: RequestId, mark: u64) {
        let call = self.calls.get_mut(sequence);
        if let Some(root) = call.and_then(|call| call.root(request)) {
            root.mark = Mark::Written(mark);
        }
    }

    /// An initial request certainly reaches nobody.
    pub(super) fn not_sent(&mut self, sequence: u64, request: RequestId, error: ConnectError) {
        self.end_call(sequence, Err(Failure::NotSent { request, error }));
    }

    /// A session does not take an initial request at all.
    pub(super) fn root_refused(
        &mut self,
        sequence: u64,
        request: RequestId,
        to: &Address,
        refusal: Refusal,
    ) {
        self.end_call(sequence, Err(refused(request, to, refusal)));
    }
}

impl Call {
    fn root(&mut self, request: RequestId) -> Option<&mut Root> {
        let mut roots = self.roots.iter_mut();
        roots.find(|root| root.request.path == request.path)
    }

    fn share(&mut self) -> Option<Budgets> {
        let allowance = self.allowance.as_mut()?;
        // Whether there may be one more is decided where all that arrives is counted, too.
        let _ = allowance.spend_request();
        Some(match allowance.announced() {
            1 => allowance.rest(),
            _ => allowance.share(),
        })
    }

    fn request_options(
        &self,
        budgets: Option<Budgets>,
        ping: PingSettings,
    ) -> Option<Box<Options>> {
        let ping = Some(self.ping(ping)).filter(|ping| *ping != DEFAULT_PING);
        let metadata = self.options.as_ref().map(|options| &options.metadata);
        let metadata = metadata.filter(|metadata| !metadata.is_empty());
        if metadata.is_none() && budgets.is_none() && ping.is_none() {
            return None;
        }
        Some(Box::new(Options {
            ping,
            metadata: metadata.cloned().unwrap_or_default(),
            budgets,
            ..Options::default()
        }))
    }
}

fn cost_of(payload: usize) -> u64 {
    payload as u64 + MESSAGE_COST
}

fn refused(request: RequestId, to: &Address, refusal: Refusal) -> Failure {
    let server = to.clone();
    match refusal {
        Refusal::TooLarge { size, limit } => Failure::TooLarge {
            request,
            server,
            size,
            limit,
        },
        refusal => Failure::Refused {
            request,
            server,
            reason: refusal.to_string(),
        },
    }
}

/// The longest message to an address.
pub(super) fn most_to(to: &Address, limit: u64) -> u64 {
    match to {
        Address::Udp(_) => limit.min(MAX_MESSAGE as u64),
        _ => limit,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(sequence: u64) -> Call {
        let initiator = NodeId::new(1).expect("not zero");
        let (id, token) = (
            CallId {
                initiator,
                sequence,
            },
            Token::new(sequence),
        );
        Call {
            initiator: Initiator::new(id, token, Budgets::default()),
            token,
            time: Duration::ZERO,
            deadline: Duration::ZERO,
            options: None,
            roots: Line::default(),
            ended: false,
            credit: Answers::default(),
            watch: None,
            watch_due: None,
            pinged: Vec::new(),
            allowance: None,
            own: 0,
            traced: None,
            answers: Line::default(),
            outcome: None,
            told: false,
            taken: true,
            over: false,
        }
    }

    /// A call that lives long beside very many short ones keeps its place, and costs them none.
    #[test]
    fn calls_are_found_by_their_sequence_and_the_oldest_is_known() {
        let mut calls = Calls::default();
        let first = calls.next();
        calls.add(first, || call(first));
        for _ in 0..10_000 {
            let next = calls.next();
            assert!(next > first && calls.get(next).is_none());
            calls.add(next, || call(next));
            assert_eq!(
                calls.get(next).map(|call| call.token),
                Some(Token::new(next))
            );
            assert_eq!(calls.oldest, first);
            calls.finish(next);
            assert!(calls.get(next).is_none());
        }
        assert_eq!((calls.len(), calls.places.len()), (1, PLACES));
        let many: Vec<u64> = (0..1000)
            .map(|_| {
                let next = calls.next();
                calls.add(next, || call(next));
                next
            })
            .collect();
        assert!(many.is_sorted());
        assert!(many.iter().all(|sequence| calls.get(*sequence).is_some()));
        let mut found = Vec::new();
        let mut next = Some(0);
        while let Some(from) = next {
            let (batch, on) = calls.batch(from, 100);
            found.extend(batch);
            if next == Some(0) {
                calls.grow();
            }
            next = on;
        }
        found.sort_unstable();
        found.dedup();
        assert!(found.iter().eq([first].iter().chain(&many)), "{found:?}");
        calls.finish(first);
        assert_eq!(calls.oldest, many[0]);
        many.iter()
            .rev()
            .for_each(|sequence| calls.finish(*sequence));
        assert_eq!(calls.spare.len(), SPARE, "of a thousand that were live");
        assert!(calls.spare.iter().all(|spare| spare.is_none()));
        let next = calls.next();
        assert_eq!((calls.len(), calls.oldest), (0, next));
    }
}
