//! A line of a document that shows a word, cut to a readable length.

use super::words::{normal, words};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// How many characters of a line are shown.
const WIDTH: usize = 110;
/// How many characters before the first occurrence are shown at least, if there are that many.
const BEFORE: usize = 30;

/// A piece of text with the places to highlight in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Snippet {
    /// The line it comes from, counted from 1.
    pub(crate) line: u32,
    /// The text, free of control characters.
    pub(crate) text: String,
    /// Byte ranges of the word in `text`, in order.
    pub(crate) highlights: Vec<(u32, u32)>,
}

impl Snippet {
    /// Line `number` of a document, cut around the first occurrence of `word` (in normal form).
    pub(crate) fn cut(number: u32, line: &str, word: &str) -> Self {
        let line = visible(line.trim());
        let start = occurrences(&line, word)
            .next()
            .map_or(0, |first| first.start);
        let window = window(&line, start);
        let mut text = String::with_capacity(window.len() + 8);
        text.push_str(if window.start > 0 { "… " } else { "" });
        text.push_str(line[window.clone()].trim());
        text.push_str(if window.end < line.len() { " …" } else { "" });
        let highlights = occurrences(&text, word)
            .map(|range| (position(range.start), position(range.end)))
            .collect();
        Self {
            line: number,
            text,
            highlights,
        }
    }

    /// The text in pieces, each with whether it is to be highlighted.
    pub(crate) fn pieces(&self) -> Vec<(&str, bool)> {
        let mut pieces = Vec::new();
        let mut at = 0;
        for &(start, end) in &self.highlights {
            // The ranges come from another process: what doesn't fit the text is passed over.
            let (Some(before), Some(word)) = (
                self.text.get(at..start as usize),
                self.text.get(start as usize..end as usize),
            ) else {
                continue;
            };
            pieces.push((before, false));
            pieces.push((word, true));
            at = end as usize;
        }
        pieces.push((&self.text[at..], false));
        pieces.retain(|(text, _)| !text.is_empty());
        pieces
    }
}

fn occurrences<'a>(line: &'a str, word: &'a str) -> impl Iterator<Item = Range<usize>> + 'a {
    words(line)
        .filter(move |(_, found)| normal(found) == word)
        .map(|(range, _)| range)
}

/// Positions inside a line, whose length is limited far below 4 GiB.
fn position(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(u32::MAX)
}

/// The part of a line to show: up to [`WIDTH`] characters that contain `start`, begun and ended between words.
fn window(line: &str, start: usize) -> Range<usize> {
    if line.chars().count() <= WIDTH {
        return 0..line.len();
    }
    let mut from = back(line, start, BEFORE);
    if line[from..].chars().count() < WIDTH {
        from = back(line, line.len(), WIDTH);
    }
    let to = line[from..]
        .char_indices()
        .nth(WIDTH)
        .map_or(line.len(), |(at, _)| from + at);
    let from = if from == 0 {
        0
    } else {
        line[from..start]
            .find(' ')
            .map_or(from, |space| from + space)
    };
    let to = if to == line.len() {
        to
    } else {
        line[start..to].rfind(' ').map_or(to, |space| start + space)
    };
    from..to
}

/// The place `count` characters before `at`.
fn back(line: &str, at: usize, count: usize) -> usize {
    line[..at]
        .char_indices()
        .rev()
        .take(count)
        .last()
        .map_or(at, |(at, _)| at)
}

/// Replaces what would confuse a terminal: control characters and those that turn the direction of writing.
pub(crate) fn visible(text: &str) -> String {
    let odd = |c: char| {
        c.is_control()
            || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
    };
    text.chars().map(|c| if odd(c) { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marked(snippet: &Snippet) -> String {
        snippet
            .pieces()
            .iter()
            .map(|(text, hit)| {
                if *hit {
                    format!("[{text}]")
                } else {
                    (*text).to_owned()
                }
            })
            .collect()
    }

    #[test]
    fn highlights_every_occurrence() {
        let found = Snippet::cut(2, "\tHop by hop it goes, hopping", "hop");
        assert_eq!(
            (found.line, marked(&found).as_str()),
            (2, "[Hop] by [hop] it goes, hopping")
        );
    }

    #[test]
    fn cuts_long_lines_around_the_word() {
        let line = format!("{} needle {}", "before ".repeat(40), "after ".repeat(40));
        let found = Snippet::cut(1, &line, "needle");
        let shown = marked(&found);
        assert!(
            shown.starts_with("… before") && shown.ends_with("after …"),
            "{shown}"
        );
        assert!(shown.contains("[needle]"));
        assert!(found.text.chars().count() <= WIDTH + 4);
    }

    #[test]
    fn cuts_where_there_are_no_spaces_and_characters_are_long() {
        let line = format!("{}-needle-{}", "ß".repeat(64), "語-".repeat(400));
        assert!(marked(&Snippet::cut(1, &line, "needle")).contains("-[needle]-"));
        let end = format!("{}needle", "語-".repeat(400));
        assert!(marked(&Snippet::cut(1, &end, "needle")).ends_with("[needle]"));
    }

    #[test]
    fn leaves_no_control_characters() {
        assert_eq!(
            marked(&Snippet::cut(1, "a \x1bred\u{202e}fish", "red")),
            "a  [red] fish"
        );
        assert_eq!(marked(&Snippet::cut(1, "\x1b(red)\x07", "red")), "([red])");
    }

    #[test]
    fn a_word_that_is_not_there_is_not_highlighted() {
        assert_eq!(
            marked(&Snippet::cut(1, "nothing here", "hop")),
            "nothing here"
        );
        assert_eq!(Snippet::cut(0, "", "hop"), Snippet::default());
    }

    #[test]
    fn ranges_that_do_not_fit_are_harmless() {
        let odd = Snippet {
            line: 1,
            text: "äöü".to_owned(),
            highlights: vec![(1, 2), (0, 2), (9, 12), (4, 3)],
        };
        assert_eq!(marked(&odd), "[ä]öü");
    }
}
