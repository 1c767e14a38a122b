//! What a handler holds: a request, and what it can do with it.

use std::borrow::Borrow;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use wallaby_proto::connection::MethodDefinition;
use wallaby_proto::endpoint::{Author, DelegateOptions, Lane};
use wallaby_proto::wire::{Budgets, Continuation, Metadata, MetadataError};
use wallaby_proto::{Address, CallId, DurableId, NodeId, RequestId, Status};

use crate::blocking;
use crate::body::{Attached, Body};
use crate::client::Caller;
use crate::codec::{Codec, Postcard};
use crate::error::SendError;
use crate::handling::{Handling, Keep};
use crate::intercept::{DelegatedRequest, DelegationOptions, Exit, Extensions, Intent, SendFuture};
use crate::method::sealed::Followed;
use crate::method::{Answers, Many, One, Target};
use crate::transport::Identity;

/// What can be asked about a request, and what can be said of it besides what it sends: [`RawRequest`] and [`Request`] give
/// it to handlers.
#[derive(Clone)]
pub struct RequestInfo {
    pub(crate) handling: Arc<Handling>,
    /// Who has it.
    pub(crate) author: Author,
}

impl RequestInfo {
    pub(crate) fn new(handling: &Arc<Handling>, author: Author) -> Self {
        Self {
            handling: Arc::clone(handling),
            author,
        }
    }

    /// What interceptors have put there for its handler.
    pub fn extensions(&self) -> &Extensions {
        &self.handling.extensions
    }

    /// The body that follows the request, if one does; `None` once it was taken. One that nobody has taken is stopped when
    /// the request ends.
    pub fn take_body(&self) -> Option<Body> {
        self.handling.take_body()
    }

    /// The method's name, `package.Service/method`.
    pub fn method(&self) -> &str {
        self.handling.method().name()
    }

    /// What the caller says of the method: its name, its codec, and fingerprints of its types. So a gateway can hand the request on
    /// whose methods it does not know.
    pub fn definition(&self) -> &Arc<MethodDefinition> {
        self.handling.method()
    }

    /// The call that the request belongs to.
    pub fn call_id(&self) -> CallId {
        self.handling.call
    }

    /// The request's place in the call's tree.
    pub fn id(&self) -> RequestId {
        self.handling.id
    }

    /// How many hops led here: 0 if the initiator sent it.
    pub fn depth(&self) -> u32 {
        self.handling.depth
    }

    /// The endpoint that made the call.
    pub fn initiator(&self) -> NodeId {
        self.handling.call.initiator
    }

    /// The endpoint that sent this request: the initiator, or the server before.
    pub fn delegator(&self) -> Option<NodeId> {
        self.handling.delegator
    }

    /// Who sent this request, as far as the transport that brought it has proven: the initiator, or the server before. What
    /// they say of others, as of the initiator, they may invent.
    pub fn identity(&self) -> &Identity {
        &self.handling.identity
    }

    /// Who made the call, if that is proven: only where the initiator itself sent this request.
    pub fn initiator_identity(&self) -> Option<&Identity> {
        let own = self.depth() == 0 && self.delegator() == Some(self.initiator());
        own.then(|| self.identity())
    }

    /// Whether somebody who has one of this endpoint's [cluster keys](crate::Builder::cluster_key) has sent this request as it is:
    /// its arguments, metadata and [continuation](Self::continuation) are what he has sealed, but not the bytes of a body. Of a
    /// message down a line it is who has passed that on. It is `false` if there is no key here, or the request has ended.
    ///
    /// ```
    /// use wallaby::Status;
    /// use wallaby::intercept::{Admission, Incoming};
    ///
    /// // All may ask, and only members of the cluster may change something.
    /// fn admit(request: &Incoming) -> Admission {
    ///     match request.method() {
    ///         "example.Index/put" if !request.is_sealed() => Admission::Refuse(Status::permission_denied("for the cluster only")),
    ///         _ => Admission::Run,
    ///     }
    /// }
    /// ```
    pub fn is_sealed(&self) -> bool {
        self.handling.is_sealed()
    }

    /// The call's metadata.
    pub fn metadata(&self) -> &Metadata {
        &self.handling.metadata
    }

