//! The tests of this crate, a module for each subject, in one program: to link a program for each takes longer than to run them.
//! `cargo test -p wallaby --test all relay::` runs those of one module. Programs beside this one say why they are apart.

#[path = "../common/mod.rs"]
#[macro_use]
mod common;

mod aborts;
mod answer_streams;
mod answers;
mod below;
mod blocking;
mod bodies;
mod budgets;
mod catch_all;
mod closing;
mod credit;
#[cfg(target_os = "linux")]
mod datagrams;
mod deadlines;
mod descriptors;
mod dial_policy;
mod ends;
mod events;
mod executor;
mod half_open;
mod heartbeats;
mod hold;
mod host_names;
mod hostile_peer;
mod house;
mod initiator_proofs;
mod intercept;
mod killed;
mod large_messages;
mod limits;
mod link;
mod liveness;
mod macro_errors;
mod middleware;
mod mismatch;
mod multicast;
mod names;
mod order;
mod peer_memory;
mod pipeline;
mod polling;
mod pool;
mod protobuf;
mod reflection;
mod refusals;
mod relay;
mod resend;
mod retries;
mod seal;
mod servers;
mod shares;
mod shm;
mod statuses;
mod strangers;
mod streaming;
mod told_ends;
mod tolerant;
mod trace;
mod transports;
mod travel;
mod udp;
mod waiting_answers;

// Public, as the lints that it denies look at what is.
pub mod service_macro;
