//! What is around a request while it is handled, and the ways out through it.

use std::any::Any;
use std::fmt;
use std::future::{Future, poll_fn};
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use wallaby_proto::connection::MethodDefinition;
use wallaby_proto::endpoint::{Author, Placed};
use wallaby_proto::{Address, Status};

use super::{DelegatedRequest, Exchange, Intent, SendFuture};
use crate::error::SendError;
use crate::handling::Handling;
use crate::request::{Delegation, RequestInfo};

/// What is around a request.
pub(crate) struct Around {
    /// The outermost first.
    exchanges: Vec<Layer>,
    /// Whose turn it is: what a handler sends passes one by one, and before the end.
    turn: Arc<Mutex<()>>,
}

/// One that is around a request.
pub(crate) struct Layer {
    pub(crate) author: Author,
    pub(crate) exchange: Arc<dyn Exchange>,
}

impl Around {
    pub(crate) fn new(exchanges: Vec<Layer>) -> Self {
        let turn = Arc::default();
        Self { exchanges, turn }
    }

    /// Tells all of them that a message has its place; or with what one of them panics.
    pub(crate) fn tell(&self, placed: &Placed) -> Result<(), Box<dyn Any + Send>> {
        let tell = || {
            let exchanges = self.exchanges.iter().rev();
            exchanges.for_each(|layer| layer.exchange.placed(placed));
        };
        catch_unwind(AssertUnwindSafe(tell))
    }
}

/// It is dropped wherever the last message has its place: a panic there is not to end the connection that is read.
impl Drop for Around {
    fn drop(&mut self) {
        for layer in self.exchanges.drain(..) {
            let _ = catch_unwind(AssertUnwindSafe(|| drop(layer)));
        }
    }
}

/// The way out of a request: through what is around it further out, and at last to the initiator and to other servers.
///
/// Clones lead the same way. What is sent counts against the request's budgets, waits for credit, and is numbered like what a
/// handler sends. After the request's end nothing goes out any more ([`SendError::Ended`]).
#[derive(Clone)]
pub struct Exit {
    info: RequestInfo,
    /// How many there are further out.
    further: usize,
    /// Its handler has it: what goes out this way does so one by one.
    is_handlers: bool,
}

impl Exit {
    /// A handler's.
    pub(crate) fn of(handling: &Arc<Handling>) -> Self {
        Self {
            info: RequestInfo::new(handling, Author::Handler),
            further: handling.around().map_or(0, |around| around.exchanges.len()),
            is_handlers: true,
        }
    }

    /// The same for the one that has so many further out.
    fn at(&self, around: &Around, further: usize) -> Self {
        let layer = around.exchanges.get(further);
        let author = layer.map_or(Author::Handler, |layer| layer.author);
        Self {
            info: RequestInfo::new(&self.handling, author),
            further,
            is_handlers: false,
        }
    }

    /// Hands work to another server, as [`RawRequest::delegate`](crate::RawRequest::delegate) does.
    pub fn delegate(
        &self,
        server: impl Into<Address>,
        method: &Arc<MethodDefinition>,
        payload: Bytes,
    ) -> Delegation<Self> {
        let to = DelegatedRequest::new(server.into(), Arc::clone(method), payload);
        Delegation::of(self.clone(), Ok(to), false)
    }

    /// Whether somebody is further out.
    pub(crate) fn is_surrounded(&self) -> bool {
        self.further > 0 && self.handling.around().is_some()
    }

    /// Work of a request with a durable id gets a name when somebody says it, so that it has the same one if that is said again,
    /// whatever else happens meanwhile.
    pub(crate) fn name(&self, intent: &mut Intent) {
        if self.handling.durable
            && let Intent::Delegation { to, .. } = intent
            && to.options().is_none_or(|options| options.durable.is_none())
        {
            to.options_mut().durable = self.handling.name_next(self.author);
        }
    }

    /// Sends this. A message that is the last one ends the request when it has passed; a status does, too.
    ///
    /// A delegation of a request with a durable id has got a name from who has said it first. To send another one as well, take
    /// that away ([`DelegatedRequest::options_mut`]): it gets the next one of this interceptor.
    ///
    /// # Errors
    ///
    /// As [`RawRequest::reply`](crate::RawRequest::reply) and [`RawRequest::delegate`](crate::RawRequest::delegate), or what those
    /// further out say.
    pub fn send(&self, mut intent: Intent) -> SendFuture {
        self.name(&mut intent);
        let handling = &self.info.handling;
        if let Some(further) = self.further.checked_sub(1)
            && let Some(around) = handling.around()
        {
            let exit = self.at(&around, further);
            return around.exchanges[further].exchange.sending(intent, &exit);
        }
        let handling = Arc::clone(handling);
        let (mut intent, mut lane) = (Some(intent), None);
        Box::pin(poll_fn(move |cx| {
            handling.poll_send(&mut intent, &mut lane, cx)
        }))
    }

    /// Sends the message that is held back because it might be the last one. A status that comes next would be sent in its place.
    pub async fn flush(&self) {
        poll_fn(|cx| self.handling.poll_flush(cx)).await;
    }

