//! Types and visibilities that move one module down.
//!
//! The generated module sees the types of the user's scope by `use super::*`. That fails for a path that begins with
//! `self` or `super`, and for a name that the module defines itself (a user may well have a type `Client`): such
//! paths get a `super::` here. All others stay as they are written, because that is what users read in error messages
//! and documentation, and because a name of a crate or of the prelude is not found under `super::`.

use std::collections::BTreeSet;

use proc_macro2::{Ident, Span};
use quote::quote;
use syn::visit_mut::{self, VisitMut};

use crate::names;

/// Rewrites paths for a module inside the scope that they were written for.
#[derive(Default)]
pub(crate) struct IntoModule {
    /// Types and constants that the module defines.
    pub(crate) types_and_constants: BTreeSet<String>,
    /// Functions that the module defines. They hide nothing in a type, but in the length of an array they would.
    pub(crate) functions: BTreeSet<String>,
}

impl IntoModule {
    /// The type as it is to be written in the module.
    pub(crate) fn moved(&mut self, kind: &syn::Type) -> syn::Type {
        let mut kind = kind.clone();
        self.visit_type_mut(&mut kind);
        kind
    }

    /// The path of a module as it is to be written in the module.
    pub(crate) fn moved_path(&self, path: &syn::Path) -> syn::Path {
        let mut path = path.clone();
        self.rebase(None, &mut path, false);
        path
    }

    fn rebase(&self, qself: Option<&mut syn::QSelf>, path: &mut syn::Path, is_value: bool) {
        // In `<Type>::Name` and `::name` the first segment is not looked up in the module.
        if path.leading_colon.is_some() || qself.as_ref().is_some_and(|qself| qself.position == 0) {
            return;
        }
        let Some(first) = path.segments.first_mut() else {
            return;
        };
        let name = names::plain(&first.ident);
        if name == "self" {
            first.ident = Ident::new("super", first.ident.span());
            return;
        }
        let is_hidden = self.types_and_constants.contains(&name)
            || (is_value && self.functions.contains(&name));
        if name == "super" || is_hidden {
            let up = Ident::new("super", Span::call_site());
            path.segments.insert(0, up.into());
            if let Some(qself) = qself {
                qself.position += 1;
            }
        }
    }
}

impl VisitMut for IntoModule {
    fn visit_type_path_mut(&mut self, path: &mut syn::TypePath) {
        self.rebase(path.qself.as_mut(), &mut path.path, false);
        visit_mut::visit_type_path_mut(self, path);
    }

    fn visit_expr_path_mut(&mut self, path: &mut syn::ExprPath) {
        self.rebase(path.qself.as_mut(), &mut path.path, true);
        visit_mut::visit_expr_path_mut(self, path);
    }

    fn visit_trait_bound_mut(&mut self, bound: &mut syn::TraitBound) {
        self.rebase(None, &mut bound.path, false);
        visit_mut::visit_trait_bound_mut(self, bound);
    }
}

/// The visibility that means in the module what `outer` means around it.
pub(crate) fn visibility(outer: &syn::Visibility) -> syn::Visibility {
    let inner = match outer {
        syn::Visibility::Public(_) => quote!(pub),
        syn::Visibility::Inherited => quote!(pub(super)),
        syn::Visibility::Restricted(restricted) => {
            let path = &restricted.path;
            match path
                .segments
                .first()
                .map(|first| first.ident.to_string())
                .as_deref()
            {
                Some("self") => quote!(pub(super)),
                Some("super") => quote!(pub(in super::#path)),
                _ => return outer.clone(),
            }
        }
    };
    syn::parse_quote!(#inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use quote::ToTokens;

    fn check(written: &str, expected: &str) {
        let mut nesting = IntoModule {
            types_and_constants: ["Client", "LOOKUP"].map(String::from).into(),
            functions: ["lookup".to_owned()].into(),
        };
        let moved = nesting.moved(&syn::parse_str(written).unwrap());
        let expected: syn::Type = syn::parse_str(expected).unwrap();
        assert_eq!(
            moved.to_token_stream().to_string(),
            expected.to_token_stream().to_string()
        );
    }

    #[test]
    fn only_hidden_and_relative_paths_change() {
        check("String", "String");
        check("lookup::Word", "lookup::Word");
        check("crate::Client", "crate::Client");
        check("::other::Client", "::other::Client");
        check("Client", "super::Client");
        check("Vec<Option<Client>>", "Vec<Option<super::Client>>");
        check("self::Word", "super::Word");
        check("super::Word", "super::super::Word");
        check(
            "(u8, [Client; LOOKUP])",
            "(u8, [super::Client; super::LOOKUP])",
        );
        check("[u8; lookup()]", "[u8; super::lookup()]");
        check("Buffer<LOOKUP>", "Buffer<super::LOOKUP>");
        check(
            "<Client as super::Parts>::Part",
            "<super::Client as super::super::Parts>::Part",
        );
        check("<Client>::Part", "<super::Client>::Part");
        check("Box<dyn Client>", "Box<dyn super::Client>");
    }

    #[test]
    fn visibility_reaches_as_far_as_before() {
        for (outer, inner) in [
            ("pub", "pub"),
            ("", "pub(super)"),
            ("pub(self)", "pub(super)"),
            ("pub(super)", "pub(in super::super)"),
            ("pub(in super::super)", "pub(in super::super::super)"),
            ("pub(crate)", "pub(crate)"),
            ("pub(in crate::search)", "pub(in crate::search)"),
        ] {
            let found = visibility(&syn::parse_str(outer).unwrap()).to_token_stream();
            let expected: syn::Visibility = syn::parse_str(inner).unwrap();
            assert_eq!(
                found.to_string(),
                expected.to_token_stream().to_string(),
                "{outer}"
            );
        }
    }
}
