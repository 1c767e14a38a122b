//! The tokio driver: one task a connection, or a UDP socket, reads, dispatches and answers; whoever sends writes at once.

pub(crate) mod cork;
mod own;
pub(crate) mod peer;
pub(crate) mod port;
pub(crate) mod room;
pub(crate) mod way;
