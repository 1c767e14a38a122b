//! The tokio driver: one task a connection reads, dispatches and answers; whoever sends writes at once.

pub(crate) mod cork;
pub(crate) mod peer;
