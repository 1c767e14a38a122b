//! What a handler holds: a request, and what it can do with it.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use wallaby_proto::connection::MethodDefinition;
use wallaby_proto::endpoint::{
    Author, CallKey, CallOptions, DelegateOptions, Endpoint as Core, HandledRequest, How,
    NewDelegation, RequestKey,
};
use wallaby_proto::wire::{Budgets, Continuation, Metadata};
use wallaby_proto::{Address, CallId, DurableId, NodeId, RequestId, Status};

use super::bodies::BodyWriter;
use super::calls::{Calling, Initial};
use super::event::Call;
use crate::body::Body;
use crate::codec::{Codec, Postcard};
use crate::error::{Failure, SendError};
use crate::method::sealed::Followed;
use crate::method::{Answers, Many, Method, One, Target};
use crate::streaming::LONGEST_ITEM;

/// A request with payloads as bytes.
///
/// [`respond`](Self::respond) and [`forward`](Self::forward) end it, [`hold`](Self::hold) puts it aside. Else it ends when it
/// is dropped, or with the status that its handler returns. The latest message is held back until the handler returns, as it
/// may be the last one.
pub struct RawRequest<'a> {
    pub(super) core: &'a mut Core,
    pub(super) calling: &'a mut Calling,
    pub(super) key: RequestKey,
    /// A handler has it, which may return a status for it.
    handled: bool,
}

/// What a delegation brings.
struct Sent {
    payload: Bytes,
    options: Option<DelegateOptions>,
    body: Option<Body>,
}

impl Sent {
    fn new(payload: Bytes, body: Option<Body>) -> Self {
        Self {
            payload,
            options: None,
            body,
        }
    }
}

impl<'a> RawRequest<'a> {
    pub(super) fn new(
        core: &'a mut Core,
        calling: &'a mut Calling,
        key: RequestKey,
        handled: bool,
    ) -> Self {
        Self {
            core,
            calling,
            key,
            handled,
        }
    }

    pub(super) fn handler(&self) -> &HandledRequest {
        let handler = self.core.request(self.key);
        handler.expect("it is there until the request is consumed")
    }

    /// The name of the method called.
    pub fn method(&self) -> &str {
        let method = self.core.method_of(self.key);
        method.map_or("", |method| method.name())
    }

    /// What the caller says of the method: see [`crate::RequestInfo::definition`]. `None` if the request has ended.
    pub fn definition(&self) -> Option<&Arc<MethodDefinition>> {
        self.core.method_of(self.key)
    }

    /// The call that it belongs to.
    pub fn call_id(&self) -> CallId {
        self.handler().call()
    }

    /// Its place in the call's tree.
    pub fn id(&self) -> RequestId {
        self.handler().id()
    }

    /// How many hops led here: 0 if the initiator sent it.
    pub fn depth(&self) -> u32 {
        self.handler().depth()
    }

    /// The endpoint that made the call.
    pub fn initiator(&self) -> NodeId {
        self.handler().call().initiator
    }

    /// The endpoint that sent this request; `None` if its connection has ended meanwhile.
    pub fn delegator(&self) -> Option<NodeId> {
        self.core.delegator(self.key)
    }

    /// Pairs that travel down the tree.
    pub fn metadata(&self) -> &Metadata {
        static NONE: std::sync::LazyLock<Metadata> = std::sync::LazyLock::new(Metadata::default);
        self.handler().metadata().unwrap_or(&NONE)
    }

    /// Bytes that the sender gave along with this request alone: see [`crate::RequestInfo::continuation`].
    pub fn continuation(&self) -> Option<&Bytes> {
        self.handler().continuation()
    }

    /// Why it is handled here, if a request here has handed it on to another server: see [`crate::RequestInfo::undelivered`].
    pub fn undelivered(&self) -> Option<&Status> {
        self.handler().undelivered()
    }

    /// Whether a member of the cluster has sealed it: see [`crate::RequestInfo::is_sealed`].
    pub fn is_sealed(&self) -> bool {
        self.handler().is_sealed()
    }

    /// The name under which this work may have been asked for before: see [`crate::RequestInfo::durable_id`].
    pub fn durable_id(&self) -> Option<DurableId> {
        self.handler().durable()
    }

    /// The body that follows the request, if one does, for the handler to read while it arrives ([`Body::try_next`]), in later turns as
    /// well, or to hand on. `None` once it was taken, and of a request that was put aside: a body that its handler has not taken
    /// when it returns is stopped.
    pub fn take_body(&mut self) -> Option<Body> {
        self.calling.bodies.take(self.core, self.key)
    }

