//! Arguments are names with types that another program can make.

#[wallaby::service]
trait Index {
    async fn opaque(words: impl Iterator<Item = String>) -> u64;
    async fn pattern((word, count): (String, u64));
    async fn ignored(_: String);
    async fn changed(mut word: String);
    async fn twice(word: String, word: String);
    async fn attribute(#[allow(unused)] word: String);
    async fn text(word: &str);
    async fn bytes(words: Vec<&[u8]>);
    async fn borrowed(word: std::borrow::Cow<'_, str>);
    async fn myself(other: Self, part: Self::Part);
    async fn unknown(word: _);
}

fn main() {}
