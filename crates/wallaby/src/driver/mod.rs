//! What moves bytes and runs handlers around [`wallaby_proto::endpoint`], on a tokio runtime. It decides nothing.
//!
//! `shared` is the endpoint behind its lock and who enters it; `effects` what is done when the lock is free again; `waiters` who
//! is woken. `stream`, `streams` and `port` move bytes.

pub(crate) mod effects;
pub(crate) mod port;
pub(crate) mod shared;
pub(crate) mod stream;
mod streams;
pub(crate) mod waiters;
