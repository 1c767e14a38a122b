//! The initiator's side: calls, their answers, and how they end.

use std::sync::Arc;
use std::time::Duration;

use crate::call::initiator::Initiator;
use crate::call::watch::{Location, Loss, Source};
use crate::connection::{Mark, MethodDefinition, Refusal};
use crate::wire::{Budgets, Continuation, Heartbeats, Message, Metadata, PingSettings};
use crate::{Address, CallId, ConnId, DurableId, NodeId, Path, RequestId, Token};
use bytes::Bytes;

use super::answers::cost_of;
use super::bodies::OutBody;
use super::client::{CallContext, ClientAction, ClientCall};
use super::config::Config;
use super::conn::{Cargo, Conns, OutRequest, Parcel};
use super::directory::Directory;
use super::event::{CallKey, Next, Outcome, Output, ReportedEnd, RequestKey};
use super::probe::{Note, Probe};
use super::resending::Resend;
use super::sockets::Sockets;
use super::streams::MarkOwner;
use super::{Alarm, Endpoint};
use crate::error::{CallError, CodecError, ConnectError, Failure, UnreadableAnswer};
use crate::trace::{self, Trace};

/// How a call is made. There may be more fields in any later version: end a literal with `..Default::default()`.
#[derive(Debug, Clone, PartialEq, Default)]
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
    /// Its servers show unasked that they live, and are asked only if they do not; as long as none is late no ping is sent. What is
    /// beyond [`Heartbeats::bounded`] is taken for the nearest that is not. Not by default.
    pub heartbeats: Option<Heartbeats>,
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

/// What follows an initial request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Follows {
    /// Nothing.
    Nothing,
    /// Bytes that its server reads as they come.
    Body,
}

impl Follows {
    /// The body, if there is one.
    pub fn of<T>(body: Option<&T>) -> Self {
        match body {
            Some(_) => Self::Body,
            None => Self::Nothing,
        }
    }
}

/// A call of an endpoint.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) client: ClientCall,
    /// It is being followed: what that tells it is followed, too.
    followed: bool,
    /// When it wants to be looked at.
    pub(super) watch_due: Option<Duration>,
    /// The application was told that there is something to take.
    told: bool,
    /// The request on whose behalf it was made.
    pub(super) within: Option<RequestKey>,
    /// Its end is told by itself, and was not yet.
    pub(super) reported: bool,
    /// Nobody wants to know how it ends, or somebody knows already.
    pub(super) taken: bool,
    /// It has ended, and nothing of it runs any more: it is only kept for its outcome.
    pub(super) over: bool,
}

impl Call {
    #[inline]
    pub(super) fn new(client: ClientCall) -> Self {
        Self {
            client,
            followed: false,
            watch_due: None,
            told: false,
            within: None,
            reported: false,
            taken: false,
            over: false,
        }
    }
}

/// What calls ask about their endpoint.
pub(super) struct Surroundings<'a> {
    config: &'a Config,
    now: Duration,
    raw: Duration,
    own: (NodeId, Option<&'a Address>),
    conns: &'a Conns,
    sockets: &'a Sockets,
    directory: &'a Directory,
}

