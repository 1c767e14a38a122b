//! Code around requests: who may have them, what becomes of what their handlers send.
//!
//! An [`Interceptor`] is asked about each request after it was noted, so that a duplicate is not asked about again, and before it
//! gets one of the executor's places. It lets it run, refuses it, or waits for something first. It may put [values](Extensions) there
//! for the handler.

mod asking;
mod extensions;

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use wallaby_proto::Status;
use wallaby_proto::connection::MethodDefinition;

pub(crate) use self::asking::{Asking, until_stopped};
pub use self::extensions::Extensions;

use crate::request::RequestInfo;

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
pub trait Interceptor: Send + Sync + 'static {
    /// Whether it is asked about requests of this method: said once for each, when it is registered. The others cost nothing.
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
    /// It goes on: the next interceptor is asked, and at last its handler runs.
    Run,
    /// It ends with this status. This server has certainly not executed it, nor any interceptor that was not asked yet.
    Refuse(Status),
    /// This says so later. Meanwhile the request takes none of the executor's places; what it takes of its connection's credit
    /// is not free. If it is aborted or its deadline passes, the future is dropped.
    Wait(Pin<Box<dyn Future<Output = Self> + Send>>),
}

impl Admission {
    /// This says so later.
    pub fn wait(decision: impl Future<Output = Self> + Send + 'static) -> Self {
        Self::Wait(Box::pin(decision))
    }
}

impl fmt::Debug for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Run => f.write_str("Run"),
            Self::Refuse(status) => f.debug_tuple("Refuse").field(status).finish(),
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

    /// Its handler gets these arguments instead.
    pub fn set_payload(&self, payload: Bytes) {
        self.info.handling.set_arguments(payload);
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
