//! The first thing that must work: a request that hops over two servers, on every transport.

use serde::{Deserialize, Serialize};
use wallaby::{Address, Endpoint, Many, Outcome, Request, Status};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Document {
    id: u32,
    text: String,
}

/// Keeps documents.
#[wallaby::service(package = "library")]
trait Documents {
    /// The document with this id.
    async fn fetch(id: u32) -> Document;
}

/// Knows which documents hold a word.
#[wallaby::service(package = "library")]
trait Index {
    /// All documents that hold the word.
    async fn lookup(word: String) -> Many<Document>;
}

struct Shelf;

#[wallaby::serve]
impl Documents for Shelf {
    async fn fetch(&self, id: u32) -> Result<Document, Status> {
        Ok(Document {
            id,
            text: format!("document {id}"),
        })
    }
}

struct Catalogue {
    shelves: Vec<Address>,
}

#[wallaby::serve]
impl Index for Catalogue {
    async fn lookup(&self, request: Request<Many<Document>>, word: String) -> Result<(), Status> {
        for (id, shelf) in self.shelves.iter().enumerate().take(word.len()) {
            request.delegate(shelf, documents::fetch(id as u32)).await?;
        }
        Ok(())
    }
}

async fn search(scheme: impl Fn(&str) -> String) {
    let mut shelves = Vec::new();
    for number in 0..3 {
        let endpoint = Endpoint::builder()
            .listen(&scheme(&format!("shelf{number}")))
            .serve(documents::service(Shelf))
            .bind()
            .await
            .expect("binds");
        shelves.push(endpoint);
    }
    let addresses = shelves
        .iter()
        .map(|shelf| shelf.address().expect("listens").clone())
        .collect();
    let index = Endpoint::builder()
        .listen(&scheme("index"))
        .serve(index::service(Catalogue { shelves: addresses }))
        .bind()
        .await
        .expect("binds");
    let initiator = Endpoint::bind(&scheme("initiator")).await.expect("binds");

    for words in [0, 1, 2, 3] {
        let mut call =
            index::at(&initiator, index.address().expect("listens")).lookup("x".repeat(words));
        let mut found = Vec::new();
        while let Some(document) = call.next().await {
            found.push(document.expect("an answer").id);
        }
        found.sort_unstable();
        assert_eq!(found, (0..words as u32).collect::<Vec<_>>());
        assert_eq!(call.outcome(), Some(Outcome::Complete { statuses: 0 }));
    }
}

#[tokio::test]
async fn over_mem() {
    search(|name| format!("mem://two-hops-{name}")).await;
}

#[tokio::test]
async fn over_tcp() {
    search(|_| "tcp://127.0.0.1:0".into()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn over_unix() {
    let folder = std::env::temp_dir().join(format!("wallaby-two-hops-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary folder");
    search(|name| format!("unix://{}/{name}", folder.display())).await;
    std::fs::remove_dir_all(&folder).expect("the folder is ours");
}
