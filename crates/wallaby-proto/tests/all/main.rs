//! The tests of this crate, in one program: to link a program for each takes longer than to run them.
//! `cargo test -p wallaby-proto --test all datagram::` runs those of one module.

#[path = "../common/chance.rs"]
mod chance;
#[path = "../common/golden.rs"]
mod golden;

mod allocations;
mod counting;
mod datagram;
mod endpoint;
mod liveness;
mod protocol;
