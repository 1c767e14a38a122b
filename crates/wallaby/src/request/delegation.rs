//! What handlers send on its way: it leaves when it is first polled.

use std::borrow::Borrow;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use wallaby_proto::connection::MethodDefinition;
use wallaby_proto::endpoint::{DelegateOptions, Lane};
use wallaby_proto::wire::{Continuation, MetadataError};
use wallaby_proto::{DurableId, RequestId};

use crate::body::{Attached, Body};
use crate::error::SendError;
use crate::intercept::{DelegatedRequest, DelegationOptions, Exit, Intent, SendFuture};

/// Work that is handed to another server: it leaves when this is first polled, and is done when it was accepted for sending. Up to
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

    /// Bytes that go along with it alone: see [`RequestInfo::continuation`](super::RequestInfo::continuation). If they exceed
    /// 16 KiB, the delegation fails and says so.
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

    /// A durable id in place of the one that it has got, which follows from its request's: see
    /// [`RequestInfo::durable_id`](super::RequestInfo::durable_id).
    pub fn durable(mut self, id: DurableId) -> Self {
        if let Some(own) = self.own() {
            own.options.durable = Some(id);
        }
        self
    }

    /// If it certainly does not reach its server, or may not go there, it is handled here in its place, by this method of this
    /// endpoint: with its arguments and its continuation, but without a body. The handler, or an interceptor, finds out by
    /// [`RequestInfo::undelivered`](super::RequestInfo::undelivered), and answers it or hands it on to another server. Without this,
    /// a status in its server's name goes to the initiator. Whether a server has executed what it was sent before it died nobody
    /// knows: that does not come back.
    ///
    /// ```
    /// use wallaby::{Address, Method, One, RawRequest, Service, Status};
    ///
    /// static FIND: Method<(String,), One<u64>> = Method::new("example.Index/find");
    /// static FIND_ELSEWHERE: Method<(String,), One<u64>> = Method::new("example.Front/find_elsewhere");
    ///
    /// /// Hands requests on to the first server, and what does not get there to the second one.
    /// fn front(first: Address, second: Address) -> Service {
    ///     let find = move |request: RawRequest| {
    ///         let payload = request.payload().clone();
    ///         let onward = request.forward(&first, FIND.definition(), payload);
    ///         async move { Ok(onward.unless_sent(FIND_ELSEWHERE.definition()).await?) }
    ///     };
    ///     let elsewhere = move |request: RawRequest| {
    ///         let to = request.undelivered().map(|_| second.clone());
    ///         async move {
    ///             let to = to.ok_or_else(|| Status::permission_denied("nobody else calls this"))?;
    ///             let payload = request.payload().clone();
    ///             Ok(request.forward(to, FIND.definition(), payload).await?)
    ///         }
    ///     };
    ///     let front = Service::new("front").raw(FIND.definition().clone(), find);
    ///     front.raw(FIND_ELSEWHERE.definition().clone(), elsewhere)
    /// }
    /// ```
    pub fn unless_sent(mut self, method: &Arc<MethodDefinition>) -> Self {
        if let Some(own) = self.own() {
            own.options.unless_sent = Some(Arc::clone(method));
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
pub(super) struct Departure<R> {
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
    pub(super) fn of(request: R, message: Result<Intent, SendError>, last: bool) -> Self {
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
