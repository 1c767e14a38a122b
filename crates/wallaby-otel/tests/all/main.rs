//! The tests of this crate, a module for each subject, in one program.

#[path = "../../examples/tree.rs"]
#[allow(dead_code, reason = "its main")]
mod tree;

mod collector;
mod contexts;
mod exported;
