//! A request for one answer goes on only to a method with one answer, and has only one.

use wallaby::{Address, Many, One, Request, Status};

#[wallaby::service]
trait Index {
    async fn first(word: String) -> String;
    async fn lookup(word: String) -> Many<String>;
}

struct Empty {
    next: Address,
}

#[wallaby::serve]
impl Index for Empty {
    async fn first(&self, request: Request<One<String>>, word: String) -> Result<(), Status> {
        request.forward(&self.next, index::lookup(word)).await?;
        Ok(())
    }
    async fn lookup(&self, word: String) -> String {
        word
    }
}

struct Again {
    next: Address,
}

#[wallaby::serve]
impl Index for Again {
    async fn first(&self, request: Request<One<String>>, word: String) -> Result<(), Status> {
        request.reply(word.clone()).await?;
        request.delegate(&self.next, index::first(word)).await?;
        Ok(())
    }
    async fn lookup(&self, word: String) -> String {
        word
    }
}

fn main() {}
