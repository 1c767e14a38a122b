//! Tests that take all of the machine, one after the other. Apart from others, whose calls have little time.

#[path = "../common/mod.rs"]
#[macro_use]
mod common;

mod many_calls;
mod stress;
mod tree_bombs;

/// For the test that is at work. A bomb that is not stopped takes all of the machine: what is to be remembered of others may be
/// forgotten meanwhile.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
