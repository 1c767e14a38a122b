//! A document's words: how often each occurs, and which line shows it best.

use super::snippet::Snippet;
use super::words::{normal, words};
use std::collections::HashMap;

/// The words of one document.
#[derive(Debug, Default)]
pub(crate) struct Concordance {
    words: HashMap<String, Occurrences>,
}

/// Where a word occurs; documents are far smaller than what the numbers hold.
#[derive(Debug, Default)]
struct Occurrences {
    count: u32,
    /// The line in which it occurs most often, counted from 1, and where that line begins.
    line: u32,
    offset: u32,
    /// How often it occurs there, and in the line that is being read.
    most: u16,
    here: u16,
    /// The line that is being read.
    reading: u32,
}

impl Concordance {
    /// Reads a document.
    pub(crate) fn of(text: &str) -> Self {
        let mut this = Self::default();
        let mut offset = 0;
        for (number, line) in (1..).zip(text.split_inclusive('\n')) {
            for (_, word) in words(line) {
                this.add(&normal(word), number, offset);
            }
            offset = offset.saturating_add(u32::try_from(line.len()).unwrap_or(u32::MAX));
        }
        this
    }

    fn add(&mut self, word: &str, line: u32, offset: u32) {
        match self.words.get_mut(word) {
            Some(found) => found.add(line, offset),
            None => self
                .words
                .entry(word.to_owned())
                .or_default()
                .add(line, offset),
        }
    }

    /// Every word with how often it occurs.
    pub(crate) fn counts(&self) -> Vec<(String, u32)> {
        self.words
            .iter()
            .map(|(word, found)| (word.clone(), found.count))
            .collect()
    }

    /// How often a word (in normal form) occurs.
    pub(crate) fn count(&self, word: &str) -> u32 {
        self.words.get(word).map_or(0, |found| found.count)
    }

    /// The line of the document `text` that shows a word best.
    pub(crate) fn snippet(&self, text: &str, word: &str) -> Snippet {
        let place = self
            .words
            .get(word)
            .and_then(|found| Some((found.line, text.get(found.offset as usize..)?)));
        let (number, rest) = place.unwrap_or_default();
        Snippet::cut(number, rest.lines().next().unwrap_or_default(), word)
    }
}

impl Occurrences {
    fn add(&mut self, line: u32, offset: u32) {
        self.count += 1;
        self.here = if self.reading == line {
            self.here.saturating_add(1)
        } else {
            1
        };
        self.reading = line;
        if self.here > self.most {
            (self.most, self.line, self.offset) = (self.here, line, offset);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_without_regard_to_case() {
        let found = Concordance::of("Hop hop HOP, delegate");
        let mut counts = found.counts();
        counts.sort();
        assert_eq!(counts, [("delegate".to_owned(), 1), ("hop".to_owned(), 3)]);
        assert_eq!((found.count("hop"), found.count("none")), (3, 0));
    }

    #[test]
    fn shows_the_line_with_most_occurrences() {
        let text = "one hop\r\nHop by hop it goes\r\n\nhop, hop";
        let snippet = Concordance::of(text).snippet(text, "hop");
        assert_eq!(
            (snippet.line, snippet.text.as_str()),
            (2, "Hop by hop it goes")
        );
        assert_eq!(snippet.highlights, [(0, 3), (7, 10)]);
        assert_eq!(Concordance::of(text).snippet(text, "it").line, 2);
    }

    #[test]
    fn nothing_is_shown_of_a_word_that_is_not_there() {
        assert_eq!(
            Concordance::of("text").snippet("text", "hop"),
            Snippet::default()
        );
        assert_eq!(Concordance::of("").snippet("", "hop"), Snippet::default());
    }
}
