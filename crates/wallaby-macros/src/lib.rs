//! The attributes `#[wallaby::service]` and `#[wallaby::serve]`, to be used through the crate `wallaby`.
//!
//! This crate is a shim: what the macros do is in `wallaby-idl`, where it can be tested without a compiler.

use proc_macro::TokenStream;

/// Makes a service of a trait: the server trait, clients, and delegation targets.
///
/// ```text
/// #[wallaby::service]
/// trait Documents {
///     async fn fetch(id: DocId) -> Document;             // one answer, like any RPC
/// }
///
/// #[wallaby::service]
/// trait Index {
///     async fn lookup(word: String) -> Many<Document>;   // any number of answers, from anybody
///     async fn insert(word: String, id: DocId);          // one answer, which says that it is done
/// }
/// ```
///
/// # The trait
///
/// It has methods `async fn name(argument: Type, ..) -> Answer;` and nothing else. A method's type says what the
/// *initiator* of a call gets, not what a certain server computes; so there is no receiver.
///
/// - The answer is `Many<T>` for any number of answers, or `One<T>` for exactly one. Any other type `T` means `One<T>`,
///   no type means `One<()>`.
/// - Arguments, twelve at most, and answers are owned types that the codec can write and read: for the default codec
///   they implement `serde::Serialize` and `serde::Deserialize`.
/// - The last argument can be a stream that follows the request: `Streaming<T>` of items, or `Body` of bytes. Callers give any
///   `Stream` of `T` or of results, or what becomes a `Body`; handlers read it while it arrives. Types of yours need other names
///   than these two there.
/// - Statuses need no place in an answer. An error of the application is a part of it: `-> Result<Document, NotFound>`.
/// - No method can be called `at`, `within` or `service`: these are functions of the module.
/// - Attributes: documentation, `#[cfg]` and `#[deprecated]` hold for all that is generated, others are kept on the
///   server trait.
///
/// # What it becomes
///
/// The **server trait** of the same name and visibility. A server implements it under [`#[wallaby::serve]`][serve], which the
/// compiler asks for: `missing: MISSING_ATTRIBUTE_wallaby_serve`.
///
/// ```text
/// trait Index: Send + Sync + 'static {
///     fn lookup(self: &Arc<Self>, request: Request<Many<Document>>, word: String)
///         -> impl Future<Output = Result<(), Status>> + Send;
///     ..
/// }
/// ```
///
/// A **module** beside it, named after the service in snake case:
///
/// | in `mod index` | what it is |
/// |---|---|
/// | `at(&endpoint, server) -> Client` | a client of the service at an address |
/// | `within(client) -> Client` | the same for a `wallaby::Client`, be it that of `request.call()` in a handler |
/// | `Client::lookup(&self, word) -> Call<Many<Document>>` | makes a call |
/// | `Client::deadline`, `metadata`, `retry`, `hedge`, `tolerant` and the other options of [`wallaby::Client`](https://docs.rs/wallaby/latest/wallaby/struct.Client.html) | how its calls are made; a method of such a name takes its place |
/// | `lookup(word) -> Target<Many<Document>>` | a target to delegate or forward a request to |
/// | `service(server) -> Service` | what an endpoint serves: any `Server: Index`, or an `Arc` of one |
/// | `SERVICE`, `LOOKUP` | the name of the service, the description of the method |
/// | `Requests` | the type of each method's request: `Self::lookup` in a handler's `impl` |
///
/// The module sees the types of the scope around it by `use super::*`. That is the scope of the enclosing module: a
/// service cannot be defined inside a function.
///
/// # Options
///
/// `#[wallaby::service(package = "demo.search", codec = wallaby::codec::Raw)]`
///
/// - `package`: what comes before the name of the service in `package.Service/method`, the name that peers see. By
///   default it is the name of the crate. `wallaby` and all below it is reserved.
/// - `codec`: the type that writes and reads arguments and answers; postcard by default. A handler's request has it too:
///   `Request<One<Bytes>, wallaby::codec::Raw>`, and so has a stream of items: `Streaming<Bytes, wallaby::codec::Raw>`.
/// - `crate`: where the program has the crate `wallaby`, if that is renamed in its manifest or comes through another crate:
///   `#[facade::wallaby::service(crate = facade::wallaby)]`; `::wallaby` by default. [`serve`] takes it, too.
#[proc_macro_attribute]
pub fn service(options: TokenStream, item: TokenStream) -> TokenStream {
    wallaby_idl::service(options.into(), item.into()).into()
}

/// Implements the trait of a service for a server, whose handlers are written in the form that suits each.
///
/// ```text
/// #[wallaby::serve]
/// impl Index for MyIndex {
///     async fn lookup(&self, request: Request<Many<Document>>, word: String) -> Result<(), Status> {
///         for hit in self.find(&word) {
///             request.delegate(hit.server, documents::fetch(hit.id)).await?;
///         }
///         Ok(())
///     }
///
///     fn insert(&self, word: String, id: DocId) -> Result<(), Status> {
///         self.write_to_disk(word, id)
///     }
/// }
/// ```
///
/// # Forms of a handler
///
/// | the handler | how it answers |
/// |---|---|
/// | takes `request: Request<..>` as its first argument | through the request: `reply`, `respond`, `delegate`, `forward`; it returns `Result<(), Status>`, or nothing |
/// | takes the arguments of the method only | with the value it returns: the answer `T`, or `Result<T, Status>` |
///
/// The request is told by its type: `Request<..>` with its generic arguments, by whatever path. The answer is what the
/// service says: where that is a `Result<T, E>`, such a `Result` is the value, and a `Result<Result<T, E>, Status>` is
/// one that may be a status instead.
///
/// Each of them is `async fn`, or plain `fn`: a plain one may block, and runs on a worker thread. There a request is
/// answered by `blocking_reply`, `blocking_respond` and so on.
///
/// # Receiver
///
/// `&self`, or `self: &Arc<Self>` for a handler that takes its server along into a task that outlives it. A server is
/// shared by all requests: what changes in it is behind a lock or in a task of its own.
///
/// # Attributes
///
/// Documentation, `#[cfg]` and `#[deprecated]` belong to the method of the trait, all others to the handler: it can be
/// under `#[tracing::instrument]`.
///
/// # Options
///
/// `crate`: where the program has the crate `wallaby`, as for [`service`][macro@service]:
/// `#[facade::wallaby::serve(crate = facade::wallaby)]`.
#[proc_macro_attribute]
pub fn serve(options: TokenStream, item: TokenStream) -> TokenStream {
    wallaby_idl::serve(options.into(), item.into()).into()
}
