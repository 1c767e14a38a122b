//! Services written with the macros, running: every form of handler, every option, over `mem:` and `tcp:`.

#![deny(missing_docs, unused, unreachable_pub, clippy::pedantic)]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use wallaby::{Address, Call, CallError, Code, Endpoint, Many, One, Request, Status};

/// What the index finds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Document {
    id: u64,
    text: String,
}

/// An error of the application.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotFound {
    id: u64,
}

/// Keeps documents.
#[wallaby::service(package = "test.search")]
pub trait Documents {
    /// The document with this id: a status if there is none.
    async fn fetch(id: u64) -> Document;
    /// The same with an error of the application.
    async fn find(id: u64) -> Result<Document, NotFound>;
    /// How many there are.
    async fn count() -> u64;
    /// All of them.
    async fn list() -> Many<Document>;
    /// Adds documents.
    async fn insert(documents: Vec<Document>);
}

/// Finds documents by their words.
#[wallaby::service(package = "test.search")]
pub trait Index {
    /// All documents with this word.
    async fn lookup(word: String) -> Many<Document>;
    /// The first of them.
    async fn first(word: String) -> Document;
    /// All documents with this word, one for each `times` too.
    async fn repeat(word: String, times: u32) -> Many<Document>;
    /// How many documents there are, as a call to their server says.
    async fn count() -> One<u64>;
    /// Forgets a word.
    async fn forget(word: String);
}

/// A server of documents, of whatever is a map.
pub struct DocumentServer<M> {
    documents: Mutex<M>,
}

#[wallaby::serve]
impl<M> Documents for DocumentServer<M>
where
    M: Extend<(u64, Document)> + Send + 'static,
    for<'a> &'a M: IntoIterator<Item = (&'a u64, &'a Document)>,
{
    /// A value or a status.
    async fn fetch(&self, id: u64) -> Result<Document, Status> {
        self.get(id)
            .ok_or_else(|| Status::new(Code::NotFound, format!("no document {id}")))
    }

    /// A value that is a `Result`.
    async fn find(&self, id: u64) -> Result<Document, NotFound> {
        self.get(id).ok_or(NotFound { id })
    }

    /// A value, from a handler that blocks.
    fn count(&self) -> u64 {
        let Self { documents } = self;
        locked(documents).into_iter().map(|_| 1).sum()
    }

    /// Answers through its request, from a handler that blocks.
    fn list(&self, request: Request<Many<Document>>) -> Result<(), Status> {
        for (_, document) in &*locked(&self.documents) {
            request.blocking_reply(document.clone())?;
        }
        Ok(())
    }

    /// Nothing, from a handler that blocks.
    fn insert(self: &Arc<Self>, documents: Vec<Document>) {
        let documents = documents
            .into_iter()
            .map(|document| (document.id, document));
        let server = Arc::clone(self);
        locked(&server.documents).extend(documents);
    }
}

impl<M> DocumentServer<M>
where
    for<'a> &'a M: IntoIterator<Item = (&'a u64, &'a Document)>,
{
    fn get(&self, id: u64) -> Option<Document> {
        let documents = locked(&self.documents);
        documents
            .into_iter()
            .find(|(found, _)| **found == id)
            .map(|(_, document)| document.clone())
    }
}

fn locked<M>(documents: &Mutex<M>) -> MutexGuard<'_, M> {
    documents.lock().expect("no handler has panicked")
}

struct IndexServer {
    /// The documents of each word.
    words: BTreeMap<String, Vec<u64>>,
    documents: Address,
    forgotten: AtomicU64,
}

#[wallaby::serve]
impl Index for IndexServer {
    async fn lookup(&self, request: Request<Many<Document>>, word: String) -> Result<(), Status> {
        for &id in self.ids(&word)? {
            request
                .delegate(&self.documents, documents::fetch(id))
                .await?;
        }
        Ok(())
    }

    async fn first(&self, request: Request<One<Document>>, word: String) -> Result<(), Status> {
        let id = self.ids(&word)?[0];
        request
            .forward(&self.documents, documents::fetch(id))
            .await?;
        Ok(())
    }

    async fn repeat(
        self: &Arc<Self>,
        request: Request<Many<Document>>,
        mut word: String,
        times: u32,
    ) -> Result<(), Status> {
        word.make_ascii_lowercase();
        let documents = documents::within(request.call().at(&self.documents));
        let server = Arc::clone(self);
        let task = tokio::spawn(async move {
            for &id in server.ids(&word)? {
                for _ in 0..times {
                    let document = documents
                        .fetch(id)
                        .await
                        .map_err(|error| unavailable(&error))?;
                    request.reply(document).await?;
                }
            }
            Ok(())
        });
        task.await.map_err(|error| unavailable(&error))?
    }

