//! The server half of a call: numbers what a handler sends, and sees to it that its manifest leaves with it.
//!
//! The latest message is held back, since only the last one can carry the manifest (thesis 4.3.1); a held-back message
//! does not exist yet: its number, path and manifest are given when it is released (docs/protocol.md, rule 3). The parent's
//! manifest travels in the first message, the branch's own in the last:
//!
//! | the request sent | its end is told by |
//! |---|---|
//! | responses only | a flag in the last one |
//! | one delegation, last (replies before it do not matter) | nothing: the branch goes on there, one hop further |
//! | more | the manifest in the last message |
//! | nothing | a null response ([`End`]) |
//! | its last message before it was known to be the last | an [`End`] with the manifest |
//!
//! Where the call's budgets are stated, they are split here (see [`crate::call::allowance`]): the driver asks before each
//! answer and each delegation whether it is within them, and ends a request that is not with a status.

use std::iter::{self, Chain, Once};
use std::option;
use std::time::Duration;

use bytes::Bytes;

use crate::address::Address;
use crate::call::allowance::{Allowance, Budget, Exhausted};
use crate::id::{CallId, RequestId, Token};
use crate::manifest::{Facts, Manifest, relayed};
use crate::status::{Code, Status};
use crate::wire::{
    Budgets, End, MAX_TRACE_RECORDS, MessageOptions, MethodRef, ReplyTo, Request, Response,
    TraceRecord,
};

/// The server half of one request. `T` says where a delegated request goes and which method it calls there: whatever
/// the driver needs to send it.
///
/// Each operation returns the messages that must now be sent, in order.
#[derive(Debug)]
pub struct ServerHalf<T> {
    call: CallId,
    token: Token,
    id: RequestId,
    depth: u32,
    /// Number of the branch's next response.
    responses: u32,
    /// Number of the next child request.
    requests: u32,
    manifest: Option<Manifest>,
    held: Option<HeldMessage<T>>,
    traced: Option<Vec<TraceRecord>>,
    /// What it may use up, if the call's budgets are stated or this server has a maximum.
    allowance: Option<Box<Allowance>>,
    /// It may run again: where its messages stand must not depend on when its handler yields.
    repeatable: bool,
    ended: bool,
}

/// A message that waits to learn whether it is the last.
#[derive(Debug)]
enum HeldMessage<T> {
    Response { status: bool, payload: Bytes },
    Request { to: T, payload: Bytes },
}

/// A message to send.
#[derive(Debug, PartialEq)]
pub enum Outbound<T> {
    /// To the initiator.
    Response(Response),
    /// To the initiator.
    End(End),
    /// To the next server.
    Request(Delegated<T>),
}

/// A request for the next server; the driver adds what only it knows: reply address, deadline, method number.
#[derive(Debug, PartialEq)]
pub struct Delegated<T> {
    /// Where it goes, as the handler said.
    pub to: T,
    /// Its place in the tree.
    pub id: RequestId,
    /// How many hops led there.
    pub depth: u32,
    /// How many responses its branch has sent.
    pub base: u32,
    /// The manifest that it carries on.
    pub manifest: Option<Manifest>,
    /// Whether the hops of this call report their timings.
    pub traced: bool,
    /// What the hops before it report, in a traced call.
    pub trace: Vec<TraceRecord>,
    /// Its share of the call's budgets, if these are stated.
    pub budgets: Option<Box<Budgets>>,
    /// The arguments.
    pub payload: Bytes,
}

/// What all requests delegated by one handler have in common.
#[derive(Debug, Clone)]
pub struct Inherited {
    /// Where answers go.
    pub reply_to: ReplyTo,
    /// How much time remains now.
    pub deadline: Option<Duration>,
    /// The initiator's oldest live call, as far as known.
    pub oldest: u64,
    /// Optional fields; the trace records are added to them, and the share of the budgets takes the place of the whole.
    pub options: Option<Box<MessageOptions>>,
}

/// The messages of an operation that ends a request.
#[derive(Debug, PartialEq)]
pub struct LastMessages<T> {
    /// The one held back before; it leaves first. Boxed, since messages are large and most requests send a single one.
    pub before: Option<Box<Outbound<T>>>,
    /// The last one.
    pub last: Outbound<T>,
}