    /// Bytes that the sender gave along with this request alone: what is to be done with its answer
    /// ([`Client::continuation`](crate::Client::continuation)). What is delegated does not inherit them. `None` if there are none,
    /// or the request has ended.
    pub fn continuation(&self) -> Option<Bytes> {
        self.handling.continuation()
    }

    /// The name under which this work may have been asked for before, by an earlier life of its initiator perhaps
    /// ([`Client::durable`](crate::Client::durable)). What is delegated or called has a name that follows from it, and from how
    /// much its handler has delegated and called before: a handler that does the same again gives the same names, whoever is around
    /// it, and whenever it leaves. `None` if it has none, or the request has ended.
    pub fn durable_id(&self) -> Option<DurableId> {
        self.handling.durable_id()
    }

    /// How much time remains until the call's deadline.
    pub fn remaining(&self) -> Duration {
        self.handling.remaining()
    }

    /// Whether the request was stopped: the call was aborted, or its deadline passed. Nothing can be sent any more.
    pub fn is_cancelled(&self) -> bool {
        self.handling.is_cancelled()
    }

    /// Waits until the request is stopped. For what must know of it, and is not dropped then: [shielded](Self::shield) sections,
    /// and tasks that a handler has started. The handler itself is dropped at its next await.
    pub fn cancelled(&self) -> impl Future<Output = ()> + Send + use<> {
        let handling = Arc::clone(&self.handling);
        async move { handling.cancelled().await }
    }

    /// A section of the handler that must finish once it has begun.
    ///
    /// When a request is stopped (its call was aborted or dropped, its deadline has passed, its server shuts down), its handler is
    /// dropped where it waits, at an `.await`: what comes after that is not done. While a shielded section is under way the handler
    /// runs on, to the first `.await` behind it that waits. What it runs beside the section, by a `join!` perhaps, runs on as well.
    ///
    /// A section that takes longer than the grace period ([`crate::Builder::grace`]) after the stop gives its place in the executor
    /// to others. It can see that it is late ([`is_cancelled`](Self::is_cancelled)); nothing can be sent then. Whole handlers are
    /// shielded by [`Service::shielded`](crate::Service::shielded); blocking ones always are, and look at `is_cancelled`.
    ///
    /// ```
    /// # use wallaby::{One, Request, Status};
    /// # struct Store;
    /// # impl Store {
    /// #     async fn read(&self) -> u64 { 1 }
    /// #     async fn take(&self, from: u64) {}
    /// #     async fn put(&self, to: u64) {}
    /// # }
    /// async fn transfer(request: Request<One<u64>>, store: &Store) -> Result<(), Status> {
    ///     let account = store.read().await; // perhaps the last that is done
    ///     request
    ///         .shield(async {
    ///             store.take(account).await; // both, or neither
    ///             store.put(account + 1).await;
    ///         })
    ///         .await;
    ///     Ok(request.respond(account).await?)
    /// }
    /// # fn main() {}
    /// ```
    pub fn shield<F: Future>(&self, section: F) -> impl Future<Output = F::Output> + use<F> {
        let handling = Arc::clone(&self.handling);
        async move {
            let _shield = handling.shield();
            section.await
        }
    }

    /// Says that the handler makes progress, for initiators that limit how long it may make none. What it sends, and
    /// coming back from something it waited for, says so too.
    pub fn progress(&self) {
        self.handling.progress();
    }

    /// Tells a part of this hop's time apart in the call's [trace](crate::Trace), if the call is traced: how long the handler has
    /// waited for a disk, say. At most four names of 32 bytes count, times of the same name are added up, and what is noted after
    /// the request's last message left is not told.
    pub fn note_time(&self, name: &str, took: Duration) {
        self.handling.note_time(name, took);
    }

    /// What this request and all that it leads to may still use up: `None` unless the call's budgets are stated
    /// ([`crate::Client::budgets`]) or this server has a maximum ([`crate::Builder::max_budgets`]).
    ///
    /// A message beyond it is an error ([`SendError::Exhausted`]) and ends the request with a status; a handler that can do
    /// with less looks here before.
    pub fn budgets(&self) -> Option<Budgets> {
        self.handling.budgets()
    }

    /// Says how many delegations will come: each gets an equal part of what is left of the budgets.
    ///
    /// Without, half of what the request was given stays with it, and of the other half the k-th delegation gets 1/(k(k+1)):
    /// 1/2, 1/6, 1/12... The last message of a handler, if it is a request, always takes all that is left along. It changes
    /// nothing where no budgets are stated.
    pub fn share_among(&self, times: u32) {
        self.handling.share_among(times);
    }

