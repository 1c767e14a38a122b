//! Completion and failure detection in small scopes: every tree of a few messages, every order of what happens, every
//! single fault. Explored exhaustively with [stateright], where the simulator samples.
//!
//! The endpoints are the real machines of `wallaby-proto`: `ClientCall` at the initiator, `Records` and `ServerHalf` at the
//! servers. The network between them is a bag: any message may be the next to arrive. Time advances by
//! ping periods, and only when no message has been under way for longer than the scope allows.
//!
//! | file | what is in it |
//! |---|---|
//! | `plan` | all trees of a size |
//! | `scope` | what one exploration tries; deliberately broken variants |
//! | `letter` | messages, names, addresses |
//! | `local` | the states of one endpoint, found as they are needed |
//! | `client`, `host` | the endpoints: an initiator, a server |
//! | `seen` | an observer of all endpoints: what must hold |
//! | `world` | the whole: what may happen next, and the properties |
//!
//! Not in the model: bytes and connections (messages are handed over whole and are written at once), credit, retries,
//! deadlines, evictions, large messages, restarts, clocks that differ. The simulator has those.

mod client;
mod explore;
mod host;
mod letter;
mod local;
mod plan;
mod scope;
mod seen;
mod world;

pub use client::Outcome;
pub use explore::{Explored, explore};
pub use plan::{Step, Tree};
pub use scope::{Scope, Variant};
pub use seen::Seen;
pub use world::{
    AT_MOST_ONCE, Action, COMPLETE, ENDS, FINAL, FORGOTTEN, NO_LIARS, NO_STORM, ONCE, QUIET,
    STOPPED, State, TRUE_FAILURE, World,
};
