//! From text to words: what counts as one word, and in which form words are compared.

use std::borrow::Cow;
use std::ops::Range;

/// Longer runs of letters are data (hashes, base64), nothing that anybody looks for.
const LONGEST: usize = 64;

/// The words of a text and where they stand, in order.
///
/// A word is a run of letters, digits and the accents that follow them, in any script. `snake_case` and `a.b` are
/// two words each, so that sources can be searched like prose.
pub(crate) fn words(text: &str) -> impl Iterator<Item = (Range<usize>, &str)> {
    let mut rest = text.char_indices().peekable();
    std::iter::from_fn(move || {
        let (start, _) = rest.find(|&(_, c)| c.is_alphanumeric())?;
        while rest.next_if(|&(_, c)| belongs(c)).is_some() {}
        let end = rest.peek().map_or(text.len(), |&(end, _)| end);
        Some((start..end, &text[start..end]))
    })
    .filter(|(_, word)| word.len() <= LONGEST)
}

/// The form in which two words are compared: lower case.
pub(crate) fn normal(word: &str) -> Cow<'_, str> {
    if word
        .bytes()
        .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
    {
        Cow::Borrowed(word)
    } else {
        Cow::Owned(word.to_lowercase())
    }
}

fn belongs(c: char) -> bool {
    c.is_alphanumeric() || is_accent(c)
}

/// Combining accents: "é" may be one character or two.
fn is_accent(c: char) -> bool {
    matches!(c, '\u{300}'..='\u{36f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Vec<String> {
        words(text)
            .map(|(_, word)| normal(word).into_owned())
            .collect()
    }

    #[test]
    fn splits_prose_and_code() {
        assert_eq!(
            list("The first hop, it's HERE."),
            ["the", "first", "hop", "it", "s", "here"]
        );
        assert_eq!(
            list("request.delegate_to(x2)"),
            ["request", "delegate", "to", "x2"]
        );
    }

    #[test]
    fn knows_other_scripts() {
        assert_eq!(
            list("Übergrößenträger naïve Ελλάδα"),
            ["übergrößenträger", "naïve", "ελλάδα"]
        );
        assert_eq!(list("cafe\u{301} noir"), ["cafe\u{301}", "noir"]);
    }

    #[test]
    fn says_where_words_stand() {
        let text = "«été» ok";
        let found: Vec<_> = words(text)
            .map(|(range, word)| (text[range].to_owned(), word))
            .collect();
        assert_eq!(found, [("été".to_owned(), "été"), ("ok".to_owned(), "ok")]);
    }

    #[test]
    fn passes_over_what_is_too_long_and_survives_nothing() {
        assert_eq!(list(&format!("a {} b", "x".repeat(65))), ["a", "b"]);
        assert!(list("").is_empty());
        assert!(list("\u{301} … —").is_empty());
    }
}
