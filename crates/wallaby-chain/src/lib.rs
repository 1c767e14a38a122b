//! RPC Chains on Wallaby: the caller brings the glue, and services stay as they are.
//!
//! A client that needs A, then B with what A has answered, then C, sends one message. A says what it says to anybody; a function,
//! or a list that came along, says where that goes next; C answers the client. A, B and C know nothing of each other, nor of
//! chains: any method of any endpoint that has [`Chains`] is a link.
//!
//! | part | what it is |
//! |---|---|
//! | [`pipe`], [`start`], [`Chain`] | a chain, by a client or by a handler that answers with one |
//! | [`Run`], [`Running`], [`ChainEvent`] | a chain of which its starter hears before its end: [`Line`], [`Told`] |
//! | [`Walk`], [`Stop`], [`Home`] | a chain whose links are called one by one from where it was started |
//! | [`Chains`], [`ChainLimits`] | what makes an endpoint's methods links, and the functions it has |
//! | [`Step`], [`Hop`], [`Merge`] | what functions say: how it goes on |
//! | [`State`], [`Answer`], [`Exception`], [`Limit`] | what they are given |
//! | [`glue`] | makes such code of functions of Rust beside the client |
//! | [`ChainCode`], [`Link`], [`Repository`] | functions that clients bring as WebAssembly, and where these are |
//! | [`Runtime`], [`Module`] | what runs them: `wallaby-chain-wasm` has one |
//!
//! ```
//! use wallaby::{Endpoint, Status};
//! use wallaby_chain::{Chains, Hop, State, Step};
//!
//! #[wallaby::service(package = "example")]
//! trait Mail { async fn fetch(id: u32) -> String; }
//!
//! #[wallaby::service(package = "example")]
//! trait Ads { async fn pick(topic: String) -> String; }
//!
//! struct Box1;
//! struct Agency;
//!
//! #[wallaby::serve]
//! impl Mail for Box1 {
//!     async fn fetch(&self, id: u32) -> String { format!("mail {id} about hops") }
//! }
//!
//! #[wallaby::serve]
//! impl Ads for Agency {
//!     async fn pick(&self, topic: String) -> String { format!("buy {topic}") }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let ads = Endpoint::builder().serve(ads::service(Agency)).listen("tcp://127.0.0.1:0");
//! // The last function: the mail and the advertisement, in one.
//! let chains = Chains::new().function("join", |state, answer| {
//!     Step::end(&format!("{}; {}", state.get::<String>("mail")?, answer.read::<String>()?))
//! });
//! let ads = chains.add_to(ads).bind().await?;
//! let place = ads.address().expect("it listens").clone();
//!
//! let mail = Endpoint::builder().serve(mail::service(Box1)).listen("tcp://127.0.0.1:0");
//! let chains = Chains::new().function("advertise", move |state, answer| {
//!     let text: String = answer.read()?;
//!     let topic = text.rsplit(' ').next().unwrap_or_default().to_owned();
//!     let state = state.with("mail", &text)?;
//!     Ok(Hop::to(&place, &ads::PICK, (topic,)).then("join", state).into())
//! });
//! let mail = chains.add_to(mail).bind().await?;
//!
//! let client = Endpoint::bind("tcp://127.0.0.1:0").await?;
//! let first = Hop::to(mail.address().expect("it listens"), &mail::FETCH, (7,));
//! let chain = wallaby_chain::start::<String>(first.then("advertise", State::new()));
//! let page = chain.call(client.caller())?.await?;
//! assert_eq!(page, "mail 7 about hops; buy hops");
//! # Ok(())
//! # }
//! ```
//!
//! `docs/chains.md` in the repository says what holds and what is not there yet.

mod away;
mod chain;
mod chains;
mod code;
mod departure;
mod engine;
mod exception;
#[doc(hidden)]
pub mod fuzzed;
mod gather;
mod guest;
mod limit;
mod place;
mod records;
mod repository;
mod running;
mod runtime;
mod said;
mod stack;
mod state;
mod step;
mod turns;
mod types;
mod walk;
mod ways;

pub use chain::{Chain, ChainError, Chained, Passes, pipe, start, start_by};
pub use chains::{ChainLimits, Chains};
pub use code::{ChainCode, Function, Hash, HashError, TypedFunction};
pub use exception::{Exception, HostPath, hosts};
pub use limit::Limit;
pub use repository::{Backing, Functions, Repository, RepositoryLimits, functions};
pub use running::{BrokenLink, ChainEvent, Run, Running};
pub use runtime::{CodeLimits, Effort, Fault, Module, Runtime};
pub use said::{Line, Told};
pub use stack::Link;
pub use state::{Answer, State};
pub use step::{Hop, Merge, Step};
pub use types::{LinkTypes, Type};
pub use walk::{Home, Stop, Walk};
pub use wallaby_chain_macros::glue;
