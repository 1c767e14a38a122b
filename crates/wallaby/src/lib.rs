//! Multi-hop calls for distributed services: **a call is a tree of hops, not a round trip**.
//!
//! A server that gets a request may hand the rest of the work to another server; whoever finishes it answers the
//! caller directly. The framework knows when the whole tree is complete, when it has failed and where.
//!
//! Start with [`macro@service`] and [`macro@serve`], which make typed clients, servers and delegation targets of a
//! trait, with [`Endpoint`], which is client and server at once, and with the program in the README. The guide, eleven pages that
//! begin with what you want to do, is in the repository: `docs/guide/README.md`. What is here:
//!
//! | part | what it is |
//! |---|---|
//! | [`Endpoint`], [`Builder`], [`Limits`] | one participant and its settings |
//! | [`Client`], [`Call`], [`CallError`], [`Outcome`] | the initiator's side: making calls, their answers, how they end |
//! | [`Client::deadline`], [`Builder::default_deadline`], [`Delegation::deadline`] | the deadline of a call, and of a part of it |
//! | [`Call::abort`], [`Call::stop`], [`RequestInfo::shield`] | to abort a call, to wait until nothing of it runs, and what is finished all the same |
//! | [`Client::retry`], [`Client::hedge`], [`Client::resend`] | to retry a call: [`Retry`], [`Hedge`], [`Resend`], [`RetryBudget`] |
//! | [`Client::tolerant`], [`Client::fail_fast`] | a call that goes on without what is lost; one that ends with the first status |
//! | [`Client::ping`], [`Client::heartbeats`] | how soon a silent server is missed, by asking or by being told |
//! | [`Servers`], [`Resolver`], [`Client::among`] | one of several servers for each call, by load; who tells their addresses |
//! | [`Caller::multicast`], [`Multicast`] | one message to many servers, and what became of it at each |
//! | [`Caller::pipeline`], [`Pipeline`] | one message down a line of servers, each of which passes it on while it arrives |
//! | [`Streaming`], [`Body`] | items, or bytes, that follow a request while it is handled |
//! | [`Request`], [`SendError`], [`Status`] | the server's side: reply, respond, delegate, forward, fail |
//! | [`Method`], [`Target`], [`One`], [`Many`], [`codec`] | what a method's type says, and how payloads look |
//! | [`ExecutorConfig`] | which requests run when |
//! | [`intercept`], [`CallInterceptor`] | middleware, code around requests and calls: who may, what travels, what is recorded |
//! | [`RawCall`], [`RawRequest`], [`Service::raw`] | the same with payloads as bytes, for tools and gateways |
//! | [`transport`] | transports from outside, and who a peer has proven to be |
//! | [`blocking`] | endpoints for programs that are not async |
//! | [`polling`] | endpoints that the application turns itself, without a runtime; on Linux |
//! | [`reflection`], [`schema`], [`health`] | what an endpoint serves, of which types, and whether it takes work |
//! | [`Trace`], [`Metrics`] | the tree of hops of a call, and what an endpoint counts |
//!
//! # Example
//!
//! ```
//! use wallaby::Endpoint;
//!
//! #[wallaby::service(package = "library")]
//! trait Shelf {
//!     async fn fetch(id: u32) -> String;
//! }
//!
//! struct MyShelf;
//!
//! #[wallaby::serve]
//! impl Shelf for MyShelf {
//!     async fn fetch(&self, id: u32) -> String {
//!         format!("volume {id}")
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = Endpoint::builder().listen("tcp://127.0.0.1:0").serve(shelf::service(MyShelf)).bind().await?;
//! let client = Endpoint::client()?;
//! let shelf = shelf::at(&client, server.address().ok_or("it listens")?);
//! assert_eq!(shelf.fetch(7).await?, "volume 7");
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//!
//! None is on by default.
//!
//! - `msgpack`: the codec `codec::MessagePack`, for types that change while programs of several versions run.
//! - `protobuf`: the codec `codec::Protobuf`, for services from `.proto` files, which wallaby-build compiles.
//! - `turmoil`: the module `simulation`; endpoints inside a simulation of turmoil use its network and its time.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod codec;
pub mod health;
pub mod intercept;
#[cfg(target_os = "linux")]
pub mod polling;
#[cfg(feature = "protobuf")]
pub mod protobuf;
pub mod reflection;
pub mod schema;
pub mod transport;

