//! The tests of this crate, a module for each subject, in one program: to link a program for each takes longer than to run them.
//! `cargo test -p wallaby-idl --test all errors::` runs those of one module.

mod errors;
mod expansions;
mod onc;
mod tree;