    /// Makes calls on behalf of this request: they inherit its deadline, metadata and trace, and end when it is stopped.
    /// Where budgets are stated, each gets the share of a delegation.
    pub fn call(&self) -> Caller {
        Caller::within(self)
    }
}

impl fmt::Debug for RequestInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.handling.fmt(f)
    }
}

/// A request whose payloads are bytes: what [`Request`] is built on, for tools, gateways and other formats.
///
/// The request ends when this is dropped, wherever that happens; the call goes on wherever it was delegated to.
pub struct RawRequest {
    pub(crate) exit: Exit,
    payload: Bytes,
}

impl Followed for RawRequest {
    fn method(&self) -> Arc<str> {
        Arc::clone(self.handling.method().name())
    }

    fn sender(&self) -> (Option<NodeId>, Option<Address>) {
        (self.handling.delegator, self.handling.delegator_address())
    }

    fn longest_item(&self) -> u64 {
        self.handling.endpoint.settings.driver.item
    }

    fn take_body(&mut self) -> Option<Body> {
        self.handling.take_body()
    }
}

impl Borrow<Exit> for RawRequest {
    fn borrow(&self) -> &Exit {
        &self.exit
    }
}

impl Borrow<Exit> for &RawRequest {
    fn borrow(&self) -> &Exit {
        &self.exit
    }
}

impl RawRequest {
    pub(crate) fn new(handling: &Arc<Handling>, payload: Bytes) -> Self {
        let exit = Exit::of(handling);
        Self { exit, payload }
    }

    pub(crate) fn take_payload(&mut self) -> Bytes {
        std::mem::take(&mut self.payload)
    }

    /// The arguments.
    pub fn payload(&self) -> &Bytes {
        &self.payload
    }

    /// Sends an answer to the initiator; more may follow.
    ///
    /// # Errors
    ///
    /// If the answer is too large or the request has ended.
    pub fn reply(&self, payload: Bytes) -> impl Future<Output = Result<(), SendError>> + Send {
        Departure::of(self, Ok(Intent::answer(payload)), false)
    }

    /// Like [`reply`](Self::reply), but fails with [`SendError::Full`] where that would wait.
    ///
    /// # Errors
    ///
    /// As `reply`, or if there is no credit or room now.
    pub fn try_reply(&self, payload: Bytes) -> Result<(), SendError> {
        self.handling.try_send(Intent::answer(payload))
    }

    /// Sends the last answer and ends the request.
    ///
    /// # Errors
    ///
    /// If the answer is too large or the request has ended.
    pub fn respond(self, payload: Bytes) -> impl Future<Output = Result<(), SendError>> + Send {
        Departure::of(self, Ok(Intent::answer(payload)), true)
    }

    /// Hands work to another server, which answers the initiator directly; more may follow.
    ///
    /// A server that cannot be reached shows as a status among the call's answers. It leaves when the handler waits for something or
    /// goes on, as [`reply`](Self::reply) says; if the handler returns an error before that, the status takes its place.
    ///
    /// # Errors
    ///
    /// If the request is too large, too deep in the tree, or has ended.
    pub fn delegate(
        &self,
        server: impl Into<Address>,
        method: &Arc<MethodDefinition>,
        payload: Bytes,
    ) -> Delegation<&Self> {
        Delegation::of(self, Ok(onward(server.into(), method, payload)), false)
    }

    /// Like [`delegate`](Self::delegate), but fails with [`SendError::Full`] where that would wait.
    ///
    /// # Errors
    ///
    /// As `delegate`, or if there is no credit or room now.
    pub fn try_delegate(
        &self,
        server: impl Into<Address>,
        method: &Arc<MethodDefinition>,
        payload: Bytes,
    ) -> Result<(), SendError> {
        self.handling
            .try_send(onward(server.into(), method, payload).into())
    }

    /// Hands the rest of the work to another server and ends the request: a tail call. What becomes of it only the
    /// initiator learns, as of all that is delegated.
    ///
    /// # Errors
    ///
    /// As [`delegate`](Self::delegate).
    pub fn forward(
        self,
        server: impl Into<Address>,
        method: &Arc<MethodDefinition>,
        payload: Bytes,
    ) -> Delegation<Self> {
        Delegation::of(self, Ok(onward(server.into(), method, payload)), true)
    }

