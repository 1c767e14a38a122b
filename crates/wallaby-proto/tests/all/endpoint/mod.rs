//! Whole endpoints without IO, whose messages the test carries.
//!
//! | module | what it checks |
//! |---|---|
//! | `bodies` | bodies of requests: who reads and writes them, and how they end |
//! | `sockets` | several UDP sockets: which one is dialled from, and what becomes of one that fails |
//! | `places` | which requests run, which wait, in which order, and what ends those that wait |
//! | `draining` | how an endpoint comes to rest |
//! | `panicked` | what is told of an endpoint in which something has panicked |
//! | `watching` | calls that last: that they are watched, and end |
//! | `unsent` | what could not be handed on, and is handled by who has sent it |
//! | `hostile` | what a message of a peer costs, whatever it has set up before |
//!
//! `world` carries what streams do; `sockets` carries datagrams itself, and `queues` is what the others share.

mod bodies;
mod draining;
mod hostile;
mod panicked;
mod places;
mod queues;
mod sockets;
mod unsent;
mod watching;
mod world;
