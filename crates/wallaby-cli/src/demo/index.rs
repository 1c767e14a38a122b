//! The index: for each word the documents that contain it, best first.

use super::words::normal;
use std::collections::{BTreeSet, HashMap};

/// That a word occurs in a document.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Posting {
    /// Which of the document servers holds it.
    pub(crate) server: u32,
    /// Its number there.
    pub(crate) document: u32,
    /// How often the word occurs in it.
    pub(crate) count: u32,
    /// How well it fits the word, compared with others.
    score: f32,
}

/// Takes in documents until [`finish`](Self::finish).
#[derive(Debug, Default)]
pub(crate) struct IndexBuilder {
    postings: HashMap<String, Vec<Posting>>,
    /// Words in each document, by server and document.
    lengths: HashMap<(u32, u32), u32>,
}

impl IndexBuilder {
    pub(crate) fn add(&mut self, server: u32, document: u32, words: Vec<(String, u32)>) {
        let length = words
            .iter()
            .fold(0, |sum: u32, (_, count)| sum.saturating_add(*count));
        self.lengths.insert((server, document), length);
        for (word, count) in words {
            self.postings.entry(word).or_default().push(Posting {
                server,
                document,
                count,
                score: 0.0,
            });
        }
    }

    /// Ranks all documents of all words.
    pub(crate) fn finish(mut self) -> Index {
        let total: f32 = self.lengths.values().map(|length| *length as f32).sum();
        let mean = total / self.lengths.len().max(1) as f32;
        for postings in self.postings.values_mut() {
            for posting in postings.iter_mut() {
                let length = self
                    .lengths
                    .get(&(posting.server, posting.document))
                    .copied()
                    .unwrap_or(0);
                posting.score = score(posting.count as f32, length as f32 / mean.max(1.0));
            }
            postings.sort_by(|a, b| {
                b.score
                    .total_cmp(&a.score)
                    .then((a.server, a.document).cmp(&(b.server, b.document)))
            });
        }
        Index {
            postings: self.postings,
            documents: self.lengths.len() as u64,
        }
    }
}

/// BM25 for a single word: more occurrences count less and less, and less in a document that is long anyway.
fn score(count: f32, relative_length: f32) -> f32 {
    const SATURATION: f32 = 1.2;
    const LENGTH: f32 = 0.75;
    count * (SATURATION + 1.0) / (count + SATURATION * (1.0 - LENGTH + LENGTH * relative_length))
}

/// The finished index.
#[derive(Debug, Default)]
pub(crate) struct Index {
    postings: HashMap<String, Vec<Posting>>,
    documents: u64,
}

impl Index {
    pub(crate) fn documents(&self) -> u64 {
        self.documents
    }

    pub(crate) fn words(&self) -> u64 {
        self.postings.len() as u64
    }

    /// The best `limit` documents for a word.
    pub(crate) fn find(&self, word: &str, limit: u32) -> &[Posting] {
        let all = self
            .postings
            .get(&*normal(word))
            .map_or(&[][..], Vec::as_slice);
        &all[..all.len().min(limit as usize)]
    }

    /// Up to `count` words that make good examples: each is what about `matches` documents are about.
    pub(crate) fn examples(&self, count: u32, matches: u32) -> Vec<String> {
        let mut candidates: Vec<_> = self
            .postings
            .iter()
            .filter(|(word, _)| word.chars().all(char::is_alphabetic))
            .collect();
        // The words themselves are the last criterion: the order of a hash map must not show.
        candidates.sort_by_key(|(word, postings)| {
            let off = postings.len().abs_diff(matches as usize);
            let short = word.chars().count() < 5;
            let mentions: u64 = postings
                .iter()
                .map(|posting| u64::from(posting.count))
                .sum();
            (short, off, std::cmp::Reverse(mentions), *word)
        });
        // Sorted, because the reader meets them one by one.
        let chosen: BTreeSet<_> = candidates
            .into_iter()
            .take(count as usize)
            .map(|(word, _)| word.clone())
            .collect();
        chosen.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::concordance::Concordance;
    use super::*;

    fn index(documents: &[&str]) -> Index {
        let mut builder = IndexBuilder::default();
        for (number, text) in (0..).zip(documents) {
            builder.add(number % 2, number / 2, Concordance::of(text).counts());
        }
        builder.finish()
    }

    fn places(index: &Index, word: &str) -> Vec<(u32, u32, u32)> {
        index
            .find(word, 10)
            .iter()
            .map(|found| (found.server, found.document, found.count))
            .collect()
    }

    #[test]
    fn the_more_often_the_better() {
        let index = index(&["hop a b c", "hop hop a b", "none here at all"]);
        assert_eq!(places(&index, "Hop"), [(1, 0, 2), (0, 0, 1)]);
        assert_eq!(places(&index, "nothing"), []);
        assert_eq!(index.find("hop", 1).len(), 1);
        assert_eq!((index.documents(), index.words()), (3, 8));
    }

    #[test]
    fn shorter_documents_win_at_equal_counts() {
        let long = format!("hop {}", "word ".repeat(100));
        let index = index(&[&long, "hop and little else"]);
        assert_eq!(places(&index, "hop"), [(1, 0, 1), (0, 0, 1)]);
    }

    #[test]
    fn equal_documents_keep_one_order() {
        let index = index(&["hop"; 4]);
        assert_eq!(
            places(&index, "hop"),
            [(0, 0, 1), (0, 1, 1), (1, 0, 1), (1, 1, 1)]
        );
    }

    #[test]
    fn examples_are_words_with_about_the_wanted_matches() {
        let index = index(&[
            "common paired tiny 12345",
            "common paired tiny",
            "common single",
        ]);
        assert_eq!(index.examples(1, 2), ["paired"]);
        assert_eq!(index.examples(2, 3), ["common", "paired"]);
        assert_eq!(index.examples(9, 2), ["common", "paired", "single", "tiny"]);
        assert!(Index::default().examples(3, 2).is_empty());
    }
}