    /// Hands the request on to another server as it came, and ends it here: its method, arguments, body and continuation.
    ///
    /// # Errors
    ///
    /// As [`forward`](Self::forward).
    pub fn pass_on(mut self, server: impl Into<Address>) -> Delegation<Self> {
        let (body, continuation) = (self.take_body(), self.continuation());
        let (method, payload) = (Arc::clone(self.definition()), self.take_payload());
        let mut onward = self.forward(server, &method, payload);
        if let Some(body) = body {
            onward = onward.body(body);
        }
        match continuation {
            Some(continuation) => onward.continuation(continuation),
            None => onward,
        }
    }

    /// Sends the message that is held back because it might be the last one.
    pub async fn flush(&self) {
        self.exit.flush().await;
    }

    /// Ends the request with a status.
    pub fn fail(self, status: &Status) {
        self.handling.fail(status);
    }
}

impl Deref for RawRequest {
    type Target = RequestInfo;

    fn deref(&self) -> &RequestInfo {
        &self.exit
    }
}

impl Drop for RawRequest {
    fn drop(&mut self) {
        self.handling.handle_dropped();
    }
}

impl fmt::Debug for RawRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.handling.fmt(f)
    }
}

/// Work that is handed to another server: it leaves when this is first polled, and is done when it was accepted for sending. The first
/// 64 of a request are accepted while their servers are still dialled. Before that it can get what it does not share with its request.
///
/// It inherits the request's metadata, deadline and trace, and its part of the budgets, but no continuation.
///
/// ```
/// # use std::time::Duration;
/// # use wallaby::{Address, Many, Request, SendError};
/// # #[wallaby::service]
/// # trait Index { async fn lookup(word: String) -> Many<u64>; }
/// # async fn handle(request: Request<Many<u64>>, other: Address) -> Result<(), SendError> {
/// let place = request
///     .delegate(&other, index::lookup("hop".into()))
///     .metadata("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
///     .without("authorization")
///     .deadline(Duration::from_millis(50))
///     .placed()
///     .await?;
/// println!("{place} of {} has 50 ms", request.call_id());
/// # Ok(())
/// # }
/// # fn main() {}
/// ```
#[must_use = "a delegation leaves when this is awaited"]
pub struct Delegation<R>(Departure<R>);

impl<R: Borrow<Exit> + Unpin> Delegation<R> {
    pub(crate) fn of(request: R, to: Result<DelegatedRequest, SendError>, last: bool) -> Self {
        let mut to = to.map(Intent::from);
        if let Ok(to) = &mut to {
            let exit: &Exit = request.borrow();
            exit.name(to);
        }
        Self(Departure::of(request, to, last))
    }

    /// A pair of metadata for what it leads to alone, in place of the one with this key that the request came with. If all pairs
    /// together exceed 8 KiB, the delegation fails and says so.
    pub fn metadata(self, key: &str, value: &str) -> Self {
        self.change_metadata(|own| own.metadata.insert(key, value))
    }

    /// The same with a value that is bytes.
    pub fn metadata_bin(self, key: &str, value: impl Into<Bytes>) -> Self {
        self.change_metadata(|own| own.metadata.insert_bin(key, value))
    }

    /// What it leads to does not inherit the metadata with this key.
    pub fn without(self, key: &str) -> Self {
        self.change_metadata(|own| {
            own.metadata.remove(key);
            own.without.push(key.to_owned());
            Ok(())
        })
    }

