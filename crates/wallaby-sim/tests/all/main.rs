//! The tests of this crate, a module for each subject, in one program: to link a program for each takes longer than to run them.
//! `cargo test -p wallaby-sim --test all broken::` runs those of one module.

mod broken;
mod determinism;
mod kinds;
mod program;
mod seeds;
