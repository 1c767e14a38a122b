//! Messages of Protocol Buffers as arguments and answers: across versions, along delegations, and where they cannot be read.

use std::sync::Arc;

use bytes::Bytes;
use wallaby::codec::Protobuf;
use wallaby::protobuf::prost;
use wallaby::reflection::{DESCRIPTORS, METHODS, MethodDescription};
use wallaby::{CallError, Client, Code, Endpoint, Many, Request, Status, Streaming, items};

use crate::common::{Net, at, client, patience, status};

over_every_transport!(versions_understand_each_other_along_a_delegation);

/// What older programs were built from.
mod old {
    use super::*;

    #[derive(Clone, PartialEq, prost::Message)]
    #[prost(prost_path = "prost")]
    pub(crate) struct Book {
        #[prost(string, tag = "1")]
        pub(crate) title: String,
    }

    impl prost::Name for Book {
        const PACKAGE: &'static str = "test.library";
        const NAME: &'static str = "Book";
    }

    wallaby::protobuf::messages!(descriptors = b"the old files"; Book);

    #[wallaby::service(package = "test.library", codec = Protobuf)]
    pub(crate) trait Shelf {
        async fn find(book: Book) -> Many<Book>;
        async fn count(books: Streaming<Book>) -> u64;
        async fn clear();
    }
}

/// What newer ones were built from.
mod new {
    use super::*;

    #[derive(Clone, PartialEq, prost::Message)]
    #[prost(prost_path = "prost")]
    pub(crate) struct Book {
        #[prost(string, tag = "1")]
        pub(crate) title: String,
        #[prost(uint32, optional, tag = "2")]
        pub(crate) year: Option<u32>,
    }

    impl prost::Name for Book {
        const PACKAGE: &'static str = "test.library";
        const NAME: &'static str = "Book";
    }

    wallaby::protobuf::messages!(descriptors = b"the new files"; Book);

    #[wallaby::service(package = "test.library", codec = Protobuf)]
    pub(crate) trait Shelf {
        async fn find(book: Book) -> Many<Book>;
        async fn count(books: Streaming<Book>) -> u64;
        async fn clear();
    }
}

/// What programs were built from in which a message has another name.
mod renamed {
    use super::*;

    #[wallaby::service(package = "test.library", codec = Protobuf)]
    pub(crate) trait Shelf {
        async fn find(title: String) -> Many<String>;
    }
}

/// Answers with a book and leaves the rest to the next one.
struct Old(Option<Endpoint>);

#[wallaby::serve]
impl old::Shelf for Old {
    async fn find(
        &self,
        request: Request<Many<old::Book>, Protobuf>,
        book: old::Book,
    ) -> Result<(), Status> {
        if let Some(next) = &self.0 {
            request
                .delegate(at(next), old::shelf::find(book.clone()))
                .await?;
        }
        Ok(request.respond(book).await?)
    }

    async fn count(&self, mut books: Streaming<old::Book, Protobuf>) -> Result<u64, Status> {
        let mut count = 0;
        while let Some(book) = books.next().await {
            count += book?.title.len() as u64;
        }
        Ok(count)
    }

    async fn clear(&self) {}
}

struct New;

#[wallaby::serve]
impl new::Shelf for New {
    async fn find(
        &self,
        request: Request<Many<new::Book>, Protobuf>,
        book: new::Book,
    ) -> Result<(), Status> {
        let year = Some(book.year.unwrap_or(1971));
        Ok(request.respond(new::Book { year, ..book }).await?)
    }

    async fn count(&self, _: Streaming<new::Book, Protobuf>) -> u64 {
        0
    }

    async fn clear(&self) {}
}

fn new_book(year: Option<u32>) -> new::Book {
    let title = "Hopping".into();
    new::Book { title, year }
}

