//! The tests of this crate, a module for each subject, in one program: to link a program for each takes longer than to run them.
//! `cargo test -p wallaby-graph --test all damage::` runs those of one module.

mod common;
mod damage;
mod inserts;
mod program;
mod queries;