    /// A body that is written piece by piece: see [`super::Endpoint::body_writer`].
    pub fn body_writer(&mut self) -> (BodyWriter, Body) {
        self.calling.bodies.writer()
    }

    /// How much time is left.
    pub fn remaining(&self) -> Duration {
        self.core.remaining(self.key)
    }

    /// Tells a part of this hop's time apart, as [`RequestInfo::note_time`](crate::RequestInfo::note_time).
    pub fn note_time(&mut self, name: &str, took: Duration) {
        self.core.note_time(self.key, name, took);
    }

    /// Says that the handler makes progress, for calls that limit how long it may not.
    pub fn progress(&mut self) {
        self.core.progress(self.key);
    }

    /// What it may still use up, if its call's budgets are stated or this endpoint has a maximum.
    pub fn budgets(&self) -> Option<Budgets> {
        self.handler().budgets()
    }

    /// Says how many delegations will come, so that each gets an equal part of the budgets: see
    /// [`crate::RequestInfo::share_among`].
    pub fn share_among(&mut self, times: u32) {
        self.core.share_delegations(self.key, times);
    }

    /// Sends an answer to the initiator; more may follow.
    ///
    /// # Errors
    ///
    /// If the answer is too large, or exceeds a budget, or if too much waits already ([`SendError::Full`]): then put the
    /// request aside and try again when [`Event::Room`](super::Event::Room) is told of it.
    pub fn reply(&mut self, payload: Bytes) -> Result<(), SendError> {
        self.core.reply(self.key, payload)
    }

    /// Sends the last answer and ends the request.
    ///
    /// # Errors
    ///
    /// As [`reply`](Self::reply); the request then ends with the status that the error becomes.
    pub fn respond(self, payload: Bytes) -> Result<(), SendError> {
        self.core.respond(self.key, payload)
    }

    /// Hands work to another server, which answers the initiator directly; more may follow. A server that cannot be reached
    /// shows as a status among the call's answers.
    ///
    /// # Errors
    ///
    /// If the request is too large, too deep in the tree, or exceeds a budget; if the server's address is not permitted or
    /// of a scheme that is not dialled; if too much waits already.
    pub fn delegate(
        &mut self,
        server: impl Into<Address>,
        method: &Arc<MethodDefinition>,
        payload: Bytes,
    ) -> Result<(), SendError> {
        let server = server.into();
        self.core.delegate(self.key, server, method, payload)
    }

    /// The same with what it has of its own. It leaves now, so its place in the call's tree is told.
    ///
    /// # Errors
    ///
    /// As [`delegate`](Self::delegate).
    pub fn delegate_with(
        &mut self,
        server: impl Into<Address>,
        method: &Arc<MethodDefinition>,
        payload: Bytes,
        options: DelegateOptions,
    ) -> Result<RequestId, SendError> {
        let mut sent = Sent::new(payload, None);
        sent.options = Some(options);
        self.hand_on(server.into(), method, sent, How::More)?;
        self.core.latest_delegation(self.key)
    }

    /// [`delegate`](Self::delegate) with a body that follows, as [`super::Endpoint::call`] says, whatever becomes of this request
    /// but a stop: the one that follows this request, perhaps, which is then passed on as it arrives.
    ///
    /// # Errors
    ///
    /// As `delegate`. That bodies do not go over `udp:` shows as a status among the call's answers.
    pub fn delegate_with_body(
        &mut self,
        server: impl Into<Address>,
        method: &Arc<MethodDefinition>,
        payload: Bytes,
        body: Body,
    ) -> Result<(), SendError> {
        let sent = Sent::new(payload, Some(body));
        self.hand_on(server.into(), method, sent, How::More)
    }

    /// [`forward`](Self::forward) with a body that follows.
    ///
    /// # Errors
    ///
    /// As `forward`, and as [`delegate_with_body`](Self::delegate_with_body).
    pub fn forward_with_body(
        mut self,
        server: impl Into<Address>,
        method: &Arc<MethodDefinition>,
        payload: Bytes,
        body: Body,
    ) -> Result<(), SendError> {
        let sent = Sent::new(payload, Some(body));
        self.hand_on(server.into(), method, sent, How::Last)
    }

    /// Hands the request on to another server as it came, with what its handler got, and ends it here: its method, arguments, body and
    /// continuation.
    ///
    /// # Errors
    ///
    /// As [`forward`](Self::forward), and as [`delegate_with_body`](Self::delegate_with_body) if a body follows.
    pub fn pass_on(mut self, server: impl Into<Address>, payload: Bytes) -> Result<(), SendError> {
        let method = self.definition().map(Arc::clone);
        let method = method.ok_or_else(|| SendError::Ended("it has ended".into()))?;
        let mut sent = Sent::new(payload, self.take_body());
        if let Some(bytes) = self.continuation() {
            let continuation = Continuation::new(bytes.clone()).map_err(SendError::Continuation)?;
            let continuation = Some(continuation);
            sent.options = Some(DelegateOptions {
                continuation,
                ..DelegateOptions::default()
            });
        }
        self.hand_on(server.into(), &method, sent, How::Last)
    }