/// In the order in which they leave.
impl<T> IntoIterator for LastMessages<T> {
    type Item = Outbound<T>;
    type IntoIter = Chain<option::IntoIter<Outbound<T>>, Once<Outbound<T>>>;

    fn into_iter(self) -> Self::IntoIter {
        let before = self.before.map(|before| *before);
        before.into_iter().chain(iter::once(self.last))
    }
}

impl<T> Delegated<T> {
    /// The complete message for a server where the method has this name.
    #[inline]
    pub fn into_request(
        self,
        call: CallId,
        token: Token,
        method: MethodRef,
        inherited: Inherited,
    ) -> (T, Request) {
        let mut options = inherited.options;
        if !self.trace.is_empty() {
            options.get_or_insert_default().trace = self.trace;
        }
        if let Some(budgets) = self.budgets {
            options.get_or_insert_default().budgets = Some(*budgets);
        }
        let request = Request {
            call,
            token,
            id: self.id,
            depth: self.depth,
            base: self.base,
            reply_to: inherited.reply_to,
            manifest: relayed(&self.manifest),
            deadline: inherited.deadline,
            oldest: inherited.oldest,
            traced: self.traced,
            compressed: false,
            waited: Duration::ZERO,
            options,
            method,
            payload: self.payload,
        };
        (self.to, request)
    }
}

impl<T> ServerHalf<T> {
    /// The server half of a request that arrived; takes the trace records it carried.
    #[inline]
    pub fn new(request: &mut Request) -> Self {
        Self::bounded(request, None)
    }

    /// The same at a server that lets no request use up more than `most`, whatever it states.
    #[inline]
    pub fn bounded(request: &mut Request, most: Option<&Budgets>) -> Self {
        match (&request.options, most, &request.manifest) {
            (None, None, None) => Self::begin(request, None),
            _ => Self::with_more(request, most),
        }
    }

    #[inline]
    fn begin(request: &Request, manifest: Option<Manifest>) -> Self {
        Self {
            call: request.call,
            token: request.token,
            id: request.id,
            depth: request.depth,
            responses: request.base,
            requests: 0,
            manifest,
            held: None,
            traced: request.traced.then(Vec::new),
            allowance: None,
            repeatable: false,
            ended: false,
        }
    }

    /// Takes what few requests bring along: a manifest, trace records, and what the request may use up, but no more than this
    /// server's maximum.
    #[inline(never)]
    fn with_more(request: &mut Request, most: Option<&Budgets>) -> Self {
        let mut server = Self::begin(request, request.manifest);
        let mut given = most.copied();
        if let Some(options) = &mut request.options {
            let carried = std::mem::take(&mut options.trace);
            if let Some(traced) = &mut server.traced {
                *traced = carried;
            }
            server.repeatable = options.repeatable;
            given = match (options.budgets, given) {
                (Some(stated), Some(most)) => Some(stated.at_most(&most)),
                (stated, most) => stated.or(most),
            };
        }
        server.allowance = given.map(|given| Box::new(Allowance::new(given)));
        server
    }

    /// The call.
    pub fn call(&self) -> CallId {
        self.call
    }

    /// The call's reply token.
    pub fn token(&self) -> Token {
        self.token
    }

    /// The request's place in the tree.
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// How many hops led here.
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Whether this hop reports its timings.
    pub fn is_traced(&self) -> bool {
        self.traced.is_some()
    }

    /// Whether the request has ended; nothing may be sent any more.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// The message that waits to learn if it is the last is not sent.
    pub fn discard_held(&mut self) {
        self.held = None;
    }

    // What the call's budgets allow.

    /// What the request may still use up, if the call's budgets are stated or this server has a maximum.
    pub fn allowance(&self) -> Option<&Allowance> {
        self.allowance.as_deref()
    }

    /// The same, to change it.
    pub fn allowance_mut(&mut self) -> Option<&mut Allowance> {
        self.allowance.as_deref_mut()
    }

    /// An answer of so many bytes comes next: `reply` or `respond`. Where no budgets are stated, a branch may still send no
    /// more answers than [`Budgets::default`] says.
    ///
    /// # Errors
    ///
    /// If that exceeds a budget. The work is refused, so the branch must end with a status (rule 11): see
    /// [`exhaust`](Self::exhaust).
    #[inline]
    pub fn afford_answer(&mut self, bytes: usize) -> Result<(), Exhausted> {
        match &mut self.allowance {
            None if self.responses < Budgets::DEFAULT.responses => Ok(()),
            None => Err(none_left(Budget::Responses)),
            Some(allowance) => allowance.spend_answer(bytes as u64),
        }
    }

