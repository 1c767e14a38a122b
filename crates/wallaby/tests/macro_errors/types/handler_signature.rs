//! A handler's request and arguments are those of its method.

use wallaby::{Many, One, Request, Status};

#[wallaby::service]
trait Index {
    async fn lookup(word: String) -> Many<u64>;
    async fn count(word: String) -> u64;
    async fn size() -> u64;
    async fn clear();
}

struct Empty;

#[wallaby::serve]
impl Index for Empty {
    async fn lookup(&self, request: Request<One<u64>>, word: String) -> Result<(), Status> {
        request.respond(word.len() as u64).await?;
        Ok(())
    }
    async fn count(&self, word: u64) -> u64 {
        word
    }
    async fn size(&self, word: String) -> u64 {
        word.len() as u64
    }
    async fn length(&self) -> u64 {
        0
    }
}

fn main() {}