    fn hand_on(
        &mut self,
        server: Address,
        method: &Arc<MethodDefinition>,
        sent: Sent,
        how: How,
    ) -> Result<(), SendError> {
        let delegation = NewDelegation {
            server,
            method: Arc::clone(method),
            payload: sent.payload,
            options: sent.options,
            followed: sent.body.is_some(),
        };
        let out = self.core.delegate_with(self.key, delegation, how)?;
        if let Some((out, body)) = out.zip(sent.body) {
            self.calling.bodies.send(self.core, out, body);
        }
        Ok(())
    }

    /// Hands the rest of the work to another server and ends the request: a tail call.
    ///
    /// # Errors
    ///
    /// As [`delegate`](Self::delegate); the request then ends with the status that the error becomes.
    pub fn forward(
        self,
        server: impl Into<Address>,
        method: &Arc<MethodDefinition>,
        payload: Bytes,
    ) -> Result<(), SendError> {
        let server = server.into();
        self.core.forward(self.key, server, method, payload)
    }

    /// Sends the message that is held back because it might be the last one.
    pub fn flush(&mut self) {
        self.core.flush(self.key);
    }

    /// Makes a call with one initial request on behalf of this one, which is mostly put aside until that is over: its events come as
    /// those of any other call, by [`super::Endpoint::next_event`].
    ///
    /// It inherits what is left of the deadline, the metadata beside its own, the trace, a delegation's share of the budgets and, if
    /// this request has a [durable id](Self::durable_id) and `options` say none, the next name that follows from that. It is aborted
    /// when this request is stopped, as [`super::Event::Stopped`] says, but goes on if this request is answered before.
    ///
    /// # Errors
    ///
    /// If it cannot be sent, or its metadata are too much; there is no event of the call then.
    pub fn call<A: Answers, C: Codec<A::Item>>(
        &mut self,
        server: impl Into<Address>,
        target: Target<A, C>,
        options: &CallOptions,
    ) -> Result<Call<A, C>, Failure> {
        let (method, body) = (&target.definition, target.body);
        let initial = Initial::new(server, method, target.payload?, body);
        self.make_call(options, initial).map(Call::new)
    }

    /// The same with its payload as bytes.
    ///
    /// # Errors
    ///
    /// As [`call`](Self::call).
    pub fn call_raw(
        &mut self,
        server: impl Into<Address>,
        method: &Arc<MethodDefinition>,
        payload: Bytes,
        options: &CallOptions,
    ) -> Result<CallKey, Failure> {
        self.make_call(options, Initial::new(server, method, payload, None))
    }

    fn make_call(
        &mut self,
        options: &CallOptions,
        initial: Initial<'_>,
    ) -> Result<CallKey, Failure> {
        let options = self.core.options_for(self.key, Author::Handler, options)?;
        (self.calling).call(self.core, Some(self.key), &options, initial)
    }

    /// Begins a [call](Self::call) on behalf of this request that may have several initial requests:
    /// [`super::Endpoint::send`] sends them, and [`super::Endpoint::close_call`] says that there are no more.
    ///
    /// # Errors
    ///
    /// If as many calls live as may, or its metadata are too much.
    pub fn begin_call(&mut self, options: &CallOptions) -> Result<CallKey, Failure> {
        self.core.begin_for(self.key, Author::Handler, options)
    }

    /// Ends the request with a status.
    pub fn fail(self, status: &Status) {
        self.core.fail(self.key, status);
    }

    /// The same with the types of the method that it calls, which are what the caller promises.
    pub fn typed<Args, A: Answers, C, B>(self, _: &Method<Args, A, C, B>) -> Request<'a, A, C> {
        Request::new(self)
    }

    /// Puts the request aside: [`super::Endpoint::request`] gives it back, in this turn or a later one. What was held back
    /// leaves. [`super::Event::Stopped`] says if it ends before, by an abort or at its deadline.
    pub fn hold(self) -> RequestKey {
        self.core.put_aside(self.key);
        self.key
    }

    /// An operation failed before it began.
    fn refuse(&mut self, error: SendError, last: bool) -> SendError {
        self.core.refuse_message(self.key, &error, last);
        error
    }
}

impl Drop for RawRequest<'_> {
    fn drop(&mut self) {
        if !self.handled {
            self.core.returned(self.key, Ok(()));
        }
    }
}

