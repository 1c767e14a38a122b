//! A request can only be delegated to a method with the same answer.

use wallaby::{Address, Many, Request, Status};

#[wallaby::service]
trait Documents {
    async fn fetch(id: u64) -> String;
    async fn size(id: u64) -> u64;
    async fn sizes(id: u64) -> Many<u64>;
}

#[wallaby::service]
trait Index {
    async fn lookup(word: String) -> Many<String>;
}

struct Empty {
    documents: Address,
}

#[wallaby::serve]
impl Index for Empty {
    async fn lookup(&self, request: Request<Many<String>>, word: String) -> Result<(), Status> {
        let id = word.len() as u64;
        request.delegate(&self.documents, documents::fetch(id)).await?;
        request.delegate(&self.documents, documents::size(id)).await?;
        request.forward(&self.documents, documents::sizes(id)).await?;
        Ok(())
    }
}

fn main() {}