async fn versions_understand_each_other_along_a_delegation(net: Net) {
    patience(async {
        let last = net.serve(new::shelf::service(New)).await;
        let first = net.serve(old::shelf::service(Old(Some(last)))).await;
        let endpoint = net.endpoint().await;

        let shelf = new::shelf::at(&endpoint, at(&first));
        let mut found = shelf
            .find(new_book(Some(2001)))
            .collect()
            .await
            .expect("both");
        found.sort_by_key(|book| book.year);
        // The older one did not know the year, and did not pass it on; the newer one's answer did not go through it.
        assert_eq!(found, [new_book(None), new_book(Some(1971))]);
        assert_eq!(shelf.clear().await, Ok(()));

        let shelf = old::shelf::at(&endpoint, at(&first));
        let book = old::Book {
            title: "Hopping".into(),
        };
        let found = shelf.find(book.clone()).collect().await.expect("both");
        assert_eq!(found, [book.clone(), book]);
    })
    .await;
}

#[tokio::test]
async fn messages_are_items_of_a_stream() {
    let net = Net::tcp();
    let server = net.serve(old::shelf::service(Old(None))).await;
    let client = client();
    let books = items([new_book(Some(1)), new_book(None)]);
    let shelf = new::shelf::at(&client, at(&server));
    assert_eq!(shelf.count(books).await, Ok(14));
}

#[tokio::test]
async fn a_message_of_another_name_is_refused_before_it_is_read() {
    let net = Net::tcp();
    let server = net.serve(old::shelf::service(Old(None))).await;
    let client = client();
    let shelf = renamed::shelf::at(&client, at(&server));
    let refused = shelf.find("Hopping".into()).collect().await;
    let error = refused.expect_err("it would be misread");
    assert_eq!(error.code(), Code::Mismatch);
    let text = error.to_string();
    for part in [
        "test.library.Shelf/find",
        "(test.library.Book) -> Many<test.library.Book>",
        "(google.protobuf.StringValue) -> Many<google.protobuf.StringValue>",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

#[tokio::test]
async fn what_cannot_be_read_is_an_error_of_that_value_alone() {
    let net = Net::tcp();
    let server = net.serve(old::shelf::service(Old(None))).await;
    let client = client();
    let cut = Bytes::from_static(b"\x0a\x07Hop");
    let find = Arc::clone(old::shelf::FIND.definition());
    let mut call = Client::new(&client, at(&server)).call_raw(&find, cut.clone());
    let refused = status(call.next().await.expect("a status"));
    assert_eq!(refused.code(), Code::InvalidArgument);
    let expected = "the arguments cannot be read: protobuf: this is no test.library.Book: Book.title: buffer underflow";
    assert!(refused.message().contains(expected), "{refused}");

    let raw = wallaby::Service::new("raw").raw(find, move |request: wallaby::RawRequest| {
        let cut = cut.clone();
        async move { Ok(request.respond(cut).await?) }
    });
    let server = net.serve(raw).await;
    let shelf = old::shelf::at(&client, at(&server));
    let answer = shelf.find(old::Book::default()).next().await;
    let error = answer.expect("an answer").expect_err("it is cut off");
    assert!(matches!(error, CallError::Decode(_)), "{error}");
    assert!(error.to_string().contains("Book.title"), "{error}");
}

#[tokio::test]
async fn tools_learn_what_messages_look_like() {
    let net = Net::tcp();
    let server = net.serve(new::shelf::service(New)).await;
    let client = client();
    let client = Client::new(&client, at(&server));
    let told = client
        .call(&METHODS, ("test.library.Shelf/".into(),))
        .collect()
        .await;
    let told: Vec<_> = (told.expect("they are told").iter())
        .map(|text| MethodDescription::parse(text).expect("a description"))
        .map(|method| {
            (
                method.codec.clone(),
                method.signature.expect("types").text("?"),
            )
        })
        .collect();
    let texts = [
        "(test.library.Book) -> Many<test.library.Book>",
        "(Streaming<test.library.Book>) -> google.protobuf.UInt64Value",
        "()",
    ];
    for text in texts {
        assert!(told.contains(&("protobuf".into(), text.into())), "{told:?}");
    }
    let sets = client.call(&DESCRIPTORS, ("test.".into(),)).collect().await;
    assert_eq!(sets, Ok(vec![b"the new files".to_vec()]), "each once");
    let sets = client
        .call(&DESCRIPTORS, ("wallaby.".into(),))
        .collect()
        .await;
    assert_eq!(sets, Ok(vec![]));
}
