//! Tests of failure detection, abort and collection: a watch at the initiator, records at the servers.
//!
//! | module | what it checks |
//! |---|---|
//! | `asking`, `judging`, `stopping` | the client half, rule by rule (*rule 18* is that of `docs/protocol.md`) |
//! | `rates` | how much the client half asks because servers say so |
//! | `heartbeats` | both halves of calls that do not ask: servers show unasked that they live |
//! | `tolerant` | the client half of calls that go on without what is lost |
//! | `remembering`, `recalling`, `refusing`, `limits`, `names` | the server half, rule by rule |
//! | `claims` | the server half towards who only says that it is the initiator |
//! | `roo` | the known defects of the thesis' implementation, one test each |
//!
//! Random worlds, in which whole endpoints run with faults and an oracle sees everything, are those of `crates/wallaby-sim`.

mod allocations;
mod asking;
mod claims;
mod desk;
mod heartbeats;
mod judging;
mod limits;
mod names;
mod onward;
mod rates;
mod recalling;
mod refusing;
mod remembering;
mod roo;
mod shares;
mod shelf;
mod stopping;
mod tolerant;
mod waiting;
