//! ONC RPC and XDR: what programs compiled from `.x` interface files need at run time.
//!
//! Nothing here has sockets, a clock or a runtime in it: bytes come in, values go out, and the other way round.
//!
//! | module | what it holds |
//! |---|---|
//! | [`xdr`] | values as bytes (RFC 4506) |
//! | [`message`] | calls and replies (RFC 5531) |
//! | [`auth`] | who calls: `AUTH_NONE`, `AUTH_SYS` |
//! | [`record`] | where messages begin and end in a byte stream |
//! | [`service`] | programs apart from how they are reached |

pub mod auth;
pub mod message;
pub mod record;
pub mod service;
pub mod xdr;

pub use auth::Caller;
pub use bytes::Bytes;
pub use message::{AcceptError, Procedure, Refusal};
pub use service::{CallError, Channel, Programs, Service};