impl CallContext for Surroundings<'_> {
    fn config(&self) -> &Config {
        self.config
    }

    fn now(&self) -> Duration {
        self.now
    }

    fn raw(&self) -> Duration {
        self.raw
    }

    fn source(&self, from: Option<ConnId>) -> Source {
        let Some(from) = from else {
            let (node, address) = self.own;
            let location = Location {
                address: address.cloned(),
                node: Some(node),
            };
            return Source {
                location,
                alone: false,
            };
        };
        let Some(conn) = self.conns.get(from) else {
            return Source::default();
        };
        let node = conn.node();
        let connections = node.map_or(0, |node| self.directory.with(node).len());
        Source {
            location: Location {
                address: conn.hello().and_then(|hello| hello.address.clone()),
                node,
            },
            alone: node.is_some() && connections <= 1,
        }
    }

    fn is_open(&self, conn: ConnId) -> bool {
        self.conns.contains(conn)
    }

    fn messages_received(&self, conn: ConnId) -> u64 {
        let conn = self.conns.get(conn);
        let carrier = conn.and_then(|conn| conn.link.peek(self.sockets));
        carrier.map_or(0, |carrier| carrier.counters().messages_received)
    }

    fn is_writing(&self, conn: ConnId, mark: Mark) -> bool {
        let conn = self.conns.get(conn);
        conn.is_some_and(|conn| conn.is_writing(self.sockets, mark))
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
        if self.is_closed() {
            return Err(self.why_closed());
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
        self.metrics.calls_started += 1;
        let (config, raw) = (&self.config, self.raw);
        self.calls.add(sequence, || {
            Call::new(ClientCall::new(id, token, options, config, raw))
        });
        let call = self.calls.get_mut(sequence).ok_or(Failure::Closed)?;
        call.client.initiator.count_in(&self.branches);
        let ping = options.ping.unwrap_or(self.config.ping).bounded();
        // After half its time there is still some to ask who is slow.
        let unwatched = ping.period.min(call.client.time / 2);
        // Calls that are over sooner cost no place among the alarms: their deadline is set when they are first looked at.
        if unwatched < self.config.ping.period {
            self.watch_at(sequence, Some(self.now.saturating_add(unwatched)));
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
        let (request, _) = self.send_with(key, server, method, payload, None, Follows::Nothing)?;
        Ok(request)
    }

    /// The same with metadata, a continuation and a durable id of its own in place of the call's, if `own` is given: nothing else
    /// of it counts. If a body follows it, that is to be [written](Self::write_body). It can be read once, so the request is
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
        follows: Follows,
    ) -> Result<(RequestId, Option<OutBody>), Failure> {
        let request = self.begin_initial(key, server, method)?;
        let body = (follows == Follows::Body).then(|| self.bodies.begin_root(key.0));
        let to = (server, method);
        if let Err(failure) = self.try_initial(key, request, to, payload, own, body) {
            if let Some(body) = body {
                self.forget_body(body);
            }
            self.give_initial_up(key, request, failure)?;
        }
        Ok((request, body))
    }

    /// Sends the only initial request of a call, which gets all of its budgets, and closes the call. If a body follows it, that
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
        follows: Follows,
    ) -> Result<(RequestId, Option<OutBody>), Failure> {
        self.share_among(key, 1);
        let sent = self.send_with(key, server, method, payload, None, follows);
        self.close_call(key);
        sent
    }

    /// Why a call that is over takes no requests.
    fn takes_none(&self) -> Failure {
        match self.is_closed() {
            true => self.why_closed(),
            false => Failure::CallClosed,
        }
    }

    /// A place for an initial request among those of its call.
    fn begin_initial(
        &mut self,
        key: CallKey,
        server: &Address,
        method: &Arc<MethodDefinition>,
    ) -> Result<RequestId, Failure> {
        let none = self.takes_none();
        let call = self.calls.get_mut(key.0).ok_or(none)?;
        let request = call.client.add_root(server, method);
        if request.is_err() {
            self.follow(key.0);
        }
        request
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
        if call.is_some_and(|call| call.client.tolerant.is_some()) {
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
        let oldest = self.calls.oldest();
        let none = self.takes_none();
        let (call, context) = self.call(key.0).ok_or(none)?;
        let mut request = call.initial(id, payload, own, &context);
        request.oldest = oldest;
        if body.is_some() {
            request.options.get_or_insert_default().body = Some(0); // its number is the connection's business
        } else if call.resending.is_some() {
            self.keep(key.0, &mut request, (server, method));
        }
        if let Some(id) = self.conn_at(server)
            && self
                .conns
                .get(id)
                .is_some_and(|conn| !conn.holds_requests(body.is_some()))
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
        let payload = request.payload.len();
        if !self.queue_room.has_room(payload) {
            self.drop_ended_requests();
        }
        if !self.queue_room.has_room(payload) {
            let reason = "too much waits to be sent already".into();
            return Err(Failure::Refused {
                request: id,
                server: server.clone(),
                reason,
            });
        }
        self.post(Parcel::new(Cargo::Request(OutRequest {
            request,
            server: server.clone(),
            method: Arc::clone(method),
            body,
            delegated: None,
        })));
        Ok(())
    }

    /// No further initial request of a call comes.
    pub fn close_call(&mut self, key: CallKey) {
        self.tell(key.0, |call, _| call.close());
    }

    /// Says how many initial requests of a call will come: each gets an equal part of its budgets, if these are stated.
    pub fn share_among(&mut self, key: CallKey, requests: u32) {
        if let Some(call) = self.calls.get_mut(key.0)
            && let Some(allowance) = &mut call.client.allowance
        {
            allowance.announce(requests);
        }
    }

    /// From now on the end of a call is told as soon as it comes, whoever takes its answers: [`Output::Ended`]. If it has come,
    /// this is it.
    pub fn report_end(&mut self, key: CallKey) -> Option<ReportedEnd> {
        let call = self.calls.get_mut(key.0);
        if let Some(call) = call.filter(|call| !call.client.has_ended()) {
            call.reported = true;
            return None;
        }
        let call = self.calls.peek(key.0);
        let end = call.and_then(|call| call.client.reported_end());
        Some(end.unwrap_or_else(|| match self.has_panicked() {
            true => ReportedEnd::failed(&self.why_closed()),
            false => ReportedEnd::failed(&Failure::aborted()),
        }))
    }

    /// Gives a call up: it fails with [`Failure::Aborted`], and what runs of it elsewhere is stopped.
    pub fn abort(&mut self, key: CallKey) {
        self.tell(key.0, |call, context| call.abort(context));
    }

    /// Nobody wants to hear of a call any more: it is aborted if it lives, and forgotten when nothing of it runs.
    pub fn forget(&mut self, key: CallKey) {
        self.end_call(key.0, Err(Failure::aborted()));
        if let Some(call) = self.calls.kept(key.0) {
            call.taken = true;
            self.untaken -= call.client.forget_answers();
            self.calls.leave(key.0);
        }
    }

    /// The tree of hops of a call, as far as it is known now; what hops report of themselves only of a traced one.
    pub fn trace(&self, key: CallKey) -> Option<Trace> {
        let call = &self.calls.peek(key.0)?.client;
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
        let tree = &call.initiator;
        Some(trace::assemble(tree, begun, elapsed, &roots, &answered))
    }

    /// The next answer of a call, or how it ended: then it is forgotten. What is taken makes room for more.
    pub fn next_answer(&mut self, key: CallKey) -> Next {
        let Some(call) = self.calls.kept(key.0) else {
            let ended = self.outcome_of_unknown().cloned();
            return ended.map_or(Next::Pending, Next::Ended);
        };
        if let Some(answer) = call.client.next_answer(self.config.limits.call) {
            self.untaken -= 1;
            match answer.from {
                Some(_) if call.client.has_work() => self.follow(key.0),
                Some(_) => {}
                None => self.note_space(),
            }
            return Next::Answer(answer);
        }
        let Some(outcome) = &call.client.outcome else {
            call.told = false;
            return Next::Pending;
        };
        if self.config.keep_ended {
            return Next::Ended(outcome.clone());
        }
        if call.client.traced.is_some() {
            return self.take_trace(key);
        }
        let Some(outcome) = call.client.outcome.take() else {
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
            call.client.traced = None;
        }
        trace.map_or(Next::Pending, |trace| Next::Trace(Box::new(trace)))
    }

    /// Whether [`next_answer`](Self::next_answer) has something of a call.
    pub fn has_next(&self, key: CallKey) -> bool {
        let call = self.calls.peek(key.0);
        match call.map(|call| &call.client) {
            Some(call) => !call.answers.is_empty() || call.outcome.is_some(),
            None => self.has_panicked(),
        }
    }

    /// Whether a call has come to its outcome, though the application may not have taken all of its answers.
    pub fn has_ended(&self, key: CallKey) -> bool {
        let call = self.calls.peek(key.0);
        call.is_none_or(|call| call.client.has_ended())
    }

    /// How a call has ended; `None` while it goes on, and once it is forgotten.
    pub fn outcome(&self, key: CallKey) -> Option<&Outcome> {
        match self.calls.peek(key.0) {
            Some(call) => call.client.outcome(),
            None => self.outcome_of_unknown(),
        }
    }

    /// What is known of a call's tree.
    pub fn tree(&mut self, key: CallKey) -> Option<&mut Initiator> {
        Some(self.calls.kept(key.0)?.client.tree())
    }

    /// Says of an answer that a shell could not read whose it was, as far as that is known.
    #[cold]
    pub fn unreadable(&self, key: CallKey, request: RequestId, error: CodecError) -> CallError {
        let mut answer = UnreadableAnswer::new(request, error);
        if let Some(call) = self.calls.peek(key.0) {
            answer.method = call.client.method_of(request);
            answer.server = call.client.server_of(request).address;
        }
        answer.into()
    }

    /// What a call has gone on without ([`CallOptions::tolerant`]).
    pub fn losses(&self, key: CallKey) -> &[Arc<Loss>] {
        let call = self.calls.peek(key.0);
        call.map_or(&[], |call| call.client.losses())
    }

    /// The first delegation of a call's first request goes to the first of these servers, the first one of that to the next, and so
    /// on: so a call that goes on without what is lost can go on without each of them. Said before it is watched over.
    pub fn expect_servers(&mut self, key: CallKey, servers: &[Address]) {
        if let Some(call) = self.calls.kept(key.0)
            && let Some(tolerant) = &mut call.client.tolerant
        {
            tolerant.expected = servers.to_vec();
        }
    }

    /// Whether anything of a call may have left this endpoint.
    pub fn was_sent(&self, key: CallKey) -> bool {
        let call = self.calls.peek(key.0);
        call.is_some_and(|call| call.client.was_sent())
    }

    /// Whether a connection has taken this initial request of a call, or the call goes on without. If not, [`Output::Sent`] tells
    /// when one is taken, or the call has ended.
    pub fn is_sent(&mut self, key: CallKey, request: RequestId) -> bool {
        let call = self.calls.kept(key.0);
        call.is_none_or(|call| call.client.is_sent(request))
    }

    /// How many times initial requests of a call were sent again.
    pub fn resent(&self, key: CallKey) -> u32 {
        let call = self.calls.peek(key.0);
        let resending = call.and_then(|call| call.client.resending.as_ref());
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
        self.calls.peek(key.0)?.client.options.as_deref()
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

    /// A call, as long as anything of it may run, and what it may ask.
    #[inline]
    pub(super) fn call(&mut self, sequence: u64) -> Option<(&mut ClientCall, Surroundings<'_>)> {
        let call = &mut self.calls.get_mut(sequence)?.client;
        let surroundings = Surroundings {
            config: &self.config,
            now: self.now,
            raw: self.raw,
            own: (self.node, self.address.as_ref()),
            conns: &self.conns,
            sockets: &self.sockets,
            directory: &self.directory,
        };
        Some((call, surroundings))
    }

    /// Tells a call something, and does what it wants done then.
    pub(super) fn tell(
        &mut self,
        sequence: u64,
        event: impl FnOnce(&mut ClientCall, &Surroundings<'_>),
    ) {
        if let Some((call, context)) = self.call(sequence) {
            event(call, &context);
            self.follow(sequence);
        }
    }

    /// Does what a call wants done.
    pub(super) fn follow(&mut self, sequence: u64) {
        let Some(call) = self.calls.get_mut(sequence) else {
            return;
        };
        let answers = call.client.take_untold();
        self.untaken += answers;
        if answers > 0 && !call.taken && !std::mem::replace(&mut call.told, true) {
            self.outputs.push_back(Output::Call(CallKey(sequence)));
        }
        // What is being done for it may tell it more: that is followed there.
        if !call.client.has_work() || std::mem::replace(&mut call.followed, true) {
            return;
        }
        while let Some((call, context)) = self.call(sequence)
            && let Some(action) = call.poll(&context)
        {
            self.act_on_call(sequence, action);
        }
        let Some(call) = self.calls.get_mut(sequence) else {
            return;
        };
        call.followed = false;
        let (is_watched, due) = (call.client.is_watched(), call.client.next_timeout());
        if is_watched && call.client.initiator.has_adopted() {
            self.tell_of(sequence);
        }
        if is_watched || due.is_some() {
            self.watch_at(sequence, due);
        }
    }

    fn act_on_call(&mut self, sequence: u64, action: ClientAction) {
        match action {
            ClientAction::Answers(more) => {
                self.untaken += more;
                self.tell_of(sequence);
            }
            ClientAction::Sent => self.outputs.push_back(Output::Sent(CallKey(sequence))),
            ClientAction::SendAgain(again) => self.send_again(*again),
            ClientAction::SendLater(request, at) => {
                self.alarms.insert((at, Alarm::Resend(sequence, request)));
            }
            ClientAction::ExecutedAgain(conn) => {
                self.metrics.resends += 1;
                if let Some(conn) = conn {
                    self.needs_less(conn);
                }
            }
            ClientAction::Replaced(status) => {
                self.probe.replaced(&status);
                self.local.push_back(Message::Response(*status));
            }
            ClientAction::Grant(conn, answers, bytes) => {
                let id = self.call_id(CallKey(sequence));
                if let Some(carrier) = self.carrier(conn) {
                    carrier.grant_call(id, answers, bytes);
                }
            }
            ClientAction::Ping(asked) => self.send_ping(asked.0, asked.1),
            // Where there is no room, the next announcement asks for it again.
            ClientAction::PingOver(conn, ping) => {
                self.note_asked(sequence, conn);
                self.attempt_control(conn, Message::Ping(*ping));
            }
            ClientAction::Watched => {
                self.probe.notes(Note::Watched);
                self.set_deadline(sequence); // it may not have been looked at yet, and its watch may have nothing to wait for
            }
            ClientAction::Noted(note) => self.probe.notes(note),
            ClientAction::Ended => self.call_ended(sequence),
            ClientAction::Quiet => {
                let call = self.calls.get(sequence);
                if call.is_some_and(|call| call.client.is_watched()) {
                    self.probe.notes(Note::Quiet);
                }
                self.call_over(sequence);
            }
        }
    }

    // How calls end.

    pub(super) fn call_deadline(&mut self, sequence: u64) {
        self.tell(sequence, |call, context| call.handle_deadline(context));
    }

    /// A call comes to its outcome, unless it has before.
    pub(super) fn end_call(&mut self, sequence: u64, outcome: Result<(), Failure>) {
        self.tell(sequence, |call, _| call.end(outcome));
    }

    /// A call has come to its outcome: that is told, and it needs less from now on.
    fn call_ended(&mut self, sequence: u64) {
        let Some(call) = self.calls.get_mut(sequence) else {
            return;
        };
        let outcome = call.client.outcome();
        match outcome {
            Some(Outcome::Failed(failure)) => match **failure {
                Failure::Aborted { .. } | Failure::FailedFast => self.metrics.calls_aborted += 1,
                _ => self.metrics.calls_failed += 1,
            },
            _ => self.metrics.calls_completed += 1,
        }
        if std::mem::take(&mut call.reported)
            && let Some(end) = call.client.reported_end()
        {
            self.outputs
                .push_back(Output::Ended(CallKey(sequence), Box::new(end)));
        }
        if let Some(resending) = &mut call.client.resending {
            self.kept -= resending.release();
        }
        let mut rested = Vec::new();
        for root in call.client.roots.iter() {
            if let Some(conn) = root.session.and_then(|id| self.conns.get_mut(id)) {
                conn.busy = conn.busy.saturating_sub(1);
                let rests = conn.busy == 0 && self.places.has_needed();
                rested.extend(root.session.filter(|_| rests));
            }
        }
        let is_over = call.client.is_over();
        rested.into_iter().for_each(|id| self.may_rest(id));
        if !self.bodies.is_empty() {
            self.break_bodies_of_call(sequence);
        }
        self.tell_of(sequence);
        if is_over {
            self.call_over(sequence);
        }
    }

    /// Nothing of a call runs any more.
    pub(super) fn call_over(&mut self, sequence: u64) {
        self.watch_at(sequence, None);
        if let Some(call) = self.calls.get(sequence) {
            let alarm = (call.client.deadline, Alarm::Call(sequence));
            if !self.alarms.is_empty() {
                self.alarms.remove(&alarm);
            }
            if let Some(request) = call.within {
                self.call_within_over(request, sequence);
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
        let call = self.calls.get(sequence).map(|call| &call.client);
        if let Some(call) = call.filter(|call| !call.has_ended()) {
            self.alarms.insert((call.deadline, Alarm::Call(sequence)));
        }
    }

    /// A call does not need a connection any more.
    pub(super) fn needs_less(&mut self, id: ConnId) {
        if let Some(conn) = self.conns.get_mut(id) {
            conn.busy = conn.busy.saturating_sub(1);
            self.may_rest(id);
        }
    }

    pub(super) fn is_over(&self, sequence: u64) -> bool {
        let call = self.calls.get(sequence);
        call.is_none_or(|call| call.client.has_ended())
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
        let Some(conn) = self.conns.get_mut(session) else {
            return;
        };
        let node = conn.node();
        let Some((call, context)) = self.call(sequence) else {
            return;
        };
        let sent = (session, node);
        let has_news = call.root_sent(request, sent, mark, &context);
        if let Some(conn) = self.conns.get_mut(session) {
            conn.carried_calls = true;
            conn.busy += 1;
        }
        if has_news {
            self.follow(sequence);
        }
        if let Mark::Parts(number) = mark {
            self.note_large(session, number, MarkOwner::Root(sequence, request));
        }
    }

    /// The last part of an initial request has been added to the output.
    pub(super) fn root_left(&mut self, sequence: u64, request: RequestId, mark: u64) {
        if let Some(call) = self.calls.get_mut(sequence) {
            call.client.root_left(request, mark);
        }
    }

    /// An initial request certainly reaches nobody.
    pub(super) fn not_sent(&mut self, sequence: u64, request: RequestId, error: ConnectError) {
        if self.is_ending() {
            return self.end_call(sequence, Err(self.why_closed()));
        }
        if let Some((call, context)) = self.call(sequence) {
            call.not_sent(request, error, &context);
            let id = self.call_id(CallKey(sequence));
            self.probe.notes(Note::Undelivered(id, request));
            self.follow(sequence);
        }
    }

    /// The initial requests of which it was known at once that they cannot be sent.
    pub(super) fn tell_of_unsent(&mut self) {
        while let Some((sequence, request, failure)) = self.unsent.pop() {
            self.tell(sequence, |call, _| call.root_lost(request, failure));
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
        let failure = refused(request, to, refusal);
        self.tell(sequence, |call, _| call.root_lost(request, failure));
    }
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
