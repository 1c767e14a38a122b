//! Wallaby: multi-hop calls for distributed services.

pub mod codec;
pub mod link;

mod blocking;
mod builder;
mod call;
mod calls;
mod client;
mod dispatch;
mod driver;
mod endpoint;
mod error;
mod executor;
mod fingerprint;
mod handling;
mod method;
mod metrics;
mod pool;
mod request;
mod service;
mod trace;
mod transport;

pub use wallaby_macros::{serve, service};
pub use wallaby_proto::connection::MethodDefinition;
pub use wallaby_proto::wire::{Budgets, Metadata, MetadataError};
pub use wallaby_proto::{Address, AddressError, CallId, Code, NodeId, Path, RequestId, Status};

pub use builder::{Builder, Limits};
pub use call::{AnswerFuture, Call, CallOptions, Outcome, RawAnswer, RawCall};
pub use client::{Caller, Client, Outgoing, SendLayer, Sender};
pub use endpoint::Endpoint;
pub use error::{BindError, CallError, ConnectError, Failure, SendError, ServeError};
pub use executor::{ExecutorConfig, Schedule};
pub use method::{Answer, Many, Method, One, Target};
pub use metrics::Metrics;
pub use request::{RawRequest, Request};
pub use service::{Handler, HandlerFuture, Layer, Service};
pub use trace::{Hop, Timing, Trace};

/// What generated code uses; not for others.
#[doc(hidden)]
pub mod __private {
    pub use crate::blocking::run as blocking;
    pub use crate::service::{IntoAnswer, blocking_with, into_answer};
}
