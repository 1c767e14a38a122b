//! Collects the errors of one macro call, so that a user sees all of them at once.

use proc_macro2::Span;
use quote::ToTokens;

/// The errors found so far.
#[derive(Default)]
pub(crate) struct Report(Option<syn::Error>);

impl Report {
    /// Adds an error at the given place.
    pub(crate) fn at(&mut self, place: Span, message: impl std::fmt::Display) {
        self.add(syn::Error::new(place, message));
    }

    /// Adds an error that underlines all of `tokens`.
    pub(crate) fn on(&mut self, tokens: impl ToTokens, message: impl std::fmt::Display) {
        self.add(syn::Error::new_spanned(tokens, message));
    }

    /// Adds an error that somebody else made.
    pub(crate) fn add(&mut self, error: syn::Error) {
        match &mut self.0 {
            Some(first) => first.combine(error),
            none => *none = Some(error),
        }
    }

    /// How many errors there are: to see whether reading a part of the input added some.
    pub(crate) fn len(&self) -> usize {
        self.0.iter().flatten().count()
    }

    /// All errors in one, if there are any.
    pub(crate) fn into_error(self) -> Option<syn::Error> {
        self.0
    }
}
