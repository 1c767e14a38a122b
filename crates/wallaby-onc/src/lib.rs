//! ONC RPC and XDR: what programs compiled from `.x` interface files need at run time.
//!
//! | module | what it holds |
//! |---|---|
//! | [`xdr`] | values as bytes (RFC 4506) |
//! | [`message`] | calls and replies (RFC 5531) |
//! | [`auth`] | who calls: `AUTH_NONE`, `AUTH_SYS` |
//! | [`record`] | where messages begin and end in a byte stream |
//! | [`service`] | programs apart from how they are reached |
//! | [`failure`] | why a call has no answer |
//! | [`client`] | ways to servers over sockets |
//! | [`server`] | programs served over sockets |
//! | [`rpcbind`] | where programs are reached |
//! | `endpoint` | the same over Wallaby's own transports, with the feature `wallaby` |
//!
//! The rest is there without the feature `net`, too (it is on by default), and on systems that are not Unix, where there are no
//! sockets yet: nothing of it has a clock or a runtime in it. Bytes come in, values go out, and the other way round.

#![cfg_attr(docsrs, feature(doc_cfg))]

// Generated code names this crate from outside.
extern crate self as wallaby_onc;

pub mod auth;
#[cfg(all(feature = "net", unix))]
pub mod client;
#[cfg(all(feature = "net", unix))]
mod deadline;
#[cfg(feature = "wallaby")]
pub mod endpoint;
pub mod failure;
pub mod message;
mod peer;
pub mod record;
#[cfg(all(feature = "net", unix))]
pub mod rpcbind;
#[cfg(all(feature = "net", unix))]
mod scratch;
#[cfg(all(feature = "net", unix))]
pub mod server;
pub mod service;
#[cfg(all(feature = "net", unix))]
mod stream;
#[cfg(all(feature = "net", unix))]
mod udp;
pub mod xdr;

pub use auth::{Credential, Principal};
pub use bytes::Bytes;
pub use failure::{NoReply, Reason, RpcError};
pub use message::{AcceptError, Procedure, Refusal};
pub use peer::{Origin, Peer};
pub use service::{Channel, Program, Programs};
