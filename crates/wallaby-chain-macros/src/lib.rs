//! The attribute `#[wallaby_chain::glue]`, to be used through the crate `wallaby-chain`.

mod build;
mod glue;

use proc_macro::TokenStream;

/// Makes a module of WebAssembly of the chaining functions in a module of Rust, for servers that do not know them.
///
/// ```text
/// #[wallaby_chain::glue]
/// mod glue {
///     use wallaby_chain_guest::{Answer, Error, Hop, Link, State, Step};
///
///     pub fn advertise(mut state: State, mail: Answer<'_>) -> Result<Step, Error> {
///         let (mail, ads): (String, Link) = (mail.read()?, state.get("ads")?);
///         let topic = mail.rsplit(' ').next().unwrap_or_default().to_owned();
///         state.set("mail", &mail)?;
///         Ok(Hop::to(&ads, &(topic,))?.then("join", state).into())
///     }
///
///     pub fn join(state: State, ad: Answer<'_>) -> Result<Step, Error> {
///         Step::end(&format!("{}; {}", state.get::<String>("mail")?, ad.read::<String>()?))
///     }
/// }
///
/// let first = Hop::to(&mail, &mail::FETCH, (7,)).then(glue::functions::advertise(), state);
/// ```
///
/// Each `pub fn` is a function that servers can be told to run. Its second argument says what it is for: an answer, the results of
/// branches, or an exception. Others are helpers. All of them remain functions of the client, too, and can be tested as such. The module gets:
///
/// | | what it is |
/// |---|---|
/// | `functions::NAME()` | a `wallaby_chain::Function`, one for each `pub fn`; a `TypedFunction<T>` if the second argument is a `Read<T>` |
/// | `code()` | all of it, a `wallaby_chain::ChainCode` that travels with the chain; `code().at(server)` does not |
/// | `MODULE` | its bytes, for a repository |
///
/// The module is compiled alone, while the crate is: by the same cargo, for `wasm32-unknown-unknown`, with `wallaby-chain-guest` and
/// `serde` and without the standard library. So it cannot use what is around it, nor other crates. What `alloc` has is there
/// by its name in `std`, and so is the part of the prelude that allocates. Versions are those of the crate's `Cargo.lock`. A module of
/// some functions has 10 to 25 KB, and about half of that packed. The first one of a target folder takes about ten seconds, others
/// about one; what has not changed a fraction of that. All of it is in `wallaby-glue` of the target folder.
///
/// # Errors
///
/// The compiler's, and one that says what to do if the target `wasm32-unknown-unknown` is not installed.
#[proc_macro_attribute]
pub fn glue(options: TokenStream, item: TokenStream) -> TokenStream {
    glue::expand(options.into(), item.into()).into()
}
