//! Wallaby's peers in the harness of Wallaby's own benchmarks: the same patterns, payloads, rounds and rows.
//!
//! - [`peers`]: which there are, and what is missing here.
//! - `on_*`: one file a peer, an implementation of [`wallaby_bench::stack::Stack`] in the configuration that the
//!   peer's documentation recommends.
//! - `calls`: what asynchronous peers have in common.
//! - [`faults`]: what callers read when something breaks, beside Wallaby.
//! - [`throughput`]: calls per second for several sizes of payload.

mod calls;
pub mod faults;
#[cfg(have_capnp)]
mod on_capnp;
mod on_nats;
mod on_onc;
mod on_tarpc;
#[cfg(have_thrift)]
mod on_thrift;
mod on_tonic;
pub mod peers;
mod program;
pub mod throughput;

#[cfg(have_capnp)]
#[allow(
    clippy::all,
    clippy::nursery,
    clippy::restriction,
    unreachable_pub,
    unnameable_types
)] // it is generated
mod relay_capnp {
    include!(concat!(env!("OUT_DIR"), "/relay_capnp.rs"));
}

use wallaby_bench::Transport;
use wallaby_bench::pattern::{Form, Pattern};

/// Whether a peer that makes calls over TCP, and can't pass them on, is asked for.
fn calls_over_tcp(transport: Transport, pattern: Pattern) -> bool {
    let calls = pattern.form() == Form::Calls;
    calls && transport == Transport::Tcp
}