    async fn count(&self, request: Request<One<u64>>) {
        let documents = documents::within(request.call().at(&self.documents));
        let count = documents.count().await.unwrap_or(0);
        request.respond(count).await.ok();
    }

    fn forget(&self, request: Request<One<()>>, _word: String) -> Result<(), Status> {
        self.forgotten.fetch_add(1, Ordering::Relaxed);
        drop(request);
        Err(Status::new(Code::PermissionDenied, "words are kept"))
    }
}

fn unavailable(error: &impl ToString) -> Status {
    Status::new(Code::Unavailable, error.to_string())
}

impl IndexServer {
    fn ids(&self, word: &str) -> Result<&[u64], Status> {
        let ids = self.words.get(word).map(Vec::as_slice);
        ids.ok_or_else(|| Status::new(Code::NotFound, format!("no word {word}")))
    }
}

/// A client, an index server, and a document server.
struct Cluster {
    client: Endpoint,
    index: Endpoint,
    documents: Endpoint,
    index_server: Arc<IndexServer>,
}

impl Cluster {
    /// `addresses` are those of the three endpoints.
    async fn start(addresses: [&str; 3]) -> Self {
        let [client, index, documents] = addresses;
        let client = Endpoint::bind(client).await.expect("the client binds");
        let documents = Endpoint::bind(documents)
            .await
            .expect("the document server binds");
        let kept = (1..=3)
            .map(|id| (id, document(id)))
            .collect::<BTreeMap<_, _>>();
        let document_server = DocumentServer {
            documents: Mutex::new(kept),
        };
        documents
            .serve(documents::service(document_server))
            .expect("documents are served");

        let index = Endpoint::bind(index).await.expect("the index server binds");
        let words = [("hop", vec![1, 3]), ("lost", vec![7])];
        let index_server = Arc::new(IndexServer {
            words: words.map(|(word, ids)| (word.to_owned(), ids)).into(),
            documents: address(&documents),
            forgotten: AtomicU64::new(0),
        });
        index
            .serve(index::service(Arc::clone(&index_server)))
            .expect("the index is served");
        Self {
            client,
            index,
            documents,
            index_server,
        }
    }

    fn index(&self) -> index::Client {
        index::at(&self.client, address(&self.index))
    }

    fn documents(&self) -> documents::Client {
        documents::at(&self.client, address(&self.documents))
    }
}

fn address(server: &Endpoint) -> Address {
    server.address().expect("it listens").clone()
}

fn document(id: u64) -> Document {
    Document {
        id,
        text: format!("document {id}"),
    }
}

/// All answers in the order of their ids, and the code of each status.
async fn all(mut call: Call<Many<Document>>) -> (Vec<u64>, Vec<Code>) {
    let (mut ids, mut codes) = (Vec::new(), Vec::new());
    while let Some(answer) = call.next().await {
        match answer {
            Ok(document) => ids.push(document.id),
            Err(error) => codes.push(code(&error)),
        }
    }
    ids.sort_unstable();
    (ids, codes)
}

fn code(error: &CallError) -> Code {
    error
        .status()
        .unwrap_or_else(|| panic!("expected a status, but got {error}"))
        .code()
}

async fn check_cluster(addresses: [&str; 3]) {
    let cluster = Cluster::start(addresses).await;
    let (index, documents) = (cluster.index(), cluster.documents());

    assert_eq!(
        all(index.lookup("hop".into())).await,
        (vec![1, 3], vec![]),
        "delegated"
    );
    assert_eq!(
        all(index.lookup("none".into())).await,
        (vec![], vec![Code::NotFound]),
        "a status of the first hop"
    );
    assert_eq!(
        all(index.lookup("lost".into())).await,
        (vec![], vec![Code::NotFound]),
        "a status of the second hop"
    );
    assert_eq!(
        index.first("hop".into()).await.expect("an answer"),
        document(1),
        "forwarded"
    );
    assert_eq!(
        code(&index.first("none".into()).await.expect_err("a status")),
        Code::NotFound
    );
    assert_eq!(
        all(index.repeat("HOP".into(), 2)).await,
        (vec![1, 1, 3, 3], vec![]),
        "replied from a task"
    );
    assert_eq!(
        index.count().await.expect("an answer"),
        3,
        "called from a handler"
    );
    assert_eq!(
        code(&index.forget("hop".into()).await.expect_err("a status")),
        Code::PermissionDenied
    );
    assert_eq!(
        cluster.index_server.forgotten.load(Ordering::Relaxed),
        1,
        "the server is shared with this test"
    );

    assert_eq!(documents.fetch(2).await.expect("an answer"), document(2));
    assert_eq!(
        code(&documents.fetch(9).await.expect_err("a status")),
        Code::NotFound
    );
    assert_eq!(all(documents.list()).await, (vec![1, 2, 3], vec![]));
    assert_eq!(documents.find(2).await.expect("an answer"), Ok(document(2)));
    assert_eq!(
        documents.find(9).await.expect("an answer"),
        Err(NotFound { id: 9 })
    );
    documents
        .insert(vec![document(8), document(9)])
        .await
        .expect("done");
    assert_eq!(documents.count().await.expect("an answer"), 5);

    let patient = index
        .deadline(Duration::from_secs(20))
        .traced()
        .metadata("user", "tester")
        .fail_fast();
    assert_eq!(
        all(patient.lookup("hop".into())).await,
        (vec![1, 3], vec![]),
        "with options"
    );
}

