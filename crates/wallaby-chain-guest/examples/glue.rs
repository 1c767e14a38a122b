//! What a client brings along: a text is printed and kept, side by side; if nobody can print, it is only kept.
//!
//! ```text
//! rustup target add wasm32-unknown-unknown
//! cargo build -p wallaby-chain-guest --example glue --profile module --target wasm32-unknown-unknown
//! ```

#![cfg_attr(target_arch = "wasm32", no_std)]

extern crate alloc;

use alloc::string::String;
use alloc::vec::Vec;

use wallaby_chain_guest::{Answer, Error, Exception, Hop, Link, Merge, State, Step};

wallaby_chain_guest::alone!();
wallaby_chain_guest::export!(both, join, rescue);

/// A chaining function.
fn both(state: State, written: Answer<'_>) -> Result<Step, Error> {
    let (print, keep): (Link, Link) = (state.get("print")?, state.get("keep")?);
    let text: &str = written.read()?;
    let branches = [Hop::to(&print, &(text,))?, Hop::to(&keep, &(text,))?];
    Ok(Step::split(
        branches,
        Merge::at(&keep.server, "join", State::new()),
    ))
}

/// A merging function.
fn join(_: State, results: Vec<Answer<'_>>) -> Result<Step, Error> {
    let [printed, kept] = results[..] else {
        return Err(Error::new(Error::INTERNAL, "there are two".into()));
    };
    let (printed, kept): (&str, &str) = (printed.read()?, kept.read()?);
    Step::end(&[printed, "; ", kept].concat())
}

/// A catching function.
fn rescue(state: State, exception: Exception) -> Result<Step, Error> {
    let (keep, text): (Link, String) = (state.get("keep")?, state.get("text")?);
    let text = [&text, ", not printed: ", &exception.message].concat();
    Ok(Hop::to(&keep, &(text,))?.into())
}