    /// How much time it has from when it is handed on, but never more than its request has left then. A server that does not begin
    /// in time, or is not done, tells the initiator so with the status `DeadlineExceeded`; the rest of the call goes on.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        if let Some(own) = self.own() {
            let before = &mut own.options.deadline;
            *before = Some(before.map_or(deadline, |before| before.min(deadline)));
        }
        self
    }

    /// Each hop that it leads to reports its timings to the initiator, for [`Call::trace`](crate::Call::trace), although the call
    /// is not traced.
    pub fn traced(mut self) -> Self {
        if let Some(own) = self.own() {
            own.options.traced = true;
        }
        self
    }

    /// Bytes that go along with it alone: see [`RequestInfo::continuation`]. If they exceed 16 KiB, the delegation fails and says
    /// so.
    pub fn continuation(mut self, bytes: impl Into<Bytes>) -> Self {
        match Continuation::new(bytes) {
            Ok(continuation) => {
                if let Some(own) = self.own() {
                    own.options.continuation = Some(continuation);
                }
            }
            Err(error) => self.fail(SendError::Continuation(error)),
        }
        self
    }

    /// A durable id in place of the one that it has got, which follows from its request's: see [`RequestInfo::durable_id`].
    pub fn durable(mut self, id: DurableId) -> Self {
        if let Some(own) = self.own() {
            own.options.durable = Some(id);
        }
        self
    }

    /// A body that follows it, in place of the target's, if that had one.
    pub fn body(mut self, body: Body) -> Self {
        if let Some(to) = self.onward() {
            to.body = Some(Attached::new(body));
        }
        self
    }

    /// Hands it on and tells its place in the call's tree. It leaves now, where it would else be held back until more is sent: that
    /// costs a small message if nothing is.
    ///
    /// # Errors
    ///
    /// As without it; or if an interceptor has not passed it on, or not yet.
    pub async fn placed(mut self) -> Result<RequestId, SendError> {
        let place = Arc::new(OnceLock::new());
        if let Some(own) = self.own() {
            own.place = Some(Arc::clone(&place));
        }
        self.0.await?;
        let nowhere = || SendError::Refused("it was not handed on: it has no place".into());
        place.get().copied().ok_or_else(nowhere)
    }

    fn change_metadata(
        mut self,
        change: impl FnOnce(&mut DelegateOptions) -> Result<(), MetadataError>,
    ) -> Self {
        let Departure { request, state } = &mut self.0;
        let DepartureState::Here(Some(Intent::Delegation { to, .. }), _) = state else {
            return self;
        };
        let (own, exit): (_, &Exit) = (to.options_mut(), (*request).borrow());
        let changed = change(own).and_then(|()| own.metadata_beside(&exit.handling.inherited()));
        if let Err(error) = changed {
            self.fail(error.into());
        }
        self
    }

    fn onward(&mut self) -> Option<&mut DelegatedRequest> {
        match &mut self.0.state {
            DepartureState::Here(Some(Intent::Delegation { to, .. }), _) => Some(to),
            _ => None,
        }
    }

    fn own(&mut self) -> Option<&mut DelegationOptions> {
        let to = self.onward()?;
        Some(to.own.get_or_insert_default())
    }

    #[cold]
    fn fail(&mut self, error: SendError) {
        if let DepartureState::Here(Some(intent), _) = &self.0.state {
            self.0.state = DepartureState::Refused(error, intent.is_last());
        }
    }
}

/// What interceptors hand on.
impl Delegation<Exit> {
    /// Nothing comes after it: it ends the request.
    pub fn last(mut self) -> Self {
        if let DepartureState::Here(Some(Intent::Delegation { last, .. }), _) = &mut self.0.state {
            *last = true;
        }
        self
    }
}

impl<R: Borrow<Exit> + Unpin> Future for Delegation<R> {
    type Output = Result<(), SendError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx)
    }
}

impl<R> fmt::Debug for Delegation<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let message = match &self.0.state {
            DepartureState::Here(message, _) => message.as_ref(),
            DepartureState::Passes(_) | DepartureState::Refused(..) => None,
        };
        f.debug_tuple("Delegation").field(&message).finish()
    }
}

/// A message that leaves when this is first polled; done when it was accepted for sending.
///
/// Written by hand since handlers are futures that hold this one: as a chain of async functions it would be several
/// times as large, and be moved as often.
#[must_use = "a message leaves when this is awaited"]
struct Departure<R> {
    request: R,
    state: DepartureState,
}

enum DepartureState {
    /// It was not sent yet: in which direction it goes, once that is known.
    Here(Option<Intent>, Option<Lane>),
    /// It passes what is around its request.
    Passes(SendFuture),
    /// Why there is none, and whether it was the last one.
    Refused(SendError, bool),
}

impl<R: Borrow<Exit> + Unpin> Departure<R> {
    fn of(request: R, message: Result<Intent, SendError>, last: bool) -> Self {
        let state = match message {
            Ok(message) if last => DepartureState::Here(Some(message.last()), None),
            Ok(message) => DepartureState::Here(Some(message), None),
            Err(error) => DepartureState::Refused(error, last),
        };
        Self { request, state }
    }
}

