//! Polling endpoints: among themselves over links that lose, double and delay datagrams, in virtual time; and with
//! endpoints on tokio over real sockets.

mod alone;
mod failures;
mod hostile;
mod interop;
mod trees;
mod world;
