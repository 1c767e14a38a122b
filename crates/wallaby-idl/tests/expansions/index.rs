//! A plain service: one method with many answers, one with a single one, one that only says when it is done.

/// Finds documents by their words.
#[wallaby::service]
pub trait Index {
    /// Looks a word up.
    ///
    /// In all documents.
    async fn lookup(word: String) -> Many<Document>;

    /// How many words there are.
    async fn size() -> u64;

    async fn insert(word: String, document: Document);
}