impl<R: Borrow<Exit> + Unpin> Future for Departure<R> {
    type Output = Result<(), SendError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { request, state } = &mut *self;
        let exit: &Exit = (*request).borrow();
        if let DepartureState::Here(message, _) = state
            && exit.is_surrounded()
            && let Some(message) = message.take()
        {
            *state = DepartureState::Passes(exit.clone().pass(message));
        }
        match state {
            DepartureState::Here(message, lane) => exit.handling.poll_send(message, lane, cx),
            DepartureState::Passes(passing) => passing.as_mut().poll(cx),
            DepartureState::Refused(error, last) => {
                exit.handling.note_refused(error, *last);
                Poll::Ready(Err(error.clone()))
            }
        }
    }
}

fn answer_of<T, C: Codec<T>>(answer: &T) -> Result<Intent, SendError> {
    Ok(Intent::answer(C::encode(answer)?))
}

fn target_at<A, C>(server: Address, target: Target<A, C>) -> Result<DelegatedRequest, SendError> {
    let mut to = DelegatedRequest::new(server, target.definition, target.payload?);
    to.body = target.body.map(Attached::new);
    Ok(to)
}

fn onward(server: Address, method: &Arc<MethodDefinition>, payload: Bytes) -> DelegatedRequest {
    DelegatedRequest::new(server, Arc::clone(method), payload)
}

/// A request to a method that answers `A`: what a handler holds, and what it can do with it.
///
/// `Request<One<T>>` has [`respond`](Request::respond) and [`forward`](Request::forward), which consume it;
/// `Request<Many<T>>` can also [`reply`](Request::reply) and [`delegate`](Request::delegate) any number of times, and
/// ends when it is dropped.
pub struct Request<A, C = Postcard> {
    raw: RawRequest,
    types: PhantomData<fn() -> (A, C)>,
}

impl<A: Answers, C> Request<A, C> {
    pub(crate) fn new(raw: RawRequest) -> Self {
        Self {
            raw,
            types: PhantomData,
        }
    }

    pub(crate) fn keep(&self) -> Keep {
        self.raw.handling.keep()
    }

    /// The request with payloads as bytes.
    pub fn into_raw(self) -> RawRequest {
        self.raw
    }

    /// Ends the request with a status.
    pub fn fail(self, status: &Status) {
        self.raw.fail(status);
    }
}

impl<A, C> Deref for Request<A, C> {
    type Target = RequestInfo;

    fn deref(&self) -> &RequestInfo {
        &self.raw
    }
}

impl<A: Answers, C: Codec<A::Item>> Request<A, C> {
    /// Sends the answer, the last one if there may be several, and ends the request.
    ///
    /// # Errors
    ///
    /// If the answer cannot be encoded, is too large, or the request has ended.
    pub fn respond(
        self,
        answer: A::Item,
    ) -> impl Future<Output = Result<(), SendError>> + Send + use<A, C> {
        Departure::of(self.raw, answer_of::<A::Item, C>(&answer), true)
    }

    /// [`respond`](Self::respond) for blocking handlers.
    ///
    /// # Errors
    ///
    /// As `respond`, and on a thread of an async runtime.
    pub fn blocking_respond(self, answer: A::Item) -> Result<(), SendError> {
        block(self.respond(answer))
    }
}

impl<T: Send + 'static, C: Codec<T>> Request<One<T>, C> {
    /// Hands the work to another server, which answers the initiator directly, and ends the request: a tail call.
    ///
    /// What becomes of it only the initiator learns: if it is certainly not delivered, this endpoint answers in its name
    /// with the status `Unavailable`; if it is lost later, the call fails. Who would choose another server instead asks for
    /// the connection first ([`Endpoint::connect`](crate::Endpoint::connect)).
    ///
    /// # Errors
    ///
    /// If the request cannot be encoded, is too large, too deep in the tree, or has ended.
    #[doc(alias = "delegate")]
    pub fn forward(
        self,
        server: impl Into<Address>,
        target: Target<One<T>, C>,
    ) -> Delegation<RawRequest> {
        Delegation::of(self.raw, target_at(server.into(), target), true)
    }

    /// [`forward`](Self::forward) for blocking handlers.
    ///
    /// # Errors
    ///
    /// As `forward`, and on a thread of an async runtime.
    pub fn blocking_forward(
        self,
        server: impl Into<Address>,
        target: Target<One<T>, C>,
    ) -> Result<(), SendError> {
        block(self.forward(server, target))
    }
}

