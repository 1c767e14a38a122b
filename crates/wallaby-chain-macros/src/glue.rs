//! What the attribute makes of a module.

use proc_macro2::TokenStream;
use quote::quote;
use syn::spanned::Spanned;
use syn::{
    AttrStyle, Attribute, Error, FnArg, GenericArgument, Ident, Item, ItemFn, ItemMod,
    PathArguments, Result, Type, UseTree, Visibility,
};

use crate::build;

pub(crate) fn expand(options: TokenStream, item: TokenStream) -> TokenStream {
    let Ok(module) = syn::parse2::<ItemMod>(item.clone()) else {
        return refused(&item, "`#[glue]` stands before a module: `mod glue { .. }`");
    };
    if !options.is_empty() {
        return refused(&options, "`#[glue]` has no options");
    }
    let functions = match functions(&module) {
        Ok(functions) => functions,
        Err(error) => {
            let error = error.to_compile_error();
            return quote!(#error #module);
        }
    };
    let (_, items) = module.content.unwrap_or_default();
    let reads: Vec<(Ident, Type)> = items.iter().filter_map(read).collect();
    let (visibility, name) = (&module.vis, &module.ident);
    let is_outer = |attribute: &&Attribute| matches!(attribute.style, AttrStyle::Outer);
    let (outer, inner): (Vec<_>, Vec<_>) = module.attrs.iter().partition(is_outer);
    let exports = quote!(::wallaby_chain_guest::export!(#(#functions),*););
    let mut error = None;
    let file = build::module(&quote!(#exports #(#items)*).to_string());
    let file = file.unwrap_or_else(|why| {
        error = Some(Error::new(name.span(), why).to_compile_error());
        None
    });
    let bytes = match &file {
        Some(file) => quote!(include_bytes!(#file)),
        None => quote!(&[]),
    };
    let code = match file {
        Some(_) => quote! {
            static CODE: ::std::sync::LazyLock<::wallaby_chain::ChainCode> =
                ::std::sync::LazyLock::new(|| ::wallaby_chain::ChainCode::new(MODULE));
            ::std::clone::Clone::clone(&*CODE)
        },
        // Only whoever calls the compiler in a way of his own gets here.
        None => quote!(panic!(
            "the functions of this module have not been compiled for servers"
        )),
    };
    let getters = functions.iter().map(|function| {
        let reads = reads.iter().find(|(name, _)| name == function);
        getter(function, reads.map(|(_, read)| read))
    });
    // What they read is named as it is there.
    let types = (!reads.is_empty()).then(|| {
        quote! {
            #[allow(unused_imports, reason = "the types of arguments are among them")]
            use super::*;
        }
    });
    quote! {
        #error
        #(#outer)*
        #[allow(dead_code, reason = "servers run it")]
        #visibility mod #name {
            #(#inner)*
            #exports
            #(#items)*

            /// The functions as a module of WebAssembly.
            pub const MODULE: &[u8] = #bytes;

            /// The functions as code that travels with a chain.
            ///
            /// # Panics
            ///
            /// If the compiler was not told where to put what it makes, as cargo does: then there is no module.
            pub fn code() -> ::wallaby_chain::ChainCode {
                #code
            }

            /// The functions, for [`Hop::then`](::wallaby_chain::Hop::then) and whatever else takes one.
            pub mod functions {
                #types
                #(#getters)*
            }
        }
    }
}

/// What says which function servers are to run, and on what it runs if that is said in its signature.
fn getter(function: &Ident, reads: Option<&Type>) -> TokenStream {
    let text = function.to_string();
    let doc = format!("[`{text}`](super::{text}), for servers.");
    match reads {
        None => quote! {
            #[doc = #doc]
            pub fn #function() -> ::wallaby_chain::Function {
                super::code().function(#text)
            }
        },
        Some(read) => quote! {
            #[doc = #doc]
            pub fn #function() -> ::wallaby_chain::TypedFunction<#read> {
                super::code().function(#text).reading()
            }
        },
    }
}

/// A function that says in its signature of which type what it runs on is: `Read<T>`.
fn read(item: &Item) -> Option<(Ident, Type)> {
    let Item::Fn(function) = item else {
        return None;
    };
    let FnArg::Typed(argument) = function.sig.inputs.get(1)? else {
        return None;
    };
    let Type::Path(path) = &*argument.ty else {
        return None;
    };
    let last = path.path.segments.last()?;
    let PathArguments::AngleBracketed(types) = &last.arguments else {
        return None;
    };
    match types.args.first()? {
        GenericArgument::Type(read) if last.ident == "Read" => {
            Some((function.sig.ident.clone(), read.clone()))
        }
        _ => None,
    }
}

fn refused(what: &TokenStream, why: &str) -> TokenStream {
    let error = Error::new_spanned(what, why).to_compile_error();
    quote!(#error #what)
}

/// The names of those that servers can be told to run.
fn functions(module: &ItemMod) -> Result<Vec<Ident>> {
    let Some((_, items)) = &module.content else {
        let why =
            "`#[glue]` needs the functions here: `mod glue { .. }`, not those of another file";
        return Err(Error::new(module.span(), why));
    };
    let mut functions = Vec::new();
    for item in items {
        match item {
            Item::Use(imported) => check_use(&imported.tree)?,
            Item::Fn(function) if matches!(function.vis, Visibility::Public(_)) => {
                functions.push(check(function)?);
            }
            _ => {}
        }
    }
    if functions.is_empty() {
        let why = "a module of chaining functions has at least one `pub fn`";
        return Err(Error::new(module.ident.span(), why));
    }
    Ok(functions)
}

/// The compiler checks the types.
fn check(function: &ItemFn) -> Result<Ident> {
    let signature = &function.sig;
    let is_plain =
        signature.asyncness.is_none() && signature.generics.type_params().next().is_none();
    if !is_plain || signature.inputs.len() != 2 {
        let why = "a chaining function takes the state and what it is for: \
            `pub fn next(state: State, answer: Answer<'_>) -> Result<Step, Error>`; helpers are not `pub`";
        return Err(Error::new_spanned(signature, why));
    }
    let is_conditional = |attribute: &&Attribute| attribute.path().is_ident("cfg");
    if let Some(condition) = function.attrs.iter().find(is_conditional) {
        let why = "servers get all functions of a module: one that is there only sometimes cannot be among them";
        return Err(Error::new_spanned(condition, why));
    }
    let name = &signature.ident;
    if name == "memory"
        || name == "code"
        || ["wallaby_", "r#"]
            .iter()
            .any(|start| name.to_string().starts_with(start))
    {
        return Err(Error::new_spanned(
            name,
            "functions of modules have other names: this one means something else there",
        ));
    }
    Ok(name.clone())
}

/// What is around the module is not there when it runs.
fn check_use(tree: &UseTree) -> Result<()> {
    match tree {
        UseTree::Path(path) if path.ident == "super" || path.ident == "crate" => {
            Err(Error::new_spanned(
                path,
                "servers run this module alone: it cannot use what is around it",
            ))
        }
        UseTree::Group(group) => group.items.iter().try_for_each(check_use),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(item: &str) -> String {
        let module = syn::parse_str::<ItemMod>(item).expect("a module");
        functions(&module).expect_err(item).to_string()
    }

    #[test]
    fn public_functions_are_those_that_servers_run() {
        let text = "mod glue { use a::B; pub fn f(s: State, a: Answer<'_>) -> R {} fn g() {} \
            pub(super) fn h() {} pub fn i(s: State, e: Exception) -> R {} const C: u8 = 1; }";
        let module = syn::parse_str(text).expect("a module");
        let names: Vec<_> = functions(&module)
            .expect("two")
            .iter()
            .map(Ident::to_string)
            .collect();
        assert_eq!(names, ["f", "i"]);
    }

    #[test]
    fn what_a_function_reads_is_what_its_signature_says() {
        let read = |text: &str| {
            let item = syn::parse_str(text).expect("an item");
            read(&item).map(|(name, read)| format!("{name} {}", quote!(#read)))
        };
        for (second, told) in [
            ("Read(text): Read<String>", Some("f String")),
            ("text: wallaby_chain_guest::Read<u64>", Some("f u64")),
            ("answer: Answer<'_>", None),
            ("results: Vec<Answer<'_>>", None),
            ("exception: Exception", None),
        ] {
            let text = format!("pub fn f(state: State, {second}) -> R {{}}");
            assert_eq!(read(&text).as_deref(), told, "{second}");
        }
        assert_eq!(read("const C: u8 = 1;"), None);
    }

    #[test]
    fn what_no_server_could_run_is_refused() {
        assert!(error("mod glue;").contains("not those of another file"));
        assert!(error("mod glue { fn f() {} }").contains("at least one `pub fn`"));
        for wrong in [
            "pub fn f(a: A) {}",
            "pub async fn f(a: A, b: B) {}",
            "pub fn f<T>(a: T, b: B) {}",
        ] {
            assert!(
                error(&format!("mod glue {{ {wrong} }}")).contains("takes the state"),
                "{wrong}"
            );
        }
        for name in ["memory", "code"] {
            assert!(
                error(&format!("mod glue {{ pub fn {name}(a: A, b: B) {{}} }}"))
                    .contains("something else there")
            );
        }
        assert!(error("mod glue { #[cfg(test)] pub fn f(a: A, b: B) {} }").contains("sometimes"));
        for wrong in [
            "use super::Mail;",
            "use crate::x::*;",
            "use {a::b, super::c};",
        ] {
            let item = format!("mod glue {{ {wrong} pub fn f(a: A, b: B) {{}} }}");
            assert!(error(&item).contains("alone"), "{wrong}");
        }
    }
}
