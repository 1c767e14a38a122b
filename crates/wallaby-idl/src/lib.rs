//! One interface tree for Wallaby services, and the code that is generated from it.
//!
//! A *front end* reads what a user wrote into an [`Interface`](tree::Interface); the *emitter* turns that tree into
//! Rust. Neither knows the other, so every way to describe a service gets the same client, targets and server trait.
//!
//! | module | what it holds |
//! |---|---|
//! | [`tree`] | the interface tree, and the rules that hold whatever language an interface was written in |
//! | [`rust_trait`] | the front end for a Rust trait under `#[wallaby::service]` |
//! | `onc` | `.x` files, the interfaces of ONC RPC, to Rust (with the feature `onc`); they define types and numbers, so they have a tree and an emitter of their own |
//! | [`emit`](mod@emit) | the tree as Rust code |
//! | [`serve`](mod@serve) | an `impl` block under `#[wallaby::serve]`, rewritten to the form of the server trait |
//!
//! Start at [`service`] and [`serve()`]: they are what the attribute macros in `wallaby-macros` call, token streams in
//! and token streams out, so everything here can be tested without a compiler around it.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod emit;
#[cfg(feature = "onc")]
pub mod onc;
pub mod rust_trait;
pub mod serve;
pub mod tree;

mod framework;
mod names;
mod nesting;
mod report;

pub use emit::emit;
pub use serve::serve;

use proc_macro2::TokenStream;

/// Expands `#[wallaby::service(options)]` on the trait `item`.
///
/// Every error found is in the result, each as a `compile_error!` at the token to blame. Methods without an error are
/// generated all the same, so that one mistake in a trait does not turn every use of it into another error.
///
/// ```
/// use quote::quote;
///
/// let code = wallaby_idl::service(
///     quote!(package = "demo"),
///     quote! {
///         trait Clock { async fn now() -> u64; }
///     },
/// );
/// let code: syn::File = syn::parse2(code).unwrap();
/// assert!(matches!(&code.items[0], syn::Item::Trait(server) if server.ident == "Clock"));
/// assert!(matches!(&code.items[1], syn::Item::Mod(module) if module.ident == "clock"));
/// ```
#[must_use]
pub fn service(options: TokenStream, item: TokenStream) -> TokenStream {
    let (interface, errors) = rust_trait::read(options, item);
    let mut code = errors
        .map(|errors| errors.into_compile_error())
        .unwrap_or_default();
    code.extend(interface.as_ref().map(emit));
    code
}
