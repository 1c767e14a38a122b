//! The tests of this crate, a module for each subject, in one program. `cargo test -p wallaby-mail --test all pages::` runs those
//! of one module.
#![allow(clippy::unwrap_used, reason = "a test that fails says where")]

mod browser;
mod gone;
mod pages;
mod program;
mod town;
