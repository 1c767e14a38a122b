//! Whole endpoints without IO, whose messages the test carries.
//!
//! | module | what it checks |
//! |---|---|
//! | `bodies` | bodies of requests: who reads and writes them, and how they end |
//! | `sockets` | several UDP sockets: which one is dialled from, and what becomes of one that fails |
//!
//! `world` carries what streams do; `sockets` carries datagrams itself.

mod bodies;
mod sockets;
mod world;
