//! The initiator's side: calls, their answers, and how they end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::call::allowance::Allowance;
use crate::call::initiator::Initiator;
use crate::call::server::undelivered_initial;
use crate::call::ungranted::UngrantedAnswers;
use crate::call::watch::{Loss, Watch};
use crate::connection::{Mark, MethodDefinition, Refusal};
use crate::wire::{
    Budgets, Continuation, Message, Metadata, MethodRef, Options, PingSettings, ReplyTo, Request,
};
use crate::{Address, CallId, Code, DurableId, NodeId, Path, RequestId, Status, Token};
use bytes::Bytes;

use super::bodies::OutBody;
use super::conn::{ConnId, Parcel, Towards};
use super::draining::shutting_down;
use super::event::{Answer, CallKey, Next, Outcome, Output, ReportedEnd, RequestKey};
use super::order::Order;
use super::probe::{Note, Probe};
use super::resending::{Resend, Resending};
use super::streams::MarkOwner;
use super::{Alarm, Endpoint, LONGEST};
use crate::error::{ConnectError, Failure};
use crate::fifo::Fifo;
use crate::numbers::{DEFAULT_DEADLINE, DEFAULT_PING, MESSAGE_COST};
use crate::trace::{self, Trace};

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
    /// What goes along with each of its initial requests, and with nothing that comes of them.
    pub continuation: Option<Continuation>,
    /// The name under which it may be asked for again: its first initial request has it, the others have names that follow from it.
    pub durable: Option<DurableId>,
    /// What the call's tree may use up.
    pub budgets: Option<Budgets>,
    /// How often its servers are asked about it, and how long silence may last; as the endpoint says if not set. What is
    /// beyond [`PingSettings::bounded`] is taken for the nearest that is not.
    pub ping: Option<PingSettings>,
    /// How long a handler may make no progress; as the endpoint says if not set.
    pub stall_limit: Option<Duration>,
    /// Whether each hop reports its timings: [`Next::Trace`].
    pub traced: bool,
    /// Whether its initial requests are sent again below which something was lost.
    pub resend: Option<Resend>,
    /// Whether the answers of each branch are told in the order in which they were sent.
    pub in_order: bool,
    /// Whether it goes on without what is lost of it: a status takes the place of what is missing of that branch
    /// ([`Status::loss`](crate::Status::loss)), nothing of it is sent again, and it is complete, with statuses, when nothing
    /// else is missing. With `fail_fast` a loss is the end all the same. Of several initial requests each may fail to reach its
    /// server; if the only one does, the call fails.
    pub tolerant: bool,
}

/// One call.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) initiator: Initiator,
    pub(super) token: Token,
    /// How much time it had, and when that is over.
    pub(super) time: Duration,
    pub(super) deadline: Duration,
    /// What is not the default.
    pub(super) options: Option<Box<CallOptions>>,
    pub(super) roots: Fifo<InitialRequest>,
    /// It has come to its outcome; what still runs is being stopped.
    pub(super) ended: bool,
    /// The application waits until an initial request is sent.
    pub(super) wants_sent: bool,
    /// What answers cost of the call's credit.
    pub(super) credit: UngrantedAnswers,
    pub(super) watch: Option<Box<Watch>>,
    /// When the watch wants to look at it.
    pub(super) watch_due: Option<Duration>,
    /// It is watched over as soon as an initial request is sent.
    pub(super) waits_for_root: bool,
    /// Sessions over which its servers were asked: they need not show the token when they answer.
    pub(super) pinged: BTreeSet<ConnId>,
    pub(super) allowance: Option<Box<Allowance>>,
    /// What answers of this endpoint itself cost that the application has not taken.
    pub(super) own: u64,
    /// What is noted of a traced one.
    pub(super) traced: Option<Box<Traced>>,
    /// What is kept of one that may be sent again.
    pub(super) resending: Option<Box<Resending>>,
    /// Of one whose answers are told in order.
    pub(super) order: Option<Box<Order>>,
    /// Of one that goes on without what is lost.
    pub(super) tolerant: Option<Box<Tolerance>>,
    /// Answers that the application has not taken, and how the call ended.
    pub(super) answers: Fifo<Answer>,
    pub(super) outcome: Option<Outcome>,
    /// The application was told that there is something to take.
    pub(super) told: bool,
    /// The request on whose behalf it was made, while it goes on.
    pub(super) within: Option<RequestKey>,
    /// Its end is told by itself.
    pub(super) reported: bool,
    /// The code of the first status among its answers.
    pub(super) status: Option<Code>,
    /// Nobody wants to know how it ends, or somebody knows already.
    pub(super) taken: bool,
    /// It has ended, and nothing of it runs any more: it is only kept for its outcome.
    pub(super) over: bool,
}

