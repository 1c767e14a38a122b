//! What the macros make of whole services, as golden files that a person can review.
//!
//! Every file `tests/expansions/NAME.rs` is expanded as the compiler would, and compared with `NAME.expanded.rs`
//! beside it. A new case needs a new file only; `WALLABY_BLESS=1 cargo test -p wallaby-idl` writes what is expected.

use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::TokenStream;
use quote::ToTokens;

#[test]
fn expansions_are_as_reviewed() {
    let mut wrong = Vec::new();
    for path in inputs() {
        let expanded = expand(&read(&path));
        let golden = path.with_extension("expanded.rs");
        if is_blessing() {
            fs::write(&golden, expanded).expect("the golden file can be written");
        } else if expanded != fs::read_to_string(&golden).unwrap_or_default() {
            wrong.push(golden.display().to_string());
        }
    }
    assert!(
        wrong.is_empty(),
        "the expansion is not that of {}; if it should be, rewrite it by WALLABY_BLESS=1 cargo test -p wallaby-idl, \
         and review the diff",
        wrong.join(", ")
    );
}

#[test]
fn expansions_belong_to_an_input() {
    for path in files() {
        let text = path.display().to_string();
        if let Some(stem) = text.strip_suffix(".expanded.rs") {
            let input = format!("{stem}.rs");
            assert!(
                Path::new(&input).exists(),
                "{text}: no input gives this expansion"
            );
        }
    }
}

fn is_blessing() -> bool {
    std::env::var_os("WALLABY_BLESS").is_some_and(|value| value == "1")
}

fn inputs() -> Vec<PathBuf> {
    let is_input = |path: &PathBuf| !path.display().to_string().ends_with(".expanded.rs");
    files().into_iter().filter(is_input).collect()
}

fn files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/expansions");
    let entries = fs::read_dir(folder).expect("the folder is there");
    let mut files: Vec<_> = entries
        .map(|entry| entry.expect("an entry can be read").path())
        .collect();
    files.sort();
    files
}

fn read(path: &Path) -> syn::File {
    let text = fs::read_to_string(path).expect("the input can be read");
    syn::parse_file(&text).expect("the input is Rust")
}

/// The file with every item under one of the macros replaced by what the macro makes of it.
fn expand(file: &syn::File) -> String {
    let code: TokenStream = file.items.iter().map(expand_item).collect();
    let mut expanded: syn::File = syn::parse2(code).expect("the expansion is Rust");
    expanded.attrs.clone_from(&file.attrs);
    prettyplease::unparse(&expanded)
}

fn expand_item(item: &syn::Item) -> TokenStream {
    let mut item = item.clone();
    let attributes = match &mut item {
        syn::Item::Trait(item) => &mut item.attrs,
        syn::Item::Impl(item) => &mut item.attrs,
        other => return other.to_token_stream(),
    };
    if let Some(at) = attributes
        .iter()
        .position(|found| is_macro(found, "service"))
    {
        let options = options(&attributes.remove(at));
        wallaby_idl::service(options, item.into_token_stream())
    } else if let Some(at) = attributes.iter().position(|found| is_macro(found, "serve")) {
        let options = options(&attributes.remove(at));
        wallaby_idl::serve(options, item.into_token_stream())
    } else {
        item.into_token_stream()
    }
}

fn is_macro(attribute: &syn::Attribute, name: &str) -> bool {
    attribute
        .path()
        .segments
        .last()
        .is_some_and(|last| last.ident == name)
}

fn options(attribute: &syn::Attribute) -> TokenStream {
    match &attribute.meta {
        syn::Meta::List(list) => list.tokens.clone(),
        _ => TokenStream::new(),
    }
}
