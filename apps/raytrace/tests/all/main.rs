//! The tests of this crate, a module for each subject, in one program: to link a program for each takes longer than to run them.
//! `cargo test -p wallaby-raytrace --test all files::` runs those of one module.

mod common;
mod files;
mod pictures;
mod program;
mod rays;
mod servers;
