//! The tests of this crate, a module for each subject, in one program: to link a program for each takes longer than to run them.
//! `cargo test -p wallaby-cli --test all demo::` runs those of one module.

#[cfg(feature = "chain")]
mod chain;
mod demo;
mod onc;
#[cfg(feature = "proto")]
mod proto;
mod remote;
#[cfg(feature = "sidecar")]
mod sidecar;