#[tokio::test]
async fn two_hops_in_memory() {
    check_cluster([
        "mem://macro-client",
        "mem://macro-index",
        "mem://macro-documents",
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hops_over_tcp() {
    check_cluster(["tcp://127.0.0.1:0"; 3]).await;
}

/// Types with names that the generated module has too.
mod names {
    use serde::{Deserialize, Serialize};

    /// Not the client of a service.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub(crate) struct Client(pub(crate) u8);

    /// Nor a server.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub(crate) struct Server(pub(crate) u8);

    /// Nor the request of a handler, since it has no answer.
    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    pub(crate) struct Request(pub(crate) u8);

    const SERVICE: usize = 2;

    /// Methods and arguments are called what they like.
    #[wallaby::service(package = "test.names")]
    pub(crate) trait HTTPFile {
        async fn r#type(r#match: u8, server: Server, request: self::Request) -> Client;
        async fn deadline(request: Request) -> Client;
        async fn metadata(client: super::names::Client) -> [u8; SERVICE];
        async fn name();
        async fn together(
            one: u8,
            two: u8,
            three: u8,
            four: u8,
            five: u8,
            six: u8,
        ) -> [u8; deadline()];
        #[cfg(not(test))]
        async fn missing(of: Nothing) -> Nothing;
    }

    const fn deadline() -> usize {
        6
    }

    pub(crate) struct Files;

    #[wallaby::serve]
    impl HTTPFile for Files {
        async fn r#type(&self, r#match: u8, Server(server): Server, request: Request) -> Client {
            Client(r#match + server + request.0)
        }
        async fn deadline(
            &self,
            request: wallaby::Request<wallaby::One<Client>>,
            Request(number): Request,
        ) {
            request.respond(Client(number)).await.ok();
        }
        fn metadata(&self, Client(number): Client) -> [u8; SERVICE] {
            [number; SERVICE]
        }
        async fn name(&self) {}
        async fn together(
            &self,
            one: u8,
            two: u8,
            three: u8,
            four: u8,
            five: u8,
            six: u8,
        ) -> [u8; deadline()] {
            [one, two, three, four, five, six]
        }
        #[cfg(not(test))]
        async fn missing(&self, of: Nothing) -> Nothing {
            of
        }
    }
}

#[tokio::test]
async fn names_do_not_clash() {
    use names::{Client, Files, Request, Server, http_file};

    assert_eq!(http_file::SERVICE, "test.names.HTTPFile");
    assert_eq!(http_file::TYPE.name(), "test.names.HTTPFile/type");

    let server = Endpoint::bind("mem://macro-names").await.expect("binds");
    server.serve(http_file::service(Files)).expect("served");
    let client = wallaby::Client::new(&Endpoint::client().expect("a client"), address(&server))
        .metadata("user", "tester");
    let files = http_file::within(client);
    assert_eq!(
        files
            .r#type(1, Server(2), Request(4))
            .await
            .expect("an answer"),
        Client(7)
    );
    assert_eq!(
        files.deadline(Request(3)).await.expect("an answer"),
        Client(3)
    );
    assert_eq!(files.metadata(Client(5)).await.expect("an answer"), [5, 5]);
    files.name().await.expect("done");
    let numbers = files.together(1, 2, 3, 4, 5, 6).await;
    assert_eq!(numbers.expect("an answer"), [1, 2, 3, 4, 5, 6]);
}

/// Bytes as they are.
#[wallaby::service(package = "test.blobs", codec = wallaby::codec::Raw)]
trait Blobs {
    async fn reverse(data: Bytes) -> Vec<u8>;
    async fn chunks(data: Bytes) -> Many<Bytes>;
    async fn clear();
    #[cfg(test)]
    #[deprecated = "there is nothing to say"]
    #[must_use]
    async fn greet() -> Vec<u8>;
}

struct BlobServer;

#[wallaby::serve]
impl Blobs for BlobServer {
    async fn reverse(&self, data: Bytes) -> Vec<u8> {
        data.iter().rev().copied().collect()
    }
    async fn chunks(
        &self,
        request: Request<Many<Bytes>, wallaby::codec::Raw>,
        data: Bytes,
    ) -> Result<(), Status> {
        for chunk in data.chunks(2) {
            request.reply(data.slice_ref(chunk)).await?;
        }
        Ok(())
    }
    fn clear(&self) -> Result<(), Status> {
        Err(Status::new(Code::FailedPrecondition, "not now"))
    }
    #[cfg(test)]
    fn greet(&self) -> Vec<u8> {
        b"hello".to_vec()
    }
}

#[tokio::test]
async fn codecs_of_services() {
    let server = Endpoint::bind("mem://macro-blobs").await.expect("binds");
    server.serve(blobs::service(BlobServer)).expect("served");
    let blobs = blobs::at(&Endpoint::client().expect("a client"), address(&server));
    assert_eq!(
        blobs
            .reverse(Bytes::from_static(b"hop"))
            .await
            .expect("an answer"),
        b"poh"
    );
    let mut chunks = blobs.chunks(Bytes::from_static(b"hop"));
    assert_eq!(
        chunks.next().await.expect("an answer").expect("a value"),
        "ho"
    );
    assert_eq!(
        chunks.next().await.expect("an answer").expect("a value"),
        "p"
    );
    assert!(chunks.next().await.is_none());
    assert_eq!(
        code(&blobs.clear().await.expect_err("a status")),
        Code::FailedPrecondition
    );
    #[expect(deprecated, reason = "attributes of methods are those of the client")]
    let greeting = blobs.greet();
    assert_eq!(greeting.await.expect("an answer"), b"hello");
}

/// Two services of one server, in one process.
#[tokio::test]
async fn one_server_has_several_services() {
    #[derive(Default)]
    struct Both(AtomicU64);

    #[wallaby::serve]
    impl both::Left for Both {
        async fn add(&self, count: u64) {
            self.0.fetch_add(count, Ordering::Relaxed);
        }
    }

    #[wallaby::serve]
    impl both::Right for Both {
        fn sum(&self) -> u64 {
            self.0.load(Ordering::Relaxed)
        }
    }

    let both = Arc::new(Both::default());
    let endpoint = Endpoint::bind("mem://macro-both").await.expect("binds");
    endpoint
        .serve(both::left::service(Arc::clone(&both)))
        .expect("served");
    endpoint.serve(both::right::service(both)).expect("served");
    both::left::at(&endpoint, address(&endpoint))
        .add(3)
        .await
        .expect("done");
    both::left::at(&endpoint, address(&endpoint))
        .add(4)
        .await
        .expect("done");
    assert_eq!(
        both::right::at(&endpoint, address(&endpoint))
            .sum()
            .await
            .expect("an answer"),
        7
    );
}

/// A server of any type and size, whose attributes are kept.
#[tokio::test]
async fn servers_are_generic() {
    struct Shard<T, const N: usize>([T; N]);

    #[wallaby::serve]
    #[cfg(test)]
    impl<T, const N: usize> both::Right for Shard<T, N>
    where
        T: Copy + Into<u64> + Send + Sync + 'static,
    {
        #[cfg(test)]
        #[allow(unused_variables, reason = "it would not compile if this were lost")]
        async fn sum(&self) -> u64 {
            let unused = N;
            self.0.iter().copied().map(Into::into).sum()
        }
    }

    let endpoint = Endpoint::bind("mem://macro-shard").await.expect("binds");
    endpoint
        .serve(both::right::service(Shard([1_u8, 2, 3])))
        .expect("served");
    let sum = both::right::at(&endpoint, address(&endpoint)).sum().await;
    assert_eq!(sum.expect("an answer"), 6);
    assert_eq!(both::empty::SERVICE, "test.both.Empty");
}

/// Services cannot be defined in a function: their modules could not see its types.
mod both {
    #[wallaby::service(package = "test.both")]
    #[cfg(test)]
    pub(super) trait Empty {}

    #[wallaby::service(package = "test.both")]
    pub(super) trait Left {
        async fn add(count: u64);
    }

    #[wallaby::service(package = "test.both")]
    pub(super) trait Right {
        async fn sum() -> u64;
    }
}

/// The package of a service is by default the crate's; names below `wallaby`, as this crate's, cannot be served.
#[wallaby::service]
trait Unnamed {
    async fn now() -> u64;
}

#[test]
fn the_default_package_is_the_crate() {
    assert_eq!(
        unnamed::SERVICE,
        concat!(env!("CARGO_PKG_NAME"), ".Unnamed")
    );
    assert_eq!(
        unnamed::NOW.name(),
        concat!(env!("CARGO_PKG_NAME"), ".Unnamed/now")
    );
}
