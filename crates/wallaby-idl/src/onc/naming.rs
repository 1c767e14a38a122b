//! What things of an interface file are called in Rust.

use proc_macro2::{Ident, Span};

use crate::names;

/// Names that generated code uses for something else.
const RESERVED: &[&str] = &[
    "AcceptError",
    "Box",
    "Bytes",
    "CallError",
    "Caller",
    "Channel",
    "Client",
    "DecodeError",
    "EncodeError",
    "Err",
    "From",
    "Future",
    "Malformed",
    "None",
    "Ok",
    "Option",
    "Procedure",
    "Reader",
    "Refusal",
    "Result",
    "Send",
    "Server",
    "Service",
    "Some",
    "Sync",
    "Text",
    "Vec",
    "Writer",
    "Xdr",
];

/// A type: its name in camel case, with an underscore after it where the generated code needs the name itself.
pub(super) fn type_name(name: &str) -> String {
    let mut camel = camel_case(name);
    if RESERVED.contains(&camel.as_str()) {
        camel.push('_');
    }
    camel
}

/// `nfs_fh3` becomes `NfsFh3`, `NFS_OK` becomes `NfsOk`; what has capitals of its own keeps them: `ACCESS4args`.
pub(super) fn camel_case(name: &str) -> String {
    let mut camel = String::with_capacity(name.len());
    for word in name.split('_') {
        let is_shouted = !word.chars().any(|letter| letter.is_ascii_lowercase());
        let mut letters = word.chars();
        camel.extend(letters.next().map(|letter| letter.to_ascii_uppercase()));
        if is_shouted {
            camel.extend(letters.map(|letter| letter.to_ascii_lowercase()));
        } else {
            camel.push_str(letters.as_str());
        }
    }
    // Underscores between digits keep numbers apart; a name cannot begin with a digit.
    if camel.is_empty() || camel.starts_with(|first: char| first.is_ascii_digit()) {
        camel.insert(0, '_');
    }
    camel
}

/// Fields, arguments, procedures and modules.
pub(super) fn snake_case(name: &str) -> String {
    names::snake_case(name)
}

/// The identifier with this text, or with an underscore after it where Rust does not let anything have it.
pub(super) fn identifier(text: &str) -> Ident {
    names::identifier(text, Span::call_site())
        .unwrap_or_else(|| Ident::new(&format!("{text}_"), Span::call_site()))
}

/// The variant of a union's case.
pub(super) fn case(name: Option<&str>, value: i64) -> String {
    match name {
        Some(name) => camel_case(name),
        None if value < 0 => format!("CaseMinus{}", value.unsigned_abs()),
        None => format!("Case{value}"),
    }
}
