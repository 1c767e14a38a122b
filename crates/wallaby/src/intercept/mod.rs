//! Code around requests: who may have them, what becomes of what their handlers send.
//!
//! An [`Interceptor`] is asked about each request after it was noted, so that a duplicate is not asked about again, and before it
//! gets one of the executor's places. It lets it run, refuses it, answers it from a record, waits for something first, or stays
//! [around](Admission::Around) it as an [`Exchange`], which sees all that its handler sends before it has a place in the call's
//! tree, and may send something else through its [`Exit`].
//!
//! What interceptors cannot do: break the account that a call keeps of its tree, send more than the call's budgets allow, have a
//! request run twice, or keep it from ending. See `docs/extending.md`.

mod around;
mod asking;
mod extensions;
mod hold;
mod intent;

use std::fmt;
use std::future::{Future, ready};
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use wallaby_proto::Status;
use wallaby_proto::connection::MethodDefinition;
use wallaby_proto::wire::MetadataError;

pub use self::around::Exit;
pub(crate) use self::around::{Around, Layer, caught, until_stopped};
pub(crate) use self::asking::Asking;
pub use self::extensions::Extensions;
pub use self::hold::{Hold, HoldLimits};
pub(crate) use self::intent::DelegationOptions;
pub use self::intent::{DelegatedRequest, Intent};
pub use wallaby_proto::endpoint::{DelegateOptions, Placed};

use crate::error::SendError;
use crate::request::RequestInfo;
use crate::service::HandlerFuture;

/// What sending something becomes: done when it was accepted for sending.
pub type SendFuture = Pin<Box<dyn Future<Output = Result<(), SendError>> + Send>>;

/// Decides about requests before they are handled.
///
/// [`Builder::interceptor`](crate::Builder::interceptor) and [`Service::interceptor`](crate::Service::interceptor) add one. Of
/// several the one added last is asked first, those of an endpoint before those of a service. A closure that takes an
/// [`Incoming`] is one, too.
///
/// ```
/// use wallaby::intercept::{Admission, Incoming, Interceptor};
/// use wallaby::{Endpoint, MethodDefinition, Status};
///
/// struct Authentication;
///
/// impl Interceptor for Authentication {
///     fn concerns(&self, method: &MethodDefinition) -> bool {
///         &**method.name() != "example.Health/check"
///     }
///
///     fn admit(&self, request: &Incoming) -> Admission {
///         match request.metadata().get("authorization") {
///             Some("Bearer abc") => Admission::Run,
///             _ => Admission::Refuse(Status::unauthenticated("no valid token")),
///         }
///     }
/// }
///
/// let builder = Endpoint::builder().interceptor(Authentication);
/// ```
#[doc(alias = "middleware")]
#[doc(alias = "layer")]
pub trait Interceptor: Send + Sync + 'static {
    /// Whether it is asked about requests of this method: said once for each, when it is registered. The others cost nothing. Of
    /// methods that a service [catches](crate::Service::catch_all), it is said for each request.
    fn concerns(&self, method: &MethodDefinition) -> bool {
        let _ = method;
        true
    }

    /// What becomes of a request. It is called on the task of a connection, so it must not block: what takes longer is an
    /// [`Admission::Wait`]. If it panics, the request ends with the status `Panicked`.
    fn admit(&self, request: &Incoming) -> Admission;
}

impl<F: Fn(&Incoming) -> Admission + Send + Sync + 'static> Interceptor for F {
    fn admit(&self, request: &Incoming) -> Admission {
        self(request)
    }
}

/// What becomes of a request.
#[non_exhaustive]
pub enum Admission {
    /// It goes on: the next interceptor is asked, and at last its handler runs. This one sees no more of it.
    Run,
    /// The same, and this sees what is sent for it.
    Around(Arc<dyn Exchange>),
    /// It ends with this status. This server has certainly not executed it, nor any interceptor that was not asked yet. Those
    /// that are around it see the status.
    Refuse(Status),
    /// This is sent in place of what its handler would send, which does not run: what a record says of an earlier execution. It
    /// counts as a handler for the executor. Those that are around it see it.
    Replay(Vec<Intent>),
    /// This says so later. Meanwhile the request takes none of the executor's places; what it takes of its connection's credit
    /// is not free, unless its arguments [were taken](Incoming::take_payload). If it is aborted or its deadline passes, the
    /// future is dropped.
    Wait(Pin<Box<dyn Future<Output = Self> + Send>>),
}

impl Admission {
    /// It goes on, and this sees what is sent for it.
    pub fn around(exchange: impl Exchange) -> Self {
        Self::Around(Arc::new(exchange))
    }

    /// This says so later.
    pub fn wait(decision: impl Future<Output = Self> + Send + 'static) -> Self {
        Self::Wait(Box::pin(decision))
    }
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Run => f.write_str("Run"),
            Self::Around(_) => f.write_str("Around(..)"),
            Self::Refuse(status) => f.debug_tuple("Refuse").field(status).finish(),
            Self::Replay(intents) => f.debug_tuple("Replay").field(intents).finish(),
            Self::Wait(_) => f.write_str("Wait(..)"),
        }
    }
}

