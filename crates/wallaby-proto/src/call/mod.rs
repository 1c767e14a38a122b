//! The two halves of a call: state machines that only messages connect.
//!
//! [`initiator`] and [`server`] carry a call from its first request to its completion. [`watch`] and [`records`] see to
//! it that a call also ends where messages or servers are lost: the first asks, the second remembers what is asked
//! about. Both count time by a [`clock`] that stands still while the process does. Answers to which no route leads are
//! [`waiting`] for one. An [`allowance`] ends trees that grow without end, [`room`] limits what
//! all calls know of theirs together, and shares divide what is limited among peers.

pub mod allowance;
pub mod clock;
pub mod initiator;
pub mod missing;
pub mod records;
pub mod room;
pub mod server;
pub(crate) mod shares;
pub(crate) mod ungranted;
pub mod waiting;
pub mod watch;

mod branches;
mod counts;

#[cfg(test)]
#[path = "../../tests/common/chance.rs"]
mod chance;
