//! The tests of this crate, a module for each subject, in one program: to link a program for each takes longer than to run them.
//! `cargo test -p wallaby-onc --test all xdr::` runs those of one module. Programs beside this one say why they are apart.

mod author;
mod client;
mod endpoint;
mod generated;
mod libtirpc;
mod message;
mod programs;
mod record;
mod rpcbind;
mod rpcgen;
mod server;
mod xdr;
