//! A handler is `async fn` or `fn` with the arguments of the service.

use wallaby::Many;

#[wallaby::service]
trait Index {
    async fn lookup(word: String) -> Many<u64>;
    async fn count(word: String) -> u64;
    async fn clear();
    async fn size() -> u64;
}

struct Empty;

#[wallaby::serve(package = "demo")]
impl Index for Empty {
    async fn lookup(&self, word: String, request: wallaby::Request<Many<u64>>) -> Result<(), wallaby::Status> {
        request.respond(word.len() as u64).await?;
        Ok(())
    }
    async fn count<T: Into<String>>(&self, word: T) -> u64
    where
        T: Clone,
    {
        0
    }
    const fn clear(&self) {}
    async fn size(&self) -> impl Into<u64> {
        0u64
    }
}

#[wallaby::serve]
unsafe impl Index for () {
    async fn lookup(&self, word: impl Into<String>) -> u64 {
        0
    }
}

#[wallaby::serve(crate = "wallaby")]
impl Index for u8 {}

fn main() {}