    /// A delegated request comes next: `delegate` or `forward`. Where no budgets are stated, a request may still delegate no
    /// more often than [`Budgets::default`] says.
    ///
    /// # Errors
    ///
    /// As [`afford_answer`](Self::afford_answer).
    #[inline]
    pub fn afford_request(&mut self) -> Result<(), Exhausted> {
        match &mut self.allowance {
            // The initial request counts, and one may be held back.
            None if self.requests < Budgets::DEFAULT.requests - 2 => Ok(()),
            None => Err(none_left(Budget::Requests)),
            Some(allowance) => allowance.spend_request(),
        }
    }

    /// A budget is used up: what the handler has sent so far leaves, and a status ends the branch.
    #[cold]
    pub fn exhaust(&mut self, status: &Status, record: Option<TraceRecord>) -> LastMessages<T> {
        LastMessages {
            before: self.flush_before(),
            last: self.fail(status, record),
        }
    }

    // What a handler sends.

    /// A response; more may follow.
    ///
    /// # Panics
    ///
    /// If the request has ended, as do all operations that send.
    pub fn reply(&mut self, payload: Bytes) -> Option<Outbound<T>> {
        self.hold(HeldMessage::Response {
            status: false,
            payload,
        })
    }

    /// A delegated request; more may follow.
    pub fn delegate(&mut self, to: T, payload: Bytes) -> Option<Outbound<T>> {
        self.hold(HeldMessage::Request { to, payload })
    }

    /// Releases the message held back: the handler yields and may not come back for long.
    pub fn flush(&mut self) -> Option<Outbound<T>> {
        self.held.take().map(|held| self.release(held))
    }

    /// The last response. `record` is this hop's, in a traced call.
    #[inline]
    pub fn respond(&mut self, payload: Bytes, record: Option<TraceRecord>) -> LastMessages<T> {
        let before = self.flush_before();
        // Most have no manifest, and do not wait for its bytes.
        if self.requests == 0 && self.manifest.is_none() {
            self.assert_open();
            self.ended = true;
            let last = self.response(false, payload, true, None, record);
            return LastMessages { before, last };
        }
        let last = self.last_response(false, payload, record);
        LastMessages { before, last }
    }

    /// A delegated request as the last act: a tail call.
    #[inline]
    pub fn forward(
        &mut self,
        to: T,
        payload: Bytes,
        record: Option<TraceRecord>,
    ) -> LastMessages<T> {
        LastMessages {
            before: self.flush_before(),
            last: self.last_request(to, payload, record),
        }
    }

    /// The handler ended without a last message of its own.
    pub fn finish(&mut self, record: Option<TraceRecord>) -> Outbound<T> {
        if let Some(held) = self.held.take() {
            return self.release_last(held, record);
        }
        self.assert_open();
        self.ended = true;
        let facts = Facts {
            requests: self.requests,
            responses: self.responses,
        };
        let (manifest, options) = (self.manifest.take(), self.trace_options(record));
        Outbound::End(End {
            call: self.call,
            distance: 0,
            token: Some(self.token),
            request: self.id,
            facts,
            manifest,
            options,
        })
    }

    /// The handler failed, or its work is refused: a status ends the branch. What was held back is not sent
    /// (rules 10 and 11).
    pub fn fail(&mut self, status: &Status, record: Option<TraceRecord>) -> Outbound<T> {
        self.held = None;
        self.last_response(true, status.to_payload(), record)
    }

    /// How long the payload of the answer is that is held back, if one is, in bytes.
    pub fn held_answer(&self) -> Option<usize> {
        match &self.held {
            Some(HeldMessage::Response { payload, .. }) => Some(payload.len()),
            _ => None,
        }
    }

    #[inline]
    fn flush_before(&mut self) -> Option<Box<Outbound<T>>> {
        match self.held {
            None => None,
            Some(_) => self.flush().map(Box::new),
        }
    }

    fn hold(&mut self, message: HeldMessage<T>) -> Option<Outbound<T>> {
        self.assert_open();
        if self.repeatable {
            return Some(self.release(message));
        }
        let before = self.flush();
        self.held = Some(message);
        before
    }

