//! The tests of this crate, a module for each subject, in one program: to link a program for each takes longer than to run them.
//! `cargo test -p wallaby-chord --test all churn::` runs those of one module.

mod census;
mod churn;
mod hops;
mod node;
mod program;
mod properties;
mod service;
mod world;