    /// Sends what was recorded, in order; returns the status that ends it.
    pub(crate) async fn send_all(&self, intents: Vec<Intent>) -> Result<(), Status> {
        for intent in intents {
            let last = intent.is_last();
            if let Intent::Status(status) = intent {
                self.flush().await;
                return Err(*status);
            }
            self.clone().pass(intent).await?;
            if last {
                break;
            }
        }
        Ok(())
    }

    /// Sends this; what a handler sends, when what it has sent before has passed.
    pub(crate) fn pass(self, intent: Intent) -> SendFuture {
        if !self.is_handlers {
            return self.send(intent);
        }
        Box::pin(async move {
            let handling = &self.info.handling;
            let Some(around) = handling.around() else {
                return self.send(intent).await;
            };
            let (turn, exit) = (Arc::clone(&around.turn), self.clone());
            let mut pass: SendFuture = Box::pin(async move {
                let _turn = turn.lock_owned().await;
                exit.handling.check_open()?;
                exit.send(intent).await
            });
            if let Poll::Ready(sent) = poll_fn(|cx| Poll::Ready(pass.as_mut().poll(cx))).await {
                return sent;
            }
            // A handler that does not look at this while it does something else is not to be in its own way.
            let own = Arc::clone(handling);
            let pass = async move { until_stopped(&own, pass).await };
            let mut passing = Passing(handling.endpoint.runtime.spawn(pass));
            match (&mut passing.0).await {
                Ok(Some(sent)) => sent,
                Err(error) if error.is_panic() => resume_unwind(error.into_panic()),
                Ok(None) | Err(_) => handling
                    .check_open()
                    .and(Err(SendError::Ended("the server is shutting down".into()))),
            }
        })
    }

    /// The same if it need not wait for its turn. Whatever it becomes goes on by itself if that has to wait.
    pub(crate) fn try_pass(self, around: &Around, intent: Intent) -> Result<(), SendError> {
        let handling = Arc::clone(&self.info.handling);
        let turn = Arc::clone(&around.turn).try_lock_owned();
        let turn = turn.map_err(|_| SendError::Full)?;
        handling.check_open()?;
        let mut sending = self.send(intent);
        let mut cx = Context::from_waker(Waker::noop());
        if let Poll::Ready(sent) = sending.as_mut().poll(&mut cx) {
            return sent;
        }
        let runtime = handling.endpoint.runtime.clone();
        runtime.spawn(async move {
            // The handler was told that it is sent: what prevents that ends the request.
            match until_stopped(&handling, caught(sending)).await {
                Some(Err(panic)) => handling.fail_now(&handling.interceptor_panicked(panic)),
                Some(Ok(Err(error))) => handling.fail_now(&Status::from(error)),
                Some(Ok(Ok(()))) | None => {}
            }
            drop(turn);
        });
        Ok(())
    }

    /// The handler is done, and has perhaps `failed`: all that are around it learn of it, and send what they still have to.
    pub(crate) async fn close(self, failed: Option<Status>) -> Result<(), Status> {
        let Some(around) = self.info.handling.around() else {
            return failed.map_or(Ok(()), Err);
        };
        let _turn = around.turn.lock().await;
        let mut status = failed;
        for further in (0..=self.further).rev() {
            if let Some(sent) = &status
                && let exit = self.at(&around, further)
                && let Ok(()) = exit.send(Intent::from(sent.clone())).await
            {
                status = None;
            }
            // Whoever does not take a status: those further out still learn of it, and of the end.
            if let Some(next) = further.checked_sub(1) {
                let exit = self.at(&around, next);
                let closed = around.exchanges[next].exchange.closing(&exit).await;
                status = closed.err().or(status);
            }
        }
        status.map_or(Ok(()), Err)
    }
}

impl Deref for Exit {
    type Target = RequestInfo;

    fn deref(&self) -> &RequestInfo {
        &self.info
    }
}

impl fmt::Debug for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Exit({:?}, {} further out)", self.info, self.further)
    }
}

/// A message passes by itself, as long as somebody wants to know what becomes of it.
struct Passing(JoinHandle<Option<Result<(), SendError>>>);

impl Drop for Passing {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Does something until the request is stopped: `None` if it was.
pub(crate) async fn until_stopped<T>(
    handling: &Handling,
    work: impl Future<Output = T>,
) -> Option<T> {
    let (mut work, mut stopped) = (pin!(work), pin!(handling.cancelled()));
    poll_fn(|cx| match stopped.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(None),
        Poll::Pending => work.as_mut().poll(cx).map(Some),
    })
    .await
}

/// What a future yields, or with what it panics.
pub(crate) async fn caught<T>(future: impl Future<Output = T>) -> Result<T, Box<dyn Any + Send>> {
    let mut future = pin!(future);
    poll_fn(|cx| {
        let poll = AssertUnwindSafe(|| future.as_mut().poll(cx));
        match catch_unwind(poll) {
            Ok(poll) => poll.map(Ok),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    })
    .await
}