    /// Sends a message of which it is not known that it is the last.
    fn release(&mut self, message: HeldMessage<T>) -> Outbound<T> {
        let manifest = self.manifest.take();
        match message {
            HeldMessage::Response { status, payload } => {
                self.response(status, payload, false, manifest, None)
            }
            HeldMessage::Request { to, payload } => {
                let id = self.child();
                self.delegated(to, id, 0, payload, manifest, None)
            }
        }
    }

    /// Sends the last message, which tells the end of the branch.
    fn release_last(
        &mut self,
        message: HeldMessage<T>,
        record: Option<TraceRecord>,
    ) -> Outbound<T> {
        match message {
            HeldMessage::Response { status, payload } => {
                self.last_response(status, payload, record)
            }
            HeldMessage::Request { to, payload } => self.last_request(to, payload, record),
        }
    }

    #[inline(never)]
    fn last_response(
        &mut self,
        status: bool,
        payload: Bytes,
        record: Option<TraceRecord>,
    ) -> Outbound<T> {
        self.assert_open();
        self.ended = true;
        let last = self.requests == 0;
        let carried = self.manifest.take();
        debug_assert!(
            last || carried.is_none(),
            "the first of two messages took it along"
        );
        let manifest = if last {
            carried
        } else {
            Some(self.own_manifest(0, 1))
        };
        self.response(status, payload, last, manifest, record)
    }

    #[inline(always)]
    fn last_request(&mut self, to: T, payload: Bytes, record: Option<TraceRecord>) -> Outbound<T> {
        self.assert_open();
        self.ended = true;
        let carried = self.take_manifest();
        let (id, base, manifest) = if self.requests == 0 {
            (self.continuation(), self.responses, carried)
        } else {
            debug_assert!(carried.is_none(), "the first of two messages took it along");
            let own = self.own_manifest(1, 0);
            (self.child(), 0, Some(own))
        };
        self.delegated(to, id, base, payload, manifest, record)
    }

    /// The share of the budgets that a request takes along: all that is left if it is the last message.
    #[cold]
    fn share(&mut self) -> Option<Box<Budgets>> {
        let allowance = self.allowance.as_mut()?;
        Some(Box::new(if self.ended {
            allowance.rest()
        } else {
            allowance.share()
        }))
    }

    /// What the next message of a traced call takes along: the records that were carried here, once, and this hop's.
    #[inline]
    fn take_trace(&mut self, record: Option<TraceRecord>) -> Vec<TraceRecord> {
        match &mut self.traced {
            None => Vec::new(),
            Some(carried) => with_record(std::mem::take(carried), record),
        }
    }

    /// The same as the options of a message that has no others.
    #[inline]
    fn trace_options(&mut self, record: Option<TraceRecord>) -> Option<Box<MessageOptions>> {
        match &mut self.traced {
            None => None,
            Some(carried) => only_trace(with_record(std::mem::take(carried), record)),
        }
    }

    #[inline]
    fn take_manifest(&mut self) -> Option<Manifest> {
        let manifest = relayed(&self.manifest);
        self.manifest = None;
        manifest
    }

    fn own_manifest(&self, more_requests: u32, more_responses: u32) -> Manifest {
        let facts = Facts {
            requests: self.requests + more_requests,
            responses: self.responses + more_responses,
        };
        Manifest {
            owner: self.id.path,
            facts,
        }
    }

    #[inline]
    fn response(
        &mut self,
        status: bool,
        payload: Bytes,
        last: bool,
        manifest: Option<Manifest>,
        record: Option<TraceRecord>,
    ) -> Outbound<T> {
        let index = self.responses;
        self.responses += 1;
        Outbound::Response(Response {
            call: self.call,
            distance: 0,
            token: Some(self.token),
            request: self.id,
            index,
            last,
            manifest,
            status,
            compressed: false,
            options: self.trace_options(record),
            payload,
        })
    }

    /// The place of the delegation that has left last, if one has.
    pub fn latest_delegation(&self) -> RequestId {
        match self.requests.checked_sub(1) {
            Some(index) => RequestId {
                path: self.id.path.child(index, self.call, self.token),
                hop: 0,
            },
            None => self.continuation(),
        }
    }

    /// The next delegation that begins a branch of its own.
    fn child(&mut self) -> RequestId {
        let path = self.id.path.child(self.requests, self.call, self.token);
        self.requests += 1;
        RequestId { path, hop: 0 }
    }

