//! Compiles `.proto` files, the interfaces of Protocol Buffers, to Rust: messages, and services as traits of Wallaby.
//!
//! In a `build.rs`:
//!
//! ```no_run
//! wallaby_build::Compiler::new().build(["proto/library.proto"]);
//! ```
//!
//! and in the program, which needs the crate `wallaby` with its feature `protobuf`, and `prost-types` where files use types of
//! `google.protobuf` other than `Empty` and the wrappers of single values,
//!
//! ```text
//! include!(concat!(env!("OUT_DIR"), "/protos.rs"));
//! ```
//!
//! That gives a module for each package, one in the other: the package `library.v1` is `library::v1`.
//!
//! | in the file | in Rust |
//! |---|---|
//! | `message Book` | a struct `Book` of [prost](https://docs.rs/prost), with its `prost::Name`; methods can take and give it |
//! | `service Shelf` | a trait `Shelf` under `#[wallaby::service]`, so a module `shelf` with client, targets and registration, too |
//! | `rpc FetchBook(Id) returns (Book)` | `async fn fetch_book(message: Id) -> Book`, `library.v1.Shelf/fetch_book` to peers |
//! | `returns (stream Book)` | `-> Many<Book>`: any number of answers, from any server |
//! | `(stream Chunk)` | `items: Streaming<Chunk>`: items that follow the request while it is handled |
//! | `google.protobuf.Empty` | no argument, no answer |
//! | comments, `option deprecated = true` | documentation, `#[deprecated]` |
//!
//! So whatever a service defined in Rust can do, these can: be delegated and forwarded, be called with deadlines, be retried. A
//! service has a package. Methods cannot take or give messages called `Body`, `Many`, `One` or `Streaming`, which mean something
//! else there, nor types of `google.protobuf` other than `Any`, `Duration`, `Empty`, `Timestamp` and the wrappers of single values.
//! Such messages can be fields of others.

mod check;
mod compiler;
mod error;
mod generate;

pub use compiler::Compiler;
pub use error::{CompileError, Diagnostic};
pub use prost_build;
