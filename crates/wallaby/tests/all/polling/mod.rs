//! Polling endpoints: among themselves over links that lose, double and delay datagrams, and over streams that are slow,
//! damaged or silent, in virtual time; and with
//! endpoints on tokio over real sockets and shared memory.

mod alone;
mod behalf;
mod bodies;
mod connects;
mod failures;
mod hostile;
mod interceptors;
mod interop;
mod log;
mod own;
mod proxy;
mod relaying;
mod retries;
mod rings;
mod settings;
mod stops;
mod streams;
mod trees;
mod world;