    /// The only delegation, as the last message: the branch goes on, one hop further (rule 1).
    fn continuation(&self) -> RequestId {
        RequestId {
            path: self.id.path,
            hop: self.id.hop.saturating_add(1),
        }
    }

    #[inline(always)]
    fn delegated(
        &mut self,
        to: T,
        id: RequestId,
        base: u32,
        payload: Bytes,
        manifest: Option<Manifest>,
        record: Option<TraceRecord>,
    ) -> Outbound<T> {
        let (depth, traced) = (self.depth.saturating_add(1), self.is_traced());
        let budgets = match &self.allowance {
            None => None,
            Some(_) => self.share(),
        };
        Outbound::Request(Delegated {
            to,
            id,
            depth,
            base,
            manifest,
            traced,
            trace: self.take_trace(record),
            budgets,
            payload,
        })
    }

    fn assert_open(&self) {
        assert!(!self.ended, "a request that has ended sends nothing");
    }
}

#[cold]
fn none_left(budget: Budget) -> Exhausted {
    Exhausted {
        budget,
        wanted: 1,
        left: 0,
    }
}

impl From<Exhausted> for Status {
    fn from(exhausted: Exhausted) -> Self {
        Self::new(Code::ResourceExhausted, exhausted.to_string())
    }
}

#[cold]
fn with_record(mut carried: Vec<TraceRecord>, record: Option<TraceRecord>) -> Vec<TraceRecord> {
    carried.extend(record);
    // The newest records are worth most: they are what a slow tail of a long chain consists of.
    let excess = carried.len().saturating_sub(MAX_TRACE_RECORDS);
    carried.drain(..excess);
    carried
}

#[cold]
fn only_trace(trace: Vec<TraceRecord>) -> Option<Box<MessageOptions>> {
    (!trace.is_empty()).then(|| {
        Box::new(MessageOptions {
            trace,
            ..MessageOptions::default()
        })
    })
}

/// Puts a status in place of an answer of this server that the initiator does not take: of its size and the limit, and what to do
/// about it.
#[cold]
pub fn make_too_large(
    response: &mut Response,
    (size, limit): (u64, u64),
    hint: &str,
    server: Option<&Address>,
) {
    let message =
        format!("an answer of {size} bytes, but the initiator takes at most {limit}{hint}");
    let status = Status::new(Code::ResourceExhausted, message).by(server);
    replace_by(response, &status);
}

/// The same of another server's answer that this one passes on. It is about that one, which the answer may name.
#[cold]
pub fn make_too_large_to_pass_on(
    response: &mut Response,
    (size, limit): (u64, u64),
    hint: &str,
    relay: Option<&Address>,
) {
    let says = relay.map_or_else(String::new, |relay| {
        format!("; says {relay}, which passes answers on")
    });
    let message = format!(
        "an answer of {size} bytes, but on its way to the initiator at most {limit} are taken{hint}{says}"
    );
    let by = response.options.as_ref();
    let by = by.and_then(|options| options.handled_by.as_ref()?.server.as_ref());
    let status = Status::new(Code::ResourceExhausted, message).by(by);
    replace_by(response, &status);
}

fn replace_by(response: &mut Response, status: &Status) {
    response.status = true;
    response.payload = status.to_payload();
}

/// A status in the name of a delegated request that certainly was not delivered (rule 19): the last of its
/// branch, with the manifest that the request carried.
pub fn undelivered(request: &Request, status: &Status) -> Response {
    let trace = request
        .options
        .as_ref()
        .map(|options| options.trace.clone())
        .unwrap_or_default();
    Response {
        index: request.base,
        manifest: request.manifest,
        options: Some(Box::new(MessageOptions {
            trace,
            undelivered: true,
            ..MessageOptions::default()
        })),
        ..undelivered_initial(request.call, request.token, request.id, status)
    }
}

/// The same of an initial request, by its initiator.
pub fn undelivered_initial(
    call: CallId,
    token: Token,
    request: RequestId,
    status: &Status,
) -> Response {
    Response {
        call,
        distance: 0,
        token: Some(token),
        request,
        index: 0,
        last: true,
        manifest: None,
        status: true,
        compressed: false,
        options: Some(Box::new(MessageOptions {
            undelivered: true,
            ..MessageOptions::default()
        })),
        payload: status.to_payload(),
    }
}
