//! How what is said looks: that words of others do nothing to a terminal.

use std::fmt;

use serde_json::Value;
use wallaby_program::output;

/// The program ends with this status; all has been said.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Exit(pub(crate) u8);

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "exit status {}", self.0)
    }
}

impl std::error::Error for Exit {}

/// An error whose text is complete.
#[cfg(any(feature = "onc", feature = "proto"))]
#[derive(Debug)]
pub(crate) struct Reported(pub(crate) String);

#[cfg(any(feature = "onc", feature = "proto"))]
impl fmt::Display for Reported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(any(feature = "onc", feature = "proto"))]
impl std::error::Error for Reported {}

/// Somebody else's words in one line: what would control a terminal is escaped, in a way that JSON has, too.
pub(crate) fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        // What turns the direction of writing makes lines say something else than they do; the first two of `202x` end lines.
        let turns = matches!(
            character,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        );
        match turns || character.is_control() {
            true => out += &format!("\\u{:04x}", u32::from(character)),
            false => out.push(character),
        }
    }
    out
}

/// Writes JSON as a line, with words of others in it: such characters stand only in its texts, where they can be escaped.
pub(crate) fn json_line(value: &Value) -> anyhow::Result<()> {
    output::line(plain(&value.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_others_do_nothing_to_a_terminal() {
        assert_eq!(plain("wörter \"und\" so"), "wörter \"und\" so");
        assert_eq!(
            plain("a\x1b[2J\u{9b}\n\u{202e}b"),
            "a\\u001b[2J\\u009b\\u000a\\u202eb"
        );
        assert_eq!(plain("\u{61c}\u{2028}\u{2029}"), "\\u061c\\u2028\\u2029");
    }
}
