//! A handler returns the answer of its method, or a status instead.

use wallaby::{Many, One, Request, Status};

#[wallaby::service]
trait Index {
    async fn count(word: String) -> u64;
    async fn size() -> u64;
    async fn words() -> Many<String>;
    async fn clear();
}

struct Empty;

#[wallaby::serve]
impl Index for Empty {
    async fn count(&self, word: String) -> String {
        word
    }
    fn size(&self) -> Result<String, Status> {
        Ok(String::new())
    }
    async fn words(&self, request: Request<Many<String>>) -> String {
        drop(request);
        String::new()
    }
    async fn clear(&self, request: Request<One<()>>) -> Result<(), Status> {
        request.respond(1).await?;
        Ok(())
    }
}

fn main() {}