impl<T: Send + 'static, C: Codec<T>> Request<Many<T>, C> {
    /// Sends an answer to the initiator; more may follow.
    ///
    /// Answers arrive in any order if they are large or come from several servers. The latest is held back until the handler waits for
    /// something or goes on, as it might be the last; if the handler returns an error before that, the status takes its place.
    ///
    /// # Errors
    ///
    /// If the answer cannot be encoded, is too large, or the request has ended.
    pub fn reply(
        &self,
        answer: T,
    ) -> impl Future<Output = Result<(), SendError>> + Send + use<'_, T, C> {
        Departure::of(&self.raw, answer_of::<T, C>(&answer), false)
    }

    /// Like [`reply`](Self::reply), but fails with [`SendError::Full`] where that would wait.
    ///
    /// # Errors
    ///
    /// As `reply`, or if there is no credit or room now.
    pub fn try_reply(&self, answer: T) -> Result<(), SendError> {
        self.raw.try_reply(C::encode(&answer)?)
    }

    /// Hands work to another server, which answers the initiator directly; more may follow.
    ///
    /// A server that cannot be reached shows as a status among the call's answers. It leaves when the handler waits for something or
    /// goes on, as [`reply`](Self::reply) says; if the handler returns an error before that, the status takes its place.
    ///
    /// # Errors
    ///
    /// If the request cannot be encoded, is too large, too deep in the tree, or has ended.
    pub fn delegate<B: Answers<Item = T>>(
        &self,
        server: impl Into<Address>,
        target: Target<B, C>,
    ) -> Delegation<&RawRequest> {
        Delegation::of(&self.raw, target_at(server.into(), target), false)
    }

    /// Like [`delegate`](Self::delegate), but fails with [`SendError::Full`] where that would wait.
    ///
    /// # Errors
    ///
    /// As `delegate`, or if there is no credit or room now.
    pub fn try_delegate<B: Answers<Item = T>>(
        &self,
        server: impl Into<Address>,
        target: Target<B, C>,
    ) -> Result<(), SendError> {
        let onward = target_at(server.into(), target)?;
        self.raw.handling.try_send(onward.into())
    }

    /// Hands the rest of the work to another server and ends the request: a tail call. What becomes of it only the
    /// initiator learns, as of all that is delegated.
    ///
    /// # Errors
    ///
    /// As [`delegate`](Self::delegate).
    pub fn forward<B: Answers<Item = T>>(
        self,
        server: impl Into<Address>,
        target: Target<B, C>,
    ) -> Delegation<RawRequest> {
        Delegation::of(self.raw, target_at(server.into(), target), true)
    }

    /// Sends the message that is held back because it might be the last one.
    pub async fn flush(&self) {
        self.raw.flush().await;
    }

    /// [`reply`](Self::reply) for blocking handlers.
    ///
    /// # Errors
    ///
    /// As `reply`, and on a thread of an async runtime.
    pub fn blocking_reply(&self, answer: T) -> Result<(), SendError> {
        block(self.reply(answer))
    }

    /// [`delegate`](Self::delegate) for blocking handlers.
    ///
    /// # Errors
    ///
    /// As `delegate`, and on a thread of an async runtime.
    pub fn blocking_delegate<B: Answers<Item = T>>(
        &self,
        server: impl Into<Address>,
        target: Target<B, C>,
    ) -> Result<(), SendError> {
        block(self.delegate(server, target))
    }

    /// [`forward`](Self::forward) for blocking handlers.
    ///
    /// # Errors
    ///
    /// As `forward`, and on a thread of an async runtime.
    pub fn blocking_forward<B: Answers<Item = T>>(
        self,
        server: impl Into<Address>,
        target: Target<B, C>,
    ) -> Result<(), SendError> {
        block(self.forward(server, target))
    }
}

fn block(sending: impl Future<Output = Result<(), SendError>>) -> Result<(), SendError> {
    let stopped =
        || SendError::Refused("a blocking send inside an async runtime would stop it".into());
    blocking::wait(sending).unwrap_or_else(|_| Err(stopped()))
}

impl<A, C> fmt::Debug for Request<A, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.raw.fmt(f)
    }
}