/// What is noted of a traced call.
#[derive(Debug)]
pub(super) struct Traced {
    /// When it began, and when it ended.
    pub(super) begun: Duration,
    pub(super) ended: Option<Duration>,
    /// When each branch's latest response arrived, since it began.
    pub(super) answered: BTreeMap<Path, Duration>,
}

/// What is known of a call that goes on without what is lost.
#[derive(Debug, Default)]
pub(super) struct Tolerance {
    /// Where its servers are, behind the first, if it is known that one follows another.
    pub(super) expected: Vec<Address>,
    pub(super) losses: Vec<Arc<Loss>>,
}

/// An initial request.
#[derive(Debug)]
pub(super) struct InitialRequest {
    pub(super) request: RequestId,
    pub(super) server: Address,
    pub(super) method: Arc<MethodDefinition>,
    /// Where it went out, where it ends there, and how far that must be written for it and for what was asked about it.
    pub(super) session: Option<ConnId>,
    pub(super) sent: Mark,
    pub(super) mark: Mark,
    /// Who was there.
    pub(super) node: Option<NodeId>,
    /// That has ended; without one, it certainly reaches nobody.
    pub(super) lost: bool,
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
    pub(super) fn may_answer(
        &self,
        shown: Option<Token>,
        from: Option<ConnId>,
        path: &Path,
    ) -> bool {
        match (shown, from) {
            (Some(shown), _) => shown == self.token,
            (None, Some(from)) => {
                // The initial request at or above this place is the likeliest: a call may have thousands.
                let likely = path.initial_index();
                let likely = likely.and_then(|index| self.roots.get(index as usize));
                let is_over = |root: &InitialRequest| root.session == Some(from);
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
}

impl<P: Probe> Endpoint<P> {
    // What the application does.

    /// Begins a call without initial requests. It can complete only when no more can come: after [`close_call`](Self::close_call).
    ///
    /// # Errors
    ///
    /// If there are as many calls as may be.
    pub fn begin(&mut self, options: &CallOptions) -> Result<CallKey, Failure> {
        let limit = self.config.limits.calls;
        if self.closed {
            return Err(Failure::Closed);
        }
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
        self.metrics.calls_started += 1;
        let raw = self.raw;
        let mut initiator = Initiator::new(id, token, budgets);
        initiator.count_in(&self.branches);
        self.calls.add(sequence, || Call {
            initiator,
            token,
            time,
            deadline,
            options: special.then(|| Box::new(options.clone())),
            roots: Fifo::default(),
            ended: false,
            wants_sent: false,
            credit: UngrantedAnswers::default(),
            watch: None,
            watch_due: None,
            waits_for_root: false,
            pinged: BTreeSet::new(),
            allowance,
            own: 0,
            traced: options.traced.then(|| {
                Box::new(Traced {
                    begun: raw,
                    ended: None,
                    answered: BTreeMap::new(),
                })
            }),
            resending: (options.resend.clone()).map(|policy| Box::new(Resending::new(policy))),
            order: options.in_order.then(Box::default),
            tolerant: (options.tolerant && !options.fail_fast).then(Box::default),
            answers: Fifo::default(),
            outcome: None,
            told: false,
            within: None,
            reported: false,
            status: None,
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
            self.note_due(self.now.saturating_add(self.fresh_for));
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
        let (request, _) = self.send_with(key, server, method, payload, None, false)?;
        Ok(request)
    }

    /// The same with metadata, a continuation and a durable id of its own in place of the call's, if `own` is given: nothing else
    /// of it counts. If it is `followed` by a body, that is to be [written](Self::write_body). It can be read once, so the request is
    /// sent once, whatever the call says of [`Resend`].
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send). That bodies do not go over `udp:` is told when a session to the server is open.
    pub fn send_with(
        &mut self,
        key: CallKey,
        server: &Address,
        method: &Arc<MethodDefinition>,
        payload: Bytes,
        own: Option<&CallOptions>,
        followed: bool,
    ) -> Result<(RequestId, Option<OutBody>), Failure> {
        let request = self.begin_initial(key, server, method)?;
        let body = followed.then(|| self.bodies.begin_root(key.0));
        let to = (server, method);
        if let Err(failure) = self.try_initial(key, request, to, payload, own, body) {
            if let Some(body) = body {
                self.forget_body(body);
            }
            self.give_initial_up(key, request, failure)?;
        }
        Ok((request, body))
    }

    /// Sends the only initial request of a call, which gets all of its budgets, and closes the call. If it is `followed` by a body, that
    /// is to be written as [`send_with`](Self::send_with) says.
    ///
    /// # Errors
    ///
    /// As `send_with`. The call's outcome says the same, as that of any other that has failed: who does not want to be told twice
    /// [forgets](Self::forget) it.
    pub fn send_only(
        &mut self,
        key: CallKey,
        server: &Address,
        method: &Arc<MethodDefinition>,
        payload: Bytes,
        followed: bool,
    ) -> Result<(RequestId, Option<OutBody>), Failure> {
        self.share_among(key, 1);
        let sent = self.send_with(key, server, method, payload, None, followed);
        self.close_call(key);
        sent
    }

    /// A place for an initial request among those of its call.
    fn begin_initial(
        &mut self,
        key: CallKey,
        server: &Address,
        method: &Arc<MethodDefinition>,
    ) -> Result<RequestId, Failure> {
        let call = self.calls.get_mut(key.0);
        let Some(call) = call.filter(|call| !call.ended && !call.initiator.is_closed()) else {
            return Err(Failure::Closed);
        };
        match call.initiator.send() {
            Ok(request) => {
                call.roots.push(InitialRequest {
                    request,
                    server: server.clone(),
                    method: Arc::clone(method),
                    session: None,
                    sent: Mark::Written(0),
                    mark: Mark::Written(0),
                    node: None,
                    lost: false,
                });
                Ok(request)
            }
            Err(violation) => {
                let failure = Failure::from(violation);
                self.end_call(key.0, Err(failure.clone()));
                Err(failure)
            }
        }
    }

    /// An initial request cannot be sent, as is known at once. A call that goes on without what is lost learns it by a status,
    /// when it is known whether others of its requests are sent.
    #[cold]
    fn give_initial_up(
        &mut self,
        key: CallKey,
        request: RequestId,
        failure: Failure,
    ) -> Result<(), Failure> {
        let call = self.calls.get(key.0);
        if call.is_some_and(|call| call.tolerant.is_some()) {
            self.unsent.push((key.0, request, failure));
            return Ok(());
        }
        self.end_call(key.0, Err(failure.clone()));
        Err(failure)
    }

    fn try_initial(
        &mut self,
        key: CallKey,
        id: RequestId,
        (server, method): (&Address, &Arc<MethodDefinition>),
        payload: Bytes,
        own: Option<&CallOptions>,
        body: Option<OutBody>,
    ) -> Result<(), Failure> {
        let oldest = self.calls.oldest();
        let (call, raw) = (self.calls.get_mut(key.0), self.raw);
        let call = call.ok_or(Failure::Closed)?;
        let size = payload.len() as u64;
        let not_sent = |error| Failure::NotSent { request: id, error };
        if !self.config.schemes.lead_to(server) {
            let server = server.clone();
            return Err(not_sent(ConnectError::NoTransport { server }));
        }
        let limit = self.config.longest_to(server);
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
            self.metrics.dials_forbidden += 1;
            return Err(not_sent(ConnectError::Forbidden { server }));
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
            options: call.request_options(budgets, self.config.ping, own, id),
            method: MethodRef::Number(0),
            payload,
        };
        if body.is_some() {
            request.options.get_or_insert_default().body = Some(0); // its number is the connection's business
        } else if call.resending.is_some() {
            self.keep(key.0, &mut request, (server, method));
        }
        if let Some(id) = self.conn_at(server)
            && self
                .conns
                .get(id)
                .is_some_and(|peer| !peer.holds_requests(body.is_some()))
        {
            match self.send_request(id, &mut request, method, None) {
                Ok(mark) => {
                    self.root_sent(key.0, request.id, id, mark);
                    self.body_sent(body, id, &request);
                    return Ok(());
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
        parcel.body = body;
        self.post(parcel);
        Ok(())
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

    /// From now on the end of a call is told as soon as it comes, whoever takes its answers: [`Output::Ended`]. If it has come,
    /// this is it.
    pub fn report_end(&mut self, key: CallKey) -> Option<ReportedEnd> {
        if let Some(call) = self.calls.get_mut(key.0).filter(|call| !call.ended) {
            call.reported = true;
            return None;
        }
        let call = self.calls.peek(key.0);
        let forgotten = || Outcome::Failed(Box::new(Failure::aborted()));
        let outcome = call.and_then(|call| call.outcome.clone());
        Some(ReportedEnd {
            outcome: outcome.unwrap_or_else(forgotten),
            status: call.and_then(|call| call.status),
        })
    }

    /// Gives a call up: it fails with [`Failure::Aborted`], and what runs of it elsewhere is stopped.
    pub fn abort(&mut self, key: CallKey) {
        if let Some(call) = self.calls.get(key.0).filter(|call| !call.ended) {
            let missing = call.missing(self.config.ping, self.now);
            self.end_call(key.0, Err(Failure::Aborted { missing }));
        }
    }

    /// Nobody wants to hear of a call any more: it is aborted if it lives, and forgotten when nothing of it runs.
    pub fn forget(&mut self, key: CallKey) {
        self.end_call(key.0, Err(Failure::aborted()));
        if let Some(call) = self.calls.kept(key.0) {
            call.taken = true;
            self.untaken -= call.answers.len();
            call.answers = Fifo::default();
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
        let roots = call.roots.iter().map(|root| trace::Root {
            path: root.request.path,
            server: root.server.clone(),
            method: Arc::clone(root.method.name()),
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
                None => {
                    call.own = call.own.saturating_sub(cost_of(answer.payload.len()));
                    self.note_space();
                }
            }
            return Next::Answer(answer);
        }
        let Some(outcome) = &call.outcome else {
            call.told = false;
            return Next::Pending;
        };
        if self.config.keep_ended {
            return Next::Ended(outcome.clone());
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

    /// Whether a call has come to its outcome, though the application may not have taken all of its answers.
    pub fn has_ended(&self, key: CallKey) -> bool {
        self.calls.peek(key.0).is_none_or(|call| call.ended)
    }

    /// How a call has ended; `None` while it goes on, and once it is forgotten.
    pub fn outcome(&self, key: CallKey) -> Option<&Outcome> {
        self.calls.peek(key.0)?.outcome.as_ref()
    }

    /// What is known of a call's tree.
    pub fn tree(&mut self, key: CallKey) -> Option<&mut Initiator> {
        Some(&mut self.calls.kept(key.0)?.initiator)
    }

    /// What a call has gone on without ([`CallOptions::tolerant`]).
    pub fn losses(&self, key: CallKey) -> &[Arc<Loss>] {
        let tolerant = self
            .calls
            .peek(key.0)
            .and_then(|call| call.tolerant.as_ref());
        tolerant.map_or(&[], |tolerant| &tolerant.losses)
    }

    /// The first delegation of a call's first request goes to the first of these servers, the first one of that to the next, and so
    /// on: so a call that goes on without what is lost can go on without each of them. Said before it is watched over.
    pub fn expect_servers(&mut self, key: CallKey, servers: &[Address]) {
        let tolerant = self
            .calls
            .kept(key.0)
            .and_then(|call| call.tolerant.as_mut());
        if let Some(tolerant) = tolerant {
            tolerant.expected = servers.to_vec();
        }
    }

    /// Whether anything of a call may have left this endpoint.
    pub fn was_sent(&self, key: CallKey) -> bool {
        let call = self.calls.peek(key.0);
        call.is_some_and(|call| call.roots.iter().any(|root| root.session.is_some()))
    }

    /// Whether a connection has taken this initial request of a call, or the call goes on without. If not, [`Output::Sent`] tells
    /// when one is taken, or the call has ended.
    pub fn is_sent(&mut self, key: CallKey, request: RequestId) -> bool {
        let Some(call) = self.calls.kept(key.0) else {
            return true;
        };
        let root = call.root(request);
        let is_sent = root.is_none_or(|root| root.session.is_some() || root.lost);
        call.wants_sent |= !is_sent;
        is_sent
    }

    /// How many times initial requests of a call were sent again.
    pub fn resent(&self, key: CallKey) -> u32 {
        let call = self.calls.peek(key.0);
        let resending = call.and_then(|call| call.resending.as_ref());
        resending.map_or(0, |resending| resending.resent())
    }

    /// A call has failed for a reason of the application's, before it was sent perhaps.
    pub fn fail_call(&mut self, key: CallKey, failure: Failure) {
        self.end_call(key.0, Err(failure));
    }

    /// Whether anything of a call may still run.
    pub fn is_live(&self, key: CallKey) -> bool {
        self.calls.get(key.0).is_some()
    }

    /// How a call is made; `None` if it was not told to be made in any special way, or is forgotten.
    pub fn options(&self, key: CallKey) -> Option<&CallOptions> {
        self.calls.peek(key.0)?.options.as_deref()
    }

    /// The name that a call has everywhere.
    pub fn call_id(&self, key: CallKey) -> CallId {
        CallId {
            initiator: self.node,
            sequence: key.0,
        }
    }

    /// The application learns that there is something to take of a call.
    pub(super) fn tell_of(&mut self, sequence: u64) {
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

    // How calls end.

    pub(super) fn call_deadline(&mut self, sequence: u64) {
        let Some(call) = self.calls.get(sequence).filter(|call| !call.ended) else {
            return;
        };
        let failure = Failure::Deadline {
            after: call.time,
            missing: call.missing(self.config.ping, self.now),
        };
        self.end_call(sequence, Err(failure));
    }

    /// A call has come to its outcome; nothing changes that. What still runs somewhere is told to stop.
    pub(super) fn end_call(&mut self, sequence: u64, outcome: Result<(), Failure>) {
        if outcome.is_ok() {
            self.note_losses(sequence);
        }
        let Some(call) = self.calls.get_mut(sequence).filter(|call| !call.ended) else {
            return;
        };
        let losses = call.tolerant.as_ref();
        let losses = losses.map_or(0, |tolerant| tolerant.losses.len() as u64);
        match &outcome {
            Ok(()) => self.metrics.calls_completed += 1,
            Err(Failure::Aborted { .. } | Failure::FailedFast) => self.metrics.calls_aborted += 1,
            Err(_) => self.metrics.calls_failed += 1,
        }
        call.ended = true;
        if let Some(request) = call.within.take() {
            self.within.remove(&(request, sequence));
        }
        if std::mem::take(&mut call.wants_sent) {
            self.outputs.push_back(Output::Sent(CallKey(sequence)));
        }
        if let Some(traced) = &mut call.traced {
            traced.ended = Some(self.raw);
        }
        // What was lost may run all the same.
        let whole = outcome.is_ok() && losses == 0;
        call.outcome = Some(match outcome {
            Ok(()) => Outcome::Complete {
                statuses: call.initiator.responses().1 + losses,
            },
            Err(failure) => Outcome::Failed(Box::new(failure)),
        });
        if call.reported
            && let Some(outcome) = call.outcome.clone()
        {
            let status = call.status;
            let end = Box::new(ReportedEnd { outcome, status });
            self.outputs
                .push_back(Output::Ended(CallKey(sequence), end));
        }
        let mut rested = Vec::new();
        for root in call.roots.iter() {
            if let Some(peer) = root.session.and_then(|id| self.conns.get_mut(id)) {
                peer.busy = peer.busy.saturating_sub(1);
                let rests = peer.busy == 0 && self.places.has_needed();
                rested.extend(root.session.filter(|_| rests));
            }
        }
        rested.into_iter().for_each(|id| self.may_rest(id));
        if !self.bodies.is_empty() {
            self.break_bodies_of_call(sequence);
        }
        if !whole {
            self.credit_all(sequence);
        }
        if self
            .calls
            .get(sequence)
            .is_some_and(|call| call.resending.is_some())
        {
            self.end_resending(sequence);
        }
        self.tell_of(sequence);
        if whole || !self.wind_down(sequence) {
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
        self.note_space();
        if self.config.keep_ended && self.calls.peek(sequence).is_some() {
            self.outputs.push_back(Output::Settled(CallKey(sequence)));
        }
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

    /// The ping settings of a call.
    fn ping_of(&self, sequence: u64) -> PingSettings {
        let default = self.config.ping;
        let call = self.calls.get(sequence);
        call.map_or(default, |call| call.ping(default)).bounded()
    }

    pub(super) fn timeout_of(&self, sequence: u64) -> Duration {
        self.ping_of(sequence).timeout
    }

    pub(super) fn period_of(&self, sequence: u64) -> Duration {
        self.ping_of(sequence).period
    }

    /// A call does not need a connection any more.
    pub(super) fn needs_less(&mut self, id: ConnId) {
        if let Some(conn) = self.conns.get_mut(id) {
            conn.busy = conn.busy.saturating_sub(1);
            self.may_rest(id);
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
            (root.sent, root.mark) = (mark, mark);
            root.node = peer.node();
            root.lost = false;
            peer.carried_calls = true;
            peer.busy += 1;
        }
        if std::mem::take(&mut call.wants_sent) {
            self.outputs.push_back(Output::Sent(CallKey(sequence)));
        }
        if std::mem::take(&mut call.waits_for_root) {
            self.watch_at(sequence, Some(self.now));
        } else if call.watch.is_some() {
            self.watch_root(sequence, request);
        }
        if let Mark::Parts(number) = mark {
            self.note_large(session, number, MarkOwner::Root(sequence, request));
        }
    }

    /// The last part of an initial request has been added to the output.
    pub(super) fn root_left(&mut self, sequence: u64, request: RequestId, mark: u64) {
        let call = self.calls.get_mut(sequence);
        if let Some(root) = call.and_then(|call| call.root(request)) {
            (root.sent, root.mark) = (Mark::Written(mark), Mark::Written(mark));
        }
    }

    /// An initial request certainly reaches nobody.
    pub(super) fn not_sent(&mut self, sequence: u64, request: RequestId, error: ConnectError) {
        if self.ending {
            return self.end_call(sequence, Err(Failure::Closed));
        }
        if let Some(call) = self.calls.get(sequence) {
            self.probe
                .notes(Note::Undelivered(call.initiator.call(), request));
        }
        if !self.try_elsewhere(sequence, request) {
            self.initial_lost(sequence, request, Failure::NotSent { request, error });
        }
    }

    /// The initial requests of which it was known at once that they cannot be sent.
    pub(super) fn tell_of_unsent(&mut self) {
        while let Some((sequence, request, failure)) = self.unsent.pop() {
            self.initial_lost(sequence, request, failure);
        }
    }

    /// Nothing comes of an initial request, and the call ends with that, unless it goes on without what is lost.
    fn initial_lost(&mut self, sequence: u64, request: RequestId, failure: Failure) {
        if !self.tolerates(sequence, request, &failure) {
            self.end_call(sequence, Err(failure));
        }
    }

    /// One of several initial requests of a call that goes on without what is lost certainly reaches nobody: a status says so in
    /// its name. Whether it is so.
    #[cold]
    fn tolerates(&mut self, sequence: u64, request: RequestId, failure: &Failure) -> bool {
        let Some(call) = self.calls.get_mut(sequence).filter(|call| !call.ended) else {
            return false;
        };
        let is_only_one = call.initiator.is_closed() && call.roots.iter().count() < 2;
        if call.tolerant.is_none() || is_only_one {
            return false;
        }
        if let Some(root) = call.root(request) {
            root.lost = true;
        }
        if std::mem::take(&mut call.wants_sent) {
            self.outputs.push_back(Output::Sent(CallKey(sequence)));
        }
        let message = match failure {
            Failure::NotSent { error, .. } => error.to_string(),
            other => other.to_string(),
        };
        let status = Status::new(failure.code(), message).by(failure.server());
        self.answer_in_its_name(sequence, request, &status);
        true
    }

    /// The server of an initial request was closed, and has said that it has not read it: it is tried elsewhere, or ends with the
    /// status that it would have got there.
    pub(super) fn not_read(&mut self, sequence: u64, request: RequestId) {
        let root = self
            .calls
            .get_mut(sequence)
            .and_then(|call| call.root(request));
        let Some(root) = root else { return };
        self.probe.notes(Note::Unread);
        let (server, session) = (root.server.clone(), root.session.take());
        if self.try_elsewhere(sequence, request) {
            return;
        }
        let root = self
            .calls
            .get_mut(sequence)
            .and_then(|call| call.root(request));
        if let Some(root) = root {
            root.session = session; // what else went out there is still asked about
        }
        let status = shutting_down().by(Some(&server));
        self.answer_in_its_name(sequence, request, &status);
    }

    /// An initial request certainly is not executed: this status ends it.
    fn answer_in_its_name(&mut self, sequence: u64, request: RequestId, status: &Status) {
        if let Some(call) = self.calls.get(sequence) {
            let (call, token) = (call.initiator.call(), call.token);
            let response = undelivered_initial(call, token, request, status);
            self.probe.replaced(&response);
            self.local.push_back(Message::Response(response));
        }
    }

    /// A session does not take an initial request at all.
    pub(super) fn root_refused(
        &mut self,
        sequence: u64,
        request: RequestId,
        to: &Address,
        refusal: Refusal,
    ) {
        self.initial_lost(sequence, request, refused(request, to, refusal));
    }
}

impl Call {
    pub(super) fn resending(&mut self) -> Option<&mut Resending> {
        self.resending.as_deref_mut()
    }

    pub(super) fn root(&mut self, request: RequestId) -> Option<&mut InitialRequest> {
        let index = request.path.initial_index()? as usize;
        let root = self.roots.get_mut(index)?;
        (root.request.path == request.path).then_some(root)
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
        own: Option<&CallOptions>,
        id: RequestId,
    ) -> Option<Box<Options>> {
        let ping = Some(self.ping(ping)).filter(|ping| *ping != DEFAULT_PING);
        let own = own.or(self.options.as_deref());
        let travels = |own: &&CallOptions| {
            !own.metadata.is_empty() || own.continuation.is_some() || own.durable.is_some()
        };
        let own = own.filter(travels);
        if own.is_none() && budgets.is_none() && ping.is_none() {
            return None;
        }
        let continuation = own.and_then(|own| own.continuation.as_ref());
        Some(Box::new(Options {
            ping,
            metadata: own.map(|own| own.metadata.clone()).unwrap_or_default(),
            continuation: continuation.map(|continuation| continuation.bytes().clone()),
            durable: own.and_then(|own| own.durable).map(|durable| {
                let index = id.path.initial_index().unwrap_or(0);
                durable.initial(index)
            }),
            budgets,
            ..Options::default()
        }))
    }
}

pub(super) fn cost_of(payload: usize) -> u64 {
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
        Refusal::NotUnderstood { what } => Failure::NotUnderstood {
            request,
            server,
            what,
        },
        refusal => Failure::Refused {
            request,
            server,
            reason: refusal.to_string(),
        },
    }
}
