//! How names of one kind become names of another: a trait's module, a method's constant.

use proc_macro2::{Ident, Span};
use syn::ext::IdentExt;

/// `HttpIndex`, `HTTPIndex` and `httpIndex` become `http_index`; what is in snake case already stays.
pub(crate) fn snake_case(name: &str) -> String {
    let letters: Vec<char> = name.chars().collect();
    let mut snake = String::with_capacity(name.len() + 4);
    for (at, &letter) in letters.iter().enumerate() {
        if letter.is_uppercase() && at > 0 && starts_word(&letters, at) {
            snake.push('_');
        }
        snake.extend(letter.to_lowercase());
    }
    snake
}

/// Whether the uppercase letter at `at` (not the first) begins a word: after a letter or digit that is not uppercase,
/// or as the last capital of a run that belongs to what follows (`HTTPIndex`).
fn starts_word(letters: &[char], at: usize) -> bool {
    let before = letters[at - 1];
    let after = letters.get(at + 1).copied().unwrap_or('_');
    match before {
        '_' => false,
        before if before.is_uppercase() => after.is_lowercase(),
        _ => true,
    }
}

/// `lookup` becomes `LOOKUP`, `getAttr` becomes `GET_ATTR`.
pub(crate) fn constant_case(name: &str) -> String {
    snake_case(name).to_uppercase()
}

/// The identifier of this text: raw (`r#type`) where it is a keyword, `None` where no identifier can have it
/// (`crate`, `self`, `super`).
pub(crate) fn identifier(text: &str, span: Span) -> Option<Ident> {
    // A keyword since edition 2024, which the parser does not know as one.
    let plain = match text {
        "gen" => None,
        _ => syn::parse_str::<Ident>(text).ok(),
    };
    let raw = || syn::parse_str::<Ident>(&format!("r#{text}")).ok();
    let mut identifier = plain.or_else(raw)?;
    identifier.set_span(span);
    Some(identifier)
}

/// The text of an identifier without `r#`.
pub(crate) fn plain(identifier: &Ident) -> String {
    identifier.unraw().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snake_case_splits_at_words() {
        for (name, snake) in [
            ("Index", "index"),
            ("DocumentStore", "document_store"),
            ("HTTPIndex", "http_index"),
            ("IndexV2", "index_v2"),
            ("V2Index", "v2_index"),
            ("lookup", "lookup"),
            ("get_attr", "get_attr"),
            ("getAttr", "get_attr"),
            ("Get_Attr", "get_attr"),
            ("ÄrgerÜber", "ärger_über"),
            ("A", "a"),
            ("AB", "ab"),
        ] {
            assert_eq!(snake_case(name), snake, "{name}");
        }
    }

    #[test]
    fn identifiers_of_keywords_are_raw() {
        let text = |name| identifier(name, Span::call_site()).map(|found| found.to_string());
        assert_eq!(text("index").as_deref(), Some("index"));
        assert_eq!(text("type").as_deref(), Some("r#type"));
        assert_eq!(text("gen").as_deref(), Some("r#gen"));
        assert_eq!(text("crate"), None);
    }
}
