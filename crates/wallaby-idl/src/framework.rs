//! The path by which generated code names the framework.

use std::fmt;

use proc_macro2::{Span, TokenStream, TokenTree};
use quote::ToTokens;
use syn::parse::ParseStream;

use crate::nesting::IntoModule;

/// `::wallaby`, or the path that the option `crate` gives, for programs that know the crate by another name.
#[derive(Clone)]
pub(crate) struct Framework(syn::Path);

impl Framework {
    pub(crate) fn new(given: Option<&syn::Path>) -> Self {
        Self(
            given
                .cloned()
                .unwrap_or_else(|| syn::parse_quote!(::wallaby)),
        )
    }

    /// The path as it is to be written in the module.
    pub(crate) fn moved(&self, nesting: &IntoModule) -> Self {
        Self(nesting.moved_path(&self.0))
    }

    /// The path, with errors about what it leads to shown at this place.
    pub(crate) fn at(&self, place: Span) -> TokenStream {
        let placed = |mut token: TokenTree| {
            token.set_span(token.span().located_at(place));
            token
        };
        self.0.to_token_stream().into_iter().map(placed).collect()
    }
}

impl ToTokens for Framework {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        self.0.to_tokens(tokens);
    }
}

/// For links in documentation.
impl fmt::Display for Framework {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.0.to_token_stream().to_string();
        formatter.write_str(&path.replace(' ', ""))
    }
}

/// Reads what follows the name of the option `crate`.
pub(crate) fn read_option(input: ParseStream<'_>) -> syn::Result<syn::Path> {
    input.parse::<syn::Token![=]>()?;
    input
        .call(syn::Path::parse_mod_style)
        .map_err(|error| syn::Error::new(error.span(), EXPECTED))
}

const EXPECTED: &str = "expected a path, like `crate = facade::wallaby`";