impl Followed for RawRequest<'_> {
    fn method(&self) -> Arc<str> {
        let method = self.core.method_of(self.key);
        method.map_or_else(|| "".into(), |method| Arc::clone(method.name()))
    }

    fn sender(&self) -> (Option<NodeId>, Option<Address>) {
        let address = self.core.peer_address(self.handler().conn());
        (self.delegator(), address.cloned())
    }

    fn longest_item(&self) -> u64 {
        LONGEST_ITEM
    }

    fn take_body(&mut self) -> Option<Body> {
        RawRequest::take_body(self)
    }
}

impl fmt::Debug for RawRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "RawRequest({} {} of {})",
            self.method(),
            self.id(),
            self.call_id()
        )
    }
}

/// A request to a method that answers `A`.
///
/// `Request<One<T>>` has [`respond`](Request::respond) and [`forward`](Request::forward), which consume it;
/// `Request<Many<T>>` can also [`reply`](Request::reply) and [`delegate`](Request::delegate) any number of times.
pub struct Request<'a, A, C = Postcard> {
    raw: RawRequest<'a>,
    types: PhantomData<fn() -> (A, C)>,
}

impl<'a, A: Answers, C> Request<'a, A, C> {
    pub(super) fn new(raw: RawRequest<'a>) -> Self {
        Self {
            raw,
            types: PhantomData,
        }
    }

    /// The request with payloads as bytes: what can be asked about it is there.
    pub fn raw(&mut self) -> &mut RawRequest<'a> {
        &mut self.raw
    }

    /// Puts it aside: see [`RawRequest::hold`].
    pub fn hold(self) -> RequestKey {
        self.raw.hold()
    }

    /// Ends it with a status.
    pub fn fail(self, status: &Status) {
        self.raw.fail(status);
    }

    /// Sends the last answer and ends the request.
    ///
    /// # Errors
    ///
    /// If the answer cannot be encoded, and as [`RawRequest::respond`].
    pub fn respond(mut self, answer: &A::Item) -> Result<(), SendError>
    where
        C: Codec<A::Item>,
    {
        match C::encode(answer) {
            Ok(payload) => self.raw.respond(payload),
            Err(error) => Err(self.raw.refuse(error.into(), true)),
        }
    }
}

impl<T: Send + 'static, C: Codec<T>> Request<'_, One<T>, C> {
    /// Hands the work to another server, which answers the initiator directly, and ends the request: a tail call.
    ///
    /// # Errors
    ///
    /// If the arguments cannot be encoded, and as [`RawRequest::forward`].
    pub fn forward(
        self,
        server: impl Into<Address>,
        target: Target<One<T>, C>,
    ) -> Result<(), SendError> {
        forward(self.raw, server.into(), target)
    }
}

impl<T: Send + 'static, C: Codec<T>> Request<'_, Many<T>, C> {
    /// Sends an answer to the initiator; more may follow.
    ///
    /// # Errors
    ///
    /// If the answer cannot be encoded, and as [`RawRequest::reply`].
    pub fn reply(&mut self, answer: &T) -> Result<(), SendError> {
        self.raw.reply(C::encode(answer)?)
    }

    /// Hands work to another server, which answers the initiator directly; more may follow.
    ///
    /// # Errors
    ///
    /// If the arguments cannot be encoded, and as [`RawRequest::delegate`].
    pub fn delegate<B: Answers<Item = T>>(
        &mut self,
        server: impl Into<Address>,
        target: Target<B, C>,
    ) -> Result<(), SendError> {
        let (method, payload) = (&target.definition, target.payload?);
        match target.body {
            None => self.raw.delegate(server, method, payload),
            Some(body) => self.raw.delegate_with_body(server, method, payload, body),
        }
    }

    /// Hands the rest of the work to another server and ends the request: a tail call.
    ///
    /// # Errors
    ///
    /// If the arguments cannot be encoded, and as [`RawRequest::forward`].
    pub fn forward<B: Answers<Item = T>>(
        self,
        server: impl Into<Address>,
        target: Target<B, C>,
    ) -> Result<(), SendError> {
        forward(self.raw, server.into(), target)
    }
}

fn forward<A, C>(
    mut raw: RawRequest<'_>,
    server: Address,
    target: Target<A, C>,
) -> Result<(), SendError> {
    let method = &target.definition;
    match (target.payload, target.body) {
        (Ok(payload), None) => raw.forward(server, method, payload),
        (Ok(payload), Some(body)) => raw.forward_with_body(server, method, payload, body),
        (Err(error), _) => Err(raw.refuse(error.into(), true)),
    }
}

impl<A, C> fmt::Debug for Request<'_, A, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.raw.fmt(f)
    }
}