/// A request that is not handled yet, as interceptors see it. Clones are of the same request, so that an
/// [`Admission::Wait`] can have one.
#[derive(Clone)]
pub struct Incoming {
    info: RequestInfo,
}

impl Incoming {
    pub(crate) fn new(info: RequestInfo) -> Self {
        Self { info }
    }

    /// The arguments; empty as soon as its handler runs.
    pub fn payload(&self) -> Bytes {
        self.info.handling.arguments()
    }

    /// The arguments, which its handler does not get then. Who sent it may send as much again, though it is not decided about yet: so
    /// whoever takes them bounds what it keeps. That is for who [waits](Admission::Wait) for other requests, which may come over the
    /// same connection: they would wait for that credit.
    pub fn take_payload(&self) -> Bytes {
        self.info.handling.take_arguments()
    }

    /// Its handler gets these arguments instead.
    pub fn set_payload(&self, payload: Bytes) {
        self.info.handling.set_arguments(payload);
    }

    /// What it leads to has this pair, delegations and calls on its behalf, in place of one with the same key that it came with
    /// itself: its handler still sees what came ([`RequestInfo::metadata`]).
    ///
    /// # Errors
    ///
    /// If all pairs together are too long, or these are none.
    pub fn set_inherited(&self, key: &str, value: &str) -> Result<(), MetadataError> {
        self.info.handling.set_inherited(key, value)
    }

    /// Tells how it ends, once: whoever asks for that need not be [around](Admission::Around) it. It is told on the task of a
    /// connection or of the handler, so it must not block. Another thread
    /// may write what ends the request meanwhile.
    pub fn on_end(&self, told: impl FnOnce(&RequestEnd) + Send + 'static) {
        self.info.handling.watch(Box::new(told));
    }

    /// It has no more time than this from now on, nor has what it leads to. It never has more than before.
    pub fn shorten_deadline(&self, left: Duration) {
        self.info.handling.shorten_deadline(left);
    }
}

impl Deref for Incoming {
    type Target = RequestInfo;

    fn deref(&self) -> &RequestInfo {
        &self.info
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.info.fmt(f)
    }
}

/// How a request ended, as [`Incoming::on_end`] tells.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RequestEnd {
    /// The status with which it ended; `None` if its handler was done without one. That of a request which was stopped is
    /// `Cancelled` or `DeadlineExceeded`, that of one which never ran since too many waited `ResourceExhausted`.
    pub status: Option<Status>,
    /// How long it waited for interceptors and for its turn.
    pub waited: Duration,
    /// How long its handler ran, until the request's end; `None` if it never did.
    pub ran: Option<Duration>,
}

/// Somebody who wants to know how a request ends.
pub(crate) type RequestWatch = Box<dyn FnOnce(&RequestEnd) + Send>;

/// What is around one request while it is handled: it sees what its handler sends, before it is numbered and leaves.
///
/// It is dropped when the request has ended, however that was. If it panics, the request ends with the status `Panicked`.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use wallaby::Endpoint;
/// use wallaby::intercept::{Admission, Exchange, Exit, Incoming, Intent, SendFuture};
///
/// /// Counts the answers to one request, and tells how many there were.
/// #[derive(Default)]
/// struct Answers(AtomicU64);
///
/// impl Exchange for Answers {
///     fn sending(&self, intent: Intent, exit: &Exit) -> SendFuture {
///         if matches!(intent, Intent::Answer { .. }) {
///             self.0.fetch_add(1, Ordering::Relaxed);
///         }
///         exit.send(intent)
///     }
/// }
///
/// impl Drop for Answers {
///     fn drop(&mut self) {
///         println!("{} answers", self.0.load(Ordering::Relaxed));
///     }
/// }
///
/// let counted = |_: &Incoming| Admission::around(Answers::default());
/// let builder = Endpoint::builder().interceptor(counted);
/// ```
///
/// It is dropped when its request has ended. If the handler goes on after it was stopped, as shielded sections do and blocking
/// handlers that have their [`Request`](crate::Request), that is when it is done.
#[doc(alias = "middleware")]
#[doc(alias = "layer")]
pub trait Exchange: Send + Sync + 'static {
    /// The handler sends something. What is to be sent goes through `exit`: the same, something else, several things, or
    /// nothing. The handler waits for the future, and what it sends next is not told before that is done.
    ///
    /// If the request is stopped, or its handler does not wait any longer, the future is dropped.
    fn sending(&self, intent: Intent, exit: &Exit) -> SendFuture {
        exit.send(intent)
    }

    /// A message has got its place in the call's tree and leaves. It may be the handler's or somebody else's, but always one
    /// for this request. It must not block.
    fn placed(&self, placed: &Placed) {
        let _ = placed;
    }

    /// The handler is done: all that it has sent has passed, the status that it has returned, too. What is still to be sent may
    /// be sent now. When the future is done the request ends; with a status, if that says so. The request keeps its place in the
    /// executor meanwhile. If it is stopped, the future is dropped.
    fn closing(&self, exit: &Exit) -> HandlerFuture {
        let _ = exit;
        Box::pin(ready(Ok(())))
    }
}