mod attempts;
pub mod blocking;
mod body;
mod budget;
mod builder;
mod call;
mod client;
mod driver;
mod endpoint;
mod error;
mod fingerprint;
mod handling;
mod hedge;
mod log;
mod method;
mod metrics;
mod multicast;
mod panics;
mod pipeline;
mod random;
mod request;
mod retry;
mod servers;
mod service;
#[cfg(feature = "turmoil")]
pub mod simulation;
mod streaming;
mod timer;

pub use wallaby_macros::{serve, service};
pub use wallaby_proto::connection::{
    ConnectionError, DialBackoff, MethodDefinition, PartialLimits,
};
pub use wallaby_proto::seal::{ClusterKey, ClusterKeyError};
pub use wallaby_proto::wire::{Budgets, Continuation, ContinuationError, Metadata, MetadataError};
pub use wallaby_proto::{
    Address, AddressError, CallId, Code, DurableId, Facts, IntoAddress, NodeId, OtherAddress, Path,
    RequestId, Status,
};

pub use body::{Body, BodyError};
pub use budget::RetryBudget;
pub use builder::{Builder, Tokio};
pub use call::{
    AnswerFuture, Call, CallEnd, CallOptions, Collected, Outcome, RawAnswer, RawCall, Resend,
};
pub use client::{CallInterceptor, Caller, Client, Outgoing};
pub use endpoint::Endpoint;
pub use error::{
    AttemptsFailed, BindError, Breakdown, CallError, ConnectError, FailedAttempt, Failure, NoMore,
    SendError, ServeError, StillRunning, Undrained, UnreadableAnswer, UnstoppedRequest,
};
pub use health::Health;
pub use hedge::Hedge;
pub use method::{Answers, Many, Method, One, RequestBody, Target};
pub use metrics::Metrics;
pub use multicast::{Delivery, Multicast, QuorumError};
pub use pipeline::{Forwarding, Pipeline, PipelineSettings, TargetOutcome};
pub use request::{Delegation, RawRequest, Request, RequestInfo};
pub use retry::Retry;
pub use servers::{Dns, ResolveError, Resolver, Servers, Static};
pub use service::{Handler, HandlerFuture, Service};
pub use streaming::{
    IntoItem, IntoStreaming, Items, StreamError, StreamErrorKind, Streaming, items,
};
pub use wallaby_proto::call::allowance::{Budget, Exhausted};
pub use wallaby_proto::call::initiator::{LimitReached, Violation};
pub use wallaby_proto::call::missing::{Missing, MissingBranch, MissingState};
pub use wallaby_proto::call::records::Remembered;
pub use wallaby_proto::call::watch::{
    Absence, Executed, FailureKind, Found, Location, Loss, LossStep,
};
pub use wallaby_proto::dial::{DialPolicy, DialRangeError};
pub use wallaby_proto::endpoint::Limits;
pub use wallaby_proto::executor::{ExecutorConfig, Load, Schedule};
pub use wallaby_proto::items::ItemError;
pub use wallaby_proto::trace::{Timing, TimingPart, Trace, TracedHop};
pub use wallaby_proto::wire::{Heartbeats, PingSettings};

/// For crates of this repository.
#[doc(hidden)]
pub mod extension {
    pub use crate::random::number;
    pub use crate::request::token;
    pub use crate::service::Reserved;
    pub use crate::timer::sleep;
    pub use wallaby_proto::Token;
}

/// What generated code uses; not for others.
#[doc(hidden)]
pub mod __private {
    pub use crate::service::{IntoAnswer, blocking_beside, blocking_with, into_answer};
    pub use bytes::Bytes;
}

/// The programs of the README and of that of the crate compile and run.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
#[doc = include_str!("../README.md")]
struct Readme;

/// So does that of the page about the polling driver.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/polling.md")]
struct PollingPage;

/// And those of the guide; that of `docs/guide/testing.md` is compiled by `wallaby-sim`, which has the simulated network, that of
/// `docs/guide/changing-types.md` by `wallaby-library`, which has `.proto` files.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/first-service.md")]
#[doc = include_str!("../../../docs/guide/services-and-types.md")]
#[doc = include_str!("../../../docs/guide/delegate-and-forward.md")]
#[doc = include_str!("../../../docs/guide/streams.md")]
#[doc = include_str!("../../../docs/guide/one-to-many.md")]
#[doc = include_str!("../../../docs/guide/failures.md")]
#[doc = include_str!("../../../docs/guide/middleware-and-security.md")]
#[doc = include_str!("../../../docs/guide/operation.md")]
struct Guide;

/// And that of the page about security.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/security.md")]
struct SecurityPage;

/// And those of the page about extending it.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/extending.md")]
struct ExtendingPage;
