//! What things of an interface file are called in Rust.

use std::collections::BTreeSet;

use proc_macro2::{Ident, Span};

use crate::names;

/// Names that generated code uses for something else.
const RESERVED: &[&str] = &[
    "AcceptError",
    "Box",
    "Bytes",
    "C",
    "RpcError",
    "Principal",
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
    "S",
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

/// The modules of programs stand beside this one.
const RESERVED_MODULES: &[&str] = &["service"];
/// Beside the numbers of procedures.
const RESERVED_NUMBERS: &[&str] = &["PROGRAM", "VERSION"];
/// What the generated functions call their own, beside arguments.
const RESERVED_VARIABLES: &[&str] = &[
    "arguments",
    "caller",
    "procedure",
    "reader",
    "result",
    "writer",
];

/// The names in one place of the code, each given once: different names of a file may be the same in Rust.
#[derive(Debug, Default)]
pub(super) struct Names {
    taken: BTreeSet<String>,
}

impl Names {
    pub(super) fn of_types() -> Self {
        Self::without(RESERVED)
    }

    pub(super) fn of_modules() -> Self {
        Self::without(RESERVED_MODULES)
    }

    pub(super) fn of_numbers() -> Self {
        Self::without(RESERVED_NUMBERS)
    }

    pub(super) fn of_arguments() -> Self {
        Self::without(RESERVED_VARIABLES)
    }

    pub(super) fn without<T: AsRef<str>>(taken: impl IntoIterator<Item = T>) -> Self {
        let taken = taken.into_iter().map(|name| name.as_ref().to_owned());
        Self {
            taken: taken.collect(),
        }
    }

    /// This name, with underscores after it until nothing else has it and Rust lets something have it.
    pub(super) fn take(&mut self, mut name: String) -> String {
        let is_identifier = |name: &str| names::identifier(name, Span::call_site()).is_some();
        while self.taken.contains(&name) || !is_identifier(&name) {
            name.push('_');
        }
        self.taken.insert(name.clone());
        name
    }
}

/// `nfs_fh3` becomes `NfsFh3`, `NFS_OK` becomes `NfsOk`; what has capitals of its own keeps them: `ACCESS4args`.
/// A dot is where a type without a name begins within another.
pub(super) fn camel_case(name: &str) -> String {
    let mut camel = String::with_capacity(name.len());
    for word in name.split(['_', '.']) {
        let is_shouted = !word.chars().any(|letter| letter.is_ascii_lowercase());
        let mut letters = word.chars();
        camel.extend(letters.next().map(|letter| letter.to_ascii_uppercase()));
        if is_shouted {
            camel.extend(letters.map(|letter| letter.to_ascii_lowercase()));
        } else {
            camel.push_str(letters.as_str());
        }
    }
    // A name cannot begin with a digit.
    if camel.is_empty() || camel.starts_with(|first: char| first.is_ascii_digit()) {
        camel.insert(0, '_');
    }
    camel
}

/// Fields, arguments, procedures and modules. Rust has no two underscores between words.
pub(super) fn snake_case(name: &str) -> String {
    let snake = names::snake_case(name);
    let inner = snake.trim_matches('_');
    let words: Vec<&str> = inner.split('_').filter(|word| !word.is_empty()).collect();
    let start = snake.len() - snake.trim_start_matches('_').len();
    let (before, after) = (
        &snake[..start],
        &snake[(start + inner.len()).min(snake.len())..],
    );
    format!("{before}{}{after}", words.join("_"))
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
