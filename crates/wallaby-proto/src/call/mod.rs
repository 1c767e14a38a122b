//! The two halves of a call: two state machines that only messages connect.

pub mod initiator;
pub mod server;

mod branches;
