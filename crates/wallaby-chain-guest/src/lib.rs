//! Chaining functions as WebAssembly: what a client brings to servers that do not know it.
//!
//! A function gets the state that travels with its chain and what a link has answered, and says how the chain goes on. It is an
//! ordinary function of Rust, which can be tested as one. [`export!`] makes a module's exports of it:
//!
//! ```
//! use wallaby_chain_guest::{Answer, Error, Hop, Link, State, Step};
//!
//! /// Advertisements for a mail.
//! fn advertise(mut state: State, mail: Answer<'_>) -> Result<Step, Error> {
//!     let mail: String = mail.read()?;
//!     let ads: Link = state.get("ads")?;
//!     let topic = mail.rsplit(' ').next().unwrap_or_default().to_owned();
//!     state.set("mail", &mail)?;
//!     Ok(Hop::to(&ads, &(topic,))?.then("join", state).into())
//! }
//!
//! fn join(state: State, ad: Answer<'_>) -> Result<Step, Error> {
//!     let (mail, ad): (String, String) = (state.get("mail")?, ad.read()?);
//!     Step::end(&format!("{mail}; {ad}"))
//! }
//!
//! wallaby_chain_guest::export!(advertise, join);
//! ```
//!
//! | part | what it is |
//! |---|---|
//! | [`State`], [`Answer`], [`Read`], [`Exception`] | what a function is given: the second is what it is for ([`Given`]) |
//! | [`Step`], [`Hop`], [`Link`], [`Merge`], [`Function`] | what it says |
//! | [`export!`], [`alone!`] | what makes a module of functions |
//! | [`abi`] | the same as bytes, for servers and for other languages; `docs/chains.md` has it in words |

#![no_std]

extern crate alloc;

pub mod abi;
mod module;
mod state;
mod step;

pub use abi::Given;
pub use module::{Bump, Takes, run};
#[doc(hidden)]
pub use module::{answered, room};
pub use state::{Answer, Error, Exception, Read, State, Value};
pub use step::{Function, Hop, Link, Merge, Saying, Step, Written};
